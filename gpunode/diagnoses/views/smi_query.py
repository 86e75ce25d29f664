"""View nvidia-smi's details of each GPU as one tree: ``-q``, XML, and the CSV of ``--query-…``.

A row is found by the names on its path, whatever a driver branch inserts between them or calls them:
``value("Remapped Rows", "Pending")`` reads the section of ``-q``, the tag of ``-x`` and the column of the CSV.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Final

from gpunode.diagnoses.commands import is_gpu_id
from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, find_first
from gpunode.diagnoses.views import pci
from gpunode.facts.items import EvidenceItem
from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass

_BUS: Final = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]"
_GPU_HEADING: Final = Pattern(rf"^GPU\s+(?:\d+\s*[:-]\s*)?(?P<bus>{_BUS})$")
_XML_TAG: Final = Pattern(rf'^<(?P<name>[A-Za-z]\w*)(?: id="(?P<bus>{_BUS})")?[^<>]{{0,80}}>(?:(?P<value>[^<>]*)</)?')
_PCI_ADDRESS_ONLY: Final = Pattern(rf"^{_BUS}$")
_GPU_UUID: Final = Pattern(r"^GPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$")
_GPU_INDEX: Final = Pattern(r"^[0-9]{1,3}$")
_CSV_HEADER_LINE: Final = Pattern(r"^[a-z][\w.]*(?: \[[\w/ ]+\])?(?:,\s*[a-z][\w.]*(?: \[[\w/ ]+\])?)*$")
# Rows above the first GPU.
_ANSWER_HEADER_NAMES: Final = frozenset(
    {"timestamp", "driver version", "cuda version", "attached gpus", "cuda umd version"}
)
# Sections that identify nvidia-smi's output in text of unknown origin.
_SECTION_HEADING: Final = Pattern(
    r"(?m)^[ \t]*(?:Remapped Rows|Retired Pages|ECC Errors|E[Cc][Cc] Mode|MIG Mode|Fabric|GPU Link Info|"
    r"GPU Reset Status|Clocks (?:Throttle|Event) Reasons|BAR1 Memory Usage|(?:GPU )?Power Readings|"
    r"GPU Recovery Action[ \t]*:[^\n]*)\s*$"
)
# The various names in branches, XML and CSV, each mapped to the current name in -q.
_CANONICAL_ROW_NAMES: Final = {
    "clocks throttle reasons": "clocks event reasons",
    "remapping failure occured": "remapping failure occurred",
    "remapped row corr": "correctable error",
    "remapped row unc": "uncorrectable error",
    "remapped row pending": "pending",
    "remapped row failure": "remapping failure occurred",
    "failure": "remapping failure occurred",
    "pending blacklist": "pending page blacklist",
    "pending retirement": "pending page blacklist",
    "gpu bus id": "bus id",
    "pci bus id": "bus id",
    "uuid": "gpu uuid",
    "power readings": "gpu power readings",
    "current mig": "current",
    "pending mig": "pending",
}
# Columns of the CSV with another name in -q.
_ROW_NAME_BY_COLUMN: Final = {
    "link.width": "Link Width", "link.gen": "PCIe Generation", "mig.mode": "MIG Mode",
    "power.default_limit": "Default Power Limit", "enforced.power.limit": "Enforced Power Limit",
    "power.limit": "Power Limit",
}  # fmt: skip
# Rows that nvidia-smi prints for a GPU before its bus id.
_ROW_NAMES_BEFORE_BUS_ID: Final = frozenset(
    {
        "product name",
        "serial number",
        "gpu uuid",
        "reset required",
        "drain and reset recommended",
        "gpu recovery action",
    }
)


@dataclass(frozen=True, slots=True)
class SmiRow:
    """A value and the names on its path, outermost first, its own last."""

    path: tuple[str, ...]
    value: str
    citation: Citation

    @property
    def name(self) -> str:
        """The normalized last name of the path."""
        return normalize_name(self.path[-1])


@dataclass(frozen=True, slots=True)
class SmiGpu:
    """The rows about one GPU in one output.

    Attributes:
        pci_address: PCI address in the kernel's form (``0000:07:00.0``); empty if unknown.
        uuid_or_index: UUID, else index or serial; empty if unknown.
    """

    pci_address: str
    rows: tuple[SmiRow, ...]
    uuid_or_index: str = ""

    @property
    def name(self) -> str:
        """The name for commands: the address if known; empty if it may be any GPU of the node."""
        return self.pci_address or self.uuid_or_index

    def find_row(self, *names: str) -> SmiRow | None:
        """Return the first row named like the last of ``names``, below the others in that order."""
        return next(self.find_rows(*names), None)

    def find_rows(self, *names: str) -> Iterator[SmiRow]:
        """Yield all such rows; an excerpt without GPU headings contains rows of several GPUs."""
        wanted = tuple(normalize_name(name) for name in names)
        for row in self.rows:
            if row.name == wanted[-1] and _occur_in_order(wanted[:-1], row.path[:-1]):
                yield row

    def value(self, *names: str) -> str:
        """Return the value of ``find_row``; empty if there is none."""
        return row.value if (row := self.find_row(*names)) else ""

    def number(self, *names: str) -> float | None:
        """Return the number at the start of the value; None if there is none, or it is N/A."""
        match = re.match(r"-?\d+(?:\.\d+)?", self.value(*names))
        return float(match[0]) if match else None


@lru_cache(maxsize=4096)
def normalize_name(name: str) -> str:
    """Return the common name for the names in all branches, the XML and the CSV."""
    words = " ".join(name.replace("_", " ").lower().split())
    return _CANONICAL_ROW_NAMES.get(words, words)


def smi_answers(snapshot: Snapshot) -> tuple[tuple[SmiGpu, ...], ...]:
    """Return the GPUs of each nvidia-smi output on the node, output by output; see ``snapshot.view``."""
    items = (item for item in snapshot.items if item.where == "host" and not item.is_package_record)
    return tuple(gpus for item in items if (gpus := tuple(_parse_item(item))))


def smi_gpus(snapshot: Snapshot) -> tuple[SmiGpu, ...]:
    """Return the GPUs of all nvidia-smi outputs on the node, in the order of the evidence; see ``snapshot.view``."""
    return tuple(gpu for answer in snapshot.view(smi_answers) for gpu in answer)


def find_rows(snapshot: Snapshot, *names: str) -> tuple[tuple[SmiGpu, SmiRow], ...]:
    """Return the rows with these names, of every GPU."""
    return tuple((gpu, row) for gpu in snapshot.view(smi_gpus) for row in gpu.find_rows(*names))


def is_yes(value: str) -> bool:
    """Return whether a value means yes, in the wording of any branch."""
    return value.strip().lower() in {"yes", "true", "1", "active", "enabled"}


def _occur_in_order(wanted: tuple[str, ...], path: tuple[str, ...]) -> bool:
    left = iter(map(normalize_name, path))
    return all(any(name == one for one in left) for name in wanted)


# Kinds in which a person may have pasted the output without its command.
_KINDS_THAT_MAY_QUOTE_ANSWERS: Final = frozenset({"text", "nvidia-smi", "file", "application"})


def _parse_item(item: EvidenceItem) -> Iterator[SmiGpu]:
    gpus: Iterator[SmiGpu]
    if item.kind == "nvidia-smi-q" or (
        item.kind in _KINDS_THAT_MAY_QUOTE_ANSWERS and find_first(item, _SECTION_HEADING)
    ):
        gpus = (part for gpu in _parse_listing(item) for part in ([gpu] if gpu.pci_address else _split_by_gpu(gpu)))
        gpus = (gpu for gpu in gpus if any(row.name not in _ANSWER_HEADER_NAMES for row in gpu.rows))
    elif item.kind == "nvidia-smi" or (item.kind == "text" and "gpu" in item.text[:200]):
        gpus = _parse_csv(item)
    else:
        return
    for gpu in gpus:
        uuid = gpu.value("GPU UUID")
        # The CSV's own column; in -q an index numbers instances.
        indices = (row.value for row in gpu.rows if row.path == ("index",) and _GPU_INDEX.match(row.value))
        yield replace(gpu, uuid_or_index=uuid if _GPU_UUID.match(uuid) else _requested_gpu(item) or next(indices, ""))


def _split_by_gpu(gpu: SmiGpu) -> Iterator[SmiGpu]:
    """Yield the rows GPU by GPU, for output whose headings grep removed.

    The rows after a bus id belong to that GPU. Rows that nvidia-smi prints before the bus id are not attributed: output
    that begins in the middle of a GPU would attribute them to the previous one.
    """
    bus, part, names = "", list[SmiRow](), set[tuple[str, ...]]()
    for row in gpu.rows:
        is_next = row.name == "bus id" or row.path in names or (bus and row.name in _ROW_NAMES_BEFORE_BUS_ID)
        if is_next and part:
            yield SmiGpu(bus, tuple(part))
            bus, part, names = "", [], set()
        if row.name == "bus id" and _PCI_ADDRESS_ONLY.match(row.value):
            bus = pci.normalize_address(row.value)
        part.append(row)
        names.add(row.path)
    yield SmiGpu(bus, tuple(part))


def _parse_listing(item: EvidenceItem) -> Iterator[SmiGpu]:
    """Yield the GPUs of a listing, in which deeper indentation means below the heading above."""
    bus, found = "", list[SmiRow]()
    above = list[tuple[int, str]]()
    for number, indent, text in _indented_lines(item):
        if match := _GPU_HEADING.match(text):
            if found:
                yield SmiGpu(bus, tuple(found))
            bus, found, above = pci.normalize_address(match["bus"]), [], []
            continue
        name, _, value = (part.strip() for part in text.partition(":"))
        while above and above[-1][0] >= indent:
            above.pop()
        if value:
            headings = tuple(heading for _, heading in above if heading) or _guess_heading(name, value, found)
            found.append(SmiRow((*headings, name), value, cite(item, number)))
        # Lines below a value lack their own heading, which was not pasted, or are details of it, as for a process.
        above.append((indent, "" if value else name))
    if found:
        yield SmiGpu(bus, tuple(found))


def _guess_heading(name: str, value: str, before: list[SmiRow]) -> tuple[str, ...]:
    """Return the heading of a memory row that was pasted without it."""
    own = normalize_name(name)
    # MIG and ECC modes also have a pending row, but its value is a mode.
    if own in {"pending", "remapping failure occurred"} and value.lower() in {"yes", "no"}:
        # Old drivers call the blacklist of pages "pending".
        return ("Retired Pages",) if before and before[-1].name == "double bit ecc" else ("Remapped Rows",)
    return ("Retired Pages",) if own in {"single bit ecc", "double bit ecc", "pending page blacklist"} else ()


def _indented_lines(item: EvidenceItem) -> Iterator[tuple[int, int, str]]:
    """Yield each line's number, indentation and text; an XML tag is converted to the corresponding line of -q."""
    for number, line in enumerate(item.lines, 1):
        whole, text = line.expandtabs(), line.strip()
        if tag := _XML_TAG.match(text):
            text = f"GPU {tag['bus']}" if tag["bus"] else f"{tag['name']}: {tag['value'] or ''}"
        if text and not text.startswith(("==", "--", "<")):
            yield number, len(whole) - len(whole.lstrip()), text


