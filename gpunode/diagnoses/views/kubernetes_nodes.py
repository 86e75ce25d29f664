"""View Kubernetes nodes in pasted descriptions, YAML, JSON or excerpts of them.

Anything that an excerpt does not show stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from itertools import pairwise
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.facts.items import EvidenceItem
from gpunode.facts.patterns import Pattern, parse_int
from gpunode.fast_dataclass import dataclass

RESOURCE: Final = r"nvidia\.com/(?:gpu|mig-[\w.]+)(?:\.shared)?"
# nvidia.com/gpu: "1"   "nvidia.com/gpu": "1",   nvidia.com/gpu  1  1   nvidia.com/gpu=1; not gpu.count, not f:….
_RESOURCE_AMOUNT: Final = Pattern(
    rf"(?<![\w:.])[\"']?(?P<name>{RESOURCE})[\"']?(?P<sign>\s*[:=]\s*|\s+)[\"']?(?P<value>\d{{1,18}})\b"
)
_SECTION_HEADING: Final = Pattern(r"^(?P<indent>\s*)[\"']?(?P<key>[A-Za-z][\w ./-]{0,60}?)[\"']?\s*:(?:\s|[\[{\"']|$)")
_OFFER_SECTIONS: Final = frozenset({"capacity", "allocatable"})
_KNOWN_SECTIONS: Final = _OFFER_SECTIONS | {
    "allocated resources",
    "limits",
    "requests",
    "labels",
    "annotations",
    "tolerations",
}
_OTHER_RESOURCE_NAME: Final = Pattern(r"(?:cpu|memory|pods|ephemeral-storage|hugepages-\w+|attachable-volumes-[\w-]+)$")
_NODE_WORDS: Final = Pattern(r"(?i)\b(?:nodes?|capacity|allocatable|allocated)\b")
_OBJECT_START: Final = Pattern(r"^(?:Name:|(?:-\s+)?apiVersion:|---\s*$| {8}\{\s*$)")
_NODE_NAME: Final = Pattern(r"(?m)^(?:Name:\s+| {2,8}[\"']?name[\"']?: [\"']?)(?P<name>[\w.-]+)")
_NAME_IN_COMMAND: Final = Pattern(r"\b(?:nodes?|no)[ /](?!yaml|json)(?P<name>[a-z0-9][a-z0-9.-]*)(?=\s|$)")
_NODE_FIELDS: Final = Pattern(
    r"(?m)^(?:Roles|Taints|Unschedulable|Capacity|Allocatable|Allocated resources|System Info|Non-terminated Pods):"
    r"|^ *[\"']?(?:allocatable|capacity|nodeInfo|kubeletVersion|podCIDR)[\"']?:|\"?kind\"?: \"?Node\b"
)
_POD_FIELDS: Final = Pattern(
    r"(?m)^(?:Namespace|Containers|Init Containers|QoS Class|Node-Selectors):"
    r"|^[ \t]*[\"']?(?:containers|containerStatuses|runtimeClassName|restartPolicy)[\"']?:"
    r"|\"?kind\"?: \"?(?:Pod|DaemonSet|Deployment|Job|StatefulSet)\b"
)
# A single field of a node (``-o jsonpath``, ``jq``).
_RESOURCE_FIELD_PATH: Final = Pattern(r"\.(?P<section>capacity|allocatable)[\[.\\\"']*nvidia")
_SOURCE_KINDS_WITHOUT_NODES: Final = frozenset(
    {"nvml", "packages", "listing", "lsmod", "lspci", "modinfo", "initramfs", "containerd-config"}
)


@dataclass(frozen=True, slots=True)
class Amount:
    """The amount of a resource and the line that shows it."""

    value: int
    citation: Citation


@dataclass(frozen=True, slots=True)
class KubeNode:
    """A node as the cluster shows it; the first of several excerpts counts.

    Attributes:
        name: empty if no excerpt shows it.
        shown: which of ``capacity`` and ``allocatable`` were shown completely, so that missing resources do not exist.
    """

    name: str
    citation: Citation
    capacity: dict[str, Amount] = field(default_factory=dict)
    allocatable: dict[str, Amount] = field(default_factory=dict)
    allocated: dict[str, Amount] = field(default_factory=dict)
    shown: set[str] = field(default_factory=set)

    @property
    def available(self) -> Mapping[str, Amount]:
        """The resources that pods can get, if shown."""
        return self.allocatable or self.capacity

    @property
    def has_no_gpu(self) -> bool:
        """True if the cluster was shown to have no NVIDIA GPU on this node, not even a faulty one."""
        return bool(self.shown) and not any(one.value for one in (*self.capacity.values(), *self.allocatable.values()))


@dataclass(frozen=True, slots=True)
class _NodePart:
    """An excerpt about one node; ``first_line_number`` is the number of its first line."""

    item: EvidenceItem
    lines: tuple[str, ...]
    first_line_number: int

    @property
    def name(self) -> str:
        match = _NODE_NAME.search("\n".join(self.lines)) or _NAME_IN_COMMAND.search(" ".join(self.item.source.words))
        return match["name"] if match else ""


def kube_nodes(snapshot: Snapshot) -> tuple[KubeNode, ...]:
    """Return the nodes; excerpts without a name belong to the only named node, or are one node."""
    parts = [part for item in snapshot.items if _may_show_nodes(item) for part in _split_nodes(item)]
    names = list(dict.fromkeys(part.name for part in parts if part.name))
    nodes: dict[str, KubeNode] = {}
    for part in parts:
        name = part.name or (names[0] if len(names) == 1 else "")
        _add_part(part, nodes.setdefault(name, KubeNode(name, cite(part.item, part.first_line_number))))
    return tuple(nodes.values())


def _may_show_nodes(item: EvidenceItem) -> bool:
    is_table = item.kind in _SOURCE_KINDS_WITHOUT_NODES or item.is_package_record
    if is_table or not item.was_answered or "columns" in item.written:
        return False
    return item.kind.startswith("kubernetes") or bool(_NODE_WORDS.search(item.written)) or "nvidia.com/" in item.text


def _split_nodes(item: EvidenceItem) -> Iterator[_NodePart]:
    """Yield the nodes among the objects of an item."""
    lines = item.lines
    if len(lines) == 1 and "{" in item.text:
        lines = tuple(re.sub(r"([{,\[])", r"\1\n", item.text).splitlines())
    starts = [number for number, line in enumerate(lines) if _OBJECT_START.match(line)]
    for start, end in pairwise(dict.fromkeys((0, *starts, len(lines)))):
        text = "\n".join(lines[start:end])
        is_named = item.kind == "kubernetes-node" or (_NODE_WORDS.search(item.written) and "nvidia.com/" in text)
        if _NODE_FIELDS.search(text) or (is_named and not _POD_FIELDS.search(text)):
            yield _NodePart(item, lines[start:end], start + 1 if lines is item.lines else 1)
    if not lines and item.kind == "kubernetes-node":
        yield _NodePart(item, (), 1)


def _add_part(part: _NodePart, node: KubeNode) -> None:
    """Add to ``node`` the amounts that the excerpt shows."""
    of_command = re.search(r"\b(?:capacity|allocatable)\b", part.item.written)
    section = of_command[0] if of_command else ""
    for number, line in enumerate(part.lines, part.first_line_number):
        heading = _SECTION_HEADING.match(line)
        key = heading["key"].strip().lower() if heading else next(iter(line.split()), "")
        if heading and key in _KNOWN_SECTIONS:
            section = key
        elif heading and not heading["indent"] and "/" not in key and not _OTHER_RESOURCE_NAME.match(key):
            section = ""
        if section in _OFFER_SECTIONS and _OTHER_RESOURCE_NAME.match(key):
            node.shown.add(section)
        for amount in _RESOURCE_AMOUNT.finditer(line):
            _add_amount(node, section, amount, cite(part.item, number))
    _add_printed_field(part.item, node)


def _add_amount(node: KubeNode, section: str, match: re.Match[str], place: Citation) -> None:
    """Add an amount by its section, else by its form and order: capacity, allocatable, allocated."""
    name, amount = match["name"], Amount(int(match["value"]), place)
    offers = {"capacity": node.capacity, "allocatable": node.allocatable}
    if not match["sign"].strip():
        node.allocated.setdefault(name, amount)
    elif section in offers and name not in offers[section]:
        offers[section][name] = amount
    elif section not in {"limits", "requests", "labels"}:
        (node.allocatable if name in node.capacity else node.capacity).setdefault(name, amount)


def _add_printed_field(item: EvidenceItem, node: KubeNode) -> None:
    """Add the only field that the command printed, or zero if its grep would have shown a resource."""
    source, match = item.source, _RESOURCE_FIELD_PATH.search(item.written)
    if match and ((count := parse_int(item.text.strip(" \n'\"%"))) is not None or not item.text.strip()):
        node.shown.add(match["section"])
        offers = node.capacity if match["section"] == "capacity" else node.allocatable
        offers.setdefault("nvidia.com/gpu", Amount(count or 0, node.citation))
    elif source.pattern and not source.is_part and source.lets_through("  nvidia.com/gpu:  1"):
        node.shown.add("capacity")


def unhealthy_resources(snapshot: Snapshot) -> Iterator[tuple[str, Amount, Amount]]:
    """Yield resources with more capacity than allocatable; the difference is unhealthy."""
    for node in snapshot.view(kube_nodes):
        for name, capacity in node.capacity.items():
            healthy = node.allocatable.get(name)
            if healthy is not None and healthy.value < capacity.value:
                yield name, capacity, healthy


def offers_all_gpus(snapshot: Snapshot) -> bool:
    """Return whether the only node offers all its GPUs, which makes older plugin errors obsolete."""
    shown = [node for node in snapshot.view(kube_nodes) if node.capacity or node.allocatable]
    are_well = not any(unhealthy_resources(snapshot)) and all(node.allocatable for node in shown)
    return len(shown) == 1 and are_well and any(amount.value for amount in shown[0].allocatable.values())
