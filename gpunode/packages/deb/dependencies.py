"""The dependencies of installed packages, met and unmet, according to dpkg's status alone.

Sources: deb-control(5) on relations, Debian Policy 7.1 and 7.5 on versions and provided names, dpkg's
deparchsatisfied() on architectures. The tests compare the results with apt-get check.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from gpunode.change import PackageState
from gpunode.facts.model import MissingDependency
from gpunode.fast_dataclass import dataclass
from gpunode.package_id import PackageId
from gpunode.packages.deb.status import (
    HALF_INSTALLED_STATE,
    PRESENT_STATES,
    Alternative,
    DpkgEntry,
    native_architecture,
    package_id_of,
    parse_clauses,
)
from gpunode.packages.deb.status import packages as packages_of
from gpunode.packages.deb.version import version_order_key
from gpunode.packages.version import without_epoch

# "<" and ">" are deprecated spellings of "<=" and ">=".
_TEST_BY_RELATION: Final = {
    "=": lambda order: order == 0,
    "<<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
    "<": lambda order: order <= 0,
    ">>": lambda order: order > 0,
    ">=": lambda order: order >= 0,
    ">": lambda order: order >= 0,
}


@dataclass(frozen=True, slots=True)
class InstalledRelations:
    """The relations in dpkg's status; a ``facts.model.Dependencies``."""

    entries: tuple[DpkgEntry, ...]

    def missing(
        self, packages: Mapping[PackageId, PackageState], roots: Iterable[PackageId]
    ) -> tuple[MissingDependency, ...] | None:
        """Return the unmet dependencies of ``roots`` and of the packages that they need, directly or not.

        Packages whose version differs from the database's are from a plan: they meet a relation in any version, and
        their own relations are known only if the plan stays in the same branch. A package that a plan already installs,
        changes or removes is not missing, even if a relation stays unmet: the transaction finds out who needs it. Nor
        is a half-installed package: completing it is the repair's work.
        """
        installed = _Installed.of(self.entries, packages)
        known = [root for root in dict.fromkeys(roots) if installed.relations_of(root) is not None]
        if not known:
            return None
        before = packages_of(self.entries)
        # Earlier steps of the stage already request the others: nothing is requested twice.
        return tuple(
            dependency
            for dependency in _iter_missing(installed, known)
            if _installed_version_and_state(packages.get(dependency.package))
            == _installed_version_and_state(before.get(dependency.package))
        )

    def satisfying_packages(
        self, packages: Mapping[PackageId, PackageState], dependents: Iterable[PackageId]
    ) -> Mapping[PackageId, tuple[frozenset[PackageId], ...]]:
        """Return the installed packages that meet each dependency of each of the ``dependents``."""
        installed = _Installed.of(self.entries, packages)
        return {
            package: tuple(found for _, found in installed.answers(entry))
            for package in dependents
            if (entry := installed.relations_of(package)) is not None
        }

    def find_needed(self, leaving: Collection[PackageId], changing: Collection[PackageId]) -> Mapping[PackageId, str]:
        """Return the packages among ``leaving`` that others still need, each with the name of one that needs it.

        Packages ``changing`` their version, or returning, are there afterwards; the database does not have their new
        dependencies, so these are not checked. A dependency needs a package in ``leaving`` only if nothing that stays
        meets it, too. A recommendation is not a need.
        """
        present = packages_of(self.entries)
        installed, coming = _Installed.of(self.entries, present), {package.name for package in changing}
        needs = [
            (package, answers & present.keys())
            for package, entry in installed.rows.items()
            if package in present and package not in changing
            for clause, answers in installed.answers(entry, with_providers=True)
            if not any(alternative.name in coming for alternative in clause)
        ]
        kept: dict[PackageId, str] = {}
        while True:
            going = {*leaving} - kept.keys()
            staying = ((package, met) for package, met in needs if package not in going and met <= going)
            if not (dependents := {one: package.name for package, met in staying for one in met}):
                return kept
            kept |= dependents


def _installed_version_and_state(state: PackageState | None) -> tuple[str, bool] | None:
    return (state.version, state.config_files_only) if state is not None else None


def _iter_missing(installed: _Installed, roots: Sequence[PackageId]) -> Iterator[MissingDependency]:
    todo = [*roots]
    seen_packages: set[PackageId] = set(todo)
    reported: set[PackageId] = set()
    while todo:
        package = todo.pop()
        if (entry := installed.relations_of(package)) is None:
            continue
        for clause, answers in installed.answers(entry):
            todo += sorted(answers - seen_packages)
            seen_packages |= answers
            if not answers and (missing := _package_of_clause(clause[0], entry, installed.native)) not in reported:
                reported.add(missing)
                exact = clause[0].version if clause[0].operator == "=" and installed.is_unchanged(package) else ""
                yield MissingDependency(missing, exact, package, " | ".join(map(str, clause)))


