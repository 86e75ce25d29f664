"""Storage of bug tracebacks: under /var/log for root, else in a private temporary file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from gpunode import __version__
from gpunode.host.ownership import explain_untrusted_folder

TRACEBACK_FOLDER = Path("/var/log/gpunode")


def save_traceback(traceback: str, name: str) -> str:
    """Write ``traceback`` and the versions to a new file, and return its path.

    Raises:
        OSError: if it cannot be written anywhere.
    """
    text = f"{_describe_versions()}\n\n{traceback}"
    if os.geteuid() == 0 and not explain_untrusted_folder(TRACEBACK_FOLDER):
        TRACEBACK_FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = TRACEBACK_FOLDER / name
        try:
            return _write_report(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), str(path), text)
        except FileExistsError:
            return str(path)
    import tempfile

    descriptor, private = tempfile.mkstemp(prefix="gpunode-", suffix=f"-{name}")
    return _write_report(descriptor, private, text)


def _describe_versions() -> str:
    """Return the versions of gpunode, Python and the system."""
    import platform

    import distro

    try:
        # distro's other sources are programs, which it would look up in the caller's PATH.
        system = distro.LinuxDistribution(include_lsb=False, include_uname=False, include_oslevel=False).name(
            pretty=True
        )
    except (OSError, ValueError):  # such as an os-release with a quote that is never closed
        system = ""
    system = system or platform.system()
    return f"gpunode {__version__}, Python {platform.python_version()}, {system}, {platform.machine()}"


def save_rule_tracebacks(tracebacks: Sequence[str]) -> str:
    """Write the tracebacks of failed rules, and return the path; empty if there are none or writing fails.

    A broken rule fails at every run, even from a timer, so the same text is stored once.
    """
    if not tracebacks:
        return ""
    from hashlib import sha256

    text = "\n".join(dict.fromkeys(tracebacks))
    try:
        return save_traceback(
            text, f"bug-of-rules-{sha256(f'{_describe_versions()}{text}'.encode()).hexdigest()[:12]}.txt"
        )
    except OSError:
        return ""


def _write_report(descriptor: int, path: str, text: str) -> str:
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
        file.write(text)
    return path
