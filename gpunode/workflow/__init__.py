"""The verbs: order only, no decisions."""

from __future__ import annotations
