"""Admission by the kubelet: which cause made it refuse a pod."""

from __future__ import annotations

import json

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted

LOG = "kubectl logs -n kube-system nvidia-device-plugin-daemonset-x"


def diagnose_pieces(*pieces: tuple[str, str]) -> Diagnosis:
    rows = [{"source": source, "text": text} for source, text in pieces]
    return diagnose(take_snapshot(pasted.parse_json_report(json.dumps(rows), "a report")))


def roots(*pieces: tuple[str, str]) -> list[str]:
    return [finding.cause for finding in diagnose_pieces(*pieces).roots]


EMPTY = "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu"
LESS = "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. Requested: 1, Available: 0"
GONE = "Allocate failed due to cannot allocate unregistered device nvidia.com/gpu, which is unexpected"
HELD = "previously allocated devices are no longer healthy; cannot allocate unhealthy devices nvidia.com/gpu"
BOOT = ("kubectl get events", "Warning  Rebooted  node/gpu-1  Node gpu-1 has been rebooted, boot id: 8b1f8f0c")
RESTART = ("sudo systemctl restart kubelet", "")
REBOOTED, RESTARTED, STALE = (
    *("device-plugin-not-ready-after-reboot", "kubelet-restart-admission-bug", "kubelet-stale-device-allocation"),
)


@pytest.mark.parametrize(
    ("message", "more", "wanted"),
    [
        (EMPTY, (), REBOOTED),
        (GONE, (), REBOOTED),
        (EMPTY, (BOOT,), REBOOTED),
        (LESS, (BOOT,), REBOOTED),
        (EMPTY, (RESTART,), RESTARTED),
        (HELD, (RESTART,), RESTARTED),
        (LESS, (RESTART,), RESTARTED),
        (EMPTY, (("kubectl get nodes", "gpu-1   Ready   <none>   9d   v1.26.4"),), RESTARTED),
        (EMPTY, (("kubectl get nodes", "gpu-1   Ready   <none>   9d   v1.30.4"),), REBOOTED),
        (LESS, (), STALE),
    ],
)
def test_pod_refusal_is_attributed_to_its_cause(message: str, more: tuple[tuple[str, str], ...], wanted: str) -> None:
    assert roots(("kubectl describe pod", f"Reason: UnexpectedAdmissionError\nMessage: {message}"), *more) == [wanted]


def test_refusal_without_a_reason_has_suspects() -> None:
    diagnosis = diagnose_pieces(("kubectl get pods", "train-0   0/1   UnexpectedAdmissionError   0   5m"))
    assert not diagnosis.findings
    assert {REBOOTED, RESTARTED, STALE} <= {one.cause for one in diagnosis.suspects}


@pytest.mark.parametrize(
    "message",
    [
        EMPTY.replace("nvidia.com/gpu", "amd.com/gpu"),
        "Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: nvml: GPU is lost",
    ],
)
def test_other_devices_and_lost_gpus_have_other_causes(message: str) -> None:
    assert not {REBOOTED, RESTARTED, STALE} & set(
        roots(("kubectl describe pod", f"UnexpectedAdmissionError {message}"))
    )


def test_unhealthy_gpu_ranks_before_the_refusal() -> None:
    health = (LOG, "'nvidia.com/gpu' device marked unhealthy: GPU-1")
    assert roots(("kubectl describe pod", EMPTY), health) == ["device-plugin-marked-unhealthy"]


UID = "9a422c32-4fc2-11e9-bb64-505dac4c3a38"
ENTRY = {"PodUID": UID, "ResourceName": "nvidia.com/gpu", "DeviceIDs": {"0": ["GPU-1"]}}
RECORD = json.dumps({"Data": {"PodDeviceEntries": [ENTRY]}})


RECORDED = ("cat /var/lib/kubelet/device-plugins/kubelet_internal_checkpoint", RECORD)


def test_kubelet_checkpoint_makes_the_cause_certain() -> None:
    (finding,) = diagnose_pieces(("kubectl describe pod", f"UnexpectedAdmissionError {LESS}"), RECORDED).roots
    assert (finding.cause, finding.confidence) == (STALE, "certain")


def test_checkpoint_entry_of_a_deleted_pod_is_no_fault() -> None:
    """The kubelet removes such entries when it next assigns devices to a pod."""
    assert not diagnose_pieces(RECORDED, ("ls /var/lib/kubelet/pods", "0c1d3a04-1d0b-4a54-8a3c-5f1f3c2a9b11")).findings


def test_refusal_only_in_the_log_is_past() -> None:
    log = ("journalctl -u kubelet", f'kubelet[1]: E0619 "UnexpectedAdmissionError" err="{EMPTY}"')
    table = ("kubectl get pods -A", "ml   train-0   1/1   Running   0   5m")
    assert roots(log) == [REBOOTED]
    assert roots(log, table) == []
    assert roots(log, ("kubectl get pods -A", "ml   train-0   0/1   UnexpectedAdmissionError   0   5m")) == [REBOOTED]
