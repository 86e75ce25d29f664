"""What a recipe asks of a node, one file per step. Pure."""

from __future__ import annotations
