"""Packages that do not go together: held ones, those of two branches or packagers, and two with one file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import remedies, symptoms
from gpunode.diagnoses.addresses import DPKG, DRIVER_GUIDE
from gpunode.diagnoses.chains import MISMATCHES
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.model import Citation, Family, Fix, Proof, Rule, Severity, Verdict, only
from gpunode.diagnoses.remedies import by_hand, run, setup_step, takes_gpunode, uninstall
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

# --- dependencies that cannot be met ------------------------------------------------------------------------------

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
_RPM_OTHER: Final = Pattern(
    r"package (?P<one>\S*nvidia\S*) (?:from \S+ )?(?:conflicts with|obsoletes) \S+ provided by "
    r"(?P<other>\S*nvidia\S*)"
)
_RPM_BOTH: Final = Pattern(r"cannot install both (?P<one>\S*nvidia\S*) (?:from \S+ )?and (?P<other>\S*nvidia\S*)")


def _dependencies(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """What keeps the package manager from its work: a hold, versions of two packagers, or the branch that is there."""
    said = snapshot.said(_BROKEN)
    concerned = any(_DRIVERS.search(snapshot.text_of(one)) for one in said)
    holds = {name: place for name, place in packages.holds(snapshot).items() if is_drivers(name)}
    mixed = _mixed(snapshot)
    if not said or not concerned:
        if between := _between_packagers(snapshot):
            yield "mixed-repo-packages", Proof(_mixed_summary(snapshot), between)
            return
        if mixed and not driver.mismatches(snapshot):
            # It works as long as nothing is upgraded.
            severity: Severity = "warning" if driver.works(snapshot) else "error"
            yield "mixed-repo-packages", Proof(_mixed_summary(snapshot), mixed, severity=severity)
        return
    if between := _between_packagers(snapshot):
        yield "mixed-repo-packages", Proof(_mixed_summary(snapshot), (*between, *said))
        return
    if snapshot.says(_OVERWRITE) or any(one.is_half_done for one in snapshot.view(packages.packages).values()):
        return  # apt complains of what dpkg left behind
    if holds:
        names = ", ".join(sorted(holds))
        what = (
            f"{names} {'is' if len(holds) == 1 else 'are'} on hold, so the driver's packages cannot come to one version"
        )
        yield "held-or-broken-packages", Proof(what, (*holds.values(), *said), ruled_out=("a conflict of branches",))
    elif not driver.strayed(snapshot):  # else what stands in the way is there, and no repository offers it
        yield _offered(snapshot, said, mixed)


def _offered(snapshot: Snapshot, said: tuple[Citation, ...], mixed: tuple[Citation, ...]) -> tuple[str, Verdict]:
    """Which repository's packages do not fit those that are installed."""
    if lines := (_differing(snapshot) or mixed):
        return "mixed-repo-packages", Proof(_mixed_summary(snapshot), (*lines, *said))
    if foreign := snapshot.said(_FOREIGN):
        what = "the driver's packages come from a repository for another release than this one, with a newer C library"
        return "mixed-repo-packages", Proof(what, (*foreign, *said))
    old = _other_branch(snapshot)
    what = "the packages asked for cannot stand beside those that are installed"
    if old:
        branch = old[0].upstream.split(".")[0]
        what = f"the packages of branch {branch} are installed and keep another branch's from coming"
    none = _shows_no_holds(snapshot)
    ruled_out = ("a hold: apt-mark shows none",) if none else ()
    certain = bool(old) or none or snapshot.says(_HELD_SAID)
    cited = (*said, *(one.citation for one in old))
    return "held-or-broken-packages", Proof(what, cited, "certain" if certain else "likely", ruled_out)


def _shows_no_holds(snapshot: Snapshot) -> bool:
    asked = [item for item in snapshot.of("packages") if "showhold" in item.source.words]
    return bool(asked) and not packages.holds(snapshot)


