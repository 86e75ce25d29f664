"""Journals as text."""

from __future__ import annotations

from collections.abc import Iterable

from gpunode.journal.record import Entry, encode


def encode_lines(entries: Iterable[Entry], previous_line: bytes = b"") -> tuple[bytes, ...]:
    """Return ``entries`` as the lines that follow the line ``previous_line``, one for each."""
    written: list[bytes] = []
    for entry in entries:
        written.append(encode(entry, previous_line=written[-1] if written else previous_line))
    return tuple(written)
