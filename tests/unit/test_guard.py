"""The guard of tests/conftest.py: a unit test that leaves its sandbox fails, and names what it reached for."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Failed = pytest.fail.Exception


def _connect() -> None:
    with socket.socket() as client:
        client.connect(("127.0.0.1", 9))


REACHES: dict[str, Callable[[], object]] = {
    "subprocess": lambda: subprocess.run(["true"], check=False),
    "os.fork": os.fork,
    "os.system": lambda: os.system("true"),
    "connection": _connect,
    "write to /etc/gpunode-test": lambda: Path("/etc/gpunode-test").write_text("x"),
    "write to /etc/gpunode-test2": lambda: os.close(os.open("/etc/gpunode-test2", os.O_WRONLY | os.O_CREAT)),
    "write to /etc/gpunode-test3": lambda: os.mkdir("/etc/gpunode-test3"),
    "write to /etc/gpunode-test4": lambda: os.unlink("/etc/gpunode-test4"),
}


@pytest.mark.parametrize("what", REACHES)
def test_external_access_fails_the_test(what: str) -> None:
    with pytest.raises(Failed, match=what):
        REACHES[what]()


def test_write_relative_to_an_open_folder_is_detected() -> None:
    folder = os.open("/etc", os.O_RDONLY | os.O_DIRECTORY)
    try:
        with pytest.raises(Failed, match="/etc/gpunode-test5"):
            os.open("gpunode-test5", os.O_WRONLY | os.O_CREAT, dir_fd=folder)
        with pytest.raises(Failed, match="/etc/hostname"):
            os.rename("hostname", "gpunode-test6", src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(folder)


def test_reading_and_writing_in_tmp_path_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(Path("/etc/hostname").read_bytes())
    (tmp_path / "file").rename(tmp_path / "other")
    with open(os.devnull, "w") as nothing:
        nothing.write("x")


@pytest.mark.usefixtures("allow_subprocess")
def test_allowed_subprocess_may_run() -> None:
    assert subprocess.run(["true"], check=False).returncode == 0
