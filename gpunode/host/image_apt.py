"""Simulate apt for a mounted root with this machine's apt, without running any program of that root.

The root is untrusted. What apt needs of it is copied to a folder of our own, so that links in it lead nowhere, and apt
reads the copy as nobody, without privileges. The root's apt.conf is not copied: it may name programs to run.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from gpunode.change import PackageChange
from gpunode.command import command
from gpunode.facts.evidence import decode_matches
from gpunode.host import files, globs
from gpunode.host.apt import SIMULATE_COMMAND, UNATTENDED_APT_ENVIRONMENT
from gpunode.host.process import Runner
from gpunode.packages.deb import status
from gpunode.packages.deb.transactions import arguments, parse_simulation
from gpunode.packages.simulation import NOT_SIMULATED_PREFIX, Simulation

_DPKG_STATUS_FILE: Final = "/var/lib/dpkg/status"
_DPKG_ARCHITECTURES_FILE: Final = "/var/lib/dpkg/arch"
_COPIED_FILE_GLOBS: Final = (
    _DPKG_STATUS_FILE,
    "/var/lib/apt/extended_states",
    "/var/lib/apt/lists/*",
    "/etc/apt/sources.list",
    "/etc/apt/sources.list.d/*",
    "/etc/apt/preferences",
    "/etc/apt/preferences.d/*",
)
# For all files together: an image may hold many sparse files. Ubuntu 24.04's universe index is 70 MB unpacked.
_MAX_COPIED_BYTES: Final = 512 << 20
_NOBODY_ID: Final = "65534"  # nobody and nogroup (Debian Policy 9.2.2)
_UNPRIVILEGED_COMMAND_PREFIX: Final = (
    "setpriv",
    f"--reuid={_NOBODY_ID}",
    f"--regid={_NOBODY_ID}",
    "--clear-groups",
    "--no-new-privs",
    "--bounding-set=-all",
)
_SETPRIV_PROGRAM_MISSING: Final = b"setpriv: failed to execute"
_SIMULATION_TIMEOUT_S: Final = 120.0
_MAX_OUTPUT_BYTES: Final = 16 << 20


def simulate_image(root: str, changes: Sequence[PackageChange]) -> Simulation:
    """Simulate one transaction of ``changes`` in ``root``; ``problem`` says why if it could not be."""
    try:
        dpkg_entries = status.parse_status(files.read_file(_DPKG_STATUS_FILE, root=root).text)
        native = status.native_architecture(dpkg_entries)
        known = status.packages(dpkg_entries)
    except ValueError as error:
        return _failed_simulation(str(error))
    words = arguments(changes, known)
    if not words:
        return Simulation(())
    try:
        # Not in TMPDIR: the user nobody may be unable to enter root's folders.
        with tempfile.TemporaryDirectory(prefix="gpunode-", dir="/var/tmp") as folder:
            _copy_apt_state(root, Path(folder), native)
            argv = (*(_UNPRIVILEGED_COMMAND_PREFIX if os.geteuid() == 0 else ()), *SIMULATE_COMMAND, *words)
            env = {**UNATTENDED_APT_ENVIRONMENT, "APT_CONFIG": f"{folder}/apt.conf"}
            done = Runner().run(argv, timeout_s=_SIMULATION_TIMEOUT_S, limit_bytes=_MAX_OUTPUT_BYTES, env=env)
    except (OSError, ValueError) as error:
        return _failed_simulation(f"the state of the image's apt cannot be copied: {error}")
    if done.is_program_missing or _SETPRIV_PROGRAM_MISSING in done.stderr:
        return _failed_simulation("this machine has no apt-get, and plan runs no program of the image")
    return parse_simulation(done.text, done.error, ok=done.ok)


def _failed_simulation(why: str) -> Simulation:
    return Simulation((), f"{NOT_SIMULATED_PREFIX}{why}", "apt")


def _copy_apt_state(root: str, folder: Path, native: str) -> None:
    """Copy what apt needs of ``root`` to ``folder``, with an apt.conf that makes apt read nothing else."""
    folder.chmod(0o750)
    if os.geteuid() == 0:
        os.chown(folder, 0, int(_NOBODY_ID))
    (folder / "var/lib/apt/lists/partial").mkdir(parents=True)
    left = _MAX_COPIED_BYTES
    for pattern in _COPIED_FILE_GLOBS:
        for path in (
            match.path
            for match in decode_matches(globs.read_glob(pattern, _MAX_COPIED_BYTES, contents=False, root=root).data)
        ):
            capture = files.read_file(path, left, root=root)
            left -= len(capture.data)
            if left <= 0:
                raise ValueError(f"it is larger than {_MAX_COPIED_BYTES >> 20} MiB")
            if capture.outcome == "ok":
                target = folder / path.lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(capture.data)
    foreign = files.read_file(_DPKG_ARCHITECTURES_FILE, root=root).text.split()
    (folder / "apt.conf").write_text(_make_configuration(folder, dict.fromkeys((native, *foreign))))


def _make_configuration(folder: Path, architectures: Iterable[str]) -> str:
    """Return an apt.conf with every path in ``folder``: no other apt.conf is read, and no dpkg is run."""
    native, *_ = names = [name for name in architectures if name.isalnum()]  # names are put into quotes
    settings = {
        "Dir": f"{folder}/",
        "Dir::State::status": f"{folder}{_DPKG_STATUS_FILE}",
        "Dir::Etc::main": "/dev/null",
        "Dir::Etc::parts": "/dev/null",
        "Dir::Bin::dpkg": "/bin/false",
        "APT::Architecture": native,
    }
    rows = [f'{name} "{value}";' for name, value in settings.items()]
    return "\n".join([*rows, *(f'APT::Architectures:: "{name}";' for name in names), ""])


# Commands in hints, which are written for this machine.
_PACKAGE_COMMAND_IN_HINT: Final = re.compile(
    r"(?m)(?P<before>^[ \t]*|`|\bsudo )(?=(?:apt-cache|apt-get|apt-mark|dpkg) "
    r"(?:-|(?:check|clean|install|policy|purge|remove|search|showhold|unhold|update)\b))"
)


def enter_image_in_hint(hint: str, root: str) -> str:
    """Return the hint with package commands that run in the image at ``root``."""
    enter = f"sudo {command('chroot', root)} "

    def add_root(match: re.Match[str]) -> str:
        return enter if match["before"] == "sudo " else f"{match['before']}{enter}"

    return _PACKAGE_COMMAND_IN_HINT.sub(add_root, hint)
