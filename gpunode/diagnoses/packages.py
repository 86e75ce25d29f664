"""The package database and its conflicts: locks, half-installed and held packages, two packagers, .run installers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Final

from gpunode.diagnoses import remedies, symptoms
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.consequences import DRIVER_LIBRARY_MISMATCH_CAUSES, NO_DRIVER, NOTHING_INSTALLABLE
from gpunode.diagnoses.model import Citation, Fix, Proof, Rule
from gpunode.diagnoses.remedies import (
    can_run_setup,
    manual_step,
    reboot_node,
    rebuild_initramfs,
    reinstall,
    run_step,
    setup_step,
    uninstall_driver,
)
from gpunode.diagnoses.signs import all_of, any_of, command_run, custom_sign, message_line, predicate, unless
from gpunode.diagnoses.snapshot import Snapshot, cite, cite_fact
from gpunode.diagnoses.views import driver, packages, virtualization
from gpunode.diagnoses.views.driver import SeenVersion
from gpunode.diagnoses.views.packages import Package, is_driver_package
from gpunode.diagnoses.views.system import package_manager
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import SourceKind

_RUNFILE_UNINSTALLER_PATH: Final = Pattern(r"/usr/(?:local/)?bin/nvidia-uninstall")
# NVIDIA's .run installer puts a module here if it does not use DKMS; no current package does.
_RUNFILE_MODULE_PATH: Final = Pattern(r"/kernel/drivers/video/nvidia\.ko")
_RUNFILE_VERSION: Final = Pattern(
    rf"(?i)NVIDIA-Linux-\w+-(?P<version>{driver.VERSION})"
    rf"|(?:installing (?:NVIDIA )?driver version|installer version:|\(version:) (?P<log>{driver.VERSION})"
)


def runfile_uninstaller_lines(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the evidence of the .run installer's uninstaller, which every such installation has."""
    known = snapshot.facts.run_installer
    if isinstance(known, Known):
        return (cite_fact("NVIDIA's .run installer", "it is in /usr/bin", known.probe),) if known.value else ()
    seen = snapshot.items_of("listing", "which", "file", "installer-log")
    found = (item for item in seen if item.outcome == "ok" and item.where == "host" and "nvidia-uninstall" in item.text)
    return tuple(
        cite(item, number)
        for item in found
        for number, line in enumerate(item.lines, 1)
        if _RUNFILE_UNINSTALLER_PATH.search(line) and "No such file" not in line and "cannot access" not in line
    )


def runfile_version(snapshot: Snapshot) -> SeenVersion | None:
    """Return the driver that the .run installer installed: by a module in its folder, or by its name or log."""
    uninstaller = snapshot.facts.run_installer
    # Without the uninstaller, the module was only copied to that folder.
    is_whole = not isinstance(uninstaller, Known) or uninstaller.value
    for item in snapshot.items_of("modinfo") if is_whole else ():
        if _RUNFILE_MODULE_PATH.search(item.text) and (disk := driver.on_disk_version(snapshot)):
            return disk
    return next(named_runfile_versions(snapshot, "installer-log", "listing", "text"), None)


def named_runfile_versions(snapshot: Snapshot, *kinds: SourceKind) -> Iterator[SeenVersion]:
    """Yield the driver versions in the installer's file name or log, in items of these kinds."""
    for item in snapshot.items_of(*kinds):
        for match in _RUNFILE_VERSION.finditer(item.text):
            yield SeenVersion(match["version"] or match["log"], cite(item, item.line_number_at(match.start())))


_PACKAGE_LOCK_HELD: Final = unless(
    message_line(
        r"Could not get lock /\S+(?!.{0,40}Permission denied)|Unable to acquire the dpkg (?:frontend|database) lock"
        r"|dpkg (?:frontend|database) lock (?:was|is) locked by another process|Waiting for cache lock"
        r"|Unable to lock (?:the administration )?directory|Failed to lock apt for exclusive operation"
        r"|Existing lock /var/run/yum\.pid|Another app is currently holding the yum lock"
        r"|Waiting for process with pid \d+ to finish|System management is locked by the application with pid \d+"
        r"|unable to lock database|another process is using the (?:dpkg|package) (?:database|manager)"
    ),
    message_line(r"are you root\?|13: Permission denied|requires root|superuser privilege"),
)
_LOCK_HOLDER: Final = Pattern(r"(?:held by process|(?:with|as) pid:?) *(?P<pid>\d{1,18})(?: \((?P<name>[^)]+)\))?")


