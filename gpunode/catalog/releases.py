"""The releases of distributions that use apt; the table beside this file names its sources."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from gpunode.catalog import tables
from gpunode.facts.model import Distro
from gpunode.fast_dataclass import dataclass

_TABLE_FILE = "releases.csv"


@dataclass(frozen=True, slots=True)
class Release:
    """A release; for a derivative, the release whose packages and repository it uses.

    Attributes:
        distribution: the ID of os-release(5).
        repository: NVIDIA's folder for it (``debian12``); empty if gpunode installs no driver.
        ended: the packages of branches that NVIDIA's repository dropped.
        has_apt_key: whether it has the program apt-key.
    """

    distribution: str
    version: str
    repository: str
    ended: Mapping[int, str]
    has_apt_key: bool


def release(distro: Distro) -> Release | None:
    """Return the release of ``distro``; None if it is not in the table, such as a newer one."""
    is_debian = distro.id == "debian"  # its point releases, as in /etc/debian_version, count as one release
    return _release(distro.id, distro.version_id.partition(".")[0] if is_debian else distro.version_id)


@cache
def _release(distribution: str, version: str) -> Release | None:
    key = (distribution, version)
    row = next((row for row in tables.rows(_TABLE_FILE) if (row["distribution"], row["version"]) == key), None)
    if row is None:
        return None
    if base := row["derivative_of"]:
        return _release(*base.split())
    return Release(
        distribution=distribution,
        version=version,
        repository=row["repository"],
        ended={int(branch): name for branch, _, name in (part.partition(":") for part in row["ended"].split())},
        has_apt_key=row["apt_key"] == "yes",
    )


def supported_versions() -> Mapping[str, tuple[str, ...]]:
    """Return the versions for which NVIDIA has a repository, by distribution, without derivatives."""
    versions: dict[str, tuple[str, ...]] = {}
    for row in tables.rows(_TABLE_FILE):
        if row["repository"]:
            versions[row["distribution"]] = (*versions.get(row["distribution"], ()), row["version"])
    return versions
