"""Secrets that a name tells: NAME=value, NAME: value, "NAME": "value", --name value, and a value in the lines below."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Final, Literal, TypeAlias

# How sure a name makes it: of "weak" ones (a lock's token, a Kubernetes secret's name) the value must look like one.
Strength: TypeAlias = Literal["", "weak", "strong"]
Span: TypeAlias = tuple[int, int]

_STRONG: Final = (
    *("password", "passwd", "passphrase", "passcode", "credential", "bearer", "psk", "pwd", "regcode", "dockercfg"),
    *("dockerconfigjson", "key-data", "sumo-url", "secret-id", "pw", "cred"),
)
_WEAK: Final = ("session", "community", "cookie", "signature", "authorization", "auth", "sig")
# Weak by themselves, strong behind another word: `token`, HF_TOKEN, apiKey.
_LAST: Final = ("token", "secret", "key", "pass", "pat")
NAMES: Final = tuple(sorted((*_STRONG, *_WEAK, *_LAST), key=lambda name: (-len(name), name)))
_GLUED: Final = (
    r".*(?:api|access|auth|secret|private|licen[cs]e|shared|preshared|master|account|storage|encryption|munge|join|wep"
    r"|setup|registration|signing|host|ssh)[_ -]?(?:key|token)|\w+pass"
)
_OTHERS: Final = (
    r"(?:.*[\W_])?(?:p_?key|pubkey|public[_-]?key|topology_?key|(?:module_)?sig_?key|static_?key|bypass|compass"
    r"|(?:max|min|num|prompt|completion|batched)[_-]?tokens?|xauth\w*|pci[\w-]*sig)"
)
# A value that is none, whatever it is called.
_PLAIN: Final = r"true|false|null|none|nil|yes|no|[ynm]|redacted|0x[\da-f]+,?|[\d.:+,-]{1,3}|[*x]{3,}|"
_COMPLAINT: Final = (
    r"denied|disabled|error|expired|fail(?:ed|ure)|forbidden|incorrect|invalid|missing|rejected|required|revoked"
    r"|timeout|unauthori[sz]ed|unavailable|unknown|unsupported|wrong|not|no|<set|must|could|cannot|is|was|has|for|nvidia-[a-z]+:"
)
_FILE: Final = r"/(?:boot|etc|home|lib|opt|root|run|srv|usr|var)(?:/[\w.+-]+)+;?"
_NUMBER: Final = r"v?\d[\d.:,/_-]*[a-zA-Z%/]{0,4},?"
# By their first letters: so a place that none begins at costs one look.
_ANY: Final = "|".join(
    f"{first}(?:{'|'.join(name[1:] for name in NAMES if name[0] == first)})"
    for first in sorted({*"".join(n[0] for n in NAMES)})
)
_HEAD: Final = (
    rf"(?:{_ANY})s?(?: again)?(?P<close>\\*[\"']?\]?)"
    r"(?P<sign>[ \t]*\+?(?:=>?|:=?)[ \t]*|,[ \t]*|[ \t]+(?:is|was):?[ \t]+|[ \t]+|\0|\\?\n[ \t]*-[ \t]+)"
)
_ENTRY: Final = (
    rf"\bname\\*[\"']?[:=][ \t]*\\*[\"']?(?P<named>[\w.-]*(?:{_ANY})s?)\\*[\"']?"
    r"[ \t]*(?:,|\n(?:[ \t]*#[^\n]*\n)*)\s*\\*[\"']?value\\*[\"']?[:=][ \t]*"
)
_BARE: Final = r"(?:(?![,;&][\w.-]+[=:]|[,;)\]}]+(?:\s|\Z))[^\s\0\"'\\]|[\"'](?=[^\s,;:)}\]])|\\\n\s*|\\[^\n])+"
_STRING: Final = r"\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'"
# A list of them, as JSON and TOML have it.
_STRINGS: Final = rf"\[\s*(?:{_STRING})(?:\s*,\s*(?:{_STRING}))*\s*(?:,\s*)?\]"
_BLOCK: Final = r"(?:![\w!/:.,-]{0,80}[ \t]+)?[|>][\d+-]{0,2}[ \t]*(?:#[^\n]*)?(?=\n)"


@cache
def compiled(pattern: str, flags: int = re.IGNORECASE) -> re.Pattern[str]:
    """The pattern, compiled when it is first asked for."""
    return re.compile(pattern, flags)


def _is(pattern: str, value: str) -> bool:
    return compiled(pattern).fullmatch(value) is not None


def strength(name: str) -> Strength:
    """Whether ``name`` is one of a secret."""
    name = name.strip("\"'-")
    lower = name.lower().removesuffix(" again")
    if _is(_OTHERS, lower):
        return ""
    single = lower.removesuffix("s") if not lower.endswith("pass") else lower
    word = next((one for one in NAMES if single.endswith(one)), "")
    before = name[: len(single) - len(word)]
    is_apart = before[-1:] in {"_", "-", ".", " "} or (name[len(before) :][:1].isupper() and not before.isupper())
    if word in _STRONG:
        return "weak" if lower == "passwd" else "strong"  # a package is called so
    if word == "pat":
        return "strong" if before and is_apart else ""
    if word in _LAST:
        return "strong" if (before and is_apart) or _is(_GLUED, lower) else "weak"
    return "weak" if word and (not before or is_apart or word == "session") else ""


def is_plain(name: str, value: str) -> bool:
    """Whether ``value`` is a number that counts, a word of configuration or a complaint, or the file of a key."""
    name = name.lower().strip("\"' -")
    if _is(_PLAIN, value) or _is(_COMPLAINT, value.rstrip(".,;:!")):
        return True
    if _is(_NUMBER, value) and (strength(name) == "weak" or name.endswith("tokens")):
        return not _is(r"\d{9,}", value)
    return (name.endswith("key") and _is(_FILE, value)) or (name in {"pwd", "oldpwd"} and value.startswith("/"))


def looks_secret(value: str) -> bool:
    """Whether ``value`` is no word, no name of parts and no number."""
    has_digit, has_letter = any(map(str.isdigit, value)), any(map(str.isalpha, value))
    if len(value) < 6 or _is(rf"{_PLAIN}|{_NUMBER}", value):
        return value.isdigit() and len(value) > 8
    if has_digit and has_letter:
        return not compiled(r"[a-z]+(?:[-./][a-z\d]+)+:?", 0).fullmatch(value)
    words = r"[A-Z]?[a-z]+(?:[A-Z][a-z]+)*|[\w-]*[-_./:][\w./:-]*|[A-Z]+"
    return not compiled(words, 0).fullmatch(value.rstrip(".,;:"))


def hidden(name: str, value: str, sign: str) -> bool:
    """Whether ``value``, which stands behind ``name`` and ``sign``, is a secret."""
    how = strength(name)
    if not how or is_plain(name, value):
        return False
    if sign in {" ", "is"}:
        return name.startswith("-") or ((how == "strong" or sign == "is") and looks_secret(value))
    if how == "strong":
        return True
    last = name.lower().strip("\"'-").removesuffix("s")
    if name.startswith("-") and sign == "=":
        return True
    if sign in {"=", '"'} and last.endswith(("token", "secret", "pass")):
        return not compiled(r"[a-z]+(?:-[a-z]+)+|[a-z]{1,5}", 0).fullmatch(value)
    return looks_secret(value) and (last != "key" or len(value) >= 16)


def spans(text: str) -> Iterator[Span]:
    """Where in ``text`` the values of secret names stand, in their order, none within another."""
    end = 0
    # In small letters the pattern is several times as fast; a few letters of some alphabets are two then.
    small = text.lower() if len(text.lower()) == len(text) else text
    for match in compiled(rf"(?:{_HEAD})|{_ENTRY}", 0 if small is not text else re.IGNORECASE).finditer(small):
        if match.start() >= end:
            for span in _of(text, match):
                if span[0] < span[1]:
                    yield span
                    end = span[1]


def _of(text: str, match: re.Match[str]) -> Iterator[Span]:
    at, line = match.end(), text.rfind("\n", 0, match.start()) + 1
    found = (text[slice(*match.span("named"))], '"', "") if match["named"] else _head(text, match, line)
    if found is None:
        return
    name, sign, before = found
    if compiled(_BLOCK).match(text, at) or (text[at : at + 1] in {"\n", ""} and sign in {":", '"', "="}):
        yield from _in_lines(text, strength(name), line, at)
        return
    if (inner := compiled(r"\[?\s*\{").match(text, at)) and (sign in {":", '"'} or inner[0] != "{"):
        return  # what stands in there has names of its own
    if elements := compiled(_STRINGS).match(text, at):
        yield from _elements(text, elements, name, sign)
        return
    first, last = _value(text, at, before)
    word = text[first:last]
    if sign == ":" and _is_header(name, word, text[at:last]):
        stop = compiled(rf"[^\n{before}]*" if before in {'"', "'"} else r"[^\n]*").match(text, at)
        yield at, stop.end() if stop else last
    elif hidden(name, word, '"' if first > at and sign == ":" else sign):
        yield first, last


def _in_lines(text: str, how: Strength, line: int, at: int) -> Iterator[Span]:
    """Where the secrets stand in the lines below a name."""
    is_block = text[at : at + 1] not in {"\n", ""}
    for first, last in _below(text, line, at) if how else ():
        if how == "strong" or is_block or looks_secret(text[first:last].strip("\"'")):
            yield first, last


def _elements(text: str, elements: re.Match[str], name: str, sign: str) -> Iterator[Span]:
    """Where the secrets among the strings of a list stand, each without its quotes."""
    for string in compiled(_STRING).finditer(text, *elements.span()):
        first, last = string.start() + 1, string.end() - 1
        if hidden(name, text[first:last], '"' if sign == ":" else sign):
            yield first, last


def _head(text: str, match: re.Match[str], line: int) -> tuple[str, str, str] | None:
    """The whole name, its sign, and what stands before it; None where none can be one's."""
    start = match.start()
    while start > line and (text[start - 1].isalnum() or text[start - 1] in "_.-"):
        start -= 1
    name, before, written = text[start : match.start("close")], text[start - 1 : start], match["sign"].strip()
    if not written or written[0] in ",-\\\0":
        # An option and its value: two words, two strings, two lines of a list.
        is_pair = name.startswith("-") or (not written and "\n" not in match["sign"] and "\0" not in match["sign"])
        return (name, " ", before) if is_pair else None
    if written[0].isalpha():
        return name, "is", before
    sign = "=" if "=" in written else ":"
    if before and before in "/@%$" and sign == ":":
        return None
    return name, '"' if sign == ":" and match["close"] else sign, before


