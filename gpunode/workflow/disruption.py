"""Refuse changes that would stop running workloads, unless --allow-disruption was given.

GPUs are always freed the same way: count their users, stop the services that may be stopped, and name the others.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from gpunode.change import GPU_SERVICES, Change, MigChange, PackageChange, ServiceChange, Trigger, triggers_of
from gpunode.command import command
from gpunode.container_runtimes import CONTAINER_RUNTIMES, explain_missing_client
from gpunode.errors import DrainRequired, Undetermined
from gpunode.facts import systemd
from gpunode.facts.evidence import NOT_CAPTURED_REASON, Probe
from gpunode.facts.model import Fact, Facts, Known, Unit
from gpunode.facts.probes import unit_probe
from gpunode.host.port import GpuClient, Host, HostView
from gpunode.outcome import Planned
from gpunode.package_id import PackageId
from gpunode.steps.daemons import GpuLoss, find_worst_gpu_loss
from gpunode.wording import count_noun, join_names
from gpunode.workflow import live_state
from gpunode.workflow.converge import StagePlan

_PHRASE_BY_GPU_LOSS: Final[dict[GpuLoss, str]] = {
    "driver": "take the driver away from",
    "layout": "change the MIG layout under",
    "mps": "stop the MPS daemon, and so perhaps end",
}
_MPS_DAEMON_PROGRAM: Final = "nvidia-cuda-mps"
_DISPLAY_PROGRAMS: Final = frozenset({"Xorg", "Xwayland", "gnome-shell", "kwin_wayland", "sway", "weston"})
_DISPLAY_UNITS: Final = frozenset(
    {"display-manager.service", "gdm.service", "gdm3.service", "lightdm.service", "sddm.service"}
)
_MAX_NAMES_SHOWN: Final = 20


def refuse_gpu_clients(host: Host, changes: Collection[Change], pending_triggers: Collection[Trigger] = ()) -> None:
    """Refuse if a program uses what ``changes`` take away, and does not end with a service that they stop.

    Raises:
        DrainRequired: counts and names such programs, with the way to end each kind.
    """
    loss = find_worst_gpu_loss(changes, pending_triggers)
    if loss is None:
        return
    divided = [change.gpu for change in MigChange.of_kind(changes)] if loss == "layout" else []
    pids, pods = (frozenset(), ()) if loss == "mps" else live_state.find_gpu_users(host, divided)
    clients_by_pid = {client.pid: client for client in host.find_workloads().gpu_clients}
    # CUDA opens every GPU's device: an open file does not tell which GPU a process works on, but NVML does.
    users = pids if loss == "layout" else {*pids, *clients_by_pid}
    stopped = {change.unit for change in ServiceChange.of_kind(changes) if not change.after.active}
    every = (clients_by_pid.get(pid, GpuClient(pid)) for pid in sorted(users))
    clients = [client for client in every if not _is_expected_client(client, loss, stopped)]
    if clients:
        raise drain_error(_PHRASE_BY_GPU_LOSS[loss], "process", clients, dict.fromkeys(map(_advise, clients)))
    if pods:
        raise DrainRequired(
            "continuing would take the GPU from pods that hold it",
            why=f"the kubelet gave GPUs to {join_names(pods, _MAX_NAMES_SHOWN)}",
            hint=f"{_DRAIN_HINT}, or {_OVERRIDE_HINT}",
        )


def _is_expected_client(client: GpuClient, loss: GpuLoss, stopped: Collection[str]) -> bool:
    """Return whether a client ends with the units ``stopped``, or is not affected by ``loss``."""
    is_no_work = client.unit in GPU_SERVICES or _MPS_DAEMON_PROGRAM in client.command
    return client.unit in stopped or (loss == "mps" and is_no_work)


def _advise(client: GpuClient) -> str:
    """Return how to end a client."""
    program = client.command.partition(" ")[0].rpartition("/")[2]
    if client.pod:
        return _DRAIN_HINT
    if client.container:
        return "stop their containers first"
    if client.unit in _DISPLAY_UNITS or program in _DISPLAY_PROGRAMS:
        return "end the display first: systemctl isolate multi-user.target"
    return str(command("systemctl", "stop", client.unit)) if client.unit else "end them first"


DOCKER_SERVICE: Final = "docker.service"
_DOCKER_RESTART_TRIGGER: Final = Trigger("restart", DOCKER_SERVICE)
_DOCKER_PACKAGES: Final = frozenset(map(PackageId, ("docker.io", "docker-ce")))
_CONTAINERD_PACKAGES: Final = frozenset(map(PackageId, ("containerd", "containerd.io")))
# docker 20 to 28: "Is the docker daemon running?"; docker 29: "check … if the daemon is running".
DOCKER_UNREACHABLE_ERROR: Final = re.compile(r"daemon (?:is )?running")
_RUNNING_CONTAINERS_PROBE: Final = Probe(
    "docker-ps", argv=("docker", "ps", "--format", "{{.ID}} {{.Names}}"), timeout_s=20
)
_OVERRIDE_HINT: Final = "continue with --allow-disruption"
_DRAIN_HINT: Final = "drain the node first (kubectl drain NODE --ignore-daemonsets)"


def refuse_disruptive_setup(
    preview: Sequence[StagePlan], pending_triggers: Sequence[Trigger], facts: Facts, host: Host
) -> None:
    """Refuse if the plan or a pending trigger would stop running workloads.

    Raises:
        DrainRequired: names the workload.
        Undetermined: docker runs and does not report what.
    """
    changes = [change for stage in preview for change in stage.ordered_changes]
    refuse_gpu_clients(host, changes, pending_triggers)
    steps = (step.outcome for stage in preview for step in stage.steps)
    if _DOCKER_RESTART_TRIGGER in pending_triggers or any(
        isinstance(outcome, Planned) and outcome.stopped_workloads for outcome in steps
    ):
        refuse_running_containers(facts.unit(DOCKER_SERVICE), host)


def refuse_disruptive_undo(
    changes: Sequence[Change], pending_triggers: Collection[Trigger], docker: Fact[Unit], host: Host
) -> None:
    """Refuse if ``changes`` or ``pending_triggers`` would stop workloads, or take their driver away.

    Raises:
        DrainRequired: names the workload.
        Undetermined: docker runs and does not report what.
    """
    packages = PackageChange.of_kind(changes)
    stopped = {change.unit for change in ServiceChange.of_kind(changes) if not change.after.active}
    restarts = _DOCKER_RESTART_TRIGGER in (*triggers_of(changes), *pending_triggers)
    if restarts or any_removed_or_replaced(packages, _DOCKER_PACKAGES) or DOCKER_SERVICE in stopped:
        refuse_running_containers(docker, host)
    refuse_gpu_clients(host, changes, pending_triggers)
    if any_removed_or_replaced(packages, _CONTAINERD_PACKAGES) and (containers := host.find_workloads().containers):
        raise drain_error("take containerd away from", "container", containers, ["end them first"])


def drain_error(doing: str, what: str, users: Sequence[object], advice: Iterable[str]) -> DrainRequired:
    """Return the error for running ``users``, with their number and some of their names."""
    return DrainRequired(
        f"continuing would {doing} {count_noun(len(users), what)}",
        why=f"running: {join_names(map(str, users), _MAX_NAMES_SHOWN)}",
        hint="\n".join((*advice, f"or {_OVERRIDE_HINT}")),
    )


def refuse_running_containers(docker: Fact[Unit], host: HostView) -> None:
    """Refuse if docker runs containers that its restart would stop.

    Raises:
        DrainRequired: names them.
        Undetermined: docker runs and does not report its containers.
    """
    running = host.run_probe(_RUNNING_CONTAINERS_PROBE)
    names = [line.partition(" ")[2] for line in running.text.splitlines() if line.strip()]
    if running.outcome == "ok" and names:
        raise DrainRequired(
            f"continuing would stop {count_noun(len(names), 'running docker container')}",
            why=f"running: {', '.join(names)}",
            hint=f"drain {'it' if len(names) == 1 else 'them'} first, or {_OVERRIDE_HINT}",
        )
    is_active = docker.value.state.active if isinstance(docker, Known) else None
    if running.outcome == "absent" and is_active is None:  # a plain rollback asks for no units before
        text = host.run_probe(unit_probe(DOCKER_SERVICE)).text
        is_active = systemd.is_unit_active(systemd.find_properties(text, DOCKER_SERVICE))
    # A daemon may run without its client: Debian 13 has that in docker-cli, which docker.io only recommends.
    is_down = running.outcome == "absent" and (not is_active or running.error == NOT_CAPTURED_REASON)
    is_down = is_down or is_active is False or DOCKER_UNREACHABLE_ERROR.search(running.error) is not None
    if running.outcome != "ok" and not is_down:
        raise Undetermined(
            "cannot tell which docker containers run, and continuing would stop them",
            why=explain_missing_client(CONTAINER_RUNTIMES["docker"], has_daemon=True)
            if running.outcome == "absent"
            else f"{running.source}: {running.outcome}; {running.error.strip()[:500]}",
            hint=f"make `docker ps` answer, or {_OVERRIDE_HINT}",
        )


def any_removed_or_replaced(changes: Sequence[PackageChange], package_ids: Collection[PackageId]) -> bool:
    """Return whether one of the installed ``package_ids`` is removed, purged or replaced by another version."""
    return any(change.id in package_ids and change.removes_or_replaces for change in changes)
