"""Tell which commands of ``look_at`` the evidence already answers: nobody is asked for what they have shown. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from gpunode.diagnoses.commands import Command
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.facts.patterns import Pattern

# What a filter is told beside the words that it looks for.
_OPTION: Final = Pattern(r"(?:^|\s)-[\w-]+(?:=\S+)?")
# Options that leave an answer what it is, or only shorten it.
_SAME_ANSWER: Final = Pattern(r"\s(?:-d [A-Z_,]+|-b|-n \d+|--no-pager|--tail=\d+|-[THxkr]+|--ctime)(?=\s|$)")
_PREFIX: Final = Pattern(r"^(?:\S+@\S+[:~]\S*\s*)?[$#%]?\s*(?:sudo\s+(?:-\S+\s+)*)?")
_WORD: Final = Pattern(r"[\w.:/-]+")
_READS_FILE: Final = frozenset({"cat", "grep", "head", "tail", "less"})


class _Question(NamedTuple):
    """A command in a form that compares: the program with what it is told, and the words that its filters keep."""

    asked: str
    kept: frozenset[str]
    files: tuple[str, ...]


def drop_answered(snapshot: Snapshot, commands: Iterable[Command]) -> tuple[Command, ...]:
    """Return the commands whose answers are not in the evidence."""
    return tuple(one for one in commands if not is_answered(snapshot, one))


def is_answered(snapshot: Snapshot, command: str) -> bool:
    """Return whether the evidence has the answer of this command, or a longer one of the same program."""
    wanted = _question(command)
    if wanted.files and all((item := snapshot.file(path)) is not None and item.is_seen for path in wanted.files):
        return True
    return any(one.asked == wanted.asked and one.kept <= wanted.kept for one in snapshot.view(_answered_questions))


def _answered_questions(snapshot: Snapshot) -> frozenset[_Question]:
    seen = (item for item in snapshot.items if item.where == "host" and item.is_seen)
    return frozenset(_question(item.written) for item in seen)


@lru_cache(maxsize=1024)
def _question(command: str) -> _Question:
    plain = _PREFIX.sub("", command.partition("  #")[0].strip(), 1)
    head, *filters = plain.split(" | ")
    words = head.split()
    kept = (word.lower() for one in filters for word in _WORD.findall(_OPTION.sub(" ", one)) if word != "grep")
    files = tuple(word for word in words[1:] if word.startswith("/") and "*" not in word and "$" not in word)
    reads = bool(words) and words[0] in _READS_FILE
    return _Question(_SAME_ANSWER.sub("", head), frozenset(kept), files if reads else ())
