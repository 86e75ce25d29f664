"""The commands that edit a container runtime's configuration by itself: configure, unconfigure and check."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpunode import __version__
from gpunode.change import Change
from gpunode.cli.changing import LOCK_TIMEOUT_S, UMASK, alone, swept, told_what_was_done
from gpunode.cli.commands import How
from gpunode.cli.compose import Stop, announcer, checked_root, need_root
from gpunode.cli.envelope import Envelope
from gpunode.cli.runtime_options import Hook, Typed, Wanted, absolute, wanted
from gpunode.cli.screen.edits import configure_command, draft_lines, read_again_command
from gpunode.cli.screen.plans import note as warning
from gpunode.cli.screen.printer import standard_error, standard_output
from gpunode.container_runtimes import CONTAINER_RUNTIMES
from gpunode.errors import ChangesPending, GpunodeError, Undetermined, UsageError, VerifyFailed
from gpunode.host.command_log import CommandLog
from gpunode.host.local import LocalHost
from gpunode.journal.footprint import Footprint
from gpunode.journal.history import made
from gpunode.journal.store import Store
from gpunode.runtimes import runtime
from gpunode.runtimes.model import BARE, INSTALLED
from gpunode.workflow import ctk, edits, programs
from gpunode.workflow.ctk import Asked, CtkVerb, Verdict
from gpunode.workflow.edits import Draft
from gpunode.workflow.events import Told
from gpunode.workflow.recovery import told

_WHY_ROOT = "it writes the configuration and keeps its journal in /var/lib/gpunode"
_WITHOUT_ROOT = "--dry-run shows what it would do, without root"


@dataclass(frozen=True, slots=True)
class Leave:
    """What configure and unconfigure may do beyond editing files.

    Attributes:
        dry_run: not even that.
        restart: have the daemon read them.
        allow_disruption: also where that stops containers.
        lock_timeout_s: how long they wait while another gpunode is at work.
    """

    dry_run: bool = False
    restart: bool = False
    allow_disruption: bool = False
    lock_timeout_s: float = LOCK_TIMEOUT_S


Drafting = Callable[[LocalHost, Footprint], Draft]


def configure(typed: Typed, hook: Hook, how: How, root: str, leave: Leave) -> None:
    """Has the runtime run containers by NVIDIA's binary; or writes an OCI hook, where that is asked for."""
    place = checked_root(root)
    if typed.is_hook:
        _make_hook(typed, hook, how, place, leave)
        return
    asked = wanted(typed, place)

    def drafting(host: LocalHost, footprint: Footprint) -> Draft:
        draft = _configuring(host, asked, footprint)
        programs.refuse_default(draft)
        return draft

    edit("ctk runtime configure", "configure", drafting, how, place, leave)


def _configuring(host: LocalHost, asked: Wanted, footprint: Footprint) -> Draft:
    if not asked.row.unit:
        draft = edits.specifying(host, asked.row, image=host.root != "/")
        return replace(draft, notes=(*asked.notes, *draft.notes))
    where = edits.place(host, asked.row, asked.wish, asked.dumps, image=host.root != "/")
    draft = programs.looked_for(host, edits.configuring(host, where.row, where.wish, footprint.files), host.root)
    return replace(draft, notes=(*asked.notes, *where.notes, *draft.notes))


def unconfigure(typed: Typed, how: How, root: str, leave: Leave) -> None:
    """Takes out what configure added."""
    place = checked_root(root)
    asked = wanted(typed, place)

    def drafting(host: LocalHost, footprint: Footprint) -> Draft:
        where = edits.place(host, asked.row, asked.wish, image=place != "/")
        draft = edits.unconfiguring(host, where.row, where.wish, footprint.files)
        return replace(draft, notes=(*where.notes, *draft.notes))

    edit("ctk runtime unconfigure", "unconfigure", drafting, how, place, leave)


