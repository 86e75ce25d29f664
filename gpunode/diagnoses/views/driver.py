"""The driver: which version is loaded, on disk, in the libraries, in the packages, and whether nvidia-smi works."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.diagnoses.views import kernel, modules, packages
from gpunode.facts import kmod
from gpunode.facts.items import Item
from gpunode.facts.model import Known

VERSION: Final = r"\d{2,3}\.\d{1,3}(?:\.\d{1,3})?"
_API: Final = re.compile(
    rf"API mismatch: the (?:client|NVIDIA kernel module)[^.]{{0,60}}? version\s+(?P<client>{VERSION})[^.]{{0,80}}?"
    rf"(?:kernel module|this NVIDIA driver component)[^.]{{0,60}}? version\s+(?P<module>{VERSION})",
    re.IGNORECASE,
)
_LOADING: Final = re.compile(rf"loading NVIDIA UNIX (?P<what>.{{0,60}}?)\s+(?P<version>{VERSION})\b")
_NVML_LIBRARY: Final = re.compile(rf"NVML library version:\s*(?P<version>{VERSION})")
_SMI: Final = re.compile(rf"Driver Version\s*:\s*(?P<version>{VERSION})")
_CUDA: Final = re.compile(r"CUDA (?:UMD )?Version\s*:\s*(?P<version>\d+\.\d+)")
_LIBRARY: Final = re.compile(
    rf"lib(?:nvidia-ml|cuda|nvidia-ptxjitcompiler|GLX_nvidia|EGL_nvidia)\.so\.(?P<version>{VERSION})\b"
)

SmiState: TypeAlias = Literal["works", "no-devices", "no-driver", "mismatch", "missing", "failed"]
_STATES: Final[tuple[tuple[SmiState, re.Pattern[str]], ...]] = (
    ("mismatch", re.compile(r"Driver/library version mismatch", re.IGNORECASE)),
    ("no-driver", re.compile(r"couldn.t communicate with the NVIDIA driver|Driver Not Loaded", re.IGNORECASE)),
    ("no-devices", re.compile(r"No devices were found", re.IGNORECASE)),
    ("missing", re.compile(
        r"nvidia-smi['‘’\": ]{0,3}\s*(?:command )?not found|nvidia-smi: No such file|executable file not found",
        re.IGNORECASE)),
    ("failed", re.compile(
        r"Failed to initialize NVML|Unable to determine the device handle|Unknown Error|GPU is lost|NVML: ",
        re.IGNORECASE)),
    ("works", re.compile(r"Driver Version\s*:|^GPU \d+: |\bMiB /\s*\d+MiB", re.MULTILINE)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Seen:
    """A version, and where it stands."""

    version: str
    citation: Citation
    is_open: bool | None = None


def loaded(snapshot: Snapshot) -> Seen | None:
    """The version of the loaded kernel module, and whether it is of the open modules; None where nothing tells."""
    fact = snapshot.facts.loaded_driver
    if isinstance(fact, Known) and fact.value is not None:
        place = Citation("/proc/driver/nvidia/version", fact.value.version, 1, fact.probe)
        return Seen(fact.value.version, place, fact.value.open_module)
    for item in (*snapshot.files("/proc/driver/nvidia/version"), *snapshot.of("text", "kernel-log")):
        for number, line in enumerate(item.lines, 1):
            if "NVRM version:" in line:
                try:
                    driver = kmod.nvidia_version(line)
                except ValueError:
                    continue
                return Seen(driver.version, cite(item, number), driver.open_module)
    return _from_log(snapshot)


def _from_log(snapshot: Snapshot) -> Seen | None:
    for message in reversed(snapshot.view(kernel.messages)):
        if match := _API.search(message.text):
            return Seen(match["module"], message.citation)
    for message in reversed(snapshot.view(kernel.messages)):
        if match := _LOADING.search(message.text):
            return Seen(match["version"], message.citation, "Open" in match["what"])
    return None


def on_disk(snapshot: Snapshot) -> Seen | None:
    """The version of nvidia.ko that modprobe would load, by modinfo, else by DKMS for the running kernel."""
    for info in snapshot.view(modules.modinfo):
        if info.module in {"nvidia", "nvidia_current"} and info.version:
            return Seen(info.version, info.citation, info.is_open)
    return None


def library(snapshot: Snapshot) -> Seen | None:
    """The version of the libraries that programs on the node load."""
    for message in snapshot.view(kernel.messages):
        if match := _API.search(message.text):
            return Seen(match["client"], message.citation)
    for item in snapshot.items:
        if item.where == "host" and item.kind in {"nvidia-smi", "text"} and (match := _NVML_LIBRARY.search(item.text)):
            return Seen(match["version"], cite(item, item.text.count("\n", 0, match.start()) + 1))
    for item in snapshot.of("ldconfig", "listing", "package-owner"):
        if item.where == "host" and (match := _LIBRARY.search(item.text)):
            return Seen(match["version"], cite(item, item.text.count("\n", 0, match.start()) + 1))
    return None


_PACKAGES: Final = (
    *("nvidia-driver*", "nvidia-utils-*", "libnvidia-compute-*", "libnvidia-ml1", "libcuda1", "nvidia-smi"),
    *("nvidia-headless-*", "nvidia-kernel-dkms", "nvidia-dkms-*", "nvidia-open*", "nvidia-kernel-open-dkms"),
    *("xorg-x11-drv-nvidia*", "kmod-nvidia*", "akmod-nvidia*"),
)


def packaged(snapshot: Snapshot) -> tuple[packages.Package, ...]:
    """The driver's packages, kernel and user side."""
    return tuple(one for one in packages.matching(snapshot, *_PACKAGES) if re.match(VERSION, one.upstream))


def smi(snapshot: Snapshot) -> tuple[tuple[SmiState, Citation], ...]:
    """What each run of nvidia-smi on the node came to, or each program's word that NVML fails the same way."""
    return tuple(_smi(snapshot))


def _smi(snapshot: Snapshot) -> Iterator[tuple[SmiState, Citation]]:
    for item in snapshot.of("nvidia-smi", "nvidia-smi-q", "text"):
        if item.where == "container":
            continue
        if (found := _state(item)) is not None:
            yield found


def _state(item: Item) -> tuple[SmiState, Citation] | None:
    for state, pattern in _STATES:
        if match := pattern.search(item.text):
            return state, cite(item, item.text.count("\n", 0, match.start()) + 1)
    if item.outcome == "absent" and item.kind == "nvidia-smi":
        return "missing", cite(item)
    return None


def smi_version(snapshot: Snapshot) -> Seen | None:
    """The driver's version in nvidia-smi's table or query."""
    return _first(snapshot, _SMI)


def cuda_version(snapshot: Snapshot) -> Seen | None:
    """The CUDA version that the driver supports, as nvidia-smi shows it."""
    return _first(snapshot, _CUDA)


def _first(snapshot: Snapshot, pattern: re.Pattern[str]) -> Seen | None:
    for item in snapshot.of("nvidia-smi", "nvidia-smi-q", "text"):
        if match := pattern.search(item.text):
            return Seen(match["version"], cite(item, item.text.count("\n", 0, match.start()) + 1))
    return None


def fails(snapshot: Snapshot) -> bool:
    """Whether the driver itself does not work on the node, so that no container could have a GPU."""
    return (bool(snapshot.view(smi)) and not works(snapshot)) or modules.loaded(snapshot, "nvidia") is False


def works(snapshot: Snapshot) -> bool:
    """Whether nvidia-smi answered on the node with a driver version or a list of GPUs."""
    return any(state == "works" for state, _ in snapshot.view(smi))
