"""Shows that a cluster's GPU nodes work: what the cluster says of them, then a pod that computes on each."""

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
from gpunode.kubernetes import node_checks
from gpunode.kubernetes.model import ClusterNode, NodeEdit, Rendered
from gpunode.kubernetes.objects import TEST_POD
from gpunode.kubernetes.own_pod import settle_cdi
from gpunode.kubernetes.reconcile import OURS
from gpunode.kubernetes.render import members, rendered
from gpunode.kubernetes.sharing import Config, configs
from gpunode.kubernetes.trial_checks import Ran, judge_handler, sharing_check, trial_check
from gpunode.kubernetes.trials import (
    RUN_LABEL,
    Trial,
    deadline_job,
    is_left_over,
    is_over,
    is_unscheduled,
    owned_by,
    trials,
    users,
)
from gpunode.kubernetes.workload_checks import Workload, cause, crashing, workload_check, workloads
from gpunode.recipe import Recipe
from gpunode.recipe.kubernetes import Kubernetes
from gpunode.workflow.cluster_plan import refuse_other_cluster
from gpunode.workflow.verify import Report

_EACH_S: Final = 1.0
# A controller, or a pod that just ended, may still make room; after that the scheduler's word stands.
_UNSCHEDULED_S: Final = 20.0
# The kubelet tries a failed sandbox again every 12 to 15 seconds: one that fails still is not going to work.
_FAILING_S: Final = 40.0
_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a verification is asked for.

    Attributes:
        image: of the test pods; empty for the recipe's.
        timeout_s: how long they may take.
        apply: the command that applies the recipe, for hints.
        on_node: what is known of a node's container runtime, where the node is this machine.
    """

    recipe: Recipe
    nodes: tuple[ClusterNode, ...]
    image: str
    timeout_s: int
    apply: Command
    on_node: node_checks.OnNode


def verify(asked: Asked, cluster: Cluster, *, pause: Callable[[], None], progress: OnProgress) -> Report:
    """What the cluster shows, check by check; the pods of the test are deleted again.

    Raises:
        Refused: the recipe asks nothing of Kubernetes, or of a node what it cannot do.
        UsageError, Undetermined: the cluster cannot be asked.
        ChangeFailed: a pod of the test could not be deleted.
        Interrupted: a signal came; the pods are deleted.
    """
    wanted = rendered(asked.recipe, asked.nodes)
    kubernetes = asked.recipe.kubernetes
    assert kubernetes is not None  # rendered
    if wanted.kind:
        refuse_other_cluster(wanted.kind, cluster.identify())
        # Its workers are containers of this machine, whose own runtime tells nothing of theirs.
        asked = replace(asked, nodes=members(kubernetes, asked.nodes), on_node=lambda _: None)
    nodes = {node.name: node for node in asked.nodes if node.gpus}
    live = {str(one["metadata"]["name"]): one for one in cluster.get([_node(edit) for edit in wanted.nodes])}
    there = {name: body for name, body in live.items() if not node_checks.not_ready(body)}
    checks = [node_checks.node_check(edit, live.get(edit.node), asked.apply) for edit in wanted.nodes]
    checks += _handlers(kubernetes, there, asked, cluster)
    checks += _workloads(wanted, asked, cluster)
    checks += _offers(kubernetes, wanted, {name: nodes[name] for name in there}, there, asked, cluster)
    for name in there:
        pause()
        checks.append(_kubelet(name, there[name], asked, cluster))
    tried, idle = _trials(kubernetes, wanted, nodes, there, asked)
    checks += _clear_leftovers(tried, cluster)
    ended = _ended(tried, there, asked, cluster, pause, progress) if tried else ()
    tested = [trial_check(ran, there[ran.trial.node], asked.apply) for ran in ended]
    # What said something was started through the handler, whether or not it then found a GPU.
    through = {ran.trial.node for ran in ended if ran.log and "runtimeClassName" in ran.trial.pod["spec"]}
    checks = [judge_handler(one, through) if one.id.startswith("handler/") else one for one in checks]
    return Report((*checks, *tested, *_sharing(ended), *idle))


def _node(edit: NodeEdit) -> Body:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": edit.node}}


def _unless_refused(ask: Callable[[], Sequence[Check]], id: str, title: str) -> Sequence[Check]:  # noqa: A002
    """The checks that ``ask`` makes; where the credential may not see what they need, one that was not run."""
    try:
        return ask()
    except Undetermined:
        raise
    except GpunodeError as error:
        return [Check(id, title, "not run", f"{error.what}: {error.why}")]


def _handlers(wanted: Kubernetes, nodes: Mapping[str, Body], asked: Asked, cluster: Cluster) -> Sequence[Check]:
    name = "" if wanted.stack == "dra" else wanted.runtime_class
    if not name:
        return ()
    place = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}}

    def ask() -> Sequence[Check]:
        found = next(iter(cluster.get([place])), None)
        return [*node_checks.handler_checks(name, found, nodes, asked.on_node, asked.apply)]

    return _unless_refused(ask, "runtime-class", f"RuntimeClass {name}")


def _workloads(wanted: Rendered, asked: Asked, cluster: Cluster) -> Sequence[Check]:
    def ask() -> Sequence[Check]:
        found = workloads(wanted, cluster.list("daemonsets.apps", "--all-namespaces"))
        return [_workload(one, asked, cluster) for one in found]

    return _unless_refused(ask, "workloads", "DaemonSets")


def _workload(one: Workload, asked: Asked, cluster: Cluster) -> Check:
    first = workload_check(one, asked.apply)
    if first.status != "failed" or one.live is None or not one.selector:
        return first
    place = ("--namespace", one.namespace)
    pods = cluster.list("pods", *place, "--selector", one.selector)
    events = cluster.list("events", *place)
    pod = crashing(pods)
    reading = _reading(pod, _log(cluster, one.namespace, str(pod["metadata"]["name"])) or "") if pod else ""
    return workload_check(one, asked.apply, pods, events, reading)


def _offers(
    wanted: Kubernetes,
    found: Rendered,
    nodes: Mapping[str, ClusterNode],
    live: Mapping[str, Body],
    asked: Asked,
    cluster: Cluster,
) -> Sequence[Check]:
    if wanted.stack != "dra":
        return [
            check
            for name, node in nodes.items()
            for check in node_checks.resource_checks(node, live[name], found.expected.get(name), asked.apply)
        ]

    def ask() -> Sequence[Check]:
        slices = cluster.list("resourceslices.resource.k8s.io")
        return [node_checks.slices_check(node, slices) for node in nodes.values()]

    return _unless_refused(ask, "resource-slices", "ResourceSlices")


def _kubelet(node: str, live: Body, asked: Asked, cluster: Cluster) -> Check:
    try:
        settings = cluster.read_kubelet_config(node)
    except GpunodeError as error:
        said = (error.why or error.what).strip().splitlines()[-1]
        return Check(f"kubelet/{node}", f"kubelet of {node}", "not run", f"its settings cannot be read: {said}")
    assert asked.recipe.kubernetes is not None  # rendered
    passes = any(one.static_cpus for one in asked.nodes)
    taints = live.get("spec", {}).get("taints") or ()
    return node_checks.kubelet_check(node, settings, asked.recipe.kubernetes, taints, passes_devices=passes)


def _trials(
    wanted: Kubernetes, found: Rendered, nodes: Mapping[str, ClusterNode], live: Mapping[str, Body], asked: Asked
) -> tuple[list[Trial], list[Check]]:
    """The pods to start, and for each node that gets none the reason."""
    run = _random()
    recipe = settle_cdi(asked.recipe, tuple(nodes.values()))
    by_node = {} if wanted.stack == "hami" else configs(wanted, tuple(nodes.values()))
    tried: list[Trial] = []
    idle: list[Check] = []
    for name, node in nodes.items():
        why = ""
        if name not in live:
            why = "the Node is not there, or not ready"
        elif not (pod := rendered(recipe, (node,)).test_pod):
            why = "the recipe does not tell which MIG resource a pod can ask for"
        else:
            made = trials(
                node,
                live[name],
                pod,
                by_node.get(name, Config("whole")),
                found.expected.get(name),
                run=run,
                new_name=lambda: f"{TEST_POD}-{_random()}",
                image=asked.image,
                timeout_s=asked.timeout_s,
            )
            for one in made:
                if one.resource and not node_checks.offered(live[name], one.resource)[1]:
                    why = f"the Node offers no {one.resource}"
                else:
                    tried.append(one)
        if why:
            idle.append(Check(f"pod/{name}", f"pod on {name}", "not run", why))
    return tried, idle


def _random() -> str:
    """Five letters and digits that spell no word."""
    return "".join(secrets.choice(_LETTERS) for _ in range(5))


def _ended(
    tried: Sequence[Trial],
    nodes: Mapping[str, Body],
    asked: Asked,
    cluster: Cluster,
    pause: Callable[[], None],
    progress: OnProgress,
) -> tuple[Ran, ...]:
    """What became of the pods, which are deleted."""
    pause()
    with _created(tried, asked.timeout_s, cluster) as made:
        names = {str(one["metadata"]["name"]) for one in made.objects if one["kind"] == "Pod"}
        waiting = [one for one in tried if one.name in names]
        ended = _waited_for(waiting, asked.timeout_s, cluster, pause, progress) if waiting else {}
        found = {one.name: _explained(ended[one.name], nodes[one.node], cluster) for one in waiting}
    return tuple(found.get(one.name) or Ran(one, None, 0.0, error=_error(made, one)) for one in tried)


def _clear_leftovers(tried: Sequence[Trial], cluster: Cluster) -> Sequence[Check]:
    """Delete what a killed run left in the namespace, and return a check that names it; none for nothing."""
    id, title = "leftovers", "earlier checks"  # noqa: A001 - the check's own word

    def clear() -> Sequence[Check]:
        where = ("--namespace", tried[0].namespace, "--selector", f"{RUN_LABEL},{OURS}")
        left = [one for one in cluster.list("pods,jobs.batch", *where) if is_left_over(one, time.time())]
        if not left:
            return ()
        cluster.delete(*left)
        names = ", ".join(f"{one['kind']} {one['metadata']['name']}" for one in left)
        return [Check(id, title, "passed", f"deleted what a killed run left: {names}")]

    return _unless_refused(clear, id, title) if tried else ()


@contextmanager
def _created(tried: Sequence[Trial], timeout_s: int, cluster: Cluster) -> Iterator[DryRunResult]:
    """The objects of the trials, as far as the API server takes them; afterwards they are gone, whatever happens."""
    job = deadline_job(tried[0], timeout_s)
    bodies = [job, *(body for one in tried for body in one.bodies)]
    made: DryRunResult | None = None
    try:
        owner = cluster.create([job])
        created = DryRunResult(()) if owner.errors else cluster.create(owned_by(owner.objects[0], bodies[1:]))
        made = DryRunResult((*created.objects, *owner.objects), (*owner.errors, *created.errors))
        yield made
    finally:
        _delete(bodies if made is None else made.objects, tried[0], cluster)


def _delete(bodies: Sequence[Body], first: Trial, cluster: Cluster) -> None:
    if not bodies:
        return
    try:
        cluster.delete(*bodies)
    except GpunodeError as error:
        run = first.pod["metadata"]["labels"][RUN_LABEL]
        words = ("delete", "pods,jobs", "--namespace", first.namespace, "--selector", f"{RUN_LABEL}={run}")
        raise ChangeFailed(
            "the pods of the test were not deleted",
            why=f"{error.what}: {error.why}",
            hint=f"delete them: {cluster.command(*words)}",
        ) from error


def _error(made: DryRunResult, trial: Trial) -> str:
    """Why a pod was not created."""
    own = [text for text in made.errors if trial.name in text]
    return next(iter(own or made.errors), "the API server said nothing of it")


def _waited_for(
    tried: Sequence[Trial], timeout_s: float, cluster: Cluster, pause: Callable[[], None], progress: OnProgress
) -> Mapping[str, Ran]:
    """Each pod at its end, or when its time is up."""
    began = time.monotonic()
    run = tried[0].pod["metadata"]["labels"][RUN_LABEL]
    found: dict[str, Ran] = {}
    while True:
        listed = cluster.list("pods", "--namespace", tried[0].namespace, "--selector", f"{RUN_LABEL}={run}")
        pods = {str(one["metadata"]["name"]): one for one in listed}
        seconds = time.monotonic() - began
        for one in tried:
            if one.name not in found or not is_over(found[one.name].pod or {}):
                found[one.name] = Ran(one, pods.get(one.name, one.pod), seconds)
        left = [ran for ran in found.values() if not is_over(ran.pod or {})]
        stuck = seconds > _UNSCHEDULED_S and all(is_unscheduled(ran.pod or {}) for ran in left)
        if not left or stuck or seconds > timeout_s or (seconds > _FAILING_S and _all_fail(left, cluster)):
            return found
        done = 100.0 * (len(found) - len(left)) / len(found)
        progress(Progress("wait", done, f"up to {timeout_s:.0f} s: {_waiting(left)}"))
        pause()
        time.sleep(_EACH_S)


def _all_fail(left: Sequence[Ran], cluster: Cluster) -> bool:
    """Whether the kubelet says of each pod why it does not start."""
    events = cluster.list("events", "--namespace", left[0].trial.namespace)
    return all(cause([ran.pod or {}], events) is not None for ran in left)


def _waiting(left: Sequence[Ran]) -> str:
    first = left[0]
    found = cause([first.pod or {}], ())
    more = f", and {len(left) - 1} more" if len(left) > 1 else ""
    return f"pod {first.trial.name} on {first.trial.node}{f' ({found.why})' if found else ''}{more}"


def _explained(ran: Ran, node: Body, cluster: Cluster) -> Ran:
    """The same with its log, and where it did not end well with what else explains that."""
    trial, pod = ran.trial, ran.pod or {}
    phase = pod.get("status", {}).get("phase")
    log: str | None = ""
    if phase in {"Succeeded", "Failed", "Running"}:
        log = _log(cluster, trial.namespace, trial.name)
    if phase == "Succeeded":
        return replace(ran, log=log, error="" if log is not None else "kubectl logs failed")
    in_use: Sequence[str] = ()
    if is_unscheduled(pod) and trial.resource:
        on_node = cluster.list("pods", "--all-namespaces", "--field-selector", f"spec.nodeName={trial.node}")
        in_use = users(on_node, node, trial.resource)
    events = cluster.list("events", "--namespace", trial.namespace)
    found = cause([pod], events)
    reading = _reading(pod, log or (found.why if found else ""))
    return replace(ran, log=log, events=events, reading=reading, users=in_use)


def _log(cluster: Cluster, namespace: str, pod: str) -> str | None:
    try:
        return cluster.read_logs(namespace, pod)
    except GpunodeError:
        return None


def _reading(pod: Body, log: str) -> str:
    """What doctor makes of a pod and its log, in a sentence; empty where it makes nothing of them."""
    from gpunode.diagnoses import diagnose
    from gpunode.diagnoses.snapshot import take_snapshot
    from gpunode.facts import pasted

    if not log.strip():
        return ""
    words = ("--namespace", str(pod["metadata"].get("namespace", "default")), str(pod["metadata"]["name"]))
    # Doctor would take the labels that a pod asks for as those of its node.
    shown = {**pod, "spec": {name: value for name, value in pod.get("spec", {}).items() if name != "nodeSelector"}}
    pieces = [
        (str(command("kubectl", "logs", *words)), log),
        (str(command("kubectl", "get", "pod", *words, "-o", "json")), json.dumps(shown)),
    ]
    found = diagnose(take_snapshot(pasted.evidence(pieces)))
    if found.roots:
        root = found.roots[0]
        return f"{root.summary} ({gpunode('doctor', root.cause)} tells more)"
    causes = [one.cause for one in found.suspects if one.citations]
    return f"one of these causes: {', '.join(causes)}" if causes else ""


def _sharing(ended: Sequence[Ran]) -> Iterator[Check]:
    """What the pods that share show, by node."""
    shared = [ran for ran in ended if ran.trial.shows == "shared"]
    for node in dict.fromkeys(ran.trial.node for ran in shared):
        yield sharing_check(node, [ran for ran in shared if ran.trial.node == node])
