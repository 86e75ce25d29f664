"""Which causes a node's evidence reads like: by the words of reports that people wrote of each. Pure.

No cause is found by its words; they only order the suspects, where no sign decides. The counts are those of the
project's own collection of public reports, in ``report_words.txt``; ``tests/scenarios/words.py`` writes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import log, sqrt
from typing import Final

from gpunode.facts.patterns import Pattern

# A rarer word is somebody's own: the name of a host, of a person, of a file.
LEAST: Final = 3
_WORD: Final = Pattern(r"[A-Za-z][A-Za-z_+-]{2,30}")
# Of a long text its beginning says what it is; a whole journal has every word.
_READ: Final = 20_000


@dataclass(frozen=True, slots=True)
class Words:
    """In how many reports of each cause each word stands.

    Attributes:
        reports: how many there are of each cause.
        counts: by cause, then by word.
    """

    reports: Mapping[str, int]
    counts: Mapping[str, Mapping[str, int]]


def words(texts: Iterable[str]) -> frozenset[str]:
    """The words of the evidence, without case."""
    return frozenset(word.lower() for text in texts for word in _WORD.findall(text[:_READ]))


def counted(reports: Iterable[tuple[str, frozenset[str]]]) -> Words:
    """The counts of reports, each a cause with its words; words of fewer than ``LEAST`` reports are not among them."""
    told = list(reports)
    common = Counter(word for _, said in told for word in said)
    counts: dict[str, Counter[str]] = {}
    for cause, said in told:
        counts.setdefault(cause, Counter()).update(word for word in said if common[word] >= LEAST)
    return Words(Counter(cause for cause, _ in told), counts)


def written(given: Words) -> str:
    """The file of these counts: a line for each cause, with its words, each with its count where that is not 1."""
    lines = []
    for cause, counts in sorted(given.counts.items()):
        said = (word if count == 1 else f"{word}:{count}" for word, count in sorted(counts.items()))
        lines.append(f"{cause}:{given.reports[cause]} {' '.join(said)}\n")
    return "".join(lines)


def parsed(text: str) -> Words:
    """The counts that ``written`` wrote."""
    rows = [[_count(word) for word in line.split()] for line in text.splitlines()]
    return Words({row[0][0]: row[0][1] for row in rows}, {row[0][0]: dict(row[1:]) for row in rows})


def _count(written: str) -> tuple[str, int]:
    word, _, count = written.partition(":")
    return word, int(count or 1)


@cache
def of_reports() -> Words:
    """The counts of the project's own reports."""
    return parsed((files("gpunode.diagnoses") / "report_words.txt").read_text())


def resemblance(given: Words, seen: frozenset[str]) -> Mapping[str, float]:
    """How much more each cause's reports read like this than reports at large do; below 0 they do less.

    A naive Bayes classifier over the presence of words, each cause's share drawn to that of all (m-estimate, m = 1).
    The words of a text depend on one another, so its logarithm is divided by the square root of their number.
    """
    number = sum(given.reports.values())
    totals = Counter[str]()
    for counts in given.counts.values():
        totals.update({word: counts[word] for word in seen & counts.keys()})
    share = {word: count / number for word, count in totals.items()}
    scale = sqrt(len(seen) or 1)
    return {
        cause: sum(
            log((counts.get(word, 0) / of_all + 1) / (given.reports[cause] + 1)) / scale
            for word, of_all in share.items()
        )
        for cause, counts in given.counts.items()
    }
