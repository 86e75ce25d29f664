"""What containers say of the node: whoever may run a pod writes its log, so it proves nothing for certain.

A node that was looked at speaks for itself: of its own layers no container is heard. Where nobody looked at it, as in
a report that holds nothing else, all is heard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from gpunode.diagnoses.judging import is_examined
from gpunode.diagnoses.model import Citation, Layer
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import driver, modules
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern

# What the node itself shows: its hardware, kernel, driver and packages. The other layers are seen from containers too.
OF_NODE: Final[frozenset[Layer]] = frozenset(
    {"hardware", "pci", "power-thermal", "kernel", "package", "driver", "nvlink"}
)
# Containers may write into their journals, under the id or the tag that somebody chose for them.
_DAEMONS: Final = frozenset({"docker.service", "podman.service"})
_POD_LOG: Final = Pattern(r"/var/log/(?:pods|containers)/(?P<namespace>[^/_]+)_(?P<pod>[^/_]+)_")
# The operator's pods that build and load the driver where the node has none of its own.
_DRIVER_POD: Final = Pattern(r"^/var/log/(?:pods|containers)/[^/_]+_nvidia-(?:(?:gpu-)?driver|vgpu-manager)-")


def without_containers(snapshot: Snapshot, *, of_node: bool) -> Snapshot:
    """Without what containers said; all there is where none said anything, or nobody looked at the node.

    Of its own layers a node speaks in a pasted report as well, where nvidia-smi works on it.
    """
    if is_examined(snapshot) or (of_node and driver.works(snapshot)):
        return snapshot.view(_without_containers)
    return snapshot


def node_alone(snapshot: Snapshot) -> Snapshot:
    """What a node that was looked at shows of itself; all there is of any other."""
    return snapshot.view(_node_alone) if is_examined(snapshot) else snapshot


def speaker(snapshot: Snapshot, citations: Iterable[Citation]) -> str:
    """Which container said what is cited; some, where none of its lines is."""
    cited = {(one.key, one.source) for one in citations}
    said = (item for item in snapshot.items if _is_of_container(item) and (item.key, item.written) in cited)
    item = next(said, None)
    match = _POD_LOG.match(item.subject) if item else None
    if match:
        return f"the log of pod {match['namespace']}/{match['pod']}"
    return item.written if item else "what containers say"


def _is_of_container(item: Item) -> bool:
    return item.where == "container" or "/var/log/pods/" in item.written


def _without_containers(snapshot: Snapshot) -> Snapshot:
    return _kept(snapshot, lambda item: not _is_of_container(item))


def _node_alone(snapshot: Snapshot) -> Snapshot:
    # Where the driver is a container's business, so is the reason why it is missing.
    builds = modules.loaded(snapshot, "nvidia") is not True

    def is_kept(item: Item) -> bool:
        is_daemons = item.kind == "unit-log" and item.subject in _DAEMONS
        return not (is_daemons or _is_of_container(item)) or (builds and bool(_DRIVER_POD.match(item.subject)))

    return _kept(snapshot, is_kept)


def _kept(snapshot: Snapshot, is_kept: Callable[[Item], bool]) -> Snapshot:
    if all(map(is_kept, snapshot.items)):
        return snapshot
    items, whole = (tuple(filter(is_kept, every)) for every in (snapshot.items, snapshot.whole))
    return Snapshot(items, snapshot.facts, whole, snapshot.now)
