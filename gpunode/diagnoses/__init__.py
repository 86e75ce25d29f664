"""List the rule families and diagnose a node: detect, rank and explain causes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Final, TypeAlias, TypeVar

from gpunode.diagnoses import prose, remedy_fitting, special_systems, suspects, unknown_errors, xids
from gpunode.diagnoses.commands import EXAMINE_NODE_COMMAND, Command, Shell, command
from gpunode.diagnoses.evaluation import evaluate_rule, is_examined_by_gpunode, ruled_out_alternatives_by_root
from gpunode.diagnoses.model import (
    DISRUPTIONS,
    Diagnosis,
    Disruption,
    FaultOnset,
    Finding,
    Fix,
    OpenQuestion,
    Proof,
    Rule,
    RuleFamily,
    Suspect,
    lacks_gpu,
    starts_with_disruption,
)
from gpunode.diagnoses.ranking import SEVERITIES, rank_findings
from gpunode.diagnoses.report_similarity import ReportWords
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.suspects import RankedSuspect
from gpunode.diagnoses.views import driver, evidence_origin, kernel, recovery
from gpunode.diagnoses.views.pci import has_gpu

# A family is a module of this package with RULES, and a page of cause texts in causes/.
_FAMILY_MODULE_NAMES: Final[tuple[str, ...]] = (
    *("pci", "pcie", "health", "memory", "gsp", "xids", "virtual", "nouveau", "secureboot", "build", "repositories"),
    *("packages", "support", "modules", "devices", "versions", "nvlink", "gpudirect", "installation", "frameworks"),
    *("sharing", "toolkit", "docker", "containerd", "cdi", "scheduling", "plugin", "operator"),
)
# Collects the tracebacks of failing rules; None lets their exceptions propagate.
_Tracebacks: TypeAlias = "list[str] | None"
_T = TypeVar("_T")


@cache
def rule_families() -> tuple[RuleFamily, ...]:
    """Return every rule family, the lowest layers first."""
    return tuple(RuleFamily(name, import_module(f"gpunode.diagnoses.{name}").RULES) for name in _FAMILY_MODULE_NAMES)


@cache
def rules_by_cause() -> Mapping[str, Rule]:
    """Return every rule by its cause."""
    return {rule.cause: rule for family in rule_families() for rule in family.rules}


def diagnose(snapshot: Snapshot, *, guarded: bool = False, report_words: ReportWords | None = None) -> Diagnosis:
    """Return what is wrong with the node.

    Args:
        snapshot: the node.
        guarded: record and skip rules that crash instead of raising.
        report_words: orders suspects; default: the shipped collection.
    """
    snapshot = recovery.drop_resolved_faults(snapshot)
    bugs: list[str] | None = [] if guarded else None
    findings = _evaluate_rules(snapshot, bugs)
    before = snapshot.including_earlier_boots
    is_well = driver.works(snapshot) and not snapshot.view(driver.smi_error_rows)
    if before is not None and not is_well and not any(_is_certain_error(finding) for finding in findings):
        findings = (*findings, *_findings_of_earlier_boots(findings, _evaluate_rules(before, bugs), snapshot))
    findings = _rank_all(findings)
    ranked = _rank_suspects(findings, snapshot, report_words)
    alone = suspects.standalone_probability(ranked, rules_by_cause())
    if alone >= suspects.MIN_STAND_ALONE_PROBABILITY and not findings and not is_examined_by_gpunode(snapshot):
        first, ranked = ranked[0].suspect, ranked[1:]
        findings = _rank_all((*findings, _suspect_finding(first, snapshot, bugs)))
    against = ruled_out_alternatives_by_root(rules_by_cause(), snapshot, findings)
    findings = tuple(
        replace(finding, ruled_out=against.get(finding.cause, ()), look_at=_list_checks(finding, snapshot))
        for finding in findings
    )
    return Diagnosis(
        findings,
        (*_list_open_questions(snapshot, bugs), *_ask_about_unknown_errors(findings, snapshot)),
        tuple(bugs or ()),
        tuple(_fit_suspect(suspect.suspect, snapshot) for suspect in ranked[: suspects.MAX_SUSPECTS]),
        _find_unexplained_failures(findings, snapshot),
        () if findings else _find_shared_steps(ranked, snapshot, bugs),
    )


def _rank_suspects(
    findings: tuple[Finding, ...], snapshot: Snapshot, report_words: ReportWords | None
) -> tuple[RankedSuspect, ...]:
    """Return the suspects, likeliest first; none beside a certain error or on a healthy node.

    Beside a likely error, a cause's setting alone makes no suspect.
    """
    if _can_ignore_symptoms(snapshot) or any(_is_certain_error(finding) for finding in findings):
        return ()
    ranked = suspects.rank_suspects(rules_by_cause(), snapshot, findings, report_words)
    has_error = any(finding.severity == "error" for finding in findings)
    return tuple(suspect for suspect in ranked if suspect.has_symptom) if has_error else ranked


def _can_ignore_symptoms(snapshot: Snapshot) -> bool:
    """Return whether symptoms on this examined node mean nothing.

    A symptom next to a working driver is an old log line, and a machine without a GPU lacks a driver anyway.
    """
    return is_examined_by_gpunode(snapshot) and (driver.works(snapshot) or has_gpu(snapshot) is False)


def _suspect_finding(suspect: Suspect, snapshot: Snapshot, bugs: _Tracebacks) -> Finding:
    """Return the likely finding for a suspect without rivals."""
    rule = rules_by_cause()[suspect.cause]
    citations = prose.without_prose(snapshot, suspect.citations)
    summary = f"Not proven: of the causes of this failure, only this one fits what the report describes: {rule.title}"
    found = _merge_proofs(rule, [Proof(summary, citations, "likely")], snapshot, bugs)
    return replace(found, basis="ranking")


def _list_checks(finding: Finding, snapshot: Snapshot) -> tuple[Command, ...]:
    """Return the commands to run before the remedy; see ``Finding.look_at``."""
    checks: tuple[Command, ...] = ()
    if finding.confidence == "likely" or lacks_gpu(finding.remedy):
        asked = rules_by_cause()[finding.cause].look_at
        checks = special_systems.keep_available_commands(snapshot, suspects.drop_answered_commands(snapshot, asked))
    is_harmless = is_examined_by_gpunode(snapshot) or not starts_with_disruption(finding.remedy)
    return checks if checks or is_harmless else (EXAMINE_NODE_COMMAND,)


def _fit_suspect(suspect: Suspect, snapshot: Snapshot) -> Suspect:
    """Return the suspect with the commands that exist on this system."""
    return replace(suspect, look_at=special_systems.keep_available_commands(snapshot, suspect.look_at))


def _find_unexplained_failures(findings: tuple[Finding, ...], snapshot: Snapshot) -> tuple[Suspect, ...]:
    """Return the failures beside a fault that it does not explain."""
    if all(finding.severity == "info" for finding in findings) or _can_ignore_symptoms(snapshot):
        return ()
    found = suspects.find_unexplained_failures(rules_by_cause(), snapshot, findings)
    return tuple(_fit_suspect(suspect, snapshot) for suspect in found)


def _ask_about_unknown_errors(findings: tuple[Finding, ...], snapshot: Snapshot) -> tuple[OpenQuestion, ...]:
    """Return the question about an error in a report beside a fault that no rule reads."""
    if is_examined_by_gpunode(snapshot) or all(finding.severity == "info" for finding in findings):
        return ()
    rules = rules_by_cause().values()
    signs = {sign for rule in rules for sign in (*rule.symptoms, rule.decisive, rule.typical, rule.context)}
    known = {line for sign in signs for line in snapshot.view(sign) if line.line_number}
    known.update(line for finding in findings for line in finding.citations)
    question = unknown_errors.find_error_beside_fault(snapshot, known)
    return (question,) if question else ()


def _find_shared_steps(ranked: tuple[RankedSuspect, ...], snapshot: Snapshot, bugs: _Tracebacks) -> tuple[Fix, ...]:
    """Return the first steps that the leading suspects share, if one of these suspects is probably the cause."""
    steps, probability = suspects.find_shared_steps(ranked, lambda cause: fit_remedy(cause, snapshot, bugs))
    return steps if probability >= suspects.MIN_SHARED_STEPS_PROBABILITY else ()


def fit_remedy(cause: str, snapshot: Snapshot, bugs: _Tracebacks = None) -> tuple[Fix, ...]:
    """Return the remedy of a cause for this node, whether or not the cause was found on it."""
    rule = rules_by_cause()[cause]
    return _fit_remedy_and_disruption(rule, (Proof(rule.title),), (), snapshot, bugs)[0]


def _findings_of_earlier_boots(
    findings: tuple[Finding, ...], earlier: tuple[Finding, ...], snapshot: Snapshot
) -> tuple[Finding, ...]:
    """Return additional findings of earlier boots; beside a current error only findings that explain it."""
    known = {finding.cause for finding in findings}
    past = tuple(_mark_past(finding, snapshot) for finding in earlier if finding.cause not in known)
    if not any(finding.severity == "error" for finding in findings):
        return past
    roots = {finding.explained_by for finding in _rank_all((*findings, *past)) if finding.cause in known}
    return tuple(finding for finding in past if finding.cause in roots)


def generic_remedy(cause: str, snapshot: Snapshot) -> tuple[Fix, ...]:
    """Return the remedy of a cause for a node about which nothing else is known."""
    return remedy_fitting.fit_to_gpus(rules_by_cause()[cause].remedy(snapshot), ())


def _evaluate_rules(snapshot: Snapshot, bugs: _Tracebacks) -> tuple[Finding, ...]:
    """Return the findings in the order of the rules."""
    found: list[Finding] = []
    for rule in rules_by_cause().values():
        is_of_node = evidence_origin.is_shown_by_node(rule.cause, rule.layer)
        visible = evidence_origin.node_evidence_only(snapshot) if is_of_node else snapshot
        if proofs := _find_proofs(rule, visible, bugs):
            found.append(_merge_trusted_proofs(rule, proofs, visible, bugs))
    return tuple(found)


def _find_proofs(rule: Rule, snapshot: Snapshot, bugs: _Tracebacks) -> list[Proof]:
    return _run_guarded(
        rule,
        bugs,
        lambda: [remedy_fitting.mark_recovered(rule, proof, snapshot) for proof in evaluate_rule(rule, snapshot)],
        [],
    )


def _run_guarded(rule: Rule, bugs: _Tracebacks, work: Callable[[], _T], otherwise: _T) -> _T:
    """Return what ``work`` returns, or ``otherwise`` and a recorded traceback if it raises."""
    try:
        return work()
    except Exception as error:  # whatever it is, the other rules still run
        if bugs is None or isinstance(error, MemoryError):
            raise
        import traceback  # loaded here because rules rarely fail

        bugs.append(f"{rule.cause}:\n{''.join(traceback.format_exception(error))}")
        return otherwise


def _merge_trusted_proofs(rule: Rule, proofs: list[Proof], snapshot: Snapshot, bugs: _Tracebacks) -> Finding:
    """Return the finding by the node's own evidence; never certain if only containers report it."""
    is_of_node = evidence_origin.is_shown_by_node(rule.cause, rule.layer)
    node_only = evidence_origin.prefer_node_evidence(snapshot, is_node_layer=is_of_node)
    if node_only is snapshot:
        return _merge_proofs(rule, proofs, snapshot, bugs)
    if own := _find_proofs(rule, node_only, bugs):
        return _merge_proofs(rule, own, node_only, bugs)
    found = _merge_proofs(rule, proofs, snapshot, bugs)
    origin = evidence_origin.container_source(snapshot, found.citations)
    return replace(found, confidence="likely", summary=f"By {origin}: {found.summary}", container_log=origin)


