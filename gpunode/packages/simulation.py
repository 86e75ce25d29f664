"""Simulation of a transaction by the package manager, compared with the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal

from gpunode.change import KnownAfter, PackageChange, PackageState
from gpunode.fast_dataclass import dataclass
from gpunode.package_id import PackageId
from gpunode.packages.version import has_prefix, without_epoch

NOT_SIMULATED_PREFIX: Final = "not simulated: "
# An unmet relation may name a virtual package. Told to install that, the package manager takes its only provider
# ("Note, selecting 'libpam-systemd' instead of 'default-logind'"), and does not report the name. It refuses if there is
# no provider, or a choice of several.
ANY_PROVIDER: Final = KnownAfter("", "dependency", auto=True)


@dataclass(frozen=True, slots=True)
class Action:
    """A package that a simulated transaction would install, upgrade or remove.

    Attributes:
        version: after the transaction; empty for a removal.
        former: before it; empty for a new package.
        downgrade: whether ``version`` comes before ``former``.
    """

    verb: Literal["install", "remove", "purge"]
    id: PackageId
    version: str = ""
    former: str = ""
    downgrade: bool = False


@dataclass(frozen=True, slots=True)
class Simulation:
    """The package manager's simulation of a transaction.

    Attributes:
        problem: its refusal, verbatim; or, after ``NOT_SIMULATED_PREFIX``, why there was no simulation.
        manager: its usual name.
    """

    actions: tuple[Action, ...]
    problem: str = ""
    manager: str = "the package manager"


def is_downgrade(change: PackageChange, is_older: Callable[[str, str], bool]) -> bool:
    """Return whether an installed package is downgraded, in the order of ``is_older``."""
    if change.before is None or not change.exists_before:
        return False
    match change.after:
        case PackageState(version=version, config_files_only=False):
            return is_older(version, change.before.version)
        case KnownAfter(prefix=prefix) if prefix and not has_prefix(change.before.version, prefix):
            return is_older(prefix.rstrip(".-+~:"), without_epoch(change.before.version))
        case _:
            return False


def differences_from_plan(changes: Sequence[PackageChange], simulation: Simulation) -> tuple[str, ...]:
    """Return the differences between a simulation and the plan, a sentence each; none if they agree."""
    if simulation.problem:
        return (f"{simulation.manager} refuses: {simulation.problem}",)
    manager, planned = simulation.manager, {change.id: change for change in changes}
    done = {action.id: action for action in simulation.actions}
    return (
        *(
            f"{manager} {difference}"
            for action in simulation.actions
            for difference in _contradiction_of_plan(action, planned.get(action.id))
        ),
        *(
            f"the plan {difference}"
            for change in changes
            for difference in _missing_action(change, done.get(change.id), manager)
        ),
    )


def _contradiction_of_plan(action: Action, change: PackageChange | None) -> Iterator[str]:
    if action.verb in ("remove", "purge"):
        if change is None:
            yield f"would {action.verb} {action.id} {action.former}".rstrip() + ", which the plan keeps"
        elif change.exists_after:
            yield f"would {action.verb} {action.id}, which the plan installs"
        elif action.verb == "purge" and change.after is not None:
            yield f"would purge {action.id}, whose configuration files the plan keeps"
    elif change is None and action.downgrade:
        yield f"would downgrade {action.id} from {action.former} to {action.version}, which is not in the plan"
    elif change is not None and not change.exists_after:
        yield f"would install {action.id} {action.version}, which the plan removes"


def _missing_action(change: PackageChange, action: Action | None, manager: str) -> Iterator[str]:
    if change.after is not None and change.exists_after:
        yield from _wrong_version(change.id, change.after, _version_after(change, action), manager)
    elif action is None and (change.exists_before or (change.before is not None and change.after is None)):
        yield f"removes {change.id}, which {manager} would keep"


def _version_after(change: PackageChange, action: Action | None) -> str:
    if action is not None:
        return action.version
    return change.before.version if change.before is not None and change.exists_before else ""


def _wrong_version(package: PackageId, wanted: PackageState | KnownAfter, version: str, manager: str) -> Iterator[str]:
    if not version and wanted == ANY_PROVIDER:
        return
    if not version:
        yield f"installs {package}, which {manager} would leave out"
    elif isinstance(wanted, PackageState) and wanted.version != version:
        yield f"installs {package} {wanted.version}, {manager} would leave it at {version}"
    elif isinstance(wanted, KnownAfter) and not has_prefix(version, wanted.prefix):
        yield f"installs {package} {wanted.prefix}*, {manager} would leave it at {version}"
