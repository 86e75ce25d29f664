"""Nodes, pods and the rest are read from what was pasted of them: described, as YAML or JSON, as a table, in part."""

from __future__ import annotations

import json

import pytest

from gpunode.diagnoses.snapshot import Snapshot, snapshot
from gpunode.diagnoses.views import kube
from gpunode.facts import pasted


def seen(*pieces: tuple[str, str]) -> Snapshot:
    rows = [{"source": source, "text": text} for source, text in pieces]
    return snapshot(pasted.from_json(json.dumps(rows), "a report"))


def counts(node: kube.Node) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Capacity, allocatable and allocated, each as bare numbers."""
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


def test_a_described_node_is_read_whole() -> None:
    (node,) = seen(("kubectl describe node gpu-1", DESCRIBED)).view(kube.nodes)
    assert node.name == "gpu-1"
    assert counts(node) == ({GPU: 4}, {GPU: 3}, {GPU: 2})
    assert node.values["nvidia.com/gpu.count"] == "4"
    assert [taint for taint, _ in node.taints] == [
        kube.Taint(GPU, "present", "NoSchedule"),
        kube.Taint("dedicated", "ml", "NoExecute"),
    ]
    assert not node.has_no_gpu
    assert node.capacity[GPU].citation.line == "  nvidia.com/gpu:     4"


def test_yaml_says_the_same() -> None:
    (node,) = seen(("kubectl get node gpu-1 -o yaml", YAML)).view(kube.nodes)
    assert node.name == "gpu-1"
    assert counts(node) == ({GPU: 4}, {GPU: 3}, {})
    assert [taint for taint, _ in node.taints] == [kube.Taint(GPU, "present", "NoSchedule")]
    assert node.values["nvidia.com/gpu.count"] == "4"


@pytest.mark.parametrize("indent", [2, 4, None])
def test_json_says_the_same_on_many_lines_and_on_one(indent: int | None) -> None:
    status = {"status": {"allocatable": {"cpu": "47", GPU: "3"}, "capacity": {"cpu": "48", GPU: "4"}}}
    (node,) = seen(("kubectl get node gpu-1 -o json", json.dumps(status, indent=indent))).view(kube.nodes)
    assert counts(node)[:2] == ({GPU: 4}, {GPU: 3})


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("kubectl describe node", "Capacity:\n nvidia.com/gpu:     4\nAllocatable:\n nvidia.com/gpu:     3"),
        ("kubectl describe node", "Capacity:\nnvidia.com/gpu: 4\nAllocatable:\nnvidia.com/gpu: 3"),
        ("kubectl describe node gpu-1 | grep nvidia.com/gpu", "  nvidia.com/gpu:     4\n  nvidia.com/gpu:     3"),
        ("describe node | grep gpu", "nvidia.com/gpu: 4\nnvidia.com/gpu: 3\nnvidia.com/gpu  2  2"),
        (
            (
                "kubectl get nodes -o custom-columns=NAME:.metadata.name,HAS:.status.capacity.nvidia\\.com/gpu,"
                "GIVES:.status.allocatable.nvidia\\.com/gpu"
            ),
            "NAME    HAS   GIVES\ngpu-1   4     3",
        ),
    ],
)
def test_what_was_cut_out_keeps_its_meaning(source: str, text: str) -> None:
    (node,) = seen((source, text)).view(kube.nodes)
    assert counts(node)[:2] == ({GPU: 4}, {GPU: 3})


def test_pieces_without_a_name_belong_to_the_only_node_with_one() -> None:
    (node,) = seen(
        ("kubectl get node gpu-1 -o jsonpath='{.status.allocatable.nvidia\\.com/gpu}'", "2"),
        ("kubectl describe node (Allocated resources)", "  nvidia.com/gpu     1           1"),
    ).view(kube.nodes)
    assert node.name == "gpu-1"
    assert counts(node) == ({}, {GPU: 2}, {GPU: 1})


def test_a_number_at_the_end_of_a_label_is_no_resource() -> None:
    text = "nvidia.com/gpu.count=8\nnvidia.com/gpu.replicas=1\nCapacity:\n cpu: 4\n nvidia.com/mig-1g.5gb: 7"
    (node,) = seen(("kubectl describe node", text)).view(kube.nodes)
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
def test_that_there_is_no_gpu_is_known_only_where_one_would_be_seen(source: str, text: str, *, known: bool) -> None:
    (node,) = seen((source, text)).view(kube.nodes)
    assert node.has_no_gpu is known


POD = """\
Name:                 train-0
Namespace:            ml
Node:                 <none>
Status:               Pending
Containers:
  main:
    Image:      nvcr.io/nvidia/pytorch:24.05-py3
    Limits:
      nvidia.com/gpu:  2
    Requests:
      nvidia.com/gpu:  2
Tolerations:          node.kubernetes.io/not-ready:NoExecute op=Exists for 300s
                      nvidia.com/gpu=present:NoSchedule
                      op=Exists
