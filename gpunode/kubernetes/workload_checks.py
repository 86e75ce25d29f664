"""What a cluster says of the workloads that offer its GPUs → checks. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from gpunode.check import Check
from gpunode.command import Command, command
from gpunode.kubernetes.advertisers import is_advertiser, is_of_operator, release_of
from gpunode.kubernetes.model import GPU_PRESENT, ChartRelease, Rendered
from gpunode.kubernetes.pods import Trouble, trouble

Body: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Workload:
    """A DaemonSet that the recipe asks for.

    Attributes:
        live: as it is; None where it is not there.
        must_run: whether no pod of it is a fault; parts of charts run only on some nodes.
        why: what is missing, where there is not even a name.
        release: the one that made it, or lacks it; None for gpunode's own.
    """

    title: str
    live: Body | None
    must_run: bool = True
    why: str = ""
    release: ChartRelease | None = None

    @property
    def is_ready(self) -> bool:
        """Whether all of its pods are, and it has any."""
        desired, ready = counts(self.live or {})
        return ready >= desired > 0

    @property
    def is_running(self) -> bool:
        """Return whether its pods are ready, or no node needs this part and none is to run it."""
        return self.is_ready or (self.live is not None and not self.must_run and not counts(self.live)[0])

    @property
    def namespace(self) -> str:
        """Where its pods are."""
        return str((self.live or {"metadata": {}})["metadata"].get("namespace", ""))

    @property
    def selector(self) -> str:
        """By which its pods are found, as kubectl takes it."""
        labels = (self.live or {}).get("spec", {}).get("selector", {}).get("matchLabels", {})
        return ",".join(f"{name}={value}" for name, value in labels.items())


def counts(live: Body) -> tuple[int, int]:
    """On how many nodes the DaemonSet is to run, and on how many its present form is ready."""
    status, generation = live.get("status", {}), live.get("metadata", {}).get("generation", 0)
    desired = int(status.get("desiredNumberScheduled", 0))
    if status.get("observedGeneration", 0) < generation:
        return desired, 0
    ready, updated = int(status.get("numberReady", 0)), int(status.get("updatedNumberScheduled", 0))
    return desired, min(ready, updated)


def workloads(rendered: Rendered, daemon_sets: Sequence[Body]) -> Iterator[Workload]:
    """The DaemonSets of what is rendered: gpunode's own, and those that its charts' releases made."""
    there = {(one["metadata"].get("namespace", ""), one["metadata"]["name"]): one for one in daemon_sets}
    for one in rendered.objects:
        if one.kind == "DaemonSet":
            yield Workload(f"DaemonSet {one.name}", there.get((one.namespace, one.name)))
    yield from release_workloads(rendered.releases, daemon_sets)


def release_workloads(releases: Sequence[ChartRelease], daemon_sets: Sequence[Body]) -> Iterator[Workload]:
    """Yield the DaemonSets that these releases made; for one that made none which offers GPUs, what it lacks."""
    for release in releases:
        name = f"{release.namespace}/{release.name}"
        # A release of the same chart that was there before keeps its own name.
        names = {name, *(release_of(live) for live in daemon_sets if _is_of_chart(live, release.chart))} - {""}
        is_operator = release.chart == "gpu-operator"
        made = [live for live in daemon_sets if release_of(live) in names or (is_operator and is_of_operator(live))]
        if not any(map(is_advertiser, made)) and release.chart != "dcgm-exporter":
            why = "it has no DaemonSet that offers GPUs" if made else "it has made no DaemonSet: is it installed?"
            yield Workload(release.title, None, why=why, release=release)
        for live in made:
            must_run = is_advertiser(live) or release.chart == "dcgm-exporter"
            yield Workload(f"DaemonSet {live['metadata']['name']}", live, must_run, release=release)


def _is_of_chart(live: Body, chart: str) -> bool:
    """Whether the object's label says that the chart made it, in any version (``hami-2.10.0``)."""
    label = str(live["metadata"].get("labels", {}).get("helm.sh/chart", ""))
    return re.match(rf"{re.escape(chart)}-v?\d", label) is not None


def workload_check(
    workload: Workload, apply: Command, pods: Sequence[Body] = (), events: Sequence[Body] = (), reading: str = ""
) -> Check:
    """Whether the DaemonSet runs on every node that it is for.

    Args:
        workload: the DaemonSet.
        apply: the command that applies the recipe.
        pods: its pods, where it is not ready.
        events: those of its namespace.
        reading: what doctor makes of the log of a pod that crashes, in a sentence.
    """
    id = f"workload/{workload.namespace}/{workload.title.rpartition(' ')[2]}"  # noqa: A001 - the check's own word
    title = workload.title
    if workload.live is None:
        return Check(id, title, "failed", workload.why or "it is not in this cluster", str(apply))
    desired, ready = counts(workload.live)
    if workload.is_ready:
        return Check(id, title, "passed", f"{ready} of {desired} pods ready")
    if not desired and not workload.must_run:
        return Check(id, title, "not run", "no node is for it")
    if not desired:
        return Check(id, title, "failed", "no node is for it: none has the label that it asks for", _labels(apply))
    found = cause(pods, events)
    why = f"{ready} of {desired} pods ready" + (f": {found.why}" if found else "; no pod says why")
    show = command("kubectl", "describe", "pods", "--namespace", workload.namespace, "--selector", workload.selector)
    hint = found.hint if found else f"look at its pods: {show}"
    return Check(id, title, "failed", why + (f"; {reading}" if reading else ""), hint)


def cause(pods: Sequence[Body], events: Sequence[Body]) -> Trouble | None:
    """What keeps the first of ``pods`` that says so from running."""
    return next((found for pod in pods if (found := trouble(pod, events))), None)


def crashing(pods: Sequence[Body]) -> Body | None:
    """A pod whose container has ended, though it is to run on; None for none."""
    for pod in pods:
        for one in pod.get("status", {}).get("containerStatuses", ()):
            if not one.get("ready") and (one.get("restartCount") or one.get("state", {}).get("terminated")):
                return pod
    return None


def _labels(apply: Command) -> str:
    nodes = command("kubectl", "get", "nodes", "--show-labels")
    return f"see whether the GPU nodes have {GPU_PRESENT}=true: {nodes}\n{apply}"
