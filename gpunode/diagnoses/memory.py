"""GPU memory: errors that ECC could not correct, rows and pages taken out of use, and the InfoROM that notes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace as replaced
from typing import Any, Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.addresses import NVML_RETURNS, XID_CATALOG
from gpunode.diagnoses.chains import PROGRAM_FAULTS, UNHEALTHY_IN_CLUSTER
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.model import Citation, Family, Fix, Proof, Rule, Verdict, only
from gpunode.diagnoses.remedies import always, by_hand, drain, nvidia_report, reboot, replace, reset_gpu, run
from gpunode.diagnoses.signs import all_of, any_of, asked, fact, line, unless
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
# The column "Volatile Uncorr. ECC" in nvidia-smi's table.
_IN_TABLE: Final = Pattern(r"\|\s*[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.0\s+(?:On|Off|N/A)\s*\|\s*[1-9]\d{0,17}\s*\|")
_HELD: Final = Pattern(
    r"In use by another client|currently being used by one or more other processes|currently in use by another process",
    re.IGNORECASE,
)
# What CUDA, and the frameworks on it, say when their memory is hit (cudaErrorECCUncorrectable, 214).
_CUDA: Final = line(r"uncorrectable ECC error encountered|cudaErrorECCUncorrectable|CUDA_ERROR_ECC_UNCORRECTABLE")
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
_BUS: Final = Pattern(r"\b(?P<bus>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])\b", re.IGNORECASE)
_INFOROM: Final = Pattern(
    r"infoROM is corrupted|corrupt(?:ed)? InfoROM|InfoROM (?:is )?corrupt|NVML_ERROR_CORRUPTED"
    r"|InfoROM (?:validation|checksum) fail",
    re.IGNORECASE,
)
# What a GPU gets over by the reset that replaces the bad row.
_OVER_BY_RESET: Final = frozenset(
    {"ecc-dbe-uncorrectable", "xid-94-contained-ecc", "xid-95-uncontained-ecc", "xid-140-unrecovered-ecc"}
)


def _decide(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """For each GPU the one thing that is wrong with its memory: what asks for most comes first."""
    for memory in snapshot.view(memories.memories):
        for cause, judge in _JUDGES:
            if (proof := judge(snapshot, memory)) is not None:
                is_over = cause in _OVER_BY_RESET and memories.was_reset(memory)
                yield cause, _as_past(proof) if is_over else proof
                break


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


def _of_rows(memory: Memory, *codes: int) -> tuple[faults.Fault, ...]:
    return tuple(fault for fault in memory.of(*codes) if not memories.is_of_pages(fault))


def _of_pages(memory: Memory, code: int) -> tuple[faults.Fault, ...]:
    return tuple(fault for fault in memory.of(code) if memories.is_of_pages(fault))


def _remap_failed(_: Snapshot, memory: Memory) -> Proof | None:
    rows = memory.says("Remapping Failure Occurred")
    if not rows and all(_is_pending(fault) for fault in _of_rows(memory, 64, 157, 161)):
        return None
    count = memory.counted("Remapped Rows", "Uncorrectable Error")
    after = f" after {count} rows that were" if count else ""
    return _proof(memory, f"a bad row of memory could not be remapped{after}", *rows)


def _failing(snapshot: Snapshot, memory: Memory) -> Proof | None:
    """Memory that goes on failing: by NVIDIA's own limits, else by how often it did."""
    if failed := tuple(_failed_diagnostic(snapshot, memory.gpu)):
        return _proof(memory, "NVIDIA's field diagnostic finds its memory bad", *failed)
    if rows := memory.says("Unrepairable Memory"):
        return _proof(memory, "part of the memory is beyond repair", *rows)
    if rows := memory.says("SRAM Threshold Exceeded"):
        return _proof(memory, "uncorrectable errors in SRAM have passed the limit at which NVIDIA takes it back", *rows)
    names = ("Double Bit ECC", "Single Bit ECC")
    retired = sum(memory.counted("Retired Pages", name) for name in names)
    if retired >= _RETIRED_LIMIT:
        rows = tuple(row.citation for name in names for row in memory.rows("Retired Pages", name))
        what = f"{retired} pages of memory are retired, NVIDIA takes it back from {_RETIRED_LIMIT}"
        return _proof(memory, what, *rows)
    if spent := _banks(memory, "None"):
        return _proof(memory, "a bank of its memory has no spare rows left", *spent)
    if pages := _of_pages(memory, 64):
        return _proof(memory, "a bad page of memory could not be retired", *(fault.citation for fault in pages))
    return _again_and_again(memory, _ever(snapshot, memory))


