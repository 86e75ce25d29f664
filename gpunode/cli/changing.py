"""setup as a command; and what every command that changes a node has around it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpunode import __version__
from gpunode.change import CommandChange
from gpunode.cli.commands import OutputOptions, check_steps, shortcoming, unknown
from gpunode.cli.compose import SignalGuard, Wanted, announcer, checked_root, gpus_to_set_up, is_image, need_root
from gpunode.cli.envelope import Envelope
from gpunode.cli.human import Screen, answers_to_signals
from gpunode.cli.resume import (
    command,
    digest,
    input_risks,
    kept_request,
    program_risk,
    refuse_unsafe_program,
    resumed,
)
from gpunode.cli.resume import refuse_other_options as refuse_other_options
from gpunode.command import gpunode, sudo_gpunode
from gpunode.errors import GpunodeError, UsageError, assert_never
from gpunode.host.command_log import CommandLog
from gpunode.host.local import LocalHost
from gpunode.host.process import proxies
from gpunode.journal.history import CutShort, made, steps_of
from gpunode.journal.store import Store
from gpunode.outcome import WAITS, reboot_suffices
from gpunode.recipe import Recipe
from gpunode.workflow import converge
from gpunode.workflow.converge import notes_of, survey
from gpunode.workflow.events import Told
from gpunode.workflow.reboot import Resume
from gpunode.workflow.recovery import half_written
from gpunode.workflow.setup import Asked, SetupResult
from gpunode.workflow.setup import setup as make
from gpunode.workflow.verify import Report, verify

if TYPE_CHECKING:
    from gpunode.cli.human import Screen
    from gpunode.workflow.converge import StagePlan

# What packages' scripts make must be readable by the daemons that it is for, however strict the caller's own umask is.
UMASK = 0o022
LOCK_TIMEOUT_S = 600.0
_REBOOT = "systemctl reboot, then run the same command again"


@dataclass(frozen=True, slots=True)
class Permissions:
    """What setup may do beyond changing files and packages.

    Attributes:
        lock_timeout_s: how long it waits while somebody else is at work on the node.
        resumes: the run that is continued after its reboot; empty for a request of its own.
    """

    yes: bool = False
    reboot: bool = False
    allow_disruption: bool = False
    lock_timeout_s: float = LOCK_TIMEOUT_S
    resumes: str = ""


def setup(
    wanted: Wanted, how: OutputOptions, only: Sequence[str], root: str, gpu: str, permissions: Permissions
) -> None:
    """Makes the node as the recipe wants it, and proves it."""
    started = time.monotonic()
    check_steps(only)
    need_root("setup", instead="gpunode plan shows what it would do, without root")
    place, image, screen = checked_root(root), is_image(root), how.screen()
    store = Store(place, announce=announcer(place))
    recipe = resumed(store, permissions.resumes) if permissions.resumes else wanted.read()
    named = gpus_to_set_up(gpu, image=image)
    os.umask(UMASK)
    log = CommandLog("setup", root=place)
    stop = SignalGuard(screen.stopping)
    consent = screen.consent("setup", place, yes=permissions.yes)
    host = LocalHost(
        place, stop.heeded(screen.progress), log, lock_timeout_s=permissions.lock_timeout_s, consent=consent
    )
    with screen, alone(store, host, screen, permissions.lock_timeout_s), stop:
        swept(store, host)
        risks = () if permissions.resumes else tuple(input_risks(wanted.recipe, wanted.lock))
        for risk in risks:
            screen.tell(Told(risk))
        facts = survey(host, image=image, gpus=named, recipe=recipe)

        def agree(plans: Sequence[StagePlan]) -> None:
            for text in host.elsewhere([change for stage in plans for change in stage.changes]):
                screen.tell(Told(text))
            screen.confirm(plans, yes=permissions.yes)

        asked = Asked(
            version=__version__,
            argv=tuple(sys.argv[1:]),
            recipe_sha256=digest(recipe),
            only=only,
            allow_disruption=permissions.allow_disruption,
            confirm=agree,
            pause=stop.pause,
            started=started,
            resume=_resume(recipe, only, permissions) if permissions.reboot and not image else None,
        )
        with told_what_was_done("setup", how, store):
            done = make(
                recipe,
                host,
                store,
                facts,
                advance=lambda _, __: survey(host, image=image, gpus=named, recipe=recipe),
                asked=asked,
                tell=screen.tell,
            )
        # Where nothing was changed, the preview is the plan for the facts that verify would plan with.
        planned = None if done.changed else done.preview
        report = Report(())
        if not image and not done.waits:
            report = verify(recipe, done.facts, host, host.effective, planned=planned, only=only)
        failure = (
            waiting(done, permissions) if done.waits else shortcoming(report, "applied, but " if done.changed else "")
        )
        if log.problem:
            screen.tell(Told(log.problem))
        screen.setup(recipe, done, report, failure, log=log.path)
        if asked.resume and reboot_suffices(done.waits):
            host.apply((CommandChange(("systemctl", "reboot"), "asked for with --reboot"),))
    notes = [*notes_of(done.preview), *risks, *([log.problem] if log.problem else [])]
    how.answer(_setup_envelope(recipe, done, report, failure, notes))


def refuse_without_cluster(wanted: Wanted, root: str, *, json: bool, reboot: bool) -> None:
    """Nothing, if ``--apply-cluster`` can be meant: better refused before the node is changed.

    Raises:
        UsageError: the recipe asks for nothing of a cluster, or another option excludes it.
        Refused: there is no kubectl.
    """
    from gpunode.host.cluster import find_kubectl

    kubernetes = wanted.read().kubernetes
    if kubernetes is None or kubernetes.stack == "none":
        raise UsageError(
            "--apply-cluster has nothing to apply",
            why="this recipe asks for nothing of a cluster",
            hint=f"name one that does: {sudo_gpunode('setup', 'k8s-containerd', '--apply-cluster')}",
        )
    for option, given in (("--root", is_image(root)), ("--json", json), ("--reboot", reboot)):
        if given:
            raise UsageError(
                f"--apply-cluster cannot be used with {option}",
                why="the cluster's part is applied when setup is through, from this machine, and shown",
                hint=f"set the node up first, then run: {gpunode('k8s', 'apply', wanted.recipe)}",
            )
    find_kubectl()


def swept(store: Store, host: LocalHost) -> CutShort | None:
    """The newest run, if it was cut short; the half files that it left are gone."""
    cut = store.cut_short()
    if cut is not None:
        store.sweep()
        host.sweep(half_written(cut))
    return cut


@contextmanager
def alone(
    store: Store, host: LocalHost, screen: Screen, lock_timeout_s: float, *, others: bool = True
) -> Iterator[None]:
    """No other gpunode changes this node meanwhile, nor is anybody at work on it when it begins.

    In the middle of somebody else's transaction packages look broken, and what is planned on that fails. A rollback
    of the configuration alone leaves the ``others`` be: it mends what is broken now, and needs none of theirs.
    """
    if risk := program_risk():
        screen.tell(Told(f"{risk}, so that user can change what root runs here; `sudo make install` makes a safe copy"))
    with ExitStack() as stack:
        with answers_to_signals():
            stack.enter_context(store.lock(lock_timeout_s, screen.progress))
            if others:
                host.wait_until_alone()
        yield


@contextmanager
def told_what_was_done(command: str, how: OutputOptions, store: Store) -> Iterator[None]:
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
        steps=steps_of(store.read(begun[-1])) if begun else {},
        errors=(error,),
        result={"run": begun[-1]} if begun else {},
    )


def _resume(recipe: Recipe, only: Sequence[str], permissions: Permissions) -> Resume:
    """How the boot continues: with the same request, and what else was typed that decides how it is carried out."""
    refuse_unsafe_program()
    options = [word for step in only for word in ("--only", step)]
    options += ["--allow-disruption"] if permissions.allow_disruption else []
    options += ["--lock-timeout", f"{permissions.lock_timeout_s:.0f}"]
    return Resume(lambda run: command(run, options), kept_request(recipe, proxies()))


def waiting(done: SetupResult, permissions: Permissions) -> GpunodeError:
    """How a setup ends that waits: for what must come first, with the reasons of all waits."""
    first = min((wait.for_ for wait in done.waits), key=list(WAITS).index)
    match first:
        case "reboot":
            needs = "a reboot is needed"
            hint = "setup continues after the reboot" if permissions.reboot else _REBOOT
        case "console":
            needs = "a reboot is needed, with somebody at the console"
            hint = f"answer the questions of the firmware at the next boot:\n{_REBOOT}"
        case "drain":
            needs = "the node must be drained"
            hint = "kubectl drain NODE --ignore-daemonsets, or stop what uses the GPUs; then run the same command again"
        case _:
            assert_never(first)
    what = f"{needs}; everything before it is done" if done.changed else needs
    return WAITS[first](what, why="\n".join(wait.reason for wait in done.waits), hint=hint)


def _setup_envelope(
    recipe: Recipe, done: SetupResult, report: Report, failure: GpunodeError | None, notes: Sequence[str]
) -> Envelope:
    return Envelope(
        "setup",
        status=failure.status if failure else "ok",
        exit_code=failure.exit_code if failure else 0,
        changed=done.changed,
        changes=[change for stage in done.applied for change in stage.changes],
        steps=converge.steps_of(done.applied),
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
