"""NVML and CUDA on real GPUs; nvidia-smi is the oracle."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from gpunode.facts import cuda as cuda_facts
from gpunode.facts import nvml as nvml_facts
from gpunode.facts.cuda import CudaTestResult
from gpunode.facts.nvml import NvmlInventory, compare_versions
from gpunode.host import cuda, nvml
from gpunode.host.cuda import VECTOR_LENGTH
from gpunode.host.local import LocalHost

pytestmark = pytest.mark.gpu
LOADED = Path("/proc/driver/nvidia/version")
QUERY = "index,name,uuid,pci.bus_id,memory.total,persistence_mode,ecc.mode.current,compute_cap,driver_version"


@pytest.fixture(autouse=True)
def _needs_a_gpu() -> None:
    if not LOADED.exists():
        pytest.skip("no NVIDIA driver is loaded here (/proc/driver/nvidia/version is missing)")


def _inventory() -> NvmlInventory:
    found = nvml_facts.read_nvml_answer(LocalHost().run_probe(nvml.make_probe()))
    assert isinstance(found, NvmlInventory), found
    assert found.gpus
    return found


def test_nvml_agrees_with_nvidia_smi() -> None:
    smi = shutil.which("nvidia-smi")
    if smi is None:
        pytest.skip("no nvidia-smi here to compare with")
    argv = [smi, f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"]
    lines = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()
    switches = {"Enabled": True, "Disabled": False}
    found = _inventory()
    assert len(lines) == len(found.gpus)
    for line, gpu in zip(lines, found.gpus, strict=True):
        index, name, uuid, pci, memory, persistence, ecc, compute, driver = (part.strip() for part in line.split(","))
        assert (str(gpu.index), gpu.name, gpu.uuid) == (index, name, uuid)
        assert isinstance(gpu.pci, str)
        assert int(gpu.pci.partition(":")[0], 16) == int(pci.partition(":")[0], 16)
        assert gpu.pci.partition(":")[2] == pci.partition(":")[2].lower()
        assert (str(gpu.memory_mib), gpu.compute_capability, found.driver) == (memory, compute, driver)
        assert gpu.persistence == switches[persistence]
        assert not isinstance(gpu.ecc, bool) or gpu.ecc == switches[ecc]


def test_loaded_module_and_library_have_one_version() -> None:
    version = LOADED.read_text().split("Module")[1].replace("for x86_64", "").replace("for aarch64", "").split()[0]
    found = _inventory()
    assert isinstance(found.nvml, str)
    assert version == found.driver
    assert compare_versions(version, found.nvml, None) == ()


def test_every_gpu_computes_correctly() -> None:
    found = cuda_facts.read_cuda_answer(LocalHost().run_probe(cuda.make_probe()))
    assert isinstance(found, CudaTestResult), found
    assert found.passed, found
    assert all(gpu.elements == VECTOR_LENGTH for gpu in found.gpus)
    gpus = _inventory().gpus
    if not any(gpu.mig is True for gpu in gpus):
        assert [gpu.uuid for gpu in found.gpus] == [gpu.uuid for gpu in gpus]
        assert [gpu.name for gpu in found.gpus] == [gpu.name for gpu in gpus]


def test_mig_layouts_agree_with_nvidia_smi() -> None:
    """Reading only: no mode and no instance is changed."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        pytest.skip("no nvidia-smi here to compare with")
    argv = [smi, "--query-gpu=uuid,mig.mode.current,mig.mode.pending", "--format=csv,noheader"]
    lines = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()
    found = {gpu.uuid: gpu for gpu in nvml_facts.list_mig_gpus(_inventory())}
    listed = subprocess.run([smi, "-L"], check=True, capture_output=True, text=True).stdout
    assert len(lines) == len(found)
    for line in lines:
        uuid, current, pending = (part.strip() for part in line.split(","))
        layout = found[uuid].layout
        if layout is None:
            assert current not in {"Enabled", "Disabled"}
            continue
        assert (layout.enabled, found[uuid].pending) == (current == "Enabled", pending == "Enabled")
    instances = [one for gpu in found.values() if gpu.layout for one in gpu.layout.instances]
    assert sum(len(one.compute) for one in instances) == listed.count("UUID: MIG-")
