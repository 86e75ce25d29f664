"""Find secrets by their names: NAME=value, NAME: value, "NAME": "value", --name value, values on lines below."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

from gpunode.redaction.patterns import compile_cached

# After a "weak" name (a lock's token, the name of a Kubernetes Secret) the value must also look like a secret.
Strength: TypeAlias = Literal["", "weak", "strong"]
TextSpan: TypeAlias = tuple[int, int]

_STRONG_NAMES: Final = (
    *("password", "passwd", "passphrase", "passcode", "credential", "bearer", "psk", "pwd", "regcode", "dockercfg"),
    *("dockerconfigjson", "key-data", "sumo-url", "secret-id", "pw", "cred", "authtok", "sign_pin"),
)
_WEAK_NAMES: Final = ("session", "community", "cookie", "signature", "authorization", "auth", "sig")
# Weak on their own, strong after another word: `token`, HF_TOKEN, apiKey.
_SECRET_LAST_WORDS: Final = ("token", "secret", "key", "pass", "pat")
SECRET_NAMES: Final = tuple(
    sorted((*_STRONG_NAMES, *_WEAK_NAMES, *_SECRET_LAST_WORDS), key=lambda name: (-len(name), name))
)
_LEADING_WORDS: Final = r"(?:.*[ _.-]|(?-i:.+(?=[A-Z][a-z])))"
# Names that only look like those of secrets. passwd is a package.
_HARMLESS_NAMES: Final = (
    r"(?:.*[\W_])?(?:p_?key|pubkey|public[_-]?key|topology_?key|(?:module_)?sig_?key|static_?key|bypass|compass"
    r"|(?:max|min|num|prompt|completion|batched)[_-]?tokens?|xauth\w*|pci[\w-]*sig)"
)
_SECRET_NAME: Final = (
    rf"(?!(?:{_HARMLESS_NAMES})\Z)(?:(?P<strong>(?!passwd\Z)(?:.*(?:{'|'.join(_STRONG_NAMES)})|{_LEADING_WORDS}(?:{'|'.join(_SECRET_LAST_WORDS)})|\w+pass"
    r"|.*(?:api|access|auth|secret|private|licen[cs]e|shared|preshared|master|account|storage|encryption|munge|join|wep"
    r"|setup|registration|signing|host|ssh)[_ -]?(?:key|token)))"
    rf"|(?P<weak>.*(?:token|secret|key|pass|passwd|session)|{_LEADING_WORDS}?(?:{'|'.join(_WEAK_NAMES)})))s?(?: again)?"
)
# Values that are never secret, whatever their names.
_PLAIN_VALUE: Final = r"true|false|null|none|nil|yes|no|[ynm]|redacted|0x[\da-f]{1,16},?|[\d.:+,-]{1,3}|[*x]{3,}|"
_ERROR_WORD_VALUE: Final = (
    r"denied|disabled|error|expired|fail(?:ed|ure)|forbidden|incorrect|invalid|missing|rejected|required|revoked"
    r"|timeout|unauthori[sz]ed|unavailable|unknown|unsupported|wrong|not|no|<set|must|could|cannot|command|is|was|has|for|nvidia-[a-z]+:"
)
PATH_VALUE: Final = (
    r"(?:unix://|file://|@)?(?:/(?:etc|usr|var|run|opt|dev|proc|sys|lib\w*|s?bin|boot|mnt|srv|home|root|snap|tmp)"
    r"(?:/[\w.+@*:-]+)*/?:?)+"
)
_NUMBER_VALUE: Final = r"v?\d[\d.:,/_-]*[a-zA-Z%/]{0,4},?"
# Grouped by first letter, so that most positions cost a single comparison.
_ANY_SECRET_NAME: Final = "|".join(
    f"{first}(?:{'|'.join(name[1:] for name in SECRET_NAMES if name[0] == first)})"
    for first in sorted({*"".join(n[0] for n in SECRET_NAMES)})
)
_SECRET_NAME_AND_SIGN: Final = (
    rf"(?:{_ANY_SECRET_NAME})s?(?: again)?(?P<close>\\*[\"']?\]?)"
    r"(?P<sign>[ \t]*\+?(?:=>?|:=?)[ \t]*|,[ \t]*|[ \t]+(?:is|was):?[ \t]+|[ \t]+|\0|\\?\n[ \t]*-[ \t]+)"
)
_NAME_AND_VALUE_ENTRY: Final = (
    rf"\bname\\*[\"']?[:=][ \t]*\\*[\"']?(?P<named>[\w.-]*(?:{_ANY_SECRET_NAME})s?)\\*[\"']?"
    r"[ \t]*(?:,|\n(?:[ \t]*#[^\n]*\n)*)\s*\\*[\"']?value\\*[\"']?[:=][ \t]*"
)
_QUOTED_STRING: Final = r"\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'"
# A list of strings, as in JSON and TOML.
_STRING_ARRAY: Final = rf"\[\s*(?:{_QUOTED_STRING})(?:\s*,\s*(?:{_QUOTED_STRING}))*\s*(?:,\s*)?\]"
_YAML_BLOCK_INDICATOR: Final = r"(?:![\w!/:.,-]{0,80}[ \t]+)?[|>][\d+-]{0,2}[ \t]*(?:#[^\n]*)?(?=\n)"
# Command substitution in a shell.
_COMMAND_SUBSTITUTION: Final = r"\$\((?:[^()\n]|\([^()\n]*\))*\)|`[^`\n]*`"
# A value. The matched group is the part between its quotes.
_SECRET_VALUE: Final = (
    r"(?P<quote>\"{3}|'{3}|\\+[\"'])(?:((?s:.*?))(?P=quote)|([^\n]*))"
    r"|\[(?:([^\]]*)\]|([^\n]*))"
    rf"|\"((?:{_COMMAND_SUBSTITUTION}|[^\"\\\n]|(?s:\\.)|\n(?=\s)){{0,4000}})"
    # in a shell '\\'' is a quote within quotes
    r"|'((?:[^'\\\n]|(?s:\\.)|'\\''|''|\n(?=\s)){0,4000})"
    rf"|((?:{_COMMAND_SUBSTITUTION}|(?![,;&][\w.-]+[=:]|[,;)\]}}]+(?:\s|\Z))[^\s\0\"'\\]|[\"'](?=[^\s,;:)}}\]])|\\\n\s*|\\[^\n])*)"
)


def _matches_whole(pattern: str, value: str) -> bool:
    return compile_cached(pattern).fullmatch(value) is not None


def name_strength(name: str) -> Strength:
    """Return how likely ``name`` is the name of a secret."""
    match = compile_cached(_SECRET_NAME).fullmatch(name.strip("\"'-"))
    return "" if match is None else "strong" if match["strong"] else "weak"


def is_plain_value(name: str, value: str) -> bool:
    """Return whether ``value`` is a configuration keyword, part of an error message, or a file path."""
    if name in {"pwd", "oldpwd"} and value.startswith("/"):
        return True
    is_file = name.endswith(("key", "file", "path")) and _matches_whole(PATH_VALUE, value.rstrip(";"))
    return is_file or _matches_whole(_PLAIN_VALUE, value) or _matches_whole(_ERROR_WORD_VALUE, value.rstrip(".,;:!"))


def looks_like_secret(value: str) -> bool:
    """Return whether ``value`` is neither a word, nor a name made of words, nor a number."""
    has_digit, has_letter = any(map(str.isdigit, value)), any(map(str.isalpha, value))
    if len(value) < 6 or _matches_whole(rf"{_PLAIN_VALUE}|{_NUMBER_VALUE}", value):
        return value.isdigit() and len(value) > 8
    if has_digit and has_letter:
        return not compile_cached(r"[a-z]+(?:[-./][a-z\d]+)+:?", 0).fullmatch(value)
    words = r"[A-Z]?[a-z]+(?:[A-Z][a-z]+)*|[\w-]*[-_./:][\w./:-]*|[A-Z]+"
    return not compile_cached(words, 0).fullmatch(value.rstrip(".,;:"))


def is_secret(name: str, value: str, sign: str) -> bool:
    """Return whether ``value`` is secret after ``name`` and ``sign``: ``=``, ``:``, ``"`` for JSON, space or ``is``."""
    how, last = name_strength(name), name.lower().strip("\"' -")
    # Only = characters are the end of a base64 word, not an assignment.
    if not how or is_plain_value(last, value) or not value.strip("="):
        return False
    if (
        (how == "weak" or last.endswith("tokens"))
        and _matches_whole(_NUMBER_VALUE, value)
        and not _matches_whole(r"\d{9,}", value)
    ):
        return False  # a count
    if sign in {" ", "is"}:
        return name.startswith("-") or ((how == "strong" or sign == "is") and looks_like_secret(value))
    if how == "strong":
        return True
    last = last.removesuffix("s")
    if name.startswith("-") and sign == "=":
        return True
    if sign in {"=", '"'} and last.endswith(("token", "secret", "pass")):
        return not compile_cached(r"[a-z]+(?:-[a-z]+)+|[a-z]{1,5}", 0).fullmatch(value)
    return looks_like_secret(value) and (last != "key" or len(value) >= 16)


