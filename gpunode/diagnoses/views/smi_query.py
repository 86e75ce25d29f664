"""What nvidia-smi knows of each GPU: ``-q`` whole, in part or as XML, and the CSV of ``--query-…``, as one tree.

A row is found by the names on the way to it, whatever a driver branch puts between them or calls them:
``value("Remapped Rows", "Pending")`` reads the section of ``-q``, the tag of ``-x`` and the column of the CSV.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from gpunode.diagnoses.commands import is_gpu
from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, find
from gpunode.diagnoses.views import pci
from gpunode.diagnoses.views.smi_numbers import Numbers, is_index, is_uuid, numbers
from gpunode.diagnoses.views.smi_rows import Row, at_home, parted, plain
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern

_BUS: Final = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]"
_GPU: Final = Pattern(rf"^GPU\s+(?:\d+\s*[:-]\s*)?(?P<bus>{_BUS})$")
_TAG: Final = Pattern(rf'^<(?P<name>[A-Za-z]\w*)(?: id="(?P<bus>{_BUS})")?[^<>]{{0,80}}>(?:(?P<value>[^<>]*)</)?')
_BUS_ID: Final = Pattern(rf"^{_BUS}$")
_HEAD_OF_CSV: Final = Pattern(r"^[a-z][\w.]*(?: \[[\w/ ]+\])?(?:,\s*[a-z][\w.]*(?: \[[\w/ ]+\])?)*$")
# How often a row was there, by uniq -c.
_COUNTED: Final = Pattern(r"^ {0,6}\d{1,7} {2,}(?=[A-Z])")
# What stands above the first GPU.
_HEAD: Final = frozenset({"timestamp", "driver version", "cuda version", "attached gpus", "cuda umd version"})
# Sections by which a piece is known in text that nobody gave a name.
_SECTIONS: Final = Pattern(
    r"^[ \t]*(?:Remapped Rows|Retired Pages|ECC Errors|E[Cc][Cc] Mode|MIG Mode|Fabric|GPU Link Info|"
    r"GPU Reset Status|Clocks (?:Throttle|Event) Reasons|BAR1 Memory Usage|(?:GPU )?Power Readings|"
    r"GPU Recovery Action[ \t]*:[^\n]*)\s*$",
    re.MULTILINE,
)
# A section that an option of -d shows alone; where its heading was not pasted, the option still names it.
_DISPLAYS: Final = {
    "ROW_REMAPPER": "Remapped Rows",
    "PAGE_RETIREMENT": "Retired Pages",
    "ECC": "ECC Errors",
    "POWER": "GPU Power Readings",
    "CLOCK": "Clocks",
    "TEMPERATURE": "Temperature",
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """What one answer says of one GPU.

    Attributes:
        bus: its PCI address as the kernel writes it (``0000:07:00.0``); empty where nothing on the node tells.
        called: its UUID, else the index or serial by which the command asked for it; empty where neither tells.
    """

    bus: str
    rows: tuple[Row, ...]
    citation: Citation
    called: str = ""

    @property
    def name(self) -> str:
        """By what a command names it: its address, where that is known; empty where it may be any of the node's."""
        return self.bus or self.called

    def find(self, *names: str) -> Row | None:
        """The first row that is called by the last of ``names`` and has the others above it, in that order."""
        return next(self.every(*names), None)

    def every(self, *names: str) -> Iterator[Row]:
        """All such rows: a piece without the GPUs' own lines holds those of several."""
        wanted = tuple(plain(name) for name in names)
        for row in self.rows:
            path = tuple(plain(name) for name in row.path)
            if path[-1:] == wanted[-1:] and _in_order(wanted[:-1], path[:-1]):
                yield row

    def value(self, *names: str) -> str:
        """The value of ``find``; empty where there is none."""
        return row.value if (row := self.find(*names)) else ""

    def number(self, *names: str) -> float | None:
        """The number at the start of the value; None where there is none, or it is N/A."""
        match = re.match(r"-?\d+(?:\.\d+)?", self.value(*names))
        return float(match[0]) if match else None


