"""Plans that remove gpunode's objects from a cluster: all of them, or those of one run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeAlias

from gpunode.catalog.charts import chart
from gpunode.change import Change, CommandChange, ObjectChange
from gpunode.command import command
from gpunode.errors import Conflict, Refused
from gpunode.facts.helm import release_of_command
from gpunode.host.cluster import Cluster, ClusterIdentity, DryRunResult
from gpunode.host.kubectl import Forbidden
from gpunode.journal.history import inverse_intents, run_label
from gpunode.journal.store import Store
from gpunode.kubernetes.model import Body, ChartRelease
from gpunode.kubernetes.owned import (
    conflict_lines,
    is_applied_client_side,
    is_labelled,
    owned_fields,
    split_owners,
)
from gpunode.kubernetes.reconcile import (
    OUR_LABEL_SELECTOR,
    OUR_RELEASE_SELECTOR,
    ObjectKey,
    PlanItem,
    PlanItemState,
    current_fields,
    describe_lost_edits,
    describe_owners,
    field_manager_of,
    fields_before,
    has_fields,
    install_command,
    is_kept_on_removal,
    object_key,
    object_ref,
    plan_field_removal,
    without_taints,
)
from gpunode.wording import join_names
from gpunode.workflow.cluster_plan import (
    ClusterPlan,
    describe_missing_rights,
    find_own_releases,
    refuse_being_deleted,
    require_rights,
)
from gpunode.workflow.cluster_workloads import describe_namespace_contents, find_class_users

LiveObjects: TypeAlias = Mapping[ObjectKey, Body]
# Objects are deleted before those that they use.
_DELETION_ORDER: Final = (
    "DaemonSet",
    "ResourceClaimTemplate",
    "ConfigMap",
    "RuntimeClass",
    "Namespace",
    "Node",
)
_CLUSTER_KINDS_ARGUMENT: Final = "namespaces,runtimeclasses.node.k8s.io"


def plan_removal(cluster: Cluster) -> ClusterPlan:
    """Return the plan that removes everything that gpunode applied.

    Raises:
        Refused: the credential does not permit all of it.
    """
    identity = cluster.identify()
    workloads = cluster.list("daemonsets.apps", "--all-namespaces")
    labelled = cluster.list("configmaps", "--all-namespaces", "--selector", OUR_LABEL_SELECTOR)
    own_objects = [*cluster.list(_CLUSTER_KINDS_ARGUMENT), *cluster.list_nodes(), *labelled]
    own_objects += filter(is_labelled, workloads)
    changes = [change for body in own_objects if (change := plan_field_removal(body, identity.uid))]
    skipped: tuple[str, ...] = ()
    try:
        releases = tuple(_plan_release_removals(cluster, identity.uid))
    except Forbidden as error:
        reason = error.why.strip().splitlines()[-1]
        releases, skipped = (), (f"Helm releases were not looked for, since Helm keeps them in Secrets: {reason}",)
    live = {object_key(body): body for body in own_objects}
    deleted = {change.subject for change in changes if _is_deleted(change, live)} | {item.title for item in releases}
    changes.sort(key=lambda change: (_DELETION_ORDER.index(change.kind), change.subject))
    undone = (_plan_object_undo(change, cluster, live, deleted) for change in changes)
    items, unseen = _keep_used_classes(undone, cluster, deleted)
    plan = ClusterPlan(identity, (*releases, *items), (*skipped, *unseen))
    return require_rights(replace(plan, missing_rights=describe_missing_rights(plan, cluster)))


def _keep_used_classes(
    items: Iterable[PlanItem], cluster: Cluster, deleted: AbstractSet[str]
) -> tuple[tuple[PlanItem, ...], tuple[str, ...]]:
    """Return the items, without the deletion of a RuntimeClass that others need, and what was not looked for."""
    kept: list[PlanItem] = []
    skipped: list[str] = []
    for item in items:
        if item.kind == "RuntimeClass" and item.state == "delete":
            users, unseen = find_class_users(item.name, cluster, deleted)
            if users:
                item = replace(item, state="foreign", change=None, note=f"stays, in use by {join_names(users, 3)}")
            elif unseen:
                kinds, reason = join_names(unseen), next(iter(unseen.values()))
                skipped.append(f"{item.title} is deleted, although {kinds} of others were not checked: {reason}")
        kept.append(item)
    return tuple(kept), tuple(skipped)


def _plan_release_removals(cluster: Cluster, uid: str) -> Iterator[PlanItem]:
    """Yield the removals of the releases that gpunode made."""
    places = find_own_releases(cluster)
    releases = (
        {(release.namespace, release.name): release for release in cluster.helm.list_releases(places=places)}
        if places
        else {}
    )
    for namespace, name in places:
        argv, install = ("helm", "uninstall", name, "--namespace", namespace, "--wait"), None
        if live := releases.get((namespace, name)):
            with suppress(KeyError):  # a chart that gpunode does not render
                words = (live.name, live.chart, live.version, chart(live.chart).repository, live.namespace)
                install = install_command(ChartRelease(*words, live.values, "", 0))
        change = CommandChange(argv, "k8s remove", install, uid)
        left = "its chart's CustomResourceDefinitions, and labels that its pods gave to Nodes"
        note = f"leaves {left}, if there are any: Helm deletes neither"
        yield PlanItem("Helm release", namespace, name, "delete", "gpunode released it", 0, change, note)


def plan_rollback(cluster: Cluster, store: Store, run: str) -> ClusterPlan:
    """Return the plan that undoes a run.

    Raises:
        Refused: the run was in another cluster, or the credential does not permit all of it.
        Conflict: one of our fields was changed since, or our release was replaced by another.
    """
    identity = cluster.identify()
    undone = [intent.change for intent in inverse_intents(store.read_with_contents(run))]
    changes, commands = ObjectChange.of_kind(undone), CommandChange.of_kind(undone)
    for recorded in {*(change.cluster for change in changes), *(change.cluster for change in commands)}:
        _refuse_other_cluster(run_label(run, "k8s rollback"), recorded, identity)
    live = {object_key(body): body for body in cluster.get([object_ref(change) for change in changes])}
    refuse_being_deleted(live[change.key] for change in changes if change.after is not None and change.key in live)
    _refuse_edited(changes, live, cluster)
    # A Node that left the cluster took its labels along.
    gone = [change for change in changes if change.kind == "Node" and change.key not in live]
    skipped = tuple(f"{change.subject}: it is no longer in this cluster" for change in gone)
    pending: dict[Change, ObjectChange] = {}
    for change in (change for change in changes if change not in gone):
        # Start from the current object: its fields may have gained owners since the run.
        now = live.get(change.key)
        shared = change.shared or (now is not None and is_kept_on_removal(now))
        if not has_fields(now, change.after):
            change_now = replace(change, shared=shared)
            pending[change] = replace(change_now, before=fields_before(change_now, now))
    revisions = cluster.helm.count_revisions() if commands else {}
    steps: dict[Change, PlanItem] = {}
    for release in (change for change in commands if release_needs_undo(change, revisions)):
        is_made = release.undo is not None and release.undo[1] == "uninstall"
        state: PlanItemState = "delete" if release.argv[1] == "uninstall" else "create" if is_made else "edit"
        why = "gpunode released it" if state == "delete" else "as it was before that run"
        steps[release] = PlanItem("Helm release", *release_of_command(release.argv), state, why, 0, release)
    installs = [change for change in commands if "uninstall" in (change.argv[1], *(change.undo or ())[1:2])]
    present = [
        release_ref
        for command_change in installs
        if (release_ref := release_of_command(command_change.argv)) in revisions
    ]
    ours = find_own_releases(cluster) if present else ()
    if foreign := next((one for one in present if one not in ours), None):
        raise Conflict(
            f"Helm release {'/'.join(foreign)} is not gpunode's",
            why=f"it lacks the label {OUR_RELEASE_SELECTOR}: somebody installed it after gpunode's was removed",
            hint=f"look at it: {command('helm', 'history', foreign[1], '--namespace', foreign[0])}",
        )
    deleted = {now.subject for now in pending.values() if _is_deleted(now, live)} | {
        step.title for step in steps.values() if step.state == "delete"
    }
    steps |= {change: _plan_object_undo(now, cluster, live, deleted) for change, now in pending.items()}
    items, unseen = _keep_used_classes((steps[change] for change in undone if change in steps), cluster, deleted)
    plan = ClusterPlan(identity, items, (*skipped, *unseen))
    return require_rights(replace(plan, missing_rights=describe_missing_rights(plan, cluster)))


def _refuse_other_cluster(run: str, recorded: str, identity: ClusterIdentity) -> None:
    """Refuse a cluster other than the ``recorded`` one, which is a uid, or the server URL of the run's credential."""
    if recorded in {identity.uid, identity.server}:
        return
    reader = "the credential of that run" if "://" in recorded else "" if identity.is_certain else "this credential"
    why = f"it changed the cluster {recorded}; the context {identity.context} leads to the cluster "
    if reader:
        raise Refused(
            f"run {run} may have been in another cluster",
            why=f"{why}at {identity.server}; {reader} may not read the namespace kube-system, whose uid tells clusters "
            "apart",
            hint=f"use {'one that may' if reader == 'this credential' else reader}: add --kubeconfig FILE to the same "
            "command",
        )
    raise Refused(
        f"run {run} was in another cluster",
        why=f"{why}{identity.uid} at {identity.server}",
        hint="name the context of that cluster: add --context NAME to the same command\nlist them: "
        "kubectl config get-contexts",
    )


