"""The ``[kubernetes]`` tables of a recipe. Loaded only for a recipe that has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypeAlias

from gpunode.errors import Refused
from gpunode.fast_dataclass import dataclass
from gpunode.recipe import KeySpec

Stack: TypeAlias = Literal["device-plugin", "gpu-operator", "hami", "dra", "none"]
SharingMode: TypeAlias = Literal["none", "time-slicing", "mps"]
MigStrategy: TypeAlias = Literal["none", "single", "mixed"]
NodeRegistration: TypeAlias = Literal["none", "kubelet", "k3s", "rke2"]
TaintEffect: TypeAlias = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]

# One namespace for labels and taints on all stacks.
GPU_PRESENT_LABEL: Final = "nvidia.com/gpu.present"
# Set by the cluster itself, by gpunode or by NVIDIA's controllers.
_RESERVED_LABEL_DOMAINS: Final = ("kubernetes.io/", "k8s.io/", "nvidia.com/")
# RFC 1123; the API server checks names and label values by it.
_DNS_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_DNS_SUBDOMAIN = rf"{_DNS_LABEL}(\.{_DNS_LABEL})*"
_LABEL_VALUE_PATTERN = r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?"
LABEL_KEY_PATTERN = rf"({_DNS_SUBDOMAIN}/)?[A-Za-z0-9]([A-Za-z0-9._-]{{0,61}}[A-Za-z0-9])?"
_CHART_VERSION_PATTERN = r"|v?[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?"
_REGISTRY_PATTERN = r"|[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?(/[a-z0-9]([a-z0-9._-]*[a-z0-9])?)*"
# Without ".." and hidden names: it names a folder in a repository, and becomes part of paths.
_PATH_SEGMENT = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_REPO_PATH = rf"\.|(\./)?{_PATH_SEGMENT}(/{_PATH_SEGMENT})*"
_HOST_AND_PORT_PATTERN = r"(\[[0-9a-f:]+\]|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?)(:[0-9]{1,5})?"
# Without a password: the URL is written to files that are committed.
_GIT_URL_PATTERN = rf"|(https?://|ssh://([A-Za-z0-9._-]+@)?){_HOST_AND_PORT_PATTERN}(/[A-Za-z0-9._~-]+)+/?|{_PATH_SEGMENT}@[A-Za-z0-9.-]+:[A-Za-z0-9._~/-]+"
_dns_label = partial(KeySpec, pattern=_DNS_LABEL, allowed=("lower-case letters, digits and -",))
_dns_subdomain = partial(KeySpec, pattern=_DNS_SUBDOMAIN, allowed=("a name of lower-case letters, digits, - and .",))
_RENDERED_FOLDER_KEY = KeySpec(
    "the rendered folder in the repository", _REPO_PATH, ("a path without ..", '"." for all of it')
)
# The layout becomes the value of a label.
_mig_layout = partial(
    KeySpec,
    pattern=r"|[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?",
    allowed=("a name as in mig-parted's configuration", '"" for none'),
)


def _chart_version(name: str) -> KeySpec:
    return KeySpec(
        f"version of the chart {name}; empty takes the one in gpunode's catalog",
        _CHART_VERSION_PATTERN,
        ("a version such as 0.20.0", '"" for the catalog\'s'),
    )


@dataclass(frozen=True, slots=True)
class Sharing:
    """Sharing of a node's GPUs among its pods."""

    mode: Annotated[
        SharingMode,
        KeySpec("how several pods share a GPU; time-slicing isolates nothing, mps limits each pod's memory"),
    ] = "none"
    replicas: Annotated[int, KeySpec("how many pods share one GPU; 1 with mode none, except with hami")] = 1
    rename: Annotated[bool, KeySpec("whether shared GPUs are offered as nvidia.com/gpu.shared")] = False


@dataclass(frozen=True, slots=True)
class MigResources:
    """The resource names of MIG instances."""

    strategy: Annotated[
        MigStrategy,
        KeySpec("none offers whole GPUs; single offers instances as nvidia.com/gpu, mixed as nvidia.com/mig-<profile>"),
    ] = "none"
    layout: Annotated[
        str,
        _mig_layout(
            "the MIG layout of the nodes (all-1g.10gb); setup sets it, with gpu-operator its MIG manager; empty: any"
        ),
    ] = ""


