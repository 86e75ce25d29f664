"""gpunode killed during an apt transaction: alone, so that apt lives on, or with everything that it started."""

from __future__ import annotations

import difflib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from tests.e2e.chroot.scenario import CONFIG, RECIPE
from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.node import Node
from tests.e2e.lab.tree import COMPILED, PROJECT, SITE

Victims: TypeAlias = Literal["gpunode", "everything"]
DPKG_LOG = "/var/log/dpkg.log"
_LATEST_S = 120.0
# Files that a run may change, compared by content, mode and owner.
_WATCHED = ("/etc/apt", "/etc/containerd", "/etc/modprobe.d", "/usr/share/keyrings")


@dataclass(frozen=True, slots=True)
class State:
    """The state of a node that a run changes and a rollback restores.

    Attributes:
        packages: version and dpkg's status of each package.
        audit: the problems that dpkg reports.
    """

    packages: str
    auto: str
    held: str
    audit: str
    files: dict[str, tuple[int, int, int, bytes]]

    def differences(self, other: State) -> str:
        """Return the differences from ``other`` in both directions; empty when there are none."""
        texts = ((self.packages, other.packages), (self.auto, other.auto), (self.held, other.held))
        lines = [line for mine, others in texts for line in difflib.ndiff(mine.splitlines(), others.splitlines())]
        files = [
            path for path in self.files.keys() | other.files.keys() if self.files.get(path) != other.files.get(path)
        ]
        changed = [line for line in lines if line.startswith(("-", "+"))]
        return "\n".join((*changed, *sorted(files), *({self.audit, other.audit} if self.audit != other.audit else ())))

    @property
    def config(self) -> tuple[int, int, int, bytes] | None:
        """The runtime's configuration."""
        return self.files.get(CONFIG)


def state(node: Chroot) -> State:
    """Return the state of the node now."""
    listing = "${Package} ${Version} ${Status}\n"
    packages, auto, held, audit = (
        node.run(*argv).stdout
        for argv in (
            ("/usr/bin/dpkg-query", "-W", "-f", listing),
            ("/usr/bin/apt-mark", "showauto"),
            ("/usr/bin/apt-mark", "showhold"),
            ("/usr/bin/dpkg", "--audit"),
        )
    )
    return State(packages, auto, held, audit, {name: row for folder in _WATCHED for name, row in _rows(node, folder)})


