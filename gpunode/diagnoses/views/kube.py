"""Kubernetes, from whatever was pasted of it: nodes, pods, workloads, runtime classes, the kubelet's checkpoint.

``kubectl describe``, ``get -o yaml``, ``-o json``, tables and lines cut out of any of them are read alike: by their
section headings and indentation. What a piece does not show stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.facts.items import Item
from gpunode.facts.numbers import whole
from gpunode.facts.patterns import Pattern

RESOURCE: Final = r"nvidia\.com/(?:gpu|mig-[\w.]+)(?:\.shared)?"
# nvidia.com/gpu: "1"   "nvidia.com/gpu": "1",   nvidia.com/gpu  1  1   nvidia.com/gpu=1; not gpu.count, not f:….
_AMOUNT: Final = Pattern(
    rf"(?<![\w:.])[\"']?(?P<name>{RESOURCE})[\"']?(?P<colon>\s*[:=]\s*|\s+)[\"']?(?P<value>\d{{1,18}})\b"
)
_HEADING: Final = Pattern(r"^(?P<indent>\s*)(?:-\s+)?[\"']?(?P<key>[A-Za-z][\w ./-]{0,60}?)[\"']?\s*:(?:\s|[\[{\"']|$)")
_SECTIONS: Final[Mapping[str, str]] = {
    "capacity": "capacity",
    "allocatable": "allocatable",
    "allocated resources": "allocated",
    "limits": "limits",
    "requests": "requests",
    "labels": "labels",
    "annotations": "annotations",
    "taints": "taints",
    "tolerations": "tolerations",
}
_RESOURCE_KEY: Final = Pattern(r"(?:cpu|memory|pods|ephemeral-storage|hugepages-\w+|attachable-volumes-[\w-]+)$")
_IN_SOURCE: Final = Pattern(r"\b(?P<what>capacity|allocatable|allocated)\b", re.IGNORECASE)
_OF_NODE: Final = Pattern(r"\b(?:nodes?|capacity|allocatable|allocated)\b", re.IGNORECASE)
_NAME: Final = Pattern(r"^Name:\s+(?P<name>\S+)")
_OBJECT: Final = Pattern(r"^(?:-\s+)?apiVersion:|^---\s*$|^ {8}\{\s*$")
_NODE: Final = Pattern(
    r"^(?:Roles|Taints|Unschedulable|Capacity|Allocatable|Allocated resources|System Info|Non-terminated Pods):"
    r"|^ *[\"']?(?:allocatable|capacity|nodeInfo|kubeletVersion|kernelVersion|podCIDR)[\"']?:|\"?kind\"?: \"?Node\b",
    re.MULTILINE,
)
_POD: Final = Pattern(
    r"^(?:Namespace|Controlled By|Containers|Init Containers|QoS Class|Node-Selectors|Tolerations):"
    r"|^[ \t]*[\"']?(?:containers|containerStatuses|runtimeClassName|restartPolicy|hostNetwork|schedulerName)[\"']?:"
    r"|\"?kind\"?: \"?(?:Pod|DaemonSet|Deployment|Job|StatefulSet)\b",
    re.MULTILINE,
)
# Of a label Kubernetes takes 253 characters before the slash and 63 behind it.
_LABEL: Final = Pattern(
    r"(?<![\w./-])[\"']?(?P<name>(?:[\w.-]{1,253}\.)?(?:nvidia\.com|node\.kubernetes\.io|kubernetes\.io|k8s\.io)/[\w.-]+"
    r"|(?:[\w.-]{1,253}/)?[\w-]{0,63}accelerator[\w-]{0,63})[\"']?(?:=|:\s+)[\"']?(?P<value>[\w.-]*)"
)
_EFFECT: Final = r"(?P<effect>NoSchedule|PreferNoSchedule|NoExecute)"
_TAINT: Final = Pattern(rf"(?<![\w./-])(?P<key>[\w./-]+)(?:=(?P<value>[\w.-]*))?:{_EFFECT}\b(?!\s+op=)")
_MAPPED: Final = Pattern(
    rf"map\[effect:{_EFFECT} key:(?P<key>[\w./-]+)(?: timeAdded:\S+)?(?: value:(?P<value>[\w.-]*))?\]"
)
_TOLERATION: Final = Pattern(
    rf"^(?:Tolerations:)?\s*(?P<key>(?!op=)[\w./-]*)(?:=(?P<value>[\w.-]*))?(?::{_EFFECT})?"
    r"(?:\s+op=(?P<op>\w+))?(?:\s+for\s+\w+)?\s*$"
)
_FIELD: Final = Pattern(r"[\"']?\b(?P<name>key|value|effect|operator)[\"']?\s*:\s*[\"']?(?P<value>[\w./-]*)")
_CLASS: Final = Pattern(
    r"^[ \t]*(?:-\s+)?(?:[\"']?runtimeClassName[\"']?|Runtime Class Name)\s*:\s*[\"']?(?P<name>[\w.-]*)", re.MULTILINE
)
_POD_FIELD: Final = Pattern(
    r"^(?:Namespace:\s+(?P<namespace>\S+)|Node:\s+(?P<node>[^\s/]+)|Status:\s+(?P<status>\S+)|Reason:\s+(?P<reason>\S+))",
    re.MULTILINE,
)
_UID: Final = Pattern(r"[\"']?\buid[\"']?\s*:\s*[\"']?(?P<uid>[0-9a-f]{8}-[0-9a-f-]{27})", re.IGNORECASE)
_IMAGE: Final = Pattern(r"[\"']?\bimage[\"']?\s*:\s*[\"']?(?P<image>[^\s\"',]+)", re.IGNORECASE)
_ROW: Final = Pattern(
    r"^[ \t]*(?:(?P<namespace>[a-z0-9][\w.-]*)\s+)?(?:pods?/)?(?P<name>[a-z0-9][\w.-]*)\s+\d{1,5}/"
    r"\d{1,5}\s+(?P<status>[A-Z][\w:/-]*)"
)
_DAEMON: Final = Pattern(
    r"^[ \t]*(?:(?P<namespace>[a-z0-9][\w.-]*)\s+)?(?:daemonset\.apps/)?(?P<name>[a-z][\w.-]*)\s+"
    r"(?P<desired>\d{1,18})\s+(?P<current>\d{1,18})\s+\d{1,18}\s+\d+\s+\d+\s+"
)
_DESIRED: Final = Pattern(
    r"^[ \t]*(?:Desired Number of Nodes Scheduled:|[\"']?desiredNumberScheduled[\"']?:)\s*(?P<count>\d{1,18})"
)
_QUIET: Final = frozenset(
    {"nvml", "packages", "listing", "lsmod", "lspci", "modinfo", "initramfs", "containerd-config"}
)
_OF_NODES: Final = frozenset({"kubernetes-node"})
_NONE: Final = frozenset({"<none>", "null", "0", "none", "map[]", ""})

Section: TypeAlias = str


@dataclass(frozen=True, slots=True)
class Amount:
    """How many of a resource, and where that stands."""

    value: int
    citation: Citation


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a node, or as a toleration what of them a pod bears.

    Attributes:
        key: empty in a toleration that bears every key.
        exists: whether a toleration asks for the key only, not for its value.
        effect: empty in a toleration that bears every effect.
    """

    key: str
    value: str = ""
    effect: str = ""
    exists: bool = False

    def bears(self, taint: Taint) -> bool:
        """Whether a pod with this toleration may run on a node with ``taint``."""
        if self.effect and self.effect != taint.effect:
            return False
        if not self.key:
            return self.exists
        return self.key == taint.key and (self.exists or self.value == taint.value)


