"""Journals as text."""

from __future__ import annotations

from collections.abc import Iterable

from gpunode.journal.record import Entry, encode


def encode_lines(entries: Iterable[Entry], previous_line: bytes = b"") -> tuple[bytes, ...]:
    """Return ``entries`` as journal lines that follow ``previous_line``."""
    written: list[bytes] = []
    for entry in entries:
        written.append(encode(entry, previous_line=written[-1] if written else previous_line))
    return tuple(written)
