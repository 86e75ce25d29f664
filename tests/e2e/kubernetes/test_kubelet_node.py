"""From a machine with containerd to a pod that computes on its GPU, with every failure, and removal."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.kubernetes.cluster import GPU, NAMESPACE, RECIPE, RENDERED, WAITS, Cluster
from tests.e2e.kubernetes.faults import DEVICES, FAULTS, Fault, Joined, configured, told
from tests.e2e.kubernetes.kubelet_node import KUBECONFIG, NAME
from tests.e2e.lab.snapshot import snapshot
from tests.e2e.lab.toolkit import CALLS
from tests.e2e.machine.scenario import CONTAINERD, CONTAINERD_CONFIG, ask, setup_ok

pytestmark = pytest.mark.e2e

TEXTS: Final = Path(__file__).parents[2] / "unit/kubernetes/texts"
# A kubelet retries a pod's sandbox after 12 to 15 s.
MENDED_S: Final = 30


def test_pod_computes_through_the_handler(cluster: Cluster) -> None:
    calls = len(cluster.node.read(CALLS).splitlines())

    assert cluster.create("computes").returncode == 0
    cluster.await_phase("computes", "Succeeded")

    assert "Test PASSED" in cluster.plane.kubectl("logs", "computes")
    fresh = cluster.node.read(CALLS).splitlines()[calls:]
    # The sandbox and the container.
    assert len([call for call in fresh if " create " in call]) == 2
    cluster.delete("computes")


def test_kubelet_registered_its_node_with_the_labels_of_the_recipe(cluster: Cluster) -> None:
    """setup wrote them before the node joined, so apply has nothing to label."""
    told = cluster.plane.kubectl("get", "node", NAME, "--output=json", "--show-managed-fields")
    metadata = json.loads(told)["metadata"]
    labels = {"example.org/team": "a", "nvidia.com/gpu.present": "true"}
    assert labels.items() <= metadata["labels"].items()
    owners = {one["manager"] for one in metadata["managedFields"] if "f:example.org/team" in json.dumps(one)}
    assert owners == {"kubelet"}


# By a suite's containerd: 1.6 has no CDI for pods, in 1.7 gpunode enables it, in 2.1 it is enabled.
BY_CDI: Final = frozenset({"trixie", "sid"})


def test_user_pod_computes_with_the_suggested_spec(joined: Joined, cluster: Cluster) -> None:
    (own,) = cluster.gpunode("plan", RECIPE).result["example_pods"]
    assert ("runtimeClassName" in own["spec"]) is (joined.suite not in BY_CDI)

    said = cluster.computes("own", runtimeClassName=own["spec"].get("runtimeClassName"))

    assert said == ("CDI" if joined.suite in BY_CDI else "NVIDIA's runtime")


def test_pod_with_only_limits_computes_where_the_runtime_reads_cdi(joined: Joined, cluster: Cluster) -> None:
    assert cluster.computes("plain", runtimeClassName=None) == ("CDI" if joined.suite in BY_CDI else "")


def test_pod_with_the_runtime_class_gets_its_gpu_once(joined: Joined, cluster: Cluster) -> None:
    """NVIDIA's runtime adds nothing to what CDI gave."""
    assert cluster.computes("classy") == ("CDI" if joined.suite in BY_CDI else "NVIDIA's runtime")


