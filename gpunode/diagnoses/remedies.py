"""What is to be done, in the words of the node's own distribution; a step that gpunode can take is named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Literal, TypeAlias

from gpunode import distros
from gpunode.catalog import branches
from gpunode.catalog.branches import Branch
from gpunode.catalog.driver import Choice, Impossible, choose
from gpunode.catalog.repositories import TOOLKIT
from gpunode.diagnoses import packaged, systems
from gpunode.diagnoses.commands import (
    ADDRESS,
    Command,
    Shell,
    command,
    edited,
    is_package,
    is_unit,
    joined,
    of_gpu,
)
from gpunode.diagnoses.model import Fix, FixKind
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import cards, cuda, fabric, guests, modules
from gpunode.diagnoses.views import driver as installed
from gpunode.diagnoses.views.engine import engine
from gpunode.diagnoses.views.history import is_drivers
from gpunode.diagnoses.views.system import (
    PackageManager,
    distro,
    has_driver_from_elsewhere,
    is_jetson,
    is_wsl,
    package_manager,
    running_kernel,
)
from gpunode.facts.numbers import whole
from gpunode.facts.patterns import Pattern
from gpunode.recipe import Driver

Purpose: TypeAlias = Literal["install", "remove", "upgrade", "reinstall", "unhold", "one version", "initramfs", "grub"]

_DRACUT: Final = Shell("sudo dracut --force --regenerate-all")
_GRUB2: Final = Shell("sudo grub2-mkconfig -o /boot/grub2/grub.cfg")
_PACMAN_UPGRADE: Final = Shell("sudo pacman -Syu")
_ZYPPER_UPDATE: Final = Shell("sudo zypper update")
# What a purpose takes under each; names of packages are put behind the first five. pacman holds by a line of its own
# configuration.
_MANAGERS: Final[tuple[PackageManager, ...]] = ("apt", "dnf", "zypper", "pacman")
_COMMANDS: Final[Mapping[Purpose, tuple[Shell, Shell, Shell, Shell]]] = {
    "install": (
        *(Shell("sudo apt-get install"), Shell("sudo dnf install"), Shell("sudo zypper install")),
        Shell("sudo pacman -S"),
    ),
    "remove": (
        *(Shell("sudo apt-get purge"), Shell("sudo dnf remove"), Shell("sudo zypper remove")),
        Shell("sudo pacman -Rns"),
    ),
    "upgrade": (
        *(Shell("sudo apt-get install --only-upgrade"), Shell("sudo dnf upgrade"), _ZYPPER_UPDATE),
        _PACMAN_UPGRADE,
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
        *(Shell("sudo apt-get -f install"), Shell("sudo dnf distro-sync '*nvidia*'"), _ZYPPER_UPDATE),
        _PACMAN_UPGRADE,
    ),
    "initramfs": (Shell("sudo update-initramfs -u -k all"), _DRACUT, _DRACUT, Shell("sudo mkinitcpio -P")),
    "grub": (Shell("sudo update-grub"), _GRUB2, _GRUB2, Shell("sudo grub-mkconfig -o /boot/grub/grub.cfg")),
}


def _typed(snapshot: Snapshot, purpose: Purpose) -> Shell:
    """The command on this node; empty where its package manager has none."""
    return _COMMANDS[purpose][_MANAGERS.index(snapshot.view(package_manager))]


def always(*fixes: Fix) -> Callable[[Snapshot], Iterable[Fix]]:
    """A remedy that is the same on every node."""
    return lambda _: fixes


def run(kind: FixKind, text: str, *commands: Command, when: str = "") -> Fix:
    """A fix by commands."""
    return Fix(kind, text, commands, when)


def by_hand(kind: FixKind, text: str, when: str = "") -> Fix:
    """A fix for which no command exists."""
    return Fix(kind, text, (), when)


def _of_packages(
    snapshot: Snapshot, purpose: Purpose, kind: FixKind, text: str, names: Iterable[str], when: str
) -> Fix:
    """A command about packages; where one has no name that a package can have, the words alone."""
    named, program = tuple(dict.fromkeys(names)), _typed(snapshot, purpose)
    is_sound = bool(named) and bool(program) and all(map(is_package, named))
    return Fix(kind, text, (joined(program, command(*named)),) if is_sound else (), when)


def install(snapshot: Snapshot, text: str, *names: str, when: str = "") -> Fix:
    """Installs packages; ``names`` are those of this distribution."""
    return _of_packages(snapshot, "install", "install", text, names, when)


def uninstall(snapshot: Snapshot, text: str, *names: str, when: str = "") -> Fix:
    """Removes packages of a driver, and literals of this program, each named whole; any other a person judges."""
    if others := ", ".join(name for name in names if not isinstance(name, Shell) and not is_drivers(name)):
        return by_hand("remove", f"{text}: {others} is no part of a driver, so see first what needs it", when)
    return _of_packages(snapshot, "remove", "remove", text, names, when)


def removes_packages(fix: Fix) -> bool:
    """Whether it takes packages away, which stops their services and leaves programs without them until then."""
    return any(one.startswith(f"{remove} ") for remove in _COMMANDS["remove"] for one in fix.commands)


def upgrade(snapshot: Snapshot, text: str, *names: str, when: str = "") -> Fix:
    """Brings installed packages to the newest version of the node's repositories."""
    return _of_packages(snapshot, "upgrade", "install", text, names, when)


