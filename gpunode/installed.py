"""The way in which gpunode was installed on this machine.

``--version`` loads this, in gpunode.pyz before anything is unpacked, so it only imports what Python has loaded already.
"""

from __future__ import annotations

import os
import sys

INSTALLATION_METHODS = {
    "deb": "by the Debian package",
    "rpm": "by the RPM package",
    "zipapp": "as a zipapp",
    "wheel": "as a wheel",
    "source": "from a source tree",
}
# A package puts this file, with the name of its format, beside gpunode.pyz.
_INSTALLER_FILE = "INSTALLER"


def find_installation_method() -> tuple[str, str]:
    """Return one of ``INSTALLATION_METHODS``, and the path of the zipapp or of the folder that contains gpunode."""
    archive = getattr(sys.modules["__main__"], "GPUNODE_ZIPAPP", "")
    if archive:
        folder = os.path.realpath(archive)
        return _read_package_format(os.path.dirname(folder)) or "zipapp", folder
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return "source" if os.path.exists(os.path.join(folder, "pyproject.toml")) else "wheel", folder


def _read_package_format(folder: str) -> str:
    try:
        with open(os.path.join(folder, _INSTALLER_FILE), encoding="ascii") as file:
            installer = file.read(9).strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return installer if installer in {"deb", "rpm"} else ""


def print_version(version: str) -> int:
    """Print the version and, on a second line, how it was installed; return the exit code."""
    kind, folder = find_installation_method()
    try:
        print(f"gpunode {version}\ninstalled {INSTALLATION_METHODS[kind]}: {folder}", flush=True)  # noqa: T201
    except OSError:  # the reader has gone, or the disk is full
        sys.stdout = None  # or Python complains again at exit
        return 2
    return 0
