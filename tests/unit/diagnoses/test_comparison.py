from __future__ import annotations

import pytest
from hypothesis import given, settings

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.comparison import Comparison, compare
from gpunode.diagnoses.snapshot import snapshot
from gpunode.facts import pasted
from gpunode.facts.evidence import Capture, Evidence, Found, encode_found
from gpunode.host.redact import redact
from tests.fakes.examples import examples
from tests.laws.reports import damaged_reports

UUIDS = ("3f2b8c1d-0a4e-4f6b-9c7d-8e5f4a3b2c1d", "11111111-2222-4333-8444-555555555555")
CMDLINE = "BOOT_IMAGE=/vmlinuz-6.1.0-18-amd64 root=UUID={uuid} ro quiet{more}\n"


def seen(source: str, text: str) -> Capture:
    return Capture(source, "ok", text.encode())


def files(pattern: str, **found: str) -> Capture:
    rows = (Found(pattern.replace("*", name.replace("__", ".")), data=text.encode()) for name, text in found.items())
    return Capture(pattern, "ok", encode_found(rows))


def node(number: int = 0, **changed: Capture | None) -> Evidence:
    """A healthy node; another ``number`` is another machine of the same kind."""
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


def compared(good: Evidence, bad: Evidence) -> Comparison:
    after = snapshot(bad)
    return compare(snapshot(good), after, diagnose(after))


def test_two_machines_that_differ_in_nothing_that_matters_do_not_differ() -> None:
    found = compared(node(0), node(1))
    assert found.differences == ()
    assert found.unseen == ()
    assert not found.matters


@pytest.mark.parametrize(
    ("changed", "trait", "name", "good", "bad"),
    [
        (
            {"file:/proc/cmdline": seen("/proc/cmdline", CMDLINE.format(uuid=UUIDS[1], more=" iommu=pt"))},
            "arguments", "iommu", None, "pt",
        ),
        ({"kernel-release": seen("uname -r", "6.1.0-21-amd64\n")},
         "kernel", "running kernel", "6.1.0-18-amd64", "6.1.0-21-amd64"),
        ({"modules": seen("/proc/modules", "nvidia 2 0 - Live 0x0\n")}, "modules", "nvidia_uvm", "loaded", None),
        (
            {"nvidia-version": seen("/proc/driver/nvidia/version",
             "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Tue\nGCC version: \n")},
            "driver", "loaded module", "550.54.15", "535.183.01",
        ),
        ({"lspci": seen("lspci -Dvmmnnk", "Slot:\t0000:00:00.0\nClass:\tHost bridge [0600]\nVendor:\tIntel [8086]\n"
          "Device:\tX [1237]\n\n"), "link-widths": None},
         "devices", "GA100 [A100 SXM4 40GB] [10de:20b0]", "1 ×", None),
        ({"link-widths": files("/sys/bus/pci/devices/*/current_link_width", **{"0000:18:00__0": "8\n"})},
         "links", "link width", "1 × 16", "1 × 8"),
        ({"file:/sys/class/dmi/id/bios_version": seen("/sys/class/dmi/id/bios_version", "2.0.1\n")},
         "firmware", "BIOS version", "2.1.7", "2.0.1"),
        ({"file:/etc/docker/daemon.json": seen("/etc/docker/daemon.json", '{"debug": false}')},
         "file:/etc/docker/daemon.json", "/etc/docker/daemon.json: runtimes.nvidia.path",
         '"nvidia-container-runtime"', None),
        ({"file:/etc/docker/daemon.json": seen("/etc/docker/daemon.json", '{"debug": ')},
         "file:/etc/docker/daemon.json", "/etc/docker/daemon.json", None, "cannot be parsed"),
        ({"modprobe-d": files("/etc/modprobe.d/*", x__conf="# ours\n")},
         "file:/etc/modprobe.d/*", "/etc/modprobe.d/x.conf: blacklist nouveau", "there", None),
    ],
)  # fmt: skip
def test_what_explains_faults_is_found_with_both_values_and_called_likely(
    changed: dict[str, Capture | None], trait: str, name: str, good: str | None, bad: str | None
) -> None:
    found = compared(node(0), node(1, **changed))
    (one,) = [one for one in found.differences if (one.trait, one.name) == (trait, name)]
    assert (one.good, one.bad, one.weight) == (good, bad, "likely")
    assert one.why
    assert found.matters


