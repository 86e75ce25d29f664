"""The plan of a runtime's files, for setup and ctk: changes, expectation, trigger and notes."""

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
class RuntimeTarget:
    """A runtime on the node, and its desired configuration.

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
        """True if ``main`` is the file that the runtime reads by itself."""
        config = self.desired.config
        usual = replace(self.desired, config="")
        return not config or config == self.row.located(self.row, contents(self.present), usual).config

    @property
    def own(self) -> frozenset[str]:
        """The files that say what it does; of the others that it reads some say how it is started."""
        return frozenset({self.main, self.desired.drop_in, *self.row.own_files} - {"", *self.row.generated})

    @property
    def unit(self) -> Unit | None:
        """The unit that runs it; None if unknown."""
        fact = self.facts.unit(self.row.unit)
        return fact.value if isinstance(fact, Known) else None

    @property
    def trigger(self) -> Trigger | None:
        """The trigger after which its daemon has read all of its files; None where nothing need, or no unit runs it.

        A reload does not apply docker's features: if ctk is to set them, it is unknown whether dockerd has read them.
        Somebody else's edit of them is no reason for setup to stop containers.
        """
        row, files = self.row, contents(self.present)
        if not row.unit or row.watches:
            return None
        asks = self.desired.cdi and self.desired.exact
        unwritten = {path: content for path, content in files.items() if path != self.main}
        reloads = row.reloads and (not asks or row.takes_on_reload(unwritten, files, self.desired))
        return Trigger("reload" if reloads else "restart", row.unit)


def plan_configuration(target: RuntimeTarget) -> Planned:
    """Plan the registration of the handler.

    Raises:
        Refused: if the files cannot be edited.
    """
    row, desired, files = target.row, target.desired, contents(target.present)
    edited = row.configure(files, desired)
    written = after_edits(files, edited)
    after = row.inspect(written, desired)
    _check_default(row, desired, after)
    handler = (desired.handler, after.handlers.get(desired.handler, desired.binary))
    default = desired.handler if desired.default else after.default if desired.not_default else None
    meant = RuntimeExpectation(row.id, target.main, frozenset({handler}), default)
    registers = f"registers {desired.handler}{_describe_default(desired)}"
    planned = plan_edits(target, edited, f"{registers}; {edited.how}", meant)
    if not planned.changes and row.unit and not row.product:
        planned = replace(planned, reason=f"{target.main} {registers}")
    # What is said of the edited files again is about them, not about the edits.
    lasting = row.configure(written, desired).notes if planned.change_notes else ()
    passing = tuple(note for note in planned.change_notes if note not in lasting)
    return replace(planned, notes=(*planned.notes, *lasting, *_cri_notes(target, after)), change_notes=passing)


def plan_edits(target: RuntimeTarget, edited: ConfigEdit, reason: str, meant: RuntimeExpectation) -> Planned:
    """Plan the ``edited`` files, or a re-read by a daemon that is older than they are.

    Args:
        target: the runtime.
        edited: its files.
        reason: why they change.
        meant: what its parser must find in them; what a product makes of its files is there after its next start.
    """
    row, files = target.row, contents(target.present)
    expectation = None if row.product else meant
    notes = (*target.notes, *_masked_notes(target))
    if not edited.edits:
        again = _plan_unread(target, edited) or Planned((), edited.how)
        return replace(
            again, notes=(*notes, *edited.notes, *_unregistered_notes(target, edited)), expectation=expectation
        )
    trigger = _trigger_of_edit(target, after_edits(files, edited))
    triggers = frozenset({trigger}) if trigger else frozenset[Trigger]()
    changes = file_changes(edited, target.present, triggers, is_roots=target.is_usual)
    return Planned(changes, reason, notes, edited.notes, expectation, _describe_disruption(target, trigger))


def plan_reread(target: RuntimeTarget, paths: Iterable[str], reason: str) -> Planned:
    """Plan changes without new content, for a daemon that must read its files again."""
    trigger = target.trigger
    owed = frozenset({trigger}) if trigger else frozenset[Trigger]()
    states = ((path, target.present.get(path)) for path in paths)
    changes = tuple(FileChange(path, state, state, owed) for path, state in states)
    return Planned(changes, reason, disrupts=_describe_disruption(target, trigger))


def _plan_unread(target: RuntimeTarget, edited: ConfigEdit) -> Planned | None:
    """Plan a re-read of files newer than the daemon; None if there are none or a time is unknown."""
    row, unit, changed_at = target.row, target.unit, target.facts.changed_at
    if target.trigger is None:
        return None
    if unit is not None and unit.started_at is not None:
        since = max(unit.started_at, (row.reloads and unit.changed_at) or 0.0)
        if unread := [path for path in target.present if path in target.own and changed_at.get(path, 0.0) > since]:
            return plan_reread(target, unread, f"{unread[0]} was changed after {row.unit} last read it")
    is_told = unit is not None and unit.started_at is not None
    # ctk asks for no restart of what it knows nothing of.
    if (
        edited.restart
        and row.config in changed_at
        and not _has_looked(target)
        and (is_told or not target.desired.exact)
    ):
        return plan_reread(target, (row.config,), edited.restart)
    return None


def _has_looked(target: RuntimeTarget) -> bool:
    """Return True if the unit was started after the toolkit's installation, so that a restart changes nothing."""
    unit, came = target.unit, target.facts.changed_at.get(TOOLKIT_LIST)
    return unit is not None and unit.started_at is not None and came is not None and unit.started_at > came


