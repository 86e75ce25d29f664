"""plan: the steps, their order, and the content of the plan before the index is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings

from gpunode.change import FileState, KnownAfter, PackageChange, PackageState
from gpunode.facts.model import Facts
from gpunode.facts.probes import MIG_BOOT_DROP_IN_FILE
from gpunode.outcome import Planned
from gpunode.package_id import PackageId
from gpunode.packages.simulation import Action, Simulation
from gpunode.recipe import Recipe
from gpunode.steps.gpudirect import GPUDIRECT_MODULES_FILE
from gpunode.steps.packages import CUDA_PROFILE_SCRIPT
from gpunode.steps.table import STAGES, STEPS
from gpunode.workflow.converge import StagePlan, collect_notes, plan_stage, raise_refusal, state_notes
from gpunode.workflow.plan import has_pending_work, plan
from tests.laws.nodes import facts, recipes
from tests.unit.steps.machines import CONTAINERD, machine, names, recipe, with_driver
from tests.unit.workflow.nodes import Node


def step_ids(plans: Sequence[StagePlan]) -> list[str]:
    return [step.step.id for stage in plans for step in stage.steps]


def packages(plans: Sequence[StagePlan]) -> list[PackageChange]:
    return [change for stage in plans for change in stage.packages]


def test_steps_are_ordered_by_stage_with_unique_ids() -> None:
    assert [step.stage for step in STEPS] == sorted((step.stage for step in STEPS), key=STAGES.index)
    assert len({step.id for step in STEPS}) == len(STEPS)


# It completes whatever other steps have installed.
COMPLETES = "missing-dependencies"


@given(facts(), recipes())
@settings(max_examples=50, deadline=None)
def test_every_installed_package_belongs_to_its_step(node: Facts, desired: Recipe) -> None:
    """Otherwise a lock file omits it, or treats it as part of the driver."""
    for stage in plan(desired, node, Node(node)):
        for row in stage.steps:
            outcome = row.outcome
            changes = outcome.changes if isinstance(outcome, Planned) else ()
            installs = [one.id for one in changes if isinstance(one, PackageChange) and one.after is not None]
            if row.step.for_driver or row.step.id == COMPLETES:
                continue
            owns = row.step.packages.is_owned if row.step.packages else frozenset[PackageId]().__contains__
            assert [one for one in installs if not owns(one)] == [], row.step.id


def test_no_package_belongs_to_two_steps() -> None:
    desired = recipe("docker")
    rows = [step.packages for step in STEPS if step.packages]
    node = with_driver()
    for package in (one for row in rows for one in row.list_wanted(desired, node)):
        assert sum(row.is_owned(package) for row in rows) <= 1, package


def test_undo_keeps_the_archive_of_every_package_that_stays() -> None:
    users = [step for step in STEPS if step.packages]
    for step in (step for step in STEPS if step.stage == "sources"):
        assert {one.id for one in users if step.id in one.needs} <= set(step.serves), step.id
    assert {one for step in STEPS for one in step.serves} <= {step.id for step in users}


def test_only_option_plans_the_named_steps_and_detect() -> None:
    assert step_ids(plan(recipe("docker"), machine(), Node(machine()), ["toolkit"])) == ["detect", "toolkit"]


def test_skip_option_overrides_only() -> None:
    skipping = replace(recipe("docker"), skip=("toolkit", "detect"))
    assert step_ids(plan(skipping, machine(), Node(machine()), ["toolkit"])) == ["detect"]
    assert "toolkit" not in step_ids(plan(skipping, machine(), Node(machine())))


def test_refused_step_ends_the_plan() -> None:
    plans = plan(recipe("docker"), machine(gpus=()), Node(machine(gpus=())))
    assert step_ids(plans) == ["detect"]
    with pytest.raises(Exception, match="no NVIDIA GPU"):
        raise_refusal(plans)


def test_only_headers_are_resolved_before_the_driver_index_is_read() -> None:
    """Headers come from the distribution, whose index exists; the driver from sources that are not added yet."""
    asked: set[str] = set()

    def solver(changes: Sequence[PackageChange]) -> Simulation:
        asked.update(str(change.id) for change in changes)
        return Simulation(())

    found = packages(plan(recipe("docker"), machine(), Node(machine(), solver=solver)))
    assert {str(change.id) for change in found if isinstance(change.after, KnownAfter)} >= {"nvidia-driver-cuda"}
    assert asked
    assert all(name.startswith("linux-headers-") for name in asked)


def test_missing_headers_are_reported_before_the_driver_index_is_read() -> None:
    problem = "E: Unable to locate package linux-headers-6.1.0-18-amd64"
    host = Node(machine(), solver=lambda _changes: Simulation((), problem))
    assert [stage.unresolved for stage in plan(recipe("docker"), machine(), host) if stage.unresolved] == [problem]


def test_plan_has_exact_versions_once_sources_are_in_place() -> None:
    def solver(changes: Sequence[PackageChange]) -> Simulation:
        return Simulation(tuple(Action("install", change.id, "1.6.20~ds1") for change in changes))

    node = with_driver("580.95.05")
    found = packages(plan(recipe("containerd"), node, Node(node, solver=solver), ["runtime-install"]))
    assert [change.after for change in found] == [PackageState("1.6.20~ds1")]


def test_apt_refusal_is_quoted_in_the_plan() -> None:
    node = with_driver("580.95.05")
    host = Node(node, solver=lambda _changes: Simulation((), "E: Unable to correct problems"))
    plans = plan(recipe("containerd"), node, host, ["runtime-install"])
    (stage,) = (stage for stage in plans if stage.unresolved)
    assert stage.unresolved == "E: Unable to correct problems"
    heading, quoted = stage.index_note.split("\n")
    assert "the node's package index does not allow this; setup refreshes it" in heading
    assert quoted == stage.unresolved
    assert has_pending_work(plans)


@settings(deadline=None)
@given(recipes(), facts())
def test_every_step_has_a_reason_and_no_package_appears_twice(wanted: Recipe, node: Facts) -> None:
    plans = plan(wanted, node, Node(node))
    for stage in plans:
        named = names(stage.ordered_changes)
        assert len(named) == len(set(named)), named
        for step in stage.steps:
            said = getattr(step.outcome, "reason", "") or getattr(step.outcome, "why", "")
            assert said, step.step.id
            assert "\n" not in getattr(step.outcome, "reason", "")


@settings(deadline=None)
@given(recipes(), facts())
def test_only_driver_packages_are_purged(wanted: Recipe, node: Facts) -> None:
    gone = {str(change.id) for change in packages(plan(wanted, node, Node(node))) if change.after is None}
    kept = {"containerd", "docker.io", "dpkg", "linux-image-amd64"}
    assert not gone & kept
    assert not any("container" in name for name in gone)


def test_file_managed_by_another_tool_is_noted_before_it_is_changed() -> None:
    text = b"# rack 7\n# Ansible managed\nversion = 2\n"
    plans = plan(recipe("containerd"), with_driver(files={CONTAINERD: text}), Node(machine()))
    (note,) = [note for note in collect_notes(plans) if CONTAINERD in note]
    assert f"{CONTAINERD}:2" in note
    assert "Ansible" in note
    assert "make the change there, too" in note


def test_do_not_edit_comment_is_quoted_without_guessing_a_tool() -> None:
    text = b"# site config, do not edit without ticket OPS-1234\nversion = 2\n"
    plans = plan(recipe("containerd"), with_driver(files={CONTAINERD: text}), Node(machine()))
    (note,) = [note for note in collect_notes(plans) if f"{CONTAINERD}:1" in note]
    assert "'# site config, do not edit without ticket OPS-1234'" in note
    assert "if a tool writes this file" in note


def test_unchanged_managed_file_is_not_noted() -> None:
    facts = machine(files={"/etc/modprobe.d/site.conf": b"# Ansible managed\n"})
    assert not [note for note in collect_notes(plan(recipe("containerd"), facts, Node(facts))) if "Ansible" in note]


@pytest.mark.parametrize("path", [CUDA_PROFILE_SCRIPT, MIG_BOOT_DROP_IN_FILE, GPUDIRECT_MODULES_FILE])
def test_file_that_an_earlier_recipe_left_is_noted(path: str) -> None:
    """Each login has its CUDA in PATH, each boot partitions the GPUs, although the node matches the recipe."""
    bare = Recipe("bare")
    left = machine(files={path: FileState(b"x\n")})
    (note,) = (note for note in state_notes(bare, left) if path in note)
    assert f"`sudo rm {path}`" in note
    assert not [note for note in state_notes(bare, machine()) if path in note]
    assert not [note for note in state_notes(bare, left, is_users_recipe=False) if path in note]
    assert note in collect_notes([plan_stage(bare, left, stage) for stage in STAGES])


@pytest.mark.parametrize(
    ("path", "installed", "named"),
    [
        (GPUDIRECT_MODULES_FILE, ("nvidia-fs-dkms", "gdrdrv-dkms"), "gdrdrv-dkms nvidia-fs-dkms"),
        (CUDA_PROFILE_SCRIPT, ("cuda-toolkit-12-6",), "cuda-toolkit-12-6"),
    ],
)
def test_packages_that_an_earlier_recipe_left_are_noted_with_their_removal(
    path: str, installed: tuple[str, ...], named: str
) -> None:
    versions = {**dict.fromkeys(installed, PackageState("1")), "cuda-nvcc-12-6": PackageState("1", auto=True)}
    left = machine(files={path: FileState(b"x\n")}, packages=versions)
    (note,) = (note for note in state_notes(Recipe("bare"), left) if path in note)
    assert f"; if nothing else needs its packages: `sudo apt-get purge {named}`" in note
    theirs = machine(packages=versions)
    assert not [note for note in state_notes(Recipe("bare"), theirs) if "purge" in note], "gpunode's file marks them"
