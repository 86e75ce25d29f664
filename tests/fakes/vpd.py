"""Vital product data in the format of PCI cards. Source: PCI Local Bus Specification 3.0, appendix I."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_NAME, _READ_ONLY, _END = 0x82, 0x90, 0x78
# The data of a ConnectX-7 (mstvpd of mstflint); that SMDL is an item of VA is inferred from the others.
_CONNECTX: Final = {
    "PN": "MCX75310AAS-NEAT",
    "EC": "A5",
    "SN": "MT2309XZ0ABC",
    "V3": "0c9b2c0e5bd3ed118000946dae0a1b2c",
    "VA": "MLX:MN=MLNX:CSKU=V2:UUID=V3:PCI=V0:MODL=CX75310A",
    "V0": "PCIeGen5 x16",
}


def make_vpd(*, is_bridge: bool) -> bytes:
    """Return the data of a ConnectX-7: an ordinary network card, or the bridge to a board's NVSwitches."""
    smdl = {"VA": f"{_CONNECTX['VA']}:SMDL=SW_MNG"} if is_bridge else {}
    return encode_vpd("NVIDIA ConnectX-7", {**_CONNECTX, **smdl})


def encode_vpd(name: str, fields: Mapping[str, str]) -> bytes:
    """Return a name and read-only fields with their checksum, in the specification's large resources."""
    content = b"".join(key.encode() + bytes([len(text)]) + text.encode() for key, text in fields.items())
    head = _encode_resource(_NAME, name.encode())
    start = head + bytes([_READ_ONLY]) + (len(content) + 4).to_bytes(2, "little") + content + b"RV\x01"
    return start + bytes([-sum(start) % 256, _END])


def _encode_resource(tag: int, content: bytes) -> bytes:
    return bytes([tag]) + len(content).to_bytes(2, "little") + content
