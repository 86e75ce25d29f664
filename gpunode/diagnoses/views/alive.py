"""GPUs that nvidia-smi shows at work, and when: a fault that ends a GPU's work until its reset is over by then."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import kernel, pci
from gpunode.facts import started
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern

_BUS: Final = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]"
_ROW: Final = Pattern(rf"^\|\s+\d{{1,3}}\s+\S[^|]{{2,60}}\|\s*(?P<bus>{_BUS})\s")
# The row below it: fan, temperature, performance state. Temperature is read from the GPU itself.
_READS: Final = Pattern(r"^\|\s*(?:N/A|\d{1,3}%)\s+\d{1,3}C\s")
_ERROR: Final = Pattern(r"ERR!|Unknown Error|GPU is lost", re.IGNORECASE)
_HEAD: Final = Pattern(rf"^GPU (?P<bus>{_BUS})\s*$")
_TEMPERATURE: Final = Pattern(r"^\s+GPU Current Temp\s*:\s*\d{1,3} C\b")
_WHEN: Final = Pattern(
    r"^(?:Timestamp\s*:\s*)?(?P<date>\w{3} \w{3} {1,2}\d{1,2} \d\d:\d\d:\d\d \d{4})\s*$", re.MULTILINE
)
# How a capture names what gpunode asked itself, after it had read the logs.
_ASKED_LAST: Final = frozenset({"smi", "smi-query"})
# Seconds since boot lie below the first; those of syslog, which leaves the year away, between both.
_SINCE_BOOT, _YEARLESS = 9e8, 1e9
_START_S: Final = 60.0
_ZONED: Final = Pattern(r"\d{4}-\d\d-\d\dT[\d:.,]+(?P<zone>Z|(?P<sign>[+-])(?P<hours>\d\d)(?::?(?P<minutes>\d\d))?)")
_FARTHEST_ZONE_S: Final = 14 * 3600.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of nvidia-smi on the node.

    Attributes:
        gpus: the addresses of those whose temperature it read.
        at: seconds since the epoch by the node's own clock; None where it does not say.
        is_last: whether it was asked for after every log had been read.
    """

    gpus: frozenset[str]
    at: float | None
    is_last: bool


def answers(snapshot: Snapshot) -> tuple[Answer, ...]:
    """The answers of nvidia-smi that show GPUs at work."""
    items = (item for item in snapshot.of("nvidia-smi", "nvidia-smi-q", "text") if item.where == "host")
    found = (Answer(frozenset(_working(item)), _when(item), item.key in _ASKED_LAST) for item in items)
    return tuple(one for one in found if one.gpus)


def is_at_work(snapshot: Snapshot, gpu: str) -> bool | None:
    """Whether the GPU works now; None where it worked at some moment that nobody knows."""
    shown = [one for one in snapshot.view(answers) if _slot(gpu) in map(_slot, one.gpus)]
    return True if any(one.is_last for one in shown) else (None if shown else False)


# What ends all work of a GPU until it is reset, taken off the bus and found again, or the node is started anew.
_ENDING: Final = Pattern(
    r"\bXid\b[^:\n]{0,40}(?::[^:\n]{0,40}){0,3}\): (?:46|62|79|119|120|143)\b|(?:fallen|fell) off the (?:PCIe? )?bus"
    r"|\bGPU is lost\b|RmInitAdapter failed|rm_init_adapter failed|(?:_kgsp|kgsp|GSP)\w*[^\n]{0,60}"
    r"(?:[Tt]imeout|failed|exception|crash|unresponsive)|RPC (?:timeout|response from GPU)"
)
_SLEEPS: Final = Pattern(
    r"change power state from D3(?:cold|hot) to D0|Refused to change power state"
    r"|not ready \d+ms after .{1,40}; giving up"
)
_ANY_BUS: Final = Pattern(r"\b(?P<bus>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)(?![0-9a-f:])", re.IGNORECASE)


def without_what_is_over(snapshot: Snapshot) -> Snapshot:
    """The node without the messages of faults after which the same GPU was seen at work."""
    over: dict[tuple[str, str], set[int]] = {}
    own = {(item.key, item.written) for item in snapshot.of("kernel-log")}
    for message in snapshot.view(kernel.messages) if snapshot.view(answers) else ():
        place = (message.citation.key, message.citation.source)
        is_told = place not in own and not _BY_KERNEL.match(message.citation.line)
        if message.citation.number and _is_over(snapshot, message, is_told=is_told):
            first = message.citation.number
            numbers = over.setdefault(place, set())
            numbers.update(range(first, first + message.lines))
    if not over:
        return snapshot
    # Nor is it of an earlier boot.
    made = {id(item): _without(item, over.get((item.key, item.written), set())) for item in snapshot.items}
    whole = (made.get(id(item)) or _without(item, over.get((item.key, item.written), set())) for item in snapshot.whole)
    return Snapshot(tuple(made.values()), snapshot.facts, tuple(whole), as_told=snapshot)


