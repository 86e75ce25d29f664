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


def test_the_first_fault_of_a_gpu_wins() -> None:
    text = log(
        (1, x(119, "Timeout waiting for RPC")), (2, x(79, "GPU has fallen off the bus.")), (3, x(45)), (4, x(154))
    )
    assert roots(text) == [("0000:61:00.0", 119)] or roots(text) == [("0000:61:00.0", 79)]
    assert roots(log((1, x(13)), (6, x(109)), (6, x(43)))) == [("0000:61:00.0", 13)]


def test_a_log_that_was_printed_newest_first_is_read_by_its_times() -> None:
    assert roots(log((6, x(109)), (1, x(13)))) == [("0000:61:00.0", 13)]


def test_an_echo_is_a_root_only_where_nothing_else_is() -> None:
    assert roots(log((1, x(154, "GPU recovery action changed")), (2, x(48)))) == [("0000:61:00.0", 48)]
    assert roots(log((1, x(45)), (2, x(43)), (3, x(31)))) == [("0000:61:00.0", 31)]
    assert roots(log((1, x(154)))) == [("0000:61:00.0", 154)]


def test_a_program_is_not_blamed_for_what_only_hardware_does() -> None:
    assert roots(log((1, x(31)), (2, x(48)), (2, x(63)))) == [("0000:61:00.0", 48)]
    assert roots(log((1, x(13)), (1.5, x(79)))) == [("0000:61:00.0", 79)]


def test_a_firmware_crash_that_a_program_set_off_stays_the_program_s() -> None:
    assert roots(log((1, x(31)), (2, x(119)))) == [("0000:61:00.0", 31)]


def test_of_faults_far_apart_the_gravest_counts() -> None:
    assert roots(log((10, x(31)), (90_000, x(79)))) == [("0000:61:00.0", 79)]
    assert roots(log((10, x(63)), (90_000, x(62)))) == [("0000:61:00.0", 62)]


def test_what_the_driver_names_as_the_cause_is_the_root_though_no_line_has_it() -> None:
    assert roots(log((1, x(45, "pid=7, name=python3, Ch 00000001 caused by previous Xid 149")))) == [
        ("0000:61:00.0", 149)
    ]


def test_one_gpu_s_death_explains_the_faults_of_its_peers_programs_and_links() -> None:
    peers = ((1.1, 74, "4e"), (1.2, 31, "87"), (2, 45, "b7"))
    later = ((at, x(code, gpu=f"0000:{bus}:00")) for at, code, bus in peers)
    text = log((1, x(79, gpu="0000:0f:00")), *later)
    assert roots(text) == [("0000:0f:00.0", 79)]


def test_two_gpus_with_faults_of_their_own_are_two_incidents() -> None:
    text = log((1, x(79, gpu="0000:0f:00")), (2, x(48, gpu="0000:4e:00")))
    assert roots(text) == [("0000:0f:00.0", 79), ("0000:4e:00.0", 48)]


def test_a_fatal_error_of_a_switch_before_those_of_its_gpus_is_the_root() -> None:
    text = (
        "[   10.1] nvidia-nvswitch0: SXid (PCI:0000:8a:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n"
        "[   10.2] NVRM: Xid (PCI:0000:61:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error on link 3\n"
        "[   10.3] NVRM: Xid (PCI:0000:61:00): 45, pid=7, name=python3, Ch 00000008\n"
    )
    (incident,) = faults.find_incidents(node(text))
    assert (incident.root.source, incident.root.code) == ("sxid", 20034)


def test_a_message_without_an_address_is_of_the_only_gpu_that_is_named() -> None:
    text = log((1, x(62)), (2, "Xid: 154, GPU recovery action changed to 0x2 (Node Reboot Required)"))
    (incident,) = faults.find_incidents(node(text))
    assert [fault.code for fault in incident.later_faults] == [154]


def test_a_quiet_log_tells_of_nothing() -> None:
    assert faults.find_incidents(node("[ 1.0] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.129.03")) == ()
