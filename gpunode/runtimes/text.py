"""Configuration bytes as text and back: UTF-8, with the byte order mark that daemons take and parsers do not."""

from __future__ import annotations

from gpunode.errors import Refused

_BOM = "\ufeff"


def decode(data: bytes | None, path: str) -> str:
    """The file's text without its byte order mark; empty for a missing file.

    Raises:
        Refused: it is not UTF-8; names the line and the column, in bytes.
    """
    raw = data or b""
    try:
        return raw.decode().removeprefix(_BOM)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - raw.rfind(b"\n", 0, error.start)
        raise Refused(
            f"{path}:{line}:{column}: not UTF-8 text",
            why=f"byte 0x{raw[error.start]:02x} begins no character",
            hint=f"save {path} as UTF-8, then run the command again",
        ) from error


def encode(text: str, former: bytes | None) -> bytes:
    """``text`` as a file, with a byte order mark if ``former`` had one."""
    bom = _BOM if (former or b"").startswith(_BOM.encode()) else ""
    return (bom + text).encode()
