"""containerd as it reads its files, and the product that may make these files anew at every start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, find, finds, stated
from gpunode.facts.items import Item
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern
from gpunode.runtimes.containerd_files import CONFIG

Product: TypeAlias = Literal["containerd", "k3s", "rke2", "microk8s", "k0s"]

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
# systemd is asked for units of every product; what it said of them is among the facts.
_NAMELESS: Final = frozenset({"packages", "kernel-log", "nvml", "unit-show"})


@dataclass(frozen=True, slots=True)
class Value:
    """What a line of a configuration says."""

    value: str
    citation: Citation


@dataclass(frozen=True, slots=True)
class Effective:
    """A configuration of containerd's, from its dump, from crictl, or from its files.

    Attributes:
        handlers: each with the line that describes it.
        systemd_cgroup: what each handler's options say; a handler that says nothing is absent.
        names_handlers: whether a handler that is not here would be, so that its absence is known.
    """

    place: Citation
    handlers: Mapping[str, Citation] = field(default_factory=dict)
    default: Value | None = None
    systemd_cgroup: Mapping[str, Value] = field(default_factory=dict)
    names_handlers: bool = False

    @property
    def of_nvidia(self) -> tuple[Citation, ...]:
        """Where handlers of NVIDIA's are described."""
        return tuple(place for name, place in self.handlers.items() if name.startswith("nvidia"))


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
    items = [one for one in snapshot.items if not (one.kind in _NAMELESS or one.outcome == "absent" or one.is_register)]
    for name, pattern in _PRODUCTS:
        for item in items:
            if item.text.strip() and pattern.search(item.written):
                return name, cite(item)
            if match := find(item, pattern):
                return name, cite(item, item.number_at(match.start()))
    return None


_SHOWN: Final = Pattern(r"^[ \t]*(?:\[\s*plugins\b|[\w-]+\s*=|\{)|\"runtimes\"", re.MULTILINE)


def running(snapshot: Snapshot) -> Effective | None:
    """What the daemon itself printed of its configuration; None where nobody asked it."""
    shown = (item for item in snapshot.of("containerd-config") if find(item, _SHOWN))
    return next((_scanned(item) for item in shown), None)


def effective(snapshot: Snapshot) -> Effective | None:
    """What the daemon said, else what its files say; None where neither was seen."""
    return running(snapshot) or of_files(snapshot)


_ROOTS: Final[Mapping[Product, str]] = {
    "containerd": CONFIG,
    "k3s": "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "rke2": "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "microk8s": "/var/snap/microk8s/current/args/containerd.toml",
}


def of_files(snapshot: Snapshot) -> Effective | None:
    """What the files of the containerd that counts say; None where none was seen."""
    path = _ROOTS.get(product(snapshot), CONFIG)
    shown = (item for item in snapshot.of("file", "listing") if item.where == "host" and item.outcome == "ok")
    items = {item.subject: item for item in shown if item.text.strip()}
    if (root := items.get(path)) is None:
        return None
    folder = path.rpartition("/")[0]
    others = (items[one] for one in sorted(items) if one != path and one.startswith(folder) and one.endswith(".toml"))
    return _scanned(root, *(others if "imports" in root.text else ()))


# TOML in every schema, and crictl's JSON.
_TOKEN: Final = Pattern(
    r"^(?:\d+[:-])?[ \t]*\[(?P<table>[^\[\]\n]+)\]"
    r"|\"(?P<object>[\w.-]+)\"\s*:\s*\{(?=\s*\"(?:options|runtime(?:Type|Path|Engine|Root))\")"
    r"|(?:^|[{,\d:-])[ \t]*\"?(?P<key>default_?runtime_?name|SystemdCgroup|runtimes)\"?\s*[:=]\s*"
    r"(?P<value>\[[^\]]*\]|[^\s,}]+)",
    re.MULTILINE | re.IGNORECASE,
)
_QUOTED: Final = Pattern(r"[\"']([^\"'\n]+)[\"']")
_HANDLER: Final = Pattern(r"\.runtimes\.[\"']?([\w-]+)")


def _scanned(*items: Item) -> Effective:
    """What the lines of the texts say, whole or in part; a later file wins."""
    handlers: dict[str, Citation] = {}
    systemd: dict[str, Value] = {}
    default, handler = None, ""
    for item in items:
        for match in finds(item, _TOKEN):
            place = cite(item, item.number_at(match.start(match.lastgroup or 0)))
            if match["key"] is None:
                named = _HANDLER.search(match["table"] or "")
                handler = match["object"] or (named[1] if named else "")
                if handler:
                    handlers.setdefault(handler, place)
                continue
            value, key = match["value"].strip("\"'"), match["key"].lower()
            if key.startswith("default"):
                default = Value(value, place)
            elif key == "systemdcgroup":
                systemd[handler] = Value(value.lower(), place)
            else:  # what jq makes of the runtimes with "keys"
                handlers |= dict.fromkeys(_QUOTED.findall(match["value"]), place)
    source, text = items[0].source, items[0].text
    lists = bool(handlers) or "runtimes]" in text or '"runtimes"' in text
    is_whole = "version" in text and not (source.is_part or source.only) and items[0].kind != "containerd-config"
    names = (lists and (not source.only or "runtimes" in source.only)) or is_whole
    return Effective(cite(items[0], 1), handlers, default, systemd, names)
