"""The results of setup, rehearse, rollback and the smaller commands. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gpunode.cli.screen.changes import change_lines
from gpunode.cli.screen.checks import check_lines, inventory_text, match_text, state_note_lines, verdict_line
from gpunode.cli.screen.commands import (
    cluster_apply_command,
    rollback_command,
    root_option,
    setup_command,
    verify_command,
)
from gpunode.cli.screen.events import downtime_text, trigger_line
from gpunode.cli.screen.failures import next_lines
from gpunode.cli.screen.plans import note_line
from gpunode.cli.screen.text import BLANK, Line, Span, Style, indent_lines, line, pad_right, span
from gpunode.cli.screen.words import MARKS, count, format_seconds, join_names
from gpunode.command import Command, gpunode, sudo_gpunode
from gpunode.container_runtimes import takes_only_cdi
from gpunode.errors import RebootRequired, VerifyFailed
from gpunode.workflow.converge import selected_step_ids

if TYPE_CHECKING:
    from datetime import tzinfo

    from gpunode.change import FileChange, PackageChange
    from gpunode.errors import GpunodeError
    from gpunode.facts.evidence import ContentKind
    from gpunode.journal.history import RunSummary
    from gpunode.recipe import Recipe
    from gpunode.workflow.rehearse import Rehearsal
    from gpunode.workflow.rollback import NothingToUndo, RollbackResult
    from gpunode.workflow.setup import SetupResult
    from gpunode.workflow.undo import UndoPlan
    from gpunode.workflow.verify import VerifyReport

_RESTORED = "restored byte for byte"
_SHOWN = 6
_RUN_MARKS = (
    ("done", "done"),
    ("skipped", "undone since"),
    ("waits", "waits for a reboot"),
    ("failed", "did not finish"),
)


def converged_line(recipe: Recipe, done: SetupResult, report: VerifyReport) -> Line:
    """Return the line of a setup with nothing to do."""
    parts = [inventory_text(report.inventory)] if report.inventory else []
    passed = {check.id for check in report.checks if check.status == "passed"}
    if takes_only_cdi(recipe.runtime.name) and "cdi" in passed:
        parts.append(f"containers of {recipe.runtime.name} see the GPUs")
    elif "runtime" in passed:
        parts.append(f"{recipe.runtime.name} has the runtime nvidia")
    seen = f"; {', '.join(parts)}" if parts else ""
    found = match_text(recipe, selected_step_ids(recipe, done.preview), _subject_text(done))
    return line(
        MARKS["nothing"], f"nothing to do: {found}{seen}", span(f" ({format_seconds(done.seconds)})", "dim"), hang=2
    )


def _subject_text(done: SetupResult) -> str:
    return "the image" if done.facts.is_image else "this node"


def setup_lines(
    recipe: Recipe,
    done: SetupResult,
    report: VerifyReport,
    failure: GpunodeError | None,
    log: str,
    argv: Sequence[str],
    notes: Sequence[str] = (),
) -> Iterator[Line]:
    """Yield the result of setup: checks, duration, log, next command, undo command.

    ``notes``: those on the node's state that the preview did not show.
    """
    if not done.changed and failure is None:
        yield from state_note_lines(notes)
        yield converged_line(recipe, done, report)
        return
    if report.checks and (done.changed or report.failed):
        yield BLANK
        yield line(span("checks", "bold"))
        yield from indent_lines(tuple(check_lines(report.checks)), 2)
    yield BLANK
    yield from state_note_lines(notes)
    if isinstance(failure, RebootRequired):
        yield from reboot_lines(failure)
    elif failure is None:
        scope = selected_step_ids(recipe, done.preview)
        works_too = report.checks and not scope
        good = match_text(recipe, scope, "this node works and" if works_too else _subject_text(done))
        yield verdict_line(report, good)
    if done.changed:
        yield from _closing_lines(recipe, done, failure, log, argv)


def _closing_lines(
    recipe: Recipe, done: SetupResult, failure: GpunodeError | None, log: str, argv: Sequence[str]
) -> Iterator[Line]:
    down = downtime_text(done.settled)
    yield fact_line("took", format_seconds(done.seconds) + (f"; {down}" if down else ""))
    yield fact_line("log", log)
    if failure is None and root_option(argv):
        yield fact_line("next", "boot the image on its machine, then run gpunode verify there")
    elif failure is None:
        yield fact_line("next", verify_command(argv))
        if recipe.kubernetes and recipe.kubernetes.stack != "none" and "--apply-cluster" not in argv:
            yield fact_line("then", cluster_apply_command(argv))
    yield fact_line("undo", rollback_command(argv, done.run))


def fact_line(label: str, text: str | Command) -> Line:
    """Return a labelled line."""
    style: Style = "command" if isinstance(text, Command) else ""
    return line(span(f"  {pad_right(label, 6)}", "dim"), span(str(text), style), hang=8)


def reboot_lines(failure: GpunodeError) -> Iterator[Line]:
    """Yield the needed reboot: what, why, and the command."""
    yield line(Span("! ", "warn"), span(failure.what, "warn"), hang=2)
    yield from (line(span(f"  {text}"), hang=2) for text in failure.why.splitlines())
    yield from indent_lines(next_lines(failure.hint), 2)


def rehearsal_header_lines(recipe: Recipe, node: str) -> Iterator[Line]:
    """Yield the header of a rehearsal: nothing is really changed."""
    yield line(span("REHEARSAL", "warn"), f" of recipe {recipe.name} on the captured node {node}")
    yield line(span("Everything below happens in memory: this machine is not touched, no package is downloaded, no "
                    "driver is loaded.", "dim"))  # fmt: skip
    yield BLANK


def rehearsal_lines(done: Rehearsal, node: str, argv: Sequence[str]) -> Iterator[Line]:
    """Yield the checks, the rollback with each file compared, and the footer."""
    yield BLANK
    yield line(span("verify", "bold"), span("  what needs the real node is not run", "dim"))
    yield from indent_lines(tuple(check_lines(done.checks)), 2)
    if done.rollback is not None:
        yield BLANK
        yield line(span("rollback", "bold"), span(f"  of run {done.rollback.plan.undone_run}", "dim"))
        yield from indent_lines(tuple(_restore_lines(done.restored)), 2)
        yield from (trigger_line(one, rehearsed=True) for one in done.rollback.settled)
    yield BLANK
    ends = f" ends: this machine was not touched and no driver was loaded; the node was the capture {node}"
    yield line(span("REHEARSAL", "warn"), ends, hang=10)
    yield line(
        "next: ", span(str(setup_command(argv)), "command"), "  (on the node itself: this makes the changes)", hang=6
    )


def _restore_lines(restored: Mapping[str, bool]) -> Iterator[Line]:
    if not restored:
        yield line(MARKS["nothing"], span("no configuration file to restore", "dim"))
    for path, same in restored.items():
        mark = MARKS["passed" if same else "failed"]
        yield line(
            mark, f"{path} ", span(_RESTORED if same else "DIFFERS from what was captured", "" if same else "bad")
        )


def undo_plan_lines(back: UndoPlan, *, verbose: bool, is_lost: bool = False) -> Iterator[Line]:
    """Yield the plan of a rollback or removal: diffs, packages, units, and what it leaves.

    ``is_lost``: a record was lost, which an error reports.
    """
    if not back.steps and back.owed:
        yield line(span("nothing left to restore", "bold"), ", but an interrupted run left these actions:")
        yield from (line(f"    {trigger}") for trigger in back.owed)
    elif not back.steps:
        if not is_lost:
            what = "what is left is kept" if back.remarks else "gpunode added nothing to this node"
            yield line(MARKS["nothing"], f"nothing to remove: {what}")
    else:
        what = f"rollback of run {back.undone_run}" if back.undone_run else "remove everything that gpunode added"
        yield line(span(what, "bold"))
        yield from indent_lines(tuple(change_lines(back.changes, verbose=verbose)), 4)
    yield from (note_line(text) for text in back.remarks)
    if back.reboot:
        yield note_line(f"a reboot is needed afterwards: {back.reboot}")
    if back.left:
        yield note_line(f"not undone: {join_names(back.left, _SHOWN)}; --packages undoes that, too")


def already_undone_lines(found: NothingToUndo) -> Iterator[Line]:
    """Yield why there is nothing to undo, what remains of the run, and the run to undo next."""
    run = found.run
    yield line(MARKS["skipped"], f"run {run.number} ({describe_run(run)}) is already undone: {found.why}", hang=2)
    yield from (note_line(text) for text in found.notes)
    if found.standing is None:
        yield line("  ", "no other run is left to roll back", hang=2)
        return
    older = found.standing
    yield line("  ", f"the newest run that is not undone is {older.number} ({describe_run(older)})", hang=2)
    if found.command:
        yield line("next: ", span(f"sudo {found.command}", "command"), hang=6)


def describe_run(run: RunSummary) -> str:
    """Return the command of a run and what it changed: ``setup docker: /etc/docker/daemon.json``."""
    return f"{run.verb} {run.begin.recipe}".strip() + f": {join_names(run.subjects, _SHOWN) or 'nothing'}"


def rollback_lines(done: RollbackResult, failure: GpunodeError | None, argv: Sequence[str]) -> Iterator[Line]:
    """Yield what was restored, the downtime, what remains, and the undo command."""
    yield BLANK
    if done.whole:
        files = [count(len(done.plan.files), "file")] if done.plan.files else []
        parts = [*files, *_package_counts(done.plan.packages)]
        what = f": {', '.join(parts)}" if parts else ""
        former = f"as before run {done.plan.undone_run}" if done.plan.undone_run else "without what gpunode added"
        but = ", but for what follows" if done.plan.kept else ""
        if not isinstance(failure, VerifyFailed):
            yield line(MARKS["done"], f"the node is {former}{but}{what}", hang=2)
        yield from (note_line(str(kept)) for kept in done.plan.kept)
    else:
        yield from (line(MARKS["done"], f"{change.path} {_restore_text(change)}", hang=2) for change in done.plan.files)
    if isinstance(failure, RebootRequired):
        yield from reboot_lines(failure)
    if down := downtime_text(done.settled):
        yield fact_line("took", down)
    yield fact_line("undo", rollback_command(argv, done.run, *(["--packages"] if done.whole else [])))


def _restore_text(change: FileChange) -> str:
    return "removed" if change.after is None else _RESTORED


def _package_counts(packages: Sequence[PackageChange]) -> Iterator[str]:
    if back := sum(change.after is not None for change in packages):
        yield f"{count(back, 'package')} as before"
    if gone := sum(change.after is None for change in packages):
        yield f"{count(gone, 'package')} purged"


def downloaded_lines(packages: Sequence[str]) -> Iterator[Line]:
    """Yield the number of downloaded packages."""
    if not packages:
        yield line(MARKS["done"], "nothing to download: the packages are installed as they should be", hang=2)
        return
    yield line(MARKS["done"], f"{count(len(packages), 'package')} downloaded; nothing else was changed", hang=2)
    yield line("next: the same command without ", span("--download-only", "command"), " installs them", hang=2)


def leftover_lines(path: str, found: Sequence[str]) -> Iterator[Line]:
    """Yield a note about old versions that others left beside a file."""
    if found:
        yield note_line(f"beside {path} there are versions that gpunode did not write: {', '.join(found)}")


def runs_lines(
    runs: Sequence[RunSummary],
    previews: Mapping[str, str],
    folder: str,
    file: str = "",
    zone: tzinfo | None = None,
) -> Iterator[Line]:
    """Yield the recorded runs, the newest last: id, time, verb, result, changes.

    Args:
        runs: oldest first.
        previews: by run id, whether it can be undone now.
        folder: of records and backups.
        file: list only runs that changed it; empty for all.
        zone: of the times; this machine's when None.
    """
    if not runs:
        about = f"no recorded run of gpunode changed {file}" if file else "no run of gpunode is recorded on this node"
        yield line(span(about, "dim"))
        return
    from datetime import datetime

    width = max(len(run.run) for run in runs)
    for run in runs:
        mark, result = _run_result(run)
        when = datetime.fromtimestamp(run.begin.at, zone).astimezone(zone).strftime("%Y-%m-%d %H:%M")
        verb = f"rollback of {run.begin.undoes}" if run.begin.undoes else f"{run.verb} {run.begin.recipe}".strip()
        yield line(
            mark, span(pad_right(run.run, width), "bold"), f"  {when}  {verb}", span(result, "dim"), hang=width + 4
        )
        what = join_names(run.subjects, 6) or "nothing"
        yield line(Span(" " * (width + 4)), span(f"changed {what}", "dim"), hang=width + 4)
        yield line(Span(" " * (width + 4)), span(previews.get(run.run, "")), hang=width + 4)
    yield line(*(part for mark, text in _RUN_MARKS for part in (MARKS[mark], Span(f"{text}  "))))
    yield line(span(f"records in {folder}/runs, backups in {folder}/objects", "dim"))
    yield line("undo a run: ", span("sudo gpunode rollback RUN", "command"))


def _run_result(run: RunSummary) -> tuple[Span, str]:
    if run.commit is None:
        return MARKS["failed"], ", cut short"
    if run.commit.result == "done":
        return (MARKS["skipped"] if run.undone_by else MARKS["done"]), ""
    mark = MARKS["waits" if run.commit.result == "waiting" else "failed"]
    why = f": {run.commit.reason}" if run.commit.reason else ""
    return mark, f", {run.commit.result}{why}"


_HELD: Mapping[ContentKind, str] = {
    "table": "system tables (/proc, /sys, package database, lspci): as they are",
    "config": "configuration files: known settings; every other value is masked",
    "log": "logs, command lines and answers of tools: secrets are masked",
}


def capture_lines(file: str, contents: Mapping[ContentKind, tuple[int, int]], *, anonymized: bool) -> Iterator[Line]:
    """Yield the contents of a capture by group, with the number of masked items."""
    yield line(span(f"{file} will contain", "bold"))
    for holds, about in _HELD.items():
        number, changed = contents.get(holds, (0, 0))
        masked = f" (in {changed} of them)" if changed else ""
        yield line(f"  {number:>4}  {about}{masked}", hang=8)
    if anonymized:
        yield line("        serial numbers, UUIDs, MAC and IP addresses, host and user names are replaced", hang=8)
    else:
        yield line("        host names, serial numbers and addresses stay: --anonymize replaces them", hang=8)


def captured_lines(file: str, number: int, size: int, missing: Mapping[str, str]) -> Iterator[Line]:
    """Yield the capture's file and size, and the unreadable probes by reason."""
    yield line(MARKS["done"], f"{file}: {count(number, 'probe')}, {size / 1024:.0f} KiB", hang=2)
    for why in dict.fromkeys(missing.values()):
        yield note_line(f"could not read {', '.join(key for key, one in missing.items() if one == why)}: {why}")
    if "permission denied" in missing.values():
        yield note_line(f"root sees more: {sudo_gpunode('capture', file)}")
    yield line("next: ", span(str(gpunode("doctor", file)), "command"))


def recipes_lines(found: Mapping[str, str]) -> Iterator[Line]:
    """Yield the shipped recipes with their descriptions."""
    width = max(map(len, found), default=0)
    for name, description in found.items():
        yield line(span(pad_right(name, width), "bold"), f"  {description}", hang=width + 2)
    yield line("next: ", span("gpunode plan RECIPE", "command"))
