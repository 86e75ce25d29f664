"""log and ``rollback --list``: show recorded runs, and which can be undone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from gpunode.cli.envelope import Envelope
from gpunode.cli.inputs import open_cluster_journal, validate_root
from gpunode.cli.output_options import OutputOptions
from gpunode.errors import UsageError
from gpunode.journal.chronicle import list_runs
from gpunode.journal.store import Store

if TYPE_CHECKING:
    from gpunode.host.port import HostView
    from gpunode.journal.chronicle import RunRecord


_OWN_FILES: Final = ("/etc/*/gpunode-*", "/etc/*/*/gpunode-*", "/etc/*/*/*/gpunode-*")


def show_runs(output: OutputOptions, root: str, file: str) -> None:
    """List the recorded runs, or those that changed ``file`` with backups of other tools beside it."""
    from gpunode.cli import audit
    from gpunode.cli.screen.plans import note_line
    from gpunode.cli.screen.results import leftover_lines, runs_lines
    from gpunode.host.local import LocalHost
    from gpunode.workflow.rollback import preview_rollback

    place = validate_root(root)
    store, host = Store(place), LocalHost(place)
    found = [run for run in store.runs() if not file or file in run.subjects]
    left = list_leftovers(host, file) if file else ()
    notes = () if found or file else explain_lost_record(host, store)
    previews = {run.run: preview_rollback(store, host, run) for run in found}
    screen = output.open_screen()
    screen.put(
        *runs_lines(found, previews, str(store.folder), file), *leftover_lines(file, left), *map(note_line, notes)
    )
    newest, is_locked = store.ids()[-1:], store.at_work() is not None
    rows = [audit.undo_record(run, previews[run.run], is_running=is_locked and run.run in newest) for run in found]
    output.emit(Envelope("rollback", notes=notes, result={"runs": rows, "leftovers": left}))


def explain_lost_record(host: HostView, store: Store) -> tuple[str, ...]:
    """Return a sentence about a lost record of this node; none if nothing indicates one."""
    from gpunode.facts.evidence import Probe

    # Every file that gpunode alone writes has such a name; a node without one costs no look at all the rest.
    if not any(host.run_probe(Probe("own-files", glob=place, contents=False)).data for place in _OWN_FILES):
        return ()
    from gpunode.workflow.converge import survey
    from gpunode.workflow.recovery import find_lost_record

    lost = find_lost_record(store, survey(host, image=str(store.root) != "/"))
    return (str(lost),) if lost else ()


def list_leftovers(host: HostView, path: str) -> tuple[str, ...]:
    """Return old versions of ``path`` beside it that other tools or people left."""
    from gpunode.facts.evidence import Probe, decode_found
    from gpunode.workflow.undo import find_leftovers

    looked = host.run_probe(Probe("beside", glob=f"{path}*", contents=False))
    return tuple(find_leftovers(path, (one.path for one in decode_found(looked.data))))


def show_log(run: str, output: OutputOptions, root: str) -> None:
    """Show the recorded runs, or the complete record of one."""
    from gpunode.cli import audit
    from gpunode.cli.screen.log import run_lines, run_table_lines
    from gpunode.cli.screen.plans import note_line
    from gpunode.host.local import LocalHost

    found = _load_runs(run, root)
    logins = _login_names({one.begin.loginuid for one in found})
    screen = output.open_screen()
    screen.put(*(run_lines(found[0], logins) if run else run_table_lines(found)))
    notes: tuple[str, ...] = ()
    if not found:
        place = validate_root(root)
        notes = explain_lost_record(LocalHost(place), Store(place))
        screen.put(*map(note_line, notes))
    if run:
        result = {"schema": audit.SCHEMA, "run": audit.full_run_record(found[0], logins)}
    else:
        result = {"schema": audit.SCHEMA, "runs": [audit.summarize_run(one, logins) for one in found]}
    output.emit(Envelope("log", notes=notes, result=result))


def _load_runs(run: str, root: str) -> tuple[RunRecord, ...]:
    """Return the runs on this node and this user's in clusters, as far as they are readable."""
    if run.startswith("k"):
        return list_runs(open_cluster_journal(), run[1:])
    clusters = () if run or root != "/" else list_runs(open_cluster_journal())
    try:
        return (*list_runs(Store(validate_root(root)), run), *clusters)
    except UsageError:
        if run or not clusters:
            raise
        return clusters


def _login_names(uids: Iterable[int | None]) -> dict[int, str]:
    """Return the user names of ``uids`` on this machine, which made the runs, those for an image too."""
    import pwd
    from contextlib import suppress

    names: dict[int, str] = {}
    for uid in uids:
        with suppress(KeyError):
            if uid is not None:
                names[uid] = pwd.getpwuid(uid).pw_name
    return names
