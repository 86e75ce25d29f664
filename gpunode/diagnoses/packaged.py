"""The driver by the packages of distributions that gpunode does not set up: branch and modules are those of the GPU.

A name without a branch stands for the newest driver with its open modules, which drives GPUs from Turing on. Where a
GPU is older its last branch is named, and where nobody knows which GPU it is nothing is: first somebody looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gpunode.catalog.driver import Impossible, choose
from gpunode.catalog.gpus import GpuModel
from gpunode.catalog.releases import release
from gpunode.diagnoses.commands import Command, Shell, command
from gpunode.diagnoses.model import Fix
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import cards, driver, packages
from gpunode.diagnoses.views.system import distro, package_manager, running_kernel
from gpunode.facts.model import Distro
from gpunode.recipe import Driver


@dataclass(frozen=True, slots=True)
class Way:
    """How a driver is installed.

    Attributes:
        commands: none where a person does it by the words.
        words: what is to be known of it; empty where the commands say all.
    """

    commands: tuple[Command, ...] = ()
    words: str = ""


def installing(snapshot: Snapshot, text: str, when: str = "", *, least: int = 0) -> Fix:
    """The driver that the GPUs of this node take, from packages; ``least`` is the oldest branch that will do."""
    models = snapshot.view(cards.all_models)
    if not models and not _is_driven_by_open_modules(snapshot):
        return Fix("install", f"look first which GPU this is ({_LOOK}), then {text}: {_BY_GENERATION}", (), when)
    way = _way(snapshot, models, least)
    return Fix("install", f"{text}: {way.words}" if way.words else text, way.commands, when)


_LOOK: Final = "lspci -nn -d 10de:"
_BY_GENERATION: Final = (
    "with its open kernel modules from Turing on, branch 580 with its proprietary ones for Maxwell, Pascal and Volta, "
    "branch 470 for Kepler"
)
_NONE: Final = "no branch that NVIDIA maintains does that for the GPUs of this node"


def _is_driven_by_open_modules(snapshot: Snapshot) -> bool:
    """Whether the open modules were seen to drive what is there."""
    seen = snapshot.view(driver.loaded)
    return driver.works(snapshot) and seen is not None and seen.is_open is True


def _way(snapshot: Snapshot, models: Sequence[GpuModel], least: int) -> Way:
    last = min((model.last_branch for model in models if model.last_branch), default=None)
    found = choose(models, Driver()) if models else None
    is_old = last is not None and last < _MAINTAINED and all(model.first_branch <= last for model in models)
    if isinstance(found, Impossible) and not is_old:
        return Way(words=f"{found.what}: {found.why}; {found.hint}")
    if last is not None and last < least:
        return Way(words=_NONE)
    if last is not None and last < _MAINTAINED:
        return ended(snapshot, last)
    if package_manager(snapshot) == "apt":
        return _by_apt(snapshot, models, least)
    return of_branch(snapshot, last)


# Older ones are not in NVIDIA's repositories; it is the last of three generations, and maintained for years.
_MAINTAINED: Final = 580


def ended(snapshot: Snapshot, last: int) -> Way:
    """The branch ``last``, which is not in NVIDIA's repositories any more, from the distribution that keeps it."""
    if package_manager(snapshot) != "apt":
        return of_branch(snapshot, last)
    known = distro(snapshot)
    has = release(known) if known else None
    name = has.ended.get(last) if has else None
    # Nobody looked up all that Ubuntu's archive has.
    is_looked_up = has is not None and has.distribution == "debian"
    if name is None and not is_looked_up:
        asked = f"apt-cache search --names-only nvidia | grep {last}"
        return Way(words=f"the system's own package of branch {last} ({asked}), else NVIDIA's {_INSTALLER}")
    if name is None:
        return _by_hand(last)
    # Debian's ended drivers stand beside the current one, which is named with a dash: apt removes it.
    others = ("nvidia-driver-",) if is_looked_up else ()
    words = f"branch {last} is {name}, in non-free" if others else f"branch {last} is {name}"
    return Way((command("sudo", "apt-get", "install", name, *others),), words)


def _by_apt(snapshot: Snapshot, models: Sequence[GpuModel], least: int) -> Way:
    """Ubuntu finds out itself what its archive has for the GPU; each release of Debian has one branch."""
    known = distro(snapshot)
    # Of a release that nobody named, the oldest that may be.
    has = release(known or Distro("debian", "11", "", ""))
    is_like_debian = known is not None and "debian" in known.like and "ubuntu" not in (*known.like, known.id)
    if known is not None and (is_like_debian or (known.id == "debian" and has is None)):
        return Way(words=f"{known.name}'s own package nvidia-driver, if its branch (apt-cache policy) drives this GPU")
    if (known is not None and known.id != "debian") or (known is None and "-generic" in running_kernel(snapshot)):
        return Way((Shell("sudo ubuntu-drivers install"),))
    branch = has.own_branch if has else 0
    untaken = [one for one in models if not one.first_branch <= branch <= (one.last_branch or branch)]
    untaken += [one for one in models if one.needs_open_modules and one not in untaken]
    if untaken or branch < least:
        whose = f"does not drive {untaken[0].label}" if untaken else "is older than that"
        newer = "take NVIDIA's .run installer" if known and has and has.repository else "upgrade Debian first"
        return Way(words=f"Debian's own is of branch {branch}, which {whose}; {newer}")
    return Way((command("sudo", "apt-get", "install", "nvidia-driver"),))