def test_only_the_runtime_class_gives_a_gpu_without_cdi(joined: Joined, cluster: Cluster) -> None:
    """A node has no CDI before gpunode enables it, and some nodes of mixed clusters never have it."""
    if joined.suite not in BY_CDI:
        pytest.skip("containerd 1.6 has no CDI for pods: see above")
    config = cluster.node.read(CONTAINERD_CONFIG)
    # Also with sid's programs: gpunode goes by the version of the packages, which are Debian 13's.
    line = re.compile(r"^ *enable_cdi = true\n", re.MULTILINE)
    assert line.search(config), config
    with configured(joined, line.sub("", config)):
        # containerd 2 enables it by default.
        assert cluster.computes("plain", runtimeClassName=None) == ("CDI" if joined.suite == "sid" else "")
    off = config.replace("enable_cdi = true", "enable_cdi = false")
    cluster.node.run("gpunode", "capture", "/root/before.tar.gz")
    with configured(joined, off):
        assert cluster.computes("plain", runtimeClassName=None) == ""
        assert cluster.computes("classy") == "NVIDIA's runtime"
        # gpunode sees the new state; verify finds that the recorded state is no longer true.
        assert cluster.gpunode("plan", RECIPE).result["example_pods"][0]["spec"]["runtimeClassName"] == "nvidia"
        failed = cluster.failed_checks(f"--node={NAME}=/root/before.tar.gz")
        assert "neither CDI nor the default runtime gave its container the driver" in failed
    cluster.node.path("/root/before.tar.gz").unlink()


def test_rendered_test_pod_computes(cluster: Cluster) -> None:
    cluster.node.run("kubectl", "create", "-f", f"{RENDERED}/test-pod.yaml", env={"KUBECONFIG": KUBECONFIG})
    pod = (f"--namespace={NAMESPACE}", "--timeout=60s")
    cluster.plane.kubectl("wait", "pod/gpunode-test", "--for=jsonpath={.status.phase}=Succeeded", *pod)
    assert "Test PASSED" in cluster.plane.kubectl("logs", "gpunode-test", f"--namespace={NAMESPACE}")
    cluster.plane.kubectl("delete", "pod", "gpunode-test", *pod)


def test_verify_computes_in_a_pod_on_the_node(joined: Joined, cluster: Cluster) -> None:
    done = cluster.gpunode("verify", RECIPE)
    assert done.exit_code == 0, done.result
    assert {check["status"] for check in done.result["checks"]} <= {"passed", "skipped"}
    (pod,) = (check["detail"] for check in done.result["checks"] if check["id"].startswith("pod/"))
    # Its proof for the user's own pods.
    told = "alone" if joined.suite in BY_CDI else "runtimeClassName: nvidia"
    assert f"{GPU} {told}" in pod or f"{GPU}, {told}" in pod, pod


def test_second_apply_changes_nothing(cluster: Cluster) -> None:
    assert cluster.gpunode("plan", RECIPE, "--check").exit_code == 0
    again = cluster.gpunode("apply", RECIPE, "--yes")
    assert (again.exit_code, again.envelope["changed"]) == (0, False)


def test_second_setup_beside_the_kubelet_changes_nothing(cluster: Cluster) -> None:
    before = cluster.node.fingerprint("/etc", "/var/lib/gpunode")
    assert setup_ok(cluster.node, "kubernetes").envelope["changed"] is False
    assert cluster.node.fingerprint("/etc", "/var/lib/gpunode") == before


@pytest.mark.parametrize("fault", [pytest.param(one, id=one.id) for one in FAULTS])
def test_kubectl_shows_what_keeps_a_pod_from_computing(joined: Joined, cluster: Cluster, fault: Fault) -> None:
    if joined.suite not in fault.suites:
        pytest.skip(f"containerd of {joined.suite} cannot be brought to it")
    with ExitStack() as stack:
        stack.callback(cluster.delete, fault.id)
        with fault.provoke(joined):
            assert cluster.create(fault.id, **fault.pod).returncode == 0
            cluster.plane.wait_for(f"the word of {fault.id}", lambda: bool(told(cluster, fault)))
            joined.texts[fault.id] = cluster.observe(fault.id)
            assert re.search(fault.tells, told(cluster, fault))
            if fault.named and not (fault.is_of_class_alone and joined.suite in BY_CDI):
                failed = cluster.failed_checks()
                assert re.search(fault.named, failed), failed
        if fault.heals:
            cluster.await_phase(fault.id, "Succeeded", MENDED_S)


def test_pod_with_a_missing_runtime_class_is_refused(joined: Joined, cluster: Cluster) -> None:
    refused = cluster.create("classless", runtimeClassName="absent")

    assert refused.returncode == 1
    assert 'pod rejected: RuntimeClass "absent" not found' in refused.stderr
    joined.texts["runtime-class-missing"] = {"stderr": refused.stderr}


