"""Versions that do not match: one decision over what is loaded, on disk, in libraries, packages and containers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from gpunode.diagnoses import remedies
from gpunode.diagnoses.addresses import DRIVER_GUIDE, NVML_RETURNS
from gpunode.diagnoses.chains import LIBRARY_MISMATCH
from gpunode.diagnoses.commands import command, edited
from gpunode.diagnoses.model import Citation, Confidence, Doubt, Family, Fix, Proof, Rule, Verdict, only
from gpunode.diagnoses.remedies import by_hand, drain, reboot, run, takes_gpunode, uninstall
from gpunode.diagnoses.snapshot import Snapshot, cite, lines_with
from gpunode.diagnoses.views import archives, driver, history, initramfs, kernel, modules, packages
from gpunode.diagnoses.views.driver import Seen
from gpunode.diagnoses.views.history import Upgrade
from gpunode.diagnoses.views.packages import Package
from gpunode.diagnoses.views.system import just_booted, package_manager, running_kernel
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern

UNATTENDED: Final = "driver-library-mismatch-unattended-upgrade"
PENDING: Final = "driver-library-mismatch-reboot-pending"
PARTIAL: Final = "driver-library-mismatch-partial-upgrade"
MIXED: Final = "driver-library-mismatch-mixed-installs"
CONTAINER: Final = "container-driver-mismatch"

_MISMATCH: Final = Pattern(
    r"driver/library version mismatch|API mismatch:|nvidia-modeset: Version mismatch|RM_VERSION_MISMATCH"
    r"|does not match DSO version|LIB_RM_VERSION_MISMATCH|NVMLError_LibRmVersionMismatch",
    re.IGNORECASE,
)
# libnvidia-container asks NVML on the node, before there is a container.
_ASKED_ON_NODE: Final = Pattern(
    r"nvidia-container-cli|nvml error:|Error: nvml:|initialization error|libnvidia-container|auto-detected mode"
)
# libnvidia-container stops where a file stands in the image to which it would mount one of the node's.
_IN_THE_WAY: Final = Pattern(r"mount error: file creation failed: \S*/lib(?:nvidia|cuda|nvcuvid)[\w.-]*: file exists")
_BRANCH: Final = Pattern(
    r"^(?:nvidia-(?:driver|dkms|utils|headless|kernel-source|compute-utils|open)"
    r"|libnvidia-compute|linux-modules-nvidia)"
    r"(?:-no-dkms|-open)*-(?P<branch>\d{3})\b"
)
# Where NVIDIA's .run installer puts a module when it does not use DKMS; no package of today does.
_RUN_PLACE: Final = Pattern(r"/kernel/drivers/video/nvidia\.ko")
_RUN_SAYS: Final = Pattern(
    rf"NVIDIA-Linux-\w+-(?P<version>{driver.VERSION})"
    rf"|(?:installing (?:NVIDIA )?driver version|installer version:|\(version:) (?P<log>{driver.VERSION})",
    re.IGNORECASE,
)
_REBOOT_LIST: Final = Pattern(r"^[ \t]*(?:lib)?nvidia-\S+\s*$", re.MULTILINE)
_HEADER: Final = Pattern(r"^\|\|/ Name|^Desired=|^Listing\.\.\.|^Installed Packages", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Scene:
    """The versions on the node.

    Attributes:
        says: the lines that tell of a mismatch on the node itself.
        wanted: what programs load: the library's version, else that of the user side's packages.
        bringing: kernel side and whole packages at one version.
    """

    says: tuple[Citation, ...]
    loaded: Seen | None
    disk: Seen | None
    wanted: Seen | None
    bringing: tuple[Package, ...]
    user: tuple[Package, ...]
    upgrades: tuple[Upgrade, ...]

    @property
    def cited(self) -> tuple[Citation, ...]:
        seen = (one.citation for one in (self.loaded, self.disk, self.wanted) if one is not None)
        return tuple(dict.fromkeys((*self.says, *seen)))

    def is_loaded(self, version: str) -> bool:
        """Whether that is the version of the loaded module."""
        return self.loaded is not None and _is(self.loaded.version, version)


def _is(version: str, told: str) -> bool:
    """Whether ``version`` is the one that was ``told``: NVML leaves the last part of its library's version away."""
    return version == told or (told.count(".") == 1 and version.startswith(f"{told}."))


