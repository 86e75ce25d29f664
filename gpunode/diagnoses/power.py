"""Power and heat: why a GPU that works runs slower than it could."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.commands import Shell, at, of_gpu
from gpunode.diagnoses.model import Citation, Confidence, Family, Fix, Proof, Rule, Severity, Verdict, only
from gpunode.diagnoses.remedies import always, by_hand, drain, run
from gpunode.diagnoses.signs import fact, line
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import smi_query
from gpunode.diagnoses.views.smi_rows import Row

# The names of -q, then those of the CSV, which has had two prefixes.
_PREFIXES: Final = ("clocks_event_reasons", "clocks_throttle_reasons")
# nvml.h, nvmlClocksEventReasons.
_MASKS: Final = {
    "HW Thermal Slowdown": 0x40,
    "SW Thermal Slowdown": 0x20,
    "HW Power Brake Slowdown": 0x80,
    "HW Slowdown": 0x8,
}
_HOT_C: Final = 3


def _is_active(gpu: smi_query.Gpu, reason: str) -> tuple[bool | None, Citation | None]:
    """Whether this reason holds the clocks back now, and the line that says so; None where nothing tells."""
    names = (
        reason,
        *(f"{prefix}.{reason.lower().replace(' ', '_')}" for prefix in _PREFIXES),
        reason.lower().replace(" ", "_"),
    )
    rows = [row for name in names for row in gpu.every(*name.split("."))]
    for row in rows:
        if row.value.strip().lower() == "active":
            return True, row.citation
    for bits in (row for prefix in _PREFIXES for row in gpu.every(prefix, "active")):
        if bits.value.lower().startswith("0x") and (mask := _MASKS.get(reason, 0)):
            return bool(_hexadecimal(bits.value) & mask), bits.citation
    return (False, rows[0].citation) if rows else (None, None)


def _hexadecimal(text: str) -> int:
    match = re.match(r"0x([0-9a-f]{1,16})", text.lower())
    return int(match[1], 16) if match else 0


def _slowed(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """Which it is: heat, the power supply's brake, or one of them that an old driver does not tell apart."""
    for gpu in snapshot.view(smi_query.gpus):
        brake, brake_line = _is_active(gpu, "HW Power Brake Slowdown")
        hard, hard_line = _is_active(gpu, "HW Thermal Slowdown")
        soft, soft_line = _is_active(gpu, "SW Thermal Slowdown")
        slowed, slowed_line = _is_active(gpu, "HW Slowdown")
        heat = _heat(snapshot, gpu)
        which = f"GPU {gpu.name}" if gpu.name else "the GPU"
        if brake and brake_line is not None:
            summary = f"the power brake of {which} is on: the machine, not the GPU, holds the clocks down"
            out = ("heat: no thermal slowdown is active",) if hard is False and soft is False else ()
            # A board whose power cable is missing brakes, too; the driver says that in the kernel's log.
            sure: Confidence = "certain" if snapshot.of("kernel-log", "journal") else "likely"
            yield "power-brake-slowdown", Proof(summary, (brake_line,), sure, out, gpu.name)
        if (hard or soft) and (line := hard_line if hard else soft_line) is not None:
            grade = "at its slowdown temperature" if hard else "at the temperature that it may run at"
            out = ("the power brake: it is not active",) if brake is False else ()
            yield (
                "thermal-slowdown",
                Proof(f"{which} is {grade} and lowers its clocks", (line, *heat), ruled_out=out, gpu=gpu.name),
            )
        elif slowed and not brake and slowed_line is not None and hard is None:
            yield from _unsorted(gpu, which, slowed_line, heat)


def _unsorted(
    gpu: smi_query.Gpu, which: str, line: Citation, heat: tuple[Citation, ...]
) -> Iterator[tuple[str, Verdict]]:
    """Drivers before branch 384 name no sub-reason: the temperature tells heat from the brake."""
    margin = _margin(gpu)
    if margin is not None and margin <= 0:
        yield (
            "thermal-slowdown",
            Proof(f"{which} is at its slowdown temperature and lowers its clocks", (line, *heat), gpu=gpu.name),
        )
    elif margin is not None and margin > 2 * _HOT_C:
        out = ("heat: the GPU is cool",)
        yield (
            "power-brake-slowdown",
            Proof(f"{which} is cool and slowed down by hardware", (line, *heat), "likely", out, gpu.name),
        )


def _margin(gpu: smi_query.Gpu) -> float | None:
    """Degrees below the slowdown temperature."""
    now = gpu.number("GPU Current Temp") or gpu.number("temperature", "gpu")
    limit = gpu.number("GPU Slowdown Temp")
    if now is not None and limit is not None:
        return limit - now
    left, least = gpu.number("GPU T.Limit Temp"), gpu.number("GPU Slowdown T.Limit Temp")
    return left - (least or 0.0) if left is not None else None