@dataclass(frozen=True, slots=True)
class _Installed:
    """The packages that are there, by every name under which they can be found.

    Attributes:
        by_name: the packages in the database; ``planned`` has the packages that only a plan installs.
        providing: the packages in the database that provide names other than their own.
    """

    native: str
    packages: Mapping[PackageId, PackageState]
    rows: Mapping[PackageId, DpkgEntry]
    by_name: Mapping[str, Sequence[PackageId]]
    planned: Mapping[str, Sequence[PackageId]]
    providing: Sequence[PackageId]

    @staticmethod
    def of(entries: Sequence[DpkgEntry], packages: Mapping[PackageId, PackageState]) -> _Installed:
        """Return what is installed according to the database, as changed by a plan."""
        native = native_architecture(entries)
        rows = {
            package_id_of(entry, native): entry
            for entry in entries
            if entry.status in PRESENT_STATES or entry.status == HALF_INSTALLED_STATE
        }
        present = {package for package, state in packages.items() if not state.config_files_only}
        providing = [package for package, entry in rows.items() if entry.provides]
        return _Installed(native, packages, rows, _by_name(rows), _by_name(present - rows.keys()), providing)

    def relations_of(self, package: PackageId) -> DpkgEntry | None:
        """Return the database's entry of a package; None if a plan installs another version than that entry's."""
        entry, state = self.rows.get(package), self.packages.get(package)
        if entry is None or state is None or state.config_files_only:
            return None
        is_begun = state.version.endswith((".", "-")) and without_epoch(entry.version).startswith(state.version)
        return entry if self.is_unchanged(package) or is_begun else None

    def answers(
        self, entry: DpkgEntry, *, with_providers: bool = False
    ) -> Iterator[tuple[Sequence[Alternative], frozenset[PackageId]]]:
        """Yield each relation of ``entry`` with the packages that meet it.

        Providers of the name count if no package has it, or ``with_providers``: they could take its place.
        """
        for clause in parse_clauses(f"{entry.pre_depends},{entry.depends}"):
            found = (package for wanted in clause for package in self._find_satisfying(wanted, entry, with_providers))
            yield clause, frozenset(found)

    def _find_satisfying(self, wanted: Alternative, dependent: DpkgEntry, with_providers: bool) -> Iterator[PackageId]:
        named = [
            package for package in self.by_name.get(wanted.name, ()) if self._satisfies(package, wanted, dependent)
        ]
        yield from named
        if with_providers or not named:
            yield from self._find_providers(wanted, dependent)
        # Version and relations of a package that only a plan installs are unknown.
        yield from self.planned.get(wanted.name, ())

    def _find_providers(self, alternative: Alternative, dependent: DpkgEntry) -> Iterator[PackageId]:
        for package in self.providing:
            provides = self.rows[package].provides
            offered = (
                (one for (one, *_) in parse_clauses(provides) if one.name == alternative.name)
                if alternative.name in provides
                else ()
            )
            if any(self._satisfies(package, alternative, dependent, offer.version) for offer in offered):
                yield package

    def _satisfies(
        self, package: PackageId, alternative: Alternative, dependent: DpkgEntry, provided: str | None = None
    ) -> bool:
        """Return whether a package is of the wanted architecture and version; ``provided`` is empty without one."""
        entry = self.rows[package]
        if not _has_architecture(entry, alternative.qualifier, dependent, self.native):
            return False
        version = entry.version if provided is None else provided
        if not alternative.operator or not self.is_unchanged(package):
            return True
        holds = _TEST_BY_RELATION.get(alternative.operator)
        return bool(version) and holds is not None and holds(_compare_versions(version, alternative.version))

    def is_unchanged(self, package: PackageId) -> bool:
        """Return whether the package is there in the database's version; a plan may have changed it."""
        state, entry = self.packages.get(package), self.rows[package]
        return state is not None and not state.config_files_only and state.version == entry.version


def _by_name(packages: Iterable[PackageId]) -> Mapping[str, Sequence[PackageId]]:
    packages_by_name: dict[str, list[PackageId]] = {}
    for package in packages:
        packages_by_name.setdefault(package.name, []).append(package)
    return packages_by_name


def _compare_versions(one: str, other: str) -> int:
    if one == other:
        return 0
    first, second = version_order_key(one), version_order_key(other)
    return (first > second) - (first < second)


def _has_architecture(offered: DpkgEntry, qualifier: str, dependent: DpkgEntry, native: str) -> bool:
    if not qualifier and offered.multi_arch == "foreign":
        return True
    if qualifier == "any":
        return offered.multi_arch == "allowed"
    wanted = dependent.architecture if not qualifier else native if qualifier == "native" else qualifier
    return _effective_architecture(offered.architecture, native) == _effective_architecture(wanted, native)


def _effective_architecture(architecture: str, native: str) -> str:
    """Return the effective architecture: packages for all count as the native one."""
    return native if architecture in {"", "all"} else architecture


def _package_of_clause(first: Alternative, dependent: DpkgEntry, native: str) -> PackageId:
    """Return the package to install for a clause that nothing meets: its first alternative, as apt chooses."""
    wanted = dependent.architecture if first.qualifier in {"", "any", "native"} else first.qualifier
    architecture = _effective_architecture(wanted, native)
    return PackageId(first.name, "" if architecture == native else architecture)
