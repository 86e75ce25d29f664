"""Apply changes through the journal (intent and backup first, then the change), then run their triggers."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field
from itertools import groupby

from gpunode.catalog.conflicts import driver_packages
from gpunode.change import (
    CONFFILES_STEP_ID,
    OVERWRITTEN_STEP_ID,
    SET_ASIDE_STEP_ID,
    Change,
    FileChange,
    FileState,
    PackageChange,
    PackageState,
    RuntimeExpectation,
    Trigger,
    triggers_of,
)
from gpunode.errors import ChangeFailed, GpunodeError, Interrupted, Undetermined
from gpunode.fast_dataclass import dataclass
from gpunode.host.port import Host, HostView, TriggerResult
from gpunode.journal.history import RunRecord, pending_triggers, triggers_done_by
from gpunode.journal.objects import MAX_BACKUP_BYTES
from gpunode.journal.record import Failed, Intent
from gpunode.journal.run import Run
from gpunode.journal.store import Store
from gpunode.outcome import Planned
from gpunode.package_id import PackageId
from gpunode.packages import deb
from gpunode.runtimes import RUNTIMES
from gpunode.steps.runtime import RUNTIME_CONFIG_STEP
from gpunode.workflow import live_state
from gpunode.workflow.converge import DEPENDENCIES_STEP_ID, StagePlan, StepPlan
from gpunode.workflow.events import TRANSACTION_STEP_ID, Applied, Applying, Notice, Observer, Triggered, Triggering

InterruptCheck = Callable[[], None]
_UNIT_TRIGGER_KINDS = frozenset({"reload", "restart"})
_RECOVERY_STAGE_NAME = "recovery"


@dataclass(slots=True)
class Applier:
    """Applies changes to one node in one journaled run.

    Attributes:
        check_interrupt: called between changes; raises Interrupted after a signal.
        untriggered_changes: changes of interrupted runs, newest first, that their daemons have not read yet.
        pending_triggers: the triggers that those runs left pending.
        parser_answers: what a runtime's own parser said about a step's files before they were written, by step id.
    """

    host: Host
    run: Run
    on_event: Observer
    check_interrupt: InterruptCheck
    untriggered_changes: tuple[FileChange, ...] = ()
    pending_triggers: Collection[Trigger] = ()
    parser_answers: dict[str, str] = field(default_factory=dict)
    _expectations: dict[Trigger, RuntimeExpectation] = field(default_factory=dict)
    _attempted_triggers: set[Trigger] = field(default_factory=set)

    def apply_stage(self, plan: StagePlan) -> None:
        """Make the changes of a stage, and run the triggers that later stages need.

        Raises:
            GpunodeError: a change could not be made; the earlier changes stay, and are journaled.
        """
        for _, same in groupby(plan.ordered_changes, key=type):
            self._apply_batch(plan, tuple(same))
        self.run_triggers([trigger for trigger in plan.triggers if trigger.runs_at_stage_end])

    def run_triggers(self, triggers: Sequence[Trigger]) -> tuple[TriggerResult, ...]:
        """Run ``triggers``; if a daemon does not come back, restore its former configuration.

        Raises:
            ChangeFailed: a trigger failed. All services that were stopped to free the GPUs are started first.
        """
        done: list[TriggerResult] = []
        failures: list[ChangeFailed] = []
        for _, same in groupby(triggers, key=_trigger_batch_key):
            batch = tuple(same)
            if failures and batch[0].kind != "start":
                break
            self.on_event(Triggering(batch))
            try:
                done += self._run_trigger_batch(batch)
            except ChangeFailed as failure:
                if batch[0].kind != "start":
                    raise
                failures.append(failure)
        if failures:
            raise failures[0]
        return tuple(done)

    def restart_paused_services(self) -> None:
        """Start the services that this run stopped for its changes and has not tried to start yet.

        Raises:
            ChangeFailed: a service did not start.
        """
        paused = [trigger for trigger in pending_triggers(self.run.entries()) if trigger.kind == "start"]
        self.run_triggers([trigger for trigger in paused if trigger not in self._attempted_triggers])

    def _run_trigger_batch(self, batch: tuple[Trigger, ...]) -> Iterator[TriggerResult]:
        self._attempted_triggers.update(batch)
        try:
            settled = self.host.run_triggers(batch)
            for result in settled:
                if result.trigger in self._expectations and not result.skipped:
                    self.host.check_daemon(self._expectations[result.trigger])
        except ChangeFailed as failure:
            if batch[0].kind in _UNIT_TRIGGER_KINDS:
                self._restore_and_restart(batch, failure)
            raise
        for result in settled:
            self.run.record_trigger(result.trigger, result.skipped)
            self.on_event(Triggered(result))
            yield result

    def _restore_and_restart(self, failed: tuple[Trigger, ...], failure: ChangeFailed) -> None:
        """Restore the files that the failed daemon read and restart it; add the outcome to ``failure``."""
        units = ", ".join(trigger.target for trigger in failed)
        restored: list[str] = []
        try:
            for change in self._changes_with_trigger(failed):
                self._restore_file(change, failure)
                restored.append(change.path)
            if not restored and failed[0].kind == "reload":
                failure.why += "\ngpunode did not write the rejected file, so nothing was restored"
                return
            for run_trigger in self.host.run_triggers(failed):
                self.run.record_trigger(run_trigger.trigger, "with the former configuration")
                self.on_event(Triggered(run_trigger))
        except GpunodeError as second:
            if restored:
                failure.why += (
                    f"\nrestored: {', '.join(restored)}; {units} does not start with the former file "
                    f"either: {second.what}"
                )
            else:
                failure.why += f"\nrestored: nothing; tried once more: {second.what}"
            failure.why += f"\n{second.why}"
            return
        if restored:
            failure.why += f"\nrestored: {', '.join(restored)}; {units} is running with the former file again"
        else:
            failure.why += f"\ngpunode wrote none of its files, so none was restored; started again, {units} is running"

    def _changes_with_trigger(self, failed: tuple[Trigger, ...]) -> Iterator[FileChange]:
        """Yield the written changes, newest first, that have one of the ``failed`` triggers."""
        for change in (*self._written_files(), *self.untriggered_changes):
            # A change that only triggers a reread left a file that somebody else wrote.
            if change.triggers & set(failed) and not change.only_triggers_reread:
                yield change

    def _written_files(self) -> list[FileChange]:
        """Return the file changes that this run made, newest first, without those that it has restored."""
        entries = self.run.entries()
        failed = {entry.seq for entry in entries if isinstance(entry, Failed)}
        made = [entry for entry in entries if isinstance(entry, Intent) and entry.seq not in failed]
        back = {entry.change for entry in made if entry.stage == _RECOVERY_STAGE_NAME}
        files = FileChange.of_kind(entry.change for entry in reversed(made) if entry.stage != _RECOVERY_STAGE_NAME)
        return [change for change in files if not change.only_triggers_reread and change.inverse() not in back]

    def _restore_file(self, change: FileChange, failure: ChangeFailed) -> None:
        """Undo ``change``; save the rejected file, and add its path to ``failure``."""
        if isinstance(change.after, FileState):
            kept = self.run.save_rejected_file(change.path, change.after.content)
            failure.why += f"\nthe rejected {change.path} is kept as {kept}"
        if (back := change.inverse()) is not None:
            self.apply_change(_RECOVERY_STAGE_NAME, "put-back", back, failure.what)

    def _apply_batch(self, plan: StagePlan, batch: tuple[Change, ...]) -> None:
        if packages := PackageChange.of_kind(batch):
            self.check_interrupt()

            def step_of(change: PackageChange) -> str:
                step = plan.step_of(change)
                return step.step.id if step else DEPENDENCIES_STEP_ID

            self.apply_packages(plan.stage, packages, step_of)
            return
        for change in batch:
            self.check_interrupt()
            step = plan.step_of(change)
            assert step is not None, "only packages come along as dependencies"
            note = self._check_candidate_files(step)
            reason = step.outcome.reason if isinstance(step.outcome, Planned) else ""
            try:
                self.apply_change(plan.stage, step.step.id, change, reason, note)
                expectation = step.outcome.expectation if isinstance(step.outcome, Planned) else None
                if expectation is not None and (change,) == FileChange.of_kind(step.changes)[-1:]:
                    self.host.check_written_files(expectation)
            except GpunodeError as failure:
                if isinstance(failure, ChangeFailed):
                    self._restore_unit_config(change, failure)
                self._restore_partial_edit(step, change, failure)
                raise

    def _restore_partial_edit(self, step: StepPlan, change: Change, failure: GpunodeError) -> None:
        """Restore a runtime's other files: an import of a missing file is worse than no edit at all."""
        files = FileChange.of_kind(step.changes)
        if step.step.id != RUNTIME_CONFIG_STEP.id or change not in files:
            return
        paths, is_left = {file.path for file in files}, False
        for written in self._written_files():
            if written.path in paths and (back := written.inverse()) is not None:
                try:
                    self.apply_change(_RECOVERY_STAGE_NAME, "put-back", back, failure.what)
                    failure.why += f"\nrestored: {written.path}"
                except GpunodeError as second:
                    is_left = True
                    failure.why += f"\n{written.path} could not be restored: {second.what}"
        if not is_left:
            self.cancel_triggers(triggers_of(files), "restored before any daemon read it")

    def cancel_triggers(self, triggers: Iterable[Trigger], why: str) -> None:
        """Record that this run does not need ``triggers``; those of earlier runs stay pending."""
        for trigger in triggers:
            if not set(triggers_done_by(trigger)) & set(self.pending_triggers):
                self.run.record_trigger(trigger, why)

    def _check_candidate_files(self, step: StepPlan) -> str:
        """Return what the runtime's parser says about all files of ``step``, before the first one is written."""
        expectation = step.outcome.expectation if isinstance(step.outcome, Planned) else None
        changes = FileChange.of_kind(step.changes)
        if expectation is None or not changes or step.step.id in self.parser_answers:
            return ""
        self.parser_answers[step.step.id] = self.host.check_candidate_files(expectation, changes)
        self._expectations.update(dict.fromkeys(triggers_of(changes), expectation))
        return self.parser_answers[step.step.id]

    def _restore_unit_config(self, change: Change, failure: ChangeFailed) -> None:
        """Restore the configuration of a daemon that was stopped before the run and could not be started."""
        for written_file in self._written_files() if change.unit_running_after else ():
            if any(trigger.target == change.unit_running_after for trigger in written_file.triggers):
                self._restore_file(written_file, failure)
                failure.why += f"\nrestored: {written_file.path}"

    def apply_change(self, stage: str, step: str, change: Change, reason: str, note: str = "") -> None:
        """Make one change: complete it, journal it with its backup, make it, record it as done."""
        self.on_event(Applying(step, (change,)))
        started = time.monotonic()
        concrete = self.host.complete_change(change)
        seqs = self.run.record_intents(stage, step, (concrete, *self._list_holds_at_risk(concrete)), reason)
        self._make_and_record((concrete,), seqs)
        self.on_event(Applied(step, (concrete,), time.monotonic() - started, note))

    def _list_holds_at_risk(self, change: Change) -> Iterator[PackageChange]:
        """Yield the held packages that a command reinstalls, as they are: if killed, it may not hold them again."""
        held: Mapping[PackageId, PackageState] = {}
        if deb.is_repair(change):
            held = live_state.read_package_database(self.host).held_unfinished()
        elif named := dict(deb.list_reinstalled(change)):
            packages = live_state.read_package_database(self.host).packages()
            held = {
                package: state
                for package, state in packages.items()
                if state.held and named.get(package) == state.version
            }
        yield from (PackageChange(package, state, state) for package, state in held.items())

    def apply_packages(
        self, stage: str, batch: tuple[PackageChange, ...], step_of: Callable[[PackageChange], str]
    ) -> None:
        """Make package changes in one transaction; back up the files that it purges or may overwrite."""
        self.on_event(Applying(TRANSACTION_STEP_ID, batch))
        started = time.monotonic()
        seqs = [
            *self.run.record_intents(
                stage, CONFFILES_STEP_ID, self._find_purged_conffiles(batch), "removed by the purge"
            )
        ]
        seqs += self.run.record_intents(
            stage, OVERWRITTEN_STEP_ID, self._find_unowned_driver_files(batch), "a package may overwrite it"
        )
        for step, same in groupby(batch, key=step_of):
            seqs += self.run.record_intents(stage, step, tuple(same))
        former = live_state.read_set_aside_files(self.host)
        try:
            self._make_and_record(batch, tuple(seqs), find_touched=lambda: self._find_touched_packages(batch))
        except GpunodeError:
            with suppress(GpunodeError, ValueError):  # the user must see the transaction's own failure
                self._record_package_files(batch, former)
            raise
        self._record_package_files(batch, former)
        self.on_event(Applied(TRANSACTION_STEP_ID, batch, time.monotonic() - started))

    def _record_package_files(self, batch: Sequence[PackageChange], former: Mapping[str, FileState] | None) -> None:
        """Record files that the transaction put beside edited configuration, and user files that new packages ship.

        ``former`` holds the files beside configuration before it. Purging such a package would delete the user's file.
        """
        aside = live_state.find_set_aside_changes(self.host, former)
        new = [change.id for change in batch if change.exists_after and change.before is None]
        database = live_state.read_package_database(self.host)
        shipped = database.shipped_conffiles() if new else {}
        paths = sorted({path for listed in database.config_files(new).values() for path in listed if path in shipped})
        theirs: list[FileChange] = []
        for path in paths:
            with suppress(Undetermined):  # a folder; the transaction itself succeeded
                state = live_state.read_file_state(self.host, path)
                if state is not None and live_state.package_checksum(state.content) != shipped[path]:
                    theirs.append(FileChange(path, state, None))
        for step, found, reason in (
            (SET_ASIDE_STEP_ID, aside, "put beside an edited file by its package"),
            (OVERWRITTEN_STEP_ID, theirs, "kept; a package ships this file, too, and deletes it when it is purged"),
        ):
            changes = map(self.host.complete_change, found)
            self.run.record_done(*self.run.record_intents("packages", step, changes, reason))

    def _find_purged_conffiles(self, batch: Sequence[PackageChange]) -> Iterator[Change]:
        purged = [change.id for change in batch if change.after is None and change.before is not None]
        conffiles = live_state.read_package_database(self.host).config_files(purged) if purged else {}
        for path in sorted({path for paths in conffiles.values() for path in paths}):
            try:
                state = live_state.read_file_state(self.host, path)
            except live_state.NotAFileError as error:
                self.on_event(Notice(f"{path} stays: {error.why}, in the place of a package's configuration file"))
                continue
            if state is not None:
                yield self.host.complete_change(FileChange(path, state, None))

    def _find_unowned_driver_files(self, batch: Sequence[PackageChange]) -> Iterator[Change]:
        """Yield a backup of each unpackaged file in a place where a driver's new packages install a file."""
        if not driver_packages(change.id for change in batch if change.before is None):
            return
        for path in live_state.find_unpackaged_driver_files(self.host):
            if (state := live_state.read_file_state(self.host, path, limit_bytes=MAX_BACKUP_BYTES)) is not None:
                yield self.host.complete_change(FileChange(path, state, None))

    def _find_touched_packages(self, batch: Sequence[PackageChange]) -> frozenset[Change]:
        """Return the changes of packages that a failed transaction touched; the user may change the others later.

        Return all changes if the package database cannot be read; each is then undone from its recorded state.
        """
        try:
            database = live_state.read_package_database(self.host)
            states = database.packages()
            broken = database.half_installed() | live_state.list_journaled_packages(self.host)
        except (GpunodeError, ValueError):
            return frozenset(batch)  # the user must see the transaction's own failure
        return frozenset(
            change
            for change in batch
            if change.id.name in broken
            or _installed_version(states.get(change.id)) != _installed_version(change.before)
        )

    def _make_and_record(
        self,
        changes: tuple[Change, ...],
        seqs: tuple[int, ...],
        find_touched: Callable[[], Collection[Change]] = frozenset,
    ) -> None:
        try:
            self.host.apply(changes)
        except GpunodeError as failure:
            touched = find_touched()
            intents = [entry for entry in self.run.entries() if isinstance(entry, Intent) and entry.seq in seqs]
            with _appending_errors(failure):
                for intent in intents:
                    if intent.change not in touched:
                        self.run.record_failed(intent.seq, failure.what)
            raise
        self.run.record_done(*seqs)


