"""Diagnose GPU memory: uncorrectable ECC errors, retired rows and pages, and the InfoROM."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace as replaced
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.consequences import PROGRAM_FAULTS, UNHEALTHY_IN_CLUSTER
from gpunode.diagnoses.model import Citation, Proof, ProofReader, Rule, Sign
from gpunode.diagnoses.remedies import (
    drain_node,
    make_fixed_remedy,
    manual_step,
    reboot_node,
    replace_gpu,
    reset_gpu,
    run_step,
    write_nvidia_report,
)
from gpunode.diagnoses.signs import all_of, any_of, command_run, custom_sign, message_line
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.diagnoses.views import boards, faults, kernel, recovery, smi_query
from gpunode.diagnoses.views.smi_query import SmiRow
from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass

_MEMORY_XIDS: Final = frozenset({48, 63, 64, 92, 94, 95, 140, 156, 157, 160, 161, 171, 172})
# Xids that follow a memory fault: programs end, and the driver asks for a reset.
_FOLLOW_UP_XIDS: Final = frozenset({13, 31, 43, 45, 69, 109, 154})
# NVIDIA replaces a board from this number of retired pages on (dynamic page retirement, RMA policy).
_MAX_RETIRED_PAGES: Final = 60
# A GPU with this many uncorrectable errors, each with its own reset, is failing: do not wait for the next.
_MIN_ERRORS_OF_FAILING_MEMORY: Final = 3
# From this count since the driver was loaded, corrected errors are no coincidence.
_MANY_CORRECTED_ERRORS: Final = 5000
_MEMORY_LOCATION: Final = Pattern(r"(?i)physAddr 0x[0-9a-f]+|partition \d+, subpartition \d+")
_ALREADY_PENDING_WORDS: Final = Pattern(r"(?i)already pending|due to pending")
_PAGE_RETIREMENT_WORDS: Final = Pattern(r"(?i)\bpage\b|retire|blacklist")
_ROW_REMAPPING_WORDS: Final = Pattern(r"(?i)\brow\b|remap")
# NVIDIA's field diagnostic, whose verdict decides whether a board is taken back.
_FIELD_DIAGNOSTIC_WORDS: Final = r"(?i)\b(?:fieldiag|field diag\w*|MODS)\b"
_MEMORY_TEST_FAILED: Final = message_line(
    r"(?i)\b(?:Mats|\w{0,40}mem\w{0,40}|HBM\w{0,40}|FB(?:IO|PA)?|DRAM|ECC)\b[^\n]{0,60}\bFAIL"
    r"|\bFAIL(?:ED)?\b[^\n]{0,60}\b(?:FBIO|FBPA|HBM|DRAM|memory)",
    *("text", "application"),
)
_FIELD_DIAGNOSTIC_RUN: Final = any_of(
    message_line(_FIELD_DIAGNOSTIC_WORDS, "text", "application"),
    command_run(_FIELD_DIAGNOSTIC_WORDS),
)


@dataclass(frozen=True, slots=True)
class _GpuMemory:
    """The evidence about one GPU's memory.

    Attributes:
        gpu: address, else UUID or index; empty if unknown.
        xids: the Xids of its memory errors, in order.
        smi_answers: nvidia-smi's answers about it.
    """

    gpu: str
    xids: tuple[faults.Fault, ...]
    smi_answers: tuple[smi_query.SmiGpu, ...]

    def errors_with_codes(self, *codes: int) -> tuple[faults.Fault, ...]:
        """Return the errors of these codes."""
        return tuple(fault for fault in self.xids if fault.code in codes)

    def rows(self, *names: str) -> tuple[SmiRow, ...]:
        """Return the rows with these names; all rows if none is given."""
        return tuple(row for answer in self.smi_answers for row in (answer.find_rows(*names) if names else answer.rows))

    def rows_saying_yes(self, *names: str) -> tuple[Citation, ...]:
        """Return the rows with these names whose value is yes."""
        return tuple(row.citation for row in self.rows(*names) if smi_query.is_yes(row.value))

    def rows_saying_no(self, *names: str) -> tuple[Citation, ...]:
        """Return the rows with these names whose value is no."""
        return tuple(row.citation for row in self.rows(*names) if row.value.lower() == "no")


def _gpu_memories(snapshot: Snapshot) -> tuple[_GpuMemory, ...]:
    """Return each GPU with evidence about its memory; an unnamed answer is a GPU of its own."""
    incidents, answers = snapshot.view(faults.find_incidents), snapshot.view(smi_query.smi_gpus)
    ill = {incident.gpu for incident in incidents if incident.root.code not in _MEMORY_XIDS | _FOLLOW_UP_XIDS}
    gpus = {incident.gpu: list[smi_query.SmiGpu]() for incident in incidents if incident.root.code in _MEMORY_XIDS}
    for answer in answers:
        if answer.name:
            gpus.setdefault(answer.name, []).append(answer)
    unnamed = [answer for answer in answers if not answer.name]
    if unnamed and len(gpus) < 2 and not _has_several_gpus(snapshot):
        gpus.setdefault(next(iter(gpus), ""), []).extend(unnamed)
        unnamed = []
    known = (_GpuMemory(gpu, _memory_errors(snapshot, gpu), tuple(own)) for gpu, own in gpus.items() if gpu not in ill)
    return (*known, *(_GpuMemory("", (), (gpu,)) for gpu in unnamed))


def _memory_errors(snapshot: Snapshot, gpu: str) -> tuple[faults.Fault, ...]:
    """Return the memory errors of the GPU; a disabled TPC is a fault of the compute engine instead."""
    found = (fault for fault in faults.xids_of_gpu(snapshot, gpu) if fault.code in _MEMORY_XIDS)
    return tuple(fault for fault in found if not (fault.xid and re.search(r"\bTPC\b", fault.xid.text)))


def _has_several_gpus(snapshot: Snapshot) -> bool:
    """Return whether an answer covers several unnamed GPUs or the node has several GPUs."""
    if any(sum(not gpu.name for gpu in answer) > 1 for answer in snapshot.view(smi_query.smi_answers)):
        return True
    return any((smi_inventory.count or 0) > 1 for smi_inventory in snapshot.view(boards.smi_inventories))


_MemoryCheck: TypeAlias = "Callable[[Snapshot, _GpuMemory], Proof | None]"


def _check_each_memory(judge: _MemoryCheck) -> ProofReader:
    """Return the check that applies ``judge`` to the memory of every GPU."""

    def check(snapshot: Snapshot) -> Iterator[Proof]:
        found = (judge(snapshot, memory) for memory in snapshot.view(_gpu_memories))
        return (proof for proof in found if proof)

    return check


def _downgrade_after_reset(check: ProofReader) -> ProofReader:
    """Return the check for an error that is resolved once a reset has replaced the bad row."""

    def check_until_reset(snapshot: Snapshot) -> Iterator[Proof]:
        replaced_rows = {memory.gpu for memory in snapshot.view(_gpu_memories) if _is_repaired_by_reset(memory)}
        for proof in check(snapshot):
            summary = f"{proof.summary}; the bad row was replaced by a reset since"
            past = replaced(proof, summary=summary, severity="info", disruption="none", remedy=_WATCH_ERROR_COUNT_FIXES)
            yield past if proof.gpu in replaced_rows else proof

    return check_until_reset


def _is_repaired_by_reset(memory: _GpuMemory) -> bool:
    """Return whether a row was marked, and no reset was pending in the last nvidia-smi query."""
    is_marked = any(not _concerns_page(fault) for fault in memory.errors_with_codes(63, 156, 160))
    return is_marked and any(map(recovery.is_from_last_query, memory.rows_saying_no("Remapped Rows", "Pending")))


def _make_proof(memory: _GpuMemory, summary: str, *citations: Citation, **more: Any) -> Proof:
    xids = tuple(fault.citation for fault in memory.xids[:6])
    at = next((fault.at for fault in memory.xids), None)
    lines = tuple(dict.fromkeys((*xids, *citations)))
    return Proof(f"{faults.gpu_label(memory.gpu)}: {summary}", lines, gpu=memory.gpu, at=at, **more)


def _is_due_to_pending_reset(fault: faults.Fault) -> bool:
    """Return whether the failure only occurred because this or another row already waits for the reset."""
    return bool(fault.xid and _ALREADY_PENDING_WORDS.search(fault.xid.text))


def _concerns_page(fault: faults.Fault) -> bool:
    """Return whether the marking, successful or not, was of a page and not of a row."""
    text = fault.xid.text if fault.xid else ""
    return bool(_PAGE_RETIREMENT_WORDS.search(text)) and not _ROW_REMAPPING_WORDS.search(text)


def _find_failed_remap(_: Snapshot, memory: _GpuMemory) -> Proof | None:
    rows = memory.rows_saying_yes("Remapping Failure Occurred")
    if not rows and all(
        _is_due_to_pending_reset(code) or _concerns_page(code) for code in memory.errors_with_codes(64, 157, 161)
    ):
        return None
    return _make_proof(memory, "a bad row of memory could not be remapped", *rows)


def _find_failing_memory(snapshot: Snapshot, memory: _GpuMemory) -> Proof | None:
    """Return the proof of failing memory: by NVIDIA's limits, else by the number of errors."""
    limits = (
        *memory.rows_saying_yes("Unrepairable Memory"),
        *memory.rows_saying_yes("SRAM Threshold Exceeded"),
        *_bank_histogram_line(memory, "None"),
    )
    limits += tuple(fault.citation for fault in memory.errors_with_codes(64) if _concerns_page(fault))
    retired = [row for name in ("Double Bit ECC", "Single Bit ECC") for row in memory.rows("Retired Pages", name)]
    if sum(int(row.value) for row in retired if re.fullmatch(r"[0-9]{1,9}", row.value)) >= _MAX_RETIRED_PAGES:
        limits += tuple(row.citation for row in retired)
    if limits:
        return _make_proof(memory, "its memory has passed NVIDIA's limit for a replacement", *limits)
    # A reboot does not repair memory, so errors of earlier boots count.
    ever = (snapshot.including_earlier_boots or snapshot) if memory.xids else snapshot
    errors = tuple(fault for fault in faults.xids_of_gpu(ever, memory.gpu) if fault.code == 48)
    if _count_occurrences(errors) >= _MIN_ERRORS_OF_FAILING_MEMORY:
        lines = tuple(fault.citation for fault in errors[:6])
        return _make_proof(memory, "uncorrectable memory errors again and again", *lines, confidence="likely")
    if low := _bank_histogram_line(memory, "Low"):
        return _make_proof(memory, "a bank of its memory has almost no spare rows left", *low, confidence="likely")
    return None


