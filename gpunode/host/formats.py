"""Files that are neither text nor captures, by their first bytes, and how to extract a report from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Format:
    """What a file is, in words that follow "it is", and what to do with it."""

    what: str
    how: str


_IN_PICTURE: Final = "copy the text itself: gpunode cannot read pictures"
_IN_DOCUMENT: Final = "copy the text out of it: gpunode reads plain text"
_KNOWN: Final = (
    (b"\x1f\x8b", Format("packed with gzip twice", "unpack it once: zcat FILE > FILE.gz")),
    (b"\xfd7zXZ\x00", Format("packed with xz", "unpack it: xz -d FILE (of a capture, tar -xJf FILE)")),
    (b"\x28\xb5\x2f\xfd", Format("packed with zstd", "unpack it: zstd -d FILE (of a capture, tar --zstd -xf FILE)")),
    (b"BZh", Format("packed with bzip2", "unpack it: bzip2 -d FILE (of a capture, tar -xjf FILE)")),
    (b"PK\x03\x04", Format("a zip archive", "unpack it: unzip FILE")),
    (b"7z\xbc\xaf\x27\x1c", Format("a 7-Zip archive", "unpack it: 7z x FILE")),
    (b"\x04\x22\x4d\x18", Format("packed with lz4", "unpack it: lz4 -d FILE")),
    (b"\x89PNG", Format("a PNG picture", _IN_PICTURE)),
    (b"\xff\xd8\xff", Format("a JPEG picture", _IN_PICTURE)),
    (b"GIF8", Format("a GIF picture", _IN_PICTURE)),
    (b"%PDF-", Format("a PDF document", _IN_DOCUMENT)),
    (b"\x7fELF", Format("a program", "name the output of the program")),
    (b"LPKSHHRH", Format("a journal of systemd", "write it as text: journalctl --file FILE > FILE.txt")),
    (b"\x00\x00\xfe\xff", Format("text in UTF-32", "write it as UTF-8: iconv -f UTF-32 -t UTF-8 FILE")),
    (b"\xff\xfe\x00\x00", Format("text in UTF-32", "write it as UTF-8: iconv -f UTF-32 -t UTF-8 FILE")),
)
_HEAD: Final = 4096
_TAR: Final = Format("a tar archive that is not packed", "unpack it: tar -xf FILE; a capture is the folder in it")
_BINARY: Final = Format(
    "not text in a known encoding: it is full of zero bytes",
    "of UTF-16, write UTF-8: iconv -f UTF-16LE -t UTF-8 FILE; else name a text, a capture or a bug report",
)
_PRINTED: Final = b"\t\n\r\f\x08\x1b"


def unread(data: bytes) -> Format | None:
    """The format of ``data`` if no report can be read from it; None if it may be text."""
    for start, kind in _KNOWN:
        if data.startswith(start):
            return kind
    if data[257:262] == b"ustar":
        return _TAR
    head = data[:_HEAD]
    controls = sum(byte < 32 and byte not in _PRINTED for byte in head)
    # Text in UTF-16 with a mark before it is read.
    return None if head.startswith((b"\xff\xfe", b"\xfe\xff")) or controls * 4 <= len(head) else _BINARY
