"""View CDI specifications: which exist, which devices they define, and where an engine looks for them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, cite_fact, find_all, find_first, lines_with
from gpunode.diagnoses.views import packages
from gpunode.facts import cdi, patterns
from gpunode.facts.items import EvidenceItem, reports_absence
from gpunode.facts.patterns import Pattern
from gpunode.facts.probes import CDI_FOLDERS
from gpunode.fast_dataclass import dataclass

_FOLDER: Final = Pattern(r"^/(?:[\w.-]+/){1,5}cdi(?:\.d)?(?=/|$)")
_SPEC_FILE_NAME: Final = Pattern(r"(?<![\w.+-])(?P<name>[\w.+-]+\.(?:ya?ml|json))[ \t]*$")
_LISTED_FOLDER_HEADING: Final = Pattern(r"^(?P<folder>/\S+):$")
_CDI_VERSION: Final = Pattern(r"cdiVersion\"?:\s*\"?'?(?P<version>\d{1,6}\.\d{1,6}\.\d{1,6})")
_LIBRARY_VERSION: Final = Pattern(r"\.so\.(?P<version>\d{3}\.\d{1,3}(?:\.\d{1,3})?)\b")
_GENERATE_OUTPUT: Final = Pattern(r"\bcdi generate\b.*(?:--output|-o)[= ](?P<path>/\S+)")


@dataclass(frozen=True, slots=True)
class Specification:
    """A specification of devices for workloads; those that operators use themselves are left out.

    Attributes:
        path: as written in the evidence; ``/run/cdi`` is ``/var/run/cdi``.
        version: the CDI version; empty if the file was only listed.
        drivers: the driver versions of the libraries that it names.
    """

    path: str
    citation: Citation
    version: tuple[int, ...] = ()
    drivers: frozenset[str] = frozenset()

    @property
    def folder(self) -> str:
        """The folder of the file."""
        return self.path.rpartition("/")[0]


def cdi_specifications(snapshot: Snapshot) -> tuple[Specification, ...]:
    """Return the specifications that were read, listed or generated, each once with the most complete content."""
    specifications: dict[str, Specification] = {}
    for item in snapshot.items_of("file", "listing", "nvidia-ctk"):
        for one in _find_specifications(item) if item.where == "host" and item.outcome == "ok" else ():
            if "management" not in one.path and (one.version or one.drivers or one.path not in specifications):
                specifications[one.path] = one
    return tuple(specifications.values())


def _canonical_path(path: str) -> str:
    return path.replace("/run/cdi", "/var/run/cdi", 1) if path.startswith("/run/cdi") else path


def _find_specifications(item: EvidenceItem) -> Iterator[Specification]:
    words = (item.subject, *item.source.words)
    # head and grep also show files.
    path = next((word for word in words if _FOLDER.match(word) and cdi.is_spec_path(word) and "*" not in word), "")
    if item.kind == "nvidia-ctk":
        match = _GENERATE_OUTPUT.search(item.written)
        yield from (
            (Specification(_canonical_path(match["path"]), cite(item, 1)),)
            if match and "error" not in item.lowered
            else ()
        )
    elif path and item.text.strip() and "cannot access" not in item.text:
        version = find_first(item, _CDI_VERSION)
        drivers = frozenset(match["version"] for match in find_all(item, _LIBRARY_VERSION))
        place = next(lines_with(item, _LIBRARY_VERSION), cite(item, 1))
        yield Specification(
            _canonical_path(path), place, patterns.parse_version(version["version"]) if version else (), drivers
        )
    elif item.kind == "listing":
        yield from _list_folder(item, next((word.rstrip("/*") for word in reversed(words) if _FOLDER.match(word)), ""))


def _list_folder(item: EvidenceItem, folder: str) -> Iterator[Specification]:
    for number, line in enumerate(item.lines, 1):
        if match := _LISTED_FOLDER_HEADING.match(line.strip()):
            folder = match["folder"].rstrip("/")
        elif (match := _SPEC_FILE_NAME.search(line)) and "cannot access" not in line:
            word = line.split()[-1]
            path = word if _FOLDER.match(word) else f"{folder}/{match['name']}"
            if _FOLDER.match(path):
                yield Specification(_canonical_path(path), cite(item, number))


_NO_CDI_DEVICES_FOUND: Final = Pattern(r"Found 0 CDI devices")


def empty_listings(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield listings of the specification folders, and of devices by tools, that found nothing."""
    for item in snapshot.items:
        is_asked = item.source.words[:3] == ("nvidia-ctk", "cdi", "list") and not item.text.strip()
        is_folder = any(_FOLDER.match(word) for word in (*item.source.words, item.subject))
        if item.where == "host" and (is_asked or (is_folder and (item.outcome == "absent" or _is_empty_listing(item)))):
            yield cite(item, 1) if item.text.strip() else cite_fact(item.written, "nothing", item.key)
    yield from snapshot.matching_lines(_NO_CDI_DEVICES_FOUND)
    for key, folder in (("cdi-etc", CDI_FOLDERS[0]), ("cdi-run", CDI_FOLDERS[1])):
        if folder in snapshot.facts.folders and not any(path.startswith(folder) for path in snapshot.facts.files):
            yield cite_fact(f"ls {folder}", "nothing", key)


