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
from gpunode.diagnoses.views import hearsay, kernel, system
from gpunode.errors import Refused
from gpunode.facts import boots, units
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
_REFUSED: Final = Pattern(
    r"could not select device driver [\\\"'`]*(?:nvidia)?[\\\"'`]* ?with capabilities ?:? ?\[\[[^\]\n]{0,60}gpu"
    r"|failed to discover GPU vendor from CDI",
    re.IGNORECASE,
)
_UNKNOWN: Final = Pattern(
    r"unknown or invalid runtime name:? ?[\\\"'`]*nvidia|Unknown runtime specified [\\\"'`]*nvidia"
    r"|default runtime [\\\"'`]*nvidia[\\\"'`]* (?:does not exist|not found|is not)"
    r"|(?:OCI )?runtime [\\\"'`]*nvidia[\\\"'`]* (?:does not exist|not found)",
    re.IGNORECASE,
)


def refused(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Docker's word that it knows no way to give a GPU to a container."""
    return since_start(snapshot, snapshot.said(_REFUSED))


def unknown_runtime(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Docker's word that it has no runtime called nvidia."""
    return since_start(snapshot, snapshot.said(_UNKNOWN))


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
    """

    path: str
    item: Item
    document: Mapping[str, Any] = field(default_factory=dict)
    fault: str = ""
    citation: Citation = _NOWHERE
    is_whole: bool = True
    is_as_read: bool = True

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
            yield _daemon_file(item, is_probed=hearsay.was_looked_at(snapshot) and item.written == item.subject)


def _daemon_file(item: Item, *, is_probed: bool) -> DaemonFile:
    path = item.subject if item.subject.startswith("/") or "/" in item.subject else DOCKER_CONFIG
    is_whole = not item.source.only and not item.source.is_part and "\n..." not in item.text
    text = item.text if is_probed else _unnumbered(item.text)
    try:
        document = docker.document_of(text.encode("utf-8", "surrogatepass"), path)
    except Refused as refused:
        is_as_read = is_probed or not _is_edited(text)
        return DaemonFile(path, item, {}, _why(refused), cite(item, _line(item, text) or 1), is_whole, is_as_read)
    return DaemonFile(path, item, document, "", cite(item, 1), is_whole)


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


_RUNTIMES: Final = Pattern(r"^[ \t]*Runtimes:\s*(?P<names>\S.*)$", re.MULTILINE)
_RUNTIMES_JSON: Final = Pattern(r"\"Runtimes\":\s*(?=[{\[])")
_KEY: Final = Pattern(r"\"([\w.-]+)\":\s*\{")
_RUNTIMES_MAP: Final = Pattern(r"^map\[(?=[\w.-]+:\{)")
_DEFAULT: Final = Pattern(r"^[ \t]*Default Runtime:\s*(?P<name>\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Registered:
    """The runtimes that the running daemon has, and its default; that is empty where it was not shown."""

    names: frozenset[str]
    citation: Citation
    default: str = ""


def registered(snapshot: Snapshot) -> Registered | None:
    """The runtimes that ``docker info`` names; None where nobody asked it."""
    for item in snapshot.items:
        if item.kind not in {"docker-info", "text", "container-run"}:
            continue
        if match := find(item, _RUNTIMES):
            names = re.split(r"[\s,]+", match["names"].strip())
            default = find(item, _DEFAULT)
            return Registered(frozenset(names), cite(item, _number(item, match)), default["name"] if default else "")
        if match := find(item, _RUNTIMES_JSON):
            return Registered(_keys(item.text, match.end()), cite(item, item.number_at(match.start())))
        if ".Runtimes" in item.written and (alone := _asked_alone(item)):
            return Registered(alone, cite(item))
    return None


def _keys(text: str, start: int) -> frozenset[str]:
    """The names in the object or list that begins at ``start``; of one that was cut, those of a line."""
    with suppress(ValueError, RecursionError):
        told, _ = json.JSONDecoder().raw_decode(text, start)
        return frozenset(name for name in told if isinstance(name, str))
    return frozenset(_KEY.findall(text[start : start + 4000].partition("\n")[0]))


def _asked_alone(item: Item) -> frozenset[str]:
    """The runtimes in an answer that a format reduced to them: as JSON, as Go prints a map, as names in a row."""
    text = item.text.strip()
    if text[:1] in {"{", "["}:
        return _keys(text, 0)
    if _RUNTIMES_MAP.match(text):
        return frozenset(re.findall(r"([\w.-]+):\{", text))
    words = text.replace(",", " ").split()
    return frozenset(words) if all(re.fullmatch(r"[\w.-]+", word) for word in words) else frozenset()


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


def started(snapshot: Snapshot) -> tuple[float, Citation] | None:
    """When the running dockerd was started, since the epoch, and what says so; None where the node was not asked."""
    unit = snapshot.facts.unit(UNIT)
    if not isinstance(unit, Known) or unit.value.started_at is None:
        return None
    return unit.value.started_at, system.unit_line(snapshot, UNIT, "ExecMainStartTimestamp")


def since_start(snapshot: Snapshot, said: tuple[Citation, ...]) -> tuple[Citation, ...]:
    """What was ``said`` without what a journal has from before the running daemon was started."""
    said = tuple(one for one in said if not _is_before_start(snapshot, one))
    begun = started(snapshot)
    return kernel.since(begun[0] if begun else None, said)


# systemd says so once dockerd has said that it is ready.
_STARTED: Final = Pattern(
    r"systemd\[\d+\]: Started (?:docker\.service|Docker Application Container Engine)", re.MULTILINE
)


def _is_before_start(snapshot: Snapshot, citation: Citation) -> bool:
    """Whether further down in the same log, which has the newest last, docker's start succeeds."""
    for item in snapshot.of("unit-log", "journal", "unit-status"):
        if (item.key, item.written) == (citation.key, citation.source) and not boots.is_reversed(item.source):
            after = max((item.number_at(match.start()) for match in finds(item, _STARTED)), default=0)
            return 0 < (citation.number or 0) < after
    return False


_ACTIVE: Final = Pattern(r"^active$|Active: active \(running\)|^ActiveState=active$", re.MULTILINE)
_ANSWERED: Final = Pattern(r"^[ \t]*Server Version:|^CONTAINER ID ", re.MULTILINE)
_ASKED: Final = frozenset({"run", "exec", "ps"})
_NO_DAEMON: Final = Pattern(r"Cannot connect to the Docker daemon|Is the docker daemon running", re.IGNORECASE)
_ERROR: Final = Pattern(r"\berror\b|\bfailed\b|Unable to find image|Usage:", re.IGNORECASE)


def runs(snapshot: Snapshot) -> tuple[Citation, ...]:
    """What shows that dockerd runs and answers."""
    unit = snapshot.facts.unit(UNIT)
    if isinstance(unit, Known):
        active = unit.value.exists and unit.value.state.active
        return (system.unit_line(snapshot, UNIT, "ActiveState"),) if active else ()
    if snapshot.says(_NO_DAEMON, "container-run", "docker-info", "docker-version", "text"):
        return ()
    units_ = (item for item in snapshot.of("unit-status", "unit-show") if item.subject == UNIT)
    found = [citation for item in units_ for citation in lines_with(item, _ACTIVE)]
    found += snapshot.said(_ANSWERED, "docker-info", "docker-version", "container-run")
    asked = (item for item in snapshot.of("container-run") if item.source.words[:1] == ("docker",))
    found += [cite(item) for item in asked if _ASKED & set(item.source.words[1:2]) and _is_answer(item)]
    return tuple(dict.fromkeys(found))


def _is_answer(item: Item) -> bool:
    return item.outcome == "ok" and bool(item.text.strip()) and find(item, _ERROR) is None


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
