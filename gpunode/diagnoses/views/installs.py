"""Drivers that are installed side by side: by a .run and packages, of two branches, packagers or builds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import archives, driver, modules, runfile
from gpunode.diagnoses.views.packages import Package
from gpunode.diagnoses.views.system import running_kernel
from gpunode.diagnoses.views.versions import Scene, is_of, number
from gpunode.facts.patterns import Pattern

_BRANCH: Final = Pattern(
    r"^(?:nvidia-(?:driver|dkms|utils|headless|kernel-source|compute-utils|open)"
    r"|libnvidia-compute|linux-modules-nvidia)"
    r"(?:-no-dkms|-open)*-(?P<branch>\d{3})\b"
)
# What two drivers they are, in words, and the lines that show it.
Installs: TypeAlias = "tuple[str, tuple[Citation, ...]]"


def branch_named(name: str) -> str:
    """The branch in a package's name; empty where it has none."""
    match = _BRANCH.match(name)
    return match["branch"] if match else ""


def branch(package: Package) -> str:
    """The branch in a package's name; empty for an empty one that only leads from an old branch to its successor."""
    found = branch_named(package.name)
    return found if found and package.upstream.startswith(f"{found}.") else ""


def side_by_side(snapshot: Snapshot, scene: Scene) -> Iterator[Installs]:
    """Each way in which two drivers are there."""
    packaged = (*scene.bringing, *scene.user)
    branches = {name: one.citation for one in packaged if (name := branch(one))}
    yield from _two("packages of the branches", branches)
    yield from _by_run_file(snapshot, scene, packaged)
    libraries = {one.version: one.citation for one in driver.libraries(snapshot)}
    if any(map(scene.is_loaded, libraries)):
        yield from _two("libraries of", libraries)
    rows = [row for row in snapshot.view(modules.driver_builds) if row.state == "installed"]
    kernel = running_kernel(snapshot) or next((row.kernel for row in rows), "")
    yield from _two("builds by DKMS for one kernel of", {r.version: r.citation for r in rows if r.kernel == kernel})
    packagers: dict[str, Citation] = {name: one.citation for one in packaged if (name := archives.packager(one))}
    if len({one.upstream for one in packaged}) > 1:
        yield from _two("packages by", packagers)


def _two(what: str, found: dict[str, Citation]) -> Iterator[Installs]:
    if len(found) > 1:
        yield f"{what} {' and '.join(sorted(found))}", tuple(found.values())


def _by_run_file(snapshot: Snapshot, scene: Scene, packaged: tuple[Package, ...]) -> Iterator[Installs]:
    """The .run installer's driver beside packages of another version, or its libraries beside other modules."""
    its, loaded, disk, wanted = runfile.installed(snapshot), scene.loaded, scene.disk, scene.wanted
    if loaded and packaged and not any(scene.is_loaded(one.upstream) for one in packaged):
        if its and scene.is_loaded(its.version):
            what = f"{its.version} by NVIDIA's .run installer, {packaged[0].upstream} by packages"
            yield what, (packaged[0].citation, its.citation)
        elif all(number(one.upstream) < number(loaded.version) for one in packaged) and not scene.upgrades:
            what = f"{loaded.version} is loaded, and the packages are all older ({packaged[0].upstream})"
            yield what, (packaged[0].citation,)
    if disk and wanted and not is_of(disk.version, wanted.version):
        told = runfile.named(snapshot, "installer-log", "listing", "text", "package-history")
        for one in (one for one in told if is_of(one.version, wanted.version)):
            what = f"libraries of {wanted.version} by NVIDIA's .run installer, modules of {disk.version}"
            yield what, (one.citation,)
