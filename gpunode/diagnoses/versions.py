"""Versions that do not match."""

from __future__ import annotations

from typing import Final

from gpunode.diagnoses.model import Family

FAMILY: Final = Family("versions", "versions that do not match", ())
