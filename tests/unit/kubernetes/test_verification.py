"""k8s verify's decisions: a cluster's state → checks, and the pods that test its GPUs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpunode import builtin
from gpunode.check import Check
from gpunode.command import command
from gpunode.kubernetes.gpu_test_pods import (
    GpuTestPod,
    GpuTestPodResult,
    check_sharing,
    check_test_pod,
    find_resource_users,
    make_test_pods,
)
from gpunode.kubernetes.live_checks import (
    check_daemon_set,
    check_handlers,
    check_kubelet,
    check_node,
    check_published_slices,
    check_resources,
    find_required_daemon_sets,
)
from gpunode.kubernetes.model import ClusterNode
from gpunode.kubernetes.pods import find_problem, find_refused_pods, find_untolerated_taint
from gpunode.kubernetes.render import render_cluster
from gpunode.kubernetes.sharing import SharingConfig, choose_configs
from gpunode.recipe.kubernetes import Kubernetes, Taint
from tests.unit.kubernetes.clusters import node

GPU = "nvidia.com/gpu"
APPLY = command("gpunode", "k8s", "apply")
EIGHT = node("gpu-1", "2330", 8)


def live(capacity: int = 8, allocatable: int | None = None, resource: str = GPU, **status: Any) -> dict[str, Any]:
    """Return a Node in the API server's form."""
    given = capacity if allocatable is None else allocatable
    offers = {"capacity": {resource: str(capacity)}, "allocatable": {resource: str(given)}}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    metadata = {"name": "gpu-1", "labels": {"kubernetes.io/hostname": "host-1"}}
    return {"kind": "Node", "metadata": metadata, "spec": {}, "status": {**offers, **ready, **status}}


def only_check(checks: Sequence[Check]) -> Check:
    (one,) = checks
    return one


# The Node and its container runtime.


@pytest.mark.parametrize(
    ("reason", "message", "hint"),
    [
        ("KubeletNotReady", "container runtime is down", "systemctl status containerd"),
        ("NodeStatusUnknown", "Kubelet stopped posting node status.", "systemctl status kubelet"),
        (
            "KubeletNotReady",
            "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady",
            "network plugin",
        ),
    ],
)
def test_node_that_is_not_ready_fails_with_the_reason(reason: str, message: str, hint: str) -> None:
    (edit,) = render_cluster(builtin.read_recipe("k8s-containerd"), [EIGHT]).nodes
    body = live(conditions=[{"type": "Ready", "status": "Unknown", "reason": reason, "message": message}])

    found = check_node(edit, body, APPLY)

    assert (found.status, message in found.detail, hint in found.hint) == ("failed", True, True)


def test_missing_node_or_label_fails() -> None:
    (edit,) = render_cluster(builtin.read_recipe("hami"), [EIGHT]).nodes

    assert "gpu=on" in check_node(edit, live(), APPLY).detail
    assert "no such Node" in check_node(edit, None, APPLY).detail


@pytest.mark.parametrize(
    ("message", "info", "hint"),
    [
        ("container runtime is down", {"containerRuntimeVersion": "cri-o://1.36.0"}, "systemctl status crio"),
        ("container runtime is down", {"kubeletVersion": "v1.36.2"}, "systemctl status containerd"),
        ("container runtime is down", {"kubeletVersion": "v1.36.2+rke2r1"}, "systemctl status 'rke2*'"),
        ("NodeStatusUnknown", {"kubeletVersion": "v1.36.2+k3s1"}, "systemctl status 'k3s*'"),
        ("NodeStatusUnknown", {}, "systemctl status kubelet"),
        ("unknown", {}, "kubectl describe node gpu-1"),
    ],
)
def test_hint_for_a_node_that_is_not_ready_names_its_own_units(message: str, info: dict[str, str], hint: str) -> None:
    (edit,) = render_cluster(builtin.read_recipe("k8s-containerd"), [EIGHT]).nodes
    condition = {"type": "Ready", "status": "False", "message": message}
    found = check_node(edit, live(conditions=[condition], nodeInfo=info), APPLY)
    assert found.hint.endswith(hint)


