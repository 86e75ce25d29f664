"""Helm releases of a cluster, as Helm lists them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Final

from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass

# A version may hold a hyphen (25.3.0-rc.2), and so may a name (gpu-operator).
_CHART_NAME_AND_VERSION: Final = Pattern(r"(.+?)-(v?\d+\.\d+\.\d+.*)")


@dataclass(frozen=True, slots=True)
class HelmRelease:
    """An installed Helm release.

    Attributes:
        chart: its name without the version.
        status: ``deployed``, ``failed``, ``pending-install``.
        values: those set by the user, without the chart's defaults.
    """

    namespace: str
    name: str
    chart: str
    version: str
    revision: int
    status: str
    values: Mapping[str, Any] = field(default_factory=dict)


def parse_release(row: Mapping[str, Any]) -> HelmRelease:
    """Parse one row of ``helm list --output json``, where a chart is written ``hami-2.10.0``."""
    match = _CHART_NAME_AND_VERSION.fullmatch(str(row["chart"]))
    chart, version = match.groups() if match else (str(row["chart"]), "")
    return HelmRelease(
        str(row["namespace"]), str(row["name"]), chart, version, int(row["revision"]), str(row["status"])
    )


def release_of_command(argv: Sequence[str]) -> tuple[str, str]:
    """Return the namespace and name of the release that a Helm command, as gpunode writes them, changes."""
    return argv[argv.index("--namespace") + 1], argv[3] if argv[1] == "upgrade" else argv[2]
