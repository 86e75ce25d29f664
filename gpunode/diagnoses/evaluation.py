"""Evaluate rules against a snapshot: findings by decisive signs, and the causes that evidence rules out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final

from gpunode.diagnoses import prose
from gpunode.diagnoses.model import Citation, Finding, Proof, Rule
from gpunode.diagnoses.snapshot import Snapshot, cite_shown
from gpunode.diagnoses.views import kernel, pci
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern

MAX_RULED_OUT: Final = 3
_MAX_QUOTE_LENGTH: Final = 160
_GPU_ADDRESS: Final = Pattern(r"(?i)\b(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b|\(PCI:(?P<xid>[0-9a-f:.]+)\)")


def is_examined_by_gpunode(snapshot: Snapshot) -> bool:
    """Return whether gpunode examined the node itself, as opposed to a report with output that a person selected."""
    return isinstance(snapshot.facts.modules, Known) or bool(snapshot.items_of("nvml"))


def evaluate_rule(rule: Rule, snapshot: Snapshot) -> Iterable[Proof]:
    """Return the proofs from the rule's check, else from its signs."""
    found = tuple(rule.check(snapshot)) if rule.check is not None else ()
    found = tuple(proof for proof in found if not _rests_on_prose(snapshot, proof))
    if found and is_ruled_out(rule, snapshot):
        return ()
    return (_cap_confidence_of_typed_lines(snapshot, proof) for proof in found or _evaluate_signs(rule, snapshot))


def _cap_confidence_of_typed_lines(snapshot: Snapshot, proof: Proof) -> Proof:
    """Return the proof, at most likely if a person may have typed or quoted all its lines."""
    lines = [citation for citation in proof.citations if citation.line_number is not None]
    if not lines or any(prose.is_program_output(snapshot, line) for line in lines):
        return proof
    return replace(proof, confidence="likely")


def _rests_on_prose(snapshot: Snapshot, proof: Proof) -> bool:
    """Return whether all lines that prove it are prose written by a person."""
    lines = [citation for citation in proof.citations if citation.line_number is not None]
    return bool(lines) and all(prose.cites_prose(snapshot, line) for line in lines)


def _evaluate_signs(rule: Rule, snapshot: Snapshot) -> Iterator[Proof]:
    decisive, typical = (prose.without_prose(snapshot, snapshot.view(one)) for one in (rule.decisive, rule.typical))
    if not (decisive or typical) or is_ruled_out(rule, snapshot):
        return
    symptoms = prose.without_prose(snapshot, (line for sign in rule.symptoms for line in snapshot.view(sign)))
    if rule.symptoms and not symptoms and rule.may_be_normal and is_examined_by_gpunode(snapshot):
        return
    summary = (rule.summary and rule.summary(snapshot)) or rule.title
    is_sure = bool(decisive) and (bool(symptoms) or not rule.symptoms)
    for gpu, lines in _group_by_gpu(snapshot, (*decisive, *typical)).items():
        yield Proof(
            summary,
            cite_shown((*lines, *symptoms)),
            "certain" if is_sure else "likely",
            gpu=gpu,
            at=_onset_of(snapshot, lines),
            severity="warning" if snapshot.view(rule.latent) else None,
        )


def is_ruled_out(rule: Rule, snapshot: Snapshot) -> bool:
    """Return whether any evidence speaks against the cause."""
    return any(snapshot.view(sign) for sign in rule.against)


def _group_by_gpu(snapshot: Snapshot, lines: tuple[Citation, ...]) -> Mapping[str, tuple[Citation, ...]]:
    """Group lines by the GPU that they name; lines without a GPU join every group."""
    gpus = {pci_gpu.address for pci_gpu in snapshot.view(pci.pci_gpus)}
    lines_by_address: dict[str, list[Citation]] = {}
    for line in lines:
        match = _GPU_ADDRESS.search(line.line)
        address = pci.normalize_address(match["xid"] or match[0]) if match else ""
        lines_by_address.setdefault(address if address in gpus else "", []).append(line)
    common = lines_by_address.pop("", [])
    return {gpu: (*own, *common) for gpu, own in lines_by_address.items()} or {"": tuple(common)}


def _onset_of(snapshot: Snapshot, lines: Iterable[Citation]) -> float | None:
    found = (kernel.find_message(snapshot, line) for line in lines)
    times = [message.at for message in found if message and message.at is not None]
    return min(times) if times else None


def ruled_out_alternatives_by_root(
    rules: Mapping[str, Rule], snapshot: Snapshot, findings: Iterable[Finding]
) -> Mapping[str, tuple[str, ...]]:
    """Return, by root cause, the likeliest other causes of its symptoms, each with the evidence against it."""
    found_causes = {finding.cause for finding in findings}
    others = [rule for rule in rules.values() if rule.cause not in found_causes]
    ruled_out: dict[str, tuple[str, ...]] = {}
    for root in (finding for finding in findings if not finding.explained_by and finding.severity != "info"):
        # A symptom that the root's proof does not cite may belong to another fault.
        cited = set(root.citations)
        shared_symptoms = {sign for sign in rules[root.cause].symptoms if not cited.isdisjoint(snapshot.view(sign))}
        alike = [
            (len(shared), rule.share, rule, line)
            for rule in others
            if not shared_symptoms.isdisjoint(rule.symptoms)
            for line in islice((line for sign in rule.against for line in snapshot.view(sign)), 1)
            # A line that shows a symptom and rules the cause out is no symptom of that cause.
            if (shared := [sign for sign in shared_symptoms & set(rule.symptoms) if line not in snapshot.view(sign)])
        ]
        nearest = sorted(alike, key=lambda one: (-one[0], -one[1]))
        ruled_out[root.cause] = tuple(f"{rule.title}: {_quote(line)}" for *_, rule, line in nearest[:MAX_RULED_OUT])
    return ruled_out


def _quote(line: Citation) -> str:
    text = " ".join(line.line.split())
    if line.line_number is None:
        return text.strip("()")
    return f"{text if len(text) <= _MAX_QUOTE_LENGTH else f'{text[:_MAX_QUOTE_LENGTH]}…'} ({line.source})"
