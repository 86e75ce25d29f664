"""Who wrote a line: a program, a person who describes what happened, or a container in a daemon's journal."""

from __future__ import annotations

import re
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


# Where a person speaks, and no program.
_PERSONS: Final = Pattern(
    r"^(?:the |my |a )?(?:comment|user|reporter|customer|colleague|slack|teams|chat|discord|irc|e?-?mail|question"
    r"|notes?|description|issue|ticket|forum|post|reply|answer|remark|background)\b",
    re.IGNORECASE,
)
# How people speak, and programs do not.
_WORDS: Final = Pattern(
    r"\?[\"'\s)]*$|\bI(?:'m|'ve|'d)? [a-z]|\b(?:[Mm]y|[Ww]e|[Oo]ur|[Ss]omeone|[Ss]omebody|[Cc]olleague) [a-z]"
    r"|\b[Cc]ould (?:it|this|that|the) |\b[Mm]ight (?:be|have) |\b(?:[Mm]aybe|[Pp]erhaps|[Pp]robably)\b"
    r"|\b(?:read|heard|told|wonder\w*|think|guess) that\b|\blast (?:year|month|week|summer|winter)\b",
)
# How a program's line begins: a time, a level, a name with a colon, a device, a row of a table.
_FORMS: Final = Pattern(
    r"^[\s>|*`]*(?:\[|<\d|\{|[IWEF]\d{4} |\d{1,4}[-:/.]\d|[A-Z][a-z]{2} (?:[A-Z][a-z]{2} )?[ \d]\d |(?:time|level|msg)="
    r"|NVRM:|NVIDIA-SMI|Unable to |Failed to |GPU (?:\d|at |is lost|[0-9a-f]{4,8}:)|(?:kern|kernel|nvidia[\w-]*): "
    r"|[\w./-]{1,60}\[\d{1,10}\]: |\w*(?:Error|Exception|ERROR|WARN\w*|Warning|Normal|INFO|FATAL|CRITICAL)\b"
    r"|[A-Z][A-Z0-9_]{3,})"
)
_STAMPED: Final = Pattern(
    r"^[\s>|*`]*(?:\[|<\d|\{|[IWEF]\d{4} |\d{4}-\d\d-\d\d|(?:time|level|msg)=|NVRM:|[A-Z][a-z]{2} [ \d]\d )"
)


def is_persons(source: Source, written: str, line: str) -> bool:
    """Whether a person says the line, of what they read, fear or ask; nobody knows it of a command's answer."""
    if source.words or source.subject or _STAMPED.search(line):
        return False
    speaks, reports = _WORDS.search(line) is not None, _FORMS.search(line) is not None
    return (speaks or not reports) if _PERSONS.search(written) else (speaks and not reports)


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
