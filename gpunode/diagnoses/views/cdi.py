"""CDI: what containers asked for, which specifications there are, where, and what an engine can read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, find, finds, stated
from gpunode.diagnoses.views import containerd, docker, packages
from gpunode.facts import cdi
from gpunode.facts.cdi_places import FOLDERS
from gpunode.facts.items import Item, tells_absence
from gpunode.facts.patterns import Pattern
from gpunode.runtimes import podman

_DEVICE: Final = Pattern(r"(?<![\w./-])(?P<kind>(?:[\w-]+\.)*nvidia\.com/[\w-]+)=(?P<name>[\w.:-]+)")
_UNRESOLVED: Final = Pattern(
    r"unresolvable CDI devices?|(?:could not|cannot) resolve (?:the following )?CDI devices?", re.IGNORECASE
)
_FOLDER: Final = Pattern(r"^/(?:[\w.-]+/){1,5}cdi(?:\.d)?(?=/|$)")
_SPEC_NAME: Final = Pattern(r"(?<![\w.+-])(?P<name>[\w.+-]+\.(?:ya?ml|json))[ \t]*$")
_HEADING: Final = Pattern(r"^(?P<folder>/\S+):$")
_VERSION: Final = Pattern(r"cdiVersion\"?:\s*\"?'?(?P<version>\d{1,6}\.\d{1,6}\.\d{1,6})")
_LIBRARY: Final = Pattern(r"\.so\.(?P<version>\d{3}\.\d{1,3}(?:\.\d{1,3})?)\b")
_FOUND: Final = Pattern(r"Found (?P<count>\d{1,18}) CDI devices?")
_PODMAN: Final = Pattern(
    r"podman version (?P<a>\d{1,6}(?:\.\d{1,6})+)|Podman Engine\s+Version:\s+(?P<b>\d{1,6}(?:\.\d{1,6})+)"
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A CDI device that a container asked for and no engine found."""

    kind: str
    name: str
    citation: Citation

    def __str__(self) -> str:
        return f"{self.kind}={self.name}"


def unresolved(snapshot: Snapshot) -> tuple[Asked, ...]:
    """The devices of NVIDIA's that an engine said it cannot resolve."""
    return tuple(asked for item in snapshot.items if item.is_seen for asked in _unresolved(item))


def _unresolved(item: Item) -> Iterator[Asked]:
    if "CDI" not in item.text or item.kind == "file":
        return
    for number, line in enumerate(item.lines, 1):
        start = _UNRESOLVED.search(line) or _UNRESOLVED.search(" ".join(item.lines[number - 1 : number + 1]))
        if start is None or (not _UNRESOLVED.search(line) and "CDI" not in line):
            continue
        # The list may go on over lines.
        rest = " ".join(item.lines[number - 1 : number + 3])
        for match in _DEVICE.finditer(rest, max(rest.find("esol"), 0)):
            yield Asked(match["kind"], match["name"].rstrip(".:-"), cite(item, number))
        return


@dataclass(frozen=True, slots=True)
class Specification:
    """A specification on the node.

    Attributes:
        folder: as it was written; ``/run/cdi`` is ``/var/run/cdi``.
        version: of CDI; empty where the file was only listed.
        devices: their names; None where nothing tells.
        drivers: the versions of the driver whose libraries it names.
    """

    path: str
    citation: Citation
    kind: str = ""
    version: str = ""
    devices: frozenset[str] | None = None
    drivers: frozenset[str] = frozenset()

    @property
    def folder(self) -> str:
        """Where it lies."""
        return self.path.rpartition("/")[0]

    @property
    def is_management(self) -> bool:
        """Whether it is of the devices that operators use themselves."""
        return "management" in f"{self.kind} {self.path}"


def specifications(snapshot: Snapshot) -> tuple[Specification, ...]:
    """The specifications that were read or listed, each once; the fullest knowledge of each."""
    found: dict[str, Specification] = {}
    for one in (*_written(snapshot), *_listed(snapshot), *_read(snapshot)):
        found[one.path] = one
    return tuple(found.values())


def _at(path: str) -> str:
    return path.replace("/run/cdi", "/var/run/cdi", 1) if path.startswith("/run/cdi") else path


