"""Checks of a running cluster: its GPU nodes, and the workloads that offer their GPUs. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from gpunode.check import Check
from gpunode.command import Command, command, sudo_gpunode
from gpunode.fast_dataclass import dataclass
from gpunode.kubernetes.advertisers import is_advertiser, is_made_by_operator, release_of
from gpunode.kubernetes.model import GPU_PRESENT_LABEL, Body, ChartRelease, ClusterNode, NodeEdit, RenderedCluster
from gpunode.kubernetes.objects import make_tolerations
from gpunode.kubernetes.pods import PodProblem, find_problem, find_refused_pods, format_taint, tolerates
from gpunode.recipe.kubernetes import Kubernetes, Stack
from gpunode.wording import count_noun

# Returns the check of a node's container runtime if the node is this machine.
LocalCheck: TypeAlias = Callable[[], Check | None]

DRA_DRIVER_NAME: Final = "gpu.nvidia.com"
# The static CPU manager needs the device nodes passed to the kubelet (k8s-device-plugin's documentation,
# compatWithCPUManager). The GPU Operator sets PASS_DEVICE_SPECS (assets/state-device-plugin), the DRA driver uses CDI;
# for the other stacks gpunode renders the setting if it knows such a node.
_STACKS_FIT_FOR_STATIC_CPUS: Final[frozenset[Stack]] = frozenset({"gpu-operator", "dra"})
_HINT_BY_UNREADY_REASON: Final = {
    "container runtime is down": "look at its container runtime, on {node}: {runtime}",
    "NetworkPluginNotReady": "install a network plugin (CNI) in the cluster",
    "NodeStatusUnknown": "look at its kubelet, on {node}: {kubelet}",
}

# Their unit, such as k3s or k3s-agent, runs both. The kubelet's version names them.
_PRODUCTS_WITH_ONE_UNIT: Final = ("k3s", "rke2", "k0s")


def check_node(edit: NodeEdit, live: Body | None, apply: Command) -> Check:
    """Check whether the Node exists, is ready, and has the labels by which the stack finds it.

    ``apply`` is the command that applies the recipe, as in the functions below.
    """
    id, title = f"node/{edit.node}", f"Node {edit.node}"  # noqa: A001 - the check's own word
    if live is None:
        hint = f"list its Nodes: {command('kubectl', 'get', 'nodes')}\nthen name the Node with --node NAME=CAPTURE"
        return Check(id, title, "failed", "there is no such Node in this cluster", hint)
    if why := explain_node_not_ready(live):
        text = next((text for sign, text in _HINT_BY_UNREADY_REASON.items() if sign in why), "")
        runtime, kubelet = (command("systemctl", "status", unit) for unit in _units_of(live))
        hint = text.format(node=edit.node, runtime=runtime, kubelet=kubelet)
        return Check(
            id, title, "failed", f"it is not ready: {why}", hint or command("kubectl", "describe", "node", edit.node)
        )
    labels = live["metadata"].get("labels", {})
    if missing := [f"{name}={value}" for name, value in edit.labels.items() if labels.get(name) != value]:
        return Check(id, title, "failed", f"it lacks the label {', '.join(missing)}", str(apply))
    cordoned = ["cordoned"] if live.get("spec", {}).get("unschedulable") else []
    written = [f"{name}={value}" for name, value in edit.labels.items()]
    return Check(id, title, "passed", ", ".join(["Ready", *cordoned, *written]))


def _units_of(live: Body) -> tuple[str, str]:
    """Return the systemd units, or patterns, of the Node's container runtime and kubelet."""
    version = str(live.get("status", {}).get("nodeInfo", {}).get("kubeletVersion", ""))
    if product := next((name for name in _PRODUCTS_WITH_ONE_UNIT if f"+{name}" in version), ""):
        return f"{product}*", f"{product}*"
    return "crio" if _container_runtime(live).startswith("cri-o://") else "containerd", "kubelet"


