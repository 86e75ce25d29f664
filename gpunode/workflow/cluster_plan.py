"""Plan which rendered objects a cluster lacks, by querying its API server; changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeAlias

from gpunode.command import command, gpunode_command
from gpunode.errors import Conflict, GpunodeError, Refused, Undetermined
from gpunode.fast_dataclass import dataclass
from gpunode.host.cluster import Cluster, ClusterIdentity, DryRunResult
from gpunode.host.kubectl import FIELD_CONFLICT, USER_FORBIDDEN, Forbidden, explain_rejection, main_error_line
from gpunode.kubernetes.advertisers import OPERATOR_GROUP, OPERATOR_KINDS, OPERATOR_SELECTOR, check_other_advertisers
from gpunode.kubernetes.live_checks import RequiredDaemonSet
from gpunode.kubernetes.model import (
    GPU_PRESENT_LABEL,
    Body,
    ChartRelease,
    KindCluster,
    NodeEdit,
    RenderedCluster,
    RenderedObject,
)
from gpunode.kubernetes.owned import co_owners, conflict_lines, explain_deletion, is_labelled, object_title
from gpunode.kubernetes.reconcile import (
    OUR_LABEL_SELECTOR,
    OUR_RELEASE_SELECTOR,
    LiveState,
    PlanItem,
    current_fields,
    field_manager_of,
    find_release_of_chart,
    is_as_wanted,
    node_body,
    note_untolerated_taints,
    object_key,
    plan_items,
    refuse_other_handler,
)
from gpunode.kubernetes.render import RenderFormat
from gpunode.redaction.secrets import redact_text as redact
from gpunode.wording import join_names
from gpunode.workflow.cluster_workloads import explain_unready, find_unready_releases, is_unchanged_workload

_API_RESOURCES: Final[Mapping[str, tuple[str, str]]] = {
    "Namespace": ("", "namespaces"),
    "ConfigMap": ("", "configmaps"),
    "Node": ("", "nodes"),
    "DaemonSet": ("apps", "daemonsets"),
    "RuntimeClass": ("node.k8s.io", "runtimeclasses"),
}
# Verb, API group, resource, namespace and name; an empty name means every object.
_AccessRequest: TypeAlias = tuple[str, str, str, str, str]
_UNTESTED_NOTE: Final = (
    "The dry run covers only what your credentials may change; for the rest, fields that others own and objects that "
    "the API server would reject are not shown."
)
_VERBS_BY_STATE: Final = {"create": ("patch", "create"), "delete": ("delete",)}
_LIST_ALL_NODES_ABOVE: Final = 20
_MAX_NODES_SHOWN: Final = 3
# Sources: apimachinery's errors.NewInvalid, field validation "Strict" and server-side apply's typed objects; then the
# API server's admission webhooks, ValidatingAdmissionPolicies (whose denials are "invalid") and RBAC.
_FIELD_ERROR_MESSAGE: Final = re.compile(
    r"is invalid|unknown field|strict decoding|not declared in schema|cannot unmarshal"
)
_NAMESPACE_ERROR_MESSAGE: Final = re.compile(
    r"admission webhook|AdmissionPolicy|denied (?:the )?request|orbidden|field is immutable"
)


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The changes that ``k8s apply`` would make in a cluster.

    Attributes:
        skipped_nodes: what an undo leaves out because the credential does not permit it, or a Node is gone.
        notes: what else the user should know about the cluster.
        releases: the chart releases to install or update, by their names in the cluster.
        missing_rights: the rights that the plan needs and the credential lacks.
    """

    identity: ClusterIdentity
    items: tuple[PlanItem, ...]
    skipped_nodes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    releases: tuple[ChartRelease, ...] = ()
    missing_rights: str = ""

    @property
    def changes(self) -> tuple[PlanItem, ...]:
        """The items that change something."""
        return tuple(item for item in self.items if item.change is not None)


