"""What was mistyped and then typed otherwise is no fault; what is refused although it is right is one."""

from __future__ import annotations

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import snapshot
from gpunode.facts import pasted

WORKS = """Sun Nov 22 11:50:12 2026
| NVIDIA-SMI 550.90.07              Driver Version: 550.90.07      CUDA Version: 12.4     |
|   0  NVIDIA A100-SXM4-80GB          On  |   00000000:07:00.0 Off |                    0 |
| N/A   31C    P0             62W /  400W |       0MiB /  81920MiB |      0%      Default |"""
IMAGE = "nvidia/cuda:12.4.1-base-ubuntu22.04"
RIGHT = f"docker run --rm --gpus all {IMAGE} nvidia-smi"
NO_TAG = "docker: Error response from daemon: manifest for {} not found: manifest unknown: manifest unknown."
NO_TOOLKIT = 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].'


def seen(*steps: tuple[str, str]) -> Diagnosis:
    text = "".join(f"root@gpu1:~# {command}\n{said}\n" for command, said in (*steps, ("nvidia-smi", WORKS)))
    return diagnose(snapshot(pasted.from_text(text)))


def roots(found: Diagnosis) -> list[str]:
    return [root.cause for root in found.roots if root.severity != "info"]


SLIPS = {
    "no tag": (RIGHT.replace(IMAGE, "nvidia/cuda"), NO_TAG.format("nvidia/cuda:latest")),
    "another tag": (RIGHT.replace(IMAGE, "nvidia/cuda:12.4-base"), NO_TAG.format("nvidia/cuda:12.4-base")),
    "podman's words": (
        "podman run --rm --device nvidia.com/gpu=all docker.io/nvidia/cuda:11.0-base nvidia-smi",
        "Error: initializing source docker: reading manifest 11.0-base in docker.io/nvidia/cuda: manifest unknown",
    ),
    "a runtime": (
        RIGHT.replace("--gpus all", "--runtime=nvida"),
        "docker: Error response from daemon: unknown or invalid runtime name: nvida.",
    ),
}


@pytest.mark.parametrize("name", SLIPS)
def test_what_was_mistyped_and_typed_otherwise_is_no_fault(name: str) -> None:
    found = seen(SLIPS[name], (RIGHT, WORKS))
    assert (roots(found), found.unknown) == ([], ())


@pytest.mark.parametrize("name", SLIPS)
def test_the_fault_behind_it_is_told_of(name: str) -> None:
    toolkit = ("dpkg -l nvidia-container-toolkit", "dpkg-query: no packages found matching nvidia-container-toolkit")
    assert roots(seen(SLIPS[name], (RIGHT, NO_TOOLKIT), toolkit)) == ["toolkit-not-installed"]


NO_SLIPS = {
    "a right runtime": (
        (
            RIGHT.replace("--gpus all", "--runtime=nvidia"),
            "docker: Error response from daemon: unknown or invalid runtime name: nvidia.",
        ),
        (RIGHT.replace("--gpus all ", "").replace("nvidia-smi", "true"), ""),
    ),
    "twice the same": (SLIPS["no tag"], SLIPS["no tag"]),
    "another that is not there": (SLIPS["no tag"], SLIPS["another tag"]),
}


@pytest.mark.parametrize("name", NO_SLIPS)
def test_what_is_refused_although_it_is_right_stays(name: str) -> None:
    found = seen(*NO_SLIPS[name])
    assert roots(found) or found.unknown
