"""Xid errors that have no family of their own: programs, engines, controllers inside the GPU, boards."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from gpunode.catalog import xids
from gpunode.catalog.xids import XidKind
from gpunode.diagnoses import recovering, remedies, symptoms
from gpunode.diagnoses.addresses import OPEN_MODULES, XID_CATALOG
from gpunode.diagnoses.chains import NOT_INITIALISED, PROGRAM_FAULTS, UNHEALTHY_IN_CLUSTER
from gpunode.diagnoses.commands import ADDRESS, Shell, beside, command, of_gpu, output
from gpunode.diagnoses.model import Citation, Doubt, Family, Fix, Rule, Verdict, only
from gpunode.diagnoses.remedies import always, by_hand, nvidia_report, power_cycle, reboot, reset_gpu, run, setup_step
from gpunode.diagnoses.signs import anywhere, asked, fact, kernel_line, line
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import driver, faults, history, kernel, recovery
from gpunode.facts.patterns import Pattern

_GRAPHICS: Final = (13, 69)
_FLASH: Final = (122, 123, 124)
_CHIP_LINK: Final = (121, 173)
# The codes that some rule is about; any other becomes a question with the catalog's advice.
_HAVE_A_RULE: Final = frozenset({
    *_GRAPHICS, *_FLASH, *_CHIP_LINK, *xids.NVLINK5,
    *(31, 48, 54, 61, 62, 63, 64, 74, 78, 79, 92, 94, 95, 109, 119, 120, 125, 140, 143, 154, 156, 157, 160, 161, 167),
    *(169, 171, 172),
})  # fmt: skip
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
# Programs that draw, which everybody runs and nobody who runs them wrote.
_DRAWS: Final = Pattern(
    r"^(?:mpv|vlc|obs|totem|Xorg|Xwayland|kwin|plasmashell|gnome-shell|mutter|sway|Hyprland|firefox|chrom|brave|electron"
    r"|steam|blender|vulkan)",
    re.IGNORECASE,
)
# The kernel's complaint about nvidia-drm, of a mapping that reaches over the end of the GPU's memory window.
_BAD_MAPPING: Final = Pattern(r"caller \w*nv_drm_\w+|__nv_drm_gem_nvkms_map")
# Somebody compared releases of the driver: one has the faults and another has none.
_RELEASE: Final = r"\b[3-6]\d\d\.\d[\d.]*"
_GOOD: Final = r"(?:0\b|none|no (?:faults?|crash|xids?|errors?)|zero|never|not|clean|stable|fine|ok|works?|runs)\b"
_BAD: Final = r"(?:[1-9]\d{0,4} (?:xid|fault|crash)|(?:xid |page )?faults?|fails|crash|hang|breaks|every)"
_BETWEEN: Final = r"[^\n]{0,60}"
_COMPARED: Final = (
    r"(?:roll(?:ed|ing) back|downgrad(?:ed|ing)|revert(?:ed|ing)|went back|going back)[^\n]{0,60}"
    r"(?:works|fixe[sd]|fine|gone|stable|solve[sd]|help|no more)"
    rf"|{_RELEASE}{_BETWEEN}{_GOOD}{_BETWEEN}{_RELEASE}{_BETWEEN}{_BAD}"
    rf"|{_RELEASE}{_BETWEEN}{_BAD}{_BETWEEN}{_RELEASE}{_BETWEEN}{_GOOD}"
    rf"|{_GOOD}[^\n]{{0,40}} (?:with|on|under) {_RELEASE}{_BETWEEN}{_BAD}{_BETWEEN}{_RELEASE}"
)
_COMPARED_RELEASES: Final = Pattern(_COMPARED, re.IGNORECASE)
# How many messages after a page fault are still its own doing.
_SOON: Final = 40
_EXCERPT: Final = 12
_SM: Final = Pattern(r"\(GPC \d{1,18}, TPC \d{1,18}, SM \d{1,18}\)")


def _exceptions(snapshot: Snapshot) -> Iterator[Verdict]:
    for proof in faults.began(*_GRAPHICS, is_of_programs=True)(snapshot):
        place = _same_place(snapshot, proof.gpu)
        more = f"; every time on {place}, by more than one program: this part of the GPU may be broken" if place else ""
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
        if by_driver := _of_driver(snapshot, incident):
            reason, lines = by_driver
            proof = faults.proof(
                incident, f"a page fault that is the driver's own doing: {reason}", confidence="likely"
            )
            yield "xid-31-driver-regression", replace(proof, citations=tuple(dict.fromkeys((*proof.citations, *lines))))
        else:
            severity = "info" if faults.is_past(snapshot, incident) else None
            yield "xid-31-mmu-fault", faults.proof(incident, confidence="likely", severity=severity)


def _of_driver(snapshot: Snapshot, incident: faults.Incident) -> tuple[str, tuple[Citation, ...]] | None:
    told = [fault for fault in faults.on(snapshot, incident.gpu) if fault.code == 31 and fault.xid]
    if known := tuple(_known_release(snapshot)):
        return "this release is known for it", known[:1]
    if address := _one_address(told):
        lines = tuple(fault.citation for fault in told[:4])
        return f"different processes faulted at the same address {address}", lines
    if mapped := kernel.said(snapshot, _BAD_MAPPING):
        return "it mapped memory outside the GPU's window", tuple(message.citation for message in mapped[:2])
    # A node's whole history has upgrades, and any program may fault at any time: one program alone proves nothing.
    processes = {fault.xid.process or fault.xid.pid for fault in told if fault.xid} - {""}
    upgrades = tuple(_brought_before(snapshot, told))
    if upgrades and (len(processes) > 1 or _is_excerpt(snapshot)):
        return "they came with another release of the driver", upgrades[:3]
    if compared := snapshot.said(_COMPARED_RELEASES, "text", "application"):
        return "another release does not bring them", compared[:3]
    if _took_the_firmware_along(incident):
        return "the GPU's own firmware went down with it, which a program cannot bring about", incident.citations
    if incident.root.xid and _DRAWS.match(incident.root.xid.process):
        return f"{incident.root.xid.process} is a program that runs everywhere without them", incident.citations
    return None


def _brought_before(snapshot: Snapshot, told: list[faults.Fault]) -> Iterator[Citation]:
    """The lines by which another release of the driver came before the first of the faults, and was loaded then."""
    found = snapshot.view(history.releases)
    running = snapshot.view(driver.loaded) or driver.smi_version(snapshot)
    first = kernel.dated(min(told, key=lambda fault: fault.order).citation.line)
    for one in found:
        is_idle = running and running.version == one.before and running.version not in {r.after for r in found}
        at = history.moment(snapshot, one.citation)
        is_later = at is not None and first is not None and _FIRST_YEAR < first < at
        if not is_idle and not is_later:
            yield one.citation


_FIRST_YEAR: Final = 1e9


def _known_release(snapshot: Snapshot) -> Iterator[Citation]:
    releases = (driver.smi_version(snapshot), snapshot.view(driver.loaded), driver.on_disk(snapshot))
    return (one.citation for one in releases if one is not None and one.version in _FAULTY_RELEASES)


def _is_excerpt(snapshot: Snapshot) -> bool:
    """Whether somebody chose the lines of the history, for what they say of these faults."""
    return all(len(item.lines) <= _EXCERPT for item in snapshot.of("package-history"))


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


def _last(snapshot: Snapshot) -> Iterator[Verdict]:
    """What the driver wants done; and what must not pass for health, though no rule is about it."""
    yield from recovering.actions(snapshot)
    yield from _without_rule(snapshot)
    if not snapshot.view(faults.grave):
        look_at = (Shell("sudo dmesg --ctime | grep -iE 'nvrm|nvidia|pci'"), Shell("nvidia-smi -q"))
        if failed := kernel.said(snapshot, _NOT_INITIALISED):
            question = "the driver cannot initialise a GPU; the lines before RmInitAdapter say at what it fails"
            yield Doubt(question, look_at, tuple(message.citation for message in failed[:3]), _NOT_STARTED)
        if unread := snapshot.view(driver.unread):
            question = "nvidia-smi shows ERR! for a GPU: is a sensor or fan broken, or the GPU about to be lost?"
            yield Doubt(question, look_at, unread, _UNREAD)


# Failed steps that are told apart elsewhere are left out: 0x22:0x56 is of a memory region, 0x61 to 0x63 of the GSP.
_NOT_INITIALISED: Final = Pattern(
    r"RmInitAdapter failed! \(0x(?!22:0x56|6[1-3]:)[0-9a-f:x]+\)|^(?!.*RmInitAdapter).*\brm_init_adapter failed\b",
    re.IGNORECASE,
)
_NOT_STARTED: Final = ("gpu-fallen-off-bus", "bar-allocation-failed", "gpu-stuck-d3cold", "xid-54-aux-power")
_UNREAD: Final = (
    *("gpu-fallen-off-bus", "gsp-rpc-timeout", "gsp-task-exception", "xid-62-pmu-halt", "xid-61-pmu-breakpoint"),
    *("inforom-corrupted", "gpu-stuck-d3cold", "thermal-slowdown", "power-brake-slowdown", "xid-54-aux-power"),
)


def _without_rule(snapshot: Snapshot) -> Iterator[Doubt]:
    """What the catalog says of codes that no rule is about."""
    for incident in snapshot.view(faults.incidents):
        code = incident.root.code
        if incident.root.source != "xid" or code in _HAVE_A_RULE:
            continue
        entry = xids.lookup(code)
        meaning = entry.meaning if entry else "a code that neither NVIDIA's catalog nor the driver's headers have"
        advice = f"; NVIDIA's catalog says: {entry.advice}" if entry and entry.advice else ""
        question = f"{faults.label(incident.gpu)} reported Xid {code}, {meaning}; its cause is not known{advice}"
        look_at = (Shell("sudo dmesg --ctime | grep -iE 'xid|nvrm'"), Shell("nvidia-smi -q"))
        yield Doubt(question, look_at, incident.citations, _NEAREST.get(entry.kind, ()) if entry else ())


_DIAGNOSE: Final = Shell("sudo dcgmi diag -r 3")
_PLATFORM_FIRMWARE: Final = by_hand("firmware", "update the machine's firmware, the GPU's VBIOS and the driver")


def _change_release(snapshot: Snapshot) -> Iterable[Fix]:
    yield from remedies.newer_driver(snapshot, "go to another release of the driver", back=True)
    yield reboot("reboot, so that it is the one that is loaded")
    yield nvidia_report("that release faults too")


def _keep_state(snapshot: Snapshot) -> Fix:
    text = "keep the driver's state between programs, so that the GPU sleeps less"
    daemon = (Shell("sudo systemctl enable --now nvidia-persistenced"),)
    return setup_step(snapshot, "configure", text, "persistence", instead=daemon, when="persistence mode is off")


def _settle_power(snapshot: Snapshot) -> Iterable[Fix]:
    yield _PLATFORM_FIRMWARE
    yield _keep_state(snapshot)
    asked_for = ("--query-gpu=clocks.max.graphics", "--format=csv,noheader,nounits")
    highest = output(command("nvidia-smi", "-i", ADDRESS, *asked_for))
    lock = of_gpu("sudo", "nvidia-smi", "-i", ADDRESS, beside("--lock-gpu-clocks=1000,", highest))
    yield run("configure", "keep the GPU from its lowest clocks", lock, when="it comes back")
    yield reboot("reboot, to bring the GPU back", "it hangs")


def _restart_controller(snapshot: Snapshot) -> Iterable[Fix]:
    yield reset_gpu()
    yield reboot(when="the reset is refused or hangs")
    yield _keep_state(snapshot)
    text = "switch PCI Express power saving (ASPM) off: pcie_aspm=off among the kernel's arguments"
    yield by_hand("firmware", text, "it happens when the GPU wakes from idling")
    yield by_hand("install", "update driver and VBIOS", "it comes back")
    yield nvidia_report()


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
            symptoms=(symptoms.ANY_XID, symptoms.CUDA_FAULT),
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
            typical=line(
                r"misaligned address|illegal instruction was encountered|Invalid __\w+__ (?:read|write)"
                r"|CUDA_EXCEPTION_\d"
            ),
            remedy=always(
                by_hand(
                    "application", "start the program again, and find its fault with compute-sanitizer or cuda-gdb"
                ),
                run("inspect", "test the GPU", _DIAGNOSE, when="other programs fault on it too, at the same place"),
                nvidia_report("programs that are known to be right go on faulting"),
            ),
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
            symptoms=(symptoms.ANY_XID, symptoms.CUDA_FAULT, symptoms.NCCL_FAILS),
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
            typical=line(r"illegal memory access|CUDA_ERROR_ILLEGAL_ADDRESS|cudaErrorIllegalAddress"),
            remedy=always(
                by_hand("application", "start the program again, and find its fault with compute-sanitizer"),
                run("inspect", "test the GPU", _DIAGNOSE, when="many programs fault, and on this GPU only"),
                by_hand("install", "try another release of the driver", "it began with an update of the driver"),
            ),
            explains=_OF_PROGRAMS,
        ),
        Rule(
            cause="xid-31-driver-regression",
            layer="driver",
            storey="driver",
            disruption="reboot",
            title="this release of the driver lets programs fault",
            symptoms=(symptoms.ANY_XID, symptoms.CUDA_FAULT),
            look_at=(Shell("sudo dmesg | grep -i xid"), Shell("cat /proc/driver/nvidia/version")),
            story=(
                "Page faults (Xid 31) that no program is to blame for: they began with another release of the driver, "
                "programs of different kinds fault at the very same address, or the release is known for it. The "
                "driver's own page tables are wrong then. The same programs run clean on the release before, so go "
                "back to it, or on to the one that mends it."
            ),
            sources=(f"{OPEN_MODULES}/issues/1370", f"{OPEN_MODULES}/issues/363", f"{OPEN_MODULES}/issues/1134"),
            check=only("xid-31-driver-regression", _page_faults),
            typical=line(_COMPARED, "text", "application", flags=re.IGNORECASE),
            context=fact(_known_release),
            remedy=_change_release,
            explains=_OF_PROGRAMS,
        ),
        Rule(
            cause="xid-61-pmu-breakpoint",
            layer="driver",
            storey="gpu",
            disruption="reboot",
            title="the GPU's power controller stopped",
            symptoms=(symptoms.ANY_XID, symptoms.SLOW),
            look_at=(Shell("sudo dmesg | grep -i xid"),),
            story=(
                "The power management unit, a controller inside the GPU, stopped at a breakpoint of its own firmware "
                "(Xid 61, in older drivers; newer ones report Xid 62). It is known from changes of power state on some "
                "platforms, early Ryzen among them: the GPU hangs at its lowest clocks and everything on it stutters "
                "or stops. Newer firmware for board and GPU mended most of it; keeping the GPU from its deepest idle "
                "avoids it."
            ),
            sources=(XID_CATALOG, f"{OPEN_MODULES}/blob/main/src/common/sdk/nvidia/inc/nverror.h"),
            check=faults.began(61),
            context=anywhere(r"nvidia-smi[^\n]* (?:-lgc|--lock-gpu-clocks)"),
            remedy=_settle_power,
            explains=_GPU_DOWN,
        ),
        Rule(
            cause="xid-62-pmu-halt",
            layer="driver",
            storey="gpu",
            disruption="reset-gpu",
            title="the GPU's power controller halted",
            symptoms=(symptoms.ANY_XID, symptoms.GPU_LOST),
            look_at=(Shell("sudo dmesg | grep -i xid"),),
            story=(
                "The power management unit, a controller inside the GPU, halted (Xid 62), and with it clocks, fans and "
                "power states. The driver asks for a reset (Xid 154); calls to the GSP time out and channels are taken "
                "down after it. It is known from GPUs that wake from idling and from certain releases of the driver "
                "under long load."
            ),
            sources=(f"{OPEN_MODULES}/issues/1045", XID_CATALOG),
            check=faults.began(62, 169),
            typical=kernel_line(r"PmuHalted|PMU has halted"),
            remedy=_restart_controller,
            explains=_GPU_DOWN
            | {"xid-143-gpu-init-error", "gsp-bad-state-wpr2", "gsp-rpc-timeout", "gsp-init-failed-platform"},
        ),
        Rule(
            cause="xid-109-ctx-switch-timeout",
            layer="driver",
            storey="programs",
            disruption="restart-container",
            title="a program does not let go of the GPU",
            symptoms=(symptoms.ANY_XID, symptoms.CUDA_FAULT, symptoms.SLOW),
            look_at=(Shell("sudo dmesg | grep -i xid"),),
            story=(
                "The GPU wanted to give an engine to another context, and the one on it did not stop in time (Xid "
                "109). A kernel or shader that never ends does that, and so do releases of the driver with a bug. The "
                "program's channels are taken down; mostly that is all. Behind an Xid 13 or 31 it is only their "
                "consequence."
            ),
            sources=(f"{OPEN_MODULES}/issues/502", f"{OPEN_MODULES}/issues/1146"),
            check=faults.began(109, is_of_programs=True),
            remedy=always(
                by_hand("application", "end the program, and start it again"),
                reset_gpu(when="the GPU does not come back with that"),
                by_hand("install", "try another release of the driver", "it comes back with programs that ran before"),
                nvidia_report(),
            ),
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
            check=faults.began(*_CHIP_LINK),
            context=asked(r"\bc2c\b"),
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
            check=faults.began(*_FLASH),
            remedy=always(
                reset_gpu(),
                reboot(when="the reset is refused"),
                run("inspect", "see whether nvidia-smi warns of the InfoROM", Shell("nvidia-smi")),
                remedies.replace(when="it comes back"),
            ),
            explains=UNHEALTHY_IN_CLUSTER | {"inforom-corrupted"},
        ),
        Rule(
            cause="xid-143-gpu-init-error",
            layer="hardware",
            storey="gpu",
            disruption="power-cycle",
            title="the GPU could not be initialised",
            symptoms=(symptoms.ANY_XID, symptoms.NOT_STARTED),
            look_at=(Shell("sudo dmesg | grep -i xid"),),
            story=(
                "The driver got as far as the GPU and could not bring it up (Xid 143), at the load of the module or "
                "when the first program or the persistence daemon opened it. If no other Xid and no message of the GSP "
                "stands before it, the GPU itself does not start: reset it, then take its power away, then look at "
                "seat and cables."
            ),
            sources=(XID_CATALOG, "https://github.com/leptonai/gpud/pull/614"),
            check=faults.began(143),
            remedy=always(
                reset_gpu(),
                power_cycle("power the node off and on again, where the reset is refused"),
                by_hand("hardware", "check seat and power of the GPU", "it stays so"),
                nvidia_report("it stays so"),
            ),
            explains=_GPU_DOWN,
        ),
        Rule(
            cause="xid-154-recovery-action",
            layer="driver",
            storey="gpu",
            disruption="reset-gpu",
            title="the GPU waits to be recovered",
            symptoms=(symptoms.ANY_XID, symptoms.GPU_LOST),
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
