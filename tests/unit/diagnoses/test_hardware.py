"""Look-alikes among GPU faults, and non-faults: no confident wrong answer without the deciding evidence."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.diagnoses import diagnose, rule_families
from gpunode.diagnoses.evaluation import evaluate_rule
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted
from gpunode.facts.evidence import Capture


def diagnose_pieces(*pieces: tuple[str, str]) -> Diagnosis:
    rows = [{"source": source, "text": text} for source, text in pieces]
    return diagnose(take_snapshot(pasted.parse_json_report(json.dumps(rows), "a report")))


def roots(*pieces: tuple[str, str]) -> list[str]:
    return [finding.cause for finding in diagnose_pieces(*pieces).roots]


HEALTHY = """==============NVSMI LOG==============
Driver Version                            : 550.90.07
Attached GPUs                             : 2
GPU 00000000:52:00.0
    GPU Recovery Action                   : None
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            SRAM Uncorrectable Parity     : 0
            DRAM Correctable              : 12
            DRAM Uncorrectable            : 0
        Aggregate
            DRAM Correctable              : 177
            DRAM Uncorrectable            : 3
            SRAM Threshold Exceeded       : No
    Retired Pages
        Single Bit ECC                    : N/A
        Double Bit ECC                    : N/A
        Pending Page Blacklist            : N/A
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 3
        Pending                           : No
        Remapping Failure Occurred        : No
        Bank Remap Availability Histogram
            Max                           : 2557 bank(s)
            High                          : 3 bank(s)
            None                          : 0 bank(s)
GPU 00000000:53:00.0
    GPU Recovery Action                   : None
    Remapped Rows                         : N/A
