"""What is to be done, in the words of the node's own distribution; a step that gpunode can take is named."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from gpunode.diagnoses.commands import command, is_gpu, is_package, is_unit
from gpunode.diagnoses.model import Fix, FixKind
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import packages, pci
from gpunode.diagnoses.views.system import PackageManager, distro, package_manager

_INSTALL: Final[dict[PackageManager, tuple[str, ...]]] = {
    "apt": ("sudo", "apt-get", "install"),
    "dnf": ("sudo", "dnf", "install"),
    "zypper": ("sudo", "zypper", "install"),
    "pacman": ("sudo", "pacman", "-S"),
}
_REMOVE: Final[dict[PackageManager, tuple[str, ...]]] = {
    "apt": ("sudo", "apt-get", "purge"),
    "dnf": ("sudo", "dnf", "remove"),
    "zypper": ("sudo", "zypper", "remove"),
    "pacman": ("sudo", "pacman", "-Rns"),
}
_INITRAMFS: Final[dict[PackageManager, str]] = {
    "apt": "sudo update-initramfs -u -k all",
    "dnf": "sudo dracut --force --regenerate-all",
    "zypper": "sudo dracut --force --regenerate-all",
    "pacman": "sudo mkinitcpio -P",
}


def always(*fixes: Fix) -> Callable[[Snapshot], Iterable[Fix]]:
    """A remedy that is the same on every node."""
    return lambda _: fixes


def run(kind: FixKind, text: str, *commands: str, when: str = "") -> Fix:
    """A fix by commands."""
    return Fix(kind, text, commands, when)


def by_hand(kind: FixKind, text: str, when: str = "") -> Fix:
    """A fix for which no command exists."""
    return Fix(kind, text, (), when)


def install(snapshot: Snapshot, text: str, *names: str, when: str = "") -> Fix:
    """Installs packages; ``names`` are those of this distribution."""
    return _of_packages("install", text, _INSTALL[snapshot.view(package_manager)], names, when)


def uninstall(snapshot: Snapshot, text: str, *names: str, when: str = "") -> Fix:
    """Removes packages, each named whole: a pattern takes along what nobody meant."""
    return _of_packages("remove", text, _REMOVE[snapshot.view(package_manager)], names, when)


def _of_packages(kind: FixKind, text: str, program: tuple[str, ...], names: tuple[str, ...], when: str) -> Fix:
    """A command about packages; where one has no name that a package can have, the words alone."""
    named = tuple(dict.fromkeys(names))
    is_sound = bool(named) and all(map(is_package, named))
    return Fix(kind, text, (command(*program, *named),) if is_sound else (), when)


_UNHOLD: Final[dict[PackageManager, tuple[str, ...]]] = {
    "apt": ("sudo", "apt-mark", "unhold"),
    "dnf": ("sudo", "dnf", "versionlock", "delete"),
    "zypper": ("sudo", "zypper", "removelock"),
    "pacman": (),
}


def unhold(snapshot: Snapshot, text: str, *names: str) -> Fix:
    """Lets packages be upgraded again; pacman holds by a line of its own configuration."""
    program = _UNHOLD[snapshot.view(package_manager)]
    if not program:
        return by_hand("configure", f"{text}: take them out of IgnorePkg in /etc/pacman.conf")
    return _of_packages("configure", text, program, names, "")


def setup_step(kind: FixKind, text: str, *steps: str, runtime: str = "", when: str = "") -> Fix:
    """What gpunode does itself; ``steps`` are ids of its steps, none means all.

    Args:
        kind: of fix.
        text: what it does.
        steps: those alone.
        runtime: which the steps of the runtime are about; without it, setup configures none.
        when: the condition under which it is done.
    """
    which = f" --runtime {runtime}" if runtime else ""
    only = "".join(f" --only {step}" for step in steps)
    return Fix(kind, text, (f"sudo gpunode setup{which}{only}",), when)


def toolkit_step(snapshot: Snapshot, kind: FixKind, text: str, *steps: str) -> Fix:
    """As `setup_step`, for steps of the container toolkit, which do nothing without a runtime: with the node's own."""
    return setup_step(kind, text, *steps, runtime=_runtime(snapshot))


