from __future__ import annotations

import base64
import hashlib
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.catalog.openpgp import dearmor, list_key_fingerprints

KEY, SUBKEY, USER_ID, SIGNATURE, ATTRIBUTE, MARKER = 6, 14, 13, 2, 17, 10
V4 = b"\x04" + b"\x65\x00\x00\x00" + b"\x16" + bytes(40)
V6 = b"\x06" + b"\x65\x00\x00\x00" + b"\x1b" + (32).to_bytes(4, "big") + bytes(32)
BEGIN, END = "-----BEGIN PGP PUBLIC KEY BLOCK-----", "-----END PGP PUBLIC KEY BLOCK-----"


def packet(tag: int, body: bytes) -> bytes:
    return bytes([0xC0 | tag, 0xFF]) + len(body).to_bytes(4, "big") + body


def v4_fingerprint(body: bytes) -> str:
    return hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper()


def crc24(data: bytes) -> bytes:
    crc = 0xB704CE
    for byte in data:
        crc ^= byte << 16
        for _ in range(8):
            crc = (crc << 1) ^ (0x1864CFB if crc & 0x800000 else 0)
    return (crc & 0xFFFFFF).to_bytes(3, "big")


def armor(data: bytes, *, headers: str = "", checksum: bytes | None = None, newline: str = "\n") -> bytes:
    body = "\n".join(textwrap.wrap(base64.b64encode(data).decode(), 64))
    tail = "" if checksum == b"" else f"={base64.b64encode(checksum or crc24(data)).decode()}\n"
    return f"{BEGIN}\n{headers}\n{body}\n{tail}{END}\n".replace("\n", newline).encode()


WHOLE = packet(KEY, V4) + packet(USER_ID, b"a") + packet(SIGNATURE, b"x") + packet(SUBKEY, V4) + packet(SIGNATURE, b"y")


def test_v4_key_with_a_subkey_has_one_fingerprint() -> None:
    assert list_key_fingerprints(WHOLE) == (v4_fingerprint(V4),)


def test_v6_key_has_a_sha256_fingerprint() -> None:
    expected = hashlib.sha256(b"\x9b" + len(V6).to_bytes(4, "big") + V6).hexdigest().upper()

    assert list_key_fingerprints(packet(KEY, V6) + packet(USER_ID, b"a")) == (expected,)


def test_every_packet_length_encoding_is_parsed() -> None:
    attribute = bytes(300)
    key = bytes([0x98, len(V4)]) + V4  # old format, one byte
    keys = {
        key,
        bytes([0x99]) + len(V4).to_bytes(2, "big") + V4,
        bytes([0x9A]) + len(V4).to_bytes(4, "big") + V4,
        bytes([0xC6, len(V4)]) + V4,
        packet(KEY, V4),
    }
    two_bytes = bytes([0xC0 | ATTRIBUTE, ((300 - 192) >> 8) + 192, (300 - 192) & 0xFF]) + attribute

    assert {list_key_fingerprints(key + two_bytes) for key in keys} == {(v4_fingerprint(V4),)}


def test_additional_key_is_found_anywhere() -> None:
    other = V4[:-1] + b"\x01"

    assert list_key_fingerprints(WHOLE + packet(KEY, other)) == (v4_fingerprint(V4), v4_fingerprint(other))
    assert list_key_fingerprints(armor(WHOLE) + armor(packet(KEY, other))) == (
        v4_fingerprint(V4),
        v4_fingerprint(other),
    )


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("headers", ["", "Version: GnuPG v1\n", "Version: GnuPG v2.0.22 (GNU/Linux)\nComment: a: b\n"])
@pytest.mark.parametrize("checksum", [None, b"", b"abc", b"abcd"])
def test_armor_variants_are_decoded(newline: str, headers: str, checksum: bytes | None) -> None:
    """A reader must not refuse a wrong checksum (RFC 9580 §6.1)."""
    armored = armor(WHOLE, headers=headers, checksum=checksum, newline=newline)

    assert dearmor(armored) == WHOLE
    assert list_key_fingerprints(armored) == list_key_fingerprints(WHOLE)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"\n\n", "empty"),
        (b"<html><title>404</title></html>", "not an armored public key"),
        (b"\xef\xbb\xbf" + armor(WHOLE), "."),
        (b"junk\n" + armor(WHOLE), "not an armored public key"),
        (armor(WHOLE) + b"junk\n" + armor(WHOLE), "not an armored public key"),
        (armor(WHOLE).replace(b"PUBLIC", b"PRIVATE"), "not an armored public key"),
        (armor(WHOLE).partition(b"-----END")[0], "no end"),
        (armor(WHOLE).replace(b"\n\n", b"\n", 1), "headers"),
        (armor(WHOLE).replace(b"=", b"*"), "damaged"),
        (f"{BEGIN}\n\n{END}\n".encode(), "no public key"),
        (armor(b""), "no public key"),
        (packet(MARKER, b"PGP"), "no public key"),
        (packet(USER_ID, b"a") + packet(KEY, V4), "does not begin with a public key"),
        (packet(SUBKEY, V4) + packet(KEY, V4), "does not begin with a public key"),
        (packet(5, V4), "secret key"),
        (WHOLE + packet(7, V4), "secret key"),
        (WHOLE + packet(8, b"\x00" + WHOLE), "type 8"),
        (WHOLE + packet(11, b"text"), "type 11"),
        (WHOLE + packet(61, b""), "type 61"),
        (WHOLE + b"junk", "does not begin an OpenPGP packet"),
        (WHOLE + b"\x00", "does not begin an OpenPGP packet"),
        (WHOLE + b"\xc6\xff\xff\xff\xff\xff" + V4, "cut short"),
        (WHOLE + b"\xc6", "ends at byte"),
        (WHOLE + b"\xc6\xff\x00", "ends at byte"),
        (b"\xc6\xe1" + V4, "partial length"),
        (b"\x9b" + V4, "no stated length"),
        (packet(KEY, b""), "version 0"),
        (packet(KEY, b"\x03" + V4[1:]), "version 3"),
        (packet(KEY, b"\x05" + V4[1:]), "version 5"),
        (packet(KEY, b"\x04" + bytes(70_000)), "65535"),
        (b"\x80" * ((1 << 20) + 1), "1048577 bytes"),
    ],
)
def test_everything_but_a_public_key_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list_key_fingerprints(data)


@given(st.binary(max_size=200))
def test_any_bytes_raise_only_value_error(data: bytes) -> None:
    for attempt in (data, b"\xc6" + data, WHOLE + data, armor(data), armor(WHOLE)[: len(data)] + data):
        try:
            assert list_key_fingerprints(attempt)
        except ValueError:
            continue


@given(st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=4))
def test_keys_of_a_file_are_listed_in_order(bodies: list[bytes]) -> None:
    keys = [b"\x04" + body for body in bodies]
    data = b"".join(packet(KEY, key) + packet(USER_ID, b"u") + packet(SUBKEY, V4) for key in keys)

    assert list_key_fingerprints(data) == tuple(v4_fingerprint(key) for key in keys)
    assert list_key_fingerprints(armor(data)) == list_key_fingerprints(data)
