"""Another package manager runs on the node: gpunode waits up to the limit, then names it, and never ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.e2e.chroot.scenario import NONINTERACTIVE, RECIPE, Lab, as_machine, ask, called, setup, setup_ok
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.debs import Package, build_all
from tests.e2e.lab.pci import T4
from tests.e2e.lab.tree import COMPILED, PROJECT, SITE

pytestmark = pytest.mark.e2e

LOCKS: Final = (
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/lock",
    "/var/lib/apt/lists/lock",
    "/var/cache/apt/archives/lock",
)
# As apt and dpkg lock: with fcntl, the whole file.
HOLD: Final = """\
import fcntl, os, sys, time
os.makedirs(os.path.dirname(sys.argv[1]), exist_ok=True)
file = open(sys.argv[1], "a")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
while not os.path.exists("/root/go"):
    time.sleep(0.05)
"""
# apt stops here with its locks held, in the middle of any transaction.
STOP: Final = 'DPkg::Pre-Invoke {"touch /root/stopped; while [ ! -e /root/go ]; do sleep 0.05; done";};\n'
# Accepts the connection and never answers, like a hanging mirror.
SILENT: Final = """\
import socket, time
server = socket.create_server(("127.0.0.1", 9999))
print("held", flush=True)
connections = []
while True:
    connections.append(server.accept())
    print("asked", flush=True)
