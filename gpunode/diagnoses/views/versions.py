"""The driver's versions on a node: loaded, on disk, in libraries and packages, and what a container brings along."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, lines_with
from gpunode.diagnoses.views import driver, history, packages
from gpunode.diagnoses.views.driver import Seen
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
class Versions:
    """The driver's versions on the node.

    Attributes:
        mismatches: the lines that tell of a mismatch on the node itself.
        wanted: what programs load: the library's version, else that of the user side's packages.
        bringing: kernel side and whole packages at one version.
        user: packages of the user side.
        upgrades: of each package the last one, where its version is not loaded.
    """

    mismatches: tuple[Citation, ...]
    loaded: Seen | None
    disk: Seen | None
    wanted: Seen | None
    bringing: tuple[Package, ...]
    user: tuple[Package, ...]
    upgrades: tuple[Upgrade, ...]

    @property
    def cited(self) -> tuple[Citation, ...]:
        """The lines that tell of the mismatch and of what differs."""
        seen = (one.citation for one in (self.loaded, self.disk, self.wanted) if one is not None)
        return tuple(dict.fromkeys((*self.mismatches, *seen)))

    def is_loaded(self, version: str) -> bool:
        """Whether that is the version of the loaded module."""
        return self.loaded is not None and is_of(self.loaded.version, version)

    @property
    def has_new_module(self) -> bool:
        """Whether another module is on disk than the one that is loaded."""
        return self.loaded is not None and self.disk is not None and not self.is_loaded(self.disk.version)

    @property
    def differ(self) -> bool:
        """Whether the module, packages or upgrades of the node are of another version than the loaded module."""
        there = (*(one.upstream for one in (*self.bringing, *self.user)), *(one.driver for one in self.upgrades))
        is_behind = any(version and not self.is_loaded(version) for version in there)
        return self.has_new_module or (self.loaded is not None and is_behind)


def is_of(version: str, short: str) -> bool:
    """Whether ``version`` is ``short``, of which NVML leaves the last part away."""
    return version == short or (short.count(".") == 1 and version.startswith(f"{short}."))


def number(version: str) -> tuple[int, ...]:
    """The version's parts, which compare."""
    return tuple(int(part) for part in re.findall(r"\d{1,18}", version))


def of_node(snapshot: Snapshot) -> Versions:
    """The versions on the node."""
    user = driver.user_side(snapshot)
    bringing = (*driver.kernel_side(snapshot), *driver.whole(snapshot))
    library, loaded = driver.library(snapshot), driver.loaded(snapshot)
    if library is not None:
        library = _whole(library, loaded, (*driver.libraries(snapshot), *(Seen(u.upstream, u.citation) for u in user)))
    else:
        other = [one for one in user if loaded is None or one.upstream != loaded.version]
        library = Seen(other[0].upstream, other[0].citation) if other else None
    recent = _recent(history.upgrades(snapshot), loaded)
    return Versions(mismatches(snapshot), loaded, driver.on_disk(snapshot), library, bringing, user, recent)


def _whole(library: Seen, loaded: Seen | None, known: Iterable[Seen]) -> Seen:
    """The library with its whole version; it is not the loaded one, which NVML refused."""
    found = [one for one in known if is_of(one.version, library.version)]
    other = next((one for one in found if loaded is None or one.version != loaded.version), None)
    return Seen(other.version, library.citation) if other is not None else library


def _recent(upgrades: tuple[Upgrade, ...], loaded: Seen | None) -> tuple[Upgrade, ...]:
    """The last upgrade of each package, unless its version is loaded, or older: a log goes back for months."""
    last = {one.name: one for one in upgrades if one.driver} or {one.name: one for one in upgrades}
    if loaded is None:
        return tuple(last.values())
    current = number(loaded.version)
    names = {one.name for one in last.values() if not one.driver or number(one.driver) > current}
    # The log of unattended-upgrades names the packages, dpkg's the versions: one tells who, the other what.
    return tuple(one for one in upgrades if one.name in names and (not one.driver or one is last[one.name]))


def _is_inside(item: Item) -> bool:
    is_contained = item.where == "container" or item.kind in driver.CONTAINED
    return is_contained and not _ASKED_ON_NODE.search(item.text)


def mismatches(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The lines that tell of a mismatch where no container is in between."""
    tables = {"file", "packages", "container-inspect"}
    items = (item for item in snapshot.items if not item.is_register and item.kind not in tables)
    here = (item for item in items if not _is_inside(item))
    return tuple(line for item in here for line in lines_with(item, _MISMATCH))


def mismatches_inside(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The lines that tell of a mismatch inside a container."""
    return tuple(line for item in snapshot.items if _is_inside(item) for line in lines_with(item, _MISMATCH))


def shipped(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The driver's files and packages that the image or container has, where they are not of the node's version."""
    known = driver.smi_version(snapshot) or driver.loaded(snapshot)
    node = known.version if known else ""
    inside = (one for one in packages.in_containers(snapshot) if history.is_drivers(one.name))
    files = tuple(
        cite(item, item.number_at(match.start()))
        for item in snapshot.items
        if item.where == "container" or item.kind == "container-inspect"
        for match in _SHIPPED.finditer(item.text)
        if not is_of(node, match["version"])
    )
    return (*(one.citation for one in inside if one.upstream != node), *files)
