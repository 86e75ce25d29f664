"""The result of verify: checks and verdict. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpunode.cli.screen.failures import hint_lines
from gpunode.cli.screen.node import short_model_name
from gpunode.cli.screen.text import STATE_MARK, Line, Style, indent_lines, line, pad_right, span, warning_line
from gpunode.wording import count_noun, join_names, join_with_and

if TYPE_CHECKING:
    from gpunode.check import Check
    from gpunode.facts.nvml import NvmlInventory
    from gpunode.recipe import Recipe
    from gpunode.workflow.verify import VerifyReport


_STYLE_BY_CHECK_STATUS: dict[str, Style] = {"passed": "", "failed": "bad", "skipped": "dim"}
_MAX_TITLE_WIDTH = 38


def check_lines(checks: Sequence[Check]) -> Iterator[Line]:
    """Yield a line for each check, with the hint below a failed one."""
    width = min(max((len(check.title) for check in checks), default=0), _MAX_TITLE_WIDTH)
    for check in checks:
        style = _STYLE_BY_CHECK_STATUS[check.status]
        title = pad_right(check.title, width)
        detail = f"not run: {check.detail}" if check.status == "skipped" else check.detail
        yield line(STATE_MARK[check.status], span(title, style), "  ", span(detail, "dim" if style == "dim" else ""),
                   hang=width + 4)  # fmt: skip
        if check.status == "failed" and check.hint.strip():
            yield from indent_lines(hint_lines(check.hint), 4)


def state_note_lines(notes: Sequence[str]) -> Iterator[Line]:
    """Yield a warning for each of the ``notes`` on the node's state."""
    return (warning_line(text, "warn") for text in notes)


def matches_recipe_text(recipe: Recipe, step_ids: Sequence[str], what: str = "this node") -> str:
    """Return a sentence that ``what``, or only the steps in ``step_ids``, matches the recipe."""
    if not step_ids:
        return f"{what} matches recipe {recipe.name}"
    verb = "matches" if len(step_ids) == 1 else "match"
    return f"{join_with_and(step_ids)} {verb} recipe {recipe.name}; the other steps were not checked"


def verdict_line(
    report: VerifyReport, good: str, unproven: str = "this node is not proven to work", *, is_proven: bool = False
) -> Line:
    """Return the verdict of the checks: ``good`` if all passed.

    Args:
        report: the checks.
        good: the sentence if all passed.
        unproven: the sentence if a check was not run.
        is_proven: accept skipped checks.
    """
    number, bad = len(report.checks), len(report.failed)
    idle = sum(check.status == "skipped" for check in report.checks)
    left_out = f", {idle} not run" if idle else ""
    if bad:
        return line(
            STATE_MARK["failed"], span(f"{bad} of {count_noun(number, 'check')} failed{left_out}", "bad"), hang=2
        )
    if idle and not is_proven:
        return line(STATE_MARK["skipped"], f"no check failed, {number - idle} passed{left_out}: {unproven}", hang=2)
    inventory_suffix = f" ({count_noun(idle, 'check')} not run)" if idle else ""
    inventory_suffix = f": {inventory_text(report.inventory)}" if report.inventory else inventory_suffix
    return line(STATE_MARK["passed"], span(good, "good"), inventory_suffix, hang=2)


def inventory_text(inventory: NvmlInventory) -> str:
    """Return driver and GPUs: ``driver 580.178.04, 1 GPU (GTX 1080)``."""
    names = join_names(dict.fromkeys(short_model_name(str(gpu.name)) for gpu in inventory.gpus))
    gpus = f"{count_noun(len(inventory.gpus), 'GPU')}{f' ({names})' if names else ''}"
    return f"driver {inventory.driver}, {gpus}"
