"""containerd and CRI-O as they read their files, and the product that may make these files anew at every start."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, find, stated
from gpunode.diagnoses.views import packages
from gpunode.errors import Refused
from gpunode.facts import numbers
from gpunode.facts.items import Item
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern
from gpunode.runtimes import containerd, crio
from gpunode.runtimes.containerd_files import CONFIG
from gpunode.runtimes.crio_files import DEAD_FOLDER
from gpunode.runtimes.model import DesiredConfig, ObservedConfig

Product: TypeAlias = Literal["containerd", "k3s", "rke2", "microk8s", "k0s"]

_CRI: Final = frozenset({"cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"})
_HEADER: Final = Pattern(r"^[ \t]*\[\s*(?P<path>[^\[\]\n]+?)\s*\]\s*(?:#.*)?$")
_VALUE: Final = Pattern(r"^[ \t]*(?P<key>[\w-]+|\"[^\"\n]+\")\s*[:=]\s*(?P<value>[^\s#][^\n]*?),?\s*$")
_PART: Final = Pattern(r"\"([^\"]*)\"|'([^']*)'|([^.\s\"']+)")
# containerd's and its shims' words for a place below its data.
_PRODUCTS: Final[tuple[tuple[Product, Pattern], ...]] = (
    # Its containerd has its socket in /run/k3s, too.
    ("rke2", Pattern(r"/var/lib/rancher/rke2|[+-]rke2r?\d|\brke2-(?:server|agent)\b|/etc/rancher/rke2")),
    (
        "k3s",
        Pattern(r"/rancher/k3s|[+-]k3s\d|\bk3s\.service\b|ctl [\w -]{0,30}\bk3s\b|\bk3s-(?:agent|server)\b|/run/k3s/"),
    ),
    ("microk8s", Pattern(r"/var/snap/microk8s|\bmicrok8s\b")),
    ("k0s", Pattern(r"/(?:etc|lib)/k0s/|\bk0s(?:worker|controller)\b|[+-]k0s")),
)


@dataclass(frozen=True, slots=True)
class Value:
    """What a line of a configuration says."""

    value: str
    citation: Citation

    @property
    def is_true(self) -> bool:
        """Whether it says true."""
        return self.value.strip("\"'").lower() == "true"


@dataclass(frozen=True, slots=True)
class Effective:
    """A configuration of containerd's, from its dump, from crictl, or from its files.

    Attributes:
        handlers: each with the line that describes it.
        default: the default runtime's name.
        disabled: the line that switches the CRI plugin off.
        systemd_cgroup: what each handler's options say; a handler that says nothing is absent.
        spec_dirs: where CDI specifications are looked for; empty where it does not say.
        names_handlers: whether a handler that is not here would be, so that its absence is known.
        fault: why the daemon cannot read it.
    """

    place: Citation
    handlers: Mapping[str, Citation] = field(default_factory=dict)
    binaries: Mapping[str, Value] = field(default_factory=dict)
    default: Value | None = None
    disabled: Citation | None = None
    systemd_cgroup: Mapping[str, Value] = field(default_factory=dict)
    spec_dirs: tuple[str, ...] = ()
    names_handlers: bool = False
    fault: str = ""


def product(snapshot: Snapshot) -> Product:
    """The product whose containerd the kubelet uses."""
    found = snapshot.view(_product)
    return found[0] if found else "containerd"


def product_citation(snapshot: Snapshot) -> tuple[Citation, ...]:
    """What shows that product."""
    found = snapshot.view(_product)
    return (found[1],) if found else ()


def _product(snapshot: Snapshot) -> tuple[Product, Citation] | None:
    kubelet = snapshot.facts.kubelet
    if isinstance(kubelet, Known) and kubelet.value is not None:
        kind = kubelet.value.kind
        return None if kind == "kubelet" else (kind, stated("the kubelet", f"of {kind}", kubelet.probe))
    for name, pattern in _PRODUCTS:
        for item in snapshot.items:
            # systemd is asked for units of every product; what it said of them is among the facts.
            if item.kind in {"packages", "kernel-log", "nvml", "unit-show"} or item.outcome == "absent":
                continue
            if item.is_register:
                continue
            if item.text.strip() and pattern.search(item.written):
                return name, cite(item)
            if match := find(item, pattern):
                return name, cite(item, item.number_at(match.start()))
    return None


_TOML: Final = Pattern(r"^[ \t]*(?:\[\s*plugins\b|[\w-]+\s*=)", re.MULTILINE)


def running(snapshot: Snapshot) -> Effective | None:
    """What the daemon itself printed of its configuration; None where nobody asked it."""
    for item in snapshot.of("containerd-config"):
        if '"runtimes"' in item.text or item.text.lstrip()[:1] == "{":
            return _of_json(item)
        if item.outcome == "ok" and find(item, _TOML):
            return _scanned(item)
    return None


def effective(snapshot: Snapshot) -> Effective | None:
    """What the daemon said, else what its files say; None where neither was seen."""
    return running(snapshot) or of_files(snapshot)


def of_files(snapshot: Snapshot) -> Effective | None:
    """What the files of the containerd that counts say; None where none was seen."""
    root = _ROOTS.get(product(snapshot), CONFIG)
    items = {item.subject: item for item in snapshot.items if _is_config(item)}
    if root not in items:
        return None
    item = items[root]
    parts = [_scanned(one) for one in (item, *_imported(items, root))]
    merged = _together(parts)
    if item.source.only or item.source.is_part:
        return merged
    try:
        told = containerd.inspect(_bytes(items), DesiredConfig(config=root, version=version(snapshot) or None))
    except Refused as refused:
        return Effective(merged.place, fault=refused.what)
    return _corrected(merged, told)


_ROOTS: Final[Mapping[Product, str]] = {
    "containerd": CONFIG,
    "k3s": "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "rke2": "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "microk8s": "/var/snap/microk8s/current/args/containerd.toml",
}


def file(snapshot: Snapshot, path: str) -> Effective | None:
    """What one file says by itself; None where it was not read."""
    item = next((one for one in snapshot.items if one.subject == path and _is_config(one)), None)
    return _scanned(item) if item is not None else None


def _is_config(item: Item) -> bool:
    return (
        item.kind in {"file", "listing"} and item.where == "host" and item.outcome == "ok" and bool(item.text.strip())
    )


def _bytes(items: Mapping[str, Item]) -> dict[str, bytes]:
    whole = {path: item for path, item in items.items() if not item.source.only and not item.source.is_part}
    return {path: item.text.encode("utf-8", "surrogatepass") for path, item in whole.items() if path.endswith(".toml")}


def _imported(items: Mapping[str, Item], root: str) -> Iterator[Item]:
    """The drop-ins that were seen, of folders that the root file may import; whether it does, ``inspect`` knows."""
    folder = root.rpartition("/")[0]
    for path in sorted(items):
        if path != root and path.startswith(folder) and path.endswith(".toml") and "imports" in items[root].text:
            yield items[path]


def _together(parts: list[Effective]) -> Effective:
    first = parts[0]
    return Effective(
        first.place,
        {name: where for one in parts for name, where in one.handlers.items()},
        {name: value for one in parts for name, value in one.binaries.items()},
        next((one.default for one in reversed(parts) if one.default is not None), None),
        next((one.disabled for one in parts if one.disabled is not None), None),
        {name: value for one in parts for name, value in one.systemd_cgroup.items()},
        next((one.spec_dirs for one in reversed(parts) if one.spec_dirs), ()),
        first.names_handlers,
    )


def _corrected(scanned: Effective, told: ObservedConfig) -> Effective:
    """``scanned`` reduced to what counts: containerd takes some of what is written for nothing."""
    return Effective(
        scanned.place,
        {name: scanned.handlers.get(name, scanned.place) for name in told.handlers},
        {name: value for name, value in scanned.binaries.items() if name in told.handlers},
        Value(told.default, scanned.default.citation if scanned.default else scanned.place) if told.default else None,
        (scanned.disabled or scanned.place) if told.cri_disabled else None,
        {name: value for name, value in scanned.systemd_cgroup.items() if name in told.systemd_cgroup},
        scanned.spec_dirs,
        names_handlers=True,
    )


def _of_json(item: Item) -> Effective:
    """Crictl's answer, read as JSON, or line by line where it was cut."""
    try:
        document = json.loads(item.text)
    except (ValueError, RecursionError):
        return _json_lines(item)
    config = document.get("config", document) if isinstance(document, dict) else {}
    table = config.get("containerd", config) if isinstance(config, dict) else {}
    if isinstance(table, dict) and isinstance(names := table.get("runtimes"), list):
        # What jq makes of it with "keys": the names alone.
        table = {**table, "runtimes": {name: {} for name in names if isinstance(name, str)}}
    if not isinstance(table, dict) or not isinstance(table.get("runtimes"), dict):
        return _json_lines(item)
    whole = _json_lines(item)
    default = table.get("defaultRuntimeName")
    dirs = config.get("cdiSpecDirs")
    return Effective(
        whole.place,
        {name: whole.handlers.get(name, whole.place) for name in table["runtimes"]},
        {name: value for name, value in whole.binaries.items() if name in table["runtimes"]},
        Value(default, whole.default.citation if whole.default else whole.place) if isinstance(default, str) else None,
        None,
        {name: Value(str(value).lower(), whole.place) for name, value in _systemd(table["runtimes"])},
        tuple(one for one in dirs if isinstance(one, str)) if isinstance(dirs, list) else (),
        names_handlers=True,
    )


