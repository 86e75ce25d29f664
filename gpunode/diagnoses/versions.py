"""Versions that do not match: what is loaded, on disk, in libraries, packages and containers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import remedies, symptoms
from gpunode.diagnoses.addresses import DRIVER_GUIDE, NVML_RETURNS
from gpunode.diagnoses.chains import LIBRARY_MISMATCH
from gpunode.diagnoses.commands import Shell, command, joined
from gpunode.diagnoses.judging import is_examined
from gpunode.diagnoses.model import Citation, Family, Fix, Proof, Rule
from gpunode.diagnoses.remedies import by_hand, drain, reboot, run, takes_gpunode, uninstall
from gpunode.diagnoses.runfile import without_strays
from gpunode.diagnoses.signs import all_of, any_of, fact, file_line, line
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import driver, guests, history, installs, kernel, packages, runfile, versions
from gpunode.diagnoses.views.system import just_booted, package_manager
from gpunode.diagnoses.views.versions import Scene, is_of, number
from gpunode.facts.items import Item
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
# A driver of a site's own, in no folder of the system, that a search path puts first.
_OWN_TREE: Final = line(
    r"(?:^|[=: ])/(?!usr/|lib|run/|proc/|sys/|var/|boot/)\S*(?:nvidia|driver)\S*/\d{3}\.\d+[\d.]*/(?:\S*/)?(?:bin|lib)",
    *("text", "environment", "which"),
)
# The kernel tells of something else, and nobody of a mismatch.
_OTHER_FAULTS: Final = any_of(symptoms.NOT_STARTED, symptoms.ANY_XID)
_UNFIT: Final = fact(lambda snapshot: snapshot.said(driver.UNFIT))


def _apart(snapshot: Snapshot) -> Scene | None:
    """The versions of a node that is at two itself; None where it works, or only a container's library differs."""
    scene = snapshot.view(versions.scene)
    is_said = scene.says or versions.said_inside(snapshot)
    if driver.works(snapshot) or next(_in_container(snapshot), None):
        return None
    # What nobody complains of is likely, and of a live node nothing.
    is_other = is_examined(snapshot) or snapshot.view(_OTHER_FAULTS)
    return scene if is_said or not is_other else None


def _told(snapshot: Snapshot, what: str, cited: Iterable[Citation] = (), *, sure: bool = True) -> Proof:
    scene = snapshot.view(versions.scene)
    is_said = bool(scene.says or versions.said_inside(snapshot))
    return Proof(what, tuple(dict.fromkeys((*scene.cited, *cited))), "certain" if sure and is_said else "likely")


def _mixed(snapshot: Snapshot) -> Iterator[Proof]:
    """Two drivers were installed: by two means, of two branches, from two packagers."""
    scene = snapshot.view(_apart)
    for reason, citations in installs.side_by_side(snapshot, scene) if scene and (scene.says or scene.loaded) else ():
        yield _told(snapshot, f"two drivers are installed side by side: {reason}", citations)
        return


def _unattended(snapshot: Snapshot) -> Iterator[Proof]:
    """The system upgraded the driver by itself, and the module on disk went along."""
    scene = snapshot.view(_apart)
    if scene is None or (scene.disk is not None and scene.is_loaded(scene.disk.version)):
        return
    if done := [one for one in scene.upgrades if one.is_automatic and not scene.is_loaded(one.driver)]:
        version = next((f" to {one.driver}" for one in reversed(done) if one.driver), "")
        what = f"the system upgraded the driver by itself{version}, and the old module is still loaded"
        yield _told(snapshot, what, (one.citation for one in done))


def _partial(snapshot: Snapshot) -> Iterator[Proof]:
    """A part of the driver stayed behind: the module on disk or its package, or a library beside one that works."""
    if strayed := driver.strayed(snapshot) if driver.works(snapshot) else ():
        yield _strayed(snapshot, *strayed)
    if (scene := snapshot.view(_apart)) is None:
        return
    disk, wanted = scene.disk, scene.wanted
    if disk and wanted and not is_of(disk.version, wanted.version):
        what = f"the libraries are of {wanted.version}, the kernel module on disk is {disk.version}"
        yield _told(snapshot, what, sure=not scene.has_new_module)
    for one in () if disk else _behind(scene):
        yield _told(snapshot, f"{one.name} is {one.upstream}, other parts of the driver are not", (one.citation,))
        return
    lone = [one for one in scene.user if scene.loaded and not scene.is_loaded(one.upstream)]
    if lone and not (disk or scene.bringing) and any(_is_whole_list(item) for item in snapshot.of("packages")):
        what = f"{lone[0].name} is {lone[0].upstream}, and no package of the kernel's side is installed"
        yield _told(snapshot, what, (lone[0].citation,), sure=False)


