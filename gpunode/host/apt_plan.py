"""Package changes as apt's arguments, and whether apt's simulation matches the plan. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpunode.change import KnownAfter, PackageChange, PackageState, is_mark
from gpunode.distros.dpkg_version import DpkgVersion
from gpunode.host.port import Action, Simulation


def is_removal(change: PackageChange) -> bool:
    """Whether the package goes, with its configuration files or without."""
    return change.after is None or _is_residue(change.after)


def is_install(change: PackageChange) -> bool:
    """Whether the package is there afterwards."""
    return not is_removal(change)


def _is_residue(state: PackageState | KnownAfter | None) -> bool:
    return isinstance(state, PackageState) and state.config_files_only


def _is_installed(state: PackageState | None) -> bool:
    return state is not None and not state.config_files_only


def purged_by_dpkg(changes: Sequence[PackageChange]) -> tuple[str, ...]:
    """The packages that dpkg purges after apt has removed them.

    apt's ``--purge`` is for a whole transaction: once a package must leave its configuration files behind, it is not
    given, and the others are purged afterwards.
    """
    if not any(_is_residue(change.after) for change in changes):
        return ()
    return tuple(change.name for change in changes if change.after is None)


def arguments(changes: Sequence[PackageChange], known: frozenset[str]) -> tuple[str, ...]:
    """The arguments of ``apt-get install``: the options that the plan allows, then the packages; empty for no work.

    Nothing can bring back the configuration files that a purge took: such a change asks for nothing, and the files
    come back by file changes of their own.

    Args:
        changes: one transaction.
        known: the packages of which dpkg has something; apt refuses ``name-`` for a name that nothing knows any more.
    """
    packages = tuple(_packages(changes, known))
    return (*_leave(changes), *packages) if packages else ()


def _packages(changes: Sequence[PackageChange], known: frozenset[str]) -> Iterator[str]:
    by_dpkg = purged_by_dpkg(changes)
    for change in changes:
        if is_mark(change):
            continue  # apt-mark's work
        if isinstance(change.after, KnownAfter):
            # Of a branch the preferences choose the version; of one version apt has to be told.
            yield f"{change.name}={change.after.prefix}*" if change.after.prefix.endswith("-") else change.name
        elif change.after is not None and not change.after.config_files_only:
            yield f"{change.name}={change.after.version}"
        elif change.name in known and (_is_installed(change.before) or (change.after is None and not by_dpkg)):
            yield f"{change.name}-"


def _leave(changes: Sequence[PackageChange]) -> Iterator[str]:
    """No more than the plan says: apt grants each of these to the whole transaction, hence ``unplanned``."""
    if any(change.after is None for change in changes) and not purged_by_dpkg(changes):
        yield "--purge"
    if any(lowers(change) for change in changes):
        yield "--allow-downgrades"
    if any(change.before is not None and change.before.held for change in changes):
        yield "--allow-change-held-packages"


def lowers(change: PackageChange) -> bool:
    """Whether an installed package goes back to an older version."""
    if change.before is None or not _is_installed(change.before):
        return False
    match change.after:
        case PackageState(version=version, config_files_only=False):
            return _is_older(version, change.before.version)
        case KnownAfter(prefix=prefix) if prefix and not has_prefix(change.before.version, prefix):
            return _is_older(prefix.rstrip(".-+~:"), DpkgVersion(change.before.version).without_epoch)
        case _:
            return False


def unplanned(changes: Sequence[PackageChange], simulation: Simulation) -> tuple[str, ...]:
    """The differences between apt's simulation and the plan, a sentence each; none when they agree."""
    if simulation.problem:
        return (f"apt refuses: {simulation.problem}",)
    planned = {change.name: change for change in changes}
    done = {action.name: action for action in simulation.actions}
    return (
        *(said for action in simulation.actions for said in _unasked(action, planned.get(action.name))),
        *(said for change in changes for said in _missed(change, done.get(change.name))),
    )


def _unasked(action: Action, change: PackageChange | None) -> Iterator[str]:
    if action.verb in ("remove", "purge"):
        if change is None:
            yield f"apt would {action.verb} {action.name} {action.former}".rstrip() + ", which the plan keeps"
        elif is_install(change):
            yield f"apt would {action.verb} {action.name}, which the plan installs"
        elif action.verb == "purge" and change.after is not None:
            yield f"apt would purge {action.name}, whose configuration files the plan keeps"
    elif change is None and action.former and _is_older(action.version, action.former):
        yield f"apt would downgrade {action.name} from {action.former} to {action.version}, which is not in the plan"
    elif change is not None and is_removal(change):
        yield f"apt would install {action.name} {action.version}, which the plan removes"


def _missed(change: PackageChange, action: Action | None) -> Iterator[str]:
    if change.after is not None and is_install(change):
        yield from _wrong_version(change.name, change.after, _version_after(change, action))
    elif action is None and (_is_installed(change.before) or (change.before is not None and change.after is None)):
        yield f"the plan removes {change.name}, which apt would keep"


def _version_after(change: PackageChange, action: Action | None) -> str:
    if action is not None:
        return action.version
    return change.before.version if change.before is not None and _is_installed(change.before) else ""


def _wrong_version(name: str, wanted: PackageState | KnownAfter, version: str) -> Iterator[str]:
    if not version:
        yield f"the plan installs {name}, which apt would leave out"
    elif isinstance(wanted, PackageState) and wanted.version != version:
        yield f"the plan installs {name} {wanted.version}, apt would leave it at {version}"
    elif isinstance(wanted, KnownAfter) and not has_prefix(version, wanted.prefix):
        yield f"the plan installs {name} {wanted.prefix}*, apt would leave it at {version}"


def has_prefix(version: str, prefix: str) -> bool:
    """Whether ``version``, its epoch left out, starts with ``prefix``."""
    return DpkgVersion(version).without_epoch.startswith(prefix)


def _is_older(version: str, other: str) -> bool:
    return DpkgVersion(version) < DpkgVersion(other)
