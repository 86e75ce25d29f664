"""The commands' control flow: the order of calls; decisions live elsewhere."""

from __future__ import annotations
