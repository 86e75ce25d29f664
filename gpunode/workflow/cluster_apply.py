"""Applies a plan to a cluster: journaled, wave by wave, each waited for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from gpunode.change import CommandChange, ObjectChange
from gpunode.errors import ChangeFailed, Conflict, GpunodeError, Interrupted, VerifyFailed
from gpunode.host.cluster import Body, Cluster
from gpunode.host.kubectl import Forbidden
from gpunode.host.port import OnProgress
from gpunode.journal.record import Verb
from gpunode.journal.run import Run
from gpunode.journal.store import Store
from gpunode.kubernetes.owned import disowning_patch, is_applied_by_kubectl
from gpunode.kubernetes.reconcile import (
    Item,
    Key,
    fields_now,
    is_shared,
    key,
    manager_of,
    place,
    taints_of,
    without_taints,
)
from gpunode.workflow.cluster_conflicts import conflict_error
from gpunode.workflow.cluster_plan import ClusterPlan
from gpunode.workflow.cluster_workloads import wait_ready, wait_releases_ready, wait_unchanged_ready
from gpunode.workflow.events import Applied, Applying, Observer
from gpunode.workflow.namespace_contents import contents


@dataclass(frozen=True, slots=True)
class Request:
    """What the journal says of a run.

    Attributes:
        of: the run that is undone.
    """

    verb: Verb
    version: str
    argv: Sequence[str]
    recipe: str = ""
    recipe_sha256: str = ""
    of: str = ""


def apply(
    plan: ClusterPlan,
    cluster: Cluster,
    store: Store,
    request: Request,
    *,
    tell: Observer,
    pause: Callable[[], None],
    progress: OnProgress,
    timeout_s: float,
) -> str:
    """The cluster has what the plan says, and its workloads run.

    Returns:
        The run's id.

    Raises:
        ChangeFailed, Conflict: the API server did not take a change; those before it stay, and are journaled.
        VerifyFailed: a workload did not become ready in time; what comes after it is not applied, and named.
        Interrupted: a signal came; what was applied by then stays.
    """
    _refuse_moved(plan, cluster)

    def waves(run: Run) -> None:
        for number, group in groupby(plan.changes, key=lambda one: one.wave):
            wave = tuple(group)
            make(wave, cluster, run, tell, pause)
            left = [one.title for one in plan.changes if one.wave > number]
            for item in wave:
                if item.kind == "DaemonSet" and item.state != "delete":
                    with _told_what_is_left(left):
                        wait_ready(item, cluster, pause, progress, timeout_s)
        # A node that was labelled just now gets pods of those that stay as they are.
        wait_unchanged_ready(plan.items, cluster, pause, progress, timeout_s)
        wait_releases_ready(plan.releases, cluster, pause, progress, timeout_s)

    return journaled(store, request, waves)


def take_back(
    plan: ClusterPlan,
    cluster: Cluster,
    store: Store,
    request: Request,
    *,
    tell: Observer,
    pause: Callable[[], None],
) -> str:
    """What the plan of a removal or a rollback says is done; see ``apply``.

    Returns:
        The run's id.
    """
    _refuse_moved(plan, cluster)
    failed: list[tuple[str, GpunodeError]] = []

    def back(run: Run) -> None:
        make(plan.items, cluster, run, tell, pause, failed)
        if failed:
            kind = Conflict if all(isinstance(error, Conflict) for _, error in failed) else ChangeFailed
            raise kind(
                f"{', '.join(title for title, _ in failed)} could not be taken back; all else is done",
                why="\n".join(f"{error}: {error.why}" for _, error in failed),
                hint=f"{failed[0][1].hint}\nthen run the same command again",
            )

    return journaled(store, request, back)


def _key(change: ObjectChange) -> Key:
    return change.kind, change.namespace, change.name


def _is_moved(change: ObjectChange, live: Body | None) -> bool:
    """Return whether the object is not as the plan found it, or what is to be deleted is somebody else's by now."""
    is_deleted = live is not None and change.after is None and not change.shared
    is_shared_now = is_deleted and live is not None and (is_shared(live) or is_applied_by_kubectl(live))
    return fields_now(change, live) != change.before or is_shared_now


def _refuse_moved(plan: ClusterPlan, cluster: Cluster) -> None:
    """Refuse a plan whose objects were changed since: another gpunode applies as the same field manager.

    Raises:
        Conflict: it is not; nothing was changed.
    """
    changes = ObjectChange.among(one.change for one in plan.changes)
    live = {key(one): one for one in cluster.get([place(change) for change in changes])}
    moved = [change.subject for change in changes if _is_moved(change, live.get(_key(change)))]
    if moved:
        raise Conflict(
            f"{', '.join(moved)} changed since the plan was made",
            why="another gpunode, or somebody else, applied something meanwhile; nothing was changed by this one",
            hint="run the same command again, which plans anew",
        )