@pytest.mark.parametrize(
    ("handlers", "status"),
    [(["", "nvidia", "runc"], "passed"), (["", "runc"], "failed"), ([], "skipped")],
)
def test_runtime_handler_is_found_missing_or_not_checked(handlers: Sequence[str], status: str) -> None:
    body = live(runtimeHandlers=[{"name": name} for name in handlers])

    *_, found = check_handlers("nvidia", {"handler": "nvidia"}, {"gpu-1": body}, lambda: None, APPLY)

    assert found.status == status


@pytest.mark.parametrize(
    ("runtime", "recipe"),
    [("containerd://2.1.9", "k8s-containerd"), ("cri-o://1.36.0", "crio"), ("", "k8s-containerd")],
)
def test_missing_handler_is_added_to_the_nodes_own_runtime(runtime: str, recipe: str) -> None:
    body = live(runtimeHandlers=[{"name": "runc"}], nodeInfo={"containerRuntimeVersion": runtime})
    *_, found = check_handlers("nvidia", {"handler": "nvidia"}, {"gpu-1": body}, lambda: None, APPLY)
    assert found.hint == f"on gpu-1: sudo gpunode setup {recipe}"


def test_runtime_handler_of_this_machine_is_checked_locally() -> None:
    own = Check("runtime", "containerd reads the runtime nvidia", "failed", "it knows: runc")

    *_, found = check_handlers("nvidia", {"handler": "nvidia"}, {"gpu-1": live()}, lambda: own, APPLY)

    assert (found.id, found.status, found.detail) == ("handler/gpu-1", "failed", "it knows: runc")


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ('pods "x-" is forbidden: violates PodSecurity "baseline:latest": hostPath volumes', "policy or quota"),
        ('pods "x-" is forbidden: pod rejected: RuntimeClass "nvidia" not found', "gpunode k8s plan"),
    ],
)
def test_refusal_of_a_daemon_sets_pods_is_told_with_what_helps(message: str, hint: str) -> None:
    owner = {"kind": "DaemonSet", "metadata": {"namespace": "gpu-system", "name": "x", "uid": "1"}}
    event = {"type": "Warning", "reason": "FailedCreate", "message": f"Error creating: {message}"}
    about = {**event, "involvedObject": {"name": "x", "uid": "1"}}
    found = find_refused_pods(owner, [about])
    assert found
    assert found.why == f"the cluster refuses its pods: {message}"
    assert hint in found.hint
    others = ({"involvedObject": {"name": "x", "uid": "0"}}, {"type": "Normal"}, {"reason": "FailedPlacement"})
    assert find_refused_pods(owner, [{**about, **other} for other in others]) is None


# What is offered.


@pytest.mark.parametrize(
    ("capacity", "allocatable", "status", "said"),
    [
        (8, 8, "passed", "8 offered, as expected"),
        (8, 7, "failed", "1 of 8 are reported as unhealthy"),
        (8, 0, "failed", "the device plugin is gone"),
        (0, 0, "failed", "no device plugin has registered"),
        (4, 4, "failed", "4 offered, 8 expected of 8 GPUs"),
        (9, 9, "failed", "9 offered, 8 expected of 8 GPUs"),
    ],
)
def test_offered_gpus_are_compared_with_the_machine(capacity: int, allocatable: int, status: str, said: str) -> None:
    found = only_check([*check_resources(EIGHT, live(capacity, allocatable), {GPU: 8}, APPLY)])

    assert found.status == status
    assert said in found.detail


def test_node_that_offers_other_resources_has_a_device_plugin() -> None:
    """Whole GPUs are offered until `gpunode setup` makes the MIG layout."""
    found = only_check([*check_resources(EIGHT, live(8), {"nvidia.com/mig-1g.10gb": 16}, APPLY)])
    assert found.detail == "0 offered, 16 expected of 8 GPUs; it offers 8 × nvidia.com/gpu"
    assert "delete its pod" in found.hint
    assert "kubectl get pods --all-namespaces --field-selector spec.nodeName=" in found.hint
    assert "k8s plan" in found.hint


def test_resources_without_a_mig_layout_are_not_run() -> None:
    assert only_check([*check_resources(EIGHT, live(), None, APPLY)]).status == "skipped"


