"""View CUDA's versions: supported by the driver, requested, and messages about a mismatch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

from gpunode.catalog.cuda import CudaRelease, Version, find, parts, supported_by
from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, find_all
from gpunode.diagnoses.views import driver
from gpunode.facts.patterns import Pattern

# What a program says of the driver that it found.
TOO_OLD: Final = Pattern(r"NVIDIA driver on your system is too old \(found version (?P<found>\d{1,18})\)")
# What NVIDIA's images say when they start.
BANNER: Final = Pattern(
    r"built for NVIDIA Driver Release (?P<needs>[\d.]+) or later, but[\s\n]+version (?P<has>[\d.]+) was detected"
    r"(?:\s+and compatibility mode is (?P<mode>\w+))?"
)
# CUDA's error 35: the driver is older than the program's CUDA, or there is none.
INSUFFICIENT: Final = Pattern(
    r"CUDA driver version is insufficient for CUDA runtime version|cudaErrorInsufficientDriver"
    r"|cudart failed to initialize: 35"
    r"|driver is too old|CUDA driver version too old|driver too old"
)
# Errors 36 and 222: there is a driver, and it is older than what the program asks of it.
NEWER_CALL: Final = Pattern(
    r"API call is not supported in the installed CUDA driver|cudaErrorCallRequiresNewerDriver"
    r"|PTX was compiled with an unsupported toolchain|(?:CUDA_ERROR|cudaError)_?UnsupportedPtxVersion"
    r"|CUDA_ERROR_UNSUPPORTED_PTX_VERSION"
)
_RUNTIMES: Final = Pattern(
    r"\b(?:cuda ?>= ?|nvidia/cuda:|Cuda compilation tools, release |CUDA_VERSION[=: ]+|Runtime Version\s+\d+\.\d+ / "
    r"|(?:torch\.version\.cuda|CUDA used to build PyTorch)\D{0,12}|cudatoolkit[= ]+)(?P<cuda>\d{1,2}\.\d)"
    r"|\+cu(?P<short>\d{2,3})\b"
)
# A program that goes on after the message says it again and again.
_MOST: Final = 64
# Error 804: the compatibility libraries are for other GPUs.
NOT_ON_THIS_GPU: Final = Pattern(
    r"[Ee]rror:? 804\b|\(804 vs\. 0\)|returned 804|forward compatibility was attempted on non supported HW"
    r"|cudaErrorCompatNotSupportedOnDevice|CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"
)


def supported_cuda(snapshot: Snapshot) -> Version | None:
    """Return the newest CUDA that the node's driver supports."""
    if shown := driver.cuda_version(snapshot):
        return parts(shown.version)
    version = driver.loaded_version(snapshot)
    return supported_by(version.version) if version else None


def reported_driver(snapshot: Snapshot) -> str:
    """Return the node's driver as a program says it, or the first one with the CUDA that it found; else empty."""
    if banner := snapshot.match(BANNER):
        return banner["has"]
    found = snapshot.match(TOO_OLD)
    number = int(found["found"]) if found else 0
    known = find((number // 1000, number % 1000 // 10)) if number else None
    return known.driver if known and driver.loaded_version(snapshot) is None else ""


def cuda_runtimes(snapshot: Snapshot) -> tuple[tuple[Version, Citation], ...]:
    """Return the CUDA versions that images and programs bring, with their lines."""
    return tuple(_find_runtimes(snapshot))


def _find_runtimes(snapshot: Snapshot) -> Iterator[tuple[Version, Citation]]:
    silent = {"kernel-log", "lspci", "nvidia-smi", "nvidia-smi-q", "packages"}
    for item in snapshot.items:
        if item.kind not in silent and item.is_seen:
            for match in islice(find_all(item, _RUNTIMES), _MOST):
                yield _parse_version(match), cite(item, item.number_at(match.start()))
            if asked := _RUNTIMES.search(item.written):
                yield _parse_version(asked), cite(item, 1)


def _parse_version(match: re.Match[str]) -> Version:
    """Return the version: ``cu118`` is CUDA 11.8, ``cu92`` 9.2."""
    short = match["short"] or ""
    return parts(match["cuda"] or f"{short[:-1]}.{short[-1]}")


def starts_on(snapshot: Snapshot, wanted: Version, has: Version) -> bool:
    """Return whether a program of that CUDA starts on the driver: from 11.0 on, the same major version is enough."""
    if wanted <= has:
        return True
    release, version = find(wanted), driver.loaded_version(snapshot)
    same_major = wanted[0] == has[0] and wanted[0] >= 11
    if release is None or version is None or snapshot.contains(NEWER_CALL):
        return same_major and not snapshot.contains(NEWER_CALL)
    return same_major and parts(version.version)[0] >= release.min_branch


_NUMBER: Final = Pattern(r"cuda ?>= ?(?P<cuda>\d+\.\d+)|image (?P<image>\d+\.\d+)")


def requested_release(snapshot: Snapshot) -> CudaRelease | None:
    """Return the CUDA that an image asks for, else the newest that something was built with; None if unknown."""
    if match := snapshot.match(_NUMBER):
        return find(parts(match["cuda"] or match["image"]))
    versions = [version for version, _ in snapshot.view(cuda_runtimes)]
    return find(max(versions)) if versions else None


def format_version(version: Version) -> str:
    """Return ``(12, 4)`` as ``12.4``."""
    return ".".join(map(str, version))
