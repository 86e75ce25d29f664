"""Secrets that their place tells, whatever they are called: in documents of Kubernetes and cloud-init, walked by line.

A pattern would have to bound what a document may hold; a walk takes the time of its length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gpunode.host.assigned import NAME, STRING, Value

# A Secret of Kubernetes, as YAML or JSON: its data are secrets.
_IS_SECRET: Final = re.compile(r"\bkind[\"']?:[ \t]*[\"']?Secret(?:List)?\b")
_DOCUMENT: Final = re.compile(r"^---[ \t]*$", re.MULTILINE)
# A diff, a quote and a remark put a sign before a line; a list of YAML, too. All count as blanks.
_LEAD: Final = re.compile(r"[ \t>|+#-]*")
_DATA: Final = re.compile(r"(?:stringData|data):[ \t]*(?:#.*)?")
_BLOCK: Final = re.compile(r"(?:[^\s:]{1,260}:[ \t]+)(?:![^\s]{1,80}[ \t]+)?[|>][\d+-]{0,2}[ \t]*(?:#.*)?")
_ENTRY: Final = re.compile(r"(?:[\"']?[^\s:\"']{1,260}[\"']?:(?:[ \t]+|\Z))?(?P<value>.*)")
_QUOTED: Final = re.compile(STRING, re.DOTALL)
_FLOW: Final = re.compile(r"(?<![\w.-])[\"']?(?:stringData|data)[\"']?[ \t]*:\s{0,99}\{")
_FLOW_SIGN: Final = re.compile(
    rf"(?P<string>{STRING})|(?P<sign>[{{}}\[\],:])|(?P<end>\n(?![\s\"'{{}}\[\],>|+-]))"
    r"|(?P<word>[^\s{}\[\],:\"'](?:[^{}\[\],:\n]|:(?![\s\"'{\[]))*)",
    re.DOTALL,
)
_CHPASSWD: Final = re.compile(r"^(?P<lead>[ \t]*)chpasswd:[ \t]*(?:#[^\n]*)?\n", re.MULTILINE)
_OF_USER: Final = re.compile(r"[\"']?[\w.-]{1,80}:(?!(?:R|RANDOM)[ \t]*\Z)(?P<secret>[^\s\"'][^\n\"']*)[\"']?")
# As kubectl describes a pod's arguments, and `tr` shows the words of a process: one to a line.
_OPTION: Final = re.compile(
    rf"^(?P<lead>[ \t]{{0,200}})--?(?P<name>{NAME})[ \t]*\n(?P=lead)(?P<value>[^\s-][^\n]*)$",
    re.IGNORECASE | re.MULTILINE,
)
# A chart's values, and lists of keys: what is named so is a list of names where it is one of secrets.
_KEY: Final = re.compile(
    rf"^(?P<lead>[ \t-]{{0,200}})[\"']?(?P<name>{NAME})[\"']?:[ \t]*(?:#[^\n]*)?\n", re.IGNORECASE | re.MULTILINE
)
_OF_SEVERAL: Final = re.compile(r"(?:passw(?:or)?d|passphrase|token|key)s?\Z", re.IGNORECASE)
_SCALAR: Final = r"(?P<value>\"[^\"\n]*\"|'[^'\n]*'|[^\s\[\]{}\"'#|>&*!<-][^\s#]*(?<!:))[ \t]*(?:#.*)?"
_ITEM: Final = re.compile(rf"-[ \t]+{_SCALAR}")
_VALUE: Final = re.compile(rf"[\"']?value[\"']?:[ \t]+{_SCALAR}")


def secrets_data(text: str) -> Iterator[Value]:
    """What Kubernetes' Secrets hold, as blocks of YAML."""
    for start, end in _secrets(text):
        yield from _data(text, start, end)


def flow_data(text: str) -> Iterator[Value]:
    """What they hold between braces, as JSON and YAML's flow."""
    for start, end in _secrets(text):
        at = start
        while begun := _FLOW.search(text, at, end):
            at = begun.end()
            for value in _between_braces(text, begun.end(), end):
                yield value
                at = value.end


