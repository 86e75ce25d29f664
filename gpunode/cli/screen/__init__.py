"""The screens: pure functions from workflow values to styled lines, and a thin part that prints them."""

from __future__ import annotations
