"""The plan of a runtime's files, for setup's step and for ctk alike: changes, expectation, trigger and notes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpunode.change import FileChange, RuntimeExpectation, Trigger
from gpunode.command import Command, sudo_gpunode
from gpunode.errors import Refused
from gpunode.facts.model import Facts, Known, Unit
from gpunode.facts.probes import TOOLKIT_LIST
from gpunode.outcome import Planned
from gpunode.runtimes import ConfigEdit, DesiredConfig, Files, ObservedConfig, Runtime, after_edits
from gpunode.runtimes.found import States, contents, file_changes


@dataclass(frozen=True, slots=True)
class Target:
    """A runtime as the node has it, and what is desired of it.

    Attributes:
        row: as it is located on this node.
        present: the files that it reads.
        facts: of its unit, of the kubelet that uses it, and when its files were changed.
        notes: what the user should know of the choice of ``row``.
    """

    row: Runtime
    desired: DesiredConfig
    present: States
    facts: Facts
    notes: tuple[str, ...] = ()

    @property
    def main(self) -> str:
        """The file at the top, whether it changes or not."""
        return self.desired.config or self.row.config

    @property
    def is_usual(self) -> bool:
        """Whether ``main`` is the file that the runtime reads by itself."""
        config = self.desired.config
        usual = replace(self.desired, config="")
        return not config or config == self.row.located(self.row, contents(self.present), usual).config

    @property
    def own(self) -> frozenset[str]:
        """The files that say what it does; of the others that it reads some say how it is started."""
        return frozenset({self.main, self.desired.drop_in, *self.row.own_files} - {"", *self.row.generated})

    @property
    def unit(self) -> Unit | None:
        """What runs it; None where nobody can tell."""
        fact = self.facts.unit(self.row.unit)
        return fact.value if isinstance(fact, Known) else None

    @property
    def trigger(self) -> Trigger | None:
        """What makes its daemon read all of its files again; None where nothing need, or no unit runs it.

        A reload does not bring docker's features: where ctk is asked for them, nobody knows whether it has read them.
        Somebody else's edit of them is no reason for setup to stop containers.
        """
        row, files = self.row, contents(self.present)
        if not row.unit or row.watches:
            return None
        asks = self.desired.cdi and self.desired.exact
        unwritten = {path: content for path, content in files.items() if path != self.main}
        reloads = row.reloads and (not asks or row.takes_on_reload(unwritten, files, self.desired))
        return Trigger("reload" if reloads else "restart", row.unit)


def configuring(target: Target) -> Planned:
    """What registers the handler as desired.

    Raises:
        Refused: the files cannot be edited so.
    """
    row, desired, files = target.row, target.desired, contents(target.present)
    edited = row.configure(files, desired)
    written = after_edits(files, edited)
    after = row.inspect(written, desired)
    _check_default(row, desired, after)
    handler = (desired.handler, after.handlers.get(desired.handler, desired.binary))
    default = desired.handler if desired.default else after.default if desired.not_default else None
    meant = RuntimeExpectation(row.id, target.main, frozenset({handler}), default)
    registers = f"registers {desired.handler}{_default(desired)}"
    planned = planned_edits(target, edited, f"{registers}; {edited.how}", meant)
    if not planned.changes and row.unit and not row.product:
        planned = replace(planned, reason=f"{target.main} {registers}")
    # What is said of the edited files again is about them, not about the edits.
    lasting = row.configure(written, desired).notes if planned.change_notes else ()
    passing = tuple(note for note in planned.change_notes if note not in lasting)
    return replace(planned, notes=(*planned.notes, *lasting, *_cri_notes(target, after)), change_notes=passing)


def planned_edits(target: Target, edited: ConfigEdit, reason: str, meant: RuntimeExpectation) -> Planned:
    """The plan that makes the ``edited`` files, or has a daemon read them that is older than they are.

    Args:
        target: the runtime.
        edited: its files.
        reason: why they change.
        meant: what its parser must find in them; what a product makes of its files is there after its next start.
    """
    row, files = target.row, contents(target.present)
    expectation = None if row.product else meant
    notes = (*target.notes, *_masked(target))
    if not edited.edits:
        again = _unread(target, edited) or Planned((), edited.how)
        return replace(again, notes=(*notes, *edited.notes, *_overlooked(target, edited)), expectation=expectation)
    trigger = _read_by(target, after_edits(files, edited))
    triggers = frozenset({trigger}) if trigger else frozenset[Trigger]()
    changes = file_changes(edited, target.present, triggers, is_roots=target.is_usual)
    return Planned(changes, reason, notes, edited.notes, expectation, _disrupts(target, trigger))


def reread(target: Target, paths: Iterable[str], reason: str) -> Planned:
    """Changes without bytes, for a daemon that must read its files again."""
    trigger = target.trigger
    owed = frozenset({trigger}) if trigger else frozenset[Trigger]()
    states = ((path, target.present.get(path)) for path in paths)
    changes = tuple(FileChange(path, state, state, owed) for path, state in states)
    return Planned(changes, reason, disrupts=_disrupts(target, trigger))


def _unread(target: Target, edited: ConfigEdit) -> Planned | None:
    """What has the daemon read the files that are younger than it; None where none is, or a time is unknown."""
    row, unit, changed_at = target.row, target.unit, target.facts.changed_at
    if target.trigger is None:
        return None
    if unit is not None and unit.started_at is not None:
        since = max(unit.started_at, (row.reloads and unit.changed_at) or 0.0)
        if unread := [path for path in target.present if path in target.own and changed_at.get(path, 0.0) > since]:
            return reread(target, unread, f"{unread[0]} was changed after {row.unit} last read it")
    is_told = unit is not None and unit.started_at is not None
    # ctk asks for no restart of what it knows nothing of.
    if (
        edited.restart
        and row.config in changed_at
        and not _has_looked(target)
        and (is_told or not target.desired.exact)
    ):
        return reread(target, (row.config,), edited.restart)
    return None


def _has_looked(target: Target) -> bool:
    """Whether the unit was started after the toolkit came, so that another start would find no more."""
    unit, came = target.unit, target.facts.changed_at.get(TOOLKIT_LIST)
    return unit is not None and unit.started_at is not None and came is not None and unit.started_at > came


def _overlooked(target: Target, edited: ConfigEdit) -> tuple[str, ...]:
    """That a product which registers the handler by itself has not done so although it could."""
    if not edited.restart or not _has_looked(target):
        return ()
    row, desired = target.row, target.desired
    return (
        (
            f"{row.product} was started since the toolkit came and has not registered {desired.handler}: "
            f"{edited.restart}. Is {desired.binary} on its PATH? See `{row.product} --version` and "
            f"`systemctl show {row.unit} -p Environment`"
        ),
    )


def _masked(target: Target) -> tuple[str, ...]:
    if target.unit is None or not target.unit.masked:
        return ()
    return (f"{target.row.unit} is masked, so nothing reads {target.main} until it is unmasked",)


def enable_cri(row: Runtime) -> Command:
    """Return the command that switches containerd's CRI plugin on."""
    return sudo_gpunode("ctk", "runtime", "configure", f"--runtime={row.id}", "--enable-cri", "--restart")


