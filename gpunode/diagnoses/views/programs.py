"""Whether a program is there: by which, by a listing, or by the shell's word when somebody tried to run it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, finds
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern

_ABSENT: Final = Pattern(
    r"(?:^|[\s:'\"`/])(?P<name>[\w.+-]+)['\"`]?: (?:command )?not found"
    r"|Command ['\"](?P<asked>[\w.+-]+)['\"] not found"
    r"|cannot access ['\"]?(?P<listed>/[^\s'\":]+)['\"]?: No such file",
    re.IGNORECASE | re.MULTILINE,
)
# A shell's own word for it.
_COMMAND: Final = Pattern(r"\b(?:command -[vV]|type -[pP]|hash)\s+(?P<names>[\w.+ -]+)")
_PATH: Final = Pattern(r"^(?:[\w.+-]+:\s+)?(?P<path>/\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Presence:
    """Whether something is there, and what says so."""

    is_there: bool
    citation: Citation


def look(snapshot: Snapshot, *names: str) -> Presence | None:
    """Whether one of the programs is there on the node; None where nobody looked. One that is found counts."""
    seen = [one for name in names for item in snapshot.items if (one := _seen(item, name)) is not None]
    return next((one for one in seen if one.is_there), seen[0] if seen else None)


def _seen(item: Item, name: str) -> Presence | None:
    if item.where == "container" or item.is_register or not item.is_seen:
        return None
    if (asked := _COMMAND.search(item.written)) and name in asked["names"].split():
        return Presence(f"/{name}" in item.text, cite(item))
    if item.kind == "which":
        if name not in (word.rsplit("/", 1)[-1] for word in item.source.words[1:]):
            return None
        paths = {match["path"].rsplit("/", 1)[-1] for match in finds(item, _PATH)}
        return Presence(name in paths, cite(item))
    if item.kind == "listing" and item.outcome == "absent" and _would_list(item, name):
        return Presence(False, cite(item))
    if item.kind == "listing" and (line := _listed(item, name)):
        return Presence(True, cite(item, line))
    if item.kind == "listing" and item.outcome == "ok" and _shows_all(item, name):
        return Presence(False, cite(item))
    return next((Presence(False, cite(item, number)) for number in _denials(item, name)), None)


def _would_list(item: Item, name: str) -> bool:
    """Whether a pattern that was listed, and matched nothing, is one that the program's usual place matches."""
    return any(fnmatchcase(f"/usr/bin/{name}", word) for word in item.source.words[1:] if "*" in word)


def _shows_all(item: Item, name: str) -> bool:
    """Whether it lists the folder of programs whole, or by a pattern that would have let the name through."""
    if item.subject.rstrip("/") not in {"/usr/bin", "/bin"} or item.source.is_part or not item.text.strip():
        return False
    return item.source.lets_through(name)


def _listed(item: Item, name: str) -> int:
    """The line of a listing that ends in the program's path; 0 where none does."""
    return item.view(_paths).get(name, 0)


def _paths(item: Item) -> Mapping[str, int]:
    """The programs of a listing, each with the line that shows it first."""
    found: dict[str, int] = {}
    for number, line in enumerate(item.lines, 1):
        words = line.split(" -> ")[0].split()
        if words and "/bin" in f"{item.subject} {words[-1]}":
            found.setdefault(words[-1].rsplit("/", 1)[-1], number)
    return found


def _denials(item: Item, name: str) -> Iterator[int]:
    if name not in item.text or ("not found" not in item.text and "No such file" not in item.text):
        return
    for match in finds(item, _ABSENT):
        found = match["name"] or match["asked"] or match["listed"].rsplit("/", 1)[-1]
        if found == name:
            yield item.number_at(match.start(match.lastgroup or 0))
