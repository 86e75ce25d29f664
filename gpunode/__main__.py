"""`python -m gpunode` and the entry point `gpunode`."""

from __future__ import annotations