@pytest.mark.parametrize(
    ("published", "status"),
    [(8, "passed"), (7, "failed"), (0, "failed")],
)
@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_resource_slices_are_counted(published: int, status: str, version: str) -> None:
    attributes = {"attributes": {"type": {"string": "gpu"}}}
    device = {"name": "gpu", **(attributes if version == "v1" else {"basic": attributes})}
    spec = {"driver": "gpu.nvidia.com", "nodeName": "gpu-1", "devices": [device] * published}
    elsewhere = {"driver": "gpu.nvidia.com", "nodeName": "gpu-2", "devices": [device] * 8}

    assert check_published_slices(EIGHT, [{"spec": spec}, {"spec": elsewhere}]).status == status


# The kubelet.


@pytest.mark.parametrize(
    ("settings", "wanted", "status"),
    [
        ({"topologyManagerPolicy": "single-numa-node"}, Kubernetes(stack="device-plugin"), "passed"),
        ({"cpuManagerPolicy": "static"}, Kubernetes(stack="device-plugin"), "failed"),
        ({"cpuManagerPolicy": "static"}, Kubernetes(stack="gpu-operator"), "passed"),
        ({"registerWithTaints": [{"key": GPU, "effect": "NoSchedule"}]}, Kubernetes(), "passed"),
        ({"registerWithTaints": [{"key": "team", "value": "a", "effect": "NoSchedule"}]}, Kubernetes(), "failed"),
        (
            {"registerWithTaints": [{"key": GPU, "value": "yes", "effect": "NoSchedule"}]},
            Kubernetes(taint=Taint(GPU, "present")),
            "failed",
        ),
    ],
)
def test_kubelet_settings_are_checked(settings: Mapping[str, Any], wanted: Kubernetes, status: str) -> None:
    taints = settings.get("registerWithTaints", ())
    assert check_kubelet("gpu-1", settings, wanted, taints, passes_devices=False).status == status
    if taints:  # Startup taints that an agent has removed by now keep no pod away.
        assert check_kubelet("gpu-1", settings, wanted, (), passes_devices=False).status == "passed"
    if "cpuManagerPolicy" in settings:
        assert check_kubelet("gpu-1", settings, wanted, taints, passes_devices=True).status == "passed"


def test_prefer_no_schedule_taint_is_no_kubelet_fault() -> None:
    taint = {"key": "team", "value": "x", "effect": "PreferNoSchedule"}
    settings = {"registerWithTaints": [taint]}
    assert check_kubelet("gpu-1", settings, Kubernetes(), [taint], passes_devices=False).status == "passed"


# Workloads.


def daemon_set(
    name: str, image: str, desired: int = 1, ready: int = 1, release: str = "", manager: str = "Helm"
) -> Any:
    notes = {"meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": "gpu-system"} if release else {}
    metadata = {
        "name": name,
        "namespace": "gpu-system",
        "annotations": notes,
        "labels": {"app.kubernetes.io/managed-by": manager},
    }
    template = {"spec": {"containers": [{"image": image}]}}
    status = {"desiredNumberScheduled": desired, "numberReady": ready, "updatedNumberScheduled": ready}
    return {"metadata": metadata, "spec": {"template": template}, "status": status}


PLUGIN = "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"


def states(recipe: str, daemon_sets: Sequence[Any]) -> Mapping[str, str]:
    found = find_required_daemon_sets(render_cluster(builtin.read_recipe(recipe), [EIGHT]), daemon_sets)
    return {one.title: check_daemon_set(one, APPLY).status for one in found}


def test_only_required_workloads_of_a_release_must_run() -> None:
    made = [
        daemon_set("nvidia-device-plugin", PLUGIN, release="nvidia-device-plugin"),
        daemon_set("nvidia-device-plugin-mps-control-daemon", PLUGIN, 0, 0, release="nvidia-device-plugin"),
        daemon_set("other", PLUGIN, release="somebody-elses"),
    ]

    assert states("k8s-mps", made) == {
        "DaemonSet nvidia-device-plugin": "passed",
        "DaemonSet nvidia-device-plugin-mps-control-daemon": "skipped",
    }
    made[0] = daemon_set("nvidia-device-plugin", PLUGIN, 0, 0, release="nvidia-device-plugin")
    assert states("k8s-mps", made)["DaemonSet nvidia-device-plugin"] == "failed"
    assert states("k8s-mps", made[1:])["Helm release gpu-system/nvidia-device-plugin"] == "failed"


