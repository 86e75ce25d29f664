"""Typed answers of the NVML child, explanations of NVML's errors, and comparison of driver versions. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, TypeVar

from gpunode.change import MigInstance, MigLayout
from gpunode.facts.evidence import NOT_CAPTURED_REASON, Capture
from gpunode.facts.model import MigGpu
from gpunode.facts.patterns import Pattern, parse_version
from gpunode.fast_dataclass import dataclass

NVML_ANSWER_SCHEMA_VERSION = 1
NVML_PROBE_KEY = "nvml"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _NvmlError:
    """An NVML error, by number and name."""

    code: int
    name: str

    @property
    def meaning(self) -> str:
        """The meaning of the error for the GPU or the node, one clause."""
        return explain_error(self.code).meaning

    @property
    def remedy(self) -> str:
        """Advice for the user."""
        return explain_error(self.code).remedy


@dataclass(frozen=True, slots=True)
class UnreadNvmlValue(_NvmlError):
    """A value that NVML did not return, with its error."""

    @property
    def supported(self) -> bool:
        """True if the value was expected: NotSupported and FunctionNotFound are no faults."""
        return self.code not in {3, 13}


# For a value that the child of an older gpunode did not query.
VALUE_NOT_QUERIED = UnreadNvmlValue(13, "FunctionNotFound")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as NVML shows it.

    Attributes:
        index: NVML's, in the order of the PCI bus.
        pci: the address as sysfs writes it (``0000:0f:00.0``).
        memory_mib: the total, as nvidia-smi counts it.
        ecc: whether it is on now; ``ecc_pending`` after the next reset. The same holds for ``mig``.
        instances: the MIG instances, if MIG is on.
        fabric: how far it is in registering with the NVSwitches: ``not supported``, ``not started``, ``in progress``,
            ``completed``, or ``failed with`` an error.
        clients: the PIDs of the processes that use it.
        failure: why the GPU does not answer at all; every value is then this error, too.
    """

    index: int
    name: str | UnreadNvmlValue
    uuid: str | UnreadNvmlValue
    pci: str | UnreadNvmlValue
    memory_mib: int | UnreadNvmlValue
    persistence: bool | UnreadNvmlValue
    ecc: bool | UnreadNvmlValue
    ecc_pending: bool | UnreadNvmlValue
    compute_capability: str | UnreadNvmlValue
    mig: bool | UnreadNvmlValue
    mig_pending: bool | UnreadNvmlValue
    instances: tuple[MigInstance, ...] | UnreadNvmlValue = ()
    clients: tuple[int, ...] = ()
    fabric: str | UnreadNvmlValue = VALUE_NOT_QUERIED
    failure: UnreadNvmlValue | None = None

    @property
    def faults(self) -> tuple[tuple[str, UnreadNvmlValue], ...]:
        """Expected values that are missing, by name; one row if the GPU does not answer at all."""
        if self.failure is not None:
            return (("gpu", self.failure),)
        values = ((key, getattr(self, key)) for key in TYPE_BY_NVML_VALUE)
        return tuple((key, value) for key, value in values if isinstance(value, UnreadNvmlValue) and value.supported)


TYPE_BY_NVML_VALUE: Mapping[str, type] = {
    "name": str,
    "uuid": str,
    "pci": str,
    "memory_mib": int,
    "persistence": bool,
    "ecc": bool,
    "ecc_pending": bool,
    "compute_capability": str,
    "mig": bool,
    "mig_pending": bool,
}


@dataclass(frozen=True, slots=True)
class NvmlInventory:
    """The driver and its GPUs.

    Attributes:
        cuda: the newest CUDA version that the driver supports (``13.0``).
        nvml: the library's version as it reports it (``13.580.178.04``).
        library: the file that the dynamic loader chose.
        libcuda_error: why the dynamic loader cannot load libcuda.so.1; empty if it can, or was not tried.
    """

    driver: str | UnreadNvmlValue
    cuda: str | UnreadNvmlValue
    nvml: str | UnreadNvmlValue
    gpus: tuple[Gpu, ...]
    library: str = ""
    libcuda_error: str = ""

    @property
    def uuids(self) -> frozenset[str]:
        """UUIDs of the GPUs that report one."""
        return frozenset(gpu.uuid for gpu in self.gpus if isinstance(gpu.uuid, str))