def _failed_diagnostic(snapshot: Snapshot, gpu: str) -> Iterator[Citation]:
    """The lines in which the field diagnostic finds this GPU's memory bad; each stands below the GPU it is about."""
    failed = snapshot.view(_MEMORY_FAILED) if snapshot.view(_DIAGNOSED) else ()
    places = {(one.key, one.number): one for one in failed}
    for item in (item for item in snapshot.items if any(one.key == item.key for one in failed)):
        about = ""
        for number, text in enumerate(item.lines, 1):
            named = _BUS.search(text)
            about = pci.address(named["bus"]) if named else about
            if (item.key, number) in places and (about in {"", gpu} or not gpu):
                yield places[item.key, number]


def _ever(snapshot: Snapshot, memory: Memory) -> Memory:
    """The same memory with its errors of earlier boots, where it errs still: no boot makes memory new."""
    known = snapshot.view(memories.ever) if memory.xids else ()
    return next((one for one in known if one.gpu == memory.gpu), memory)


def _again_and_again(memory: Memory, ever: Memory) -> Proof | None:
    """Uncorrectable errors hours apart, or at many places: one bad row makes one of them, and is then replaced."""
    rows = _apart(_of_rows(ever, 63))
    if len(rows) >= _TOO_OFTEN and (spent := _banks(memory, "Low")):
        what = f"rows of one bank went bad at {len(rows)} times, and it has hardly a spare one left"
        return _proof(memory, what, *(fault.citation for fault in rows[:6]), *spent, confidence="likely")
    told = ever.of(48)
    times = _apart(told)
    places = {match[0] for fault in told if fault.xid and (match := _PLACE.search(fault.xid.text))}
    if len(times) < _TOO_OFTEN and len(places) < _TOO_OFTEN:
        return None
    count = f"at {len(times)} times" if len(times) >= _TOO_OFTEN else f"in {len(places)} places"
    citations = tuple(fault.citation for fault in (times if len(times) >= _TOO_OFTEN else told)[:6])
    return _proof(memory, f"uncorrectable memory errors {count}", *citations, confidence="likely")


def _banks(memory: Memory, name: str) -> tuple[Citation, ...]:
    """The line of the histogram of spare rows that counts banks under ``name``, where it counts any."""
    found = memory.rows("Bank Remap Availability Histogram", name)
    return tuple(row.citation for row in found if re.match(r"[1-9]", row.value))


def _apart(found: tuple[faults.Fault, ...]) -> list[faults.Fault]:
    """The most of them that lie an hour or more from each other on one clock: several logs may tell of the same one.

    Seconds since boot begin again with every boot, so two errors of two boots may count as one, and never as more.
    """
    clocks: dict[int, list[faults.Fault]] = {}
    for fault in sorted(found, key=lambda fault: fault.at or 0.0):
        apart = clocks.setdefault(faults.clock(fault), [])
        if fault.at is not None and (not apart or fault.at - (apart[-1].at or 0.0) >= 3600):
            apart.append(fault)
    most = max(clocks.values(), key=len, default=[])
    return sorted(most, key=lambda fault: fault.order)


def _pages_pending(snapshot: Snapshot, memory: Memory) -> Proof | None:
    rows = (*memory.says("Retired Pages", "Pending Page Blacklist"), *memory.says("Retired Pages", "Pending"))
    if not rows and (not _of_pages(memory, 63) or memory.denies("Retired Pages", "Pending Page Blacklist")):
        return None
    held = snapshot.said(_HELD)
    if not held and memory.of(48) and snapshot.view(_CUDA):
        return None  # the error that stopped a program is what happened; that its page waits for a reset follows
    holders = ", and what holds the GPU keeps that from happening" if held else ""
    return _proof(
        memory, f"pages are marked to be retired, which happens when the GPU is let go{holders}", *rows, *held
    )