def _scene(snapshot: Snapshot) -> _Scene:
    user = driver.user_side(snapshot)
    bringing = (*driver.kernel_side(snapshot), *driver.whole(snapshot))
    library = driver.library(snapshot)
    loaded = driver.loaded(snapshot)
    if library is not None:
        library = _whole(library, loaded, (*driver.libraries(snapshot), *(Seen(u.upstream, u.citation) for u in user)))
    else:
        other = [one for one in user if loaded is None or one.upstream != loaded.version]
        library = Seen(other[0].upstream, other[0].citation) if other else None
    recent = _recent(history.upgrades(snapshot), loaded)
    return _Scene(_said_on_node(snapshot), loaded, driver.on_disk(snapshot), library, bringing, user, recent)


def _whole(library: Seen, loaded: Seen | None, known: Iterable[Seen]) -> Seen:
    """The library in the version of which NVML told the beginning; it is not the loaded one, which NVML refused."""
    found = [one for one in known if _is(one.version, library.version)]
    other = next((one for one in found if loaded is None or one.version != loaded.version), None)
    return Seen(other.version, library.citation) if other is not None else library


def _recent(upgrades: tuple[Upgrade, ...], loaded: Seen | None) -> tuple[Upgrade, ...]:
    """The last upgrade of each package, unless its version is loaded, or older: a log goes back for months."""
    last = {one.name: one for one in upgrades if one.driver} or {one.name: one for one in upgrades}
    if loaded is None:
        return tuple(last.values())
    current = _number(loaded.version)
    names = {one.name for one in last.values() if not one.driver or _number(one.driver) > current}
    # The log of unattended-upgrades names the packages, dpkg's the versions: one tells who, the other what.
    return tuple(one for one in upgrades if one.name in names and (not one.driver or one is last[one.name]))


