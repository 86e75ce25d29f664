"""Versions that do not match: one decision over what is loaded, on disk, in libraries, packages and containers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import remedies
from gpunode.diagnoses.addresses import DRIVER_GUIDE, NVML_RETURNS
from gpunode.diagnoses.chains import LIBRARY_MISMATCH
from gpunode.diagnoses.commands import Shell, command, edited, joined
from gpunode.diagnoses.model import Citation, Confidence, Doubt, Family, Fix, Proof, Rule, Verdict, only
from gpunode.diagnoses.remedies import by_hand, drain, reboot, run, takes_gpunode, uninstall
from gpunode.diagnoses.runfile import without_strays
from gpunode.diagnoses.snapshot import Snapshot, cite, lines_with
from gpunode.diagnoses.views import driver, guests, history, initramfs, installs, kernel, packages, runfile, versions
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
_IN_THE_WAY: Final = Pattern(r"mount error: file creation failed: \S*/lib(?:nvidia|cuda|nvcuvid)[\w.-]*: file exists")
_REBOOT_LIST: Final = Pattern(r"^[ \t]*(?:lib)?nvidia-\S+\s*$", re.MULTILINE)
_HEADER: Final = Pattern(r"^\|\|/ Name|^Desired=|^Listing\.\.\.|^Installed Packages", re.MULTILINE)


def _decide(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """Which of the mismatches it is, by which pair of versions differs and how that came about."""
    scene = snapshot.view(versions.scene)
    if shown := _shown(snapshot, scene):
        yield shown
        return
    inside = versions.said_inside(snapshot)
    if not inside and scene.says and driver.works(snapshot) and versions.shipped(snapshot):
        inside = scene.says  # nobody wrote that this was said in the container whose packages are shown
    if driver.works(snapshot) or (inside and not _fails_on_node(scene) and not _is_behind(scene)):
        if inside:
            yield CONTAINER, _in_container(snapshot, scene, inside)
        return
    if not scene.says and not inside:
        if _differs(scene) and not snapshot.view(driver.smi):
            yield PENDING, _silent(scene)
        return
    # An old copy in the initramfs: the kernel's rules tell that.
    if not _initramfs_brings(snapshot, scene):
        yield _on_node(snapshot, scene)


def _on_node(snapshot: Snapshot, scene: Scene) -> tuple[str, Verdict]:
    """Which of the node's own mismatches it is."""
    if scene.loaded is None and (held := initramfs.holds(snapshot)):
        return PENDING, _of_image(scene, held)
    ways = (_mixed(snapshot, scene), _automatic(scene), _by_disk(snapshot, scene), _by_packages(snapshot, scene))
    found = next((found for found in ways if found), None)
    return found or _newer(snapshot, scene) or (PENDING, _undecided(scene))


def _shown(snapshot: Snapshot, scene: Scene) -> tuple[str, Verdict] | None:
    """The mismatch whose two sides are shown themselves, so that no version needs to be weighed."""
    if brought := snapshot.said(_IN_THE_WAY):
        what = "the image brings libraries of a driver, and those of the node cannot be put in their place"
        return CONTAINER, Proof(what, brought, ruled_out=("the node's driver: its libraries were found",))
    if twice := _two_programs(snapshot, scene):
        return MIXED, twice
    strayed = driver.strayed(snapshot)
    return (PARTIAL, _strayed(snapshot, strayed)) if strayed else None


def _strayed(snapshot: Snapshot, strayed: tuple[Package, ...]) -> Proof:
    """Libraries that are not of the driver which nvidia-smi shows."""
    node = driver.smi_version(snapshot)
    more = f", {len(strayed) - 1} more packages are neither" if strayed[1:] else ""
    what = f"{strayed[0].name} is {strayed[0].upstream}{more}, and the driver {node.version if node else ''}"
    said = snapshot.said(driver.UNFIT)
    cited = (*(one.citation for one in strayed), *((node.citation,) if node else ()), *said)
    ruled_out = ("the kernel module: nvidia-smi answers with it",)
    text = "bring every package of the driver to the version of its kernel modules"
    remedy = (remedies.driver(snapshot, text),) if remedies.takes_gpunode(snapshot) else tuple(_complete(snapshot))
    return Proof(what, cited, "certain" if said else "likely", ruled_out, remedy=remedy)


