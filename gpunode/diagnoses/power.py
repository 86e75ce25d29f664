"""Power and heat: why a GPU that works runs slower than it could."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.commands import Shell, at, of_gpu
from gpunode.diagnoses.model import Citation, Confidence, Family, Fix, Proof, Rule, Severity
from gpunode.diagnoses.remedies import always, by_hand, drain, run
from gpunode.diagnoses.signs import asked, fact, line
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import smi_query
from gpunode.diagnoses.views.smi_rows import Row

# nvml.h, nvmlClocksEventReasons.
_BRAKE: Final = "HW Power Brake Slowdown", 0x80
_HARD: Final = "HW Thermal Slowdown", 0x40
_SOFT: Final = "SW Thermal Slowdown", 0x20
_CAP: Final = "SW Power Cap", 0x4


def _active(gpu: smi_query.Gpu, reason: str, bit: int) -> Citation | None:
    """The line that says that this reason holds the clocks back now, by its name or in the mask of all."""
    named = (row for row in gpu.every(reason) if row.value.strip().lower() == "active")
    masks = (row for row in gpu.every("Clocks Event Reasons", "Active") if re.fullmatch(r"0x[0-9a-f]{1,16}", row.value))
    found = (*named, *(row for row in masks if int(row.value, 16) & bit))
    return found[0].citation if found else None


def _which(gpu: smi_query.Gpu) -> str:
    return f"GPU {gpu.name}" if gpu.name else "the GPU"


def _braked(snapshot: Snapshot) -> Iterator[Proof]:
    # A board whose power cable is missing brakes, too; the driver says that in the kernel's log.
    sure: Confidence = "certain" if snapshot.of("kernel-log", "journal") else "likely"
    for gpu in snapshot.view(smi_query.gpus):
        if cited := _active(gpu, *_BRAKE):
            summary = f"the power brake of {_which(gpu)} is on: the machine, not the GPU, holds the clocks down"
            yield Proof(summary, (cited,), sure, gpu=gpu.name)


def _heated(snapshot: Snapshot) -> Iterator[Proof]:
    for gpu in snapshot.view(smi_query.gpus):
        hard = _active(gpu, *_HARD)
        if cited := hard or _active(gpu, *_SOFT):
            grade = "at its slowdown temperature" if hard else "at the temperature that it may run at"
            heat = (row.citation for row in gpu.every("GPU Current Temp"))
            yield Proof(f"{_which(gpu)} is {grade} and lowers its clocks", (cited, *heat), gpu=gpu.name)


def _hot(snapshot: Snapshot) -> Iterator[Citation]:
    """The temperatures of GPUs that have reached the highest at which they may run."""
    for gpu in snapshot.view(smi_query.gpus):
        now = gpu.number("GPU Current Temp")
        limits = (gpu.number("GPU Max Operating Temp"), gpu.number("GPU Slowdown Temp"))
        if now is not None and any(now >= limit - 1 for limit in limits if limit):
            yield from (row.citation for row in gpu.every("GPU Current Temp"))


_SLOWED: Final = line(r"\bHW Slowdown\s*:\s*Active", "nvidia-smi-q", "nvidia-smi", "text")


# ---- the limit

_SHARE: Final = 0.95
_LIMITS: Final = (
    *(("Enforced Power Limit",), ("Current Power Limit",), ("enforced", "power", "limit"), ("power", "limit")),
    ("Power Limit",),
)
_ASKED: Final = asked(r"-d[ =]\S*(?:POWER|PERFORMANCE)")


def _capped(snapshot: Snapshot) -> Iterator[Citation]:
    """The lines that say that the limit holds a GPU back now."""
    return (cited for gpu in snapshot.view(smi_query.gpus) if (cited := _active(gpu, *_CAP)))


def _limited(snapshot: Snapshot) -> Iterator[Proof]:
    capped = tuple(_capped(snapshot))
    for gpu in snapshot.view(smi_query.gpus):
        now, usual = _row(gpu, *_LIMITS), _row(gpu, ("Default Power Limit",), ("power", "default_limit"))
        if now is None or usual is None or _watts(now) >= _watts(usual) * _SHARE:
            continue
        requested = _row(gpu, ("Requested Power Limit",))
        by_bmc = requested is not None and _watts(requested) > _watts(now)
        who = ", by the machine's management controller" if by_bmc else ""
        summary = f"{_which(gpu)} may draw {_watts(now):.0f} W, and its default is {_watts(usual):.0f} W{who}"
        severity: Severity = "warning" if capped or by_bmc or snapshot.view(_ASKED) else "info"
        cited = (now.citation, usual.citation, *capped)
        remedy = (_BY_BMC,) if by_bmc else _raise(gpu, _watts(usual))
        yield Proof(summary, cited, severity=severity, gpu=gpu.name, remedy=remedy)


def _row(gpu: smi_query.Gpu, *ways: tuple[str, ...]) -> Row | None:
    found = (gpu.find(*way) for way in ways)
    return next((row for row in found if row is not None and _watts(row)), None)


def _watts(row: Row) -> float:
    match = re.match(r"\d+(?:\.\d+)?", row.value)
    return float(match[0]) if match else 0.0


def _raise(gpu: smi_query.Gpu, most: float) -> tuple[Fix, ...]:
    limit = of_gpu("sudo", "nvidia-smi", *at(gpu.name or gpu.value("index")), "-pl", f"{most:.0f}")
    return run("configure", "set the default limit again", limit), _FIND


_BY_BMC: Final = by_hand(
    "configure", "raise the limit where it is set: the power policy of the BMC, or its power budget"
)
_FIND: Final = run(
    "inspect",
    "find what sets it at boot",
    Shell("sudo grep -rlE 'nvidia-smi.*(-pl|--power-limit)' /etc/systemd/system /etc/cron* 2>/dev/null || true"),
)
_REASONS: Final = "https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html"

FAMILY: Final = Family(
    "power",
    "power and heat",
    (
        Rule(
            cause="thermal-slowdown",
            layer="power-thermal",
            severity="warning",
            disruption="none",
            title="the GPU is too hot and slows down",
            symptoms=(symptoms.SLOW,),
            look_at=(Shell("nvidia-smi -q -d PERFORMANCE,TEMPERATURE"),),
            story=(
                "The GPU lowers its clocks to stay below a temperature: first by its driver (SW Thermal Slowdown, at "
                "the highest operating temperature), then by hardware (HW Thermal Slowdown), which halves them or "
                "worse, and at the shutdown temperature it falls off the bus. Work goes on, only slower, and on one "
                "GPU of many all wait for it."
            ),
            sources=(_REASONS, "https://github.com/intel/thermal_daemon/issues/300"),
            check=_heated,
            typical=fact(_hot),
            may_be_normal=True,
            context=_SLOWED,
            remedy=always(
                by_hand(
                    "hardware",
                    "look at fans, air flow, dust and inlet temperature, and at the BMC for a failed chassis fan",
                ),
                drain("move the work away until the GPU is cool again"),
                run("inspect", "watch temperature and clocks", Shell("nvidia-smi -q -d TEMPERATURE,PERFORMANCE")),
            ),
        ),
        Rule(
            cause="power-brake-slowdown",
            layer="power-thermal",
            severity="warning",
            disruption="none",
            title="the machine's power brake holds the GPU down",
            symptoms=(symptoms.SLOW,),
            look_at=(Shell("nvidia-smi -q -d PERFORMANCE,POWER"),),
            story=(
                "A pin of the slot tells the GPU to slow down at once, whatever it does. The machine pulls it when a "
                "power supply failed or lost its redundancy, when its power budget is used up, or when its BMC does "
                "not know the card. Clocks drop to a quarter while the GPU is cool and draws little, often on all "
                "GPUs of a node together."
            ),
            sources=(_REASONS, "https://github.com/NVIDIA/NVSentinel/issues/1666"),
            check=_braked,
            typical=line(
                r"\bPSU?\d* Status\s+Fail"
                r"|\b(?:power supply|PSU?\d*|redundancy)\b[^\n]{0,40}\b(?:lost|failure|failed)",
                flags=re.IGNORECASE,
            ),
            context=_SLOWED,
            remedy=always(
                by_hand(
                    "hardware",
                    "look at the power supplies and the power budget in the BMC, and restore their redundancy",
                ),
                by_hand(
                    "firmware",
                    "update the BMC's firmware",
                    "the machine's maker supports the card and the supplies are fine",
                ),
                run("inspect", "the brake must be off again", Shell("nvidia-smi -q -d PERFORMANCE | grep -i brake")),
            ),
        ),
        Rule(
            cause="power-limit-set-low",
            layer="config",
            in_stack="gpu",
            severity="warning",
            disruption="none",
            title="the GPU's power limit is below its default",
            symptoms=(symptoms.SLOW,),
            look_at=(Shell("nvidia-smi -q -d POWER"),),
            story=(
                "Somebody or something set the GPU's power limit below the default: nvidia-smi -pl, a service at "
                "boot, or the machine's management controller out of band. The driver then holds the clocks down (SW "
                "Power Cap) long before the hardware would. SW Power Cap at the default limit is no fault: a GPU "
                "under full load always reaches it."
            ),
            sources=(_REASONS, "https://github.com/stackhpc/ansible-slurm-appliance/pull/975"),
            check=_limited,
            context=fact(_capped),
            remedy=always(
                by_hand(
                    "configure",
                    "set the default limit again: nvidia-smi -i with its address, -pl with the watts of Default Power "
                    "Limit",
                )
            ),
        ),
    ),
)