def _unregistered_notes(target: RuntimeTarget, edited: ConfigEdit) -> tuple[str, ...]:
    """Return a note if a product that registers the handler by itself has not done so."""
    if not edited.restart or not _has_looked(target):
        return ()
    row, desired = target.row, target.desired
    return (
        (
            f"{row.product} was started since the toolkit came and has not registered {desired.handler}: "
            f"{edited.restart}. Check that {desired.binary} is on its PATH: see `{row.product} --version` and "
            f"`systemctl show {row.unit} -p Environment`"
        ),
    )


def _masked_notes(target: RuntimeTarget) -> tuple[str, ...]:
    if target.unit is None or not target.unit.masked:
        return ()
    return (f"{target.row.unit} is masked, so nothing reads {target.main} until it is unmasked",)


def enable_cri(row: Runtime) -> Command:
    """Return the command that switches containerd's CRI plugin on."""
    return sudo_gpunode("ctk", "runtime", "configure", f"--runtime={row.id}", "--enable-cri", "--restart")


def _cri_notes(target: RuntimeTarget, after: ObservedConfig) -> tuple[str, ...]:
    """Return a note if no kubelet can use the runtime as configured."""
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
            f"{desired.handler} is the default runtime of {row.id}, and the recipe says runtime.set_as_default = false",
            why=f"the former default of {row.product or row.id} is unknown, so gpunode does not remove it",
            hint=f"remove it from {row.config or 'its configuration'}, or set_as_default from the recipe",
        )


def _describe_default(desired: DesiredConfig) -> str:
    if desired.not_default:
        return f"; {desired.handler} is not the default runtime"
    return f"; {desired.handler} is the default runtime" if desired.default else ""


def _trigger_of_edit(target: RuntimeTarget, after: Files) -> Trigger | None:
    """Return a restart for containerd, which reads its file only at start, or a reload for dockerd (SIGHUP).

    Source: dockerd(8), "Configuration reload behavior"; containerd exits on SIGHUP (containerd issue 13285).
    """
    row = target.row
    if target.trigger is None:
        return None
    reloads = row.reloads and row.takes_on_reload(contents(target.present), after, target.desired)
    return Trigger("reload" if reloads else "restart", row.unit)


def _describe_disruption(target: RuntimeTarget, trigger: Trigger | None) -> str:
    """Describe what a restart stops: docker's containers, unless live-restore is on; containerd's continue."""
    row = target.row
    if not row.stopped or trigger is None or trigger.kind != "restart":
        return ""
    return "" if row.keeps_containers(contents(target.present), target.desired) else row.stopped


@dataclass(frozen=True, slots=True)
class MissingProgram:
    """A handler's program that is not installed, and the command that installs it, if any."""

    program: str
    install: Command | None

    @property
    def note(self) -> str:
        """The note for the user."""
        means = f"{self.program} is not installed, so its containers cannot start"
        return f"{means}; `{self.install}` installs it" if self.install else means


def missing_program(program: str, runtime: str, *where: str) -> MissingProgram:
    """Return ``program`` as missing; ``where`` are the options that name another root."""
    steps = ("--only=toolkit-repository", "--only=toolkit")
    return MissingProgram(program, sudo_gpunode("setup", f"--runtime={runtime}", *steps, *where))


def refuse_default(target: RuntimeTarget, lacks: MissingProgram | None) -> None:
    """Refuse a default runtime whose program is not installed, since no container could start.

    Raises:
        Refused: if so.
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
