"""The rules, family by family, and the ranking of what they find: the root cause first, its consequences under it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Final, TypeAlias, TypeVar

from gpunode.diagnoses import fitting, systems, xids
from gpunode.diagnoses.commands import Shell, command
from gpunode.diagnoses.judging import is_examined, judged, ruled_out, suspects
from gpunode.diagnoses.model import (
    DISRUPTIONS,
    Diagnosis,
    Disruption,
    Doubt,
    Event,
    Family,
    Finding,
    Fix,
    Proof,
    Rule,
    Suspect,
)
from gpunode.diagnoses.ranking import WEIGHT, ranked
from gpunode.diagnoses.resemblance import Words
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import driver, kernel, recovery, resolved, trust
from gpunode.diagnoses.views.pci import has_gpu

# A family is a module of this package with FAMILY in it; their order is that of the documentation.
_FAMILIES: Final[tuple[str, ...]] = (
    *("pci", "bar", "p2p", "pcie", "lost", "memory", "gsp", "xids", "power", "virtual", "nouveau", "secureboot"),
    *("build", "repositories", "packages", "conflicts", "runfile", "support", "modules", "devices", "versions"),
    *("nvlink", "gpudirect", "installation", "frameworks", "libcuda", "sharing", "mig"),
    *("toolkit", "docker", "containerd", "cgroups", "cdi", "scheduling", "plugin", "admission", "operator"),
)
# Where the tracebacks of rules that fail go; None where their exceptions are raised.
_Bugs: TypeAlias = "list[str] | None"
_T = TypeVar("_T")


@cache
def families() -> tuple[Family, ...]:
    """Every family of causes."""
    return tuple(import_module(f"gpunode.diagnoses.{name}").FAMILY for name in _FAMILIES)


@cache
def rules() -> Mapping[str, Rule]:
    """Every rule, by its cause."""
    return {rule.cause: rule for family in families() for rule in family.rules}


def diagnose(snapshot: Snapshot, *, guarded: bool = False, told: Words | None = None) -> Diagnosis:
    """What is wrong with the node, as far as it can be told.

    Args:
        snapshot: the node.
        guarded: whether a rule that fails by a bug of its own is passed over; else its exception is raised.
        told: the words of other reports than the project's own, by which suspects are ordered.
    """
    snapshot = resolved.without_what_is_over(snapshot)
    bugs: list[str] | None = [] if guarded else None
    findings = _judged(snapshot, bugs)
    before = snapshot.with_history
    is_well = driver.works(snapshot) and not snapshot.view(driver.unread)
    if before is not None and not is_well and not any(_is_settled(finding) for finding in findings):
        findings = (*findings, *_told_by_history(findings, _judged(before, bugs), snapshot))
    findings = _ranked(findings)
    against = ruled_out(rules(), snapshot, findings)
    findings = tuple(replace(one, ruled_out=against.get(one.cause, ())) for one in findings)
    return Diagnosis(findings, _open(snapshot, bugs), tuple(bugs or ()), _suspected(findings, snapshot, told))


def _suspected(findings: tuple[Finding, ...], snapshot: Snapshot, told: Words | None) -> tuple[Suspect, ...]:
    """The suspects, with what can be looked at on this system.

    Where gpunode looked itself, a symptom beside a driver that works is an old line of a log; and a machine without a
    GPU lacks all that a driver brings.
    """
    is_well = is_examined(snapshot) and (driver.works(snapshot) or has_gpu(snapshot) is False)
    if is_well or any(_is_settled(finding) for finding in findings):
        return ()
    found = suspects(rules(), snapshot, findings, told)
    return tuple(replace(one, look_at=systems.fitted_look(snapshot, one.look_at)) for one in found)


def _told_by_history(
    findings: tuple[Finding, ...], earlier: tuple[Finding, ...], snapshot: Snapshot
) -> tuple[Finding, ...]:
    """What earlier boots show besides; where something is wrong now, only what explains it."""
    known = {finding.cause for finding in findings}
    told = tuple(_as_history(finding, snapshot) for finding in earlier if finding.cause not in known)
    if not any(finding.severity == "error" for finding in findings):
        return told
    roots = {finding.explained_by for finding in _ranked((*findings, *told)) if finding.cause in known}
    return tuple(finding for finding in told if finding.cause in roots)


def remedy_of(cause: str, snapshot: Snapshot) -> tuple[Fix, ...]:
    """What is to be done about a cause on a node of which no more is known: on which GPU, is left to the reader."""
    return fitting.fitted(rules()[cause].remedy(snapshot), ())


def _judged(snapshot: Snapshot, bugs: _Bugs) -> tuple[Finding, ...]:
    """What the rules say, in their order."""
    found: list[Finding] = []
    for rule in rules().values():
        seen = trust.node_alone(snapshot) if rule.layer in trust.OF_NODE else snapshot
        if proofs := _proofs(rule, seen, bugs):
            found.append(_weighed(rule, proofs, seen, bugs))
    return tuple(found)


def _proofs(rule: Rule, snapshot: Snapshot, bugs: _Bugs) -> list[Proof]:
    """What the rule says."""
    return _guarded(
        rule, bugs, lambda: [fitting.since_recovered(rule, one, snapshot) for one in judged(rule, snapshot)], []
    )


def _guarded(rule: Rule, bugs: _Bugs, work: Callable[[], _T], otherwise: _T) -> _T:
    """What ``work`` returns; on evidence that nobody has thought of, one rule's bug must not silence all others."""
    try:
        return work()
    except Exception as error:  # whatever it is, the other rules go on
        if bugs is None or isinstance(error, MemoryError):
            raise
        import traceback  # a rule that fails is rare

        bugs.append(f"{rule.cause}:\n{''.join(traceback.format_exception(error))}")
        return otherwise