@dataclass(frozen=True, slots=True)
class Node:
    """A node as the cluster has it.

    Attributes:
        name: empty where the piece did not show it.
        sections: which of ``capacity``, ``allocatable``, ``allocated``, ``labels``, ``taints`` were shown whole: what
            such a section does not name is not there.
    """

    name: str
    capacity: Mapping[str, Amount] = field(default_factory=dict)
    allocatable: Mapping[str, Amount] = field(default_factory=dict)
    allocated: Mapping[str, Amount] = field(default_factory=dict)
    labels: Mapping[str, Citation] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[tuple[Taint, Citation], ...] = ()
    sections: frozenset[Section] = frozenset()
    citation: Citation | None = None

    @property
    def has_no_gpu(self) -> bool:
        """Whether the cluster was shown to have no GPU of NVIDIA on this node, not even a faulty one."""
        offered = (*self.capacity.values(), *self.allocatable.values())
        return bool({"capacity", "allocatable"} & self.sections) and not any(one.value for one in offered)


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, or the template of one.

    Attributes:
        runtime_class: which was asked for; empty where none was, None where that was not shown.
        tolerations: None where they were not shown.
        gpus: how many are asked for; None where that was not shown.
    """

    name: str
    node: str = ""
    status: str = ""
    runtime_class: str | None = None
    tolerations: tuple[Taint, ...] | None = None
    gpus: Amount | None = None
    images: tuple[str, ...] = ()
    uid: str = ""
    citation: Citation | None = None

    @property
    def is_device_plugin(self) -> bool:
        """Whether it is NVIDIA's device plugin."""
        return any("device-plugin" in text for text in (self.name, *self.images))