def _cri_notes(target: Target, after: ObservedConfig) -> tuple[str, ...]:
    """That no kubelet can use the runtime as it is configured; nothing where one can."""
    if not after.cri_disabled:
        return ()
    return (
        (
            f"{target.main} disables the CRI plugin (disabled_plugins), so no kubelet can use this {target.row.id}; "
            f"`{enable_cri(target.row)}` switches it on"
        ),
    )


def _check_default(row: Runtime, desired: DesiredConfig, after: ObservedConfig) -> None:
    if desired.not_default and after.default == desired.handler:
        raise Refused(
            f"{desired.handler} is the default runtime of {row.id}, and the recipe says runtime.default = false",
            why=f"the former default of {row.product or row.id} is unknown, so gpunode does not remove it",
            hint=f"remove it from {row.config or 'its configuration'}, or remove runtime.default from the recipe",
        )


def _default(desired: DesiredConfig) -> str:
    if desired.not_default:
        return f"; {desired.handler} is not the default runtime"
    return f"; {desired.handler} is the default runtime" if desired.default else ""


def _read_by(target: Target, after: Files) -> Trigger | None:
    """A restart for containerd, which reads its file at start alone; dockerd reads most of its file again on SIGHUP.

    Source: dockerd(8), "Configuration reload behavior"; containerd exits on SIGHUP (containerd issue 13285).
    """
    row = target.row
    if target.trigger is None:
        return None
    reloads = row.reloads and row.takes_on_reload(contents(target.present), after, target.desired)
    return Trigger("reload" if reloads else "restart", row.unit)


def _disrupts(target: Target, trigger: Trigger | None) -> str:
    """What a restart stops: docker's containers, unless it is told to keep them alive; containerd's go on."""
    row = target.row
    if not row.stopped or trigger is None or trigger.kind != "restart":
        return ""
    return "" if row.keeps_containers(contents(target.present), target.desired) else row.stopped


@dataclass(frozen=True, slots=True)
class Missing:
    """The program that a handler is to run and that is not installed, and the command that installs it, if one can."""

    program: str
    install: Command | None

    @property
    def note(self) -> str:
        """What that means."""
        means = f"{self.program} is not installed, so its containers cannot start"
        return f"{means}; `{self.install}` installs it" if self.install else means


def missing(program: str, runtime: str, *where: str) -> Missing:
    """That ``program`` is not installed; ``where`` are the options that name another root."""
    steps = ("--only=toolkit-repository", "--only=toolkit")
    return Missing(program, sudo_gpunode("setup", f"--runtime={runtime}", *steps, *where))


def refuse_default(target: Target, lacks: Missing | None) -> None:
    """Nothing, unless every container would be started by a program that is not installed.

    Raises:
        Refused: it would.
    """
    desired = target.desired
    if lacks is not None and desired.default and target.is_usual:
        raise Refused(
            f"{desired.handler} cannot be the default runtime of {target.row.id}: {lacks.program} is not installed",
            why=f"{target.row.id} could not start any container",
            hint="\n".join(
                filter(None, (f"install it first, or do not make {desired.handler} the default runtime", lacks.install))
            ),
        )
