"""Draw a node's topology: NUMA nodes, PCIe switches and devices as a tree, NVLinks beside it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpunode.diagnoses.views.pcie_links import PcieLink
from gpunode.diagnoses.views.topology import Device, Topology
from gpunode.page.frame import scroll_box, table
from gpunode.page.markup import Markup, join_markup, tag
from gpunode.page.words import count

_WIDTH: Final = 880
_LINKS: Final = 160
_STEP: Final = 22
_ROW: Final = 32
_BOX: Final = 26
_MOST_DEVICES: Final = 64
_MOST_ARCS: Final = 36
_MOST_LABELS: Final = 4
_BOW: Final = 70
_DEEPEST: Final = 8
_SORTS: Final = {"gpu": "GPU", "nvswitch": "NVSwitch", "nic": "network", "nvme": "NVMe", "bridge": "bridge"}


@dataclass(slots=True)
class _Branch:
    """A bridge with the devices and bridges below it."""

    address: str
    branches: dict[str, _Branch] = field(default_factory=dict)
    devices: list[Device] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _DrawnRow:
    """A row of the drawing."""

    y: int
    depth: int
    text: str = ""
    device: Device | None = None
    above: int = 0


def draw_topology(topology: Topology, concerned: Collection[str] = ()) -> Markup | None:
    """Return the drawing; None if nothing of the topology was seen.

    Args:
        topology: what was seen.
        concerned: the addresses of GPUs that a fault concerns.
    """
    devices = _drawn_devices(topology)
    if not devices:
        return None
    rows, height = _layout_rows(devices)
    said = _describe_topology(topology, devices)
    return tag(
        "svg",
        tag("title", "PCIe, NUMA and NVLink topology", id="topology-title"),
        tag("desc", said, id="topology-desc"),
        _draw_stems(rows),
        (_draw_row(row, topology, concerned) for row in rows),
        _draw_nvlinks(rows, topology),
        viewBox=f"0 0 {_WIDTH} {height}",
        role="img",
        aria_labelledby="topology-title topology-desc",
        class_="topology",
    )


def _drawn_devices(topology: Topology) -> tuple[Device, ...]:
    """Return the devices on the bus, else the GPUs that answered."""
    if topology.devices:
        return topology.devices[:_MOST_DEVICES]
    named = [int(name[3:]) for name in topology.names if name.startswith("GPU")]
    return tuple(Device("", "gpu", "", index) for index in sorted({*named, *topology.nvlinks}))


def _describe_topology(topology: Topology, devices: Sequence[Device]) -> str:
    sorts = [count(sum(d.sort == sort for d in devices), f"{word} device") for sort, word in _SORTS.items()
             if any(d.sort == sort for d in devices)]  # fmt: skip
    nodes = {device.numa for device in devices if device.numa is not None}
    parts = [", ".join(sorts), f"on {count(len(nodes), 'NUMA node')}" if nodes else ""]
    if pairs := _nvlink_pairs(topology):
        parts.append(f"NVLink between {count(len(pairs), 'pair')} of GPUs")
    return "; ".join(part for part in parts if part)


def _layout_rows(devices: Sequence[Device]) -> tuple[list[_DrawnRow], int]:
    nodes = sorted({device.numa for device in devices}, key=lambda numa: (numa is None, numa or 0))
    rows: list[_DrawnRow] = []
    y = 8
    for numa in nodes:
        if len(nodes) > 1 or numa is not None:
            rows.append(_DrawnRow(y, 0, f"NUMA node {numa}" if numa is not None else "NUMA node unknown"))
            y += _ROW
        tree = _Branch("")
        for device in devices:
            if device.numa == numa:
                _attach_device(tree, device)
        root = y - 6 if rows else 0
        for row in _layout_branch(tree, 0, y, root):
            rows.append(row)
            y = row.y + _ROW
        y += 8
    return rows, y


def _attach_device(tree: _Branch, device: Device) -> None:
    branch = tree
    for bridge in device.above:
        branch = branch.branches.setdefault(bridge, _Branch(bridge))
    branch.devices.append(device)


def _layout_branch(branch: _Branch, depth: int, y: int, above: int) -> Iterator[_DrawnRow]:
    """Yield the rows below ``branch``; a bridge to a single device is not drawn."""
    for device in branch.devices:
        row = _DrawnRow(y, depth, device=device, above=above)
        yield row
        y += _ROW
    for below in branch.branches.values():
        while not below.devices and len(below.branches) == 1:
            below = next(iter(below.branches.values()))
        deeper, top = depth, above
        if len(below.devices) + len(below.branches) > 1 and not _is_one_card(below):
            yield _DrawnRow(y, depth, f"PCIe bridge {below.address}", above=above)
            top, deeper = y + _BOX, depth + 1
            y += _ROW
        for row in _layout_branch(below, deeper, y, top):
            yield row
            y = row.y + _ROW


def _is_one_card(branch: _Branch) -> bool:
    """Return whether all devices are functions of one card."""
    return not branch.branches and len({device.address.rpartition(".")[0] for device in branch.devices}) == 1


def _left_edge(row: _DrawnRow) -> int:
    return 8 + _STEP * min(row.depth, _DEEPEST) + (14 if row.device or row.above else 0)


def _draw_stems(rows: Sequence[_DrawnRow]) -> Iterator[Markup]:
    """Yield the lines of the tree."""
    for row in rows:
        if row.above:
            x, y = _left_edge(row), row.y + _BOX // 2
            yield tag("path", d=f"M{x - 10} {row.above}V{y}H{x}", class_="stem")


def _draw_row(row: _DrawnRow, topology: Topology, concerned: Collection[str]) -> Markup:
    x, y = _left_edge(row), row.y + 17
    if row.device is None:
        return tag("text", row.text, x=x, y=y, class_="group" if not row.above else "bridge")
    device = row.device
    bad = device.address in concerned
    right = _WIDTH - _LINKS
    narrow = device.link.is_narrow
    return tag(
        "g",
        tag("rect", x=x, y=row.y, width=right - x, height=_BOX, rx=5, class_="box"),
        tag("text", _device_label(device, bad=bad), x=x + 10, y=y, class_="called"),
        tag("text", shorten_text(device.name, 34), x=x + 100, y=y),
        tag("text", device.address, x=x + 340, y=y, class_="address"),
        tag("text", _describe_link(device.link), x=right - 10, y=y, class_="lanes narrow" if narrow else "lanes"),
        _draw_links(topology.nvlinks.get(device.index, {}) if device.index is not None else {}, row.y),
        class_=f"device {device.sort}{' concerned' if bad else ''}",
    )


def _device_label(device: Device, *, bad: bool) -> str:
    number = f" {device.index}" if device.index is not None else ""
    return f"{'✗ ' if bad else ''}{_SORTS[device.sort]}{number}"


def shorten_text(text: str, most: int) -> str:
    """Return at most ``most`` characters of ``text``."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _describe_link(link: PcieLink) -> str:
    """Return ``×8 of 16 · 2.5 of 16 GT/s``: the current values, and larger possible ones."""
    parts = []
    if link.width:
        parts.append(f"×{link.width}" + (f" of {link.max_width}" if link.is_narrow else ""))
    if link.speed:
        slower = 0 < link.speed < link.max_speed
        parts.append(f"{link.speed:g}" + (f" of {link.max_speed:g}" if slower else "") + " GT/s")
    return " · ".join(parts)


