"""What a cluster lacks of what is rendered for it, by asking its API server; nothing is changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gpunode.command import command, gpunode
from gpunode.errors import GpunodeError, Refused, Undetermined
from gpunode.facts.helm import Released
from gpunode.host.cluster import Body, Cluster, DryRunResult, Identity
from gpunode.host.kubectl import Forbidden, main_error_line
from gpunode.kubernetes.advertisers import OPERATOR_GROUP, OPERATOR_KINDS, OPERATOR_SELECTOR, refuse_second
from gpunode.kubernetes.model import MANAGED_BY, KindCluster, NodeEdit, Release, Rendered
from gpunode.kubernetes.reconcile import (
    OURS,
    Item,
    Present,
    adopted,
    items,
    key,
    manager_of,
    node_body,
    refuse_other_handler,
)
from gpunode.kubernetes.workload_checks import Workload, counts
from gpunode.redaction.secrets import text as redact
from gpunode.workflow.cluster_conflicts import conflict_error
from gpunode.workflow.cluster_workloads import explain_unready, is_unchanged_workload, unready_of_releases

NODE_USER: Final = "system:node:"
_API: Final[Mapping[str, tuple[str, str]]] = {
    "Namespace": ("", "namespaces"),
    "ConfigMap": ("", "configmaps"),
    "Node": ("", "nodes"),
    "DaemonSet": ("apps", "daemonsets"),
    "RuntimeClass": ("node.k8s.io", "runtimeclasses"),
}
_MANY: Final = 20
# Sources: apimachinery's errors.NewInvalid, field validation "Strict" and server-side apply's typed objects; then the
# API server's admission webhooks, ValidatingAdmissionPolicies (whose denials are "invalid") and RBAC.
_FIELDS: Final = re.compile(r"is invalid|unknown field|strict decoding|not declared in schema|cannot unmarshal")
_PLACE: Final = re.compile(r"admission webhook|AdmissionPolicy|denied (?:the )?request|orbidden|field is immutable")


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What apply would do to a cluster.

    Attributes:
        skipped: what the credential may not do and is therefore left out.
        notes: what else a person has to know of the cluster.
        releases: those of charts that apply makes or brings up to date, by the names that they have in the cluster.
    """

    identity: Identity
    items: tuple[Item, ...]
    skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    releases: tuple[Release, ...] = ()

    @property
    def changes(self) -> tuple[Item, ...]:
        """The items for which something is to be done."""
        return tuple(one for one in self.items if one.change is not None)


def planned(rendered: Rendered, cluster: Cluster) -> ClusterPlan:
    """The plan, as far as the credential reaches.

    Raises:
        Refused: the recipe is for a kind cluster, which this is not; a Node is not in this cluster, something else
            offers the GPUs already, or rights are missing.
        Conflict: another field manager owns what gpunode would set.
        UsageError, Undetermined: the cluster cannot be asked.
    """
    identity = cluster.identify()
    if rendered.kind:
        check_kind(rendered.kind, identity)
    skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    try:
        present, notes = _present(rendered, cluster, identity)
    except Forbidden:
        node = cluster.whoami()
        if not node.startswith(NODE_USER):
            raise
        rendered, skipped = for_kubelet(rendered, node.removeprefix(NODE_USER))
        present, notes = _present(rendered, cluster, identity, whole=False)
    releases = tuple(_by_its_name(one, adopted(one, present.releases)) for one in rendered.releases)
    found = tuple(_with_troubles(items(rendered, present), present, releases, cluster))
    plan = ClusterPlan(identity, found, skipped, notes, releases)
    if not skipped:
        _refuse_forbidden(plan, cluster)
    return plan


def _by_its_name(release: Release, live: Released | None) -> Release:
    return replace(release, namespace=live.namespace, name=live.name) if live else release


def _with_troubles(
    items: Sequence[Item], present: Present, releases: Sequence[Release], cluster: Cluster
) -> Iterator[Item]:
    """Yield the items; a DaemonSet or release that stays as it is, and whose pods do not run, with the reason."""
    live = {key(one): one for one in present.live}
    same = {one.title for one in items if one.state == "same"}
    found_unready = [*unready_of_releases([one for one in releases if one.title in same], cluster)]
    unready = {one.release.title: one for one in reversed(found_unready) if one.release}
    # A label that is about to be set may be what it waits for.
    is_labelled_now = any(one.kind == "Node" and one.change is not None for one in items)
    for item in items:
        found = unready.get(item.title)
        if is_unchanged_workload(item):
            own = Workload(item.title, live.get((item.kind, item.namespace, item.name)))
            found = None if own.is_ready else own
        if found is None or (is_labelled_now and not counts(found.live or {})[0]):
            yield item
            continue
        state, trouble = explain_unready(found, cluster)
        about = item.note or "as it should be"
        of_release = f"{found.title}: " if found.title != item.title else ""
        yield replace(item, note=f"{about}, but {of_release}{state}: {trouble.why}", trouble=trouble)


