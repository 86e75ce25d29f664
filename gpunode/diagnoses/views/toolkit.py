"""NVIDIA's container toolkit: whether it is there, and in which version."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, finds, stated
from gpunode.diagnoses.views import packages, programs
from gpunode.diagnoses.views.programs import Presence
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern

# Any of them brings the hook that dockerd looks for, itself or by what it depends on.
_PACKAGES: Final = (
    *("nvidia-container-toolkit", "nvidia-container-runtime", "nvidia-container-runtime-hook", "nvidia-docker2"),
)  # fmt: skip
_PROGRAMS: Final = (
    *("nvidia-container-runtime-hook", "nvidia-container-toolkit", "nvidia-container-runtime", "nvidia-ctk"),
    "nvidia-container-cli",
)
_ANSWERS: Final = Pattern(
    r"NVIDIA Container (?:Toolkit CLI|Runtime Hook) version|^[ \t]*cli-version:"
    r"|nvidia-container-cli(?:\.real)?: (?!command not found|not found|No such)"
    r"|initializing library context \(version=|^nvidia-container-toolkit[ -]v?\d",
    re.MULTILINE,
)
_LIBRARY: Final = Pattern(
    r"(?:cli-version|lib-version):\s*(?P<cli>\d[\d.]*)|library context \(version=(?P<log>\d[\d.]*)"
    r"|NVIDIA Container (?:Toolkit CLI|Runtime Hook) version (?P<ctk>\d[\d.]*)"
)
_LIBRARY_PACKAGES: Final = (
    *("libnvidia-container1", "libnvidia-container-tools", "libnvidia-container"),
    *("nvidia-container-toolkit", "nvidia-container-toolkit-base"),
)


@dataclass(frozen=True, slots=True)
class Version:
    """A version of the toolkit or its library, which go together since 1.6."""

    numbers: tuple[int, ...]
    citation: Citation


def presence(snapshot: Snapshot) -> Presence | None:
    """Whether the toolkit is installed; None where nothing tells. What speaks for it counts."""
    signs = tuple(_signs(snapshot))
    return next((sign for sign in signs if sign.is_there), signs[0] if signs else None)


def present(snapshot: Snapshot) -> tuple[Citation, ...]:
    """What shows that the toolkit is installed."""
    there = snapshot.view(presence)
    return (there.citation,) if there is not None and there.is_there else ()


def absent(snapshot: Snapshot) -> tuple[Citation, ...]:
    """What shows that it is not."""
    there = snapshot.view(presence)
    return (there.citation,) if there is not None and not there.is_there else ()


def _signs(snapshot: Snapshot) -> Iterator[Presence]:
    listed = snapshot.view(packages.packages)
    for name in _PACKAGES:
        if (package := listed.get(name)) is not None and package.is_installed:
            yield Presence(True, package.citation)
    if (found := programs.look(snapshot, *_PROGRAMS)) is not None:
        yield found
    for citation in (*snapshot.said(_ANSWERS), *snapshot.said(_ANSWERS, "packages")):
        yield Presence(True, citation)
    for item in snapshot.of("package-policy"):
        for match in finds(item, _POLICY):
            number = item.number_at(match.start("version"))
            yield Presence(match["version"][0] != "(", cite(item, number))
    if (denial := _not_listed(snapshot)) is not None:
        yield Presence(False, denial)
    else:  # what was installed once may be gone again
        logged = snapshot.said(_INSTALLED, "package-history", "text", "package-output", "packages")
        yield from (Presence(True, line) for line in logged)


def _not_listed(snapshot: Snapshot) -> Citation | None:
    """The list of packages that would name the toolkit, and does not."""
    name = _PACKAGES[0]
    if packages.installed(snapshot, name) is not False:
        return next((cite(item) for item in snapshot.of("packages") if _would_list(item, name)), None)
    for item in snapshot.of("packages", "package-output", "package-policy"):
        said = next((number for number, line in enumerate(item.lines, 1) if name in line), 0)
        if said or item.source.only or _would_list(item, name):
            return cite(item, said or None)
    return stated("/var/lib/dpkg/status", f"no {name}", "dpkg-status")


def _would_list(item: Item, name: str) -> bool:
    """Whether it is a list of all packages that match a pattern, and the toolkit's name does."""
    asked = [word.strip("'\"") for word in item.source.words[1:] if "*" in word]
    return bool(asked) and not item.source.only and not item.source.is_part and any(fnmatchcase(name, a) for a in asked)


# The first line below the name is what is installed, in the language of the node.
_POLICY: Final = Pattern(r"^nvidia-container-toolkit:\n\s+\w+\s*:\s*(?P<version>\S+)", re.MULTILINE)
# The logs of dpkg, dnf, pacman, zypper and apt.
_INSTALLED: Final = Pattern(
    r"(?:status installed|install|Installed:|\[ALPM\] installed|\|install\|) ?nvidia-container-(?:toolkit|runtime)\b"
    r"|^Install:[^\n]*\bnvidia-container-toolkit:",
    re.MULTILINE,
)


def versions(snapshot: Snapshot) -> tuple[Version, ...]:
    """The versions of the toolkit and its library that are named somewhere."""
    return tuple(_versions(snapshot))


def _versions(snapshot: Snapshot) -> Iterator[Version]:
    for item in snapshot.items:
        if item.kind in {"file", "kernel-log", "packages"}:
            continue
        for match in finds(item, _LIBRARY):
            number = item.number_at(match.start())
            yield Version(_numbers(match["cli"] or match["log"] or match["ctk"]), cite(item, number))
    for name in _LIBRARY_PACKAGES:
        package = snapshot.view(packages.packages).get(name)
        if package is not None and package.is_installed:
            yield Version(_numbers(package.upstream), package.citation)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,6}", text)[:3])
