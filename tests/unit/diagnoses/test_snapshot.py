from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.diagnoses import snapshot as searching
from gpunode.diagnoses.snapshot import lines_with, snapshot
from gpunode.facts import pasted
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern

PATTERNS = (
    Pattern(r"gpu is lost"),
    Pattern(r"^gpu is lost$", re.MULTILINE),
    Pattern(r"(?<!no )\blost gpu\b|gpu was lost", re.IGNORECASE),
    Pattern(r"lost$", re.MULTILINE),
)
LINES = (
    "gpu is lost",
    "GPU is lost",
    "no lost gpu",
    "a lost gpu",
    "the gpu was lost",
    "gpu is",
    "lost",
    "",
    "İ lost GPU",
)


def item_of(text: str) -> Item:
    return snapshot(pasted.evidence([("journalctl -u x", text)])).items[0]


@pytest.mark.parametrize("dense", [2, 1000])
@given(lines=st.lists(st.sampled_from(LINES), min_size=1, max_size=30))
def test_a_long_text_is_searched_as_a_short_one_is(dense: int, lines: list[str]) -> None:
    text = "\n".join(lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searching, "_DENSE", dense)
        for pattern in PATTERNS:
            patch.setattr(searching, "_LONG", 1 << 20)
            whole = list(lines_with(item_of(text), pattern))
            patch.setattr(searching, "_LONG", 0)
            assert list(lines_with(item_of(text), pattern)) == whole


def test_registers_of_packages_have_no_messages() -> None:
    evidence = pasted.evidence([("/var/log/dpkg.log", "NVRM: GPU is lost\n"), ("journalctl -u x", "all is well\n")])
    seen = snapshot(evidence)
    assert [one.is_register for one in seen.items] == [True, False]
    assert not seen.says(Pattern("GPU is lost"))
    assert seen.says(Pattern("all is well"))
