"""The Helm charts that gpunode renders values for. Source: charts.csv names its own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from gpunode.catalog import tables


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart at the version that gpunode knows.

    Attributes:
        app: the version of its images, where gpunode names one itself.
        repository: of Helm, or an ``oci://`` address that holds the chart.
    """

    name: str
    version: str
    app: str
    repository: str


@cache
def chart(name: str) -> Chart:
    """The chart of that name.

    Raises:
        KeyError: gpunode renders no values for it.
    """
    for row in tables.rows("charts.csv"):
        if row["chart"] == name:
            return Chart(name, row["version"], row["app"], row["repository"])
    raise KeyError(name)
