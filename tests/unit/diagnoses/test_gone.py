"""A GPU that was there and is missing now, where the others are listed: never a healthy node."""

from __future__ import annotations

import pytest

from gpunode.facts import pasted
from gpunode.workflow.doctor import Examined, diagnosed

HEAD = "| NVIDIA-SMI 550.90.07              Driver Version: 550.90.07      CUDA Version: 12.4     |"
READS = "| N/A   31C    P0             62W /  400W |       0MiB /  81920MiB |      0%      Default |"
XID = "NVRM: Xid (PCI:0000:0a:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
BEFORE = ("journalctl -k -b -1", f"Nov 22 09:12:01 n kernel: {XID}")
REBOOT = ("reboot", "")


def table(*buses: str) -> tuple[str, str]:
    rows = (
        f"|   {at}  NVIDIA A100-SXM4-80GB  On  | 00000000:{bus}:00.0 Off |      0 |" for at, bus in enumerate(buses)
    )
    return "nvidia-smi", "\n".join((HEAD, *(f"{row}\n{READS}" for row in rows)))


def listed(number: int) -> tuple[str, str]:
    rows = (f"GPU {at}: NVIDIA A100 (UUID: GPU-{at}1111111-2222-4333-8444-555555555555)" for at in range(number))
    return "nvidia-smi -L", "\n".join(rows)


def query(*buses: str) -> tuple[str, str]:
    rows = (f"{at}, 00000000:{bus}:00.0, 550.90.07" for at, bus in enumerate(buses))
    return "nvidia-smi --query-gpu=index,pci.bus_id,driver_version --format=csv,noheader", "\n".join(rows)


def whole(*buses: str) -> tuple[str, str]:
    parts = (f"GPU 00000000:{bus.upper()}:00.0\n    Product Name      : NVIDIA A100" for bus in buses)
    return "nvidia-smi -q", "\n".join(("Driver Version  : 550.90.07", f"Attached GPUs   : {len(buses)}", *parts))


def bus(*buses: str) -> tuple[str, str]:
    rows = (f"{one}:00.0 3D controller [0302]: NVIDIA Corporation GA100 [10de:20b2] (rev a1)" for one in buses)
    return "lspci -nn -d 10de:", "\n".join(rows)


def session(*steps: tuple[str, str]) -> Examined:
    return diagnosed(pasted.from_text("".join(f"root@n:~# {command}\n{said}\n" for command, said in steps)))


GONE = {
    "table": (table("07", "0a"), table("07")),
    "table, rebooted": (table("07", "0a"), REBOOT, table("07")),
    "list": (listed(2), listed(1)),
    "list, rebooted": (listed(2), REBOOT, listed(1)),
    "query": (query("07", "0a"), query("07")),
    "whole": (whole("07", "0a"), whole("07")),
    "fell in an earlier boot": (BEFORE, table("07")),
    "gone from the bus": (table("07", "0a"), REBOOT, bus("07"), table("07")),
    "bus alone": (table("07", "0a"), REBOOT, bus("07")),
    "fell before, bus alone": (table("07"), BEFORE, bus("07")),
}


@pytest.mark.parametrize("name", GONE)
def test_a_gpu_that_is_gone_is_asked_about(name: str) -> None:
    seen = session(*GONE[name])
    assert seen.verdict == "unknown"
    (doubt,) = seen.diagnosis.unknown
    assert "there once" in doubt.question
    assert {"gpu-missing-from-inventory", "gpu-fallen-off-bus"} <= set(doubt.causes)
    if "list" not in name:
        assert "0000:0a:00.0" in doubt.question


THERE = {
    "came back": (table("07"), REBOOT, table("07", "0a")),
    "came back, on the bus": (bus("07"), REBOOT, bus("07", "0a"), table("07", "0a")),
    "one alone was asked for": (table("07", "0a"), (f"{table('07')[0]} -i 0", table("07")[1])),
    "works since": (BEFORE, table("07", "0a")),
}


@pytest.mark.parametrize("name", THERE)
def test_a_gpu_that_is_there_is_not_missed(name: str) -> None:
    seen = session(*THERE[name])
    assert (seen.verdict, seen.diagnosis.unknown) == ("healthy", ())


def test_on_the_bus_and_not_with_the_driver_is_proof() -> None:
    (root,) = session(bus("07", "0a"), table("07")).diagnosis.roots
    assert (root.cause, root.gpus) == ("gpu-missing-from-inventory", ("0000:0a:00.0",))


def test_what_the_kernel_says_of_it_is_the_better_answer() -> None:
    now = ("dmesg", f"[  4242.123456] {XID}")
    found = session(table("07", "0a"), now, table("07")).diagnosis
    assert [root.cause for root in found.roots] == ["gpu-fallen-off-bus"]
    assert found.unknown == ()


def test_the_gpu_of_another_machine_is_not_missed() -> None:
    steps = (("gpu1", table("07", "0a")), ("gpu2", table("07")))
    text = "".join(f"root@{host}:~# {command}\n{said}\n" for host, (command, said) in steps)
    assert diagnosed(pasted.from_text(text)).verdict == "healthy"
