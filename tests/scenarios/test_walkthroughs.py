"""Walk-throughs from popular articles, in which everything works: neither a finding nor a suspect.

Each is read as evidence, as a pasted session, and as a post with Markdown blocks between sentences.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted
from gpunode.facts.evidence import Evidence

_BLOCK = re.compile(r"^=== (.+)\n((?:(?!=== ).*\n)*)", re.MULTILINE)
WALKTHROUGHS = dict(_BLOCK.findall((Path(__file__).parent / "healthy/walkthroughs.txt").read_text()))
_STEP = re.compile(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


def as_evidence(text: str) -> Evidence:
    return pasted.collect_pieces(_STEP.findall(text))


def as_post(text: str) -> Evidence:
    blocks = (f"Next comes this:\n\n```\n$ {command}\n{said}```\n" for command, said in _STEP.findall(text))
    return pasted.parse_text_report("\n".join(blocks))


@pytest.mark.parametrize("name", WALKTHROUGHS)
@pytest.mark.parametrize("read", [as_evidence, pasted.parse_text_report, as_post])
def test_walkthrough_that_succeeds_has_no_suspect(name: str, read: object) -> None:
    assert callable(read)
    found = diagnose(take_snapshot(read(WALKTHROUGHS[name])))
    assert [one.cause for one in found.findings] == []
    assert [one.cause for one in found.suspects] == []


def test_failure_behind_a_success_is_still_suspected() -> None:
    failing = '$ docker compose up\nError: could not select device driver "" with capabilities: [[gpu]]\n'
    assert diagnose(take_snapshot(pasted.parse_text_report(WALKTHROUGHS["docker"] + failing))).suspects
