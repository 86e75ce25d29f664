"""Libraries of a driver that no installed package can have brought: left by NVIDIA's .run installer, or copied."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpunode.catalog.conflicts import upstream
from gpunode.command import command
from gpunode.facts.model import Facts, Known, known, need
from gpunode.facts.patterns import Pattern
from gpunode.facts.project import PLAN
from gpunode.outcome import Refusal

_LIBRARY: Final = Pattern(r"/lib(?:cuda|nvidia-ml)\.so\.(?P<version>\d{3}\.\d+(?:\.\d+)?)\Z")
_LOCAL: Final = "/usr/local/"
# Where the installer puts modules without DKMS, and no package does.
_MODULE_FOLDER: Final = "/kernel/drivers/video/"
_COMPATIBILITY: Final = "cuda-compat-"
# In the names of NVIDIA's installers.
_ARCHITECTURES: Final = {"amd64": "x86_64", "arm64": "aarch64"}


def refuse_leftovers(facts: Facts) -> Refusal | None:
    """Return the refusal of a node with files of a .run driver whose uninstaller is gone; None where there are none.

    The files that packages bring too would be overwritten, and no rollback has their bytes. A library is known by the
    version in its name: a package brings its own version.

    While a change of packages is interrupted there is no telling: a package system unpacks the new files before it
    removes the old ones, and records the new version after that. Setup asks again after the repair.
    """
    if _is_interrupted(facts):
        return None
    versions = _packaged_versions(facts)
    found = {path: match["version"] for path in _libraries(facts) if (match := _LIBRARY.search(path))}
    foreign = {path: one for path, one in found.items() if one not in versions and not path.startswith(_LOCAL)}
    if not foreign:
        return None
    modules = [file.path for file in known(facts.module_files, ()) if _MODULE_FOLDER in file.path and not file.dkms]
    version = max(foreign.values())
    machine = _ARCHITECTURES.get(known(facts.architecture, ""), "x86_64")
    uninstall = command("sudo", "sh", f"NVIDIA-Linux-{machine}-{version}.run", "--uninstall")
    return Refusal(
        what=f"files of driver {version} are installed that belong to no package, and their uninstaller is missing",
        why=f"{', '.join((*sorted(foreign), *modules))}: NVIDIA's .run installer leaves such files; packages would "
        "overwrite some of them, and no rollback could bring those back",
        hint=f"download the installer of that version again and have it remove its driver: `{uninstall}`; or move "
        "the files away yourself; then run the same command again",
    )


def local_libraries(facts: Facts) -> Iterator[str]:
    """Yield a note for the driver libraries in /usr/local/lib, which ld.so prefers to those of packages.

    Source: /etc/ld.so.conf.d of Debian and Ubuntu, read by name: libc.conf has /usr/local/lib, and comes before the
    file with the system's own folders.
    """
    if paths := [path for path in _libraries(facts) if path.startswith(_LOCAL)]:
        belong = "belongs" if len(paths) == 1 else "belong"
        yield (
            f"{', '.join(paths)} {belong} to no package, and programs load libraries in /usr/local/lib before the "
            "driver's own: remove it, then run ldconfig"
        )


def _libraries(facts: Facts) -> list[str]:
    fact = facts.driver_libraries
    return sorted(fact.value) if isinstance(fact, Known) else []


def _is_interrupted(facts: Facts) -> bool:
    """Return whether a change of packages stopped in its middle, be its repair planned or not."""
    fact = facts.packages_interrupted
    return known(fact, default=True) or fact.probe == PLAN


def _packaged_versions(facts: Facts) -> frozenset[str]:
    """Return the upstream versions of whatever is installed: drivers have packages of any name (nvidia-linux-grid-550).

    CUDA's compatibility libraries are in a folder of their own, so that their version says nothing of other files.
    """
    installed = need(facts.packages, "which packages are installed").items()
    return frozenset(
        upstream(state.version)
        for package, state in installed
        if not state.config_files_only and not package.name.startswith(_COMPATIBILITY)
    )
