"""Detect evidence from inside a container, whose libraries, packages and devices are not the node's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpunode.diagnoses.model import Citation, Sign
from gpunode.diagnoses.signs import any_line, any_of, command_run, unless
from gpunode.diagnoses.snapshot import Snapshot, cite, cite_fact
from gpunode.diagnoses.views import system
from gpunode.facts.model import Known

# Files that an engine creates in the container's root.
_CONTAINER_MARK_FILES: Final = ("/.dockerenv", "/run/.containerenv")
_CONTAINER_VIRTUALIZATIONS: Final = frozenset({"docker", "podman", "lxc", "lxc-libvirt"})


def container_marks(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the evidence of a container; a node of kind, which is itself a container, does not count."""
    if snapshot.view(NODE_IN_CONTAINER) or system.is_wsl(snapshot):
        return
    platform = snapshot.facts.platform
    if isinstance(platform, Known) and platform.value.kind == "container":
        yield cite_fact("systemd-detect-virt", platform.value.detail or "a container", platform.probe)
    for item in snapshot.items:
        if item.where != "host" or item.outcome != "ok" or not item.text.strip():
            continue  # a probe that looked for the file and found nothing
        is_mark = item.subject in _CONTAINER_MARK_FILES or any(
            path in item.source.words for path in _CONTAINER_MARK_FILES
        )
        is_named = item.kind == "virtualization" and item.text.strip() in _CONTAINER_VIRTUALIZATIONS
        if is_named or (is_mark and item.kind in {"listing", "file"}):
            yield cite(item, 1)


# `minikube start` creates a container as its node unless told to use the host itself or a virtual machine.
_NESTED_CLUSTER_COMMAND: Final = (
    r"\bminikube\s+start\b|\bkind\s+create\s+cluster\b|\bk3d\s+cluster\s+create\b|\bkindest/node\b|\bkicbase\b"
    r"|\bnvkind\s+cluster\b|kind\.x-k8s\.io/|providerID:\s*kind://|ghcr\.io/k3d-io|Using (?:the )?docker driver"
    r"|\bdocker:[\w.-]*dind\b|\btcp://(?:docker|dind):237[56]|docker exec (?:-\w+ )*minikube\b|minikube ssh\b"
    r"|(?:^|[\s/=\"'])(?:minikube/\d|kind-(?:worker|control-plane)|k3d-[\w-]+-(?:server|agent)-\d)|docker@minikube"
    r"|^(?:Name:\s+)?(?:minikube(?:-m\d+)?|(?:desktop|kind[\w-]*)-(?:control-plane|worker)\d*)(?:\s+\S*Ready\b|\s*$)"
)
_NOT_NESTED_OPTION: Final = (
    r"--(?:vm-)?driver[= ](?:none|kvm2?|virtualbox|vmware|qemu\d?|hyperv)\b|\bminikube\s+start\b.{0,200}--gpus?[= ]\S"
)


def _any_mention(pattern: str) -> Sign:
    return any_of(command_run(pattern), any_line(pattern))


NODE_IN_CONTAINER: Final = unless(_any_mention(_NESTED_CLUSTER_COMMAND), _any_mention(_NOT_NESTED_OPTION))
"""The cluster's node is a container on this host, and nothing gives it the GPUs."""
