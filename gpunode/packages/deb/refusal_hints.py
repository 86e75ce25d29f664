"""Reasons why apt refuses a transaction, from its messages in the C locale, and what to do about each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase

from gpunode.catalog.conflicts import driver_packages
from gpunode.catalog.gpudirect import missing_source_hint, packages_not_found
from gpunode.command import command
from gpunode.facts.model import Facts, Kernels, value_or
from gpunode.facts.patterns import Pattern
from gpunode.package_id import PackageId
from gpunode.packages.deb import preferences
from gpunode.packages.deb.apt_output import find_named_packages, versions_not_found
from gpunode.packages.deb.version import is_older
from gpunode.wording import join_names

_KERNEL_HEADERS_PACKAGE = Pattern(r"(?:linux|proxmox|pve)-headers-(?:\d[\w.+-]*\w|[\w-]+(?=' was not found))")
_DOWNGRADED_PACKAGES_LIST = Pattern(r"The following packages will be DOWNGRADED:\n((?: .*(?:\n|\Z))+)")
_CHANGED_HELD_PACKAGES_LIST = Pattern(r"The following held packages will be changed:\n((?: .*(?:\n|\Z))+)")
# apt-private/private-output.cc.
_UNWANTED_DEPENDENCY = Pattern(r"Depends: ([a-z0-9][\w.+-]+)(?: \([^)\n]*\))? but it is not going to be installed")
# apt-private/private-install.cc.
_UNMET_DEPENDENCIES_MESSAGE = Pattern(r"Unmet dependencies\. Try")


def hint_on_refusal(refusal: str, facts: Facts, offered: Mapping[PackageId, Collection[str]]) -> str:
    """Return what to do about a refusal that persists with a fresh index.

    ``offered``: the versions in the index of packages whose requested version was not found.
    """
    return (
        _hint_on_held_packages(refusal)
        or _hint_on_downgrades(refusal, facts)
        or _hint_on_missing_headers(refusal, facts)
        or _hint_on_lost_version(refusal, facts, offered)
        or missing_source_hint(refusal)
        or _hint_on_unmet_dependencies(refusal)
        or _hint_on_foreign_preferences(refusal, facts)
        or _hint_on_missing_repository(refusal)
        or _hint_on_missing_cuda_release(refusal)
        or _hint_on_unwanted_dependencies(refusal)
        or "the index is fresh, so a source is missing, or a hold or a pin prevents it; check:\n"
        "  apt-cache policy\n  apt-mark showhold\nthen run the same command again"
    )


def _hint_on_unwanted_dependencies(problem: str) -> str:
    """Return what to do about dependencies that apt refuses to install, such as a held one that is not installed."""
    names = sorted(set(_UNWANTED_DEPENDENCY.findall(problem)))
    return (
        f"a hold, a pin or a conflict keeps {', '.join(names)} out; what is held, and what a pin says:\n"
        f"apt-mark showhold\n{command('apt-cache', 'policy', *names)}\nif it is a hold:\n"
        f"{command('sudo', 'apt-mark', 'unhold', *names)}\nthen run the same command again"
        if names
        else ""
    )


def _hint_on_held_packages(problem: str) -> str:
    """Return how to release packages that somebody holds, even if they are not installed."""
    match = _CHANGED_HELD_PACKAGES_LIST.search(problem)
    names = match[1].split() if match else []
    unhold = command("sudo", "apt-mark", "unhold", *names)
    return (
        f"somebody put them on hold; gpunode breaks no holds:\n{unhold}\nthen run the same command again"
        if names
        else ""
    )


def _hint_on_downgrades(problem: str, facts: Facts) -> str:
    """Return what to do about packages that would be downgraded, and that no step named."""
    match = _DOWNGRADED_PACKAGES_LIST.search(problem)
    if match is None or "-y was used without --allow-downgrades" not in problem:
        return ""
    names = match[1].split()
    packages = value_or(facts.packages, {})
    versions = (f"{name} {state.version}" for name in names if (state := packages.get(PackageId.of(name))))
    purge = command("sudo", "apt-get", "purge", *names)
    return (
        f"{', '.join(versions)}: newer than what the planned packages need, and maybe made by hand; if nothing "
        f"else needs it:\n{purge}\nthen run the same command again"
    )


def _hint_on_foreign_preferences(problem: str, facts: Facts) -> str:
    """Return which of the user's own preferences concern the packages that a refusal names."""
    places = ", ".join(preferences.list_foreign_records(facts, find_named_packages(problem)))
    return (
        f"the index is fresh, and {places} decides which of these packages apt may take: remove or correct "
        "that pin, then run the same command again"
        if places
        else ""
    )


