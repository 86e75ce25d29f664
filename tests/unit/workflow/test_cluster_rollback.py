"""Rollback of a run that changed a cluster."""

from __future__ import annotations

import copy
import json
import os
import pwd
from pathlib import Path

import pytest

from tests.fakes.api_server import ApiServer
from tests.fakes.clusters import NODE, User, everything, node
from tests.fakes.runners import ended

RUNTIME_CLASS = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}


def test_rollback_restores_the_previous_state_and_can_be_rolled_back(server: ApiServer, user: User) -> None:
    user.apply("k8s-containerd")
    first = everything(server)
    user.apply("k8s-time-slicing")
    second = everything(server)
    assert first != second

    user("rollback", "k2", "--yes")
    assert everything(server) == first
    user("rollback", "k3", "--yes")
    assert everything(server) == second


def test_rollback_of_a_removal_applies_everything_again(server: ApiServer, user: User) -> None:
    before = everything(server)
    user.apply("k8s-time-slicing")
    applied = everything(server)
    user("k8s", "remove", "--yes")
    assert everything(server) == before

    user("rollback", "k2", "--yes")
    assert everything(server) == applied
    user("rollback", "k3", "--yes")
    assert everything(server) == before


def test_apply_that_only_began_a_deletion_names_the_way_back(server: ApiServer, user: User) -> None:
    user.apply("k8s-time-slicing")
    (earlier,) = (copy.deepcopy(one) for one in server.peek("ConfigMap"))
    user.apply("k8s-containerd")
    wanted = {name: earlier["metadata"][name] for name in ("name", "namespace", "labels")}
    server.apply({**earlier, "metadata": wanted}, "gpunode")  # a deletion that was killed may leave it
    (left,) = (one for one in server.peek("ConfigMap") if one["metadata"]["name"] == wanted["name"])
    left["metadata"]["finalizers"] = ["example.org/keep"]
    before = everything(server)

    error = user.apply("k8s-containerd", check=6).error

    assert error["what"] == f"ConfigMap gpu-system/{wanted['name']} is still being deleted"
    assert error["hint"].endswith("\nor undo what was changed: gpunode rollback k3")
    left["metadata"].pop("finalizers")
    server.delete("ConfigMap", "gpu-system", wanted["name"])
    assert everything(server) != before
    user("rollback", "k3", "--yes")
    assert everything(server) == before


class Killed(BaseException):
    """The process was killed."""


def kill_after_taint(user: User) -> None:
    """Kill gpunode between the removal of a Node's taint and that of the annotation that marks it as gpunode's."""
    calls: list[str] = []

    def kill(words: tuple[str, ...]) -> None:
        calls.append(words[0])
        if words[0] == "apply" and "taint" in calls:
            user.kubectl.intercept = lambda _: None
            raise Killed

    user.kubectl.intercept = kill


@pytest.mark.parametrize("removal", [("k8s", "apply", "k8s-containerd", *NODE, "--yes"), ("k8s", "remove", "--yes")])
def test_run_killed_after_it_removed_a_taint_is_rolled_back(
    server: ApiServer, user: User, tmp_path: Path, removal: tuple[str, ...]
) -> None:
    recipe = tmp_path / "taint.toml"
    recipe.write_text('extends = "k8s-containerd"\n[kubernetes.taint]\nkey = "nvidia.com/gpu"\nvalue = "present"\n')
    user.apply(str(recipe))
    before = everything(server)
    kill_after_taint(user)
    with pytest.raises(Killed):
        user(*removal)
    assert everything(server) != before
    user("rollback", "k2", "--yes")
    assert everything(server) == before


def test_apply_removes_the_mark_of_a_taint_that_a_killed_run_removed(
    server: ApiServer, user: User, tmp_path: Path
) -> None:
    """With it, the same taint of an administrator would count as gpunode's and be removed."""
    recipe = tmp_path / "taint.toml"
    recipe.write_text('extends = "k8s-containerd"\n[kubernetes.taint]\nkey = "nvidia.com/gpu"\nvalue = "present"\n')
    user.apply(str(recipe))
    kill_after_taint(user)
    with pytest.raises(Killed):
        user.apply("k8s-containerd")
    assert "-annotation gpunode-taint=nvidia.com/gpu=present:NoSchedule" in user.screen("k8s", "plan", *NODE)
    user.apply("k8s-containerd")
    assert "gpunode-taint" not in server.get("Node", "", "gpu-1")["metadata"].get("annotations", {})
    assert set(user.plan("k8s-containerd").states.values()) == {"unchanged"}


