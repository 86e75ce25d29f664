"""Diagnose GPUs that are missing, lost or without power, hot, throttled or held below their power limit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.commands import Shell, gpu_command, gpu_option
from gpunode.diagnoses.consequences import DRIVER_NOT_INITIALIZED, GPU_LOST, UNHEALTHY_IN_CLUSTER
from gpunode.diagnoses.model import Citation, Confidence, Proof, Rule, Severity
from gpunode.diagnoses.pci import REGION_WITHOUT_ADDRESS
from gpunode.diagnoses.remedies import (
    drain_node,
    look_at_hardware,
    make_fixed_remedy,
    manual_step,
    power_cycle_node,
    replace_gpu,
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
from gpunode.diagnoses.support import gpus_without_driver_support
from gpunode.diagnoses.views import boards, faults, kernel, pci, smi_query
from gpunode.facts.patterns import Pattern


def _find_missing_gpus(snapshot: Snapshot) -> Iterator[Proof]:
    """Yield the proof of more GPUs on the bus than nvidia-smi shows."""
    # nvidia-smi cannot show GPUs that nouveau or vfio-pci owns or that the driver ignores.
    left = snapshot.view(gpus_without_driver_support)
    owned = (gpu for gpu in snapshot.view(pci.pci_gpus) if gpu.driver in {None, "nvidia"} and gpu.address not in left)
    listed = {gpu.address: gpu for gpu in owned} if pci.is_bus_listed(snapshot) and "" not in left else {}
    shown = max(snapshot.view(boards.smi_inventories), key=lambda one: one.count or 0, default=None)
    if shown is None or shown.count is None or len(listed) <= shown.count:
        return
    buses = {board.bus for board in shown.boards if board.bus}
    absent = [gpu for address, gpu in listed.items() if address not in buses]
    is_named = len(absent) == len(listed) - shown.count
    names = ", ".join(gpu.address for gpu in absent) if is_named else "one"
    summary = f"{len(listed)} GPUs are on the PCI bus, but nvidia-smi shows {shown.count}: {names} is missing"
    lines = (*(gpu.citation for gpu in (absent if is_named else listed.values())), shown.citation)
    yield Proof(summary, lines, gpu=absent[0].address if is_named else "")


def _odd_gpu_counts(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield inventories of three, five, six or seven GPUs, which few machines have."""
    return (one.citation for one in snapshot.view(boards.smi_inventories) if one.count in {3, 5, 6, 7})


_GPUS_ON_BASEBOARD: Final = predicate(
    lambda snapshot: "baseboard" in snapshot.view(boards.board_kinds), "baseboards carry 4 or 8 GPUs"
)
# NVML and programs that print its messages: the GPU "has fallen off the bus or has otherwise become inaccessible"
# (nvml.h). Process names are excluded, since users choose them.
_GPU_LOST_MESSAGE: Final = message_line(
    r"(?i)^(?:(?!\bname=)[^\n])*(?:\bGPU is lost\b|GPU_IS_LOST\b|(?:has )?(?:fallen|fell) off the (?:PCI(?:e)? )?bus)"
)
# Reads from a device that does not answer return all ones; a notebook's GPU may be switched off on purpose.
_CONFIG_SPACE_ALL_ONES: Final = unless(
    message_line(
        r"^(?![^\n]*(?:Mobile|Max-Q|\d{3}M\b))[^\n]*NVIDIA[^\n]*(?:\(rev ff\)|\bprog-if ff\b)", "lspci", "text"
    ),
    message_line(r"Kernel driver in use: vfio-pci", "lspci", "text"),
)
_GPU_ASLEEP: Final = message_line(r"(?i)\bD3cold\b|device inaccessible|\bbbswitch\b")
_POWER_CABLES_MISSING: Final = message_line(
    r"(?i)does not have the necessary power cables connected|Insufficient External Power"
    r"|auxiliary power (?:cable|connector)s? .{0,40}not connected"
    r"|connect the PCIe? (?:auxiliary )?power cable"
)
# In a guest the hypervisor's settings cause the same error; a GSP that does not answer causes it after minutes.
_NO_DEVICE_HANDLE: Final = unless(
    message_line(r"(?i)Unable to determine the device handle for GPU"),
    any_line(r"(?i)\b(?:kvm|vmware|qemu|hyper-?v|hypervisor|microsoft|xen)\b"),
    symptoms.SMI_HANGS,
    _POWER_CABLES_MISSING,
)


