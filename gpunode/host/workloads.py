"""GPU processes and running containers, from the kernel's process list: no daemon is queried."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gpunode.host.port import Workloads
from gpunode.redaction.secrets import redact_text as redact

_GPU = "/dev/nvidia"
# NVIDIA's own daemons hold the devices open and do no work on them.
_DAEMONS = frozenset({"nvidia-persiste", "nv-fabricmanage", "nv-hostengine", "dcgm-exporter"})
_SHIM = "containerd-shim"
_MAX_SHOWN = 80


def find_workloads(proc: Path = Path("/proc")) -> Workloads:
    """Return the workloads of this machine that this process may see."""
    gpu: list[str] = []
    containers: list[str] = []
    for folder in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)):
        words = _read_command_line(folder)
        if not words:
            continue  # a kernel thread, or it has ended meanwhile
        if Path(words[0]).name.startswith(_SHIM):
            containers += _container_of_shim(words)
        if _read_name(folder) not in _DAEMONS and any(target.startswith(_GPU) for target in _list_open_files(folder)):
            gpu.append(f"{folder.name} ({redact(' '.join(words))[:_MAX_SHOWN]})")
    return Workloads(tuple(gpu), tuple(containers))


def _read_command_line(folder: Path) -> list[str]:
    try:
        return (folder / "cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")
    except OSError:
        return []


def _read_name(folder: Path) -> str:
    try:
        return (folder / "comm").read_text().strip()
    except OSError:
        return ""


def _list_open_files(folder: Path) -> Iterator[str]:
    with suppress(OSError):
        for name in (folder / "fd").iterdir():
            with suppress(OSError):  # it has been closed meanwhile
                yield str(name.readlink())


def _container_of_shim(words: list[str]) -> Iterator[str]:
    """Yield the container of a shim, but not of its short-lived ``start`` and ``delete`` calls."""
    if "-id" in words[:-1]:
        namespace = words[words.index("-namespace") + 1] if "-namespace" in words[:-1] else "?"
        yield f"{namespace}/{words[words.index('-id') + 1]}"
