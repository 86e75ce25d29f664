"""The GPU Operator's driver pod: the host's driver, running clients and a missing image are distinguished."""

from __future__ import annotations

import json

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted

HOST, BLOCKED, NO_IMAGE = (
    *("gpu-operator-vs-host-driver", "gpu-operator-driver-restart-blocked", "operator-no-driver-image"),
)


def diagnose_pieces(*pieces: tuple[str, str]) -> Diagnosis:
    rows = [{"source": source, "text": text} for source, text in pieces]
    return diagnose(take_snapshot(pasted.parse_json_report(json.dumps(rows), "a report")))


def roots(*pieces: tuple[str, str]) -> list[str]:
    return [finding.cause for finding in diagnose_pieces(*pieces).roots]


IN_USE = (
    "kubectl logs nvidia-driver-daemonset-x",
    "Unloading NVIDIA driver kernel modules...\nCould not unload NVIDIA driver kernel modules, driver is in use",
)
MANAGER = (
    "kubectl logs nvidia-driver-daemonset-x -c k8s-driver-manager",
    (
        "Could not unload NVIDIA driver kernel modules, driver is in use\n"
        "Auto eviction of GPU pods on node gpu-1 is disabled by the upgrade policy"
    ),
)


@pytest.mark.parametrize(
    ("pieces", "wanted"),
    [
        (
            (IN_USE, ("dpkg -l | grep nvidia", "ii  nvidia-driver-535  535.183.01-0ubuntu0.22.04.1  amd64  driver")),
            HOST,
        ),
        ((IN_USE, ("which nvidia-smi", "/usr/bin/nvidia-smi")), HOST),
        ((MANAGER, ("which nvidia-smi", "/usr/bin/nvidia-smi")), HOST),
        ((MANAGER,), BLOCKED),
        ((IN_USE, ("dpkg -l | grep nvidia", "")), BLOCKED),
        ((IN_USE, ("ls /run/nvidia/driver/usr/bin/nvidia-smi", "/run/nvidia/driver/usr/bin/nvidia-smi")), BLOCKED),
    ],
)
def test_driver_in_the_way_is_attributed(pieces: tuple[tuple[str, str], ...], wanted: str) -> None:
    assert roots(*pieces) == [wanted]


def test_unattributed_driver_is_likely_that_of_the_host() -> None:
    diagnosis = diagnose_pieces(IN_USE)
    assert [(one.cause, one.confidence) for one in diagnosis.findings] == [(HOST, "likely")]
    assert BLOCKED in [one.cause for one in diagnosis.suspects]


def test_host_driver_under_a_running_stack_is_no_finding() -> None:
    table = "| NVIDIA-SMI 570.124.06   Driver Version: 570.124.06   CUDA Version: 12.8 |"
    pods = "nvidia-operator-validator-x   1/1   Running   0   3d"
    assert not diagnose_pieces(("nvidia-smi", table), ("kubectl get pods -n gpu-operator", pods)).findings


PULL = 'Failed to pull image "nvcr.io/nvidia/driver:550.90.07-debian12": rpc error: code = '


@pytest.mark.parametrize(
    ("reason", "is_absent"),
    [
        ("NotFound desc = failed to resolve reference: nvcr.io/nvidia/driver:550.90.07-debian12: not found", True),
        ("Unknown desc = reading manifest 550.90.07-debian12 in nvcr.io/nvidia/driver: manifest unknown", True),
        ("Unknown desc = failed to do request: dial tcp: lookup nvcr.io: no such host", False),
        ("Unknown desc = failed to authorize: 401 Unauthorized", False),
        ("Unknown desc = x509: certificate signed by unknown authority", False),
        ("ResourceExhausted desc = write /var/lib/containerd: no space left on device", False),
    ],
)
def test_absent_image_differs_from_an_unreachable_registry(reason: str, *, is_absent: bool) -> None:
    assert (roots(("kubectl describe pod nvidia-driver-daemonset-x", PULL + reason)) == [NO_IMAGE]) is is_absent


def test_unexplained_image_pull_failure_is_a_suspect() -> None:
    row = "nvidia-driver-daemonset-pwnhc   0/1   ImagePullBackOff   0   34m"
    diagnosis = diagnose_pieces(("kubectl get pod -n gpu-operator", row))
    assert not diagnosis.findings
    assert NO_IMAGE in [one.cause for one in diagnosis.suspects]
