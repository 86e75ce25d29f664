"""Xid errors without a family of their own: programs, engines, controllers inside the GPU, boards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from gpunode.catalog import xids
from gpunode.diagnoses import remedies, symptoms
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.consequences import DRIVER_NOT_INITIALIZED, PROGRAM_FAULTS, UNHEALTHY_IN_CLUSTER
from gpunode.diagnoses.model import Citation, Disruption, Fix, OpenQuestion, Proof, Rule, Severity
from gpunode.diagnoses.remedies import (
    drain_node,
    make_fixed_remedy,
    manual_step,
    power_cycle_node,
    reboot_node,
    reset_gpu,
    run_step,
    setup_step,
    write_nvidia_report,
)
from gpunode.diagnoses.signs import all_of, any_line, any_of, command_run, custom_sign, kernel_line, message_line
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import faults, recovery, smi_query
from gpunode.diagnoses.views.recovery import RecoveryAction
from gpunode.diagnoses.views.smi_query import SmiRow
from gpunode.facts.patterns import Pattern

_FLASH_XIDS: Final = (122, 123, 124)
_CHIP_LINK_XIDS: Final = (121, 173)
# Codes with a rule; for any other code the catalog's advice is passed on.
_CODES_WITH_RULE: Final = frozenset({
    *_FLASH_XIDS, *_CHIP_LINK_XIDS, *xids.NVLINK5_XIDS,
    *(13, 31, 48, 54, 61, 62, 63, 64, 69, 74, 78, 79, 92, 94, 95, 109, 119, 120, 125, 140, 143, 154, 156, 157, 160),
    *(161, 167, 169, 171, 172),
})  # fmt: skip

# Page faults caused by a program or by the driver itself.
_PAGE_FAULTS: Final = custom_sign(lambda snapshot: (one.root.citation for one in faults.incidents_with(snapshot, 31)))
_FAULT_ADDRESS: Final = Pattern(r"(?i)faulted @ (?P<address>0x[0-9a-f]+(?:_[0-9a-f]+)?)")
# A null pointer, or a small offset from one: a program's bug wherever it repeats.
_MAX_NULL_OFFSET: Final = 0x10000
# Programs that run users' code; when run again, they fail at the same address.
_USER_PROGRAM_NAME: Final = Pattern(r"(?i)python|pt_|ray::|julia|a\.out|main$|train")
# A comparison of driver releases, one with the faults and another without.
_DRIVER_RELEASE_MENTION: Final = r"\b[3-6]\d\d\.\d[\d.]*[^\n]{0,60}"
_GOOD_RESULT_WORDS: Final = (
    r"(?:0\b|none|no (?:faults?|crash|xids?|errors?)|zero|never|not|clean|stable|fine|ok|works?|runs)\b"
)
_BAD_RESULT_WORDS: Final = (
    r"(?:[1-9]\d{0,4} (?:xid|fault|crash)|(?:xid |page )?faults?|fails|crash|hang|breaks|every)[^\n]{0,60}"
)
_RELEASES_COMPARED: Final = message_line(
    r"(?i)(?:roll(?:ed|ing) back|downgrad(?:ed|ing)|revert(?:ed|ing)|went back|going back)[^\n]{0,60}"
    r"(?:works|fixe[sd]|fine|gone|stable|solve[sd]|help|no more)"
    rf"|{_DRIVER_RELEASE_MENTION}{_GOOD_RESULT_WORDS}[^\n]{{0,60}}{_DRIVER_RELEASE_MENTION}{_BAD_RESULT_WORDS}|{_DRIVER_RELEASE_MENTION}{_BAD_RESULT_WORDS}{_DRIVER_RELEASE_MENTION}{_GOOD_RESULT_WORDS}",
    *("text", "application"),
)
# A package history from which a person picked an upgrade of the driver.
_DRIVER_UPGRADE_SEEN: Final = all_of(
    command_run(r"history|pacman|dpkg|dnf|yum|zypp"),
    message_line(r"nvidia[\w.:-]* \(\S*\d{3}\.\d\S*(?:,| ->) \S*\d{3}\.\d", "package-history", "package-output"),
)


def _faults_at_one_address(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield faults of different processes at one address; programs do not share pointers."""
    found: defaultdict[int, dict[str, Citation]] = defaultdict(dict)
    for fault in snapshot.view(faults.fault_timeline):
        if fault.code == 31 and fault.xid and (match := _FAULT_ADDRESS.search(fault.xid.text)):
            name = fault.xid.process
            who = name if _USER_PROGRAM_NAME.match(name) else fault.xid.pid or name
            found[int(match["address"].replace("_", ""), 16)].setdefault(who, fault.citation)
    return (line for at, by in found.items() if at >= _MAX_NULL_OFFSET and len(by) > 1 for line in by.values())


