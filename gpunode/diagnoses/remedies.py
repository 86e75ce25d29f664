"""Build remedy steps for the node's distribution, using gpunode itself where possible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Literal, TypeAlias

from gpunode import distros
from gpunode.catalog import branches
from gpunode.catalog.branches import Branch
from gpunode.catalog.driver import DriverChoice, choose_driver
from gpunode.catalog.gpus import LIST_GPUS
from gpunode.catalog.releases import release
from gpunode.catalog.repositories import TOOLKIT_REPOSITORY
from gpunode.diagnoses import special_systems
from gpunode.diagnoses.commands import (
    GPU_ADDRESS,
    Command,
    Shell,
    command,
    edit_files,
    gpu_command,
    is_package_name,
    is_unit_name,
    join_commands,
)
from gpunode.diagnoses.model import Fix, FixKind
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import cuda, driver, fabric, gpu_models, modules, pci, virtualization
from gpunode.diagnoses.views import driver as installed
from gpunode.diagnoses.views.packages import is_driver_package
from gpunode.diagnoses.views.runtimes import container_engine
from gpunode.diagnoses.views.system import (
    PackageManager,
    find_distro,
    has_external_driver,
    is_jetson,
    is_wsl,
    package_manager,
    running_kernel,
)
from gpunode.facts.patterns import Pattern, parse_int
from gpunode.outcome import Refusal
from gpunode.recipe import Driver

Purpose: TypeAlias = Literal["install", "remove", "upgrade", "reinstall", "unhold", "one version", "initramfs", "grub"]

_DRACUT: Final = Shell("sudo dracut --force --regenerate-all")
_GRUB2_CONFIG_COMMAND: Final = Shell("sudo grub2-mkconfig -o /boot/grub2/grub.cfg")
_PACMAN_UPGRADE_COMMAND: Final = Shell("sudo pacman -Syu")
_ZYPPER_UPDATE_COMMAND: Final = Shell("sudo zypper update")
# Commands by purpose, in the order of the managers; package names follow the first five. pacman holds packages in its
# own configuration.
_PACKAGE_MANAGERS: Final[tuple[PackageManager, ...]] = ("apt", "dnf", "zypper", "pacman")
_COMMAND_BY_PURPOSE: Final[Mapping[Purpose, tuple[Shell, Shell, Shell, Shell]]] = {
    "install": (
        *(Shell("sudo apt-get install"), Shell("sudo dnf install"), Shell("sudo zypper install")),
        Shell("sudo pacman -S"),
    ),
    "remove": (
        *(Shell("sudo apt-get purge"), Shell("sudo dnf remove"), Shell("sudo zypper remove")),
        Shell("sudo pacman -Rns"),
    ),
    "upgrade": (
        *(Shell("sudo apt-get install --only-upgrade"), Shell("sudo dnf upgrade"), _ZYPPER_UPDATE_COMMAND),
        _PACMAN_UPGRADE_COMMAND,
    ),
    "reinstall": (
        *(Shell("sudo apt-get install --reinstall"), Shell("sudo dnf reinstall"), Shell("sudo zypper install -f")),
        Shell("sudo pacman -S"),
    ),
    "unhold": (
        *(Shell("sudo apt-mark unhold"), Shell("sudo dnf versionlock delete"), Shell("sudo zypper removelock")),
        Shell(""),
    ),
    "one version": (
        *(Shell("sudo apt-get -f install"), Shell("sudo dnf distro-sync '*nvidia*'"), _ZYPPER_UPDATE_COMMAND),
        _PACMAN_UPGRADE_COMMAND,
    ),
    "initramfs": (Shell("sudo update-initramfs -u -k all"), _DRACUT, _DRACUT, Shell("sudo mkinitcpio -P")),
    "grub": (
        Shell("sudo update-grub"),
        _GRUB2_CONFIG_COMMAND,
        _GRUB2_CONFIG_COMMAND,
        Shell("sudo grub-mkconfig -o /boot/grub/grub.cfg"),
    ),
}


def _command_for(snapshot: Snapshot, purpose: Purpose) -> Shell:
    """Return the node's command for ``purpose``; empty if its package manager has none."""
    return _COMMAND_BY_PURPOSE[purpose][_PACKAGE_MANAGERS.index(snapshot.view(package_manager))]