def test_release_under_another_name_is_found_by_its_chart() -> None:
    one = daemon_set("nvdp-nvidia-device-plugin", PLUGIN, release="nvdp")
    one["metadata"]["labels"] = {"helm.sh/chart": "nvidia-device-plugin-0.19.1"}
    discovery = daemon_set("nvdp-node-feature-discovery-worker", "registry.k8s.io/nfd/nfd:v1", release="nvdp")

    assert states("k8s-mps", [one, discovery]) == {
        "DaemonSet nvdp-nvidia-device-plugin": "passed",
        "DaemonSet nvdp-node-feature-discovery-worker": "passed",
    }


def test_operator_made_workloads_belong_to_its_release() -> None:
    made = [daemon_set("nvidia-device-plugin-daemonset", PLUGIN, manager="gpu-operator")]

    assert states("gpu-operator", made)["DaemonSet nvidia-device-plugin-daemonset"] == "passed"
    assert states("gpu-operator", [])["Helm release gpu-operator/gpu-operator"] == "failed"


def test_daemon_set_of_an_older_generation_is_not_ready() -> None:
    old = daemon_set("nvidia-device-plugin", PLUGIN)
    old["metadata"]["generation"] = 2

    assert states("k8s-containerd", [old]) == {"DaemonSet nvidia-device-plugin": "failed"}


# The test pods.


def made_for(recipe: str, one: ClusterNode, body: Mapping[str, Any], image: str = "") -> tuple[GpuTestPod, ...]:
    read = builtin.read_recipe(recipe)
    assert read.kubernetes is not None
    whole = render_cluster(read, [one])
    config = (
        choose_configs(read.kubernetes, [one])[one.name] if read.kubernetes.stack != "hami" else SharingConfig("whole")
    )
    names = (f"gpunode-test-{number}" for number in itertools.count())
    more = {"run": "x", "new_name": lambda: next(names), "image": image, "timeout_s": 60}
    return tuple(make_test_pods(one, body, whole.test_pod, config, whole.expected.get(one.name), **more))  # type: ignore[arg-type]


def limits(trial: GpuTestPod) -> Any:
    return trial.pod["spec"]["containers"][0]["resources"]["limits"]


def test_the_test_pod_runs_on_its_node_and_has_a_deadline() -> None:
    (one,) = made_for("k8s-containerd", EIGHT, live(), image="mirror.example.org/vectoradd:1")

    spec = one.pod["spec"]
    assert spec["nodeSelector"] == {"kubernetes.io/hostname": "host-1"}
    assert spec["runtimeClassName"] == "nvidia"
    assert spec["activeDeadlineSeconds"] == 60
    assert spec["containers"][0]["image"] == "mirror.example.org/vectoradd:1"
    assert spec["containers"][0]["imagePullPolicy"] == "IfNotPresent"
    assert limits(one) == {GPU: 1}


@pytest.mark.parametrize(("offered", "pods"), [(32, 9), (8, 1)])
def test_shared_gpus_get_one_more_test_pod_than_gpus(offered: int, pods: int) -> None:
    assert len(made_for("k8s-time-slicing", EIGHT, live(offered))) == pods


def test_each_mig_profile_gets_a_test_pod() -> None:
    found = made_for("k8s-mig", EIGHT, live())

    assert [limits(one) for one in found] == [
        {f"nvidia.com/mig-{profile}": 1} for profile in ("1g.10gb", "2g.20gb", "3g.40gb")
    ]


def test_resource_claim_template_has_the_name_of_its_pod() -> None:
    (one,) = made_for("dra", EIGHT, live())

    template, pod = one.bodies
    assert template["metadata"]["name"] == pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == one.name


def test_hami_test_pod_requests_and_reports_memory() -> None:
    (one,) = made_for("hami", EIGHT, live(80))

    assert limits(one) == {GPU: 1, "nvidia.com/gpumem": 1024}
    assert "memory.total" in one.pod["spec"]["containers"][0]["command"][2]


# The results of the test pods.


