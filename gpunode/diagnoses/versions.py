"""Versions that do not match: what is loaded, on disk, in libraries, packages and containers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final, TypeAlias

from gpunode.diagnoses import remedies, symptoms
from gpunode.diagnoses.addresses import DRIVER_GUIDE, NVML_RETURNS
from gpunode.diagnoses.chains import LIBRARY_MISMATCH
from gpunode.diagnoses.commands import Shell, command, edited, joined
from gpunode.diagnoses.judging import is_examined
from gpunode.diagnoses.model import Family, Fix, Proof, Rule, only
from gpunode.diagnoses.remedies import by_hand, drain, reboot, run, takes_gpunode, uninstall
from gpunode.diagnoses.runfile import without_strays
from gpunode.diagnoses.signs import fact, file_line, line
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import driver, guests, history, installs, packages, runfile, versions
from gpunode.diagnoses.views.packages import Package
from gpunode.diagnoses.views.system import just_booted, package_manager
from gpunode.diagnoses.views.versions import Scene, is_of, number
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern

UNATTENDED: Final = "driver-library-mismatch-unattended-upgrade"
PENDING: Final = "driver-library-mismatch-reboot-pending"
PARTIAL: Final = "driver-library-mismatch-partial-upgrade"
MIXED: Final = "driver-library-mismatch-mixed-installs"
CONTAINER: Final = "container-driver-mismatch"

# libnvidia-container stops where a file stands in the image to which it would mount one of the node's.
_IN_THE_WAY: Final = line(r"mount error: file creation failed: \S*/lib(?:nvidia|cuda|nvcuvid)[\w.-]*: file exists")
_INSIDE: Final = fact(versions.said_inside)
_REBOOT_LIST: Final = file_line("*/reboot-required.pkgs", r"^[ \t]*(?:lib)?nvidia-\S+\s*$")
_AUTOMATIC: Final = line(r"unattended-upgrade|dnf-automatic|yum-cron|transactional-update|role='update-packages'")


def _decide(snapshot: Snapshot) -> Iterator[tuple[str, Proof]]:
    """Which of the mismatches it is, by which pair of versions differs and how that came about."""
    scene = snapshot.view(versions.scene)
    for way in _WITH_WORKING_DRIVER if driver.works(snapshot) else _WAYS:
        if found := way(snapshot, scene):
            yield found
            return


# The kernel tells of something else, and nobody of a mismatch.
_OTHER_FAULTS: Final = (symptoms.NOT_STARTED, symptoms.ANY_XID)
Found: TypeAlias = "tuple[str, Proof] | None"


def _in_the_way(snapshot: Snapshot, _: Scene) -> Found:
    what = "the image brings libraries of a driver, and those of the node cannot be put in their place"
    brought = snapshot.view(_IN_THE_WAY)
    return (CONTAINER, Proof(what, brought)) if brought else None


def _strayed(snapshot: Snapshot, _: Scene) -> Found:
    """Libraries that are not of the driver which nvidia-smi shows."""
    strayed, node = driver.strayed(snapshot), driver.smi_version(snapshot)
    if not strayed or node is None:
        return None
    more = f", {len(strayed) - 1} more packages are neither" if strayed[1:] else ""
    what = f"{strayed[0].name} is {strayed[0].upstream}{more}, and the driver {node.version}"
    said = snapshot.said(driver.UNFIT)
    cited = (*(one.citation for one in strayed), node.citation, *said)
    text = "bring every package of the driver to the version of its kernel modules"
    remedy = (remedies.driver(snapshot, text),) if takes_gpunode(snapshot) else tuple(_complete(snapshot))
    return PARTIAL, Proof(what, cited, "certain" if said else "likely", remedy=remedy)


def _in_container(snapshot: Snapshot, scene: Scene) -> Found:
    """A program in a container is refused, and nothing says that the node's own are.

    libnvidia-container asks NVML first: where a container starts at all, the node's own library fits.
    """
    inside = versions.said_inside(snapshot)
    works, shipped = driver.works(snapshot), versions.shipped(snapshot)
    if works and not inside and shipped:
        inside = scene.says  # nobody wrote that this was said in the container whose packages are shown
    if not works and (scene.says or scene.differs or any(one.is_automatic for one in scene.upgrades)):
        return None
    own, node = driver.library_in_container(snapshot), driver.smi_version(snapshot) or scene.loaded
    differs = own is not None and node is not None and not is_of(node.version, own.version)
    is_shown = works or shipped or differs or versions.is_of_program(snapshot)
    if not is_shown or not (inside or (shipped and node and not works)):
        return None
    seen = (one.citation for one in (node, own) if one is not None)
    cited = tuple(dict.fromkeys((*inside, *shipped, *seen, *versions.answering_elsewhere(snapshot))))
    ours, theirs = f" {node.version}" if node else "", f" {own.version}" if own else ""
    what = f"the container loads driver libraries{theirs} of its own, and the node's driver{ours} refuses them"
    is_sure = bool(inside) and (bool(shipped) or differs)
    return CONTAINER, Proof(what, cited, "certain" if is_sure else "likely")


def _on_node(snapshot: Snapshot, scene: Scene) -> Found:
    """Which of the node's own mismatches it is; what nobody complains of is likely, and of a live node nothing."""
    said = scene.says or versions.said_inside(snapshot)
    if not said and (is_examined(snapshot) or any(snapshot.view(sign) for sign in _OTHER_FAULTS)):
        return None
    if not said and scene.loaded is None:
        cause, proof = _packages_apart(scene) or ("", Proof(""))
    else:
        ways = (_mixed(snapshot, scene), _automatic(scene), _by_disk(snapshot, scene), _by_packages(snapshot, scene))
        cause, proof = next((found for found in ways if found), ("", Proof("")))
    cited = tuple(dict.fromkeys((*scene.cited, *proof.citations)))
    sure = proof.confidence if said else "likely"
    return (cause, replace(proof, citations=cited, confidence=sure)) if cause else None


