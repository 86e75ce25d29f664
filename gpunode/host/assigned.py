"""Secrets that are assigned to a name: what such names are, and where the value behind one ends.

A shell, systemd, the kernel, YAML, JSON and Go's prints end a value at different signs, and a password may hold any of
them: what stands around the name tells which of them it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from gpunode.host.mentioned import is_mentioned

STRING: Final = (
    r"\"\"\"(?:[^\\]|\\.)*?(?:\"\"\"|\Z)|'''.*?(?:'''|\Z)"
    r"|\"(?:[^\"\\\n]|\\.)*(?:\"|(?=\n)|\Z)|'(?:[^'\n]|'')*(?:'|(?=\n)|\Z)"
)
_SENSITIVE: Final = (
    # The counts are bounded, so that a long word costs no more than its length.
    r"[\w.-]{0,40}(?:passw(?:or)?d|passphrase|secret|token(?!iz)|(?:api|access|private|client)[_-]?key)[\w.-]{0,40}"
    r"|auth|_auth|vpn-auth|(?:proxy-|x-)?authorization|x-[\w-]{0,40}(?:auth|key|cred)[\w-]{0,40}"
    r"|[\w.-]{0,40}(?:account|certificate|storage|encryption|licen[cs]e|shared|master|webhook|activation|auth|join)[_-]?key"
    r"|[\w.-]{0,40}rootpw|pgpass|(?:set-)?cookie|sumo-url|(?:[\w-]{0,40}[_-])?psk|\.dockerc(?:fg|onfigjson)"
    r"|wireless_w(?:pa|ep)"
)
# Words with other meanings, too: modinfo's sig_key and dkms's signing key are those of secure boot.
_OPEN_KEY: Final = r"(?![\w.-]{0,40}(?:sig|pub|public|signing|mok|host|sort|cache|partition|topology)[_-]?key\b)"
_AMBIGUOUS: Final = rf"{_OPEN_KEY}[\w.-]{{1,40}}[_.-](?:key|pass|pat|pwd|pw|creds?)|bindpw|pwd"
# An environment's names are written in capitals: BYPASS and COMPASS are none of a password, nor is XAUTHORITY.
_CREDENTIAL: Final = (
    r"[\w.-]{0,40}credentials?|pass|creds?|pw|sshpass|[\w.-]{0,40}(?-i:[a-z]Pass)"
    r"|(?-i:[A-Z\d_]{1,40}(?<!BY)(?<!COM)(?<!TRES)PASS)|(?-i:(?:[A-Z\d_]{1,40}_)?SIGNING_KEY)"
    r"|(?:[\w-]{0,40}[_-])?(?:bearer|regcode|community)|[\w.-]{1,40}[_-](?:auth|cookie)"
)
NAME: Final = rf"{_SENSITIVE}|{_AMBIGUOUS}|{_CREDENTIAL}"
"""As a name that stands by itself, in a list of names and values."""
# Messages speak of credentials, and of tests that pass, before a colon.
_KEYS: Final = (
    rf"{_SENSITIVE}|{_AMBIGUOUS}(?![\w.-])"
    rf"|(?:{_CREDENTIAL})(?=\\{{0,7}}[\"']?[ \t]{{0,8}}\+?=|\\{{0,7}}[\"'][ \t]{{0,8}}:)|(?-i:pass)(?=:[ \t])"
    r"|(?-i:community)(?=:[ \t]+(?!https?:)\S+[ \t]*(?:\n|\Z))"
)
# Backslashes: JSON that stands as a string in a line of a log. A bracket: Python's `os.environ["NAME"]`. `+=` adds to a
# variable, `+:` to a key of k3s.
_KEY: Final = re.compile(
    rf"(?<![\w.?&-])(?P<open>[\"']?)(?P<name>{_KEYS})(?P<close>\\{{0,7}}[\"']\]?)?[ \t]*(?P<sign>\+?[=:])[ \t]*",
    re.IGNORECASE,
)
ARRAY: Final = rf"\[(?:[\s,]|{STRING}|\#[^\n]*)*"
_LIST: Final = re.compile(ARRAY, re.DOTALL)
_WORDS_OF_LIST: Final = re.compile(r"\[([^\s\"'\[\]{}\\#][^\n\[\]\"'{}]{0,2000})(?=\])")
_QUOTED: Final = re.compile(STRING, re.DOTALL)
_ESCAPED: Final = re.compile(r"\\{1,7}[\"'][^\"'\\\n]*")
# Not the beginning of a list, an object, a remark, nor the next of a list whose value here is empty.
_NEXT: Final = r"[\w./-]{1,80}\\{0,7}[\"']?[ \t]{0,8}[=:]"
_NEXT_NAME: Final = re.compile(_NEXT)
_PLAIN_BEGIN: Final = r"[^\s\[\]{}\"',#\\]"
_BEGINS_IN_JSON: Final = re.compile(_PLAIN_BEGIN)
_BEGINS: Final = re.compile(
    rf"{_PLAIN_BEGIN}|\#(?=[^\s#])|\[(?![\s\"'\]\[{{\\#])"
    rf"|\{{(?!{_NEXT}|[\s\"'}}{{\\%])|,(?!{_NEXT}|[\s,\"'\\])|[\]}}](?=\w)|\\+(?![\\\"'\s])"
)
_BEGINS_WITH_NEWLINE: Final = re.compile(r"\\+[nrt]")
_SIGN: Final = re.compile(r"\\{0,7}[\"']|\n|[ \t]-?|[,}]")
_GOES_ON: Final = re.compile(r"[ \t]{0,80}[^\s-]")
_GLUED: Final = re.compile(r"[^\s,;:)\]}|&<>\\]")
_QUOTES_AND_BRACES: Final = re.compile(r"\\{0,7}[\"']|[{}]")
_SHELL: Final = re.compile(r"-\w{0,3}c(?:[\"'],?)?[ \t]*\\{0,7}[\"']\Z")
# Longer strings within a word are none.
_LONGEST_QUOTED: Final = 4096


@dataclass(frozen=True, slots=True)
class Value:
    """What stands behind a name for a secret.

    Attributes:
        name: the name as it is written.
        start, end: where the value stands.
        kind: ``literal`` for strings and lists of them, ``escaped`` for a string within a string, ``bare``, or
            ``whole`` where its place tells that it is a secret, whatever it looks like.
    """

    name: str
    start: int
    end: int
    kind: str


@dataclass(slots=True)
class _Line:
    """The quotes and braces that are open in a line, as far as it was read."""

    text: str
    at: int = 0
    quotes: list[str] = field(default_factory=list)
    braces: list[int] = field(default_factory=lambda: [0])  # outside of quotes, and within each of them

    def read(self, end: int) -> None:
        if newline := self.text.rfind("\n", self.at, end) + 1:
            self.at, self.quotes, self.braces = newline, [], [0]
        for sign in _QUOTES_AND_BRACES.finditer(self.text, self.at, end):
            self._see(_unescaped(sign[0]), self.text[sign.start() - 1 : sign.start()])
        self.at = max(self.at, end)

    def _see(self, sign: str, before: str) -> None:
        if sign in "{}":
            self.braces[-1] = max(self.braces[-1] + (1 if sign == "{" else -1), 0)
        elif sign in self.quotes:
            first = self.quotes.index(sign)
            del self.quotes[first:], self.braces[first + 1 :]
        elif sign[-1] == '"' or not before.isalnum():  # an apostrophe opens nothing
            self.quotes.append(sign)
            self.braces.append(0)


@dataclass(frozen=True, slots=True)
class _Place:
    """What tells where a value ends: the quotes that it stands in, and what kind of list it is part of.

    Attributes:
        is_glued: no blank stands around the sign, as a shell demands.
        is_word: in the midst of a command line, the kernel's or a shell's, where an assignment ends with its word.
        is_whole: a quoted string begins with the name, as in systemd's ``Environment="NAME=value"``.
        is_line: a line begins with a variable's name: the rest of it is the value, whatever its signs.
        in_json: the name itself stands in quotes.
        in_object: of JSON, YAML's flow, a struct of Go.
        in_list: behind a comma.
    """

    quotes: tuple[str, ...]
    is_glued: bool
    is_word: bool
    is_whole: bool
    is_line: bool
    in_json: bool
    in_object: bool
    in_list: bool

    def closes(self, sign: str) -> bool:
        quote = _unescaped(sign)
        return any(quote[-1] == one[-1] and len(quote) <= len(one) for one in self.quotes)


def _unescaped(quote: str) -> str:
    """A quote with the backslashes that belong to it: of an even number each escapes another."""
    return quote[-1] if len(quote) % 2 else quote


def values(text: str) -> Iterator[Value]:
    """Every value in ``text`` that is assigned to a name for a secret, in their order."""
    at, line = 0, _Line(text)
    while key := _KEY.search(text, at):
        line.read(key.end())
        at = key.end()
        if is_mentioned(text, key):
            continue
        place = _place(text, key, line)
        if value := _value(text, key, place):
            yield value
            at = max(value.end, at)
            if place.is_glued and value.kind == "literal" and _goes_on(text, value, place):
                at = _end(text, at, replace(place, is_word=True))
                yield Value(value.name, value.end, at, "bare")
            line.at = at  # what a value holds opens nothing for what comes behind it


def _goes_on(text: str, value: Value, place: _Place) -> bool:
    """Whether a shell's word goes on behind a string in it."""
    is_closed = value.end - value.start > 1 and text[value.end - 1] == text[value.start] != "["
    after = _GLUED.match(text, value.end)
    return is_closed and after is not None and not (after[0] in "\"'" and place.closes(after[0]))


