"""The package changes of a stage as one transaction: simulated, compared with what was meant, made exact. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from gpunode.catalog.conflicts import driver_packages
from gpunode.change import Change, KnownAfter, PackageChange, PackageState
from gpunode.errors import Refused
from gpunode.facts.model import Facts, known
from gpunode.outcome import Outcome, Planned
from gpunode.package_id import PackageId
from gpunode.packages import system
from gpunode.packages.simulation import Simulation, unplanned
from gpunode.recipe import VersionLock
from gpunode.steps.installed_driver import branch_of
from gpunode.workflow.converge import StagePlan, StepPlan

_FREE: Mapping[PackageId, str] = MappingProxyType({})
_NOT_PURGED: Mapping[PackageId, tuple[PackageId, ...]] = MappingProxyType({})
Simulate = Callable[[Sequence[PackageChange]], Simulation | None]
PackagesIn = Callable[[str], frozenset[PackageId]]


@dataclass(frozen=True, slots=True)
class Transaction:
    """Package changes with exact versions.

    Attributes:
        asked: the changes that steps asked for, without those that turned out to be nothing.
        dependencies: what else the package manager installs or removes.
        problem: why the package manager would not make them, in its own words.
        upgraded: the packages that were to be purged and are upgraded instead, each with those that stay and need it;
            with none where the new driver does.
    """

    asked: tuple[PackageChange, ...]
    dependencies: tuple[PackageChange, ...] = ()
    problem: str = ""
    upgraded: Mapping[PackageId, tuple[PackageId, ...]] = field(default_factory=lambda: _NOT_PURGED)


def resolve(
    changes: Sequence[PackageChange],
    facts: Facts,
    simulate: Simulate,
    locked: Mapping[PackageId, str] = _FREE,
) -> Transaction:
    """The transaction that ``changes`` amount to; as they are where there is no package manager to ask.

    Without the purges the solver upgrades every old package that has a newer version. Of these only what the new
    driver needs, or a package that stays, is upgraded; the others are purged. A dependency that the solver would bring
    in another version than ``locked`` is named to it in that version.

    Raises:
        Refused: the solver would remove or install something that no step planned, or takes another version.
    """
    installed: Mapping[PackageId, PackageState] = known(facts.packages, {})
    brings = [change for change in changes if change.after is not None]
    purges = _removals(changes)
    first = simulate(brings) if brings else Simulation(())
    strays = _strays(first, changes, installed, locked) if first is not None else []
    if strays:
        brings += strays
        first = simulate(brings)
    if first is None:
        return Transaction(tuple(changes))
    if first.problem and not purges:
        return Transaction(tuple(changes), problem=first.problem)
    newer = dict(_newer(first, installed, locked))
    upgraded, final = (
        _upgraded(brings, purges, newer, simulate, system(facts).packages_in) if purges else (_NOT_PURGED, first)
    )
    if final is None or final.problem:
        return Transaction(tuple(changes), problem=final.problem if final else "")
    meant = _meant(brings, purges, newer, upgraded)
    leaving = _parts_of_old(final, installed, meant) if purges else []
    _refuse(
        (*unplanned([*meant, *leaving], final), *_of_another_branch(brings, final), *_unlocked(final, locked)), final
    )
    exact = _exact(meant, installed, final, along=frozenset({*upgraded, *(change.id for change in strays)}))
    return replace(exact, upgraded=upgraded)


def _refuse(wrong: Sequence[str], final: Simulation) -> None:
    """Raises Refused for what is ``wrong``, if anything is."""
    if wrong:
        raise Refused(
            f"{final.manager} would do something else than what was planned; no package was touched",
            why="\n".join(wrong),
            hint="look at it with `gpunode plan -v`; the usual reason is a hold, a pin or a third-party package",
        )


def _meant(
    brings: Sequence[PackageChange],
    purges: Sequence[PackageChange],
    newer: Mapping[PackageId, PackageChange],
    upgraded: Collection[PackageId],
) -> list[PackageChange]:
    """The transaction with some of the ``purges`` upgraded instead."""
    return [*brings, *(newer[change.id] if change.id in upgraded else change for change in purges)]


def _newer(
    simulation: Simulation, installed: Mapping[PackageId, PackageState], locked: Mapping[PackageId, str]
) -> Iterator[tuple[PackageId, PackageChange]]:
    """What comes along in a simulation, as it would be asked for by name."""
    for action in simulation.actions:
        if action.verb == "install":
            before = installed.get(action.id)
            after = PackageState(locked.get(action.id, action.version), auto=_comes_along(before))
            yield action.id, PackageChange(action.id, before, after)


def _upgraded(
    brings: Sequence[PackageChange],
    purges: Sequence[PackageChange],
    newer: Mapping[PackageId, PackageChange],
    simulate: Simulate,
    packages_in: PackagesIn,
) -> tuple[Mapping[PackageId, tuple[PackageId, ...]], Simulation | None]:
    """The ``purges`` that must be upgraded instead, each with who needs it, and the simulation of it all.

    The package manager is asked to purge all of them. What it says it cannot do without is upgraded, until it agrees.
    A package that it would take along is asked for by name, so that it says what that one needs.
    """
    left = newer.keys() & {change.id for change in purges}
    upgraded: dict[PackageId, tuple[PackageId, ...]] = {}
    stays: dict[PackageId, PackageChange] = {}
    while True:
        meant = _meant(brings, purges, newer, upgraded)
        found = simulate([*meant, *stays.values()])
        if found is None or not left:
            break
        lost = {} if found.problem else _lost(found, {*stays, *(change.id for change in meant)})
        needed = left & packages_in(found.problem) or (left if found.problem else set())
        if not needed and not lost:
            break
        left, stays = left - needed, {**stays, **lost}
        upgraded |= dict.fromkeys(needed, tuple(sorted(stays)))
    # What is asked for by name counts as installed by hand, so the transaction goes without those that stay.
    return upgraded, simulate(meant) if stays else found


def _lost(simulation: Simulation, named: Collection[PackageId]) -> dict[PackageId, PackageChange]:
    """The packages that would go and are no driver's, as they are asked for to stay."""
    gone = {action.id: action.former for action in simulation.actions if action.verb != "install"}
    others = sorted(gone.keys() - driver_packages(gone) - {*named})
    return {one: PackageChange(one, None, PackageState(gone[one])) for one in others if gone[one]}