def reinstall(snapshot: Snapshot, text: str, *names: str, when: str = "") -> Fix:
    """Puts back the files of packages that are installed, and have lost some: to install them would do nothing."""
    return _of_packages(snapshot, "reinstall", "install", text, names, when)


def unhold(snapshot: Snapshot, text: str, *names: str) -> Fix:
    """Lets packages be upgraded again."""
    return _of_packages(snapshot, "unhold", "configure", text, names, "")


def one_version(snapshot: Snapshot, kind: FixKind, text: str, when: str = "") -> Fix:
    """Brings packages that stayed behind to the version of the others."""
    return Fix(kind, text, (_typed(snapshot, "one version"),), when)


_ONE_ARCHIVE: Final[Mapping[PackageManager, str]] = {
    "apt": "a pin in /etc/apt/preferences.d",
    "dnf": "excludepkgs=*nvidia* in the files of the others in /etc/yum.repos.d",
}


def one_archive(snapshot: Snapshot) -> Fix:
    """Has all of the driver's packages come from one archive."""
    text = "let all of the driver's packages come from one archive"
    if takes_gpunode(snapshot):
        return setup_step(snapshot, "configure", f"{text}: gpunode pins them to it", "cuda-repository", "driver-pin")
    if how := _ONE_ARCHIVE.get(snapshot.view(package_manager)):
        return by_hand("configure", f"{text}, by {how}")
    return one_version(snapshot, "install", text)


def boots_with(snapshot: Snapshot, argument: str) -> bool:
    """Whether the kernel was started with ``argument``, so that to add it would change nothing."""
    return any(argument in item.text.split() for item in snapshot.files("/proc/cmdline") if item.outcome == "ok")


def boot_with(snapshot: Snapshot, argument: str, why: str) -> Iterator[Fix]:
    """The command line with ``argument``, and the reboot that takes it up; nothing where it is on it."""
    if boots_with(snapshot, argument):
        return
    if snapshot.view(package_manager) == "dnf":
        commands: tuple[Command, ...] = (command("sudo", "grubby", "--update-kernel=ALL", f"--args={argument}"),)
    else:
        once = f'/^GRUB_CMDLINE_LINUX_DEFAULT=/{{/[" ]{argument}[" ]/!s/"$/ {argument}"/}}'
        commands = (*edited(once, "/etc/default/grub"), boot_loader(snapshot))
    yield run("configure", f"boot with {argument}: {why}", *commands)
    yield reboot()


def without_kernel_argument(snapshot: Snapshot, argument: str) -> tuple[Command, ...]:
    """The commands that take ``argument`` off the kernel's command line where grub boots the node."""
    if snapshot.view(package_manager) == "dnf":
        return (command("sudo", "grubby", "--update-kernel=ALL", f"--remove-args={argument}"),)
    plain = argument.replace(".", r"\.")
    lines = "/^GRUB_CMDLINE_LINUX(_DEFAULT)?=/"
    return *edited(f"{lines}s/ *{plain}//", "/etc/default/grub"), boot_loader(snapshot)


def boot_loader(snapshot: Snapshot) -> Command:
    """The command that has grub take up what its configuration says."""
    return _typed(snapshot, "grub")


