"""Any evidence, even truncated anywhere, gives a complete page."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.page.report import node_page
from tests.unit.page import nodes
from tests.unit.page.test_page import ABOUT, Seen

SOURCES = ("lspci -nnDvvv", "lspci -tv", "nvidia-smi topo -m", "nvidia-smi nvlink -s", "nvidia-smi", "dmesg", "a text")
PIECES = {capture.source: capture.text for capture in nodes.large().values()}
WORDS = (
    *("GPU0", "GPU1", "NV18", " X ", "NIC0", "-[0000:00]-+-00.0", "[01]", "NUMA node: 99999", "Link 1: <inactive>"),
    "GPU 0: x",
    *("01:00.0 3D controller [0302]: NVIDIA [10de:2330]", "\tBus: primary=00, secondary=00, subordinate=00"),
    *("LnkSta: Speed 9GT/s, Width x99", "NVRM: Xid (PCI:0000:01:00): 79, x", "[ 9999999999999.9] "),
    *("\x1b[4m", "\x00", "\u202e", "\t", "\n", " ", "|"),
)
words = st.sampled_from(WORDS)


def render_page(*pieces: tuple[str, str]) -> str:
    """Return the page of that evidence without running the rules, so that only the page is tested."""
    return node_page(
        replace(nodes.healthy(), snapshot=take_snapshot(nodes.evidence(*pieces)), diagnosis=Diagnosis((), ())), ABOUT
    )


@given(st.lists(st.tuples(st.sampled_from(SOURCES), st.lists(words | st.text(max_size=20), max_size=30)), max_size=4))
def test_page_is_rendered_for_any_evidence(pieces: list[tuple[str, list[str]]]) -> None:
    Seen(render_page(*((source, "".join(parts)) for source, parts in pieces)))


@pytest.mark.parametrize("source", [source for source in PIECES if source in SOURCES])
@given(st.data())
def test_page_is_rendered_for_truncated_evidence(source: str, data: st.DataObject) -> None:
    text = PIECES[source]
    first, last = sorted((data.draw(st.integers(0, len(text))), data.draw(st.integers(0, len(text)))))
    Seen(render_page((source, text[first:last])))


def test_loop_of_pci_bridges_terminates() -> None:
    circle = "00:01.0 PCI bridge [0604]: X [8086:1]\n\tBus: primary=00, secondary=00, subordinate=00\n"
    Seen(render_page(("lspci -nnvv", f"{circle}00:02.0 3D controller [0302]: NVIDIA [10de:2330]\n")))
