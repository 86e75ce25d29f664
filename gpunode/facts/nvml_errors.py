"""What each error of NVML means on a node, and what to do about it. Pure.

Codes and names are those of ``nvmlReturn_t`` in nvml.h (CUDA 13); the sentences are gpunode's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """One value of ``nvmlReturn_t``: what it means on a node, and what to do about it."""

    name: str
    meaning: str
    remedy: str = "run `nvidia-smi -q` and read the kernel's log (`dmesg | grep -i nvrm`)"


_RESET = (
    "stop what uses the GPU, then `nvidia-smi --gpu-reset -i` and its address, or a reboot; if it comes back, have the "
    "board serviced"
)
_DRIVER_BUG = "this is between gpunode and the driver: report it with the output of `gpunode verify --json`"
ERRORS: Mapping[int, ErrorRow] = {
    1: ErrorRow("Uninitialized", "NVML was asked before it was initialised", _DRIVER_BUG),
    2: ErrorRow("InvalidArgument", "NVML was asked with an argument that it does not take", _DRIVER_BUG),
    3: ErrorRow("NotSupported", "this GPU does not have what was asked for", "nothing: it is a property of the model"),
    4: ErrorRow(
        "NoPermission",
        "the driver does not let this user look at the GPU",
        "run it as root; in a container, give it the device nodes /dev/nvidia*",
    ),
    5: ErrorRow("AlreadyInitialized", "NVML was initialised twice", _DRIVER_BUG),
    6: ErrorRow("NotFound", "NVML has no object of that name", _DRIVER_BUG),
    7: ErrorRow("InsufficientSize", "the answer does not fit where NVML was told to put it", _DRIVER_BUG),
    8: ErrorRow(
        "InsufficientPower",
        "the GPU's auxiliary power connectors are not plugged in, or give too little",
        "power the machine off and plug in every power connector of the board",
    ),
    9: ErrorRow(
        "DriverNotLoaded",
        "the nvidia kernel module is not loaded, or no GPU answered to it",
        "run `modprobe nvidia` and read what it and `dmesg` say; "
        "without a module for this kernel, `gpunode plan` says why",
    ),
    10: ErrorRow("Timeout", "the driver gave up waiting for the GPU", _RESET),
    11: ErrorRow(
        "IrqIssue", "the GPU's interrupts do not arrive", "read `dmesg`; look at the BIOS and at MSI settings"
    ),
    12: ErrorRow(
        "LibraryNotFound",
        "libnvidia-ml.so.1 is not installed, or the dynamic loader does not find it",
        "install the driver's libraries (`gpunode setup`), then run `ldconfig`",
    ),
    13: ErrorRow(
        "FunctionNotFound",
        "the installed libnvidia-ml.so.1 is too old to answer this",
        "nothing for this value; if everything is unanswered, upgrade the driver",
    ),
    14: ErrorRow(
        "CorruptedInforom",
        "the board's infoROM is corrupted",
        "the GPU may work on; have the board serviced, nothing on the node repairs it",
    ),
    15: ErrorRow(
        "GpuIsLost",
        "the GPU has fallen off the bus, or cannot be reached any more",
        "read `dmesg` for Xid 79; power the machine off and on; if it comes back, check power, cooling and seating",
    ),
    16: ErrorRow("ResetRequired", "the GPU must be reset before it can be used again", _RESET),
    17: ErrorRow(
        "OperatingSystem",
        "the operating system or a cgroup blocks the way to the GPU",
        "look at the device rules of the container or of the service; read `dmesg`",
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
        "FreqNotSupported", "the GPU does not run at that frequency", "nothing: it is a property of the model"
    ),
    25: ErrorRow("ArgumentVersionMismatch", "this driver does not know the structure that it was given", _DRIVER_BUG),
    26: ErrorRow("Deprecated", "this driver no longer answers that", _DRIVER_BUG),
    27: ErrorRow(
        "NotReady",
        "the GPU is not ready yet",
        "wait until nvidia-persistenced, and the fabric manager where there is one, have started; then try again",
    ),
    28: ErrorRow("GpuNotFound", "no GPU was found", "compare with `lspci -d 10de:`; read `dmesg`"),
    29: ErrorRow("InvalidState", "the GPU is in a state in which this cannot be answered"),
    30: ErrorRow("ResetTypeNotSupported", "the GPU does not support that kind of reset", _DRIVER_BUG),
    999: ErrorRow("Unknown", "the driver failed and does not say why", "read `dmesg`: an Xid line names the cause"),
}


def explain(code: int) -> ErrorRow:
    """What an error code of NVML means; one that nvml.h did not have yet is called by its number."""
    return ERRORS.get(code) or ErrorRow(f"Error{code}", f"NVML answered with error {code}, which gpunode does not know")
