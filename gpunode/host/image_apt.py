"""Simulate apt for a mounted root with this machine's apt, without running any program of that root.

The root is somebody else's data. What apt needs of it is copied to a folder of our own, so no link in it leads
anywhere, and apt reads it as nobody, without privileges. Its apt.conf is not among that: it may name programs to run.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from gpunode.change import PackageChange
from gpunode.facts.evidence import decode_found
from gpunode.host import files, globs
from gpunode.host.apt import SIMULATE, UNATTENDED
from gpunode.host.process import Runner
from gpunode.packages.deb import status
from gpunode.packages.deb.output import parse_simulation
from gpunode.packages.deb.requests import arguments
from gpunode.packages.simulation import NOT_SIMULATED, Simulation

_STATUS: Final = "/var/lib/dpkg/status"
_ARCHITECTURES: Final = "/var/lib/dpkg/arch"
_COPIED: Final = (
    _STATUS,
    "/var/lib/apt/extended_states",
    "/var/lib/apt/lists/*",
    "/etc/apt/sources.list",
    "/etc/apt/sources.list.d/*",
    "/etc/apt/preferences",
    "/etc/apt/preferences.d/*",
)
# Of all files together: an image may hold any number of sparse ones. Universe of Ubuntu 24.04 is 70 MB unpacked.
_LARGEST: Final = 512 << 20
_NOBODY: Final = "65534"  # Debian Policy 9.2.2: of nobody and of nogroup
_UNPRIVILEGED: Final = (
    "setpriv",
    f"--reuid={_NOBODY}",
    f"--regid={_NOBODY}",
    "--clear-groups",
    "--no-new-privs",
    "--bounding-set=-all",
)
_PROGRAM_MISSING: Final = b"setpriv: failed to execute"
_LIMIT_S: Final = 120.0
_OUTPUT_LIMIT: Final = 16 << 20


def simulate(root: str, changes: Sequence[PackageChange]) -> Simulation:
    """What one transaction of ``changes`` would do in ``root``; its ``problem`` says where and why it was not asked."""
    try:
        found = status.entries(files.read(_STATUS, root=root).text)
        native = status.native_architecture(found)
        known = status.packages(found)
    except ValueError as error:
        return _not_simulated(str(error))
    words = arguments(changes, known)
    if not words:
        return Simulation(())
    try:
        # Not where TMPDIR says: nobody may not enter every folder of root's.
        with tempfile.TemporaryDirectory(prefix="gpunode-", dir="/var/tmp") as folder:
            _copy(root, Path(folder), native)
            argv = (*(_UNPRIVILEGED if os.geteuid() == 0 else ()), *SIMULATE, *words)
            env = {**UNATTENDED, "APT_CONFIG": f"{folder}/apt.conf"}
            done = Runner().run(argv, timeout_s=_LIMIT_S, limit_bytes=_OUTPUT_LIMIT, env=env)
    except (OSError, ValueError) as error:
        return _not_simulated(f"the state of the image's apt cannot be copied: {error}")
    if done.missing or _PROGRAM_MISSING in done.stderr:
        return _not_simulated("this machine has no apt-get, and plan runs no program of the image")
    return parse_simulation(done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"), ok=done.ok)


def _not_simulated(why: str) -> Simulation:
    return Simulation((), f"{NOT_SIMULATED}{why}", "apt")


def _copy(root: str, folder: Path, native: str) -> None:
    """``folder`` holds what apt needs of ``root``, and an apt.conf with which it reads nothing else."""
    folder.chmod(0o750)
    if os.geteuid() == 0:
        os.chown(folder, 0, int(_NOBODY))
    (folder / "var/lib/apt/lists/partial").mkdir(parents=True)
    left = _LARGEST
    for pattern in _COPIED:
        for path in (one.path for one in decode_found(globs.find(pattern, _LARGEST, contents=False, root=root).data)):
            capture = files.read(path, left, root=root)
            left -= len(capture.data)
            if left <= 0:
                raise ValueError(f"it is larger than {_LARGEST >> 20} MiB")
            if capture.outcome == "ok":
                target = folder / path.lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(capture.data)
    foreign = files.read(_ARCHITECTURES, root=root).text.split()
    (folder / "apt.conf").write_text(_configuration(folder, dict.fromkeys((native, *foreign))))


def _configuration(folder: Path, architectures: Iterable[str]) -> str:
    """Every place is in ``folder``; neither this machine's apt.conf is read nor the image's, and no dpkg is asked."""
    native, *_ = names = [name for name in architectures if name.isalnum()]  # into quotes goes no quote
    settings = {
        "Dir": f"{folder}/",
        "Dir::State::status": f"{folder}{_STATUS}",
        "Dir::Etc::main": "/dev/null",
        "Dir::Etc::parts": "/dev/null",
        "Dir::Bin::dpkg": "/bin/false",
        "APT::Architecture": native,
    }
    rows = [f'{name} "{value}";' for name, value in settings.items()]
    return "\n".join([*rows, *(f'APT::Architectures:: "{name}";' for name in names), ""])