_FAULTS_CAUSED_BY_DRIVER: Final = all_of(
    _PAGE_FAULTS,
    any_of(
        custom_sign(_faults_at_one_address),
        kernel_line(r"caller \w*nv_drm_\w+|__nv_drm_gem_nvkms_map"),
        _DRIVER_UPGRADE_SEEN,
        _RELEASES_COMPARED,
    ),
)


def find_uncovered_xids(snapshot: Snapshot) -> Iterator[OpenQuestion]:
    """Yield the Xids without a rule, with the catalog's advice."""
    for incident in snapshot.view(faults.find_incidents):
        code = incident.root.code
        if incident.root.source == "xid" and code not in _CODES_WITH_RULE:
            entry = xids.lookup(code)
            meaning = (
                entry.meaning if entry else ("a code that is neither in NVIDIA's catalog nor in the driver's headers")
            )
            advice = f"; NVIDIA's catalog says: {entry.advice}" if entry and entry.advice else ""
            question = (
                f"{faults.gpu_label(incident.gpu)} reported Xid {code}, {meaning}; its cause is not known{advice}"
            )
            yield OpenQuestion(question, (*_GREP_LOG_COMMANDS, Shell("nvidia-smi -q")), incident.citations)


def _change_release(snapshot: Snapshot) -> Iterable[Fix]:
    yield from remedies.change_driver(snapshot, "install another driver release", allow_older=True)
    yield reboot_node("reboot, so that it is loaded")
    yield write_nvidia_report("that release fails too")


def _reset_after_pmu_fault(snapshot: Snapshot) -> Iterable[Fix]:
    yield reset_gpu()
    yield reboot_node(when="the reset is refused or hangs")
    text = "keep the driver loaded between programs, so that the GPU sleeps less"
    daemon = (Shell("sudo systemctl enable --now nvidia-persistenced"),)
    yield setup_step(
        snapshot, "configure", text, "persistence", fallback_commands=daemon, when="persistence mode is off"
    )
    yield manual_step("firmware", "update the GPU's VBIOS and the driver", "it comes back")
    yield manual_step("configure", "avoid the GPU's lowest clocks: nvidia-smi --lock-gpu-clocks", "it comes back")
    yield write_nvidia_report()


def _update_firmware_first(snapshot: Snapshot) -> Iterable[Fix]:
    yield manual_step("firmware", "update the machine's firmware")
    yield from _reset_after_pmu_fault(snapshot)


_GREP_LOG_COMMANDS: Final = (Shell("sudo dmesg --ctime | grep -iE 'xid|nvrm'"),)
_DCGM_DIAGNOSIS: Final = Shell("sudo dcgmi diag -r 3")
# The device plugin ignores program faults (k8s-device-plugin: Xids 13, 31, 43, 45, 68, 109).
_EXPLAINED_BY_PROGRAM_FAULT: Final = frozenset({"nvidia-uvm-wedged"})
_EXPLAINED_BY_GPU_DOWN: Final = (
    DRIVER_NOT_INITIALIZED | PROGRAM_FAULTS | {"nvlink-all-links-inactive-gpu", "nvlink-link-inactive"}
)
_rule = partial(Rule, layer="gpu", look_at=_GREP_LOG_COMMANDS)


# Messages of NVML (NVML_ERROR_RESET_REQUIRED) and DCGM (DCGM_FR_GPU_RECOVERY_…).
_RESET_REQUIRED_MESSAGE: Final = Pattern(
    r"GPU requires (?:a )?reset|GPU_REQUIRES_RESET|NVML_ERROR_RESET_REQUIRED"
    r"|requires a (?:reset|reboot) to recover from a fault"
)
_RECOVERY_ROWS: Final = ("GPU Recovery Action", "Reset Required", "Drain and Reset Recommended")
STOP_PEER_ACCESS: Final = manual_step(
    "drain", "stop the programs that access this GPU from another one (peer to peer): nothing else is needed"
)
_DISRUPTION_BY_ACTION: Final[Mapping[RecoveryAction, Disruption]] = {
    "none": "none",
    "drain-p2p": "restart-container",
    "reset": "reset-gpu",
    "drain-and-reset": "reset-gpu",
    "reboot": "reboot",
}