def make_fixed_remedy(*fixes: Fix) -> Callable[[Snapshot], Iterable[Fix]]:
    """Return a remedy that is the same on every node."""
    return lambda _: fixes


def look_at_hardware(*fixes: Fix) -> Callable[[Snapshot], Iterable[Fix]]:
    """Return a remedy at the machine itself; preceded by a check unless its kernel, bus or GPUs were shown."""

    def remedy(snapshot: Snapshot) -> Iterable[Fix]:
        if not (
            snapshot.view(pci.pci_gpus) or snapshot.items_of("kernel-log", "journal", "nvidia-smi", "nvidia-smi-q")
        ):
            see = Shell("sudo dmesg | grep -iE 'nvrm|xid|pcieport|aer'")
            yield run_step("inspect", "see whether the kernel of this machine says it", see)
        yield from fixes

    return remedy


def run_step(kind: FixKind, text: str, *commands: Command, when: str = "") -> Fix:
    """Return a step with commands."""
    return Fix(kind, text, commands, when)


def manual_step(kind: FixKind, text: str, when: str = "") -> Fix:
    """Return a step for which no command exists."""
    return Fix(kind, text, (), when)


def _package_step(
    snapshot: Snapshot, purpose: Purpose, kind: FixKind, text: str, names: Iterable[str], when: str
) -> Fix:
    """Return the step with a package command; the text alone if a name is not a valid package name."""
    named, program = tuple(dict.fromkeys(names)), _command_for(snapshot, purpose)
    is_sound = bool(named) and bool(program) and all(map(is_package_name, named))
    return Fix(kind, text, (join_commands(program, command(*named)),) if is_sound else (), when)


def install(snapshot: Snapshot, text: str, *names: str, when: str = "") -> Fix:
    """Return the step that installs packages by their names in this distribution."""
    return _package_step(snapshot, "install", "install", text, names, when)


def uninstall_driver(snapshot: Snapshot, text: str, *names: str, when: str = "") -> Fix:
    """Return the step that removes driver packages or literals; other names need a person's judgement."""
    if others := ", ".join(name for name in names if not isinstance(name, Shell) and not is_driver_package(name)):
        return manual_step(
            "remove", f"{text}: {others} does not belong to a driver, so first check what needs it", when
        )
    return _package_step(snapshot, "remove", "remove", text, names, when)


def removes_packages(fix: Fix) -> bool:
    """Return whether the step removes packages, which stops their services."""
    return any(one.startswith(f"{remove} ") for remove in _COMMAND_BY_PURPOSE["remove"] for one in fix.commands)


def upgrade_packages(snapshot: Snapshot, text: str, *names: str) -> Fix:
    """Return the step that upgrades installed packages to the newest version in the repositories."""
    return _package_step(snapshot, "upgrade", "install", text, names, "")


def reinstall(snapshot: Snapshot, text: str, *names: str, when: str = "") -> Fix:
    """Return the step that restores lost files of installed packages."""
    return _package_step(snapshot, "reinstall", "install", text, names, when)


def unhold_packages(snapshot: Snapshot, text: str, *names: str) -> Fix:
    """Return the step that releases held packages."""
    return _package_step(snapshot, "unhold", "configure", text, names, "")


def align_driver_versions(snapshot: Snapshot, kind: FixKind, text: str) -> Fix:
    """Return the step that brings lagging packages to the version of the others."""
    return Fix(kind, text, (_command_for(snapshot, "one version"),))


_ONE_ARCHIVE_ADVICE: Final[Mapping[PackageManager, str]] = {
    "apt": "a pin in /etc/apt/preferences.d",
    "dnf": "excludepkgs=*nvidia* in the other files in /etc/yum.repos.d",
}