def _fails_on_node(scene: Scene) -> bool:
    """Whether the node itself mismatches: it says so, apart from the kernel, which hears of containers' clients too."""
    return any("API mismatch" not in one.line for one in scene.says) or _differs(scene)


def _is_behind(scene: Scene) -> bool:
    """Whether the node's packages are of another version than the module that is loaded, or were just upgraded."""
    if scene.loaded is None:
        return False
    there = (*(one.upstream for one in (*scene.bringing, *scene.user)), *(one.driver for one in scene.upgrades))
    return any(version and not scene.is_loaded(version) for version in there)


def _differs(scene: Scene) -> bool:
    """Whether another module is on disk than the one that is loaded."""
    return scene.loaded is not None and scene.disk is not None and not scene.is_loaded(scene.disk.version)


def _initramfs_brings(snapshot: Snapshot, scene: Scene) -> bool:
    return bool(initramfs.brings(snapshot)) and (scene.disk is None or _differs(scene))


def _two_programs(snapshot: Snapshot, scene: Scene) -> Verdict | None:
    """Two drivers' programs or libraries on the node: what is found first fails, and what is found otherwise fits."""
    tried = [item for item in snapshot.of("nvidia-smi", "nvidia-smi-q") if item.where == "host" and item.source.words]
    failing = [item for item in tried if versions.MISMATCH.search(item.text)]
    working = [item for item in tried if item not in failing and driver.answers(item)]
    ways = {item.source.words[0] for item in failing}
    other = next((item for item in working if item.source.words[0] not in {"nvidia-smi", *ways}), None)
    if failing and other is not None:
        how = f"{other.source.words[0]} fits the module, the other does not"
    elif failing and (other := next((item for item in working if _WITHOUT.search(item.written)), None)):
        how = "without what the environment puts first, the libraries fit the module"
    else:
        return None
    stores = tuple(citation for _, cited in installs.of_two_stores(snapshot) for citation in cited)
    also = (cite(other, 1), *stores, *installs.put_first(snapshot))
    return Proof(f"two drivers are installed side by side: {how}", tuple(dict.fromkeys((*scene.says, *also))))


# What takes the libraries out of the way that a site's or a user's environment puts before the system's.
_WITHOUT: Final = Pattern(
    r"\b(?:module|ml) (?:purge|unload|rm|del|-)|\bspack unload\b|\bconda deactivate\b|\bunset LD_LIBRARY_PATH\b"
    r"|\bLD_LIBRARY_PATH=|\benv (?:-i|-u LD_)"
)


# --- inside a container only --------------------------------------------------------------------------------------


def _in_container(snapshot: Snapshot, scene: Scene, inside: tuple[Citation, ...]) -> Verdict:
    own = driver.library_in_container(snapshot)
    shipped = versions.shipped(snapshot)
    node = driver.smi_version(snapshot) or scene.loaded
    cited = (
        *inside,
        *shipped,
        *((node.citation,) if node else ()),
        *((own.citation,) if own else ()),
        *versions.answering_elsewhere(snapshot),
    )
    differs = own is not None and node is not None and not is_of(node.version, own.version)
    other = versions.answering_elsewhere(snapshot)
    if not (driver.works(snapshot) or shipped or differs or other):
        question = "does nvidia-smi work on the node itself, or is its own driver at two versions?"
        return Doubt(
            question,
            (Shell("nvidia-smi  # on the node"), Shell("cat /proc/driver/nvidia/version")),
            inside,
            (PENDING, UNATTENDED),
        )
    carried = f" {own.version}" if own else ""
    driven = f" {node.version}" if node else ""
    what = f"the container loads driver libraries{carried} of its own, and the node's driver{driven} refuses them"
    certain = bool(shipped) or differs
    return Proof(what, cited, "certain" if certain else "likely", ("the node's driver: nvidia-smi works there",))


