"""A node's wiring as tables: each device with its NUMA node, bridge and links, and how each pair is connected. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from gpunode.diagnoses.views.links import Link
from gpunode.diagnoses.views.topology import Device, Topology
from gpunode.page.frame import columns, scroll, table
from gpunode.page.markup import Markup, joined, tag

_MOST_DEVICES: Final = 64
_MOST_NAMES: Final = 40
_SORTS: Final = {"gpu": "GPU", "nvswitch": "NVSwitch", "nic": "network", "nvme": "NVMe"}


def devices(topology: Topology, concerned: Collection[str] = ()) -> Markup | None:
    """A row for each device on the bus, those of a NUMA node together; None where none was seen.

    Args:
        topology: what was seen.
        concerned: the addresses of GPUs that a fault concerns.
    """
    found = sorted(topology.devices[:_MOST_DEVICES], key=lambda one: (one.numa is None, one.numa or 0, one.address))
    if not found:
        return None
    names = columns("NUMA node", "device", "name", "address", "below bridge", "PCIe link", "NVLinks")
    return scroll("devices", table("devices", names, (_device(one, topology, concerned) for one in found)))


def _device(device: Device, topology: Topology, concerned: Collection[str]) -> Markup:
    is_bad = device.address in concerned
    number = f" {device.index}" if device.index is not None else ""
    return tag(
        "tr",
        tag("td", "" if device.numa is None else str(device.numa)),
        tag("th", f"{'✗ ' if is_bad else ''}{_SORTS[device.sort]}{number}", scope="row"),
        tag("td", device.name[:_MOST_NAMES]),
        tag("td", tag("code", device.address)),
        tag("td", tag("code", *device.above[-1:])),
        tag("td", _lanes(device.link), class_="narrow" if device.link.is_narrow else None),
        _nvlinks(topology.nvlinks.get(device.index, {}) if device.index is not None else {}),
        class_=f"{device.sort}{' concerned' if is_bad else ''}",
    )


def _nvlinks(rates: Mapping[int, str]) -> Markup:
    active = sum(map(bool, rates.values()))
    words = f"{active} of {len(rates)} active" if rates else ""
    return tag("td", words, class_="narrow" if active < len(rates) else None)


def _lanes(link: Link) -> str:
    """``×8 of 16 · 2.5 of 16 GT/s``: what is, and what could be where that is more."""
    parts = []
    if link.width:
        parts.append(f"×{link.width}" + (f" of {link.most_width}" if link.is_narrow else ""))
    if link.speed:
        slower = 0 < link.speed < link.most_speed
        parts.append(f"{link.speed:g}" + (f" of {link.most_speed:g}" if slower else "") + " GT/s")
    return " · ".join(parts)


def matrix(topology: Topology) -> Markup | None:
    """The connections of each pair as a table; None where nobody asked for them."""
    names = topology.names[:_MOST_NAMES]
    if not names:
        return None
    head = (tag("th", _with_nic(name, topology), scope="col") for name in names)
    rows = (
        tag(
            "tr",
            tag("th", _with_nic(first, topology), scope="row"),
            (_cell(topology.matrix.get((first, second), "")) for second in names),
        )
        for first in names
    )
    caption = tag("caption", "nvidia-smi topo -m")
    return scroll("how each pair is connected", table(None, joined(tag("td"), head), rows, caption))


def _with_nic(name: str, topology: Topology) -> Markup:
    return joined(name, tag("small", f" {topology.nics[name]}") if name in topology.nics else None)


def _cell(cell: str) -> Markup:
    kind = "nv" if cell.startswith("NV") else "far" if cell in {"SYS", "NODE", "SOC"} else ""
    return tag("td", cell, class_=kind or None)
