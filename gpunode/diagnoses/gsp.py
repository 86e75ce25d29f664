"""The GSP, the processor inside the GPU that runs most of the driver: starting it, talking to it, losing it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.catalog.gpus import GpuModel
from gpunode.diagnoses import symptoms
from gpunode.diagnoses.addresses import DRIVER_README, OPEN_MODULES, XID_CATALOG
from gpunode.diagnoses.chains import GPU_LOST
from gpunode.diagnoses.commands import Command, Shell, command, edited, edited_where, joined
from gpunode.diagnoses.model import Citation, Doubt, Family, Fix, Proof, Rule, Verdict, only
from gpunode.diagnoses.remedies import (
    MODULES_OUT,
    by_hand,
    guest_driver,
    newer_driver,
    nvidia_report,
    power_cycle,
    reboot,
    rebuild_initramfs,
    reinstall,
    replace,
    reset_gpu,
    run,
    takes_gpunode,
    without_kernel_argument,
)
from gpunode.diagnoses.snapshot import Snapshot, cite, lines_with
from gpunode.diagnoses.views import driver, faults, guests, kernel, modules, packages, pci
from gpunode.diagnoses.views.inventory import inventory
from gpunode.diagnoses.views.system import distro, package_manager
from gpunode.facts.patterns import Pattern

_README: Final = f"{DRIVER_README}gsp.html"

_RPC_TIMEOUT: Final = Pattern(
    r"Timeout (?:while )?waiting for RPC|Timeout after \d+s of waiting for RPC|rpcRecvPoll\w{0,60} timed? ?out|"
    r"Heartbeat timed out|GSP RPC timeout|Rate limiting GSP RPC error",
    re.IGNORECASE,
)
_TASK: Final = Pattern(r"GSP (?:task|kernel) (?:exception|watchdog)|GSP-CrashCat", re.IGNORECASE)
_WPR2: Final = Pattern(r"WPR2 (?:is )?already up", re.IGNORECASE)
_GFW: Final = Pattern(
    r"failed to wait for GFW|GFW_?\s?BOOT.{0,30}(?:fail|time|progress)|GFW boot did not", re.IGNORECASE
)
_NO_FILE: Final = Pattern(
    r"Direct firmware load for nvidia/\S*gsp\S* failed with error -2|firmware: failed to load nvidia/\S*gsp\S* \(-2\)|"
    r"RmFetchGspRmImages: No firmware image found|"
    r"(?:can(?:no|')t|could not|failed to|unable to) (?:find|load|open|request|fetch) \S{0,60}gsp\w*\.bin",
    re.IGNORECASE,
)
_NOT_STARTED: Final = Pattern(
    r"cannot initialize GSP(?: firmware RM|-RM)|Failed to (?:boot|initialize|start) GSP|"
    r"kgspBootstrap\w{0,60}: .{0,60}fail|"
    r"failed to (?:execute|prepare) .{0,40}(?:FWSEC|Booter)|GSP-?RM (?:boot|init\w*) fail",
    re.IGNORECASE,
)
# RmInitAdapter's first number says at what it failed: 0x61 to 0x63 at fetching the firmware and starting it.
_INIT: Final = Pattern(r"RmInitAdapter failed! \((?P<step>0x6[1-3]):(?P<status>0x[0-9a-f]+):\d+\)", re.IGNORECASE)
# Another cause of a failed start, told by the driver itself.
_UNSUPPORTED: Final = Pattern(
    r"not supported by (?:the )?open|requires use of the NVIDIA open|installed in this system is (?:not )?supported|"
    r"not supported by the (?:NVIDIA )?\d",
    re.IGNORECASE,
)
_SWITCHED_OFF: Final = Pattern(r"^[^#\n]{0,200}\bNVreg_EnableGpuFirmware\s*=\s*(?:0x0*)?0+\b", re.MULTILINE)
_PARAMETER_OFF: Final = Pattern(r"^[ \t]*EnableGpuFirmware:\s*0\s*$", re.MULTILINE)
_FIRMWARE_DIRS: Final = Pattern(r"/lib/firmware/nvidia\b")
# From this branch on NVIDIA's packages and installer take the open modules where the GPU lets them.
_OPEN_BY_DEFAULT: Final = 560
_IN_USE: Final = Pattern(rf"GSP Firmware Version\s*:\s*(?P<version>{driver.VERSION})")


_ASKED: Final = frozenset({"nvidia-smi", "nvidia-smi-q", "nvml"})


def _decide(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """What happened to the GSP: lost while it worked, else not started, and by what."""
    yield from _while_working(snapshot)
    missing = tuple(_missing(snapshot))
    if missing:
        yield "gsp-firmware-missing", _without_file(snapshot, missing)
        return
    yield from _not_started(snapshot)


def _while_working(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    for incident in faults.of(snapshot, 119):
        if not _was_started_again(snapshot, incident):
            yield "gsp-rpc-timeout", faults.proof(incident)
    # Of a log with its beginning cut off, a halt of the PMU may have come before.
    for incident in faults.of(snapshot, 120):
        if _is_later_part(snapshot):
            yield "gsp-task-exception", _what_came_before(incident)
        else:
            yield "gsp-task-exception", faults.proof(incident, confidence="likely" if _is_cut(snapshot) else "certain")
    if any(one.root.weight > 2 for one in snapshot.view(faults.incidents)):
        return
    if crashed := kernel.said(snapshot, _TASK):
        proof = _told("The GSP's firmware crashed", crashed)
        yield "gsp-task-exception", proof
    elif (silent := kernel.said(snapshot, _RPC_TIMEOUT)) and not kernel.said(snapshot, _WPR2):
        places = tuple(message.citation for message in silent[:6])
        summary = "The GSP does not answer the driver's calls"
        yield "gsp-rpc-timeout", Proof(summary, places, "likely", at=silent[0].at)
    elif not _nvml_answers(snapshot) and (
        hanging := tuple(cite(item) for item in snapshot.items if item.outcome == "timeout" and item.kind in _ASKED)
    ):
        yield (
            "gsp-rpc-timeout",
            Doubt(
                "nvidia-smi gives no answer: a call of the driver hangs, and no message of the kernel's says why",
                (
                    Shell("sudo dmesg | tail -50"),
                    Shell("ps -eo pid,stat,wchan:32,args | grep ' D'  # who hangs in the driver"),
                ),
                hanging,
                ("gpu-fallen-off-bus", "gsp-task-exception"),
            ),
        )


def _nvml_answers(snapshot: Snapshot) -> bool:
    """Whether NVML came back with its GPUs: then nvidia-smi, which asks it, was slow and does not hang."""
    return snapshot.view(inventory) is not None


def _is_cut(snapshot: Snapshot) -> bool:
    """Whether of the kernel's log only parts are there, so that what they do not tell may have been told."""
    return all(item.source.is_part for item in snapshot.of("kernel-log", "journal"))


