"""GPU memory: errors that ECC could not correct, rows and pages taken out of use, and the InfoROM that notes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace as replaced
from typing import Any, Final, TypeAlias

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.addresses import NVML_RETURNS, XID_CATALOG
from gpunode.diagnoses.chains import PROGRAM_FAULTS, UNHEALTHY_IN_CLUSTER
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.model import Check, Citation, Family, Proof, Rule
from gpunode.diagnoses.remedies import always, by_hand, drain, nvidia_report, reboot, replace, reset_gpu, run
from gpunode.diagnoses.signs import all_of, any_of, asked, fact, line
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.diagnoses.views import faults, kernel, memories, pci
from gpunode.diagnoses.views.memories import Memory
from gpunode.diagnoses.views.smi_numbers import is_address
from gpunode.facts.patterns import Pattern

_POLICY: Final = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html"
_RETIREMENT: Final = "https://docs.nvidia.com/deploy/dynamic-page-retirement/index.html"

# From how many retired pages on NVIDIA takes a board back (dynamic page retirement, RMA policy).
_RETIRED_LIMIT: Final = 60
# How often a GPU may meet uncorrectable errors, each with its own reset, before nobody should wait for the next.
_TOO_OFTEN: Final = 3
# So many corrected errors since the driver was loaded are no chance hits.
_MANY_CORRECTED: Final = 5000
_PLACE: Final = Pattern(
    r"physAddr (?P<place>0x[0-9a-f]+)|partition (?P<partition>\d+, subpartition \d+)", re.IGNORECASE
)
_PENDING: Final = Pattern(r"already pending|due to pending", re.IGNORECASE)
# NVIDIA's field diagnostic, whose verdict is what a board is taken back for.
_FIELD_DIAGNOSTIC: Final = r"\b(?:fieldiag|field diag\w*|MODS)\b"
_MEMORY_FAILED: Final = line(
    r"\b(?:Mats|\w{0,40}mem\w{0,40}|HBM\w{0,40}|FB(?:IO|PA)?|DRAM|ECC)\b[^\n]{0,60}\bFAIL"
    r"|\bFAIL(?:ED)?\b[^\n]{0,60}\b(?:FBIO|FBPA|HBM|DRAM|memory)",
    *("text", "application"),
    flags=re.IGNORECASE,
)
_DIAGNOSED: Final = any_of(
    line(_FIELD_DIAGNOSTIC, "text", "application", flags=re.IGNORECASE), asked(_FIELD_DIAGNOSTIC)
)
_Judge: TypeAlias = "Callable[[Snapshot, Memory], Proof | None]"


def _each(judge: _Judge, *, is_over_by_reset: bool = False) -> Check:
    """The check that judges the memory of every GPU, some by what the reset that replaces the bad row has mended."""

    def check(snapshot: Snapshot) -> Iterator[Proof]:
        for memory in snapshot.view(memories.memories):
            if proof := judge(snapshot, memory):
                yield _as_past(proof) if is_over_by_reset and memories.was_reset(memory) else proof

    return check


def _as_past(proof: Proof) -> Proof:
    summary = f"{proof.summary}; the bad row was replaced by a reset since"
    return replaced(proof, summary=summary, severity="info", disruption="none", remedy=_WATCH)


def _proof(memory: Memory, summary: str, *citations: Citation, **more: Any) -> Proof:
    told = memory.incident.citations if memory.incident else tuple(fault.citation for fault in memory.xids[:4])
    at = memory.incident.root.at if memory.incident else None
    whole = tuple(dict.fromkeys((*told, *citations)))
    return Proof(f"{faults.label(memory.gpu)}: {summary}", whole, gpu=memory.gpu, at=at, **more)


def _is_pending(fault: faults.Fault) -> bool:
    """Whether a failure is one only because the same row, or another, waits for the reset already."""
    return bool(fault.xid and _PENDING.search(fault.xid.text))


def _remap_failed(_: Snapshot, memory: Memory) -> Proof | None:
    rows = memory.says("Remapping Failure Occurred")
    if not rows and all(_is_pending(fault) for fault in memory.rows_of(64, 157, 161)):
        return None
    return _proof(memory, "a bad row of memory could not be remapped", *rows)


def _failing(snapshot: Snapshot, memory: Memory) -> Proof | None:
    """Memory that goes on failing: by NVIDIA's own limits, else by how often it did."""
    limits = (*memory.says("Unrepairable Memory"), *memory.says("SRAM Threshold Exceeded"), *_banks(memory, "None"))
    limits += tuple(fault.citation for fault in memory.pages_of(64))
    retired = ("Double Bit ECC", "Single Bit ECC")
    if sum(memory.counted("Retired Pages", name) for name in retired) >= _RETIRED_LIMIT:
        limits += tuple(row.citation for name in retired for row in memory.rows("Retired Pages", name))
    if limits:
        return _proof(memory, "its memory has passed a limit at which NVIDIA takes it back", *limits)
    # No boot makes memory new.
    ever = (snapshot.with_history or snapshot) if memory.xids else snapshot
    told = tuple(fault for fault in faults.on(ever, memory.gpu) if fault.code == 48)
    places = {match[0] for fault in told if fault.xid and (match := _PLACE.search(fault.xid.text))}
    if max(_times(told), len(places)) >= _TOO_OFTEN:
        lines = tuple(fault.citation for fault in told[:6])
        return _proof(memory, "uncorrectable memory errors again and again", *lines, confidence="likely")
    if low := _banks(memory, "Low"):
        return _proof(memory, "a bank of its memory has hardly a spare row left", *low, confidence="likely")
    return None


