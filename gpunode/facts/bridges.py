"""The ConnectX bridges through which a host manages NVSwitches that are not on its PCI bus (HGX B200 and B300).

They have the ids of ordinary network cards. Their vital product data tells: NVIDIA/gpu-driver-container 06a208c and
siderolabs/extensions 26822f5 look for its SW_MNG below /sys/class/infiniband, which is empty without mlx5_ib
(NVIDIA/gpu-operator issue 2781), so the PCI device's own file is read here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpunode.facts.evidence import Evidence, Probe
from gpunode.facts.machine import MELLANOX
from gpunode.facts.model import Fact, PciDevice
from gpunode.facts.patterns import Pattern
from gpunode.facts.reader import EvidenceMissing, derive_fact, explain_missing

KEY: Final = "switch-bridges"
_MARK: Final = "SMDL=SW_MNG"
_FOUND: Final = Pattern(rf"/sys/bus/pci/devices/([^/\n]+)/vpd:{_MARK}")
# The first id of Blackwell: older boards have their switches on the bus.
_FIRST_BLACKWELL: Final = 0x2900
_NO_MATCH: Final = 1


def bridge_probe(devices: Iterable[PciDevice]) -> Probe | None:
    """Return the probe of the bridges; None on a machine that cannot have them.

    The data has serial numbers, so a program picks the mark out of it, and no capture holds the rest.
    """
    listed = tuple(devices)
    if not any(one.vendor == "10de" and int(one.device, 16) >= _FIRST_BLACKWELL for one in listed):
        return None
    files = [f"/sys/bus/pci/devices/{one.address}/vpd" for one in listed if one.vendor == MELLANOX]
    return Probe(KEY, argv=("grep", "-aoH", _MARK, *files), content_kind="table") if files else None


def derive_switch_bridges(evidence: Evidence) -> Fact[tuple[str, ...]]:
    """Derive the PCI addresses of the bridges, in the order of the bus."""
    return derive_fact(KEY, lambda: _read_bridges(evidence))


def _read_bridges(evidence: Evidence) -> tuple[str, ...]:
    capture = evidence[KEY]
    found = tuple(dict.fromkeys(_FOUND.findall(capture.text)))
    # A network card's virtual function has no such file.
    absent = all(line.endswith("No such file or directory") for line in capture.error.splitlines())
    if found or capture.outcome == "ok" or capture.exit_status == _NO_MATCH or (capture.error and absent):
        return found
    raise EvidenceMissing(KEY, explain_missing(capture))