def takes_gpunode(snapshot: Snapshot) -> bool:
    """Whether gpunode sets up nodes of this release; one that nobody has named counts where it has apt.

    Not guests of a vGPU, WSL2 and Jetsons: their driver is not one of those that gpunode installs, and it refuses.
    """
    if guests.is_vgpu(snapshot) or has_driver_from_elsewhere(snapshot):
        return False
    known, machine = distro(snapshot), running_kernel(snapshot)
    if known is None:
        is_older = (match := _KERNEL.match(machine)) and (int(match["major"]), int(match["minor"])) < _OLDEST
        return snapshot.view(package_manager) == "apt" and not is_older and not _DEBIAN_ON_ARM.search(machine)
    found = distros.family(known)
    is_without_archive = known.id == "debian" and _DEBIAN_ON_ARM.search(machine)
    return found is not None and not is_without_archive


# Of the releases that gpunode knows, Ubuntu 22.04 began with the oldest kernel; NVIDIA has none for Debian on arm64.
_KERNEL: Final = Pattern(r"(?P<major>\d{1,4})\.(?P<minor>\d{1,9})\.")
_OLDEST: Final = (5, 15)
_DEBIAN_ON_ARM: Final = Pattern(r"-arm64(?:-16k)?$")


# Without a runtime named, setup takes none of these.
_OF_RUNTIMES: Final = frozenset({"toolkit-repository", "toolkit", "runtime-install", "runtime-config", "cdi"})


def setup_step(
    snapshot: Snapshot, kind: FixKind, text: str, *steps: str, upgrade: bool = False,
    instead: tuple[Command, ...] = (), when: str = ""
) -> Fix:  # fmt: skip
    """What gpunode does itself, by ``steps`` alone where any are named; ``instead`` where it does not set up nodes."""
    is_configured = bool(steps) and _OF_RUNTIMES.issuperset(steps) and has_driver_from_elsewhere(snapshot)
    if not takes_gpunode(snapshot) and not is_configured:
        return Fix(kind, text, instead, when)
    words = ["--driver", "none"] if is_configured else []
    words += ["--runtime", snapshot.view(engine)] if _OF_RUNTIMES.intersection(steps) else []
    words += ["--upgrade"] if upgrade else []
    words += [word for step in steps for word in ("--only", step)]
    return Fix(kind, text, (command("sudo", "gpunode", "setup", *words),), when)


def driver(snapshot: Snapshot, text: str, when: str = "") -> Fix:
    """Installs the driver whole: by gpunode where it can, else by the node's own packages.

    Not by the step ``driver`` alone: without its repository, headers and loading a driver is not whole.
    """
    models = snapshot.view(cards.all_models)
    if takes_gpunode(snapshot) and not (models and isinstance(choose(models, Driver()), Impossible)):
        return Fix("install", text, (_SETUP,), when)
    return _by_packages(snapshot, text, when)


_SETUP: Final = Shell("sudo gpunode setup")
_MAINTAINED: Final = "no branch that NVIDIA maintains does that for the GPUs of this node"


def newer_driver(
    snapshot: Snapshot, text: str, *, least: int = 0, beyond: bool = False, back: bool = False, here: str = "",
    when: str = ""
) -> Iterator[Fix]:  # fmt: skip
    """Brings another release of the driver: the newest of its branch, else another branch that drives these GPUs.

    ``least`` is the oldest branch that will do; ``beyond`` says that another release of the same branch will not do,
    ``back`` that an older branch will, and ``here`` which version is installed, where the family knows it better.
    """
    if not takes_gpunode(snapshot):
        yield _by_packages(snapshot, text, when, least=least)
        return
    version = here or _installed(snapshot)
    if not version and not least:
        yield Fix("install", text, (joined(_SETUP, Shell("--upgrade")),), when)
        lasting = [one.number for one in _branches(snapshot) if one.kind != "new-feature"]
        other = (joined(_SETUP, command("--driver", str(max(lasting)))),) if lasting else ()
        again = "that did not help, and another branch is installed: an upgrade keeps a branch that is maintained"
        yield Fix("install", "or go to the newest branch", other, again)
        return
    wanted = _wanted(snapshot, version, least, beyond=beyond, back=back)
    named = (joined(_SETUP, command(*wanted)),) if wanted else ()
    yield Fix("install", text if wanted else f"{text}; {_MAINTAINED}", named, when)


