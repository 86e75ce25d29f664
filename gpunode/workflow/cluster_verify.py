"""Verify a cluster's GPU nodes: by its API server's view of them, then by a test pod on each."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from gpunode.check import Check
from gpunode.command import Command, command, gpunode
from gpunode.errors import ChangeFailed, GpunodeError, Undetermined
from gpunode.host.cluster import Body, Cluster, DryRunResult
from gpunode.host.port import OnProgress, Progress
from gpunode.kubernetes import live_checks
from gpunode.kubernetes.live_checks import (
    RequiredDaemonSet,
    check_daemon_set,
    find_crashing_pod,
    find_first_pod_problem,
    find_required_daemon_sets,
)
from gpunode.kubernetes.model import ClusterNode, NodeEdit, RenderedCluster
from gpunode.kubernetes.objects import TEST_POD_NAME
from gpunode.kubernetes.own_pod import with_common_cdi_choice
from gpunode.kubernetes.reconcile import OUR_LABEL_SELECTOR
from gpunode.kubernetes.render import cluster_members, render_cluster
from gpunode.kubernetes.sharing import SharingConfig, choose_configs
from gpunode.kubernetes.trials import (
    RUN_LABEL,
    GpuTestPod,
    GpuTestPodResult,
    check_sharing,
    check_test_pod,
    confirm_handler_by_test_pod,
    deadline_job,
    find_resource_users,
    has_ended,
    is_left_over,
    is_unscheduled,
    make_test_pods,
    with_owner,
)
from gpunode.recipe import Recipe
from gpunode.recipe.kubernetes import Kubernetes
from gpunode.workflow.cluster_plan import refuse_other_cluster
from gpunode.workflow.verify import VerifyReport

_POLL_INTERVAL_S: Final = 1.0
# A controller, or a pod that just ended, may still free a GPU; after that the scheduler's verdict is final.
_UNSCHEDULED_TIMEOUT_S: Final = 20.0
# The kubelet retries a failed sandbox every 12 to 15 seconds; one that still fails will not work.
_FAILING_TIMEOUT_S: Final = 40.0
_NAME_CHARACTERS: Final = "bcdfghjklmnpqrstvwxz2456789"


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """The options of a verification.

    Attributes:
        image: the image of the test pods; empty for the recipe's.
        timeout_s: how long they may take.
        apply_command: the command that applies the recipe, for hints.
        check_local_handler: returns the check of a node's container runtime if the node is this machine.
    """

    recipe: Recipe
    nodes: tuple[ClusterNode, ...]
    image: str
    timeout_s: int
    apply_command: Command
    check_local_handler: live_checks.LocalCheck


def verify(
    request: VerifyRequest, cluster: Cluster, *, check_interrupt: Callable[[], None], progress: OnProgress
) -> VerifyReport:
    """Check the cluster and run the test pods, which are deleted afterwards.

    Raises:
        Refused: if the recipe has nothing for Kubernetes, or needs what a node cannot do.
        UsageError, Undetermined: if the cluster cannot be reached.
        ChangeFailed: if a test pod could not be deleted.
        Interrupted: on a signal; the pods are deleted.
    """
    desired = render_cluster(request.recipe, request.nodes)
    kubernetes = request.recipe.kubernetes
    assert kubernetes is not None  # rendered
    if desired.kind:
        refuse_other_cluster(desired.kind, cluster.identify())
        # Its workers are containers of this machine with container runtimes of their own.
        request = replace(request, nodes=cluster_members(kubernetes, request.nodes), check_local_handler=lambda _: None)
    nodes = {node.name: node for node in request.nodes if node.gpus}
    live = {str(one["metadata"]["name"]): one for one in cluster.get([_node_ref(edit) for edit in desired.nodes])}
    ready = {name: body for name, body in live.items() if not live_checks.why_not_ready(body)}
    checks = [live_checks.check_node(edit, live.get(edit.node), request.apply_command) for edit in desired.nodes]
    checks += _check_handlers(kubernetes, ready, request, cluster)
    checks += _check_workloads(desired, request, cluster)
    checks += _check_offered_resources(
        kubernetes, desired, {name: nodes[name] for name in ready}, ready, request, cluster
    )
    for name in ready:
        check_interrupt()
        checks.append(_check_kubelet_settings(name, ready[name], request, cluster))
    test_pods, skipped = _make_test_pods(kubernetes, desired, nodes, ready, request)
    checks += _clear_leftovers(test_pods, cluster)
    results = _run_test_pods(test_pods, ready, request, cluster, check_interrupt, progress) if test_pods else ()
    pod_checks = [check_test_pod(ran, ready[ran.test_pod.node], request.apply_command) for ran in results]
    # A pod with a log was started through the handler, whether or not it found a GPU.
    through = {ran.test_pod.node for ran in results if ran.log and "runtimeClassName" in ran.test_pod.pod["spec"]}
    checks = [confirm_handler_by_test_pod(one, through) if one.id.startswith("handler/") else one for one in checks]
    return VerifyReport((*checks, *pod_checks, *_check_sharing(results), *skipped))


def _node_ref(edit: NodeEdit) -> Body:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": edit.node}}


def _check_or_skip(check: Callable[[], Sequence[Check]], id: str, title: str) -> Sequence[Check]:  # noqa: A002
    """Return the checks; one "skipped" if the credential may not read what they need."""
    try:
        return check()
    except Undetermined:
        raise
    except GpunodeError as error:
        return [Check(id, title, "skipped", f"{error.what}: {error.why}")]


def _check_handlers(
    desired: Kubernetes, nodes: Mapping[str, Body], request: VerifyRequest, cluster: Cluster
) -> Sequence[Check]:
    name = "" if desired.stack == "dra" else desired.runtime_class
    if not name:
        return ()
    place = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}}

    def check_runtime_class() -> Sequence[Check]:
        found = next(iter(cluster.get([place])), None)
        return [*live_checks.check_handlers(name, found, nodes, request.check_local_handler, request.apply_command)]

    return _check_or_skip(check_runtime_class, "runtime-class", f"RuntimeClass {name}")


def _check_workloads(rendered: RenderedCluster, request: VerifyRequest, cluster: Cluster) -> Sequence[Check]:
    def find_and_check_workloads() -> Sequence[Check]:
        found = find_required_daemon_sets(rendered, cluster.list("daemonsets.apps", "--all-namespaces"))
        return [_check_workload(one, request, cluster) for one in found]

    return _check_or_skip(find_and_check_workloads, "workloads", "DaemonSets")


def _check_workload(workload: RequiredDaemonSet, request: VerifyRequest, cluster: Cluster) -> Check:
    first = check_daemon_set(workload, request.apply_command)
    if first.status != "failed" or workload.live is None or not workload.selector:
        return first
    place = ("--namespace", workload.namespace)
    pods = cluster.list("pods", *place, "--selector", workload.selector)
    events = cluster.list("events", *place)
    pod = find_crashing_pod(pods)
    diagnosis = (
        _diagnose_log(pod, _read_log(cluster, workload.namespace, str(pod["metadata"]["name"])) or "") if pod else ""
    )
    return check_daemon_set(workload, request.apply_command, pods, events, diagnosis)


def _check_offered_resources(
    desired: Kubernetes,
    rendered: RenderedCluster,
    nodes: Mapping[str, ClusterNode],
    live: Mapping[str, Body],
    request: VerifyRequest,
    cluster: Cluster,
) -> Sequence[Check]:
    if desired.stack != "dra":
        return [
            check
            for name, node in nodes.items()
            for check in live_checks.check_resources(
                node, live[name], rendered.expected.get(name), request.apply_command
            )
        ]

    def check_resource_slices() -> Sequence[Check]:
        slices = cluster.list("resourceslices.resource.k8s.io")
        return [live_checks.check_published_slices(node, slices) for node in nodes.values()]

    return _check_or_skip(check_resource_slices, "resource-slices", "ResourceSlices")


def _check_kubelet_settings(node: str, live: Body, request: VerifyRequest, cluster: Cluster) -> Check:
    try:
        settings = cluster.read_kubelet_config(node)
    except GpunodeError as error:
        reason = (error.why or error.what).strip().splitlines()[-1]
        return Check(f"kubelet/{node}", f"kubelet of {node}", "skipped", f"its settings cannot be read: {reason}")
    assert request.recipe.kubernetes is not None  # rendered
    passes = any(one.static_cpus for one in request.nodes)
    taints = live.get("spec", {}).get("taints") or ()
    return live_checks.check_kubelet(node, settings, request.recipe.kubernetes, taints, passes_devices=passes)


def _make_test_pods(
    desired: Kubernetes,
    rendered: RenderedCluster,
    nodes: Mapping[str, ClusterNode],
    live: Mapping[str, Body],
    request: VerifyRequest,
) -> tuple[list[GpuTestPod], list[Check]]:
    """Return the trials to run, and a check with the reason for each node that gets none."""
    run = _random_name()
    recipe = with_common_cdi_choice(request.recipe, tuple(nodes.values()))
    by_node = {} if desired.stack == "hami" else choose_configs(desired, tuple(nodes.values()))
    made: list[GpuTestPod] = []
    skipped: list[Check] = []
    for name, node in nodes.items():
        why = ""
        if name not in live:
            why = "the Node is not there, or not ready"
        elif not (pod := render_cluster(recipe, (node,)).test_pod):
            why = "the recipe does not say which MIG resource a pod can request"
        else:
            candidates = make_test_pods(
                node,
                live[name],
                pod,
                by_node.get(name, SharingConfig("whole")),
                rendered.expected.get(name),
                run=run,
                new_name=lambda: f"{TEST_POD_NAME}-{_random_name()}",
                image=request.image,
                timeout_s=request.timeout_s,
            )
            for one in candidates:
                if one.resource and not live_checks.read_resource(live[name], one.resource)[1]:
                    why = f"the Node offers no {one.resource}"
                else:
                    made.append(one)
        if why:
            skipped.append(Check(f"pod/{name}", f"pod on {name}", "skipped", why))
    return made, skipped


def _random_name() -> str:
    """Return five random letters and digits without vowels, which spell no word."""
    return "".join(secrets.choice(_NAME_CHARACTERS) for _ in range(5))


def _run_test_pods(
    test_pods: Sequence[GpuTestPod],
    nodes: Mapping[str, Body],
    request: VerifyRequest,
    cluster: Cluster,
    check_interrupt: Callable[[], None],
    progress: OnProgress,
) -> tuple[GpuTestPodResult, ...]:
    """Run the pods of ``test_pods`` to their end, delete them, and return the results."""
    check_interrupt()
    with _create_test_pods(test_pods, request.timeout_s, cluster) as created:
        names = {str(one["metadata"]["name"]) for one in created.objects if one["kind"] == "Pod"}
        waiting = [one for one in test_pods if one.name in names]
        results = _wait_for_pods(waiting, request.timeout_s, cluster, check_interrupt, progress) if waiting else {}
        found = {one.name: _add_explanation(results[one.name], nodes[one.node], cluster) for one in waiting}
    return tuple(
        found.get(one.name) or GpuTestPodResult(one, None, 0.0, error=_creation_error(created, one))
        for one in test_pods
    )


def _clear_leftovers(test_pods: Sequence[GpuTestPod], cluster: Cluster) -> Sequence[Check]:
    """Delete what a killed run left in the namespace, and return a check that lists it, if any."""
    id, title = "leftovers", "earlier checks"  # noqa: A001 - the check's own word

    def clear() -> Sequence[Check]:
        where = ("--namespace", test_pods[0].namespace, "--selector", f"{RUN_LABEL},{OUR_LABEL_SELECTOR}")
        leftovers = [one for one in cluster.list("pods,jobs.batch", *where) if is_left_over(one, time.time())]
        if not leftovers:
            return ()
        cluster.delete(*leftovers)
        names = ", ".join(f"{one['kind']} {one['metadata']['name']}" for one in leftovers)
        return [Check(id, title, "passed", f"deleted what a killed run left: {names}")]

    return _check_or_skip(clear, id, title) if test_pods else ()


@contextmanager
def _create_test_pods(test_pods: Sequence[GpuTestPod], timeout_s: int, cluster: Cluster) -> Iterator[DryRunResult]:
    """Create the objects of ``test_pods`` for the duration, as far as the API server accepts them."""
    job = deadline_job(test_pods[0], timeout_s)
    bodies = [job, *(body for one in test_pods for body in one.bodies)]
    result: DryRunResult | None = None
    try:
        owner = cluster.create([job])
        created = DryRunResult(()) if owner.errors else cluster.create(with_owner(owner.objects[0], bodies[1:]))
        result = DryRunResult((*created.objects, *owner.objects), (*owner.errors, *created.errors))
        yield result
    finally:
        _delete_objects(bodies if result is None else result.objects, test_pods[0], cluster)


def _delete_objects(bodies: Sequence[Body], first: GpuTestPod, cluster: Cluster) -> None:
    if not bodies:
        return
    try:
        cluster.delete(*bodies)
    except GpunodeError as error:
        run = first.pod["metadata"]["labels"][RUN_LABEL]
        words = ("kubectl", "delete", "pods,jobs", "--namespace", first.namespace, "--selector", f"{RUN_LABEL}={run}")
        raise ChangeFailed(
            "the pods of the test were not deleted",
            why=f"{error.what}: {error.why}",
            hint=f"delete them: {command(*words)}",
        ) from error


def _creation_error(created: DryRunResult, test_pod: GpuTestPod) -> str:
    """Return why a pod was not created."""
    own = [text for text in created.errors if test_pod.name in text]
    return next(iter(own or created.errors), "the API server reported no status")


def _wait_for_pods(
    test_pods: Sequence[GpuTestPod],
    timeout_s: float,
    cluster: Cluster,
    check_interrupt: Callable[[], None],
    progress: OnProgress,
) -> Mapping[str, GpuTestPodResult]:
    """Wait until each pod ends, or its time is up, and return the results by pod name."""
    began = time.monotonic()
    run = test_pods[0].pod["metadata"]["labels"][RUN_LABEL]
    found: dict[str, GpuTestPodResult] = {}
    while True:
        listed = cluster.list("pods", "--namespace", test_pods[0].namespace, "--selector", f"{RUN_LABEL}={run}")
        pods = {str(one["metadata"]["name"]): one for one in listed}
        seconds = time.monotonic() - began
        for one in test_pods:
            if one.name not in found or not has_ended(found[one.name].pod or {}):
                found[one.name] = GpuTestPodResult(one, pods.get(one.name, one.pod), seconds)
        running = [ran for ran in found.values() if not has_ended(ran.pod or {})]
        stuck = seconds > _UNSCHEDULED_TIMEOUT_S and all(is_unscheduled(ran.pod or {}) for ran in running)
        if (
            not running
            or stuck
            or seconds > timeout_s
            or (seconds > _FAILING_TIMEOUT_S and _have_all_start_problems(running, cluster))
        ):
            return found
        done = 100.0 * (len(found) - len(running)) / len(found)
        progress(Progress("wait", done, f"up to {timeout_s:.0f} s: {_describe_waiting(running)}"))
        check_interrupt()
        time.sleep(_POLL_INTERVAL_S)


def _have_all_start_problems(running: Sequence[GpuTestPodResult], cluster: Cluster) -> bool:
    """Return whether the kubelet reports for each pod why it does not start."""
    events = cluster.list("events", "--namespace", running[0].test_pod.namespace)
    return all(find_first_pod_problem([ran.pod or {}], events) is not None for ran in running)


def _describe_waiting(running: Sequence[GpuTestPodResult]) -> str:
    first = running[0]
    found = find_first_pod_problem([first.pod or {}], ())
    more = f", and {len(running) - 1} more" if len(running) > 1 else ""
    return f"pod {first.test_pod.name} on {first.test_pod.node}{f' ({found.why})' if found else ''}{more}"


def _add_explanation(result: GpuTestPodResult, node: Body, cluster: Cluster) -> GpuTestPodResult:
    """Return the result with the pod's log and, if it did not succeed, what else explains that."""
    test_pod, pod = result.test_pod, result.pod or {}
    phase = pod.get("status", {}).get("phase")
    log: str | None = ""
    if phase in {"Succeeded", "Failed", "Running"}:
        log = _read_log(cluster, test_pod.namespace, test_pod.name)
    if phase == "Succeeded":
        return replace(result, log=log, error="" if log is not None else "kubectl logs failed")
    in_use: Sequence[str] = ()
    if is_unscheduled(pod) and test_pod.resource:
        on_node = cluster.list("pods", "--all-namespaces", "--field-selector", f"spec.nodeName={test_pod.node}")
        in_use = find_resource_users(on_node, node, test_pod.resource)
    events = cluster.list("events", "--namespace", test_pod.namespace)
    found = find_first_pod_problem([pod], events)
    diagnosis = _diagnose_log(pod, log or (found.why if found else ""))
    return replace(result, log=log, events=events, diagnosis=diagnosis, users=in_use)


