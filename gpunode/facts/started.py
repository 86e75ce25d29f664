"""When the node was started last, by its own word, and which dated lines were written before that.

A log on disk says by its lines where a boot begins, see ``boots``; a few lines that somebody picked out of it do not,
but where they were asked for as those of this boot, no clock is set against that; where journalctl takes the kernel's
messages to be meant so, the clock may have been of another zone at the start. Clocks are the node's own, whatever
their zone: rsyslog and journalctl write its local time, with its offset behind it. What is, or may be, of another has
to lie farther apart. The forms are those of procps (uptime), coreutils (who), util-linux (last), of /proc/stat and of
nvidia-smi.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Final

from gpunode.facts.boots import is_of_this, is_searched, is_taken_for_this, ungrepped
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import Kind

_ASKED: Final = Pattern(r"^(?:sudo )?(?:[A-Z_]{1,20}=\S* )*(?:/usr/bin/)?(?P<command>uptime|who|last)(?: |$)")
_PLAIN_UPTIME: Final = Pattern(r"^(?:sudo )?(?:/usr/bin/)?(?:uptime|w)$")
_PLAIN_DATE: Final = Pattern(r"^(?:/usr/bin/|/bin/)?date$")
# Who asks so is answered by another clock than the node's own.
_OTHER_CLOCK: Final = Pattern(r"(?:^|\s)(?:TZ=|--utc\b)")
_SINCE: Final = Pattern(r"^(?P<date>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\s*$", re.MULTILINE)
_WHO: Final = Pattern(r"^\s*system boot\s+(?P<date>\d{4}-\d\d-\d\d \d\d:\d\d)\b", re.MULTILINE)
# In the C locale without the year.
_WHO_YEARLESS: Final = Pattern(r"^\s*system boot\s+(?P<date>\w{3} [ \d]\d \d\d:\d\d)\s*$", re.MULTILINE)
_LAST: Final = Pattern(
    r"^reboot\s+system boot\s+\S+\s+\w{3} (?P<day>\w{3}\s+\d{1,2} \d\d:\d\d)(?P<rest>:\d\d \d{4})?[ ].*\bstill running",
    re.MULTILINE,
)
_EPOCH: Final = Pattern(r"^btime (?P<epoch>\d{9,11})\s*$", re.MULTILINE)
_UP: Final = Pattern(
    r"^\s*(?P<clock>\d\d:\d\d:\d\d)\s+up\s+(?:(?P<days>\d{1,5}) days?,\s+)?"
    r"(?:(?P<hours>\d{1,2}):(?P<minutes>\d\d)|(?P<min>\d{1,2}) min),",
    re.MULTILINE,
)
_NOW: Final = Pattern(
    r"^(?:Timestamp\s*:\s*)?\w{3} (?P<date>\w{3}\s+\d{1,2} \d\d:\d\d:\d\d)(?: [A-Z]{3,5})?(?P<year> \d{4})\s*$",
    re.MULTILINE,
)
_ASKED_NOW: Final[frozenset[Kind]] = frozenset({"nvidia-smi", "nvidia-smi-q"})

# How a log on disk begins its lines, and the seconds since boot behind that. What dmesg shows is of the running boot.
_STAMP: Final = Pattern(
    r"^(?:(?:\w{3} )?(?P<full>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:[.,]\d+)?(?P<zone>Z|[+-]\d\d:?\d\d)?"
    r"|(?P<yearless>\w{3}\s+\d{1,2} \d\d:\d\d:\d\d)(?:\.\d+)?)\s(?:[^\[\n]{0,80}\[\s*(?P<up>\d{1,9})\.\d{3,6}\])?"
)
_LOGS: Final[frozenset[Kind]] = frozenset({"kernel-log", "journal", "unit-log", "text"})
# What rsyslog and journalctl write. Other programs write UTC wherever the node stands, or the zone of their container.
_BY_LOGGERS: Final[frozenset[Kind]] = frozenset({"kernel-log", "journal", "unit-log", "listing"})
# Lines of the very beginning may be late or early, and of another zone for as long as nobody has set the clock.
_SLACK_S: Final = 300.0
_ZONE_S: Final = 14 * 3600.0
_CLOCK_SET_S: Final = 600
_DAY_S: Final = 86_400.0
# Where nobody says what year it is, the nearest one counts only where hardly any node is up for the rest of the other.
_NEAR_S: Final = 90 * _DAY_S
_NO_YEAR: Final = 2000


@dataclass(frozen=True, slots=True)
class Start:
    """The moment at which the running boot began.

    Attributes:
        at: seconds; by the node's own clock, as if that were UTC, or since the epoch.
        has_year: whether the year is known; else it is counted as 2000.
        is_epoch: whether it is since the epoch, or of a zone that somebody chose, while logs are of the node's own.
        now: the latest moment by the node's own clock that is known; None where none is.
    """

    at: float
    has_year: bool = True
    is_epoch: bool = False
    now: float | None = None


def tells_time(item: Item) -> bool:
    """Whether it tells when its machine was started, or what time it is there."""
    asked = _ASKED.match(item.written) or _PLAIN_UPTIME.match(item.written) or _PLAIN_DATE.match(item.written)
    return bool(asked) or item.subject == "/proc/stat"


def start(items: Iterable[Item]) -> Start | None:
    """When the node was started last; None where nothing tells."""
    host = [item for item in items if item.where == "host"]
    now = max((at for item in host for at in _nows(item)), default=None)
    told = [one for item in host for one in (*_starts(item), *_up_for(item, now))]
    if not told:
        return None
    first = max(told, key=lambda one: (one.has_year, not one.is_epoch, one.at))
    if first.has_year or now is None:
        return Start(first.at, first.has_year, first.is_epoch, now)
    return Start(_latest(first.at, now + _DAY_S), now=now)


def _starts(item: Item) -> Iterator[Start]:
    asked = _ASKED.match(item.written)
    command = asked["command"] if asked else ""
    elsewhere = bool(_OTHER_CLOCK.search(item.written))
    if command == "uptime":
        yield from (Start(at, is_epoch=elsewhere) for at in _moments(item, _SINCE, "%Y-%m-%d %H:%M:%S"))
    elif command == "who":
        yield from (Start(at, is_epoch=elsewhere) for at in _moments(item, _WHO, "%Y-%m-%d %H:%M"))
        for match in _WHO_YEARLESS.finditer(item.text):
            if (at := _utc(f"{_NO_YEAR} {match['date']}", "%Y %b %d %H:%M")) is not None:
                yield Start(at, has_year=False, is_epoch=elsewhere)
    elif command == "last":
        for match in _LAST.finditer(item.text):
            year = match["rest"][-4:] if match["rest"] else str(_NO_YEAR)
            if (at := _utc(f"{year} {match['day']}", "%Y %b %d %H:%M")) is not None:
                yield Start(at, has_year=bool(match["rest"]), is_epoch=elsewhere)
    elif item.subject == "/proc/stat":
        yield from (Start(float(match["epoch"]), is_epoch=True) for match in _EPOCH.finditer(item.text))


def _up_for(item: Item, now: float | None) -> Iterator[Start]:
    """The start, counted back by how long the node is up, where uptime was asked when the date was."""
    if now is None or not _PLAIN_UPTIME.match(item.written):
        return
    for match in _UP.finditer(item.text):
        clock = _utc(match["clock"], "%H:%M:%S")
        if clock is None or _SLACK_S < (now - clock) % _DAY_S < _DAY_S - _SLACK_S:
            continue
        minutes = int(match["min"] or match["minutes"]) + 60 * int(match["hours"] or 0)
        yield Start(now - 60.0 * minutes - _DAY_S * int(match["days"] or 0))


def _nows(item: Item) -> Iterator[float]:
    """Moments at which the node's clock was read."""
    if item.kind not in _ASKED_NOW and not _PLAIN_DATE.match(item.written):
        return
    read = (_utc(f"{match['date']}{match['year']}", "%b %d %H:%M:%S %Y") for match in _NOW.finditer(item.text))
    yield from (at for at in read if at is not None)