@dataclass(frozen=True, slots=True)
class Row:
    """A line of ``kubectl get pods``."""

    name: str
    status: str
    citation: Citation


@dataclass(frozen=True, slots=True)
class Daemons:
    """A line of ``kubectl get daemonsets``."""

    name: str
    desired: int
    citation: Citation


@dataclass(frozen=True, slots=True)
class Allocation:
    """What the kubelet's checkpoint holds for one container: devices of ``resource`` given to a pod."""

    pod_uid: str
    resource: str
    citation: Citation


@dataclass(frozen=True, slots=True)
class _Piece:
    """The lines of one object, from ``first`` on, counted from 1."""

    item: Item
    first: int
    lines: tuple[str, ...]
    sections: tuple[Section, ...]
    name: str = ""

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def cite(self, offset: int) -> Citation:
        return cite(self.item, self.first + offset)


def pieces(snapshot: Snapshot) -> tuple[_Piece, ...]:
    """Everything that may show an object of Kubernetes, object by object."""
    return tuple(piece for item in snapshot.items if _is_cluster(item) for piece in _split(item))


def _is_cluster(item: Item) -> bool:
    if item.kind in _QUIET or not item.is_seen:
        return False
    if item.kind.startswith("kubernetes") or _OF_NODE.search(item.written):
        return True
    if item.kind == "file":
        return item.subject.endswith((".yaml", ".yml", ".json")) and "kind" in item.text
    return "nvidia.com/" in item.text or "runtimeClassName" in item.text


def _split(item: Item) -> Iterator[_Piece]:
    lines = item.lines
    if len(lines) == 1 and "," in item.text and "{" in item.text:
        lines = tuple(re.sub(r"([{,\[])", r"\1\n", item.text).splitlines())
        yield _Piece(item, 1, lines, tuple(_sections(item, lines)))
        return
    starts = [number for number, line in enumerate(lines) if _NAME.match(line) or _OBJECT.match(line)]
    for start, end in zip([0, *starts], [*starts, len(lines)], strict=True):
        if start == end:
            continue
        own = lines[start:end]
        named = _NAME.match(own[0])
        name = named["name"] if named else _metadata_name(own)
        yield _Piece(item, start + 1, own, tuple(_sections(item, own)), name)


def _metadata_name(lines: tuple[str, ...]) -> str:
    """The object's own name: the first ``name`` below ``metadata``, one step further in."""
    inside = -1
    for line in lines:
        match = _HEADING.match(line)
        if match is None:
            continue
        indent = len(match["indent"])
        if match["key"] == "metadata" and inside < 0:
            inside = indent
        elif inside >= 0 and indent <= inside:
            return ""
        elif inside >= 0 and match["key"] == "name" and indent <= inside + 4:
            return line.split(":", 1)[1].strip().strip("\"',")
    return ""


