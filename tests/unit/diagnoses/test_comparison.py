from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import pytest
from hypothesis import given, settings

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.comparison import Comparison, compare
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted
from gpunode.facts.evidence import Capture, Evidence, GlobMatch, encode_matches
from gpunode.redaction.evidence import redact
from tests.fakes.examples import examples
from tests.laws.reports import damaged_reports

UUIDS = ("3f2b8c1d-0a4e-4f6b-9c7d-8e5f4a3b2c1d", "11111111-2222-4333-8444-555555555555")
CMDLINE = "BOOT_IMAGE=/vmlinuz-6.1.0-18-amd64 root=UUID={uuid} ro quiet{more}\n"


def seen(source: str, text: str) -> Capture:
    return Capture(source, "ok", text.encode(), content_kind="log")


def files(pattern: str, **found: str) -> Capture:
    rows = (
        GlobMatch(pattern.replace("*", name.replace("__", ".")), data=text.encode()) for name, text in found.items()
    )
    return Capture(pattern, "ok", encode_matches(rows))


def node(number: int = 0, **changed: Capture | None) -> Evidence:
    """Return a healthy node; another ``number`` is another machine of the same kind."""
    address = f"0000:{0x17 + number:02x}:00.0"
    evidence: dict[str, Capture | None] = {
        "file:/proc/cmdline": seen("/proc/cmdline", CMDLINE.format(uuid=UUIDS[number], more="")),
        "kernel-release": seen("uname -r", "6.1.0-18-amd64\n"),
        "boot-id": seen("/proc/sys/kernel/random/boot_id", UUIDS[number]),
        "modules": seen("/proc/modules", "nvidia_uvm 1 0 - Live 0x0\nnvidia 2 1 nvidia_uvm, Live 0x0\n"),
        "nvidia-version": seen(
            "/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue\nGCC version: \n",
        ),
        "lspci": seen(
            "lspci -Dvmmnnk",
            f"Slot:\t{address}\nClass:\t3D controller [0302]\nVendor:\tNVIDIA Corporation [10de]\n"
            "Device:\tGA100 [A100 SXM4 40GB] [20b0]\nRev:\ta1\nDriver:\tnvidia\n\n",
        ),
        "link-widths": files("/sys/bus/pci/devices/*/current_link_width", **{address.replace(".", "__"): "16\n"}),
        "file:/sys/class/dmi/id/bios_version": seen("/sys/class/dmi/id/bios_version", "2.1.7\n"),
        "node-name": seen("/proc/sys/kernel/hostname", f"gpu{number}\n"),
        "dpkg-status": seen(
            "/var/lib/dpkg/status",
            "Package: nvidia-driver-550\nStatus: install ok installed\nArchitecture: amd64\nVersion: 550.54.15-1\n\n"
            "Package: vim\nStatus: install ok installed\nArchitecture: amd64\nVersion: 9.0\n\n",
        ),
        "file:/etc/docker/daemon.json": seen(
            "/etc/docker/daemon.json", '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}, "debug": false}'
        ),
        "modprobe-d": files("/etc/modprobe.d/*", x__conf="# ours\nblacklist nouveau\n"),
        **changed,
    }
    return {key.replace("__", "/"): capture for key, capture in evidence.items() if capture is not None}


def compare_evidence(good: Evidence, bad: Evidence) -> Comparison:
    after = take_snapshot(bad)
    return compare(take_snapshot(good), after, diagnose(after))


def test_equal_machines_have_no_differences() -> None:
    found = compare_evidence(node(0), node(1))
    assert found.differences == ()
    assert found.not_compared == ()
    assert not found.has_explanation


