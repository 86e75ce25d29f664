"""NVLink, NVSwitch and the fabric manager."""

from __future__ import annotations

from typing import Final

from gpunode.diagnoses.model import Family

FAMILY: Final = Family("nvlink", "NVLink, NVSwitch and the fabric manager", ())
