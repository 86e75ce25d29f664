"""Layers of a controller and its hosts on a bare server: OpenSSH from the Debian archive, Ansible from PyPI."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.commands import run
from tests.e2e.lab.layers import add_packages, provide_layer
from tests.e2e.lab.tree import Base

# The place of Ansible on a controller; its Python is the suite's own.
ANSIBLE: Final = "/opt/ansible"
# The oldest version that the collection supports and the newest, each on a Python that it supports as a controller.
VERSIONS: Final = {"bookworm": ("3.11", "~=2.16.0"), "trixie": ("3.13", "~=2.21.0")}
# Packages of hosts that Ansible manages.
_PACKAGES: Final = ("openssh-server", "openssh-client", "sudo", "python3-apt")


def provide_host(base: Base, folder: Path) -> Base:
    """Return ``base`` with an SSH server and sudo, made in ``folder`` from the cache or from the Debian archive.

    Raises:
        NoArchive: there is nothing in the cache and no Debian archive that can be reached.
        LabError: building failed.
    """
    return provide_layer("host", Path(__file__).read_text(), base, folder, _add_openssh)


def provide_controller(host: Base, folder: Path) -> Base:
    """Return ``host`` with Ansible, made in ``folder`` from the cache or from PyPI.

    Raises:
        LabError: building failed.
    """
    return provide_layer("controller", Path(__file__).read_text(), host, folder, _add_ansible)


def _add_openssh(base: Base, layer: Path) -> None:
    add_packages(base, layer, _PACKAGES)


def _add_ansible(host: Base, layer: Path) -> None:
    python, version = VERSIONS[host.codename]
    # For the suite's Python, not the one that runs this; it compiles the modules itself.
    options = ["--quiet", "--no-compile", "--python-version", python, "--only-binary=:all:"]
    target = os.fspath(layer / ANSIBLE.lstrip("/"))
    pip = [sys.executable, "-m", "pip", "install", *options, "--target", target]
    run([*pip, f"ansible-core{version}"], timeout=300)
    with Chroot(replace(host, layers=(layer, *host.layers)), layer.with_name("compiling")) as node:
        node.run("python3", "-m", "compileall", "-q", "-j", "0", ANSIBLE, timeout=300)
        node.halt()
        run(["cp", "-a", f"{node.upper}{ANSIBLE}/.", target])
