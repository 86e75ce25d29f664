"""plan: what setup would do and why, with a stage's packages as one simulated transaction; changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import islice
from types import MappingProxyType
from typing import TypeAlias

from gpunode.catalog.conflicts import STANDALONE_TOOL_PACKAGES, driver_packages, upstream_version
from gpunode.catalog.fabric import is_version_locked
from gpunode.change import Change, KnownAfter, PackageChange, PackageState
from gpunode.errors import Refused
from gpunode.facts.model import Facts, Known, value_or
from gpunode.fast_dataclass import dataclass
from gpunode.host.port import HostView
from gpunode.outcome import Planned, StepOutcome
from gpunode.package_id import PackageId
from gpunode.packages import deb
from gpunode.packages.simulation import NOT_SIMULATED_PREFIX, Simulation, differences_from_plan
from gpunode.recipe import Recipe, VersionLock
from gpunode.steps.installed_driver import branch_of
from gpunode.wording import join_names
from gpunode.workflow.converge import StagePlan, StepPlan, project_stage, walk_stages
from gpunode.workflow.recovery import NO_BACKLOG, Backlog

# Reasons for packages that do not come from NVIDIA's repositories.
_NON_NVIDIA_REASONS = frozenset({"headers", "gdrcopy"})


def plan(recipe: Recipe, facts: Facts, host: HostView, only: Collection[str] = ()) -> tuple[StagePlan, ...]:
    """Return every stage's plan, with exact package versions if sources and pins need no change.

    Raises:
        Refused: the simulated transaction differs from the planned one.
        Undetermined: evidence that a step needs is missing.
    """
    earlier: list[StagePlan] = []

    def exact(now: Facts, stage: StagePlan) -> StagePlan:
        is_current = not any(plan.ordered_changes for plan in earlier)
        earlier.append(stage)
        if is_current:
            return resolve_stage_on(host, stage, now, recipe.lock)
        return replace(stage, unresolved=_explain_missing_packages(stage, host))

    return tuple(walk_stages(recipe, facts, exact, project_stage, only))


def _explain_missing_packages(stage: StagePlan, host: HostView) -> str:
    """Return why no present archive has the kernel headers or GDRCopy; this run adds no other source of them."""
    sought = [
        change
        for change in stage.packages
        if isinstance(change.after, KnownAfter) and change.after.why in _NON_NVIDIA_REASONS
    ]
    simulation = host.simulate(sought) if sought else None
    return simulation.problem if simulation and not simulation.problem.startswith(NOT_SIMULATED_PREFIX) else ""


def has_pending_work(plans: Sequence[StagePlan], backlog: Backlog = NO_BACKLOG) -> bool:
    """Return whether any work is left or waits, including what earlier runs left undone."""
    return bool(backlog) or any(plan.ordered_changes or plan.waits for plan in plans)


_NO_LOCKED_VERSIONS: Mapping[PackageId, str] = MappingProxyType({})
_NO_UPGRADES: Mapping[PackageId, tuple[PackageId, ...]] = MappingProxyType({})
Simulate = Callable[[Sequence[PackageChange]], Simulation | None]


@dataclass(frozen=True, slots=True)
class Transaction:
    """Package changes with exact versions.

    Attributes:
        requested_changes: the changes of steps, without those that turned out to be unnecessary.
        dependencies: what else the package manager installs or removes.
        problem: the package manager's message if it would refuse; else empty.
        upgraded: packages that are upgraded instead of purged, each with the remaining packages that need it; with
            none if the new driver needs it.
    """

    requested_changes: tuple[PackageChange, ...]
    dependencies: tuple[PackageChange, ...] = ()
    problem: str = ""
    upgraded: Mapping[PackageId, tuple[PackageId, ...]] = field(default_factory=lambda: _NO_UPGRADES)


def resolve_versions(
    changes: Sequence[PackageChange],
    facts: Facts,
    simulate: Simulate,
    locked: Mapping[PackageId, str] = _NO_LOCKED_VERSIONS,
) -> Transaction:
    """Return the exact transaction for ``changes``; unchanged without a package manager.

    Without the purges, the solver upgrades every old package that has a newer version. Only those that the new driver
    or a remaining package needs are upgraded; the others are purged. A dependency that the solver would install in a
    version other than the ``locked`` one is requested by name in that version.

    Raises:
        Refused: the solver would remove or install something that no step planned, or takes another version.
    """
    installed: Mapping[PackageId, PackageState] = value_or(facts.packages, {})
    return _Resolver(tuple(changes), facts, installed, simulate, locked).resolve()


@dataclass(slots=True)
class _Resolver:
    """Resolves the changes of steps to one exact transaction.

    Attributes:
        changes: the changes that steps request.
        pins: dependencies that are named to the solver so that it takes their locked version.
        newer: what is installed if nothing is purged, as changes by name.
        upgraded: packages that must be upgraded instead of purged, each with the remaining packages that need it.
    """

    changes: tuple[PackageChange, ...]
    facts: Facts
    installed: Mapping[PackageId, PackageState]
    simulate: Simulate
    locked: Mapping[PackageId, str]
    pins: tuple[PackageChange, ...] = ()
    newer: Mapping[PackageId, PackageChange] = field(default_factory=dict)
    upgraded: dict[PackageId, tuple[PackageId, ...]] = field(default_factory=dict)

    def resolve(self) -> Transaction:
        """Return the transaction; its ``problem`` says why the solver would refuse it."""
        simulation = self._simulate_installs()
        if simulation is not None and self.purges:
            simulation = self._simulate_purges(simulation)
        if simulation is None or simulation.problem:
            return Transaction(self.changes, problem=simulation.problem if simulation else "")
        self._refuse_unplanned(simulation)
        dependencies = frozenset({*self.upgraded, *(change.id for change in self.pins)})
        return replace(
            _exact_transaction(self.adjusted_changes, self.installed, simulation, dependencies), upgraded=self.upgraded
        )

    @property
    def installs(self) -> list[PackageChange]:
        """All changes that are not removals."""
        return [*(change for change in self.changes if change.after is not None), *self.pins]

    @property
    def purges(self) -> list[PackageChange]:
        """The packages that the steps want removed."""
        return _removals_among(self.changes)

    @property
    def adjusted_changes(self) -> list[PackageChange]:
        """The transaction with the packages in ``upgraded`` upgraded instead of purged."""
        return [*self.installs, *(self.newer[c.id] if c.id in self.upgraded else c for c in self.purges)]

    def _simulate_installs(self) -> Simulation | None:
        """Simulate the transaction without its purges, and pin the dependencies that would differ from the lock."""
        simulation = self.simulate(self.installs) if self.installs else Simulation(())
        if simulation is not None and (unlike := _versions_unlike_lock(simulation, self.locked)):
            named = {change.id for change in self.changes}
            self.pins = tuple(
                self._dependency_change(package, self.locked[package]) for package in sorted(unlike.keys() - named)
            )
            simulation = self.simulate(self.installs) if self.pins else simulation
        return self._with_matching_fabric(simulation) if simulation is not None else None

    def _with_matching_fabric(self, simulation: Simulation) -> Simulation | None:
        """Return the simulation with the fabric's packages in the driver's version, even if newer ones exist."""
        driver, unlike = _find_fabric_mismatches(self.installs, simulation)
        if not unlike:
            return simulation
        after = KnownAfter(f"{driver}-", "driver")
        self.changes = tuple(replace(change, after=after) if change.id in unlike else change for change in self.changes)
        again = self.simulate(self.installs)
        if again is not None and again.problem:
            package, version = next(iter(unlike.items()))
            raise Refused(
                f"no archive has {package} in version {driver}, that of the driver; no package was touched",
                why=f"it works with the driver of its exact version alone, and would come in version {version}",
                hint=_fabric_version_hint(version, driver),
            )
        return again

    def _simulate_purges(self, simulation: Simulation) -> Simulation | None:
        """Simulate the complete transaction, with as few of the ``purges`` upgraded instead as the solver allows.

        First simulate the purge of all of them. Then upgrade each one that the solver needs, until it agrees. A package
        that it would also remove is requested by name, so that the solver reports what that package needs.
        """
        installs = (action for action in simulation.actions if action.verb == "install")
        self.newer = {
            action.id: self._dependency_change(action.id, self.locked.get(action.id, action.version))
            for action in installs
        }
        left = self.newer.keys() & {change.id for change in self.purges}
        stays: dict[PackageId, PackageChange] = {}
        while True:
            found = self.simulate([*self.adjusted_changes, *stays.values()])
            if found is None or not left:
                break
            lost = (
                {}
                if found.problem
                else _collateral_removals(found, {*stays, *(change.id for change in self.adjusted_changes)})
            )
            needed = left & deb.find_named_packages(found.problem) or (left if found.problem else set())
            if not needed and not lost:
                break
            left, stays = left - needed, {**stays, **lost}
            self.upgraded |= dict.fromkeys(needed, tuple(sorted(stays)))
        # A package requested by name is marked as manually installed, so leave the staying ones out of the transaction.
        return self.simulate(self.adjusted_changes) if stays else found

    def _dependency_change(self, package: PackageId, version: str) -> PackageChange:
        """Return the change that installs a dependency in ``version``."""
        before = self.installed.get(package)
        return PackageChange(package, before, PackageState(version, auto=_will_be_automatic(before)))

    def _refuse_unplanned(self, simulation: Simulation) -> None:
        leaving = _old_driver_helper_removals(simulation, self.installed, self.adjusted_changes) if self.purges else []
        lost = sorted(_collateral_removals(simulation, {change.id for change in self.adjusted_changes}))
        reasons = tuple(self._explain_losses(lost))
        wrong = (
            *differences_from_plan([*self.adjusted_changes, *leaving], simulation),
            *reasons,
            *_other_branch_installs(self.installs, simulation),
            *(
                f"{simulation.manager} would install {package} {version}, but the lock holds {self.locked[package]}"
                for package, version in _versions_unlike_lock(simulation, self.locked).items()
            ),
        )
        instead = (
            "choose the driver that it needs (driver.version in the recipe)"
            if reasons
            else "change what the recipe asks for in its place (runtime.name, driver.version)"
        )
        if wrong:
            raise Refused(
                f"{simulation.manager} would not do what was planned; no package was changed",
                why="\n".join(wrong),
                hint=f"gpunode removes nothing else unasked: if {join_names(map(str, lost))} may go, remove it "
                f"yourself; else {instead}; then run the same command again"
                if lost
                else deb.hint_on_refusal("\n".join(wrong), self.facts, {}),
            )

    def _explain_losses(self, lost: Sequence[PackageId]) -> Iterator[str]:
        """Yield, for each package that would be lost, which of the ``purges`` it needs."""
        relations = self.facts.dependencies
        needs = relations.value.satisfying_packages(self.installed, lost) if isinstance(relations, Known) else {}
        for package, answers in needs.items():
            if needed := sorted(frozenset().union(*answers).intersection(change.id for change in self.purges)):
                yield f"{package} needs {join_names(map(str, needed))}, which the plan purges"


def _find_fabric_mismatches(
    installs: Sequence[PackageChange], simulation: Simulation
) -> tuple[str, dict[PackageId, str]]:
    """Return the driver's version, and the fabric's packages that would have another, with that version."""
    named = {change.id for change in installs if isinstance(change.after, KnownAfter) and change.after.why == "driver"}
    planned = {
        action.id: upstream_version(action.version)
        for action in simulation.actions
        if action.verb == "install" and action.id in named and action.id.name not in STANDALONE_TOOL_PACKAGES
    }
    of_fabric = {package: version for package, version in planned.items() if is_version_locked(package.name)}
    versions = {version for package, version in planned.items() if package not in of_fabric}
    driver = versions.pop() if len(versions) == 1 else ""
    return driver, {package: version for package, version in of_fabric.items() if driver and version != driver}


def _fabric_version_hint(version: str, driver: str) -> str:
    """Return what to do if the fabric's ``version`` is not the driver's, which is the newest of its branch."""
    from gpunode.catalog.cuda import parse_version  # loaded on use

    if parse_version(version) < parse_version(driver):
        return f"choose the driver of which both are there: --driver {version}"
    return (
        "wait until the archive has both in one version, or choose an older one that it has of both: --driver VERSION"
    )


def _collateral_removals(simulation: Simulation, named: Collection[PackageId]) -> dict[PackageId, PackageChange]:
    """Return the packages other than the driver's that would be removed, as changes that keep them."""
    removed = {action.id: action.former for action in simulation.actions if action.verb != "install"}
    others = sorted(removed.keys() - driver_packages(removed) - {*named})
    return {other: PackageChange(other, None, PackageState(removed[other])) for other in others if removed[other]}


