"""Hold a node's evidence and facts for the rules, with views that are computed once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, Final, TypeVar, cast

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.word_index import (
    JOINED_LINE_COUNT,
    ItemGroup,
    LineIndex,
    Vocabulary,
    join_nearby_lines,
    vocabulary_of,
)
from gpunode.facts import boots
from gpunode.facts.derive import derive
from gpunode.facts.evidence import Evidence
from gpunode.facts.items import EvidenceItem, split_items
from gpunode.facts.model import Facts
from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import SourceKind
from gpunode.fast_dataclass import dataclass

T = TypeVar("T")

# Tables and files have their own views and are not searched for messages.
_KINDS_WITHOUT_MESSAGES: Final[frozenset[SourceKind]] = frozenset(
    {"file", "packages", "listing", "lsmod", "lspci", "modinfo", "initramfs", "nvml", "unit-show", "containerd-config"}
)
_MAX_CITATIONS_PER_SIGN: Final = 12
_NOT_COMPUTED: Final = object()


@dataclass(frozen=True)
class Snapshot:
    """The evidence and facts of a node.

    Attributes:
        items: the evidence without log lines of earlier boots.
        all_items: the evidence including those lines.
        current_items: the items without those lines, if ``items`` includes them; else None.
        vocabulary: the words of all evidence, shared by every snapshot of the node.
    """

    items: tuple[EvidenceItem, ...]
    facts: Facts
    all_items: tuple[EvidenceItem, ...] = ()
    current_items: tuple[EvidenceItem, ...] | None = None
    vocabulary: Vocabulary | None = None
    _views: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def view(self, read: Callable[[Snapshot], T]) -> T:
        """Return the result of ``read`` for this snapshot, computed once."""
        found = self._views.get(read, _NOT_COMPUTED)  # one look-up: hashing nested signs takes long
        if found is _NOT_COMPUTED:
            found = self._views[read] = read(self)
        return cast(T, found)

    @property
    def including_earlier_boots(self) -> Snapshot | None:
        """The node including its earlier boots; None if no log covers them."""
        same = len(self.items) == len(self.all_items) and all(
            a is b for a, b in zip(self.items, self.all_items, strict=True)
        )
        if same or not self.all_items:
            return None
        return Snapshot(self.all_items, self.facts, self.all_items, self.items, self.vocabulary)

    def with_items(
        self,
        items: tuple[EvidenceItem, ...],
        all_items: tuple[EvidenceItem, ...],
        current_items: tuple[EvidenceItem, ...] | None,
    ) -> Snapshot:
        """Return the node with some of its evidence; the items' texts must be parts of this snapshot's."""
        return Snapshot(items, self.facts, all_items, current_items, self.vocabulary)

    def is_of_earlier_boot(self, citation: Citation) -> bool:
        """Return whether the line is missing from the current items, as those of an earlier boot are."""
        items = self.items if self.current_items is None else self.current_items
        present = (item for item in items if (item.key, item.written) == (citation.key, citation.source))
        at = (citation.line_number or 0) - 1
        return not any(at < len(item.lines) and item.lines[at] == citation.line for item in present)

    def items_of(self, *kinds: SourceKind) -> tuple[EvidenceItem, ...]:
        """Return the items of these kinds that were answered, even with "not there", in the order of the evidence."""
        by_kind = self.view(_items_by_kind)
        return self._memoize(
            kinds, lambda: (item for _, item in sorted(row for kind in {*kinds} for row in by_kind.get(kind, ())))
        )

    def files(self, pattern: str) -> tuple[EvidenceItem, ...]:
        """Return the existing files whose path matches ``pattern``; ``*`` also matches slashes."""
        files = self.view(_existing_files)
        return self._memoize(pattern, lambda: (item for item in files if fnmatchcase(item.subject, pattern)))

    def _memoize(self, key: object, find: Callable[[], Iterator[EvidenceItem]]) -> tuple[EvidenceItem, ...]:
        """Return the items that ``find`` yields, computed once for each ``key``."""
        if key not in self._views:
            self._views[key] = tuple(find())
        return cast("tuple[EvidenceItem, ...]", self._views[key])

    def file(self, path: str) -> EvidenceItem | None:
        """Return the file at ``path``, with ``outcome`` ``absent`` if it does not exist; None if nobody looked."""
        return next((item for item in self.items if item.subject == path and item.kind != "listing"), None)

    def matching_lines(self, pattern: Pattern, *kinds: SourceKind) -> tuple[Citation, ...]:
        """Return the lines that ``pattern`` matches in items of ``kinds``, by default in all that may contain messages.

        A pattern never matches across lines, but messages that were wrapped when pasted are found, and kernel messages
        are searched as a whole. At most a dozen lines of each item are returned.
        """
        return tuple(
            citation for item in self.items_to_search(pattern, *kinds) for citation in lines_with(item, pattern)
        )

    def contains(self, pattern: Pattern, *kinds: SourceKind) -> bool:
        """Return whether ``pattern`` matches; see ``matching_lines``."""
        return any(True for item in self.items_to_search(pattern, *kinds) for _ in lines_with(item, pattern))

    def match(self, pattern: Pattern, *kinds: SourceKind) -> re.Match[str] | None:
        """Return the first match of ``pattern``; see ``matching_lines``."""
        for item in self.items_to_search(pattern, *kinds):
            match = next(_matches_by_line(item, pattern), None) or _search_joined(item, pattern)
            if match is not None:
                return match
        return None

    def text_of(self, citation: Citation) -> str:
        """Return the text that contains the line; empty if unknown."""
        return next((item.text for item in self.items if item.key == citation.key), "")

    def items_with_words(self, pattern: Pattern) -> tuple[EvidenceItem, ...]:
        """Return the items of any kind that ``pattern`` may match, without the package manager's records."""
        return () if self.lacks_words(pattern) else self.view(_items_without_records).items_with_words(pattern)

    def items_to_search(self, pattern: Pattern, *kinds: SourceKind) -> tuple[EvidenceItem, ...]:
        """Return the items of ``kinds``, by default those with messages, that ``pattern`` may match."""
        if self.lacks_words(pattern):
            return ()
        if not kinds:
            return self.view(_message_items).items_with_words(pattern)
        if (key := ("group", kinds)) not in self._views:
            self._views[key] = ItemGroup(self.items_of(*kinds))
        return cast(ItemGroup, self._views[key]).items_with_words(pattern)

    def lacks_words(self, pattern: Pattern) -> bool:
        """Return whether every word that a match of ``pattern`` requires is absent from all evidence."""
        lacks = self.view(_vocabulary).lacks
        for words in pattern.word_sets:  # loops, because this runs thousands of times per node
            for word in words:
                if lacks(word):
                    break
            else:
                return False
        return bool(pattern.word_sets)


