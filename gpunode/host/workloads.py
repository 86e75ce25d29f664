"""GPU processes and running containers, from the kernel's process list: no daemon is queried."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpunode.facts.patterns import Pattern
from gpunode.host.port import GpuClient, Workloads
from gpunode.redaction.secrets import redact_text as redact

# For /dev/nvidia0 and /dev/nvidiactl (Linux, Documentation/admin-guide/devices.txt); others are assigned at boot.
_NVIDIA_DEVICE_MAJOR: Final = 195
_CONTAINERD_SHIM_PROGRAM: Final = "containerd-shim"
_MAX_COMMAND_LENGTH_SHOWN: Final = 80
# In /proc/PID/cgroup, by the systemd or the cgroupfs driver; systemd writes a pod's UID with underscores.
_CONTAINER_ID: Final = Pattern(r"[0-9a-f]{64}")
_POD_UID_IN_CGROUP: Final = Pattern(r"[/-]pod(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})\b")
# Users choose the names of cgroups below it, so one may look like a system unit.
_USER_SLICE_CGROUP: Final = Pattern(r"^\d+:[^:\n]*:/user\.slice/", re.MULTILINE)
_SERVICE_IN_CGROUP: Final = Pattern(r"/system\.slice/(?:[^/]+\.slice/)*(?P<unit>[^/]+\.service)")
# A folder for each pod: namespace, name and UID (kubernetes, pkg/kubelet/kuberuntime, BuildPodLogsDirectory).
_POD_LOGS_FOLDER: Final = "var/log/pods"


def find_disturbable_workloads(root: Path = Path("/")) -> Workloads:
    """Return the workloads of this machine that this process may see."""
    gpu: list[GpuClient] = []
    containers: list[str] = []
    proc, majors = root / "proc", _read_nvidia_majors(root / "proc/devices")
    for folder in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)):
        words = _read_text(folder / "cmdline").rstrip("\0").split("\0")
        if not words[0]:
            continue  # a kernel thread, or it has ended meanwhile
        if Path(words[0]).name.startswith(_CONTAINERD_SHIM_PROGRAM):
            containers += _container_of_shim(words)
        if any(_is_gpu_device(descriptor, majors) for descriptor in _list_descriptors(folder)):
            gpu.append(_describe_client(folder, words, root))
    return Workloads(tuple(gpu), tuple(containers))


def _read_nvidia_majors(path: Path) -> frozenset[int]:
    """Return the numbers of the character devices that NVIDIA's modules have registered."""
    pairs = (line.split() for line in _read_text(path).partition("Block devices")[0].splitlines())
    return frozenset(
        {_NVIDIA_DEVICE_MAJOR, *(int(pair[0]) for pair in pairs if len(pair) == 2 and pair[1].startswith("nvidia"))}
    )


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


def _list_descriptors(folder: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield from (folder / "fd").iterdir()


def _is_gpu_device(descriptor: Path, majors: frozenset[int]) -> bool:
    """Return whether an open file is an NVIDIA device, whatever path a container gives its node."""
    with suppress(OSError):  # it has been closed meanwhile
        target = str(descriptor.readlink())
        if target.startswith("/dev/nvidia"):
            return True
        # Stat only files of that name: the file system of any other file may not respond.
        if target.rpartition("/")[2].startswith("nvidia"):
            found = descriptor.stat()
            return stat.S_ISCHR(found.st_mode) and os.major(found.st_rdev) in majors
    return False


def _describe_client(folder: Path, words: list[str], root: Path) -> GpuClient:
    pid, command = int(folder.name), redact(" ".join(words))[:_MAX_COMMAND_LENGTH_SHOWN]
    cgroup = _read_text(folder / "cgroup")
    if _USER_SLICE_CGROUP.search(cgroup):
        return GpuClient(pid, command)
    if container := _CONTAINER_ID.search(cgroup):
        pod = _POD_UID_IN_CGROUP.search(cgroup)
        name = _name_pod(pod["uid"].replace("_", "-"), root / _POD_LOGS_FOLDER) if pod else ""
        return GpuClient(pid, command, container=container[0][:12], pod=name)
    unit = _SERVICE_IN_CGROUP.search(cgroup)
    return GpuClient(pid, command, unit=unit["unit"] if unit else "")


def _name_pod(uid: str, logs: Path) -> str:
    found = next(logs.glob(f"*_*_{uid}"), None)
    return "/".join(found.name.split("_")[:2]) if found else uid


def _container_of_shim(words: list[str]) -> Iterator[str]:
    """Yield the container of a shim, but not of its short-lived ``start`` and ``delete`` calls."""
    if "-id" in words[:-1]:
        namespace = words[words.index("-namespace") + 1] if "-namespace" in words[:-1] else "?"
        yield f"{namespace}/{words[words.index('-id') + 1]}"
