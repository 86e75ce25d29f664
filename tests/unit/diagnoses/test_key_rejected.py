"""A module that the kernel rejects because of its signature: the cause is the signature, not the missing module."""

from __future__ import annotations

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted

NO_KEY, UNSIGNED, ABSENT = "secure-boot-key-not-enrolled", "secure-boot-module-unsigned", "driver-module-not-loaded"
FAILS = (
    "nvidia-smi",
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Is the latest one installed?\n",
)
EMPTY = ("lsmod | grep nvidia", "")
REJECTED = ("sudo modprobe nvidia", "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service\n")


def diagnose_pieces(*pieces: tuple[str, str]) -> Diagnosis:
    return diagnose(take_snapshot(pasted.collect_pieces(pieces)))


@pytest.mark.parametrize("pieces", [(FAILS, REJECTED), (EMPTY, FAILS, REJECTED), (EMPTY, REJECTED), (REJECTED,)])
@pytest.mark.parametrize("words", ["Key was rejected by service", "Required key not available"])
def test_rejected_key_alone_is_likely_not_enrolled(pieces: tuple[tuple[str, str], ...], words: str) -> None:
    found = diagnose_pieces(*((source, text.replace("Key was rejected by service", words)) for source, text in pieces))
    assert [(one.cause, one.confidence) for one in found.roots] == [(NO_KEY, "likely")]
    assert found.suspects[0].cause == UNSIGNED
    assert found.suspects[0].look_at[0].startswith("modinfo nvidia")


def test_rejection_without_a_module_name_counts_beside_another_vendors() -> None:
    other = ("sudo modprobe vboxdrv", "modprobe: ERROR: could not insert 'vboxdrv': Key was rejected by service\n")
    installer = ("/var/log/nvidia-installer.log", "-> Kernel module load error: Operation not permitted\n")
    assert not diagnose_pieces(FAILS, other).roots
    assert [one.cause for one in diagnose_pieces(FAILS, other, installer).roots] == [NO_KEY]


@pytest.mark.parametrize(
    ("piece", "cause"),
    [
        (("modinfo nvidia | grep -i sig", ""), UNSIGNED),
        (("modinfo nvidia | grep -i sig", "signer:         node01 Secure Boot Module Signature key\n"), NO_KEY),
        (("modinfo -F signer nvidia", ""), UNSIGNED),
        (("mokutil --test-key /var/lib/dkms/mok.pub", "/var/lib/dkms/mok.pub is not enrolled"), NO_KEY),
        (("dkms status", "nvidia/580.95.05, 6.8.0-45-generic, x86_64: installed\n"), NO_KEY),
        (("sudo dmesg | tail", "[   61.2] Loading of unsigned module is rejected\n"), UNSIGNED),
        (("sudo dmesg | tail", "[   61.2] Loading of module with unavailable key is rejected\n"), NO_KEY),
    ],
)
def test_signature_evidence_decides_the_cause(piece: tuple[str, str], cause: str) -> None:
    found = diagnose_pieces(EMPTY, FAILS, REJECTED, piece)
    assert [one.cause for one in found.roots] == [cause]
    assert {one.cause for one in found.findings} <= {cause, ABSENT}


def test_module_signed_by_the_machine_may_be_rejected() -> None:
    info = "filename: /lib/modules/6.18.48-amd64/updates/dkms/nvidia.ko\nversion: 580.119.02\nname: nvidia\n"
    shown = ("modinfo nvidia", f"{info}signer: DKMS module signing key\nvermagic: 6.18.48-amd64 SMP\n")
    pieces = (FAILS, shown, ("uname -r", "6.18.48-amd64"))
    assert not diagnose_pieces(*pieces).findings
    assert {one.cause for one in diagnose_pieces(*pieces).suspects} >= {NO_KEY, ABSENT}
    assert [one.cause for one in diagnose_pieces(*pieces, ("mokutil --sb-state", "SecureBoot disabled")).roots] == [
        ABSENT
    ]


def test_rejected_module_of_another_vendor_is_ignored() -> None:
    other = ("sudo modprobe vboxdrv", REJECTED[1].replace("nvidia", "vboxdrv"))
    assert [one.cause for one in diagnose_pieces(EMPTY, FAILS, other).roots] == [ABSENT]


def test_rejection_is_over_where_the_driver_works() -> None:
    table = "| NVIDIA-SMI 580.95.05              Driver Version: 580.95.05      CUDA Version: 13.0     |\n"
    gpu = "|   0  NVIDIA A100-SXM4-80GB          On  |   00000000:07:00.0 Off |                    0 |\n"
    found = diagnose_pieces(REJECTED, ("nvidia-smi", table + gpu), ("lsmod | grep nvidia", "nvidia 9 1 nvidia_uvm\n"))
    assert not found.findings
    assert not found.open_questions
