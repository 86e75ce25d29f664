"""setup: make the node match the recipe, and check that it works."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING

from gpunode.change import RUNTIME_CONFIG_STAGE, CommandChange, Trigger
from gpunode.cli.envelope import Envelope
from gpunode.cli.inputs import (
    RecipeOptions,
    explain_default_recipe,
    is_image_root,
    list_unknown_facts,
    parse_setup_gpus,
    require_root,
    validate_root,
    validate_steps,
)
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.resume import (
    boot_resume_command,
    encode_request,
    find_input_risks,
    hash_recipe,
    load_request_and_set_proxies,
    refuse_other_options,
    refuse_unsafe_program,
)
from gpunode.cli.screen.checks import check_lines, inventory_text, matches_recipe_text, state_note_lines, verdict_line
from gpunode.cli.screen.commands import (
    cluster_apply_command,
    rollback_command,
    root_option,
    setup_command,
    verify_command,
)
from gpunode.cli.screen.events import downtime_text, labelled_line, reboot_lines
from gpunode.cli.screen.text import BLANK_LINE, STATE_MARK, Line, indent_lines, line, span
from gpunode.cli.session import LOCK_TIMEOUT_S, exclusive_session, report_partial_run
from gpunode.command import Command
from gpunode.container_runtimes import takes_only_cdi
from gpunode.errors import GpunodeError, RebootRequired, UsageError
from gpunode.fast_dataclass import dataclass
from gpunode.host.process import proxy_variables
from gpunode.journal.store import Store
from gpunode.outcome import Blocked, reboot_suffices
from gpunode.wording import count_noun, format_seconds
from gpunode.workflow.converge import collect_notes, selected_step_ids, state_notes, step_ids_by_change, survey
from gpunode.workflow.recovery import find_lost_record
from gpunode.workflow.setup import Resume, SetupOptions, SetupResult
from gpunode.workflow.setup import setup as run_setup
from gpunode.workflow.verify import VerifyReport, verify

if TYPE_CHECKING:
    from gpunode.cli.session import Session
    from gpunode.recipe import Recipe
    from gpunode.workflow.converge import StagePlan


_REBOOT_HINT = "sudo systemctl reboot, then run the same command again"
_CONSOLE_ENROLMENT_HINT = """\
open the machine's console first: the BMC's (IPMI, serial over LAN), the hypervisor's, or screen and keyboard
sudo systemctl reboot
in MokManager, the blue screen: press a key, then Enroll MOK → Continue → Yes → the one-time password → Reboot
(it reads a US keyboard; password lost: sudo mokutil --revoke-import, then run the same command for a new one)
then run the same command again: it checks the enrolment and continues
a cloud VM without a console cannot enrol a key: use the vendor's signed driver, or a VM without Secure Boot"""


@dataclass(frozen=True, slots=True)
class SetupFlags:
    """The options of setup that do not choose the desired state.

    Attributes:
        lock_timeout: how many seconds to wait for other programs that change the node.
        resume: the run to continue after its reboot; empty for a new request.
        mok_password_file: the file with the password of a Secure Boot enrolment; empty to generate one.
    """

    yes: bool = False
    reboot: bool = False
    allow_disruption: bool = False
    allow_loss: bool = False
    lock_timeout: float = LOCK_TIMEOUT_S
    only: tuple[str, ...] = ()
    download_only: bool = False
    root: str = "/"
    gpu: tuple[str, ...] = ()
    resume: str = ""
    mok_password_file: str = ""


