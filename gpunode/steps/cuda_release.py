"""The release of a CUDA toolkit: one that the driver supports and that compiles for every GPU of the node."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final

from gpunode.catalog import branches, cuda
from gpunode.catalog.cuda import CudaRelease, Version, format_release, toolkit_packages
from gpunode.catalog.gpus import GpuModel
from gpunode.change import Change, FileChange, FileState, KnownAfter, PackageChange
from gpunode.facts.model import Facts, Known, plan_file, require, value_or
from gpunode.fast_dataclass import dataclass
from gpunode.outcome import Planned, Refusal, StepOutcome
from gpunode.package_id import PackageId
from gpunode.packages import deb
from gpunode.recipe import CudaToolkit, Recipe
from gpunode.steps.gpus import find_models
from gpunode.steps.installed_driver import (
    branch_of,
    explain_manual_marks,
    family_of,
    has_driver,
    installed_driver_packages,
    is_at_version,
    plan_manual_marks,
    preexisting_driver,
)
from gpunode.steps.leftovers import find_run_toolkits
from gpunode.steps.packages import CUDA_PROFILE_SCRIPT, desired_state, find_packages_off_lock, held_packages_refusal
from gpunode.steps.selection import (
    WantedDriver,
    choose_driver_for_node,
    installed_driver_version,
    unlocked_package_refusal,
    wanted_driver,
)

CUDA_TOOLKIT_COMPONENTS: Final = ("nvcc", "cudart", "cublas")
# Among NVIDIA's repositories in cuda_repositories.csv, that for Ubuntu 22.04 goes back farthest.
_OLDEST_PACKAGED_RELEASE: Final = (11, 7)
# No LD_LIBRARY_PATH: programs find the libraries by the run path, or by the packages' files in ld.so.conf.d.
_PATH_SCRIPT_TEMPLATE: Final = """\
# Written by gpunode: the CUDA toolkit that its recipe names comes first in PATH.
case ":$PATH:" in
*:{folder}/bin:*) ;;
*) export PATH={folder}/bin${{PATH:+:$PATH}} ;;
esac
"""


@dataclass(frozen=True, slots=True)
class _DriverLimit:
    """The driver that programs of the toolkit will run on.

    Attributes:
        version: empty if there is none, or none is known.
        branch: 0 in the same cases.
    """

    version: str
    branch: int


def plan_toolkit(recipe: Recipe, facts: Facts) -> StepOutcome:
    """Plan the toolkit's packages and the file that puts it in PATH; other releases stay beside it."""
    if refused := _find_jetson_refusal(facts) or _find_foreign_driver_refusal(recipe, facts):
        return refused
    driver = _find_driver_limit(recipe, facts)
    if isinstance(driver, Refusal):
        return driver
    version = _choose_release(recipe, facts, driver)
    if isinstance(version, Refusal):
        return version
    if refused := _find_run_toolkit_refusal(version, facts):
        return refused
    packages = require(facts.packages, "which packages are installed")
    names = tuple(map(PackageId, toolkit_packages(version, recipe.cuda.parts)))
    if recipe.lock is not None and (unlocked := [name for name in names if name not in recipe.lock.packages]):
        return unlocked_package_refusal(recipe.lock, unlocked[0])
    absent = [name for name in names if recipe.upgrade or not is_at_version(packages.get(name), "")]
    if absent and version < _OLDEST_PACKAGED_RELEASE:
        return _unpackaged_release_refusal(version, facts)
    parts = [package for package in (recipe.lock.packages if recipe.lock else ()) if _is_component(package, version)]
    strays = [package for package in find_packages_off_lock(recipe, packages, parts) if package not in names]
    wanted = tuple(dict.fromkeys((*absent, *find_packages_off_lock(recipe, packages, names), *strays)))
    if held_packages := [name for name in wanted if name in packages and packages[name].held]:
        return held_packages_refusal(held_packages, f"CUDA {format_release(version)}")
    marked = plan_manual_marks(packages, [name for name in names if name not in wanted])
    states = ((name, desired_state(recipe, name, KnownAfter(why="CUDA toolkit"))) for name in wanted)
    changes: list[Change] = [
        PackageChange(name, packages.get(name), replace(state, auto=name in strays and packages[name].auto))
        for name, state in states
    ]
    script = _PATH_SCRIPT_TEMPLATE.format(folder=f"/usr/local/cuda-{format_release(version)}").encode()
    changes += [*marked, *plan_file(facts, CUDA_PROFILE_SCRIPT, FileState(script)), *_plan_pin(version, facts)]
    reason = _explain_choice(version, facts, driver)
    if marked:
        reason += f"; {explain_manual_marks(marked)}"
    notes = (
        *_compatibility_notes(version, driver),
        *_older_than_gpu_notes(version, facts),
        *_side_by_side_notes(version, facts),
    )
    return Planned(tuple(changes), reason, notes)


