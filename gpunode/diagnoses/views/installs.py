"""Drivers that are installed side by side: by a .run and packages, of two branches, repositories, stores or paths."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, TypeAlias

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.diagnoses.views import archives, driver, modules, packages, runfile
from gpunode.diagnoses.views.packages import Package
from gpunode.diagnoses.views.system import package_manager, running_kernel
from gpunode.diagnoses.views.versions import MISMATCH, Scene, is_of, number
from gpunode.facts.patterns import Pattern

_BRANCH: Final = Pattern(
    r"^(?:nvidia-(?:driver|dkms|utils|headless|kernel-source|compute-utils|open)"
    r"|libnvidia-compute|linux-modules-nvidia)"
    r"(?:-no-dkms|-open)*-(?P<branch>\d{3})\b"
)

# What two drivers they are, in words, and the lines that show it.
Installs: TypeAlias = "tuple[str, tuple[Citation, ...]]"


def answering_otherwise(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Where nvidia-smi fails by its version, and answers by another path or without what the environment puts first."""
    tried = [item for item in snapshot.of("nvidia-smi", "nvidia-smi-q") if item.where == "host" and item.source.words]
    failing = [item for item in tried if MISMATCH.search(item.text)]
    ways = {"nvidia-smi", *(item.source.words[0] for item in failing)}
    for item in tried if failing else ():
        is_otherwise = item.source.words[0] not in ways or _WITHOUT.search(item.written)
        if item not in failing and driver.answers(item) and is_otherwise:
            stores = (citation for _, cited in of_two_stores(snapshot) for citation in cited)
            return (cite(item, 1), *stores, *put_first(snapshot))
    return ()


# What takes the libraries out of the way that a site's or a user's environment puts before the system's.
_WITHOUT: Final = Pattern(
    r"\b(?:module|ml) (?:purge|unload|rm|del|-)|\bspack unload\b|\bconda deactivate\b|\bunset LD_LIBRARY_PATH\b"
    r"|\bLD_LIBRARY_PATH=|\benv (?:-i|-u LD_)"
)


def side_by_side(snapshot: Snapshot, scene: Scene) -> Iterator[Installs]:
    """Each way in which two drivers are there."""
    packaged = (*scene.bringing, *scene.user)
    yield from _of_two_branches(packaged)
    if package_manager(snapshot) == "dnf":
        yield from _of_two_repositories(snapshot, packaged)
    yield from _run_beside_packages(snapshot, scene, packaged)
    yield from _run_beside_modules(snapshot, scene)
    yield from of_two_stores(snapshot)
    yield from _beside_the_system(snapshot, scene)
    found = driver.libraries(snapshot)
    if len(found) > 1 and any(scene.is_loaded(one.version) for one in found):
        yield f"libraries of {' and '.join(sorted(one.version for one in found))}", tuple(o.citation for o in found)
    built = {row.version: row.citation for row in snapshot.view(modules.dkms) if _is_for_running(snapshot, row)}
    if len(built) > 1:
        yield f"DKMS has {' and '.join(sorted(built))} for one kernel", tuple(built.values())
    packagers = {name: one for one in packaged if (name := archives.packager(one))}
    if len(packagers) > 1 and len({one.upstream for one in packaged}) > 1:
        yield f"packages by {' and '.join(sorted(packagers))}", tuple(one.citation for one in packagers.values())


def _is_for_running(snapshot: Snapshot, row: modules.DkmsRow) -> bool:
    kernel = running_kernel(snapshot) or next((one.kernel for one in snapshot.view(modules.dkms) if one.kernel), "")
    return row.module.startswith("nvidia") and row.state == "installed" and row.kernel == kernel


def _of_two_branches(packaged: tuple[Package, ...]) -> Iterator[Installs]:
    found = {name: one for one in packaged if (name := branch(one))}
    if len(found) > 1:
        yield f"packages of the branches {' and '.join(sorted(found))}", tuple(one.citation for one in found.values())


def branch(package: Package) -> str:
    """The branch in a package's name; empty for an empty one that only leads from an old branch to its successor."""
    found = branch_named(package.name)
    return found if found and package.upstream.startswith(f"{found}.") else ""


def branch_named(name: str) -> str:
    """The branch in a package's name, whatever its version."""
    match = _BRANCH.match(name)
    return match["branch"] if match else ""


