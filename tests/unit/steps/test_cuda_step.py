from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpunode.change import FileChange, FileState, PackageChange, PackageState
from gpunode.facts.model import Distro, Facts, Known, LoadedDriver, Platform
from gpunode.facts.project import project_changes
from gpunode.outcome import Planned
from gpunode.package_id import PackageId
from gpunode.recipe import CudaToolkit, Recipe, VersionLock
from gpunode.steps.packages import CUDA_PROFILE_SCRIPT, CUDA_REPOSITORY_STEP, CUDA_TOOLKIT_STEP
from gpunode.workflow.converge import plan_stage
from tests.ids import by_id
from tests.unit.steps.machines import B200, GTX_1080, T4, UBUNTU, gpu, machine, planned, recipe, refusal, with_driver

_PIN = "/etc/apt/preferences.d/gpunode-cuda"


def _recipe(release: str = "auto", *parts: str, **driver: Any) -> Recipe:
    return replace(recipe(**driver), cuda=CudaToolkit(release, parts))


def _machine(*ids: str, files: Mapping[str, bytes | FileState] | None = None, **more: Any) -> Facts:
    facts = machine(gpus=tuple(gpu(one) for one in ids or (T4,)), files=files, **more)
    return replace(facts, files={CUDA_PROFILE_SCRIPT: Known(None, "x"), _PIN: Known(None, "x"), **facts.files})


def _installed(outcome: Planned) -> list[str]:
    return [str(change.id) for change in PackageChange.of_kind(outcome.changes) if change.action == "install"]


@pytest.mark.parametrize(
    ("ids", "asked", "driver", "release"),
    [
        ((T4,), "auto", "auto", "13-2"),  # production driver 595
        ((T4,), "auto", "580", "13-0"),
        ((GTX_1080,), "auto", "auto", "12-9"),  # CUDA 13 cannot compile for Pascal
        ((T4, GTX_1080), "auto", "auto", "12-9"),
        ((T4,), "12.4", "auto", "12-4"),
        ((T4,), "auto", "525", "12-0"),  # no version of it is in the table
        ((), "12.9", "none", "12-9"),  # a machine without a GPU that compiles
    ],
)
def test_the_release_fits_the_oldest_gpu_and_the_driver(
    ids: tuple[str, ...], asked: str, driver: str, release: str
) -> None:
    facts = machine(gpus=tuple(map(gpu, ids)))
    facts = replace(facts, files={CUDA_PROFILE_SCRIPT: Known(None, "x"), **facts.files})
    outcome = planned(CUDA_TOOLKIT_STEP.plan(_recipe(asked, version=driver), facts))
    assert _installed(outcome) == [f"cuda-toolkit-{release}"]
    (profile,) = FileChange.of_kind(outcome.changes)
    assert isinstance(profile.after, FileState)
    text = profile.after.content.decode()
    assert f"/usr/local/cuda-{release.replace('-', '.')}/bin" in text
    assert "LD_LIBRARY_PATH" not in text


@pytest.mark.parametrize(
    ("ids", "asked", "driver", "reason"),
    [
        ((GTX_1080,), "13.0", "auto", "does not compile for GeForce GTX 1080"),
        ((T4,), "13.1", "535", "does not run on driver 535"),
        ((T4,), "12.7", "auto", "there is no CUDA 12.7"),
        ((T4,), "11.2", "auto", "CUDA 11.2 is in no repository"),
        # Kepler: the last release for it is older than any repository that gpunode uses.
        (("0fc6",), "auto", "none", "CUDA 10.2 is in no repository"),
        # Newer than the tables: such a release needs at least what the newest listed one needs.
        ((GTX_1080,), "14.1", "auto", "CUDA 14.1 does not compile for GeForce GTX 1080"),
        ((T4,), "14.1", "535", "CUDA 14.1 does not run on driver"),
    ],
)
def test_a_release_that_cannot_work_is_refused(ids: tuple[str, ...], asked: str, driver: str, reason: str) -> None:
    refused = refusal(CUDA_TOOLKIT_STEP.plan(_recipe(asked, version=driver), _machine(*ids)))
    assert reason in refused.what
    assert "cuda.version" in refused.hint


def test_installed_release_that_no_repository_has_is_kept() -> None:
    there = _machine(T4, packages={"cuda-toolkit-11-2": "11.2.2-1"})
    assert _installed(planned(CUDA_TOOLKIT_STEP.plan(_recipe(), there))) == []


