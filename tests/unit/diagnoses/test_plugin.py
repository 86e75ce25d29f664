"""The device plugin: the evidence that decides between its causes, and no claim without it."""

from __future__ import annotations

import json

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted

LIBRARY = "device-plugin-library-not-found"
RUNTIME = "nvidia-runtime-not-default-no-runtimeclass"


def diagnose_pieces(*pieces: tuple[str, str]) -> Diagnosis:
    rows = [{"source": source, "text": text} for source, text in pieces]
    return diagnose(take_snapshot(pasted.parse_json_report(json.dumps(rows), "a report")))


def roots(*pieces: tuple[str, str]) -> list[str]:
    return [finding.cause for finding in diagnose_pieces(*pieces).roots]


LOG = "kubectl logs -n kube-system nvidia-device-plugin-daemonset-x"
MISSING = (LOG, "NVML not detected: could not load NVML library: libnvidia-ml.so.1: cannot open shared object file")
ASKS = (
    LOG,
    "Incompatible strategy detected auto\nIf this is a GPU node, did you configure the NVIDIA Container Toolkit?",
)


SHIM = "io.containerd.runc.v2"


def dump(default: str) -> tuple[str, str]:
    section = 'plugins."io.containerd.grpc.v1.cri".containerd'
    text = f'[{section}]\n  default_runtime_name = "{default}"\n[{section}.runtimes.nvidia]\n  runtime_type = "{SHIM}"'
    return "containerd config dump", text


def pod(runtime_class: str) -> tuple[str, str]:
    return (
        "kubectl get pod nvidia-device-plugin-x -o yaml",
        f"spec:\n  runtimeClassName: {runtime_class}\n  containers: []",
    )


@pytest.mark.parametrize(
    ("pieces", "wanted"),
    [
        ((MISSING, dump("runc")), RUNTIME),
        ((MISSING, dump("runc"), pod("null")), RUNTIME),
        ((MISSING, ("kubectl get runtimeclass", "NAME     HANDLER   AGE\nnvidia   nvidia    3d")), RUNTIME),
        ((ASKS,), RUNTIME),
        ((MISSING, ASKS), RUNTIME),
        ((MISSING, dump("nvidia")), LIBRARY),
        ((ASKS, dump("nvidia")), LIBRARY),
        ((MISSING, dump("runc"), pod("nvidia")), LIBRARY),
        ((ASKS, pod("nvidia")), LIBRARY),
        ((MISSING, ("ls /home/kubernetes/bin/nvidia/lib64", "libnvidia-ml.so.1")), LIBRARY),
        ((MISSING, ("cat /etc/os-release", "NAME=NixOS\nID=nixos")), LIBRARY),
    ],
)
def test_runtime_and_driver_location_decide_the_cause(pieces: tuple[tuple[str, str], ...], wanted: str) -> None:
    assert roots(*pieces) == [wanted]


def test_complete_evidence_makes_the_cause_certain() -> None:
    (finding,) = diagnose_pieces(MISSING, dump("runc"), pod("null")).roots
    assert finding.confidence == "certain"
    (finding,) = diagnose_pieces(MISSING, dump("runc")).roots
    assert finding.confidence == "likely"


def test_missing_runtime_evidence_gives_suspects() -> None:
    assert not diagnose_pieces(MISSING).findings
    assert {LIBRARY, RUNTIME} <= {one.cause for one in diagnose_pieces(MISSING).suspects}


@pytest.mark.parametrize("state", [("lsmod | grep nvidia", ""), ("nvidia-smi", "bash: nvidia-smi: command not found")])
def test_plugin_is_not_blamed_without_a_driver(state: tuple[str, str]) -> None:
    assert not {LIBRARY, RUNTIME} & set(roots(MISSING, ASKS, state))


def test_missing_handler_is_a_cause_of_its_own() -> None:
    section = 'plugins."io.containerd.grpc.v1.cri".containerd'
    text = f'[{section}]\n  default_runtime_name = "runc"\n[{section}.runtimes.runc]\n  runtime_type = "{SHIM}"'
    assert not {LIBRARY, RUNTIME} & set(roots(MISSING, ("containerd config dump", f"version = 2\n{text}")))


def test_workload_without_the_driver_has_the_same_cause() -> None:
    inside = ("kubectl exec train-0 -- nvidia-smi", 'exec: "nvidia-smi": executable file not found in $PATH: unknown')
    assert RUNTIME in roots(inside, dump("runc"))
    assert RUNTIME not in roots(inside, dump("nvidia"))


def test_plugin_on_a_node_without_a_gpu_is_healthy() -> None:
    log = (
        "kubectl logs -n kube-system nvidia-device-plugin-daemonset-x2x4z",
        (
            "I1121 10:00:00.000000 1 factory.go:107] Detected non-NVML platform: could not load NVML library: "
            "libnvidia-ml.so.1: cannot open shared object file: No such file or directory\n"
            "E1121 10:00:00.000000 1 factory.go:115] Incompatible platform detected\n"
            "I1121 10:00:00.000000 1 main.go:287] No devices found. Waiting indefinitely.\n"
        ),
    )
    bus = "00:02.0 VGA compatible controller [0300]: Cirrus Logic GD 5446 [1013:00b8]\n"
    assert diagnose_pieces(log, ("lspci -nn", bus)).is_healthy
    assert not diagnose_pieces(log, ("lspci -nn | grep -i nvidia", "")).findings
    gpu = "07:00.0 3D controller [0302]: NVIDIA Corporation GA100 [10de:20b0]\n"
    assert roots(log, ("lspci -nn", bus + gpu)) == [RUNTIME]


# Health.


@pytest.mark.parametrize(
    "log",
    [
        "XidCriticalError: Xid=48 on Device=GPU-1, the device will go unhealthy.",
        "'nvidia.com/gpu' device marked unhealthy: GPU-1",
        "I0724 06:32:11 health.go:159] Processing event XidCriticalError on GPU-1; marking device as unhealthy.",
        "Warning: GPU with UUID GPU-1 is too old to support healthchecking. Marking it unhealthy",
    ],
)
def test_unhealthy_gpu_message_variants_are_recognized(log: str) -> None:
    assert roots((LOG, log)) == ["device-plugin-marked-unhealthy"]


@pytest.mark.parametrize(
    "log",
    [
        "'nvidia.com/gpu' device marked healthy: GPU-1",
        "Warning  Unhealthy  kubelet  Readiness probe failed: nvidia-device-plugin is unhealthy",
        "etcd cluster is unhealthy",
    ],
)
def test_unhealthy_message_of_another_program_is_ignored(log: str) -> None:
    assert "device-plugin-marked-unhealthy" not in roots(
        ("kubectl get events", log.replace("nvidia-device-plugin", "web"))
    )


def test_node_that_offers_its_gpus_has_a_working_plugin() -> None:
    node = ("kubectl describe node", "Capacity:\n  nvidia.com/gpu: 2\nAllocatable:\n  nvidia.com/gpu: 2")
    assert not diagnose_pieces(ASKS, node).findings
    assert not diagnose_pieces((LOG, "'nvidia.com/gpu' device marked unhealthy: GPU-1"), node).findings
