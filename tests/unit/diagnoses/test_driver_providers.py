"""Machines whose environment provides the driver: Windows, a Jetson's image, an appliance's own interface."""

from __future__ import annotations

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted

Row = tuple[str, str]

UBUNTU: Row = ("cat /etc/os-release", 'ID=ubuntu\nVERSION_ID="22.04"\n')
DEBIAN: Row = ("cat /etc/os-release", 'NAME="Debian GNU/Linux"\nID=debian\nVERSION_ID="12"\n')
WSL: Row = ("uname -r", "5.15.167.4-microsoft-standard-WSL2")
TEGRA: Row = ("uname -r", "5.15.148-tegra")
TRUENAS: Row = ("uname -r", "6.6.44-production+truenas")
UNRAID: Row = ("uname -r", "6.12.24-Unraid")
TOO_OLD: tuple[Row, ...] = (
    (
        "docker run --rm --gpus all nvidia/cuda:12.8.0-base-ubuntu22.04 nvidia-smi",
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update your driver",
    ),
    ("nvidia-smi", "| NVIDIA-SMI 550.120    Driver Version: 550.120    CUDA Version: 12.4     |"),
)
NO_SMI: Row = ("nvidia-smi", "bash: nvidia-smi: command not found")


def diagnose_rows(*rows: Row) -> Diagnosis:
    return diagnose(take_snapshot(pasted.collect_pieces(rows)))


@pytest.mark.parametrize(
    ("system", "way"),
    [
        ((WSL, UBUNTU), "NVIDIA's driver for Windows"),
        ((TEGRA, UBUNTU), "with JetPack"),
        ((TRUENAS, DEBIAN), "Install NVIDIA Drivers"),
        ((UNRAID,), "the plugin Nvidia-Driver"),
    ],
    ids=["wsl", "jetson", "truenas", "unraid"],
)
def test_newer_driver_comes_from_the_source_of_the_driver(system: tuple[Row, ...], way: str) -> None:
    (root,) = diagnose_rows(*system, *TOO_OLD).roots
    assert root.cause == "driver-too-old-for-image"
    assert way in root.remedy[0].text
    assert not any("gpunode setup" in command for fix in root.remedy for command in fix.commands)


@pytest.mark.parametrize(
    "board",
    [
        TEGRA,
        ("cat /etc/nv_tegra_release", "# R35 (release), REVISION: 4.1, GCID: 33958178, BOARD: t186ref"),
        ("lsmod | grep nv", "nvgpu                2494464  23\nnvmap                 192512  70 nvgpu"),
        ("dpkg -l | grep nvidia", "ii  nvidia-l4t-core    36.4.3-20250107174145   arm64   NVIDIA Core Package"),
    ],
)
def test_jetson_without_nvidia_smi_has_a_driver(board: Row) -> None:
    assert "driver-not-installed" in {
        one.cause for one in diagnose_rows(UBUNTU, ("lsmod | grep nv", ""), NO_SMI).findings
    }
    assert diagnose_rows(UBUNTU, board, NO_SMI).findings == ()


def test_toolkit_is_set_up_beside_a_preinstalled_driver() -> None:
    refused = 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].'
    packages = "ii  nvidia-l4t-core    36.4.3-20250107174145   arm64   NVIDIA Core Package"
    (root,) = diagnose_rows(
        TEGRA, UBUNTU, ("dpkg -l | grep nvidia", packages), ("docker run --gpus all x", refused)
    ).roots
    assert root.cause == "toolkit-not-installed"
    assert root.remedy[0].commands[0].startswith("sudo gpunode setup --driver none ")