def keep_one_package_archive(snapshot: Snapshot) -> Fix:
    """Return the step that takes all driver packages from one archive."""
    text = "install all of the driver's packages from one archive"
    if can_run_setup(snapshot):
        return setup_step(snapshot, "configure", f"{text}: gpunode pins them to it", "cuda-repository", "driver-pin")
    if how := _ONE_ARCHIVE_ADVICE.get(snapshot.view(package_manager)):
        return manual_step("configure", f"{text}, by {how}")
    return align_driver_versions(snapshot, "install", text)


def has_kernel_argument(snapshot: Snapshot, argument: str) -> bool:
    """Return whether the kernel was started with ``argument``."""
    return any(argument in item.text.split() for item in snapshot.files("/proc/cmdline") if item.outcome == "ok")


def add_kernel_argument(snapshot: Snapshot, argument: str, why: str) -> Iterator[Fix]:
    """Yield the steps that add ``argument`` and reboot; nothing if it is already set."""
    if has_kernel_argument(snapshot, argument):
        return
    if snapshot.view(package_manager) == "dnf":
        commands: tuple[Command, ...] = (command("sudo", "grubby", "--update-kernel=ALL", f"--args={argument}"),)
    else:
        once = f'/^GRUB_CMDLINE_LINUX_DEFAULT=/{{/[" ]{argument}[" ]/!s/"$/ {argument}"/}}'
        commands = (*edit_files(once, "/etc/default/grub"), update_boot_loader(snapshot))
    yield run_step("configure", f"boot with {argument}: {why}", *commands)
    yield reboot_node()


def remove_kernel_argument(snapshot: Snapshot, argument: str) -> tuple[Command, ...]:
    """Return the commands that remove ``argument`` from the kernel command line."""
    if snapshot.view(package_manager) == "dnf":
        return (command("sudo", "grubby", "--update-kernel=ALL", f"--remove-args={argument}"),)
    plain = argument.replace(".", r"\.")
    lines = "/^GRUB_CMDLINE_LINUX(_DEFAULT)?=/"
    return *edit_files(f"{lines}s/ *{plain}//", "/etc/default/grub"), update_boot_loader(snapshot)


def update_boot_loader(snapshot: Snapshot) -> Command:
    """Return the command that applies the boot loader's configuration."""
    return _command_for(snapshot, "grub")


def can_run_setup(snapshot: Snapshot) -> bool:
    """Return whether gpunode supports this release; an unknown release counts if it has apt.

    vGPU guests, WSL2 and Jetsons are unsupported: gpunode does not install their drivers.
    """
    if virtualization.is_vgpu(snapshot) or has_external_driver(snapshot):
        return False
    known, machine = find_distro(snapshot), running_kernel(snapshot)
    if known is None:
        is_older = (match := _KERNEL_MAJOR_MINOR.match(machine)) and (
            int(match["major"]),
            int(match["minor"]),
        ) < _OLDEST_SUPPORTED_KERNEL
        return snapshot.view(package_manager) == "apt" and not is_older and not _DEBIAN_ARM_KERNEL.search(machine)
    family = distros.family(known)
    is_without_archive = known.id == "debian" and _DEBIAN_ARM_KERNEL.search(machine)
    return family is not None and not is_without_archive


# Of the supported releases Ubuntu 22.04 has the oldest kernel; NVIDIA packages nothing for Debian on arm64.
_KERNEL_MAJOR_MINOR: Final = Pattern(r"(?P<major>\d{1,4})\.(?P<minor>\d{1,9})\.")
_OLDEST_SUPPORTED_KERNEL: Final = (5, 15)
_DEBIAN_ARM_KERNEL: Final = Pattern(r"-arm64(?:-16k)?$")


# Setup skips these unless a runtime is named.
_RUNTIME_STEP_IDS: Final = frozenset({"toolkit-repository", "toolkit", "runtime-install", "runtime-config", "cdi"})


