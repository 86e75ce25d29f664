"""Libraries and programs."""

from __future__ import annotations

from typing import Final

from gpunode.diagnoses.model import Family

FAMILY: Final = Family("userspace", "libraries and programs", ())
