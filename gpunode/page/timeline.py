"""Render the faults of GPUs in the order of time. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Final

from gpunode.catalog import xids
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import faults
from gpunode.diagnoses.views.faults import Fault
from gpunode.page.evidence import redact_line
from gpunode.page.frame import card, column_heads, scroll_box, table
from gpunode.page.markup import Markup, tag
from gpunode.page.words import count

_MOST_ROWS: Final = 200
# Later than any clock; a log that was made to do harm may have it.
_NEVER: Final = 2e11
# Seconds since boot lie below the first, those of syslog, which leaves the year away, between both.
_CLOCKS: Final = (9e8, 1e9)
_CODES: Final = {"xid": "Xid {}", "sxid": "SXid {}"}


def render_timeline(snapshot: Snapshot) -> Markup | None:
    """Return every fault; those without a time come last."""
    found = sorted(
        snapshot.view(faults.fault_timeline),
        key=lambda fault: (_plausible_time(fault) is None, _plausible_time(fault) or 0.0),
    )
    if not found:
        return None
    began = frozenset(incident.root for incident in snapshot.view(faults.find_incidents))
    rows = dict.fromkeys(tag("tr", _fault_cells(fault, is_first=fault in began)) for fault in found)
    names = column_heads("when", "GPU", "fault", "meaning", "message")
    more = len(rows) - _MOST_ROWS
    return card(
        "GPU faults over time",
        tag(
            "details",
            tag("summary", f"All {count(len(rows), 'message')}"),
            scroll_box("every fault", table("events", names, [*rows][:_MOST_ROWS])),
            tag("p", f"and {more} more") if more > 0 else None,
            open=True,
        ),
        legend="Bold lines began a failure.",
    )


def _fault_cells(fault: Fault, *, is_first: bool) -> Iterator[Markup]:
    said, at = fault.xid or fault.sxid, _plausible_time(fault)
    known = xids.lookup(fault.code) if fault.source == "xid" else None
    code = _CODES[fault.source].format(fault.code)
    yield tag("td", format_time(at) if at is not None else "no time")
    yield tag("td", tag("code", fault.gpu))
    yield tag("td", tag("b", code) if is_first else code)
    yield tag("td", known.meaning if known else "")
    yield tag("td", redact_line(said.text if said else fault.citation.line.strip()))


def _plausible_time(fault: Fault) -> float | None:
    return fault.at if fault.at is not None and 0 <= fault.at < _NEVER else None


def format_time(at: float) -> str:
    """Return a time for people, on the clock of its log."""
    if at < _CLOCKS[0]:
        return f"{at:.3f} s after boot"
    when = datetime.fromtimestamp(at, tz=timezone.utc)
    return when.strftime("%b %d %H:%M:%S" if at < _CLOCKS[1] else "%Y-%m-%d %H:%M:%S UTC")
