"""Nodes inside containers: clusters of minikube, kind and k3d, whose runtime is not the one of the host."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, lines_with, stated
from gpunode.diagnoses.views import kube
from gpunode.facts.patterns import Pattern

# `minikube start` makes a container of its own kind unless told to use the host itself or a virtual machine.
_MADE: Final = Pattern(
    r"\bminikube\s+start\b|\bkind\s+create\s+cluster\b|\bk3d\s+cluster\s+create\b|\bkindest/node\b|\bkicbase\b"
    r"|\bnvkind\s+cluster\b|kind\.x-k8s\.io/|providerID:\s*kind://|ghcr\.io/k3d-io|Using (?:the )?docker driver"
    r"|\bdocker:[\w.-]*dind\b|\btcp://(?:docker|dind):237[56]|docker exec (?:-\w+ )*minikube\b|minikube ssh\b"
    r"|(?:^|[\s/=\"'])(?:minikube/\d|kind-(?:worker|control-plane)|k3d-[\w-]+-(?:server|agent)-\d)|docker@minikube",
    re.IGNORECASE | re.MULTILINE,
)
_NODE_NAME: Final = Pattern(
    r"(?:desktop-(?:control-plane|worker\d*)|minikube(?:-m\d+)?|kind(?:-[\w-]+)?-(?:worker\d*|control-plane\d*)"
    r"|k3d-[\w-]+-(?:server|agent)-\d+)"
)
_ROW: Final = Pattern(rf"^{_NODE_NAME.pattern}\s+\S*Ready", re.MULTILINE)
_NOT_NESTED: Final = Pattern(r"--(?:vm-)?driver[= ](?:none|kvm2?|virtualbox|vmware|qemu\d?|hyperv)\b")
_PASSED: Final = Pattern(r"\bminikube\s+start\b[^\n]{0,200}--gpus?[= ]\S+")


def signs(snapshot: Snapshot) -> tuple[Citation, ...]:
    """What shows that the cluster's node is a container on this host."""
    return () if _is_typed(snapshot, _NOT_NESTED) else tuple(dict.fromkeys(_signs(snapshot)))


def is_nested(snapshot: Snapshot) -> bool:
    """Whether the node is a container on this host, and nothing was done to give it the GPUs."""
    return bool(snapshot.view(signs)) and not _is_typed(snapshot, _PASSED)


def _is_typed(snapshot: Snapshot, pattern: Pattern) -> bool:
    """Whether it stands in a command that was typed, as a source or in what was pasted."""
    return any(pattern.search(item.written) for item in snapshot.items) or snapshot.says(pattern)


def _signs(snapshot: Snapshot) -> Iterator[Citation]:
    for item in snapshot.items:
        if item.kind not in {"nvml", "packages", "listing", "kernel-log", "journal"} and _MADE.search(item.written):
            yield stated(item.written, "that was run", item.key)
    for item in snapshot.of("file"):
        # What a cluster or a pipeline is made from.
        if item.subject.endswith((".yaml", ".yml")):
            yield from tuple(lines_with(item, _MADE))[:1]
    yield from (*snapshot.said(_MADE)[:3], *snapshot.said(_ROW, "kubernetes-node", "text"))
    for node in snapshot.view(kube.nodes):
        if _NODE_NAME.fullmatch(node.name):
            yield node.citation
