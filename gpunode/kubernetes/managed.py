"""Nodes whose provider offers their GPUs to pods itself, or restricts how that is done. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gpunode.errors import Refused
from gpunode.facts.model import Provider
from gpunode.facts.platform import PROVIDERS
from gpunode.kubernetes.model import ClusterNode
from gpunode.recipe.kubernetes import Kubernetes

# Who runs a device plugin on its nodes, and what to do instead of a second one.
# Sources: bottlerocket.dev, "Settings Reference: kubelet-device-plugins"; docs.nvidia.com, "NVIDIA GPU Operator on Red
# Hat OpenShift".
_PROVIDER_PLUGINS: Final[Mapping[Provider, tuple[str, str]]] = {
    "openshift": (
        "the NVIDIA GPU Operator of OperatorHub brings the device plugin, with the rights that OpenShift demands",
        (
            "install the Node Feature Discovery Operator and the NVIDIA GPU Operator from OperatorHub; sharing and MIG "
            "are set in its ClusterPolicy"
        ),
    ),
    "bottlerocket": (
        "Bottlerocket's NVIDIA variants run the device plugin as a service of the host",
        "let pods ask for nvidia.com/gpu; sharing is a setting of the node: settings.kubelet-device-plugins.nvidia",
    ),
}


# With this label of a node pool GKE runs no device plugin there.
GKE_OPT_OUT: Final = "gke-no-default-nvidia-gpu-device-plugin=true"
# Where GKE installs the driver, and where its read-only host lets the operator install the toolkit.
GKE_DRIVER: Final = "/home/kubernetes/bin/nvidia"


def refuse_managed(desired: Kubernetes, nodes: Sequence[ClusterNode]) -> None:
    """Refuse nodes whose provider installs the device plugin.

    Raises:
        Refused: if one does, or its provider's runtime does not fit the recipe.
    """
    for node in nodes:
        if node.provider is not None and node.provider in _PROVIDER_PLUGINS:
            why, hint = _PROVIDER_PLUGINS[node.provider]
            raise Refused(f"{node.name} is {PROVIDERS[node.provider]}, and gpunode leaves it alone", why=why, hint=hint)
        if node.provider == "gke":
            _refuse_gke(desired, node)
        if node.provider == "aks":
            _refuse_aks(desired, node)


def is_gke(nodes: Sequence[ClusterNode]) -> bool:
    """Return whether the nodes are GKE's; those of one cluster are all or none."""
    return any(node.provider == "gke" for node in nodes)


def _refuse_gke(desired: Kubernetes, node: ClusterNode) -> None:
    """Refuse a GKE node that runs GKE's device plugin, or a stack other than the GPU Operator.

    Sources: cloud.google.com/kubernetes-engine/docs/how-to/{gpus,gpu-operator}; docs.nvidia.com, "Google GKE".
    """
    if "device-plugin" in node.provides:
        raise Refused(
            f"{node.name} is {PROVIDERS['gke']}, and gpunode leaves it alone",
            why="GKE runs its own device plugin on every GPU node without the label that opts out of it",
            hint="let pods ask for nvidia.com/gpu; sharing is a setting of the node pool, such as "
            "--accelerator=…,gpu-sharing-strategy=time-sharing,max-shared-clients-per-gpu=4\n"
            f"or create the node pool with --node-labels={GKE_OPT_OUT}, and use the recipe gpu-operator",
        )
    if desired.stack != "gpu-operator":
        raise Refused(
            f"on the GKE node {node.name} only the GPU Operator can replace GKE's device plugin",
            why="GKE's containerd has no NVIDIA runtime, and gpunode cannot set up a host that GKE builds",
            hint='use stack = "gpu-operator", which brings the runtime',
        )


def _refuse_aks(desired: Kubernetes, node: ClusterNode) -> None:
    """Refuse an AKS node whose own driver, plugin or runtime does not fit the recipe.

    Sources: learn.microsoft.com/azure/aks/{use-nvidia-gpu,nvidia-gpu-operator}; Azure/AgentBaker baker.go.
    """
    own_driver = (
        "create the node pool with `az aks nodepool add --gpu-driver none`, then run gpunode setup on its nodes"
    )
    if "device-plugin" in node.provides:
        raise Refused(
            f"AKS runs the device plugin on {node.name} itself",
            why="nvidia-device-plugin.service is enabled there: its node pool has managed GPUs",
            hint=f"let pods ask for nvidia.com/gpu, or {own_driver}",
        )
    if "driver" not in node.provides:
        return
    if desired.stack == "gpu-operator":
        raise Refused(
            f"AKS installed the driver of {node.name}, which excludes the GPU Operator",
            why="the operator would replace the configuration of containerd that AKS wrote",
            hint=f'use stack = "device-plugin", or {own_driver}',
        )
    if desired.runtime_class and desired.stack in {"device-plugin", "hami"}:
        raise Refused(
            f'containerd on {node.name} has no runtime "nvidia"',
            why='AKS calls it "nvidia-container-runtime", and makes it the default runtime',
            hint='set runtime_class = "" in [kubernetes], and name = "none" in [runtime]',
        )