def _vocabulary(snapshot: Snapshot) -> Vocabulary:
    return snapshot.vocabulary or vocabulary_of(snapshot.items)


def take_snapshot(evidence: Evidence) -> Snapshot:
    """Return the node that ``evidence`` shows."""
    # Typed commands are not messages.
    whole = tuple(item for item in split_items(evidence) if item.kind != "shell-history")
    present = tuple(now for item in whole if (now := _without_earlier_boots(item)) is not None)
    return Snapshot(present, derive(evidence), whole, vocabulary=vocabulary_of(whole))


def _without_earlier_boots(item: EvidenceItem) -> EvidenceItem | None:
    """Return the item without lines of earlier boots; None if nothing is left."""
    now = boots.keep_running_boot(item.source, item.written, item.text)
    if now is None:
        return None
    return item if now == item.text else replace(item, text=now)


def _items_by_kind(snapshot: Snapshot) -> Mapping[SourceKind, Sequence[tuple[int, EvidenceItem]]]:
    """Group the answered items by kind, each with its number in the evidence."""
    items: dict[SourceKind, list[tuple[int, EvidenceItem]]] = {}
    for number, item in enumerate(snapshot.items):
        if item.was_answered:
            items.setdefault(item.kind, []).append((number, item))
    return items


def _existing_files(snapshot: Snapshot) -> tuple[EvidenceItem, ...]:
    # The text of a missing file is an error message.
    there = (item for item in snapshot.items if item.was_answered and item.outcome != "absent")
    return tuple(item for item in there if item.kind != "listing" and not item.source.words)


def _items_without_records(snapshot: Snapshot) -> ItemGroup:
    """Return all items but the package manager's records."""
    return ItemGroup(item for item in snapshot.items if not item.is_package_record)


def _message_items(snapshot: Snapshot) -> ItemGroup:
    """Return the items that may contain messages."""
    found = (item for item in snapshot.items if item.kind not in _KINDS_WITHOUT_MESSAGES and item.was_answered)
    return ItemGroup(item for item in found if not item.is_package_record)


