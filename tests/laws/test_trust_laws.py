"""The law of hearsay: a pod's output proves nothing about the node that it runs on.

Anyone who can run a pod can write its log; doctor judges the node's own layers by the node's own evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

import pytest

from gpunode.diagnoses.views import evidence_origin
from gpunode.facts.evidence import Capture, Evidence, GlobMatch, Ownership, decode_matches, encode_matches
from gpunode.workflow.doctor import Examination, diagnose_evidence
from tests.fakes.examples import sample
from tests.scenarios.healthy.captures import evidence
from tests.scenarios.healthy.nodes import HEALTHY
from tests.scenarios.reports import Report, reports

# The number of pods on a node. Each prints one report, so a few nodes cover all reports.
PODS = 20
FORMS = ("as it is", "as a transcript", "as a runtime writes it")
BATCHES = range(-(-len(reports()) // PODS))


def log(report: Report, form: str) -> str:
    """Return the evidence of ``report`` as a container might print it."""
    prompt = "$ {source}\n{text}" if form == "as a transcript" else "{text}"
    text = "\n".join(prompt.format(**one) for one in report.evidence)
    stamp = "2026-11-16T06:12:43.123456789Z stdout F "
    return "".join(f"{stamp}{line}\n" for line in text.split("\n")) if form == FORMS[2] else text


def with_pods(node: Evidence, logs: Mapping[str, str]) -> Evidence:
    """Return ``node`` with a pod of each name that printed the text."""
    glob = node["pod-logs"]
    added = (
        GlobMatch(
            f"/var/log/pods/tenant_my-nvidia-{name}_6f1c1f3e-{at:04}/app/0.log",
            data=text.encode(errors="replace"),
            ownership=Ownership(0o640, 0, 0),
        )
        for at, (name, text) in enumerate(logs.items())
    )
    found = (*decode_matches(glob.data), *added)
    return {**node, "pod-logs": Capture(glob.source, "ok", encode_matches(iter(found)))}


@cache
def node(name: str) -> Evidence:
    return evidence(HEALTHY[name]())


def against_the_node(examined: Examination) -> Iterable[object]:
    """Return the findings that blame the node or are certain."""
    for one in examined.diagnosis.findings:
        if one.severity != "info" and (
            evidence_origin.is_shown_by_node(one.cause, one.layer) or one.confidence == "certain"
        ):
            yield one.cause, one.layer, one.confidence
        elif one.severity != "info":
            assert one.container_log, one
            assert one.summary.startswith(f"By {one.container_log}: ")


@pytest.mark.parametrize("at", sample(BATCHES, "hearsay", str, 4))
def test_pod_logs_prove_nothing_against_a_healthy_node(at: int) -> None:
    names = sorted(set(HEALTHY) - {"one-gpu-lent-to-a-guest"})
    chosen = reports()[at * PODS : (at + 1) * PODS]
    logs = {f"app-{number}": log(one, FORMS[at % len(FORMS)]) for number, one in enumerate(chosen)}
    assert list(against_the_node(diagnose_evidence(with_pods(node(names[at % len(names)]), logs)))) == []


@pytest.mark.long
@pytest.mark.parametrize("at", range(len(reports())), ids=lambda at: reports()[at].name)
def test_single_pod_log_proves_nothing_against_a_healthy_node(at: int) -> None:
    seen = with_pods(node("kubeadm-with-device-plugin"), {"app": log(reports()[at], FORMS[at % len(FORMS)])})
    assert list(against_the_node(diagnose_evidence(seen))) == []
