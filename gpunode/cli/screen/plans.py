"""The plan: all steps by stage, and a summary of what setup would do. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gpunode.change import KnownAfter, ModuleChange, PackageChange, ServiceChange, Trigger, short_unit_name
from gpunode.cli.screen.changes import (
    PACKAGE_ACTIONS,
    action_of,
    change_lines,
    package_lines,
    transaction_summary,
    up_to_prefix,
)
from gpunode.cli.screen.checks import matches_recipe_text, state_note_lines
from gpunode.cli.screen.commands import setup_command, setup_machine_note
from gpunode.cli.screen.events import describe_trigger
from gpunode.cli.screen.node import node_line
from gpunode.cli.screen.text import (
    BLANK_LINE,
    STATE_MARK,
    Line,
    Span,
    indent_lines,
    line,
    next_command_line,
    pad_right,
    span,
    warning_line,
)
from gpunode.facts.model import Facts
from gpunode.outcome import WAIT_PHRASES, Blocked, Planned, Refusal, reboot_suffices
from gpunode.recipe import Recipe
from gpunode.steps.table import STEPS
from gpunode.wording import count_noun, join_with_and
from gpunode.workflow.converge import StagePlan, StepPlan, collect_notes, selected_step_ids, triggers_of_plans
from gpunode.workflow.plan import has_pending_work
from gpunode.workflow.recovery import Backlog

_TITLE_WIDTH = max(len(step.title) for step in STEPS)


def plan_lines(
    recipe: Recipe,
    facts: Facts,
    plans: Sequence[StagePlan],
    backlog: Backlog,
    argv: Sequence[str] | None,
    *,
    verbose: bool,
) -> Iterator[Line]:
    """Yield the plan; one line if there is nothing to do. Without ``argv``, no setup command is suggested."""
    if not has_pending_work(plans, backlog):
        if verbose:
            yield node_line(facts, recipe)
            yield from stage_lines(plans, verbose=True)
            yield BLANK_LINE
        else:
            yield from state_note_lines(collect_notes(plans))
        subject = "the image" if facts.is_image else "this node"
        verdict_text = matches_recipe_text(recipe, selected_step_ids(recipe, plans), subject)
        yield line(STATE_MARK["nothing"], f"nothing to do: {verdict_text}", hang=2)
        if backlog.unread_reason:
            unread = f"what an earlier run may have left undone: {backlog.unread_reason}"
            yield line(STATE_MARK["skipped"], span(unread, "dim"), hang=2)
        return
    yield node_line(facts, recipe)
    yield from stage_lines(plans, verbose=verbose)
    yield BLANK_LINE
    if backlog:
        yield warning_line(str(backlog), "warn")
    yield from setup_summary_lines(plans, backlog.pending_triggers, image=facts.is_image, verbose=verbose)
    if not backlog and not any(stage.ordered_changes for stage in plans):
        if reboot_suffices([wait for stage in plans for wait in stage.waits]):
            yield next_command_line("sudo systemctl reboot")
    elif argv is not None:
        yield next_command_line(setup_command(argv), setup_machine_note(argv))


def stage_lines(plans: Sequence[StagePlan], *, verbose: bool) -> Iterator[Line]:
    """Yield every step by stage; those with nothing to do on one line unless ``verbose``."""
    unchanged: list[StepPlan] = []
    yield BLANK_LINE
    for stage in plans:
        shown = [step for step in stage.steps if verbose or _is_notable(step)]
        unchanged += [step for step in stage.steps if step not in shown]
        if not shown:
            continue
        yield line(span(stage.stage, "bold"), *_transaction_span(stage), hang=2)
        for step in shown:
            yield from indent_lines(_step_lines(step, verbose=verbose), 2)
        yield from indent_lines(_dependency_lines(stage, verbose=verbose), 2)
    yield from _unchanged_lines(unchanged)


def _is_notable(step: StepPlan) -> bool:
    return not isinstance(step.outcome, Planned) or bool(step.changes or step.outcome.all_notes)


def _unchanged_lines(unchanged: Sequence[StepPlan]) -> Iterator[Line]:
    """Yield the steps without changes: those already done, and those that others do later."""
    applicable = [step for step in unchanged if not isinstance(step.outcome, Planned) or step.outcome.is_requested]
    later = [step for step in applicable if isinstance(step.outcome, Planned) and step.outcome.is_deferred]
    good = [step.step.title for step in applicable if step not in later]
    if good:
        yield line(STATE_MARK["nothing"], span(f"nothing to do: {', '.join(good)}", "dim"), hang=2)
    if later:
        yield line(STATE_MARK["skipped"], span(f"later: {', '.join(step.step.title for step in later)}", "dim"), hang=2)


def _step_lines(step: StepPlan, *, verbose: bool) -> Iterator[Line]:
    mark, reason = _step_mark(step)
    title = Span(pad_right(step.step.title, _TITLE_WIDTH) + "  ", "bold" if step.changes else "")
    if verbose:
        reason = f"[{step.step.id}] {reason}"
    yield Line((mark, title, span(reason, "" if _is_notable(step) else "dim")), hang=_TITLE_WIDTH + 4)
    if isinstance(step.outcome, Planned):
        yield from (note_line(text) for text in step.outcome.all_notes)
    yield from indent_lines(change_lines(step.changes, verbose=verbose), 4)


def note_line(text: str) -> Line:
    """Return the line of a warning below its step."""
    return line(Span("    ! ", "warn"), span(text, "warn"), hang=6)


def _step_mark(step: StepPlan) -> tuple[Span, str]:
    match step.outcome:
        case Planned(reason=reason, is_deferred=later):
            return STATE_MARK["change" if step.changes else "skipped" if later else "nothing"], reason
        case Blocked(waits_for=waits_for, reason=reason):
            return STATE_MARK["waits"], f"waits for {WAIT_PHRASES[waits_for]}: {reason}"
        case Refusal(what=what):
            return STATE_MARK["refused"], what


def _transaction_span(stage: StagePlan) -> Iterator[Span]:
    """Yield a summary of the stage's package transaction."""
    if stage.packages:
        deferred = any(isinstance(change.after, KnownAfter) for change in stage.packages)
        purged = bool(up_to_prefix(stage.packages)) and any(change.after is None for change in stage.packages)
        exact = "exact versions and purges" if purged else "exact versions"
        when = f"; {exact} after the index is read" if deferred else ""
        yield span(f"  one transaction: {transaction_summary(stage.packages, stage.dependencies)}{when}", "dim")


