"""Readiness of the DaemonSets of a plan and of its charts: checked once by plan, awaited by apply."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from typing import Final

from gpunode.errors import GpunodeError, Undetermined, VerifyFailed
from gpunode.fast_dataclass import dataclass
from gpunode.host.cluster import Cluster
from gpunode.host.helm import ReleaseFailed
from gpunode.host.kubectl import Forbidden, main_error_line
from gpunode.host.port import OnProgress, Progress
from gpunode.kubernetes import live_checks
from gpunode.kubernetes.advertisers import release_of
from gpunode.kubernetes.live_checks import RequiredDaemonSet, find_release_daemon_sets
from gpunode.kubernetes.model import Body, ChartRelease
from gpunode.kubernetes.owned import explain_deletion, is_labelled, object_title
from gpunode.kubernetes.pods import PodProblem
from gpunode.kubernetes.reconcile import PlanItem

_POLL_INTERVAL_S: Final = 1.0
# A controller chooses the nodes of a new DaemonSet within a second.
_NO_NODE_TIMEOUT_S: Final = 10.0
# For all objects of a command together. A namespace takes five to ten seconds, which need no explanation.
_DELETION_TIMEOUT_S, _USUAL_DELETION_S = 120.0, 10.0


def is_unchanged_workload(item: PlanItem) -> bool:
    """Return whether the item is a DaemonSet that does not change, so that only its pods can be wrong."""
    return item.kind == "DaemonSet" and item.state in {"unchanged", "foreign"}


@dataclass(frozen=True, slots=True)
class ReadinessWait:
    """A wait until pods are ready.

    Its methods raise VerifyFailed with a pod's reason if the pods are not ready in time.

    Attributes:
        check_interrupt: called while waiting; raises Interrupted after a signal.
    """

    cluster: Cluster
    check_interrupt: Callable[[], None]
    on_progress: OnProgress
    timeout_s: float

    def wait_for_daemon_set(self, item: PlanItem) -> None:
        """Wait until the DaemonSet's pods are ready on all of its nodes."""
        metadata = {"namespace": item.namespace, "name": item.name}
        reference = {"apiVersion": "apps/v1", "kind": item.kind, "metadata": metadata}

        def find_unready() -> RequiredDaemonSet | None:
            daemon_set = RequiredDaemonSet(item.title, next(iter(self.cluster.get([reference])), None))
            return None if daemon_set.is_ready else daemon_set

        self._wait_until_ready(find_unready, min(self.timeout_s, _NO_NODE_TIMEOUT_S))

    def wait_for_rest(self, items: Sequence[PlanItem], releases: Sequence[ChartRelease]) -> None:
        """Wait for the pods of unchanged DaemonSets, and for those of Helm releases.

        ``helm --wait`` accepts one missing pod for each DaemonSet (its maxUnavailable is 1), and does not know what an
        operator creates. Source: helm.sh/helm pkg/kube/ready.go, daemonSetReady.
        """
        for item in filter(is_unchanged_workload, items):
            self.wait_for_daemon_set(item)
        # Feature discovery labels nodes, and the operator creates its DaemonSets, long after Helm has returned.
        self._wait_until_ready(lambda: next(find_unready_releases(releases, self.cluster), None), self.timeout_s)

    def add_reason(self, error: ReleaseFailed, releases: Sequence[ChartRelease]) -> None:
        """Add to Helm's error, which only says that it timed out, why the pods of ``releases`` do not run."""
        with suppress(GpunodeError):
            for unready in find_unready_releases(releases, self.cluster):
                if unready.live is not None:
                    state, trouble = explain_unready(unready, self.cluster)
                    error.why += f"\n{unready.title}: {state}: {trouble.why}"
                    error.hint = f"{trouble.hint}\n{error.hint}"
                    return

    def _wait_until_ready(self, find_unready: Callable[[], RequiredDaemonSet | None], no_node_timeout_s: float) -> None:
        """Poll until everything is ready; at most ``no_node_timeout_s`` for a DaemonSet that runs on no node."""
        began = time.monotonic()
        while (unready := find_unready()) is not None:
            desired, ready = unready.pod_counts
            percent = 100.0 * ready / desired if desired else 0.0
            self.on_progress(Progress("wait", percent, f"{ready} of {desired} pods ready"))
            self.check_interrupt()
            has_no_node = not desired and (unready.live or {}).get("status", {}).get("observedGeneration", 0) > 0
            if time.monotonic() > began + (no_node_timeout_s if has_no_node else self.timeout_s):
                state, trouble = explain_unready(unready, self.cluster)
                after = f" after {self.timeout_s:.0f} s" if desired else ""
                raise VerifyFailed(f"{unready.title}: {state}{after}", why=trouble.why, hint=trouble.hint)
            time.sleep(_POLL_INTERVAL_S)


