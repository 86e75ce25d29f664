"""What is rendered, held against what the cluster has → the changes that bring it there. Pure."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from gpunode import yaml
from gpunode.change import CommandChange, ObjectChange
from gpunode.command import command
from gpunode.errors import Conflict, Refused
from gpunode.facts.helm import Released
from gpunode.kubernetes.model import LABELS_MANAGER, MANAGED_BY, NodeEdit, Object, Release, Rendered
from gpunode.kubernetes.owned import Body, co_owners, is_applied_by_kubectl, others, owned
from gpunode.kubernetes.pods import Trouble

MANAGER: Final = "gpunode"
_MANAGERS: Final = (MANAGER, LABELS_MANAGER)
# By which objects of ours, and the Secrets of releases of ours, are found again.
OURS: Final = ",".join(f"{name}={value}" for name, value in MANAGED_BY.items())
OUR_RELEASES: Final = "managed-by=gpunode"
_LAST_WAVE: Final = 99
_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)\.(\d+)((?:-[0-9A-Za-z.-]+)?)(?:\+.*)?")
# A Node's taints are one field: who applies one owns all. So gpunode keeps in mind which one is its own.
_TAINT: Final = "gpunode-taint"
State: TypeAlias = Literal["create", "change", "delete", "same", "foreign"]
Key: TypeAlias = tuple[str, str, str]
# Set by the API server, or told apart elsewhere: no difference that matters.
_NOISE: Final = frozenset({"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink"})


@dataclass(frozen=True, slots=True)
class Item:
    """One object of the plan.

    Attributes:
        change: None where nothing is to be done.
        note: why nothing is done, or what is left as it is.
        diff: of our fields, as YAML, without the lines that stay.
        trouble: of a DaemonSet that stays as it is, why its pods do not run; None where they do.
    """

    kind: str
    namespace: str
    name: str
    state: State
    why: str
    wave: int
    change: ObjectChange | CommandChange | None = None
    note: str = ""
    diff: tuple[str, ...] = ()
    trouble: Trouble | None = None

    @property
    def title(self) -> str:
        """``DaemonSet gpu-system/nvidia-device-plugin``."""
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Present:
    """What the cluster has of what is rendered.

    Attributes:
        cluster: its uid.
        live: the objects that are there.
        tried: as they would be with ours in them, from the API server's dry run.
        nodes: the Nodes that are there.
        ours: all objects that gpunode's label names, also those of former recipes.
        releases: those of the charts that are rendered.
    """

    cluster: str
    live: Sequence[Body] = ()
    tried: Sequence[Body] = ()
    nodes: Sequence[Body] = ()
    ours: Sequence[Body] = ()
    releases: Sequence[Released] = ()


def key(body: Body) -> Key:
    """By which an object is found: its kind, namespace and name."""
    metadata = body["metadata"]
    return str(body["kind"]), str(metadata.get("namespace", "")), str(metadata["name"])


def manager_of(kind: str) -> str:
    """The field manager by which gpunode applies such an object."""
    return LABELS_MANAGER if kind == "Node" else MANAGER


def node_body(edit: NodeEdit, live: Body) -> Body:
    """The labels and the taint that the Node is to have, as an object of ours.

    With the uid of the Node that is there: to apply it to another one, or to none, fails.
    """
    metadata: dict[str, Any] = {"name": edit.node, "uid": live["metadata"]["uid"], "labels": dict(edit.labels)}
    taint = _taint(edit.taint)
    has_it = taint is not None and taint in _taints(live)
    if taint is None or (has_it and _own_taint(live) != edit.taint):
        return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
    metadata["annotations"] = {_TAINT: edit.taint}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"taints": [taint]}}


def refuse_other_handler(rendered: Rendered, live: Sequence[Body]) -> None:
    """Refuse a RuntimeClass that is there with another handler, which the API server lets nobody change.

    Raises:
        Conflict: it is; who made it is named.
    """
    wanted = {one.name: str(one.body["handler"]) for one in rendered.objects if one.kind == "RuntimeClass"}
    for one in live:
        name, handler = one["metadata"]["name"], one.get("handler")
        if one["kind"] == "RuntimeClass" and handler != wanted.get(name, handler):
            raise Conflict(
                f"RuntimeClass {name} has the handler {handler}; gpunode's pods need {wanted[name]}",
                why=f"{_maker(one)} made it, and nobody can change the handler of a RuntimeClass",
                hint=f'leave it, and have gpunode make another one: runtime_class = "{name}-gpunode" in [kubernetes]\n'
                f"or take it away, if no pod names it: {command('kubectl', 'delete', 'runtimeclass', name)}",
            )


def _maker(live: Body) -> str:
    """Return who made the object, as far as it tells."""
    metadata = live["metadata"]
    release = metadata.get("annotations", {}).get("meta.helm.sh/release-name")
    owner = next((f"{one['kind']} {one['name']}" for one in metadata.get("ownerReferences", [])), "")
    manager = metadata.get("labels", {}).get("app.kubernetes.io/managed-by")
    first = f"Helm release {release}" if release else owner or manager
    return first or ", ".join(others(live, ())) or "somebody"


def items(rendered: Rendered, present: Present) -> tuple[Item, ...]:
    """The plan, in the order in which it is carried out: labels, former workloads, objects by wave, former leftovers.

    Raises:
        Refused: a Node is not in this cluster.
        Conflict: a Node has another taint with our key and effect.
    """
    live, tried = {key(one): one for one in present.live}, {key(one): one for one in present.tried}
    nodes = {str(one["metadata"]["name"]): one for one in present.nodes}
    wanted = {key(one.body) for one in rendered.objects}
    former = [one for one in present.ours if key(one) not in wanted and owned(one, MANAGER) is not None]
    found = (
        *(_node(edit, nodes, present.cluster) for edit in rendered.nodes),
        *(_former(one, present.cluster) for one in former if one["kind"] == "DaemonSet"),
        *(_object(one, live.get(key(one.body)), tried.get(key(one.body)), present.cluster) for one in rendered.objects),
        *(_release(one, present.releases, present.cluster) for one in rendered.releases),
        *(_former(one, present.cluster) for one in former if one["kind"] == "ConfigMap"),
    )
    return tuple(sorted(found, key=lambda one: one.wave))


def _object(wanted: Object, live: Body | None, tried: Body | None, cluster: str) -> Item:
    kind, namespace, name = key(wanted.body)
    item = Item(kind, namespace, name, "create", wanted.why, wanted.wave)
    after = (owned(tried, MANAGER) if tried else None) or wanted.body
    if live is None:
        return _with(item, "create", _change(wanted.body, cluster, None, after))
    before = owned(live, MANAGER)
    if before is None and tried is not None and _plain(live) == _plain(tried):
        who = ", ".join(others(live, _MANAGERS)) or "somebody else"
        return Item(kind, namespace, name, "foreign", wanted.why, wanted.wave, note=f"already there, from {who}")
    if before == after:
        return Item(kind, namespace, name, "same", wanted.why, wanted.wave)
    change = _change(wanted.body, cluster, before, after, shared=before is None or is_shared(live))
    return _with(item, "change", change, _difference(before or _plain(live), after))


def _node(edit: NodeEdit, nodes: Mapping[str, Body], cluster: str) -> Item:
    live = nodes.get(edit.node)
    if live is None:
        raise Refused(
            f"there is no Node {edit.node} in this cluster",
            why="the capture may be of a node of another cluster, or the Node may have another name than the host",
            hint="see its Nodes: kubectl get nodes\n"
            "then name the Node with --node NAME=CAPTURE, or the cluster with --context NAME",
        )
    _refuse_other_value(edit, live)
    body = node_body(edit, live)
    before, after = ours_of_node(live), _without_uid(body)
    labels = live["metadata"].get("labels", {})
    same = all(labels.get(name) == value for name, value in edit.labels.items())
    has_taint = not edit.taint or _taint(edit.taint) in _taints(live)
    stale = before is not None and _keys(before) - _keys(after)
    item = Item("Node", "", edit.node, "change", edit.why, -1)
    if same and has_taint and not stale:
        return Item("Node", "", edit.node, "same", edit.why, -1)
    change = _change(body, cluster, before, after, shared=True)
    return _with(item, "change", change, tuple(_node_difference(before, after, live)))


def _node_difference(before: Body | None, after: Body, live: Body) -> Iterator[str]:
    labels, now = live["metadata"].get("labels", {}), after["metadata"].get("labels", {})
    yield from (f"+label {name}={value}" for name, value in now.items() if labels.get(name) != value)
    was = (before or {"metadata": {}})["metadata"].get("labels", {})
    yield from (f"-label {name}={value}" for name, value in was.items() if name not in now)
    here, there = ({_written(one) for one in _own_taints(body)} for body in (after, before or {}))
    yield from (f"+taint {one}" for one in sorted(here) if _taint(one) not in _taints(live))
    yield from (f"-taint {one}" for one in sorted(there - here))


def _refuse_other_value(edit: NodeEdit, live: Body) -> None:
    wanted = _taint(edit.taint)
    for one in _taints(live):
        if wanted and (one["key"], one["effect"]) == (wanted["key"], wanted["effect"]) and one != wanted:
            raise Conflict(
                f"Node {edit.node} has the taint {_written(one)}, the recipe wants {edit.taint}",
                why="a Node can have one taint of a key and effect, and somebody else set this one",
                hint=f'set value = "{one.get("value", "")}" in [kubernetes.taint], or take the other taint away',
            )


def ours_of_node(live: Body) -> Body | None:
    """The labels that gpunode applied to a Node, and its taint if that is still there; None for neither."""
    found = owned(live, LABELS_MANAGER)
    if found is None:
        return None
    # An annotation that somebody else set says nothing of whose taint it is.
    own = _taint(_own_taint(found))
    return {**found, "spec": {"taints": [own]}} if own and own in _taints(live) else found


def is_shared(live: Body) -> bool:
    """Whether the object stays when gpunode gives up its fields: a Node, or one that is somebody else's, too."""
    if live["kind"] == "Namespace":  # all that is set of one are labels
        return bool(others(live, _MANAGERS))
    return live["kind"] == "Node" or bool(co_owners(live, _MANAGERS))


