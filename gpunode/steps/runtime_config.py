"""NVIDIA's handler in the container runtime's configuration, with nvidia-ctk's semantics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from gpunode.change import (
    Change,
    Deferred,
    FileChange,
    FileState,
    PackageState,
    RuntimeExpectation,
    ServiceChange,
    ServiceState,
    Trigger,
    closed,
    ordered,
    subject,
)
from gpunode.command import sudo_gpunode
from gpunode.distros.family import TOOLKIT_PACKAGES
from gpunode.errors import Refused
from gpunode.facts.access import closing, exposed, why_closed, why_open
from gpunode.facts.model import Facts, Known, Unknown, holds, known
from gpunode.facts.probes import TOOLKIT_LIST, TOOLKIT_PROGRAM
from gpunode.facts.project import PLAN
from gpunode.outcome import Outcome, Planned, Refusal, Step
from gpunode.packages.version import numbers
from gpunode.recipe import Recipe
from gpunode.runtimes import Configured, Edited, Files, Runtime, Wish, after_edits, runtime
from gpunode.runtimes.found import States, contents, file_changes, in_facts
from gpunode.runtimes.installations import Chosen, chosen, kubelet_using, with_kubelets_driver
from gpunode.steps.installed_driver import matches
from gpunode.steps.toolkit import CONFIG

# Root's programs read these for every container.
_TOOLKITS = (CONFIG, "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env")
_NO_PROGRAM = f"{TOOLKIT_PROGRAM} is not installed"


def plan(recipe: Recipe, facts: Facts) -> Outcome:
    """The runtime's files register NVIDIA's handler; its own parser has the last word before they are used."""
    if recipe.runtime.name == "none":
        return Planned((), "the recipe has no container runtime")
    try:
        place = chosen(runtime(recipe.runtime.name), facts)
        return _with_toolkit(recipe, facts, _configured(recipe, facts, place))
    except Refused as refusal:
        return Refusal(refusal.what, refusal.why, refusal.hint)


def _with_toolkit(recipe: Recipe, facts: Facts, planned: Planned | Refusal) -> Planned | Refusal:
    """``planned``, and the toolkit's own file as the recipe wants it."""
    if isinstance(planned, Refusal) or recipe.toolkit.volume_mounts is None:
        return planned
    from gpunode.steps import toolkit_config  # loaded on use: few recipes ask for it

    if not (changes := toolkit_config.configured(recipe, facts)):
        return planned
    others = (change for change in planned.changes if subject(change) != CONFIG)
    accepted = "accepts" if recipe.toolkit.volume_mounts else "does not accept"
    reason = f"{planned.reason}; the toolkit {accepted} requests for GPUs by mounts"
    return replace(planned, changes=ordered((*others, *changes)), reason=reason)


def _configured(recipe: Recipe, facts: Facts, place: Chosen) -> Planned | Refusal:
    row = place.row
    fact = facts.file(row.config)
    if isinstance(fact, Unknown) and fact.probe == PLAN:
        return _deferred(row, fact)
    wish, lacks_program = _wish(recipe, row, facts), _lacks_program(facts)
    if wish.default and lacks_program:
        return _no_program(recipe, row)
    present = in_facts(facts, row, wish)
    if recipe.runtime.cgroup == "auto":
        wish = with_kubelets_driver(row, facts, wish, contents(present))
    edited = row.configure(contents(present), wish)
    _check_default(row, wish, row.inspect(after_edits(contents(present), edited), wish))
    planned = _closed(row, facts, present, _planned(row, wish, facts, present, edited))
    missing = (f"{_NO_PROGRAM}, so its containers cannot start",) if lacks_program else ()
    preexisting = _standing_default(recipe, row, present)
    return replace(
        planned, notes=(*place.notes, *missing, *_other_driver(recipe, facts, row), *preexisting, *planned.notes)
    )


def _check_default(row: Runtime, wish: Wish, after: Configured) -> None:
    if wish.not_default and after.default == wish.handler:
        raise Refused(
            f"{wish.handler} is the default runtime of {row.id}, and the recipe says runtime.default = false",
            why=f"the former default of {row.product or row.id} is unknown, so gpunode does not remove it",
            hint=f"remove it from {row.config or 'its configuration'}, or remove runtime.default from the recipe",
        )


def _standing_default(recipe: Recipe, row: Runtime, present: States) -> tuple[str, ...]:
    """That NVIDIA's runtime is the default although the recipe does not say so."""
    wish = Wish()
    if recipe.runtime.default is not None or row.inspect(contents(present), wish).default != wish.handler:
        return ()
    return (
        (
            f"{wish.handler} is the default runtime of {row.id} and stays so, because the recipe does not set "
            "runtime.default; runtime.default = false removes it"
        ),
    )


