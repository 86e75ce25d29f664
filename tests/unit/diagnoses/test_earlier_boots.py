"""Faults of earlier boots: over if the GPUs work, never certain if nothing else is known."""

from __future__ import annotations

import json

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import boots, pasted
from gpunode.facts.evidence import Capture
from gpunode.facts.sources import identify_source

WORKS = (
    "nvidia-smi",
    (
        "| NVIDIA-SMI 535.161.08             Driver Version: 535.161.08   CUDA Version: 12.2     |\n"
        "|   0  NVIDIA A100-SXM4-80GB          On  | 00000000:07:00.0 Off |                    0 |\n"
        "| N/A   34C    P0              62W / 400W |      0MiB / 81920MiB |      0%      Default |\n"
    ),
)
FELL = "Aug 01 10:00:00 n1 kernel: NVRM: Xid (PCI:0000:07:00): 79, pid=1, GPU has fallen off the bus.\n"
FELL_BY_CLOCK = FELL.replace("NVRM", "[12345.678901] NVRM")
NEXT = "Aug 02 10:00:00 n1 kernel: nvidia: module license 'NVIDIA' taints kernel.\n"
BANNER = (
    "Aug 02 10:00:00 n1 kernel: [    0.000000] Linux version 6.1.0-18-amd64 (debian-kernel@lists.debian.org) (gcc-12)\n"
)
MARK = f"-- Boot {'0123456789abcdef' * 2} --\n"


def diagnose_pieces(*pieces: tuple[str, str]) -> Diagnosis:
    rows = [{"source": source, "text": text} for source, text in pieces]
    return diagnose(take_snapshot(pasted.parse_json_report(json.dumps(rows), "a report")))


OVER = {
    "marked": ("journalctl -k", FELL + MARK + NEXT),
    "marked-as-before-systemd-245": ("journalctl -k", FELL + "-- Reboot --\n" + NEXT),
    "newest-first": ("journalctl -k -r", NEXT + MARK + FELL),
    "asked-for": ("journalctl -b -1 -k", FELL),
    "asked-for-in-one-word": ("sudo journalctl -kb-2 --no-pager", FELL),
    "asked-for-by-long-option": ("journalctl --dmesg --boot=-1", FELL),
    "banner": ("/var/log/kern.log", FELL + BANNER + NEXT),
    "banner-without-clock": ("/var/log/messages", FELL + BANNER.replace("[    0.000000] ", "") + NEXT),
    "clock": ("/var/log/syslog", FELL_BY_CLOCK + NEXT.replace("nvidia:", "[    7.123456] nvidia:")),
    "rotated": ("/var/log/kern.log.1", FELL),
    "rotated-by-date": ("/var/log/messages-20260801", FELL),
    "dmesg-of-before": ("/var/log/dmesg.0", FELL_BY_CLOCK),
    "said-so": ("dmesg (previous boot)", FELL_BY_CLOCK),
    "kept-over-the-crash": ("/sys/fs/pstore/dmesg-efi_pstore-170000000001001", FELL_BY_CLOCK),
}


@pytest.mark.parametrize("log", OVER.values(), ids=OVER)
def test_earlier_boot_fault_is_over_where_the_gpu_works(log: tuple[str, str]) -> None:
    assert diagnose_pieces(WORKS, log).is_healthy


@pytest.mark.parametrize("log", OVER.values(), ids=OVER)
def test_earlier_boot_fault_is_at_most_likely(log: tuple[str, str]) -> None:
    (root,) = diagnose_pieces(log).roots
    assert (root.cause, root.confidence) == ("gpu-fallen-off-bus", "likely")
    assert root.summary.startswith("In an earlier boot: ")
    assert any("79" in citation.line for citation in root.citations)


NOW = {
    "after-the-last-boot": ("journalctl -k", NEXT + MARK + FELL),
    "after-the-banner": ("/var/log/kern.log", NEXT + BANNER + FELL),
    "this-boot": ("journalctl -k -b 0", FELL),
    "this-boot-by-default": ("journalctl -k -b", FELL),
    "newest-first": ("journalctl -k -r", FELL + MARK + NEXT),
    "out-of-order": (
        "dmesg",
        "[ 4242.123456] usb 1-1: new\n[ 4242.123400] NVRM: Xid (PCI:0000:07:00): 79, pid=1, gone\n",
    ),
    "excerpts": ("dmesg", "[ 4242.1234] NVRM: Xid (PCI:0000:07:00): 79, pid=1, gone\n[   12.123400] nvidia: loading\n"),
}


@pytest.mark.parametrize("log", NOW.values(), ids=NOW)
def test_fault_of_this_boot_stays_certain(log: tuple[str, str]) -> None:
    (root,) = diagnose_pieces(log).roots
    assert (root.cause, root.confidence) == ("gpu-fallen-off-bus", "certain")


def test_current_fault_is_the_root_before_an_earlier_boot() -> None:
    mismatch = (
        "nvidia-smi",
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.161",
    )
    told = (
        "Aug 02 10:00:01 n1 kernel: NVRM: API mismatch: the client has the version 535.161.08, but\n"
        "NVRM: this kernel module has the version 535.154.05.  Please\nNVRM: make sure that this kernel module and\n"
    )
    causes = [root.cause for root in diagnose_pieces(mismatch, ("journalctl -k", FELL + MARK + told)).roots]
    assert causes == ["driver-library-mismatch-reboot-pending"]


FAULTED = (
    "Aug 02 11:00:00 n1 kernel: NVRM: Xid (PCI:{}): 31, pid=1234, name=python, Ch 00000008, intr 00000000. MMU Fault: "
    "ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f12_34560000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ\n"
)