_LATER: Final = Pattern(r"\b(?:further down|later on|continued)\b", re.IGNORECASE)


def _is_later_part(snapshot: Snapshot) -> bool:
    """Whether whoever pasted the log says himself that more stood above."""
    logs = snapshot.of("kernel-log", "journal")
    return bool(logs) and all(_LATER.search(item.written) for item in logs)


def _what_came_before(incident: faults.Incident) -> Doubt:
    question = f"{faults.label(incident.gpu)} reported Xid 120, a crash of the GSP: what did the log say before that?"
    causes = ("xid-62-pmu-halt", "gsp-rpc-timeout", "gpu-fallen-off-bus")
    return Doubt(question, (Shell("sudo dmesg --ctime | grep -iE 'xid|nvrm'"),), incident.citations, causes)


def _was_started_again(snapshot: Snapshot, incident: faults.Incident) -> bool:
    """Whether a driver that was loaded after the timeout met what the dead GSP left: then that is what is so now."""
    missed = incident.root.citation
    return any(
        message.citation.key == missed.key and (message.citation.number or 0) > (missed.number or 0)
        for message in kernel.said(snapshot, _WPR2)
    )


def _told(summary: str, messages: tuple[kernel.Message, ...], *more: Citation) -> Proof:
    return Proof(summary, (*(message.citation for message in messages[:6]), *more), at=messages[0].at)


