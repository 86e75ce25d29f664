"""Differences between distributions: names of packages and addresses of repositories. Pure."""

from __future__ import annotations

from gpunode.catalog import releases
from gpunode.distros.debian import DEBIAN
from gpunode.distros.family import Family
from gpunode.distros.ubuntu import UBUNTU
from gpunode.facts.model import Distro
from gpunode.wording import join_with_and

__all__ = ["DEBIAN", "DISTROS", "UBUNTU", "Family", "family", "supported"]

DISTROS: tuple[Family, ...] = (DEBIAN, UBUNTU)


def family(distro: Distro) -> Family | None:
    """Return the family whose packages this release has; None if ``releases.csv`` has no repository for it."""
    release = releases.release(distro)
    if release is None or not release.repository:
        return None
    return next((known for known in DISTROS if known.id == release.distribution), None)


def list_supported_distros() -> str:
    """Return the supported releases as people write them: Debian 12 and 13, Ubuntu 22.04 and 24.04."""
    versions = releases.supported_versions()
    return " and ".join(f"{family.name} {join_with_and(versions[family.id])}" for family in DISTROS)
