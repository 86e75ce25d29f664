"""Whether the DaemonSets of a plan run: one look for a plan, a wait for an apply."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from gpunode.errors import GpunodeError, VerifyFailed
from gpunode.host.cluster import Cluster
from gpunode.host.port import OnProgress, Progress
from gpunode.kubernetes.model import GPU_PRESENT
from gpunode.kubernetes.pods import Trouble
from gpunode.kubernetes.reconcile import Item
from gpunode.kubernetes.workload_checks import Workload, cause, counts

_EACH_S: Final = 1.0
# A controller chooses the nodes of a new DaemonSet within a second.
_NONE_CHOSEN_S: Final = 10.0


def is_unchanged_workload(item: Item) -> bool:
    """Return whether the item is a DaemonSet that stays as it is, so that nothing but its pods can be wrong."""
    return item.kind == "DaemonSet" and item.state in {"same", "foreign"}


def wait_unchanged_ready(
    items: Sequence[Item], cluster: Cluster, pause: Callable[[], None], progress: OnProgress, timeout_s: float
) -> None:
    """Wait for the pods of the DaemonSets that stay as they are.

    Raises:
        as ``wait_ready``.
    """
    for item in filter(is_unchanged_workload, items):
        wait_ready(item, cluster, pause, progress, timeout_s)


def wait_ready(item: Item, cluster: Cluster, pause: Callable[[], None], progress: OnProgress, timeout_s: float) -> None:
    """Wait until the DaemonSet's pods are ready on all of its nodes.

    Raises:
        VerifyFailed: they were not within ``timeout_s``; the pods that are not ready say why.
    """
    began = time.monotonic()
    place = {"apiVersion": "apps/v1", "kind": item.kind, "metadata": {"namespace": item.namespace, "name": item.name}}
    while True:
        found = Workload(item.title, next(iter(cluster.get([place])), None))
        if found.is_ready:
            return
        desired, ready = counts(found.live or {})
        progress(Progress("wait", 100.0 * ready / desired if desired else 0.0, f"{ready} of {desired} pods ready"))
        pause()
        is_for_none = not desired and (found.live or {}).get("status", {}).get("observedGeneration", 0) > 0
        if time.monotonic() > began + (min(timeout_s, _NONE_CHOSEN_S) if is_for_none else timeout_s):
            state, trouble = explain_unready(found, cluster)
            after = f" after {timeout_s:.0f} s" if desired else ""
            raise VerifyFailed(f"{found.title}: {state}{after}", why=trouble.why, hint=trouble.hint)
        time.sleep(_EACH_S)


def explain_unready(found: Workload, cluster: Cluster) -> tuple[str, Trouble]:
    """Return how many of the workload's pods are ready, and what keeps the others from it."""
    desired, ready = counts(found.live or {})
    if not desired:
        chosen = cluster.command("describe", "nodes", "--selector", f"{GPU_PRESENT}=true")
        why = f"its nodes are not ready, lack the label {GPU_PRESENT}=true, or have a taint that keeps it off"
        return "no node runs it", Trouble("", why, f"look at the nodes: {chosen}")
    where = ("--namespace", found.namespace)
    show = cluster.command("describe", "pods", *where, "--selector", found.selector)
    trouble = Trouble("", "no pod says why", f"look at its pods: {show}")
    try:
        pods = cluster.list("pods", *where, "--selector", found.selector)
        trouble = cause(pods, cluster.list("events", *where)) or trouble
    except GpunodeError as error:
        trouble = Trouble("", f"its pods cannot be read: {error.what}", trouble.hint)
    return f"{ready} of {desired} pods are ready", trouble
