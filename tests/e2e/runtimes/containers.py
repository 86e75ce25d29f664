"""A program that runs containers with the runtimes that gpunode configures, and reports the observations.

It runs in the namespaces of a lab's node, with the node's ROOT as its argument, and prints a JSON object. The image is
there as /root/image.tar; ``nvidia-container-runtime`` is a stand-in that records its call in CALLS and executes runc.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gpunode.facts.evidence import Capture
from gpunode.facts.follow_ups import final_follow_ups, follow_ups
from tests.e2e.lab.toolkit import CALLS
from tests.e2e.runtimes.cri import Cri, NoCri
from tests.e2e.runtimes.daemons import DOCKERD, Files, Root

CONTAINERD: Final = "/etc/containerd/config.toml"
DOCKER: Final = "/etc/docker/daemon.json"
# As owners have them.
OWN_TOML: Final = b"# Ours; do not lose it.\nversion = 2\n\n[debug]\n  level = 'warn' # quiet\n"
OWN_JSON: Final = b'{"max-concurrent-downloads": 4}'
# The file of the containerd.io package, without its licence.
SHIPPED: Final = b'disabled_plugins = ["cri"]\n\n#root = "/var/lib/containerd"\n#state = "/run/containerd"\n'
_IMAGE: Final = "docker.io/library/lab:1"
_ARCHIVE: Final = "/root/lab.tar"
_SOCKET: Final = "run/containerd/containerd.sock"
_LOGS: Final = "/run/pods"


class Unexpected(Exception):
    """A step failed; the message says how."""


class Node:
    """The system below ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = Root(root)
        self._counted = 0

    def gpunode(self, *words: str) -> str:
        """Return the output of ``gpunode ctk runtime WORDS``, which must succeed."""
        command = [sys.executable, "-m", "gpunode", "ctk", "runtime", *words, "--root", str(self.root.path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unexpected(f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout + done.stderr

    def run(self, *argv: str) -> str:
        """Return the output of ``argv``, run inside; it must succeed."""
        done = self.root.run(*argv)
        if done.returncode:
            raise Unexpected(f"{argv}: {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def through_nvidia(self, container: Callable[[], str]) -> tuple[str, bool]:
        """Return the output of a container, and whether the stand-in created it."""
        said = container()
        calls = (self.root.path / CALLS.lstrip("/")).read_text().splitlines()
        fresh, self._counted = calls[self._counted :], len(calls)
        return said, any(" create " in call for call in fresh)

    @contextmanager
    def containerd(self) -> Iterator[Cri]:
        """Run containerd, with the image, if it was saved, in the kubelet's namespace."""
        with self.root.daemon("containerd"):
            self._await(lambda: self.root.run("ctr", "version").returncode == 0, "containerd")
            if (self.root.path / _ARCHIVE.lstrip("/")).exists():
                self._import()
            with Cri(self.root.path / _SOCKET) as cri:
                yield cri

    def pod(self, cri: Cri, handler: str) -> str:
        """Return the output of a container of a pod with ``handler``."""
        output = self.root.path / f"{_LOGS}/output".lstrip("/")
        output.unlink(missing_ok=True)
        cri.run(_IMAGE, "/hello", handler=handler, logs=_LOGS)
        return output.read_text()

    def _import(self) -> None:
        images = ("ctr", "--namespace", "k8s.io", "images")
        self.run(*images, "import", _ARCHIVE)
        # There is no registry, so the lab's image serves as the pause image.
        dump = self.run("containerd", "config", "dump")
        if pause := re.search(r"""sandbox(?:_image)? = ["'](.+:.+)["']""", dump):
            self.run(*images, "tag", "--force", _IMAGE, pause[1])

    def _await(self, true: Callable[[], bool], what: str) -> None:
        for _ in range(300):
            if true():
                return
            time.sleep(0.1)
        raise Unexpected(f"{what} does not answer: {(self.root.path / f'var/log/{what}.log').read_text()[-2000:]}")


def inspected(node: Node) -> str:
    """Return docker's answers to doctor's commands about its containers."""
    # As if systemd reported that dockerd has run since long before the containers.
    units = "Id=docker.service\nActiveState=active\nExecMainStartTimestamp=Sat 2022-01-01 00:00:00.000000 UTC\n"
    evidence = {"units": Capture("systemctl show", "ok", units.encode())}
    (listed,) = [probe for probe in follow_ups(evidence) if probe.key == "docker-containers"]
    evidence[listed.key] = Capture(listed.source, "ok", node.run(*listed.argv).encode())
    (inspect,) = final_follow_ups(evidence)
    return node.run(*inspect.argv)


def docker(node: Node) -> dict[str, object]:
    """Return docker by the runtime's name, by default after a SIGHUP, and after unconfigure."""
    seen: dict[str, object] = {}
    node.root.lay({DOCKER: OWN_JSON})
    node.gpunode("configure", "--runtime=docker")
    with node.root.daemon("containerd"), node.root.daemon(*DOCKERD) as (daemon, _):
        node._await(lambda: node.root.run("docker", "version").returncode == 0, "dockerd")
        node.run(
            "docker",
            "import",
            "--change",
            'ENTRYPOINT ["/hello"]',
            "--change",
            'CMD ["wait"]',
            "/root/image.tar",
            "lab:1",
        )
        named = ("docker", "run", "--rm", "--runtime=nvidia", "--entrypoint=/hello", "lab:1")
        plain = ("docker", "run", "--rm", "--entrypoint=/hello", "lab:1")
        seen["by name"] = node.through_nvidia(lambda: node.run(*named))
        seen["not asked for"] = node.through_nvidia(lambda: node.run(*plain))
        node.gpunode("configure", "--runtime=docker", "--set-as-default")
        daemon.send_signal(signal.SIGHUP)
        node._await(lambda: "nvidia" in node.run("docker", "info", "--format={{.DefaultRuntime}}"), "dockerd")
        seen["by default"] = node.through_nvidia(lambda: node.run(*plain))
        # No GPU is available, and docker keeps its error about that.
        secret = ("--env", "API_TOKEN=secret", "--env", "LD_LIBRARY_PATH=/opt/own")
        node.root.run("docker", "create", "--name=asks", "--gpus=all", *secret, "--entrypoint=/hello", "lab:1")
        node.root.run("docker", "start", "asks")
        node.root.run("docker", "create", "--name=plain", "--runtime=runc", "--entrypoint=/hello", "lab:1")
        seen["inspected"] = inspected(node)
        node.gpunode("unconfigure", "--runtime=docker")
        node.run("docker", "save", "--output", _ARCHIVE, "lab:1")
    # dockerd keeps files of its own beside it.
    seen["file afterwards"] = node.root.files()[DOCKER] == OWN_JSON
    return seen


def containerd(node: Node) -> dict[str, object]:
    """Pods by RuntimeClass's handler, by default, and after unconfigure."""
    seen: dict[str, object] = {}
    before: Files = {CONTAINERD: OWN_TOML}
    node.root.lay(before)
    node.gpunode("configure", "--runtime=containerd")
    with node.containerd() as cri:
        seen["by name"] = node.through_nvidia(lambda: node.pod(cri, "nvidia"))
        seen["not asked for"] = node.through_nvidia(lambda: node.pod(cri, ""))
    node.gpunode("configure", "--runtime=containerd", "--set-as-default")
    with node.containerd() as cri:
        seen["by default"] = node.through_nvidia(lambda: node.pod(cri, ""))
    node.gpunode("unconfigure", "--runtime=containerd")
    with node.containerd() as cri:
        seen["after unconfigure"] = node.through_nvidia(lambda: node.pod(cri, ""))
    seen["files afterwards"] = node.root.files() == before
    return seen


def shipped(node: Node) -> dict[str, object]:
    """Return the observations with the containerd.io package's file: no CRI until it is enabled, then pods."""
    seen: dict[str, object] = {}
    node.root.lay({CONTAINERD: SHIPPED})
    seen["told"] = "cri" in node.gpunode("configure", "--runtime=containerd")
    with node.containerd() as cri:
        try:
            cri.told()
        except NoCri as error:
            seen["as shipped"] = str(error)
    node.gpunode("configure", "--runtime=containerd", "--enable-cri")
    with node.containerd() as cri:
        seen["by name"] = node.through_nvidia(lambda: node.pod(cri, "nvidia"))
        seen["not asked for"] = node.through_nvidia(lambda: node.pod(cri, ""))
    return seen


def main() -> None:
    """Print the observations of each scene."""
    node = Node(Path(sys.argv[1]))
    print(json.dumps({scene.__name__: _played(scene, node) for scene in (docker, containerd, shipped)}))


def _played(scene: Callable[[Node], dict[str, object]], node: Node) -> dict[str, object]:
    """Return the observations, or the failure, so that the other scenes still run."""
    try:
        return scene(node)
    except (Unexpected, NoCri) as error:
        return {"wrong": str(error)}


if __name__ == "__main__":
    main()
