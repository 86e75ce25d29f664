"""The GPUs and MIG instances that the loaded driver has, as it shows them under /proc/driver/nvidia. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpunode.facts.evidence import Found
from gpunode.facts.numbers import whole
from gpunode.facts.patterns import Pattern

_UUID = Pattern(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_INSTANCE = Pattern(r"/capabilities/(gpu\d+/mig/gi\d+)/(ci\d+/)?access\Z")


@dataclass(frozen=True, slots=True)
class Layout:
    """What there is to be given to containers.

    Attributes:
        minors: N of each /dev/nvidiaN; GPUs that the driver was told to leave alone are not among them.
        uuids: of the GPUs that have been initialised; the others do not tell theirs.
        mig_caps: N of each /dev/nvidia-caps/nvidia-capN that opens a MIG device: its compute instance and what that
            is part of.
    """

    minors: frozenset[int] = frozenset()
    uuids: frozenset[str] = frozenset()
    mig_caps: frozenset[int] = frozenset()


def layout(gpus: Iterable[Found], instances: Iterable[Found]) -> Layout:
    """The layout in ``/proc/driver/nvidia/gpus/*/information`` and ``capabilities/gpu*/mig/gi*/**/access``.

    Raises:
        ValueError: one of them could not be read, or is not as the driver writes it.
    """
    used = [values for found in gpus if not (values := _values(found)).get("GPU Excluded", "No").startswith("Y")]
    return Layout(
        minors=frozenset(_number(values, "Device Minor") for values in used),
        uuids=frozenset(uuid for values in used if _UUID.fullmatch(uuid := values.get("GPU UUID", ""))),
        mig_caps=frozenset(_caps(list(instances))),
    )


def _caps(instances: list[Found]) -> Iterator[int]:
    """Those of compute instances and of the GPU instances that hold one: no container is given an empty one."""
    parts = [(found, match) for found in instances if (match := _INSTANCE.search(found.path))]
    holding = {match[1] for _, match in parts if match[2]}
    yield from (_number(_values(found), "DeviceFileMinor") for found, match in parts if match[1] in holding)


def _values(found: Found) -> dict[str, str]:
    if found.data is None:
        raise ValueError(f"{found.path} could not be read")
    lines = (line.partition(":") for line in found.data.decode("utf-8", "replace").splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def _number(values: dict[str, str], name: str) -> int:
    value = values.get(name, "")
    if (number := whole(value)) is None:
        raise ValueError(f"{name} is {value[:40]!r}")
    return number
