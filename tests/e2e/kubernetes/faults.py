"""Faults that keep pods from their GPUs on a node, caused for real, and the place where kubectl shows each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

from tests.e2e.kubernetes.cluster import GPU, PLUGIN, Cluster
from tests.e2e.kubernetes.kubelet_node import KUBELET, KUBELET_CONFIG, NAME
from tests.e2e.lab.snapshot import Snapshot
from tests.e2e.machine.scenario import CONTAINERD, CONTAINERD_CONFIG

DEVICES: Final = 2
_RUNTIME: Final = "/usr/bin/nvidia-container-runtime"
_NETWORK: Final = "/etc/cni/net.d/10-lab.conflist"
_SANDBOX: Final = "FailedCreatePodSandBox"
# containerd before 2.0 takes a table of handlers as the complete list.
_LONE_HANDLER: Final = """\
version = 2
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
"""


@dataclass(frozen=True, slots=True)
class Joined:
    """A cluster whose node gpunode has set up.

    Attributes:
        suite: whose containerd the node has.
        before: the node's files and packages with containerd and a kubelet, but nothing from NVIDIA.
        stock: containerd's configuration at that time.
        texts: kubectl's output about each fault so far.
    """

    cluster: Cluster
    suite: str
    before: Snapshot
    stock: str
    texts: dict[str, Any] = field(default_factory=dict)


Provoke = Callable[[Joined], AbstractContextManager[object]]


@contextmanager
def configured(joined: Joined, config: str) -> Iterator[None]:
    """Run containerd with ``config``."""
    node, good = joined.cluster.node, joined.cluster.node.read(CONTAINERD_CONFIG)
    try:
        _configure(joined.cluster, config)
        yield
    finally:
        _configure(joined.cluster, good)
        assert node.read(CONTAINERD_CONFIG) == good


def _configure(cluster: Cluster, config: str) -> None:
    cluster.node.write(CONTAINERD_CONFIG, config)
    cluster.node.run("systemctl", "restart", CONTAINERD)


@contextmanager
def runtime_replaced(joined: Joined, script: str) -> Iterator[None]:
    """Replace NVIDIA's runtime by ``script``, or remove it."""
    node, good = joined.cluster.node, joined.cluster.node.read(_RUNTIME)
    try:
        node.path(_RUNTIME).unlink()
        if script:
            node.write(_RUNTIME, script, 0o755)
        yield
    finally:
        node.write(_RUNTIME, good, 0o755)


@contextmanager
def kubelet_configured(joined: Joined, **settings: object) -> Iterator[None]:
    """Run the kubelet with the changed settings."""
    node, good = joined.cluster.node, joined.cluster.node.read(KUBELET_CONFIG)
    try:
        node.write(KUBELET_CONFIG, json.dumps({**json.loads(good), **settings}))
        joined.cluster.restart_kubelet()
        yield
    finally:
        node.write(KUBELET_CONFIG, good)
        joined.cluster.restart_kubelet()


@contextmanager
def tainted(joined: Joined) -> Iterator[None]:
    """Taint the node for its GPUs and for maintenance."""
    taints = (f"{GPU}=present:NoSchedule", "maintenance=disks:NoSchedule")
    plane = joined.cluster.plane
    plane.kubectl("taint", "node", NAME, *taints)
    try:
        yield
    finally:
        plane.kubectl("taint", "node", NAME, *(f"{taint.partition('=')[0]}-" for taint in taints))


@contextmanager
def healthy(joined: Joined, *health: str) -> Iterator[None]:
    """Make the plugin report this health of its devices."""
    cluster = joined.cluster
    try:
        cluster.node.set_health(list(health))
        cluster.await_gpus(health.count("Healthy"))
        yield
    finally:
        cluster.node.set_health(["Healthy"] * DEVICES)


@contextmanager
def without_plugin(joined: Joined, *, kubelet_restarted: bool = False) -> Iterator[None]:
    """End the device plugin; a kubelet that starts afterwards does not know it."""
    cluster = joined.cluster
    try:
        cluster.plane.kubectl("delete", *PLUGIN, "--timeout=60s")
        cluster.await_gpus(0)
        if kubelet_restarted:
            cluster.node.run("systemctl", "restart", KUBELET)
            cluster.plane.wait_for("no capacity", lambda: cluster.resources("capacity") == 0)
        yield
    finally:
        cluster.apply()


@contextmanager
def without_network(joined: Joined) -> Iterator[None]:
    """Remove the configuration of the CNI plugin."""
    cluster = joined.cluster
    network = cluster.node.path(_NETWORK)
    good = network.read_text()
    try:
        network.unlink()
        cluster.node.run("systemctl", "restart", CONTAINERD)
        cluster.await_ready("False")
        yield
    finally:
        cluster.node.write(_NETWORK, good)
        cluster.node.run("systemctl", "restart", CONTAINERD)
        cluster.await_ready()


@contextmanager
def without_kubelet(joined: Joined) -> Iterator[None]:
    """Stop the kubelet."""
    cluster = joined.cluster
    try:
        cluster.node.run("systemctl", "stop", KUBELET)
        cluster.await_ready("Unknown")
        yield
    finally:
        cluster.node.run("systemctl", "start", KUBELET)
        cluster.await_ready()


