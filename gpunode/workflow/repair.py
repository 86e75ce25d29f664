"""Finish interrupted package changes before the packages are listed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpunode.change import CommandChange, PackageChange
from gpunode.errors import GpunodeError, Interrupted
from gpunode.facts.model import Facts, known
from gpunode.host.port import Host
from gpunode.journal.store import Store
from gpunode.packages import system
from gpunode.workflow.apply import Applier
from gpunode.workflow.events import Observer


def find_repair(facts: Facts) -> CommandChange | None:
    """Return what finishes an interrupted change of packages; None if there is none.

    Until then the package database is not what is on the disk, and a package that lost some of its files can neither be
    called installed nor be removed.
    """
    return system(facts).repair if known(facts.packages_interrupted, default=False) else None


def is_superseded(facts: Facts, changes: Iterable[PackageChange]) -> bool:
    """Return whether ``changes`` remove or replace all that the repair would configure.

    Such packages are not configured first: a driver's module that did not build would not build again.
    """
    return bool(facts.unconfigured) and facts.unconfigured <= {one.id for one in changes if one.ends_version}


def run_repair(
    work: CommandChange,
    host: Host,
    store: Store,
    *,
    version: str,
    argv: tuple[str, ...],
    on_event: Observer,
    pause: Callable[[], None],
) -> None:
    """Carry out ``work`` as a run of its own.

    Raises:
        ChangeFailed: if that failed; nothing else was touched.
    """
    run = store.begin("repair", version=version, argv=argv)
    applier = Applier(host, run, on_event, pause)
    try:
        applier.pause()
        applier.apply_change("sources", "repair", work, work.purpose)
    except GpunodeError as error:
        run.commit("interrupted" if isinstance(error, Interrupted) else "failed", error.what)
        raise
    run.commit("done")
