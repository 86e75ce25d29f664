"""docker: which one answers, what its file and flags say, which runtimes the daemon has, and since when it runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, find, finds, lines_with
from gpunode.diagnoses.views import system
from gpunode.errors import Refused
from gpunode.facts import units
from gpunode.facts.items import Item
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import Kind
from gpunode.runtimes import docker, jsonread
from gpunode.runtimes.dockerd import Flags, flags
from gpunode.runtimes.model import DOCKER_CONFIG

UNIT: Final = "docker.service"
_SNAP: Final = Pattern(
    r"/snap/(?:bin/)?docker\b|/var/snap/docker\b|/run/snap\.docker\b|\bsnap\.docker\.dockerd\b|^docker\b.*\bcanonical\W",
    re.MULTILINE,
)
_SNAP_ROW: Final = Pattern(r"^docker\s+\d\S*\s+\d+\s", re.MULTILINE)
_SNAP_WRITTEN: Final = Pattern(r"\bsnap (?:install|refresh|restart|info|services) docker\b|\bdocker \(snap\)")
_ENGINE: Final = Pattern(r"Docker Root Dir:\s*/var/lib/docker\b")
_DESKTOP: Final = Pattern(
    r"Operating System:\s*Docker Desktop|Server: Docker Desktop|^ *Context:\s*desktop-linux|^desktop-linux\s*(?:\*|$)"
    r"|\"Name\":\s*\"desktop-linux\"|^[ \t]*Name:\s*docker-desktop\b|Kernel Version:\s*\S*linuxkit"
    r"|^\d+\.\d+\.\d+-linuxkit\b|DOCKER_HOST=\S*/\.docker/desktop/|Current context is now \"desktop-linux\"",
    re.MULTILINE,
)
_DESKTOP_HOST: Final = Pattern(r"\"Host\":\s*\"unix://[^\"\n]*/\.docker/desktop/docker\.sock\"")
_WINDOWS: Final = Pattern(r"microsoft-standard|Kernel Version:\s*\S*microsoft", re.IGNORECASE)
_ROOTLESS: Final = Pattern(
    r"^[ \t]*rootless\s*$|name=rootless|^[ \t]*Context:\s*rootless|^rootless\s*\*|dockerd-rootless\.sh --"
    r"|rootlesskit --|DOCKER_HOST=unix:///run/user/\d+/docker\.sock|\"Host\":\s*\"unix:///run/user/\d+/docker\.sock\"",
    re.MULTILINE,
)
_ROOTLESS_WRITTEN: Final = Pattern(
    r"systemctl --user \S+ docker|/\.config/docker/daemon\.json|unix:///run/user/\d+/docker\.sock|\brootless docker\b",
    re.IGNORECASE,
)
_TOLD: Final[tuple[Kind, ...]] = (
    *("docker-info", "docker-version", "container-run", "container-inspect", "text", "environment", "application"),
    *("unit-status", "unit-log", "unit-action"),
)
_SNAP_UNIT: Final = "snap.docker.dockerd.service"


def snap(snapshot: Snapshot) -> tuple[Citation, ...]:
    """What shows that the docker that answers is the snap."""
    if snapshot.says(_ENGINE):
        return ()
    found = [*snapshot.said(_SNAP, *_TOLD, "which", "snap"), *snapshot.said(_SNAP_ROW, "snap")]
    unit = snapshot.facts.unit(_SNAP_UNIT)
    if isinstance(unit, Known) and unit.value.exists and unit.value.state.active:
        found.append(system.unit_line(snapshot, _SNAP_UNIT, "ActiveState"))
    found += [cite(item) for item in snapshot.items if _SNAP_WRITTEN.search(item.written) and item.outcome == "ok"]
    found += [cite(item) for item in snapshot.files("/var/snap/docker/*") if item.outcome == "ok"]
    return tuple(dict.fromkeys(found))


def desktop(snapshot: Snapshot) -> tuple[Citation, ...]:
    """What shows that Docker Desktop answers, in its own virtual machine; that of Windows has GPUs and is left out."""
    if system.is_wsl(snapshot) or snapshot.says(_WINDOWS):
        return ()
    inspected = [
        citation
        for item in snapshot.of("docker-info")
        if "inspect" in item.source.words
        for citation in lines_with(item, _DESKTOP_HOST)
    ]
    return tuple(dict.fromkeys((*snapshot.said(_DESKTOP, *_TOLD), *inspected)))


def rootless(snapshot: Snapshot) -> tuple[Citation, ...]:
    """What shows that the docker that answers runs as a user."""
    found = [*snapshot.said(_ROOTLESS, *_TOLD)]
    shown = (item for item in snapshot.items if item.outcome == "ok" and item.text.strip())
    return tuple(dict.fromkeys((*found, *(cite(item) for item in shown if _ROOTLESS_WRITTEN.search(item.written)))))


_NOWHERE: Final = Citation("", "")


@dataclass(frozen=True, slots=True)
class DaemonFile:
    """A configuration file of dockerd.

    Attributes:
        fault: why dockerd cannot read it; empty where it can.
        citation: of the line with the fault, else of the file.
        is_whole: whether all of it was seen.
        is_as_read: whether it is the file itself; a paste may be shortened, or have a remark in it.
        is_probed: whether gpunode read it.
    """

    path: str
    item: Item
    document: Mapping[str, Any] = field(default_factory=dict)
    fault: str = ""
    citation: Citation = _NOWHERE
    is_whole: bool = True
    is_as_read: bool = True
    is_probed: bool = False

    def line(self, *keys: str) -> Citation:
        """The line on which the last of ``keys`` stands."""
        wanted = Pattern("|".join(rf'"{re.escape(key)}"' for key in reversed(keys)))
        return next(lines_with(self.item, wanted), cite(self.item))

    @property
    def runtimes(self) -> Mapping[str, Any]:
        """The runtimes that it registers."""
        found = self.document.get("runtimes")
        return found if isinstance(found, dict) else {}

    @property
    def default(self) -> str:
        """The default runtime that it names."""
        found = self.document.get("default-runtime")
        return found if isinstance(found, str) else ""

    @property
    def cdi(self) -> bool | None:
        """Whether it switches CDI on; None where it does not say."""
        features = self.document.get("features")
        found = features.get("cdi") if isinstance(features, dict) else None
        return found if isinstance(found, bool) else None


def files(snapshot: Snapshot) -> tuple[DaemonFile, ...]:
    """Dockerd's configuration files that were read."""
    return tuple(_files(snapshot))