def _hint_on_missing_headers(problem: str, facts: Facts) -> str:
    """Return what to do when the archive lacks the headers of an installed kernel, which may be older or newer.

    Most archives have only those of their newest kernel: an upgraded node only has to be rebooted.
    """
    if (match := _KERNEL_HEADERS_PACKAGE.search(problem)) is None:
        return ""
    kernels = value_or(facts.kernels, Kernels(None, ()))
    if kernels.running and match[0].endswith(f"-{kernels.running}") and kernels.wanted[-1] != kernels.running:
        return (
            f"no source has {match[0]} any more, of the kernel that runs; {kernels.wanted[-1]} is installed and boots "
            "next: reboot, then run the command again"
        )
    versions = {str(package): f" {version}" for package, version in versions_not_found(problem)}
    return (
        f"no source has {match[0]}{versions.get(match[0], '')}: add the source that this kernel came from, or install "
        "a kernel that the sources have (apt-get install linux-image-amd64 on Debian, linux-image-generic on Ubuntu), "
        "reboot into it and remove the other; then run the command again"
    )


def _hint_on_lost_version(problem: str, facts: Facts, offered: Mapping[PackageId, Collection[str]]) -> str:
    """Return what to do when the archive lacks a version that is partly installed, and perhaps held."""
    if not (lacking := versions_not_found(problem)):
        return ""
    package, version = lacking[0]
    found = {
        package: state for package, state in value_or(facts.packages, {}).items() if fnmatchcase(state.version, version)
    }
    versions = sorted(offered.get(package, ()))
    if not found or not any(is_older(version.removesuffix("-*"), other) for other in versions):
        offers = f"; they have {join_names(versions)}" if versions else ""
        return f"no source has {package} {version}{offers}: add a source, or name another version in the recipe"
    held = sorted(str(package) for package, state in found.items() if state.held)
    unhold = f"{command('sudo', 'apt-mark', 'unhold', *held)}\n" if held else ""
    by = f", the version of {', '.join(held)}, which somebody holds" if held else ""
    return (
        f"no source has {package} {version} any more{by}; --upgrade installs the newest version of all that belongs "
        f"together:\n{unhold}add --upgrade to the same command"
    )


def _hint_on_missing_cuda_release(problem: str) -> str:
    """Return what to do if no source has a CUDA release: NVIDIA's repository of a distribution lacks older ones."""
    from gpunode.catalog.cuda import release_of_toolkit_package  # only where apt refuses

    if not (found := sorted(filter(release_of_toolkit_package, packages_not_found(problem)))):
        return ""
    listing = command("apt-cache", "search", "--names-only", "^cuda-toolkit-[0-9]+-[0-9]+$")
    return (
        f"no source has {found[0]}. With --only, name the step cuda-repository, too. Otherwise NVIDIA's repository for "
        f"this distribution lacks that release; this lists those that it has:\n{listing}\n"
        "name one of them that `gpunode gpus` shows for your GPU (--cuda-toolkit, or version under [cuda]); if there "
        "is none, leave the toolkit out and compile in one of NVIDIA's containers"
    )


def _hint_on_missing_repository(problem: str) -> str:
    """Return which step adds the archive of packages that no source has: a run of selected steps may lack it."""
    from gpunode.distros.family import TOOLKIT_PACKAGES  # only where apt refuses

    # Ubuntu's archive alone has such names.
    names = (name for name in packages_not_found(problem) if not name.startswith("linux-") and "-server" not in name)
    missing = {*map(PackageId, names)}
    steps = {"toolkit-repository": missing.intersection(TOOLKIT_PACKAGES), "cuda-repository": driver_packages(missing)}
    step, found = next(((step, sorted(found)) for step, found in steps.items() if found), ("", []))
    return (
        f"no source has {found[0]}: the step {step} adds its archive; name that step, too (--only {step}), or take it "
        "out of skip. If it is among the steps, the archive lacks the package"
        if found
        else ""
    )


def _hint_on_unmet_dependencies(problem: str) -> str:
    """Return what to do about packages that were broken before, and that gpunode did not all name to apt."""
    if _UNMET_DEPENDENCIES_MESSAGE.search(problem) is None:
        return ""
    return (
        "packages of this node have unmet dependencies (`apt-get check` names them), and apt installs nothing until "
        "they are met; gpunode repairs only those of driver, toolkit, headers and runtime:\n"
        "  sudo apt-get --fix-broken install\nthen run the same command again"
    )
