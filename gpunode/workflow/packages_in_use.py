"""Find packages that an undo must not purge, although gpunode installed them: others use them now."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping
from typing import Final

from gpunode.change import PackageState
from gpunode.facts.evidence import Probe, decode_matches
from gpunode.host.port import HostView
from gpunode.journal.footprint import Footprint
from gpunode.package_id import PackageId
from gpunode.packages import deb
from gpunode.runtimes import RUNTIMES
from gpunode.steps.kernel import HEADERS_STEP
from gpunode.wording import join_names

_DKMS: Final = PackageId("dkms")
_DKMS_SOURCES: Final = "/var/lib/dkms/*/*/source"
# The driver's, GPUDirect Storage's and GDRCopy's, as NVIDIA and the distributions name them.
_OWN_DKMS_MODULES: Final = ("nvidia", "gdrdrv")


def find_packages_in_use(
    host: HostView,
    wanted: Mapping[PackageId, PackageState | None],
    installed: Mapping[PackageId, PackageState],
    footprint: Footprint,
) -> dict[PackageId, str]:
    """Return the packages that are not ``wanted`` any more but used by others, with the reason to keep each."""
    purged = {package for package, state in wanted.items() if state is None and package in installed}
    # Of a package that had been removed before gpunode, the undo leaves the configuration files.
    removed = {
        package
        for package, state in wanted.items()
        if state and state.config_files_only and package in installed and not installed[package].config_files_only
    }
    kept = _find_packages_with_data(host, purged, installed)
    return kept | _find_builders_in_use(host, purged | removed, footprint)


def _find_packages_with_data(
    host: HostView, going: Collection[PackageId], installed: Mapping[PackageId, PackageState]
) -> dict[PackageId, str]:
    """Return the packages whose purge would delete their users' data, and their clients, with the reason to keep them.

    A setup could install the package again, but nothing could bring the data back.
    """
    kept: dict[PackageId, str] = {}
    for runtime in RUNTIMES:
        package = PackageId(runtime.packages[0])
        if package not in going:
            continue
        captures = (
            host.run_probe(Probe(pattern, glob=pattern, contents=False)) for pattern in runtime.data_lost_by_purge
        )
        # What cannot be listed may be data.
        if not any(capture.data or capture.outcome not in {"ok", "absent"} for capture in captures):
            continue
        loss = (
            f"a purge deletes {posixpath.commonpath(runtime.data_lost_by_purge)}, which has "
            "containers, images or volumes"
        )
        if installed[package].config_files_only:
            kept[package] = f"keeps its configuration files: {loss}"
            continue
        kept[package] = f"stays: {loss} (`sudo {deb.remove_command((str(package),))}` leaves them)"
        clients = sorted(map(PackageId, runtime.client_packages.values()))
        kept |= {one: f"stays with {package}" for one in clients if one in going}
    return kept


def _find_builders_in_use(host: HostView, going: Collection[PackageId], footprint: Footprint) -> dict[PackageId, str]:
    """Return DKMS and the kernel headers with the reason to keep them, if DKMS builds modules of others.

    No package need depend on them: a vendor's installer adds a module by itself, and DKMS only recommends headers.
    Without them the next kernel would lack that module, such as its network card's or ZFS.
    """
    matches = decode_matches(host.run_probe(Probe(_DKMS_SOURCES, glob=_DKMS_SOURCES, contents=False)).data)
    modules = {match.path.split("/")[4] for match in matches}
    others = sorted(name for name in modules if not name.startswith(_OWN_DKMS_MODULES))
    if not others:
        return {}
    builders = (
        package for package in sorted(going) if package == _DKMS or footprint.packages[package].step == HEADERS_STEP.id
    )
    return {package: f"stays: DKMS builds {join_names(others)} for the next kernel" for package in builders}