def _other_branch_installs(installs: Sequence[PackageChange], simulation: Simulation) -> Iterator[str]:
    """Yield driver packages that are installed as dependencies and belong to a branch that no step chose."""
    wanted = set(_chosen_branches(installs))
    drivers = driver_packages(action.id for action in simulation.actions if action.verb == "install")
    for action in simulation.actions:
        branch = branch_of(action.version) if wanted and action.id in drivers else 0
        # A distribution's packages of these tools have versions of their own.
        branch = 0 if str(action.id) in STANDALONE_TOOL_PACKAGES else branch
        if branch and branch not in wanted:
            yield (
                f"{simulation.manager} would install {action.id} {action.version}, which is of another driver branch"
            )


def _versions_unlike_lock(simulation: Simulation, locked: Mapping[PackageId, str]) -> dict[PackageId, str]:
    """Return the locked packages that would be installed in another version, with that version."""
    return {
        action.id: action.version
        for action in simulation.actions
        if action.verb == "install" and locked.get(action.id, action.version) != action.version
    }


def _will_be_automatic(before: PackageState | None) -> bool:
    """Return whether a dependency is marked automatic afterwards: it is new, or it was before."""
    return before is None or before.config_files_only or before.auto


def _chosen_branches(installs: Sequence[PackageChange]) -> Iterator[int]:
    """Yield the driver branches that steps chose, by a version prefix or an exact version."""
    exact = driver_packages(change.id for change in installs if isinstance(change.after, PackageState))
    for change in installs:
        if isinstance(change.after, KnownAfter) and change.after.why == "driver":
            yield branch_of(change.after.prefix)
        elif isinstance(change.after, PackageState) and (branch := branch_of(change.after.version)):
            yield from (branch,) if change.id in exact else ()


