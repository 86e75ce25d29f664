"""Real daemons below a root: started with a node's files, queried and ended."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from tests.e2e.runtimes.cri import Cri, NoCri

# A node's files by path; others do not exist.
Files: TypeAlias = Mapping[str, bytes]

_ENVIRONMENT: Final = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
DOCKERD: Final = ("dockerd", "--containerd=/run/containerd/containerd.sock", "--iptables=false", "--ip6tables=false")
_FOLDERS: Final = ("etc/containerd", "etc/docker")
_GPUNODES_OWN: Final = ("var/lib/gpunode", "var/log/gpunode")
# Files named in the vectors' containerd files: a missing base_runtime_spec keeps the CRI plugin from loading.
_SPECS: Final = ("etc/containerd/cri-base.json", "etc/containerd/base.json")


@dataclass(frozen=True, slots=True)
class Read:
    """The result of a daemon's own parser for files.

    Attributes:
        ok: whether it accepts them; None for a dockerd without --validate.
        dump: the output of ``containerd config dump``; empty if it rejects them, and for dockerd.
        said: its error.
    """

    ok: bool | None
    dump: str
    said: str


@dataclass(frozen=True, slots=True)
class Started:
    """The answers over its socket of a daemon that runs with given files.

    Attributes:
        ok: whether the daemon, or its CRI plugin, answers.
        binaries: the program of each handler.
        said: the reason if it does not.
    """

    ok: bool
    default: str
    binaries: dict[str, str]
    said: str


class Root:
    """The system below ``path``, seen from the namespaces of the daemons."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lay(self, files: Files) -> None:
        """Write ``files`` and the files that those name to the runtimes' folders, and nothing else."""
        for folder in (*_FOLDERS, *_GPUNODES_OWN):
            shutil.rmtree(self.path / folder, ignore_errors=True)
        for folder in _FOLDERS:
            (self.path / folder).mkdir()
        for name in _SPECS:
            (self.path / name).write_text('{"ociVersion": "1.0.2"}')
        for name, content in files.items():
            target = self.path / name.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)

    def files(self) -> Files:
        """Return the current contents."""
        found = (path for folder in _FOLDERS for path in sorted((self.path / folder).rglob("*")) if path.is_file())
        named = {f"/{path.relative_to(self.path)}": path for path in found}
        return {name: path.read_bytes() for name, path in named.items() if name[1:] not in _SPECS}

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Return the output and the exit code of ``argv``, run inside."""
        return subprocess.run(self._enter(argv), env=_ENVIRONMENT, capture_output=True, text=True, check=False)

    @contextmanager
    def daemon(self, *argv: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
        """Run ``argv`` inside within the context; yield the process and its output file."""
        log = self.path / f"var/log/{argv[0]}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(self._enter(argv), env=_ENVIRONMENT, stdout=output, stderr=output)
        try:
            yield process, log
        finally:
            # There are no containers to keep, so it can be killed.
            process.kill()
            process.wait()

    def _enter(self, argv: tuple[str, ...]) -> list[str]:
        return ["chroot", str(self.path), *argv]


def containerd_reads(root: Root, config: str) -> Read:
    """Return the result of ``containerd config dump`` for the present files, or for its defaults if there are none."""
    there = (root.path / config.lstrip("/")).exists()
    asked = ("--config", config, "config", "dump") if there else ("config", "default")
    done = root.run("containerd", *asked)
    return Read(done.returncode == 0, "" if done.returncode else done.stdout, done.stderr.strip())


def containerd_starts(root: Root, config: str) -> Started:
    """Return the status of the CRI plugin of a containerd started with the present files."""
    socket = root.path / "run/lab/containerd.sock"
    socket.parent.mkdir(exist_ok=True)
    socket.unlink(missing_ok=True)
    own = ("--address", "/run/lab/containerd.sock", "--root", "/var/lib/containerd/lab", "--state", "/run/lab/state")
    chosen = ("--config", config) if (root.path / config.lstrip("/")).exists() else ()
    with root.daemon("containerd", *chosen, *own) as (process, log):
        if not _is_there(socket, process):
            return Started(False, "", {}, _complaints(log))
        try:
            with Cri(socket) as cri:
                told = cri.told()
        except NoCri as error:
            return Started(False, "", {}, f"{error}\n{_complaints(log)}")
    return Started(True, told.default, dict(told.binaries), "")


def dockerd_reads(root: Root, config: str) -> Read:
    """Return the result of ``dockerd --validate`` for the present files."""
    chosen = ("--config-file", config) if (root.path / config.lstrip("/")).exists() else ()
    done = root.run("dockerd", "--validate", *chosen)
    cannot = "unknown flag: --validate" in done.stderr
    return Read(None if cannot else done.returncode == 0, "", done.stderr.strip())


def dockerd_starts(root: Root, config: str) -> Started:
    """Return the status of a dockerd started with the present files, with containerd running."""
    socket = root.path / "run/docker.sock"
    socket.unlink(missing_ok=True)
    (root.path / "run/docker.pid").unlink(missing_ok=True)
    chosen = ("--config-file", config) if (root.path / config.lstrip("/")).exists() else ()
    with root.daemon(*DOCKERD, *chosen) as (process, log):
        if not _is_there(socket, process):
            return Started(False, "", {}, _complaints(log))
        # It opens its socket before it is done with its configuration.
        _soon(lambda: _docker_answers(socket) or process.poll() is not None)
        try:
            told = _docker_info(socket)
        except (OSError, http.client.HTTPException):
            return Started(False, "", {}, _complaints(log))
    binaries = {name: str(entry.get("path", "")) for name, entry in told["Runtimes"].items()}
    return Started(True, told["DefaultRuntime"], binaries, "")


def _is_there(socket: Path, process: subprocess.Popen[bytes]) -> bool:
    return _soon(lambda: socket.exists() or process.poll() is not None) and socket.exists()


def _soon(true: Callable[[], bool]) -> bool:
    for _ in range(2000):
        if true():
            return True
        time.sleep(0.01)
    return False


def _docker_answers(path: Path) -> bool:
    try:
        return bool(_docker_info(path))
    except (OSError, http.client.HTTPException):
        return False


def _docker_info(path: Path) -> dict[str, Any]:
    connection = http.client.HTTPConnection("docker", timeout=30)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.connect(str(path))
    connection.request("GET", "/info")
    told: dict[str, Any] = json.load(connection.getresponse())
    return told


def _complaints(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if "level=info" not in line]
    return "\n".join(lines[-6:])
