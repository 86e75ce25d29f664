"""Formatting of durations and triggers. Pure."""

from __future__ import annotations

from gpunode.change import Trigger, short_unit_name
from gpunode.cli.screen.text import Span


def format_seconds(value: float) -> str:
    """Format a duration: ``0.4 s``, ``12 s``, ``3 min 12 s``."""
    if value < 9.95:
        return f"{value:.1f} s"
    whole = round(value)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"


def describe_trigger(trigger: Trigger) -> str:
    """Return what a trigger will do."""
    unit = short_unit_name(trigger.target)
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
    unit = short_unit_name(trigger.target)
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
