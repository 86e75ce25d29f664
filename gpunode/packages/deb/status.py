"""dpkg's status, apt's extended_states, relations and diversions, read without dpkg in linear time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from gpunode.change import PackageState
from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass
from gpunode.package_id import PackageId

_STATUS_FIELD = Pattern(
    r"\n(Package|Status|Version|Architecture|Auto-Installed|Multi-Arch|Pre-Depends|Depends|Provides): *(.*)"
)
_CONFFILES = Pattern(r"\nConffiles:((?:\n .*)*)")
_DPKG_JOURNAL_FILE = Pattern(r"/\d+\Z")
_PACKAGE_NAME_FIELD = Pattern(r"\nPackage: (\S+)(?=\n)")
# dpkg(1), "Package states": `dpkg --configure -a` makes these installed.
_UNCONFIGURED_STATES = frozenset({"unpacked", "half-configured", "triggers-awaited", "triggers-pending"})
PRESENT_STATES = _UNCONFIGURED_STATES | {"installed"}
# The package has lost some of its files, and counts as absent; it can only be reinstalled.
HALF_INSTALLED_STATE = "half-installed"
_UNFINISHED_STATES = _UNCONFIGURED_STATES | {HALF_INSTALLED_STATE}


@dataclass(frozen=True, slots=True)
class DpkgEntry:
    """A paragraph of the status file, in dpkg's terms; relations are verbatim."""

    name: str
    want: str
    must_be_reinstalled: bool
    status: str
    architecture: str
    version: str
    multi_arch: str = ""
    pre_depends: str = ""
    depends: str = ""
    provides: str = ""


def parse_status(text: str) -> tuple[DpkgEntry, ...]:
    """Return the paragraphs of a status file.

    Raises:
        ValueError: if a paragraph has no name or no status.
    """
    return tuple(_make_dpkg_entry(fields) for fields in _parse_status_paragraphs(text))


def _parse_status_paragraphs(text: str) -> list[dict[str, str]]:
    found = (dict(_STATUS_FIELD.findall("\n" + paragraph)) for paragraph in text.split("\n\n"))
    return [fields for fields in found if fields]


def _make_dpkg_entry(fields: Mapping[str, str]) -> DpkgEntry:
    name, words = fields.get("Package", "").strip(), fields.get("Status", "").split()
    if not name or len(words) != 3:
        raise ValueError(f"a paragraph of dpkg's status without name or status: {name[:80]!r} {words[:4]}")
    keys = ("Architecture", "Version", "Multi-Arch", "Pre-Depends", "Depends", "Provides")
    relations = (fields.get(key, "").strip() for key in keys)
    return DpkgEntry(name, words[0], words[1] == "reinstreq", words[2], *relations)


def native_architecture(dpkg_entries: Sequence[DpkgEntry]) -> str:
    """Return the architecture of dpkg itself, which is what ``dpkg --print-architecture`` prints.

    A root folder without dpkg, as image builders make them, has the architecture of its packages, if they agree.

    Raises:
        ValueError: if dpkg is not among the packages, and they have several architectures or none.
    """
    of_dpkg = [entry.architecture for entry in dpkg_entries if entry.name == "dpkg" and entry.status != "not-installed"]
    architectures = set(of_dpkg[:1]) or {entry.architecture for entry in dpkg_entries} - {"all", ""}
    if len(architectures) == 1:
        return architectures.pop()
    raise ValueError("dpkg's status does not list dpkg, so the native architecture is not known")


def packages(dpkg_entries: Sequence[DpkgEntry], extended_states: str = "") -> Mapping[PackageId, PackageState]:
    """Return the packages that are installed or left configuration behind."""
    native = native_architecture(dpkg_entries)
    auto = {
        (fields.get("Package"), fields.get("Architecture", native))
        for fields in _parse_status_paragraphs(extended_states)
        if fields.get("Auto-Installed", "").strip() == "1"
    }
    return {
        package_id_of(entry, native): PackageState(
            version=entry.version,
            auto=_is_auto(entry, native, auto),
            held=entry.want == "hold",
            config_files_only=entry.status == "config-files",
        )
        for entry in dpkg_entries
        if entry.status in PRESENT_STATES or entry.status == "config-files"
    }


def package_id_of(entry: DpkgEntry, native: str) -> PackageId:
    """Return the id of the package of ``entry``; ``native`` is the architecture of dpkg itself."""
    return PackageId(entry.name, "" if entry.architecture in {native, "all", ""} else entry.architecture)


def _is_auto(entry: DpkgEntry, native: str, auto: set[tuple[str | None, str]]) -> bool:
    # apt writes the native architecture for packages of architecture all.
    architecture = native if entry.architecture in {"all", ""} else entry.architecture
    return entry.status != "config-files" and (entry.name, architecture) in auto


