"""rollback, ``rollback --list`` and remove: undo runs, and show which can be undone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from gpunode.cli.envelope import Envelope
from gpunode.cli.inputs import require_root, validate_root
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.screen.changes import change_lines
from gpunode.cli.screen.commands import repeat_command, rollback_command, root_option
from gpunode.cli.screen.events import RESTORED_PHRASE, downtime_text, labelled_line, reboot_lines
from gpunode.cli.screen.plans import note_line
from gpunode.cli.screen.text import BLANK_LINE, STATE_MARK, Line, indent_lines, line, next_command_line, span
from gpunode.cli.session import LOCK_TIMEOUT_S, Session, exclusive_session, report_partial_run
from gpunode.errors import (
    ChangeFailed,
    Conflict,
    DrainRequired,
    GpunodeError,
    Interrupted,
    RebootRequired,
    UsageError,
    VerifyFailed,
)
from gpunode.facts.evidence import Probe
from gpunode.fast_dataclass import dataclass
from gpunode.host.local import LocalHost
from gpunode.journal.history import RunRecord, run_label
from gpunode.journal.store import Store
from gpunode.packages import deb
from gpunode.steps.packages import find_packages_leaving_first
from gpunode.wording import count_noun, join_names
from gpunode.workflow.converge import survey
from gpunode.workflow.live_state import read_package_database
from gpunode.workflow.recovery import describe_interrupted_run, find_lost_record
from gpunode.workflow.remove import Remainder, find_remainder, plan_removal
from gpunode.workflow.rollback import (
    NothingToUndo,
    execute_undo,
    explain_newer_runs,
    explain_undone,
    find_newest_run,
    find_run,
    mark_undone,
    plan_rollback,
    preview_rollback,
    undo_failure,
)
from gpunode.workflow.undo import find_broken_packages, find_package_repair, run_package_repair

if TYPE_CHECKING:
    from gpunode.facts.model import Facts
    from gpunode.host.port import HostView
    from gpunode.workflow.rollback import UndoResult
    from gpunode.workflow.undo import UndoPlan


_ROOT_NEEDED_REASON = (
    "it changes files under /etc and packages, and its journal in /var/lib/gpunode is readable by root only"
)
_JOURNAL_HINT = "as root, `gpunode rollback --list` and `gpunode log RUN` show what there is to undo"


@dataclass(frozen=True, slots=True)
class UndoPermissions:
    """The permissions of rollback and remove.

    Attributes:
        with_packages: undo packages, sources and units as well as the configuration.
        force: restore files that were edited since.
        allow_disruption: stop containers, and unload the driver while processes use a GPU.
        allow_loss: undo the rest if no archive has a package's former version.
        lock_timeout_s: how long to wait for other programs that change the node.
    """

    yes: bool = False
    with_packages: bool = False
    force: bool = False
    allow_disruption: bool = False
    allow_loss: bool = False
    lock_timeout_s: float = LOCK_TIMEOUT_S


UndoPlanner: TypeAlias = "Callable[[], UndoPlan | NothingToUndo]"


def rollback(run: str, output: OutputOptions, root: str, permissions: UndoPermissions) -> None:
    """Undo a run: its configuration, or all of it."""
    require_root("rollback", _ROOT_NEEDED_REASON, _JOURNAL_HINT)
    root_folder, with_packages = validate_root(root), permissions.with_packages

    def choose_run(node: Session) -> UndoPlanner:
        try:
            chosen = (
                find_run(node.store, run, with_packages=with_packages) if run else _choose_newest_run(node, permissions)
            )
        except UsageError as error:
            for note in explain_lost_record(node.host, node.store):
                error.why = f"{error.why}\n{note}"
            raise
        return lambda: chosen if isinstance(chosen, NothingToUndo) else _plan_rollback(chosen, node, permissions)

    _run_undo("rollback", choose_run, output, root_folder, permissions)


def _plan_rollback(run: RunRecord, node: Session, permissions: UndoPermissions) -> UndoPlan | NothingToUndo:
    store, with_packages = node.store, permissions.with_packages
    facts = _survey_node(node) if with_packages else None
    plan = plan_rollback(
        store,
        node.host,
        run.id,
        facts,
        force=permissions.force,
        allow_disruption=permissions.allow_disruption,
        allow_loss=permissions.allow_loss,
    )
    if plan.steps or plan.pending_triggers or plan.is_incomplete:
        return plan
    mark_undone(store, run, with_packages=with_packages)
    if plan.reboot_reason:
        return plan
    why = "what is left of it is kept" if plan.remarks else "nothing of it is left on this node"
    return replace(explain_undone(store, run, why, with_packages=with_packages), notes=plan.remarks)


def _survey_node(node: Session) -> Facts:
    return survey(node.host, image=node.host.root != "/")


def _choose_newest_run(node: Session, permissions: UndoPermissions) -> RunRecord | NothingToUndo:
    """Return the newest run that a rollback without RUN can undo; with later runs, only for a person who is asked.

    Raises:
        UsageError: there is none, or a later run exists and nobody is asked.
    """
    store, with_packages = node.store, permissions.with_packages
    last = find_newest_run(store, with_packages=with_packages)
    if last.is_undone(with_packages=with_packages):
        why = f"run {run_label(last.undone_by, last.verb)} undid it"
        return explain_undone(store, last, why, with_packages=with_packages)
    if why := explain_newer_runs(store, last):
        what = f"run {last.label} ({describe_run(last)}) is not the newest run"
        verb, *options = node.screen.argv
        node.screen.argv = (verb, last.label, *options)  # the next hints name the run
        if permissions.yes:
            raise UsageError(what, why=why, hint=f"undo it anyway:\n{repeat_command(node.screen.argv)}")
        node.notify(f"{what}: {why}")
    return last


def remove(output: OutputOptions, root: str, permissions: UndoPermissions) -> None:
    """Remove everything that gpunode added."""
    require_root("remove", _ROOT_NEEDED_REASON, _JOURNAL_HINT)
    root_folder = validate_root(root)

    def choose_all(node: Session) -> UndoPlanner:
        force, allow_disruption = permissions.force, permissions.allow_disruption
        return lambda: plan_removal(
            node.store, node.host, _survey_node(node), force=force, allow_disruption=allow_disruption
        )

    _run_undo("remove", choose_all, output, root_folder, permissions)


def _run_undo(
    verb: Literal["rollback", "remove"],
    choose: Callable[[Session], UndoPlanner],
    output: OutputOptions,
    root: str,
    permissions: UndoPermissions,
) -> None:
    """Show the plan of what ``choose`` selects to undo, ask, execute it and answer."""
    with_packages, yes = permissions.with_packages, permissions.yes
    with exclusive_session(
        verb, output, root, permissions.lock_timeout_s, yes=yes, wait_for_others=with_packages
    ) as node:
        if (interrupted := node.clean_up_after_interruption()) is not None:
            node.notify(describe_interrupted_run(interrupted, f"a {verb} undoes whatever it did"))
        make_plan = choose(node)
        plan, repaired = _plan_after_repair(verb, make_plan, node, yes=yes) if with_packages else (make_plan(), False)
        if isinstance(plan, NothingToUndo):
            node.screen.put(*already_undone_lines(plan))
            following = plan.newest_not_undone.id if plan.newest_not_undone else ""
            result = {"undone_run": plan.run.id, "next_run": following}
            output.emit(Envelope(verb, changed=repaired, notes=plan.notes, result=result))
            return
        left = Remainder()
        if verb == "remove" and not plan.steps:
            left = find_remainder(node.store, node.host, _survey_node(node), plan)
            plan = replace(plan, kept=left.kept)
        node.screen.put(*undo_plan_lines(plan, verbose=output.verbose, is_lost=left.lost_record is not None))
        if not plan.steps and not plan.pending_triggers:
            failure = left.failure or undo_failure(plan)
            node.screen.show_result(reboot_lines(failure) if isinstance(failure, RebootRequired) else (), failure)
            details = {"undone_run": plan.undone_run, "kept": plan.kept}
            output.emit(Envelope(verb, changed=repaired, notes=plan.remarks, result=details).with_failure(failure))
            return
        node.host.refuse_unsafe_changes(plan.files)
        node.screen.ask_for_consent(verb, yes=yes)
        answer = _execute_and_report(plan, node, output)
    output.emit(answer)


def _execute_and_report(plan: UndoPlan, node: Session, output: OutputOptions) -> Envelope:
    """Execute ``plan``, show the result and return the answer."""
    on_event, check_interrupt = node.screen.show_event, node.signals.raise_if_received
    with report_partial_run(plan.verb, output, node.store, node.adapt_hint):
        done = execute_undo(plan, node.host, node.store, on_event=on_event, check_interrupt=check_interrupt)
    left = Remainder(done.plan.kept)
    if plan.verb == "remove":
        left = find_remainder(node.store, node.host, _survey_node(node), done.plan)
    done = replace(done, plan=replace(done.plan, kept=left.kept))
    failure = left.failure or undo_failure(done.plan)
    node.screen.show_result(rollback_lines(done, failure, node.screen.argv), failure)
    run = RunRecord(node.store.read_with_contents(done.run))
    answer = Envelope(
        plan.verb,
        changed=True,
        changes=run.changes("done"),
        steps=run.steps_by_change,
        notes=done.plan.remarks,
        result={
            "undone_run": done.plan.undone_run,
            "run": done.run,
            "triggers": done.trigger_results,
            "kept": done.plan.kept,
        },
    )
    return answer.with_failure(failure)


def _plan_after_repair(
    verb: str, make_plan: UndoPlanner, node: Session, *, yes: bool
) -> tuple[UndoPlan | NothingToUndo, bool]:
    """Complete an interrupted package transaction, since it leaves the installed packages unknown, and make the plan.

    If the plan removes the unfinished packages, nothing is completed first.

    Returns:
        The plan, and whether a transaction was completed.
    """
    if (work := find_package_repair(_survey_node(node))) is None:
        return make_plan(), False
    if plan := _plan_without_repair(verb, make_plan, node):
        return plan, False
    node.notify(f"{work.purpose}: finishing it first, because only then does gpunode know what to undo")
    node.screen.ask_for_consent(verb, yes=yes)
    on_event, check_interrupt = node.screen.show_event, node.signals.raise_if_received
    try:
        run_package_repair(work, node.host, node.store, on_event=on_event, check_interrupt=check_interrupt)
    except ChangeFailed as failure:
        # Only now may the package system show which packages are unfinished.
        if plan := _plan_without_repair(verb, make_plan, node, failure.why):
            return plan, True
        _advise_removal_of_obstacles(failure, node)
        raise
    return make_plan(), True


def _plan_without_repair(
    verb: str, make_plan: UndoPlanner, node: Session, repair_failure: str = ""
) -> UndoPlan | NothingToUndo | None:
    """Return the plan if it needs no repair first; None if it does.

    If the plan changes no package, what gpunode did not leave unfinished is up to others to complete; so is, after a
    ``repair_failure``, what a plan that only removes packages does not need.
    """
    facts = _survey_node(node)
    broken, may_be_ours = find_broken_packages(node.store, node.host)
    if may_be_ours and not facts.unconfigured:
        return None
    try:
        plan = make_plan()
    except (Conflict, DrainRequired, Interrupted, UsageError):
        raise  # a repair would not change that, nor what the user has answered
    except GpunodeError:
        return None  # the broken packages may be the cause; otherwise it is raised again
    changes = () if isinstance(plan, NothingToUndo) else plan.packages
    if leaving := find_packages_leaving_first(facts, changes):
        pending, names = (", ".join(map(str, sorted(one))) for one in (facts.unconfigured, leaving))
        first = "them" if leaving == facts.unconfigured else names
        node.notify(f"not configured: {pending}; this {verb} removes or replaces {first} before anything is configured")
        return plan
    staying = sorted(map(str, facts.unconfigured - {change.id for change in changes}))
    if repair_failure and staying and all(one.is_mark or not one.exists_after for one in changes):
        why = " ".join(dict.fromkeys(map(str.strip, repair_failure.splitlines())))
        finish = f"`sudo {deb.FINISH_COMMAND}` finishes it once the cause is fixed"
        note = f"{join_names(staying)} cannot be configured, and this {verb} leaves it as it is; {finish}: {why}"
        return replace(plan, notes=(*plan.notes, node.adapt_hint(note)))
    if changes or may_be_ours:
        return None
    note = (
        f"half-installed or not configured: {', '.join(sorted(broken))}; no run of gpunode left that, and this {verb} "
        f"does not need it: `sudo {deb.FINISH_COMMAND}` finishes it"
    )
    return replace(plan, notes=(*plan.notes, node.adapt_hint(note)))


def _advise_removal_of_obstacles(failure: ChangeFailed, node: Session) -> None:
    """Name in ``failure`` the packages that stop the package manager, and the command that removes them."""
    obstacles: Sequence[str] = ()
    with suppress(ValueError):
        obstacles = sorted(read_package_database(node.host).list_obstacles())
    if obstacles:
        failure.hint = (
            f"{deb.MANAGER} does nothing until {join_names(obstacles)} is complete or gone: fix the cause, then "
            f"`sudo {deb.FINISH_COMMAND}`; or remove it if you do not need it, then run the same command again:\n"
            f"  sudo {deb.force_removal_command(obstacles)}"
        )


_MAX_NAMES_SHOWN = 6


def undo_plan_lines(plan: UndoPlan, *, verbose: bool, is_lost: bool = False) -> Iterator[Line]:
    """Yield the plan of a rollback or removal: diffs, packages, units, and what it leaves.

    ``is_lost``: whether a record was lost, which an error reports.
    """
    if not plan.steps and plan.pending_triggers:
        yield line(span("nothing left to restore", "bold"), ", but an interrupted run left these actions:")
        yield from (line(f"    {trigger}") for trigger in plan.pending_triggers)
    elif not plan.steps:
        if not is_lost:
            what = "what is left is kept" if plan.kept else "nothing that gpunode added is left on this node"
            done = "restore" if plan.undone_run else "remove"
            yield line(STATE_MARK["nothing"], f"nothing to {done}: {what}")
    else:
        what = f"rollback of run {plan.undone_run}" if plan.undone_run else "remove everything that gpunode added"
        yield line(span(what, "bold"))
        yield from indent_lines(change_lines(plan.changes, verbose=verbose), 4)
    yield from (note_line(text) for text in plan.remarks)
    if plan.reboot_reason:
        yield note_line(f"a reboot is needed afterwards: {plan.reboot_reason}")
    if plan.not_undone:
        yield note_line(f"not undone: {join_names(plan.not_undone, _MAX_NAMES_SHOWN)}; --packages undoes that, too")


def already_undone_lines(nothing: NothingToUndo) -> Iterator[Line]:
    """Yield why there is nothing to undo, what remains of the run, and the run to undo next."""
    run = nothing.run
    state = f"is already undone: {nothing.why}" if run.subjects else "has nothing to undo"
    part = "the configuration of " if nothing.is_partial else ""
    yield line(STATE_MARK["skipped"], f"{part}run {run.label} ({describe_run(run)}) {state}", hang=2)
    yield from (note_line(text) for text in nothing.notes)
    if nothing.newest_not_undone is None:
        yield line("  ", "no other run is left to roll back", hang=2)
        return
    older = nothing.newest_not_undone
    if older.id == run.id:
        yield line("  ", "the rest of it is not undone", hang=2)
    else:
        yield line("  ", f"the newest run that is not undone is {older.label} ({describe_run(older)})", hang=2)
    if nothing.command:
        yield next_command_line(nothing.command)


def describe_run(run: RunRecord) -> str:
    """Return the command of a run and what it changed: ``setup docker: /etc/docker/daemon.json``."""
    return f"{run.verb} {run.begin.recipe}".strip() + f": {join_names(run.subjects, _MAX_NAMES_SHOWN) or 'nothing'}"


def rollback_lines(done: UndoResult, failure: GpunodeError | None, argv: Sequence[str]) -> Iterator[Line]:
    """Yield what was restored, the downtime, what remains, and the undo command."""
    yield BLANK_LINE
    if done.plan.with_packages:
        restored = sum(change.after is not None for change in done.plan.packages)
        gone = len(done.plan.packages) - restored
        parts = [count_noun(len(done.plan.files), "file")] if done.plan.files else []
        parts += [f"{count_noun(restored, 'package')} as before"] if restored else []
        parts += [f"{count_noun(gone, 'package')} purged"] if gone else []
        what = f": {', '.join(parts)}" if parts else ""
        former = f"as before run {done.plan.undone_run}" if done.plan.undone_run else "without what gpunode added"
        but = ", except as noted below" if done.plan.kept else ""
        if not isinstance(failure, VerifyFailed):
            yield line(STATE_MARK["done"], f"the node is {former}{but}{what}", hang=2)
        yield from (note_line(str(kept)) for kept in done.plan.kept)
    else:
        for change in done.plan.files:
            yield line(
                STATE_MARK["done"], f"{change.path} {'removed' if change.after is None else RESTORED_PHRASE}", hang=2
            )
    if isinstance(failure, RebootRequired):
        yield from reboot_lines(failure)
    if down := downtime_text(done.trigger_results):
        yield labelled_line("note", down)
    yield labelled_line("undo", rollback_command(argv, done.run, *(["--packages"] if done.plan.with_packages else [])))


_OWN_FILE_GLOBS: Final = ("/etc/*/gpunode-*", "/etc/*/*/gpunode-*", "/etc/*/*/*/gpunode-*")


def show_runs(output: OutputOptions, root: str, file: str) -> None:
    """List the recorded runs, or those that changed ``file``."""
    from gpunode.cli.log import run_table_lines, undo_record

    root_folder = validate_root(root)
    store, host = Store(root_folder), LocalHost(root_folder)
    runs = [run for run in store.find_runs() if not file or file in run.subjects]
    notes = () if runs or file else explain_lost_record(host, store)
    previews = {run.id: preview_rollback(store, host, run) for run in runs}
    screen = output.open_screen()
    if file and not runs:
        screen.put(line(span(f"no recorded run of gpunode changed {file}", "dim")))
    else:
        screen.put(*run_table_lines(runs, previews=previews, root=root_option(screen.argv)))
    screen.put(*map(note_line, notes))
    rows = [undo_record(run, previews[run.id]) for run in runs]
    output.emit(Envelope("rollback", notes=notes, result={"runs": rows}))


def explain_lost_record(host: HostView, store: Store) -> tuple[str, ...]:
    """Return a sentence about a lost record of this node; none if nothing indicates one."""
    # All files that only gpunode writes match these globs; without a match, nothing else need be read.
    if not any(host.run_probe(Probe("own-files", glob=glob, contents=False)).data for glob in _OWN_FILE_GLOBS):
        return ()
    lost = find_lost_record(store, survey(host, image=str(store.root) != "/"))
    return (str(lost),) if lost else ()
