"""Answers of apt about packages that it cannot install, and about its archives, in the C locale."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from gpunode.catalog.conflicts import driver_packages
from gpunode.catalog.gpudirect import missing_source_hint, packages_not_found
from gpunode.command import command
from gpunode.facts.evidence import Probe
from gpunode.facts.model import Facts, Kernels, PackageSource, known
from gpunode.facts.patterns import Pattern
from gpunode.package_id import PackageId
from gpunode.packages.deb import preferences
from gpunode.packages.system import Archive

_MAX_MADISON_BYTES = 16 << 20
# Debian Policy 5.6.7, and the architecture that apt appends.
_PACKAGE_NAME = Pattern(r"[a-z0-9][a-z0-9+.-]+(?::[a-z0-9]+)?")
_DPKG_VERIFY_LINE = Pattern(r"(?:missing  |..5......) (?P<conffile>[c ]) (?P<path>/.*)")
_KERNEL_HEADERS_PACKAGE = Pattern(r"(?:linux|proxmox|pve)-headers-(?:\d[\w.+-]*\w|[\w-]+(?=' was not found))")
# apt-pkg/cacheset.cc.
_VERSION_NOT_FOUND = Pattern(r"Version '([^']+)' for '([^']+)' was not found")
# apt prints no user name, no password and no final slash. Source: apt, ::URI::ArchiveOnly.
_URL_USERINFO = Pattern(r"(?<=://)[^/@]*@")
# The quotes depend on the node's language.
_DRIVER_VERSION_NOT_FOUND = Pattern(
    r"Version \W?(?P<version>\d{3}[\d.]+)-\*\W? for \W?(?P<package>[\w.+-]+?)\W? was not found"
)

_DOWNGRADED_PACKAGES_LIST = Pattern(r"The following packages will be DOWNGRADED:\n((?: .*(?:\n|\Z))+)")
_CHANGED_HELD_PACKAGES_LIST = Pattern(r"The following held packages will be changed:\n((?: .*(?:\n|\Z))+)")
# apt-private/private-output.cc.
_UNWANTED_DEPENDENCY = Pattern(r"Depends: ([a-z0-9][\w.+-]+)(?: \([^)\n]*\))? but it is not going to be installed")
# apt-private/private-install.cc.
_UNMET_DEPENDENCIES_MESSAGE = Pattern(r"Unmet dependencies\. Try")


def find_named_packages(refusal: str) -> frozenset[PackageId]:
    """Return every word of a refusal that may be a package, with its architecture and without."""
    found = [PackageId.of(word.rstrip(".")) for word in _PACKAGE_NAME.findall(refusal)]
    return frozenset((*found, *(PackageId(package.name) for package in found)))


def versions_not_found(refusal: str) -> tuple[tuple[PackageId, str], ...]:
    """Return the packages that no archive has in the requested version, each with that version."""
    return tuple((PackageId.of(name), version) for version, name in _VERSION_NOT_FOUND.findall(refusal))


def hint_on_refusal(refusal: str, facts: Facts) -> str:
    """Return what to do about a refusal that persists with a fresh index."""
    return (
        _hint_on_held_packages(refusal)
        or _hint_on_downgrades(refusal, facts)
        or _hint_on_missing_headers(refusal, facts)
        or _hint_on_missing_driver_version(refusal)
        or _hint_on_lost_version(refusal, facts)
        or missing_source_hint(refusal)
        or _hint_on_unmet_dependencies(refusal)
        or _hint_on_foreign_preferences(refusal, facts)
        or _hint_on_missing_repository(refusal)
        or _hint_on_unwanted_dependencies(refusal)
        or "the index is fresh, so a source is missing, or a hold or a pin prevents it; check:\n"
        "  apt-cache policy\n  apt-mark showhold\nthen run the same command again"
    )


def _hint_on_unwanted_dependencies(problem: str) -> str:
    """Return what to do about dependencies that apt refuses to install, such as a held one that is not installed."""
    names = sorted(set(_UNWANTED_DEPENDENCY.findall(problem)))
    return (
        f"a hold, a pin or a conflict keeps {', '.join(names)} out; what is held, and what a pin says:\n"
        f"apt-mark showhold\n{command('apt-cache', 'policy', *names)}\nif it is a hold:\n"
        f"{command('sudo', 'apt-mark', 'unhold', *names)}\nthen run the same command again"
        if names
        else ""
    )


def _hint_on_held_packages(problem: str) -> str:
    """Return how to release packages that somebody holds, even if they are not installed."""
    match = _CHANGED_HELD_PACKAGES_LIST.search(problem)
    names = match[1].split() if match else []
    unhold = command("sudo", "apt-mark", "unhold", *names)
    return (
        f"somebody put them on hold; gpunode breaks no holds:\n{unhold}\nthen run the same command again"
        if names
        else ""
    )


def _hint_on_downgrades(problem: str, facts: Facts) -> str:
    """Return what to do about packages that would be downgraded, and that no step named."""
    match = _DOWNGRADED_PACKAGES_LIST.search(problem)
    if match is None or "-y was used without --allow-downgrades" not in problem:
        return ""
    names = match[1].split()
    packages = known(facts.packages, {})
    versions = (f"{name} {state.version}" for name in names if (state := packages.get(PackageId.of(name))))
    purge = command("sudo", "apt-get", "purge", *names)
    return (
        f"{', '.join(versions)}: newer than what the planned packages need, and maybe made by hand; if nothing "
        f"else needs it:\n{purge}\nthen run the same command again"
    )


def _hint_on_foreign_preferences(problem: str, facts: Facts) -> str:
    """Return which of the user's own preferences concern the packages that a refusal names."""
    places = ", ".join(preferences.list_foreign_records(facts, find_named_packages(problem)))
    return (
        f"the index is fresh, and {places} decides which of these packages apt may take: remove that pin, or let it "
        "agree; then run the same command again"
        if places
        else ""
    )


