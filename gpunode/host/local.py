"""The node itself, or a mounted root: probed in parallel, changed one step at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import groupby
from posixpath import normpath
from time import monotonic, time
from typing import TYPE_CHECKING

from gpunode.change import (
    Change,
    CommandChange,
    FileChange,
    FileState,
    MigChange,
    ModuleChange,
    ObjectChange,
    PackageChange,
    RuntimeExpectation,
    ServiceChange,
    SigningKey,
    Trigger,
)
from gpunode.errors import ChangeFailed, Conflict, Refused, assert_never
from gpunode.facts import machine
from gpunode.facts.evidence import Capture, Probe, ProbeOutcome
from gpunode.facts.model import Distro
from gpunode.host import files, globs, rooted_paths, runtime
from gpunode.host.command_log import CommandLog
from gpunode.host.locks import wait_until_free, wait_until_script_ended
from gpunode.host.port import OnProgress, Progress, TriggerResult, Workloads, ignore_progress
from gpunode.host.process import SIGNAL_EXIT_STATUS_BASE, Consent, FinishedCommand, Runner
from gpunode.package_id import PackageId
from gpunode.packages import deb
from gpunode.packages.simulation import Simulation
from gpunode.runtimes import ObservedConfig
from gpunode.runtimes import find_runtime as runtime_row

if TYPE_CHECKING:
    from gpunode.host.apt import Apt
    from gpunode.host.services import Services


_MAX_SIGNING_KEY_BYTES = 1 << 20
# DKMS builds the whole driver; 2.5 minutes on two fast cores, more than half an hour on a slow one.
_COMMAND_TIMEOUT_S = 7200.0
_MODULE_TIMEOUT_S = 120.0
_INITRAMFS_PATIENCE_S = 600.0
# dockerd applies a reload at once, so its configuration is not checked again later.
_DAEMON_PATIENCE_S = 5.0


class LocalHost:
    """The node that gpunode runs on, or the one whose root is mounted at ``root``; a ``port.Host``.

    The programs of a mounted root are run only with ``consent``, see ``process.Runner``.
    """

    def __init__(
        self,
        root: str = "/",
        on_progress: OnProgress = ignore_progress,
        log: CommandLog | None = None,
        *,
        lock_timeout_s: float = 600.0,
        consent: Consent | None = None,
    ) -> None:
        self.root = root.rstrip("/") or "/"
        self.runner = Runner(self.root, log, consent)
        self._on_progress = on_progress
        self._lock_timeout_s = lock_timeout_s
        self.mok_password_file = ""
        """The file with the one-time password for enrolling a key; if empty, a password is generated and shown."""
        self._mok_password = ""

    @cached_property
    def services(self) -> Services:
        """The node's services; loaded on first use, as ``packages``."""
        from gpunode.host.services import Services

        return Services(self.runner)

    @cached_property
    def packages(self) -> Apt:
        """This node's package manager; a converged run needs none, so it is loaded on its first use."""
        from gpunode.host.apt import Apt

        return Apt(self.runner, self._on_progress, self._lock_timeout_s)

    def run_probe(self, probe: Probe, /) -> Capture:
        """Run ``probe``; a command with a non-zero exit status has failed, but its output is kept.

        No program of a mounted root is run for it.
        """
        if probe.argv and self.runner.is_image:
            return Capture(probe.source, "absent", error=f"gpunode does not run programs of {self.root} to inspect it")
        if probe.argv:
            done = self.runner.run(
                probe.argv, timeout_s=probe.timeout_s, limit_bytes=probe.limit_bytes, only_reads=True
            )
            return _capture_output(probe, done)
        return globs.read_probe(probe, self.root)

    def read_live_distribution(self) -> Distro | None:
        """Return the distribution; see ``port.HostView.read_live_distribution``."""
        return read_live_distribution(self.root)

    def wait_until_idle(self) -> None:
        """Wait until neither cloud-init nor a package manager is busy; cloud-init may itself have started gpunode.

        Raises:
            Busy: if one is still busy at the timeout.
        """
        if not self.runner.is_image:
            from gpunode.host.cloud_init import wait_until_done

            wait_until_done(self.runner, self._lock_timeout_s, self._on_progress)
        self.wait_for_package_managers()

    def wait_for_package_managers(self) -> None:
        """Wait until no other program changes packages, including one that a killed gpunode left behind.

        Raises:
            Busy: if one held a lock past the timeout.
        """
        # Check the usual paths without querying the package manager, so that a node with nothing to do stays fast.
        locks = [f"/{lock}" for lock in deb.LOCK_FILES]
        wait_until_free(locks, monotonic() + self._lock_timeout_s, self._on_progress, root=self.root)

    def remove_temporary_files(self, paths: Iterable[str]) -> None:
        """Remove temporary files of a killed run beside ``paths``. Call it under gpunode's own lock."""
        from gpunode.host import apt, chroot

        for path in paths:
            files.remove_leftover_temporary_files(path, root=self.root)
        apt.remove_temporary_folders(self.root)
        if self.runner.is_image:
            chroot.remove_mount_points(self.root)

    def simulate(self, changes: Sequence[PackageChange], /) -> Simulation | None:
        """Simulate the package manager; return None without one.

        Without consent to run programs of a mounted root, use this machine's package manager with that root's state.
        """
        if self.runner.is_image and self.runner.consent is None:
            from gpunode.host.image_apt import simulate_image

            return simulate_image(self.root, changes)
        return self.packages.simulate(changes)

    def list_offered_versions(self, packages: Collection[PackageId], /) -> Mapping[PackageId, frozenset[str]]:
        """Return the versions of each package in the index."""
        return self.packages.list_offered_versions(packages)

    def find_workloads(self) -> Workloads:
        """Return the running GPU processes and containers; none in an image."""
        from gpunode.host import workloads

        return Workloads() if self.runner.is_image else workloads.find_disturbable_workloads()

    def check_candidate_files(self, expectation: RuntimeExpectation, changes: Sequence[FileChange], /) -> str:
        """Check the candidates with the runtime's own parser; see ``runtime.check_candidate_files``."""
        return runtime.check_candidate_files(self.runner, expectation, changes)

    def check_written_files(self, expectation: RuntimeExpectation, /) -> None:
        """Check the written files with the runtime's own parser; see ``runtime.check_written_files``."""
        runtime.check_written_files(self.runner, expectation)

    def check_daemon(self, expectation: RuntimeExpectation, /) -> None:
        """Check that the running daemon has the configuration; see ``runtime.find_daemon_contradiction``."""
        since = time() - _DAEMON_PATIENCE_S
        if not (contradiction := runtime.find_daemon_contradiction(self.runner, expectation, _DAEMON_PATIENCE_S)):
            return
        unit = runtime_row(expectation.runtime).unit
        words = self.services.last_log_lines(unit, since)
        raise ChangeFailed(
            f"{unit} did not accept its new configuration",
            why=contradiction + (f"; its last lines:\n{words}" if words else ""),
            hint=f"journalctl -u {unit} -n 50\nwhat the unit's command line sets cannot be set in the file",
        )

    def read_effective_config(self, name: str) -> ObservedConfig | None:
        """Return the container runtime's configuration; see ``runtime.read_effective_config``."""
        return runtime.read_effective_config(self.runner, name)

    def refuse_unsafe_changes(self, changes: Sequence[Change], /) -> None:
        """Refuse unless every file can be changed, nothing else is lost by it, and there is room on the disk."""
        from gpunode.host.disk_space import refuse_removal_without_room, refuse_unusable_boot
        from gpunode.host.mok import read_chosen_password  # a node with nothing to do never gets here

        refuse_unusable_boot(changes, self.root)
        refuse_removal_without_room(changes, self.root)
        self._mok_password = read_chosen_password(changes, self.mok_password_file)
        for change in FileChange.of_kind(changes):
            if not change.is_generated:
                files.refuse_unreplaceable(change.path, root=self.root)

    def describe_symlinks(self, changes: Sequence[Change], /) -> tuple[str, ...]:
        """Return a sentence for each file of ``changes`` that gpunode writes and whose path has a symbolic link."""
        notices: list[str] = []
        written = (change.path for change in FileChange.of_kind(changes) if not change.is_generated)
        for path in dict.fromkeys(written):
            with suppress(OSError):
                if (leads := rooted_paths.resolve_path(path, root=self.root)) != normpath(path):
                    notices.append(f"{path} leads to {leads} by a symbolic link, so that file is changed")
        return tuple(notices)

    def complete_change(self, change: Change, /) -> Change:
        """Complete ``change`` with a key's bytes, a file's attributes and the folders to make."""
        if not isinstance(change, FileChange) or change.is_generated:
            return change
        if isinstance(key := change.after, SigningKey):
            from gpunode.catalog import openpgp  # loaded on use: keys are fetched once

            with self._prepared_root():
                data = self.packages.fetch(key.url, _MAX_SIGNING_KEY_BYTES)
            change = replace(change, after=FileState(openpgp.verify_keyring(data, key), key.mode))
        try:
            if change.before is None:
                new_folders = rooted_paths.missing_folders(change.path, root=self.root)
                # If the file is already gone and stays so, only the folders recorded earlier are removed.
                return replace(change, folders=new_folders) if change.after else change
            kept = files.read_attributes(change.path, root=self.root)
        except OSError:
            return change  # applying the change reports what is wrong
        return replace(change, before=replace(change.before, xattrs=kept))

    def apply(self, changes: Sequence[Change], /) -> None:
        """Apply ``changes`` in order; consecutive package changes are one transaction."""
        for kind, group in groupby(changes, type):
            if kind is PackageChange:
                with self._prepared_root():
                    self.packages.transact(PackageChange.of_kind(group))
            else:
                for change in group:
                    self._apply(change)

    def _apply(self, change: Change) -> None:
        match change:
            case FileChange():
                self._apply_file(change)
            case ModuleChange():
                self._apply_module(change)
            case ServiceChange():
                self.services.apply(change)
            case CommandChange():
                self._apply_command(change)
            case MigChange():
                self._apply_mig(change)
            case PackageChange():
                raise AssertionError("package changes are one transaction")
            case ObjectChange():
                raise AssertionError("a cluster's objects are changed through kubectl")

    def _apply_file(self, change: FileChange) -> None:
        if change.is_generated:
            return
        after = change.after
        if after is not None and not isinstance(after, FileState):
            raise ChangeFailed(
                f"the content of {change.path} is not known yet",
                why=f"it is known only after {after.known_after}; nothing was written",
                hint="run the command again",
            )
        current = files.read_state(change.path, root=self.root)
        if current != after:
            _refuse_edited_file(change, current)
            if after is None:
                files.remove_file(change.path, root=self.root, precheck=partial(_refuse_edited_file, change))
            else:
                files.replace_file(change.path, after, root=self.root, precheck=partial(_refuse_edited_file, change))
        if after is None:
            files.remove_empty_folders(change.folders, root=self.root)

    def _apply_module(self, change: ModuleChange) -> None:
        self._refuse_in_image(
            f"module {change.module} cannot be loaded or unloaded", "the running kernel is not the image's"
        )
        argv = ("modprobe", change.module) if change.after else ("modprobe", "-r", change.module)
        done = self.runner.run(argv, timeout_s=_MODULE_TIMEOUT_S)
        if not done.ok:
            verb = "loaded" if change.after else "unloaded"
            raise ChangeFailed(
                f"module {change.module} could not be {verb}",
                why=_modprobe_cause(done),
                hint="see the kernel log:\n  dmesg | grep -iE 'nvrm|nvidia|nouveau|gdrdrv' | tail",
            )

    def _apply_mig(self, change: MigChange) -> None:
        from gpunode.host import mig_layout

        self._refuse_in_image(f"{change.gpu} cannot get a MIG layout", "a GPU is not part of an image")
        mig_layout.apply_mig_change(self.runner, change)

    def _refuse_in_image(self, what: str, why: str) -> None:
        if self.runner.is_image:
            raise Refused(f"{what} in {self.root}", why=why, hint="boot the image, then run `gpunode setup` on it")

    def _apply_command(self, change: CommandChange) -> None:
        from gpunode.host import mok

        if mok.is_mok_import(change):
            mok.queue_enrolment(self.runner, change, password=self._mok_password)
            mok.remove_password_file(self.mok_password_file, self._mok_password)
            return

        from gpunode.host.apt import UNATTENDED_APT_ENVIRONMENT

        # Package repairs, DKMS builds and reboots must not run in the middle of another program's transaction.
        self.wait_for_package_managers()
        with self._prepared_root():
            done = self.runner.run(
                change.argv,
                timeout_s=_COMMAND_TIMEOUT_S,
                env=UNATTENDED_APT_ENVIRONMENT,
                on_line=lambda line: self._on_progress(Progress("run", 0.0, line)),
                survives_gpunode=True,
            )
        if not done.ok:
            raise _command_error(done, f"{change.subject} failed ({change.purpose})")

    def run_triggers(self, triggers: Sequence[Trigger], /) -> tuple[TriggerResult, ...]:
        """Run ``triggers`` and wait for them; those that cannot run here are skipped with a reason."""
        settled: list[TriggerResult] = []
        for kind, group in groupby(triggers, lambda trigger: trigger.kind):
            same = tuple(group)
            match kind:
                case "index-refresh":
                    settled += self._refresh_index(same)
                case "initramfs":
                    settled += self._rebuild_initramfs(same)
                case "daemon-reload" | "start" | "cdi" | "reload" | "restart":
                    settled += map(self.services.run_trigger, same)
                case _:
                    assert_never(kind)
        return tuple(settled)

    def _refresh_index(self, triggers: Sequence[Trigger]) -> Iterator[TriggerResult]:
        states = {
            trigger: files.read_file(trigger.target, root=self.root).outcome for trigger in triggers if trigger.target
        }
        gone = {trigger for trigger, outcome in states.items() if outcome == "absent"}
        left = [trigger for trigger in triggers if trigger not in gone]
        started = monotonic()
        if left:
            with self._prepared_root():
                self.packages.refresh([trigger.target for trigger in left if trigger.target])
        seconds = monotonic() - started
        for trigger in triggers:
            yield (
                TriggerResult(trigger, 0.0, f"{trigger.target} is gone")
                if trigger in gone
                else TriggerResult(trigger, seconds)
            )

    def _rebuild_initramfs(self, triggers: Sequence[Trigger]) -> Iterator[TriggerResult]:
        # Concurrent rebuilds delete each other's drafts; a kernel installation or a killed run's child may be at it.
        self.wait_for_package_managers()
        argv = deb.rebuild_initramfs_command("all")
        if not self.runner.is_image:
            wait_until_script_ended(argv[0], _INITRAMFS_PATIENCE_S, self._on_progress)
        with self._prepared_root():
            done = self.runner.run(argv, timeout_s=_COMMAND_TIMEOUT_S, survives_gpunode=True)
        if not done.ok and not done.is_program_missing:
            raise _command_error(done, "the initramfs could not be rebuilt")
        skipped = f"{argv[0]} is not installed" if done.is_program_missing else ""
        yield from (TriggerResult(trigger, done.seconds, skipped) for trigger in triggers)

    def _prepared_root(self) -> AbstractContextManager[None]:
        from gpunode.host import chroot

        return chroot.prepare_root(self.runner)