def _two_programs(snapshot: Snapshot, scene: Scene) -> Found:
    if other := installs.answering_otherwise(snapshot):
        what = "two drivers are installed side by side: what is found first fails, and the other fits the module"
        return MIXED, Proof(what, tuple(dict.fromkeys((*scene.says, *other))))
    return None


_WAYS: Final = (_in_the_way, _two_programs, _in_container, _on_node)
_WITH_WORKING_DRIVER: Final = (_in_the_way, _two_programs, _strayed, _in_container)


def _mixed(snapshot: Snapshot, scene: Scene) -> Found:
    """Two drivers were installed: by two means, of two branches, from two packagers."""
    for reason, citations in installs.side_by_side(snapshot, scene):
        return MIXED, Proof(f"two drivers are installed side by side: {reason}", citations)
    return None


def _automatic(scene: Scene) -> Found:
    """The system upgraded the driver by itself, and the module on disk went along."""
    done = [one for one in scene.upgrades if one.is_automatic and not scene.is_loaded(one.driver)]
    if not done or (scene.disk is not None and scene.is_loaded(scene.disk.version)):
        return None
    version = next((one.driver for one in reversed(done) if one.driver), "")
    to = f" to {version}" if version else ""
    what = f"the system upgraded the driver by itself{to}{scene.while_loaded}"
    return UNATTENDED, Proof(what, tuple(one.citation for one in done))


def _by_disk(snapshot: Snapshot, scene: Scene) -> Found:
    """What the module on disk tells: it is new, so a reboot loads it; or it is old, and no reboot helps."""
    if scene.disk is None:
        return None
    is_other = scene.wanted is not None and not is_of(scene.disk.version, scene.wanted.version)
    wanted = scene.wanted.version if scene.wanted else ""
    if is_other and scene.has_new_module and scene.loaded:
        what = f"{scene.loaded.version} is loaded, {scene.disk.version} is on disk, and the libraries are of {wanted}"
        return PARTIAL, Proof(what, confidence="likely")
    if is_other:
        what = f"the libraries are of {wanted}, the kernel module on disk is still {scene.disk.version}"
        return PARTIAL, Proof(what)
    if scene.has_new_module and (scene.upgrades or not just_booted(snapshot)):
        what = f"the driver was upgraded to {scene.disk.version}{scene.while_loaded}"
        # Without a log it may have been the system.
        return PENDING, Proof(what, confidence="certain" if scene.upgrades else "likely")
    if scene.loaded is None:
        what = f"{scene.disk.version} is on disk and in the libraries, another is loaded"
        return PENDING, Proof(what, confidence="likely")
    return None


