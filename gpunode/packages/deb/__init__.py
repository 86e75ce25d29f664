"""dpkg and apt of Debian, Ubuntu and their derivatives: what steps and workflows need of them."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gpunode.catalog.repositories import Repository
from gpunode.change import Change, CommandChange, PackageState
from gpunode.facts.evidence import Probe
from gpunode.facts.model import Dependencies, Fact, Facts, Known, PackageSource, Unknown, value_or
from gpunode.facts.patterns import Pattern
from gpunode.facts.reader import EvidenceMissing, EvidenceReader, derive_fact, find_matches
from gpunode.fast_dataclass import dataclass
from gpunode.package_id import PackageId
from gpunode.packages.deb import configuration, sources, status
from gpunode.packages.deb.apt_output import (
    Archive,
    archives_probe,
    changed_files_probe,
    find_named_packages,
    is_entry_for_archive,
    list_versions,
    parse_archives,
    parse_changed_files,
    versions_not_found,
)
from gpunode.packages.deb.dependencies import InstalledRelations
from gpunode.packages.deb.preferences import (
    CUDA_PIN_FILE,
    PIN_FILE,
    PREFERENCES_FILE,
    PREFERENCES_FOLDER,
    note_overriding_records,
    packages_at_pinned_version,
    pinned_version,
    render_cuda_pin,
    render_driver_pin,
)
from gpunode.packages.deb.status import DIVERSIONS_FILE, Database, find_owners, list_journaled, parse_checksums
from gpunode.packages.deb.version import is_older

if TYPE_CHECKING:
    from gpunode.outcome import Refusal, StepOutcome

__all__ = [  # of the folder's modules; everything that this one defines is for others, too
    "CUDA_PIN_FILE", "DIVERSIONS_FILE", "PIN_FILE", "Archive", "Database", "archives_probe", "changed_files_probe",
    "find_named_packages", "find_owners", "is_entry_for_archive", "is_older", "list_journaled", "list_versions",
    "note_overriding_records", "packages_at_pinned_version", "parse_archives", "parse_changed_files", "parse_checksums",
    "pinned_version", "render_cuda_pin", "render_driver_pin", "versions_not_found",
]  # fmt: skip

_MIB: Final = 1 << 20
_KEYRING_FOLDER_PROBE_KEY: Final = "apt-keyring-folder"
_TOOLKIT_CHECKSUMS_PROBE_KEY: Final = "dpkg-toolkit-checksums"
_SOURCES_LIST_FILE: Final = "/etc/apt/sources.list"

MANAGER: Final = "apt"
DATABASE_FILE: Final = "/var/lib/dpkg/status"
JOURNAL_GLOB: Final = "/var/lib/dpkg/updates/*"
"""The files with changes that an interrupted transaction has not written to the database."""
LOCK_FILES: Final = ("var/lib/dpkg/lock-frontend", "var/lib/dpkg/lock")
"""The files that are locked while packages change, below /."""
COMMON_KEYRING: Final = "/etc/apt/trusted.gpg"
"""The single file of keys for archives that name none, as older instructions use it."""
TRUSTED_FOLDER: Final = "/etc/apt/trusted.gpg.d"
"""The folder whose keys are trusted for an archive that names no key of its own."""
PROBES: Final = (
    Probe("dpkg-status", path=DATABASE_FILE, limit_bytes=64 * _MIB, content_kind="table"),
    Probe("dpkg-updates", glob=JOURNAL_GLOB, contents=False, content_kind="table"),
    Probe("apt-extended-states", path="/var/lib/apt/extended_states", limit_bytes=16 * _MIB, content_kind="table"),
    Probe(_TOOLKIT_CHECKSUMS_PROBE_KEY, glob="/var/lib/dpkg/info/*nvidia-container*.md5sums", content_kind="table"),
    Probe(_KEYRING_FOLDER_PROBE_KEY, glob="/usr/share/keyrings", contents=False, content_kind="table"),
    Probe("apt-sources", path=_SOURCES_LIST_FILE, content_kind="log"),
)
PROBED_FILES: Final = {"apt-sources": _SOURCES_LIST_FILE}
"""The files among the probes, by key, that steps use, too."""
OTHER_READ_FILES: Final = (PREFERENCES_FILE, configuration.APT_CONF_FILE, DIVERSIONS_FILE, COMMON_KEYRING)
READ_FOLDERS: Final = {
    "apt-sources-d": "/etc/apt/sources.list.d",
    "apt-preferences-d": PREFERENCES_FOLDER,
    "apt-conf-d": configuration.APT_CONF_FOLDER,
}
"""The folders of which every file is read, by probe key."""
CONFIG_FOLDERS: Final = ("/etc/apt/",)
"""The places of line-based configuration that people edit, without secrets."""
TABLE_FOLDERS: Final = ("/var/lib/dpkg/", COMMON_KEYRING)
"""The places of files that people do not edit."""
SET_ASIDE_FILE_GLOBS: Final = tuple(
    f"/etc{'/*' * depth}.{suffix}" for depth in range(1, 5) for suffix in ("dpkg-dist", "dpkg-new", "ucf-dist")
)
"""The files that packages put beside configuration files that somebody edited."""
EXCLUSION: Final = "a path-exclude in /etc/dpkg/dpkg.cfg.d"
"""The setting that keeps files of packages from being unpacked."""
FINISH_COMMAND: Final = "dpkg --configure -a"
"""The command with which people finish interrupted changes."""
AUTOREMOVE_COMMAND: Final = "apt-get autoremove"
COMMAND_PROGRAMS: Final = ("apt-get", "apt-mark", "dpkg")
"""The programs that package commands, and hints, begin with."""

# nvidia-kernel-dkms (Debian), nvidia-kernel-open-dkms (NVIDIA's for Debian), nvidia-dkms-580-open (Ubuntu).
_DKMS_PACKAGE_NAME: Final = Pattern(r"nvidia(?:-\w+)*-dkms|nvidia-dkms(?:-\w+)*")
_DKMS_PACKAGES_OF_NO_DRIVER: Final = frozenset({"nvidia-fs-dkms"})
# linux-modules-nvidia-580-server-open-6.8.0-88-generic; the meta packages name no kernel.
_PREBUILT_MODULES_PACKAGE: Final = Pattern(r"linux-modules-nvidia-(\d+)(?:-server)?(?:-open)?-(\d+\.\d+\.\d+-\d+-.+)")
_KERNEL_PACKAGE_PREFIXES: Final = tuple(
    f"{maker}-{what}-" for maker in ("linux", "proxmox", "pve") for what in ("image", "kernel", "headers")
)
_KERNEL_HEADERS_PACKAGE: Final = Pattern(r"(?:linux|proxmox|pve)-headers-(\d.*)")

# Keep configuration files that the user changed: nobody is there to answer dpkg, which would give up. If a package was
# unpacked before its dependencies, dpkg cannot configure it; apt installs what is missing, but may remove nothing.
_KEEP_CONFFILES_OPTIONS = ("--force-confdef", "--force-confold")
_CONFIGURE_COMMAND = ("dpkg", *_KEEP_CONFFILES_OPTIONS, "--configure", "-a")
_APT_COMMAND_START = (
    *("apt-get", "-q", "-y", "--no-install-recommends", "--no-remove"),
    *(word for option in _KEEP_CONFFILES_OPTIONS for word in ("-o", f"Dpkg::Options::={option}")),
)
_FIX_BROKEN_COMMAND = (*_APT_COMMAND_START, "--fix-broken", "install")
# dpkg neither configures nor removes a package that may have lost files (half-installed, or unpacked and to be
# reinstalled), and apt sees nothing broken in it, so apt must be told to reinstall it with its dependencies. Which
# packages these are is known only after dpkg has processed its journal. Their versions are named, because in the middle
# of an undo a pin still forbids the former ones; if no archive has them any more, any version will do.
_LIST_HALF_INSTALLED_SCRIPT = (
    r"""half() { dpkg-query -W -f '${db:Status-Eflag} ${db:Status-Status} ${binary:Package}'"$1"'\n' | """
    r"sed -n -e 's/^reinstreq [a-z-]* //p' -e 's/^ok half-installed //p'; }"
)
_REINSTALL_COMMAND = shlex.join((*_APT_COMMAND_START, "--fix-broken", "--reinstall", "install"))
_REINSTALL_HALF_INSTALLED_SCRIPT = (
    f"{_LIST_HALF_INSTALLED_SCRIPT}; set -- $(half '=${{Version}}'); "
    f'[ $# -eq 0 ] || {_REINSTALL_COMMAND} "$@" || {_REINSTALL_COMMAND} $(half "")'
)
_BEGIN, _END = shlex.join(_CONFIGURE_COMMAND), f"{shlex.join(_CONFIGURE_COMMAND)} || {shlex.join(_FIX_BROKEN_COMMAND)}"
# A package that is unpacked by its name loses its hold.
_KEEP_HOLDS = 'held=$(apt-mark showhold); {}; code=$?; [ -z "$held" ] || apt-mark -qq hold $held; exit $code'
# The last word is the script's name, which is all that people see of it.
_SCRIPT_NAME = "dpkg --configure -a, apt-get --reinstall install, apt-get --fix-broken install"
_REPAIR_SCRIPT = f"{_BEGIN}; {{ {_REINSTALL_HALF_INSTALLED_SCRIPT}; }} && {{ {_END}; }}"
_REPAIR_ARGV = ("sh", "-c", _KEEP_HOLDS.format(_REPAIR_SCRIPT), _SCRIPT_NAME)

REPAIR_COMMAND: Final = CommandChange(
    _REPAIR_ARGV, "dpkg was interrupted and left packages half-installed or not configured"
)
"""Completes every package that dpkg left half-installed, or fails."""


@dataclass(frozen=True, slots=True)
class PackageFacts:
    """The facts of the package database and its configuration.

    Attributes:
        architecture: in Debian's terms (``amd64``).
        interrupted: whether a change of packages was interrupted.
        unconfigured: the packages that are unpacked but not configured, if nothing worse is unfinished.
        selected_for_removal: the installed packages whose removal is noted as wanted, and was not made.
        folder_modes: the permission bits of folders that the package manager reads as a user other than root.
        toolkit_checksums: the MD5 sums that the toolkit's packages came with, by path.
    """

    architecture: Fact[str]
    packages: Fact[Mapping[PackageId, PackageState]]
    interrupted: Fact[bool]
    sources: Fact[tuple[PackageSource, ...]]
    dependencies: Fact[Dependencies]
    folder_modes: Mapping[str, int]
    toolkit_checksums: Mapping[str, str]
    unconfigured: frozenset[PackageId] = frozenset()
    selected_for_removal: frozenset[PackageId] = frozenset()


def read_package_facts(reader: EvidenceReader) -> PackageFacts:
    """Return the facts from the answers to ``PROBES``."""
    entries = derive_fact("dpkg-status", lambda: status.parse_status(reader.text("dpkg-status")))
    found = derive_fact("apt-sources", lambda: _read_sources(reader))
    if isinstance(entries, Unknown):
        return PackageFacts(entries, entries, entries, found, entries, {}, {})
    rows, key = entries.value, entries.probe

    def updates() -> list[str]:
        return [found.path for found in reader.matches("dpkg-updates")]

    return PackageFacts(
        architecture=derive_fact(key, lambda: status.native_architecture(rows)),
        packages=derive_fact(key, lambda: status.packages(rows, reader.text_or_empty("apt-extended-states"))),
        interrupted=derive_fact("dpkg-updates", lambda: status.was_interrupted(rows, updates())),
        sources=found,
        dependencies=Known(InstalledRelations(rows), key),
        # apt's own user must be able to enter the folder of keyrings.
        folder_modes={
            match.path: match.ownership.mode
            for match in find_matches(reader.evidence, _KEYRING_FOLDER_PROBE_KEY)
            if match.ownership is not None
        },
        toolkit_checksums=parse_checksums(
            b"".join(match.data or b"" for match in find_matches(reader.evidence, _TOOLKIT_CHECKSUMS_PROBE_KEY)).decode(
                "utf-8", "replace"
            )
        ),
        unconfigured=value_or(
            derive_fact("dpkg-updates", lambda: status.find_unconfigured(rows, updates())), frozenset()
        ),
        selected_for_removal=value_or(derive_fact(key, lambda: status.find_selected_for_removal(rows)), frozenset()),
    )


def _read_sources(reader: EvidenceReader) -> tuple[PackageSource, ...]:
    entries = [*sources.parse(_SOURCES_LIST_FILE, reader.text_or_empty("apt-sources"))]
    for found in reader.matches("apt-sources-d"):
        if not sources.is_source_list(found.path):
            continue
        if found.data is None:
            raise EvidenceMissing("apt-sources-d", f"{found.path} could not be read")
        entries.extend(sources.parse(found.path, found.data.decode("utf-8", "replace")))
    return tuple(entries)


def parse_source_list(path: str, text: str) -> tuple[PackageSource, ...] | None:
    """Return the entries of a file that lists repositories; None for another file.

    Raises:
        ValueError: if apt could not read the file.
    """
    return sources.parse(path, text) if sources.is_source_list(path) else None


def kernel_of_headers(package: PackageId) -> str:
    """Return the kernel whose headers a package has; empty if it has none."""
    match = _KERNEL_HEADERS_PACKAGE.fullmatch(package.name)
    return match[1] if match else ""


def parse_prebuilt_name(package: PackageId) -> tuple[str, str] | None:
    """Return the kernel and the driver branch for which a package has a built module; None for other packages."""
    match = _PREBUILT_MODULES_PACKAGE.fullmatch(package.name)
    return (match[2], match[1]) if match else None


def builds_driver(package: PackageId) -> bool:
    """Return whether DKMS builds the driver's kernel modules from a package."""
    return _DKMS_PACKAGE_NAME.fullmatch(package.name) is not None and package.name not in _DKMS_PACKAGES_OF_NO_DRIVER


def builds_all_dkms_modules(package: PackageId) -> bool:
    """Return whether configuring a package makes DKMS build all its modules, as a kernel's does.

    dkms has scripts in /etc/kernel/postinst.d and header_postinst.d.
    """
    return package.name.startswith(_KERNEL_PACKAGE_PREFIXES)


def plan_repository(repository: Repository, facts: Facts) -> StepOutcome:
    """Plan a repository; see ``repositories.plan``."""
    from gpunode.packages.deb import repositories  # loaded on use, since it loads the reader of keyrings

    return repositories.plan(repository, facts)


def find_missing_components_refusal(facts: Facts, components: Sequence[str]) -> Refusal | None:
    """Return the refusal of a node whose archive lacks components; see ``obstacles``."""
    from gpunode.packages.deb import archive_components  # loaded on use: few recipes take the distribution's driver

    return archive_components.find_missing_components_refusal(facts, components)


def hint_on_refusal(refusal: str, facts: Facts, offered: Mapping[PackageId, Collection[str]]) -> str:
    """Return what to do about a refused transaction; see ``refusals``."""
    from gpunode.packages.deb import refusal_hints  # loaded on use: apt rarely refuses

    return refusal_hints.hint_on_refusal(refusal, facts, offered)


def have_contradicting_checks(one: PackageSource, other: PackageSource, architecture: str) -> bool:
    """Return whether two entries make apt read no source at all; see ``repositories``."""
    from gpunode.packages.deb import repositories

    return repositories.have_contradicting_checks(one, other, architecture)


def note_relaxed_checks(facts: Facts) -> Iterator[str]:
    """Yield a note for each option that weakens the default checks of the node's apt, and for keys it cannot read."""
    for folder in facts.folder_modes:
        if closed := sources.explain_closed_keyring_folder(folder, facts):
            yield f"{closed}: chmod 0755 {folder}"
    for path in sorted(filter(configuration.is_apt_conf_file, facts.files)):
        for option in configuration.parse(path, facts.text(path)):
            if configuration.relaxes_archive_checks(option.name, option.value):
                where = (
                    "itself" if configuration.is_always_overridden(option.name) else "the sources and keys that it adds"
                )
                yield (
                    f"{option.file}:{option.line} makes apt check less on this node ({option.name} {option.value}); "
                    f"gpunode overrides it only for {where}: remove it"
                )


def note_diversions(facts: Facts, words: Collection[str]) -> Iterator[str]:
    """Yield a note for each manual diversion of a file whose path has one of ``words``."""
    for path, target in status.manual_diversions(facts.text(DIVERSIONS_FILE)):
        if any(word in path for word in words):
            yield (
                f"{path} is diverted to {target}, so the package's own file is not used: "
                f"`dpkg-divert --rename --remove {shlex.quote(path)}` removes the diversion"
            )


def install_command(packages: Collection[str]) -> str:
    """Return the command with which people install packages."""
    return _join_command("apt-get install", packages)


def remove_command(packages: Collection[str]) -> str:
    """Return the command that removes packages and keeps their configuration files."""
    return _join_command("apt-get remove", packages)


def purge_command(packages: Collection[str]) -> str:
    """Return the command that removes packages and their configuration files."""
    return _join_command("apt-get purge", packages)


def unhold_command(packages: Collection[PackageId]) -> str:
    """Return the command that lets packages change again."""
    return _join_command("apt-mark unhold", packages)


def force_removal_command(packages: Collection[str]) -> str:
    """Return the command that removes packages that cannot be finished."""
    return _join_command("dpkg --remove --force-remove-reinstreq", packages)


def _join_command(start: str, packages: Collection[PackageId] | Collection[str]) -> str:
    return shlex.join((*start.split(), *map(str, packages)))


def reinstall_command(packages: Mapping[PackageId, PackageState]) -> str:
    """Return the command that reinstalls packages in their present version, or else in the newest."""
    return _join_command("apt-get install --reinstall", tuple(_name_with_versions(packages)))


def reinstall_change(packages: Mapping[PackageId, PackageState], purpose: str) -> CommandChange:
    """Return the change that reinstalls packages unattended; the first three words do not depend on them."""
    # The word after the script is its name, which is all that people see of it.
    script = _KEEP_HOLDS.format(f'{shlex.join(_APT_COMMAND_START)} --reinstall install "$@"')
    return CommandChange(("sh", "-c", script, reinstall_command(packages), *_name_with_versions(packages)), purpose)


def _name_with_versions(packages: Mapping[PackageId, PackageState]) -> Iterator[str]:
    # Without its version a package would be upgraded if there is a newer one.
    return (f"{package}={state.version}" if state.version else str(package) for package, state in packages.items())


def is_repair(change: Change) -> bool:
    """Return whether it is ``REPAIR_COMMAND``."""
    return isinstance(change, CommandChange) and change.argv == REPAIR_COMMAND.argv


def list_reinstalled(change: Change) -> tuple[tuple[PackageId, str], ...]:
    """Return the packages that a ``reinstall_change`` names, with their versions ("" for any); () for other changes."""
    if not isinstance(change, CommandChange) or not change.runs_command(*reinstall_change({}, "").argv[:3]):
        return ()
    words = (word.partition("=") for word in change.argv[4:])
    return tuple((PackageId.of(name), version) for name, _, version in words)


def file_list_path(package: str) -> str:
    """Return the file that lists a package's paths; it is as old as the package's last installation."""
    return f"/var/lib/dpkg/info/{package}.list"


def checksums_path(package: str) -> str:
    """Return the file with the MD5 sums of a package's files as shipped, by path."""
    return f"/var/lib/dpkg/info/{package}.md5sums"


def rebuild_initramfs_command(kernel: str) -> tuple[str, ...]:
    """Return the command that rebuilds the initramfs of a kernel, or of every kernel with ``all``."""
    return ("update-initramfs", "-u", "-k", kernel)  # update-initramfs(8) of initramfs-tools


def initramfs_image_path(kernel: str) -> str:
    """Return the path of a kernel's initramfs; with ``*`` a pattern for those of all kernels."""
    return f"/boot/initrd.img-{kernel}"
