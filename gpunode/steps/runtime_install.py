"""The container runtime itself: installed from the distribution where it is missing, never replaced."""

from __future__ import annotations

from collections.abc import Mapping

from gpunode.change import KnownAfter, PackageChange, PackageState
from gpunode.errors import Refused
from gpunode.facts.model import Facts, Known, known, need
from gpunode.outcome import Outcome, Planned, Refusal, Step, StepPackages
from gpunode.package_id import PackageId
from gpunode.packages import system
from gpunode.recipe import Recipe
from gpunode.runtimes import RUNTIMES, Runtime, runtime
from gpunode.runtimes.installations import chosen, has_products
from gpunode.steps.installed_driver import matches
from gpunode.steps.locked import astray, held_elsewhere, wanted_state
from gpunode.steps.marks import set_manual, why_manual
from gpunode.steps.selection import not_locked


def plan(recipe: Recipe, facts: Facts) -> Outcome:
    """Some package that provides the runtime is installed."""
    if recipe.runtime.name == "none":
        return Planned((), "the recipe has no container runtime")
    try:
        row = chosen(runtime(recipe.runtime.name), facts).row
    except Refused as refusal:
        return Refusal(refusal.what, refusal.why, refusal.hint)
    if row.product:
        return Planned((), f"{row.product} brings its own {row.id}")
    packages = need(facts.packages, "which packages are installed")
    for package in map(PackageId, row.packages):
        if matches(packages.get(package), ""):
            return _installed(recipe, facts, package, packages)
    unit = facts.unit(row.unit)
    if isinstance(unit, Known) and unit.value.exists and not unit.value.masked:
        return Planned((), f"{row.unit} is installed, but not from a package; it is not replaced")
    return _missing(recipe, facts, row, packages)


def _missing(recipe: Recipe, facts: Facts, row: Runtime, packages: Mapping[PackageId, PackageState]) -> Outcome:
    """The distribution's package of a runtime that is not here."""
    if _has_kind(recipe) and known(facts.rootless_docker, default=False):
        return _rootless(facts)
    if row.from_elsewhere:
        return Refusal(
            what=f"{row.id} is not installed",
            why="no supported distribution packages it",
            hint=f"install it from {row.from_elsewhere}; then run the command again",
        )
    if recipe.runtime.install == "never":
        product = ", or k3s or RKE2, which bring theirs" if has_products(row) else ""
        return Refusal(
            what=f"{row.id} is not installed",
            why='the recipe says runtime.install = "never"',
            hint=f'install {" or ".join(row.packages)}{product}, or set runtime.install = "if-missing"',
        )
    first = PackageId(row.packages[0])
    if recipe.lock is not None and first not in recipe.lock.packages:
        return not_locked(recipe.lock, first)
    reason = f"{row.id} is missing; the distribution's package will be installed"
    after = wanted_state(recipe, first, KnownAfter(why="runtime"))
    return Planned((PackageChange(first, packages.get(first), after),), reason)


def _rootless(facts: Facts) -> Refusal:
    # nvkind issue 48.
    install = system(facts).install(("docker.io",))
    return Refusal(
        what="docker is rootless here, so a kind cluster gets no GPU",
        why="a user runs dockerd (/run/user/*/docker.sock), and docker.service is missing; without root it cannot give "
        "the cluster's nodes devices",
        hint=f"install docker for the whole machine, and use it for kind:\nsudo {install}\ndocker context use default",
    )


def _has_kind(recipe: Recipe) -> bool:
    return recipe.kubernetes is not None and recipe.kubernetes.kind.workers > 0


def _installed(recipe: Recipe, facts: Facts, package: PackageId, packages: Mapping[PackageId, PackageState]) -> Outcome:
    """The package that provides the runtime, in the locked version where there is one."""
    present, lock = packages[package], recipe.lock
    if lock is not None and package not in lock.packages:
        return not_locked(lock, package)
    if lock is None or not astray(recipe, packages, (package,)):
        marked, installed = set_manual(packages, (package,)), f"{package} {present.version} is installed"
        return Planned(marked, f"{installed}; {why_manual(marked, facts)}" if marked else installed)
    if present.held:
        return held_elsewhere(facts, (package,), lock.file)
    after = wanted_state(recipe, package, KnownAfter(why="runtime"))
    return Planned((PackageChange(package, present, after),), f"the lock holds {package} at another version")


def _installed_package(recipe: Recipe, facts: Facts) -> tuple[PackageId, ...]:
    """Return the package that provides the recipe's runtime on this node."""
    packages = need(facts.packages, "which packages are installed")
    named = runtime(recipe.runtime.name).packages if recipe.runtime.name != "none" else ()
    return tuple(one for one in map(PackageId, named) if matches(packages.get(one), ""))[:1]


RUNTIME_INSTALL = Step(
    "runtime-install",
    "container runtime",
    "packages",
    plan,
    packages=StepPackages(
        _installed_package, {PackageId(name) for row in RUNTIMES for name in row.packages}.__contains__
    ),
)