def explain_node_not_ready(live: Body) -> str:
    """Return why the Node is not ready, in the kubelet's words; empty if it is ready."""
    for condition in live.get("status", {}).get("conditions", ()):
        if condition.get("type") == "Ready":
            message = f"{condition.get('reason', '')}: {condition.get('message', '')}".strip(": ")
            return "" if condition.get("status") == "True" else message or "its kubelet gives no reason"
    return "its kubelet has not reported yet"


def check_handlers(
    name: str, runtime_class: Body | None, nodes: Mapping[str, Body], local_check: LocalCheck, apply: Command
) -> Iterator[Check]:
    """Check whether the RuntimeClass exists, and each node's container runtime has its handler.

    Source: Node.status.runtimeHandlers, which Kubernetes 1.30 and later have with containerd 2 and CRI-O.
    """
    title = f"RuntimeClass {name}"
    if runtime_class is None:
        yield Check("runtime-class", title, "failed", "it is not in this cluster", str(apply))
        return
    handler = str(runtime_class.get("handler", ""))
    yield Check("runtime-class", title, "passed", f"its handler is {handler}")
    for node, live in nodes.items():
        yield _check_handler(handler, node, live, local_check)


def _check_handler(handler: str, node: str, live: Body, local_check: LocalCheck) -> Check:
    id, title = f"handler/{node}", f"handler {handler} on {node}"  # noqa: A001
    handlers = [str(one.get("name", "")) for one in live.get("status", {}).get("runtimeHandlers", ())]
    if handler in handlers:
        return Check(id, title, "passed", "its container runtime has it")
    if any(handlers):
        handler_names = ", ".join(sorted(filter(None, handlers)))
        hint = f"on {node}: {setup_command(live)}"
        return Check(id, title, "failed", f"its container runtime has only: {handler_names}", hint)
    if local := local_check():
        return replace(local, id=id, title=title)
    runtime = _container_runtime(live) or "its container runtime"
    return Check(
        id,
        title,
        "skipped",
        f"{runtime} does not report its handlers to the cluster (containerd 2 does, from Kubernetes 1.30 on); "
        f"on {node}: {sudo_gpunode('verify')}",
    )


def setup_command(live: Body) -> Command:
    """Return the command that sets up a node for its own container runtime."""
    return sudo_gpunode("setup", "crio" if _container_runtime(live).startswith("cri-o://") else "k8s-containerd")


def _container_runtime(live: Body) -> str:
    """Return the Node's container runtime with its version (``containerd://2.1.9``); empty if it is not reported."""
    return str(live.get("status", {}).get("nodeInfo", {}).get("containerRuntimeVersion", ""))


def check_resources(
    node: ClusterNode, live: Body, expected: Mapping[str, int] | None, apply: Command
) -> Iterator[Check]:
    """Check whether the Node offers as many of each resource as its GPUs and the recipe provide.

    ``expected`` is the count of each resource; None if the recipe does not determine it.
    """
    if expected is None:
        why = "the recipe names no MIG layout, so gpunode cannot tell how many instances there should be"
        yield Check(f"resource/{node.name}", f"GPUs offered by {node.name}", "skipped", why)
        return
    for resource, number in expected.items():
        yield _check_resource(node, live, resource, number, apply)


def _check_resource(node: ClusterNode, live: Body, resource: str, expected: int, apply: Command) -> Check:
    id, title = f"resource/{node.name}/{resource}", f"{resource} on {node.name}"  # noqa: A001
    capacity, allocatable = read_resource(live, resource)
    doctor = f"on {node.name}: {sudo_gpunode('doctor')}"
    present = [name for name in live.get("status", {}).get("capacity", {}) if name.startswith(_NVIDIA_RESOURCE_PREFIX)]
    offered = [f"{many} × {name}" for name in present if (many := read_resource(live, name)[1])]
    if not capacity and not offered:
        why = f"0 offered, {expected} expected: no device plugin has registered with its kubelet"
        return Check(
            id, title, "failed", why, f"look at the device plugin's pod on {node.name}: {_pods_command(node.name)}"
        )
    if capacity and not allocatable:
        why = f"0 of {capacity} are allocatable: the device plugin is gone, or reports every GPU as unhealthy"
        return Check(id, title, "failed", why, f"look at its pod: {_pods_command(node.name)}\n{doctor}")
    if allocatable < capacity:
        why = f"{capacity - allocatable} of {capacity} are reported as unhealthy by the device plugin"
        return Check(id, title, "failed", why, f"{doctor}\n(cause device-plugin-marked-unhealthy)")
    if allocatable != expected:
        why = f"{allocatable} offered, {expected} expected of {count_noun(len(node.gpus), 'GPU')}"
        why += "" if capacity else f"; it offers {', '.join(offered)}"
        plan = str(apply).replace("k8s apply", "k8s plan", 1)
        hint = f"see whether the plugin has the recipe's configuration: {plan}\n"
        hint += "if so, delete its pod, which reads it only when it starts; the DaemonSet creates a new one. Find it: "
        hint += f"{_pods_command(node.name)}\n{doctor}"
        return Check(id, title, "failed", why, hint)
    return Check(id, title, "passed", f"{allocatable} offered, as expected")


