"""OpenPGP key files: which primary keys they hold, without gpg. Sources: RFC 4880, RFC 9580.

This is the check before a key is trusted, so it is stricter than the tools that will use the key: whatever is not a
plain sequence of transferable public keys is refused. Signatures are not verified; that is gpgv's or sqv's work.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from gpunode.change import SigningKey
from gpunode.errors import Refused
from gpunode.facts.patterns import Pattern

# A repository's key file has a few kilobytes; this leaves room and bounds the work.
_MAX_KEY_FILE_BYTES = 1 << 20
_PUBLIC_KEY, _SUBKEY, _SIGNATURE, _TRUST, _USER_ID, _USER_ATTRIBUTE, _PADDING = 6, 14, 2, 12, 13, 17, 21
_MARKER_TAG = 10
_SECRET_KEY_PACKET_TAGS = frozenset({5, 7})
_KEY_COMPONENT_PACKET_TAGS = frozenset({_SUBKEY, _SIGNATURE, _TRUST, _USER_ID, _USER_ATTRIBUTE})
_IGNORED_PACKET_TAGS = frozenset({_MARKER_TAG, _PADDING})

_BEGIN, _END = "-----BEGIN PGP PUBLIC KEY BLOCK-----", "-----END PGP PUBLIC KEY BLOCK-----"
_ARMOR_HEADER = Pattern(r"[A-Za-z][A-Za-z0-9-]*: ?.*")


class _Packet(NamedTuple):
    tag: int
    body: bytes


def list_key_fingerprints(data: bytes) -> tuple[str, ...]:
    """Return the fingerprints of the primary keys in a key file, in upper-case hex, in its order; no subkeys.

    Args:
        data: armored or binary; version 4 and version 6 keys, any number of them.

    Raises:
        ValueError: if the file holds anything but complete public keys, or none.
    """
    if len(data) > _MAX_KEY_FILE_BYTES:
        raise ValueError(f"the key file has {len(data)} bytes; no repository's key has more than {_MAX_KEY_FILE_BYTES}")
    key_fingerprints: list[str] = []
    for packet in _parse_packets(dearmor(data) if _is_armored(data) else data):
        if packet.tag == _PUBLIC_KEY:
            key_fingerprints.append(_fingerprint(packet.body))
        elif packet.tag in _SECRET_KEY_PACKET_TAGS:
            raise ValueError("the file holds a secret key")
        elif packet.tag not in _KEY_COMPONENT_PACKET_TAGS | _IGNORED_PACKET_TAGS:
            raise ValueError(
                f"the file holds an OpenPGP packet of type {packet.tag}, which does not belong in a public key"
            )
        elif packet.tag in _KEY_COMPONENT_PACKET_TAGS and not key_fingerprints:
            raise ValueError("the file does not begin with a public key")
    if not key_fingerprints:
        raise ValueError("the file holds no public key")
    return tuple(key_fingerprints)


def dearmor(armored: bytes) -> bytes:
    """Return the binary form of an armored key file; several blocks follow one another.

    Raises:
        ValueError: if it is not an armored public key, has text outside the armor, or bad base64.
    """
    lines = [line.rstrip() for line in _decode_ascii(armored).splitlines()]
    blocks: list[bytes] = []
    start = 0
    while start < len(lines):
        if not lines[start]:
            start += 1
            continue
        if lines[start] != _BEGIN:
            raise ValueError(f"not an armored public key: {lines[start][:40]!r}")
        if _END not in lines[start:]:
            raise ValueError("the armor has no end")
        end = lines.index(_END, start)
        blocks.append(_decode_armor_block(lines[start + 1 : end]))
        start = end + 1
    if not blocks:
        raise ValueError("the file is empty")
    return b"".join(blocks)


def _is_armored(data: bytes) -> bool:
    """Return whether it is text: the first byte of every packet has its high bit set."""
    return not data or data[0] < 0x80


def _decode_ascii(data: bytes) -> str:
    try:
        return data.decode("ascii")
    except UnicodeDecodeError as error:
        raise ValueError("neither armored nor binary OpenPGP") from error


def _decode_armor_block(lines: list[str]) -> bytes:
    """Return the bytes of one armor block; the fingerprint, not its checksum, is checked (RFC 9580 §6.1)."""
    blank = next((i for i, line in enumerate(lines) if not line), None)
    if blank is None or not all(_ARMOR_HEADER.fullmatch(line) for line in lines[:blank]):
        raise ValueError("the armor's headers do not end in an empty line")
    body = lines[blank + 1 :]
    try:
        return base64.b64decode("".join(body[:-1] if body and body[-1].startswith("=") else body), validate=True)
    except binascii.Error as error:
        raise ValueError(f"the armor is damaged: {error}") from error


def _parse_packets(data: bytes) -> Iterator[_Packet]:
    """Yield the packets of ``data``, which they must fill completely."""
    position = 0
    while position < len(data):
        header = data[position]
        if not header & 0x80:
            raise ValueError(f"byte {position} does not begin an OpenPGP packet")
        new_format = bool(header & 0x40)
        tag = header & 0x3F if new_format else (header >> 2) & 0x0F
        start, length = (_find_new_format_body if new_format else _find_old_format_body)(data, position)
        if start + length > len(data):
            raise ValueError(f"the packet at byte {position} is cut short")
        yield _Packet(tag, data[start : start + length])
        position = start + length


def _find_new_format_body(data: bytes, packet_start: int) -> tuple[int, int]:
    """Return where the body starts, and its length (RFC 9580 §4.2.1)."""
    first = _read_number(data, packet_start + 1, 1)
    if first < 192:
        return packet_start + 2, first
    if first < 224:
        return packet_start + 3, ((first - 192) << 8) + _read_number(data, packet_start + 2, 1) + 192
    if first == 255:
        return packet_start + 6, _read_number(data, packet_start + 2, 4)
    raise ValueError(f"the packet at byte {packet_start} has a partial length, which is not allowed in a key")


def _find_old_format_body(data: bytes, packet_start: int) -> tuple[int, int]:
    """Return where the body starts, and its length (RFC 9580 §4.2.2)."""
    size = {0: 1, 1: 2, 2: 4}.get(data[packet_start] & 3)
    if size is None:
        raise ValueError(f"the packet at byte {packet_start} has no stated length")
    return packet_start + 1 + size, _read_number(data, packet_start + 1, size)


def _read_number(data: bytes, position: int, size: int) -> int:
    if position + size > len(data):
        raise ValueError(f"the file ends at byte {len(data)}, inside a packet's header")
    return int.from_bytes(data[position : position + size], "big")


def _fingerprint(body: bytes) -> str:
    """Return the fingerprint of the key packet with this body (RFC 9580 §5.5.4)."""
    version = body[0] if body else 0
    if version == 4:
        if len(body) > 0xFFFF:
            raise ValueError("a version 4 key of more than 65535 bytes has no fingerprint")
        prefix = b"\x99" + len(body).to_bytes(2, "big")
        return hashlib.sha1(prefix + body, usedforsecurity=False).hexdigest().upper()
    if version == 6:
        return hashlib.sha256(b"\x9b" + len(body).to_bytes(4, "big") + body).hexdigest().upper()
    raise ValueError(f"a key of version {version} is not supported; 4 and 6 are")


def verify_keyring(data: bytes, key: SigningKey) -> bytes:
    """Return the key file in the binary form of a ``.gpg``; it holds exactly the wanted keys."""
    try:
        present_fingerprints = list_key_fingerprints(data)
    except ValueError as error:
        raise Refused(
            f"{key.url} is not an OpenPGP key",
            why=f"{error}; it begins with {data[:60]!r}; nothing was trusted",
            hint="a proxy or a captive portal may answer instead; look at it with:\n  "
            + shlex.join(("curl", "-fsSL", key.url)),
        ) from error
    if frozenset(present_fingerprints) != key.fingerprints:
        raise Refused(
            f"{key.url} is not the expected key",
            why=f"found:  {' '.join(present_fingerprints) or 'no key'}\nwanted: {' '.join(sorted(key.fingerprints))}\n"
            "nothing was trusted",
            hint="a newer gpunode may pin a new key of NVIDIA's; until then, or for a mirror with its own key, name "
            "every key of the file in the recipe ([repositories] cuda_key_fingerprint or toolkit_key_fingerprint).\n"
            "Take the fingerprints from NVIDIA's installation guide or the mirror's operator, not from this message",
        )
    return dearmor(data) if _is_armored(data) else data