def _written(snapshot: Snapshot) -> Iterator[Specification]:
    """Those that nvidia-ctk wrote, by its command."""
    for item in snapshot.of("nvidia-ctk"):
        words = item.source.words
        if words[1:3] != ("cdi", "generate") or "level=error" in item.text or "ERRO[" in item.text:
            continue
        for index, word in enumerate(words):
            name, mark, value = word.partition("=")
            path = value if mark else next(iter(words[index + 1 : index + 2]), "")
            if name in {"--output", "-o"} and path.startswith("/"):
                yield Specification(_at(path), cite(item, 1))


def _read(snapshot: Snapshot) -> Iterator[Specification]:
    for item in snapshot.items:
        # head and grep show a file, too.
        path = next((word for word in (item.subject, *reversed(item.source.words)) if _FOLDER.match(word)), "")
        if not cdi.is_spec(path) or "*" in path or item.kind not in {"file", "listing"} or not item.text.strip():
            continue
        if item.outcome != "ok" or "cannot access" in item.text:
            continue
        yield _specification(item, path)


def _specification(item: Item, path: str) -> Specification:
    told = cdi.read(path, item.text.encode("utf-8", "surrogatepass"))
    version = find(item, _VERSION)
    drivers = frozenset(match["version"] for match in finds(item, _LIBRARY))
    place = _library_line(item) or cite(item, 1)
    if isinstance(told, cdi.Spec):
        return Specification(_at(path), place, told.kind, told.version, frozenset(told.devices), drivers)
    return Specification(_at(path), place, "", version["version"] if version else "", None, drivers)


def _library_line(item: Item) -> Citation | None:
    match = find(item, _LIBRARY)
    return cite(item, item.number_at(match.start())) if match else None


def _listed(snapshot: Snapshot) -> Iterator[Specification]:
    for item in snapshot.of("listing"):
        folders = [word for word in (*item.source.words, item.subject) if _FOLDER.match(word)]
        if not folders or item.where == "container":
            continue
        folder = folders[0].rstrip("/*")
        for number, line in enumerate(item.lines, 1):
            if match := _HEADING.match(line.strip()):
                folder = match["folder"].rstrip("/")
            elif (match := _SPEC_NAME.search(line)) and "cannot access" not in line:
                word = line.split()[-1]
                path = word if _FOLDER.match(word) else f"{folder}/{match['name']}"
                if _FOLDER.match(path):
                    yield Specification(_at(path), cite(item, number))