def test_cuda_newer_than_the_driver_or_the_tables_is_noted() -> None:
    (note,) = planned(CUDA_TOOLKIT_STEP.plan(_recipe("13.5"), _machine())).notes
    assert "supports CUDA 13.2 in full" in note
    outcome = planned(CUDA_TOOLKIT_STEP.plan(_recipe("14.1"), _machine()))
    assert _installed(outcome) == ["cuda-toolkit-14-1"]
    assert "newer than gpunode's tables" in outcome.notes[0]


def test_a_release_older_than_the_gpu_is_noted_and_not_kept() -> None:
    (note,) = planned(CUDA_TOOLKIT_STEP.plan(_recipe("12.4"), _machine(B200))).notes
    assert "does not compile for B200" in note
    assert "12.8 and newer do" in note
    there = _machine(B200, packages={"cuda-toolkit-12-4": "12.4.1-1"})
    assert _installed(planned(CUDA_TOOLKIT_STEP.plan(_recipe(), there))) == ["cuda-toolkit-13-2"]
    rubin = _machine("3002", packages={"cuda-toolkit-13-2": "13.2.0-1"})
    assert _installed(planned(CUDA_TOOLKIT_STEP.plan(_recipe(), rubin))) == ["cuda-toolkit-13-5"]


def test_cuda_parts_are_installed_without_the_driver_package() -> None:
    outcome = planned(CUDA_TOOLKIT_STEP.plan(_recipe("12.9", "nvcc", "cublas"), _machine()))
    assert _installed(outcome) == ["cuda-nvcc-12-9", "cuda-cudart-dev-12-9", "libcublas-12-9", "libcublas-dev-12-9"]


def test_an_installed_release_is_kept_and_others_stay_beside_it() -> None:
    facts = _machine(packages={"cuda-toolkit-12-4": "12.4.1-1", "cuda-toolkit-12-6": "12.6.3-1"})
    outcome = planned(CUDA_TOOLKIT_STEP.plan(_recipe(), facts))
    assert _installed(outcome) == []
    assert "cuda-12.6/bin" in "".join(FileChange.of_kind(outcome.changes)[0].diff())
    assert "CUDA 12.4 stays beside it" in outcome.notes[0]
    newer = planned(CUDA_TOOLKIT_STEP.plan(replace(_recipe(), upgrade=True), facts))
    assert _installed(newer) == ["cuda-toolkit-13-2"]


def test_a_plan_of_the_planned_state_is_empty() -> None:
    facts = _machine()
    outcome = planned(CUDA_TOOLKIT_STEP.plan(_recipe(), facts))
    again = planned(CUDA_TOOLKIT_STEP.plan(_recipe(), project_changes(facts, outcome.changes)))
    assert again.changes == ()


def test_a_driver_of_other_packages_keeps_nvidias_repository_out() -> None:
    packages = {"libcuda1": "535.183.01-1", "nvidia-kernel-dkms": "535.183.01-1"}
    facts = replace(_machine(packages=packages), loaded_driver=Known(LoadedDriver("535.183.01", False), "proc"))
    assert "nvidia-cuda-toolkit" in refusal(CUDA_TOOLKIT_STEP.plan(_recipe(version="none"), facts)).hint
    alone = planned(CUDA_REPOSITORY_STEP.plan(_recipe(version="none"), _machine()))
    assert alone.changes, "a machine that only compiles needs the repository without a driver"


def test_a_jetson_gets_jetpacks_toolkit() -> None:
    jetson = replace(_machine(), platform=Known(Platform("jetson", "tegra234"), "virt"))
    assert "nvidia-jetpack" in refusal(CUDA_TOOLKIT_STEP.plan(_recipe(version="none"), jetson)).hint


def test_cuda_pin_excludes_ubuntus_packages_of_the_same_name() -> None:
    facts = replace(_machine(), distro=Known(UBUNTU, "os-release"))
    outcome = planned(CUDA_TOOLKIT_STEP.plan(_recipe("13.3"), facts))
    pin = next(change for change in FileChange.of_kind(outcome.changes) if change.path == _PIN)
    text = "".join(pin.diff())
    assert "cuda-*-13-3:any lib*-13-3:any" in text
    assert "release o=/^(Ubuntu)/" in text


