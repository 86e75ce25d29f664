"""Rendered objects compared with a cluster; tests/e2e/kubernetes/test_apply.py uses a real API server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode import builtin
from gpunode.change import Change, CommandChange, ObjectChange
from gpunode.errors import Conflict, Refused
from gpunode.facts.helm import HelmRelease
from gpunode.kubernetes.model import LABELS_FIELD_MANAGER, RenderedCluster
from gpunode.kubernetes.owned import owned_fields
from gpunode.kubernetes.reconcile import (
    FIELD_MANAGER,
    LiveState,
    PlanItem,
    format_taints_in,
    plan_field_removal,
    plan_items,
)
from gpunode.kubernetes.render import render_cluster
from gpunode.workflow.cluster_undo import release_needs_undo
from tests.unit.kubernetes.clusters import CLUSTERS

PLUGIN = render_cluster(builtin.read_recipe("k8s-containerd"), CLUSTERS["one"])
OPERATOR = render_cluster(builtin.read_recipe("gpu-operator"), CLUSTERS["one"])
NODE = PLUGIN.nodes[0].node
TAINT = "nvidia.com/gpu=present:NoSchedule"
LEAVES = st.none() | st.booleans() | st.integers() | st.text()
TREES = st.recursive(
    LEAVES, lambda inner: st.dictionaries(st.text(), inner, min_size=1) | st.lists(inner), max_leaves=20
)


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields that applying ``value`` owns, as the API server writes them; each list is one field here."""
    return {f"f:{name}": fields_of(one) for name, one in value.items()} if isinstance(value, Mapping) else {}


def live(body: Mapping[str, Any], manager: str = FIELD_MANAGER, **metadata: object) -> dict[str, Any]:
    """Return the object after ``manager`` has applied ``body``."""
    fields = fields_of({name: value for name, value in body.items() if name not in {"apiVersion", "kind"}})
    place = {f"f:{name}" for name in ("name", "namespace", "uid")}
    owned_metadata = {name: held for name, held in fields.pop("f:metadata").items() if name not in place}
    fields |= {"f:metadata": owned_metadata} if owned_metadata else {}
    entry = {"manager": manager, "operation": "Apply", "fieldsV1": fields}
    return {**body, "metadata": {"uid": "u", **body["metadata"], **metadata, "managedFields": [entry]}}


def node(labels: Mapping[str, str] | None = None, taints: tuple[dict[str, str], ...] = ()) -> dict[str, Any]:
    """Return a Node that gpunode has not touched."""
    metadata = {"name": NODE, "uid": "u", "labels": dict(labels or {})}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"taints": list(taints)}}


def planned_items(wanted: RenderedCluster, present: LiveState) -> dict[str, PlanItem]:
    return {f"{one.kind} {one.name}": one for one in plan_items(wanted, present)}