def setup_step(
    snapshot: Snapshot, kind: FixKind, text: str, *steps: str, upgrade: bool = False,
    fallback_commands: tuple[Command, ...] = (), when: str = ""
) -> Fix:  # fmt: skip
    """Return the step that gpunode does itself, only ``steps`` if given; else ``fallback_commands``."""
    is_configured = bool(steps) and _RUNTIME_STEP_IDS.issuperset(steps) and has_external_driver(snapshot)
    if not can_run_setup(snapshot) and not is_configured:
        return Fix(kind, text, fallback_commands, when)
    words = ["--driver", "none"] if is_configured else []
    words += ["--runtime", snapshot.view(container_engine)] if _RUNTIME_STEP_IDS.intersection(steps) else []
    words += ["--upgrade"] if upgrade else []
    words += [word for step in steps for word in ("--only", step)]
    return Fix(kind, text, (command("sudo", "gpunode", "setup", *words),), when)


def install_driver(snapshot: Snapshot, text: str) -> Fix:
    """Return the step that installs the whole driver: by gpunode if it can, else by packages.

    The step ``driver`` alone would lack the repository, headers and loading.
    """
    models = snapshot.view(gpu_models.gpu_models_if_all_known)
    if can_run_setup(snapshot) and not (models and isinstance(choose_driver(models, Driver()), Refusal)):
        return Fix("install", text, (_GPUNODE_SETUP_COMMAND,))
    return _install_from_packages(snapshot, text)


_GPUNODE_SETUP_COMMAND: Final = Shell("sudo gpunode setup")
_NO_BRANCH_HELPS_TEXT: Final = "none of NVIDIA's maintained branches does that for this node's GPUs"


def change_driver(
    snapshot: Snapshot, text: str, *, oldest_branch: int = 0, other_branch: bool = False, allow_older: bool = False,
    installed_version: str = "", when: str = ""
) -> Iterator[Fix]:  # fmt: skip
    """Yield the steps to another driver release: the newest of its branch, else one of another branch.

    ``oldest_branch`` is the oldest that helps, ``other_branch`` excludes the installed branch, ``allow_older`` permits
    an
    older branch, and ``installed_version`` overrides the detected one.
    """
    if not can_run_setup(snapshot):
        yield _install_from_packages(snapshot, text, when, oldest_branch=oldest_branch)
        return
    version = installed_version or _find_driver_version(snapshot)
    if not version and not oldest_branch:
        yield Fix("install", text, (join_commands(_GPUNODE_SETUP_COMMAND, Shell("--upgrade")),), when)
        lasting = [branch.number for branch in _branches_for_node_gpus(snapshot) if branch.kind != "new-feature"]
        other = (join_commands(_GPUNODE_SETUP_COMMAND, command("--driver", str(max(lasting)))),) if lasting else ()
        again = "that did not help: an upgrade keeps an installed branch that is still maintained"
        yield Fix("install", "or move to the newest branch", other, again)
        return
    wanted = _setup_options(snapshot, version, oldest_branch, other_branch=other_branch, allow_older=allow_older)
    named = (join_commands(_GPUNODE_SETUP_COMMAND, command(*wanted)),) if wanted else ()
    yield Fix("install", text if wanted else f"{text}; {_NO_BRANCH_HELPS_TEXT}", named, when)


def upgrade_driver_for_cuda(snapshot: Snapshot, text: str) -> Iterator[Fix]:
    """Yield the steps to a driver with a newer CUDA; of another branch if the needed version is unknown."""
    release, banner = cuda.requested_cuda_release(snapshot), snapshot.match(cuda.IMAGE_NEEDS_NEWER_DRIVER_MESSAGE)
    asked = release.driver if release else banner["needs"] if banner else ""
    least = parse_int(asked.partition(".")[0]) or 0
    yield from change_driver(
        snapshot, text, oldest_branch=least, other_branch=not asked, installed_version=cuda.reported_driver(snapshot)
    )


def _find_driver_version(snapshot: Snapshot) -> str:
    """Return the version of the installed driver; empty if unknown."""
    seen = (
        snapshot.view(installed.loaded_version)
        or snapshot.view(installed.on_disk_version)
        or snapshot.view(installed.library_version)
    )
    builds = (row.version for row in snapshot.view(modules.driver_dkms_rows))
    listed = (package.upstream for package in installed.driver_packages(snapshot))
    return seen.version if seen else next((build for build in (*builds, *listed) if build[:3].isdigit()), "")


