"""What was typed at one shell, one after another: of the same command the later answer holds.

People paste the fault, what they did about it, and that it works now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import Kind, Source, recognise


@dataclass(frozen=True)
class Step:
    """One command of a session.

    Attributes:
        source: the command, as a piece of evidence is named.
        said: what it answered.
        prompt: that it was typed at; None where it was pasted for itself.
    """

    source: str
    said: str
    prompt: str | None = None

    @cached_property
    def seen(self) -> Source:
        """What it is."""
        return recognise(self.source)


# The shell, by its user and host where the prompt shows them, and the words.
_Question: TypeAlias = tuple[str, ...]
# A log has its later lines beside the earlier ones, and a program that failed once may fail again.
_LASTING: Final[frozenset[Kind]] = frozenset(
    {"kernel-log", "journal", "unit-log", "kubernetes-log", "audit", "make-log", "application", "text"}
)
_REFUSED: Final = Pattern(r"[Pp]ermission denied|not permitted|command not found|[Aa]ccess denied|must be root")
# At the same prompt another machine, or a container, may answer from here on.
_ELSEWHERE: Final = Pattern(r"(?:sudo )?(?:ssh|docker|podman|kubectl|nerdctl|oc|chroot|su|exit|logout)\b")
_SHELL: Final = Pattern(r"[\w.+-]{1,40}[@㉿][\w.-]{1,80}")


def settled(steps: Sequence[Step]) -> list[Step]:
    """The steps without those whose command was typed again later at the same shell, and answered."""
    answered = set[_Question]()
    kept = list[Step]()
    for step in reversed(steps):
        if _ELSEWHERE.match(step.source):
            answered.clear()
        question = _question(step)
        if question is None or question not in answered:
            kept.append(step)
        if question is not None and not _REFUSED.search(step.said):
            answered.add(question)
    return kept[::-1]


def _question(step: Step) -> _Question | None:
    if step.prompt is None or step.seen.kind in _LASTING:
        return None
    shell = _SHELL.search(step.prompt)
    return (shell[0] if shell else step.prompt, *step.source.removeprefix("sudo ").split())
