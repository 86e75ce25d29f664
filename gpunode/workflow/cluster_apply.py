"""Apply a plan to a cluster: journaled, in waves, waiting for each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from itertools import groupby
from typing import Any, Final, TypeAlias

from gpunode.change import CommandChange, ObjectChange
from gpunode.command import gpunode_command
from gpunode.errors import ChangeFailed, Conflict, GpunodeError, Interrupted, VerifyFailed
from gpunode.fast_dataclass import dataclass
from gpunode.host.cluster import Cluster
from gpunode.host.helm import ReleaseFailed
from gpunode.host.kubectl import Forbidden
from gpunode.host.port import OnProgress
from gpunode.journal.history import run_label
from gpunode.journal.run import Run
from gpunode.kubernetes.model import Body
from gpunode.kubernetes.owned import (
    disowning_patch,
    explain_deletion,
    is_applied_client_side,
    other_managers,
    split_owners,
)
from gpunode.kubernetes.reconcile import (
    ObjectKey,
    PlanItem,
    current_fields,
    field_manager_of,
    fields_before,
    format_taints_in,
    is_kept_on_removal,
    object_key,
    object_ref,
    own_taint,
    without_taints,
)
from gpunode.workflow.cluster_plan import ClusterPlan, conflict_error
from gpunode.workflow.cluster_workloads import ReadinessWait, describe_namespace_contents, poll_deletions
from gpunode.workflow.events import Applied, Applying, Observer

BeginRun: TypeAlias = Callable[[], Run]
_AGAIN: Final = "\nthen run the same command again"


def apply_plan(plan: ClusterPlan, begin: BeginRun, *, wait: ReadinessWait, on_event: Observer) -> str:
    """Apply the plan's changes wave by wave, and wait until the workloads run.

    Returns:
        The run's id.

    Raises:
        Refused: Helm cannot load a chart; nothing was changed.
        ChangeFailed, Conflict: the API server rejects a change; earlier changes stay and are journaled.
        VerifyFailed: a workload is not ready in time; names the changes that were not applied.
        Interrupted: on a signal; what was applied by then stays.
    """
    _refuse_stale_plan(plan, wait.cluster)
    changed = {item.title for item in plan.changes}
    for release in plan.releases:
        if release.title in changed:
            wait.cluster.helm.require_chart(release.chart_words, release.version)
    common = (on_event, wait.on_progress, wait.check_interrupt)
    with journal_run(begin) as run, _add_rollback_hint(_ItemApplier(wait.cluster, run, *common)) as applier:
        for number, group in groupby(plan.changes, key=lambda item: item.wave):
            wave = tuple(group)
            try:
                applier.apply(wave)
            except ReleaseFailed as error:
                wait.add_reason(error, plan.releases)
                raise
            unapplied = [change.title for change in plan.changes if change.wave > number]
            for item in wave:
                if item.kind == "DaemonSet" and item.state != "delete":
                    try:
                        wait.wait_for_daemon_set(item)
                    except VerifyFailed as error:
                        if not unapplied:
                            raise
                        why = f"{error.why}; not applied yet: {', '.join(unapplied)}"
                        hint = f"{error.hint}{_AGAIN}"
                        raise _PartialApplyError(error.what, why=why, hint=hint) from error
        # Unchanged DaemonSets start pods on a node that was just labelled.
        wait.wait_for_rest(plan.items, plan.releases)
    return run.id


def apply_removal(
    plan: ClusterPlan,
    cluster: Cluster,
    begin: BeginRun,
    *,
    on_event: Observer,
    on_progress: OnProgress,
    check_interrupt: Callable[[], None],
) -> str:
    """Apply the plan of a removal or a rollback; see ``apply_plan``.

    Returns:
        The run's id.
    """
    _refuse_stale_plan(plan, cluster)
    failures: list[tuple[str, GpunodeError]] = []
    with journal_run(begin) as run:
        _ItemApplier(cluster, run, on_event, on_progress, check_interrupt, failures).apply(plan.items)
        if failures:
            kind = Conflict if all(isinstance(error, Conflict) for _, error in failures) else ChangeFailed
            hint, titles = failures[0][1].hint, [title for title, _ in failures]
            is_removed = all(item.state == "delete" for item in plan.items if item.title in titles)
            raise kind(
                f"{', '.join(titles)} could not be {'removed' if is_removed else 'changed'}; everything else is done",
                why="\n".join(error.what_and_why for _, error in failures),
                hint=f"{hint}{'' if 'run the same command again' in hint else _AGAIN}",
            )
    return run.id


def _refuse_stale_plan(plan: ClusterPlan, cluster: Cluster) -> None:
    """Refuse a plan whose objects changed since: another gpunode applies as the same field manager.

    Raises:
        Conflict: an object changed, or an object to be deleted has other owners now; nothing is changed.
    """
    changes = ObjectChange.of_kind(change.change for change in plan.changes)
    live = {object_key(live): live for live in cluster.get([object_ref(change) for change in changes])}

    def is_stale(change: ObjectChange) -> bool:
        now = live.get(change.key)
        is_deleted = now is not None and change.after is None and not change.shared
        is_shared_now = is_deleted and now is not None and (is_kept_on_removal(now) or is_applied_client_side(now))
        return fields_before(change, now) != change.before or is_shared_now

    if stale := [change.subject for change in changes if is_stale(change)]:
        raise _stale_plan_error(", ".join(stale), "nothing was changed by this one")


def _stale_plan_error(subjects: str, state: str) -> Conflict:
    return Conflict(
        f"{subjects} changed since the plan was made",
        why=f"another gpunode, or somebody else, applied something meanwhile; {state}",
        hint="run the same command again: it makes a new plan",
    )


class _PartialApplyError(VerifyFailed):
    """A workload did not become ready, so later changes were not applied."""

    meaning = VerifyFailed.meaning


@contextmanager
def journal_run(begin: BeginRun) -> Iterator[Run]:
    """Begin a journaled run for the body, and record how it ends."""
    run = begin()
    try:
        yield run
    except GpunodeError as error:
        if isinstance(error, VerifyFailed) and not isinstance(error, _PartialApplyError):
            run.commit("done")
        elif isinstance(error, Interrupted):
            run.commit("interrupted", str(error))
        else:
            run.commit("failed", error.what_and_why)
        raise
    else:
        run.commit("done")
    finally:
        run.close()


@contextmanager
def _add_rollback_hint(applier: _ItemApplier) -> Iterator[_ItemApplier]:
    """Add to an error the command that undoes what was changed before it, if anything was."""
    try:
        yield applier
    except GpunodeError as error:
        if applier.has_changed_cluster:
            undo = gpunode_command("rollback", run_label(applier.run.id, "k8s apply"))
            error.hint += f"\nor undo what was changed: {undo}"
        raise


@dataclass(slots=True)
class _ItemApplier:
    """Applies items of a plan in a run, each journaled first.

    Attributes:
        failures: receives the title and error of each rejected change; if None, the first error ends the run.
        has_changed_cluster: whether the API server or Helm accepted a change; a deletion may not have ended.
    """

    cluster: Cluster
    run: Run
    on_event: Observer
    on_progress: OnProgress
    check_interrupt: Callable[[], None]
    failures: list[tuple[str, GpunodeError]] | None = None
    has_changed_cluster: bool = False
    _deleted: dict[ObjectKey, _Deletion] = field(default_factory=dict)

    def apply(self, items: Iterable[PlanItem]) -> None:
        """Apply the changes of ``items``.

        Deletions are awaited together, at the end or before the next object is created: a device plugin that stops
        removes the socket of its successor, and the kubelet then marks the GPUs unhealthy. Source:
        NVIDIA/k8s-device-plugin, Stop; kubelet, devicemanager, PluginDisconnected.
        """
        with _name_begun_deletions(self._deleted):
            for item in items:
                if item.change is None:
                    continue
                if _makes_objects(item.change):
                    self._await_deletions()
                self.check_interrupt()
                self.on_event(Applying("cluster", (item.change,)))
                seq = self.run.record_intent("kubernetes", "cluster", item.change, item.why)
                began = time.monotonic()
                try:
                    apply_change(item.change, self.cluster)
                except GpunodeError as error:
                    # A release that fails has changed the cluster all the same.
                    self.has_changed_cluster |= isinstance(error, ReleaseFailed)
                    self._record_failure(seq, item.title, error)
                    continue
                self.has_changed_cluster = True
                if isinstance(item.change, ObjectChange) and _is_deletion(item.change):
                    self._deleted[item.change.key] = _Deletion(item.title, item.change, seq, began)
                else:
                    self._record_done(seq, item.change, began)
            self._await_deletions()

    def _await_deletions(self) -> None:
        """Journal each deletion as done once its object is gone; the rest have failed after the timeout."""
        shown: ObjectKey | None = None
        left: Sequence[Body] = ()
        references = [object_ref(deletion.change) for deletion in self._deleted.values()]
        for left in poll_deletions(references, self.cluster, self.on_progress):
            present = set(map(object_key, left))
            for key in [key for key in self._deleted if key not in present]:
                gone = self._deleted.pop(key)
                self._record_done(gone.seq, gone.change, gone.began)
                shown = None
            if left and shown not in self._deleted:
                shown = next(iter(self._deleted))
                self.on_event(Applying("cluster", (self._deleted[shown].change,)))
            self.check_interrupt()
        for live in left:
            kept, found = self._deleted.pop(object_key(live)), explain_deletion(live) or ("", "")
            error = ChangeFailed(f"{kept.change.subject} is still being deleted", why=found[0], hint=found[1])
            self._record_failure(kept.seq, kept.title, error)

    def _record_done(self, seq: int, change: ObjectChange | CommandChange, began: float) -> None:
        self.run.record_done(seq)
        self.on_event(Applied("cluster", (change,), time.monotonic() - began))

    def _record_failure(self, seq: int, title: str, error: GpunodeError) -> None:
        self.run.record_failed(seq, error.what_and_why)
        if self.failures is None or not isinstance(error, ChangeFailed | Conflict | Forbidden):
            raise error
        self.failures.append((title, error))


@contextmanager
def _name_begun_deletions(deleted: Mapping[ObjectKey, _Deletion]) -> Iterator[None]:
    """Add to an error that the cluster continues with the deletions, although gpunode stops waiting."""
    try:
        yield
    except GpunodeError as error:
        if deleted:
            subjects = ", ".join(deletion.change.subject for deletion in deleted.values())
            error.why = "; ".join(filter(None, (error.why, f"the cluster still deletes {subjects}")))
        raise


@dataclass(frozen=True, slots=True)
class _Deletion:
    """A deletion that the API server has begun, with its sequence number in the journal."""

    title: str
    change: ObjectChange
    seq: int
    began: float


def _is_deletion(change: ObjectChange) -> bool:
    return change.after is None and not change.shared and change.kind != "Node"


def _makes_objects(change: ObjectChange | CommandChange) -> bool:
    return not isinstance(change, ObjectChange) or (change.after is not None and change.kind != "Node")


def apply_change(change: ObjectChange | CommandChange, cluster: Cluster) -> None:
    """Apply an object's fields ``change.after``, and restore the owners recorded with them, or run its Helm command."""
    if isinstance(change, CommandChange):
        cluster.helm.run(change.argv[1:])
        return
    manager = field_manager_of(change.kind)
    if change.kind == "Node":
        _apply_node(change, cluster, manager)
    elif change.after is not None:
        body, owners = split_owners(json.loads(change.after))
        stored = _apply_object(body, cluster, manager)
        if owners and not other_managers(stored, (manager,)):  # nobody made it anew since
            cluster.patch(body, [{"op": "replace", "path": "/metadata/managedFields", "value": owners}], manager)
    elif change.shared:
        reference = object_ref(change)
        # Fields that the object needs keep our values, but we give up their ownership.
        if not cluster.dry_run([reference], manager).errors:
            cluster.apply(reference, manager)
            return
        for live in cluster.get([reference]):
            cluster.patch(reference, disowning_patch(live, manager), manager)
    else:
        if change.kind == "Namespace" and (others := ", ".join(describe_namespace_contents(change.name, cluster))):
            raise Conflict(
                f"namespace {change.name} stays: it also holds {others}",
                why="that would be deleted with the namespace; it is new, or could not be removed",
                hint="run the same command again: it keeps the namespace and removes the rest",
            )
        cluster.delete(object_ref(change))