@dataclass(frozen=True, slots=True)
class NvmlFailure(_NvmlError):
    """A failure of NVML to start, or to count the GPUs.

    Attributes:
        text: NVML's own message.
        nvml: the library's version, if it could still report it; ``library`` is the file that was loaded.
        libcuda_error: as in ``NvmlInventory``.
    """

    text: str
    nvml: str = ""
    library: str = ""
    libcuda_error: str = ""


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """A missing answer: the call hangs, the child died, or could not be started.

    Attributes:
        reason: one sentence, with what was seen.
    """

    kind: Literal["hangs", "crashed", "garbled", "not-queried"]
    reason: str


NvmlAnswer: TypeAlias = NvmlInventory | NvmlFailure | NoAnswer


def parse_answer(data: bytes) -> NvmlInventory | NvmlFailure:
    """Parse the output of the NVML child.

    Raises:
        ValueError: if it is malformed or of another schema.
    """
    answer = read_object(data, NVML_ANSWER_SCHEMA_VERSION)
    return _parse_failure(answer) if "error" in answer else _parse_inventory(answer)


def read_object(data: bytes, schema: int) -> Mapping[str, Any]:
    """Return the object that a child program printed.

    Raises:
        ValueError: if it is not an object, or of another schema.
    """
    try:
        answer = json.loads(data)
    except RecursionError:
        raise ValueError("the answer is nested too deeply") from None
    if not isinstance(answer, dict) or isinstance(answer.get("schema"), bool):
        raise ValueError("the answer is not an object with a schema")
    if answer.get("schema") != schema:
        raise ValueError(f"the answer has schema {answer.get('schema')!r}; this gpunode reads {schema}")
    return answer


def _parse_failure(answer: Mapping[str, object]) -> NvmlFailure:
    return NvmlFailure(
        **require_values(answer["error"], {"code": int, "name": str, "text": str}, "`error`"),
        nvml=_optional_text(answer, "nvml"),
        library=_optional_text(answer, "library"),
        libcuda_error=_optional_text(answer, "libcuda_error"),
    )


def _parse_inventory(answer: Mapping[str, object]) -> NvmlInventory:
    gpus = answer.get("gpus")
    if not isinstance(gpus, list):
        raise ValueError("`gpus` is not a list")
    return NvmlInventory(
        driver=_parse_typed_value(str, answer, "driver"),
        cuda=_parse_typed_value(str, answer, "cuda"),
        nvml=_parse_typed_value(str, answer, "nvml"),
        gpus=tuple(_parse_gpu(row) for row in gpus),
        library=_optional_text(answer, "library"),
        libcuda_error=_optional_text(answer, "libcuda_error"),
    )


def _optional_text(answer: Mapping[str, object], key: str) -> str:
    """Return an optional text; empty if the child of an older gpunode did not return it."""
    text = answer.get(key)
    return text if isinstance(text, str) else ""


def _parse_gpu(row: object) -> Gpu:
    if not isinstance(row, dict):
        raise ValueError("a GPU is not an object")
    index = require_typed(int, row, "index")
    if "error" in row:
        failure = _parse_unread_value(row)
        unread: dict[str, Any] = dict.fromkeys(TYPE_BY_NVML_VALUE, failure)
        return Gpu(index, **unread, failure=failure)
    values: dict[str, Any] = {key: _parse_typed_value(kind, row, key) for key, kind in TYPE_BY_NVML_VALUE.items()}
    fabric = _parse_typed_value(str, row, "fabric") if "fabric" in row else VALUE_NOT_QUERIED
    instances = _parse_instances(row, values["mig"])
    return Gpu(index, **values, instances=instances, clients=_parse_clients(row), fabric=fabric)


def _parse_instances(row: Mapping[str, object], mig: object) -> tuple[MigInstance, ...] | UnreadNvmlValue:
    """Parse the MIG instances, which answers of older gpunode versions lack."""
    value = row.get("instances", [] if mig is not True else {"code": 13, "error": "FunctionNotFound"})
    if isinstance(value, dict):
        return _parse_unread_value(value)
    if not isinstance(value, list):
        raise ValueError("`instances` is not a list")
    return tuple(parse_instance(one) for one in value)


def parse_instance(row: object) -> MigInstance:
    """Parse a MIG instance, as the child prints it.

    Raises:
        ValueError: if it is not one.
    """
    if not isinstance(row, dict) or not isinstance(compute := row.get("compute"), list):
        raise ValueError("a MIG instance is not an object with compute instances")
    if not all(type(one) is int for one in compute):
        raise ValueError("a compute instance's slices are not a number")
    values = require_values(row, {"profile": str, "start": int, "size": int}, "a MIG instance")
    return MigInstance(**values, compute=tuple(map(str, compute)))