def _closed(row: Runtime, facts: Facts, present: States, planned: Planned) -> Planned:
    """``planned``, and nobody but root may write to what says which programs root runs for a container."""
    own = [path for path in (*present, *_TOOLKITS) if path in row.own_files or path in _TOOLKITS]
    found = {change.path: change for change in closing(facts, own)}
    trigger = frozenset({Trigger(reads_again(row), row.unit)}) if row.unit and not row.watches else frozenset[Trigger]()
    touched = {change.path for change in planned.changes if isinstance(change, FileChange)}
    edited = tuple(_closed_change(change) if subject(change) in found else change for change in planned.changes)
    beside = (replace(one, triggers=trigger if one.path in present else frozenset()) for one in found.values())
    others = [path for path in present if path not in own and why_open(present[path])]
    notes = (
        *(f"{path} {why_open(present[path])}, and {row.unit} reads it; gpunode leaves that" for path in others),
        *exposed(facts, (*present, *_TOOLKITS)),
    )
    return replace(
        planned,
        changes=ordered((*edited, *(change for change in beside if change.path not in touched))),
        reason="; ".join((why_closed(found.values()), planned.reason)) if found else planned.reason,
        notes=(*planned.notes, *notes),
    )


def _closed_change(change: Change) -> Change:
    if isinstance(change, FileChange) and isinstance(change.after, FileState):
        return replace(change, after=closed(change.after))
    return change


def _lacks_program(facts: Facts) -> bool:
    """Whether the program that the runtime is told to run is not there, and no step before brings it."""
    if isinstance(facts.toolkit_program, Unknown) or facts.toolkit_program.value:
        return False
    packages = known(facts.packages, {})
    return not any(matches(packages.get(name), "") for name in TOOLKIT_PACKAGES)


def _no_program(recipe: Recipe, row: Runtime) -> Refusal:
    toolkit = ("--only=toolkit-repository", "--only=toolkit")
    return Refusal(
        what=f"nvidia cannot be the default runtime of {row.id}: {_NO_PROGRAM}",
        why=f"{row.id} could not start any container",
        hint=f"install the toolkit first:\n{sudo_gpunode('setup', f'--runtime={recipe.runtime.name}', *toolkit)}",
    )


def _other_driver(recipe: Recipe, facts: Facts, row: Runtime) -> tuple[str, ...]:
    """That the recipe wants another cgroup driver than the kubelet has."""
    kubelet = kubelet_using(row, facts)
    if recipe.runtime.cgroup != "systemd" or kubelet is None or row.product or kubelet.cgroup_driver != "cgroupfs":
        return ()
    return ("the kubelet uses the cgroup driver cgroupfs, but the recipe sets systemd for runc: they must be the same",)


def _planned(row: Runtime, wish: Wish, facts: Facts, present: States, edited: Edited) -> Planned:
    service = _service(row, facts)
    before, after = contents(present), after_edits(contents(present), edited)
    notes = (*_masked(row, facts), *edited.notes, *cri_notes(row, row.inspect(after, wish)))
    if edited.restart and _has_looked(row, facts):
        notes = (*notes, _overlooked(row, wish))
    expectation = _expectation(row, wish, row.inspect(after, wish))
    if not edited.edits and (again := _again(row, facts, present, edited)):
        reread, reason = again
        return Planned((*reread, *service), reason, notes, expectation)
    if not edited.edits:
        registered = f"{row.config} registers {wish.handler}{_default(wish)}"
        return Planned(service, edited.how if row.product or not row.unit else registered, notes)
    trigger = reread_by(row, before, after, wish)
    changed = file_changes(edited, present, frozenset() if row.watches else frozenset({trigger}))
    reason = f"registers {wish.handler}{_default(wish)}; {edited.how}"
    return Planned((*changed, *service), reason, notes, expectation, disrupts(row, trigger, before, wish))


def _expectation(row: Runtime, wish: Wish, after: Configured) -> RuntimeExpectation | None:
    """What the runtime's own parser must find; None where its product makes what that reads only at its next start."""
    if row.product:
        return None
    default = wish.handler if wish.default else after.default if wish.not_default else None
    binary = after.handlers.get(wish.handler, wish.binary)
    return RuntimeExpectation(row.id, row.config, frozenset({(wish.handler, binary)}), default)


def _again(row: Runtime, facts: Facts, present: States, edited: Edited) -> tuple[tuple[FileChange, ...], str] | None:
    """Changes without bytes, for a daemon that must read its files again, and why it must; None where it need not."""
    trigger = frozenset({Trigger(reads_again(row), row.unit)})
    if unread := _unread(row, facts, present):
        reason = f"{unread[0]} was changed after {row.unit} last read it"
    elif edited.restart and row.config in facts.changed_at and not _has_looked(row, facts):
        unread, reason = (row.config,), edited.restart
    else:
        return None
    return tuple(FileChange(path, present[path], present[path], trigger) for path in unread), reason


