"""A plugin that does not run is told by every plan and every apply, also where nothing is left to change."""

from __future__ import annotations

import pytest

from tests.fakes.api_server import ApiServer
from tests.fakes.clusters import NODE, User, pod_of, run_daemon_sets

PULL = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}


@pytest.fixture
def unready(server: ApiServer, user: User) -> ApiServer:
    """A cluster in which the applied plugin's image cannot be pulled."""
    server.controllers.append(break_pods)
    assert "0 of 1 pods are ready" in user.apply("k8s-containerd", "--timeout", "1", check=7).error["what"]
    return server


def break_pods(server: ApiServer) -> None:
    """Have the image of each DaemonSet's pods missing."""
    for one in server.peek("DaemonSet"):
        one["status"]["numberReady"] = 0
        if not server.peek("Pod"):
            server.add(pod_of(one, "gpu-1", "Pending", {"waiting": PULL}))


def test_retried_apply_fails_again_over_a_plugin_that_does_not_run(unready: ApiServer, user: User) -> None:
    error = user.apply("k8s-containerd", "--timeout", "1", check=7).error
    assert error["what"] == "DaemonSet gpu-system/nvidia-device-plugin: 0 of 1 pods are ready after 1 s"
    assert "cannot be pulled" in error["why"]


def test_plan_tells_a_plugin_that_does_not_run(unready: ApiServer, user: User) -> None:
    notes = {one["kind"]: one["note"] for one in user.plan().envelope["result"]["objects"]}
    assert "as it should be, but 0 of 1 pods are ready: " in notes["DaemonSet"]
    assert "cannot be pulled" in notes["DaemonSet"]
    shown = user.screen("k8s", "plan", *NODE)
    assert "! nothing to change, but DaemonSet gpu-system/nvidia-device-plugin does not run" in shown
    assert "✓" not in shown


def test_apply_waits_for_a_plugin_that_starts_late(unready: ApiServer, user: User) -> None:
    def start(words: tuple[str, ...]) -> None:
        if "pods" in words:
            unready.controllers.remove(break_pods)
            run_daemon_sets(unready)
            user.kubectl.intercept = lambda _: None

    user.kubectl.intercept = start
    shown = user.screen("k8s", "apply", *NODE, "--yes")
    assert "✓ its pods are ready now" in shown


def test_plugin_that_no_node_runs_is_told(server: ApiServer, user: User) -> None:
    server.controllers.clear()
    server.controllers.append(choose_no_node)
    for _ in range(2):
        error = user.apply("k8s-containerd", "--timeout", "1", check=7).error
        assert error["what"] == "DaemonSet gpu-system/nvidia-device-plugin: no node runs it"
    assert "but no node runs it" in user.screen("k8s", "plan", *NODE)


def choose_no_node(server: ApiServer) -> None:
    """Have each DaemonSet find no node for it."""
    for one in server.peek("DaemonSet"):
        one["status"] = {"observedGeneration": one["metadata"]["generation"], "desiredNumberScheduled": 0}


def test_pods_that_may_not_be_read_are_no_obstacle_to_the_answer(unready: ApiServer, user: User) -> None:
    unready.denied.add("list pods")
    assert (
        "its pods cannot be read: your credentials may not do this"
        in user.apply("k8s-containerd", "--timeout", "1", check=7).error["why"]
    )


def test_label_that_the_plan_sets_is_not_told_as_missing(unready: ApiServer, user: User) -> None:
    (node,) = unready.peek("Node")
    del node["metadata"]["labels"]["nvidia.com/gpu.present"]
    run_daemon_sets(unready)
    assert "no node runs it" not in user.screen("k8s", "plan", *NODE)