def _parse_csv(item: EvidenceItem) -> Iterator[SmiGpu]:
    """Yield the rows below a line of column names, or with the columns that the command requested."""
    names = _queried_columns(item)
    for number, line in enumerate(item.lines, 1):
        cells = [cell.strip() for cell in line.split(",")]
        if _CSV_HEADER_LINE.match(line.strip()) and ("." in line or "_" in line or "index" in cells):
            names = [cell.split(" [")[0] for cell in cells]
        elif len(names) == len(cells) and any(cells):
            place = cite(item, number)
            named = dict(zip(names, cells, strict=True))
            bus = named.get("gpu_bus_id") or named.get("pci.bus_id") or ""
            gpu_rows = tuple(SmiRow(_column_path(name), value, place) for name, value in named.items())
            yield SmiGpu(pci.normalize_address(bus) if _PCI_ADDRESS_ONLY.match(bus) else "", gpu_rows)


def _column_path(column: str) -> tuple[str, ...]:
    for name, same in _ROW_NAME_BY_COLUMN.items():
        column = column.replace(name, same)
    return tuple(column.split("."))


def _queried_columns(item: EvidenceItem) -> list[str]:
    """Return the columns of ``--query-…``."""
    match = re.search(r"--query-[\w-]+[= ]['\"]?(?P<names>[\w.,]+)", item.written)
    return match["names"].strip(",").split(",") if match else []


def _requested_gpu(item: EvidenceItem) -> str:
    """Return the single GPU that the command named; empty if several or all."""
    words = item.source.words
    option_values = [after for word, after in pairwise(words) if word in {"-i", "--id"}]
    option_values += [word.partition("=")[2] for word in words if word.startswith("--id=")]
    option_values += [word[2:].lstrip("=") for word in words if re.match(r"-i=?\d", word)]
    return option_values[0] if len(option_values) == 1 and is_gpu_id(option_values[0]) else ""