def driver_of_newer_cuda(snapshot: Snapshot, text: str) -> Iterator[Fix]:
    """A driver whose CUDA is newer: that of another branch, where nobody says which CUDA is enough."""
    release, banner = cuda.asked(snapshot), snapshot.match(cuda.BANNER)
    asked = release.driver if release else banner["needs"] if banner else ""
    least = whole(asked.partition(".")[0]) or 0
    yield from newer_driver(snapshot, text, least=least, beyond=not asked, here=cuda.reported_driver(snapshot))


def _installed(snapshot: Snapshot) -> str:
    """The version of the driver that is installed, as far as anything tells."""
    seen = snapshot.view(installed.loaded) or snapshot.view(installed.on_disk) or snapshot.view(installed.library)
    builds = (row.version for row in snapshot.view(modules.driver_builds))
    listed = (one.upstream for one in installed.packaged(snapshot))
    return seen.version if seen else next((one for one in (*builds, *listed) if one[:3].isdigit()), "")


def _wanted(snapshot: Snapshot, version: str, least: int, *, beyond: bool, back: bool) -> tuple[str, ...]:
    """The option by which gpunode brings another driver than ``version``; none where no branch will do."""
    number = whole(version.partition(".")[0]) or 0
    here = branches.find(number)
    is_upgraded = here is not None and here.active and number >= least and not beyond and version != here.newest_seen
    if is_upgraded:
        return ("--upgrade",)
    able = [one for one in _branches(snapshot) if one.number >= least and one.number != number]
    # One that is maintained for years before one that ends with the next, a newer one before an older.
    able.sort(key=lambda one: (one.number < number, one.kind == "new-feature", abs(one.number - number)))
    best = next((one for one in able if back or one.number > number), None)
    return ("--driver", str(best.number)) if best else ()


def _branches(snapshot: Snapshot) -> list[Branch]:
    """The maintained branches that drive the GPUs of this node, as far as they are known."""
    models = snapshot.view(cards.models)
    active = (one for one in branches.known() if one.active)
    return [one for one in active if not models or isinstance(choose(models, Driver(version=str(one.number))), Choice)]


def guest_driver(text: str, when: str = "") -> Fix:
    """The driver of a vGPU's guest, which no public repository has."""
    whose = (
        "NVIDIA's vGPU guest driver (GRID), of the branch of the host's vGPU manager or one that its release notes "
        "allow beside it; it comes from the host's administrator or the licensing portal, and the data center driver "
        "does not drive a vGPU"
    )
    return by_hand("install", f"{text}: {whose}", when)


_ON_DISK: Final = Shell("v=$(modinfo -F version nvidia);")
MANAGER_OF_IT: Final[dict[PackageManager, Command]] = {
    "apt": Shell(
        'sudo apt-get install "nvidia-fabricmanager=$v*" || sudo apt-get install "nvidia-fabricmanager-${v%%.*}=$v*"'
    ),
    "dnf": Shell('sudo dnf install "nvidia-fabricmanager-$v" || sudo dnf install "nvidia-fabric-manager-$v"'),
    "zypper": Shell('sudo zypper install "nvidia-fabricmanager=$v" || sudo zypper install "nvidia-fabric-manager=$v"'),
}


def fabric_manager_too(snapshot: Snapshot) -> Iterator[Fix]:
    """The fabric manager, where one is installed, beside another driver: it works with its own version alone."""
    words = MANAGER_OF_IT.get(snapshot.view(package_manager))
    if words and snapshot.view(fabric.installed):
        text = "bring the fabric manager to the version of the new driver: with another one no GPU joins the fabric"
        yield run("install", text, joined(_ON_DISK, words))


def _by_packages(snapshot: Snapshot, text: str, when: str = "", *, least: int = 0) -> Fix:
    """The driver from the packages of a distribution that gpunode does not set up."""
    if guests.is_vgpu(snapshot):
        return guest_driver(text, when)
    if is_wsl(snapshot):
        return by_hand("install", f"{text}: {_OF_WINDOWS}", when)
    if is_jetson(snapshot):
        return by_hand("install", f"{text}: {_OF_JETPACK}", when)
    if snapshot.view(systems.of) is not None:
        return by_hand("install", text, when)
    return packaged.installing(snapshot, text, when, least=least)


