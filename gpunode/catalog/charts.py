"""The Helm charts that gpunode renders values for. Sources: charts.csv and chart_keys.csv name theirs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from gpunode.catalog import tables


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart at the version that gpunode knows.

    Attributes:
        app: the version of its images, where gpunode names one itself.
        repository: of Helm, or an ``oci://`` address that holds the chart.
        kubernetes: the oldest version that it supports (``1.34``).
    """

    name: str
    version: str
    app: str
    repository: str
    kubernetes: str


@cache
def chart(name: str) -> Chart:
    """The chart of that name.

    Raises:
        KeyError: gpunode renders no values for it.
    """
    for row in tables.rows("charts.csv"):
        if row["chart"] == name:
            return Chart(name, row["version"], row["app"], row["repository"], row["kubernetes"])
    raise KeyError(name)


def unknown_keys(name: str, values: Mapping[str, Any]) -> list[str]:
    """The keys of ``values`` that the chart does not have, by the table: Helm drops them without a word."""
    known = {row["key"] for row in tables.rows("chart_keys.csv") if row["chart"] == name}
    return [path for path in _paths(values) if not any(path == key or path.startswith(f"{key}.") for key in known)]


def _paths(values: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, held in values.items():
        path = f"{above}{key}"
        if isinstance(held, Mapping) and held:
            yield from _paths(held, f"{path}.")
        else:
            yield path
