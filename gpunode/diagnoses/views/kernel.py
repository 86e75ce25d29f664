"""View the kernel's messages with time and position, in every pasted form, with continuation lines joined."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import cached_property, lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias

from gpunode.diagnoses import prose
from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.diagnoses.word_index import LineIndex
from gpunode.facts.boots import strip_grep_prefix
from gpunode.facts.items import EvidenceItem
from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass

# boot: seconds since boot. zoned: a date with its time zone. local: without one. yearless: without year and zone.
_StampForm: TypeAlias = Literal["boot", "zoned", "local", "yearless"]
# Prefixes of a message: seconds since boot, followed by a thread's or a host's name; dmesg -T's date; the ISO 8601
# forms of dmesg, journalctl and rsyslog; journalctl's short-full; syslog's date, with or without "kernel:"; Talos'
# level and time, with or without the node's address; /dev/kmsg's level, number, microseconds; the bare name.
_KERNEL_PREFIX: Final = r"(?:\S+\s+)?kernel(?:\[\d+\])?:\s?"
_TIMESTAMP_PATTERNS: Final = (
    Pattern(rf"^[ \t]*\[\s*(?P<boot>\d{{1,9}}\.\d{{1,6}})\](?:\s*\[\s*[TC]\d+\])?\s?(?:{_KERNEL_PREFIX})?"),
    Pattern(r"^[ \t]*\[(?P<date>\w{3} \w{3}\s+\d{1,2} \d\d:\d\d:\d\d \d{4})\]\s?"),
    Pattern(rf"^(?P<iso>\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)\s+(?:{_KERNEL_PREFIX})?"),
    Pattern(
        rf"^(?:\w{{3}} )?(?P<full>\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d+)?(?: [A-Z]{{3,4}})?\s+{_KERNEL_PREFIX}"
    ),
    Pattern(
        rf"^(?P<syslog>\w{{3}}\s+\d{{1,2}} \d\d:\d\d:\d\d)(?:\.\d+)?\s+(?:{_KERNEL_PREFIX}|(?=NVRM:|nvidia|pcieport))"
    ),
    Pattern(r"^(?:[\w.:-]+:\s+)?kern:\s*\w+:\s*\[(?P<talos>[\dT:.Z+-]+)\]:?\s?"),
    Pattern(r"^\d{1,3},\d+,(?P<micros>\d{1,18}),[^;]{1,20};"),
    Pattern(r"^(?:<\d>)?\s*kernel:\s?"),
)
_BOOT_STAMP: Final = Pattern(r"^\[\s*(?P<boot>\d{1,9}\.\d{1,6})\](?:\s*\[\s*[TC]\d+\])?\s?")
_TIME_ZONE_SUFFIX: Final = Pattern(r"(?:Z|[+-]\d\d:?\d\d)$")
_ESCAPED_LINE_BREAK: Final = Pattern(r"(?<!\s)\s*#012\s*NVRM:\s*")
# In older drivers the driver's own functions omit the colon.
_NVRM_PREFIX: Final = Pattern(r"^[ \t]*NVRM(?::\s?|\s(?=\w+:))")
_MAIL_QUOTE_PREFIX: Final = Pattern(r"^(?:>\s?)+")
# A new NVRM message names its object; a continuation starts in the middle of a sentence or is indented.
_NEW_MESSAGE: Final = Pattern(
    r"^(?:Xid|GPU(?:\d|-| at | \d| [0-9a-fA-F]{4}:)|The NVIDIA|This |Try |loading|No |None of|API mismatch|"
    r"NVIDIA (?!\d)|[A-Za-z_]\w+(?::|\()|_?kgsp|nv\w+:|"
    r"Persistence|rm_|Rm|Cpu|Loading|Failed|Unable|Can't|BAR|request_mem)"
)


@dataclass(frozen=True, slots=True)
class Message:
    """A kernel message.

    Attributes:
        text: the message without its prefix, continuation lines joined by single spaces.
        at: seconds since boot or since the epoch; None without a time.
        clock: times compare only on the same clock; empty without a time.
        is_nvrm: whether the NVIDIA module logged it; the text is then without ``NVRM:``.
        lines: number of lines.
    """

    text: str
    citation: Citation
    at: float | None = None
    is_nvrm: bool = False
    lines: int = 1
    clock: str = ""


# NVRM's messages are shorter; an endless continuation is something else.
_MAX_MESSAGE_LENGTH: Final = 2000


def has_kernel_messages(snapshot: Snapshot) -> bool:
    """Return whether any log contains a kernel message."""
    return any(True for log in snapshot.view(_kernel_logs) for _ in log.messages())


def last_times(snapshot: Snapshot) -> tuple[float, ...]:
    """Return the latest time on each clock in the kernel's logs."""
    return tuple(at for log in snapshot.view(_kernel_logs) for at in log.last_times)


