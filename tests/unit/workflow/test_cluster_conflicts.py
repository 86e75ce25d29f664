"""Fields set by another manager: shown with both values, never forced."""

from __future__ import annotations

from typing import Any

import pytest

from gpunode.cli.inputs import open_cluster_journal
from gpunode.host.process import FinishedCommand
from tests.fakes.api_server import ApiError, ApiServer
from tests.fakes.clusters import GPU, NODE, PLUGIN, User, everything

CONTAINER = 'spec.template.spec.containers[name="plugin"]'
TAINT = 'extends = "k8s-containerd"\n[kubernetes.taint]\nkey = "nvidia.com/gpu"\nvalue = "present"\n'


def set_image(server: ApiServer, image: str = "other:1", manager: str = "kubectl-set") -> None:
    former, body = server.get(*PLUGIN), server.get(*PLUGIN)
    body["spec"]["template"]["spec"]["containers"][0]["image"] = image
    server.update(former, body, manager)


def label_node(server: ApiServer, manager: str = "kubectl-label") -> None:
    former, body = server.get("Node", "", "gpu-1"), server.get("Node", "", "gpu-1")
    body["metadata"]["labels"][f"{GPU}.present"] = "false"
    server.update(former, body, manager)


def test_conflict_shows_field_owner_and_both_values_and_is_not_forced(server: ApiServer, user: User) -> None:
    user.apply()
    set_image(server)
    before = everything(server)
    error = user.apply(check=5).error
    assert error["what"] == "kubectl-set owns fields that gpunode would set"
    image = f"DaemonSet gpu-system/nvidia-device-plugin, {CONTAINER}.image"
    assert error["why"] == (
        f'{image}: kubectl-set has "other:1", gpunode would set "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"'
    )
    assert "--force-conflicts" not in user.screen("k8s", "plan", *NODE, check=5)
    assert everything(server) == before


@pytest.mark.parametrize("manager", ["kubectl-set", "kubectl-replace"])
def test_conflict_hint_leaves_no_co_owner_that_would_keep_the_object(
    server: ApiServer, user: User, manager: str
) -> None:
    """With ``kubectl edit`` the user would own the field, too, even with gpunode's value."""
    before = everything(server)
    user.apply()
    set_image(server, manager=manager)
    assert (
        user.apply(check=5)
        .error["hint"]
        .endswith("\nkubectl delete daemonset --namespace gpu-system nvidia-device-plugin")
    )
    server.delete(*PLUGIN)
    user.apply()
    user("k8s", "remove", "--yes")
    assert everything(server) == before
    user.apply()
    set_image(server, manager="argocd")
    assert (
        user.apply(check=5)
        .error["hint"]
        .endswith("\nkubectl edit daemonset --namespace gpu-system nvidia-device-plugin")
    )


def edit_config(server: ApiServer) -> None:
    """Offer each GPU eight times, as with ``kubectl edit``."""
    (former,) = server.peek("ConfigMap")
    place = ("ConfigMap", "gpu-system", former["metadata"]["name"])
    former, body = server.get(*place), server.get(*place)
    body["data"]["config.yaml"] = body["data"]["config.yaml"].replace("replicas: 4", "replicas: 8")
    server.update(former, body, "kubectl-edit")


def test_edits_that_a_removal_deletes_are_named_and_come_back(server: ApiServer, user: User) -> None:
    user.apply("k8s-time-slicing")
    set_image(server)
    edit_config(server)
    edited = everything(server)
    screen = user.screen("k8s", "remove", "--yes")
    assert f"gpunode applied it, and kubectl-set set {CONTAINER}.image: a rollback restores that, too" in screen
    assert "gpunode applied it, and kubectl-edit set data.config.yaml: a rollback restores that, too" in screen
    removed = everything(server)
    user("rollback", "k2", "--yes")
    assert everything(server) == edited
    # They are not gpunode's: apply does not set them back unasked.
    why = user.apply("k8s-time-slicing", check=5).error["why"]
    assert "kubectl-set has" in why
    assert "kubectl-edit has" in why
    user("rollback", "k3", "--yes")
    assert everything(server) == removed