def _setup_options(
    snapshot: Snapshot, version: str, oldest_branch: int, *, other_branch: bool, allow_older: bool
) -> tuple[str, ...]:
    """Return gpunode's options for a driver other than ``version``; none if no branch helps."""
    number = parse_int(version.partition(".")[0]) or 0
    here = branches.find(number)
    is_upgraded = (
        here is not None
        and here.is_maintained
        and number >= oldest_branch
        and not other_branch
        and version != here.newest_seen
    )
    if is_upgraded:
        return ("--upgrade",)
    able = [one for one in _branches_for_node_gpus(snapshot) if one.number >= oldest_branch and one.number != number]
    # A branch maintained for years before one that ends with the next, a newer one before an older one.
    able.sort(key=lambda one: (one.number < number, one.kind == "new-feature", abs(one.number - number)))
    best = next((branch for branch in able if allow_older or branch.number > number), None)
    return ("--driver", str(best.number)) if best else ()


def _branches_for_node_gpus(snapshot: Snapshot) -> list[Branch]:
    """Return the maintained branches that support the known GPUs of this node."""
    models = snapshot.view(gpu_models.gpu_models)
    active = (branch for branch in branches.all_branches() if branch.is_maintained)
    return [
        one
        for one in active
        if not models or isinstance(choose_driver(models, Driver(version=str(one.number))), DriverChoice)
    ]


def install_guest_driver(text: str, when: str = "") -> Fix:
    """Return the step for a vGPU guest's driver, which no public repository has."""
    whose = (
        "NVIDIA's vGPU guest driver (GRID), of the host vGPU manager's branch or one that its release notes allow; "
        "get it from the host's administrator or the licensing portal; the data center driver does not drive a vGPU"
    )
    return manual_step("install", f"{text}: {whose}", when)


_READ_VERSION_ON_DISK_COMMAND: Final = Shell("v=$(modinfo -F version nvidia);")
INSTALL_FABRIC_MANAGER_COMMANDS: Final[dict[PackageManager, Command]] = {
    "apt": Shell(
        'sudo apt-get install "nvidia-fabricmanager=$v*" || sudo apt-get install "nvidia-fabricmanager-${v%%.*}=$v*"'
    ),
    "dnf": Shell('sudo dnf install "nvidia-fabricmanager-$v" || sudo dnf install "nvidia-fabric-manager-$v"'),
    "zypper": Shell('sudo zypper install "nvidia-fabricmanager=$v" || sudo zypper install "nvidia-fabric-manager=$v"'),
}


def align_fabric_manager(snapshot: Snapshot) -> Iterator[Fix]:
    """Yield the step that upgrades an installed fabric manager along with the driver."""
    words = INSTALL_FABRIC_MANAGER_COMMANDS.get(snapshot.view(package_manager))
    if words and snapshot.view(fabric.is_manager_installed):
        text = "install the fabric manager in the new driver's version: with another version no GPU joins the fabric"
        yield run_step("install", text, join_commands(_READ_VERSION_ON_DISK_COMMAND, words))


def _install_from_packages(snapshot: Snapshot, text: str, when: str = "", *, oldest_branch: int = 0) -> Fix:
    """Return the driver step for a distribution that gpunode does not set up."""
    if virtualization.is_vgpu(snapshot):
        return install_guest_driver(text, when)
    if is_wsl(snapshot):
        return manual_step("install", f"{text}: {_WSL_DRIVER_TEXT}", when)
    if is_jetson(snapshot):
        return manual_step("install", f"{text}: {_JETSON_DRIVER_TEXT}", when)
    if snapshot.view(special_systems.special_system) is not None:
        return manual_step("install", text, when)
    return install_driver_packages(snapshot, text, when, oldest_branch=oldest_branch)