def edit(
    command: str,
    verb: CtkVerb,
    drafting: Drafting,
    how: How,
    place: str,
    leave: Leave,
    without_root: str = _WITHOUT_ROOT,
) -> None:
    """Writes what ``drafting`` finds to be written, journaled; or shows it."""
    if leave.dry_run:
        _show(command, verb, drafting, how, place)
        return
    need_root(command, _WHY_ROOT, without_root)
    os.umask(UMASK)
    screen, log = how.screen(), CommandLog("ctk", root=place)
    stop = Stop(screen.stopping)
    store = Store(place, announce=announcer(place))
    host = LocalHost(place, stop.heeded(screen.progress), log, lock_timeout_s=leave.lock_timeout_s)
    with screen, alone(store, host, screen, leave.lock_timeout_s, others=False), stop:
        if (cut := swept(store, host)) is not None:
            screen.tell(Told(told(cut, "this command only edits the runtime's files")))
        draft = _with_links(drafting(host, store.footprint()), host)
        if leave.restart and not draft.changes and ctk.unread(host, draft):
            draft = ctk.reread(draft)
        screen.draft(verb, draft)
        if not draft.changes:
            ctk.conclude(store)
            how.answer(_answer(command, draft))
            return
        if leave.restart and not leave.allow_disruption:
            ctk.refuse_disruption(host, draft)
        asked = Asked(verb, __version__, tuple(sys.argv[1:]), restart=leave.restart, pause=stop.pause)
        with told_what_was_done(command, how, store):
            done = ctk.carry_out(draft, host, store, asked, screen.tell)
        if log.problem:
            screen.tell(Told(log.problem))
        failure = _unread(host, draft) if leave.restart and ctk.was_skipped(host, draft, done) else None
        is_read = (leave.restart and failure is None) or place != "/" or ctk.asleep(host, draft)
        following = "" if is_read else _following(host, draft, failed=ctk.has_failed(host, draft))
        screen.drafted(verb, draft, done, following, failure)
    answer = _failing(_answer(command, draft, changes=made(store.read(done.run))), failure)
    result = {**answer.result, "run": done.run, "triggers": done.settled, "checked": done.checked, "next": following}
    how.answer(replace(answer, result=result))


def _following(host: LocalHost, draft: Draft, *, failed: bool) -> str:
    """What makes the daemon read its files on this machine; empty where there is no such thing."""
    return read_again_command(draft, failed=failed, systemd=ctk.has_systemd(host))


def _unread(host: LocalHost, draft: Draft) -> VerifyFailed | None:
    """That a daemon which systemd could not restart has not read its files; None where it has."""
    verdict = ctk.verdict(host, replace(draft, changes=()), host.effective, is_live=True)
    # Of the others a tool tells what is in the files, and not what the daemon has.
    row = CONTAINER_RUNTIMES.get(draft.about)
    if row is not None and row.source == "docker info" and not verdict.otherwise:
        return None
    following = _following(host, draft, failed=False)
    return VerifyFailed(
        f"the files are written, but {draft.about} was not restarted: systemd is not running",
        why=verdict.otherwise or f"gpunode restarts {draft.about} only through systemd",
        hint=f"{following}\ngpunode ctk runtime check --runtime={draft.about}",
    )


def _failing(answer: Envelope, failure: GpunodeError | None) -> Envelope:
    if failure is None:
        return answer
    return replace(answer, status=failure.status, exit_code=failure.exit_code, errors=(failure,))


def _answer(command: str, draft: Draft, changes: Sequence[Change] = ()) -> Envelope:
    return Envelope(
        command,
        changed=bool(changes),
        changes=changes,
        steps={change: ctk.step_of(change) for change in changes},
        notes=draft.notes,
        result={"runtime": draft.about, "file": draft.main, "how": draft.how},
    )


def _show(command: str, verb: CtkVerb, drafting: Drafting, how: How, place: str) -> None:
    """What would be written: the files on standard output, as nvidia-ctk prints them, the diff on standard error."""
    footprint, note = _footprint(Store(place))
    host = LocalHost(place)
    draft = _with_links(drafting(host, footprint), host)
    if note and verb == "unconfigure":
        draft = replace(draft, notes=(*draft.notes, note))
    if not how.json:
        standard_output().raw("\n".join(_text(content) for content in edits.shown(draft)))
        if not how.quiet:
            standard_error().put(draft_lines(verb, draft, verbose=how.verbose))
    answer = _answer(command, draft, draft.changes)
    how.answer(replace(answer, result={**answer.result, "run": ""}))


