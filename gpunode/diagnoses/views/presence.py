"""What of the driver is on the node, and what is missing: by complaints, and by what was looked for in vain."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, lines_with, stated
from gpunode.diagnoses.views import driver, loader, modules, packages
from gpunode.facts.items import Item
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import Kind

_NO_LIBRARY: Final = Pattern(
    r"(?:load library failed: )?lib(?:nvidia-ml|cuda)\.so(?:\.1)?: cannot open shared object"
    r"|couldn.t find libnvidia-ml\.so|could not load NVML library|Could not load dynamic library 'libcuda\.so"
    r"|NVML(?:Error_LibraryNotFound|_ERROR_LIBRARY_NOT_FOUND| Shared Library Not Found)|ERROR_LIBRARY_NOT_FOUND",
    re.IGNORECASE,
)
_NO_MODULE: Final = Pattern(
    r"modinfo: ERROR: Module (?:nvidia\S*) not found|modprobe: FATAL: Module (?:nvidia\S*) not found"
)
_ON_NODE: Final[frozenset[Kind]] = frozenset(
    {"nvidia-container-cli", "nvidia-smi", "nvidia-ctk", "unit-log", "unit-status", "journal", "text"}
)
_LIBRARIES: Final = Pattern(r"lib(?:nvidia-ml|cuda)\.so")


def missing(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The lines by which the node itself lacks nvidia-smi or the libraries."""
    states = tuple(citation for state, citation in snapshot.view(driver.smi) if state == "missing")
    which = (item for item in snapshot.of("which") if item.subject == "nvidia-smi" and item.where == "host")
    states += tuple(cite(item) for item in which if item.outcome == "absent" or not item.text.strip())
    said = tuple(
        citation
        for item in snapshot.items
        if item.where == "host" and item.is_seen and _asks_on_node(item)
        for citation in lines_with(item, _NO_LIBRARY)
    )
    return (*states, *said)


def _asks_on_node(item: Item) -> bool:
    """Whether what it says of libraries is about the node: the engine's hook looks there, a program inside does not."""
    if item.kind in {"container-run", "kubernetes-pod", "kubernetes"}:
        return "nvidia-container-cli" in item.text or "nvidia-container-runtime" in item.text
    return item.kind in _ON_NODE


def kernel_side(snapshot: Snapshot) -> tuple[Citation, ...]:
    """What shows that the kernel side is here: it is loaded, on disk, or packaged."""
    if modules.loaded(snapshot, "nvidia"):
        return modules.lsmod_line(snapshot, "nvidia")
    if (seen := driver.loaded(snapshot)) is not None:
        return (seen.citation,)
    disk = driver.on_disk(snapshot)
    found = tuple(one.citation for one in (*driver.kernel_side(snapshot), *driver.headless(snapshot)))
    return (*((disk.citation,) if disk else ()), *found)


def has_libraries(snapshot: Snapshot) -> bool:
    """Whether the driver's libraries are on the node."""
    return bool(driver.libraries(snapshot)) or any(one.sort == "driver" for one in snapshot.view(loader.loaded))


def absent(snapshot: Snapshot) -> tuple[Citation, ...]:
    """What was looked for and is not there: libraries in the loader's cache, the module, packages."""
    return tuple(_looked_for(snapshot))


def _looked_for(snapshot: Snapshot) -> Iterator[Citation]:
    for item in snapshot.items:
        if item.where != "host" or not item.is_seen:
            continue
        whole = not item.source.is_part and (not item.source.only or re.search(r"nvidia|cuda", item.source.only))
        if item.kind == "ldconfig" and whole and not _LIBRARIES.search(item.text):
            yield stated(item.written, "neither libnvidia-ml nor libcuda is among them", item.key)
        elif item.kind == "modinfo" and _NO_MODULE.search(item.text):
            yield cite(item, 1)
        elif item.kind == "packages" and whole and not any(packages.is_drivers_row(line) for line in item.lines):
            yield stated(item.written, "no package of a driver is among them", item.key)
    listed = [item for item in snapshot.of("lsmod") if item.where == "host"]
    if listed and modules.loaded(snapshot, "nvidia") is False:
        yield from modules.lsmod_line(snapshot, "nvidia")
    known = snapshot.facts.packages
    if isinstance(known, Known) and not driver.packaged(snapshot):
        yield stated("/var/lib/dpkg/status", "no package of a driver is installed", known.probe)