def find_unready_releases(releases: Sequence[ChartRelease], cluster: Cluster) -> Iterator[RequiredDaemonSet]:
    """Yield the DaemonSets of these releases whose pods do not run, and those missing from a release."""
    if releases:
        daemon_sets = find_release_daemon_sets(releases, cluster.list("daemonsets.apps", "--all-namespaces"))
        yield from (daemon_set for daemon_set in daemon_sets if not daemon_set.is_running)


def explain_unready(daemon_set: RequiredDaemonSet, cluster: Cluster) -> tuple[str, PodProblem]:
    """Return how many of the workload's pods are ready, and why the others are not."""
    if not daemon_set.pod_counts[0]:
        return live_checks.explain_unready(daemon_set, (), ())
    where = ("--namespace", daemon_set.namespace)
    try:
        pods, events = cluster.list("pods", *where, "--selector", daemon_set.selector), cluster.list("events", *where)
        return live_checks.explain_unready(daemon_set, pods, events)
    except GpunodeError as error:
        state, unknown = live_checks.explain_unready(daemon_set, (), ())
        return state, replace(unknown, why=f"its pods cannot be read: {error.what}")


def poll_deletions(bodies: Sequence[Body], cluster: Cluster, on_progress: OnProgress) -> Iterator[Sequence[Body]]:
    """Yield, each second, the deleted objects that still exist; end when none is left, or after two minutes.

    A recreated object counts as gone; as in kubectl, so does one that the credential may not read.
    """
    began, total, remaining = time.monotonic(), len(bodies), bodies
    while True:
        remaining = [live for live in _read_permitted(remaining, cluster) if "deletionTimestamp" in live["metadata"]]
        yield remaining
        seconds = time.monotonic() - began
        if not remaining or seconds > _DELETION_TIMEOUT_S:
            return
        if seconds > _USUAL_DELETION_S:
            why, _ = explain_deletion(remaining[0]) or ("", "")
            more = f", and {len(remaining) - 1} more" if len(remaining) > 1 else ""
            waits_for = f"up to {_DELETION_TIMEOUT_S:.0f} s: {object_title(remaining[0])} ({why}){more}"
            on_progress(Progress("wait", 100.0 * (1 - len(remaining) / total), waits_for))
        time.sleep(_POLL_INTERVAL_S)


def _read_permitted(bodies: Sequence[Body], cluster: Cluster) -> Iterator[Body]:
    """Yield the objects that exist and that the credential may read."""
    try:
        yield from cluster.get(bodies)
    except Forbidden:
        for body in bodies if len(bodies) > 1 else ():
            yield from _read_permitted([body], cluster)


# What starts pods, each with the path of the pod's spec.
_POD_SPECS: Final = {
    "daemonsets.apps": "spec.template.spec",
    "deployments.apps": "spec.template.spec",
    "replicasets.apps": "spec.template.spec",
    "statefulsets.apps": "spec.template.spec",
    "jobs.batch": "spec.template.spec",
    "cronjobs.batch": "spec.jobTemplate.spec.template.spec",
    "pods": "spec",
}
_POD_OWNERS: Final = frozenset(
    {("apps/v1", kind) for kind in ("DaemonSet", "Deployment", "ReplicaSet", "StatefulSet")}
    | {("batch/v1", kind) for kind in ("Job", "CronJob")}
)
# A pod's phases, and a Job's conditions.
_FINISHED_STATES: Final = frozenset({"Succeeded", "Complete", "Failed"})


def find_class_users(
    runtime_class: str, cluster: Cluster, removed: AbstractSet[str]
) -> tuple[Sequence[str], Mapping[str, str]]:
    """Return what of others needs the RuntimeClass to start pods, and each kind not looked at, with the reason.

    Such as a Helm release which existed before and got the recipe's values. ``removed`` has the titles of releases.
    """
    users: list[str] = []
    unseen: dict[str, str] = {}
    for kind, pod_spec in _POD_SPECS.items():
        try:
            found = cluster.list_users_of_class(kind, pod_spec, runtime_class)
        except Forbidden as error:
            unseen[kind.partition(".")[0]] = main_error_line(error.why)
            continue
        users += [
            object_title(user)
            for user in found
            if not is_labelled(user) and not _FINISHED_STATES & {*user["state"].split()}
            if not _POD_OWNERS & {(it["apiVersion"], it["kind"]) for it in user["metadata"].get("ownerReferences", ())}
            if f"Helm release {release_of(user)}" not in removed
        ]
    return users, unseen


