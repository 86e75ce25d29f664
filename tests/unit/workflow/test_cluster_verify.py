"""Verdicts of ``k8s verify`` on a cluster, and the removal of its pods afterwards."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from typing import Any

import pytest

from gpunode import builtin
from gpunode.check import Check
from gpunode.command import command
from gpunode.errors import Interrupted
from gpunode.host.cluster import Cluster
from gpunode.host.process import FinishedCommand
from gpunode.kubernetes.model import ClusterNode
from gpunode.recipe import Recipe
from gpunode.workflow.cluster_verify import ClusterVerification
from gpunode.workflow.verify import VerifyReport
from tests.fakes.api_server import ApiServer
from tests.fakes.clusters import NAMESPACE, NODE, User, node, pod_of, run_test_pods
from tests.fakes.runners import ended
from tests.unit.kubernetes.clusters import CLUSTERS

PASSED = "[Vector addition of 50000 elements]\nTest PASSED\nDone\n"


@pytest.fixture
def applied(server: ApiServer, user: User) -> ApiServer:
    """Return a cluster in which the recipe was applied and test pods run and pass."""
    user.apply()
    server.controllers.append(run_test_pods)
    user.kubectl.pod_log = PASSED
    return server


def left_pods(server: ApiServer) -> list[str]:
    return [one["metadata"]["name"] for kind in ("Pod", "Job") for one in server.peek(kind)]


def test_passing_test_pod_verifies_the_node_and_is_deleted(applied: ApiServer, user: User) -> None:
    found = user.verify()
    assert {status for status, _ in found.values()} == {"passed", "skipped"}
    assert found["pod/gpu-1"][0] == "passed"
    assert "Test PASSED" in found["pod/gpu-1"][1]
    assert found["kubelet/gpu-1"][0] == "skipped"
    assert left_pods(applied) == []


def test_job_deadline_ends_the_pods_of_a_killed_run(applied: ApiServer, user: User) -> None:
    """A pod that fits on no node never starts, so its own limit would never begin."""
    seen: dict[str, Any] = {}

    def look(words: tuple[str, ...]) -> FinishedCommand | None:
        if words[0] == "logs":
            seen.update({one["kind"]: one for kind in ("Pod", "Job") for one in applied.peek(kind)})
        return None

    user.kubectl.intercept = look
    user.verify("k8s-containerd", "--timeout", "60")
    job = seen["Job"]
    assert job["spec"]["parallelism"] == job["spec"]["ttlSecondsAfterFinished"] == 0
    assert job["spec"]["activeDeadlineSeconds"] == 90
    (owner,) = seen["Pod"]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Job", job["metadata"]["uid"])


def test_without_the_right_to_create_jobs_no_pod_is_created(applied: ApiServer, user: User) -> None:
    applied.denied.add("create jobs")
    status, detail = user.verify()["pod/gpu-1"]
    assert status == "skipped"
    assert "your credentials may not create jobs in gpu-system" in detail
    assert left_pods(applied) == []


def test_without_the_right_to_list_jobs_all_checks_run(applied: ApiServer, user: User) -> None:
    applied.denied.add("list jobs")
    assert user.verify()["pod/gpu-1"][0] == "passed"


def test_removal_leaves_the_pods_of_checks_to_their_job(applied: ApiServer, user: User) -> None:
    labels = {"app.kubernetes.io/managed-by": "gpunode", "gpunode-test": "bcdfg"}
    metadata = {"name": "gpunode-test-new", "namespace": NAMESPACE, "labels": labels}
    applied.add({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": []}})
    assert user("k8s", "remove", "--yes").states["Namespace gpu-system"] == "foreign"
    assert left_pods(applied) == ["gpunode-test-new"]


def test_pods_that_cannot_be_deleted_are_reported_with_the_command(applied: ApiServer, user: User) -> None:
    applied.denied.add("delete pods")
    error = user("k8s", "verify", "k8s-containerd", "--node", "gpu-1=debian12-gtx1080", check=6).error
    assert error["what"] == "the pods of the test were not deleted"
    assert "kubectl delete pods,jobs --namespace gpu-system --selector gpunode-test=" in error["hint"]


def pods_with(applied: ApiServer, status: dict[str, Any], spec: dict[str, Any] | None = None) -> None:
    """Make each test pod end like this instead."""
    applied.controllers.remove(run_test_pods)

    def set_status(server: ApiServer) -> None:
        for one in server.peek("Pod"):
            one.setdefault("status", status)
            one["spec"] |= spec or {}

    applied.controllers.append(set_status)


def unscheduled_pod(message: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"phase": "Pending", "conditions": [condition]}


def test_pod_log_without_the_success_line_fails(applied: ApiServer, user: User) -> None:
    user.kubectl.pod_log = "no CUDA-capable device is detected\n"
    status, detail = user.verify(check=7)["pod/gpu-1"]
    assert status == "failed"
    assert "no CUDA-capable device" in detail


def test_unreadable_pod_log_is_not_run(applied: ApiServer, user: User) -> None:
    applied.denied.add("get pods")
    assert user.verify()["pod/gpu-1"][0] == "skipped"
    shown = user.screen("k8s", "verify", "k8s-containerd", *NODE)
    assert "not run: it is not proven that pods get the GPUs" in shown


def test_gpu_in_use_is_reported_as_not_run(applied: ApiServer, user: User) -> None:
    training = {"containers": [{"name": "one", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "training", "namespace": "default"}}
    applied.add({**body, "spec": {**training, "nodeName": "gpu-1"}, "status": {"phase": "Running"}})
    pods_with(applied, unscheduled_pod("0/1 nodes are available: 1 Insufficient nvidia.com/gpu."))
    status, detail = user.verify()["pod/gpu-1"]
    assert status == "skipped"
    assert "in use, by default/training" in detail


@pytest.mark.parametrize("seconds", ["2", "300"])
def test_image_that_cannot_be_pulled_fails_without_waiting_for_timeout(
    applied: ApiServer, user: User, seconds: str
) -> None:
    """If the kubelet says why a pod does not start, gpunode stops waiting for it."""
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "pull access denied"}}
    containers = [{"name": "vectoradd", "image": "x", "ready": False, "state": waiting}]
    pods_with(applied, {"phase": "Pending", "containerStatuses": containers}, {"nodeName": "gpu-1"})
    status, detail = user.verify("k8s-containerd", "--timeout", seconds, check=7)["pod/gpu-1"]
    assert status == "failed"
    assert "pull access denied" in detail
    assert user.skipped_s < 60


def test_pods_that_share_a_gpu_must_run_at_the_same_time(applied: ApiServer, user: User) -> None:
    status = applied.peek("Node")[0]["status"]
    status["allocatable"]["nvidia.com/gpu"] = status["capacity"]["nvidia.com/gpu"] = "4"
    ended = {"terminated": {"exitCode": 0, "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:10Z"}}
    containers = [{"name": "vectoradd", "image": "x", "ready": False, "state": ended}]
    done = {"phase": "Succeeded", "containerStatuses": containers}
    user.kubectl.pod_log = f"GPU 0: NVIDIA GeForce GTX 1080 (UUID: GPU-5c6d0a4e-0000-0000-0000-000000000000)\n{PASSED}"
    applied.controllers.remove(run_test_pods)

    def end_later(words: tuple[str, ...]) -> FinishedCommand | None:
        if user.skipped_s > 3:
            for one in applied.peek("Pod"):
                one["status"] = done
        return None

    user.kubectl.intercept = end_later
    result, detail = user.verify("k8s-time-slicing")["sharing/gpu-1"]
    assert result == "passed"
    assert "for 9 s at the same time" in detail
    assert left_pods(applied) == []


def test_crashing_plugin_is_explained_by_its_log(applied: ApiServer, user: User) -> None:
    (plugin,) = applied.peek("DaemonSet")
    applied.controllers.clear()
    plugin["status"]["numberReady"] = 0
    state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}}
    pod = pod_of(plugin, "gpu-1", "Running", state)
    pod["status"]["containerStatuses"][0]["restartCount"] = 3
    applied.add(pod)
    user.kubectl.pod_log = "Detected non-NVML platform: could not load NVML library: libnvidia-ml.so.1: cannot open\n"
    detail = user.verify("k8s-containerd", "--timeout", "1", check=7)["workload/gpu-system"][1]
    assert detail.startswith("0 of 1 pods are ready")
    assert "device-plugin-library-not-found" in detail


def test_pod_crash_with_one_known_cause_names_it(applied: ApiServer, user: User) -> None:
    user.kubectl.pod_log = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 595.91\n"
    pods_with(applied, {"phase": "Failed"})
    assert "gpunode doctor" in user.verify(check=7)["pod/gpu-1"][1]


def test_pod_that_never_ran_gets_no_causes_from_our_own_words(applied: ApiServer, user: User) -> None:
    message = "0/1 nodes are available: 1 cannot allocate all claims."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    pods_with(applied, {"phase": "Pending", "conditions": [condition]})
    detail = user.verify("k8s-containerd", "--timeout", "1", check=7)["pod/gpu-1"][1]
    assert detail.endswith("no node has a free GPU for its claim")


def test_verify_of_a_kind_cluster_checks_its_workers(applied: ApiServer, user: User) -> None:
    user.kubectl.context = "kind-kind"
    applied.add(node("kind-worker"))
    assert "node/kind-worker" in user.verify("kind", check=7)


def test_kubelet_settings_are_checked_where_configz_is_readable(applied: ApiServer, user: User) -> None:
    settings = {"kubeletconfig": {"cpuManagerPolicy": "none", "cgroupDriver": "systemd"}}
    user.kubectl.raw["/api/v1/nodes/gpu-1/proxy/configz"] = json.dumps(settings)
    assert user.verify()["kubelet/gpu-1"][0] == "passed"


def test_node_not_ready_or_without_gpus_gets_no_test_pod(applied: ApiServer, user: User) -> None:
    (there,) = applied.peek("Node")
    there["status"]["allocatable"] = {}
    assert user.verify(check=7)["pod/gpu-1"] == ("skipped", "the Node offers no nvidia.com/gpu")
    there["status"]["conditions"] = []
    assert user.verify(check=7)["pod/gpu-1"] == ("skipped", "the Node does not exist, or is not ready")


def test_forbidden_lookups_are_not_run_and_an_unreachable_server_ends_it(applied: ApiServer, user: User) -> None:
    applied.denied |= {"get runtimeclasses", "list daemonsets", "list resourceslices"}
    found = user.verify()
    assert found["runtime-class"][0] == found["workloads"][0] == "skipped"
    assert verify_recipe("dra", user)["resource-slices"].status == "skipped"
    unreachable = ended(status=1, err=b"Unable to connect to the server: dial tcp 10.0.0.1:6443: i/o timeout\n")
    user.kubectl.intercept = lambda words: unreachable if "daemonsets.apps" in words else None
    words = ("k8s", "verify", "k8s-containerd", "--node", "gpu-1=debian12-gtx1080")
    assert user(*words, check=13).error["what"] == "the cluster does not answer"


def verified(recipe: Recipe, nodes: tuple[ClusterNode, ...]) -> VerifyReport:
    never: Any = lambda *_: None  # noqa: E731
    return ClusterVerification(Cluster(), recipe, nodes, "", 1, command("apply"), never, never, never).run()


def verify_recipe(recipe: str, user: User, on: str = "eight") -> dict[str, Check]:
    """Return the checks of a recipe for nodes without a shipped sample, by the first part of their ids."""
    nodes = CLUSTERS[on]
    for one in nodes:
        user.server.add(node(one.name))
    report = verified(builtin.read_recipe(recipe), nodes)
    return {one.id.partition("/")[0]: one for one in report.checks}


def test_dra_recipe_checks_resource_slices(applied: ApiServer, user: User) -> None:
    assert verify_recipe("dra", user)["resource-slices"].status == "failed"


def test_node_whose_capture_shows_no_gpu_is_not_run(applied: ApiServer, user: User) -> None:
    (one,) = CLUSTERS["one"]
    report = verified(builtin.read_recipe("k8s-containerd"), (one, replace(one, name="cpu-1", gpus=())))
    (found,) = (check for check in report.checks if check.id == "gpus/cpu-1")
    assert (found.status, found.detail) == ("skipped", "no NVIDIA GPU is in its capture")


def test_mig_without_a_layout_has_no_resource_to_request(applied: ApiServer, user: User) -> None:
    without = builtin.read_recipe("k8s-mig")
    assert without.kubernetes is not None
    mig = replace(without.kubernetes.mig, layout="")
    nodes = CLUSTERS["eight"]
    applied.add(node(nodes[0].name))
    recipe = replace(without, kubernetes=replace(without.kubernetes, mig=mig))
    report = verified(recipe, nodes)
    assert "does not say which MIG resource" in {one.id: one.detail for one in report.checks}["pod/gpu-01"]


def test_runtime_class_hint_is_the_same_on_all_nodes_of_the_operator(applied: ApiServer, user: User) -> None:
    """Its plugin uses CDI devices on every node or on none."""
    applied.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpu-operator"}})
    applied.add(node("gpu-2"))
    nodes = tuple(replace(CLUSTERS["one"][0], name=f"gpu-{n}", reads_cdi=n == 1) for n in (1, 2))
    report = verified(builtin.read_recipe("gpu-operator"), nodes)
    said = [one.detail for one in report.checks if one.id.startswith("pod/")]
    assert ["runtimeClassName: nvidia" in one for one in said] == [True, True], said


def test_unanswered_creation_deletes_the_test_pods(applied: ApiServer, user: User) -> None:
    unreachable = ended(status=1, err=b"Unable to connect to the server: dial tcp 10.0.0.1:6443: i/o timeout\n")
    created: list[int] = []

    def fail_second(words: tuple[str, ...]) -> FinishedCommand | None:
        created.extend([1] if words[0] == "create" else [])
        return unreachable if words[0] == "create" and len(created) == 2 else None

    user.kubectl.intercept = fail_second
    words = ("k8s", "verify", "k8s-containerd", "--node", "gpu-1=debian12-gtx1080")
    assert user(*words, check=13).error["what"] == "the cluster does not answer"
    assert left_pods(applied) == []


def keep_pods(server: ApiServer) -> None:
    """Keep deleted pods, as a finalizer that nobody removes."""
    for one in server.peek("Pod"):
        one["metadata"]["finalizers"] = ["example.org/keep"]


def test_signal_deletes_the_pods_and_waits_for_none(applied: ApiServer, user: User) -> None:
    def interrupt(words: tuple[str, ...]) -> None:
        if words[:2] == ("get", "pods") and applied.peek("Job"):
            raise Interrupted("stopped by a signal", why="", hint="")

    applied.controllers.append(keep_pods)
    user.kubectl.intercept = interrupt
    error = user("k8s", "verify", "k8s-containerd", "--node", "gpu-1=debian12-gtx1080", check=130).error
    assert error["what"] == "stopped by a signal"
    assert all("deletionTimestamp" in one["metadata"] for one in applied.peek("Pod"))


def test_signal_ends_the_wait_for_the_deletion(applied: ApiServer, user: User) -> None:
    def interrupt(words: tuple[str, ...]) -> None:
        if any("deletionTimestamp" in one["metadata"] for one in applied.peek("Pod")):
            signal.raise_signal(signal.SIGTERM)  # SIGINT is ignored below a shell's background job

    applied.controllers.append(keep_pods)
    user.kubectl.intercept = interrupt
    error = user("k8s", "verify", "k8s-containerd", "--node", "gpu-1=debian12-gtx1080", check=143).error
    assert error["why"] == "the pods of the test are being deleted"


def test_pod_that_stays_is_named_and_its_deletion_not_asked_for_again(applied: ApiServer, user: User) -> None:
    applied.controllers.append(keep_pods)
    error = user("k8s", "verify", "k8s-containerd", "--node", "gpu-1=debian12-gtx1080", check=6).error
    assert error["what"].startswith("Pod gpu-system/gpunode-test-")
    assert error["what"].endswith("is still being deleted")
    assert error["why"] == "the finalizer example.org/keep is on it"
    assert error["hint"].startswith("see what keeps it: kubectl get pod --namespace gpu-system gpunode-test-")