def _capture_output(probe: Probe, finished: FinishedCommand) -> Capture:
    outcome: ProbeOutcome = "ok"
    error = finished.error
    if finished.is_program_missing:
        return Capture(probe.source, "absent", error=error)
    if finished.timed_out:
        outcome, error = "timeout", f"no answer within {probe.timeout_s:g} s\n{error}".strip()
    elif finished.dropped_bytes:
        outcome, error = "failed", f"longer than {probe.limit_bytes} bytes; the rest was not read"
    elif finished.exit_status != 0:
        outcome = "failed"
    return Capture(probe.source, outcome, finished.stdout, error, finished.exit_status)


def _refuse_edited_file(change: FileChange, current: FileState | None) -> None:
    """Refuse if the file is not the one that ``change`` replaces."""
    if current == change.before:
        return
    if current is None:
        is_now = "it has been deleted"
    elif change.before and current.content == change.before.content:
        is_now = f"it now has mode {current.mode:04o} and owner {current.uid}:{current.gid}"
    else:
        is_now = "its content is neither the former nor the planned content"
    raise Conflict(
        f"{change.path} was edited during the run",
        why=f"{is_now}; it was left as it is",
        hint="run the command again: it checks the node again and shows the change first",
    )


def _modprobe_cause(finished: FinishedCommand) -> str:
    """Return modprobe's first error; the later ones follow from it.

    Source: modprobe of Debian's nvidia-current without a GPU says "No such device" first and "Invalid argument" last.
    """
    if finished.timed_out:
        return f"modprobe timed out after {_MODULE_TIMEOUT_S:.0f} s"
    lines = finished.error.splitlines()
    errors = [line for line in lines if "ERROR" in line or "FATAL" in line]
    return next(iter([*errors, *lines]), f"modprobe exited with {finished.exit_status}, without output")


