"""Messages of a real kubelet and scheduler about each fault, by containerd's version, are understood.

Recorded by tests/e2e/kubernetes/test_kubelet_node.py.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from gpunode.kubernetes.live_checks import explain_node_not_ready
from gpunode.kubernetes.pods import find_problem

_TEXTS: Final = Path(__file__).with_name("texts")
_WHY: Final = {
    "handler-missing": r'the container runtime of lab has no runtime "nvidia"',
    "runtime-binary-missing": r"lab has no /usr/bin/nvidia-container-runtime",
    "runtime-binary-fails": r"/usr/bin/nvidia-container-runtime ended with exit status 1 on lab",
    "cgroup-drivers-differ": r"the kubelet of lab uses the cgroup driver cgroupfs, its container runtime systemd",
    "too-many-gpus": r"no node has enough nvidia\.com/gpu left",
    "taint": r"the nodes have taints that the pod does not tolerate",
    "gpu-unhealthy": r"no node has enough nvidia\.com/gpu left",
    "plugin-gone": r"no node has enough nvidia\.com/gpu left",
    "plugin-gone-before-the-kubelet-started": r"no node has enough nvidia\.com/gpu left",
    "image-not-to-be-had": r"the image registry\.example/absent:1 cannot be pulled: failed to pull and unpack image",
    "gpus-that-the-node-has-not": r"lab did not admit the pod: .* Requested: 5, Available: 2",
    "node-rebooted": r"lab did not admit the pod: .* no healthy devices present",
}
_NOT_READY: Final = {
    "no-network": r"cni plugin not initialized",
    "kubelet-stopped": r"Kubelet stopped posting node status",
    "cri-not-loaded": r"container runtime is down",
}


def _texts() -> dict[str, Any]:
    files = {path.stem: json.loads(path.read_text()) for path in sorted(_TEXTS.glob("*.json"))}
    return {f"{version}/{fault}": seen for version, kept in files.items() for fault, seen in kept.items()}


TEXTS: Final = _texts()


def _cases(wanted: dict[str, str]) -> list[Any]:
    return [
        pytest.param(name, why, id=name)
        for name in TEXTS
        for fault, why in wanted.items()
        if name.endswith(f"/{fault}")
    ]


@pytest.mark.parametrize(("name", "why"), _cases(_WHY))
def test_pod_failure_text_is_understood(name: str, why: str) -> None:
    seen = TEXTS[name]
    states = seen["pod"].pop("containers", [])
    containers = [{"image": "registry.example/absent:1", "state": state} for state in states]
    pod = {
        "metadata": {"name": "one"},
        "spec": {"nodeName": "lab"},
        "status": {**seen["pod"], "containerStatuses": containers},
    }
    events = [{**event, "type": "Warning", "involvedObject": {"name": "one"}} for event in seen["events"]]

    found = find_problem(pod, events)

    assert found
    assert re.search(why, found.why)


@pytest.mark.parametrize(("name", "why"), _cases(_NOT_READY))
def test_node_not_ready_text_is_understood(name: str, why: str) -> None:
    assert re.search(why, str(explain_node_not_ready({"status": {"conditions": [TEXTS[name]["node"]["ready"]]}})))
