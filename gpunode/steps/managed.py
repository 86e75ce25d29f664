"""Nodes whose host a provider builds: gpunode leaves its driver and toolkit alone, and sets up the rest."""

from __future__ import annotations

from typing import Final

from gpunode.catalog.conflicts import driver_packages
from gpunode.command import gpunode_command
from gpunode.facts.machine import PROVIDER_NAMES
from gpunode.facts.model import Facts, KubernetesProvider, Unknown, value_or
from gpunode.outcome import Refusal

# Why a provider's host is left alone, and what to do instead.
# Sources: cloud.google.com/kubernetes-engine/docs/how-to/gpus, "Create a GPU node pool"; docs.openshift.com, "Machine
# configuration", and docs.nvidia.com, "NVIDIA GPU Operator on Red Hat OpenShift"; bottlerocket.dev, "Design".
_UNSUPPORTED_PROVIDERS: Final[dict[KubernetesProvider, tuple[str, str]]] = {
    "gke": (
        "GKE installs the driver and the device plugin itself, and replaces its nodes when it upgrades or repairs them",
        (
            "let GKE install the driver: gcloud container node-pools create with "
            "--accelerator=type=TYPE,count=N,gpu-driver-version=latest"
        ),
    ),
    "openshift": (
        "the Machine Config Operator manages this system, and reports every other change as drift",
        (
            "install the Node Feature Discovery Operator and the NVIDIA GPU Operator from OperatorHub: "
            "they install driver, toolkit and device plugin"
        ),
    ),
    "bottlerocket": (
        "its root file system is read-only",
        "use an NVIDIA variant of Bottlerocket: it has driver, toolkit and device plugin",
    ),
}
# Sources: docs.aws.amazon.com/eks, "Use EKS-optimized accelerated AMIs for GPU instances", and eksctl's "GPU Support":
# Ubuntu's AMIs have no driver; learn.microsoft.com/azure/aks/use-nvidia-gpu, "Skip GPU driver installation".
_DRIVER_ADVICE_BY_PROVIDER: Final[dict[KubernetesProvider, str]] = {
    "eks": "its AMI has driver and toolkit, so there is nothing to set up here; to bring your own driver, use an AMI "
    "without one, such as Ubuntu's for EKS",
    "aks": "AKS installed driver and toolkit, so there is nothing to set up here; to bring your own driver, create the "
    "node pool with `az aks nodepool add --gpu-driver none`",
}


def find_managed_host_refusal(facts: Facts) -> Refusal | None:
    """Return the refusal of a host that its provider sets up; None if its owner does."""
    provider = value_or(facts.provider, None)
    if provider is None:
        return None
    if provider in _UNSUPPORTED_PROVIDERS:
        why, hint = _UNSUPPORTED_PROVIDERS[provider]
        return Refusal(f"this is {PROVIDER_NAMES[provider]}, and gpunode leaves its host alone", why, hint)
    if has_providers_driver(facts):
        return Refusal(
            f"this is {PROVIDER_NAMES[provider]} with a driver of its provider, and gpunode leaves both alone",
            "a driver is loaded that belongs to no installed package",
            f"{_DRIVER_ADVICE_BY_PROVIDER[provider]}\nrender the device plugin, which the provider leaves to you: "
            f"{gpunode_command('k8s', 'render', 'k8s-containerd')}",
        )
    return None


def has_providers_driver(facts: Facts) -> bool:
    """Return True if the loaded driver comes from the node's provider, and not from a package."""
    loaded, packages = value_or(facts.loaded_driver, None), facts.packages
    if value_or(facts.provider, None) not in _DRIVER_ADVICE_BY_PROVIDER or loaded is None:
        return False
    return isinstance(packages, Unknown) or not driver_packages(packages.value)


def node_replacement_notes(facts: Facts) -> tuple[str, ...]:
    """Return a note if the provider replaces nodes regardless of their setup."""
    provider = value_or(facts.provider, None)
    if provider is None or provider not in _DRIVER_ADVICE_BY_PROVIDER:
        return ()
    name = provider.upper()
    return (f"this is {PROVIDER_NAMES[provider]}: {name} replaces upgraded nodes, so run setup on each new node",)
