"""What a person reads: workflow values to lines of styled text, which is pure, and a thin part that prints them."""

from __future__ import annotations
