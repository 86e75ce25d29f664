"""The hands: the only files that touch an operating system."""

from __future__ import annotations