def _is_deleted(change: ObjectChange, live: LiveObjects) -> bool:
    if change.after is not None or change.shared:
        return False
    body = live.get(change.key)
    return body is None or not is_applied_client_side(body)


def release_needs_undo(change: CommandChange, revisions: Mapping[tuple[str, str], int]) -> bool:
    """Return whether the release is as the run left it; false if the run never changed it, or it is undone already.

    Raises:
        Conflict: it was released again since.
    """
    release = release_of_command(change.argv)
    after: int | None
    before: int | None
    match change.argv, change.undo:
        case ("helm", "rollback", _, to, *_), _:
            after, before = int(to) + 1, int(to)
        case ("helm", "uninstall", *_), _:
            after, before = 1, None
        case _, ("helm", "rollback", _, to, *_):
            after, before = int(to) + 2, int(to) + 1
        case _:
            after, before = None, 1
    if (current := revisions.get(release)) in {after, before}:
        return current == after
    raise Conflict(
        f"Helm release {'/'.join(release)} was changed since that run",
        why=f"the run left it at revision {after or 'none'}; now it has revision {current or 'none'}",
        hint="undo the later run first (gpunode log), or look at it: "
        + command("helm", "history", release[1], "--namespace", release[0]),
    )


def _refuse_edited(changes: Sequence[ObjectChange], live: LiveObjects, cluster: Cluster) -> None:
    """Refuse if an object is not as the run left it."""
    for change in changes:
        current = live.get(change.key)
        fields = current_fields(current)
        if current is None or fields is None or any(has_fields(current, one) for one in (change.before, change.after)):
            continue
        if change.kind == "Node" and change.after and without_taints(change.after) == json.loads(fields):
            continue  # the run was stopped after it had removed the taint
        tried, why = DryRunResult(()), ""
        if change.before is not None:
            recorded = without_taints(change.before) if change.kind == "Node" else json.loads(change.before)
            expected, _ = split_owners(recorded)
            tried = cluster.dry_run([expected], field_manager_of(change.kind))
            messages = "\n".join(tried.errors)
            why = "\n".join(conflict_lines(messages, [expected], [current])) or messages
        again = owned_fields(tried.objects[0], field_manager_of(change.kind)) if tried.objects else None
        own_fields = json.loads(fields) if change.kind != "Node" else without_taints(fields)
        if again != own_fields:
            where = ("--namespace", change.namespace) if change.namespace else ()
            words = ("kubectl", "get", change.kind, *where, change.name, "--show-managed-fields", "-o", "yaml")
            raise Conflict(
                f"{change.subject} was changed since that run",
                why=why or "gpunode or somebody else has changed it since",
                hint=f"undo the later run first (gpunode log), or look at it: {command(*words)}",
            )


def _plan_object_undo(change: ObjectChange, cluster: Cluster, live: LiveObjects, deleted: set[str]) -> PlanItem:
    state: PlanItemState = "edit" if change.key in live else "create"
    if change.after is None and not change.shared:
        state = "delete"
    why = "gpunode applied it"
    if change.after is not None:
        why = "as it was before that run"
    elif change.kind == "Node":
        why = "gpunode's labels and taint are removed, all others are kept"
    item = PlanItem(change.kind, change.namespace, change.name, state, why, 0)
    if state == "delete" and not _is_deleted(change, live):
        return replace(item, state="foreign", note="stays: somebody applied it with kubectl, too")
    empties = state == "delete" and change.kind == "Namespace"
    if empties and (others := ", ".join(describe_namespace_contents(change.name, cluster, deleted))):
        return replace(item, state="foreign", note=f"stays: it also holds {others}")
    body = live.get(change.key)
    if state == "delete" and body:
        item = replace(item, why=f"{why}{describe_lost_edits(body)}")
    is_released = change.after is None and change.shared and change.kind != "Node" and body is not None
    note = f"stays: {describe_owners(body)}; gpunode only releases its fields" if is_released and body else ""
    return replace(item, change=change, note=note)
