"""log and ``rollback --list``: what gpunode did here, and what of it can be undone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from gpunode.cli.compose import checked_root, cluster_journal
from gpunode.cli.envelope import Envelope
from gpunode.cli.output_options import OutputOptions
from gpunode.errors import UsageError
from gpunode.journal.store import Store
from gpunode.workflow.log import list_runs

if TYPE_CHECKING:
    from gpunode.host.port import HostView
    from gpunode.journal.chronicle import RunRecord


_OWN_FILES: Final = ("/etc/*/gpunode-*", "/etc/*/*/gpunode-*", "/etc/*/*/*/gpunode-*")


def runs(how: OutputOptions, root: str, file: str) -> None:
    """Lists the recorded runs, or those that changed ``file``, with what others left beside it."""
    from gpunode.cli.screen.plans import note
    from gpunode.cli.screen.results import leftover_lines, runs_lines
    from gpunode.host.local import LocalHost
    from gpunode.workflow.prospects import preview_rollback

    place = checked_root(root)
    store, host = Store(place), LocalHost(place)
    found = [run for run in store.runs() if not file or file in run.subjects]
    left = beside(host, file) if file else ()
    notes = () if found or file else explain_lost_record(host, store)
    prospects = {run.run: preview_rollback(store, host, run) for run in found}
    screen = how.screen()
    screen.put(*runs_lines(found, prospects, str(store.folder), file), *leftover_lines(file, left), *map(note, notes))
    how.answer(Envelope("rollback", notes=notes, result={"runs": found, "undo": prospects, "leftovers": left}))


def explain_lost_record(host: HostView, store: Store) -> tuple[str, ...]:
    """Return the sentence that says that a record of this node was lost; none where nothing tells of one."""
    from gpunode.facts.evidence import Probe

    # Every file that gpunode alone writes has such a name; a node without one costs no look at all the rest.
    if not any(host.look(Probe("own-files", glob=place, contents=False)).data for place in _OWN_FILES):
        return ()
    from gpunode.workflow.converge import survey
    from gpunode.workflow.recovery import find_lost_record

    lost = find_lost_record(store, survey(host, image=str(store.root) != "/"))
    return (str(lost),) if lost else ()


def beside(host: HostView, path: str) -> tuple[str, ...]:
    """The files beside ``path`` that other tools or people left there as its former versions."""
    from gpunode.facts.evidence import Probe, decode_found
    from gpunode.workflow.undo import find_leftovers

    looked = host.look(Probe("beside", glob=f"{path}*", contents=False))
    return tuple(find_leftovers(path, (one.path for one in decode_found(looked.data))))


def log(run: str, how: OutputOptions, root: str) -> None:
    """Shows the recorded runs, or all that is recorded of one."""
    from gpunode.cli import audit
    from gpunode.cli.screen.log import run_lines, table_lines
    from gpunode.cli.screen.plans import note
    from gpunode.host.local import LocalHost

    found = _told(run, root)
    logins = _logins({one.begin.loginuid for one in found})
    screen = how.screen()
    screen.put(*(run_lines(found[0], logins) if run else table_lines(found)))
    notes: tuple[str, ...] = ()
    if not found:
        place = checked_root(root)
        notes = explain_lost_record(LocalHost(place), Store(place))
        screen.put(*map(note, notes))
    if run:
        result = {"schema": audit.SCHEMA, "run": audit.whole(found[0], logins)}
    else:
        result = {"schema": audit.SCHEMA, "runs": [audit.summary(one, logins) for one in found]}
    how.answer(Envelope("log", notes=notes, result=result))


def _told(run: str, root: str) -> tuple[RunRecord, ...]:
    """The runs on this node, and this user's in clusters; those that this user may read."""
    if run.startswith("k"):
        return list_runs(cluster_journal(), run[1:])
    clusters = () if run or root != "/" else list_runs(cluster_journal())
    try:
        return (*list_runs(Store(checked_root(root)), run), *clusters)
    except UsageError:
        if run or not clusters:
            raise
        return clusters


def _logins(uids: Iterable[int | None]) -> dict[int, str]:
    """The names of those of ``uids`` that this machine knows, on which the runs were made, also those for an image."""
    import pwd
    from contextlib import suppress

    names: dict[int, str] = {}
    for uid in uids:
        with suppress(KeyError):
            if uid is not None:
                names[uid] = pwd.getpwuid(uid).pw_name
    return names