def _parse_clients(row: Mapping[str, object]) -> tuple[int, ...]:
    value = row.get("clients", [])
    if not isinstance(value, list) or not all(type(one) is int for one in value):
        raise ValueError("`clients` is not a list of numbers")
    return tuple(value)


def require_typed(kind: type[T], row: Mapping[str, object], key: str) -> T:
    """Return the value of ``key``, which must be of exactly this type: a bool is no int.

    Raises:
        ValueError: if it is of another type, or missing.
    """
    value = row.get(key)
    if type(value) is not kind:
        raise ValueError(f"`{key}` is {value!r}")
    return value


def require_values(row: object, kinds: Mapping[str, type], what: str) -> dict[str, Any]:
    """Return the values of these keys of ``row``. Raises ValueError if it is no object, and as ``require_typed``."""
    if not isinstance(row, dict):
        raise ValueError(f"{what} is not an object")
    return {key: require_typed(kind, row, key) for key, kind in kinds.items()}


def _parse_typed_value(kind: type[T], row: Mapping[str, object], key: str) -> T | UnreadNvmlValue:
    value = row.get(key)
    return _parse_unread_value(value) if isinstance(value, dict) else require_typed(kind, row, key)


def _parse_unread_value(value: Mapping[str, object]) -> UnreadNvmlValue:
    return UnreadNvmlValue(code=require_typed(int, value, "code"), name=require_typed(str, value, "error"))


def describe_hang(what: str, error: str) -> str:
    """Describe a call that did not return; the child's last line names the call if it announces calls.

    If the host reports how long it waited, that is the first line of ``error``: ``no answer within …``.
    """
    lines = error.strip().splitlines()
    within = lines.pop(0).removeprefix("no answer") if lines and lines[0].startswith("no answer within ") else ""
    last = f" (last: {lines[-1]})" if lines else ""
    return (
        f"{what} did not return{within}{last}: the driver or a GPU hangs; "
        "read `dmesg` for NVRM and Xid lines, a reboot is usually needed"
    )


def read_nvml_answer(capture: Capture) -> NvmlAnswer:
    """Return NVML's answer; a malformed one becomes ``NoAnswer``, so nothing is raised."""
    return read_child_answer(capture, parse_answer, "NVML", "a call into the NVIDIA driver")


def read_child_answer(capture: Capture, parse: Callable[[bytes], T], library: str, call: str) -> T | NoAnswer:
    """Return the parsed answer of the child that calls ``library``, or why there is none; ``call`` may hang."""
    if capture.outcome == "timeout":
        return NoAnswer("hangs", describe_hang(call, capture.error))
    if capture.outcome in {"absent", "denied"}:
        return NoAnswer("not-queried", capture.error or f"{capture.source}: {capture.outcome}")
    if capture.error == NOT_CAPTURED_REASON:
        return NoAnswer("not-queried", "not in this capture")
    if not capture.data.strip():
        lines = capture.error.strip().splitlines()
        ended = "" if capture.exit_status is None else f" with exit status {capture.exit_status}"
        detail = f": {lines[-1]}" if lines else ""
        return NoAnswer("crashed", f"the {library} child process ended{ended} without an answer{detail}")
    try:
        return parse(capture.data)
    except ValueError as error:
        return NoAnswer("garbled", f"the {library} child process printed what gpunode cannot read: {error}")


def list_mig_gpus(answer: NvmlAnswer) -> tuple[MigGpu, ...]:
    """Return the MIG layout of each GPU, without those that do not answer at all.

    Raises:
        ValueError: if NVML does not report it.
    """
    match answer:
        case NvmlFailure(meaning=meaning):
            raise ValueError(meaning)
        case NoAnswer(reason=reason):
            raise ValueError(reason)
        case NvmlInventory(gpus=gpus):
            return tuple(_make_mig_gpu(gpu) for gpu in gpus if gpu.failure is None)