# --- on the node --------------------------------------------------------------------------------------------------


def _mixed(snapshot: Snapshot, scene: Scene) -> tuple[str, Verdict] | None:
    """Two drivers were installed: by two means, of two branches, from two packagers."""
    for reason, citations in installs.side_by_side(snapshot, scene):
        what = f"two drivers are installed side by side: {reason}"
        return MIXED, Proof(what, (*scene.cited, *citations), ruled_out=_no_reboot(scene))
    return None


def _automatic(scene: Scene) -> tuple[str, Verdict] | None:
    """The system upgraded the driver by itself, and the module on disk went along."""
    done = [one for one in scene.upgrades if one.is_automatic and not scene.is_loaded(one.driver)]
    stale = scene.disk is not None and scene.is_loaded(scene.disk.version)
    if not done or stale:
        return None
    version = next((one.driver for one in reversed(done) if one.driver), "")
    to = f" to {version}" if version else ""
    what = f"the system upgraded the driver by itself{to}{_while_loaded(scene)}"
    return UNATTENDED, Proof(
        what, (*scene.cited, *dict.fromkeys(one.citation for one in done)), ruled_out=_no_partial(scene)
    )


def _while_loaded(scene: Scene) -> str:
    return (
        f", and the module of {scene.loaded.version} is still loaded"
        if scene.loaded
        else ", and the old module is loaded"
    )


def _by_disk(snapshot: Snapshot, scene: Scene) -> tuple[str, Verdict] | None:
    """What the module on disk tells: it is new, so a reboot loads it; or it is old, and no reboot helps."""
    if scene.disk is None:
        return None
    if scene.loaded is not None and not scene.is_loaded(scene.disk.version):
        if scene.wanted is not None and not is_of(scene.disk.version, scene.wanted.version):
            three = (scene.loaded.version, scene.disk.version, scene.wanted.version)
            what = "{} is loaded, {} is on disk, and the libraries are of {}".format(*three)
            return PARTIAL, Proof(what, scene.cited, "likely")
        if not scene.upgrades and (up := just_booted(snapshot)):
            return PENDING, _since_boot(scene, up)
        what = f"the driver was upgraded to {scene.disk.version}{_while_loaded(scene)}"
        return PENDING, Proof(what, scene.cited, _who(scene), _no_partial(scene))
    if scene.wanted is not None and not is_of(scene.disk.version, scene.wanted.version):
        what = f"the libraries are of {scene.wanted.version}, the kernel module on disk is still {scene.disk.version}"
        return PARTIAL, Proof(what, scene.cited, ruled_out=_no_reboot(scene))
    if scene.loaded is None:
        return PENDING, Proof(
            f"{scene.disk.version} is on disk and in the libraries, another is loaded", scene.cited, "likely"
        )
    return None


def _by_packages(snapshot: Snapshot, scene: Scene) -> tuple[str, Verdict] | None:
    """What the packages tell where nobody looked at the module on disk."""
    cited = (*scene.cited, *(one.citation for one in (*scene.bringing, *scene.user)))
    if scene.loaded is None and (apart := _apart(snapshot)):
        what = f"{apart[0].name} is {apart[0].upstream}, {apart[1].name} is {apart[1].upstream}"
        return PARTIAL, Proof(what, cited)
    old = [one for one in scene.bringing if scene.is_loaded(one.upstream)]
    new = [one for one in scene.bringing if one not in old]
    if old and scene.wanted is not None and not scene.is_loaded(scene.wanted.version):
        what = f"{old[0].name} is still {old[0].upstream}, the libraries are {scene.wanted.version}"
        return PARTIAL, Proof(what, cited, ruled_out=_no_reboot(scene))
    if new and (scene.wanted is None or any(is_of(one.upstream, scene.wanted.version) for one in new)):
        what = f"the driver's packages are at {new[0].upstream}{_while_loaded(scene)}"
        return PENDING, Proof(what, cited, _who(scene) if scene.loaded else "likely")
    by_hand_done = [one for one in scene.upgrades if one.driver and not scene.is_loaded(one.driver)]
    if by_hand_done or (waits := _waits_for_reboot(snapshot)):
        last = by_hand_done[-1] if by_hand_done else None
        what = f"the driver was upgraded{f' to {last.driver}' if last else ''}{_while_loaded(scene)}"
        return PENDING, Proof(what, (*cited, *((last.citation,) if last else waits)))
    if scene.user and scene.loaded is not None and not new and _is_whole_table(snapshot):
        one = next((user for user in scene.user if not scene.is_loaded(user.upstream)), None)
        if one is not None:
            what = f"{one.name} is {one.upstream}, and no package of the kernel's side is installed in that version"
            return PARTIAL, Proof(what, cited, "likely", _no_reboot(scene))
    return None