def _remap_pending(_: Snapshot, memory: Memory) -> Proof | None:
    rows = (*memory.says("Remapped Rows", "Pending"), *memory.says("Channel Repair Pending"))
    told = (*_of_rows(memory, 63, 156, 160), *(fault for fault in memory.of(64) if _is_pending(fault)))
    if not rows and (not told or memory.denies("Remapped Rows", "Pending") or memory.of(95, 140)):
        return None
    return _proof(memory, "a bad row of memory is marked, and is replaced by a spare one at the next reset", *rows)


def _began(*codes: int) -> Callable[[Snapshot, Memory], Proof | None]:
    def judge(_: Snapshot, memory: Memory) -> Proof | None:
        return faults.proof(memory.incident) if memory.incident and memory.incident.root.code in codes else None

    return judge


def _uncontained(_: Snapshot, memory: Memory) -> Proof | None:
    return faults.proof(memory.incident) if memory.incident and memory.of(95) and not memory.of(48) else None


def _uncorrectable(snapshot: Snapshot, memory: Memory) -> Proof | None:
    if memory.incident and memory.of(48, 171, 172):
        where = "SRAM" if memory.of(172) else "DRAM" if memory.of(171) else ""
        return faults.proof(memory.incident, f"an uncorrectable ECC error in {where}" if where else "")
    rows = _volatile(memory)
    # A count of a GPU without an address may be of the one that an Xid is about. Without the Xid, and from Ampere on,
    # it tells nothing of whether the error was contained.
    is_of_another = not is_address(memory.gpu) and any(one.xids for one in snapshot.view(memories.memories))
    is_open = not memory.xids and not snapshot.view(kernel.messages) and not _stops_at_any(snapshot, memory)
    if not rows or is_of_another or is_open:
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
    for memory in snapshot.view(memories.memories):
        for row in memory.every_row():
            names = " ".join(row.path).lower()
            is_one = "volatile" in names and ("single bit" in names or " correctable" in names)
            if is_one and re.fullmatch(r"\d{1,18}", row.value) and int(row.value) > _MANY_CORRECTED:
                yield row.citation


def _known(snapshot: Snapshot) -> Iterator[Citation]:
    """Something about each GPU of whose memory anything is told."""
    return (line for memory in snapshot.view(memories.memories) for line in memory.citations)


def _past_limit(_: Snapshot, memory: Memory) -> Proof | None:
    if rows := _banks(memory, "Low"):
        return _proof(memory, "a bank of its memory has hardly a spare row left", *rows, confidence="likely")
    return None


_JUDGES: Final[tuple[tuple[str, Callable[[Snapshot, Memory], Proof | None]], ...]] = (
    ("row-remap-failure", _remap_failed),
    ("hbm-failing-rma", _failing),
    ("page-retirement-pending-handles-held", _pages_pending),
    ("row-remap-pending", _remap_pending),
    ("xid-95-uncontained-ecc", _uncontained),
    ("xid-140-unrecovered-ecc", _began(140)),
    ("xid-94-contained-ecc", _began(94)),
    ("ecc-dbe-uncorrectable", _uncorrectable),
    ("hbm-failing-rma", _past_limit),
    ("xid-92-high-sbe-rate", _began(92)),
)


def _counted(snapshot: Snapshot) -> Iterator[Citation]:
    return (line for memory in snapshot.view(memories.memories) for line in _volatile(memory))


# Which of several it was, the Xids tell.
_UNCORRECTED: Final = fact(_counted)


