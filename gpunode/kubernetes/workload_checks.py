"""Checks of the workloads that offer a cluster's GPUs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from gpunode.check import Check
from gpunode.command import Command, command
from gpunode.kubernetes.advertisers import is_advertiser, is_made_by_operator, release_of
from gpunode.kubernetes.model import GPU_PRESENT, ChartRelease, Rendered
from gpunode.kubernetes.pods import PodProblem, find_problem

Body: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RequiredDaemonSet:
    """A DaemonSet that the recipe needs.

    Attributes:
        live: the DaemonSet; None if it does not exist.
        must_run: whether it is a fault if no pod of it runs; parts of charts run only on some nodes.
        why: what is missing, if the name of the DaemonSet is unknown.
        release: the release that made it, or lacks it; None for gpunode's own.
    """

    title: str
    live: Body | None
    must_run: bool = True
    why: str = ""
    release: ChartRelease | None = None

    @property
    def is_ready(self) -> bool:
        """True if it has pods and all of them are ready."""
        desired, ready = count_pods(self.live or {})
        return ready >= desired > 0

    @property
    def is_running(self) -> bool:
        """True if its pods are ready, or it may run on no node and does not."""
        return self.is_ready or (self.live is not None and not self.must_run and not count_pods(self.live)[0])

    @property
    def namespace(self) -> str:
        """The namespace of its pods."""
        return str((self.live or {"metadata": {}})["metadata"].get("namespace", ""))

    @property
    def selector(self) -> str:
        """The label selector of its pods, as kubectl takes it."""
        labels = (self.live or {}).get("spec", {}).get("selector", {}).get("matchLabels", {})
        return ",".join(f"{name}={value}" for name, value in labels.items())


def count_pods(live: Body) -> tuple[int, int]:
    """Return the number of nodes that the DaemonSet is for, and of those where its current version is ready."""
    status, generation = live.get("status", {}), live.get("metadata", {}).get("generation", 0)
    desired = int(status.get("desiredNumberScheduled", 0))
    if status.get("observedGeneration", 0) < generation:
        return desired, 0
    ready, updated = int(status.get("numberReady", 0)), int(status.get("updatedNumberScheduled", 0))
    return desired, min(ready, updated)


def find_workloads(rendered: Rendered, daemon_sets: Sequence[Body]) -> Iterator[RequiredDaemonSet]:
    """Yield the rendered DaemonSets: gpunode's own, and those of its charts' releases."""
    live = {(one["metadata"].get("namespace", ""), one["metadata"]["name"]): one for one in daemon_sets}
    for one in rendered.objects:
        if one.kind == "DaemonSet":
            yield RequiredDaemonSet(f"DaemonSet {one.name}", live.get((one.namespace, one.name)))
    yield from find_release_workloads(rendered.releases, daemon_sets)


def find_release_workloads(
    releases: Sequence[ChartRelease], daemon_sets: Sequence[Body]
) -> Iterator[RequiredDaemonSet]:
    """Yield the DaemonSets of these releases; for one that offers no GPUs, what it lacks."""
    for release in releases:
        name = f"{release.namespace}/{release.name}"
        # A release of the same chart that was there before keeps its own name.
        names = {name, *(release_of(live) for live in daemon_sets if _is_made_by_chart(live, release.chart))} - {""}
        is_operator = release.chart == "gpu-operator"
        made = [
            live for live in daemon_sets if release_of(live) in names or (is_operator and is_made_by_operator(live))
        ]
        if not any(map(is_advertiser, made)) and release.chart != "dcgm-exporter":
            why = (
                "it has no DaemonSet that offers GPUs"
                if made
                else "it has created no DaemonSet: check that it is installed"
            )
            yield RequiredDaemonSet(release.title, None, why=why, release=release)
        for live in made:
            must_run = is_advertiser(live) or release.chart == "dcgm-exporter"
            yield RequiredDaemonSet(f"DaemonSet {live['metadata']['name']}", live, must_run, release=release)


def _is_made_by_chart(live: Body, chart: str) -> bool:
    """Return whether the object's label names the chart, in any version (``hami-2.10.0``)."""
    label = str(live["metadata"].get("labels", {}).get("helm.sh/chart", ""))
    return re.match(rf"{re.escape(chart)}-v?\d", label) is not None


def check_workload(
    workload: RequiredDaemonSet,
    apply: Command,
    pods: Sequence[Body] = (),
    events: Sequence[Body] = (),
    diagnosis: str = "",
) -> Check:
    """Check whether the DaemonSet runs on every node that it is for.

    Args:
        workload: the DaemonSet.
        apply: the command that applies the recipe.
        pods: its pods, if it is not ready.
        events: those of its namespace.
        diagnosis: what doctor makes of the log of a pod that crashes, in a sentence.
    """
    id = f"workload/{workload.namespace}/{workload.title.rpartition(' ')[2]}"  # noqa: A001 - the check's own word
    title = workload.title
    if workload.live is None:
        return Check(id, title, "failed", workload.why or "it is not in this cluster", str(apply))
    desired, ready = count_pods(workload.live)
    if workload.is_ready:
        return Check(id, title, "passed", f"{ready} of {desired} pods ready")
    if not desired and not workload.must_run:
        return Check(id, title, "skipped", "no node matches it")
    if not desired:
        return Check(
            id, title, "failed", "no node matches it: none has the label that it selects", _missing_label_hint(apply)
        )
    found = first_problem(pods, events)
    why = f"{ready} of {desired} pods ready" + (f": {found.why}" if found else "; no pod says why")
    show = command("kubectl", "describe", "pods", "--namespace", workload.namespace, "--selector", workload.selector)
    hint = found.hint if found else f"look at its pods: {show}"
    return Check(id, title, "failed", why + (f"; {diagnosis}" if diagnosis else ""), hint)


def first_problem(pods: Sequence[Body], events: Sequence[Body]) -> PodProblem | None:
    """Return the problem of the first of ``pods`` that has one."""
    return next((found for pod in pods if (found := find_problem(pod, events))), None)


def find_crashing_pod(pods: Sequence[Body]) -> Body | None:
    """Return a pod whose container ended although it should run on, or None."""
    for pod in pods:
        for one in pod.get("status", {}).get("containerStatuses", ()):
            if not one.get("ready") and (one.get("restartCount") or one.get("state", {}).get("terminated")):
                return pod
    return None


def _missing_label_hint(apply: Command) -> str:
    nodes = command("kubectl", "get", "nodes", "--show-labels")
    return f"see whether the GPU nodes have {GPU_PRESENT}=true: {nodes}\n{apply}"
