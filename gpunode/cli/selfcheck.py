"""self-check: whether gpunode's own files are as they were built."""

from __future__ import annotations

from gpunode import __version__, installed
from gpunode.cli.envelope import Envelope
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.screen.checks import check_lines
from gpunode.cli.screen.text import line, span
from gpunode.errors import ProblemFound, Undetermined
from gpunode.host.integrity import checks

_PROVES = "whoever can change these files can change their checksums, too"
_RELEASE = "whether it is the release's: gpunode self-check SHA256SUMS, with that file from a place you trust"


def self_check(sums: str, how: OutputOptions) -> None:
    """Checks gpunode's files against the checksums that came with them, or against a release's."""
    kind, place = installed.how()
    found = tuple(checks(sums))
    notes = (_PROVES,) if sums or kind == "wheel" else (_PROVES, _RELEASE)
    about = (line(span(f"note: {note}", "dim"), hang=6) for note in notes)
    title = line(f"gpunode {__version__}, installed {installed.WORDS[kind]}")
    how.report_screen().put(title, *check_lines(found), *about)
    status, exit_code = "ok", 0
    if any(check.status == "failed" for check in found):
        status, exit_code = ProblemFound.status, ProblemFound.exit_code
    elif any(check.status == "not run" for check in found):
        status, exit_code = Undetermined.status, Undetermined.exit_code
    result = {"installed": kind, "place": place, "checks": found}
    how.answer(
        Envelope("self-check", status=status, exit_code=exit_code, notes=notes, result=result), changed_nothing=True
    )
