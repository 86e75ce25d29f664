"""Every drift of the table that facts can show, in memory; and the page that shows the table."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from gpunode.change import PackageState
from gpunode.cli.screen.plans import plan_lines
from gpunode.cli.setup import setup_lines
from gpunode.cli.status import status_lines
from gpunode.cli.verify import report_lines
from gpunode.distros.family import TOOLKIT_PACKAGES
from gpunode.facts.model import Facts, Known
from gpunode.facts.project import project_changes
from gpunode.outcome import Planned, Refusal
from gpunode.packages.deb.dependencies import InstalledRelations
from gpunode.packages.deb.status import DpkgEntry
from gpunode.recipe import Driver, Recipe, RuntimeSettings, Toolkit
from gpunode.steps.table import STEPS
from gpunode.workflow.converge import StagePlan, collect_notes, project_stage
from gpunode.workflow.locking import create_lock
from gpunode.workflow.plan import has_pending_work, plan
from gpunode.workflow.recovery import Backlog
from gpunode.workflow.setup import SetupResult
from gpunode.workflow.status import status
from gpunode.workflow.verify import verify
from tests.drifts import DRIFTS, Drift
from tests.unit.steps.machines import GTX_1080, KERNEL, gpu, unit, with_driver
from tests.unit.workflow.nodes import Node

PAGE = Path(__file__).parents[2] / "docs/reference/drift.md"
RECIPE = Recipe(
    "drift",
    driver=Driver(version="580"),
    toolkit=Toolkit("1.19.1"),
    runtime=RuntimeSettings("containerd", set_as_default=True),
)
# Dependencies of the node's packages: direct ones, and one of theirs.
RELATIONS = {
    "dpkg": "",
    "nvidia-driver-cuda": "libcuda1 (= 580.178.04-1)",
    "libcuda1": "libnvidia-ptxjitcompiler1 (= 580.178.04-1)",
    "nvidia-kernel-dkms": "dkms, nvidia-kernel-support (= 580.178.04-1)",
    f"linux-headers-{KERNEL}": "linux-kbuild-6.1 (>= 6.1.140-1)",
}
PACKAGES = {
    **dict.fromkeys(map(str, TOOLKIT_PACKAGES), "1.19.1-1"),
    "containerd": "1.6.20~ds1-1+b1",
    "libcuda1": PackageState("580.178.04-1", auto=True),
    f"linux-headers-{KERNEL}": "6.1.140-1",
    "linux-headers-amd64": "6.1.140-1",
    "libnvidia-ptxjitcompiler1": PackageState("580.178.04-1", auto=True),
    "nvidia-kernel-support": PackageState("580.178.04-1", auto=True),
    "dkms": PackageState("3.0.10-8", auto=True),
    "linux-kbuild-6.1": PackageState("6.1.140-1", auto=True),
}


@cache
def converged() -> tuple[Recipe, Facts]:
    """Return a locked node on which no action is needed."""
    units = {name: unit() for name in ("nvidia-persistenced.service", "containerd.service")}
    facts = with_driver(
        "580.178.04", open_module=False, gpus=(gpu(GTX_1080),), packages=PACKAGES, units=units, run_installer=False
    )
    facts = replace(facts, dependencies=Known(relations(facts), "dpkg-status"))
    recipe = replace(RECIPE, lock=create_lock(RECIPE, facts, (), "fleet.lock"))
    for stage in plan_stages(recipe, facts):
        facts = project_stage(facts, stage)
    assert not has_pending_work(plan_stages(recipe, facts))
    return recipe, facts


def relations(facts: Facts) -> InstalledRelations:
    """Return the packages of ``facts`` as dpkg's status lists them, with ``RELATIONS``."""
    assert isinstance(facts.packages, Known)
    return InstalledRelations(tuple(
        DpkgEntry(package.name, "install", False, "installed", "amd64", state.version,
              depends=RELATIONS.get(package.name, ""))
        for package, state in facts.packages.value.items()
        if not state.config_files_only
    ))  # fmt: skip


def plan_stages(recipe: Recipe, facts: Facts) -> tuple[StagePlan, ...]:
    return plan(recipe, facts, Node(facts))


def test_drift_table_is_long_and_ids_are_unique() -> None:
    assert len(DRIFTS) > 30
    assert len({drift.id for drift in DRIFTS}) == len(DRIFTS)


