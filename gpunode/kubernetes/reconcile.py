"""Rendered objects compared with the cluster's: the changes to apply. Pure."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, TypeAlias

from gpunode import yaml
from gpunode.change import CommandChange, ObjectChange
from gpunode.command import command
from gpunode.errors import Conflict, Refused
from gpunode.facts.helm import HelmRelease
from gpunode.fast_dataclass import dataclass
from gpunode.kubernetes.model import (
    LABELS_FIELD_MANAGER,
    MANAGED_BY_LABEL,
    Body,
    ChartRelease,
    NodeEdit,
    RenderedCluster,
    RenderedObject,
)
from gpunode.kubernetes.owned import (
    all_set_fields,
    co_owners,
    fields_by_manager,
    format_field,
    is_applied_client_side,
    other_managers,
    owned_fields,
)
from gpunode.kubernetes.pods import PodProblem, format_taint, tolerates
from gpunode.wording import join_names

FIELD_MANAGER: Final = "gpunode"
_OWN_FIELD_MANAGERS: Final = (FIELD_MANAGER, LABELS_FIELD_MANAGER)
# The labels by which gpunode finds its objects, and the Secrets of its releases.
OUR_LABEL_SELECTOR: Final = ",".join(f"{name}={value}" for name, value in MANAGED_BY_LABEL.items())
OUR_RELEASE_SELECTOR: Final = "managed-by=gpunode"
_OBSOLETE_OBJECTS_WAVE: Final = 99
_CHART_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)\.(\d+)((?:-[0-9A-Za-z.-]+)?)(?:\+.*)?")
# A Node's taints are one field, which one manager owns entirely, so an annotation records which taint is gpunode's.
_OWN_TAINT_ANNOTATION: Final = "gpunode-taint"
PlanItemState: TypeAlias = Literal["create", "edit", "delete", "unchanged", "foreign"]
ObjectKey: TypeAlias = tuple[str, str, str]
# Set by the API server, so differences do not matter.
_SERVER_METADATA: Final = frozenset(
    {"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink"}
)


@dataclass(frozen=True, slots=True)
class PlanItem:
    """An object or a Helm release in the plan of a cluster.

    Attributes:
        change: None if there is nothing to do.
        note: why nothing is done, or what stays as it is.
        diff: the changed lines of our fields, as YAML.
        trouble: why the pods of an unchanged DaemonSet do not run; None if they do.
    """

    kind: str
    namespace: str
    name: str
    state: PlanItemState
    why: str
    wave: int
    change: ObjectChange | CommandChange | None = None
    note: str = ""
    diff: tuple[str, ...] = ()
    trouble: PodProblem | None = None

    @property
    def title(self) -> str:
        """``DaemonSet gpu-system/nvidia-device-plugin``."""
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class LiveState:
    """The cluster's counterparts of the rendered objects.

    Attributes:
        cluster: its uid.
        live: the objects that exist.
        projected: objects that need a change, as the API server would store them; none without the right to a dry run.
        nodes: the Nodes that exist.
        labelled: all objects with gpunode's label, including those of earlier recipes.
        releases: the releases of the rendered charts.
    """

    cluster: str
    live: Sequence[Body] = ()
    projected: Sequence[Body] = ()
    nodes: Sequence[Body] = ()
    labelled: Sequence[Body] = ()
    releases: Sequence[HelmRelease] = ()


def object_key(body: Body) -> ObjectKey:
    """Return the object's kind, namespace and name."""
    metadata = body["metadata"]
    return str(body["kind"]), str(metadata.get("namespace", "")), str(metadata["name"])


def field_manager_of(kind: str) -> str:
    """Return the field manager with which gpunode applies objects of this kind."""
    return LABELS_FIELD_MANAGER if kind == "Node" else FIELD_MANAGER