def _apart(snapshot: Snapshot) -> tuple[Package, Package] | None:
    """A package of the kernel's side and one of the user's that are of different versions."""
    pairs = ((one, other) for one in driver.kernel_side(snapshot) for other in driver.user_side(snapshot))
    return next(((one, other) for one, other in pairs if one.upstream != other.upstream), None)


_API: Final = Pattern(r"API mismatch")
# By then a node has started all that it starts.
_BOOTED_S: Final = 600.0


def _newer(snapshot: Snapshot, scene: Scene) -> tuple[str, Verdict] | None:
    """The kernel hears of newer libraries while the node runs: mostly they came by an upgrade before a reboot.

    What it hears of at boot, a reboot did not put right. Without a time, nobody knows which it is.
    """
    if scene.loaded is None or scene.wanted is None or number(scene.wanted.version) <= number(scene.loaded.version):
        return None
    times = [message.at for message in kernel.said(snapshot, _API)]
    if not any(at is not None and at > _BOOTED_S for at in times):
        return None
    what = f"the libraries are of {scene.wanted.version} already{_while_loaded(scene)}"
    return PENDING, Proof(what, scene.cited, "likely")


def _who(scene: Scene) -> Confidence:
    """How sure it is that a person upgraded the driver: without a log it may have been the system."""
    return "certain" if scene.upgrades else "likely"


