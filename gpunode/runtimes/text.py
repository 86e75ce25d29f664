"""Configuration bytes as text and back: UTF-8, with the byte order mark that most daemons take and parsers do not.

And what it means for two texts to say the same, or where they differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

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
            why=f"byte 0x{raw[error.start]:02x} is not valid UTF-8",
            hint=f"save {path} as UTF-8, then run the command again",
        ) from error


def has_byte_order_mark(data: bytes | None) -> bool:
    """Return whether a file begins with a byte order mark."""
    return (data or b"").startswith(_BOM.encode())


def encode(text: str, former: bytes | None) -> bytes:
    """``text`` as a file, with a byte order mark if ``former`` had one."""
    return ((_BOM if has_byte_order_mark(former) else "") + text).encode()


def same(one: Any, other: Any) -> bool:
    """Return whether two documents or parts are equal in value and kind: 1 is not true, nor is "1.0" a number.

    Members may have another order. Dates are the same when they are written alike.
    """
    pairs = [(one, other)]
    while pairs:
        a, b = pairs.pop()
        if isinstance(a, dict) and isinstance(b, dict):
            if a.keys() != b.keys():
                return False
            pairs += ((value, b[key]) for key, value in a.items())
        elif isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return False
            pairs += zip(a, b, strict=True)
        elif type(a) is not type(b) or a != b or str(a) != str(b):
            return False
    return True


# A key that a document lacks.
MISSING: Final = object()


def compare_documents(
    before: Mapping[str, Any], after: Mapping[str, Any], above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield the keys that differ in two documents, each with its two values: those of ``after`` first."""
    for key, value in after.items():
        former = before.get(key, MISSING)
        if isinstance(former, Mapping) and isinstance(value, Mapping):
            yield from compare_documents(former, value, (*above, key))
        elif not same(former, value):
            yield (*above, key), former, value
    yield from (((*above, key), value, MISSING) for key, value in before.items() if key not in after)