def _old_driver_helper_removals(
    simulation: Simulation, installed: Mapping[PackageId, PackageState], changes: Sequence[PackageChange]
) -> list[PackageChange]:
    """Return removals of the old driver's helpers, which have versions of their own and may leave with it."""
    leaving = {action.id for action in simulation.actions if action.verb != "install"}
    named = {change.id for change in changes}
    return [
        PackageChange(package, installed.get(package), None) for package in sorted(driver_packages(leaving) - named)
    ]


def _exact_transaction(
    changes: Sequence[PackageChange],
    installed: Mapping[PackageId, PackageState],
    simulation: Simulation,
    dependency_ids: frozenset[PackageId],
) -> Transaction:
    """Return the transaction as simulated; ``dependency_ids`` are dependencies although the solver was given them."""
    explicit = {change.id: change for change in changes}
    requested_changes: list[PackageChange] = []
    dependencies: list[PackageChange] = []
    seen: set[PackageId] = set()
    for action in simulation.actions:
        seen.add(action.id)
        before = installed.get(action.id)
        named = explicit.get(action.id)
        wanted = named.after if named else None
        auto = wanted.auto if wanted else not named and _will_be_automatic(before)
        after = PackageState(action.version, auto=auto) if action.verb == "install" else None
        (requested_changes if named and action.id not in dependency_ids else dependencies).append(
            PackageChange(action.id, before, after, named.triggers if named else frozenset())
        )
    unseen = [change for change in changes if change.id not in seen]
    residue = (c for c in unseen if c.after is None and c.before and c.before.config_files_only)
    return Transaction(
        (*requested_changes, *(change for change in unseen if change.is_mark), *residue), tuple(dependencies)
    )


