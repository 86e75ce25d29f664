"""vGPU guests: several traces identify them, and no public repository has their driver."""

from __future__ import annotations

import pytest

from gpunode.catalog.gpus import is_vgpu_profile
from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Finding
from gpunode.diagnoses.remedies import can_run_setup
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.diagnoses.views import gpu_models, virtualization
from gpunode.facts import pasted

UBUNTU = ("/etc/os-release", 'ID=ubuntu\nVERSION_ID="22.04"\nPRETTY_NAME="Ubuntu 22.04.5 LTS"\n')
ROCKY = ("/etc/os-release", 'ID="rocky"\nVERSION_ID="9.4"\nID_LIKE="rhel centos fedora"\n')
T4 = "02:00.0 VGA compatible controller [0300]: NVIDIA Corporation TU104GL [Tesla T4] [10de:1eb8] (rev a1)\n"
WHOLE = ("lspci -nnk -d 10de:", f"{T4}\tSubsystem: NVIDIA Corporation Device [10de:12a2]\n")
SHARE = ("lspci -nnk -d 10de:", f"{T4}\tSubsystem: NVIDIA Corporation Device [10de:130f]\n")
NUMBERED = ("lspci -nnk -d 10de:", f"{T4}\tSubsystem: NVIDIA Corporation Device 130f\n")
NAMED = ("nvidia-smi -L", "GPU 0: GRID T4-8Q (UUID: GPU-11111111-aaaa-bbbb-cccc-333333333333)")
MODE = (
    "nvidia-smi -q",
    (
        "GPU 00000000:02:00.0\n    Product Name                      : Tesla T4\n    GPU Virtualization Mode\n"
        "        Virtualization Mode               : VGPU\n"
    ),
)
PASSED = (MODE[0], MODE[1].replace("VGPU", "Pass-Through"))
GRIDD = ("systemctl status nvidia-gridd", "Nov 14 08:57:40 vm nvidia-gridd[901]: License acquired successfully.")
NO_GRIDD = ("systemctl status nvidia-gridd", "Unit nvidia-gridd.service could not be found.")
SMI = ("nvidia-smi", "| NVIDIA-SMI 535.183.06    Driver Version: 535.183.06   CUDA Version: 12.2     |")
ASKS = (
    "docker run --rm --gpus all nvidia/cuda:12.6.0-base-ubuntu22.04 nvidia-smi",
    (
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.6, please update your driver to a "
        "newer version, or use an earlier cuda container: unknown"
    ),
)
MISSING = (("nvidia-smi", "bash: nvidia-smi: command not found"), ("lsmod", "Module Size Used by\next4 1 0\n"))


def commands(finding: Finding) -> list[str]:
    return [command for fix in finding.remedy for command in fix.commands]


@pytest.mark.parametrize("seen", [SHARE, NUMBERED, NAMED, MODE, GRIDD])
def test_vgpu_guest_is_recognized(seen: tuple[str, str]) -> None:
    node = take_snapshot(pasted.collect_pieces([UBUNTU, seen]))
    assert virtualization.is_vgpu(node)
    assert not gpu_models.whole_gpus(node)
    assert not can_run_setup(node)


@pytest.mark.parametrize("seen", [WHOLE, PASSED, NO_GRIDD])
def test_whole_gpu_is_no_vgpu(seen: tuple[str, str]) -> None:
    node = take_snapshot(pasted.collect_pieces([UBUNTU, seen]))
    assert not virtualization.is_vgpu(node)
    assert can_run_setup(node)


@pytest.mark.parametrize("seen", [WHOLE, PASSED])
def test_licensed_whole_gpu_is_no_vgpu(seen: tuple[str, str]) -> None:
    assert not virtualization.is_vgpu(take_snapshot(pasted.collect_pieces([UBUNTU, seen, GRIDD])))


@pytest.mark.parametrize(
    ("name", "is_share"),
    [
        *((one, True) for one in ("GRID T4-8Q", "NVIDIA A40-48Q", "NVIDIA A100-1-5C", "GRID M10-2B4", "NVIDIA L40-24")),
        *((one, False) for one in ("Tesla V100-PCIE-16GB", "NVIDIA A100-SXM4-80GB", "GRID K520", "Tesla T4", "L4-")),
    ],
)
def test_vgpu_profile_name_is_recognized(name: str, is_share: bool) -> None:
    assert is_vgpu_profile(name) is is_share


@pytest.mark.parametrize("system", [UBUNTU, ROCKY])
@pytest.mark.parametrize("seen", [SHARE, NAMED])
def test_outdated_guest_driver_comes_from_its_host(system: tuple[str, str], seen: tuple[str, str]) -> None:
    (finding,) = diagnose(take_snapshot(pasted.collect_pieces([system, seen, SMI, ASKS]))).findings
    assert finding.cause == "driver-too-old-for-image"
    assert commands(finding) == []
    assert "vGPU guest driver (GRID)" in finding.remedy[0].text
    assert finding.remedy[-1].kind == "application"


@pytest.mark.parametrize("system", [UBUNTU, ROCKY])
def test_missing_guest_driver_comes_from_its_host(system: tuple[str, str]) -> None:
    (finding,) = diagnose(take_snapshot(pasted.collect_pieces([system, SHARE, *MISSING]))).roots
    assert finding.cause == "driver-not-installed"
    assert "vGPU guest driver (GRID)" in finding.remedy[0].text
    assert commands(finding) == ["nvidia-smi"]
