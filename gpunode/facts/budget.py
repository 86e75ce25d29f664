"""How much of the evidence is looked at: a log without end loses what is old and tells nothing. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Final

from gpunode.facts.evidence import Evidence

# What gpunode captures itself stays far below: 20 000 lines of the kernel's log, a few MiB in all.
MOST_BYTES: Final = 32 << 20
MOST_LINES: Final = 200_000
SOURCE_LINES: Final = 50_000
# Where a fault began, long before the newest lines, is its first messages.
_EARLIEST: Final = 2000
_TELLS: Final = rb"NVRM|Xid|nvidia|pcieport|dockerd|containerd"
# Of a table's missing row it would be said that the package is not installed.
_WHOLE: Final = frozenset({"dpkg-status", "apt-extended-states"})


def within(evidence: Evidence) -> tuple[Evidence, tuple[str, ...]]:
    """The evidence as far as it is looked at, and of what is left out what a person is told.

    The newest lines of each source stay, and before them the first that speak of the driver or a runtime.
    """
    sizes = {key: len(capture.data) for key, capture in evidence.items()}
    if sum(sizes.values()) < SOURCE_LINES:
        return evidence, ()
    lines = {key: capture.data.count(b"\n") for key, capture in evidence.items() if key not in _WHOLE}
    most_bytes, most_lines = share(sizes.values(), MOST_BYTES), min(SOURCE_LINES, share(lines.values(), MOST_LINES))
    found, left_out = dict(evidence), []
    for key, capture in evidence.items():
        if sizes[key] > most_bytes or lines.get(key, 0) > most_lines:
            found[key] = replace(
                capture, data=newest(capture.data, most_lines if key in lines else sizes[key], most_bytes)
            )
            most = f"{most_lines} lines, {most_bytes >> 10} KiB"
            left_out.append(f"of {capture.source} only the newest part was read (at most {most})")
    return found, tuple(left_out)


def share(sizes: Iterable[int], total: int) -> int:
    """The most that each may have so that all together have no more than ``total``; what one leaves, others take."""
    rest, left = total, sorted(sizes)
    for number, size in enumerate(left):
        if size * (len(left) - number) > rest:
            return rest // (len(left) - number)
        rest -= size
    return total


def newest(data: bytes, lines: int, size: int) -> bytes:
    """The last ``lines`` of ``data``, of no more than ``size`` bytes, behind the first that tell something."""
    kept = size - min(size // 4, _EARLIEST * 200)
    start = 0 if len(data) <= size else len(data) - kept
    at = len(data) - 1
    for _ in range(lines):
        at = data.rfind(b"\n", start, at)
        if at < 0:
            break
    if at >= 0:
        start = at + 1
    elif start:
        start = data.find(b"\n", start) + 1 or start
    early = b"".join(islice(_telling(data[:start]), min(_EARLIEST, lines)))[: size - kept]
    return early + data[start:]


def _telling(data: bytes) -> Iterable[bytes]:
    """The lines that speak of the driver or of a runtime, whole."""
    end = 0
    for match in re.finditer(_TELLS, data):
        if match.start() < end:
            continue
        begin, end = data.rfind(b"\n", 0, match.start()) + 1, data.find(b"\n", match.end()) + 1
        if not end:
            return
        yield data[begin:end]
