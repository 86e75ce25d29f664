"""Diagnose power and heat: throttled clocks, hot GPUs, lowered power limits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.commands import Shell, gpu_command, gpu_option
from gpunode.diagnoses.model import Citation, Confidence, Proof, Rule, Severity
from gpunode.diagnoses.remedies import always, drain, manual_step, run_step
from gpunode.diagnoses.signs import any_of, command_run, custom_sign, message_line, unless
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import smi_query

# nvml.h, nvmlClocksEventReasons.
_BRAKE: Final = "HW Power Brake Slowdown", 0x80
_HARD: Final = "HW Thermal Slowdown", 0x40
_SOFT: Final = "SW Thermal Slowdown", 0x20
_CAP: Final = "SW Power Cap", 0x4


def _active_reasons(snapshot: Snapshot, reason: str, bit: int) -> Iterator[tuple[smi_query.SmiGpu, Citation]]:
    """Yield the GPUs whose clocks are limited for this reason, by its name or the mask of all."""
    for gpu in snapshot.view(smi_query.smi_gpus):
        mask = gpu.find("Clocks Event Reasons", "Active")
        if mask and re.fullmatch(r"0x[0-9a-f]{1,16}", mask.value) and int(mask.value, 16) & bit:
            yield gpu, mask.citation
        elif row := next((row for row in gpu.find_all(reason) if row.value.lower() == "active"), None):
            yield gpu, row.citation


def _gpu_name(gpu: smi_query.SmiGpu) -> str:
    return f"GPU {gpu.name}" if gpu.name else "the GPU"


def _find_braked(snapshot: Snapshot) -> Iterator[Proof]:
    # A board whose power cable is missing brakes, too; the driver says that in the kernel's log.
    sure: Confidence = "certain" if snapshot.items_of("kernel-log", "journal") else "likely"
    for gpu, place in _active_reasons(snapshot, *_BRAKE):
        summary = f"the power brake of {_gpu_name(gpu)} is on: the machine, not the GPU, limits the clocks"
        yield Proof(summary, (place,), sure, gpu=gpu.name)


def _find_heated(snapshot: Snapshot) -> Iterator[Proof]:
    for reason in (_HARD, _SOFT):
        for gpu, place in _active_reasons(snapshot, *reason):
            heat = (row.citation for row in gpu.find_all("GPU Current Temp"))
            summary = f"{_gpu_name(gpu)} is too hot and lowers its clocks ({reason[0]})"
            yield Proof(summary, (place, *heat), gpu=gpu.name)


def _hot_gpus(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the temperatures of GPUs that have reached the highest at which they may run."""
    for gpu in snapshot.view(smi_query.smi_gpus):
        now = gpu.number("GPU Current Temp")
        limits = (gpu.number("GPU Max Operating Temp"), gpu.number("GPU Slowdown Temp"))
        if now is not None and any(now >= limit - 1 for limit in limits if limit):
            yield from (row.citation for row in gpu.find_all("GPU Current Temp"))


_SLOWED: Final = message_line(r"\bHW Slowdown\s*:\s*Active", "nvidia-smi-q", "nvidia-smi", "text")
_CAPPED: Final = custom_sign(lambda snapshot: (place for _, place in _active_reasons(snapshot, *_CAP)))
_LIMITS_ASKED: Final = command_run(r"-d[ =]\S*(?:POWER|PERFORMANCE)")
# Less than this share of the default is a limit that somebody set.
_SHARE: Final = 0.95


def _find_limited(snapshot: Snapshot) -> Iterator[Proof]:
    capped = snapshot.view(_CAPPED)
    for gpu in snapshot.view(smi_query.smi_gpus):
        limits = (gpu.number(name) for name in ("Enforced Power Limit", "Current Power Limit", "Power Limit"))
        now, usual = next((limit for limit in limits if limit), None), gpu.number("Default Power Limit")
        if now is None or usual is None or now >= usual * _SHARE:
            continue
        summary = f"{_gpu_name(gpu)} is limited to {now:.0f} W, but its default is {usual:.0f} W"
        severity: Severity = "warning" if capped or snapshot.view(_LIMITS_ASKED) else "info"
        lines = (*(row.citation for row in gpu.find_all("Default Power Limit")), *capped)
        limit = gpu_command("sudo", "nvidia-smi", *gpu_option(gpu.name), "-pl", f"{usual:.0f}")
        remedy = (run_step("configure", "restore the default limit", limit), _FIND)
        yield Proof(summary, lines, severity=severity, gpu=gpu.name, remedy=remedy)


_FIND: Final = run_step(
    "inspect",
    "find what sets it at boot; the power policy of the BMC can set it too",
    Shell("sudo grep -rlE 'nvidia-smi.*(-pl|--power-limit)' /etc/systemd/system /etc/cron* 2>/dev/null || true"),
)
_rule = partial(Rule, layer="power-thermal")

RULES: Final = (
    _rule(
        cause="thermal-slowdown",
        severity="warning",
        disruption="none",
        symptoms=(symptoms.SLOW,),
        look_at=(Shell("nvidia-smi -q -d PERFORMANCE,TEMPERATURE"),),
        check=_find_heated,
        typical=any_of(custom_sign(_hot_gpus), message_line(r"clocks? \w+ due to thermal violation")),
        may_be_normal=True,
        context=unless(_SLOWED, symptoms.ALL_WELL),
        remedy=always(
            manual_step("hardware", "check fans (also in the BMC), air flow, dust and inlet temperature"),
            drain("move the work away until the GPU is cool again"),
            run_step("inspect", "watch temperature and clocks", Shell("nvidia-smi -q -d TEMPERATURE,PERFORMANCE")),
        ),
    ),
    _rule(
        cause="power-brake-slowdown",
        severity="warning",
        disruption="none",
        symptoms=(symptoms.SLOW,),
        look_at=(Shell("nvidia-smi -q -d PERFORMANCE,POWER"),),
        check=_find_braked,
        typical=message_line(
            r"\bPSU?\d* Status\s+Fail"
            r"|\b(?:power supply|PSU?\d*|redundancy)\b[^\n]{0,40}\b(?:lost|failure|failed)",
            flags=re.IGNORECASE,
        ),
        context=unless(_SLOWED, symptoms.ALL_WELL),
        remedy=always(
            manual_step("hardware", "check power supplies and power budget in the BMC, and restore redundancy"),
            manual_step("firmware", "update the BMC's firmware", "the supplies are fine"),
            run_step("inspect", "the brake must be off again", Shell("nvidia-smi -q -d PERFORMANCE | grep -i brake")),
        ),
    ),
    _rule(
        cause="power-limit-set-low",
        layer="config",
        shows_in="gpu",
        severity="warning",
        disruption="none",
        symptoms=(symptoms.SLOW,),
        look_at=(Shell("nvidia-smi -q -d POWER"),),
        check=_find_limited,
        context=unless(_CAPPED, symptoms.ALL_WELL),
        remedy=always(manual_step("configure", "restore the default limit: nvidia-smi -pl WATTS")),
    ),
)
