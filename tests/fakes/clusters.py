"""A user with a cluster in memory: gpunode's real command line runs, and only kubectl is a stand-in."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from gpunode.cli import boundary
from tests.fakes.api_server import ApiServer, Body
from tests.fakes.kubectl import Kubectl
from tests.fakes.skipped_time import SkippedTime

GPU: Final = "nvidia.com/gpu"
NODE: Final = ("--node", "gpu-1=debian12-gtx1080")
NAMESPACE: Final = "gpu-system"
PLUGIN: Final = ("DaemonSet", NAMESPACE, "nvidia-device-plugin")


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of one gpunode."""

    code: int
    envelope: Mapping[str, Any]

    @property
    def states(self) -> Mapping[str, str]:
        """The planned state of each object."""
        return {f"{one['kind']} {one['name']}": one["state"] for one in self.envelope["result"]["objects"]}

    @property
    def error(self) -> Mapping[str, str]:
        """The first error: ``what``, ``why`` and ``hint``."""
        found: Mapping[str, str] = self.envelope["errors"][0]
        return found


class User:
    """Runs gpunode in this process, with a journal of their own.

    Attributes:
        server: the cluster that kubectl reaches.
    """

    def __init__(
        self, server: ApiServer, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.kubectl = Kubectl(server)
        self._monkeypatch, self._capsys = monkeypatch, capsys
        monkeypatch.setenv("XDG_STATE_HOME", str(home))
        monkeypatch.setattr("gpunode.host.cluster.Runner", lambda: self.kubectl)
        monkeypatch.setattr("gpunode.host.cluster.find_kubectl", lambda: ("kubectl",))
        self._time = SkippedTime(monkeypatch)
        # A bug in gpunode should fail the test with its own traceback.
        monkeypatch.setattr(boundary, "_report_bug", _reraise)

    @property
    def skipped_s(self) -> float:
        """The seconds that gpunode would have waited."""
        return self._time.total_s

    @property
    def server(self) -> ApiServer:
        """The cluster that kubectl reaches."""
        return self.kubectl.server

    def __call__(self, *words: str, check: int = 0) -> Answer:
        """Return gpunode's answer to these words, which must end with the exit code ``check``."""
        self._monkeypatch.setattr(sys, "argv", ["gpunode", *words, "--json"])
        code = boundary.run_cli(sys.argv[1:])
        said = self._capsys.readouterr()
        assert code == check, f"{code}\n{said.out}\n{said.err}"
        return Answer(code, json.loads(said.out))

    def screen(self, *words: str, check: int = 0) -> str:
        """Return the screen of the same command."""
        self._monkeypatch.setattr(sys, "argv", ["gpunode", *words])
        code = boundary.run_cli(sys.argv[1:])
        said = self._capsys.readouterr()
        assert code == check, f"{code}\n{said.out}\n{said.err}"
        return said.out + said.err

    def apply(self, recipe: str = "k8s-containerd", *more: str, check: int = 0) -> Answer:
        """Return the answer of ``k8s apply`` for the node gpu-1."""
        return self("k8s", "apply", recipe, *NODE, "--yes", *more, check=check)

    def verify(self, recipe: str = "k8s-containerd", *more: str, check: int = 0) -> Mapping[str, tuple[str, str]]:
        """Return status and detail of each check of ``k8s verify``, by the first two parts of its id."""
        found = self("k8s", "verify", recipe, *NODE, *more, check=check).envelope["result"]["checks"]
        return {"/".join(one["id"].split("/")[:2]): (one["status"], one["detail"]) for one in found}

    def plan(self, recipe: str = "k8s-containerd", *more: str, check: int = 0) -> Answer:
        """Return the answer of ``k8s plan`` for the node gpu-1."""
        return self("k8s", "plan", recipe, *NODE, *more, check=check)


def _reraise(_: object, error: Exception) -> int:
    raise error


def node(name: str = "gpu-1", **metadata: object) -> Body:
    """Return a ready Node with one GPU."""
    ready = {"type": "Ready", "status": "True"}
    labels = {"kubernetes.io/hostname": name}
    status = {"conditions": [ready], "allocatable": {GPU: "1"}, "capacity": {GPU: "1"}, "nodeInfo": {}}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, **metadata},
        "spec": {},
        "status": status,
    }


def run_daemon_sets(server: ApiServer) -> None:
    """Make the pods of each DaemonSet ready on the nodes that its selector names, as a cluster does."""
    nodes = [one["metadata"].get("labels", {}) for one in server.peek("Node")]
    for one in server.peek("DaemonSet"):
        wanted = one["spec"]["template"]["spec"].get("nodeSelector", {})
        many = sum(wanted.items() <= labels.items() for labels in nodes)
        status = {"observedGeneration": one["metadata"]["generation"], "desiredNumberScheduled": many}
        one["status"] = {**status, "numberReady": many, "updatedNumberScheduled": many}


def run_test_pods(server: ApiServer) -> None:
    """Let each pod without a status succeed, as the cluster's scheduler and a kubelet would."""
    for one in server.peek("Pod"):
        one.setdefault("status", {"phase": "Succeeded"})


def pod_of(daemon_set: Body, node_name: str, phase: str, state: Mapping[str, object]) -> Body:
    """Return a pod of the DaemonSet on the node, with all containers in the same state."""
    template, metadata = daemon_set["spec"]["template"], daemon_set["metadata"]
    names = [one["name"] for one in template["spec"]["containers"]]
    place = {"name": f"{metadata['name']}-x", "namespace": metadata["namespace"], **template["metadata"]}
    status = {"phase": phase, "containerStatuses": [{"name": name, "ready": False, "state": state} for name in names]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**place, "ownerReferences": [{"kind": "DaemonSet", "uid": metadata["uid"]}]},
        "spec": {**template["spec"], "nodeName": node_name},
        "status": status,
    }


def everything(server: ApiServer) -> Mapping[Any, Any]:
    """Return the objects of the cluster without the server's counters and times."""
    return {
        place: {
            **{name: value for name, value in body.items() if name not in {"metadata", "status"}},
            "labels": body["metadata"].get("labels", {}),
            "annotations": body["metadata"].get("annotations", {}),
        }
        for place, body in server.contents()
    }
