"""Messages for a user who lacks permissions; the printed command resolves the problem."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpunode import builtin
from gpunode.kubernetes.pods import find_problem
from gpunode.kubernetes.render import render_cluster
from gpunode.workflow.cluster_plan import limit_to_kubelet
from tests.fakes.api_server import ApiServer
from tests.fakes.clusters import User, everything
from tests.unit.kubernetes.clusters import CLUSTERS

TAINT = 'extends = "k8s-containerd"\n[kubernetes.taint]\nkey = "nvidia.com/gpu"\nvalue = "present"\n'
OF_KUBELETS = {
    "list daemonsets",
    "list pods",
    "list configmaps",
    "list namespaces",
    "list runtimeclasses",
    "list nodes",
}


def test_runtime_class_with_another_handler_names_its_owner_and_a_fix(
    server: ApiServer, user: User, tmp_path: Path
) -> None:
    notes = {"meta.helm.sh/release-name": "toolkit"}
    metadata = {"name": "nvidia", "annotations": notes}
    server.add(
        {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": metadata, "handler": "nvidia-cdi"}, "helm"
    )
    refused = user.apply(check=5).error
    assert refused["what"] == "RuntimeClass nvidia has the handler nvidia-cdi; gpunode's pods need nvidia"
    assert refused["why"].startswith("Helm release toolkit made it")
    assert 'runtime_class = "nvidia-gpunode"' in refused["hint"]
    (recipe := tmp_path / "other.toml").write_text(
        'extends = "k8s-containerd"\n[kubernetes]\nruntime_class = "nvidia-gpunode"\n'
    )
    assert user.apply(str(recipe)).states["RuntimeClass nvidia-gpunode"] == "create"


def test_kubelet_credential_removes_its_labels_and_lists_what_it_may_not(
    server: ApiServer, user: User, tmp_path: Path
) -> None:
    (recipe := tmp_path / "tainted.toml").write_text(TAINT)
    user.apply(str(recipe))
    server.user, server.denied = "system:node:gpu-1", OF_KUBELETS | {"get namespaces"}
    assert user.apply(str(recipe)).states == {"Node gpu-1": "unchanged"}
    removed = user("k8s", "remove", "--yes")
    assert removed.states == {"Node gpu-1": "edit"}
    all_else, taint = removed.envelope["result"]["skipped"]
    assert "may not list it" in all_else
    assert "nvidia.com/gpu=present:NoSchedule" in taint
    node = server.peek("Node")[0]
    assert "nvidia.com/gpu.present" not in node["metadata"]["labels"]
    assert node["spec"]["taints"]
    assert user("k8s", "remove", "--yes").states == {}

    server.user, server.denied = "admin", set()
    user("k8s", "remove", "--yes")
    assert not server.peek("Node")[0]["spec"].get("taints")


def test_chart_that_a_kubelet_may_not_release_is_listed() -> None:
    rendered = render_cluster(builtin.read_recipe("dra"), CLUSTERS["one"])
    _, skipped = limit_to_kubelet(rendered, rendered.nodes[0].node)
    assert "Helm release gpu-system/dra-driver-nvidia-gpu: the kubelet's credential may not apply it" in skipped


@pytest.mark.parametrize("words", [("k8s", "remove"), ("rollback", "k1")])
def test_right_that_an_undo_lacks_is_named_before_anything_is_done(
    server: ApiServer, user: User, words: tuple[str, ...]
) -> None:
    """A plugin that cannot be deleted would keep running without its configuration."""
    user.apply()
    before = everything(server)
    server.denied = {"delete daemonsets"}
    assert user(*words, "--yes", check=3).error["why"] == "missing: delete daemonsets in gpu-system"
    assert everything(server) == before


@pytest.mark.parametrize("words", [("k8s", "remove"), ("rollback", "k1")])
def test_right_for_objects_by_their_names_suffices(server: ApiServer, user: User, words: tuple[str, ...]) -> None:
    user.apply()
    server.denied = {"delete namespaces "}  # if a Role has resourceNames, only the query without a name is denied
    user(*words, "--yes")
    assert "gpu-system" not in {one["metadata"]["name"] for one in server.peek("Namespace")}


def test_labels_come_back_without_the_right_to_make_nodes(server: ApiServer, user: User) -> None:
    user.apply("k8s-time-slicing")
    applied = everything(server)
    user("k8s", "remove", "--yes")
    server.denied = {"create nodes", "delete nodes"}
    user("rollback", "k2", "--yes")
    assert everything(server) == applied


def test_removal_without_rights_is_refused(server: ApiServer, user: User) -> None:
    server.denied = OF_KUBELETS
    assert user("k8s", "remove", "--yes", check=3).error["what"] == "your credentials may not do this"


def test_only_verify_hints_at_image_option(server: ApiServer, user: User) -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
    pod = {"metadata": {"name": "x"}, "status": {"containerStatuses": [{"image": "i", "state": waiting}]}}
    found = find_problem(pod)
    assert found is not None
    assert "registry in [kubernetes]" in found.hint
    assert "--image" not in found.hint