def _differing(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The lines in which one package of a branch is wanted in another version of it than the one that is chosen."""
    return tuple(
        cite(item, item.number_at(match.start()))
        for item in snapshot.of("package-output", "text", "application", "journal")
        for match in _WANTS.finditer(item.text)
        if is_drivers(match["name"]) and _upstream(match["wanted"]) != _upstream(match["offered"])
    ) or (*snapshot.said(_RPM_BOTH), *_two_packagers(snapshot), *_two_origins(snapshot))


def _two_packagers(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The lines in which rpm packages conflict that RPM Fusion calls otherwise than NVIDIA and negativo17."""
    match = snapshot.match(_RPM_OTHER)
    fusion = [bool(_FUSION.match(match[name])) for name in ("one", "other")] if match else []
    return snapshot.said(_RPM_OTHER) if len(set(fusion)) == 2 else ()


def _two_origins(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The installed driver packages of rpm repositories that each call them their own way, whatever their versions."""
    installed = (one for one in snapshot.view(packages.packages).values() if one.is_installed and one.origin)
    ours = (one for one in installed if is_drivers(one.name) and _BRANCH.match(one.upstream))
    found = [one for one in ours if archives.packager(one)]
    return tuple(one.citation for one in found) if len({archives.packager(one) for one in found}) > 1 else ()


_BRANCH: Final = Pattern(r"\d{3}\.\d")
_FUSION: Final = Pattern(r"xorg-x11-drv-nvidia|akmod-nvidia")


def _upstream(version: str) -> str:
    return version.split(":")[-1].split("-")[0].split("~")[0]


def _mixed(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The installed driver packages, where two packagers' stand side by side in different versions."""
    found = [one for one in driver.packaged(snapshot) if one.is_installed and archives.packager(one)]
    packagers = {archives.packager(one) for one in found}
    versions = {(one.upstream.split(".")[0], one.upstream) for one in found}
    of_one_branch = len({branch for branch, _ in versions}) < len(versions)
    return tuple(one.citation for one in found) if len(packagers) > 1 and of_one_branch else ()


_UNPACKED: Final = Pattern(r"[/ ](?P<name>[a-z][\w.+-]*)_(?P<version>[\w.+~%:-]+)_(?:amd64|arm64|all)\.deb")


def _between_packagers(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The lines of dpkg's in which two packagers' packages of one version have a file in common."""
    match = snapshot.match(_OVERWRITE)
    owner, version = (match["owner"] or "", match["theirs"] or "") if match else ("", "")
    unpacked = snapshot.match(_UNPACKED)
    if not version or unpacked is None or not is_drivers(owner) or not is_drivers(unpacked["name"]):
        return ()
    both = {archives.packager_of(version), archives.packager_of(unpacked["version"])} - {""}
    installed = (one for one in snapshot.view(packages.packages).values() if one.is_installed)
    listed = {archives.packager(one) for one in installed if is_drivers(one.name)}
    if not both <= listed:
        return ()  # one package that is new, not two sets that are there
    is_one = _upstream(version) == _upstream(unpacked["version"].replace("%3a", ":"))
    return (*snapshot.said(_UNPACKED), *snapshot.said(_OVERWRITE)) if len(both) == 2 and is_one else ()


def _mixed_summary(snapshot: Snapshot) -> str:
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


def _release(snapshot: Snapshot) -> Iterable[Fix]:
    holds = sorted(name for name in packages.holds(snapshot) if is_drivers(name))
    if holds:
        yield remedies.unhold(snapshot, "release the hold, if it may be changed", *holds)
        if snapshot.view(package_manager) == "apt":
            yield run("install", "bring what depends on each other to one version", Shell("sudo apt-get -f install"))
    elif old := _other_branch(snapshot):
        yield uninstall(snapshot, "remove the other branch's packages, whole", *sorted(one.name for one in old))
    elif takes_gpunode(snapshot):
        # One transaction: the node has a driver all the time.
        text = "remove the packages of other branches and install the one that fits; gpunode names each before it does"
        yield setup_step(snapshot, "remove", text)
        return
    elif snapshot.view(package_manager) == "apt":
        yield run(
            "remove", "let apt take away what stands in the way; it names it first", Shell("sudo apt-get -f install")
        )
    else:
        text = "let the package manager replace what is installed; it names each package before it does"
        yield remedies.one_version(snapshot, "remove", text)
    yield remedies.driver(snapshot, "then install the branch that is wanted")


def _one_origin(snapshot: Snapshot) -> Iterable[Fix]:
    yield remedies.one_archive(snapshot)
    yield remedies.driver(snapshot, "bring every package of the driver to its version")


# --- one file, two packages ---------------------------------------------------------------------------------------


def _file_conflict(snapshot: Snapshot) -> Iterator[Verdict]:
    said = snapshot.said(_OVERWRITE)
    match = snapshot.match(_OVERWRITE)
    if not said or match is None or not _DRIVERS.search(" ".join(snapshot.text_of(one) for one in said)):
        return
    file = match["file"] or match["rpm"] or match["arch"] or match["unpacked"] or "a file"
    owner = match["owner"] or match["old"] or match["by"]
    yield Proof(f"two packages bring {file}{f'; {owner} has it already' if owner else ''}", said)


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
            symptoms=(symptoms.PACKAGES_BROKEN,),
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
            check=only("held-or-broken-packages", _dependencies),
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
            symptoms=(
                symptoms.PACKAGES_BROKEN,
                symptoms.MISMATCH,
            ),
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
            check=only("mixed-repo-packages", _dependencies),
            remedy=_one_origin,
            explains=MISMATCHES | {"held-or-broken-packages", "dpkg-unconfigured-packages", "package-file-conflict"},
        ),
        Rule(
            cause="package-file-conflict",
            layer="package",
            storey="packages",
            disruption="none",
            title="two packages bring the same file",
            symptoms=(symptoms.PACKAGES_BROKEN,),
            look_at=(Shell("dpkg -l | grep nvidia"),),
            story=(
                "A file belongs to one package. Where packages of two driver branches, or of two packagers, are "
                "installed side by side without declaring a conflict, the second is unpacked up to the first file that "
                "another owns, and there dpkg or rpm stops: «trying to overwrite …, which is also in package …». What "
                "depends on it stays half installed."
            ),
            sources=("https://github.com/pop-os/shop/issues/121", DPKG),
            check=_file_conflict,
            remedy=_overwrite,
            explains=frozenset({"dpkg-unconfigured-packages", "held-or-broken-packages"}) | MISMATCHES,
        ),
    ),
)