def nodes(snapshot: Snapshot) -> tuple[Node, ...]:
    """The nodes that are shown; pieces without a name belong to the only one that has a name, or are one node."""
    found = [_node(piece) for piece in snapshot.view(pieces) if _is_node(piece)]
    found.extend(node for item in snapshot.items if item.kind in _OF_NODES for node in (*_table(item), *_answer(item)))
    by_name: dict[str, list[Node]] = {}
    for node in found:
        by_name.setdefault(node.name, []).append(node)
    named = [name for name in by_name if name]
    if "" in by_name and len(named) == 1:
        by_name[named[0]] += by_name.pop("")
    return tuple(_merged(name, same) for name, same in by_name.items())


def _is_node(piece: _Piece) -> bool:
    text = piece.text
    if _NODE.search(text):
        return True
    if _POD.search(text):
        return False
    return piece.item.kind in _OF_NODES or bool(_OF_NODE.search(piece.item.written) and "nvidia.com/" in text)


def _merged(name: str, same: list[Node]) -> Node:
    return Node(
        name,
        {key: value for node in reversed(same) for key, value in node.capacity.items()},
        {key: value for node in reversed(same) for key, value in node.allocatable.items()},
        {key: value for node in reversed(same) for key, value in node.allocated.items()},
        {key: value for node in same for key, value in node.labels.items()},
        {key: value for node in same for key, value in node.values.items()},
        tuple(dict.fromkeys(taint for node in same for taint in node.taints)),
        frozenset(section for node in same for section in node.sections),
        next((node.citation for node in same if node.citation), None),
    )


def _node(piece: _Piece) -> Node:
    amounts: dict[Section, dict[str, Amount]] = {"capacity": {}, "allocatable": {}, "allocated": {}}
    labels: dict[str, Citation] = {}
    values: dict[str, str] = {}
    for offset, line, section in _sectioned(piece):
        for match in _AMOUNT.finditer(line):
            _put(amounts, section, match, piece.cite(offset))
        if section not in {"annotations", "taints", "tolerations"} and "/" in line:
            for label in _LABEL.finditer(line):
                if not re.fullmatch(RESOURCE, label["name"]):
                    labels.setdefault(label["name"], piece.cite(offset))
                    values.setdefault(label["name"], label["value"])
    return Node(
        piece.name or _asked_for(piece.item),
        amounts["capacity"],
        amounts["allocatable"],
        amounts["allocated"],
        labels,
        values,
        tuple(_taints(piece)),
        _shown(piece),
        piece.cite(0),
    )


def _asked_for(item: Item) -> str:
    """The node's name in the command, where one was asked for by name."""
    words = [word for word in item.source.words if not word.startswith("-")]
    after = next((index for index, word in enumerate(words) if word in {"node", "nodes", "no"}), -1)
    name = words[after + 1] if 0 < after < len(words) - 1 else ""
    return name if re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name) and name not in {"yaml", "json", "wide"} else ""


def _put(amounts: dict[Section, dict[str, Amount]], section: Section, match: re.Match[str], place: Citation) -> None:
    """Files an amount: by its section, else by its form and order, which is capacity, allocatable, allocated."""
    amount = Amount(int(match["value"]), place)
    if ":" not in match["colon"] and "=" not in match["colon"]:
        section = "allocated"
    elif section not in {"capacity", "allocatable"} or match["name"] in amounts[section]:
        if section in {"limits", "requests", "labels"}:
            return
        section = "allocatable" if match["name"] in amounts["capacity"] else "capacity"
    amounts[section].setdefault(match["name"], amount)


def _sectioned(piece: _Piece) -> Iterator[tuple[int, str, Section]]:
    """Each line with the section that it stands in."""
    yield from zip(range(len(piece.lines)), piece.lines, piece.sections, strict=True)


def _sections(item: Item, lines: tuple[str, ...]) -> Iterator[Section]:
    """The section of each line; the words of the source name the first."""
    named = _IN_SOURCE.search(item.written)
    section = named["what"].lower() if named else ""
    for line in lines:
        if match := _HEADING.match(line):
            key = match["key"].strip().lower()
            if key in _SECTIONS:
                section = _SECTIONS[key]
            elif not match["indent"] and "/" not in key and not _RESOURCE_KEY.match(key):
                section = ""
        yield section


