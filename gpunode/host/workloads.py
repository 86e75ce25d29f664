"""What uses the GPUs and the containers that run, by the kernel's own process list: no daemon is asked."""

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
_SHOWN = 80


def running(proc: Path = Path("/proc")) -> Workloads:
    """The workloads of this machine, as far as this process may see them."""
    gpu: list[str] = []
    containers: list[str] = []
    for folder in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)):
        words = _words(folder)
        if not words:
            continue  # a kernel thread, or it has ended meanwhile
        if Path(words[0]).name.startswith(_SHIM):
            containers += _container(words)
        if _comm(folder) not in _DAEMONS and any(target.startswith(_GPU) for target in _open_files(folder)):
            gpu.append(f"{folder.name} ({redact(' '.join(words))[:_SHOWN]})")
    return Workloads(tuple(gpu), tuple(containers))


def _words(folder: Path) -> list[str]:
    try:
        return (folder / "cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")
    except OSError:
        return []


def _comm(folder: Path) -> str:
    try:
        return (folder / "comm").read_text().strip()
    except OSError:
        return ""


def _open_files(folder: Path) -> Iterator[str]:
    with suppress(OSError):
        for name in (folder / "fd").iterdir():
            with suppress(OSError):  # it has been closed meanwhile
                yield str(name.readlink())


def _container(words: list[str]) -> Iterator[str]:
    """The container that a shim was started for; ``start`` and ``delete`` are calls that end by themselves."""
    if "-id" in words[:-1]:
        namespace = words[words.index("-namespace") + 1] if "-namespace" in words[:-1] else "?"
        yield f"{namespace}/{words[words.index('-id') + 1]}"