def of_branch(snapshot: Snapshot, last: int | None) -> Way:
    """The newest driver where dnf, zypper or pacman install it, with its open modules; or the ``last`` for its GPU."""
    manager = package_manager(snapshot)
    if manager == "pacman":
        aur = f"nvidia-{last}xx-dkms and nvidia-{last}xx-utils are in the AUR"
        return Way(words=aur) if last else _by_pacman(running_kernel(snapshot))
    return _by_zypper(snapshot, last) if manager == "zypper" else _by_dnf(snapshot, last)


# Arch's kernels beside the stock one, whose module alone is built already.
_OTHER_KERNELS: Final = ("zen", "lts", "hardened", "rt")


def _by_pacman(kernel: str) -> Way:
    """Arch has the open modules built for its stock kernel, and for all others as a source."""
    own = next((name for name in _OTHER_KERNELS if kernel.endswith(f"-{name}")), "")
    if own:
        names = ("nvidia-open-dkms", f"linux-{own}-headers", "nvidia-utils")
        return Way((command("sudo", "pacman", "-S", *names),))
    if kernel and "-arch" not in kernel:
        return Way(words="nvidia-open-dkms and nvidia-utils, with the headers of this kernel, which is not Arch's")
    return Way((command("sudo", "pacman", "-S", "nvidia-open", "nvidia-utils"),))


# SUSE counts the generations of packages, each with the driver of its last branch.
_GENERATIONS: Final = {390: "G04", 470: "G05", 580: "G06"}


def _by_zypper(snapshot: Snapshot, last: int | None) -> Way:
    known = distro(snapshot)
    if last is None and known is not None and known.id == "opensuse-tumbleweed":
        # NVIDIA has a repository of the newest open driver for numbered releases alone.
        return Way(words=f"openSUSE's own packages of the open kernel modules ({_TUMBLEWEED})")
    if last is None:
        return Way((*cuda_repository(snapshot), command("sudo", "zypper", "install", "nvidia-open")))
    if (generation := _GENERATIONS.get(last)) is None:
        return _by_hand(last)
    names = [f"nvidia-driver-{generation}-kmp-default"]
    names += [f"nvidia-compute-utils-{generation}"] if last == _MAINTAINED else [f"nvidia-compute-{generation}"]
    install = command("sudo", "zypper", "install", *names)
    return Way((*_suse_repository(snapshot), install), f"{names[0]} is of branch {last}")


_TUMBLEWEED: Final = "https://en.opensuse.org/SDB:NVIDIA_drivers"


def _suse_repository(snapshot: Snapshot) -> tuple[Command, ...]:
    """The commands that add the repository that NVIDIA keeps for SUSE, where nothing of it is installed."""
    known = distro(snapshot)
    major, _, minor = known.version_id.partition(".") if known else ("", "", "")
    if (
        known is None
        or not (major + minor).isdigit()
        or any("-G0" in name for name in snapshot.view(packages.packages))
    ):
        return ()
    suse = f"suse/sle{major}sp{minor}" if minor and major == "15" else f"suse/sle{major}"
    rolls = known.id == "opensuse-tumbleweed"  # its version is the day of the snapshot
    opensuse = "opensuse/tumbleweed" if rolls else f"opensuse/leap/{known.version_id}"
    place = opensuse if known.id.startswith("opensuse") else suse
    add = command("sudo", "zypper", "addrepo", f"https://download.nvidia.com/{place}", "nvidia-graphics")
    return add, Shell("sudo zypper refresh")


def _by_dnf(snapshot: Snapshot, last: int | None) -> Way:
    known, there = distro(snapshot), snapshot.view(packages.packages)
    is_fusions = any(name.startswith(("akmod-nvidia", "xorg-x11-drv-nvidia")) for name in there)
    is_fedora = known is not None and known.id == "fedora"
    if is_fusions and last is None:
        return Way((command("sudo", "dnf", "install", "akmod-nvidia", "xorg-x11-drv-nvidia-cuda"),))
    if last is not None and (is_fusions or is_fedora or last < _MAINTAINED):
        return _by_rpm_fusion(snapshot, last, is_there=is_fusions)
    if has_streams(snapshot):
        stream = f"nvidia-driver:{last}-dkms" if last else "nvidia-driver:open-dkms"
        return Way((*cuda_repository(snapshot), *_with_stream(snapshot, stream)))
    if last is None:
        return Way((*cuda_repository(snapshot), command("sudo", "dnf", "install", "nvidia-open")))
    return _held(snapshot, last)


