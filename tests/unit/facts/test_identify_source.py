"""Kind of a piece of evidence, from the ways in which people name its source."""

from __future__ import annotations

import pytest

from gpunode.facts import pasted
from gpunode.facts.items import split_items
from gpunode.facts.sources import identify_described_sources, identify_source

_SAYS_ALL = {
    "jq . /etc/docker/daemon.json": ("file", "/etc/docker/daemon.json"),
    "lsmod   # nothing of nvidia's": ("lsmod", ""),
    "echo '--- modules'; lsmod": ("lsmod", ""),
    "modinfo -n nvidia": ("modinfo", "nvidia"),
    "modinfo -F version nvidia_uvm": ("modinfo", "nvidia_uvm"),
    "bash -c 'lsmod'": ("lsmod", ""),
    "ssh gpu3 'cat /proc/cmdline'": ("file", "/proc/cmdline"),
    "kubectl debug node/gpu3 -it --image=busybox -- chroot /host lsmod": ("lsmod", ""),
    "oc debug node/gpu3 -- chroot /host cat /proc/cmdline": ("file", "/proc/cmdline"),
    "rpm -qa --qf '%{NAME} %{VERSION}\\n'": ("packages", ""),
    "talosctl -n 10.0.0.2 read /proc/modules": ("lsmod", "/proc/modules"),
    "find /lib/modules/6.8.0 -name nvidia.ko -exec modinfo -F version {} +": ("modinfo", "nvidia"),
    "/proc/cmdline, after the reboot": ("file", "/proc/cmdline"),
    "gpu3# cat /proc/cmdline": ("file", "/proc/cmdline"),
}


@pytest.mark.parametrize("written", _SAYS_ALL)
def test_command_is_identified_with_complete_output(written: str) -> None:
    seen = identify_source(written)
    assert (seen.kind, seen.subject) == _SAYS_ALL[written]
    assert (seen.pattern, seen.is_part, seen.where) == ("", False, "host")


@pytest.mark.parametrize(
    "written",
    [
        "sed -n 1,20p /etc/fstab",
        "awk '{print $1}' /etc/fstab",
        "lsmod | head",
    ],
)
def test_command_is_identified_with_partial_output(written: str) -> None:
    assert identify_source(written).is_part


@pytest.mark.parametrize("written", ["lsmod | grep -c nvidia", "lsmod | wc -l"])
def test_command_is_identified_as_a_count(written: str) -> None:
    assert identify_source(written).is_count


@pytest.mark.parametrize(
    ("written", "only"),
    [
        ("lsmod | grep -e nvidia -e nouveau", "nvidia|nouveau"),
        ("grep -A 3 -i nvidia /etc/fstab", "nvidia"),
        ("grep . /etc/fstab", ""),
        ("lsmod | grep nvidia | grep uvm", "(?=.*(?:nvidia))(?=.*(?:uvm))"),
    ],
)
def test_piped_greps_are_combined(written: str, only: str) -> None:
    assert identify_source(written).pattern == only


def test_output_to_dev_null_is_ignored() -> None:
    assert [one.kind for one in identify_described_sources("jq . /etc/docker/daemon.json >/dev/null && lsmod")] == [
        "lsmod"
    ]


def test_grepped_lines_are_attributed_to_their_files() -> None:
    told = "/etc/modprobe.d/a.conf:7:one\n/etc/modprobe.d/b.conf:2:two"
    listing, first, second = split_items(pasted.collect_pieces([("grep -rn . /etc/modprobe.d", told)]))
    assert listing.text == told
    assert (first.subject, first.lines[0]) == ("/etc/modprobe.d/a.conf", "one")
    assert (second.subject, second.lines[1]) == ("/etc/modprobe.d/b.conf", "two")
    assert first.source.is_part


@pytest.mark.parametrize(
    ("written", "said", "own"),
    [
        (
            "uname -r; lsmod; cat /sys/module/nvidia/version",
            "6.8.0\na 1 0\nb 1 0\n550.54",
            ["6.8.0", "a 1 0\nb 1 0", "550.54"],
        ),
        ("lsmod > /tmp/l; uname -r", "6.8.0", ["", "6.8.0"]),
        ("dmesg | wc -l; lsmod", "4711\na 1 0", ["4711", "a 1 0"]),
        ("lsmod; dmesg", "a 1 0\nb", ["a 1 0\nb", "a 1 0\nb"]),
        ("for m in a b; do modinfo -F version $m; done; uname -r", "1\n2\n6.8.0", ["1\n2", "6.8.0"]),
        (
            "cat /sys/module/nvidia/version; uptime -p; modinfo -F version nvidia",
            "550.54.15\nup 1 day\n550.90.07",
            ["550.54.15", "550.90.07"],
        ),
    ],
)
def test_output_of_several_commands_is_split_by_length(written: str, said: str, own: list[str]) -> None:
    found = [one for one in split_items(pasted.collect_pieces([(written, said)])) if one.kind != "text"]
    assert [one.text.strip("\n") for one in found] == own
