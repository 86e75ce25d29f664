"""Distrust containers' logs: anyone who may run a pod can write them, so they prove nothing for certain.

On an examined node, only its own evidence counts for its own layers. Without such evidence, for example in a report of
nothing else, containers' logs count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from gpunode.diagnoses.evaluation import is_examined_by_gpunode
from gpunode.diagnoses.model import Citation, StackLayer
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import driver, modules
from gpunode.facts.items import EvidenceItem
from gpunode.facts.patterns import Pattern

# Layers that the node itself shows; the others are visible from containers too.
_NODE_LAYERS: Final[frozenset[StackLayer]] = frozenset({"pci", "gpu", "kernel", "packages", "driver", "fabric"})
# Programs suffer from these, but the driver reports them in the kernel's log.
_NODE_CAUSES: Final = frozenset({"xid-13-graphics-exception", "xid-31-mmu-fault", "xid-109-ctx-switch-timeout"})
# Only programs show these: one that needs a newer driver, or one that does not get a GPU or MIG instance.
_PROGRAM_CAUSES: Final = frozenset(
    {"driver-too-old-for-image", "compute-mode-exclusive", "mig-capabilities-permission"}
)
# Containers can write into these journals, under an id or tag chosen by a user.
_ENGINE_UNITS: Final = frozenset({"docker.service", "podman.service"})
_POD_LOG_PATH: Final = Pattern(r"/var/log/(?:pods|containers)/(?P<namespace>[^/_]+)_(?P<pod>[^/_]+)_")
# The operator's pods that build and load the driver on a node without its own.
_DRIVER_POD_LOG_PATH: Final = Pattern(r"^/var/log/(?:pods|containers)/[^/_]+_nvidia-(?:(?:gpu-)?driver|vgpu-manager)-")


def is_shown_by_node(cause: str, layer: StackLayer) -> bool:
    """Return whether the node's own evidence shows the cause, so that containers need not be believed."""
    return cause in _NODE_CAUSES or (layer in _NODE_LAYERS and cause not in _PROGRAM_CAUSES)


def prefer_node_evidence(snapshot: Snapshot, *, is_node_layer: bool) -> Snapshot:
    """Return the node without containers' evidence, unless there is no other.

    For its own layers, a pasted report with a working nvidia-smi suffices.
    """
    if is_examined_by_gpunode(snapshot) or (is_node_layer and driver.works(snapshot)):
        return snapshot.view(_without_containers)
    return snapshot


def node_evidence_only(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with only an examined node's own evidence; any other snapshot unchanged."""
    return snapshot.view(_keep_node_evidence) if is_examined_by_gpunode(snapshot) else snapshot


def container_source(snapshot: Snapshot, citations: Iterable[Citation]) -> str:
    """Return the name of the cited container log."""
    cited = {(citation.key, citation.source) for citation in citations}
    said = (item for item in snapshot.items if _is_of_container(item) and (item.key, item.written) in cited)
    item = next(said, None)
    match = _POD_LOG_PATH.match(item.subject) if item else None
    if match:
        return f"the log of pod {match['namespace']}/{match['pod']}"
    return item.written if item else "logs of containers"


def _is_of_container(item: EvidenceItem) -> bool:
    return item.where == "container" or "/var/log/pods/" in item.written


def _without_containers(snapshot: Snapshot) -> Snapshot:
    return _filter_items(snapshot, lambda item: not _is_of_container(item))


def _keep_node_evidence(snapshot: Snapshot) -> Snapshot:
    # If a container provides the driver, its log also explains a missing driver.
    builds = modules.is_module_loaded(snapshot, "nvidia") is not True

    def is_kept(item: EvidenceItem) -> bool:
        is_daemons = item.kind == "unit-log" and item.subject in _ENGINE_UNITS
        return not (is_daemons or _is_of_container(item)) or (builds and bool(_DRIVER_POD_LOG_PATH.match(item.subject)))

    return _filter_items(snapshot, is_kept)


def _filter_items(snapshot: Snapshot, is_kept: Callable[[EvidenceItem], bool]) -> Snapshot:
    # A log without a line proves nothing; leaving it saves examining the node twice.
    if all(is_kept(item) or not item.text for item in snapshot.items):
        return snapshot
    items, whole = (tuple(filter(is_kept, every)) for every in (snapshot.items, snapshot.all_items))
    return snapshot.with_items(items, whole, snapshot.current_items)
