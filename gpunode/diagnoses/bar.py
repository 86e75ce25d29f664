"""Memory regions of the GPU (BARs): whether firmware and kernel give them an address, and bridges a window for them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.addresses import DRIVER_GUIDE, OPEN_MODULES
from gpunode.diagnoses.chains import NOT_STARTED
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.model import Confidence, Doubt, Family, Fix, Proof, Rule, Verdict, only
from gpunode.diagnoses.remedies import always, boot_with, by_hand, run
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import driver, kernel, links, system
from gpunode.facts.patterns import Pattern

_INVALID_REGION: Final = Pattern(r"I/O region assigned to your NVIDIA device is invalid|\bBAR\d is 0M @ 0x0")
_CLOSED_OR_BAR: Final = Pattern(r"RmInitAdapter failed! \(0x22:0x56")
# Something that happened in a slot; that the slot can do it, every boot tells.
_HOTPLUG: Final = Pattern(
    r"\bpciehp\b[^\n]{0,40}: Slot\([^)\n]{1,16}\): (?:Card|Link|Attention button|Button|Power)"
    r"|\bthunderbolt \d+-\d|\bthunderbolt\b.{0,40}\b(?:new device|authorized)",
    re.IGNORECASE,
)
_BOX: Final = Pattern(r"\beGPU\b|\bOCuLink\b", re.IGNORECASE)


def regions(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """Which it is: no window above 4 GiB, a bridge's window too small, a virtual machine's firmware, or untold."""
    gpus = snapshot.view(links.nvidia)
    invalid = tuple(message.citation for message in kernel.said(snapshot, _INVALID_REGION))
    unassigned = snapshot.view(links.unassigned)
    core = tuple(one for one in snapshot.view(links.unplaced) if _matters(snapshot, one))
    window = snapshot.view(links.has_high_window)
    seen = (*(one.citation for one in core), *invalid, *unassigned)
    where = next((one.address for one in core if links.slot(one.address) in gpus), "")
    if not seen:
        yield from _undecided(snapshot)
        return
    if system.is_guest(snapshot):
        summary = "the virtual machine's firmware has no room above 4 GiB for the memory region of the GPU passed to it"
        yield "vm-passthrough-mmio-config", Proof(summary, seen, gpu=where)
    elif window is False:
        summary = "firmware gives the bus no addresses above 4 GiB, so the GPU's memory region has no place"
        yield "bar-above-4g-disabled", Proof(summary, seen, gpu=where)
    elif core:
        summary = "the kernel finds no room for the GPU's memory region behind the bridges above it"
        out = () if window is None else ("Above 4G Decoding is on: the bus has addresses above 4 GiB",)
        yield "bar-allocation-failed", Proof(summary, seen, "certain" if window else "likely", out, gpu=where)
    elif kernel.said(snapshot, _HOTPLUG) or snapshot.says(_BOX):
        summary = (
            "the GPU was plugged in at run time, and the window of the bridge above it does not hold its memory region"
        )
        yield "bar-allocation-failed", Proof(summary, seen, "likely")
    else:
        summary = "firmware left a memory region of the GPU without an address: Above 4G Decoding is off, or too small"
        confidence: Confidence = "certain" if system.is_guest(snapshot) is False else "likely"
        yield "bar-above-4g-disabled", Proof(summary, seen, confidence)


def _matters(snapshot: Snapshot, one: links.Unplaced) -> bool:
    """Whether a region without a place is a GPU's, or of a bridge that may stand above one that does not work."""
    gpus = snapshot.view(links.nvidia)
    if links.slot(one.address) in gpus:
        return True
    ports = snapshot.view(links.above_gpus)
    if one.is_window and ports is not None:
        return one.address in ports
    # Nobody shows what is below the bridge: it counts where a GPU is in trouble, or the log is all that is known.
    trouble = any(state not in {"works", "mismatch", "missing"} for state, _ in snapshot.view(driver.smi))
    trouble = trouble or bool(kernel.said(snapshot, _INVALID_REGION)) or bool(kernel.said(snapshot, _CLOSED_OR_BAR))
    return (one.is_window and trouble) or (not gpus and not driver.works(snapshot))