def _is_empty_listing(item: EvidenceItem) -> bool:
    """Return whether the item lists no specification."""
    names = (line for line in item.lines if "No such file" not in line and not reports_absence(line))
    return item.kind == "listing" and not any(map(_SPEC_FILE_NAME.search, names))


_PODMAN_VERSION: Final = Pattern(
    r"(?m)(?:podman version|Podman Engine\s+Version:)\s+(?P<version>\d{1,6}(?:\.\d{1,6})+)"
    r"|^podman[/ -]\D{0,40}(?P<row>\d+\.\d+\.\d+)"
)


def podman_version(snapshot: Snapshot) -> tuple[tuple[int, ...], Citation] | None:
    """Return podman's version; None if unknown."""
    for item in snapshot.items_with_words(_PODMAN_VERSION):
        if item.kind != "file" and (match := find_first(item, _PODMAN_VERSION)):
            place = cite(item, item.line_number_at(match.start(match.lastgroup or 0)))
            return patterns.parse_version(match[match.lastgroup or 0]), place
    package = snapshot.view(packages.listed_packages).get("podman")
    parts = re.findall(r"\d{1,6}", package.upstream) if package and package.is_installed else []
    return (tuple(int(part) for part in parts[:3]), package.citation) if package and parts else None


# The search folders in an engine's messages and in its configuration.
_SEARCH_FOLDERS: Final = Pattern(
    r"(?i)CDI spec directories:(?P<docker>(?:\n[ \t]*/\S+)+)"
    r"|CDI spec\w*[^\n]{0,60}: (?:open|stat|read\w*|scan\w*) [\"']?(?P<opened>/[\w/-]+)[\"']?: no such file"
    r"|cdi[_-]spec[_-]dirs\"?\s*[=:]\s*\[(?P<dirs>[^\]]{1,600})\]"
)
_PATH: Final = Pattern(r"/[\w./-]+")


def search_folders(snapshot: Snapshot) -> tuple[tuple[str, ...], Citation | None]:
    """Return the folders that the engine searches, and the evidence unless they are the usual ones."""
    for item in snapshot.items_with_words(_SEARCH_FOLDERS):
        if item.where == "host" and (match := find_first(item, _SEARCH_FOLDERS)):
            folders = tuple(_canonical_path(one.rstrip("/")) for one in _PATH.findall(match[match.lastgroup or 0]))
            return folders, None if {*CDI_FOLDERS} <= {*folders} else cite(item, item.line_number_at(match.start()))
    podman = podman_version(snapshot)
    # podman 5.5 only searches /etc/cdi unless configured otherwise.
    return (CDI_FOLDERS[:1], podman[1]) if podman is not None and podman[0][:2] == (5, 5) else (CDI_FOLDERS, None)
