"""Building the kernel module."""

from __future__ import annotations

from typing import Final

from gpunode.diagnoses.model import Family

FAMILY: Final = Family("build", "building the kernel module", ())
