from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gpunode import __version__
from gpunode.cli.monitoring import render_metrics
from gpunode.diagnoses.model import Diagnosis, Finding, OpenQuestion, Suspect
from gpunode.facts import pasted
from gpunode.workflow.doctor import Examination, diagnose_evidence
from tests.unit.workflow.test_fleet import NOUVEAU

SICK = diagnose_evidence(pasted.collect_pieces([(one["source"], one["text"]) for one in NOUVEAU]))


def samples(examined: Examination) -> list[tuple[str, dict[str, str], float]]:
    """Return the samples that Prometheus' own client reads; every family has a help and a type."""
    families = list(text_string_to_metric_families(render_metrics(examined, 1795292596.1314, 3.8)))
    assert all(family.documentation and family.type == "gauge" for family in families)
    return [(one.name, one.labels, one.value) for family in families for one in family.samples]


def metric_values(examined: Examination) -> dict[str, float]:
    return {name: value for name, labels, value in samples(examined) if not labels}


def test_metrics_show_findings_and_version() -> None:
    assert metric_values(SICK) == {
        "gpunode_doctor_healthy": 0,
        "gpunode_doctor_open_questions": len(SICK.diagnosis.open_questions),
        "gpunode_doctor_run_timestamp_seconds": 1795292596.131,
        "gpunode_doctor_run_duration_seconds": 3.8,
    }
    found = [labels for name, labels, value in samples(SICK) if name == "gpunode_doctor_finding" and value == 1]
    assert {"cause": "nouveau-bound", "layer": "kernel", "severity": "error", "root_cause": "true"} in found
    assert ("gpunode_doctor_info", {"version": __version__}, 1.0) in samples(SICK)


def test_failure_without_an_explanation_is_a_metric_of_its_own() -> None:
    assert not [name for name, *_ in samples(SICK) if name == "gpunode_doctor_unexplained"]
    left = replace(SICK.diagnosis, unexplained=(Suspect("toolkit-not-installed", "no toolkit", (), ()),))
    found = samples(replace(SICK, diagnosis=left))
    assert ("gpunode_doctor_unexplained", {"cause": "toolkit-not-installed"}, 1.0) in found


def test_healthy_metric_is_1_only_for_a_healthy_node() -> None:
    nothing = Diagnosis((), ())
    healthy = replace(SICK, diagnosis=nothing, driver_works=True)
    assert metric_values(healthy)["gpunode_doctor_healthy"] == 1
    assert not [name for name, _, _ in samples(healthy) if name == "gpunode_doctor_finding"]
    for examined in (
        replace(SICK, diagnosis=nothing, driver_works=False),
        replace(SICK, diagnosis=Diagnosis((), (OpenQuestion("q", ()),)), driver_works=True),
    ):
        assert metric_values(examined)["gpunode_doctor_healthy"] == 0


def test_consequence_is_not_labelled_as_root() -> None:
    (first, *_) = SICK.diagnosis.findings
    below = replace(first, cause="x", explained_by=first.cause)
    found = samples(replace(SICK, diagnosis=Diagnosis((first, below), ())))
    assert [labels["root_cause"] for name, labels, _ in found if name == "gpunode_doctor_finding"] == ["true", "false"]


@given(st.text(max_size=40))
def test_label_values_are_escaped(cause: str) -> None:
    # One line is one sample; of Python's line ends, only \n ends one.
    finding: Finding = replace(SICK.diagnosis.findings[0], cause=cause)
    text = render_metrics(replace(SICK, diagnosis=Diagnosis((finding,), ())), 0.0, 0.0)
    line = next(line for line in text.split("\n") if line.startswith("gpunode_doctor_finding{"))
    (family,) = text_string_to_metric_families(line)
    assert family.samples[0].labels["cause"] == cause


def test_metrics_end_with_a_newline_and_declare_each_family_once() -> None:
    text = render_metrics(SICK, 0.0, 0.0)
    assert text.endswith("\n")
    heads = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads))
    assert not math.isnan(metric_values(SICK)["gpunode_doctor_open_questions"])
    assert pytest.approx(0.0) == metric_values(SICK)["gpunode_doctor_healthy"]