def _summarize_lock(snapshot: Snapshot) -> str:
    holder = snapshot.match(_LOCK_HOLDER)
    name = f" ({holder['name']})" if holder and holder["name"] else ""
    who = f": process {holder['pid']}{name}" if holder else ""
    return f"another program is using the package database{who}; it releases the lock when it has finished"


_LISTED_LOCK_HOLDER: Final = Pattern(
    r"(?m)^[ \t]*(?P<name>\S+)\s+(?P<pid>\d{1,18})\s+/var/lib/(?:dpkg|rpm)/(?:lock|\.rpm\.lock)\S*"
)


def _find_held_lock(snapshot: Snapshot) -> Iterator[Proof]:
    """Yield a lock that is held now; this is temporary and not a fault."""
    for item in snapshot.items:
        if item.written.startswith("lslocks ") and (match := _LISTED_LOCK_HOLDER.search(item.text)):
            who = f"{match['name']} (process {match['pid']})"
            summary = f"{who} is using the package database; everything that needs the lock must wait for it"
            yield Proof(summary, (cite(item, item.line_number_at(match.start())),), severity="info")


def _wait_for_lock(snapshot: Snapshot) -> Iterable[Fix]:
    if snapshot.view(package_manager) != "apt":
        yield manual_step("wait", "wait until the other program has finished, then run the command again")
        return
    text = "wait until it has finished; apt can do that by itself, with a time limit"
    yield run_step("wait", text, Shell("sudo apt-get -o DPkg::Lock::Timeout=600 check"))
    text = "if nodes are set up at their first boot, wait for the automatic upgrade first"
    yield run_step(
        "wait", text, Shell("sudo systemctl start --wait apt-daily-upgrade.service"), when="it is the first boot"
    )


_DPKG_INTERRUPTED: Final = message_line(
    r"dpkg was interrupted, you must manually run|dpkg --configure -a|unpacked but not yet configured"
    r"|are only half (?:configured|installed)|^[ \t]*[1-9]\d* not fully installed or removed"
)


def _half_done_packages(snapshot: Snapshot) -> list[packages.Package]:
    return [package for package in snapshot.view(packages.listed_packages).values() if package.is_half_done]


def _has_pending_dpkg_updates(snapshot: Snapshot) -> bool:
    stopped = snapshot.facts.packages_interrupted
    return isinstance(stopped, Known) and stopped.value


_PACKAGES_HALF_INSTALLED: Final = unless(
    any_of(
        custom_sign(lambda snapshot: (one.citation for one in _half_done_packages(snapshot))),
        _DPKG_INTERRUPTED,
        predicate(_has_pending_dpkg_updates, "dpkg did not finish its last run"),
    ),
    # Whoever has the lock is about to finish them.
    custom_sign(lambda snapshot: chain.from_iterable(proof.citations for proof in _find_held_lock(snapshot))),
)


def _summarize_half_done(snapshot: Snapshot) -> str:
    half = _half_done_packages(snapshot)
    names = ", ".join(sorted(package.name for package in half)[:4])
    return f"dpkg started to install {names} and did not finish" if half else "dpkg left packages half installed"


_DKMS_BUILD_FAILED: Final = any_of(
    message_line(
        r"\bnvidia[\w-]{0,60}dkms|[Bb]ad (?:return|exit) status|make\.log", "package-output", "text", "dkms-output"
    ),
    custom_sign(
        lambda snapshot: (
            one.citation for one in _half_done_packages(snapshot) if one.has_failed_script and "dkms" in one.name
        )
    ),
)


def _finish_packages(snapshot: Snapshot) -> Iterable[Fix]:
    if snapshot.view(_DKMS_BUILD_FAILED):
        log = Shell("sudo sh -c 'tail -n 60 /var/lib/dkms/nvidia*/*/build/make.log'")
        yield run_step("inspect", "read why the module did not build; fix that first", log)
    else:
        yield run_step("inspect", "list these packages and what each still needs", Shell("sudo dpkg --audit"))
    finish = (Shell("sudo dpkg --configure -a"), Shell("sudo apt-get -f install"))
    yield run_step("install", "finish the interrupted dpkg run", *finish)
    if broken := sorted(package.name for package in _half_done_packages(snapshot) if package.is_broken):
        yield reinstall(snapshot, "neither of them completes a package that has lost files: reinstall it", *broken)


