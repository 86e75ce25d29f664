"""Diagnose memory regions of the GPU (BARs) without an address, and bridges without a window for them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.consequences import NOT_STARTED
from gpunode.diagnoses.model import Citation, Fix, Rule
from gpunode.diagnoses.remedies import add_kernel_argument, always, manual_step
from gpunode.diagnoses.signs import all_of, any_line, any_of, custom_sign, kernel_line, message_line, predicate, unless
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import driver, kernel, pci, pcie_links, system
from gpunode.facts.patterns import Pattern

_NO_REGION: Final = r"I/O region assigned to your NVIDIA device is invalid|\bBAR\d is 0M @ 0x0"
_INVALID: Final = any_of(kernel_line(_NO_REGION), message_line(_NO_REGION))
# Something that happened in a slot; that the slot can do it, every boot tells.
_HOTPLUG: Final = any_of(
    kernel_line(
        r"\bpciehp\b[^\n]{0,40}: Slot\([^)\n]{1,16}\): (?:Card|Link|Attention button|Button|Power)"
        r"|\bthunderbolt \d+-\d|\bthunderbolt\b.{0,40}\b(?:new device|authorized)",
        re.IGNORECASE,
    ),
    message_line(r"\beGPU\b|\beGFX\b|\bOCuLink\b|\bThunderbolt\b", flags=re.IGNORECASE),
)


def _unplaced_regions(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield regions of a GPU without an address, or windows of bridges that may lead to one."""
    gpus, ports = snapshot.view(pcie_links.nvidia_slots), snapshot.view(pcie_links.gpu_bridges)
    # Nobody shows what is below the bridge: it counts where a GPU is in trouble, or the log is all that is known.
    trouble = any(state not in {"works", "mismatch", "missing"} for state, _ in snapshot.view(driver.smi_states))
    trouble = trouble or bool(snapshot.view(_INVALID) or snapshot.view(symptoms.CLOSED_OR_BAR))
    is_all = ports is None and not gpus and not driver.works(snapshot)
    for address, is_window, citation in _failed_assignments(snapshot):
        is_above = is_window and (address in ports if ports is not None else trouble)
        if pcie_links.pci_slot(address) in gpus or is_above or is_all:
            yield citation


_ASSIGNMENT: Final = Pattern(
    rf"(?<![\w-])[\w-]{{1,40}} (?P<address>{pcie_links.ADDRESS}): +(?:BAR (?P<bar>\d{{1,2}})|bridge window)"
    r"(?: \[(?P<before>[^\]]{1,80})\])?:? +(?:to \[[^\]]{1,40}\] )?"
    r"(?P<verdict>no space for|failed to assign|can't assign; (?:no space|bogus alignment)|can't assign|assigned)"
    r"(?: \[(?P<behind>[^\]]{1,80})\])?"
)
# BARs from here on are ROMs and those of virtual functions, then windows of bridges.
_ROM, _WINDOWS = 6, 13


def _failed_assignments(snapshot: Snapshot) -> Iterator[tuple[str, bool, Citation]]:
    """Yield the regions that the kernel could not place, and whether each is a bridge window.

    Expansion ROMs, I/O ports and BARs of virtual functions are left out: nothing needs them.
    """
    found: dict[tuple[str, str, bool], tuple[str, bool, Citation]] = {}
    for message in kernel.matching_messages(snapshot, _ASSIGNMENT):
        match = _ASSIGNMENT.search(message.text)
        resource = (match["before"] or match["behind"] or "") if match else ""
        if match is None or not resource.startswith("mem"):
            continue
        bar = int(match["bar"]) if match["bar"] else _WINDOWS
        address = pci.normalize_address(match["address"])
        key = address, match["bar"] or "", "pref" in resource
        if match["verdict"] == "assigned":
            found.pop(key, None)
        elif bar < _ROM or bar >= _WINDOWS:
            found[key] = address, bar >= _WINDOWS, message.citation
    yield from found.values()