def describe_owners(live: Body) -> str:
    """Return who owns the object beside gpunode, and which fields of both, for a message."""
    shared = [f"{who} also set {_listed(fields)}" for who, fields in co_owners(live, _MANAGERS).items()]
    return "; ".join(shared) or f"{', '.join(others(live, _MANAGERS)) or 'somebody'} applied it, too"


def _listed(fields: Sequence[str]) -> str:
    more = f" and {len(fields) - 1} more fields" if len(fields) > 1 else ""
    return fields[0] + more


def place(change: ObjectChange) -> Body:
    """The object that is changed, by its name alone."""
    metadata = {"name": change.name, "namespace": change.namespace} if change.namespace else {"name": change.name}
    return {"apiVersion": change.api_version, "kind": change.kind, "metadata": metadata}


def fields_now(change: ObjectChange, live: Body | None) -> str | None:
    """What gpunode owns of the object, as ``ObjectChange`` writes it; ``live`` is the object as it is."""
    found = None if live is None else ours_of_node(live) if change.kind == "Node" else owned(live, MANAGER)
    return json.dumps(found, sort_keys=True) if found else None


def labels_given_up(live: Body, cluster: str) -> ObjectChange | None:
    """Return the change that takes gpunode's labels from a Node and leaves its taint; None where there are none."""
    before = ours_of_node(live)
    if before is None or not before["metadata"].get("labels"):
        return None
    metadata = {name: value for name, value in before["metadata"].items() if name != "labels"}
    after = {**before, "metadata": metadata} if _own_taints(before) else None
    return _change(live, cluster, before, after, shared=True)


