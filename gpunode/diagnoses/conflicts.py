"""Packages that do not go together: held ones, those of two branches or packagers, and two with one file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import remedies, symptoms
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.consequences import MISMATCHES
from gpunode.diagnoses.model import Citation, Fix, Rule
from gpunode.diagnoses.remedies import is_supported, manual_step, run_step, setup_step, uninstall
from gpunode.diagnoses.signs import all_of, any_of, command_run, custom_sign, message_line, unless
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import driver, packages
from gpunode.diagnoses.views.history import is_driver_package
from gpunode.diagnoses.views.system import package_manager
from gpunode.facts.patterns import Pattern

_DRIVERS: Final = Pattern(r"nvidia|cuda", re.IGNORECASE)
_OF_DRIVER: Final = r"^(?=[^\n]*(?:nvidia|cuda))[^\n]*"
_ARCH: Final = r"\.(?:x86_64|aarch64|noarch)\b"
_SAME_FILE: Final = any_of(
    message_line(
        rf"{_OF_DRIVER}(?:trying to overwrite|exists in filesystem|conflicts (?:with file from|between attempted)"
        r"|diversion of [^\n]+ clashes with|\(--unpack\): [^\n]{0,60}['‘«„\"]/)"
    ),
    # rpm names the file and both packages, in whatever language.
    message_line(rf"\s/(?:usr|etc|lib)/[^\s]{{1,100}} [^\n]{{1,120}}nvidia[^\n]{{1,80}}{_ARCH}[^\n]{{1,120}}{_ARCH}"),
)
_BROKEN: Final = Pattern(
    r"held broken packages|[Uu]nmet dependencies|requested an impossible situation"
    r"|Depends: \S+ .{0,80}but .{1,60}(?:is to be installed|is installed|not going to be installed|not installable)"
    r"|Held packages were changed|conflicting requests|cannot install (?:both|the best)|nothing provides \S*nvidia"
    r"|filtered out by |Problem: .{0,80}nvidia|Conflicts: \S*nvidia\S*|Processing Conflict: "
    r"|package \S*nvidia\S* (?:from \S+ )?conflicts with"
)
# RPM Fusion calls the driver otherwise than NVIDIA and negativo17 do.
_FUSIONS: Final = r"(?:xorg-x11-drv-nvidia|akmod-nvidia)"
_TWO_SOURCES: Final = message_line(
    r"Depends: (?:lib)?(?:nvidia|cuda)\S* \([<>=]+ [^)\n]+\) but \d\S+ is (?:to be )?installed"
    # A driver built for a release that has a newer C library than this one.
    r"|Depends: (?:libc6|libssl\d\S*|libstdc\+\+6|libgcc-s1) \(>= [^)\n]+\) but (?:\S+ is to be inst|it is not install)"
    r"|cannot install both \S*nvidia\S* (?:from \S+ )?and \S*nvidia"
    rf"|package {_FUSIONS}\S* [^\n]{{0,80}}(?:conflicts with|obsoletes) \S+ provided by (?!{_FUSIONS})\S*nvidia"
    rf"|package (?!{_FUSIONS})\S*nvidia\S* [^\n]{{0,80}}(?:conflicts with|obsoletes) \S+ provided by {_FUSIONS}"
)


def _unmet_dependencies(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield complaints of the package manager in texts about the driver."""
    return (one for one in snapshot.matching_lines(_BROKEN) if _DRIVERS.search(snapshot.text_of(one)))


def _held_drivers(snapshot: Snapshot) -> dict[str, Citation]:
    return {name: place for name, place in packages.held_packages(snapshot).items() if is_driver_package(name)}


def _two_packagers(snapshot: Snapshot) -> list[packages.Package]:
    """Return the driver's packages if they are by NVIDIA and by others, by revision or repository."""
    installed = [
        one
        for one in snapshot.view(packages.listed_packages).values()
        if one.is_installed and is_driver_package(one.name)
    ]
    theirs = [one for one in installed if _NVIDIAS.search(one.version) or "cuda" in one.origin]
    others = [one for one in installed if _OTHERS_REVISION.search(one.version) or _OTHERS_ORIGIN.search(one.origin)]
    return [*theirs, *others] if theirs and others else []