"""
_PATIENCE_S: Final = 60.0


@pytest.fixture
def node(bases: dict[str, Bases], chroots: Lab) -> Iterator[Chroot]:
    with chroots.node(bases["bookworm"].runtime, [T4]) as made:
        as_machine(made)
        chroots.recipe(made, "debian12")
        yield made


def until(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    """Wait until ``condition`` is true; ``what`` describes a failure."""
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


def says(node: Chroot, log: str, word: str) -> None:
    """Wait until ``log`` contains ``word``."""
    path = node.path(log)
    until(lambda: path.exists() and word in path.read_text(), lambda: f"no {word!r} in {log}:\n{path.read_text()}")


def begin(node: Chroot, log: str, *words: str) -> subprocess.Popen[bytes]:
    """Return a ``gpunode setup`` that runs in the background and writes to ``log``."""
    python = (f"PYTHONPATH={PROJECT}:{SITE}", f"PYTHONPYCACHEPREFIX={COMPILED}")
    return node.start("env", *python, "python3", "-m", "gpunode", "setup", RECIPE, "--yes", *words, log=log)


def hold(node: Chroot, path: str) -> int:
    """Return the pid in the node of a process that holds the lock at ``path`` until /root/go exists."""
    node.path("/root/go").unlink(missing_ok=True)
    node.path("/root/hold.log").unlink(missing_ok=True)
    node.write("/root/hold.py", HOLD)
    node.start("python3", "/root/hold.py", path, log="/root/hold.log")
    says(node, "/root/hold.log", "held")
    return number(node, "/root/hold.py")


def number(node: Chroot, command: str) -> int:
    """Return the pid in the node of the process that runs ``command``."""
    return int(node.run("pgrep", "-o", "-f", command).stdout)


def let_go(node: Chroot, pid: int) -> None:
    """Let the holder end by itself, and wait for it."""
    node.write("/root/go", "")
    until(lambda: not node.path(f"/proc/{pid}").exists(), lambda: "the holder goes on")


def test_every_lock_is_waited_for_and_its_holder_named(node: Chroot) -> None:
    for path in LOCKS:
        pid = hold(node, path)

        busy = setup(node, "--lock-timeout", "1")

        assert busy.exit_code == 12, path
        assert path in busy.error
        assert f"process {pid} (python3 /root/hold.py {path})" in busy.error
        assert node.path(f"/proc/{pid}").exists(), "nobody's process is ended"
        let_go(node, pid)

    pid = hold(node, LOCKS[0])
    patient = begin(node, "/root/patient.log", "--lock-timeout", "100")
    says(node, "/root/patient.log", f": process {pid} (python3 /root/hold.py {LOCKS[0]}) holds {LOCKS[0]}")
    let_go(node, pid)

    assert patient.wait(_PATIENCE_S) == 0, node.read("/root/patient.log")
    assert "nvidia-kernel-open-dkms" in node.installed()


@pytest.mark.long
def test_running_apt_is_waited_for(node: Chroot) -> None:
    """An update at a hanging mirror, and an install in the middle of dpkg."""
    node.write("/root/silent.py", SILENT)
    node.start("python3", "/root/silent.py", log="/root/silent.log")
    says(node, "/root/silent.log", "held")
    node.write("/root/hangs/hangs.list", "deb [trusted=yes] http://127.0.0.1:9999/ ./\n")
    only = ("-o", "Dir::Etc::sourcelist=/dev/null", "-o", "Dir::Etc::sourceparts=/root/hangs")
    node.start("/usr/bin/apt-get", *only, "-o", "APT::Get::List-Cleanup=0", "update", log="/root/update.log")
    says(node, "/root/silent.log", "asked")
    pid = number(node, "^/usr/bin/apt-get .* update")

    busy = setup(node, "--lock-timeout", "1")

    assert busy.exit_code == 12
    assert f"/var/lib/apt/lists/lock is locked by process {pid} (/usr/bin/apt-get " in busy.error
    node.run("pkill", "-f", "silent.py")
    until(lambda: not node.path(f"/proc/{pid}").exists(), lambda: "apt-get update goes on")

    package = Package("lab-slow", "1")
    build_all([package], node.path("/root"))
    node.write("/root/stop.conf", STOP)
    upgrade = ("env", "DEBIAN_FRONTEND=noninteractive", "APT_CONFIG=/root/stop.conf")
    other = node.start(*upgrade, "/usr/bin/apt-get", "-y", "install", f"/root/{package.file_name}", log="/root/apt.log")
    until(lambda: node.path("/root/stopped").exists(), lambda: "apt is not at work")
    pid = number(node, "^/usr/bin/apt-get -y install")

    busy = setup(node, "--lock-timeout", "1")

    assert busy.exit_code == 12
    assert f"lock-frontend is locked by process {pid} (/usr/bin/apt-get -y install" in busy.error
    patient = begin(node, "/root/patient.log", "--lock-timeout", "100")
    says(node, "/root/patient.log", f": process {pid} ")
    node.write("/root/go", "")
    assert other.wait(_PATIENCE_S) == 0, node.read("/root/apt.log")
    assert patient.wait(_PATIENCE_S) == 0, node.read("/root/patient.log")
    assert {"lab-slow", "nvidia-kernel-open-dkms"} <= set(node.installed())


def test_concurrent_setups_make_one_transaction(node: Chroot) -> None:
    node.run("apt-get", "update", env=NONINTERACTIVE)
    called(node)
    node.write("/etc/apt/apt.conf.d/99stop", STOP)
    first = begin(node, "/root/first.log")
    until(lambda: node.path("/root/stopped").exists(), lambda: "the first setup has not got to its packages")
    pid = number(node, "gpunode setup")

    busy = setup(node, "--lock-timeout", "1")

    assert busy.exit_code == 12
    assert (
        f"another gpunode is changing this node: process {pid} (python3 -m gpunode setup {RECIPE} --yes)" in busy.error
    )
    second = begin(node, "/root/second.log")
    says(node, "/root/second.log", ": another gpunode is changing this node")
    node.write("/root/go", "")

    assert first.wait(_PATIENCE_S) == 0, node.read("/root/first.log")
    assert second.wait(_PATIENCE_S) == 0, node.read("/root/second.log")
    assert called(node).count("apt-get", "install") == 1
    assert [run["verb"] for run in ask(node, "rollback", "--list").result["runs"]] == ["setup"]


@pytest.mark.long
def test_apt_left_by_a_killed_gpunode_is_waited_for_and_named(node: Chroot) -> None:
    node.write("/etc/apt/apt.conf.d/99stop", STOP)
    killed = begin(node, "/root/killed.log")
    until(lambda: node.path("/root/stopped").exists(), lambda: "setup has not got to its packages")
    node.run("kill", "-KILL", str(number(node, "gpunode setup")))
    assert killed.wait(_PATIENCE_S) in {-signal.SIGKILL, 128 + signal.SIGKILL}
    orphan = number(node, "^apt-get .* install|^/usr/bin/apt-get .* install")

    busy = setup(node, "--lock-timeout", "1")

    assert busy.exit_code == 12
    assert f"process {orphan} (" in busy.error
    assert "left behind by an earlier gpunode" in busy.error
    assert node.path(f"/proc/{orphan}").exists()
    node.write("/root/go", "")
    setup_ok(node, "--lock-timeout", "100")
    assert "nvidia-kernel-open-dkms" in node.installed()


def test_unwritable_run_folder_stops_setup_before_any_change(node: Chroot) -> None:
    before = node.fingerprint("/etc", "/var/lib/dpkg")
    node.run("mount", "-o", "remount,ro", "/run")

    refused = setup(node)

    assert refused.exit_code == 6
    assert os.strerror(30) in refused.error
    assert "/run/gpunode" in refused.error
    assert node.fingerprint("/etc", "/var/lib/dpkg") == before
