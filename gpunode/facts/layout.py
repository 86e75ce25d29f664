"""GPUs and MIG instances of the loaded driver, from /proc/driver/nvidia. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpunode.facts.evidence import GlobMatch
from gpunode.facts.patterns import Pattern, parse_int
from gpunode.fast_dataclass import dataclass

_GPU_UUID = Pattern(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MIG_INSTANCE_ACCESS_PATH = Pattern(r"/capabilities/(gpu\d+/mig/gi\d+)/(ci\d+/)?access\Z")


@dataclass(frozen=True, slots=True)
class GpuLayout:
    """The GPUs and MIG devices that containers can use.

    Attributes:
        minors: N of each /dev/nvidiaN; excluded GPUs have none.
        uuids: of the initialised GPUs; the others do not report theirs.
        mig_capabilities: N of each /dev/nvidia-caps/nvidia-capN that opens a MIG device: those of its compute instance
            and of its GPU instance.
    """

    minors: frozenset[int] = frozenset()
    uuids: frozenset[str] = frozenset()
    mig_capabilities: frozenset[int] = frozenset()


def read_layout(gpus: Iterable[GlobMatch], instances: Iterable[GlobMatch]) -> GpuLayout:
    """Read ``/proc/driver/nvidia/gpus/*/information`` and ``capabilities/gpu*/mig/gi*/**/access``.

    Raises:
        ValueError: if a file could not be read or is malformed.
    """
    used = [
        values for found in gpus if not (values := _parse_information(found)).get("GPU Excluded", "No").startswith("Y")
    ]
    return GpuLayout(
        minors=frozenset(_parse_minor(values, "Device Minor") for values in used),
        uuids=frozenset(uuid for values in used if _GPU_UUID.fullmatch(uuid := values.get("GPU UUID", ""))),
        mig_capabilities=frozenset(_find_mig_caps(list(instances))),
    )


def _find_mig_caps(instances: list[GlobMatch]) -> Iterator[int]:
    """Yield the capabilities of compute instances and their GPU instances; empty GPU instances are unusable."""
    parts = [(found, match) for found in instances if (match := _MIG_INSTANCE_ACCESS_PATH.search(found.path))]
    holding = {match[1] for _, match in parts if match[2]}
    yield from (
        _parse_minor(_parse_information(found), "DeviceFileMinor") for found, match in parts if match[1] in holding
    )


def _parse_information(match: GlobMatch) -> dict[str, str]:
    if match.data is None:
        raise ValueError(f"{match.path} could not be read")
    lines = (line.partition(":") for line in match.data.decode("utf-8", "replace").splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def _parse_minor(values: dict[str, str], name: str) -> int:
    value = values.get(name, "")
    if (number := parse_int(value)) is None:
        raise ValueError(f"{name} is {value[:40]!r}")
    return number
