"""NVIDIA's .run installer: a driver that it left beside the packages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import remedies, symptoms
from gpunode.diagnoses.addresses import DRIVER_GUIDE
from gpunode.diagnoses.chains import MISMATCHES, NO_DRIVER
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.model import Citation, Family, Fix, Proof, Rule, Verdict
from gpunode.diagnoses.remedies import reboot, rebuild_initramfs, run
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import driver, guests, runfile
from gpunode.diagnoses.views.packages import Package
from gpunode.diagnoses.views.system import package_manager
from gpunode.facts.patterns import Pattern

_UNOWNED: Final = Pattern(
    r"no path found matching pattern (?P<file>/\S*lib(?:nvidia|cuda|GLX_nvidia|EGL_nvidia)\S*)"
    r"|file (?P<rpm>/\S*lib(?:nvidia|cuda)\S*) is not owned by any package"
    r"|No package owns (?P<arch>/\S*lib(?:nvidia|cuda)\S*)"
)
_PURGE: Final = Pattern(
    r"Preparing to unpack \S*nvidia"
    r"|\b(?:apt|apt-get|dnf|yum|zypper)\b.{0,40}\b(?:install|remove|purge)\b.{0,60}(?:nvidia|cuda)"
)
_TOLD: Final = Pattern(r"driver installation has been altered since it was|nvidia-installer-cleanup")


def _leftover(snapshot: Snapshot) -> Iterator[Verdict]:
    told = snapshot.said(_TOLD)
    trace = (*runfile.traces(snapshot), *told)
    unowned = snapshot.said(_UNOWNED, "package-owner", "package-output", "text")
    if driver.works(snapshot) or not (trace or unowned):
        return
    packaged = [one for one in driver.packaged(snapshot) if one.is_installed]
    beside = (*(one.citation for one in packaged[:3]), *snapshot.said(_PURGE, "text", "package-output"))
    if not (trace and (unowned or beside)) and not (unowned and packaged):
        return
    if not packaged and driver.mismatches(snapshot):
        return  # no packaged driver is shadowed: two that were installed by hand are
    if strays := runfile.strays(snapshot):
        yield _strayed_in(snapshot, strays, (*trace, *unowned))
        return
    what = "NVIDIA's .run installer left a driver here"
    what += f" beside the packages of {packaged[0].upstream}" if packaged else " whose libraries belong to no package"
    yield Proof(what, (*trace, *unowned, *beside), "certain" if packaged and trace else "likely")


def _strayed_in(snapshot: Snapshot, strays: tuple[Package, ...], seen: tuple[Citation, ...]) -> Proof:
    """Whose module is the only one: to take the installer's driver away would leave none."""
    module = driver.loaded(snapshot) or driver.on_disk(snapshot)
    own = f" of {module.version}" if module else ""
    what = (
        f"packages brought libraries of {strays[0].upstream} beside the driver{own} of NVIDIA's .run installer, which "
        "has the only module"
    )
    lines = (*seen, *(one.citation for one in strays[:3]), *((module.citation,) if module else ()))
    return Proof(what, lines, remedy=tuple(without_strays(snapshot, strays)), disruption="none")


def without_strays(snapshot: Snapshot, strays: Iterable[Package]) -> Iterator[Fix]:
    """Leaves the installer's driver as it is, and takes the packages away that came beside it."""
    names = (one.name for one in strays)
    text = "take the packages away that came beside the installer's driver; see what else goes before you agree"
    yield remedies.uninstall(snapshot, text, *names)
    yield run("rebuild", "let the loader find the installer's libraries", Shell("sudo ldconfig"))
    yield run("inspect", "see that both sides are of one version", Shell("nvidia-smi"))
    again = "run the installer of the same version once more: packages may have written over files of its own"
    yield remedies.by_hand("install", again, "nvidia-smi is gone, or says the same")
    text = "or go over to packages for good: sudo nvidia-uninstall, then a whole driver as packages, then a reboot"
    if not guests.is_vgpu(snapshot):
        yield remedies.by_hand("install", text)


# dpkg tells "ii " of what is installed; the container toolkit is no part of the driver.
_ALL_AGAIN: Final = Shell(
    "sudo apt-get install --reinstall $(dpkg-query -W -f '${db:Status-Abbrev}${binary:Package}\\n' '*nvidia*' "
    "'libcuda*' | sed -n '/container/d; s/^ii *//p')"
)


def _take_run_away(snapshot: Snapshot) -> Iterable[Fix]:
    if guests.is_vgpu(snapshot):
        yield remedies.guest_driver("keep the driver of one source: leave the installer's, or install it anew, whole")
        return
    yield run(
        "remove", "take the .run installation away with its own uninstaller", Shell("sudo nvidia-uninstall --silent")
    )
    there = [one.name for one in driver.packaged(snapshot) if one.is_installed]
    if there and not _has_module(snapshot):
        # No package that was listed brings a module, and the uninstaller takes its own away.
        yield remedies.driver(snapshot, "install the whole driver as packages")
    elif there:
        yield remedies.reinstall(snapshot, "put back the packages' files that it had replaced", *there)
    elif snapshot.view(package_manager) == "apt" and snapshot.says(_PURGE):
        # The package manager holds them to be whole, so nothing but this brings their files back.
        text = "put back the files of every installed package of the driver, which it had replaced"
        yield run("install", text, _ALL_AGAIN)
    else:
        yield remedies.driver(snapshot, "install the driver as packages")
    yield run("rebuild", "let the loader find the libraries that are left", Shell("sudo ldconfig"))
    yield rebuild_initramfs(snapshot)
    yield reboot()


def _has_module(snapshot: Snapshot) -> bool:
    """Whether packages have a module: one of them brings it, or what is loaded or on disk is of their version."""
    packaged = {one.upstream for one in driver.packaged(snapshot) if one.is_installed}
    seen = (driver.loaded(snapshot), driver.on_disk(snapshot))
    is_theirs = any(one is not None and one.version in packaged for one in seen)
    return is_theirs or bool(driver.kernel_side(snapshot) or driver.whole(snapshot))


FAMILY: Final = Family(
    "runfile",
    "NVIDIA's .run installer",
    (
        Rule(
            cause="runfile-leftover",
            layer="package",
            storey="driver",
            disruption="reboot",
            title="a driver of NVIDIA's .run installer is left beside the packages",
            symptoms=(
                symptoms.MISMATCH,
                symptoms.PACKAGES_BROKEN,
                symptoms.BUILD_FAILED,
            ),
            look_at=(Shell("ls /usr/bin/nvidia-uninstall /var/log/nvidia-installer.log"),),
            story=(
                "The .run installer writes libraries and modules over the system's own, asks no package manager, and "
                "leaves /usr/bin/nvidia-uninstall. Packages that come later know nothing of them: the loader finds the "
                "old libraries first, the kernel an old module, and the versions differ. Only the installer's own "
                "uninstaller knows what it put where."
            ),
            sources=("https://github.com/SyneRBI/SIRF-SuperBuild/issues/273", DRIVER_GUIDE),
            check=_leftover,
            remedy=_take_run_away,
            explains=MISMATCHES | NO_DRIVER | {"duplicate-module-files"},
        ),
    ),
)
