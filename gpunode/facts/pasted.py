"""What people paste into reports, as evidence: a JSON list of sources and texts, or plain text with shell prompts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.errors import UsageError
from gpunode.facts import boots
from gpunode.facts.evidence import Capture, Evidence
from gpunode.facts.items import tells_absence
from gpunode.facts.probes import PROBES
from gpunode.facts.sessions import steps
from gpunode.facts.sources import recognise

_SHAPE: Final = 'a report is a JSON list of {"source": "the command or path", "text": "what it said"}'
# The probes whose answer a person can paste as it is; `lsmod` is not /proc/modules, `dpkg -l` not dpkg's status.
_PROBE_KEYS: Final = {
    **{probe.path: probe.key for probe in PROBES if probe.path},
    **{" ".join(probe.argv): probe.key for probe in PROBES if probe.argv},
}


def from_json(text: str, place: str) -> Evidence:
    """The evidence of a JSON list, or of an object that has one as its ``evidence``.

    Raises:
        UsageError: it is another thing; the message names ``place`` and the entry.
    """
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{place} is not JSON", why=str(error)[:300], hint=_SHAPE) from error
    if isinstance(rows, dict):
        rows = rows.get("evidence")
    if not isinstance(rows, list):
        raise UsageError(f"{place} is JSON, but no list", hint=_SHAPE)
    return evidence(tuple(_row(row, number, place, text)) for number, row in enumerate(rows, 1))


# What people call the two, and how they write a text: as it is, as its lines, as the object that a command printed.
_NAMES: Final = {
    "source": ("source", "command", "cmd", "path", "file", "name"),
    "text": ("text", "output", "stdout", "content"),
}


def _row(row: object, number: int, place: str, whole: str) -> Iterator[str]:
    if isinstance(row, str):
        yield from (_UNNAMED, row)
        return
    for name, others in _NAMES.items():
        found = [row[other] for other in others if other in row] if isinstance(row, dict) else []
        if not found or (value := _as_text(found[0])) is None:
            where = f"{place}, line {_line_of(whole, number)}"
            raise UsageError(f"{where}: entry {number} has no {name} that is text", hint=_SHAPE)
        yield value


def _as_text(value: object) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    return json.dumps(value, indent=1, ensure_ascii=False) if isinstance(value, dict | list) and value else None


def _line_of(whole: str, number: int) -> int:
    """The line in which entry ``number`` of the list begins; the list's own where another list stands before it."""
    decoder = json.JSONDecoder()
    begin = at = whole.find("[", whole.find('"evidence"') if whole.lstrip().startswith("{") else 0)
    try:
        for _ in range(number - 1):
            at = whole.index(",", decoder.raw_decode(whole, _after_blank(whole, at + 1))[1])
    except ValueError:
        return whole.count("\n", 0, begin) + 1
    return whole.count("\n", 0, _after_blank(whole, at + 1)) + 1


def _after_blank(text: str, at: int) -> int:
    return len(text) - len(text[at:].lstrip())


def from_text(text: str, name: str = "") -> Evidence:
    """The evidence of plain text: split at shell prompts, headings and what looks like another command's output.

    Args:
        text: what was pasted.
        name: of the file that it stood in: that of a log says what it is (``kern.log``), any other says nothing.
    """
    is_log = recognise(name).kind not in {"file", "text", "application"}
    return evidence([(name if is_log else _UNNAMED, text)])


_UNNAMED: Final = "pasted text"


# A report has some dozens; each is looked at by hundreds of rules.
MOST_PIECES: Final = 5000


def evidence(pieces: Iterable[tuple[str, ...]]) -> Evidence:
    """The pieces, each under the key of the probe that would have seen it, else under its source.

    Raises:
        UsageError: there are more than ``MOST_PIECES``.
    """
    found: dict[str, Capture] = {}
    numbers: Counter[str] = Counter()
    for step in (step for source, text in pieces for step in steps(source, text)):
        if len(found) == MOST_PIECES:
            raise _too_many()
        unique = key = _key(step.source, step.text)
        while unique in found:
            numbers[key] += 1
            unique = f"{key}#{numbers[key] + 1}"
        found[unique] = _capture(step.source, step.text)
    return found


def _too_many() -> UsageError:
    why = f"it has more than {MOST_PIECES} pieces of evidence"
    return UsageError("the report is not read", why=why, hint="send what one node said, once")


def _capture(source: str, text: str) -> Capture:
    if tells_absence(text):
        return Capture(source, "absent", error=text, holds="log")
    return Capture(source, "ok", text.encode("utf-8", "surrogatepass"), holds="log")


def _key(source: str, text: str) -> str:
    seen = recognise(source, text)
    is_part = seen.only or seen.is_part or seen.is_mixed
    if is_part or seen.where == "container" or boots.is_of_earlier(seen, source):
        return source
    if seen.kind == "file" and seen.subject.startswith("/"):
        return _PROBE_KEYS.get(seen.subject, f"file:{seen.subject}")
    return _PROBE_KEYS.get(" ".join(seen.words), source)
