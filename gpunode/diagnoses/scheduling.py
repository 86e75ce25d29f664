"""Pods that get no GPU."""

from __future__ import annotations

from typing import Final

from gpunode.diagnoses.model import Family

FAMILY: Final = Family("scheduling", "pods that get no GPU", ())
