"""The machine: what is on its PCI bus, by count and by slot, its links, its firmware, and how its GPUs are set."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Final

from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.traits.model import (
    Lack,
    Pair,
    Reading,
    Trait,
    always,
    asked,
    by_name,
    each,
    hidden,
    lack_of,
    lack_of_answer,
    lack_of_any,
    lack_of_fact,
    named,
    part,
    whole,
)
from gpunode.diagnoses.views import boards, driver, links, pci, smi_query
from gpunode.diagnoses.views.inventory import inventory
from gpunode.facts import nvml
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern

_VENDORS: Final = {"10de": "NVIDIA", "15b3": "Mellanox"}
# Network, display, bridge, accelerator: the classes of what is compared, by number and in lspci's words.
_CLASSES: Final = frozenset({"02", "03", "06", "12"})
_CLASS_WORDS: Final = Pattern(r"bridge|accelerator|ethernet|network|infiniband", re.IGNORECASE)
# What lspci puts around a device's own name.
_AROUND: Final = Pattern(
    r"^NVIDIA Corporation\s+|\s*\[[0-9a-f]{4}:[0-9a-f]{4}\]|\s*\((?:rev|prog-if) [^)\n]*\)", re.IGNORECASE
)

GONE: Final = "a GPU, NVSwitch or bridge more or less: one has fallen off the bus, or was never there"
FEWER: Final = "the driver has other GPUs than there"


@dataclass(frozen=True, slots=True)
class _Device:
    """A function on the bus.

    Attributes:
        id: vendor and device (``10de:20b0``); empty where lspci was run without -n.
        name: the device's own, without what lspci puts around it.
        driver: empty where that was not shown.
    """

    address: str
    id: str
    name: str
    driver: str
    is_gpu: bool


def _devices_of(snapshot: Snapshot) -> tuple[_Device, ...]:
    fact = snapshot.facts.devices
    others = fact.value if isinstance(fact, Known) else ()
    cards = (one for one in others if one.vendor == "15b3" and one.class_code[:2] in _CLASSES)
    return (
        *(_of_nvidia(one) for one in snapshot.view(pci.functions) if _is_compared(one)),
        *(_Device(one.address, f"15b3:{one.device}", one.name, one.driver or "none", False) for one in cards),
    )


def _of_nvidia(one: pci.Function) -> _Device:
    shown = (one.driver or "none") if one.shows_driver else ""
    return _Device(one.address, one.device and f"10de:{one.device}", _AROUND.sub("", one.name), shown, one.is_gpu)


def _is_compared(one: pci.Function) -> bool:
    if one.is_gpu or one.is_switch or one.kind[:2] in _CLASSES:
        return True
    return bool(_CLASS_WORDS.search(one.kind))


def _devices(good: Snapshot, bad: Snapshot) -> Pair:
    """Each kind by its count; the slots, too, where the two machines have theirs at the same places."""
    before, after = _devices_of(good), _devices_of(bad)
    label = _labels((*before, *after))
    slots = _unlike_slots(_slots_of(before), _slots_of(after))
    # A driver is of a device: where that is missing, this is all that there is to say.
    both = {label(one) for one in before} & {label(one) for one in after}
    return _on_bus(good, before, label, slots, both), _on_bus(bad, after, label, slots, both)


def _on_bus(
    snapshot: Snapshot, devices: tuple[_Device, ...], label: Callable[[_Device], str], slots: frozenset[str],
    both: set[str],
) -> Reading:  # fmt: skip
    found = {name: f"{number} ×" for name, number in Counter(map(label, devices)).items()}
    found |= {f"GPU at {one.address}": label(one) for one in devices if one.address in slots}
    for name in both:
        drivers = {one.driver for one in devices if label(one) == name}
        if "" not in drivers:
            found[f"driver of {name}"] = ", ".join(sorted(drivers))
    lack = _lack_on_bus(snapshot)
    other = lack_of_fact(snapshot, snapshot.facts.devices)

    def lacks(name: str) -> Lack:
        if name.startswith("driver of "):
            return "not asked"
        return other if "15b3:" in name else lack

    return Reading(found, lacks)


def _lack_on_bus(snapshot: Snapshot) -> Lack:
    """Why a device of NVIDIA's that is not listed may be there all the same; empty where it is not."""
    fact = snapshot.facts.devices
    if isinstance(fact, Known):
        return "" if fact.value else "not asked"
    if pci.is_listed(snapshot):
        return ""
    answers = asked(snapshot, "lspci")
    return lack_of_any(answers) if answers else lack_of_fact(snapshot, fact)