def lines_with(item: EvidenceItem, pattern: Pattern) -> Iterator[Citation]:
    """Yield the first dozen lines of ``item`` that ``pattern`` matches."""
    last = count = 0
    for match in _matches_by_line(item, pattern):
        number = item.line_number_at(match.start())
        if number != last:
            last, count = number, count + 1
            yield cite(item, number)
        if count == _MAX_CITATIONS_PER_SIGN:
            return
    if not count and (number := _first_line_of_wrapped(item, pattern)):
        yield cite(item, number)


def _first_line_of_wrapped(item: EvidenceItem, pattern: Pattern) -> int:
    """Return the number of the line on which the first match in joined lines begins; 0 without a match."""
    number = 0
    # The lines above are joined to it as well.
    for match in islice(_matches_by_line(item.view(join_nearby_lines), pattern), JOINED_LINE_COUNT):
        found = match.string.count("\n", 0, match.start()) + 1
        if number and found > number + 1:
            break
        number = found
    return number


def _matches_by_line(item: EvidenceItem, pattern: Pattern) -> Iterator[re.Match[str]]:
    """Yield the first match of ``pattern`` in each line that has its words; every match if it has no words."""
    if not pattern.word_sets or not pattern.is_line_based:
        yield from find_all(item, pattern)
        return
    for start in item.view(LineIndex).candidate_line_starts(pattern):
        if match := pattern.search(item.text, start, _line_end(item, start)):
            yield match


def _search_joined(item: EvidenceItem, pattern: Pattern) -> re.Match[str] | None:
    """Return the first match in the lines of a short item, with wrapped lines joined."""
    return next(_matches_by_line(item.view(join_nearby_lines), pattern), None)


def find_all(item: EvidenceItem, pattern: Pattern) -> Iterator[re.Match[str]]:
    """Yield the matches of ``pattern`` in the text of ``item``; line by line unless the pattern may span lines."""
    if not pattern.word_sets or pattern.may_span_lines:
        return pattern.finditer(item.text) if pattern.may_match(item.lowered) else iter(())
    starts = item.view(LineIndex).candidate_line_starts(pattern)
    return (match for start in starts for match in pattern.finditer(item.text, start, _line_end(item, start)))


def _line_end(item: EvidenceItem, start: int) -> int:
    end = item.text.find("\n", start)
    return len(item.text) if end < 0 else end


def find_first(item: EvidenceItem, pattern: Pattern) -> re.Match[str] | None:
    """Return the first match of ``pattern`` in the text of ``item``."""
    return next(find_all(item, pattern), None)


def cite_fact(source: str, words: str, key: str = "") -> Citation:
    """Return a citation of a fact or an absence, in gpunode's own words."""
    return Citation(source, f"({words})", None, key)


# YAML's and tables' separators, and the legend of dpkg -l.
_SEPARATOR_OR_LEGEND: Final = Pattern(r"^(?:\W*|Desired=.*|\| Status=.*|\|\|?/.*)$")
_MAX_HEADING_LINES: Final = 8


def cite_shown(citations: Iterable[Citation]) -> tuple[Citation, ...]:
    """Return the citations without commands that were only run, which prove nothing; all of them if none remains."""
    every = tuple(dict.fromkeys(citations))
    return tuple(one for one in every if one.line != f"({COMMAND_WAS_RUN})") or every


COMMAND_WAS_RUN: Final = "that was run"


def cite(item: EvidenceItem, number: int | None = None) -> Citation:
    """Return line ``number``, counted from 1; without it or for a separator, the first line with content.

    The line is "(nothing)" if the text is empty.
    """
    if number and number <= len(item.lines) and not _SEPARATOR_OR_LEGEND.match(item.lines[number - 1]):
        return Citation(item.written, item.lines[number - 1], number, item.key)
    numbers = [number for number, line in enumerate(item.lines[:_MAX_HEADING_LINES], 1) if line.strip()]
    numbers = numbers or [number for number, line in enumerate(item.lines, 1) if line.strip()][:1]
    telling = (number for number in numbers if not _SEPARATOR_OR_LEGEND.match(item.lines[number - 1]))
    first = next(telling, numbers[0] if numbers else None)
    line = item.lines[first - 1] if first else "(nothing)"
    return Citation(item.written, line, first, item.key)