def _rows(node: Chroot, folder: str) -> Iterator[tuple[str, tuple[int, int, int, bytes]]]:
    for path in sorted(node.path(folder).rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        name = f"{folder}/{path.relative_to(node.path(folder)).as_posix()}"
        yield name, (status.st_mode, status.st_uid, status.st_gid, content)


def steps(node: Node) -> int:
    """Return the number of changes of a package's state that dpkg has logged so far."""
    path = node.path(DPKG_LOG)
    return path.read_text().count(" status ") if path.exists() else 0


def package_intents(node: Node) -> int:
    """Return the number of package changes that the journals of all runs announce."""
    journals = node.path("/var/lib/gpunode/runs").glob("*/journal.jsonl")
    return sum(path.read_bytes().count(b'"change":{"type":"package"') for path in journals)


def is_repair_announced(node: Node) -> bool:
    """Return whether the newest journal announces a repair of packages."""
    journals = sorted(node.path("/var/lib/gpunode/runs").glob("*/journal.jsonl"))
    return b"reinstreq" in journals[-1].read_bytes()


@dataclass(frozen=True, slots=True)
class Orphans:
    """The processes that a killed run left behind, such as apt."""

    pids: tuple[int, ...]

    def alive(self) -> bool:
        """True if any of them is still running."""
        return any(Path(f"/proc/{pid}").exists() for pid in self.pids)

    def send(self, number: signal.Signals) -> None:
        """Send the signal to all that still run."""
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


@dataclass
class Started:
    """A run of gpunode in the background; its output is in ``log`` inside."""

    node: Chroot
    process: subprocess.Popen[bytes]
    log: str

    @property
    def pid(self) -> int:
        """gpunode's pid, as this process sees it."""
        deadline = time.monotonic() + _LATEST_S
        while time.monotonic() < deadline:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            if children and b"gpunode" in Path(f"/proc/{children[0]}/cmdline").read_bytes():
                return int(children[0])
            assert self.process.poll() is None, self.said
            time.sleep(0.005)
        raise AssertionError(self.said)

    @property
    def said(self) -> str:
        """Everything that it has printed."""
        return self.node.read(self.log)

    def kill_at(self, step: int, victims: Victims) -> Orphans:
        """Kill it once dpkg has logged change number ``step`` of this run.

        Returns:
            The processes that it started, if they live on; they are stopped.

        Raises:
            AssertionError: the run ended before that.
        """
        before = steps(self.node)
        return self.kill_once(lambda: steps(self.node) - before >= step, victims)

    def kill_before_dpkg(self) -> None:
        """Kill it and all that it started once the journal announces its package changes, before dpkg makes any.

        Raises:
            AssertionError: dpkg was faster, or no package change was announced.
        """
        before, announced = steps(self.node), package_intents(self.node)
        self.kill_once(lambda: package_intents(self.node) > announced, "everything")
        assert steps(self.node) == before, "dpkg had begun"

    def kill_once(self, is_time: Callable[[], bool], victims: Victims) -> Orphans:
        """Kill it once it ``is_time``; returns and raises as `kill_at` does."""
        pid = self.pid
        deadline = time.monotonic() + _LATEST_S
        while not is_time():
            assert self.process.poll() is None, f"it was over before it was to be killed\n{self.said}"
            assert time.monotonic() < deadline, self.said
            time.sleep(0.001)
        children = _stopped(pid)[1:]
        os.kill(pid, signal.SIGKILL)
        orphans = Orphans(tuple(children))
        if victims == "everything":
            orphans.send(signal.SIGKILL)
        # nsenter, between the two, has stopped with gpunode.
        self.process.send_signal(signal.SIGCONT)
        self.process.wait()
        return orphans

    def kill_child_at(self, step: int, program: str) -> None:
        """Kill only ``program`` once dpkg has logged change ``step``, and wait until gpunode ends.

        dpkg goes on a second later than the rest.

        Raises:
            AssertionError: the run ended before that.
        """
        before, pid = steps(self.node), self.pid
        while steps(self.node) - before < step:
            assert self.process.poll() is None, self.said
            time.sleep(0.001)
        names: dict[int, str] = {}
        for one in _stopped(pid):
            with suppress(FileNotFoundError, ProcessLookupError):
                names[one] = Path(f"/proc/{one}/comm").read_text().strip()
        os.kill(next(one for one, name in names.items() if name == program), signal.SIGKILL)
        for is_dpkg in (False, True):
            Orphans(tuple(one for one, name in names.items() if name.startswith("dpkg") is is_dpkg)).send(
                signal.SIGCONT
            )
            time.sleep(0 if is_dpkg else 1)
        # nsenter, between the two, stops when it sees that gpunode has stopped, perhaps after gpunode continued.
        deadline = time.monotonic() + _LATEST_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.said
            self.process.send_signal(signal.SIGCONT)
            time.sleep(0.05)

    def until(self, text: str) -> str:
        """Wait until its output contains ``text``, and return the output.

        Raises:
            AssertionError: it ended before.
        """
        deadline = time.monotonic() + _LATEST_S
        while text not in self.said:
            assert self.process.poll() is None, f"it never said {text!r}\n{self.said}"
            assert time.monotonic() < deadline, self.said
            time.sleep(0.02)
        return self.said


def start(node: Chroot, *arguments: str) -> Started:
    """Return a running ``gpunode ARGUMENTS`` in ``node``."""
    python = (f"PYTHONPATH={PROJECT}:{SITE}", f"PYTHONPYCACHEPREFIX={COMPILED}")
    log = f"/root/{arguments[0]}.log"
    return Started(node, node.start("env", *python, "python3", "-m", "gpunode", *arguments, log=log), log)


def start_setup(node: Chroot, *options: str) -> Started:
    """Return a running ``gpunode setup`` in ``node``."""
    return start(node, "setup", RECIPE, "--yes", *options)


def _stopped(pid: int) -> list[int]:
    """Stop the process and all of its descendants, so that none continues after another is killed; return them."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        with suppress(ProcessLookupError, FileNotFoundError):
            os.kill(one, signal.SIGSTOP)
            found.append(one)
            waiting += [int(child) for child in Path(f"/proc/{one}/task/{one}/children").read_text().split()]
    return found


def copy_disk(node: Chroot, target: Path) -> Path:
    """Copy what ``node`` has written to its disk so far, as a layer for another node."""
    subprocess.run(["cp", "-a", os.fspath(node.upper), os.fspath(target)], check=True)
    return target


def discard(layer: Path) -> None:
    """Remove the layer."""
    shutil.rmtree(layer)
