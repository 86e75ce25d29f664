"""The program configured for the runtime must exist, or be installed before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpunode.change import CommandChange, FileChange, FileState, PackageChange, PackageState, sort_changes
from gpunode.distros.family import TOOLKIT_PACKAGES
from gpunode.facts.model import Facts, Known
from gpunode.facts.project import project_changes
from gpunode.package_id import PackageId
from gpunode.packages.deb.status import DIVERSIONS_FILE
from gpunode.recipe import Recipe, Toolkit
from gpunode.steps.runtime import RUNTIME_CONFIG_STEP
from gpunode.steps.toolkit import TOOLKIT_STEP
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


@pytest.mark.parametrize("package", ["nvidia_container_toolkit", "libnvidia_container1"])
def test_runtime_binary_lost_by_its_package_comes_back_by_a_setup(package: str) -> None:
    left = node(**{package: "1.18.0-1"})
    assert "sudo gpunode setup --runtime=docker" in refusal(RUNTIME_CONFIG_STEP.plan(default(), left)).hint


def test_program_deleted_from_the_toolkit_is_installed_anew() -> None:
    whole = machine(packages=dict.fromkeys(map(str, TOOLKIT_PACKAGES), "1.18.0-1"))
    lost = replace(whole, lost_programs=Known(("/usr/bin/nvidia-ctk",), "x"), toolkit_program=MISSING)
    (anew,) = planned(TOOLKIT_STEP.plan(recipe("docker"), lost)).changes
    assert anew.subject.startswith("apt-get install --reinstall nvidia-container-toolkit=1.18.0-1 ")
    after = project_changes(lost, [anew])
    assert not planned(TOOLKIT_STEP.plan(recipe("docker"), after)).changes
    assert planned(RUNTIME_CONFIG_STEP.plan(default(), after)).changes


def test_setup_that_restores_a_program_leaves_nothing_of_the_toolkit_to_do() -> None:
    """A pending mark, or an upgrade without a newer version, would end the setup midway."""
    packages = {one: PackageState("1.18.0-1", auto=True) for one in map(str, TOOLKIT_PACKAGES)}
    lost = machine(packages=packages, lost_programs=("/usr/bin/nvidia-ctk",), toolkit_program=True)
    for upgrade in (False, True):
        changes = planned(TOOLKIT_STEP.plan(replace(recipe("docker"), upgrade=upgrade), lost)).changes
        assert any("--reinstall" in change.subject for change in changes)
        assert not planned(TOOLKIT_STEP.plan(recipe("docker"), project_changes(lost, changes))).changes


@pytest.mark.parametrize("version", ["auto", "1.19.1"])
def test_program_lost_beside_another_version_comes_back_in_one_run(version: str) -> None:
    """apt does not unpack a package that already has the version, so changing the others would not restore it."""
    packages = {**dict.fromkeys(map(str, TOOLKIT_PACKAGES), "1.19.1-1"), str(TOOLKIT_PACKAGES[3]): "1.18.0-1"}
    asked = replace(recipe("docker"), toolkit=Toolkit(version))
    facts = machine(packages=packages, lost_programs=("/usr/bin/nvidia-ctk",))
    changes = planned(TOOLKIT_STEP.plan(asked, facts)).changes
    assert TOOLKIT_PACKAGES[3] in {change.id for change in PackageChange.of_kind(changes)}
    (anew,) = CommandChange.of_kind(changes)
    named = "nvidia-container-toolkit-base" if version == "auto" else "nvidia-container-toolkit-base=1.19.1-1"
    assert named in anew.argv
    assert sort_changes(changes)[-1] == anew


def test_diverted_program_of_the_toolkit_is_not_installed_again() -> None:
    """dpkg would write it to the diverted place again."""
    path = "/usr/bin/nvidia-container-runtime-hook"
    diverted = machine(
        packages=dict.fromkeys(map(str, TOOLKIT_PACKAGES), "1.18.0-1"),
        files={DIVERSIONS_FILE: f"{path}\n{path}.distrib\n:\n".encode()},
        lost_programs=(path,),
    )
    outcome = planned(TOOLKIT_STEP.plan(recipe("docker"), diverted))
    assert outcome.changes == ()
    assert outcome.notes[0].startswith(f"{path} is diverted")


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