def _hint_on_missing_headers(problem: str, facts: Facts) -> str:
    """Return what to do when the archive lacks the headers of an installed kernel, which may be older or newer.

    Most archives have only those of their newest kernel: an upgraded node only has to be rebooted.
    """
    if (match := _KERNEL_HEADERS_PACKAGE.search(problem)) is None:
        return ""
    kernels = known(facts.kernels, Kernels(None, ()))
    if kernels.running and match[0].endswith(f"-{kernels.running}") and kernels.wanted[-1] != kernels.running:
        return (
            f"no source has {match[0]} any more, of the kernel that runs; {kernels.wanted[-1]} is installed and boots "
            "next: reboot, then run the command again"
        )
    versions = {name: f" {version}" for version, name in _VERSION_NOT_FOUND.findall(problem)}
    return (
        f"no source has {match[0]}{versions.get(match[0], '')}: add the source that this kernel came from, or install "
        "a kernel that the sources have (apt-get install linux-image-amd64 on Debian, linux-image-generic on Ubuntu), "
        "reboot into it and remove the other; then run the command again"
    )


def _hint_on_missing_driver_version(problem: str) -> str:
    """Return what to do when the archive no longer has the installed driver's version."""
    if (match := _DRIVER_VERSION_NOT_FOUND.search(problem)) is None:
        return ""
    return (
        f"no source has {match['package']} {match['version']} any more, so the driver cannot be completed in that "
        "version; `gpunode setup --upgrade` upgrades all of it to the newest version of its branch; to remove a "
        f"package that nothing needs: apt-get purge {match['package']}"
    )


def _hint_on_lost_version(problem: str, facts: Facts) -> str:
    """Return what to do when the archive no longer has a version that is partly installed, and perhaps held."""
    if not (lacking := versions_not_found(problem)):
        return ""
    package, version = lacking[0]
    packages = known(facts.packages, {})
    held = sorted(str(one) for one, state in packages.items() if state.held and state.version == version)
    unhold = f"{command('sudo', 'apt-mark', 'unhold', *held)}\n" if held else ""
    there = f", the version of {', '.join(held)}, which somebody holds" if held else ""
    return (
        f"no source has {package} {version} any more{there}; --upgrade brings the newest version of all that belongs "
        f"together:\n{unhold}add --upgrade to the same command"
    )