class _Unfinished(VerifyFailed):
    """A workload did not become ready, and what would come after it is not applied."""

    meaning = VerifyFailed.meaning


@contextmanager
def _told_what_is_left(left: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except VerifyFailed as error:
        if not left:
            raise
        why = f"{error.why}; not applied yet: {', '.join(left)}"
        raise _Unfinished(error.what, why=why, hint=f"{error.hint}\nthen run the same command again") from error


def journaled(store: Store, request: Request, work: Callable[[Run], None]) -> str:
    """``work`` is done, and the journal tells how it ended.

    Returns:
        The run's id.
    """
    run = store.begin(
        request.verb,
        version=request.version,
        recipe=request.recipe,
        recipe_sha256=request.recipe_sha256,
        argv=request.argv,
        of=request.of,
        whole=bool(request.of),
    )
    try:
        work(run)
    except Interrupted as error:
        run.commit("interrupted", str(error))
        raise
    except GpunodeError as error:
        if isinstance(error, VerifyFailed) and not isinstance(error, _Unfinished):
            run.commit("done")
            raise
        run.commit("failed", f"{error}: {error.why}")
        raise
    else:
        run.commit("done")
    finally:
        run.close()
    return run.id


def make(
    items: Iterable[Item],
    cluster: Cluster,
    run: Run,
    tell: Observer,
    pause: Callable[[], None],
    failed: list[tuple[str, GpunodeError]] | None = None,
) -> None:
    """Make the changes of ``items``, each journaled before.

    ``failed`` receives the changes that the cluster refused, by title; without it the first error ends the run.
    """
    for item in items:
        if item.change is None:
            continue
        pause()
        tell(Applying("kubernetes", "cluster", (item.change,)))
        seq = run.intend("kubernetes", "cluster", item.change, item.why)
        began = time.monotonic()
        try:
            perform(item.change, cluster)
        except GpunodeError as error:
            run.failed(seq, f"{error}: {error.why}")
            if failed is None or not isinstance(error, ChangeFailed | Conflict | Forbidden):
                raise
            failed.append((item.title, error))
            continue
        run.done(seq)
        tell(Applied("kubernetes", "cluster", (item.change,), time.monotonic() - began))


def perform(change: ObjectChange | CommandChange, cluster: Cluster) -> None:
    """The object has what ``change.after`` says of our fields; or Helm has done what the command says."""
    if isinstance(change, CommandChange):
        cluster.helm.run(change.argv[1:])
        return
    manager = manager_of(change.kind)
    if change.kind == "Node":
        _perform_node(change, cluster, manager)
    elif change.after is not None:
        _apply(json.loads(change.after), cluster, manager)
    elif change.shared:
        _give_up(place(change), cluster, manager)
    else:
        if change.kind == "Namespace" and (held := ", ".join(contents(change.name, cluster))):
            raise Conflict(
                f"namespace {change.name} stays: it also holds {held}",
                why="it came there after the plan was made, and would be deleted with the namespace",
                hint="run the same command again: it leaves the namespace and takes the rest",
            )
        cluster.delete(place(change))


def _apply(body: Body, cluster: Cluster, manager: str) -> None:
    try:
        cluster.apply(body, manager)
    except Conflict as error:
        raise conflict_error(error.why, [body], cluster) or error from error


def _give_up(bare: Body, cluster: Cluster, manager: str) -> None:
    """Leave the object to its other owners: without our fields, or where it cannot do without them, with our values."""
    if not cluster.dry_run([bare], manager).errors:
        cluster.apply(bare, manager)
        return
    for live in cluster.get([bare]):
        cluster.patch(bare, disowning_patch(live, manager), manager)


def _perform_node(change: ObjectChange, cluster: Cluster, manager: str) -> None:
    """Labels by server-side apply, the taint by itself: who applies a Node's taints owns, and replaces, all of them."""
    live = cluster.get([place(change)])
    if not live:
        if change.after is None:
            return
        raise ChangeFailed(
            f"Node {change.name} is gone",
            why="it was there when the plan was made",
            hint=f"run the command again when it is back: {cluster.command('get', 'nodes')}",
        )
    body: dict[str, Any] = dict(without_taints(change.after)) if change.after else dict(place(change))
    body["metadata"] = {**body["metadata"], "uid": live[0]["metadata"]["uid"]}
    was, now = taints_of(change.before), taints_of(change.after)
    # The annotation that names our taint stands as long as the taint does, so that nobody takes it for a foreign one.
    for taint in (one for one in was if one not in now):
        cluster.taint(change.name, f"{taint}-")
    _apply(body, cluster, manager)
    for taint in (one for one in now if one not in was):
        cluster.taint(change.name, taint)
