"""Signs: what in a node's evidence speaks for a cause, or against it. Pure.

A sign returns the lines in which it stands, and nothing where it was not seen. Signs are made of each other, and two
causes that share one name it once, in ``symptoms``: a snapshot looks for it once, and how many causes share it tells
how much it says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from gpunode.diagnoses.judging import is_examined
from gpunode.diagnoses.model import Citation, Sign
from gpunode.diagnoses.snapshot import Snapshot, folded, lines_with, stated
from gpunode.diagnoses.views import kernel
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import Kind

# Tables of names and states: no message stands there, and their words are everywhere.
_TABLES: frozenset[Kind] = frozenset({"packages", "lsmod", "lspci", "nvml", "initramfs"})

Read: TypeAlias = Callable[[Snapshot], Iterable[Citation]]


@dataclass(frozen=True, slots=True)
class Line:
    """A message, wherever messages stand, or in evidence of some kinds only; on the host only, if so asked."""

    pattern: Pattern
    kinds: tuple[Kind, ...] = ()
    on_host: bool = False

    def __call__(self, snapshot: Snapshot) -> tuple[Citation, ...]:
        """The lines in which it stands."""
        found = snapshot.said(self.pattern, *self.kinds)
        if not (found and self.on_host):
            return found
        inside = {item.key for item in snapshot.items if item.where == "container" or item.kind == "container-run"}
        return tuple(one for one in found if one.key not in inside)


def line(pattern: str, *kinds: Kind, flags: int = 0, on_host: bool = False) -> Sign:
    """A message that ``pattern`` matches within a line; of ``kinds``, files and tables too."""
    return Line(Pattern(pattern, flags | re.MULTILINE), kinds, on_host)


@dataclass(frozen=True, slots=True)
class KernelLine:
    """A message of the kernel, in whatever log; those of several lines are joined."""

    pattern: Pattern

    def __call__(self, snapshot: Snapshot) -> tuple[Citation, ...]:
        """The first line of each such message."""
        return tuple(message.citation for message in kernel.said(snapshot, self.pattern))


def kernel_line(pattern: str, flags: int = 0) -> Sign:
    """A message of the kernel that ``pattern`` matches; without ``NVRM:`` before it."""
    return KernelLine(Pattern(pattern, flags))


@dataclass(frozen=True, slots=True)
class FileLine:
    """A line of files whose path matches a shell pattern, or of what was searched in them."""

    path: str
    pattern: Pattern

    def __call__(self, snapshot: Snapshot) -> tuple[Citation, ...]:
        """The lines."""
        return tuple(line for item in snapshot.files(self.path) for line in lines_with(item, self.pattern))


def file_line(path: str, pattern: str, flags: int = 0) -> Sign:
    """A line that ``pattern`` matches in a file whose path matches ``path``; ``*`` matches slashes too."""
    return FileLine(path, Pattern(pattern, flags | re.MULTILINE))


@dataclass(frozen=True, slots=True)
class Anywhere:
    """Text in messages, files and listings alike."""

    pattern: Pattern
    on_host: bool = False

    def __call__(self, snapshot: Snapshot) -> tuple[Citation, ...]:
        """The lines."""
        if not self.pattern.may_match(snapshot.view(_all_text)):
            return ()
        items = (item for item in snapshot.view(_texts) if item.where == "host" or not self.on_host)
        return tuple(line for item in items for line in lines_with(item, self.pattern))


def anywhere(pattern: str, flags: int = 0, *, on_host: bool = False) -> Sign:
    """A line that ``pattern`` matches in messages, files and listings; tables of packages and modules are none."""
    return Anywhere(Pattern(pattern, flags | re.MULTILINE), on_host)


def _texts(snapshot: Snapshot) -> tuple[Item, ...]:
    """Messages, files and listings."""
    found = (item for item in snapshot.items if item.kind not in _TABLES and item.is_seen)
    return tuple(item for item in found if not item.is_register)


def _all_text(snapshot: Snapshot) -> str:
    return "\n".join(item.view(folded) for item in snapshot.view(_texts))


@dataclass(frozen=True, slots=True)
class Fact:
    """What a function of the node returns as proof."""

    read: Read

    def __call__(self, snapshot: Snapshot) -> tuple[Citation, ...]:
        """Its lines."""
        return tuple(self.read(snapshot))


def fact(read: Read) -> Sign:
    """The lines that ``read`` returns."""
    return Fact(read)


@dataclass(frozen=True, slots=True)
class Asked:
    """A command that was typed, whatever its answer: whoever chose to paste it suspects something there."""

    pattern: Pattern
    is_empty: bool = False

    def __call__(self, snapshot: Snapshot) -> tuple[Citation, ...]:
        """The commands; those without an answer alone, if so asked. What gpunode runs is no choice of anybody's."""
        if is_examined(snapshot):
            return ()
        found = (item for item in snapshot.items if self.pattern.search(item.written))
        silent = "that was run, and printed nothing" if self.is_empty else "that was run"
        return tuple(
            stated(item.written, silent, item.key)
            for item in found
            if item.where == "host" and not (self.is_empty and item.text.strip())
        )


def asked(pattern: str, *, empty: bool = False) -> Sign:
    """A command line that ``pattern`` matches; with ``empty`` one that printed nothing, as grep does without a hit."""
    return Asked(Pattern(pattern, re.IGNORECASE), empty)


@dataclass(frozen=True, slots=True)
class Holds:
    """That a function of the node is true; None and False are both not seen."""

    read: Callable[[Snapshot], bool | None]
    words: str

    def __call__(self, snapshot: Snapshot) -> tuple[Citation, ...]:
        """What it comes to, in words of gpunode."""
        return (stated("the node", self.words),) if self.read(snapshot) else ()


def holds(read: Callable[[Snapshot], bool | None], words: str) -> Sign:
    """That ``read`` is true of the node, which ``words`` say."""
    return Holds(read, words)


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one of several signs."""

    signs: tuple[Sign, ...]

    def __call__(self, snapshot: Snapshot) -> tuple[Citation, ...]:
        """The lines of all that are seen."""
        return tuple(dict.fromkeys(line for sign in self.signs for line in snapshot.view(sign)))


def any_of(*signs: Sign) -> Sign:
    """At least one of ``signs``."""
    return AnyOf(signs)


@dataclass(frozen=True, slots=True)
class AllOf:
    """Several signs together."""

    signs: tuple[Sign, ...]

    def __call__(self, snapshot: Snapshot) -> tuple[Citation, ...]:
        """The lines of all; nothing where one is not seen."""
        found = [snapshot.view(sign) for sign in self.signs]
        return tuple(dict.fromkeys(line for lines in found for line in lines)) if all(found) else ()


def all_of(*signs: Sign) -> Sign:
    """All of ``signs``; the lines of the first are cited first."""
    return AllOf(signs)


@dataclass(frozen=True, slots=True)
class Unless:
    """A sign where none of others is seen."""

    sign: Sign
    others: tuple[Sign, ...]

    def __call__(self, snapshot: Snapshot) -> tuple[Citation, ...]:
        """The lines of the sign."""
        return () if any(snapshot.view(other) for other in self.others) else snapshot.view(self.sign)


def unless(sign: Sign, *others: Sign) -> Sign:
    """``sign`` where none of ``others`` is seen."""
    return Unless(sign, others)
