"""Query NVML in a child program, so that a driver call that never returns cannot hang gpunode.

``python -m gpunode.host.nvml`` prints one JSON object and ends with status 0 whenever it printed it; what the answer
means is in ``gpunode.facts.nvml``. With ``gpunode.host.mig``, the only user of pynvml.
"""

from __future__ import annotations

from gpunode.host.child import TYPE_CHECKING, command, tell

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gpunode.facts.evidence import Probe

TIMEOUT_S = 30.0
_MIB = 1 << 20


def argv() -> tuple[str, ...]:
    """The command that asks NVML."""
    return command("gpunode.host.nvml", needs=("pynvml",))


def probe(timeout_s: float = TIMEOUT_S) -> Probe:
    """The same command as a probe: killed after ``timeout_s``, and in a capture for as long as that is kept."""
    from gpunode.facts.evidence import Probe
    from gpunode.facts.nvml import KEY

    return Probe(KEY, argv=argv(), timeout_s=timeout_s, holds="table")


def main() -> None:
    """Print NVML's answer as one JSON object."""
    tell(ask)


def ask() -> dict[str, object]:
    """NVML's values, or the reason for having none, in the shape that ``facts.nvml.parse`` reads."""
    import pynvml

    # No nvmlShutdown: the end of the process does the same, and it is one more call that could block.
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        failure = {**_unread(pynvml, error), "text": str(error)}
        return {
            **_system(pynvml),
            "error": {"code": failure["code"], "name": failure["error"], "text": failure["text"]},
        }
    return {**_system(pynvml), "gpus": [_gpu(pynvml, index) for index in range(count)]}


def _system(nvml: Any) -> dict[str, object]:
    return {
        "schema": 1,
        "driver": _reading(nvml, nvml.nvmlSystemGetDriverVersion),
        "cuda": _reading(nvml, lambda: "{}.{}".format(*divmod(nvml.nvmlSystemGetCudaDriverVersion_v2() // 10, 100))),
        "nvml": _reading(nvml, nvml.nvmlSystemGetNVMLVersion),
        "library": _library(),
        "libcuda_error": _libcuda_error(),
    }


def _gpu(nvml: Any, index: int) -> dict[str, object]:
    """One GPU's row; whatever is wrong with it stays in this row."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        return {"index": index, **_unread(nvml, error)}
    ecc, ecc_pending = _switch(nvml, lambda: nvml.nvmlDeviceGetEccMode(handle))
    mig, mig_pending = _switch(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle))
    divided = {"instances": _reading(nvml, lambda: _instances(nvml, handle))} if mig is True else {}
    return {
        "index": index,
        "name": _reading(nvml, lambda: nvml.nvmlDeviceGetName(handle)),
        "uuid": _reading(nvml, lambda: nvml.nvmlDeviceGetUUID(handle)),
        "pci": _reading(nvml, lambda: _address(nvml.nvmlDeviceGetPciInfo(handle))),
        "memory_mib": _reading(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total // _MIB),
        "persistence": _reading(nvml, lambda: bool(nvml.nvmlDeviceGetPersistenceMode(handle))),
        "ecc": ecc,
        "ecc_pending": ecc_pending,
        "compute_capability": _reading(nvml, lambda: "{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(handle))),
        "mig": mig,
        "mig_pending": mig_pending,
        "clients": _clients(nvml, handle),
        **divided,
    }


def _instances(nvml: Any, handle: Any) -> list[dict[str, object]]:
    from gpunode.host import mig

    return mig.instances(nvml, handle)


def _clients(nvml: Any, handle: Any) -> list[int]:
    """The processes on the GPU and on its MIG instances; those of a kind that the driver cannot list are left out."""
    calls = (
        nvml.nvmlDeviceGetComputeRunningProcesses_v3,
        nvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
        nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3,
    )
    lists = [_reading(nvml, lambda call=call: call(handle)) for call in calls]  # type: ignore[misc]
    return sorted({one.pid for found in lists if isinstance(found, list) for one in found})


def _switch(nvml: Any, call: Callable[[], list[int]]) -> tuple[object, object]:
    """A mode as it is now and as it will be after the next reset."""
    modes = _reading(nvml, call)
    return (bool(modes[0]), bool(modes[1])) if isinstance(modes, list) else (modes, modes)


def _reading(nvml: Any, call: Callable[[], object]) -> object:
    try:
        return call()
    except nvml.NVMLError as error:
        return _unread(nvml, error)
    except UnicodeDecodeError:
        # A dying GPU's name: bytes that are no text.
        return {"error": "Unknown", "code": nvml.NVML_ERROR_UNKNOWN}


def _unread(nvml: Any, error: Any) -> dict[str, object]:
    """The error by its code and by pynvml's name for it, which is nvml.h's."""
    known = type(error) is not nvml.NVMLError
    name = type(error).__name__.removeprefix("NVMLError_") if known else f"Error{error.value}"
    return {"error": name, "code": error.value}


def _address(pci: Any) -> str:
    """As sysfs writes it; NVML has eight digits of domain and capitals."""
    return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"


def _library() -> str:
    """The file that the dynamic loader took for libnvidia-ml.so.1; empty when it found none."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:  # noqa: PTH123 - as child has it
        rows = [line.rstrip("\n").split(None, 5) for line in maps]
    return next((row[5] for row in rows if len(row) == 6 and "/libnvidia-ml.so" in row[5]), "")


def _libcuda_error() -> str:
    """Return why the dynamic loader cannot load libcuda.so.1, as every program that uses CUDA does; empty if it can."""
    import ctypes

    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main()