def secret_spans(text: str) -> Iterator[TextSpan]:
    """Yield the spans of values with secret names, in order, without overlaps."""
    end = 0
    # Searching in lower case is several times as fast. In some alphabets it changes the length.
    small = text.lower() if len(text.lower()) == len(text) else text
    for match in compile_cached(
        rf"(?:{_SECRET_NAME_AND_SIGN})|{_NAME_AND_VALUE_ENTRY}", 0 if small is not text else re.IGNORECASE
    ).finditer(small):
        if match.start() >= end:
            for span in _value_spans(text, match):
                if span[0] < span[1]:
                    yield span
                    end = span[1]


def _value_spans(text: str, match: re.Match[str]) -> Iterator[TextSpan]:
    """Yield the spans of secret values that belong to the name in ``match``."""
    at, line = match.end(), text.rfind("\n", 0, match.start()) + 1
    found = (text[slice(*match.span("named"))], '"', "") if match["named"] else _parse_name_and_sign(text, match, line)
    if found is None:
        return
    name, sign, before = found
    is_block = compile_cached(_YAML_BLOCK_INDICATOR).match(text, at) is not None
    if is_block or (text[at : at + 1] in {"\n", ""} and sign in {":", '"', "="}):
        how = name_strength(name)
        for first, last in _spans_below(text, line, at, is_block=is_block) if how else ():
            if how == "strong" or is_block or looks_like_secret(text[first:last].strip("\"'")):
                yield first, last
    elif (inner := compile_cached(r"\[?\s*\{").match(text, at)) and (sign in {":", '"'} or inner[0] != "{"):
        return  # a table, whose values have their own names
    elif elements := compile_cached(_STRING_ARRAY).match(text, at):
        for string in compile_cached(_QUOTED_STRING).finditer(text, *elements.span()):
            first, last = string.start() + 1, string.end() - 1
            if is_secret(name, text[first:last], '"' if sign == ":" else sign):
                yield first, last
    else:
        first, last = _value_span(text, at, before)
        if is_secret(name, text[first:last], '"' if first > at and sign == ":" else sign):
            yield first, last


