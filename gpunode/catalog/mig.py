"""MIG profiles by GPU. Source: mig_profiles.csv names its own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from gpunode.catalog import tables


@cache
def profiles(device_id: str) -> Mapping[str, int]:
    """How many instances of each MIG profile fit on the GPU, by profile; empty where none is known for it.

    Args:
        device_id: PCI device id, four lower-case hex digits.
    """
    rows = tables.rows("mig_profiles.csv")
    return MappingProxyType({row["profile"]: int(row["most"]) for row in rows if device_id in row["devices"].split()})


@cache
def balanced(device_id: str) -> Mapping[str, int]:
    """The layout that mig-parted calls all-balanced: two small instances, one of two and one of three slices.

    The A30 and the RTX PRO 6000 have four slices, so theirs has no instance of three.
    """
    plain = [profile for profile in profiles(device_id) if profile.replace(".", "").isalnum()]
    smallest = {size: profile for profile in reversed(plain) for size in [profile.partition("g.")[0]]}
    wanted = {"1": 2, "2": 1, "3": 1}
    return MappingProxyType({smallest[size]: count for size, count in wanted.items() if size in smallest})