_NVIDIA_RESOURCE_PREFIX: Final = "nvidia.com/"


def _pods_command(node: str) -> Command:
    return command("kubectl", "get", "pods", "--all-namespaces", "--field-selector", f"spec.nodeName={node}")


def read_resource(live: Body, resource: str) -> tuple[int, int]:
    """Return the Node's capacity of a resource, and how much of it pods can get."""
    status = live.get("status", {})
    return _parse_quantity(status.get("capacity", {}).get(resource)), _parse_quantity(
        status.get("allocatable", {}).get(resource)
    )


def _parse_quantity(quantity: object) -> int:
    """Return an integer quantity (``8``, ``1k``); extended resources have no others."""
    text = str(quantity or "0")
    factor = {"k": 1000, "M": 1_000_000}.get(text[-1:], 1)
    digits = text.rstrip("kM")
    return int(digits) * factor if digits.isdigit() else 0


def check_published_slices(node: ClusterNode, slices: Sequence[Body]) -> Check:
    """Check whether the DRA driver publishes as many GPUs as the node has."""
    id, title = f"resource-slices/{node.name}", f"ResourceSlices of {node.name}"  # noqa: A001
    # Before resource.k8s.io/v1, the attributes are nested one level deeper.
    own_devices = [
        device.get("attributes") or device.get("basic", {}).get("attributes", {})
        for one in slices
        if one["spec"].get("driver") == DRA_DRIVER_NAME and one["spec"].get("nodeName") == node.name
        for device in one["spec"].get("devices") or ()
    ]
    gpus = sum(device.get("type", {}).get("string", "") == "gpu" for device in own_devices)
    look = f"look at the DRA driver's pod: {_pods_command(node.name)}"
    if not own_devices:
        return Check(id, title, "failed", f"the driver {DRA_DRIVER_NAME} publishes none", look)
    if gpus != len(node.gpus):
        return Check(id, title, "failed", f"{count_noun(gpus, 'GPU')} published, {len(node.gpus)} expected", look)
    return Check(id, title, "passed", f"{count_noun(gpus, 'GPU')} published, as expected")