def resolve_stage_on(host: HostView, plan: StagePlan, facts: Facts, lock: VersionLock | None = None) -> StagePlan:
    """Return ``plan`` as ``resolve_stage`` does, after checking that the host's archives have what is reinstalled."""
    exact = resolve_stage(plan, facts, host.simulate, lock)
    reinstalled = [named for change in plan.ordered_changes for named in deb.list_reinstalled(change)]
    if exact.unresolved or not reinstalled:
        return exact
    return replace(exact, unresolved=_explain_lost_versions(reinstalled, exact, host, facts))


def _explain_lost_versions(
    reinstalled: Sequence[tuple[PackageId, str]], exact: StagePlan, host: HostView, facts: Facts
) -> str:
    """Return the ``reinstalled`` packages whose version no archive of ``host`` has; empty if none is known.

    The version is "" for the installed or a newer one; packages that ``exact`` changes get their new version. The
    package manager only says that it cannot reinstall such a package, and exits successfully.
    """
    installed: Mapping[PackageId, PackageState] = value_or(facts.packages, {})
    offered = _find_versions((package for package, _ in reinstalled), installed, make_version_lookup(host))
    changed = {change.id for change in exact.packages}
    lost = (
        (package, version)
        for package, version in reinstalled
        if package not in changed and (version or installed[package].version) not in offered.get(package, ())
    )
    return "\n".join(
        f"Version '{version}' for '{package}' was not found"
        if version
        else f"no source has {package} {installed[package].version}, which is installed, or a newer version"
        for package, version in (lost if offered else ())
    )