def make_plan(rendered: RenderedCluster, cluster: Cluster) -> ClusterPlan:
    """Return the plan.

    Raises:
        Refused: the recipe is for another cluster, a Node is missing, something else offers the GPUs already, or the
            credential may not read the present state.
        Conflict: another field manager owns what gpunode would set.
        UsageError, Undetermined: the cluster cannot be reached.
    """
    identity = cluster.identify()
    if rendered.kind:
        refuse_other_cluster(rendered.kind, identity)
    present, notes = _read_live_state(rendered, cluster, identity)
    installed = ((release, find_release_of_chart(release, present.releases)) for release in rendered.releases)
    releases = tuple(
        replace(release, namespace=it.namespace, name=it.name) if it else release for release, it in installed
    )
    planned_items = tuple(_with_pod_problems(plan_items(rendered, present), present, releases, cluster))
    notes = (*notes, *_note_other_nodes(planned_items, {edit.node for edit in rendered.nodes}, cluster))
    notes = (*notes, *_note_left_releases(releases, cluster), *_note_unread_config(planned_items))
    notes = (*notes, *note_untolerated_taints(rendered, present.nodes))
    plan = ClusterPlan(identity, planned_items, notes=notes, releases=releases)
    missing = describe_missing_rights(plan, cluster)
    lacks = f"apply needs rights that your credentials lack: {missing}"
    return replace(plan, notes=(*notes, lacks), missing_rights=missing) if missing else plan


def _note_other_nodes(items: Sequence[PlanItem], named: AbstractSet[str], cluster: Cluster) -> Iterator[str]:
    """Yield a note if a changed workload also serves Nodes other than the ``named`` ones."""
    if any(item.kind in {"DaemonSet", "Helm release"} and item.state == "edit" for item in items):
        with suppress(Forbidden):
            served = cluster.list_metadata("nodes", "--selector", f"{GPU_PRESENT_LABEL}=true")
            if others := [name for node in served if (name := str(node["metadata"]["name"])) not in named]:
                yield (
                    f"These changes also affect {join_names(others, _MAX_NODES_SHOWN)}, which "
                    f"{'has' if len(others) == 1 else 'have'} the label {GPU_PRESENT_LABEL}=true, too: to see how, "
                    f"name each as well: --node {others[0]}=CAPTURE"
                )


def _note_unread_config(items: Sequence[PlanItem]) -> Iterator[str]:
    """Yield a note if only the configuration of the plugin changes, since its name depends on the content."""
    if any(item.kind == "ConfigMap" and item.state in {"create", "edit"} for item in items):
        for item in filter(is_unchanged_workload, items):
            restart = command("kubectl", "rollout", "restart", "daemonset", "--namespace", item.namespace, item.name)
            yield (
                f"The pods of {item.title} read their configuration only when they start. If it was edited since, "
                f"restart them after apply: `{restart}`"
            )


def find_own_releases(cluster: Cluster) -> tuple[tuple[str, str], ...]:
    """Return the namespaces and names of the releases that gpunode made, by the Secrets in which Helm stores them.

    Each revision has one. ``helm uninstall --keep-history`` leaves them, the newest with the status ``uninstalled``.
    """
    secrets = cluster.list_metadata("secrets", "--all-namespaces", "--selector", f"owner=helm,{OUR_RELEASE_SELECTOR}")
    revisions = sorted(
        (secret["metadata"] for secret in secrets), key=lambda revision: int(revision["labels"].get("version", 0))
    )
    status = {
        (revision["namespace"], revision["labels"]["name"]): revision["labels"].get("status") for revision in revisions
    }
    return tuple(sorted(place for place, now in status.items() if now != "uninstalled"))


def _note_left_releases(desired: Sequence[ChartRelease], cluster: Cluster) -> Iterator[str]:
    """Yield a note for each release of an earlier recipe, with the command that removes it."""
    with suppress(Forbidden):
        places = {(release.namespace, release.name) for release in desired}
        for namespace, name in find_own_releases(cluster):
            if (namespace, name) not in places:
                remove = command("helm", "uninstall", name, "--namespace", namespace)
                yield (
                    f"Helm release {namespace}/{name}, of an earlier recipe, stays in effect, although this recipe "
                    f"does not request it: `{remove}`"
                )


