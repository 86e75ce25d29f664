"""Symptoms of several causes: a question while nothing decides, the cause once something does."""

from __future__ import annotations

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted

Piece = tuple[str, str]

API = (
    "NVRM: API mismatch: the client has the version 570.158.01, but\n"
    "NVRM: this kernel module has the version 570.133.20."
)
GSP_120 = "NVRM: Xid (PCI:0000:01:00): 120, GSP task watchdog timeout @ pc:0x1b3e200, partition:4#0, task:3"
COUNTED = "GPU 00000000:07:00.0\n    ECC Errors\n        Volatile\n            DRAM Uncorrectable            : 1\n"
SIGNED = (
    "modinfo nvidia",
    (
        "filename: /lib/modules/6.18.48-amd64/updates/dkms/nvidia.ko\nversion: 580.119.02\nname: nvidia\n"
        "signer: DKMS module signing key\nvermagic: 6.18.48-amd64 SMP"
    ),
)
FAILS = ("nvidia-smi", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
RUNS = ("uname -r", "6.18.48-amd64")

PENDING = "driver-library-mismatch-reboot-pending"
# The evidence, the causes that stay open, and the evidence that decides for each.
OPEN: dict[str, tuple[tuple[Piece, ...], set[str], tuple[tuple[tuple[Piece, ...], str], ...]]] = {
    "an error counted": (
        (("nvidia-smi -q -d ECC", COUNTED),),
        {"ecc-dbe-uncorrectable", "xid-95-uncontained-ecc"},
        (((("dmesg", "NVRM: Xid (PCI:0000:07:00): 94, pid=1, name=python3, Contained ECC error"),),
          "xid-94-contained-ecc"),),
    ),
    "a module that the machine signed": (
        (FAILS, SIGNED, RUNS),
        {"driver-module-not-loaded", "secure-boot-key-not-enrolled"},
        (
            ((("modprobe nvidia", "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service"),),
             "secure-boot-key-not-enrolled"),
            ((("mokutil --sb-state", "SecureBoot disabled"),), "driver-module-not-loaded"),
        ),
    ),
}  # fmt: skip


def diagnose_pieces(*pieces: Piece) -> Diagnosis:
    return diagnose(take_snapshot(pasted.collect_pieces(pieces)))


@pytest.mark.parametrize("name", OPEN)
def test_undecided_evidence_gives_suspects(name: str) -> None:
    pieces, causes, _ = OPEN[name]
    told = diagnose_pieces(*pieces)
    assert not told.findings
    suspected = {one.cause for one in told.suspects if one.look_at}
    assert causes & suspected


@pytest.mark.parametrize(
    ("pieces", "more", "cause"),
    [(pieces, more, cause) for pieces, _, decided in OPEN.values() for more, cause in decided],
    ids=[f"{name}: {cause}" for name, (_, _, decided) in OPEN.items() for _, cause in decided],
)
def test_deciding_evidence_names_the_cause(pieces: tuple[Piece, ...], more: tuple[Piece, ...], cause: str) -> None:
    assert [one.cause for one in diagnose_pieces(*pieces, *more).roots] == [cause]


def test_late_api_mismatch_waits_for_a_reboot() -> None:
    (late,) = diagnose_pieces(("dmesg", f"[ 9424.670] {API}")).roots
    (dated,) = diagnose_pieces(("journalctl -k", f"Aug 26 14:08:07 gpu1 kernel: {API}")).roots
    assert [(one.cause, one.confidence) for one in (late, dated)] == [(PENDING, "likely")] * 2


def test_gsp_crash_without_context_is_found() -> None:
    assert [one.cause for one in diagnose_pieces(("dmesg", GSP_120)).roots] == ["gsp-task-exception"]
