"""Existing GPU offers in a cluster, recognised by their definition and not by what runs today."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpunode import builtin
from gpunode.errors import Refused
from gpunode.facts.helm import HelmRelease
from gpunode.kubernetes.advertisers import check_other_advertisers
from gpunode.kubernetes.model import RenderedCluster
from gpunode.kubernetes.render import render_cluster
from tests.unit.kubernetes.clusters import CLUSTERS

PLUGIN = render_cluster(builtin.read_recipe("k8s-containerd"), CLUSTERS["one"])
OPERATOR = render_cluster(builtin.read_recipe("gpu-operator"), CLUSTERS["one"])
NODE = {"metadata": {"name": PLUGIN.nodes[0].node, "labels": {"pool": "gpu"}}}
RELEASED = {"meta.helm.sh/release-name": "hami", "meta.helm.sh/release-namespace": "kube-system"}
NOWHERE = {"observedGeneration": 1, "desiredNumberScheduled": 0}
# The affinity of the device plugin's own chart: any label of NFD and GFD, or the label that gpunode sets.
CHART = [
    {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}
    for key, value in (
        ("feature.node.kubernetes.io/pci-10de.present", "true"),
        ("feature.node.kubernetes.io/cpu-model.vendor_id", "NVIDIA"),
        ("nvidia.com/gpu.present", "true"),
    )
]


MANAGED_BY = {"app.kubernetes.io/managed-by": "gpunode"}
APPLIED = [{"manager": "gpunode", "operation": "Apply", "fieldsV1": {"f:spec": {}}}]


def daemon_set(image: str, name: str = "theirs", pod: Any = None, status: Any = None, **metadata: object) -> Any:
    spec = {"containers": [{"name": "one", "image": image}], **(pod or {})}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"namespace": "x", "name": name, **metadata},
        "spec": {"template": {"spec": spec}},
        "status": status or {},
    }


def custom(kind: str, name: str = "one", **more: object) -> Any:
    return {"kind": kind, "metadata": {"name": name}, **more}


def affinity(*terms: object) -> dict[str, Any]:
    required = {"nodeSelectorTerms": list(terms)}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def look(*objects: Any, wanted: RenderedCluster = PLUGIN, releases: tuple[HelmRelease, ...] = ()) -> tuple[str, ...]:
    return check_other_advertisers(wanted, objects, [NODE], releases)


OPERAND = daemon_set("nvcr.io/nvidia/k8s-device-plugin:v0.20.0", ownerReferences=[{"kind": "ClusterPolicy"}])
DEPLOYMENT = {"kind": "Deployment", "metadata": {"namespace": "gpu-operator", "name": "gpu-operator"}}
PLUGINS = {"volumes": [{"name": "p", "hostPath": {"path": "/var/lib/kubelet/device-plugins/"}}]}


@pytest.mark.parametrize(
    ("one", "hint"),
    [
        (
            daemon_set("nvcr.io/nvidia/k8s-device-plugin:v0.14.1"),
            "kubectl delete daemonset --namespace x theirs",
        ),
        (daemon_set("mirror:5000/k8s-device-plugin@sha256:00"), "kubectl delete"),
        (daemon_set("corp/nvidia-plugin:7", pod=PLUGINS), "kubectl delete"),
        (daemon_set("gke.gcr.io/nvidia-gpu-device-plugin@sha256:00"), "leave these nodes to your provider"),
        (
            daemon_set("projecthami/hami:v2.10.0", annotations=RELEASED),
            "helm uninstall hami --namespace kube-system",
        ),
        (daemon_set("k8s-device-plugin:1", status=NOWHERE), "kubectl delete"),
        (daemon_set("k8s-device-plugin:1", pod=affinity(*CHART), status=NOWHERE), "kubectl delete"),
        (daemon_set("k8s-device-plugin:1", pod={"nodeSelector": {"pool": "gpu"}}, status=NOWHERE), "delete"),
        # Administrators set this label to get HAMi's plugin on a node, and a taint may be removed any time.
        (daemon_set("hami:1", pod={"nodeSelector": {"gpu": "on"}}, status=NOWHERE), "kubectl delete"),
        (custom("ClusterPolicy"), "kubectl delete clusterpolicy one"),
        (custom("ClusterPolicy", spec={"devicePlugin": {"enabled": True}}), "delete clusterpolicy one"),
        (custom("GPUCluster"), "kubectl delete gpucluster one"),
        (custom("NVIDIADriver"), "kubectl delete nvidiadriver one"),
        (OPERAND, "helm list --all-namespaces"),
        (DEPLOYMENT, "kubectl delete deployment --namespace gpu-operator gpu-operator"),
    ],
)
def test_existing_advertiser_is_refused_with_a_hint(one: dict[str, Any], hint: str) -> None:
    with pytest.raises(Refused, match="the GPUs of this cluster already") as refused:
        look(one)
    assert hint in refused.value.hint


@pytest.mark.parametrize(
    "objects",
    [
        [daemon_set("nvcr.io/nvidia/k8s-device-plugin:v0.20.0", labels=MANAGED_BY, managedFields=APPLIED)],
        [daemon_set("nvcr.io/nvidia/k8s-device-plugin:v0.20.0", "x-gpu-feature-discovery")],
        [daemon_set("quay.io/prometheus/node-exporter:v1")],
        [daemon_set("nvidia/kubevirt-gpu-device-plugin:v1", pod=PLUGINS)],
        [daemon_set("ghcr.io/sriov-network-device-plugin:v3", pod=PLUGINS)],
        # The operator's settings according to HAMi's documentation.
        [custom("ClusterPolicy", spec={"devicePlugin": {"enabled": False}}), custom("NVIDIADriver"), DEPLOYMENT],
    ],
)
def test_unrelated_objects_are_no_second_advertiser(objects: list[dict[str, Any]]) -> None:
    assert look(*objects) == ()


@pytest.mark.parametrize(
    "pod",
    [
        {"nodeSelector": {"no": "node"}},
        affinity({"matchExpressions": [{"key": "pool", "operator": "NotIn", "values": ["gpu"]}]}),
        affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["other"]}]}, {}),
    ],
)
def test_plugin_whose_selector_fits_no_node_is_a_note(pod: dict[str, Any]) -> None:
    (note,) = look(daemon_set("k8s-device-plugin:1", pod=pod, status=NOWHERE))
    assert "DaemonSet x/theirs is NVIDIA's device plugin, too. It runs on no node" in note
    with pytest.raises(Refused):
        look(daemon_set("k8s-device-plugin:1", pod=pod, status={**NOWHERE, "desiredNumberScheduled": 1}))
    with pytest.raises(Refused):  # not counted yet
        look(daemon_set("k8s-device-plugin:1", pod=pod))


def test_gpu_operator_is_no_second_advertiser_of_itself() -> None:
    policy = custom("ClusterPolicy")
    assert look(OPERAND, policy, DEPLOYMENT, wanted=OPERATOR) == ()
    # Objects that it created are recreated when deleted.
    with pytest.raises(Refused, match="ClusterPolicy one has the GPU Operator offer"):
        look(OPERAND, policy, DEPLOYMENT)
    policy["metadata"]["annotations"] = RELEASED
    with pytest.raises(Refused) as refused:
        look(OPERAND, policy)
    assert "use the recipe gpu-operator" in refused.value.hint
    assert "helm uninstall hami" in refused.value.hint


def test_release_to_be_upgraded_is_no_second_advertiser() -> None:
    wanted = render_cluster(builtin.read_recipe("hami"), CLUSTERS["sixteen"])
    theirs = HelmRelease("kube-system", "hami", "hami", "2.10.0", 1, "deployed")
    plugin = daemon_set("projecthami/hami:v2.10.0", annotations=RELEASED)
    with pytest.raises(Refused):
        look(plugin, wanted=replace(wanted, releases=(replace(wanted.releases[0], name="other"),)))
    assert look(plugin, wanted=wanted, releases=(replace(theirs, name="hami"),)) == ()
    another = daemon_set("projecthami/hami:v2.10.0", "second")
    with pytest.raises(Refused, match="x/second"):
        look(plugin, another, wanted=wanted, releases=(theirs,))


def test_chart_within_another_is_not_to_be_kept_by_the_same_recipe() -> None:
    """No recipe finds a release by a subchart, so the hint led in a circle."""
    wanted = render_cluster(builtin.read_recipe("hami"), CLUSTERS["sixteen"])
    theirs = daemon_set("projecthami/hami:v2.10.0", annotations={**RELEASED, "meta.helm.sh/release-name": "platform"})
    with pytest.raises(Refused) as refused:
        look(theirs, wanted=wanted)
    assert "use the recipe hami" not in refused.value.hint
    assert "else: helm uninstall platform" in refused.value.hint


def test_metrics_exporter_is_no_second_advertiser() -> None:
    (release,) = OPERATOR.releases
    metrics = RenderedCluster(releases=(replace(release, chart="dcgm-exporter"),))
    assert look(daemon_set("k8s-device-plugin:1"), wanted=metrics) == ()
