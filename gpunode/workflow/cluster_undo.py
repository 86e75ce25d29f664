"""What takes gpunode's objects out of a cluster again: all of them, or those of one run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from gpunode.catalog.charts import chart
from gpunode.change import CommandChange, ObjectChange
from gpunode.command import command
from gpunode.errors import Conflict, Refused
from gpunode.facts.helm import Released
from gpunode.host.cluster import Body, Cluster, DryRunResult, Identity
from gpunode.host.kubectl import Forbidden
from gpunode.journal.history import inverse_intents, run_label
from gpunode.journal.store import Store
from gpunode.kubernetes.model import Release
from gpunode.kubernetes.owned import conflict_lines, is_applied_by_kubectl, owned
from gpunode.kubernetes.reconcile import (
    OUR_RELEASES,
    OURS,
    Item,
    Key,
    State,
    describe_owners,
    fields_now,
    given_up,
    install_command,
    is_shared,
    key,
    labels_given_up,
    manager_of,
    ours_of_node,
    place,
    taints_of,
    without_taints,
)
from gpunode.kubernetes.trials import is_left_over
from gpunode.workflow.cluster_plan import NODE_USER, ClusterPlan
from gpunode.workflow.namespace_contents import describe_contents

Live: TypeAlias = Mapping[Key, Body]
# What uses a thing goes before the thing.
_ORDER: Final = ("DaemonSet", "Pod", "Job", "ResourceClaimTemplate", "ConfigMap", "RuntimeClass", "Namespace", "Node")
_NAMED: Final = "daemonsets.apps,pods,configmaps"
_WHOLE: Final = "namespaces,runtimeclasses.node.k8s.io"


def removal(cluster: Cluster) -> ClusterPlan:
    """The plan after which nothing is left of what gpunode applied.

    Raises:
        as ``cluster_plan.planned``.
    """
    identity = cluster.identify()
    try:
        named = cluster.list(_NAMED, "--all-namespaces", "--selector", OURS)
        found = (*cluster.list(_WHOLE), *cluster.list_nodes(), *named, *_jobs_of_checks(cluster))
    except Forbidden:
        node = cluster.whoami()
        if not node.startswith(NODE_USER):
            raise
        return _removal_by_kubelet(node.removeprefix(NODE_USER), cluster, identity)
    changes = [change for one in found if (change := _taken_back(one, identity.uid)) is not None]
    skipped: tuple[str, ...] = ()
    try:
        releases = tuple(_releases(cluster, identity.uid))
    except Forbidden as error:
        said = error.why.strip().splitlines()[-1]
        releases, skipped = (), (f"Helm releases were not looked for, since Helm keeps them in Secrets: {said}",)
    live = {key(one): one for one in found}
    going = {one.subject for one in changes if _is_deleted(one, live)} | {one.title for one in releases}
    items = tuple(_item(change, cluster, live, going) for change in sorted(changes, key=_rank))
    return ClusterPlan(identity, (*releases, *items), skipped)


def _jobs_of_checks(cluster: Cluster) -> Sequence[Body]:
    """Return the Jobs of checks; none where the credential may not list Jobs: the cluster deletes them itself."""
    try:
        return cluster.list("jobs.batch", "--all-namespaces", "--selector", OURS)
    except Forbidden:
        return ()


def _taken_back(live: Body, cluster: str) -> ObjectChange | None:
    """Return the change after which the object has nothing of gpunode's; None where it has nothing now."""
    if not is_left_over(live, time.time()):
        return given_up(live, cluster)
    kind, namespace, name = key(live)
    return ObjectChange(cluster, str(live["apiVersion"]), kind, namespace, name, None, None)


def _removal_by_kubelet(name: str, cluster: Cluster, identity: Identity) -> ClusterPlan:
    """Return the plan that takes back what the kubelet of the node may take back: the labels of its own Node.

    Source: the Kubernetes documentation, "NodeRestriction".
    """
    skipped = ["all but this Node: the kubelet's credential may not list it; use one that may: --kubeconfig FILE"]
    items = []
    for live in cluster.get([{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}]):
        if change := labels_given_up(live, identity.uid):
            items.append(Item("Node", "", name, "change", "gpunode's labels go, all others stay", 0, change))
        if taints := taints_of(json.dumps(ours_of_node(live) or {})):
            skipped.append(f"taint {', '.join(taints)} of Node {name}: no kubelet may take it away")
    return ClusterPlan(identity, tuple(items), tuple(skipped))


