"""Rate of right diagnoses for a report as one text: a terminal transcript with or without prompts, or only output.

Run by ``python -m tests.scenarios.transcripts``. Each report is joined into one text in several ways.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Final, Literal, get_args

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted
from tests.scenarios.reports import Piece, Report, reports

_PROMPT: Final = re.compile(r"^\s*(?:[\w.-]{0,40}|\S+@\S+:\S*)[$#] ")


def command(piece: Piece) -> str:
    """Return the command that shows the piece."""
    plain = _PROMPT.sub("", piece["source"])
    return f"cat {plain}" if re.fullmatch(r"/\S+", plain) else plain


def _joined(form: str) -> Callable[[Report], str]:
    return lambda report: "".join(
        form.format(command=command(piece), text=piece["text"].strip("\n")) for piece in report.evidence
    )


FORMS: Final[Mapping[str, Callable[[Report], str]]] = {
    "with prompts": _joined("$ {command}\n{text}\n"),
    "commands on their own lines": _joined("{command}\n{text}\n\n"),
    "under headings": _joined("{command}:\n{text}\n\n"),
    "output alone": _joined("{text}\n\n"),
}


Verdict = Literal["right", "unknown", "wrong", "certain and wrong"]


def judge(report: Report, form: str) -> Verdict:
    """Return how doctor's first cause compares with the report's if it is pasted as one text in that form."""
    found = diagnose(take_snapshot(pasted.parse_text_report(FORMS[form](report))))
    first = next((one for one in found.roots if one.severity != "info"), next(iter(found.roots), None))
    if first is None:
        return "unknown"
    if first.cause == report.cause:
        return "right"
    return "certain and wrong" if first.confidence == "certain" else "wrong"


def verdicts(report: Report) -> dict[str, Verdict]:
    """Return the verdict for each form."""
    return {form: judge(report, form) for form in FORMS}


def main() -> None:
    """Print the share of each verdict, and the reports that are certain and wrong."""
    with ProcessPoolExecutor() as pool:
        found = list(zip(reports(), pool.map(verdicts, reports(), chunksize=16), strict=True))
    for form in FORMS:
        given = Counter(one[form] for _, one in found)
        print(f"{form:<30} {'  '.join(f'{one} {given[one] / len(found):.1%}' for one in get_args(Verdict))}")
    for report, one in found:
        print("\n".join(f"{report.name} {form}" for form in FORMS if one[form] == "certain and wrong"), end="")


if __name__ == "__main__":
    main()