def find_pending_actions(snapshot: Snapshot) -> Iterator[Proof]:
    """Yield the recovery actions that the driver requests without a logged error."""
    yield from (_prove_xid_154(incident) for incident in faults.incidents_with(snapshot, 154))
    faulty = {incident.gpu for incident in snapshot.view(faults.find_incidents)}
    for gpu, row in (row for name in _RECOVERY_ROWS for row in smi_query.find_rows(snapshot, name)):
        is_explained = gpu.name in faulty if gpu.name else bool(faulty)
        if _action_of_row(row) != "none" and not is_explained:
            summary = f"{faults.gpu_label(gpu.name)} needs recovery ({row.path[-1]}: {row.value}); no line shows why"
            yield _with_recovery(_action_of_row(row), Proof(summary, (row.citation,), "likely", gpu=gpu.name))
    if not faulty and (lines := snapshot.matching_lines(_RESET_REQUIRED_MESSAGE)):
        yield Proof("A GPU must be reset before it can be used; no line shows why", lines, "likely")


def _action_of_row(row: SmiRow) -> RecoveryAction:
    is_named = row.path[-1] == _RECOVERY_ROWS[0]
    return recovery.action_by_name(row.value) if is_named else "reset" if smi_query.is_yes(row.value) else "none"


def _prove_xid_154(incident: faults.Incident) -> Proof:
    """Return the proof for the last action: it escalates with further faults and is cleared when done."""
    asking = [fault for fault in (incident.root, *incident.later_faults) if recovery.action_of(fault) is not None]
    last = asking[-1] if asking else incident.root
    action = recovery.action_of(last) or ""
    summary = f"{faults.gpu_label(incident.gpu)} needs recovery ({action or 'it does not say how'})"
    if action == "none":
        summary = f"{faults.gpu_label(incident.gpu)} was recovered: the driver no longer asks for it"
    lines = tuple(dict.fromkeys((*incident.citations, last.citation)))
    return _with_recovery(action, Proof(summary, lines, gpu=incident.gpu, at=incident.root.at))


def _with_recovery(action: RecoveryAction, proof: Proof) -> Proof:
    """Return the proof with the remedy for ``action``."""
    severity: Severity | None = "info" if action == "none" else None
    return replace(
        proof, remedy=tuple(recovery_steps(action)), disruption=_DISRUPTION_BY_ACTION.get(action), severity=severity
    )


def recovery_steps(action: RecoveryAction) -> Iterator[Fix]:
    """Yield the steps for ``action``."""
    find = Shell("sudo dmesg --ctime | grep -i xid")
    yield run_step("inspect", "find the Xid before it on the same GPU: that is the cause", find)
    if action == "drain-p2p":
        yield STOP_PEER_ACCESS
    elif action != "none":
        yield drain_node()
        if action != "reboot":
            yield reset_gpu(when="" if action else "the driver asks for a reset")
        when = {"reboot": "", "": "the driver asks for a reboot of the node, or the reset is refused"}
        text = "reboot the node: the driver asks for that, and a reset of the GPU is not enough"
        yield reboot_node(text if action == "reboot" else "reboot the node", when.get(action, "the reset is refused"))


