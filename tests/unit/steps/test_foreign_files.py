"""Files of a .run driver without its uninstaller: refused before dpkg overwrites files that no rollback can restore."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpunode.change import PackageState
from gpunode.facts.derive import derive
from gpunode.facts.evidence import Capture, GlobMatch, encode_matches
from gpunode.facts.model import Facts, Known, ModuleFile, Unknown, value_or
from gpunode.facts.project import project_changes
from gpunode.package_id import PackageId
from gpunode.steps.driver import CONFLICTS_STEP
from gpunode.steps.packages import REPAIR_STEP
from tests.unit.steps.machines import KERNEL, machine, planned, recipe, refusal, with_driver

CUDA = "/usr/lib/x86_64-linux-gnu/libcuda.so.535.54.03"
NVML = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535.54.03"
LOCAL = "/usr/local/lib/libnvidia-ml.so.1"


@pytest.mark.parametrize("node", [machine, with_driver])
def test_unpackaged_driver_libraries_are_refused_with_the_uninstaller(node: object) -> None:
    module = ModuleFile(KERNEL, f"/lib/modules/{KERNEL}/kernel/drivers/video/nvidia.ko")
    facts: Facts = node(driver_libraries=frozenset({CUDA, NVML}), module_files=(module,))  # type: ignore[operator]
    no = refusal(CONFLICTS_STEP.plan(recipe(), facts))
    assert "535.54.03" in no.what
    assert all(path in no.why for path in (CUDA, NVML, module.path))
    assert "sudo sh NVIDIA-Linux-x86_64-535.54.03.run --uninstall" in no.hint
    older, newer = (CUDA.replace("535.54.03", version) for version in ("535.86.10", "535.183.06"))
    both = refusal(CONFLICTS_STEP.plan(recipe(), machine(driver_libraries=frozenset({older, newer}))))
    assert "535.183.06.run --uninstall" in both.hint


@pytest.mark.parametrize(
    "paths",
    [
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05", "/usr/lib/i386-linux-gnu/libcuda.so.580.95.05"),
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", f"{CUDA}.dpkg-new"),
        (),
    ],
)
def test_libraries_of_the_installed_package_version_are_accepted(paths: tuple[str, ...]) -> None:
    outcome = planned(CONFLICTS_STEP.plan(recipe(), with_driver(driver_libraries=frozenset(paths))))
    assert (outcome.changes, outcome.notes) == ((), ())


def test_older_package_is_purged_with_its_library() -> None:
    old = machine(packages={"libcuda1": "535.54.03-1"}, driver_libraries=frozenset({CUDA}))
    assert planned(CONFLICTS_STEP.plan(recipe(), old)).changes


def test_residue_of_a_purged_package_owns_no_library() -> None:
    residue = {"libcuda1": PackageState("535.54.03-1", config_files_only=True)}
    refusal(CONFLICTS_STEP.plan(recipe(), machine(packages=residue, driver_libraries=frozenset({CUDA}))))


@pytest.mark.parametrize("fact", [Known(True, "dpkg-status"), Unknown("not read", "dpkg-updates")])
def test_interrupted_upgrade_may_leave_libraries_of_both_versions(fact: Known[bool] | Unknown) -> None:
    """The same command must resume: it repairs first, then checks again."""
    cut = with_driver(driver_libraries=frozenset({CUDA}), packages_interrupted=fact)
    planned(CONFLICTS_STEP.plan(recipe(), cut))
    if isinstance(fact, Known):
        planned(CONFLICTS_STEP.plan(recipe(), project_changes(cut, planned(REPAIR_STEP.plan(recipe(), cut)).changes)))
    whole = replace(cut, packages_interrupted=Known(False, "dpkg-status"))
    refusal(CONFLICTS_STEP.plan(recipe(), whole))


def test_foreign_libraries_beside_unconfigured_packages_are_refused() -> None:
    """Such packages are unpacked and recorded; without their repair, there is no second check."""
    cut = with_driver(driver_libraries=frozenset({CUDA}), packages_interrupted=Known(True, "dpkg-status"))
    refusal(CONFLICTS_STEP.plan(recipe(), replace(cut, unconfigured=frozenset({PackageId("nvidia-kernel-dkms")}))))


def test_package_of_any_name_may_own_a_driver_library() -> None:
    """The driver of vGPU guests comes in one package, whose name no table of drivers has."""
    grid = machine(packages={"nvidia-linux-grid-535": "535.54.03"}, driver_libraries=frozenset({CUDA, NVML}))
    planned(CONFLICTS_STEP.plan(recipe(), grid))


def test_cuda_compat_package_owns_no_driver_library() -> None:
    node = machine(packages={"cuda-compat-12-2": "535.54.03-1"}, driver_libraries=frozenset({CUDA}))
    refusal(CONFLICTS_STEP.plan(recipe(), node))


def test_library_in_a_path_that_ld_so_prefers_is_noted() -> None:
    (note,) = planned(CONFLICTS_STEP.plan(recipe(), with_driver(driver_libraries=frozenset({LOCAL})))).notes
    assert note.startswith(f"{LOCAL} belongs to no package")


def test_symlinks_are_not_counted_as_driver_libraries() -> None:
    found = (GlobMatch(CUDA), GlobMatch(LOCAL, link="libnvidia-ml.so.580.95.05"))
    listing = Capture("glob", "ok", encode_matches(iter(found)))
    keys = ("cuda-libraries", "nvml-files", "libcuda-files-local", "nvml-files-local")
    facts = derive(dict.fromkeys(keys, listing))
    assert value_or(facts.driver_libraries, frozenset[str]()) == {CUDA}
