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
class _Sign:
    """A sign that ``read`` finds with ``given``; of equal ones a snapshot looks for one."""

    read: Callable[..., Iterable[Citation]]
    given: tuple[object, ...]

    def __call__(self, snapshot: Snapshot) -> tuple[Citation, ...]:
        """The lines."""
        return tuple(self.read(snapshot, *self.given))


def line(pattern: str, *kinds: Kind, flags: int = 0, on_host: bool = False) -> Sign:
    """A message that ``pattern`` matches within a line, wherever messages stand; of ``kinds``, files and tables too."""
    return _Sign(_lines, (Pattern(pattern, flags | re.MULTILINE), kinds, on_host))


def _lines(snapshot: Snapshot, pattern: Pattern, kinds: tuple[Kind, ...], on_host: bool) -> Iterable[Citation]:
    found = snapshot.said(pattern, *kinds)
    if not (found and on_host):
        return found
    inside = {item.key for item in snapshot.items if item.where == "container" or item.kind == "container-run"}
    return (one for one in found if one.key not in inside)


def kernel_line(pattern: str, flags: int = 0) -> Sign:
    """A message of the kernel that ``pattern`` matches, in whatever log; without ``NVRM:`` before it."""
    return _Sign(_kernel_lines, (Pattern(pattern, flags),))


def _kernel_lines(snapshot: Snapshot, pattern: Pattern) -> Iterable[Citation]:
    return (message.citation for message in kernel.said(snapshot, pattern))


def file_line(path: str, pattern: str, flags: int = 0) -> Sign:
    """A line that ``pattern`` matches in a file whose path matches ``path``; ``*`` matches slashes too."""
    return _Sign(_file_lines, (path, Pattern(pattern, flags | re.MULTILINE)))


def _file_lines(snapshot: Snapshot, path: str, pattern: Pattern) -> Iterable[Citation]:
    return (line for item in snapshot.files(path) for line in lines_with(item, pattern))


def anywhere(pattern: str, flags: int = 0, *, on_host: bool = False) -> Sign:
    """A line that ``pattern`` matches in messages, files and listings; tables of packages and modules are none."""
    return _Sign(_anywhere, (Pattern(pattern, flags | re.MULTILINE), on_host))


def _anywhere(snapshot: Snapshot, pattern: Pattern, on_host: bool) -> Iterable[Citation]:
    if not pattern.may_match(snapshot.view(_all_text)):
        return ()
    items = (item for item in snapshot.view(_texts) if item.where == "host" or not on_host)
    return (line for item in items for line in lines_with(item, pattern))


def _texts(snapshot: Snapshot) -> tuple[Item, ...]:
    """Messages, files and listings."""
    found = (item for item in snapshot.items if item.kind not in _TABLES and item.is_seen)
    return tuple(item for item in found if not item.is_register)


def _all_text(snapshot: Snapshot) -> str:
    return "\n".join(item.view(folded) for item in snapshot.view(_texts))


def fact(read: Read) -> Sign:
    """The lines that ``read``, a function of the node, returns as proof."""
    return _Sign(read, ())


def asked(pattern: str, *, empty: bool = False) -> Sign:
    """A command line that ``pattern`` matches; with ``empty`` one that printed nothing, as grep does without a hit.

    Whoever chose to paste it suspects something there; what gpunode runs is no choice of anybody's.
    """
    return _Sign(_commands, (Pattern(pattern, re.IGNORECASE), empty))


def _commands(snapshot: Snapshot, pattern: Pattern, is_empty: bool) -> Iterable[Citation]:
    words = "that was run, and printed nothing" if is_empty else "that was run"
    items = () if is_examined(snapshot) else (item for item in snapshot.items if item.where == "host")
    found = (item for item in items if pattern.search(item.written) and not (is_empty and item.text.strip()))
    return (stated(item.written, words, item.key) for item in found)


def holds(read: Callable[[Snapshot], bool | None], words: str) -> Sign:
    """That ``read`` is true of the node, which ``words`` say; None and False are both not seen."""
    return _Sign(_holds, (read, words))


def _holds(snapshot: Snapshot, read: Callable[[Snapshot], bool | None], words: str) -> Iterable[Citation]:
    return (stated("the node", words),) if read(snapshot) else ()


def any_of(*signs: Sign) -> Sign:
    """At least one of ``signs``."""
    return _Sign(_any_of, signs)


def _any_of(snapshot: Snapshot, *signs: Sign) -> Iterable[Citation]:
    return dict.fromkeys(line for sign in signs for line in snapshot.view(sign))


def all_of(*signs: Sign) -> Sign:
    """All of ``signs``; the lines of the first are cited first."""
    return _Sign(_all_of, signs)


def _all_of(snapshot: Snapshot, *signs: Sign) -> Iterable[Citation]:
    found = [snapshot.view(sign) for sign in signs]
    return dict.fromkeys(line for lines in found for line in lines) if all(found) else ()


def unless(sign: Sign, *others: Sign) -> Sign:
    """``sign`` where none of ``others`` is seen."""
    return _Sign(_unless, (sign, *others))


def _unless(snapshot: Snapshot, sign: Sign, *others: Sign) -> Iterable[Citation]:
    return () if any(snapshot.view(other) for other in others) else snapshot.view(sign)