def check_kubelet(
    node: str, settings: Mapping[str, Any], desired: Kubernetes, taints: Sequence[Body], *, passes_devices: bool
) -> Check:
    """Check whether the kubelet's settings let pods keep their GPUs, and let the test pod onto the node.

    ``taints`` are the Node's present ones: a startup taint that an agent removes does no harm. ``passes_devices`` says
    whether the device plugin was rendered for a static CPU manager.
    """
    id, title = f"kubelet/{node}", f"kubelet of {node}"  # noqa: A001
    present = {(taint["key"], taint["effect"]) for taint in taints}
    for taint in settings.get("registerWithTaints") or ():
        if taint["effect"] == "PreferNoSchedule" or (taint["key"], taint["effect"]) not in present:
            continue
        taint_text = format_taint(taint)
        desired_taint = desired.taint
        if (
            desired_taint.key
            and (taint["key"], taint["effect"]) == (desired_taint.key, desired_taint.effect)
            and taint.get("value", "") != desired_taint.value
        ):
            why = f"registerWithTaints sets {taint_text}, the recipe the value {desired_taint.value!r}"
            return Check(id, title, "failed", why, f'set value = "{taint.get("value", "")}" in [kubernetes.taint]')
        if not any(tolerates(toleration, taint) for toleration in make_tolerations(desired)):
            why = f"registerWithTaints sets {taint_text}, which the GPU stack's pods do not tolerate"
            return Check(id, title, "failed", why, f'name it in [kubernetes.taint]: key = "{taint["key"]}"')
    if settings.get("cpuManagerPolicy") == "static" and not (
        passes_devices or desired.stack in _STACKS_FIT_FOR_STATIC_CPUS
    ):
        why = "its CPU manager is static, and the device plugin does not pass device specs: pods may lose their GPUs"
        hint = f"take a new capture of {node}, which records that: {sudo_gpunode('capture', f'{node}.tar.gz')}\n"
        hint += "then apply with it, which renders the device plugin for a static CPU manager"
        return Check(id, title, "failed", why, hint)
    policies = [f"{name} {settings.get(key) or 'none'}" for name, key in _KUBELET_POLICY_KEYS.items()]
    return Check(id, title, "passed", ", ".join(policies))


_KUBELET_POLICY_KEYS: Final = {"topology manager": "topologyManagerPolicy", "CPU manager": "cpuManagerPolicy"}


@dataclass(frozen=True, slots=True)
class RequiredDaemonSet:
    """A DaemonSet that the recipe needs.

    Attributes:
        live: the DaemonSet; None if it does not exist.
        must_run_pods: whether it is a fault if none of its pods run; parts of charts run only on some nodes.
        why: what is missing, if the DaemonSet's name is unknown.
        release: the release that made it, or lacks it; None for gpunode's own.
    """

    title: str
    live: Body | None
    must_run_pods: bool = True
    why: str = ""
    release: ChartRelease | None = None

    @property
    def pod_counts(self) -> tuple[int, int]:
        """The numbers of nodes that should run it, and of those where its current version is ready."""
        live = self.live or {}
        status, generation = live.get("status", {}), live.get("metadata", {}).get("generation", 0)
        desired = int(status.get("desiredNumberScheduled", 0))
        if status.get("observedGeneration", 0) < generation:
            return desired, 0
        ready, updated = int(status.get("numberReady", 0)), int(status.get("updatedNumberScheduled", 0))
        return desired, min(ready, updated)

    @property
    def is_ready(self) -> bool:
        """True if it has pods and all of them are ready."""
        desired, ready = self.pod_counts
        return ready >= desired > 0

    @property
    def is_running(self) -> bool:
        """True if its pods are ready, or it runs on no node and may do so."""
        return self.is_ready or (self.live is not None and not self.must_run_pods and not self.pod_counts[0])

    @property
    def namespace(self) -> str:
        """The namespace of its pods."""
        return str((self.live or {"metadata": {}})["metadata"].get("namespace", ""))

    @property
    def selector(self) -> str:
        """The label selector of its pods, in kubectl's syntax."""
        labels = (self.live or {}).get("spec", {}).get("selector", {}).get("matchLabels", {})
        return ",".join(f"{name}={value}" for name, value in labels.items())


def find_required_daemon_sets(rendered: RenderedCluster, daemon_sets: Sequence[Body]) -> Iterator[RequiredDaemonSet]:
    """Yield the DaemonSets of the rendered objects and of the charts' releases."""
    live = {(one["metadata"].get("namespace", ""), one["metadata"]["name"]): one for one in daemon_sets}
    for one in rendered.objects:
        if one.kind == "DaemonSet":
            yield RequiredDaemonSet(f"DaemonSet {one.name}", live.get((one.namespace, one.name)))
    yield from find_release_daemon_sets(rendered.releases, daemon_sets)


