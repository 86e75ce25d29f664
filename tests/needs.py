"""Requirements of tests on the machine, worded so that the screen at the end of a run can name what to install."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

# The Debian package of a program, if its name differs.
_PACKAGES: Final = {
    "apt-ftparchive": "apt-utils",
    "chattr": "e2fsprogs",
    "dockerd": "docker.io",
    "gcc": "gcc libc6-dev",
    "gpg": "gnupg",
    "lspci": "pciutils",
    "systemd-analyze": "systemd",
    "systemd-escape": "systemd",
}


def program(name: str) -> str | None:
    """Return the path of the program, including from folders that an ordinary user's PATH omits."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin")


def lacking(*programs: str) -> str:
    """Return why a test that needs ``programs`` cannot run here; empty if it can."""
    absent = [name for name in programs if program(name) is None]
    packages = dict.fromkeys(_PACKAGES.get(name, name) for name in absent)
    return f"needs {' and '.join(absent)}: apt-get install {' '.join(packages)}" if absent else ""


def asset(name: str) -> str | None:
    """Return the path of a program of Kubernetes, by the convention of controller-runtime's envtest, or on the PATH.

    TEST_ASSET_KUBE_APISERVER names one file, KUBEBUILDER_ASSETS a folder that holds several.
    """
    named = os.environ.get(f"TEST_ASSET_{name.upper().replace('-', '_')}")
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    places = [Path(named)] if named else []
    places += [Path(folder) / name] if folder else []
    return next((str(place) for place in places if os.access(place, os.X_OK)), None) or program(name)


def lacking_assets(*names: str) -> str:
    """Return why a test that needs these programs of Kubernetes cannot run here; empty if it can."""
    absent = [name for name in names if asset(name) is None]
    return f"needs {' and '.join(absent)}: set KUBEBUILDER_ASSETS to a folder that holds them" if absent else ""
