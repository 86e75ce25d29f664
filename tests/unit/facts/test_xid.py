from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.facts import xid
from gpunode.facts.xid import SxidMessage, XidMessage


def read(text: str) -> XidMessage:
    said = xid.parse_xid(text)
    assert isinstance(said, XidMessage), text
    return said


@pytest.mark.parametrize(
    ("text", "code", "bus"),
    [
        ("Xid (PCI:0000:61:00): 79, GPU has fallen off the bus.", 79, "0000:61:00"),
        ("Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x1 0x8)", 145, "0018:01:00"),
        ("Xid (0000:03:00): 14, Channel 00000001", 14, "0000:03:00"),
        ("Xid (PCI:0000:3b:00.0): 79, pid=2113, GPU has fallen off the bus.", 79, "0000:3b:00.0"),
        ("Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9).", 94, "0000:01:00"),
        ("Xid (PCI:0000:3B:00 GPU-I:01 GPU-CI:02): 13, pid=9, name=a, Graphics Exception", 13, "0000:3b:00"),
        ("Xid: 154, GPU recovery action changed to 0x2 (Node Reboot Required)", 154, ""),
        ("The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:26b5) installed in this system has fallen off the bus and", 79,
         "0000:b3:00.0"),
        ("GPU 0000:29:00.0: GPU has fallen off the bus.", 79, "0000:29:00.0"),
        ("GPU at 0000:01:00.0 has fallen off the bus.", 79, "0000:01:00.0"),
    ],
)  # fmt: skip
def test_every_xid_form_is_parsed(text: str, code: int, bus: str) -> None:
    said = read(f"NVRM: {text}")
    assert (said.code, said.pci_address) == (code, bus)


def test_xid_process_is_parsed_if_known() -> None:
    said = read("NVRM: Xid (PCI:0000:cb:00): 109, pid=1797828, name=pt_main_thread, Ch 00000008, errorString CTX")
    assert (said.pid, said.process, said.text) == ("1797828", "pt_main_thread", "Ch 00000008, errorString CTX")
    said = read(
        "NVRM: Xid (PCI:0000:02:00): 109, pid=8494,   name=RenderThread, channel 0x0000000d, CTX SWITCH TIMEOUT"
    )
    assert (said.pid, said.process) == ("8494", "RenderThread")
    for nobody in ("pid='<unknown>', name=<unknown>", "pid='N/A'", "pid='<unknown>'"):
        said = read(f"NVRM: Xid (PCI:0000:65:00): 64, {nobody}, Row Remapper: Failed to remap row")
        assert (said.pid, said.process, said.text) == ("", "", "Row Remapper: Failed to remap row")


def test_previous_xid_is_parsed() -> None:
    said = read("NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149")
    assert (said.code, said.caused_by) == (45, 149)


def test_mig_instance_and_device_id_are_parsed() -> None:
    assert read("Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained").instance == "05"
    assert read("The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:26B5) installed … fallen off the bus").device == "26b5"


def test_nvswitch_sxid_is_parsed() -> None:
    said = xid.parse_xid(
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error"
    )
    assert said == SxidMessage(12028, "0000:05:00.0", "Non-fatal, Link 32 egress non-posted PRIV error", False, 32)
    fatal = xid.parse_xid("nvidia-nvswitch0: SXid (PCI:0000:8a:00.0): 20034, Fatal, Link 30 LTSSM Fault Up")
    assert isinstance(fatal, SxidMessage)
    assert fatal.fatal is True


@pytest.mark.parametrize(
    "text",
    [
        "no Xid 79 was seen",
        "Xid errors are described in the manual",
        "a leaf has fallen off the bus stop",
        "nvidia 0000:01:00.0: enabling device (0000 -> 0003)",
    ],
)
def test_text_that_mentions_an_xid_is_no_xid(text: str) -> None:
    assert xid.parse_xid(text) is None


def test_nvlink5_error_body_is_parsed() -> None:
    body = xid.parse_link_error("NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 0x00000000)")
    assert body is not None
    assert (body.unit, body.fatal, body.link, body.words[:2]) == ("NETIR_LINK_EVT", True, 1, (0x021425C6, 0))
    body = xid.parse_link_error("RLW_REMAP Nonfatal XC0 i0 Link -1 [0x00000004 0x00000001]")
    assert body is not None
    assert (body.fatal, body.link, body.words) == (False, None, (4, 1))
    assert xid.parse_link_error("channel 0x00000002, intr 00000000") is None


@given(st.text(max_size=300))
def test_any_text_is_parsed_without_an_error(text: str) -> None:
    xid.parse_xid(text)
    xid.parse_xid(f"Xid (PCI:{text}")
    xid.parse_link_error(text)
