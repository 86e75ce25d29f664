"""What was built for which CUDA: torch and its like, images, toolkits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from gpunode.catalog.cuda import Version, parts
from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, finds
from gpunode.facts.patterns import Pattern

_RUNTIMES: Final = Pattern(
    r"\b(?:cuda ?>= ?|nvidia/cuda:|Cuda compilation tools, release |CUDA_VERSION[=: ]+|Runtime Version\s+\d+\.\d+ / "
    r"|(?:torch\.version\.cuda|CUDA used to build PyTorch)\D{0,12}|cudatoolkit[= ]+)(?P<cuda>\d{1,2}\.\d)"
    r"|\+cu(?P<short>\d{2,3})\b"
)
# A program that goes on after the message says it again and again.
_MOST: Final = 64


@dataclass(frozen=True, slots=True)
class Built:
    """The CUDA that something was built with."""

    cuda: Version
    citation: Citation


def runtimes(snapshot: Snapshot) -> tuple[Built, ...]:
    """The CUDA versions that images and programs bring."""
    return tuple(_runtimes(snapshot))


def _runtimes(snapshot: Snapshot) -> Iterator[Built]:
    silent = {"kernel-log", "lspci", "nvidia-smi", "nvidia-smi-q", "packages"}
    for item in snapshot.items:
        if item.kind not in silent and item.is_seen:
            for match in islice(finds(item, _RUNTIMES), _MOST):
                yield Built(_version(match), cite(item, item.number_at(match.start())))
            if asked := _RUNTIMES.search(item.written):
                yield Built(_version(asked), cite(item, 1))


def _version(match: re.Match[str]) -> Version:
    """``cu118`` is CUDA 11.8, ``cu92`` 9.2."""
    short = match["short"] or ""
    return parts(match["cuda"] or f"{short[:-1]}.{short[-1]}")
