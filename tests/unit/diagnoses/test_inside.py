"""Evidence taken inside a container that has no GPU: the node's driver is not to be judged by it."""

from __future__ import annotations

import json

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import snapshot
from gpunode.facts import pasted
from gpunode.facts.evidence import Capture

BARE = (
    ("nvidia-smi", "bash: nvidia-smi: command not found"),
    ("ls /dev/nvidia*", "ls: cannot access '/dev/nvidia*': No such file or directory"),
    (
        "lsmod",
        "Module              Size  Used by\nnvidia_uvm       1540096  0\nnvidia          56717312  1 nvidia_uvm",
    ),
    (
        "lspci -nnk",
        "07:00.0 3D controller [0302]: NVIDIA Corporation GA100 [10de:20b0]\n\tKernel driver in use: nvidia\n",
    ),
    ("ldconfig -p", "42 libs found in cache `/etc/ld.so.cache'\n\tlibc.so.6 (libc6,x86-64) => /lib/libc.so.6\n"),
)
SIGNS = {
    "docker": (("ls /.dockerenv", "/.dockerenv"), "--gpus all"),
    "podman": (
        ("ls -l /run/.containerenv", "-rwx------ 1 root root 0 Nov 21 /run/.containerenv"),
        "--device nvidia.com/",
    ),
    "detected": (("systemd-detect-virt", "docker"), "--gpus all"),
}


def seen(*pieces: tuple[str, str]) -> Diagnosis:
    rows = [{"source": source, "text": text} for source, text in pieces]
    return diagnose(snapshot(pasted.from_json(json.dumps(rows), "a report")))


@pytest.mark.parametrize(("sign", "flag"), SIGNS.values(), ids=SIGNS)
def test_a_container_without_gpus_is_no_fault_of_the_node(sign: tuple[str, str], flag: str) -> None:
    found = seen(*BARE, sign)
    assert not [root.cause for root in found.roots]
    (doubt,) = (doubt for doubt in found.unknown if "inside a container" in doubt.question)
    assert flag in doubt.question


@pytest.mark.parametrize(
    "sign",
    [
        ("ls /.dockerenv", "ls: cannot access '/.dockerenv': No such file or directory"),
        ("systemd-detect-virt", "kvm"),
    ],
)
def test_a_node_that_is_none_has_its_driver_judged(sign: tuple[str, str]) -> None:
    assert "driver-userspace-incomplete" in [finding.cause for finding in seen(*BARE, sign).findings]


def test_a_capture_taken_in_a_container_is_seen_as_one() -> None:
    evidence = {source: Capture(source, "ok", text.encode()) for source, text in BARE}
    evidence["virt"] = Capture("systemd-detect-virt", "ok", b"podman\n")
    found = diagnose(snapshot(evidence))
    assert not found.roots
    assert any("podman run --device" in doubt.question for doubt in found.unknown)
