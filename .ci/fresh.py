#!/usr/bin/env python3
"""Run the README's commands on a fresh machine: a chroot of a Debian suite, with the README's own apt line.

    .ci/fresh.py bookworm trixie sid                 what a net install gives, each as root and as an ordinary user
    .ci/fresh.py bookworm --as user --results DIR    and keeps skipped (the tests' names) and fresh.xml (JUnit)
    .ci/fresh.py bookworm --bare                     no more than apt needs: `make demo` and tests/unit alone

The clone is of this checkout's last commit. Network, archive and package index are this machine's, as its apt and pip
are configured. Needs root, mmdebstrap and the Debian archive.
"""

# ruff: noqa: T201 - a script; printing is its work

from __future__ import annotations

import argparse
import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.e2e.lab.archive import debian_archive, transport_options  # noqa: E402

# What the network and TLS of this machine need, beside pip's own settings.
_KEPT: Final = re.compile(r"(?:https?|ftp|no|all)_proxy|PIP_\w+|SSL_CERT_FILE|REQUESTS_CA_BUNDLE", re.IGNORECASE)
_SECTION: Final = "Try it"
# `make install` as README has it, and that its opposite leaves nothing; README's sudo is not needed there.
_INSTALL: Final = (
    "git clone --quiet /gpunode.bundle /tmp/i && make -C /tmp/i install && "
    "(cd / && gpunode --version && gpunode plan --help >/dev/null) && make -C /tmp/i uninstall && "
    "[ ! -e /opt/gpunode ] && ! command -v gpunode && ! find /usr/local -name '*gpunode*' | grep ."
)
_INSIDE: Final = """
set -e
# A machine's root is a mount point; without that the tests of images as root could not enter theirs by pivot_root.
mount --bind "$1" "$1"
mount -t proc proc "$1/proc"
mount --rbind /sys "$1/sys"
mount --rbind /dev "$1/dev"
for folder in $2; do mkdir -p "$1$folder"; mount --bind "$folder" "$1$folder"; done
exec chroot "$1" /bin/sh -c "$3"
"""


def readme() -> tuple[str, list[str]]:
    """Return the apt line and the commands of the README's section about a fresh machine."""
    section = (ROOT / "README.md").read_text().partition(f"\n## {_SECTION}\n")[2].partition("\n## ")[0]
    apt = re.search(r"apt-get install ([a-z0-9. +-]+)", section)
    block = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    if apt is None or block is None:
        raise SystemExit(f"README.md has no apt line or no commands under '{_SECTION}'")
    return apt[0], [line.partition("#")[0].strip() for line in block[1].splitlines() if line.startswith("make ")]


def settings() -> dict[str, str]:
    """Return this machine's settings for pip and its network, as environment variables."""
    pip = [sys.executable, "-m", "pip", "config", "list"]
    lines = subprocess.run(pip, capture_output=True, text=True, check=False).stdout.splitlines()
    pairs = (line.partition("=") for line in lines if line.startswith(("global.", "install.")))
    found = {
        "PIP_" + name.partition(".")[2].upper().replace("-", "_"): str(ast.literal_eval(value))
        for name, _, value in pairs
    }
    return {**found, **{name: value for name, value in os.environ.items() if _KEPT.fullmatch(name)}}


def local(environment: dict[str, str]) -> Iterator[Path]:
    """Yield the files and folders of this machine that the settings name, with the folder of a local index."""
    for word in {word for value in environment.values() for word in value.split()}:
        path = Path(word.removeprefix("file://").rstrip("/"))
        if path.is_absolute() and path.exists():
            yield path.parent if path.name == "simple" else path