def _inforom(snapshot: Snapshot) -> Iterator[Verdict]:
    """The InfoROM's checksum is wrong, by Xid 125, else by nvidia-smi's word."""
    yield from (told := tuple(faults.began(125)(snapshot)))
    if not told and (said := snapshot.said(_INFOROM)):
        found = (_BUS.search(citation.line) for citation in said)
        gpu = next((pci.address(match["bus"]) for match in found if match), "")
        yield Proof(f"{faults.label(gpu)} has a damaged InfoROM", said, gpu=gpu)


def _exit_14(snapshot: Snapshot) -> Iterator[Citation]:
    """nvidia-smi's exit status NVML_ERROR_CORRUPTED_INFOROM."""
    return (cite(item, 1) for item in snapshot.of("exit-status") if item.text.strip() == "14")


_LOOK: Final = Shell("nvidia-smi -q -d ROW_REMAPPER,ECC,PAGE_RETIREMENT")


def _return_it(_: Snapshot) -> Iterable[Fix]:
    yield drain()
    yield nvidia_report("the vendor asks for it")
    yield replace("have the GPU replaced: this is one of NVIDIA's own conditions for that")
    yield reset_gpu("reset it, where it must go on until then", "nothing else is there")


def _let_go(_: Snapshot) -> Iterable[Fix]:
    yield drain("move the work away from this GPU")
    yield run("inspect", "see what still holds the GPU", Shell("sudo fuser -v /dev/nvidia*"))
    stop = Shell("sudo systemctl stop nvidia-persistenced")
    yield run("restart", "stop the persistence daemon, which holds it by design", stop)
    yield reset_gpu()
    yield reboot(when="something that cannot be stopped holds it")
    yield run("inspect", "see that nothing is pending", _LOOK)


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
_HIT: Final = frozenset({"ecc-dbe-uncorrectable", "xid-94-contained-ecc"})