@contextmanager
def recording_failure(applier: Applier) -> Iterator[None]:
    """Record an error as the end of the run, and start the services that the run stopped."""
    try:
        yield
    except GpunodeError as error:
        with _appending_errors(error):
            applier.restart_paused_services()
        with _appending_errors(error):
            applier.run.commit("interrupted" if isinstance(error, Interrupted) else "failed", error.what)
        raise
    except BaseException as error:
        with suppress(GpunodeError):
            applier.run.commit("failed", f"a bug: {type(error).__name__}")
        raise


@contextmanager
def _appending_errors(failure: GpunodeError) -> Iterator[None]:
    """Append an error that occurs while ``failure`` is recorded: the user must see ``failure`` itself."""
    try:
        yield
    except GpunodeError as second:
        failure.why = "\n".join(filter(None, (failure.why, second.what_and_why)))


def record_change_outcomes(store: Store, host: HostView, *, is_idle: bool = True) -> None:
    """Record for changes whose run was cut short whether they were made, where the node's state shows it.

    Recorded soon after the run, this separates gpunode's changes from what somebody does later. Changes stay open if
    a later run changed the same subject, or if the node's state matches neither side.

    Unless ``is_idle``, a package manager may still be finishing what a killed run began.

    Raises:
        UsageError: only root may read the journals.
        JournalDamaged: a journal is damaged.
    """
    for run, intents in store.find_open_intents().items():
        # If the disk is full or the node cannot be read, the next run tries again.
        with suppress(ChangeFailed, Undetermined, ValueError):
            removals, not_made = _split_package_intents_by_outcome(host, intents) if is_idle else ([], [])
            made_intents = [*_find_made_files(host, intents), *removals]
            if made_intents or not_made:
                store.record_change_outcomes(run, made_intents, not_made)