def check_kind(kind: KindCluster, identity: Identity) -> None:
    """Nothing, where this is the context of the kind cluster.

    Raises:
        Refused: it is another.
    """
    if identity.context != kind.context:
        raise Refused(
            f"the recipe is for the kind cluster {kind.name}, and this is the context {identity.context}",
            why=f"kind calls the context of its cluster {kind.context}",
            hint=f"add --context={kind.context} to the same command; if the cluster is yet to be made:\n"
            f"{gpunode('k8s', 'render', 'kind', '--out', 'gpu-stack')}\ngpu-stack/kind.sh",
        )


def for_kubelet(rendered: Rendered, node: str) -> tuple[Rendered, tuple[str, ...]]:
    """What the kubelet of ``node`` may do of it, and what it may not, in a sentence each.

    Source: the Kubernetes documentation, "Using Node Authorization" and "NodeRestriction".

    Raises:
        Refused: nothing.
    """
    own = [replace(edit, taint="") for edit in rendered.nodes if edit.node == node]
    if not own:
        raise Refused(
            f"the kubelet's credential of {node} may change nothing of this",
            why=f"it may set labels of its own Node {node}, which is not among the nodes that were named",
            hint="use a credential that may change the cluster: --kubeconfig FILE",
        )
    skipped = [f"{one.kind} {one.name}: the kubelet's credential may not apply it" for one in rendered.objects]
    skipped += [
        f"taint {edit.taint} of Node {edit.node}: no kubelet may set it; put it into registerWithTaints of the "
        "kubelet's configuration, or apply with an administrator's credential"
        for edit in rendered.nodes
        if edit.taint
    ]
    skipped += [f"Node {edit.node}: it belongs to another kubelet" for edit in rendered.nodes if edit.node != node]
    return replace(rendered, objects=(), nodes=tuple(own), releases=()), tuple(skipped)


def _present(
    rendered: Rendered, cluster: Cluster, identity: Identity, *, whole: bool = True
) -> tuple[Present, tuple[str, ...]]:
    """Return what the cluster has of it, and what to know of what else it has."""
    # First: where Helm is missing nobody waits for thousands of Nodes to be told so.
    charts = {one.chart for one in rendered.releases}
    releases = cluster.helm.list_releases(charts) if charts else ()
    objects = cluster.get([one.body for one in rendered.objects])
    refuse_other_handler(rendered, objects)
    nodes = _nodes([edit.node for edit in rendered.nodes], cluster)
    ours: list[Body] = []
    notes: tuple[str, ...] = ()
    if whole:
        workloads = cluster.list("daemonsets.apps", "--all-namespaces")
        operators, unseen = _operators(cluster)
        others, typed = (*workloads, *operators), (cluster.command, cluster.helm_command)
        notes = (*refuse_second(rendered, others, nodes, releases, *typed), *unseen)
        ours = [one for one in workloads if _is_labelled(one)]
        if any(one.kind == "ConfigMap" for one in rendered.objects) or ours:
            ours += cluster.list("configmaps", "--all-namespaces", "--selector", OURS)
    tried, untried = _tried(rendered, cluster, objects)
    edits = {edit.node: edit for edit in rendered.nodes}
    _refuse_node_conflicts(edits, nodes, cluster)
    return Present(identity.uid, objects, tried, nodes, ours, releases), (*notes, *untried)


def _operators(cluster: Cluster) -> tuple[Sequence[Body], Sequence[str]]:
    """Return the objects by which a GPU Operator is known, and a sentence for those that cannot be looked at."""

    def custom() -> Sequence[Body]:
        kinds = [kind for kind in cluster.list_kinds(OPERATOR_GROUP) if kind.partition(".")[0] in OPERATOR_KINDS]
        return cluster.list(",".join(kinds)) if kinds else ()

    def deployments() -> Sequence[Body]:
        return cluster.list("deployments.apps", "--all-namespaces", "--selector", OPERATOR_SELECTOR)

    policies, no_policies = _unless_refused("ClusterPolicies, GPUClusters and NVIDIADrivers", custom)
    operators, no_operators = _unless_refused("Deployments", deployments)
    return (*policies, *operators), (*no_policies, *no_operators)


def _unless_refused(what: str, ask: Callable[[], Sequence[Body]]) -> tuple[Sequence[Body], Sequence[str]]:
    try:
        return ask(), ()
    except Undetermined:
        raise
    except GpunodeError as error:
        return (), (f"{what} were not looked at, so a GPU Operator may be there: {main_error_line(error.why)}",)


