"""A node without a machine: a kubelet's reports to the API server, and the logs that it serves."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.kubernetes.api import ApiError
from tests.e2e.kubernetes.control_plane import ControlPlane
from tests.e2e.lab.commands import run

if TYPE_CHECKING:
    from typing_extensions import Self

PASSED: Final = "[Vector addition of 50000 elements]\nTest PASSED\nDone\n"
_POLL_S: Final = 0.2


def add_node(
    plane: ControlPlane,
    name: str,
    *,
    allocatable: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    kubelet_port: int = 0,
) -> None:
    """Add a Node that is ready for pods to the cluster, without a machine.

    Args:
        allocatable: resources besides cpu, memory and pods, such as ``{"nvidia.com/gpu": "8"}``.
        kubelet_port: where the API server asks for logs.
    """
    resources = {"cpu": "64", "memory": "256Gi", "pods": "110", **(allocatable or {})}
    # As a kubelet sets them; the controllers would add the beta label later.
    usual = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "beta.kubernetes.io/os": "linux"}
    metadata = {"name": name, "labels": {**usual, **(labels or {})}}
    plane.api.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    status: dict[str, Any] = {
        "capacity": resources,
        "allocatable": resources,
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "lab"}],
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": name}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet_port or 1}},
    }
    plane.api.patch(f"/api/v1/nodes/{name}/status", {"status": status})
    # Admission gives every new Node the taint not-ready; the controllers that remove it may not be running.
    found = plane.api.get(f"/api/v1/nodes/{name}")["spec"].get("taints") or []
    kept = [taint for taint in found if taint["key"] != "node.kubernetes.io/not-ready"]
    plane.api.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": kept}})


def as_run(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status Succeeded for a pod that may end, or running and ready for one that does not."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    if spec.get("restartPolicy") == "Always":
        return status(spec, "Running", {"running": {"startedAt": now}}, ready=True)
    ended = {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}
    return status(spec, "Succeeded", {"terminated": ended})


def status(
    spec: Mapping[str, Any], phase: str, state: Mapping[str, Any], *, ready: bool = False, restarts: int = 0
) -> dict[str, Any]:
    """Return the status of a pod whose containers are all in the same state."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    containers = [
        {
            "name": one["name"],
            "image": one["image"],
            "imageID": "",
            "ready": ready,
            "restartCount": restarts,
            "state": state,
        }
        for one in spec["containers"]
    ]
    condition = {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": now}
    return {"phase": phase, "startTime": now, "conditions": [condition], "containerStatuses": containers}


class FakeNode:
    """A Node whose pods seem to run.

    The control plane must be in this network namespace, with scheduling.

    Attributes:
        status_of: the status of a new pod, from its spec; ``as_run`` unless a test sets another.
    """

    def __init__(
        self,
        plane: ControlPlane,
        name: str,
        *,
        allocatable: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        log: str = PASSED,
    ) -> None:
        self.plane = plane
        self.name = name
        self._allocatable = allocatable
        self._labels = labels
        self.status_of: Callable[[Mapping[str, Any]], Mapping[str, Any]] = as_run
        self._server = _LogServer(log)
        self._ending = Event()
        self._threads = [Thread(target=self._serve), Thread(target=self._follow)]

    def says(self, log: str) -> None:
        """Make all containers print ``text`` from now on."""
        self._server.log = log.encode()

    def __enter__(self) -> Self:
        folder = self.plane.folder
        key, certificate = folder / f"{self.name}.key", folder / f"{self.name}.crt"
        subject = ("-subj", f"/CN={self.name}", "-days", "1")
        run(["openssl", "req", "-x509", "-nodes", *subject, "-keyout", str(key), "-out", str(certificate)])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        port = self._server.server_address[1]
        add_node(self.plane, self.name, allocatable=self._allocatable, labels=self._labels, kubelet_port=port)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._server.shutdown()
        for thread in self._threads:
            thread.join()
        self._server.server_close()

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=0.05)

    def _follow(self) -> None:
        while not self._ending.wait(_POLL_S):
            try:
                query = f"/api/v1/pods?fieldSelector=spec.nodeName={self.name}"
                for pod in self.plane.api.get(query)["items"]:
                    self._advance(pod)
            except ApiError:
                continue  # The pod was changed between the request and the answer.

    def _advance(self, pod: Mapping[str, Any]) -> None:
        """Advance the pod to the state that a kubelet would have reached by now."""
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        if "deletionTimestamp" in metadata:
            self.plane.api.delete(path)
        elif pod["status"].get("phase") == "Pending":
            self.plane.api.patch(f"{path}/status", {"status": self.status_of(pod["spec"])})


class _LogServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, log: str) -> None:
        self.log = log.encode()
        super().__init__(("127.0.0.1", 0), _LogHandler)


class _LogHandler(BaseHTTPRequestHandler):
    server: _LogServer

    def do_GET(self) -> None:
        """Answer with the log, which is the same for every container of every pod."""
        found = self.path.startswith("/containerLogs/")
        self.send_response(200 if found else 404)
        self.end_headers()
        self.wfile.write(self.server.log if found else b"")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log nothing."""
