"""nouveau, the kernel's own driver for these GPUs, in the way of NVIDIA's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import chains
from gpunode.diagnoses.model import Citation, Family, Fix, Proof, Rule, Verdict, only
from gpunode.diagnoses.remedies import reboot, rebuild_initramfs, setup_step
from gpunode.diagnoses.snapshot import Snapshot, lines_with
from gpunode.diagnoses.views import kernel, modules, pci

_TAKEN: Final = re.compile(r"probe routine was not called for \d+ device|Nouveau kernel driver is currently in use")
_NAMED: Final = re.compile(r"\bnouveau\b")
_BLACKLIST: Final = re.compile(r"^\s*(?:blacklist\s+nouveau|install\s+nouveau\s+/bin/(?:false|true))\b", re.MULTILINE)
_IN_IMAGE: Final = re.compile(r"/nouveau\.ko")


def _decide(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """Which of the two it is: loaded though it is blacklisted, from the initramfs, or simply loaded."""
    proofs = tuple(_in_use(snapshot))
    if not proofs:
        return
    blacklisted = tuple(c for item in snapshot.files("*modprobe.d/*") for c in lines_with(item, _BLACKLIST))
    image = tuple(c for item in snapshot.of("initramfs") for c in lines_with(item, _IN_IMAGE))
    if image and blacklisted:
        summary = "nouveau is blacklisted and still loaded: the initramfs brings it before the blacklist counts"
        yield "nouveau-in-initramfs", Proof(summary, (*image, *blacklisted, *proofs))
        return
    yield "nouveau-bound", Proof("nouveau owns the GPU, so NVIDIA's module is never given it", proofs)


def _in_use(snapshot: Snapshot) -> Iterator[Citation]:
    bound = [gpu for gpu in snapshot.view(pci.gpus) if gpu.driver == "nouveau"]
    for gpu in bound:
        yield gpu.citation
    if modules.loaded(snapshot, "nouveau"):
        yield from modules.lsmod_line(snapshot, "nouveau")
    for message in kernel.said(snapshot, _TAKEN):
        if _NAMED.search(message.text.lower()) or bound:
            yield message.citation
    yield from snapshot.said(_TAKEN, "installer-log", "text")


def _take_away(_: Snapshot) -> Iterable[Fix]:
    yield setup_step("configure", "blacklist nouveau; gpunode also rebuilds the initramfs", "nouveau")
    yield reboot()


def _rebuild(snapshot: Snapshot) -> Iterable[Fix]:
    yield rebuild_initramfs(snapshot)
    yield reboot()


FAMILY: Final = Family(
    "nouveau",
    "nouveau in the way",
    (
        Rule(
            cause="nouveau-bound",
            layer="kernel",
            severity="error",
            disruption="reboot",
            title="nouveau owns the GPU",
            story=(
                "The kernel ships a driver of its own for NVIDIA's GPUs, nouveau, and it binds them early at boot. A "
                "PCI device has one driver at a time, so NVIDIA's module finds every GPU taken: it says that its probe "
                "routine was not called, and unloads. nvidia-smi cannot reach a driver, and all above it fails. "
                "nouveau has to be kept from loading, in /etc/modprobe.d and in the initramfs, and the node rebooted: "
                "a driver that shows a console cannot be taken away safely."
            ),
            sources=(
                "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/",
                "https://download.nvidia.com/XFree86/Linux-x86_64/580.95.05/README/commonproblems.html",
            ),
            check=only("nouveau-bound", _decide),
            remedy=_take_away,
            explains=chains.NO_DRIVER,
        ),
        Rule(
            cause="nouveau-in-initramfs",
            layer="kernel",
            severity="error",
            disruption="reboot",
            title="the initramfs still loads nouveau",
            story=(
                "The blacklist in /etc/modprobe.d is there, and nouveau is loaded all the same: the initramfs was made "
                "before the blacklist was written, holds nouveau and an older copy of /etc/modprobe.d, and loads it "
                "before the root filesystem is there. The initramfs of every kernel has to be made anew, then the node "
                "rebooted."
            ),
            sources=(
                "https://download.nvidia.com/XFree86/Linux-x86_64/580.95.05/README/commonproblems.html",
                "https://manpages.debian.org/stable/initramfs-tools-core/initramfs-tools.7.en.html",
            ),
            check=only("nouveau-in-initramfs", _decide),
            remedy=_rebuild,
            explains=chains.NO_DRIVER | {"nouveau-bound"},
        ),
    ),
)