def _make_mig_gpu(gpu: Gpu) -> MigGpu:
    if not isinstance(gpu.uuid, str) or not isinstance(gpu.pci, str) or not _GPU_UUID.fullmatch(gpu.uuid):
        raise ValueError(f"GPU {gpu.index} does not report its UUID and its address")
    if isinstance(gpu.mig, UnreadNvmlValue) and not gpu.mig.supported:
        return MigGpu(gpu.index, gpu.uuid, gpu.pci, None)
    for reading in (gpu.mig, gpu.mig_pending, gpu.instances):
        if isinstance(reading, UnreadNvmlValue):
            raise ValueError(f"GPU {gpu.index} does not report its MIG layout: {reading.meaning}")
    assert isinstance(gpu.mig, bool)
    assert isinstance(gpu.mig_pending, bool)
    assert isinstance(gpu.instances, tuple)
    return MigGpu(gpu.index, gpu.uuid, gpu.pci, MigLayout(gpu.mig, gpu.instances), gpu.mig_pending, gpu.clients)


@dataclass(frozen=True, slots=True)
class VersionProblem:
    """A version mismatch between two parts of the driver, and advice."""

    what: str
    hint: str


_GPU_UUID = Pattern(r"GPU-[0-9a-f]+(?:-[0-9a-f]+)*")
_DRIVER_VERSION = Pattern(r"(?:\d{1,4}:)?(\d{3,5}(?:\.\d{1,6}){1,2})(?![\d.])")
_RELOAD_MODULES_ADVICE = (
    "reboot; or stop everything that uses the GPUs, unload the modules "
    "(`modprobe -r nvidia_drm nvidia_modeset nvidia_uvm nvidia`) and load them again (`modprobe nvidia`)"
)
_FIND_OTHER_NVML_COPY_ADVICE = (
    "a reboot does not help: find the other copy with `ldconfig -p | grep libnvidia-ml` "
    "(a .run installation, /usr/local, ld.so.conf) and remove it, then run `ldconfig`"
)


def driver_version(text: str) -> str:
    """Extract the driver's version from a module's, a package's or NVML's version; empty if there is none.

    ``13.580.178.04`` (NVML puts the CUDA major first), ``1:580.178.04-0ubuntu1`` and ``580.178.04`` are one version.
    """
    without_cuda = re.sub(r"^\d{1,2}\.(?=\d{3,}\.)", "", text.strip())
    match = _DRIVER_VERSION.match(without_cuda)
    return match.group(1) if match else ""


def compare_versions(loaded: str | None, library: str | None, package: str | None) -> tuple[VersionProblem, ...]:
    """Compare the driver versions of the loaded module, the NVML library and the installed package.

    The package has the intended version. Missing versions are not compared; they are reported separately.
    """
    module, nvml, wanted = (driver_version(text or "") for text in (loaded, library, package))
    loaded_module, package_name = "the loaded nvidia module", "the installed package"
    pairs = [
        (loaded_module, module, package_name, wanted, _RELOAD_MODULES_ADVICE),
        ("the NVML library in use", nvml, package_name, wanted, _FIND_OTHER_NVML_COPY_ADVICE),
    ]
    if not wanted and module and nvml:
        is_older = parse_version(module) < parse_version(nvml)
        advice = _RELOAD_MODULES_ADVICE if is_older else _FIND_OTHER_NVML_COPY_ADVICE
        pairs = [(loaded_module, module, "the NVML library", nvml, advice)]
    problems = []
    for what, own, name, other, hint in pairs:
        if own and other and own != other:
            relation = "older" if parse_version(own) < parse_version(other) else "newer"
            problems.append(VersionProblem(f"{what} ({own}) is {relation} than {name} ({other})", hint))
    return tuple(problems)


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """A value of ``nvmlReturn_t``: its meaning on a node, and advice."""

    name: str
    meaning: str
    remedy: str = "run `nvidia-smi -q` and read the kernel's log (`dmesg | grep -i nvrm`)"


