"""Package changes as apt's arguments."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from gpunode.change import KnownAfter, PackageChange
from gpunode.package_id import PackageId
from gpunode.packages.deb.version import is_older
from gpunode.packages.simulation import is_downgrade, leaves_config_files


def purged_by_dpkg(changes: Sequence[PackageChange]) -> tuple[PackageId, ...]:
    """The packages that dpkg purges after apt has removed them.

    apt's ``--purge`` is for a whole transaction: once a package must leave its configuration files behind, it is not
    given, and the others are purged afterwards.
    """
    if not any(leaves_config_files(change) for change in changes):
        return ()
    return tuple(change.id for change in changes if change.after is None)


def arguments(changes: Sequence[PackageChange], known: Collection[PackageId]) -> tuple[str, ...]:
    """The arguments of ``apt-get install``: the options that the plan allows, then the packages; empty for no work.

    Nothing can bring back the configuration files that a purge took: such a change asks for nothing, and the files
    come back by file changes of their own.

    Args:
        changes: one transaction.
        known: the packages of which dpkg has something; apt refuses ``name-`` for a name that nothing knows any more.
    """
    packages = tuple(_package_arguments(changes, known))
    return (*_permission_options(changes), *packages) if packages else ()


def _package_arguments(changes: Sequence[PackageChange], known: Collection[PackageId]) -> Iterator[str]:
    by_dpkg = purged_by_dpkg(changes)
    for change in changes:
        if change.is_mark:
            continue  # apt-mark's work
        if isinstance(change.after, KnownAfter):
            # Of a branch the preferences choose the version; of one version apt has to be told.
            yield f"{change.id}={change.after.prefix}*" if change.after.prefix.endswith("-") else str(change.id)
        elif change.after is not None and not change.after.config_files_only:
            yield f"{change.id}={change.after.version}"
        elif change.id in known and (change.is_there_before or (change.after is None and not by_dpkg)):
            yield f"{change.id}-"


def _permission_options(changes: Sequence[PackageChange]) -> Iterator[str]:
    """No more than the plan says: apt grants each of these to the whole transaction, hence ``unplanned``."""
    if any(change.after is None for change in changes) and not purged_by_dpkg(changes):
        yield "--purge"
    if any(is_downgrade(change, is_older) for change in changes):
        yield "--allow-downgrades"
    if any(change.before is not None and change.before.held for change in changes):
        yield "--allow-change-held-packages"
