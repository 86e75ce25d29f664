"""The progress that apt reports while it works."""

from __future__ import annotations

from typing import Literal

from gpunode.host.port import Progress

_PHASES: dict[str, Literal["download", "install"]] = {"dlstatus": "download", "pmstatus": "install"}


def parse_status(line: str) -> Progress | None:
    """A line of APT::Status-Fd; None when it tells no progress. Source: README.progress-reporting of apt."""
    kind, _, rest = line.partition(":")
    fields = rest.split(":", 2)
    if kind not in _PHASES or len(fields) != 3:
        return None
    try:
        percent = float(fields[1])
    except ValueError:
        return None
    # NaN is no progress either.
    return Progress(_PHASES[kind], percent, fields[2].strip()) if 0 <= percent <= 100 else None
