"""The PCI bus."""

from __future__ import annotations

from typing import Final

from gpunode.diagnoses.model import Family

FAMILY: Final = Family("pci", "the PCI bus", ())