def node_body(edit: NodeEdit, live: Body) -> Body:
    """Return the labels and the taint that the Node should have, as an object to apply.

    It has the uid of the live Node, so that applying it to another Node, or without a Node, fails.
    """
    metadata: dict[str, Any] = {"name": edit.node, "uid": live["metadata"]["uid"], "labels": dict(edit.labels)}
    taint = _parse_taint(edit.taint)
    has_it = taint is not None and taint in _taints_of(live)
    if taint is None or (has_it and _own_taint_annotation(live) != edit.taint):
        return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
    metadata["annotations"] = {_OWN_TAINT_ANNOTATION: edit.taint}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"taints": [taint]}}


def refuse_other_handler(rendered: RenderedCluster, live: Sequence[Body]) -> None:
    """Refuse a RuntimeClass that exists with another handler, since handlers are immutable.

    Raises:
        Conflict: there is one; names its creator.
    """
    desired = {one.name: str(one.body["handler"]) for one in rendered.objects if one.kind == "RuntimeClass"}
    for one in live:
        name, handler = one["metadata"]["name"], one.get("handler")
        if one["kind"] == "RuntimeClass" and handler != desired.get(name, handler):
            metadata = one["metadata"]
            release = metadata.get("annotations", {}).get("meta.helm.sh/release-name")
            owners = (f"{owner['kind']} {owner['name']}" for owner in metadata.get("ownerReferences", []))
            maker = f"Helm release {release}" if release else next(owners, "")
            maker = maker or metadata.get("labels", {}).get("app.kubernetes.io/managed-by")
            maker = maker or ", ".join(other_managers(one, ())) or "somebody"
            raise Conflict(
                f"RuntimeClass {name} has the handler {handler}; gpunode's pods need {desired[name]}",
                why=f"{maker} made it, and the handler of a RuntimeClass cannot be changed",
                hint=f'leave it, and let gpunode create another one: runtime_class = "{name}-gpunode" in [kubernetes]\n'
                f"or delete it, if no pod uses it: {command('kubectl', 'delete', 'runtimeclass', name)}",
            )


def plan_items(rendered: RenderedCluster, state: LiveState) -> tuple[PlanItem, ...]:
    """Return the plan's items in order: labels, obsolete workloads, objects by wave, obsolete leftovers.

    Raises:
        Refused: a Node is not in this cluster.
        Conflict: a Node has another taint with our key and effect.
    """
    live, projected = {object_key(one): one for one in state.live}, {object_key(one): one for one in state.projected}
    nodes = {str(node["metadata"]["name"]): node for node in state.nodes}
    desired = {object_key(one.body) for one in rendered.objects}
    obsolete = [
        one for one in state.labelled if object_key(one) not in desired and owned_fields(one, FIELD_MANAGER) is not None
    ]
    items = (
        *(_plan_node(edit, nodes, state.cluster) for edit in rendered.nodes),
        *(_plan_obsolete_object(one, state.cluster) for one in obsolete if one["kind"] == "DaemonSet"),
        *(
            _plan_object(one, live.get(object_key(one.body)), projected.get(object_key(one.body)), state.cluster)
            for one in rendered.objects
        ),
        *(_plan_release(release, state.releases, state.cluster) for release in rendered.releases),
        *(_plan_obsolete_object(one, state.cluster) for one in obsolete if one["kind"] == "ConfigMap"),
    )
    return tuple(sorted(items, key=lambda one: one.wave))


def is_as_wanted(desired: Body, live: Sequence[Body]) -> bool:
    """Return whether the object is among the ``live`` ones, and applying it would change nothing."""
    present = next((one for one in live if object_key(one) == object_key(desired)), None)
    before = present and owned_fields(present, FIELD_MANAGER)
    return before == desired or (present is not None and before is None and _contains(present, desired))


