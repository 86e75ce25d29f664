"""dockerd: what its files say, and its version."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, find, lines_with
from gpunode.errors import Refused
from gpunode.facts import numbers
from gpunode.facts.items import Item
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern
from gpunode.runtimes import docker
from gpunode.runtimes.model import DOCKER_CONFIG

UNIT: Final = "docker.service"


@dataclass(frozen=True, slots=True)
class DaemonFile:
    """A configuration file of dockerd.

    Attributes:
        fault: why dockerd cannot read it; empty where it can, or where the paste is not the whole file.
        is_probed: whether gpunode read it.
    """

    path: str
    item: Item
    document: Mapping[str, Any]
    fault: str
    is_probed: bool

    def line(self, key: str) -> Citation:
        """The line on which ``key`` stands."""
        return next(lines_with(self.item, Pattern(rf'"{re.escape(key)}"')), self.first_line)

    @property
    def first_line(self) -> Citation:
        """The file's first line."""
        return cite(self.item, 1)

    @property
    def is_users(self) -> bool:
        """Whether a rootless docker reads it."""
        return ".config/docker" in self.path

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
    is_live = isinstance(snapshot.facts.modules, Known)
    shown = (item for item in snapshot.files("*daemon.json") if item.where == "host" and item.outcome == "ok")
    return tuple(_daemon_file(item, is_probed=is_live and item.written == item.subject) for item in shown)


# What stands in a paste for what was left out, and the numbers of lines.
_EDITED: Final = Pattern(r"\.{3}|…|<[^<>\n]{1,80}>|^[ \t]*\d{1,4}[ \t]*[|:{}\t \"\]]", re.MULTILINE)


def _daemon_file(item: Item, *, is_probed: bool) -> DaemonFile:
    path = item.subject if "/" in item.subject else DOCKER_CONFIG
    try:
        document = docker.document_of(item.text.encode("utf-8", "surrogatepass"), path)
    except Refused as refused:
        is_whole = is_probed or not (item.source.only or item.source.is_part or _EDITED.search(item.text))
        return DaemonFile(path, item, {}, _why(refused) if is_whole else "", is_probed)
    return DaemonFile(path, item, document, "", is_probed)


def _why(refused: Refused) -> str:
    """The fault without the path, which whoever names the file says."""
    where = re.sub(r"^\S+?daemon\.json:?", "", refused.what).strip()
    return f"{where}: {refused.why.split('. ')[0]}" if refused.why else where


_VERSION: Final = Pattern(
    r"(?:Docker version|Server Version:|^[ \t]*Version:)\s+(?P<version>\d{1,6}(?:\.\d{1,6})+)", re.MULTILINE
)


def version(snapshot: Snapshot) -> tuple[int, ...]:
    """Docker's version; empty where nothing tells."""
    shown = snapshot.of("docker-version", "docker-info", "container-run", "text")
    match = next((match for item in shown if (match := find(item, _VERSION))), None)
    return numbers.version(match["version"]) if match else ()
