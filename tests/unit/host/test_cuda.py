from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.facts.cuda import CudaError, CudaTestResult, parse_answer, read_cuda_answer
from gpunode.facts.nvml import NoAnswer
from gpunode.host.cuda import VECTOR_ADD_PTX, child_argv, make_probe
from tests.fakes.runners import ScriptedRunner, ended, looked

GPU: dict[str, Any] = {
    "index": 0,
    "name": "NVIDIA H100",
    "uuid": "GPU-0",
    "passed": True,
    "elements": 1024,
    "mismatches": 0,
    "error": None,
}
ERROR = {"call": "cuInit", "code": 100, "name": "CUDA_ERROR_NO_DEVICE", "text": "no CUDA-capable device is detected"}


def _answer(**given: Any) -> bytes:
    return json.dumps({"schema": 1, **given}).encode()


def test_cuda_run_passes_only_if_every_gpu_passed() -> None:
    run = parse_answer(_answer(gpus=[GPU, {**GPU, "index": 1}]))
    assert isinstance(run, CudaTestResult)
    assert run.passed
    assert not CudaTestResult(()).passed
    for spoiled in ({"passed": False}, {"error": ERROR}, {"mismatches": 1}, {"elements": 0}):
        run = parse_answer(_answer(gpus=[GPU, {**GPU, **spoiled}]))
        assert isinstance(run, CudaTestResult)
        assert not run.passed, spoiled


def test_cuda_init_failure_names_the_call_and_error() -> None:
    assert parse_answer(_answer(error=ERROR)) == CudaError(**ERROR)  # type: ignore[arg-type]
    assert (
        str(parse_answer(_answer(error=ERROR)))
        == "cuInit: CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected"
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        _answer(),
        _answer(gpus=3),
        _answer(gpus=[3]),
        _answer(error=3),
        b'{"schema": 2}',
        b'{"schema": true, "gpus": []}',
    ],
)
def test_invalid_answer_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_answer(data)


@given(st.sampled_from([*GPU]), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers()))
def test_damaged_gpu_row_is_refused_or_does_not_pass(key: str, value: object) -> None:
    try:
        run = parse_answer(_answer(gpus=[{**GPU, key: value}]))
    except ValueError:
        return
    assert isinstance(run, CudaTestResult)
    assert isinstance(run.gpus[0].passed, bool)


def test_remedy_fits_the_cuda_error() -> None:
    assert "ldconfig" in CudaError("dlopen", 0, "LibraryNotFound", "").remedy
    assert "fabricmanager" in CudaError("cuInit", 802, "CUDA_ERROR_SYSTEM_NOT_READY", "").remedy
    assert "dmesg" in CudaError("cuLaunchKernel", 719, "CUDA_ERROR_LAUNCH_FAILED", "").remedy


def test_outcomes_of_the_child_process_are_distinguished() -> None:
    def end(**given: Any) -> object:
        return read_cuda_answer(
            looked(ScriptedRunner(lambda argv: ended(argv, **given)), replace(make_probe(), timeout_s=7))
        )

    assert end(out=_answer(error=ERROR)) == CudaError(**ERROR)  # type: ignore[arg-type]
    hung = end(late=True, err=b"CUDA: cuInit\nGPU 3: cuCtxSynchronize\n")
    assert isinstance(hung, NoAnswer)
    assert hung.kind == "hangs"
    assert "within 7 s" in hung.reason
    assert "GPU 3: cuCtxSynchronize" in hung.reason
    died = end(status=139, err=b"Segmentation fault")
    assert isinstance(died, NoAnswer)
    assert died.kind == "crashed"
    assert "139" in died.reason
    garbled = end(out=b"hello")
    assert isinstance(garbled, NoAnswer)
    assert garbled.kind == "garbled"


def test_ptx_is_nul_terminated_and_the_child_isolated() -> None:
    assert VECTOR_ADD_PTX.endswith(b"}\n\0")
    assert child_argv()[1] == "-I"