def _draw_links(states: Mapping[int, str], y: int) -> Iterator[Markup]:
    """Yield a small square for each NVLink, empty if it is inactive."""
    for place, (link, rate) in enumerate(sorted(states.items())[:36]):
        column, line = place % 9, place // 9
        yield tag(
            "rect",
            tag("title", f"link {link}: {rate or 'inactive'}"),
            x=_WIDTH - _LINKS + 12 + column * 7,
            y=y + 3 + line * 7,
            width=5,
            height=5,
            class_="on" if rate else "off",
        )


def _nvlink_pairs(topology: Topology) -> dict[tuple[int, int], str]:
    """Return the pairs of GPUs with an NVLink between them."""
    found = {}
    for (first, second), cell in topology.matrix.items():
        if first.startswith("GPU") and second.startswith("GPU") and cell.startswith("NV"):
            one, other = int(first[3:]), int(second[3:])
            if one < other:
                found[one, other] = cell
    return found


def _draw_nvlinks(rows: Sequence[_DrawnRow], topology: Topology) -> Iterator[Markup]:
    """Yield NVLinks between GPUs: one rail if all are connected alike, else an arc for each pair."""
    at = {row.device.index: row.y + _BOX // 2 for row in rows if row.device and row.device.index is not None}
    pairs = {pair: cell for pair, cell in _nvlink_pairs(topology).items() if pair[0] in at and pair[1] in at}
    if not pairs:
        return
    x = _WIDTH - _LINKS + (80 if topology.nvlinks else 0)
    gpus = sorted({index for pair in pairs for index in pair})
    if len(set(pairs.values())) == 1 and len(pairs) == len(gpus) * (len(gpus) - 1) // 2 and len(gpus) > 2:
        ends = [at[gpu] for gpu in gpus]
        d = f"M{x + 16} {min(ends)}V{max(ends)}" + "".join(f"M{x} {end}h16" for end in ends)
        label = next(iter(pairs.values()))
        yield tag("path", tag("title", f"all pairs: {label}"), d=d, class_="nvlink rail")
        middle = (min(ends) + max(ends)) // 2
        yield tag("text", label, x=x + 22, y=middle + 4, class_="nvlink-label")
        return
    room = _WIDTH - 36 - x
    for (one, other), cell in sorted(pairs.items())[:_MOST_ARCS]:
        # A cubic's bend lies at three quarters of its handles.
        apart = gpus.index(other) - gpus.index(one)
        bow = min(round(room / 0.75 * (0.25 + 0.75 * apart / (len(gpus) - 1))), _BOW * apart)
        y1, y2 = at[one], at[other]
        title = tag("title", f"GPU {one} and GPU {other}: {cell}")
        way = f"M{x} {y1}C{x + bow} {y1} {x + bow} {y2} {x} {y2}"
        yield tag("path", title, d=way, class_=f"nvlink arc n{_bond_width(cell)}")
        if len(pairs) <= _MOST_LABELS:
            yield tag("text", cell, x=x + bow * 3 // 4 + 6, y=(y1 + y2) // 2 + 4, class_="nvlink-label")


def _bond_width(cell: str) -> int:
    return min(int(cell[2:] or 1), 4)


def topology_legend(topology: Topology) -> str:
    """Return the meaning of the signs in the drawing."""
    parts = []
    if any(device.link.width for device in topology.devices):
        parts.append(
            "× is the width of a PCIe link, in lanes. An idle GPU lowers the speed of its link, never its width."
        )
    if topology.nvlinks:
        parts.append("A small square is an NVLink; an empty one is inactive.")
    if len(set(_nvlink_pairs(topology).values())) > 1:
        parts.append("A thicker line is more NVLinks between two GPUs.")
    return " ".join(parts)


def connection_matrix(topology: Topology) -> Markup | None:
    """Return the connections of each pair as a table; None if unknown."""
    names = topology.names[:40]
    if not names:
        return None
    head = (tag("th", _device_heading(name, topology), scope="col") for name in names)
    rows = (
        tag(
            "tr",
            tag("th", _device_heading(first, topology), scope="row"),
            (_matrix_cell(topology.matrix.get((first, second), "")) for second in names),
        )
        for first in names
    )
    caption = tag("caption", "nvidia-smi topo -m")
    return scroll_box("how each pair is connected", table(None, join_markup(tag("td"), head), rows, caption))


def _device_heading(name: str, topology: Topology) -> Markup:
    return join_markup(name, tag("small", f" {topology.nics[name]}") if name in topology.nics else None)


def _matrix_cell(cell: str) -> Markup:
    kind = "nv" if cell.startswith("NV") else "far" if cell in {"SYS", "NODE", "SOC"} else ""
    return tag("td", cell, class_=kind or None)