def given_up(live: Body, cluster: str) -> ObjectChange | None:
    """The change by which nothing of gpunode's is left in the object; None where there is nothing."""
    before = ours_of_node(live) if live["kind"] == "Node" else owned(live, MANAGER)
    if before is None:
        return None
    return _change(live, cluster, before, None, shared=is_shared(live))


def taints_of(fields: str | None) -> tuple[str, ...]:
    """The taints among the fields of an ``ObjectChange`` of a Node, as kubectl writes them."""
    return tuple(_written(one) for one in _own_taints(json.loads(fields))) if fields else ()


def without_taints(fields: str) -> Body:
    """What is applied to a Node: its taints are set apart."""
    body: dict[str, Any] = json.loads(fields)
    return {name: value for name, value in body.items() if name != "spec"}


def adopted(wanted: Release, there: Sequence[Released]) -> Released | None:
    """Return the release of the chart that is there under any name: a second one would offer the same GPUs."""
    return next((one for one in there if one.chart == wanted.chart), None)


def _release(wanted: Release, there: Sequence[Released], cluster: str) -> Item:
    """One that is there under any name is brought to our values."""
    live = adopted(wanted, there)
    namespace, name = (live.namespace, live.name) if live else (wanted.namespace, wanted.name)
    item = Item("Helm release", namespace, name, "create", wanted.why, wanted.wave)
    same_version = live is not None and live.version.lstrip("v") == wanted.version.lstrip("v")
    if live is None:
        change = CommandChange(install_command(wanted), wanted.why, _helm("uninstall", name, namespace), cluster)
        return _with(item, "create", change, ())
    if same_version and live.status == "deployed" and dict(live.values) == _plain_values(wanted.values):
        return Item(item.kind, namespace, name, "same", wanted.why, wanted.wave)
    undo = _helm("rollback", name, namespace, str(live.revision))
    _refuse_older(wanted, live)
    change = CommandChange(_upgrade(wanted, namespace, name), wanted.why, undo, cluster)
    diff = [] if same_version else [f"-chart {live.chart} {live.version}", f"+chart {wanted.chart} {wanted.version}"]
    now = _plain_values(wanted.values)
    return _with(item, "change", change, (*diff, *_difference(_masked(live.values, now), now)))


