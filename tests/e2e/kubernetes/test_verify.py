"""k8s verify with a real API server, scheduler and controllers, and a node that has no machine."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.e2e.kubernetes.control_plane import ControlPlane
from tests.e2e.kubernetes.fake_node import PASSED, FakeNode, as_run, status
from tests.e2e.kubernetes.test_apply import User

pytestmark = pytest.mark.e2e

GPU = "nvidia.com/gpu"
NODE = ("--node", "gpu-1=debian12-gtx1080")
WHERE = "gpu-system"


@pytest.fixture(scope="module")
def user(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> User:
    return User(control_plane, tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def applied(control_plane: ControlPlane, user: User) -> Iterator[FakeNode]:
    """Yield a node on which k8s-containerd was applied and runs."""
    with FakeNode(control_plane, "gpu-1", allocatable={GPU: "1"}) as one:
        user.apply()
        yield one
        user("k8s", "remove", "--yes")
    control_plane.kubectl("delete", "node", "gpu-1")


@pytest.fixture
def node(control_plane: ControlPlane, applied: FakeNode) -> Iterator[FakeNode]:
    """Yield the same node in its initial state, and delete the test's pods afterwards."""
    yield applied
    applied.says(PASSED)
    applied.status_of = as_run
    assert pods(control_plane) == []


def pods(plane: ControlPlane) -> list[str]:
    """Return the pods that tests created in the cluster."""
    # Without kubectl: on a busy machine, a test's pod may come and go before kubectl starts.
    found = plane.api.get(f"/api/v1/namespaces/{WHERE}/pods?labelSelector=gpunode-test")["items"]
    return [one["metadata"]["name"] for one in found]


def verify(user: User, *words: str, code: int = 0) -> Mapping[str, tuple[str, str]]:
    """Return status and detail of each check, by the first two parts of its id."""
    found = user("k8s", "verify", *(words or ("k8s-containerd",)), *NODE, check=code).envelope["result"]["checks"]
    return {"/".join(one["id"].split("/")[:2]): (one["status"], one["detail"]) for one in found}


def test_passing_test_pod_verifies_the_node(control_plane: ControlPlane, user: User, node: FakeNode) -> None:
    found = verify(user)

    assert found["runtime-class"][0] == found["workload/gpu-system"][0] == found["resource/gpu-1"][0] == "passed"
    assert found["pod/gpu-1"][0] == "passed"
    assert "Test PASSED" in found["pod/gpu-1"][1]
    assert found["handler/gpu-1"] == ("passed", "the test pod ran through it")
    # The API server's proxy does not reach a kubelet on a loopback address.
    assert found["kubelet/gpu-1"][0] == "skipped"


def test_too_few_gpus_fail(user: User, node: FakeNode) -> None:
    found = verify(user, "k8s-time-slicing", code=7)

    assert found["resource/gpu-1"] == ("failed", "1 offered, 4 expected of 1 GPU")
    assert found["sharing/gpu-1"][0] == "skipped"


def test_two_pods_share_a_gpu(control_plane: ControlPlane, user: User, node: FakeNode) -> None:
    node.says(f"GPU 0: NVIDIA GeForce GTX 1080 (UUID: GPU-5c6d0a4e-0000-0000-0000-000000000000)\n{PASSED}")
    ended = {"exitCode": 0, "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:10Z"}
    node.status_of = lambda spec: status(spec, "Succeeded", {"terminated": ended})
    control_plane.api.patch("/api/v1/nodes/gpu-1/status", offers(4))
    try:
        found = verify(user, "k8s-time-slicing")
    finally:
        control_plane.api.patch("/api/v1/nodes/gpu-1/status", offers(1))

    assert found["sharing/gpu-1"][0] == "passed"
    assert "had GPU-5c6d0a4e-0000-0000-0000-000000000000 for 9 s at the same time" in found["sharing/gpu-1"][1]


def offers(gpus: int) -> Mapping[str, Any]:
    return {"status": {"capacity": {GPU: str(gpus)}, "allocatable": {GPU: str(gpus)}}}


def test_pod_log_without_the_success_line_fails(user: User, node: FakeNode) -> None:
    node.says("no CUDA-capable device is detected\n")

    found = verify(user, code=7)

    assert found["pod/gpu-1"][0] == "failed"
    assert "no CUDA-capable device" in found["pod/gpu-1"][1]
    assert found["handler/gpu-1"] == ("passed", "the test pod ran through it")


