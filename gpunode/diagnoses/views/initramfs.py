"""The initramfs: whether NVIDIA's module is in it, by a listing, a count, or what it is told to hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, find, lines_with
from gpunode.diagnoses.views import system
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern

# In an image paths have no leading slash; one that has is of the node.
_FILE: Final = Pattern(r"(?<![\w/.+-])(?!/)[\w./+-]{0,160}/nvidia(?:[-_](?:current|tesla|legacy)\S*)?\.ko(?:\.\w+)?\b")
# lsinitcpio -a names the modules alone.
_NAMED: Final = Pattern(r"^[ \t]+(?:\S+ (?:\[explicit\])?[ \t]*)*?nvidia(?: \[explicit\])?(?=\s|$)")
_COUNT: Final = Pattern(r"^[ \t]*(?P<count>\d{1,4})[ \t]*$", re.MULTILINE)


_RELEASE: Final = Pattern(r"/(?:initrd\.img|initrd|initramfs)-(?P<release>\d[^/\s]*?)(?:\.img)?$")


def release_of(item: Item) -> str:
    """The kernel that the listed image is for; empty where its name does not tell."""
    match = _RELEASE.search(item.subject)
    return match["release"] if match else ""


def of_running(snapshot: Snapshot) -> tuple[Item, ...]:
    """The listings of the running kernel's image; those that name another kernel show what it may find at its boot."""
    running = system.running_kernel(snapshot)
    return tuple(item for item in snapshot.of("initramfs") if release_of(item) in {"", running} or not running)


def of_others(snapshot: Snapshot) -> tuple[Item, ...]:
    """The listings of other kernels' images."""
    own = of_running(snapshot)
    return tuple(item for item in snapshot.of("initramfs") if item not in own)


def holds(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The lines that show that the initramfs has NVIDIA's main module in it."""
    return snapshot.view(_holds)


def _holds(snapshot: Snapshot) -> tuple[Citation, ...]:
    return tuple(citation for item in of_running(snapshot) for citation in _in_image(item))


_IMAGE: Final = Pattern(r"(?P<path>/[^\s']{1,200}/(?:initrd|initramfs)[^\s'/]*)$")
_DATED: Final = Pattern(r"\b(?P<date>20\d\d-\d\d-\d\d)[ T]")
# What systemd-boot starts is a copy on the EFI system partition.
_BOOTED_FROM: Final = Pattern(r"/(?:efi|EFI|esp|loader)/")


def stale_copy(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The image on the EFI system partition and the one in /boot, where the latter was made on a later day."""
    newest = {is_copy: max(dated) for is_copy in (True, False) if (dated := tuple(_dated(snapshot, is_copy=is_copy)))}
    if len(newest) == len((True, False)) and newest[True][0] < newest[False][0]:
        return tuple(cite(snapshot.of("listing")[index], number) for _, index, number in newest.values())
    return ()


def _dated(snapshot: Snapshot, *, is_copy: bool) -> Iterator[tuple[str, int, int]]:
    """The days on which the images were made, each with the listing and the line that tells."""
    for index, item in enumerate(snapshot.of("listing")):
        for number, line in enumerate(item.lines, 1):
            path, date = _IMAGE.search(line), _DATED.search(line)
            if path and date and bool(_BOOTED_FROM.search(path["path"])) == is_copy:
                yield date["date"], index, number


def brings(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The lines that show that the initramfs has a module of its own, or is a copy that was not made anew."""
    return holds(snapshot) or snapshot.view(stale_copy) or snapshot.view(loaded_from)


def loaded_from(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The lines by which the module was loaded before the system had its own root."""
    return next((found for item in snapshot.items if (found := _before_root(item))), ()) or _by_times(snapshot)


_LOADING: Final = Pattern(r"NVRM: loading NVIDIA UNIX")
_ROOT: Final = Pattern(r"\bSwitching root\b|\bswitch_root\b")
_SINCE_BOOT: Final = Pattern(r"^\[ *(?P<at>\d{1,6}\.\d{3,6})\]")


def _before_root(item: Item) -> tuple[Citation, ...]:
    """In a log of both, by the order of their lines."""
    if not (find(item, _LOADING) and find(item, _ROOT)):
        return ()
    loaded, switched = next(lines_with(item, _LOADING)), tuple(lines_with(item, _ROOT))[-1]
    return (loaded, switched) if (loaded.number or 0) < (switched.number or 0) else ()


def _by_times(snapshot: Snapshot) -> tuple[Citation, ...]:
    """In two, by the seconds since the boot."""
    loaded, switched = (
        [(float(match["at"]), line) for line in snapshot.said(pattern) if (match := _SINCE_BOOT.match(line.line))]
        for pattern in (_LOADING, _ROOT)
    )
    return (loaded[0][1], switched[-1][1]) if loaded and switched and loaded[0][0] < switched[-1][0] else ()


def _in_image(item: Item) -> Iterator[Citation]:
    if "-c" in _grep_options(item.written) and (match := _COUNT.search(item.text)):
        if int(match["count"]):
            yield cite(item, item.number_at(match.start("count")))
        return
    files = tuple(lines_with(item, _FILE))
    yield from files
    if not files and "lsinitcpio" in item.written:
        yield from lines_with(item, _NAMED)


def _grep_options(written: str) -> tuple[str, ...]:
    """The options of the greps behind the command that lists the image, up to the next command."""
    piped = written.split(";")[0]
    found = re.findall(r"grep((?:\s+-\w+)+)", piped)
    return tuple("-c" for options in found if "c" in options)
