"""Runs as the guest's first process: gpunode changes the node at /node endlessly and reports on the console.

Each of its console lines begins with ``@``: ``@ready``; ``@begin COMMAND``; ``@end STATUS HASH COMMAND`` with the
hash of the node's configuration, once the command has returned: its result must survive a power cut.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import traceback
from pathlib import Path

from gpunode.cli.boundary import run_cli

NODE = Path("/node")
CONFIGURATION = ("etc/containerd/config.toml", "etc/docker/daemon.json")
STEPS = (
    ("setup", "/opt/containerd.toml", "--only", "runtime-config", "--yes"),
    ("setup", "/opt/containerd-default.toml", "--only", "runtime-config", "--yes"),
    ("rollback", "--yes"),
    ("setup", "/opt/docker.toml", "--only", "runtime-config", "--yes"),
    ("rollback", "--yes"),
)


def configuration(root: Path) -> str:
    """Return the hash of both files, which differs for absent and empty files."""
    contents = [path.read_bytes() if (path := root / name).exists() else None for name in CONFIGURATION]
    return hashlib.sha256(repr(contents).encode()).hexdigest()


def say(*words: object) -> None:
    os.write(1, f"@{' '.join(map(str, words))}\n".encode())


def ended(argv: tuple[str, ...]) -> int:
    """Return gpunode's exit code, run in a child of this process, which has done all imports."""
    child = os.fork()
    if child == 0:
        status = 125
        try:
            sys.argv = ["gpunode", *argv]
            os.dup2(os.open("/run/said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
            os.dup2(1, 2)
            status = run_cli(list(argv))
            sys.stdout.flush()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    say("ready")
    while True:
        for step in STEPS:
            say("begin", *step)
            status = ended((*step, "--root", str(NODE)))
            say("end", status, configuration(NODE), *step)
            if status:
                os.write(1, Path("/run/said").read_bytes())


if __name__ == "__main__":
    try:
        # A child that finds them imported starts sooner.
        for name in ("sh", "gpunode.cli.setup", "gpunode.workflow.rollback"):
            importlib.import_module(name)
        main()
    except BaseException:
        os.write(1, traceback.format_exc().encode())
        raise