def _shown(piece: _Piece) -> frozenset[Section]:
    """Which sections stand there whole, or would have been let through by the filter."""
    found = {section for _, line, section in _sectioned(piece) if _is_whole(section, line)}
    item = piece.item
    if item.source.only and not item.source.is_part and item.kind in _OF_NODES:
        found |= {"capacity"} if item.source.lets_through("  nvidia.com/gpu:  1") else set()
    return frozenset(found)


def _is_whole(section: Section, line: str) -> bool:
    """Whether the line shows that its section was not cut down to what somebody looked for."""
    if section in {"labels", "taints"}:
        return True
    match = _HEADING.match(line)
    key = match["key"].strip() if match else next(iter(line.split()), "")
    return section in {"capacity", "allocatable", "allocated"} and bool(_RESOURCE_KEY.match(key))


def _taints(piece: _Piece) -> Iterator[tuple[Taint, Citation]]:
    for offset, line, section in _sectioned(piece):
        if section == "taints" or "taint" in line.lower():
            for match in _TAINT.finditer(line):
                yield (
                    Taint(match["key"].removeprefix("Taints:"), match["value"] or "", match["effect"]),
                    piece.cite(offset),
                )
        for match in _MAPPED.finditer(line):
            yield Taint(match["key"], match["value"] or "", match["effect"]), piece.cite(offset)
    for fields, offset in _blocks(piece, "taints"):
        if fields.get("key") and fields.get("effect"):
            yield Taint(fields["key"], fields.get("value", ""), fields["effect"]), piece.cite(offset)


def _blocks(piece: _Piece, wanted: Section) -> Iterator[tuple[Mapping[str, str], int]]:
    """The entries of a YAML or JSON list, each with the offset of its first line."""
    fields: dict[str, str] = {}
    start = 0
    for offset, line, section in _sectioned(piece):
        if section != wanted:
            if fields:
                yield fields, start
                fields = {}
            continue
        begins = line.lstrip().startswith(("- ", "{", "}"))
        matches = list(_FIELD.finditer(line))
        if begins or any(match["name"] in fields for match in matches):
            if fields:
                yield fields, start
            fields, start = {}, offset
        fields.update((match["name"], match["value"]) for match in matches)
    if fields:
        yield fields, start


_COLUMN: Final = Pattern(r"(?<!\w)(?P<head>\w{1,40}):[\w.]{0,40}\.(?P<section>capacity|allocatable)\.nvidia")
_PATH: Final = Pattern(r"\.(?P<section>capacity|allocatable)[\[.\\\"']*nvidia[\w.\\\"'/]*")


def _table(item: Item) -> Iterator[Node]:
    """Nodes of a table with columns of GPUs (``-o custom-columns``)."""
    table = [line.split() for line in item.lines]
    heads = next((row for row in table if row), [])
    if heads[:1] != ["NAME"]:
        return
    asked = {match["head"]: match["section"] for match in _COLUMN.finditer(item.written)}
    usual = "capacity" if "capacity" in item.written else "allocatable"
    columns = {
        index: asked.get(head, usual)
        for index, head in enumerate(heads)
        if head in asked or (not asked and re.search(r"GPU|nvidia|MIG", head))
    }
    for number, row in enumerate(table, 1):
        if columns and len(row) == len(heads) and row != heads:
            yield _of_columns(row, columns, cite(item, number))


def _of_columns(row: list[str], columns: Mapping[int, Section], place: Citation) -> Node:
    counts = {section: count for index, section in columns.items() if (count := whole(row[index])) is not None}
    return Node(
        row[0],
        _one(counts.get("capacity", 0), place),
        _one(counts.get("allocatable"), place) if counts.get("capacity") else _one(counts.get("allocatable", 0), place),
        sections=frozenset(columns.values()),
        citation=place,
    )


def _one(count: int | None, place: Citation) -> Mapping[str, Amount]:
    return {"nvidia.com/gpu": Amount(count, place)} if count is not None else {}