# NVIDIA's "CUDA on WSL User Guide", and its "Jetson Linux Developer Guide" on updates.
_OF_WINDOWS: Final = (
    "NVIDIA's driver for Windows, in Windows; WSL2 has its libraries from there after wsl --shutdown, and a Linux "
    "driver that is installed within takes their place and does not work"
)
_OF_JETPACK: Final = (
    "the driver is a part of the board's image and becomes newer with JetPack alone; the images of containers have to "
    "be those for this JetPack"
)
# Into apt's keyring goes the pinned key alone, whatever the server sends; without it apt refuses the archive.
_PINNED_KEY: Final = joined(
    Shell("k=$(mktemp -d);"),
    command("curl", "-fsSL", TOOLKIT.key_url),
    Shell('| gpg --no-autostart --homedir "$k" --import && gpg --no-autostart --homedir "$k" --export'),
    command(TOOLKIT.fingerprint),
    Shell("|"),
    command("sudo", "tee", TOOLKIT.keyring),
    Shell(">/dev/null"),
)
TOOLKIT_ARCHIVE: Final = (
    _PINNED_KEY,
    joined(
        command("echo", f"deb [signed-by={TOOLKIT.keyring}] {TOOLKIT.url} /"),
        Shell("|"),
        command("sudo", "tee", TOOLKIT.list_file),
    ),
    Shell("sudo apt-get update"),
)
"""How a person has apt trust and read the toolkit's archive."""


MODULES_OUT: Final = Shell("sudo modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia")
"""The command that takes the driver's modules out of the kernel, those that use others first."""


def rebuild_initramfs(snapshot: Snapshot, text: str = "rebuild the initramfs of every kernel", when: str = "") -> Fix:
    """Makes the initial RAM disks anew."""
    return Fix("rebuild", text, (_typed(snapshot, "initramfs"),), when)


def rebuilt_initramfs(snapshot: Snapshot) -> Iterator[Fix]:
    """The whole remedy where the initramfs alone is wrong: it is made anew, and the node started with it."""
    yield rebuild_initramfs(snapshot)
    yield reboot()


def restart(unit: str, text: str = "", when: str = "") -> Fix:
    """Restarts a unit."""
    commands = (command("sudo", "systemctl", "restart", unit),) if is_unit(unit) else ()
    return Fix("restart", text or f"restart {unit.removesuffix('.service')}", commands, when)


def reboot(text: str = "reboot the node", when: str = "") -> Fix:
    """Reboots."""
    return Fix("reboot", text, (Shell("sudo systemctl reboot"),), when)


def drain(text: str = "move the work away from this node first") -> Fix:
    """Takes the work away."""
    return Fix("drain", text)


_RESET: Final = (
    "move the work away from the GPU, then reset it; where that is refused as in use, switch persistence mode off "
    "(nvidia-smi -pm 0) and reset it again"
)


def reset_gpu(text: str = _RESET, when: str = "") -> Fix:
    """Resets the GPU that is at fault, and no other."""
    return Fix("reset", text, (of_gpu("sudo", "nvidia-smi", "--gpu-reset", f"--id={ADDRESS}"),), when)


def reset_all_gpus(text: str, when: str = "") -> Fix:
    """Resets every GPU of the node, and with them the NVSwitches that join them."""
    return Fix("reset", text, (Shell("sudo nvidia-smi --gpu-reset"),), when)


# Of a GPU that fell off the bus, the driver asks for a reboot (Xid 154), which takes no power away from the slot.
_POWER_CYCLE: Final = (
    "power the node off, wait a minute, and on again: a reboot alone, even where Xid 154 asks for one, often leaves "
    "the GPU as it is"
)


def power_cycle(text: str = _POWER_CYCLE) -> Fix:
    """Takes the power away; no command does that and comes back."""
    return Fix("reboot", text)


def replace(text: str = "have the GPU replaced", when: str = "") -> Fix:
    """Sends hardware back."""
    return Fix("replace", text, (), when)


def nvidia_report(when: str = "it comes back") -> Fix:
    """Writes NVIDIA's own report, without which no support case is opened."""
    return Fix("inspect", "write NVIDIA's report for the support case", (Shell("sudo nvidia-bug-report.sh"),), when)
