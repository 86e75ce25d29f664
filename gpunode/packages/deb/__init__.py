"""dpkg and apt of Debian, Ubuntu and their derivatives: their row in the table of package systems."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gpunode.catalog.repositories import Repository
from gpunode.change import CommandChange, PackageState
from gpunode.facts.evidence import Probe
from gpunode.facts.model import Facts, Known, PackageSource, Unknown, known
from gpunode.facts.patterns import Pattern
from gpunode.facts.reader import EvidenceMissing, EvidenceReader, derive_fact, find_matches
from gpunode.package_id import PackageId
from gpunode.packages.deb import answers, configuration, preferences, sources, status
from gpunode.packages.deb.dependencies import InstalledRelations
from gpunode.packages.deb.version import is_older
from gpunode.packages.system import PackageFacts, PackageSystem

if TYPE_CHECKING:
    from gpunode.outcome import Refusal, StepOutcome

_MIB: Final = 1 << 20
_KEYRING_FOLDER_PROBE_KEY: Final = "apt-keyring-folder"
_COMMON_KEYRING: Final = "/etc/apt/trusted.gpg"
_TOOLKIT_CHECKSUMS_PROBE_KEY: Final = "dpkg-toolkit-checksums"
_STATUS_FILE: Final = "/var/lib/dpkg/status"
_DPKG_JOURNAL_GLOB: Final = "/var/lib/dpkg/updates/*"
_SOURCES_LIST_FILE: Final = "/etc/apt/sources.list"
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


def _read_package_facts(reader: EvidenceReader) -> PackageFacts:
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
        toolkit_checksums=status.parse_checksums(
            b"".join(match.data or b"" for match in find_matches(reader.evidence, _TOOLKIT_CHECKSUMS_PROBE_KEY)).decode(
                "utf-8", "replace"
            )
        ),
        unconfigured=known(derive_fact("dpkg-updates", lambda: status.find_unconfigured(rows, updates())), frozenset()),
        selected_for_removal=known(derive_fact(key, lambda: status.find_selected_for_removal(rows)), frozenset()),
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


def _parse_source_list(path: str, text: str) -> tuple[PackageSource, ...] | None:
    return sources.parse(path, text) if sources.is_source_list(path) else None


def _kernel_of_headers(package: PackageId) -> str:
    match = _KERNEL_HEADERS_PACKAGE.fullmatch(package.name)
    return match[1] if match else ""


def _parse_prebuilt_name(package: PackageId) -> tuple[str, str] | None:
    match = _PREBUILT_MODULES_PACKAGE.fullmatch(package.name)
    return (match[2], match[1]) if match else None


def _builds_driver(package: PackageId) -> bool:
    return _DKMS_PACKAGE_NAME.fullmatch(package.name) is not None and package.name not in _DKMS_PACKAGES_OF_NO_DRIVER


def _builds_all_dkms_modules(package: PackageId) -> bool:
    """Return whether it is a kernel package: dkms has scripts in /etc/kernel/postinst.d and header_postinst.d."""
    return package.name.startswith(_KERNEL_PACKAGE_PREFIXES)


def _plan_repository(repository: Repository, facts: Facts) -> StepOutcome:
    from gpunode.packages.deb import repositories  # loaded on use, since it loads the reader of keyrings

    return repositories.plan(repository, facts)


def _refuse_missing_components(facts: Facts, components: Sequence[str]) -> Refusal | None:
    from gpunode.packages.deb import obstacles  # loaded on use: few recipes take the distribution's driver

    return obstacles.refuse_missing_components(facts, components)


def _hint_on_refusal(refusal: str, facts: Facts, offered: Mapping[PackageId, Collection[str]]) -> str:
    from gpunode.packages.deb import refusals  # loaded on use: apt rarely refuses

    return refusals.hint_on_refusal(refusal, facts, offered)


def _have_contradicting_checks(one: PackageSource, other: PackageSource, architecture: str) -> bool:
    from gpunode.packages.deb import repositories

    return repositories.have_contradicting_checks(one, other, architecture)


def _note_relaxed_checks(facts: Facts) -> Iterator[str]:
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


def _note_diversions(facts: Facts, words: Collection[str]) -> Iterator[str]:
    """Yield a note for each manual diversion of a file whose path has one of ``words``."""
    for path, target in status.manual_diversions(facts.text(status.DIVERSIONS_FILE)):
        if any(word in path for word in words):
            yield (
                f"{path} is diverted to {target}, so the package's own file is not used: "
                f"`dpkg-divert --rename --remove {shlex.quote(path)}` removes the diversion"
            )


def _reinstall(packages: Mapping[PackageId, PackageState]) -> str:
    return shlex.join(("apt-get", "install", "--reinstall", *_name_with_versions(packages)))


def _reinstall_change(packages: Mapping[PackageId, PackageState], purpose: str) -> CommandChange:
    # The word after the script is its name, which is all that people see of it.
    script = _KEEP_HOLDS.format(f'{shlex.join(_APT_COMMAND_START)} --reinstall install "$@"')
    return CommandChange(("sh", "-c", script, _reinstall(packages), *_name_with_versions(packages)), purpose)


def _name_with_versions(packages: Mapping[PackageId, PackageState]) -> Iterator[str]:
    # Without its version a package would be upgraded if there is a newer one.
    return (f"{package}={state.version}" if state.version else str(package) for package, state in packages.items())


def _make_command_template(*words: str) -> Callable[[Collection[PackageId] | Collection[str]], str]:
    return lambda packages: shlex.join((*words, *map(str, packages)))


DEB: Final = PackageSystem(
    id="deb",
    manager="apt",
    database_file=_STATUS_FILE,
    journal_glob=_DPKG_JOURNAL_GLOB,
    lock_files=("var/lib/dpkg/lock-frontend", "var/lib/dpkg/lock"),
    probes=(
        Probe("dpkg-status", path=_STATUS_FILE, limit_bytes=64 * _MIB, content_kind="table"),
        Probe("dpkg-updates", glob=_DPKG_JOURNAL_GLOB, contents=False, content_kind="table"),
        Probe("apt-extended-states", path="/var/lib/apt/extended_states", limit_bytes=16 * _MIB, content_kind="table"),
        Probe(_TOOLKIT_CHECKSUMS_PROBE_KEY, glob="/var/lib/dpkg/info/*nvidia-container*.md5sums", content_kind="table"),
        Probe(_KEYRING_FOLDER_PROBE_KEY, glob="/usr/share/keyrings", contents=False, content_kind="table"),
        Probe("apt-sources", path=_SOURCES_LIST_FILE, content_kind="log"),
    ),
    probed_files={"apt-sources": _SOURCES_LIST_FILE},
    other_read_files=(
        preferences.PREFERENCES_FILE,
        configuration.APT_CONF_FILE,
        status.DIVERSIONS_FILE,
        _COMMON_KEYRING,
    ),
    read_folders={
        "apt-sources-d": "/etc/apt/sources.list.d",
        "apt-preferences-d": preferences.PREFERENCES_FOLDER,
        "apt-conf-d": configuration.APT_CONF_FOLDER,
    },
    config_folders=("/etc/apt/",),
    table_folders=("/var/lib/dpkg/", _COMMON_KEYRING),
    pin_file=preferences.PIN_FILE,
    cuda_pin_file=preferences.CUDA_PIN_FILE,
    read=_read_package_facts,
    parse_database=status.Status,
    list_journaled=status.list_journaled,
    file_list_path=lambda package: f"/var/lib/dpkg/info/{package}.list",
    diversions_file=status.DIVERSIONS_FILE,
    find_owners=status.find_owners,
    set_aside_file_globs=tuple(
        f"/etc{'/*' * depth}.{suffix}" for depth in range(1, 5) for suffix in ("dpkg-dist", "dpkg-new", "ucf-dist")
    ),
    checksums_path=lambda package: f"/var/lib/dpkg/info/{package}.md5sums",
    parse_checksums=status.parse_checksums,
    parse_source_list=_parse_source_list,
    contradict=_have_contradicting_checks,
    kernel_of_headers=_kernel_of_headers,
    parse_prebuilt_name=_parse_prebuilt_name,
    builds_driver=_builds_driver,
    builds_all_dkms_modules=_builds_all_dkms_modules,
    is_older=is_older,
    plan_repository=_plan_repository,
    refuse_missing_components=_refuse_missing_components,
    exclusion="a path-exclude in /etc/dpkg/dpkg.cfg.d",
    note_relaxed_checks=_note_relaxed_checks,
    render_driver_pin=preferences.render_driver_pin,
    render_cuda_pin=preferences.render_cuda_pin,
    pinned_version=preferences.pinned_version,
    packages_at_pinned_version=preferences.packages_at_pinned_version,
    note_overriding_records=preferences.note_overriding_records,
    note_diversions=_note_diversions,
    repair_change=REPAIR_COMMAND,
    finish_command="dpkg --configure -a",
    force_removal_command=_make_command_template("dpkg", "--remove", "--force-remove-reinstreq"),
    find_named_packages=answers.find_named_packages,
    versions_not_found=answers.versions_not_found,
    hint_on_refusal=_hint_on_refusal,
    archives_probe=answers.archives_probe,
    parse_archives=answers.parse_archives,
    is_entry_for_archive=answers.is_entry_for_archive,
    trusted_folder="/etc/apt/trusted.gpg.d",
    common_keyring=_COMMON_KEYRING,
    command_programs=("apt-get", "apt-mark", "dpkg"),
    install=_make_command_template("apt-get", "install"),
    reinstall=_reinstall,
    reinstall_change=_reinstall_change,
    changed_files_probe=answers.changed_files_probe,
    parse_changed_files=answers.parse_changed_files,
    purge=_make_command_template("apt-get", "purge"),
    remove=_make_command_template("apt-get", "remove"),
    unhold_command=_make_command_template("apt-mark", "unhold"),
    autoremove_command="apt-get autoremove",
    # update-initramfs(8) of initramfs-tools.
    rebuild_initramfs_command=lambda kernel: ("update-initramfs", "-u", "-k", kernel),
    initramfs_image_path=lambda kernel: f"/boot/initrd.img-{kernel}",
)
