"""Requirements of GPUDirect on a node, what is installed and loaded for it, and refusals with their reasons."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpunode.catalog.gpudirect import FEATURES, missing_source_hint
from gpunode.change import FileChange, KnownAfter, ModuleChange, PackageChange, PackageState, ServiceChange
from gpunode.facts.model import Distro, Facts, Kernels, Known, LoadedDriver, ModuleFile, Platform
from gpunode.facts.project import project_changes
from gpunode.outcome import Refusal
from gpunode.package_id import PackageId
from gpunode.recipe import GpuDirect, Recipe, VersionLock
from gpunode.steps.gpudirect import GPUDIRECT_MODULES_FILE, GPUDIRECT_MODULES_STEP, GPUDIRECT_STEP
from gpunode.workflow.converge import project_stage
from gpunode.workflow.plan import plan
from tests.ids import by_id
from tests.unit.steps.machines import (
    DEBIAN,
    GTX_1080,
    KERNEL,
    UBUNTU,
    files,
    gpu,
    machine,
    planned,
    recipe,
    refusal,
    unit,
    with_driver,
)
from tests.unit.workflow.nodes import Node

DMA_BUF, PEERMEM = GpuDirect(rdma="dma-buf"), GpuDirect(rdma="peermem")
GDS, GDRCOPY = GpuDirect(gds=True), GpuDirect(gdrcopy=True)
ALL = GpuDirect(rdma="peermem", gds=True, gdrcopy=True)
OFED = {"mlnx-ofed-kernel-dkms": "24.10.OFED.24.10.1.1.4.1-1"}
GDRCOPY_UNIT = "gdrdrv.service"


def asking(gpudirect: GpuDirect, **driver: Any) -> Recipe:
    return replace(recipe(**driver), gpudirect=gpudirect)


def test_dma_buf_needs_no_package_on_a_fitting_kernel_and_driver() -> None:
    node = with_driver()
    outcome = planned(GPUDIRECT_STEP.plan(asking(DMA_BUF), node))
    assert (outcome.changes, planned(GPUDIRECT_MODULES_STEP.plan(asking(DMA_BUF), node)).changes) == ((), ())
    assert outcome.reason == "GPUDirect RDMA by DMA-BUF: no package needed, kernel and driver fit"


def test_gpudirect_packages_are_installed_and_modules_loaded() -> None:
    node = with_driver(packages=OFED)
    wanted = asking(ALL)

    packages = planned(GPUDIRECT_STEP.plan(wanted, node)).changes
    modules = planned(GPUDIRECT_MODULES_STEP.plan(wanted, project_changes(node, packages))).changes

    assert {str(c.id): c.after for c in packages if isinstance(c, PackageChange)} == {
        "nvidia-fs-dkms": KnownAfter(why="gds"),
        "gdrdrv-dkms": KnownAfter(why="gdrcopy"),
        "libgdrapi": KnownAfter(why="gdrcopy"),
    }
    assert [c.module for c in modules if isinstance(c, ModuleChange)] == ["nvidia_peermem", "nvidia_fs", "gdrdrv"]
    content = getattr(files(modules)[GPUDIRECT_MODULES_FILE].after, "content").decode()  # noqa: B009 - a union
    assert content.splitlines()[1:] == ["nvidia_peermem", "nvidia_fs", "gdrdrv"]


@pytest.mark.parametrize("wanted", [DMA_BUF, PEERMEM, GDS, GDRCOPY, ALL])
@pytest.mark.parametrize("node", [with_driver(packages=OFED), machine(packages=OFED, modules=frozenset({"nouveau"}))])
def test_gpudirect_plan_is_idempotent(wanted: GpuDirect, node: Facts) -> None:
    after = node
    for stage in plan(asking(wanted), node, Node(node)):
        assert stage.refusal is None, stage.refusal
        after = project_stage(after, stage)
    again = plan(asking(wanted), after, Node(after))
    assert [change for stage in again for change in stage.ordered_changes] == []


@pytest.mark.parametrize(
    ("wanted", "node", "words"),
    [
        (DMA_BUF, with_driver(kernels=Kernels("5.10.0-28-amd64", ("5.10.0-28-amd64",))), "needs Linux 5.12 or newer"),
        (DMA_BUF, with_driver(open_module=False), "needs the open kernel modules"),
        (GDS, with_driver(open_module=False), "needs the open kernel modules"),
        (DMA_BUF, machine(gpus=(gpu(GTX_1080),)), "needs the open kernel modules"),
        (PEERMEM, with_driver(), "needs MLNX_OFED or DOCA-OFED"),
    ],
)
def test_unsupported_gpudirect_feature_is_refused_with_a_hint(wanted: GpuDirect, node: Facts, words: str) -> None:
    for step in (GPUDIRECT_STEP, GPUDIRECT_MODULES_STEP):
        if wanted == DMA_BUF and step is GPUDIRECT_MODULES_STEP:
            continue  # there is nothing to load
        refused = refusal(step.plan(asking(wanted), node))
        assert words in refused.what
        assert "gpudirect." in refused.hint


def test_gpudirect_requirements_hold_for_the_next_kernel_too() -> None:
    node = with_driver(kernels=Kernels(KERNEL, (KERNEL, "5.10.0-28-amd64")), headers=frozenset({KERNEL}))
    assert "5.10.0-28-amd64" in refusal(GPUDIRECT_STEP.plan(asking(DMA_BUF), node)).why


def test_foreign_driver_decides_gpudirect_by_what_is_loaded() -> None:
    wanted = asking(GDS, version="none")
    assert "none is loaded" in refusal(GPUDIRECT_STEP.plan(wanted, machine())).what

    prebuilt = ModuleFile(KERNEL, f"/lib/modules/{KERNEL}/kernel/nvidia-580/nvidia.ko", "580", dkms=False)
    theirs = machine(
        loaded_driver=LoadedDriver("580.95.05", open_module=True),
        module_files=(prebuilt,),
        headers=frozenset({KERNEL}),
    )
    assert "prebuilt modules" in refusal(GPUDIRECT_STEP.plan(wanted, theirs)).why

    built = replace(theirs, module_files=Known((replace(prebuilt, dkms=True),), "modules-dkms"))
    assert len(planned(GPUDIRECT_STEP.plan(wanted, built)).changes) == 1
    bare = replace(built, headers=Known(frozenset(), "kernel-builds"))
    # Proxmox VE names them differently.
    assert refusal(GPUDIRECT_STEP.plan(wanted, bare)).hint.startswith("sudo gpunode setup --only headers, or ")


@pytest.mark.parametrize(
    ("package", "has_modules"),
    [
        ("mlnx-ofed-kernel-modules", True),
        ("doca-kernel-6.1.0-37-amd64", True),
        ("linux-modules-doca-ofed-3.4-generic", True),
        ("doca-ofed-3.4-dkms", True),
        ("doca-ofed-userspace", False),
        ("rdma-core", False),
    ],
)
def test_rdma_stack_is_recognized_by_its_module_package(package: str, has_modules: bool) -> None:
    outcome = GPUDIRECT_STEP.plan(asking(PEERMEM), with_driver(packages={package: "1"}))
    assert isinstance(outcome, Refusal) is not has_modules


@pytest.mark.parametrize(
    ("distro", "kernel", "has_peer_memory"),
    [
        (UBUNTU, "5.15.0-119-generic", True),
        (UBUNTU, "6.5.0-45-generic", True),
        (UBUNTU, "6.8.0-90-generic", False),
        (UBUNTU, "6.8.0-1028-nvidia", True),
        (UBUNTU, "6.1.0-060100-generic", False),
        (UBUNTU, "5.15.167.4-own", False),
        (DEBIAN, "6.1.0-37-amd64", False),
    ],
)
def test_peermem_uses_the_rdma_stack_of_ubuntus_kernel(distro: Distro, kernel: str, has_peer_memory: bool) -> None:
    node = with_driver(distro=distro, kernels=Kernels(kernel, (kernel,)), headers=frozenset({kernel}))
    outcome = GPUDIRECT_STEP.plan(asking(PEERMEM), node)
    assert isinstance(outcome, Refusal) is not has_peer_memory
    assert not has_peer_memory or "no package needed" in planned(outcome).reason


def test_loaded_peermem_implies_an_rdma_stack() -> None:
    node = with_driver(modules=frozenset({"nvidia", "nvidia_peermem"}))
    assert planned(GPUDIRECT_STEP.plan(asking(PEERMEM), node)).changes == ()
    (change,) = planned(GPUDIRECT_MODULES_STEP.plan(asking(PEERMEM), node)).changes
    assert isinstance(change, FileChange)


def test_installed_gdrcopy_keeps_its_version_and_is_marked_manual() -> None:
    mine = {"gdrdrv-dkms": PackageState("2.5.1-1", held=True), "libgdrapi": PackageState("2.5.1-1", auto=True)}
    (change,) = planned(GPUDIRECT_STEP.plan(asking(GDRCOPY), with_driver(packages=mine))).changes
    assert change == PackageChange(PackageId("libgdrapi"), mine["libgdrapi"], PackageState("2.5.1-1"))


def test_gpudirect_packages_follow_the_lock() -> None:
    packages = {"nvidia-driver-cuda": "580.95.05-1", "nvidia-fs-dkms": "2.28.4-1"}
    lock = VersionLock("f.lock", "r", "debian", "12", "amd64", by_id(packages))
    node = with_driver(packages={"nvidia-fs-dkms": "2.27.3-1"})

    (change,) = planned(GPUDIRECT_STEP.plan(replace(asking(GDS, version="none"), lock=lock), node)).changes

    assert change == PackageChange(PackageId("nvidia-fs-dkms"), PackageState("2.27.3-1"), PackageState("2.28.4-1"))
    unlocked = refusal(GPUDIRECT_STEP.plan(replace(asking(GDRCOPY, version="none"), lock=lock), node))
    assert "has no version of gdrdrv-dkms" in unlocked.what


def test_gpudirect_modules_are_only_loaded_after_the_reboot() -> None:
    node = with_driver(loaded_driver=LoadedDriver("570.211.01", open_module=True))
    (change,) = planned(GPUDIRECT_MODULES_STEP.plan(asking(GDS), node)).changes
    assert isinstance(change, FileChange)
    again = planned(GPUDIRECT_MODULES_STEP.plan(asking(GDS), project_changes(node, (change,))))
    assert (again.changes, again.is_deferred) == ((), True)


def test_gdrcopy_service_is_started_after_its_module() -> None:
    stopped = unit(active=False)
    node = with_driver(units={GDRCOPY_UNIT: stopped})
    node = replace(node, units={**node.units, GDRCOPY_UNIT: Known(stopped, "units")})

    changes = planned(GPUDIRECT_MODULES_STEP.plan(asking(GDRCOPY), node)).changes

    assert [type(change) for change in changes] == [FileChange, ModuleChange, ServiceChange]
    masked = replace(node, units={**node.units, GDRCOPY_UNIT: Known(replace(stopped, masked=True), "units")})
    assert len(planned(GPUDIRECT_MODULES_STEP.plan(asking(GDRCOPY), masked)).changes) == 2


def test_module_no_longer_requested_is_not_loaded_at_boot() -> None:
    was = planned(GPUDIRECT_MODULES_STEP.plan(asking(PEERMEM), with_driver(packages=OFED))).changes
    node = project_changes(with_driver(packages=OFED), was)
    (change,) = planned(GPUDIRECT_MODULES_STEP.plan(asking(DMA_BUF), node)).changes
    assert isinstance(change, FileChange)
    assert change.after is None


@pytest.mark.parametrize("step", [GPUDIRECT_STEP, GPUDIRECT_MODULES_STEP])
def test_container_leaves_gpudirect_to_its_host(step: Any) -> None:
    inside = machine(platform=Platform("container", "docker"))
    assert planned(step.plan(asking(ALL, version="none"), inside)).is_deferred
    assert planned(step.plan(recipe(), machine())).reason == "not requested"


@pytest.mark.parametrize(
    "problem", ["E: Unable to locate package gdrdrv-dkms", "E: Package 'gdrdrv-dkms' has no installation candidate"]
)
def test_missing_gpudirect_package_names_its_source(problem: str) -> None:
    assert "https://developer.download.nvidia.com/compute/redist/gdrcopy/" in missing_source_hint(problem)
    assert missing_source_hint("E: Unable to locate package containerd") == ""


def test_every_gpudirect_feature_with_packages_names_their_source() -> None:
    assert all(bool(feature.packages) == bool(feature.source) for feature in FEATURES)
