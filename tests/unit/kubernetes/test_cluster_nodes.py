"""GPU nodes by the labels of their Nodes."""

from __future__ import annotations

from typing import Any

import pytest

from gpunode import builtin
from gpunode.catalog.gpus import find_model
from gpunode.errors import Undetermined
from gpunode.kubernetes.cluster_nodes import nodes_from_labels
from gpunode.kubernetes.render import render_cluster

GFD = {
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/cuda.driver-version.full": "580.95.05",
}


def live(labels: dict[str, str], version: str = "v1.36.2", **spec: str) -> dict[str, Any]:
    status = {"nodeInfo": {"kubeletVersion": version, "osImage": "Ubuntu 24.04"}}
    return {"kind": "Node", "metadata": {"name": "gpu-1", "labels": labels}, "spec": spec, "status": status}


def test_gpu_feature_discovery_labels_suffice_to_render() -> None:
    plain = live({"kubernetes.io/os": "linux"})
    (found,) = nodes_from_labels([plain, live(GFD)])
    assert (found.name, found.gpus, found.driver) == ("gpu-1", (find_model("2330"),) * 8, "580.95.05")
    assert render_cluster(builtin.read_recipe("k8s-mig"), [found]).expected


@pytest.mark.parametrize(
    ("runtime", "reads"),
    [
        ("containerd://2.1.9", True),
        ("cri-o://1.36.0", True),
        ("containerd://1.7.27", None),
        ("containerd://1.6.20", False),
        ("docker://28.5.2", False),
        ("", False),
    ],
)
def test_cdi_support_is_derived_from_the_runtime_version(runtime: str, reads: bool | None) -> None:
    body = live(GFD)
    body["status"]["nodeInfo"]["containerRuntimeVersion"] = runtime
    (found,) = nodes_from_labels([body])
    assert found.reads_cdi is reads


@pytest.mark.parametrize(
    ("product", "device"),
    [
        ("Tesla-T4", "1eb8"),
        ("NVIDIA-A100-SXM4-80GB", "20b2"),
        ("NVIDIA-GeForce-GTX-1080", "1b80"),
        ("NVIDIA-H100-80GB-HBM3-SHARED", "2330"),
    ],
)
def test_gpu_model_is_found_by_its_product_label(product: str, device: str) -> None:
    (found,) = nodes_from_labels([live({**GFD, "nvidia.com/gpu.product": product})])
    assert {gpu.name for gpu in found.gpus} == {find_model(device).name}


@pytest.mark.parametrize(
    ("labels", "version", "spec", "kubelet", "provider"),
    [
        ({}, "v1.36.2+k3s1", {}, "k3s", None),
        ({}, "v1.36.2+rke2r1", {}, "rke2", None),
        ({"microk8s.io/cluster": "true"}, "v1.36.2", {}, "microk8s", None),
        ({"eks.amazonaws.com/nodegroup": "a"}, "v1.36.2-eks-1", {}, "kubelet", "eks"),
        ({"cloud.google.com/gke-nodepool": "a"}, "v1.36.2-gke.1", {}, "kubelet", "gke"),
        ({}, "v1.36.2", {"providerID": "kind://docker/kind/kind-worker"}, "kubelet", "kind"),
    ],
)
def test_kubelet_and_provider_are_derived_from_version_and_labels(
    labels: dict[str, str], version: str, spec: dict[str, str], kubelet: str, provider: str | None
) -> None:
    (found,) = nodes_from_labels([live({**GFD, **labels}, version, **spec)])
    assert (found.kubelet, found.provider) == (kubelet, provider)


def test_gke_plugin_opt_out_is_read_from_a_node_label() -> None:
    pool = {"cloud.google.com/gke-nodepool": "a"}
    opted_out = {**pool, "gke-no-default-nvidia-gpu-device-plugin": "true"}
    (theirs,), (ours,) = (nodes_from_labels([live({**GFD, **labels})]) for labels in (pool, opted_out))
    assert (theirs.provides, ours.provides) == (frozenset({"device-plugin"}), frozenset())


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        ({}, "none has the label nvidia.com/gpu.present"),
        ({"nvidia.com/gpu.present": "true"}, "gpu-1: it lacks nvidia.com/gpu.product"),
        ({"feature.node.kubernetes.io/pci-10de.present": "true"}, "gpu-1: it lacks"),
        ({"feature.node.kubernetes.io/pci-0302_10de.present": "true"}, "gpu-1: it lacks"),
        ({"feature.node.kubernetes.io/pci-1af4.present": "true"}, "none has the label"),
        ({**GFD, "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"}, "counts MIG instances"),
        ({**GFD, "nvidia.com/gpu.product": "NVIDIA-Z9000"}, "knows no GPU that is labelled NVIDIA-Z9000"),
        ({**GFD, "nvidia.com/gpu.count": "99999999999999999999"}, "gpu.count is 99999999999999999999"),
        ({**GFD, "nvidia.com/gpu.count": "²"}, "lacks nvidia.com/gpu.product and nvidia.com/gpu.count"),
        ({**GFD, "kubernetes.azure.com/cluster": "a"}, "whether AKS installed its driver"),
    ],
)
def test_insufficient_labels_are_undetermined_with_a_capture_hint(labels: dict[str, str], why: str) -> None:
    with pytest.raises(Undetermined) as refused:
        nodes_from_labels([live(labels)])
    assert why in refused.value.why
    assert "sudo gpunode capture" in refused.value.hint
    assert "--node" in refused.value.hint
