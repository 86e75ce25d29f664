"""Reasons why a pod gets no GPU: look-alikes are distinguished, and without deciding evidence nothing is claimed."""

from __future__ import annotations

import json

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted

WAITS = ("kubectl describe pod", "Warning  FailedScheduling  0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")


def diagnose_pieces(*pieces: tuple[str, str]) -> Diagnosis:
    rows = [{"source": source, "text": text} for source, text in pieces]
    return diagnose(take_snapshot(pasted.parse_json_report(json.dumps(rows), "a report")))


def roots(*pieces: tuple[str, str]) -> list[str]:
    return [finding.cause for finding in diagnose_pieces(*pieces).roots]


def node(capacity: int | None, allocatable: int | None, used: int | None = None, head: str = "") -> tuple[str, str]:
    """Return a described node: None omits the resource from the section."""
    lines = [head, "Capacity:", "  cpu:  8", *([f"  nvidia.com/gpu:  {capacity}"] if capacity is not None else [])]
    lines += ["Allocatable:", "  cpu:  8", *([f"  nvidia.com/gpu:  {allocatable}"] if allocatable is not None else [])]
    lines += ["Allocated resources:", "  cpu  1  1"]
    lines += [f"  nvidia.com/gpu  {used}  {used}"] if used is not None else []
    return "kubectl describe node", "\n".join(lines)


LABELS = "Labels:  nvidia.com/gpu.count=4\n         nvidia.com/gpu.product=Tesla-T4"
TAINT = "Taints:  nvidia.com/gpu=present:NoSchedule"


@pytest.mark.parametrize(
    ("one", "wanted"),
    [
        (node(4, 4, 4), ["gpus-all-allocated"]),
        (node(4, 3, 3), ["device-plugin-marked-unhealthy"]),
        (node(4, 0, 0), ["device-plugin-marked-unhealthy"]),
        (node(None, None, None, LABELS), ["gpu-labels-without-capacity"]),
        (node(0, 0, 0, LABELS), ["gpu-labels-without-capacity"]),
        (node(None, None), []),
        (node(4, 4), []),
        (node(4, 4, 2), []),
    ],
)
def test_scheduler_message_is_attributed_by_further_evidence(one: tuple[str, str], wanted: list[str]) -> None:
    assert roots(WAITS, one) == wanted


REFUSED = "0/3 nodes are available: "


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ("1 node(s) had untolerated taint {nvidia.com/gpu: present}.", True),
        ("1 node(s) had untolerated taint {nvidia.com/gpu: }, 2 Insufficient nvidia.com/gpu.", True),
        ("1 node(s) had taint {nvidia.com/gpu: true}, that the pod didn't tolerate.", True),
        ("1 node(s) had untolerated taint {sku: gpu}, 2 Insufficient nvidia.com/gpu.", True),
        ("3 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }.", False),
        ("1 node(s) had untolerated taint {node.kubernetes.io/disk-pressure: }, 2 Insufficient cpu.", False),
        ("3 Insufficient memory.", False),
    ],
)
def test_taint_counts_unless_the_cluster_manages_it(message: str, *, wanted: bool) -> None:
    assert (roots(("kubectl get events", REFUSED + message)) == ["pod-missing-gpu-toleration"]) is wanted


def pod(tolerations: str) -> tuple[str, str]:
    head = "Name: train\nNamespace: ml\nNode: <none>\nStatus: Pending\nLimits:\n  nvidia.com/gpu: 1"
    return "kubectl describe pod train", f"{head}\n{tolerations}\nEvents:"


def test_pod_without_the_toleration_is_kept_off_by_the_taint() -> None:
    bare = pod("Tolerations:  node.kubernetes.io/not-ready:NoExecute op=Exists for 300s")
    assert roots(bare, node(1, 1, 0, TAINT)) == ["pod-missing-gpu-toleration"]


def test_pod_with_the_toleration_is_not_kept_off() -> None:
    assert roots(pod("Tolerations:  nvidia.com/gpu:NoSchedule op=Exists"), node(1, 1, 0, TAINT)) == []


def test_taint_explains_the_missing_plugin() -> None:
    daemons = ("kubectl get ds -A", "gpu   nvidia-device-plugin   0   0   0   0   0   <none>   4m")
    diagnosis = diagnose_pieces(daemons, node(None, None, None, f"{LABELS}\n{TAINT}"))
    assert [finding.cause for finding in diagnosis.roots] == ["pod-missing-gpu-toleration"]
    assert {finding.explained_by for finding in diagnosis.findings} == {"", "pod-missing-gpu-toleration"}


NO_NVML = (
    "kubectl logs nvidia-device-plugin",
    "could not load NVML library: libnvidia-ml.so.1: cannot open shared object",
)


@pytest.mark.parametrize(
    "sign",
    [
        ("shell", "minikube start --driver=docker"),
        ("kind create cluster --name gpu", 'Creating cluster "gpu" ...'),
        ("k3d cluster create gpu", ""),
        (
            "kubectl get nodes",
            "NAME       STATUS   ROLES           AGE   VERSION\nminikube   Ready    control-plane   5m    v1.30.0",
        ),
        ("docker ps", "CONTAINER ID   IMAGE                  NAMES\n0a1b   kindest/node:v1.30.0   dev-worker"),
    ],
)
def test_nested_node_is_recognized_by_its_tool(sign: tuple[str, str]) -> None:
    assert roots(sign, NO_NVML) == ["nested-node-config-not-applied"]