def _with_pod_problems(
    items: Sequence[PlanItem], present: LiveState, releases: Sequence[ChartRelease], cluster: Cluster
) -> Iterator[PlanItem]:
    """Yield the items; add the reason to an unchanged DaemonSet or release whose pods do not run."""
    live = {object_key(body): body for body in present.live}
    same = {item.title for item in items if item.state == "unchanged"}
    found_unready = [*find_unready_releases([release for release in releases if release.title in same], cluster)]
    unready = {daemon_set.release.title: daemon_set for daemon_set in reversed(found_unready) if daemon_set.release}
    # The pods may be waiting for a label that is about to be set.
    is_labelled_now = any(item.kind == "Node" and item.change is not None for item in items)
    for item in items:
        daemon_set = unready.get(item.title)
        if is_unchanged_workload(item):
            own = RequiredDaemonSet(item.title, live.get((item.kind, item.namespace, item.name)))
            daemon_set = None if own.is_ready else own
        if daemon_set is None or (is_labelled_now and not daemon_set.pod_counts[0]):
            yield item
            continue
        state, trouble = explain_unready(daemon_set, cluster)
        state_note = item.note or "up to date"
        prefix = f"{daemon_set.title}: " if daemon_set.title != item.title else ""
        yield replace(item, note=f"{state_note}, but {prefix}{state}: {trouble.why}", trouble=trouble)


def refuse_other_cluster(kind: KindCluster, identity: ClusterIdentity) -> None:
    """Refuse a context other than that of the kind cluster.

    Raises:
        Refused: it is another context.
    """
    if identity.context != kind.context:
        raise Refused(
            f"the recipe is for the kind cluster {kind.name}, and this is the context {identity.context}",
            why=f"kind calls the context of its cluster {kind.context}",
            hint=f"add --context={kind.context} to the same command; if the cluster does not exist yet:\n"
            f"{gpunode_command('k8s', 'render', '--output', 'gpu-stack')}\ngpu-stack/kind.sh",
        )


