"""The likeliest causes where no sign decides, the answer where one stands alone, and what a found fault leaves over."""

from __future__ import annotations

import pytest

from gpunode.diagnoses import diagnose, suspects
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.diagnoses.suspects import is_command_answered
from gpunode.facts import pasted
from tests.scenarios.reports import diagnosis, reports

LOST = ("dmesg", "[ 100.1] NVRM: Xid (PCI:0000:01:00): 79, pid=1204, name=python, GPU has fallen off the bus.")
NO_DRIVER_OF_DOCKER = (
    "docker run --rm --gpus all ubuntu nvidia-smi",
    'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
)
MISMATCH = ("nvidia-smi", "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.161")
LOADED = (
    "cat /proc/driver/nvidia/version",
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.154.05  Thu Dec 28 15:37:48 UTC 2023",
)


def of(*pieces: tuple[str, str]) -> Diagnosis:
    return diagnose(take_snapshot(pasted.collect_pieces(pieces)))


@pytest.mark.parametrize(
    ("other", "cause"),
    [(NO_DRIVER_OF_DOCKER, "toolkit-not-installed"), (MISMATCH, "driver-library-mismatch-reboot-pending")],
)
def test_failure_beside_a_decided_root_is_listed(other: tuple[str, str], cause: str) -> None:
    found = of(LOST, other)
    assert [one.cause for one in found.roots] == ["gpu-fallen-off-bus"]
    (left,) = found.unexplained
    assert left.cause == cause
    assert left.next_step.command
    assert all(citation.line in other[1] for citation in left.citations)
    assert other[1].split("\n")[0] not in str(found.roots[0].ruled_out)


def test_consequence_of_a_root_is_not_listed_as_unexplained() -> None:
    assert of(LOST, ("nvidia-smi", "No devices were found")).unexplained == ()
    assert of(LOST).unexplained == ()


def test_missing_toolkit_is_suspected_before_a_snap() -> None:
    found = of(NO_DRIVER_OF_DOCKER)
    assert found.suspects[0].cause == "toolkit-not-installed"


def test_suspects_with_the_same_first_steps_print_them() -> None:
    found = of(MISMATCH, LOADED)
    assert not found.roots
    assert [fix.kind for fix in found.shared_steps][:1] == ["drain"]
    assert found.next_step is not None
    assert found.next_step.command == "modinfo -F version nvidia"


def test_pasted_answer_is_never_asked_for() -> None:
    found = of(MISMATCH, LOADED)
    assert LOADED[0] not in [command for one in found.suspects for command in one.look_at]
    node = take_snapshot(pasted.collect_pieces([LOADED, ("sudo dmesg -T | grep -i nvrm", "NVRM: loading")]))
    assert is_command_answered(node, "dmesg | grep -i nvrm | grep Xid")
    assert not is_command_answered(node, "dmesg | grep -i pcie")
    assert not is_command_answered(node, "nvidia-smi")


def test_suspect_that_stands_alone_is_likely_and_is_looked_at_first() -> None:
    report = next(one for one in reports() if one.name == "modules/container-without-driver-module")
    found = diagnosis((report.evidence[0], *report.evidence[2:]))
    (root,) = found.roots
    assert (root.cause, root.confidence, root.basis) == (report.cause, "likely", "ranking")
    assert root.look_at
    assert root.next_step.command == root.look_at[0]
    assert report.cause not in [one.cause for one in found.suspects]


def test_no_suspect_is_promoted_beside_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    report = next(one for one in reports() if one.name == "modules/container-without-driver-module")
    alone = [(one["source"], one["text"]) for one in (report.evidence[0], *report.evidence[2:])]
    manager = (
        "systemctl status nvidia-fabricmanager",
        "Active: failed\nnv-fabricmanager[1]: NVSwitch devices not found",
    )
    assert [one.basis for one in of(*alone).findings] == ["ranking"]
    assert [one.basis for one in of(*alone, manager).findings] == ["signs"]
    monkeypatch.setattr(suspects, "MIN_STAND_ALONE_PROBABILITY", 0.0)
    for pieces in ((LOST,), (LOST, NO_DRIVER_OF_DOCKER)):
        assert all(one.basis == "signs" for one in of(*pieces).findings)


@pytest.mark.parametrize(
    ("looked", "confidence"),
    [((), "likely"), ((("ls /etc/modprobe.d", "tuned.conf"),), "certain")],
)
def test_nouveau_is_certain_where_no_blacklist_may_have_missed_it(
    looked: tuple[tuple[str, str], ...], confidence: str
) -> None:
    bound = ("lsmod | grep nouveau", "nouveau              2306048  4"), ("nvidia-smi", "No devices were found")
    (root,) = of(*bound, *looked).roots
    assert (root.cause, root.confidence) == ("nouveau-bound", confidence)


@pytest.mark.parametrize(
    "said",
    [
        'msg="failed to load plugin io.containerd.snapshotter.v1.devmapper" error="devmapper not configured"',
        'msg="skip loading plugin io.containerd.snapshotter.v1.btrfs" error="must be a btrfs filesystem"',
    ],
)
def test_snapshotter_that_a_host_has_no_use_for_is_no_symptom(said: str) -> None:
    """Every containerd of Debian says so at its start."""
    found = of(
        ("journalctl -u containerd", f'Nov 29 10:00:00 node containerd[700]: time="2026-11-29T10:00:00Z" {said}')
    )
    assert [line for one in found.suspects for line in one.citations] == []
    assert found.findings == ()