def _not_started(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """Why the GSP did not start: what the GPU's own boot says comes before what the driver says of the GSP."""
    failed = kernel.said(snapshot, _NOT_STARTED)
    codes = kernel.said(snapshot, _INIT)
    places = tuple(message.citation for message in (*failed, *codes))
    if booted := kernel.said(snapshot, _GFW):
        summary = "The GPU's own firmware does not finish its boot, so nothing can be started on it"
        yield "gpu-firmware-boot-failed", _told(summary, booted, *places[:3])
    elif up := kernel.said(snapshot, _WPR2):
        summary = "The GPU still holds the protected memory of a GSP that ended badly, and cannot start a new one"
        yield "gsp-bad-state-wpr2", _told(summary, up, *places[:3])
    elif kernel.said(snapshot, _UNSUPPORTED) or any(one.root.weight > 2 for one in snapshot.view(faults.incidents)):
        return
    elif failed and not _is_cut(snapshot):
        yield "gsp-init-failed-platform", _unable(snapshot, failed, codes)
    elif failed or codes:
        yield "gsp-init-failed-platform", _undecided((*failed, *codes))


def _unable(snapshot: Snapshot, failed: tuple[kernel.Message, ...], codes: tuple[kernel.Message, ...]) -> Proof:
    ruled_out = (
        "the GPU's own firmware: no message about GFW_BOOT",
        "a bad state left behind: no message about WPR2",
        "a missing firmware file: no message about one",
    )
    model = _model(snapshot)
    whose = f"on {model.label}" if model else "on this GPU"
    places = (*(message.citation for message in failed[:6]), *(message.citation for message in codes[:2]))
    return Proof(f"The GSP cannot be started {whose} in this machine", places, "likely", ruled_out, at=failed[0].at)


def _undecided(codes: tuple[kernel.Message, ...]) -> Doubt:
    return Doubt(
        "the GSP could not be started; why, the lines of the kernel's log before RmInitAdapter tell",
        (Shell("sudo dmesg --ctime | grep -iE 'nvrm|nvidia|firmware'"),),
        tuple(message.citation for message in codes[:2]),
        ("gsp-bad-state-wpr2", "gpu-firmware-boot-failed", "gsp-firmware-missing"),
    )


def _missing(snapshot: Snapshot) -> Iterator[Citation]:
    """Lines by which the firmware's file is not there, and the driver did not start for want of it."""
    said = (*(message.citation for message in kernel.said(snapshot, _NO_FILE)), *snapshot.said(_NO_FILE, "text"))
    if snapshot.view(driver.works) and not kernel.said(snapshot, _INIT):
        return
    yield from said
    states = {state for state, _ in snapshot.view(driver.smi)}
    if said or kernel.said(snapshot, _INIT) or "no-devices" in states:
        yield from _listed_without(snapshot)


def _listed_without(snapshot: Snapshot) -> Iterator[Citation]:
    """The listing of the firmware's folder, where the loaded driver's version is not in it, or that there is none."""
    loaded = snapshot.view(driver.loaded)
    for item in (item for item in snapshot.items if item.kind in {"listing", "file"} and item.is_seen):
        if not _FIRMWARE_DIRS.search(item.written) or item.where != "host":
            continue
        is_absent = item.outcome == "absent" and (not loaded or loaded.version in item.written)
        if is_absent or (loaded and item.outcome == "ok" and loaded.version not in item.written + item.text):
            yield cite(item)


def _without_file(snapshot: Snapshot, missing: tuple[Citation, ...]) -> Proof:
    loaded = snapshot.view(driver.loaded)
    version = loaded.version if loaded else _wanted(missing)
    whose = f" of driver {version}" if version else ""
    return Proof(f"The GSP's firmware{whose} is not on disk", missing)


def _wanted(missing: tuple[Citation, ...]) -> str:
    found = (re.search(rf"nvidia/({driver.VERSION})/", one.line) for one in missing)
    return next((match[1] for match in found if match), "")


def _model(snapshot: Snapshot) -> GpuModel | None:
    return next((gpu.model for gpu in snapshot.view(pci.gpus) if gpu.model), None)


def _ignored(snapshot: Snapshot) -> Iterator[Verdict]:
    """The GSP is to be off and cannot be, because the modules are the open ones, by their word or the GPU's need."""
    asked = tuple(_asked_off(snapshot))
    if not asked or snapshot.says(_GFW):
        return  # where the GPU's own firmware does not start, neither kind of module helps
    opened = _open_modules(snapshot)
    running = next(iter(snapshot.said(_IN_USE, "nvidia-smi-q", "nvidia-smi", "text")), None)
    model = _model(snapshot)
    if opened:
        summary = "NVreg_EnableGpuFirmware=0 has no effect: the open kernel modules cannot do without the GSP"
        yield Proof(summary, (*asked, *opened, *((running,) if running else ())))
    elif model and model.needs_open_modules:
        summary = f"NVreg_EnableGpuFirmware=0 has no effect: {model.label} cannot do without the GSP"
        yield Proof(summary, asked)
    elif running and (branch := _branch(running.line)) >= _OPEN_BY_DEFAULT:
        summary = f"NVreg_EnableGpuFirmware=0 has no effect: the GSP runs, as it must with the open modules of {branch}"
        yield Proof(summary, (*asked, running), "likely")
    elif running:
        yield Doubt(
            "the GSP is to be off and runs: the open modules are loaded, or the setting was never read",
            (Shell("cat /proc/driver/nvidia/version /proc/driver/nvidia/params"),),
            (*asked, running),
        )


def _branch(line: str) -> int:
    """The branch of the version in ``nvidia-smi -q``'s line about the GSP's firmware."""
    match = _IN_USE.search(line)
    return int(match["version"].split(".")[0]) if match else 0


def _asked_off(snapshot: Snapshot) -> Iterator[Citation]:
    for item in (
        *snapshot.files("*modprobe.d/*"),
        *snapshot.files("/proc/cmdline"),
        *snapshot.files("/etc/default/grub"),
    ):
        yield from lines_with(item, _SWITCHED_OFF)
    yield from snapshot.said(_SWITCHED_OFF, "text", "kernel-log", "modprobe", "file", "listing")
    yield from snapshot.said(_PARAMETER_OFF, "text", "file")


def _open_modules(snapshot: Snapshot) -> tuple[Citation, ...]:
    loaded = snapshot.view(driver.loaded)
    if loaded is not None and loaded.is_open is not None:
        return (loaded.citation,) if loaded.is_open else ()
    infos = (info for info in snapshot.view(modules.modinfo) if info.module.startswith("nvidia") and info.is_open)
    found = tuple(info.citation for info in infos)
    if found:
        return found
    named = packages.matching(snapshot, "nvidia-open*", "*nvidia-dkms-*-open", "nvidia-kernel-open-dkms", "*-open-*")
    return tuple(one.citation for one in named if one.is_installed and "nvidia" in one.name)


def _restart_gsp(snapshot: Snapshot) -> Iterable[Fix]:
    yield reset_gpu()
    yield reboot(when="the reset is refused or hangs")
    yield by_hand("install", "move to the newest driver of the branch, or to the branch before", "it comes back")
    if not _open_modules(snapshot) and not ((model := _model(snapshot)) and model.needs_open_modules):
        yield _switch_off(snapshot, "it still comes back, with the proprietary modules, which can do without the GSP")
    yield nvidia_report()


def _switch_off(snapshot: Snapshot, when: str) -> Fix:
    write = Shell("echo 'options nvidia NVreg_EnableGpuFirmware=0' | sudo tee /etc/modprobe.d/nvidia-gsp.conf")
    commands = (write, *rebuild_initramfs(snapshot).commands, *reboot().commands)
    return run("configure", "switch the GSP off, rebuild the initramfs, reboot", *commands, when=when)


def _unwedge(_: Snapshot) -> Iterable[Fix]:
    yield reboot("reboot the node: the GPU must be reset as a whole, which reloading the driver does not do")
    yield power_cycle("power the node off and on again, if a reboot leaves it so")
    yield by_hand("hardware", "check riser, slot and power of that GPU", "it is so after every boot")
    yield nvidia_report()


def _boot_gpu(_: Snapshot) -> Iterable[Fix]:
    yield power_cycle()
    yield by_hand("hardware", "seat the GPU anew and check its power cables", "it stays so")
    yield by_hand("firmware", "update the machine's firmware and the GPU's VBIOS", "it stays so")
    yield replace(when="it does the same in another machine")


def _bring_file(snapshot: Snapshot) -> Iterable[Fix]:
    if guests.is_vgpu(snapshot):
        yield guest_driver("install the driver anew, whole: it brings its firmware")
        return
    loaded = snapshot.view(driver.loaded)
    version = loaded.version if loaded else _wanted(tuple(_missing(snapshot)))
    yield _firmware_package(snapshot, version.split(".")[0], version)
    if snapshot.view(package_manager) == "apt":
        text = "or install another release of the driver, which brings the firmware that belongs to it"
        yield from newer_driver(snapshot, text, here=version, when="no archive has that version any more")
    yield rebuild_initramfs(snapshot)
    yield run("load", "load the module anew", MODULES_OUT, Shell("sudo modprobe nvidia"))


def _firmware_package(snapshot: Snapshot, branch: str, version: str) -> Fix:
    manager, known = snapshot.view(package_manager), distro(snapshot)
    text = "install the firmware of the loaded driver's very version"
    if manager == "apt" and known is not None and known.id == "debian":
        return reinstall(snapshot, text, "firmware-nvidia-gsp")
    if manager == "apt" and branch and known is not None and "ubuntu" in {known.id, *known.like}:
        return reinstall(snapshot, text, f"nvidia-firmware-{branch}-{version}")
    if manager == "apt":
        # Debian calls it by one name, Ubuntu by that of the version.
        ubuntus = f"nvidia-firmware-{branch}-{version}" if branch else Shell('"nvidia-firmware-${v%%.*}-$v"')
        find = command("grep", "-xF", "-e", "firmware-nvidia-gsp", "-e", ubuntus)
        again = (Shell("sudo apt-get install --reinstall $(apt-cache pkgnames |"), find, Shell(")"))
        known_version = () if branch else (Shell("v=$(modinfo -F version nvidia);"),)
        return run("install", text, joined(*known_version, *again))
    if manager == "dnf":
        # The one does nothing where the package is there, the other where it is not.
        return run(
            "install",
            text,
            Shell("sudo dnf install nvidia-kmod-common"),
            Shell("sudo dnf reinstall nvidia-kmod-common"),
        )
    return reinstall(snapshot, text, "nvidia-utils" if manager == "pacman" else "kernel-firmware-nvidia-gspx-G06")


def _platform(snapshot: Snapshot) -> Iterable[Fix]:
    yield by_hand(
        "firmware",
        "update the machine's firmware, and of a virtual machine's host the hypervisor; in their settings switch on "
        "Above 4G Decoding and leave the GPU's VBIOS in place",
    )
    yield power_cycle()
    model = _model(snapshot)
    if not (model and model.needs_open_modules):
        when = "the GPU is of Turing to Ada, with the proprietary modules, which can do without the GSP"
        yield _switch_off(snapshot, when)
    yield by_hand("install", "try the newest driver of another branch", "it stays so")
    yield nvidia_report("it stays so")


def _take_back(snapshot: Snapshot) -> Iterable[Fix]:
    model = _model(snapshot)
    must = model is not None and model.needs_open_modules
    text = "take the option away: " + (
        "this GPU needs the open modules, and they the GSP" if must else "the open modules cannot do without the GSP"
    )
    yield run("configure", text, *_option_taken_out(snapshot))
    if not must:
        other = "go over to the proprietary modules, which heed the option"
        recipe = ': a recipe of gpunode asks for them by flavour = "proprietary" below [driver]'
        yield by_hand("install", other + (recipe if takes_gpunode(snapshot) else ""), "the GSP is to stay off")
    yield rebuild_initramfs(snapshot)
    yield reboot()


def _option_taken_out(snapshot: Snapshot) -> Iterator[Command]:
    """The commands that take the option out of every place that has it, and leave what else stands on its line."""
    files = (item for item in snapshot.files("/*modprobe.d/*") if _SWITCHED_OFF.search(item.text))
    option = "NVreg_EnableGpuFirmware=0"
    corrected = edited(f"s/ *{option}//", *(item.subject for item in files))
    on_command_line = any(_SWITCHED_OFF.search(item.text) for item in snapshot.files("/proc/cmdline"))
    if corrected:
        yield from corrected
    elif not on_command_line:
        yield edited_where(option, f"s/ *{option}//", "/etc/modprobe.d")
    if on_command_line:
        yield from without_kernel_argument(snapshot, "nvidia.NVreg_EnableGpuFirmware=0")


_UNUSABLE: Final = GPU_LOST | {
    *("driver-module-not-loaded", "xid-143-gpu-init-error", "nvlink-all-links-inactive-gpu", "nvlink-link-inactive"),
}

FAMILY: Final = Family(
    "gsp",
    "the GPU System Processor",
    (
        Rule(
            cause="gsp-rpc-timeout",
            layer="driver",
            storey="driver",
            severity="error",
            disruption="reset-gpu",
            title="the GSP does not answer the driver",
            share=2,
            symptoms=(
                symptoms.ANY_XID,
                symptoms.GPU_LOST,
                symptoms.NVML_UNKNOWN,
                symptoms.SLOW,
                symptoms.CUDA_UNKNOWN,
                symptoms.NOT_STARTED,
            ),
            look_at=(Shell("sudo dmesg | grep -iE 'xid|gsp'"),),
            story=(
                "Since Turing a processor inside the GPU, the GSP, runs most of the driver, and the kernel module "
                "calls it. When it does not answer a call in time the driver reports Xid 119, waits again for the "
                "next call, and everything that asks the GPU anything, nvidia-smi first of all, hangs for 45 "
                "seconds a call or for good. The firmware hangs by a bug of its own, by a fault of the hardware "
                "below it, or because the GPU was lost already: an Xid 79 before it is then the cause.\n\n"
                "A reset or reboot starts it anew. If it comes back, change the driver's version; proprietary modules "
                "on GPUs before Blackwell can do without the GSP."
            ),
            sources=(f"{OPEN_MODULES}/issues/446", XID_CATALOG),
            check=only("gsp-rpc-timeout", _decide),
            remedy=_restart_gsp,
            explains=_UNUSABLE | {"gsp-bad-state-wpr2", "gsp-init-failed-platform"},
        ),
        Rule(
            cause="gsp-task-exception",
            layer="driver",
            storey="driver",
            severity="error",
            disruption="reset-gpu",
            title="the GSP's firmware crashed",
            share=0.7,
            symptoms=(
                symptoms.ANY_XID,
                symptoms.GPU_LOST,
                symptoms.SLOW,
            ),
            look_at=(Shell("sudo dmesg | grep -iE 'xid|gsp'"),),
            story=(
                "A task of the firmware on the GSP ran into an exception or its watchdog (Xid 120), and the driver "
                "prints the processor's registers. This is a bug of the driver's release, or memory of the GPU "
                "that went bad under it; the calls that follow time out (Xid 119), and channels are taken down.\n\n"
                "A reset brings the GPU back; another release of the driver, or a report to NVIDIA, cures it."
            ),
            sources=(f"{OPEN_MODULES}/issues/829", XID_CATALOG),
            check=only("gsp-task-exception", _decide),
            remedy=_restart_gsp,
            explains=_UNUSABLE | {"gsp-bad-state-wpr2", "gsp-init-failed-platform"},
        ),
        Rule(
            cause="gsp-bad-state-wpr2",
            layer="driver",
            storey="driver",
            severity="error",
            disruption="reboot",
            title="the GPU holds on to the memory of a dead GSP",
            share=0.5,
            symptoms=(
                symptoms.NOT_STARTED,
                symptoms.NO_DEVICES,
                symptoms.GPU_LOST,
            ),
            look_at=(Shell("sudo dmesg | grep -iE 'wpr2|gsp|nvrm'"),),
            story=(
                "The GSP runs from a region of memory that nothing else can write, WPR2. When the firmware dies or the "
                "module is taken away without stopping it, the region stays up, and the driver that comes next must "
                "not start another: it says that WPR2 is already up and gives the GPU up. Loading the module again "
                "changes nothing; only a reset of the whole GPU, by a reboot or by taking its power away, does."
            ),
            sources=(f"{OPEN_MODULES}/issues/1230", f"{OPEN_MODULES}/issues/1104"),
            check=only("gsp-bad-state-wpr2", _decide),
            remedy=_unwedge,
            explains=_UNUSABLE,
        ),
        Rule(
            cause="gpu-firmware-boot-failed",
            layer="hardware",
            storey="gpu",
            severity="error",
            disruption="power-cycle",
            title="the GPU's own firmware does not boot",
            symptoms=(
                symptoms.NOT_STARTED,
                symptoms.NO_DEVICES,
                symptoms.GPU_LOST,
            ),
            look_at=(Shell("sudo dmesg | grep -iE 'gfw|nvrm'"),),
            story=(
                "Before any driver, a GPU boots firmware from its own flash (GFW). The driver waits for that and "
                "reports how far it came. If it never ends, the board has no proper power, is badly seated, has a "
                "damaged VBIOS or is broken; no driver of either kind gets further."
            ),
            sources=(f"{OPEN_MODULES}/issues/789", f"{OPEN_MODULES}/issues/543"),
            check=only("gpu-firmware-boot-failed", _decide),
            remedy=_boot_gpu,
            explains=_UNUSABLE,
        ),
        Rule(
            cause="gsp-firmware-missing",
            layer="driver",
            storey="driver",
            severity="error",
            disruption="restart-container",
            title="the GSP's firmware is not on disk",
            symptoms=(
                symptoms.NOT_STARTED,
                symptoms.NO_DEVICES,
                symptoms.NO_DRIVER,
            ),
            look_at=(
                Shell("sudo dmesg | grep -iE 'firmware|gsp'"),
                Shell("ls /lib/firmware/nvidia"),
            ),
            story=(
                "The module loads the GSP's firmware from /lib/firmware/nvidia/VERSION, and only that of its own very "
                "version. It is packaged apart from the module, so one can be there without the other: after an "
                "upgrade by halves, with a distribution's firmware package left out, in an initramfs or driver "
                "container that was made without it. The open modules, and every GPU that needs the GSP, do not start "
                "then."
            ),
            sources=(f"{OPEN_MODULES}/issues/433", _README),
            check=only("gsp-firmware-missing", _decide),
            remedy=_bring_file,
            explains=_UNUSABLE,
        ),
        Rule(
            cause="gsp-disable-ignored-open-module",
            layer="config",
            storey="driver",
            severity="warning",
            disruption="reboot",
            title="the GSP cannot be switched off with the open modules",
            symptoms=(
                symptoms.NOT_STARTED,
                symptoms.ANY_XID,
            ),
            look_at=(
                Shell("grep -r NVreg_EnableGpuFirmware /etc/modprobe.d"),
                Shell("cat /proc/driver/nvidia/version"),
            ),
            story=(
                "NVreg_EnableGpuFirmware=0 tells the proprietary modules to do without the GSP. The open modules have "
                "no other way to drive a GPU and ignore it, as do all modules on GPUs from Blackwell on. Who set it to "
                "be rid of a GSP error still has that error."
            ),
            sources=(f"{OPEN_MODULES}/issues/820", _README),
            check=_ignored,
            remedy=_take_back,
            explains=frozenset({"gsp-rpc-timeout", "gsp-task-exception"}),
        ),
        Rule(
            cause="gsp-init-failed-platform",
            layer="driver",
            storey="driver",
            severity="error",
            disruption="reboot",
            title="the GSP cannot be started in this machine",
            symptoms=(
                symptoms.NOT_STARTED,
                symptoms.NO_DEVICES,
                symptoms.NO_DRIVER,
            ),
            look_at=(Shell("sudo dmesg | grep -iE 'gsp|nvrm'"),),
            story=(
                "The GPU booted and the firmware was found, but the GSP does not come up with it: the driver says that "
                "it cannot initialise the GSP firmware, and RmInitAdapter fails with 0x62. What is left is what the "
                "machine does to it: memory that the GPU cannot reach through an IOMMU or a virtual machine, a VBIOS "
                "that was replaced or cannot be read, small computers and chipsets that NVIDIA does not support, or "
                "firmware settings that give the GPU too little address space."
            ),
            sources=(f"{OPEN_MODULES}/issues/965", f"{OPEN_MODULES}/issues/1058"),
            check=only("gsp-init-failed-platform", _decide),
            remedy=_platform,
            explains=_UNUSABLE,
        ),
    ),
)
