"""What a controller and its hosts have beside a bare server: OpenSSH from the Debian archive, Ansible from PyPI."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.e2e.lab.archive import debian_archive, demand_archive
from tests.e2e.lab.bases import _add_layer, cache_folder
from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.commands import run
from tests.e2e.lab.tree import Base

# Where a controller has Ansible; its Python is the suite's own.
ANSIBLE: Final = "/opt/ansible"
# The oldest that the collection supports and the newest there is, each on a Python that it supports as a controller.
VERSIONS: Final = {"bookworm": ("3.11", "~=2.16.0"), "trixie": ("3.13", "~=2.21.0")}
# As hosts that Ansible manages have them.
_PACKAGES: Final = ("openssh-server", "openssh-client", "sudo", "python3-apt")
# overlayfs keeps in them which folders of a lower layer are gone.
_ATTRIBUTES: Final = ("--xattrs", "--xattrs-include=*")
_KEYRING: Final = "/usr/share/keyrings/debian-archive-keyring.gpg"


def provide_host(base: Base, folder: Path) -> Base:
    """``base`` with an SSH server and sudo, made in ``folder`` from the cache or from the Debian archive.

    Raises:
        NoArchive: there is nothing in the cache and no Debian archive that can be reached.
        LabError: building failed.
    """
    return _provide("host", base, folder, _add_openssh)


def provide_controller(host: Base, folder: Path) -> Base:
    """``host`` with Ansible, made in ``folder`` from the cache or from PyPI.

    Raises:
        LabError: building failed.
    """
    return _provide("controller", host, folder, _add_ansible)


def _provide(kind: str, base: Base, folder: Path, add: Callable[[Base, Path], None]) -> Base:
    folder.mkdir(parents=True)
    layer = folder / "layer"
    cached = cache_folder() / f"{kind}-{base.codename}-{_recipe_hash(base.codename)}.tar.zst"
    if cached.exists():
        run(["tar", *_ATTRIBUTES, "-C", os.fspath(folder), "-I", "zstd", "-xf", os.fspath(cached)])
    else:
        add(base, layer)
        _store(layer, cached)
    return replace(base, layers=(layer, *base.layers))


def _add_openssh(base: Base, layer: Path) -> None:
    debs = layer.with_name("debs")
    _download(base, debs)
    _add_layer(replace(base, debs=debs), layer, _PACKAGES)


def _download(base: Base, debs: Path) -> None:
    """``debs`` holds ``_PACKAGES`` and what else ``base`` lacks for them: the machine's apt with the base's status."""
    mirror = debian_archive()
    demand_archive(mirror, base.codename)
    scratch = debs.with_name("apt")
    for name in ("lists/partial", "cache/archives/partial"):
        (scratch / name).mkdir(parents=True)
    (scratch / "sources.list").write_text(f"deb [signed-by={_KEYRING}] {mirror} {base.codename} main\n")
    status = next(root / "var/lib/dpkg/status" for root in base.layers if (root / "var/lib/dpkg/status").exists())
    settings = {
        "Dir::Etc::SourceList": scratch / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::Etc::Preferences": "/dev/null",
        "Dir::Etc::PreferencesParts": "/dev/null",
        "Dir::State::Lists": scratch / "lists",
        "Dir::State::Status": status,
        "Dir::State::Extended_States": scratch / "extended_states",
        "Dir::Cache": scratch / "cache",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "true",
    }
    apt = ["apt-get", *(word for name, value in settings.items() for word in ("-o", f"{name}={value}"))]
    run([*apt, "update"], timeout=300)
    run([*apt, "-y", "--download-only", "install", *_PACKAGES], timeout=300)
    (scratch / "cache/archives").rename(debs)
    run(["rm", "-rf", os.fspath(scratch), os.fspath(debs / "partial"), os.fspath(debs / "lock")])


def _add_ansible(host: Base, layer: Path) -> None:
    python, version = VERSIONS[host.codename]
    # For the suite's Python, whichever runs this; it compiles the modules itself.
    options = ["--quiet", "--no-compile", "--python-version", python, "--only-binary=:all:"]
    target = os.fspath(layer / ANSIBLE.lstrip("/"))
    pip = [sys.executable, "-m", "pip", "install", *options, "--target", target]
    run([*pip, f"ansible-core{version}"], timeout=300)
    with Chroot(replace(host, layers=(layer, *host.layers)), layer.with_name("compiling")) as node:
        node.run("python3", "-m", "compileall", "-q", "-j", "0", ANSIBLE, timeout=300)
        node.halt()
        run(["cp", "-a", f"{node.upper}{ANSIBLE}/.", target])


def _store(layer: Path, cached: Path) -> None:
    cached.parent.mkdir(parents=True, exist_ok=True)
    # Others may be at it as well.
    partial = cached.with_suffix(f".{os.getpid()}.partial")
    options = [*_ATTRIBUTES, "-C", os.fspath(layer.parent), "-I", "zstd -1 -T0"]
    run(["tar", *options, "-cf", os.fspath(partial), layer.name], timeout=300)
    partial.rename(cached)
    for old in cached.parent.glob(f"{cached.name.rpartition('-')[0]}-*.tar.zst"):
        if old != cached:
            old.unlink()


def _recipe_hash(codename: str) -> str:
    return hashlib.sha256("\0".join((codename, Path(__file__).read_text())).encode()).hexdigest()[:16]