def _refuse_older(wanted: Release, live: Released) -> None:
    """Nothing, unless the release would go back to an older chart.

    Raises:
        Refused: it would; custom resources and running operands seldom survive that.
    """
    then, now = _order(live.version), _order(wanted.version)
    if then is None or now is None or now >= then:
        return
    key_ = live.chart.replace("dra-driver-nvidia-gpu", "dra-driver").replace("nvidia-", "").replace("-", "_")
    raise Refused(
        f"the release {live.namespace}/{live.name} has chart {live.chart} {live.version}, newer than {wanted.version}",
        why="the recipe would take it back to the older chart, which does not know what the newer one made",
        hint=f'keep its version: set {key_} = "{live.version}" in [kubernetes.versions]\n'
        "or take it back yourself first: " + command("helm", "history", live.name, "--namespace", live.namespace),
    )


def _order(version: str) -> tuple[int, int, int, bool, str] | None:
    """By which a chart's versions are ordered; a release candidate comes before its release."""
    match = _VERSION.fullmatch(version)
    return (int(match[1]), int(match[2]), int(match[3]), not match[4], match[4]) if match else None


def _masked(there: Any, ours: Any) -> Any:
    """The values of a release, without those that the recipe does not set: somebody may keep a secret there."""
    if isinstance(there, Mapping) and isinstance(ours, Mapping):
        return {name: _masked(value, ours.get(name)) for name, value in there.items()}
    return there if ours is not None else "…"


def _plain_values(values: Mapping[str, Any]) -> Any:
    """As Helm gives them back: in JSON's types."""
    return json.loads(json.dumps(values))


def _upgrade(wanted: Release, namespace: str, name: str) -> tuple[str, ...]:
    """The command that installs the release or brings it to these values; all of them stand in it, for the journal."""
    is_oci = wanted.repository.startswith("oci://")
    chart = (f"{wanted.repository}/{wanted.chart}",) if is_oci else (wanted.chart, "--repo", wanted.repository)
    values = (word for key_, value in wanted.values.items() for word in ("--set-json", f"{key_}={json.dumps(value)}"))
    where = ("--namespace", namespace, "--create-namespace", "--version", wanted.version, "--wait")
    return ("helm", "upgrade", "--install", name, *chart, *where, *values)