def _apply_object(body: Body, cluster: Cluster, manager: str) -> Body:
    try:
        return cluster.apply(body, manager)
    except Conflict as error:
        raise conflict_error(error.why, [body], cluster) or error from error


def _apply_node(change: ObjectChange, cluster: Cluster, manager: str) -> None:
    """Apply a Node's labels server-side, and its taint by kubectl: applying a Node's taints replaces all of them.

    The annotation that marks the taint as ours needs another request; another gpunode may drop it in between.
    """
    live = cluster.get([object_ref(change)])
    if not live:
        if change.after is None:
            return
        raise ChangeFailed(
            f"Node {change.name} is gone",
            why="it was there when the plan was made",
            hint="wait until it is back, then run the same command again: kubectl get nodes",
        )
    if current_fields(live[0]) != change.before:
        raise _stale_plan_error(change.subject, "it is left alone")
    body: dict[str, Any] = dict(without_taints(change.after)) if change.after else dict(object_ref(change))
    body["metadata"] = {**body["metadata"], "uid": live[0]["metadata"]["uid"]}
    was, now = format_taints_in(change.before), format_taints_in(change.after)
    # Set before the taint and removed after it: the annotation marks the taint as ours.
    for taint in (one for one in was if one not in now):
        cluster.taint(change.name, f"{taint}-")
    _apply_object(body, cluster, manager)
    for taint in (one for one in now if one not in was):
        cluster.taint(change.name, taint)
        if [taint] != [own_taint(live) for live in cluster.get([object_ref(change)])]:
            cluster.taint(change.name, f"{taint}-")
            raise _stale_plan_error(change.subject, f"the taint {taint} is removed again")
