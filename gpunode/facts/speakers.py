"""Who wrote a line of a daemon's journal: docker's journald driver puts what containers print under docker's unit."""

from __future__ import annotations

from typing import Final

from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import Source

_LINE: Final = Pattern(
    r"^(?:\d{4}-\d\d-\d\dT\S{8,30}|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,6})?) \S{1,253} "
    r"(?P<who>[^\s\[:]{1,128})(?:\[\d{1,10}\])?: "
)
# Containers stand there under their id, or the tag that somebody chose for them.
_OWN: Final = Pattern(r"\(?(?:dockerd|docker|containerd|systemd|runc|env|podman|conmon)[\w.-]{0,40}\)?")
_DAEMONS: Final = frozenset({"docker.service", "podman.service"})


def of_daemon(source: Source, text: str) -> str:
    """``text`` with an empty line for each that a container wrote; what is no journal of such a daemon stays."""
    if source.kind != "unit-log" or source.subject not in _DAEMONS:
        return text
    kept: list[str] = []
    is_own = True
    for line in text.split("\n"):
        # A message of several lines names its writer in the first.
        if match := _LINE.match(line):
            is_own = _OWN.fullmatch(match["who"]) is not None
        kept.append(line if is_own else "")
    return "\n".join(kept)