def _labels(devices: tuple[_Device, ...]) -> Callable[[_Device], str]:
    """What each kind is called on both nodes, be it that only one of the two shows its id, or its name."""
    ids: dict[str, set[str]] = {}
    names: dict[str, str] = {}
    for one in devices:
        if one.id:
            ids.setdefault(one.name, set()).add(one.id)
            names[one.id] = max(names.get(one.id, ""), one.name, key=lambda name: (len(name), name))

    def label(one: _Device) -> str:
        known = ids.get(one.name, set())
        kind = one.id or (next(iter(known)) if len(known) == 1 else "")
        name = (names.get(kind) or one.name) or _VENDORS.get(kind[:4], "")
        return f"{name} [{kind}]" if kind else name

    return label


def _slots_of(devices: tuple[_Device, ...]) -> frozenset[str]:
    return frozenset(one.address for one in devices if one.is_gpu)


def _unlike_slots(there: frozenset[str], here: frozenset[str]) -> frozenset[str]:
    """The slots that have a GPU on one of two machines whose GPUs are at the same places otherwise."""
    return frozenset(there ^ here) if there & here and (there < here or here < there) else frozenset()


_DEVICE: Final = by_name(
    (r"^driver of", "likely", "only the GPU's own driver can use it"),
    (r"15b3:", "possible", "another network card: its firmware and driver carry GPUDirect RDMA"),
    (r"", "likely", GONE),
)


def _counted(values: Counter[str]) -> str:
    """What most have first."""
    in_order = sorted(values.items(), key=lambda row: (-row[1], row[0]))
    return ", ".join(f"{number} × {value}" for value, number in in_order)


def _tallied(good: Mapping[str, Counter[str]], bad: Mapping[str, Counter[str]], lacks: tuple[Lack, Lack]) -> Pair:
    """What is said of so and so many GPUs; that there are fewer of them is no difference of what is said of each."""
    same = {name for name in good.keys() & bad.keys() if good[name].keys() == bad[name].keys()
            and (good[name] <= bad[name] or bad[name] <= good[name])}  # fmt: skip
    before, after = ({name: _counted(one) for name, one in side.items() if name not in same} for side in (good, bad))
    seen = dict.fromkeys(same, "as there")
    return part({**before, **seen}, lacks[0]), part({**after, **seen}, lacks[1])


def _links(good: Snapshot, bad: Snapshot) -> Pair:
    """Widths, and the speeds that the devices are capable of; the present speed hangs on what the GPU does."""
    return _tallied(_links_of(good), _links_of(bad), (_lack_of_links(good), _lack_of_links(bad)))


def _lack_of_links(snapshot: Snapshot) -> Lack:
    return lack_of_any(item for item in snapshot.items if "_link_" in item.written)


def _links_alone(snapshot: Snapshot) -> Mapping[str, str]:
    return {name: _counted(values) for name, values in _links_of(snapshot).items()}


