"""MIG profiles and layouts by GPU. Sources: see mig_profiles.csv."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Final

from gpunode.catalog import tables
from gpunode.catalog.gpus import GpuModel
from gpunode.facts.patterns import Pattern

ALL_DISABLED_LAYOUT: Final = "all-disabled"
ALL_ENABLED_LAYOUT: Final = "all-enabled"
ALL_BALANCED_LAYOUT: Final = "all-balanced"
# A layout of one profile, as mig-parted names it: all-1g.10gb, all-1g.10gb.me, all-1g.24gb-me.
_SINGLE_PROFILE_LAYOUT: Final = Pattern(r"all-(\d+g\.\d+gb)(?:\.([a-z.]+)|(-[a-z]+))?")
_ONE, _HALF = 1, 4
_GA100_CAPABILITY: Final = "8.0"
_ARCHITECTURES_GETTING_NEW_GPUS: Final = frozenset({"Hopper", "Blackwell", "Rubin"})


@cache
def max_instances_by_profile(device_id: str) -> Mapping[str, int]:
    """Return how many instances of each MIG profile fit on the GPU, by profile; empty if none is known for it.

    Args:
        device_id: PCI device id, four lower-case hex digits.
    """
    rows = tables.rows("mig_profiles.csv")
    return MappingProxyType({row["profile"]: int(row["most"]) for row in rows if device_id in row["devices"].split()})


@cache
def every_profile() -> tuple[str, ...]:
    """Return the profiles of all GPUs."""
    return tuple(dict.fromkeys(row["profile"] for row in tables.rows("mig_profiles.csv")))


def cannot_have_mig(gpu: GpuModel) -> bool:
    """Return whether the GPU certainly has no MIG: NVIDIA lists it, and its generation gets no further GPUs with MIG.

    GA100 has MIG under every product name. A Hopper or Blackwell GPU that the table lacks may; its driver tells.
    Source: NVIDIA MIG User Guide, "Supported GPUs" (A100 and A30 are the first, and Ada has none).
    """
    may_have = gpu.compute_capability == _GA100_CAPABILITY or gpu.architecture in _ARCHITECTURES_GETTING_NEW_GPUS
    return gpu.listed and not may_have and not max_instances_by_profile(gpu.device_id)


@cache
def balanced_layout(device_id: str) -> Mapping[str, int]:
    """Return the layout that mig-parted calls all-balanced: two small instances, one of two and one of three slices.

    The A30 and the RTX PRO 6000 have four slices, so theirs has no instance of three.
    """
    plain = [profile for profile in max_instances_by_profile(device_id) if profile.replace(".", "").isalnum()]
    smallest = {size: profile for profile in reversed(plain) for size in [profile.partition("g.")[0]]}
    wanted = {"1": 2, "2": 1, "3": 1}
    return MappingProxyType({smallest[size]: count for size, count in wanted.items() if size in smallest})


def layout_of(profile: str) -> str:
    """Return mig-parted's name for the layout of this profile alone."""
    return f"all-{profile.replace('+', '.')}"


def profile_of_layout(layout: str) -> str:
    """Return the profile of a layout that has only one (``all-1g.10gb``); empty for all others."""
    match = _SINGLE_PROFILE_LAYOUT.fullmatch(layout)
    return f"{match[1]}{f'+{match[2]}' if match[2] else match[3] or ''}" if match else ""


def compute_slices(profile: str) -> int:
    """Return the compute slices of an instance (3 of ``3g.40gb``)."""
    return int(profile.partition("g.")[0])


def place_instances(device_id: str, counts: Mapping[str, int]) -> tuple[tuple[str, int, int], ...] | None:
    """Place instances, their ``counts`` by profile: return profile, first memory slice and number of slices.

    The largest come first, each as far left as the others allow; None if they do not fit, by number or by place.

    Args:
        device_id: PCI device id; the GPU knows each profile.
        counts: how many of each profile.
    """
    most = max_instances_by_profile(device_id)
    if any(count > most[profile] for profile, count in counts.items()):
        return None
    if sum("+me" in profile for profile, count in counts.items() for _ in range(count)) > 1:
        return None
    flat = [profile for profile, count in counts.items() for _ in range(count)]
    flat.sort(key=lambda profile: (-_placements(device_id, profile)[1], -compute_slices(profile), profile))
    placements = _fit_instances(device_id, flat, 0)
    return None if placements is None else tuple(sorted(placements, key=lambda one: one[1]))


def _fit_instances(device_id: str, profiles: Sequence[str], taken: int) -> list[tuple[str, int, int]] | None:
    """Place ``profiles``, in this order, beside what is ``taken``, a bit for each memory slice."""
    if not profiles:
        return []
    starts, size = _placements(device_id, profiles[0])
    for start in starts:
        mask = ((1 << size) - 1) << start
        if not taken & mask and (rest := _fit_instances(device_id, profiles[1:], taken | mask)) is not None:
            return [(profiles[0], start, size), *rest]
    return None


def _placements(device_id: str, profile: str) -> tuple[tuple[int, ...], int]:
    """Return the memory slices at which an instance of the profile can begin, and how many it occupies.

    Source: NVIDIA MIG User Guide, "MIG Placement" and `nvidia-smi mig -lgipp` of the A100, the A30 and the H100 there.
    A GPU with seven compute slices has eight memory slices; one with four compute slices has four.
    """
    compute, most = compute_slices(profile), max_instances_by_profile(device_id)[profile]
    if max(map(compute_slices, max_instances_by_profile(device_id))) <= _HALF:
        return tuple(range(0, _HALF, compute)), compute
    if compute == _ONE:
        # 1g.10gb of an A100 40GB has the memory of two slices; four fit.
        return ((0, 2, 4, 6), 2) if most == _HALF else (tuple(range(7)), 1)
    by_compute = {2: ((0, 2, 4), 2), 3: ((4, 0), 4), 4: ((0,), 4)}
    return by_compute.get(compute, ((0,), 8))


def layout_names(device_id: str) -> Iterator[str]:
    """Yield the names of the layouts that gpunode knows for the GPU."""
    yield from map(layout_of, max_instances_by_profile(device_id))
    yield from (ALL_BALANCED_LAYOUT, ALL_ENABLED_LAYOUT, ALL_DISABLED_LAYOUT)


def instances_in_layout(device_id: str, layout: str) -> Mapping[str, int] | None:
    """Return the instances of each profile in the layout of that name; None for an unknown name.

    Raises:
        KeyError: if the GPU does not have the profile in the name.
    """
    if layout in {ALL_DISABLED_LAYOUT, ALL_ENABLED_LAYOUT}:
        return MappingProxyType({})
    if layout == ALL_BALANCED_LAYOUT:
        return balanced_layout(device_id)
    profile = profile_of_layout(layout)
    return {profile: max_instances_by_profile(device_id)[profile]} if profile else None
