"""Kubernetes' nodes, from what was pasted of them: described, as YAML or JSON, as a table, in part; tables of pods.

What a piece does not show stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.facts.items import Item
from gpunode.facts.numbers import whole
from gpunode.facts.patterns import Pattern

RESOURCE: Final = r"nvidia\.com/(?:gpu|mig-[\w.]+)(?:\.shared)?"
# nvidia.com/gpu: "1"   "nvidia.com/gpu": "1",   nvidia.com/gpu  1  1   nvidia.com/gpu=1; not gpu.count, not f:….
_AMOUNT: Final = Pattern(
    rf"(?<![\w:.])[\"']?(?P<name>{RESOURCE})[\"']?(?P<sign>\s*[:=]\s*|\s+)[\"']?(?P<value>\d{{1,18}})\b"
)
_HEADING: Final = Pattern(r"^(?P<indent>\s*)[\"']?(?P<key>[A-Za-z][\w ./-]{0,60}?)[\"']?\s*:(?:\s|[\[{\"']|$)")
_OFFERS: Final = frozenset({"capacity", "allocatable"})
_SECTIONS: Final = _OFFERS | {"allocated resources", "limits", "requests", "labels", "annotations", "tolerations"}
_OTHER: Final = Pattern(r"(?:cpu|memory|pods|ephemeral-storage|hugepages-\w+|attachable-volumes-[\w-]+)$")
_OF_NODE: Final = Pattern(r"\b(?:nodes?|capacity|allocatable|allocated)\b", re.IGNORECASE)
_START: Final = Pattern(r"^(?:Name:|(?:-\s+)?apiVersion:|---\s*$| {8}\{\s*$)")
_NAME: Final = Pattern(r"^(?:Name:\s+| {2,8}[\"']?name[\"']?: [\"']?)(?P<name>[\w.-]+)", re.MULTILINE)
_NODE: Final = Pattern(
    r"^(?:Roles|Taints|Unschedulable|Capacity|Allocatable|Allocated resources|System Info|Non-terminated Pods):"
    r"|^ *[\"']?(?:allocatable|capacity|nodeInfo|kubeletVersion|podCIDR)[\"']?:|\"?kind\"?: \"?Node\b",
    re.MULTILINE,
)
_POD: Final = Pattern(
    r"^(?:Namespace|Containers|Init Containers|QoS Class|Node-Selectors):"
    r"|^[ \t]*[\"']?(?:containers|containerStatuses|runtimeClassName|restartPolicy)[\"']?:"
    r"|\"?kind\"?: \"?(?:Pod|DaemonSet|Deployment|Job|StatefulSet)\b",
    re.MULTILINE,
)
# Of a label Kubernetes takes 253 characters before the slash and 63 behind it.
_LABEL: Final = Pattern(
    r"(?<![\w./-])[\"']?(?P<name>(?:[\w.-]{1,253}\.)?(?:nvidia\.com|kubernetes\.io|k8s\.io)/[\w.-]+"
    r"|(?:[\w.-]{1,253}/)?[\w-]{0,63}accelerator[\w-]{0,63})[\"']?(?:=|:\s+)[\"']?(?P<value>[\w.-]*)"
)
_ROW: Final = Pattern(
    r"^[ \t]*(?:[a-z0-9][\w.-]*\s+)?(?:pods?/)?(?P<name>[a-z0-9][\w.-]*)\s+\d{1,5}/\d{1,5}\s+(?P<status>[A-Z][\w:/-]*)"
)
_QUIET: Final = frozenset(
    {"nvml", "packages", "listing", "lsmod", "lspci", "modinfo", "initramfs", "containerd-config"}
)


@dataclass(frozen=True, slots=True)
class Amount:
    """How many of a resource, and where that stands."""

    value: int
    citation: Citation


@dataclass(frozen=True, slots=True)
class Node:
    """A node as the cluster has it.

    Attributes:
        name: empty where the piece did not show it.
        labels: each with its value.
        shown: which of ``capacity`` and ``allocatable`` were shown whole: what is not named there is not there.
    """

    name: str
    citation: Citation
    capacity: dict[str, Amount] = field(default_factory=dict)
    allocatable: dict[str, Amount] = field(default_factory=dict)
    allocated: dict[str, Amount] = field(default_factory=dict)
    labels: dict[str, tuple[str, Citation]] = field(default_factory=dict)
    shown: set[str] = field(default_factory=set)

    @property
    def offered(self) -> Mapping[str, Amount]:
        """What pods can be given, as far as it was shown."""
        return self.allocatable or self.capacity

    @property
    def has_no_gpu(self) -> bool:
        """Whether the cluster was shown to have no GPU of NVIDIA on this node, not even a faulty one."""
        return bool(self.shown) and not any(one.value for one in (*self.capacity.values(), *self.allocatable.values()))

    def add(self, other: Node) -> None:
        """Takes up what another piece shows of it; what was shown first counts."""
        for mine, more in (
            (self.capacity, other.capacity),
            (self.allocatable, other.allocatable),
            (self.allocated, other.allocated),
        ):
            mine.update({key: value for key, value in more.items() if key not in mine})
        self.labels.update(other.labels)
        self.shown.update(other.shown)


def nodes(snapshot: Snapshot) -> tuple[Node, ...]:
    """The nodes that are shown; pieces without a name belong to the only one that has a name, or are one node."""
    read = [node for item in snapshot.items if _may_show_nodes(item) for node in _described(item)]
    read += [node for item in snapshot.of("kubernetes-node") for node in (*_table(item), *_answer(item))]
    names = list(dict.fromkeys(node.name for node in read if node.name))
    found: dict[str, Node] = {}
    for node in read:
        name = node.name or (names[0] if len(names) == 1 else "")
        found.setdefault(name, Node(name, node.citation)).add(node)
    return tuple(found.values())


def _may_show_nodes(item: Item) -> bool:
    if item.kind in _QUIET or not item.is_seen or "columns" in item.written:
        return False
    return item.kind.startswith("kubernetes") or bool(_OF_NODE.search(item.written)) or "nvidia.com/" in item.text


def _described(item: Item) -> Iterator[Node]:
    """The nodes among the objects of a piece."""
    lines = item.lines
    if len(lines) == 1 and "," in item.text and "{" in item.text:
        lines = tuple(re.sub(r"([{,\[])", r"\1\n", item.text).splitlines())
    starts = [number for number, line in enumerate(lines) if _START.match(line)]
    for start, end in pairwise(dict.fromkeys((0, *starts, len(lines)))):
        text = "\n".join(lines[start:end])
        said = item.kind == "kubernetes-node" or (_OF_NODE.search(item.written) and "nvidia.com/" in text)
        if _NODE.search(text) or (said and not _POD.search(text)):
            yield _node(item, lines[start:end], 1 if len(lines) != len(item.lines) else start + 1)


def _node(item: Item, lines: tuple[str, ...], first: int) -> Node:
    match = _NAME.search("\n".join(lines))
    node = Node(match["name"] if match else _asked_for(item), cite(item, first))
    of_source = re.search(r"\b(?:capacity|allocatable)\b", item.written)
    section = of_source[0] if of_source else ""
    for number, line in enumerate(lines, first):
        heading = _HEADING.match(line)
        key = heading["key"].strip().lower() if heading else next(iter(line.split()), "")
        if heading and key in _SECTIONS:
            section = key
        elif heading and not heading["indent"] and "/" not in key and not _OTHER.match(key):
            section = ""
        if section in _OFFERS and _OTHER.match(key):
            node.shown.add(section)
        place = cite(item, number)
        for amount in _AMOUNT.finditer(line):
            _put(node, section, amount, place)
        if section not in {"annotations", "tolerations"}:
            for label in _LABEL.finditer(line):
                node.labels.setdefault(label["name"], (label["value"], place))
    source = item.source
    if source.only and not source.is_part and item.kind == "kubernetes-node":
        node.shown.update(["capacity"] if source.lets_through("  nvidia.com/gpu:  1") else [])
    return node


def _put(node: Node, section: str, match: re.Match[str], place: Citation) -> None:
    """Files an amount: by its section, else by its form and order, which is capacity, allocatable, allocated."""
    name, amount = match["name"], Amount(int(match["value"]), place)
    offers = {"capacity": node.capacity, "allocatable": node.allocatable}
    if not match["sign"].strip():
        node.allocated.setdefault(name, amount)
    elif section in offers and name not in offers[section]:
        offers[section][name] = amount
    elif section not in {"limits", "requests", "labels"}:
        (node.allocatable if name in node.capacity else node.capacity).setdefault(name, amount)


def _asked_for(item: Item) -> str:
    """The node's name in the command, where one was asked for by name."""
    match = re.search(r"\b(?:nodes?|no)[ /](?!yaml|json)([a-z0-9][a-z0-9.-]*)(?=\s|$)", " ".join(item.source.words))
    return match[1] if match else ""


