"""Driver versions that do not match: loaded, on disk, in libraries, packages and containers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from gpunode.diagnoses import remedies, symptoms
from gpunode.diagnoses.commands import Shell, command, join_commands
from gpunode.diagnoses.consequences import LIBRARY_MISMATCH
from gpunode.diagnoses.evaluation import is_examined_by_gpunode
from gpunode.diagnoses.model import Citation, Fix, Proof, Rule
from gpunode.diagnoses.packages import named_runfile_versions, runfile_version
from gpunode.diagnoses.remedies import can_run_setup, drain_node, manual_step, reboot_node, run_step, uninstall_driver
from gpunode.diagnoses.signs import all_of, any_line, any_of, custom_sign, file_line, message_line, predicate, unless
from gpunode.diagnoses.snapshot import Snapshot, cite, lines_with
from gpunode.diagnoses.views import driver, kernel, modules, packages, virtualization
from gpunode.diagnoses.views.driver import SeenVersion
from gpunode.diagnoses.views.packages import Package, Upgrade
from gpunode.diagnoses.views.system import package_manager, recent_boot_lines
from gpunode.facts.items import EvidenceItem
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass

_MISMATCH: Final = Pattern(
    r"(?i)driver/library version mismatch|API mismatch:|nvidia-modeset: Version mismatch|RM_VERSION_MISMATCH"
    r"|does not match DSO version|LIB_RM_VERSION_MISMATCH|NVMLError_LibRmVersionMismatch"
)
# libnvidia-container calls NVML on the node before the container exists.
_NODE_SIDE_TOOL_MESSAGE: Final = Pattern(
    r"nvidia-container-cli|nvml error:|Error: nvml:|initialization error|libnvidia-container|auto-detected mode"
)
_DRIVER_LIBRARY_FILE_VERSION: Final = Pattern(rf"lib(?:nvidia-ml|cuda)\.so\.(?P<version>{driver.VERSION})")


@dataclass(frozen=True, slots=True)
class DriverVersions:
    """The driver's versions on the node.

    Attributes:
        mismatches: the lines that report a mismatch on the node itself.
        user_space_version: version of the library, else of the user-space packages.
        kernel_packages: kernel-side packages and metapackages.
        user_space_packages: user-space packages.
        upgrades: the last upgrade of each package whose version is not loaded.
    """

    mismatches: tuple[Citation, ...]
    loaded_module: SeenVersion | None
    disk: SeenVersion | None
    user_space_version: SeenVersion | None
    kernel_packages: tuple[Package, ...]
    user_space_packages: tuple[Package, ...]
    upgrades: tuple[Upgrade, ...]

    @property
    def citations(self) -> tuple[Citation, ...]:
        """The lines that report the mismatch, and those with the differing versions."""
        seen = (one.citation for one in (self.loaded_module, self.disk, self.user_space_version) if one is not None)
        return tuple(dict.fromkeys((*self.mismatches, *seen)))

    def is_loaded(self, version: str) -> bool:
        """Return whether ``version`` is the version of the loaded module."""
        return self.loaded_module is not None and is_same_version(self.loaded_module.version, version)

    @property
    def has_new_module(self) -> bool:
        """True if the module on disk differs from the loaded one."""
        return self.loaded_module is not None and self.disk is not None and not self.is_loaded(self.disk.version)

    @property
    def has_difference(self) -> bool:
        """True if modules, packages or upgrades of the node differ in version from the loaded module."""
        there = (
            *(package.upstream for package in (*self.kernel_packages, *self.user_space_packages)),
            *(upgrade.driver for upgrade in self.upgrades),
        )
        is_behind = any(version and not self.is_loaded(version) for version in there)
        return self.has_new_module or (self.loaded_module is not None and is_behind)


def is_same_version(version: str, short: str) -> bool:
    """Return whether ``version`` is ``short``, which may lack the last part as in NVML's messages."""
    return version == short or (short.count(".") == 1 and version.startswith(f"{short}."))


