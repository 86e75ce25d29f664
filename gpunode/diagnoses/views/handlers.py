"""The handlers of the kubelet's container runtime: which is the default, and whether NVIDIA's is among them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.diagnoses.views import containerd
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern

_DEFAULT: Final = Pattern(
    r"default_runtime_name\s*=\s*[\"'](?P<toml>[\w.-]+)|\"default-runtime\"\s*:\s*\"(?P<json>[\w.-]+)"
    r"|default_runtime\s*=\s*\"(?P<crio>[\w.-]+)|Default Runtime:\s*(?P<docker>[\w.-]+)"
    r"|\"defaultRuntimeName\"\s*:\s*\"(?P<crictl>[\w.-]+)"
)
_HANDLER: Final = Pattern(
    r"runtimes\.[\"']?nvidia[\"']?\s*\]|\"nvidia\"\s*:\s*\{|nvidia-container-runtime|^[ \t]*Runtimes:.*\bnvidia\b",
    re.MULTILINE,
)
_RUNTIME_FILES: Final = Pattern(
    r"containerd/[\w./-]{0,80}\.toml(?:\.tmpl)?$|/cri/conf\.d/[\w.-]{1,80}\.(?:part|toml)$|containerd\.toml|docker/daemon\.json$|crio/[\w./-]{0,80}\.conf$"
    r"|crio\.conf|\bcrio (?:status )?config"
)


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
    told = containerd.running(snapshot) or containerd.of_files(snapshot)
    if told is not None and not told.fault and (told.default or told.handlers):
        usual = "runc" if told.names_handlers else ""
        default = told.default.value.strip("\"'") if told.default else usual
        named = [place for name, place in told.handlers.items() if name.startswith("nvidia")]
        places = (*((told.default.citation,) if told.default else ()), *named)
        return Handlers(default, True if named else (False if told.names_handlers else None), places)
    return _scanned(snapshot)


def _scanned(snapshot: Snapshot) -> Handlers:
    """The same of docker, CRI-O and fragments of any."""
    items = [item for item in snapshot.items if _is_runtime(item) and item.where == "host"]
    default, places = "", list[Citation]()
    handler: bool | None = None
    for item in items:
        if _is_bypassed(snapshot, item):
            continue
        if match := _DEFAULT.search(item.text):
            default = default or next(word for word in match.groups() if word)
            places.append(_at(item, match))
        if match := _HANDLER.search(item.text):
            handler = True
            places.append(_at(item, match))
        elif handler is None and item.text.strip() and not item.source.is_part and not item.source.only:
            handler = False
    return Handlers(default, handler, tuple(dict.fromkeys(places)))


def _is_runtime(item: Item) -> bool:
    if not item.is_seen:
        return False
    return item.kind in {"containerd-config", "docker-info"} or bool(
        _RUNTIME_FILES.search(item.subject or item.written)
    )


def _is_bypassed(snapshot: Snapshot, item: Item) -> bool:
    """Whether the kubelet uses another runtime than the one that this configures."""
    if item.subject.startswith("/etc/containerd/"):
        return snapshot.view(containerd.product) != "containerd"
    is_docker = item.kind == "docker-info" or "docker" in item.subject
    return is_docker and any(
        one.kind.startswith("kubernetes") and ("containerd://" in one.text or "cri-o://" in one.text)
        for one in snapshot.items
    )


def _at(item: Item, match: re.Match[str]) -> Citation:
    return cite(item, item.number_at(match.start()))
