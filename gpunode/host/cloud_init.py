"""cloud-init at the first boot: whether it still runs, and waiting for it unless it waits for gpunode."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gpunode.errors import Busy
from gpunode.host.locks import Holder, named, running, wait_while
from gpunode.host.port import OnProgress
from gpunode.host.process import Runner

NAME = "cloud-init"
_UNITS = ("cloud-init", "cloud-config.", "cloud-final.")
# The stages that come after a login is possible. Source: cloud-init@22.4.2:systemd/, names unchanged in 25.1.
_LATE_UNITS = ("cloud-config.service", "cloud-final.service")
# `cloud-init status --wait` and its like run for a user and wait themselves.
_AT_WORK = (b"init", b"modules", b"single", b"--all-stages")
_QUERY_LIMIT_S = 20.0
_POLL_S = 1.0  # a look goes through /proc and asks systemctl


def wait_until_done(
    runner: Runner,
    limit_s: float,
    on_progress: OnProgress,
    *,
    root: Path = Path("/"),
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until cloud-init has finished this boot; return at once if it is absent or started this process.

    Args:
        runner: starts systemctl, on a node whose cloud-init has begun and not ended, and on no other.
        limit_s: how long it is waited for.
        on_progress: hears meanwhile what cloud-init is at.
        root: where /run and /proc are.
        clock: seconds that only go up.
        sleep: waits for some of them.

    Raises:
        Busy: it is still at work after ``limit_s``.
    """
    proc = root / "proc"
    if not has_begun(root / "run/cloud-init") or started_us(proc) or _is_part_of_the_boot(runner, own_unit(proc)):
        return

    def who() -> Holder | None:
        if not has_begun(root / "run/cloud-init"):
            return None
        return at_work(proc) or _queued(runner)

    wait_while(who, _describe, _busy, clock() + limit_s, on_progress, poll_s=_POLL_S, clock=clock, sleep=sleep)


def has_begun(folder: Path) -> bool:
    """Whether cloud-init began at this boot without recording a result; it need not still run.

    Source: cloud-init@25.1:cloudinit/cmd/status.py, is_running and get_bootstatus.
    """
    is_over = any((folder / name).exists() for name in ("result.json", "disabled"))
    return (folder / "status.json").exists() and not is_over


def at_work(proc: Path) -> Holder | None:
    """The process that runs a stage of cloud-init."""
    return next((named(NAME, pid, proc=proc) for pid in running(NAME, proc=proc) if _is_stage(pid, proc)), None)


def started_us(proc: Path) -> bool:
    """Whether a stage of cloud-init waits for this process: it is an ancestor, or has it in its unit."""
    return own_unit(proc).startswith(_UNITS) or any(_is_stage(pid, proc) for pid in ancestors(proc))


def own_unit(proc: Path) -> str:
    """The systemd service in which this process runs; empty outside of any."""
    try:
        groups = (proc / "self/cgroup").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    parts = (part for group in groups for part in reversed(group.rpartition(":")[2].split("/")))
    return next((part for part in parts if part.endswith(".service")), "")


def ancestors(proc: Path) -> Iterator[int]:
    """The parent of this process, its parent, and so on, as far as this PID namespace goes."""
    process = "self"
    while (parent := _parent(proc / process)) > 0:
        yield parent
        process = str(parent)


def _parent(folder: Path) -> int:
    try:
        # The second field is a name in parentheses, which may hold anything. Source: proc_pid_stat(5).
        return int((folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _is_stage(pid: int, proc: Path) -> bool:
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    is_cloud_init = any(word.rpartition(b"/")[2] == NAME.encode() for word in words[:2])
    return is_cloud_init and any(word in _AT_WORK for word in words)


def _is_part_of_the_boot(runner: Runner, unit: str) -> bool:
    """Whether the boot waits for ``unit`` to be through, and so may cloud-init's last stage.

    Source: cloud-init@22.4.2:systemd/cloud-final.service.tmpl, After=multi-user.target; cloud-init@25.1 does all its
    stages in one process, which waits for that unit.
    """
    if not unit:
        return False
    states = _states(runner, unit, "multi-user.target")
    is_starting = states.get(unit, {}).get("ActiveState") == "activating"
    return is_starting and states.get("multi-user.target", {}).get("ActiveState") != "active"


def _queued(runner: Runner) -> Holder | None:
    """cloud-init's stage that systemd has yet to start; None when its last one has ended, well or badly."""
    states = _states(runner, *_LATE_UNITS)
    return next((Holder(unit, 0, "") for unit in _LATE_UNITS if states.get(unit, {}).get("Job")), None)


def _states(runner: Runner, *units: str) -> dict[str, dict[str, str]]:
    """What systemd says of ``units``, by name; nothing where there is no systemd."""
    argv = ("systemctl", "show", "--property=Id,ActiveState,Job", *units)
    blocks = runner.run(argv, timeout_s=_QUERY_LIMIT_S).stdout.decode("utf-8", "replace").split("\n\n")
    states = [dict(line.partition("=")[::2] for line in block.splitlines()) for block in blocks]
    return {state.get("Id", ""): state for state in states}


def _describe(found: Holder) -> str:
    stage = str(found) if found.pid else f"{found.path} has yet to run"
    return f"cloud-init is still setting this machine up: {stage}"


def _busy(found: Holder, waited_s: float) -> Busy:
    return Busy(
        _describe(found),
        why=f"it installs packages and writes files, too; gpunode waited {waited_s:.0f} s for it",
        hint="wait until it is done, then run the same command again:\n  cloud-init status --wait",
    )