def _is_certain_error(finding: Finding) -> bool:
    """Return whether the finding makes earlier boots irrelevant."""
    return finding.severity == "error" and finding.confidence == "certain"


def _mark_past(finding: Finding, snapshot: Snapshot) -> Finding:
    """Return a finding of an earlier boot, which is at most likely."""
    is_past = any(snapshot.is_of_earlier_boot(citation) for citation in finding.citations if citation.line_number)
    summary = f"In an earlier boot: {finding.summary}" if is_past else finding.summary
    return replace(finding, confidence="likely", summary=summary, is_past=is_past)


_FALLBACK_FIX_TEXT: Final = "read how to fix it; because of a bug in gpunode the fix could not be adapted to this node"


def _fit_remedy_and_disruption(
    rule: Rule, proofs: tuple[Proof, ...], gpus: tuple[str, ...], snapshot: Snapshot, bugs: _Tracebacks
) -> tuple[tuple[Fix, ...], Disruption]:
    """Return the first proof's remedy, else the rule's, fitted to GPUs and system, and its disruption."""
    action = recovery.gravest_action(snapshot, gpus or ("",))
    fallback = (Fix("inspect", _FALLBACK_FIX_TEXT, (command("gpunode", "doctor", rule.cause),)),)
    fixes = remedy_fitting.merge_remedies(proofs) or _run_guarded(
        rule, bugs, lambda: tuple(rule.remedy(snapshot)), fallback
    )
    fixes, disruption = remedy_fitting.apply_driver_recovery(fixes, proofs[0].disruption or rule.disruption, action)
    fixes = remedy_fitting.fit_to_gpus(fixes, remedy_fitting.gpus_for_commands(snapshot, gpus))
    fixes = special_systems.fit_fixes(snapshot, remedy_fitting.ask_for_own_recipe(snapshot, fixes))
    return fixes, remedy_fitting.minimum_disruption(fixes, disruption)