def looked_in(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The listings of the folders of specifications, or the tools that list their devices, that found none."""
    return tuple(_empty(snapshot))


def _empty(snapshot: Snapshot) -> Iterator[Citation]:
    for item in snapshot.items:
        if item.where == "container":
            continue
        words = (*item.source.words, item.subject)
        is_folder = item.kind == "listing" and any(_FOLDER.match(word) for word in words)
        is_file = item.kind == "file" and _FOLDER.match(item.subject) and item.outcome == "absent"
        if is_file or (is_folder and not any(_SPEC_NAME.search(line) for line in _told(item))):
            yield cite(item, 1) if item.text.strip() else stated(item.written, "nothing", item.key)
        elif (match := find(item, _FOUND)) and match["count"] == "0":
            yield cite(item, item.number_at(match.start()))
        elif item.source.words[:3] == ("nvidia-ctk", "cdi", "list") and not item.text.strip():
            yield cite(item)
    for key, folder in (("cdi-etc", FOLDERS[0]), ("cdi-run", FOLDERS[1])):
        if folder in snapshot.facts.folders and not any(path.startswith(folder) for path in snapshot.facts.files):
            yield stated(f"ls {folder}", "nothing", key)


def _told(item: Item) -> Iterator[str]:
    return (line for line in item.lines if "No such file" not in line and not tells_absence(line))


def offered(snapshot: Snapshot) -> tuple[tuple[str, Citation], ...]:
    """The devices that ``nvidia-ctk cdi list`` or ``docker info`` names, each as ``nvidia.com/gpu=all``."""
    return tuple(_offered(snapshot))


def _offered(snapshot: Snapshot) -> Iterator[tuple[str, Citation]]:
    for item in snapshot.of("nvidia-ctk", "docker-info"):
        for number, line in enumerate(item.lines, 1):
            match = _DEVICE.search(line)
            if match and ("cdi:" in line or item.kind == "nvidia-ctk") and "unresolvable" not in line:
                yield f"{match['kind']}={match['name']}", cite(item, number)


def podman_version(snapshot: Snapshot) -> tuple[podman.Version, Citation] | None:
    """Podman's version; None where nothing tells."""
    for item in snapshot.items:
        match = find(item, _PODMAN) if item.kind != "file" else None
        if match is not None:
            number = item.number_at(match.start(match.lastgroup or 0))
            return tuple(int(part) for part in match[match.lastgroup or 0].split(".")), cite(item, number)
    package = snapshot.view(packages.packages).get("podman")
    if package is None or not package.is_installed or not (numbers := re.findall(r"\d{1,6}", package.upstream)):
        return None
    return tuple(int(part) for part in numbers[:3]), package.citation


def read_folders(snapshot: Snapshot) -> tuple[tuple[str, ...], Citation | None]:
    """The folders in which the engine looks, and what says so; None as the latter where these are the usual ones."""
    for item in snapshot.of("docker-info"):
        if dirs := _docker_dirs(item):
            return dirs
    if opened := snapshot.match(_OPENED):
        return (_at(opened["folder"].rstrip("/")),), snapshot.said(_OPENED)[0]
    if (told := podman_version(snapshot)) is not None:
        files = {item.subject: item.text.encode() for item in snapshot.files("*containers.conf*") if item.text}
        folders = tuple(_at(one) for one in podman.spec_folders(files, told[0]))
        return folders, told[1] if folders != FOLDERS else None
    for file in snapshot.view(docker.files):
        if found := tuple(one for one in file.document.get("cdi-spec-dirs") or () if isinstance(one, str)):
            return tuple(_at(one) for one in found), file.line("cdi-spec-dirs")
    for effective in (containerd.running(snapshot), containerd.of_files(snapshot)):
        if effective is not None and effective.spec_dirs:
            return tuple(_at(one) for one in effective.spec_dirs), effective.place
    return _named(snapshot) or (FOLDERS, None)


# What an engine says of where it looks goes before what is known of its release.
_OPENED: Final = Pattern(
    r"CDI spec\w*[^\n]{0,60}: (?:open|stat|read\w*|scan\w*) [\"']?(?P<folder>/(?:[\w-]+/){0,8}[\w-]+/?)[\"']?: "
    r"no such file",
    re.IGNORECASE,
)
_DIRS: Final = Pattern(r"^[ \t]*(?:cdi_spec_dirs|spec-dirs)[ \t]*=[ \t]*\[(?P<dirs>[^\]]{1,600})\]", re.MULTILINE)


def _named(snapshot: Snapshot) -> tuple[tuple[str, ...], Citation] | None:
    """The folders that CRI-O's files, or the toolkit's for what it injects itself, name."""
    for item in snapshot.of("file", "text", "containerd-config"):
        if match := find(item, _DIRS):
            dirs = re.findall(r"[\"']([^\"']+)[\"']", match["dirs"])
            return tuple(_at(one) for one in dirs), cite(item, item.text.count("\n", 0, match.start("dirs")) + 1)
    return None


_OPTION: Final = Pattern(r"--cdi-spec-dirs?[= ](?P<folder>/\S+)")


def works_with_option(snapshot: Snapshot) -> tuple[str, Citation] | None:
    """The folder that an engine was told on its command line, where the container then started."""
    for item in snapshot.items:
        if (match := _OPTION.search(item.written)) and item.outcome == "ok" and not find(item, _UNRESOLVED):
            return match["folder"], cite(item, 1)
    return None


def _docker_dirs(item: Item) -> tuple[tuple[str, ...], Citation] | None:
    lines = item.lines
    start = next((number for number, line in enumerate(lines) if "CDI spec directories:" in line), None)
    if start is None:
        return None
    dirs = []
    for line in lines[start + 1 :]:
        if not line.strip().startswith("/"):
            break
        dirs.append(_at(line.strip()))
    return (tuple(dirs), cite(item, start + 1)) if dirs else None