def pod_result(
    trial: GpuTestPod, log: str | None, phase: str = "Succeeded", span: tuple[int, int] = (0, 10), **more: Any
) -> GpuTestPodResult:
    begin, end = (f"2026-01-01T00:00:{second:02}Z" for second in span)
    state = {"terminated": {"exitCode": 0 if phase == "Succeeded" else 1, "startedAt": begin, "finishedAt": end}}
    status = {"phase": phase, "containerStatuses": [{"state": state}]}
    return GpuTestPodResult(trial, {**trial.pod, "status": status}, 3.0, log=log, **more)


@pytest.mark.parametrize(
    ("recipe", "log", "status", "said"),
    [
        ("k8s-containerd", "Test PASSED", "passed", "Test PASSED, 3.0 s; deleted"),
        ("k8s-containerd", "all is well", "failed", "does not contain Test PASSED; its last line: all is well"),
        ("k8s-containerd", None, "skipped", "its log cannot be read"),
        ("k8s-mig", "  MIG 1g.10gb     Device  0: (UUID: MIG-1)\nTest PASSED", "passed", "MIG instance 1g.10gb"),
        ("k8s-mig", "  MIG 2g.20gb     Device  0: (UUID: MIG-1)\nTest PASSED", "failed", "and saw 2g.20gb"),
        ("k8s-mig", "GPU 0: NVIDIA H100\nTest PASSED", "failed", "it saw no MIG instance"),
        ("hami", "1024\nTest PASSED", "passed", "it saw 1024 MiB"),
        ("hami", "81559\nTest PASSED", "failed", "and saw 81559 MiB"),
        ("hami", "sh: nvidia-smi: not found\nTest PASSED", "failed", "could not read how much memory"),
    ],
)
def test_successful_pod_proves_only_what_its_log_says(recipe: str, log: str | None, status: str, said: str) -> None:
    trial = made_for(recipe, EIGHT, live())[0]

    found = check_test_pod(pod_result(trial, log), live(), APPLY)

    assert found.status == status
    assert said in found.detail


@pytest.mark.parametrize(
    ("recipe", "node", "taints", "said"),
    [
        ("k8s-containerd", replace(EIGHT, reads_cdi=True), (), "on gpu-1 with nvidia.com/gpu alone: Test PASSED"),
        ("k8s-containerd", EIGHT, (), "with nvidia.com/gpu, runtimeClassName: nvidia: Test PASSED"),
        (
            "k8s-containerd",
            replace(EIGHT, reads_cdi=True),
            tuple((key, "NoSchedule") for key in (GPU, "node.kubernetes.io/unschedulable", "not-tolerated")),
            "with nvidia.com/gpu, a toleration of nvidia.com/gpu: Test PASSED",
        ),
        ("dra", EIGHT, (), "with a claim alone: Test PASSED"),
        ("hami", EIGHT, (), "with nvidia.com/gpu, nvidia.com/gpumem: "),
    ],
)
def test_passed_pod_says_what_it_needed(
    recipe: str, node: ClusterNode, taints: Sequence[tuple[str, str]], said: str
) -> None:
    body = live()
    body["spec"] = {"taints": [{"key": key, "effect": effect} for key, effect in taints]}
    (trial,) = made_for(recipe, node, body)
    assert said in check_test_pod(pod_result(trial, "Test PASSED"), body, APPLY).detail


@pytest.mark.parametrize("node", [EIGHT, replace(EIGHT, reads_cdi=True)])
def test_pod_without_cdi_or_runtime_class_is_explained(node: ClusterNode) -> None:
    (trial,) = made_for("k8s-containerd", node, live())
    log = (
        "Failed to allocate device vector A (error code CUDA driver version is insufficient for CUDA runtime version)!"
    )
    found = check_test_pod(pod_result(trial, log, "Failed"), live(), APPLY)
    assert found.status == "failed"
    assert ("neither CDI nor the default runtime" in found.detail) is node.reads_cdi
    assert ("gpunode setup" in found.hint) is node.reads_cdi


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        ('Error from server (NotFound): namespaces "gpu-system" not found', "failed", "its namespace does not exist"),
        (
            'pods "x" is forbidden: pod rejected: RuntimeClass "nvidia" not found',
            "failed",
            "there is no RuntimeClass nvidia",
        ),
        ('pods "x" is forbidden: exceeded quota: compute', "failed", "exceeded quota"),
        ('pods is forbidden: User "dev" cannot create resource "pods"', "skipped", "may not create pods in"),
        ('pods "x" is forbidden: node "gpu-1" can only create mirror pods', "skipped", "may not create pods in"),
    ],
)
def test_pod_that_was_not_created_says_why(error: str, status: str, said: str) -> None:
    (trial,) = made_for("k8s-containerd", EIGHT, live())

    found = check_test_pod(GpuTestPodResult(trial, {}, 0.0, error=error), live(), APPLY)

    assert (found.status, said in found.detail) == (status, True)


