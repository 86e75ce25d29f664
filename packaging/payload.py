"""The content of gpunode.pyz: gpunode and what it imports, pure Python, laid out as pip installs it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
# The same wheel of each requirement on whatever Python and machine: its compiled modules are left out anyway.
_PIP_WHEEL_OPTIONS = (
    "--only-binary=:all:",
    "--platform=manylinux2014_x86_64",
    "--implementation=cp",
    "--python-version=3.10",
)
# pip's own notes of where and how it installed, which differ from machine to machine.
_IGNORED_DIST_INFO_FILES = frozenset({"RECORD", "INSTALLER", "REQUESTED", "WHEEL", "direct_url.json"})
# #!/usr/bin/env cannot pass -I everywhere: neither PYTHON* variables nor a user's own packages decide what root runs.
SHEBANG = b"#!/usr/bin/python3 -I\n"


def install(wheel: Path, folder: Path, report: Path) -> dict[str, str]:
    """Install the modules of ``wheel`` and of the pinned requirements into ``folder``, for any architecture.

    Args:
        wheel: of gpunode.
        folder: an empty one.
        report: a file that pip may write.

    Returns:
        The SHA-256 of the wheel of each requirement, by its name in lower case.
    """
    pip = (
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
        "--no-deps",
        "--no-compile",
    )
    target = ("--target", os.fspath(folder))
    requirements = ("--require-hashes", "--requirement", HERE / "requirements.txt", "--report", report)
    subprocess.run([*pip, *target, *_PIP_WHEEL_OPTIONS, *requirements], check=True)
    subprocess.run([*pip, *target, wheel], check=True)
    shutil.rmtree(folder / "bin", ignore_errors=True)
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.suffix == ".so" or (path.name in _IGNORED_DIST_INFO_FILES and path.parent.suffix == ".dist-info"):
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    installed = json.loads(report.read_text("utf-8"))["install"]
    return {
        one["metadata"]["name"].lower(): one["download_info"]["archive_info"]["hashes"]["sha256"] for one in installed
    }


def write(folder: Path, version: str, moment: int, target: Path) -> None:
    """Write the zipapp of ``folder`` to ``target``; the same content gives the same bytes."""
    payload = _zip(_files(folder), moment)
    start = (HERE / "zipapp/__main__.py").read_text("utf-8")
    start = start.replace("@VERSION@", version).replace("@PAYLOAD_SHA256@", hashlib.sha256(payload).hexdigest())
    outer = [
        ("__main__.py", start.encode()),
        ("installed.py", (folder / "gpunode/installed.py").read_bytes()),
        ("payload.zip", payload),
        ("unpack.py", (HERE / "zipapp/unpack.py").read_bytes()),
    ]
    target.write_bytes(SHEBANG + _zip(iter(outer), moment))
    target.chmod(0o755)


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path.read_bytes()


def _zip(files: Iterator[tuple[str, bytes]], moment: int) -> bytes:
    import time

    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in files:
            entry = zipfile.ZipInfo(name, time.gmtime(moment)[:6])
            entry.external_attr = (stat.S_IFREG | 0o644) << 16
            entry.compress_type = zipfile.ZIP_STORED if name.endswith(".zip") else zipfile.ZIP_DEFLATED
            archive.writestr(entry, content, compresslevel=9)
    return made.getvalue()
