"""Which lines of one text are whose, where several commands printed it."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.facts import pasted
from gpunode.facts.items import items
from gpunode.facts.shares import share_out
from gpunode.facts.sources import commands
from tests.fakes.calls import calls

CASES = [
    (
        "cat /sys/module/nvidia/version; modinfo -F version nvidia; uname -r",
        "550.54.15\n550.90.07\n6.8.0-40-generic",
        [["550.54.15"], ["550.90.07"], ["6.8.0-40-generic"]],
    ),
    (
        "uname -r; dkms status; nvidia-smi",
        "6.8.0-40-generic\nNVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
        [["6.8.0-40-generic"], [], ["NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."]],
    ),
    (
        "readlink /sys/bus/pci/devices/0000:0a:00.{0,1}/driver; getenforce",
        "../../bus/pci/drivers/vfio-pci\n../../bus/pci/drivers/snd_hda_intel\nPermissive",
        [["../../bus/pci/drivers/vfio-pci"], ["../../bus/pci/drivers/snd_hda_intel"], ["Permissive"]],
    ),
    (
        "systemctl is-active nvidia-persistenced nvidia-fabricmanager; ls -l /dev/nvidia0; lsmod | grep ^nvidia",
        "active\nfailed\nls: cannot access '/dev/nvidia0': No such file or directory\nnvidia_uvm 1 0",
        [["active", "failed"], ["ls: cannot access '/dev/nvidia0': No such file or directory"], ["nvidia_uvm 1 0"]],
    ),
    (
        "mokutil --sb-state; modprobe nvidia; dmesg | grep -c NVRM",
        "SecureBoot enabled\nmodprobe: ERROR: could not insert 'nvidia': Key was rejected by service\n0",
        [["SecureBoot enabled"], ["modprobe: ERROR: could not insert 'nvidia': Key was rejected by service"], ["0"]],
    ),
    (
        "rpm -q nvidia-driver kmod-nvidia-latest-dkms; modinfo -F license nvidia",
        "nvidia-driver-550.90.07-1.el9.x86_64\npackage kmod-nvidia-latest-dkms is not installed\nNVIDIA",
        [
            ["nvidia-driver-550.90.07-1.el9.x86_64", "package kmod-nvidia-latest-dkms is not installed"],
            ["NVIDIA"],
        ],
    ),
    (
        "cp a b > /dev/null; echo 1 > /sys/bus/pci/rescan; nvidia-smi -L | wc -l; dkms status",
        "8\n-bash: dkms: command not found",
        [[], [], ["8"], ["-bash: dkms: command not found"]],
    ),
]


@pytest.mark.parametrize(("line", "text", "expected"), CASES, ids=[line[:40] for line, _, _ in CASES])
def test_each_command_has_the_lines_that_it_certainly_printed(line: str, text: str, expected: list[list[str]]) -> None:
    shares = share_out(commands(line), text)
    assert shares is not None
    assert [[said for said in share.text.split("\n") if said] for share in shares] == expected
    assert all(share.is_alone for share in shares)


def test_a_line_that_may_be_of_two_commands_stands_with_both() -> None:
    shares = share_out(commands("frob; uname -r; twiddle"), "one\n6.8.0-40-generic\n6.8.0-41-generic")
    assert shares is not None
    assert [share.text.split() for share in shares] == [
        ["one", "6.8.0-40-generic"],
        ["6.8.0-40-generic", "6.8.0-41-generic"],
        ["6.8.0-41-generic"],
    ]
    assert not any(share.is_alone for share in shares)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("uname -r; cat /sys/module/nvidia/version", "6.8.0-40-generic"),
        ("uname -r", "6.8.0"),
        ("for k in a b; do uname -r; cat $k; done", "6.8.0\nx"),
        ("uname -r; getenforce", "Enforcing\n6.8.0"),
    ],
)
def test_a_text_that_does_not_fit_its_commands_is_not_shared_out(line: str, text: str) -> None:
    assert share_out(commands(line), text) is None


def test_the_same_place_counts_commands_and_what_is_recognised_of_them() -> None:
    line = "lscpu | grep Vendor; modinfo -F version nvidia; cat /sys/module/nvidia/version"
    found = items(pasted.evidence([(line, "Vendor ID: GenuineIntel\n570.86.15\n565.57.01")]))
    assert [(item.kind, item.text.strip(), item.source.is_mixed) for item in found] == [
        ("modinfo", "570.86.15", False),
        ("file", "565.57.01", False),
        ("text", "Vendor ID: GenuineIntel", False),
    ]


WORDS = ["uname -r", "ls -l /dev", "nvidia-smi", "frob", "modinfo -F version nvidia", "dmesg | grep NVRM", "cat /a /b"]
LINES = ["6.8.0", "550.54.15", "crw-rw-rw- 1 root", "ls: cannot access '/x'", "[ 1.0] NVRM: x", "| GPU |", "", "what"]


@given(st.lists(st.sampled_from(WORDS), min_size=2, max_size=6), st.lists(st.sampled_from(LINES), max_size=12))
def test_no_line_is_lost_and_none_moves(line: list[str], said: list[str]) -> None:
    shares = share_out(commands("; ".join(line)), "\n".join(said))
    for number, text in enumerate(said):
        if shares is not None and text:
            rows = [(share.text.split("\n") + [""] * len(said))[number] for share in shares]
            assert {row for row in rows if row} == {text}


def test_twice_the_lines_cost_twice_the_calls() -> None:
    """Each command is asked once about each line; the number of ways to cut the text has no part in it."""
    line = commands("; ".join(["frob", "uname -r"] * 30))
    once, twice = (calls(partial(share_out, line, "6.8.0\n" * count)) for count in (199, 398))
    assert once < twice < 2.5 * once