def test_failed_pod_reports_its_last_line_or_diagnosis() -> None:
    (trial,) = made_for("k8s-containerd", EIGHT, live())

    assert "its last line: no GPU" in check_test_pod(pod_result(trial, "no GPU", "Failed"), live(), APPLY).detail
    read = pod_result(trial, "no GPU", "Failed", diagnosis="the driver is gone (driver-not-installed)")
    assert "driver-not-installed" in check_test_pod(read, live(), APPLY).detail


ONE, OTHER = (f"GPU 0: H100 (UUID: GPU-{number}0000000-0000-0000-0000-000000000000)\nTest PASSED" for number in (1, 2))


@pytest.mark.parametrize(
    ("logs", "spans", "status"),
    [
        ((ONE, ONE), ((0, 10), (2, 12)), "passed"),
        ((ONE, OTHER), ((0, 10), (2, 12)), "skipped"),
        ((ONE, ONE), ((0, 10), (10, 20)), "skipped"),
        # Times are in whole seconds: these pods may not have overlapped.
        ((ONE, ONE), ((0, 10), (9, 20)), "skipped"),
        (("Test PASSED", "Test PASSED"), ((0, 10), (0, 10)), "skipped"),
        ((ONE,), ((0, 10),), "skipped"),
    ],
)
def test_sharing_passes_only_on_one_gpu_at_the_same_time(
    logs: Sequence[str], spans: Sequence[tuple[int, int]], status: str
) -> None:
    found = made_for("k8s-time-slicing", EIGHT, live(32))
    ran = [pod_result(trial, log, span=span) for trial, log, span in zip(found, logs, spans, strict=False)]

    assert check_sharing("gpu-1", ran).status == status


# Why pods wait.


def test_gpu_is_in_use_only_if_none_is_left() -> None:
    def pod(name: str, gpus: int, phase: str = "Running") -> Mapping[str, Any]:
        spec = {"containers": [{"resources": {"limits": {GPU: str(gpus)}}}]}
        return {"metadata": {"name": name}, "spec": spec, "status": {"phase": phase}}

    assert find_resource_users([pod("a", 4), pod("b", 4)], live(), GPU) == ("default/a", "default/b")
    assert find_resource_users([pod("a", 4), pod("b", 4, "Succeeded")], live(), GPU) == ()


def test_cordon_is_tolerated_and_a_foreign_taint_is_named() -> None:
    (trial,) = made_for("k8s-containerd", EIGHT, live())
    cordoned = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    tainted = [{"key": GPU, "value": "present", "effect": "NoSchedule"}, {"key": "team", "effect": "NoExecute"}]

    assert find_untolerated_taint(trial.pod, {**live(), "spec": {"unschedulable": True, "taints": [cordoned]}}) is None
    found = find_untolerated_taint(trial.pod, {**live(), "spec": {"taints": tainted}})
    assert found is not None
    assert "the taint team:NoExecute" in found.why