_PATH: Final = Pattern(r"\.(?P<section>capacity|allocatable)[\[.\\\"']*nvidia")
_COLUMN: Final = Pattern(r"(?<!\w)(?P<head>\w{1,40}):[\w.]{0,40}" + _PATH.pattern)


def _table(item: Item) -> Iterator[Node]:
    """Nodes of a table with columns of GPUs (``-o custom-columns``)."""
    heads, *rows = [line.split() for line in item.lines] or [[]]
    asked = {match["head"]: match["section"] for match in _COLUMN.finditer(item.written)}
    columns = {index: asked[head] for index, head in enumerate(heads) if head in asked}
    for number, row in enumerate(rows, 2):
        if columns and len(row) == len(heads):
            node = Node(row[0], cite(item, number), shown=set(columns.values()))
            for index, section in columns.items():
                _count(node, section, row[index])
            yield node


def _answer(item: Item) -> Iterator[Node]:
    """What one field of a node holds, where it alone was asked for (``-o jsonpath``, ``jq``)."""
    match, said = _PATH.search(item.written), item.text.strip().strip("'\"%")
    if match and "columns" not in item.written and (not said or whole(said) is not None or said in {"<none>", "null"}):
        node = Node(_asked_for(item), cite(item, 1), shown={match["section"]})
        _count(node, match["section"], said)
        yield node