def _banks(memory: Memory, name: str) -> tuple[Citation, ...]:
    """The line of the histogram of spare rows that counts banks under ``name``, where it counts any."""
    found = memory.rows("Bank Remap Availability Histogram", name)
    return tuple(row.citation for row in found if re.match(r"[1-9]", row.value))


def _times(found: tuple[faults.Fault, ...]) -> int:
    """How many of them lie an hour or more from each other on one clock: several logs may tell of the same one.

    One bad row makes one of them, and is then replaced.
    """
    last: dict[int, float] = {}
    count: dict[int, int] = {}
    for fault in sorted(found, key=lambda fault: fault.at or 0.0):
        clock = faults.clock(fault)
        if fault.at is not None and fault.at - last.get(clock, fault.at - 3600) >= 3600:
            last[clock] = fault.at
            count[clock] = count.get(clock, 0) + 1
    return max(count.values(), default=0)


def _pages_pending(_: Snapshot, memory: Memory) -> Proof | None:
    rows = (*memory.says("Retired Pages", "Pending Page Blacklist"), *memory.says("Retired Pages", "Pending"))
    if not rows and (not memory.pages_of(63) or memory.denies("Retired Pages", "Pending Page Blacklist")):
        return None
    return _proof(memory, "pages are marked to be retired, which happens when all that holds the GPU lets go", *rows)


def _remap_pending(_: Snapshot, memory: Memory) -> Proof | None:
    rows = (*memory.says("Remapped Rows", "Pending"), *memory.says("Channel Repair Pending"))
    told = (*memory.rows_of(63, 156, 160), *(fault for fault in memory.of(64) if _is_pending(fault)))
    if not rows and (not told or memory.denies("Remapped Rows", "Pending") or memory.of(95, 140)):
        return None
    return _proof(memory, "a bad row of memory is marked, and is replaced by a spare one at the next reset", *rows)


def _began(*codes: int) -> _Judge:
    def judge(_: Snapshot, memory: Memory) -> Proof | None:
        return faults.proof(memory.incident) if memory.incident and memory.incident.root.code in codes else None

    return judge


def _uncontained(_: Snapshot, memory: Memory) -> Proof | None:
    return faults.proof(memory.incident) if memory.incident and memory.of(95) and not memory.of(48) else None


