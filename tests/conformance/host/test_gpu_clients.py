"""A real process that has an NVIDIA device node open is found in /proc, wherever the node is."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpunode.host.workloads import find_disturbable_workloads
from tests.needs import program

_MAJOR = 195
# Without the driver the node itself cannot be opened; opening its path alone makes it appear in /proc/PID/fd.
_HOLD = "import os, sys; os.open(sys.argv[1], os.O_PATH); print('open', flush=True); sys.stdin.read()"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """Return a device node as in a container, in its own folder."""
    made = tmp_path / "dev/nvidia0"
    made.parent.mkdir()
    try:
        os.mknod(made, 0o600 | stat.S_IFCHR, os.makedev(_MAJOR, 0))
    except PermissionError:
        pytest.skip("only root makes device nodes")
    return made


@pytest.fixture
def holder(node: Path) -> Iterator[int]:
    argv = [sys.executable, "-c", _HOLD, os.fspath(node)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process.pid
        process.kill()


def test_process_with_a_real_device_node_is_a_client(holder: int, node: Path) -> None:
    (client,) = [one for one in find_disturbable_workloads().gpu_clients if one.pid == holder]
    assert str(node) in client.command or Path(sys.executable).name in client.command
    assert (client.container, client.pod) == ("", "")


def test_process_with_another_device_is_no_client(tmp_path: Path) -> None:
    with subprocess.Popen([program("sleep") or "sleep", "60"], stdin=subprocess.DEVNULL) as process:
        assert process.pid not in {one.pid for one in find_disturbable_workloads().gpu_clients}
        process.kill()
