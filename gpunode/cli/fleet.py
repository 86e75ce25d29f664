"""doctor of many reports: the fleet on the screen, as a page, and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpunode import __version__
from gpunode.cli.envelope import Envelope
from gpunode.cli.output_options import OutputOptions, verdict_status
from gpunode.cli.screen.text import BLANK_LINE, Line, Span, Style, cell_width, line, next_command_line, pad_right, span
from gpunode.command import gpunode_command
from gpunode.diagnoses import rules_by_cause
from gpunode.errors import UsageError
from gpunode.page.words import (
    NODE_CONDITIONS,
    TEXT_BY_DISRUPTION,
    collapse_ranges,
    condition_of,
    describe_deviation,
    node_name,
)
from gpunode.wording import count_noun, group_digits, join_names

if TYPE_CHECKING:
    from gpunode.page.words import NodeCondition
    from gpunode.recipe import Recipe
    from gpunode.workflow.fleet import CauseTally, FleetRow, FleetSummary, OutlierGroup, SkippedNodes


def diagnose_fleet(names: Sequence[str], output: OutputOptions, html: str, recipe_name: str, lock: str) -> None:
    """Diagnose each report on its own, then compare it with others of its model, and with a recipe if one is named."""
    from gpunode.cli import doctor_page
    from gpunode.cli.doctor import may_be_report
    from gpunode.diagnoses.comparison import Census
    from gpunode.host import reports
    from gpunode.workflow.fleet import fleet_rows, summarize_fleet, with_outliers

    if alone := [name for name in names if name == "-" or (name in rules_by_cause() and not may_be_report(name))]:
        raise UsageError(
            f"{alone[0]} must be given alone", why="a cause, or standard input, cannot be combined with other names",
            hint=str(gpunode_command("doctor", alone[0])),
        )  # fmt: skip
    recipe = _load_fleet_recipe(recipe_name, lock, names)
    if html:
        doctor_page.refuse_unwritable_page_file(html, output)
    fleet_reports = reports.find_fleet_reports(names)
    with output.open_report_screen() as screen:
        census, answers = Census(), []
        for row in fleet_rows(fleet_reports, census, recipe):
            answers.append(row)
            if output.verbose:
                screen.put(fleet_row_line(row, [report.name for report in fleet_reports]))
            else:
                screen.show_progress(f"diagnosing: {len(answers)} of {len(fleet_reports)} reports")
        summary = summarize_fleet(with_outliers(answers, census.group_by_model()))
        if html:
            from gpunode.page.fleet import fleet_page
            from gpunode.page.markup import PageOrigin

            source = Path(names[0]).name if len(names) == 1 else f"{len(names)} names"
            about = PageOrigin("", f"reports in {source}", doctor_page.current_time(), __version__)
            doctor_page.write_page(html, fleet_page(summary, about, _reference_label(recipe)))
        if html != doctor_page.STANDARD_OUTPUT_ARGUMENT:
            screen.print_result(*fleet_lines(summary, verbose=output.verbose, page=html))
    output.emit(_fleet_envelope(summary, html, recipe), changed_nothing=True)


def _load_fleet_recipe(name: str, lock: str, names: Sequence[str]) -> Recipe | None:
    """Return the named recipe with its lock, or the recipe that the lock names; None without both.

    Raises:
        UsageError: the lock names a recipe that is not shipped, so its file is unknown.
    """
    if not (name or lock):
        return None
    from gpunode import builtin
    from gpunode.cli.inputs import RecipeOptions
    from gpunode.cli.lockfiles import read_lock

    recipe_name = name or read_lock(lock).recipe
    if not name and recipe_name not in builtin.shipped_recipe_names():
        raise UsageError(
            f"{lock} was written with the recipe {recipe_name!r}, which does not come with gpunode",
            why="a lock file does not say where its recipe is",
            hint="name the file: "
            f"{gpunode_command('doctor', *names, '--recipe', f'{recipe_name}.toml', '--lock', lock)}",
        )
    return RecipeOptions(recipe_name, lock=lock).load()


def _reference_label(recipe: Recipe | None) -> str:
    """Return the names of the recipe and lock that nodes were compared with; empty if none."""
    if recipe is None:
        return ""
    return f"recipe {recipe.name}" + (f", lock {Path(recipe.lock.file).name}" if recipe.lock else "")


def _fleet_envelope(summary: FleetSummary, page: str, recipe: Recipe | None) -> Envelope:
    from gpunode.workflow.fleet import overall_verdict

    status, exit_code = verdict_status(overall_verdict(summary.rows))
    result: dict[str, object] = {
        "reports": summary.rows,
        "causes": summary.causes,
        "differences": summary.differences,
        "layers": summary.layers,
        "versions": summary.spread,
        "models": summary.models,
        "unreadable": summary.unreadable,
    }
    if recipe is not None:
        result |= {"recipe": _reference_label(recipe), "drift": summary.drift, "not_compared": summary.not_compared}
    return Envelope("doctor", status, exit_code, result={**result, **({"page": page} if page else {})})


_MAX_NAME_WIDTH = 48
_MARK_BY_CONDITION: Final[dict[NodeCondition, tuple[str, Style]]] = {
    "healthy": ("✓", "good"),
    "broken": ("✗", "bad"),
    "at risk": ("!", "warn"),
    "undetermined": ("?", "warn"),
    "unread": ("!", "warn"),
}
_MAX_NAMES_SHOWN = 6
# Further groups are only shown on the page and by --json.
_MAX_GROUPS_SHOWN = 12


def fleet_row_line(row: FleetRow, names: Sequence[str]) -> Line:
    """Return ``✗ node17.tar.gz  cause  title``."""
    width = min(max(map(cell_width, names)), _MAX_NAME_WIDTH)
    mark, style = _MARK_BY_CONDITION[condition_of(row)]
    name = span(pad_right(row.report, width))
    return line(span(f"{mark} ", style), name, "  ", *_row_summary(row, style), hang=width + 4)


def _row_summary(row: FleetRow, style: Style) -> tuple[str | Span, ...]:
    if row.error:
        return (span("not read: ", style), row.error)
    if row.cause:
        likely = "" if row.confidence == "certain" else " (likely)"
        more = f"; also {join_names(row.other_causes)}" if row.other_causes else ""
        more += f"; not explained by this, perhaps {join_names(row.unexplained)}" if row.unexplained else ""
        return (span(row.cause, style), span(f"  {row.title}{likely}{more}", "dim"))
    return (row.unknown[0],) if row.unknown else ("healthy",)


def fleet_lines(seen: FleetSummary, *, verbose: bool = False, page: str = "") -> Iterator[Line]:
    """Yield the nodes by condition and cause, most frequent first, with the first step for each.

    ``page`` is the HTML file that was also written.
    """
    if verbose:
        yield BLANK_LINE
    counts = Counter(map(condition_of, seen.rows))
    parts = [f"{group_digits(counts[one])} {one}" for one in NODE_CONDITIONS if counts[one]]
    yield line(span(f"{count_noun(len(seen.rows), 'node')}: ", "bold"), ", ".join(parts))
    kinds = (
        *(_cause_lines(cause) for cause in seen.causes),
        *(_outlier_lines(difference) for difference in seen.differences),
        *(_skipped_lines("undetermined", skipped) for skipped in seen.unknown),
        *(_skipped_lines("unread", skipped) for skipped in seen.unreadable),
    )
    yield from _counted_group_lines(kinds, verbose=verbose)
    if seen.drift or seen.not_compared:
        yield BLANK_LINE
        yield line(span("drifted from the recipe", "bold"))
        drift = [_report_group_lines(each.reports, f"{each.drift.title}: {each.drift.reason}") for each in seen.drift]
        left = [_skipped_lines("not compared with the recipe", skipped) for skipped in seen.not_compared]
        yield from _counted_group_lines((*drift, *left), verbose=verbose, blank=False)
    if seen.causes:
        first = next(row for row in seen.rows if row.report in seen.causes[0].reports)
        yield BLANK_LINE
        yield next_command_line(gpunode_command("doctor", first.path))
    if page:
        yield line("page: ", span(page, "command"), hang=6)


_CountedLines = tuple[int, tuple[Line, ...]]


def _report_group_lines(reports: Sequence[str], heading: str, *more: str, style: Style = "bold") -> _CountedLines:
    where = join_names(tuple(collapse_ranges(map(node_name, reports))), _MAX_NAMES_SHOWN)
    head = line(span(heading, style), "".join(f": {one}" for one in more), "  ", span(where, "dim"))
    return len(reports), (head,)


def _cause_lines(tally: CauseTally) -> _CountedLines:
    number, lines = _report_group_lines(tally.reports, tally.cause, tally.title)
    following = span(tally.command, "command") if tally.command else span(tally.advice)
    words = f" (the fix {TEXT_BY_DISRUPTION[tally.disruption]})" if tally.disruption != "none" else ""
    return number, (*lines, line("next: ", following, span(words, "dim")))


def _outlier_lines(group: OutlierGroup) -> _CountedLines:
    more = f", and {count_noun(group.other_differences, 'other difference')}" if group.other_differences else ""
    return _report_group_lines(
        group.reports, "differs from its group", describe_deviation(group.difference) + more, style="warn"
    )


def _skipped_lines(heading: str, one: SkippedNodes) -> _CountedLines:
    return _report_group_lines(one.reports, heading, one.why, style="warn")


def _counted_group_lines(groups: Iterable[_CountedLines], *, verbose: bool, blank: bool = True) -> Iterator[Line]:
    shown_groups = list(groups)
    digits = max((len(group_digits(number)) for number, _ in shown_groups), default=0)
    if shown_groups and blank:
        yield BLANK_LINE
    for number, (head, *rest) in shown_groups if verbose else shown_groups[:_MAX_GROUPS_SHOWN]:
        yield Line((Span(f"  {group_digits(number):>{digits}} × "), *head.spans), digits + 5)
        for one in rest:
            yield Line((Span(" " * (digits + 5)), *one.spans), digits + 11)
    if len(shown_groups) > _MAX_GROUPS_SHOWN and not verbose:
        yield line(
            f"  and {count_noun(len(shown_groups) - _MAX_GROUPS_SHOWN, 'other')}; -v, --html and --json have all"
        )