def _tried(rendered: Rendered, cluster: Cluster, live: Sequence[Body]) -> tuple[Sequence[Body], Sequence[str]]:
    """Return the objects as the API server would have them, and a sentence for each that could not be tried out.

    Those of a namespace that is yet to be made are tried out in the namespace default, only so that the API server
    says which of their fields it does not take: what a policy or the credential forbids there says nothing of theirs.
    """
    missing = {one.name for one in rendered.objects if one.kind == "Namespace"} - {
        one["metadata"]["name"] for one in live if one["kind"] == "Namespace"
    }
    bodies = [one.body for one in rendered.objects if one.namespace not in missing]
    there = cluster.dry_run(bodies, manager_of(""))
    _refuse(there, bodies, cluster)
    moved = [_moved(one.body) for one in rendered.objects if one.namespace in missing]
    said = cluster.dry_run(moved, manager_of("")).errors
    _refuse(DryRunResult((), tuple(filter(_is_of_fields, said))), moved, cluster)
    about = f"not tried out, since namespace {', '.join(sorted(missing))} is yet to be made, and default refuses it"
    return there.objects, [f"{about}: {redact(' '.join(one.split()))}" for one in said if not _is_of_fields(one)]


def _is_of_fields(said: str) -> bool:
    """Return whether the API server refuses what an object says, wherever it is.

    An admission policy may say so, too, in words of its own, and what is immutable is of an object that is there.
    """
    return _FIELDS.search(said) is not None and _PLACE.search(said) is None


def _moved(body: Body) -> Body:
    return {**body, "metadata": {**body["metadata"], "namespace": "default"}}


def _refuse_node_conflicts(edits: Mapping[str, NodeEdit], nodes: Sequence[Body], cluster: Cluster) -> None:
    pending = []
    for live in nodes:
        edit = edits[live["metadata"]["name"]]
        labels = live["metadata"].get("labels", {})
        if any(labels.get(name) != value for name, value in edit.labels.items()):
            body: dict[str, Any] = dict(node_body(edit, live))
            body.pop("spec", None)
            pending.append(body)
    _refuse(cluster.dry_run(pending, manager_of("Node")), pending, cluster)


def _refuse(tried: DryRunResult, wanted: Sequence[Body], cluster: Cluster) -> None:
    if not tried.errors:
        return
    said = "\n".join(tried.errors)
    if conflict := conflict_error(said, wanted, cluster):
        raise conflict
    if "being terminated" in said:
        raise Refused(
            "the namespace is being deleted",
            why=said.partition("\n")[0],
            hint="wait until it is gone, then run the same command again: kubectl get namespaces --watch",
        )
    if any("Forbidden" in one or "is forbidden" in one for one in tried.errors):
        raise Forbidden(
            "your credentials may not apply this",
            why=said,
            hint=f"see what they may do: {cluster.command('auth', 'can-i', '--list')}",
        )
    raise Refused(
        "the API server does not take what the recipe asks for",
        why=said,
        hint="see what is rendered:\ngpunode k8s render",
    )


def _refuse_forbidden(plan: ClusterPlan, cluster: Cluster) -> None:
    """Nothing, if the credential may do all of the plan: better refused now than stopped halfway."""
    if not plan.changes:
        return
    wishes = tuple(dict.fromkeys(wish for one in plan.changes if one.kind in _API for wish in _wishes(one)))
    allowed = cluster.check_access(wishes)
    missing = [wish for wish, may in zip(wishes, allowed, strict=True) if not may]
    if missing:
        rights = (f"{verb} {what}" + (f" in {where}" if where else "") for verb, _, what, where in missing)
        raise Forbidden(
            "your credentials may not do all of this",
            why="missing: " + ", ".join(rights),
            hint=f"ask for these rights, or name another credential: {command('--kubeconfig', 'FILE')}",
        )


def _wishes(item: Item) -> Iterator[tuple[str, str, str, str]]:
    group, what = _API[item.kind]
    yield ("delete" if item.state == "delete" else "patch", group, what, item.namespace)
    if item.state == "create":
        yield ("create", group, what, item.namespace)


def _nodes(names: Sequence[str], cluster: Cluster) -> Sequence[Body]:
    """The Nodes of these names, as far as they are there; of many all are listed, in short, which is one request."""
    if len(names) > _MANY:
        wanted = frozenset(names)
        return [one for one in cluster.list_nodes() if one["metadata"]["name"] in wanted]
    return cluster.get([{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in names])


def _is_labelled(body: Body) -> bool:
    labels = body["metadata"].get("labels", {})
    return all(labels.get(name) == value for name, value in MANAGED_BY.items())
