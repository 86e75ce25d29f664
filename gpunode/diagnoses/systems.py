"""Systems that are kept otherwise than Debian, RHEL, SUSE and Arch: what they lack, and how the same is done there.

No remedy knows all of them. So what a remedy has to be done is fitted to the system at the end: a step with a command
that the system does not have is left in words, with the system's own way where that is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.commands import Command, Shell, replaced
from gpunode.diagnoses.model import Fix
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import system
from gpunode.facts.patterns import Pattern

# What a command is for.
Purpose: TypeAlias = Literal[
    "driver", "toolkit", "runtime", "settings", "kernel", "initramfs", "packages", "reboot", ""
]

_DEBS: Final = frozenset(
    {"apt", "apt-get", "apt-mark", "apt-cache", "apt-key", "apt-daily-upgrade.service", "dpkg", "dpkg-query"}
    | {"ubuntu-drivers"}
)
_RPMS: Final = frozenset({"dnf", "yum", "zypper"})
_MANAGERS: Final = _DEBS | _RPMS | {"pacman", "rpm", "makepkg"}
_LOADERS: Final = frozenset({"update-grub", "grub-mkconfig", "grub2-mkconfig", "grubby"})
_IMAGES: Final = frozenset({"update-initramfs", "dracut", "mkinitcpio"})
_BUILDS: Final = frozenset({"dkms", "akmods"})
_EDITS: Final = frozenset({"tee", "sed", "usermod"})
# It is a program of Python's, which systems that are one image do not have.
_OURS: Final = frozenset({"gpunode"})
_ONE_IMAGE: Final = _MANAGERS | _LOADERS | _IMAGES | _BUILDS | _OURS


@dataclass(frozen=True, slots=True)
class System:
    """A system that is kept in a way of its own.

    Attributes:
        ids: by which os-release names it, or one that it is like.
        lacks: programs that it does not have, or that change what it puts back.
        ways: how it does what commands are for elsewhere, each with where that is documented.
        kernel: how its kernels are named at the end.
        is_closed: whether nobody logs in: only what speaks to the cluster can be typed.
    """

    name: str
    ids: frozenset[str]
    lacks: frozenset[str]
    ways: Mapping[Purpose, str]
    kernel: str = ""
    is_closed: bool = False


_TALOS: Final = "https://docs.siderolabs.com/talos/v1.13/configure-your-talos-cluster/hardware-and-drivers/nvidia-gpu"
_TOOLKIT_ON_TALOS: Final = (
    f"the system extension nvidia-container-toolkit, or the GPU Operator, by its release ({_TALOS})"
)
_BOTTLEROCKET: Final = (
    "the variants with -nvidia in their name bring driver, toolkit and device plugin: start the node from the newest "
    "image of one (https://bottlerocket.dev/en/os/1.56.x/version-information/gpu-drivers/)"
)
_COS: Final = "https://cloud.google.com/container-optimized-os/docs/how-to/run-gpus"
_FLATCAR: Final = "https://www.flatcar.org/docs/latest/setup/customization/using-nvidia"
_OPERATOR: Final = (
    "NVIDIA's GPU Operator brings it in its own containers "
    "(https://docs.nvidia.com/datacenter/cloud-native/openshift/latest/index.html)"
)
_MACHINE_CONFIG: Final = "https://docs.openshift.com/container-platform/4.14/post_installation_configuration/machine-configuration-tasks.html"
_NIXOS: Final = "then nixos-rebuild switch (https://wiki.nixos.org/wiki/NVIDIA)"
_CONTAINERS_ON_NIXOS: Final = f"hardware.nvidia-container-toolkit.enable = true, {_NIXOS}; containers ask by CDI"
_GENTOO: Final = "https://wiki.gentoo.org/wiki/NVIDIA/nvidia-drivers"
_LAYERED: Final = "https://rpmfusion.org/Howto/NVIDIA"
_TRUENAS: Final = "in its web interface, Apps, Settings, Install NVIDIA Drivers"
_UNRAID: Final = "the plugin Nvidia-Driver"
_TRANSACTIONAL: Final = "transactional-update pkg install, then reboot"

_SYSTEMS: Final = (
    System(
        "Talos",
        frozenset({"talos"}),
        frozenset(),
        {
            "driver": "the system extensions nvidia-open-gpu-kernel-modules, or nonfree-kmod-nvidia, and "
            "nvidia-container-toolkit in its image, and the modules in machine.kernel.modules "
            f"({_TALOS})",
            "toolkit": _TOOLKIT_ON_TALOS,
            "runtime": _TOOLKIT_ON_TALOS,
            "settings": "in its machine configuration, by talosctl patch mc, or the kernel arguments of its image",
            "kernel": "the kernel arguments of its image",
            "reboot": "talosctl reboot",
        },
        "-talos",
        is_closed=True,
    ),
    System(
        "Bottlerocket",
        frozenset({"bottlerocket"}),
        frozenset(),
        {
            "driver": _BOTTLEROCKET,
            "toolkit": _BOTTLEROCKET,
            "runtime": _BOTTLEROCKET,
            "settings": "by the settings of its API",
            "kernel": "by the settings of its API",
        },
        is_closed=True,
    ),
    System(
        "Container-Optimized OS",
        frozenset({"cos"}),
        _ONE_IMAGE,
        {
            "driver": f"Google's installer, cos-extensions install gpu ({_COS})",
            "toolkit": f"containers are given the device files and /var/lib/nvidia by hand ({_COS})",
            "runtime": f"containers are given the device files and /var/lib/nvidia by hand ({_COS})",
        },
    ),
    System(
        "Flatcar",
        frozenset({"flatcar"}),
        _ONE_IMAGE,
        {
            "driver": f"its sysext of NVIDIA's drivers, or nvidia.service ({_FLATCAR})",
            "toolkit": f"a sysext ({_FLATCAR})",
        },
        "-flatcar",
    ),
    System(
        "RHEL CoreOS",
        frozenset({"rhcos", "scos"}),
        _ONE_IMAGE | _EDITS,
        {
            "driver": _OPERATOR,
            "toolkit": _OPERATOR,
            "runtime": _OPERATOR,
            "settings": "a MachineConfig, with kernelArguments (modprobe.blacklist=nouveau keeps nouveau out) or files "
            f"({_MACHINE_CONFIG})",
            "kernel": f"kernelArguments of a MachineConfig ({_MACHINE_CONFIG})",
        },
    ),
    System(
        "NixOS",
        frozenset({"nixos"}),
        _ONE_IMAGE | _EDITS,
        {
            "driver": 'services.xserver.videoDrivers = [ "nvidia" ] and hardware.nvidia.open in its configuration, '
            f"{_NIXOS}",
            "toolkit": _CONTAINERS_ON_NIXOS,
            "runtime": _CONTAINERS_ON_NIXOS,
            "settings": "boot.blacklistedKernelModules, boot.kernelModules or boot.extraModprobeConfig, then "
            "nixos-rebuild boot",
            "kernel": "boot.kernelParams, then nixos-rebuild boot",
            "packages": "in its configuration, then nixos-rebuild switch",
        },
    ),
    System(
        "Gentoo",
        frozenset({"gentoo"}),
        _MANAGERS | {"update-initramfs", "mkinitcpio", "update-grub", "grubby", "grub2-mkconfig", "akmods"},
        {
            "driver": f"emerge --ask x11-drivers/nvidia-drivers ({_GENTOO})",
            "toolkit": "emerge --ask app-containers/nvidia-container-toolkit",
            "kernel": "in /etc/default/grub, then grub-mkconfig",
            "initramfs": "with the program that made it (dracut, genkernel)",
            "packages": "with emerge",
        },
        "-gentoo",
    ),
    System(
        "Alpine",
        frozenset({"alpine"}),
        _MANAGERS | _LOADERS | _IMAGES | _BUILDS | _OURS | {"systemctl"},
        {
            "driver": "none: the driver's libraries need glibc, and Alpine has musl; a system with glibc can run it",
            "toolkit": "none: the driver's libraries need glibc, and Alpine has musl; a system with glibc can run it",
            "reboot": "reboot",
        },
    ),
    System(
        "Azure Linux",
        frozenset({"azurelinux", "mariner"}),
        _DEBS | _RPMS | {"pacman", "update-initramfs", "mkinitcpio", "update-grub", "grubby", "akmods"},
        {
            "driver": "tdnf install cuda or cuda-open, from Microsoft's repository for NVIDIA's driver "
            "(https://packages.microsoft.com/azurelinux/3.0/prod/nvidia/)",
            "packages": "with tdnf",
            "toolkit": "with tdnf, from NVIDIA's repository for rpm packages",
        },
    ),
    System(
        "SUSE Linux Micro",
        frozenset({"sl-micro", "sle-micro", "suse-microos", "opensuse-microos", "opensuse-leap-micro"}),
        _DEBS | _RPMS | {"pacman", "mkinitcpio", "update-initramfs", "dracut", "grub2-mkconfig"},
        {
            "driver": _TRANSACTIONAL,
            "toolkit": _TRANSACTIONAL,
            "packages": _TRANSACTIONAL,
            "kernel": "in /etc/default/grub, then transactional-update grub.cfg and reboot",
            "initramfs": "transactional-update initrd, then reboot",
        },
    ),
)
# Their os-release may be that of another system: the kernel's name tells.
_BY_KERNEL: Final = (
    System(
        "WSL2",
        frozenset(),
        _LOADERS | _IMAGES | _BUILDS | {"reboot", "modprobe"},
        {
            "reboot": "wsl --shutdown in Windows, which starts it anew when it is used next",
            "kernel": "kernelCommandLine in .wslconfig in Windows, then wsl --shutdown",
        },
        "-WSL2",
    ),
    System(
        "TrueNAS",
        frozenset(),
        _ONE_IMAGE,
        {
            "driver": f"{_TRUENAS}; the driver becomes newer with TrueNAS",
            "toolkit": f"{_TRUENAS}, which brings it along",
            "runtime": f"{_TRUENAS}, which brings it along",
            "kernel": "with midclt call system.advanced.update and kernel_extra_options",
        },
        "+truenas",
    ),
    System(
        "Unraid",
        frozenset({"unraid", "unraid-os"}),
        _ONE_IMAGE | {"systemctl"},
        {
            "driver": f"{_UNRAID}, on its page in Settings; it brings the module for this kernel",
            "toolkit": f"{_UNRAID}, which brings it along",
            "runtime": f"{_UNRAID}, which brings it along; then Docker is stopped and started in Settings",
            "reboot": "in its web interface, Main",
            "kernel": "in /boot/syslinux/syslinux.cfg, by the page of the flash device",
        },
        "-Unraid",
    ),
)
_OSTREE: Final = System(
    "ostree",
    frozenset(),
    _DEBS | _RPMS | {"pacman"} | _LOADERS | _IMAGES | _BUILDS,
    {
        "driver": "rpm-ostree install akmod-nvidia xorg-x11-drv-nvidia-cuda, from RPM Fusion, with kernel arguments "
        f"that keep nouveau out, then reboot ({_LAYERED})",
        "toolkit": "NVIDIA's repository in /etc/yum.repos.d, rpm-ostree install nvidia-container-toolkit, then reboot",
        "kernel": "rpm-ostree kargs",
        "initramfs": "rpm-ostree kargs --append-if-missing=rd.driver.blacklist=nouveau keeps nouveau out of it; "
        "rpm-ostree initramfs --enable has it made on the node",
        "packages": "rpm-ostree, then reboot",
    },
)
# The system is booted from a tree of ostree's, as image mode of RHEL and Fedora's Atomic desktops are.
_IN_A_TREE: Final = Pattern(
    r"\bostree=/ostree/boot|^OSTREE_VERSION=|^VARIANT_ID=\"?(?:silverblue|kinoite|coreos|iot)\b"
)
_KEPT_BY: Final = frozenset({"debian", "ubuntu", "rhel", "fedora", "centos", "suse", "sles", "opensuse", "arch"})


def of(snapshot: Snapshot) -> System | None:
    """The system, where it is kept in a way of its own; None for one of the usual, and where nothing names it."""
    known = system.distro(snapshot)
    running = system.running_kernel(snapshot)
    words = {known.id, *known.like} if known else set[str]()
    for one in _BY_KERNEL:
        if running.endswith(one.kernel) or (known is not None and known.id in one.ids):
            return one
    for one in _SYSTEMS:
        by_name = known is not None and (known.id in one.ids or (not words & _KEPT_BY and bool(words & one.ids)))
        if by_name or (known is None and one.kernel and running.endswith(one.kernel)):
            return one
    if any(_is_in_tree(item.text) for item in (*snapshot.files("*/os-release"), *snapshot.files("/proc/cmdline"))):
        return _OSTREE
    if known is None or known.id == "linux" or system.is_kept_by_packages(snapshot):
        return None
    return System(known.name, frozenset({known.id}), _MANAGERS | _LOADERS | _IMAGES, {})


def _is_in_tree(text: str) -> bool:
    return any(_IN_A_TREE.search(line) for line in text.splitlines())


def fitted(snapshot: Snapshot, fixes: Iterable[Fix]) -> tuple[Fix, ...]:
    """What is to be done, with the commands that this system has."""
    steps = tuple(fixes)
    if (own := snapshot.view(of)) is not None:
        return tuple(_in_its_way(own, steps))
    if snapshot.view(system.has_yum_alone):
        return tuple(_by_yum(fix, has_repository=_has_repository(snapshot)) for fix in steps)
    return steps


def fitted_look(snapshot: Snapshot, look_at: tuple[Command, ...]) -> tuple[Command, ...]:
    """What is to be looked at, without the commands that this system does not have; the same where none is left."""
    own = snapshot.view(of)
    return tuple(one for one in look_at if own is None or not _words(one) & own.lacks) or look_at


def _in_its_way(own: System, steps: tuple[Fix, ...]) -> Iterator[Fix]:
    told = set[str]()
    for fix in steps:
        missing = [one for one in fix.commands if not _has(own, one)]
        if not missing:
            yield fix
            continue
        purpose = _purpose(missing)
        # Systems of one image have no such image of their own to make; there are other steps.
        if purpose == "initramfs" and own.lacks >= _OURS and "initramfs" not in own.ways and len(steps) > 1:
            continue
        way = own.ways.get(purpose, "")
        if way in told:
            continue  # it does this, too
        how = f"the way of {own.name}: {way}" if way else f"by the means of {own.name}"
        told.update({way} if way else ())
        # A part of what belongs together is worse than nothing.
        yield replace(fix, text=f"{fix.text}, {how}", commands=())


_OF_CLUSTER: Final = frozenset({"kubectl", "oc", "helm", "talosctl"})
_WORD: Final = Pattern(r"[\w.+-]+")


def _has(own: System, command: str) -> bool:
    words = _words(command)
    if own.is_closed:
        return bool(words & _OF_CLUSTER) and "sudo" not in words
    return not words & own.lacks


def _words(command: str) -> frozenset[str]:
    return frozenset(_WORD.findall(command))


def _purpose(commands: Sequence[str]) -> Purpose:
    """What the commands of one step are for: what the last of them that tells does."""
    return next((found for one in reversed(commands) if (found := _purpose_of(one))), "")


def _purpose_of(command: str) -> Purpose:
    words = _words(command)
    found: tuple[tuple[Purpose, bool], ...] = (
        ("toolkit", bool(words & {"nvidia-container-toolkit", "toolkit"})),
        ("runtime", bool(words & {"ctk", "nvidia-ctk", "runtime-config"})),
        ("initramfs", bool(words & _IMAGES)),
        ("kernel", bool(words & _LOADERS) or "/etc/default/grub" in command),
        ("settings", "/etc/mod" in command or "--only nouveau" in command),
        ("driver", "gpunode setup" in command or "ubuntu-drivers" in words),
        ("driver", bool(words & _MANAGERS) and any(name in command for name in ("nvidia", "cuda"))),
        ("packages", bool(words & (_MANAGERS | _BUILDS))),
        ("reboot", {"systemctl", "reboot"} <= words),
    )
    return next((purpose for purpose, fits in found if fits), "")


# ---- yum, where dnf is not there by itself

# What dnf alone has, and packages of kernels that are split otherwise since.
_ONLY_DNF: Final = frozenset(
    {"module", "--allowerasing", "--oldinstallonly", "config-manager", "addrepo", "versionlock"}
)
_OF_NEWER_KERNELS: Final = ("kernel-core", "kernel-modules")
_ADDS: Final = Pattern("dnf config-manager --add-repo ")
_PLUGINS: Final = Pattern("dnf-plugins-core")


_AMAZON: Final = (
    "the way of Amazon Linux 2, for which NVIDIA has no repository: AWS's own packages or NVIDIA's installer "
    "(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/install-nvidia-driver.html)"
)


def _has_repository(snapshot: Snapshot) -> bool:
    """Whether NVIDIA has a repository of drivers for the release."""
    known = system.distro(snapshot)
    return known.id != "amzn" if known else "amzn" not in system.running_kernel(snapshot)


def _by_yum(fix: Fix, *, has_repository: bool) -> Fix:
    """The step with yum in dnf's place; in words where yum cannot do it."""
    if not has_repository and _purpose(fix.commands) == "driver" and fix.kind == "install":
        return replace(fix, text=f"{fix.text}, {_AMAZON}", commands=())
    commands = tuple(_yums(one) for one in fix.commands)
    if any("dnf" in _words(one) and _words(one) & _ONLY_DNF for one in commands) or any(
        name in one for one in commands for name in _OF_NEWER_KERNELS
    ):
        return replace(fix, text=f"{fix.text}, with yum: this system has no dnf by itself", commands=())
    return replace(fix, commands=tuple(replaced(one, _DNF, Shell("yum")) for one in commands))


_DNF: Final = Pattern(r"(?<![\w./-])dnf(?![\w./-])")


def _yums(typed: Command) -> Command:
    """The command as yum and its plugins are called, where that is another name."""
    return replaced(replaced(typed, _PLUGINS, Shell("yum-utils")), _ADDS, Shell("yum-config-manager --add-repo "))
