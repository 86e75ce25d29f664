"""Pasted reports as evidence: a JSON list of sources and texts, or plain text with shell prompts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.errors import UsageError
from gpunode.facts import boots
from gpunode.facts.evidence import Capture, Evidence
from gpunode.facts.items import reports_absence
from gpunode.facts.probes import PROBES
from gpunode.facts.sessions import split_session
from gpunode.facts.sources import identify_source

_FORMAT_HINT: Final = 'a report is a JSON list of {"source": "the command or path", "text": "its output"}'
# The probes whose answer a person can paste as it is; `lsmod` is not /proc/modules, `dpkg -l` not dpkg's status.
_PROBE_KEYS: Final = {
    **{probe.path: probe.key for probe in PROBES if probe.path},
    **{" ".join(probe.argv): probe.key for probe in PROBES if probe.argv},
}


def parse_json_report(text: str, place: str) -> Evidence:
    """Parse a JSON list, or an object that has one as its ``collect_pieces``.

    Raises:
        UsageError: if it is neither; the message names ``place`` and the entry.
    """
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{place} is not JSON", why=str(error)[:300], hint=_FORMAT_HINT) from error
    if isinstance(rows, dict):
        rows = rows.get("evidence")
    if not isinstance(rows, list):
        raise UsageError(f"{place} is JSON, but not a list", hint=_FORMAT_HINT)
    return collect_pieces(tuple(_parse_entry(row, number, place, text)) for number, row in enumerate(rows, 1))


# What people call the two, and how they write a text: as it is, as its lines, as the object that a command printed.
_FIELD_NAMES: Final = {
    "source": ("source", "command", "cmd", "path", "file", "name"),
    "text": ("text", "output", "stdout", "content"),
}


def _parse_entry(row: object, number: int, place: str, whole: str) -> Iterator[str]:
    if isinstance(row, str):
        yield from (_DEFAULT_SOURCE, row)
        return
    for name, others in _FIELD_NAMES.items():
        found = [row[other] for other in others if other in row] if isinstance(row, dict) else []
        if not found or (value := _join_text(found[0])) is None:
            where = f"{place}, line {_find_entry_line(whole, number)}"
            raise UsageError(f"{where}: entry {number} has no {name} that is text", hint=_FORMAT_HINT)
        yield value


def _join_text(value: object) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    return json.dumps(value, indent=1, ensure_ascii=False) if isinstance(value, dict | list) and value else None


def _find_entry_line(whole: str, number: int) -> int:
    """Return the line of entry ``number`` of the list; the list's own line if another list precedes it."""
    decoder = json.JSONDecoder()
    begin = at = whole.find("[", whole.find('"evidence"') if whole.lstrip().startswith("{") else 0)
    try:
        for _ in range(number - 1):
            at = whole.index(",", decoder.raw_decode(whole, _skip_blank(whole, at + 1))[1])
    except ValueError:
        return whole.count("\n", 0, begin) + 1
    return whole.count("\n", 0, _skip_blank(whole, at + 1)) + 1


def _skip_blank(text: str, at: int) -> int:
    return len(text) - len(text[at:].lstrip())


def parse_text_report(text: str, name: str = "") -> Evidence:
    """Parse plain text: split it at shell prompts, headings and the outputs of known commands.

    Args:
        text: what was pasted.
        name: of its file; a log's (``kern.log``) tells the kind, others are ignored.
    """
    is_log = identify_source(name).kind not in {"file", "text", "application"}
    return collect_pieces([(name if is_log else _DEFAULT_SOURCE, text)])


_DEFAULT_SOURCE: Final = "pasted text"


# A report has some dozens; each is looked at by hundreds of rules.
MAX_PIECES: Final = 5000


def collect_pieces(pieces: Iterable[tuple[str, ...]]) -> Evidence:
    """Return the pieces as evidence, each under the key of the matching probe, else under its source.

    Raises:
        UsageError: if there are more than ``MAX_PIECES``.
    """
    found: dict[str, Capture] = {}
    numbers: Counter[str] = Counter()
    for step in (step for source, text in pieces for step in split_session(source, text)):
        if len(found) == MAX_PIECES:
            raise _too_many_error()
        unique = key = _choose_key(step.source, step.text)
        while unique in found:
            numbers[key] += 1
            unique = f"{key}#{numbers[key] + 1}"
        found[unique] = _make_capture(step.source, step.text)
    return found


def _too_many_error() -> UsageError:
    why = f"it has more than {MAX_PIECES} pieces of evidence"
    return UsageError("the report is not read", why=why, hint="send the output of one node, once")


def _make_capture(source: str, text: str) -> Capture:
    if reports_absence(text):
        return Capture(source, "absent", error=text, content_kind="log")
    return Capture(source, "ok", text.encode("utf-8", "surrogatepass"), content_kind="log")


def _choose_key(source: str, text: str) -> str:
    seen = identify_source(source, text)
    is_part = seen.only or seen.is_part or seen.is_mixed
    if is_part or seen.where == "container" or boots.is_from_earlier_boot(seen, source):
        return source
    if seen.kind == "file" and seen.subject.startswith("/"):
        return _PROBE_KEYS.get(seen.subject, f"file:{seen.subject}")
    return _PROBE_KEYS.get(" ".join(seen.words), source)