def _files(snapshot: Snapshot) -> Iterator[DaemonFile]:
    for item in snapshot.of("file"):
        if item.where == "host" and item.subject.endswith("daemon.json") and item.outcome == "ok":
            yield _daemon_file(
                item, is_probed=isinstance(snapshot.facts.modules, Known) and item.written == item.subject
            )


def _daemon_file(item: Item, *, is_probed: bool) -> DaemonFile:
    path = item.subject if item.subject.startswith("/") or "/" in item.subject else DOCKER_CONFIG
    is_whole = not item.source.only and not item.source.is_part and "\n..." not in item.text
    text = item.text if is_probed else _unnumbered(item.text)
    try:
        document = docker.document_of(text.encode("utf-8", "surrogatepass"), path)
    except Refused as refused:
        is_as_read = is_probed or not _is_edited(text)
        place = cite(item, _line(item, text) or 1)
        return DaemonFile(path, item, {}, _why(refused), place, is_whole, is_as_read, is_probed)
    return DaemonFile(path, item, document, "", cite(item, 1), is_whole, is_probed=is_probed)


def _why(refused: Refused) -> str:
    """The fault without the path, which whoever names the file says."""
    where = re.sub(r"^\S+?daemon\.json:?", "", refused.what).strip()
    return f"{where}: {refused.why.split('. ')[0]}" if refused.why else where


# What `cat -n`, `nl`, `grep -n` and editors write before each line.
_NUMBER: Final = Pattern(r"^[ \t]*(?P<number>\d{1,4})(?:[ \t]?[|:]|[ \t-]|$)")
_STRING: Final = Pattern(r'"(?:[^"\\\n]|\\.){0,2000}"')
# What stands in a paste for what was left out, or for what is nobody's business.
_ELIDED: Final = Pattern(
    r"\.{3}|…|<[^<>\n]{1,80}>|\[ ?(?:snip\w*|cut|omitted|truncated|redacted|removed)\b|--8<|\b(?:snip|etc)\b",
    re.IGNORECASE,
)
# A second object, a bracket or a comma too many are faults of the file's own.
_REMARK: Final = Pattern(r"^\s*[^\s\[\]{},\":]")


