"""systemd units: enable, start, reload and restart them, and check that they stay up."""

from __future__ import annotations

import posixpath
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gpunode.change import ServiceChange, Trigger
from gpunode.command import command
from gpunode.errors import ChangeFailed
from gpunode.facts.kernels import parse_nvrm_version
from gpunode.facts.probes import CDI_FOLDERS, CDI_KIND, CDI_REFRESH_ENVIRONMENT_FILE, find_cdi_output_path
from gpunode.facts.systemd import has_unit_failed
from gpunode.host.port import TriggerResult
from gpunode.host.process import FinishedCommand, Runner
from gpunode.runtimes import RUNTIMES, docker_nodes
from gpunode.runtimes.installations import containerd_socket_of

# sd_booted(3).
_SYSTEMD_RUN_FOLDER = Path("/run/systemd/system")
_CDI_REFRESH_UNIT = "nvidia-cdi-refresh.service"
# docker.service has TimeoutStartSec=0: systemd itself would wait for ever.
_START_TIMEOUT_S = 180.0
_SYSTEMCTL_TIMEOUT_S = 120.0
_SOCKET_TIMEOUT_S = 30.0
# How long dockerd may take from logging that it reloads its file to logging the result.
_RELOAD_REJECTION_WAIT_S = 10.0
_UNIT_PROPERTIES = "LoadState,ActiveState,SubState,UnitFileState,MainPID,NRestarts,Result,CanReload,ConditionResult"
# How long a unit is watched after its restart: one with a bad configuration may take seconds to fail.
_RESTART_WATCH_S = 5.0
_WATCH_S = 1.0
_TRANSITIONAL_STATES = frozenset({"activating", "deactivating", "reloading"})
_SYSTEMD_NOT_RUNNING_REASON = "systemd is not running here"


