"""GPU and driver branch."""

from __future__ import annotations

from typing import Final

from gpunode.diagnoses.model import Family

FAMILY: Final = Family("support", "GPU and driver branch", ())