def was_interrupted(dpkg_entries: Iterable[DpkgEntry], updates: Iterable[str]) -> bool:
    """Return whether dpkg was interrupted: a package is unfinished, or ``updates`` has dpkg's journal.

    Source: apt, debSystem::CheckUpdates: a file there whose name is all digits.
    """
    return _has_journal(updates) or any(entry.status in _UNFINISHED_STATES for entry in dpkg_entries)


def find_unconfigured(found: Sequence[DpkgEntry], updates: Iterable[str]) -> frozenset[PackageId]:
    """Return the packages whose maintainer scripts have yet to configure them, or failed to.

    None if dpkg's journal has later states, or if a package lost some of its files: that has to be repaired first.
    Pending triggers are no obstacle: whatever dpkg does next processes them.
    """
    if _has_journal(updates) or any(one.status == HALF_INSTALLED_STATE or one.must_be_reinstalled for one in found):
        return frozenset()
    native = native_architecture(found)
    return frozenset(package_id_of(entry, native) for entry in found if entry.status in {"unpacked", "half-configured"})


def find_selected_for_removal(found: Sequence[DpkgEntry]) -> frozenset[PackageId]:
    """Return the installed packages that ``dpkg --purge --pending`` or dselect would remove."""
    native = native_architecture(found)
    chosen = (one for one in found if one.want in {"purge", "deinstall"} and one.status in PRESENT_STATES)
    return frozenset(package_id_of(entry, native) for entry in chosen)


def list_journaled(text: str) -> frozenset[str]:
    """Return the names of the packages in a file of dpkg's journal, which may be cut off."""
    return frozenset(_PACKAGE_NAME_FIELD.findall(f"\n{text}"))


def _has_journal(updates: Iterable[str]) -> bool:
    return any(_DPKG_JOURNAL_FILE.search(path) for path in updates)


@dataclass(frozen=True, slots=True)
class Database:
    """The package database: the content of dpkg's status file.

    A method that needs the state of packages raises ValueError if the content cannot be parsed.
    """

    text: str

    def packages(self) -> Mapping[PackageId, PackageState]:
        """Return all packages."""
        return packages(parse_status(self.text))

    def half_installed(self) -> frozenset[str]:
        """Return the packages that lost some of their files, or never got them all; dpkg refuses to remove them."""
        return frozenset(entry.name for entry in parse_status(self.text) if entry.status == HALF_INSTALLED_STATE)

    def list_unfinished(self) -> frozenset[str]:
        """Return the packages that dpkg has not finished, including packages with pending triggers."""
        return frozenset(entry.name for entry in parse_status(self.text) if entry.status in _UNFINISHED_STATES)

    def list_obstacles(self) -> frozenset[str]:
        """Return the packages that stop apt, as dpkg names them: they may have lost files, or lack a dependency.

        Other packages that dpkg cannot configure, such as the kernel's and the builder of its initramfs on a full
        disk, are no obstacle: apt removes what it is asked to.
        """
        from gpunode.packages.deb.dependencies import InstalledRelations  # which imports this module

        entries = parse_status(self.text)
        native, count = native_architecture(entries), Counter(entry.name for entry in entries)
        unconfigured = [one for one in entries if one.status in {"unpacked", "half-configured"}]
        ids = [package_id_of(entry, native) for entry in unconfigured]
        lacking = {one.needed_by for one in InstalledRelations(entries).missing(packages(entries), ids) or ()}
        return frozenset(
            f"{entry.name}:{entry.architecture}" if count[entry.name] > 1 else entry.name
            for entry in entries
            if entry.status == HALF_INSTALLED_STATE
            or entry.must_be_reinstalled
            or (entry in unconfigured and package_id_of(entry, native) in lacking)
        )

    def held_unfinished(self) -> Mapping[PackageId, PackageState]:
        """Return the packages of ``list_unfinished`` that are on hold."""
        entries = parse_status(self.text)
        held = [entry for entry in entries if entry.want == "hold" and entry.status in _UNFINISHED_STATES]
        native = native_architecture(entries) if held else ""
        return {package_id_of(entry, native): PackageState(entry.version, held=True) for entry in held}

    def config_files(self, packages: Collection[PackageId]) -> Mapping[str, tuple[str, ...]]:
        """Return the configuration files that dpkg keeps for each of these packages and removes in a purge."""
        files_by_package: dict[str, tuple[str, ...]] = {}
        unshipped, wanted = self.obsolete_conffiles(), frozenset(packages)
        for paragraph in self.text.split("\n\n"):
            fields = dict(_STATUS_FIELD.findall("\n" + paragraph))
            listed = _CONFFILES.search(paragraph)
            name, architecture = fields.get("Package", "").strip(), fields.get("Architecture", "").strip()
            if listed and not wanted.isdisjoint((PackageId(name), PackageId(name, architecture))):
                # "PATH MD5 [obsolete]": a purge also removes files that no package ships any more.
                rows = (line.split() for line in listed[1].splitlines())
                taken = (row[0] for row in rows if len(row) == 2 or (row[2:] == ["obsolete"] and row[0] in unshipped))
                files_by_package[name] = (*files_by_package.get(name, ()), *taken)
        return files_by_package

    def shipped_conffiles(self) -> Mapping[str, str]:
        """Return the configuration files that packages ship, with dpkg's MD5 sum of each as shipped."""
        return {row[0]: row[1] for row in self._conffile_rows() if len(row) == 2}

    def obsolete_conffiles(self) -> Mapping[str, str]:
        """Return the configuration files that the present version of their package no longer ships.

        dpkg leaves them behind when a package changes its version. Source: deb-conffiles(5).
        """
        rows = self._conffile_rows()
        shipped = {row[0] for row in rows if row and row[2:] != ["obsolete"]}
        return {row[0]: row[1] for row in rows if row[2:] == ["obsolete"] and row[0] not in shipped}

    def _conffile_rows(self) -> list[list[str]]:
        return [line.split() for listed in _CONFFILES.finditer("\n" + self.text) for line in listed[1].splitlines()]

    def find_needed(self, leaving: Collection[PackageId], changing: Collection[PackageId]) -> Mapping[PackageId, str]:
        """Return the packages among ``leaving`` that others still need; see ``InstalledRelations.find_needed``."""
        from gpunode.packages.deb.dependencies import InstalledRelations  # which imports this module

        return InstalledRelations(found).find_needed(leaving, changing) if (found := parse_status(self.text)) else {}