def _hint_on_missing_repository(problem: str) -> str:
    """Return which step adds the archive of packages that no source has: a run of selected steps may lack it."""
    from gpunode.distros.family import TOOLKIT_PACKAGES  # only if apt refuses

    # Only Ubuntu's archive has such names.
    names = (name for name in packages_not_found(problem) if not name.startswith("linux-") and "-server" not in name)
    missing = {*map(PackageId, names)}
    steps = {"toolkit-repository": missing.intersection(TOOLKIT_PACKAGES), "cuda-repository": driver_packages(missing)}
    step, found = next(((step, sorted(found)) for step, found in steps.items() if found), ("", []))
    return (
        f"no source has {found[0]}: the step {step} adds its archive; name that step, too (--only {step}), or take it "
        "out of skip. If it is among the steps, the archive lacks the package"
        if found
        else ""
    )


def _hint_on_unmet_dependencies(problem: str) -> str:
    """Return what to do about packages that were broken before, and that gpunode did not all name to apt."""
    if _UNMET_DEPENDENCIES_MESSAGE.search(problem) is None:
        return ""
    return (
        "packages of this node have unmet dependencies (`apt-get check` names them), and apt installs nothing until "
        "they are met; gpunode repairs only those of driver, toolkit, headers and runtime:\n"
        "  sudo apt-get --fix-broken install\nthen run the same command again"
    )


def archives_probe(packages: Collection[PackageId]) -> Probe:
    """Return the command that lists the archives of each version of ``packages``."""
    return Probe("archives", argv=("apt-cache", "madison", *map(str, packages)), limit_bytes=_MAX_MADISON_BYTES)


def parse_archives(table: str) -> Mapping[tuple[str, str], tuple[Archive, ...]]:
    """Return the archives by package and version, from the rows that ``apt-cache madison`` prints."""
    archives: dict[tuple[str, str], dict[Archive, None]] = {}
    for line in table.splitlines():
        name, _, rest = line.partition("|")
        version, _, index = rest.partition("|")
        words = index.split()
        if len(words) > 1 and words[-1] == "Packages":
            # The architecture precedes the last word, except for a flat repository, which has none.
            archive = Archive(words[0], words[1] if len(words) > 2 else "")
            archives.setdefault((name.strip(), version.strip()), {})[archive] = None
    return {key: tuple(archives) for key, archives in archives.items()}


def changed_files_probe(package: PackageId) -> Probe:
    """Return the command that compares a package's files, wherever diverted, with dpkg's checksums."""
    return Probe(f"changed-files:{package}", argv=("dpkg", "--verify", str(package)), timeout_s=60.0)


def parse_changed_files(answer: str) -> tuple[str, ...]:
    """Return the paths that ``dpkg --verify`` found changed or missing, without configuration files.

    Source: dpkg(1), --verify-format rpm: nine signs of which 5 is the checksum, or "missing"; "c" marks a conffile.
    """
    rows = (_DPKG_VERIFY_LINE.fullmatch(line) for line in answer.splitlines())
    return tuple(row["path"] for row in rows if row and row["conffile"] == " ")


def is_entry_for_archive(source: PackageSource, archive: Archive) -> bool:
    """Return whether an entry of the sources is for an archive as apt prints it."""
    if not _matches_printed_uri(_without_userinfo(source.uri), _without_userinfo(archive.uri)):
        return False
    if not source.components:
        return _matches_printed_uri(source.suite.strip("./"), archive.part.strip("./"))
    return any(_matches_printed_uri(f"{source.suite}/{component}", archive.part) for component in source.components)


def _without_userinfo(uri: str) -> str:
    return _URL_USERINFO.sub("", uri).rstrip("/")


def _matches_printed_uri(written: str, printed: str) -> bool:
    """Return whether an address in the sources is the one that apt prints with its architecture; sources.list(5)."""
    return re.fullmatch(re.escape(written).replace(re.escape("$(ARCH)"), "[^/]+"), printed) is not None