def _by_packages(snapshot: Snapshot, scene: Scene) -> Found:
    """What the packages tell where nobody looked at the module on disk."""
    if apart := _packages_apart(scene):
        return apart
    listed = tuple(one.citation for one in (*scene.bringing, *scene.user))
    new = [one for one in scene.bringing if not scene.is_loaded(one.upstream)]
    if new and (scene.wanted is None or any(is_of(one.upstream, scene.wanted.version) for one in new)):
        what = f"the driver's packages are at {new[0].upstream}{scene.while_loaded}"
        is_sure = scene.upgrades and scene.loaded
        return PENDING, Proof(what, listed, "certain" if is_sure else "likely")
    done = [one.citation for one in scene.upgrades if one.driver and not scene.is_loaded(one.driver)]
    if done or (done := list(snapshot.view(_REBOOT_LIST))):
        return PENDING, Proof(f"the driver was upgraded{scene.while_loaded}", (*listed, *done))
    return _by_user_side(snapshot, scene) or _by_kernel(snapshot, scene)


def _packages_apart(scene: Scene) -> Found:
    for one in scene.bringing:
        is_old = scene.is_loaded(one.upstream) or scene.loaded is None
        other = next((user.upstream for user in scene.user if user.upstream != one.upstream), "")
        wanted = scene.wanted.version if scene.wanted else other
        if is_old and wanted and not is_of(one.upstream, wanted) and not scene.is_loaded(wanted):
            what = f"{one.name} is still {one.upstream}, the libraries are {wanted}"
            return PARTIAL, Proof(what, tuple(one.citation for one in (*scene.bringing, *scene.user)))
    return None


def _by_user_side(snapshot: Snapshot, scene: Scene) -> Found:
    """A whole list of packages that has none of the kernel's side."""
    one = next((user for user in scene.user if not scene.is_loaded(user.upstream)), None)
    if one is None or scene.loaded is None or scene.bringing or not versions.lists_all_packages(snapshot):
        return None
    what = f"{one.name} is {one.upstream}, and no package of the kernel's side is installed in that version"
    return PARTIAL, Proof(what, (one.citation,), "likely")


def _by_kernel(snapshot: Snapshot, scene: Scene) -> Found:
    """The kernel hears of newer libraries long after boot: mostly they came by an upgrade before a reboot."""
    if scene.loaded is None or scene.wanted is None or number(scene.wanted.version) <= number(scene.loaded.version):
        return None
    if not versions.is_heard_long_after_boot(snapshot):
        return None
    return PENDING, Proof(f"the libraries are of {scene.wanted.version} already{scene.while_loaded}", (), "likely")


# --- remedies -----------------------------------------------------------------------------------------------------

_UNIT: Final = "nvidia-persistenced.service"
_PERSISTENCED: Final = line(r"persistenced")


def _reload(snapshot: Snapshot) -> Iterable[Fix]:
    yield drain()
    runs = isinstance(snapshot.facts.unit(_UNIT), Known) or bool(snapshot.view(_PERSISTENCED))
    stop, start = (((command("sudo", "systemctl", verb, _UNIT),) if runs else ()) for verb in ("stop", "start"))
    load = (remedies.MODULES_OUT, Shell("sudo modprobe -a nvidia nvidia_uvm"))
    yield run("load", "load the new module without a reboot, if nothing holds the old one", *stop, *load, *start)
    yield reboot(when="the old module cannot be unloaded")


_BLACKLISTED: Final = 'Unattended-Upgrade::Package-Blacklist { "^nvidia-"; "^libnvidia-"; "^linux-modules-nvidia-"; };'


def _reload_and_hold(snapshot: Snapshot) -> Iterable[Fix]:
    yield from _reload(snapshot)
    text = "keep the driver out of automatic upgrades"
    match package_manager(snapshot):
        case "apt":
            file = command("sudo", "tee", "/etc/apt/apt.conf.d/51-nvidia-by-hand")
            yield run("configure", text, joined(command("echo", _BLACKLISTED), Shell("|"), file))
        case "dnf":
            once = r"/^excludepkgs=\*nvidia\*$/d; /^\[base\]/a excludepkgs=*nvidia*"
            yield run("configure", text, *edited(once, "/etc/dnf/automatic.conf"))
        case _:
            yield by_hand("configure", f"{text}: zypper addlock, or IgnorePkg of pacman")


