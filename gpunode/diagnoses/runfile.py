"""NVIDIA's .run installer: a driver that it left beside the packages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import remedies
from gpunode.diagnoses.addresses import DRIVER_GUIDE
from gpunode.diagnoses.chains import MISMATCHES, NO_DRIVER
from gpunode.diagnoses.model import Family, Fix, Proof, Rule, Verdict
from gpunode.diagnoses.remedies import reboot, rebuild_initramfs, run
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import driver, runfile
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
    what = "NVIDIA's .run installer left a driver here"
    what += f" beside the packages of {packaged[0].upstream}" if packaged else " whose libraries belong to no package"
    yield Proof(what, (*trace, *unowned, *beside), "certain" if packaged and trace else "likely")


# dpkg tells "ii " of what is installed; the container toolkit is no part of the driver.
_ALL_AGAIN: Final = (
    "sudo apt-get install --reinstall $(dpkg-query -W -f '${db:Status-Abbrev}${binary:Package}\\n' '*nvidia*' "
    "'libcuda*' | sed -n '/container/d; s/^ii *//p')"
)


def _take_run_away(snapshot: Snapshot) -> Iterable[Fix]:
    yield run("remove", "take the .run installation away with its own uninstaller", "sudo nvidia-uninstall --silent")
    if there := [one.name for one in driver.packaged(snapshot) if one.is_installed]:
        yield remedies.reinstall(snapshot, "put back the packages' files that it had replaced", *there)
    elif snapshot.view(package_manager) == "apt" and snapshot.says(_PURGE):
        # The package manager holds them to be whole, so nothing but this brings their files back.
        text = "put back the files of every installed package of the driver, which it had replaced"
        yield run("install", text, _ALL_AGAIN)
    else:
        yield remedies.driver(snapshot, "install the driver as packages")
    yield run("rebuild", "let the loader find the libraries that are left", "sudo ldconfig")
    yield rebuild_initramfs(snapshot)
    yield reboot()


FAMILY: Final = Family(
    "runfile",
    "NVIDIA's .run installer",
    (
        Rule(
            cause="runfile-leftover",
            layer="package",
            storey="driver",
            severity="error",
            disruption="reboot",
            title="a driver of NVIDIA's .run installer is left beside the packages",
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