def find_components(recipe: Recipe, facts: Facts) -> tuple[PackageId, ...]:
    """Return the installed packages that came along with the toolkit that the recipe requests."""
    releases = {
        cuda.release_of_toolkit_package(package.name) for package in find_chosen_toolkit_packages(recipe, facts)
    }
    packages = value_or(facts.packages, {})
    return tuple(
        package
        for package, state in packages.items()
        if state.auto and any(_is_component(package, of) for of in releases if of)
    )


def _is_component(package: PackageId, version: Version) -> bool:
    return cuda.release_of_component(package.name) == version


def find_installed_toolkit(facts: Facts) -> CudaToolkit:
    """Return the newest toolkit on the node, or the parts of it, as a recipe names them."""
    installed = [package for package, state in value_or(facts.packages, {}).items() if not state.config_files_only]
    names = [package.name for package in installed if package.name.startswith("cuda-toolkit-")]
    if releases := sorted(version for name in names if (version := cuda.release_of_toolkit_package(name))):
        return CudaToolkit(format_release(releases[-1]))
    for version in sorted(
        {of for package in installed if (of := cuda.release_of_toolkit_package(package.name))}, reverse=True
    ):
        complete = (
            part
            for part in CUDA_TOOLKIT_COMPONENTS
            if {*map(PackageId, toolkit_packages(version, [part]))} <= {*installed}
        )
        if parts := tuple(complete):
            return CudaToolkit(format_release(version), parts)
    return CudaToolkit()


def _find_run_toolkit_refusal(version: Version, facts: Facts) -> Refusal | None:
    """Return the refusal of a release installed outside of packages: a rollback could not restore its files."""
    release = format_release(version)
    if (removal := find_run_toolkits(facts).get(release)) is None:
        return None
    return Refusal(
        what=f"CUDA toolkit {release} in /usr/local/cuda-{release} belongs to no package",
        why="NVIDIA's packages of this release have their files in the same folder: they would overwrite the present "
        "ones, and no rollback could restore them",
        hint=f"{removal}; then run the same command again\nor name another release: version under [cuda]",
    )


def _unpackaged_release_refusal(version: Version, facts: Facts) -> Refusal:
    oldest, _ = _find_oldest_and_newest_gpu(facts)
    last = oldest and cuda.newest_for_capability(cuda.parse_version(oldest.compute_capability))
    is_last = f", and it is the last that compiles for {oldest.label}" if oldest and last == version else ""
    return Refusal(
        what=f"CUDA {format_release(version)} is in no repository for the systems that gpunode sets up",
        why=f"NVIDIA's repositories for them begin with {format_release(_OLDEST_PACKAGED_RELEASE)} or later{is_last}",
        hint='set cuda.version = "none", and compile in one of NVIDIA\'s containers with that release'
        + ("" if is_last else ", or name a newer release"),
    )


def _find_jetson_refusal(facts: Facts) -> Refusal | None:
    """Return the refusal of the toolkit for arm64 servers on a Jetson, whose own CUDA comes with JetPack."""
    if not isinstance(facts.platform, Known) or facts.platform.value.kind != "jetson":
        return None
    return Refusal(
        what=f"gpunode installs no CUDA toolkit on a Jetson ({facts.platform.value.detail})",
        why="NVIDIA's repository for this distribution has it for servers; a Jetson's own comes with JetPack",
        hint=f"leave cuda.version out, and install JetPack's:\nsudo {deb.install_command(('nvidia-jetpack',))}",
    )


def _find_foreign_driver_refusal(recipe: Recipe, facts: Facts) -> Refusal | None:
    """Return the refusal to enable NVIDIA's repository where an upgrade would mix it with another driver."""
    driver = wanted_driver(recipe, facts)
    if isinstance(driver, Refusal | WantedDriver) or driver.is_deferred:
        return None
    packages = value_or(facts.packages, {})
    present = installed_driver_packages(facts) if packages else {}
    if preexisting_driver(recipe, facts) is None and not has_driver(present):
        return None
    return Refusal(
        what="cannot install a CUDA toolkit: NVIDIA's repository is not enabled here",
        why="gpunode does not manage this node's driver, or it comes from other packages: with that repository the "
        "next upgrade would mix NVIDIA's driver packages with them",
        hint='have gpunode manage the driver (driver.version = "auto" and --upgrade), or take your distribution\'s own '
        f"toolkit:\nsudo {deb.install_command(('nvidia-cuda-toolkit',))}",
    )


