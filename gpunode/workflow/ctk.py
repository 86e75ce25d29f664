"""ctk: edit a runtime's configuration alone: check, journal, reload on request; and compare it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from gpunode.change import Change, FileChange, is_generated
from gpunode.errors import ChangeFailed, GpunodeError, Interrupted
from gpunode.facts import systemd
from gpunode.facts.evidence import Probe
from gpunode.facts.model import Fact, Known, Unit, Unknown
from gpunode.facts.probes import TOOLKIT_LIST, unit_probe
from gpunode.host.port import Host, HostView, Settled
from gpunode.host.runtime import differences
from gpunode.journal.record import CONFIGURATION
from gpunode.journal.store import Store
from gpunode.runtimes import RUNTIMES, Configured, Runtime
from gpunode.steps import cdi
from gpunode.steps.runtime_config import RUNTIME_CONFIG
from gpunode.workflow.apply import Applier
from gpunode.workflow.converge import survey
from gpunode.workflow.edits import Draft, by_cdi
from gpunode.workflow.events import Observer
from gpunode.workflow.setup import NO_DAEMON, refuse_while_running

CtkVerb: TypeAlias = Literal["configure", "unconfigure"]
Effective: TypeAlias = Callable[[str], Configured | None]
_BOOTED = "/run/systemd/system"
_NOT_ASKED = "not restarted: --restart was not given"


@dataclass(frozen=True, slots=True)
class Asked:
    """How it was asked for.

    Attributes:
        version: of gpunode, for the journal; likewise ``argv``.
        restart: whether the daemon is made to read what was written.
        pause: called before anything is written; raises Interrupted when the end was asked for.
    """

    verb: CtkVerb
    version: str
    argv: tuple[str, ...] = ()
    restart: bool = False
    pause: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Done:
    """What was done; ``run`` is the journal's name for it, ``checked`` what the runtime's own parser said before."""

    run: str
    settled: tuple[Settled, ...] = ()
    checked: str = ""


def unread(host: HostView, draft: Draft) -> bool:
    """Whether the daemon has failed, may fail yet at its start, or is older than one of its files.

    Where a time is unknown, nobody can tell.
    """
    if draft.trigger is None or draft.trigger.kind == "cdi":
        return False
    unit = _unit(host, draft.trigger.target)
    if _has_failed(unit) or _is_starting(unit):
        return True
    if not isinstance(unit, Known) or unit.value.started_at is None:
        return False
    since = max(unit.value.started_at, (draft.reloads and unit.value.changed_at) or 0.0)
    # What registers the runtime by itself does so at a start that finds the toolkit.
    came = _changed(host, TOOLKIT_LIST) if draft.overlooked else 0.0
    return came > since or any(_changed(host, path) > since for path in draft.present if path in draft.own)


def has_failed(host: HostView, draft: Draft) -> bool:
    """Whether the daemon should run and could not."""
    if draft.trigger is None or draft.trigger.kind == "cdi":
        return False
    return _has_failed(_unit(host, draft.trigger.target))


def _has_failed(unit: Fact[Unit]) -> bool:
    return isinstance(unit, Known) and unit.value.failed and not unit.value.masked


def _is_starting(unit: Fact[Unit]) -> bool:
    return isinstance(unit, Known) and unit.value.starting


def _changed(host: HostView, path: str) -> float:
    """When the file was last changed; 0 where nobody can tell."""
    owner = host.look(Probe(f"file:{path}", path=path)).ownership
    return owner.changed or 0.0 if owner else 0.0


def reread(draft: Draft) -> Draft:
    """The same, its files as they are, for a daemon that has not read them."""
    state = draft.present.get(draft.main)
    owes = frozenset({draft.trigger}) if draft.trigger else frozenset()
    return replace(draft, changes=(FileChange(draft.main, state, state, owes),))


def _unit(host: HostView, name: str) -> Fact[Unit]:
    probe = unit_probe(name)
    told = host.look(probe)
    if told.outcome != "ok":
        return Unknown(told.error or told.outcome, probe.key)
    try:
        found = systemd.units(told.text).get(name)
    except ValueError as error:
        return Unknown(str(error), probe.key)
    return Known(found, probe.key) if found else Unknown("systemctl does not show it", probe.key)


def has_systemd(host: HostView) -> bool:
    """Whether systemd runs here (sd_booted(3))."""
    return bool(host.look(Probe("systemd-booted", glob=_BOOTED, contents=False)).data)


def was_skipped(host: HostView, draft: Draft, done: Done) -> bool:
    """Whether the daemon should have read its files and was not made to, though it may run: its socket is there."""
    skipped = any(one.trigger == draft.trigger and one.skipped for one in done.settled)
    socket = next((row.socket for row in RUNTIMES if row.id == draft.about), "")
    if not skipped or not socket or has_systemd(host):
        return False
    return bool(host.look(Probe("runtime-socket", glob=socket, contents=False)).data)


def refuse_disruption(host: HostView, draft: Draft) -> None:
    """Nothing, unless reading the files again would stop running containers.

    Raises:
        DrainRequired: it would; they are named.
        Undetermined: the daemon does not say what runs.
    """
    if draft.stops and draft.trigger:
        refuse_while_running(_unit(host, draft.trigger.target), host, "continue with --allow-disruption")


def carry_out(draft: Draft, host: Host, store: Store, asked: Asked, tell: Observer) -> Done:
    """The files are as drafted, all of them or none; with ``asked.restart`` the daemon has read them.

    Raises:
        Refused: the runtime's own parser does not take them; nothing was written.
        ChangeFailed: one could not be written, or the daemon did not come back; what was put back is said.
        Conflict: somebody edited one meanwhile; the others are as they were.
    """
    host.vet(draft.changes)
    asked.pause()
    owes = draft.trigger is not None and draft.trigger not in store.owed()
    unsettled = tuple(change for change in store.unsettled() if draft.trigger in change.triggers)
    run = store.begin(asked.verb, version=asked.version, argv=asked.argv)
    applier = Applier(host, run, tell, lambda: None, unsettled)
    try:
        # After the run has begun: should it be killed meanwhile, the next one takes the candidates away.
        is_new = any(change.before != change.after for change in draft.changes)
        checked = host.check(draft.expectation, draft.changes) if draft.expectation and is_new else ""
        _write(applier, draft, checked, owes=owes)
        settled = _settle(applier, draft, asked, owes=owes)
    except GpunodeError as error:
        run.commit("interrupted" if isinstance(error, Interrupted) else "failed", error.what)
        raise
    except BaseException as error:
        run.commit("failed", f"a bug: {type(error).__name__}")
        raise
    run.commit("done")
    return Done(run.id, settled, checked)


def _write(applier: Applier, draft: Draft, checked: str, *, owes: bool) -> None:
    try:
        for change in draft.changes:
            note = checked if change is draft.changes[-1] else ""
            applier.one(CONFIGURATION, step_of(change), change, draft.how, note)
        if draft.expectation:
            applier.host.read_back(draft.expectation)
    except GpunodeError as failure:
        # A drop-in that nothing imports, or an import that leads nowhere: half of it is worse than nothing.
        if applier.take_back(failure) and draft.trigger and owes:
            applier.run.settle(draft.trigger, "put back before any daemon read it")
        raise


def step_of(change: Change) -> str:
    """The id of setup's step that makes such a change."""
    return cdi.CDI.id if is_generated(change) else RUNTIME_CONFIG.id


