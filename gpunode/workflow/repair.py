"""dpkg's unfinished work is finished before anybody asks which packages there are."""

from __future__ import annotations

from collections.abc import Callable

from gpunode.change import CommandChange
from gpunode.errors import GpunodeError, Interrupted
from gpunode.facts.model import Facts, known
from gpunode.host.port import Host
from gpunode.journal.store import Store
from gpunode.steps.repair import UNFINISHED
from gpunode.workflow.apply import Applier
from gpunode.workflow.events import Observer


def unfinished(facts: Facts) -> CommandChange | None:
    """What finishes the work in whose middle dpkg was stopped; None when there is none.

    Until then dpkg's status is not what is on the disk, and a package that lost some of its files can neither be
    called installed nor be removed.
    """
    return UNFINISHED if known(facts.dpkg_interrupted, default=False) else None


def finish(
    work: CommandChange,
    host: Host,
    store: Store,
    *,
    version: str,
    argv: tuple[str, ...],
    tell: Observer,
    pause: Callable[[], None],
) -> None:
    """``work`` is done, as a run of its own.

    Raises:
        ChangeFailed: it could not be; nothing else was touched.
    """
    run = store.begin("repair", version=version, argv=argv)
    applier = Applier(host, run, tell, pause)
    try:
        applier.pause()
        applier.one("sources", "repair", work, work.why)
    except GpunodeError as error:
        run.commit("interrupted" if isinstance(error, Interrupted) else "failed", error.what)
        raise
    run.commit("done")