def version_key(version: str) -> tuple[int, ...]:
    """Return the numeric parts of the version, for comparison."""
    return tuple(int(part) for part in re.findall(r"\d{1,18}", version))


def driver_versions(snapshot: Snapshot) -> DriverVersions:
    """Return the driver's versions on the node."""
    user = driver.user_space_packages(snapshot)
    bringing = (*driver.kernel_packages(snapshot), *driver.metapackages(snapshot))
    library, loaded = driver.library_version(snapshot), driver.loaded_version(snapshot)
    if library is not None:
        library = _complete_version(
            library, loaded, (*driver.library_versions(snapshot), *(SeenVersion(u.upstream, u.citation) for u in user))
        )
    else:
        other = [package for package in user if loaded is None or package.upstream != loaded.version]
        library = SeenVersion(other[0].upstream, other[0].citation) if other else None
    recent = _recent_upgrades(packages.logged_driver_upgrades(snapshot), loaded)
    return DriverVersions(
        mismatch_lines(snapshot), loaded, driver.on_disk_version(snapshot), library, bringing, user, recent
    )


def _complete_version(library: SeenVersion, loaded: SeenVersion | None, known: Iterable[SeenVersion]) -> SeenVersion:
    """Return the library with its full version, which is not the loaded one: NVML refused it."""
    found = [version for version in known if is_same_version(version.version, library.version)]
    other = next((version for version in found if loaded is None or version.version != loaded.version), None)
    return SeenVersion(other.version, library.citation) if other is not None else library


def _recent_upgrades(upgrades: tuple[Upgrade, ...], loaded: SeenVersion | None) -> tuple[Upgrade, ...]:
    """Return the last upgrade of each package unless its version is loaded or older: logs go back for months."""
    last = {one.name: one for one in upgrades if one.driver} or {one.name: one for one in upgrades}
    if loaded is None:
        return tuple(last.values())
    current = version_key(loaded.version)
    names = {upgrade.name for upgrade in last.values() if not upgrade.driver or version_key(upgrade.driver) > current}
    # unattended-upgrades logs the packages' names and dpkg the versions, so both are kept.
    return tuple(one for one in upgrades if one.name in names and (not one.driver or one is last[one.name]))


def _is_inside_container(item: EvidenceItem) -> bool:
    is_contained = item.where == "container" or item.kind in driver.CONTAINER_KINDS
    return is_contained and not _NODE_SIDE_TOOL_MESSAGE.search(item.text)