def test_rollback_makes_no_plugin_before_the_other_has_ended(server: ApiServer, user: User, tmp_path: Path) -> None:
    """When one ends, it unlinks the other's socket, and the kubelet marks the GPUs as unhealthy."""
    recipe = tmp_path / "moved.toml"
    recipe.write_text('schema = 1\nextends = "k8s-containerd"\n[kubernetes]\nnamespace = "gpus"\n')
    user.apply()
    user.apply(str(recipe))
    (plugin,) = server.peek("DaemonSet")
    plugin["metadata"]["finalizers"] = ["foregroundDeletion"]
    polls: list[object] = []

    def end_late(words: tuple[str, ...]) -> None:
        if words[0] == "get" and "deletionTimestamp" in plugin["metadata"]:
            polls.append(words)
            if len(polls) == 3:
                plugin["metadata"].pop("finalizers")
                server.delete("Namespace", "", "gpus")
        if words[0] == "apply" and polls:
            assert plugin not in server.peek("DaemonSet")

    user.kubectl.intercept = end_late
    assert user("rollback", "k2", "--yes").states["Namespace gpus"] == "delete"
    assert [one["metadata"]["namespace"] for one in server.peek("DaemonSet")] == ["gpu-system"]
    assert len(polls) == 3


def test_rollback_does_without_a_node_that_left_the_cluster(server: ApiServer, user: User) -> None:
    user.apply()
    user("k8s", "remove", "--yes")
    server.delete("Node", "", "gpu-1")
    server.controllers.clear()
    done = user("rollback", "k2", "--yes")
    assert done.envelope["result"]["skipped"] == ["Node gpu-1: it is no longer in this cluster"]
    assert "Node gpu-1" not in done.states
    assert server.peek("DaemonSet")


def test_rollback_of_a_removal_refuses_what_was_applied_since(server: ApiServer, user: User) -> None:
    user.apply("k8s-time-slicing")
    user("k8s", "remove", "--yes")
    user.apply("k8s-containerd")
    before = everything(server)

    assert "was changed since that run" in user("rollback", "k2", "--yes", check=5).error["what"]
    assert everything(server) == before


def test_rollback_in_another_cluster_is_refused_and_names_both(server: ApiServer, user: User) -> None:
    user.apply()
    user.kubectl.switch("staging", ApiServer(uid="cluster-2"))
    user.server.add(node())
    refused = user("rollback", "k1", "--yes", check=3).error
    assert refused["what"] == "run k1 was in another cluster"
    assert "it changed the cluster cluster-1; the context staging leads to the cluster cluster-2" in refused["why"]


# Actions that RBAC and the node authorizer deny to a kubelet.
OF_KUBELETS = {
    f"{verb} {what}"
    for verb in ("get", "list", "patch", "create", "delete")
    for what in ("namespaces", "runtimeclasses", "daemonsets", "configmaps")
} | {"list nodes", "delete nodes", "create nodes"}


def test_run_in_a_cluster_known_by_its_server_is_undone_by_uid(server: ApiServer, user: User) -> None:
    before = everything(server)
    server.denied = {"get namespaces kube-system"}
    user.apply()
    applied = everything(server)
    user("rollback", "k1", "--yes")
    assert everything(server) == before
    user("rollback", "k2", "--yes")
    assert everything(server) == applied
    server.denied = set()
    user("rollback", "k3", "--yes")
    assert everything(server) == before