def test_a_lock_names_the_version_of_every_package() -> None:
    lock = VersionLock("node.lock", "r", "debian", "12", "amd64", by_id({"cuda-toolkit-12-9": "12.9.1-1"}))
    facts = replace(_machine(), devices=Known((), "lspci"))
    outcome = planned(CUDA_TOOLKIT_STEP.plan(replace(_recipe("12.9", version="none"), lock=lock), facts))
    (change,) = PackageChange.of_kind(outcome.changes)
    assert change.after == PackageState("12.9.1-1")
    refused = refusal(CUDA_TOOLKIT_STEP.plan(replace(_recipe("12.8", version="none"), lock=lock), facts))
    assert "has no version of cuda-toolkit-12-8" in refused.what


def test_a_recipe_without_the_key_asks_for_nothing() -> None:
    outcome = planned(CUDA_TOOLKIT_STEP.plan(recipe(), machine()))
    assert not outcome.changes
    assert not outcome.is_requested


def test_the_toolkit_alone_on_a_managed_node_is_not_refused() -> None:
    facts = with_driver("595.91.07", files={CUDA_PROFILE_SCRIPT: FileState(b"")})
    (one,) = (
        p for p in plan_stage(_recipe(), facts, "packages", ("cuda-toolkit",)).steps if p.step is CUDA_TOOLKIT_STEP
    )
    assert _installed(planned(one.outcome)) == ["cuda-toolkit-13-2"]


def test_an_upgrade_keeps_a_newer_release_that_works() -> None:
    facts = _machine(packages={"cuda-toolkit-13-5": "13.5.0-1"})
    plain, upgraded = (planned(CUDA_TOOLKIT_STEP.plan(replace(_recipe(), upgrade=one), facts)) for one in (False, True))
    assert plain.reason == upgraded.reason
    assert [str(change.id) for change in PackageChange.of_kind(upgraded.changes)] == ["cuda-toolkit-13-5"]


def test_an_automatic_release_is_the_locks() -> None:
    lock = VersionLock("node.lock", "r", "debian", "12", "amd64", by_id({"cuda-toolkit-12-6": "12.6.3-1"}))
    facts = _machine(packages={"cuda-toolkit-12-9": "12.9.1-1"})
    outcome = planned(CUDA_TOOLKIT_STEP.plan(replace(_recipe(version="none"), lock=lock), facts))
    assert _installed(outcome) == ["cuda-toolkit-12-6"]


def test_an_installed_part_keeps_its_release() -> None:
    facts = _machine(packages={"cuda-cudart-12-6": "12.6.77-1"})
    outcome = planned(CUDA_TOOLKIT_STEP.plan(_recipe("auto", "cudart"), facts))
    assert _installed(outcome) == []


@pytest.mark.parametrize("distro", [Distro("kali", "2026", "", "Kali", ("debian",)), Distro("debian", "99", "", "D")])
def test_a_refusal_without_a_driver_does_not_advise_to_drop_it(distro: Distro) -> None:
    refused = refusal(
        CUDA_REPOSITORY_STEP.plan(_recipe(version="none"), replace(_machine(), distro=Known(distro, "x")))
    )
    assert 'driver.version = "none"' not in refused.hint
    assert "cuda.version" in refused.hint


def test_release_of_a_run_installer_is_not_overwritten() -> None:
    paths = frozenset({"/usr/local/cuda-12.9/bin/nvcc", "/usr/local/cuda-12.9/bin/cuda-uninstaller"})
    refused = refusal(CUDA_TOOLKIT_STEP.plan(_recipe("12.9"), _machine(leftovers=paths)))
    assert refused.what == "CUDA toolkit 12.9 in /usr/local/cuda-12.9 belongs to no package"
    assert "`sudo /usr/local/cuda-12.9/bin/cuda-uninstaller`" in refused.hint
    assert _installed(planned(CUDA_TOOLKIT_STEP.plan(_recipe("12.8"), _machine(leftovers=paths)))) == [
        "cuda-toolkit-12-8"
    ]
    installs = (PackageChange(PackageId("libcuda1"), None, PackageState("595.91.07-1")),)
    projected = project_changes(_machine(leftovers=paths), installs)
    assert refusal(CUDA_TOOLKIT_STEP.plan(_recipe("12.9"), projected)).what == refused.what, "with a driver before it"
    # dpkg unpacks files before it records the package.
    cut = _machine(leftovers=paths, packages_interrupted=Known(value=True, probe="x"))
    assert planned(CUDA_TOOLKIT_STEP.plan(_recipe("12.9"), cut)).changes
    ours = _machine(leftovers=paths, packages={"cuda-toolkit-12-9": "12.9.1-1", "cuda-nvcc-12-9": "12.9.86-1"})
    assert not _installed(planned(CUDA_TOOLKIT_STEP.plan(_recipe("12.9"), ours)))
