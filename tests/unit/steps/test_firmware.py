"""Machines on which a driver alone is not enough: plan and status report that, with the command that shows more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpunode.facts.derive import derive
from gpunode.facts.evidence import Capture
from gpunode.facts.machine import SECURE_BOOT_PROBE_KEY, SHIM_VALIDATION_PROBE_KEY
from gpunode.facts.model import Facts, Known, LoadedDriver, PciDevice, Unknown
from gpunode.recipe import Recipe
from gpunode.steps.detect import DETECT_STEP
from gpunode.steps.secure_boot import SECURE_BOOT_STEP
from gpunode.workflow.converge import state_notes
from gpunode.workflow.recovery import Backlog
from gpunode.workflow.status import status
from tests.unit.steps.machines import B200, H100, T4, gpu, machine, planned, recipe, unit
from tests.unit.workflow.nodes import Node

B300, GB200 = "3182", "2941"
LS10, LR10 = "22a3", "1af1"
MANAGER = "nvidia-fabricmanager.service"


def notes(facts: Facts) -> tuple[str, ...]:
    return planned(DETECT_STEP.plan(recipe(), facts)).notes


def switch(device: str) -> PciDevice:
    return PciDevice("0000:07:00.0", "10de", device, "0680")


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ((gpu(H100), switch(LS10)), "1 NVSwitch: CUDA on these GPUs needs nvidia-fabricmanager"),
        ((gpu(H100), switch(LR10), switch(LR10)), "2 NVSwitches"),
        ((gpu(B200),), "NVIDIA B200 on an HGX board, whose NVSwitches are not visible on the PCI bus"),
        ((gpu(B300),), "NVIDIA B300"),
    ],
)
def test_gpus_behind_nvswitches_need_the_fabric_manager(devices: tuple[PciDevice, ...], words: str) -> None:
    others = recipe(version="none")
    absent = {"nvidia-fabricmanager.service": unit(active=False, enabled=False, exists=False)}
    (note,) = planned(DETECT_STEP.plan(others, machine(gpus=devices, units=absent))).notes
    assert words in note
    assert note.endswith("`gpunode doctor fabric-manager-not-installed` shows the commands")
    assert note in state_notes(others, machine(gpus=devices, units=absent))
    assert notes(machine(gpus=devices)) == (), "the fabric's own steps see to it"
    shown = status(machine(gpus=devices), Node(machine()), Backlog()).fabric
    assert shown is not None
    assert shown.seen in words or words.startswith(shown.seen) or words in shown.seen


@pytest.mark.parametrize("devices", [(gpu(H100),), (gpu(T4),), (gpu(GB200),)])
def test_gpus_without_nvswitches_need_no_fabric_manager(devices: tuple[PciDevice, ...]) -> None:
    assert notes(machine(gpus=devices)) == ()


def test_stopped_fabric_manager_is_noted_and_a_running_one_is_not() -> None:
    machines = [machine(gpus=(gpu(B200),), units={}) for _ in range(2)]
    running, stopped = (
        replace(one, units={**one.units, MANAGER: Known(unit(active=active), "units")})
        for one, active in zip(machines, (True, False), strict=True)
    )
    others = recipe(version="none")
    assert planned(DETECT_STEP.plan(others, running)).notes == ()
    assert "`gpunode doctor fabric-manager-not-running`" in planned(DETECT_STEP.plan(others, stopped)).notes[0]


def test_secure_boot_is_noted_where_the_key_was_not_captured() -> None:
    def secure_boot_notes(facts: Facts, version: str = "auto") -> tuple[str, ...]:
        return planned(SECURE_BOOT_STEP.plan(recipe(version=version), facts)).notes

    on = machine(secure_boot=True)
    (note,) = secure_boot_notes(on)
    assert "Secure Boot is on" in note
    assert "`gpunode doctor secure-boot-key-not-enrolled`" in note
    assert note in status(on, Node(on), Backlog()).notes
    assert secure_boot_notes(machine(secure_boot=True, loaded_driver=LoadedDriver("580.95.05", True))) == ()
    assert secure_boot_notes(machine(secure_boot=False)) == ()
    assert secure_boot_notes(machine()) == ()
    assert secure_boot_notes(on, "none") == ()


ATTRIBUTES = b"\x06\x00\x00\x00"


@pytest.mark.parametrize(
    ("variable", "shim", "is_on"),
    [
        (Capture("v", "ok", ATTRIBUTES + b"\x01"), None, True),
        (Capture("v", "ok", ATTRIBUTES + b"\x00"), None, False),
        (Capture("v", "ok", ATTRIBUTES + b"\x01"), Capture("s", "ok", ATTRIBUTES + b"\x01"), False),
        (Capture("v", "ok", ATTRIBUTES + b"\x01"), Capture("s", "absent"), True),
        (Capture("v", "absent"), None, False),
    ],
)
def test_secure_boot_is_read_from_the_efi_variable(variable: Capture, shim: Capture | None, is_on: bool) -> None:
    evidence = {SECURE_BOOT_PROBE_KEY: variable, **({SHIM_VALIDATION_PROBE_KEY: shim} if shim else {})}
    assert derive(evidence).secure_boot == Known(is_on, SECURE_BOOT_PROBE_KEY)


@pytest.mark.parametrize(
    ("said", "is_on"),
    [
        ("SecureBoot enabled\n", True),
        ("SecureBoot disabled\n", False),
        ("SecureBoot enabled\nSecureBoot validation is disabled in shim\n", False),
    ],
)
def test_secure_boot_is_read_from_mokutil_in_a_capture(said: str, is_on: bool) -> None:
    evidence = {"secure-boot": Capture("mokutil --sb-state", "ok", said.encode())}
    assert derive(evidence).secure_boot == Known(is_on, "secure-boot")


@pytest.mark.parametrize("capture", [None, Capture("v", "denied", error="Permission denied"), Capture("v", "ok")])
def test_missing_secure_boot_evidence_is_unknown(capture: Capture | None) -> None:
    assert isinstance(derive({SECURE_BOOT_PROBE_KEY: capture} if capture else {}).secure_boot, Unknown)


def test_secure_boot_of_an_image_is_unknown() -> None:
    assert isinstance(
        derive({SECURE_BOOT_PROBE_KEY: Capture("v", "ok", ATTRIBUTES + b"\x01")}, image=True).secure_boot, Unknown
    )


def test_firmware_notes_do_not_depend_on_the_runtime() -> None:
    on = machine(secure_boot=True)
    assert set(notes(on)) <= set(state_notes(Recipe("other"), on))
