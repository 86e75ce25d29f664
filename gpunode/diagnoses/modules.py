"""Kernel modules and device nodes."""

from __future__ import annotations

from typing import Final

from gpunode.diagnoses.model import Family

FAMILY: Final = Family("modules", "kernel modules and device nodes", ())
