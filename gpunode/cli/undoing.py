"""The commands that take back what was changed: rollback and remove."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from gpunode import __version__
from gpunode.cli.changing import LOCK_TIMEOUT_S, Session, session, told_what_was_done
from gpunode.cli.compose import checked_root, is_image, need_root
from gpunode.cli.envelope import Envelope
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.runs import beside, explain_lost_record
from gpunode.cli.screen.results import (
    leftover_lines,
    rollback_lines,
    undoing_lines,
    undone_lines,
)
from gpunode.errors import UsageError
from gpunode.journal.history import made_changes, run_number, steps_by_change
from gpunode.workflow.converge import survey
from gpunode.workflow.recovery import describe_interrupted_run
from gpunode.workflow.standing import NothingToUndo

if TYPE_CHECKING:
    from gpunode.journal.history import RunSummary
    from gpunode.workflow.remove import Remainder
    from gpunode.workflow.undo import UndoPlan

_WHY_ROOT = "it changes files under /etc and packages, and its journal in /var/lib/gpunode is readable by root only"
_NOTHING_WITHOUT_ROOT = "as root, `gpunode rollback --list` and `gpunode log RUN` show what there is to undo"


@dataclass(frozen=True, slots=True)
class Permissions:
    """What rollback and remove may do.

    Attributes:
        whole: undo packages, sources, units and all else, and not the configuration alone.
        force: put back files that somebody edited since.
        allow_disruption: stop containers, and take the driver from processes that use a GPU.
        lock_timeout_s: how long they wait while somebody else is at work on the node.
    """

    yes: bool = False
    whole: bool = False
    force: bool = False
    allow_disruption: bool = False
    lock_timeout_s: float = LOCK_TIMEOUT_S


def rollback(run: str, how: OutputOptions, root: str, permissions: Permissions) -> None:
    """Puts back what a run changed: its configuration, or all of it."""
    from gpunode.workflow import rollback as undo
    from gpunode.workflow import standing

    need_root("rollback", _WHY_ROOT, _NOTHING_WITHOUT_ROOT)
    place = checked_root(root)

    def undoing(node: Session) -> UndoPlan | NothingToUndo:
        store, whole = node.store, permissions.whole
        try:
            of = standing.find_run(store, run, whole=whole) if run else _newest(node, permissions)
        except UsageError as error:
            for note in explain_lost_record(node.host, store):
                error.why = f"{error.why}\n{note}"
            raise
        if isinstance(of, NothingToUndo):
            return of
        facts = survey(node.host, image=is_image(root)) if whole else None
        force, disrupt = permissions.force, permissions.allow_disruption
        back = undo.plan_rollback(store, node.host, of.run, facts, force=force, disrupt=disrupt)
        if back.steps or back.owed or back.incomplete:
            return back
        undo.mark_undone(store, of, version=__version__, argv=tuple(sys.argv[1:]), whole=whole)
        why = "what is left of it stays" if back.remarks else "nothing of it is left on this node"
        return replace(standing.explain_undone(store, of, why, whole=whole), notes=back.remarks)

    _undo("rollback", undoing, how, place, permissions)


def _newest(node: Session, permissions: Permissions) -> RunSummary | NothingToUndo:
    """The run that a rollback without RUN undoes; an older one than the newest only where somebody can say no."""
    from gpunode.workflow.standing import explain_undone, find_newest_run

    last = find_newest_run(node.store, whole=permissions.whole)
    if not last.is_undone(whole=permissions.whole):
        return last
    found = explain_undone(node.store, last, f"run {run_number(last.undone_by)} undid it", whole=permissions.whole)
    if found.standing is None or permissions.yes or not node.screen.can_ask:
        return found
    node.screen.put(*undone_lines(replace(found, command="")))
    return found.standing


def remove(how: OutputOptions, root: str, permissions: Permissions) -> None:
    """Takes everything away that gpunode added."""
    from gpunode.workflow.recovery import still_pending
    from gpunode.workflow.remove import plan_removal

    need_root("remove", _WHY_ROOT, _NOTHING_WITHOUT_ROOT)
    place = checked_root(root)

    def undoing(node: Session) -> UndoPlan:
        facts = survey(node.host, image=is_image(root))
        owed = still_pending(node.store.pending_triggers(), facts)
        force, disrupt = permissions.force, permissions.allow_disruption
        return plan_removal(node.store, node.host, facts, owed=owed, force=force, disrupt=disrupt)

    _undo("remove", undoing, how, place, permissions)


def _undo(
    verb: Literal["rollback", "remove"],
    undoing: Callable[[Session], UndoPlan | NothingToUndo],
    how: OutputOptions,
    place: str,
    permissions: Permissions,
) -> None:
    """Shows what ``undoing`` finds, asks, does it, and answers."""
    from gpunode.workflow.remove import Remainder
    from gpunode.workflow.rollback import incomplete_undo

    whole, yes = permissions.whole, permissions.yes
    with session(verb, how, place, permissions.lock_timeout_s, yes=yes, others=whole) as node:
        if (cut := node.swept()) is not None:
            node.tell(describe_interrupted_run(cut, f"a {verb} undoes whatever it did"))
        repaired = whole and _finish_package_changes(verb, node, yes=yes)
        back = undoing(node)
        if isinstance(back, NothingToUndo):
            node.screen.put(*undone_lines(back))
            result = {"of": back.of.run, "standing": back.standing.run if back.standing else ""}
            how.answer(Envelope(verb, changed=repaired, notes=back.notes, result=result))
            return
        left = Remainder()
        if verb == "remove" and not back.steps:
            left = _remainder(back, node)
            back = replace(back, kept=left.kept)
        node.screen.put(*undoing_lines(back, verbose=how.verbose, is_lost=left.lost is not None))
        for path in (change.path for change in back.files):
            node.screen.put(*leftover_lines(path, beside(node.host, path)))
        if not back.steps and not back.owed:
            if back.incomplete:
                raise incomplete_undo(back)
            node.screen.conclude((), left.failure)
            answer = Envelope(verb, changed=repaired, notes=back.remarks, result={"of": back.of, "kept": back.kept})
            how.answer(answer.ending_in(left.failure))
            return
        node.host.vet(back.files)
        node.screen.confirm_shown(verb, yes=yes)
        answer = _carried_out(verb, back, node, how, whole=whole)
    how.answer(answer)


def _carried_out(
    verb: Literal["rollback", "remove"], back: UndoPlan, node: Session, how: OutputOptions, *, whole: bool
) -> Envelope:
    """``back`` is done, and shown; returns the answer."""
    from gpunode.workflow.remove import Remainder
    from gpunode.workflow.rollback import failure_of, rollback

    argv = tuple(sys.argv[1:])
    with told_what_was_done(verb, how, node.store):
        done = rollback(
            back,
            node.host,
            node.store,
            version=__version__,
            argv=argv,
            on_event=node.screen.tell,
            pause=node.stop.pause,
            verb=verb,
            whole=whole,
        )
    left = _remainder(done.plan, node) if verb == "remove" else Remainder(done.plan.kept)
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
        result={"of": done.of, "run": done.run, "triggers": done.settled, "kept": done.plan.kept},
    )
    return answer.ending_in(failure)


def _remainder(back: UndoPlan, node: Session) -> Remainder:
    """Return what is there of gpunode's now that ``back`` is through."""
    from gpunode.workflow.remove import find_remainder

    return find_remainder(node.store, node.host, survey(node.host, image=node.host.root != "/"), back)


def _finish_package_changes(verb: str, node: Session, *, yes: bool) -> bool:
    """Which packages there are can be told: a change of packages that was interrupted is finished.

    Returns:
        Whether there was anything to finish.
    """
    from gpunode.workflow.repair import find_repair, run_repair

    if (work := find_repair(survey(node.host, image=node.host.root != "/"))) is None:
        return False
    node.tell(f"{work.why}: finishing it first, because only then gpunode knows what to undo")
    node.screen.confirm_shown(verb, yes=yes)
    argv, pause = tuple(sys.argv[1:]), node.stop.pause
    run_repair(work, node.host, node.store, version=__version__, argv=argv, on_event=node.screen.tell, pause=pause)
    return True