def setup(recipe_options: RecipeOptions, output: OutputOptions, flags: SetupFlags) -> None:
    """Run setup, a download or a resumed setup, after refusing contradictory options."""
    if flags.resume:
        refuse_other_options(flags.resume, (*astuple(recipe_options), flags.reboot, flags.gpu))
    if flags.download_only:
        download(recipe_options, output, flags)
        return
    started = time.monotonic()
    validate_steps(flags.only)
    require_root("setup", instead="gpunode plan shows what it would do, without root")
    root_folder, image = validate_root(flags.root), is_image_root(flags.root)
    if image and flags.reboot:
        raise UsageError("--reboot cannot be used with --root", why="an image does not run yet", hint="leave one out")
    recipe = load_request_and_set_proxies(Store(root_folder), flags.resume) if flags.resume else recipe_options.load()
    gpus = parse_setup_gpus(",".join(flags.gpu), image=image)
    with exclusive_session("setup", output, root_folder, flags.lock_timeout, yes=flags.yes) as node:
        node.clean_up_after_interruption()
        node.host.mok_password_file = flags.mok_password_file
        if not flags.resume:
            node.notify(explain_default_recipe(recipe_options))
        risks = () if flags.resume else tuple(find_input_risks(recipe_options.recipe, recipe_options.lock))
        for risk in risks:
            node.notify(risk)
        facts = survey(node.host, image=image, gpus=gpus, recipe=recipe)
        lost = find_lost_record(node.store, facts)
        node.notify(str(lost or ""))
        options = _workflow_options(node, recipe, flags, started, image=image)
        with report_partial_run("setup", output, node.store, node.adapt_hint):
            done = run_setup(
                recipe,
                node.host,
                node.store,
                facts,
                advance=lambda _, __: survey(node.host, image=image, gpus=gpus, recipe=recipe),
                options=options,
                on_event=node.screen.show_event,
            )
        argv = find_requested_argv(node.store, flags.resume) or node.screen.argv
        report = _verify_setup(recipe, done, node, flags.only, argv, is_checked=not image and not done.waits)
        prefix = "applied, but " if done.changed else ""
        failure = (
            blocked_setup_error(done.waits, has_changed=done.changed, resumes=flags.reboot)
            if done.waits
            else report.failure(prefix)
        )
        node.notify(node.log.problem)
        previewed = collect_notes(done.preview)
        unseen = [note for note in report.notes if not done.changed or note not in previewed]
        ending = setup_lines(recipe, done, report, failure, node.log.path, argv, unseen)
        node.screen.show_result(ending, failure)
        if options.resume and reboot_suffices(done.waits):
            node.host.apply((CommandChange(("systemctl", "reboot"), "requested with --reboot"),))
        warnings = filter(None, [str(lost or ""), node.log.problem])
        notes = [*dict.fromkeys((*previewed, *report.notes)), *risks, *warnings]
        # Emit while signals are still held back: the reboot will end this process as soon as it can.
        output.emit(_setup_envelope(recipe, done, report, notes).with_failure(failure))


def find_requested_argv(store: Store, resumed_run: str) -> Sequence[str]:
    """Return the command line of ``resumed_run``, for follow-up commands; () if no run is resumed."""
    return store.find_runs(resumed_run)[0].begin.argv if resumed_run else ()


def _workflow_options(node: Session, recipe: Recipe, flags: SetupFlags, started: float, *, image: bool) -> SetupOptions:
    """Return the options of the setup workflow."""

    def agree(plans: Sequence[StagePlan]) -> None:
        for text in node.host.describe_symlinks([change for stage in plans for change in stage.ordered_changes]):
            node.notify(text)
        node.screen.confirm(plans, yes=flags.yes)

    return SetupOptions(
        recipe_sha256=hash_recipe(recipe),
        only=flags.only,
        allow_disruption=flags.allow_disruption,
        allow_loss=flags.allow_loss,
        confirm=agree,
        check_interrupt=node.signals.raise_if_received,
        started=started,
        resume=_prepare_resume(recipe, flags) if flags.reboot and not image else None,
    )


def _verify_setup(
    recipe: Recipe, result: SetupResult, node: Session, only: Sequence[str], argv: Sequence[str], *, is_checked: bool
) -> VerifyReport:
    """Return the report of verify; after a run without changes, the preview serves as its plan."""
    if not is_checked:
        return VerifyReport((), notes=state_notes(recipe, result.facts, only))
    plans = None if result.changed else result.preview
    again = setup_command(argv)
    reads = node.host.read_effective_config
    return verify(recipe, result.facts, node.host, reads, planned=plans, only=only, setup_command=again)