def _find_driver_limit(recipe: Recipe, facts: Facts) -> _DriverLimit | Refusal:
    """Return the driver that the node has or gets, as far as its version is known."""
    driver = wanted_driver(recipe, facts)
    if isinstance(driver, Refusal):
        return driver
    if isinstance(driver, WantedDriver) or driver.is_deferred:  # one that waits for its key comes later
        chosen = choose_driver_for_node(recipe, facts)
        if isinstance(chosen, Refusal):
            return chosen
        kept = "" if recipe.upgrade or isinstance(driver, Planned) else installed_driver_version(facts, driver)
        branch = branches.find(chosen.branch)
        return _DriverLimit(chosen.exact or kept or (branch.newest_seen if branch else ""), chosen.branch)
    loaded = value_or(facts.loaded_driver, None)
    return _DriverLimit(loaded.version, branch_of(loaded.version)) if loaded else _DriverLimit("", 0)


def _find_oldest_and_newest_gpu(facts: Facts) -> tuple[GpuModel | None, GpuModel | None]:
    """Return the GPUs with the lowest and the highest compute capability; None if none is known."""
    models = [model for model in find_models(value_or(facts.devices, ())) if model.compute_capability]
    models.sort(key=lambda model: cuda.parse_version(model.compute_capability))
    return (models[0], models[-1]) if models else (None, None)


def _find_first_release(facts: Facts) -> Version:
    """Return the oldest release that compiles for the newest GPU; empty if that is unknown."""
    _, newest = _find_oldest_and_newest_gpu(facts)
    return cuda.first_for_capability(cuda.parse_version(newest.compute_capability)) if newest else ()


def _choose_release(recipe: Recipe, facts: Facts, driver: _DriverLimit) -> Version | Refusal:
    requested = recipe.cuda.version
    if requested != "auto":
        return _check_release(cuda.parse_version(requested), facts, driver)
    if recipe.lock is not None and (locked := _complete_releases(recipe.lock.packages, recipe)):
        return _check_release(max(locked), facts, driver)
    first = _find_first_release(facts)
    # An installed part of a release counts if the recipe requests no more than that.
    installed = [package for package, state in value_or(facts.packages, {}).items() if not state.config_files_only]
    kept = {*installed_releases(facts), *_complete_releases(installed, recipe)}
    working = [v for v in kept if v >= first and _check_release(v, facts, driver) == v]
    if working and not recipe.upgrade:
        # An installed release that works is kept, so that a re-run does not drift.
        return max(working)
    oldest, _ = _find_oldest_and_newest_gpu(facts)
    limits = [cuda.releases()[-1].version]
    if oldest is not None and (compiles := cuda.newest_for_capability(cuda.parse_version(oldest.compute_capability))):
        limits.append(compiles)
    if driver.branch and (runs := cuda.newest_supported_by_driver(driver.version or str(driver.branch))):
        limits.append(runs)
    # An upgrade does not go back either: the next run would keep the newer release again.
    return _check_release(max([min(limits), *working]), facts, driver)


def _check_release(version: Version, facts: Facts, driver: _DriverLimit) -> Version | Refusal:
    """Return ``version`` if it compiles for every GPU and its programs run on the driver, else why not."""
    release = cuda.find(version)
    if release is None:
        newest_listed = cuda.releases()[-1]
        if version < newest_listed.version:
            listed = ", ".join(format_release(release.version) for release in cuda.releases()[-6:])
            return Refusal(
                what=f"there is no CUDA {format_release(version)}",
                why=f"the newest releases are {listed}",
                hint='set cuda.version to one of them, or to "auto"',
            )
        # A newer release needs at least what the newest listed one needs; the note says that the table lacks it.
        release = replace(newest_listed, version=version)
    oldest, _ = _find_oldest_and_newest_gpu(facts)
    if oldest is not None and release.oldest_capability > cuda.parse_version(oldest.compute_capability):
        newest = cuda.newest_for_capability(cuda.parse_version(oldest.compute_capability))
        last = format_release(newest) if newest else "none"
        return Refusal(
            what=f"CUDA {format_release(version)} does not compile for {oldest.label}",
            why=f"the last release that does is {last}",
            hint=f'set cuda.version = "auto" or "{last}" in the recipe',
        )
    if driver.branch and driver.branch < release.min_branch:
        return _old_driver_refusal(release, driver)
    return version


