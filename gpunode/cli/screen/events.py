"""Lines for the events of a running workflow, and for its end. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpunode.change import (
    CONFFILES_STEP_ID,
    OBSOLETE_STEP_ID,
    OVERWRITTEN_STEP_ID,
    SET_ASIDE_STEP_ID,
    Change,
    PackageChange,
    Trigger,
    short_unit_name,
)
from gpunode.cli.screen.failures import hint_lines
from gpunode.cli.screen.text import STATE_MARK, Line, Span, Style, indent_lines, line, pad_right, span, warning_line
from gpunode.command import Command
from gpunode.host.port import TriggerResult
from gpunode.steps.daemons import GPU_SERVICES_STEP
from gpunode.steps.table import STEPS
from gpunode.wording import count_noun, format_seconds, join_with_and
from gpunode.workflow.events import TRANSACTION_STEP_ID, Applied

if TYPE_CHECKING:
    from gpunode.errors import GpunodeError


_TITLE_BY_STEP = {
    **{step.id: step.title for step in (*STEPS, GPU_SERVICES_STEP)},
    **dict.fromkeys((OBSOLETE_STEP_ID, SET_ASIDE_STEP_ID), "obsolete file"),
    CONFFILES_STEP_ID: "configuration file",
    OVERWRITTEN_STEP_ID: "overwritten file",
}
_TITLE_WIDTH = max(map(len, _TITLE_BY_STEP.values()))
# Shorter durations are not shown.
_MIN_SHOWN_DURATION_S = 0.05
RESTORED_PHRASE = "restored byte for byte"


def change_title(step: str, changes: Sequence[Change]) -> str:
    """Return the title of the change in progress."""
    if step == TRANSACTION_STEP_ID:
        return f"{count_noun(len(changes), 'package')} in one transaction"
    return changes[0].describe_progress(_TITLE_BY_STEP.get(step, step))


def trigger_title(triggers: Sequence[Trigger]) -> str:
    """Return the title of the triggers in progress."""
    return join_with_and([describe_trigger(trigger) for trigger in triggers[:2]]) + (" …" if len(triggers) > 2 else "")


def describe_trigger(trigger: Trigger) -> str:
    """Return what a trigger will do."""
    return trigger_words(trigger)[0]


def trigger_words(trigger: Trigger) -> tuple[str, str, str]:
    """Return what a trigger will do, its subject, and what was done."""
    unit = short_unit_name(trigger.target)
    match trigger.kind:
        case "index-refresh":
            file = trigger.target.rpartition("/")[2]
            name = file.removesuffix(".list").removesuffix(".sources") or "every repository"
            return f"read the package index of {name}", "package index", f"{name} read"
        case "daemon-reload":
            return "reload systemd's units", "systemd", "units reloaded"
        case "initramfs":
            return "rebuild the initramfs", "initramfs", "rebuilt"
        case "cdi":
            return "write the CDI specification", "CDI specification", "written"
        case "start":
            return f"start {unit} again", unit, "started again"
        case "reload":
            return f"reload {unit} (no downtime)", unit, "reloaded, no downtime"
        case "restart":
            return f"restart {unit}", unit, "restarted"


def applied_lines(event: Applied, *, rehearsed: bool) -> Iterator[Line]:
    """Yield the line of a change that was made, with its duration, or rehearsed."""
    did = ", ".join(_summarize_changes(event.changes))
    mark = Span("○ ", "dim") if rehearsed else STATE_MARK["done"]
    title = pad_right(_TITLE_BY_STEP.get(event.step, event.step), _TITLE_WIDTH)
    took = Span("") if rehearsed else _elapsed_span(event.seconds)
    yield line(Span("  "), mark, span(f"{title}  "), span(did), took, hang=_TITLE_WIDTH + 6)
    if event.note:
        yield line(Span(" " * (_TITLE_WIDTH + 6)), span(event.note, "dim"), hang=_TITLE_WIDTH + 6)


def _summarize_changes(changes: Sequence[Change]) -> Iterator[str]:
    packages = PackageChange.of_kind(changes)
    done = Counter("purged" if one.after is None else "marked" if one.is_mark else "installed" for one in packages)
    for number, word in enumerate(word for word in ("installed", "purged", "marked") if done[word]):
        yield f"{done[word] if number else count_noun(done[word], 'package')} {word}"
    yield from (change.summary for change in changes if change not in packages)


def trigger_line(one: TriggerResult, *, rehearsed: bool) -> Line:
    """Return the line of an executed trigger, with its downtime or duration."""
    _, about, done = trigger_words(one.trigger)
    mark, result = STATE_MARK["done"], list[str | Span]([done])
    if rehearsed:
        mark = Span("○ ", "dim")
    elif one.skipped:
        mark, result = STATE_MARK["skipped"], [span(one.skipped, "dim")]
    elif one.had_failed:
        result = ["started (it had failed before)"]
    elif one.trigger.kind == "restart":
        result = [f"restarted, down {format_seconds(one.seconds)}"]
    else:
        result.append(_elapsed_span(one.seconds))
    return line(Span("  "), mark, span(pad_right(about, _TITLE_WIDTH) + "  "), *result, hang=_TITLE_WIDTH + 6)


def _elapsed_span(elapsed: float) -> Span:
    return span(f"  {format_seconds(elapsed)}", "dim") if elapsed >= _MIN_SHOWN_DURATION_S else Span("")


def downtime_text(trigger_results: Sequence[TriggerResult]) -> str:
    """Return the downtime of every restarted daemon: ``containerd was down 0.4 s``."""
    down = [one for one in trigger_results if one.trigger.kind == "restart" and not one.skipped and not one.had_failed]
    return join_with_and(
        [f"{short_unit_name(result.trigger.target)} was down {format_seconds(result.seconds)}" for result in down]
    )


def labelled_line(label: str, text: str | Command) -> Line:
    """Return a labelled line."""
    style: Style = "command" if isinstance(text, Command) else ""
    return line(span(f"  {pad_right(label, 6)}", "dim"), span(str(text), style), hang=8)


def reboot_lines(failure: GpunodeError) -> Iterator[Line]:
    """Yield the needed reboot: what, why, and the command."""
    yield warning_line(failure.what, "warn")
    yield from (line(span(f"  {text}"), hang=2) for text in failure.why.splitlines())
    yield from indent_lines(hint_lines(failure.hint), 2)
