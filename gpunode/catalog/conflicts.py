"""The packages that belong to an NVIDIA driver. Source: driver_packages.csv."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal, TypeAlias, cast

from gpunode.catalog import tables
from gpunode.change import PackageState
from gpunode.facts.patterns import Pattern
from gpunode.package_id import PackageId

# The library of nvidia-settings works with any X driver, and packages outside the driver depend on it: libhwloc-plugins
# (so OpenMPI) and Chromium. Purging it would remove those, too.
STANDALONE_PREFIX = "libxnvctrl"
# Tools that work with every driver of their branch, and the OpenCL loader. Debian builds each from its own source, with
# versions that lag behind the driver's; nothing that runs on a GPU needs them at its version.
STANDALONE_TOOL_PACKAGES = frozenset(
    {"nvidia-settings", "nvidia-xconfig", "nvidia-modprobe", "nvidia-libopencl1", "nvidia-opencl-common"}
)
# Debian also builds the persistence daemon from a source with its own versions; NVIDIA's has the driver's version.
SEPARATELY_VERSIONED_IN_DISTROS = STANDALONE_TOOL_PACKAGES | {"nvidia-persistenced"}
PurgeReason: TypeAlias = Literal["same-module", "version-locked", "relation"]
_LIBRARIES_OF_EVERY_BRANCH = frozenset({"libcuda1", "libnvidia-ml1"})
# Up to 13.3 they depend on the toolkit and, through cuda-runtime-12-6, on cuda-drivers; so do the demonstration
# programs. Source: CUDA installation guide for Linux, "Meta Packages".
_CUDA_METAPACKAGE = Pattern(r"cuda(?:-\d+)*|cuda-(?:runtime|demo-suite)-\d+-\d+")
_DRIVER_VERSION_IN_PACKAGE_VERSION = re.compile(r"(?:\d+:)?(\d{3}(?:\.\d+)+)(?:-|\Z)")


def driver_packages(packages: Iterable[PackageId]) -> frozenset[PackageId]:
    """Return those of ``packages`` that belong to a driver."""
    return frozenset(package for package in packages if is_deb_driver_package(package.name))


@lru_cache(maxsize=1 << 14)
def is_deb_driver_package(name: str) -> bool:
    """Return whether a package belongs to a driver of any packager.

    These never do: the CUDA and container toolkits, CUDA's compatibility libraries, DCGM, GPUDirect, nouveau's firmware
    and X driver, repository keys and pinning packages.
    """
    # Cached: a plan calls this a dozen times for every package of the node.
    return _is_listed(name, "purge") and not _is_listed(name, "keep")


def is_cuda_metapackage(name: str) -> bool:
    """Return whether a package installs CUDA and, with it, a driver of any version."""
    return name.startswith("cuda") and _CUDA_METAPACKAGE.fullmatch(name) is not None


def purge_reason(name: str, version: str) -> PurgeReason | None:
    """Return why a package cannot stay beside a driver other than its own; None if it belongs to no driver.

    A package with its own versions leaves only if the package manager says so, or its relations do.
    """
    if is_cuda_metapackage(name):
        return "relation"
    if not is_deb_driver_package(name):
        return None
    fitting = [pattern for pattern in _purge_reasons_by_pattern() if _matches_pattern(name, pattern)]
    longest = max(fitting, key=lambda pattern: len(pattern.rstrip("*")))
    return _purge_reasons_by_pattern()[longest] if upstream_version(version) else "relation"


@lru_cache(maxsize=1)
def _purge_reasons_by_pattern() -> Mapping[str, PurgeReason]:
    rows = (row for row in tables.rows("driver_packages.csv") if row["action"] == "purge")
    return {row["pattern"]: cast("PurgeReason", row["reason"]) for row in rows}


def _matches_pattern(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def _is_listed(name: str, action: str) -> bool:
    names, beginnings = _listed_names_and_prefixes(action)
    return name in names or name.startswith(beginnings)


@lru_cache(maxsize=4)
def driver_versioned_packages(branch: int) -> tuple[str, ...]:
    """Return the names of packages that have the driver's own version, in order. Source: pinned_names.csv."""
    return tuple(sorted({row["name"].format(branch=branch) for row in tables.rows("pinned_names.csv")}))


def upstream_version(version: str) -> str:
    """Return the driver's own version (``580.95.05``) in a package's; empty if the package has its own versions."""
    match = _DRIVER_VERSION_IN_PACKAGE_VERSION.match(version)
    return match[1] if match else ""


def version_locked_packages(
    packages: Mapping[PackageId, PackageState], branch: int, exempt: frozenset[str] = STANDALONE_TOOL_PACKAGES
) -> Mapping[PackageId, str]:
    """Return the installed packages that must have the version of a driver of ``branch``, with their own version.

    Packages of another branch belong to another driver, except the libraries that have the same name in every branch
    and that everything on a GPU needs. Those named ``exempt`` may have any version.
    """
    names = {*driver_versioned_packages(branch)} - exempt
    return {
        package: version
        for package, state in sorted(packages.items())
        if not state.config_files_only
        and (version := upstream_version(state.version))
        and package.name in names
        and not package.name.startswith(STANDALONE_PREFIX)
        and (version.startswith(f"{branch}.") or package.name in _LIBRARIES_OF_EVERY_BRANCH)
    }


@lru_cache(maxsize=2)
def _listed_names_and_prefixes(action: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return complete names, and prefixes; compiled to one regular expression they would take 5 ms at each start."""
    patterns = [row["pattern"] for row in tables.rows("driver_packages.csv") if row["action"] == action]
    beginnings = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    return frozenset(pattern for pattern in patterns if not pattern.endswith("*")), beginnings