RULES: Final = (
    _rule(
        cause="xid-13-graphics-exception",
        layer="programs",
        severity="warning",
        disruption="restart-container",
        symptoms=(symptoms.ANY_XID, symptoms.CUDA_PROGRAM_FAULT),
        check=faults.incident_check(13, 69, is_of_programs=True),
        typical=message_line(
            r"misaligned address|illegal instruction was encountered|Invalid __\w+__ (?:read|write)"
            r"|CUDA_EXCEPTION_\d"
        ),
        remedy=make_fixed_remedy(
            manual_step("application", "restart the program, and find its bug with compute-sanitizer"),
            run_step(
                "inspect", "test the GPU", _DCGM_DIAGNOSIS, when="other programs also fail on it, at the same place"
            ),
            write_nvidia_report("programs that are known to work keep failing"),
        ),
        explains=_EXPLAINED_BY_PROGRAM_FAULT | {"xid-109-ctx-switch-timeout"},
    ),
    _rule(
        cause="xid-31-mmu-fault",
        layer="programs",
        severity="warning",
        disruption="restart-container",
        symptoms=(symptoms.ANY_XID, symptoms.CUDA_PROGRAM_FAULT, symptoms.NCCL_FAILS),
        check=faults.incident_check(31, is_of_programs=True, confidence="likely"),
        against=(_FAULTS_CAUSED_BY_DRIVER,),
        typical=message_line(r"illegal memory access|CUDA_ERROR_ILLEGAL_ADDRESS|cudaErrorIllegalAddress"),
        remedy=make_fixed_remedy(
            manual_step("application", "restart the program, and find its bug with compute-sanitizer"),
            run_step("inspect", "test the GPU", _DCGM_DIAGNOSIS, when="many programs fail, and only on this GPU"),
            manual_step("install", "try another driver release", "it began with an update of the driver"),
        ),
        explains=_EXPLAINED_BY_PROGRAM_FAULT,
    ),
    _rule(
        cause="xid-31-driver-regression",
        layer="driver",
        disruption="reboot",
        symptoms=(symptoms.ANY_XID, symptoms.CUDA_PROGRAM_FAULT),
        look_at=(*_GREP_LOG_COMMANDS, Shell("cat /proc/driver/nvidia/version")),
        typical=any_of(_FAULTS_CAUSED_BY_DRIVER, _RELEASES_COMPARED),
        context=_DRIVER_UPGRADE_SEEN,
        remedy=_change_release,
        explains=_EXPLAINED_BY_PROGRAM_FAULT,
    ),
    _rule(
        cause="xid-61-pmu-breakpoint",
        disruption="reboot",
        symptoms=(symptoms.ANY_XID, symptoms.GPU_SLOW),
        check=faults.incident_check(61),
        context=any_of(
            any_line(r"nvidia-smi[^\n]* (?:-lgc|--lock-gpu-clocks)"), message_line(r"Performance State\s*: P8")
        ),
        remedy=_update_firmware_first,
        explains=_EXPLAINED_BY_GPU_DOWN,
    ),
    _rule(
        cause="xid-62-pmu-halt",
        disruption="reset-gpu",
        symptoms=(symptoms.ANY_XID, symptoms.GPU_LOST),
        check=faults.incident_check(62, 169),
        typical=kernel_line(r"PmuHalted|PMU has halted"),
        remedy=_reset_after_pmu_fault,
        explains=_EXPLAINED_BY_GPU_DOWN
        | {"xid-143-gpu-init-error", "gsp-bad-state-wpr2", "gsp-rpc-timeout", "gsp-init-failed-platform"},
    ),
    _rule(
        cause="xid-109-ctx-switch-timeout",
        layer="programs",
        disruption="restart-container",
        symptoms=(symptoms.ANY_XID, symptoms.CUDA_PROGRAM_FAULT, symptoms.GPU_SLOW),
        check=faults.incident_check(109, is_of_programs=True),
        remedy=make_fixed_remedy(
            manual_step("application", "end the program, and restart it"),
            reset_gpu(when="that does not recover the GPU"),
            manual_step("install", "try another driver release", "it comes back with programs that ran before"),
            write_nvidia_report(),
        ),
        explains=UNHEALTHY_IN_CLUSTER | {"nvidia-uvm-wedged"},
    ),
    _rule(
        cause="xid-121-c2c-link",
        severity="warning",
        symptoms=(symptoms.ANY_XID,),
        check=faults.incident_check(*_CHIP_LINK_XIDS),
        context=any_of(command_run(r"\bc2c\b|nvbandwidth"), message_line(r"\bG[HB][23]00\b")),
        remedy=make_fixed_remedy(
            manual_step("wait", ("no action now: the errors were corrected; reset the GPU at the next opportunity")),
            run_step("inspect", "check the state of the links", Shell("nvidia-smi c2c -s")),
            write_nvidia_report("it happens often, or a link is down"),
        ),
        explains=UNHEALTHY_IN_CLUSTER,
    ),
    _rule(
        cause="xid-122-spi-rpc",
        severity="warning",
        disruption="reset-gpu",
        symptoms=(symptoms.ANY_XID,),
        check=faults.incident_check(*_FLASH_XIDS),
        remedy=make_fixed_remedy(
            reset_gpu(),
            reboot_node(when="the reset is refused"),
            run_step("inspect", "check whether nvidia-smi warns about the InfoROM", Shell("nvidia-smi")),
            remedies.replace_gpu(when="it comes back"),
        ),
        explains=UNHEALTHY_IN_CLUSTER | {"inforom-corrupted"},
    ),
    _rule(
        cause="xid-143-gpu-init-error",
        disruption="power-cycle",
        symptoms=(symptoms.ANY_XID, symptoms.ADAPTER_INIT_FAILED),
        check=faults.incident_check(143),
        remedy=make_fixed_remedy(
            reset_gpu(),
            power_cycle_node("power the node off and on again", "the reset is refused"),
            manual_step("hardware", "check seating and power of the GPU", "it persists"),
            write_nvidia_report("it persists"),
        ),
        explains=_EXPLAINED_BY_GPU_DOWN,
    ),
    _rule(
        cause="xid-154-recovery-action",
        disruption="reset-gpu",
        symptoms=(symptoms.ANY_XID, symptoms.GPU_LOST),
        check=find_pending_actions,
        remedy=make_fixed_remedy(*recovery_steps("")),
        explains=_EXPLAINED_BY_GPU_DOWN,
    ),
)
