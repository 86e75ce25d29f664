"""Hold a node's evidence and facts as rules see them, with views that are computed once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Final, TypeVar, cast

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.word_index import LineIndex, SharedVocabulary, Vocabulary, vocabulary_of
from gpunode.facts import boots
from gpunode.facts.derive import derive
from gpunode.facts.evidence import Evidence
from gpunode.facts.items import EvidenceItem, split_items
from gpunode.facts.model import Facts
from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import SourceKind

T = TypeVar("T")

# Tables and files: their own views read them; no messages are searched there.
_KINDS_WITHOUT_MESSAGES: Final[frozenset[SourceKind]] = frozenset(
    {"file", "packages", "listing", "lsmod", "lspci", "modinfo", "initramfs", "nvml", "unit-show", "containerd-config"}
)
# Of these each line is a row by itself.
_ROW_KINDS: Final[frozenset[SourceKind]] = frozenset({"packages", "listing", "lsmod"})
# A message may be wrapped where it was pasted; only short pieces were.
_MAX_WRAPPED_LINES: Final = 400
_JOINED_LINES: Final = 3
_MAX_CITED: Final = 12


@dataclass(frozen=True)
class Snapshot:
    """The evidence and facts of a node.

    Attributes:
        items: without log lines of earlier boots.
        all_items: with those lines.
        current_items: of a snapshot with those lines, the items without them; else None.
        vocabulary: of all evidence, shared by every snapshot of the node.
    """

    items: tuple[EvidenceItem, ...]
    facts: Facts
    all_items: tuple[EvidenceItem, ...] = ()
    current_items: tuple[EvidenceItem, ...] | None = None
    vocabulary: Vocabulary | None = None
    _views: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def view(self, read: Callable[[Snapshot], T]) -> T:
        """Return the result of ``read`` for this snapshot, computed once."""
        if read not in self._views:
            self._views[read] = read(self)
        return cast(T, self._views[read])

    @property
    def with_history(self) -> Snapshot | None:
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
        """Return the node with part of its evidence; the items' texts must be parts of this snapshot's."""
        return Snapshot(items, self.facts, all_items, current_items, self.vocabulary)

    def is_of_earlier_boot(self, citation: Citation) -> bool:
        """Return whether the line belongs to an earlier boot."""
        items = self.items if self.current_items is None else self.current_items
        present = (item for item in items if (item.key, item.written) == (citation.key, citation.source))
        at = (citation.line_number or 0) - 1
        return not any(at < len(item.lines) and item.lines[at] == citation.line for item in present)

    def items_of(self, *kinds: SourceKind) -> tuple[EvidenceItem, ...]:
        """Return the non-empty items of these kinds, in the order of the evidence."""
        if len(kinds) == 1:
            return self.view(_items_by_kind).get(kinds[0], ())
        return self._memoize(kinds, lambda: (item for item in self.items if item.kind in kinds and item.was_answered))

    def files(self, pattern: str) -> tuple[EvidenceItem, ...]:
        """Return the files whose path matches ``pattern``, read or known to be absent; ``*`` matches slashes too."""
        found = (item for item in self.items if item.kind != "listing" and not item.source.words)
        matching = (item for item in found if fnmatchcase(item.subject, pattern) and item.was_answered)
        return self._memoize(pattern, lambda: matching)

    def _memoize(self, key: object, find: Callable[[], Iterator[EvidenceItem]]) -> tuple[EvidenceItem, ...]:
        """Return the items that ``find`` yields, computed once for each ``key``."""
        if key not in self._views:
            self._views[key] = tuple(find())
        return cast("tuple[EvidenceItem, ...]", self._views[key])

    def file(self, path: str) -> EvidenceItem | None:
        """Return the file at ``path``, its ``outcome`` ``absent`` if it does not exist; None if nobody looked."""
        return next((item for item in self.items if item.subject == path and item.kind != "listing"), None)

    def matching_lines(self, pattern: Pattern, *kinds: SourceKind) -> tuple[Citation, ...]:
        """Return the lines that ``pattern`` matches in items of ``kinds``, by default wherever messages stand.

        A pattern never matches over a line's end; a message that was wrapped when it was pasted is found all the same,
        and of the kernel log, whole messages are searched. At most a dozen lines of each item are returned.
        """
        return tuple(
            citation for item in self._items_to_search(kinds, pattern) for citation in lines_with(item, pattern)
        )

    def contains(self, pattern: Pattern, *kinds: SourceKind) -> bool:
        """Return whether ``pattern`` matches; see ``matching_lines``."""
        return any(True for item in self._items_to_search(kinds, pattern) for _ in lines_with(item, pattern))

    def match(self, pattern: Pattern, *kinds: SourceKind) -> re.Match[str] | None:
        """Return the first match of ``pattern``; see ``matching_lines``."""
        for item in self._items_to_search(kinds, pattern):
            match = next(_matches_by_line(item, pattern), None) or _search_joined(item, pattern)
            if match is not None:
                return match
        return None

    def text_of(self, citation: Citation) -> str:
        """Return the text around the line; empty if unknown."""
        return next((item.text for item in self.items if item.key == citation.key), "")

    def _items_to_search(self, kinds: tuple[SourceKind, ...], pattern: Pattern) -> tuple[EvidenceItem, ...]:
        """Return the items that ``pattern`` may match."""
        if not kinds:
            return self.items_with_words(self.view(_message_items), pattern)
        return () if self.lacks_words(pattern) else self.items_with_words(self.items_of(*kinds), pattern)

    def lacks_words(self, pattern: Pattern) -> bool:
        """Return whether every word without which ``pattern`` cannot match is absent from all evidence."""
        vocabulary = self.view(_vocabulary)
        for word in pattern.words:  # a loop: this is asked thousands of times of one node
            if not vocabulary.lacks(word):
                return False
        return bool(pattern.words)

    def items_with_words(self, items: tuple[EvidenceItem, ...], pattern: Pattern) -> tuple[EvidenceItem, ...]:
        """Return those of ``items``, which are items of this snapshot, that ``pattern`` may match."""
        if not pattern.words:
            return items
        vocabulary, found = self.view(_vocabulary), set[int]()
        for word in pattern.words:
            if not vocabulary.lacks(word):
                found |= self.view(_ItemsByWord).ids_with(word)
        return tuple(item for item in items if id(item) in found) if found else ()


class _ItemsByWord:
    """The items in which a word stands, each word looked up once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._vocabularies = SharedVocabulary(snapshot.items)
        self._ids: dict[str, frozenset[int]] = {}

    def ids_with(self, word: str) -> frozenset[int]:
        """Return the identities of the items with the lower-case ``word``, a wrapped line joined."""
        if word not in self._ids:
            self._ids[word] = frozenset(
                id(item)
                for item in self._vocabularies.items_that_may_have(word)
                if item.view(LineIndex).line_starts(word) or word in item.view(_joined_lowered)
            )
        return self._ids[word]