def _complete(snapshot: Snapshot) -> Iterable[Fix]:
    if holds := sorted(name for name in packages.holds(snapshot) if history.is_drivers(name)):
        yield remedies.unhold(snapshot, "release the hold on the packages that stayed behind", *holds)
    yield remedies.one_archive(snapshot)
    if package_manager(snapshot) in {"apt", "dnf"}:
        yield remedies.one_version(snapshot, "install", "bring every package to the same version")
    yield remedies.driver(snapshot, "install what is missing of that version, its module included")
    yield reboot()


def _one_driver(snapshot: Snapshot) -> Iterable[Fix]:
    if strays := runfile.strays(snapshot):
        yield from without_strays(snapshot, strays)
        return
    if guests.is_vgpu(snapshot):
        yield remedies.guest_driver("keep the driver of one source: leave the guest driver, or install it anew, whole")
        return
    scene = snapshot.view(versions.scene)
    packaged = (*scene.bringing, *scene.user)
    numbers = sorted({branch for one in packaged if (branch := installs.branch(one))})
    if len(numbers) > 1:
        older = [one.name for one in packaged if installs.branch_named(one.name) not in {"", numbers[-1]}]
        yield uninstall(snapshot, "remove the packages of all branches but one", *sorted(set(older)))
    elif runfile.installed(snapshot):
        text = "take the .run installation away with its own uninstaller"
        yield run("remove", text, Shell("sudo nvidia-uninstall --silent"))
    else:
        gone = _remove_the_other(snapshot, packaged)
        locked = sorted(name for name in packages.holds(snapshot) if any(name in one.split() for one in gone.commands))
        if locked:
            yield remedies.unhold(snapshot, "let go of the packages that are held at one version", *locked)
        yield gone
    text = "install the one that stays, whole"
    if takes_gpunode(snapshot):
        text += "; gpunode names each package of another one before it removes it"
    yield remedies.driver(snapshot, text)
    yield reboot()


def _remove_the_other(snapshot: Snapshot, packaged: tuple[Package, ...]) -> Fix:
    if package_manager(snapshot) == "apt" or not packaged:
        text = "take away what NVIDIA's .run installer has put beside the packages, where it has"
        return run("remove", text, Shell("[ ! -x /usr/bin/nvidia-uninstall ] || sudo nvidia-uninstall --silent"))
    fusion = sorted({one.name for one in packaged if _OF_RPM_FUSION.match(one.name)})
    names = fusion or sorted({one.name for one in packaged})
    return uninstall(snapshot, "remove the packages of the driver that is not wanted", *names)


# Its modules are called by kernel, or for all of them by no more than this; NVIDIA's have a word after it.
_OF_RPM_FUSION: Final = Pattern(r"(?:xorg-x11-drv-nvidia|akmod-nvidia|kmod-nvidia(?:-\d+xx)?(?:-\d+\.\d+\.\d+-\S+)?$)")


def _one_library(snapshot: Snapshot) -> Iterable[Fix]:
    own, node = driver.library_in_container(snapshot), snapshot.view(versions.scene).loaded
    is_older = own is not None and node is not None and number(own.version) < number(node.version)
    image = by_hand("remove", "build the image without packages of the driver: its libraries come from the node")
    anew = by_hand("restart", "create the container anew, so that it gets the libraries of today's driver")
    yield from ((anew, image) if is_older and not versions.shipped(snapshot) else (image, anew))


_CONSEQUENCES: Final = LIBRARY_MISMATCH | {"cuda-compat-lib-mismatch", "cuda-compat-not-supported-hw", CONTAINER}