def _plan_object(desired: RenderedObject, live: Body | None, projected: Body | None, cluster: str) -> PlanItem:
    kind, namespace, name = object_key(desired.body)
    item = PlanItem(kind, namespace, name, "create", desired.why, desired.wave)
    after = (owned_fields(projected, FIELD_MANAGER) if projected else None) or desired.body
    if live is None:
        return replace(item, change=_object_change(desired.body, cluster, None, after))
    before = owned_fields(live, FIELD_MANAGER)
    changes_nothing = projected is not None and _without_server_fields(live) == _without_server_fields(projected)
    if before is None and (changes_nothing or _contains(live, desired.body)):
        managers = ", ".join(other_managers(live, _OWN_FIELD_MANAGERS)) or "somebody else"
        return replace(item, state="foreign", note=f"already there, from {managers}")
    if before == after:
        return replace(item, state="unchanged")
    change = _object_change(desired.body, cluster, before, after, shared=before is None or is_kept_on_removal(live))
    # If the object is not ours yet, fields that others set stay.
    old, new = (before, after) if before else map(_without_server_fields, (live, projected or live))
    return replace(item, state="edit", change=change, diff=_yaml_diff(old, new))


def _plan_node(edit: NodeEdit, nodes: Mapping[str, Body], cluster: str) -> PlanItem:
    live = nodes.get(edit.node)
    if live is None:
        raise Refused(
            f"there is no Node {edit.node} in this cluster",
            why="it may have left, be of another cluster, or have another name than its host",
            hint="list its Nodes: kubectl get nodes\n"
            "then name the Node with --node NAME=CAPTURE, the cluster with --context NAME, or leave its capture out",
        )
    _refuse_other_taint(edit, live)
    body = node_body(edit, live)
    metadata = {name: value for name, value in body["metadata"].items() if name != "uid"}
    before, after = fields_owned_by_gpunode(live), {**body, "metadata": metadata}
    labels = live["metadata"].get("labels", {})
    has_labels = all(labels.get(name) == value for name, value in edit.labels.items())
    has_taint = not edit.taint or _parse_taint(edit.taint) in _taints_of(live)
    has_obsolete = before is not None and (
        _labels_and_taints(before) - _labels_and_taints(after) or _has_obsolete_mark(before, after)
    )
    item = PlanItem("Node", "", edit.node, "edit", edit.why, -1)
    if has_labels and has_taint and not has_obsolete:
        return replace(item, state="unchanged")
    change = _object_change(body, cluster, before, after, shared=True)
    return replace(item, change=change, diff=tuple(_diff_node(before, after, live)))


def _diff_node(before: Body | None, after: Body, live: Body) -> Iterator[str]:
    labels, new_labels = live["metadata"].get("labels", {}), after["metadata"].get("labels", {})
    yield from (f"+label {name}={value}" for name, value in new_labels.items() if labels.get(name) != value)
    old_labels = (before or {"metadata": {}})["metadata"].get("labels", {})
    yield from (f"-label {name}={value}" for name, value in old_labels.items() if name not in new_labels)
    new_taints, old_taints = ({format_taint(one) for one in _taints_of(body)} for body in (after, before or {}))
    yield from (f"+taint {taint}" for taint in sorted(new_taints) if _parse_taint(taint) not in _taints_of(live))
    yield from (f"-taint {one}" for one in sorted(old_taints - new_taints))
    if before and not old_taints and _has_obsolete_mark(before, after):
        yield f"-annotation {_OWN_TAINT_ANNOTATION}={_own_taint_annotation(before)}"


def _has_obsolete_mark(before: Body, after: Body) -> bool:
    """Return whether a taint is marked as ours that should not be: without it, somebody may set the same one."""
    return _own_taint_annotation(before) not in {"", _own_taint_annotation(after)}


def _refuse_other_taint(edit: NodeEdit, live: Body) -> None:
    desired = _parse_taint(edit.taint)
    for one in _taints_of(live):
        if desired and (one["key"], one["effect"]) == (desired["key"], desired["effect"]) and one != desired:
            if format_taint(one) == own_taint(live):  # set by an earlier recipe
                continue
            raise Conflict(
                f"Node {edit.node} has the taint {format_taint(one)}, but the recipe sets {edit.taint}",
                why="a Node can have only one taint with a key and effect, and somebody else set this one",
                hint=f'set value = "{one.get("value", "")}" in [kubernetes.taint], or remove the other taint',
            )