def _releases(cluster: Cluster, uid: str) -> Iterator[Item]:
    """The releases that gpunode made, by the Secrets in which Helm keeps them."""
    found = _ours(cluster)
    there = {(one.namespace, one.name): one for one in cluster.helm.list_releases_at(found)} if found else {}
    for namespace, name in found:
        argv = ("helm", "uninstall", name, "--namespace", namespace, "--wait")
        live = there.get((namespace, name))
        change = CommandChange(argv, "k8s remove", _again(live) if live else None, uid)
        yield Item("Helm release", namespace, name, "delete", "gpunode released it", 0, change)


def _ours(cluster: Cluster) -> tuple[tuple[str, str], ...]:
    """The namespaces and names of the releases that gpunode made."""
    secrets = cluster.list_metadata("secrets", "--all-namespaces", "--selector", f"owner=helm,{OUR_RELEASES}")
    places = ((one["metadata"]["namespace"], one["metadata"]["labels"]["name"]) for one in secrets)
    return tuple(dict.fromkeys(places))


def _again(live: Released) -> tuple[str, ...] | None:
    """The command that releases it as it is; None for a chart that gpunode does not render."""
    try:
        repository = chart(live.chart).repository
    except KeyError:
        return None
    place = (live.name, live.chart, live.version, repository, live.namespace)
    return install_command(Release(*place, live.values, "", 0))


def undoing(cluster: Cluster, store: Store, of: str) -> ClusterPlan:
    """The plan that undoes the run ``of``.

    Raises:
        Refused: the run was in another cluster.
        Conflict: somebody changed one of our fields since, or put a release of their own in the place of ours.
    """
    identity = cluster.identify()
    found = (intent.change for intent in inverse_intents(store.read(of)))
    back = [one for one in found if isinstance(one, CommandChange | ObjectChange)]
    changes = ObjectChange.among(back)
    commands = CommandChange.among(back)
    if elsewhere := [one.cluster for one in back if one.cluster != identity.uid]:
        raise Refused(
            f"run {run_label(of, 'k8s rollback')} was in another cluster",
            why=f"it changed the cluster {elsewhere[0]}; the context {identity.context} leads to the cluster "
            f"{identity.uid} at {identity.server}",
            hint="name the context of that cluster: add --context NAME to the same command\nsee which there are: "
            "kubectl config get-contexts",
        )
    live = {key(one): one for one in cluster.get([place(change) for change in changes])}
    _refuse_edited(changes, live, cluster)
    back = [_as_it_is(one, live) for one in back]
    pending = [one for one in ObjectChange.among(back) if one.before != one.after]
    revisions = cluster.helm.count_revisions() if commands else {}
    due = [one for one in commands if is_due(one, revisions)]
    _refuse_replaced([made for one in commands if (made := _made(one)) in revisions], cluster)
    released = (one for one in (_step(change, cluster, live, set()) for change in due) if one.state == "delete")
    going = {one.subject for one in pending if _is_deleted(one, live)} | {one.title for one in released}
    steps = (_step(one, cluster, live, going) for one in back if one in pending or one in due)
    return ClusterPlan(identity, tuple(steps))


def _as_it_is(change: CommandChange | ObjectChange, live: Live) -> CommandChange | ObjectChange:
    """The same from what is there now, also if others own fields of the object only since the run."""
    if isinstance(change, CommandChange):
        return change
    one = live.get(_key(change))
    is_others_too = change.shared or (one is not None and is_shared(one))
    return replace(change, before=fields_now(change, one), shared=is_others_too)


def _is_deleted(change: ObjectChange, live: Live) -> bool:
    if change.after is not None or change.shared:
        return False
    one = live.get(_key(change))
    return one is None or not is_applied_by_kubectl(one)


def is_due(change: CommandChange, revisions: Mapping[tuple[str, str], int]) -> bool:
    """Whether the release is as the run left it; not so where the run never came to it, or it is undone already.

    Raises:
        Conflict: it was released again since.
    """
    release = _release_of(change.argv)
    left: int | None
    before: int | None
    match change.argv, change.undo:
        case ("helm", "rollback", _, to, *_), _:
            left, before = int(to) + 1, int(to)
        case ("helm", "uninstall", *_), _:
            left, before = 1, None
        case _, ("helm", "rollback", _, to, *_):
            left, before = int(to) + 2, int(to) + 1
        case _:
            left, before = None, 1
    if (now := revisions.get(release)) in {left, before}:
        return now == left
    raise Conflict(
        f"Helm release {'/'.join(release)} was changed since that run",
        why=f"the run left it at revision {left or 'none'}; now it has revision {now or 'none'}",
        hint="undo the later run first (gpunode log), or look at it: "
        + command("helm", "history", release[1], "--namespace", release[0]),
    )


