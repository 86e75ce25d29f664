"""View CUDA: the versions that the driver supports and programs require, and the libcuda that programs load."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final, Literal, TypeAlias

from gpunode.catalog.cuda import CudaRelease, Version, find, newest_supported_by_driver, parse_version
from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, find_all
from gpunode.diagnoses.views import driver
from gpunode.diagnoses.word_index import LineIndex
from gpunode.facts.items import EvidenceItem
from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import SourcePlace
from gpunode.fast_dataclass import dataclass

# A program's message about the driver that it found.
DRIVER_TOO_OLD: Final = Pattern(r"NVIDIA driver on your system is too old \(found version (?P<found>\d{1,18})\)")
# The start-up message of NVIDIA's images.
IMAGE_NEEDS_NEWER_DRIVER_MESSAGE: Final = Pattern(
    r"built for NVIDIA Driver Release (?P<needs>[\d.]+) or later, but[\s\n]+version (?P<has>[\d.]+) was detected"
    r"(?:\s+and compatibility mode is (?P<mode>\w+))?"
)
# CUDA's error 35: the driver is older than the program's CUDA, or there is no driver.
DRIVER_INSUFFICIENT_MESSAGE: Final = Pattern(
    r"CUDA driver version is insufficient for CUDA runtime version|cudaErrorInsufficientDriver"
    r"|cudart failed to initialize: 35"
    r"|driver is too old|CUDA driver version too old|driver too old"
)
# Errors 36 and 222: the driver is older than the program requires.
CALL_NEEDS_NEWER_DRIVER: Final = Pattern(
    r"API call is not supported in the installed CUDA driver|cudaErrorCallRequiresNewerDriver"
    r"|PTX was compiled with an unsupported toolchain|(?:CUDA_ERROR|cudaError)_?UnsupportedPtxVersion"
    r"|CUDA_ERROR_UNSUPPORTED_PTX_VERSION"
)
_CUDA_RUNTIME_VERSION: Final = Pattern(
    r"\b(?:cuda ?>= ?|nvidia/cuda:|Cuda compilation tools, release |CUDA_VERSION[=: ]+|Runtime Version[ \t]+\d+\.\d+ / "
    r"|(?:torch\.version\.cuda|CUDA used to build PyTorch)[^\d\n]{0,12}|cudatoolkit[= ]+)(?P<cuda>\d{1,2}\.\d)"
    r"|\+cu(?P<short>\d{2,3})\b"
)
# A program that continues after the message repeats it endlessly.
_MAX_CUDA_RUNTIMES: Final = 64
# Error 804: the compatibility libraries are for other GPUs.
COMPAT_UNSUPPORTED_MESSAGE: Final = Pattern(
    r"\(804 vs\. 0\)"
    r"|\b(?:[Cc][Uu][Dd][Aa]\b|cu(?:da)?[A-Z]\w*)[^\n]{0,80}\b(?:[Ee]rror:?|[Cc]ode|returned|failure:) 804\b"
    r"|[Ff]orward compatibility was attempted on non supported HW"
    r"|cudaErrorCompatNotSupportedOnDevice|\b(?:CUDA_)?ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"
)


def supported_cuda(snapshot: Snapshot) -> Version | None:
    """Return the newest CUDA that the node's driver supports."""
    if shown := driver.cuda_version(snapshot):
        return parse_version(shown.version)
    version = driver.loaded_version(snapshot)
    return newest_supported_by_driver(version.version) if version else None


