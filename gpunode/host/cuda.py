"""The child program for a vector addition on every GPU, through libcuda.so.1 alone.

``python -m gpunode.host.cuda`` prints one JSON object; what it means is in ``gpunode.facts.cuda``. No CUDA toolkit is
needed: the kernel is PTX text, which the driver compiles.
"""

from __future__ import annotations

import ctypes
import os
import sys
import uuid
from array import array
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from gpunode.host.child import child_command, print_json_answer_and_exit

if TYPE_CHECKING:
    from gpunode.facts.evidence import Probe

# Without persistence mode each GPU is initialised first, which takes seconds; this suffices for sixteen.
_CUDA_TEST_TIMEOUT_S = 180.0
VECTOR_LENGTH = 1 << 20
_THREADS_PER_BLOCK = 256
_NAN_BITS = 0x7FC00000

# sm_30 is Kepler. "PTX code generated for a given target can be run on later targets" (PTX ISA, .target), so this one
# text serves every GPU of driver 384 (CUDA 9.0, whose PTX is 6.0) and later. Assembled by the real ptxas for sm_35 to
# sm_90 (11.8), sm_50 to sm_120 (12.9) and sm_75 to sm_120 (13.5): tests/conformance/nvml/test_ptx.py.
VECTOR_ADD_PTX = b"""\
.version 6.0
.target sm_30
.address_size 64

.visible .entry vector_add(.param .u64 a, .param .u64 b, .param .u64 sum, .param .u32 count)
{
    .reg .pred %outside;
    .reg .b32  %index, %block, %width, %thread, %limit;
    .reg .b64  %offset, %pa, %pb, %psum;
    .reg .f32  %x, %y;

    mov.u32            %block, %ctaid.x;
    mov.u32            %width, %ntid.x;
    mov.u32            %thread, %tid.x;
    mad.lo.s32         %index, %block, %width, %thread;
    ld.param.u32       %limit, [count];
    setp.ge.u32        %outside, %index, %limit;
    @%outside bra      DONE;

    ld.param.u64       %pa, [a];
    ld.param.u64       %pb, [b];
    ld.param.u64       %psum, [sum];
    cvta.to.global.u64 %pa, %pa;
    cvta.to.global.u64 %pb, %pb;
    cvta.to.global.u64 %psum, %psum;
    mul.wide.u32       %offset, %index, 4;
    add.s64            %pa, %pa, %offset;
    add.s64            %pb, %pb, %offset;
    add.s64            %psum, %psum, %offset;
    ld.global.f32      %x, [%pa];
    ld.global.f32      %y, [%pb];
    add.rn.f32         %x, %x, %y;
    st.global.f32      [%psum], %x;
DONE:
    ret;
}
\0"""


def child_argv() -> tuple[str, ...]:
    """Return the command of the child program."""
    return child_command("gpunode.host.cuda")


def make_probe() -> Probe:
    """Return the command as a probe."""
    from gpunode.facts.evidence import Probe

    return Probe("cuda", argv=child_argv(), timeout_s=_CUDA_TEST_TIMEOUT_S)


def main() -> None:
    """Print the result as one JSON object."""
    # libcuda reads these when it starts: every GPU, in NVML's order, compiled now and not taken from a cache.
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    os.environ["CUDA_CACHE_DISABLE"] = "1"
    print_json_answer_and_exit(add_on_all_gpus)


def add_on_all_gpus() -> dict[str, object]:
    """Run the addition on every GPU in turn; return the form that ``facts.cuda.parse_answer`` reads."""
    try:
        driver = _Driver()
        driver("cuInit", ctypes.c_uint(0))
        count = ctypes.c_int()
        driver("cuDeviceGetCount", ctypes.byref(count))
    except _CallError as error:
        return {"schema": 1, "error": error.row}
    vectors = _make_vectors()
    return {"schema": 1, "gpus": [_test_gpu(driver, index, vectors) for index in range(count.value)]}


class _CallError(Exception):
    def __init__(self, call: str, code: int, name: str, text: str) -> None:
        super().__init__(call)
        self.row = {"call": call, "code": code, "name": name, "text": text}


