"""The front desk: arguments in, text or JSON out."""

from __future__ import annotations