def reported_driver(snapshot: Snapshot) -> str:
    """Return the node's driver as a program reports it, or the first driver with the CUDA that it found; else empty."""
    if banner := snapshot.match(IMAGE_NEEDS_NEWER_DRIVER_MESSAGE):
        return banner["has"]
    match = snapshot.match(DRIVER_TOO_OLD)
    number = int(match["found"]) if match else 0
    known = find((number // 1000, number % 1000 // 10)) if number else None
    return known.driver if known and driver.loaded_version(snapshot) is None else ""


def cuda_runtimes(snapshot: Snapshot) -> tuple[tuple[Version, Citation], ...]:
    """Return the CUDA versions of images and programs, with their lines."""
    return tuple(_find_runtimes(snapshot))


def _find_runtimes(snapshot: Snapshot) -> Iterator[tuple[Version, Citation]]:
    silent = {"kernel-log", "lspci", "nvidia-smi", "nvidia-smi-q", "packages"}
    for item in snapshot.items:
        if item.kind not in silent and item.was_answered:
            for match in islice(find_all(item, _CUDA_RUNTIME_VERSION), _MAX_CUDA_RUNTIMES):
                yield _parse_version(match), cite(item, item.line_number_at(match.start()))
            if asked := _CUDA_RUNTIME_VERSION.search(item.written):
                yield _parse_version(asked), cite(item, 1)


def _parse_version(match: re.Match[str]) -> Version:
    """Return the version: ``cu118`` is CUDA 11.8, ``cu92`` 9.2."""
    short = match["short"] or ""
    return parse_version(match["cuda"] or f"{short[:-1]}.{short[-1]}")


def can_run_on_driver(snapshot: Snapshot, program_cuda: Version, driver_cuda: Version) -> bool:
    """Return whether a program of that CUDA starts on the driver: since 11.0 the same major version suffices."""
    if program_cuda <= driver_cuda:
        return True
    release, version = find(program_cuda), driver.loaded_version(snapshot)
    same_major = program_cuda[0] == driver_cuda[0] and program_cuda[0] >= 11
    if release is None or version is None or snapshot.contains(CALL_NEEDS_NEWER_DRIVER):
        return same_major and not snapshot.contains(CALL_NEEDS_NEWER_DRIVER)
    return same_major and parse_version(version.version)[0] >= release.min_branch


_REQUESTED_CUDA_VERSION: Final = Pattern(r"cuda ?>= ?(?P<cuda>\d+\.\d+)|image (?P<image>\d+\.\d+)")


def requested_cuda_release(snapshot: Snapshot) -> CudaRelease | None:
    """Return the CUDA that an image requires, else the newest that a program was built with; None if unknown."""
    if match := snapshot.match(_REQUESTED_CUDA_VERSION):
        return find(parse_version(match["cuda"] or match["image"]))
    versions = [version for version, _ in snapshot.view(cuda_runtimes)]
    return find(max(versions)) if versions else None


def format_version(version: Version) -> str:
    """Return ``(12, 4)`` as ``12.4``."""
    return ".".join(map(str, version))


LibrarySort: TypeAlias = Literal["driver", "stub", "compat", "other"]

# ldconfig -p and ldd: "libcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1".
_RESOLVED_LIBRARY_LINE: Final = Pattern(
    r"(?P<name>lib(?:cuda|nvidia-ml)\.so(?:\.1)?)(?:\s*\((?P<flags>[^)]*)\))?\s*=>\s*(?P<path>/\S+)"
)
# LD_DEBUG, strace, /proc/PID/maps, numba, nvtop: a library that a program opened.
_OPENED_LIBRARY_LINE: Final = Pattern(
    r"(?m)(?:calling init:\s*|open(?:at)?\([^)\"]*\"|wrong path : |Loaded from |Error: |\br[-w]xp\b[^\n/]{0,60}"
    r"|^[ \t]+)(?P<path>/[^\s\"]*/lib(?:cuda|nvidia-ml)\.so[\w.]*)"
)


@dataclass(frozen=True, slots=True)
class LoadedLibrary:
    """A file that is loaded, or would be, as the driver's library.

    Attributes:
        sort: ``stub`` is part of the toolkit, for linking; ``compat`` of packages for newer CUDA on old drivers;
            ``other`` is a copy outside the usual folders of a driver's libraries.
    """

    path: str
    sort: LibrarySort
    citation: Citation


@dataclass(frozen=True, slots=True)
class LoaderFolder:
    """A folder that the loader searches before its default ones.

    Attributes:
        file: the loader's configuration file that names it; empty if a variable does.
    """

    path: str
    sort: LibrarySort
    where: SourcePlace
    citation: Citation
    file: str = ""


def library_sort(path: str) -> LibrarySort:
    """Return the kind of library at or in ``path``."""
    if "/stubs" in path:
        return "stub"
    if "/compat" in path:
        return "compat"
    folder = path.rpartition("/")[0] if ".so" in path else path
    return "driver" if _STANDARD_LIBRARY_FOLDER.match(folder) else "other"


def loaded_libraries(snapshot: Snapshot) -> tuple[LoadedLibrary, ...]:
    """Return the first file of each library in the loader's cache or ldd, and all that programs opened."""
    silent = {"file", "packages", "lspci", "kernel-log", "nvidia-container-cli"}
    items = (item for item in snapshot.items if item.outcome == "ok" and item.kind not in silent)
    return tuple(library for item in items for library in _parse_libraries(item))


def _parse_libraries(item: EvidenceItem) -> Iterator[LoadedLibrary]:
    seen_paths: set[str] = set()
    for number, line in enumerate(item.lines if ".so" in item.text else (), 1):
        if match := _RESOLVED_LIBRARY_LINE.search(line):
            name = match["name"].split(".so")[0]
            foreign = "x86-64" not in (match["flags"] or "x86-64") and "AArch64" not in (match["flags"] or "")
            if name not in seen_paths and not foreign:
                seen_paths.add(name)
                yield LoadedLibrary(match["path"], library_sort(match["path"]), cite(item, number))
        elif item.kind != "listing" and (match := _OPENED_LIBRARY_LINE.search(line)):
            yield LoadedLibrary(match["path"], library_sort(match["path"]), cite(item, number))


def extra_loader_folders(snapshot: Snapshot) -> tuple[LoaderFolder, ...]:
    """Return the folders in LD_LIBRARY_PATH and /etc/ld.so.conf.d other than the loader's defaults."""
    having = {id(item) for item in snapshot.items_with_words(_LOADER_VARIABLE)}
    items = (item for item in snapshot.items if item.outcome == "ok")
    return tuple(folder for item in items for folder in _parse_folders(item, has_variable=id(item) in having))


def _parse_folders(item: EvidenceItem, *, has_variable: bool) -> Iterator[LoaderFolder]:
    echoes = item.source.words[:1] == ("echo",) and any("LD_LIBRARY_PATH" in word for word in item.source.words)
    is_conf = item.kind == "file" and item.subject.startswith("/etc/ld.so.conf")
    # In other text only lines that name the variable matter.
    by_line = has_variable and not (echoes or is_conf)
    starts = item.view(LineIndex).candidate_line_starts(_LOADER_VARIABLE) if by_line else ()
    named = (item.line_number_at(start) for start in starts)
    for number in range(1, len(item.lines) + 1) if echoes or is_conf else named:
        line = item.lines[number - 1]
        if echoes and "LD_" not in line:
            paths = line.strip().split(":")
        elif is_conf:
            paths = [match["folder"] for match in _LOADER_CONF_FOLDER_LINE.finditer(line)]
        else:
            paths = [*_paths_of_variable(line)]
        for path in paths:
            if path.startswith("/") and (sort := library_sort(path)) != "driver":
                yield LoaderFolder(path, sort, item.where, cite(item, number), item.subject if is_conf else "")


# A shell's export, a unit's Environment=, pam's /etc/environment, env, Python's os.environ, docker inspect.
_LOADER_VARIABLE: Final = Pattern(r"\b(?:LD_LIBRARY_PATH|LD_PRELOAD)(?:['\"]\])?\s*[=:]\s*['\"]?(?P<value>[^\s'\",;]+)")
# ld.so.conf(5): one folder per line.
_LOADER_CONF_FOLDER_LINE: Final = Pattern(r"^[ \t]*(?P<folder>/\S+)\s*$")
# A comment, possibly after the file name that grep -r prints.
_COMMENT_LINE: Final = Pattern(r"^(?:/[^\s:]+:(?:\d+:)?)?[ \t]*[#;]")
_STANDARD_LIBRARY_FOLDER: Final = Pattern(
    r"^(?:/usr)?/lib(?:32|64)?(?:/(?:x86_64|aarch64|i386|powerpc64le)-linux-gnu)?(?:/nvidia(?:[-/][\w.-]+)?)?/?$"
    r"|^/usr/lib/wsl/|^/run/(?:nvidia|opengl-driver)|^/usr/local/nvidia/|^/opt/nvidia/|^/nix/store/|^/home/kubernetes/bin/nvidia"
    r"|^/usr/lib64-nvidia/?$"  # Colab
)


def _paths_of_variable(line: str) -> Iterator[str]:
    """Yield the absolute paths in LD_LIBRARY_PATH or LD_PRELOAD if ``line`` sets one of them."""
    if "LD_" in line and not _COMMENT_LINE.match(line):
        for match in _LOADER_VARIABLE.finditer(line):
            yield from (path for path in match["value"].split(":") if path.startswith("/"))