class Machine:
    """A chroot of ``suite``; its files are deleted afterwards.

    Attributes:
        variant: mmdebstrap's: ``important`` has the packages that a net install brings, apt-utils among them, which
            many tests use; ``minbase`` has apt alone.
    """

    def __init__(self, suite: str, variant: str, folder: Path) -> None:
        self.suite, self.variant, self.root, self.environment = suite, variant, folder / suite, settings()
        places = set(local(self.environment))
        self._shared = sorted(path for path in places if path.is_dir())
        self._copied = sorted(path for path in places if path.is_file())

    def make(self) -> None:
        """Unpack the suite, with this machine's addresses of the network, and add the user ``tester``."""
        options = [option.replace("=", ' "', 1) + '"' for option in transport_options()]
        # sid's index is valid for a week only, and a mirror's may be older.
        options += ['Acquire::Check-Valid-Until "false"'] * (self.suite == "sid")
        words = [f"--aptopt={option}" for option in options]
        run = ["mmdebstrap", "--quiet", f"--variant={self.variant}", "--format=directory", *words]
        subprocess.run([*run, self.suite, str(self.root), debian_archive()], check=True)
        for name in ("/etc/resolv.conf", "/etc/hosts"):
            shutil.copy(name, f"{self.root}{name}")
        subprocess.run(
            ["git", "-C", ROOT, "bundle", "create", "--quiet", self.root / "gpunode.bundle", "HEAD"], check=True
        )
        self.run("useradd --create-home --shell /bin/bash tester")

    def run(self, command: str, user: str = "root") -> int:
        """Run ``command`` in the clone, or at home before there is one, and return its exit status."""
        variables = {
            "HOME": "/root" if user == "root" else f"/home/{user}",
            "USER": user,
            "LC_ALL": "C.UTF-8",
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "DEBIAN_FRONTEND": "noninteractive",
            **self.environment,
        }
        typed = ["bash", "-c", f"cd; [ ! -d gpunode ] || cd gpunode; {command}"]
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "env", "-i"]
        words = shlex.join([*become, *(f"{name}={value}" for name, value in variables.items()), *typed])
        apart = ["unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--propagation=private"]
        shared = " ".join(map(str, self._shared))
        return subprocess.run([*apart, "sh", "-c", _INSIDE, "sh", self.root, shared, words], check=False).returncode

    def trust(self) -> None:
        """Copy the certificates that the settings name to the same paths."""
        for path in self._copied:
            target = self.root / path.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)


def time_command(machine: Machine, user: str, command: str) -> bool:
    """Return whether ``command`` passes; print how long it took."""
    begun, title = time.monotonic(), f"--- {machine.suite} ({machine.variant}), {user}: {command}"
    print(title, flush=True)
    status = machine.run(command, user)
    print(f"{title}: exit {status}, {time.monotonic() - begun:.1f} s", flush=True)
    return status == 0


def try_readme(machine: Machine, users: list[str], results: Path | None) -> bool:
    """Return whether the README's commands pass on ``machine`` for each of ``users``.

    A bare one runs only tests/unit of the tests, and no property: what those need is no package.
    """
    apt, commands = readme()
    if machine.variant == "minbase":
        tests = "make test TESTS=tests/unit PYTEST_ARGS='-m \"not hypothesis and not long\"'"
        commands = [tests if command == "make test" else command for command in commands]
    machine.make()
    passed = time_command(machine, "root", f"apt-get -q update && {apt.replace('install', 'install -q -y')}")
    machine.trust()
    options = "--skipped-to=/tmp/skipped --junitxml=/tmp/fresh.xml"
    for user in users if passed else ():
        passed &= time_command(machine, user, "git clone --quiet /gpunode.bundle gpunode")
        for command in commands:
            wanted = f"{command} PYTEST_ARGS='{options}'" if results and command.startswith("make test") else command
            passed &= time_command(machine, user, wanted)
    passed &= not passed or time_command(machine, "root", _INSTALL)
    for name in ("skipped", "fresh.xml"):
        if results and (found := machine.root / "tmp" / name).exists():
            shutil.copy(found, results)
    return passed


def main() -> None:
    """Exit with 1 if a command failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="+", metavar="SUITE")
    parser.add_argument("--bare", action="store_true", help="a minbase system, make demo and tests/unit")
    parser.add_argument("--as", dest="users", choices=("root", "user"), action="append")
    parser.add_argument("--results", type=Path, metavar="DIR", help="a folder for what make test leaves")
    given = parser.parse_args()
    users = [{"user": "tester"}.get(one, one) for one in given.users or ("user", "root")]
    passed = True
    for suite in given.suites:
        folder = Path(tempfile.mkdtemp(prefix="gpunode-fresh-", dir="/var/tmp"))
        folder.chmod(0o755)
        try:
            machine = Machine(suite, "minbase" if given.bare else "important", folder)
            passed &= try_readme(machine, users, given.results)
        finally:
            subprocess.run(["rm", "-rf", "--one-file-system", folder], check=True)
    raise SystemExit(not passed)


if __name__ == "__main__":
    main()
