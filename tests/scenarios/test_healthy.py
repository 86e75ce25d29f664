"""Complete captures of healthy nodes: no fault, a working driver and no open question."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts.evidence import Evidence
from gpunode.host.capture import load_capture, save_capture
from gpunode.redaction.anonymize import anonymize_evidence
from gpunode.workflow.doctor import Examination, diagnose_evidence
from tests.fakes.examples import sample
from tests.scenarios.healthy.captures import evidence
from tests.scenarios.healthy.nodes import HEALTHY, without_a_gpu

# Worth mentioning but no fault: the GPU was passed through on purpose.
WORTH_A_WORD = {"one-gpu-lent-to-a-guest": ["vfio-bound"]}
# The most decisive probes: each is removed on some of the nodes.
_DECIDING = ("nvml", "dpkg-status", "kernel-journal", "units", "lspci-verbose", "modules", "smi", "smi-query")


def examination_words(examined: Examination) -> object:
    found = [(one.cause, one.severity, one.summary) for one in examined.diagnosis.findings]
    return examined.verdict, examined.driver_works, found, examined.diagnosis.open_questions, examined.denied


@pytest.fixture(params=sample(tuple(HEALTHY), "healthy", str, 14))
def node(request: pytest.FixtureRequest) -> tuple[str, Evidence]:
    name: str = request.param
    return name, evidence(HEALTHY[name]())


def test_healthy_node_has_no_finding_live_captured_or_masked(node: tuple[str, Evidence], tmp_path: Path) -> None:
    name, seen = node
    live = diagnose_evidence(seen)
    assert [one.cause for one in live.diagnosis.findings] == WORTH_A_WORD.get(name, []), live.diagnosis.findings
    assert {one.severity for one in live.diagnosis.findings} <= {"info"}
    assert (live.verdict, live.driver_works, live.diagnosis.open_questions, live.denied) == ("healthy", True, (), ())
    assert not live.diagnosis.suspects
    assert not [layer for layer in live.stack if layer.state in {"broken", "warning", "affected"}]
    save_capture(seen, tmp_path / "capture.tar.gz")
    assert examination_words(diagnose_evidence(load_capture(tmp_path / "capture.tar.gz"))) == examination_words(live)
    assert examination_words(diagnose_evidence(anonymize_evidence(seen))) == examination_words(live)


_LEFT = [(name, _DECIDING[at % len(_DECIDING)]) for at, name in enumerate(HEALTHY)]


@pytest.mark.parametrize(("name", "left"), sample(_LEFT, "one probe left", str, 14))
def test_missing_probe_on_a_healthy_node_is_no_fault(name: str, left: str) -> None:
    """A missing tool or an unreadable file is no fault of the node."""
    seen = evidence(HEALTHY[name]())
    diagnosis = diagnose(take_snapshot({key: capture for key, capture in seen.items() if key != left}))
    assert [one.cause for one in diagnosis.findings] == WORTH_A_WORD.get(name, []), diagnosis.findings


def test_machine_without_a_gpu_has_only_an_open_question() -> None:
    examined = diagnose_evidence(evidence(without_a_gpu()))
    assert examined.diagnosis.findings == ()
    assert ["should this machine have a GPU" in doubt.question for doubt in examined.diagnosis.open_questions] == [True]
    assert (examined.verdict, examined.driver_works) == ("unknown", False)
    assert next(layer.summary for layer in examined.stack if layer.id == "pci") == "no NVIDIA GPU"
