"""NVIDIA's .run installer: a driver that it left beside the packages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpunode.diagnoses import remedies, symptoms
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.consequences import MISMATCHES, NO_DRIVER
from gpunode.diagnoses.model import Fix, Rule
from gpunode.diagnoses.remedies import reboot, rebuild_initramfs, run_step
from gpunode.diagnoses.signs import all_of, any_of, custom_sign, message_line, unless
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import driver, guests, runfile
from gpunode.diagnoses.views.packages import Package

_PURGE: Final = message_line(
    r"Preparing to unpack \S*nvidia"
    r"|\b(?:apt|apt-get|dnf|yum|zypper)\b.{0,40}\b(?:install|remove|purge)\b.{0,60}(?:nvidia|cuda)",
    *("text", "package-output"),
)
_TRACE: Final = any_of(
    custom_sign(runfile.uninstaller_lines),
    message_line(r"driver installation has been altered since it was|nvidia-installer-cleanup"),
)
_UNOWNED: Final = message_line(
    r"no path found matching pattern /\S*lib(?:nvidia|cuda|GLX_nvidia|EGL_nvidia)"
    r"|file /\S*lib(?:nvidia|cuda)\S* is not owned by any package|No package owns /\S*lib(?:nvidia|cuda)",
    *("package-owner", "package-output", "text"),
)


def _installed_packages(snapshot: Snapshot) -> list[Package]:
    return [one for one in driver.driver_packages(snapshot) if one.is_installed]


_BESIDE: Final = custom_sign(lambda snapshot: (one.citation for one in _installed_packages(snapshot)[:3]))


def _uninstall_runfile(snapshot: Snapshot) -> Iterable[Fix]:
    if guests.is_vgpu(snapshot):
        yield remedies.install_guest_driver("keep one driver: leave the installer's, or reinstall it completely")
        return
    uninstall = Shell("sudo nvidia-installer --uninstall --silent")
    if not snapshot.view(any_of(_TRACE, _UNOWNED)):
        see = Shell("ls -l /usr/bin/nvidia-installer /var/log/nvidia-installer.log")
        yield run_step("inspect", "see whether the installer was ever run here", see)
    yield run_step("remove", "remove the .run installation with its own uninstaller", uninstall)
    there = _installed_packages(snapshot)
    seen = (driver.loaded_version(snapshot), driver.on_disk_version(snapshot))
    is_theirs = any(one is not None and one.version in {package.upstream for package in there} for one in seen)
    if there and (is_theirs or driver.kernel_packages(snapshot) or driver.metapackages(snapshot)):
        text = "restore the packages' files that it had replaced"
        yield remedies.reinstall(snapshot, text, *(one.name for one in there))
    else:
        # No package that was listed brings a module, and the uninstaller takes its own away.
        yield remedies.install_driver(snapshot, "install the whole driver as packages")
    yield run_step("rebuild", "refresh the loader's cache", Shell("sudo ldconfig"))
    yield rebuild_initramfs(snapshot)
    yield reboot()


RULES: Final = (
    Rule(
        cause="runfile-leftover",
        layer="package",
        shows_in="driver",
        disruption="reboot",
        decisive=all_of(_TRACE, any_of(_BESIDE, _PURGE)),
        typical=any_of(_UNOWNED, unless(_TRACE, symptoms.MISMATCH)),
        symptoms=(symptoms.MISMATCH, symptoms.NO_DRIVER, symptoms.PACKAGES_BROKEN, symptoms.BUILD_FAILED, _UNOWNED),
        context=_TRACE,
        against=(symptoms.DRIVER_WORKS,),
        may_be_normal=True,
        summary="NVIDIA's .run installer left a driver that no package owns",
        look_at=(Shell("ls /usr/bin/nvidia-uninstall /var/log/nvidia-installer.log"),),
        remedy=_uninstall_runfile,
        explains=MISMATCHES | NO_DRIVER | {"dpkg-unconfigured-packages", "duplicate-module-files"},
    ),
)