@pytest.mark.parametrize("gpu", ["0000:07:00", "0000:0a:00"])
@pytest.mark.parametrize("log", OVER.values(), ids=OVER)
def test_faults_of_two_boots_are_separate_incidents(log: tuple[str, str], gpu: str) -> None:
    now, before = diagnose_pieces(log, ("journalctl -k -b", FAULTED.format(gpu))).roots
    assert (now.cause, before.cause) == ("xid-31-mmu-fault", "gpu-fallen-off-bus")
    assert before.summary.startswith("In an earlier boot: ")
    assert "followed" not in before.summary
    assert not {citation.line for citation in now.citations} & {citation.line for citation in before.citations}


def test_line_numbers_stay_when_earlier_boots_are_cut() -> None:
    log = identify_source("/var/log/kern.log")
    assert boots.keep_running_boot(log, "/var/log/kern.log", FELL + BANNER + NEXT) == "\n" + BANNER + NEXT
    paste = "07:00.0 3D controller: NVIDIA Corporation\n" + FELL + BANNER
    assert boots.keep_running_boot(identify_source("", paste), "", paste) == f"{paste.splitlines()[0]}\n\n{BANNER}"


def test_unreadable_gpu_has_not_recovered() -> None:
    ill = WORKS[0], WORKS[1].replace("34C    P0              62W / 400W", "ERR!  ERR! ERR!             N/A  /  N/A")
    halted = "/var/log/kern.log.1", "Aug 01 10:00:00 n1 kernel: NVRM: Xid (PCI:0000:07:00): 62, 3226a9f1 0000b41c\n"
    assert diagnose_pieces(WORKS, halted).is_healthy
    (found,) = diagnose_pieces(ill, halted).roots
    assert (found.cause, found.confidence) == ("xid-62-pmu-halt", "likely")
    assert found.summary.startswith("In an earlier boot")


REMAPPED = (
    "Attached GPUs : 1\nGPU 00000000:07:00.0\n    Remapped Rows\n"
    "        Uncorrectable Error               : 1\n        Pending                           : {}\n"
    "        Remapping Failure Occurred        : No\n"
)
MARKED = (
    "[Sat Aug  1 10:00:00 2026] NVRM: Xid (PCI:0000:07:00): 48, pid=9, An uncorrectable double bit error (DBE)\n"
    "[Sat Aug  1 10:00:00 2026] NVRM: Xid (PCI:0000:07:00): 63, pid=9, Row Remapper: New row marked for remapping\n"
    "[Sat Aug  1 10:00:01 2026] NVRM: Xid (PCI:0000:07:00): 94, pid=9, Contained\n"
)


def diagnosis_with_answer(log: str, answer: str, key: str = "smi-query") -> Diagnosis:
    logs = Capture("dmesg -T", "ok", log.encode())
    return diagnose(take_snapshot({"dmesg": logs, key: Capture("nvidia-smi -q", "ok", answer.encode())}))


@pytest.mark.parametrize(
    ("key", "pending", "is_over"),
    [
        ("smi-query", "No", True),
        ("pasted", "No", False),
        ("smi-query", "Yes", False),
    ],
)
def test_row_remapped_since_is_resolved(key: str, pending: str, *, is_over: bool) -> None:
    """nvidia-smi of a node or capture runs after the logs were read; the order in a paste is unknown."""
    found = diagnosis_with_answer(MARKED, REMAPPED.format(pending), key)
    assert found.is_healthy == is_over
    first = found.findings[0]
    assert ("replaced by a reset since" in first.summary, first.disruption == "none") == (is_over, is_over)


def test_recovered_gpu_is_not_reset_with_a_broken_one() -> None:
    broken = MARKED.splitlines()[0].replace(":07:", ":0f:") + "\n"
    (root,) = diagnosis_with_answer(MARKED + broken, REMAPPED.format("No")).roots
    assert (root.cause, root.gpus, root.severity) == ("ecc-dbe-uncorrectable", ("0000:0f:00.0",), "error")


def _found_in(name: str, log: str) -> str:
    return f"/var/log/{name}:{log}"


NOW_AT_WORK = NEXT.replace("nvidia:", "[    7.123456] nvidia:")
FELL_NOW = FELL_BY_CLOCK.replace("Aug 01", "Aug 09")


@pytest.mark.parametrize("older", ["kern.log.1", "kern.log.2.gz", "kern.log-20260801", "kern.log.1:17"])
@pytest.mark.parametrize("is_newest_first", [True, False])
@pytest.mark.parametrize("files", ["/var/log/kern.log /var/log/kern.log.1", "/var/log/kern.log.1 /var/log/kern.log"])
def test_grep_through_logs_may_list_the_newest_first(files: str, older: str, is_newest_first: bool) -> None:
    def searched(then: str, now: str) -> tuple[str, str]:
        lines = _found_in("kern.log", now), _found_in(older, then)
        return f"grep -i nv {files}", "".join(lines if is_newest_first else reversed(lines))

    assert diagnose_pieces(WORKS, searched(FELL_BY_CLOCK, NOW_AT_WORK)).is_healthy
    (root,) = diagnose_pieces(searched(NOW_AT_WORK, FELL_NOW)).roots
    assert (root.cause, root.confidence) == ("gpu-fallen-off-bus", "certain")


@pytest.mark.parametrize("asked", ["journalctl -k -b -1", "journalctl --dmesg --boot=-1"])
def test_log_requested_for_other_boots_is_not_of_this_boot(asked: str) -> None:
    assert diagnose_pieces((asked, FELL)).roots[0].confidence == "likely"
