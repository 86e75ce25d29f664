"""The words of the reports, in the format of ``gpunode.diagnoses.report_similarity``.

``python -m tests.scenarios.words`` writes the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

from gpunode.diagnoses import report_similarity
from gpunode.diagnoses.report_similarity import ReportWords
from tests.scenarios.reports import Report, reports

# Rarer words identify someone: names of hosts, people, files.
MIN_REPORTS: Final = 3
FILE = Path(report_similarity.__file__).with_name("report_words.txt")


def words_of(given: Iterable[Report]) -> ReportWords:
    """Return the counts for these reports."""
    return count_words((one.cause, _words(one)) for one in given)


def count_words(reports: Iterable[tuple[str, frozenset[str]]]) -> ReportWords:
    """Count the words of ``reports``, pairs of a cause and its words; drop words in fewer than ``MIN_REPORTS``."""
    words_by_report = list(reports)
    report_counts = Counter(word for _, said in words_by_report for word in said)
    counts: dict[str, Counter[str]] = {}
    for cause, said in words_by_report:
        counts.setdefault(cause, Counter()).update(word for word in said if report_counts[word] >= MIN_REPORTS)
    return ReportWords(Counter(cause for cause, _ in words_by_report), counts)


def dump_words(report_words: ReportWords) -> str:
    """Return the counts as text: one line per cause, with ``word:count``, or ``word`` for a count of 1."""
    lines = []
    for cause, counts in sorted(report_words.counts.items()):
        said = (word if count == 1 else f"{word}:{count}" for word, count in sorted(counts.items()))
        lines.append(f"{cause}:{report_words.reports[cause]} {' '.join(said)}\n")
    return "".join(lines)


@cache
def _words(report: Report) -> frozenset[str]:
    return report_similarity.extract_words(f"{piece['source']}\n{piece['text']}" for piece in report.evidence)


def main() -> None:
    """Write the file."""
    FILE.write_text(dump_words(words_of(reports())))


if __name__ == "__main__":
    main()