def _made(change: CommandChange) -> tuple[str, str] | None:
    """The release that the command makes or takes away; None where it changes one that stays."""
    return _release_of(change.argv) if "uninstall" in (change.argv[1], *(change.undo or ())[1:2]) else None


def _refuse_replaced(there: Sequence[tuple[str, str] | None], cluster: Cluster) -> None:
    """Nothing, if these releases are gpunode's: another of that name may have come in the place of ours."""
    ours = _ours(cluster) if there else ()
    if theirs := next((one for one in there if one and one not in ours), None):
        raise Conflict(
            f"Helm release {'/'.join(theirs)} is not gpunode's",
            why=f"it lacks the label {OUR_RELEASES}: somebody released it when gpunode's was gone",
            hint=f"look at it: {command('helm', 'history', theirs[1], '--namespace', theirs[0])}",
        )


def _release_of(argv: Sequence[str]) -> tuple[str, str]:
    """The namespace and name of the release that a command of Helm changes."""
    return argv[argv.index("--namespace") + 1], argv[3] if argv[1] == "upgrade" else argv[2]


def _step(change: CommandChange | ObjectChange, cluster: Cluster, live: Live, going: set[str]) -> Item:
    match change:
        case CommandChange(argv=argv, undo=undo):
            is_made = undo is not None and undo[1] == "uninstall"
            state: State = "delete" if argv[1] == "uninstall" else "create" if is_made else "change"
            why = "gpunode released it" if state == "delete" else "as it was before that run"
            return Item("Helm release", *_release_of(argv), state, why, 0, change)
        case ObjectChange():
            return _item(change, cluster, live, going)


def _refuse_edited(changes: Sequence[ObjectChange], live: Live, cluster: Cluster) -> None:
    """Refuse where an object is not as the run left it, so that to apply that once more would change something."""
    for change in changes:
        there = live.get(_key(change))
        now = fields_now(change, there)
        if there is None or now is None or now in (change.before, change.after):
            continue
        tried, why = DryRunResult(()), ""
        if change.before is not None:
            left = without_taints(change.before) if change.kind == "Node" else json.loads(change.before)
            tried = cluster.dry_run([left], manager_of(change.kind))
            said = "\n".join(tried.errors)
            why = "\n".join(conflict_lines(said, [left], [there])) or said
        again = owned(tried.objects[0], manager_of(change.kind)) if tried.objects else None
        mine = json.loads(now) if change.kind != "Node" else without_taints(now)
        if again != mine:
            where = ("--namespace", change.namespace) if change.namespace else ()
            words = ("get", change.kind, *where, change.name, "--show-managed-fields", "-o", "yaml")
            raise Conflict(
                f"{change.subject} was changed since that run",
                why=why or "gpunode or somebody else applied something else to it",
                hint=f"undo the later run first (gpunode log), or look at it: {cluster.command(*words)}",
            )


def _item(change: ObjectChange, cluster: Cluster, live: Live, going: set[str]) -> Item:
    state: State = "delete" if change.after is None and not change.shared else "change" if change.before else "create"
    why = _why(change)
    if state == "delete" and not _is_deleted(change, live):
        note = "stays: somebody applied it with kubectl, too"
        return Item(change.kind, change.namespace, change.name, "foreign", why, 0, note=note)
    empties = state == "delete" and change.kind == "Namespace"
    if empties and (others := ", ".join(describe_contents(change.name, cluster, going))):
        return Item(change.kind, "", change.name, "foreign", why, 0, note=f"stays: it also holds {others}")
    one = live.get(_key(change))
    if change.after is None and change.shared and change.kind != "Node" and one is not None:
        note = f"stays: {describe_owners(one)}; gpunode gives up its fields"
        return Item(change.kind, change.namespace, change.name, state, why, 0, change, note)
    return Item(change.kind, change.namespace, change.name, state, why, 0, change)


def _why(change: ObjectChange) -> str:
    if change.after is not None:
        return "as it was before that run"
    if change.before is None and change.kind in {"Pod", "Job"}:
        return "a check that was killed left it"
    return "gpunode's labels and taint go, all others stay" if change.kind == "Node" else "gpunode applied it"


def _rank(change: ObjectChange) -> tuple[int, str]:
    return _ORDER.index(change.kind), change.subject


def _key(change: ObjectChange) -> Key:
    return change.kind, change.namespace, change.name
