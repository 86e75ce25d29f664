"""Laws of plan, setup and rollback on every node: plan equals setup, twice equals once, undo restores the state."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import reduce

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gpunode.change import Change, FileChange, FileState, PackageChange, Trigger
from gpunode.errors import GpunodeError
from gpunode.facts.model import Facts, Known
from gpunode.host.port import TriggerResult
from gpunode.host.rehearsal import RehearsalHost
from gpunode.journal.store import Store
from gpunode.outcome import Planned
from gpunode.recipe import Recipe
from gpunode.workflow.converge import StagePlan, collect_notes, project_stage, state_notes
from gpunode.workflow.events import ignore_event
from gpunode.workflow.plan import has_pending_work, plan
from gpunode.workflow.rollback import execute_undo, plan_rollback
from gpunode.workflow.setup import SetupOptions, SetupResult, setup
from tests.fakes.examples import examples
from tests.laws.nodes import facts, recipes

ASKED = SetupOptions()
# These depend on each node's kernel and on what is broken on it.
NOT_LOCKED = {"headers", "missing-dependencies"}
quick = settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


class PowerCut(BaseException):
    """The machine has lost power: nothing runs afterwards, not even handlers of ordinary errors."""


class Memory(RehearsalHost):
    """A node in memory that can lose power before or after any of its effects."""

    def __init__(self, node: Facts, cut_at: int = -1) -> None:
        super().__init__({}, {path: fact.value for path, fact in node.files.items() if isinstance(fact, Known)})
        self.cut_at, self.moments, self.settled = cut_at, 0, [Trigger("restart", "nothing")][:0]

    def _moment(self) -> None:
        if self.moments == self.cut_at:
            raise PowerCut
        self.moments += 1

    def apply(self, changes: Sequence[Change], /) -> None:
        self._moment()
        super().apply(changes)
        self._moment()

    def run_triggers(self, triggers: Sequence[Trigger], /) -> tuple[TriggerResult, ...]:
        self._moment()
        self.settled += triggers
        return super().run_triggers(triggers)


def _plan(recipe: Recipe, node: Facts, host: RehearsalHost) -> tuple[StagePlan, ...]:
    plans = plan(recipe, node, host)
    assume(not any(stage.refusal for stage in plans))
    return plans


def _setup(recipe: Recipe, host: Memory, store: Store, node: Facts) -> SetupResult:
    return setup(recipe, host, store, node, advance=project_stage, options=ASKED, on_event=ignore_event)


def _configuration(host: RehearsalHost) -> dict[str, FileState | None]:
    return {path: state for path, state in host.files.items() if state is not None}


@quick
@given(recipes(), facts())
def test_notes_of_unchanged_steps_are_state_notes(recipe: Recipe, node: Facts) -> None:
    """Every screen shows the note of a step without changes, since the note describes the state."""
    plans = _plan(recipe, node, Memory(node))
    outcomes = [step.outcome for stage in plans for step in stage.steps]
    assert not [one for one in outcomes if isinstance(one, Planned) and one.change_notes and not one.changes]
    after = node
    for stage in plans:
        after = project_stage(after, stage)
    assert set(collect_notes(plan(recipe, after, Memory(after)))) == set(state_notes(recipe, after))


@quick
@given(recipes(), facts())
def test_planned_state_plans_nothing(recipe: Recipe, node: Facts) -> None:
    after = node
    for stage in _plan(recipe, node, Memory(node)):
        after = project_stage(after, stage)
    again = plan(recipe, after, Memory(after))
    assert [change for stage in again for change in stage.ordered_changes] == []


@quick
@given(recipes(), facts())
def test_stage_changes_each_subject_once(recipe: Recipe, node: Facts) -> None:
    for stage in _plan(recipe, node, Memory(node)):
        subjects = [change.subject for change in stage.ordered_changes]
        assert len(subjects) == len(set(subjects))


@quick
@given(recipes(), facts())
def test_row_of_a_step_has_the_packages_that_it_installs(recipe: Recipe, node: Facts) -> None:
    plans = _plan(recipe, node, Memory(node))
    after = reduce(project_stage, plans, node)
    for step in (step for stage in plans for step in stage.steps):
        brought = {change.id for change in PackageChange.of_kind(step.changes) if change.action == "install"}
        of_row = {*step.step.packages.list_wanted(recipe, after)} if step.step.packages else set()
        assert step.step.id in NOT_LOCKED or brought <= of_row, f"{brought - of_row}: a lock file would not hold them"


@quick
@given(recipes(), facts())
def test_setup_makes_exactly_the_planned_changes(recipe: Recipe, node: Facts) -> None:
    host = Memory(node)
    planned = _plan(recipe, node, host)
    with tempfile.TemporaryDirectory() as folder:
        done = _setup(recipe, host, Store(folder), node)
    assert [s.ordered_changes for s in done.applied if s.ordered_changes] == [
        s.ordered_changes for s in planned if s.ordered_changes
    ]


@quick
@given(recipes(), facts())
def test_rollback_restores_every_configuration_file(recipe: Recipe, node: Facts) -> None:
    host = Memory(node)
    plans = _plan(recipe, node, host)
    before = _configuration(host)
    runtime_files = {
        c.path for s in plans if s.stage == "runtime" for c in s.ordered_changes if isinstance(c, FileChange)
    }
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        done = _setup(recipe, host, store, node)
        assume(done.run)
        execute_undo(plan_rollback(store, host, done.run), host, store, on_event=ignore_event)
    after = _configuration(host)
    assert {p: after.get(p) for p in runtime_files} == {p: before.get(p) for p in runtime_files}


@quick
@given(recipes(), facts(), st.data())
def test_power_cut_at_any_moment_loses_nothing(recipe: Recipe, node: Facts, data: st.DataObject) -> None:
    whole = Memory(node)
    plans = _plan(recipe, node, whole)
    before = _configuration(whole)
    with tempfile.TemporaryDirectory() as folder:
        _setup(recipe, whole, Store(folder), node)
    assume(whole.moments)
    host = Memory(node, cut_at=data.draw(st.integers(0, whole.moments - 1)))
    runtime_files = {
        c.path for s in plans if s.stage == "runtime" for c in s.ordered_changes if isinstance(c, FileChange)
    }
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        with pytest.raises(PowerCut):
            _setup(recipe, host, store, node)
        _forget_the_end(store)
        host.cut_at = -1
        for summary in store.read_runs():
            execute_undo(plan_rollback(store, host, summary.id), host, store, on_event=ignore_event)
    after = _configuration(host)
    assert {p: after.get(p) for p in runtime_files} == {p: before.get(p) for p in runtime_files}


@quick
@given(recipes(), facts(), st.data())
def test_next_run_settles_triggers_of_an_interrupted_one(recipe: Recipe, node: Facts, data: st.DataObject) -> None:
    """Whenever the power fails, every trigger of the plan has run by the end of the second run."""
    whole = Memory(node)
    plans = _plan(recipe, node, whole)
    wanted = {trigger for stage in plans for trigger in stage.triggers}
    with tempfile.TemporaryDirectory() as folder:
        _setup(recipe, whole, Store(folder), node)
    assume(wanted)
    host = Memory(node, cut_at=data.draw(st.integers(0, whole.moments - 1)))
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        seen: list[Facts] = [node]

        def remember(now: Facts, stage: StagePlan) -> Facts:
            seen.append(project_stage(now, stage))
            return seen[-1]

        with pytest.raises(PowerCut):
            setup(recipe, host, store, node, advance=remember, options=ASKED, on_event=ignore_event)
        _forget_the_end(store)
        host.cut_at = -1
        present = _facts_for_next_run(node, host)
        try:
            _setup(recipe, host, store, present)
        except GpunodeError as error:
            pytest.fail(f"the second run stopped: {error.what}: {error.why}")
        assert set(store.find_pending_triggers()) == set()
    assert wanted <= set(host.settled)


def _forget_the_end(store: Store) -> None:
    """Remove the last line of the journal, which a machine that lost power did not write."""
    path = store.folder / "runs" / store.ids()[-1] / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert b'"type":"commit"' in lines[-1]
    path.write_bytes(b"".join(lines[:-1]))


def _facts_for_next_run(node: Facts, host: Memory) -> Facts:
    """Return the node as the next run finds it: files as the power cut left them, the rest as before the first run."""
    import dataclasses

    files = {path: Known(state, f"file:{path}") for path, state in host.files.items()}
    return dataclasses.replace(node, files={**node.files, **files})


def test_empty_plan_has_no_pending_work() -> None:
    assert not has_pending_work(())
