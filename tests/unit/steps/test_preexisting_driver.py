"""A working driver from other packages, such as Ubuntu's own, stays until another is requested."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpunode.change import PackageState
from gpunode.facts.derive import derive
from gpunode.facts.model import Facts, Kernels, Known, LoadedDriver, ModuleFile, Unknown
from gpunode.outcome import Blocked, Planned
from gpunode.recipe import Recipe
from gpunode.steps.daemons import PERSISTENCE_STEP
from gpunode.steps.driver import CONFLICTS_STEP, DRIVER_STEP
from gpunode.steps.kernel import HEADERS_STEP, MODULE_BUILD_STEP, MODULE_LOAD_STEP
from gpunode.steps.secure_boot import SECURE_BOOT_STEP
from gpunode.steps.table import STEPS
from tests.fakes.firmware import Firmware, make_certificate
from tests.scenarios.healthy.captures import evidence
from tests.scenarios.healthy.nodes import HEALTHY
from tests.unit.steps.machines import B200, KERNEL, UBUNTU, gpu, machine, planned, recipe, unit
from tests.unit.steps.test_secure_boot_steps import node as with_firmware

UNDER_SECURE_BOOT = "ubuntu-22-secure-boot-by-canonical"
BY_CANONICAL = ("ubuntu-22-docker-prebuilt-modules", UNDER_SECURE_BOOT)
REVISION = "0ubuntu0.24.04.2"


def of_branch_580(name: str) -> Facts:
    """Return the healthy node of that name, with a driver of a maintained branch."""
    names = ((b"535.274.02", b"580.95.05"), (b"-535-", b"-580-"), (b"-535 ", b"-580 "), (b"-535\n", b"-580\n"))
    seen = evidence(HEALTHY[name]())
    for old, new in names:
        seen = {key: replace(capture, data=capture.data.replace(old, new)) for key, capture in seen.items()}
    return derive(seen)


def of_ubuntu(kind: str = "", version: str = "580.95.05", *, open_module: bool = False, **more: object) -> Facts:
    """Return Ubuntu's own driver of branch 580 with prebuilt modules, loaded; ``kind`` is ``-server`` or nothing."""
    flavour = "-open" if open_module else ""
    names = (
        f"nvidia-driver-580{kind}{flavour}",
        f"libnvidia-compute-580{kind}",
        f"nvidia-utils-580{kind}",
        f"nvidia-compute-utils-580{kind}",
        f"nvidia-kernel-common-580{kind}",
        f"nvidia-kernel-source-580{kind}{flavour}",
        f"nvidia-firmware-580{kind}-{version}",
    )
    packages = {name: PackageState(f"{version}-{REVISION}") for name in names}
    packages[f"linux-modules-nvidia-580{kind}{flavour}-{KERNEL}"] = PackageState("6.8.0-85.85")
    path = f"/lib/modules/{KERNEL}/kernel/nvidia-580{kind.replace('-server', 'srv')}{flavour}/nvidia.ko"
    fixed: dict[str, object] = {
        "distro": UBUNTU,
        "module_files": (ModuleFile(KERNEL, path, "580"),),
        "loaded_driver": LoadedDriver("580.95.05", open_module),
        "units": {"nvidia-persistenced.service": unit()},
    }
    return machine(packages=packages, **{**fixed, **more})  # type: ignore[arg-type]


def changing_steps(node: Facts, wanted: Recipe) -> list[str]:
    """Return the steps that would change something."""
    return [step.id for step in STEPS if planned(step.plan(wanted, node)).changes]


@pytest.mark.parametrize("name", BY_CANONICAL)
@pytest.mark.parametrize("version", ["auto", "580", "lts"])
def test_healthy_ubuntu_driver_is_left_alone(name: str, version: str) -> None:
    assert changing_steps(of_branch_580(name), recipe(version=version)) == []


@pytest.mark.parametrize("kind", ["", "-server"])
@pytest.mark.parametrize("open_module", [False, True])
def test_every_kind_of_ubuntu_driver_is_left_alone(kind: str, open_module: bool) -> None:
    node = of_ubuntu(kind, open_module=open_module)
    assert changing_steps(node, recipe()) == []
    assert "--driver with another branch" in planned(DRIVER_STEP.plan(recipe(), node)).reason