@pytest.mark.parametrize(
    "sign",
    ["minikube start --driver=none", "minikube start --driver=kvm2", "minikube start --driver=docker --gpus=all"],
)
def test_host_or_nested_node_with_gpus_is_not_blamed(sign: str) -> None:
    assert "nested-node-config-not-applied" not in roots(("shell", sign), NO_NVML)


def test_working_nested_node_has_no_finding() -> None:
    assert not diagnose_pieces(("shell", "minikube start --driver=docker"), node(1, 1, 0)).findings


# Healthy clusters.

MIG = 'status:\n  capacity:\n    nvidia.com/mig-1g.5gb: "7"\n  allocatable:\n    nvidia.com/mig-1g.5gb: "7"'
OFFERS = "Capacity:\n  cpu: 8\n  nvidia.com/gpu: 4\nAllocatable:\n  cpu: 8\n  nvidia.com/gpu: 4"


@pytest.mark.parametrize(
    "pieces",
    [
        (("kubectl describe node", f"{LABELS}\n{TAINT}\n{OFFERS}\nAllocated resources:\n  nvidia.com/gpu  1  1"),),
        (("kubectl get nodes", "NAME STATUS ROLES AGE\nkind-control-plane Ready control-plane 2d"),),
        (
            ("kubectl get pods", "train-0   0/1   Completed   0   1d\ntrain-1   1/1   Running   0   1d"),
            ("journalctl -u kubelet", "systemd[1]: Stopped kubelet.service.\nsystemd[1]: Started kubelet.service."),
        ),
        (
            ("cat deploy.yaml", "kind: Deployment\nspec:\n  replicas: 3\n  template:\n    spec:\n      containers: []"),
            ("kubectl describe node", "Capacity:\n nvidia.com/gpu: 1\nAllocatable:\n nvidia.com/gpu: 1"),
        ),
        (
            ("kubectl describe node", "Labels: nvidia.com/gpu.deploy.driver=pre-installed\n" + OFFERS),
            ("dpkg -l | grep nvidia-driver", "ii  nvidia-driver-570  570.124.06-0ubuntu1  amd64  driver"),
            ("nvidia-smi", "| NVIDIA-SMI 570.124.06   Driver Version: 570.124.06   CUDA Version: 12.8 |"),
        ),
        (
            ("kubectl get node -o yaml", MIG),
        ),
    ],
)  # fmt: skip
def test_working_cluster_has_no_finding(pieces: tuple[tuple[str, str], ...]) -> None:
    assert not diagnose_pieces(*pieces).findings


DAEMON_SETS = (
    "NAME                   DESIRED   CURRENT   READY   UP-TO-DATE   AVAILABLE   NODE SELECTOR   AGE\n"
    "nvidia-device-plugin   {0}         {0}         {0}       {0}            {0}           <none>          10m\n"
)
SHOWN_LABELS = (
    "NAME   STATUS   ROLES    AGE   VERSION   LABELS\n"
    "gpu1   Ready    <none>   21d   v1.34.2   {}kubernetes.io/arch=amd64,kubernetes.io/hostname=gpu1\n"
)


def diagnose_daemon_set(desired: int, label: str | None, *more: tuple[str, str]) -> Diagnosis:
    labels = () if label is None else (("kubectl get nodes --show-labels", SHOWN_LABELS.format(label)),)
    pieces = (("kubectl get ds -n nvidia-device-plugin", DAEMON_SETS.format(desired)), *labels, *more)
    return diagnose(take_snapshot(pasted.collect_pieces(pieces)))


@pytest.mark.parametrize(
    "label",
    ["nvidia.com/gpu.present=true,", "feature.node.kubernetes.io/pci-10de.present=true,"],
)
def test_missing_node_label_explains_that_no_plugin_is_scheduled(label: str) -> None:
    assert not diagnose_daemon_set(0, label).findings
    assert not diagnose_daemon_set(1, "").findings
    assert [one.cause for one in diagnose_daemon_set(0, "").findings] == ["gpu-node-not-labelled"]
    assert [one.cause for one in diagnose_daemon_set(0, "nvidia.com/gpu.present=false,").findings] == [
        "gpu-node-not-labelled"
    ]


def test_unseen_label_is_a_likely_cause_and_a_taint_an_alternative() -> None:
    assert [(one.cause, one.confidence) for one in diagnose_daemon_set(0, None).findings] == [
        ("gpu-node-not-labelled", "likely")
    ]
    taint = ("kubectl describe node gpu1 | grep Taints", "Taints:             nvidia.com/gpu=true:NoSchedule\n")
    assert [one.cause for one in diagnose_daemon_set(0, "", taint).findings] == ["pod-missing-gpu-toleration"]


def test_next_step_is_of_what_is_known_and_of_what_is_not_shown() -> None:
    """HAMi finds no room on a card that a pod holds; the node's description is there, whatever command printed it."""
    waits = (
        "kubectl describe pod",
        "Warning  FailedScheduling  hami-scheduler  0/1 nodes are available: 1 CardInsufficientMemory.",
    )
    used = (
        "pasted text",
        "Allocated resources:\n  Resource           Requests     Limits\n  nvidia.com/gpu     2            2",
    )
    found = diagnose_pieces(waits, used)
    assert [(finding.cause, finding.confidence) for finding in found.roots] == [("gpus-all-allocated", "likely")]
    assert found.suspects
    assert found.next_step is not None
    assert found.next_step == found.roots[0].next_step
    assert "nvidia.com/gpumem" in found.next_step.text
