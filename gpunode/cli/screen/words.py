"""Formatting of numbers, lists, actions and triggers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from gpunode.change import Action, Change, PackageChange, Trigger, bare_unit
from gpunode.cli.screen.text import Span


def format_seconds(value: float) -> str:
    """Format a duration: ``0.4 s``, ``12 s``, ``3 min 12 s``."""
    if value < 9.95:
        return f"{value:.1f} s"
    whole = round(value)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"


def count(number: int, noun: str) -> str:
    """Format a count: ``1 file``, ``2 files``, ``2 indexes``, ``2 repositories``."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y"):
        return f"{number} {noun[:-1]}ies"
    return f"{number} {noun}{'es' if noun.endswith('x') else 's'}"


def join_names(items: Iterable[str], limit: int = 0) -> str:
    """Join ``items`` with commas; beyond ``limit`` only count them (0: no limit)."""
    found = list(items)
    if limit and len(found) > limit + 1:
        return f"{', '.join(found[:limit])} and {len(found) - limit} more"
    return ", ".join(found)


def join_with_and(parts: Sequence[str]) -> str:
    """Join to ``a, b and c``."""
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else "".join(parts)


def describe_trigger(trigger: Trigger) -> str:
    """Return what a trigger will do."""
    unit = bare_unit(trigger.target)
    match trigger.kind:
        case "index-refresh":
            return f"read the package index of {_repository_name(trigger)}"
        case "daemon-reload":
            return "reload systemd's units"
        case "initramfs":
            return "rebuild the initramfs"
        case "cdi":
            return "write the CDI specification"
        case "start":
            return f"start {unit} again"
        case "reload":
            return f"reload {unit} (no downtime)"
        case "restart":
            return f"restart {unit}"


def trigger_labels(trigger: Trigger) -> tuple[str, str]:
    """Return the subject of an executed trigger, and what was done."""
    unit = bare_unit(trigger.target)
    match trigger.kind:
        case "index-refresh":
            return "package index", f"{_repository_name(trigger)} read"
        case "daemon-reload":
            return "systemd", "units read again"
        case "initramfs":
            return "initramfs", "rebuilt"
        case "cdi":
            return "CDI specification", "written"
        case "start":
            return unit, "started again"
        case "reload":
            return unit, "reloaded, no downtime"
        case "restart":
            return unit, "restarted"


def _repository_name(trigger: Trigger) -> str:
    name = trigger.target.rpartition("/")[2]
    return name.removesuffix(".list").removesuffix(".sources") or "every repository"


DOT = Span(" · ", "dim")
MARKS: dict[str, Span] = {
    "nothing": Span("✓ ", "good"),
    "done": Span("✓ ", "good"),
    "change": Span("● ", "change"),
    "waits": Span("! ", "warn"),
    "refused": Span("✗ ", "bad"),
    "failed": Span("✗ ", "bad"),
    "passed": Span("✓ ", "good"),
    "skipped": Span("– ", "dim"),
}

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
