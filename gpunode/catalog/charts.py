"""The Helm charts that gpunode renders values for. Sources: see charts.csv."""

from __future__ import annotations

from functools import cache

from gpunode.catalog import tables
from gpunode.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart at the version that gpunode knows.

    Attributes:
        app: the version of its images, if gpunode names one itself.
        needs_hooks: whether Helm's hooks make objects without which the chart cannot run.
        repository: that of Helm, or an ``oci://`` address that holds the chart.
    """

    name: str
    version: str
    app: str
    needs_hooks: bool
    repository: str


@cache
def chart(name: str) -> Chart:
    """Return the chart of that name.

    Raises:
        KeyError: if gpunode renders no values for it.
    """
    for row in tables.rows("charts.csv"):
        if row["chart"] == name:
            return Chart(name, row["version"], row["app"], row["hooks"] == "install", row["repository"])
    raise KeyError(name)
