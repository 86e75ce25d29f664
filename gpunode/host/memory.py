"""How much memory this machine, or the container that we are in, has left."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

# Where nobody says: what a small machine has left.
_UNKNOWN: Final = 2 << 30
_AVAILABLE: Final = re.compile(r"^MemAvailable:\s+(\d{1,18}) kB$", re.MULTILINE)


def available_bytes(root: Path = Path("/")) -> int:
    """The free memory: the lowest of the values of the kernel and the cgroup."""
    told = _AVAILABLE.search(_text(root / "proc/meminfo"))
    free = int(told[1]) << 10 if told else _UNKNOWN
    return min([free, *_left_in_group(root / "sys/fs/cgroup")])


def own_bytes(root: Path = Path("/")) -> int:
    """The address space of this process; 0 where nobody says."""
    pages = _text(root / "proc/self/statm").partition(" ")[0]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") if _is_number(pages) else 0


def _left_in_group(folder: Path) -> list[int]:
    """In a container its own cgroup is mounted as the root: of version 2 and of version 1; none on a host."""
    names = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
    pairs = [tuple(_text(folder / name).strip() for name in pair) for pair in names]
    return [max(0, int(most) - int(used)) for most, used in pairs if _is_number(most) and _is_number(used)]


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,19}", text) is not None


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace")
    except OSError:
        return ""
