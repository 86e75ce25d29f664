"""Preview rollbacks: compare recorded runs with the node, and change nothing."""

from __future__ import annotations

from gpunode.errors import GpunodeError
from gpunode.host.port import Host
from gpunode.journal.history import RunSummary, run_number
from gpunode.journal.store import Store
from gpunode.workflow.rollback import plan_rollback


def preview_rollback(store: Store, host: Host, run: RunSummary) -> str:
    """Return in a few words what a rollback of ``run`` would do now; packages are not compared."""
    by = f"undone by run {run_number(run.undone_by)}" if run.undone_by else ""
    if run.forgotten:
        return "cannot be undone: its backups are forgotten"
    if run.is_fully_undone:
        return by
    beyond = "needs --packages" if run.other_subjects else ""
    if not run.configuration:
        return f"can be undone now: {beyond}" if beyond else "changed nothing that can be undone"
    rest = f"; the rest {beyond}" if beyond else ""
    if by:
        return by + rest
    try:
        back = plan_rollback(store, host, run.run, disrupt=True)
    except GpunodeError as error:
        return f"cannot be undone now: {error.what}"
    return "can be undone now" if back.steps else f"its files are already restored or gone{rest}"