def has_streams(snapshot: Snapshot) -> bool:
    """Whether NVIDIA's repository for this release has its branches in module streams."""
    known = distro(snapshot)
    if known is None or known.id == "fedora":
        return False
    return known.id == "amzn" or known.version_id.partition(".")[0] in {"8", "9"}


def _with_stream(snapshot: Snapshot, stream: str) -> tuple[Command, ...]:
    """The packages of another stream in the place of those that are there, else those of this one."""
    modules = ("kmod-nvidia-latest-dkms", "kmod-nvidia-open-dkms")
    if snapshot.view(driver.loaded) or any(name in modules for name in snapshot.view(packages.packages)):
        # With its profile: no package of the stream may be there yet.
        return (command("sudo", "dnf", "module", "switch-to", f"{stream}/default", "--allowerasing"),)
    return (command("sudo", "dnf", "module", "install", stream),)


def _held(snapshot: Snapshot, last: int) -> Way:
    """Without streams all branches have one name, and the newest is taken unless another is held."""
    words = f"branch {last} from NVIDIA's repository, held there by dnf versionlock: the newest leaves this GPU out"
    known = distro(snapshot)
    if known is None or known.id not in RHEL:
        return Way(words=words)
    hold = command("sudo", "dnf", "versionlock", "add", f"*nvidia*{last}*")
    names = ("kmod-nvidia-latest-dkms", "nvidia-driver", "nvidia-driver-cuda")
    plugin = command("sudo", "dnf", "install", "python3-dnf-plugin-versionlock")
    install = command("sudo", "dnf", "install", *names)
    return Way((*cuda_repository(snapshot), plugin, hold, install), words)


def _by_rpm_fusion(snapshot: Snapshot, last: int, *, is_there: bool) -> Way:
    """RPM Fusion keeps the last branch of each generation under a name of its own."""
    known = distro(snapshot)
    if known is not None and known.id not in {*RHEL, "fedora"}:
        return _by_hand(last)
    names = (f"akmod-nvidia-{last}xx", f"xorg-x11-drv-nvidia-{last}xx-cuda")
    install = command("sudo", "dnf", "install", "--allowerasing", *names)
    repository = () if is_there or known is None else (_rpm_fusion(known.id, known.version_id.partition(".")[0]),)
    return Way((*repository, install), f"branch {last} is in RPM Fusion, under that name")


def _rpm_fusion(system: str, major: str) -> Command:
    place = "fedora" if system == "fedora" else "el"
    kinds = ("free", "nonfree")
    files = (
        f"https://mirrors.rpmfusion.org/{kind}/{place}/rpmfusion-{kind}-release-{major}.noarch.rpm" for kind in kinds
    )
    return command("sudo", "dnf", "install", *files)


def _by_hand(last: int) -> Way:
    return Way(words=f"branch {last} is the last for this GPU, and no repository has it: take NVIDIA's {_INSTALLER}")


_INSTALLER: Final = ".run installer, if it builds for this kernel"


RHEL: Final = frozenset({"rhel", "rocky", "almalinux", "centos", "ol"})
_REPOSITORIES: Final = "https://developer.download.nvidia.com/compute/cuda/repos"


def cuda_repository(snapshot: Snapshot) -> tuple[Command, ...]:
    """The commands that add NVIDIA's repository where dnf or zypper have none of the driver's packages from it yet."""
    known = distro(snapshot)
    names = (name for name in snapshot.view(packages.packages) if not name.startswith(_TOOLKITS))
    # Those of a generation are of SUSE's own repository.
    there = any(name.startswith(_FROM_THERE) and "-G0" not in name for name in names)
    if known is None or there:
        return ()
    major = known.version_id.partition(".")[0]
    if not major.isdigit():
        return ()
    # From 16 on both of SUSE's have one repository (the driver installation guide's table of releases).
    suse = {"15": {"sles": "sles15", "opensuse-leap": "opensuse15"}}.get(major, {"sles": "suse16"})
    folders = {"fedora": f"fedora{major}", "amzn": f"amzn{major}", "opensuse-leap": "suse16", **suse}
    folder = f"rhel{major}" if known.id in RHEL else folders.get(known.id, "")
    if not folder:
        return ()
    is_arm = any("aarch64" in item.text for item in snapshot.of("uname"))
    url = f"{_REPOSITORIES}/{folder}/{'sbsa' if is_arm else 'x86_64'}/cuda-{folder}.repo"
    if known.id in {"sles", "opensuse-leap"}:
        return command("sudo", "zypper", "addrepo", url), Shell("sudo zypper refresh")
    if known.id == "fedora":
        return (command("sudo", "dnf", "config-manager", "addrepo", "--overwrite", f"--from-repofile={url}"),)
    return Shell("sudo dnf install dnf-plugins-core"), command("sudo", "dnf", "config-manager", "--add-repo", url)


_FROM_THERE: Final = ("nvidia-", "akmod-nvidia", "kmod-nvidia", "cuda-")
_TOOLKITS: Final = ("nvidia-container-", "nvidia-docker", "nvidia-fabric")