def _of_two_repositories(snapshot: Snapshot, packaged: tuple[Package, ...]) -> Iterator[Installs]:
    theirs = _named(packaged, "nvidia-driver", "nvidia-driver-cuda", "nvidia-driver-libs")
    fusion = _named_like(packaged, "xorg-x11-drv-nvidia")
    # negativo17 has an akmod too, beside a package of this name; in RPM Fusion that is no package of its own.
    if packages.installed(snapshot, "nvidia-kmod-common") is not True:
        fusion += _named_like(packaged, "akmod-nvidia")
    if theirs and fusion:
        yield "NVIDIA's packages and RPM Fusion's", (theirs[0].citation, fusion[0].citation)


def _run_beside_packages(snapshot: Snapshot, scene: Scene, packaged: tuple[Package, ...]) -> Iterator[Installs]:
    """A module that no package brings is loaded, and the packages are of another version."""
    if scene.loaded is None or not packaged or any(scene.is_loaded(one.upstream) for one in packaged):
        return
    its = runfile.installed(snapshot)
    both = (packaged[0].citation, *((its.citation,) if its else ()))
    if its and scene.is_loaded(its.version):
        yield f"{its.version} by NVIDIA's .run installer, {packaged[0].upstream} by packages", both
    elif all(number(one.upstream) < number(scene.loaded.version) for one in packaged) and not scene.upgrades:
        yield f"{scene.loaded.version} is loaded, and the packages are all older ({packaged[0].upstream})", both


def _run_beside_modules(snapshot: Snapshot, scene: Scene) -> Iterator[Installs]:
    """The libraries are of NVIDIA's .run installer, which brings its own module, and the module on disk is another."""
    if scene.disk is None or scene.wanted is None or is_of(scene.disk.version, scene.wanted.version):
        return
    wanted = scene.wanted.version
    told = runfile.named(snapshot, "installer-log", "listing", "text", "package-history")
    its = next((one for one in told if is_of(one.version, wanted)), None)
    if its is not None:
        yield f"libraries of {its.version} by NVIDIA's .run installer, modules of {scene.disk.version}", (its.citation,)


_STORE: Final = Pattern(rf"/nix/store/\w+-nvidia-x11-(?P<version>{driver.VERSION})-")


def _beside_the_system(snapshot: Snapshot, scene: Scene) -> Iterator[Installs]:
    """Module, module on disk and packages are all of one version, and what a search path puts first is of another."""
    if scene.loaded is None or (scene.disk is not None and not scene.is_loaded(scene.disk.version)):
        return
    whole = [one for one in (*scene.bringing, *scene.user) if scene.is_loaded(one.upstream)]
    first = put_first(snapshot)
    named = (version for one in first for version in re.findall(rf"/({driver.VERSION})/", f"{one.line}/"))
    other = next((version for version in named if not scene.is_loaded(version)), "")
    if other and len(whole) == len((*scene.bringing, *scene.user)):
        reason = f"the system's is {scene.loaded.version}, and the environment puts one of {other} first"
        yield reason, (*first, *(one.citation for one in whole))


def of_two_stores(snapshot: Snapshot) -> Iterator[Installs]:
    """Nix keeps each driver in a folder of its own; a profile may lead to another than the system's."""
    found: dict[str, Citation] = {}
    for item in snapshot.items:
        for match in _STORE.finditer(item.text):
            found.setdefault(match["version"], cite(item, item.number_at(match.start())))
    if len(found) > 1:
        yield f"{' and '.join(sorted(found))} in Nix's store are both in use", tuple(found.values())


def _named(found: tuple[Package, ...], *names: str) -> list[Package]:
    return [one for one in found if one.name in names]


def _named_like(found: tuple[Package, ...], start: str) -> list[Package]:
    return [one for one in found if one.name.startswith(start)]


# A folder of a driver's own that is none of the system's.
_OWN_TREE: Final = Pattern(rf"^\S*/[\w.+-]*(?:nvidia|driver)[\w.+-]*/(?:\S*/)?{driver.VERSION}/\S*", re.IGNORECASE)
_OF_SYSTEM: Final = Pattern(r"^/(?:usr|lib|lib64|bin|sbin|run|proc|sys|var|boot)/")


def put_first(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The entries of a search path that lead into a driver's tree outside the system's folders."""
    found = []
    for item in snapshot.items:
        if item.where == "host" and _SEARCHES.search(item.written):
            for place, line in enumerate(item.lines, 1):
                entries = line.rpartition("=")[2].strip().split(":")
                if any(_OWN_TREE.match(entry) and not _OF_SYSTEM.match(entry) for entry in entries):
                    found.append(cite(item, place))
    return tuple(found)


_SEARCHES: Final = Pattern(
    r"LD_LIBRARY_PATH|\bwhich\b|\btype -|\bwhereis\b|\bprintenv\b|^env\b|\b(?:ldd|readlink)\b|\$PATH"
)