@pytest.mark.parametrize(
    ("changed", "trait", "name", "good", "bad"),
    [
        (
            {"file:/proc/cmdline": seen("/proc/cmdline", CMDLINE.format(uuid=UUIDS[1], more=" iommu=pt"))},
            "arguments", "iommu", None, "pt",
        ),
        ({"modules": seen("/proc/modules", "nvidia 2 0 - Live 0x0\n")}, "modules", "nvidia_uvm", "loaded", None),
        (
            {"nvidia-version": seen("/proc/driver/nvidia/version",
             "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Tue\nGCC version: \n")},
            "driver", "loaded module", "550.54.15", "535.183.01",
        ),
        ({"lspci": seen("lspci -Dvmmnnk", "Slot:\t0000:00:00.0\nClass:\tHost bridge [0600]\nVendor:\tIntel [8086]\n"
          "Device:\tX [1237]\n\n"), "link-widths": None},
         "devices", "GA100 [A100 SXM4 40GB]", "1 ×", None),
        ({"link-widths": files("/sys/bus/pci/devices/*/current_link_width", **{"0000:18:00__0": "8\n"})},
         "links", "link width", "16", "8"),
        ({"file:/sys/class/dmi/id/bios_version": seen("/sys/class/dmi/id/bios_version", "2.0.1\n")},
         "firmware", "BIOS version", "2.1.7", "2.0.1"),
        ({"file:/etc/docker/daemon.json": seen("/etc/docker/daemon.json", '{"debug": ')},
         "file:/etc/docker/daemon.json", "/etc/docker/daemon.json", None, "cannot be parsed"),
        ({"modprobe-d": files("/etc/modprobe.d/*", x__conf="# ours\n")},
         "file:/etc/modprobe.d/*", "/etc/modprobe.d/x.conf: blacklist nouveau", "there", None),
    ],
)  # fmt: skip
def test_explaining_difference_is_likely_and_shows_both_values(
    changed: dict[str, Capture | None], trait: str, name: str, good: str | None, bad: str | None
) -> None:
    found = compare_evidence(node(0), node(1, **changed))
    (one,) = [one for one in found.differences if (one.trait, one.name) == (trait, name)]
    assert (one.good, one.bad, one.weight) == (good, bad, "likely")
    assert one.why
    assert found.has_explanation


def names(found: Comparison) -> list[tuple[str, str | None, str | None]]:
    return [(one.name, one.good, one.bad) for one in found.differences]


def test_lost_pin_is_one_difference_however_many_packages_it_names() -> None:
    # One difference for each of its ninety lines hid the others.
    names_held = "libcuda1:any\n " + "\n ".join(f"nvidia-{number}:any" for number in range(90))
    pin = (
        f"# ours\nPackage: {names_held}\nPin: version 580.*\nPin-Priority: 1001\n\nPackage: nvidia-*\nPin: release *\n"
    )
    one = files("/etc/apt/preferences.d/*", gpunode=pin)
    found = compare_evidence(node(apt_preferences_d=one), node(1, apt_preferences_d=files("/etc/apt/preferences.d/*")))
    held = " ".join(sorted(names_held.split()))
    assert names(found) == [
        ("/etc/apt/preferences.d/gpunode: release *", "priority None for 1: nvidia-*", None),
        ("/etc/apt/preferences.d/gpunode: version 580.*", f"priority 1001 for 91: {held}", None),
    ]


def test_pins_are_compared_by_what_they_pin_and_not_by_stanza() -> None:
    def pinned(*stanzas: str) -> Evidence:
        text = "\n".join(f"Package: {names}\nPin: version 580.*\nPin-Priority: 1001\n" for names in stanzas)
        return node(0, apt_preferences_d=files("/etc/apt/preferences.d/*", x=text))

    assert compare_evidence(pinned("a b", "c"), pinned("c", "b a")).differences == ()
    (other,) = compare_evidence(pinned("a b"), pinned("a c")).differences
    assert (other.good, other.bad) == ("priority 1001 for 2: a b", "priority 1001 for 2: a c")


def test_differences_near_the_cited_evidence_come_first() -> None:
    wide = {"link-max": files("/sys/bus/pci/devices/*/max_link_width", **{"0000:18:00__0": "16\n"})}
    narrow = files("/sys/bus/pci/devices/*/current_link_width", **{"0000:18:00__0": "8\n"})
    words = CMDLINE.format(uuid=UUIDS[1], more=" pcie_aspm=off iommu=pt")
    bad = node(1, **{**wide, "link-widths": narrow, "file:/proc/cmdline": seen("/proc/cmdline", words)})
    found = compare_evidence(node(0), bad).differences
    assert [(one.name, one.near_root_cause) for one in found] == [
        ("link width", True),
        ("iommu", True),
        ("pcie_aspm", True),
    ]


def test_secret_lost_in_redaction_is_no_difference() -> None:
    docker = '{"proxies": {"http-proxy": "http://me:hunter2@proxy:3128"}}'
    live = node(0, **{"file:/etc/docker/daemon.json": seen("/etc/docker/daemon.json", docker)})
    assert compare_evidence(redact(redact(live)), redact(live)).differences == ()


