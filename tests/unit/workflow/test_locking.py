"""A node's versions as a lock; a version missing from the archive is reported as the lock's fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpunode.change import FileState, PackageChange, PackageState
from gpunode.distros.family import TOOLKIT_PACKAGES
from gpunode.errors import Undetermined
from gpunode.facts.model import Facts
from gpunode.package_id import PackageId
from gpunode.packages.simulation import Action, Simulation
from gpunode.recipe import CudaToolkit, GpuDirect, Recipe, VersionLock
from gpunode.steps.packages import CUDA_PROFILE_SCRIPT
from gpunode.workflow.locking import create_lock, missing_versions_error
from gpunode.workflow.plan import plan
from tests.ids import by_id, by_name
from tests.unit.steps.machines import machine, recipe, with_driver
from tests.unit.workflow.nodes import Node

OTHERS = {
    **dict.fromkeys(map(str, TOOLKIT_PACKAGES), "1.20.1-1"),
    "containerd": "1.6.20~ds1-1+b1",
    "runc": "1.1.5-1",
    "libcuda1": PackageState("580.95.05-1", auto=True),
    "libnvidia-egl-gbm1": PackageState("1.1.2-1", auto=True),
    "libxnvctrl0": PackageState("525.85.05-3"),
    "linux-headers-amd64": "6.1.140-1",
}


def lock_node(wanted: Recipe, facts: Facts, solver: object = None) -> VersionLock:
    node = Node(facts, solver=solver)  # type: ignore[arg-type]
    plans = [stage for stage in plan(wanted, facts, node) if stage.stage != "sources"]
    return create_lock(wanted, facts, plans, "f.lock")


def test_lock_holds_requested_packages_and_driver_dependencies() -> None:
    lock = lock_node(recipe("containerd"), with_driver(packages=OTHERS))
    assert (lock.distribution, lock.release, lock.architecture, lock.recipe) == ("debian", "12", "amd64", "test")
    assert by_name(lock.packages) == {
        "nvidia-driver-cuda": "580.95.05-1",
        "nvidia-kernel-open-dkms": "580.95.05-1",
        "nvidia-persistenced": "580.95.05-1",
        "libcuda1": "580.95.05-1",
        "libnvidia-egl-gbm1": "1.1.2-1",
        "containerd": "1.6.20~ds1-1+b1",
        **dict.fromkeys(map(str, TOOLKIT_PACKAGES), "1.20.1-1"),
    }


def test_skipped_packages_are_not_locked() -> None:
    facts = with_driver(packages=OTHERS)
    assert set(lock_node(recipe(version="none"), facts).packages) == set()
    assert (
        PackageId("nvidia-driver-cuda")
        not in lock_node(replace(recipe("containerd"), skip=("driver",)), facts).packages
    )


def test_locked_node_has_nothing_to_do() -> None:
    wanted, facts = recipe("containerd"), with_driver(packages=OTHERS)
    lock = lock_node(wanted, facts)
    again = plan(replace(wanted, lock=lock), facts, Node(facts))
    assert [change for stage in again for change in stage.packages] == []


def test_gpudirect_packages_are_locked_and_handled_by_their_own_step() -> None:
    wanted = replace(recipe("containerd"), gpudirect=GpuDirect(gds=True))
    lock = lock_node(wanted, with_driver(packages={**OTHERS, "nvidia-fs-dkms": "2.29.4-1"}))
    assert lock.packages[PackageId("nvidia-fs-dkms")] == "2.29.4-1"
    older = with_driver(packages={**OTHERS, "nvidia-fs-dkms": "2.28.4-1"})
    again = plan(replace(wanted, lock=lock), older, Node(older))
    assert [
        (s.step.id, str(c.id)) for p in again for s in p.steps for c in s.changes if isinstance(c, PackageChange)
    ] == [("gpudirect", "nvidia-fs-dkms")]


def test_lock_holds_the_components_of_the_cuda_toolkit() -> None:
    wanted = replace(recipe("containerd"), cuda=CudaToolkit("12.6"))
    components = {
        one: PackageState("12.6.77-1", auto=True)
        for one in ("cuda-nvcc-12-6", "libcufft-dev-12-6", "cuda-toolkit-12-6-config-common", "cuda-cccl-12-4")
    }
    packages = {**OTHERS, "cuda-toolkit-12-6": "12.6.3-1", **components}
    files = {CUDA_PROFILE_SCRIPT: FileState(b"")}
    there = with_driver(packages=packages, files=files)
    lock = lock_node(wanted, there)
    named = {name for name in map(str, lock.packages) if name.startswith(("cuda", "libcufft"))}
    assert named == {"cuda-toolkit-12-6", *components} - {"cuda-cccl-12-4"}

    older = PackageState("12.6.20-1", auto=True)
    node = with_driver(packages={**packages, "libcufft-dev-12-6": older}, files=files)
    again = plan(replace(wanted, lock=lock), node, Node(node))
    changed = [(s.step.id, c) for p in again for s in p.steps for c in s.changes if isinstance(c, PackageChange)]
    after = PackageState("12.6.77-1", auto=True)
    assert changed == [("cuda-toolkit", PackageChange(PackageId("libcufft-dev-12-6"), older, after))]


def test_unknown_versions_are_taken_from_the_solver() -> None:
    facts = with_driver(
        packages={name: state for name, state in OTHERS.items() if PackageId(name) not in TOOLKIT_PACKAGES}
    )

    def solver(changes: Sequence[PackageChange]) -> Simulation:
        return Simulation(tuple(Action("install", change.id, "1.19.1-1") for change in changes))

    node = Node(facts, solver=solver)
    plans = plan(recipe("containerd"), facts, node, ["toolkit", "driver", "runtime-install"])
    lock = create_lock(recipe("containerd"), facts, plans, "f.lock")
    assert {lock.packages[name] for name in TOOLKIT_PACKAGES} == {"1.19.1-1"}


def test_lock_without_known_versions_is_refused() -> None:
    with pytest.raises(Undetermined, match="not yet known") as caught:
        lock_node(recipe("containerd"), machine())
    assert "nvidia-driver-cuda" in caught.value.why


def test_locked_version_missing_from_the_archive_is_named() -> None:
    lock = VersionLock("f.lock", "r", "debian", "12", "amd64", by_id({"nvidia-driver-cuda": "580.1-1"}))
    refused = missing_versions_error([(PackageId("nvidia-driver-cuda"), "580.1-1")], "E: Version", lock)
    assert refused is not None
    assert "nvidia-driver-cuda 580.1-1" in refused.what
    assert refused.exit_code == 3


@pytest.mark.parametrize("missing", [[], [("other", "9")], [("nvidia-driver-cuda", "9")]])
def test_unrelated_solver_problem_is_not_blamed_on_the_lock(missing: list[tuple[str, str]]) -> None:
    assert (
        missing_versions_error(
            [(PackageId(name), version) for name, version in missing],
            "E: refused",
            VersionLock("f.lock", "r", "debian", "12", "amd64", by_id({"nvidia-driver-cuda": "1-1"})),
        )
        is None
    )