def _is_whole_list(item: Item) -> bool:
    """Whether a list of packages was pasted with its head and without a filter, so that its silence tells."""
    return item.where == "host" and not item.source.only and item.text.startswith(("Desired=", "Listing..."))


def _behind(scene: Scene) -> Iterator[packages.Package]:
    """The packages of the kernel's side that are not of the libraries' version."""
    for one in scene.bringing:
        is_old = scene.is_loaded(one.upstream) or scene.loaded is None
        other = next((user.upstream for user in scene.user if user.upstream != one.upstream), "")
        wanted = scene.wanted.version if scene.wanted else other
        if is_old and wanted and not is_of(one.upstream, wanted) and not scene.is_loaded(wanted):
            yield one


def _strayed(snapshot: Snapshot, *strayed: packages.Package) -> Proof:
    """Libraries that are not of the driver which nvidia-smi shows."""
    node, said = driver.smi_version(snapshot), snapshot.view(_UNFIT)
    what = f"{strayed[0].name} is {strayed[0].upstream}, and the driver {node.version if node else 'another'}"
    cited = (*(one.citation for one in strayed), *([node.citation] if node else []), *said)
    text = "bring every package of the driver to the version of its kernel modules"
    remedy = (remedies.driver(snapshot, text),) if takes_gpunode(snapshot) else tuple(_complete(snapshot))
    return Proof(what, cited, "certain" if said else "likely", remedy=remedy)


def _pending(snapshot: Snapshot) -> Iterator[Proof]:
    """The new module is on disk, or its packages are there, and the old one is loaded."""
    scene = snapshot.view(_apart)
    if scene is None or next(_behind(scene), None):
        return
    disk, wanted, loaded = scene.disk, scene.wanted, scene.loaded
    new = next((one for one in scene.bringing if not scene.is_loaded(one.upstream)), None)
    done = [one.citation for one in scene.upgrades if one.driver and not scene.is_loaded(one.driver)]
    listed = snapshot.view(_REBOOT_LIST)
    still = f"and the module of {loaded.version if loaded else 'before'} is still loaded"
    if disk:
        is_other = wanted is not None and not is_of(disk.version, wanted.version)
        is_new = scene.has_new_module and (done or not just_booted(snapshot))
        if not is_other and (is_new or (loaded is None and scene.says)):
            yield _told(snapshot, f"the driver was upgraded to {disk.version}, {still}", done, sure=bool(done))
    elif new and (scene.says or loaded) and (wanted is None or is_of(new.upstream, wanted.version)):
        cited = (new.citation, *done)
        yield _told(
            snapshot, f"the driver's packages are at {new.upstream}, {still}", cited, sure=bool(done and loaded)
        )
    elif (done or listed) and (scene.says or loaded):
        yield _told(snapshot, f"the driver was upgraded, {still}", (*done, *listed))
    elif wanted and loaded and number(wanted.version) > number(loaded.version) and snapshot.view(_heard_late):
        # When all had started that starts at boot, newer libraries came by an upgrade.
        yield _told(snapshot, f"the libraries are of {wanted.version} already, {still}", sure=False)


def _heard_late(snapshot: Snapshot) -> bool:
    return any((message.at or 0) > _BOOTED_S for message in kernel.said(snapshot, _API))


_API: Final = Pattern(r"API mismatch")
_BOOTED_S: Final = 600.0