FAMILY: Final = Family(
    "versions",
    "versions that do not match",
    (
        Rule(
            cause=UNATTENDED,
            layer="package",
            storey="driver",
            disruption="reboot",
            title="the system upgraded the driver by itself while the old module was loaded",
            story=(
                "unattended-upgrades, or dnf-automatic, brought in a new driver at night. Libraries on disk are new at "
                "once, the kernel keeps the module that it has loaded, and NVIDIA's libraries speak only to a module "
                "of exactly their own version. What ran before goes on; every new program fails with «Driver/library "
                "version mismatch», and so does every new container. Loading the new module is enough, and the next "
                "such night is prevented by taking the driver out of automatic upgrades."
            ),
            sources=("https://github.com/lyulyul/shine-cluster/issues/30", NVML_RETURNS),
            check=only(UNATTENDED, _decide),
            share=3,
            symptoms=(symptoms.MISMATCH,),
            context=_AUTOMATIC,
            look_at=(
                Shell("grep -i nvidia /var/log/apt/history.log"),
                Shell("cat /proc/driver/nvidia/version"),
            ),
            remedy=_reload_and_hold,
            explains=_CONSEQUENCES,
        ),
        Rule(
            cause=PENDING,
            layer="driver",
            storey="driver",
            disruption="reboot",
            title="the driver was upgraded and its new module is not loaded yet",
            story=(
                "An upgrade replaced libraries and module on disk; the kernel still runs the module that was loaded at "
                "boot. The two do not work together, so nvidia-smi and every new CUDA program or container fail until "
                "the new module is loaded: by a reboot, or by unloading the old one when nothing uses it. The module "
                "on disk already has the new version."
            ),
            sources=("https://github.com/oddmario/NVIDIA-Ubuntu-Driver-Guide/issues/4", NVML_RETURNS),
            check=only(PENDING, _decide),
            share=5,
            symptoms=(symptoms.MISMATCH,),
            context=_REBOOT_LIST,
            look_at=(
                Shell("modinfo -F version nvidia"),
                Shell("cat /proc/driver/nvidia/version"),
            ),
            remedy=_reload,
            explains=_CONSEQUENCES,
        ),
        Rule(
            cause=PARTIAL,
            layer="package",
            storey="packages",
            disruption="reboot",
            title="only a part of the driver's packages was upgraded",
            story=(
                "Libraries and programs are of one version, and the kernel module on disk is of another, because a "
                "package was held back, a repository offered only a part, or the new module was not built. A reboot "
                "loads the same old module again and changes nothing. All packages have to be brought to one version "
                "first."
            ),
            sources=("https://github.com/illinois-scicomp/machine-shop-maintenance/issues/70", NVML_RETURNS),
            check=only(PARTIAL, _decide),
            share=2,
            symptoms=(symptoms.MISMATCH,),
            look_at=(
                Shell("modinfo -F version nvidia"),
                Shell("dpkg -l | grep nvidia"),
            ),
            remedy=_complete,
            explains=_CONSEQUENCES,
        ),
        Rule(
            cause=MIXED,
            layer="driver",
            storey="driver",
            disruption="reboot",
            title="two drivers are installed side by side",
            story=(
                "The driver was installed twice, by different means: the .run file and packages, packages of two "
                "branches, or of two repositories. The kernel loads the module of one, programs the libraries of the "
                "other. Which pair meets can change with every ldconfig and every kernel. One of the two has to go, "
                "whole."
            ),
            sources=(DRIVER_GUIDE, NVML_RETURNS),
            check=only(MIXED, _decide),
            share=1,
            symptoms=(symptoms.MISMATCH,),
            look_at=(
                Shell("dpkg -l | grep nvidia"),
                Shell("ldconfig -p | grep libnvidia-ml"),
            ),
            remedy=_one_driver,
            explains=_CONSEQUENCES,
        ),
        Rule(
            cause=CONTAINER,
            layer="userspace",
            storey="programs",
            disruption="restart-container",
            title="the container has driver libraries of another version",
            story=(
                "A container gets the driver's libraries from the node when it starts. An image that ships libraries "
                "of its own, or a container that was started before the node's driver was upgraded, loads others, and "
                "the node's module refuses them: «Driver/library version mismatch» inside, while nvidia-smi on the "
                "node works. When the image's are the newer ones, ldconfig in the container prefers them to those that "
                "were mounted."
            ),
            sources=(
                "https://github.com/NVIDIA/libnvidia-container/issues/266",
                "https://github.com/k4yt3x/video2x/issues/1226",
            ),
            check=only(CONTAINER, _decide),
            share=1,
            symptoms=(symptoms.MISMATCH,),
            context=_INSIDE,
            look_at=(Shell("nvidia-smi  # on the node, not in the container"),),
            remedy=_one_library,
        ),
    ),
)
