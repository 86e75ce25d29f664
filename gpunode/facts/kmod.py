"""What the running kernel says of its modules."""

from __future__ import annotations

import re

from gpunode.facts.model import LoadedDriver
from gpunode.facts.patterns import Pattern

# "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  <date>" and, of the open modules,
# "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (<user>)  <date>".
_NVRM = Pattern(r"^NVRM version:\s*NVIDIA UNIX (.{0,80}?Kernel Module.{0,40}?)\s+(\d+(?:\.\d+){1,3})\b", re.MULTILINE)


def loaded(text: str) -> frozenset[str]:
    """The names of the loaded modules, from /proc/modules.

    Raises:
        ValueError: a line is not one of that file.
    """
    names = set()
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if not name or not rest[:1].isdigit():
            raise ValueError(f"not a line of /proc/modules: {line[:80]!r}")
        names.add(name)
    return frozenset(names)


def nvidia_version(text: str) -> LoadedDriver:
    """The driver that is loaded, from /proc/driver/nvidia/version.

    Raises:
        ValueError: no version is found.
    """
    match = _NVRM.search(text)
    if match is None:
        raise ValueError(f"no NVRM version in {text[:80]!r}")
    return LoadedDriver(match[2], "Open" in match[1].split())