_RESET_GPU_ADVICE = (
    "stop what uses the GPU, then `nvidia-smi --gpu-reset -i` and its address, or a reboot; if it comes back, have the "
    "board serviced"
)
_REPORT_BUG_ADVICE = "this is a bug in gpunode or the driver: report it with the output of `gpunode verify --json`"
ERRORS: Mapping[int, ErrorRow] = {
    1: ErrorRow("Uninitialized", "NVML was called before it was initialised", _REPORT_BUG_ADVICE),
    2: ErrorRow("InvalidArgument", "NVML was called with an argument that it rejects", _REPORT_BUG_ADVICE),
    3: ErrorRow("NotSupported", "this GPU does not support the query", "nothing: it is a property of the model"),
    4: ErrorRow(
        "NoPermission",
        "the driver does not let this user query the GPU",
        "run it as root; in a container, give it the device nodes /dev/nvidia*",
    ),
    5: ErrorRow("AlreadyInitialized", "NVML was initialised twice", _REPORT_BUG_ADVICE),
    6: ErrorRow("NotFound", "NVML has no object of that name", _REPORT_BUG_ADVICE),
    7: ErrorRow("InsufficientSize", "the buffer given to NVML is too small for its answer", _REPORT_BUG_ADVICE),
    8: ErrorRow(
        "InsufficientPower",
        "the GPU's auxiliary power connectors are not plugged in, or do not supply enough power",
        "power the machine off and plug in every power connector of the board",
    ),
    9: ErrorRow(
        "DriverNotLoaded",
        "the nvidia kernel module is not loaded, or it found no GPU",
        "run `modprobe nvidia` and read what it and `dmesg` say; "
        "`gpunode plan` shows whether there is a module for this kernel",
    ),
    10: ErrorRow("Timeout", "the driver gave up waiting for the GPU", _RESET_GPU_ADVICE),
    11: ErrorRow("IrqIssue", "the GPU's interrupts do not arrive", "read `dmesg`; check the BIOS and the MSI settings"),
    12: ErrorRow(
        "LibraryNotFound",
        "libnvidia-ml.so.1 is not installed, or the dynamic loader does not find it",
        "install the driver's libraries (`sudo gpunode setup`), then run `sudo ldconfig`",
    ),
    13: ErrorRow(
        "FunctionNotFound",
        "the installed libnvidia-ml.so.1 is too old to answer this",
        "nothing for this value; if everything is unanswered, upgrade the driver",
    ),
    14: ErrorRow(
        "CorruptedInforom",
        "the board's infoROM is corrupted",
        "the GPU may keep working; have the board serviced, software cannot repair it",
    ),
    15: ErrorRow(
        "GpuIsLost",
        "the GPU has fallen off the bus, or cannot be reached any more",
        "read `dmesg` for Xid 79; power the machine off and on; if it comes back, check power, cooling and seating",
    ),
    16: ErrorRow("ResetRequired", "the GPU must be reset before it can be used again", _RESET_GPU_ADVICE),
    17: ErrorRow(
        "OperatingSystem",
        "the operating system or a cgroup blocks access to the GPU",
        "check the device rules of the container or the service; read `dmesg`",
    ),
    18: ErrorRow(
        "LibRmVersionMismatch",
        "the loaded kernel module and libnvidia-ml.so.1 are of different driver versions",
        "reboot, or stop what uses the GPUs and reload the nvidia modules",
    ),
    19: ErrorRow("InUse", "the GPU is in use", "stop what uses it (`nvidia-smi` lists the processes), then try again"),
    20: ErrorRow("Memory", "there is not enough memory", "free memory on the node, then try again"),
    21: ErrorRow("NoData", "the GPU has no data for this yet", "try again in a moment"),
    22: ErrorRow("VgpuEccNotSupported", "a vGPU cannot do this while ECC is on", "switch ECC off on the vGPU host"),
    23: ErrorRow("InsufficientResources", "the driver is out of a resource other than memory"),
    24: ErrorRow(
        "FreqNotSupported", "the GPU does not support that frequency", "nothing: it is a property of the model"
    ),
    25: ErrorRow(
        "ArgumentVersionMismatch", "this driver does not know the data structure of the query", _REPORT_BUG_ADVICE
    ),
    26: ErrorRow("Deprecated", "this driver no longer supports this query", _REPORT_BUG_ADVICE),
    27: ErrorRow(
        "NotReady",
        "the GPU is not ready yet",
        "wait until nvidia-persistenced, and the fabric manager where there is one, have started; then try again",
    ),
    28: ErrorRow("GpuNotFound", "no GPU was found", "compare with `lspci -d 10de:`; read `dmesg`"),
    29: ErrorRow("InvalidState", "the GPU is in a state in which this query is not possible"),
    30: ErrorRow("ResetTypeNotSupported", "the GPU does not support that kind of reset", _REPORT_BUG_ADVICE),
    999: ErrorRow("Unknown", "the driver failed without giving a reason", "read `dmesg`: an Xid line names the cause"),
}


def explain_error(code: int) -> ErrorRow:
    """Explain an error code of NVML; a newer one than nvml.h's is named by its number."""
    return ERRORS.get(code) or ErrorRow(f"Error{code}", f"NVML answered with error {code}, which gpunode does not know")
