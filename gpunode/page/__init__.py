"""Render doctor's result as a self-contained page: one file, no script, no requests. Pure."""

from __future__ import annotations
