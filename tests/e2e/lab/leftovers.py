"""Leftovers of a node on the machine, found by the node's own marks: other nodes may run at the same time."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.lab.commands import run
from tests.e2e.lab.node import Node

_KINDS = ("mnt", "pid", "net", "uts", "ipc", "cgroup")


@dataclass(frozen=True)
class Marks:
    """The marks by which a node's remains are recognised.

    Attributes:
        namespaces: as /proc names them. This object holds them, since the kernel would otherwise reuse their numbers at
            once, perhaps for another node.
    """

    scratch: Path
    namespaces: frozenset[str]


def marks(node: Node) -> Marks:
    """Return the marks of a running node."""
    held = [os.open(f"/proc/{node.sandbox.pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in _KINDS]
    made = Marks(node.sandbox.scratch, frozenset(os.readlink(f"/proc/self/fd/{number}") for number in held))
    weakref.finalize(made, _close, held)
    return made


def _close(descriptors: list[int]) -> None:
    for number in descriptors:
        os.close(number)


def leftovers(of: Marks) -> list[str]:
    """Return everything of the node that still exists."""
    return [*_processes(of), *_mounts(of), *_cgroups(of), *([str(of.scratch)] if of.scratch.exists() else [])]


def _processes(of: Marks) -> Iterator[str]:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            used = {os.readlink(process / "ns" / kind) for kind in _KINDS}
            arguments = (process / "cmdline").read_text()
        except OSError:
            continue  # It has ended meanwhile.
        if used & of.namespaces or f"{of.scratch}/" in arguments:
            yield f"process {process.name}: {arguments}"


def _mounts(of: Marks) -> Iterator[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return (line for line in lines if f"{of.scratch}/" in line)


def _cgroups(of: Marks) -> Iterator[str]:
    script = 'mount -t cgroup2 none "$1" && ls "$1"'
    names = run(["unshare", "--mount", "sh", "-c", script, "sh", os.fspath(of.scratch.parent)]).stdout.split()
    return (f"cgroup {name}" for name in names if f"-{of.scratch.name}-" in name)