def test_core_drifts_cover_every_step() -> None:
    assert {drift.step for drift in DRIFTS if drift.core} == {drift.step for drift in DRIFTS}


@pytest.mark.parametrize("drift", [drift for drift in DRIFTS if drift.facts], ids=lambda drift: drift.id)
def test_drift_is_found_named_and_healed_by_its_plan(drift: Drift) -> None:
    recipe, facts = converged()
    assert drift.facts is not None
    drifted = drift.facts(facts)
    drifted = replace(drifted, dependencies=Known(relations(drifted), "dpkg-status"))
    plans = plan_stages(recipe, drifted)
    (step,) = [step for stage in plans for step in stage.steps if step.step.id == drift.step]
    if drift.answer == "refused":
        assert isinstance(step.outcome, Refusal)
        assert drift.named in f"{step.outcome.why} {step.outcome.hint}"
        return
    if drift.answer == "noted":
        assert isinstance(step.outcome, Planned)
        (note,) = set(step.outcome.notes) - {*collect_notes(plan_stages(recipe, facts))}
        assert drift.named in note
        assert_every_command_shows(note, recipe, drifted)
        return
    assert step.changes, [step.outcome for stage in plans for step in stage.steps]
    for stage in plans:
        drifted = project_changes(drifted, stage.ordered_changes)
    assert not [stage.ordered_changes for stage in plan_stages(recipe, drifted) if stage.ordered_changes]


def test_verify_after_setup_without_changes_plans_no_step_again(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, facts = converged()
    plans = plan_stages(recipe, facts)

    def fail(*_: object) -> None:
        pytest.fail("the steps were planned again, which costs a converged setup a tenth of its time")

    monkeypatch.setattr("gpunode.workflow.verify.state_notes", fail)
    monkeypatch.setattr("gpunode.workflow.verify.plan", fail)
    report = verify(recipe, facts, Node(facts), lambda _: None, planned=plans)
    assert report.notes == tuple(collect_notes(plans))


def assert_every_command_shows(note: str, recipe: Recipe, facts: Facts) -> None:
    """Check that plan, a setup that finds nothing to do, verify and status all show the ``note``."""
    plans = plan_stages(recipe, facts)
    assert note in collect_notes(plans)
    argv = ("setup", "node.toml")
    report = verify(recipe, facts, Node(facts), lambda _: None, planned=plans)
    assert note in report.notes
    done = SetupResult(plans, (), (), (), "", 0.1, facts)
    found = status(facts, Node(facts), Backlog())
    assert note in found.notes
    screens = {
        "plan": plan_lines(recipe, facts, plans, Backlog(), argv, verbose=False),
        "setup": setup_lines(recipe, done, report, None, "setup.log", argv, report.notes),
        "verify": report_lines(recipe, report),
        "status": status_lines(facts, found),
    }
    for verb, lines in screens.items():
        assert note in "\n".join(map(str, lines)), verb


def test_dependency_step_needs_no_driver_steps() -> None:
    recipe, facts = converged()
    (drift,) = (one for one in DRIFTS if one.id == "module-support-purged")
    assert drift.facts is not None
    drifted = drift.facts(facts)
    drifted = replace(drifted, dependencies=Known(relations(drifted), "dpkg-status"))
    plans = plan(recipe, drifted, Node(drifted), ["missing-dependencies"])
    (named,) = [change for stage in plans for change in stage.packages]
    assert str(named.id) == "nvidia-kernel-support"
    without_driver = replace(recipe, skip=tuple(step.id for step in STEPS if step.for_driver), lock=None)
    bare = replace(drifted, devices=Known((), "lspci"))
    assert not [stage.refusal for stage in plan(without_driver, bare, Node(bare)) if stage.refusal]


@pytest.mark.parametrize("drift", DRIFTS, ids=lambda drift: drift.id)
def test_documentation_lists_the_drift(drift: Drift) -> None:
    assert row(drift) in PAGE.read_text("utf-8").splitlines()


def row(drift: Drift) -> str:
    answers = {"healed": "fixes it", "refused": "refuses and says what to do", "noted": "adds a note"}
    return f"| {drift.what} | `{drift.step}` | {answers[drift.answer]} |"