@dataclass(frozen=True, slots=True)
class Taint:
    """The taint that keeps pods without a GPU off the nodes; no key, no taint."""

    key: Annotated[
        str, KeySpec("key of the taint (nvidia.com/gpu)", rf"|{LABEL_KEY_PATTERN}", ("a label key", '"" for no taint'))
    ] = ""
    value: Annotated[str, KeySpec("value of the taint", _LABEL_VALUE_PATTERN, ("a label value", '""'))] = ""
    effect: Annotated[TaintEffect, KeySpec("what the taint does to pods that do not tolerate it")] = "NoSchedule"


@dataclass(frozen=True, slots=True)
class Extras:
    """The components beside the device plugin."""

    gfd: Annotated[
        bool, KeySpec("whether GPU Feature Discovery and Node Feature Discovery label nodes by their GPUs")
    ] = False
    dcgm_exporter: Annotated[bool, KeySpec("whether the DCGM exporter offers metrics to Prometheus")] = False


@dataclass(frozen=True, slots=True)
class ChartVersions:
    """The versions of the charts and of what they install."""

    device_plugin: Annotated[str, _chart_version("nvidia-device-plugin")] = ""
    gpu_operator: Annotated[str, _chart_version("gpu-operator")] = ""
    hami: Annotated[str, _chart_version("hami")] = ""
    dra_driver: Annotated[str, _chart_version("dra-driver-nvidia-gpu")] = ""
    dcgm_exporter: Annotated[str, _chart_version("dcgm-exporter")] = ""


@dataclass(frozen=True, slots=True)
class ArgoCd:
    """The place in which Argo CD runs the Applications of ``k8s render --format argocd``."""

    project: Annotated[str, _dns_subdomain("project of the Applications")] = "default"
    namespace: Annotated[str, _dns_label("namespace in which Argo CD looks for Applications")] = "argocd"
    server: Annotated[
        str,
        KeySpec(
            "API server of the cluster that has the GPUs; empty for the cluster in which Argo CD runs",
            rf"|https://{_HOST_AND_PORT_PATTERN}(/[A-Za-z0-9._~/-]*)?",
            ("https://host[:port][/path]", '"" for Argo CD\'s own cluster'),
        ),
    ] = ""
    cluster: Annotated[
        str,
        KeySpec(
            "name that Argo CD gives the cluster that has the GPUs, instead of server",
            r"|[A-Za-z0-9]([A-Za-z0-9._@:/-]*[A-Za-z0-9])?",
            ("a name as `argocd cluster list` shows it", '""'),
        ),
    ] = ""
    repository: Annotated[
        str,
        KeySpec(
            "git repository that holds the rendered folder; if set, its Application is rendered, too: argocd.yaml",
            _GIT_URL_PATTERN,
            ("https://host/path, ssh://git@host/path or git@host:path, without a password", '""'),
        ),
    ] = ""
    revision: Annotated[
        str,
        KeySpec(
            "branch, tag or commit of the repository", rf"{_PATH_SEGMENT}(/{_PATH_SEGMENT})*", ("a branch or tag",)
        ),
    ] = "HEAD"
    path: Annotated[str, _RENDERED_FOLDER_KEY] = "gpu-stack"


@dataclass(frozen=True, slots=True)
class Flux:
    """The place in which Flux finds the folder of ``k8s render --format flux``."""

    namespace: Annotated[str, _dns_label("namespace of Flux and its GitRepository")] = "flux-system"
    source: Annotated[
        str,
        _dns_subdomain("name of the GitRepository that holds the rendered folder; `flux bootstrap` makes flux-system"),
    ] = "flux-system"
    path: Annotated[str, _RENDERED_FOLDER_KEY] = "gpu-stack"


@dataclass(frozen=True, slots=True)
class KindClusterSettings:
    """A kind cluster on this machine, whose workers get its GPUs."""

    workers: Annotated[
        int, KeySpec("how many workers share out the machine's GPUs; 0 where the cluster is not kind's", minimum=0)
    ] = 0
    name: Annotated[
        str,
        KeySpec(
            "name of the kind cluster", r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", ("lower-case letters, digits and -",)
        ),
    ] = "kind"


@dataclass(frozen=True, slots=True)
class NamedConfig:
    """The settings that nodes with certain GPUs get instead of ``[kubernetes.sharing]`` and ``[kubernetes.mig]``."""

    model: Annotated[str, KeySpec("what the name of the nodes' GPUs contains (A100)")] = ""
    mode: Annotated[SharingMode, KeySpec("as in [kubernetes.sharing]")] = "none"
    replicas: Annotated[int, KeySpec("as in [kubernetes.sharing]")] = 1
    rename: Annotated[bool, KeySpec("as in [kubernetes.sharing]")] = False
    strategy: Annotated[MigStrategy, KeySpec("as in [kubernetes.mig]")] = "none"
    layout: Annotated[str, _mig_layout("as in [kubernetes.mig]")] = ""

    def fits(self, names: Sequence[str]) -> bool:
        """Return whether it is for a node whose GPUs have these names: each must contain ``model``."""
        return all(self.model.lower() in name.lower() for name in names)


