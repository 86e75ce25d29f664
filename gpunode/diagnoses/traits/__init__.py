"""What of a node may explain why another one works: its traits, each read from a snapshot, with its weight and why."""

from __future__ import annotations

from typing import Final

from gpunode.diagnoses.traits import files, hardware, software
from gpunode.diagnoses.traits.model import Lack, Pair, Reading, Reason, Trait, Weight

TRAITS: Final[tuple[Trait, ...]] = (
    hardware.DEVICES,
    software.DRIVER,
    software.KERNEL,
    software.ARGUMENTS,
    software.MODULES,
    software.PARAMETERS,
    software.SECURE,
    software.PACKAGES,
    hardware.LINKS,
    hardware.FIRMWARE,
    hardware.GPUS,
    software.UNITS,
    software.DOCKER,
    *files.TRAITS,
    software.CDI,
    software.CGROUPS,
    software.KUBERNETES,
    software.SYSTEM,
)
# What is said where one of the two has other GPUs: the first thing that anybody wants to know.
FOREMOST: Final = frozenset({hardware.GONE, hardware.FEWER})

__all__ = ("FOREMOST", "TRAITS", "Lack", "Pair", "Reading", "Reason", "Trait", "Weight")