def _weighed(rule: Rule, proofs: list[Proof], snapshot: Snapshot, bugs: _Bugs) -> Finding:
    """The finding, by the node's own word where that is enough; a container's makes nothing certain."""
    alone = trust.without_containers(snapshot, of_node=rule.layer in trust.OF_NODE)
    if alone is snapshot:
        return _finding(rule, proofs, snapshot, bugs)
    if own := _proofs(rule, alone, bugs):
        return _finding(rule, own, alone, bugs)
    found = _finding(rule, proofs, snapshot, bugs)
    said_by = trust.speaker(snapshot, found.citations)
    return replace(found, confidence="likely", summary=f"By {said_by}: {found.summary}", heard_from=said_by)


def _is_settled(finding: Finding) -> bool:
    """Whether what is wrong now is known without a look at earlier boots."""
    return finding.severity == "error" and finding.confidence == "certain"


def _as_history(finding: Finding, snapshot: Snapshot) -> Finding:
    """What an earlier boot showed: it may be over, so it is never certain."""
    is_told = any(snapshot.is_of_earlier_boot(citation) for citation in finding.citations if citation.number)
    summary = f"In an earlier boot: {finding.summary}" if is_told else finding.summary
    return replace(finding, confidence="likely", summary=summary, is_past=is_told)


_UNFITTED: Final = "read what is done about it; by a bug in gpunode it could not be fitted to this node"


def _to_be_done(
    rule: Rule, proofs: tuple[Proof, ...], gpus: tuple[str, ...], snapshot: Snapshot, bugs: _Bugs
) -> tuple[tuple[Fix, ...], Disruption]:
    """The remedy of the first proof, else the rule's, fitted to the GPUs and the system; and what it disrupts."""
    asked = recovery.gravest(snapshot, gpus or ("",))
    unfitted = (Fix("inspect", _UNFITTED, (command("gpunode", "doctor", rule.cause),)),)
    fixes = fitting.merged(proofs) or _guarded(rule, bugs, lambda: tuple(rule.remedy(snapshot)), unfitted)
    fixes, disruption = fitting.obeyed(fixes, proofs[0].disruption or rule.disruption, asked)
    fixes = systems.fitted(snapshot, fitting.fitted(fixes, fitting.concerned(snapshot, gpus)))
    return fixes, fitting.disturbing(fixes, disruption)


def _finding(rule: Rule, proofs: list[Proof], snapshot: Snapshot, bugs: _Bugs) -> Finding:
    """One finding of all that a rule said: several GPUs with one fault are one finding."""
    # A GPU that got over it is none of those on which something is to be done.
    proofs = [one for one in proofs if (one.severity or rule.severity) != "info"] or proofs
    first = min(proofs, key=lambda proof: (proof.at is None, proof.at or 0.0))
    gravest = max(proofs, key=lambda proof: DISRUPTIONS.index(proof.disruption or rule.disruption))
    gpus = tuple(sorted({proof.gpu for proof in proofs if proof.gpu}))
    citations = tuple(dict.fromkeys(citation for proof in proofs for citation in proof.citations))
    is_certain = any(proof.confidence == "certain" for proof in proofs)
    fixes, disruption = _to_be_done(rule, (gravest, *proofs), gpus, snapshot, bugs)
    return Finding(
        cause=rule.cause,
        title=rule.title,
        layer=rule.layer,
        stack_layer=rule.stack_layer,
        severity=min((p.severity or rule.severity for p in proofs), key=WEIGHT.index),
        confidence="certain" if is_certain else "likely",
        summary=fitting.of_all(first, gpus),
        citations=citations,
        remedy=fixes,
        disruption=disruption,
        sources=rule.sources,
        gpus=gpus,
        at=first.at,
        events=tuple(_events(proofs, snapshot)),
    )


def _events(proofs: Iterable[Proof], snapshot: Snapshot) -> Iterator[Event]:
    """When it happened, on the clock of the line that tells of it."""
    messages = snapshot.view(kernel.by_place)
    for proof in proofs:
        if proof.at is not None:
            lines = (messages.get((one.key, one.number or 0)) for one in proof.citations)
            clock = next((line.clock for line in lines if line and line.at == proof.at), "")
            yield Event(proof.gpu, proof.at, clock)


def _ranked(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    present = {finding.cause for finding in findings if finding.severity != "info"}
    weighed = tuple(
        replace(finding, confidence="likely") if rules()[finding.cause].rivals & present else finding
        for finding in findings
    )
    return fitting.settled_together(ranked(weighed, {cause: rule.explains for cause, rule in rules().items()}))


def _open(snapshot: Snapshot, bugs: _Bugs) -> tuple[Doubt, ...]:
    """Which rules failed by a bug, and the Xids that no rule is about."""
    failed = ((bug.partition(":\n")[0], bug.rstrip().rpartition("\n")[2][:200]) for bug in bugs or ())
    asked = dict.fromkeys(f"{cause} could not be judged, by a bug in gpunode ({error})" for cause, error in failed)
    report = Shell("gpunode capture FILE")
    return (*(Doubt(f"{one}; please report it", (report,)) for one in asked), *xids.unexplained(snapshot))
