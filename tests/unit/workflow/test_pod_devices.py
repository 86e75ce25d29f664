"""Pods that hold a GPU without working on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpunode.change import MigChange, MigLayout
from gpunode.errors import DrainRequired
from gpunode.host.local import LocalHost
from gpunode.workflow import live_state
from gpunode.workflow.disruption import refuse_gpu_clients
from gpunode.workflow.live_state import find_gpu_pods

POD, GONE = "0c5b1f6e-0000-4000-8000-000000000001", "0c5b1f6e-0000-4000-8000-000000000002"
GPU = "GPU-5a1b"


def entry(devices: Any, resource: str = "nvidia.com/gpu", pod: str = POD) -> dict[str, Any]:
    return {"PodUID": pod, "ContainerName": "c", "ResourceName": resource, "DeviceIDs": devices, "AllocResp": ""}


def node(root: Path, text: str, where: str = "var/lib/kubelet") -> LocalHost:
    plugins = root / where / "device-plugins"
    plugins.mkdir(parents=True)
    (root / where / "pods" / POD).mkdir(parents=True)
    (plugins / "kubelet_internal_checkpoint").write_text(text)
    return LocalHost(str(root))


@pytest.mark.parametrize(
    ("one", "found"),
    [
        (entry({"-1": ["MIG-77"]}, "nvidia.com/mig-1g.10gb"), f"pod {POD} (nvidia.com/mig-1g.10gb)"),
        (entry({"0": [], "1": [GPU]}), f"pod {POD} (nvidia.com/gpu)"),
        (entry([f"{GPU}::3"]), f"pod {POD} (nvidia.com/gpu)"),
        (entry({"-1": [f"{GPU}-3"]}), f"pod {POD} (nvidia.com/gpu)"),
        (entry({"0": ["GPU-other"]}), ""),
        (entry({"0": ["0000:03:00.1"]}, "intel.com/sriov"), ""),
        (entry({"0": [GPU]}, pod=GONE), ""),
    ],
)
@pytest.mark.parametrize("where", ["var/lib/kubelet", "var/lib/k0s/kubelet"])
def test_gpu_pods_are_read_from_the_kubelet_checkpoint(
    tmp_path: Path, one: dict[str, Any], found: str, where: str
) -> None:
    text = json.dumps({"Data": {"PodDeviceEntries": [one, one], "RegisteredDevices": {}}, "Checksum": 1})
    assert find_gpu_pods(node(tmp_path, text, where), [GPU]) == ((found,) if found else ())


def test_node_without_a_kubelet_has_no_gpu_pods(tmp_path: Path) -> None:
    assert find_gpu_pods(LocalHost(str(tmp_path)), [GPU]) == ()
    empty = {"Data": {"PodDeviceEntries": None, "RegisteredDevices": {}}, "Checksum": 1}
    assert find_gpu_pods(node(tmp_path, json.dumps(empty)), [GPU]) == ()


@pytest.mark.parametrize("text", ["", "{", '{"Data": 5}', '{"Data": {"PodDeviceEntries": [7]}}'])
def test_invalid_kubelet_checkpoint_counts_as_a_gpu_pod(tmp_path: Path, text: str) -> None:
    (said,) = find_gpu_pods(node(tmp_path, text), [GPU])
    assert "cannot be understood" in said


def test_unreadable_kubelet_checkpoint_counts_as_a_gpu_pod(tmp_path: Path) -> None:
    host = node(tmp_path, "")
    checkpoint = tmp_path / "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
    checkpoint.unlink()
    checkpoint.mkdir()
    (said,) = find_gpu_pods(host, [GPU])
    assert "cannot be read" in said


def test_mig_layout_is_not_changed_under_a_pod_that_holds_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVML lists no process of the pod."""
    monkeypatch.setattr(live_state, "list_gpus", lambda _: {})
    text = json.dumps({"Data": {"PodDeviceEntries": [entry({"0": [GPU]})]}})
    change = MigChange(GPU, MigLayout(enabled=False), MigLayout(enabled=True))
    with pytest.raises(DrainRequired, match="would take the GPU from pods") as refused:
        refuse_gpu_clients(node(tmp_path, text), [change])
    assert f"pod {POD} (nvidia.com/gpu)" in refused.value.why
    refuse_gpu_clients(LocalHost(str(tmp_path / "empty")), [change])
