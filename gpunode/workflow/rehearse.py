"""rehearse: run setup, verify and rollback completely on a node in memory; nothing on this machine is touched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from gpunode.check import Check
from gpunode.facts.evidence import Evidence
from gpunode.facts.model import Facts, Known
from gpunode.fast_dataclass import dataclass
from gpunode.host.rehearsal import RehearsalHost
from gpunode.journal.store import Store
from gpunode.recipe import Recipe
from gpunode.runtimes import find_runtime
from gpunode.workflow.converge import project_stage
from gpunode.workflow.events import Observer, ignore_event
from gpunode.workflow.rollback import UndoResult, execute_undo, plan_rollback
from gpunode.workflow.setup import SetupOptions, SetupResult, setup
from gpunode.workflow.verify import check_configuration, check_mig_layout


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The results of a rehearsal.

    Attributes:
        checks: what verify could check without a node, and what it could not.
        restored: for each configuration file of the rollback, whether its content, mode and owner are as before.
    """

    setup: SetupResult
    checks: tuple[Check, ...]
    rollback: UndoResult | None = None
    restored: Mapping[str, bool] = field(default_factory=dict)


def rehearse(
    recipe: Recipe, facts: Facts, evidence: Evidence, store: Store, *, options: SetupOptions, on_event: Observer
) -> Rehearsal:
    """Rehearse setup, verify and rollback on the node that ``evidence`` was captured from.

    ``store`` is a journal in a temporary folder.

    Raises:
        GpunodeError: the same errors as ``setup``.
    """
    files = {path: fact.value for path, fact in facts.files.items() if isinstance(fact, Known)}
    host = RehearsalHost(evidence, files)
    done = setup(recipe, host, store, facts, advance=project_stage, options=options, on_event=on_event)
    checks = _checks(recipe, done.facts, host)
    if not done.run:
        return Rehearsal(done, checks)
    back = plan_rollback(store, host, done.run)
    # Ignore its events: the result reports every file at the end.
    undone = execute_undo(back, host, store, on_event=ignore_event)
    restored = {change.path: host.files.get(change.path) == files.get(change.path) for change in back.files}
    return Rehearsal(done, checks, undone, restored)


def _checks(recipe: Recipe, facts: Facts, host: RehearsalHost) -> tuple[Check, ...]:
    converged, mig = check_configuration(recipe, facts, host), tuple(check_mig_layout(recipe, facts))
    if converged.status == "passed" and any(check.status == "skipped" for check in mig):
        converged = replace(converged, status="skipped", detail="nothing is left to do but the MIG layout")
    driver = Check("nvml", "the driver answers (NVML)", "skipped", "a rehearsal has no driver")
    if recipe.runtime.name == "none" or not find_runtime(recipe.runtime.name).unit:
        return (converged, *mig, driver)
    daemon = Check("runtime", f"{recipe.runtime.name} reads its configuration", "skipped", "a rehearsal has no daemon")
    return (converged, *mig, driver, daemon)
