"""A fleet: a controller with Ansible and hosts with an SSH server each, every one in a network namespace of its own.

The controller's namespace holds a bridge; each host's only link is a pair of interfaces that ends there.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.fleet.layers import ANSIBLE
from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.commands import LabError, Result, run
from tests.e2e.lab.node import Node

if TYPE_CHECKING:
    from typing_extensions import Self

PLAYS: Final = "/root/fleet"
# As at real sites, Ansible does not log in as root, and becomes root with sudo.
USER: Final = "deploy"
_INVENTORY: Final = f"{PLAYS}/inventory.ini"
_NETWORK: Final = "10.77.0"
_LOG: Final = f"{PLAYS}/results.jsonl"
_PLUGIN: Final = Path(__file__).with_name("recorder.py")
_CONFIG: Final = f"""\
[defaults]
inventory = {_INVENTORY}
collections_path = /root/collections
callback_plugins = {PLAYS}/callbacks
callbacks_enabled = recorder
forks = 8
remote_user = {USER}
timeout = 5
interpreter_python = /usr/bin/python3
retry_files_enabled = false
[ssh_connection]
# A host whose link is cut is given up after 6 s.
ssh_args = -o ControlMaster=auto -o ControlPersist=60s -o ServerAliveInterval=2 -o ServerAliveCountMax=3
"""


@dataclass(frozen=True, slots=True)
class Task:
    """The result of one task on one host; ``status`` is ``ok``, ``failed``, ``unreachable`` or ``skipped``."""

    host: str
    task: str
    action: str
    status: str
    result: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Played:
    """The result of a run of ansible-playbook.

    Attributes:
        stats: per host: ok, changed, failures, unreachable, skipped, rescued, ignored.
        tasks: in the order in which they ended.
        main_s: processor time of Ansible's main process, which serves all hosts.
    """

    exit_code: int
    output: str
    stats: Mapping[str, Mapping[str, int]]
    tasks: tuple[Task, ...]
    main_s: float

    def of(self, host: str, action: str = "") -> list[Task]:
        """Return the tasks of ``host``, or those of one module."""
        return [task for task in self.tasks if task.host == host and action in {"", task.action}]

    def hosts(self, figure: str) -> set[str]:
        """Return the hosts whose ``figure`` in the stats is not zero."""
        return {host for host, row in self.stats.items() if row[figure]}


@dataclass(slots=True)
class Fleet:
    """A controller that reaches all of its hosts by SSH; leaving the context removes everything of them."""

    controller: Chroot
    hosts: Mapping[str, Node]
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        try:
            self._stack.enter_context(self.controller)
            self._make_controller()
            for number, (name, node) in enumerate(self.hosts.items(), start=1):
                self._stack.enter_context(node)
                self._attach(node, number)
                self._make_host(node, name)
            self._know_hosts()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The controller and the hosts."""
        return (self.controller, *self.hosts.values())

    def ansible(self, program: str, *arguments: str, env: Mapping[str, str] | None = None) -> Result:
        """Return the output and the exit code of Ansible's ``program`` on the controller."""
        return self.controller.finish(*_command(program, arguments), env=env, timeout=900)

    def play(self, playbook: str, *arguments: str) -> Played:
        """Return the result of ``ansible-playbook PLAYBOOK ARGUMENTS``."""
        return self.end(self.start(playbook, *arguments))

    def start(self, playbook: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a play as `play` does, without waiting for it."""
        self.controller.path(_LOG).unlink(missing_ok=True)
        self.controller.path("/root/output").unlink(missing_ok=True)
        return self.controller.start(*_command("ansible-playbook", (playbook, *arguments)), log="/root/output")

    def end(self, playing: subprocess.Popen[bytes], timeout: float = 900) -> Played:
        """Return the result of a play that was started."""
        status = playing.wait(timeout)
        output = self.controller.read("/root/output")
        log = self.controller.path(_LOG)
        rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        tasks = tuple(Task(**row["task"]) for row in rows if "task" in row)
        last: Mapping[str, Any] = next((row for row in rows if "stats" in row), {"stats": {}, "main_s": 0.0})
        return Played(status, output, last["stats"], tasks, last["main_s"])

    def write(self, name: str, text: str) -> str:
        """Write ``text`` to a file of the controller beside the plays, and return its path."""
        self.controller.write(f"{PLAYS}/{name}", text)
        return f"{PLAYS}/{name}"

    def cut(self, name: str) -> None:
        """Cut the host's link."""
        self.hosts[name].sandbox.run("ip", "link", "set", "eth0", "down")

    def join(self, name: str) -> None:
        """Restore the host's link."""
        self.hosts[name].sandbox.run("ip", "link", "set", "eth0", "up")

    def processor_s(self, node: Node) -> float:
        """Return the processor time that all processes of ``node`` have used so far, including ended ones."""
        text = node.sandbox.run("cat", "/sys/fs/cgroup/cpu.stat").stdout
        return int(text.split("usage_usec")[1].split()[0]) / 1e6

    def memory_mb(self, node: Node) -> float:
        """Return the memory that the processes of ``node`` use now, counting shared pages once."""
        total = 0
        for pid in node.sandbox.inside(Path("/sys/fs/cgroup/init/cgroup.procs")).read_text().split():
            with suppress(OSError):  # It has ended meanwhile.
                total += int(Path(f"/proc/{pid}/smaps_rollup").read_text().split("\nPss:")[1].split()[0])
        return total / 1024

    def link_bytes(self, name: str) -> int:
        """Return the bytes that have passed the host's link so far, in both directions."""
        rows = json.loads(self.hosts[name].sandbox.run("ip", "-json", "-statistics", "link", "show", "eth0").stdout)
        return int(rows[0]["stats64"]["rx"]["bytes"] + rows[0]["stats64"]["tx"]["bytes"])

    def _make_controller(self) -> None:
        node = self.controller
        for line in ("link add fleet type bridge", f"address add {_NETWORK}.250/24 dev fleet", "link set fleet up"):
            node.sandbox.run("ip", *line.split())
        node.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/root/.ssh/id_ed25519")
        node.write(f"{PLAYS}/ansible.cfg", _CONFIG)
        node.write(f"{PLAYS}/callbacks/recorder.py", _PLUGIN.read_text())
        node.write(_INVENTORY, _inventory(self.hosts))
        lines = (f"{_NETWORK}.{number} {name}\n" for number, name in enumerate(self.hosts, start=1))
        node.write("/etc/hosts", "127.0.0.1 localhost\n" + "".join(lines))

    def _attach(self, node: Node, number: int) -> None:
        # The machine's own network is not touched: the command joins the controller's network but keeps the machine's
        # files, where /proc lists the host's pid.
        pair = f"link add host{number} type veth peer name eth0 netns {node.sandbox.pid}"
        enter = ["nsenter", f"--target={self.controller.sandbox.pid}", "--net", "ip"]
        run([*enter, *pair.split()])
        run([*enter, *f"link set host{number} master fleet up".split()])
        for line in (f"address add {_NETWORK}.{number}/24 dev eth0", "link set eth0 up"):
            node.sandbox.run("ip", *line.split())

    def _make_host(self, node: Node, name: str) -> None:
        node.write("/etc/hostname", f"{name}\n")
        node.run("hostname", name)
        # A host may have been made from an earlier host.
        node.run("sh", "-c", f"id {USER} || useradd --create-home --shell /bin/bash {USER}")
        node.write("/etc/sudoers.d/fleet", f"{USER} ALL=(ALL) NOPASSWD: ALL\n", 0o440)
        node.write(f"/home/{USER}/.ssh/authorized_keys", self.controller.read("/root/.ssh/id_ed25519.pub"))
        if isinstance(node, Chroot):
            start_sshd(node)

    def _know_hosts(self) -> None:
        rows = (f"{name} {node.read('/etc/ssh/ssh_host_ed25519_key.pub')}" for name, node in self.hosts.items())
        self.controller.write("/root/.ssh/known_hosts", "".join(rows))


def start_sshd(node: Node) -> None:
    """Start the host's SSH server, as a boot does."""
    node.path("/run/sshd").mkdir(exist_ok=True)
    node.start("/usr/sbin/sshd", "-D", "-e", log="/var/log/sshd.log")
    deadline = time.monotonic() + 30
    while not node.finish("ss", "--listening", "--tcp", "--numeric", "--no-header", "sport = :22").stdout:
        if time.monotonic() > deadline:
            raise LabError(f"no SSH server:\n{node.read('/var/log/sshd.log')}")
        time.sleep(0.05)


def kill_all(node: Node) -> None:
    """Kill every process of the host except the one that holds its namespaces, as a power cut does."""
    node.sandbox.finish("sh", "-c", "kill -KILL -1")


def _command(program: str, arguments: Iterable[str]) -> list[str]:
    settings = {
        "PWD": PLAYS,
        "PYTHONPATH": ANSIBLE,
        "ANSIBLE_CONFIG": f"{PLAYS}/ansible.cfg",
        "ANSIBLE_NOCOLOR": "1",
        "LAB_RESULTS": _LOG,
    }
    environment = (f"{name}={value}" for name, value in settings.items())
    return ["env", f"--chdir={PLAYS}", *environment, "python3", f"{ANSIBLE}/bin/{program}", *arguments]


def _inventory(names: Iterable[str]) -> str:
    return "[gpu]\n" + "".join(f"{name}\n" for name in names)