def _command_error(finished: FinishedCommand, what: str) -> ChangeFailed:
    ended = f"exit status {finished.exit_status}"
    if finished.exit_status > SIGNAL_EXIT_STATUS_BASE:
        ended = f"ended by signal {finished.exit_status - SIGNAL_EXIT_STATUS_BASE}"
    if finished.timed_out:
        ended = f"timed out after {_COMMAND_TIMEOUT_S:.0f} s"
    output = finished.last_lines()
    return ChangeFailed(
        what,
        why=f"{ended}; its last lines:\n{output}" if output else f"{ended}, without output",
        hint="fix that, then run the command again; earlier changes are recorded and can be rolled back",
    )


_MAX_OS_RELEASE_BYTES = 1 << 16


def read_live_distribution(root: str = "/") -> Distro | None:
    """Return the distribution in ``root``; None if ``distro`` cannot tell.

    ``LinuxDistribution(root_dir=…)`` would follow an absolute link out of the root, so each file is resolved inside it
    and passed by its open folder. ``distro`` reads only os-release: its other sources are programs, which it would look
    up in the caller's PATH.
    """
    import distro

    for path in machine.OS_RELEASE_FILES:
        try:
            with rooted_paths.open_path(path, root) as place:
                if (status := place.status()) is None or status.st_size > _MAX_OS_RELEASE_BYTES:
                    continue
                file = f"/proc/self/fd/{place.folder}/{place.name}"
                os_release = distro.LinuxDistribution(
                    os_release_file=file, include_lsb=False, include_uname=False, include_oslevel=False
                ).os_release_info()
            return machine.make_distro({key.upper(): value for key, value in os_release.items()})
        except (OSError, ValueError):  # no such file, or one with a quote that is never closed
            continue
    return None