def _in_container(snapshot: Snapshot) -> Iterator[Proof]:
    """A program in a container is refused, and nothing says that the node's own are.

    libnvidia-container asks NVML first: where a container starts at all, the node's own library fits.
    """
    scene, inside = snapshot.view(versions.scene), versions.said_inside(snapshot)
    works, shipped = driver.works(snapshot), versions.shipped(snapshot)
    if works and not inside and shipped:
        inside = scene.says  # nobody wrote that this was said in the container whose packages are shown
    if not works and (scene.says or scene.differs or any(one.is_automatic for one in scene.upgrades)):
        return
    own, node = driver.library_in_container(snapshot), driver.smi_version(snapshot) or scene.loaded
    differs = own is not None and node is not None and not is_of(node.version, own.version)
    ran = any(item.where == "container" or item.kind == "container-run" for item in snapshot.items)
    if (inside and (works or shipped or differs or ran)) or (shipped and node and not works):
        seen = (one.citation for one in (node, own) if one is not None)
        cited = tuple(dict.fromkeys((*inside, *shipped, *seen, *versions.answering_elsewhere(snapshot))))
        what = f"the container loads driver libraries{f' {own.version}' if own else ''} of its own, not the node's"
        is_sure = bool(inside) and (bool(shipped) or differs)
        yield Proof(what, cited, "certain" if is_sure else "likely")


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
    if package_manager(snapshot) == "apt":
        file = command("sudo", "tee", "/etc/apt/apt.conf.d/51-nvidia-by-hand")
        yield run("configure", text, joined(command("echo", _BLACKLISTED), Shell("|"), file))
    else:
        yield by_hand("configure", f"{text}: excludepkgs of dnf-automatic, zypper addlock, or IgnorePkg of pacman")


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
    elif locked := sorted(set(packages.holds(snapshot)) & {one.name for one in packaged}):
        yield remedies.unhold(snapshot, "let go of the packages that are held at one version", *locked)
    else:
        text = "take away what NVIDIA's .run installer has put beside the packages, where it has"
        yield run("remove", text, Shell("[ ! -x /usr/bin/nvidia-uninstall ] || sudo nvidia-uninstall --silent"))
    text = "install the one that stays, whole"
    if takes_gpunode(snapshot):
        text += "; gpunode names each package of another one before it removes it"
    yield remedies.driver(snapshot, text)
    yield reboot()


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
            in_stack="driver",
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
            check=_unattended,
            share=3,
            symptoms=(symptoms.MISMATCH,),
            context=_AUTOMATIC,
            look_at=(
                Shell("grep -i nvidia /var/log/apt/history.log"),
                Shell("cat /proc/driver/nvidia/version"),
            ),
            remedy=_reload_and_hold,
            explains=_CONSEQUENCES | {PENDING, PARTIAL},
        ),
        Rule(
            cause=PENDING,
            layer="driver",
            disruption="reboot",
            title="the driver was upgraded and its new module is not loaded yet",
            story=(
                "An upgrade replaced libraries and module on disk; the kernel still runs the module that was loaded at "
                "boot. The two do not work together, so nvidia-smi and every new CUDA program or container fail until "
                "the new module is loaded: by a reboot, or by unloading the old one when nothing uses it. The module "
                "on disk already has the new version."
            ),
            sources=("https://github.com/oddmario/NVIDIA-Ubuntu-Driver-Guide/issues/4", NVML_RETURNS),
            check=_pending,
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
            disruption="reboot",
            title="only a part of the driver's packages was upgraded",
            story=(
                "Libraries and programs are of one version, and the kernel module on disk is of another, because a "
                "package was held back, a repository offered only a part, or the new module was not built. A reboot "
                "loads the same old module again and changes nothing. All packages have to be brought to one version "
                "first."
            ),
            sources=("https://github.com/illinois-scicomp/machine-shop-maintenance/issues/70", NVML_RETURNS),
            check=_partial,
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
            disruption="reboot",
            title="two drivers are installed side by side",
            story=(
                "The driver was installed twice, by different means: the .run file and packages, packages of two "
                "branches, or of two repositories. The kernel loads the module of one, programs the libraries of the "
                "other. Which pair meets can change with every ldconfig and every kernel. One of the two has to go, "
                "whole."
            ),
            sources=(DRIVER_GUIDE, NVML_RETURNS),
            check=_mixed,
            typical=all_of(symptoms.MISMATCH, _OWN_TREE),
            share=1,
            symptoms=(symptoms.MISMATCH,),
            look_at=(
                Shell("dpkg -l | grep nvidia"),
                Shell("ldconfig -p | grep libnvidia-ml"),
            ),
            remedy=_one_driver,
            explains=_CONSEQUENCES | {UNATTENDED, PENDING, PARTIAL},
        ),
        Rule(
            cause=CONTAINER,
            layer="userspace",
            in_stack="programs",
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
            check=_in_container,
            decisive=_IN_THE_WAY,
            share=1,
            symptoms=(symptoms.MISMATCH, _IN_THE_WAY),
            context=_INSIDE,
            look_at=(Shell("nvidia-smi  # on the node, not in the container"),),
            remedy=_one_library,
        ),
    ),
)
