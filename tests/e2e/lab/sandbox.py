"""Private namespaces: processes and mounts in them end with them."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.e2e.lab.commands import LabError, Result, finish, run

if TYPE_CHECKING:
    from typing_extensions import Self

CLONE_NEWNET: Final = 0x40000000

# A cgroup of its own, which the cgroup namespace shows as the root: dockerd and systemd make their groups below it.
_HOLD: Final = """
set -e
mount -t cgroup2 none "$1"
mkdir "$1/$2"
echo 0 > "$1/$2/cgroup.procs"
umount "$1"
exec unshare --cgroup --pid --net --uts --ipc --fork --kill-child sh -c "$3"
"""
# The first process reaps orphans, as an init does. It is in its own leaf: a cgroup with processes cannot delegate
# controllers.
_INIT: Final = """
set -e
mount -t proc proc /proc
umount --recursive /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
mkdir /sys/fs/cgroup/init
echo 0 > /sys/fs/cgroup/init/cgroup.procs
ip link set lo up
hostname lab
echo ready
exec >/dev/null
while :; do sleep 86400 & wait; done
"""
_JOIN: Final = 'echo 0 > /sys/fs/cgroup/init/cgroup.procs && exec "$@"'
_REMOVE_CGROUP: Final = """
mount -t cgroup2 none "$1"
for attempt in 1 2 3 4 5 6 7 8 9 10; do
  [ -d "$1/$2" ] || exit 0
  find "$1/$2" -depth -type d -exec rmdir {} + 2>/dev/null && exit 0
  sleep 0.1
done
exit 1
"""


class Sandbox:
    """Mount, pid, net, uts, ipc and cgroup namespaces, held open by one process; its end ends all their processes.

    Args:
        scratch: an empty folder of this sandbox, whose name is unique on the machine.
    """

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self._cgroup = f"gpunode-{scratch.name}-{os.getpid()}"
        self._holder: subprocess.Popen[str] | None = None
        self.pid = 0

    def __enter__(self) -> Self:
        mountpoint = self.scratch / "cgroup"
        mountpoint.mkdir(parents=True)
        shell = ["sh", "-c", _HOLD, "sh", os.fspath(mountpoint), self._cgroup, _INIT]
        argv = ["setpriv", "--pdeathsig=KILL", "unshare", "--mount", "--propagation=private", *shell]
        self._holder = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            self.pid = self._await_init(self._holder)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill all processes of the namespaces, and remove their mounts and their cgroup."""
        if self._holder is None:
            return
        # unshare ends after reaping its child: by then the kernel has ended the whole pid namespace.
        os.kill(self.pid or self._holder.pid, signal.SIGKILL)
        self._holder.communicate()
        self._holder = None
        removal = ["unshare", "--mount", "sh", "-c", _REMOVE_CGROUP, "sh"]
        run([*removal, os.fspath(self.scratch / "cgroup"), self._cgroup])

    def argv(self, *command: str) -> list[str]:
        """Return the command line that runs ``command`` inside."""
        enter = ["nsenter", "--target", str(self.pid), *(f"--{kind}" for kind in ("mount", "pid", "net", "uts", "ipc"))]
        return [*enter, "--cgroup", "--", "sh", "-c", _JOIN, "sh", *command]

    def finish(
        self, *command: str, env: Mapping[str, str] | None = None, stdin: str = "", timeout: float = 120
    ) -> Result:
        """Return the output and the exit code of ``command``, run inside."""
        return finish(self.argv(*command), env=env, stdin=stdin, timeout=timeout)

    def run(self, *command: str, timeout: float = 120) -> Result:
        """Run a command as `finish` does; it has to succeed."""
        return run(self.argv(*command), timeout=timeout)

    def mount(self, *arguments: str | os.PathLike[str]) -> None:
        """Call ``mount`` with ``arguments`` in the mount namespace."""
        self.run("mount", *(os.fspath(argument) for argument in arguments))

    def bind(self, source: Path, target: Path, *, read_only: bool = False) -> None:
        """Bind ``source`` to ``target`` inside."""
        self.mount("--bind", source, target)
        if read_only:
            self.mount("-o", "remount,bind,ro", target)

    def inside(self, path: Path) -> Path:
        """Return this process's path of the sandbox's ``path``."""
        return Path(f"/proc/{self.pid}/root{path}")

    def listen(self, port: int) -> socket.socket:
        """Return a socket that listens on the sandbox's own loopback address."""
        with ThreadPoolExecutor(1) as executor:
            return executor.submit(_listen, self.pid, port).result()

    @staticmethod
    def _await_init(holder: subprocess.Popen[str]) -> int:
        assert holder.stdout is not None
        assert holder.stderr is not None
        if holder.stdout.readline() != "ready\n":
            raise LabError(f"no private namespaces on this machine: {holder.stderr.read().strip()}")
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
        return int(children[0])


def _listen(pid: int, port: int) -> socket.socket:
    # setns moves only the calling thread, and a socket always belongs to the namespace in which it was created.
    with Path(f"/proc/{pid}/ns/net").open() as namespace:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        return socket.create_server(("127.0.0.1", port))
