"""What differs between distributions: names of packages and addresses of repositories. Pure."""

from __future__ import annotations

from gpunode.distros.debian import DEBIAN
from gpunode.distros.family import Family
from gpunode.distros.ubuntu import UBUNTU
from gpunode.facts.model import Distro

__all__ = ["DEBIAN", "DISTROS", "UBUNTU", "Family", "family"]

DISTROS: tuple[Family, ...] = (DEBIAN, UBUNTU)


def family(distro: Distro) -> Family | None:
    """The family of a distribution; None when gpunode knows none of its name, however much it is like one."""
    return next((known for known in DISTROS if known.id == distro.id), None)