def _heat(snapshot: Snapshot, gpu: smi_query.Gpu) -> tuple[Citation, ...]:
    """The lines with the temperatures of this GPU, from whichever answer has them."""
    own = {row.citation for row in gpu.rows}
    told = snapshot.view(_temperatures)
    return tuple(line for name, line in told if line in own or (name == gpu.name and name))[:4]


def _temperatures(snapshot: Snapshot) -> tuple[tuple[str, Citation], ...]:
    names = ("GPU Current Temp", "GPU Slowdown Temp", "GPU Max Operating Temp", "GPU T.Limit Temp")
    rows = (row for name in names for row in smi_query.rows(snapshot, name))
    return tuple((gpu.name, row.citation) for gpu, row in rows)


def _hot(snapshot: Snapshot) -> Iterator[Citation]:
    """The temperatures of GPUs that have reached the highest at which they may run."""
    for gpu in snapshot.view(smi_query.gpus):
        now, most = gpu.number("GPU Current Temp"), gpu.number("GPU Max Operating Temp")
        if now is not None and most is not None and now >= most - 1:
            yield from _heat(snapshot, gpu)


_SLOWED: Final = line(r"\bHW Slowdown\s*:\s*Active", "nvidia-smi-q", "nvidia-smi", "text")


# ---- the limit

_SHARE: Final = 0.95
_LIMITS: Final = (
    *("Enforced Power Limit", "Current Power Limit", "enforced.power.limit", "power.limit", "Power Limit"),
)


def _capped(snapshot: Snapshot) -> Iterator[Citation]:
    """The lines that say that the limit holds a GPU back now."""
    found = (_is_active(gpu, "SW Power Cap") for gpu in snapshot.view(smi_query.gpus))
    return (place for active, place in found if active and place is not None)


def _limited(snapshot: Snapshot) -> Iterator[Verdict]:
    capped = tuple(_capped(snapshot))
    asked = any({"POWER", "PERFORMANCE"} & set(_displayed(words)) for words in (i.source.words for i in snapshot.items))
    for gpu in snapshot.view(smi_query.gpus):
        now = _row(gpu, *_LIMITS)
        usual = _row(gpu, "Default Power Limit", "power.default_limit")
        if now is None or usual is None:
            continue
        watts, most = _watts(now), _watts(usual)
        if watts is None or most is None or watts >= most * _SHARE:
            continue
        requested = _row(gpu, "Requested Power Limit")
        out_of_band = requested is not None and (_watts(requested) or 0.0) > watts
        who = ", by the machine's management controller" if out_of_band else ""
        which = f"GPU {gpu.name}" if gpu.name else "the GPU"
        summary = f"{which} may draw {watts:.0f} W, and its default is {most:.0f} W: the limit was lowered{who}"
        severity: Severity = "warning" if capped or asked or out_of_band else "info"
        yield Proof(
            summary,
            (now.citation, usual.citation, *capped),
            severity=severity,
            gpu=gpu.name,
            remedy=tuple(_raise(gpu, most, out_of_band=out_of_band)),
        )


def _displayed(words: tuple[str, ...]) -> list[str]:
    asked = (word for before, word in pairwise(words) if before == "-d")
    return [part.upper() for one in asked for part in one.split(",")]


def _row(gpu: smi_query.Gpu, *names: str) -> Row | None:
    found = (gpu.find(*name.split(".")) if name.islower() else gpu.find(name) for name in names)
    return next((row for row in found if row is not None and _watts(row) is not None), None)


def _watts(row: Row) -> float | None:
    match = re.match(r"\d+(?:\.\d+)?", row.value)
    return float(match[0]) if match else None


def _raise(gpu: smi_query.Gpu, most: float, *, out_of_band: bool) -> Iterator[Fix]:
    if out_of_band:
        yield by_hand("configure", "raise the limit where it is set: the power policy of the BMC, or its power budget")
    else:
        limit = of_gpu("sudo", "nvidia-smi", *at(gpu.name or gpu.value("index")), "-pl", f"{most:.0f}")
        yield run("configure", "set the default limit again", limit)
    find = Shell("sudo grep -rlE 'nvidia-smi.*(-pl|--power-limit)' /etc/systemd/system /etc/cron* 2>/dev/null || true")
    yield run("inspect", "find what sets it at boot", find)


def _default_limit(_: Snapshot) -> Iterable[Fix]:
    yield by_hand(
        "configure",
        "set the default limit again: nvidia-smi -i with its address, -pl with the watts of Default Power Limit",
    )


_REASONS: Final = "https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html"

FAMILY: Final = Family(
    "power",
    "power and heat",
    (
        Rule(
            cause="thermal-slowdown",
            layer="power-thermal",
            storey="gpu",
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
            check=only("thermal-slowdown", _slowed),
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
            storey="gpu",
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
            check=only("power-brake-slowdown", _slowed),
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
            storey="gpu",
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
            remedy=_default_limit,
        ),
    ),
)
