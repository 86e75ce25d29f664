"""GPUs that are not there: missing from the inventory, no longer answering, or without power."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.catalog.gpus import lookup
from gpunode.diagnoses import symptoms
from gpunode.diagnoses.addresses import OPEN_MODULES, XID_CATALOG
from gpunode.diagnoses.chains import GPU_LOST, NOT_INITIALISED, UNHEALTHY_IN_CLUSTER
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.model import Citation, Doubt, Family, Fix, Proof, Rule, Verdict
from gpunode.diagnoses.remedies import always, by_hand, drain, nvidia_report, power_cycle, replace, run
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.support import undriven
from gpunode.diagnoses.views import alive, boards, driver, faults, kernel, pci
from gpunode.facts.patterns import Pattern

# ---- how many there are

_TROUBLE_OF_ONE: Final = Pattern(
    r"RmInitAdapter failed|rm_init_adapter failed|fallen off the bus|probe .{0,40}failed|is invalid:"
)
_SIZES: Final = frozenset({1, 2, 4, 8, 10, 16})


def _missing(snapshot: Snapshot) -> Iterator[Verdict]:
    # Whom nouveau or vfio-pci owns, nvidia-smi cannot show; that is another cause, or nobody's fault.
    left_alone = snapshot.view(undriven)
    if "" in left_alone:
        return
    owned = (gpu for gpu in snapshot.view(pci.gpus) if gpu.driver in {None, "nvidia"})
    listed = {gpu.address: gpu for gpu in owned if gpu.address not in left_alone}
    whole = [one for one in snapshot.view(boards.inventories) if one.count is not None]
    if not whole:
        return
    shown = max(whole, key=lambda one: one.count or 0)
    absent = _absent(listed, shown) if pci.is_listed(snapshot) else ()
    # What the kernel says of the absent one is a better answer, and another rule's.
    if absent and not kernel.said(snapshot, _TROUBLE_OF_ONE):
        named = [listed[address] for address in absent if address in listed]
        names = ", ".join(gpu.address for gpu in named) or "one"
        summary = f"{len(listed)} GPUs are on the PCI bus and nvidia-smi shows {shown.count}: {names} is missing"
        lines = (*(gpu.citation for gpu in named or listed.values()), shown.citation)
        yield Proof(summary, lines, gpu=named[0].address if named else "")
        return
    is_odd = not listed and shown.count not in _SIZES and "baseboard" in snapshot.view(boards.carriers)
    if is_odd and not kernel.said(snapshot, _TROUBLE_OF_ONE):
        summary = (
            f"nvidia-smi shows {shown.count} GPUs, and baseboards of this model carry four or eight: one is missing"
        )
        yield Proof(summary, (shown.citation,), "likely")


def _absent(listed: dict[str, pci.Function], shown: boards.Inventory) -> tuple[str, ...]:
    """The GPUs on the bus that are not shown; one empty name where nothing tells which it is."""
    buses = {board.bus for board in shown.boards if board.bus}
    if len(listed) <= (shown.count or 0):
        return ()
    if buses and len(buses) == shown.count and buses <= set(listed):
        return tuple(sorted(set(listed) - buses))
    return () if buses else ("",)


_SEARCH: Final = (
    run(
        "inspect",
        "compare the bus with the driver, and read what the kernel says of the GPU that is missing",
        Shell("lspci -nnk -d 10de:"),
        Shell("nvidia-smi --query-gpu=index,pci.bus_id,serial --format=csv"),
        Shell("sudo dmesg | grep -E 'NVRM|AER|pcieport' | tail -n 100"),
    ),
    drain(),
    power_cycle("power the node off, wait a minute, and on again: a GPU that did not come up often does then"),
    by_hand("hardware", "seat the GPU again, and have it replaced where it stays away"),
)


# ---- fallen off the bus

_FALLEN: Final = (79, 167)
# NVML and what prints its words: the GPU "has fallen off the bus or has otherwise become inaccessible" (nvml.h).
_LOST: Final = Pattern(
    r"\bGPU is lost\b|\bGPU_IS_LOST\b|has fallen off the (?:PCI(?:e)? )?bus|NVML_ERROR_GPU_IS_LOST", re.IGNORECASE
)
_NAME: Final = Pattern(r"\bname=[^,\n]{0,80}")
_NO_HANDLE: Final = Pattern(r"Unable to determine the device handle for ", re.IGNORECASE)
_BUS: Final = Pattern(r"\b(?P<bus>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])\b", re.IGNORECASE)
# Every read of a device that does not answer gives ones: so does its configuration space.
_ALL_ONES: Final = Pattern(r"\(rev ff\)|Unknown header type 7f|\bprog-if ff\b", re.IGNORECASE)
_MOBILE: Final = Pattern(r"\d{3,4}M\b|Mobile|Max-Q|Laptop|\b(?:GeForce )?MX\d")
_ASLEEP: Final = Pattern(r"\bD3cold\b|device inaccessible|\bbbswitch\b", re.IGNORECASE)
_REMOVED: Final = Pattern(
    r"Attempting to remove (?:minor )?device .{0,40}with non-zero usage count|GPU .{0,40}was (?:surprise )?removed"
)
_UNPLUGGED: Final = Pattern(r"pciehp: Slot\([^)]*\): (?:Link Down|Card not present)", re.IGNORECASE)
_NO_POWER: Final = Pattern(
    r"does not have the necessary power cables connected|auxiliary power (?:cable|connector)s? .{0,40}not connected|"
    r"connect the PCIe? (?:auxiliary )?power cable",
    re.IGNORECASE,
)


def _lost(snapshot: Snapshot) -> Iterator[Verdict]:
    """GPUs off the bus: by the kernel's word, else by NVML's, else by a configuration space that reads as ones."""
    told = faults.of(snapshot, *_FALLEN)
    for incident in told:
        if not _was_cut_off(snapshot, incident):
            yield _fallen(incident)
    if not told and not _is_told_otherwise(snapshot):
        yield from _without_kernel(snapshot)


_CUT_OFF: Final = Pattern(r"\bpcieport \S{7,16}: DPC: containment event")
_WENT_DOWN: Final = Pattern(r"\[ {0,2}\d{1,2}\] ?(?:SDES|Surprise Down)")
_SOON_S: Final = 60.0


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


def _fallen(incident: faults.Incident) -> Proof:
    said = incident.root.xid
    if incident.root.code == _FALLEN[1]:
        return faults.proof(incident, confidence="likely")
    if said is not None and said.device:
        happened = f"{faults.label(incident.gpu)} ({lookup(said.device).label}) does not answer on the PCI bus"
        return Proof(happened, incident.citations, gpu=incident.gpu, at=incident.root.at)
    return faults.proof(incident)


def _is_told_otherwise(snapshot: Snapshot) -> bool:
    """Whether the kernel tells of another severe fault, after which NVML calls a GPU lost as well."""
    return any(one.root.weight > 2 for one in snapshot.view(faults.incidents))


def _without_kernel(snapshot: Snapshot) -> Iterator[Verdict]:
    said = tuple(line for line in snapshot.said(_LOST) if "name=" not in line.line or _LOST.search(_nameless(line)))
    ones = tuple(function.citation for function in _reading_ones(snapshot))
    silent = () if snapshot.view(driver.works) else snapshot.said(_NO_HANDLE)
    removed = kernel.said(snapshot, _REMOVED) if kernel.said(snapshot, _UNPLUGGED) else ()
    if said:
        gpu = _named(said)
        yield Proof(f"{faults.label(gpu)} is lost: it no longer answers on the PCI bus", (*said, *ones), gpu=gpu)
    elif removed:
        places = tuple(message.citation for message in removed)
        yield Proof("A GPU went from the PCI bus while it was in use: its link broke down", places, at=removed[0].at)
    elif ones and not snapshot.says(_ASLEEP):
        yield from _of_ones(snapshot, ones, silent)
    elif silent and not snapshot.says(_ASLEEP):
        yield Doubt(
            "nvidia-smi cannot reach a GPU that it knows of; whether that is lost, the kernel's log tells",
            (Shell("sudo dmesg --ctime | grep -iE 'xid|fallen off|nvrm'"),),
            silent,
        )
    elif unread := snapshot.view(driver.unread):
        yield Doubt(
            "nvidia-smi shows ERR! where it reads the GPU itself: is a sensor or fan broken, its firmware stuck, or is "
            "it about to be lost?",
            (
                Shell("sudo dmesg --ctime | grep -iE 'xid|nvrm'"),
                Shell("nvidia-smi -q -d POWER,TEMPERATURE,PERFORMANCE"),
            ),
            unread,
            _FAILS_TO_READ,
        )
    elif len(both := _come_and_gone(snapshot)) > 1:
        yield Doubt(
            "nvidia-smi found no GPU at one time and GPUs at another, and nothing shows what was done in between: does "
            "one come and go?",
            (Shell("sudo dmesg --ctime | grep -iE 'xid|nvrm|pcieport'"), Shell("nvidia-smi -L")),
            both,
        )


def _come_and_gone(snapshot: Snapshot) -> tuple[Citation, ...]:
    """An answer of nvidia-smi without GPUs, and one with; no more than one of them where it always answered alike."""
    states = dict(snapshot.view(driver.smi))
    return tuple(states[state] for state in ("no-devices", "works") if state in states)


_FAILS_TO_READ: Final = (
    *("gsp-rpc-timeout", "gsp-task-exception", "xid-62-pmu-halt", "xid-61-pmu-breakpoint", "inforom-corrupted"),
    *("gpu-stuck-d3cold", "thermal-slowdown", "power-brake-slowdown", "xid-54-aux-power"),
)


def _nameless(citation: Citation) -> str:
    """The line without the names of processes, which anybody chooses."""
    return _NAME.sub("", citation.line)


def _of_ones(snapshot: Snapshot, ones: tuple[Citation, ...], silent: tuple[Citation, ...]) -> Iterator[Verdict]:
    states = {state for state, _ in snapshot.view(driver.smi)}
    if silent or states & {"failed", "no-devices", "no-driver"} or not _may_sleep(snapshot):
        summary = "A GPU is on the PCI bus in name only: its configuration space reads as ones"
        yield Proof(summary, (*ones, *silent), "likely", gpu=_named(ones))
        return
    yield Doubt(
        "a GPU's configuration space reads as ones: it is lost, or in its deepest sleep",
        (Shell("cat /sys/bus/pci/devices/*/power_state"), Shell("nvidia-smi")),
        ones,
        ("gpu-stuck-d3cold",),
    )


def _may_sleep(snapshot: Snapshot) -> bool:
    """Whether a GPU that reads as ones may be switched off on purpose, as those of notebooks and guests are."""
    return any(gpu.driver == "vfio-pci" or _is_asleep_at_times(snapshot, gpu) for gpu in _reading_ones(snapshot))


def _is_asleep_at_times(snapshot: Snapshot, gpu: pci.Function) -> bool:
    return bool(_MOBILE.search(gpu.name)) or alive.is_at_work(snapshot, gpu.address) is None


def _reading_ones(snapshot: Snapshot) -> tuple[pci.Function, ...]:
    functions = (function for function in snapshot.view(pci.functions) if function.is_gpu)
    ones = (one for one in functions if _ALL_ONES.search(" ".join((one.name, *one.detail[:4]))))
    return tuple(one for one in ones if not _was_woken(snapshot, one))


def _was_woken(snapshot: Snapshot, gpu: pci.Function) -> bool:
    """Whether it slept when the bus was listed, and worked when it was asked to."""
    at_work = alive.is_at_work(snapshot, gpu.address)
    return at_work is True or (at_work is None and bool(_MOBILE.search(gpu.name)))


def _named(citations: Iterable[Citation]) -> str:
    found = (match["bus"] for one in citations if (match := _BUS.search(one.line)))
    return next((pci.address(bus) for bus in found), "")


# ---- without power


def _unpowered(snapshot: Snapshot) -> Iterator[Verdict]:
    for incident in faults.of(snapshot, 54):
        yield faults.proof(incident)
    if said := snapshot.said(_NO_POWER):
        gpu = _named(said)
        yield Proof(f"{faults.label(gpu)} gets no power over its auxiliary connectors", said, gpu=gpu)


def _bring_back(_: Snapshot) -> Iterable[Fix]:
    yield drain()
    yield power_cycle()
    yield by_hand("hardware", "check power supply, power cables and risers; seat the GPU anew", "it comes back")
    yield nvidia_report()
    yield replace(when="it falls off again in another slot or machine")


def _connect(_: Snapshot) -> Iterable[Fix]:
    yield by_hand(
        "hardware",
        "power the node off and connect every auxiliary power cable of the GPU, each from its own rail of the supply",
    )
    yield by_hand("hardware", "check that the power supply carries what all GPUs draw together", "all are connected")


FAMILY: Final = Family(
    "lost",
    "GPUs that are lost",
    (
        Rule(
            cause="gpu-missing-from-inventory",
            layer="hardware",
            storey="gpu",
            severity="error",
            disruption="power-cycle",
            title="a GPU that should be there is not",
            symptoms=(
                symptoms.GPU_LOST,
                symptoms.NO_DEVICES,
                symptoms.NOT_STARTED,
            ),
            look_at=(
                Shell("lspci -nn -d 10de:"),
                Shell("nvidia-smi -L"),
            ),
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
            remedy=always(*_SEARCH),
            explains=UNHEALTHY_IN_CLUSTER,
        ),
        Rule(
            cause="gpu-fallen-off-bus",
            layer="hardware",
            storey="gpu",
            severity="error",
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
            check=_lost,
            remedy=_bring_back,
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
            severity="error",
            disruption="power-cycle",
            title="auxiliary power is not connected to the GPU",
            symptoms=(
                symptoms.ANY_XID,
                symptoms.NOT_STARTED,
                symptoms.GPU_LOST,
            ),
            look_at=(Shell("sudo dmesg | grep -iE 'xid|nvrm|power'"),),
            story=(
                "The board needs more power than the slot gives and finds no voltage on one of its own connectors. The "
                "driver refuses to start it, or runs it with its clocks pinned low (Xid 54). A cable is missing, is "
                "not pushed home, or hangs on a supply rail that is off or overloaded."
            ),
            sources=(
                XID_CATALOG,
                f"{OPEN_MODULES}/blob/main/src/nvidia/arch/nvalloc/unix/src/osinit.c",
            ),
            check=_unpowered,
            remedy=_connect,
            explains=NOT_INITIALISED | {"power-brake-slowdown", "gsp-init-failed-platform", "xid-143-gpu-init-error"},
        ),
    ),
)
