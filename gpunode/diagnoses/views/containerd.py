"""containerd as it reads its files, and the product that may make these files anew at every start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, find, finds, stated
from gpunode.facts.items import Item
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern
from gpunode.runtimes.containerd_files import CONFIG

Product: TypeAlias = Literal["containerd", "k3s", "rke2", "microk8s", "k0s"]

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


def product(snapshot: Snapshot) -> Product:
    """The product whose containerd the kubelet uses."""
    return snapshot.view(_product)[0]


def product_citation(snapshot: Snapshot) -> tuple[Citation, ...]:
    """What shows that product."""
    return snapshot.view(_product)[1]


def _product(snapshot: Snapshot) -> tuple[Product, tuple[Citation, ...]]:
    kubelet = snapshot.facts.kubelet
    if isinstance(kubelet, Known) and kubelet.value is not None:
        kind = kubelet.value.kind
        return "containerd" if kind == "kubelet" else kind, (stated("the kubelet", f"of {kind}", kubelet.probe),)
    items = [one for one in snapshot.items if not (one.kind in _NAMELESS or one.outcome == "absent" or one.is_register)]
    for name, pattern in _PRODUCTS:
        for item in items:
            if item.text.strip() and pattern.search(item.written):
                return name, (cite(item),)
            if match := find(item, pattern):
                return name, (cite(item, item.number_at(match.start())),)
    return "containerd", ()


@dataclass(frozen=True, slots=True)
class Value:
    """What a line of a configuration says."""

    value: str
    citation: Citation


@dataclass(frozen=True, slots=True)
class Config:
    """A configuration of containerd's, from its dump, from crictl, or from its files.

    Attributes:
        handlers: each with the line that describes it.
        systemd_cgroup: what each handler's options say; a handler that says nothing is absent.
        is_whole: whether a handler that is not here would be, so that its absence is known.
    """

    place: Citation
    handlers: Mapping[str, Citation]
    default: Value | None
    systemd_cgroup: Mapping[str, Value]
    is_whole: bool

    @property
    def of_nvidia(self) -> tuple[Citation, ...]:
        """Where handlers of NVIDIA's are described."""
        return tuple(place for name, place in self.handlers.items() if name.startswith("nvidia"))


_SHOWN: Final = Pattern(r"^[ \t]*(?:\[\s*plugins\b|[\w-]+\s*=|\{)|\"runtimes\"", re.MULTILINE)
_ROOTS: Final[Mapping[Product, str]] = {
    "containerd": CONFIG,
    "k3s": "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "rke2": "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "microk8s": "/var/snap/microk8s/current/args/containerd.toml",
}


def running(snapshot: Snapshot) -> Config | None:
    """What the daemon itself printed of its configuration; None where nobody asked it."""
    shown = (item for item in snapshot.of("containerd-config") if find(item, _SHOWN))
    return next((_config(item) for item in shown), None)


def config(snapshot: Snapshot) -> Config | None:
    """What the daemon printed, else what the files that it reads say; None where neither was seen."""
    return running(snapshot) or of_files(snapshot)


def of_files(snapshot: Snapshot) -> Config | None:
    """What the files of the containerd that counts say; None where none was seen."""
    path = _ROOTS.get(product(snapshot), CONFIG)
    shown = (item for item in snapshot.of("file", "listing") if item.where == "host" and item.outcome == "ok")
    items = {item.subject: item for item in shown if item.text.strip()}
    if (root := items.get(path)) is None:
        return None
    folder = path.rpartition("/")[0]
    others = (items[one] for one in sorted(items) if one != path and one.startswith(folder) and one.endswith(".toml"))
    return _config(root, *(others if "imports" in root.text else ()))


# TOML in every schema, and crictl's JSON.
_TOKEN: Final = Pattern(
    r"^(?:\d+[:-])?[ \t]*\[(?P<table>[^\[\]\n]+)\]"
    r"|\"(?P<object>[\w.-]+)\"\s*:\s*\{(?=\s*\"(?:options|runtime(?:Type|Path|Engine|Root))\")"
    r"|(?:^|[{,\d:-])[ \t]*\"?(?P<key>default_?runtime_?name|SystemdCgroup)\"?\s*[:=]\s*(?P<value>[^\s,}]+)",
    re.MULTILINE | re.IGNORECASE,
)
_HANDLER: Final = Pattern(r"\.runtimes\.[\"']?([\w-]+)")


def _config(*items: Item) -> Config:
    """What the lines of the texts say, whole or in part; a later file wins."""
    handlers, systemd = dict[str, Citation](), dict[str, Value]()
    default, handler = None, ""
    for item in items:
        for match in finds(item, _TOKEN):
            place = cite(item, item.number_at(match.start(match.lastgroup or 0)))
            if match["key"] is None:
                named = _HANDLER.search(match["table"] or "")
                handler = match["object"] or (named[1] if named else "")
                if handler:
                    handlers.setdefault(handler, place)
            elif match["key"].lower().startswith("default"):
                default = Value(match["value"].strip("\"'"), place)
            else:
                systemd[handler] = Value(match["value"].strip("\"'").lower(), place)
    root = items[0]
    is_whole = ("runtimes" in root.text or "version" in root.text) and not (root.source.only or root.source.is_part)
    return Config(cite(root, 1), handlers, default, systemd, is_whole)
