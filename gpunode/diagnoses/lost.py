"""GPUs that are lost."""

from __future__ import annotations

from typing import Final

from gpunode.diagnoses.model import Family

FAMILY: Final = Family("lost", "GPUs that are lost", ())