def _vocabulary(snapshot: Snapshot) -> Vocabulary:
    return snapshot.vocabulary or vocabulary_of(snapshot.items)


def take_snapshot(evidence: Evidence, *, image: bool = False) -> Snapshot:
    """Return the node that ``evidence`` shows."""
    # Typed commands are not messages.
    whole = tuple(item for item in split_items(evidence) if item.kind != "shell-history")
    present = tuple(now for item in whole if (now := _without_earlier_boots(item)) is not None)
    return Snapshot(present, derive(evidence, image=image), whole, vocabulary=vocabulary_of(whole))


def _without_earlier_boots(item: EvidenceItem) -> EvidenceItem | None:
    """Return the item without lines of earlier boots; None if nothing is left."""
    now = boots.keep_running_boot(item.source, item.written, item.text)
    if now is None:
        return None
    return item if now == item.text else replace(item, text=now)


def _items_by_kind(snapshot: Snapshot) -> Mapping[SourceKind, tuple[EvidenceItem, ...]]:
    """Group the non-empty items by kind."""
    found: dict[SourceKind, list[EvidenceItem]] = {}
    for item in snapshot.items:
        if item.was_answered:
            found.setdefault(item.kind, []).append(item)
    return {kind: tuple(items) for kind, items in found.items()}


