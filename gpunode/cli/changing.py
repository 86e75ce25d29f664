"""The commands that change a node: setup, rollback and remove."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gpunode import __version__
from gpunode.change import CommandChange
from gpunode.cli.commands import How, beside, check_steps, shortcoming, unknown
from gpunode.cli.compose import Stop, Wanted, announcer, checked_root, digest, gpus_to_set_up, is_image, need_root
from gpunode.cli.envelope import Envelope
from gpunode.cli.human import Screen, answers_to_signals
from gpunode.errors import GpunodeError, RebootRequired, UsageError
from gpunode.host.local import LocalHost
from gpunode.host.process import CommandLog
from gpunode.journal.record import CutShort, made
from gpunode.journal.store import Store
from gpunode.recipe import Recipe
from gpunode.workflow.converge import notes_of, survey
from gpunode.workflow.events import Told
from gpunode.workflow.recovery import half_written, told
from gpunode.workflow.setup import Asked, SetupResult
from gpunode.workflow.setup import setup as make
from gpunode.workflow.verify import Report, verify

if TYPE_CHECKING:
    from gpunode.cli.human import Screen
    from gpunode.workflow.undo import Undoing

# What packages' scripts make must be readable by the daemons that it is for, however strict the caller's own umask is.
_UMASK = 0o022
LOCK_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Leave:
    """What setup may do beyond changing files and packages.

    Attributes:
        lock_timeout_s: how long it waits while somebody else is at work on the node.
    """

    yes: bool = False
    reboot: bool = False
    allow_disruption: bool = False
    lock_timeout_s: float = LOCK_TIMEOUT_S


def setup(wanted: Wanted, how: How, only: Sequence[str], root: str, gpu: str, leave: Leave) -> None:
    """Makes the node as the recipe wants it, and proves it."""
    started = time.monotonic()
    check_steps(only)
    need_root("setup")
    recipe, place, image, screen = wanted.read(), checked_root(root), is_image(root), how.screen()
    named = gpus_to_set_up(gpu, image=image)
    os.umask(_UMASK)
    _keep_mounts_private(place)
    store = Store(place, announce=announcer(place))
    log = CommandLog("setup", root=place)
    stop = Stop()
    host = LocalHost(place, stop.heeded(screen.progress), log, lock_timeout_s=leave.lock_timeout_s)
    with screen, _alone(store, host, screen, leave.lock_timeout_s), stop:
        _swept(store, host)
        facts = survey(host, image=image, gpus=named)
        asked = Asked(
            version=__version__,
            argv=tuple(sys.argv[1:]),
            recipe_sha256=digest(recipe),
            only=only,
            allow_disruption=leave.allow_disruption,
            confirm=lambda plans: screen.confirm(plans, yes=leave.yes),
            pause=stop.pause,
            started=started,
            resume=resume_command() if leave.reboot and not image else (),
        )
        with _told_what_was_done("setup", how, store):
            done = make(
                recipe,
                host,
                store,
                facts,
                advance=lambda _, __: survey(host, image=image, gpus=named),
                asked=asked,
                tell=screen.tell,
            )
        reboots = tuple(wait.reason for wait in done.waits if wait.for_ == "reboot")
        # Where nothing was changed, the preview is the plan for the facts that verify would plan with.
        planned = None if done.changed or only else done.preview
        report = Report(()) if image or reboots else verify(recipe, done.facts, host, host.effective, planned=planned)
        failure = (
            _reboot(reboots, done, leave) if reboots else shortcoming(report, "applied, but " if done.changed else "")
        )
        if log.problem:
            screen.tell(Told(log.problem))
        screen.setup(recipe, done, report, failure, log=log.path)
        if reboots and asked.resume:
            host.apply((CommandChange(("systemctl", "reboot"), "asked for with --reboot"),))
    notes = [*notes_of(done.preview), *([log.problem] if log.problem else [])]
    how.answer(_setup_envelope(recipe, done, report, failure, notes))


def _keep_mounts_private(place: str) -> None:
    if place != "/":
        from gpunode.host.chroot import keep_mounts_private

        keep_mounts_private()


def _swept(store: Store, host: LocalHost) -> CutShort | None:
    """The newest run, if it was cut short; the half files that it left are gone."""
    cut = store.cut_short()
    if cut is not None:
        store.sweep()
        host.sweep(half_written(cut))
    return cut


@contextmanager
def _alone(
    store: Store, host: LocalHost, screen: Screen, lock_timeout_s: float, *, others: bool = True
) -> Iterator[None]:
    """No other gpunode changes this node meanwhile, nor is anybody at work on it when it begins.

    In the middle of somebody else's transaction packages look broken, and what is planned on that fails. A rollback
    of the configuration alone leaves the ``others`` be: it mends what is broken now, and needs none of theirs.
    """
    with ExitStack() as stack:
        with answers_to_signals():
            stack.enter_context(store.lock(lock_timeout_s, screen.progress))
            if others:
                host.wait_until_alone()
        yield


@contextmanager
def _told_what_was_done(command: str, how: How, store: Store) -> Iterator[None]:
    """A program hears of a run that stopped in its middle with what it had changed by then."""
    before = store.ids()
    try:
        yield
    except GpunodeError as error:
        if how.json:
            how.answer(stopped(command, error, store, before))
        raise


def stopped(command: str, error: GpunodeError, store: Store, before: Sequence[str]) -> Envelope:
    """The answer of a run that ``error`` ended, if one was begun since those of ``before``."""
    begun = [run for run in store.ids() if run not in before]
    changes = made(store.read(begun[-1])) if begun else ()
    return Envelope(
        command,
        status=error.status,
        exit_code=error.exit_code,
        changed=bool(changes),
        changes=changes,
        errors=(error,),
        result={"run": begun[-1]} if begun else {},
    )


def resume_command() -> tuple[str, ...]:
    """This very command for after the reboot: without --reboot, so that one run reboots at most once.

    It speaks to whoever reads the unit's journal, so not in JSON.
    """
    typed = [word for word in sys.argv[1:] if word not in {"--reboot", "--yes", "-y", "--json"}]
    return (*_how_python_finds_gpunode(), *typed, "--yes")


def _how_python_finds_gpunode() -> tuple[str, ...]:
    program = sys.argv[0]
    if not program.endswith("__main__.py"):
        return (sys.executable, program)
    path = os.environ.get("PYTHONPATH")
    return (*(("/usr/bin/env", f"PYTHONPATH={path}") if path else ()), sys.executable, "-m", "gpunode")


def _reboot(reasons: Sequence[str], done: SetupResult, leave: Leave) -> RebootRequired:
    again = (
        "it goes on by itself after the reboot" if leave.reboot else "systemctl reboot, then run the same command again"
    )
    what = "a reboot is needed; everything before it is done" if done.changed else "a reboot is needed"
    return RebootRequired(what, why="\n".join(reasons), hint=again)


def _setup_envelope(
    recipe: Recipe, done: SetupResult, report: Report, failure: GpunodeError | None, notes: Sequence[str]
) -> Envelope:
    return Envelope(
        "setup",
        status=failure.status if failure else "ok",
        exit_code=failure.exit_code if failure else 0,
        changed=done.changed,
        changes=[change for stage in done.applied for change in stage.changes],
        notes=notes,
        unknown=unknown(done.facts),
        errors=(failure,) if failure else (),
        result={
            "recipe": recipe.name,
            "run": done.run,
            "seconds": round(done.seconds, 3),
            "triggers": done.settled,
            "checks": report.checks,
            "gpus": report.inventory.gpus if report.inventory else (),
        },
    )


@dataclass(frozen=True, slots=True)
class UndoLeave:
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


def rollback(run: str, how: How, root: str, leave: UndoLeave) -> None:
    """Puts back what a run changed: its configuration, or all of it."""
    from gpunode.workflow import rollback as undo

    need_root("rollback")
    place = checked_root(root)

    def undoing(store: Store, host: LocalHost) -> Undoing:
        of = undo.choose(store, run, whole=leave.whole).run
        facts = survey(host, image=is_image(root)) if leave.whole else None
        return undo.undoing(store, host, of, facts, force=leave.force, disrupt=leave.allow_disruption)

    _undo("rollback", undoing, how, place, leave)


def remove(how: How, root: str, leave: UndoLeave) -> None:
    """Takes everything away that gpunode added."""
    from gpunode.workflow.remove import removing

    need_root("remove")
    place = checked_root(root)

    def undoing(store: Store, host: LocalHost) -> Undoing:
        facts = survey(host, image=is_image(root))
        return removing(store.footprint(), host, facts, force=leave.force, disrupt=leave.allow_disruption)

    _undo("remove", undoing, how, place, leave)


def _undo(
    verb: Literal["rollback", "remove"],
    undoing: Callable[[Store, LocalHost], Undoing],
    how: How,
    place: str,
    leave: UndoLeave,
) -> None:
    """Shows what ``undoing`` finds, asks, does it, and answers."""
    from gpunode.workflow import rollback as undo

    screen = how.screen()
    os.umask(_UMASK)
    _keep_mounts_private(place)
    store = Store(place, announce=announcer(place))
    stop, log = Stop(), CommandLog(verb, root=place)
    host = LocalHost(place, stop.heeded(screen.progress), log, lock_timeout_s=leave.lock_timeout_s)
    with screen, _alone(store, host, screen, leave.lock_timeout_s, others=leave.whole), stop:
        if (cut := _swept(store, host)) is not None:
            screen.tell(Told(told(cut, f"a {verb} takes back whatever it did")))
        if leave.whole:
            _finish_dpkgs_work(verb, host, store, screen, stop, leave)
        back = undoing(store, host)
        screen.undoing(back, whole=leave.whole)
        for path in (change.path for change in back.files):
            screen.leftovers(path, beside(host, path))
        if not back.parts:
            how.answer(Envelope(verb, notes=back.notes, result={"of": back.of}))
            return
        host.vet(back.files)
        screen.confirm_shown(verb, yes=leave.yes)
        with _told_what_was_done(verb, how, store):
            done = undo.rollback(
                back,
                host,
                store,
                version=__version__,
                argv=tuple(sys.argv[1:]),
                tell=screen.tell,
                pause=stop.pause,
                verb=verb,
                whole=leave.whole,
            )
        failure = undo.shortcoming(done)
        screen.rollback(done, failure)
    how.answer(
        Envelope(
            verb,
            status=failure.status if failure else "ok",
            exit_code=failure.exit_code if failure else 0,
            changed=True,
            changes=done.undone.changes,
            notes=done.undone.notes,
            errors=(failure,) if failure else (),
            result={"of": done.of, "run": done.run, "triggers": done.settled},
        )
    )


def _finish_dpkgs_work(
    verb: Literal["rollback", "remove"],
    host: LocalHost,
    store: Store,
    screen: Screen,
    stop: Stop,
    leave: UndoLeave,
) -> None:
    """Which packages there are can be told: dpkg was not interrupted, or what it began is finished by now."""
    from gpunode.workflow.repair import finish, unfinished

    if (work := unfinished(survey(host, image=host.root != "/"), host)) is None:
        return
    screen.tell(Told(f"{work.why}: it is finished first, since only then it is known what there is to take back"))
    screen.confirm_shown(verb, yes=leave.yes)
    argv = tuple(sys.argv[1:])
    finish(work, host, store, version=__version__, argv=argv, tell=screen.tell, pause=stop.pause)


def forget(run: str, how: How, root: str, *, yes: bool, lock_timeout_s: float = LOCK_TIMEOUT_S) -> None:
    """Gives up undoing a run; its backups go, its journal stays."""
    from gpunode.workflow.rollback import choose

    need_root("rollback --forget")
    if not run:
        raise UsageError(
            "rollback --forget needs the run that is to be forgotten",
            why="what is forgotten can never be undone, so gpunode does not choose it",
            hint="gpunode rollback --list\nsudo gpunode rollback --forget RUN",
        )
    store, screen = Store(checked_root(root)), how.screen()
    with screen, store.lock(lock_timeout_s, screen.progress):
        chosen = choose(store, run)
        screen.forgetting(chosen)
        screen.confirm_shown("rollback --forget", yes=yes)
        objects, freed = store.forget(chosen.run)
        screen.forgotten(chosen, objects, freed)
    result = {"forgotten": chosen.run, "subjects": chosen.subjects, "objects": objects, "freed_bytes": freed}
    how.answer(Envelope("rollback", changed=True, result=result))
