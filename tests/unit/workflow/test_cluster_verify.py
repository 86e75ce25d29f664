"""What ``k8s verify`` makes of a cluster, and that its pods are gone afterwards."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gpunode.host.process import Finished
from tests.fakes.api_server import ApiServer
from tests.fakes.clusters import NAMESPACE, User, run_test_pods

PASSED = "[Vector addition of 50000 elements]\nTest PASSED\nDone\n"


@pytest.fixture
def applied(server: ApiServer, user: User) -> ApiServer:
    """A cluster in which the recipe was applied, and test pods run and pass."""
    user.apply()
    server.controllers.append(run_test_pods)
    user.kubectl.pod_log = PASSED
    return server


def left_pods(server: ApiServer) -> list[str]:
    return [one["metadata"]["name"] for kind in ("Pod", "Job") for one in server.peek(kind)]


def left_by_killed_run(name: str, age_s: float, **labels: str) -> dict[str, Any]:
    """A pod of a check that nobody deleted, created so many seconds ago."""
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - age_s))
    whole = {"app.kubernetes.io/managed-by": "gpunode", "gpunode-test": "bcdfg", **labels}
    metadata = {"name": name, "namespace": NAMESPACE, "labels": whole, "creationTimestamp": created}
    spec = {"activeDeadlineSeconds": 300, "containers": [{"name": "vectoradd", "image": "x"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def test_pod_that_computed_proves_the_node_and_is_gone(applied: ApiServer, user: User) -> None:
    found = user.verify()
    assert {status for status, _ in found.values()} == {"passed", "not run"}
    assert found["pod/gpu-1"][0] == "passed"
    assert "Test PASSED" in found["pod/gpu-1"][1]
    assert found["kubelet/gpu-1"][0] == "not run"
    assert left_pods(applied) == []


def test_job_ends_the_pods_of_a_run_that_is_killed(applied: ApiServer, user: User) -> None:
    """A pod that no node has room for never starts, so its own limit would never begin."""
    seen: dict[str, Any] = {}

    def look(words: tuple[str, ...]) -> Finished | None:
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


def test_without_the_job_no_pod_is_created(applied: ApiServer, user: User) -> None:
    applied.denied.add("create jobs")
    status, detail = user.verify()["pod/gpu-1"]
    assert status == "not run"
    assert "your credentials may not create jobs in gpu-system" in detail
    assert left_pods(applied) == []


@pytest.mark.parametrize("verb", ["verify", "remove"])
def test_pods_that_a_killed_run_left_are_deleted(applied: ApiServer, user: User, verb: str) -> None:
    applied.add(left_by_killed_run("gpunode-test-old", 400))
    applied.add(left_by_killed_run("gpunode-test-new", 380))
    applied.add(left_by_killed_run("theirs", 4000, **{"app.kubernetes.io/managed-by": "them"}))
    if verb == "verify":
        assert user.verify()["leftovers"] == ("passed", "deleted what a run that was killed left: Pod gpunode-test-old")
    else:
        removed = user("k8s", "remove", "--yes")
        assert removed.states["Pod gpunode-test-old"] == "delete"
        assert removed.states["Namespace gpu-system"] == "foreign"
        user("rollback", "k2", "--yes")
    assert left_pods(applied) == ["gpunode-test-new", "theirs"]


def test_pods_that_cannot_be_deleted_are_told_with_the_command(applied: ApiServer, user: User) -> None:
    applied.denied.add("delete pods")
    error = user("k8s", "verify", "k8s-containerd", "--node", "gpu-1=debian12-gtx1080", check=6).error
    assert error["what"] == "the pods of the test were not deleted"
    assert "kubectl delete pods,jobs --namespace gpu-system --selector gpunode-test=" in error["hint"]