def test_what_explains_little_stays_in_the_background() -> None:
    docker = '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}, "debug": true}'
    found = compared(node(0), node(1, **{"file:/etc/docker/daemon.json": seen("/etc/docker/daemon.json", docker)}))
    assert [(one.name, one.weight) for one in found.differences] == [("/etc/docker/daemon.json: debug", "background")]
    assert not found.matters


def test_what_one_of_the_two_does_not_show_is_told_and_not_guessed() -> None:
    found = compared(node(0), node(1, **{"file:/proc/cmdline": None}))
    assert found.unseen == ("kernel arguments",)
    assert not found.differences


def test_a_version_that_nobody_looked_for_is_no_difference() -> None:
    smi = "| NVIDIA-SMI 550.127.05             Driver Version: 550.127.05     CUDA Version: 12.4     |"
    asked = pasted.evidence([("nvidia-smi", smi)])
    known = pasted.evidence([("nvidia-smi", smi), ("modinfo -F version nvidia", "550.127.05")])
    assert not compared(known, asked).differences
    assert compared(known, asked).missing


def test_what_lies_where_the_root_cause_was_found_comes_first() -> None:
    bad = node(
        1,
        **{
            "modules": seen("/proc/modules", "nouveau 2 0 - Live 0x0\n"),
            "nvidia-version": Capture("/proc/driver/nvidia/version", "absent"),
            "lspci": seen("lspci -Dvmmnnk", node(1)["lspci"].text.replace("Driver:\tnvidia", "Driver:\tnouveau")),
            "file:/etc/docker/daemon.json": seen("/etc/docker/daemon.json", "{}"),
        },
    )
    found = compared(node(0), bad)
    near = [one.near for one in found.differences if one.weight == "likely"]
    assert near == sorted(near, reverse=True)
    assert near[0]
    assert not near[-1]


def test_a_secret_that_one_of_the_two_has_lost_makes_no_difference() -> None:
    docker = '{"proxies": {"http-proxy": "http://me:hunter2@proxy:3128"}}'
    live = node(0, **{"file:/etc/docker/daemon.json": seen("/etc/docker/daemon.json", docker)})
    assert compared(redact(redact(live)), redact(live)).differences == ()


@given(damaged_reports)
@settings(max_examples=examples(25), deadline=None)
def test_nothing_differs_from_itself(evidence: Evidence) -> None:
    assert compared(evidence, evidence).differences == ()


@given(damaged_reports, damaged_reports)
@settings(max_examples=examples(25), deadline=None)
def test_the_other_way_round_the_same_things_differ(one: Evidence, other: Evidence) -> None:
    there, back = compared(one, other), compared(other, one)
    assert {(each.trait, each.name, each.good, each.bad) for each in there.differences} == {
        (each.trait, each.name, each.bad, each.good) for each in back.differences
    }


def test_two_of_which_most_was_not_seen_are_not_called_alike() -> None:
    """A log beside a capture differs in nothing, since nothing is compared."""
    log = {"dmesg": seen("dmesg", "[ 1.0] usb 1-1: new device\n")}
    found = compared(log, node(1))
    assert not found.matters
    assert not found.tells
    assert found.missing == ("PCI devices", "driver versions", "kernel", "loaded modules", "packages")
    assert not compared(log, log).tells


def test_where_the_most_was_compared_a_few_that_are_missing_change_nothing() -> None:
    found = compared(node(0), node(1, modules=None))
    assert found.missing == ("loaded modules", "packages")
    assert found.tells