def _parse_name_and_sign(text: str, match: re.Match[str], line: int) -> tuple[str, str, str] | None:
    """Return name, sign and preceding character; None if no value can follow."""
    start = match.start()
    while start > line and (text[start - 1].isalnum() or text[start - 1] in "_.-"):
        start -= 1
    name, before, written = text[start : match.start("close")], text[start - 1 : start], match["sign"].strip()
    if not written or written[0] in ",-\\\0":
        # An option and its value: two words, two strings, or two lines of a list.
        is_pair = name.startswith("-") or (not written and "\n" not in match["sign"] and "\0" not in match["sign"])
        return (name, " ", before) if is_pair else None
    if written[0].isalpha():
        return name, "is", before
    sign = "=" if "=" in written else ":"
    if before and before in "/@%$" and sign == ":":
        return None
    return name, '"' if sign == ":" and match["close"] else sign, before


def _value_span(text: str, at: int, before: str) -> TextSpan:
    """Return the span of the value at ``at`` without its quotes."""
    match = compile_cached(_SECRET_VALUE).match(text, at)
    assert match is not None  # at least an empty value
    first, last = match.span(match.lastindex or 0)
    # A quote that ends a string with both name and value is not part of the value.
    is_outer = first == at and last > at and before in {'"', "'"} and text[last - 1] == before
    return first, last - 1 if is_outer else last


def _spans_below(text: str, line: int, at: int, *, is_block: bool) -> Iterator[TextSpan]:
    """Yield the spans of the lines below a YAML key, or of a JSON value on the next line."""
    if not is_block and (match := compile_cached(r"\s*(?=[\"'\[])").match(text, at)) and match.end() < len(text):
        yield _value_span(text, match.end(), "")
        return
    depth = len(text[line:at]) - len(text[line:at].lstrip(" \t"))
    item = "" if is_block else rf"|[ \t]{{{depth},}}- +"
    below = compile_cached(rf"\n(?:(?:[ \t]{{{depth + 1},}}(?:- +)?{item})(?P<value>\S[^\n]*)|[ \t]*(?=\n|\Z))")
    at = text.find("\n", at)
    while at >= 0 and (match := below.match(text, at)):
        value, at = match["value"] or "", match.end()
        if not is_block and compile_cached(r"[^\s:]+:(?:\s|\Z)[^\n]*").fullmatch(value):
            return
        if value and not value.startswith("#") and not (is_block and value.startswith("-----")):
            yield match.span("value")