class Services:
    """Control of the units of the runner's system.

    Attributes:
        root: where to look for the driver.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.root = Path(runner.root)

    @property
    def is_systemd_running(self) -> bool:
        """True if systemd runs here, unlike in an image, a chroot and most containers."""
        return not self._runner.is_image and _SYSTEMD_RUN_FOLDER.is_dir()

    def apply(self, change: ServiceChange) -> None:
        """Set the unit to ``change.after``; without a running systemd, from the next boot on.

        Raises:
            ChangeFailed: if systemctl refused, or the unit did not start.
        """
        if change.after.enabled != change.before.enabled:
            verb = "enable" if change.after.enabled else "disable"
            done = self._systemctl(verb, change.unit)
            if not done.ok:
                raise ChangeFailed(
                    f"{change.unit} could not be {verb}d",
                    why=done.last_lines(6) or f"exit status {done.exit_status}",
                    hint=f"systemctl {verb} {change.unit}",
                )
        if change.after.active != change.before.active and self.is_systemd_running:
            verb = "start" if change.after.active else "stop"
            self._run_verb(verb, change.unit, f"did not {verb}")
        if self.is_systemd_running and not change.after.enabled and not change.after.active:
            # Otherwise systemd would call the system degraded long after the unit's file is gone.
            self._systemctl("reset-failed", change.unit)

    def run_trigger(self, trigger: Trigger) -> TriggerResult:
        """Run ``trigger``; without a running systemd, skip it.

        Raises:
            ChangeFailed: if a unit rejected it, or is not up afterwards; its last log lines are in ``why``.
        """
        if trigger.kind == "cdi":
            try:
                return self._refresh_cdi(trigger)
            except ChangeFailed as failure:
                if trigger.target != "if-possible":
                    raise
                return TriggerResult(trigger, 0.0, f"{failure.what}; nothing required it")
        if not self.is_systemd_running:
            return TriggerResult(trigger, 0.0, _SYSTEMD_NOT_RUNNING_REASON)
        match trigger.kind:
            case "restart":
                return self._restart(trigger)
            case "start":
                return self._start(trigger)
            case "reload":
                return self._reload(trigger)
            case "daemon-reload":
                return self._reload_systemd(trigger)
            case "index-refresh" | "initramfs":
                raise AssertionError(f"{trigger} is not for systemd")

    def _restart(self, trigger: Trigger) -> TriggerResult:
        unit, before = trigger.target, self._read_properties(trigger.target)
        if why := _explain_not_running(unit, before):
            return TriggerResult(trigger, 0.0, why)
        started, since = time.monotonic(), self._run_verb("restart", unit, "did not start again")
        self._await_socket(unit, since)
        down = time.monotonic() - started
        self._require_stable(unit, since, _RESTART_WATCH_S)
        return TriggerResult(trigger, down, had_failed=has_unit_failed(before))

    def _start(self, trigger: Trigger) -> TriggerResult:
        """Start a service that released the GPUs, unless no driver that it can use is loaded."""
        unit, shown = trigger.target, self._read_properties(trigger.target)
        if shown.get("LoadState") != "loaded":
            return TriggerResult(trigger, 0.0, f"{unit} is {shown.get('LoadState') or 'unknown'} here")
        if shown.get("ActiveState") == "active":
            return TriggerResult(trigger, 0.0, f"{unit} runs already")
        if why := self._explain_unfit_driver():
            is_enabled = shown.get("UnitFileState") == "enabled"
            later = "it starts with the next boot" if is_enabled else f"then systemctl start {unit}"
            return TriggerResult(trigger, 0.0, f"{why}; {later}")
        started, since = time.monotonic(), self._run_verb("start", unit, "did not start again")
        self._require_stable(unit, since, _WATCH_S)
        return TriggerResult(trigger, time.monotonic() - started)

    def _explain_unfit_driver(self) -> str:
        """Explain why nothing can use the GPUs yet; empty if the libraries of the loaded driver are installed."""
        libraries = [path.name for path in self.root.glob("usr/lib/*-linux-gnu/libnvidia-ml.so.*")]
        if not libraries:
            return "no driver is installed"
        with suppress(OSError, ValueError):
            loaded = parse_nvrm_version((self.root / "proc/driver/nvidia/version").read_text(errors="replace"))
            if not any(name.endswith(f".so.{loaded.version}") for name in libraries):
                return f"driver {loaded.version} stays loaded until the reboot"
        return ""

    def _run_verb(self, verb: str, unit: str, failed: str) -> float:
        """Start, restart or stop the unit; return when that began, in seconds since the epoch."""
        if verb != "stop":
            # Failed starts, with the old configuration or at every change of a file, must not block this one.
            self._systemctl("reset-failed", unit)
        since = time.time()
        done = self._systemctl(verb, unit, timeout_s=_START_TIMEOUT_S)
        if not done.ok:
            raise self._make_failure(unit, failed, _explain_failure(done), since)
        return since

    def _reload(self, trigger: Trigger) -> TriggerResult:
        unit, before = trigger.target, self._wait_until_settled(trigger.target)
        if why := _explain_not_running(unit, before):
            return TriggerResult(trigger, 0.0, why)
        if has_unit_failed(before):
            return self._restart(trigger)  # there is no process that could read its configuration again
        since, started = time.time(), time.monotonic()
        if before.get("CanReload") == "yes":
            done = self._systemctl("reload", unit)
        else:
            done = self._systemctl("kill", "--kill-who=main", "--signal=HUP", unit)
        if not done.ok:
            raise self._make_failure(unit, "did not reload its configuration", _explain_failure(done), since)
        self._require_stable(unit, since, _WATCH_S)
        if line := self._find_reload_rejection(unit, since):
            raise ChangeFailed(
                f"{unit} rejected its configuration",
                why=f"{unit} keeps running with the former one, and would not start with the new one; its log:\n{line}",
                hint=f"fix what the message names, then run the same command again\njournalctl -u {unit} -n 50",
            )
        return TriggerResult(trigger, time.monotonic() - started)

    def _find_reload_rejection(self, unit: str, since: float) -> str:
        """Return the log line in which dockerd rejects its file after a reload; empty if there is none.

        Only its log shows this: the signal always succeeds. No other daemon is reloaded.
        """
        deadline = time.monotonic() + _RELOAD_REJECTION_WAIT_S
        while True:
            log = self._log_since(unit, since)
            outcome = docker_nodes.parse_reload_log(log.text if log.ok else "")
            if outcome.ended or time.monotonic() >= deadline:
                return outcome.rejection
            time.sleep(0.2)

    def _refresh_cdi(self, trigger: Trigger) -> TriggerResult:
        """Write the CDI specification with the toolkit's unit or, if that does not run, with nvidia-ctk."""
        if self._runner.is_image:
            return TriggerResult(trigger, 0.0, "it is written after the image has booted")
        started = time.monotonic()
        path = _read_cdi_output_path()
        generate = ("nvidia-ctk", "cdi", "generate", f"--output={path}")
        if not self._run_cdi_unit():
            done = self._runner.run(generate, timeout_s=_START_TIMEOUT_S)
            if done.is_program_missing:
                return TriggerResult(trigger, 0.0, "nvidia-ctk is not installed")
            if not done.ok:
                raise _missing_specification_error(
                    done.last_lines(6) or f"nvidia-ctk exited with {done.exit_status}", generate
                )
        # Of its own accord it looks only into the standard folders.
        elsewhere = () if posixpath.dirname(path) in CDI_FOLDERS else (f"--spec-dir={posixpath.dirname(path)}",)
        listed = self._runner.run(("nvidia-ctk", "cdi", "list", *elsewhere), timeout_s=_SYSTEMCTL_TIMEOUT_S)
        # It also succeeds without any device, and reports that only on standard error.
        if not any(line.startswith(f"{CDI_KIND}=") for line in listed.text.splitlines()):
            raise _missing_specification_error(listed.last_lines(6), generate)
        return TriggerResult(trigger, time.monotonic() - started)

    def _run_cdi_unit(self) -> bool:
        """Start the toolkit's unit; return whether it exists and ran, since its conditions may not be met.

        The unit of toolkit 1.18.0 looks for nvidia.ko in modules.dep; Debian calls it nvidia-current.ko.
        """
        if not self.is_systemd_running or self._read_properties(_CDI_REFRESH_UNIT).get("LoadState") != "loaded":
            return False
        # It is started by every change of the driver's files, so its start limit is often used up.
        self._run_verb("restart", _CDI_REFRESH_UNIT, "could not write the CDI specification")
        now = self._read_properties(_CDI_REFRESH_UNIT)
        return now.get("Result", "success") == "success" and now.get("ConditionResult", "yes") == "yes"

    def _reload_systemd(self, trigger: Trigger) -> TriggerResult:
        done = self._systemctl("daemon-reload")
        if not done.ok:
            raise ChangeFailed(
                "systemd did not reload its units",
                why=f"daemon-reload: {done.last_lines(6) or _explain_failure(done)}",
                hint="systemctl daemon-reload",
            )
        return TriggerResult(trigger, done.seconds)

    def _wait_until_settled(self, unit: str) -> Mapping[str, str]:
        """Wait until the unit is at rest, as a reload needs; return its properties, even after a timeout."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        shown = self._read_properties(unit)
        while (
            shown.get("ActiveState") in _TRANSITIONAL_STATES
            and not has_unit_failed(shown)
            and time.monotonic() < deadline
        ):
            time.sleep(0.2)
            shown = self._read_properties(unit)
        return shown

    def _require_stable(self, unit: str, since: float, seconds: float) -> None:
        """Check that the unit stays active with the same process for ``seconds``."""
        first, deadline = self._read_properties(unit), time.monotonic() + seconds
        now = first
        while True:
            if now.get("ActiveState") != "active":
                state = f"{now.get('ActiveState')} ({now.get('SubState')}, {now.get('Result')})"
                raise self._make_failure(unit, "did not stay up", f"it started and is now {state}", since)
            if (now.get("MainPID"), now.get("NRestarts")) != (first.get("MainPID"), first.get("NRestarts")):
                raise self._make_failure(unit, "did not stay up", "systemd had to start it again", since)
            if time.monotonic() >= deadline:
                return
            time.sleep(0.5)
            now = self._read_properties(unit)

    def _await_socket(self, unit: str, since: float) -> None:
        """Wait until the unit's socket answers, if it is at the runtime's default path."""
        path = {runtime.unit: runtime.socket for runtime in RUNTIMES}.get(unit) or containerd_socket_of(unit)
        deadline = time.monotonic() + _SOCKET_TIMEOUT_S
        while Path(path).is_socket() and not _is_socket_answering(path):
            if time.monotonic() >= deadline:
                reason = f"{path} does not answer after {_SOCKET_TIMEOUT_S:.0f} s"
                raise self._make_failure(unit, "did not start again", reason, since)
            time.sleep(0.1)

    def _read_properties(self, unit: str) -> Mapping[str, str]:
        shown = self._systemctl("show", f"--property={_UNIT_PROPERTIES}", unit)
        return dict(line.partition("=")[::2] for line in shown.text.splitlines())

    def _make_failure(self, unit: str, what: str, reason: str, since: float) -> ChangeFailed:
        words = self.last_log_lines(unit, since)
        return ChangeFailed(
            f"{unit} {what}",
            why=f"{unit}: {reason}" + (f"; its last lines:\n{words}" if words else ""),
            hint=f"systemctl status {unit}\njournalctl -u {unit} -n 50",
        )

    def last_log_lines(self, unit: str, since: float) -> str:
        """Return what the unit logged since then, or its systemctl status without a journal."""
        # With --since, -n takes the first lines, not the last; with -r, too, it takes the last (systemd 252).
        finished = self._log_since(unit, since, "-r", "-n", "20")
        if finished.ok and finished.stdout.strip():
            return "\n".join(reversed(finished.last_lines().splitlines()))
        return self._systemctl("status", "--no-pager", "--full", "--lines=20", unit).last_lines()

    def _log_since(self, unit: str, since: float, *options: str) -> FinishedCommand:
        """Return the unit's log since then, in the order given by ``options``."""
        # What a daemon wrote just before it exited may not have reached the journal yet.
        self._runner.run(("journalctl", "--sync"), timeout_s=_SYSTEMCTL_TIMEOUT_S)
        argv = ("journalctl", "-u", unit, *options, "--no-pager", "-q", "-o", "cat", f"--since=@{since:.6f}")
        return self._runner.run(argv, timeout_s=_SYSTEMCTL_TIMEOUT_S)

    def _systemctl(self, *words: str, timeout_s: float = _SYSTEMCTL_TIMEOUT_S) -> FinishedCommand:
        return self._runner.run(("systemctl", *words), timeout_s=timeout_s)