_DRIVER_WORDS: Final = Pattern(r"(?i)nvidia|cuda")
_LINE_ABOUT_DRIVER: Final = r"^(?=[^\n]*(?:nvidia|cuda))[^\n]*"
_RPM_ARCHITECTURE_SUFFIX: Final = r"\.(?:x86_64|aarch64|noarch)\b"
_PACKAGE_FILE_CONFLICT: Final = any_of(
    message_line(
        rf"{_LINE_ABOUT_DRIVER}(?:trying to overwrite|exists in filesystem|conflicts (?:with file from"
        r"|between attempted)"
        r"|diversion of [^\n]+ clashes with|\(--unpack\): [^\n]{0,60}['‘«„\"]/)"
    ),
    # rpm names the file and both packages in every language.
    message_line(
        rf"\s/(?:usr|etc|lib)/[^\s]{{1,100}} [^\n]{{1,120}}nvidia[^\n]{{1,80}}{_RPM_ARCHITECTURE_SUFFIX}"
        rf"[^\n]{{1,120}}{_RPM_ARCHITECTURE_SUFFIX}"
    ),
)
_DEPENDENCY_COMPLAINT: Final = Pattern(
    r"held broken packages|[Uu]nmet dependencies|requested an impossible situation"
    r"|Depends: \S+ .{0,80}but .{1,60}(?:is to be installed|is installed|not going to be installed|not installable)"
    r"|Held packages were changed|conflicting requests|cannot install (?:both|the best)|nothing provides \S*nvidia"
    r"|filtered out by |Problem: .{0,80}nvidia|Conflicts: \S*nvidia\S*|Processing Conflict: "
    r"|package \S*nvidia\S* (?:from \S+ )?conflicts with"
)
# RPM Fusion names the driver's packages differently from NVIDIA and negativo17.
_RPM_FUSION_PACKAGE_NAME: Final = r"(?:xorg-x11-drv-nvidia|akmod-nvidia)"
_DEPENDENCY_ACROSS_SOURCES: Final = message_line(
    r"Depends: (?:lib)?(?:nvidia|cuda)\S* \([<>=]+ [^)\n]+\) but \d\S+ is (?:to be )?installed"
    # A driver built for a release with a newer C library than this one.
    r"|Depends: (?:libc6|libssl\d\S*|libstdc\+\+6|libgcc-s1) \(>= [^)\n]+\) but (?:\S+ is to be inst|it is not install)"
    r"|cannot install both \S*nvidia\S* (?:from \S+ )?and \S*nvidia"
    rf"|package {_RPM_FUSION_PACKAGE_NAME}\S* [^\n]{{0,80}}(?:conflicts with"
    rf"|obsoletes) \S+ provided by (?!{_RPM_FUSION_PACKAGE_NAME})\S*nvidia"
    rf"|package (?!{_RPM_FUSION_PACKAGE_NAME})\S*nvidia\S* [^\n]{{0,80}}(?:conflicts with"
    rf"|obsoletes) \S+ provided by {_RPM_FUSION_PACKAGE_NAME}"
)


def _held_driver_packages(snapshot: Snapshot) -> dict[str, Citation]:
    return {name: place for name, place in packages.held_packages(snapshot).items() if is_driver_package(name)}


def _packages_of_two_packagers(snapshot: Snapshot) -> list[packages.Package]:
    """Return the driver's packages if they come from two packagers, one of which may be NVIDIA."""
    listed = snapshot.view(packages.listed_packages).values()
    driver_packages = [package for package in listed if package.is_installed and is_driver_package(package.name)]
    packagers = [(package, packager) for package in driver_packages if (packager := _packager_of_package(package))]
    return [one for one, _ in packagers] if len({packager for _, packager in packagers}) > 1 else []


def _packager_of_package(package: packages.Package) -> str:
    """Return the packager of the package by its revision or repository; empty if unknown."""
    if _NVIDIA_REVISION.search(package.version) or "cuda" in package.origin:
        return "NVIDIA"
    if match := _OTHER_PACKAGERS_ORIGIN.search(package.origin):
        return match[0]
    return "other" if _OTHERS_REVISION.search(package.version) else ""


