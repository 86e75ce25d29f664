"""What was built for which CUDA: torch and its like, images, toolkits; and for which GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from gpunode.catalog.cuda import Version, parts
from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, finds
from gpunode.diagnoses.views import pci
from gpunode.facts.patterns import Pattern

_RUNTIMES: Final = Pattern(
    r"\b(?:cuda ?>= ?|nvidia/cuda:|Cuda compilation tools, release |CUDA_VERSION[=: ]+|Runtime Version\s+\d+\.\d+ / "
    r"|(?:torch\.version\.cuda|CUDA used to build PyTorch)\D{0,12}|cudatoolkit[= ]+)(?P<cuda>\d{1,2}\.\d)"
    r"|\+cu(?P<short>\d{2,3})\b"
)
_CAPABILITY: Final = Pattern(
    r"(?:CUDA capability (?:is |Major/Minor version number:\s*)?sm_"
    r"|[Cc]ompute [Cc]apability:?\s+(?:sm_)?|compute_cap\D{1,12}"
    r"|Major/Minor version number:\s*)(?P<cap>\d{1,2}\.?\d)"
)
_LISTED: Final = Pattern(r"\b(?P<cap>(?:sm|compute)_\d{2,3})[af]?\b")
_LISTS: Final = Pattern(r"(?:supports CUDA capabilities|arch_list|\[(?=')|compiled for: (?P<bare>[\d,]+))[^\n]*")
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


def of_devices(snapshot: Snapshot) -> tuple[tuple[str, Citation], ...]:
    """The compute capability of the GPUs on the bus, as digits (``120``)."""
    found = ((gpu.model, gpu.citation) for gpu in snapshot.view(pci.gpus))
    return tuple((model.compute_capability.replace(".", ""), place) for model, place in found if model is not None)


def capabilities(snapshot: Snapshot) -> tuple[tuple[str, Citation], ...]:
    """The compute capability of the GPUs, by their ids, else by what programs say; these may speak of another's too."""
    return of_devices(snapshot) or tuple(_said(snapshot))


def _said(snapshot: Snapshot) -> Iterator[tuple[str, Citation]]:
    for item in snapshot.items:
        if item.kind not in {"kernel-log", "lspci"} and item.is_seen:
            for match in islice(finds(item, _CAPABILITY), _MOST):
                place = cite(item, item.number_at(match.start()))
                yield match["cap"].replace(".", ""), place


def built_for(snapshot: Snapshot) -> tuple[tuple[frozenset[str], Citation], ...]:
    """The architectures that a program has code for, each list with its line."""
    return tuple(_built_for(snapshot))


def _built_for(snapshot: Snapshot) -> Iterator[tuple[frozenset[str], Citation]]:
    for item in snapshot.items:
        if item.kind not in {"kernel-log", "lspci", "packages"} and item.is_seen:
            for match in islice(finds(item, _LISTS), _MOST):
                bare = (f"compute_{int(one) // 10}" for one in (match["bare"] or "").split(",") if one)
                if caps := frozenset((*(one["cap"] for one in _LISTED.finditer(match[0])), *bare)):
                    yield caps, cite(item, item.number_at(match.start()))


def runs_on(capability: str, listed: frozenset[str]) -> bool:
    """Whether code for ``listed`` runs on a GPU of this compute capability.

    Machine code (``sm_86``) runs within its major version from its minor one on, what the driver translates
    (``compute_86``) on every newer GPU too.
    """
    cap = int(capability or 0)
    pairs = ((sort, int(number)) for sort, number in (one.split("_") for one in listed))
    return not cap or any(own <= cap and (sort == "compute" or own // 10 == cap // 10) for sort, own in pairs)
