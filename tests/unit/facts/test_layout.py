"""The driver's own list of GPUs and MIG instances under /proc/driver/nvidia."""

from __future__ import annotations

import pytest

from gpunode.facts.evidence import GlobMatch
from gpunode.facts.layout import GpuLayout, read_layout

UUID = "GPU-8dd1f2b0-8c58-4a40-b7b0-7bd7f4c2a111"


def gpu(minor: int, uuid: str = UUID, excluded: str = "No") -> GlobMatch:
    text = (
        f"Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 130\nGPU UUID: \t {uuid}\n"
        f"Bus Location: \t 0000:0f:00.0\nDevice Minor: \t {minor}\nGPU Excluded:\t {excluded}\n"
    )
    return GlobMatch(f"/proc/driver/nvidia/gpus/0000:0{minor}:00.0/information", data=text.encode())


def access(path: str, minor: int) -> GlobMatch:
    text = f"DeviceFileMinor: {minor}\nDeviceFileMode: 256\nDeviceFileModify: 1\n"
    return GlobMatch(f"/proc/driver/nvidia/capabilities/{path}/access", data=text.encode())


def test_excluded_gpus_are_not_listed() -> None:
    sleeping = "GPU-????????-????-????-????-????????????"
    found = read_layout([gpu(0), gpu(1, sleeping), gpu(2, excluded="Yes")], [])
    assert found == GpuLayout(frozenset({0, 1}), frozenset({UUID}), frozenset())


def test_mig_capabilities_are_listed() -> None:
    instances = [
        access("gpu0/mig/gi1", 12),
        access("gpu0/mig/gi1/ci0", 13),
        access("gpu0/mig/gi2", 21),  # without a compute instance there is no device
        access("gpu1/mig/gi1", 147),
        access("gpu1/mig/gi1/ci0", 148),
        access("gpu1/mig/gi1/ci1", 149),
    ]
    assert read_layout([], instances).mig_capabilities == {12, 13, 147, 148, 149}


@pytest.mark.parametrize("data", [None, b"", b"Device Minor: \t ?\n"])
def test_malformed_proc_files_are_refused(data: bytes | None) -> None:
    with pytest.raises(ValueError, match=r"could not be read|Device Minor"):
        read_layout([GlobMatch("/proc/driver/nvidia/gpus/x/information", data=data)], [])
