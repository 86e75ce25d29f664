"""What a person reads."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from gpunode.change import FileChange, diff, subject
from gpunode.errors import GpunodeError, UsageError
from gpunode.facts.model import Facts
from gpunode.host.port import Progress
from gpunode.journal.record import RunSummary
from gpunode.recipe import Recipe
from gpunode.steps.outcome import Planned
from gpunode.workflow.converge import StagePlan
from gpunode.workflow.events import Applied, Event, Told, Triggered
from gpunode.workflow.rehearse import Rehearsal
from gpunode.workflow.rollback import RollbackResult, Undoing
from gpunode.workflow.setup import SetupResult
from gpunode.workflow.status import Status
from gpunode.workflow.verify import Report


def show_error(error: GpunodeError) -> None:
    """What happened, why, what to do next; on standard error."""
    sys.stderr.write(f"gpunode: {error.what}\n")
    for text in (error.why, error.hint):
        if text:
            sys.stderr.write("".join(f"  {line}\n" for line in text.splitlines()))


class Screen:
    """Where a person reads; nothing is written when it is silent."""

    def __init__(self, *, verbose: bool, silent: bool) -> None:
        self.verbose, self.silent = verbose, silent

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str = "") -> None:
        if not self.silent:
            sys.stdout.write(text + "\n")

    def progress(self, progress: Progress) -> None:
        pass

    def tell(self, event: Event) -> None:
        match event:
            case Applied(changes=changes, seconds=seconds, note=note):
                self.say(f"  done {', '.join(subject(c) for c in changes)} ({seconds:.1f} s) {note}")
            case Triggered(settled=settled):
                self.say(f"  {settled.trigger} {settled.skipped or f'{settled.seconds:.1f} s'}")
            case Told(text=text):
                self.say(f"  {text}")
            case _:
                pass

    def confirm(self, plans: Sequence[StagePlan], *, yes: bool) -> None:
        self.stages(plans)
        if yes:
            return
        if not sys.stdin.isatty():
            raise UsageError("no terminal to ask on", why="setup changes this machine", hint="add --yes")
        if input("Go on? [y/N] ").strip().lower() not in {"y", "yes"}:
            raise UsageError("not confirmed; nothing was changed")

    def confirm_rollback(self, back: Undoing, *, yes: bool) -> None:
        self.confirm((), yes=yes)

    def plan(self, recipe: Recipe, facts: Facts, plans: Sequence[StagePlan]) -> None:
        self.stages(plans)

    def stages(self, plans: Sequence[StagePlan]) -> None:
        for stage in plans:
            for step in stage.steps:
                reason = getattr(step.outcome, "reason", "")
                self.say(f"{stage.stage:9} {step.step.title:24} {reason}")
                for change in step.changes:
                    self.say(f"    {subject(change)}")
                    if isinstance(change, FileChange):
                        for line in diff(change):
                            self.say(f"      {line}")
                if isinstance(step.outcome, Planned):
                    for note in step.outcome.notes:
                        self.say(f"    ! {note}")

    def setup(
        self, recipe: Recipe, done: SetupResult, report: Report, failure: GpunodeError | None, *, log: str
    ) -> None:
        self.report(recipe, report)
        if failure and not self.silent:
            show_error(failure)

    def report(self, recipe: Recipe, report: Report) -> None:
        for check in report.checks:
            self.say(f"{check.status:8} {check.title}: {check.detail}")

    def rehearsal_begins(self, recipe: Recipe, node: str) -> None:
        self.say(f"REHEARSAL of recipe {recipe.name} on the captured node {node}: nothing of this machine is touched")

    def rehearsal(self, recipe: Recipe, done: Rehearsal) -> None:
        self.say(str(done.checks))
        self.say(str(done.restored))

    def status(self, facts: Facts, found: Status) -> None:
        self.say(str(found))

    def runs(self, found: Sequence[RunSummary]) -> None:
        for run in found:
            self.say(f"{run.run} {run.verb} {', '.join(run.subjects)}")

    def undoing(self, back: Undoing) -> None:
        for change in back.changes:
            for line in diff(change):
                self.say(line)

    def rollback(self, done: RollbackResult) -> None:
        self.say(f"rolled back {done.of}; this is run {done.run}")

    def captured(self, file: str, count: int, failed: Sequence[str]) -> None:
        self.say(f"{file}: {count} probes, not readable: {failed}")

    def recipes(self, found: Mapping[str, str]) -> None:
        for name, description in found.items():
            self.say(f"{name:16} {description}")

    def recipe(self, name: str, text: str, whole: str) -> None:
        self.say(text)

    def recipe_is_good(self, file: str, found: Recipe) -> None:
        self.say(f"{file}: good")

    def from_node(self, text: str, output: str) -> None:
        self.say(text)
