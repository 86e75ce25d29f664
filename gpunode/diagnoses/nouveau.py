"""nouveau and nova, the kernel's own drivers for these GPUs, in the way of NVIDIA's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.catalog import branches
from gpunode.diagnoses import chains
from gpunode.diagnoses.addresses import DRIVER_GUIDE, DRIVER_README
from gpunode.diagnoses.commands import Shell, command, joined
from gpunode.diagnoses.model import Citation, Confidence, Doubt, Family, Fix, Proof, Rule, Verdict, only
from gpunode.diagnoses.remedies import (
    by_hand,
    reboot,
    rebuild_initramfs,
    rebuilt_initramfs,
    run,
    setup_step,
    takes_gpunode,
)
from gpunode.diagnoses.snapshot import Snapshot, lines_with
from gpunode.diagnoses.views import driver, initramfs, kernel, modules, pci
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern

_OPEN_DRIVERS: Final = ("nouveau", "nova_core", "nova_drm", "nova")
_TAKEN: Final = Pattern(r"probe routine was not called for \d+ device|is already bound to (?:nouveau|nova)")
_NAMED: Final = Pattern(r"\b(?:nouveau|nova[_-]core)\b", re.IGNORECASE)
# NVIDIA's installer, its driver container, and what lists hardware without lspci.
_IN_USE: Final = Pattern(
    r"[Nn]ouveau kernel driver is currently in use|driver=(?:nouveau|nova[_-]core)|driver: (?:nouveau|nova[_-]core)\b"
    r"|drivers/(?:nouveau|NovaCore|nova[_-]core)/?$|[Cc]ould not unload (?:the )?nouveau"
    r"|Kernel driver in use: (?:nouveau|NovaCore|nova[_-]core)"
    # The name of a DRM device, in debugfs.
    r"|^(?:nouveau|nova[_-]drm) dev=[0-9a-f]{4}:",
    re.MULTILINE,
)
# The folder of a driver on the bus has a link for each device that it owns.
_FOLDER: Final = Pattern(r"/bus/pci/drivers/(?:nouveau|NovaCore|nova[_-]core)/?$")
_OWNED: Final = Pattern(r"(?:^|\s)[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](?=\s|$|@)", re.MULTILINE)
# What the driver itself says when it has taken up a GPU.
_STARTED: Final = Pattern(
    r"nouveau [0-9a-f:.]{7,12}: (?:NVIDIA G\w|\[?drm\]?:? ?(?:VRAM|nouveau)|vgaarb|enabling device|DRM: VRAM)"
    r"|Initialized nouveau \d|nouveaudrmfb|NovaCore [0-9a-f:.]{7,12}: |Initialized nova \d"
)
_BLACKLIST: Final = Pattern(
    r"^[ \t]*(?:blacklist\s+(?:nouveau|nova[_-]core)|install\s+nouveau\s+\S*/(?:false|true)|alias\s+nouveau\s+off)\b",
    re.MULTILINE,
)
_AT_BOOT: Final = Pattern(r"(?:modprobe\.blacklist|rd\.driver\.blacklist|module_blacklist)=\S*\bnouveau\b")
_NO_MODESET: Final = Pattern(r"nouveau\.modeset=0")
_IN_IMAGE: Final = Pattern(r"/(?:nouveau|nova[_-]core)\.ko")


def _decide(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """Which of the two it is: loaded though it is blacklisted, from the initramfs, or simply loaded."""
    if driver.works(snapshot):
        return
    proofs = tuple(dict.fromkeys(_in_use(snapshot)))
    if not proofs:
        return
    if _is_all_there_is(snapshot):
        summary = "nouveau drives a GPU that no driver of NVIDIA's that is still maintained drives: it is all there is"
        left = by_hand(
            "wait", "leave nouveau where it is: without it the machine has no picture, and no driver instead"
        )
        yield "nouveau-bound", Proof(summary, proofs, remedy=(left,), disruption="none", severity="info")
        return
    blacklisted, image = tuple(_blacklisted(snapshot)), tuple(_in_image(snapshot))
    looked = any(item.outcome == "ok" for item in initramfs.of_running(snapshot))
    if blacklisted and (image or not looked):
        confidence: Confidence = "certain" if image else "likely"
        others = tuple(_in_images(initramfs.of_others(snapshot))) if image else ()
        also = f" (so does the one of {', '.join(name for name, _ in others)})" if others else ""
        summary = f"nouveau is blacklisted and still loaded: the initramfs brings it{also} before the blacklist counts"
        cited = (*image, *blacklisted, *proofs, *(line for _, line in others))
        yield "nouveau-in-initramfs", Proof(summary, cited, confidence)
        return
    if image and not _looked_for_blacklist(snapshot):
        yield (
            "nouveau-bound",
            Doubt(_WHICH, (Shell("grep -r nouveau /etc/modprobe.d /lib/modprobe.d"),), (*proofs, *image), _BOTH),
        )
        return
    ruled_out = ("an initramfs that holds it: it does not",) if blacklisted and looked else ()
    summary = "nouveau owns the GPU, so NVIDIA's module is never given it"
    # Where nobody has looked for a blacklist, nouveau may have come from the initramfs in spite of it.
    is_sure = not image and (looked or _looked_for_blacklist(snapshot))
    sure: Confidence = "certain" if is_sure else "likely"
    yield "nouveau-bound", Proof(summary, (*proofs, *image), sure, ruled_out, gpu=_the_one(snapshot))


_WHICH: Final = (
    "nouveau owns the GPU and is in the initramfs: is it blacklisted, and loaded from there in spite of that?"
)
_BOTH: Final = ("nouveau-in-initramfs",)


def _the_one(snapshot: Snapshot) -> str:
    """The GPU that it owns, where the others of the node have other drivers; else empty."""
    gpus = snapshot.view(pci.gpus)
    owned = [gpu.address for gpu in gpus if gpu.driver and _is_open(gpu.driver)]
    return owned[0] if len(owned) == 1 < len(gpus) else ""


def _is_open(owner: str) -> bool:
    return owner.lower().replace("-", "_") in {*_OPEN_DRIVERS, "novacore"}


def _is_all_there_is(snapshot: Snapshot) -> bool:
    """Whether every GPU is too old for each branch that NVIDIA maintains."""
    models = [gpu.model for gpu in snapshot.view(pci.gpus)]
    lasts = [branches.find(model.last_branch) if model and model.last_branch else None for model in models]
    return bool(models) and all(last is not None and not last.active for last in lasts)


def _looked_for_blacklist(snapshot: Snapshot) -> bool:
    """Whether the settings of modprobe were read or listed."""
    return any("modprobe.d" in item.written or "modprobe.d" in item.subject for item in snapshot.items if item.is_seen)


def _in_use(snapshot: Snapshot) -> Iterator[Citation]:
    """Where it is seen that nouveau or nova owns a GPU, or that it is loaded and no other driver owns one."""
    gpus = snapshot.view(pci.gpus)
    bound = [gpu for gpu in gpus if gpu.driver and _is_open(gpu.driver)]
    yield from (gpu.citation for gpu in bound)
    for message in kernel.said(snapshot, _TAKEN):
        if _NAMED.search(message.text) or bound:
            yield message.citation
    yield from (line for item in snapshot.items if item.kind not in {"lspci", "packages"} for line in _shown(item))
    if any(gpu.driver for gpu in gpus) and not bound:
        return
    for name in _OPEN_DRIVERS:
        if modules.loaded(snapshot, name) and not snapshot.says(_NO_MODESET):
            yield from modules.lsmod_line(snapshot, name)
    if not modules.loaded(snapshot, "nvidia"):
        yield from (message.citation for message in kernel.said(snapshot, _STARTED)[:2])


def _shown(item: Item) -> Iterator[Citation]:
    if item.where == "host" and item.is_seen and not item.is_register:
        yield from lines_with(item, _IN_USE)
        if item.kind == "listing" and _FOLDER.search(item.subject):
            yield from lines_with(item, _OWNED)


def _blacklisted(snapshot: Snapshot) -> Iterator[Citation]:
    for item in snapshot.files("*modprobe.d/*"):
        yield from lines_with(item, _BLACKLIST)
    for item in snapshot.items:
        if item.kind == "listing" and "modprobe.d" in item.text + item.written:
            yield from lines_with(item, _GREPPED)
        elif "cmdline" in item.written or "grub" in item.written:
            yield from lines_with(item, _AT_BOOT)


# "/etc/modprobe.d/blacklist-nouveau.conf:blacklist nouveau", as grep -r prints it.
_GREPPED: Final = Pattern(r"(?:^|modprobe\.d/[\w.-]+:)\s*blacklist\s+nouveau\b")


def _in_image(snapshot: Snapshot) -> Iterator[Citation]:
    for item in initramfs.of_running(snapshot):
        yield from lines_with(item, _IN_IMAGE)


def _in_images(items: tuple[Item, ...]) -> Iterator[tuple[str, Citation]]:
    """The kernels whose images hold it, each with the line that shows it."""
    for item in items:
        if line := next(lines_with(item, _IN_IMAGE), None):
            yield initramfs.release_of(item), line


_FILE: Final = "/etc/modprobe.d/blacklist-nouveau.conf"


def _take_away(snapshot: Snapshot) -> Iterable[Fix]:
    if takes_gpunode(snapshot):
        yield setup_step(snapshot, "configure", "blacklist nouveau; gpunode also rebuilds the initramfs", "nouveau")
    else:
        names = ("nouveau", "nova_core", "nova_drm") if _has_nova(snapshot) else ("nouveau",)
        lines = r"\n".join([*(f"blacklist {name}" for name in names), "options nouveau modeset=0"])
        yield run(
            "configure",
            "blacklist nouveau",
            joined(command("printf", rf"{lines}\n"), Shell("|"), command("sudo", "tee", _FILE)),
        )
        yield rebuild_initramfs(snapshot)
    yield reboot()


def _has_nova(snapshot: Snapshot) -> bool:
    return any(modules.loaded(snapshot, name) for name in _OPEN_DRIVERS[1:])


FAMILY: Final = Family(
    "nouveau",
    "nouveau in the way",
    (
        Rule(
            cause="nouveau-bound",
            layer="kernel",
            storey="kernel",
            severity="error",
            disruption="reboot",
            title="nouveau owns the GPU",
            story=(
                "The kernel ships drivers of its own for NVIDIA's GPUs, nouveau and now nova, which bind them early "
                "at boot. A PCI device has one driver at a time, so NVIDIA's module finds every GPU taken: it says "
                "that its probe routine was not called, and unloads. nvidia-smi cannot reach a driver, and all above "
                "it fails. nouveau has to be kept from loading, in /etc/modprobe.d and in the initramfs, and the node "
                "rebooted: a driver that shows a console cannot be taken away safely."
            ),
            sources=(
                DRIVER_GUIDE,
                f"{DRIVER_README}commonproblems.html",
                "https://github.com/mattshma/bigdata/issues/133",
                "https://github.com/negativo17/nvidia-driver/issues/73",
            ),
            check=only("nouveau-bound", _decide),
            remedy=_take_away,
            explains=chains.NO_DRIVER,
        ),
        Rule(
            cause="nouveau-in-initramfs",
            layer="kernel",
            storey="kernel",
            severity="error",
            disruption="reboot",
            title="the initramfs still loads nouveau",
            story=(
                "The blacklist in /etc/modprobe.d is there, and nouveau is loaded all the same: the initramfs was "
                "made before the blacklist was written, holds nouveau and an older copy of /etc/modprobe.d, and loads "
                "it before the root filesystem is there. The initramfs of every kernel has to be made anew, then the "
                "node rebooted."
            ),
            sources=(
                f"{DRIVER_README}commonproblems.html",
                "https://manpages.debian.org/stable/initramfs-tools-core/initramfs-tools.7.en.html",
                "https://github.com/openSUSE/nvidia-driver-G06/issues/62",
            ),
            check=only("nouveau-in-initramfs", _decide),
            remedy=rebuilt_initramfs,
            explains=chains.NO_DRIVER | {"nouveau-bound"},
        ),
    ),
)
