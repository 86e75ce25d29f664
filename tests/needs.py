"""What a test needs of the machine, said so that the screen at the end of a run can name what to install."""

from __future__ import annotations

import os
import shutil
from typing import Final

# Debian's package of a program, where it has another name.
_PACKAGES: Final = {
    "apt-ftparchive": "apt-utils",
    "chattr": "e2fsprogs",
    "dockerd": "docker.io",
    "gcc": "gcc libc6-dev",
    "go": "golang-go",
    "gpg": "gnupg",
    "lspci": "pciutils",
    "systemd-analyze": "systemd",
    "systemd-escape": "systemd",
}


def program(name: str) -> str | None:
    """Where the program is; also what an ordinary user's PATH does not lead to."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin")


def lacking(*programs: str) -> str:
    """Why a test that needs ``programs`` cannot be run here; empty when it can."""
    absent = [name for name in programs if program(name) is None]
    packages = dict.fromkeys(_PACKAGES.get(name, name) for name in absent)
    return f"needs {' and '.join(absent)}: apt-get install {' '.join(packages)}" if absent else ""