def _message_items(snapshot: Snapshot) -> tuple[EvidenceItem, ...]:
    """Return the items that may contain messages."""
    found = (item for item in snapshot.items if item.kind not in _KINDS_WITHOUT_MESSAGES and item.was_answered)
    return tuple(item for item in found if not item.is_package_record)


def lines_with(item: EvidenceItem, pattern: Pattern) -> Iterator[Citation]:
    """Yield the first dozen lines of ``item`` that ``pattern`` matches."""
    last = count = 0
    for match in _matches_by_line(item, pattern):
        number = line_number_at(item, match.start())
        if number != last:
            last, count = number, count + 1
            yield cite(item, number)
        if count == _MAX_CITED:
            return
    if not count and (first := _search_joined(item, pattern)):
        yield cite(item, first.string.count("\n", 0, first.start()) + 1)


def _matches_by_line(item: EvidenceItem, pattern: Pattern) -> Iterator[re.Match[str]]:
    """Yield the first match of ``pattern`` in each line that has one of its words; every match if it has no words."""
    text = item.text
    if not pattern.words or not pattern.is_line_based:
        yield from find_all(item, pattern)
        return
    for start in item.view(LineIndex).line_starts_of(pattern):
        end = text.find("\n", start)
        if match := pattern.search(text, start, len(text) if end < 0 else end):
            yield match


def _search_joined(item: EvidenceItem, pattern: Pattern) -> re.Match[str] | None:
    """Return the first match in the lines of a short item, joined as if they had been wrapped."""
    return pattern.search(item.view(_joined_text)) if pattern.may_match(item.view(_joined_lowered)) else None


def find_all(item: EvidenceItem, pattern: Pattern) -> Iterator[re.Match[str]]:
    """Yield the matches of ``pattern`` in the text of ``item``."""
    index = item.view(LineIndex)
    may_match = not pattern.words or any(index.line_starts(word) for word in pattern.words)
    return pattern.finditer(item.text) if may_match else iter(())


def find_first(item: EvidenceItem, pattern: Pattern) -> re.Match[str] | None:
    """Return the first match of ``pattern`` in the text of ``item``."""
    return next(find_all(item, pattern), None)


def line_number_at(item: EvidenceItem, offset: int) -> int:
    """Return the number of the line in which the character at ``offset`` stands."""
    return item.line_number_at(offset)


def _joined_lowered(item: EvidenceItem) -> str:
    return item.view(_joined_text).lower()


def _joined_text(item: EvidenceItem) -> str:
    """Return each line of a short piece joined with the next two, without the kernel's prefixes."""
    if not 2 <= len(item.lines) <= _MAX_WRAPPED_LINES or item.kind in _ROW_KINDS:
        return ""
    lines = [_PREFIX.sub("", line).rstrip() for line in item.lines]
    return "\n".join(" ".join(lines[start : start + _JOINED_LINES]) for start in range(len(lines)))


_PREFIX: Final = Pattern(r"^[ \t]*(?:\[[^\]]{1,40}\]\s*)*(?:NVRM:)?\s*")


def cite_fact(source: str, words: str, key: str = "") -> Citation:
    """Return a citation in gpunode's own words, of a fact or an absence."""
    return Citation(source, f"({words})", None, key)


def cite(item: EvidenceItem, number: int | None = None) -> Citation:
    """Return line ``number``, counted from 1; without it the first line, or that there is nothing."""
    if number is not None and 0 < number <= len(item.lines) and item.lines[number - 1].strip():
        return Citation(item.written, item.lines[number - 1], number, item.key)
    first = next((number for number, line in enumerate(item.lines, 1) if line.strip()), None)
    line = item.lines[first - 1].strip() if first else "(nothing)"
    return Citation(item.written, line, first, item.key)
