"""The nodes that a cluster is rendered for, and the rendered objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final, TypeAlias

from gpunode.catalog.gpus import GpuModel
from gpunode.facts.model import KubeletKind, KubernetesProvider
from gpunode.fast_dataclass import dataclass
from gpunode.recipe.kubernetes import GPU_PRESENT_LABEL as GPU_PRESENT_LABEL
from gpunode.recipe.kubernetes import ArgoCd, Flux

# An object of a cluster, in the API server's JSON form.
Body: TypeAlias = Mapping[str, Any]
PLUGIN_CONFIG_LABEL: Final = "nvidia.com/device-plugin.config"
MIG_CONFIG_LABEL: Final = "nvidia.com/mig.config"
# Labels have their own field manager, so that applying other fields of a Node never touches them.
LABELS_FIELD_MANAGER: Final = "gpunode-labels"
# Read by kind, not by kubectl.
KIND_CONFIG_FILE_NAME: Final = "kind-config.yaml"
# The first line of every rendered file; gpunode recognizes its files by it when it renders again.
HEADER: Final = "Rendered by gpunode; render it again instead of editing it."
# Helm and people find what gpunode rendered by this label.
MANAGED_BY_LABEL: Final = {"app.kubernetes.io/managed-by": "gpunode"}


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """The facts of a node that the cluster's objects depend on.

    Attributes:
        name: the name of the Node object.
        gpus: the GPUs that the driver can use, in PCI order.
        driver: the version of the loaded driver; empty if none is loaded or it is unknown.
        kubelet: the distribution that ships the kubelet; None if there is none.
        toolkit: whether the container toolkit is installed.
        provider: the provider of the node's host image; None if its owner builds it.
        provides: the components that the provider installs: ``driver``, ``device-plugin``.
        static_cpus: whether its kubelet's CPU manager is static; a container then keeps only devices that the kubelet
            knows.
        reads_cdi: whether its container runtime gives pods the CDI devices that the kubelet names; None if unknown.
    """

    name: str
    gpus: tuple[GpuModel, ...]
    driver: str = ""
    kubelet: KubeletKind | None = None
    toolkit: bool = False
    provider: KubernetesProvider | None = None
    provides: frozenset[str] = frozenset()
    static_cpus: bool = False
    reads_cdi: bool | None = False


@dataclass(frozen=True, slots=True)
class RenderedObject:
    """An object to apply to the cluster.

    Attributes:
        why: its purpose in a sentence; the comment above it.
        wave: objects of a lower wave are applied, and ready, first.
    """

    body: Mapping[str, Any]
    why: str
    wave: int

    @property
    def kind(self) -> str:
        """The kind (``DaemonSet``)."""
        return str(self.body["kind"])

    @property
    def name(self) -> str:
        """The name in the metadata."""
        return str(self.body["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """The namespace; empty for a cluster-scoped object."""
        return str(self.body["metadata"].get("namespace", ""))


@dataclass(frozen=True, slots=True)
class ChartRelease:
    """A release of a Helm chart, with the values that differ from the chart's."""

    name: str
    chart: str
    version: str
    repository: str
    namespace: str
    values: Mapping[str, Any]
    why: str
    wave: int

    @property
    def chart_words(self) -> tuple[str, ...]:
        """The chart, as arguments for Helm's commands."""
        is_oci = self.repository.startswith("oci://")
        return (f"{self.repository}/{self.chart}",) if is_oci else (self.chart, "--repo", self.repository)

    @property
    def title(self) -> str:
        """``Helm release gpu-system/nvidia-device-plugin``."""
        return f"Helm release {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class NodeEdit:
    """The labels and the taint to set on a Node.

    Attributes:
        taint: in kubectl's form (``nvidia.com/gpu=present:NoSchedule``); empty for none.
    """

    node: str
    labels: Mapping[str, str]
    taint: str
    why: str


@dataclass(frozen=True, slots=True)
class KindCluster:
    """A kind cluster to be created.

    Attributes:
        config: the configuration for kind.
        script: the commands that create it and register the NVIDIA runtime in its workers' containerd.
    """

    name: str
    config: Mapping[str, Any]
    script: str

    @property
    def context(self) -> str:
        """The context that kind adds to the user's kubeconfig."""
        return f"kind-{self.name}"


@dataclass(frozen=True, slots=True)
class UserPodNeeds:
    """The lines that a user's own pod needs to get a GPU.

    Attributes:
        spec: the parts to merge into its spec.
        why: how it gets the GPU, as the rest of a sentence that begins with the pod.
    """

    spec: Mapping[str, Any]
    why: str


@dataclass(frozen=True, slots=True)
class RenderedCluster:
    """Everything that the recipe needs in the cluster, in the order in which it is applied.

    Attributes:
        test_pod: a pod that computes on a GPU, with the objects it needs; not applied with the rest.
        user_pods: the lines that other pods need, for each resource; empty if the resources are unknown.
        notes: what the user should know, or do elsewhere.
        expected: by node, how many of each resource it offers when everything works.
        kind: the kind cluster to create, if any.
        argocd, flux: where the tool that applies the files runs, and where it finds them.
    """

    objects: tuple[RenderedObject, ...] = ()
    releases: tuple[ChartRelease, ...] = ()
    nodes: tuple[NodeEdit, ...] = ()
    test_pod: tuple[RenderedObject, ...] = ()
    user_pods: tuple[UserPodNeeds, ...] = ()
    notes: tuple[str, ...] = ()
    expected: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    kind: KindCluster | None = None
    argocd: ArgoCd = field(default_factory=ArgoCd)
    flux: Flux = field(default_factory=Flux)
