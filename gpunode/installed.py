"""The way in which gpunode was installed on this machine.

``--version`` loads this, and gpunode.pyz does so before anything is unpacked: it imports only what Python has loaded.
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
# Beside gpunode.pyz where a package brought it: the name of the package's format.
_INSTALLER_FILE = "INSTALLER"


def find_installation_method() -> tuple[str, str]:
    """Return one of ``INSTALLATION_METHODS``, and the path of the zipapp or of the folder that holds gpunode."""
    archive = getattr(sys.modules["__main__"], "GPUNODE_ZIPAPP", "")
    if archive:
        place = os.path.realpath(archive)
        return _read_package_format(os.path.dirname(place)) or "zipapp", place
    place = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return "source" if os.path.exists(os.path.join(place, "pyproject.toml")) else "wheel", place


def _read_package_format(folder: str) -> str:
    try:
        with open(os.path.join(folder, _INSTALLER_FILE), encoding="ascii") as file:
            installer = file.read(9).strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return installer if installer in {"deb", "rpm"} else ""


def print_version(version: str) -> int:
    """Print the version, then how it was installed on a line of its own, and return the exit code."""
    kind, place = find_installation_method()
    try:
        print(f"gpunode {version}\ninstalled {INSTALLATION_METHODS[kind]}: {place}", flush=True)  # noqa: T201
    except OSError:  # nobody reads it, or there is no room for it
        sys.stdout = None  # or Python complains of it once more at its end
        return 2
    return 0
