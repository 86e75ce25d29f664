"""The plan: the stack from PCI to runtime, and what setup would do in short. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gpunode.change import Action, KnownAfter, ModuleChange, PackageChange, ServiceChange, Trigger, bare_unit
from gpunode.cli.actions import EFFECTS, action_of
from gpunode.cli.screen.changes import at_most, change_lines, package_lines, tally
from gpunode.cli.screen.checks import matching, state_note_lines
from gpunode.cli.screen.commands import setup_command, setup_place
from gpunode.cli.screen.node import node_line
from gpunode.cli.screen.text import BLANK, Line, Span, indented, line, padded, span
from gpunode.cli.screen.words import MARKS, count, owed, sentence
from gpunode.facts.model import Facts
from gpunode.outcome import WAITED_FOR, Planned, Refusal, Waits
from gpunode.packages.simulation import NOT_SIMULATED
from gpunode.recipe import Recipe
from gpunode.steps.table import STEPS
from gpunode.workflow.converge import StagePlan, StepPlan, collect_notes, selected_step_ids, triggers_of_plans
from gpunode.workflow.plan import has_pending_work
from gpunode.workflow.recovery import Backlog

_TITLE = max(len(step.title) for step in STEPS)


def plan_lines(
    recipe: Recipe, facts: Facts, plans: Sequence[StagePlan], left: Backlog, argv: Sequence[str], *, verbose: bool
) -> Iterator[Line]:
    """The whole answer of plan; one line when there is nothing to do."""
    if not has_pending_work(plans, left):
        if verbose:
            yield node_line(facts, recipe)
            yield from stage_lines(plans, verbose=True)
            yield BLANK
        else:
            yield from state_note_lines(collect_notes(plans))
        what = "the image" if facts.is_image else "this node"
        yield line(
            MARKS["nothing"], f"nothing to do: {matching(recipe, selected_step_ids(recipe, plans), what)}", hang=2
        )
        if left.unread:
            yield line(
                MARKS["not run"], span(f"what an earlier run may have left undone: {left.unread}", "dim"), hang=2
            )
        return
    yield node_line(facts, recipe)
    yield from stage_lines(plans, verbose=verbose)
    yield BLANK
    if left:
        yield line(span("! ", "warn"), span(str(left), "warn"), hang=2)
    yield from outlook(plans, left.owed, image=facts.is_image, verbose=verbose)
    yield line("next: ", span(str(setup_command(argv)), "command"), setup_place(argv), hang=6)


def stage_lines(plans: Sequence[StagePlan], *, verbose: bool) -> Iterator[Line]:
    """Every step in its stage; those with nothing to do are counted, or shown when ``verbose``."""
    quiet: list[StepPlan] = []
    yield BLANK
    for stage in plans:
        shown = [step for step in stage.steps if verbose or _speaks(step)]
        quiet += [step for step in stage.steps if step not in shown]
        if not shown:
            continue
        yield line(span(stage.stage, "bold"), *_transaction(stage), hang=2)
        for step in shown:
            yield from indented(tuple(_step(step, verbose=verbose)), 2)
        yield from indented(tuple(_beside(stage, verbose=verbose)), 2)
    yield from _quiet(quiet)


def _speaks(step: StepPlan) -> bool:
    return not isinstance(step.outcome, Planned) or bool(step.changes or step.outcome.all_notes)


def _quiet(quiet: Sequence[StepPlan]) -> Iterator[Line]:
    """The steps with nothing to do: what was checked and is good, and what something else will bring about."""
    asked = [step for step in quiet if not isinstance(step.outcome, Planned) or step.outcome.asked]
    later = [step for step in asked if isinstance(step.outcome, Planned) and step.outcome.later]
    good = [step.step.title for step in asked if step not in later]
    if good:
        yield line(MARKS["nothing"], span(f"nothing to do: {', '.join(good)}", "dim"), hang=2)
    if later:
        yield line(MARKS["not run"], span(f"later: {', '.join(step.step.title for step in later)}", "dim"), hang=2)


def _step(step: StepPlan, *, verbose: bool) -> Iterator[Line]:
    mark, reason = _mark(step)
    title = Span(padded(step.step.title, _TITLE) + "  ", "bold" if step.changes else "")
    if verbose:
        reason = f"[{step.step.id}] {reason}"
    yield Line((mark, title, span(reason, "" if _speaks(step) else "dim")), hang=_TITLE + 4)
    if isinstance(step.outcome, Planned):
        yield from (note(text) for text in step.outcome.all_notes)
    yield from indented(tuple(change_lines(step.changes, verbose=verbose)), 4)


def note(text: str) -> Line:
    """A warning beneath its step."""
    return line(Span("    ! ", "warn"), span(text, "warn"), hang=6)


def _mark(step: StepPlan) -> tuple[Span, str]:
    match step.outcome:
        case Planned(reason=reason, later=later):
            return MARKS["change" if step.changes else "not run" if later else "nothing"], reason
        case Waits(for_=for_, reason=reason):
            return MARKS["waits"], f"waits for {WAITED_FOR[for_]}: {reason}"
        case Refusal(what=what):
            return MARKS["refused"], what


def _transaction(stage: StagePlan) -> Iterator[Span]:
    """The stage's packages in numbers: they are one transaction."""
    if stage.packages:
        deferred = any(isinstance(change.after, KnownAfter) for change in stage.packages)
        purged = bool(at_most(stage.packages)) and any(change.after is None for change in stage.packages)
        exact = "exact versions and purges" if purged else "exact versions"
        when = f"; {exact} once the package index is read" if deferred else ""
        yield span(f"  one transaction: {tally(stage.packages, stage.dependencies)}{when}", "dim")