# As the kubelet and the scheduler 1.36 and containerd 1.6, 1.7 and 2.1 wrote them.
@pytest.mark.parametrize(
    ("event", "said"),
    [
        (
            (
                "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to get sandbox runtime: "
                'no runtime for "nvidia" is configured'
            ),
            'gpu-1 has no runtime "nvidia"',
        ),
        (
            (
                "failed to create shim task: OCI runtime create failed: unable to retrieve OCI runtime error "
                "(open /run/log.json: no such file or directory): "
                "fork/exec /usr/bin/nvidia-container-runtime: no such file or directory"
            ),
            "gpu-1 has no /usr/bin/nvidia-container-runtime",
        ),
        (
            "/usr/bin/nvidia-container-runtime did not terminate successfully: exit status 1: unknown",
            "/usr/bin/nvidia-container-runtime ended with exit status 1 on gpu-1",
        ),
        (
            (
                'runc create failed: expected cgroupsPath to be of format "slice:prefix:name" for systemd cgroups, got '
                '"/kubepods/besteffort/podUID/ID" instead'
            ),
            "cgroup driver cgroupfs",
        ),
        (
            (
                "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network "
                "plugin returns error: cni plugin not initialized"
            ),
            "gpu-1 has no pod network",
        ),
    ],
)
def test_sandbox_failure_has_a_reason(event: str, said: str) -> None:
    pod = {"metadata": {"name": "p"}, "spec": {"nodeName": "gpu-1"}, "status": {"phase": "Pending"}}
    told = {"type": "Warning", "reason": "FailedCreatePodSandBox", "message": event, "involvedObject": {"name": "p"}}

    found = find_problem(pod, [told])

    assert found is not None
    assert said in found.why
    assert found.hint


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "message": message}]},
            said,
        )
        for message, said in (
            (
                "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. no new claims",
                "no node has enough nvidia.com/gpu",
            ),
            ("0/1 nodes are available: 1 Insufficient nvidia.com/gpumem.", "HAMi's webhook"),
            ("0/1 nodes are available: 1 node(s) had untolerated taint(s).", "have taints"),
            ("0/1 nodes are available: 1 node(s) were unschedulable.", "cordoned"),
            ("0/1 nodes are available: 1 cannot allocate all claims.", "no node has a free GPU for its claim"),
            ("0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.", "has the labels"),
        )
    ]
    + [
        (
            {"reason": "UnexpectedAdmissionError", "message": "Allocate failed due to no healthy devices present"},
            "gpu-1 did not admit the pod",
        ),
        ({"reason": "TopologyAffinityError", "message": "Resources cannot be allocated"}, "topology manager"),
        ({"reason": "DeadlineExceeded"}, "did not finish in time"),
    ]
    + [
        ({"containerStatuses": [{"image": "i", "state": state}]}, said)
        for state, said in (
            (
                {"waiting": {"reason": "ErrImagePull", "message": "not found"}},
                "the image i cannot be pulled: not found",
            ),
            ({"waiting": {"reason": "CreateContainerError", "message": "no"}}, "its container cannot start: no"),
            ({"terminated": {"reason": "StartError", "exitCode": 128, "message": "nvml error"}}, "start: nvml error"),
            ({"terminated": {"reason": "OOMKilled", "exitCode": 137}}, "more memory"),
            ({"terminated": {"reason": "Error", "exitCode": 1}}, "exit status 1"),
        )
    ],
)
def test_pod_problem_is_named(status: Mapping[str, Any], said: str) -> None:
    found = find_problem({"metadata": {"name": "p"}, "spec": {"nodeName": "gpu-1"}, "status": status})

    assert found is not None
    assert said in found.why
    assert found.hint


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"waiting": {"reason": "ContainerCreating"}}, "gpu-1 has no /usr/bin/nvidia-container-runtime"),
        (
            {"terminated": {"reason": "ContainerStatusUnknown", "exitCode": 137, "startedAt": None}},
            "gpu-1 has no /usr/bin/nvidia-container-runtime",
        ),
        ({"terminated": {"reason": "Error", "exitCode": 137, "startedAt": "2026-01-01T00:00:00Z"}}, "in time"),
    ],
)
def test_deadline_hides_no_reason_why_a_pod_never_started(state: Mapping[str, Any], said: str) -> None:
    status = {"phase": "Failed", "reason": "DeadlineExceeded", "containerStatuses": [{"image": "i", "state": state}]}
    event = {
        "type": "Warning",
        "reason": "FailedCreatePodSandBox",
        "message": "OCI runtime create failed: fork/exec /usr/bin/nvidia-container-runtime: no such file or directory",
        "involvedObject": {"name": "p"},
    }

    found = find_problem({"metadata": {"name": "p"}, "spec": {"nodeName": "gpu-1"}, "status": status}, [event])

    assert found is not None
    assert said in found.why
