"""A node without error messages is healthy; an error that no rule knows is reported, and is not healthy."""

from __future__ import annotations

import pytest

from gpunode.facts import pasted
from gpunode.workflow.doctor import diagnose_evidence

WORKS = ("nvidia-smi -L", "GPU 0: NVIDIA RTX A4000 (UUID: GPU-1)")


def test_listed_gpu_without_errors_is_healthy() -> None:
    assert diagnose_evidence(pasted.collect_pieces([WORKS])).verdict == "healthy"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("python3 train.py", "RuntimeError: CUDA oddity 4711: the moon is full"),
        ("docker run --gpus all x", "docker: Error response from daemon: nvidia-thing failed in a new way"),
        ("nvidia-ctk cdi generate", "ERRO[0000] failed to do what nobody has seen before"),
    ],
)
def test_unknown_error_is_cited_and_prevents_healthy(source: str, text: str) -> None:
    found = diagnose_evidence(pasted.collect_pieces([WORKS, (source, text)]))
    assert found.verdict == "unknown"
    assert not found.diagnosis.findings
    asked = [citation for doubt in found.diagnosis.open_questions for citation in doubt.citations]
    suspected = [citation for suspect in found.diagnosis.suspects for citation in suspect.citations]
    assert {citation.line for citation in (*asked, *suspected)} == {text}


def test_service_error_unrelated_to_gpus_is_healthy() -> None:
    log = ("journalctl -u docker", "dockerd: error: could not reach the mirror")
    assert diagnose_evidence(pasted.collect_pieces([WORKS, log])).verdict == "healthy"


@pytest.mark.parametrize(
    "told",
    [
        "Our GPU 3 falls off the bus with Xid 79 twice a day, what can we do?",
        "Training crashes after an hour on this node.",
        "Since the update the GPU is gone after suspend.",
        "GPUs are not visible in pods.",
        "It doesn't work any more.",
        "Only 4 of 8 GPUs come up.",
    ],
)
def test_failure_told_beside_a_working_driver_is_asked_about(told: str) -> None:
    found = diagnose_evidence(pasted.parse_text_report(f"{told}\n\n$ {WORKS[0]}\n{WORKS[1]}\n"))
    assert found.verdict == "unknown"
    assert not found.diagnosis.findings
    (doubt,) = found.diagnosis.open_questions
    assert [citation.line for citation in doubt.citations] == [told]


@pytest.mark.parametrize(
    "told",
    [
        "Does Xid 79 mean that the GPU falls off the bus?",
        "No job crashes here, and no GPU was ever lost.",
        "A colleague says that his GPU is gone after suspend.",
        "Months ago jobs died on this node.",
        "Frozen requirements: the gone days of CUDA 8 are over.",
    ],
)
def test_failure_asked_denied_or_long_ago_is_no_complaint(told: str) -> None:
    found = diagnose_evidence(pasted.parse_text_report(f"{told}\n\n$ {WORKS[0]}\n{WORKS[1]}\n"))
    assert found.verdict == "healthy"