def _undecided(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    said = tuple(message.citation for message in kernel.said(snapshot, _CLOSED_OR_BAR))
    if said:
        yield (
            "bar-above-4g-disabled",
            Doubt(
                "the driver cannot start the GPU (0x22:0x56): a memory region without an address, the closed module "
                "on a GPU that needs the open one, or a GPU that does not wake up",
                (
                    Shell("sudo lspci -vvv -d 10de: | grep Region"),
                    Shell("modinfo nvidia | grep license"),
                    Shell("sudo dmesg --ctime | grep -B20 0x22:0x56"),
                ),
                said,
                (
                    *("bar-allocation-failed", "vm-passthrough-mmio-config", "gpu-stuck-d3cold"),
                    "proprietary-module-on-blackwell",
                ),
            ),
        )


def _realloc(snapshot: Snapshot) -> Iterable[Fix]:
    yield from boot_with(snapshot, "pci=realloc", "let the kernel place the regions anew")
    yield by_hand(
        "firmware", "update the firmware, and enlarge its MMIO window (Above 4G Decoding, MMIOH size) where it can"
    )
    yield by_hand(
        "configure",
        "give hot-plugged bridges larger windows: pci=realloc,assign-busses,hpbussize=0x33,hpmmioprefsize=32G",
        "the GPU is plugged in while the system runs",
    )


FAMILY: Final = Family(
    "bar",
    "memory regions of the GPU (BARs)",
    (
        Rule(
            cause="bar-above-4g-disabled",
            layer="pci",
            storey="pci",
            severity="error",
            disruption="reboot",
            title="firmware gives the GPU's memory region no address",
            share=0.8,
            symptoms=(
                symptoms.NOT_STARTED,
                symptoms.NO_ADDRESS,
                symptoms.NO_DEVICES,
                symptoms.NO_DRIVER,
            ),
            look_at=(Shell("sudo lspci -vv -d 10de: | grep -E '^[0-9a-f]|Region'"),),
            story=(
                "A GPU shows its memory through a region (BAR1) of gigabytes, which only fits above 4 GiB of the "
                "address space. With Above 4G Decoding off in BIOS (or CSM on) firmware leaves the region empty: "
                "lspci shows it unassigned, NVRM calls it 0M, and the driver cannot start the GPU (0x22:0x56) though "
                "it is there and supported."
            ),
            sources=(
                f"{OPEN_MODULES}/issues/862",
                f"{DRIVER_GUIDE}index.html",
            ),
            check=only("bar-above-4g-disabled", regions),
            remedy=always(
                by_hand("firmware", "enable Above 4G Decoding (and Resizable BAR) in BIOS, and switch CSM off"),
                by_hand("firmware", "update the board's firmware", "the settings are on already"),
                run(
                    "inspect",
                    "look at the regions after the reboot",
                    Shell("sudo lspci -vvv -d 10de: | grep -E '^[0-9a-f]|Region'"),
                ),
            ),
            explains=NOT_STARTED,
        ),
        Rule(
            cause="bar-allocation-failed",
            layer="pci",
            storey="pci",
            severity="error",
            disruption="reboot",
            title="no room for the GPU's memory region behind its bridge",
            symptoms=(
                symptoms.NOT_STARTED,
                symptoms.NO_ADDRESS,
                symptoms.NO_DEVICES,
                symptoms.NO_DRIVER,
            ),
            look_at=(Shell("sudo dmesg | grep -E 'BAR|bridge window|no space'"),),
            story=(
                "Every bridge passes on one window of addresses, and firmware sizes it at boot, mostly for what was "
                "plugged in then. A GPU behind Thunderbolt or OCuLink, or one whose region grew, does not fit: the "
                "kernel says 'no space' or 'failed to assign' for its BARs before any driver is asked, and the driver "
                "then finds a region of 0M."
            ),
            sources=("https://github.com/system76/firmware-open/issues/66", f"{OPEN_MODULES}/issues/510"),
            check=only("bar-allocation-failed", regions),
            remedy=_realloc,
            explains=NOT_STARTED,
        ),
    ),
)