def note_untolerated_taints(rendered: RenderedCluster, nodes: Sequence[Body]) -> Iterator[str]:
    """Yield a note for each taint of others that the user's own pods, as they are shown, do not tolerate.

    Kubernetes sets the taints of node.kubernetes.io itself, for as long as a Node is not ready or cordoned.
    """
    tolerations = [one for own in rendered.user_pods for one in own.spec.get("tolerations", ())]
    nodes_by_taint: dict[tuple[str, str], list[str]] = {}
    for live in nodes:
        for taint in _taints_of(live):
            is_passing = taint["effect"] == "PreferNoSchedule" or taint["key"].startswith("node.kubernetes.io/")
            is_ours = format_taint(taint) == own_taint(live)
            if not (is_passing or is_ours or any(tolerates(one, taint) for one in tolerations)):
                nodes_by_taint.setdefault((taint["key"], format_taint(taint)), []).append(str(live["metadata"]["name"]))
    for (key, title), names in nodes_by_taint.items():
        have = "has" if len(names) == 1 else "have"
        yield (
            f"{join_names(names, 3)} {have} the taint {title}, which the recipe does not name. Your own pod needs "
            f"this, too: `tolerations: [{{key: {key}, operator: Exists}}]`"
        )


def fields_owned_by_gpunode(live: Body) -> Body | None:
    """Return the fields that gpunode applied, with its taint if the Node still has it; None if there are none."""
    fields = owned_fields(live, field_manager_of(live["kind"]))
    if fields is None or live["kind"] != "Node":
        return fields
    # An annotation that somebody else set does not show who set the taint.
    own = _parse_taint(_own_taint_annotation(fields))
    return {**fields, "spec": {"taints": [own]}} if own and own in _taints_of(live) else fields


def is_kept_on_removal(live: Body) -> bool:
    """Return whether the object stays when gpunode drops its fields, as a Node or an object with other owners does."""
    if live["kind"] == "Namespace":  # gpunode only sets its labels
        return bool(other_managers(live, _OWN_FIELD_MANAGERS))
    return live["kind"] == "Node" or bool(co_owners(live, _OWN_FIELD_MANAGERS))


def describe_owners(live: Body) -> str:
    """Return the other owners of the object and the fields they share with gpunode, for a message."""
    shared = [
        f"{who} also set {first}{f' and {len(more)} more fields' if more else ''}"
        for who, (first, *more) in co_owners(live, _OWN_FIELD_MANAGERS).items()
    ]
    return "; ".join(shared) or f"{', '.join(other_managers(live, _OWN_FIELD_MANAGERS)) or 'somebody'} applied it, too"


def object_ref(change: ObjectChange) -> Body:
    """Return a reference to the change's object, with only its kind, namespace and name."""
    metadata = {"name": change.name, "namespace": change.namespace} if change.namespace else {"name": change.name}
    return {"apiVersion": change.api_version, "kind": change.kind, "metadata": metadata}


def current_fields(live: Body | None) -> str | None:
    """Return the fields that gpunode owns in the live object, as ``ObjectChange`` stores them."""
    fields = None if live is None else fields_owned_by_gpunode(live)
    return json.dumps(fields, sort_keys=True) if fields else None


def fields_before(change: ObjectChange, live: Body | None) -> str | None:
    """Return the live fields that the change's ``before`` holds: of an object that it deletes, also those of others.

    They are deleted as well, and somebody may have set a field anew that gpunode had set.
    """
    own = current_fields(live)
    if own is None or live is None or change.after is not None or change.shared:
        return own
    return json.dumps(all_set_fields(live), sort_keys=True)