def _with_links(draft: Draft, host: LocalHost) -> Draft:
    return replace(draft, notes=(*draft.notes, *host.elsewhere(draft.changes)))


def _footprint(store: Store) -> tuple[Footprint, str]:
    """What gpunode did here, for a look that needs no root: who may not read the journal is told what that means."""
    try:
        return store.footprint(), ""
    except UsageError as error:
        return Footprint(), f"{error.what}, so this was planned without it; run it with sudo for the exact plan"


def _text(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


def _make_hook(typed: Typed, hook: Hook, how: How, place: str, leave: Leave) -> None:
    """The OCI hook is written, or printed where no file is named; nothing else is touched."""
    from gpunode.runtimes import ocihook

    if not hook.path.startswith("/"):
        raise UsageError(
            f"--nvidia-runtime-hook-path={hook.path} is not an absolute path",
            why="container runtimes do not search PATH for hooks",
            hint="give the whole path: --nvidia-runtime-hook-path=/usr/bin/nvidia-container-runtime-hook",
        )
    content, path = ocihook.hook(hook.path), absolute("--oci-hook-path", hook.file, place)
    note = f"--config-mode={typed.config_mode} is deprecated: CDI and the NVIDIA runtime have taken the place of hooks"
    if not path or leave.dry_run:
        if not how.json:
            standard_output().raw(_text(content))
            if not how.quiet:
                standard_error().put([warning(note)])
        how.answer(Envelope("ctk runtime configure", notes=(note,), result={"hook": _text(content)}))
        return

    def drafting(host: LocalHost, _: Footprint) -> Draft:
        return edits.hooking(host, path, content, note)

    edit("ctk runtime configure", "configure", drafting, how, place, replace(leave, restart=False))


def check(typed: Typed, how: How, root: str) -> None:
    """Says whether files and daemon are as configure would leave them."""
    place = checked_root(root)
    asked = wanted(typed, place)
    host = LocalHost(place)
    draft = _as_found(host, asked, _footprint(Store(place))[0])
    if asked.row.unit or draft.changes:
        verdict = ctk.verdict(host, draft, host.effective, is_live=place == "/")
    else:
        verdict = ctk.offered(host, asked.row, image=place != "/")
    following = _following(host, draft, failed=verdict.failed) if place == "/" else ""
    how.screen().verdict(draft, verdict, following)
    how.answer(_judged(draft, verdict, following))


def _as_found(host: LocalHost, asked: Wanted, footprint: Footprint) -> Draft:
    """The draft; where only the program's path is spelled otherwise, as setup spells it, one without changes."""
    draft = _configuring(host, asked, footprint)
    if draft.changes and asked.wish.binary == BARE:
        by_path = _configuring(host, replace(asked, wish=replace(asked.wish, binary=INSTALLED)), footprint)
        return draft if by_path.changes else by_path
    return draft


def _is_daemon(draft: Draft) -> bool:
    return bool(runtime(draft.about).unit)


def _judged(draft: Draft, verdict: Verdict, following: str) -> Envelope:
    failure: GpunodeError | None = None
    if verdict.pending:
        again = str(configure_command(draft, sys.argv[1:]))
        failure = ChangesPending(f"{draft.about} is not configured as requested", hint=again)
    elif draft.missing:
        what = f"{draft.about} is configured to run {draft.missing}, which is not installed"
        failure = VerifyFailed(what, hint=str(draft.install))
    elif verdict.otherwise:
        what = f"the files of {draft.about} are correct, but its daemon has another configuration"
        if not _is_daemon(draft):
            what = f"{draft.about} cannot expose GPUs to containers"
        failure = VerifyFailed(what, why=verdict.otherwise, hint=following)
    elif verdict.untold and not _is_daemon(draft):
        what = f"cannot tell whether {draft.about} exposes GPUs to containers"
        failure = Undetermined(what, why=verdict.untold, hint="gpunode setup --runtime podman installs what is missing")
    answer = _answer("ctk runtime check", draft, draft.changes)
    untold = (f"the daemon was not asked: {verdict.untold}",) if verdict.untold else ()
    return _failing(replace(answer, notes=(*draft.notes, *untold)), failure)