def _mixed_packages(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield packages of two packagers, in two versions or from two listed repositories."""
    found = _two_packagers(snapshot)
    is_apart = len({one.upstream for one in found}) > 1 or any(one.origin for one in found)
    return (one.citation for one in found if is_apart)


_NVIDIAS: Final = Pattern(r"-\d+ubuntu1$")
_OTHERS_REVISION: Final = Pattern(r"-\d+ubuntu0\.\d|-0ubuntu[2-9]|~(?:gpu|ppa|lambda)|-\d*pop\d|~bpo|~deb|\+deb")
_OTHERS_ORIGIN: Final = Pattern(r"rpmfusion|elrepo|(?:fedora|epel)-nvidia")
_UNMET: Final = custom_sign(_unmet_dependencies)
_HELD: Final = custom_sign(lambda snapshot: _held_drivers(snapshot).values())
_MIXED: Final = custom_sign(_mixed_packages)
_BETWEEN: Final = all_of(custom_sign(lambda snapshot: (one.citation for one in _two_packagers(snapshot))), _SAME_FILE)
_LEFT_HALF: Final = custom_sign(
    lambda snapshot: (one.citation for one in snapshot.view(packages.listed_packages).values() if one.is_half_done)
)
# apt complains of what dpkg left behind, or what stands in the way is there and no repository offers it.
_OTHERS: Final = (
    _SAME_FILE,
    _LEFT_HALF,
    custom_sign(lambda snapshot: (one.citation for one in driver.stray_packages(snapshot))),
)
_TWO_ORIGINS: Final = unless(all_of(any_of(_TWO_SOURCES, _MIXED), _UNMET), _HELD, *_OTHERS)


def _why_held(snapshot: Snapshot) -> str:
    if names := sorted(_held_drivers(snapshot)):
        return f"held: {', '.join(names)}; so the driver's packages cannot all get the same version"
    return "the requested packages conflict with those of the installed driver"


def _release_holds(snapshot: Snapshot) -> Iterable[Fix]:
    if held := sorted(_held_drivers(snapshot)):
        yield remedies.unhold(snapshot, "release the hold, if the package may change", *held)
        if snapshot.view(package_manager) == "apt":
            yield run_step(
                "install", "complete the packages that depend on each other", Shell("sudo apt-get -f install")
            )
    elif is_supported(snapshot):
        # One transaction: the node has a driver all the time.
        text = "remove the packages of other branches and install the one that fits; gpunode names each before it does"
        yield setup_step(snapshot, "remove", text)
        return
    else:
        text = "let the package manager replace what is installed; it names each package before it does"
        yield remedies.align_versions(snapshot, "remove", text)
    yield remedies.install_driver(snapshot, "then install the desired branch")


def _use_one_origin(snapshot: Snapshot) -> Iterable[Fix]:
    yield remedies.use_one_archive(snapshot)
    yield remedies.install_driver(snapshot, "install every package of the driver in the same version")


_OWNED: Final = Pattern(r"which is also in package (?P<deb>[\w.+-]+)|conflicts with file from package (?P<rpm>\S+)")


def _overwrite_file(snapshot: Snapshot) -> Iterable[Fix]:
    match = snapshot.match(_OWNED)
    owner = (match["deb"] or match["rpm"]) if match else ""
    if snapshot.view(package_manager) == "apt":
        force = Shell("sudo apt-get -o Dpkg::Options::=--force-overwrite -f install")
        yield run_step("install", "finish the installation with the newer package's file", force)
        if is_driver_package(owner):
            yield uninstall(snapshot, "then remove the other branch", owner)
    elif is_driver_package(owner):
        yield uninstall(snapshot, "remove the package that has the file", owner)
    else:
        text = "install both packages from one repository: disable the other one, or exclude the driver there"
        yield manual_step("configure", text)


RULES: Final = (
    Rule(
        cause="held-or-broken-packages",
        layer="package",
        disruption="none",
        share=1.3,
        decisive=unless(all_of(_HELD, _UNMET), *_OTHERS[:2]),
        typical=any_of(
            unless(_UNMET, _TWO_ORIGINS, *_OTHERS),
            unless(all_of(command_run(r"showhold|versionlock"), _HELD), symptoms.DRIVER_WORKS, symptoms.MISMATCH),
        ),
        symptoms=(symptoms.PACKAGES_BROKEN, _UNMET),
        context=_HELD,
        may_be_normal=True,
        summary=_why_held,
        look_at=(Shell("apt-mark showhold"), Shell("apt-get -s install nvidia-driver")),
        remedy=_release_holds,
        explains=frozenset({"driver-library-mismatch-partial-upgrade"}),
    ),
    Rule(
        cause="mixed-repo-packages",
        layer="package",
        disruption="none",
        share=1.2,
        decisive=any_of(_BETWEEN, _TWO_ORIGINS, unless(_MIXED, _UNMET, symptoms.MISMATCH)),
        symptoms=(symptoms.PACKAGES_BROKEN, symptoms.MISMATCH, _MIXED, _BETWEEN),
        latent=unless(symptoms.DRIVER_WORKS, _UNMET),
        summary="packages of one driver come from two repositories in different versions, and neither set is complete",
        look_at=(Shell("apt-cache policy 'nvidia-*' 'libnvidia-*'"),),
        remedy=_use_one_origin,
        explains=MISMATCHES | {"held-or-broken-packages", "dpkg-unconfigured-packages", "package-file-conflict"},
    ),
    Rule(
        cause="package-file-conflict",
        layer="package",
        disruption="none",
        decisive=_SAME_FILE,
        symptoms=(symptoms.PACKAGES_BROKEN, _SAME_FILE),
        summary="two packages contain the same file, so the second was not unpacked",
        look_at=(Shell("dpkg -l | grep nvidia"),),
        remedy=_overwrite_file,
        explains=frozenset({"dpkg-unconfigured-packages", "held-or-broken-packages"}) | MISMATCHES,
    ),
)