"""


def test_gpu_with_completed_row_remapping_is_healthy() -> None:
    found = diagnose_pieces(("nvidia-smi -q", HEALTHY))
    assert found.is_healthy
    assert [finding.cause for finding in found.roots] == ["ecc-dbe-uncorrectable"], "the errors that led to it are told"


@pytest.mark.parametrize(
    "text",
    [
        "[ 1.0] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023",
        "[ 1.0] nvidia 0000:01:00.0: enabling device (0000 -> 0003)\n[ 2.0] nvidia-uvm: Loaded the UVM driver",
        "[ 1.0] NVRM: GPU0 kgspGetFwHeader: looking for firmware gsp_ga10x.bin\n[ 2.0] NVRM: Persistence mode is on",
    ],
)
def test_quiet_kernel_log_is_healthy(text: str) -> None:
    found = diagnose_pieces(("dmesg", text))
    assert found.findings == ()
    assert found.open_questions == ()


def test_completed_remapping_overrides_the_older_log() -> None:
    log = "NVRM: Xid (PCI:0000:52:00): 63, Row Remapper: New row marked for remapping, reset gpu to activate."
    assert roots(("dmesg", log)) == ["row-remap-pending"]
    assert "row-remap-pending" not in roots(("dmesg", log), ("nvidia-smi -q", HEALTHY))


def test_single_double_bit_error_is_no_reason_for_an_rma() -> None:
    dbe = "NVRM: Xid (PCI:0000:52:00): 48, An uncorrectable double bit error (DBE) has been detected"
    assert roots(("dmesg", dbe)) == ["ecc-dbe-uncorrectable"]
    often = "\n".join(f"[{day} 10:00:00 2025] {dbe}" for day in ("Mon Mar  3", "Tue Mar  4", "Thu Mar  6"))
    assert roots(("dmesg -T", often)) == ["hbm-failing-rma"]


def test_memory_errors_over_several_boots_lead_to_an_rma() -> None:
    dbe = "NVRM: Xid (PCI:0000:52:00): 48, An uncorrectable double bit error (DBE) has been detected"
    boots = ("Mar  3 10:00:00", 811190.331), ("Mar  4 10:00:00", 20330.118), ("Mar  6 10:00:00", 1802.225)
    log = "\n".join(f"{date} n1 kernel: [{up}] {dbe}" for date, up in boots)
    assert roots(("cat /var/log/kern.log", log)) == ["hbm-failing-rma"]
    booted = "Mar  7 10:00:00 n1 kernel: [    0.000000] Linux version 6.8.0-40-generic (buildd@x) #40\n"
    again = booted + "Mar  7 10:01:00 n1 kernel: [   60.1] nvidia: loading out-of-tree module taints kernel."
    assert {found.confidence for found in diagnose_pieces(("cat /var/log/kern.log", f"{log}\n{again}")).roots} <= {
        "likely"
    }


def test_lost_device_handle_is_a_lost_gpu_unless_in_a_guest() -> None:
    said = "Unable to determine the device handle for GPU 0000:0B:00.0: Unknown Error"
    found = diagnose_pieces(("nvidia-smi", said))
    assert [(one.cause, one.confidence) for one in found.findings] == [("gpu-fallen-off-bus", "likely")]
    assert "gpu-fallen-off-bus" not in roots(("nvidia-smi", said), ("systemd-detect-virt", "kvm"))
    lost = "[ 5.0] NVRM: Xid (PCI:0000:0b:00): 79, GPU has fallen off the bus."
    assert roots(("nvidia-smi", said), ("dmesg", lost)) == ["gpu-fallen-off-bus"]


def test_suspended_gpu_is_not_lost() -> None:
    lspci = "01:00.0 3D controller: NVIDIA Corporation GP107M [GeForce GTX 1050 Mobile] (rev ff)"
    assert "gpu-fallen-off-bus" not in roots(("lspci", lspci))


def test_gsp_start_failure_code_alone_is_not_explained() -> None:
    found = diagnose_pieces(("dmesg", "[ 5.0] NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x62:0x40:2168)"))
    assert found.findings == ()
    assert {"gsp-bad-state-wpr2", "gpu-firmware-boot-failed"} <= {one.cause for one in found.suspects}


@pytest.mark.parametrize(
    "log",
    [
        "[ 12.1] NVRM: GPU 0000:0a:00.0: RmInitAdapter failed! (0x26:0x56:1474)\n",
        "[ 12.2] NVRM: GPU 0000:0a:00.0: rm_init_adapter failed, device minor number 1\n",
    ],
)
def test_gpu_that_failed_to_start_is_reported_beside_working_ones(log: str) -> None:
    bus = ("lspci", "".join(f"{bus}:00.0 3D controller: NVIDIA Corporation GA100\n" for bus in ("07", "0a")))
    others = ("nvidia-smi -L", "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee)\n")
    assert diagnose_pieces(("dmesg", log)).suspects
    assert diagnose_pieces(("sudo dmesg | grep NVRM", log), others).suspects
    assert roots(bus, ("sudo dmesg | grep NVRM", log), others) == ["gpu-missing-from-inventory"]


@pytest.mark.parametrize("code", [8, 32, 38, 43, 45, 46, 56, 93, 110, 136, 155, 158, 175, 199])
def test_xid_without_a_cause_is_an_open_question(code: int) -> None:
    found = diagnose_pieces(("dmesg", f"[ 5.0] NVRM: Xid (PCI:0000:0a:00): {code}, pid=7, name=python3, something"))
    assert found.findings == ()
    (doubt,) = found.open_questions
    assert f"Xid {code}," in doubt.question
    assert doubt.citations


def test_missing_firmware_that_is_not_needed_is_no_fault() -> None:
    log = "[ 5.0] nvidia 0000:01:00.0: Direct firmware load for nvidia/535.161.07/gsp_ga10x.bin failed with error -2"
    smi = "| NVIDIA-SMI 535.161.07   Driver Version: 535.161.07   CUDA Version: 12.2     |"
    assert "gsp-firmware-missing" not in roots(("dmesg", log), ("nvidia-smi", smi))
    assert roots(("dmesg", log)) == ["gsp-firmware-missing"]


def test_disabling_gsp_only_works_with_proprietary_modules() -> None:
    option = ("cat /etc/modprobe.d/nvidia.conf", "options nvidia NVreg_EnableGpuFirmware=0")
    closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024"
    opened = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (x@y)  Tue Sep 23 2025"
    assert roots(option, ("cat /proc/driver/nvidia/version", closed)) == []
    assert roots(option, ("cat /proc/driver/nvidia/version", opened)) == ["gsp-disable-ignored-open-module"]
    assert roots(("cat /etc/modprobe.d/nvidia.conf", "# options nvidia NVreg_EnableGpuFirmware=0"),
                 ("cat /proc/driver/nvidia/version", opened)) == []  # fmt: skip


def test_page_faults_of_one_program_are_its_own() -> None:
    line = (
        "NVRM: Xid (PCI:0000:08:00): 31, pid={}, name={}, Ch 1. MMU Fault: ENGINE CE0 faulted @ 0x{}. Fault is of type"
    )
    same = "\n".join(line.format(pid, "python3", "7f2a_10000000") for pid in (11, 12, 13))
    assert roots(("dmesg", same)) == ["xid-31-mmu-fault"]
    null = line.format(11, "a", "0_00000000") + "\n" + line.format(12, "b", "0_00000000")
    assert roots(("dmesg", null)) == ["xid-31-mmu-fault"]
    again = line.format(11, "chrome", "0_0abe0000") + "\n" + line.format(12, "chrome", "0_0abe0000")
    assert roots(("dmesg", again)) == ["xid-31-driver-regression"]
    shared = line.format(11, "a", "0_0abe0000") + "\n" + line.format(12, "b", "0_0abe0000")
    assert roots(("dmesg", shared)) == ["xid-31-driver-regression"]


def test_old_fault_of_a_program_is_history() -> None:
    fault = "[ 100.0] NVRM: Xid (PCI:0000:08:00): 13, pid=1, name=a, Graphics SM Warp Exception on (GPC 3, TPC 2, SM 1)"
    assert diagnose_pieces(("dmesg", fault + "\n[ 200.0] usb 1-2: new device")).findings[0].severity == "warning"
    assert diagnose_pieces(("dmesg", fault + "\n[ 700000.0] usb 1-2: new device")).is_healthy
    lost = fault.replace("13, pid=1, name=a, Graphics", "79, GPU has fallen off the bus.")
    assert not diagnose_pieces(("dmesg", lost + "\n[ 700000.0] usb 1-2: new device")).is_healthy


def test_gpu_fault_explains_symptoms_of_programs_and_pods() -> None:
    lost = "[ 5.0] NVRM: Xid (PCI:0000:0b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    found = diagnose_pieces(
        (
            "dmesg",
            lost + "\n[ 5.1] NVRM: Xid (PCI:0000:0b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (x)",
        ),
        ("nvidia-smi", "Unable to determine the device handle for GPU 0000:0B:00.0: Unknown Error"),
        (
            "kubectl logs nvidia-device-plugin",
            "XidCriticalError: Xid=79 on Device=GPU-1, the device will go unhealthy.",
        ),
    )
    assert [f.cause for f in found.roots] == ["gpu-fallen-off-bus"]
    assert found.open_questions == ()


WORDS = (
    *(
        "NVRM: ",
        "Xid (PCI:",
        "0000:61:00",
        "): ",
        "79",
        "48",
        "154",
        ", pid=",
        "'<unknown>'",
        ", name=",
        "Row Remapper: ",
    ),
    *(
        "Pending : Yes",
        "    Remapped Rows",
        "GPU 00000000:07:00.0",
        "²",
        "\x00",
        "\n",
        "\n",
        " : ",
        "<gpu id=",
        "</gpu>",
        ",",
    ),
    *("gpu_bus_id, remapped_rows.pending", "RmInitAdapter failed! (0x62:", "[  5.0] ", "caused by previous Xid 999"),
    *(
        "NVreg_EnableGpuFirmware=0",
        "/lib/firmware/nvidia",
        "Retired Pages",
        "99999999999999999999",
        "Double Bit ECC : ",
    ),
)


@given(st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=8)), max_size=60).map("".join))
def test_malformed_evidence_crashes_no_rule(text: str) -> None:
    rows = [
        {"source": source, "text": text} for source in ("dmesg", "nvidia-smi -q", "nvidia-smi --query-gpu=a,b", "x")
    ]
    node = take_snapshot(pasted.parse_json_report(json.dumps(rows), "a report"))
    for family in rule_families():
        if family.id in {"lost", "memory", "gsp", "xids"}:
            for rule in family.rules:
                list(evaluate_rule(rule, node))
                list(rule.remedy(node))


LOADED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024"


@pytest.mark.parametrize(
    "lspci",
    [
        Capture("lspci -Dvmmnnk", "timeout", error="no answer within 10 s"),
        Capture("lspci -Dvmmnnk", "failed", error="pcilib: Cannot open /proc/bus/pci", exit_status=1),
        Capture("lspci | grep -i nvidia", "ok", b"bash: lspci: command not found"),
    ],
    ids=lambda capture: capture.outcome,
)
def test_unlisted_pci_bus_has_no_missing_gpu(lspci: Capture) -> None:
    """If a tool gave no answer, do not advise to reseat the card or power off."""
    driver = Capture("/proc/driver/nvidia/version", "ok", LOADED.encode())
    evidence = {"lspci": lspci, "nvidia-version": driver, "smi": Capture("nvidia-smi", "ok", b"No devices were found")}
    assert "no-gpu-present" not in [finding.cause for finding in diagnose(take_snapshot(evidence)).findings]
    bare = Capture("lspci", "ok", b"00:00.0 Host bridge: Intel Corporation Device 1237 (rev 02)\n")
    assert "no-gpu-present" in [one.cause for one in diagnose(take_snapshot({**evidence, "lspci": bare})).findings]


@pytest.mark.parametrize("state", ["failed", "masked"])
def test_stopped_fabric_manager_is_likely_on_unknown_boards(state: str) -> None:
    found = diagnose_pieces(("systemctl is-active nvidia-fabricmanager", state), ("nvidia-smi", HEALTHY))
    faults = [one for one in found.roots if one.severity != "info"]
    assert [(one.cause, one.confidence) for one in faults] == [("fabric-manager-not-running", "likely")]
