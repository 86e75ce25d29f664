"""A node as the rules see it: its evidence piece by piece, its facts, and views over both, each made once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Final, TypeVar, cast

from gpunode.diagnoses.model import Citation
from gpunode.facts import boots
from gpunode.facts.derive import derive
from gpunode.facts.evidence import Evidence
from gpunode.facts.items import Item, items
from gpunode.facts.model import Facts
from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import Kind

T = TypeVar("T")

# Tables and files: what is said there is read by their own views, not searched for messages.
_SILENT: Final[frozenset[Kind]] = frozenset(
    {"file", "packages", "listing", "lsmod", "lspci", "modinfo", "initramfs", "nvml", "unit-show", "containerd-config"}
)
# Of these each line is a row by itself.
_ROWS: Final[frozenset[Kind]] = frozenset({"packages", "listing", "lsmod"})
# A message may be wrapped where it was pasted; only short pieces were.
_WRAPPED_LINES: Final = 400
_WINDOW: Final = 3
_CITED: Final = 12


@dataclass(frozen=True)
class Snapshot:
    """What is known of a node.

    Attributes:
        items: without what logs say of boots before the running one.
        whole: with it; the same items where no log has any.
        now: of a snapshot with it, the items without; None of any other.
    """

    items: tuple[Item, ...]
    facts: Facts
    whole: tuple[Item, ...] = ()
    now: tuple[Item, ...] | None = None
    _views: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def view(self, read: Callable[[Snapshot], T]) -> T:
        """What ``read`` makes of this snapshot; made once, however often it is asked for."""
        if read not in self._views:
            self._views[read] = read(self)
        return cast(T, self._views[read])

    @property
    def with_history(self) -> Snapshot | None:
        """The node as it is and as it was in the boots before; None where no log tells of them."""
        same = len(self.items) == len(self.whole) and all(a is b for a, b in zip(self.items, self.whole, strict=True))
        return None if same or not self.whole else Snapshot(self.whole, self.facts, self.whole, self.items)

    def is_of_earlier_boot(self, citation: Citation) -> bool:
        """Whether the line is one of a boot before the running one."""
        items = self.items if self.now is None else self.now
        present = (item for item in items if (item.key, item.written) == (citation.key, citation.source))
        at = (citation.line_number or 0) - 1
        return not any(at < len(item.lines) and item.lines[at] == citation.line for item in present)

    def of(self, *kinds: Kind) -> tuple[Item, ...]:
        """The items of these kinds that say something, in the order of the evidence."""
        if len(kinds) == 1:
            return self.view(_by_kind).get(kinds[0], ())
        return self._kept(kinds, lambda: (item for item in self.items if item.kind in kinds and item.is_seen))

    def files(self, pattern: str) -> tuple[Item, ...]:
        """The files whose path matches ``pattern``, read or known to be absent; ``*`` matches slashes too."""
        found = (item for item in self.items if item.kind != "listing" and not item.source.words)
        matching = (item for item in found if fnmatchcase(item.subject, pattern) and item.is_seen)
        return self._kept(pattern, lambda: matching)

    def _kept(self, asked: object, find: Callable[[], Iterator[Item]]) -> tuple[Item, ...]:
        """What ``find`` found when this was asked first."""
        if asked not in self._views:
            self._views[asked] = tuple(find())
        return cast("tuple[Item, ...]", self._views[asked])

    def file(self, path: str) -> Item | None:
        """The file at ``path``; None where nobody looked. Its ``outcome`` is ``absent`` where it is not there."""
        return next((item for item in self.items if item.subject == path and item.kind != "listing"), None)

    def said(self, pattern: Pattern, *kinds: Kind) -> tuple[Citation, ...]:
        """The lines in which ``pattern`` occurs, in items of ``kinds``; without any, wherever messages stand.

        A pattern never matches over a line's end; a message that was wrapped when it was pasted is found all the same,
        and of the kernel log, whole messages are searched. At most a dozen lines of each item are returned.
        """
        return tuple(citation for item in self._searched(kinds, pattern) for citation in lines_with(item, pattern))

    def says(self, pattern: Pattern, *kinds: Kind) -> bool:
        """Whether ``pattern`` occurs; see ``said``."""
        return any(True for item in self._searched(kinds, pattern) for _ in lines_with(item, pattern))

    def match(self, pattern: Pattern, *kinds: Kind) -> re.Match[str] | None:
        """The first match of ``pattern``; see ``said``."""
        for item in self._searched(kinds, pattern):
            if pattern.may_match(item.view(folded)):
                match = pattern.search(item.text) or pattern.search(item.view(_wrapped))
                if match is not None:
                    return match
        return None

    def text_of(self, citation: Citation) -> str:
        """The whole text in which the line stands; empty where it stands in none."""
        return next((item.text for item in self.items if item.key == citation.key), "")

    def _searched(self, kinds: tuple[Kind, ...], pattern: Pattern) -> tuple[Item, ...]:
        """The items in which ``pattern`` is worth a search."""
        if kinds:
            return self.of(*kinds)
        # Most patterns have a word that is nowhere in the whole node.
        return self.view(_speaking) if pattern.may_match(self.view(_all_said)) else ()


def snapshot(evidence: Evidence, *, image: bool = False) -> Snapshot:
    """The node that ``evidence`` shows."""
    # What was typed is no message, whatever stands in it.
    whole = tuple(item for item in items(evidence) if item.kind != "shell-history")
    present = tuple(now for item in whole if (now := _of_running_boot(item)) is not None)
    return Snapshot(present, derive(evidence, image=image), whole)


def _of_running_boot(item: Item) -> Item | None:
    """The item without what it says of earlier boots; None where it says nothing else."""
    now = boots.of_running(item.source, item.written, item.text)
    if now is None:
        return None
    return item if now == item.text else replace(item, text=now)


def _by_kind(snapshot: Snapshot) -> Mapping[Kind, tuple[Item, ...]]:
    """The items that say something, by what they are."""
    found: dict[Kind, list[Item]] = {}
    for item in snapshot.items:
        if item.is_seen:
            found.setdefault(item.kind, []).append(item)
    return {kind: tuple(items) for kind, items in found.items()}


def _speaking(snapshot: Snapshot) -> tuple[Item, ...]:
    """Where messages stand."""
    found = (item for item in snapshot.items if item.kind not in _SILENT and item.is_seen)
    return tuple(item for item in found if not item.is_register)


def _all_said(snapshot: Snapshot) -> str:
    return "\n".join(item.view(folded) for item in snapshot.view(_speaking))


def lines_with(item: Item, pattern: Pattern) -> Iterator[Citation]:
    """The lines of ``item`` in which ``pattern`` occurs, the first dozen."""
    if not pattern.may_match(item.view(folded)):
        return
    numbers: list[int] = []
    for match in pattern.finditer(item.text):
        number = line_at(item, match.start())
        if number not in numbers[-1:]:
            numbers.append(number)
            yield cite(item, number)
        if len(numbers) == _CITED:
            return
    wrapped = item.view(_wrapped)
    if not numbers and (first := pattern.search(wrapped)):
        yield cite(item, wrapped.count("\n", 0, first.start()) + 1)


def finds(item: Item, pattern: Pattern) -> Iterator[re.Match[str]]:
    """The matches of ``pattern`` in the text of ``item``."""
    return pattern.finditer(item.text) if pattern.may_match(item.lowered) else iter(())


def find(item: Item, pattern: Pattern) -> re.Match[str] | None:
    """The first match of ``pattern`` in the text of ``item``."""
    return next(finds(item, pattern), None)


def line_at(item: Item, offset: int) -> int:
    """The number of the line in which the character at ``offset`` stands."""
    return item.number_at(offset)


def folded(item: Item) -> str:
    """All that a pattern may be found in, in lower case."""
    return f"{item.lowered}\n{item.view(_wrapped).lower()}"


def _wrapped(item: Item) -> str:
    """Each line of a short piece with those after it, joined by single spaces, without what the kernel puts before."""
    if not 2 <= len(item.lines) <= _WRAPPED_LINES or item.kind in _ROWS:
        return ""
    lines = [_PREFIX.sub("", line).rstrip() for line in item.lines]
    return "\n".join(" ".join(lines[start : start + _WINDOW]) for start in range(len(lines)))


_PREFIX: Final = Pattern(r"^[ \t]*(?:\[[^\]]{1,40}\]\s*)*(?:NVRM:)?\s*")


def stated(source: str, words: str, key: str = "") -> Citation:
    """What gpunode says of the evidence in its own words: a typed fact, or that something does not stand there."""
    return Citation(source, f"({words})", None, key)


def cite(item: Item, number: int | None = None) -> Citation:
    """The line of that number, counted from 1; without one, that the thing is not there or says nothing."""
    if number is not None and 0 < number <= len(item.lines) and item.lines[number - 1].strip():
        return Citation(item.written, item.lines[number - 1], number, item.key)
    first = next((number for number, line in enumerate(item.lines, 1) if line.strip()), None)
    line = item.lines[first - 1].strip() if first else "(nothing)"
    return Citation(item.written, line, first, item.key)