def _links_of(snapshot: Snapshot) -> Mapping[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    # Of a GPU that several tools tell of, the first one's word.
    of_each: dict[tuple[str, str], str] = {}
    for number, link in enumerate(snapshot.view(links.links)):
        shared = "widest with its slot" if link.is_of_both else "widest"
        fastest = "fastest with its slot" if link.is_of_both else "fastest"
        told = (("link width", link.width), (shared, link.widest), (fastest, link.newest))
        for name, value in told:
            if value is not None:
                place = name, link.address or str(number)
                of_each.setdefault(place, f"PCIe {value}" if name == fastest else str(value))
    for (name, _), shown in of_each.items():
        found.setdefault(name, Counter())[shown] += 1
    return found


def _firmware(snapshot: Snapshot) -> Reading:
    names = {"bios_version": "BIOS version", "product_name": "model", "sys_vendor": "vendor"}
    seen = {words: snapshot.file(f"/sys/class/dmi/id/{name}") for name, words in names.items()}
    told = ((words, item) for words, item in seen.items() if item is not None and item.outcome == "ok")
    values = {words: item.text.strip() for words, item in told if not lack_of(item)}
    lacks: dict[str, Lack] = {words: lack_of(item) for words, item in seen.items()}
    lacks[VBIOS] = lack_of_answer(asked(snapshot, "nvidia-smi-q"))
    versions = {row.value for _, row in smi_query.rows(snapshot, "VBIOS Version")} - {"", "N/A"}
    return named(lacks, {**values, **({VBIOS: ", ".join(sorted(versions))} if versions else {})})


VBIOS: Final = "VBIOS of the GPUs"
_BOARD: Final = by_name(
    (r"^VBIOS", "possible", "GPUs with another VBIOS may train links, report errors or power up in another way"),
    (r"^BIOS", "likely", "it sets up memory regions, IOMMU, ACS and links before any driver runs"),
    (r"", "background", "these are machines of different kinds: much else will differ, too"),
)


def _gpu_settings(good: Snapshot, bad: Snapshot) -> Pair:
    one, other = good.view(inventory), bad.view(inventory)
    slots = _unlike_slots(_driven_slots(good, one), _driven_slots(bad, other))
    before, after = _driven(good, one, slots), _driven(bad, other, slots)
    if one is None or other is None:
        return before, after
    there, here = _tallied(_settings(one), _settings(other), ("", ""))
    return whole({**before.values, **there.values}), whole({**after.values, **here.values})


def _gpus_alone(snapshot: Snapshot) -> Mapping[str, str]:
    told = snapshot.view(inventory)
    settings = {name: _counted(values) for name, values in _settings(told).items()} if told else {}
    return {**_driven(snapshot, told, frozenset()).values, **settings}


def _driven(snapshot: Snapshot, inventory: nvml.Inventory | None, slots: frozenset[str]) -> Reading:
    """How many GPUs the driver has, which of ``slots`` are among theirs, and its CUDA version."""
    number = _listed(snapshot) if inventory is None else len(inventory.gpus)
    if number is None:
        return hidden(lack_of_answer(asked(snapshot, "nvml", "nvidia-smi", "nvidia-smi-q")))
    found = {_DRIVEN: str(number), **({"CUDA": str(inventory.cuda)} if inventory is not None else {})}
    own = slots & _driven_slots(snapshot, inventory)
    found |= {f"{_DRIVEN}, at {slot}": "one" for slot in own}
    return Reading(found, lambda name: "" if name.startswith(_DRIVEN) else "not asked")


_DRIVEN: Final = "GPUs that the driver has"


def _driven_slots(snapshot: Snapshot, inventory: nvml.Inventory | None) -> frozenset[str]:
    """Where the GPUs are that the driver has; nowhere where not all of them are told."""
    if inventory is not None:
        found = [gpu.pci if isinstance(gpu.pci, str) else "" for gpu in inventory.gpus]
    else:
        told = [one for one in snapshot.view(boards.inventories) if one.count is not None]
        found = [board.bus for board in told[-1].boards] if told else []
    return frozenset(found) if all(found) else frozenset()


def _listed(snapshot: Snapshot) -> int | None:
    """As many as nvidia-smi listed when it was asked last; None where it was not, or its answer may be cut."""
    counts = [one.count for one in snapshot.view(boards.inventories) if one.count is not None]
    if counts:
        return counts[-1]
    return 0 if any(state == "no-devices" for state, _ in snapshot.view(driver.smi)) else None


def _settings(inventory: nvml.Inventory) -> Mapping[str, Counter[str]]:
    return dict(_of_each(inventory))


def _of_each(inventory: nvml.Inventory) -> Iterator[tuple[str, Counter[str]]]:
    for field in fields(nvml.Gpu):
        if field.name in {"name", "memory_mib", "persistence", "ecc", "ecc_pending", "mig", "mig_pending"}:
            values = (getattr(gpu, field.name) for gpu in inventory.gpus)
            yield field.name, Counter("no answer" if isinstance(v, nvml.Unread) else str(v) for v in values)


_SETTING: Final = by_name(
    (r"^GPUs|^name", "likely", FEWER),
    (r"^mig", "likely", "a GPU in MIG mode is of use through its instances alone"),
    (r"no answer", "likely", "a GPU that does not say its own settings is failing"),
    (r"^persistence", "possible", "without it every first use initialises the GPU anew, and a failing one fails then"),
    (r"", "possible", "another setting of the GPU"),
)

DEVICES: Final = Trait("devices", "PCI devices", ("pci", "gpu", "driver"), _devices, _DEVICE, ("lspci -Dvmmnnk",))
LINKS: Final = Trait(
    "links", "PCI links", ("pci", "gpu"), _links,
    always("likely", "lanes are lost by dirt, a riser or a slot; a slower slot costs bandwidth"),
    ("_link_width", "_link_speed", "LnkSta", "LnkCap", "Link Width"), _links_alone,
)  # fmt: skip
FIRMWARE: Final = Trait(
    "firmware", "firmware", ("pci", "gpu", "kernel"), each(_firmware), _BOARD, ("/sys/class/dmi/", "VBIOS Version")
)
GPUS: Final = Trait("gpus", "GPU settings", ("gpu", "driver", "libraries"), _gpu_settings, _SETTING, alone=_gpus_alone)