_ROOT_WINDOW: Final = Pattern(r"root bus resource \[mem 0x[0-9a-f]+-0x(?P<end>[0-9a-f]+)")
_FOUR_GIB: Final = 1 << 32


def _has_high_window(snapshot: Snapshot) -> bool | None:
    """Return whether firmware gave the bus addresses above 4 GiB; None where the log does not show its windows."""
    found = [_ROOT_WINDOW.search(message.text) for message in kernel.matching_messages(snapshot, _ROOT_WINDOW)]
    return any(int(match["end"], 16) >= _FOUR_GIB for match in found if match) if found else None


_UNPLACED: Final = custom_sign(_unplaced_regions)
_UNASSIGNED: Final = Pattern(r"\bRegion \d: Memory at <(?:unassigned|ignored)>")
_EMPTY: Final = any_of(_INVALID, custom_sign(lambda snapshot: pcie_links.gpu_lines(snapshot, _UNASSIGNED)))
ADDRESSLESS: Final = any_of(_UNPLACED, _EMPTY)
"""A memory region of a GPU that has no address."""
GUEST: Final = predicate(system.is_guest, "this is a virtual machine")
_BARE_METAL: Final = predicate(lambda snapshot: system.is_guest(snapshot) is False, "this is no virtual machine")
_HIGH: Final = predicate(_has_high_window, "the bus has addresses above 4 GiB")
_NO_HIGH: Final = predicate(lambda snapshot: _has_high_window(snapshot) is False, "the bus has none above 4 GiB")
_SHOWN: Final = (symptoms.NOT_STARTED, symptoms.NO_ADDRESS, symptoms.NO_DEVICES, symptoms.NO_DRIVER)
_SWITCHED_OFF: Final = any_line(r"Above 4G (?:Decoding|MMIO)\W{0,40}(?:Disabled|off\b)", re.IGNORECASE)


def _reallocate(snapshot: Snapshot) -> Iterable[Fix]:
    yield from add_kernel_argument(snapshot, "pci=realloc", "let the kernel reassign the regions")
    yield manual_step("firmware", "update the firmware, and enlarge its MMIO window (Above 4G Decoding, MMIOH size)")
    windows = "give hot-plugged bridges larger windows: pci=realloc,assign-busses,hpbussize=0x33,hpmmioprefsize=32G"
    yield manual_step("configure", windows, "the GPU is plugged in while the system runs")


_rule = partial(Rule, layer="pci")

RULES: Final = (
    _rule(
        cause="bar-above-4g-disabled",
        disruption="reboot",
        share=0.8,
        symptoms=(symptoms.CLOSED_OR_BAR, *_SHOWN),
        look_at=(Shell("sudo lspci -vv -d 10de: | grep -E '^[0-9a-f]|Region'"),),
        decisive=any_of(all_of(ADDRESSLESS, _NO_HIGH), all_of(unless(_EMPTY, _UNPLACED, _HOTPLUG), _BARE_METAL)),
        typical=any_of(unless(_EMPTY, _UNPLACED, _HOTPLUG, kernel_line(r"BAR0 is 0M")), _SWITCHED_OFF),
        against=(GUEST,),
        summary="the firmware assigns the bus no addresses above 4 GiB, so the GPU's memory region does not fit",
        remedy=always(
            manual_step("firmware", "enable Above 4G Decoding (and Resizable BAR) in the BIOS, and turn CSM off"),
            manual_step("firmware", "update the board's firmware", "the settings are already on"),
        ),
        explains=NOT_STARTED,
    ),
    _rule(
        cause="bar-allocation-failed",
        disruption="reboot",
        symptoms=_SHOWN,
        look_at=(Shell("sudo dmesg | grep -E 'BAR|bridge window|no space'"),),
        decisive=all_of(_UNPLACED, _HIGH),
        typical=any_of(_UNPLACED, all_of(_EMPTY, _HOTPLUG)),
        against=(GUEST, _NO_HIGH),
        summary="the kernel finds no room for the GPU's memory region behind the bridges above it",
        remedy=_reallocate,
        explains=NOT_STARTED,
    ),
)
