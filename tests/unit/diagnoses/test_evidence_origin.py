"""Words of containers about a node with its own evidence, and about one without."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.diagnoses.views import evidence_origin
from gpunode.facts import pasted
from gpunode.facts.evidence import Evidence, GlobMatch, encode_matches
from tests.laws.test_trust_laws import with_pods
from tests.scenarios.healthy.captures import evidence, journal
from tests.scenarios.healthy.nodes import HEALTHY

FELL = "[  100.000000] NVRM: Xid (PCI:0000:31:00): 79, pid=1, GPU has fallen off the bus.\n"
HEADERS = (
    "Error! Your kernel headers for kernel 6.8.0-50-generic cannot be found.\n"
    "Please install the linux-headers-6.8.0-50-generic package or use the --kernelsourcedir option.\n"
)
SHADOWED = (
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). "
    "Error 803: system has unsupported display driver / cuda driver combination\n"
)


@cache
def healthy(name: str = "kubeadm-with-device-plugin") -> Evidence:
    return evidence(HEALTHY[name]())


def causes(found: Diagnosis) -> list[str]:
    return [one.cause for one in found.findings if one.severity != "info"]


@pytest.mark.parametrize("said", [FELL, HEADERS, "NVRM: GPU 0000:31:00.0: RmInitAdapter failed! (0x62:0xffff:2477)\n"])
def test_pod_log_does_not_judge_the_layers_of_its_node(said: str) -> None:
    found = diagnose(take_snapshot(with_pods(healthy(), {"app": said})))
    assert (found.findings, found.open_questions) == ((), ())


def test_fault_seen_first_by_a_pod_is_likely_and_names_it() -> None:
    found = diagnose(take_snapshot(with_pods(healthy(), {"app": SHADOWED})))
    (one,) = found.findings
    assert (one.cause, one.confidence) == ("cuda-compat-lib-mismatch", "likely")
    assert one.summary.startswith("By the log of pod tenant/my-nvidia-app: ")
    assert one.container_log == "the log of pod tenant/my-nvidia-app"


def test_program_in_a_pod_shows_that_an_exclusive_gpu_is_busy() -> None:
    node = healthy()
    modes = node["smi-query"].data.replace(b": Default", b": Exclusive_Process")
    node = {**node, "smi-query": replace(node["smi-query"], data=modes)}
    assert not causes(diagnose(take_snapshot(node)))
    busy = "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable\n"
    (one,) = diagnose(take_snapshot(with_pods(node, {"app": busy}))).findings
    assert (one.cause, one.confidence) == ("compute-mode-exclusive", "likely")


def test_program_in_a_pod_shows_that_it_may_not_use_mig() -> None:
    said = "visiting device 0: NVML_ERROR_NO_PERMISSION\n"
    (one,) = diagnose(take_snapshot(with_pods(healthy(), {"app": said}))).findings
    assert (one.cause, one.confidence) == ("mig-capabilities-permission", "likely")


def test_pod_log_does_not_hide_a_fault_of_the_node() -> None:
    """It does not become the fault's root cause either."""
    node = evidence(
        {**HEALTHY["kubeadm-with-device-plugin"](), "kernel-journal": journal(("kernel: " + FELL[16:].strip(),))}
    )
    node = {key: capture for key, capture in node.items() if key not in {"nvml", "smi", "smi-query"}}
    alone = diagnose(take_snapshot(node))
    assert (alone.roots[0].cause, alone.roots[0].confidence) == ("gpu-fallen-off-bus", "certain")
    logs = {"one": HEADERS + SHADOWED, "two": "Insufficient nvidia.com/gpu; untolerated taint\n"}
    beside = diagnose(take_snapshot(with_pods(node, logs)))
    assert (beside.roots[0].cause, beside.roots[0].confidence) == ("gpu-fallen-off-bus", "certain")


def test_report_of_only_a_pod_log_is_used() -> None:
    log = [{"source": "kubectl logs -n gpu-operator nvidia-driver-daemonset-x7k2p", "text": FELL}]
    found = diagnose(take_snapshot(pasted.parse_json_report(json.dumps(log), "a report")))
    assert causes(found) == ["gpu-fallen-off-bus"]


def test_working_node_lowers_the_confidence_of_a_pasted_pod_log() -> None:
    smi = (
        "| NVIDIA-SMI 580.95.05   Driver Version: 580.95.05   CUDA Version: 13.0 |\n"
        "|   0  NVIDIA L40S     On  |   00000000:31:00.0 Off |                    0 |\n"
    )
    works, said = ("nvidia-smi", smi), ("kubectl logs app", HEADERS)
    (found,) = diagnose(take_snapshot(pasted.collect_pieces([works, said]))).findings
    assert (found.confidence, found.container_log) == ("likely", "kubectl logs app")
    (found,) = diagnose(take_snapshot(pasted.collect_pieces([works, ("sudo dkms autoinstall", HEADERS)]))).findings
    assert (found.confidence, found.container_log) == ("certain", "")


def test_commands_in_a_pod_log_are_not_taken_for_the_node() -> None:
    gpu = "01:00.0 VGA compatible controller [0300]: NVIDIA Corporation GK208B [10de:128b]"
    text = f"$ lspci -nnk\n{gpu}\n\tKernel driver in use: nouveau\n"
    for source in ("kubectl logs app", "docker logs app", "/var/log/pods/a_b_c/app/0.log"):
        rows = [{"source": source, "text": text}]
        (item,) = take_snapshot(pasted.parse_json_report(json.dumps(rows), "a report")).items
        assert (item.kind, item.where) == ("lspci", "container")


@pytest.mark.parametrize("is_loaded", [True, False])
def test_driver_pod_log_counts_only_without_a_loaded_driver(is_loaded: bool) -> None:
    node = {key: one for key, one in healthy().items() if key != "nvidia-version"}
    if not is_loaded:
        node["modules"] = replace(node["modules"], data=b"overlay 200704 12 - Live 0x0000000000000000\n")
    path = "/var/log/pods/gpu-operator_nvidia-driver-daemonset-x7k2p_6f1c/nvidia-driver-ctr/0.log"
    found = (
        GlobMatch(path, data=HEADERS.encode()),
        GlobMatch(path.replace("nvidia-driver", "app"), data=HEADERS.encode()),
    )
    node["pod-logs"] = replace(node["pod-logs"], data=encode_matches(iter(found)))
    heard = [
        item.written for item in evidence_origin.node_evidence_only(take_snapshot(node)).items if item.key == "pod-logs"
    ]
    assert heard == ([] if is_loaded else [path])
