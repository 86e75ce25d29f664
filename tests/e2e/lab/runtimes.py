"""Debian's container runtimes of three suites: unpacked, not installed, since the rest of a system is not needed."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Final

from tests.e2e.lab.archive import debian_archive, demand_archive, transport_options
from tests.e2e.lab.bases import cache_folder
from tests.e2e.lab.commands import run
from tests.e2e.lab.tree import Base

# containerd 1.6, 1.7 and 2; dockerd 20.10, 26 and 28.
SUITES: Final = ("bookworm", "trixie", "sid")
# A shell and the tools to enter a chroot, besides the runtimes; apt adds the libraries.
_PACKAGES: Final = ("base-files", "coreutils", "dash", "sed", "containerd", "runc", "docker.io", "iptables")
_IN_A_PACKAGE_OF_ITS_OWN: Final = {"trixie": ("docker-cli",), "sid": ("docker-cli",)}
# Mirrors keep sid for longer than its Release file is valid.
_APT: Final = (
    'APT::Install-Recommends "false"',
    'Acquire::Languages "none"',
    'Acquire::Check-Valid-Until "false"',
)
# gpunode runs no program of an image to learn its version: it reads dpkg's record.
_RECORDED: Final = {"containerd": "containerd", "docker.io": "dockerd"}
_STANZA: Final = """\
Package: {package}
Status: install ok installed
Architecture: {architecture}
Maintainer: lab
Version: {version}
Description: unpacked

"""
_MERGED_USR: Final = "/usr/share/mmdebstrap/hooks/merged-usr"
_NOT_NEEDED: Final = tuple(f"usr/share/{name}" for name in ("doc", "man", "locale", "info", "perl", "bash-completion"))
# The stand-in for uname(2) reports this release; no test depends on it.
_KERNEL: Final = "6.0.0-lab"


def provide_runtimes(suite: str, folder: Path) -> Base:
    """Return a base with the containerd, docker and runc of ``suite`` in ``folder``, from the cache or unpacked.

    Raises:
        NoArchive: there is nothing in the cache and no Debian archive that can be reached.
        LabError: unpacking failed.
    """
    folder.mkdir(parents=True)
    root = folder / "root"
    cached = cache_folder() / f"runtimes-{suite}-{_recipe_hash()}.tar.zst"
    if cached.exists():
        root.mkdir()
        run(["tar", "-C", os.fspath(root), "-I", "zstd", "-xf", os.fspath(cached)])
    else:
        _unpack(suite, root)
        _store(root, cached)
    return Base(suite, "", (root,), folder / "debs", _KERNEL, "")


def _unpack(suite: str, root: Path) -> None:
    transport = (f'{name} "{value}"' for name, _, value in (option.partition("=") for option in transport_options()))
    options = [f"--aptopt={option}" for option in (*_APT, *transport)]
    packages = (*_PACKAGES, *_IN_A_PACKAGE_OF_ITS_OWN.get(suite, ()))
    mirror = debian_archive()
    demand_archive(mirror, suite)
    # No maintainer script runs: none is needed, and one of sid may fail.
    what = ["--variant=extract", "--format=directory", f"--include={','.join(packages)}", f"--hook-dir={_MERGED_USR}"]
    run(["mmdebstrap", *what, *options, suite, os.fspath(root), mirror], timeout=600)
    run(["rm", "-rf", *(os.fspath(root / name) for name in _NOT_NEEDED)])
    _finish(root)
    _record(root)


def _finish(root: Path) -> None:
    """Do the work of the scripts of base-files, dash and iptables."""
    (root / "var/run").rmdir()
    for link, target in {"var/run": "/run", "usr/bin/sh": "dash", "usr/sbin/iptables": "iptables-nft"}.items():
        if not (root / link).is_symlink():
            (root / link).symlink_to(target)


def _record(root: Path) -> None:
    """Record the daemons and dpkg itself in dpkg's status, which unpacking alone does not do."""
    status, architecture = root / "var/lib/dpkg/status", (root / "var/lib/dpkg/arch").read_text().split()[0]
    versions = {"dpkg": "1"}
    for package, program in _RECORDED.items():
        found = re.search(r"\d+\.\d+\.\d+", run(["chroot", os.fspath(root), program, "--version"]).stdout)
        assert found
        versions[package] = found[0]
    with status.open("a") as file:
        for package, version in versions.items():
            file.write(_STANZA.format(package=package, architecture=architecture, version=version))


def _store(root: Path, cached: Path) -> None:
    cached.parent.mkdir(parents=True, exist_ok=True)
    partial = cached.with_suffix(".partial")
    run(["tar", "-C", os.fspath(root), "-I", "zstd -1 -T0", "-cf", os.fspath(partial), "."], timeout=300)
    partial.rename(cached)
    for old in cached.parent.glob(f"{cached.name.rpartition('-')[0]}-*.tar.zst"):
        if old != cached:
            old.unlink()


def _recipe_hash() -> str:
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
