"""View NVIDIA's container toolkit: presence and version."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, cite_fact, find_all
from gpunode.diagnoses.views import packages
from gpunode.diagnoses.word_index import LineIndex
from gpunode.facts.items import EvidenceItem
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass

# Each of these provides the hook that dockerd needs, itself or through a dependency.
_PACKAGES: Final = (
    *("nvidia-container-toolkit", "nvidia-container-runtime", "nvidia-container-runtime-hook", "nvidia-docker2"),
)  # fmt: skip
_TOOLKIT_PROGRAMS: Final = (
    *("nvidia-container-runtime-hook", "nvidia-container-toolkit", "nvidia-container-runtime", "nvidia-ctk"),
    "nvidia-container-cli",
)
_TOOLKIT_PRESENT_MESSAGE: Final = Pattern(
    r"(?m)NVIDIA Container (?:Toolkit CLI|Runtime Hook) version|^[ \t]*cli-version:"
    r"|nvidia-container-cli(?:\.real)?: (?!command not found|not found|No such)"
    r"|initializing library context \(version=|^nvidia-container-toolkit[ -]v?\d"
    r"|(?:status installed|Installed:) nvidia-container-toolkit\b|^Install:[^\n]*\bnvidia-container-toolkit:"
)
_TOOLKIT_VERSION_MESSAGE: Final = Pattern(
    r"(?:cli-version|lib-version):\s*(?P<cli>\d[\d.]*)|library context \(version=(?P<log>\d[\d.]*)"
    r"|NVIDIA Container (?:Toolkit CLI|Runtime Hook) version (?P<ctk>\d[\d.]*)"
)
_LIBRARY_PACKAGES: Final = (
    *("libnvidia-container1", "libnvidia-container-tools", "libnvidia-container"),
    *("nvidia-container-toolkit", "nvidia-container-toolkit-base"),
)


@dataclass(frozen=True, slots=True)
class ToolkitVersion:
    """A version of the toolkit or of its library; the two are released together since 1.6."""

    numbers: tuple[int, ...]
    citation: Citation


def find_toolkit_presence(snapshot: Snapshot) -> Presence | None:
    """Return whether the toolkit is installed; None if unknown. Evidence of presence wins."""
    signs = tuple(_presence_signs(snapshot))
    return next((sign for sign in signs if sign.is_present), signs[0] if signs else None)


def presence_lines(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the evidence that the toolkit is installed."""
    there = snapshot.view(find_toolkit_presence)
    return (there.citation,) if there is not None and there.is_present else ()


