"""Commands of the machine that runs the tests."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.e2e.lab.architecture import NODES

Result = subprocess.CompletedProcess[str]


class LabError(Exception):
    """The lab itself failed; this says nothing about gpunode."""


def finish(
    argv: Sequence[str], *, env: Mapping[str, str] | None = None, stdin: str = "", timeout: float = 120
) -> Result:
    """Return the output and the exit code of ``argv``.

    Its output goes to files, not pipes, so a daemon that it leaves behind does not block the reader.

    Raises:
        LabError: it did not end within ``timeout`` seconds.
    """
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        source.write(stdin.encode())
        source.seek(0)
        child = subprocess.Popen(argv, stdin=source, stdout=out, stderr=err, env=env)
        try:
            status = child.wait(timeout)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            raise LabError(f"no end after {timeout} s: {argv}\n{_text(out)}\n{_text(err)}") from None
        return subprocess.CompletedProcess(list(argv), status, _text(out), _text(err))


def run(argv: Sequence[str], *, env: Mapping[str, str] | None = None, stdin: str = "", timeout: float = 120) -> Result:
    """Run a command as `finish` does; it has to succeed.

    Raises:
        LabError: it did not.
    """
    result = finish(argv, env=env, stdin=stdin, timeout=timeout)
    if result.returncode:
        raise LabError(f"status {result.returncode}: {list(argv)}\n{result.stdout[-3000:]}\n{result.stderr[-3000:]}")
    return result


def compile_library(source: Path, target: Path, *defines: str) -> Path:
    """Return the C file ``source`` as a shared library at ``target``."""
    options = ["-O1", "-shared", "-fPIC", f"-Wl,-soname,{target.name}", *(f"-D{define}" for define in defines)]
    run([f"{NODES.triplet}-gcc", *options, "-o", os.fspath(target), os.fspath(source)])
    return target


def _text(file: tempfile._TemporaryFileWrapper[bytes] | object) -> str:
    assert hasattr(file, "seek")
    assert hasattr(file, "read")
    file.seek(0)
    return bytes(file.read()).decode(errors="replace")
