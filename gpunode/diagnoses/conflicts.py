"""Packages that do not go together: held ones, those of two branches or packagers, and two with one file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import remedies, symptoms
from gpunode.diagnoses.addresses import DPKG, DRIVER_GUIDE
from gpunode.diagnoses.chains import MISMATCHES
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.model import Citation, Family, Fix, Rule, Sign
from gpunode.diagnoses.remedies import by_hand, run, setup_step, takes_gpunode, uninstall
from gpunode.diagnoses.signs import all_of, any_of, fact, holds, line, unless
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.diagnoses.views import archives, driver, packages
from gpunode.diagnoses.views.history import is_drivers
from gpunode.diagnoses.views.system import package_manager
from gpunode.facts.patterns import Pattern

_OVERWRITE: Final = Pattern(
    r"trying to overwrite (?:shared )?['‘\"“](?P<file>[^'’\"”]+)['’\"”], "
    r"which is (?:also in package (?P<owner>\S+)(?: (?P<theirs>\d\S*))?|different)"
    r"|file (?P<rpm>/\S+) (?:from install of (?P<new>\S+) )?conflicts (?:with file from package (?P<old>\S+)|between)"
    r"|dpkg-divert: (?:error: )?[`'‘\"].{5,200}clashes with"
    r"|\(--unpack\): .{0,60}?['‘«„\"](?P<unpacked>/(?:usr|lib|etc|opt)/[^'’»“\"]+)['’»“\"]"
    r"|: (?P<arch>/\S+) exists in filesystem(?: \(owned by (?P<by>\S+)\))?"
)
_DRIVERS: Final = Pattern(r"nvidia|cuda|libcuda", re.IGNORECASE)

_BROKEN: Final = Pattern(
    r"held broken packages|Unmet dependencies|unmet dependencies|requested an impossible situation"
    r"|Depends: \S+ .{0,80}but .{1,60}(?:is to be installed|is installed|not going to be installed|not installable)"
    r"|Held packages were changed|conflicting requests|cannot install (?:both|the best)|nothing provides \S*nvidia"
    r"|filtered out by modular filtering|Problem: .{0,80}nvidia|Conflicts: \S*nvidia\S*"
    r"|package \S*nvidia\S* (?:from \S+ )?conflicts with|Processing Conflict: "
)
_WANTS: Final = Pattern(
    r"(?:(?<![\w.+-])(?P<by>[\w.+-]+)(?::\w+)?\s*: )?(?:Pre)?Depends: (?P<name>[a-z0-9][\w.+-]*)(?::\w+)? "
    r"\((?P<op>[<>=]{1,2}) (?P<wanted>[^)]{1,200})\) but (?P<offered>\d\S*) is (?:to be )?installed"
)
_VERSIONS: Final = Pattern(r"\b\d{3}\.\d{2,3}(?:\.\d{2})?-[\w.~+]+")
_HELD_SAID: Final = Pattern(r"Held packages were changed|following held packages will be changed")
# A driver built for a release that has a newer C library than this one.
_FOREIGN: Final = Pattern(
    r"Depends: (?:libc6|libssl\d\S*|libstdc\+\+6|libgcc-s1) \(>= [^)]+\) "
    r"but (?:\S+ is to be installed|it is not installable)"
)
# RPM Fusion calls the driver otherwise than NVIDIA and negativo17 do.
_FUSIONS: Final = r"(?:xorg-x11-drv-nvidia|akmod-nvidia)"
_RPM: Final = line(
    r"cannot install both \S*nvidia\S* (?:from \S+ )?and \S*nvidia"
    rf"|package {_FUSIONS}\S* [^\n]{{0,80}}(?:conflicts with|obsoletes) \S+ provided by (?!{_FUSIONS})\S*nvidia"
    rf"|package (?!{_FUSIONS})\S*nvidia\S* [^\n]{{0,80}}(?:conflicts with|obsoletes) \S+ provided by {_FUSIONS}"
)


def _concerning(pattern: Pattern) -> Sign:
    """The lines with ``pattern``, where the text in which they stand speaks of the driver."""

    def read(snapshot: Snapshot) -> tuple[Citation, ...]:
        said = snapshot.said(pattern)
        return said if any(_DRIVERS.search(snapshot.text_of(one)) for one in said) else ()

    return fact(read)


def _holds(snapshot: Snapshot) -> dict[str, Citation]:
    return {name: place for name, place in packages.holds(snapshot).items() if is_drivers(name)}


def _shows_no_holds(snapshot: Snapshot) -> bool:
    asked = [item for item in snapshot.of("packages") if "showhold" in item.source.words]
    return bool(asked) and not packages.holds(snapshot)


def _wants_another(snapshot: Snapshot) -> Iterator[Citation]:
    """The lines in which one package of a branch is wanted in another version of it than the one that is chosen."""
    for item in snapshot.of("package-output", "text", "application", "journal"):
        for match in _WANTS.finditer(item.text):
            if is_drivers(match["name"]) and _upstream(match["wanted"]) != _upstream(match["offered"]):
                yield cite(item, item.number_at(match.start()))


def _upstream(version: str) -> str:
    return version.split(":")[-1].split("-")[0].split("~")[0]


def _of_two(snapshot: Snapshot) -> list[packages.Package]:
    """The installed driver packages whose packager is known, where there are two."""
    installed = (one for one in snapshot.view(packages.packages).values() if one.is_installed)
    found = [one for one in installed if is_drivers(one.name) and archives.packager(one)]
    return found if len({archives.packager(one) for one in found}) > 1 else []


def _mixed(snapshot: Snapshot) -> Iterator[Citation]:
    """The packages of two packagers, where they stand side by side in different versions of one branch."""
    found = [one for one in _of_two(snapshot) if _BRANCH.match(one.upstream)]
    versions = {(one.upstream.split(".")[0], one.upstream) for one in found}
    if len({branch for branch, _ in versions}) < len(versions):
        yield from (one.citation for one in found)


_BRANCH: Final = Pattern(r"\d{3}\.\d")


def _mixed_summary(snapshot: Snapshot) -> str:
    if snapshot.view(_NEWER_LIBC) and not snapshot.view(_DIFFERING):
        return "the driver's packages come from a repository for another release than this one, with a newer C library"
    installed = [one.version for one in driver.packaged(snapshot)]
    named = [version for item in snapshot.of("package-output", "text") for version in _VERSIONS.findall(item.text)]
    by = dict.fromkeys(name for name in map(archives.packager_of, (*installed, *named)) if name)
    who = " and ".join(by) if len(by) > 1 else "two repositories"
    return f"packages of one driver come from {who} in different versions, and neither set is complete"


def _other_branch(snapshot: Snapshot) -> tuple[packages.Package, ...]:
    """The installed driver packages, where none of them is among the names that were asked for."""
    asked = " ".join(item.text for item in snapshot.of("package-output", "text"))
    found = [one for one in driver.packaged(snapshot) if one.is_installed]
    return tuple(one for one in found if one.name not in asked)


def _why_held(snapshot: Snapshot) -> str:
    if names := sorted(_holds(snapshot)):
        are = "is" if len(names) == 1 else "are"
        return f"{', '.join(names)} {are} on hold, so the driver's packages cannot come to one version"
    if old := _other_branch(snapshot):
        branch = old[0].upstream.split(".")[0]
        return f"the packages of branch {branch} are installed and keep another branch's from coming"
    return "the packages asked for cannot stand beside those that are installed"


_UNMET: Final = _concerning(_BROKEN)
_HELD: Final = fact(lambda snapshot: _holds(snapshot).values())
_TWO: Final = fact(lambda snapshot: (one.citation for one in _of_two(snapshot)))
_RPMS_OF_TWO: Final = fact(lambda snapshot: (one.citation for one in _of_two(snapshot) if one.origin))
_DIFFERING: Final = any_of(fact(_wants_another), _RPM, _RPMS_OF_TWO)
_MIXED: Final = fact(_mixed)
_NEWER_LIBC: Final = fact(lambda snapshot: snapshot.said(_FOREIGN))
_SAME_FILE: Final = _concerning(_OVERWRITE)
_BETWEEN: Final = all_of(_TWO, _SAME_FILE)
_LEFT_HALF: Final = fact(
    lambda snapshot: (one.citation for one in snapshot.view(packages.packages).values() if one.is_half_done)
)
# apt complains of what dpkg left behind, or what stands in the way is there and no repository offers it.
_OTHERS: Final = (_SAME_FILE, _LEFT_HALF, fact(lambda snapshot: (one.citation for one in driver.strayed(snapshot))))
_TWO_ORIGINS: Final = unless(all_of(any_of(_DIFFERING, _MIXED, _NEWER_LIBC), _UNMET), _HELD, *_OTHERS)
_OTHER_BRANCH: Final = any_of(
    fact(lambda snapshot: (one.citation for one in _other_branch(snapshot))),
    holds(_shows_no_holds, "apt-mark shows no hold"),
    fact(lambda snapshot: snapshot.said(_HELD_SAID)),
)


def _release(snapshot: Snapshot) -> Iterable[Fix]:
    if held := sorted(_holds(snapshot)):
        yield remedies.unhold(snapshot, "release the hold, if it may be changed", *held)
        if snapshot.view(package_manager) == "apt":
            yield run("install", "bring what depends on each other to one version", Shell("sudo apt-get -f install"))
    elif old := _other_branch(snapshot):
        yield uninstall(snapshot, "remove the other branch's packages, whole", *sorted(one.name for one in old))
    elif takes_gpunode(snapshot):
        # One transaction: the node has a driver all the time.
        text = "remove the packages of other branches and install the one that fits; gpunode names each before it does"
        yield setup_step(snapshot, "remove", text)
        return
    else:
        text = "let the package manager replace what is installed; it names each package before it does"
        yield remedies.one_version(snapshot, "remove", text)
    yield remedies.driver(snapshot, "then install the branch that is wanted")


def _one_origin(snapshot: Snapshot) -> Iterable[Fix]:
    yield remedies.one_archive(snapshot)
    yield remedies.driver(snapshot, "bring every package of the driver to its version")


def _which_file(snapshot: Snapshot) -> str:
    match = snapshot.match(_OVERWRITE)
    told = match.groupdict() if match else {}
    file = told.get("file") or told.get("rpm") or told.get("arch") or told.get("unpacked") or "the same file"
    owner = told.get("owner") or told.get("old") or told.get("by")
    return f"two packages bring {file}{f'; {owner} has it already' if owner else ''}"


def _overwrite(snapshot: Snapshot) -> Iterable[Fix]:
    match = snapshot.match(_OVERWRITE)
    owner = (match["owner"] or match["old"] or match["by"] or "") if match else ""
    if snapshot.view(package_manager) == "apt":
        force = Shell("sudo apt-get -o Dpkg::Options::=--force-overwrite -f install")
        yield run("install", "finish the installation, the newer package's file in place", force)
        if owner and is_drivers(owner):
            yield uninstall(snapshot, "then remove the branch that is not wanted", owner)
    elif owner and is_drivers(owner):
        yield uninstall(snapshot, "remove the package that has the file", owner)
    else:
        text = "take both packages from one repository: switch the other one off, or exclude the driver in it"
        yield by_hand("configure", text)


FAMILY: Final = Family(
    "conflicts",
    "packages that do not go together",
    (
        Rule(
            cause="held-or-broken-packages",
            layer="package",
            storey="packages",
            disruption="none",
            title="installed or held packages keep the driver from changing",
            share=1.3,
            decisive=any_of(
                unless(all_of(_HELD, _UNMET), _BETWEEN, *_OTHERS[:2]),
                unless(all_of(_UNMET, _OTHER_BRANCH), _BETWEEN, _TWO_ORIGINS, *_OTHERS),
            ),
            typical=unless(_UNMET, _BETWEEN, _TWO_ORIGINS, *_OTHERS),
            symptoms=(symptoms.PACKAGES_BROKEN, _UNMET),
            context=_HELD,
            may_be_normal=True,
            summary=_why_held,
            look_at=(
                Shell("apt-mark showhold"),
                Shell("apt-get -s install nvidia-driver"),
            ),
            story=(
                "A hold keeps a package at its version, and the packages of one driver branch conflict with another's. "
                "Asked for something that needs both, apt says «you have held broken packages», also where apt-mark "
                "shows no hold at all. Either the hold is released, or the old branch is removed in the step that "
                "brings the new one."
            ),
            sources=("https://github.com/NVIDIA/ansible-role-nvidia-driver/pull/33", DRIVER_GUIDE),
            remedy=_release,
            explains=frozenset({"driver-library-mismatch-partial-upgrade"}),
        ),
        Rule(
            cause="mixed-repo-packages",
            layer="package",
            storey="packages",
            disruption="none",
            title="the driver's packages come from two repositories",
            share=1.2,
            decisive=any_of(_BETWEEN, _TWO_ORIGINS, unless(_MIXED, _UNMET, symptoms.MISMATCH)),
            symptoms=(symptoms.PACKAGES_BROKEN, symptoms.MISMATCH, _MIXED, _BETWEEN, _DIFFERING),
            later=unless(symptoms.DRIVER_WORKS, _UNMET),
            summary=_mixed_summary,
            look_at=(Shell("apt-cache policy 'nvidia-*' 'libnvidia-*'"),),
            story=(
                "Distributions and NVIDIA package the same driver under the same names, with other version suffixes "
                "and dependencies: -0ubuntu0.22.04.2 is Ubuntu's, -0ubuntu1 NVIDIA's. With both repositories enabled "
                "and no preference, apt chooses the highest version package by package, and the parts want each other "
                "in versions that are not to be had together."
            ),
            sources=(
                "https://github.com/aws-samples/aws-deep-learning-ami-ubuntu-dcv-desktop/issues/18",
                DRIVER_GUIDE,
            ),
            remedy=_one_origin,
            explains=MISMATCHES | {"held-or-broken-packages", "dpkg-unconfigured-packages", "package-file-conflict"},
        ),
        Rule(
            cause="package-file-conflict",
            layer="package",
            storey="packages",
            disruption="none",
            title="two packages bring the same file",
            decisive=_SAME_FILE,
            symptoms=(symptoms.PACKAGES_BROKEN, _SAME_FILE),
            summary=_which_file,
            look_at=(Shell("dpkg -l | grep nvidia"),),
            story=(
                "A file belongs to one package. Where packages of two driver branches, or of two packagers, are "
                "installed side by side without declaring a conflict, the second is unpacked up to the first file that "
                "another owns, and there dpkg or rpm stops: «trying to overwrite …, which is also in package …». What "
                "depends on it stays half installed."
            ),
            sources=("https://github.com/pop-os/shop/issues/121", DPKG),
            remedy=_overwrite,
            explains=frozenset({"dpkg-unconfigured-packages", "held-or-broken-packages"}) | MISMATCHES,
        ),
    ),
)