def _uncorrectable(snapshot: Snapshot, memory: Memory) -> Proof | None:
    if memory.incident and memory.of(48, 171, 172):
        return faults.proof(memory.incident)
    rows = _volatile(memory)
    # A count of a GPU without an address may be of the one that an Xid is about. Without the Xid, and from Ampere on,
    # it tells nothing of whether the error was contained.
    is_of_another = not is_address(memory.gpu) and any(one.xids for one in snapshot.view(memories.memories))
    is_open = not snapshot.view(kernel.messages) and not _stops_at_any(snapshot, memory)
    if not rows or memory.xids or is_of_another or is_open:
        return None
    return _proof(memory, "uncorrectable ECC errors since the driver was loaded", *rows, confidence="likely")


# From Ampere's A100 on most uncorrectable errors are contained: they end one program and leave the GPU at work.
_WITHOUT_CONTAINMENT: Final = frozenset({"Kepler", "Maxwell", "Pascal", "Volta", "Turing"})


def _stops_at_any(snapshot: Snapshot, memory: Memory) -> bool:
    """Whether any uncorrectable error ends all work of this GPU: by its model, or since it counts double bits."""
    models = [one.model for one in snapshot.view(pci.gpus) if memory.gpu in {"", one.address}]
    is_old = bool(models) and all(one is not None and one.architecture in _WITHOUT_CONTAINMENT for one in models)
    return is_old or any("double bit" in row.path[-2].lower() for row in memory.every_row() if len(row.path) > 1)


def _volatile(memory: Memory) -> tuple[Citation, ...]:
    """The counts of uncorrectable errors that were not there when the driver was loaded."""
    found = ((" ".join(row.path).lower(), row) for row in memory.every_row())
    uncorrected = (row for names, row in found if "volatile" in names and ("uncorr" in names or "double bit" in names))
    return tuple(row.citation for row in uncorrected if re.match(r"[1-9]", row.value))


def _corrected(snapshot: Snapshot) -> Iterator[Citation]:
    """The counts of very many corrected errors."""
    for row in (row for memory in snapshot.view(memories.memories) for row in memory.every_row()):
        names = " ".join(row.path).lower()
        is_one = "volatile" in names and ("single bit" in names or " correctable" in names)
        if is_one and re.fullmatch(r"\d{1,18}", row.value) and int(row.value) > _MANY_CORRECTED:
            yield row.citation


def _counted(snapshot: Snapshot) -> Iterator[Citation]:
    return (line for memory in snapshot.view(memories.memories) for line in _volatile(memory))


# Which of several it was, the Xids tell.
_UNCORRECTED: Final = fact(_counted)
_LOOK: Final = Shell("nvidia-smi -q -d ROW_REMAPPER,ECC,PAGE_RETIREMENT")
_LOOK_AT: Final = (_LOOK, Shell("sudo dmesg | grep -i xid"))
_RETURN_IT: Final = always(
    drain(),
    nvidia_report("the vendor asks for it"),
    replace("have the GPU replaced: this is one of NVIDIA's own conditions for that"),
    reset_gpu("reset it, where it must go on until then", "nothing else is there"),
)
_LET_GO: Final = always(
    drain("move the work away from this GPU"),
    run("inspect", "see what still holds the GPU", Shell("sudo fuser -v /dev/nvidia*")),
    run("restart", "stop the persistence daemon, which holds it", Shell("sudo systemctl stop nvidia-persistenced")),
    reset_gpu(),
    reboot(when="something that cannot be stopped holds it"),
)
_RESET: Final = always(
    drain(),
    reset_gpu(),
    run("inspect", "see that nothing is pending or failed", _LOOK),
    replace(when="errors come back, or a remapping fails"),
)
_WATCH: Final = (
    run("inspect", "see how many pages or rows it has cost so far", _LOOK),
    replace("plan to have the GPU replaced", "the counts grow"),
)
_CONSEQUENCES: Final = (
    UNHEALTHY_IN_CLUSTER | PROGRAM_FAULTS | {"xid-154-recovery-action", "nvlink-all-links-inactive-gpu"}
)
# In the order in which what is wrong with one memory explains the rest of it.
_HIT: Final = _CONSEQUENCES | {"xid-92-high-sbe-rate"}
_MARKED: Final = _HIT | {
    *("ecc-dbe-uncorrectable", "xid-94-contained-ecc", "xid-95-uncontained-ecc", "xid-140-unrecovered-ecc")
}
_WORN: Final = _MARKED | {"row-remap-pending", "page-retirement-pending-handles-held"}
_PROGRAM_HIT: Final = (symptoms.ANY_XID, symptoms.CUDA_FAULT, _UNCORRECTED)

