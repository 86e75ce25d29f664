"""The package changes of a stage as one transaction: simulated, compared with what was meant, made exact. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from gpunode.catalog.conflicts import driver_packages
from gpunode.change import Change, KnownAfter, PackageChange, PackageState, is_mark
from gpunode.errors import Refused
from gpunode.host.apt_plan import unplanned
from gpunode.host.port import Simulation
from gpunode.recipe import VersionLock
from gpunode.steps.selection import branch_of
from gpunode.workflow.converge import StagePlan, StepPlan

_FREE: Mapping[str, str] = MappingProxyType({})
Simulate = Callable[[Sequence[PackageChange]], Simulation | None]


@dataclass(frozen=True, slots=True)
class Transaction:
    """Package changes with exact versions.

    Attributes:
        asked: the changes that steps asked for, without those that turned out to be nothing.
        dependencies: what else the package manager installs or removes.
        problem: why the package manager would not make them, in its own words.
    """

    asked: tuple[PackageChange, ...]
    dependencies: tuple[PackageChange, ...] = ()
    problem: str = ""


def resolve(
    changes: Sequence[PackageChange],
    installed: Mapping[str, PackageState],
    simulate: Simulate,
    locked: Mapping[str, str] = _FREE,
) -> Transaction:
    """The transaction that ``changes`` amount to; as they are where there is no package manager to ask.

    Packages to purge that the new driver itself brings in another version are replaced, not purged: which they are
    only the package manager's own solver knows, so it is asked first without the purges. A dependency that the solver
    would bring in another version than ``locked`` is then named to it in that version.

    Raises:
        Refused: the solver would remove or install something that no step planned, or takes another version.
    """
    brings = [change for change in changes if change.after is not None]
    purges = [change for change in changes if change.after is None]
    first = simulate(brings) if brings else Simulation(())
    strays = _strays(first, brings, installed, locked) if first is not None else []
    if strays:
        brings += strays
        first = simulate(brings)
    if first is None:
        return Transaction(tuple(changes))
    if first.problem and not purges:
        return Transaction(tuple(changes), problem=first.problem)
    brought = {action.name for action in first.actions if action.verb == "install"}
    meant = [*brings, *(change for change in purges if change.name not in brought)]
    final = simulate(meant) if purges else first
    if final is None or final.problem:
        return Transaction(tuple(changes), problem=final.problem if final else "")
    replaced = frozenset(change.name for change in purges) & brought
    leaving = _parts_of_old(final, installed, meant) if purges else []
    wrong = unplanned([*meant, *_replacements(purges, replaced), *leaving], final)
    if wrong := (*wrong, *_of_another_branch(brings, final), *_unlocked(final, locked)):
        raise Refused(
            "apt would do something else than what was planned; no package was touched",
            why="\n".join(wrong),
            hint="look at it with `gpunode plan -v`; a hold, a pin or a third-party package usually asks for this",
        )
    return _exact(meant, installed, final, along=frozenset(change.name for change in strays))


def _replacements(purges: Sequence[PackageChange], names: frozenset[str]) -> list[PackageChange]:
    return [replace(change, after=KnownAfter(why="replaced")) for change in purges if change.name in names]


def _of_another_branch(brings: Sequence[PackageChange], simulation: Simulation) -> Iterator[str]:
    """Driver packages that come along as dependencies and are of a branch that no step chose."""
    wanted = set(_branches(brings))
    names = driver_packages(action.name for action in simulation.actions if action.verb == "install")
    for action in simulation.actions:
        branch = branch_of(action.version) if wanted and action.name in names else 0
        if branch and branch not in wanted:
            yield f"apt would install {action.name} {action.version}, which is of another driver branch"


def _strays(
    simulation: Simulation,
    brings: Sequence[PackageChange],
    installed: Mapping[str, PackageState],
    locked: Mapping[str, str],
) -> list[PackageChange]:
    """Dependencies that would come in another version than the locked one, in the locked one instead."""
    named = {change.name for change in brings}
    return [
        PackageChange(name, installed.get(name), PackageState(locked[name], auto=_comes_along(installed.get(name))))
        for name in sorted(_unlike(simulation, locked))
        if name not in named
    ]


def _unlike(simulation: Simulation, locked: Mapping[str, str]) -> dict[str, str]:
    """The locked packages that would be installed in another version, with that version."""
    return {
        action.name: action.version
        for action in simulation.actions
        if action.verb == "install" and locked.get(action.name, action.version) != action.version
    }


def _unlocked(simulation: Simulation, locked: Mapping[str, str]) -> Iterator[str]:
    for name, version in _unlike(simulation, locked).items():
        yield f"apt would install {name} {version}, where the lock holds {locked[name]}"


def _comes_along(before: PackageState | None) -> bool:
    """Whether a dependency counts as one afterwards: a new one, or one that did so before."""
    return before is None or before.config_files_only or before.auto


def _branches(brings: Sequence[PackageChange]) -> Iterator[int]:
    """The driver branches that steps chose: of a prefix, or of an exact version."""
    exact = driver_packages(change.name for change in brings if isinstance(change.after, PackageState))
    for change in brings:
        if isinstance(change.after, KnownAfter) and change.after.why == "driver":
            yield branch_of(change.after.prefix)
        elif isinstance(change.after, PackageState) and (branch := branch_of(change.after.version)):
            yield from (branch,) if change.name in exact else ()


def _parts_of_old(
    simulation: Simulation, installed: Mapping[str, PackageState], meant: Sequence[PackageChange]
) -> list[PackageChange]:
    """Removals of the old driver's helpers that have versions of their own: they may leave with it, none is named."""
    leaving = {action.name for action in simulation.actions if action.verb != "install"}
    named = {change.name for change in meant}
    return [PackageChange(name, installed.get(name), None) for name in sorted(driver_packages(leaving) - named)]


