"""The real ctypes code in the real child program, driven by a stand-in for libcuda.so.1 (tests/fakes/cuda)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.facts.cuda import CudaAnswer, CudaError, CudaTestResult, read_cuda_answer
from gpunode.facts.nvml import NoAnswer
from gpunode.host.cuda import VECTOR_LENGTH, make_probe
from tests.fakes.compile import library
from tests.fakes.runners import EnvRunner, looked

CALLS = [
    "cuCtxCreate_v2",
    "cuModuleLoadDataEx",
    "cuModuleGetFunction",
    "cuMemAlloc_v2",
    "cuMemcpyHtoD_v2",
    "cuMemsetD32_v2",
    "cuLaunchKernel",
    "cuCtxSynchronize",
    "cuMemcpyDtoH_v2",
]


def _run(gpus: int = 1, faults: str = "", timeout_s: float = 120.0, **environment: str) -> CudaAnswer:
    folder = str(library("cuda/cuda.c", "libcuda.so.1"))
    runner = EnvRunner(LD_LIBRARY_PATH=folder, FAKE_CUDA_GPUS=str(gpus), FAKE_CUDA_FAULTS=faults, **environment)
    return read_cuda_answer(looked(runner, replace(make_probe(), timeout_s=timeout_s)))


def test_all_gpus_pass_and_free_their_memory(tmp_path: Path) -> None:
    leaks = tmp_path / "leaks"
    found = _run(16, FAKE_CUDA_LEAKS=str(leaks), CUDA_VISIBLE_DEVICES="3")
    assert isinstance(found, CudaTestResult)
    assert found.passed
    assert [gpu.index for gpu in found.gpus] == list(range(16))
    assert all(gpu.elements == VECTOR_LENGTH and gpu.mismatches == 0 for gpu in found.gpus)
    assert found.gpus[3].uuid == "GPU-00000000-0000-0000-0000-000000000003"
    assert leaks.read_text() == "".join(f"gpu {n}: 0 blocks, 0 modules, 0 contexts\n" for n in range(16))


def test_one_wrong_element_in_a_million_fails() -> None:
    found = _run(3, "cuLaunchKernel@1=wrong")
    assert isinstance(found, CudaTestResult)
    assert not found.passed
    assert [(gpu.passed, gpu.mismatches) for gpu in found.gpus] == [(True, 0), (False, 1), (True, 0)]


def test_kernel_that_did_not_run_fails() -> None:
    found = _run(1, "cuLaunchKernel=idle")
    assert isinstance(found, CudaTestResult)
    assert found.gpus[0].mismatches == VECTOR_LENGTH


@pytest.mark.parametrize("call", CALLS)
def test_failed_call_on_one_gpu_is_named_and_others_are_tested(call: str, tmp_path: Path) -> None:
    leaks = tmp_path / "leaks"
    found = _run(3, f"{call}@1=719", FAKE_CUDA_LEAKS=str(leaks))
    assert isinstance(found, CudaTestResult)
    assert [gpu.passed for gpu in found.gpus] == [True, False, True]
    assert found.gpus[1].error == CudaError(call, 719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure")
    assert all(": 0 blocks, 0 modules, 0 contexts" in line for line in leaks.read_text().splitlines())


def test_first_failure_is_reported_not_its_consequences() -> None:
    faults = "cuCtxSynchronize=719,cuMemFree_v2=719,cuModuleUnload=719,cuCtxDestroy_v2=719"
    found = _run(1, faults)
    assert isinstance(found, CudaTestResult)
    assert found.gpus[0].error is not None
    assert found.gpus[0].error.call == "cuCtxSynchronize"


def test_failed_cleanup_fails_the_test() -> None:
    found = _run(1, "cuCtxDestroy_v2=719")
    assert isinstance(found, CudaTestResult)
    assert not found.passed


def test_ptx_compiler_log_is_kept() -> None:
    found = _run(1, "cuModuleLoadDataEx=218")
    assert isinstance(found, CudaTestResult)
    assert "ptxas fatal" in str(found.gpus[0].error)


def test_missing_gpu_is_an_error() -> None:
    found = _run(0, "cuInit=100")
    assert found == CudaError("cuInit", 100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected")
    none = _run(0)
    assert isinstance(none, CudaTestResult)
    assert not none.passed


def test_unknown_error_keeps_its_number() -> None:
    found = _run(1, "cuInit=4321")
    assert isinstance(found, CudaError)
    assert "4321" in str(found)


def test_hanging_gpu_is_named_with_the_call() -> None:
    found = _run(2, "cuCtxSynchronize@1=hang", timeout_s=6)
    assert isinstance(found, NoAnswer)
    assert found.kind == "hangs"
    assert "GPU 1: cuCtxSynchronize" in found.reason
