"""doctor: diagnose a node from its evidence; it never changes anything."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.evaluation import is_examined_by_gpunode
from gpunode.diagnoses.model import Diagnosis, OpenQuestion
from gpunode.diagnoses.snapshot import Snapshot, take_snapshot
from gpunode.diagnoses.stack import LayerState, does_driver_answer, stack_layers
from gpunode.diagnoses.unknown_errors import find_described_failure, find_unknown_error
from gpunode.diagnoses.views import pci
from gpunode.facts import pasted
from gpunode.facts.evidence import TRUNCATION_KEY, Capture, Evidence, decode_matches
from gpunode.facts.examination import DOCTOR_PROBES, UNITS, trim_evidence
from gpunode.facts.follow_ups import (
    DRIVER_QUERY_CONDITION_KEYS,
    can_query_driver,
    driver_probes,
    final_follow_ups,
    follow_ups,
)
from gpunode.facts.items import is_denial
from gpunode.facts.probes import LSPCI_PROBE, list_probes
from gpunode.fast_dataclass import dataclass
from gpunode.host import nvml
from gpunode.redaction.evidence import redact_recursively

if TYPE_CHECKING:
    from gpunode.host.port import HostView

# unknown: a fault was seen but not identified, or nothing shows that the driver works.
Verdict: TypeAlias = Literal["healthy", "problem", "unknown"]

# The same limit as nvidia-smi has: if the driver hangs, both do.
_NVML_TIMEOUT_S = 10.0


def collect_doctor_evidence(host: HostView) -> Evidence:
    """Collect the evidence of ``host``: first the quick probes, then those that their results call for.

    The driver is queried all the while, as it may take its whole time limit.
    """
    from concurrent.futures import ThreadPoolExecutor

    from gpunode.workflow.converge import probe_with_runtimes, run_probes

    first = {probe.key: probe for probe in (*list_probes(UNITS), LSPCI_PROBE, *DOCTOR_PROBES)}
    conditions = run_probes(host, [probe for key, probe in first.items() if key in DRIVER_QUERY_CONDITION_KEYS])
    queries = (*driver_probes(conditions), nvml.make_probe(_NVML_TIMEOUT_S)) if can_query_driver(conditions) else ()
    with ThreadPoolExecutor(max_workers=1) as pool:
        driver_answers = pool.submit(run_probes, host, queries)
        answers = probe_with_runtimes(host, tuple(first.values()))
        queried = {probe.key for probe in queries}
        later = run_probes(host, [probe for probe in follow_ups(answers) if probe.key not in queried])
        last = run_probes(host, final_follow_ups({**answers, **later}))
        evidence = {**answers, **driver_answers.result(), **later, **last}
    # The journal includes what the kernel's ring buffer has dropped. Reading both would count each error twice.
    if evidence["kernel-journal"].outcome == "ok" and evidence["kernel-journal"].data.strip():
        del evidence["dmesg"]
    return evidence


def cause_of_xid(code: int) -> str:
    """Return the cause that this Xid alone in a kernel log shows; empty if more evidence is needed."""
    log = pasted.collect_pieces([("dmesg", f"NVRM: Xid (PCI:0000:01:00): {code}, pid=1, name=program")])
    roots = diagnose(take_snapshot(log)).roots
    return roots[0].cause if roots else ""


@dataclass(frozen=True, slots=True)
class Examination:
    """A node after its examination.

    Attributes:
        stack: its layers, from the PCI bus up.
        driver_works: whether the evidence shows that the driver works.
        denied: the sources that the system did not let us read, for display; root could read them.
        notes: hazards of the next boot or start, if gpunode examined the node itself; not faults yet.
    """

    snapshot: Snapshot
    diagnosis: Diagnosis
    stack: tuple[LayerState, ...]
    driver_works: bool
    denied: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The node's state as one word."""
        if not self.diagnosis.is_healthy:
            return "problem"
        is_open = bool(self.diagnosis.open_questions or self.diagnosis.suspects)
        return "unknown" if is_open or not self.driver_works else "healthy"

    @property
    def faultless_verdict(self) -> str:
        """The verdict in words on a node without a finding that is a fault."""
        questions = self.diagnosis.open_questions
        if any(suspect.citations for suspect in self.diagnosis.suspects):
            return "the evidence does not decide the cause"
        if any(question.citations for question in questions):
            return "something is wrong, but the evidence does not show what"
        if questions and self.snapshot.view(pci.has_gpu) is False:
            return "no NVIDIA GPU found, and no fault detected"
        if questions:
            return "not enough evidence to call this node healthy"
        if not self.driver_works:
            return (
                "no fault detected, but nothing shows that the driver works: not enough evidence to call this node"
                " healthy"
            )
        is_own = is_examined_by_gpunode(self.snapshot)
        return "nothing is wrong" if is_own else "this text shows a working driver and no fault"