def _read_live_state(
    rendered: RenderedCluster, cluster: Cluster, identity: ClusterIdentity
) -> tuple[LiveState, tuple[str, ...]]:
    """Return the live state of the rendered objects, and notes about what else the cluster has."""
    # First, so that a missing Helm fails before thousands of Nodes are read.
    charts = {release.chart for release in rendered.releases}
    releases = cluster.helm.list_releases(charts=charts) if charts else ()
    objects = cluster.get([rendered_object.body for rendered_object in rendered.objects])
    refuse_other_handler(rendered, objects)
    edits = {edit.node: edit for edit in rendered.nodes}
    if len(edits) > _LIST_ALL_NODES_ABOVE:  # one request instead of one for each
        nodes = tuple(node for node in cluster.list_nodes() if node["metadata"]["name"] in edits)
    else:
        nodes = cluster.get([{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in edits])
    refuse_being_deleted(objects)
    workloads = cluster.list("daemonsets.apps", "--all-namespaces")
    operators, unseen = _find_operators(cluster)
    notes = (*check_other_advertisers(rendered, (*workloads, *operators), nodes, releases), *unseen)
    ours = [workload for workload in workloads if is_labelled(workload)]
    if any(rendered_object.kind == "ConfigMap" for rendered_object in rendered.objects) or ours:
        ours += cluster.list("configmaps", "--all-namespaces", "--selector", OUR_LABEL_SELECTOR)
    # A dry run needs rights, which nobody should need for unchanged objects.
    changed = [
        rendered_object for rendered_object in rendered.objects if not is_as_wanted(rendered_object.body, objects)
    ]
    projected, untested = _dry_run(changed, cluster, objects)
    if _dry_run_node_edits(edits, nodes, cluster):
        untested = tuple(dict.fromkeys((*untested, _UNTESTED_NOTE)))
    return LiveState(identity.uid, objects, projected, nodes, ours, releases), (*notes, *untested)


def refuse_being_deleted(bodies: Iterable[Body]) -> None:
    """Refuse a wanted object that is being deleted: it would be gone after the command succeeded.

    A deleted Node takes only its own labels and taint with it, and an autoscaler may drain a Node for days.

    Raises:
        Refused: an object is being deleted; says what blocks the deletion.
    """
    for live in bodies:
        if live["kind"] != "Node" and (explanation := explain_deletion(live)):
            hint = f"wait until it is gone, then run the same command again\n{explanation[1]}"
            raise Refused(f"{object_title(live)} is being deleted", why=explanation[0], hint=hint)


def _find_operators(cluster: Cluster) -> tuple[Sequence[Body], Sequence[str]]:
    """Return the objects that reveal a GPU Operator, and a note for each kind that cannot be read."""

    def list_custom() -> Sequence[Body]:
        found = cluster.list_kinds("--verbs=list", group=OPERATOR_GROUP)
        kinds = [kind for kind in found if kind.partition(".")[0] in OPERATOR_KINDS]
        return cluster.list(",".join(kinds)) if kinds else ()

    def list_deployments() -> Sequence[Body]:
        return cluster.list("deployments.apps", "--all-namespaces", "--selector", OPERATOR_SELECTOR)

    operators: list[Body] = []
    notes: list[str] = []
    readers = {"ClusterPolicies, GPUClusters and NVIDIADrivers": list_custom, "Deployments": list_deployments}
    for title, read in readers.items():
        try:
            operators += read()
        except Undetermined:  # noqa: PERF203 - two rounds
            raise
        except GpunodeError as error:
            reason = main_error_line(error.why)
            notes.append(f"{title} were not checked, so a GPU Operator may be installed: {reason}")
    return operators, notes


def _dry_run(
    rendered: Sequence[RenderedObject], cluster: Cluster, live: Sequence[Body]
) -> tuple[Sequence[Body], Sequence[str]]:
    """Return the objects as the API server would store them, and a note for each that could not be tried.

    Objects of a namespace that does not exist yet are tried in the namespace default, only to find invalid fields: the
    policies and permissions of default say nothing about the new namespace.
    """
    missing = {rendered_object.name for rendered_object in rendered if rendered_object.kind == "Namespace"} - {
        body["metadata"]["name"] for body in live if body["kind"] == "Namespace"
    }
    bodies = [rendered_object.body for rendered_object in rendered if rendered_object.namespace not in missing]
    result = cluster.dry_run(bodies, field_manager_of(""))
    untested = [_UNTESTED_NOTE] if _check_dry_run(result, bodies, cluster) else []
    untried = [rendered_object.body for rendered_object in rendered if rendered_object.namespace in missing]
    moved = [{**body, "metadata": {**body["metadata"], "namespace": "default"}} for body in untried]
    messages = cluster.dry_run(moved, field_manager_of("")).errors
    _check_dry_run(DryRunResult((), tuple(filter(_is_field_error, messages))), moved, cluster)
    note = (
        f"not in the dry run, since namespace {', '.join(sorted(missing))} does not exist yet, and default refuses it"
    )
    for message in messages:
        if not (_is_field_error(message) or (untested and USER_FORBIDDEN.search(message))):
            untested.append(f"{note}: {redact(' '.join(message.split()))}")
    return result.objects, untested


def _is_field_error(message: str) -> bool:
    """Return whether the API server rejects an object's fields, whatever its namespace.

    Admission policies use similar messages, and "field is immutable" concerns an object that exists.
    """
    return _FIELD_ERROR_MESSAGE.search(message) is not None and _NAMESPACE_ERROR_MESSAGE.search(message) is None


def _dry_run_node_edits(edits: Mapping[str, NodeEdit], nodes: Sequence[Body], cluster: Cluster) -> bool:
    pending = []
    for live in nodes:
        edit = edits[live["metadata"]["name"]]
        labels = live["metadata"].get("labels", {})
        if any(labels.get(name) != value for name, value in edit.labels.items()):
            body: dict[str, Any] = dict(node_body(edit, live))
            body.pop("spec", None)
            pending.append(body)
    return _check_dry_run(cluster.dry_run(pending, field_manager_of("Node")), pending, cluster)


def _check_dry_run(result: DryRunResult, applied: Sequence[Body], cluster: Cluster) -> bool:
    """Refuse if the API server rejects an object; return whether it lacked the right to try one."""
    rejected = [
        error for error in result.errors if not USER_FORBIDDEN.search(error)
    ]  # not what an admission plugin forbids
    if not rejected:
        return bool(result.errors)
    messages = "\n".join(rejected)
    if conflict := conflict_error(messages, applied, cluster):
        raise conflict
    raise explain_rejection(messages)


def require_rights(plan: ClusterPlan) -> ClusterPlan:
    """Return the plan if the credential permits all of it; refuse rather than stop halfway."""
    if not plan.missing_rights:
        return plan
    raise Forbidden(
        "your credentials may not do all of this",
        why=f"missing: {plan.missing_rights}",
        hint=f"ask for these rights, or name another credential: {command('--kubeconfig', 'FILE')}",
    )


def describe_missing_rights(plan: ClusterPlan, cluster: Cluster) -> str:
    """Return the rights that the plan needs and the credential lacks, for a message; empty if it has them all."""
    needed: list[_AccessRequest] = [
        (verb, *_API_RESOURCES[item.kind], item.namespace, item.name)
        for item in plan.changes
        if item.kind in _API_RESOURCES
        for verb in _VERBS_BY_STATE.get(item.state, ("patch",))
    ]
    denied = _list_denied([(verb, group, what, where, "") for verb, group, what, where, _ in needed], cluster)
    # A role may cover named objects only. Query names only then: thousands of nodes would take minutes.
    named = [request for request in needed if request[0] != "create" and (*request[:4], "") in denied]
    denied_by_name = {request[:4] for request in _list_denied(named, cluster)}
    missing = [request for request in denied if request[0] == "create" or request[:4] in denied_by_name]
    return ", ".join(f"{verb} {what}" + (f" in {where}" if where else "") for verb, _, what, where, _ in missing)


def _list_denied(requests: Iterable[_AccessRequest], cluster: Cluster) -> tuple[_AccessRequest, ...]:
    """Return the unique requests that the credential does not permit."""
    unique = tuple(dict.fromkeys(requests))
    return tuple(
        request for request, is_allowed in zip(unique, cluster.check_access(unique), strict=True) if not is_allowed
    )


# They undo other edits. Sources: argo-cd common/common.go (ArgoCDSSAManager); fluxcd, "Server-side apply".
_FORM_BY_GITOPS_MANAGER: Final[Mapping[str, RenderFormat]] = {
    "argocd-controller": "argocd",
    "kustomize-controller": "flux",
    "helm-controller": "flux",
}
# kubectl's commands that change an existing object.
_HAND_EDITOR: Final = re.compile(r"kubectl-(?:annotate|edit|label|patch|replace|rollout|scale|set)")


def conflict_error(message: str, applied: Sequence[Body], cluster: Cluster) -> Conflict | None:
    """Return the error if others own applied fields; None if the API server's ``message`` reports something else."""
    managers = dict.fromkeys(FIELD_CONFLICT.findall(message))
    if not managers:
        return None
    live = cluster.get(applied)
    if not live:  # deleted meanwhile
        return None
    lines = conflict_lines(message, applied, live)
    example = next((one for one in live if conflict_lines(message, applied, [one])), live[0])
    kind, namespace, name = object_key(example)
    what = f"{', '.join(managers)} {'own' if len(managers) > 1 else 'owns'} fields that gpunode would set"
    why = redact("\n".join(lines)) or message
    if form := next((_FORM_BY_GITOPS_MANAGER[one] for one in managers if one in _FORM_BY_GITOPS_MANAGER), None):
        render = gpunode_command("k8s", "render", "--format", form, "--output", "FOLDER")
        hint = f"change it in git, where it comes from: render the files again, and commit them:\n{render}"
        return Conflict(what, why=why, hint=hint)
    # Whoever edits a field back to gpunode's value co-owns it, and the object stays when gpunode is removed.
    others = {*managers, *co_owners(example, (field_manager_of(kind),))}
    is_edited = all(map(_HAND_EDITOR.fullmatch, others)) and kind not in {"Node", "Namespace"}
    is_edited = is_edited and current_fields(example) is not None
    verb, way = ("delete", "have gpunode create the object again") if is_edited else ("edit", "set them there yourself")
    where = ("--namespace", namespace) if namespace else ()
    return Conflict(
        what,
        why=why,
        hint=f"to keep these values, change the recipe; to have the recipe's, {way}; then run the same command again:\n"
        f"{command('kubectl', verb, kind.lower(), *where, name)}",
    )
