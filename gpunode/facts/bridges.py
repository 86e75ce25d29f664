"""The ConnectX bridges through which a host manages NVSwitches that are not on its PCI bus (HGX B200 and B300).

They have the ids of ordinary network cards, but their vital product data has SW_MNG. NVIDIA/gpu-driver-container
06a208c and siderolabs/extensions 26822f5 look for that below /sys/class/infiniband, which is empty without mlx5_ib
(NVIDIA/gpu-operator issue 2781), so the PCI device's own file is read here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpunode.facts.evidence import Capture, Evidence, Probe
from gpunode.facts.machine import MELLANOX_VENDOR_ID
from gpunode.facts.model import Fact, PciDevice
from gpunode.facts.patterns import Pattern
from gpunode.facts.reader import EvidenceMissing, derive_fact, explain_missing

BRIDGES_KEY: Final = "switch-bridges"
_BRIDGE_VPD_MARK: Final = "SMDL=SW_MNG"
_BRIDGE_ADDRESS_IN_GREP_LINE: Final = Pattern(rf"/sys/bus/pci/devices/([^/\n]+)/vpd:{_BRIDGE_VPD_MARK}")
# The first id of Blackwell: older boards have their switches on the bus.
_FIRST_BLACKWELL_DEVICE_ID: Final = 0x2900
_GREP_NO_MATCH_STATUS: Final = 1


def bridge_probe(devices: Iterable[PciDevice]) -> Probe | None:
    """Return the probe of the bridges; None on a machine that cannot have them.

    The data contains serial numbers, so grep extracts only the mark, and no capture has the rest.
    """
    listed = tuple(devices)
    if not any(device.vendor == "10de" and int(device.device, 16) >= _FIRST_BLACKWELL_DEVICE_ID for device in listed):
        return None
    files = [f"/sys/bus/pci/devices/{device.address}/vpd" for device in listed if device.vendor == MELLANOX_VENDOR_ID]
    return Probe(BRIDGES_KEY, argv=("grep", "-aoH", _BRIDGE_VPD_MARK, *files), content_kind="table") if files else None


def derive_switch_bridges(evidence: Evidence) -> Fact[tuple[str, ...]]:
    """Derive the PCI addresses of the bridges, in the order of the bus."""
    return derive_fact(BRIDGES_KEY, lambda: _read_bridges(evidence[BRIDGES_KEY]))


def _read_bridges(capture: Capture) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(_BRIDGE_ADDRESS_IN_GREP_LINE.findall(capture.text)))
    # A network card's virtual function has no such file.
    absent = all(line.endswith("No such file or directory") for line in capture.error.splitlines())
    if found or capture.outcome == "ok" or capture.exit_status == _GREP_NO_MATCH_STATUS or (capture.error and absent):
        return found
    raise EvidenceMissing(BRIDGES_KEY, explain_missing(capture))
