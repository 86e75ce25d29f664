"""CUDA releases, and the driver that each needs. Source: cuda_releases.csv."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import TypeAlias

from gpunode.catalog import tables
from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass

Version: TypeAlias = tuple[int, ...]

# The packages of the complete toolkit and of its parts, before the release's number (``cuda-nvcc-12-9``). Never
# ``cuda`` or ``cuda-12-9``: up to 13.3 they install a driver. Sources: CUDA installation guide for Linux, "Meta
# Packages"; the package lists of NVIDIA's repositories. A compiler needs the headers of cuda-cudart-dev. Releases
# before 11 had other names; no repository for a supported system has them (that for Ubuntu 22.04 begins with 11.7).
_PACKAGES_BY_COMPONENT: Mapping[str, tuple[str, ...]] = {
    "": ("cuda-toolkit",),
    "nvcc": ("cuda-nvcc", "cuda-cudart-dev"),
    "cudart": ("cuda-cudart",),
    "cublas": ("libcublas", "libcublas-dev"),
}
_TOOLKIT_PACKAGE_NAME = Pattern(rf"(?:{'|'.join(chain(*_PACKAGES_BY_COMPONENT.values()))})-(\d{{1,2}})-(\d)")
# Packages installed with them: cuda-cccl-12-9, libcufft-dev-12-9, gds-tools-12-9, cuda-toolkit-12-9-config-common.
_COMPONENT_PACKAGE_NAME = Pattern(r"(?!cuda-compat)(?:cuda|lib|nsight|gds)[a-z-]*-(\d{1,2})-(\d)(?:-config-common)?")


@dataclass(frozen=True, slots=True)
class CudaRelease:
    """A release of CUDA.

    Attributes:
        version: major and minor (``(12, 4)``).
        driver: the oldest driver that supports all of it.
        min_branch: the oldest driver branch on which programs built with it start at all.
        oldest_capability: the lowest compute capability that its compiler targets (``(7, 5)``).
    """

    version: Version
    driver: str
    min_branch: int
    oldest_capability: Version


@lru_cache(maxsize=1)
def releases() -> tuple[CudaRelease, ...]:
    """Return every release of the table, oldest first."""
    rows = tables.rows("cuda_releases.csv")
    return tuple(
        CudaRelease(
            parse_version(row["cuda"]),
            row["driver"],
            int(row["min_branch"]),
            _CAPABILITY_BY_ARCHITECTURE[row["oldest"]],
        )
        for row in rows
    )


# The compute capability at which each architecture of the column ``oldest`` begins. Source: CUDA programming guide.
_CAPABILITY_BY_ARCHITECTURE: Mapping[str, Version] = {
    "Fermi": (2, 0),
    "Kepler 3.0": (3, 0),
    "Kepler 3.5": (3, 5),
    "Maxwell": (5, 0),
    "Turing": (7, 5),
}


# The first release whose compiler targets GPUs from a compute capability on. Source: CUDA release notes.
_FIRST_CUDA_BY_CAPABILITY: Mapping[Version, Version] = {
    (7, 0): (9, 0),
    (7, 5): (10, 0),
    (8, 0): (11, 0),
    (8, 6): (11, 1),
    (8, 9): (11, 8),
    (10, 0): (12, 8),
    (10, 3): (12, 9),
    (10, 7): (13, 4),
    (12, 0): (12, 8),
    (12, 1): (12, 9),
}


def parse_version(version: str) -> Version:
    """Return a version's numbers (``550.54.14``, ``12.4``)."""
    # The text may come from a log, and Python refuses numbers of thousands of digits.
    return tuple(int(part[:18]) for part in version.split("."))


def find(version: Version) -> CudaRelease | None:
    """Return the release of that major and minor version; None if the table has none."""
    return next((release for release in releases() if release.version == version[:2]), None)


def newest_supported_by_driver(driver: str) -> Version | None:
    """Return the newest CUDA that a driver, or the newest of a branch, supports; None if it is older than the table."""
    numbers = parse_version(driver)
    supported = [one.version for one in releases() if parse_version(one.driver)[: len(numbers)] <= numbers]
    return supported[-1] if supported else None


def newest_compatible_with_branch(branch: int) -> Version | None:
    """Return the newest CUDA whose compiled programs start on a driver branch; None if it is older than the table.

    Source: CUDA compatibility guide, "Minor Version Compatibility".
    """
    able = [release.version for release in releases() if release.min_branch <= branch]
    return able[-1] if able else None


def newest_for_capability(capability: Version) -> Version | None:
    """Return the newest CUDA whose compiler targets this compute capability; None if no release of the table does.

    The table has only the GPUs that were dropped; ``first_for_capability`` has those added later.
    """
    able = [release.version for release in releases() if release.oldest_capability <= capability]
    return able[-1] if able else None


def first_for_capability(capability: Version) -> Version:
    """Return the oldest CUDA whose compiler targets this compute capability, as far as it is known."""
    reached = [one for one in _FIRST_CUDA_BY_CAPABILITY if one <= capability]
    return _FIRST_CUDA_BY_CAPABILITY[max(reached)] if reached else ()


def toolkit_packages(version: Version, components: Sequence[str]) -> tuple[str, ...]:
    """Return the packages of a toolkit (``cuda-toolkit-12-9``), or of some parts of it (``cuda-nvcc-12-9``)."""
    names = chain.from_iterable(_PACKAGES_BY_COMPONENT[part] for part in components or ("",))
    return tuple(f"{name}-{'-'.join(map(str, version))}" for name in names)


def release_of_component(name: str) -> Version | None:
    """Return the release of a package that belongs to a toolkit; None for any other package."""
    match = _COMPONENT_PACKAGE_NAME.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def release_of_toolkit_package(name: str) -> Version | None:
    """Return the release of a package of ``toolkit_packages``; None for any other package."""
    match = _TOOLKIT_PACKAGE_NAME.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def format_release(version: Version) -> str:
    """Return a release as people write it: ``12.9``."""
    return ".".join(map(str, version))