def absence_lines(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the evidence that the toolkit is not installed."""
    there = snapshot.view(find_toolkit_presence)
    return (there.citation,) if there is not None and not there.is_present else ()


def _presence_signs(snapshot: Snapshot) -> Iterator[Presence]:
    for name in _PACKAGES:
        if (package := snapshot.view(packages.listed_packages).get(name)) is not None and package.is_installed:
            yield Presence(True, package.citation)
    if (presence := find_program(snapshot, *_TOOLKIT_PROGRAMS)) is not None:
        yield presence
    # The package database knows what became of an installation.
    is_database_read = isinstance(snapshot.facts.packages, Known)
    records = {item.key for item in snapshot.items_of("packages", "package-history") if is_database_read}
    for citation in (
        *snapshot.matching_lines(_TOOLKIT_PRESENT_MESSAGE),
        *snapshot.matching_lines(_TOOLKIT_PRESENT_MESSAGE, "packages", "package-history"),
    ):
        if citation.key not in records:
            yield Presence(True, citation)
    lists = snapshot.items_of("packages", "package-output", "package-policy")
    yield from (Presence(False, cite(item)) for item in lists if _shows_absence(item))
    if packages.is_installed(snapshot, _PACKAGES[0]) is False:
        asked = (cite(item) for item in lists if item.source.pattern or _PACKAGES[0] in item.text)
        yield Presence(False, next(asked, cite_fact("/var/lib/dpkg/status", f"no {_PACKAGES[0]}", "dpkg-status")))


def _shows_absence(item: EvidenceItem) -> bool:
    """Return whether a complete list lacks the toolkit, or apt reports it as not installed."""
    globs = [word.strip("'\"") for word in item.source.words[1:] if "*" in word]
    is_list = not (item.source.pattern or item.source.is_part or _PACKAGES[0] in item.text)
    is_listed = is_list and any(fnmatchcase(_PACKAGES[0], glob) for glob in globs)
    return is_listed or _APT_POLICY_NOT_INSTALLED.search(item.text) is not None


# The output of apt-cache, in the node's language.
_APT_POLICY_NOT_INSTALLED: Final = Pattern(r"(?m)^nvidia-container-toolkit:\n\s+\w+\s*:\s*\(")


def toolkit_versions(snapshot: Snapshot) -> tuple[ToolkitVersion, ...]:
    """Return all versions of the toolkit and its library in the evidence."""
    return tuple(_named_versions(snapshot))


def _named_versions(snapshot: Snapshot) -> Iterator[ToolkitVersion]:
    for item in snapshot.items_with_words(_TOOLKIT_VERSION_MESSAGE):
        if item.kind in {"file", "kernel-log", "packages"}:
            continue
        for match in find_all(item, _TOOLKIT_VERSION_MESSAGE):
            number = item.line_number_at(match.start())
            yield ToolkitVersion(_parse_numbers(match["cli"] or match["log"] or match["ctk"]), cite(item, number))
    for name in _LIBRARY_PACKAGES:
        package = snapshot.view(packages.listed_packages).get(name)
        if package is not None and package.is_installed:
            yield ToolkitVersion(_parse_numbers(package.upstream), package.citation)


def _parse_numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,6}", text)[:3])


_PROGRAM_NOT_FOUND: Final = (
    r"(?:^|[\s:'\"`/]){name}['\"`]?: (?:command )?not found|[Cc]ommand ['\"]{name}['\"] not found"
    r"|/{name}['\"]?: No such file"
)


@dataclass(frozen=True, slots=True)
class Presence:
    """The presence or absence of something, and its evidence."""

    is_present: bool
    citation: Citation


def find_program(snapshot: Snapshot, *names: str) -> Presence | None:
    """Return whether one of the programs is on the node; None if unknown. Evidence of presence wins."""
    seen = [one for name in names for item in snapshot.items if (one := _program_presence(item, name)) is not None]
    return next((presence for presence in seen if presence.is_present), seen[0] if seen else None)


def _lines_ending_with(item: EvidenceItem, end: str) -> Iterator[int]:
    """Yield the numbers of the lines with a path, or a link from one, that ends with ``end``."""
    for start in sorted(item.view(LineIndex).line_starts(end.lower())):
        number = item.line_number_at(start)
        if item.lines[number - 1].split(" -> ")[0].rstrip().endswith(end):
            yield number


def _program_presence(item: EvidenceItem, name: str) -> Presence | None:
    if item.where == "container" or item.is_package_record or not item.was_answered:
        return None
    if item.kind != "listing" and name not in item.written and name not in item.text:
        return None
    line_numbers = [*_lines_ending_with(item, f"/{name}")] if name in item.text else []
    if item.kind in {"which", "listing"} and line_numbers:
        return Presence(True, cite(item, line_numbers[0]))
    is_asked = name in item.written and re.search(rf"(?:^|[\s/]){re.escape(name)}(?:\s|$)", item.written)
    if is_asked and (item.kind == "which" or re.search(r"\b(?:command -[vV]|type -[pP]|hash)\b", item.written)):
        return Presence(bool(line_numbers), cite(item, *line_numbers[:1]))
    would_match = any(fnmatchcase(f"/usr/bin/{name}", word) for word in item.source.words[1:] if "*" in word)
    if item.kind == "listing" and item.outcome == "absent" and would_match:
        return Presence(False, cite(item))
    is_whole = item.subject.rstrip("/") in {"/usr/bin", "/bin"} and item.source.lets_through(name)
    if item.kind == "listing" and item.outcome == "ok" and item.text.strip() and is_whole and not item.source.is_part:
        return Presence(name in item.text.split(), cite(item))
    if name in item.text and (
        denied := re.search(_PROGRAM_NOT_FOUND.format(name=re.escape(name)), item.text, re.MULTILINE)
    ):
        return Presence(False, cite(item, item.line_number_at(denied.end())))
    return None
