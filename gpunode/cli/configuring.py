"""The commands that edit a container runtime's configuration by itself: configure, unconfigure and check."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from gpunode import __version__
from gpunode.change import Change, bare_unit
from gpunode.cli.changing import LOCK_TIMEOUT_S, Session, session, told_what_was_done
from gpunode.cli.compose import checked_root, need_root
from gpunode.cli.envelope import Envelope
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.runtime_options import Typed, Wanted, wanted
from gpunode.cli.screen.changes import diff_lines
from gpunode.cli.screen.commands import SHOWN_HOW, rollback_command, without
from gpunode.cli.screen.events import downtime
from gpunode.cli.screen.plans import note
from gpunode.cli.screen.printer import standard_error, standard_output
from gpunode.cli.screen.results import fact
from gpunode.cli.screen.text import BLANK, Line, indented, line, span
from gpunode.cli.screen.words import MARKS, sentence
from gpunode.command import Command, command, sudo_gpunode
from gpunode.container_runtimes import CONTAINER_RUNTIMES, takes_only_cdi
from gpunode.errors import ChangesPending, GpunodeError, Undetermined, UsageError, VerifyFailed
from gpunode.host.local import LocalHost
from gpunode.host.port import HostView
from gpunode.journal.footprint import Footprint
from gpunode.journal.history import made_changes
from gpunode.journal.store import Store
from gpunode.runtimes import runtime
from gpunode.runtimes.model import BARE, INSTALLED
from gpunode.steps.runtime_edits import refuse_default
from gpunode.workflow import ctk, edits
from gpunode.workflow.ctk import ConfigStatus, CtkVerb, EditOptions, EditResult
from gpunode.workflow.edits import CtkPlan
from gpunode.workflow.recovery import describe_interrupted_run


def plan_lines(verb: CtkVerb, plan: CtkPlan, *, verbose: bool) -> Iterator[Line]:
    """What is to be written and why there, as a diff of each file; one line when nothing is."""
    if not plan.files:
        yield line(
            MARKS["waits" if plan.missing_program else "nothing"], f"nothing to do: {_as_asked(verb, plan)}", hang=2
        )
    elif not plan.changed_files:
        yield line(span(plan.about, "bold"), f"  its files are correct, but {_reader(plan)} has not read them yet")
    else:
        yield line(span(plan.about, "bold"), "  ", span(plan.planned.reason), hang=len(plan.about) + 2)
        for change in plan.changed_files:
            yield from indented(tuple(diff_lines(change, whole=verbose)), 4)
    yield from (note(text) for text in plan.planned.all_notes)


def _as_asked(verb: CtkVerb, plan: CtkPlan) -> str:
    if verb == "unconfigure":
        return f"{plan.main or plan.about} names no such runtime"
    if takes_only_cdi(plan.about) or plan.registers_itself:
        return f"{plan.about}: {plan.planned.reason}"  # its own file says nothing of it
    return f"{plan.about} is configured as requested ({plan.main})"


def _reader(plan: CtkPlan) -> str:
    return bare_unit(plan.trigger.target) if plan.trigger else plan.about


def done_lines(
    verb: CtkVerb, plan: CtkPlan, done: EditResult, argv: Sequence[str], following: str, *, is_unread: bool = False
) -> Iterator[Line]:
    """That it is done, the command that makes the daemon read it, if ``following`` is one, and what undoes it.

    ``is_unread``: the daemon was to read the files and did not, so only that they are written is done.
    """
    yield BLANK
    outcome = f"{sentence([change.path for change in plan.files])} written" if is_unread else _outcome(verb, plan)
    yield line(MARKS["waits" if plan.missing_program else "done"], outcome, hang=2)
    if down := downtime(done.settled):
        yield fact("took", down)
    if following:
        yield fact("next", following)
        if plan.planned.disrupts:
            yield fact("", f"it stops all {plan.planned.disrupts}, since live-restore is off")
    if any(not change.is_generated for change in plan.changed_files):
        yield fact("undo", rollback_command(argv, done.run))


def _outcome(verb: CtkVerb, plan: CtkPlan) -> str:
    if plan.planned.expectation is None and verb == "configure":
        return f"{plan.about} written: {sentence([change.path for change in plan.files])}"
    if verb == "unconfigure":
        return f"{plan.about}: what configure added is gone"
    assert plan.planned.expectation is not None, "what is configured without one has been told"
    default = ", its default" if plan.planned.expectation.default else ""
    runs = sentence(
        [f"{name}{default}, which runs {binary}" for name, binary in sorted(plan.planned.expectation.handlers)]
    )
    return f"{plan.about} has the runtime {runs}{'; install that first' if plan.missing_program else ''}"


def read_again_command(plan: CtkPlan, *, failed: bool, systemd: bool = True) -> str:
    """What makes the daemon read its files, one that has ``failed``, too; empty where there is none.

    ``systemd``: whether it runs here; else what is said works without it.
    """
    if plan.trigger is None:
        return ""
    kind, name = plan.trigger.kind, bare_unit(plan.trigger.target)
    if systemd:
        return str(command("sudo", "systemctl", "restart" if failed else kind, name))
    return "sudo kill -HUP $(pidof dockerd)" if kind == "reload" else f"restart {name} in the way it was started"


def verdict_lines(
    plan: CtkPlan, verdict: ConfigStatus, argv: Sequence[str], following: str, *, verbose: bool
) -> Iterator[Line]:
    """Whether files and daemon are as asked; ``following`` makes a daemon that is not read its files."""
    if verdict.pending:
        yield from plan_lines("configure", plan, verbose=verbose)
        yield line("next: ", span(str(configure_command(plan, argv)), "command"), hang=6)
        return
    if plan.missing_program:
        yield line(MARKS["failed"], f"{plan.main} names {plan.missing_program.program}, which is not installed", hang=2)
        yield line("next: ", span(str(plan.missing_program.install), "command"), hang=6)
        return
    is_told = not takes_only_cdi(plan.about) or not verdict.unverified
    yield line(MARKS["passed" if is_told else "not run"], _as_asked("configure", plan), hang=2)
    if verdict.difference:
        yield line(MARKS["failed"], f"{_reader(plan)} does not have it: {verdict.difference}", hang=2)
        if following:
            yield line("next: ", span(following, "command"), hang=6)
    elif verdict.unverified:
        yield line(MARKS["not run"], f"{_reader(plan)} was not asked: {verdict.unverified}", hang=2)
    else:
        yield line(MARKS["passed"], f"{_reader(plan)} reads it so", hang=2)
    yield from (note(text) for text in plan.planned.all_notes)


def configure_command(plan: CtkPlan, argv: Sequence[str]) -> Command:
    """The command that makes what ``argv``, a check, looked for; first what a default runtime needs to be one."""
    if (
        plan.missing_program
        and plan.missing_program.install
        and plan.planned.expectation
        and plan.planned.expectation.default
    ):
        return plan.missing_program.install
    words = ["configure" if word == "check" else word for word in without(argv, SHOWN_HOW, ())]
    return sudo_gpunode(*words)


_WHY_ROOT = "it writes the configuration and keeps its journal in /var/lib/gpunode"
_WITHOUT_ROOT = "--dry-run shows what it would do, without root"


@dataclass(frozen=True, slots=True)
class Permissions:
    """What configure and unconfigure may do beyond editing files.

    Attributes:
        dry_run: not even that.
        restart: have the daemon read them.
        allow_disruption: also where that stops containers.
        lock_timeout: how many seconds they wait while another gpunode is at work.
    """

    dry_run: bool = False
    restart: bool = False
    allow_disruption: bool = False
    lock_timeout: float = LOCK_TIMEOUT_S


Planning = Callable[[LocalHost, Footprint], CtkPlan]


def configure(typed: Typed, how: OutputOptions, root: str, permissions: Permissions) -> None:
    """Add NVIDIA's binary to the runtime's configuration."""
    place = checked_root(root)
    asked = wanted(typed, place)

    def planning(host: LocalHost, footprint: Footprint) -> CtkPlan:
        plan = _configuring(host, asked, footprint)
        if plan.target:
            refuse_default(plan.target, plan.missing_program)
        return plan

    edit("ctk runtime configure", "configure", planning, how, place, permissions)


def _configuring(host: LocalHost, asked: Wanted, footprint: Footprint) -> CtkPlan:
    if not asked.row.unit:
        return edits.plan_cdi_specification(host, asked.row, asked.notes, image=host.root != "/")
    target = edits.find_target(host, asked.row, asked.desired, asked.dumps, image=host.root != "/")
    target = replace(target, notes=(*asked.notes, *target.notes))
    return edits.plan_configuring(host, target, edits.recorded_edits(footprint.files), host.root)


def unconfigure(typed: Typed, how: OutputOptions, root: str, permissions: Permissions) -> None:
    """Takes out what configure added."""
    place = checked_root(root)
    asked = wanted(typed, place)

    def planning(host: LocalHost, footprint: Footprint) -> CtkPlan:
        return edits.plan_unconfiguring(
            edits.find_target(host, asked.row, asked.desired, image=place != "/"), footprint.files
        )

    edit("ctk runtime unconfigure", "unconfigure", planning, how, place, permissions)


def edit(
    command: str,
    verb: CtkVerb,
    planning: Planning,
    how: OutputOptions,
    place: str,
    permissions: Permissions,
    without_root: str = _WITHOUT_ROOT,
) -> None:
    """Writes what ``planning`` finds to be written, journaled; or shows it."""
    if permissions.dry_run:
        _show(command, verb, planning, how, place)
        return
    need_root(command, _WHY_ROOT, without_root)
    with session("ctk", how, place, permissions.lock_timeout, others=False) as node:
        if (cut := node.swept()) is not None:
            node.tell(describe_interrupted_run(cut, "this command only edits the runtime's files"))
        plan = _with_links(planning(node.host, node.store.footprint()), node.host)
        plan = ctk.with_restart_choice(plan, restart=permissions.restart)
        node.screen.put(*plan_lines(verb, plan, verbose=how.verbose))
        if plan.files:
            answer = _carried_out(command, verb, plan, node, how, permissions)
        else:
            ctk.conclude_interrupted_edit(node.store)
            answer = _answer(command, plan)
    how.answer(answer)


def _carried_out(
    command: str, verb: CtkVerb, plan: CtkPlan, node: Session, how: OutputOptions, permissions: Permissions
) -> Envelope:
    """The plan is done, and shown with what follows; returns the answer."""
    host, restart = node.host, permissions.restart
    if restart and not permissions.allow_disruption:
        ctk.refuse_disruption(host, plan)
    asked = EditOptions(verb, __version__, tuple(sys.argv[1:]), restart=restart, pause=node.stop.pause)
    with told_what_was_done(command, how, node.store):
        done = ctk.apply_edit(plan, host, node.store, asked, node.screen.tell)
    node.tell(node.log.problem)
    failure = _unread(host, plan) if restart and ctk.reload_was_skipped(host, plan, done) else None
    is_read = (restart and failure is None) or host.root != "/" or ctk.why_no_reload(plan)
    following = "" if is_read else following_command(host, plan, failed=ctk.daemon_has_failed(plan))
    shown, unread = "" if failure else following, failure is not None
    node.screen.conclude(done_lines(verb, plan, done, node.screen.argv, shown, is_unread=unread), failure)
    answer = _answer(command, plan, changes=made_changes(node.store.read(done.run))).ending_in(failure)
    result = {**answer.result, "run": done.run, "triggers": done.settled, "checked": done.checked, "next": following}
    return replace(answer, result=result)


def following_command(host: HostView, plan: CtkPlan, *, failed: bool) -> str:
    """Return what makes the daemon read its files on this machine; empty where none runs, or needs it."""
    systemd = ctk.has_systemd(host)
    if not systemd and not ctk.has_socket(host, plan):
        return ""  # no daemon runs that could read them again
    return read_again_command(plan, failed=failed, systemd=systemd)


def _unread(host: LocalHost, plan: CtkPlan) -> VerifyFailed | None:
    """That a daemon which systemd could not restart has not read its files; None where it has."""
    verdict = ctk.compare_with_plan(plan.with_changes(()), host.effective, is_live=True)
    # Of the others a tool tells what is in the files, and not what the daemon has.
    row = CONTAINER_RUNTIMES.get(plan.about)
    if row is not None and row.source == "docker info" and not verdict.difference:
        return None
    following = following_command(host, plan, failed=False)
    return VerifyFailed(
        f"the files are written, but {plan.about} was not restarted: systemd is not running",
        why=verdict.difference or f"gpunode restarts {plan.about} only through systemd",
        hint=f"{following}\ngpunode ctk runtime check --runtime={plan.about}",
    )


def _answer(command: str, plan: CtkPlan, changes: Sequence[Change] = ()) -> Envelope:
    return Envelope(
        command,
        changed=bool(changes),
        changes=changes,
        steps=dict.fromkeys(changes, plan.step.id),
        notes=plan.planned.all_notes,
        result={"runtime": plan.about, "file": plan.main, "how": plan.planned.reason},
    )


def _show(command: str, verb: CtkVerb, planning: Planning, how: OutputOptions, place: str) -> None:
    """What would be written: the files on standard output, as nvidia-ctk prints them, the diff on standard error."""
    footprint, note = _footprint(Store(place))
    host = LocalHost(place)
    plan = ctk.with_restart_choice(_with_links(planning(host, footprint), host), restart=False)
    if note and verb == "unconfigure":
        plan = plan.with_notes(note)
    if not how.json:
        standard_output().raw("\n".join(_text(content) for content in edits.preview_files(plan)))
        if not how.quiet:
            standard_error().put(plan_lines(verb, plan, verbose=how.verbose))
    answer = _answer(command, plan, plan.files)
    how.answer(replace(answer, result={**answer.result, "run": ""}))


def _with_links(plan: CtkPlan, host: LocalHost) -> CtkPlan:
    return plan.with_notes(*host.elsewhere(plan.files))


def _footprint(store: Store) -> tuple[Footprint, str]:
    """What gpunode did here, for a look that needs no root: who may not read the journal is told what that means."""
    try:
        return store.footprint(), ""
    except UsageError as error:
        return Footprint(), f"{error.what}, so this was planned without it; run it with sudo for the exact plan"


def _text(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


def check(typed: Typed, how: OutputOptions, root: str) -> None:
    """Says whether files and daemon are as configure would leave them."""
    place = checked_root(root)
    asked = wanted(typed, place)
    host = LocalHost(place)
    plan = _as_found(host, asked, _footprint(Store(place))[0])
    if asked.row.unit or plan.changed_files:
        verdict = ctk.compare_with_plan(plan, host.effective, is_live=place == "/")
    else:
        verdict = ctk.check_cdi_devices(host, asked.row, image=place != "/")
    following = following_command(host, plan, failed=verdict.failed) if place == "/" else ""
    screen = how.screen()
    screen.put(*verdict_lines(plan, verdict, screen.argv, following, verbose=how.verbose))
    how.answer(_judged(plan, verdict, following))


def _as_found(host: LocalHost, asked: Wanted, footprint: Footprint) -> CtkPlan:
    """The plan; where only the program's path is spelled otherwise, as setup spells it, one without changes."""
    plan = _configuring(host, asked, footprint)
    if plan.changed_files and asked.desired.binary == BARE:
        by_path = _configuring(host, replace(asked, desired=replace(asked.desired, binary=INSTALLED)), footprint)
        return plan if by_path.changed_files else by_path
    return plan