def _of_another_branch(brings: Sequence[PackageChange], simulation: Simulation) -> Iterator[str]:
    """Driver packages that come along as dependencies and are of a branch that no step chose."""
    wanted = set(_branches(brings))
    drivers = driver_packages(action.id for action in simulation.actions if action.verb == "install")
    for action in simulation.actions:
        branch = branch_of(action.version) if wanted and action.id in drivers else 0
        if branch and branch not in wanted:
            yield (
                f"{simulation.manager} would install {action.id} {action.version}, which is of another driver branch"
            )


def _strays(
    simulation: Simulation,
    changes: Sequence[PackageChange],
    installed: Mapping[PackageId, PackageState],
    locked: Mapping[PackageId, str],
) -> list[PackageChange]:
    """Dependencies that would come in another version than the locked one, in the locked one instead."""
    named = {change.id for change in changes}
    return [
        PackageChange(one, installed.get(one), PackageState(locked[one], auto=_comes_along(installed.get(one))))
        for one in sorted(_unlike(simulation, locked))
        if one not in named
    ]


def _unlike(simulation: Simulation, locked: Mapping[PackageId, str]) -> dict[PackageId, str]:
    """The locked packages that would be installed in another version, with that version."""
    return {
        action.id: action.version
        for action in simulation.actions
        if action.verb == "install" and locked.get(action.id, action.version) != action.version
    }


def _unlocked(simulation: Simulation, locked: Mapping[PackageId, str]) -> Iterator[str]:
    for package, version in _unlike(simulation, locked).items():
        yield f"{simulation.manager} would install {package} {version}, where the lock holds {locked[package]}"


def _comes_along(before: PackageState | None) -> bool:
    """Whether a dependency counts as one afterwards: a new one, or one that did so before."""
    return before is None or before.config_files_only or before.auto


def _branches(brings: Sequence[PackageChange]) -> Iterator[int]:
    """The driver branches that steps chose: of a prefix, or of an exact version."""
    exact = driver_packages(change.id for change in brings if isinstance(change.after, PackageState))
    for change in brings:
        if isinstance(change.after, KnownAfter) and change.after.why == "driver":
            yield branch_of(change.after.prefix)
        elif isinstance(change.after, PackageState) and (branch := branch_of(change.after.version)):
            yield from (branch,) if change.id in exact else ()


def _parts_of_old(
    simulation: Simulation, installed: Mapping[PackageId, PackageState], meant: Sequence[PackageChange]
) -> list[PackageChange]:
    """Removals of the old driver's helpers that have versions of their own: they may leave with it, none is named."""
    leaving = {action.id for action in simulation.actions if action.verb != "install"}
    named = {change.id for change in meant}
    return [PackageChange(one, installed.get(one), None) for one in sorted(driver_packages(leaving) - named)]


