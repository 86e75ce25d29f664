"""doctor of many reports: the fleet's picture on the screen, as one page, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpunode import __version__
from gpunode.cli.envelope import Envelope
from gpunode.cli.output_options import KINDS, OutputOptions
from gpunode.command import gpunode
from gpunode.diagnoses import rules_by_cause
from gpunode.errors import UsageError

if TYPE_CHECKING:
    from gpunode.recipe import Recipe
    from gpunode.workflow.picture import FleetSummary


def fleet(named: Sequence[str], how: OutputOptions, html: str, recipe_name: str, lock: str) -> None:
    """Diagnoses all reports, each by itself, against those of its model, and against the recipe where one is named."""
    from gpunode.cli import doctor_page
    from gpunode.diagnoses.fleet_comparison import Census
    from gpunode.host import reports
    from gpunode.workflow.fleet import fleet_rows, with_outliers
    from gpunode.workflow.picture import summarize_fleet

    if alone := [name for name in named if name == "-" or (name in rules_by_cause() and not _exists(name))]:
        raise UsageError(
            f"{alone[0]} must be given alone", why="a cause, or standard input, cannot be combined with other names",
            hint=str(gpunode("doctor", alone[0])),
        )  # fmt: skip
    recipe = _recipe(recipe_name, lock, named)
    if html:
        doctor_page.check_page_file(html, how)
    found = reports.fleet(named)
    with how.report_screen() as screen:
        census, answers = Census(), []
        for row in fleet_rows(found, census, recipe):
            answers.append(row)
            screen.show_fleet_row(row, len(answers), [one.name for one in found])
        seen = summarize_fleet(with_outliers(answers, census.group_by_model()))
        if html:
            doctor_page.write_page(html, _page(seen, named, recipe))
        if html != doctor_page.STANDARD_OUTPUT:
            screen.show_fleet(seen, page=html)
    how.answer(_envelope(seen, html, recipe), changed_nothing=True)


def _recipe(name: str, lock: str, named: Sequence[str]) -> Recipe | None:
    """The recipe that was named, with its lock: without a name that for which the lock was made; None without both.

    Raises:
        UsageError: the lock was made for a recipe of somebody's own, of which it tells the name and not the place.
    """
    if not (name or lock):
        return None
    from gpunode import builtin
    from gpunode.cli.compose import Wanted
    from gpunode.cli.lockfiles import read_lock

    wanted = name or read_lock(lock).recipe
    if not name and wanted not in builtin.names():
        raise UsageError(
            f"{lock} was written with the recipe {wanted!r}, which does not come with gpunode",
            why="a lock file does not say where its recipe is",
            hint=f"name the file: {gpunode('doctor', *named, '--recipe', f'{wanted}.toml', '--lock', lock)}",
        )
    return Wanted(wanted, lock=lock).read()


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except OSError:
        return True  # perhaps: reading it tells what is in the way


def _page(seen: FleetSummary, named: Sequence[str], recipe: Recipe | None) -> str:
    from gpunode.cli.doctor_page import current_time
    from gpunode.page.fleet import fleet_page
    from gpunode.page.frame import PageOrigin

    source = Path(named[0]).name if len(named) == 1 else f"{len(named)} names"
    return fleet_page(seen, PageOrigin("", f"reports in {source}", current_time(), __version__), _held_against(recipe))


def _held_against(recipe: Recipe | None) -> str:
    """The recipe, and the lock, that the nodes were held against; empty where none was."""
    if recipe is None:
        return ""
    return f"recipe {recipe.name}" + (f", lock {Path(recipe.lock.file).name}" if recipe.lock else "")


def _envelope(seen: FleetSummary, page: str, recipe: Recipe | None) -> Envelope:
    from gpunode.workflow.picture import overall_verdict

    kind = KINDS[overall_verdict(seen.rows)]
    result: dict[str, object] = {
        "reports": seen.rows,
        "causes": seen.causes,
        "differences": seen.odd,
        "layers": seen.layers,
        "versions": seen.spread,
        "models": seen.models,
        "unread": seen.unread,
    }
    if recipe is not None:
        result |= {"recipe": _held_against(recipe), "drift": seen.drift, "not_compared": seen.undrifted}
    return Envelope(
        "doctor",
        status=kind.status if kind else "ok",
        exit_code=kind.exit_code if kind else 0,
        result={**result, **({"page": page} if page else {})},
    )
