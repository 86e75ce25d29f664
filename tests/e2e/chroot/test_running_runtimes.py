"""Daemons that really run on the node: they report the nvidia runtime, and a container uses it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.e2e.chroot.scenario import DIRECTORIES, RECIPE, Lab, as_machine, ask, setup_ok
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.code import PROJECT
from tests.e2e.lab.pci import T4

pytestmark = pytest.mark.e2e

# A user's file: custom features and an address pool, indented by four spaces.
DAEMON = """\
{
    "features": {"buildkit": true, "containerd-snapshotter": false},
    "log-opts": {"max-size": "10m"},
    "bip": "10.199.0.1/24"
}
"""
NVIDIA_SMI = PROJECT / "tests/fakes/nvml/nvidia-smi.c"
CALLS = "/var/log/nvidia-container-runtime.calls"
# What NVIDIA's runtime does for a container with GPUs, as far as nvidia-smi needs it; then the real runc runs.
RUNTIME = """\
#!/usr/bin/python3
import json, os, sys

arguments = sys.argv[1:]
with open("/var/log/nvidia-container-runtime.calls", "a") as log:
    print(*arguments, file=log)
if "create" in arguments:
    path = os.path.join(arguments[arguments.index("--bundle") + 1], "config.json")
    with open(path) as file:
        spec = json.load(file)
    # Where the machine keeps its controllers in cgroups of version 1, there are none to limit a container with.
    spec["linux"].pop("resources", None)
    if "NVIDIA_VISIBLE_DEVICES=all" in spec["process"]["env"]:
        for place in ("/usr/bin/nvidia-smi", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "/run/lab-gpus"):
            source = os.path.realpath(place)
            spec["mounts"].append({"type": "bind", "destination": place, "source": source, "options": ["bind", "ro"]})
    with open(path, "w") as file:
        json.dump(spec, file)
os.execvp("runc", ["runc", *arguments])
"""


def wait_for(node: Chroot, *question: str) -> None:
    for _ in range(300):
        if node.finish(*question).returncode == 0:
            return
        time.sleep(0.1)
    logs = "".join(Path(path).read_text()[-2000:] for path in node.path("/var/log").glob("*.log"))
    pytest.fail(f"{' '.join(question)} does not answer\n{logs}")


def start_containerd(node: Chroot) -> None:
    node.start("containerd", log="/var/log/containerd.log")
    wait_for(node, "ctr", "version")


def start_docker(node: Chroot) -> None:
    start_containerd(node)
    socket = ("--containerd", "/run/containerd/containerd.sock")
    node.start("dockerd", *socket, "--iptables=false", log="/var/log/dockerd.log")
    wait_for(node, "docker", "info")


@pytest.mark.parametrize("codename", ["bookworm", pytest.param("trixie", marks=pytest.mark.long)])
def test_docker_lists_the_runtime_and_runs_a_container_with_it(
    codename: str, bases: dict[str, Bases], chroots: Lab
) -> None:
    with chroots.node(bases[codename].runtime, [T4]) as node:
        as_machine(node)
        node.write("/etc/docker/daemon.json", DAEMON)
        chroots.recipe(node, DIRECTORIES[codename], "docker")
        done = ask(node, "setup", RECIPE, "--yes")
        # The daemon was not running, so it could not be queried; everything else passes.
        assert {check["id"] for check in done.result["checks"] if check["status"] != "passed"} <= {"runtime"}
        merged = json.loads(node.read("/etc/docker/daemon.json"))
        assert merged["runtimes"]["nvidia"]["path"] == "/usr/bin/nvidia-container-runtime"
        assert {name: merged[name] for name in json.loads(DAEMON)} == json.loads(DAEMON)
        assert "default-runtime" not in merged
        assert node.read("/etc/docker/daemon.json").startswith('{\n    "features"')

        start_docker(node)

        told = json.loads(node.run("docker", "info", "--format", "{{json .}}").stdout)
        assert told["Runtimes"]["nvidia"]["path"] == "/usr/bin/nvidia-container-runtime"
        assert told["DefaultRuntime"] == "runc"
        _check_container(node, "docker")


@pytest.mark.parametrize("runtime", ["docker", pytest.param("containerd", marks=pytest.mark.long)])
def test_daemon_without_systemd_is_not_assumed_to_have_reloaded(
    runtime: str, bases: dict[str, Bases], chroots: Lab
) -> None:
    """A daemon in a container, or one started manually, has no systemd; the printed next command works there."""
    with chroots.node(bases["bookworm"].runtime, [T4]) as node:
        as_machine(node)
        node.write("/usr/bin/nvidia-container-runtime", RUNTIME, 0o755)
        start_docker(node)
        words = ("ctk", "runtime", "configure", f"--runtime={runtime}", "--restart")

        done = node.gpunode(*words)

        assert done.returncode == 7, done.stdout
        assert f"{runtime} was not restarted: systemd is not running" in done.stderr
        assert "has the runtime" not in done.stdout
        assert "systemctl" not in done.stdout + done.stderr
        status = node.gpunode("status").stdout
        assert "not running" not in status
        assert "unknown whether it runs" in status
        log = node.gpunode("log", "1").stdout
        assert node.read("/proc/sys/kernel/random/boot_id").strip() in log
        assert "image" not in log
        if runtime == "docker":
            (command,) = (line.strip() for line in done.stderr.splitlines() if "kill -HUP" in line)
            node.run("sh", "-c", command.removeprefix("next: ").removeprefix("sudo "))
            wait_for(node, "sh", "-c", "docker info --format '{{json .Runtimes}}' | grep -q nvidia")
            checked = node.gpunode("ctk", "runtime", "check", "--runtime=docker")
            assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("codename", [pytest.param("bookworm", marks=pytest.mark.long), "trixie"])
def test_containerd_runs_a_container_with_the_named_runtime(
    codename: str, bases: dict[str, Bases], chroots: Lab
) -> None:
    with chroots.node(bases[codename].runtime, [T4]) as node:
        as_machine(node)
        chroots.recipe(node, DIRECTORIES[codename])
        setup_ok(node)
        start_containerd(node)
        _check_container(node, "containerd")


PROGRAMS = "programs and libraries are those of their packages"


def _check_container(node: Chroot, runtime: str) -> None:
    """Assert that verify --container passes with a runtime that mounts the GPUs, and fails with another."""
    # The real nvidia-smi is a program that loads NVML, and the image must contain the libraries it is linked with.
    source = node.write("/root/nvidia-smi.c", NVIDIA_SMI.read_text())
    node.run("gcc", "-o", "/usr/bin/nvidia-smi", f"/root/{source.name}")
    without = ask(node, "verify", RECIPE, "--container")
    assert without.exit_code == 7, "the lab's own stand-in mounts nothing, so no GPU is seen"
    assert " create " in node.read(CALLS), "and yet the container went through it"

    node.write("/usr/bin/nvidia-container-runtime", RUNTIME, 0o755)
    verified = ask(node, "verify", RECIPE, "--container")

    checks = {check["id"]: check for check in verified.result["checks"]}
    assert checks["container"]["status"] == "passed", checks["container"]
    assert checks["runtime"]["status"] == "passed", checks["runtime"]
    # This test replaced both packaged programs itself: verify reports only that.
    assert [check["title"] for check in checks.values() if check["status"] == "failed"] == [PROGRAMS], verified.error
    left = ("docker", "ps", "-aq") if runtime == "docker" else ("ctr", "namespaces", "ls", "-q")
    assert [line for line in node.run(*left).stdout.split() if line not in {"moby", "default"}] == []