def _is_daemon(plan: CtkPlan) -> bool:
    return bool(runtime(plan.about).unit)


def _judged(plan: CtkPlan, verdict: ConfigStatus, following: str) -> Envelope:
    failure: GpunodeError | None = None
    if verdict.pending:
        again = str(configure_command(plan, sys.argv[1:]))
        failure = ChangesPending(f"{plan.about} is not configured as requested", hint=again)
    elif plan.missing_program:
        what = f"{plan.about} is configured to run {plan.missing_program.program}, which is not installed"
        failure = VerifyFailed(what, hint=str(plan.missing_program.install))
    elif verdict.difference:
        what = f"the files of {plan.about} are correct, but its daemon has another configuration"
        if not _is_daemon(plan):
            what = f"{plan.about} cannot expose GPUs to containers"
        failure = VerifyFailed(what, why=verdict.difference, hint=following)
    elif verdict.unverified and not _is_daemon(plan):
        what = f"cannot tell whether {plan.about} exposes GPUs to containers"
        failure = Undetermined(
            what, why=verdict.unverified, hint="install what is missing:\nsudo gpunode setup --runtime podman"
        )
    if verdict.unverified:
        plan = plan.with_notes(f"the daemon was not asked: {verdict.unverified}")
    return _answer("ctk runtime check", plan, plan.changed_files).ending_in(failure)