def has_fields(live: Body | None, fields: str | None) -> bool:
    """Return whether these are the object's fields: gpunode's own, or all, which the record of a deletion holds."""
    own = current_fields(live)
    return own == fields or (
        live is not None and own is not None and json.dumps(all_set_fields(live), sort_keys=True) == fields
    )


def plan_field_removal(live: Body, cluster: str) -> ObjectChange | None:
    """Return the change that removes all fields of gpunode from the object; None if there are none."""
    before = fields_owned_by_gpunode(live)
    if before is None:
        return None
    change = _object_change(live, cluster, before, None, shared=is_kept_on_removal(live))
    return replace(change, before=fields_before(change, live))


def describe_lost_edits(live: Body) -> str:
    """Return the fields of others that are deleted with the object, as the end of a sentence; empty for none."""
    found = {
        manager: [path for path in sorted(paths) if path[0] != "f:metadata"]
        for manager, paths in fields_by_manager(live).items()
        if manager not in _OWN_FIELD_MANAGERS
    }
    edits = [
        f"{manager} set {format_field(first)}{f' and {len(more)} more fields' if more else ''}"
        for manager, (first, *more) in ((manager, paths) for manager, paths in found.items() if paths)
    ]
    return f", and {', '.join(edits)}: a rollback restores that, too" if edits else ""


def own_taint(live: Body) -> str:
    """Return the Node's taint that gpunode set, in kubectl's notation; empty for none."""
    return next(map(format_taint, _taints_of(fields_owned_by_gpunode(live) or {})), "")


def format_taints_in(fields: str | None) -> tuple[str, ...]:
    """Return the taints among a Node's fields in an ``ObjectChange``, in kubectl's notation."""
    return tuple(format_taint(one) for one in _taints_of(json.loads(fields))) if fields else ()


def without_taints(fields: str) -> Body:
    """Return a Node's fields without its taints, which are set separately."""
    body: dict[str, Any] = json.loads(fields)
    return {name: value for name, value in body.items() if name != "spec"}


def find_release_of_chart(desired: ChartRelease, releases: Sequence[HelmRelease]) -> HelmRelease | None:
    """Return the installed release of the same chart, under any name: a second one would offer the same GPUs.

    If there are several, prefer the one that gpunode would make.
    """
    release_key = (desired.namespace, desired.name)
    same_chart = [one for one in releases if one.chart == desired.chart and one.status != "uninstalled"]
    return min(same_chart, key=lambda one: (one.namespace, one.name) != release_key, default=None)


def _plan_release(desired: ChartRelease, releases: Sequence[HelmRelease], cluster: str) -> PlanItem:
    """Return the item of a release; an installed release of any name gets our values."""
    live = find_release_of_chart(desired, releases)
    namespace, name = (live.namespace, live.name) if live else (desired.namespace, desired.name)
    item = PlanItem("Helm release", namespace, name, "create", desired.why, desired.wave)
    same_version = live is not None and live.version.lstrip("v") == desired.version.lstrip("v")
    if live is None:
        _refuse_kept_history(desired, releases)
        change = CommandChange(
            install_command(desired), desired.why, _helm_undo_command("uninstall", name, namespace), cluster
        )
        return replace(item, change=change)
    if same_version and live.status == "deployed" and dict(live.values) == _as_json(desired.values):
        return replace(item, state="unchanged")
    undo = _helm_undo_command("rollback", name, namespace, str(live.revision))
    _refuse_unfinished_release(live)
    _refuse_downgrade(desired, live)
    change = CommandChange(_upgrade_command(desired, namespace, name), desired.why, undo, cluster)
    diff = [] if same_version else [f"-chart {live.chart} {live.version}", f"+chart {desired.chart} {desired.version}"]
    diff += [] if live.status == "deployed" else [f"-status {live.status}", "+status deployed"]
    new_values = _as_json(desired.values)
    diff += _yaml_diff(_mask_foreign_values(live.values, new_values), new_values)
    return replace(item, state="edit", change=change, diff=tuple(diff))


