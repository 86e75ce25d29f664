"""Find GPU errors that no rule knows; a node with such an error must not be called healthy."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from gpunode.diagnoses import prose
from gpunode.diagnoses.commands import EXAMINE_NODE_COMMAND, Shell
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
    r"(?i)(?:error|exception)\b|^panic: "
    r"|\b(?:failed|failure|fatal|cannot|could(?: not|n't)|unable to|not found|refused)\b"
)
_GPU_WORDS: Final = Pattern(r"(?i)nvidia|cuda|\bgpus?\b|nvml|\bmig(?:Enabled|\b)|\bcdi\b|device driver")
# How people say that something of a node fails; see ``prose.tells`` for what they do not mean.
_TOLD_FAILURE_WORDS: Final = Pattern(
    r"(?i)\bxid\b|\b(?:falls?|fell|fallen) off\b|\bdrops? (?:off|out)\b|\b(?:is|are|was|were|has|have) gone\b"
    r"|\bstop(?:ped|s) working\b|\b(?:los(?:es?|t)|crash\w*|hang(?:s|ing)?|hung|fr(?:eezes|oze)|fail(?:s|ed|ures?|ing)?"
    r"|die[sd]|dead|br(?:oken?|eaks)|vanish\w*|disappear\w*|stuck|unresponsive|panics?|time[sd]? ?out|segfaults?"
    r"|lockups?|artifacts|throttl(?:es|ed|ing)|reboots|powers off|only \d+ of (?:the )?\d+"
    r"|(?:reports|shows|sees|has) (?:0|no) gpus?)\b"
    r"|\bno longer (?:works?|starts?|loads?|detect\w*|recogni\w*|visible)\b"
    r"|(?:\bnot|n['’]t) (?:work(?:ing)?|start|load|detect\w*|recogni\w*|visible|usable)\b"
)
_MAX_CITATIONS: Final = 3


def find_unknown_error(snapshot: Snapshot) -> OpenQuestion | None:
    """Return the question that a failing GPU program or command raises; None if there is none."""
    lines = tuple(_error_lines(snapshot))[:_MAX_CITATIONS]
    if not lines:
        return None
    question = "what is the cause? no rule knows this error, and nothing else shows a fault"
    look_at = (
        EXAMINE_NODE_COMMAND,
        Shell("nvidia-smi -q"),
        Shell("sudo dmesg | grep -i nvrm"),
    )
    return OpenQuestion(question, look_at, lines)


def find_error_beside_fault(snapshot: Snapshot, known_lines: Collection[Citation]) -> OpenQuestion | None:
    """Return the question that the output of a failing command raises if no rule reads any line of it.

    Args:
        snapshot: a report with a fault.
        known_lines: the lines that rules read.
    """
    known_items = {(line.key, line.source) for line in known_lines}
    unread = (line for line in _error_lines(snapshot) if (line.key, line.source) not in known_items)
    lines = prose.without_prose(snapshot, unread)[:_MAX_CITATIONS]
    if not lines:
        return None
    question = "is this another fault? no rule knows this error, and what was found does not explain it"
    return OpenQuestion(question, (EXAMINE_NODE_COMMAND,), lines)


def find_described_failure(snapshot: Snapshot) -> OpenQuestion | None:
    """Return the question that the author's own words raise if a pasted report shows nothing but a working driver."""
    told = (
        cite(item, number)
        for item in snapshot.items_of("text")
        if _TOLD_FAILURE_WORDS.may_match(item.lowered)
        for number, line in enumerate(item.lines, 1)
        if prose.tells(line, _TOLD_FAILURE_WORDS)
    )
    lines = tuple(line for line in told if not prose.is_program_output(snapshot, line))[:_MAX_CITATIONS]
    if lines:
        question = "what shows this failure? the text tells of it, but all that is shown works"
        return OpenQuestion(question, (EXAMINE_NODE_COMMAND,), lines)
    if any(prose.is_in_other_language(line) for item in snapshot.items_of("text") for line in item.lines):
        question = "what does the text tell? gpunode reads English, and part of it is in another language"
        return OpenQuestion(question, (EXAMINE_NODE_COMMAND,))
    return None


def _error_lines(snapshot: Snapshot) -> Iterator[Citation]:
    # Only pasted output counts: rules know every answer to gpunode's own queries, and a missing or forbidden tool did
    # not try anything.
    for item in (one for one in snapshot.items_of(*_USER_RUN_KINDS) if one.outcome == "ok" and one.exit_status is None):
        for number, line in enumerate(item.lines, 1):
            if _FAILURE_WORDS.search(line) and (_GPU_WORDS.search(line) or _GPU_WORDS.search(item.written)):
                yield cite(item, number)
