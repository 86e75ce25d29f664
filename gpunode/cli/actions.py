"""What a change does, in one word, for screens and programs alike. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, get_args

from gpunode.change import (
    Change,
    CommandChange,
    FileChange,
    MigChange,
    ModuleChange,
    ObjectChange,
    PackageChange,
    ServiceChange,
    is_mark,
)

Effect: TypeAlias = Literal["install", "upgrade", "downgrade", "mark", "purge"]
EFFECTS: tuple[Effect, ...] = get_args(Effect)
Action: TypeAlias = (
    Effect
    | Literal[
        "create",
        "edit",
        "delete",
        "reread",
        "enable",
        "disable",
        "start",
        "stop",
        "keep",
        "load",
        "unload",
        "run",
        "divide",
    ]
)

_OBJECT: Final[Mapping[str, Action]] = {"created": "create", "changed": "edit", "deleted": "delete"}


def action(change: Change) -> Action:
    """What is done: of a unit that is enabled and started, or disabled and stopped, the latter."""
    match change:
        case FileChange(before=before, after=after):
            if before == after:
                return "reread"
            return "create" if before is None else "delete" if after is None else "edit"
        case PackageChange():
            return effect_on(change)
        case ServiceChange(before=before, after=after):
            if before.active != after.active:
                return "start" if after.active else "stop"
            if before.enabled != after.enabled:
                return "enable" if after.enabled else "disable"
            return "keep"
        case ModuleChange(after=loaded):
            return "load" if loaded else "unload"
        case CommandChange() | MigChange():
            return "run" if isinstance(change, CommandChange) else "divide"
        case ObjectChange(effect=effect):
            return _OBJECT[effect]


def reason_to_go(change: Change) -> str:
    """Return why a package of a driver is purged, see ``catalog.conflicts.purge_reason``; empty for all else."""
    if not isinstance(change, PackageChange) or change.after is not None or change.before is None:
        return ""
    # Loaded on use: many commands change no package.
    from gpunode.catalog.conflicts import purge_reason

    return purge_reason(change.id.name, change.before.version) or ""


def effect_on(change: PackageChange) -> Effect:
    """What happens to the package."""
    if change.after is None:
        return "purge"
    if change.before is None or change.before.config_files_only:
        return "install"
    if is_mark(change):
        return "mark"
    # Loaded on use: many commands change no package.
    from gpunode.packages import SYSTEMS
    from gpunode.packages.simulation import lowers

    return "downgrade" if lowers(change, SYSTEMS[0].is_older) else "upgrade"