FAMILY: Final = Family(
    "memory",
    "GPU memory and InfoROM",
    (
        Rule(
            cause="ecc-dbe-uncorrectable",
            layer="hardware",
            disruption="reset-gpu",
            title="uncorrectable memory errors",
            symptoms=_PROGRAM_HIT,
            look_at=_LOOK_AT,
            story=(
                "Two bits of one word were wrong at once, which ECC notices and cannot mend (Xid 48; newer drivers "
                "say in Xid 171 that it was in DRAM, in 172 that it was in SRAM, and where). Every program that "
                "used the memory is ended, often with Xid 45, 94 or 95 behind it, and CUDA programs stop with an "
                "uncorrectable ECC error.\n\n"
                "One such error is no reason for a new GPU: after a reset the bad row or page is out of use. Look then "
                "whether a remapping is pending or failed, and whether the next error is at the same place."
            ),
            sources=(XID_CATALOG, _POLICY),
            check=_each(_uncorrectable, is_over_by_reset=True),
            typical=any_of(
                # CUDA's words, nvidia-smi's column "Volatile Uncorr. ECC", DCGM's.
                line(
                    r"uncorrectable ECC error encountered|(?:cudaError|CUDA_ERROR_)ECC_?Uncorr",
                    flags=re.IGNORECASE,
                ),
                line(r"\|\s*[0-9A-F:]{11,16}\.0\s+(?:On|Off|N/A)\s*\|\s*[1-9]\d{0,17}\s*\|", "nvidia-smi", "text"),
                line(r"double-bit ECC error\(?s?\)? (?:was |were )?detected in GPU", flags=re.IGNORECASE),
            ),
            share=1.5,
            remedy=_RESET,
            explains=_HIT,
        ),
        Rule(
            cause="row-remap-pending",
            layer="hardware",
            disruption="reset-gpu",
            title="a row remapping waits for a reset",
            symptoms=(symptoms.ANY_XID, symptoms.CUDA_FAULT, symptoms.RESET_REFUSED),
            look_at=_LOOK_AT,
            story=(
                "From Ampere on a GPU replaces a bad row of its memory by a spare one. The driver notes the row "
                "(Xid 63), and the exchange is made when the GPU is next reset. Until then the row stays in use, "
                "and the next program that is given it dies of it.\n\n"
                "nvidia-smi says Pending: Yes under Remapped Rows. Nothing is wrong with a GPU that has remapped a few "
                "rows; one whose remapping failed is another matter."
            ),
            sources=(_POLICY, "https://github.com/leptonai/gpud/pull/80"),
            check=_each(_remap_pending),
            typical=line(r"memory errors and row remappings", flags=re.IGNORECASE),
            remedy=always(
                drain("move the work away from this GPU, and stop DCGM, the fabric manager and all that holds it"),
                reset_gpu(),
                reboot(when="the reset is refused"),
                run("inspect", "see that Pending says No", _LOOK),
                replace(when="Remapping Failure Occurred says Yes"),
            ),
            explains=_MARKED,
        ),
        Rule(
            cause="row-remap-failure",
            layer="hardware",
            disruption="RMA",
            title="a bad row of memory cannot be remapped",
            symptoms=(symptoms.ANY_XID, symptoms.CUDA_FAULT),
            look_at=_LOOK_AT,
            story=(
                "The spare rows of a memory bank are used up, or the remapping could not be noted (Xid 64). The GPU "
                "can no longer take bad memory out of use: errors will come back, however often it is reset. For "
                "NVIDIA this is a condition on which a GPU is replaced."
            ),
            sources=(_POLICY, "https://github.com/awslabs/awsome-distributed-ai/pull/1190"),
            check=_each(_remap_failed),
            typical=line(r"memory errors and row remapping\b", flags=re.IGNORECASE),
            remedy=_RETURN_IT,
            explains=_WORN | {"hbm-failing-rma"},
        ),
        Rule(
            cause="hbm-failing-rma",
            layer="hardware",
            disruption="RMA",
            title="the GPU's memory is wearing out",
            symptoms=(symptoms.ANY_XID, symptoms.CUDA_FAULT),
            look_at=_LOOK_AT,
            story=(
                "Single errors are repaired by retiring pages or remapping rows. When there are too many of them the "
                "memory itself is failing: sixty retired pages, a bank without spare rows, memory beyond repair, SRAM "
                "errors over NVIDIA's limit, or an uncorrectable error again and again although each was repaired. "
                "These are NVIDIA's conditions for a replacement; more resets only put it off."
            ),
            sources=(_POLICY, _RETIREMENT),
            check=_each(_failing),
            typical=any_of(
                all_of(_MEMORY_FAILED, _DIAGNOSED),
                line(
                    r"\d or more retired pages have been detected|SRAM threshold (?:count )?exceeded (?:on|for|in) GPU",
                    flags=re.IGNORECASE,
                ),
            ),
            remedy=_RETURN_IT,
            explains=_WORN,
        ),
        Rule(
            cause="page-retirement-pending-handles-held",
            layer="hardware",
            severity="warning",
            disruption="reset-gpu",
            title="bad pages stay in use because something holds the GPU",
            symptoms=(symptoms.ANY_XID, symptoms.RESET_REFUSED),
            look_at=(_LOOK, Shell("sudo fuser -v /dev/nvidia*")),
            story=(
                "Before Ampere the driver takes a bad page of memory out of use (Xid 63), and does so when the GPU is "
                "next attached: when the last program, daemon and monitor has let go of it and one comes back, or at a "
                "reset. A persistence daemon, DCGM, an X server or a monitoring agent that keeps the device open puts "
                "that off for ever, so the page goes on being handed out and programs go on dying of it."
            ),
            sources=(_RETIREMENT, "https://github.com/google/cadvisor/issues/2035"),
            check=_each(_pages_pending),
            typical=line(r"pending (?:retired page|page retirement)s? (?:has|have|together)", flags=re.IGNORECASE),
            remedy=_LET_GO,
            explains=_MARKED,
        ),
        Rule(
            cause="xid-92-high-sbe-rate",
            layer="hardware",
            severity="warning",
            disruption="none",
            title="ECC corrects more single bits than it should have to",
            symptoms=(symptoms.ANY_XID,),
            look_at=_LOOK_AT,
            story=(
                "Single wrong bits are corrected on the fly and hurt nobody. So many of them that the driver reports "
                "the rate (Xid 92) speak of memory that ages. Nothing needs to be reset; watch whether pages or rows "
                "are taken out of use, and plan for a replacement when they grow in number."
            ),
            sources=(XID_CATALOG,),
            check=_each(_began(92)),
            typical=fact(_corrected),
            may_be_normal=True,
            remedy=always(*_WATCH),
            explains=UNHEALTHY_IN_CLUSTER,
        ),
        Rule(
            cause="xid-94-contained-ecc",
            layer="hardware",
            disruption="restart-container",
            title="a memory error ended one program",
            symptoms=_PROGRAM_HIT,
            look_at=_LOOK_AT,
            story=(
                "An uncorrectable error was met by one program, and the GPU kept it there (Xid 94): that program is "
                "ended, all others go on. The bad row is remapped at the next reset, which can wait until the GPU is "
                "free. An error that could not be kept within one program is Xid 95, and cannot wait."
            ),
            sources=(_POLICY, "https://github.com/leptonai/gpud/pull/1174"),
            check=_each(_began(94), is_over_by_reset=True),
            remedy=always(
                by_hand("application", "start the program again: others on the GPU were not touched"),
                reset_gpu("reset the GPU, so that the bad row is remapped", "it is free"),
                run("inspect", "look for what is pending", _LOOK),
                replace(when="it happens again and again on the same GPU"),
            ),
            explains=_HIT,
        ),
        Rule(
            cause="xid-95-uncontained-ecc",
            layer="hardware",
            disruption="reset-gpu",
            title="a memory error that no program's end contains",
            symptoms=_PROGRAM_HIT,
            look_at=_LOOK_AT,
            story=(
                "An uncorrectable error could not be laid to one program (Xid 95), so the results of every program on "
                "the GPU are in doubt and all of them are ended. New work fails until the GPU is reset; with MIG the "
                "other instances may go on until then."
            ),
            sources=(_POLICY,),
            check=_each(_uncontained, is_over_by_reset=True),
            remedy=_RESET,
            explains=_HIT | {"xid-94-contained-ecc", "ecc-dbe-uncorrectable"},
        ),
        Rule(
            cause="xid-140-unrecovered-ecc",
            layer="hardware",
            disruption="reset-gpu",
            title="an ECC error escaped every recovery",
            symptoms=_PROGRAM_HIT,
            look_at=_LOOK_AT,
            story=(
                "The GPU found an uncorrectable error at a place where neither a remapping nor the end of one program "
                "mends it, mostly in SRAM (Xid 140). Its state can no longer be relied on until it is reset. When the "
                "SRAM counters pass NVIDIA's limit, or it comes back, the GPU is to be replaced."
            ),
            sources=(XID_CATALOG,),
            check=_each(_began(140), is_over_by_reset=True),
            remedy=_RESET,
            explains=_HIT,
        ),
        Rule(
            cause="inforom-corrupted",
            layer="hardware",
            severity="warning",
            disruption="reset-gpu",
            title="the InfoROM is damaged",
            symptoms=(symptoms.NOT_STARTED, symptoms.GPU_LOST),
            look_at=(Shell("nvidia-smi -q | grep -i inforom"),),
            story=(
                "The GPU keeps its serial number, its settings and the list of its bad memory in a small flash, the "
                "InfoROM. Its checksum is wrong: nvidia-smi warns of it and ends with 14. The GPU computes as before, "
                "but ECC settings and retired pages may be lost, and tools that ask for exit status 0, such as the "
                "validator of the GPU Operator, refuse the node."
            ),
            sources=("https://github.com/NVIDIA/gpu-operator/issues/20", NVML_RETURNS),
            check=faults.began(125),
            decisive=line(
                r"infoROM is corrupted|corrupt(?:ed)? InfoROM|InfoROM (?:is )?corrupt|NVML_ERROR_CORRUPTED"
                r"|InfoROM (?:validation|checksum) fail",
                flags=re.IGNORECASE,
            ),
            # nvidia-smi's exit status NVML_ERROR_CORRUPTED_INFOROM.
            typical=any_of(
                fact(lambda snapshot: (cite(one, 1) for one in snapshot.of("exit-status") if one.text.strip() == "14")),
                all_of(line(r"^(?:rc|exit(?: code| status)?) ?[=:] ?14$"), asked(r"\bnvidia-smi\b")),
            ),
            context=asked(r"inforom"),
            remedy=always(
                reset_gpu("reset the GPU: the driver then repairs what it can"),
                reboot(when="the reset is refused"),
                nvidia_report("the warning stays"),
                replace("have the InfoROM written anew, or the GPU replaced, by its vendor", "the warning stays"),
            ),
            explains=UNHEALTHY_IN_CLUSTER,
        ),
    ),
)
