"""View the source lists of APT: duplicate entries, missing keys, owners of repositories."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, cite_fact
from gpunode.facts.items import Item
from gpunode.facts.model import Known, PackageSource
from gpunode.facts.patterns import Pattern
from gpunode.packages.deb import sources as source_lists

Owner: TypeAlias = Literal["cuda", "toolkit", "other"]

_HOSTS: Final[tuple[tuple[Owner, Pattern], ...]] = (
    ("cuda", Pattern(r"developer\.download\.nvidia\.(?:com|cn)/compute/(?:cuda|machine-learning)")),
    ("toolkit", Pattern(r"nvidia\.github\.io/(?:libnvidia-container|nvidia-docker|nvidia-container-runtime)")),
    ("cuda", Pattern(r"/compute/cuda/repos/")),  # a mirror keeps the path
)


def owner_of(text: str) -> Owner:
    """Return the owner of the repository in ``text``, a URL or a message with one."""
    return next((owner for owner, pattern in _HOSTS if pattern.search(text)), "other")


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """An entry of APT's source lists and its line."""

    source: PackageSource
    citation: Citation


_GREPPED: Final = Pattern(
    r"^(?P<file>(?:/etc/apt/)?[\w./-]*\.(?:list|sources))(?::\d+)?:\s*(?P<entry>deb(?:-src)?\s.*)$"
)


def source_entries(snapshot: Snapshot) -> tuple[SourceEntry, ...]:
    """Return the entries of APT's source lists, from the files or from what somebody grepped out of them."""
    # What grep -r shows is both its own answer and a part of each file.
    found: dict[PackageSource, SourceEntry] = {}
    for one in _find_entries(snapshot):
        found.setdefault(replace(one.source, line=0), one)
    return tuple(found.values())


def _find_entries(snapshot: Snapshot) -> Iterator[SourceEntry]:
    if isinstance(snapshot.facts.sources, Known):
        for one in snapshot.facts.sources.value:
            file = snapshot.file(one.file)
            place = (
                cite(file, one.line) if file else cite_fact(one.file, _entry_line(one), snapshot.facts.sources.probe)
            )
            yield SourceEntry(one, place)
        return
    for item in snapshot.items:
        if item.outcome != "ok":
            continue
        if item.kind == "file" and source_lists.is_source_list(item.subject):
            yield from _parse_entries(item, item.subject, item.text)
        elif item.kind in {"listing", "file", "text"}:
            for number, line in enumerate(item.lines, 1):
                if match := _GREPPED.match(line):
                    yield from _parse_entries(item, match["file"], match["entry"], number)


def _entry_line(one: PackageSource) -> str:
    signed = f"signed-by={one.signed_by} " if one.signed_by else ""
    return f"deb [{signed.strip()}] {one.uri} {one.suite}" if signed else f"deb {one.uri} {one.suite}"


def _parse_entries(item: Item, path: str, text: str, number: int | None = None) -> Iterator[SourceEntry]:
    try:
        found = source_lists.parse(path, text)
    except ValueError:
        return
    for one in found:
        yield SourceEntry(one, cite(item, number or one.line))


def conflicting_entries(snapshot: Snapshot) -> tuple[tuple[SourceEntry, ...], ...]:
    """Return entries with one archive and different keys, by archive; apt then reads no list."""
    archives: dict[tuple[str, str], list[SourceEntry]] = {}
    for one in snapshot.view(source_entries):
        if one.source.enabled:
            archives.setdefault((one.source.uri.rstrip("/"), one.source.suite), []).append(one)
    return tuple(tuple(same) for same in archives.values() if len({one.source.signed_by for one in same}) > 1)


def entries_without_key(snapshot: Snapshot, owner: Owner) -> Iterator[Citation]:
    """Yield the enabled entries whose keyring is not there."""
    for entry in snapshot.view(source_entries) if isinstance(snapshot.facts.sources, Known) else ():
        one = entry.source
        keyring = snapshot.facts.file(one.signed_by)
        is_meant = one.enabled and not one.is_unsigned and owner_of(one.uri) == owner
        if is_meant and isinstance(keyring, Known) and keyring.value is None:
            yield from (cite_fact(one.signed_by, "it is not there", keyring.probe), entry.citation)
