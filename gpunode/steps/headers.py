"""Kernel headers: for the running kernel and the next to boot, and the meta package that brings those of later ones."""

from __future__ import annotations

from gpunode.change import KnownAfter, PackageChange
from gpunode.distros.family import Family
from gpunode.facts.model import Facts, Kernels, known, need
from gpunode.outcome import Outcome, Planned, Refusal, Step
from gpunode.package_id import PackageId
from gpunode.recipe import Recipe
from gpunode.steps.families import family_of, wants_driver
from gpunode.steps.installed_driver import preexisting_driver
from gpunode.steps.marks import set_manual, why_manual


def header_packages(family: Family, facts: Facts) -> tuple[PackageId, ...]:
    """Return the header packages of the kernels that must have a driver, and the one for later kernels."""
    kernels = known(facts.kernels, Kernels(None, ()))
    found = [family.headers(kernel) for kernel in kernels.wanted]
    meta = family.headers_meta(kernels.wanted[-1], known(facts.packages, {})) if kernels.wanted else None
    return (*found, PackageId(meta)) if meta else tuple(found)


def plan(recipe: Recipe, facts: Facts) -> Outcome:
    """DKMS finds a build tree for every kernel that must have the driver, and for those that upgrades bring."""
    if not wants_driver(recipe, facts):
        return Planned((), "this driver is not managed by gpunode")
    if (preexisting := preexisting_driver(recipe, facts)) and preexisting.prebuilt:
        return Planned((), "the driver's modules come prebuilt in packages")
    found = family_of(facts)
    if isinstance(found, Refusal):
        return found
    kernels = need(facts.kernels, "which kernels are installed")
    if not kernels.wanted:
        return Refusal(
            what="no kernel is installed in this image",
            why="/boot holds no vmlinuz, so there is nothing to build the driver for",
            hint="install the kernel package of the image first (linux-image-amd64, linux-image-generic)",
        )
    packages = need(facts.packages, "which packages are installed")
    built_for = need(facts.headers, "which kernels have headers")
    wanted = [found.headers(kernel) for kernel in kernels.wanted if kernel not in built_for]
    followed = found.headers_meta(kernels.wanted[-1], packages)
    meta = PackageId(followed) if followed else None
    if meta:
        wanted.append(meta)
    missing = [one for one in dict.fromkeys(wanted) if one not in packages or packages[one].config_files_only]
    listed = " and ".join(kernels.wanted)
    marked = set_manual(packages, [meta] if meta and meta not in missing else [])
    held = meta is not None and meta not in missing and packages[meta].held
    notes = (f"{meta} is held, so later kernels come without headers and without a driver",) if held else ()
    if not missing:
        return Planned(marked, why_manual(marked, facts) if marked else f"headers for {listed} are installed", notes)
    changes = tuple(PackageChange(one, packages.get(one), KnownAfter(why="headers")) for one in missing)
    reason = f"the driver's module is built for {listed}"
    return Planned(
        (*changes, *marked), reason + (f"; {meta} keeps later kernels covered" if meta in missing else ""), notes
    )


HEADERS = Step("headers", "kernel headers", "packages", plan, for_driver=True)
