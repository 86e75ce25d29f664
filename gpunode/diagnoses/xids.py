"""Xid errors that have no family of their own: programs, engines, controllers inside the GPU, boards."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

from gpunode.catalog import xids
from gpunode.catalog.xids import XidKind
from gpunode.diagnoses import recovering, remedies, symptoms
from gpunode.diagnoses.addresses import OPEN_MODULES, XID_CATALOG
from gpunode.diagnoses.chains import NOT_INITIALISED, PROGRAM_FAULTS, UNHEALTHY_IN_CLUSTER
from gpunode.diagnoses.commands import ADDRESS, Shell, beside, command, of_gpu, output
from gpunode.diagnoses.model import Citation, Doubt, Family, Fix, Proof, Rule, Severity, Verdict, only
from gpunode.diagnoses.remedies import (
    always,
    by_hand,
    nvidia_report,
    power_cycle,
    reboot,
    reset_gpu,
    run,
    setup_step,
)
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import driver, faults, history, kernel, pci, recovery
from gpunode.facts.patterns import Pattern

# What rules of this and other families make of a code; the rest comes to a question with the catalog's advice.
_GRAPHICS: Final = (13, 69)
_FLASH: Final = (122, 123, 124)
_CHIP_LINK: Final = (121, 173)
_ELSEWHERE: Final = frozenset(
    {
        48,
        54,
        61,
        62,
        63,
        64,
        74,
        78,
        79,
        92,
        94,
        95,
        119,
        120,
        125,
        140,
        156,
        157,
        160,
        161,
        167,
        171,
        172,
        *xids.NVLINK5,
    }
)
_OWN: Final = frozenset({*_GRAPHICS, *_FLASH, *_CHIP_LINK, 31, 109, 143, 154})
# Which of the causes lies nearest to a code that has none.
_NEAREST: Final[dict[XidKind, tuple[str, ...]]] = {
    "application": ("xid-13-graphics-exception", "xid-31-mmu-fault"),
    "consequence": ("xid-13-graphics-exception", "xid-31-mmu-fault", "xid-109-ctx-switch-timeout"),
    "engine": ("xid-109-ctx-switch-timeout",),
    "firmware": ("xid-62-pmu-halt", "gsp-task-exception"),
    "memory": ("xid-140-unrecovered-ecc", "row-remap-pending"),
    "link": ("xid-74-nvlink-error", "xid-145-149-nvlink5-fault"),
    "bus": ("pcie-aer-correctable-storm", "gpu-fallen-off-bus"),
}

_PMU_HALTED: Final = Pattern(r"PmuHalted|PMU has halted")
_ADDRESS: Final = Pattern(r"faulted @ (?P<address>0x[0-9a-f]+(?:_[0-9a-f]+)?)", re.IGNORECASE)
# A pointer that was never set, or a small offset from one: a program's mistake wherever it repeats.
_NULL: Final = 0x10000
# Releases whose page faults were tracked down to the driver, each with the thread.
_FAULTY_RELEASES: Final = {
    "610.57.04": f"{OPEN_MODULES}/issues/1370",
    "610.43.02": f"{OPEN_MODULES}/issues/1134",
    "595.71.05": f"{OPEN_MODULES}/issues/1134",
}
# Programs that run code of whoever started them.
_OWN_CODE: Final = Pattern(r"python|pt_|ray::|julia|a\.out|main$|train", re.IGNORECASE)
# The kernel's complaint about nvidia-drm, of a mapping that reaches over the end of the GPU's memory window.
_BAD_MAPPING: Final = Pattern(r"caller \w*nv_drm_\w+|__nv_drm_gem_nvkms_map")
# How many messages after a page fault are still its own doing.
_SOON: Final = 40
_SM: Final = Pattern(r"\(GPC (?P<gpc>\d{1,18}), TPC (?P<tpc>\d{1,18}), SM (?P<sm>\d{1,18})\)")
# Failed steps that are told apart elsewhere are left out: 0x22:0x56 is of a memory region, 0x61 to 0x63 of the GSP.
_NOT_INITIALISED: Final = Pattern(
    r"RmInitAdapter failed! \((?P<code>0x(?!22:0x56|6[1-3]:)[0-9a-f:x]+)\)", re.IGNORECASE
)
# What is left where somebody searched for the name of the module's function alone.
_GIVEN_UP: Final = Pattern(r"\brm_init_adapter failed\b")
_INIT_FAILED: Final = Pattern(r"\bRmInitAdapter failed!")
_OF_GPU: Final = Pattern(r"\bGPU (?P<bus>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.IGNORECASE)


def _told(*codes: int) -> Callable[[Snapshot], Iterator[Verdict]]:
    """Whether an incident began with one of these codes."""

    def check(snapshot: Snapshot) -> Iterator[Verdict]:
        for incident in faults.of(snapshot, *codes):
            yield faults.proof(incident)

    return check


def _halted(snapshot: Snapshot) -> Iterator[Verdict]:
    yield from _told(62, 169)(snapshot)
    if not snapshot.view(faults.incidents) and (said := kernel.said(snapshot, _PMU_HALTED)):
        places = tuple(message.citation for message in said[:3])
        yield Proof("The GPU's power management unit halted", places, at=said[0].at)


def _timeouts(snapshot: Snapshot) -> Iterator[Verdict]:
    for incident in faults.of(snapshot, 109):
        yield faults.proof(incident, severity=_weight(snapshot, incident))


def _weight(snapshot: Snapshot, incident: faults.Incident) -> Severity | None:
    """What a program did to itself is news for a day; after that it is history, and the node is well."""
    return "info" if faults.is_past(snapshot, incident) else None


def _exceptions(snapshot: Snapshot) -> Iterator[Verdict]:
    for incident in faults.of(snapshot, *_GRAPHICS):
        place = _same_place(snapshot, incident.gpu)
        more = (
            f"; every time on {place}, by more than one program, so this part of the GPU may be broken" if place else ""
        )
        proof = faults.proof(incident, severity=_weight(snapshot, incident))
        yield replace(proof, summary=proof.summary + more)


def _same_place(snapshot: Snapshot, gpu: str) -> str:
    """The multiprocessor on which the exceptions of more than one program were; empty without such a one."""
    told = [fault.xid for fault in faults.on(snapshot, gpu) if fault.code in _GRAPHICS and fault.xid]
    places = {match[0].strip("()") for one in told if (match := _SM.search(one.text))}
    programs = {one.process or one.pid for one in told} - {""}
    return next(iter(places)) if len(places) == 1 and len(programs) > 1 else ""


def _page_faults(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """Whose page faults they are: the driver's, by its release or by their sameness, else a program's."""
    for incident in faults.of(snapshot, 31):
        by_driver = _of_driver(snapshot, incident)
        if by_driver:
            reason, citations = by_driver
            proof = faults.proof(
                incident, f"a page fault that is the driver's own doing: {reason}", confidence="likely"
            )
            places = tuple(dict.fromkeys((*proof.citations, *citations)))
            yield "xid-31-driver-regression", Proof(proof.summary, places, "likely", gpu=proof.gpu, at=proof.at)
        elif _is_of_desktop(incident):
            yield "xid-31-mmu-fault", _whose(incident)
        else:
            proof = faults.proof(incident, confidence="likely", severity=_weight(snapshot, incident))
            yield "xid-31-mmu-fault", proof


# Programs that draw, which everybody runs and nobody who runs them wrote.
_DRAWS: Final = Pattern(
    r"^(?:mpv|vlc|obs|totem|Xorg|Xwayland|kwin|plasmashell|gnome-shell|mutter|sway|Hyprland|firefox|chrom|brave|electron"
    r"|steam|blender|vulkan)",
    re.IGNORECASE,
)


def _is_of_desktop(incident: faults.Incident) -> bool:
    return bool(incident.root.xid and _DRAWS.match(incident.root.xid.process))


def _whose(incident: faults.Incident) -> Doubt:
    said = incident.root.xid
    question = f"{said.process if said else 'a program'} met a page fault (Xid 31): by its own bug, or by the driver's?"
    look_at = (
        Shell("sudo dmesg | grep Xid"),
        Shell("grep -i -B3 nvidia /var/log/apt/history.log  # an upgrade before the first of them"),
    )
    return Doubt(question, look_at, incident.citations, ("xid-31-driver-regression",))


# A person's word on two releases on one machine.
_COMPARED: Final = Pattern(
    r"(?:roll(?:ed|ing) back|downgrad(?:ed|ing)|revert(?:ed|ing)|went back|going back)[^\n]{0,40}\b\d{3}\.\d[^\n]{0,60}"
    r"(?:works|fixe[sd]|fine|gone|stable|solve[sd]|no more)"
    r"|downgrading (?:the |to )[^\n]{0,40}(?:fixe[sd]|solve[sd]|helps|helped)"
    r"|\b(?:runs|works|fine|stable|none)\b[^\n]{0,40} (?:with|on|under) \d{3}\.\d[^\n]{0,80}"
    r"(?:fails|faults|crashes|breaks)[^\n]{0,40}\b\d{3}\.\d"
    r"|\b[3-6]\d\d\.\d[\d.]*[: \t(]{1,4}(?:0\b|none|no (?:faults?|crash|xid|error)|zero|never|clean|stable|fine|ok\b)"
    r"[^\n]{0,60}\b[3-6]\d\d\.\d[\d.]*[: \t(]{1,4}(?:[1-9]\d{0,4}\b|(?:xid |page )?faults?|crash|hang|every)"
    r"|\b[3-6]\d\d\.\d[\d.]*[: \t(]{1,4}(?:[1-9]\d{0,4} (?:xid|fault|crash)|(?:xid |page )?faults?|crash|hang|every)"
    r"[^\n]{0,60}\b[3-6]\d\d\.\d[\d.]*[: \t(]{1,4}(?:0\b|none|no (?:faults?|crash|xid|error)|zero|never|clean|stable)"
    r"|\bwith \d{3}\.\d[^\n]{0,80}[;,] with \d{3}\.\d[^\n]{0,60}\b(?:none|never|not|fine|works)\b",
    re.IGNORECASE,
)


def _of_driver(snapshot: Snapshot, incident: faults.Incident) -> tuple[str, tuple[Citation, ...]] | None:
    told = [f for f in faults.on(snapshot, incident.gpu) if f.code == 31 and f.xid]
    for release in (driver.smi_version(snapshot), snapshot.view(driver.loaded), driver.on_disk(snapshot)):
        if release is not None and release.version in _FAULTY_RELEASES:
            return f"release {release.version} is known for it", (release.citation,)
    if address := _one_address(told):
        return f"different processes faulted at the same address {address}", tuple(f.citation for f in told[:4])
    if mapped := kernel.said(snapshot, _BAD_MAPPING):
        return "it mapped memory outside the GPU's window", tuple(message.citation for message in mapped[:2])
    # A node's whole history has upgrades, and any program may fault at any time: one program alone proves nothing.
    processes = {fault.xid.process or fault.xid.pid for fault in told if fault.xid} - {""}
    upgrade = tuple(_brought_before(snapshot, told))
    if upgrade and (len(processes) > 1 or _is_excerpt(snapshot)):
        return "they came with another release of the driver", upgrade[:3]
    if compared := snapshot.said(_COMPARED, "text", "application"):
        return "another release does not bring them", compared[:3]
    if _took_the_firmware_along(incident):
        return "the GPU's own firmware went down with it, which a program cannot bring about", incident.citations
    return None


def _brought_before(snapshot: Snapshot, told: list[faults.Fault]) -> Iterator[Citation]:
    """The lines by which another release of the driver came before the first of the faults, and was loaded then."""
    found = snapshot.view(history.releases)
    running = snapshot.view(driver.loaded) or driver.smi_version(snapshot)
    first = min(told, key=lambda fault: fault.order)
    for one in found:
        is_idle = (
            running is not None and running.version == one.before and running.version not in {r.after for r in found}
        )
        if not is_idle and not _is_later(history.moment(snapshot, one.citation), kernel.dated(first.citation.line)):
            yield one.citation


_FIRST_YEAR: Final = 1e9


def _is_later(at: float | None, fault: float | None) -> bool:
    """Whether it was done after the fault, by two dates that have their years."""
    return at is not None and fault is not None and _FIRST_YEAR < fault < at


def _is_excerpt(snapshot: Snapshot) -> bool:
    """Whether somebody chose the lines of the history, for what they say of these faults."""
    return all(len(item.lines) <= _EXCERPT for item in snapshot.of("package-history"))


_EXCERPT: Final = 12


def _one_address(told: list[faults.Fault]) -> str:
    """The one address at which different processes faulted; programs do not share their pointers.

    A program of somebody's own that is run again fails at the same place again, and speaks for nothing.
    """
    found: dict[str, set[str]] = {}
    for fault in told:
        if fault.xid and (match := _ADDRESS.search(fault.xid.text)):
            who = fault.xid.process if _OWN_CODE.match(fault.xid.process) else fault.xid.pid or fault.xid.process
            found.setdefault(match["address"].lower(), set()).add(who)
    shared = (address for address, processes in found.items() if len(processes - {""}) > 1)
    return next((address for address in shared if int(address.replace("_", ""), 16) >= _NULL), "")


def _took_the_firmware_along(incident: faults.Incident) -> bool:
    later = (fault for fault in incident.followed if fault.xid and fault.order - incident.root.order < _SOON)
    return any(fault.code in {62, 119, 120} or recovery.asked(fault) == "reboot" for fault in later)


def _initialisation(snapshot: Snapshot) -> Iterator[Verdict]:
    yield from _told(143)(snapshot)
    failed = tuple(message for message in _not_initialised(snapshot) if not _has_incident(snapshot, message))
    if failed:
        yield Doubt(
            "the driver cannot initialise a GPU; at what it fails, the lines before RmInitAdapter tell",
            (Shell("sudo dmesg --ctime | grep -iE 'nvrm|nvidia|pci'"),),
            tuple(message.citation for message in failed[:3]),
            ("gpu-fallen-off-bus", "bar-allocation-failed", "gpu-stuck-d3cold", "xid-54-aux-power"),
        )


def _not_initialised(snapshot: Snapshot) -> tuple[kernel.Message, ...]:
    return kernel.said(snapshot, _NOT_INITIALISED) or (
        () if kernel.said(snapshot, _INIT_FAILED) else kernel.said(snapshot, _GIVEN_UP)
    )


def _has_incident(snapshot: Snapshot, message: kernel.Message) -> bool:
    """Whether the GPU has a fault that tells more; where the message names none, whether any has one."""
    named = _OF_GPU.search(message.text)
    if named is None:
        return bool(snapshot.view(faults.incidents))
    slot = pci.address(named["bus"]).rpartition(".")[0]
    return any(not one.gpu or one.gpu.startswith(slot) for one in snapshot.view(faults.incidents))


def _without_cause(snapshot: Snapshot) -> Iterator[Verdict]:
    """What the catalog says of codes that no rule is about."""
    for incident in snapshot.view(faults.incidents):
        code = incident.root.code
        if incident.root.source != "xid" or code in _OWN or code in _ELSEWHERE:
            continue
        entry = xids.lookup(code)
        meaning = entry.meaning if entry else "a code that neither NVIDIA's catalog nor the driver's headers have"
        advice = f"; NVIDIA's catalog says: {entry.advice}" if entry and entry.advice else ""
        question = (
            f"{faults.label(incident.gpu)} reported Xid {code}, {meaning}; what brought it about is not told{advice}"
        )
        look_at = (Shell("sudo dmesg --ctime | grep -iE 'xid|nvrm'"), Shell("nvidia-smi -q"))
        yield Doubt(question, look_at, incident.citations, _NEAREST.get(entry.kind, ()) if entry else ())


def _last(snapshot: Snapshot) -> Iterator[Verdict]:
    yield from recovering.actions(snapshot)
    yield from _without_cause(snapshot)


def _debug(_: Snapshot) -> Iterable[Fix]:
    yield by_hand("application", "start the program again, and look for its fault with compute-sanitizer or cuda-gdb")
    yield run(
        "inspect",
        "test the GPU",
        Shell("sudo dcgmi diag -r 3"),
        when="other programs fault on it too, at the same place",
    )
    yield nvidia_report("programs that are known to be right go on faulting")


def _debug_memory(_: Snapshot) -> Iterable[Fix]:
    yield by_hand("application", "start the program again, and look for its fault with compute-sanitizer")
    yield run(
        "inspect", "test the GPU", Shell("sudo dcgmi diag -r 3"), when="many programs fault, and on this GPU only"
    )
    yield by_hand("install", "try another release of the driver", "it began with an update of the driver")


def _change_release(snapshot: Snapshot) -> Iterable[Fix]:
    yield from remedies.newer_driver(snapshot, "go to another release of the driver", back=True)
    yield reboot("reboot, so that it is the one that is loaded")
    yield nvidia_report("that release faults too")


def _free_engine(_: Snapshot) -> Iterable[Fix]:
    yield by_hand("application", "end the program, and start it again")
    yield reset_gpu(when="the GPU does not come back with that")
    yield by_hand("install", "try another release of the driver", "it comes back with programs that ran before")
    yield nvidia_report()


def _keep_state(snapshot: Snapshot) -> Fix:
    text = "keep the driver's state between programs, so that the GPU sleeps less"
    daemon = (Shell("sudo systemctl enable --now nvidia-persistenced"),)
    return setup_step(snapshot, "configure", text, "persistence", instead=daemon, when="persistence mode is off")


def _settle_power(snapshot: Snapshot) -> Iterable[Fix]:
    yield by_hand("firmware", "update the machine's firmware, the GPU's VBIOS and the driver")
    yield _keep_state(snapshot)
    asked = ("--query-gpu=clocks.max.graphics", "--format=csv,noheader,nounits")
    highest = output(command("nvidia-smi", "-i", ADDRESS, *asked))
    lock = of_gpu("sudo", "nvidia-smi", "-i", ADDRESS, beside("--lock-gpu-clocks=1000,", highest))
    yield run("configure", "keep the GPU from its lowest clocks", lock, when="it comes back")
    yield reboot("reboot, to bring the GPU back", "it hangs")


def _restart_controller(snapshot: Snapshot) -> Iterable[Fix]:
    yield reset_gpu()
    yield reboot(when="the reset is refused or hangs")
    yield _keep_state(snapshot)
    yield by_hand(
        "firmware",
        "switch PCI Express power saving (ASPM) off: pcie_aspm=off among the kernel's arguments",
        "it happens when the GPU wakes from idling",
    )
    yield by_hand("install", "update driver and VBIOS", "it comes back")
    yield nvidia_report()


def _read_flash(_: Snapshot) -> Iterable[Fix]:
    yield reset_gpu()
    yield reboot(when="the reset is refused")
    yield run("inspect", "see whether nvidia-smi warns of the InfoROM", Shell("nvidia-smi"))
    yield remedies.replace(when="it comes back")


def _initialise(_: Snapshot) -> Iterable[Fix]:
    yield reset_gpu()
    yield power_cycle("power the node off and on again, where the reset is refused")
    yield by_hand("hardware", "check seat and power of the GPU", "it stays so")
    yield nvidia_report("it stays so")


_CONSEQUENCES: Final = UNHEALTHY_IN_CLUSTER | {"nvidia-uvm-wedged"}
# The device plugin passes over what programs do (k8s-device-plugin: Xids 13, 31, 43, 45, 68, 109).
_OF_PROGRAMS: Final = frozenset({"nvidia-uvm-wedged"})
_GPU_DOWN: Final = NOT_INITIALISED | PROGRAM_FAULTS | {"nvlink-all-links-inactive-gpu", "nvlink-link-inactive"}

FAMILY: Final = Family(
    "xids",
    "Xid errors",
    (
        Rule(
            cause="xid-13-graphics-exception",
            layer="driver",
            storey="programs",
            severity="warning",
            disruption="restart-container",
            title="a program did what the GPU forbids",
            share=0.6,
            symptoms=(
                symptoms.ANY_XID,
                symptoms.CUDA_FAULT,
            ),
            look_at=(Shell("sudo dmesg | grep -i xid"),),
            story=(
                "A kernel or shader ran into an illegal instruction, an address out of range, a misaligned access "
                "or an overrun stack, and the engine stopped it (Xid 13; Xid 69 where a command itself was wrong). "
                "The program is ended with a CUDA error, its channels are taken down (Xid 43, 45, 109), and the "
                "GPU goes on. It is nearly always the program's own fault.\n\n"
                "The message names the place: GPC, TPC and SM. When different programs, right elsewhere, fail at one "
                "and the same place, that part of the GPU is broken."
            ),
            sources=(XID_CATALOG, "https://github.com/leptonai/gpud/pull/46"),
            check=_exceptions,
            remedy=_debug,
            explains=_OF_PROGRAMS | {"xid-109-ctx-switch-timeout"},
        ),
        Rule(
            cause="xid-31-mmu-fault",
            layer="driver",
            storey="programs",
            severity="warning",
            disruption="restart-container",
            title="a program touched GPU memory that is not its own",
            share=0.8,
            symptoms=(
                symptoms.ANY_XID,
                symptoms.CUDA_FAULT,
                symptoms.NCCL_FAILS,
            ),
            look_at=(Shell("sudo dmesg | grep -i xid"),),
            story=(
                "The GPU's memory unit met an address that no page is mapped to, or not for this use (Xid 31). The "
                "message says which engine asked, at which address and for what; the program is ended. A pointer "
                "used after it was freed, an index out of range or a mistake in a library is the usual reason.\n\n"
                "Look further when it is not one program: many on one GPU only speak for the GPU, many on every GPU "
                "for the driver."
            ),
            sources=(XID_CATALOG, f"{OPEN_MODULES}/issues/1030"),
            check=only("xid-31-mmu-fault", _page_faults),
            remedy=_debug_memory,
            explains=_OF_PROGRAMS,
        ),
        Rule(
            cause="xid-31-driver-regression",
            layer="driver",
            storey="driver",
            severity="error",
            disruption="reboot",
            title="this release of the driver lets programs fault",
            symptoms=(
                symptoms.ANY_XID,
                symptoms.CUDA_FAULT,
            ),
            look_at=(
                Shell("sudo dmesg | grep -i xid"),
                Shell("cat /proc/driver/nvidia/version"),
            ),
            story=(
                "Page faults (Xid 31) that no program is to blame for: they began with another release of the driver, "
                "programs of different kinds fault at the very same address, or the release is known for it. The "
                "driver's own page tables are wrong then. The same programs run clean on the release before, so go "
                "back to it, or on to the one that mends it."
            ),
            sources=(f"{OPEN_MODULES}/issues/1370", f"{OPEN_MODULES}/issues/363", f"{OPEN_MODULES}/issues/1134"),
            check=only("xid-31-driver-regression", _page_faults),
            remedy=_change_release,
            explains=_OF_PROGRAMS,
        ),
        Rule(
            cause="xid-61-pmu-breakpoint",
            layer="driver",
            storey="gpu",
            severity="error",
            disruption="reboot",
            title="the GPU's power controller stopped",
            symptoms=(
                symptoms.ANY_XID,
                symptoms.SLOW,
            ),
            look_at=(Shell("sudo dmesg | grep -i xid"),),
            story=(
                "The power management unit, a controller inside the GPU, stopped at a breakpoint of its own firmware "
                "(Xid 61, in older drivers; newer ones report Xid 62). It is known from changes of power state on some "
                "platforms, early Ryzen among them: the GPU hangs at its lowest clocks and everything on it stutters "
                "or stops. Newer firmware for board and GPU mended most of it; keeping the GPU from its deepest idle "
                "avoids it."
            ),
            sources=(XID_CATALOG, f"{OPEN_MODULES}/blob/main/src/common/sdk/nvidia/inc/nverror.h"),
            check=_told(61),
            remedy=_settle_power,
            explains=_GPU_DOWN,
        ),
        Rule(
            cause="xid-62-pmu-halt",
            layer="driver",
            storey="gpu",
            severity="error",
            disruption="reset-gpu",
            title="the GPU's power controller halted",
            symptoms=(
                symptoms.ANY_XID,
                symptoms.GPU_LOST,
            ),
            look_at=(Shell("sudo dmesg | grep -i xid"),),
            story=(
                "The power management unit, a controller inside the GPU, halted (Xid 62), and with it clocks, fans and "
                "power states. The driver asks for a reset (Xid 154); calls to the GSP time out and channels are taken "
                "down after it. It is known from GPUs that wake from idling and from certain releases of the driver "
                "under long load."
            ),
            sources=(f"{OPEN_MODULES}/issues/1045", XID_CATALOG),
            check=_halted,
            remedy=_restart_controller,
            explains=_GPU_DOWN
            | {"xid-143-gpu-init-error", "gsp-bad-state-wpr2", "gsp-rpc-timeout", "gsp-init-failed-platform"},
        ),
        Rule(
            cause="xid-109-ctx-switch-timeout",
            layer="driver",
            storey="programs",
            severity="error",
            disruption="restart-container",
            title="a program does not let go of the GPU",
            symptoms=(
                symptoms.ANY_XID,
                symptoms.CUDA_FAULT,
                symptoms.SLOW,
            ),
            look_at=(Shell("sudo dmesg | grep -i xid"),),
            story=(
                "The GPU wanted to give an engine to another context, and the one on it did not stop in time (Xid "
                "109). A kernel or shader that never ends does that, and so do releases of the driver with a bug. The "
                "program's channels are taken down; mostly that is all. Behind an Xid 13 or 31 it is only their "
                "consequence."
            ),
            sources=(f"{OPEN_MODULES}/issues/502", f"{OPEN_MODULES}/issues/1146"),
            check=_timeouts,
            remedy=_free_engine,
            explains=_CONSEQUENCES,
        ),
        Rule(
            cause="xid-121-c2c-link",
            layer="hardware",
            storey="gpu",
            severity="warning",
            disruption="none",
            title="errors on the link between CPU and GPU",
            symptoms=(symptoms.ANY_XID,),
            look_at=(Shell("sudo dmesg | grep -i xid"),),
            story=(
                "Grace Hopper and Grace Blackwell join CPU and GPU by a link between the chips, NVLink-C2C. It reports "
                "errors that it corrected (Xid 121): nothing was lost and nothing needs to be done at once. A link "
                "that fails for good is Xid 173. Reset the GPU when it is free, and open a case if it happens often."
            ),
            sources=(XID_CATALOG, f"{OPEN_MODULES}/blob/main/src/common/sdk/nvidia/inc/nverror.h"),
            check=_told(*_CHIP_LINK),
            remedy=always(
                by_hand("wait", "nothing now: the errors were corrected; reset the GPU at the next occasion"),
                run("inspect", "see the state of the links", Shell("nvidia-smi c2c -s")),
                nvidia_report("it happens often, or a link is down"),
            ),
            explains=UNHEALTHY_IN_CLUSTER,
        ),
        Rule(
            cause="xid-122-spi-rpc",
            layer="hardware",
            storey="gpu",
            severity="warning",
            disruption="reset-gpu",
            title="the GPU's flash memory does not answer",
            symptoms=(symptoms.ANY_XID,),
            look_at=(Shell("sudo dmesg | grep -i xid"),),
            story=(
                "The GPU keeps its InfoROM in a flash chip behind the power management unit, and a read, write or "
                "erase of it failed (Xid 122, 123, 124). Programs are not touched, but serial number, ECC history and "
                "the list of bad memory may not be kept. Once is a hiccup; if it stays after a reset the chip or the "
                "board fails."
            ),
            sources=(XID_CATALOG, f"{OPEN_MODULES}/blob/main/src/common/sdk/nvidia/inc/nverror.h"),
            check=_told(*_FLASH),
            remedy=_read_flash,
            explains=UNHEALTHY_IN_CLUSTER | {"inforom-corrupted"},
        ),
        Rule(
            cause="xid-143-gpu-init-error",
            layer="hardware",
            storey="gpu",
            severity="error",
            disruption="power-cycle",
            title="the GPU could not be initialised",
            symptoms=(
                symptoms.ANY_XID,
                symptoms.NOT_STARTED,
            ),
            look_at=(Shell("sudo dmesg | grep -i xid"),),
            story=(
                "The driver got as far as the GPU and could not bring it up (Xid 143), at the load of the module or "
                "when the first program or the persistence daemon opened it. If no other Xid and no message of the GSP "
                "stands before it, the GPU itself does not start: reset it, then take its power away, then look at "
                "seat and cables."
            ),
            sources=(XID_CATALOG, "https://github.com/leptonai/gpud/pull/614"),
            check=_initialisation,
            remedy=_initialise,
            explains=_GPU_DOWN,
        ),
        Rule(
            cause="xid-154-recovery-action",
            layer="driver",
            storey="gpu",
            severity="error",
            disruption="reset-gpu",
            title="the GPU waits to be recovered",
            symptoms=(
                symptoms.ANY_XID,
                symptoms.GPU_LOST,
            ),
            look_at=(Shell("sudo dmesg | grep -i xid"),),
            story=(
                "Newer drivers say what they want done about a GPU: nothing, a reset, a reboot of the node, or its "
                "work moved away first (Xid 154, and GPU Recovery Action in nvidia-smi -q). It never stands for an "
                "error of its own. Another Xid on the same GPU came before it; where a log begins too late to have it, "
                "the action is still to be taken, and the cause is still to be found."
            ),
            sources=("https://github.com/leptonai/gpud", XID_CATALOG),
            check=_last,
            remedy=always(*recovering.steps("")),
            explains=_GPU_DOWN,
        ),
    ),
)