@given(damaged_reports, damaged_reports)
@settings(max_examples=examples(25), deadline=None)
def test_comparison_is_symmetric(one: Evidence, other: Evidence) -> None:
    assert compare_evidence(one, one).differences == ()
    there, back = compare_evidence(one, other), compare_evidence(other, one)
    assert {(each.trait, each.name, each.good, each.bad) for each in there.differences} == {
        (each.trait, each.name, each.bad, each.good) for each in back.differences
    }


def test_comparison_of_little_evidence_is_inconclusive() -> None:
    """A log compared with a capture shows no difference, since nothing is compared."""
    log = {"dmesg": seen("dmesg", "[ 1.0] usb 1-1: new device\n")}
    found = compare_evidence(log, node(1))
    assert (found.has_explanation, found.is_conclusive) == (False, False)
    assert found.missing == ("PCI devices", "driver versions", "kernel", "loaded modules", "packages")
    assert compare_evidence(node(0), node(1, modules=None)).is_conclusive


CONFIGURED = {
    "file:/etc/docker/daemon.json": seen("/etc/docker/daemon.json", '{"default-runtime": "nvidia"}'),
    "file:/etc/containerd/config.toml": seen("/etc/containerd/config.toml", "version = 2\n"),
    "modprobe-d": files("/etc/modprobe.d/*", x__conf="blacklist nouveau\n"),
    "file:/proc/cmdline": seen("/proc/cmdline", "ro iommu=pt\n"),
    "modules": node()["modules"],
    "lspci": node()["lspci"],
    "file:/sys/class/dmi/id/bios_version": seen("/sys/class/dmi/id/bios_version", "2.1.7\n"),
    "units": seen("systemctl show", "Id=docker.service\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled\n"),
    "docker-info": seen("docker info", "Server Version: 27.1\nDefault Runtime: nvidia\n"),
}


@pytest.mark.parametrize("reason", ["denied", "failed", "timeout"])
@pytest.mark.parametrize("key", sorted(CONFIGURED))
def test_denied_or_failed_evidence_is_not_compared(key: str, reason: Literal["denied", "failed", "timeout"]) -> None:
    good, source = node(0, **CONFIGURED), CONFIGURED[key].source
    found = compare_evidence(good, node(0, **{**CONFIGURED, key: Capture(source, reason, error="in the way")}))
    assert not found.has_explanation
    assert [(one.side, one.reason) for one in found.not_compared if one.trait != "links"] == [("bad", reason)]


def pasted_node(*answers: tuple[str, str]) -> Evidence:
    return pasted.collect_pieces([*answers])


A100 = "3D controller: NVIDIA Corporation GA100 [A100 SXM4 80GB] (rev a1)"
SLOTS = ("07", "0a", "47", "4d", "87", "8d", "b7", "bd")
DAEMON = "/etc/docker/daemon.json"
LSMOD = "ib_core 1 0 - Live 0x0\nnvidia_uvm 1 0 - Live 0x0\nnvidia 1 0 - Live 0x0\n"


def bus(slots: Sequence[str]) -> tuple[str, str]:
    return "lspci | grep -i nvidia", "\n".join(f"{slot}:00.0 {A100}" for slot in slots)


def smi(number: int) -> tuple[str, str]:
    uuids = (f"GPU-1111111{index}-2222-4333-8444-555555555555" for index in range(number))
    rows = (f"GPU {index}: NVIDIA A100-SXM4-80GB (UUID: {uuid})" for index, uuid in enumerate(uuids))
    return "nvidia-smi -L", "\n".join(rows)


def verbose_bus(widths: Mapping[str, int]) -> tuple[str, str]:
    row = "{}:00.0 {}\n\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x16\n\t\tLnkSta:\tSpeed 16GT/s, Width x{}"
    return "lspci -vv", "\n".join(row.format(slot, A100, width) for slot, width in widths.items())


def in_cluster(allocatable: int) -> tuple[str, str]:
    said = "Name:  gpu1\nCapacity:\n  nvidia.com/gpu:  16\nAllocatable:\n  nvidia.com/gpu:  {}\n"
    return "kubectl describe node gpu1", said.format(allocatable)


WIDE = dict.fromkeys(SLOTS, 16)
KERNELS = ("5.15.0-105-generic", "5.15.0-119-generic")