def answers(snapshot: Snapshot) -> tuple[tuple[Gpu, ...], ...]:
    """Every GPU of every answer on the node, answer by answer; see ``snapshot.view``."""
    told = (item for item in snapshot.items if item.where == "host" and not item.is_register)
    found = [(item, ones) for item in told if (ones := tuple(_of(item)))]
    numbers = _numbers(snapshot, [one for _, ones in found for one in ones])
    return tuple(tuple(_addressed(one, item, numbers) for one in ones) for item, ones in found)


def gpus(snapshot: Snapshot) -> tuple[Gpu, ...]:
    """Every GPU of every answer on the node, in the order of the evidence; see ``snapshot.view``."""
    return tuple(gpu for answer in snapshot.view(answers) for gpu in answer)


def rows(snapshot: Snapshot, *names: str) -> tuple[tuple[Gpu, Row], ...]:
    """The rows of these names of every GPU."""
    return tuple((gpu, row) for gpu in snapshot.view(gpus) for row in gpu.every(*names))


def is_yes(value: str) -> bool:
    """Whether a value says yes, in the words of any branch."""
    return value.strip().lower() in {"yes", "true", "1", "active", "enabled"}


def _in_order(wanted: tuple[str, ...], path: tuple[str, ...]) -> bool:
    left = iter(path)
    return all(any(name == one for one in left) for name in wanted)


# Where somebody may have put an answer without the command, into notes of his own.
_MAY_QUOTE: Final = frozenset({"text", "nvidia-smi", "file", "application"})


# Notes of several days are about one GPU, which was asked again.
_DATED: Final = Pattern(r"^[ \t]*\d{4}-\d\d-\d\d\b", re.MULTILINE)


def _of(item: Item) -> Iterator[Gpu]:
    if item.kind == "nvidia-smi-q" or (item.kind in _MAY_QUOTE and find(item, _SECTIONS)):
        is_one = not item.source.words and find(item, _DATED) is not None
        found = (one for gpu in _of_listing(item) for one in _apart(gpu, is_one=is_one))
        yield from (gpu for gpu in found if any(plain(row.path[-1]) not in _HEAD for row in gpu.rows))
    elif item.kind == "nvidia-smi" or (item.kind == "text" and "gpu" in item.text[:200]):
        yield from _of_csv(item)


def _apart(gpu: Gpu, *, is_one: bool) -> Iterator[Gpu]:
    """The GPUs that these rows are of; of rows in an order that is not nvidia-smi's, nobody knows whose they are."""
    if gpu.bus or is_one:
        yield replace(gpu, bus=gpu.bus or _own_bus(gpu))
        return
    placed = list[Row]()
    for row in gpu.rows:
        placed.append(at_home(row, placed))
    parts, is_in_order = parted(placed)
    for part in filter(None, parts):
        one = Gpu("", part, part[0].citation)
        yield replace(one, bus=_own_bus(one)) if is_in_order else one


def _own_bus(gpu: Gpu) -> str:
    value = gpu.value("Bus Id")
    return pci.address(value) if _BUS_ID.match(value) else ""


def _of_listing(item: Item) -> Iterator[Gpu]:
    """The GPUs of a listing: what is indented deeper belongs to the heading above it."""
    bus, first, found = "", 1, list[Row]()
    above, shown = list[tuple[int, str]](), _shown(item)
    for number, indent, text in _indented(item):
        if match := _GPU.match(text):
            if found:
                yield Gpu(bus, tuple(found), cite(item, first))
            bus, first, found, above = pci.address(match["bus"]), number, [], []
            continue
        name, _, value = (part.strip() for part in text.partition(":"))
        while above and above[-1][0] >= indent:
            above.pop()
        if value:
            path = (*(heading for _, heading in above if heading), name)
            is_placed = not shown or shown.lower() in map(str.lower, path)
            found.append(Row(path if is_placed else (shown, *path), value, cite(item, number)))
        # Below a value stands what has another heading, that was not pasted, or is a part of it, as of a process.
        above.append((indent, "" if value else name))
    if found:
        yield Gpu(bus, tuple(found), cite(item, first))