def resolve_stage(plan: StagePlan, facts: Facts, simulate: Simulate, lock: VersionLock | None = None) -> StagePlan:
    """Return ``plan`` with exact package versions and dependencies, as far as the index has them."""
    if not plan.packages:
        return plan
    transaction = resolve_versions(plan.packages, facts, simulate, lock.packages if lock else _NO_LOCKED_VERSIONS)
    if transaction.problem:
        return replace(plan, unresolved=transaction.problem)
    requested_changes = {change.id: change for change in transaction.requested_changes}
    exact: dict[Change, Change | None] = {change: requested_changes.get(change.id) for change in plan.packages}
    steps = []
    for step in plan.steps:
        changes = tuple(change for one in step.changes if (change := exact.get(one, one)) is not None)
        steps.append(replace(step, changes=changes, outcome=_with_upgrades(step, transaction.upgraded)))
    return replace(plan, steps=tuple(steps), dependencies=transaction.dependencies)


def _with_upgrades(step: StepPlan, upgraded: Mapping[PackageId, tuple[PackageId, ...]]) -> StepOutcome:
    """Return the step's outcome with a note on packages that are upgraded instead of purged, and why."""
    mine = [change.id for change in _removals_among(step.changes) if change.id in upgraded]
    if not mine or not isinstance(step.outcome, Planned):
        return step.outcome
    ours = [str(package) for package in mine if not upgraded[package]]
    why = f"; the new driver needs {', '.join(ours)} in its own version" if ours else ""
    others = (
        f"{package} gets the driver's version and stays, needed by {' and '.join(map(str, upgraded[package]))}"
        for package in mine
        if upgraded[package]
    )
    return replace(step.outcome, reason=step.outcome.reason + why, change_notes=(*step.outcome.change_notes, *others))


def unplanned_removals(confirmed_plan: StagePlan, exact_plan: StagePlan) -> tuple[str, ...]:
    """Return the packages that only ``exact_plan`` removes, without helpers, whose removal is expected."""
    return tuple(
        str(c.id)
        for c in _additional_removals(confirmed_plan, exact_plan)
        if c.before is None or branch_of(c.before.version)
    )


def _additional_removals(confirmed_plan: StagePlan, exact_plan: StagePlan) -> list[PackageChange]:
    named = {change.id for change in _removals_among(confirmed_plan.packages)}
    return [change for change in _removals_among(exact_plan.packages) if change.id not in named]