def _explain_not_running(unit: str, shown: Mapping[str, str]) -> str:
    """Explain why the unit cannot take a trigger; empty if it can."""
    if shown.get("LoadState") != "loaded":
        return f"{unit} is {shown.get('LoadState') or 'unknown'} here"
    if shown.get("ActiveState") == "inactive":
        return f"{unit} is not running; it reads its configuration when it starts"
    return ""


def _read_cdi_output_path() -> str:
    """Return where the toolkit's unit writes the specification, which is where the plan expects it."""
    try:
        return find_cdi_output_path(Path(CDI_REFRESH_ENVIRONMENT_FILE).read_text(errors="replace"))
    except OSError:
        return find_cdi_output_path("")


def _missing_specification_error(output: str, generate: Sequence[str]) -> ChangeFailed:
    return ChangeFailed(
        "nvidia-ctk wrote no CDI specification that offers a GPU",
        why=f"`nvidia-ctk cdi list` names no {CDI_KIND}=…; its output:\n{output or 'nothing'}",
        hint=f"nvidia-smi -L\n{command('nvidia-ctk', '--debug', *generate[1:])}\nthen run the same command again",
    )


def _explain_failure(finished: FinishedCommand) -> str:
    if finished.timed_out:
        return f"no answer within {finished.seconds:.0f} s"
    return f"systemctl exited with {finished.exit_status}"


def _is_socket_answering(path: str) -> bool:
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(1.0)
        try:
            client.connect(path)
        except OSError:
            return False
    return True
