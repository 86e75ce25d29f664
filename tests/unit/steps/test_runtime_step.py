"""The program that the runtime is told to run must be there, or come before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpunode.change import FileChange, FileState, PackageChange, PackageState
from gpunode.facts.model import Facts, Known
from gpunode.facts.project import project_changes
from gpunode.package_id import PackageId
from gpunode.recipe import Recipe
from gpunode.steps.runtime import RUNTIME_CONFIG_STEP
from tests.unit.steps.machines import CONTAINERD, machine, planned, recipe, refusal

MISSING = Known(value=False, probe="toolkit-program")


def default() -> Recipe:
    wanted = recipe("docker")
    return replace(wanted, runtime=replace(wanted.runtime, set_as_default=True))


def node(**packages: str) -> Facts:
    named = {name.replace("_", "-"): version for name, version in packages.items()}
    return replace(machine(packages={"docker.io": "26", **named}), toolkit_program=MISSING)


def test_default_runtime_without_its_binary_is_refused() -> None:
    no = refusal(RUNTIME_CONFIG_STEP.plan(default(), node()))
    assert "nvidia-container-runtime is not installed" in no.what
    assert "sudo gpunode setup --runtime=docker --only=toolkit-repository --only=toolkit" in no.hint
    notes = planned(RUNTIME_CONFIG_STEP.plan(recipe("docker"), node())).change_notes
    assert any("is not installed" in note for note in notes)


def test_runtime_binary_installed_in_the_same_run_is_not_missing() -> None:
    change = PackageChange(PackageId("nvidia-container-toolkit"), None, PackageState("1.18.0-1"))
    assert planned(RUNTIME_CONFIG_STEP.plan(default(), project_changes(node(), [change]))).changes


def test_runtime_binary_lost_by_its_package_comes_back_by_a_reinstall() -> None:
    """setup --only toolkit would find the package, and nothing to do."""
    lost = node(nvidia_container_toolkit="1.18.0-1")
    again = "sudo apt-get install --reinstall nvidia-container-toolkit=1.18.0-1"
    assert again in refusal(RUNTIME_CONFIG_STEP.plan(default(), lost)).hint
    notes = planned(RUNTIME_CONFIG_STEP.plan(recipe("docker"), lost)).change_notes
    assert any(f"`{again}` installs it" in note for note in notes)


def test_library_of_the_toolkit_alone_brings_no_runtime_binary() -> None:
    left = node(libnvidia_container1="1.18.0-1")
    assert "sudo gpunode setup --runtime=docker" in refusal(RUNTIME_CONFIG_STEP.plan(default(), left)).hint


@pytest.mark.parametrize("state", [FileState(b"", 0o644, uid=1000), FileState(b"", 0o664, gid=1000)])
def test_drop_in_beside_a_writable_file_belongs_to_root(state: FileState) -> None:
    present = machine(packages={"containerd": "2.1.9-1", "nvidia-container-toolkit": "1.20.1-1"})
    present = replace(present, files={**present.files, CONTAINERD: Known(state, "file")})
    (*files,) = planned(RUNTIME_CONFIG_STEP.plan(recipe("containerd", version="none"), present)).changes
    after = {change.path: change.after for change in files if isinstance(change, FileChange)}
    assert len(after) == 2
    for path, made in after.items():
        assert isinstance(made, FileState)
        assert (made.uid, made.mode) == (0, 0o644), path
