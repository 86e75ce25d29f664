"""Complaints about GPUs that no rule knows: while one stands in the evidence, nobody may call the node healthy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.model import Citation, OpenQuestion
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import Kind

# What somebody ran because it does not work. Logs of services are full of errors that have nothing to do with GPUs.
_RUN: Final[frozenset[Kind]] = frozenset(
    {
        *("container-run", "application", "nvidia-container-cli", "nvidia-ctk", "nvidia-smi", "nvidia-smi-mig"),
        *("modprobe", "dkms-output", "make-log", "package-output", "installer-log", "text"),
    }
)
_FAILS: Final = Pattern(
    r"(?:error|exception)\b|\b(?:failed|failure|fatal|cannot|could(?: not|n't)|unable to|not found|refused)\b",
    re.IGNORECASE,
)
_OF_GPUS: Final = Pattern(r"nvidia|cuda|\bgpus?\b|nvml|\bcdi\b|device driver", re.IGNORECASE)
_CITED: Final = 3


def unexplained(snapshot: Snapshot) -> OpenQuestion | None:
    """What a program or command says about GPUs when it fails; None where none does."""
    lines = tuple(_lines(snapshot))[:_CITED]
    if not lines:
        return None
    question = "what makes it fail? no rule knows this complaint, and nothing else shows a fault"
    look_at = (
        Shell("sudo gpunode doctor  # on the node itself, which sees more"),
        Shell("nvidia-smi -q"),
        Shell("sudo dmesg | grep -i nvrm"),
    )
    return OpenQuestion(question, look_at, lines)


def _lines(snapshot: Snapshot) -> Iterator[Citation]:
    # What a person ran and pasted: of what gpunode asked itself, rules know every answer, and a tool that is not
    # installed, or may not look, has not tried anything.
    for item in (one for one in snapshot.of(*_RUN) if one.outcome == "ok" and one.exit_status is None):
        for number, line in enumerate(item.lines, 1):
            if _FAILS.search(line) and (_OF_GPUS.search(line) or _OF_GPUS.search(item.written)):
                yield cite(item, number)
