"""Detect evidence taken inside a container, whose libraries, packages and devices are not the node's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, cite_fact
from gpunode.diagnoses.views import nested_cluster, system
from gpunode.facts.model import Known

# What an engine leaves in the container's root.
_MARKS: Final = ("/.dockerenv", "/run/.containerenv")
_ENGINES: Final = frozenset({"docker", "podman", "lxc", "lxc-libvirt"})


def container_marks(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the evidence of a container; a node of kind, which is one itself, does not count."""
    if snapshot.view(nested_cluster.NODE) or system.is_wsl(snapshot):
        return
    platform = snapshot.facts.platform
    if isinstance(platform, Known) and platform.value.kind == "container":
        yield cite_fact("systemd-detect-virt", platform.value.detail or "a container", platform.probe)
    for item in snapshot.items:
        if item.where != "host" or item.outcome != "ok" or not item.text.strip():
            continue  # a probe that looked for it and found nothing is no mark
        is_mark = item.subject in _MARKS or any(path in item.source.words for path in _MARKS)
        is_named = item.kind == "virtualization" and item.text.strip() in _ENGINES
        if is_named or (is_mark and item.kind in {"listing", "file"}):
            yield cite(item, 1)