def passwords_of_users(text: str) -> Iterator[Value]:
    """Behind the users in cloud-init's list for chpasswd."""
    end = 0
    for head in _CHPASSWD.finditer(text):
        for start, line in _lines(text, max(head.end(), end), len(text)):
            body = line.lstrip(" \t-")
            if body and len(line) - len(body) <= len(head["lead"]):
                break
            end = start + len(line)
            if found := _OF_USER.fullmatch(body):
                at = start + len(line) - len(body)
                yield Value("chpasswd", at + found.start("secret"), at + found.end("secret"), "whole")


def values_of_options(text: str) -> Iterator[Value]:
    """In the line behind their option's."""
    for found in _OPTION.finditer(text):
        yield Value(found["name"], found.start("value"), found.end("value"), "bare")


def values_of_keys(text: str) -> Iterator[Value]:
    """In the lines behind their key's: each of a list, or `value` where a chart says more of it."""
    for head in _KEY.finditer(text):
        forms = (_ITEM, _VALUE) if _OF_SEVERAL.search(head["name"]) else (_VALUE,)
        for start, line in _lines(text, head.end(), len(text)):
            body = line.lstrip()
            if not body or body.startswith("#"):
                continue
            found = next(filter(None, (form.fullmatch(body) for form in forms)), None)
            depth = len(line) - len(body)
            if found is None or depth < len(head["lead"]) + (found.re is _VALUE):
                break
            at = start + depth
            yield _of_name(head["name"], text, at + found.start("value"), at + found.end("value"))


def _of_name(name: str, text: str, start: int, end: int) -> Value:
    return Value(name, start, end, "literal" if text[start] in {'"', "'"} else "bare")


FINDERS: Final = (secrets_data, flow_data, passwords_of_users, values_of_options, values_of_keys)


def _secrets(text: str) -> Iterator[tuple[int, int]]:
    """Where the documents begin and end in which a Secret stands."""
    start = 0
    while start < len(text):
        separator = _DOCUMENT.search(text, start)
        end = separator.start() if separator else len(text)
        if _IS_SECRET.search(text, start, end):
            yield start, end
        start = separator.end() + 1 if separator else end


def _lines(text: str, start: int, end: int) -> Iterator[tuple[int, str]]:
    """The lines there without their ends, each with its place."""
    while start < end:
        newline = text.find("\n", start, end)
        stop = end if newline < 0 else newline
        yield start, text[start:stop]
        start = stop + 1


def _data(text: str, start: int, end: int) -> Iterator[Value]:
    """The values of each `data` that is a block of YAML."""
    data: int | None = None  # how deep the key stands whose values these are
    is_remark = False  # and it is in a remark: then another ends it
    block: int | None = None  # and the one whose value are the lines that follow
    for at, line in _lines(text, start, end):
        body = line[_depth(line) :].rstrip()
        if not body:
            continue
        depth = _depth(line)
        block = block if block is not None and depth > block else None
        if data is not None and depth <= data and (is_remark or "#" not in line[:depth]):
            data = None
        if data is None:
            data = depth if _DATA.fullmatch(body) else None
            is_remark = "#" in line[:depth]
        elif block is not None:
            yield Value("", at + depth, at + depth + len(body), "whole")
        elif _BLOCK.fullmatch(body):
            block = depth
        elif entry := _ENTRY.fullmatch(body):
            yield _value(text, at + depth + entry.start("value"), at + depth + entry.end("value"))


def _depth(line: str) -> int:
    lead = _LEAD.match(line)
    return lead.end() if lead else 0


def _value(text: str, start: int, end: int) -> Value:
    return Value("", start, end, "literal" if _QUOTED.fullmatch(text, start, end) else "whole")


def _between_braces(text: str, at: int, end: int) -> Iterator[Value]:
    """The values from ``at``, behind an opening brace, up to the one that closes it, or where the text is cut."""
    opened, is_value = ["{"], False
    while opened and (one := _FLOW_SIGN.search(text, at, end)) and one["end"] is None:
        at = one.end()
        sign = one["sign"]
        if sign is None:
            if is_value:
                yield _value(text, one.start(), one.start() + len(one[0].rstrip()))
        elif sign in "{[":
            opened.append(sign)
        elif sign in "}]":
            opened.pop()
        is_value = is_value if sign is None else sign == ":" or bool(opened and opened[-1] == "[")
