"""Virtual machines, vGPU and WSL."""

from __future__ import annotations

from typing import Final

from gpunode.diagnoses.model import Family

FAMILY: Final = Family("virtual", "virtual machines, vGPU and WSL", ())