def _prepare_resume(recipe: Recipe, flags: SetupFlags) -> Resume:
    """Return the continuation for the next boot: the same request with the same permissions."""
    refuse_unsafe_program()
    words = [word for step in flags.only for word in ("--only", step)]
    words += ["--allow-disruption"] if flags.allow_disruption else []
    words += ["--allow-loss"] if flags.allow_loss else []
    words += ["--lock-timeout", f"{flags.lock_timeout:.0f}"]
    return Resume(lambda run: boot_resume_command(run, words), encode_request(recipe, proxy_variables()))


def blocked_setup_error(
    waits: Sequence[Blocked], *, has_changed: bool = False, resumes: bool = False
) -> RebootRequired:
    """Return the error of a setup that waits for a reboot, with all reasons.

    Args:
        waits: what it waits for; at least one.
        has_changed: whether it has completed the steps before.
        resumes: whether it reboots the node and continues by itself.
    """
    needs, hint = "a reboot is needed", "setup continues after the reboot" if resumes else _REBOOT_HINT
    if any(wait.waits_for == "console" for wait in waits):
        needs, hint = "a reboot with console access is needed", _CONSOLE_ENROLMENT_HINT
    what = f"{needs}; everything before it is done" if has_changed else needs
    return RebootRequired(what, why="\n".join(wait.reason for wait in waits), hint=hint)


def _setup_envelope(recipe: Recipe, result: SetupResult, report: VerifyReport, notes: Sequence[str]) -> Envelope:
    return Envelope(
        "setup",
        changed=result.changed,
        changes=[change for stage in result.applied for change in stage.ordered_changes],
        steps=step_ids_by_change(result.applied),
        notes=notes,
        unknown=list_unknown_facts(result.facts),
        result={
            "recipe": recipe.name,
            "run": result.run,
            "seconds": round(result.seconds, 3),
            "triggers": result.trigger_results,
            "checks": report.checks,
            "gpus": report.gpus,
        },
    )


def converged_line(recipe: Recipe, result: SetupResult, report: VerifyReport) -> Line:
    """Return the line of a setup with nothing to do."""
    parts = [inventory_text(report.inventory)] if report.inventory else []
    passed = {check.id for check in report.checks if check.status == "passed"}
    if takes_only_cdi(recipe.runtime.name) and "cdi" in passed:
        parts.append(f"containers of {recipe.runtime.name} see the GPUs")
    elif "runtime" in passed:
        parts.append(f"{recipe.runtime.name} has the runtime nvidia")
    details = f"; {', '.join(parts)}" if parts else ""
    verdict_text = matches_recipe_text(recipe, selected_step_ids(recipe, result.preview), _node_or_image(result))
    return line(
        STATE_MARK["nothing"],
        f"nothing to do: {verdict_text}{details}",
        span(f" ({format_seconds(result.seconds)})", "dim"),
        hang=2,
    )


def _node_or_image(result: SetupResult) -> str:
    return "the image" if result.facts.is_image else "this node"


def setup_lines(
    recipe: Recipe,
    result: SetupResult,
    report: VerifyReport,
    failure: GpunodeError | None,
    log: str,
    argv: Sequence[str],
    notes: Sequence[str] = (),
) -> Iterator[Line]:
    """Yield the result of setup: checks, duration, log, next command, undo command.

    ``notes``: notes on the node's state that the preview did not show.
    """
    if not result.changed and failure is None:
        yield from state_note_lines(notes)
        yield converged_line(recipe, result, report)
        return
    if report.checks and (result.changed or report.failed):
        yield BLANK_LINE
        yield line(span("checks", "bold"))
        yield from indent_lines(check_lines(report.checks), 2)
    yield BLANK_LINE
    yield from state_note_lines(notes)
    if isinstance(failure, RebootRequired):
        yield from reboot_lines(failure)
    elif failure is None:
        scope = selected_step_ids(recipe, result.preview)
        works_too = report.checks and not scope
        good = matches_recipe_text(recipe, scope, "this node works and" if works_too else _node_or_image(result))
        yield verdict_line(report, good)
    if result.changed:
        yield from _closing_lines(recipe, result, failure, log, argv)


