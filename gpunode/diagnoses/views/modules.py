"""Kernel modules: which are loaded, which stand on disk, for which kernel, in which version and under what licence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.facts.items import Item
from gpunode.facts.model import Known

_ROW: Final = re.compile(r"^\s*(?P<name>[a-z]\w*)\s+\d+\s+\d+\b")
_FIELD: Final = re.compile(r"^\s*([\w-]+):\s+(.*)$", re.MULTILINE)
_DKMS: Final = re.compile(
    r"^\s*(?P<module>[\w.+-]+)(?:/|, )\s*(?P<version>[^,:\s]+)"
    r"(?:,\s*(?P<kernel>[^,:\s]+),\s*(?P<arch>\w+))?:\s*(?P<state>added|built|installed|broken)(?P<rest>.*)$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class DkmsRow:
    """A line of ``dkms status``.

    Attributes:
        kernel: empty where the module is only added.
        remark: what stands behind the state, such as a warning that the file differs.
    """

    module: str
    version: str
    kernel: str
    state: str
    remark: str
    citation: Citation


@dataclass(frozen=True, slots=True)
class Modinfo:
    """What modinfo said of a module; a field that it did not print is empty."""

    module: str
    filename: str
    version: str
    license: str
    signer: str
    vermagic: str
    citation: Citation

    @property
    def is_open(self) -> bool | None:
        """Whether it is of NVIDIA's open modules; None where the licence was not printed."""
        return None if not self.license else "GPL" in self.license


def loaded(snapshot: Snapshot, name: str) -> bool | None:
    """Whether the kernel module ``name`` is loaded; None where nothing tells."""
    present, tables = snapshot.view(_seen)
    if name in present:
        return True
    if isinstance(snapshot.facts.modules, Known):
        return name in snapshot.facts.modules.value
    # A table that was not cut, or whose pattern would have let the name through, says by silence that it is not there.
    return False if any(_would_show(item, name) for item in tables) else None


def _would_show(item: Item, name: str) -> bool:
    if item.source.is_part:
        return False
    if not item.source.only:
        # People paste the lines that they find telling: only the table's head or a probe shows that it is whole.
        return item.text.lstrip().startswith("Module")
    try:
        return re.search(item.source.only, name, re.IGNORECASE) is not None
    except re.error:
        return item.source.only in name


def _seen(snapshot: Snapshot) -> tuple[frozenset[str], tuple[Item, ...]]:
    tables = tuple(item for item in snapshot.of("lsmod") if item.where == "host")
    names = {match["name"] for item in tables for line in item.lines if (match := _ROW.match(line))}
    known = snapshot.facts.modules.value if isinstance(snapshot.facts.modules, Known) else frozenset[str]()
    return frozenset(names) | known, tables


def lsmod_line(snapshot: Snapshot, name: str) -> tuple[Citation, ...]:
    """The line of ``name`` in the table of loaded modules; else the table itself, whose silence is the proof."""
    for item in snapshot.of("lsmod"):
        for number, line in enumerate(item.lines, 1):
            if (match := _ROW.match(line)) and match["name"] == name:
                return (cite(item, number),)
    return tuple(Citation(item.written, f"({name} is not among them)", None, item.key) for item in snapshot.of("lsmod"))


def dkms(snapshot: Snapshot) -> tuple[DkmsRow, ...]:
    """The lines of ``dkms status``."""
    return tuple(_dkms_rows(snapshot))


def _dkms_rows(snapshot: Snapshot) -> Iterator[DkmsRow]:
    for item in snapshot.of("dkms-status", "dkms-output", "text"):
        for number, line in enumerate(item.lines, 1):
            if match := _DKMS.match(line):
                yield DkmsRow(
                    match["module"],
                    match["version"],
                    match["kernel"] or "",
                    match["state"],
                    match["rest"].strip(),
                    cite(item, number),
                )


def modinfo(snapshot: Snapshot) -> tuple[Modinfo, ...]:
    """What modinfo said, module by module."""
    return tuple(_modinfo(item) for item in snapshot.of("modinfo") if item.outcome == "ok" and item.text.strip())


def _modinfo(item: Item) -> Modinfo:
    words = item.source.words
    asked = words[words.index("-F") + 1] if "-F" in words[:-1] else ""
    fields = {name.lower(): value.strip() for name, value in reversed(_FIELD.findall(item.text))}
    if asked and asked not in fields:
        fields[asked] = item.text.strip().splitlines()[0]
    name = item.subject if item.subject != asked else words[-1]
    return Modinfo(
        name.rsplit("/", 1)[-1].split(".ko")[0].replace("-", "_"),
        fields.get("filename", ""),
        fields.get("version", ""),
        fields.get("license", ""),
        fields.get("signer", ""),
        fields.get("vermagic", ""),
        cite(item, 1),
    )