def _refuse_kept_history(desired: ChartRelease, releases: Sequence[HelmRelease]) -> None:
    """Refuse to install a release of which ``helm uninstall --keep-history`` left the history.

    Raises:
        Conflict: an undo by ``helm uninstall`` would delete that history, too.
    """
    release_key = (desired.namespace, desired.name)
    if any((one.namespace, one.name) == release_key and one.status == "uninstalled" for one in releases):
        raise Conflict(
            f"Helm release {'/'.join(release_key)} was uninstalled, but Helm kept its history",
            why="gpunode could not undo an installation on top of it without deleting that history",
            hint="delete the history, then run the same command again: "
            + command("helm", "uninstall", desired.name, "--namespace", desired.namespace),
        )


def _refuse_unfinished_release(live: HelmRelease) -> None:
    """Refuse a release that a Helm command is changing, or was changing when it was killed.

    Raises:
        Conflict: Helm would refuse to change it ("another operation is in progress").
    """
    if not live.status.startswith(("pending-", "uninstalling")):
        return
    where = (live.name, "--namespace", live.namespace)
    verb = "rollback" if live.status in {"pending-upgrade", "pending-rollback"} else "uninstall"
    raise Conflict(
        f"Helm release {live.namespace}/{live.name} is in the state {live.status}",
        why="a Helm command is changing it, or was killed while it did; Helm then refuses every other change",
        hint=f"if no helm is running any longer, clear that state: {command('helm', verb, *where)}\n"
        "then run the same command again",
    )


def _refuse_downgrade(desired: ChartRelease, live: HelmRelease) -> None:
    """Refuse to downgrade an installed chart.

    Raises:
        Refused: it would be downgraded; custom resources and running operands rarely survive that.
    """
    installed, new = _version_key(live.version), _version_key(desired.version)
    if installed is None or new is None or new >= installed:
        return
    chart_key = live.chart.replace("dra-driver-nvidia-gpu", "dra-driver").replace("nvidia-", "").replace("-", "_")
    raise Refused(
        f"the release {live.namespace}/{live.name} has chart {live.chart} {live.version}, newer than {desired.version}",
        why="the recipe would downgrade it to an older chart, which does not know the objects of the newer one",
        hint=f'keep its version: set {chart_key} = "{live.version}" in [kubernetes.versions]\n'
        "or roll it back yourself first: " + command("helm", "history", live.name, "--namespace", live.namespace),
    )


def _version_key(version: str) -> tuple[int, int, int, bool, str] | None:
    """Return a sort key for a chart's version; a release candidate sorts before its release."""
    match = _CHART_VERSION.fullmatch(version)
    return (int(match[1]), int(match[2]), int(match[3]), not match[4], match[4]) if match else None


def _mask_foreign_values(values: Any, own: Any) -> Any:
    """Return the values of a release, masking those that the recipe does not set: they may be secret."""
    if isinstance(values, Mapping) and isinstance(own, Mapping):
        return {name: _mask_foreign_values(value, own.get(name)) for name, value in values.items()}
    return values if own is not None else "…"


def _as_json(values: Mapping[str, Any]) -> Any:
    """Return the values as Helm and the API server return them: in JSON's types, with sorted keys."""
    return json.loads(json.dumps(values, sort_keys=True))


def _upgrade_command(desired: ChartRelease, namespace: str, name: str) -> tuple[str, ...]:
    """Return the command that installs or updates the release; it includes all values, for the journal."""
    values = (
        word for name_, value in desired.values.items() for word in ("--set-json", f"{name_}={json.dumps(value)}")
    )
    # Without --create-namespace: the namespace exists by then, and Helm 4 would add a label that stays.
    where = ("--namespace", namespace, "--version", desired.version, "--wait")
    return ("helm", "upgrade", "--install", name, *desired.chart_words, *where, *values)


def install_command(desired: ChartRelease) -> tuple[str, ...]:
    """Return the command that installs a release, with the label by which ``k8s remove`` finds it."""
    return (*_upgrade_command(desired, desired.namespace, desired.name), "--labels", OUR_RELEASE_SELECTOR)