def _bank_histogram_line(memory: _GpuMemory, name: str) -> tuple[Citation, ...]:
    """Return the row of the histogram of spare rows called ``name`` if it counts any banks."""
    found = memory.rows("Bank Remap Availability Histogram", name)
    return tuple(row.citation for row in found if re.match(r"[1-9]", row.value))


def _count_occurrences(errors: tuple[faults.Fault, ...]) -> int:
    """Return the number of distinct hours or locations of the errors; a reset replaces one bad row."""
    places = {match[0] for fault in errors if fault.xid and (match := _MEMORY_LOCATION.search(fault.xid.text))}
    # Several logs with different clocks may report the same error.
    hours = Counter(clock for clock, _ in {(faults.clock_kind(one), int(one.at // 3600)) for one in errors if one.at})
    return max((len(places), *hours.values()))


def _find_pending_pages(_: Snapshot, memory: _GpuMemory) -> Proof | None:
    rows = (
        *memory.rows_saying_yes("Retired Pages", "Pending Page Blacklist"),
        *memory.rows_saying_yes("Retired Pages", "Pending"),
    )
    is_marked = any(map(_concerns_page, memory.errors_with_codes(63))) and not memory.rows_saying_no(
        "Retired Pages", "Pending Page Blacklist"
    )
    text = "pages are marked for retirement, which happens when everything that holds the GPU releases it"
    return _make_proof(memory, text, *rows) if rows or is_marked else None


def _find_pending_remap(_: Snapshot, memory: _GpuMemory) -> Proof | None:
    rows = (*memory.rows_saying_yes("Remapped Rows", "Pending"), *memory.rows_saying_yes("Channel Repair Pending"))
    marked = [with_code for with_code in memory.errors_with_codes(63, 156, 160) if not _concerns_page(with_code)]
    marked += [with_code for with_code in memory.errors_with_codes(64) if _is_due_to_pending_reset(with_code)]
    if not rows and (
        not marked or memory.rows_saying_no("Remapped Rows", "Pending") or memory.errors_with_codes(95, 140)
    ):
        return None
    return _make_proof(memory, "a bad row of memory is marked, and is replaced by a spare one at the next reset", *rows)


def _find_uncontained_errors(snapshot: Snapshot) -> Iterator[Proof]:
    for incident in faults.incidents_with(snapshot, *_MEMORY_XIDS):
        codes = {fault.code for fault in (incident.root, *incident.later_faults)}
        if 95 in codes and 48 not in codes:
            yield faults.incident_proof(incident)


def _find_uncorrectable_errors(snapshot: Snapshot) -> Iterator[Proof]:
    for incident in faults.incidents_with(snapshot, *_MEMORY_XIDS):
        if {48, 171, 172} & {fault.code for fault in (incident.root, *incident.later_faults)}:
            yield faults.incident_proof(incident)
    memories = snapshot.view(_gpu_memories)
    for memory in memories:
        # A count without a GPU address may belong to the GPU that an Xid names.
        is_of_another = ":" not in memory.gpu and any(memory.xids for memory in memories)
        # Since Ampere the count does not tell whether the error was contained; older GPUs count double-bit errors.
        is_old = any("double bit" in " ".join(row.path).lower() for row in memory.rows())
        rows = _uncorrectable_counts(memory, "volatile")
        past = () if rows or memory.xids else _uncorrectable_counts(memory, "aggregate")
        if past:
            text = "uncorrectable ECC errors were counted in its life, but none since the driver was loaded"
            more = {"severity": "info", "disruption": "none", "remedy": _WATCH_ERROR_COUNT_FIXES}
            yield _make_proof(memory, text, *past, **more)
        if rows and not (memory.xids or is_of_another) and (is_old or snapshot.view(kernel.has_kernel_messages)):
            yield _make_proof(
                memory, "uncorrectable ECC errors since the driver was loaded", *rows, confidence="likely"
            )


def _uncorrectable_counts(memory: _GpuMemory, counter: Literal["volatile", "aggregate"]) -> tuple[Citation, ...]:
    """Return the counts of uncorrectable errors since the driver was loaded, or in the GPU's life."""
    found = ((" ".join(row.path).lower(), row) for row in memory.rows())
    uncorrected = (row for names, row in found if counter in names and ("uncorr" in names or "double bit" in names))
    return tuple(row.citation for row in uncorrected if re.match(r"[1-9]", row.value))


def _high_corrected_counts(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the very high counts of corrected errors."""
    for row in (row for memory in snapshot.view(_gpu_memories) for row in memory.rows()):
        names = " ".join(row.path).lower()
        is_one = "volatile" in names and ("single bit" in names or " correctable" in names)
        if is_one and re.fullmatch(r"\d{1,18}", row.value) and int(row.value) > _MANY_CORRECTED_ERRORS:
            yield row.citation


def _uncorrectable_count_sign(memory_kind: str) -> Sign:
    """Return the sign of uncorrectable errors in this kind of memory."""

    def lines(snapshot: Snapshot) -> Iterator[Citation]:
        found = (
            count for memory in snapshot.view(_gpu_memories) for count in _uncorrectable_counts(memory, "volatile")
        )
        return (line for line in found if memory_kind in line.line)

    return custom_sign(lines)


_UNCORRECTABLE_ERRORS_COUNTED: Final = _uncorrectable_count_sign("")
_MEMORY_QUERY_COMMAND: Final = Shell("nvidia-smi -q -d ROW_REMAPPER,ECC,PAGE_RETIREMENT")
_LOOK_AT_COMMANDS: Final = (_MEMORY_QUERY_COMMAND, Shell("sudo dmesg | grep -i xid"))
_RETURN_GPU_FIXES: Final = make_fixed_remedy(
    drain_node(),
    write_nvidia_report("the vendor requests it"),
    replace_gpu("have the GPU replaced: this is one of NVIDIA's own conditions for that"),
    reset_gpu("reset it, if it must keep running until then", "there is no other GPU"),
)
_FREE_GPU_FIXES: Final = make_fixed_remedy(
    drain_node("move the work away from this GPU"),
    run_step("inspect", "find what still holds the GPU", Shell("sudo fuser -v /dev/nvidia*")),
    run_step(
        "restart", "stop the persistence daemon, which holds it", Shell("sudo systemctl stop nvidia-persistenced")
    ),
    reset_gpu(),
    reboot_node(when="something that cannot be stopped holds it"),
)
_RESET_GPU_FIXES: Final = make_fixed_remedy(
    drain_node(),
    reset_gpu(),
    run_step("inspect", "check that nothing is pending or failed", _MEMORY_QUERY_COMMAND),
    replace_gpu(when="errors come back, or a remapping fails"),
)
_WATCH_ERROR_COUNT_FIXES: Final = (
    run_step("inspect", "check how many pages or rows it has cost so far", _MEMORY_QUERY_COMMAND),
    replace_gpu("plan to have the GPU replaced", "the counts grow"),
)
_EXPLAINED_BY_MEMORY_FAULT: Final = (
    UNHEALTHY_IN_CLUSTER | PROGRAM_FAULTS | {"xid-154-recovery-action", "nvlink-all-links-inactive-gpu"}
)
# Each of these memory faults explains everything that the previous one explains, and more.
_EXPLAINED_BY_MEMORY_ERROR: Final = _EXPLAINED_BY_MEMORY_FAULT | {"xid-92-high-sbe-rate"}
_EXPLAINED_BY_PENDING_REPAIR: Final = _EXPLAINED_BY_MEMORY_ERROR | {
    *("ecc-dbe-uncorrectable", "xid-94-contained-ecc", "xid-95-uncontained-ecc", "xid-140-unrecovered-ecc")
}
_EXPLAINED_BY_WEAR: Final = _EXPLAINED_BY_PENDING_REPAIR | {"row-remap-pending", "page-retirement-pending-handles-held"}
_PROGRAM_SYMPTOMS: Final = (symptoms.ANY_XID, symptoms.CUDA_PROGRAM_FAULT, _UNCORRECTABLE_ERRORS_COUNTED)
_rule = partial(Rule, layer="gpu", look_at=_LOOK_AT_COMMANDS)

RULES: Final = (
    _rule(
        cause="ecc-dbe-uncorrectable",
        disruption="reset-gpu",
        symptoms=_PROGRAM_SYMPTOMS,
        check=_downgrade_after_reset(_find_uncorrectable_errors),
        typical=any_of(
            # CUDA's message, nvidia-smi's column "Volatile Uncorr. ECC", DCGM's message.
            message_line(r"(?i)uncorrectable ECC error encountered|(?:cudaError|CUDA_ERROR_)ECC_?Uncorr"),
            message_line(r"\|\s*[0-9A-F:]{11,16}\.0\s+(?:On|Off|N/A)\s*\|\s*[1-9]\d{0,17}\s*\|", "nvidia-smi", "text"),
            message_line(r"(?i)double-bit ECC error\(?s?\)? (?:was |were )?detected in GPU"),
        ),
        share=1.5,
        remedy=_RESET_GPU_FIXES,
        explains=_EXPLAINED_BY_MEMORY_ERROR,
    ),
    _rule(
        cause="row-remap-pending",
        disruption="reset-gpu",
        symptoms=(symptoms.ANY_XID, symptoms.CUDA_PROGRAM_FAULT, symptoms.GPU_RESET_REFUSED),
        check=_check_each_memory(_find_pending_remap),
        typical=message_line(r"(?i)memory errors and row remappings"),
        remedy=make_fixed_remedy(
            drain_node(
                "move the work away from this GPU, and stop DCGM, the fabric manager and everything else that holds it"
            ),
            reset_gpu(),
            reboot_node(when="the reset is refused"),
            run_step("inspect", "check that Pending says No", _MEMORY_QUERY_COMMAND),
            replace_gpu(when="Remapping Failure Occurred says Yes"),
        ),
        explains=_EXPLAINED_BY_PENDING_REPAIR,
    ),
    _rule(
        cause="row-remap-failure",
        disruption="RMA",
        symptoms=(symptoms.ANY_XID, symptoms.CUDA_PROGRAM_FAULT),
        check=_check_each_memory(_find_failed_remap),
        typical=message_line(r"(?i)memory errors and row remapping\b|Remapping Failure Occurred\s*: Yes"),
        remedy=_RETURN_GPU_FIXES,
        explains=_EXPLAINED_BY_WEAR | {"hbm-failing-rma"},
    ),
    _rule(
        cause="hbm-failing-rma",
        disruption="RMA",
        symptoms=(symptoms.ANY_XID, symptoms.CUDA_PROGRAM_FAULT),
        check=_check_each_memory(_find_failing_memory),
        typical=any_of(
            all_of(_MEMORY_TEST_FAILED, _FIELD_DIAGNOSTIC_RUN),
            message_line(
                r"(?i)\d or more retired pages have been detected|SRAM threshold (?:count )?exceeded (?:on|for|in) GPU"
            ),
        ),
        remedy=_RETURN_GPU_FIXES,
        explains=_EXPLAINED_BY_WEAR,
    ),
    _rule(
        cause="page-retirement-pending-handles-held",
        severity="warning",
        disruption="reset-gpu",
        symptoms=(symptoms.ANY_XID, symptoms.GPU_RESET_REFUSED),
        look_at=(_MEMORY_QUERY_COMMAND, Shell("sudo fuser -v /dev/nvidia*")),
        check=_check_each_memory(_find_pending_pages),
        typical=message_line(r"(?i)pending (?:retired page|page retirement)s? (?:has|have|together)"),
        context=command_run(r"(?:lsof|fuser)\b.*/dev/nvidia"),
        remedy=_FREE_GPU_FIXES,
        explains=_EXPLAINED_BY_PENDING_REPAIR,
    ),
    _rule(
        cause="xid-92-high-sbe-rate",
        severity="warning",
        symptoms=(symptoms.ANY_XID,),
        check=faults.incident_check(92),
        typical=custom_sign(_high_corrected_counts),
        may_be_normal=True,
        context=command_run(r"ECC|PAGE_RETIREMENT|ecc_errors"),
        remedy=make_fixed_remedy(*_WATCH_ERROR_COUNT_FIXES),
        explains=UNHEALTHY_IN_CLUSTER,
    ),
    _rule(
        cause="xid-94-contained-ecc",
        disruption="restart-container",
        symptoms=_PROGRAM_SYMPTOMS,
        context=_uncorrectable_count_sign("DRAM"),
        check=_downgrade_after_reset(faults.incident_check(94)),
        remedy=make_fixed_remedy(
            manual_step("application", "restart the program: others on the GPU were not affected"),
            reset_gpu("reset the GPU, so that the bad row is remapped", "it is free"),
            run_step("inspect", "check what is pending", _MEMORY_QUERY_COMMAND),
            replace_gpu(when="it happens again and again on the same GPU"),
        ),
        explains=_EXPLAINED_BY_MEMORY_ERROR,
    ),
    _rule(
        cause="xid-95-uncontained-ecc",
        disruption="reset-gpu",
        symptoms=(*_PROGRAM_SYMPTOMS, symptoms.CUDA_BUSY),
        context=_uncorrectable_count_sign("SRAM"),
        check=_downgrade_after_reset(_find_uncontained_errors),
        remedy=_RESET_GPU_FIXES,
        explains=_EXPLAINED_BY_MEMORY_ERROR | {"xid-94-contained-ecc", "ecc-dbe-uncorrectable"},
    ),
    _rule(
        cause="xid-140-unrecovered-ecc",
        disruption="reset-gpu",
        symptoms=_PROGRAM_SYMPTOMS,
        context=_uncorrectable_count_sign("SRAM"),
        check=_downgrade_after_reset(faults.incident_check(140)),
        remedy=_RESET_GPU_FIXES,
        explains=_EXPLAINED_BY_MEMORY_ERROR,
    ),
    _rule(
        cause="inforom-corrupted",
        severity="warning",
        disruption="reset-gpu",
        symptoms=(symptoms.ADAPTER_INIT_FAILED, symptoms.GPU_LOST),
        look_at=(Shell("nvidia-smi -q | grep -iE '^gpu|inforom'"),),
        check=faults.incident_check(125),
        decisive=message_line(
            r"(?i)infoROM is corrupted|corrupt(?:ed)? InfoROM|InfoROM (?:is )?corrupt|NVML_ERROR_CORRUPTED"
            r"|InfoROM (?:validation|checksum) fail"
        ),
        # nvidia-smi's exit status NVML_ERROR_CORRUPTED_INFOROM.
        typical=any_of(
            custom_sign(
                lambda snapshot: (cite(one, 1) for one in snapshot.items_of("exit-status") if one.text.strip() == "14")
            ),
            all_of(message_line(r"^(?:rc|exit(?: code| status)?) ?[=:] ?14$"), command_run(r"\bnvidia-smi\b")),
        ),
        remedy=make_fixed_remedy(
            reset_gpu("reset the GPU: the driver then repairs what it can"),
            reboot_node(when="the reset is refused"),
            write_nvidia_report("the warning stays"),
            replace_gpu("have the vendor rewrite the InfoROM or replace the GPU", "the warning stays"),
        ),
        explains=UNHEALTHY_IN_CLUSTER,
    ),
)
