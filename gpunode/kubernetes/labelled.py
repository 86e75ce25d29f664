"""GPU nodes as their Nodes tell them, where nobody captured the hosts. Pure.

Sources: NVIDIA/k8s-device-plugin docs/gpu-feature-discovery; node-feature-discovery, "Feature labels"; the labels that
GKE, EKS, AKS and OpenShift document for their nodes; the versions that k3s, RKE2 and k0s give their kubelets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from gpunode.catalog.gpus import GpuModel, by_label
from gpunode.command import sudo_gpunode
from gpunode.errors import Undetermined
from gpunode.facts.model import KubeletKind, Provider
from gpunode.kubernetes.managed import GKE_OPT_OUT
from gpunode.kubernetes.model import GPU_PRESENT, ClusterNode

Body: TypeAlias = Mapping[str, Any]
_PRODUCT: Final = "nvidia.com/gpu.product"
_COUNT: Final = "nvidia.com/gpu.count"
# The kubelet may set this label of its node to anything.
_MOST_DIGITS: Final = 3
_DRIVER: Final = "nvidia.com/cuda.driver-version.full"
# NFD names a PCI device by its vendor, with or without its class.
_PCI: Final = re.compile(r"feature\.node\.kubernetes\.io/pci-(?:03\d\d_)?10de\.present")
_KUBELETS: Final[Mapping[str, KubeletKind]] = {"+k3s": "k3s", "+rke2": "rke2", "+k0s": "k0s"}
_PROVIDERS: Final[Mapping[str, Provider]] = {
    "cloud.google.com/gke-": "gke",
    "eks.amazonaws.com/": "eks",
    "kubernetes.azure.com/": "aks",
    "node.openshift.io/": "openshift",
}
_SHOWN: Final = 5


def labelled(nodes: Sequence[Body]) -> tuple[ClusterNode, ...]:
    """The nodes with GPUs, as GPU Feature Discovery labelled them.

    Raises:
        Undetermined: no Node says that it has GPUs, or one does not say all that is needed.
    """
    with_gpus = {str(one["metadata"]["name"]): one for one in nodes if _has_gpus(_labels(one))}
    if not with_gpus:
        raise Undetermined(
            "no Node of this cluster says that it has an NVIDIA GPU",
            why=f"none has the label {GPU_PRESENT}, one of GPU Feature Discovery, or Node Feature Discovery's of a PCI "
            "device of NVIDIA",
            hint=_capture("GPU-NODE"),
        )
    found = {name: _node(name, one) for name, one in with_gpus.items()}
    unclear = {name: one for name, one in found.items() if isinstance(one, str)}
    if unclear:
        told = "; ".join(f"{name}: {why}" for name, why in [*unclear.items()][:_SHOWN])
        more = f"; and {len(unclear) - _SHOWN} more" if len(unclear) > _SHOWN else ""
        raise Undetermined(
            "the labels of the Nodes do not say which GPUs they have",
            why=f"{told}{more}",
            hint=_capture(next(iter(unclear))),
        )
    return tuple(one for one in found.values() if isinstance(one, ClusterNode))


def _capture(name: str) -> str:
    return (
        f"save each GPU node there, such as {name}: {sudo_gpunode('capture', f'{name}.tar.gz')}\n"
        f"then name the captures here: --node {name}.tar.gz"
    )


def _labels(live: Body) -> Mapping[str, str]:
    found: Mapping[str, str] = live["metadata"].get("labels", {})
    return found


def _has_gpus(labels: Mapping[str, str]) -> bool:
    is_said = labels.get(GPU_PRESENT) == "true" or labels.get(_COUNT, "0") != "0"
    return is_said or any(_PCI.fullmatch(name) and value == "true" for name, value in labels.items())


def _node(name: str, live: Body) -> ClusterNode | str:
    """The node; or why its labels do not suffice."""
    labels = _labels(live)
    provider = _provider(live)
    gpus = _gpus(labels)
    if isinstance(gpus, str):
        return gpus
    if provider == "aks":
        return "they do not say whether AKS installed its driver"
    theirs = provider == "gke" and GKE_OPT_OUT not in {f"{key}={value}" for key, value in labels.items()}
    return ClusterNode(
        name,
        gpus,
        driver=labels.get(_DRIVER, ""),
        kubelet=_kubelet(live),
        # GPU Feature Discovery reads NVML in a container, which NVIDIA's runtime gave it.
        toolkit=True,
        reads_cdi=_reads_cdi(live),
        provider=provider,
        provides=frozenset({"device-plugin"} if theirs else ()),
    )


def _gpus(labels: Mapping[str, str]) -> tuple[GpuModel, ...] | str:
    product, count = labels.get(_PRODUCT, ""), labels.get(_COUNT, "")
    if not product or not (count.isascii() and count.isdigit()):
        return f"it lacks {_PRODUCT} and {_COUNT}, which GPU Feature Discovery sets"
    if "-MIG-" in product:
        return f"{_PRODUCT} counts MIG instances, not GPUs"
    if len(count) > _MOST_DIGITS:
        return f"{_COUNT} is {count[:20]}, which no node has"
    model = by_label(product.removesuffix("-SHARED"))
    return (model,) * int(count) if model else f"gpunode knows no GPU that is labelled {product}"


def _kubelet(live: Body) -> KubeletKind:
    if any(name.startswith("microk8s.io/") for name in _labels(live)):
        return "microk8s"
    version = str(live.get("status", {}).get("nodeInfo", {}).get("kubeletVersion", ""))
    return next((kind for sign, kind in _KUBELETS.items() if sign in version), "kubelet")


def _reads_cdi(live: Body) -> bool | None:
    """Return whether its container runtime reads CDI devices by default; None where its configuration decides."""
    version = str(live.get("status", {}).get("nodeInfo", {}).get("containerRuntimeVersion", ""))
    if version.startswith("containerd://1.7."):
        return None
    return version.startswith(("containerd://2.", "cri-o://"))


def _provider(live: Body) -> Provider | None:
    if str(live.get("spec", {}).get("providerID", "")).startswith("kind://"):
        return "kind"
    if "Bottlerocket" in str(live.get("status", {}).get("nodeInfo", {}).get("osImage", "")):
        return "bottlerocket"
    return next((who for sign, who in _PROVIDERS.items() if any(one.startswith(sign) for one in _labels(live))), None)
