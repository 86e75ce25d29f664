"""Refuse changes that would stop running workloads, unless --allow-disruption was given."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final

from gpunode.catalog.conflicts import driver_packages
from gpunode.change import Change, CommandChange, PackageChange, ServiceChange, Trigger, triggers
from gpunode.errors import DrainRequired, Undetermined
from gpunode.facts.evidence import Probe
from gpunode.facts.model import Fact, Facts, Known, Unit
from gpunode.facts.project import UNINSTALL_RUN_DRIVER
from gpunode.host.port import Host, HostView
from gpunode.outcome import Planned
from gpunode.package_id import PackageId
from gpunode.steps.daemons import MPS_SERVICE
from gpunode.workflow import mig_layouts
from gpunode.workflow.converge import StagePlan
from gpunode.workflow.undo import any_replaced

_RESTART: Final = Trigger("restart", MPS_SERVICE)
_MPS_DAEMON: Final = "nvidia-cuda-mps"
_MAX_NAMED: Final = 20


def refuse_mps_clients(host: Host, changes: Collection[Change], owed: Collection[Trigger] = ()) -> None:
    """Refuse if the daemon would be stopped or restarted while a process has a GPU open.

    Raises:
        DrainRequired: they are named; which of them are clients, nobody tells without asking the daemon.
    """
    services = [change for change in ServiceChange.among(changes) if change.unit == MPS_SERVICE]
    stops = any(change.before.active and not change.after.active for change in services)
    if not stops and _RESTART not in (*triggers(changes), *owed):
        return
    named = [words for words in host.workloads().gpu if _MPS_DAEMON not in words]
    if named:
        number = "1 process" if len(named) == 1 else f"{len(named)} processes"
        raise DrainRequired(
            f"stopping the MPS daemon would end what computes through it: {number} on the GPUs",
            why=f"running: {', '.join(named[:_MAX_NAMED])}" + (" …" if len(named) > _MAX_NAMED else ""),
            hint="end them first, or continue with --allow-disruption",
        )


DOCKER: Final = "docker.service"
_RESTARTS_DOCKER: Final = Trigger("restart", DOCKER)
_DOCKER_PACKAGES: Final = frozenset(map(PackageId, ("docker.io", "docker-ce")))
_CONTAINERD_PACKAGES: Final = frozenset(map(PackageId, ("containerd", "containerd.io")))
# docker 20 to 28: "Is the docker daemon running?"; docker 29: "check … if the daemon is running".
NO_DAEMON: Final = re.compile(r"daemon (?:is )?running")
_RUNNING_CONTAINERS: Final = Probe("docker-ps", argv=("docker", "ps", "--format", "{{.ID}} {{.Names}}"), timeout_s=20)
_OVERRIDE_HINT: Final = "continue with --allow-disruption"


def refuse_setup(preview: Sequence[StagePlan], owed: Sequence[Trigger], facts: Facts, host: Host) -> None:
    """Refuse if the plan or a pending trigger would stop running workloads.

    Raises:
        DrainRequired: it is named.
        Undetermined: docker runs and does not say what.
    """
    changes = [change for stage in preview for change in stage.changes]
    mig_layouts.refuse_gpu_clients(host, changes)
    refuse_mps_clients(host, changes, owed)
    if any(change.argv == UNINSTALL_RUN_DRIVER for change in CommandChange.among(changes)) and (
        clients := host.workloads().gpu
    ):
        raise _drain_error("take the driver away from", "process", clients)
    steps = (step.outcome for stage in preview for step in stage.steps)
    if _RESTARTS_DOCKER in owed or any(isinstance(outcome, Planned) and outcome.disrupts for outcome in steps):
        refuse_while_running(facts.unit(DOCKER), host)


def refuse_undoing(changes: Sequence[Change], owed: Collection[Trigger], docker: Fact[Unit], host: Host) -> None:
    """Refuse if ``changes`` or the triggers ``owed`` would stop workloads, or take their driver away.

    Raises:
        DrainRequired: it is named.
        Undetermined: docker runs and does not say what.
    """
    packages = PackageChange.among(changes)
    stopped = {change.unit for change in ServiceChange.among(changes) if not change.after.active}
    restarts = _RESTARTS_DOCKER in (*triggers(changes), *owed)
    if restarts or any_replaced(packages, _DOCKER_PACKAGES) or DOCKER in stopped:
        refuse_while_running(docker, host)
    workloads = host.workloads()
    if any_replaced(packages, driver_packages(change.id for change in packages)) and workloads.gpu:
        raise _drain_error("take the driver away from", "process", workloads.gpu)
    if any_replaced(packages, _CONTAINERD_PACKAGES) and workloads.containers:
        raise _drain_error("take containerd away from", "container", workloads.containers)
    mig_layouts.refuse_gpu_clients(host, changes)
    refuse_mps_clients(host, changes, owed)


def _drain_error(doing: str, what: str, named: Sequence[str]) -> DrainRequired:
    number = f"1 {what}" if len(named) == 1 else f"{len(named)} {what}{'es' if what.endswith('s') else 's'}"
    return DrainRequired(
        f"continuing would {doing} {number}",
        why=f"running: {', '.join(named[:20])}" + (" …" if len(named) > 20 else ""),
        hint="end them first, or continue with --allow-disruption",
    )


def refuse_while_running(docker: Fact[Unit], host: HostView) -> None:
    """Raise if docker runs containers that its restart would stop.

    Raises:
        DrainRequired: naming them.
        Undetermined: if docker runs and does not say.
    """
    running = host.look(_RUNNING_CONTAINERS)
    names = [line.partition(" ")[2] for line in running.text.splitlines() if line.strip()]
    if running.outcome == "ok" and names:
        count = "1 running docker container" if len(names) == 1 else f"{len(names)} running docker containers"
        raise DrainRequired(
            f"continuing would stop {count}",
            why=f"running: {', '.join(names)}",
            hint=f"drain {'it' if len(names) == 1 else 'them'} first, or {_OVERRIDE_HINT}",
        )
    is_down = running.outcome == "absent" or (isinstance(docker, Known) and not docker.value.state.active)
    is_down = is_down or NO_DAEMON.search(running.error) is not None
    if running.outcome != "ok" and not is_down:
        raise Undetermined(
            "cannot tell which docker containers run, and continuing would stop them",
            why=f"{running.source}: {running.outcome}; {running.error.strip()[:500]}",
            hint=f"make `docker ps` answer, or {_OVERRIDE_HINT}",
        )