def _read_log(cluster: Cluster, namespace: str, pod: str) -> str | None:
    try:
        return cluster.read_logs(namespace, pod)
    except GpunodeError:
        return None


def _diagnose_log(pod: Body, log: str) -> str:
    """Return doctor's finding for a pod and its log, in a sentence; empty for none."""
    from gpunode.diagnoses import diagnose
    from gpunode.diagnoses.snapshot import take_snapshot
    from gpunode.facts import pasted

    if not log.strip():
        return ""
    words = ("--namespace", str(pod["metadata"].get("namespace", "default")), str(pod["metadata"]["name"]))
    # Doctor would mistake the node selector's labels for those of the node.
    shown = {**pod, "spec": {name: value for name, value in pod.get("spec", {}).items() if name != "nodeSelector"}}
    pieces = [
        (str(command("kubectl", "logs", *words)), log),
        (str(command("kubectl", "get", "pod", *words, "-o", "json")), json.dumps(shown)),
    ]
    found = diagnose(take_snapshot(pasted.collect_pieces(pieces)))
    if found.roots:
        root = found.roots[0]
        return f"{root.summary} ({gpunode('doctor', root.cause)} tells more)"
    causes = [one.cause for one in found.suspects if one.citations]
    return f"one of these causes: {', '.join(causes)}" if causes else ""


def _check_sharing(results: Sequence[GpuTestPodResult]) -> Iterator[Check]:
    """Yield a check for each node whose pods share a GPU."""
    shared = [ran for ran in results if ran.test_pod.purpose == "shared"]
    for node in dict.fromkeys(ran.test_pod.node for ran in shared):
        yield check_sharing(node, [ran for ran in shared if ran.test_pod.node == node])
