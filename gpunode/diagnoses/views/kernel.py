"""View the kernel's messages with time and place, in every pasted form, continuation lines joined."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import lru_cache
from itertools import accumulate
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, find_first
from gpunode.facts.boots import strip_grep_prefix
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern

# boot: seconds since then. zoned: a date with its zone. local: one without. yearless: one without year and zone.
_Form: TypeAlias = Literal["boot", "zoned", "local", "yearless"]
# What stands before a message: seconds since boot, with a thread's or a host's name behind them; dmesg -T's date; the
# ISO 8601 forms of dmesg, journalctl and rsyslog; journalctl's short-full; syslog's date, with or without "kernel:";
# Talos' level and time, with or without the node's address; /dev/kmsg's level, number, microseconds; the bare name.
_SAYS: Final = r"(?:\S+\s+)?kernel(?:\[\d+\])?:\s?"
_STAMPS: Final = (
    Pattern(rf"^[ \t]*\[\s*(?P<boot>\d{{1,9}}\.\d{{1,6}})\](?:\s*\[\s*[TC]\d+\])?\s?(?:{_SAYS})?"),
    Pattern(r"^[ \t]*\[(?P<date>\w{3} \w{3}\s+\d{1,2} \d\d:\d\d:\d\d \d{4})\]\s?"),
    Pattern(rf"^(?P<iso>\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)\s+(?:{_SAYS})?"),
    Pattern(rf"^(?:\w{{3}} )?(?P<full>\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d+)?(?: [A-Z]{{3,4}})?\s+{_SAYS}"),
    Pattern(rf"^(?P<syslog>\w{{3}}\s+\d{{1,2}} \d\d:\d\d:\d\d)(?:\.\d+)?\s+(?:{_SAYS}|(?=NVRM:|nvidia|pcieport))"),
    Pattern(r"^(?:[\w.:-]+:\s+)?kern:\s*\w+:\s*\[(?P<talos>[\dT:.Z+-]+)\]:?\s?"),
    Pattern(r"^\d{1,3},\d+,(?P<micros>\d{1,18}),[^;]{1,20};"),
    Pattern(r"^(?:<\d>)?\s*kernel:\s?"),
)
_BOOT: Final = Pattern(r"^\[\s*(?P<boot>\d{1,9}\.\d{1,6})\](?:\s*\[\s*[TC]\d+\])?\s?")
_ZONE: Final = Pattern(r"(?:Z|[+-]\d\d:?\d\d)$")
_ESCAPED: Final = Pattern(r"(?<!\s)\s*#012\s*NVRM:\s*")
# In older drivers the functions of the driver itself say it without the colon.
_NVRM: Final = Pattern(r"^[ \t]*NVRM(?::\s?|\s(?=\w+:))")
_QUOTED: Final = Pattern(r"^(?:>\s?)+")
# A new message of NVRM names its object; a continuation goes on in the middle of a sentence, or is indented.
_FRESH: Final = Pattern(
    r"^(?:Xid|GPU(?:\d|-| at | \d| [0-9a-fA-F]{4}:)|The NVIDIA|This |Try |loading|No |None of|API mismatch|"
    r"NVIDIA (?!\d)|[A-Za-z_]\w+(?::|\()|_?kgsp|nv\w+:|"
    r"Persistence|rm_|Rm|Cpu|Loading|Failed|Unable|Can't|BAR|request_mem)"
)


@dataclass(frozen=True, slots=True)
class Message:
    """A message of the kernel.

    Attributes:
        text: without its prefix; continuation lines joined by single spaces.
        at: seconds since boot or since the epoch; None without a time.
        clock: times compare within the same clock; empty without one.
        is_nvrm: a message by the NVIDIA module, without its ``NVRM:``.
        lines: number of lines.
    """

    text: str
    citation: Citation
    at: float | None = None
    is_nvrm: bool = False
    lines: int = 1
    clock: str = ""


# No sentence of NVRM's is longer; what goes on for ever is something else.
_LONGEST: Final = 2000


def kernel_messages(snapshot: Snapshot) -> tuple[Message, ...]:
    """Return the messages of every kernel log, and those of the kernel in other logs, in the order of the evidence."""
    return tuple(message for item in snapshot.items for message in _parse_item(item))


def messages_by_line(snapshot: Snapshot) -> Mapping[tuple[str, int], Message]:
    """Return the messages, each by the key of its evidence and the number of its first line."""
    return {
        (message.citation.key, message.citation.line_number or 0): message for message in snapshot.view(kernel_messages)
    }


def wrapped_messages(snapshot: Snapshot) -> Mapping[tuple[str, int], Message]:
    """Return the messages of more than one line, each by the key of its evidence and the number of its first line."""
    found = (message for message in snapshot.view(kernel_messages) if message.lines > 1)
    return {(message.citation.key, message.citation.line_number or 0): message for message in found}


def matching_messages(snapshot: Snapshot, pattern: Pattern) -> tuple[Message, ...]:
    """Return the messages of the kernel in which ``pattern`` occurs."""
    every = snapshot.view(kernel_messages)
    words = pattern.words
    worth = (every[number] for number in sorted(_message_numbers(snapshot, words))) if words else every
    return tuple(message for message in worth if pattern.search(message.text))


def _message_numbers(snapshot: Snapshot, words: frozenset[str]) -> set[int]:
    """Return the numbers of the messages in which one of ``words`` stands, in whatever case."""
    lowered, starts = snapshot.view(_lowercase_text)
    found: set[int] = set()
    for word in words:
        at = lowered.find(word)
        while at >= 0:
            number = bisect_right(starts, at) - 1
            found.add(number)
            # The rest of this message needs no second look.
            at = lowered.find(word, starts[number + 1] if number + 1 < len(starts) else len(lowered))
    return found


def _lowercase_text(snapshot: Snapshot) -> tuple[str, tuple[int, ...]]:
    """Return all messages in lower case, a line each, and where each begins."""
    texts = [message.text.lower() for message in snapshot.view(kernel_messages)]
    starts = accumulate((len(text) + 1 for text in texts), initial=0)
    return "\n".join(texts), tuple(starts)[:-1]


_ELSEWHERE: Final = Pattern(r"NVRM[: ]|\bkernel: |nvidia-nvswitch|\bXid \(")
_LOGS: Final = frozenset(
    {
        *("journal", "unit-log", "text", "application", "modprobe", "installer-log", "listing", "file"),
        *("kubernetes", "kubernetes-log", "kubernetes-node", "kubernetes-pod", "unit-status", "container-run"),
    }
)


def _parse_item(item: Item) -> Iterator[Message]:
    if item.kind == "kernel-log":
        yield from _join_continuations(item)
    elif item.kind in _LOGS and not item.is_register and find_first(item, _ELSEWHERE):
        yield from _join_continuations(item, kernel_only=True)


def _join_continuations(item: Item, *, kernel_only: bool = False) -> Iterator[Message]:
    last: Message | None = None
    clocks = _Clocks(item.key)
    for number, line in enumerate(item.lines, 1):
        if kernel_only and not _ELSEWHERE.search(line):
            continue
        text, at, form = _split_stamp(line)
        clock = clocks.clock_of(form, at)
        nvrm = bool(_NVRM.match(text))
        # rsyslog writes the line feeds within a message as #012.
        body = _ESCAPED.sub(" ", _NVRM.sub("", text)) if nvrm else text
        if last is not None and _is_continuation(last, body, nvrm=nvrm, stamped=at is not None):
            lines = number - (last.citation.line_number or number) + 1
            last = replace(last, text=f"{last.text} {body.strip()}", lines=lines)
            continue
        if last is not None:
            yield last
        last = Message(body.strip(), cite(item, number), at, nvrm, clock=clock) if body.strip() else None
    if last is not None:
        yield last


class _Clocks:
    """The clocks of one log, by the form of its stamps.

    Times with their zone compare everywhere. Any others do so within one log only, and there until they go back: then
    another boot, another year or another piece begins.
    """

    def __init__(self, log: str) -> None:
        self._log = log
        self._last: dict[str, float] = {}
        self._runs: dict[str, int] = {}

    def clock_of(self, form: _Form, at: float | None) -> str:
        """Return the clock of a stamp of this form; empty without one."""
        if at is None:
            return ""
        if form == "zoned":
            return form
        if at < self._last.get(form, at) - _JITTER_S:
            self._runs[form] = self._runs.get(form, 0) + 1
        self._last[form] = at
        return f"{form} {self._runs.get(form, 0)} {self._log}"


# Messages of several processors are not written in the exact order of their stamps.
_JITTER_S: Final = 1.0


def _is_continuation(last: Message, body: str, *, nvrm: bool, stamped: bool) -> bool:
    """Return whether ``body`` continues ``last``: NVRM wraps sentences over lines."""
    if not last.is_nvrm or not body.strip() or len(last.text) > _LONGEST:
        return False
    if not nvrm:
        return not stamped and body[:1].isspace()
    return not _FRESH.match(body.strip()) and not last.text.rstrip().endswith((".", "!", ")", "again."))


def _split_stamp(line: str) -> tuple[str, float | None, _Form]:
    """Return the message without its stamp, the stamp's time, and of which form it is."""
    line = _QUOTED.sub("", line) if line.startswith(">") else line
    line = strip_grep_prefix(line)
    for stamp in _STAMPS:
        if match := stamp.match(line):
            rest = line[match.end() :]
            if (inner := _BOOT.match(rest)) and "boot" not in match.groupdict():
                return rest[inner.end() :], float(inner["boot"]), "boot"
            return rest, _stamp_seconds(match), _stamp_form(match)
    return line, None, "boot"


