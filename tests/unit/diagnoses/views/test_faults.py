from __future__ import annotations

import json

from gpunode.diagnoses.snapshot import Snapshot, take_snapshot
from gpunode.diagnoses.views import faults
from gpunode.facts import pasted


def node(text: str, source: str = "dmesg") -> Snapshot:
    return take_snapshot(pasted.parse_json_report(json.dumps([{"source": source, "text": text}]), "a report"))


def roots(text: str, source: str = "dmesg") -> list[tuple[str, int]]:
    return [(one.gpu, one.root.code) for one in faults.find_incidents(node(text, source))]


def log(*lines: tuple[float, str]) -> str:
    return "\n".join(f"[{at:12.6f}] NVRM: {text}" for at, text in lines)


def x(code: int, rest: str = "", gpu: str = "0000:61:00") -> str:
    return f"Xid (PCI:{gpu}): {code}, {rest}"


def test_first_fault_of_a_gpu_is_the_root() -> None:
    text = log(
        (1, x(119, "Timeout waiting for RPC")), (2, x(79, "GPU has fallen off the bus.")), (3, x(45)), (4, x(154))
    )
    assert roots(text) == [("0000:61:00.0", 119)] or roots(text) == [("0000:61:00.0", 79)]
    assert roots(log((1, x(13)), (6, x(109)), (6, x(43)))) == [("0000:61:00.0", 13)]


def test_log_printed_newest_first_is_sorted_by_time() -> None:
    assert roots(log((6, x(109)), (1, x(13)))) == [("0000:61:00.0", 13)]


def test_follow_up_xid_is_a_root_only_if_alone() -> None:
    assert roots(log((1, x(154, "GPU recovery action changed")), (2, x(48)))) == [("0000:61:00.0", 48)]
    assert roots(log((1, x(45)), (2, x(43)), (3, x(31)))) == [("0000:61:00.0", 31)]
    assert roots(log((1, x(154)))) == [("0000:61:00.0", 154)]


def test_hardware_fault_outranks_a_program_fault() -> None:
    assert roots(log((1, x(31)), (2, x(48)), (2, x(63)))) == [("0000:61:00.0", 48)]
    assert roots(log((1, x(13)), (1.5, x(79)))) == [("0000:61:00.0", 79)]


def test_firmware_crash_triggered_by_a_program_keeps_its_root() -> None:
    assert roots(log((1, x(31)), (2, x(119)))) == [("0000:61:00.0", 31)]


def test_most_severe_of_distant_faults_is_the_root() -> None:
    assert roots(log((10, x(31)), (90_000, x(79)))) == [("0000:61:00.0", 79)]
    assert roots(log((10, x(63)), (90_000, x(62)))) == [("0000:61:00.0", 62)]


def test_previous_xid_named_by_the_driver_is_the_root() -> None:
    assert roots(log((1, x(45, "pid=7, name=python3, Ch 00000001 caused by previous Xid 149")))) == [
        ("0000:61:00.0", 149)
    ]


def test_lost_gpu_explains_faults_of_its_peers() -> None:
    peers = ((1.1, 74, "4e"), (1.2, 31, "87"), (2, 45, "b7"))
    later = ((at, x(code, gpu=f"0000:{bus}:00")) for at, code, bus in peers)
    text = log((1, x(79, gpu="0000:0f:00")), *later)
    assert roots(text) == [("0000:0f:00.0", 79)]


def test_independent_faults_of_two_gpus_are_two_incidents() -> None:
    text = log((1, x(79, gpu="0000:0f:00")), (2, x(48, gpu="0000:4e:00")))
    assert roots(text) == [("0000:0f:00.0", 79), ("0000:4e:00.0", 48)]


def test_fault_in_another_log_without_a_common_clock_is_no_consequence() -> None:
    """The order of pieces in a report says nothing about the order of events."""
    dated = ("dmesg -T", "[Mon Aug  3 04:31:17 2026] NVRM: Xid (PCI:0000:4b:00): 95, pid=1, Uncontained: DRAM")
    bare = ("journalctl -k -o cat", "NVRM: Xid (PCI:0019:01:00): 121, pid='<unknown>', C2C Link corrected error")
    for order in ((dated, bare), (bare, dated)):
        found = faults.find_incidents(take_snapshot(pasted.collect_pieces(order)))
        assert {one.root.code for one in found} == {95, 121}


def test_fatal_nvswitch_error_before_gpu_errors_is_the_root() -> None:
    text = (
        "[   10.1] nvidia-nvswitch0: SXid (PCI:0000:8a:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n"
        "[   10.2] NVRM: Xid (PCI:0000:61:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error on link 3\n"
        "[   10.3] NVRM: Xid (PCI:0000:61:00): 45, pid=7, name=python3, Ch 00000008\n"
    )
    (incident,) = faults.find_incidents(node(text))
    assert (incident.root.source, incident.root.code) == ("sxid", 20034)


def test_message_without_an_address_belongs_to_the_only_gpu() -> None:
    text = log((1, x(62)), (2, "Xid: 154, GPU recovery action changed to 0x2 (Node Reboot Required)"))
    (incident,) = faults.find_incidents(node(text))
    assert [fault.code for fault in incident.later_faults] == [154]


def test_quiet_log_has_no_incident() -> None:
    assert faults.find_incidents(node("[ 1.0] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.129.03")) == ()
