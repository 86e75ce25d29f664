"""What containers and people say of the node: whoever may run a pod writes its log, so it proves nothing against it.

A node that was looked at speaks for itself: its kernel log, its bus, its modules and packages. What a pod's log says of
these is heard only where nobody looked at the node, as in a report that holds nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from gpunode.diagnoses.model import Citation, Layer
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import driver, modules
from gpunode.facts.items import Item
from gpunode.facts.machines import ON_HOST
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import Kind
from gpunode.facts.speakers import is_persons

# What the node itself shows: its hardware, kernel, driver and packages. The other layers are seen from containers too.
OF_NODE: Final[frozenset[Layer]] = frozenset(
    {"hardware", "pci", "power-thermal", "kernel", "package", "driver", "nvlink"}
)
# They repeat what an image calls its program, and what a container said when it ended.
_REPEATING: Final[frozenset[Kind]] = frozenset({"kubernetes-pod", "container-run", "container-inspect"})
_DAEMON: Final = Pattern(r"(?:docker|containerd|crio|kubelet|podman|k3s|k3s-agent|rke2-server|rke2-agent)\.service")
_POD_LOG: Final = Pattern(r"/var/log/(?:pods|containers)/(?P<namespace>[^/_]+)_(?P<pod>[^/_]+)_")
# The operator's pods that build and load the driver where the node has none of its own.
_DRIVER_POD: Final = Pattern(r"nvidia-(?:gpu-)?driver-|nvidia-vgpu-manager-")


def is_of_container(item: Item) -> bool:
    """Whether a container said it."""
    return item.where == "container" or item.kind == "kubernetes-log" or "/var/log/pods/" in item.written


def _repeats_containers(item: Item) -> bool:
    is_daemon = item.kind == "unit-log" and _DAEMON.fullmatch(item.subject) is not None
    return is_daemon or item.kind in _REPEATING


def was_looked_at(snapshot: Snapshot) -> bool:
    """Whether the node itself was examined, and not only what somebody pasted."""
    return isinstance(snapshot.facts.modules, Known)


def node_alone(snapshot: Snapshot) -> Snapshot:
    """What the node shows of itself, without what containers said and daemons repeat of it.

    All there is where the node was not looked at.
    """
    return snapshot.view(_node_alone)


def without_containers(snapshot: Snapshot, *, of_node: bool) -> Snapshot:
    """Without what containers said; all there is where none said anything, or nobody looked at the node.

    Of its own layers a node speaks in a pasted report as well, where nvidia-smi works on it.
    """
    if was_looked_at(snapshot) or (of_node and driver.works(snapshot)):
        return snapshot.view(_without_containers)
    return snapshot


def _node_alone(snapshot: Snapshot) -> Snapshot:
    # Where the driver is a container's business, so is the reason why it is missing.
    builds = modules.loaded(snapshot, "nvidia") is not True
    if not was_looked_at(snapshot):
        return snapshot
    return _kept(
        snapshot,
        lambda item: not (is_of_container(item) or _repeats_containers(item)) or (builds and _is_of_driver(item)),
    )


def _without_containers(snapshot: Snapshot) -> Snapshot:
    return _kept(snapshot, lambda item: not is_of_container(item))


def _kept(snapshot: Snapshot, is_kept: Callable[[Item], bool]) -> Snapshot:
    if all(map(is_kept, snapshot.items)):
        return snapshot
    items, whole = (tuple(filter(is_kept, every)) for every in (snapshot.items, snapshot.whole))
    return Snapshot(items, snapshot.facts, whole, snapshot.now)


def _is_of_driver(item: Item) -> bool:
    match = _POD_LOG.match(item.subject)
    return match is not None and _DRIVER_POD.match(match["pod"]) is not None


def is_of_people(snapshot: Snapshot, citations: Iterable[Citation]) -> bool:
    """Whether persons alone say what is cited: what they read, fear or ask is no message."""
    items = snapshot.view(_by_place)
    cited = [(items.get((one.key, one.source)), one.line) for one in citations]
    return bool(cited) and all(item and is_persons(item.source, item.written, line) for item, line in cited)


def is_of_another_host(snapshot: Snapshot, citations: Iterable[Citation]) -> bool:
    """Whether what is cited comes from one host, by its source, and other evidence from another."""
    hosts = {_host(item.written) for item in snapshot.items}
    return len(hosts) > 1 and any(_host(one.source) for one in citations)


def _host(written: str) -> str:
    match = ON_HOST.search(written)
    return match["host"].lower() if match else ""


def _by_place(snapshot: Snapshot) -> Mapping[tuple[str, str], Item]:
    return {(item.key, item.written): item for item in snapshot.items}


def speaker(snapshot: Snapshot, citations: Iterable[Citation]) -> str:
    """Which container said what is cited; some, where none of its lines is."""
    spoken = {(item.key, item.written): item for item in snapshot.items if is_of_container(item)}
    cited = (spoken[place] for one in citations if (place := (one.key, one.source)) in spoken)
    return next((_called(item) for item in cited), "what containers say")


def _called(item: Item) -> str:
    if match := _POD_LOG.match(item.subject):
        return f"the log of pod {match['namespace']}/{match['pod']}"
    return item.written
