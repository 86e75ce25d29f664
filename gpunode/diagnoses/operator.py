"""GPU Operator and products."""

from __future__ import annotations

from typing import Final

from gpunode.diagnoses.model import Family

FAMILY: Final = Family("operator", "GPU Operator and products", ())