def _beside(stage: StagePlan, *, verbose: bool) -> Iterator[Line]:
    """The packages that come along, and what keeps the package manager from it."""
    if stage.dependencies and verbose:
        yield from indented(tuple(package_lines(stage.dependencies, verbose=True)), 4)
    if stage.unresolved.startswith(NOT_SIMULATED):
        yield note(stage.unresolved)
    elif stage.unresolved:
        yield note("this cannot be done with the package index that the node has now:")
        yield from indented([line(span(text, "dim")) for text in stage.unresolved.splitlines()], 6)


def outlook(plans: Sequence[StagePlan], left: Sequence[Trigger] = (), *, image: bool, verbose: bool) -> Iterator[Line]:
    """What setup does in short: counts, what it restarts, what stops meanwhile, whether a reboot is needed.

    Args:
        plans: of all stages.
        left: what earlier runs owe.
        image: whether an image is built, in which no service runs.
        verbose: whether new files have been shown in full.
    """
    did = _counts(plans, verbose=verbose)
    if did:
        yield line("setup ", sentence(did), hang=6)
    triggers = triggers_of_plans(plans, image=image, left=left)
    stopped = () if image else _stopped(plans)
    if triggers:
        goes_on = " (about a second; containers keep running)" if not stopped and _is_restart(triggers[-1]) else ""
        yield line("then  " if did else "setup ", f"{sentence(_owed(triggers))}{goes_on}", hang=6)
    if stopped:
        yield line(
            "      ", f"stops {sentence(stopped)}: setup refuses while any run, without --allow-disruption", hang=6
        )
    for wait in (wait for stage in plans for wait in stage.waits):
        yield line(span("! ", "warn"), span(f"{WAITED_FOR[wait.for_]} will be needed: {wait.reason}", "warn"), hang=2)


def _owed(triggers: Sequence[Trigger]) -> list[str]:
    indexes = [trigger for trigger in triggers if trigger.kind == "index-refresh"]
    rest = [owed(trigger) for trigger in triggers if trigger.kind != "index-refresh"]
    if len(indexes) > 1:
        return [f"read {count(len(indexes), 'package index')}", *rest]
    return [*map(owed, indexes), *rest]


def _counts(plans: Sequence[StagePlan], *, verbose: bool) -> list[str]:
    changes = [change for stage in plans for change in stage.changes]
    actions = Counter(action_of(change) for change in changes)
    packages = PackageChange.among(changes)
    found = [
        (actions["create"], "creates {}", "file"),
        (actions["edit"], "changes {}", "file"),
        (actions["delete"], "removes {}", "file"),
        *((actions[effect], _packages_verb(effect, packages), "package") for effect in EFFECTS),
    ]
    said = [verb.format(count(number, noun)) for number, verb, noun in found if number]
    if found[0][0] and not verbose:
        said[0] += " (-v shows their text)"
    said += [f"loads {change.module}" for change in ModuleChange.among(changes) if change.after]
    return said + [f"{_verb(change)} {bare_unit(change.unit)}" for change in ServiceChange.among(changes)]


def _packages_verb(effect: Action, packages: Sequence[PackageChange]) -> str:
    return f"purges {at_most(packages)}{{}}" if effect == "purge" else f"{effect}s {{}}"


def _verb(change: ServiceChange) -> str:
    """What is done to a unit, in one word: one that already runs is only enabled."""
    return "starts" if change.after.active and not change.before.active else "enables"


def _stopped(plans: Sequence[StagePlan]) -> tuple[str, ...]:
    """What does not run meanwhile."""
    outcomes = (step.outcome for stage in plans for step in stage.steps)
    return tuple(sorted({one.disrupts for one in outcomes if isinstance(one, Planned) and one.disrupts}))


def _is_restart(trigger: Trigger) -> bool:
    return trigger.kind == "restart"
