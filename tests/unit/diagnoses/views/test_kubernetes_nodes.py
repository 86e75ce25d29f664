"""Nodes, pods and other objects are read from pastes: described, as YAML, JSON or a table, even incomplete."""

from __future__ import annotations

import json

import pytest

from gpunode.diagnoses.snapshot import Snapshot, take_snapshot
from gpunode.diagnoses.views import kubernetes_nodes
from gpunode.facts import pasted


def snapshot_of(*pieces: tuple[str, str]) -> Snapshot:
    rows = [{"source": source, "text": text} for source, text in pieces]
    return take_snapshot(pasted.parse_json_report(json.dumps(rows), "a report"))


def counts(node: kubernetes_nodes.KubeNode) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Return capacity, allocatable and allocated, each as bare numbers."""
    capacity, allocatable, allocated = (
        {name: amount.value for name, amount in one.items()}
        for one in (node.capacity, node.allocatable, node.allocated)
    )
    return capacity, allocatable, allocated


GPU = "nvidia.com/gpu"
DESCRIBED = """\
Name:               gpu-1
Roles:              <none>
Labels:             kubernetes.io/hostname=gpu-1
                    nvidia.com/gpu.count=4
                    nvidia.com/gpu.product=Tesla-T4
Taints:             nvidia.com/gpu=present:NoSchedule
                    dedicated=ml:NoExecute
Unschedulable:      false
Capacity:
  cpu:                48
  nvidia.com/gpu:     4
  pods:               110
Allocatable:
  cpu:                47
  nvidia.com/gpu:     3
  pods:               110
System Info:
  Kernel Version:             6.8.0-40-generic
  Kubelet Version:            v1.30.2
Allocated resources:
  (Total limits may be over 100 percent, i.e., overcommitted.)
  Resource           Requests      Limits
  --------           --------      ------
  cpu                850m (1%)     100m (0%)
  nvidia.com/gpu     2             2
Events:              <none>
"""
YAML = """\
apiVersion: v1
kind: Node
metadata:
  labels:
    nvidia.com/gpu.count: "4"
  managedFields:
  - apiVersion: v1
    fieldsV1:
      f:status:
        f:capacity:
          f:nvidia.com/gpu: {}
  name: gpu-1
spec:
  podCIDR: 10.244.1.0/24
  taints:
  - effect: NoSchedule
    key: nvidia.com/gpu
    value: present
status:
  allocatable:
    cpu: "47"
    nvidia.com/gpu: "3"
  capacity:
    cpu: "48"
    nvidia.com/gpu: "4"
"""


def test_described_node_is_parsed() -> None:
    (node,) = snapshot_of(("kubectl describe node gpu-1", DESCRIBED)).view(kubernetes_nodes.kube_nodes)
    assert node.name == "gpu-1"
    assert counts(node) == ({GPU: 4}, {GPU: 3}, {GPU: 2})
    assert not node.has_no_gpu
    assert node.capacity[GPU].citation.line == "  nvidia.com/gpu:     4"


def test_node_yaml_is_parsed() -> None:
    (node,) = snapshot_of(("kubectl get node gpu-1 -o yaml", YAML)).view(kubernetes_nodes.kube_nodes)
    assert node.name == "gpu-1"
    assert counts(node) == ({GPU: 4}, {GPU: 3}, {})


@pytest.mark.parametrize("indent", [2, 4, None])
def test_node_json_is_parsed_on_one_or_many_lines(indent: int | None) -> None:
    status = {"status": {"allocatable": {"cpu": "47", GPU: "3"}, "capacity": {"cpu": "48", GPU: "4"}}}
    (node,) = snapshot_of(("kubectl get node gpu-1 -o json", json.dumps(status, indent=indent))).view(
        kubernetes_nodes.kube_nodes
    )
    assert counts(node)[:2] == ({GPU: 4}, {GPU: 3})


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("kubectl describe node", "Capacity:\n nvidia.com/gpu:     4\nAllocatable:\n nvidia.com/gpu:     3"),
        ("kubectl describe node", "Capacity:\nnvidia.com/gpu: 4\nAllocatable:\nnvidia.com/gpu: 3"),
        ("kubectl describe node gpu-1 | grep nvidia.com/gpu", "  nvidia.com/gpu:     4\n  nvidia.com/gpu:     3"),
        ("describe node | grep gpu", "nvidia.com/gpu: 4\nnvidia.com/gpu: 3\nnvidia.com/gpu  2  2"),
    ],
)
def test_partial_node_output_is_parsed(source: str, text: str) -> None:
    (node,) = snapshot_of((source, text)).view(kubernetes_nodes.kube_nodes)
    assert counts(node)[:2] == ({GPU: 4}, {GPU: 3})


def test_nameless_pieces_belong_to_the_only_named_node() -> None:
    (node,) = snapshot_of(
        ("kubectl get node gpu-1 -o jsonpath='{.status.allocatable.nvidia\\.com/gpu}'", "2"),
        ("kubectl describe node (Allocated resources)", "  nvidia.com/gpu     1           1"),
    ).view(kubernetes_nodes.kube_nodes)
    assert node.name == "gpu-1"
    assert counts(node) == ({}, {GPU: 2}, {GPU: 1})


def test_number_at_the_end_of_a_label_is_no_resource() -> None:
    text = "nvidia.com/gpu.count=8\nnvidia.com/gpu.replicas=1\nCapacity:\n cpu: 4\n nvidia.com/mig-1g.5gb: 7"
    (node,) = snapshot_of(("kubectl describe node", text)).view(kubernetes_nodes.kube_nodes)
    assert counts(node)[0] == {"nvidia.com/mig-1g.5gb": 7}


@pytest.mark.parametrize(
    ("source", "text", "known"),
    [
        ("kubectl describe node", "Capacity:\n  cpu: 4\n  pods: 110", True),
        ("kubectl describe node gpu-1 | grep nvidia.com/gpu", "nvidia.com/gpu.count=4", True),
        ("kubectl get node -o jsonpath='{.status.capacity.nvidia\\.com/gpu}'", "", True),
        ("kubectl describe node", "Labels: nvidia.com/gpu.count=4", False),
        ("kubectl describe node | grep cpu", "  cpu: 4", False),
    ],
)
def test_missing_gpu_is_known_only_from_complete_output(source: str, text: str, *, known: bool) -> None:
    (node,) = snapshot_of((source, text)).view(kubernetes_nodes.kube_nodes)
    assert node.has_no_gpu is known


def test_pod_is_not_parsed_as_a_node() -> None:
    pod = "Name: train-0\nNamespace: ml\nNode: gpu-1\nContainers:\n  main:\n    Limits:\n      nvidia.com/gpu:  2\n"
    assert snapshot_of(("kubectl describe pod train-0", pod)).view(kubernetes_nodes.kube_nodes) == ()


@pytest.mark.parametrize("cut", range(0, len(DESCRIBED), 37))
def test_truncated_node_output_does_not_crash(cut: int) -> None:
    for text in (DESCRIBED[:cut], DESCRIBED[cut:], YAML[cut:]):
        report = snapshot_of(("kubectl describe node", text))
        report.view(kubernetes_nodes.kube_nodes)