@given(st.dictionaries(st.text(), TREES, min_size=1))
def test_owned_fields_are_those_of_their_manager(spec: dict[str, Any]) -> None:
    body = {"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "one"}, "spec": spec}
    more = {**live(body), "status": {"seen": True}}
    more["spec"] = {**spec, "somebody's": 1} if "somebody's" not in spec else spec
    assert owned_fields(more, FIELD_MANAGER) == body
    assert owned_fields(more, "somebody") is None


def test_list_elements_are_owned_by_key_or_value() -> None:
    ports = [{"port": 1, "name": "a", "theirs": 1}, {"port": 2, "name": "b"}]
    body = {
        "apiVersion": "v1",
        "kind": "Thing",
        "metadata": {"name": "one"},
        "spec": {"ports": ports, "words": ["x", "y"]},
    }
    made = live(body)
    made["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"] = {
        "f:ports": {'k:{"port":1}': {".": {}, "f:port": {}, "f:name": {}}},
        "f:words": {'v:"y"': {}},
    }
    found = owned_fields(made, FIELD_MANAGER)
    assert found is not None
    assert found["spec"] == {"ports": [{"port": 1, "name": "a"}], "words": ["y"]}


def test_empty_cluster_gets_all_objects_and_labels_first() -> None:
    found = plan_items(PLUGIN, LiveState("c", nodes=[node()]))
    assert [one.kind for one in found] == ["Node", "Namespace", "RuntimeClass", "ConfigMap", "DaemonSet"]
    assert {one.state for one in found[1:]} == {"create"}
    assert found[0].diff == ("+label nvidia.com/gpu.present=true",)


def test_unchanged_objects_stay_the_same() -> None:
    there = [live(one.body) for one in PLUGIN.objects]
    labelled = node({"nvidia.com/gpu.present": "true"})
    found = plan_items(PLUGIN, LiveState("c", there, there, [labelled]))
    assert {one.state for one in found} == {"unchanged"}


def test_equal_object_of_another_manager_is_left_alone() -> None:
    (wanted,) = [one for one in PLUGIN.objects if one.kind == "RuntimeClass"]
    theirs = live(wanted.body, "k3s")
    found = planned_items(PLUGIN, LiveState("c", [theirs], [live(wanted.body)], [node()]))
    assert found["RuntimeClass nvidia"].state == "foreign"
    assert found["RuntimeClass nvidia"].note == "already there, from k3s"


def test_changed_field_shows_both_values_and_can_be_undone() -> None:
    (wanted,) = [one for one in PLUGIN.objects if one.kind == "DaemonSet"]
    old = json.loads(json.dumps(wanted.body).replace("v0.20.0", "v0.19.0"))
    item = planned_items(PLUGIN, LiveState("c", [live(old)], [live(wanted.body)], [node()]))[
        "DaemonSet nvidia-device-plugin"
    ]
    assert item.state == "edit"
    assert any("v0.19.0" in line for line in item.diff)
    assert any("v0.20.0" in line for line in item.diff)
    assert isinstance(item.change, ObjectChange)
    back = item.change.inverse()
    assert isinstance(back, ObjectChange)
    assert json.loads(back.after or "") == old
    assert back.inverse() == item.change


def test_objects_of_a_former_recipe_are_deleted_configuration_last() -> None:
    former = []
    for one in PLUGIN.objects:
        if one.kind in {"ConfigMap", "DaemonSet"}:
            former.append(live({**one.body, "metadata": {**one.body["metadata"], "name": "former"}}))
    found = plan_items(PLUGIN, LiveState("c", nodes=[node()], labelled=former))
    gone = [one.kind for one in found if one.state == "delete"]
    assert gone == ["DaemonSet", "ConfigMap"]
    assert found[-1].state == "delete"
    assert found.index(next(one for one in found if one.title.endswith("/former"))) < len(PLUGIN.objects)


def test_co_owned_object_of_a_former_recipe_is_not_deleted() -> None:
    former = {}
    for one in PLUGIN.objects:
        if one.kind in {"ConfigMap", "DaemonSet"}:
            body = live({**one.body, "metadata": {**one.body["metadata"], "name": "former"}})
            body["metadata"]["managedFields"] += live(body, "argocd-controller")["metadata"]["managedFields"]
            former[one.kind] = body
    (item,) = (
        one for one in plan_items(PLUGIN, LiveState("c", nodes=[node()], labelled=[former["ConfigMap"]])) if one.note
    )
    assert isinstance(item.change, ObjectChange)
    assert (item.title, item.change.participle) == ("ConfigMap gpu-system/former", "changed")
    assert item.note == "stays: argocd-controller also set data.config.yaml"
    with pytest.raises(Conflict, match="argocd-controller also set spec") as refused:
        plan_items(PLUGIN, LiveState("c", nodes=[node()], labelled=[former["DaemonSet"]]))
    assert "delete daemonset --namespace gpu-system former" in refused.value.hint


@pytest.mark.parametrize(
    ("taints", "state"),
    [
        ((), "edit"),
        (({"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},), "unchanged"),
        (({"key": "maintenance", "effect": "NoSchedule"},), "edit"),
    ],
)
def test_taint_is_added_unless_present(taints: tuple[dict[str, str], ...], state: str) -> None:
    wanted = replace(PLUGIN, nodes=(replace(PLUGIN.nodes[0], taint=TAINT),))
    found = planned_items(wanted, LiveState("c", nodes=[node({"nvidia.com/gpu.present": "true"}, taints)]))[
        f"Node {NODE}"
    ]
    assert found.state == state
    if isinstance(found.change, ObjectChange):
        assert json.loads(found.change.after or "")["spec"]["taints"] == [
            {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
        ]


def test_other_value_of_the_taint_is_a_conflict() -> None:
    wanted = replace(PLUGIN, nodes=(replace(PLUGIN.nodes[0], taint=TAINT),))
    theirs = node(taints=({"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"},))
    with pytest.raises(Conflict, match="has the taint"):
        plan_items(wanted, LiveState("c", nodes=[theirs]))


def test_node_missing_in_the_cluster_is_refused() -> None:
    with pytest.raises(Refused, match="no Node"):
        plan_items(PLUGIN, LiveState("c"))


@pytest.mark.parametrize("manager", [LABELS_FIELD_MANAGER, "somebody"])
def test_taint_is_owned_only_with_our_annotation(manager: str) -> None:
    body = node({"nvidia.com/gpu.present": "true"})
    del body["spec"]
    mine = live(body, LABELS_FIELD_MANAGER)
    noted = live({**body, "metadata": {"name": NODE, "annotations": {"gpunode-taint": TAINT}}}, manager)
    entries = [*mine["metadata"]["managedFields"], *noted["metadata"]["managedFields"]]
    if manager == LABELS_FIELD_MANAGER:
        entries = noted["metadata"]["managedFields"]
    metadata = {**mine["metadata"], "annotations": {"gpunode-taint": TAINT}, "managedFields": entries}
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    change = plan_field_removal({**mine, "metadata": metadata, "spec": {"taints": [taint]}}, "c")
    assert change is not None
    assert format_taints_in(change.before) == ((TAINT,) if manager == LABELS_FIELD_MANAGER else ())


def test_labels_dropped_from_the_recipe_are_removed() -> None:
    labels = {"nvidia.com/gpu.present": "true", "team": "a"}
    mine = live(node(labels), LABELS_FIELD_MANAGER)
    found = planned_items(PLUGIN, LiveState("c", nodes=[mine]))[f"Node {NODE}"]
    assert found.diff == ("-label team=a",)


def test_co_owned_namespace_is_given_up_and_not_deleted() -> None:
    (wanted,) = [one for one in PLUGIN.objects if one.kind == "Namespace"]
    alone, shared = live(wanted.body), live(wanted.body)
    shared["metadata"]["managedFields"].append({"manager": "kubectl-create", "operation": "Update", "fieldsV1": {}})
    assert (mine := plan_field_removal(alone, "c")) is not None
    assert (theirs := plan_field_removal(shared, "c")) is not None
    assert (mine.participle, theirs.participle) == ("deleted", "changed")
    assert plan_field_removal({**alone, "metadata": {"name": "other", "managedFields": []}}, "c") is None


# As for a cluster of another context: a copied command that deletes must not reach the current cluster.
RELEASE = OPERATOR.releases[0]


@pytest.mark.parametrize(
    ("there", "state"),
    [
        (None, "create"),
        (
            HelmRelease("gpu-operator", "gpu-operator", RELEASE.chart, RELEASE.version, 1, "deployed", RELEASE.values),
            "unchanged",
        ),
        (
            HelmRelease("gpu-operator", "gpu-operator", RELEASE.chart, "v25.10.0", 3, "deployed", RELEASE.values),
            "edit",
        ),
        (
            HelmRelease("gpu-operator", "gpu-operator", RELEASE.chart, RELEASE.version, 1, "failed", RELEASE.values),
            "edit",
        ),
        (HelmRelease("ops", "their-operator", RELEASE.chart, RELEASE.version, 2, "deployed", {"driver": 1}), "edit"),
    ],
)
def test_existing_release_is_adopted_under_its_own_name(there: HelmRelease | None, state: str) -> None:
    found = plan_items(OPERATOR, LiveState("c", nodes=[node()], releases=[there] if there else []))
    (item,) = [one for one in found if one.kind == "Helm release"]
    assert item.state == state
    assert ("-status failed" in item.diff) == (there is not None and there.status == "failed")
    if isinstance(item.change, CommandChange):
        name = there.name if there else RELEASE.name
        assert item.change.argv[:4] == ("helm", "upgrade", "--install", name)
        words = item.change.argv
        given = dict(words[i + 1].split("=", 1) for i, word in enumerate(words) if word == "--set-json")
        assert {name: json.loads(value) for name, value in given.items()} == json.loads(json.dumps(RELEASE.values))
        undo = item.change.undo or ()
        assert undo[1] == ("rollback" if there else "uninstall")
        assert not there or str(there.revision) in undo
        # ``k8s remove`` uninstalls releases by the label; a release that existed before is not gpunode's.
        assert ("--labels" in words) == (there is None)


def test_release_is_not_downgraded_to_an_older_chart() -> None:
    newer = HelmRelease("ops", "op", RELEASE.chart, "v99.1.0", 3, "deployed")
    with pytest.raises(Refused, match=r"v99\.1\.0, newer than") as refused:
        plan_items(OPERATOR, LiveState("c", nodes=[node()], releases=[newer]))
    assert 'set gpu_operator = "v99.1.0" in [kubernetes.versions]' in refused.value.hint
    for older in ("v25.10.0", f"{RELEASE.version}-rc.1", "unknown"):
        plan_items(OPERATOR, LiveState("c", nodes=[node()], releases=[replace(newer, version=older)]))


@pytest.mark.parametrize(
    ("status", "verb"),
    [
        ("pending-install", "uninstall"),
        ("pending-upgrade", "rollback"),
        ("pending-rollback", "rollback"),
        ("uninstalling", "uninstall"),
    ],
)
def test_release_whose_helm_was_killed_is_refused_with_the_way_out(status: str, verb: str) -> None:
    """Helm says that another operation is in progress, for ever, and apply would have changed the Nodes by then."""
    there = HelmRelease("ops", "op", RELEASE.chart, RELEASE.version, 3, status, RELEASE.values)
    with pytest.raises(Conflict, match=f"ops/op is in the state {status}") as refused:
        plan_items(OPERATOR, LiveState("c", nodes=[node()], releases=[there]))
    assert f"helm {verb} op --namespace ops\n" in refused.value.hint


def test_uninstalled_release_is_not_taken_for_an_installed_one() -> None:
    """``helm uninstall --keep-history`` leaves it in Helm's list."""
    gone = HelmRelease("a", "op", RELEASE.chart, RELEASE.version, 3, "uninstalled", RELEASE.values)
    there = HelmRelease("ops", "op", RELEASE.chart, RELEASE.version, 1, "deployed", RELEASE.values)
    items = [
        plan_items(OPERATOR, LiveState("c", nodes=[node()], releases=found))[-1] for found in ([gone, there], [gone])
    ]
    assert [(one.namespace, one.state) for one in items] == [("ops", "unchanged"), ("gpu-operator", "create")]


def test_own_release_is_not_left_for_another_of_the_chart() -> None:
    """Somebody may install a second one in a namespace that comes before."""
    names = [("default", "theirs"), (RELEASE.namespace, RELEASE.name), ("ops", "theirs")]
    there = [HelmRelease(*one, RELEASE.chart, RELEASE.version, 1, "deployed", RELEASE.values) for one in names]
    item = plan_items(OPERATOR, LiveState("c", nodes=[node()], releases=there))[-1]
    assert (item.namespace, item.state) == (RELEASE.namespace, "unchanged")


def test_history_that_helm_kept_is_neither_reused_nor_deleted() -> None:
    """A rollback to its last revision would install it again, and an uninstallation would delete the history."""
    kept = HelmRelease(RELEASE.namespace, RELEASE.name, RELEASE.chart, RELEASE.version, 3, "uninstalled")
    with pytest.raises(Conflict, match="Helm kept its history") as refused:
        plan_items(OPERATOR, LiveState("c", nodes=[node()], releases=[kept]))
    assert refused.value.hint.endswith("helm uninstall gpu-operator --namespace gpu-operator")


def test_foreign_release_values_are_not_shown() -> None:
    values = {"driver": {"enabled": True, "licence": {"token": "c4n4ry"}}, "extra": ["c4n4ry"]}
    there = HelmRelease("ops", "op", RELEASE.chart, RELEASE.version, 3, "deployed", values)
    (item,) = (
        one for one in plan_items(OPERATOR, LiveState("c", nodes=[node()], releases=[there])) if one.diff and one.wave
    )
    assert "c4n4ry" not in "".join(item.diff)
    assert {'-  licence: "…"', '-extra: "…"'} <= set(item.diff)


ADOPTED = HelmRelease("ops", "op", RELEASE.chart, "v25.10.0", 3, "deployed")


@pytest.mark.parametrize(
    ("there", "undone", "revision", "due"),
    [
        (ADOPTED, 1, 4, True),
        (ADOPTED, 1, 3, False),
        (ADOPTED, 1, 5, None),
        (ADOPTED, 1, None, None),
        (ADOPTED, 2, 5, True),
        (ADOPTED, 2, 6, None),
        (None, 1, 1, True),
        (None, 1, None, False),
        (None, 1, 2, None),
        (None, 2, None, True),
        (None, 2, 1, False),
        (None, 2, 3, None),
    ],
)
def test_release_is_undone_only_from_the_revision_of_the_run(
    there: HelmRelease | None, undone: int, revision: int | None, due: bool | None
) -> None:
    found = plan_items(OPERATOR, LiveState("c", nodes=[node()], releases=[there] if there else []))
    change: Change | None
    (change,) = [one.change for one in found if one.kind == "Helm release"]
    for _ in range(undone):
        assert isinstance(change, CommandChange)
        change = change.inverse()
    assert isinstance(change, CommandChange)
    assert change.cluster == "c"
    place = (there.namespace, there.name) if there else (RELEASE.namespace, RELEASE.name)
    revisions = {place: revision} if revision else {}
    if due is None:
        with pytest.raises(Conflict):
            release_needs_undo(change, revisions)
    else:
        assert release_needs_undo(change, revisions) is due
