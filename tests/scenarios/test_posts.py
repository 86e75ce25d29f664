"""Posts of people whose node works, and posts about no node: neither a finding nor a suspect.

A message is denied, asked about, imagined, over, or part of an article, a script, a test, a rule or a list of changes.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted

_POST = re.compile(r"^=== (.+)\n((?:(?!=== ).*\n)*)", re.MULTILINE)
POSTS = dict(_POST.findall((Path(__file__).parent / "healthy/posts.txt").read_text()))
# Of these, doctor may suspect something or have a remark, but not what is listed.
NOT_SILENT = {
    "wsl2-ok": {"wsl-gpu-tcc-mode", "wsl-gpu-access-blocked"},
    "helm-values-question": {"time-slicing-config-not-applied"},
    "proxmox-passthrough-ok": {"open-module-on-pre-turing"},
}
# Each praises, denies or asks as well.
COMPLAINTS = (
    'I have never seen "Failed to initialize NVML: Driver/library version mismatch" before. What can I do?',
    'Everything works on the host, but in the container nvidia-smi says "Failed to initialize NVML: Unknown Error".',
    "There is no Xid in dmesg, but nvidia-smi hangs forever. My GPU works for a day, then this.",
    "Happy new year! My pod is Pending since yesterday: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
    "I read about this error in the docs but nothing helped. My node says RmInitAdapter failed! (0x26:0x56:1474).",
    "Solved? No, it came back: GPU has fallen off the bus.",
    'My GPU works in Blender. In PyTorch I get "CUDA error: no kernel image is available for execution on the device".',
    'Bei mir läuft alles, nur docker nicht: could not select device driver "" with capabilities: [[gpu]]',
    "Todo funciona bien en el host. Dentro del contenedor: Failed to initialize NVML: Unknown Error",
    "一切正常，但是容器里 nvidia-smi 报错 Failed to initialize NVML: Unknown Error",
    "I'd be happy about any help! nvidia-smi: Failed to initialize NVML: Driver/library version mismatch",
    "# How to fix a version mismatch\n\nSince today nvidia-smi says: Driver/library version mismatch",
    "Do you see an error?\nno\n\nnvidia-smi output:\nFailed to initialize NVML: Unknown Error",
    "If I ever start two jobs, one dies with Xid 31. What is wrong with my card?",
    "Failed to initialize NVML: Unknown Error\n\nIf I restart the container it works again. After some hours the same.",
    'None of my four GPUs is detected, nvidia-smi says "No devices were found".',
    "The GPUs have never been detected on this board. dmesg has RmInitAdapter failed! (0x22:0x56:894)",
    "I do not see the GPU in kubectl describe node. Allocatable shows nvidia.com/gpu: 0.",
    "RuntimeError: Found no NVIDIA driver on your system.\n\nThe driver works, nvidia-smi shows my card.",
    "My card works fine. Only problem: ecc. Double bit errors on GPU 3, row remapping failed, according to nvidia-smi.",
)


def read(text: str) -> Diagnosis:
    return diagnose(take_snapshot(pasted.parse_text_report(text)))


@pytest.mark.parametrize("name", [name for name in POSTS if name not in NOT_SILENT])
def test_post_without_a_fault_has_neither_finding_nor_suspect(name: str) -> None:
    found = read(POSTS[name])
    assert [one.cause for one in found.findings] == []
    assert [one.cause for one in found.suspects] == []


@pytest.mark.parametrize("name", NOT_SILENT)
def test_post_without_a_fault_gets_none(name: str) -> None:
    found = read(POSTS[name])
    assert [one.cause for one in found.findings if one.severity != "info"] == []
    assert not NOT_SILENT[name] & {one.cause for one in found.suspects}


@pytest.mark.parametrize("text", COMPLAINTS)
def test_complaint_beside_praise_or_denial_has_a_suspect(text: str) -> None:
    found = read(text)
    assert found.findings or found.suspects
