"""A real control plane on loopback ports: etcd, the API server and, if requested, scheduler and controllers."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.kubernetes.api import Api
from tests.e2e.lab.commands import LabError, Result, finish, run
from tests.needs import asset

if TYPE_CHECKING:
    from typing_extensions import Self

ADMIN: Final = "admin"
# Known to the server, but without any rights.
STRANGER: Final = "stranger"
# The server does not know this token, as with an expired credential.
EXPIRED: Final = "expired"
API_PROGRAMS: Final = ("etcd", "kube-apiserver", "kubectl", "openssl")
SCHEDULING_PROGRAMS: Final = ("kube-controller-manager", "kube-scheduler")
_READY_S: Final = 60
# While clients are watching, the API server waits for them before it ends.
_STOP_S: Final = 8
_ISSUER: Final = "https://kubernetes.default.svc"


class ControlPlane:
    """A control plane for one test or many; leaving the context removes its processes and files.

    Args:
        folder: a folder that does not exist yet.
        nodes: the names of nodes that may join, each with its own credential.
        scheduling: whether the scheduler and controllers run, too.
        enter: makes a command line run in a lab's network namespace; by default it is this one.
        node_grace_s: the seconds without news from its kubelet until a node counts as unreachable.
    """

    def __init__(
        self,
        folder: Path,
        *,
        nodes: Sequence[str] = (),
        scheduling: bool = True,
        enter: Callable[..., list[str]] | None = None,
        node_grace_s: int = 3600,
    ) -> None:
        self.folder = folder
        self.nodes = tuple(nodes)
        self.scheduling = scheduling
        self.node_grace_s = node_grace_s
        self._enter = enter or (lambda *argv: list(argv))
        self._ports = _free_ports(3)
        self._started: list[subprocess.Popen[bytes]] = []

    @property
    def port(self) -> int:
        """Of the API server."""
        return self._ports[0]

    @property
    def certificate(self) -> Path:
        """The certificate by which a client recognises the server."""
        return self.folder / "certificates/apiserver.crt"

    @property
    def api(self) -> Api:
        """The API server for its administrator; only if the control plane is in this network namespace."""
        return Api(self.port, self.certificate, ADMIN)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self.close)
            self.folder.mkdir(parents=True)
            self._write_tokens()
            run(["openssl", "genrsa", "-out", str(self.folder / "service-accounts.key"), "2048"])
            self._start_api_server()
            if self.scheduling:
                self._start_scheduling()
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop all of it, and remove its folder."""
        # etcd, started first, ends last: otherwise the API server would wait for it.
        while self._started:
            _stop(self._started.pop())
        shutil.rmtree(self.folder, ignore_errors=True)

    def kubeconfig(self, user: str = ADMIN) -> Path:
        """Return the kubeconfig file for ``user``: ADMIN, STRANGER, EXPIRED, or the name of a node."""
        path = self.folder / f"{user}.kubeconfig"
        authority = base64.b64encode(self.certificate.read_bytes()).decode()
        cluster = {"server": f"https://127.0.0.1:{self.port}", "certificate-authority-data": authority}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": user}}],
            "contexts": [{"name": f"{user}@lab", "context": {"cluster": "lab", "user": user}}],
            "current-context": f"{user}@lab",
        }
        path.write_text(json.dumps(config))
        return path

    def finish(self, *argv: str, user: str = ADMIN, stdin: str = "", timeout: float = 60) -> Result:
        """Return the output and the exit code of kubectl run by ``user``."""
        settings = (f"KUBECONFIG={self.kubeconfig(user)}", f"HOME={self.folder}")
        command = ("env", *settings, str(asset("kubectl")), *argv)
        return finish(self._enter(*command), stdin=stdin, timeout=timeout)

    def kubectl(self, *argv: str, user: str = ADMIN, stdin: str = "", timeout: float = 60) -> str:
        """Return the output of kubectl, which must succeed."""
        done = self.finish(*argv, user=user, stdin=stdin, timeout=timeout)
        if done.returncode:
            raise LabError(f"kubectl {' '.join(argv)}: {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def get(self, *what: str) -> dict[str, Any]:
        """Return an object or a list as kubectl finds it: ``get("pod", "one")``."""
        found: dict[str, Any] = json.loads(self.kubectl("get", *what, "--output=json"))
        return found

    def wait_for(self, what: str, condition: Callable[[], bool], timeout_s: float = 60) -> float:
        """Return the seconds after which ``condition`` was true.

        Raises:
            LabError: it did not become true; the message shows the cluster.
        """
        begun = time.monotonic()
        while not condition():
            if time.monotonic() > begun + timeout_s:
                raise LabError(f"not within {timeout_s} s: {what}\n{self.state()}")
            time.sleep(0.1)
        return time.monotonic() - begun

    def state(self) -> str:
        """Return nodes, pods, events and the processes' last messages, for a person who debugs a failure."""
        seen = [self.finish("get", "nodes,pods", "--all-namespaces", "--output=wide").stdout]
        seen += [self.finish("get", "events", "--all-namespaces", "--sort-by=.lastTimestamp").stdout[-4000:]]
        return "\n".join((*seen, *map(_tail, sorted(self.folder.glob("*.log")))))

    def _write_tokens(self) -> None:
        rows = [f'{ADMIN},{ADMIN},1,"system:masters"', f"{STRANGER},{STRANGER},2,"]
        rows += [f'{name},system:node:{name},node-{name},"system:nodes"' for name in self.nodes]
        (self.folder / "tokens.csv").write_text("".join(f"{row}\n" for row in rows))

    def _start_api_server(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in self._ports[1:])
        self._start(
            "etcd",
            *(f"--data-dir={self.folder / 'etcd'}", f"--listen-client-urls={client}", f"--listen-peer-urls={peer}"),
            *(f"--advertise-client-urls={client}", f"--initial-advertise-peer-urls={peer}"),
            *(f"--initial-cluster=default={peer}", "--unsafe-no-fsync"),
        )
        key = self.folder / "service-accounts.key"
        # Without controllers nothing creates the service accounts that this plugin requires for each pod.
        accounts = () if self.scheduling else ("--disable-admission-plugins=ServiceAccount",)
        self._start(
            "kube-apiserver",
            *(f"--etcd-servers={client}", f"--secure-port={self.port}", f"--cert-dir={self.certificate.parent}"),
            *("--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--service-cluster-ip-range=10.0.0.0/24"),
            *("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", *accounts),
            *(f"--token-auth-file={self.folder / 'tokens.csv'}", f"--service-account-issuer={_ISSUER}"),
            *(f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"),
            *("--allow-privileged=true", "--kubelet-preferred-address-types=InternalIP"),
        )
        self._await("the API server is ready", self._is_ready)

    def _start_scheduling(self) -> None:
        client = (f"--kubeconfig={self.kubeconfig()}", "--leader-elect=false", "--secure-port=0")
        key = self.folder / "service-accounts.key"
        self._start(
            "kube-controller-manager",
            *(*client, "--use-service-account-credentials=false", f"--service-account-private-key-file={key}"),
            *(f"--root-ca-file={self.certificate}", f"--node-monitor-grace-period={self.node_grace_s}s"),
            "--node-monitor-period=1s",
        )
        self._start("kube-scheduler", *client)
        account = ("get", "serviceaccount", "default")
        self._await("the controllers work", lambda: self.finish(*account).returncode == 0)

    def _is_ready(self) -> bool:
        return self.certificate.exists() and self.finish("get", "--raw=/readyz").stdout == "ok"

    def _start(self, name: str, *arguments: str) -> None:
        # Its own group, so that its children end with it; and it ends with this process.
        argv = self._enter("setpriv", "--pdeathsig=KILL", str(asset(name)), *arguments)
        with (self.folder / f"{name}.log").open("wb") as log:
            self._started.append(
                subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
            )

    def _await(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _READY_S
        while not condition():
            ended = [process.args for process in self._started if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                logs = "\n".join(map(_tail, sorted(self.folder.glob("*.log"))))
                raise LabError(f"not within {_READY_S} s: {what}\nended: {ended}\n{logs}")
            time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    """Return unused ports."""
    with ExitStack() as stack:
        listening = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in listening]


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the process and its children."""
    for number, patience_s in ((signal.SIGTERM, _STOP_S), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, number)
            process.wait(patience_s)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def _tail(log: Path) -> str:
    return f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}"
