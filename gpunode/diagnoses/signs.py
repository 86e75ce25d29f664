"""Build signs: evidence for or against a cause. Pure.

A sign returns the lines that show it, or nothing. Signs combine, and one that several causes share is defined once, in
``symptoms``: a snapshot evaluates it once, and its weight depends on the number of causes that share it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TypeAlias

from gpunode.diagnoses.evaluation import is_examined_by_gpunode
from gpunode.diagnoses.model import Citation, Sign
from gpunode.diagnoses.snapshot import COMMAND_WAS_RUN, Snapshot, cite_fact, lines_with
from gpunode.diagnoses.views import kernel
from gpunode.diagnoses.word_index import ItemGroup
from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import SourceKind

# Tables of names and states contain no messages, and the words of messages occur everywhere in them.
_TABLE_KINDS: frozenset[SourceKind] = frozenset({"packages", "lsmod", "lspci", "nvml", "initramfs"})

CitationReader: TypeAlias = Callable[[Snapshot], Iterable[Citation]]


class _Sign:
    """A reader with its arguments; a snapshot evaluates equal signs once."""

    __slots__ = ("_hash", "arguments", "read")

    def __init__(self, read: Callable[..., Iterable[Citation]], arguments: tuple[object, ...]) -> None:
        self.read, self.arguments = read, arguments
        # Signs are nested, and looked up often.
        self._hash = hash((read, arguments))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Sign) and (self.read, self.arguments) == (other.read, other.arguments)

    def __call__(self, snapshot: Snapshot) -> tuple[Citation, ...]:
        """Return the lines that show the sign."""
        return tuple(self.read(snapshot, *self.arguments))


def message_line(pattern: str, *kinds: SourceKind, on_host: bool = False) -> Sign:
    """Return the sign of a line in messages, or in items of ``kinds``, that ``pattern`` matches."""
    return _Sign(_find_message_lines, (Pattern(pattern, re.MULTILINE), kinds, on_host))


def _find_message_lines(
    snapshot: Snapshot, pattern: Pattern, kinds: tuple[SourceKind, ...], on_host: bool
) -> Iterable[Citation]:
    lines = snapshot.matching_lines(pattern, *kinds)
    if not (lines and on_host):
        return lines
    in_containers = {item.key for item in snapshot.items if item.where == "container" or item.kind == "container-run"}
    return (line for line in lines if line.key not in in_containers)


def kernel_line(pattern: str) -> Sign:
    """Return the sign of a kernel message in any log that ``pattern`` matches, without its ``NVRM:``."""
    return _Sign(_find_kernel_lines, (Pattern(pattern),))


def _find_kernel_lines(snapshot: Snapshot, pattern: Pattern) -> Iterable[Citation]:
    return (message.citation for message in kernel.matching_messages(snapshot, pattern))


def file_line(path: str, pattern: str) -> Sign:
    """Return the sign of a line that ``pattern`` matches in files at ``path``, where ``*`` also matches slashes."""
    return _Sign(_find_file_lines, (path, Pattern(pattern, re.MULTILINE)))


def _find_file_lines(snapshot: Snapshot, path: str, pattern: Pattern) -> Iterable[Citation]:
    items = () if snapshot.lacks_words(pattern) else snapshot.files(path)
    return (line for item in items for line in lines_with(item, pattern))


def any_line(pattern: str, *, on_host: bool = False) -> Sign:
    """Return the sign of a matching line in messages, files and listings, but not in tables."""
    return _Sign(_find_text_lines, (Pattern(pattern, re.MULTILINE), on_host))


def _find_text_lines(snapshot: Snapshot, pattern: Pattern, on_host: bool) -> Iterable[Citation]:
    items = () if snapshot.lacks_words(pattern) else snapshot.view(_text_items).items_with_words(pattern)
    return (line for item in items if item.where == "host" or not on_host for line in lines_with(item, pattern))


def _text_items(snapshot: Snapshot) -> ItemGroup:
    """Return messages, files and listings."""
    found = (item for item in snapshot.items if item.kind not in _TABLE_KINDS and item.was_answered)
    return ItemGroup(item for item in found if not item.is_package_record)


def custom_sign(reader: CitationReader) -> Sign:
    """Return the sign of the lines that ``reader`` yields."""
    return _Sign(reader, ())


def command_run(pattern: str, *, empty: bool = False) -> Sign:
    """Return the sign of a pasted command that ``pattern`` matches; with ``empty``, one that printed nothing.

    People paste the commands that they suspect. Commands that gpunode ran itself do not count.
    """
    return _Sign(_find_commands, (Pattern(pattern, re.IGNORECASE), empty))


def _find_commands(snapshot: Snapshot, pattern: Pattern, is_empty: bool) -> Iterable[Citation]:
    words = f"{COMMAND_WAS_RUN}, and printed nothing" if is_empty else COMMAND_WAS_RUN
    items = () if is_examined_by_gpunode(snapshot) else (item for item in snapshot.items if item.where == "host")
    found = (
        item
        for item in items
        if pattern.may_match(item.written.lower())
        and pattern.search(item.written)
        and not (is_empty and item.text.strip())
    )
    return (cite_fact(item.written, words, item.key) for item in found)


def predicate(is_true: Callable[[Snapshot], bool | None], description: str) -> Sign:
    """Return the sign that ``is_true`` returns True for the node; None counts as False."""
    return _Sign(_cite_if_true, (is_true, description))


def _cite_if_true(
    snapshot: Snapshot, is_true: Callable[[Snapshot], bool | None], description: str
) -> Iterable[Citation]:
    return (cite_fact("the node", description),) if is_true(snapshot) else ()


def any_of(*signs: Sign) -> Sign:
    """Return the sign that any of ``signs`` is seen."""
    return _Sign(_find_any, signs)


def _find_any(snapshot: Snapshot, *signs: Sign) -> Iterable[Citation]:
    return dict.fromkeys(line for sign in signs for line in snapshot.view(sign))


def all_of(*signs: Sign) -> Sign:
    """Return the sign that all of ``signs`` are seen, citing the lines of the first one first."""
    return _Sign(_find_all, signs)


def _find_all(snapshot: Snapshot, *signs: Sign) -> Iterable[Citation]:
    citations: list[tuple[Citation, ...]] = []
    for sign in signs:  # the first that is not seen ends the search
        if not (lines := snapshot.view(sign)):
            return ()
        citations.append(lines)
    return dict.fromkeys(line for lines in citations for line in lines)


def unless(sign: Sign, *others: Sign) -> Sign:
    """Return ``sign`` if none of ``others`` is seen."""
    return _Sign(_find_unless, (sign, *others))


def _find_unless(snapshot: Snapshot, sign: Sign, *others: Sign) -> Iterable[Citation]:
    lines = snapshot.view(sign)  # first, because it is rarely seen
    return () if lines and any(snapshot.view(other) for other in others) else lines
