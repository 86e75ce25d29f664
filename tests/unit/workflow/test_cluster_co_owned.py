"""Objects with fields of other managers: gpunode gives up its own fields and continues with the rest."""

from __future__ import annotations

from typing import Any

import pytest

from gpunode.host.process import FinishedCommand
from gpunode.kubernetes.owned import other_managers, owned_fields
from tests.fakes.api_server import ApiServer
from tests.fakes.clusters import NAMESPACE, PLUGIN, User, everything

VARIABLE = 'spec.template.spec.containers[name="plugin"].env[name="CONFIG_FILE"].value'


@pytest.fixture
def co_owned(server: ApiServer, user: User) -> dict[str, Any]:
    """Return the recipe's plugin, in which alice also sets one variable."""
    user.apply("k8s-time-slicing")
    for value in ("/x", "/config/config.yaml"):
        former = server.get(*PLUGIN)
        body = server.get(*PLUGIN)
        body["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"] = value
        server.update(former, body, "alice")
    user.apply("k8s-time-slicing")
    return server.get(*PLUGIN)


def test_removal_gives_up_fields_of_a_co_owned_object_and_deletes_the_rest(
    server: ApiServer, user: User, co_owned: dict[str, Any]
) -> None:
    removed = user("k8s", "remove", "--yes")

    there = server.get(*PLUGIN)
    assert there["spec"] == co_owned["spec"]
    assert owned_fields(there, "gpunode") is None
    assert "labels" not in there["metadata"]
    assert other_managers(there, ()) == ("alice",)
    assert not server.peek("ConfigMap")
    assert not server.peek("RuntimeClass")
    assert server.peek("Node")[0]["metadata"]["labels"] == {"kubernetes.io/hostname": "gpu-1"}
    notes = {one["kind"]: one["note"] for one in removed.envelope["result"]["objects"]}
    assert notes["DaemonSet"] == f"stays: alice also set {VARIABLE}; gpunode only releases its fields"
    assert notes["Namespace"] == "stays: it also holds DaemonSet nvidia-device-plugin"
    assert user("k8s", "remove", "--yes").envelope["changed"] is False


def test_removal_of_a_co_owned_object_can_be_rolled_back(
    server: ApiServer, user: User, co_owned: dict[str, Any]
) -> None:
    before = everything(server)
    user("k8s", "remove", "--yes")
    user("rollback", "k3", "--yes")
    assert everything(server) == before


def test_rollback_leaves_a_co_owned_object_to_its_owner(
    server: ApiServer, user: User, co_owned: dict[str, Any]
) -> None:
    user("rollback", "k1", "--yes")
    assert other_managers(server.get(*PLUGIN), ()) == ("alice",)
    assert not server.peek("ConfigMap")


POD = {"runtimeClassName": "nvidia", "containers": [{"name": "one", "image": "one"}]}
TEMPLATE = {"selector": {"matchLabels": {"app": "x"}}, "template": {"metadata": {"labels": {"app": "x"}}, "spec": POD}}
USERS = {
    # For example that of a Helm release which existed before, and got the recipe's values.
    "apps/v1 DaemonSet": TEMPLATE,
    "apps/v1 Deployment": TEMPLATE,
    "apps/v1 StatefulSet": TEMPLATE,
    "batch/v1 Job": TEMPLATE,
    "batch/v1 CronJob": {"jobTemplate": {"spec": TEMPLATE}},
    "v1 Pod": POD,
}


def add_theirs(server: ApiServer, kind: str, status: dict[str, Any] | None = None, **metadata: object) -> None:
    version, _, name = kind.partition(" ")
    number = sum(where == "default" for (_, where, _), _ in server.contents())
    place = {"name": f"theirs-{number}", "namespace": "default", **metadata}
    body = {"apiVersion": version, "kind": name, "metadata": place, "spec": USERS[kind], "status": status or {}}
    server.add(body)


@pytest.mark.parametrize("kind", USERS)
def test_runtime_class_that_others_need_stays(server: ApiServer, user: User, kind: str) -> None:
    user.apply()
    add_theirs(server, kind)

    name = kind.partition(" ")[2]
    stays = f"RuntimeClass nvidia stays, in use by {name} default/theirs-0"
    assert stays in user.screen("rollback", "k1", "--yes")
    assert server.peek("RuntimeClass")
    user.apply()
    assert stays in user.screen("k8s", "remove", "--yes")
    assert server.peek("RuntimeClass")
    assert not server.peek("ConfigMap")
    server.delete(name, "default", "theirs-0")
    user("k8s", "remove", "--yes")
    assert not server.peek("RuntimeClass")


