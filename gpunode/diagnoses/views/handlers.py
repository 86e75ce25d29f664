"""The handlers of the kubelet's container runtime: which is the default, and whether NVIDIA's is among them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, find
from gpunode.diagnoses.views import containerd
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern

_DEFAULT: Final = Pattern(
    r"(?:default_runtime(?:_name)?\s*=|\"default-runtime\"\s*:|Default Runtime:|\"defaultRuntimeName\"\s*:)"
    r"\s*[\"']?(?P<name>[\w.-]+)"
)
_HANDLER: Final = Pattern(
    r"runtimes\.[\"']?nvidia[\"']?\s*\]|\"nvidia\"\s*:\s*\{|nvidia-container-runtime|^[ \t]*Runtimes:.*\bnvidia\b",
    re.MULTILINE,
)
_FILES: Final = Pattern(r"containerd[\w./-]*\.toml|/cri/conf\.d/|docker/daemon\.json$|\bcrio\b")
_OTHER: Final = Pattern(r"(?:containerd|cri-o)://\d")


@dataclass(frozen=True, slots=True)
class Handlers:
    """The container runtime's handlers, as far as they were shown.

    Attributes:
        default: the handler of containers that ask for none; empty where that was not shown.
        has_nvidia: whether a handler of NVIDIA's is among them; None where that was not shown.
    """

    default: str
    has_nvidia: bool | None
    citations: tuple[Citation, ...]


def shown(snapshot: Snapshot) -> Handlers:
    """By containerd itself or its files, else by whatever shows docker, CRI-O or a piece of any."""
    told = snapshot.view(containerd.effective)
    if told is None or not (told.default or told.handlers):
        return _scanned(snapshot)
    default = (told.default,) if told.default else ()
    places = (*(one.citation for one in default), *told.of_nvidia)
    has = bool(told.of_nvidia) if told.of_nvidia or told.names_handlers else None
    return Handlers(default[0].value if default else "runc" if told.names_handlers else "", has, places)


def _scanned(snapshot: Snapshot) -> Handlers:
    default, places, has = "", list[Citation](), None
    for item in snapshot.items:
        if not item.is_seen or item.where != "host" or not _is_of_kubelets(snapshot, item):
            continue
        if match := find(item, _DEFAULT):
            default = default or match["name"]
            places.append(cite(item, item.number_at(match.start())))
        if match := find(item, _HANDLER):
            has = True
            places.append(cite(item, item.number_at(match.start())))
        elif has is None and item.text.strip() and not item.source.is_part and not item.source.only:
            has = False
    return Handlers(default, has, tuple(dict.fromkeys(places)))


def _is_of_kubelets(snapshot: Snapshot, item: Item) -> bool:
    """Whether it configures the runtime that the kubelet uses."""
    name = item.subject or item.written
    if not (item.kind in {"containerd-config", "docker-info"} or _FILES.search(name)):
        return False
    if name.startswith("/etc/containerd/"):
        return snapshot.view(containerd.product) == "containerd"
    return not (item.kind == "docker-info" or "docker" in name) or not snapshot.says(_OTHER)