@contextmanager
def without_cri(joined: Joined) -> Iterator[None]:
    """Run containerd without its CRI plugin: the configuration names only NVIDIA's handler."""
    with configured(joined, _LONE_HANDLER):
        joined.cluster.await_ready("False")
        yield
    joined.cluster.await_ready()


@dataclass(frozen=True, slots=True)
class Fault:
    """Something wrong with a node that keeps a pod from computing.

    Attributes:
        seen_in: the reason of the event that reports it; ``scheduler`` for the pod's condition, ``node`` for the
            node's; a state of the container that waits; ``status`` for the pod's own.
        tells: the text to find there.
        named: the message of the failed check of ``gpunode k8s verify``; empty if only the pod is at fault.
        pod: the part of the pod that differs from others.
        heals: whether the pod computes once the fault is gone.
        is_of_class_alone: whether pods that get their GPUs by CDI still compute.
        suites: the suites on which it can be caused.
    """

    id: str
    provoke: Provoke
    seen_in: str
    tells: str
    named: str = ""
    pod: dict[str, Any] = field(default_factory=dict)
    heals: bool = True
    is_of_class_alone: bool = False
    suites: tuple[str, ...] = ("bookworm", "trixie", "sid")


FAULTS: Final = (
    Fault(
        "handler-missing",
        lambda joined: configured(joined, joined.stock),
        _SANDBOX,
        r'no runtime for "nvidia" is configured',
        r'the container runtime of lab has no runtime "nvidia"|its container runtime has only: runc',
    ),
    Fault(
        "runtime-binary-missing",
        lambda joined: runtime_replaced(joined, ""),
        _SANDBOX,
        r"fork/exec /usr/bin/nvidia-container-runtime: no such file or directory",
        r"lab has no /usr/bin/nvidia-container-runtime",
        is_of_class_alone=True,
    ),
    Fault(
        "runtime-binary-fails",
        lambda joined: runtime_replaced(
            joined, "#!/bin/sh\necho 'load library failed: libnvidia-ml.so.1' >&2\nexit 1\n"
        ),
        _SANDBOX,
        r"nvidia-container-runtime did not terminate successfully: exit status 1",
        r"/usr/bin/nvidia-container-runtime ended with exit status 1 on lab",
        is_of_class_alone=True,
    ),
    Fault(
        "cgroup-drivers-differ",
        lambda joined: kubelet_configured(joined, cgroupDriver="cgroupfs"),
        _SANDBOX,
        r'expected cgroupsPath to be of format "slice:prefix:name" for systemd cgroups',
        r"the kubelet of lab uses the cgroup driver cgroupfs, its container runtime systemd",
        # A kubelet that starts before the plugin has registered rejects pods that wait for GPUs.
        heals=False,
        # 2.0 and later get the cgroup driver from containerd.
        suites=("bookworm", "trixie"),
    ),
    Fault("too-many-gpus", nullcontext, "scheduler", rf"1 Insufficient {GPU}", pod={"gpus": 3}, heals=False),
    Fault("taint", tainted, "scheduler", r"1 node\(s\) had untolerated taint\(s\)", r"maintenance=disks:NoSchedule"),
    Fault(
        "gpu-unhealthy",
        lambda joined: healthy(joined, "Healthy", "Unhealthy"),
        "scheduler",
        rf"1 Insufficient {GPU}",
        r"1 of 2 are reported as unhealthy by the device plugin",
        {"gpus": 2},
    ),
    Fault("plugin-gone", without_plugin, "scheduler", rf"1 Insufficient {GPU}", "nvidia-device-plugin"),
    Fault(
        "plugin-gone-before-the-kubelet-started",
        lambda joined: without_plugin(joined, kubelet_restarted=True),
        "scheduler",
        rf"1 Insufficient {GPU}",
        "nvidia-device-plugin",
    ),
    Fault(
        "image-not-to-be-had",
        nullcontext,
        "ErrImagePull|ImagePullBackOff",
        r"registry\.example",
        pod={"image": "registry.example/absent:1"},
        heals=False,
    ),
    Fault(
        "gpus-that-the-node-has-not",
        nullcontext,
        "status",
        rf"requested number of devices unavailable for {GPU}|no healthy devices present",
        pod={"gpus": 5, "nodeName": NAME},
        heals=False,
    ),
    Fault(
        "no-network",
        without_network,
        "node",
        r"cni plugin not initialized",
        r"lab.*not ready|cni plugin not initialized",
    ),
    Fault(
        "kubelet-stopped",
        without_kubelet,
        "node",
        r"Kubelet stopped posting node status",
        r"Kubelet stopped posting node status",
    ),
    Fault(
        "cri-not-loaded",
        without_cri,
        "node",
        r"container runtime is down",
        r"container runtime is down",
        suites=("bookworm", "trixie"),
    ),
)


def told(cluster: Cluster, fault: Fault) -> str:
    """Return the lines in which kubectl shows the fault; empty if it does not yet."""
    status = cluster.status(fault.id)
    match fault.seen_in:
        case "scheduler":
            return cluster.scheduled(fault.id)
        case "node":
            return str(cluster.condition("Ready").get("message", "")) if cluster.scheduled(fault.id) else ""
        case "status":
            return str(status.get("message", ""))
        case reasons if "|" in reasons:
            waiting = cluster.container(fault.id).get("state", {}).get("waiting", {})
            return str(waiting.get("message", "")) if waiting.get("reason") in reasons.split("|") else ""
        case reason:
            return cluster.events(fault.id).get(reason, "")
