"""View the PCI bus: NVIDIA's functions and their drivers, from all output formats of lspci."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gpunode.catalog.gpus import GpuModel, find_model, is_nvswitch
from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, cite_fact
from gpunode.facts.items import EvidenceItem
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass

_PCI_FUNCTION_LINE: Final = Pattern(
    r"(?i)^(?P<address>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\s+(?P<class>[^:\[]+?)(?:\s*\[(?P<code>[0-9a-f]{4})\])?:"
    r"\s+(?P<name>.*)$"
)
_VENDOR_AND_DEVICE_ID: Final = Pattern(r"(?i)\[(?P<vendor>[0-9a-f]{4}):(?P<device>[0-9a-f]{4})\]")
# A device that is not in pci.ids yet: "NVIDIA Corporation Device 2b85 (rev a1)".
_UNNAMED_NVIDIA_DEVICE: Final = Pattern(r"(?i)NVIDIA Corporation Device (?P<device>[0-9a-f]{4})\b")
# The machine-readable format of lspci -vmm; "Physical Slot:" is a detail of lspci -v.
_LSPCI_MACHINE_READABLE: Final = Pattern(r"(?m)^Slot:")
_NVSWITCH_NAME: Final = Pattern(r"(?i)NVSwitch")
_GPU_CLASS_NAME: Final = Pattern(r"(?i)VGA|3D|Display")


@dataclass(frozen=True, slots=True)
class PciFunction:
    """A PCI function of an NVIDIA device.

    Attributes:
        address: with its domain, in lower case (``0000:01:00.0``).
        device: its id, four hex digits; empty if lspci was run without -n.
        driver: the bound kernel driver; None if there is none or lspci did not show drivers.
        detail: the indented lines below it, as printed by ``lspci -v``.
    """

    address: str
    device: str
    name: str
    class_name: str
    driver: str | None
    shows_driver: bool
    detail: tuple[str, ...]
    citation: Citation

    @property
    def is_gpu(self) -> bool:
        """True if it is a display or 3D controller."""
        return bool(_GPU_CLASS_NAME.search(self.class_name)) or self.class_name.startswith("03")

    @property
    def is_switch(self) -> bool:
        """True if it is an NVSwitch."""
        return bool(_NVSWITCH_NAME.search(self.name)) or (bool(self.device) and is_nvswitch(self.device))

    @property
    def model(self) -> GpuModel | None:
        """The model in the catalog; None without an id."""
        return find_model(self.device) if self.device and self.is_gpu else None


def nvidia_functions(snapshot: Snapshot) -> tuple[PciFunction, ...]:
    """Return NVIDIA's functions, each once with its most complete description."""
    best: dict[str, PciFunction] = {}
    for found in _find_functions(snapshot):
        before = best.get(found.address)
        if before is None or _rank_by_detail(found) > _rank_by_detail(before):
            best[found.address] = found
    return tuple(best[address] for address in sorted(best))


def pci_gpus(snapshot: Snapshot) -> tuple[PciFunction, ...]:
    """Return the GPUs on the bus."""
    return tuple(found for found in snapshot.view(nvidia_functions) if found.is_gpu)


def has_gpu(snapshot: Snapshot) -> bool | None:
    """Return whether a GPU is on the bus; None if unknown."""
    if snapshot.view(pci_gpus) or snapshot.contains(_OTHER_TOOL_PCI_LISTING):
        return True
    return False if is_bus_listed(snapshot) else None


# Other programs that list hardware: inxi, lshw, hwinfo.
_OTHER_TOOL_PCI_LISTING: Final = Pattern(
    r"(?m)Device-\d+: NVIDIA |^[ \t]*vendor: NVIDIA Corporation|Vendor: pci 0x10de|^[ \t]*Graphics: .*\bNVIDIA\b"
)


def nvswitches(snapshot: Snapshot) -> tuple[PciFunction, ...]:
    """Return the NVSwitches on the bus."""
    return tuple(found for found in snapshot.view(nvidia_functions) if found.is_switch)


def is_bus_listed(snapshot: Snapshot) -> bool:
    """Return whether the bus was listed in a way that would have shown an NVIDIA GPU."""
    if isinstance(snapshot.facts.devices, Known):
        return True
    shown = Pattern(r"(?i)nvidia|10de|vga|3d|display")
    # A missing program or a timeout lists nothing.
    whole = (item.source for item in snapshot.items_of("lspci") if item.outcome == "ok" and not item.source.is_part)
    return any((not source.pattern or shown.search(source.pattern)) and "-s" not in source.words for source in whole)


def normalize_address(text: str) -> str:
    """Return a PCI address in the kernel's form: domain of four digits, function, lower case."""
    text = text.strip().lower()
    text = text if text.count(":") == 2 else f"0000:{text}"
    domain, _, rest = text.partition(":")
    return f"{domain[-4:].rjust(4, '0')}:{rest if '.' in rest else rest + '.0'}"


def _rank_by_detail(function: PciFunction) -> tuple[bool, bool, int]:
    return bool(function.device), function.shows_driver, len(function.detail)


def _find_functions(snapshot: Snapshot) -> Iterator[PciFunction]:
    devices = snapshot.facts.devices
    if isinstance(devices, Known):
        for one in devices.value:
            if one.vendor == "10de":
                said = f"{one.address} [10de:{one.device}] driver: {one.driver or 'none'}"
                place = cite_fact("lspci", said, devices.probe)
                yield PciFunction(one.address, one.device, one.name, one.class_code, one.driver, True, (), place)
    for item in snapshot.items_of("lspci"):
        if not _LSPCI_MACHINE_READABLE.search(item.text):
            yield from (found for found in parse_lspci(item) if is_nvidia(found))


def is_nvidia(function: PciFunction) -> bool:
    """Return whether NVIDIA made the device."""
    match = _VENDOR_AND_DEVICE_ID.search(function.name)
    return "nvidia" in function.name.lower() or bool(match and match["vendor"].lower() == "10de")


def parse_lspci(item: EvidenceItem) -> Iterator[PciFunction]:
    """Yield every function in the output of lspci, of any vendor."""
    head: re.Match[str] | None = None
    start, detail = 0, list[str]()
    shows_driver = bool(re.search(r"Kernel (?:driver in use|modules):", item.text))
    for number, line in enumerate(item.lines, 1):
        match = None if line[:1].isspace() else _PCI_FUNCTION_LINE.match(line)
        if match is None:
            detail.append(line)
            continue
        if head is not None:
            yield _parse_function(item, head, start, tuple(detail), shows_driver=shows_driver)
        head, start, detail = match, number, []
    if head is not None:
        yield _parse_function(item, head, start, tuple(detail), shows_driver=shows_driver)


def _parse_function(
    item: EvidenceItem, head: re.Match[str], line_number: int, detail: tuple[str, ...], *, shows_driver: bool
) -> PciFunction:
    name = head["name"]
    match = _VENDOR_AND_DEVICE_ID.search(name) or _UNNAMED_NVIDIA_DEVICE.search(name)
    drivers = [line.partition(":")[2].strip() for line in detail if "Kernel driver in use:" in line]
    return PciFunction(
        normalize_address(head["address"]),
        match["device"].lower() if match else "",
        name,
        head["code"] or head["class"],
        drivers[0] if drivers else None,
        shows_driver,
        detail,
        cite(item, line_number),
    )
