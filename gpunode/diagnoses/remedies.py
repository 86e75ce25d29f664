"""What is to be done, in the words of the node's own distribution; a step that gpunode can take is named."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from gpunode.diagnoses.model import Fix, FixKind
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views.system import PackageManager, package_manager

_INSTALL: Final[dict[PackageManager, str]] = {
    "apt": "sudo apt-get install {}",
    "dnf": "sudo dnf install {}",
    "zypper": "sudo zypper install {}",
    "pacman": "sudo pacman -S {}",
}
_REMOVE: Final[dict[PackageManager, str]] = {
    "apt": "sudo apt-get purge {}",
    "dnf": "sudo dnf remove {}",
    "zypper": "sudo zypper remove {}",
    "pacman": "sudo pacman -Rns {}",
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
    return Fix("install", text, (_INSTALL[snapshot.view(package_manager)].format(" ".join(names)),), when)


def uninstall(snapshot: Snapshot, text: str, *names: str, when: str = "") -> Fix:
    """Removes packages, each named whole: a pattern takes along what nobody meant."""
    return Fix("remove", text, (_REMOVE[snapshot.view(package_manager)].format(" ".join(names)),), when)


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


def rebuild_initramfs(snapshot: Snapshot, text: str = "rebuild the initramfs of every kernel", when: str = "") -> Fix:
    """Makes the initial RAM disks anew."""
    return Fix("rebuild", text, (_INITRAMFS[snapshot.view(package_manager)],), when)


def restart(unit: str, text: str = "", when: str = "") -> Fix:
    """Restarts a unit."""
    return Fix("restart", text or f"restart {unit.removesuffix('.service')}", (f"sudo systemctl restart {unit}",), when)


def reboot(text: str = "reboot the node", when: str = "") -> Fix:
    """Reboots."""
    return Fix("reboot", text, ("sudo systemctl reboot",), when)


def drain(text: str = "move the work away from this node first") -> Fix:
    """Takes the work away."""
    return Fix("drain", text)


def reset_gpu(gpu: str = "", text: str = "reset the GPU, once nothing uses it", when: str = "") -> Fix:
    """Resets the GPU at a PCI address; without one all that can be."""
    only = f" --id={gpu}" if gpu else ""
    return Fix("reset", text, (f"sudo nvidia-smi --gpu-reset{only}",), when)


def power_cycle(text: str = "power the node off, wait a minute, and on again: a reboot leaves the GPU as it is") -> Fix:
    """Takes the power away; no command does that and comes back."""
    return Fix("reboot", text)


def replace(text: str = "have the GPU replaced", when: str = "") -> Fix:
    """Sends hardware back."""
    return Fix("replace", text, (), when)


def nvidia_report(when: str = "it comes back") -> Fix:
    """Writes NVIDIA's own report, without which no support case is opened."""
    return Fix("inspect", "write NVIDIA's report for the support case", ("sudo nvidia-bug-report.sh",), when)