def _closing_lines(
    recipe: Recipe, result: SetupResult, failure: GpunodeError | None, log: str, argv: Sequence[str]
) -> Iterator[Line]:
    down = downtime_text(result.trigger_results)
    yield labelled_line("took", format_seconds(result.seconds) + (f"; {down}" if down else ""))
    yield labelled_line("log", log)
    if failure is None and root_option(argv):
        yield labelled_line("next", "boot the image on its machine, then run gpunode verify there")
    elif failure is None:
        yield labelled_line("next", verify_command(argv))
        if recipe.kubernetes and recipe.kubernetes.stack != "none":
            yield labelled_line("then", cluster_apply_command(argv))
    if (undo := _undo_command(result, argv)) is not None:
        yield labelled_line("undo", undo)


def _undo_command(result: SetupResult, argv: Sequence[str]) -> Command | None:
    """Return the command that undoes the run; None if nothing in it can be undone, such as a loaded module.

    A rollback without ``--packages`` only restores the configuration, and refuses a run that changed none.
    """
    made_changes = ((stage.stage, change) for stage in result.applied for change in stage.ordered_changes)
    is_configuration = [
        stage == RUNTIME_CONFIG_STAGE and change.is_undone_by_plain_rollback
        for stage, change in made_changes
        if change.inverse() is not None and change.is_undoable
    ]
    if not is_configuration:
        return None
    return rollback_command(argv, result.run, *([] if any(is_configuration) else ["--packages"]))


def downloaded_lines(packages: Sequence[str]) -> Iterator[Line]:
    """Yield the number of downloaded packages."""
    if not packages:
        yield line(STATE_MARK["done"], "nothing to download: the packages are installed as they should be", hang=2)
        return
    yield line(
        STATE_MARK["done"], f"{count_noun(len(packages), 'package')} downloaded; nothing else was changed", hang=2
    )
    yield line("next: the same command without ", span("--download-only", "command"), " installs them", hang=2)


def _refuse_options_with_download(options: SetupFlags) -> None:
    """Refuse options that contradict a download.

    Raises:
        UsageError: such an option was given.
    """
    for option, given, why in (
        ("--root", is_image_root(options.root), "packages are downloaded for a running system, not for an image"),
        ("--gpu", options.gpu, "--gpu is for an image, and packages are downloaded for a running system"),
        ("--reboot", options.reboot, "a download needs no reboot"),
        ("--resume", options.resume, "--resume continues a setup"),
    ):
        if given:
            raise UsageError(f"--download-only cannot be used with {option}", why=why, hint="leave one out")


def download(recipe_options: RecipeOptions, output: OutputOptions, options: SetupFlags) -> None:
    """Refresh the package index, and download the packages of the setup into the package manager's cache."""
    from gpunode.workflow.setup import packages_to_download

    _refuse_options_with_download(options)
    validate_steps(options.only)
    require_root("setup --download-only", instead="gpunode plan shows which packages it would download, without root")
    recipe = recipe_options.load()
    with exclusive_session("download", output, "/", options.lock_timeout) as node:
        node.host.run_triggers((Trigger("index-refresh"),))
        changes = packages_to_download(recipe, survey(node.host, recipe=recipe), node.host, options.only)
        node.host.packages.download(changes)
        packages = [str(change.id) for change in changes if change.exists_after]
        node.screen.show_result(downloaded_lines(packages))
    output.emit(Envelope("setup", result={"recipe": recipe.name, "downloaded": packages}))