FAMILY: Final = Family(
    "memory",
    "GPU memory and InfoROM",
    (
        Rule(
            cause="ecc-dbe-uncorrectable",
            layer="hardware",
            storey="gpu",
            disruption="reset-gpu",
            title="uncorrectable memory errors",
            symptoms=(symptoms.ANY_XID, symptoms.CUDA_FAULT, _UNCORRECTED),
            look_at=(Shell("nvidia-smi -q -d ECC,ROW_REMAPPER"),),
            story=(
                "Two bits of one word were wrong at once, which ECC notices and cannot mend (Xid 48; newer drivers "
                "say in Xid 171 that it was in DRAM, in 172 that it was in SRAM, and where). Every program that "
                "used the memory is ended, often with Xid 45, 94 or 95 behind it, and CUDA programs stop with an "
                "uncorrectable ECC error.\n\n"
                "One such error is no reason for a new GPU: after a reset the bad row or page is out of use. Look then "
                "whether a remapping is pending or failed, and whether the next error is at the same place."
            ),
            sources=(XID_CATALOG, _POLICY),
            check=only("ecc-dbe-uncorrectable", _decide),
            typical=any_of(
                _CUDA,
                line(_IN_TABLE.pattern, "nvidia-smi", "text"),
                line(r"double-bit ECC error\(?s?\)? (?:was |were )?detected in GPU", flags=re.IGNORECASE),
            ),
            share=1.5,
            remedy=_RESET,
            explains=_CONSEQUENCES,
        ),
        Rule(
            cause="row-remap-pending",
            layer="hardware",
            storey="gpu",
            disruption="reset-gpu",
            title="a row remapping waits for a reset",
            symptoms=(symptoms.ANY_XID, symptoms.CUDA_FAULT, symptoms.RESET_REFUSED),
            look_at=(Shell("nvidia-smi -q -d ROW_REMAPPER"),),
            story=(
                "From Ampere on a GPU replaces a bad row of its memory by a spare one. The driver notes the row "
                "(Xid 63), and the exchange is made when the GPU is next reset. Until then the row stays in use, "
                "and the next program that is given it dies of it.\n\n"
                "nvidia-smi says Pending: Yes under Remapped Rows. Nothing is wrong with a GPU that has remapped a few "
                "rows; one whose remapping failed is another matter."
            ),
            sources=(_POLICY, "https://github.com/leptonai/gpud/pull/80"),
            check=only("row-remap-pending", _decide),
            typical=line(r"memory errors and row remappings", flags=re.IGNORECASE),
            remedy=always(
                drain("move the work away from this GPU, and stop DCGM, the fabric manager and all that holds it"),
                reset_gpu(),
                reboot(when="the reset is refused"),
                run("inspect", "see that Pending says No", _LOOK),
                replace(when="Remapping Failure Occurred says Yes"),
            ),
            explains=_CONSEQUENCES | _HIT,
        ),
        Rule(
            cause="row-remap-failure",
            layer="hardware",
            storey="gpu",
            disruption="RMA",
            title="a bad row of memory cannot be remapped",
            symptoms=(symptoms.ANY_XID, symptoms.CUDA_FAULT),
            look_at=(Shell("nvidia-smi -q -d ROW_REMAPPER"),),
            story=(
                "The spare rows of a memory bank are used up, or the remapping could not be noted (Xid 64). The GPU "
                "can no longer take bad memory out of use: errors will come back, however often it is reset. For "
                "NVIDIA this is a condition on which a GPU is replaced."
            ),
            sources=(_POLICY, "https://github.com/awslabs/awsome-distributed-ai/pull/1190"),
            check=only("row-remap-failure", _decide),
            typical=line(r"memory errors and row remapping\b", flags=re.IGNORECASE),
            remedy=_return_it,
            explains=_CONSEQUENCES
            | {"row-remap-pending", "ecc-dbe-uncorrectable", "xid-94-contained-ecc", "xid-95-uncontained-ecc"},
        ),
        Rule(
            cause="hbm-failing-rma",
            layer="hardware",
            storey="gpu",
            disruption="RMA",
            title="the GPU's memory is wearing out",
            symptoms=(symptoms.ANY_XID, symptoms.CUDA_FAULT),
            look_at=(Shell("nvidia-smi -q -d ECC,ROW_REMAPPER"),),
            story=(
                "Single errors are repaired by retiring pages or remapping rows. When there are too many of them the "
                "memory itself is failing: sixty retired pages, a bank without spare rows, memory beyond repair, SRAM "
                "errors over NVIDIA's limit, or an uncorrectable error again and again although each was repaired. "
                "These are NVIDIA's conditions for a replacement; more resets only put it off."
            ),
            sources=(_POLICY, _RETIREMENT),
            check=only("hbm-failing-rma", _decide),
            typical=any_of(
                unless(all_of(_MEMORY_FAILED, _DIAGNOSED), fact(_known)),
                line(
                    r"\d or more retired pages have been detected|SRAM threshold (?:count )?exceeded (?:on|for|in) GPU",
                    flags=re.IGNORECASE,
                ),
            ),
            remedy=_return_it,
            explains=_CONSEQUENCES
            | {"row-remap-pending", "ecc-dbe-uncorrectable", "xid-94-contained-ecc", "xid-92-high-sbe-rate"},
        ),
        Rule(
            cause="page-retirement-pending-handles-held",
            layer="hardware",
            storey="gpu",
            severity="warning",
            disruption="reset-gpu",
            title="bad pages stay in use because something holds the GPU",
            symptoms=(symptoms.ANY_XID, symptoms.RESET_REFUSED),
            look_at=(Shell("nvidia-smi -q -d PAGE_RETIREMENT"), Shell("sudo fuser -v /dev/nvidia*")),
            story=(
                "Before Ampere the driver takes a bad page of memory out of use (Xid 63), and does so when the GPU is "
                "next attached: when the last program, daemon and monitor has let go of it and one comes back, or at a "
                "reset. A persistence daemon, DCGM, an X server or a monitoring agent that keeps the device open puts "
                "that off for ever, so the page goes on being handed out and programs go on dying of it."
            ),
            sources=(_RETIREMENT, "https://github.com/google/cadvisor/issues/2035"),
            check=only("page-retirement-pending-handles-held", _decide),
            typical=line(r"pending (?:retired page|page retirement)s? (?:has|have|together)", flags=re.IGNORECASE),
            remedy=_let_go,
            explains=_CONSEQUENCES | {"ecc-dbe-uncorrectable"},
        ),
        Rule(
            cause="xid-92-high-sbe-rate",
            layer="hardware",
            storey="gpu",
            severity="warning",
            disruption="none",
            title="ECC corrects more single bits than it should have to",
            symptoms=(symptoms.ANY_XID,),
            look_at=(Shell("nvidia-smi -q -d ECC"),),
            story=(
                "Single wrong bits are corrected on the fly and hurt nobody. So many of them that the driver reports "
                "the rate (Xid 92) speak of memory that ages. Nothing needs to be reset; watch whether pages or rows "
                "are taken out of use, and plan for a replacement when they grow in number."
            ),
            sources=(XID_CATALOG,),
            check=only("xid-92-high-sbe-rate", _decide),
            typical=fact(_corrected),
            may_be_normal=True,
            remedy=always(*_WATCH),
            explains=UNHEALTHY_IN_CLUSTER,
        ),
        Rule(
            cause="xid-94-contained-ecc",
            layer="hardware",
            storey="gpu",
            disruption="restart-container",
            title="a memory error ended one program",
            symptoms=(symptoms.ANY_XID, symptoms.CUDA_FAULT, _UNCORRECTED),
            look_at=(Shell("sudo dmesg | grep -i xid"),),
            story=(
                "An uncorrectable error was met by one program, and the GPU kept it there (Xid 94): that program is "
                "ended, all others go on. The bad row is remapped at the next reset, which can wait until the GPU is "
                "free. An error that could not be kept within one program is Xid 95, and cannot wait."
            ),
            sources=(_POLICY, "https://github.com/leptonai/gpud/pull/1174"),
            check=only("xid-94-contained-ecc", _decide),
            remedy=always(
                by_hand("application", "start the program again: others on the GPU were not touched"),
                reset_gpu("reset the GPU, so that the bad row is remapped", "it is free"),
                run("inspect", "look for what is pending", _LOOK),
                replace(when="it happens again and again on the same GPU"),
            ),
            explains=_CONSEQUENCES,
        ),
        Rule(
            cause="xid-95-uncontained-ecc",
            layer="hardware",
            storey="gpu",
            disruption="reset-gpu",
            title="a memory error that no program's end contains",
            symptoms=(symptoms.ANY_XID, symptoms.CUDA_FAULT, _UNCORRECTED),
            look_at=(Shell("sudo dmesg | grep -i xid"),),
            story=(
                "An uncorrectable error could not be laid to one program (Xid 95), so the results of every program on "
                "the GPU are in doubt and all of them are ended. New work fails until the GPU is reset; with MIG the "
                "other instances may go on until then."
            ),
            sources=(_POLICY,),
            check=only("xid-95-uncontained-ecc", _decide),
            remedy=_RESET,
            explains=_CONSEQUENCES | {"xid-94-contained-ecc"},
        ),
        Rule(
            cause="xid-140-unrecovered-ecc",
            layer="hardware",
            storey="gpu",
            disruption="reset-gpu",
            title="an ECC error escaped every recovery",
            symptoms=(symptoms.ANY_XID, symptoms.CUDA_FAULT, _UNCORRECTED),
            look_at=(Shell("sudo dmesg | grep -i xid"),),
            story=(
                "The GPU found an uncorrectable error at a place where neither a remapping nor the end of one program "
                "mends it, mostly in SRAM (Xid 140). Its state can no longer be relied on until it is reset. When the "
                "SRAM counters pass NVIDIA's limit, or it comes back, the GPU is to be replaced."
            ),
            sources=(XID_CATALOG,),
            check=only("xid-140-unrecovered-ecc", _decide),
            remedy=_RESET,
            explains=_CONSEQUENCES,
        ),
        Rule(
            cause="inforom-corrupted",
            layer="hardware",
            storey="gpu",
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
            check=_inforom,
            typical=any_of(
                fact(_exit_14), all_of(line(r"^(?:rc|exit(?: code| status)?) ?[=:] ?14$"), asked(r"\bnvidia-smi\b"))
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
