"""View dockerd: configuration files that it cannot read, and its version."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gpunode.diagnoses.evaluation import is_examined
from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, find_first
from gpunode.errors import Refused
from gpunode.facts import patterns
from gpunode.facts.patterns import Pattern
from gpunode.runtimes import docker
from gpunode.runtimes.model import DOCKER_CONFIG

UNIT: Final = "docker.service"
# What stands in a paste for what was left out, and the numbers of lines.
_EDITED: Final = Pattern(r"\.{3}|…|<[^<>\n]{1,80}>|^[ \t]*\d{1,4}[ \t]*[|:{}\t \"\]]", re.MULTILINE)


def config_faults(snapshot: Snapshot) -> Iterator[tuple[str, Citation]]:
    """Yield the files that dockerd cannot read, with the reason; pasted ones only if complete."""
    for item in snapshot.files("*daemon.json"):
        is_part = item.source.only or item.source.is_part or _EDITED.search(item.text)
        if item.where != "host" or item.outcome != "ok" or (is_part and not is_examined(snapshot)):
            continue
        path = item.subject if "/" in item.subject else DOCKER_CONFIG
        try:
            docker.document_of(item.text.encode("utf-8", "surrogatepass"), path)
        except Refused as refused:
            yield f"{refused.what}: {refused.why.split('. ')[0]}" if refused.why else refused.what, cite(item, 1)


_VERSION: Final = Pattern(
    r"(?:Docker version|Server Version:|^[ \t]*Version:)\s+(?P<version>\d{1,6}(?:\.\d{1,6})+)", re.MULTILINE
)


def docker_version(snapshot: Snapshot) -> tuple[int, ...]:
    """Docker's version; empty if unknown."""
    shown = snapshot.items_of("docker-version", "docker-info", "container-run", "text")
    match = next((match for item in shown if (match := find_first(item, _VERSION))), None)
    return patterns.parse_version(match["version"]) if match else ()
