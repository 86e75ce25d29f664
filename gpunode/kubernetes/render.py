"""Render the objects that a recipe needs for some nodes. Pure, and the same bytes for the same input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, TypeAlias, get_args

from gpunode.errors import Refused
from gpunode.kubernetes import objects, releases
from gpunode.kubernetes.checks import refuse_bad_tables
from gpunode.kubernetes.cluster_nodes import is_gke, refuse_provider_nodes
from gpunode.kubernetes.model import (
    MIG_CONFIG_LABEL,
    PLUGIN_CONFIG_LABEL,
    ChartRelease,
    ClusterNode,
    KindCluster,
    NodeEdit,
    RenderedCluster,
    RenderedObject,
)
from gpunode.kubernetes.own_pod import describe_own_pod, describe_own_pods, device_list_strategies, operator_uses_cdi
from gpunode.kubernetes.sharing import (
    GPU_RESOURCE,
    SharingConfig,
    choose_configs,
    count_resources,
    describe_gpus,
    plugin_config,
    plugin_configs,
    resources_of,
    unmatched_notes,
)
from gpunode.recipe import Recipe
from gpunode.recipe.kubernetes import Kubernetes, stack_labels

Form: TypeAlias = Literal["manifests", "kustomize", "argocd", "flux", "helm"]
FORMS: Final[tuple[Form, ...]] = get_args(Form)
# Here a controller applies what is in git, and nobody runs apply.sh.
GITOPS_FORMS: Final = frozenset[Form]({"kustomize", "argocd", "flux"})
_DEFAULT_NAMESPACES: Final = {"gpu-operator": "gpu-operator", "hami": "kube-system"}
# Source: the DRA driver's documentation, "Prerequisites" (0.4).
_MIN_DRA_DRIVER_BRANCH: Final = 565
# NVIDIA/gpu-operator controllers/state_manager.go.
_OPERATOR_DEPLOY_LABEL_PREFIX: Final = "nvidia.com/gpu.deploy."
_SHARING_NOTES: Final = {
    "time-slicing": (
        "Time slicing shares a GPU's time, not its memory: one pod can fill the memory and starve the others, and a "
        "fault in one pod ends all pods on that GPU. MIG isolates both."
    ),
    "mps": (
        "MPS limits each pod's share of a GPU's memory, but does not isolate faults: a fault in one pod ends all pods "
        "on that GPU. MIG isolates both."
    ),
}


def render_cluster(recipe: Recipe, nodes: Sequence[ClusterNode], form: Form = "manifests") -> RenderedCluster:
    """Return everything that the recipe needs in the cluster, for these nodes.

    Raises:
        Refused: if the recipe contradicts itself, or needs what a node cannot do.
    """
    refuse_bad_tables(recipe)
    desired = recipe.kubernetes
    assert desired is not None  # checked
    gpu_nodes = _select_gpu_nodes(nodes)
    refuse_provider_nodes(desired, gpu_nodes)
    members = cluster_members(desired, gpu_nodes)
    if desired.stack == "dra":
        _refuse_old_drivers(members)
    # HAMi does not use the device plugin's configuration; its replicas are a limit of its own.
    by_node = (
        {node.name: SharingConfig("whole") for node in members}
        if desired.stack == "hami"
        else choose_configs(desired, members)
    )
    namespace = desired.namespace or _DEFAULT_NAMESPACES.get(desired.stack, "gpu-system")
    plain, charts = _render_stack(recipe, desired, members, by_node, namespace, form)
    edits = tuple(_node_edits(recipe, desired, members, by_node))
    if form in GITOPS_FORMS and any(objects.installs_discovery(one) for one in charts):
        if rule := objects.make_feature_rule(edits, desired.taint):
            plain.append(rule)
        if objects.can_nfd_set_taint(desired.taint):
            charts = [objects.allow_tainting(one) for one in charts]
    resources = {
        node.name: ("",) if desired.stack == "dra" else resources_of(node, by_node[node.name]) for node in members
    }
    expected = {
        node.name: offer for node in members if (offer := _expected_resources(desired, node, by_node[node.name]))
    }
    return RenderedCluster(
        objects=tuple(sorted(plain, key=lambda one: one.wave)),
        releases=tuple(charts),
        nodes=edits,
        test_pod=tuple(_render_test_pods(recipe, namespace, members, by_node, resources)),
        own_pods=describe_own_pods(recipe, members, resources),
        notes=tuple(_notes(desired, members, by_node)),
        expected=expected,
        kind=_kind_cluster(recipe, desired, gpu_nodes) if members != gpu_nodes else None,
        argocd=desired.argocd,
        flux=desired.flux,
    )


def _render_test_pods(
    recipe: Recipe,
    namespace: str,
    nodes: Sequence[ClusterNode],
    by_node: Mapping[str, SharingConfig],
    resources: Mapping[str, Sequence[str]],
) -> Iterator[RenderedObject]:
    """Yield a test pod, preceded by its needs, for each configuration of the nodes."""
    assert recipe.kubernetes is not None  # checked
    node_configs = dict.fromkeys(by_node[node.name] for node in nodes)
    for config in node_configs:
        having = [node for node in nodes if by_node[node.name] == config]
        if names := resources[having[0].name]:
            only = (config.name, [node.name for node in having]) if len(node_configs) > 1 else None
            yield from objects.make_test_pod(
                recipe.kubernetes, namespace, describe_own_pod(recipe, nodes, having, names[0]), only
            )


def cluster_members(desired: Kubernetes, nodes: Sequence[ClusterNode]) -> tuple[ClusterNode, ...]:
    """Return the nodes of the cluster: those given, or the workers of the kind cluster on the given one.

    Raises:
        Refused: if no kind cluster can be created there.
    """
    if not desired.kind.workers:
        return tuple(nodes)
    from gpunode.kubernetes import kind  # loaded on use: most clusters are not kind's

    return kind.make_workers(desired.kind, nodes)


def _kind_cluster(recipe: Recipe, desired: Kubernetes, nodes: Sequence[ClusterNode]) -> KindCluster:
    from gpunode.kubernetes import kind

    return kind.make_cluster(recipe, desired.kind, len(nodes[0].gpus))


def _select_gpu_nodes(nodes: Sequence[ClusterNode]) -> tuple[ClusterNode, ...]:
    found = tuple(sorted((node for node in nodes if node.gpus), key=lambda node: node.name))
    if not found:
        raise Refused(
            "no NVIDIA GPU found on " + (", ".join(node.name for node in nodes) or "any node"),
            why="there is nothing to offer to pods",
            hint="save each GPU node there: sudo gpunode capture node.tar.gz\n"
            "then name the captures here with --node node.tar.gz",
        )
    names = [node.name for node in found]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise Refused(
            f"several captures are of the node {duplicates[0]}",
            why="each node is rendered once",
            hint="name one capture of each node",
        )
    return found


def _refuse_old_drivers(nodes: Sequence[ClusterNode]) -> None:
    for node in nodes:
        branch = node.driver.partition(".")[0]
        if branch.isdigit() and int(branch) < _MIN_DRA_DRIVER_BRANCH:
            raise Refused(
                f"{node.name} has driver {node.driver}, too old for the DRA driver",
                why=f"it needs {_MIN_DRA_DRIVER_BRANCH} or newer",
                hint='set version in [driver] to a newer branch, or use stack = "device-plugin"',
            )


def _render_stack(
    recipe: Recipe,
    desired: Kubernetes,
    nodes: Sequence[ClusterNode],
    by_node: Mapping[str, SharingConfig],
    namespace: str,
    form: Form,
) -> tuple[list[RenderedObject], list[ChartRelease]]:
    plain = [] if namespace == "kube-system" else [objects.make_namespace(namespace)]
    exporter = desired.extras.dcgm_exporter and desired.stack != "gpu-operator"
    # The GPU Operator makes its own.
    if (
        desired.runtime_class
        and (desired.stack in {"device-plugin", "hami"} or exporter)
        and not _cluster_provides_runtime_class(desired, nodes)
    ):
        plain.append(objects.make_runtime_class(desired.runtime_class))
    charts: list[ChartRelease] = []
    match desired.stack:
        case "device-plugin":
            plugin_objects, charts = _render_device_plugin(recipe, desired, nodes, by_node, namespace, form)
            plain += plugin_objects
        case "gpu-operator":
            driver, toolkit = _operator_installs(recipe, nodes)
            cdi = operator_uses_cdi(recipe, nodes)
            direct = recipe.gpudirect
            charts = [
                releases.make_gpu_operator(
                    desired, namespace, by_node, nodes, direct, cdi=cdi, driver=driver, toolkit=toolkit
                )
            ]
        case "hami":
            charts = [releases.make_hami(desired, namespace, nodes, recipe.gpudirect)]
        case "dra":
            charts = [releases.make_dra_driver(desired, namespace, nodes)]
        case "none":
            pass
    if exporter:
        charts.append(releases.make_dcgm_exporter(desired, namespace, nodes))
    return plain, charts


def _cluster_provides_runtime_class(desired: Kubernetes, nodes: Sequence[ClusterNode]) -> bool:
    """Return whether the cluster creates the RuntimeClass itself: removing ours would remove that one, too.

    Sources: k3s issue 8700 (1.29 and later); rke2 issue 7242 (1.32.1 and later, 1.29.13, 1.30.9, 1.31.5).
    """
    return desired.runtime_class == "nvidia" and all(node.kubelet in {"k3s", "rke2"} for node in nodes)


def _render_device_plugin(
    recipe: Recipe,
    desired: Kubernetes,
    nodes: Sequence[ClusterNode],
    by_node: Mapping[str, SharingConfig],
    namespace: str,
    form: Form,
) -> tuple[list[RenderedObject], list[ChartRelease]]:
    """Return plain objects if they suffice: one configuration, and neither MPS nor feature discovery."""
    mps = any(config.mode == "mps" for config in by_node.values())
    reasons = ["MPS needs the chart's daemon"] if mps else []
    plugin_configurations = plugin_configs(desired, by_node)
    reasons += ["several configurations need the chart's config manager"] if len(plugin_configurations) > 1 else []
    reasons += ["GPU Feature Discovery comes with the chart"] if desired.extras.gfd else []
    strategies = device_list_strategies(recipe, nodes)
    if not reasons and form in {"manifests", "kustomize"}:
        (config,) = plugin_configurations.values()
        description = _describe_config(config)
        settings = plugin_config(config, nodes, recipe.gpudirect, strategies)
        config_map = objects.make_plugin_config_map(namespace, settings, description, hashed=form != "kustomize")
        mig, cdi = config.strategy != "none", bool(strategies)
        return [
            config_map,
            objects.make_plugin_daemon_set(desired, namespace, config_map.name, nodes, mig=mig, cdi=cdi),
        ], []
    if not objects.has_usual_kubelet_root(nodes):
        raise Refused(
            f"the chart nvidia-device-plugin cannot be used on {nodes[0].kubelet}",
            why=f"{reasons[0] if reasons else f'--format {form} uses the chart'}, and it mounts /var/lib/kubelet; "
            f"this kubelet's folder is {objects.kubelet_root(nodes)}",
            hint='use stack = "gpu-operator", or one configuration without MPS and gfd with --format manifests',
        )
    gfd = desired.extras.gfd or mps
    return [], [releases.make_device_plugin(desired, namespace, by_node, nodes, recipe.gpudirect, strategies, gfd=gfd)]


def _describe_config(config: SharingConfig) -> str:
    """Return the configuration in a sentence."""
    if config.mode != "none":
        return f"Each GPU is offered {config.replicas} times, shared by {config.mode}."
    if config.strategy != "none":
        return f"MIG instances are offered, strategy {config.strategy}."
    return "Each GPU is offered once, whole."


def _operator_installs(recipe: Recipe, nodes: Sequence[ClusterNode]) -> tuple[bool, bool]:
    """Return whether the GPU Operator installs the driver, and the toolkit: if the recipe and some node lack it."""
    # On a host of GKE's gpunode sets up neither, whatever the recipe says.
    is_left_to_operator = is_gke(nodes)
    driver = (is_left_to_operator or recipe.driver.version == "none") and not all(node.driver for node in nodes)
    toolkit = (is_left_to_operator or recipe.toolkit.version == "none") and not all(node.toolkit for node in nodes)
    return driver, toolkit


def _node_edits(
    recipe: Recipe, desired: Kubernetes, nodes: Sequence[ClusterNode], by_node: Mapping[str, SharingConfig]
) -> Iterator[NodeEdit]:
    taint = desired.taint
    value = f"={taint.value}" if taint.value else ""
    taint_text = f"{taint.key}{value}:{taint.effect}" if taint.key else ""
    several = len(plugin_configs(desired, by_node)) > 1
    for node in nodes:
        labels = {**desired.labels, **_node_labels(recipe, desired, nodes, node, by_node[node.name])}
        if several and desired.stack in {"device-plugin", "gpu-operator"}:
            labels[PLUGIN_CONFIG_LABEL] = by_node[node.name].name
        yield NodeEdit(node.name, dict(sorted(labels.items())), taint_text, describe_gpus(node))


def _node_labels(
    recipe: Recipe, desired: Kubernetes, nodes: Sequence[ClusterNode], node: ClusterNode, config: SharingConfig
) -> Mapping[str, str]:
    """Return the labels by which the stack finds the node."""
    if desired.stack != "gpu-operator":
        return stack_labels(desired.stack)
    # Keep the operator from installing what a node has already.
    driver, toolkit = _operator_installs(recipe, nodes)
    found = {MIG_CONFIG_LABEL: config.layout} if config.layout else {}
    found |= {f"{_OPERATOR_DEPLOY_LABEL_PREFIX}driver": "false"} if driver and node.driver else {}
    return found | ({f"{_OPERATOR_DEPLOY_LABEL_PREFIX}container-toolkit": "false"} if toolkit and node.toolkit else {})


def _expected_resources(desired: Kubernetes, node: ClusterNode, config: SharingConfig) -> Mapping[str, int] | None:
    if desired.stack == "dra":
        return None
    if desired.stack == "hami":
        return {GPU_RESOURCE: len(node.gpus) * desired.sharing.replicas}
    return count_resources(node, config)


def _notes(desired: Kubernetes, nodes: Sequence[ClusterNode], by_node: Mapping[str, SharingConfig]) -> Iterator[str]:
    modes = {config.mode for config in by_node.values()}
    yield from (text for mode, text in _SHARING_NOTES.items() if mode in modes)
    yield from unmatched_notes(desired, nodes)
    if desired.stack != "gpu-operator":
        yield from _layout_notes(by_node)
    if "mps" in modes and desired.stack == "device-plugin" and not desired.extras.gfd:
        yield "MPS needs GPU Feature Discovery, so it is rendered, too."
    if desired.stack in {"device-plugin", "hami"} and _cluster_provides_runtime_class(desired, nodes):
        yield "k3s (1.29 or later) and RKE2 (1.32.1 or later) make the RuntimeClass nvidia, so it is not rendered."
    if desired.kind.workers:
        yield "kind.sh, written with --output, makes the cluster; apply.sh runs it first."
    if any(config.strategy == "mixed" and not config.layout for config in by_node.values()):
        yield "Without a layout gpunode cannot tell which MIG profiles are offered, so no test pod is rendered."


def _layout_notes(by_node: Mapping[str, SharingConfig]) -> Iterator[str]:
    """Yield a note for each MIG layout that the device plugin is to offer, with where it comes from."""
    found: dict[str, list[str]] = {}
    for node, config in by_node.items():
        if config.strategy != "none" and config.layout:
            found.setdefault(config.layout, []).append(node)
    for layout, names in found.items():
        yield f"`gpunode setup` with this recipe sets the MIG layout {layout}; run it on {', '.join(names)} first."
