"""The user who started gpunode, for the journal."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

_NOBODY_LOGGED_IN = 0xFFFFFFFF


def invoking_user() -> str:
    """Return the user who started gpunode, behind sudo where there is one."""
    if sudo := os.environ.get("SUDO_USER"):
        return sudo
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def loginuid(proc: Path = Path("/proc")) -> int | None:
    """Return the login uid, which su and sudo keep; None if nobody logged in. Source: proc(5), /proc/pid/loginuid."""
    try:
        number = int((proc / "self/loginuid").read_text())
    except (OSError, ValueError):
        return None
    return None if number == _NOBODY_LOGGED_IN else number