def _old_driver_refusal(release: CudaRelease, driver: _DriverLimit) -> Refusal:
    newest = cuda.newest_supported_by_driver(driver.version) if driver.version else None
    instead = f' or cuda.version = "{format_release(newest)}"' if newest else ""
    return Refusal(
        what=f"CUDA {format_release(release.version)} does not run on driver {driver.version or driver.branch}",
        why=f"its programs need branch {release.min_branch} or newer",
        hint=f'choose a newer driver.version, cuda.version = "auto"{instead} in the recipe',
    )


def installed_releases(facts: Facts) -> list[Version]:
    """Return the releases of which the complete toolkit or a compiler is installed as a package, oldest first."""
    packages = value_or(facts.packages, {})
    names = (package.name for package, state in packages.items() if not state.config_files_only)
    releases = (
        cuda.release_of_toolkit_package(name) for name in names if name.startswith(("cuda-toolkit-", "cuda-nvcc-"))
    )
    return sorted({version for version in releases if version})


def _complete_releases(packages: Collection[PackageId], recipe: Recipe) -> set[Version]:
    """Return the releases of which ``packages`` have all that the recipe requests."""
    releases = {version for package in packages if (version := cuda.release_of_toolkit_package(package.name))}
    return {
        release
        for release in releases
        if {*packages}.issuperset(map(PackageId, toolkit_packages(release, recipe.cuda.parts)))
    }


def _plan_pin(version: Version, facts: Facts) -> tuple[FileChange, ...]:
    """Return the pin that keeps out the distribution's packages of the same names, if it has any."""
    family = family_of(facts)
    if isinstance(family, Refusal) or not family.cuda_archive_origins:
        return ()
    release = "-".join(map(str, version))
    patterns = (f"cuda-*-{release}", f"lib*-{release}")
    pin = deb.render_cuda_pin(patterns, family.cuda_archive_origins)
    return plan_file(facts, deb.CUDA_PIN_FILE, FileState(pin))


def _explain_choice(version: Version, facts: Facts, driver: _DriverLimit) -> str:
    """Return which release it is, and what rules out a newer one."""
    text, limits = f"CUDA {format_release(version)} in /usr/local/cuda-{format_release(version)}", list[str]()
    oldest, _ = _find_oldest_and_newest_gpu(facts)
    compiles = cuda.newest_for_capability(cuda.parse_version(oldest.compute_capability)) if oldest else None
    if oldest is not None and compiles == version and compiles != cuda.releases()[-1].version:
        limits.append(f"the newest that compiles for {oldest.label}")
    if driver.version and cuda.newest_supported_by_driver(driver.version) == version:
        limits.append(f"the newest that driver {driver.version} supports in full")
    return f"{text}: {' and '.join(limits)}" if limits else text


def _compatibility_notes(version: Version, driver: _DriverLimit) -> Iterator[str]:
    """Yield which parts of a release newer than the driver work. Source: CUDA compatibility guide, minor versions."""
    if cuda.find(version) is None:
        yield (
            f"CUDA {format_release(version)} is newer than gpunode's tables, which do not say which driver it needs; "
            "its release notes do"
        )
        return
    newest = cuda.newest_supported_by_driver(driver.version) if driver.version else None
    if newest is not None and newest < version:
        yield (
            f"driver {driver.version} supports CUDA {format_release(newest)} in full: programs compiled by "
            f"{format_release(version)} run on it, but not those that the driver has to compile (PTX) or that use "
            "newer features of the driver"
        )


def _older_than_gpu_notes(version: Version, facts: Facts) -> Iterator[str]:
    """Yield a note if the release is older than a GPU, for which only the driver can then compile."""
    first, (_, newest) = _find_first_release(facts), _find_oldest_and_newest_gpu(facts)
    if newest is not None and version < first:
        yield (
            f"CUDA {format_release(version)} does not compile for {newest.label}, {format_release(first)} and newer "
            "do: its programs run there only if they hold PTX, which the driver compiles at their start"
        )


def _side_by_side_notes(version: Version, facts: Facts) -> Iterator[str]:
    others = [format_release(release) for release in installed_releases(facts) if release != version]
    if others:
        stay = "stay beside it, each in its own folder" if others[1:] else "stays beside it in a folder of its own"
        yield f"CUDA {', '.join(others)} {stay}; PATH has {format_release(version)} first"


def find_chosen_toolkit_packages(recipe: Recipe, facts: Facts) -> tuple[PackageId, ...]:
    """Return the packages of the chosen release; none if there is none."""
    if _find_jetson_refusal(facts) or _find_foreign_driver_refusal(recipe, facts):
        return ()
    driver = _find_driver_limit(recipe, facts)
    version = driver if isinstance(driver, Refusal) else _choose_release(recipe, facts, driver)
    return () if isinstance(version, Refusal) else tuple(map(PackageId, toolkit_packages(version, recipe.cuda.parts)))