def _is_header(name: str, word: str, whole: str) -> bool:
    """Whether an HTTP header begins: its value goes to the end of the line."""
    if name.lower() in {"cookie", "set-cookie"}:
        return "=" in whole
    return name.lower().endswith("authorization") and _is("basic|bearer|digest|token|negotiate", word)


def _value(text: str, at: int, before: str) -> Span:
    """Where the value that begins at ``at`` stands, without its quotes."""
    opened = compiled(r"\"\"\"|'''|\\+[\"']|[\"']|\[").match(text, at)
    if opened is None:
        found = compiled(_BARE).match(text, at)
        last = found.end() if found else at
        # What closes the string in which name and value stand is none of it.
        return at, last - 1 if before in {'"', "'"} and text[last - 1 : last] == before and last > at else last
    mark, first = opened[0], opened.end()
    if mark in {'"', "'"}:
        found = compiled(rf"(?:[^{mark}\\\n]|\\.|''|\n(?=\s)){{0,4000}}" if mark == "'" else
                         r"(?:[^\"\\\n]|\\.|\n(?=\s)){0,4000}", re.DOTALL).match(text, first)  # fmt: skip
        return first, found.end() if found else first
    last = text.find("]" if mark == "[" else mark, first)
    end_of_line = text.find("\n", first)
    return first, last if last >= 0 else end_of_line if end_of_line >= 0 else len(text)


def _below(text: str, line: int, at: int) -> Iterator[Span]:
    """The lines below a key's, in YAML; of JSON, where the value alone stands in the next line, that value."""
    is_block = text[at : at + 1] not in {"\n", ""}
    if not is_block and (found := compiled(r"\s*(?=[\"'\[])").match(text, at)) and found.end() < len(text):
        yield _value(text, found.end(), "")
        return
    lead = compiled(r"[ \t]*").match(text, line)
    depth = lead.end() - line if lead else 0
    at = text.find("\n", at)
    while 0 <= at < len(text):
        stop = text.find("\n", at + 1)
        stop = stop if stop >= 0 else len(text)
        body = text[at + 1 : stop]
        inner = len(body) - len(body.lstrip())
        is_item = body.lstrip().startswith("- ") and inner >= depth
        if body.strip() and inner <= depth and not is_item:
            return
        if not is_block and compiled(r"[ \t]*(?:- +)?[^\s:]+:(?:\s|\Z)[^\n]*").fullmatch(body):
            return
        if body.strip() and not (is_block and body.strip().startswith("-----")) and not body.strip().startswith("#"):
            begin = at + 1 + inner + (2 if is_item and not is_block else 0)
            yield begin, stop
        at = stop