def _count(node: Node, section: str, said: str) -> None:
    if (count := whole(said)) is not None:
        offers = node.capacity if section == "capacity" else node.allocatable
        offers["nvidia.com/gpu"] = Amount(count, node.citation)


def fewer(snapshot: Snapshot) -> Iterator[tuple[str, Amount, Amount]]:
    """The resources of which a node has more than can be given out: the others are unhealthy to the device plugin."""
    for node in snapshot.view(nodes):
        for name, capacity in node.capacity.items():
            healthy = node.allocatable.get(name)
            if healthy is not None and healthy.value < capacity.value:
                yield name, capacity, healthy


def offers_all(snapshot: Snapshot) -> bool:
    """Whether the only node that is shown offers GPUs, all of them well: then older words of the plugin are past."""
    shown = [node for node in snapshot.view(nodes) if node.capacity or node.allocatable]
    are_well = not any(fewer(snapshot)) and all(node.allocatable for node in shown)
    return len(shown) == 1 and are_well and any(one.value for one in shown[0].allocatable.values())


@dataclass(frozen=True, slots=True)
class Row:
    """A line of ``kubectl get pods``."""

    name: str
    status: str
    citation: Citation


def rows(snapshot: Snapshot) -> tuple[Row, ...]:
    """The lines of every table of pods."""
    tables = snapshot.of("kubernetes", "kubernetes-pod", "kubernetes-node", "kubernetes-log", "text", "application")
    return tuple(row for item in tables for row in _rows(item))


def _rows(item: Item) -> Iterator[Row]:
    for number, line in enumerate(item.lines, 1):
        if "/" in line and (match := _ROW.match(line)):
            yield Row(match["name"], match["status"], cite(item, number))