def test_image_that_cannot_be_pulled_is_named(user: User, node: FakeNode) -> None:
    waiting = {"reason": "ErrImagePull", "message": "pull access denied"}
    node.status_of = lambda spec: status(spec, "Pending", {"waiting": waiting})

    found = verify(user, "--image", "mirror.example.org/vectoradd:1", "--timeout", "2", code=7)

    assert "mirror.example.org/vectoradd:1 cannot be pulled: pull access denied" in found["pod/gpu-1"][1]


def test_untolerated_taint_is_named(control_plane: ControlPlane, user: User, node: FakeNode) -> None:
    control_plane.kubectl("taint", "node", "gpu-1", "team=blue:NoSchedule")
    try:
        found = verify(user, "--timeout", "2", code=7)
    finally:
        control_plane.kubectl("taint", "node", "gpu-1", "team-")

    assert "gpu-1 has the taint team=blue:NoSchedule" in found["pod/gpu-1"][1]


def test_gpu_in_use_is_reported_as_not_run(control_plane: ControlPlane, user: User, node: FakeNode) -> None:
    container = {"name": "one", "image": "lab", "resources": {"limits": {GPU: 1}}}
    spec = {"containers": [container], "tolerations": [{"operator": "Exists"}]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "training"}, "spec": spec}
    control_plane.kubectl("create", "-f", "-", stdin=json.dumps(body))
    control_plane.kubectl("wait", "pod/training", "--for=condition=Ready", "--timeout=30s")
    try:
        found = verify(user, "--timeout", "2")
    finally:
        control_plane.kubectl("delete", "pod", "training", "--timeout=30s")

    assert found["pod/gpu-1"][0] == "skipped"
    assert "in use, by default/training" in found["pod/gpu-1"][1]


def test_crashing_plugin_is_explained_by_its_log(control_plane: ControlPlane, user: User, node: FakeNode) -> None:
    node.says("Detected non-NVML platform: could not load NVML library: libnvidia-ml.so.1: cannot open shared object\n")
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}}
    node.status_of = lambda spec: status(spec, "Running", waiting, restarts=3)
    plugin = ("pods", "--namespace", WHERE, "--selector", "app.kubernetes.io/name=nvidia-device-plugin")
    control_plane.kubectl("delete", *plugin, "--timeout=30s")
    try:
        control_plane.wait_for("it crashes", lambda: "CrashLoopBackOff" in json.dumps(control_plane.get(*plugin)))
        found = verify(user, "--timeout", "2", code=7)
    finally:
        node.status_of = as_run
        control_plane.kubectl("delete", *plugin, "--timeout=30s")

    detail = found["workload/gpu-system"][1]
    assert detail.startswith("0 of 1 pods are ready")
    assert "device-plugin-library-not-found" in detail


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_leaves_no_pod(control_plane: ControlPlane, user: User, node: FakeNode, number: signal.Signals) -> None:
    node.status_of = lambda spec: status(spec, "Pending", {"waiting": {"reason": "ContainerCreating"}})
    argv = [sys.executable, "-m", "gpunode", "k8s", "verify", *NODE, "--json"]
    with subprocess.Popen(argv, env=user.environment, stdout=-1, stderr=-1, text=True) as process:
        control_plane.wait_for("a pod is there", lambda: bool(pods(control_plane)))
        process.send_signal(number)
        out, error = process.communicate(timeout=60)

    assert process.returncode == 128 + number, error
    assert json.loads(out)["errors"][0]["why"] == "the pods of the test are being deleted"
    control_plane.wait_for("its pods are gone", lambda: not pods(control_plane))


def test_job_deadline_ends_a_killed_check(control_plane: ControlPlane, user: User, node: FakeNode) -> None:
    """Its pod requests a GPU that is in use, so that it never starts."""
    container = {"name": "one", "image": "lab", "resources": {"limits": {GPU: 1}}}
    spec = {"containers": [container], "tolerations": [{"operator": "Exists"}]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "training"}, "spec": spec}
    control_plane.kubectl("create", "-f", "-", stdin=json.dumps(body))
    control_plane.kubectl("wait", "pod/training", "--for=condition=Ready", "--timeout=30s")
    argv = [sys.executable, "-m", "gpunode", "k8s", "verify", *NODE, "--timeout", "1", "--json"]
    # The limit of the Job is 31 s; a run is killed long before.
    with subprocess.Popen(argv, env=user.environment, stdout=-1, stderr=-1) as process:
        control_plane.wait_for("a pod is there", lambda: bool(pods(control_plane)))
        process.kill()
    try:
        control_plane.wait_for("the cluster has deleted it", lambda: not pods(control_plane), 60)
        assert not control_plane.get("jobs", "--namespace", WHERE)["items"]
    finally:
        control_plane.kubectl("delete", "pod", "training", "--timeout=30s")