# Kinds that describe other objects; nobody creates them by hand.
_KINDS_MADE_BY_SERVER: Final = frozenset(
    {"events", "events.events.k8s.io", "endpoints", "endpointslices.discovery.k8s.io", "leases.coordination.k8s.io"}
)
# Present in every namespace; the second line on OpenShift.
_DEFAULT_OBJECTS: Final = frozenset(
    {"ConfigMap kube-root-ca.crt", "ServiceAccount default"}
    | {"ConfigMap openshift-service-ca.crt", "ServiceAccount builder", "ServiceAccount deployer"}
    | {f"RoleBinding system:{name}" for name in ("deployers", "image-builders", "image-pullers")}
)
# The group of ClusterPolicy and NVIDIADriver.
_NVIDIA_API_GROUP_PREFIX: Final = "nvidia.com/"
_MAX_NAMESPACE_OBJECTS_SHOWN: Final = 3


def describe_namespace_contents(
    namespace: str, cluster: Cluster, removed: AbstractSet[str] = frozenset()
) -> Iterator[str]:
    """Yield the titles of the first few objects and Helm releases in the namespace, without those in ``removed``.

    Raises:
        Undetermined: the cluster does not answer.
    """
    try:
        deletable = cluster.list_kinds("--namespaced", "--verbs=list,delete")
        kinds = [kind for kind in deletable if kind not in _KINDS_MADE_BY_SERVER]
        items = cluster.list(",".join(kinds), "--namespace", namespace)
    except Undetermined:
        raise
    except GpunodeError as error:
        yield f"what cannot be seen ({error.why.strip().splitlines()[-1]})"
        return
    uids = frozenset(str(body["metadata"].get("uid", "")) for body in items)
    remaining = [
        body
        for body in items
        if _is_namespace_content(body, uids) and removed.isdisjoint(_object_and_release_titles(body))
    ]
    # A kind of two API groups is listed twice.
    titles = list(dict.fromkeys(f"{body['kind']} {body['metadata']['name']}" for body in remaining))
    yield from titles[:_MAX_NAMESPACE_OBJECTS_SHOWN]
    if len(titles) > _MAX_NAMESPACE_OBJECTS_SHOWN:
        yield f"{len(titles) - _MAX_NAMESPACE_OBJECTS_SHOWN} more"


def _is_namespace_content(body: Body, uids: Collection[str]) -> bool:
    """Return whether the object counts as the namespace's content.

    Objects owned by another object of the namespace do not count. Those owned by an object elsewhere do, such as the
    Secret of a cluster-wide database object, except the GPU Operator's, which it deletes itself. ``uids`` holds those
    of all objects in the namespace.
    """
    metadata = body["metadata"]
    by_server = f"{body['kind']} {metadata['name']}" in _DEFAULT_OBJECTS
    belongs = any(
        owner.get("uid") in uids or str(owner.get("apiVersion", "")).startswith(_NVIDIA_API_GROUP_PREFIX)
        for owner in metadata.get("ownerReferences") or ()
    )
    # Tokens of a default ServiceAccount do not count either.
    account = (metadata.get("annotations") or {}).get("kubernetes.io/service-account.name", "")
    is_token = body.get("type") in {"kubernetes.io/service-account-token", "kubernetes.io/dockercfg"}
    is_automatic = is_token and f"ServiceAccount {account}" in _DEFAULT_OBJECTS
    return not (belongs or metadata.get("deletionTimestamp") or by_server or is_automatic)


def _object_and_release_titles(body: Body) -> Iterator[str]:
    """Yield the object's title, and that of its Helm release, if any."""
    metadata = body["metadata"]
    yield object_title(body)
    labels, notes = metadata.get("labels", {}), metadata.get("annotations", {})
    name = notes.get("meta.helm.sh/release-name") or (labels.get("name") if labels.get("owner") == "helm" else "")
    if name:
        yield f"Helm release {metadata['namespace']}/{name}"
