"""Install the driver from distribution packages, in the branch and flavour that the GPU needs.

Package names without a branch install the newest driver with open modules, for GPUs from Turing on. An older GPU gets
its last branch. For an unknown GPU no command is given.
"""

from __future__ import annotations

from typing import Final

from gpunode.catalog.driver import Impossible, choose
from gpunode.catalog.gpus import LIST_GPUS
from gpunode.catalog.releases import release
from gpunode.diagnoses.commands import Command, Shell, command
from gpunode.diagnoses.model import Fix
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import driver, gpu_models
from gpunode.diagnoses.views.system import find_distro, package_manager
from gpunode.recipe import Driver

_DRIVER_GUIDE: Final = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/"
_BY_GENERATION: Final = (
    "with its open kernel modules from Turing on, branch 580 with its proprietary ones for Maxwell, Pascal and Volta, "
    "branch 470 for Kepler"
)
# Older branches are not in NVIDIA's repositories; it is the last of three generations, and maintained for years.
_MAINTAINED: Final = 580


def install_driver_packages(snapshot: Snapshot, text: str, when: str = "", *, oldest_branch: int = 0) -> Fix:
    """Return the step that installs a driver for the GPUs, of ``oldest_branch`` or newer."""
    models = snapshot.view(gpu_models.known_gpu_models)
    seen = snapshot.view(driver.loaded_version)
    is_driven_by_open = driver.works(snapshot) and seen is not None and seen.is_open is True
    last = min((model.last_branch for model in models if model.last_branch), default=None)
    found = choose(models, Driver()) if models else None
    is_old = last is not None and last < _MAINTAINED and all(model.first_branch <= last for model in models)
    if not models and not is_driven_by_open:
        words = f"first check which GPU this is ({LIST_GPUS}), then {text}: {_BY_GENERATION}"
        return Fix("install", words, (), when)
    if isinstance(found, Impossible) and not is_old:
        return Fix("install", f"{text}: {found.what}: {found.why}; {found.hint}", (), when)
    if last is not None and last < oldest_branch:
        return Fix("install", f"{text}: none of NVIDIA's maintained branches does that for this node's GPUs", (), when)
    modules = f"branch {last}, the last for this GPU, with its proprietary modules" if last else "with its open modules"
    commands = _install_commands(snapshot, last)
    by_hand = "" if commands else f", from the distribution or by NVIDIA's .run installer ({_DRIVER_GUIDE})"
    return Fix("install", f"{text}: {modules}{by_hand}", commands, when)


def _install_commands(snapshot: Snapshot, last: int | None) -> tuple[Command, ...]:
    """Return the commands that install that branch, or the newest; none if no repository has it."""
    known = find_distro(snapshot)
    is_kept = last is None or last == _MAINTAINED
    match package_manager(snapshot):
        case "apt":
            has = release(known) if known else None
            if name := has.ended.get(last or 0) if has else None:
                # Debian's ended drivers stand beside the current one, which is named with a dash: apt removes it.
                others = ("nvidia-driver-",) if has and has.distribution == "debian" else ()
                return (command("sudo", "apt-get", "install", name, *others),)
            is_ubuntu = known is not None and "ubuntu" in {known.id, *known.like}
            return (Shell("sudo ubuntu-drivers install"),) if is_ubuntu and is_kept else ()
        case "dnf":
            major = known.version_id.partition(".")[0] if known and known.id != "fedora" else ""
            if is_kept and (major in {"8", "9"} or (known and known.id == "amzn")):
                # A stream takes the place of another one with all its packages.
                stream = f"nvidia-driver:{f'{last}-dkms' if last else 'open-dkms'}/default"
                return (command("sudo", "dnf", "module", "switch-to", stream, "--allowerasing"),)
            return () if last else (Shell("sudo dnf install --allowerasing nvidia-open"),)
        case "zypper":
            return () if last else (Shell("sudo zypper install nvidia-open"),)
        case "pacman":
            return () if last else (Shell("sudo pacman -S nvidia-open-dkms nvidia-utils"),)
