"""Random reports: pieces of the real ones, mixed, shuffled, truncated."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from hypothesis import strategies as st

from gpunode.facts import pasted
from gpunode.facts.evidence import Evidence

SCENARIOS = Path(__file__).parent.parent / "scenarios/doctor"


@cache
def pieces() -> tuple[tuple[str, str], ...]:
    """Return every source and text of the scenarios."""
    reports = [json.loads(path.read_text()) for path in sorted(SCENARIOS.rglob("*.json"))]
    return tuple((one["source"], one["text"]) for report in reports for one in report["evidence"])


@cache
def wholes() -> tuple[tuple[tuple[str, str], ...], ...]:
    """Return the scenarios, each with its pieces."""
    reports = [json.loads(path.read_text()) for path in sorted(SCENARIOS.rglob("*.json"))]
    return tuple(tuple((one["source"], one["text"]) for one in report["evidence"]) for report in reports)


@st.composite
def _damaged(draw: st.DrawFn) -> tuple[tuple[str, str], ...]:
    """Return a scenario, or two combined: shuffled, with pieces missing and texts truncated at either end."""
    chosen = [piece for whole in draw(st.lists(st.sampled_from(wholes()), min_size=1, max_size=2)) for piece in whole]
    kept = draw(st.permutations(chosen))[: draw(st.integers(1, len(chosen)))]
    return tuple((source, _cut(draw, text)) for source, text in kept)


def _cut(draw: st.DrawFn, text: str) -> str:
    if draw(st.booleans()):
        return text
    start, end = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
    return text[start:end]


damaged = _damaged()
reports: st.SearchStrategy[Evidence] = (st.sampled_from(wholes()) if wholes() else st.just(())).map(
    pasted.collect_pieces
)
damaged_reports: st.SearchStrategy[Evidence] = damaged.map(pasted.collect_pieces)
