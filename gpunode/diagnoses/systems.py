"""Systems on which gpunode does not install: what they lack, and where their own guide stands.

No remedy knows all of them. So what a remedy has to be done is fitted to the system at the end: a step with a command
that the system does not have is left in words, and the first that installs something names the system's own way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from gpunode.diagnoses.commands import Command
from gpunode.diagnoses.model import Fix
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import system
from gpunode.facts.patterns import Pattern

_BOOT: Final = frozenset(
    {"update-grub", "grub-mkconfig", "grub2-mkconfig", "grubby", "update-initramfs", "dracut", "mkinitcpio"}
)
_BUILDS: Final = frozenset({"dkms", "akmods"})
_PACKAGES: Final = _BOOT | frozenset(
    {"apt", "apt-get", "apt-mark", "apt-cache", "apt-key", "apt-daily-upgrade.service", "dpkg", "dpkg-query"}
    | {"ubuntu-drivers", "dnf", "yum", "zypper", "pacman", "rpm", "makepkg", "akmods"}
)
# gpunode is a program of Python's, which systems that are one image do not have; what is edited there is put back.
_ONE_IMAGE: Final = _PACKAGES | _BUILDS | {"gpunode", "tee", "sed", "usermod"}
_OF_DNF: Final = frozenset({"dnf", "kernel-core", "kernel-modules"})
_OF_CLUSTER: Final = frozenset({"kubectl", "oc", "helm", "talosctl"})


@dataclass(frozen=True, slots=True)
class System:
    """A system that is kept in a way of its own.

    Attributes:
        ids: by which os-release names it, or one that it is like.
        way: how it comes to a driver and to the toolkit, and where that is documented.
        kernel: how its kernels are named at the end.
        lacks: programs that it does not have, or that change what it puts back.
        is_closed: whether nobody logs in: only what speaks to the cluster can be typed.
    """

    name: str
    ids: frozenset[str]
    way: str
    kernel: str = ""
    lacks: frozenset[str] = _PACKAGES
    is_closed: bool = False


_SYSTEMS: Final = (
    System("WSL2", frozenset(), "in Windows, with NVIDIA's driver for Windows; wsl --shutdown starts WSL anew", "-WSL2",
           _BOOT | _BUILDS | {"reboot", "modprobe"}),
    System("TrueNAS", frozenset(), "in its web interface, Apps, Settings, Install NVIDIA Drivers", "+truenas",
           _ONE_IMAGE),
    System("Unraid", frozenset({"unraid", "unraid-os"}), "the plugin Nvidia-Driver, on its page in Settings", "-Unraid",
           _ONE_IMAGE | {"systemctl"}),
    System("Talos", frozenset({"talos"}),
           "the system extensions nvidia-open-gpu-kernel-modules and nvidia-container-toolkit "
           "(https://docs.siderolabs.com/talos/v1.13/configure-your-talos-cluster/hardware-and-drivers/nvidia-gpu)",
           "-talos", is_closed=True),
    System("Bottlerocket", frozenset({"bottlerocket"}),
           "the variants with -nvidia in their name bring driver, toolkit and device plugin "
           "(https://bottlerocket.dev/en/os/1.56.x/version-information/gpu-drivers/)", is_closed=True),
    System("Container-Optimized OS", frozenset({"cos"}),
           "Google's installer, cos-extensions install gpu "
           "(https://cloud.google.com/container-optimized-os/docs/how-to/run-gpus)", lacks=_ONE_IMAGE),
    System("Flatcar", frozenset({"flatcar"}),
           "its sysext of NVIDIA's drivers (https://www.flatcar.org/docs/latest/setup/customization/using-nvidia)",
           "-flatcar", _ONE_IMAGE),
    System("RHEL CoreOS", frozenset({"rhcos", "scos"}),
           "NVIDIA's GPU Operator brings it in its own containers "
           "(https://docs.nvidia.com/datacenter/cloud-native/openshift/latest/index.html)", lacks=_ONE_IMAGE),
    System("NixOS", frozenset({"nixos"}),
           "hardware.nvidia.open and hardware.nvidia-container-toolkit.enable in its configuration, then "
           "nixos-rebuild switch (https://wiki.nixos.org/wiki/NVIDIA)", lacks=_ONE_IMAGE),
    System("Gentoo", frozenset({"gentoo"}),
           "emerge --ask x11-drivers/nvidia-drivers (https://wiki.gentoo.org/wiki/NVIDIA/nvidia-drivers)", "-gentoo"),
    System("Alpine", frozenset({"alpine"}),
           "none: the driver's libraries need glibc, and Alpine has musl; a system with glibc can run it",
           lacks=_ONE_IMAGE | {"systemctl"}),
    System("Azure Linux", frozenset({"azurelinux", "mariner"}),
           "with tdnf, from https://packages.microsoft.com/azurelinux/3.0/prod/nvidia/"),
    System("SUSE Linux Micro",
           frozenset({"sl-micro", "sle-micro", "suse-microos", "opensuse-microos", "opensuse-leap-micro"}),
           "transactional-update pkg install, then reboot")
)  # fmt: skip
_OSTREE: Final = System(
    "ostree", frozenset(), "rpm-ostree install, then reboot (https://rpmfusion.org/Howto/NVIDIA)",
    lacks=_PACKAGES | _BUILDS
)  # fmt: skip
_BEFORE_DNF: Final = System("yum", frozenset(), "with yum, which this system has in the place of dnf", lacks=_OF_DNF)
# The system is booted from a tree of ostree's, as image mode of RHEL and Fedora's Atomic desktops are.
_IN_A_TREE: Final = Pattern(
    r"\bostree=/ostree/boot|^OSTREE_VERSION=|^VARIANT_ID=\"?(?:silverblue|kinoite|coreos|iot)\b"
)
_KEPT_BY: Final = frozenset({"debian", "ubuntu", "rhel", "fedora", "centos", "suse", "sles", "opensuse", "arch"})


def of(snapshot: Snapshot) -> System | None:
    """The system, where it is kept in a way of its own; None for one of the usual, and where nothing names it."""
    known, running = system.distro(snapshot), system.running_kernel(snapshot)
    like = frozenset() if known is None or _KEPT_BY & {known.id, *known.like} else frozenset(known.like)
    for one in _SYSTEMS:
        if (one.kernel and running.endswith(one.kernel)) or (known and one.ids & {known.id, *like}):
            return one
    released = (*snapshot.files("*/os-release"), *snapshot.files("/proc/cmdline"))
    if any(_IN_A_TREE.search(line) for item in released for line in item.lines):
        return _OSTREE
    if snapshot.view(system.has_yum_alone):
        return _BEFORE_DNF
    if known is None or known.id == "linux" or system.is_kept_by_packages(snapshot):
        return None
    return System(known.name, frozenset({known.id}), "")


def fitted(snapshot: Snapshot, fixes: Iterable[Fix]) -> tuple[Fix, ...]:
    """What is to be done, with the commands that this system has."""
    if (own := snapshot.view(of)) is not None:
        return tuple(_in_its_way(own, fixes))
    return tuple(fixes)


def fitted_look(snapshot: Snapshot, look_at: tuple[Command, ...]) -> tuple[Command, ...]:
    """What is to be looked at, without the commands that this system does not have; the same where none is left."""
    own = snapshot.view(of)
    return tuple(one for one in look_at if own is None or not _words(one) & own.lacks) or look_at


def _in_its_way(own: System, steps: Iterable[Fix]) -> Iterator[Fix]:
    is_told = not own.way
    for fix in steps:
        is_first = fix.kind == "install" and not is_told
        # A part of what belongs together is worse than nothing.
        if all(_has(own, one) for one in fix.commands) and (fix.commands or not is_first):
            yield fix
            continue
        how = f"the way of {own.name}: {own.way}" if is_first else f"by the means of {own.name}"
        is_told = is_told or is_first
        yield replace(fix, text=f"{fix.text}, {how}", commands=())


_WORD: Final = Pattern(r"[\w.+-]+")


def _words(command: str) -> frozenset[str]:
    return frozenset(_WORD.findall(command))


def _has(own: System, command: str) -> bool:
    words = _words(command)
    is_possible = not own.is_closed or ("sudo" not in words and bool(words & _OF_CLUSTER))
    return is_possible and not words & own.lacks