def find_message(snapshot: Snapshot, citation: Citation) -> Message | None:
    """Return the message that begins in the cited line; None if there is none."""
    for log in reversed(snapshot.view(_kernel_logs)):
        if log.key == citation.key and (message := log.message_beginning_at(citation.line_number or 0)):
            return message
    return None


def wrapped_messages(snapshot: Snapshot) -> Mapping[tuple[str, int], Message]:
    """Return the messages of more than one line, by evidence key and number of the first line."""
    found = (message for log in snapshot.view(_kernel_logs) for message in log.joined_messages if message.lines > 1)
    return {(message.citation.key, message.citation.line_number or 0): message for message in found}


def matching_messages(snapshot: Snapshot, *patterns: Pattern) -> tuple[Message, ...]:
    """Return the kernel messages in which one of ``patterns`` occurs."""
    if all(map(snapshot.lacks_words, patterns)):
        return ()
    found = (message for log in snapshot.view(_kernel_logs) for message in log.messages_with_words(patterns))
    matching = (message for message in found if _matches_any(message.text, patterns))
    return tuple(message for message in matching if not prose.cites_prose(snapshot, message.citation))


def _matches_any(text: str, patterns: Iterable[Pattern]) -> bool:
    lowered = text.lower()
    return any(pattern.may_match(lowered) and pattern.search(text) for pattern in patterns)


_KERNEL_LOG_WORDS: Final = Pattern(r"NVRM[: ]|\bkernel: |nvidia-nvswitch|\bXid \(")
_OTHER_LOG_KINDS: Final = frozenset(
    {
        *("journal", "unit-log", "text", "application", "modprobe", "installer-log", "listing", "file"),
        *("kubernetes", "kubernetes-log", "kubernetes-node", "kubernetes-pod", "unit-status", "container-run"),
    }
)


def _kernel_logs(snapshot: Snapshot) -> tuple[_KernelLog, ...]:
    having = {id(item) for item in snapshot.items_with_words(_KERNEL_LOG_WORDS)}
    items = (item for item in snapshot.items if item.kind == "kernel-log" or id(item) in having)
    return tuple(log for item in items if (log := item.view(_read_log)) is not None)


def _read_log(item: EvidenceItem) -> _KernelLog | None:
    if item.kind == "kernel-log":
        return _KernelLog(item, range(1, len(item.lines) + 1))
    if item.kind in _OTHER_LOG_KINDS and not item.is_package_record and (numbers := [*_kernel_line_numbers(item)]):
        return _KernelLog(item, numbers)
    return None


def _kernel_line_numbers(item: EvidenceItem) -> Iterator[int]:
    """Yield the line numbers of kernel messages in another log."""
    for start in item.view(LineIndex).candidate_line_starts(_KERNEL_LOG_WORDS):
        number = item.line_number_at(start)
        if _KERNEL_LOG_WORDS.search(item.lines[number - 1]):
            yield number


class _Line(NamedTuple):
    """A line of a log.

    Attributes:
        text: the line without its stamp and ``NVRM:``.
        may_continue: whether it may continue an NVRM message.
    """

    number: int
    text: str
    time_s: float | None
    stamp_form: _StampForm
    is_nvrm: bool
    may_continue: bool