def _place(text: str, key: re.Match[str], line: _Line) -> _Place:
    start = key.start()
    before = text[start - 1] if start else "\n"
    is_glued = text[key.end("name")] in "=+" and text[key.end() - 1] == "="
    is_quoted = key["open"] != "" and key["close"] is None
    opened = text[max(start - 7, 0) : start]
    quote = opened[len(opened.rstrip("\\")) :] + key["open"]
    return _Place(
        quotes=(*line.quotes, quote) if is_quoted else tuple(line.quotes),
        is_glued=is_glued,
        is_word=is_glued and not key["open"] and before in " \t" and not text[max(start - 2, 0)].isspace(),
        is_whole=is_glued and is_quoted and _SHELL.search(text, max(start - 20, 0), start + 1) is None,
        is_line=is_glued and before == "\n" and key["name"].isupper(),
        in_json=key["close"] is not None,
        in_object=key["close"] is not None or line.braces[-1] > 0,
        in_list=before == ",",
    )


_ENDS_THERE: Final = re.compile(r"(?P<quote>[\"'])(?=[\s,\])}]|\Z)")


def _value(text: str, key: re.Match[str], place: _Place) -> Value | None:
    start, name = key.end(), key["name"]
    if (ending := _ENDS_THERE.match(text, start)) and place.closes(ending["quote"]):
        return None  # nothing is assigned
    is_bare = (_BEGINS_IN_JSON if place.in_json else _BEGINS).match(text, start) is not None
    if (words := _WORDS_OF_LIST.match(text, start)) and not (place.is_word or place.in_json):
        return Value(name, words.start(1), words.end(1), "bare")
    if literal := not is_bare and (_LIST.match(text, start) or _QUOTED.match(text, start)):
        return Value(name, start, literal.end(), "literal")
    if escaped := _ESCAPED.match(text, start):
        return Value(name, start, escaped.end(), "escaped")
    if not is_bare or (place.quotes and _BEGINS_WITH_NEWLINE.match(text, start)):
        return None
    return Value(name, start, _end(text, start, place), "bare")