def _moments(item: Item, pattern: Pattern, form: str) -> Iterator[float]:
    found = (_utc(match["date"], form) for match in pattern.finditer(item.text))
    yield from (at for at in found if at is not None)


def _utc(text: str, form: str) -> float | None:
    try:
        return datetime.strptime(" ".join(text.split()), form).replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None


def of_running(item: Item, began: Start | None) -> str | None:
    """The text with the lines from before left empty, so that numbers hold; None where all of it is from before."""
    if began is None or not _is_log(item) or is_of_this(item.source):
        return item.text
    kept = ["" if _is_before(line, item, began) else line for line in item.text.split("\n")]
    text = "\n".join(kept)
    return text if text == item.text or text.strip() else None


def _is_log(item: Item) -> bool:
    return item.kind in _LOGS or (item.kind == "listing" and is_searched(item.text))


def is_local(item: Item, zone: str | None) -> bool:
    """Whether a date of the log, with that offset behind it, is known to be by the clock and the zone of the node.

    Of what has no name, nobody knows where it was; a container has a zone of its own.
    """
    is_named = bool(item.source.words or item.source.subject)
    if not is_named or item.where != "host" or _OTHER_CLOCK.search(item.written):
        return False
    # None of the system's loggers says "Z".
    return zone is None or (zone != "Z" and item.kind in _BY_LOGGERS)


def _is_before(line: str, item: Item, began: Start) -> bool:
    match = _STAMP.match(ungrepped(line))
    if match is None:
        return False
    is_early = is_taken_for_this(item.source) or (match["up"] and int(match["up"]) < _CLOCK_SET_S)
    slack = _ZONE_S if is_early or began.is_epoch or not is_local(item, match["zone"]) else _SLACK_S
    if match["full"]:
        at = _utc(match["full"].replace("T", " "), "%Y-%m-%d %H:%M:%S")
        return at is not None and began.has_year and at < began.at - slack
    at = _utc(f"{_NO_YEAR} {match['yearless']}", "%Y %b %d %H:%M:%S")
    if at is None:
        return False
    if began.now is not None:
        return _latest(at, began.now + _DAY_S) < began.at - slack
    return slack < began.at - _latest(at, began.at) < _NEAR_S


def _latest(yearless: float, limit: float) -> float:
    """The last moment of that day and time, in whichever year, that is not after ``limit``."""
    moment = datetime.fromtimestamp(yearless, timezone.utc)
    year = datetime.fromtimestamp(limit, timezone.utc).year
    for one in (year, year - 1, year - 2, year - 3, year - 4):
        try:
            at = moment.replace(year=one).timestamp()
        except ValueError:  # the 29th of February
            continue
        if at <= limit:
            return at
    return yearless
