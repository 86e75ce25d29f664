"""What a GPU, or Kubernetes, is asked for twice: whether the later reading stands for the earlier.

A register that said ``Pending: Yes`` and says ``No`` after the reset is history. What the later reading does not have
any more is not: a GPU that is missing there was seen before, and where it went is a question. Nor are errors of a link
that were counted until a reset, which begins the count anew.
"""

from __future__ import annotations

import re
from typing import Final

from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import Kind, Source

_OF_GPUS: Final[frozenset[Kind]] = frozenset(
    {"nvidia-smi", "nvidia-smi-q", "nvidia-smi-nvlink", "nvidia-smi-topo", "nvidia-smi-mig", "nvidia-smi-c2c"}
)
_OF_CLUSTER: Final[frozenset[Kind]] = frozenset({"kubernetes-node", "kubernetes-pod", "kubernetes"})


def stands_for(seen: Source, earlier: str, later: str) -> bool:
    """Whether the later answer of the same question has all that the earlier one had, with the values of now."""
    if _NO_ANSWER.search(later) or not later.strip():
        return False
    if any(_COUNTED.search(word) for word in seen.words[1:]):
        return False
    if seen.kind in _OF_GPUS:
        return not _NO_ANSWER.search(earlier) and _has_all_gpus(earlier, later)
    return seen.kind in _OF_CLUSTER and _is_state(seen) and _tells_as_much(earlier, later)


_COUNTED: Final = Pattern(r"^-e$|^--error-?counters|^-ec$|replay", re.IGNORECASE)
# The tool's own refusals: among the values, "Errors" and "Unknown Error" are words like others.
_NO_ANSWER: Final = Pattern(
    r"^(?:error\b|Error from server|The connection to|Unable to|No (?:devices|resources|GPUs?)\b|Failed to"
    r"|NVIDIA-SMI has failed|[^\n]{0,60}command not found|Insufficient Permissions)",
    re.MULTILINE,
)


def _has_all_gpus(earlier: str, later: str) -> bool:
    """Whether each GPU of the earlier answer is in the later; of such without a name, as many lines."""
    if gpus := _gpus(earlier):
        return gpus <= _gpus(later) and _attached(earlier) <= _attached(later)
    return _attached(earlier) <= _attached(later) and _lines(earlier) <= _lines(later)


def _gpus(said: str) -> set[str]:
    return {match[0].lower() for match in _ADDRESS.finditer(said)} | set(_IDENTIFIER.findall(said))


_ADDRESS: Final = Pattern(r"\b[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]\b")
_IDENTIFIER: Final = Pattern(r"\bGPU-[0-9a-f]{8}-[0-9a-f-]{27}\b")


def _attached(said: str) -> int:
    match = _ATTACHED.search(said)
    return int(match["count"]) if match else 0


_ATTACHED: Final = Pattern(r"Attached GPUs\s{0,60}: (?P<count>\d{1,4})\b")


def _lines(said: str) -> int:
    return sum(bool(line.strip()) for line in said.split("\n"))


def _is_state(seen: Source) -> bool:
    """Whether it is how an object is, and not what happened, or what was done."""
    words = set(seen.words)
    return bool({"get", "describe"} & words) and not {"events", "event", "ev"} & words


def _tells_as_much(earlier: str, later: str) -> bool:
    """Whether the node still has such resources, however many; an answer that shows none must have as many lines."""
    return bool(_resources(later)) if _resources(earlier) else _lines(earlier) <= _lines(later)


def has_fewer(seen: Source, earlier: str, later: str) -> bool:
    """Whether a node has less of a resource now: that holds, whatever was done, and how it was before hides it."""
    before, after = _resources(earlier), _resources(later)
    is_less = len(before) == len(after) and any(new < old for old, new in zip(before, after, strict=True))
    return seen.kind == "kubernetes-node" and is_less


def _resources(said: str) -> list[int]:
    return [int(match["count"]) for match in _RESOURCE.finditer(said)]


# Capacity and Allocatable have a colon; what is requested of them has none, and may be given back.
_RESOURCE: Final = Pattern(r"\bnvidia\.com/[\w.-]{1,40}\"?:\s{1,40}\"?(?P<count>\d{1,5})\b")
