"""Ordinary machines in their intended state: no cause is found there."""

from __future__ import annotations

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted


def diagnosis(*pieces: tuple[str, str]) -> Diagnosis:
    return diagnose(take_snapshot(pasted.collect_pieces(pieces)))


def test_passthrough_host_needs_no_driver() -> None:
    bus = (
        "01:00.0 3D controller [0302]: NVIDIA Corporation GA102GL [A40] [10de:2235]\n\tKernel driver in use: vfio-pci\n"
    )
    found = diagnosis(
        ("lspci -nnk", bus),
        ("lsmod", "Module                  Size  Used by\nvfio_pci 16384 1\n"),
        ("nvidia-smi", "bash: nvidia-smi: command not found"),
        ("virsh list", " Id   Name   State\n 1    ml0    running\n"),
    )
    assert not [one.cause for one in found.roots if one.severity != "info"]


def test_nouveau_on_an_unused_gpu_is_left_alone() -> None:
    bus = "01:00.0 VGA compatible controller [0300]: NVIDIA Corporation GK208B [GeForce GT 710] [10de:128b]\n"
    found = diagnosis(
        ("lspci -nnk", f"{bus}\tKernel driver in use: nouveau\n\tKernel modules: nouveau\n"),
        ("lsmod", "Module                  Size  Used by\nnouveau 2306048 4\n"),
    )
    assert not found.findings
