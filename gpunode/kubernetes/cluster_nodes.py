"""GPU nodes by their Nodes' labels, for hosts without a capture, and what their providers install. Pure.

Sources: NVIDIA/k8s-device-plugin docs/gpu-feature-discovery; node-feature-discovery, "Feature labels"; the labels that
GKE, EKS, AKS and OpenShift document for their nodes; the version suffixes of k3s, RKE2 and k0s kubelets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from gpunode.catalog.gpus import GpuModel, find_by_label
from gpunode.command import sudo_gpunode
from gpunode.errors import Refused, Undetermined
from gpunode.facts.machine import PROVIDER_NAMES
from gpunode.facts.model import KubeletKind, KubernetesProvider
from gpunode.kubernetes.model import GPU_PRESENT_LABEL, Body, ClusterNode
from gpunode.recipe.kubernetes import Kubernetes

# The providers that run a device plugin on their nodes, with what to do instead of running a second one.
# Sources: bottlerocket.dev, "Settings Reference: kubelet-device-plugins"; docs.nvidia.com, "NVIDIA GPU Operator on Red
# Hat OpenShift".
_PROVIDER_PLUGIN_REFUSALS: Final[Mapping[KubernetesProvider, tuple[str, str]]] = {
    "openshift": (
        "the NVIDIA GPU Operator of OperatorHub installs the device plugin, with the rights that OpenShift requires",
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


# GKE runs no device plugin in a node pool with this label.
GKE_PLUGIN_OPT_OUT_LABEL: Final = "gke-no-default-nvidia-gpu-device-plugin=true"
# GKE installs the driver here; its host is otherwise read-only, so the operator installs the toolkit here as well.
GKE_DRIVER_FOLDER: Final = "/home/kubernetes/bin/nvidia"


def refuse_provider_nodes(desired: Kubernetes, nodes: Sequence[ClusterNode]) -> None:
    """Refuse nodes whose provider installs the device plugin.

    Raises:
        Refused: a provider does, or its container runtime does not fit the recipe.
    """
    for node in nodes:
        if node.provider is not None and node.provider in _PROVIDER_PLUGIN_REFUSALS:
            why, hint = _PROVIDER_PLUGIN_REFUSALS[node.provider]
            raise Refused(
                f"{node.name} is {PROVIDER_NAMES[node.provider]}, and gpunode leaves it alone", why=why, hint=hint
            )
        if node.provider == "gke":
            _refuse_gke(desired, node)
        if node.provider == "aks":
            _refuse_aks(desired, node)


def is_gke(nodes: Sequence[ClusterNode]) -> bool:
    """Return whether the nodes are GKE's; in one cluster either all are or none."""
    return any(node.provider == "gke" for node in nodes)