def _answer(item: Item) -> Iterator[Node]:
    """What one field of a node holds, where it alone was asked for (``-o jsonpath``, ``jq``)."""
    match = _PATH.search(item.written)
    said = item.text.strip().strip("'\"%")
    if match is None or "columns" in item.written or "\n" in said:
        return
    count = whole(said)
    if count is not None or said in _NONE:
        place = cite(item, 1)
        amounts = _one(count, place)
        is_capacity = match["section"] == "capacity"
        yield Node(
            _asked_for(item),
            amounts if is_capacity else {},
            {} if is_capacity else amounts,
            sections=frozenset({match["section"]}),
            citation=place,
        )


def pods(snapshot: Snapshot) -> tuple[Pod, ...]:
    """The pods, and the templates of pods, that are shown."""
    shown = (_pod(piece) for piece in snapshot.view(pieces) if _is_pod(piece))
    return (*shown, *(pod for item in snapshot.items for pod in _asked_class(item)))


def _asked_class(item: Item) -> Iterator[Pod]:
    """The runtime class of a pod, where it was asked for alone or before other fields (``-o jsonpath``)."""
    if _is_without_class(item):
        yield Pod(item.subject, runtime_class="", citation=cite(item, 1))
    said = item.text.strip("\n").strip("'\"%")
    if not _CLASS_FIRST.search(item.written) or not item.source.words or "\n" in said:
        return
    first = re.split(r"[ \t|,]", said, maxsplit=1)[0].strip("'\"%")
    if first in _NONE or not first or _NAME_OF_CLASS.fullmatch(first):
        yield Pod(item.subject, runtime_class="" if first in _NONE else first, citation=cite(item, 1))


def _is_without_class(item: Item) -> bool:
    """Whether lines of a pod's definition were picked so that a runtime class would be among them, and none is."""
    if item.kind != "kubernetes-pod" or not item.source.only or "runtimeClass" in item.text or not item.text.strip():
        return False
    return item.source.lets_through("  runtimeClassName: nvidia")


_CLASS_FIRST: Final = Pattern(r"^[^{]*\{[^{}]*spec\.runtimeClassName\}?")
_NAME_OF_CLASS: Final = Pattern(r"[a-z0-9][a-z0-9.-]*")


def _is_pod(piece: _Piece) -> bool:
    return bool(_POD.search(piece.text)) and not re.search(r"kind\"?: \"?Node\b|^Roles:", piece.text, re.MULTILINE)


def _pod(piece: _Piece) -> Pod:
    text = piece.text
    fields = {name: value for match in _POD_FIELD.finditer(text) for name, value in match.groupdict().items() if value}
    gpus = next(
        (
            Amount(int(match["value"]), piece.cite(offset))
            for offset, line, section in _sectioned(piece)
            if section in {"limits", "requests"} and (match := _AMOUNT.search(line))
        ),
        None,
    )
    name = piece.name or (piece.item.subject if piece.item.kind == "kubernetes-pod" else "")
    uid = _UID.search(text)
    return Pod(
        name.removeprefix("pod/"),
        fields.get("node", ""),
        fields.get("reason") or fields.get("status", ""),
        _class(piece),
        _tolerations(piece),
        gpus,
        tuple(match["image"] for match in _IMAGE.finditer(text)),
        uid["uid"] if uid else "",
        piece.cite(0),
    )


def _class(piece: _Piece) -> str | None:
    if match := _CLASS.search(piece.text):
        return "" if match["name"] in {"null", "none"} else match["name"]
    whole_yaml = re.search(r"^[ \t]*[\"']?containers[\"']?:", piece.text, re.MULTILINE) and "spec" in piece.text
    whole_text = re.search(r"^(?:Tolerations|Events):", piece.text, re.MULTILINE) and piece.name
    return "" if (whole_yaml or whole_text) and not piece.item.source.is_part and not piece.item.source.only else None


def _tolerations(piece: _Piece) -> tuple[Taint, ...] | None:
    found: list[Taint] = []
    shown = False
    for _, line, section in _sectioned(piece):
        if section != "tolerations":
            continue
        shown = True
        match = _TOLERATION.match(line)
        if match and (match["key"] or match["op"] or match["effect"]) and match["key"] != "Events":
            exists = match["op"] == "Exists" or (match["op"] is None and match["value"] is None)
            found.append(Taint(match["key"], match["value"] or "", match["effect"] or "", exists))
    for fields, _ in _blocks(piece, "tolerations"):
        if fields.keys() & {"key", "operator", "effect"}:
            exists = fields.get("operator") == "Exists"
            found.append(Taint(fields.get("key", ""), fields.get("value", ""), fields.get("effect", ""), exists))
    if shown:
        return tuple(found)
    # A whole manifest without any: the cluster adds only those for nodes that are not ready.
    is_whole = re.search(r"kind\"?: \"?Pod\b", piece.text) and re.search(r"\bcontainers\"?:", piece.text)
    return () if is_whole else None