def _runtime(snapshot: Snapshot) -> str:
    """The container runtime that is told to use NVIDIA's, else one that is there; docker where nothing tells."""
    files = {"docker": "/etc/docker/daemon.json", "containerd": "/etc/containerd/config.toml"}
    for name, path in files.items():
        if (file := snapshot.file(path)) is not None and file.outcome == "ok" and "nvidia" in file.text:
            return name
    there = snapshot.view(packages.packages)
    names = {"docker": ("docker.io", "docker-ce"), "crio": ("cri-o",), "containerd": ("containerd", "containerd.io")}
    names["podman"] = ("podman",)
    for name, brought in names.items():
        if any(one in there and there[one].is_installed for one in brought):
            return name
    return "docker"


def driver(snapshot: Snapshot, text: str, *, upgrade: bool = False) -> Fix:
    """Installs the driver whole: by gpunode where it can, else by the node's own packages.

    Not by the step ``driver`` alone: without its repository, headers and loading a driver is not whole.

    Args:
        snapshot: of the node.
        text: what it does.
        upgrade: whether a driver that is there is to become a newer one; else a fitting one stays.
    """
    manager = snapshot.view(package_manager)
    if manager == "apt":
        return Fix("install", text, ("sudo gpunode setup --upgrade" if upgrade else "sudo gpunode setup",))
    models = [gpu.model for gpu in snapshot.view(pci.gpus) if gpu.model is not None]
    is_open = all(model.takes_open_modules for model in models)
    return Fix("install", text, (_driver_of(snapshot, manager, is_open=is_open),))


def _driver_of(snapshot: Snapshot, manager: PackageManager, *, is_open: bool) -> str:
    if manager == "pacman":
        return f"sudo pacman -S {'nvidia-open' if is_open else 'nvidia'} nvidia-utils"
    if manager == "zypper":
        return f"sudo zypper install {'nvidia-open' if is_open else 'cuda-drivers'}"
    if any(name.startswith("akmod-nvidia") for name in snapshot.view(packages.packages)):
        return "sudo dnf install akmod-nvidia xorg-x11-drv-nvidia-cuda"
    known = distro(snapshot)
    # NVIDIA's repositories for RHEL 8 and 9 have the driver in module streams, the others do not.
    if known is not None and known.id not in {"fedora", "amzn"} and known.version_id[:1] in {"8", "9"}:
        return f"sudo dnf module install nvidia-driver:{'open-dkms' if is_open else 'latest-dkms'}"
    return f"sudo dnf install {'nvidia-open' if is_open else 'cuda-drivers'}"


def rebuild_initramfs(snapshot: Snapshot, text: str = "rebuild the initramfs of every kernel", when: str = "") -> Fix:
    """Makes the initial RAM disks anew."""
    return Fix("rebuild", text, (_INITRAMFS[snapshot.view(package_manager)],), when)


def restart(unit: str, text: str = "", when: str = "") -> Fix:
    """Restarts a unit."""
    commands = (command("sudo", "systemctl", "restart", unit),) if is_unit(unit) else ()
    return Fix("restart", text or f"restart {unit.removesuffix('.service')}", commands, when)


def reboot(text: str = "reboot the node", when: str = "") -> Fix:
    """Reboots."""
    return Fix("reboot", text, ("sudo systemctl reboot",), when)


def drain(text: str = "move the work away from this node first") -> Fix:
    """Takes the work away."""
    return Fix("drain", text)


def reset_gpu(gpu: str = "", text: str = "reset the GPU, once nothing uses it", when: str = "") -> Fix:
    """Resets the GPU at a PCI address; without one all that can be."""
    if gpu and not is_gpu(gpu):
        return Fix("reset", text, (), when)
    only = (f"--id={gpu}",) if gpu else ()
    return Fix("reset", text, (command("sudo", "nvidia-smi", "--gpu-reset", *only),), when)


def power_cycle(text: str = "power the node off, wait a minute, and on again: a reboot leaves the GPU as it is") -> Fix:
    """Takes the power away; no command does that and comes back."""
    return Fix("reboot", text)


def replace(text: str = "have the GPU replaced", when: str = "") -> Fix:
    """Sends hardware back."""
    return Fix("replace", text, (), when)


def nvidia_report(when: str = "it comes back") -> Fix:
    """Writes NVIDIA's own report, without which no support case is opened."""
    return Fix("inspect", "write NVIDIA's report for the support case", ("sudo nvidia-bug-report.sh",), when)