def _port_containment_lines(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the containment events of the port above that precede the loss of the GPU."""
    gone = snapshot.view(faults.first_bus_falls)
    told = (message.citation for message in kernel.matching_messages(snapshot, _PORT_CONTAINMENT_EVENT))
    return (line for line in told if not faults.is_after_fall(line, gone))


_PORT_CONTAINMENT_EVENT: Final = Pattern(r"\bpcieport \S+: DPC: containment event")
_PCIE_LINK_WENT_DOWN: Final = kernel_line(r"\] ?(?:SDES|Surprise Down)")


_SERIOUS_FAULT: Final = custom_sign(faults.serious_fault_lines)
_rule = partial(Rule, layer="gpu", disruption="power-cycle")


# nvml.h, nvmlClocksEventReasons.
_POWER_BRAKE_REASON: Final = "HW Power Brake Slowdown", 0x80
_HW_THERMAL_REASON: Final = "HW Thermal Slowdown", 0x40
_SW_THERMAL_REASON: Final = "SW Thermal Slowdown", 0x20
_POWER_CAP_REASON: Final = "SW Power Cap", 0x4


def _gpus_limited_by(snapshot: Snapshot, reason: str, bit: int) -> Iterator[tuple[smi_query.SmiGpu, Citation]]:
    """Yield the GPUs whose clocks are limited for this reason, found by its name or in the bit mask."""
    for gpu in snapshot.view(smi_query.smi_gpus):
        mask = gpu.find_row("Clocks Event Reasons", "Active")
        if mask and re.fullmatch(r"0x[0-9a-f]{1,16}", mask.value) and int(mask.value, 16) & bit:
            yield gpu, mask.citation
        elif row := next((row for row in gpu.find_rows(reason) if row.value.lower() == "active"), None):
            yield gpu, row.citation


def _gpu_name(gpu: smi_query.SmiGpu) -> str:
    return f"GPU {gpu.name}" if gpu.name else "the GPU"


def _find_power_braked_gpus(snapshot: Snapshot) -> Iterator[Proof]:
    # A board without its power cable also brakes; the driver reports that in the kernel log.
    sure: Confidence = "certain" if snapshot.items_of("kernel-log", "journal") else "likely"
    for gpu, place in _gpus_limited_by(snapshot, *_POWER_BRAKE_REASON):
        summary = f"the power brake of {_gpu_name(gpu)} is on: the machine, not the GPU, limits the clocks"
        yield Proof(summary, (place,), sure, gpu=gpu.name)


def _find_overheated_gpus(snapshot: Snapshot) -> Iterator[Proof]:
    for reason in (_HW_THERMAL_REASON, _SW_THERMAL_REASON):
        for gpu, place in _gpus_limited_by(snapshot, *reason):
            heat = (row.citation for row in gpu.find_rows("GPU Current Temp"))
            summary = f"{_gpu_name(gpu)} is too hot and lowers its clocks ({reason[0]})"
            yield Proof(summary, (place, *heat), gpu=gpu.name)


def _temperatures_at_limit(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the temperatures of GPUs that have reached their maximum operating temperature."""
    for gpu in snapshot.view(smi_query.smi_gpus):
        now = gpu.number("GPU Current Temp")
        limits = (gpu.number("GPU Max Operating Temp"), gpu.number("GPU Slowdown Temp"))
        if now is not None and any(now >= limit - 1 for limit in limits if limit):
            yield from (row.citation for row in gpu.find_rows("GPU Current Temp"))


_POWER_CAP: Final = custom_sign(lambda snapshot: (place for _, place in _gpus_limited_by(snapshot, *_POWER_CAP_REASON)))
_REPORTER_QUERIED_POWER: Final = command_run(r"-d[ =]\S*(?:POWER|PERFORMANCE)")
# Below this share of the default, the limit was lowered on purpose.
_MIN_SHARE_OF_DEFAULT_POWER_LIMIT: Final = 0.95


def _find_lowered_power_limits(snapshot: Snapshot) -> Iterator[Proof]:
    capped = snapshot.view(_POWER_CAP)
    for gpu in snapshot.view(smi_query.smi_gpus):
        limits = (gpu.number(name) for name in ("Enforced Power Limit", "Current Power Limit", "Power Limit"))
        now, usual = next((limit for limit in limits if limit), None), gpu.number("Default Power Limit")
        if now is None or usual is None or now >= usual * _MIN_SHARE_OF_DEFAULT_POWER_LIMIT:
            continue
        summary = f"{_gpu_name(gpu)} is limited to {now:.0f} W, but its default is {usual:.0f} W"
        severity: Severity = "warning" if capped or snapshot.view(_REPORTER_QUERIED_POWER) else "info"
        lines = (*(row.citation for row in gpu.find_rows("Default Power Limit")), *capped)
        limit = gpu_command("sudo", "nvidia-smi", *gpu_option(gpu.name), "-pl", f"{usual:.0f}")
        remedy = (run_step("configure", "restore the default limit", limit), _FIND_POWER_LIMIT_SETTER)
        yield Proof(summary, lines, severity=severity, gpu=gpu.name, remedy=remedy)


_FIND_POWER_LIMIT_SETTER: Final = run_step(
    "inspect",
    "find what sets it at boot; the power policy of the BMC can set it too",
    Shell("sudo grep -rlE 'nvidia-smi.*(-pl|--power-limit)' /etc/systemd/system /etc/cron* 2>/dev/null || true"),
)
_power_rule = partial(Rule, layer="gpu", severity="warning", symptoms=(symptoms.GPU_SLOW,))

RULES: Final = (
    _rule(
        cause="gpu-missing-from-inventory",
        symptoms=(
            *(symptoms.GPU_LOST, symptoms.NO_DEVICES, symptoms.ADAPTER_INIT_FAILED),
            symptoms.GPU_NOT_LISTED,
        ),
        look_at=(Shell("lspci -nn -d 10de:"), Shell("nvidia-smi -L")),
        check=_find_missing_gpus,
        typical=unless(
            all_of(custom_sign(_odd_gpu_counts), _GPUS_ON_BASEBOARD), predicate(pci.is_bus_listed, "the bus was listed")
        ),
        context=custom_sign(_odd_gpu_counts),
        against=(REGION_WITHOUT_ADDRESS,),  # it is on the bus but cannot be started
        remedy=make_fixed_remedy(
            run_step(
                "inspect", "read the kernel's messages about it", Shell("sudo dmesg | grep -E 'NVRM|AER|pcieport'")
            ),
            drain_node(),
            power_cycle_node(),
            manual_step("hardware", "reseat the GPU, and have it replaced if it stays missing"),
        ),
        explains=UNHEALTHY_IN_CLUSTER,
    ),
    _rule(
        cause="gpu-fallen-off-bus",
        share=3.5,
        symptoms=(
            symptoms.GPU_LOST,
            symptoms.ANY_XID,
            symptoms.NVML_UNKNOWN,
            symptoms.CUDA_PROGRAM_FAULT,
            symptoms.NO_DEVICES,
            symptoms.CUDA_UNKNOWN,
            symptoms.CUDA_FINDS_NO_DEVICE,
            symptoms.ADAPTER_INIT_FAILED,
        ),
        # Descriptions by people, without a line from the log.
        context=message_line(r"(?i)\b(?:falls?|fell|falling) off (?:of )?the (?:PCIe? )?bus\b"),
        look_at=(Shell("sudo dmesg | grep -iE 'xid|nvrm|fallen'"),),
        check=faults.incident_check(79, 167),
        against=(unless(custom_sign(_port_containment_lines), _PCIE_LINK_WENT_DOWN),),
        decisive=unless(_GPU_LOST_MESSAGE, _SERIOUS_FAULT),
        typical=unless(any_of(_CONFIG_SPACE_ALL_ONES, _NO_DEVICE_HANDLE), _GPU_ASLEEP, _SERIOUS_FAULT),
        remedy=make_fixed_remedy(
            drain_node(),
            power_cycle_node(),
            manual_step("hardware", "check power supply, power cables and risers; reseat the GPU", "it comes back"),
            write_nvidia_report(),
            replace_gpu(when="it falls off again in another slot or machine"),
        ),
        explains=GPU_LOST
        | {
            *("driver-module-not-loaded", "nvlink-all-links-inactive-gpu", "nvlink-link-inactive"),
            *("pcie-uncorrectable-completion-timeout", "pcie-aer-correctable-storm", "pcie-link-degraded"),
            "gpu-missing-from-inventory",
        },
    ),
    _rule(
        cause="xid-54-aux-power",
        symptoms=(symptoms.ANY_XID, symptoms.ADAPTER_INIT_FAILED, symptoms.GPU_LOST),
        look_at=(Shell("sudo dmesg | grep -iE 'xid|nvrm|power'"),),
        check=faults.incident_check(54),
        context=message_line(r"Power Brake Slowdown\s*: Active"),
        decisive=_POWER_CABLES_MISSING,
        remedy=look_at_hardware(
            manual_step("hardware", "power the node off and connect every power cable of the GPU"),
            manual_step("hardware", "check that the supply can power all GPUs together", "all are connected"),
        ),
        explains=DRIVER_NOT_INITIALIZED
        | {"power-brake-slowdown", "gsp-init-failed-platform", "xid-143-gpu-init-error"},
    ),
    _power_rule(
        cause="thermal-slowdown",
        share=2,
        look_at=(Shell("nvidia-smi -q -d PERFORMANCE,TEMPERATURE"),),
        check=_find_overheated_gpus,
        typical=any_of(custom_sign(_temperatures_at_limit), message_line(r"clocks? \w+ due to thermal violation")),
        against=(unless(message_line(r"Thermal Slowdown\s*: Not"), message_line(r"Thermal Slowdown\s*: Active")),),
        may_be_normal=True,
        remedy=make_fixed_remedy(
            manual_step("hardware", "check fans (also in the BMC), air flow, dust and inlet temperature"),
            drain_node("move the work away until the GPU is cool again"),
            run_step("inspect", "watch temperature and clocks", Shell("nvidia-smi -q -d TEMPERATURE,PERFORMANCE")),
        ),
    ),
    _power_rule(
        cause="power-brake-slowdown",
        look_at=(Shell("nvidia-smi -q -d PERFORMANCE,POWER"),),
        check=_find_power_braked_gpus,
        typical=message_line(
            r"(?i)\bPSU?\d* Status\s+Fail"
            r"|\b(?:power supply|PSU?\d*|redundancy)\b[^\n]{0,40}\b(?:lost|failure|failed)"
        ),
        remedy=make_fixed_remedy(
            manual_step("hardware", "check power supplies and power budget in the BMC, and restore redundancy"),
            manual_step("firmware", "update the BMC's firmware", "the supplies are fine"),
            run_step("inspect", "the brake must be off again", Shell("nvidia-smi -q -d PERFORMANCE | grep -i brake")),
        ),
    ),
    _power_rule(
        cause="power-limit-set-low",
        look_at=(Shell("nvidia-smi -q -d POWER"),),
        check=_find_lowered_power_limits,
        context=unless(_POWER_CAP, symptoms.NOTHING_FAILS),
        remedy=make_fixed_remedy(manual_step("configure", "restore the default limit: nvidia-smi -pl WATTS")),
    ),
)