def mismatch_lines(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the lines that report a mismatch outside of containers."""
    tables = {"file", "packages", "container-inspect"}
    items = (item for item in snapshot.items_with_words(_MISMATCH) if item.kind not in tables)
    here = (item for item in items if not _is_inside_container(item))
    return tuple(line for item in here for line in lines_with(item, _MISMATCH))


def container_mismatch_lines(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the lines that report a mismatch inside a container."""
    items = (item for item in snapshot.items_with_words(_MISMATCH) if _is_inside_container(item))
    return tuple(line for item in items for line in lines_with(item, _MISMATCH))


def shipped_driver_files(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return driver files and packages of an image or container that differ from the node's."""
    known = driver.smi_version(snapshot) or driver.loaded_version(snapshot)
    node = known.version if known else ""
    inside = (package for package in packages.container_packages(snapshot) if packages.is_driver_package(package.name))
    files = tuple(
        cite(item, item.line_number_at(match.start()))
        for item in snapshot.items
        if item.where == "container" or item.kind == "container-inspect"
        for match in _DRIVER_LIBRARY_FILE_VERSION.finditer(item.text)
        if not is_same_version(node, match["version"])
    )
    return (*(package.citation for package in inside if package.upstream != node), *files)


UNATTENDED_UPGRADE_CAUSE: Final = "driver-library-mismatch-unattended-upgrade"
REBOOT_PENDING_CAUSE: Final = "driver-library-mismatch-reboot-pending"
PARTIAL_UPGRADE_CAUSE: Final = "driver-library-mismatch-partial-upgrade"
MIXED_INSTALLS_CAUSE: Final = "driver-library-mismatch-mixed-installs"
CONTAINER_MISMATCH_CAUSE: Final = "container-driver-mismatch"

_DRIVER_IN_REBOOT_REQUIRED_LIST: Final = file_line("*/reboot-required.pkgs", r"^[ \t]*(?:lib)?nvidia-\S+\s*$")
# A site's own driver outside the system folders, to which a search path gives precedence.
_DRIVER_OUTSIDE_SYSTEM_FOLDERS: Final = message_line(
    r"(?:^|[=: ])/(?!usr/|lib|run/|proc/|sys/|var/|boot/)\S*(?:nvidia|driver)\S*/\d{3}\.\d+[\d.]*/(?:\S*/)?(?:bin|lib)",
    *("text", "environment", "which"),
)
# The installer installs only libraries, for modules from another source.
_RUNFILE_SKIPS_MODULES: Final = any_line(r"\bNVIDIA-Linux-\S+\.run\b[^\n]*\s--no-kernel-modules?\b")
# The kernel reports another fault, and nothing reports a mismatch.
_ADAPTER_OR_XID_FAULT: Final = any_of(symptoms.ADAPTER_INIT_FAILED, symptoms.ANY_XID)

# A container with its own libraries. libnvidia-container calls NVML on the node first, so if a container starts at all,
# the node's own library fits.


def _mismatch_evidence(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the evidence that the node itself has two versions."""
    found = snapshot.view(driver_versions)
    if found.mismatches or found.has_difference:
        yield from found.citations
    yield from (upgrade.citation for upgrade in found.upgrades if upgrade.is_automatic)


def _differing_container_library(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the container's library if its version differs from the node's driver."""
    own = driver.container_library_version(snapshot)
    node = driver.smi_version(snapshot) or driver.loaded_version(snapshot)
    if own is not None and node is not None and not is_same_version(node.version, own.version):
        yield from (own.citation, node.citation)


_MISMATCH_IN_CONTAINER: Final = custom_sign(container_mismatch_lines)
_DRIVER_FILES_SHIPPED: Final = custom_sign(shipped_driver_files)
_VERSION_KNOWN: Final = predicate(lambda node: driver.loaded_version(node) is not None, "the driver's version is known")
_LIBRARY_DIFFERS_IN_CONTAINER: Final = custom_sign(_differing_container_library)
# Phrases of users that place the failure in a container.
_CONTAINER_TOLD: Final = message_line(
    r"(?i)\b(?:in|inside|into|within) (?:the|my|our|an?|each) (?:\S+ ){0,2}(?:LXC|LXD|container|pod)\b"
)
_MISMATCH_ON_NODE: Final = unless(custom_sign(_mismatch_evidence), symptoms.DRIVER_WORKS, _CONTAINER_TOLD)
# libnvidia-container stops if the image already has a file where it would mount one from the node.
_FILE_BLOCKS_MOUNT: Final = message_line(
    r"mount error: file creation failed: \S*/lib(?:nvidia|cuda|nvcuvid)[\w.-]*: file exists"
)
_CONTAINER_MISMATCH: Final = any_of(
    _FILE_BLOCKS_MOUNT, all_of(_MISMATCH_IN_CONTAINER, any_of(_DRIVER_FILES_SHIPPED, _LIBRARY_DIFFERS_IN_CONTAINER))
)
_LIKELY_CONTAINER_MISMATCH: Final = any_of(
    _MISMATCH_IN_CONTAINER,
    _LIBRARY_DIFFERS_IN_CONTAINER,
    unless(all_of(_DRIVER_FILES_SHIPPED, _VERSION_KNOWN), symptoms.DRIVER_WORKS),
)
_ONLY_CONTAINER_MISMATCH: Final = unless(any_of(_CONTAINER_MISMATCH, _LIKELY_CONTAINER_MISMATCH), _MISMATCH_ON_NODE)


def _summarize_container_library(snapshot: Snapshot) -> str:
    own = driver.container_library_version(snapshot)
    return f"the container loads its own driver libraries{f' {own.version}' if own else ''}, not the node's"


# The node itself has two versions.


def _is_module_gone(snapshot: Snapshot) -> bool:
    """Return whether a search found no module for any kernel; then neither a reload nor a reboot provides one."""
    return isinstance(snapshot.facts.module_files, Known) and not snapshot.view(modules.modules_on_disk)


_MODULE_GONE: Final = predicate(_is_module_gone, "no module is on disk")


def _mismatched_versions(snapshot: Snapshot) -> DriverVersions | None:
    """Return the versions of a mismatched node; None if it works or only a container differs."""
    found = snapshot.view(driver_versions)
    if driver.works(snapshot) or snapshot.view(_ONLY_CONTAINER_MISMATCH):
        return None
    # In a report, a difference without an error message is a likely fault; on an examined node it is none.
    is_other = is_examined_by_gpunode(snapshot) or snapshot.view(_ADAPTER_OR_XID_FAULT)
    return found if found.mismatches or snapshot.view(_MISMATCH_IN_CONTAINER) or not is_other else None


def _make_proof(snapshot: Snapshot, summary: str, cited: Iterable[Citation] = (), *, sure: bool = True) -> Proof:
    found = snapshot.view(driver_versions)
    is_sure = sure and bool(found.mismatches or snapshot.view(_MISMATCH_IN_CONTAINER))
    return Proof(summary, tuple(dict.fromkeys((*found.citations, *cited))), "certain" if is_sure else "likely")


def _find_mixed_installs(snapshot: Snapshot) -> Iterator[Proof]:
    """Yield the proof of two installed drivers: two methods, branches or packagers."""
    found = snapshot.view(_mismatched_versions)
    # Output that was pasted without its command may come from a container.
    named = {item.key for item in snapshot.items if item.source.words or item.subject}
    for what, citations in (
        _parallel_drivers(snapshot, found) if found and (found.mismatches or found.loaded_module) else ()
    ):
        is_sure = named.issuperset(citation.key for citation in citations)
        yield _make_proof(snapshot, f"two drivers are installed side by side: {what}", citations, sure=is_sure)
        return


def _parallel_drivers(snapshot: Snapshot, versions: DriverVersions) -> Iterator[tuple[str, tuple[Citation, ...]]]:
    """Yield each way in which two drivers are installed, with its evidence."""
    packaged = (*versions.kernel_packages, *versions.user_space_packages)
    libraries = {version.version: version.citation for version in driver.library_versions(snapshot)}
    for what, several in (
        ("packages of the branches", {name: one.citation for one in packaged if (name := _package_branch(one))}),
        ("libraries of", libraries if any(map(versions.is_loaded, libraries)) or not versions.loaded_module else {}),
    ):
        if len(several) > 1:
            yield f"{what} {' and '.join(sorted(several))}", tuple(several.values())
    yield from _runfile_beside_packages(snapshot, versions, packaged)


def _runfile_beside_packages(
    snapshot: Snapshot, versions: DriverVersions, packaged: tuple[packages.Package, ...]
) -> Iterator[tuple[str, tuple[Citation, ...]]]:
    """Yield a .run driver beside packages of another version, or .run libraries beside other modules."""
    its, disk, wanted = runfile_version(snapshot), versions.disk, versions.user_space_version
    is_apart = packaged and not any(versions.is_loaded(package.upstream) for package in packaged)
    if its and is_apart and versions.is_loaded(its.version):
        what = f"{its.version} by NVIDIA's .run installer, {packaged[0].upstream} by packages"
        yield what, (packaged[0].citation, its.citation)
    if disk and wanted and not is_same_version(disk.version, wanted.version):
        for version in named_runfile_versions(snapshot, "installer-log", "listing", "text", "package-history"):
            if is_same_version(version.version, wanted.version):
                what = f"libraries of {wanted.version} by NVIDIA's .run installer, modules of {disk.version}"
                yield what, (version.citation,)


_PACKAGE_BRANCH: Final = Pattern(
    r"^(?:nvidia-(?:driver|dkms|utils|headless|kernel-source|compute-utils|open)"
    r"|libnvidia-compute|linux-modules-nvidia)"
    r"(?:-no-dkms|-open)*-(?P<branch>\d{3})\b"
)


def _package_branch(package: packages.Package) -> str:
    """Return the branch in a package's name; empty for a transitional package."""
    match = _PACKAGE_BRANCH.match(package.name)
    return match["branch"] if match and package.upstream.startswith(f"{match['branch']}.") else ""


def _find_unattended_upgrade(snapshot: Snapshot) -> Iterator[Proof]:
    """Yield the proof that the system upgraded the driver, including the module, automatically."""
    found = snapshot.view(_mismatched_versions)
    is_on_disk = found is not None and found.disk is not None and found.is_loaded(found.disk.version)
    if found is None or is_on_disk or _is_module_gone(snapshot):
        return
    # An upgrade alone is no fault: there must be an error message, or an older loaded module.
    is_shown = found.loaded_module or found.mismatches or snapshot.view(_MISMATCH_IN_CONTAINER)
    if is_shown and (done := [one for one in found.upgrades if one.is_automatic and not found.is_loaded(one.driver)]):
        version = next((f" to {upgrade.driver}" for upgrade in reversed(done) if upgrade.driver), "")
        what = f"the system upgraded the driver automatically{version}, but the old module is still loaded"
        yield _make_proof(snapshot, what, (upgrade.citation for upgrade in done))


def _find_partial_upgrade(snapshot: Snapshot) -> Iterator[Proof]:
    """Yield the proof that one part was not upgraded: the module, its package or a library."""
    if strayed := snapshot.view(driver.stray_packages) if driver.works(snapshot) else ():
        yield _prove_strayed_packages(snapshot, *strayed)
    if (versions := snapshot.view(_mismatched_versions)) is None:
        return
    disk, wanted = versions.disk, versions.user_space_version
    if disk and wanted and not is_same_version(disk.version, wanted.version):
        what = f"the libraries have version {wanted.version}, the kernel module on disk has {disk.version}"
        yield _make_proof(snapshot, what, sure=not versions.has_new_module)
    lone = [
        user_package
        for user_package in versions.user_space_packages
        if versions.loaded_module and not (versions.kernel_packages or versions.is_loaded(user_package.upstream))
    ]
    for package in () if disk else (*_outdated_driver_packages(versions), *lone):
        what = f"{package.name} is {package.upstream}, other parts of the driver are not"
        # If no module package is shown, all packages may be new and only the loaded module old.
        yield _make_proof(snapshot, what, (package.citation,), sure=package not in lone)
        return
    # If the versions differed right after boot, a reboot changes nothing.
    if not disk and any(
        (message.at or _LONG_AFTER_BOOT_S) < _RIGHT_AFTER_BOOT_S
        for message in kernel.matching_messages(snapshot, _API_MISMATCH)
    ):
        yield _make_proof(
            snapshot, "the module that was loaded at boot does not have the libraries' version", sure=False
        )


def _outdated_driver_packages(versions: DriverVersions) -> Iterator[packages.Package]:
    """Yield kernel-side packages whose version differs from the libraries'."""
    for package in versions.kernel_packages:
        is_old = versions.is_loaded(package.upstream) or versions.loaded_module is None
        other = next((user.upstream for user in versions.user_space_packages if user.upstream != package.upstream), "")
        wanted = versions.user_space_version.version if versions.user_space_version else other
        if is_old and wanted and not is_same_version(package.upstream, wanted) and not versions.is_loaded(wanted):
            yield package


def _prove_strayed_packages(snapshot: Snapshot, *strayed: packages.Package) -> Proof:
    """Return the proof of libraries that do not belong to the driver that nvidia-smi shows."""
    node, unfit = driver.smi_version(snapshot), snapshot.view(symptoms.CUDA_DRIVER_COMBINATION_UNFIT)
    what = f"{strayed[0].name} is {strayed[0].upstream}, and the driver {node.version if node else 'another'}"
    cited = (*(package.citation for package in strayed), *([node.citation] if node else []), *unfit)
    text = "install every package of the driver in the version of its kernel modules"
    remedy = (
        (remedies.install_driver(snapshot, text),) if can_run_setup(snapshot) else tuple(_complete_driver(snapshot))
    )
    return Proof(what, cited, "certain" if unfit else "likely", remedy=remedy)


def _find_pending_reboot(snapshot: Snapshot) -> Iterator[Proof]:
    """Yield the proof that a new module or its packages are installed while the old one is loaded."""
    found = snapshot.view(_mismatched_versions)
    if found is None or next(_outdated_driver_packages(found), None) or _is_module_gone(snapshot):
        return
    disk, wanted, loaded = found.disk, found.user_space_version, found.loaded_module
    if disk and wanted and not is_same_version(disk.version, wanted.version):
        return
    done = [upgrade.citation for upgrade in found.upgrades if upgrade.driver and not found.is_loaded(upgrade.driver)]
    new = next((package for package in found.kernel_packages if not found.is_loaded(package.upstream)), None)
    version = disk.version if disk else new.upstream if new else ""
    if disk:
        is_new = found.has_new_module and bool(done or not recent_boot_lines(snapshot))
        is_pending = is_new or (loaded is None and bool(found.mismatches))
    else:
        done += [new.citation] if new else snapshot.view(_DRIVER_IN_REBOOT_REQUIRED_LIST)
        is_pending = bool(done and (found.mismatches or loaded)) or _versions_differed_long_after_boot(snapshot, found)
    if is_pending:
        before = loaded.version if loaded else "before"
        to = f" to {version}" if version else ""
        what = f"the driver was upgraded{to}, but the module of {before} is still loaded"
        yield _make_proof(snapshot, what, done, sure=bool(done and loaded))


def _mismatch_under_old_module(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield a mismatch if no file or package of the driver is shown, and no module as new as the libraries.

    Libraries are rarely older than their module, so the driver was upgraded while it was loaded.
    """
    found = snapshot.view(driver_versions)
    loaded, library = found.loaded_module, found.user_space_version
    is_all = not (found.disk or found.kernel_packages or found.user_space_packages or found.upgrades)
    is_older = not (loaded and library) or version_key(loaded.version) < version_key(library.version)
    if is_all and found.mismatches and is_older:
        yield from found.citations


_MISMATCH_UNDER_OLD_MODULE: Final = custom_sign(_mismatch_under_old_module)
_CHANGE_TOLD: Final = unless(
    any_line(r"(?i)\b(?:updat|upgrad|install)(?:ed|es?|ing)\b|\bnew (?:driver|packages?)\b"), _CONTAINER_TOLD
)


def _versions_differed_long_after_boot(snapshot: Snapshot, versions: DriverVersions) -> bool:
    """Return whether newer libraries were refused long after boot, which means that an upgrade installed them."""
    if (
        versions.user_space_version is None
        or versions.loaded_module is None
        or version_key(versions.user_space_version.version) <= version_key(versions.loaded_module.version)
    ):
        return False
    return any((message.at or 0) > _LONG_AFTER_BOOT_S for message in kernel.matching_messages(snapshot, _API_MISMATCH))


_API_MISMATCH: Final = Pattern(r"API mismatch")
_LONG_AFTER_BOOT_S: Final = 600.0
_RIGHT_AFTER_BOOT_S: Final = 60.0


_PERSISTENCED_UNIT: Final = "nvidia-persistenced.service"
_PERSISTENCED_MENTIONED: Final = message_line(r"persistenced")


def _reload_module(snapshot: Snapshot) -> Iterable[Fix]:
    yield drain_node()
    runs = isinstance(snapshot.facts.unit(_PERSISTENCED_UNIT), Known) or bool(snapshot.view(_PERSISTENCED_MENTIONED))
    stop, start = (
        ((command("sudo", "systemctl", verb, _PERSISTENCED_UNIT),) if runs else ()) for verb in ("stop", "start")
    )
    load = (remedies.UNLOAD_MODULES_COMMAND, Shell("sudo modprobe -a nvidia nvidia_uvm"))
    yield run_step("load", "load the new module without a reboot, if nothing holds the old one", *stop, *load, *start)
    yield reboot_node(when="the old module cannot be unloaded")


_UPGRADE_BLACKLIST: Final = (
    'Unattended-Upgrade::Package-Blacklist { "^nvidia-"; "^libnvidia-"; "^linux-modules-nvidia-"; };'
)


def _reload_and_hold(snapshot: Snapshot) -> Iterable[Fix]:
    yield from _reload_module(snapshot)
    text = "exclude the driver from automatic upgrades"
    if package_manager(snapshot) == "apt":
        file = command("sudo", "tee", "/etc/apt/apt.conf.d/51-nvidia-by-hand")
        yield run_step("configure", text, join_commands(command("echo", _UPGRADE_BLACKLIST), Shell("|"), file))
    else:
        yield manual_step("configure", f"{text}: excludepkgs of dnf-automatic, zypper addlock, or IgnorePkg of pacman")


def _complete_driver(snapshot: Snapshot) -> Iterable[Fix]:
    if holds := sorted(name for name in packages.held_packages(snapshot) if packages.is_driver_package(name)):
        yield remedies.unhold_packages(snapshot, "release the hold on the packages that stayed behind", *holds)
    yield remedies.keep_one_package_archive(snapshot)
    if package_manager(snapshot) in {"apt", "dnf"}:
        yield remedies.align_driver_versions(snapshot, "install", "install every package in the same version")
    yield remedies.install_driver(snapshot, "install the missing packages of that version, including its module")
    yield reboot_node()


def _keep_one_driver(snapshot: Snapshot) -> Iterable[Fix]:
    if virtualization.is_vgpu(snapshot):
        yield remedies.install_guest_driver("keep one driver: leave the guest driver, or reinstall it completely")
        return
    versions = snapshot.view(driver_versions)
    packaged = (*versions.kernel_packages, *versions.user_space_packages)
    numbers = sorted({branch for package in packaged if (branch := _package_branch(package))})
    if len(numbers) > 1:
        older = [
            package.name
            for package in packaged
            if (match := _PACKAGE_BRANCH.match(package.name)) and match["branch"] != numbers[-1]
        ]
        yield uninstall_driver(snapshot, "remove the packages of all branches but one", *sorted(set(older)))
    elif locked := sorted(set(packages.held_packages(snapshot)) & {package.name for package in packaged}):
        yield remedies.unhold_packages(snapshot, "release the held packages", *locked)
    else:
        text = "remove a driver of NVIDIA's .run installer, if there is one beside the packages"
        yield run_step(
            "remove", text, Shell("[ ! -x /usr/bin/nvidia-installer ] || sudo nvidia-installer --uninstall --silent")
        )
    text = "reinstall the remaining one completely"
    if can_run_setup(snapshot):
        text += "; gpunode names each package of another one before it removes it"
    yield remedies.install_driver(snapshot, text)
    yield reboot_node()


def _recreate_container_or_image(snapshot: Snapshot) -> Iterable[Fix]:
    own, node = driver.container_library_version(snapshot), snapshot.view(driver_versions).loaded_module
    is_older = own is not None and node is not None and version_key(own.version) < version_key(node.version)
    image = manual_step("remove", "build the image without packages of the driver: its libraries come from the node")
    anew = manual_step("restart", "recreate the container, so that it gets the libraries of the present driver")
    yield from ((anew, image) if is_older and not shipped_driver_files(snapshot) else (image, anew))


_EXPLAINED_BY_MISMATCH: Final = LIBRARY_MISMATCH | {
    *("cuda-compat-lib-mismatch", "cuda-compat-not-supported-hw", "gsp-firmware-missing", CONTAINER_MISMATCH_CAUSE)
}
# libnvidia-container's errors once it has found the driver and NVML has answered (configure_command in configure.c).
_TOOLKIT_FOUND_DRIVER: Final = message_line(
    r"nvidia-container-cli(?:\.real)?: (?:container|detection|device|requirement|mount|ldcache) error"
)
_rule = partial(
    Rule,
    disruption="reboot",
    symptoms=(symptoms.DRIVER_MISMATCH, unless(symptoms.HOOK_FAILED, _TOOLKIT_FOUND_DRIVER)),
)

RULES: Final = (
    _rule(
        cause=UNATTENDED_UPGRADE_CAUSE,
        layer="driver",
        check=_find_unattended_upgrade,
        share=6,
        context=message_line(r"unattended-upgrade|dnf-automatic|yum-cron|transactional-update|role='update-packages'"),
        look_at=(Shell("grep -i nvidia /var/log/apt/history.log"), Shell("cat /proc/driver/nvidia/version")),
        remedy=_reload_and_hold,
        explains=_EXPLAINED_BY_MISMATCH | {REBOOT_PENDING_CAUSE, PARTIAL_UPGRADE_CAUSE},
    ),
    _rule(
        cause=REBOOT_PENDING_CAUSE,
        layer="driver",
        check=_find_pending_reboot,
        typical=unless(
            all_of(_MISMATCH_UNDER_OLD_MODULE, _CHANGE_TOLD),
            *(symptoms.REBOOT_DID_NOT_HELP, symptoms.DRIVER_WORKS, _MODULE_GONE),
        ),
        share=10,
        context=any_of(_DRIVER_IN_REBOOT_REQUIRED_LIST, all_of(symptoms.REBOOT_HELPS, symptoms.DRIVER_MISMATCH)),
        look_at=(Shell("modinfo -F version nvidia"), Shell("cat /proc/driver/nvidia/version")),
        remedy=_reload_module,
        explains=_EXPLAINED_BY_MISMATCH,
    ),
    _rule(
        cause=PARTIAL_UPGRADE_CAUSE,
        layer="packages",
        check=_find_partial_upgrade,
        share=7,
        context=all_of(symptoms.REBOOT_DID_NOT_HELP, symptoms.DRIVER_MISMATCH),
        look_at=(Shell("modinfo -F version nvidia"), Shell("dpkg -l | grep nvidia")),
        remedy=_complete_driver,
        explains=_EXPLAINED_BY_MISMATCH,
    ),
    _rule(
        cause=MIXED_INSTALLS_CAUSE,
        layer="driver",
        check=_find_mixed_installs,
        typical=all_of(symptoms.DRIVER_MISMATCH, any_of(_DRIVER_OUTSIDE_SYSTEM_FOLDERS, _RUNFILE_SKIPS_MODULES)),
        context=all_of(symptoms.REBOOT_DID_NOT_HELP, symptoms.DRIVER_MISMATCH),
        look_at=(Shell("dpkg -l | grep nvidia"), Shell("ldconfig -p | grep libnvidia-ml")),
        remedy=_keep_one_driver,
        explains=_EXPLAINED_BY_MISMATCH | {UNATTENDED_UPGRADE_CAUSE, REBOOT_PENDING_CAUSE, PARTIAL_UPGRADE_CAUSE},
    ),
    _rule(
        cause=CONTAINER_MISMATCH_CAUSE,
        layer="programs",
        disruption="restart-container",
        decisive=_CONTAINER_MISMATCH,
        typical=_LIKELY_CONTAINER_MISMATCH,
        symptoms=(symptoms.DRIVER_MISMATCH, _FILE_BLOCKS_MOUNT),
        context=_MISMATCH_IN_CONTAINER,
        against=(_MISMATCH_ON_NODE,),
        summary=_summarize_container_library,
        look_at=(Shell("nvidia-smi  # on the node, not in the container"),),
        remedy=_recreate_container_or_image,
    ),
)