_ALTERNATIVE: Final = Pattern(r"\s*([^\s:(\[<|,]+)(?::([^\s(\[<|,]+))?\s*(?:\(\s*([<>=]{1,2})\s*([^)\s]+)\s*\))?")


@dataclass(frozen=True, slots=True)
class Alternative:
    """A package of a clause ``a (>= 1) | b:any``.

    Attributes:
        qualifier: the required architecture: empty for that of the depending package, ``any``, or a name.
        operator: empty if any version will do.
    """

    name: str
    qualifier: str
    operator: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} ({self.operator} {self.version})" if self.operator else self.name


def parse_clauses(field: str) -> Iterator[tuple[Alternative, ...]]:
    """Yield each clause of a field such as Depends, its alternatives in order; malformed relations are left out."""
    for clause in filter(str.strip, field.split(",")):
        matches = filter(None, map(_ALTERNATIVE.match, clause.split("|")))
        if found := tuple(Alternative(match[1], match[2] or "", match[3] or "", match[4] or "") for match in matches):
            yield found


DIVERSIONS_FILE: Final = "/var/lib/dpkg/diversions"
_MANUAL_DIVERTER = ":"


def parse_checksums(text: str) -> Mapping[str, str]:
    """Return the MD5 sums of a package's files, by path; each line is ``SUM  PATH`` without the first slash."""
    rows = (line.partition("  ") for line in text.splitlines())
    return {f"/{path}": checksum for checksum, _, path in rows}


def parse_diversions(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield each diverted path, its target, and the package that diverted it: dpkg-divert(1), three lines each."""
    lines = text.split("\n")
    yield from zip(lines[0::3], lines[1::3], lines[2::3], strict=False)


def manual_diversions(text: str) -> Iterator[tuple[str, str]]:
    """Yield each path that a person, and no package, has diverted, and its target."""
    yield from ((path, target) for path, target, package in parse_diversions(text) if package == _MANUAL_DIVERTER)


def find_owners(paths: Collection[str], lists: Mapping[str, bytes], diversions: str) -> Mapping[str, tuple[str, ...]]:
    """Return the packages whose files are among ``paths``, by path.

    A package that was removed and not purged still has its configuration files.

    ``lists`` has the paths of a package, one per line, by its name (``libcuda1:amd64``). Files that another package or
    a person has diverted, according to dpkg's file of ``diversions``, are elsewhere.
    """
    # Before Debian 13, packages list /lib, which is a link to /usr/lib.
    aliases = {name: path for path in paths for name in (path.removeprefix("/usr"), path)}
    moves = {(source, by): target for source, target, by in parse_diversions(diversions)}
    sources = {target: source for (source, _), target in moves.items() if target in aliases}
    wanted = {name.encode(): name for name in (*aliases, *sources.values())}
    owners: dict[str, tuple[str, ...]] = {}
    for package, listed in lists.items():
        for name in sorted(wanted[line] for line in wanted.keys() & set(listed.split(b"\n"))):
            diverted = [to for (source, by), to in moves.items() if source == name and by != package.partition(":")[0]]
            place = diverted[0] if diverted else name
            if place in aliases:
                owners[aliases[place]] = (*owners.get(aliases[place], ()), package)
    return owners
