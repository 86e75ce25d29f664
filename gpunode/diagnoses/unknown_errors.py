"""Find GPU errors that no rule knows; a node with such an error must not be called healthy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.model import Citation, OpenQuestion
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import SourceKind

# Commands that people run because something fails. Service logs are full of errors unrelated to GPUs.
_USER_RUN_KINDS: Final[frozenset[SourceKind]] = frozenset(
    {
        *("container-run", "application", "nvidia-container-cli", "nvidia-ctk", "nvidia-smi", "nvidia-smi-mig"),
        *("modprobe", "dkms-output", "make-log", "package-output", "installer-log", "text"),
    }
)
_FAILURE_WORDS: Final = Pattern(
    r"(?i)(?:error|exception)\b|\b(?:failed|failure|fatal|cannot|could(?: not|n't)|unable to|not found|refused)\b"
)
_GPU_WORDS: Final = Pattern(r"(?i)nvidia|cuda|\bgpus?\b|nvml|\bcdi\b|device driver")
_MAX_CITATIONS: Final = 3


def find_unknown_error(snapshot: Snapshot) -> OpenQuestion | None:
    """Return the question that a failing GPU program or command raises; None if there is none."""
    lines = tuple(_error_lines(snapshot))[:_MAX_CITATIONS]
    if not lines:
        return None
    question = "what is the cause? no rule knows this error, and nothing else shows a fault"
    look_at = (
        Shell("sudo gpunode doctor  # on the node itself, which sees more"),
        Shell("nvidia-smi -q"),
        Shell("sudo dmesg | grep -i nvrm"),
    )
    return OpenQuestion(question, look_at, lines)


def _error_lines(snapshot: Snapshot) -> Iterator[Citation]:
    # Only pasted output counts: rules know every answer to gpunode's own queries, and a missing or forbidden tool did
    # not try anything.
    for item in (one for one in snapshot.items_of(*_USER_RUN_KINDS) if one.outcome == "ok" and one.exit_status is None):
        for number, line in enumerate(item.lines, 1):
            if _FAILURE_WORDS.search(line) and (_GPU_WORDS.search(line) or _GPU_WORDS.search(item.written)):
                yield cite(item, number)
