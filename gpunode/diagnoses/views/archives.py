"""APT's and rpm's archives: which source stands twice or lacks its key, where a package's version comes from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, stated
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
    """Whose repository ``text``, an address or a message with one, speaks of."""
    return next((owner for owner, pattern in _HOSTS if pattern.search(text)), "other")


@dataclass(frozen=True, slots=True)
class Listed:
    """An entry of APT's source lists, with the line that it stands in."""

    source: PackageSource
    citation: Citation


_GREPPED: Final = Pattern(
    r"^(?P<file>(?:/etc/apt/)?[\w./-]*\.(?:list|sources))(?::\d+)?:\s*(?P<entry>deb(?:-src)?\s.*)$"
)


def sources(snapshot: Snapshot) -> tuple[Listed, ...]:
    """The entries of APT's source lists, from the files or from what somebody grepped out of them."""
    # What grep -r shows is both its own answer and a part of each file.
    found: dict[PackageSource, Listed] = {}
    for one in _sources(snapshot):
        found.setdefault(replace(one.source, line=0), one)
    return tuple(found.values())


def _sources(snapshot: Snapshot) -> Iterator[Listed]:
    if isinstance(snapshot.facts.sources, Known):
        for one in snapshot.facts.sources.value:
            file = snapshot.file(one.file)
            place = cite(file, one.line) if file else stated(one.file, _written(one), snapshot.facts.sources.probe)
            yield Listed(one, place)
        return
    for item in snapshot.items:
        if item.outcome != "ok":
            continue
        if item.kind == "file" and source_lists.is_source_list(item.subject):
            yield from _parsed(item, item.subject, item.text)
        elif item.kind in {"listing", "file", "text"}:
            for number, line in enumerate(item.lines, 1):
                if match := _GREPPED.match(line):
                    yield from _parsed(item, match["file"], match["entry"], number)


def _written(one: PackageSource) -> str:
    signed = f"signed-by={one.signed_by} " if one.signed_by else ""
    return f"deb [{signed.strip()}] {one.uri} {one.suite}" if signed else f"deb {one.uri} {one.suite}"


def _parsed(item: Item, path: str, text: str, number: int | None = None) -> Iterator[Listed]:
    try:
        found = source_lists.parse(path, text)
    except ValueError:
        return
    for one in found:
        yield Listed(one, cite(item, number or one.line))


def conflicts(snapshot: Snapshot) -> tuple[tuple[Listed, ...], ...]:
    """The entries that name one archive and different keys, archive by archive: apt then reads no list at all."""
    archives: dict[tuple[str, str], list[Listed]] = {}
    for one in snapshot.view(sources):
        if one.source.enabled:
            archives.setdefault((one.source.uri.rstrip("/"), one.source.suite), []).append(one)
    return tuple(tuple(same) for same in archives.values() if len({one.source.signed_by for one in same}) > 1)


def unkeyed(snapshot: Snapshot, owner: Owner) -> Iterator[Citation]:
    """The enabled entries whose keyring is not there."""
    for entry in snapshot.view(sources) if isinstance(snapshot.facts.sources, Known) else ():
        one = entry.source
        keyring = snapshot.facts.file(one.signed_by)
        is_meant = one.enabled and not one.is_unsigned and owner_of(one.uri) == owner
        if is_meant and isinstance(keyring, Known) and keyring.value is None:
            yield from (stated(one.signed_by, "it is not there", keyring.probe), entry.citation)