def test_credential_that_cannot_identify_the_cluster_rolls_nothing_back(server: ApiServer, user: User) -> None:
    user.apply()
    before = everything(server)
    server.user, server.denied = "system:node:gpu-1", OF_KUBELETS
    refused = user("rollback", "k1", "--yes", check=3).error
    assert refused["what"] == "run k1 may have been in another cluster"
    assert "this credential may not read the namespace kube-system" in refused["why"]
    assert refused["hint"] == "use one that may: add --kubeconfig FILE to the same command"
    assert everything(server) == before


def test_removal_in_another_cluster_than_the_last_run_warns(user: User) -> None:
    user.apply()
    user.kubectl.switch("staging", ApiServer(uid="cluster-2"))
    assert "! this is not the cluster of your last run" in user.screen("k8s", "remove", "--yes")
    # Root has its own journal, so users read the log of their own runs without sudo.
    assert "details: gpunode log RUN\n" in user.screen("log")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the runs are root's own")
def test_commands_after_sudo_name_sudo_too(
    server: ApiServer, user: User, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Kubeconfig and journal are root's, as on k3s, whose kubeconfig only root can read."""
    monkeypatch.setenv("SUDO_UID", "1000")
    (home := tmp_path / "root").mkdir()
    root = pwd.struct_passwd(("root", "x", 0, 0, "", str(home), "/bin/sh"))
    monkeypatch.setattr("pwd.getpwuid", lambda _: root)
    monkeypatch.setenv("HOME", str(home))
    applied = user.screen("k8s", "apply", "k8s-containerd", *NODE, "--yes")
    assert "next: sudo gpunode k8s verify k8s-containerd" in applied
    assert "details: sudo gpunode log RUN\n" in user.screen("log")
    assert "undo: sudo gpunode rollback k2" in user.screen("rollback", "k1", "--yes")
    user.apply()
    (plugin,) = server.peek("DaemonSet")
    plugin["spec"]["template"]["spec"]["containers"][0]["image"] = "other:1"
    hint = user("rollback", "k3", "--yes", check=5).error["hint"]
    assert "(sudo gpunode log)" in hint
    assert ": sudo kubectl get DaemonSet" in hint
    user.apply("k8s-time-slicing")
    # Set by `sudo -E` or in sudo's root shell; the next sudo would drop both.
    monkeypatch.setenv("HOME", "/home/me")
    (config := tmp_path / "my config").touch()
    monkeypatch.setenv("KUBECONFIG", str(config))
    sudo = f"sudo HOME=/home/me 'KUBECONFIG={config}'"
    hint = user("rollback", "k1", "--yes", check=5).error["hint"]
    assert f"({sudo} gpunode log)" in hint
    assert f": {sudo} kubectl get DaemonSet" in hint
    server.peek("DaemonSet")[0]["metadata"]["finalizers"] = ["example.org/keep"]
    failed = user("k8s", "remove", "--yes", check=6)
    assert failed.error["hint"].startswith(f"see what keeps it: {sudo} kubectl get daemonset")
    assert f"see what keeps it: {sudo} kubectl get daemonset" in user.screen("k8s", "remove", "--yes", check=6)


def test_cluster_under_another_address_is_not_called_another(server: ApiServer, user: User) -> None:
    """With kubeadm a kubelet uses its own machine's API server, an administrator the load balancer."""
    server.denied.add("get namespaces kube-system")
    user.apply()
    server.denied.clear()
    config = {"contexts": [{"name": "lab"}], "clusters": [{"cluster": {"server": "https://api.example.org:6443"}}]}
    user.kubectl.intercept = lambda words: (
        ended(out=json.dumps(config).encode()) if words[:2] == ("config", "view") else None
    )
    assert "not the cluster of your last run" not in user.screen("k8s", "plan", "k8s-containerd", *NODE)


@pytest.mark.parametrize("manager", ["kubectl-client-side-apply", "theirs"])
def test_rollback_leaves_an_object_that_others_applied_since(server: ApiServer, user: User, manager: str) -> None:
    user.apply()
    (there,) = server.peek("RuntimeClass")
    if manager == "theirs":
        server.apply({**RUNTIME_CLASS, "handler": "nvidia"}, manager)
    else:
        there["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    user("rollback", "k1", "--yes")
    assert server.peek("RuntimeClass")
    assert not server.peek("DaemonSet")
