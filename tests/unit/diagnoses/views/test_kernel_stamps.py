from __future__ import annotations

import json

import pytest

from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.diagnoses.views import kernel
from gpunode.facts import pasted
from gpunode.facts.patterns import Pattern

XID = "NVRM: Xid (PCI:0000:61:00): 79, GPU has fallen off the bus."


def messages(text: str, source: str = "dmesg") -> tuple[kernel.Message, ...]:
    seen = take_snapshot(pasted.parse_json_report(json.dumps([{"source": source, "text": text}]), "a report"))
    return kernel.matching_messages(seen, Pattern(""))


@pytest.mark.parametrize(
    "stamp",
    [
        "",
        "[  123.456789] ",
        "[  123.456] [ T1946] ",
        "[  123.456789] gpu7 kernel: ",
        "[Fri Mar  3 04:27:08 2023] ",
        "Aug 10 15:36:05 host kernel: ",
        "Aug 10 15:36:05.123456 host kernel: ",
        "Aug 10 15:36:05 host kernel: [  123.456789] ",
        "Sep 18 20:07:01 ",
        "2025-06-02T12:32:53.230422+00:00 host kernel: ",
        "2025-06-02T12:32:53+0000 host kernel: ",
        "2025-06-02T12:32:53,230422+00:00 ",
        "Mon 2025-06-02 12:32:53 UTC host kernel: ",
        "2025-06-02 12:32:53 host kernel: ",
        "> ",
        "> [  123.456789] ",
        "kernel: ",
        "<4>kernel: ",
        "4,1412,5140900,-;",
        "kern:     err: [2024-06-02T12:32:53.230422123Z]: ",
        "192.168.11.119: kern: warning: [2026-04-22T21:27:51.291213998Z]: ",
    ],
)
def test_prefix_of_a_kernel_message_is_removed(stamp: str) -> None:
    (message,) = messages(stamp + XID)
    assert message.is_nvrm
    assert message.text == XID.removeprefix("NVRM: ")
    assert (message.at is None) == (not any(digit in stamp for digit in "0123456789") or stamp == "<4>kernel: ")


@pytest.mark.parametrize("source", ["grep -r Xid /var/log", "kubectl describe node gpu7", "/var/log/gpu.log", "sos"])
def test_quoted_kernel_message_is_found(source: str) -> None:
    assert any(XID.removeprefix("NVRM: ") in message.text for message in messages(f"a line\n{XID}\nanother", source))


def test_wrapped_nvrm_sentence_in_a_journal_is_one_message() -> None:
    stamp = "Feb 14 05:03:43 gpu-1 kernel: NVRM: "
    text = "\n".join(
        stamp + part
        for part in (
            "The NVIDIA GPU 0000:b3:00.0",
            "(PCI ID: 10de:26b5) installed in this system has",
            "fallen off the bus and is not responding to commands.",
            "The NVIDIA probe routine failed for 1 device(s).",
        )
    )
    first, second = messages(text, "journalctl -k")
    assert first.text.endswith("installed in this system has fallen off the bus and is not responding to commands.")
    assert second.text.startswith("The NVIDIA probe routine")


def test_nvrm_message_without_a_colon_is_recognized() -> None:
    (message,) = messages("[    3.59] NVRM kgspInitRm_IMPL: missing NVDEC0 engine, cannot initialize GSP-RM", "syslog")
    assert message.is_nvrm
    assert message.text.startswith("kgspInitRm_IMPL: missing")