class _KernelLog:
    """The kernel's lines in one item, each parsed on demand."""

    def __init__(self, item: EvidenceItem, numbers: Sequence[int]) -> None:
        self._item, self._numbers = item, numbers
        self._lines: dict[int, _Line] = {}
        self._block_starts: dict[int, int] = {}
        self._blocks: dict[int, tuple[Message, ...]] = {}

    @property
    def key(self) -> str:
        """The key of the evidence."""
        return self._item.key

    def messages(self) -> Iterator[Message]:
        """Yield every message."""
        place = 0
        while place < len(self._numbers):
            yield from self._block(place)
            place = self._end_of_block(place)

    def message_beginning_at(self, number: int) -> Message | None:
        """Return the message whose first line has this number."""
        found = (message for message in self._messages_around([number]) if message.citation.line_number == number)
        return next(found, None)

    def messages_with_words(self, patterns: Sequence[Pattern]) -> Iterable[Message]:
        """Return the messages that contain the words of one of ``patterns``, and some others, in their order."""
        starts = set[int]()
        for pattern in patterns:
            if not pattern.word_sets:
                return self.messages()
            starts.update(self._item.view(LineIndex).candidate_line_starts(pattern))
        found = list(self._messages_around(map(self._item.line_number_at, starts)))
        # A word may be split where a message was wrapped.
        joined = ((message, message.text.lower()) for message in self.joined_messages)
        found += (message for message, lowered in joined if any(one.may_match(lowered) for one in patterns))
        # By line, because a message's hash takes long.
        by_line = {message.citation.line_number or 0: message for message in found}
        return (by_line[number] for number in sorted(by_line))

    @cached_property
    def joined_messages(self) -> tuple[Message, ...]:
        """The messages whose text is not part of a single line."""
        starts = self._item.view(LineIndex).line_starts("nvrm")
        around = self._messages_around(map(self._item.line_number_at, starts))
        return tuple(message for message in around if message.lines > 1 or "#012" in message.citation.line)

    def _messages_around(self, numbers: Iterable[int]) -> Iterator[Message]:
        """Yield the messages of the blocks that contain these lines."""
        for first in sorted({self._start_of_block(place) for place in map(self._index_of_line, numbers) if place >= 0}):
            yield from self._block(first)

    def _index_of_line(self, number: int) -> int:
        """Return the index of the line among the kernel's lines; -1 if it is not one of them."""
        place = bisect_left(self._numbers, number)
        return place if place < len(self._numbers) and self._numbers[place] == number else -1

    def _start_of_block(self, place: int) -> int:
        """Return the index of the last line up to this one that does not continue a message."""
        walked: list[int] = []
        while place > 0 and place not in self._block_starts and self._line(place).may_continue:
            walked.append(place)
            place -= 1
        start = self._block_starts.get(place, place)
        # A block may be a whole log, such as ten thousand lines of one Xid, so no line is visited twice.
        self._block_starts.update(dict.fromkeys(walked, start))
        return start

    def _end_of_block(self, place: int) -> int:
        place += 1
        while place < len(self._numbers) and self._line(place).may_continue:
            place += 1
        return place

    def _block(self, first: int) -> tuple[Message, ...]:
        """Return the messages from a line that begins a block up to the next such line."""
        if first not in self._blocks:
            lines = map(self._line, range(first, self._end_of_block(first)))
            self._blocks[first] = tuple(self._join_continuations(lines))
        return self._blocks[first]

    def _line(self, place: int) -> _Line:
        number = self._numbers[place]
        if number not in self._lines:
            text, at, form = _split_stamp(self._item.lines[number - 1])
            is_nvrm = bool(_NVRM_PREFIX.match(text))
            # rsyslog writes line feeds within a message as #012.
            body = _NVRM_PREFIX.sub("", text) if is_nvrm else text
            body = _ESCAPED_LINE_BREAK.sub(" ", body) if is_nvrm and "#012" in body else body
            may_continue = is_nvrm or (at is None and body[:1].isspace())
            self._lines[number] = _Line(number, body, at, form, is_nvrm, may_continue)
        return self._lines[number]

    def _join_continuations(self, lines: Iterable[_Line]) -> Iterator[Message]:
        last: Message | None = None
        for line in lines:
            if last is not None and _is_continuation(last, line):
                count = line.number - (last.citation.line_number or line.number) + 1
                last = replace(last, text=f"{last.text} {line.text.strip()}", lines=count)
                continue
            if last is not None:
                yield last
            last = self._message_from_line(line) if line.text.strip() else None
        if last is not None:
            yield last

    def _message_from_line(self, line: _Line) -> Message:
        citation = cite(self._item, line.number)
        return Message(line.text.strip(), citation, line.time_s, line.is_nvrm, clock=self._clock_of(line))

    def _clock_of(self, line: _Line) -> str:
        if line.time_s is None:
            return ""
        return line.stamp_form if line.stamp_form == "zoned" else self._clocks[line.number]

    @cached_property
    def _clocks(self) -> Mapping[int, str]:
        """The clock of each line with a time."""
        clocks = _Clocks(self._item.key)
        lines = map(self._line, range(len(self._numbers)))
        return {line.number: clocks.clock_of(line.stamp_form, line.time_s) for line in lines}

    @cached_property
    def last_times(self) -> tuple[float, ...]:
        """The latest time of each stamp form."""
        latest: dict[_StampForm, float] = {}
        for line in map(self._line, range(len(self._numbers))):
            if line.time_s is not None and line.text.strip():
                latest[line.stamp_form] = max(line.time_s, latest.get(line.stamp_form, line.time_s))
        return tuple(latest.values())


