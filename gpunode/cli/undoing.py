"""The commands that take back what was changed: rollback, its --forget, and remove."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from gpunode import __version__
from gpunode.cli.changing import LOCK_TIMEOUT_S, UMASK, alone, swept, told_what_was_done
from gpunode.cli.commands import OutputOptions, beside
from gpunode.cli.compose import SignalGuard, announcer, checked_root, is_image, need_root
from gpunode.cli.envelope import Envelope
from gpunode.errors import UsageError
from gpunode.host.command_log import CommandLog
from gpunode.host.local import LocalHost
from gpunode.journal.history import made, number, steps_of
from gpunode.journal.store import Store
from gpunode.workflow.converge import survey
from gpunode.workflow.events import Told
from gpunode.workflow.recovery import told
from gpunode.workflow.standing import Undone

if TYPE_CHECKING:
    from gpunode.cli.human import Screen
    from gpunode.journal.history import RunSummary
    from gpunode.workflow.undo import Undoing

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

    if run.startswith("k"):
        from gpunode.cli import clusters

        clusters.rollback(run[1:], how, yes=permissions.yes)
        return
    need_root("rollback", _WHY_ROOT, _NOTHING_WITHOUT_ROOT)
    place = checked_root(root)

    def undoing(store: Store, host: LocalHost, screen: Screen) -> Undoing | Undone:
        of = standing.named(store, run, whole=permissions.whole) if run else _newest(store, screen, permissions)
        if isinstance(of, Undone):
            return of
        facts = survey(host, image=is_image(root)) if permissions.whole else None
        back = undo.undoing(store, host, of.run, facts, force=permissions.force, disrupt=permissions.allow_disruption)
        if back.parts or back.owed or back.incomplete:
            return back
        undo.record_undone(store, of, version=__version__, argv=tuple(sys.argv[1:]), whole=permissions.whole)
        why = "what is left of it stays" if back.notes else "nothing of it is left on this node"
        undone = standing.undone(store, of, why, whole=permissions.whole)
        return replace(undone, notes=back.notes)

    _undo("rollback", undoing, how, place, permissions)


def _newest(store: Store, screen: Screen, permissions: Permissions) -> RunSummary | Undone:
    """The run that a rollback without RUN undoes; an older one than the newest only where somebody can say no."""
    from gpunode.workflow.standing import newest, undone

    made = newest(store, whole=permissions.whole)
    if not made.is_undone(whole=permissions.whole):
        return made
    found = undone(store, made, f"run {number(made.undone_by)} undid it", whole=permissions.whole)
    if found.standing is None or permissions.yes or not screen.can_ask:
        return found
    screen.undone(replace(found, command=""))
    return found.standing


def remove(how: OutputOptions, root: str, permissions: Permissions) -> None:
    """Takes everything away that gpunode added."""
    from gpunode.workflow.recovery import still_owed
    from gpunode.workflow.remove import removing

    need_root("remove", _WHY_ROOT, _NOTHING_WITHOUT_ROOT)
    place = checked_root(root)

    def undoing(store: Store, host: LocalHost, _: Screen) -> Undoing:
        facts = survey(host, image=is_image(root))
        owed = still_owed(store.owed(), facts)
        return removing(
            store.footprint(), host, facts, owed=owed, force=permissions.force, disrupt=permissions.allow_disruption
        )

    _undo("remove", undoing, how, place, permissions)


def _undo(
    verb: Literal["rollback", "remove"],
    undoing: Callable[[Store, LocalHost, Screen], Undoing | Undone],
    how: OutputOptions,
    place: str,
    permissions: Permissions,
) -> None:
    """Shows what ``undoing`` finds, asks, does it, and answers."""
    from gpunode.workflow import rollback as undo

    screen = how.screen()
    os.umask(UMASK)
    store = Store(place, announce=announcer(place))
    stop, log = SignalGuard(screen.stopping), CommandLog(verb, root=place)
    consent = screen.consent(verb, place, yes=permissions.yes)
    host = LocalHost(
        place, stop.heeded(screen.progress), log, lock_timeout_s=permissions.lock_timeout_s, consent=consent
    )
    with screen, alone(store, host, screen, permissions.lock_timeout_s, others=permissions.whole), stop:
        if (cut := swept(store, host)) is not None:
            screen.tell(Told(told(cut, f"a {verb} undoes whatever it did")))
        repaired = permissions.whole and _finish_package_changes(verb, host, store, screen, stop, permissions)
        back = undoing(store, host, screen)
        if isinstance(back, Undone):
            screen.undone(back)
            result = {"of": back.of.run, "standing": back.standing.run if back.standing else ""}
            how.answer(Envelope(verb, changed=repaired, notes=back.notes, result=result))
            return
        screen.undoing(back)
        for path in (change.path for change in back.files):
            screen.leftovers(path, beside(host, path))
        if not back.parts and not back.owed:
            if back.incomplete:
                raise undo.not_all_back(back)
            how.answer(Envelope(verb, changed=repaired, notes=back.notes, result={"of": back.of}))
            return
        host.vet(back.files)
        screen.confirm_shown(verb, yes=permissions.yes)
        with told_what_was_done(verb, how, store):
            done = undo.rollback(
                back,
                host,
                store,
                version=__version__,
                argv=tuple(sys.argv[1:]),
                tell=screen.tell,
                pause=stop.pause,
                verb=verb,
                whole=permissions.whole,
            )
        failure = undo.shortcoming(done)
        screen.rollback(done, failure)
        entries = store.read(done.run)
    how.answer(
        Envelope(
            verb,
            status=failure.status if failure else "ok",
            exit_code=failure.exit_code if failure else 0,
            changed=True,
            changes=made(entries),
            steps=steps_of(entries),
            notes=done.undone.notes,
            errors=(failure,) if failure else (),
            result={"of": done.of, "run": done.run, "triggers": done.settled},
        )
    )


def _finish_package_changes(
    verb: Literal["rollback", "remove"],
    host: LocalHost,
    store: Store,
    screen: Screen,
    stop: SignalGuard,
    permissions: Permissions,
) -> bool:
    """Which packages there are can be told: a change of packages that was interrupted is finished.

    Returns:
        Whether there was anything to finish.
    """
    from gpunode.workflow.repair import finish, unfinished

    if (work := unfinished(survey(host, image=host.root != "/"))) is None:
        return False
    screen.tell(Told(f"{work.why}: finishing it first, because only then gpunode knows what to undo"))
    screen.confirm_shown(verb, yes=permissions.yes)
    argv = tuple(sys.argv[1:])
    finish(work, host, store, version=__version__, argv=argv, tell=screen.tell, pause=stop.pause)
    return True


def forget(run: str, how: OutputOptions, root: str, *, yes: bool, lock_timeout_s: float = LOCK_TIMEOUT_S) -> None:
    """Gives up undoing a run; its backups go, its journal stays."""
    from gpunode.workflow.standing import named

    need_root("rollback --forget", "it deletes backups in /var/lib/gpunode", _NOTHING_WITHOUT_ROOT)
    if not run:
        raise UsageError(
            "rollback --forget needs the run that is to be forgotten",
            why="what is forgotten can never be undone, so gpunode does not choose it",
            hint="gpunode rollback --list\nsudo gpunode rollback --forget RUN",
        )
    store, screen = Store(checked_root(root)), how.screen()
    with screen, store.lock(lock_timeout_s, screen.progress):
        chosen = named(store, run)
        screen.forgetting(chosen)
        screen.confirm_shown("rollback --forget", yes=yes)
        objects, freed = store.forget(chosen.run)
        screen.forgotten(chosen, objects, freed)
    result = {"forgotten": chosen.run, "subjects": chosen.subjects, "objects": objects, "freed_bytes": freed}
    how.answer(Envelope("rollback", changed=True, result=result))