@pytest.mark.parametrize(
    ("good", "bad", "differences", "unseen"),
    [
        # A GPU that one side lacks comes first, by count and by slot; by slot only if both use the same slots.
        ((bus(SLOTS), smi(8), ("uname -r", KERNELS[0])), (bus(SLOTS[:-1]), smi(7), ("uname -r", KERNELS[1])),
         [("GA100 [A100 SXM4 80GB]", "8 ×", "7 ×"), ("GPU at 0000:bd:00.0", "one", None),
          ("GPUs that the driver has", "8", "7"), ("running kernel", *KERNELS)], []),
        ((bus(SLOTS[:4]),), (bus(("17", "65", "ca")),), [("GA100 [A100 SXM4 80GB]", "4 ×", "3 ×")], []),
        ((("lspci", f"18:00.0 {A100}"),), (("lspci", "00:00.0 Host bridge: Intel Corporation Device 1237 (rev 02)"),),
         [("GA100 [A100 SXM4 80GB]", "1 ×", None)], []),
        # A missing GPU is not a lost lane.
        ((verbose_bus(WIDE),), (verbose_bus(dict.fromkeys(SLOTS[:-1], 16)),),
         [("GA100 [A100 SXM4 80GB]", "8 ×", "7 ×"), ("GPU at 0000:bd:00.0", "one", None)], []),
        ((verbose_bus(WIDE),), (verbose_bus({**WIDE, "0a": 8}),), [("link width", "16", "16, 8")], []),
        # A tool without an answer has not shown that there is nothing.
        ((smi(8), ("docker info", "Server Version: 27.1\n")),
         (("nvidia-smi", "Failed to initialize NVML: Unknown Error"),
          ("docker info", "Cannot connect to the Docker daemon at unix:///var/run/docker.sock.")), [],
         [("gpus", "failed", ()), ("docker", "failed", ())]),
        ((("cat " + DAEMON, "{}"),), (("cat " + DAEMON, f"cat: {DAEMON}: Permission denied"),), [],
         [(f"file:{DAEMON}", "denied", ())]),
        # Part of a table is evidence only about the rows that it would show.
        ((("cat /proc/modules", LSMOD),), (("lsmod | grep nvidia", "nvidia  56713216  0"),),
         [("nvidia_uvm", "loaded", None)], [("modules", "not-collected", ("ib_core",))]),
        # Numbers compare as numbers.
        ((in_cluster(16),), (in_cluster(9),), [("nvidia.com/gpu", "16", "9")], []),
    ],
)  # fmt: skip
def test_pasted_nodes_are_compared_by_what_both_show(
    good: tuple[tuple[str, str], ...],
    bad: tuple[tuple[str, str], ...],
    differences: list[tuple[str, str | None, str | None]],
    unseen: list[tuple[str, str, tuple[str, ...]]],
) -> None:
    found = compare_evidence(pasted_node(*good), pasted_node(*bad))
    assert names(found) == differences
    assert [(one.trait, one.reason, one.names) for one in found.not_compared] == unseen


WITH_DRIVER = """\
18:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 SXM4 40GB] [10de:20b0] (rev a1)
\tKernel driver in use: nvidia
\tKernel modules: nvidiafb, nouveau, nvidia
"""
WITH_LINK = """\
18:00.0 3D controller: NVIDIA Corporation GA100 [A100 SXM4 40GB] (rev a1)
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16
\t\tLnkSta:\tSpeed 32GT/s, Width x16
"""


def test_capture_and_paste_of_equal_nodes_have_no_differences() -> None:
    paste = pasted_node(
        ("lspci -nnk -d 10de:", WITH_DRIVER),
        ("uname -r", "6.1.0-18-amd64"),
        ("lsmod | grep nvidia", "nvidia_uvm  1531904  0\nnvidia  56713216  1 nvidia_uvm"),
        ("cat /proc/driver/nvidia/version", node()["nvidia-version"].text),
        ("sudo lspci -vv -s 18:00.0", WITH_LINK),
    )
    plain = pasted_node(("lspci | grep -i nvidia", f"18:00.0 {A100.replace('80GB', '40GB')}"))
    for one in (paste, plain):
        for found in (compare_evidence(node(0), one), compare_evidence(one, node(0))):
            assert found.differences == ()
            assert found.is_conclusive == (one is paste)
