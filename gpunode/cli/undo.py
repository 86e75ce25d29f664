"""The commands rollback and remove."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from gpunode import __version__
from gpunode.cli.envelope import Envelope
from gpunode.cli.inputs import is_image, require_root, validate_root
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.runs import explain_lost_record, list_leftovers
from gpunode.cli.screen.results import (
    already_undone_lines,
    leftover_lines,
    rollback_lines,
    undo_plan_lines,
)
from gpunode.cli.session import LOCK_TIMEOUT_S, Session, exclusive_session, report_partial_run
from gpunode.errors import ChangeFailed, GpunodeError, UsageError
from gpunode.journal.history import made_changes, run_number, steps_by_change
from gpunode.workflow.converge import survey
from gpunode.workflow.recovery import describe_interrupted_run
from gpunode.workflow.rollback import NothingToUndo

if TYPE_CHECKING:
    from gpunode.journal.history import RunSummary
    from gpunode.workflow.remove import Remainder
    from gpunode.workflow.undo import UndoPlan

_WHY_ROOT = "it changes files under /etc and packages, and its journal in /var/lib/gpunode is readable by root only"
_NOTHING_WITHOUT_ROOT = "as root, `gpunode rollback --list` and `gpunode log RUN` show what there is to undo"


@dataclass(frozen=True, slots=True)
class UndoPermissions:
    """The permissions of rollback and remove.

    Attributes:
        whole: undo packages, sources and units too, not the configuration alone.
        force: restore files that were edited since.
        allow_disruption: stop containers, and unload the driver under processes that use a GPU.
        lock_timeout_s: how long to wait for other programs at work on the node.
    """

    yes: bool = False
    whole: bool = False
    force: bool = False
    allow_disruption: bool = False
    lock_timeout_s: float = LOCK_TIMEOUT_S


def rollback(run: str, output: OutputOptions, root: str, permissions: UndoPermissions) -> None:
    """Undo a run: its configuration, or all of it."""
    from gpunode.workflow import rollback as undo

    require_root("rollback", _WHY_ROOT, _NOTHING_WITHOUT_ROOT)
    place = validate_root(root)

    def make_plan(node: Session) -> UndoPlan | NothingToUndo:
        store, whole = node.store, permissions.whole
        try:
            of = undo.find_run(store, run, whole=whole) if run else _choose_newest_run(node, permissions)
        except UsageError as error:
            for note in explain_lost_record(node.host, store):
                error.why = f"{error.why}\n{note}"
            raise
        if isinstance(of, NothingToUndo):
            return of
        facts = survey(node.host, image=is_image(root)) if whole else None
        force, disrupt = permissions.force, permissions.allow_disruption
        plan = undo.plan_rollback(store, node.host, of.run, facts, force=force, disrupt=disrupt)
        if plan.steps or plan.owed or plan.incomplete:
            return plan
        undo.mark_undone(store, of, version=__version__, argv=tuple(sys.argv[1:]), whole=whole)
        why = "what is left of it is kept" if plan.remarks else "nothing of it is left on this node"
        return replace(undo.explain_undone(store, of, why, whole=whole), notes=plan.remarks)

    _run_undo("rollback", make_plan, output, place, permissions)


def _choose_newest_run(node: Session, permissions: UndoPermissions) -> RunSummary | NothingToUndo:
    """Return the run that a rollback without RUN undoes; an older one than the newest only if the user can decline."""
    from gpunode.workflow.rollback import explain_undone, find_newest_run

    last = find_newest_run(node.store, whole=permissions.whole)
    if not last.is_undone(whole=permissions.whole):
        return last
    found = explain_undone(node.store, last, f"run {run_number(last.undone_by)} undid it", whole=permissions.whole)
    if found.standing is None or permissions.yes or not node.screen.can_ask:
        return found
    node.screen.put(*already_undone_lines(replace(found, command="")))
    return found.standing


def remove(output: OutputOptions, root: str, permissions: UndoPermissions) -> None:
    """Remove everything that gpunode added."""
    from gpunode.workflow.remove import plan_removal

    require_root("remove", _WHY_ROOT, _NOTHING_WITHOUT_ROOT)
    place = validate_root(root)

    def make_plan(node: Session) -> UndoPlan:
        facts = survey(node.host, image=is_image(root))
        force, disrupt = permissions.force, permissions.allow_disruption
        return plan_removal(node.store, node.host, facts, force=force, disrupt=disrupt)

    _run_undo("remove", make_plan, output, place, permissions)


def _run_undo(
    verb: Literal["rollback", "remove"],
    make_plan: Callable[[Session], UndoPlan | NothingToUndo],
    output: OutputOptions,
    place: str,
    permissions: UndoPermissions,
) -> None:
    """Show the plan that ``make_plan`` returns, ask, execute it and answer."""
    from gpunode.workflow.remove import Remainder
    from gpunode.workflow.rollback import incomplete_undo

    whole, yes = permissions.whole, permissions.yes
    with exclusive_session(verb, output, place, permissions.lock_timeout_s, yes=yes, wait_for_others=whole) as node:
        if (interrupted := node.clean_up_interrupted_run()) is not None:
            node.notify(describe_interrupted_run(interrupted, f"a {verb} undoes whatever it did"))
        plan, repaired = _plan_after_repair(verb, make_plan, node, yes=yes) if whole else (make_plan(node), False)
        if isinstance(plan, NothingToUndo):
            node.screen.put(*already_undone_lines(plan))
            result = {"undone_run": plan.run.run, "next_run": plan.standing.run if plan.standing else ""}
            output.emit(Envelope(verb, changed=repaired, notes=plan.notes, result=result))
            return
        left = Remainder()
        if verb == "remove" and not plan.steps:
            left = _find_remainder(plan, node)
            plan = replace(plan, kept=left.kept)
        node.screen.put(*undo_plan_lines(plan, verbose=output.verbose, is_lost=left.lost is not None))
        for path in (change.path for change in plan.files):
            node.screen.put(*leftover_lines(path, list_leftovers(node.host, path)))
        if not plan.steps and not plan.owed:
            if plan.incomplete:
                raise incomplete_undo(plan)
            node.screen.conclude((), left.failure)
            answer = Envelope(
                verb, changed=repaired, notes=plan.remarks, result={"undone_run": plan.undone_run, "kept": plan.kept}
            )
            output.emit(answer.with_failure(left.failure))
            return
        node.host.refuse_irreplaceable(plan.files)
        node.screen.confirm_shown(verb, yes=yes)
        answer = _execute_undo(verb, plan, node, output, whole=whole)
    output.emit(answer)


def _execute_undo(
    verb: Literal["rollback", "remove"], plan: UndoPlan, node: Session, output: OutputOptions, *, whole: bool
) -> Envelope:
    """Execute ``plan``, show the result and return the answer."""
    from gpunode.workflow.remove import Remainder
    from gpunode.workflow.rollback import failure_of, rollback

    argv = tuple(sys.argv[1:])
    with report_partial_run(verb, output, node.store):
        done = rollback(
            plan,
            node.host,
            node.store,
            version=__version__,
            argv=argv,
            on_event=node.screen.show_event,
            pause=node.signals.raise_if_received,
            verb=verb,
            whole=whole,
        )
    left = _find_remainder(done.plan, node) if verb == "remove" else Remainder(done.plan.kept)
    done = replace(done, plan=replace(done.plan, kept=left.kept))
    failure = left.failure or failure_of(done)
    node.screen.conclude(rollback_lines(done, failure, node.screen.argv), failure)
    entries = node.store.read(done.run)
    answer = Envelope(
        verb,
        changed=True,
        changes=made_changes(entries),
        steps=steps_by_change(entries),
        notes=done.plan.remarks,
        result={"undone_run": done.plan.undone_run, "run": done.run, "triggers": done.settled, "kept": done.plan.kept},
    )
    return answer.with_failure(failure)


def _find_remainder(plan: UndoPlan, node: Session) -> Remainder:
    """Return what gpunode added and ``plan`` did not remove."""
    from gpunode.workflow.remove import find_remainder

    return find_remainder(node.store, node.host, survey(node.host, image=node.host.root != "/"), plan)


def _plan_after_repair(
    verb: str, make_plan: Callable[[Session], UndoPlan | NothingToUndo], node: Session, *, yes: bool
) -> tuple[UndoPlan | NothingToUndo, bool]:
    """Finish an interrupted package transaction, since the installed packages are unknown before, and make the plan.

    Where all that is unfinished goes with the plan, nothing is finished before.

    Returns:
        The plan, and whether something was finished.
    """
    from gpunode.workflow.undo import find_repair, run_repair

    if (work := find_repair(survey(node.host, image=node.host.root != "/"))) is None:
        return make_plan(node), False
    if plan := _plan_without_repair(verb, make_plan, node):
        return plan, False
    node.notify(f"{work.purpose}: finishing it first, because only then does gpunode know what to undo")
    node.screen.confirm_shown(verb, yes=yes)
    argv, pause = tuple(sys.argv[1:]), node.signals.raise_if_received
    try:
        run_repair(
            work, node.host, node.store, version=__version__, argv=argv, on_event=node.screen.show_event, pause=pause
        )
    except ChangeFailed:
        # The package system may not have shown until now that only what goes cannot be finished.
        if plan := _plan_without_repair(verb, make_plan, node):
            return plan, True
        raise
    return make_plan(node), True


def _plan_without_repair(
    verb: str, make_plan: Callable[[Session], UndoPlan | NothingToUndo], node: Session
) -> UndoPlan | None:
    """Return the plan if it takes away all that is unfinished; None if a repair has to come first."""
    from gpunode.workflow.undo import is_superseded

    facts = survey(node.host, image=node.host.root != "/")
    if not facts.unconfigured:
        return None
    try:
        plan = make_plan(node)
    except GpunodeError:
        return None  # it may be the broken packages' fault; else it is raised again
    if isinstance(plan, NothingToUndo) or not is_superseded(facts, plan.packages):
        return None
    names = ", ".join(map(str, sorted(facts.unconfigured)))
    node.notify(f"not configured: {names}; this {verb} removes or replaces them, so they are not configured first")
    return plan
