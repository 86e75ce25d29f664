"""NVIDIA's .run installer: a driver that it left beside the packages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import remedies, symptoms
from gpunode.diagnoses.addresses import DRIVER_GUIDE
from gpunode.diagnoses.chains import MISMATCHES, NO_DRIVER
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.model import Family, Fix, Rule
from gpunode.diagnoses.remedies import reboot, rebuild_initramfs, run
from gpunode.diagnoses.signs import all_of, any_of, fact, line, unless
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import driver, guests, runfile
from gpunode.diagnoses.views.packages import Package
from gpunode.diagnoses.views.system import package_manager

_PURGE: Final = line(
    r"Preparing to unpack \S*nvidia"
    r"|\b(?:apt|apt-get|dnf|yum|zypper)\b.{0,40}\b(?:install|remove|purge)\b.{0,60}(?:nvidia|cuda)",
    *("text", "package-output"),
)
_TRACE: Final = any_of(
    fact(runfile.traces), line(r"driver installation has been altered since it was|nvidia-installer-cleanup")
)
_UNOWNED: Final = line(
    r"no path found matching pattern /\S*lib(?:nvidia|cuda|GLX_nvidia|EGL_nvidia)"
    r"|file /\S*lib(?:nvidia|cuda)\S* is not owned by any package|No package owns /\S*lib(?:nvidia|cuda)",
    *("package-owner", "package-output", "text"),
)


def _packaged(snapshot: Snapshot) -> list[Package]:
    return [one for one in driver.packaged(snapshot) if one.is_installed]


_BESIDE: Final = fact(lambda snapshot: (one.citation for one in _packaged(snapshot)[:3]))


def _what_is_left(snapshot: Snapshot) -> str:
    packaged = _packaged(snapshot)
    if strays := runfile.strays(snapshot):
        module = driver.loaded(snapshot) or driver.on_disk(snapshot)
        own = f" of {module.version}" if module else ""
        its = f"the driver{own} of NVIDIA's .run installer, which has the only module"
        return f"packages brought libraries of {strays[0].upstream} beside {its}"
    what = f"beside the packages of {packaged[0].upstream}" if packaged else "whose libraries belong to no package"
    return f"NVIDIA's .run installer left a driver here {what}"


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
    if strays := runfile.strays(snapshot):
        # Whose module is the only one: to take the installer's driver away would leave none.
        yield from without_strays(snapshot, strays)
        return
    if guests.is_vgpu(snapshot):
        yield remedies.guest_driver("keep the driver of one source: leave the installer's, or install it anew, whole")
        return
    yield run(
        "remove", "take the .run installation away with its own uninstaller", Shell("sudo nvidia-uninstall --silent")
    )
    there = [one.name for one in _packaged(snapshot)]
    if there and not _has_module(snapshot):
        # No package that was listed brings a module, and the uninstaller takes its own away.
        yield remedies.driver(snapshot, "install the whole driver as packages")
    elif there:
        yield remedies.reinstall(snapshot, "put back the packages' files that it had replaced", *there)
    elif snapshot.view(package_manager) == "apt" and snapshot.view(_PURGE):
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
    packaged = {one.upstream for one in _packaged(snapshot)}
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
            decisive=all_of(_TRACE, any_of(_BESIDE, _PURGE)),
            typical=any_of(_UNOWNED, unless(_TRACE, symptoms.MISMATCH)),
            symptoms=(symptoms.MISMATCH, symptoms.NO_DRIVER, symptoms.PACKAGES_BROKEN, symptoms.BUILD_FAILED, _UNOWNED),
            context=_TRACE,
            against=(symptoms.DRIVER_WORKS,),
            may_be_normal=True,
            summary=_what_is_left,
            look_at=(Shell("ls /usr/bin/nvidia-uninstall /var/log/nvidia-installer.log"),),
            story=(
                "The .run installer writes libraries and modules over the system's own, asks no package manager, and "
                "leaves /usr/bin/nvidia-uninstall. Packages that come later know nothing of them: the loader finds the "
                "old libraries first, the kernel an old module, and the versions differ. Only the installer's own "
                "uninstaller knows what it put where."
            ),
            sources=("https://github.com/SyneRBI/SIRF-SuperBuild/issues/273", DRIVER_GUIDE),
            remedy=_take_run_away,
            explains=MISMATCHES | NO_DRIVER | {"duplicate-module-files"},
        ),
    ),
)
