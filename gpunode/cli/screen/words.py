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
    return trigger_words(trigger)[0]


def trigger_words(trigger: Trigger) -> tuple[str, str, str]:
    """Return what a trigger will do, its subject, and what was done."""
    unit = short_unit_name(trigger.target)
    match trigger.kind:
        case "index-refresh":
            file = trigger.target.rpartition("/")[2]
            name = file.removesuffix(".list").removesuffix(".sources") or "every repository"
            return f"read the package index of {name}", "package index", f"{name} read"
        case "daemon-reload":
            return "reload systemd's units", "systemd", "units read again"
        case "initramfs":
            return "rebuild the initramfs", "initramfs", "rebuilt"
        case "cdi":
            return "write the CDI specification", "CDI specification", "written"
        case "start":
            return f"start {unit} again", unit, "started again"
        case "reload":
            return f"reload {unit} (no downtime)", unit, "reloaded, no downtime"
        case "restart":
            return f"restart {unit}", unit, "restarted"


DOT = Span(" · ", "dim")
STATE_MARK: dict[str, Span] = {
    "nothing": Span("✓ ", "good"),
    "done": Span("✓ ", "good"),
    "change": Span("● ", "change"),
    "waits": Span("! ", "warn"),
    "refused": Span("✗ ", "bad"),
    "failed": Span("✗ ", "bad"),
    "passed": Span("✓ ", "good"),
    "skipped": Span("– ", "dim"),
}
