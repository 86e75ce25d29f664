"""The likeliest causes where no sign decides, the answer where one stands alone, and what a found fault leaves over."""

from __future__ import annotations

import pytest

from gpunode.diagnoses import diagnose, suspects
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.diagnoses.suspects import is_command_answered
from gpunode.facts import pasted

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


NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running."
)
TOLD = "Secure boot is enabled since the new BIOS."


def test_words_that_also_tell_of_others_order_the_suspects_alone() -> None:
    found = of(("nvidia-smi", NO_DRIVER), ("post", "It doesn't work since secure boot is enabled."))
    assert found.roots == ()
    assert found.suspects[0].cause == "secure-boot-key-not-enrolled"


@pytest.fixture
def any_words_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects, "ORDERING_ONLY", frozenset())


@pytest.mark.usefixtures("any_words_answer")
def test_suspect_that_stands_alone_is_likely_and_is_looked_at_first() -> None:
    found = of(("nvidia-smi", NO_DRIVER), ("post", TOLD))
    (root,) = found.roots
    assert (root.cause, root.confidence, root.basis) == ("secure-boot-key-not-enrolled", "likely", "ranking")
    assert root.look_at
    assert root.next_step.command == root.look_at[0]
    assert root.cause not in [one.cause for one in found.suspects]


@pytest.mark.parametrize(
    ("told", "cause"),
    [
        ("Somehow nouveau is loaded again.", "nouveau-bound"),
        ("The kernel's headers are missing.", "kernel-headers-missing"),
        ("With the older kernel from the menu it works.", "module-built-for-other-kernel"),
        ("The card is passed through to a VM at night.", "vfio-bound"),
        ("It doesn't work since secure boot is enabled.", "secure-boot-key-not-enrolled"),
        ("If I boot the older kernel it works.", "module-built-for-other-kernel"),
        ("The card is passed through to a VM, is that normal?", "vfio-bound"),
        ("It is a laptop.", ""),
    ],
)
@pytest.mark.usefixtures("any_words_answer")
def test_words_of_people_part_the_causes_of_one_error(told: str, cause: str) -> None:
    found = of(("nvidia-smi", NO_DRIVER), ("post", told))
    assert [one.cause for one in found.roots] == [cause] * bool(cause)


@pytest.mark.parametrize(
    "told",
    [
        "Is secure boot on?",
        "Or could secure boot be enabled, and is that the reason?",
        "The secure boot is not enabled.",
        "If secure boot is on, I would have seen it.",
        "I guess that secure boot is on.",
        "A colleague had secure boot enabled.",
        'The wiki has "secure boot is on" as its first line.',
        "> secure boot is on",
        "According to the FAQ secure boot is on by default.",
        "On my other machine secure boot is on.",
        "It is not that secure boot is on.",
        "It works, and secure boot was never on or enabled.",
        "Before the reinstall nouveau was loaded; I removed it.",
        "nouveau is not loaded",
        "The secure boot is on. The kernel is an older kernel than that of the headers.",
        "There is no nouveau loaded on this box.",
        "Secure boot was on until I switched it off.",
        "Two years ago nouveau was loaded.",
        "I will go back to the older kernel tomorrow.",
        "Without secure boot enabled it was the same.",
    ],
)
@pytest.mark.usefixtures("any_words_answer")
def test_doubtful_and_ambiguous_words_let_no_suspect_stand_alone(told: str) -> None:
    assert not of(("nvidia-smi", NO_DRIVER), ("post", told)).roots


def test_version_of_the_driver_tells_nothing_beside_another_failure() -> None:
    found = of(NO_DRIVER_OF_DOCKER, ("post", "The box has driver 470 and the image is a new one."))
    assert [one.cause for one in found.roots] == ["toolkit-not-installed"]
    assert "driver-too-old-for-image" not in [one.cause for one in found.suspects]


@pytest.mark.usefixtures("any_words_answer")
def test_words_of_programs_or_without_a_failure_decide_nothing() -> None:
    assert not of(("post", TOLD)).roots
    assert not of(("nvidia-smi", f"{NO_DRIVER} Check whether secure boot is enabled.")).roots


@pytest.mark.usefixtures("any_words_answer")
def test_no_suspect_is_promoted_beside_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = (("nvidia-smi", NO_DRIVER), ("post", TOLD))
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