# How commands report missing permissions.
_ACCESS_DENIED_MESSAGE: Final = re.compile(
    r"permission denied|operation not permitted|insufficient permissions|must be root|access denied", re.IGNORECASE
)
_MAX_MESSAGE_BYTES: Final = 4096
# These commands leave out what they may not read, and still succeed.
_OMISSION_MARKS: Final = {"lspci": re.compile(rb"<access denied>"), "lslocks": re.compile(rb" /\.\.\.$", re.MULTILINE)}


def denied_sources(capture: Capture) -> tuple[str, ...]:
    """Return the sources of ``capture`` that the system did not let us read; empty if we read everything."""
    if capture.source.startswith("/") and "*" in capture.source and capture.data:
        with suppress(ValueError, KeyError, TypeError):
            matches = decode_matches(capture.data) if b"denied" in capture.data else ()
            files = tuple(match.path for match in matches if match.denied)
            return (*((capture.source,) if capture.outcome == "denied" else ()), *files)
    return (capture.source,) if _is_denied(capture) else ()


def _is_denied(capture: Capture) -> bool:
    if capture.outcome == "failed":
        # Some commands print errors to stdout.
        output_text = f"{capture.error}\n{capture.data[:_MAX_MESSAGE_BYTES].decode('utf-8', 'replace')}"
        return _ACCESS_DENIED_MESSAGE.search(output_text) is not None
    # journalctl shows a user what they may read, even if that is nothing, and succeeds; we pass -q, so it says nothing.
    is_partial = any(
        capture.source.startswith(name) and sign.search(capture.data) for name, sign in _OMISSION_MARKS.items()
    )
    return capture.outcome == "denied" or is_denial(capture) or is_partial


def _missing_evidence_question(snapshot: Snapshot) -> OpenQuestion:
    """Return the question to ask if the evidence shows neither a fault nor that the driver works."""
    if snapshot.view(pci.has_gpu) is False:
        look_at = (Shell("lspci -nn -d 10de:"),)
        return OpenQuestion("should this machine have a GPU? no NVIDIA GPU is on its PCI bus", look_at)
    return OpenQuestion(
        "does the driver work? nothing in the evidence shows that it does",
        (Shell("nvidia-smi"), Shell("sudo dmesg | grep -i nvrm | tail")),
    )


_MAX_OMISSIONS_NAMED: Final = 5


def diagnose_evidence(evidence: Evidence) -> Examination:
    """Diagnose the node that ``evidence`` shows."""
    read, left_out = trim_evidence({key: capture for key, capture in evidence.items() if key != TRUNCATION_KEY})
    snapshot = take_snapshot(read)
    works = does_driver_answer(snapshot)
    diagnosis = diagnose(snapshot, guarded=True)
    if not (diagnosis.findings or diagnosis.open_questions or any(suspect.citations for suspect in diagnosis.suspects)):
        doubt = find_unknown_error(snapshot) or (
            find_described_failure(snapshot) if works else _missing_evidence_question(snapshot)
        )
        diagnosis = replace(diagnosis, open_questions=(doubt,) if doubt else ())
    if (cut := evidence.get(TRUNCATION_KEY)) is not None:
        left_out = (f"{cut.error}; copy the whole file again", *left_out)
    if left_out:
        rest = OpenQuestion(f"what does the rest of the report say? {'; '.join(left_out[:_MAX_OMISSIONS_NAMED])}", ())
        diagnosis = replace(diagnosis, open_questions=(*diagnosis.open_questions, rest))
    kept = tuple(dict.fromkeys(source for capture in evidence.values() for source in denied_sources(capture)))
    return Examination(
        snapshot, redact_recursively(diagnosis), redact_recursively(stack_layers(snapshot, diagnosis)), works, kept
    )


def add_hazard_notes(examined: Examination) -> Examination:
    """Add status's notes on the driver's future; omit them for a report whose author selected its contents.

    Notes on runtimes are left to status: they need all steps, which would double the time for a capture.
    """
    if not is_examined_by_gpunode(examined.snapshot):
        return examined
    from gpunode.steps.kernel import driver_hazard_notes
    from gpunode.steps.leftovers import find_leftovers, note_run_driver

    facts = examined.snapshot.facts
    notes = (*note_run_driver(facts), *driver_hazard_notes(facts), *find_leftovers(facts))
    return replace(examined, notes=redact_recursively(notes))