def _exact(
    meant: Sequence[PackageChange],
    installed: Mapping[str, PackageState],
    simulation: Simulation,
    along: frozenset[str],
) -> Transaction:
    """The transaction as it was simulated; ``along`` are dependencies though they are named to the solver."""
    explicit = {change.name: change.after for change in meant}
    asked: list[PackageChange] = []
    dependencies: list[PackageChange] = []
    seen: set[str] = set()
    for action in simulation.actions:
        seen.add(action.name)
        before = installed.get(action.name)
        wanted, named = explicit.get(action.name), action.name in explicit
        auto = wanted.auto if wanted else not named and _comes_along(before)
        after = PackageState(action.version, auto=auto) if action.verb == "install" else None
        (asked if named and action.name not in along else dependencies).append(
            PackageChange(action.name, before, after)
        )
    unseen = [change for change in meant if change.name not in seen]
    residue = (c for c in unseen if c.after is None and c.before and c.before.config_files_only)
    return Transaction((*asked, *filter(is_mark, unseen), *residue), tuple(dependencies))


def resolved(
    plan: StagePlan,
    installed: Mapping[str, PackageState],
    simulate: Simulate,
    lock: VersionLock | None = None,
) -> StagePlan:
    """``plan`` with exact package versions and the dependencies that come along, as far as the index tells them."""
    if not plan.packages:
        return plan
    transaction = resolve(plan.packages, installed, simulate, lock.packages if lock else _FREE)
    if transaction.problem:
        return replace(plan, unresolved=transaction.problem)
    exact = {change.name: change for change in transaction.asked}
    steps = tuple(replace(step, changes=_with_versions(step, exact)) for step in plan.steps)
    return replace(plan, steps=steps, dependencies=transaction.dependencies)


def _with_versions(step: StepPlan, exact: Mapping[str, PackageChange]) -> tuple[Change, ...]:
    return tuple(
        exact[change.name] if isinstance(change, PackageChange) else change
        for change in step.changes
        if not isinstance(change, PackageChange) or change.name in exact
    )
