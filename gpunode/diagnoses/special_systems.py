"""Adapt remedies to systems that gpunode does not set up: how they install drivers, and which commands they lack.

Remedies do not know these systems. Afterwards, a step with a missing command keeps only its text, and the first step
that installs something names the system's own method.
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

_DNF_PROGRAMS: Final = frozenset({"dnf", "kernel-core", "kernel-modules"})
_BOOT_PROGRAMS: Final = frozenset(
    {"update-grub", "grub-mkconfig", "grub2-mkconfig", "grubby", "update-initramfs", "dracut", "mkinitcpio"}
)
_PACKAGE_PROGRAMS: Final = _DNF_PROGRAMS | _BOOT_PROGRAMS | {
    "apt", "apt-get", "apt-mark", "apt-cache", "apt-key", "apt-daily-upgrade.service", "dpkg", "dpkg-query",
    "ubuntu-drivers", "yum", "zypper", "pacman", "rpm", "makepkg", "akmods", "gpunode"
}  # fmt: skip
# Edits in an image are reverted, and nothing can be built there.
_NOT_IN_IMAGES: Final = _PACKAGE_PROGRAMS | {"dkms", "tee", "sed", "usermod", "systemctl", "modprobe", "reboot"}
# Nobody logs in: only commands to the cluster can be typed.
_PROGRAMS_CLOSED_SYSTEMS_LACK: Final = _NOT_IN_IMAGES | {"sudo"}
_CLUSTER_CLIENT_PROGRAMS: Final = frozenset({"kubectl", "oc", "helm", "talosctl"})


class SpecialSystem(NamedTuple):
    """A system with its own way of installing software.

    Attributes:
        install_method: how to install driver and toolkit, and where this is documented.
        ids: os-release ids, or suffixes of kernel names.
        missing_programs: programs that the system lacks or whose changes it reverts.
    """

    name: str
    install_method: str
    ids: tuple[str, ...] = ()
    missing_programs: frozenset[str] = _NOT_IN_IMAGES


_SPECIAL_SYSTEMS: Final = (
    SpecialSystem("WSL2", "in Windows, with NVIDIA's driver for Windows; wsl --shutdown restarts WSL", ("-WSL2",),
           _BOOT_PROGRAMS | {"dkms", "akmods", "reboot", "modprobe"}),
    SpecialSystem("TrueNAS", "in its web interface, Apps, Settings, Install NVIDIA Drivers", ("+truenas",)),
    SpecialSystem("Unraid", "the plugin Nvidia-Driver, on its page in Settings", ("unraid", "unraid-os", "-Unraid")),
    SpecialSystem("Talos", "the system extensions nvidia-open-gpu-kernel-modules and nvidia-container-toolkit "
           "(https://docs.siderolabs.com/talos/v1.13/configure-your-talos-cluster/hardware-and-drivers/nvidia-gpu)",
           ("talos", "-talos"), _PROGRAMS_CLOSED_SYSTEMS_LACK),
    SpecialSystem("Bottlerocket", "the variants with -nvidia in their name include driver, toolkit and device "
           "plugin (https://bottlerocket.dev/en/os/1.56.x/version-information/gpu-drivers/)",
           ("bottlerocket",), _PROGRAMS_CLOSED_SYSTEMS_LACK),
    SpecialSystem("Container-Optimized OS", "Google's installer, cos-extensions install gpu "
           "(https://cloud.google.com/container-optimized-os/docs/how-to/run-gpus)", ("cos",)),
    SpecialSystem("Flatcar", "its sysext of NVIDIA's drivers "
           "(https://www.flatcar.org/docs/latest/setup/customization/using-nvidia)", ("flatcar", "-flatcar")),
    SpecialSystem("RHEL CoreOS", "NVIDIA's GPU Operator installs it in its own containers "
           "(https://docs.nvidia.com/datacenter/cloud-native/openshift/latest/index.html)", ("rhcos", "scos")),
    SpecialSystem("NixOS", "hardware.nvidia.open and hardware.nvidia-container-toolkit.enable in its configuration, "
           "then nixos-rebuild switch (https://wiki.nixos.org/wiki/NVIDIA)", ("nixos",)),
    SpecialSystem("Gentoo", "emerge --ask x11-drivers/nvidia-drivers (https://wiki.gentoo.org/wiki/NVIDIA/nvidia-drivers)",
           ("gentoo", "-gentoo"), _PACKAGE_PROGRAMS),
    SpecialSystem("Alpine", "not possible: the driver's libraries need glibc, and Alpine has musl; use a system with "
           "glibc", ("alpine",)),
    SpecialSystem("Azure Linux", "with tdnf, from https://packages.microsoft.com/azurelinux/3.0/prod/nvidia/",
           ("azurelinux", "mariner"), _PACKAGE_PROGRAMS),
    SpecialSystem("SUSE Linux Micro", "transactional-update pkg install, then reboot",
           ("sl-micro", "sle-micro", "suse-microos", "opensuse-microos", "opensuse-leap-micro"), _PACKAGE_PROGRAMS),
)  # fmt: skip
_OSTREE_SYSTEM: Final = SpecialSystem(
    "ostree", "rpm-ostree install, then reboot (https://rpmfusion.org/Howto/NVIDIA)", (), _PACKAGE_PROGRAMS | {"dkms"}
)
_YUM_SYSTEM: Final = SpecialSystem("yum", "with yum, which this system has instead of dnf", (), _DNF_PROGRAMS)
# The system was booted from an ostree, like RHEL's image mode and Fedora's Atomic desktops.
_OSTREE_TRACE: Final = Pattern(
    r"\bostree=/ostree/boot|^OSTREE_VERSION=|^VARIANT_ID=\"?(?:silverblue|kinoite|coreos|iot)\b"
)
_PACKAGE_BASED_DISTROS: Final = frozenset(
    {"debian", "ubuntu", "rhel", "fedora", "centos", "suse", "sles", "opensuse", "arch"}
)


def special_system(snapshot: Snapshot) -> SpecialSystem | None:
    """Return the special system; None for an ordinary or unknown one."""
    known, running = system.find_distro(snapshot), system.running_kernel(snapshot)
    names = {known.id, *known.like} if known else set[str]()
    own = {known.id} if known and names & _PACKAGE_BASED_DISTROS else names
    for one in _SPECIAL_SYSTEMS:
        if any(name in own or (name[0] in "-+" and running.endswith(name)) for name in one.ids):
            return one
    released = (*snapshot.files("*/os-release"), *snapshot.files("/proc/cmdline"))
    if any(_OSTREE_TRACE.search(line) for item in released for line in item.lines):
        return _OSTREE_SYSTEM
    if snapshot.view(system.has_yum_only):
        return _YUM_SYSTEM
    if known is None or known.id == "linux" or system.uses_known_package_manager(snapshot):
        return None
    return SpecialSystem(known.name, "", (), _PACKAGE_PROGRAMS)


def fit_fixes(snapshot: Snapshot, fixes: Iterable[Fix]) -> tuple[Fix, ...]:
    """Return the fixes with only the commands that exist on this system."""
    own = snapshot.view(special_system)
    return tuple(fixes) if own is None else tuple(_adapt_fixes(own, fixes))


def keep_available_commands(snapshot: Snapshot, look_at: tuple[Command, ...]) -> tuple[Command, ...]:
    """Return the commands that exist on this system; all if none does."""
    own = snapshot.view(special_system)
    return tuple(one for one in look_at if own is None or not _command_words(one) & own.missing_programs) or look_at


def _adapt_fixes(system: SpecialSystem, steps: Iterable[Fix]) -> Iterator[Fix]:
    is_told = not system.install_method
    for fix in steps:
        is_first = fix.kind == "install" and not is_told
        # Half of a step's commands would be worse than none.
        if all(_can_run(system, command) for command in fix.commands) and (fix.commands or not is_first):
            yield fix
            continue
        how = f"on {system.name}: {system.install_method}" if is_first else f"with the tools of {system.name}"
        is_told = is_told or is_first
        yield replace(fix, text=f"{fix.text}, {how}", commands=())


_COMMAND_WORD: Final = Pattern(r"[\w.+-]+")


def _command_words(command: str) -> frozenset[str]:
    return frozenset(_COMMAND_WORD.findall(command))


def _can_run(system: SpecialSystem, command: str) -> bool:
    words = _command_words(command)
    return not words & system.missing_programs and (
        system.missing_programs is not _PROGRAMS_CLOSED_SYSTEMS_LACK or bool(words & _CLUSTER_CLIENT_PROGRAMS)
    )