def _exact(
    meant: Sequence[PackageChange],
    installed: Mapping[PackageId, PackageState],
    simulation: Simulation,
    along: frozenset[PackageId],
) -> Transaction:
    """The transaction as it was simulated; ``along`` are dependencies though they are named to the solver."""
    explicit = {change.id: change for change in meant}
    asked: list[PackageChange] = []
    dependencies: list[PackageChange] = []
    seen: set[PackageId] = set()
    for action in simulation.actions:
        seen.add(action.id)
        before = installed.get(action.id)
        named = explicit.get(action.id)
        wanted = named.after if named else None
        auto = wanted.auto if wanted else not named and _comes_along(before)
        after = PackageState(action.version, auto=auto) if action.verb == "install" else None
        (asked if named and action.id not in along else dependencies).append(
            PackageChange(action.id, before, after, named.triggers if named else frozenset())
        )
    unseen = [change for change in meant if change.id not in seen]
    residue = (c for c in unseen if c.after is None and c.before and c.before.config_files_only)
    return Transaction((*asked, *(change for change in unseen if change.is_mark), *residue), tuple(dependencies))


def resolved(
    plan: StagePlan,
    facts: Facts,
    simulate: Simulate,
    lock: VersionLock | None = None,
) -> StagePlan:
    """``plan`` with exact package versions and the dependencies that come along, as far as the index tells them."""
    if not plan.packages:
        return plan
    transaction = resolve(plan.packages, facts, simulate, lock.packages if lock else _FREE)
    if transaction.problem:
        return replace(plan, unresolved=transaction.problem)
    exact = {change.id: change for change in transaction.asked}
    steps = tuple(
        replace(step, changes=_with_versions(step, exact), outcome=_said(step, transaction.upgraded))
        for step in plan.steps
    )
    return replace(plan, steps=steps, dependencies=transaction.dependencies)


def _said(step: StepPlan, upgraded: Mapping[PackageId, tuple[PackageId, ...]]) -> Outcome:
    """The step's answer, with the packages that it wanted to purge and that are upgraded instead, and why."""
    mine = [change.id for change in _removals(step.changes) if change.id in upgraded]
    if not mine or not isinstance(step.outcome, Planned):
        return step.outcome
    ours = [str(package) for package in mine if not upgraded[package]]
    are = "is" if len(ours) == 1 else "are"
    why = f"; the new driver needs {', '.join(ours)}, which {are} upgraded" if ours else ""
    others = (
        f"{one} is upgraded, not purged, since {' and '.join(map(str, upgraded[one]))} needs it"
        for one in mine
        if upgraded[one]
    )
    return replace(step.outcome, reason=step.outcome.reason + why, change_notes=(*step.outcome.change_notes, *others))


def _with_versions(step: StepPlan, exact: Mapping[PackageId, PackageChange]) -> tuple[Change, ...]:
    return tuple(
        exact[change.id] if isinstance(change, PackageChange) else change
        for change in step.changes
        if not isinstance(change, PackageChange) or change.id in exact
    )


def beyond(agreed: StagePlan, exact: StagePlan) -> tuple[str, ...]:
    """The packages that ``exact`` removes and ``agreed`` did not, but for helpers, which it counted."""
    return tuple(str(c.id) for c in _more(agreed, exact) if c.before is None or branch_of(c.before.version))


def _more(agreed: StagePlan, exact: StagePlan) -> list[PackageChange]:
    named = {change.id for change in _removals(agreed.packages)}
    return [change for change in _removals(exact.packages) if change.id not in named]


def news(agreed: StagePlan, exact: StagePlan, manager: str) -> Iterator[str]:
    """What ``exact`` removes beyond ``agreed``, and what it says of steps that purge less than they did there."""
    if more := _more(agreed, exact):
        names = ", ".join(str(change.id) for change in more)
        yield f"{manager} also removes packages that need the old driver: {names}"
    for before, step in ((one, two) for one in agreed.steps for two in exact.steps if one.step == two.step):
        fewer = len(_removals(step.changes)) < len(_removals(before.changes))
        if fewer and isinstance(step.outcome, Planned) and isinstance(before.outcome, Planned):
            yield step.outcome.reason
            yield from (note for note in step.outcome.change_notes if note not in before.outcome.change_notes)


def _removals(changes: Sequence[Change]) -> list[PackageChange]:
    return [change for change in PackageChange.among(changes) if change.after is None]
