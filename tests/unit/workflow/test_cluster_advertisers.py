"""A second advertiser, through the whole command line."""

from __future__ import annotations

import pytest

from tests.fakes.api_server import ApiServer, Body
from tests.fakes.clusters import User
from tests.fakes.runners import ended

LABELS = {"app.kubernetes.io/component": "gpu-operator"}
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "gpu-operator", "namespace": "default", "labels": LABELS},
}
POLICY = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"}, "spec": {}}


def plugin(**selector: str) -> Body:
    pod = {"nodeSelector": selector, "containers": [{"name": "one", "image": "nvidia/k8s-device-plugin:v0.20.0"}]}
    metadata = {"name": "theirs", "namespace": "default"}
    template = {"metadata": {"labels": {"app": "theirs"}}, "spec": pod}
    spec = {"selector": {"matchLabels": {"app": "theirs"}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": spec}


@pytest.mark.parametrize("there", [plugin(**{"nvidia.com/gpu.present": "true"}), POLICY, DEPLOYMENT])
def test_second_gpu_advertiser_that_our_label_would_start_is_refused(
    server: ApiServer, user: User, there: Body
) -> None:
    server.add(there)
    assert "the GPUs of this cluster already" in user.apply(check=3).error["what"]
    assert "nvidia.com/gpu.present" not in server.get("Node", "", "gpu-1")["metadata"]["labels"]


def test_foreign_plugin_that_fits_no_node_is_only_a_note(server: ApiServer, user: User) -> None:
    server.add(plugin(no="node"))
    assert "default/theirs is NVIDIA's device plugin" in user.plan().envelope["result"]["notes"][0]
    assert "! DaemonSet default/theirs" in user.screen("k8s", "plan", "--node", "gpu-1=debian12-gtx1080")


@pytest.mark.parametrize(
    ("denied", "named"), [("list clusterpolicies", "ClusterPolicies"), ("list deployments", "Deployments were not")]
)
def test_forbidden_advertiser_lookup_is_a_note_and_no_failure(
    server: ApiServer, user: User, denied: str, named: str
) -> None:
    server.add({**POLICY, "spec": {"devicePlugin": {"enabled": False}}})
    server.denied.add(denied)
    (note,) = user.apply().envelope["result"]["notes"]
    assert named in note
    assert "is forbidden" in note


UNAVAILABLE = "the server is currently unable to handle the request"
STALE = "stale GroupVersion discovery: metrics.k8s.io/v1beta1"


@pytest.mark.parametrize("why", [UNAVAILABLE, STALE])
def test_gpu_operator_is_found_while_the_metrics_server_is_down(server: ApiServer, user: User, why: str) -> None:
    said = f"error: unable to retrieve the complete list of server APIs: metrics.k8s.io/v1beta1: {why}\n".encode()
    listed = b"clusterpolicies.nvidia.com\n"
    user.kubectl.intercept = lambda words: ended((), 1, listed, said) if words[0] == "api-resources" else None
    server.add(POLICY)
    assert "ClusterPolicy cluster-policy" in user.apply(check=3).error["what"]
    listed = b""
    server.delete("ClusterPolicy", "", "cluster-policy")
    assert user.apply().envelope["result"]["notes"] == []
    notes = {one["kind"]: one["note"] for one in user("k8s", "remove", "--yes").envelope["result"]["objects"]}
    assert notes["Namespace"].startswith("stays: it also holds what cannot be seen (")
    assert why in notes["Namespace"]


def test_operator_kinds_that_cannot_be_listed_are_noted(user: User) -> None:
    said = f"error: unable to retrieve the complete list of server APIs: nvidia.com/v1: {UNAVAILABLE}\n".encode()
    user.kubectl.intercept = lambda words: ended((), 1, b"", said) if words[0] == "api-resources" else None
    (note,) = user.plan().envelope["result"]["notes"]
    assert "so a GPU Operator may be installed" in note


def test_rendered_plugin_applied_by_argo_cd_elsewhere_is_refused(server: ApiServer, user: User) -> None:
    theirs = plugin()
    theirs["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "gpunode"}
    server.add(theirs, "argocd-controller")
    assert "the GPUs of this cluster already" in user.apply(check=3).error["what"]


def test_removal_hint_names_the_same_context(server: ApiServer, user: User) -> None:
    released = plugin()
    released["metadata"]["annotations"] = {
        "meta.helm.sh/release-name": "nvdp",
        "meta.helm.sh/release-namespace": "default",
    }
    server.add(released)
    hint = user.apply("k8s-containerd", "--context", "lab", check=3).error["hint"]
    assert "gpunode k8s remove --context lab if" in hint


def test_release_of_an_earlier_recipe_is_noted_with_its_removal(server: ApiServer, user: User) -> None:
    labels = {"owner": "helm", "name": "dcgm-exporter", "managed-by": "gpunode"}
    metadata = {"name": "sh.helm.release.v1.dcgm-exporter.v1", "namespace": "gpu-system", "labels": labels}
    server.add({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})

    (note,) = user.apply().envelope["result"]["notes"]

    assert "Helm release gpu-system/dcgm-exporter, of an earlier recipe, stays in effect" in note
    assert "`helm uninstall dcgm-exporter --namespace gpu-system`" in note
    (note,) = user.plan("k8s-containerd", "--context", "lab").envelope["result"]["notes"]
    assert "`helm --kube-context lab uninstall dcgm-exporter --namespace gpu-system`" in note
    server.denied.add("list secrets")
    assert user.plan().envelope["result"]["notes"] == []


def test_uninstalled_release_with_kept_history_is_not_called_in_effect(server: ApiServer, user: User) -> None:
    for version, status in (("10", "uninstalled"), ("9", "superseded")):
        labels = {"owner": "helm", "name": "dcgm-exporter", "managed-by": "gpunode", "version": version}
        labels["status"] = status
        place = {"name": f"sh.helm.release.v1.dcgm-exporter.v{version}", "namespace": "gpu-system"}
        metadata = {**place, "labels": labels}
        server.add({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
    assert user.plan().envelope["result"]["notes"] == []
