"""View the container runtime of the node's containers."""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.snapshot import Snapshot
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern

# The ids of gpunode's own rows of runtimes.
Engine: TypeAlias = Literal["docker", "containerd", "crio", "podman"]

# The daemon's own words before those of any of its callers; kubectl alone tells nothing but that there are pods.
_WORDS: Final[tuple[tuple[Engine, Pattern], ...]] = (
    ("crio", Pattern(r"\bcri-o\b|\bcrio\b|/etc/crio/", re.IGNORECASE)),
    (
        "docker",
        Pattern(r"Error response from daemon|\bdockerd\b|/etc/docker/|\bdocker(?:: Error| (?:run|info|compose|ps)\b)"),
    ),
    ("podman", Pattern(r"\bpodman\b")),
    ("containerd", Pattern(r"\bcontainerd\b|\bnerdctl\b|\bk3s\b|\brke2\b|\bkubelet\b|\bkubectl\b")),
    ("docker", Pattern(r"\bdocker\b")),
)


def container_engine(snapshot: Snapshot) -> Engine:
    """Return the runtime that containers ask for GPUs; docker, the commonest, where nothing speaks of any."""
    kubelet = snapshot.facts.kubelet
    if isinstance(kubelet, Known) and kubelet.value is not None:
        return "crio" if "crio" in kubelet.value.socket else "containerd"
    for found, pattern in _WORDS:
        if any(pattern.search(item.text) or pattern.search(item.written) for item in snapshot.items if item.is_seen):
            return found
    return "docker"