def test_finished_pods_and_jobs_need_no_runtime_class(server: ApiServer, user: User) -> None:
    user.apply()
    add_theirs(server, "v1 Pod", {"phase": "Succeeded"})
    add_theirs(server, "v1 Pod", {"phase": "Failed"})
    add_theirs(server, "batch/v1 Job", {"conditions": [{"type": "SuccessCriteriaMet"}, {"type": "Complete"}]})
    user("k8s", "remove", "--yes")
    assert not server.peek("RuntimeClass")


def test_pod_of_a_listed_owner_is_not_named_beside_it(server: ApiServer, user: User) -> None:
    user.apply()
    add_theirs(server, "apps/v1 StatefulSet")
    add_theirs(server, "v1 Pod", ownerReferences=[{"apiVersion": "apps/v1", "kind": "StatefulSet", "uid": "1"}])
    add_theirs(server, "v1 Pod", ownerReferences=[{"apiVersion": "batch.volcano.sh/v1", "kind": "Job", "uid": ""}])
    shown = user.screen("k8s", "remove", "--yes")
    assert "RuntimeClass nvidia stays, in use by StatefulSet default/theirs-0, Pod default/theirs-2\n" in shown


def test_rollback_that_may_not_list_workloads_says_so(server: ApiServer, user: User) -> None:
    user.apply()
    server.denied |= {"list daemonsets", "list cronjobs"}
    undone = user("rollback", "k1", "--yes")
    (skipped,) = undone.envelope["result"]["skipped"]
    deleted = "RuntimeClass nvidia is deleted, although daemonsets, cronjobs of others were not checked: "
    assert skipped.startswith(deleted)
    assert not server.peek("RuntimeClass")


def test_another_recipe_gives_up_a_co_owned_configuration(server: ApiServer, user: User) -> None:
    user.apply("k8s-time-slicing")
    (former,) = server.peek("ConfigMap")
    server.apply({**former, "metadata": {"name": former["metadata"]["name"], "namespace": NAMESPACE}}, "argocd")
    applied = user.apply("k8s-containerd")

    (kept,) = (one for one in server.peek("ConfigMap") if one["metadata"]["name"] == former["metadata"]["name"])
    assert kept["data"] == former["data"]
    assert "labels" not in kept["metadata"]
    (note,) = (one["note"] for one in applied.envelope["result"]["objects"] if one["note"])
    assert note == "stays: argocd also set data.config.yaml"
    assert {one["state"] for one in user.plan("k8s-containerd").envelope["result"]["objects"]} == {"unchanged"}


def test_co_owned_object_changed_during_removal_is_reported(
    server: ApiServer, user: User, co_owned: dict[str, Any]
) -> None:
    def write_meanwhile(words: tuple[str, ...]) -> FinishedCommand | None:
        if words[0] == "patch":
            user.kubectl.intercept = lambda _: None
            server.update(
                co_owned, {**co_owned, "metadata": {**co_owned["metadata"], "annotations": {"x": "y"}}}, "bob"
            )
        return None

    user.kubectl.intercept = write_meanwhile
    refused = user("k8s", "remove", "--yes", check=5).error
    assert refused["what"] == "DaemonSet gpu-system/nvidia-device-plugin could not be changed; everything else is done"
    assert "DaemonSet nvidia-device-plugin was changed meanwhile" in refused["why"]
    assert not server.peek("ConfigMap")
    user("k8s", "remove", "--yes")
    assert other_managers(server.get(*PLUGIN), ()) == ("alice", "bob")


def test_removal_screen_names_the_co_owner_of_what_stays(user: User, co_owned: dict[str, Any]) -> None:
    shown = user.screen("k8s", "remove", "--yes")
    assert shown.count("alice") == 2


def test_diff_of_an_object_that_was_there_shows_only_what_is_added(server: ApiServer, user: User) -> None:
    labels = {"kubernetes.io/metadata.name": NAMESPACE, "team": "a"}
    metadata = {"name": NAMESPACE, "labels": labels}
    server.add({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata, "spec": {"finalizers": ["kubernetes"]}})
    (found,) = (one for one in user.plan().envelope["result"]["objects"] if one["kind"] == "Namespace")
    added = ["app.kubernetes.io/managed-by: gpunode", "pod-security.kubernetes.io/enforce: privileged"]
    assert (found["state"], found["diff"]) == ("edit", [f"+    {label}" for label in added])