def _merge_proofs(rule: Rule, proofs: list[Proof], snapshot: Snapshot, bugs: _Tracebacks) -> Finding:
    """Merge all proofs of a rule into one finding: one fault on several GPUs is one finding."""
    # Recovered GPUs need no remedy, so they are left out beside GPUs that do.
    proofs = [proof for proof in proofs if (proof.severity or rule.severity) != "info"] or proofs
    first = min(proofs, key=lambda proof: (proof.at is None, proof.at or 0.0))
    gravest = max(proofs, key=lambda proof: DISRUPTIONS.index(proof.disruption or rule.disruption))
    gpus = tuple(sorted({proof.gpu for proof in proofs if proof.gpu}))
    citations = tuple(dict.fromkeys(citation for proof in proofs for citation in proof.citations))
    is_certain = any(proof.confidence == "certain" for proof in proofs)
    fixes, disruption = _fit_remedy_and_disruption(rule, (gravest, *proofs), gpus, snapshot, bugs)
    return Finding(
        cause=rule.cause,
        title=rule.title,
        layer=rule.layer,
        severity=min((p.severity or rule.severity for p in proofs), key=SEVERITIES.index),
        confidence="certain" if is_certain else "likely",
        summary=remedy_fitting.summarize_gpus(first, gpus),
        citations=citations,
        remedy=fixes,
        disruption=disruption,
        sources=rule.text.sources,
        gpus=gpus,
        at=first.at,
        onsets=tuple(_fault_onsets(proofs, snapshot)),
    )