def _find_made_files(host: HostView, intents: Sequence[Intent]) -> Iterator[Intent]:
    """Yield the intents whose file is in its final state; a recorded state has a sha256 in place of its content."""
    for intent in intents:
        change = intent.change
        if not isinstance(change, FileChange) or not change.is_final_state_known:
            continue
        if not change.exists_before and not change.exists_after:
            continue  # removes only a file's folders, which somebody else may use by now
        now = live_state.read_file_state(host, change.path)
        is_left = change.after is None and live_state.has_empty_folder(host, change.folders)
        if (now and now.with_digest()) == change.after and not is_left:
            yield intent


def _split_package_intents_by_outcome(host: HostView, intents: Sequence[Intent]) -> tuple[list[Intent], list[Intent]]:
    """Return the removals that were made, and the intents whose package is unchanged.

    A package that is half-installed or not configured counts as neither.
    """
    changes = [(intent, intent.change) for intent in intents if isinstance(intent.change, PackageChange)]
    if not changes:
        return [], []
    database = live_state.read_package_database(host)
    installed = database.packages()
    touched = database.half_installed() | database.list_unfinished() | live_state.list_journaled_packages(host)
    rows = [(intent, change, installed.get(change.id)) for intent, change in changes if change.id.name not in touched]
    removed = [intent for intent, change, now in rows if change.after is None and now is None]
    return removed, [intent for intent, change, now in rows if change.after is not None and now == change.before]


def possible_temporary_files(run: RunRecord) -> tuple[str, ...]:
    """Return the paths beside which the run may have left a temporary file.

    A candidate file that a runtime's parser was reading is not journaled, so every runtime's files are included.
    """
    written = (change.path for change in FileChange.of_kind(run.changes("done", "unknown")))
    candidates = (path for runtime in RUNTIMES if runtime.unit for path in (runtime.config, runtime.drop_in) if path)
    return tuple(dict.fromkeys((*written, *candidates)))


def _installed_version(state: PackageState | None) -> str:
    """Return the installed version; empty if it is not installed, or only its configuration is left."""
    return "" if state is None or state.config_files_only else state.version


def _trigger_batch_key(trigger: Trigger) -> Trigger | str:
    """Return the key of a batch: units run one by one, so that a failure restores no other unit's files."""
    return trigger if trigger.kind in {*_UNIT_TRIGGER_KINDS, "start"} else trigger.kind


def final_triggers(plans: Sequence[StagePlan]) -> tuple[Trigger, ...]:
    """Return the triggers that run after the last stage."""
    return tuple(
        t for t in triggers_of(change for plan in plans for change in plan.ordered_changes) if not t.runs_at_stage_end
    )
