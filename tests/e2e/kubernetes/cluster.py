"""A cluster of one node, and kubectl's output about its faults."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from tests.e2e.chroot.scenario import Answer
from tests.e2e.kubernetes.control_plane import ControlPlane
from tests.e2e.kubernetes.images import import_images
from tests.e2e.kubernetes.kubelet_node import KUBECONFIG, KUBELET, NAME, KubeletNode
from tests.e2e.lab.commands import Result
from tests.e2e.machine.scenario import ask

GPU: Final = "nvidia.com/gpu"
NAMESPACE: Final = "gpu-system"
PLUGIN: Final = ("daemonset/nvidia-device-plugin", f"--namespace={NAMESPACE}")
COMPUTES: Final = "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0"
WAITS: Final = "registry.example/waits:1"
RECIPE: Final = "/root/kubernetes.toml"
RENDERED: Final = "/root/rendered"
# Long enough for a sandbox to fail.
_VERIFY_S: Final = 15
# No cluster DNS; and information that a newly started kubelet does not have yet.
_LACKS: Final = ("MissingClusterDNS", "FailedMount")
# Ids, ports and times, replaced by values of the same kind.
_DIFFERS: Final = {
    r"(?<=:)\d{4,5}(?=->127)": "50000",
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}": "00000000-0000-0000-0000-000000000000",
    r"\b[0-9a-f]{64}\b": "0" * 64,
    r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ": "2026-01-01T00:00:00Z",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """The node and its control plane."""

    node: KubeletNode
    plane: ControlPlane

    def import_images(self) -> None:
        """Import into containerd the images that the recipe's objects name."""
        self.node.run("gpunode", "k8s", "render", RECIPE, "--output", RENDERED)
        rendered = self.node.run("grep", "-rhoE", "image: .*", RENDERED).stdout
        references = {line.removeprefix("image: ") for line in rendered.splitlines()}
        import_images(self.node, *sorted(references | {WAITS}))

    def gpunode(self, verb: str, *arguments: str) -> Answer:
        """Return the answer to ``gpunode k8s VERB``, run on the node by the cluster's administrator."""
        return ask(self.node, "k8s", verb, *arguments, "--kubeconfig", KUBECONFIG)

    def apply(self) -> None:
        """Apply the recipe's objects, and wait until the node offers the GPUs."""
        done = self.gpunode("apply", RECIPE, "--yes", "--timeout=90")
        assert done.exit_code == 0, f"{done.error}\n{self.plane.state()}"
        self.await_gpus(2)

    def failed_checks(self, *options: str) -> str:
        """Return the messages of the failed checks of ``k8s verify``, which must find a fault."""
        done = self.gpunode("verify", RECIPE, f"--timeout={_VERIFY_S}", *options)
        assert done.exit_code == 7, f"{done.exit_code}: {done.stderr}"
        failed = (one for one in done.result["checks"] if one["status"] == "failed")
        return "\n".join(f"{one['id']}: {one['detail']}" for one in failed)

    def await_gpus(self, allocatable: int, timeout_s: float = 60) -> float:
        """Return the seconds until the node offered this number of GPUs."""
        return self.plane.wait_for(
            f"{allocatable} GPUs are offered", lambda: self.resources("allocatable") == allocatable, timeout_s
        )

    def restart_kubelet(self) -> None:
        """Restart the kubelet, and wait until it has GPUs; until then it rejects pods that request them."""
        before = self.node.registrations()
        self.node.run("systemctl", "restart", KUBELET)
        self.plane.wait_for("the plugin has registered", lambda: self.node.registrations() > before)

    def await_ready(self, state: str = "True", timeout_s: float = 60) -> float:
        """Return the seconds until the node's condition Ready was ``state``."""
        return self.plane.wait_for(
            f"Ready is {state}", lambda: self.condition("Ready").get("status") == state, timeout_s
        )

    def resources(self, which: str) -> int:
        """Return the number of GPUs in the node's ``capacity`` or ``allocatable``."""
        return int(self._node()["status"].get(which, {}).get(GPU, 0))

    def condition(self, kind: str) -> dict[str, Any]:
        """Return a condition of the node."""
        return next((one for one in self._node()["status"].get("conditions", []) if one["type"] == kind), {})

    def create(self, name: str, *, gpus: int = 1, image: str = COMPUTES, **spec: object) -> Result:
        """Create a pod that requests GPUs by its runtime class, unless ``spec`` differs; return kubectl's answer."""
        container = {"name": "one", "image": image, "resources": {"limits": {GPU: gpus}}}
        body = {"runtimeClassName": "nvidia", "restartPolicy": "Never", "containers": [container], **spec}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body}
        return self.plane.finish("create", "-f", "-", stdin=json.dumps(pod))

    def computes(self, name: str, **spec: object) -> str:
        """Return how the pod got its GPU; empty if it ran without one. The pod is deleted."""
        created = self.create(name, **spec)  # type: ignore[arg-type]
        assert created.returncode == 0, created.stderr
        self.plane.wait_for(f"the end of {name}", lambda: self.status(name).get("phase") in {"Succeeded", "Failed"})
        log = self.plane.kubectl("logs", name)
        self.delete(name)
        found = re.search(r"^on GPU-\S+ by (.+)\nTest PASSED$", log, re.MULTILINE)
        assert found or "no CUDA-capable device is detected" in log, log
        return found[1] if found else ""

    def delete(self, name: str) -> None:
        """Delete the pod, and wait until it is gone."""
        self.plane.kubectl("delete", "pod", name, "--now", "--timeout=60s")

    def await_phase(self, name: str, phase: str, timeout_s: float = 60) -> float:
        """Return the seconds until the pod was in ``phase``."""
        return self.plane.wait_for(f"pod {name} is {phase}", lambda: self.status(name).get("phase") == phase, timeout_s)

    def status(self, name: str) -> dict[str, Any]:
        """Return the pod's status."""
        found: dict[str, Any] = self.plane.get("pod", name)["status"]
        return found

    def container(self, name: str) -> dict[str, Any]:
        """Return the status of the pod's container."""
        found: dict[str, Any] = (self.status(name).get("containerStatuses") or [{}])[0]
        return found

    def observe(self, name: str) -> dict[str, Any]:
        """Return kubectl's output about the pod, its node and a cause, without parts that differ between runs."""
        status, found = self.status(name), self._node()
        node = found["status"]
        pod = {key: status[key] for key in ("phase", "reason", "message") if key in status}
        waiting = [one["state"] for one in status.get("containerStatuses", [])]
        conditions = [_told(one) for one in status.get("conditions", []) if one["status"] != "True"]
        shown: dict[str, Any] = {
            "pod": {**pod, "conditions": conditions, "containers": waiting},
            "events": [{"reason": reason, "message": text} for reason, text in self.events(name).items()],
            "node": {
                "capacity": node["capacity"].get(GPU, "0"),
                "allocatable": node["allocatable"].get(GPU, "0"),
                "ready": _told(self.condition("Ready")),
                "taints": found["spec"].get("taints", []),
            },
        }
        steady: dict[str, Any] = json.loads(_steady(json.dumps(shown)))
        return steady

    def scheduled(self, name: str) -> str:
        """Return the scheduler's reason for not placing the pod."""
        conditions = self.status(name).get("conditions", [])
        return "".join(one.get("message", "") for one in conditions if one["type"] == "PodScheduled")

    def events(self, name: str) -> dict[str, str]:
        """Return the latest message per reason of warnings about the object, except those due to the lab's limits."""
        found = self.plane.get("events", f"--field-selector=involvedObject.name={name},type=Warning")["items"]
        ordered = sorted(found, key=lambda one: str(one["lastTimestamp"]))
        return {one["reason"]: one["message"] for one in ordered if one["reason"] not in _LACKS}

    def await_event(self, name: str, reason: str, timeout_s: float = 60) -> str:
        """Return the event's message, once it exists."""
        self.plane.wait_for(f"event {reason} of {name}", lambda: reason in self.events(name), timeout_s)
        return self.events(name)[reason]

    def _node(self) -> dict[str, Any]:
        # There is none before the kubelet has registered it.
        found = self.plane.get("nodes", f"--field-selector=metadata.name={NAME}")["items"]
        return found[0] if found else {"status": {}}


def _told(condition: dict[str, Any]) -> dict[str, Any]:
    return {key: condition[key] for key in ("type", "status", "reason", "message") if key in condition}


def _steady(text: str) -> str:
    for pattern, same in _DIFFERS.items():
        text = re.sub(pattern, same, text)
    return text
