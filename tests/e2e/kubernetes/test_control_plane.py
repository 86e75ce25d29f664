"""The lab's control plane and its nodes without machines behave as gpunode's tests assume."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.kubernetes.control_plane import API_PROGRAMS, EXPIRED, STRANGER, ControlPlane
from tests.e2e.kubernetes.fake_node import FakeNode, add_node
from tests.needs import lacking_assets

pytestmark = pytest.mark.e2e

GPU = "nvidia.com/gpu"


def gpu_pod(name: str, gpus: int, **spec: object) -> str:
    """Return a pod that requests GPUs and ends."""
    container = {"name": "one", "image": "lab", "resources": {"limits": {GPU: gpus}}}
    body = {"restartPolicy": "Never", "containers": [container], **spec}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body})


@pytest.fixture(scope="module")
def node(control_plane: ControlPlane) -> Iterator[FakeNode]:
    with FakeNode(control_plane, "gpu-1", allocatable={GPU: "8"}, labels={f"{GPU}.present": "true"}) as node:
        yield node
    control_plane.kubectl("delete", "node", "gpu-1")


def test_pod_runs_on_a_fake_node_and_its_log_is_read(control_plane: ControlPlane, node: FakeNode) -> None:
    control_plane.kubectl("create", "-f", "-", stdin=gpu_pod("computes", 1))
    control_plane.kubectl("wait", "pod/computes", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=30s")

    assert "Test PASSED" in control_plane.kubectl("logs", "computes")
    control_plane.kubectl("delete", "pod", "computes", "--timeout=30s")


def test_daemon_set_becomes_ready_on_a_fake_node(control_plane: ControlPlane, node: FakeNode) -> None:
    labels = {"app": "plugin"}
    pod = {"nodeSelector": {f"{GPU}.present": "true"}, "containers": [{"name": "one", "image": "lab"}]}
    spec = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}
    body = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "plugin"}, "spec": spec}
    control_plane.kubectl("create", "-f", "-", stdin=json.dumps(body))

    control_plane.kubectl("rollout", "status", "daemonset/plugin", "--timeout=30s")

    control_plane.kubectl("delete", "daemonset", "plugin", "--timeout=30s")
    control_plane.wait_for("its pod is gone", lambda: not control_plane.get("pods")["items"])


def test_scheduler_says_why_a_pod_does_not_run(control_plane: ControlPlane, node: FakeNode) -> None:
    control_plane.kubectl("create", "-f", "-", stdin=gpu_pod("greedy", 9))

    def message() -> str:
        conditions = control_plane.get("pod", "greedy")["status"].get("conditions", [])
        return "".join(one.get("message", "") for one in conditions if one["type"] == "PodScheduled")

    control_plane.wait_for("the scheduler has refused it", lambda: bool(message()))
    assert f"Insufficient {GPU}" in message()
    control_plane.kubectl("delete", "pod", "greedy", "--timeout=30s")


def test_credentials_have_the_rights_of_their_users(control_plane: ControlPlane, node: FakeNode) -> None:
    label = ("label", "node", "gpu-1", f"{GPU}.count=8", "--overwrite")
    control_plane.kubectl(*label, user="gpu-1")
    taint = ("taint", "node", "gpu-1", f"{GPU}=present:NoSchedule")

    assert "is not allowed to modify taints" in control_plane.finish(*taint, user="gpu-1").stderr
    assert "Forbidden" in control_plane.finish(*label, user="gpu-2").stderr
    assert "Forbidden" in control_plane.finish("get", "nodes", user=STRANGER).stderr
    assert "must be logged in" in control_plane.finish("get", "nodes", user=EXPIRED).stderr


def test_api_server_alone_accepts_nodes_and_leaves_nothing(tmp_path: Path) -> None:
    if reason := lacking_assets(*API_PROGRAMS):
        pytest.skip(reason)
    folder = tmp_path / "plane"
    with ControlPlane(folder, scheduling=False) as plane:
        add_node(plane, "gpu-1", allocatable={GPU: "4"})
        plane.kubectl("create", "-f", "-", stdin=gpu_pod("bare", 1, nodeName="gpu-1"))

        assert plane.get("node", "gpu-1")["status"]["allocatable"][GPU] == "4"
        assert plane.get("pod", "bare")["status"]["phase"] == "Pending"

    assert not folder.exists()
    assert not [one for one in Path("/proc").glob("[0-9]*/cmdline") if str(folder) in _read(one)]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # It has ended meanwhile.
