"""Render the objects that a recipe needs for some nodes. Pure, and deterministic to the byte."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, TypeAlias, get_args

from gpunode.container_runtimes import CONTAINER_RUNTIMES
from gpunode.errors import Refused
from gpunode.kubernetes import objects, releases
from gpunode.kubernetes.cluster_nodes import refuse_provider_nodes
from gpunode.kubernetes.gitops import is_remote_cluster
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
from gpunode.kubernetes.sharing import (
    GPU_RESOURCE,
    GpuStack,
    SharingConfig,
    choose_configs,
    count_resources,
    describe_gpus,
    plugin_config,
    refuse_bad_configs,
    resources_of,
    unmatched_notes,
)
from gpunode.kubernetes.user_pod import describe_user_pod, describe_user_pods, device_list_strategies
from gpunode.recipe import Recipe
from gpunode.recipe.kubernetes import ArgoCd, Kubernetes, refuse_foreign_labels, stack_labels
from gpunode.wording import join_names

RenderFormat: TypeAlias = Literal["manifests", "kustomize", "argocd", "flux", "helm"]
RENDER_FORMS: Final[tuple[RenderFormat, ...]] = get_args(RenderFormat)
# In these forms a controller applies what is in git, and nobody runs apply.sh.
GITOPS_FORMS: Final = frozenset[RenderFormat]({"kustomize", "argocd", "flux"})
_DEFAULT_NAMESPACES: Final = {"gpu-operator": "gpu-operator", "hami": "kube-system"}
# Source: the DRA driver's documentation, "Prerequisites" (0.4).
_MIN_DRA_DRIVER_BRANCH: Final = 565
# `gpunode setup` registers it. Source for the operator's: its controllers/object_controls.go, transformRuntimeClass.
_HANDLER: Final = "nvidia"
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


def render_cluster(recipe: Recipe, nodes: Sequence[ClusterNode], form: RenderFormat = "manifests") -> RenderedCluster:
    """Return everything that the recipe needs in the cluster, for these nodes.

    Raises:
        Refused: the recipe contradicts itself, or needs what a node cannot do.
    """
    refuse_bad_tables(recipe)
    desired = recipe.kubernetes
    assert desired is not None  # checked
    gpu_nodes = _select_gpu_nodes(nodes)
    refuse_provider_nodes(desired, gpu_nodes)
    members = select_member_nodes(desired, gpu_nodes)
    for node in members if desired.stack == "dra" else ():
        branch = node.driver.partition(".")[0]
        if branch.isdigit() and int(branch) < _MIN_DRA_DRIVER_BRANCH:
            raise Refused(
                f"{node.name} has driver {node.driver}, too old for the DRA driver",
                why=f"it needs {_MIN_DRA_DRIVER_BRANCH} or newer",
                hint=f"set version in [driver] to a newer branch, run setup with it on {node.name}, and name a new "
                'capture\nor use stack = "device-plugin"',
            )
    # HAMi does not use the device plugin's configuration; its replicas are a separate limit.
    by_node = (
        {node.name: SharingConfig("whole") for node in members}
        if desired.stack == "hami"
        else choose_configs(desired, members)
    )
    namespace = desired.namespace or _DEFAULT_NAMESPACES.get(desired.stack, "gpu-system")
    stack = GpuStack(recipe, members, by_node, namespace)
    plain, charts = _render_stack(stack, form)
    edits = tuple(_node_edits(stack))
    if form in GITOPS_FORMS and any(key in chart.values for chart in charts for key in objects.NFD_SUBCHARTS):
        if rule := objects.make_feature_rule(edits, desired.taint):
            plain.append(rule)
        if objects.can_nfd_set_taint(desired.taint):
            charts = [objects.allow_tainting(chart) for chart in charts]
    resources = {
        node.name: ("",) if desired.stack == "dra" else resources_of(node, by_node[node.name]) for node in members
    }
    expected: dict[str, Mapping[str, int]] = {}
    for node in members if desired.stack != "dra" else ():
        shares = {GPU_RESOURCE: len(node.gpus) * desired.sharing.replicas}
        if offer := shares if desired.stack == "hami" else count_resources(node, by_node[node.name]):
            expected[node.name] = offer
    cluster: KindCluster | None = None
    if members != gpu_nodes:
        from gpunode.kubernetes import kind

        cluster = kind.make_cluster(recipe, desired.kind, len(gpu_nodes[0].gpus))
    return RenderedCluster(
        objects=tuple(sorted(plain, key=lambda one: one.wave)),
        releases=tuple(charts),
        nodes=edits,
        test_pod=tuple(_render_test_pods(stack, resources)),
        user_pods=describe_user_pods(recipe, members, resources),
        notes=(*_note_nodes_without_gpu(nodes), *_cluster_notes(stack)),
        expected=expected,
        kind=cluster,
        argocd=desired.argocd,
        flux=desired.flux,
    )


def _render_test_pods(stack: GpuStack, resources: Mapping[str, Sequence[str]]) -> Iterator[RenderedObject]:
    """Yield a test pod, after the objects it needs, for each configuration of the nodes."""
    for config in (configs := dict.fromkeys(stack.configs[node.name] for node in stack.nodes)):
        having = [node for node in stack.nodes if stack.configs[node.name] == config]
        if names := resources[having[0].name]:
            only = (config.name, [node.name for node in having]) if len(configs) > 1 else None
            own = describe_user_pod(stack.recipe, stack.nodes, having, names[0])
            yield from objects.make_test_pod(stack.kubernetes, stack.namespace, own, only)


def select_member_nodes(desired: Kubernetes, nodes: Sequence[ClusterNode]) -> tuple[ClusterNode, ...]:
    """Return the nodes of the cluster: the given ones, or the workers of the kind cluster on the given machine.

    Raises:
        Refused: no kind cluster can be created there.
    """
    if not desired.kind.workers:
        return tuple(nodes)
    from gpunode.kubernetes import kind  # loaded on use: most clusters are not kind's

    return kind.make_workers(desired.kind, nodes)


def _select_gpu_nodes(nodes: Sequence[ClusterNode]) -> tuple[ClusterNode, ...]:
    gpu_nodes = tuple(sorted((node for node in nodes if node.gpus), key=lambda node: node.name))
    if not gpu_nodes:
        raise Refused(
            "no NVIDIA GPU found on " + (", ".join(node.name for node in nodes) or "any node"),
            why="there is nothing to offer to pods",
            hint="save each GPU node there: sudo gpunode capture node.tar.gz\n"
            "then name the captures here with --node node.tar.gz",
        )
    names = [node.name for node in gpu_nodes]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise Refused(
            f"several captures are of the node {duplicates[0]}",
            why="each node is rendered once",
            hint="name one capture of each node",
        )
    return gpu_nodes


def _render_stack(stack: GpuStack, form: RenderFormat) -> tuple[list[RenderedObject], list[ChartRelease]]:
    desired = stack.kubernetes
    plain = [] if stack.namespace == "kube-system" else [objects.make_namespace(stack.namespace)]
    exporter = desired.extras.dcgm_exporter and desired.stack != "gpu-operator"
    # The GPU Operator creates its own.
    if (
        desired.runtime_class
        and (desired.stack in {"device-plugin", "hami"} or exporter)
        and not _cluster_provides_runtime_class(stack)
    ):
        plain.append(objects.make_nvidia_runtime_class(desired.runtime_class))
    charts: list[ChartRelease] = []
    match desired.stack:
        case "device-plugin":
            plugin_objects, charts = _render_device_plugin(stack, form)
            plain += plugin_objects
        case "gpu-operator":
            charts = [releases.make_gpu_operator(stack)]
        case "hami":
            charts = [releases.make_hami(stack)]
        case "dra":
            charts = [releases.make_dra_driver(stack)]
        case "none":
            pass
    if exporter:
        charts.append(releases.make_dcgm_exporter(stack))
    return plain, charts


def _cluster_provides_runtime_class(stack: GpuStack) -> bool:
    """Return whether the cluster creates the RuntimeClass itself: removing ours would remove that one, too.

    Sources: k3s issue 8700 (1.29 and later); rke2 issue 7242 (1.32.1 and later, 1.29.13, 1.30.9, 1.31.5).
    """
    return stack.kubernetes.runtime_class == "nvidia" and all(node.kubelet in {"k3s", "rke2"} for node in stack.nodes)


def _render_device_plugin(stack: GpuStack, form: RenderFormat) -> tuple[list[RenderedObject], list[ChartRelease]]:
    """Return plain objects if they suffice: with one configuration, without MPS and without feature discovery."""
    desired, nodes = stack.kubernetes, stack.nodes
    reasons = ["MPS needs the chart's daemon"] if any(config.mode == "mps" for config in stack.configs.values()) else []
    reasons += ["several configurations need the chart's config manager"] if len(stack.plugin_configs) > 1 else []
    reasons += ["GPU Feature Discovery comes with the chart"] if desired.extras.gfd else []
    strategies = device_list_strategies(stack.recipe, nodes)
    if not reasons and form in {"manifests", "kustomize"}:
        (config,) = stack.plugin_configs.values()
        why = "Each GPU is offered once, whole."
        if config.mode != "none":
            why = f"Each GPU is offered {config.replicas} times, shared by {config.mode}."
        elif config.strategy != "none":
            why = f"MIG instances are offered, strategy {config.strategy}."
        settings = plugin_config(config, nodes, stack.recipe.gpudirect, strategies)
        config_map = objects.make_plugin_config_map(stack.namespace, settings, why, hashed=form != "kustomize")
        mig, cdi = config.strategy != "none", bool(strategies)
        plugin = objects.make_plugin_daemon_set(desired, stack.namespace, config_map.name, nodes, mig=mig, cdi=cdi)
        return [config_map, plugin], []
    if not objects.has_usual_kubelet_root(nodes):
        raise Refused(
            f"the chart nvidia-device-plugin cannot be used on {nodes[0].kubelet}",
            why=f"{reasons[0] if reasons else f'--format {form} uses the chart'}, and it mounts /var/lib/kubelet; "
            f"this kubelet's folder is {objects.kubelet_root(nodes)}",
            hint='use stack = "gpu-operator", or one configuration without MPS and gfd with --format manifests',
        )
    return [], [releases.make_device_plugin(stack, strategies)]


def _node_edits(stack: GpuStack) -> Iterator[NodeEdit]:
    desired, taint = stack.kubernetes, stack.kubernetes.taint
    value = f"={taint.value}" if taint.value else ""
    taint_text = f"{taint.key}{value}:{taint.effect}" if taint.key else ""
    for node in stack.nodes:
        labels = {**desired.labels, **_node_labels(stack, node)}
        if len(stack.plugin_configs) > 1 and desired.stack in {"device-plugin", "gpu-operator"}:
            labels[PLUGIN_CONFIG_LABEL] = stack.configs[node.name].name
        yield NodeEdit(node.name, dict(sorted(labels.items())), taint_text, describe_gpus(node))


def _node_labels(stack: GpuStack, node: ClusterNode) -> Mapping[str, str]:
    """Return the labels by which the stack finds the node."""
    if stack.kubernetes.stack != "gpu-operator":
        return stack_labels(stack.kubernetes.stack)
    # Keep the operator from installing what a node already has.
    driver, toolkit = releases.operator_installs(stack)
    layout = stack.configs[node.name].layout
    labels = {MIG_CONFIG_LABEL: layout} if layout else {}
    labels |= {f"{_OPERATOR_DEPLOY_LABEL_PREFIX}driver": "false"} if driver and node.driver else {}
    return labels | ({f"{_OPERATOR_DEPLOY_LABEL_PREFIX}container-toolkit": "false"} if toolkit and node.toolkit else {})


def _note_nodes_without_gpu(nodes: Sequence[ClusterNode]) -> Iterator[str]:
    if names := sorted(node.name for node in nodes if not node.gpus):
        yield f"No NVIDIA GPU is in the capture of {join_names(names, 3)}: left out."


def _cluster_notes(stack: GpuStack) -> Iterator[str]:
    desired, by_node = stack.kubernetes, stack.configs
    modes = {config.mode for config in by_node.values()}
    yield from (text for mode, text in _SHARING_NOTES.items() if mode in modes)
    yield from unmatched_notes(desired, stack.nodes)
    if desired.stack != "gpu-operator":
        layouts = dict.fromkeys(one.layout for one in by_node.values() if one.strategy != "none" and one.layout)
        for layout in layouts:
            names = [name for name, one in by_node.items() if one.strategy != "none" and one.layout == layout]
            yield f"`gpunode setup` with this recipe sets the MIG layout {layout}; run it on {', '.join(names)} first."
    if "mps" in modes and desired.stack == "device-plugin" and not desired.extras.gfd:
        yield "MPS needs GPU Feature Discovery, so it is rendered, too."
    if desired.stack in {"device-plugin", "hami"} and _cluster_provides_runtime_class(stack):
        yield "k3s (1.29 or later) and RKE2 (1.32.1 or later) make the RuntimeClass nvidia, so it is not rendered."
    if desired.kind.workers:
        yield "kind.sh, written with --output, makes the cluster; apply.sh runs it first."
    if any(config.strategy == "mixed" and not config.layout for config in by_node.values()):
        yield "Without a layout gpunode cannot tell which MIG profiles are offered, so no test pod is rendered."


_FORBIDDEN_NAMESPACES: Final = frozenset({"default", "kube-public", "kube-node-lease"})


def refuse_bad_tables(recipe: Recipe) -> None:
    """Refuse a recipe whose Kubernetes tables contradict each other or the rest.

    Raises:
        Refused: they do, or there are none.
    """
    desired = recipe.kubernetes
    if desired is None or desired.stack == "none":
        raise Refused(
            f"the recipe {recipe.name} does not configure Kubernetes",
            why="it has no [kubernetes] table with a stack",
            hint='add one, such as:\n[kubernetes]\nstack = "device-plugin"',
        )
    if desired.namespace in _FORBIDDEN_NAMESPACES:
        raise Refused(
            f"[kubernetes] namespace cannot be {desired.namespace}",
            why="it is the cluster's own, and its pods would become privileged",
            hint="leave namespace out, or name one for the GPU stack",
        )
    refuse_foreign_labels(desired)
    if desired.taint.value and not desired.taint.key:
        raise Refused(
            "[kubernetes.taint] has a value and no key",
            why="without a key there is no taint",
            hint='set key, such as key = "nvidia.com/gpu"',
        )
    _refuse_bad_argocd(desired.argocd)
    _refuse_bad_runtime(recipe, desired)
    if desired.stack in {"hami", "dra"}:
        _refuse_ignored_sharing(desired)
    if desired.stack != "hami":
        refuse_bad_configs(desired)
    strategies = {config.strategy for config in desired.configs.values()} | {desired.mig.strategy}
    if desired.stack == "gpu-operator" and len(strategies - {"none"}) > 1:
        raise Refused(
            "the configurations differ in their MIG strategy",
            why="the GPU Operator has one strategy for all nodes; its setting overrides the device plugin's file",
            hint="use single or mixed in [kubernetes.mig] and all [kubernetes.configs]",
        )


def _refuse_bad_argocd(argocd: ArgoCd) -> None:
    if argocd.server and argocd.cluster:
        raise Refused(
            "[kubernetes.argocd] has both a server and a cluster",
            why="both name the cluster that has the GPUs, and Argo CD takes only one of them",
            hint="leave one of them out",
        )
    if is_remote_cluster(argocd) and not argocd.repository:
        raise Refused(
            "[kubernetes.argocd] names another cluster and no repository",
            why="Argo CD applies the namespace and other plain objects to that cluster from git",
            hint="set repository to the git repository that holds the rendered folder, and path to the folder in it",
        )


def _refuse_bad_runtime(recipe: Recipe, desired: Kubernetes) -> None:
    runtime = recipe.runtime
    row = CONTAINER_RUNTIMES.get(runtime.name)
    if row is not None and not row.runs_pods:
        raise Refused(
            f"kubelets do not run pods with {row.id}",
            why=f"the recipe {recipe.name} configures {row.id}",
            hint='set name in [runtime] to "containerd" or "crio"',
        )
    is_docker = row is not None and row.container_client == "docker run"
    if desired.kind.workers and not (is_docker and runtime.set_as_default and recipe.toolkit.volume_mounts):
        raise Refused(
            "the nodes of the kind cluster would get no GPU",
            why="they are docker containers with docker's default runtime, and request GPUs by mounts",
            hint='set name = "docker" and set_as_default = true in [runtime], and volume_mounts = true in [toolkit]',
        )
    needs_class = desired.stack in {"device-plugin", "hami"} and runtime.name != "none"
    if needs_class and not desired.runtime_class and not runtime.set_as_default:
        raise Refused(
            "the device plugin would find no GPU",
            why="its pod has no RuntimeClass, and nvidia is not the default runtime",
            hint='set runtime_class = "nvidia" in [kubernetes], or set_as_default = true in [runtime]',
        )
    if (
        desired.stack == "gpu-operator"
        and desired.runtime_class not in {"", _HANDLER}
        and recipe.toolkit.version != "none"
    ):
        raise Refused(
            f"the GPU Operator would look for a handler {desired.runtime_class} on the nodes",
            why=f"it gives its RuntimeClass a handler of the same name, and gpunode setup registers {_HANDLER}",
            hint=f'set runtime_class = "{_HANDLER}" in [kubernetes]',
        )
    if desired.stack == "dra" and row is not None and row.cdi_support == "switch" and not runtime.cdi:
        raise Refused(
            "the DRA driver needs CDI in containerd",
            why="it gives GPUs to containers as CDI devices",
            hint="set cdi = true in [runtime]",
        )


def _refuse_ignored_sharing(desired: Kubernetes) -> None:
    sharing = desired.sharing
    has_sharing = sharing.mode != "none" or sharing.rename or (desired.stack == "dra" and sharing.replicas > 1)
    ignored = ["[kubernetes.sharing]"] if has_sharing else []
    ignored += ["[kubernetes.mig]"] if desired.mig.strategy != "none" or desired.mig.layout else []
    ignored += ["[kubernetes.configs]"] if desired.configs else []
    ignored += ["gfd in [kubernetes.extras]"] if desired.extras.gfd else []
    if not ignored:
        return
    if desired.stack == "hami":
        raise Refused(
            f"HAMi does not use {', '.join(ignored)}",
            why="it shares GPUs itself: its scheduler gives each pod the memory and cores that it asks for",
            hint="leave them out; in [kubernetes.sharing], HAMi takes replicas",
        )
    raise Refused(
        f"gpunode renders no {', '.join(ignored)} for the DRA driver",
        why="the driver offers whole GPUs; sharing is an alpha feature of it, off by default",
        hint='leave them out, or use stack = "device-plugin"',
    )
