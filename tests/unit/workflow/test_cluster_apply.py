"""The end of an apply to a cluster; tests/e2e/kubernetes/test_apply.py uses a real API server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from gpunode.change import ObjectChange
from gpunode.errors import Conflict, VerifyFailed
from gpunode.host.cluster import Cluster, ClusterIdentity
from gpunode.journal.record import Commit
from gpunode.journal.store import Store
from gpunode.kubernetes.model import Body
from gpunode.kubernetes.reconcile import PlanItem, PlanItemState
from gpunode.workflow.cluster_apply import apply_plan
from gpunode.workflow.cluster_plan import ClusterPlan
from gpunode.workflow.cluster_workloads import ReadinessWait
from tests.fakes.api_server import ApiServer
from tests.fakes.clusters import User, everything, run_daemon_sets


class Unready:
    """A cluster in which no pod becomes ready."""

    def get(self, _: Sequence[Body]) -> tuple[Body, ...]:
        status = {"observedGeneration": 1, "desiredNumberScheduled": 2, "numberReady": 1, "updatedNumberScheduled": 2}
        return ({"kind": "DaemonSet", "metadata": {"name": "x", "generation": 1}, "status": status},)

    def list(self, *_: str) -> tuple[Body, ...]:
        return ()

    def apply(self, body: Body, _: str) -> Body:
        return body


def item(kind: str, wave: int, state: PlanItemState = "create") -> PlanItem:
    change = ObjectChange("c", "v1", kind, "gpu", "x", None, '{"kind": "x", "metadata": {}}')
    return PlanItem(kind, "gpu", "x", state, "", wave, change if state == "create" else None)


@pytest.mark.parametrize(
    ("items", "said", "result"),
    [
        ((item("DaemonSet", 1), item("ConfigMap", 99)), "not applied yet: ConfigMap gpu/x", "failed"),
        ((item("ConfigMap", 0), item("DaemonSet", 1)), "", "done"),
        ((item("ConfigMap", 0), item("DaemonSet", 1, "unchanged")), "", "done"),
    ],
)
def test_apply_reports_a_workload_that_is_not_ready_and_what_is_left(
    items: tuple[PlanItem, ...], said: str, result: str, tmp_path: Path
) -> None:
    plan, store, never = (
        ClusterPlan(ClusterIdentity("", "", "", "", "c"), items),
        Store(folder=tmp_path),
        lambda *_: None,
    )
    wait = ReadinessWait(cast("Cluster", Unready()), never, never, 0.0)
    with pytest.raises(VerifyFailed, match="1 of 2 pods are ready") as failed:
        apply_plan(plan, lambda: store.begin("k8s apply", argv=()), wait=wait, on_event=never)
    assert said in failed.value.why
    assert "kubectl describe pods" in failed.value.hint
    is_applied = any(one.change for one in items)
    assert failed.value.hint.endswith("\nor undo what was changed: gpunode rollback k1") is is_applied
    (commit,) = [entry for entry in store.read_with_contents(store.ids()[0]) if isinstance(entry, Commit)]
    assert commit.result == result


class Moved(Unready):
    """A cluster that another gpunode has changed since the plan was made."""

    def get(self, _: Sequence[Body]) -> tuple[Body, ...]:
        fields: dict[str, Any] = {"f:data": {"f:theirs": {}}}
        entry = {"manager": "gpunode", "operation": "Apply", "fieldsV1": fields}
        metadata = {"namespace": "gpu", "name": "x", "managedFields": [entry]}
        return ({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"theirs": "1"}},)


def test_apply_refuses_objects_changed_since_the_plan(tmp_path: Path) -> None:
    plan, store = ClusterPlan(ClusterIdentity("", "", "", "", "c"), (item("ConfigMap", 0),)), Store(folder=tmp_path)
    wait = ReadinessWait(cast("Cluster", Moved()), lambda: None, lambda _: None, 0.0)
    with pytest.raises(Conflict, match="ConfigMap gpu/x changed since the plan was made"):
        apply_plan(plan, lambda: store.begin("k8s apply", argv=()), wait=wait, on_event=lambda _: None)
    assert store.ids() == ()


def test_context_switched_meanwhile_does_not_switch_the_cluster(server: ApiServer, user: User) -> None:
    """A user switches to another context while apply waits for consent."""
    other = ApiServer(uid="cluster-2")
    other.add({"apiVersion": "v1", "kind": "Node", **server.get("Node", "", "gpu-1")})
    other.controllers.append(run_daemon_sets)
    untouched = everything(other)

    def switch_after_plan(words: tuple[str, ...]) -> None:
        if words[0] == "create" and not user.kubectl.others:  # the plan's last question
            user.kubectl.switch("other", other)

    user.kubectl.intercept = switch_after_plan
    user.apply()
    assert user.kubectl.context == "other"
    assert everything(other) == untouched
    assert server.get("DaemonSet", "gpu-system", "nvidia-device-plugin")