class _Driver:
    """libcuda.so.1, with every call announced on standard error and checked."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise _CallError("dlopen", 0, "LibraryNotFound", str(error)) from None
        self.place = "CUDA"

    def __call__(self, name: str, *arguments: Any, log: ctypes.Array[ctypes.c_char] | None = None) -> None:
        """Call ``name``; ``log`` receives the errors of the driver's compiler.

        Raises:
            _CallError: if it fails.
        """
        # The parent kills us when a call hangs; this line is how it knows which.
        sys.stderr.write(f"{self.place}: {name}\n")
        sys.stderr.flush()
        try:
            function = self._library[name]
        except AttributeError:
            raise _CallError(name, 0, "FunctionNotFound", "this libcuda.so.1 does not have it") from None
        code = int(function(*arguments))
        if code:
            errors = log.value.decode("utf-8", "replace").strip() if log is not None else ""
            text = self._error_string("cuGetErrorString", code)
            raise _CallError(
                name, code, self._error_string("cuGetErrorName", code), f"{text}: {errors}" if errors else text
            )

    def has(self, name: str) -> bool:
        """Return whether this driver has the function ``name``."""
        return hasattr(self._library, name)

    def _error_string(self, function: str, code: int) -> str:
        text = ctypes.c_char_p()
        # For an unknown code the call fails and leaves the pointer null.
        self._library[function](ctypes.c_int(code), ctypes.byref(text))
        return (text.value or b"unknown error").decode("utf-8", "replace")


def _make_vectors() -> tuple[array[float], array[float], array[float]]:
    """Return two addends and their sums, which fill the mantissa to detect a GPU that drops bits."""
    a = array("f", (i * 7919 % 65521 / 64 for i in range(VECTOR_LENGTH)))
    b = array("f", (i * 3571 % 65519 / 128 - 256 for i in range(VECTOR_LENGTH)))
    # Each sum is rounded to double, then to float; for one addition that equals rounding to float directly.
    return a, b, array("f", map(float.__add__, a, b))


def _test_gpu(
    driver: _Driver, index: int, vectors: tuple[array[float], array[float], array[float]]
) -> dict[str, object]:
    """Test one GPU; return its row, with any error in it."""
    row: dict[str, object] = {"index": index, "name": "", "uuid": "", "passed": False, "elements": 0, "mismatches": 0}
    driver.place = f"GPU {index}"
    a, b, expected = vectors
    try:
        device = ctypes.c_int()
        driver("cuDeviceGet", ctypes.byref(device), ctypes.c_int(index))
        row["name"], row["uuid"] = _gpu_name(driver, device), _gpu_uuid(driver, device)
        sums = _add_vectors(driver, device, a, b)
    except _CallError as error:
        return {**row, "error": _original_error(error).row}
    wrong = 0 if sums.tobytes() == expected.tobytes() else sum(x != y for x, y in zip(sums, expected, strict=True))
    return {**row, "passed": wrong == 0, "elements": len(sums), "mismatches": wrong, "error": None}


def _original_error(error: _CallError) -> _CallError:
    """Return the original failure: once a GPU has failed, freeing memory on it fails, too."""
    while isinstance(error.__context__, _CallError):
        error = error.__context__
    return error


def _gpu_name(driver: _Driver, device: ctypes.c_int) -> str:
    text = ctypes.create_string_buffer(256)
    driver("cuDeviceGetName", text, ctypes.c_int(len(text)), device)
    return text.value.decode("utf-8", "replace")


def _gpu_uuid(driver: _Driver, device: ctypes.c_int) -> str:
    """Return the UUID as NVML writes it; the second version (CUDA 11.4) distinguishes a MIG instance from its GPU."""
    raw = (ctypes.c_ubyte * 16)()
    newest = "cuDeviceGetUuid_v2" if driver.has("cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
    driver(newest, ctypes.byref(raw), device)
    return f"GPU-{uuid.UUID(bytes=bytes(raw))}"


def _add_vectors(driver: _Driver, device: ctypes.c_int, a: array[float], b: array[float]) -> array[float]:
    """Compute the sums on the GPU, and free its memory."""
    size = len(a) * a.itemsize
    with ExitStack() as owned:
        context = ctypes.c_void_p()
        driver("cuCtxCreate_v2", ctypes.byref(context), ctypes.c_uint(0), device)
        owned.callback(driver, "cuCtxDestroy_v2", context)
        function = _compile_kernel(driver, owned)
        pa, pb, psum = (_allocate_memory(driver, owned, size) for _ in range(3))
        for pointer, values in ((pa, a), (pb, b)):
            driver("cuMemcpyHtoD_v2", pointer, _address_of(values), ctypes.c_size_t(size))
        # Overwrite the memory, so that the results of an earlier run cannot pass for this one's.
        driver("cuMemsetD32_v2", psum, ctypes.c_uint(_NAN_BITS), ctypes.c_size_t(len(a)))
        _launch_kernel(driver, function, (pa, pb, psum, ctypes.c_uint(len(a))))
        driver("cuCtxSynchronize")
        sums = array("f", bytes(size))
        driver("cuMemcpyDtoH_v2", _address_of(sums), psum, ctypes.c_size_t(size))
    return sums


def _compile_kernel(driver: _Driver, cleanup: ExitStack) -> ctypes.c_void_p:
    log = ctypes.create_string_buffer(8192)
    # CU_JIT_ERROR_LOG_BUFFER = 5, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6 (cuda.h, CUjit_option).
    options = (ctypes.c_int * 2)(5, 6)
    values = (ctypes.c_void_p * 2)(ctypes.addressof(log), len(log))
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    driver(
        "cuModuleLoadDataEx",
        ctypes.byref(module),
        ctypes.c_char_p(VECTOR_ADD_PTX),
        ctypes.c_uint(2),
        options,
        values,
        log=log,
    )
    cleanup.callback(driver, "cuModuleUnload", module)
    driver("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(b"vector_add"))
    return function


def _allocate_memory(driver: _Driver, cleanup: ExitStack, size: int) -> ctypes.c_uint64:
    pointer = ctypes.c_uint64()
    driver("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
    cleanup.callback(driver, "cuMemFree_v2", pointer)
    return pointer


def _address_of(values: array[float]) -> ctypes.c_void_p:
    return ctypes.c_void_p(values.buffer_info()[0])


def _launch_kernel(driver: _Driver, function: ctypes.c_void_p, arguments: tuple[Any, ...]) -> None:
    """Launch the kernel with one thread per element; ``arguments`` must outlive it."""
    pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
    blocks = -(-VECTOR_LENGTH // _THREADS_PER_BLOCK)
    shape = [ctypes.c_uint(n) for n in (blocks, 1, 1, _THREADS_PER_BLOCK, 1, 1, 0)]
    driver("cuLaunchKernel", function, *shape, None, pointers, None)


if __name__ == "__main__":
    main()
