"""The releases of a cluster, as Helm lists them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpunode.facts.patterns import Pattern

# A version may hold a hyphen (25.3.0-rc.2), and so may a name (gpu-operator).
_CHART: Final = Pattern(r"(.+?)-(v?\d+\.\d+\.\d+.*)")


@dataclass(frozen=True, slots=True)
class Released:
    """A release that a cluster has.

    Attributes:
        chart: its name without the version.
        status: ``deployed``, ``failed``, ``pending-install``.
        values: what it was given, the chart's own left out.
    """

    namespace: str
    name: str
    chart: str
    version: str
    revision: int
    status: str
    values: Mapping[str, Any] = field(default_factory=dict)


def released(row: Mapping[str, Any]) -> Released:
    """One row of ``helm list --output json``; the chart's version follows its name there (``hami-2.10.0``)."""
    match = _CHART.fullmatch(str(row["chart"]))
    chart, version = match.groups() if match else (str(row["chart"]), "")
    return Released(str(row["namespace"]), str(row["name"]), chart, version, int(row["revision"]), str(row["status"]))
