"""The interface of a package system to the rest of gpunode: one row that all steps and workflows use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from gpunode.catalog.driver import Choice
from gpunode.catalog.repositories import Repository
from gpunode.change import CommandChange, PackageState
from gpunode.facts.evidence import Probe
from gpunode.facts.model import Dependencies, Fact, Facts, PackageSource
from gpunode.facts.reader import EvidenceReader
from gpunode.package_id import PackageId
from gpunode.values import dataclass

if TYPE_CHECKING:
    from gpunode.outcome import Refusal, StepOutcome


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


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive that has a package version.

    Attributes:
        part: suite and component (``bookworm/main``); usually empty for a flat repository.
    """

    uri: str
    part: str


def list_versions(archives: Iterable[tuple[str, str]]) -> Mapping[PackageId, frozenset[str]]:
    """Return the versions of each package among the keys of ``PackageSystem.archives``."""
    versions: dict[PackageId, frozenset[str]] = {}
    for name, version in archives:
        package = PackageId.of(name)
        versions[package] = versions.get(package, frozenset()) | {version}
    return versions


class Database(Protocol):
    """The answers of a package database beyond ``Facts``, for changes that depend on every file."""

    def packages(self) -> Mapping[PackageId, PackageState]:
        """Return all packages by id. Raises ValueError if the database cannot be read."""
        ...

    def half_installed(self) -> frozenset[str]:
        """Return the names of packages that lost some of their files. Raises ValueError if that is unknown."""
        ...

    def list_unfinished(self) -> frozenset[str]:
        """Return the names of packages that a transaction has not finished. Raises ValueError if that is unknown."""
        ...

    def list_obstacles(self) -> frozenset[str]:
        """Return the packages that stop the package manager, for ``force_removal_command``. Raises ValueError."""
        ...

    def held_unfinished(self) -> Mapping[PackageId, PackageState]:
        """Return the packages of ``list_unfinished`` that are on hold. Raises ValueError if that is unknown."""
        ...

    def config_files(self, packages: Collection[PackageId]) -> Mapping[str, tuple[str, ...]]:
        """Return the configuration files that a purge removes with each of ``packages``, by name."""
        ...

    def shipped_conffiles(self) -> Mapping[str, str]:
        """Return the configuration files that packages ship now, each with its MD5 sum as shipped."""
        ...

    def obsolete_conffiles(self) -> Mapping[str, str]:
        """Return the configuration files that no package ships any more, each with its MD5 sum as shipped."""
        ...

    def find_needed(self, leaving: Collection[PackageId], changing: Collection[PackageId]) -> Mapping[PackageId, str]:
        """Return the packages among ``leaving`` that others still need, each with the name of one that needs it.

        Packages ``changing`` their version stay installed.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageSystem:
    """A way to install packages; everything that depends on the package system is in its row.

    Attributes:
        id: the id that ``Facts`` contain.
        manager: its usual name.

        database_file: the file by which a node with this system is known.
        journal_glob: a glob of the files with changes that an interrupted transaction has not written to
            ``database_file``.
        lock_files: the files that are locked while packages change, below /.
        probes: the probes from which its facts are read.
        probed_files: the files among these probes, by probe key, that steps use, too.
        other_read_files: further files that are read, each by its path.
        read_folders: folders that are read completely, by probe key.
        config_folders: the places of line-based configuration that people edit, without secrets.
        table_folders: the places of files that people do not edit.
        pin_file: the file that holds the driver at its branch.
        cuda_pin_file: the file that keeps the distribution's own CUDA packages out.

        read: the facts from the answers to ``probes``.
        parse_database: the database in the content of ``database_file``.
        list_journaled: the names of the packages that a file of the journal is about.
        file_list_path: the file that lists a package's paths; it is as old as its last installation.
        diversions_file: the file with the paths that are not where packages' lists say.
        find_owners: the packages that own paths, by path, from these lists by the package's name and the diversions.
        set_aside_file_globs: globs of the files that the package manager puts beside configuration files that somebody
            edited.
        checksums_path: the file with the MD5 sums of a package's files as shipped, by path.
        parse_checksums: these sums, by path.
        parse_source_list: the entries of a file, by path and text, that lists repositories; None if it lists none.
            Raises ValueError.
        contradict: whether two entries are for one archive, for an architecture, and disagree on how its packages are
            checked, so that the package manager reads no source at all.

        kernel_of_headers: the kernel whose headers a package has; empty if it has none.
        parse_prebuilt_name: the kernel and the driver's branch for which a package has a built module; None for others.
        builds_driver: whether DKMS builds the driver's kernel modules from a package.
        builds_all_dkms_modules: whether configuring a package makes DKMS build all its modules, as a kernel's does.
        is_older: whether the first version comes before the second.

        plan_repository: the changes that enable a repository, and remove entries for its archive with another key.
        refuse_missing_components: the refusal if the release's own archive is enabled without some of the named
            components.
        exclusion: the setting that keeps files of packages from being unpacked, with its article and place.
        note_relaxed_checks: a note for each setting that weakens the node's default checks of packages, or breaks them.
        render_driver_pin: the content of ``pin_file``: drivers come from the chosen source and in the chosen version,
            or not at all; the names are those of archives whose own driver packages are never mixed with NVIDIA's, then
            those that are never mixed with the distribution's.
        render_cuda_pin: the content of ``cuda_pin_file``: packages that match the patterns never come from archives of
            these origins.
        pinned_version: the exact driver version that such a content holds; empty if it holds a branch.
        packages_at_pinned_version: the installed packages whose version such a content wants.
        note_overriding_records: a note for each setting that decides about one of the named packages before
            ``pin_file`` does.
        note_diversions: a note for every file with one of the words in its path that is not its package's own.
        repair_change: the change that finishes interrupted changes and completes every package.
        finish_command: the command with which people finish such changes.
        force_removal_command: the command that removes packages that cannot be finished.

        find_named_packages: every word of a refused transaction that may be a package.
        versions_not_found: the packages that no archive has in the requested version, from a refusal.
        hint_on_refusal: what to do about a refused transaction while the package index is fresh; the index has these
            other versions of packages whose requested version it lacks.
        archives_probe: the probe of the archives of each version of the packages.
        parse_archives: the archives by a package's name and version, from the answer to it.
        is_entry_for_archive: whether an entry of the sources is for an archive.
        trusted_folder: the folder whose keys are trusted for an archive that names no key of its own.
        common_keyring: the single file of such keys that older instructions use.

        command_programs: those that the commands below, and hints, begin with.
        install: the command with which people install packages.
        reinstall: the command that reinstalls packages in their present version, or else in the newest.
        reinstall_change: the same, unattended; the first three words do not depend on the packages.
        changed_files_probe: the probe that compares the files of a package with the checksums shipped with it.
        parse_changed_files: the paths that differ or are missing, from the answer to it.
        purge: the command that removes packages and their configuration files.
        remove: the command that removes packages and keeps their configuration files.
        unhold_command: the command that lets packages change again.
        autoremove_command: the command that removes what nothing needs.

        rebuild_initramfs_command: the command that rebuilds the initramfs of a kernel, or of every kernel with ``all``.
        initramfs_image_path: where the initramfs of a kernel is; with ``*`` a pattern for those of all kernels.
    """

    id: Literal["deb"]
    manager: str

    database_file: str
    journal_glob: str
    lock_files: tuple[str, ...]
    probes: tuple[Probe, ...]
    probed_files: Mapping[str, str]
    other_read_files: tuple[str, ...]
    read_folders: Mapping[str, str]
    config_folders: tuple[str, ...]
    table_folders: tuple[str, ...]
    pin_file: str
    cuda_pin_file: str

    read: Callable[[EvidenceReader], PackageFacts]
    parse_database: Callable[[str], Database]
    list_journaled: Callable[[str], frozenset[str]]
    file_list_path: Callable[[str], str]
    diversions_file: str
    find_owners: Callable[[Collection[str], Mapping[str, bytes], str], Mapping[str, tuple[str, ...]]]
    set_aside_file_globs: tuple[str, ...]
    checksums_path: Callable[[str], str]
    parse_checksums: Callable[[str], Mapping[str, str]]
    parse_source_list: Callable[[str, str], tuple[PackageSource, ...] | None]
    contradict: Callable[[PackageSource, PackageSource, str], bool]

    kernel_of_headers: Callable[[PackageId], str]
    parse_prebuilt_name: Callable[[PackageId], tuple[str, str] | None]
    builds_driver: Callable[[PackageId], bool]
    builds_all_dkms_modules: Callable[[PackageId], bool]
    is_older: Callable[[str, str], bool]

    plan_repository: Callable[[Repository, Facts], StepOutcome]
    refuse_missing_components: Callable[[Facts, Sequence[str]], Refusal | None]
    exclusion: str
    note_relaxed_checks: Callable[[Facts], Iterator[str]]
    render_driver_pin: Callable[[Choice, Sequence[str], Sequence[str]], bytes]
    render_cuda_pin: Callable[[Sequence[str], Sequence[str]], bytes]
    pinned_version: Callable[[bytes], str]
    packages_at_pinned_version: Callable[[bytes, Mapping[PackageId, PackageState]], frozenset[PackageId]]
    note_overriding_records: Callable[[Facts, Choice, Collection[str]], Iterator[str]]
    note_diversions: Callable[[Facts, Collection[str]], Iterator[str]]
    repair_change: CommandChange
    finish_command: str
    force_removal_command: Callable[[Collection[str]], str]

    find_named_packages: Callable[[str], frozenset[PackageId]]
    versions_not_found: Callable[[str], tuple[tuple[PackageId, str], ...]]
    hint_on_refusal: Callable[[str, Facts, Mapping[PackageId, Collection[str]]], str]
    archives_probe: Callable[[Collection[PackageId]], Probe]
    parse_archives: Callable[[str], Mapping[tuple[str, str], tuple[Archive, ...]]]
    is_entry_for_archive: Callable[[PackageSource, Archive], bool]
    trusted_folder: str
    common_keyring: str

    command_programs: tuple[str, ...]
    install: Callable[[Collection[str]], str]
    reinstall: Callable[[Mapping[PackageId, PackageState]], str]
    reinstall_change: Callable[[Mapping[PackageId, PackageState], str], CommandChange]
    changed_files_probe: Callable[[PackageId], Probe]
    parse_changed_files: Callable[[str], tuple[str, ...]]
    purge: Callable[[Collection[str]], str]
    remove: Callable[[Collection[str]], str]
    unhold_command: Callable[[Collection[PackageId]], str]
    autoremove_command: str

    rebuild_initramfs_command: Callable[[str], tuple[str, ...]]
    initramfs_image_path: Callable[[str], str]
