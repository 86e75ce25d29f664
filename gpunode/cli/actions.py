"""The word for the action of a change, shared by screens and JSON. Pure."""

from __future__ import annotations

from typing import Final

from gpunode.change import Action, Change, PackageChange

# In the order of display.
PACKAGE_ACTIONS: Final[tuple[Action, ...]] = ("install", "upgrade", "downgrade", "mark", "purge")


def action_of(change: Change) -> Action:
    """Return the action; a new package version is either an upgrade or a downgrade."""
    if not isinstance(change, PackageChange) or change.action != "upgrade":
        return change.action
    # Loaded on use: many commands change no package.
    from gpunode.packages import SYSTEMS
    from gpunode.packages.simulation import lowers

    return "downgrade" if lowers(change, SYSTEMS[0].is_older) else "upgrade"


def explain_purge(change: PackageChange) -> str:
    """Return why a driver package is purged (see ``catalog.conflicts``); empty for other changes."""
    if change.after is not None or change.before is None:
        return ""
    # Loaded on use: many commands change no package.
    from gpunode.catalog.conflicts import purge_reason

    return purge_reason(change.id.name, change.before.version) or ""
