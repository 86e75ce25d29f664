"""View the driver's versions on a node and in containers: loaded, on disk, in libraries and packages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, lines_with
from gpunode.diagnoses.views import driver, history, packages
from gpunode.diagnoses.views.driver import SeenVersion
from gpunode.diagnoses.views.history import Upgrade
from gpunode.diagnoses.views.packages import Package
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern

_MISMATCH: Final = Pattern(
    r"driver/library version mismatch|API mismatch:|nvidia-modeset: Version mismatch|RM_VERSION_MISMATCH"
    r"|does not match DSO version|LIB_RM_VERSION_MISMATCH|NVMLError_LibRmVersionMismatch",
    re.IGNORECASE,
)
# libnvidia-container asks NVML on the node, before there is a container.
_ASKED_ON_NODE: Final = Pattern(
    r"nvidia-container-cli|nvml error:|Error: nvml:|initialization error|libnvidia-container|auto-detected mode"
)
_SHIPPED: Final = Pattern(rf"lib(?:nvidia-ml|cuda)\.so\.(?P<version>{driver.VERSION})")


@dataclass(frozen=True, slots=True)
class DriverVersions:
    """The driver's versions on the node.

    Attributes:
        mismatches: the lines that report a mismatch on the node itself.
        user_version: of the library, else of the user-side packages.
        kernel_packages: kernel-side packages and metapackages.
        user_packages: user-side packages.
        upgrades: of each package the last one, where its version is not loaded.
    """

    mismatches: tuple[Citation, ...]
    loaded: SeenVersion | None
    disk: SeenVersion | None
    user_version: SeenVersion | None
    kernel_packages: tuple[Package, ...]
    user_packages: tuple[Package, ...]
    upgrades: tuple[Upgrade, ...]

    @property
    def citations(self) -> tuple[Citation, ...]:
        """The lines that tell of the mismatch and of what differs."""
        seen = (one.citation for one in (self.loaded, self.disk, self.user_version) if one is not None)
        return tuple(dict.fromkeys((*self.mismatches, *seen)))

    def is_loaded(self, version: str) -> bool:
        """Return whether that is the version of the loaded module."""
        return self.loaded is not None and is_same_version(self.loaded.version, version)

    @property
    def has_new_module(self) -> bool:
        """True if another module is on disk than the one that is loaded."""
        return self.loaded is not None and self.disk is not None and not self.is_loaded(self.disk.version)

    @property
    def has_difference(self) -> bool:
        """True if the module, packages or upgrades of the node are of another version than the loaded module."""
        there = (
            *(one.upstream for one in (*self.kernel_packages, *self.user_packages)),
            *(one.driver for one in self.upgrades),
        )
        is_behind = any(version and not self.is_loaded(version) for version in there)
        return self.has_new_module or (self.loaded is not None and is_behind)


def is_same_version(version: str, short: str) -> bool:
    """Return whether ``version`` is ``short``, of which NVML leaves the last part away."""
    return version == short or (short.count(".") == 1 and version.startswith(f"{short}."))


def version_key(version: str) -> tuple[int, ...]:
    """Return the version's parts, which compare."""
    return tuple(int(part) for part in re.findall(r"\d{1,18}", version))


def driver_versions(snapshot: Snapshot) -> DriverVersions:
    """Return the versions on the node."""
    user = driver.user_packages(snapshot)
    bringing = (*driver.kernel_packages(snapshot), *driver.metapackages(snapshot))
    library, loaded = driver.library_version(snapshot), driver.loaded_version(snapshot)
    if library is not None:
        library = _complete_version(
            library, loaded, (*driver.library_versions(snapshot), *(SeenVersion(u.upstream, u.citation) for u in user))
        )
    else:
        other = [one for one in user if loaded is None or one.upstream != loaded.version]
        library = SeenVersion(other[0].upstream, other[0].citation) if other else None
    recent = _recent_upgrades(history.package_upgrades(snapshot), loaded)
    return DriverVersions(
        mismatch_lines(snapshot), loaded, driver.on_disk_version(snapshot), library, bringing, user, recent
    )


def _complete_version(library: SeenVersion, loaded: SeenVersion | None, known: Iterable[SeenVersion]) -> SeenVersion:
    """Return the library with its whole version; it is not the loaded one, which NVML refused."""
    found = [one for one in known if is_same_version(one.version, library.version)]
    other = next((one for one in found if loaded is None or one.version != loaded.version), None)
    return SeenVersion(other.version, library.citation) if other is not None else library


def _recent_upgrades(upgrades: tuple[Upgrade, ...], loaded: SeenVersion | None) -> tuple[Upgrade, ...]:
    """Return the last upgrade of each package, unless its version is loaded, or older: a log goes back for months."""
    last = {one.name: one for one in upgrades if one.driver} or {one.name: one for one in upgrades}
    if loaded is None:
        return tuple(last.values())
    current = version_key(loaded.version)
    names = {one.name for one in last.values() if not one.driver or version_key(one.driver) > current}
    # The log of unattended-upgrades names the packages, dpkg's the versions: one tells who, the other what.
    return tuple(one for one in upgrades if one.name in names and (not one.driver or one is last[one.name]))


def _is_inside(item: Item) -> bool:
    is_contained = item.where == "container" or item.kind in driver.CONTAINED
    return is_contained and not _ASKED_ON_NODE.search(item.text)


def mismatch_lines(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the lines that tell of a mismatch where no container is in between."""
    tables = {"file", "packages", "container-inspect"}
    items = (item for item in snapshot.items if not item.is_register and item.kind not in tables)
    here = (item for item in items if not _is_inside(item))
    return tuple(line for item in here for line in lines_with(item, _MISMATCH))


def container_mismatch_lines(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the lines that tell of a mismatch inside a container."""
    return tuple(line for item in snapshot.items if _is_inside(item) for line in lines_with(item, _MISMATCH))


def shipped_driver_files(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return driver files and packages of an image or container that differ from the node's."""
    known = driver.smi_version(snapshot) or driver.loaded_version(snapshot)
    node = known.version if known else ""
    inside = (one for one in packages.container_packages(snapshot) if history.is_driver_package(one.name))
    files = tuple(
        cite(item, item.number_at(match.start()))
        for item in snapshot.items
        if item.where == "container" or item.kind == "container-inspect"
        for match in _SHIPPED.finditer(item.text)
        if not is_same_version(node, match["version"])
    )
    return (*(one.citation for one in inside if one.upstream != node), *files)
