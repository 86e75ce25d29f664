"""What was built for which CUDA: torch and its like, images, toolkits; and for which GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from gpunode.catalog.cuda import Version, parts
from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, finds
from gpunode.diagnoses.views import pci
from gpunode.facts.patterns import Pattern

_RUNTIMES: Final = (
    Pattern(r"\bcuda ?>= ?(?P<cuda>\d{1,2}\.\d)\b"),
    Pattern(r"\bnvidia/cuda:(?P<cuda>\d{1,2}\.\d)"),
    Pattern(r"\bCuda compilation tools, release (?P<cuda>\d{1,2}\.\d)"),
    Pattern(r"\bCUDA_VERSION[=: ]+(?P<cuda>\d{1,2}\.\d)"),
    Pattern(r"CUDA Driver Version / Runtime Version\s+\d+\.\d+ / (?P<cuda>\d{1,2}\.\d)"),
    Pattern(r"(?:torch\.version\.cuda|CUDA used to build PyTorch)\D{0,12}(?P<cuda>\d{1,2}\.\d)"),
    Pattern(r"\+cu(?P<short>\d{2,3})\b"),
    Pattern(r"\bcudatoolkit[= ]+(?P<cuda>\d{1,2}\.\d)"),
)
_CAPABILITY: Final = Pattern(
    r"(?:CUDA capability (?:is |Major/Minor version number:\s*)?sm_"
    r"|[Cc]ompute [Cc]apability:?\s+(?:sm_)?|compute_cap\D{1,12}"
    r"|Major/Minor version number:\s*)(?P<cap>\d{1,2}\.?\d)"
)
_LISTED: Final = Pattern(r"\b(?P<cap>(?:sm|compute)_\d{2,3})[af]?\b")
_SUPPORTS: Final = Pattern(
    r"supports CUDA capabilities (?P<one>(?:(?:sm|compute)_\w+\b\s*)+)|get_arch_list\(\)\D{0,20}(?P<two>\[[^\]]*\])"
    r"|(?P<three>\[(?:'(?:sm|compute)_\w+'(?:, )?)+\])|arch_list\s*[:=]?\s*(?P<four>(?:(?:sm|compute)_\w+\b[ ,]*)+)"
)
# A program that goes on after the message says it again and again.
_MOST: Final = 64
_GGML: Final = Pattern(r"compatible with CUDA arch (?P<gpu>\d{3,4})\. .{0,40}compiled for: (?P<list>[\d,]+)")


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
        if item.kind in silent or not item.is_seen:
            continue
        for pattern in _RUNTIMES:
            for text, shift in ((item.text, True), (item.written, False)):
                if match := pattern.search(text):
                    found = match.groupdict()
                    version = found.get("cuda") or _long(found.get("short") or "")
                    number = item.number_at(match.start()) if shift else 1
                    yield Built(parts(version), cite(item, number))


def _long(short: str) -> str:
    """``cu118`` is CUDA 11.8, ``cu92`` 9.2."""
    return f"{short[:-1]}.{short[-1]}"


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
        if item.kind in {"kernel-log", "lspci", "packages"} or not item.is_seen:
            continue
        if not any(word in item.text for word in ("sm_", "compute_", "compiled for: ")):
            continue
        for match in islice(finds(item, _SUPPORTS), _MOST):
            listed = next(group for group in match.groups() if group)
            caps = frozenset(one["cap"] for one in _LISTED.finditer(listed))
            if caps:
                yield caps, cite(item, item.number_at(match.start()))
        for match in islice(finds(item, _GGML), _MOST):
            place = cite(item, item.number_at(match.start()))
            yield frozenset(f"compute_{int(one) // 10}" for one in match["list"].split(",") if one), place


def runs_on(capability: str, listed: frozenset[str]) -> bool:
    """Whether code for ``listed`` runs on a GPU of this compute capability.

    Machine code (``sm_86``) runs within its major version from its minor one on, what the driver translates
    (``compute_86``) on every newer GPU too.
    """
    if not capability:
        return True
    return any(_runs_on(int(capability), *one.split("_")) for one in listed)


def _runs_on(capability: int, sort: str, number: str) -> bool:
    is_newer = int(number) <= capability
    return is_newer and (sort == "compute" or int(number) // 10 == capability // 10)
