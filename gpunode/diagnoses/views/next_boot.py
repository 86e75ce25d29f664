"""The kernel that likely boots next, and whether NVIDIA's module is missing for it.

Only what was listed whole tells: /boot by its images, /lib/modules of all kernels by the modules. A kernel of another
flavour is not the next of this one, and where a default is named, nothing is said against that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, finds
from gpunode.diagnoses.views import modules, system
from gpunode.facts import kernels
from gpunode.facts.evidence import Found
from gpunode.facts.items import Item
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern

_BOOT: Final = Pattern(r"/boot/?|/boot/vmlinuz-?\*")
# In a long listing it is the last word of its line; what a link points to may be gone.
_IMAGE: Final = Pattern(r"(?<![\w.-])(?<!-> )vmlinuz-(?P<kernel>\d[\w.+~-]{1,80})")
_NUMBERS: Final = Pattern(r"\d{1,9}(?:[.-]\d{1,9}){1,9}(?!\w)")
_MINOR: Final = Pattern(r"(?<=\.el\d)_\d+|(?<=\.el\d\d)_\d+")
_RELEASE: Final = Pattern(r"\d\.\d{1,3}\.\d")
_ABOVE_MODULES: Final = Pattern(r"(?:/usr)?(?:/lib(?:/modules)?)?/?")
_LINKED_NOWHERE: Final = Pattern(r"/updates/dkms/|/kernel/")
_DEFAULT: Final = Pattern(
    r"^(?:[^\s#]{1,120}:)?[ \t]*(?:export )?(?:"
    r"GRUB_DEFAULT=(?![\"']?0[\"']?[ \t]*(?:#|$))[\"']?(?P<grub>[^\"'\n]*)"
    r"|GRUB_TOP_LEVEL=[\"']?(?P<top>[^\"'\n]+)"
    r"|(?:saved_entry|next_entry)=[\"']?(?P<saved>[^\"'\s]+)"
    r"|UPDATEDEFAULT=[\"']?(?P<fixed>no)\b"
    r"|DEFAULTKERNEL=[\"']?(?P<package>(?!kernel(?:-core)?[\"']?[ \t]*$)[^\"'\n]+)"
    r"|Pinned kernel:[ \t]*(?:\n[ \t]*)?(?P<pinned>\d\S*))",
    re.MULTILINE,
)
_LOADER: Final = Pattern(r"^[ \t]*default[ \t]+(?P<entry>\S+)", re.MULTILINE)
_CHOOSES: Final = Pattern(
    r"grub2?-(?:set-default|reboot)\b|grubby\b.*--set-default|kernel (?:un)?pin\b|\bkexec\b|bootctl\b"
)
_ASKS_DEFAULT: Final = Pattern(r"grubby\b.*(?:--default-kernel|--info[= ]DEFAULT)|-boot-pin\b")


def flavour(kernel: str) -> str:
    """What stands behind the numbers of a kernel's release (``-generic``, ``.el9.x86_64+rt``); empty where unknown."""
    match = _NUMBERS.match(kernel)
    return _MINOR.sub("", kernel[match.end() :]) if match else ""


def _numbers(kernel: str) -> tuple[object, ...]:
    match = _NUMBERS.match(kernel)
    return kernels.version_key(match[0] if match else kernel)


def newer_kernel(snapshot: Snapshot) -> str:
    """The kernel that likely boots next in place of the running one; empty where nothing tells."""
    running = snapshot.view(system.running_kernel)
    own, there = flavour(running), _images(snapshot)
    if not own or running not in there or "debug" in own:
        return ""
    newest = max((one for one in there if flavour(one) == own), key=_numbers)
    # RHEL never makes a variant (+rt, +debug) the default by itself; elsewhere the highest name of all may be it.
    others = (one for one in there if flavour(one) != own and not flavour(one).startswith(f"{own}+"))
    if newest == running or any(_numbers(one) >= _numbers(newest) for one in others if flavour(one)):
        return ""
    return "" if any(named != newest for named in _defaults(snapshot, newest)) else newest


def _images(snapshot: Snapshot) -> tuple[str, ...]:
    """The kernels whose images stand in /boot; none where nobody listed that."""
    known = snapshot.facts.kernels
    if isinstance(known, Known):
        return known.value.installed
    names = (match["kernel"] for item in _listings(snapshot) for match in finds(item, _IMAGE))
    return kernels.installed(Found(f"/boot/vmlinuz-{name}") for name in names)


def _listings(snapshot: Snapshot) -> Iterator[Item]:
    for item in snapshot.of("listing"):
        if item.where == "host" and _BOOT.fullmatch(item.subject) and not item.source.is_part:
            yield item


def image_of(snapshot: Snapshot, kernel: str) -> tuple[Citation, ...]:
    """Where the image of ``kernel`` is seen."""
    known = snapshot.facts.kernels
    if isinstance(known, Known):
        return (Citation(f"/boot/vmlinuz-{kernel}", f"/boot/vmlinuz-{kernel}", None, known.probe),)
    return tuple(
        cite(item, item.number_at(match.start()))
        for item in _listings(snapshot)
        for match in finds(item, _IMAGE)
        if match["kernel"] == kernel
    )


def _defaults(snapshot: Snapshot, newest: str) -> Iterator[str]:
    """What is named as the default: ``newest`` where that is meant, else as it was written."""
    for item in snapshot.items:
        if item.where != "host" or item.is_register:
            continue
        named = [next(filter(None, match.groups()), "") for match in finds(item, _DEFAULT)]
        if "loader.conf" in item.written:
            named += [match["entry"] for match in finds(item, _LOADER)]
        if _CHOOSES.search(item.written):
            named.append(item.written)
        elif item.outcome == "ok" and _ASKS_DEFAULT.search(item.written):
            named.append(item.text)
        yield from (newest if _means(one, newest) else one for one in named)


def _means(named: str, kernel: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(kernel)}(?:\.conf|-advanced[\w-]*)?(?![\w.+-])", named) is not None


def lacks_module(snapshot: Snapshot, kernel: str) -> bool:
    """Whether all kernels' modules were listed, and ``kernel`` has none of NVIDIA's among them."""
    if any(one.kernel == kernel for one in snapshot.view(modules.on_disk)):
        return False
    infos = snapshot.view(modules.driver_info)
    if any(f"/{kernel}/" in info.filename or info.kernel == kernel for info in infos):
        return False
    running, known = snapshot.view(system.running_kernel), snapshot.facts.module_files
    # weak-modules links what stands in extra and updates into kernels that fit, and no probe lists those links.
    if isinstance(known, Known) and any(
        one.kernel == running and _LINKED_NOWHERE.search(one.path) for one in known.value
    ):
        return True
    return any(_lists_all(item, running) for item in snapshot.of("listing", "dkms-status"))


def _lists_all(item: Item, running: str) -> bool:
    """Whether it names the modules of every kernel: a search of all of /lib/modules, or the whole of ``dkms status``.

    That of the running kernel is to be seen in it, so a search for something else tells nothing.
    """
    is_whole = item.where == "host" and item.outcome == "ok" and not item.source.is_part and not item.source.is_count
    if not is_whole or _RELEASE.search(item.written) or "uname" in item.written:
        return False
    if item.kind == "dkms-status":
        words = item.source.words
        return "-k" not in words and any("installed" in line and running in line for line in item.lines)
    is_search = item.source.words[:1] == ("find",) and _ABOVE_MODULES.fullmatch(item.subject) is not None
    is_open = "-quit" not in item.source.words and "-maxdepth" not in item.source.words
    return is_search and is_open and any(f"/modules/{running}/" in line and "nvidia" in line for line in item.lines)
