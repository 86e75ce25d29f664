"""The typed answer of the CUDA child: a vector addition on every GPU. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from gpunode.facts.evidence import Capture
from gpunode.facts.nvml import NoAnswer, read_child_answer, read_object, require_values
from gpunode.fast_dataclass import dataclass

CUDA_ANSWER_SCHEMA_VERSION = 1


_READ_KERNEL_LOG = "read the kernel's log (`dmesg | grep -i -e nvrm -e xid`), or have `sudo gpunode doctor` read it"
# CUresult as cuda.h (CUDA 13) describes it; the sentences are gpunode's own.
CUDA_ERROR_REMEDIES: Mapping[int, str] = {
    2: "the GPU's memory is in use: `nvidia-smi` lists the processes; stop them, then try again",
    46: "another process has exclusive use of the GPU, or its compute mode forbids CUDA: see `nvidia-smi -q -d "
    "COMPUTE`",
    100: "load the driver (`modprobe nvidia`) and compare `nvidia-smi -L` with `lspci -d 10de:`",
    218: "report it with the output of `gpunode verify --cuda --json`: the driver rejects gpunode's PTX",
    802: "an NVSwitch machine: start nvidia-fabricmanager, and wait until it has trained the links",
    803: "libcuda.so.1 and the loaded nvidia module are of different versions: reboot, or reload the modules",
    999: "load nvidia_uvm (`modprobe nvidia_uvm`) and check that /dev/nvidia-uvm exists; else " + _READ_KERNEL_LOG,
}
_INSTALL_CUDA_LIBRARY_ADVICE = "install the driver's CUDA library (`sudo gpunode setup`), then run `sudo ldconfig`"


@dataclass(frozen=True, slots=True)
class CudaError:
    """A call into libcuda that failed.

    Attributes:
        call: the function's name in cuda.h, or ``dlopen``.
        code: its CUresult; 0 for ``dlopen``.
        text: CUDA's own message.
    """

    call: str
    code: int
    name: str
    text: str

    @property
    def remedy(self) -> str:
        """Advice for the user."""
        return (
            _INSTALL_CUDA_LIBRARY_ADVICE
            if self.call == "dlopen"
            else CUDA_ERROR_REMEDIES.get(self.code, _READ_KERNEL_LOG)
        )

    def __str__(self) -> str:
        code = f" ({self.code})" if self.code else ""
        return f"{self.call}: {self.name}{code}: {self.text}"


@dataclass(frozen=True, slots=True)
class CudaGpuTestResult:
    """The vector addition on one GPU.

    Attributes:
        index: CUDA's, in the order of the PCI bus.
        uuid: in NVML's format; on a partitioned GPU, that of the MIG instance, which differs from NVML's.
        elements: how many sums were compared.
        mismatches: how many were wrong.
    """

    index: int
    name: str
    uuid: str
    passed: bool
    elements: int
    mismatches: int
    error: CudaError | None = None


@dataclass(frozen=True, slots=True)
class CudaTestResult:
    """The vector addition on all GPUs that CUDA sees."""

    gpus: tuple[CudaGpuTestResult, ...]

    @property
    def passed(self) -> bool:
        """True if there is a GPU and all added correctly."""
        return bool(self.gpus) and all(gpu.passed for gpu in self.gpus)


CudaAnswer: TypeAlias = CudaTestResult | CudaError | NoAnswer


def parse_answer(data: bytes) -> CudaTestResult | CudaError:
    """Parse the output of the CUDA child.

    Raises:
        ValueError: if it is malformed or of another schema.
    """
    answer = read_object(data, CUDA_ANSWER_SCHEMA_VERSION)
    if "error" in answer:
        return _parse_error(answer["error"])
    gpus = answer.get("gpus")
    if not isinstance(gpus, list):
        raise ValueError("`gpus` is not a list")
    return CudaTestResult(tuple(_parse_gpu(row) for row in gpus))


def _parse_gpu(row: Any) -> CudaGpuTestResult:
    kinds = {"index": int, "name": str, "uuid": str, "passed": bool, "elements": int, "mismatches": int}
    gpu = CudaGpuTestResult(**require_values(row, kinds, "a GPU"))
    error = None if row.get("error") is None else _parse_error(row["error"])
    # Check the numbers instead of trusting the child's verdict.
    return replace(gpu, passed=gpu.passed and error is None and gpu.elements > 0 and gpu.mismatches == 0, error=error)


def _parse_error(row: object) -> CudaError:
    return CudaError(**require_values(row, {"call": str, "code": int, "name": str, "text": str}, "`error`"))


def read_cuda_answer(capture: Capture) -> CudaAnswer:
    """Return the CUDA child's answer; a malformed one becomes ``NoAnswer``, so nothing is raised."""
    return read_child_answer(capture, parse_answer, "CUDA", "a CUDA call")