def test_removal_that_could_not_delete_an_edited_object_is_rolled_back(
    server: ApiServer, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    user.apply("k8s-time-slicing")
    edit_config(server)
    edited = everything(server)
    delete = ApiServer.delete

    def keep_config(self: ApiServer, kind: str, namespace: str, name: str) -> None:
        if kind == "ConfigMap":
            raise ApiError("Forbidden", "admission webhook")
        delete(self, kind, namespace, name)

    with monkeypatch.context() as patch:
        patch.setattr(ApiServer, "delete", keep_config)
        user("k8s", "remove", "--yes", check=6)
    assert everything(server) != edited
    user("rollback", "k2", "--yes")
    assert everything(server) == edited


def test_configuration_made_anew_is_not_read_by_running_pods(server: ApiServer, user: User) -> None:
    """The hint of the conflict says to delete it; apply makes it, and the plugin would offer what was edited."""
    user.apply("k8s-time-slicing")
    edit_config(server)
    assert "\nkubectl delete configmap " in user.apply("k8s-time-slicing", check=5).error["hint"]
    (edited,) = server.peek("ConfigMap")
    server.delete("ConfigMap", "gpu-system", edited["metadata"]["name"])
    (note,) = user.plan("k8s-time-slicing", "--context", "lab").envelope["result"]["notes"]
    restart = "rollout restart daemonset --namespace gpu-system nvidia-device-plugin"
    assert note.endswith(f"restart them after apply: `kubectl --context lab {restart}`")
    user.apply("k8s-time-slicing")
    assert user.plan("k8s-time-slicing").envelope["result"]["notes"] == []


def test_edited_configuration_of_an_earlier_recipe_comes_back(server: ApiServer, user: User) -> None:
    user.apply("k8s-time-slicing")
    edit_config(server)
    edited = everything(server)
    applied = user.apply("k8s-containerd").envelope["result"]["objects"]
    (purpose,) = (one["purpose"] for one in applied if one["state"] == "delete")
    assert purpose.endswith(", and kubectl-edit set data.config.yaml: a rollback restores that, too")
    user("rollback", "k2", "--yes")
    assert everything(server) == edited


@pytest.mark.parametrize(
    ("manager", "form"),
    [("argocd-controller", "argocd"), ("kustomize-controller", "flux"), ("helm-controller", "flux")],
)
def test_conflict_with_a_gitops_controller_is_solved_in_git(
    server: ApiServer, user: User, manager: str, form: str
) -> None:
    """Argo CD and Flux undo what kubectl edits."""
    user.apply()
    set_image(server, manager=manager)
    hint = user.apply(check=5).error["hint"]
    assert "kubectl" not in hint
    assert hint.endswith(f"\ngpunode k8s render k8s-containerd {' '.join(NODE)} --format {form} --output FOLDER")


def test_conflict_hint_deletes_no_object_that_others_manage(server: ApiServer, user: User) -> None:
    user.apply()
    live = server.get(*PLUGIN)
    metadata = {"name": PLUGIN[2], "namespace": PLUGIN[1]}
    server.apply({**{key: live[key] for key in ("apiVersion", "kind", "spec")}, "metadata": metadata}, "argocd")
    set_image(server)
    assert "\nkubectl edit daemonset" in user.apply(check=5).error["hint"]


def test_conflicts_of_several_owners_and_objects_are_all_shown(server: ApiServer, user: User) -> None:
    user.apply("k8s-time-slicing")
    set_image(server)
    (former,) = server.peek("ConfigMap")
    server.update(former, {**former, "data": {"config.yaml": "x"}}, "alice")
    error = user.apply("k8s-time-slicing", check=5).error
    assert error["what"] == "alice, kubectl-set own fields that gpunode would set"
    lines = error["why"].splitlines()
    assert [line.partition(": ")[2].partition(",")[0] for line in lines] == [
        'alice has "x"',
        'kubectl-set has "other:1"',
    ]


def test_label_of_another_manager_is_a_conflict(server: ApiServer, user: User) -> None:
    label_node(server)
    error = user.apply(check=5).error
    assert error["why"] == (
        'Node gpu-1, metadata.labels.nvidia.com/gpu.present: kubectl-label has "false", gpunode would set "true"'
    )
    assert "kubectl edit node gpu-1" in error["hint"]


def test_conflict_after_the_plan_shows_both_values(server: ApiServer, user: User) -> None:
    """The fields in question are not gpunode's yet, so none of its own fields has changed."""

    def write_first(words: tuple[str, ...]) -> FinishedCommand | None:
        if words[0] == "apply" and "gpunode-labels" in words and "--dry-run=server" not in words:
            label_node(server)
            user.kubectl.intercept = lambda _: None
        return None

    user.kubectl.intercept = write_first
    error = user.apply(check=5).error
    assert 'kubectl-label has "false", gpunode would set "true"' in error["why"]
    assert not server.peek("DaemonSet")


def test_rollback_refuses_fields_changed_since_and_shows_both_values(server: ApiServer, user: User) -> None:
    user.apply()
    set_image(server)
    before = everything(server)
    error = user("rollback", "k1", "--yes", check=5).error
    assert error["what"] == "DaemonSet gpu-system/nvidia-device-plugin was changed since that run"
    assert 'kubectl-set has "other:1", gpunode would set "nvcr.io' in error["why"]
    assert "get DaemonSet --namespace gpu-system nvidia-device-plugin" in error["hint"]
    assert everything(server) == before


def test_taint_with_another_value_is_refused_and_foreign_taints_stay(
    server: ApiServer, user: User, tmp_path: Any
) -> None:
    (recipe := tmp_path / "tainted.toml").write_text(TAINT)
    (node,) = server.peek("Node")
    foreign = {"key": "maintenance", "value": "soon", "effect": "PreferNoSchedule"}
    node["spec"]["taints"] = [{"key": GPU, "value": "theirs", "effect": "NoSchedule"}]
    assert "has the taint nvidia.com/gpu=theirs:NoSchedule" in user.apply(str(recipe), check=5).error["what"]

    node["spec"]["taints"] = [foreign]
    before = everything(server)
    user.apply(str(recipe))
    (node,) = server.peek("Node")
    assert node["spec"]["taints"] == [foreign, {"key": GPU, "effect": "NoSchedule", "value": "present"}]
    user("k8s", "remove", "--yes")
    assert everything(server) == before


def test_taint_of_gpunode_gets_the_value_of_a_later_recipe(server: ApiServer, user: User, tmp_path: Any) -> None:
    (recipe := tmp_path / "tainted.toml").write_text(TAINT)
    user.apply(str(recipe))
    recipe.write_text(TAINT.replace("present", "reserved"))
    (edited,) = (one for one in user.plan(str(recipe)).envelope["result"]["objects"] if one["kind"] == "Node")
    assert edited["diff"] == [f"+taint {GPU}=reserved:NoSchedule", f"-taint {GPU}=present:NoSchedule"]

    user.apply(str(recipe))
    assert server.peek("Node")[0]["spec"]["taints"] == [{"key": GPU, "value": "reserved", "effect": "NoSchedule"}]
    user("rollback", "k2", "--yes")
    assert server.peek("Node")[0]["spec"]["taints"] == [{"key": GPU, "value": "present", "effect": "NoSchedule"}]
    user("k8s", "remove", "--yes")
    assert server.peek("Node")[0]["spec"]["taints"] == []


def test_taint_set_by_others_after_the_plan_is_a_conflict(server: ApiServer, user: User, tmp_path: Any) -> None:
    (recipe := tmp_path / "tainted.toml").write_text(TAINT)

    def taint_first(words: tuple[str, ...]) -> FinishedCommand | None:
        if words[0] == "taint":
            server.peek("Node")[0]["spec"]["taints"] = [{"key": GPU, "value": "theirs", "effect": "NoSchedule"}]
        return None

    user.kubectl.intercept = taint_first
    error = user.apply(str(recipe), check=5).error
    assert error["what"] == "Node gpu-1 has another taint with the key and effect of nvidia.com/gpu=present:NoSchedule"


@pytest.mark.parametrize("moment", ["apply", "taint"])
def test_apply_of_another_gpunode_meanwhile_leaves_no_orphaned_taint(
    server: ApiServer, user: User, tmp_path: Any, moment: str
) -> None:
    """The other recipe has no taint, and drops the annotation that records the taint's owner."""
    (recipe := tmp_path / "tainted.toml").write_text(TAINT)
    other = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1", "labels": {f"{GPU}.present": "true"}}}

    def apply_first(words: tuple[str, ...]) -> FinishedCommand | None:
        if words[0] == ("taint" if moment == "taint" else "get") and open_cluster_journal().ids():
            user.kubectl.intercept = lambda _: None
            server.apply(other, "gpunode-labels")
        return None

    user.kubectl.intercept = apply_first
    error = user.apply(str(recipe), check=5).error
    assert error["what"] == "Node gpu-1 changed since the plan was made"
    assert not server.peek("Node")[0]["spec"].get("taints")
    user.apply(str(recipe))
    user("k8s", "remove", "--yes")
    assert not server.peek("Node")[0]["spec"].get("taints")