def _systemd(runtimes: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    for name, entry in runtimes.items():
        options = entry.get("options") if isinstance(entry, dict) else None
        if isinstance(options, dict) and isinstance(value := options.get("SystemdCgroup"), bool):
            yield name, value


_OBJECT: Final = Pattern(r"^[ \t]*\"(?P<name>[\w.-]+)\":\s*\{")


def _json_lines(item: Item) -> Effective:
    handlers: dict[str, Citation] = {}
    binaries: dict[str, Value] = {}
    systemd: dict[str, Value] = {}
    default: Value | None = None
    current, inside = "", False
    for number, line in enumerate(item.lines, 1):
        if match := _OBJECT.match(line):
            if match["name"] == "runtimes":
                inside = True
            elif inside and match["name"] not in {"options", "runtimes"}:
                current = match["name"]
                handlers[current] = cite(item, number)
        elif match := _VALUE.match(line):
            key, value = match["key"].strip('"'), Value(match["value"].strip('",'), cite(item, number))
            if key == "defaultRuntimeName":
                default = value
            elif key == "BinaryName" and current:
                binaries[current] = value
            elif key == "SystemdCgroup" and current:
                systemd[current] = value
    return Effective(cite(item, 1), handlers, binaries, default, None, systemd, (), inside)


def _scanned(item: Item) -> Effective:
    """What the lines of a TOML text say, whole or in part, in every schema."""
    handlers: dict[str, Citation] = {}
    binaries: dict[str, Value] = {}
    systemd: dict[str, Value] = {}
    default: Value | None = None
    disabled: Citation | None = None
    dirs: tuple[str, ...] = ()
    handler = ""
    for number, line in enumerate(item.lines, 1):
        if match := _HEADER.match(line):
            handler = _handler(match["path"])
            if handler:
                handlers.setdefault(handler, cite(item, number))
        elif match := _VALUE.match(line):
            key, value = match["key"].strip('"'), Value(match["value"].strip("\"'"), cite(item, number))
            if key == "default_runtime_name":
                default = value
            elif key == "BinaryName":
                binaries[handler or "nvidia"] = value
            elif key == "SystemdCgroup":
                systemd[handler] = value
            elif key == "disabled_plugins" and _CRI.intersection(re.findall(r"[\"']([^\"']+)[\"']", match["value"])):
                disabled = value.citation
            elif key == "cdi_spec_dirs":
                dirs = tuple(re.findall(r"[\"']([^\"']+)[\"']", match["value"]))
    names = (not item.source.only or "runtimes" in item.source.only) and (bool(handlers) or "runtimes]" in item.text)
    whole = not item.source.is_part and not item.source.only
    is_silent = whole and item.kind != "containerd-config" and not handlers
    return Effective(cite(item, 1), handlers, binaries, default, disabled, systemd, dirs, names or is_silent)


def _handler(path: str) -> str:
    """The handler that the table of this name describes, or its options; empty for another table."""
    parts = [str(a or b or c) for a, b, c in _PART.findall(path)]
    for index in range(len(parts) - 1):
        if parts[index] == "runtimes" and index and parts[index - 1] in {"containerd", "runtime"}:
            return parts[index + 1]
    return ""


_NUMBER: Final = r"\d{1,6}\.\d{1,6}\.\d{1,6}"
_VERSIONS: Final = Pattern(
    rf"\bcontainerd(?:\.io)? (?:github\.com/containerd/containerd(?:/v2)? |containerd\.io )?v?(?P<cli>{_NUMBER})"
    rf"|containerd://(?P<node>{_NUMBER})"
)


def version(snapshot: Snapshot) -> tuple[int, ...]:
    """Containerd's version; empty where nothing tells."""
    for item in snapshot.items:
        if item.kind not in {"file", "kernel-log", "packages"} and (match := find(item, _VERSIONS)):
            return numbers.version(match["cli"] or match["node"])
    for package in packages.matching(snapshot, "containerd", "containerd.io"):
        if package.is_installed:
            return tuple(int(part) for part in re.findall(r"\d{1,6}", package.upstream)[:3])
    return ()


def crio_configured(snapshot: Snapshot) -> ObservedConfig | None:
    """What CRI-O reads in its files; None where none of them was seen or one cannot be read."""
    seen = {item.subject: item for item in snapshot.items if _is_config(item) and item.subject.startswith("/etc/crio/")}
    whole = {path: item for path, item in seen.items() if not item.source.only and item.kind == "file"}
    data = {path: item.text.encode("utf-8", "surrogatepass") for path, item in whole.items()}
    if not crio.in_order(data, DesiredConfig()):
        return None
    try:
        return crio.inspect(data, DesiredConfig())
    except Refused:
        return None


def crio_dead(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The drop-ins that older toolkits put where CRI-O never looks."""
    return tuple(_crio_dead(snapshot))


_WRITTEN: Final = Pattern(rf"(?:Wrote|Writing|Created) [^\n]{{0,60}}{re.escape(DEAD_FOLDER)}/\S+")
_IN_FOLDER: Final = Pattern(rf"(?<![\w.]){re.escape(DEAD_FOLDER)}\b")


def _crio_dead(snapshot: Snapshot) -> Iterator[Citation]:
    yield from snapshot.said(_WRITTEN)
    for item in snapshot.items:
        if item.outcome != "ok" or not item.text.strip():
            continue
        here = _IN_FOLDER.search(f"{item.subject} {item.written}")
        if item.kind == "file" and here and "nvidia" in item.text:
            yield next(
                (cite(item, number) for number, line in enumerate(item.lines, 1) if "nvidia" in line), cite(item, 1)
            )
        elif item.kind == "listing" and (here or find(item, _IN_FOLDER)):
            for number, line in enumerate(item.lines, 1):
                is_file = "nvidia" in line and line.rstrip().endswith(".toml") and "No such" not in line
                if is_file and (here or _IN_FOLDER.search(line)):
                    yield cite(item, number)