def _dependency_lines(stage: StagePlan, *, verbose: bool) -> Iterator[Line]:
    """Yield the dependencies, and why the package manager cannot install them yet."""
    if stage.dependencies and verbose:
        yield from indent_lines(package_lines(stage.dependencies, verbose=True), 4)
    first, *rest = stage.index_note.splitlines() or [""]
    yield from (note_line(first),) if first else ()
    yield from indent_lines((line(span(text, "dim")) for text in rest), 6)


def setup_summary_lines(
    plans: Sequence[StagePlan], pending_triggers: Sequence[Trigger] = (), *, image: bool, verbose: bool
) -> Iterator[Line]:
    """Yield a summary of setup: counts, restarts, disruption, reboots.

    Args:
        plans: the plans of all stages.
        pending_triggers: triggers that earlier runs left pending.
        image: whether this is an image, in which no service runs.
        verbose: whether new files were shown in full.
    """
    did = _change_counts(plans, verbose=verbose)
    if did:
        yield line("setup ", join_with_and(did), hang=6)
    triggers = triggers_of_plans(plans, image=image, pending=pending_triggers)
    outcomes = () if image else [step.outcome for stage in plans for step in stage.steps]
    stopped = sorted({one.stopped_workloads for one in outcomes if isinstance(one, Planned) and one.stopped_workloads})
    if triggers:
        goes_on = " (about a second; containers keep running)" if not stopped and triggers[-1].kind == "restart" else ""
        yield line("then  " if did else "to do ", f"{join_with_and(_describe_triggers(triggers))}{goes_on}", hang=6)
    if stopped:
        yield line(
            "      ", f"stops {join_with_and(stopped)}: setup refuses while any run, without --allow-disruption", hang=6
        )
    for wait in (wait for stage in plans for wait in stage.waits):
        yield warning_line(f"{WAIT_PHRASES[wait.waits_for]} will be needed: {wait.reason}", "warn")


def _describe_triggers(triggers: Sequence[Trigger]) -> list[str]:
    indexes = [trigger for trigger in triggers if trigger.kind == "index-refresh"]
    rest = [describe_trigger(trigger) for trigger in triggers if trigger.kind != "index-refresh"]
    if len(indexes) > 1:
        return [f"read {count_noun(len(indexes), 'package index')}", *rest]
    return [*map(describe_trigger, indexes), *rest]


def _change_counts(plans: Sequence[StagePlan], *, verbose: bool) -> list[str]:
    changes = [change for stage in plans for change in stage.ordered_changes]
    actions = Counter(action_of(change) for change in changes)
    purges = f"purges {up_to_prefix(PackageChange.of_kind(changes))}{{}}"
    count_rows = [
        (actions["create"], "creates {}", "file"),
        (actions["edit"], "changes {}", "file"),
        (actions["delete"], "removes {}", "file"),
        *(
            (actions[effect], purges if effect == "purge" else f"{effect}s {{}}", "package")
            for effect in PACKAGE_ACTIONS
        ),
    ]
    parts = [verb.format(count_noun(number, noun)) for number, verb, noun in count_rows if number]
    if count_rows[0][0] and not verbose:
        parts[0] += f" (-v shows {'its' if count_rows[0][0] == 1 else 'their'} text)"
    parts += [f"loads {change.module}" for change in ModuleChange.of_kind(changes) if change.after]
    # A paused unit is listed with the change that starts it again; one that already runs is only enabled.
    for change in (change for change in ServiceChange.of_kind(changes) if not change.is_temporary_stop):
        verb = "starts" if change.after.active and not change.before.active else "enables"
        parts.append(f"{verb} {short_unit_name(change.unit)}")
    return parts
