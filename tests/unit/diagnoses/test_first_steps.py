"""The next step: never a command that removes what should be saved first, nor one that is already done."""

from __future__ import annotations

import re

import pytest

from gpunode.diagnoses import diagnose, rules_by_cause
from gpunode.diagnoses.model import Finding
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted
from gpunode.page.words import checks_heading
from tests.laws.systems import SYSTEMS
from tests.scenarios.healthy.captures import evidence, journal
from tests.scenarios.healthy.nodes import HEALTHY
from tests.scenarios.reports import diagnosis, reports

# Words of a warning to follow before the command.
WARNS = re.compile(r"\bsave the\b|\bgo(?:es)? with it\b|\bloses what\b|\bdeletes all\b|\bis lost\b")


def first(*pieces: tuple[str, str]) -> Finding:
    return diagnose(take_snapshot(pasted.collect_pieces(pieces))).findings[0]


@pytest.mark.parametrize("system", SYSTEMS)
def test_saving_data_is_a_step_without_commands(system: str) -> None:
    node = take_snapshot(pasted.collect_pieces(SYSTEMS[system]))
    fixes = [(cause, fix) for cause, rule in rules_by_cause().items() for fix in rule.remedy(node)]
    assert [(cause, fix.text) for cause, fix in fixes if fix.commands and WARNS.search(fix.text)] == []


@pytest.mark.parametrize(
    "cause", ["docker-from-snap", "nested-node-config-not-applied", "gpu-operator-driver-restart-blocked"]
)
def test_destructive_remedy_begins_with_saving_data(cause: str) -> None:
    save = next(iter(rules_by_cause()[cause].remedy(take_snapshot(pasted.collect_pieces([])))))
    assert save.text.startswith("save the")
    assert save.commands == ()


FAULTS = (
    "[Tue Nov 12 10:00:00 2024] nvidia 0000:01:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x002a "
    "address=0x2040d0000000 flags=0x0030]"
)
BUS = "01:00.0 3D controller [0302]: NVIDIA Corporation AD102GL [L40S] [10de:26b9]\n\tKernel driver in use: nvidia"
LENT = BUS.replace("01:00.0", "81:00.0").replace("in use: nvidia", "in use: vfio-pci")


def test_kernel_argument_that_is_set_is_not_added_again() -> None:
    found = first(("cat /proc/cmdline", "ro amd_iommu=on iommu=pt"), ("dmesg -T", FAULTS), ("lspci -nnk -d 10de:", BUS))
    assert found.cause == "iommu-blocks-p2p"
    assert [fix.kind for fix in found.remedy] == ["firmware"]
    assert not [command for fix in found.remedy for command in fix.commands]


def test_iommu_stays_on_where_virtual_machines_need_it() -> None:
    pieces = (("cat /proc/cmdline", "ro amd_iommu=on iommu=pt"), ("dmesg -T", FAULTS))
    found = first(*pieces, ("lspci -nnk -d 10de:", f"{BUS}\n{LENT}"))
    assert found.cause == "iommu-blocks-p2p"
    assert found.remedy[0].kind == "application"


def test_missing_kernel_argument_is_added() -> None:
    found = first(("cat /proc/cmdline", "ro amd_iommu=on"), ("dmesg -T", FAULTS), ("lspci -nnk -d 10de:", BUS))
    assert any("iommu=pt" in command for fix in found.remedy for command in fix.commands)


def test_acs_stays_enabled_where_virtual_machines_need_it() -> None:
    rows = (("lspci -nnk -d 10de:", f"{BUS}\n{LENT}"),)
    node = take_snapshot(pasted.collect_pieces(rows))
    assert not [command for fix in rules_by_cause()["acs-blocks-p2p"].remedy(node) for command in fix.commands]


NO_DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest"


FALLEN = "[ 1234.567891] NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
EXAMINE = "sudo gpunode doctor  # on the node itself"


@pytest.mark.parametrize("cause", rules_by_cause())
def test_disruptive_step_for_a_text_follows_an_examination_of_the_node(cause: str) -> None:
    report = next(report for report in reports() if report.cause == cause)
    for found in diagnosis(report.evidence).roots:
        if found.remedy and found.remedy[0].kind in {"remove", "reset", "reboot", "drain", "replace", "hardware"}:
            assert found.look_at
            assert found.next_step.command in found.look_at


def test_text_may_be_from_another_machine() -> None:
    found = diagnose(take_snapshot(pasted.parse_text_report(FALLEN))).findings[0]
    assert (found.cause, found.confidence, found.next_step.command) == ("gpu-fallen-off-bus", "certain", EXAMINE)
    assert checks_heading(found) == "this text may be from another machine or time; first run"


def test_capture_of_the_node_needs_no_further_examination() -> None:
    captured = evidence(
        {**HEALTHY["debian-13-containerd"](), "kernel-journal": journal(["kernel: " + FALLEN.partition("] ")[2]])}
    )
    found = diagnose(take_snapshot(captured)).findings[0]
    assert (found.cause, found.look_at) == ("gpu-fallen-off-bus", ())
    assert found.next_step.command == "sudo fuser -v /dev/nvidia*"
