"""The one word for what a change does, for screens and programs alike. Pure."""

from __future__ import annotations

from typing import Final

from gpunode.change import Action, Change, PackageChange

# Of packages, in the order in which they are shown.
EFFECTS: Final[tuple[Action, ...]] = ("install", "upgrade", "downgrade", "mark", "purge")


def action_of(change: Change) -> Action:
    """Return what is done; a package's new version is told apart as an upgrade or a downgrade."""
    if not isinstance(change, PackageChange) or change.action != "upgrade":
        return change.action
    # Loaded on use: many commands change no package.
    from gpunode.packages import SYSTEMS
    from gpunode.packages.simulation import lowers

    return "downgrade" if lowers(change, SYSTEMS[0].is_older) else "upgrade"


def reason_to_go(change: Change) -> str:
    """Return why a package of a driver is purged, see ``catalog.conflicts.purge_reason``; empty for all else."""
    if not isinstance(change, PackageChange) or change.after is not None or change.before is None:
        return ""
    # Loaded on use: many commands change no package.
    from gpunode.catalog.conflicts import purge_reason

    return purge_reason(change.id.name, change.before.version) or ""