def _mixed_packages(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield packages of two packagers that differ in version or come from listed repositories."""
    found = _packages_of_two_packagers(snapshot)
    is_apart = len({package.upstream for package in found}) > 1 or any(package.origin for package in found)
    return (package.citation for package in found if is_apart)


_NVIDIA_REVISION: Final = Pattern(r"-\d+ubuntu1$")
_OTHERS_REVISION: Final = Pattern(r"-\d+ubuntu0\.\d|-0ubuntu[2-9]|~(?:gpu|ppa|lambda)|-\d*pop\d|~bpo|~deb|\+deb")
# The last alternative is negativo17's.
_OTHER_PACKAGERS_ORIGIN: Final = Pattern(r"rpmfusion|elrepo|(?:fedora|epel)-nvidia")
_UNMET_DEPENDENCIES: Final = custom_sign(
    lambda snapshot: (
        line for line in snapshot.matching_lines(_DEPENDENCY_COMPLAINT) if _DRIVER_WORDS.search(snapshot.text_of(line))
    )
)
_DRIVER_PACKAGES_HELD: Final = custom_sign(lambda snapshot: _held_driver_packages(snapshot).values())
_PACKAGES_MIXED: Final = custom_sign(_mixed_packages)
_PACKAGERS_SHARE_FILE: Final = all_of(
    custom_sign(lambda snapshot: (one.citation for one in _packages_of_two_packagers(snapshot))), _PACKAGE_FILE_CONFLICT
)
_UNFINISHED_PACKAGES: Final = custom_sign(
    lambda snapshot: (one.citation for one in snapshot.view(packages.listed_packages).values() if one.is_half_done)
)
# dpkg left something unfinished, or an installed package that no repository offers is in the way.
_OTHER_DEPENDENCY_EXPLANATIONS: Final = (
    _PACKAGE_FILE_CONFLICT,
    _UNFINISHED_PACKAGES,
    custom_sign(lambda snapshot: (stray_package.citation for stray_package in snapshot.view(driver.stray_packages))),
)
_TWO_ORIGINS: Final = unless(
    all_of(any_of(_DEPENDENCY_ACROSS_SOURCES, _PACKAGES_MIXED), _UNMET_DEPENDENCIES),
    _DRIVER_PACKAGES_HELD,
    *_OTHER_DEPENDENCY_EXPLANATIONS,
)


_DEPENDENCY: Final = Pattern(
    r"(?P<package>[\w.+-]+)(?::\w+)? ?: (?:Pre)?Depends: (?P<needed>[\w.+-]+)(?::\w+)?(?: \([^)\n]+\))? but "
)
_OLD_DOCKER_PACKAGE: Final = Pattern(r"nvidia-docker2?$")


def _unmet_by_docker(snapshot: Snapshot) -> tuple[str, str] | None:
    """Return NVIDIA's old package for docker and what it needs, if that alone cannot be installed; else None."""
    lines = (_DEPENDENCY.search(line.line) for line in snapshot.view(_UNMET_DEPENDENCIES))
    pairs = {(match["package"], match["needed"]) for match in lines if match}
    is_old = bool(pairs) and all(_OLD_DOCKER_PACKAGE.match(package) for package, _ in pairs)
    return min(pairs) if is_old else None


def _summarize_holds(snapshot: Snapshot) -> str:
    if unmet := snapshot.view(_unmet_by_docker):
        return f"{unmet[0]}, which NVIDIA no longer maintains, needs another version of {unmet[1]}"
    if names := sorted(_held_driver_packages(snapshot)):
        return f"held: {', '.join(names)}; so the driver's packages cannot all get the same version"
    return "the requested packages conflict with those of the installed driver"


def _release_holds(snapshot: Snapshot) -> Iterable[Fix]:
    if snapshot.view(_unmet_by_docker):
        text = "install nvidia-container-toolkit instead, which works with every version of docker"
        fallback = remedies.install(snapshot, text, "nvidia-container-toolkit")
        yield setup_step(snapshot, "install", text, "toolkit", fallback_commands=fallback.commands)
        return
    if held_packages := sorted(_held_driver_packages(snapshot)):
        yield remedies.unhold_packages(snapshot, "release the hold, if the package may change", *held_packages)
        if snapshot.view(package_manager) == "apt":
            yield run_step(
                "install", "complete the packages that depend on each other", Shell("sudo apt-get -f install")
            )
    elif can_run_setup(snapshot):
        # One transaction, so the node is never without a driver.
        text = "remove the packages of other branches and install the one that fits; gpunode names each before it does"
        yield setup_step(snapshot, "remove", text)
        return
    else:
        text = "let the package manager replace what is installed; it names each package before it does"
        yield remedies.align_driver_versions(snapshot, "remove", text)
    yield remedies.install_driver(snapshot, "then install the desired branch")


def _use_one_package_origin(snapshot: Snapshot) -> Iterable[Fix]:
    yield remedies.keep_one_package_archive(snapshot)
    yield remedies.install_driver(snapshot, "install every package of the driver in the same version")


_CONFLICTING_FILE_OWNER: Final = Pattern(
    r"which is also in package (?P<deb>[\w.+-]+)|conflicts with file from package (?P<rpm>\S+)"
)


def _overwrite_file(snapshot: Snapshot) -> Iterable[Fix]:
    match = snapshot.match(_CONFLICTING_FILE_OWNER)
    owner = (match["deb"] or match["rpm"]) if match else ""
    if snapshot.view(package_manager) == "apt":
        force = Shell("sudo apt-get -o Dpkg::Options::=--force-overwrite -f install")
        yield run_step("install", "finish the installation with the newer package's file", force)
        if is_driver_package(owner):
            yield uninstall_driver(snapshot, "then remove the other branch", owner)
    elif is_driver_package(owner):
        yield uninstall_driver(snapshot, "remove the package that has the file", owner)
    else:
        text = "install both packages from one repository: disable the other one, or exclude the driver there"
        yield manual_step("configure", text)


_RUNFILE_TRACE: Final = any_of(
    custom_sign(runfile_uninstaller_lines),
    message_line(
        r"driver installation has been altered since it was"
        # Debian's own driver depends on this package, which fails if files of the .run installer exist.
        r"|error processing package nvidia-installer-cleanup|nvidia-installer-cleanup package \S+ script"
    ),
)
_DRIVER_LIBRARY_UNOWNED: Final = message_line(
    r"no path found matching pattern /\S*lib(?:nvidia|cuda|GLX_nvidia|EGL_nvidia)"
    r"|file /\S*lib(?:nvidia|cuda)\S* is not owned by any package|No package owns /\S*lib(?:nvidia|cuda)",
    *("package-owner", "package-output", "text"),
)


def _installed_driver_packages(snapshot: Snapshot) -> list[Package]:
    return [package for package in driver.driver_packages(snapshot) if package.is_installed]


_DRIVER_INSTALLED_FROM_PACKAGES: Final = custom_sign(
    lambda snapshot: (package.citation for package in _installed_driver_packages(snapshot)[:3])
)


def _uninstall_runfile(snapshot: Snapshot) -> Iterable[Fix]:
    if virtualization.is_vgpu(snapshot):
        yield remedies.install_guest_driver("keep one driver: leave the installer's, or reinstall it completely")
        return
    uninstall = Shell("sudo nvidia-installer --uninstall --silent")
    if not snapshot.view(any_of(_RUNFILE_TRACE, _DRIVER_LIBRARY_UNOWNED)):
        see = Shell("ls -l /usr/bin/nvidia-installer /var/log/nvidia-installer.log")
        yield run_step("inspect", "see whether the installer was ever run here", see)
    yield run_step("remove", "remove the .run installation with its own uninstaller", uninstall)
    there = _installed_driver_packages(snapshot)
    versions = (driver.loaded_version(snapshot), driver.on_disk_version(snapshot))
    is_theirs = any(one is not None and one.version in {package.upstream for package in there} for one in versions)
    if there and (is_theirs or driver.kernel_packages(snapshot) or driver.metapackages(snapshot)):
        text = "restore the packages' files that it had replaced"
        yield remedies.reinstall(snapshot, text, *(package.name for package in there))
    else:
        # No listed package contains a module, and the uninstaller removes its own.
        yield remedies.install_driver(snapshot, "install the whole driver as packages")
    yield run_step("rebuild", "refresh the loader's cache", Shell("sudo ldconfig"))
    yield rebuild_initramfs(snapshot)
    yield reboot_node()


_rule = partial(Rule, layer="packages")

RULES: Final = (
    _rule(
        cause="dpkg-lock-held",
        check=_find_held_lock,
        decisive=_PACKAGE_LOCK_HELD,
        symptoms=(symptoms.PACKAGES_BROKEN, _PACKAGE_LOCK_HELD),
        summary=_summarize_lock,
        look_at=(Shell("sudo fuser -v /var/lib/dpkg/lock-frontend"),),
        remedy=_wait_for_lock,
    ),
    _rule(
        cause="dpkg-unconfigured-packages",
        decisive=_PACKAGES_HALF_INSTALLED,
        symptoms=(symptoms.PACKAGES_BROKEN, _PACKAGES_HALF_INSTALLED),
        summary=_summarize_half_done,
        look_at=(Shell("dpkg --audit"),),
        remedy=_finish_packages,
        explains=DRIVER_LIBRARY_MISMATCH_CAUSES | NOTHING_INSTALLABLE | {"held-or-broken-packages"},
    ),
    _rule(
        cause="held-or-broken-packages",
        share=1.3,
        decisive=unless(all_of(_DRIVER_PACKAGES_HELD, _UNMET_DEPENDENCIES), *_OTHER_DEPENDENCY_EXPLANATIONS[:2]),
        typical=any_of(
            unless(_UNMET_DEPENDENCIES, _TWO_ORIGINS, *_OTHER_DEPENDENCY_EXPLANATIONS),
            unless(
                all_of(command_run(r"showhold|versionlock"), _DRIVER_PACKAGES_HELD),
                symptoms.DRIVER_WORKS,
                symptoms.DRIVER_MISMATCH,
            ),
        ),
        symptoms=(symptoms.PACKAGES_BROKEN, _UNMET_DEPENDENCIES),
        context=_DRIVER_PACKAGES_HELD,
        may_be_normal=True,
        summary=_summarize_holds,
        look_at=(Shell("apt-mark showhold"), Shell("apt-get -s install nvidia-driver")),
        remedy=_release_holds,
        explains=frozenset({"driver-library-mismatch-partial-upgrade"}),
    ),
    _rule(
        cause="mixed-repo-packages",
        decisive=any_of(
            _PACKAGERS_SHARE_FILE, _TWO_ORIGINS, unless(_PACKAGES_MIXED, _UNMET_DEPENDENCIES, symptoms.DRIVER_MISMATCH)
        ),
        symptoms=(symptoms.PACKAGES_BROKEN, symptoms.DRIVER_MISMATCH, _PACKAGERS_SHARE_FILE),
        latent=unless(symptoms.DRIVER_WORKS, _UNMET_DEPENDENCIES),
        look_at=(Shell("apt-cache policy 'nvidia-*' 'libnvidia-*'"),),
        remedy=_use_one_package_origin,
        explains=DRIVER_LIBRARY_MISMATCH_CAUSES
        | {"held-or-broken-packages", "dpkg-unconfigured-packages", "package-file-conflict"},
    ),
    _rule(
        cause="package-file-conflict",
        decisive=_PACKAGE_FILE_CONFLICT,
        symptoms=(symptoms.PACKAGES_BROKEN, _PACKAGE_FILE_CONFLICT),
        look_at=(Shell("dpkg -l | grep nvidia"),),
        remedy=_overwrite_file,
        explains=frozenset({"dpkg-unconfigured-packages", "held-or-broken-packages"}) | DRIVER_LIBRARY_MISMATCH_CAUSES,
    ),
    _rule(
        cause="runfile-leftover",
        layer="driver",
        disruption="reboot",
        decisive=all_of(_RUNFILE_TRACE, _DRIVER_INSTALLED_FROM_PACKAGES),
        typical=any_of(_DRIVER_LIBRARY_UNOWNED, unless(_RUNFILE_TRACE, symptoms.DRIVER_MISMATCH)),
        symptoms=(
            symptoms.DRIVER_MISMATCH,
            symptoms.NO_DRIVER,
            symptoms.PACKAGES_BROKEN,
            symptoms.BUILD_FAILED,
            _DRIVER_LIBRARY_UNOWNED,
        ),
        context=_RUNFILE_TRACE,
        against=(symptoms.DRIVER_WORKS,),
        may_be_normal=True,
        look_at=(Shell("ls /usr/bin/nvidia-uninstall /var/log/nvidia-installer.log"),),
        remedy=_uninstall_runfile,
        explains=DRIVER_LIBRARY_MISMATCH_CAUSES | NO_DRIVER | {"dpkg-unconfigured-packages", "duplicate-module-files"},
    ),
)
