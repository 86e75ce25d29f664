"""The words of the reports, as ``gpunode.diagnoses.report_similarity`` reads them.

``python -m tests.scenarios.words`` writes the file.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from gpunode.diagnoses import report_similarity
from gpunode.diagnoses.report_similarity import ReportWords
from tests.scenarios.reports import Report, reports

FILE = Path(report_similarity.__file__).with_name("report_words.txt")


def words_of(given: Iterable[Report]) -> ReportWords:
    """Return the counts of these reports."""
    return report_similarity.count_words((one.cause, _words(one)) for one in given)


@cache
def _words(report: Report) -> frozenset[str]:
    return report_similarity.extract_words(f"{piece['source']}\n{piece['text']}" for piece in report.evidence)


def main() -> None:
    """Write the file."""
    FILE.write_text(report_similarity.dump_words(words_of(reports())))


if __name__ == "__main__":
    main()