# NVIDIA's "CUDA on WSL User Guide", and its "Jetson Linux Developer Guide" on updates.
_WSL_DRIVER_TEXT: Final = (
    "NVIDIA's driver for Windows, in Windows; WSL2 uses its libraries after wsl --shutdown, and a Linux driver "
    "installed inside WSL replaces them and does not work"
)
_JETSON_DRIVER_TEXT: Final = (
    "the driver is part of the board's image and is upgraded only with JetPack; container images must be built for "
    "this JetPack"
)
# Only the pinned key enters apt's keyring, whatever the server sends; without it apt refuses the archive.
_IMPORT_PINNED_KEY_COMMAND: Final = join_commands(
    Shell("k=$(mktemp -d);"),
    command("curl", "-fsSL", TOOLKIT_REPOSITORY.key.url),
    Shell('| gpg --no-autostart --homedir "$k" --import && gpg --no-autostart --homedir "$k" --export'),
    command(*sorted(TOOLKIT_REPOSITORY.key.fingerprints)),
    Shell("|"),
    command("sudo", "tee", TOOLKIT_REPOSITORY.keyring),
    Shell(">/dev/null"),
)
ADD_TOOLKIT_ARCHIVE_COMMANDS: Final = (
    _IMPORT_PINNED_KEY_COMMAND,
    join_commands(
        command("echo", f"deb [signed-by={TOOLKIT_REPOSITORY.keyring}] {TOOLKIT_REPOSITORY.uri} /"),
        Shell("|"),
        command("sudo", "tee", TOOLKIT_REPOSITORY.list_file),
    ),
    Shell("sudo apt-get update"),
)
"""The commands that make apt trust and read the toolkit's archive."""


UNLOAD_MODULES_COMMAND: Final = Shell("sudo modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia")
"""The command that unloads the driver's modules, each before the modules that it uses."""


def rebuild_initramfs(snapshot: Snapshot) -> Fix:
    """Return the step that rebuilds the initramfs."""
    return Fix("rebuild", "rebuild the initramfs of every kernel", (_command_for(snapshot, "initramfs"),))


def rebuild_initramfs_and_reboot(snapshot: Snapshot) -> Iterator[Fix]:
    """Yield the complete remedy if only the initramfs is wrong."""
    yield rebuild_initramfs(snapshot)
    yield reboot_node()


def restart_unit(unit: str, text: str = "", when: str = "") -> Fix:
    """Return the step that restarts a unit."""
    commands = (command("sudo", "systemctl", "restart", unit),) if is_unit_name(unit) else ()
    return Fix("restart", text or f"restart {unit.removesuffix('.service')}", commands, when)


def reboot_node(text: str = "reboot the node", when: str = "") -> Fix:
    """Return the step that reboots the node."""
    return Fix("reboot", text, (Shell("sudo systemctl reboot"),), when)


def drain_node(text: str = "move the work away from this node first: this shows what uses its GPUs") -> Fix:
    """Return the step that moves the work to other nodes; its command lists what uses the GPUs."""
    return Fix("drain", text, (Shell("sudo fuser -v /dev/nvidia*"),))


_RESET_GPU_TEXT: Final = (
    "move the work away from the GPU, then reset it; if that is refused as in use, turn persistence mode off "
    "(nvidia-smi -pm 0) and reset it again"
)


def reset_gpu(text: str = _RESET_GPU_TEXT, when: str = "") -> Fix:
    """Return the step that resets only the faulty GPU."""
    return Fix("reset", text, (gpu_command("sudo", "nvidia-smi", "--gpu-reset", f"--id={GPU_ADDRESS}"),), when)


def reset_all_gpus(text: str, when: str = "") -> Fix:
    """Return the step that resets every GPU of the node and the NVSwitches between them."""
    return Fix("reset", text, (Shell("sudo nvidia-smi --gpu-reset"),), when)


# For a GPU off the bus the driver asks for a reboot (Xid 154), which does not cut the power of the slot.
_POWER_CYCLE_TEXT: Final = (
    "power the node off, wait a minute, and power it on again: a reboot, even if Xid 154 asks for one, often does "
    "not recover the GPU"
)


def power_cycle_node(text: str = _POWER_CYCLE_TEXT, when: str = "") -> Fix:
    """Return the manual step that cuts the power."""
    return Fix("reboot", text, when=when)