def _refuse_gke(desired: Kubernetes, node: ClusterNode) -> None:
    """Refuse a GKE node that runs GKE's device plugin, or a stack other than the GPU Operator.

    Sources: cloud.google.com/kubernetes-engine/docs/how-to/{gpus,gpu-operator}; docs.nvidia.com, "Google GKE".
    """
    if "device-plugin" in node.provides:
        raise Refused(
            f"{node.name} is {PROVIDER_NAMES['gke']}, and gpunode leaves it alone",
            why="GKE runs its own device plugin on every GPU node without the label that opts out of it",
            hint="let pods ask for nvidia.com/gpu; sharing is a setting of the node pool, such as "
            "--accelerator=…,gpu-sharing-strategy=time-sharing,max-shared-clients-per-gpu=4\n"
            f"or create the node pool with --node-labels={GKE_PLUGIN_OPT_OUT_LABEL}, and use the recipe gpu-operator",
        )
    if desired.stack != "gpu-operator":
        raise Refused(
            f"on the GKE node {node.name} only the GPU Operator can replace GKE's device plugin",
            why="GKE's containerd has no NVIDIA runtime, and gpunode cannot set up a host that GKE builds",
            hint='use stack = "gpu-operator", which installs the runtime',
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


_GPU_PRODUCT_LABEL: Final = "nvidia.com/gpu.product"
_GPU_COUNT_LABEL: Final = "nvidia.com/gpu.count"
# A kubelet can set this label of its node to any value.
_MAX_COUNT_DIGITS: Final = 3
_DRIVER_VERSION_LABEL: Final = "nvidia.com/cuda.driver-version.full"
# NFD labels a PCI device by its vendor, with or without its class.
_NVIDIA_PCI_LABEL: Final = re.compile(r"feature\.node\.kubernetes\.io/pci-(?:03\d\d_)?10de\.present")
_KUBELET_VERSION_MARKS: Final[Mapping[str, KubeletKind]] = {"+k3s": "k3s", "+rke2": "rke2", "+k0s": "k0s"}
_PROVIDER_BY_LABEL_PREFIX: Final[Mapping[str, KubernetesProvider]] = {
    "cloud.google.com/gke-": "gke",
    "eks.amazonaws.com/": "eks",
    "kubernetes.azure.com/": "aks",
    "node.openshift.io/": "openshift",
}
_MAX_NODES_SHOWN: Final = 5


def nodes_from_labels(nodes: Sequence[Body]) -> tuple[ClusterNode, ...]:
    """Return the nodes with GPUs, as GPU Feature Discovery labelled them.

    Raises:
        Undetermined: no Node has GPU labels, or one lacks a label that is needed.
    """

    def has_gpus(labels: Mapping[str, str]) -> bool:
        is_said = labels.get(GPU_PRESENT_LABEL) == "true" or labels.get(_GPU_COUNT_LABEL, "0") != "0"
        return is_said or any(_NVIDIA_PCI_LABEL.fullmatch(name) and value == "true" for name, value in labels.items())

    with_gpus = {str(node["metadata"]["name"]): node for node in nodes if has_gpus(node["metadata"].get("labels", {}))}
    if not with_gpus:
        raise Undetermined(
            "no Node of this cluster is labelled as having an NVIDIA GPU",
            why=f"none has the label {GPU_PRESENT_LABEL}, a label of GPU Feature Discovery, or the label of Node "
            "Feature Discovery for a PCI device of NVIDIA",
            hint=_capture_hint("GPU-NODE"),
        )
    nodes_by_name = {name: _node_from_labels(name, one) for name, one in with_gpus.items()}
    incomplete = {name: one for name, one in nodes_by_name.items() if isinstance(one, str)}
    if incomplete:
        reasons = "; ".join(f"{name}: {why}" for name, why in [*incomplete.items()][:_MAX_NODES_SHOWN])
        more = f"; and {len(incomplete) - _MAX_NODES_SHOWN} more" if len(incomplete) > _MAX_NODES_SHOWN else ""
        raise Undetermined(
            "the labels of the Nodes do not show which GPUs they have",
            why=f"{reasons}{more}",
            hint=_capture_hint(next(iter(incomplete))),
        )
    return tuple(node for node in nodes_by_name.values() if isinstance(node, ClusterNode))


def _capture_hint(name: str) -> str:
    return (
        f"save each GPU node there, such as {name}: {sudo_gpunode('capture', f'{name}.tar.gz')}\n"
        f"then name the captures here: --node {name}.tar.gz"
    )


def _node_from_labels(name: str, live: Body) -> ClusterNode | str:
    """Return the node, or why its labels do not suffice."""
    labels = live["metadata"].get("labels", {})
    info = live.get("status", {}).get("nodeInfo", {})
    signs = (who for sign, who in _PROVIDER_BY_LABEL_PREFIX.items() if any(label.startswith(sign) for label in labels))
    provider = next(signs, None)
    if str(live.get("spec", {}).get("providerID", "")).startswith("kind://"):
        provider = "kind"
    elif "Bottlerocket" in str(info.get("osImage", "")):
        provider = "bottlerocket"
    gpus = _gpus_from_labels(labels)
    if isinstance(gpus, str):
        return gpus
    if provider == "aks":
        return "they do not show whether AKS installed its driver"
    is_managed = provider == "gke" and GKE_PLUGIN_OPT_OUT_LABEL not in {
        f"{key}={value}" for key, value in labels.items()
    }
    version, runtime = str(info.get("kubeletVersion", "")), str(info.get("containerRuntimeVersion", ""))
    kubelet: KubeletKind = next((kind for sign, kind in _KUBELET_VERSION_MARKS.items() if sign in version), "kubelet")
    if any(label.startswith("microk8s.io/") for label in labels):
        kubelet = "microk8s"
    # The defaults; in containerd 1.7 the configuration decides.
    reads_cdi = None if runtime.startswith("containerd://1.7.") else runtime.startswith(("containerd://2.", "cri-o://"))
    return ClusterNode(
        name,
        gpus,
        driver=labels.get(_DRIVER_VERSION_LABEL, ""),
        kubelet=kubelet,
        # GPU Feature Discovery reads NVML in a container, which needs NVIDIA's runtime.
        toolkit=True,
        reads_cdi=reads_cdi,
        provider=provider,
        provides=frozenset({"device-plugin"} if is_managed else ()),
    )


def _gpus_from_labels(labels: Mapping[str, str]) -> tuple[GpuModel, ...] | str:
    product, count = labels.get(_GPU_PRODUCT_LABEL, ""), labels.get(_GPU_COUNT_LABEL, "")
    if not product or not (count.isascii() and count.isdigit()):
        return f"it lacks {_GPU_PRODUCT_LABEL} and {_GPU_COUNT_LABEL}, which GPU Feature Discovery sets"
    if "-MIG-" in product:
        return f"{_GPU_PRODUCT_LABEL} counts MIG instances, not GPUs"
    if len(count) > _MAX_COUNT_DIGITS:
        return f"{_GPU_COUNT_LABEL} is {count[:20]}, which no node has"
    model = find_by_label(product.removesuffix("-SHARED"))
    return (model,) * int(count) if model else f"gpunode knows no GPU that is labelled {product}"
