"""The laws of doctor: it answers any input, and gives the same diagnosis for a node and for its capture."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted
from gpunode.facts.evidence import Capture, Evidence
from gpunode.facts.examination import DOCTOR_PROBES
from gpunode.facts.follow_ups import follow_ups
from gpunode.facts.items import split_items
from gpunode.facts.probes import PROBES
from gpunode.facts.sources import _SHELL_PROMPT, identify_source
from gpunode.host.capture import load_capture, save_capture
from gpunode.redaction.anonymize import anonymize_evidence
from gpunode.redaction.evidence import redact
from gpunode.workflow.doctor import diagnose_evidence
from tests.fakes.examples import examples
from tests.laws.reports import damaged, damaged_reports, pieces, reports
from tests.laws.test_capture_laws import DATA, FOUND, TEXTS
from tests.scenarios.reports import Report, some_reports

PROBED = {probe.key: probe.source for probe in (*PROBES, *DOCTOR_PROBES)}
_SOURCES = sorted({*PROBED.values(), *(source for source, _ in pieces())})
# A capture whose globs are malformed is refused, so only well-formed ones are compared.
_GLOBS = [source for source in _SOURCES if source.startswith("/") and "*" in source]


def _captures(sources: list[str], data: st.SearchStrategy[bytes]) -> st.SearchStrategy[Capture]:
    return st.builds(
        Capture,
        source=st.sampled_from(sources),
        outcome=st.sampled_from(["ok", "ok", "ok", "absent", "denied", "failed", "timeout"]),
        data=data,
        error=TEXTS,
        exit_status=st.none() | st.integers(0, 255),
    )


# Possible results of doctor's probes, and realistic ones: the texts of the scenarios.
CAPTURES = _captures(_GLOBS, FOUND) | _captures(
    [source for source in _SOURCES if source not in _GLOBS],
    DATA | FOUND | st.sampled_from([text.encode() for _, text in pieces()]),
)
SEEN = st.dictionaries(st.sampled_from(sorted(PROBED)) | st.text(min_size=1, max_size=9), CAPTURES, max_size=12)
WORDS = st.text(max_size=60) | st.sampled_from([source for source, _ in pieces()])


def without_evidence_words(diagnosis: Diagnosis) -> tuple[list[object], list[object]]:
    """Return the diagnosis without words from the evidence."""
    found: list[object] = [
        (one.cause, one.explained_by, one.severity, one.confidence, one.gpus) for one in diagnosis.findings
    ]
    return found, [doubt.question for doubt in diagnosis.open_questions]


def diagnosis(evidence: Evidence) -> Diagnosis:
    return diagnose(take_snapshot(evidence))


@given(SEEN)
@settings(max_examples=examples(30), deadline=None)
def test_doctor_answers_any_evidence(evidence: Evidence) -> None:
    examined = diagnose_evidence(evidence)
    assert {finding.explained_by for finding in examined.diagnosis.findings} - {""} <= {
        finding.cause for finding in examined.diagnosis.findings
    }
    assert bool(examined.diagnosis.findings) == bool(examined.diagnosis.roots)


@given(damaged_reports)
@settings(max_examples=examples(30), deadline=None)
def test_doctor_answers_damaged_and_mixed_reports(evidence: Evidence) -> None:
    diagnose_evidence(evidence)


@given(damaged, st.randoms(use_true_random=False))
@settings(max_examples=examples(30), deadline=None)
def test_diagnosis_does_not_depend_on_the_order_of_evidence(
    rows: tuple[tuple[str, str], ...], chance: random.Random
) -> None:
    """Only the order of citations may depend on it, and choices that depend on which piece came first."""
    distinct = {
        pasted_key: (source, text) for source, text in rows for pasted_key in pasted.collect_pieces([(source, text)])
    }
    shuffled = list(distinct.values())
    chance.shuffle(shuffled)
    one, other = (diagnosis(pasted.collect_pieces(order)) for order in (distinct.values(), shuffled))
    assert without_evidence_words(one)[0] == without_evidence_words(other)[0]


@given(SEEN)
@settings(max_examples=examples(30), deadline=None)
def test_capture_has_the_diagnosis_of_its_node(evidence: Evidence) -> None:
    with tempfile.TemporaryDirectory() as folder:
        save_capture(evidence, path := Path(folder) / "node.tar.gz")
        loaded = load_capture(path)
    shown = {key: redact({key: evidence[key]})[key] for key in sorted(evidence)}
    assert diagnosis(loaded) == diagnosis(shown)


@pytest.mark.parametrize("report", some_reports("redaction and masking"), ids=lambda report: report.name)
def test_redaction_and_masking_keep_the_cause_of_real_reports(report: Report) -> None:
    evidence = pasted.collect_pieces(tuple((one["source"], one["text"]) for one in report.evidence))
    plain = without_evidence_words(diagnosis(evidence))
    assert without_evidence_words(diagnosis(redact(evidence))) == plain
    assert without_evidence_words(diagnosis(anonymize_evidence(redact(evidence)))) == plain


@given(reports)
@settings(max_examples=examples(30), deadline=None)
def test_masking_is_idempotent(evidence: Evidence) -> None:
    once = anonymize_evidence(evidence)
    assert anonymize_evidence(once) == once


@given(WORDS, st.sampled_from(["sudo ", "$ ", "# ", "root@gpu1:~# ", "[root@gpu1 ~]# ", "$ sudo ", "  "]))
def test_prefix_of_a_command_does_not_change_its_kind(words: str, before: str) -> None:
    command = words.strip().lstrip("$# ")  # some already follow a prompt, and sudo does not precede a prompt
    if identify_source(command).words and not _SHELL_PROMPT.match(command):
        assert identify_source(before + command).kind == identify_source(command).kind


@given(st.text(max_size=200), st.text(max_size=200))
def test_any_source_and_text_is_identified(source: str, text: str) -> None:
    identify_source(source, text)
    split_items(pasted.collect_pieces([(source, text)]))


@given(SEEN)
@settings(max_examples=examples(30), deadline=None)
def test_follow_up_probes_are_well_formed_for_any_evidence(evidence: Evidence) -> None:
    assert all(probe.argv or probe.path or probe.glob for probe in follow_ups(evidence))
