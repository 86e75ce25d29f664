"""A kernel that waits for the next boot without a module of NVIDIA's: a warning on a node that works."""

from __future__ import annotations

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import snapshot
from gpunode.facts import pasted
from gpunode.workflow.doctor import diagnosed
from tests.scenarios.healthy.captures import evidence, listed
from tests.scenarios.healthy.nodes import HEALTHY

CAUSE = "module-built-for-other-kernel"
NEW = "6.1.0-42-amd64"
DKMS = "nvidia/580.95.05, 6.8.0-45-generic, x86_64: installed\n"
SMI = """+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.95.05              Driver Version: 580.95.05      CUDA Version: 13.0     |
|   0  NVIDIA A100-SXM4-80GB          On  |   00000000:07:00.0 Off |                    0 |
"""
UBUNTU = ("cat /etc/os-release", 'NAME="Ubuntu"\nID=ubuntu\nVERSION_ID="24.04"\n')


def seen(*pieces: tuple[str, str]) -> Diagnosis:
    return diagnose(snapshot(pasted.evidence(pieces)))


def test_on_a_live_node_it_is_certain_and_gpunode_builds_it() -> None:
    node = {**HEALTHY["debian-12-docker"]()}
    old = "6.1.0-41-amd64"
    images = node["boot-images"]
    assert isinstance(images, tuple)
    node["boot-images"] = (*images, *listed(f"/boot/vmlinuz-{NEW}"))
    node["module-trees"] = listed(f"/lib/modules/{old}", f"/lib/modules/{NEW}")
    examined = diagnosed(evidence(node))
    (found,) = examined.diagnosis.findings
    assert (found.cause, found.severity, found.confidence) == (CAUSE, "warning", "certain")
    assert NEW in found.summary
    assert found.remedy[0].commands[0].endswith("setup --only headers --only module-build")
    assert examined.works


@pytest.mark.parametrize("trees", ["ls /lib/modules", "ls -1 /lib/modules/", "ls /boot/vmlinuz-*"])
def test_of_a_pasted_report_it_is_likely(trees: str) -> None:
    stem = "/boot/vmlinuz-" if "boot" in trees else ""
    names = f"{stem}6.8.0-45-generic\n{stem}6.8.0-50-generic\n"
    pieces = [("uname -r", "6.8.0-45-generic\n"), ("dkms status", DKMS), (trees, names), ("nvidia-smi", SMI), UBUNTU]
    (found,) = seen(*pieces).findings
    assert (found.cause, found.severity, found.confidence) == (CAUSE, "warning", "likely")
    built = DKMS + DKMS.replace("-45-", "-50-")
    assert not seen(*pieces[:1], ("dkms status", built), *pieces[2:]).findings
    assert not seen(
        ("uname -r", "6.8.0-50-generic\n"), ("dkms status", DKMS.replace("-45-", "-50-")), *pieces[2:]
    ).findings


def test_it_is_no_reason_of_what_is_wrong_today() -> None:
    pieces = [("uname -r", "6.8.0-45-generic\n"), ("dkms status", DKMS), ("nvidia-smi", SMI), UBUNTU,
              ("ls /lib/modules", "6.8.0-45-generic  6.8.0-50-generic\n"),
              ("docker run --gpus all x nvidia-smi",
               'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].\n'),
              ("dpkg -l | grep nvidia-container", "")]  # fmt: skip
    found = seen(*pieces)
    assert {one.explained_by for one in found.findings} <= {""} | {o.cause for o in found.findings if o.cause != CAUSE}
    assert found.findings[0].cause != CAUSE