def install_command(wanted: Release) -> tuple[str, ...]:
    """The command that makes a release of ours, with the label by which ``k8s remove`` finds it; Helm keeps it."""
    return (*_upgrade(wanted, wanted.namespace, wanted.name), "--labels", OUR_RELEASES)


def _helm(verb: str, name: str, namespace: str, *more: str) -> tuple[str, ...]:
    return ("helm", verb, name, *more, "--namespace", namespace, "--wait")


def _former(live: Body, cluster: str) -> Item:
    kind, namespace, name = key(live)
    # A plugin goes before another one comes; a configuration after the pods that mount it.
    wave, why = 0 if kind == "DaemonSet" else _LAST_WAVE, "from a former recipe of gpunode's"
    is_kept = is_shared(live) or is_applied_by_kubectl(live)
    if is_kept and kind == "DaemonSet":
        raise Conflict(
            f"DaemonSet {namespace}/{name} is from a former recipe, and {describe_owners(live)}",
            why="gpunode deletes nothing that is also somebody else's, and beside the recipe's plugin it would "
            "offer each GPU twice",
            hint=f"have it taken away: {command('kubectl', 'delete', 'daemonset', '--namespace', namespace, name)}",
        )
    if is_applied_by_kubectl(live):
        return Item(kind, namespace, name, "foreign", why, wave, note=f"stays: {describe_owners(live)}")
    note = f"stays: {describe_owners(live)}" if is_kept else ""
    change = _change(live, cluster, owned(live, MANAGER), None, shared=is_kept)
    return Item(kind, namespace, name, "change" if is_kept else "delete", why, wave, change, note)


def _change(
    place: Body, cluster: str, before: Body | None, after: Body | None, *, shared: bool = False
) -> ObjectChange:
    kind, namespace, name = key(place)
    was, now = (None if one is None else json.dumps(one, sort_keys=True) for one in (before, after))
    return ObjectChange(cluster, str(place["apiVersion"]), kind, namespace, name, was, now, shared=shared)


def _with(item: Item, state: State, change: ObjectChange | CommandChange, diff: Iterable[str] = ()) -> Item:
    return Item(item.kind, item.namespace, item.name, state, item.why, item.wave, change, item.note, tuple(diff))


def _difference(before: Body, after: Body) -> tuple[str, ...]:
    old, new = (yaml.document(_sorted(one)).splitlines() for one in (before, after))
    lines = list(difflib.unified_diff(old, new, lineterm="", n=0))[2:]
    return tuple(one for one in lines if not one.startswith("@@"))


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(one) for one in value] if isinstance(value, list) else value


def _plain(body: Body) -> Body:
    """The object without what the API server adds, and without its status."""
    metadata = {name: value for name, value in body["metadata"].items() if name not in _NOISE}
    return {**{name: value for name, value in body.items() if name != "status"}, "metadata": metadata}


def _without_uid(body: Body) -> Body:
    return {**body, "metadata": {name: value for name, value in body["metadata"].items() if name != "uid"}}


def _keys(body: Body) -> frozenset[str]:
    return frozenset((*body["metadata"].get("labels", {}), *(_written(one) for one in _own_taints(body))))


def _taint(written: str) -> dict[str, str] | None:
    """A taint as the API server has it; None for an empty text."""
    if not written:
        return None
    named, _, effect = written.rpartition(":")
    name, _, value = named.partition("=")
    return {"key": name, "effect": effect} | ({"value": value} if value else {})


def _written(taint: Mapping[str, str]) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def _taints(live: Body) -> list[dict[str, str]]:
    """The Node's taints, without the times that NoExecute adds."""
    return [
        {name: one[name] for name in ("key", "value", "effect") if one.get(name)}
        for one in live.get("spec", {}).get("taints", [])
    ]


def _own_taints(body: Body) -> list[dict[str, str]]:
    return list(body.get("spec", {}).get("taints", []))


def _own_taint(live: Body) -> str:
    return str(live["metadata"].get("annotations", {}).get(_TAINT, ""))
