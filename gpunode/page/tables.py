"""Render how a node's GPUs are connected, and their faults over time. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Final

from gpunode.catalog import xids
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import faults
from gpunode.diagnoses.views.faults import Fault
from gpunode.page.evidence import redact_line
from gpunode.page.markup import Markup, card, column_heads, scroll_box, table, tag
from gpunode.page.words import count

_MAX_TOPOLOGY_LINES: Final = 100
_MAX_FAULTS: Final = 200
# Later than any real clock; a malicious log may contain such a time.
_LATEST_PLAUSIBLE_TIME_S: Final = 2e11
_FAULT_CODE_FORMATS: Final = {"xid": "Xid {}", "sxid": "SXid {}"}


def render_topology(snapshot: Snapshot) -> Markup | None:
    """Return the connections of the GPUs as printed by nvidia-smi; None if it was not queried."""
    item = next(iter(snapshot.items_of("nvidia-smi-topo")), None)
    if item is None or item.outcome != "ok":
        return None
    lines = map(redact_line, item.lines[:_MAX_TOPOLOGY_LINES])
    return card("How the GPUs are connected", scroll_box(item.written[:200], tag("pre", "\n".join(lines))))


def render_timeline(snapshot: Snapshot) -> Markup | None:
    """Return the table of all faults; those without a time come last."""
    sorted_faults = sorted(
        snapshot.view(faults.fault_timeline),
        key=lambda fault: (_plausible_time(fault) is None, _plausible_time(fault) or 0.0),
    )
    if not sorted_faults:
        return None
    began = frozenset(incident.root for incident in snapshot.view(faults.find_incidents))
    rows = dict.fromkeys(tag("tr", _fault_cells(fault, is_first=fault in began)) for fault in sorted_faults)
    names = column_heads("when", "GPU", "fault", "meaning", "message")
    more = len(rows) - _MAX_FAULTS
    return card(
        "GPU faults over time",
        tag(
            "details",
            tag("summary", f"All {count(len(rows), 'message')}"),
            scroll_box("every fault", table("events", names, [*rows][:_MAX_FAULTS])),
            tag("p", f"and {more} more") if more > 0 else None,
            open=True,
        ),
        legend="Bold lines began a failure.",
    )


def _fault_cells(fault: Fault, *, is_first: bool) -> Iterator[Markup]:
    message, at = fault.xid or fault.sxid, _plausible_time(fault)
    known = xids.lookup(fault.code) if fault.source == "xid" else None
    code = _FAULT_CODE_FORMATS[fault.source].format(fault.code)
    yield tag("td", format_time(at) if at is not None else "no time")
    yield tag("td", tag("code", fault.gpu))
    yield tag("td", tag("b", code) if is_first else code)
    yield tag("td", known.meaning if known else "")
    yield tag("td", redact_line(message.text if message else fault.citation.line.strip()))


def _plausible_time(fault: Fault) -> float | None:
    return fault.at if fault.at is not None and 0 <= fault.at < _LATEST_PLAUSIBLE_TIME_S else None


def format_time(at: float) -> str:
    """Return a readable time, on the clock of its log."""
    if at < faults.SYSLOG_TIME_BOUNDS_S[0]:
        return f"{at:.3f} s after boot"
    when = datetime.fromtimestamp(at, tz=timezone.utc)
    return when.strftime("%b %d %H:%M:%S" if at < faults.SYSLOG_TIME_BOUNDS_S[1] else "%Y-%m-%d %H:%M:%S UTC")
