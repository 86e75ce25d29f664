"""dockerd: what its file and flags say, and its version."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, find, finds, lines_with
from gpunode.errors import Refused
from gpunode.facts import numbers, units
from gpunode.facts.items import Item
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern
from gpunode.runtimes import docker, jsonread
from gpunode.runtimes.dockerd import Flags, flags
from gpunode.runtimes.model import DOCKER_CONFIG

UNIT: Final = "docker.service"
_NOWHERE: Final = Citation("", "")


@dataclass(frozen=True, slots=True)
class DaemonFile:
    """A configuration file of dockerd.

    Attributes:
        fault: why dockerd cannot read it; empty where it can, or where the paste is not the whole file.
        citation: of the line with the fault, else of the file.
        is_probed: whether gpunode read it.
    """

    path: str
    item: Item
    document: Mapping[str, Any] = field(default_factory=dict)
    fault: str = ""
    citation: Citation = _NOWHERE
    is_probed: bool = False

    def line(self, key: str) -> Citation:
        """The line on which ``key`` stands."""
        return next(lines_with(self.item, Pattern(rf'"{re.escape(key)}"')), cite(self.item))

    @property
    def has_nvidia(self) -> bool:
        """Whether it registers NVIDIA's runtime."""
        found = self.document.get("runtimes")
        return isinstance(found, dict) and "nvidia" in found

    @property
    def is_default(self) -> bool:
        """Whether it makes NVIDIA's runtime the default."""
        return self.document.get("default-runtime") == "nvidia"


def files(snapshot: Snapshot) -> tuple[DaemonFile, ...]:
    """Dockerd's configuration files that were read."""
    shown = (item for item in snapshot.of("file") if item.where == "host" and item.outcome == "ok")
    is_live = isinstance(snapshot.facts.modules, Known)
    named = (item for item in shown if item.subject.endswith("daemon.json"))
    return tuple(_daemon_file(item, is_probed=is_live and item.written == item.subject) for item in named)


def _daemon_file(item: Item, *, is_probed: bool) -> DaemonFile:
    path = item.subject if "/" in item.subject else DOCKER_CONFIG
    try:
        document = docker.document_of(item.text.encode("utf-8", "surrogatepass"), path)
    except Refused as refused:
        is_file = is_probed or not (item.source.only or item.source.is_part or _is_edited(item.text))
        return DaemonFile(path, item, {}, _why(refused) if is_file else "", cite(item, _line(item) or 1), is_probed)
    return DaemonFile(path, item, document, "", cite(item, 1), is_probed)


def _why(refused: Refused) -> str:
    """The fault without the path, which whoever names the file says."""
    where = re.sub(r"^\S+?daemon\.json:?", "", refused.what).strip()
    return f"{where}: {refused.why.split('. ')[0]}" if refused.why else where


_STRING: Final = Pattern(r'"(?:[^"\\\n]|\\.){0,2000}"')
# What stands in a paste for what was left out or is nobody's business, the numbers of lines, and a person's words.
_EDITED: Final = Pattern(
    r"\.{3}|…|<[^<>\n]{1,80}>|\[ ?(?:snip\w*|cut|omitted|truncated|redacted|removed)\b"
    r"|^[ \t]*\d{1,4}[ \t]*[|:{}\t \"\]]",
    re.IGNORECASE | re.MULTILINE,
)
_REMARK: Final = Pattern(r"^\s*[^\s\[\]{},\":]")


def _is_edited(text: str) -> bool:
    if _EDITED.search(_STRING.sub('""', text)):
        return True
    start = max(text.find("{"), 0)
    with suppress(ValueError, RecursionError):
        end = json.JSONDecoder().raw_decode(text, start)[1]
        return bool(text[:start].strip() or _REMARK.match(text[end:]))
    return False


def _line(item: Item) -> int:
    try:
        jsonread.parse(item.text)
    except jsonread.Malformed as error:
        return min(error.line, max(len(item.lines), 1))
    return 0


_START: Final = Pattern(r"(?:ExecStart=|^[ \t]*|\s)(?P<command>(?:/\S+/)?dockerd(?:-ce)?\s+-\S[^\n]*)", re.MULTILINE)


def started_with(snapshot: Snapshot) -> Flags | None:
    """The flags with which dockerd is started; None where nothing shows its command line."""
    found: Flags | None = None
    for item in snapshot.items:
        is_drop_in = item.subject.endswith((UNIT, ".conf")) and "docker" in (item.subject or item.written)
        if not is_drop_in and item.kind not in {"unit-file", "unit-status", "text"}:
            continue
        for match in finds(item, _START):
            words = units.split(match["command"].split(" (code=")[0].strip()) or match["command"].split()
            found = flags(words)
    return found


_VERSION: Final = Pattern(r"(?:Docker version|Server Version:)\s+(?P<version>\d{1,6}(?:\.\d{1,6})+)")
_ROW: Final = Pattern(r"^[ \t]*Version:\s+(?P<version>\d{1,6}(?:\.\d{1,6})+)", re.MULTILINE)


def version(snapshot: Snapshot) -> tuple[int, ...]:
    """Docker's version; empty where nothing tells."""
    for item in snapshot.items:
        match = find(item, _ROW if item.kind == "docker-version" else _VERSION) if item.kind != "file" else None
        if match is not None:
            return numbers.version(match["version"])
    return ()