@pytest.mark.parametrize(
    "wanted",
    [
        recipe(version="595"),
        recipe(version="580.178.04"),
        recipe(kernel_module_type="open"),
        replace(recipe(), upgrade=True),
        replace(recipe(version="580"), upgrade=True),
    ],
)
@pytest.mark.parametrize("name", BY_CANONICAL)
def test_requested_replacement_driver_waits_for_its_key(name: str, wanted: Recipe) -> None:
    node = of_branch_580(name)
    is_on = name == UNDER_SECURE_BOOT
    assert bool(planned(DRIVER_STEP.plan(wanted, node)).changes) is not is_on
    assert bool(planned(SECURE_BOOT_STEP.plan(wanted, node)).changes) is is_on
    assert planned(PERSISTENCE_STEP.plan(wanted, node)).is_deferred is is_on


@pytest.mark.parametrize("name", BY_CANONICAL)
def test_ended_preexisting_branch_is_replaced_once_the_key_is_enrolled(name: str) -> None:
    node = derive(evidence(HEALTHY[name]()))
    is_on = name == UNDER_SECURE_BOOT
    assert bool(planned(CONFLICTS_STEP.plan(recipe(), node)).changes) is not is_on
    assert bool(planned(SECURE_BOOT_STEP.plan(recipe(), node)).changes) is is_on


def test_replacement_of_signed_modules_is_noted_if_secure_boot_is_unknown() -> None:
    node = replace(of_ubuntu(), secure_boot=Unknown("not captured", "secure-boot-variable"), module_key=None)
    notes = planned(DRIVER_STEP.plan(recipe(version="595"), node)).change_notes
    assert any("if Secure Boot is on" in note and "mokutil --import" in note for note in notes), notes
    enrolled = with_firmware(Firmware(enrolled=[make_certificate()]).with_key(), node)
    replaced = planned(DRIVER_STEP.plan(recipe(version="595"), enrolled))
    assert not any("Secure Boot" in note for note in replaced.all_notes)


@pytest.mark.parametrize(
    "node",
    [
        of_ubuntu(loaded_driver=Known(None, "nvidia-version")),
        of_ubuntu(module_files=Known((), "modules-dkms")),
        of_ubuntu(gpus=(gpu(B200),)),
        of_ubuntu(gpus=(gpu(driver="nouveau"),)),
        of_ubuntu(version="595.91.07"),
    ],
    ids=["not loaded", "no module", "modules that the GPU cannot use", "nouveau has the GPU", "other libraries"],
)
def test_broken_preexisting_driver_is_replaced(node: Facts) -> None:
    assert planned(DRIVER_STEP.plan(recipe(), node)).changes


@pytest.mark.parametrize("name", BY_CANONICAL)
def test_preexisting_driver_is_ignored_if_no_driver_is_requested(name: str) -> None:
    node = of_branch_580(name)
    assert changing_steps(node, recipe(version="none")) == []
    assert "not managed by gpunode" in planned(MODULE_LOAD_STEP.plan(recipe(version="none"), node)).reason


def test_upgraded_libraries_wait_for_the_reboot() -> None:
    node = of_ubuntu(version="580.178.04")
    outcomes = {
        step: step.plan(recipe(), node)
        for step in (CONFLICTS_STEP, DRIVER_STEP, HEADERS_STEP, MODULE_BUILD_STEP, MODULE_LOAD_STEP)
    }
    waits = outcomes.pop(MODULE_LOAD_STEP)
    assert isinstance(waits, Blocked)
    assert "580.178.04" in waits.reason
    assert [one for one in outcomes.values() if not isinstance(one, Planned) or one.changes] == []


def test_kernel_without_a_prebuilt_module_is_noted() -> None:
    later = "6.1.0-99-amd64"
    outcome = planned(MODULE_BUILD_STEP.plan(recipe(), of_ubuntu(kernels=Kernels(KERNEL, (KERNEL, later)))))
    assert outcome.changes == ()
    assert later in outcome.notes[0]


def test_missing_persistence_daemon_is_not_started() -> None:
    assert planned(PERSISTENCE_STEP.plan(recipe(), of_ubuntu(units={}))).changes == ()