class _Clocks:
    """The clocks of one log, by stamp form.

    Times with a zone compare everywhere. Other times compare within one log only, and until they go back: then another
    boot, another year or another excerpt begins.
    """

    def __init__(self, log: str) -> None:
        self._log = log
        self._last: dict[str, float] = {}
        self._runs: dict[str, int] = {}

    def clock_of(self, form: _StampForm, at: float | None) -> str:
        """Return the clock of a stamp of this form; empty without a time."""
        if at is None:
            return ""
        if form == "zoned":
            return form
        if at < self._last.get(form, at) - _CLOCK_JITTER_S:
            self._runs[form] = self._runs.get(form, 0) + 1
        self._last[form] = at
        return f"{form} {self._runs.get(form, 0)} {self._log}"


# Several processors do not write their messages in exact order of the stamps.
_CLOCK_JITTER_S: Final = 1.0


def _is_continuation(last: Message, line: _Line) -> bool:
    """Return whether ``line`` continues ``last``: NVRM wraps sentences over lines."""
    body = line.text
    if not (last.is_nvrm and line.may_continue and body.strip()) or len(last.text) > _MAX_MESSAGE_LENGTH:
        return False
    if not line.is_nvrm:
        return True
    return not _NEW_MESSAGE.match(body.strip()) and not last.text.rstrip().endswith((".", "!", ")", "again."))


def _split_stamp(line: str) -> tuple[str, float | None, _StampForm]:
    """Return the message without its stamp, the stamp's time, and the form of the stamp."""
    line = _MAIL_QUOTE_PREFIX.sub("", line) if line.startswith(">") else line
    line = strip_grep_prefix(line)
    for stamp in _TIMESTAMP_PATTERNS:
        if match := stamp.match(line):
            rest = line[match.end() :]
            if (inner := _BOOT_STAMP.match(rest)) and "boot" not in match.groupdict():
                return rest[inner.end() :], float(inner["boot"]), "boot"
            return rest, _stamp_seconds(match), _stamp_form(match)
    return line, None, "boot"


def _stamp_form(match: re.Match[str]) -> _StampForm:
    found = match.groupdict()
    if found.get("boot") or found.get("micros"):
        return "boot"
    if zoned := found.get("iso") or found.get("talos"):
        return "zoned" if _TIME_ZONE_SUFFIX.search(zoned) else "local"
    return "yearless" if found.get("syslog") else "local"


def _stamp_seconds(match: re.Match[str]) -> float | None:
    groups = match.groupdict()
    try:
        if boot := groups.get("boot"):
            return float(boot)
        if date := groups.get("date"):
            return _parse_utc(" ".join(date.split()), "%a %b %d %H:%M:%S %Y")
        if iso := groups.get("iso") or groups.get("talos"):
            return _parse_iso(iso.replace(",", ".").replace("Z", "+00:00"))
        if full := groups.get("full"):
            return _parse_utc(full, "%Y-%m-%d %H:%M:%S")
        if micros := groups.get("micros"):
            return int(micros) / 1e6
        if syslog := groups.get("syslog"):
            # syslog omits the year; only the order within one log matters.
            return _parse_utc(f"2000 {' '.join(syslog.split())}", "%Y %b %d %H:%M:%S")
    except (ValueError, OverflowError):
        return None
    return None


def _normalize_iso(iso: str) -> str:
    """Return the form that Python before 3.11 can parse: three or six digits, a colon in the offset."""
    iso = re.sub(r"\.(\d+)", lambda fraction: "." + (fraction[1] + "000000")[:6], iso)
    return re.sub(r"([+-]\d\d)(\d\d)$", r"\1:\2", iso)


def _parse_iso(text: str) -> float:
    moment = datetime.fromisoformat(_normalize_iso(text))
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


@lru_cache(maxsize=64)  # many lines share a second
def _parse_utc(text: str, form: str) -> float:
    return datetime.strptime(text, form).replace(tzinfo=timezone.utc).timestamp()
