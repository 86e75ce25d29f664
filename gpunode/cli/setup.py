"""setup: the node is made as the recipe wants it, and proves it."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpunode import __version__
from gpunode.change import CommandChange
from gpunode.cli.changing import LOCK_TIMEOUT_S, session, told_what_was_done
from gpunode.cli.compose import (
    Wanted,
    check_steps,
    checked_root,
    explain_default_recipe,
    gpus_to_set_up,
    is_image,
    need_root,
    unknown,
)
from gpunode.cli.envelope import Envelope
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.resume import (
    command,
    digest,
    input_risks,
    kept_request,
    refuse_other_options,
    refuse_unsafe_program,
    resumed,
)
from gpunode.cli.screen.results import setup_lines
from gpunode.command import gpunode, sudo_gpunode
from gpunode.errors import GpunodeError, UsageError, assert_never
from gpunode.host.process import proxies
from gpunode.journal.store import Store
from gpunode.outcome import WAITS, reboot_suffices
from gpunode.workflow.converge import collect_notes, state_notes, step_ids_by_change, survey
from gpunode.workflow.reboot import Resume
from gpunode.workflow.recovery import find_lost_record
from gpunode.workflow.setup import SetupOptions, SetupResult
from gpunode.workflow.setup import setup as make
from gpunode.workflow.verify import VerifyReport, verify

if TYPE_CHECKING:
    from gpunode.cli.changing import Session
    from gpunode.recipe import Recipe
    from gpunode.workflow.converge import StagePlan

_REBOOT = "systemctl reboot, then run the same command again"


@dataclass(frozen=True, slots=True)
class Options:
    """How setup was asked for, beside the wanted state.

    Attributes:
        lock_timeout_s: how long it waits while somebody else is at work on the node.
        resumes: the run that is continued after its reboot; empty for a request of its own.
    """

    yes: bool = False
    reboot: bool = False
    allow_disruption: bool = False
    allow_loss: bool = False
    lock_timeout_s: float = LOCK_TIMEOUT_S
    only: tuple[str, ...] = ()
    download_only: bool = False
    root: str = "/"
    gpu: str = ""
    apply_cluster: bool = False
    resumes: str = ""


def setup(wanted: Wanted, how: OutputOptions, options: Options) -> None:
    """Does what was typed, unless it contradicts itself."""
    if options.resumes:
        changing = (wanted.recipe, wanted.runtime, wanted.driver, wanted.upgrade, wanted.lock)
        refuse_other_options(options.resumes, (*changing, options.reboot, options.gpu))
    if options.download_only:
        from gpunode.cli.downloading import download

        download(wanted, how, options)
        return
    if options.apply_cluster:
        _refuse_without_cluster(wanted, options, json=how.json)
    _set_up(wanted, how, options)
    if options.apply_cluster:
        from gpunode.cli import clusters

        how = OutputOptions(verbose=how.verbose)
        clusters.apply(wanted.recipe, (), clusters.ClusterRef(), how, yes=options.yes, timeout_s=300)


def _set_up(wanted: Wanted, how: OutputOptions, options: Options) -> None:
    """Makes the node as the recipe wants it, and proves it."""
    started = time.monotonic()
    check_steps(options.only)
    need_root("setup", instead="gpunode plan shows what it would do, without root")
    place, image = checked_root(options.root), is_image(options.root)
    recipe = resumed(Store(place), options.resumes) if options.resumes else wanted.read()
    named = gpus_to_set_up(options.gpu, image=image)
    with session("setup", how, place, options.lock_timeout_s, yes=options.yes) as node:
        node.swept()
        if not options.resumes:
            node.tell(explain_default_recipe(wanted))
        risks = () if options.resumes else tuple(input_risks(wanted.recipe, wanted.lock))
        for risk in risks:
            node.tell(risk)
        facts = survey(node.host, image=image, gpus=named, recipe=recipe)
        lost = find_lost_record(node.store, facts)
        node.tell(str(lost or ""))
        asked = _asked(node, recipe, options, started, image=image)
        with told_what_was_done("setup", how, node.store):
            done = make(
                recipe,
                node.host,
                node.store,
                facts,
                advance=lambda _, __: survey(node.host, image=image, gpus=named, recipe=recipe),
                options=asked,
                on_event=node.screen.tell,
            )
        report = _proved(recipe, done, node, options.only, is_checked=not image and not done.waits)
        prefix = "applied, but " if done.changed else ""
        failure = waiting(done, options) if done.waits else report.failure(prefix)
        node.tell(node.log.problem)
        previewed = collect_notes(done.preview)
        unseen = [note for note in report.notes if not done.changed or note not in previewed]
        ending = setup_lines(recipe, done, report, failure, node.log.path, node.screen.argv, unseen)
        node.screen.conclude(ending, failure)
        if asked.resume and reboot_suffices(done.waits):
            node.host.apply((CommandChange(("systemctl", "reboot"), "asked for with --reboot"),))
    told = filter(None, [str(lost or ""), node.log.problem])
    notes = [*dict.fromkeys((*previewed, *report.notes)), *risks, *told]
    how.answer(_envelope(recipe, done, report, notes).ending_in(failure))


def _asked(node: Session, recipe: Recipe, options: Options, started: float, *, image: bool) -> SetupOptions:
    """How setup was asked for, as the workflow takes it."""

    def agree(plans: Sequence[StagePlan]) -> None:
        for text in node.host.elsewhere([change for stage in plans for change in stage.changes]):
            node.tell(text)
        node.screen.confirm(plans, yes=options.yes)

    return SetupOptions(
        version=__version__,
        argv=tuple(sys.argv[1:]),
        recipe_sha256=digest(recipe),
        only=options.only,
        allow_disruption=options.allow_disruption,
        allow_loss=options.allow_loss,
        confirm=agree,
        pause=node.stop.pause,
        started=started,
        resume=_resume(recipe, options) if options.reboot and not image else None,
    )


def _proved(recipe: Recipe, done: SetupResult, node: Session, only: Sequence[str], *, is_checked: bool) -> VerifyReport:
    """What verify says of the node now; where nothing was changed, the preview is the plan that it would make."""
    if not is_checked:
        return VerifyReport((), notes=state_notes(recipe, done.facts, only))
    planned = None if done.changed else done.preview
    return verify(recipe, done.facts, node.host, node.host.effective, planned=planned, only=only)


def _refuse_without_cluster(wanted: Wanted, options: Options, *, json: bool) -> None:
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
    for option, given in (("--root", is_image(options.root)), ("--json", json), ("--reboot", options.reboot)):
        if given:
            raise UsageError(
                f"--apply-cluster cannot be used with {option}",
                why="the cluster's part is applied when setup is through, from this machine, and shown",
                hint=f"set the node up first, then run: {gpunode('k8s', 'apply', wanted.recipe)}",
            )
    find_kubectl()


def _resume(recipe: Recipe, options: Options) -> Resume:
    """How the boot continues: with the same request, and what else was typed that decides how it is carried out."""
    refuse_unsafe_program()
    words = [word for step in options.only for word in ("--only", step)]
    words += ["--allow-disruption"] if options.allow_disruption else []
    words += ["--allow-loss"] if options.allow_loss else []
    words += ["--lock-timeout", f"{options.lock_timeout_s:.0f}"]
    return Resume(lambda run: command(run, words), kept_request(recipe, proxies()))


def waiting(done: SetupResult, options: Options) -> GpunodeError:
    """How a setup ends that waits: for what must come first, with the reasons of all waits."""
    first = min((wait.for_ for wait in done.waits), key=list(WAITS).index)
    match first:
        case "reboot":
            needs = "a reboot is needed"
            hint = "setup continues after the reboot" if options.reboot else _REBOOT
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


def _envelope(recipe: Recipe, done: SetupResult, report: VerifyReport, notes: Sequence[str]) -> Envelope:
    return Envelope(
        "setup",
        changed=done.changed,
        changes=[change for stage in done.applied for change in stage.changes],
        steps=step_ids_by_change(done.applied),
        notes=notes,
        unknown=unknown(done.facts),
        result={
            "recipe": recipe.name,
            "run": done.run,
            "seconds": round(done.seconds, 3),
            "triggers": done.settled,
            "checks": report.checks,
            "gpus": report.gpus,
        },
    )