def replace_gpu(text: str = "have the GPU replaced", when: str = "") -> Fix:
    """Return the step that sends hardware back."""
    return Fix("replace", text, (), when)


def write_nvidia_report(when: str = "it comes back") -> Fix:
    """Return the step that writes NVIDIA's bug report, which a support case requires."""
    return Fix("inspect", "write NVIDIA's report for the support case", (Shell("sudo nvidia-bug-report.sh"),), when)


_DRIVER_GUIDE_URL: Final = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/"
_BRANCH_BY_GENERATION_TEXT: Final = (
    "with its open kernel modules from Turing on, branch 580 with its proprietary ones for Maxwell, Pascal and Volta, "
    "branch 470 for Kepler"
)
# NVIDIA's repositories have no older branches; this is the last one for three generations, maintained for years.
_OLDEST_MAINTAINED_BRANCH: Final = 580


def install_driver_packages(snapshot: Snapshot, text: str, when: str = "", *, oldest_branch: int = 0) -> Fix:
    """Return the step that installs a driver for the GPUs, of ``oldest_branch`` or newer."""
    models = snapshot.view(gpu_models.gpu_models_if_all_known)
    version = snapshot.view(driver.loaded_version)
    is_driven_by_open = driver.works(snapshot) and version is not None and version.is_open is True
    last = min((model.last_branch for model in models if model.last_branch), default=None)
    choice = choose_driver(models, Driver()) if models else None
    is_old = (
        last is not None and last < _OLDEST_MAINTAINED_BRANCH and all(model.first_branch <= last for model in models)
    )
    if not models and not is_driven_by_open:
        words = f"first check which GPU this is ({LIST_GPUS}), then {text}: {_BRANCH_BY_GENERATION_TEXT}"
        return Fix("install", words, (), when)
    if isinstance(choice, Refusal) and not is_old:
        return Fix("install", f"{text}: {choice.what}: {choice.why}; {choice.hint}", (), when)
    if last is not None and last < oldest_branch:
        return Fix("install", f"{text}: none of NVIDIA's maintained branches does that for this node's GPUs", (), when)
    modules = f"branch {last}, the last for this GPU, with its proprietary modules" if last else "with its open modules"
    commands = _install_commands(snapshot, last)
    by_hand = "" if commands else f", from the distribution or by NVIDIA's .run installer ({_DRIVER_GUIDE_URL})"
    return Fix("install", f"{text}: {modules}{by_hand}", commands, when)


def _install_commands(snapshot: Snapshot, last_branch: int | None) -> tuple[Command, ...]:
    """Return the commands that install that branch, or the newest one; none if no repository has it."""
    known = find_distro(snapshot)
    is_kept = last_branch is None or last_branch == _OLDEST_MAINTAINED_BRANCH
    match package_manager(snapshot):
        case "apt":
            has = release(known) if known else None
            if name := has.ended.get(last_branch or 0) if has else None:
                # Debian installs legacy drivers beside the current one; the trailing dash makes apt remove that.
                others = ("nvidia-driver-",) if has and has.distribution == "debian" else ()
                return (command("sudo", "apt-get", "install", name, *others),)
            is_ubuntu = known is not None and "ubuntu" in {known.id, *known.like}
            return (Shell("sudo ubuntu-drivers install"),) if is_ubuntu and is_kept else ()
        case "dnf":
            major = known.version_id.partition(".")[0] if known and known.id != "fedora" else ""
            if is_kept and (major in {"8", "9"} or (known and known.id == "amzn")):
                # A stream replaces the enabled one together with its packages.
                stream = f"nvidia-driver:{f'{last_branch}-dkms' if last_branch else 'open-dkms'}/default"
                return (command("sudo", "dnf", "module", "switch-to", stream, "--allowerasing"),)
            return () if last_branch else (Shell("sudo dnf install --allowerasing nvidia-open"),)
        case "zypper":
            return () if last_branch else (Shell("sudo zypper install nvidia-open"),)
        case "pacman":
            return () if last_branch else (Shell("sudo pacman -S nvidia-open-dkms nvidia-utils"),)
