"""Answers of apt about packages that it cannot install, and about its archives, in the C locale."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from gpunode.facts.evidence import Probe
from gpunode.facts.model import PackageSource
from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass
from gpunode.package_id import PackageId

_MAX_MADISON_BYTES = 16 << 20
# Debian Policy 5.6.7, and the architecture that apt appends.
_PACKAGE_NAME = Pattern(r"[a-z0-9][a-z0-9+.-]+(?::[a-z0-9]+)?")
_DPKG_VERIFY_LINE = Pattern(r"(?:missing  |..5......) (?P<conffile>[c ]) (?P<path>/.*)")
# apt-pkg/cacheset.cc.
_VERSION_NOT_FOUND = Pattern(r"Version '([^']+)' for '([^']+)' was not found")
# apt prints no user name, no password and no final slash. Source: apt, ::URI::ArchiveOnly.
_URL_USERINFO = Pattern(r"(?<=://)[^/@]*@")


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive that has a package version.

    Attributes:
        part: suite and component (``bookworm/main``); usually empty for a flat repository.
    """

    uri: str
    part: str


def list_versions(archives: Iterable[tuple[str, str]]) -> Mapping[PackageId, frozenset[str]]:
    """Return the versions of each package among the keys of what ``parse_archives`` returns."""
    versions: dict[PackageId, frozenset[str]] = {}
    for name, version in archives:
        package = PackageId.of(name)
        versions[package] = versions.get(package, frozenset()) | {version}
    return versions


def find_named_packages(refusal: str) -> frozenset[PackageId]:
    """Return every word of a refusal that may be a package, with its architecture and without."""
    found = [PackageId.of(word.rstrip(".")) for word in _PACKAGE_NAME.findall(refusal)]
    return frozenset((*found, *(PackageId(package.name) for package in found)))


def versions_not_found(refusal: str) -> tuple[tuple[PackageId, str], ...]:
    """Return the packages that no archive has in the requested version, each with that version."""
    return tuple((PackageId.of(name), version) for version, name in _VERSION_NOT_FOUND.findall(refusal))


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
