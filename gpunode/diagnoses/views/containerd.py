"""containerd as it reads its files, and the product that may make these files anew at every start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, find, stated
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


_SHOWN: Final = Pattern(r"^[ \t]*(?:\[\s*plugins\b|[\w-]+\s*=|\{)|\"runtimes\"", re.MULTILINE)
_ROOTS: Final[Mapping[Product, str]] = {
    "containerd": CONFIG,
    "k3s": "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "rke2": "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "microk8s": "/var/snap/microk8s/current/args/containerd.toml",
}


def config(snapshot: Snapshot) -> tuple[Item, ...]:
    """What the daemon printed of its configuration, else the files that it reads."""
    return tuple(item for item in snapshot.of("containerd-config") if find(item, _SHOWN))[:1] or _files(snapshot)


def _files(snapshot: Snapshot) -> tuple[Item, ...]:
    path = _ROOTS.get(product(snapshot), CONFIG)
    shown = (item for item in snapshot.of("file", "listing") if item.where == "host" and item.outcome == "ok")
    items = {item.subject: item for item in shown if item.text.strip()}
    if (root := items.get(path)) is None:
        return ()
    folder = path.rpartition("/")[0]
    others = (items[one] for one in sorted(items) if one != path and one.startswith(folder) and one.endswith(".toml"))
    return (root, *(others if "imports" in root.text else ()))


def whole(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The configuration, where it was shown so that a handler that is not in it is not there."""
    shown = snapshot.view(config)
    is_whole = any(("runtimes" in item.text or "version" in item.text) and not item.source.only for item in shown)
    return (cite(shown[0], 1),) if is_whole and not shown[0].source.is_part else ()