def _fault_onsets(proofs: Iterable[Proof], snapshot: Snapshot) -> Iterator[FaultOnset]:
    """Yield the onset of each proof on the clock of the cited line."""
    for proof in proofs:
        if proof.at is not None:
            lines = (kernel.find_message(snapshot, citation) for citation in proof.citations)
            clock = next((line.clock for line in lines if line and line.at == proof.at), "")
            yield FaultOnset(proof.gpu, proof.at, clock)


def _rank_all(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    present = {finding.cause for finding in findings if finding.severity != "info"}
    unrivaled = tuple(
        replace(finding, confidence="likely") if rules_by_cause()[finding.cause].rivals & present else finding
        for finding in findings
    )
    return remedy_fitting.merge_reboot_fixes(
        rank_findings(unrivaled, {cause: rule.explains for cause, rule in rules_by_cause().items()})
    )


def _list_open_questions(snapshot: Snapshot, bugs: _Tracebacks) -> tuple[OpenQuestion, ...]:
    """Return the rules that crashed and the Xids that no rule covers."""
    crashed = ((bug.partition(":\n")[0], bug.rstrip().rpartition("\n")[2][:200]) for bug in bugs or ())
    questions = dict.fromkeys(
        f"{cause} could not be checked because of a bug in gpunode ({error})" for cause, error in crashed
    )
    report = Shell("gpunode capture FILE")
    return (
        *(OpenQuestion(f"{question}; please report it", (report,)) for question in questions),
        *xids.find_uncovered_xids(snapshot),
    )
