"""Recipe and nodes → all that the cluster is asked for. Pure, and the same bytes for the same input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, TypeAlias, get_args

from gpunode.errors import Refused
from gpunode.kubernetes import node_rule, objects, releases
from gpunode.kubernetes.checks import check
from gpunode.kubernetes.managed import check_managed, is_gke
from gpunode.kubernetes.model import (
    MIG_CONFIG,
    PLUGIN_CONFIG,
    ClusterNode,
    KindCluster,
    NodeEdit,
    Object,
    Release,
    Rendered,
)
from gpunode.kubernetes.own_pod import device_list_strategies, operator_uses_cdi, own_pod, own_pods
from gpunode.kubernetes.sharing import (
    GPU,
    Config,
    configs,
    counted,
    offered,
    plugin_config,
    plugin_configs,
    resources_of,
    unmatched,
)
from gpunode.recipe import Recipe
from gpunode.recipe.kubernetes import Kubernetes, stack_labels

Form: TypeAlias = Literal["manifests", "kustomize", "argocd", "flux", "helm"]
FORMS: Final[tuple[Form, ...]] = get_args(Form)
# In these nobody runs apply.sh: a controller applies what is in git.
GITOPS_FORMS: Final = frozenset[Form]({"kustomize", "argocd", "flux"})
_NAMESPACES: Final = {"gpu-operator": "gpu-operator", "hami": "kube-system"}
# Source: the DRA driver's documentation, "Prerequisites" (0.4).
_DRA_DRIVER_BRANCH: Final = 565
# NVIDIA/gpu-operator controllers/state_manager.go.
_DEPLOY: Final = "nvidia.com/gpu.deploy."
_SHARED: Final = {
    "time-slicing": (
        "Time slicing shares a GPU's time, not its memory: one pod can fill the memory and starve the others, and a "
        "fault in one pod ends all pods on that GPU. MIG isolates both."
    ),
    "mps": (
        "MPS limits each pod's share of a GPU's memory, but does not isolate faults: a fault in one pod ends all pods "
        "on that GPU. MIG isolates both."
    ),
}


def rendered(recipe: Recipe, nodes: Sequence[ClusterNode], form: Form = "manifests") -> Rendered:
    """What the recipe asks of the cluster, for these nodes.

    Raises:
        Refused: the recipe contradicts itself, or asks of a node what it cannot do.
    """
    check(recipe)
    wanted = recipe.kubernetes
    assert wanted is not None  # checked
    given = _with_gpus(nodes)
    check_managed(wanted, given)
    found = members(wanted, given)
    if wanted.stack == "dra":
        _check_drivers(found)
    # HAMi has no configuration of the device plugin; its replicas are a limit of its own.
    by_node = {node.name: Config("whole") for node in found} if wanted.stack == "hami" else configs(wanted, found)
    where = wanted.namespace or _NAMESPACES.get(wanted.stack, "gpu-system")
    plain, charts = _parts(recipe, wanted, found, by_node, where, form)
    edits = tuple(_edits(recipe, wanted, found, by_node))
    if form in GITOPS_FORMS and any(node_rule.brings_discovery(one) for one in charts):
        if rule := node_rule.node_feature_rule(edits, wanted.taint):
            plain.append(rule)
        if node_rule.can_taint(wanted.taint):
            charts = [node_rule.with_tainting(one) for one in charts]
    resources = {
        node.name: ("",) if wanted.stack == "dra" else resources_of(node, by_node[node.name]) for node in found
    }
    expected = {node.name: offer for node in found if (offer := _expected(wanted, node, by_node[node.name]))}
    return Rendered(
        objects=tuple(sorted(plain, key=lambda one: one.wave)),
        releases=tuple(charts),
        nodes=edits,
        test_pod=tuple(_test_pods(recipe, where, found, by_node, resources)),
        own_pods=own_pods(recipe, found, resources),
        notes=tuple(_notes(wanted, found, by_node)),
        expected=expected,
        kind=_kind_cluster(recipe, wanted, given) if found != given else None,
        argocd=wanted.argocd,
        flux=wanted.flux,
    )


def _test_pods(
    recipe: Recipe,
    where: str,
    nodes: Sequence[ClusterNode],
    by_node: Mapping[str, Config],
    resources: Mapping[str, Sequence[str]],
) -> Iterator[Object]:
    """Yield a test pod, and what it needs before it, for each configuration of the nodes."""
    assert recipe.kubernetes is not None  # checked
    every = dict.fromkeys(by_node[node.name] for node in nodes)
    for config in every:
        having = [node for node in nodes if by_node[node.name] == config]
        if names := resources[having[0].name]:
            only = (config.name, [node.name for node in having]) if len(every) > 1 else None
            yield from objects.test_pod(recipe.kubernetes, where, own_pod(recipe, nodes, having, names[0]), only)


def members(wanted: Kubernetes, nodes: Sequence[ClusterNode]) -> tuple[ClusterNode, ...]:
    """The nodes of the cluster: those given, or the workers of the kind cluster on the one that is.

    Raises:
        Refused: a kind cluster cannot be made there.
    """
    if not wanted.kind.workers:
        return tuple(nodes)
    from gpunode.kubernetes import kind  # loaded on use: most clusters are not kind's

    return kind.workers(wanted.kind, nodes)


def _kind_cluster(recipe: Recipe, wanted: Kubernetes, nodes: Sequence[ClusterNode]) -> KindCluster:
    from gpunode.kubernetes import kind

    return kind.cluster(recipe, wanted.kind, len(nodes[0].gpus))


def _with_gpus(nodes: Sequence[ClusterNode]) -> tuple[ClusterNode, ...]:
    found = tuple(sorted((node for node in nodes if node.gpus), key=lambda node: node.name))
    if not found:
        raise Refused(
            "no NVIDIA GPU found on " + (", ".join(node.name for node in nodes) or "any node"),
            why="nothing would be offered to pods",
            hint="save each GPU node there: sudo gpunode capture node.tar.gz\n"
            "then name the captures here with --node node.tar.gz",
        )
    names = [node.name for node in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise Refused(
            f"several captures are of the node {twice[0]}",
            why="each node is rendered once",
            hint="name one capture of each node",
        )
    return found


def _check_drivers(nodes: Sequence[ClusterNode]) -> None:
    for node in nodes:
        branch = node.driver.partition(".")[0]
        if branch.isdigit() and int(branch) < _DRA_DRIVER_BRANCH:
            raise Refused(
                f"{node.name} has driver {node.driver}, too old for the DRA driver",
                why=f"it needs {_DRA_DRIVER_BRANCH} or newer",
                hint='set version in [driver] to a newer branch, or use stack = "device-plugin"',
            )


def _parts(
    recipe: Recipe,
    wanted: Kubernetes,
    nodes: Sequence[ClusterNode],
    by_node: Mapping[str, Config],
    where: str,
    form: Form,
) -> tuple[list[Object], list[Release]]:
    plain = [] if where == "kube-system" else [objects.namespace(where)]
    exporter = wanted.extras.dcgm_exporter and wanted.stack != "gpu-operator"
    # The GPU Operator makes its own.
    if (
        wanted.runtime_class
        and (wanted.stack in {"device-plugin", "hami"} or exporter)
        and not _has_class(wanted, nodes)
    ):
        plain.append(objects.runtime_class(wanted.runtime_class))
    charts: list[Release] = []
    match wanted.stack:
        case "device-plugin":
            more, charts = _device_plugin(recipe, wanted, nodes, by_node, where, form)
            plain += more
        case "gpu-operator":
            driver, toolkit = _by_operator(recipe, nodes)
            cdi = operator_uses_cdi(recipe, nodes)
            direct = recipe.gpudirect
            charts = [
                releases.gpu_operator(wanted, where, by_node, nodes, direct, cdi=cdi, driver=driver, toolkit=toolkit)
            ]
        case "hami":
            charts = [releases.hami(wanted, where, nodes, recipe.gpudirect)]
        case "dra":
            charts = [releases.dra_driver(wanted, where, nodes)]
        case "none":
            pass
    if exporter:
        charts.append(releases.dcgm_exporter(wanted, where, nodes))
    return plain, charts


def _has_class(wanted: Kubernetes, nodes: Sequence[ClusterNode]) -> bool:
    """Whether the cluster makes the RuntimeClass itself: one of ours beside it would be taken away with ours.

    Sources: k3s issue 8700 (1.29 and later); rke2 issue 7242 (1.32.1 and later, 1.29.13, 1.30.9, 1.31.5).
    """
    return wanted.runtime_class == "nvidia" and all(node.kubelet in {"k3s", "rke2"} for node in nodes)


def _device_plugin(
    recipe: Recipe,
    wanted: Kubernetes,
    nodes: Sequence[ClusterNode],
    by_node: Mapping[str, Config],
    where: str,
    form: Form,
) -> tuple[list[Object], list[Release]]:
    """Plain objects where they suffice: one configuration, and neither MPS nor feature discovery."""
    mps = any(config.mode == "mps" for config in by_node.values())
    reasons = ["MPS needs the chart's daemon"] if mps else []
    every = plugin_configs(wanted, by_node)
    reasons += ["several configurations need the chart's config manager"] if len(every) > 1 else []
    reasons += ["GPU Feature Discovery comes with the chart"] if wanted.extras.gfd else []
    strategies = device_list_strategies(recipe, nodes)
    if not reasons and form in {"manifests", "kustomize"}:
        (config,) = every.values()
        told = _told(config)
        settings = plugin_config(config, nodes, recipe.gpudirect, strategies)
        made = objects.plugin_config_map(where, settings, told, hashed=form != "kustomize")
        mig, cdi = config.strategy != "none", bool(strategies)
        return [made, objects.plugin_daemon_set(wanted, where, made.name, nodes, mig=mig, cdi=cdi)], []
    if not objects.has_usual_root(nodes):
        raise Refused(
            f"the chart nvidia-device-plugin cannot be used on {nodes[0].kubelet}",
            why=f"{reasons[0] if reasons else f'--form {form} uses the chart'}, and it mounts /var/lib/kubelet; "
            f"this kubelet's folder is {objects.kubelet_root(nodes)}",
            hint='use stack = "gpu-operator", or one configuration without MPS and gfd with --form manifests',
        )
    gfd = wanted.extras.gfd or mps
    return [], [releases.device_plugin(wanted, where, by_node, nodes, recipe.gpudirect, strategies, gfd=gfd)]


def _told(config: Config) -> str:
    """The configuration in a sentence."""
    if config.mode != "none":
        return f"Each GPU is offered {config.replicas} times, shared by {config.mode}."
    if config.strategy != "none":
        return f"MIG instances are offered, strategy {config.strategy}."
    return "Each GPU is offered once, whole."


def _by_operator(recipe: Recipe, nodes: Sequence[ClusterNode]) -> tuple[bool, bool]:
    """Whether the GPU Operator installs the driver, and the toolkit: neither the recipe nor every node has it."""
    # On a host of GKE's gpunode sets up neither, whatever the recipe says.
    left = is_gke(nodes)
    driver = (left or recipe.driver.version == "none") and not all(node.driver for node in nodes)
    toolkit = (left or recipe.toolkit.version == "none") and not all(node.toolkit for node in nodes)
    return driver, toolkit


def _edits(
    recipe: Recipe, wanted: Kubernetes, nodes: Sequence[ClusterNode], by_node: Mapping[str, Config]
) -> Iterator[NodeEdit]:
    taint = wanted.taint
    value = f"={taint.value}" if taint.value else ""
    written = f"{taint.key}{value}:{taint.effect}" if taint.key else ""
    several = len(plugin_configs(wanted, by_node)) > 1
    for node in nodes:
        labels = {**wanted.labels, **_labels(recipe, wanted, nodes, node, by_node[node.name])}
        if several and wanted.stack in {"device-plugin", "gpu-operator"}:
            labels[PLUGIN_CONFIG] = by_node[node.name].name
        yield NodeEdit(node.name, dict(sorted(labels.items())), written, counted(node))


def _labels(
    recipe: Recipe, wanted: Kubernetes, nodes: Sequence[ClusterNode], node: ClusterNode, config: Config
) -> Mapping[str, str]:
    """The labels by which the stack finds the node."""
    if wanted.stack != "gpu-operator":
        return stack_labels(wanted.stack)
    # What a node has already is not installed there.
    driver, toolkit = _by_operator(recipe, nodes)
    found = {MIG_CONFIG: config.layout} if config.layout else {}
    found |= {f"{_DEPLOY}driver": "false"} if driver and node.driver else {}
    return found | ({f"{_DEPLOY}container-toolkit": "false"} if toolkit and node.toolkit else {})


def _expected(wanted: Kubernetes, node: ClusterNode, config: Config) -> Mapping[str, int] | None:
    if wanted.stack == "dra":
        return None
    if wanted.stack == "hami":
        return {GPU: len(node.gpus) * wanted.sharing.replicas}
    return offered(node, config)


def _notes(wanted: Kubernetes, nodes: Sequence[ClusterNode], by_node: Mapping[str, Config]) -> Iterator[str]:
    modes = {config.mode for config in by_node.values()}
    yield from (text for mode, text in _SHARED.items() if mode in modes)
    yield from unmatched(wanted, nodes)
    if wanted.stack != "gpu-operator":
        yield from _layouts(by_node)
    if "mps" in modes and wanted.stack == "device-plugin" and not wanted.extras.gfd:
        yield "MPS needs GPU Feature Discovery, so it is rendered, too."
    if wanted.stack in {"device-plugin", "hami"} and _has_class(wanted, nodes):
        yield "k3s (1.29 or later) and RKE2 (1.32.1 or later) make the RuntimeClass nvidia, so it is not rendered."
    if wanted.kind.workers:
        yield "kind.sh, written with --out, makes the cluster; apply.sh runs it first."
    if any(config.strategy == "mixed" and not config.layout for config in by_node.values()):
        yield "Without a layout gpunode cannot tell which MIG profiles are offered, so no test pod is rendered."


def _layouts(by_node: Mapping[str, Config]) -> Iterator[str]:
    """Where the MIG layouts come from that the device plugin is to offer, once for each layout."""
    found: dict[str, list[str]] = {}
    for node, config in by_node.items():
        if config.strategy != "none" and config.layout:
            found.setdefault(config.layout, []).append(node)
    for layout, names in found.items():
        yield f"`gpunode setup` with this recipe sets the MIG layout {layout}; run it on {', '.join(names)} first."
