"""Nodes inside containers: clusters of minikube, kind and k3d, whose runtime is not the one of the host."""

from __future__ import annotations

from typing import Final

from gpunode.diagnoses.model import Sign
from gpunode.diagnoses.signs import any_line, any_of, command_run, unless

# `minikube start` makes a container of its own kind unless told to use the host itself or a virtual machine.
_MADE: Final = (
    r"\bminikube\s+start\b|\bkind\s+create\s+cluster\b|\bk3d\s+cluster\s+create\b|\bkindest/node\b|\bkicbase\b"
    r"|\bnvkind\s+cluster\b|kind\.x-k8s\.io/|providerID:\s*kind://|ghcr\.io/k3d-io|Using (?:the )?docker driver"
    r"|\bdocker:[\w.-]*dind\b|\btcp://(?:docker|dind):237[56]|docker exec (?:-\w+ )*minikube\b|minikube ssh\b"
    r"|(?:^|[\s/=\"'])(?:minikube/\d|kind-(?:worker|control-plane)|k3d-[\w-]+-(?:server|agent)-\d)|docker@minikube"
    r"|^(?:Name:\s+)?(?:minikube(?:-m\d+)?|(?:desktop|kind[\w-]*)-(?:control-plane|worker)\d*)(?:\s+\S*Ready\b|\s*$)"
)
_NOT_NESTED: Final = (
    r"--(?:vm-)?driver[= ](?:none|kvm2?|virtualbox|vmware|qemu\d?|hyperv)\b|\bminikube\s+start\b.{0,200}--gpus?[= ]\S"
)


def _any_mention(pattern: str) -> Sign:
    return any_of(command_run(pattern), any_line(pattern))


NODE: Final = unless(_any_mention(_MADE), _any_mention(_NOT_NESTED))
"""That the cluster's node is a container on this host, and nothing was done to give it the GPUs."""
