"""The GPU System Processor."""

from __future__ import annotations

from typing import Final

from gpunode.diagnoses.model import Family

FAMILY: Final = Family("gsp", "the GPU System Processor", ())
