"""Readiness of the DaemonSets of a plan and of its charts: one look for a plan, a wait for an apply."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from gpunode.errors import GpunodeError, VerifyFailed
from gpunode.host.cluster import Cluster
from gpunode.host.port import OnProgress, Progress
from gpunode.kubernetes.live_checks import RequiredDaemonSet, count_pods, find_release_workloads, first_problem
from gpunode.kubernetes.model import GPU_PRESENT, ChartRelease
from gpunode.kubernetes.pods import PodProblem
from gpunode.kubernetes.reconcile import PlanItem

_POLL_INTERVAL_S: Final = 1.0
# A controller chooses the nodes of a new DaemonSet within a second.
_NO_NODE_TIMEOUT_S: Final = 10.0


def is_unchanged_workload(item: PlanItem) -> bool:
    """Return whether the item is a DaemonSet that does not change, so that only its pods can be wrong."""
    return item.kind == "DaemonSet" and item.state in {"unchanged", "foreign"}


def wait_unchanged_ready(
    items: Sequence[PlanItem], cluster: Cluster, pause: Callable[[], None], progress: OnProgress, timeout_s: float
) -> None:
    """Wait for the pods of the DaemonSets that do not change.

    Raises:
        VerifyFailed: as ``wait_ready``.
    """
    for item in filter(is_unchanged_workload, items):
        wait_ready(item, cluster, pause, progress, timeout_s)


def wait_ready(
    item: PlanItem, cluster: Cluster, pause: Callable[[], None], progress: OnProgress, timeout_s: float
) -> None:
    """Wait until the DaemonSet's pods are ready on all of its nodes.

    Raises:
        VerifyFailed: if they are not within ``timeout_s``, with the reason of a pod.
    """
    place = {"apiVersion": "apps/v1", "kind": item.kind, "metadata": {"namespace": item.namespace, "name": item.name}}

    def find_unready() -> RequiredDaemonSet | None:
        found = RequiredDaemonSet(item.title, next(iter(cluster.get([place])), None))
        return None if found.is_ready else found

    _wait_until_ready(find_unready, cluster, pause, progress, timeout_s, no_node_timeout_s=_NO_NODE_TIMEOUT_S)


def wait_releases_ready(
    releases: Sequence[ChartRelease],
    cluster: Cluster,
    pause: Callable[[], None],
    progress: OnProgress,
    timeout_s: float,
) -> None:
    """Wait for the pods of Helm releases.

    ``helm --wait`` accepts one missing pod for each DaemonSet (its maxUnavailable is 1), and does not know what an
    operator creates. Source: helm.sh/helm pkg/kube/ready.go, daemonSetReady.

    Raises:
        VerifyFailed: as ``wait_ready``.
    """

    def find_unready() -> RequiredDaemonSet | None:
        return next(find_unready_releases(releases, cluster), None)

    # Feature discovery labels the nodes, and the operator makes its DaemonSets, long after Helm is done.
    _wait_until_ready(find_unready, cluster, pause, progress, timeout_s, no_node_timeout_s=timeout_s)


def find_unready_releases(releases: Sequence[ChartRelease], cluster: Cluster) -> Iterator[RequiredDaemonSet]:
    """Yield the DaemonSets of these releases whose pods do not run, and those that a release lacks."""
    if releases:
        found = find_release_workloads(releases, cluster.list("daemonsets.apps", "--all-namespaces"))
        yield from (one for one in found if not one.is_running)


def _wait_until_ready(
    find_unready: Callable[[], RequiredDaemonSet | None],
    cluster: Cluster,
    pause: Callable[[], None],
    progress: OnProgress,
    timeout_s: float,
    *,
    no_node_timeout_s: float,
) -> None:
    """Poll until nothing is unready; at most ``no_node_timeout_s`` for a DaemonSet that runs on no node."""
    began = time.monotonic()
    while (found := find_unready()) is not None:
        desired, ready = count_pods(found.live or {})
        progress(Progress("wait", 100.0 * ready / desired if desired else 0.0, f"{ready} of {desired} pods ready"))
        pause()
        has_no_node = not desired and (found.live or {}).get("status", {}).get("observedGeneration", 0) > 0
        if time.monotonic() > began + (min(timeout_s, no_node_timeout_s) if has_no_node else timeout_s):
            state, trouble = explain_unready(found, cluster)
            after = f" after {timeout_s:.0f} s" if desired else ""
            raise VerifyFailed(f"{found.title}: {state}{after}", why=trouble.why, hint=trouble.hint)
        time.sleep(_POLL_INTERVAL_S)


def explain_unready(found: RequiredDaemonSet, cluster: Cluster) -> tuple[str, PodProblem]:
    """Return how many of the workload's pods are ready, and why the others are not."""
    desired, ready = count_pods(found.live or {})
    if found.live is None and found.release is not None:
        place = ("--namespace", found.release.namespace, found.release.name)
        return "it offers no GPUs", PodProblem("", found.why, f"look at it: {cluster.helm_command('status', *place)}")
    if not desired:
        chosen = cluster.command("describe", "nodes", "--selector", f"{GPU_PRESENT}=true")
        why = f"its nodes are not ready, lack the label {GPU_PRESENT}=true, or have a taint that keeps it off"
        return "no node runs it", PodProblem("", why, f"look at the nodes: {chosen}")
    where = ("--namespace", found.namespace)
    show = cluster.command("describe", "pods", *where, "--selector", found.selector)
    trouble = PodProblem("", "no pod says why", f"look at its pods: {show}")
    try:
        pods = cluster.list("pods", *where, "--selector", found.selector)
        trouble = first_problem(pods, cluster.list("events", *where)) or trouble
    except GpunodeError as error:
        trouble = PodProblem("", f"its pods cannot be read: {error.what}", trouble.hint)
    return f"{ready} of {desired} pods are ready", trouble
