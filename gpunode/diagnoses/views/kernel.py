"""The kernel's messages with time and place, in every form in which people paste them; continuation lines joined."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.facts.items import Item

# Forms: "[ 123.456789]", "[ 123.456] [ T1946]", "[Fri Mar  3 04:27:08 2023]", "Aug 10 15:36:05 host kernel:",
# "2025-06-02T12:32:53.230422+00:00 host kernel:", "kernel: ", Talos' "kern:     err: [2024-…Z]:".
_STAMPS: Final = (
    re.compile(r"^[ \t]*\[\s*(?P<boot>\d{1,9}\.\d{1,6})\](?:\s*\[\s*[TC]\d+\])?\s?"),
    re.compile(r"^[ \t]*\[(?P<date>\w{3} \w{3}\s+\d{1,2} \d\d:\d\d:\d\d \d{4})\]\s?"),
    re.compile(r"^(?P<iso>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)\s+(?:\S+\s+)?kernel:\s?"),
    re.compile(r"^(?P<syslog>\w{3}\s+\d{1,2} \d\d:\d\d:\d\d)\s+(?:\S+\s+)?kernel(?:\[\d+\])?:\s?"),
    re.compile(r"^kern:\s*\w+:\s*\[(?P<talos>[\dT:.Z+-]+)\]:?\s?"),
    re.compile(r"^(?:<\d>)?\s*kernel:\s?"),
)
_BOOT: Final = re.compile(r"^\[\s*(?P<boot>\d{1,9}\.\d{1,6})\](?:\s*\[\s*[TC]\d+\])?\s?")
_NVRM: Final = re.compile(r"^[ \t]*NVRM:\s?")
# A new message of NVRM names its object; a continuation goes on in the middle of a sentence, or is indented.
_FRESH: Final = re.compile(
    r"^(?:Xid|GPU(?:\d|-| at | \d| [0-9a-fA-F]{4}:)|The NVIDIA|This |Try |loading|No |None of|API mismatch|"
    r"NVIDIA (?!\d)|[A-Za-z_]\w+(?::|\()|_?kgsp|nv\w+:|"
    r"Persistence|rm_|Rm|Cpu|Loading|Failed|Unable|Can't|BAR|request_mem)"
)


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the kernel.

    Attributes:
        text: without what stands before it; continuation lines joined by single spaces.
        at: seconds, on one clock within an item: since boot, or since the epoch; None where no time stands there.
        nvrm: whether NVIDIA's module said it; then the text is without its ``NVRM:``.
    """

    text: str
    citation: Citation
    at: float | None = None
    nvrm: bool = False


# No sentence of NVRM's is longer; what goes on for ever is something else.
_LONGEST: Final = 2000


def messages(snapshot: Snapshot) -> tuple[Message, ...]:
    """The messages of every kernel log, and those of the kernel in other logs, in the order of the evidence."""
    return tuple(message for item in snapshot.items for message in _of(item))


def said(snapshot: Snapshot, pattern: re.Pattern[str]) -> tuple[Message, ...]:
    """The messages of the kernel in which ``pattern`` occurs."""
    return tuple(message for message in snapshot.view(messages) if pattern.search(message.text))


_ELSEWHERE: Final = re.compile(r"NVRM: |\bkernel: |nvidia-nvswitch")
_LOGS: Final = frozenset({"journal", "unit-log", "text", "application", "kubernetes-log", "modprobe", "installer-log"})


def _of(item: Item) -> Iterator[Message]:
    if item.kind == "kernel-log":
        yield from _joined(item)
    elif item.kind in _LOGS and _ELSEWHERE.search(item.text):
        yield from _joined(item, kernel_only=True)


def _joined(item: Item, *, kernel_only: bool = False) -> Iterator[Message]:
    last: Message | None = None
    for number, line in enumerate(item.lines, 1):
        if kernel_only and not _ELSEWHERE.search(line):
            continue
        text, at = _unstamped(line)
        nvrm = bool(_NVRM.match(text))
        body = _NVRM.sub("", text) if nvrm else text
        if last is not None and _goes_on(last, body, nvrm=nvrm, stamped=at is not None):
            last = replace(last, text=f"{last.text} {body.strip()}")
            continue
        if last is not None:
            yield last
        last = Message(body.strip(), cite(item, number), at, nvrm) if body.strip() else None
    if last is not None:
        yield last


def _goes_on(last: Message, body: str, *, nvrm: bool, stamped: bool) -> bool:
    """Whether ``body`` is the rest of ``last``: NVRM wraps its sentences over lines, with or without time and name."""
    if not last.nvrm or not body.strip() or len(last.text) > _LONGEST:
        return False
    if not nvrm:
        return not stamped and body[:1].isspace()
    return not _FRESH.match(body.strip()) and not last.text.rstrip().endswith((".", "!", ")", "again."))


def _unstamped(line: str) -> tuple[str, float | None]:
    for stamp in _STAMPS:
        if match := stamp.match(line):
            rest, at = line[match.end() :], _seconds(match)
            if (inner := _BOOT.match(rest)) and "boot" not in match.groupdict():
                return rest[inner.end() :], float(inner["boot"])
            return rest, at
    return line, None


def _seconds(match: re.Match[str]) -> float | None:
    found = match.groupdict()
    try:
        if boot := found.get("boot"):
            return float(boot)
        if date := found.get("date"):
            return _utc(" ".join(date.split()), "%a %b %d %H:%M:%S %Y")
        if iso := found.get("iso") or found.get("talos"):
            return _iso(iso.replace(",", ".").replace("Z", "+00:00"))
        if syslog := found.get("syslog"):
            # syslog leaves the year away; the order within one log is all that is asked of it.
            return _utc(f"2000 {' '.join(syslog.split())}", "%Y %b %d %H:%M:%S")
    except ValueError:
        return None
    return None


def _six_digits(iso: str) -> str:
    """As Python before 3.11 takes it: fractions of three or six digits, a colon in the offset."""
    iso = re.sub(r"\.(\d+)", lambda fraction: "." + (fraction[1] + "000000")[:6], iso)
    return re.sub(r"([+-]\d\d)(\d\d)$", r"\1:\2", iso)


def _iso(text: str) -> float:
    moment = datetime.fromisoformat(_six_digits(text))
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def _utc(text: str, form: str) -> float:
    return datetime.strptime(text, form).replace(tzinfo=timezone.utc).timestamp()
