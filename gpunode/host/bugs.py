"""Where the traceback of a bug is kept for its report: under /var/log for root, else in a private temporary file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from gpunode import __version__
from gpunode.host.ownership import why_foreign

FOLDER = Path("/var/log/gpunode")


def keep(traceback: str, name: str) -> str:
    """The path where ``traceback`` was written, below the versions; no file in root's folder is overwritten.

    Raises:
        OSError: it can be written nowhere.
    """
    text = f"{_versions()}\n\n{traceback}"
    if os.geteuid() == 0 and not why_foreign(FOLDER):
        FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = FOLDER / name
        try:
            return _written(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), str(path), text)
        except FileExistsError:
            return str(path)
    import tempfile

    descriptor, private = tempfile.mkstemp(prefix="gpunode-", suffix=f"-{name}")
    return _written(descriptor, private, text)


def _versions() -> str:
    """gpunode, Python and the system that ran them."""
    import platform

    import distro

    try:
        # Its other sources are programs that it would look for in the caller's PATH.
        system = distro.LinuxDistribution(include_lsb=False, include_uname=False, include_oslevel=False).name(
            pretty=True
        )
    except (OSError, ValueError):  # such as an os-release with a quote that is never closed
        system = ""
    system = system or platform.system()
    return f"gpunode {__version__}, Python {platform.python_version()}, {system}, {platform.machine()}"


def keep_those_of_rules(tracebacks: Sequence[str]) -> str:
    """The path of the tracebacks of failed rules; empty if there are none or they cannot be written.

    A rule that fails on a node fails there at every look, be it by a timer: the same text is kept once.
    """
    if not tracebacks:
        return ""
    text = "\n".join(dict.fromkeys(tracebacks))
    try:
        return keep(text, f"bug-of-rules-{hashlib.sha256(f'{_versions()}{text}'.encode()).hexdigest()[:12]}.txt")
    except OSError:
        return ""


def _written(descriptor: int, path: str, text: str) -> str:
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
        file.write(text)
    return path