@dataclass(frozen=True, slots=True)
class Kubernetes:
    """The settings of the Kubernetes layer."""

    stack: Annotated[Stack, KeySpec("what offers the GPUs to pods; none leaves the cluster alone")] = "none"
    namespace: Annotated[
        str,
        KeySpec(
            "where the objects are; empty: gpu-system, with gpu-operator gpu-operator, with hami kube-system",
            rf"|{_DNS_LABEL}",
            ("a name of lower-case letters, digits and -", '"" for the stack\'s own'),
        ),
    ] = ""
    runtime_class: Annotated[
        str,
        KeySpec(
            "the RuntimeClass of pods with GPUs; empty where nvidia is the default runtime",
            rf"|{_DNS_SUBDOMAIN}",
            ("a name of lower-case letters, digits, - and .", '"" for none'),
        ),
    ] = "nvidia"
    registry: Annotated[
        str,
        KeySpec(
            "a mirror that images are pulled from, for sites without internet access (registry.example.org/nvidia)",
            _REGISTRY_PATTERN,
            ("host[:port][/path]", '"" for the public registries'),
        ),
    ] = ""
    labels: Annotated[
        Mapping[str, str],
        KeySpec(
            "further labels of the GPU nodes",
            _LABEL_VALUE_PATTERN,
            ("label values",),
            name_pattern=LABEL_KEY_PATTERN,
            names=("a label key", "name or prefix/name"),
        ),
    ] = field(default_factory=lambda: MappingProxyType({}))
    control_plane: Annotated[
        bool,
        KeySpec("whether the GPU stack and its test pod run on control plane nodes, too, as in a cluster of one node"),
    ] = False
    node_registration: Annotated[
        NodeRegistration,
        KeySpec(
            "where setup writes the labels and taint with which a node joins: kubelet: /etc/default/kubelet; "
            "k3s and rke2: their config.yaml.d; none: k8s apply sets them"
        ),
    ] = "none"
    sharing: Sharing = field(default_factory=Sharing)
    mig: MigResources = field(default_factory=MigResources)
    taint: Taint = field(default_factory=Taint)
    extras: Extras = field(default_factory=Extras)
    kind: KindClusterSettings = field(default_factory=KindClusterSettings)
    versions: ChartVersions = field(default_factory=ChartVersions)
    argocd: ArgoCd = field(default_factory=ArgoCd)
    flux: Flux = field(default_factory=Flux)
    configs: Mapping[str, NamedConfig] = field(default_factory=lambda: MappingProxyType({}))


def stack_labels(stack: Stack) -> Mapping[str, str]:
    """Return the labels by which the stack finds its nodes; none for the GPU Operator, which finds GPUs itself."""
    match stack:
        case "gpu-operator" | "none":
            return {}
        case "hami":
            return {"gpu": "on", GPU_PRESENT_LABEL: "true"}
        case "device-plugin" | "dra":
            return {GPU_PRESENT_LABEL: "true"}


def refuse_foreign_labels(settings: Kubernetes) -> None:
    """Refuse labels that the recipe must not set; with one of kubernetes.io, the kubelet does not start.

    Raises:
        Refused: the cluster, NVIDIA's controllers or gpunode set such a label themselves.
    """
    for key in settings.labels:
        if key == "gpu" or any(f"{key.partition('/')[0]}/".endswith(part) for part in _RESERVED_LABEL_DOMAINS):
            raise Refused(
                f"[kubernetes] labels cannot set {key}",
                why="the cluster, NVIDIA's controllers or gpunode set it themselves",
                hint="use a prefix of your own, such as example.org/",
            )


# The table of each section; * stands for a name that the recipe chooses.
KUBERNETES_SECTIONS: Final[Mapping[str, type[Any]]] = MappingProxyType(
    {
        "kubernetes": Kubernetes,
        "kubernetes.sharing": Sharing,
        "kubernetes.mig": MigResources,
        "kubernetes.taint": Taint,
        "kubernetes.extras": Extras,
        "kubernetes.kind": KindClusterSettings,
        "kubernetes.versions": ChartVersions,
        "kubernetes.argocd": ArgoCd,
        "kubernetes.flux": Flux,
        "kubernetes.configs.*": NamedConfig,
    }
)
