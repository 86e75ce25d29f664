"""Compare a broken node with a working one, the likeliest explanation first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from gpunode.cli.envelope import Envelope
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.screen.text import BLANK_LINE, Line, Style, line, span
from gpunode.errors import ChangesPending, Undetermined, UsageError
from gpunode.wording import count_noun, join_names

if TYPE_CHECKING:
    from gpunode.diagnoses.comparison import Comparison, Difference, Side, Uncompared
    from gpunode.diagnoses.model import Diagnosis
    from gpunode.diagnoses.traits import Reason, TraitWeight
    from gpunode.facts.evidence import Evidence


_MARK_BY_WEIGHT: dict[TraitWeight, tuple[str, Style]] = {
    "likely": ("●", "bad"),
    "possible": ("○", "warn"),
    "background": ("·", "dim"),
}
_MAX_VALUE_LENGTH = 200
_MAX_DIFFERENCES_SHOWN = 6
_MAX_NAMES_SHOWN = 3


def comparison_lines(found: Comparison, diagnosis: Diagnosis, good: str, bad: str, *, verbose: bool) -> Iterator[Line]:
    """Yield the differences, the likeliest explanation first; only ``verbose`` shows those that explain nothing."""
    shown = [difference for difference in found.differences if verbose or difference.weight != "background"]
    if shown:
        yield line(span(good, "remove"), span(" → ", "dim"), span(bad, "add"))
        yield BLANK_LINE
    for _, group in groupby(shown, key=lambda one: (one.trait, one.weight, one.why)):
        yield from _difference_lines(list(group), verbose=verbose)
    if shown:
        yield BLANK_LINE
    if causes := [finding.cause for finding in diagnosis.roots if finding.severity != "info"]:
        yield line("doctor names for ", span(bad), ": ", span(join_names(causes), "bold"), hang=2)
    yield from _uncompared_lines(found.not_compared, {"good": good, "bad": bad}, verbose=verbose)
    yield _verdict_line(found, hidden=len(found.differences) - len(shown))


def _uncompared_lines(
    not_compared: Sequence[Uncompared], names: Mapping[Side, str], *, verbose: bool
) -> Iterator[Line]:
    """Yield what one of the two reports lacks, and why."""
    groups: dict[tuple[Side, Reason], list[str]] = {}
    for one in not_compared:
        groups.setdefault((one.side, one.reason), []).append(_describe_uncompared(one, verbose=verbose))
    for (side, reason), descriptions in groups.items():
        text = (
            f"not compared, missing from {names[side]} ({_UNCOMPARED_REASON_TEXTS[reason]}): {join_names(descriptions)}"
        )
        yield line(span(text, "dim"), hang=2)


_UNCOMPARED_REASON_TEXTS: dict[Reason, str] = {
    "not-collected": "not queried",
    "denied": "permission denied",
    "failed": "the query failed",
    "timeout": "no answer in time",
}


def _describe_uncompared(uncompared: Uncompared, *, verbose: bool) -> str:
    if not uncompared.names:
        return uncompared.title
    names = [name.removeprefix(f"{uncompared.title}: ") for name in uncompared.names]
    most = len(names) if verbose else _MAX_NAMES_SHOWN
    more = [f"{len(names) - most} more"] if len(names) > most else []
    return f"{uncompared.title} ({', '.join((*names[:most], *more))})"


def _difference_lines(group: Sequence[Difference], *, verbose: bool) -> Iterator[Line]:
    """Yield the reason, then each value on both nodes."""
    first = group[0]
    mark, style = _MARK_BY_WEIGHT[first.weight]
    yield line(span(f"{mark} ", style), span(first.title, "bold"), "  ", span(first.why, "dim"), hang=4)
    rows = group if verbose else group[:_MAX_DIFFERENCES_SHOWN]
    for row in rows:
        name = row.name.removeprefix(f"{row.title}: ")
        yield line("    ", span(name), "  ", span(_shorten(row.good), "remove"), span(" → ", "dim"),
                   span(_shorten(row.bad), "add"), hang=6)  # fmt: skip
    if (more := len(group) - len(rows)) > 0:
        yield line(span(f"    and {more} more; -v shows them", "dim"))


def _shorten(value: str | None) -> str:
    if value is None:
        return "not there"
    return value if len(value) <= _MAX_VALUE_LENGTH else f"{value[:_MAX_VALUE_LENGTH]}…"


def _verdict_line(comparison: Comparison, *, hidden: int) -> Line:
    likely = sum(difference.weight == "likely" for difference in comparison.differences)
    more = f"; {hidden} others that explain little: -v shows them" if hidden else ""
    more = "; 1 other difference that explains little: -v shows it" if hidden == 1 else more
    if not comparison.has_explanation and not comparison.is_conclusive:
        missing = join_names(comparison.missing)
        text = f"cannot tell: the reports have too little in common; missing: {missing}; compare captures{more}"
        return line(text, hang=2)
    if not comparison.has_explanation:
        return line(f"no difference explains a fault{more}", hang=2)
    possible = sum(difference.weight == "possible" for difference in comparison.differences)
    return line(f"{count_noun(likely, 'likely explanation')}, {possible} possible{more}", hang=2)


def compare(good: str, bad: str | None, options: OutputOptions) -> None:
    """Rank the differences between two reports, or between a report and this machine."""
    from gpunode.diagnoses import comparison, diagnose
    from gpunode.diagnoses.snapshot import take_snapshot

    if "" in (good, bad):
        raise UsageError("an empty name is not a report", hint="gpunode compare GOOD [BAD]")
    if good == bad == "-":
        raise UsageError("only one of the two reports can come from standard input", hint="name a file for the other")
    # Captures have no secrets; without redaction, live evidence would differ by them.
    healthy, sick = (take_snapshot(_read_redacted_evidence(name)) for name in (good, bad))
    diagnosis = diagnose(sick, guarded=True)
    compared = comparison.compare(healthy, sick, diagnosis)
    screen = options.open_report_screen()
    screen.put(*comparison_lines(compared, diagnosis, good, bad or "this machine", verbose=options.verbose))
    screen.show_bugs(diagnosis.bugs)
    causes = [finding.cause for finding in diagnosis.roots if finding.severity != "info"]
    if compared.has_explanation:
        status, exit_code = "different", ChangesPending.exit_code
    elif compared.is_conclusive:
        status, exit_code = "ok", 0
    else:  # too little was compared to tell
        status, exit_code = Undetermined.status, Undetermined.exit_code
    result = {
        "differences": compared.differences,
        "not_compared": compared.not_compared,
        "missing": compared.missing,
        "causes": causes,
    }
    options.emit(Envelope("compare", status=status, exit_code=exit_code, result=result), changed_nothing=True)


def _read_redacted_evidence(name: str | None) -> Evidence:
    from gpunode.cli.samples import resolve_sample
    from gpunode.host.local import LocalHost
    from gpunode.host.reports import is_fleet, read_report
    from gpunode.redaction.evidence import redact
    from gpunode.workflow.doctor import collect_doctor_evidence

    name = resolve_sample(name) if name else None
    if name and is_fleet(name):
        raise UsageError(
            f"{name} is a folder of reports", why="two nodes are compared", hint="name one of the reports in it"
        )
    return redact(read_report(name) if name else collect_doctor_evidence(LocalHost("/")))
