"""Rate of right diagnoses of a report as one text: a terminal's, with prompts and without, or nothing but output.

Run by ``python -m tests.scenarios.transcripts``. Each report is joined into one text in several ways.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Final

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


def is_right(report: Report, form: str) -> bool:
    """True if doctor puts the report's cause first where it is pasted as one text in that form."""
    found = diagnose(take_snapshot(pasted.parse_text_report(FORMS[form](report))))
    roots = [one.cause for one in found.roots if one.severity != "info"] or [one.cause for one in found.roots]
    return roots[:1] == [report.cause]


def answers(report: Report) -> dict[str, bool]:
    """Return for each form whether doctor is right."""
    return {form: is_right(report, form) for form in FORMS}


def main() -> None:
    """Print the shares."""
    with ProcessPoolExecutor() as pool:
        found = list(pool.map(answers, reports(), chunksize=16))
    for form in FORMS:
        print(f"{form:<30} {sum(one[form] for one in found) / len(found):7.1%}")


if __name__ == "__main__":
    main()
