"""Waiting for cloud-init at the first boot, unless it waits for gpunode."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from gpunode.errors import Busy
from gpunode.facts.systemd import find_properties
from gpunode.host.locks import LockHolder, make_holder, script_pids, wait_while
from gpunode.host.port import OnProgress
from gpunode.host.process import Runner

CLOUD_INIT_PROGRAM = "cloud-init"
_CLOUD_INIT_UNIT_PREFIXES = ("cloud-init", "cloud-config.", "cloud-final.")
# The stages that run after logins are possible. Source: cloud-init@22.4.2:systemd/, names unchanged in 25.1.
_LATE_UNITS = ("cloud-config.service", "cloud-final.service")
# Commands such as `cloud-init status --wait` are run by a user and only wait.
_STAGE_ARGUMENTS = (b"init", b"modules", b"single", b"--all-stages")
_QUERY_TIMEOUT_S = 20.0
_POLL_S = 1.0  # each poll scans /proc and runs systemctl


def wait_until_done(runner: Runner, limit_s: float, on_progress: OnProgress, *, root: Path = Path("/")) -> None:
    """Wait until cloud-init has finished this boot; return at once if it is absent or started this process.

    Raises:
        Busy: if it still runs after ``limit_s``.
    """
    proc = root / "proc"
    if (
        not is_unfinished(root / "run/cloud-init")
        or is_waiting_for_gpunode(proc)
        or _delays_boot(runner, find_own_unit(proc))
    ):
        return

    def who() -> LockHolder | None:
        if not is_unfinished(root / "run/cloud-init"):
            return None
        if found := find_stage_process(proc):
            return found
        shown = _show_units(runner, *_LATE_UNITS)  # a stage that systemd has yet to start
        return next((LockHolder(unit, 0, "") for unit in _LATE_UNITS if find_properties(shown, unit).get("Job")), None)

    wait_while(who, _describe_stage, _busy_error, time.monotonic() + limit_s, on_progress, poll_s=_POLL_S)


def is_unfinished(folder: Path) -> bool:
    """Return True if cloud-init began at this boot without recording a result; it may have died.

    Source: cloud-init@25.1:cloudinit/cmd/status.py, is_running and get_bootstatus.
    """
    is_over = any((folder / name).exists() for name in ("result.json", "disabled"))
    return (folder / "status.json").exists() and not is_over


def find_stage_process(proc: Path) -> LockHolder | None:
    """Return the process that runs a stage of cloud-init, if any."""
    return next(
        (
            make_holder(CLOUD_INIT_PROGRAM, pid, proc=proc)
            for pid in script_pids(CLOUD_INIT_PROGRAM, proc=proc)
            if _is_stage_process(pid, proc)
        ),
        None,
    )


def is_waiting_for_gpunode(proc: Path) -> bool:
    """Return True if a stage of cloud-init waits for this process: as its ancestor or in its unit."""
    return find_own_unit(proc).startswith(_CLOUD_INIT_UNIT_PREFIXES) or any(
        _is_stage_process(pid, proc) for pid in ancestors(proc)
    )


def find_own_unit(proc: Path) -> str:
    """Return the systemd service of this process; empty outside of any."""
    try:
        groups = (proc / "self/cgroup").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    parts = (part for group in groups for part in reversed(group.rpartition(":")[2].split("/")))
    return next((part for part in parts if part.endswith(".service")), "")


def ancestors(proc: Path) -> Iterator[int]:
    """Yield the ancestors of this process in this PID namespace, the parent first."""
    process = "self"
    while (parent := _parent_pid(proc / process)) > 0:
        yield parent
        process = str(parent)


def _parent_pid(folder: Path) -> int:
    try:
        # The second field is a name in parentheses, which may hold anything. Source: proc_pid_stat(5).
        return int((folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _is_stage_process(pid: int, proc: Path) -> bool:
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    is_cloud_init = any(word.rpartition(b"/")[2] == CLOUD_INIT_PROGRAM.encode() for word in words[:2])
    return is_cloud_init and any(word in _STAGE_ARGUMENTS for word in words)


def _delays_boot(runner: Runner, unit: str) -> bool:
    """Return True if the boot, and perhaps cloud-init's last stage, waits for ``unit``.

    Source: cloud-init@22.4.2:systemd/cloud-final.service.tmpl, After=multi-user.target; cloud-init@25.1 does all its
    stages in one process, which waits for that unit.
    """
    if not unit:
        return False
    shown = _show_units(runner, unit, "multi-user.target")
    is_starting = find_properties(shown, unit).get("ActiveState") == "activating"
    return is_starting and find_properties(shown, "multi-user.target").get("ActiveState") != "active"


def _show_units(runner: Runner, *units: str) -> str:
    argv = ("systemctl", "show", "--property=Id,ActiveState,Job", *units)
    return runner.run(argv, timeout_s=_QUERY_TIMEOUT_S).text


def _describe_stage(holder: LockHolder) -> str:
    stage = str(holder) if holder.pid else f"{holder.path} has not run yet"
    return f"cloud-init is still setting this machine up: {stage}"


def _busy_error(holder: LockHolder, waited_s: float) -> Busy:
    return Busy(
        _describe_stage(holder),
        why=f"it installs packages and writes files, too; gpunode waited {waited_s:.0f} s for it",
        hint="wait until it is done, then run the same command again:\n  cloud-init status --wait",
    )
