"""Regular expressions that are compiled on first use, and numbers of any length.

doctor has a thousand. On one node's evidence most are never searched, since it lacks a word that every match contains:
compiling and searching them all took four times as long.

Python refuses integers of thousands of digits. No count in evidence is that high, so such text is not a number here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from itertools import chain, repeat
from typing import Any, Final, TypeAlias

# Prefixes that an expression may have instead of flags.
_FLAGS_BY_REGEX_PREFIX: Final = {"(?i": re.IGNORECASE, "(?m": re.MULTILINE, "(?im": re.IGNORECASE | re.MULTILINE}
# Shorter strings are in every text and save nothing.
_MIN_REQUIRED_STRING_LENGTH: Final = 3


# Lower-case strings for each alternative of an expression: every match contains all strings of one of these.
_WordSets: TypeAlias = tuple[tuple[str, ...], ...]


def _required_strings(expression: str, flags: int) -> _WordSets:
    """Return the strings that the matches of ``expression`` contain; nothing if undetermined."""
    pieces = _REGEX_TOKEN.findall(expression)
    if flags & re.VERBOSE or any(_UNSUPPORTED_REGEX_SYNTAX.compiled.match(piece) for _, piece in pieces):
        return ()
    found, _ = _strings_of_group(chain(pieces, repeat(("", ")"))))
    # The longest is the rarest, and tried first.
    return tuple(dict.fromkeys(tuple(sorted(dict.fromkeys(words), key=len, reverse=True)) for words in found))


def _strings_of_group(pieces: Iterator[tuple[str, str]]) -> tuple[_WordSets, str]:
    """Return the required strings of a group's alternatives, and the group's end with its quantifier."""
    every: list[_WordSets] = []
    best_group: _WordSets = ()
    strings, run = list[str](), ""
    for text, piece in pieces:
        if plain := _unescape(text) if text else _only_character(piece):
            run += plain
            continue
        if len(run) >= _MIN_REQUIRED_STRING_LENGTH:
            strings.append(run)
        run = ""
        if piece[0] == "(":
            group, end = _strings_of_group(pieces)
            if group and end[1:2] in {"", "+"} and piece[-1] not in "=!":
                best_group = max(best_group, group, key=_shortest) if best_group else group
        elif piece[0] in "|)":
            every.append(tuple((*words, *strings) for words in best_group or ((),) if words or strings))
            strings, best_group = [], ()
            if piece[0] == ")":
                return (tuple(chain.from_iterable(every)) if all(every) else ()), piece
    raise AssertionError("the pieces never end")


@cache
def _only_character(piece: str) -> str:
    """Return the only character that a set matches, in lower case; empty for another piece or set."""
    same = set(piece[1:-1].lower()) if piece[0] == "[" and piece[-1] == "]" and piece[1] != "^" else ()
    return "".join(same) if len(same) == 1 else ""


@cache
def _unescape(text: str) -> str:
    text = re.sub(r"(?s)\\(.)", r"\1", text) if "\\\\" in text else text.replace("\\", "")
    return text.lower()


def _shortest(word_sets: _WordSets) -> int:
    """Return the number of letters that the least telling set has in its longest string."""
    return min((max(map(len, words)) for words in word_sets), default=0)


class Pattern:
    """A regular expression over text, with the methods of ``re.Pattern``."""

    def __init__(self, pattern: str, flags: int = 0) -> None:
        head, _, rest = pattern.partition(")")
        leading = _FLAGS_BY_REGEX_PREFIX.get(head, 0)
        self.pattern, self.flags = (rest if leading else pattern), flags | leading
        self._compiled: re.Pattern[str] | None = None

    def __repr__(self) -> str:
        return f"Pattern({self.pattern!r}, {self.flags})"

    @property
    def compiled(self) -> re.Pattern[str]:
        """The compiled expression.

        Raises:
            re.error: if it is invalid; a test compiles them all.
        """
        if self._compiled is None:
            self._compiled = re.compile(self.pattern, self.flags)
        return self._compiled

    def _compile_for(self, text: str) -> re.Pattern[str] | None:
        """Return the compiled expression; None if ``text`` shows that it need not be compiled."""
        return self.compiled if self.may_match(text.lower()) else None

    @cached_property
    def word_sets(self) -> _WordSets:
        """Sets of strings; every match contains all strings of one set, in any case. None if undetermined."""
        return _required_strings(self.pattern, self.flags)

    @cached_property
    def is_line_based(self) -> bool:
        r"""True if no match spans a line end, which takes a ``\n`` outside a negated set."""
        rest = _NEGATED_CHARACTER_SET.sub("", self.pattern)
        is_anchored = not self.flags & re.MULTILINE and any(one in rest for one in "^$")
        may_cross = any(one in rest for one in (r"\n", r"\A", r"\Z"))
        return not (is_anchored or may_cross or self.flags & re.DOTALL)

    @cached_property
    def may_span_lines(self) -> bool:
        r"""True if any part of it can match a line end, ``\s`` included."""
        return not self.is_line_based or _REGEX_MATCHING_NEWLINE.compiled.search(self.pattern) is not None

    def may_match(self, lowered: str) -> bool:
        """Return False if it cannot match the text whose lower case is ``lowered``."""
        word_sets = self.word_sets
        for words in word_sets:  # loops: called tens of thousands of times per node
            for word in words:
                if word not in lowered:
                    break
            else:
                return True
        return not word_sets

    def search(self, text: str, start: int = 0, end: int = sys.maxsize) -> re.Match[str] | None:
        """Return the first match."""
        compiled = self._compiled or self._compile_for(text[start:end])
        return compiled and compiled.search(text, start, end)

    def match(self, text: str, start: int = 0, end: int = sys.maxsize) -> re.Match[str] | None:
        """Return the match at ``start``."""
        compiled = self._compiled or self._compile_for(text[start:end])
        return compiled and compiled.match(text, start, end)

    def fullmatch(self, text: str, start: int = 0, end: int = sys.maxsize) -> re.Match[str] | None:
        """Return the match of the whole text between ``start`` and ``end``."""
        compiled = self._compiled or self._compile_for(text[start:end])
        return compiled and compiled.fullmatch(text, start, end)

    def finditer(self, text: str, start: int = 0, end: int = sys.maxsize) -> Iterator[re.Match[str]]:
        """Yield every match, in order."""
        compiled = self._compiled or self._compile_for(text[start:end])
        return compiled.finditer(text, start, end) if compiled else iter(())

    def findall(self, text: str) -> list[Any]:
        """Return the matched texts, or their groups."""
        return (self._compiled or self.compiled).findall(text)

    def sub(self, new: str | Callable[[re.Match[str]], str], text: str, count: int = 0) -> str:
        """Replace the matches in ``text`` by ``new``."""
        return (self._compiled or self.compiled).sub(new, text, count)

    def split(self, text: str, maxsplit: int = 0) -> list[str | Any]:
        """Split ``text`` at the matches."""
        return (self._compiled or self.compiled).split(text, maxsplit)


# Of these only ``compiled`` is used: a search would ask for their own words first, without an end.
# Literal text; else the start of a group, a bar, or an element or a group's end with its quantifier.
_REGEX_TOKEN: Final = Pattern(
    r"((?:[^\\.^$*+?{\[()|]|\\\W)+(?![*+?{]))|(\((?:\?(?:P<\w+>|:|<?[=!]|.))?|\|"
    r"|(?:\\\d+|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.)(?:(?:[*+?]|\{\d*,?\d*\})[?+]?)?)",
    re.DOTALL,
)
# Characters given by number, inline flags, and references to named groups.
_UNSUPPORTED_REGEX_SYNTAX: Final = Pattern(r"\\(?:[xuUN0]|\d\d)|\(\?(?:[^P:<=!]|P$)")
_REGEX_MATCHING_NEWLINE: Final = Pattern(r"\\[sDW]|\[\^(?![^\]]*\\n)")
_NEGATED_CHARACTER_SET: Final = Pattern(r"\[\^\]?(?:\\.|[^\]\\])*\]")

# Just within 64 bits: no count of bytes, links or restarts is larger.
_MAX_INTEGER_DIGITS: Final = 18


def parse_int(text: str) -> int | None:
    """Parse a whole number; return None for other text or an absurdly long number."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def parse_version(text: str) -> tuple[int, ...]:
    """Parse a version of digits and dots; overlong numbers are shortened.

    Raises:
        ValueError: if it has other parts.
    """
    return tuple(int(part[:_MAX_INTEGER_DIGITS]) for part in text.split("."))
