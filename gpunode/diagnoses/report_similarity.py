"""Compare a node's evidence with the vocabulary of public reports about each cause. Pure.

Words never detect a cause; they only order the suspects. ``tests/scenarios/words.py`` counts the words of the project's
report collection into ``report_words.txt``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from math import log, sqrt
from pathlib import Path
from typing import Final

from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass

_REPORT_WORD: Final = Pattern(r"[A-Za-z][A-Za-z_+-]{2,30}")
# The beginning of a long text characterizes it; a whole journal contains every word.
_MAX_COMPARED_LENGTH: Final = 20_000


@dataclass(frozen=True, slots=True)
class ReportWords:
    """The number of reports of each cause that contain each word.

    Attributes:
        reports: number of reports of each cause.
        counts: number of reports, by cause, then by word.
    """

    reports: Mapping[str, int]
    counts: Mapping[str, Mapping[str, int]]


def extract_words(texts: Iterable[str]) -> frozenset[str]:
    """Return the distinct words of ``texts`` in lower case."""
    return frozenset(word.lower() for text in texts for word in _REPORT_WORD.findall(text[:_MAX_COMPARED_LENGTH]))


def parse_report_words(text: str) -> ReportWords:
    """Parse one line per cause: ``cause:reports``, then ``word:count``, or ``word`` for a count of 1."""
    rows = [line.split() for line in text.splitlines()]
    reports = {cause: int(count) for row in rows for cause, _, count in [row[0].partition(":")]}
    return ReportWords(reports, dict(zip(reports, (_parse_counts(row[1:]) for row in rows), strict=True)))


def _parse_counts(written: list[str]) -> Mapping[str, int]:
    counts = dict.fromkeys(written, 1)
    for one in written:
        if ":" in one:
            word, _, count = one.partition(":")
            counts[word] = int(count)
            del counts[one]
    return counts


@cache
def shipped_words() -> ReportWords:
    """Return the counts of the project's report collection."""
    return parse_report_words(Path(__file__).with_name("report_words.txt").read_text("utf-8"))


def score_causes(report_words: ReportWords, evidence_words: frozenset[str]) -> Mapping[str, float]:
    """Score each cause by how well its reports match the words; below 0 they match worse than average.

    A naive Bayes classifier over the presence of words, smoothed towards the overall frequency (m-estimate,
    m = 1). Words depend on one another, so the log score is divided by the square root of their number.
    """
    report_total = sum(report_words.reports.values())
    totals = Counter[str]()
    for counts in report_words.counts.values():
        totals.update({word: counts[word] for word in evidence_words & counts.keys()})
    share = {word: count / report_total for word, count in totals.items()}
    scale = sqrt(len(evidence_words) or 1)
    return {
        cause: sum(
            log((counts.get(word, 0) / of_all + 1) / (report_words.reports[cause] + 1)) / scale
            for word, of_all in share.items()
        )
        for cause, counts in report_words.counts.items()
    }
