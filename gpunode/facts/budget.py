"""Limits on the size of evidence: endless logs lose their oldest irrelevant lines. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Final

from gpunode.facts.evidence import Evidence

# What gpunode captures itself stays far below: 20 000 lines of the kernel's log, a few MiB in all.
MAX_BYTES: Final = 32 << 20
MAX_LINES: Final = 200_000
MAX_LINES_PER_SOURCE: Final = 50_000
# Where a fault began, long before the newest lines, is its first messages.
_EARLIEST_LINES: Final = 2000
_RELEVANT: Final = rb"NVRM|Xid|nvidia|pcieport|dockerd|containerd"
# A missing row of these tables would read as "package not installed".
_NEVER_CUT: Final = frozenset({"dpkg-status", "apt-extended-states"})


def trim_evidence(evidence: Evidence) -> tuple[Evidence, tuple[str, ...]]:
    """Cut the evidence down to the limits, and return it with a note for the user on each cut source.

    The newest lines of each source stay, and before them the first that mention the driver or a runtime.
    """
    sizes = {key: len(capture.data) for key, capture in evidence.items()}
    if sum(sizes.values()) < MAX_LINES_PER_SOURCE:
        return evidence, ()
    lines = {key: capture.data.count(b"\n") for key, capture in evidence.items() if key not in _NEVER_CUT}
    most_bytes, most_lines = (
        fair_share(sizes.values(), MAX_BYTES),
        min(MAX_LINES_PER_SOURCE, fair_share(lines.values(), MAX_LINES)),
    )
    found, left_out = dict(evidence), []
    for key, capture in evidence.items():
        if sizes[key] > most_bytes or lines.get(key, 0) > most_lines:
            found[key] = replace(
                capture, data=keep_newest(capture.data, most_lines if key in lines else sizes[key], most_bytes)
            )
            most = f"{most_lines} lines, {most_bytes >> 10} KiB"
            left_out.append(f"of {capture.source} only the newest part was read (at most {most})")
    return found, tuple(left_out)


def fair_share(sizes: Iterable[int], total: int) -> int:
    """Return the limit for each so that the sum is at most ``total``; small ones leave their share to the others."""
    rest, left = total, sorted(sizes)
    for number, size in enumerate(left):
        if size * (len(left) - number) > rest:
            return rest // (len(left) - number)
        rest -= size
    return total


def keep_newest(data: bytes, lines: int, size: int) -> bytes:
    """Return the last ``lines`` of ``data``, at most ``size`` bytes, after the earliest relevant ones."""
    kept = size - min(size // 4, _EARLIEST_LINES * 200)
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
    early = b"".join(islice(_relevant_lines(data[:start]), min(_EARLIEST_LINES, lines)))[: size - kept]
    return early + data[start:]


def _relevant_lines(data: bytes) -> Iterable[bytes]:
    """Yield the whole lines that mention the driver or a runtime."""
    end = 0
    for match in re.finditer(_RELEVANT, data):
        if match.start() < end:
            continue
        begin, end = data.rfind(b"\n", 0, match.start()) + 1, data.find(b"\n", match.end()) + 1
        if not end:
            return
        yield data[begin:end]
