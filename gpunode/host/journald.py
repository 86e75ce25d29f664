"""Write to systemd's journal in its own protocol. Messages that cannot be sent at once are dropped.

Source: https://systemd.io/JOURNAL_NATIVE_PROTOCOL/
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

JOURNALD_SOCKET = Path("/run/systemd/journal/socket")
# A datagram must fit the socket's buffer, 200 KiB by default; longer values are of no use in a log.
_MAX_FIELD_BYTES = 8192
# journald takes a message in microseconds; the buffer may be full for a moment when many come at once.
_SEND_TIMEOUT_S = 0.1


class Journald:
    """A connection to journald; after the first failed message nothing more is sent."""

    def __init__(self, path: Path = JOURNALD_SOCKET) -> None:
        self._path = str(path)
        self._gone = not path.is_socket()

    def send(self, fields: Mapping[str, str]) -> None:
        """Send ``fields`` to systemd's journal, if there is one and it accepts them; never raises OSError."""
        if self._gone:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(_SEND_TIMEOUT_S)
                sender.sendto(encode_datagram(fields), self._path)
        except OSError:
            self._gone = True


def encode_datagram(fields: Mapping[str, str]) -> bytes:
    """Encode ``fields`` for journald: a value of more than one line is preceded by its length."""
    return b"".join(_encode_field(name, value) for name, value in fields.items())


def _encode_field(name: str, value: str) -> bytes:
    data = value.encode("utf-8", "replace")
    if len(data) > _MAX_FIELD_BYTES:
        data = data[:_MAX_FIELD_BYTES].decode("utf-8", "ignore").encode() + "…".encode()
    if b"\n" in data:
        return b"%s\n%s%s\n" % (name.encode(), len(data).to_bytes(8, "little"), data)
    return b"%s=%s\n" % (name.encode(), data)