def describe_differences(confirmed_plan: StagePlan, exact_plan: StagePlan) -> Iterator[str]:
    """Yield what only ``exact_plan`` removes, and the reasons of steps that now purge less."""
    if more := _additional_removals(confirmed_plan, exact_plan):
        names = ", ".join(str(change.id) for change in more)
        yield f"{deb.MANAGER} also removes packages that need the old driver: {names}"
    for before, step in (
        (step, two) for step in confirmed_plan.steps for two in exact_plan.steps if step.step == two.step
    ):
        fewer = len(_removals_among(step.changes)) < len(_removals_among(before.changes))
        if fewer and isinstance(step.outcome, Planned) and isinstance(before.outcome, Planned):
            yield step.outcome.reason
            yield from (note for note in step.outcome.change_notes if note not in before.outcome.change_notes)


def _removals_among(changes: Sequence[Change]) -> list[PackageChange]:
    return [change for change in PackageChange.of_kind(changes) if change.after is None]


VersionLookup: TypeAlias = Callable[[Collection[PackageId]], Mapping[PackageId, Collection[str]]]
_INDEX_SAMPLE_SIZE = 30
_MAX_LOSSES_NAMED = 5


def make_version_lookup(host: HostView) -> VersionLookup:
    """Return a function that queries the package index of ``host`` read-only; a capture has no index."""

    def list_offered_versions(packages: Collection[PackageId]) -> Mapping[PackageId, Collection[str]]:
        answer = host.run_probe(deb.archives_probe(packages))
        return deb.list_versions(deb.parse_archives(answer.text) if answer.outcome == "ok" else ())

    return list_offered_versions


def _find_versions(
    packages: Iterable[PackageId], installed: Collection[PackageId], look_up: VersionLookup
) -> Mapping[PackageId, Collection[str]]:
    """Return the versions of ``packages`` in the index; nothing if that is not this system's index.

    It is not if it has none of the packages and of a sample of the installed ones.
    """
    return look_up(dict.fromkeys((*packages, *islice(sorted(installed), _INDEX_SAMPLE_SIZE))))


@dataclass(frozen=True, slots=True)
class Losses:
    """The packages that a plan purges or replaces, and whose version no archive has.

    Attributes:
        purged: packages to be purged that no archive has in any version: built locally or installed from a file.
        replaced: the others; a rollback could only install another version.
    """

    purged: tuple[PackageChange, ...] = ()
    replaced: tuple[PackageChange, ...] = ()

    @property
    def note(self) -> str:
        """A sentence that names them; empty if nothing is lost."""
        names = [f"{change.id} {change.states[0]}" for change in (*self.purged, *self.replaced)]
        them = "them" if names[1:] else "it"
        listed = join_names(names, _MAX_LOSSES_NAMED)
        return f"no archive has {listed}, so `rollback --packages` could not restore {them}" if names else ""

    def refuse_purges(self) -> None:
        """Refuse to purge packages that no archive has.

        Raises:
            Refused: there are such packages.
        """
        if self.purged:
            names = ", ".join(f"{change.id} {change.states[0]}" for change in self.purged)
            raise Refused(
                f"no archive has {names}, so a rollback could not restore what this plan purges",
                why="the new driver conflicts with them, and they were installed from a file or from a source that is "
                "gone",
                hint="keep a copy of the package file, or add the source that has it; to continue anyway:\n"
                "add --allow-loss to the same command",
            )


def find_losses(plans: Sequence[StagePlan], facts: Facts, list_offered_versions: VersionLookup) -> Losses | None:
    """Return what a rollback could not restore; None if there is no package index."""
    changes = [c for plan in plans for c in plan.packages if c.removes_or_replaces and c.is_final_state_known]
    if not changes:
        return Losses()
    installed: Mapping[PackageId, PackageState] = value_or(facts.packages, {})
    offered = _find_versions((change.id for change in changes), installed, list_offered_versions)
    if not offered:
        return None
    lost = [change for change in changes if change.states[0] not in offered.get(change.id, ())]
    purged = tuple(change for change in lost if not change.exists_after and not offered.get(change.id))
    return Losses(purged, tuple(change for change in lost if change not in purged))
