"""Query NVML in a child program, so that a driver call that never returns cannot hang gpunode.

``python -m gpunode.host.nvml`` prints one JSON object and exits with 0 if it could print it; what the answer means is
in ``gpunode.facts.nvml``. Only this module and ``gpunode.host.mig`` use pynvml.
"""

from __future__ import annotations

from gpunode.host.child import TYPE_CHECKING, child_command, print_json_answer_and_exit

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gpunode.facts.evidence import Probe

NVML_QUERY_TIMEOUT_S = 30.0
_MIB = 1 << 20


def child_argv() -> tuple[str, ...]:
    """Return the command of the child program."""
    return child_command("gpunode.host.nvml", packages=("pynvml",))


def make_probe(timeout_s: float = NVML_QUERY_TIMEOUT_S) -> Probe:
    """Return the command as a probe, killed after ``timeout_s``."""
    from gpunode.facts.evidence import Probe
    from gpunode.facts.nvml import NVML_PROBE_KEY

    return Probe(NVML_PROBE_KEY, argv=child_argv(), timeout_s=timeout_s, content_kind="table")


def main() -> None:
    """Print NVML's answer as one JSON object."""
    print_json_answer_and_exit(query_nvml)


def query_nvml() -> dict[str, object]:
    """Query NVML's values, or the reason for having none, in the form that ``facts.nvml.parse_answer`` reads."""
    import pynvml

    # No nvmlShutdown: process exit does the same, and the call could block.
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        failure = {**_encode_error(pynvml, error), "text": str(error)}
        return {
            **_query_system(pynvml),
            "error": {"code": failure["code"], "name": failure["error"], "text": failure["text"]},
        }
    return {**_query_system(pynvml), "gpus": [_query_gpu(pynvml, index) for index in range(count)]}


def _query_system(nvml: Any) -> dict[str, object]:
    return {
        "schema": 1,
        "driver": _query_value(nvml, nvml.nvmlSystemGetDriverVersion),
        "cuda": _query_value(
            nvml, lambda: "{}.{}".format(*divmod(nvml.nvmlSystemGetCudaDriverVersion_v2() // 10, 100))
        ),
        "nvml": _query_value(nvml, nvml.nvmlSystemGetNVMLVersion),
        "library": _find_library(),
        "libcuda_error": _find_libcuda_error(),
    }


def _query_gpu(nvml: Any, index: int) -> dict[str, object]:
    """Query one GPU; return its row, with any error in it."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        return {"index": index, **_encode_error(nvml, error)}
    ecc, ecc_pending = _query_current_and_pending_mode(nvml, lambda: nvml.nvmlDeviceGetEccMode(handle))
    mig, mig_pending = _query_current_and_pending_mode(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle))
    mig_fields = {"instances": _query_value(nvml, lambda: _query_instances(nvml, handle))} if mig is True else {}
    return {
        "index": index,
        "name": _query_value(nvml, lambda: nvml.nvmlDeviceGetName(handle)),
        "uuid": _query_value(nvml, lambda: nvml.nvmlDeviceGetUUID(handle)),
        "pci": _query_value(nvml, lambda: _format_address(nvml.nvmlDeviceGetPciInfo(handle))),
        "memory_mib": _query_value(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total // _MIB),
        "persistence": _query_value(nvml, lambda: bool(nvml.nvmlDeviceGetPersistenceMode(handle))),
        "ecc": ecc,
        "ecc_pending": ecc_pending,
        "compute_capability": _query_value(
            nvml, lambda: "{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(handle))
        ),
        "mig": mig,
        "mig_pending": mig_pending,
        "fabric": _query_value(nvml, lambda: _query_fabric(nvml, handle)),
        "clients": _query_clients(nvml, handle),
        **mig_fields,
    }


def _query_fabric(nvml: Any, handle: Any) -> str:
    """Return the state of the GPU's registration with the NVSwitches, as ``facts.nvml`` reads it."""
    import ctypes

    info = nvml.c_nvmlGpuFabricInfoV_t()
    try:
        nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    except nvml.NVMLError_FunctionNotFound:  # driver 535 has only the unversioned call
        info = nvml.c_nvmlGpuFabricInfo_t()
        nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
    states = ("not supported", "not started", "in progress", "completed")
    if info.state == nvml.NVML_GPU_FABRIC_STATE_COMPLETED and info.status != nvml.NVML_SUCCESS:
        return f"failed with {_encode_error(nvml, nvml.NVMLError(info.status))['error']}"
    return states[info.state] if info.state < len(states) else f"state {info.state}"


def _query_instances(nvml: Any, handle: Any) -> list[dict[str, object]]:
    from gpunode.host import mig

    return mig.read_instances(nvml, handle)


def _query_clients(nvml: Any, handle: Any) -> list[int]:
    """Return the processes on the GPU and its MIG instances, without the types whose query fails."""
    calls = (
        nvml.nvmlDeviceGetComputeRunningProcesses_v3,
        nvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
        nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3,
    )
    answers = [_query_value(nvml, lambda call=call: call(handle)) for call in calls]  # type: ignore[misc]
    return sorted({process.pid for answer in answers if isinstance(answer, list) for process in answer})


def _query_current_and_pending_mode(nvml: Any, call: Callable[[], list[int]]) -> tuple[object, object]:
    """Return a mode as it is now and after the next reset."""
    modes = _query_value(nvml, call)
    return (bool(modes[0]), bool(modes[1])) if isinstance(modes, list) else (modes, modes)


def _query_value(nvml: Any, call: Callable[[], object]) -> object:
    try:
        return call()
    except nvml.NVMLError as error:
        return _encode_error(nvml, error)
    except UnicodeDecodeError:
        # A dying GPU's name is not always valid UTF-8.
        return {"error": "Unknown", "code": nvml.NVML_ERROR_UNKNOWN}


def _encode_error(nvml: Any, error: Any) -> dict[str, object]:
    """Encode an error by its code and the name that pynvml gives it."""
    known = type(error) is not nvml.NVMLError
    name = type(error).__name__.removeprefix("NVMLError_") if known else f"Error{error.value}"
    return {"error": name, "code": error.value}


def _format_address(pci: Any) -> str:
    """Return the PCI address as sysfs writes it; NVML uses eight domain digits and capitals."""
    return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"


def _find_library() -> str:
    """Return the file that the dynamic loader chose for libnvidia-ml.so.1; empty if none."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:  # noqa: PTH123 - pathlib would cost the child its start-up time
        rows = [line.rstrip("\n").split(None, 5) for line in maps]
    return next((row[5] for row in rows if len(row) == 6 and "/libnvidia-ml.so" in row[5]), "")


def _find_libcuda_error() -> str:
    """Return why the dynamic loader cannot load libcuda.so.1, as every program that uses CUDA does; empty if it can."""
    import ctypes

    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main()
