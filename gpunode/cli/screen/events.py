"""What a workflow tells while it goes on, as lines. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpunode.change import OBSOLETE, Change, CommandChange, PackageChange, Trigger, bare_unit
from gpunode.cli.screen.text import Line, Span, line, padded, span
from gpunode.cli.screen.words import MARKS, count, listed, owed, seconds, sentence, settled
from gpunode.host.port import Settled
from gpunode.steps.table import STEPS
from gpunode.workflow.events import Applied

_TITLES = {**{step.id: step.title for step in STEPS}, OBSOLETE: "obsolete file"}
_WIDTH = max(map(len, _TITLES.values()))
# What stays unsaid: nobody waits for it.
_NOTICEABLE_S = 0.05


def applying(step: str, changes: Sequence[Change]) -> str:
    """Return what is being done, for the line that moves."""
    match changes:
        case (CommandChange() as command,):
            return command.subject
        case (PackageChange(), *_):
            return f"{count(len(changes), 'package')} in one transaction"
        case _:
            return f"{_TITLES.get(step, step)}: {listed((change.subject for change in changes), 1)}"


def triggering(triggers: Sequence[Trigger]) -> str:
    """Likewise for triggers."""
    return sentence([owed(trigger) for trigger in triggers[:2]]) + (" …" if len(triggers) > 2 else "")


def applied_lines(event: Applied, *, rehearsed: bool) -> Iterator[Line]:
    """A change that has been made, with its seconds; or that would have been, in a rehearsal."""
    did = ", ".join(_summaries(event.changes))
    mark = Span("○ ", "dim") if rehearsed else MARKS["done"]
    title = padded(_TITLES.get(event.step, event.step), _WIDTH)
    took = Span("") if rehearsed else _took(event.seconds)
    yield line(Span("  "), mark, span(f"{title}  "), span(did), took, hang=_WIDTH + 6)
    if event.note:
        yield line(Span(" " * (_WIDTH + 6)), span(event.note, "dim"), hang=_WIDTH + 6)


def _summaries(changes: Sequence[Change]) -> Iterator[str]:
    packages = PackageChange.among(changes)
    if brought := sum(change.after is not None for change in packages):
        yield f"{count(brought, 'package')} installed"
    if gone := sum(change.after is None for change in packages):
        yield f"{gone} purged" if brought else f"{count(gone, 'package')} purged"
    yield from (change.summary for change in changes if change not in packages)


def settled_line(one: Settled, *, rehearsed: bool) -> Line:
    """A trigger that has been carried out: with its downtime where there is one, else its seconds."""
    about, done = settled(one.trigger)
    title = span(padded(about, _WIDTH) + "  ")
    if rehearsed:
        return line(Span("  "), Span("○ ", "dim"), title, done, hang=_WIDTH + 6)
    if one.skipped:
        return line(Span("  "), MARKS["not run"], title, span(one.skipped, "dim"), hang=_WIDTH + 6)
    if one.had_failed:
        return line(Span("  "), MARKS["done"], title, "started (it had failed before)", hang=_WIDTH + 6)
    if one.trigger.kind == "restart":
        return line(Span("  "), MARKS["done"], title, f"restarted, down {seconds(one.seconds)}", hang=_WIDTH + 6)
    return line(Span("  "), MARKS["done"], title, done, _took(one.seconds), hang=_WIDTH + 6)


def _took(elapsed: float) -> Span:
    return span(f"  {seconds(elapsed)}", "dim") if elapsed >= _NOTICEABLE_S else Span("")


def downtime(settled: Sequence[Settled]) -> str:
    """Every daemon that was down, with how long: ``containerd was down 0.4 s``."""
    down = [one for one in settled if one.trigger.kind == "restart" and not one.skipped and not one.had_failed]
    return sentence([f"{bare_unit(one.trigger.target)} was down {seconds(one.seconds)}" for one in down])


def stopped_line(title: str, elapsed: float) -> Line:
    """The change that was going on when the run stopped."""
    return line(Span("  "), MARKS["failed"], span(title, "bad"), span(f"  after {seconds(elapsed)}", "dim"), hang=4)
