"""--remove-runfile-driver: the uninstaller runs in a stage before the packages, and only if permitted."""

from __future__ import annotations

from dataclasses import replace

from gpunode.change import CommandChange, Trigger
from gpunode.facts.model import Facts, Known, Platform, Unknown
from gpunode.facts.project import UNINSTALL_RUN_DRIVER, project_changes
from gpunode.steps.driver import CONFLICTS_STEP, RUN_DRIVER_STEP
from tests.unit.steps.machines import machine, planned, recipe, refusal

REMOVING = replace(recipe(), remove_runfile_driver=True)
LIBRARY = "/usr/lib/x86_64-linux-gnu/libcuda.so.535.54.03"


def run_driver() -> Facts:
    return machine(run_installer=True, driver_libraries=frozenset({LIBRARY}))


def test_nothing_is_uninstalled_unasked() -> None:
    outcome = planned(RUN_DRIVER_STEP.plan(recipe(), run_driver()))
    assert (outcome.changes, outcome.is_requested) == ((), False)
    assert "--remove-runfile-driver" in refusal(CONFLICTS_STEP.plan(recipe(), run_driver())).hint


def test_uninstaller_is_run_before_packages_are_planned() -> None:
    outcome = planned(RUN_DRIVER_STEP.plan(REMOVING, run_driver()))
    (change,) = outcome.changes
    assert isinstance(change, CommandChange)
    assert change.subject == "nvidia-installer --uninstall --silent"
    assert change.undo is None
    assert change.triggers == {Trigger("initramfs")}
    assert any("no rollback" in note for note in outcome.change_notes)
    assert outcome.notes == ()
    after = project_changes(run_driver(), outcome.changes)
    assert after.run_installer == Known(False, "plan")
    assert isinstance(after.driver_libraries, Unknown)
    assert planned(RUN_DRIVER_STEP.plan(REMOVING, after)).changes == ()
    planned(CONFLICTS_STEP.plan(REMOVING, after))


def test_success_is_that_the_programs_are_gone() -> None:
    script = UNINSTALL_RUN_DRIVER[2]
    assert script.endswith("test ! -e /usr/bin/nvidia-installer -a ! -e /usr/bin/nvidia-uninstall")


def test_node_without_a_run_driver_needs_nothing() -> None:
    assert planned(RUN_DRIVER_STEP.plan(REMOVING, machine(run_installer=False))).changes == ()
    assert planned(RUN_DRIVER_STEP.plan(REMOVING, machine())).changes == ()


def test_image_refuses_to_run_the_uninstaller() -> None:
    image = replace(run_driver(), platform=Known(Platform("image"), "image"))
    assert "boot the image" in refusal(RUN_DRIVER_STEP.plan(REMOVING, image)).hint
