"""What is known of the nodes, and what is rendered for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpunode.catalog.gpus import GpuModel
from gpunode.facts.model import KubeletKind, Provider
from gpunode.recipe.kubernetes import GPU_PRESENT as GPU_PRESENT
from gpunode.recipe.kubernetes import ArgoCd, Flux

PLUGIN_CONFIG: Final = "nvidia.com/device-plugin.config"
MIG_CONFIG: Final = "nvidia.com/mig.config"
# Labels are a field manager's of their own, so that what is applied to a Node never takes fields of another purpose
# along.
LABELS_MANAGER: Final = "gpunode-labels"
# From this kind makes a cluster; it is not for kubectl.
KIND_CONFIG: Final = "kind-config.yaml"
# The first line of every rendered file: by it gpunode knows its own files when it renders again.
HEADER: Final = "Rendered by gpunode; render it again instead of editing it."
# Helm and people find by it what gpunode rendered.
MANAGED_BY: Final = {"app.kubernetes.io/managed-by": "gpunode"}


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node as the cluster's objects depend on it.

    Attributes:
        name: of the Node object.
        gpus: those that the driver can use, in PCI order.
        driver: the version of the loaded driver; empty where none is loaded, or nobody could tell.
        kubelet: the product that brings the kubelet; None where none was found.
        toolkit: whether the container toolkit is installed.
        provider: who builds the node's host; None where its owner does.
        provides: what that provider brought: ``driver``, ``device-plugin``.
        static_cpus: whether its kubelet's CPU manager is static; a container then keeps only devices that the kubelet
            knows.
        reads_cdi: whether its container runtime gives pods the CDI devices that the kubelet names; None where only a
            capture would tell.
    """

    name: str
    gpus: tuple[GpuModel, ...]
    driver: str = ""
    kubelet: KubeletKind | None = None
    toolkit: bool = False
    provider: Provider | None = None
    provides: frozenset[str] = frozenset()
    static_cpus: bool = False
    reads_cdi: bool | None = False


@dataclass(frozen=True, slots=True)
class Object:
    """One object of the cluster.

    Attributes:
        why: what it is for, in a sentence; the comment above it.
        wave: objects of a lower wave are applied, and ready, first.
    """

    body: Mapping[str, Any]
    why: str
    wave: int

    @property
    def kind(self) -> str:
        """Its kind (``DaemonSet``)."""
        return str(self.body["kind"])

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.body["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """Its namespace; empty for an object of the whole cluster."""
        return str(self.body["metadata"].get("namespace", ""))


@dataclass(frozen=True, slots=True)
class Release:
    """One release of a Helm chart, with the values that differ from the chart's."""

    name: str
    chart: str
    version: str
    repository: str
    namespace: str
    values: Mapping[str, Any]
    why: str
    wave: int

    @property
    def title(self) -> str:
        """``Helm release gpu-system/nvidia-device-plugin``."""
        return f"Helm release {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class NodeEdit:
    """The labels and the taint of one Node.

    Attributes:
        taint: as kubectl writes it (``nvidia.com/gpu=present:NoSchedule``); empty for none.
    """

    node: str
    labels: Mapping[str, str]
    taint: str
    why: str


@dataclass(frozen=True, slots=True)
class KindCluster:
    """A kind cluster that is yet to be made.

    Attributes:
        config: what kind makes it from.
        script: the commands that make it, and give its workers' containerd the NVIDIA runtime.
    """

    name: str
    config: Mapping[str, Any]
    script: str

    @property
    def context(self) -> str:
        """The context that kind adds to the user's kubeconfig."""
        return f"kind-{self.name}"


@dataclass(frozen=True, slots=True)
class OwnPod:
    """Lines that a pod of the user's own needs to get a GPU.

    Attributes:
        spec: those parts of its spec, to be merged into it.
        why: how it gets the GPU, as the rest of a sentence that begins with the pod.
    """

    spec: Mapping[str, Any]
    why: str


@dataclass(frozen=True, slots=True)
class Rendered:
    """All that the recipe asks of the cluster, in the order in which it is applied.

    Attributes:
        test_pod: what shows that a pod computes on a GPU; not applied with the rest.
        own_pods: what other pods need for a GPU, for each resource; empty where nobody knows which they can ask for.
        notes: what a person has to know, or do elsewhere.
        expected: by node, how many of each resource it offers when everything works.
        kind: the cluster, where it is kind's.
        argocd, flux: where the tool that applies the files runs, and finds them.
    """

    objects: tuple[Object, ...] = ()
    releases: tuple[Release, ...] = ()
    nodes: tuple[NodeEdit, ...] = ()
    test_pod: tuple[Object, ...] = ()
    own_pods: tuple[OwnPod, ...] = ()
    notes: tuple[str, ...] = ()
    expected: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    kind: KindCluster | None = None
    argocd: ArgoCd = field(default_factory=ArgoCd)
    flux: Flux = field(default_factory=Flux)
