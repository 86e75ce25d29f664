"""Mounts that no other process sees."""

from __future__ import annotations

import ctypes
import os
import subprocess
import traceback
from collections.abc import Callable
from pathlib import Path

_CLONE_NEWNS = 0x20000


def why_not() -> str:
    """Return the reason why this machine cannot mount; empty if it can."""
    if os.geteuid() != 0:
        return "needs root: mounts file systems"
    may = subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode == 0
    return "" if may else "needs a mount namespace of its own"


def in_own_mounts(body: Callable[[], None]) -> None:
    """Run ``body`` in a process whose mounts end with it; its failure is raised in the caller."""
    ours, its = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _unshare()
            mount("--make-rprivate", "/")
            body()
        except BaseException:
            os.write(its, traceback.format_exc()[-8000:].encode())
        finally:
            os._exit(0)
    os.close(its)
    with os.fdopen(ours, "rb") as said:
        problem = said.read().decode()
    os.waitpid(pid, 0)
    assert not problem, problem


def _unshare() -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def mount(*words: str | Path) -> None:
    """Mount as mount(8) does."""
    subprocess.run(["mount", *words], check=True)


def unmount(path: Path) -> None:
    """Unmount as umount(8) does."""
    subprocess.run(["umount", path], check=True)