def _unnumbered(text: str) -> str:
    """``text`` without the numbers of its lines, where each has the one after that of the line before."""
    lines = [line for line in text.split("\n") if line.strip()]
    found = [_NUMBER.match(line) for line in lines]
    numbers = [int(match["number"]) for match in found if match]
    if not lines or len(numbers) < len(lines) or any(b <= a for a, b in pairwise(numbers)):
        return text
    return "\n".join(_NUMBER.sub("", line) for line in text.split("\n"))


def _is_edited(text: str) -> bool:
    """Whether something was left out of the file, or a person's words stand around its object."""
    if _ELIDED.search(_STRING.sub('""', text)):
        return True
    start = text.find("{")
    if start < 0:
        return False
    with suppress(ValueError, RecursionError):
        end = json.JSONDecoder().raw_decode(text, start)[1]
        return bool(text[:start].strip() or _REMARK.match(text[end:]))
    return False


def _line(item: Item, text: str) -> int:
    try:
        jsonread.parse(text)
    except jsonread.Malformed as error:
        return min(error.line, max(len(item.lines), 1))
    return 0


_RUNTIMES: Final = Pattern(r"^[ \t]*Runtimes:\s*(?P<names>\S.*)$|\"Runtimes\":\s*(?P<json>[{\[])", re.MULTILINE)
_DEFAULT: Final = Pattern(r"^[ \t]*Default Runtime:\s*(?P<name>\S+)", re.MULTILINE)
_NVIDIA: Final = Pattern(r"\bnvidia\b")


@dataclass(frozen=True, slots=True)
class Registered:
    """Whether the running daemon has the runtime, and its default; that is empty where it was not shown."""

    has_nvidia: bool
    citation: Citation
    default: str = ""


def registered(snapshot: Snapshot) -> Registered | None:
    """The runtimes that ``docker info`` names; None where nobody asked it."""
    for item in snapshot.of("docker-info", "text", "container-run"):
        if match := find(item, _RUNTIMES):
            default = find(item, _DEFAULT)
            names = match["names"] or item.text[match.end() : match.end() + 2000]
            place = cite(item, _number(item, match))
            return Registered(bool(_NVIDIA.search(names)), place, default["name"] if default else "")
        # What a format reduced to them: as JSON, as Go prints a map, as names in a row.
        if "Runtimes" in item.written and item.text.strip() and "Error" not in item.text:
            return Registered(bool(_NVIDIA.search(item.text.partition("\n")[0])), cite(item))
    return None


def _number(item: Item, match: re.Match[str]) -> int:
    return item.number_at(match.start(match.lastgroup or 0))


_START: Final = Pattern(r"(?:ExecStart=|^[ \t]*|\s)(?P<command>(?:/\S+/)?dockerd(?:-ce)?\s+-\S[^\n]*)", re.MULTILINE)


def started_with(snapshot: Snapshot) -> tuple[Flags, Citation] | None:
    """The flags with which dockerd is started; None where nothing shows its command line."""
    found: tuple[Flags, Citation] | None = None
    for item in snapshot.items:
        if not _shows_command(item):
            continue
        for match in finds(item, _START):
            words = units.split(match["command"].split(" (code=")[0].strip()) or match["command"].split()
            found = flags(words), cite(item, _number(item, match))
    return found


def _shows_command(item: Item) -> bool:
    about = item.subject.endswith((UNIT, ".conf")) and "docker" in (item.subject or item.written)
    return (about or item.kind in {"unit-file", "unit-status", "text"}) and "dockerd" in item.text


_VERSION: Final = Pattern(r"Docker version (?P<a>\d{1,6}(?:\.\d{1,6})+)|Server Version:\s*(?P<b>\d{1,6}(?:\.\d{1,6})+)")
_VERSION_ROW: Final = Pattern(r"^[ \t]*Version:\s+(?P<c>\d{1,6}(?:\.\d{1,6})+)", re.MULTILINE)


def version(snapshot: Snapshot) -> tuple[int, ...]:
    """Docker's version; empty where nothing tells."""
    for item in snapshot.items:
        match = find(item, _VERSION) if item.kind != "file" else None
        if match is None and item.kind == "docker-version":
            match = find(item, _VERSION_ROW)
        if match is not None:
            return tuple(int(part) for part in re.findall(r"\d{1,18}", match[match.lastgroup or 0]))
    return ()
