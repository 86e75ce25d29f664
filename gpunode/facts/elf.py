"""What an ELF program or library asks of the dynamic loader. Pure; see elf(5)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NEEDED, _DT_STRTAB, _DT_STRSZ = 1, 5, 10
# e_machine → the multiarch folder of Debian and Ubuntu, the name of the architecture in OCI images.
MACHINES = {62: ("x86_64-linux-gnu", "amd64"), 183: ("aarch64-linux-gnu", "arm64")}


@dataclass(frozen=True, slots=True)
class Elf:
    """The dynamic part of an ELF file.

    Attributes:
        machine: a key of ``MACHINES``.
        interpreter: the dynamic loader's path; empty for a library and for a static program.
        needed: names of libraries, in the order of the file.
    """

    machine: int
    interpreter: str
    needed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Segment:
    kind: int
    offset: int
    address: int
    size: int


def parse(data: bytes) -> Elf:
    """The dynamic part of a 64-bit little-endian ELF file for one of ``MACHINES``.

    Raises:
        ValueError: it is another sort of file, or damaged.
    """
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    try:
        machine = struct.unpack_from("<H", data, 18)[0]
        segments = tuple(_segments(data))
        dynamic = tuple(_dynamic(data, segments))
    except (struct.error, OverflowError) as error:
        raise ValueError(f"a damaged ELF file: {error}") from None
    if machine not in MACHINES:
        raise ValueError(f"an ELF file for machine {machine}; known are {sorted(MACHINES)}")
    return Elf(machine, _interpreter(data, segments), _needed(data, segments, dynamic))


def _segments(data: bytes) -> Iterator[_Segment]:
    table = struct.unpack_from("<Q", data, 32)[0]
    size, count = struct.unpack_from("<HH", data, 54)
    for row in range(count):
        kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", data, table + row * size)
        yield _Segment(kind, offset, address, length)


def _dynamic(data: bytes, segments: tuple[_Segment, ...]) -> Iterator[tuple[int, int]]:
    for segment in segments:
        if segment.kind == _PT_DYNAMIC:
            for place in range(segment.offset, segment.offset + segment.size, 16):
                tag, value = struct.unpack_from("<qQ", data, place)
                if tag == 0:
                    return
                yield tag, value


def _interpreter(data: bytes, segments: tuple[_Segment, ...]) -> str:
    found = (s for s in segments if s.kind == _PT_INTERP)
    return next((_text(data[s.offset : s.offset + s.size]) for s in found), "")


def _needed(data: bytes, segments: tuple[_Segment, ...], dynamic: tuple[tuple[int, int], ...]) -> tuple[str, ...]:
    fields = dict(dynamic)
    names = [value for tag, value in dynamic if tag == _DT_NEEDED]
    if not names:
        return ()
    start = _offset(segments, fields.get(_DT_STRTAB, 0))
    strings = data[start : start + fields.get(_DT_STRSZ, 0)]
    return tuple(_text(strings[name:]) for name in names)


def _offset(segments: tuple[_Segment, ...], address: int) -> int:
    """Where in the file stands what is loaded at ``address``."""
    for segment in segments:
        if segment.kind == _PT_LOAD and segment.address <= address < segment.address + segment.size:
            return address - segment.address + segment.offset
    raise ValueError("a damaged ELF file: its strings are nowhere in it")


def _text(data: bytes) -> str:
    text = data.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")
    if not text:
        raise ValueError("a damaged ELF file: an empty name")
    return text