def test_mismatched_cgroup_driver_runs_pods_and_is_found_by_plan(joined: Joined, cluster: Cluster) -> None:
    config = cluster.node.read(CONTAINERD_CONFIG)
    assert "SystemdCgroup = true" in config
    with configured(joined, config.replace("SystemdCgroup = true", "SystemdCgroup = false")):
        assert cluster.create("silent").returncode == 0
        cluster.await_phase("silent", "Succeeded")
        assert ask(cluster.node, "plan", RECIPE, "--check").exit_code == 4
    cluster.delete("silent")


@pytest.fixture
def steady(cluster: Cluster) -> Iterator[str]:
    """Yield a pod that computes all the time."""
    assert cluster.create("steady", image=WAITS, restartPolicy="Always").returncode == 0
    cluster.await_phase("steady", "Running")
    yield str(cluster.container("steady")["containerID"])
    cluster.delete("steady")


def restart_containerd(cluster: Cluster) -> None:
    cluster.node.run("systemctl", "restart", CONTAINERD)


@pytest.mark.parametrize("restart", [Cluster.restart_kubelet, restart_containerd])
def test_daemon_restart_takes_no_gpu_from_a_pod(
    cluster: Cluster, steady: str, restart: Callable[[Cluster], None]
) -> None:
    restart(cluster)

    # A new pod gets the other GPU.
    assert cluster.create("after").returncode == 0
    cluster.await_phase("after", "Succeeded")
    assert cluster.container("steady")["containerID"] == steady
    assert cluster.container("steady")["ready"]
    cluster.await_gpus(DEVICES)
    cluster.delete("after")


def test_pods_with_gpus_fail_admission_after_a_reboot(joined: Joined, cluster: Cluster, steady: str) -> None:
    before = cluster.plane.get("node", NAME)["status"]["nodeInfo"]["bootID"]

    cluster.node.reboot()

    cluster.plane.wait_for(
        "the cluster knows", lambda: cluster.plane.get("node", NAME)["status"]["nodeInfo"]["bootID"] != before
    )
    cluster.await_gpus(DEVICES)
    # The kubelet rejected the pod before the plugin existed. Its owner would have to create another.
    cluster.await_phase("steady", "Failed")
    joined.texts["node-rebooted"] = cluster.observe("steady")
    assert cluster.status("steady")["reason"] == "UnexpectedAdmissionError"
    assert cluster.create("after").returncode == 0
    cluster.await_phase("after", "Succeeded")
    cluster.delete("after")


def test_recorded_texts_cover_the_observed_faults(joined: Joined) -> None:
    """With GPUNODE_WRITE_TEXTS=1 this writes the texts of the faults caused before."""
    version = joined.cluster.node.run("containerd", "--version").stdout
    found = re.search(r"\b\d+\.\d+", version)
    assert found
    path = TEXTS / f"containerd-{found[0]}.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    if os.environ.get("GPUNODE_WRITE_TEXTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({**kept, **joined.texts}, indent=1) + "\n")
    else:
        assert joined.texts.keys() <= kept.keys()


def test_remove_restores_the_node_and_the_cluster(joined: Joined, cluster: Cluster) -> None:
    """This test runs last: afterwards nothing offers a GPU."""
    node = cluster.node
    gone = cluster.gpunode("remove", "--yes")
    assert gone.exit_code == 0, gone.error
    for what in ("namespace/gpu-system", "runtimeclass/nvidia"):
        assert "NotFound" in cluster.plane.finish("get", what).stderr
    cluster.plane.wait_for("nothing offers GPUs", lambda: cluster.resources("allocatable") == 0)

    back = ask(node, "rollback", "--yes")

    assert back.exit_code == 0, back.error
    assert node.read(CONTAINERD_CONFIG) == joined.stock
    cluster.await_ready()
    removed = ask(node, "remove", "--yes")
    assert removed.exit_code == 10, removed.error
    assert joined.before.differences(snapshot(node)) == ""
