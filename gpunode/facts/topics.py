"""What a command asks about, however it is spelled: a later answer about the same holds, whatever the words.

``lsmod | grep nouveau`` and ``lsmod | grep -E 'nouveau|nvidia'`` both ask whether nouveau is loaded, ``lspci -nnk`` and
``lspci -k -s 07:00.0`` both which driver has that device. The forms are those of kmod, pciutils and nvidia-smi.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, TypeAlias

from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import Source

Topics: TypeAlias = frozenset[str]

DRIVER: Final = "the driver"
# Of these it matters whether they are there or not; of all others only that they are.
_OWNERS: Final = ("nvidia", "nouveau")
_OTHERS: Final = ("vfio_pci", "nvidiafb", "nova_core", "nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia_peermem")
# What nvidia-smi says instead of an answer: it has asked for the driver, and for nothing else.
_NO_DRIVER: Final = Pattern(
    r"\A\s*(?:NVIDIA-SMI has failed|Failed to initialize NVML|No devices were found|Unable to determine the device)"
)
_VERSIONS: Final = frozenset({"/proc/driver/nvidia/version", "/sys/module/nvidia/version"})
_SHOWN: Final = Pattern(r"^\|\s+\d{1,3}\s+\S[^|]{2,60}\|\s*[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:|^GPU \d+: \S", re.MULTILINE)


def of_boot(seen: Source, said: str) -> Topics:
    """What of the running kernel's state the answer tells; empty where it tells of what outlives a boot."""
    if seen.kind == "lsmod":
        return _modules(seen, said)
    if seen.kind in {"nvidia-smi", "nvidia-smi-q"}:
        is_whole = seen.kind == "nvidia-smi" and not any(word.startswith("--query") for word in seen.words)
        return frozenset({DRIVER}) if is_whole or _NO_DRIVER.search(said) else frozenset()
    if seen.kind == "modprobe":
        return frozenset({_loading(seen.subject)} if seen.subject else ())
    if seen.kind == "uname":
        return frozenset({"the kernel"})
    if seen.kind in {"file", "listing"} and seen.subject.startswith(("/proc/", "/sys/", "/dev/")):
        return frozenset({DRIVER if seen.subject in _VERSIONS else seen.subject})
    return frozenset()


@lru_cache(maxsize=512)
def told(seen: Source, said: str) -> Topics:
    """All that the answer tells anew, also of what it was not asked for."""
    own = of_boot(seen, said)
    if _module("nvidia") in own:
        return own | {DRIVER}
    if DRIVER in own and _SHOWN.search(said):
        return own | {_module("nvidia"), _loading("nvidia")}
    return own


def asks_again(later: Source, seen: Source, said: str) -> bool:
    """Whether ``later`` asks for all that the answer of ``seen``, of the same kind, told."""
    if not seen.kind == later.kind == "lsmod" or seen.where != later.where or later.is_part:
        return False
    told_before = _modules(seen, said)
    return bool(told_before) and told_before <= _modules(later, said)


def _modules(seen: Source, said: str) -> Topics:
    listed = (name for name in _OTHERS if re.search(rf"^{name}\s", said, re.MULTILINE))
    return frozenset(_module(name) for name in (*_OWNERS, *listed) if seen.lets_through(f"{name} 16384 0"))


def _module(name: str) -> str:
    return f"whether {name} is loaded"


def _loading(name: str) -> str:
    return f"whether {name.replace('-', '_')} can be loaded"


# --- the bus ------------------------------------------------------------------------------------------------------

_HEAD: Final = Pattern(r"^(?P<slot>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\s", re.IGNORECASE)
_LABEL: Final = Pattern(r"^\s+(?P<label>[A-Za-z][\w ]{1,30}):")
_BOUND: Final = ("Kernel driver in use", "Kernel modules")
_GONE: Final = "(rev ff)"


def without_told_again(said: str, later: Iterable[str], *, is_changed: bool = True) -> str:
    """An answer of lspci without what later ones tell anew of the same devices; its lines keep their numbers.

    The driver that has a device is told by the line that names it, and by its absence beside the modules for it. What a
    device is, stays so; a link or a device that is well again though nothing was changed may fail again.
    """
    again: dict[str, set[str]] = {}
    back = set[str]()
    own, gone = _told_of(said)
    for text in later if gone or any(own.values()) else ():
        labels, there = _told_of(text)
        back |= labels.keys() & gone.keys() - there.keys() if is_changed else set()
        for slot in labels.keys() & own.keys():
            told_again = labels[slot] if is_changed else labels[slot] & set(_BOUND)
            again.setdefault(slot, set()).update(told_again & own[slot])
    if not back and not any(again.values()):
        return said
    return "\n".join(
        "" if (label in again.get(slot, ()) if label else _GONE in line and slot in back) else line
        for slot, label, line in _lines(said)
    )


@lru_cache(maxsize=512)
def _told_of(text: str) -> tuple[dict[str, frozenset[str]], dict[str, None]]:
    """The devices that an answer of lspci names, each with what it tells of it, and those that no longer answer."""
    found: dict[str, set[str]] = {}
    gone: dict[str, None] = {}
    bound = _BOUND if any(label in text for label in _BOUND) else ()
    for slot, label, line in _lines(text):
        if not label:
            found.setdefault(slot, set(bound))
            gone.update({slot: None} if _GONE in line else {})
        elif slot in found and line:
            found[slot].add(label)
    return {slot: frozenset(labels) for slot, labels in found.items()}, gone


def without_owners(said: str) -> str:
    """An answer of lspci without the drivers that had the devices."""
    return "\n".join("" if label in _BOUND else line for _, label, line in _lines(said))


def _lines(said: str) -> Iterator[tuple[str, str, str]]:
    """The lines, each with the device that it is about, and with its label; that has none where the device is named."""
    slot = ""
    for line in said.split("\n"):
        if head := _HEAD.match(line):
            slot = head["slot"].lower()
            slot = slot if slot.count(":") > 1 else f"0000:{slot}"
            yield slot, "", line
        else:
            label = _LABEL.match(line)
            yield slot, label["label"] if label else line or " ", line