def _waits_for_reboot(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The driver's packages in the list of those that ask for a reboot."""
    return tuple(c for item in snapshot.files("*/reboot-required.pkgs") for c in lines_with(item, _REBOOT_LIST))


def _is_whole_table(snapshot: Snapshot) -> bool:
    """Whether a list of packages was pasted with its head and without a filter, so that its silence tells."""
    tables = (item for item in snapshot.of("packages") if item.where == "host" and not item.source.is_part)
    return any(not item.source.only and _HEADER.search(item.text) for item in tables)


def _undecided(scene: Scene) -> Doubt:
    question = "is the module on disk of the libraries' version, so that a reboot is enough, or is it an old one?"
    look = (
        Shell("modinfo -F version nvidia"),
        Shell("cat /proc/driver/nvidia/version"),
        Shell("grep nvidia /var/log/apt/history.log"),
    )
    return Doubt(question, look, scene.cited, (UNATTENDED, PARTIAL, MIXED, CONTAINER))


def _silent(scene: Scene) -> Doubt:
    """Nobody tells that anything fails; the module on disk is another than the one that is loaded."""
    question = "the module on disk is not the one that is loaded: does it wait for a reboot, or did a reboot load this?"
    look = (
        Shell("nvidia-smi"),
        Shell("uptime -s"),
        Shell("grep nvidia /var/log/apt/history.log"),
        Shell("lsinitramfs /boot/initrd.img-$(uname -r)"),
    )
    return Doubt(question, look, scene.cited, (UNATTENDED, PARTIAL, MIXED, _IMAGE))


def _since_boot(scene: Scene, up: tuple[Citation, ...]) -> Doubt:
    """The node came up minutes ago and has loaded another module than the one that stands on disk."""
    question = "was the driver upgraded in the minutes since the boot, or does the initramfs bring the old module?"
    look = (Shell("lsinitramfs /boot/initrd.img-$(uname -r) | grep nvidia"), Shell("tail /var/log/dpkg.log"))
    return Doubt(question, look, (*scene.cited, *up), (UNATTENDED, PARTIAL, _IMAGE))


def _of_image(scene: Scene, held: tuple[Citation, ...]) -> Doubt:
    """The initramfs holds a module, and which version is loaded was not shown."""
    question = "is the loaded module the one of the initramfs, older than that on disk, or the one before the upgrade?"
    look = (Shell("cat /proc/driver/nvidia/version"), Shell("modinfo -F version nvidia"))
    return Doubt(question, look, (*scene.cited, *held), (UNATTENDED, PARTIAL, _IMAGE))


_IMAGE: Final = "initramfs-stale-module"


def _no_partial(scene: Scene) -> tuple[str, ...]:
    if scene.disk is None:
        return ()
    return (f"a partial upgrade: the module on disk is {scene.disk.version} already",)


def _no_reboot(scene: Scene) -> tuple[str, ...]:
    if scene.disk is None or not scene.is_loaded(scene.disk.version):
        return ()
    return (f"a pending reboot: the module on disk is {scene.disk.version}, as the one that is loaded",)


# --- remedies -----------------------------------------------------------------------------------------------------

_RELOAD: Final = (
    remedies.MODULES_OUT,
    Shell("sudo modprobe -a nvidia nvidia_uvm"),
)
_UNIT: Final = "nvidia-persistenced.service"
_PERSISTENCED: Final = Pattern(r"persistenced")


def _reload(snapshot: Snapshot) -> Iterable[Fix]:
    yield drain()
    runs = isinstance(snapshot.facts.unit(_UNIT), Known) or snapshot.says(_PERSISTENCED)
    stop = (command("sudo", "systemctl", "stop", _UNIT),) if runs else ()
    start = (command("sudo", "systemctl", "start", _UNIT),) if runs else ()
    text = "load the new module without a reboot, if nothing holds the old one"
    yield run("load", text, *stop, *_RELOAD, *start)
    yield reboot(when="the old module cannot be unloaded")


def _reload_and_hold(snapshot: Snapshot) -> Iterable[Fix]:
    yield from _reload(snapshot)
    if package_manager(snapshot) == "apt":
        line = 'Unattended-Upgrade::Package-Blacklist { "^nvidia-"; "^libnvidia-"; "^linux-modules-nvidia-"; };'
        path = "/etc/apt/apt.conf.d/51-nvidia-by-hand"
        text = "keep the driver out of automatic upgrades"
        yield run("configure", text, joined(command("echo", line), Shell("|"), command("sudo", "tee", path)))
    elif package_manager(snapshot) != "dnf":
        yield by_hand("configure", "keep the driver out of automatic updates: zypper addlock, or IgnorePkg of pacman")
    else:
        text = "keep the driver out of automatic updates"
        once = r"/^excludepkgs=\*nvidia\*$/d; /^\[base\]/a excludepkgs=*nvidia*"
        yield run("configure", text, *edited(once, "/etc/dnf/automatic.conf"))


def _complete(snapshot: Snapshot) -> Iterable[Fix]:
    holds = sorted(name for name in packages.holds(snapshot) if history.is_drivers(name))
    if holds:
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
        yield run(
            "remove",
            "take the .run installation away with its own uninstaller",
            Shell("sudo nvidia-uninstall --silent"),
        )
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
            severity="error",
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
            remedy=_reload_and_hold,
            explains=_CONSEQUENCES,
        ),
        Rule(
            cause=PENDING,
            layer="driver",
            storey="driver",
            severity="error",
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
            remedy=_reload,
            explains=_CONSEQUENCES,
        ),
        Rule(
            cause=PARTIAL,
            layer="package",
            storey="packages",
            severity="error",
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
            remedy=_complete,
            explains=_CONSEQUENCES,
        ),
        Rule(
            cause=MIXED,
            layer="driver",
            storey="driver",
            severity="error",
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
            remedy=_one_driver,
            explains=_CONSEQUENCES,
        ),
        Rule(
            cause=CONTAINER,
            layer="userspace",
            storey="programs",
            severity="error",
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
            remedy=_one_library,
        ),
    ),
)