def _without(item: Item, numbers: set[int]) -> Item:
    if not numbers:
        return item
    return replace(item, text="\n".join("" if n in numbers else line for n, line in enumerate(item.lines, 1)))


# A line of the system's log that the kernel wrote, and no program that quotes it.
_BY_KERNEL: Final = Pattern(r"^(?:[\w:.,+-]+ +){1,5}kernel(?:\[\d+\])?: ")


def _is_over(snapshot: Snapshot, message: kernel.Message, *, is_told: bool) -> bool:
    """Whether the GPU got over it; of what another program tells of the kernel, whether the GPU works at all."""
    sleeps = _SLEEPS.search(message.text)
    if not sleeps and not _ENDING.search(message.text):
        return False
    seen = {gpu for one in snapshot.view(answers) for gpu in one.gpus}
    named = _ANY_BUS.search(message.text)
    known = {function.address for function in snapshot.view(pci.gpus)} | seen
    gpus = {pci.address(named["bus"])} if named else known
    if not {_slot(gpu) for gpu in gpus} <= {_slot(gpu) for gpu in seen}:
        return False
    # A GPU that stays asleep answers nobody, whenever it is asked; a notebook's is woken by another try.
    return is_told or bool(sleeps and named) or all(_is_after(snapshot, gpu, message) for gpu in gpus)


def _is_after(snapshot: Snapshot, gpu: str, message: kernel.Message) -> bool:
    """Whether the GPU is known to have worked after the message."""
    shown = (one for one in snapshot.view(answers) if _slot(gpu) in map(_slot, one.gpus))
    return any(one.is_last or _is_behind(snapshot, one.at, message.at, message.citation) for one in shown)


def was_asked_after(snapshot: Snapshot, answer: Citation, at: float | None, told: Citation) -> bool:
    """Whether the answer of nvidia-smi in which ``answer`` stands was given after the message of that time and line."""
    asked = next((item for item in snapshot.items if (item.key, item.written) == (answer.key, answer.source)), None)
    return asked is not None and (asked.key in _ASKED_LAST or _is_behind(snapshot, _when(asked), at, told))


def _is_behind(snapshot: Snapshot, answered: float | None, at: float | None, told: Citation) -> bool:
    """Whether the answer came later, by the time or by the date of the line."""
    return any(_is_later(snapshot, answered, one, told) for one in (at, kernel.dated(told.line)))


_HALF_A_YEAR_S: Final = 183 * 86_400.0


def is_older(snapshot: Snapshot, told: Citation, at: float) -> bool:
    """Whether a line of the kernel's log is known to be older than a moment by the node's own clock."""
    dated = kernel.dated(told.line)
    if dated is None or dated < _SINCE_BOOT:
        return False
    if dated < _YEARLESS and _yearless(at) - dated > _HALF_A_YEAR_S:
        return False  # December's moment and January's line are of two years
    return _is_later(snapshot, at, dated, told)


def _is_later(snapshot: Snapshot, answered: float | None, at: float | None, told: Citation) -> bool:
    if at is None:
        return False
    if at < _SINCE_BOOT:
        return at < _START_S  # nobody asks so early
    if answered is None:
        return False
    if at < _YEARLESS:
        return _yearless(answered) > at
    return answered > at + _to_local(snapshot, told)


def _to_local(snapshot: Snapshot, told: Citation) -> float:
    """How many seconds the node's local time is ahead of the line's moment, as far as its date tells; else at most."""
    if (match := _ZONED.search(told.line)) is None:
        return 0.0
    items = (item for item in snapshot.items if (item.key, item.written) == (told.key, told.source))
    if not match["hours"] or not any(started.is_local(item, match["zone"]) for item in items):
        return _FARTHEST_ZONE_S
    offset = 3600.0 * int(match["hours"]) + 60.0 * int(match["minutes"] or 0)
    return -offset if match["sign"] == "-" else offset


def _yearless(at: float) -> float:
    return datetime.fromtimestamp(at, timezone.utc).replace(year=2000).timestamp()


def _slot(address: str) -> str:
    return address.rpartition(".")[0] or address


def _working(item: Item) -> Iterator[str]:
    bus = ""
    for line in item.lines:
        if match := _ROW.match(line) or _HEAD.match(line):
            bus = "" if _ERROR.search(line) else pci.address(match["bus"])
        elif bus and (_READS.match(line) or _TEMPERATURE.match(line)):
            if not _ERROR.search(line):
                yield bus
            bus = ""


def _when(item: Item) -> float | None:
    if (match := _WHEN.search(item.text)) is None:
        return None
    try:
        date = " ".join(match["date"].split())
        return datetime.strptime(date, "%a %b %d %H:%M:%S %Y").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None