def rows(snapshot: Snapshot) -> tuple[Row, ...]:
    """The lines of every table of pods."""
    return tuple(row for item in snapshot.items if _has_tables(item) for row in _rows(item))


def _has_tables(item: Item) -> bool:
    return item.is_seen and (item.kind.startswith("kubernetes") or item.kind in {"text", "application"})


def _rows(item: Item) -> Iterator[Row]:
    for number, line in enumerate(item.lines, 1):
        if "/" in line and (match := _ROW.match(line)):
            yield Row(match["name"], match["status"], cite(item, number))


def daemons(snapshot: Snapshot) -> tuple[Daemons, ...]:
    """The daemon sets that are shown, in tables or described."""
    return tuple(one for item in snapshot.items if _has_tables(item) for one in _daemons(item))


def _daemons(item: Item) -> Iterator[Daemons]:
    name = ""
    for number, line in enumerate(item.lines, 1):
        if match := _NAME.match(line):
            name = match["name"]
        elif match := _DESIRED.match(line):
            yield Daemons(name or item.subject, int(match["count"]), cite(item, number))
        elif match := _DAEMON.match(line):
            yield Daemons(match["name"], int(match["desired"]), cite(item, number))


def runtime_classes(snapshot: Snapshot) -> Mapping[str, Citation]:
    """The handlers that runtime classes of the cluster name."""
    found: dict[str, Citation] = {}
    for item in snapshot.items:
        if not _has_tables(item) and not (item.kind == "file" and "RuntimeClass" in item.text):
            continue
        table = "HANDLER" in item.text
        for number, line in enumerate(item.lines, 1):
            words = line.split()
            if table and len(words) >= 2 and words[0] != "NAME" and words[0] == words[1]:
                found.setdefault(words[1], cite(item, number))
            elif line.strip().lower().startswith(("handler:", '"handler":')):
                found.setdefault(line.split(":", 1)[1].strip().strip("\"',"), cite(item, number))
    return found


def allocations(snapshot: Snapshot) -> tuple[Allocation, ...]:
    """The devices that the kubelet has on record as given to pods."""
    records = (one for one in snapshot.items if "PodUID" in one.text or "kubelet_internal_checkpoint" in one.written)
    return tuple(allocation for item in records for allocation in _allocations(item))


# Of its own entries, else whatever has the form; a GPU's identifier has it, too, with a word before it.
_ANY_UID: Final = Pattern(
    r"\"PodUID\"\s*:\s*\"(?P<entry>[^\"\n]+)\""
    r"|(?<!GPU-)(?<!MIG-)\b(?P<uid>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\b"
)
_ANY_NAME: Final = Pattern(r"\b[\w.-]+\.[a-z]{2,}/[\w.-]+")


def _allocations(item: Item) -> Iterator[Allocation]:
    """Each pod's identifier with the resource that is named after it: of the record, or of what was taken out."""
    found = list(_ANY_UID.finditer(item.text))
    ends = (*(one.start() for one in found[1:]), len(item.text))
    for match, end in zip(found, ends, strict=False):
        name = _ANY_NAME.search(item.text, match.end(), end)
        name = name or _ANY_NAME.search(item.written)
        uid = match["entry"] or match["uid"]
        yield Allocation(uid, name[0] if name else "nvidia.com/gpu", _line_of(item, uid))


def _line_of(item: Item, word: str) -> Citation:
    at = item.text.find(word)
    number = item.text.count("\n", 0, at) + 1
    line = cite(item, number)
    if len(line.line) <= 200:
        return line
    inside = line.line.find(word)
    return Citation(line.source, line.line[max(0, inside - 60) : inside + 120], number, item.key)