def _helm_undo_command(verb: str, name: str, namespace: str, *more: str) -> tuple[str, ...]:
    return ("helm", verb, name, *more, "--namespace", namespace, "--wait")


def _plan_obsolete_object(live: Body, cluster: str) -> PlanItem:
    kind, namespace, name = object_key(live)
    # A plugin is removed before another is applied; a configuration after the pods that mount it.
    wave, why = 0 if kind == "DaemonSet" else _OBSOLETE_OBJECTS_WAVE, "from an earlier recipe of gpunode"
    is_kept = is_kept_on_removal(live) or is_applied_client_side(live)
    if is_kept and kind == "DaemonSet":
        raise Conflict(
            f"DaemonSet {namespace}/{name} is from an earlier recipe, and {describe_owners(live)}",
            why="gpunode deletes nothing that somebody else also manages, and beside the recipe's plugin it would "
            "offer each GPU twice",
            hint=f"have it removed: {command('kubectl', 'delete', 'daemonset', '--namespace', namespace, name)}",
        )
    if is_applied_client_side(live):
        return PlanItem(kind, namespace, name, "foreign", why, wave, note=f"stays: {describe_owners(live)}")
    note = f"stays: {describe_owners(live)}" if is_kept else ""
    why += "" if is_kept else describe_lost_edits(live)
    return PlanItem(
        kind, namespace, name, "edit" if is_kept else "delete", why, wave, plan_field_removal(live, cluster), note
    )


def _object_change(
    target: Body, cluster: str, before: Body | None, after: Body | None, *, shared: bool = False
) -> ObjectChange:
    kind, namespace, name = object_key(target)
    old, new = (None if one is None else json.dumps(one, sort_keys=True) for one in (before, after))
    return ObjectChange(cluster, str(target["apiVersion"]), kind, namespace, name, old, new, shared=shared)


def _yaml_diff(before: Body, after: Body) -> tuple[str, ...]:
    old, new = (yaml.render_document(_as_json(one)).splitlines() for one in (before, after))
    lines = list(difflib.unified_diff(old, new, lineterm="", n=0))[2:]
    return tuple(line for line in lines if not line.startswith("@@"))


def _contains(live: Any, desired: Any) -> bool:
    """Return whether ``live`` has every field of ``desired`` with the same value."""
    if isinstance(live, Mapping) and isinstance(desired, Mapping):
        return all(name in live and _contains(live[name], value) for name, value in desired.items())
    if isinstance(live, list) and isinstance(desired, list):
        return len(live) == len(desired) and all(map(_contains, live, desired))
    return bool(live == desired)


def _without_server_fields(body: Body) -> Body:
    """Return the object without its status and the metadata that the API server adds."""
    metadata = {name: value for name, value in body["metadata"].items() if name not in _SERVER_METADATA}
    return {**{name: value for name, value in body.items() if name != "status"}, "metadata": metadata}


def _labels_and_taints(body: Body) -> frozenset[str]:
    return frozenset((*body["metadata"].get("labels", {}), *(format_taint(one) for one in _taints_of(body))))


def _parse_taint(text: str) -> dict[str, str] | None:
    """Return a taint as the API server stores it; None for an empty text."""
    if not text:
        return None
    key_value, _, effect = text.rpartition(":")
    name, _, value = key_value.partition("=")
    return {"key": name, "effect": effect} | ({"value": value} if value else {})


def _taints_of(live: Body) -> list[dict[str, str]]:
    """Return the taints of a Node, or of an object to apply to it, without the times that NoExecute adds."""
    return [
        {name: one[name] for name in ("key", "value", "effect") if one.get(name)}
        for one in live.get("spec", {}).get("taints", [])
    ]


def _own_taint_annotation(live: Body) -> str:
    return str(live["metadata"].get("annotations", {}).get(_OWN_TAINT_ANNOTATION, ""))
