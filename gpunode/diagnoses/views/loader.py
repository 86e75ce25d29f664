"""View which libcuda and libnvidia-ml programs load: loader cache, LD_LIBRARY_PATH, programs' own logs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.diagnoses.word_index import LineIndex
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import Where

Sort: TypeAlias = Literal["driver", "stub", "compat", "other"]

# ldconfig -p and ldd: "libcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1".
_RESOLVED: Final = Pattern(
    r"(?P<name>lib(?:cuda|nvidia-ml)\.so(?:\.1)?)(?:\s*\((?P<flags>[^)]*)\))?\s*=>\s*(?P<path>/\S+)"
)
# LD_DEBUG, strace, /proc/PID/maps, numba, nvtop: a library that a program did open.
_OPENED: Final = Pattern(
    r"(?:calling init:\s*|open(?:at)?\([^)\"]*\"|wrong path : |Loaded from |Error: |\br[-w]xp\b[^\n/]{0,60}|^[ \t]+)"
    r"(?P<path>/[^\s\"]*/lib(?:cuda|nvidia-ml)\.so[\w.]*)",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Library:
    """A file that is, or would be, loaded as the driver's library.

    Attributes:
        name: ``libcuda`` or ``libnvidia-ml``.
        sort: ``stub`` comes with the toolkit for linking, ``compat`` with packages for newer CUDA on old drivers,
            ``other`` is a copy outside the places where a driver has its libraries.
    """

    name: str
    path: str
    sort: Sort
    where: Where
    citation: Citation


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that the loader searches before its own.

    Attributes:
        file: of the loader's configuration that names it; empty where a variable does.
        set_in: the file that sets the variable; empty where it is not known.
    """

    path: str
    sort: Sort
    where: Where
    citation: Citation
    file: str = ""
    set_in: str = ""


def sort_of(path: str) -> Sort:
    """Return the kind of library at or in ``path``."""
    if "/stubs" in path:
        return "stub"
    if "/compat" in path:
        return "compat"
    folder = path.rpartition("/")[0] if ".so" in path else path
    return "driver" if _is_standard(folder) else "other"


def loaded_libraries(snapshot: Snapshot) -> tuple[Library, ...]:
    """Return the first file of each library in cache or ldd, and all that programs opened."""
    silent = {"file", "packages", "lspci", "kernel-log", "nvidia-container-cli"}
    items = (item for item in snapshot.items if item.outcome == "ok" and item.kind not in silent)
    return tuple(one for item in items for one in _parse_libraries(item))


def _parse_libraries(item: Item) -> Iterator[Library]:
    seen: set[str] = set()
    for number, line in enumerate(item.lines if ".so" in item.text else (), 1):
        if match := _RESOLVED.search(line):
            name = match["name"].split(".so")[0]
            foreign = "x86-64" not in (match["flags"] or "x86-64") and "AArch64" not in (match["flags"] or "")
            if name not in seen and not foreign:
                seen.add(name)
                yield Library(name, match["path"], sort_of(match["path"]), item.where, cite(item, number))
        elif item.kind != "listing" and (match := _OPENED.search(line)):
            name = "libcuda" if "libcuda" in match["path"] else "libnvidia-ml"
            yield Library(name, match["path"], sort_of(match["path"]), item.where, cite(item, number))


def search_folders(snapshot: Snapshot) -> tuple[Folder, ...]:
    """Return the folders in LD_LIBRARY_PATH and in /etc/ld.so.conf.d that are none of the loader's own."""
    return tuple(one for item in snapshot.items if item.outcome == "ok" for one in _parse_folders(item))


def _parse_folders(item: Item) -> Iterator[Folder]:
    echoes = item.source.words[:1] == ("echo",) and any("LD_LIBRARY_PATH" in word for word in item.source.words)
    is_conf = item.kind == "file" and item.subject.startswith("/etc/ld.so.conf")
    # Of any other text, only lines that name the variable matter.
    every = range(1, len(item.lines) + 1)
    named = (item.number_at(start) for start in item.view(LineIndex).line_starts_of(_VARIABLE))
    for number in every if echoes or is_conf else named:
        line = item.lines[number - 1]
        set_in, file = _setting_file(item, line), ""
        if echoes and "LD_" not in line:
            paths = line.strip().split(":")
        elif is_conf:
            paths, file = [*_folders_of_conf(line)], item.subject
        else:
            paths = [*_paths_of_variable(line)]
        for path in paths:
            if path.startswith("/") and (sort := sort_of(path)) != "driver":
                yield Folder(path, sort, item.where, cite(item, number), file, set_in)


_GREPPED: Final = Pattern(r"(?P<file>/[^\s:]{1,400}):")


def _setting_file(item: Item, line: str) -> str:
    """Return the file that sets the variable; empty if unknown, or if it is the loader's own."""
    if item.kind == "file":
        return "" if item.subject.startswith("/etc/ld.so.conf") else item.subject
    match = _GREPPED.match(line) if item.source.words[:1] == ("grep",) else None
    return match["file"] if match else ""


# A shell's export, a unit's Environment=, pam's /etc/environment, env, Python's os.environ, docker inspect.
_VARIABLE: Final = Pattern(r"\b(?:LD_LIBRARY_PATH|LD_PRELOAD)(?:['\"]\])?\s*[=:]\s*['\"]?(?P<value>[^\s'\",;]+)")
# ld.so.conf(5): a folder a line.
_CONF: Final = Pattern(r"^[ \t]*(?P<folder>/\S+)\s*$")
# A comment; behind the name of the file, where grep -r writes it.
_COMMENT: Final = Pattern(r"^(?:/[^\s:]+:(?:\d+:)?)?[ \t]*[#;]")
_STANDARD: Final = Pattern(
    r"^(?:/usr)?/lib(?:32|64)?(?:/(?:x86_64|aarch64|i386|powerpc64le)-linux-gnu)?(?:/nvidia(?:[-/][\w.-]+)?)?/?$"
    r"|^/usr/lib/wsl/|^/run/(?:nvidia|opengl-driver)|^/usr/local/nvidia/|^/opt/nvidia/|^/nix/store/|^/home/kubernetes/bin/nvidia"
    r"|^/usr/lib64-nvidia/?$"  # Colab's
)


def _paths_of_variable(line: str) -> Iterator[str]:
    """Yield the absolute paths in LD_LIBRARY_PATH or LD_PRELOAD, where ``line`` sets one of them."""
    if "LD_" in line and not _COMMENT.match(line):
        for match in _VARIABLE.finditer(line):
            yield from (path for path in match["value"].split(":") if path.startswith("/"))


def _folders_of_conf(line: str) -> Iterator[str]:
    """Yield the folder in a line of the loader's own configuration."""
    if match := _CONF.match(line):
        yield match["folder"]


def _is_standard(folder: str) -> bool:
    """Return whether a driver has its libraries in ``folder``, or the loader looks there anyhow."""
    return bool(_STANDARD.match(folder))
