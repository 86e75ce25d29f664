"""GPU sharing: whether a time-slicing configuration is applied, and the remedy if it is not."""

from __future__ import annotations

import json

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted
from gpunode.workflow.doctor import diagnose_evidence

LOG = "kubectl logs -n kube-system nvidia-device-plugin-daemonset-x"


def diagnose_pieces(*pieces: tuple[str, str]) -> Diagnosis:
    rows = [{"source": source, "text": text} for source, text in pieces]
    return diagnose(take_snapshot(pasted.parse_json_report(json.dumps(rows), "a report")))


def roots(*pieces: tuple[str, str]) -> list[str]:
    return [finding.cause for finding in diagnose_pieces(*pieces).roots]


CONFIG = (
    "cat time-slicing.yaml",
    (
        "kind: ConfigMap\ndata:\n  any: |-\n    version: v1\n    sharing:\n      timeSlicing:\n        resources:\n"
        "        - name: nvidia.com/gpu\n          replicas: 4"
    ),
)


@pytest.mark.parametrize(
    ("shown", "is_applied"),
    [
        (("kubectl describe node", "Capacity:\n  nvidia.com/gpu: 1\nAllocatable:\n  nvidia.com/gpu: 1"), False),
        ((LOG, 'Running with config:\n"sharing": {\n    "timeSlicing": {}\n  }'), False),
        (("kubectl describe node", "Capacity:\n  nvidia.com/gpu: 4\nAllocatable:\n  nvidia.com/gpu: 4"), True),
        (("kubectl describe node", "Capacity:\n  nvidia.com/gpu: 8\nAllocatable:\n  nvidia.com/gpu: 8"), True),
    ],
)
def test_time_slicing_config_is_applied_or_not(shown: tuple[str, str], *, is_applied: bool) -> None:
    assert roots(CONFIG, shown) == ([] if is_applied else ["time-slicing-config-not-applied"])


def test_plugin_without_requested_sharing_is_healthy() -> None:
    assert not diagnose_pieces((LOG, 'Running with config:\n"sharing": {\n    "timeSlicing": {}\n  }')).findings


def test_time_slicing_remedy_depends_on_the_plugin_deployment() -> None:
    static = ("shell", "kubectl apply -f https://example.org/v0.16.1/deployments/static/nvidia-device-plugin.yml")
    empty = (LOG, '"sharing": {\n    "timeSlicing": {}\n  }')
    (finding,) = diagnose_pieces(CONFIG, empty, static).roots
    assert finding.remedy[0].kind == "remove"
    (finding,) = diagnose_pieces(CONFIG, empty).roots
    assert finding.remedy[0].kind == "configure"


REJECTED = "panic: At least one device with migEnabled=true was not configured correctly: "


@pytest.mark.parametrize(
    ("reason", "causes"),
    [
        ("error visiting device: device 0 has an invalid MIG configuration", ["mig-enabled-no-instances"]),
        ("No MIG devices found", ["mig-enabled-no-instances"]),
        ("More than one MIG device type present on node", ["mig-strategy-single-mixed-layout"]),
        ("Insufficient Permissions", ["mig-capabilities-permission"]),
        ("Some reason that nobody has seen", []),
    ],
)
def test_reason_behind_the_plugin_rejection_decides(reason: str, causes: list[str]) -> None:
    found = diagnose_pieces((LOG, REJECTED + reason))
    assert [finding.cause for finding in found.roots] == causes
    assert not {one.cause for one in found.suspects} & {"dpkg-unconfigured-packages", "runfile-leftover"}
    if "More" in reason:
        assert "mig-enabled-no-instances" not in [one.cause for one in found.suspects]


def test_rejection_that_no_rule_explains_is_an_open_question() -> None:
    shown = "panic: Unsupported MIG device found: nvidia.com/mig-9g.99gb"
    examined = diagnose_evidence(pasted.parse_text_report(shown))
    (question,) = examined.diagnosis.open_questions
    assert [line.line for line in question.citations] == [shown]