Events:
  Type     Reason            Age   From               Message
"""


def test_a_described_pod_shows_what_it_bears_and_asks_for() -> None:
    (pod,) = seen(("kubectl describe pod train-0", POD)).view(kube.pods)
    assert (pod.name, pod.node, pod.status, pod.runtime_class) == ("train-0", "<none>", "Pending", "")
    assert pod.gpus is not None
    assert pod.gpus.value == 2
    assert pod.tolerations == (
        kube.Taint("node.kubernetes.io/not-ready", "", "NoExecute", exists=True),
        kube.Taint(GPU, "present", "NoSchedule"),
        kube.Taint("", "", "", exists=True),
    )


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("  runtimeClassName: null", ""),
        ("  runtimeClassName: nvidia", "nvidia"),
        ('    "runtimeClassName": "nvidia",', "nvidia"),
        ("Name: p\nNamespace: d\nRuntime Class Name:  nvidia\nEvents: <none>", "nvidia"),
        ("kind: Pod\nspec:\n  containers:\n  - image: x", ""),
        ("Status: Running\nContainers:", None),
    ],
)
def test_which_runtime_a_pod_asks_for(text: str, wanted: str | None) -> None:
    (pod,) = seen(("kubectl get pod p -o yaml", text)).view(kube.pods)
    assert pod.runtime_class == wanted


TAINT = kube.Taint(GPU, "present", "NoSchedule")


@pytest.mark.parametrize(
    ("toleration", "bears"),
    [
        (kube.Taint(GPU, "", "NoSchedule", exists=True), True),
        (kube.Taint(GPU, "", "", exists=True), True),
        (kube.Taint("", "", "", exists=True), True),
        (kube.Taint(GPU, "present", "NoSchedule"), True),
        (kube.Taint(GPU, "true", "NoSchedule"), False),
        (kube.Taint(GPU, "", "NoExecute", exists=True), False),
        (kube.Taint("gpu", "", "NoSchedule", exists=True), False),
        (kube.Taint("", "", "NoExecute", exists=True), False),
    ],
)
def test_a_toleration_bears_a_taint_by_key_value_and_effect(toleration: kube.Taint, *, bears: bool) -> None:
    assert toleration.bears(TAINT) is bears


def test_tables_give_rows() -> None:
    report = seen(
        (
            "kubectl get pods -A",
            (
                "NAMESPACE   NAME                        READY   STATUS                  RESTARTS      AGE\n"
                "gpu         nvidia-driver-daemonset-x   0/1     Init:CrashLoopBackOff   8 (2m ago)    25m"
            ),
        ),
        (
            "kubectl get ds -A",
            (
                "NAMESPACE   NAME   DESIRED   CURRENT   READY   UP-TO-DATE   AVAILABLE   NODE SELECTOR   AGE\n"
                "gpu         nvdp   0         0         0       0            0           <none>          4m"
            ),
        ),
        ("kubectl get runtimeclass", "NAME     HANDLER   AGE\nnvidia   nvidia    3d"),
    )
    (row,) = report.view(kube.rows)
    assert (row.name, row.status) == ("nvidia-driver-daemonset-x", "Init:CrashLoopBackOff")
    (daemons,) = report.view(kube.daemons)
    assert (daemons.name, daemons.desired) == ("nvdp", 0)
    assert set(report.view(kube.runtime_classes)) == {"nvidia"}


ENTRY = {"PodUID": "9a42", "ContainerName": "c", "ResourceName": GPU}


@pytest.mark.parametrize("devices", [["GPU-1"], {"0": ["GPU-1"]}, {"-1": ["GPU-1"]}])
@pytest.mark.parametrize("indent", [None, 2])
def test_the_checkpoint_is_read_in_both_of_its_forms(devices: object, indent: int | None) -> None:
    text = json.dumps({"Data": {"PodDeviceEntries": [{**ENTRY, "DeviceIDs": devices}]}, "Checksum": 1}, indent=indent)
    path = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
    (held,) = seen((f"cat {path}", text)).view(kube.allocations)
    assert (held.pod_uid, held.resource) == ("9a42", GPU)


@pytest.mark.parametrize(
    "text", ["{", '{"Data": {"PodDeviceEntries": 5}}', '{"Data": [', "PodDeviceEntries", "[[[[" * 9]
)
def test_a_broken_checkpoint_is_no_harm(text: str) -> None:
    assert seen(("cat kubelet_internal_checkpoint", text)).view(kube.allocations) == ()


@pytest.mark.parametrize("cut", range(0, len(DESCRIBED), 37))
def test_every_part_of_a_node_can_be_read(cut: int) -> None:
    for text in (DESCRIBED[:cut], DESCRIBED[cut:], YAML[cut:], POD[cut:]):
        report = seen(("kubectl describe node", text))
        for view in (kube.nodes, kube.pods, kube.rows, kube.daemons, kube.runtime_classes):
            report.view(view)