def _said_on_node(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The lines that tell of a mismatch where no container is in between."""
    return tuple(
        citation
        for item in snapshot.items
        if item.where == "host" and not item.is_register and item.kind not in {"file", "packages", "container-inspect"}
        if not driver.is_beside_container(snapshot, item)
        for citation in lines_with(item, _MISMATCH)
        if item.kind not in driver.CONTAINED or _ASKED_ON_NODE.search(item.text)
    )


def _said_inside(snapshot: Snapshot) -> tuple[Citation, ...]:
    return tuple(
        citation
        for item in snapshot.items
        if item.where == "container" or (item.kind in driver.CONTAINED and not _ASKED_ON_NODE.search(item.text))
        for citation in lines_with(item, _MISMATCH)
    )


def _decide(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """Which of the mismatches it is, by which pair of versions differs and how that came about."""
    scene = snapshot.view(_scene)
    if shown := _shown(snapshot, scene):
        yield shown
        return
    inside = _said_inside(snapshot)
    if not inside and scene.says and driver.works(snapshot) and _shipped(snapshot, scene):
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


def _on_node(snapshot: Snapshot, scene: _Scene) -> tuple[str, Verdict]:
    """Which of the node's own mismatches it is."""
    if scene.loaded is None and (held := initramfs.holds(snapshot)):
        return PENDING, _of_image(scene, held)
    ways = (_mixed(snapshot, scene), _automatic(scene), _by_disk(snapshot, scene), _by_packages(snapshot, scene))
    found = next((found for found in ways if found), None)
    return found or _newer(snapshot, scene) or (PENDING, _undecided(scene))


def _shown(snapshot: Snapshot, scene: _Scene) -> tuple[str, Verdict] | None:
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


def _fails_on_node(scene: _Scene) -> bool:
    """Whether the node itself mismatches: it says so, apart from the kernel, which hears of containers' clients too."""
    return any("API mismatch" not in one.line for one in scene.says) or _differs(scene)


def _is_behind(scene: _Scene) -> bool:
    """Whether the node's packages are of another version than the module that is loaded, or were just upgraded."""
    if scene.loaded is None:
        return False
    versions = (*(one.upstream for one in (*scene.bringing, *scene.user)), *(one.driver for one in scene.upgrades))
    return any(version and not scene.is_loaded(version) for version in versions)


def _differs(scene: _Scene) -> bool:
    """Whether another module is on disk than the one that is loaded."""
    return scene.loaded is not None and scene.disk is not None and not scene.is_loaded(scene.disk.version)


def _initramfs_brings(snapshot: Snapshot, scene: _Scene) -> bool:
    return bool(initramfs.brings(snapshot)) and (scene.disk is None or _differs(scene))


def _two_programs(snapshot: Snapshot, scene: _Scene) -> Verdict | None:
    """Two drivers' programs or libraries on the node: what is found first fails, and what is found otherwise fits."""
    tried = [item for item in snapshot.of("nvidia-smi", "nvidia-smi-q") if item.where == "host" and item.source.words]
    failing = [item for item in tried if _MISMATCH.search(item.text)]
    working = [item for item in tried if item not in failing and driver.answers(item)]
    ways = {item.source.words[0] for item in failing}
    other = next((item for item in working if item.source.words[0] not in {"nvidia-smi", *ways}), None)
    if failing and other is not None:
        how = f"{other.source.words[0]} fits the module, the other does not"
    elif failing and (other := next((item for item in working if _WITHOUT.search(item.written)), None)):
        how = "without what the environment puts first, the libraries fit the module"
    else:
        return None
    stores = tuple(citation for _, cited in _of_two_stores(snapshot) for citation in cited)
    also = (cite(other, 1), *stores, *_put_first(snapshot))
    return Proof(f"two drivers are installed side by side: {how}", tuple(dict.fromkeys((*scene.says, *also))))


# What takes the libraries out of the way that a site's or a user's environment puts before the system's.
_WITHOUT: Final = Pattern(
    r"\b(?:module|ml) (?:purge|unload|rm|del|-)|\bspack unload\b|\bconda deactivate\b|\bunset LD_LIBRARY_PATH\b"
    r"|\bLD_LIBRARY_PATH=|\benv (?:-i|-u LD_)"
)
# A folder of a driver's own that is none of the system's.
_OWN_TREE: Final = Pattern(rf"^\S*/[\w.+-]*(?:nvidia|driver)[\w.+-]*/(?:\S*/)?{driver.VERSION}/\S*", re.IGNORECASE)
_OF_SYSTEM: Final = Pattern(r"^/(?:usr|lib|lib64|bin|sbin|run|proc|sys|var|boot)/")


def _put_first(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The entries of a search path that lead into a driver's tree outside the system's folders."""
    found = []
    for item in snapshot.items:
        if item.where == "host" and _SEARCHES.search(item.written):
            for number, line in enumerate(item.lines, 1):
                entries = line.rpartition("=")[2].strip().split(":")
                if any(_OWN_TREE.match(entry) and not _OF_SYSTEM.match(entry) for entry in entries):
                    found.append(cite(item, number))
    return tuple(found)


_SEARCHES: Final = Pattern(
    r"LD_LIBRARY_PATH|\bwhich\b|\btype -|\bwhereis\b|\bprintenv\b|^env\b|\b(?:ldd|readlink)\b|\$PATH"
)


# --- inside a container only --------------------------------------------------------------------------------------


def _in_container(snapshot: Snapshot, scene: _Scene, inside: tuple[Citation, ...]) -> Verdict:
    own = driver.library_in_container(snapshot)
    shipped = _shipped(snapshot, scene)
    node = driver.smi_version(snapshot) or scene.loaded
    cited = (
        *inside,
        *shipped,
        *((node.citation,) if node else ()),
        *((own.citation,) if own else ()),
        *_elsewhere(snapshot),
    )
    differs = own is not None and node is not None and not _is(node.version, own.version)
    other = _elsewhere(snapshot)
    if not (driver.works(snapshot) or shipped or differs or other):
        question = "does nvidia-smi work on the node itself, or is its own driver at two versions?"
        return Doubt(
            question, "nvidia-smi on the node, and cat /proc/driver/nvidia/version", inside, (PENDING, UNATTENDED)
        )
    versions = f" {own.version}" if own else ""
    driven = f" {node.version}" if node else ""
    what = f"the container loads driver libraries{versions} of its own, and the node's driver{driven} refuses them"
    certain = bool(shipped) or differs
    return Proof(what, cited, "certain" if certain else "likely", ("the node's driver: nvidia-smi works there",))


_ANSWERS: Final = Pattern(r"Driver Version\s*:")


def _elsewhere(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The lines by which nvidia-smi works in another container, so that the node's driver is whole."""
    runs = (item for item in snapshot.of("container-run") if not _MISMATCH.search(item.text))
    return tuple(citation for item in runs for citation in lines_with(item, _ANSWERS))


_SHIPPED: Final = Pattern(rf"lib(?:nvidia-ml|cuda)\.so\.(?P<version>{driver.VERSION})")


# Ubuntu's until 2018.
_NAMED_BY_BRANCH: Final = Pattern(r"nvidia-\d{3}")


def _shipped(snapshot: Snapshot, scene: _Scene) -> tuple[Citation, ...]:
    """The driver's files and packages that the image or container has, where they are not of the node's version."""
    node = scene.loaded.version if scene.loaded else ""
    named = driver.smi_version(snapshot)
    node = named.version if named else node
    inside = packages.in_containers(snapshot)
    theirs = (one for one in inside if history.is_drivers(one.name) or _NAMED_BY_BRANCH.fullmatch(one.name))
    found = [one for one in theirs if one.upstream != node]
    files = tuple(
        cite(item, item.number_at(match.start()))
        for item in snapshot.items
        if item.where == "container" or item.kind == "container-inspect"
        for match in _SHIPPED.finditer(item.text)
        if not _is(node, match["version"])
    )
    return (*(one.citation for one in found), *files)


# --- on the node --------------------------------------------------------------------------------------------------


def _mixed(snapshot: Snapshot, scene: _Scene) -> tuple[str, Verdict] | None:
    """Two drivers were installed: by two means, of two branches, from two packagers."""
    for reason, citations in _two_installs(snapshot, scene):
        what = f"two drivers are installed side by side: {reason}"
        return MIXED, Proof(what, (*scene.cited, *citations), ruled_out=_no_reboot(scene))
    return None


_Installs: TypeAlias = "tuple[str, tuple[Citation, ...]]"


def _two_installs(snapshot: Snapshot, scene: _Scene) -> Iterator[_Installs]:
    packaged = (*scene.bringing, *scene.user)
    yield from _of_two_branches(packaged)
    if package_manager(snapshot) == "dnf":
        yield from _of_two_repositories(snapshot, packaged)
    yield from _run_beside_packages(snapshot, scene, packaged)
    yield from _run_beside_modules(snapshot, scene)
    yield from _of_two_stores(snapshot)
    yield from _beside_the_system(snapshot, scene)
    found = driver.libraries(snapshot)
    if len(found) > 1 and any(scene.is_loaded(one.version) for one in found):
        yield f"libraries of {' and '.join(sorted(one.version for one in found))}", tuple(o.citation for o in found)
    built = {row.version: row.citation for row in snapshot.view(modules.dkms) if _is_for_running(snapshot, row)}
    if len(built) > 1:
        yield f"DKMS has {' and '.join(sorted(built))} for one kernel", tuple(built.values())
    packagers = {name: one for one in packaged if (name := archives.packager(one))}
    if len(packagers) > 1 and len({one.upstream for one in packaged}) > 1:
        yield f"packages by {' and '.join(sorted(packagers))}", tuple(one.citation for one in packagers.values())


def _is_for_running(snapshot: Snapshot, row: modules.DkmsRow) -> bool:
    kernel = running_kernel(snapshot) or next((one.kernel for one in snapshot.view(modules.dkms) if one.kernel), "")
    return row.module.startswith("nvidia") and row.state == "installed" and row.kernel == kernel


def _of_two_branches(packaged: tuple[Package, ...]) -> Iterator[_Installs]:
    found = {branch: one for one in packaged if (branch := _branch(one))}
    if len(found) > 1:
        yield f"packages of the branches {' and '.join(sorted(found))}", tuple(one.citation for one in found.values())


def _branch(package: Package) -> str:
    """The branch in a package's name; empty for an empty one that only leads from an old branch to its successor."""
    match = _BRANCH.match(package.name)
    return match["branch"] if match and package.upstream.startswith(f"{match['branch']}.") else ""


def _of_two_repositories(snapshot: Snapshot, packaged: tuple[Package, ...]) -> Iterator[_Installs]:
    theirs = _named(packaged, "nvidia-driver", "nvidia-driver-cuda", "nvidia-driver-libs")
    fusion = _named_like(packaged, "xorg-x11-drv-nvidia")
    # negativo17 has an akmod too, beside a package of this name; in RPM Fusion that is no package of its own.
    if packages.installed(snapshot, "nvidia-kmod-common") is not True:
        fusion += _named_like(packaged, "akmod-nvidia")
    if theirs and fusion:
        yield "NVIDIA's packages and RPM Fusion's", (theirs[0].citation, fusion[0].citation)


def _run_beside_packages(snapshot: Snapshot, scene: _Scene, packaged: tuple[Package, ...]) -> Iterator[_Installs]:
    """A module that no package brings is loaded, and the packages are of another version."""
    if scene.loaded is None or not packaged or any(scene.is_loaded(one.upstream) for one in packaged):
        return
    version = _run_version(snapshot)
    both = (packaged[0].citation, *((version[1],) if version else ()))
    if version and scene.is_loaded(version[0]):
        yield f"{version[0]} by NVIDIA's .run installer, {packaged[0].upstream} by packages", both
    elif all(_number(one.upstream) < _number(scene.loaded.version) for one in packaged) and not scene.upgrades:
        yield f"{scene.loaded.version} is loaded, and the packages are all older ({packaged[0].upstream})", both


def _run_beside_modules(snapshot: Snapshot, scene: _Scene) -> Iterator[_Installs]:
    """The libraries are of NVIDIA's .run installer, which brings its own module, and the module on disk is another."""
    if scene.disk is None or scene.wanted is None or _is(scene.disk.version, scene.wanted.version):
        return
    for item in snapshot.of("installer-log", "listing", "text", "package-history"):
        for match in _RUN_SAYS.finditer(item.text):
            version = match["version"] or match["log"]
            if _is(version, scene.wanted.version):
                place = cite(item, item.number_at(match.start()))
                yield f"libraries of {version} by NVIDIA's .run installer, modules of {scene.disk.version}", (place,)
                return


_STORE: Final = Pattern(rf"/nix/store/\w+-nvidia-x11-(?P<version>{driver.VERSION})-")


def _beside_the_system(snapshot: Snapshot, scene: _Scene) -> Iterator[_Installs]:
    """Module, module on disk and packages are all of one version, and what a search path puts first is of another."""
    if scene.loaded is None or (scene.disk is not None and not scene.is_loaded(scene.disk.version)):
        return
    whole = [one for one in (*scene.bringing, *scene.user) if scene.is_loaded(one.upstream)]
    first = _put_first(snapshot)
    named = (version for one in first for version in re.findall(rf"/({driver.VERSION})/", f"{one.line}/"))
    other = next((version for version in named if not scene.is_loaded(version)), "")
    if other and len(whole) == len((*scene.bringing, *scene.user)):
        reason = f"the system's is {scene.loaded.version}, and the environment puts one of {other} first"
        yield reason, (*first, *(one.citation for one in whole))


def _of_two_stores(snapshot: Snapshot) -> Iterator[_Installs]:
    """Nix keeps each driver in a folder of its own; a profile may lead to another than the system's."""
    found: dict[str, Citation] = {}
    for item in snapshot.items:
        for match in _STORE.finditer(item.text):
            found.setdefault(match["version"], cite(item, item.number_at(match.start())))
    if len(found) > 1:
        yield f"{' and '.join(sorted(found))} in Nix's store are both in use", tuple(found.values())


def _named(found: tuple[Package, ...], *names: str) -> list[Package]:
    return [one for one in found if one.name in names]


def _named_like(found: tuple[Package, ...], start: str) -> list[Package]:
    return [one for one in found if one.name.startswith(start)]


def _run_version(snapshot: Snapshot) -> tuple[str, Citation] | None:
    """The driver that a .run installer put here and whose module is where only it puts one."""
    uninstaller = snapshot.facts.run_installer
    # Without it, somebody has only copied a module to that place.
    is_whole = not isinstance(uninstaller, Known) or uninstaller.value
    for item in snapshot.of("modinfo") if is_whole else ():
        if _RUN_PLACE.search(item.text) and (disk := driver.on_disk(snapshot)):
            return disk.version, disk.citation
    for item in snapshot.of("installer-log", "listing", "text"):
        if match := _RUN_SAYS.search(item.text):
            place = cite(item, item.number_at(match.start()))
            return match["version"] or match["log"], place
    return None


def _automatic(scene: _Scene) -> tuple[str, Verdict] | None:
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


def _while_loaded(scene: _Scene) -> str:
    return (
        f", and the module of {scene.loaded.version} is still loaded"
        if scene.loaded
        else ", and the old module is loaded"
    )


def _by_disk(snapshot: Snapshot, scene: _Scene) -> tuple[str, Verdict] | None:
    """What the module on disk tells: it is new, so a reboot loads it; or it is old, and no reboot helps."""
    if scene.disk is None:
        return None
    if scene.loaded is not None and not scene.is_loaded(scene.disk.version):
        if scene.wanted is not None and not _is(scene.disk.version, scene.wanted.version):
            three = (scene.loaded.version, scene.disk.version, scene.wanted.version)
            what = "{} is loaded, {} is on disk, and the libraries are of {}".format(*three)
            return PARTIAL, Proof(what, scene.cited, "likely")
        if not scene.upgrades and (up := just_booted(snapshot)):
            return PENDING, _since_boot(scene, up)
        what = f"the driver was upgraded to {scene.disk.version}{_while_loaded(scene)}"
        return PENDING, Proof(what, scene.cited, _who(scene), _no_partial(scene))
    if scene.wanted is not None and not _is(scene.disk.version, scene.wanted.version):
        what = f"the libraries are of {scene.wanted.version}, the kernel module on disk is still {scene.disk.version}"
        return PARTIAL, Proof(what, scene.cited, ruled_out=_no_reboot(scene))
    if scene.loaded is None:
        return PENDING, Proof(
            f"{scene.disk.version} is on disk and in the libraries, another is loaded", scene.cited, "likely"
        )
    return None


def _by_packages(snapshot: Snapshot, scene: _Scene) -> tuple[str, Verdict] | None:
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
    if new and (scene.wanted is None or any(_is(one.upstream, scene.wanted.version) for one in new)):
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


def _newer(snapshot: Snapshot, scene: _Scene) -> tuple[str, Verdict] | None:
    """The kernel hears of newer libraries while the node runs: mostly they came by an upgrade before a reboot.

    What it hears of at boot, a reboot did not put right. Without a time, nobody knows which it is.
    """
    if scene.loaded is None or scene.wanted is None or _number(scene.wanted.version) <= _number(scene.loaded.version):
        return None
    times = [message.at for message in kernel.said(snapshot, _API)]
    if not any(at is not None and at > _BOOTED_S for at in times):
        return None
    what = f"the libraries are of {scene.wanted.version} already{_while_loaded(scene)}"
    return PENDING, Proof(what, scene.cited, "likely")


def _who(scene: _Scene) -> Confidence:
    """How sure it is that a person upgraded the driver: without a log it may have been the system."""
    return "certain" if scene.upgrades else "likely"


def _waits_for_reboot(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The driver's packages in the list of those that ask for a reboot."""
    return tuple(c for item in snapshot.files("*/reboot-required.pkgs") for c in lines_with(item, _REBOOT_LIST))


def _is_whole_table(snapshot: Snapshot) -> bool:
    """Whether a list of packages was pasted with its head and without a filter, so that its silence tells."""
    tables = (item for item in snapshot.of("packages") if item.where == "host" and not item.source.is_part)
    return any(not item.source.only and _HEADER.search(item.text) for item in tables)


def _undecided(scene: _Scene) -> Doubt:
    question = "is the module on disk of the libraries' version, so that a reboot is enough, or is it an old one?"
    look = "modinfo -F version nvidia; cat /proc/driver/nvidia/version; grep nvidia /var/log/apt/history.log"
    return Doubt(question, look, scene.cited, (UNATTENDED, PARTIAL, MIXED, CONTAINER))


def _silent(scene: _Scene) -> Doubt:
    """Nobody tells that anything fails; the module on disk is another than the one that is loaded."""
    question = "the module on disk is not the one that is loaded: does it wait for a reboot, or did a reboot load this?"
    look = "nvidia-smi; uptime -s; grep nvidia /var/log/apt/history.log; lsinitramfs /boot/initrd.img-$(uname -r)"
    return Doubt(question, look, scene.cited, (UNATTENDED, PARTIAL, MIXED, _IMAGE))


def _since_boot(scene: _Scene, up: tuple[Citation, ...]) -> Doubt:
    """The node came up minutes ago and has loaded another module than the one that stands on disk."""
    question = "was the driver upgraded in the minutes since the boot, or does the initramfs bring the old module?"
    look = "lsinitramfs /boot/initrd.img-$(uname -r) | grep nvidia; tail /var/log/dpkg.log"
    return Doubt(question, look, (*scene.cited, *up), (UNATTENDED, PARTIAL, _IMAGE))


def _of_image(scene: _Scene, held: tuple[Citation, ...]) -> Doubt:
    """The initramfs holds a module, and which version is loaded was not shown."""
    question = "is the loaded module the one of the initramfs, older than that on disk, or the one before the upgrade?"
    look = "cat /proc/driver/nvidia/version; modinfo -F version nvidia"
    return Doubt(question, look, (*scene.cited, *held), (UNATTENDED, PARTIAL, _IMAGE))


_IMAGE: Final = "initramfs-stale-module"


def _no_partial(scene: _Scene) -> tuple[str, ...]:
    if scene.disk is None:
        return ()
    return (f"a partial upgrade: the module on disk is {scene.disk.version} already",)


def _no_reboot(scene: _Scene) -> tuple[str, ...]:
    if scene.disk is None or not scene.is_loaded(scene.disk.version):
        return ()
    return (f"a pending reboot: the module on disk is {scene.disk.version}, as the one that is loaded",)


# --- remedies -----------------------------------------------------------------------------------------------------

_RELOAD: Final = (
    remedies.MODULES_OUT,
    "sudo modprobe -a nvidia nvidia_uvm",
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
        yield run("configure", text, f"echo '{line}' | sudo tee {path}")
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
    scene = snapshot.view(_scene)
    packaged = (*scene.bringing, *scene.user)
    numbers = sorted({branch for one in packaged if (branch := _branch(one))})
    if len(numbers) > 1:
        older = [one.name for one in packaged if (match := _BRANCH.match(one.name)) and match["branch"] != numbers[-1]]
        yield uninstall(snapshot, "remove the packages of all branches but one", *sorted(set(older)))
    elif _run_version(snapshot):
        yield run(
            "remove", "take the .run installation away with its own uninstaller", "sudo nvidia-uninstall --silent"
        )
    else:
        yield _remove_the_other(snapshot, packaged)
    text = "install the one that stays, whole"
    if takes_gpunode(snapshot):
        text += "; gpunode names each package of another one before it removes it"
    yield remedies.driver(snapshot, text)
    yield reboot()


def _remove_the_other(snapshot: Snapshot, packaged: tuple[Package, ...]) -> Fix:
    if package_manager(snapshot) == "apt" or not packaged:
        text = "take away what NVIDIA's .run installer has put beside the packages, where it has"
        return run("remove", text, "[ ! -x /usr/bin/nvidia-uninstall ] || sudo nvidia-uninstall --silent")
    fusion = sorted({one.name for one in packaged if one.name.startswith(("xorg-x11-drv-nvidia", "akmod-nvidia"))})
    names = fusion or sorted({one.name for one in packaged})
    return uninstall(snapshot, "remove the packages of the driver that is not wanted", *names)


def _one_library(snapshot: Snapshot) -> Iterable[Fix]:
    own, node = driver.library_in_container(snapshot), snapshot.view(_scene).loaded
    is_older = own is not None and node is not None and _number(own.version) < _number(node.version)
    image = by_hand("remove", "build the image without packages of the driver: its libraries come from the node")
    anew = by_hand("restart", "create the container anew, so that it gets the libraries of today's driver")
    yield from ((anew, image) if is_older and not _shipped(snapshot, snapshot.view(_scene)) else (image, anew))


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


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