def _end(text: str, start: int, place: _Place) -> int:
    at = start
    while sign := _SIGN.search(text, at):
        if sign.start() > start and _ends(text, sign, place):
            return sign.start()
        at = sign.end()
        if place.is_word and sign[0] in "\"'":
            at = _behind_quoted(text, at, sign[0])
    return len(text)


def _ends(text: str, sign: re.Match[str], place: _Place) -> bool:
    at, one = sign.start(), sign[0]
    before, after = text[at - 1], text[sign.end() : sign.end() + 1]
    if one == "\n":
        # A backslash at its end goes on in the next line.
        is_continued = before == "\\" and text[at - 2] not in "\\ \t\n" and _GOES_ON.match(text, at + 1)
        return not is_continued
    if one[0] in " \t":
        # The next option of a command line, whose own value may stand in quotes.
        return place.is_word or (one[-1] == "-" and not place.is_whole)
    if one[-1] in "\"'":
        return place.closes(one) or before in " \t"
    if one == "}":
        return place.in_object or before in " \t"
    if place.in_object or place.in_list:
        return True
    if place.is_word or place.is_whole or place.is_line:
        return False
    return after in "\"'" or after.isspace() or _NEXT_NAME.match(text, at + 1) is not None


def _behind_quoted(text: str, at: int, quote: str) -> int:
    """Behind the string that begins within a shell's word, whose blanks do not end it; ``at`` if it has no end."""
    closing = text.find(quote, at, at + _LONGEST_QUOTED)
    return at if closing < 0 or "\n" in text[at:closing] else closing + 1
