"""The GSP, the processor inside the GPU that runs most of the driver: failed starts, timeouts and crashes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from gpunode.diagnoses import remedies, symptoms
from gpunode.diagnoses.commands import Shell, edit_matching_files
from gpunode.diagnoses.consequences import GPU_LOST
from gpunode.diagnoses.model import Fix, Proof, Rule
from gpunode.diagnoses.remedies import (
    look_at_hardware,
    make_fixed_remedy,
    manual_step,
    power_cycle_node,
    reboot_node,
    reset_gpu,
    run_step,
    write_nvidia_report,
)
from gpunode.diagnoses.signs import (
    all_of,
    any_line,
    any_of,
    command_run,
    custom_sign,
    kernel_line,
    message_line,
    predicate,
    unless,
)
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import driver, faults, pci, virtualization
from gpunode.diagnoses.views.system import find_distro, package_manager

_GSP_RPC_TIMEOUT: Final = kernel_line(
    r"(?i)Timeout (?:while )?waiting for RPC|Timeout after \d+s of waiting for RPC|rpcRecvPoll\w{0,60} timed? ?out"
    r"|Heartbeat timed out|GSP RPC timeout|Rate limiting GSP RPC error"
    r"|\*{8} GSP Timeout \*{8}|== GSP\S* (?:core )?unresponsive =="
)
_GSP_TASK_EXCEPTION: Final = kernel_line(r"(?i)GSP (?:task|kernel) (?:exception|watchdog)|GSP-CrashCat")
_WPR2_UP: Final = kernel_line(r"(?i)WPR2 (?:is )?already up")
_GFW_BOOT_FAILED: Final = kernel_line(
    r"(?i)failed to wait for GFW|GFW_?\s?BOOT.{0,30}(?:fail|time|progress)|GFW boot did not|GFW secure boot failed"
    # The GPU's Foundation Security Processor, since Hopper (kern_fsp_gh100.c, kern_fsp_gb100.c).
    r"|FSP secure boot partition timed out|FSP fuse error check has failed"
)
_FIRMWARE_NOT_FOUND_TEXT: Final = (
    r"(?i)Direct firmware load for nvidia/\S*gsp\S* failed with error -2"
    r"|firmware: failed to load nvidia/\S*gsp\S* \(-2\)|RmFetchGspRmImages: No firmware image found"
    r"|GSP firmware image version mismatch: got version"
    r"|(?:can(?:no|')t|could not|failed to|unable to) (?:find|load|open|request|fetch) \S{0,60}gsp\w*\.bin"
)
_NOT_STARTED: Final = kernel_line(
    r"(?i)cannot initialize GSP(?: firmware RM|-RM)|Failed to (?:boot|initialize|start) GSP"
    r"|kgspBootstrap\w{0,60}: .{0,60}fail|failed to (?:execute|prepare) .{0,40}(?:FWSEC|Booter)"
    r"|GSP-?RM (?:boot|init\w*) fail"
)
# RmInitAdapter's first number names the stage: 0x61 to 0x63 mean loading and starting the firmware.
_GSP_INIT_FAILED: Final = kernel_line(r"(?i)RmInitAdapter failed! \(0x6[1-3]:")
# The driver itself reports another cause of the failed start.
_GPU_UNSUPPORTED: Final = kernel_line(
    r"(?i)not supported by (?:the )?open|requires use of the NVIDIA open|installed in this system is (?:not )?supported"
    r"|not supported by the (?:NVIDIA )?\d"
)
_SERIOUS_FAULT: Final = custom_sign(faults.serious_fault_lines)
# If nvidia-smi needs minutes, its calls time out one by one.
_SMI_ANSWERS_SLOWLY: Final = all_of(
    command_run(r"\b(?:time|timeout \d+) (?:\S+ )?nvidia-smi(?! topo)"),
    message_line(r"^real\s+[1-9]\d*m"),
    symptoms.GPU_LOST,
)


def _find_task_exceptions(snapshot: Snapshot) -> Iterator[Proof]:
    # In a log without its beginning, a halt of the PMU may have come first.
    is_cut = all(item.source.is_part for item in snapshot.items_of("kernel-log", "journal"))
    return faults.incident_check(120, confidence="likely" if is_cut else "certain")(snapshot)


_FIRMWARE_FOLDER_PATTERN: Final = r"/lib/firmware/nvidia\b"
_FIRMWARE_ABSENT: Final = any_of(kernel_line(_FIRMWARE_NOT_FOUND_TEXT), message_line(_FIRMWARE_NOT_FOUND_TEXT, "text"))


def _firmware_version(snapshot: Snapshot) -> str:
    """Return the version of the loaded driver, else the one in the path of the missing file."""
    loaded = snapshot.view(driver.loaded_version)
    found = (re.search(rf"nvidia/({driver.VERSION})/", line.line) for line in snapshot.view(_FIRMWARE_ABSENT))
    return loaded.version if loaded else next((match[1] for match in found if match), "")


def _needs_open_modules(snapshot: Snapshot) -> bool:
    models = [gpu.model for gpu in snapshot.view(pci.pci_gpus) if gpu.model]
    return bool(models) and models[0].needs_open_modules


def _has_proprietary_modules_loaded(snapshot: Snapshot) -> bool:
    loaded = snapshot.view(driver.loaded_version)
    return loaded is not None and loaded.is_open is False and not _needs_open_modules(snapshot)


_GSP_OFF_OPTION: Final = (
    r"^[^#\n]{0,200}\bNVreg_EnableGpuFirmware\s*=\s*(?:0x0*)?0+\b|^[ \t]*EnableGpuFirmware:\s*0\s*$"
)
_GSP_DISABLED: Final = any_line(_GSP_OFF_OPTION)
_OPEN_MODULES_SEEN: Final = any_line(r"NVIDIA UNIX Open Kernel Module|license:\s+Dual MIT/GPL|\bnvidia\S{0,30}-open\b")
_GSP_NEEDED: Final = any_of(_OPEN_MODULES_SEEN, predicate(_needs_open_modules, "this GPU needs the open modules"))


def _reset_after_gsp_failure(snapshot: Snapshot) -> Iterable[Fix]:
    yield reset_gpu()
    yield reboot_node(when="the reset is refused or hangs")
    yield manual_step("install", "install the newest driver of the branch, or of the previous branch", "it comes back")
    if not snapshot.view(_GSP_NEEDED):
        yield _disable_gsp(snapshot, "it still comes back; only the proprietary modules work without the GSP")
    yield write_nvidia_report()


def _disable_gsp(snapshot: Snapshot, when: str) -> Fix:
    write = Shell("echo 'options nvidia NVreg_EnableGpuFirmware=0' | sudo tee /etc/modprobe.d/nvidia-gsp.conf")
    commands = (write, *remedies.rebuild_initramfs(snapshot).commands, *reboot_node().commands)
    return run_step("configure", "turn the GSP off, rebuild the initramfs, reboot", *commands, when=when)


def _install_firmware(snapshot: Snapshot) -> Iterable[Fix]:
    if virtualization.is_vgpu(snapshot):
        yield remedies.install_guest_driver("reinstall the whole driver, which includes its firmware")
        return
    version, manager, known = _firmware_version(snapshot), snapshot.view(package_manager), find_distro(snapshot)
    names = {"apt": "firmware-nvidia-gsp", "dnf": "nvidia-kmod-common", "pacman": "nvidia-utils"}
    name = names.get(manager, "kernel-firmware-nvidia-gspx-G06")
    if manager == "apt" and version and not (known and known.id == "debian"):
        name = f"nvidia-firmware-{version.split('.')[0]}-{version}"
    yield remedies.reinstall(snapshot, "install the firmware of exactly the loaded driver's version", name)
    if manager == "apt":
        text = "or install another driver release together with its firmware"
        yield from remedies.change_driver(
            snapshot, text, installed_version=version, when="no archive has that version any more"
        )
    yield remedies.rebuild_initramfs(snapshot)
    yield run_step("load", "reload the module", remedies.UNLOAD_MODULES_COMMAND, Shell("sudo modprobe nvidia"))


def _fix_platform(snapshot: Snapshot) -> Iterable[Fix]:
    yield from look_at_hardware()(snapshot)
    yield manual_step("firmware", "update the machine's firmware, or the hypervisor, and turn Above 4G Decoding on")
    yield power_cycle_node()
    yield manual_step("install", "try the newest driver of another branch", "it persists")
    if not _needs_open_modules(snapshot):
        yield _disable_gsp(snapshot, "the GPU is older than Blackwell, and its modules are the proprietary ones")


def _remove_gsp_option(snapshot: Snapshot) -> Iterable[Fix]:
    option = "NVreg_EnableGpuFirmware=0"
    edits = [edit_matching_files(option, f"s/ *{option}//", "/etc/modprobe.d")]
    if remedies.has_kernel_argument(snapshot, f"nvidia.{option}"):
        edits += remedies.remove_kernel_argument(snapshot, f"nvidia.{option}")
    yield run_step("configure", "remove the option: these modules need the GSP", *edits)
    if not _needs_open_modules(snapshot):
        yield manual_step(
            "install", "switch to the proprietary modules, which honour the option", "the GSP must stay off"
        )
    yield remedies.rebuild_initramfs(snapshot)
    yield reboot_node()


_EXPLAINED_BY_GPU_UNUSABLE: Final = GPU_LOST | {
    *("driver-module-not-loaded", "xid-143-gpu-init-error", "nvlink-all-links-inactive-gpu", "nvlink-link-inactive")
}
_EXPLAINED_BY_NO_GSP: Final = _EXPLAINED_BY_GPU_UNUSABLE | {"gsp-init-failed-platform"}
_GREP_LOG_COMMANDS: Final = (Shell("sudo dmesg | grep -iE 'xid|gsp|gfw|wpr2|nvrm'"),)
_rule = partial(Rule, layer="driver", look_at=_GREP_LOG_COMMANDS)

RULES: Final = (
    _rule(
        cause="gsp-rpc-timeout",
        disruption="reset-gpu",
        share=2,
        symptoms=(
            symptoms.ANY_XID,
            symptoms.GPU_LOST,
            symptoms.NVML_UNKNOWN,
            symptoms.SMI_HANGS,
            symptoms.ADAPTER_INIT_FAILED,
        ),
        check=faults.incident_check(119),
        against=(_WPR2_UP,),
        typical=unless(any_of(_GSP_RPC_TIMEOUT, _SMI_ANSWERS_SLOWLY), _SERIOUS_FAULT),
        remedy=_reset_after_gsp_failure,
        explains=_EXPLAINED_BY_NO_GSP | {"gsp-bad-state-wpr2"},
    ),
    _rule(
        cause="gsp-task-exception",
        disruption="reset-gpu",
        symptoms=(symptoms.ANY_XID, symptoms.GPU_LOST, symptoms.SMI_HANGS),
        check=_find_task_exceptions,
        decisive=unless(_GSP_TASK_EXCEPTION, _SERIOUS_FAULT),
        remedy=_reset_after_gsp_failure,
        explains=_EXPLAINED_BY_NO_GSP | {"gsp-bad-state-wpr2", "gsp-rpc-timeout"},
    ),
    _rule(
        cause="gsp-bad-state-wpr2",
        disruption="reboot",
        symptoms=(symptoms.ADAPTER_INIT_FAILED, symptoms.NO_DEVICES, symptoms.GPU_LOST),
        decisive=_WPR2_UP,
        context=_GSP_INIT_FAILED,
        remedy=make_fixed_remedy(
            reboot_node("reboot the node: the whole GPU must be reset, which reloading the driver does not do"),
            power_cycle_node("power the node off and on again", "a reboot does not help"),
            manual_step("hardware", "check riser, slot and power of that GPU", "it happens after every boot"),
            write_nvidia_report(),
        ),
        explains=_EXPLAINED_BY_NO_GSP,
    ),
    _rule(
        cause="gpu-firmware-boot-failed",
        layer="gpu",
        disruption="power-cycle",
        symptoms=(symptoms.ADAPTER_INIT_FAILED, symptoms.NO_DEVICES, symptoms.GPU_LOST),
        decisive=_GFW_BOOT_FAILED,
        context=_GSP_INIT_FAILED,
        remedy=look_at_hardware(
            power_cycle_node(),
            manual_step("hardware", "reseat the GPU and check its power cables", "it persists"),
            manual_step("firmware", "update the machine's firmware and the GPU's VBIOS", "it persists"),
            remedies.replace_gpu(when="the fault follows the GPU to another machine"),
        ),
        explains=_EXPLAINED_BY_NO_GSP | {"gsp-bad-state-wpr2"},
    ),
    _rule(
        cause="gsp-firmware-missing",
        disruption="restart-container",
        symptoms=(symptoms.ADAPTER_INIT_FAILED, symptoms.NO_DEVICES, symptoms.NO_DRIVER),
        look_at=(Shell("sudo dmesg | grep -iE 'firmware|gsp'"), Shell("ls /lib/firmware/nvidia")),
        decisive=_FIRMWARE_ABSENT,
        context=any_of(_GSP_INIT_FAILED, command_run(_FIRMWARE_FOLDER_PATTERN)),
        against=(symptoms.DRIVER_WORKS,),
        remedy=_install_firmware,
        explains=_EXPLAINED_BY_NO_GSP | {"gsp-bad-state-wpr2"},
    ),
    _rule(
        cause="gsp-disable-ignored-open-module",
        severity="warning",
        disruption="reboot",
        look_at=(Shell("grep -r NVreg_EnableGpuFirmware /etc/modprobe.d"), Shell("cat /proc/driver/nvidia/version")),
        decisive=all_of(_GSP_DISABLED, _GSP_NEEDED),
        typical=any_of(
            _GSP_DISABLED, message_line(r"\bGSP\b[^\n]{0,40}\b(?:stays on|still (?:on|shown|enabled|loaded|running))")
        ),
        may_be_normal=True,
        against=(predicate(_has_proprietary_modules_loaded, "the proprietary modules are loaded"), _GFW_BOOT_FAILED),
        remedy=_remove_gsp_option,
        explains=frozenset({"gsp-rpc-timeout", "gsp-task-exception"}),
    ),
    _rule(
        cause="gsp-init-failed-platform",
        disruption="reboot",
        symptoms=(symptoms.ADAPTER_INIT_FAILED, symptoms.NO_DEVICES, symptoms.NO_DRIVER),
        typical=unless(_NOT_STARTED, _GFW_BOOT_FAILED, _WPR2_UP, _FIRMWARE_ABSENT, _GPU_UNSUPPORTED, _SERIOUS_FAULT),
        context=any_of(_GSP_INIT_FAILED, message_line(r"\baarch64\b|Raspberry Pi")),
        remedy=_fix_platform,
        explains=_EXPLAINED_BY_GPU_UNUSABLE,
    ),
)
