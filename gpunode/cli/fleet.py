"""doctor of many reports: the fleet's picture on the screen, as one page, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpunode import __version__
from gpunode.cli.envelope import Envelope
from gpunode.cli.output_options import EXIT_KINDS, OutputOptions
from gpunode.command import gpunode
from gpunode.diagnoses import rules_by_cause
from gpunode.errors import UsageError

if TYPE_CHECKING:
    from gpunode.recipe import Recipe
    from gpunode.workflow.fleet import FleetSummary


def diagnose_fleet(named: Sequence[str], output: OutputOptions, html: str, recipe_name: str, lock: str) -> None:
    """Diagnose all reports, each by itself, against others of its model, and against a recipe if one is named."""
    from gpunode.cli import doctor_page
    from gpunode.diagnoses.comparison import Census
    from gpunode.host import reports
    from gpunode.workflow.fleet import fleet_rows, summarize_fleet, with_outliers

    if alone := [name for name in named if name == "-" or (name in rules_by_cause() and not _path_exists(name))]:
        raise UsageError(
            f"{alone[0]} must be given alone", why="a cause, or standard input, cannot be combined with other names",
            hint=str(gpunode("doctor", alone[0])),
        )  # fmt: skip
    recipe = _load_fleet_recipe(recipe_name, lock, named)
    if html:
        doctor_page.check_page_file(html, output)
    found = reports.find_fleet_reports(named)
    with output.open_report_screen() as screen:
        census, answers = Census(), []
        for row in fleet_rows(found, census, recipe):
            answers.append(row)
            screen.show_fleet_row(row, len(answers), [one.name for one in found])
        summary = summarize_fleet(with_outliers(answers, census.group_by_model()))
        if html:
            doctor_page.write_page(html, _render_page(summary, named, recipe))
        if html != doctor_page.STANDARD_OUTPUT:
            screen.show_fleet(summary, page=html)
    output.emit(_fleet_envelope(summary, html, recipe), changed_nothing=True)


def _load_fleet_recipe(name: str, lock: str, named: Sequence[str]) -> Recipe | None:
    """Return the named recipe with its lock, or the recipe that the lock names; None without both.

    Raises:
        UsageError: if the lock names a recipe that is not shipped, whose file is unknown.
    """
    if not (name or lock):
        return None
    from gpunode import builtin
    from gpunode.cli.inputs import RecipeOptions
    from gpunode.cli.lockfiles import read_lock

    recipe_name = name or read_lock(lock).recipe
    if not name and recipe_name not in builtin.names():
        raise UsageError(
            f"{lock} was written with the recipe {recipe_name!r}, which does not come with gpunode",
            why="a lock file does not say where its recipe is",
            hint=f"name the file: {gpunode('doctor', *named, '--recipe', f'{recipe_name}.toml', '--lock', lock)}",
        )
    return RecipeOptions(recipe_name, lock=lock).load()


def _path_exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except OSError:
        return True  # perhaps: reading it tells what is in the way


def _render_page(summary: FleetSummary, named: Sequence[str], recipe: Recipe | None) -> str:
    from gpunode.cli.doctor_page import current_time
    from gpunode.page.fleet import fleet_page
    from gpunode.page.frame import PageOrigin

    source = Path(named[0]).name if len(named) == 1 else f"{len(named)} names"
    return fleet_page(
        summary, PageOrigin("", f"reports in {source}", current_time(), __version__), _reference_label(recipe)
    )


def _reference_label(recipe: Recipe | None) -> str:
    """Return the names of the recipe and lock that nodes were compared with; empty if none."""
    if recipe is None:
        return ""
    return f"recipe {recipe.name}" + (f", lock {Path(recipe.lock.file).name}" if recipe.lock else "")


def _fleet_envelope(summary: FleetSummary, page: str, recipe: Recipe | None) -> Envelope:
    from gpunode.workflow.fleet import overall_verdict

    kind = EXIT_KINDS[overall_verdict(summary.rows)]
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
    return Envelope(
        "doctor",
        status=kind.status if kind else "ok",
        exit_code=kind.exit_code if kind else 0,
        result={**result, **({"page": page} if page else {})},
    )