def _settle(applier: Applier, draft: Draft, asked: Asked, *, owes: bool) -> tuple[Settled, ...]:
    """The daemon has read the files, where that was asked for; ``owes`` says that no earlier run owes the same."""
    if draft.trigger is None:
        return ()
    if asked.restart or draft.trigger.kind == "cdi":
        if draft.expectation:
            applier.expect(draft.expectation, draft.trigger)
        return applier.settle((draft.trigger,))
    if owes:
        # Else the next setup would take it for a debt of a run that was cut short.
        applier.run.settle(draft.trigger, _NOT_ASKED)
    return ()


def conclude(store: Store) -> None:
    """An edit that was cut short, and of which nothing is left to do, is over."""
    cut = store.cut_short()
    if cut is not None and cut.begin.verb in {"configure", "unconfigure"}:
        store.conclude(cut.begin.run, "cut short; a later run found nothing left to do")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a runtime is configured as requested.

    Attributes:
        pending: whether its files are not.
        otherwise: how the running daemon differs from its files; empty when it does not.
        untold: why the daemon was not asked; empty when it was.
        failed: whether that is because its service has failed.
    """

    pending: bool = False
    otherwise: str = ""
    untold: str = ""
    failed: bool = False


def offered(host: HostView, row: Runtime, *, image: bool) -> Verdict:
    """Whether the runtime finds in the specification what containers ask for.

    Raises:
        Undetermined: it cannot be told what there is.
    """
    from gpunode.workflow.cdi_checks import cdi_checks

    checks = tuple(cdi_checks(by_cdi(row), survey(host, image=image), host)) if not image else ()
    failed = tuple(check for check in checks if check.status == "failed")
    untold = (
        "nothing runs in an image" if image else "; ".join(c.detail for c in checks if c.id == "cdi" and not failed)
    )
    is_told = any(check.status == "passed" for check in checks)
    wrong = "; ".join(check.detail for check in failed)
    return Verdict(otherwise=wrong, untold="" if is_told or failed else untold)


def verdict(host: HostView, draft: Draft, effective: Effective, *, is_live: bool) -> Verdict:
    """Whether files and daemon are as ``draft`` would leave them.

    Args:
        host: the node.
        draft: of what was asked.
        effective: what the runtime has, by its name.
        is_live: whether this is the system that runs, and not an image's.

    Raises:
        Undetermined: the daemon answers root alone.
    """
    if draft.changes:
        return Verdict(pending=True)
    if not is_live:
        return Verdict(untold="nothing runs in an image")
    if not draft.is_usual:
        return Verdict(untold=f"it reads {draft.main} only if its command line names it")
    if untold := asleep(host, draft):
        return Verdict(untold=untold)
    if has_failed(host, draft):
        return Verdict(otherwise="it has failed; no process is running that could read its files", failed=True)
    if draft.trigger and draft.trigger.kind != "cdi" and _is_starting(_unit(host, draft.trigger.target)):
        return Verdict(untold="it is still starting; try again in a moment")
    if unread(host, draft):
        return Verdict(otherwise=draft.overlooked or "its files were changed after it read them last")
    if draft.expectation is None:
        return Verdict(untold="its configuration is generated when it starts, and it has no command that shows it")
    return _asked(draft, effective)


def asleep(host: HostView, draft: Draft) -> str:
    """Why no daemon has to read the files again; empty if one has to, or if that is unknown."""
    if draft.trigger is None:
        return "it notices changed files by itself"
    if draft.trigger.kind == "cdi":
        return f"{draft.about} has no daemon"
    unit = _unit(host, draft.trigger.target)
    if not isinstance(unit, Known) or unit.value.state.active or _has_failed(unit):
        return ""
    return "it is not running; it reads its files when it starts" if unit.value.exists else "it is not installed"


def _asked(draft: Draft, effective: Effective) -> Verdict:
    assert draft.expectation is not None, "what has a daemon has an expectation"
    try:
        found = effective(draft.about)
    except ChangeFailed as error:
        is_down = NO_DAEMON.search(error.why) is not None
        return Verdict(untold="it is not running") if is_down else Verdict(otherwise=f"{error.what}: {error.why}")
    if found is None:
        return Verdict(untold=f"{draft.about} is not installed")
    return Verdict(otherwise="\n".join(differences(draft.expectation, found)))