def _indented(item: Item) -> Iterator[tuple[int, int, str]]:
    """Each line's number, indentation and text; where all was lost, headings in a row nest, and hold until the next."""
    lines = [line for line in item.lines if line.strip() and not line.startswith("==")]
    is_flat = len(lines) > 1 and not any(line[0].isspace() for line in lines)
    depth, after_heading = 0, False
    for number, line in enumerate(item.lines, 1):
        whole = line.expandtabs()
        counted = _COUNTED.match(line)
        text = line[counted.end() if counted else 0 :].strip()
        if tag := _TAG.match(text):
            text = f"GPU {tag['bus']}" if tag["bus"] else f"{tag['name']}: {tag['value'] or ''}"
        if not text or text.startswith(("==", "--", "<")):
            continue
        is_heading = not text.partition(":")[2].strip()
        depth = depth if not is_heading else depth + 1 if after_heading else 0
        after_heading = is_heading
        yield number, depth + (not is_heading) if is_flat else len(whole) - len(whole.lstrip()), text


def _shown(item: Item) -> str:
    """The one section that ``-d`` asked for; empty where it asked for several or none."""
    words = item.source.words
    asked = next((words[at + 1] for at, word in enumerate(words[:-1]) if word in {"-d", "--display"}), "")
    return _DISPLAYS.get(asked.upper(), "") if "," not in asked else ""


def _of_csv(item: Item) -> Iterator[Gpu]:
    """The rows under a line of column names; without such a line the option that asked for them gives the names."""
    names = _asked(item)
    for number, line in enumerate(item.lines, 1):
        cells = [cell.strip() for cell in line.split(",")]
        if _HEAD_OF_CSV.match(line.strip()) and ("." in line or "_" in line or "index" in cells):
            names = [cell.split(" [")[0] for cell in cells]
        elif len(names) == len(cells) and any(cells):
            place = cite(item, number)
            named = dict(zip(names, cells, strict=True))
            bus = named.get("gpu_bus_id") or named.get("pci.bus_id") or ""
            found = tuple(Row(tuple(name.split(".")), value, place) for name, value in named.items())
            yield Gpu(pci.address(bus) if _BUS_ID.match(bus) else "", found, place)


def _asked(item: Item) -> list[str]:
    option = next((word for word in item.source.words if word.startswith("--query-")), "")
    asked = option.partition("=")[2]
    if option and not asked:
        words = item.source.words
        asked = next(iter(words[words.index(option) + 1 :]), "")
    return [name.strip() for name in asked.split(",") if name.strip()]


# --- which GPU it is -----------------------------------------------------------------------------------------------


def _numbers(snapshot: Snapshot, found: Iterable[Gpu]) -> Numbers:
    return numbers(snapshot, ((_index(gpu), gpu.value("GPU UUID"), gpu.bus) for gpu in found))


def _index(gpu: Gpu) -> str:
    """The GPU's own, of the CSV; -q counts instances so."""
    value = next((row.value for row in gpu.rows if row.path == ("index",)), "")
    return value if is_index(value) else ""


def _addressed(gpu: Gpu, item: Item, known: Numbers) -> Gpu:
    """The GPU by its own word, else by that of the command: an index or a UUID, followed to an address."""
    uuid = gpu.value("GPU UUID")
    words = (uuid if is_uuid(uuid) else "", _index(gpu), _asked_for(item))
    bus = gpu.bus or next((bus for word in words if word and (bus := known.address(word))), "")
    return replace(gpu, bus=bus, called=words[0] or words[2])


def _asked_for(item: Item) -> str:
    """The one GPU that the command asked for, as it is written there; empty where it asked for several, or for all."""
    words = item.source.words
    found = [after for word, after in pairwise(words) if word in {"-i", "--id"}]
    found += [word.partition("=")[2] for word in words if word.startswith("--id=")]
    found += [word[2:].lstrip("=") for word in words if re.match(r"-i=?\d", word)]
    return found[0] if len(found) == 1 and is_gpu(found[0]) else ""
