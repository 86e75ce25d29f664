"""Render the tables of a node's page: its devices, how they are connected, the faults of GPUs over time. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime, timezone
from typing import Final

from gpunode.catalog import xids
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import faults
from gpunode.diagnoses.views.faults import Fault
from gpunode.diagnoses.views.pcie_links import PcieLink
from gpunode.diagnoses.views.topology import Device, Topology, find_topology
from gpunode.page.evidence import redact_line
from gpunode.page.markup import Markup, card, column_heads, join_markup, scroll_box, table, tag
from gpunode.page.words import count

_MAX_DEVICES: Final = 64
_MAX_MATRIX_NAMES: Final = 40
_DEVICE_TABLE_LEGEND: Final = (
    "× is the width of a PCIe link, in lanes. An idle GPU lowers the speed of its link, never its width."
)
_DEVICE_LABELS: Final = {"gpu": "GPU", "nvswitch": "NVSwitch", "nic": "network", "nvme": "NVMe"}
_MAX_FAULTS: Final = 200
# Later than any clock; a log that was made to do harm may have it.
_LATEST_PLAUSIBLE_TIME_S: Final = 2e11
# Seconds since boot lie below the first, those of syslog, which leaves the year away, between both.
_CLOCK_KIND_LIMITS_S: Final = (9e8, 1e9)
_FAULT_LABELS: Final = {"xid": "Xid {}", "sxid": "SXid {}"}


def render_topology(snapshot: Snapshot, concerned: Collection[str] = ()) -> Markup | None:
    """Return the node's devices and how they are connected; None if nothing of that was seen.

    Args:
        snapshot: the evidence.
        concerned: the addresses of GPUs that a fault concerns.
    """
    topology = snapshot.view(find_topology)
    devices, matrix = tuple(_device_rows(topology, concerned)), _connection_matrix(topology)
    if not devices:
        return None
    heads = column_heads("device", "model", "address", "NUMA node", "PCIe link", "NVLinks")
    return card(
        "How the GPUs are connected",
        scroll_box("every device", table(None, heads, devices)),
        tag("p.legend", _DEVICE_TABLE_LEGEND) if any(device.link.width for device in topology.devices) else None,
        tag("details", tag("summary", "Every pair"), matrix) if matrix else None,
    )


def _device_rows(topology: Topology, concerned: Collection[str]) -> Iterator[Markup]:
    """Yield the devices on the bus, else the GPUs that answered."""
    named = {int(name[3:]) for name in topology.names if name.startswith("GPU")}
    answering = (Device("", "gpu", "", index) for index in sorted({*named, *topology.nvlinks}))
    for device in topology.devices[:_MAX_DEVICES] or answering:
        is_concerned = device.address in concerned
        number = "" if device.index is None else f" {device.index}"
        rates = topology.nvlinks.get(device.index, {}) if device.index is not None else {}
        active = sum(map(bool, rates.values()))
        links = f"{active} of {len(rates)} active" if active < len(rates) else str(active or "")
        yield tag(
            "tr",
            tag("th", f"{'✗ ' if is_concerned else ''}{_DEVICE_LABELS[device.sort]}{number}", scope="row"),
            tag("td", device.name[:100]),
            tag("td", tag("code", device.address)),
            tag("td", "" if device.numa is None else str(device.numa)),
            tag("td", _describe_link(device.link), class_="narrow" if device.link.is_narrow else None),
            tag("td", links, class_="narrow" if active < len(rates) else None),
            class_="concerned" if is_concerned else None,
        )


def _describe_link(link: PcieLink) -> str:
    """Return ``×8 of 16 · 2.5 of 16 GT/s``: the current values, and larger possible ones."""
    parts = []
    if link.width:
        parts.append(f"×{link.width}" + (f" of {link.max_width}" if link.is_narrow else ""))
    if link.speed:
        slower = 0 < link.speed < link.max_speed
        parts.append(f"{link.speed:g}" + (f" of {link.max_speed:g}" if slower else "") + " GT/s")
    return " · ".join(parts)


def _connection_matrix(topology: Topology) -> Markup | None:
    """Return the connections of each pair; None if unknown."""
    names = topology.names[:_MAX_MATRIX_NAMES]
    if not names:
        return None
    heads = join_markup(tag("td"), (tag("th", _device_heading(name, topology), scope="col") for name in names))
    rows = (
        tag(
            "tr",
            tag("th", _device_heading(first, topology), scope="row"),
            (_matrix_cell(topology.matrix.get((first, second), "")) for second in names),
        )
        for first in names
    )
    caption = tag("caption", "nvidia-smi topo -m")
    return scroll_box("how each pair is connected", table(None, heads, rows, caption))


def _device_heading(name: str, topology: Topology) -> Markup:
    return join_markup(name, tag("small", f" {topology.nics[name]}") if name in topology.nics else None)


def _matrix_cell(cell: str) -> Markup:
    kind = "nv" if cell.startswith("NV") else "far" if cell in {"SYS", "NODE", "SOC"} else ""
    return tag("td", cell, class_=kind or None)


def render_timeline(snapshot: Snapshot) -> Markup | None:
    """Return every fault; those without a time come last."""
    sorted_faults = sorted(
        snapshot.view(faults.fault_timeline),
        key=lambda fault: (_plausible_time(fault) is None, _plausible_time(fault) or 0.0),
    )
    if not sorted_faults:
        return None
    began = frozenset(incident.root for incident in snapshot.view(faults.find_incidents))
    rows = dict.fromkeys(tag("tr", _fault_cells(fault, is_first=fault in began)) for fault in sorted_faults)
    names = column_heads("when", "GPU", "fault", "meaning", "message")
    more = len(rows) - _MAX_FAULTS
    return card(
        "GPU faults over time",
        tag(
            "details",
            tag("summary", f"All {count(len(rows), 'message')}"),
            scroll_box("every fault", table("events", names, [*rows][:_MAX_FAULTS])),
            tag("p", f"and {more} more") if more > 0 else None,
            open=True,
        ),
        legend="Bold lines began a failure.",
    )


def _fault_cells(fault: Fault, *, is_first: bool) -> Iterator[Markup]:
    message, at = fault.xid or fault.sxid, _plausible_time(fault)
    known = xids.lookup(fault.code) if fault.source == "xid" else None
    code = _FAULT_LABELS[fault.source].format(fault.code)
    yield tag("td", format_time(at) if at is not None else "no time")
    yield tag("td", tag("code", fault.gpu))
    yield tag("td", tag("b", code) if is_first else code)
    yield tag("td", known.meaning if known else "")
    yield tag("td", redact_line(message.text if message else fault.citation.line.strip()))


def _plausible_time(fault: Fault) -> float | None:
    return fault.at if fault.at is not None and 0 <= fault.at < _LATEST_PLAUSIBLE_TIME_S else None


def format_time(at: float) -> str:
    """Return a time for people, on the clock of its log."""
    if at < _CLOCK_KIND_LIMITS_S[0]:
        return f"{at:.3f} s after boot"
    when = datetime.fromtimestamp(at, tz=timezone.utc)
    return when.strftime("%b %d %H:%M:%S" if at < _CLOCK_KIND_LIMITS_S[1] else "%Y-%m-%d %H:%M:%S UTC")
