"""Whether the GPUs are healthy to the device plugin: by its own words, and by what the node can still give out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import kube
from gpunode.diagnoses.views.kube import Amount
from gpunode.facts.patterns import Pattern

_UNHEALTHY: Final = Pattern(
    r"marked unhealthy|(?:will go|is|went|as) unhealthy|Marking (?:it|device|.{0,60}) (?:as )?unhealthy"
    r"|XidCriticalError|device went unhealthy",
    re.IGNORECASE,
)
_OF_GPU: Final = Pattern(r"GPU|MIG-|nvidia|Xid|all devices")
# The kubelet's words, where it refuses a pod.
_NONE_HEALTHY: Final = Pattern(r"no healthy devices present|cannot allocate unregistered device")


def said(snapshot: Snapshot) -> tuple[Citation, ...]:
    """What the plugin said of a GPU's health; the refusals of the kubelet are another matter."""
    found = snapshot.said(_UNHEALTHY)
    return tuple(one for one in found if _OF_GPU.search(one.line) and not _NONE_HEALTHY.search(one.line))


def is_unhealthy(snapshot: Snapshot) -> bool:
    """Whether the plugin calls any GPU unhealthy."""
    return bool(snapshot.view(said)) or any(fewer(snapshot))


class Fewer(NamedTuple):
    """A resource of which a node has more than can be given out."""

    name: str
    capacity: Amount
    healthy: Amount


def fewer(snapshot: Snapshot) -> Iterator[Fewer]:
    """The resources of which some devices are unhealthy to the plugin."""
    for node in snapshot.view(kube.nodes):
        both = ((name, capacity, node.allocatable.get(name)) for name, capacity in node.capacity.items())
        yield from (Fewer(name, all_, well) for name, all_, well in both if well and well.value < all_.value)


def all_are_offered(snapshot: Snapshot) -> bool:
    """Whether the only node that is shown offers GPUs, all of them well: then older words of the plugin are past."""
    nodes = [node for node in snapshot.view(kube.nodes) if node.capacity or node.allocatable]
    offered = {name: amount.value for node in nodes for name, amount in node.allocatable.items()}
    all_well = all(offered.get(name, 0) >= amount.value for node in nodes for name, amount in node.capacity.items())
    return len(nodes) == 1 and all_well and any(offered.values())