def _stamp_form(match: re.Match[str]) -> _Form:
    found = match.groupdict()
    if found.get("boot") or found.get("micros"):
        return "boot"
    if zoned := found.get("iso") or found.get("talos"):
        return "zoned" if _ZONE.search(zoned) else "local"
    return "yearless" if found.get("syslog") else "local"


def _stamp_seconds(match: re.Match[str]) -> float | None:
    found = match.groupdict()
    try:
        if boot := found.get("boot"):
            return float(boot)
        if date := found.get("date"):
            return _parse_utc(" ".join(date.split()), "%a %b %d %H:%M:%S %Y")
        if iso := found.get("iso") or found.get("talos"):
            return _parse_iso(iso.replace(",", ".").replace("Z", "+00:00"))
        if full := found.get("full"):
            return _parse_utc(full, "%Y-%m-%d %H:%M:%S")
        if micros := found.get("micros"):
            return int(micros) / 1e6
        if syslog := found.get("syslog"):
            # syslog leaves the year away; the order within one log is all that is asked of it.
            return _parse_utc(f"2000 {' '.join(syslog.split())}", "%Y %b %d %H:%M:%S")
    except (ValueError, OverflowError):
        return None
    return None


def _normalize_iso(iso: str) -> str:
    """Return the form that Python before 3.11 parses: three or six digits, a colon in the offset."""
    iso = re.sub(r"\.(\d+)", lambda fraction: "." + (fraction[1] + "000000")[:6], iso)
    return re.sub(r"([+-]\d\d)(\d\d)$", r"\1:\2", iso)


def _parse_iso(text: str) -> float:
    moment = datetime.fromisoformat(_normalize_iso(text))
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


@lru_cache(maxsize=64)  # a second has many lines
def _parse_utc(text: str, form: str) -> float:
    return datetime.strptime(text, form).replace(tzinfo=timezone.utc).timestamp()