def find_release_daemon_sets(
    releases: Sequence[ChartRelease], daemon_sets: Sequence[Body]
) -> Iterator[RequiredDaemonSet]:
    """Yield the DaemonSets of these releases; for a release that offers no GPUs, what it lacks."""
    for release in releases:
        # An existing release of the same chart, in any version (hami-2.10.0), keeps its own name.
        label = re.compile(rf"{re.escape(release.chart)}-v?\d")
        same_chart = (
            one for one in daemon_sets if label.match(one["metadata"].get("labels", {}).get("helm.sh/chart", ""))
        )
        names = {f"{release.namespace}/{release.name}", *map(release_of, same_chart)} - {""}
        is_operator = release.chart == "gpu-operator"
        release_daemon_sets = [
            live for live in daemon_sets if release_of(live) in names or (is_operator and is_made_by_operator(live))
        ]
        if not any(map(is_advertiser, release_daemon_sets)) and release.chart != "dcgm-exporter":
            why = (
                "it has no DaemonSet that offers GPUs"
                if release_daemon_sets
                else "it has created no DaemonSet: check that it is installed"
            )
            yield RequiredDaemonSet(release.title, None, why=why, release=release)
        for live in release_daemon_sets:
            must_run = is_advertiser(live) or release.chart == "dcgm-exporter"
            yield RequiredDaemonSet(f"DaemonSet {live['metadata']['name']}", live, must_run, release=release)


def check_daemon_set(
    workload: RequiredDaemonSet,
    apply: Command,
    pods: Sequence[Body] = (),
    events: Sequence[Body] = (),
    diagnosis: str = "",
) -> Check:
    """Check whether the DaemonSet runs on every node that it is for.

    If it is not ready, ``pods`` and their namespace's ``events`` say why; ``diagnosis`` is doctor's finding for the log
    of a crashing pod, as a sentence.
    """
    id = f"workload/{workload.namespace}/{workload.title.rpartition(' ')[2]}"  # noqa: A001 - the check's own word
    title = workload.title
    if workload.live is None:
        return Check(id, title, "failed", workload.why or "it is not in this cluster", str(apply))
    desired, ready = workload.pod_counts
    if workload.is_ready:
        return Check(id, title, "passed", f"{ready} of {desired} pods ready")
    if not desired and not workload.must_run_pods:
        return Check(id, title, "skipped", "no node matches it")
    state, problem = explain_unready(workload, pods, events)
    why = f"{state}: {problem.why}" + (f"; {diagnosis}" if diagnosis else "")
    return Check(id, title, "failed", why, problem.hint if desired else f"{problem.hint}\n{apply}")


def explain_unready(
    workload: RequiredDaemonSet, pods: Sequence[Body], events: Sequence[Body]
) -> tuple[str, PodProblem]:
    """Return how many of the workload's pods are ready, and why the others are not."""
    desired, ready = workload.pod_counts
    if workload.live is None and workload.release is not None:
        look = command("helm", "status", "--namespace", workload.release.namespace, workload.release.name)
        return "it offers no GPUs", PodProblem(workload.why, f"look at it: {look}")
    if not desired:
        why = f"its nodes are not ready, lack the label {GPU_PRESENT_LABEL}=true, or have a taint that keeps it off"
        hint = f"look at the nodes: kubectl describe nodes --selector {GPU_PRESENT_LABEL}=true"
        return "no node runs it", PodProblem(why, hint)
    show = command("kubectl", "describe", "pods", "--namespace", workload.namespace, "--selector", workload.selector)
    unknown = PodProblem("no pod reports a reason", f"look at its pods: {show}")
    # An event stays for an hour after the pods that it is about were created after all.
    refused = find_refused_pods(workload.live, events) if workload.live and len(pods) < desired else None
    return f"{ready} of {desired} pods are ready", find_first_pod_problem(pods, events) or refused or unknown


def find_first_pod_problem(pods: Sequence[Body], events: Sequence[Body]) -> PodProblem | None:
    """Return the problem of the first pod that has one."""
    return next((problem for pod in pods if (problem := find_problem(pod, events))), None)


def find_crashing_pod(pods: Sequence[Body]) -> Body | None:
    """Return a pod whose container ended although it should keep running, or None."""
    for pod in pods:
        for one in pod.get("status", {}).get("containerStatuses", ()):
            if not one.get("ready") and (one.get("restartCount") or one.get("state", {}).get("terminated")):
                return pod
    return None
