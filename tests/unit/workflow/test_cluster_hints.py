"""Messages for a user who lacks permissions; the printed command resolves the problem."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.kubernetes.pods import find_problem
from tests.fakes.api_server import ApiServer
from tests.fakes.clusters import NODE, User, everything


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


def test_only_verify_hints_at_image_option(server: ApiServer, user: User) -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
    pod = {"metadata": {"name": "x"}, "status": {"containerStatuses": [{"image": "i", "state": waiting}]}}
    found = find_problem(pod)
    assert found is not None
    assert "registry in [kubernetes]" in found.hint
    assert "--image" not in found.hint


def test_plan_ends_with_the_command_that_applies_it(user: User) -> None:
    shown = user.screen("k8s", "plan", "k8s-time-slicing", *NODE, "--check", check=4)
    assert shown.endswith(f"\nnext: gpunode k8s apply k8s-time-slicing {' '.join(NODE)}\n")
    user.apply("k8s-time-slicing")
    assert "next:" not in user.screen("k8s", "plan", "k8s-time-slicing", *NODE)


def test_taint_of_others_that_a_users_pod_must_tolerate_is_noted(server: ApiServer, user: User, tmp_path: Path) -> None:
    (node,) = server.peek("Node")
    cordoned = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    node["spec"]["taints"] = [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}, cordoned]
    tolerations = "tolerations: [{key: nvidia.com/gpu, operator: Exists}]"
    for verb in ("plan", "verify"):
        shown = " ".join(user.screen("k8s", verb, *NODE, check=0 if verb == "plan" else 7).split())
        assert "! gpu-1 has the taint nvidia.com/gpu=present:NoSchedule, which the recipe does not name" in shown
        assert tolerations in shown
        assert "unschedulable," not in shown
    (recipe := tmp_path / "own.toml").write_text(
        'schema = 1\nextends = "k8s-containerd"\n[kubernetes.taint]\nkey = "nvidia.com/gpu"\nvalue = "present"\n'
    )
    assert "which the recipe does not name" not in user.screen("k8s", "plan", str(recipe), *NODE)


def test_removal_says_that_new_pods_get_no_gpu(user: User) -> None:
    assert "; running pods stay as they are" in user.screen("k8s", "plan", *NODE)
    user.apply()
    assert "1 to edit; running pods keep their GPUs, new ones get none" in user.screen("k8s", "remove", "--yes")
