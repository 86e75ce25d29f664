from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gpunode.journal import announce
from gpunode.journal.announce import Journald, encode_datagram


def test_multiline_value_is_length_prefixed() -> None:
    """See systemd's page on the protocol."""
    found = encode_datagram({"MESSAGE": "a=b", "WHY": "first\nsecond"})
    assert found == b"MESSAGE=a=b\nWHY\n\x0c\0\0\0\0\0\0\0first\nsecond\n"


def test_value_cannot_inject_a_field() -> None:
    assert b"\nPRIORITY=0\n" in encode_datagram({"MESSAGE": "x\nPRIORITY=0\n"})
    assert encode_datagram({"MESSAGE": "x\nPRIORITY=0"}).startswith(b"MESSAGE\n\x0c\0\0\0\0\0\0\0x\n")


def test_long_value_is_cut_at_a_whole_character() -> None:
    (line,) = encode_datagram({"MESSAGE": "ä" * 100_000}).splitlines()
    assert len(line) < 9000
    assert line.decode().endswith("ä…")


@pytest.fixture
def listening(tmp_path: Path, allow_socket: None) -> socket.socket:
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.bind(str(tmp_path / "socket"))
    return receiver


def test_fields_are_received(listening: socket.socket, tmp_path: Path) -> None:
    Journald(tmp_path / "socket").send({"MESSAGE": "x"})
    assert listening.recv(100) == b"MESSAGE=x\n"
    listening.close()


def test_missing_journald_is_ignored(tmp_path: Path) -> None:
    Journald(tmp_path / "missing").send({"MESSAGE": "x"})
    (tmp_path / "file").touch()
    Journald(tmp_path / "file").send({"MESSAGE": "x"})


def test_blocked_journald_is_given_up_after_the_timeout(
    listening: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announce, "_SEND_TIMEOUT_S", 0.01)
    tried: list[int] = []
    send = socket.socket.sendto

    class Counting(socket.socket):
        def sendto(self, *arguments: object) -> int:
            tried.append(1)
            return send(self, *arguments)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(socket, "socket", Counting)
    node = Journald(tmp_path / "socket")
    for _ in range(5000):
        node.send({"MESSAGE": "x"})
    assert len(tried) < 5000
    listening.close()


def test_closed_journald_socket_is_ignored(listening: socket.socket, tmp_path: Path) -> None:
    node = Journald(tmp_path / "socket")
    listening.close()
    node.send({"MESSAGE": "x"})
    node.send({"MESSAGE": "x"})
