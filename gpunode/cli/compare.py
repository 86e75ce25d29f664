"""compare: how a bad node differs from a good one, the likeliest explanation first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpunode.cli.envelope import Envelope
from gpunode.cli.output_options import OutputOptions
from gpunode.errors import ChangesPending, Undetermined, UsageError

if TYPE_CHECKING:
    from gpunode.diagnoses.comparison import Comparison
    from gpunode.facts.evidence import Evidence


def compare(good: str, bad: str | None, how: OutputOptions) -> None:
    """Ranks the differences of two reports, or of one and this machine."""
    from gpunode.cli.screen.comparison import comparison_lines
    from gpunode.diagnoses import comparison, diagnose
    from gpunode.diagnoses.snapshot import snapshot

    if "" in (good, bad):
        raise UsageError("an empty name is no report", hint="gpunode compare GOOD [BAD]")
    if good == bad == "-":
        raise UsageError("only one of the two reports can come from standard input", hint="name a file for the other")
    # What was captured lost its secrets; what was not would differ by them.
    healthy, sick = (snapshot(_evidence(name)) for name in (good, bad))
    diagnosis = diagnose(sick, guarded=True)
    found = comparison.compare(healthy, sick, diagnosis)
    screen = how.report_screen()
    screen.put(*comparison_lines(found, diagnosis, good, bad or "this machine", verbose=how.verbose))
    screen.bugs(diagnosis.bugs)
    causes = [finding.cause for finding in diagnosis.roots if finding.severity != "info"]
    status, exit_code = _verdict(found)
    result = {"differences": found.differences, "unseen": found.unseen, "missing": found.missing, "causes": causes}
    how.answer(Envelope("compare", status=status, exit_code=exit_code, result=result), changed_nothing=True)


def _verdict(found: Comparison) -> tuple[str, int]:
    """Different, the same, or compared in too little to say that they are."""
    if found.matters:
        return "different", ChangesPending.exit_code
    return ("ok", 0) if found.tells else (Undetermined.status, Undetermined.exit_code)


def _evidence(name: str | None) -> Evidence:
    from gpunode.cli.samples import report_at
    from gpunode.host.local import LocalHost
    from gpunode.host.reports import is_fleet, read
    from gpunode.redaction.evidence import redact
    from gpunode.workflow.doctor import examine

    name = report_at(name) if name else None
    if name and is_fleet(name):
        raise UsageError(
            f"{name} is a folder of reports", why="two nodes are compared", hint="name one of the reports in it"
        )
    return redact(read(name) if name else examine(LocalHost("/")))
