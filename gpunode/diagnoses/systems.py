"""Systems on which gpunode does not install: where their driver comes from, and which commands they lack.

No remedy knows all of them. So what a remedy has to be done is fitted to the system at the end: a step with a command
that the system does not have is left in words, and the first that installs something names the system's own way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from gpunode.diagnoses.commands import Command
from gpunode.diagnoses.model import Fix
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import system
from gpunode.facts.patterns import Pattern

_DNF: Final = frozenset({"dnf", "kernel-core", "kernel-modules"})
_BOOT: Final = frozenset(
    {"update-grub", "grub-mkconfig", "grub2-mkconfig", "grubby", "update-initramfs", "dracut", "mkinitcpio"}
)
_PACKAGES: Final = _DNF | _BOOT | {
    "apt", "apt-get", "apt-mark", "apt-cache", "apt-key", "apt-daily-upgrade.service", "dpkg", "dpkg-query",
    "ubuntu-drivers", "yum", "zypper", "pacman", "rpm", "makepkg", "akmods", "gpunode"
}  # fmt: skip
# What is edited in an image is put back, and nothing is built there.
_IMAGE: Final = _PACKAGES | {"dkms", "tee", "sed", "usermod", "systemctl", "modprobe", "reboot"}
# Nobody logs in: what can be typed speaks to the cluster.
_CLOSED: Final = _IMAGE | {"sudo"}
_OF_CLUSTER: Final = frozenset({"kubectl", "oc", "helm", "talosctl"})


class System(NamedTuple):
    """A system that is kept in a way of its own.

    Attributes:
        way: how it comes to a driver and to the toolkit, and where that is documented.
        ids: by which os-release names it, or one that it is like; or how the names of its kernels end.
        lacks: programs that it does not have, or that change what it puts back.
    """

    name: str
    way: str
    ids: tuple[str, ...] = ()
    lacks: frozenset[str] = _IMAGE


_SYSTEMS: Final = (
    System("WSL2", "in Windows, with NVIDIA's driver for Windows; wsl --shutdown starts WSL anew", ("-WSL2",),
           _BOOT | {"dkms", "akmods", "reboot", "modprobe"}),
    System("TrueNAS", "in its web interface, Apps, Settings, Install NVIDIA Drivers", ("+truenas",)),
    System("Unraid", "the plugin Nvidia-Driver, on its page in Settings", ("unraid", "unraid-os", "-Unraid")),
    System("Talos", "the system extensions nvidia-open-gpu-kernel-modules and nvidia-container-toolkit "
           "(https://docs.siderolabs.com/talos/v1.13/configure-your-talos-cluster/hardware-and-drivers/nvidia-gpu)",
           ("talos", "-talos"), _CLOSED),
    System("Bottlerocket", "the variants with -nvidia in their name bring driver, toolkit and device plugin "
           "(https://bottlerocket.dev/en/os/1.56.x/version-information/gpu-drivers/)", ("bottlerocket",), _CLOSED),
    System("Container-Optimized OS", "Google's installer, cos-extensions install gpu "
           "(https://cloud.google.com/container-optimized-os/docs/how-to/run-gpus)", ("cos",)),
    System("Flatcar", "its sysext of NVIDIA's drivers "
           "(https://www.flatcar.org/docs/latest/setup/customization/using-nvidia)", ("flatcar", "-flatcar")),
    System("RHEL CoreOS", "NVIDIA's GPU Operator brings it in its own containers "
           "(https://docs.nvidia.com/datacenter/cloud-native/openshift/latest/index.html)", ("rhcos", "scos")),
    System("NixOS", "hardware.nvidia.open and hardware.nvidia-container-toolkit.enable in its configuration, then "
           "nixos-rebuild switch (https://wiki.nixos.org/wiki/NVIDIA)", ("nixos",)),
    System("Gentoo", "emerge --ask x11-drivers/nvidia-drivers (https://wiki.gentoo.org/wiki/NVIDIA/nvidia-drivers)",
           ("gentoo", "-gentoo"), _PACKAGES),
    System("Alpine", "none: the driver's libraries need glibc, and Alpine has musl; a system with glibc can run it",
           ("alpine",)),
    System("Azure Linux", "with tdnf, from https://packages.microsoft.com/azurelinux/3.0/prod/nvidia/",
           ("azurelinux", "mariner"), _PACKAGES),
    System("SUSE Linux Micro", "transactional-update pkg install, then reboot",
           ("sl-micro", "sle-micro", "suse-microos", "opensuse-microos", "opensuse-leap-micro"), _PACKAGES),
)  # fmt: skip
_OSTREE: Final = System(
    "ostree", "rpm-ostree install, then reboot (https://rpmfusion.org/Howto/NVIDIA)", (), _PACKAGES | {"dkms"}
)
_BEFORE_DNF: Final = System("yum", "with yum, which this system has in the place of dnf", (), _DNF)
# The system is booted from a tree of ostree's, as image mode of RHEL and Fedora's Atomic desktops are.
_IN_A_TREE: Final = Pattern(
    r"\bostree=/ostree/boot|^OSTREE_VERSION=|^VARIANT_ID=\"?(?:silverblue|kinoite|coreos|iot)\b"
)
_KEPT_BY: Final = frozenset({"debian", "ubuntu", "rhel", "fedora", "centos", "suse", "sles", "opensuse", "arch"})


def of(snapshot: Snapshot) -> System | None:
    """The system, where it is kept in a way of its own; None for one of the usual, and where nothing names it."""
    known, running = system.distro(snapshot), system.running_kernel(snapshot)
    names = {known.id, *known.like} if known else set[str]()
    own = {known.id} if known and names & _KEPT_BY else names
    for one in _SYSTEMS:
        if any(name in own or (name[0] in "-+" and running.endswith(name)) for name in one.ids):
            return one
    released = (*snapshot.files("*/os-release"), *snapshot.files("/proc/cmdline"))
    if any(_IN_A_TREE.search(line) for item in released for line in item.lines):
        return _OSTREE
    if snapshot.view(system.has_yum_alone):
        return _BEFORE_DNF
    if known is None or known.id == "linux" or system.is_kept_by_packages(snapshot):
        return None
    return System(known.name, "", (), _PACKAGES)


def fitted(snapshot: Snapshot, fixes: Iterable[Fix]) -> tuple[Fix, ...]:
    """What is to be done, with the commands that this system has."""
    own = snapshot.view(of)
    return tuple(fixes) if own is None else tuple(_in_its_way(own, fixes))


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
    return not words & own.lacks and (own.lacks is not _CLOSED or bool(words & _OF_CLUSTER))