def _has_looked(row: Runtime, facts: Facts) -> bool:
    """Whether the unit was started after the toolkit came, so that another start would find no more."""
    unit, came = facts.unit(row.unit), facts.changed_at.get(TOOLKIT_LIST)
    started = unit.value.started_at if isinstance(unit, Known) else None
    return started is not None and came is not None and started > came


def _overlooked(row: Runtime, wish: Wish) -> str:
    return (
        f"{row.product} was started since the toolkit came and has not registered {wish.handler}: "
        f"is {wish.binary} on its PATH? See `systemctl show {row.unit} -p Environment`"
    )


def disrupts(row: Runtime, trigger: Trigger, before: Files, wish: Wish) -> str:
    """What a restart stops: docker's containers, unless it is told to keep them alive; containerd's go on."""
    if not row.stopped or trigger.kind != "restart":
        return ""
    return "" if row.keeps_containers(before, wish) else row.stopped


def _masked(row: Runtime, facts: Facts) -> tuple[str, ...]:
    fact = facts.unit(row.unit)
    is_masked = isinstance(fact, Known) and fact.value.masked
    return (f"{row.unit} is masked, so nothing reads {row.config} until it is unmasked",) if is_masked else ()


def cri_notes(row: Runtime, configured: Configured) -> tuple[str, ...]:
    """That no kubelet can use the runtime as it is configured; nothing where one can."""
    if not configured.cri_disabled:
        return ()
    return (f"{row.config} disables the CRI plugin (disabled_plugins), so no kubelet can use this {row.id}",)


def packaged_version(row: Runtime, packages: Mapping[str, PackageState]) -> tuple[int, ...] | None:
    """The version of the runtime's installed package; None where none is installed."""
    version = next((packages[name].version for name in row.packages if matches(packages.get(name), "")), "")
    return numbers(version)


def _wish(recipe: Recipe, row: Runtime, facts: Facts) -> Wish:
    return Wish(
        default=recipe.runtime.default is True,
        not_default=recipe.runtime.default is False,
        # A product gives its kubelet and its containerd one driver; a recipe for kubeadm's kubelet is not about it.
        systemd_cgroup=recipe.runtime.cgroup == "systemd" and not row.product,
        cdi=recipe.runtime.cdi,
        version=packaged_version(row, known(facts.packages, {})),
        enable_cri=row.has_cri_plugin and kubelet_using(row, facts) is not None,
    )


def _deferred(row: Runtime, fact: Unknown) -> Planned:
    """The package that is about to be installed brings the file, so what it will hold is known after that."""
    promise = Deferred("the package's file, with NVIDIA's runtime added", f"{row.packages[0]} is installed")
    reason = f"{row.packages[0]} installs its own configuration; NVIDIA's runtime is added to it"
    if holds(fact, promise):
        return Planned((), reason)
    return Planned((FileChange(row.config, None, promise, frozenset({Trigger("restart", row.unit)})),), reason)


def _unread(row: Runtime, facts: Facts, present: States) -> tuple[str, ...]:
    """The files that are younger than the daemon that runs; none where either time is unknown."""
    unit = facts.unit(row.unit)
    if row.watches or isinstance(unit, Unknown) or unit.value.started_at is None:
        return ()
    reread = unit.value.changed_at if reads_again(row) == "reload" else None
    last = max(unit.value.started_at, reread or 0.0)
    return tuple(path for path in present if path in row.own_files and facts.changed_at.get(path, 0.0) > last)


def reads_again(row: Runtime) -> Literal["reload", "restart"]:
    """How a running daemon comes to read its file, where nobody knows what in it is new."""
    return "reload" if row.reloads else "restart"


def reread_by(row: Runtime, before: Files, after: Files, wish: Wish) -> Trigger:
    """A restart for containerd, which reads its file at start alone; dockerd reads most of its file again on SIGHUP.

    Source: dockerd(8), "Configuration reload behavior"; containerd exits on SIGHUP (containerd issue 13285).
    """
    if row.reloads and row.takes_on_reload(before, after, wish):
        return Trigger("reload", row.unit)
    return Trigger("restart", row.unit)


def _service(row: Runtime, facts: Facts) -> tuple[Change, ...]:
    """Starts and enables a runtime that does not run; nothing where systemd does not say, or it is part of more."""
    fact = facts.unit(row.unit)
    if row.product or not isinstance(fact, Known) or not fact.value.exists or fact.value.masked:
        return ()
    wanted = ServiceState(enabled=True, active=not facts.is_image or fact.value.state.active)
    return () if fact.value.state == wanted else (ServiceChange(row.unit, fact.value.state, wanted),)


def _default(wish: Wish) -> str:
    if wish.not_default:
        return f"; {wish.handler} is not the default runtime"
    return f"; {wish.handler} is the default runtime" if wish.default else ""


RUNTIME_CONFIG = Step("runtime-config", "runtime configuration", "runtime", plan, needs=("toolkit", "runtime-install"))
