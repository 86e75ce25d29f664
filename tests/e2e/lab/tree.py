"""The files of a test node: an overlay over a base, and the files of every node."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.lab.commands import compile_library
from tests.e2e.lab.pci import HOST_BRIDGE, Device, write_bus
from tests.e2e.lab.sandbox import Sandbox

NATIVE = Path(__file__).parent / "native"
PORT = 8099
ADDRESS = f"http://127.0.0.1:{PORT}"
# The places of gpunode and its dependencies inside; read-only.
PROJECT = "/opt/lab/project"
SITE = "/opt/lab/site"
# Compiled modules, shared by all nodes of a session: neither in the project nor on a node's disk.
COMPILED = "/opt/lab/compiled"

_APT_CONF = """\
Acquire::Languages "none";
Acquire::Retries "0";
"""
_DPKG_CFG = """\
force-unsafe-io
path-exclude=/usr/share/doc/*
path-exclude=/usr/share/man/*
path-exclude=/usr/share/locale/*
"""


@dataclass(frozen=True, slots=True)
class Base:
    """The base of test nodes.

    Attributes:
        codename: the codename of the Debian suite.
        version: the suite's number, as in VERSION_ID.
        layers: the folders of the file tree, the top one first.
        debs: packages that a node can install.
        kernel: the release of the running kernel.
        archive: the place of the packages on the server.
    """

    codename: str
    version: str
    layers: tuple[Path, ...]
    debs: Path
    kernel: str
    archive: str


@dataclass(frozen=True, slots=True)
class Hardware:
    """The stand-in for the machine's kernel and devices: folders to mount over the real ones."""

    folder: Path

    @property
    def bus(self) -> Path:
        """Seen at /sys/bus/pci."""
        return self.folder / "pci"

    @property
    def modules(self) -> Path:
        """Seen at /sys/module."""
        return self.folder / "module"

    @property
    def driver(self) -> Path:
        """Seen at /proc/driver."""
        return self.folder / "driver"

    @property
    def release(self) -> Path:
        """Seen at /proc/sys/kernel/osrelease."""
        return self.folder / "osrelease"

    @property
    def library(self) -> Path:
        """Loaded by every program, so that uname answers the release."""
        return self.folder / "librelease.so"

    def mounts(self) -> dict[str, Path]:
        """Return the mounts, by their place."""
        return {
            "/sys/bus/pci": self.bus,
            "/sys/module": self.modules,
            "/proc/driver": self.driver,
            "/proc/sys/kernel/osrelease": self.release,
        }


def make_hardware(folder: Path, kernel: str, devices: Iterable[Device]) -> Hardware:
    """Return a machine with ``devices`` whose running kernel is ``kernel``."""
    hardware = Hardware(folder)
    for path in (hardware.modules, hardware.driver):
        path.mkdir(parents=True)
    devices = tuple(devices)
    write_bus(hardware.bus, [HOST_BRIDGE, *devices])
    for device in devices:
        if device.driver:
            (hardware.modules / device.driver).mkdir(exist_ok=True)
    hardware.release.write_text(f"{kernel}\n")
    compile_library(NATIVE / "uname.c", hardware.library, f'RELEASE="{kernel}"')
    return hardware


def mount_overlay(sandbox: Sandbox, base: Base) -> Path:
    """Return the folder inside ``sandbox`` with the base's tree, where writes do not change the base."""
    upper, work, merged = (sandbox.scratch / name for name in ("upper", "work", "merged"))
    for folder in (upper, work, merged):
        folder.mkdir()
    lower = ":".join(os.fspath(layer) for layer in base.layers)
    # Layers are copied and stacked by name, so no folder may refer to another by index. volatile: no sync at the end.
    options = f"lowerdir={lower},upperdir={upper},workdir={work},redirect_dir=off,metacopy=off,index=off,volatile"
    sandbox.mount("-t", "overlay", "-o", options, "overlay", merged)
    return merged


def furnish(root: Path, hardware: Hardware) -> None:
    """Give the node below ``root`` a name, its kernel's release and apt's settings."""
    _write(root / "etc/hostname", "lab\n")
    _write(root / "etc/hosts", "127.0.0.1 localhost lab\n")
    _write(root / "etc/apt/apt.conf.d/90lab", _APT_CONF)
    _write(root / "etc/dpkg/dpkg.cfg.d/lab", _DPKG_CFG)
    _write(root / "etc/ld.so.preload", "/usr/lib/lab/librelease.so\n")
    _replace_modprobe(root)
    library = root / "usr/lib/lab/librelease.so"
    library.write_bytes(hardware.library.read_bytes())
    for folder in (PROJECT, SITE, COMPILED, "/lab"):
        (root / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)


def use_archive(root: Path, base: Base, keyring: bytes) -> None:
    """Make apt of the node below ``root`` know the lab's Debian archive and nothing else."""
    (root / "etc/apt/sources.list").unlink(missing_ok=True)
    (root / "usr/share/keyrings/lab.gpg").write_bytes(keyring)
    line = f"deb [signed-by=/usr/share/keyrings/lab.gpg] {ADDRESS}/{base.archive}/ /\n"
    _write(root / "etc/apt/sources.list.d/lab.list", line)


def _replace_modprobe(root: Path) -> None:
    modprobe = root / "usr/sbin/modprobe"
    own = root / "usr/lib/lab"
    own.mkdir(parents=True, exist_ok=True)
    if modprobe.is_symlink():
        (own / "modprobe").symlink_to("/bin/kmod")
        modprobe.unlink()
    modprobe.write_bytes((NATIVE / "modprobe.sh").read_bytes())
    modprobe.chmod(0o755)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text)
