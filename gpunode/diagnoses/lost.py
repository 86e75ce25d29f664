"""GPUs that are not there: missing from the inventory, no longer answering, or without power."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gpunode.catalog.gpus import lookup
from gpunode.diagnoses import symptoms
from gpunode.diagnoses.addresses import OPEN_MODULES, XID_CATALOG
from gpunode.diagnoses.chains import GPU_LOST, NOT_INITIALISED, UNHEALTHY_IN_CLUSTER
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.model import Citation, Family, Proof, Rule
from gpunode.diagnoses.remedies import always, by_hand, drain, nvidia_report, power_cycle, replace, run
from gpunode.diagnoses.signs import all_of, any_of, fact, kernel_line, line, unless
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.support import undriven
from gpunode.diagnoses.views import boards, faults, kernel, pci
from gpunode.facts.patterns import Pattern

# What the kernel says of the absent one is a better answer, and another rule's.
_TROUBLE: Final = kernel_line(
    r"RmInitAdapter failed|rm_init_adapter failed|fallen off the bus|probe .{0,40}failed|is invalid:"
)
_SIZES: Final = frozenset({1, 2, 4, 8, 10, 16})


def _missing(snapshot: Snapshot) -> Iterator[Proof]:
    """More GPUs on the bus than nvidia-smi shows, or fewer shown than a baseboard carries."""
    # Whom nouveau or vfio-pci owns, or the driver leaves alone, nvidia-smi cannot show.
    left = snapshot.view(undriven)
    owned = (gpu for gpu in snapshot.view(pci.gpus) if gpu.driver in {None, "nvidia"})
    listed = {gpu.address: gpu for gpu in owned if gpu.address not in left}
    whole = [one for one in snapshot.view(boards.inventories) if one.count is not None]
    if not whole or "" in left or snapshot.view(_TROUBLE):
        return
    shown = max(whole, key=lambda one: one.count or 0)
    absent = _absent(listed, shown) if pci.is_listed(snapshot) else ()
    named = [listed[address] for address in absent if address in listed]
    if absent:
        names = ", ".join(gpu.address for gpu in named) or "one"
        summary = f"{len(listed)} GPUs are on the PCI bus and nvidia-smi shows {shown.count}: {names} is missing"
        lines = (*(gpu.citation for gpu in named or listed.values()), shown.citation)
        yield Proof(summary, lines, gpu=named[0].address if named else "")
    elif not listed and shown.count not in _SIZES and "baseboard" in snapshot.view(boards.carriers):
        summary = f"nvidia-smi shows {shown.count} GPUs, and baseboards of this model carry four or eight"
        yield Proof(summary, (shown.citation,), "likely")


def _absent(listed: dict[str, pci.Function], shown: boards.Inventory) -> tuple[str, ...]:
    """The GPUs on the bus that are not shown; one empty name where nothing tells which it is."""
    buses = {board.bus for board in shown.boards if board.bus}
    if len(listed) <= (shown.count or 0):
        return ()
    if buses and len(buses) == shown.count and buses <= set(listed):
        return tuple(sorted(set(listed) - buses))
    return () if buses else ("",)


def _odd_number(snapshot: Snapshot) -> Iterator[Citation]:
    """An inventory of three, five or seven GPUs, which few machines are built with."""
    return (one.citation for one in snapshot.view(boards.inventories) if one.count in {3, 5, 7})


_FALLEN: Final = (79, 167)
# NVML and what prints its words: the GPU "has fallen off the bus or has otherwise become inaccessible" (nvml.h). The
# names of processes are left away, which anybody chooses.
_LOST: Final = line(
    r"^(?:(?!\bname=)[^\n])*(?:\bGPU is lost\b|\bGPU_IS_LOST\b|(?:has )?(?:fallen|fell) off the (?:PCI(?:e)? )?bus"
    r"|NVML_ERROR_GPU_IS_LOST)",
    flags=re.IGNORECASE,
)
# Every read of a device that does not answer gives ones: so does its configuration space.
_ALL_ONES: Final = Pattern(r"\(rev ff\)|Unknown header type 7f|\bprog-if ff\b", re.IGNORECASE)
_MOBILE: Final = Pattern(r"\d{3,4}M\b|Mobile|Max-Q|Laptop|\b(?:GeForce )?MX\d")
_ASLEEP: Final = line(r"\bD3cold\b|device inaccessible|\bbbswitch\b", flags=re.IGNORECASE)
_REMOVED: Final = all_of(
    kernel_line(
        r"Attempting to remove (?:minor )?device .{0,40}with non-zero usage count|GPU .{0,40}was (?:surprise )?removed"
    ),
    kernel_line(r"pciehp: Slot\([^)]*\): (?:Link Down|Card not present)", re.IGNORECASE),
)
_CUT_OFF: Final = Pattern(r"\bpcieport \S{7,16}: DPC: containment event")
_WENT_DOWN: Final = Pattern(r"\[ {0,2}\d{1,2}\] ?(?:SDES|Surprise Down)")
_SOON_S: Final = 60.0


def _fallen(snapshot: Snapshot) -> Iterator[Proof]:
    for incident in faults.of(snapshot, *_FALLEN):
        if _was_cut_off(snapshot, incident):
            continue
        said = incident.root.xid
        proof = faults.proof(incident, confidence="likely" if incident.root.code == _FALLEN[1] else "certain")
        if said is not None and said.device:
            what = f"{faults.label(incident.gpu)} ({lookup(said.device).label}) does not answer on the PCI bus"
            proof = Proof(what, incident.citations, gpu=incident.gpu, at=incident.root.at)
        yield proof


def _was_cut_off(snapshot: Snapshot, incident: faults.Incident) -> bool:
    """Whether the port above took its link down after an error, before the GPU was missed: that took it off the bus.

    A surprise down is the other way round: the link went down because the GPU did.
    """
    cut = kernel.said(snapshot, _CUT_OFF)
    if not cut or kernel.said(snapshot, _WENT_DOWN):
        return False
    at = incident.root.at
    if at is not None and cut[0].at is not None:
        return 0 <= at - cut[0].at <= _SOON_S
    missed, first = incident.root.citation, cut[0].citation
    return first.key == missed.key and (first.number or 0) < (missed.number or 0)


def _reading_ones(snapshot: Snapshot) -> Iterator[Citation]:
    """GPUs that are on the bus in name only; those of notebooks and of guests may be switched off on purpose."""
    for one in snapshot.view(pci.functions):
        is_off = one.driver == "vfio-pci" or _MOBILE.search(one.name)
        if one.is_gpu and not is_off and _ALL_ONES.search(" ".join((one.name, *one.detail[:4]))):
            yield one.citation


_GRAVE: Final = fact(faults.grave)

FAMILY: Final = Family(
    "lost",
    "GPUs that are lost",
    (
        Rule(
            cause="gpu-missing-from-inventory",
            layer="hardware",
            storey="gpu",
            disruption="power-cycle",
            title="a GPU that should be there is not",
            symptoms=(symptoms.GPU_LOST, symptoms.NO_DEVICES, symptoms.NOT_STARTED),
            look_at=(Shell("lspci -nn -d 10de:"), Shell("nvidia-smi -L")),
            story=(
                "The bus shows more GPUs than the driver does, or the driver fewer than the baseboard carries, and no "
                "message says why. The missing one did not initialise, was drained, or lost its link at boot. "
                "Schedulers see fewer GPUs, and every index behind the gap moves down by one, so that jobs meet "
                "another GPU than yesterday."
            ),
            sources=(
                "https://github.com/NVIDIA/NVSentinel/issues/684",
                "https://github.com/NVIDIA/gpu-operator/issues/2511",
            ),
            check=_missing,
            context=fact(_odd_number),
            remedy=always(
                run(
                    "inspect",
                    "compare the bus with the driver, and read what the kernel says of the GPU that is missing",
                    Shell("lspci -nnk -d 10de:"),
                    Shell("nvidia-smi --query-gpu=index,pci.bus_id,serial --format=csv"),
                    Shell("sudo dmesg | grep -E 'NVRM|AER|pcieport' | tail -n 100"),
                ),
                drain(),
                power_cycle(
                    "power the node off, wait a minute, and on again: a GPU that did not come up often does then"
                ),
                by_hand("hardware", "seat the GPU again, and have it replaced where it stays away"),
            ),
            explains=UNHEALTHY_IN_CLUSTER,
        ),
        Rule(
            cause="gpu-fallen-off-bus",
            layer="hardware",
            storey="gpu",
            disruption="power-cycle",
            title="the GPU has fallen off the PCI bus",
            share=3.5,
            symptoms=(
                symptoms.GPU_LOST,
                symptoms.ANY_XID,
                symptoms.NVML_UNKNOWN,
                symptoms.CUDA_FAULT,
                symptoms.NO_DEVICES,
                symptoms.CUDA_UNKNOWN,
            ),
            look_at=(Shell("sudo dmesg | grep -iE 'xid|nvrm|fallen'"),),
            story=(
                "The GPU stopped answering reads over PCI Express: every read gives ones, and the driver gives it "
                "up (Xid 79, or at start a message of three lines that has no Xid in it). Programs on it end, "
                "nvidia-smi calls it lost or leaves it away, a Kubernetes device plugin marks it unhealthy. The "
                "usual reasons are power that broke down under load, a loose card, riser or cable, heat, and a GPU "
                "that died; when GSP errors (Xid 119, 120) come before, the GPU's firmware crashed first.\n\n"
                "A reset cannot reach it and a warm reboot often leaves it off: take the power away. If it comes back "
                "and falls off again, move it to another slot: what follows the card is the card's fault."
            ),
            sources=(
                XID_CATALOG,
                "https://github.com/NVIDIA/NVSentinel/issues/155",
                "https://github.com/leptonai/gpud/pull/1209",
            ),
            check=_fallen,
            decisive=unless(any_of(_LOST, _REMOVED), _GRAVE),
            typical=unless(fact(_reading_ones), _ASLEEP, _GRAVE),
            remedy=always(
                drain(),
                power_cycle(),
                by_hand("hardware", "check power supply, power cables and risers; seat the GPU anew", "it comes back"),
                nvidia_report(),
                replace(when="it falls off again in another slot or machine"),
            ),
            explains=GPU_LOST
            | {
                *("driver-module-not-loaded", "nvlink-all-links-inactive-gpu", "nvlink-link-inactive"),
                *("pcie-uncorrectable-completion-timeout", "pcie-aer-correctable-storm", "pcie-link-degraded"),
                "gpu-missing-from-inventory",
            },
        ),
        Rule(
            cause="xid-54-aux-power",
            layer="power-thermal",
            storey="gpu",
            disruption="power-cycle",
            title="auxiliary power is not connected to the GPU",
            symptoms=(symptoms.ANY_XID, symptoms.NOT_STARTED, symptoms.GPU_LOST),
            look_at=(Shell("sudo dmesg | grep -iE 'xid|nvrm|power'"),),
            story=(
                "The board needs more power than the slot gives and finds no voltage on one of its own connectors. The "
                "driver refuses to start it, or runs it with its clocks pinned low (Xid 54). A cable is missing, is "
                "not pushed home, or hangs on a supply rail that is off or overloaded."
            ),
            sources=(XID_CATALOG, f"{OPEN_MODULES}/blob/main/src/nvidia/arch/nvalloc/unix/src/osinit.c"),
            check=faults.began(54),
            decisive=line(
                r"does not have the necessary power cables connected"
                r"|auxiliary power (?:cable|connector)s? .{0,40}not connected"
                r"|connect the PCIe? (?:auxiliary )?power cable",
                flags=re.IGNORECASE,
            ),
            remedy=always(
                by_hand(
                    "hardware",
                    "power the node off and connect every auxiliary power cable of the GPU, each from its own rail",
                ),
                by_hand("hardware", "check that the supply carries what all GPUs draw together", "all are connected"),
            ),
            explains=NOT_INITIALISED | {"power-brake-slowdown", "gsp-init-failed-platform", "xid-143-gpu-init-error"},
        ),
    ),
)
