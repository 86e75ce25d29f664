"""View whether a program exists: by which, a listing, or the shell's complaint."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.diagnoses.word_index import LineIndex
from gpunode.facts.items import Item

_DENIED: Final = (
    r"(?:^|[\s:'\"`/]){name}['\"`]?: (?:command )?not found|[Cc]ommand ['\"]{name}['\"] not found"
    r"|/{name}['\"]?: No such file"
)


@dataclass(frozen=True, slots=True)
class Presence:
    """The presence or absence of something, and its evidence."""

    is_there: bool
    citation: Citation


def find_program(snapshot: Snapshot, *names: str) -> Presence | None:
    """Return whether one of the programs is there on the node; None if unknown. One that is found counts."""
    seen = [one for name in names for item in snapshot.items if (one := _program_presence(item, name)) is not None]
    return next((one for one in seen if one.is_there), seen[0] if seen else None)


def _lines_ending_with(item: Item, end: str) -> Iterator[int]:
    """Yield the numbers of the lines that are a path with this end, or a link from one."""
    for start in item.view(LineIndex).line_starts(end.lower()):
        number = item.number_at(start)
        if item.lines[number - 1].split(" -> ")[0].rstrip().endswith(end):
            yield number


def _program_presence(item: Item, name: str) -> Presence | None:
    if item.where == "container" or item.is_register or not item.is_seen:
        return None
    found = [*_lines_ending_with(item, f"/{name}")]
    if item.kind in {"which", "listing"} and found:
        return Presence(True, cite(item, found[0]))
    is_asked = re.search(rf"(?:^|[\s/]){re.escape(name)}(?:\s|$)", item.written)
    if is_asked and (item.kind == "which" or re.search(r"\b(?:command -[vV]|type -[pP]|hash)\b", item.written)):
        return Presence(bool(found), cite(item, *found[:1]))
    would_match = any(fnmatchcase(f"/usr/bin/{name}", word) for word in item.source.words[1:] if "*" in word)
    if item.kind == "listing" and item.outcome == "absent" and would_match:
        return Presence(False, cite(item))
    is_whole = item.subject.rstrip("/") in {"/usr/bin", "/bin"} and item.source.lets_through(name)
    if item.kind == "listing" and item.outcome == "ok" and item.text.strip() and is_whole and not item.source.is_part:
        return Presence(name in item.text.split(), cite(item))
    if name in item.text and (denied := re.search(_DENIED.format(name=re.escape(name)), item.text, re.MULTILINE)):
        return Presence(False, cite(item, item.number_at(denied.end())))
    return None
