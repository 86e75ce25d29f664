"""Debian 12 and 13 as bases of test nodes: built once a session, and cached if there is a cache."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.e2e.lab.architecture import NODES
from tests.e2e.lab.archive import debian_archive, demand_archive, transport_options
from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.commands import LabError, run
from tests.e2e.lab.debs import Package, build_all
from tests.e2e.lab.tree import Base

# NVIDIA has packages for Debian on amd64 only; Ubuntu's stand-in is built on bookworm.
VERSIONS: Final = {"bookworm": "12"} | ({"trixie": "13"} if NODES.deb == "amd64" else {})
COMPONENTS: Final = "main,contrib,non-free,non-free-firmware"
# Packages of every node: a bare server with a compiler and dkms, whose installation would take most of a test's time.
PLAIN: Final = (
    *("systemd", "systemd-sysv", "dbus", "udev", "kmod", "initramfs-tools", "procps", "iproute2", "pciutils"),
    *("python3", "ca-certificates", "dkms", "gcc", "make", "libc6-dev", "passwd"),
)
HEADERS: Final = (f"linux-headers-{NODES.deb}",)
RUNTIMES: Final = {
    "bookworm": ("containerd", "runc", "docker.io", "iptables"),
    "trixie": ("containerd", "runc", "docker.io", "docker-cli", "iptables"),
}
_APT: Final = ('APT::Install-Recommends "false"', 'Acquire::Languages "none"')
_DPKG: Final = ("force-unsafe-io", *(f"path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale", "info")))
_POSTINST: Final = """\
#!/bin/sh
set -e
if [ "$1" = configure ] && [ -d /etc/kernel/postinst.d ]; then
  DEB_MAINT_PARAMS="$*" run-parts --arg=RELEASE --arg=/boot/vmlinuz-RELEASE /etc/kernel/postinst.d
fi
"""


@dataclass(frozen=True, slots=True)
class Bases:
    """The bases of one suite: ``plain`` has no container runtime and no headers, ``runtime`` has both."""

    plain: Base
    runtime: Base


def provide(codename: str, folder: Path) -> Bases:
    """Return the bases of suite ``codename`` in ``folder``, from the cache or built.

    Raises:
        NoArchive: there is nothing in the cache and no Debian archive that can be reached.
        LabError: building failed.
    """
    folder.mkdir(parents=True)
    cached = cache_folder() / f"{codename}-{NODES.deb}-{_recipe_hash(codename)}.tar.zst"
    if cached.exists():
        run(["tar", "--xattrs", "--xattrs-include=*", "-C", os.fspath(folder), "-I", "zstd", "-xf", os.fspath(cached)])
    else:
        _build(codename, folder)
        _store(codename, folder, cached)
    return _bases(codename, folder)


def cache_folder() -> Path:
    """Return the folder of the built bases."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpunode-lab"


def kernel_image(release: str, version: str) -> Package:
    """Return a kernel package that has everything but the kernel."""
    return Package(
        f"linux-image-{release}",
        version,
        files={
            f"/boot/vmlinuz-{release}": "no kernel: the machine's own runs\n",
            f"/boot/config-{release}": "CONFIG_MODULES=y\nCONFIG_RD_GZIP=y\nCONFIG_RD_ZSTD=y\n",
            f"/boot/System.map-{release}": "",
            **{f"/lib/modules/{release}/modules.{name}": "" for name in ("order", "builtin", "builtin.modinfo")},
        },
        scripts={"postinst": _POSTINST.replace("RELEASE", release)},
        fields={"Section": "kernel"},
    )


def _build(codename: str, folder: Path) -> None:
    _debootstrap(codename, folder)
    release, version = _kernel(folder / "debs")
    meta = Package(f"linux-image-{NODES.deb}", version, depends=(f"linux-image-{release} (= {version})",))
    build_all([kernel_image(release, version), meta], folder / "debs")
    (folder / "kernel").write_text(release)
    images = (f"linux-image-{release}", f"linux-image-{NODES.deb}")
    _add_layer(_base(codename, folder, "root"), folder / "plain", images)
    _add_layer(_bases(codename, folder).plain, folder / "runtime", (*HEADERS, *RUNTIMES[codename]))


def _debootstrap(codename: str, folder: Path) -> None:
    debs = folder / "debs"
    debs.mkdir()
    wanted = " ".join((*HEADERS, *RUNTIMES[codename]))
    options = [
        *(f"--aptopt={option}" for option in (*_APT, *(_setting(option) for option in transport_options()))),
        *(f"--dpkgopt={option}" for option in _DPKG),
        f"--customize-hook=chroot \"$1\" sh -c 'apt-get -y --download-only install {wanted}'",
        f'--customize-hook=mv "$1"/var/cache/apt/archives/*.deb {debs}',
        f"--include={','.join(PLAIN)}",
        f"--components={COMPONENTS}",
    ]
    target = os.fspath(folder / "root")
    mirror = debian_archive()
    demand_archive(mirror, codename)
    place = ["--variant=apt", f"--architectures={NODES.deb}", "--format=directory"]
    run(["mmdebstrap", *place, *options, codename, target, mirror], timeout=3600)


def _setting(option: str) -> str:
    name, _, value = option.partition("=")
    return f'{name} "{value}"'


def _kernel(debs: Path) -> tuple[str, str]:
    """Return release and package version of the kernel whose headers the suite has."""
    meta = next(debs.glob(f"linux-headers-{NODES.deb}_*.deb"), None)
    if meta is None:
        raise LabError(f"no linux-headers-{NODES.deb} among the packages in {debs}")
    depends, version = (run(["dpkg-deb", "-f", os.fspath(meta), name]).stdout for name in ("Depends", "Version"))
    found = re.search(r"linux-headers-(\S+)", depends)
    assert found
    return found[1], version.strip()


def _add_layer(base: Base, target: Path, packages: tuple[str, ...]) -> None:
    """Write to ``target`` the files that installing ``packages`` from the base's own packages adds to ``base``."""
    index = run(["env", f"--chdir={base.debs}", "apt-ftparchive", "packages", "."]).stdout
    (base.debs / "Packages").write_text(index)
    with Chroot(base, target.with_name(f"{target.name}-build")) as node:
        node.sandbox.bind(base.debs, node.merged / "mnt", read_only=True)
        node.path("/etc/apt/sources.list").unlink(missing_ok=True)
        node.write("/etc/apt/sources.list.d/lab.list", "deb [trusted=yes] file:/mnt /\n")
        node.run("apt-get", "update")
        node.run(
            "apt-get", "-y", "--no-install-recommends", "install", *packages, env={"DEBIAN_FRONTEND": "noninteractive"}
        )
        node.run("apt-get", "clean")
        shutil.rmtree(node.path("/var/lib/apt/lists"))
        node.halt()
        node.upper.rename(target)


def _bases(codename: str, folder: Path) -> Bases:
    return Bases(_base(codename, folder, "plain", "root"), _base(codename, folder, "runtime", "plain", "root"))


def _base(codename: str, folder: Path, *layers: str) -> Base:
    kernel = (folder / "kernel").read_text()
    paths = tuple(folder / name for name in layers)
    return Base(codename, VERSIONS[codename], paths, folder / "debs", kernel, f"debian/{codename}")


def _store(codename: str, folder: Path, cached: Path) -> None:
    cached.parent.mkdir(parents=True, exist_ok=True)
    partial = cached.with_suffix(".partial")
    options = ["--xattrs", "--xattrs-include=*", "-C", os.fspath(folder), "-I", "zstd -1 -T0"]
    run(["tar", *options, "-cf", os.fspath(partial), "."], timeout=300)
    partial.rename(cached)
    for old in cached.parent.glob(f"{codename}-{NODES.deb}-*.tar.zst"):
        if old != cached:
            old.unlink()


def _recipe_hash(codename: str) -> str:
    """Return a hash over everything that determines a base, except the state of the archive."""
    sources = [Path(__file__).with_name(name).read_text() for name in ("bases.py", "tree.py", "debs.py")]
    return hashlib.sha256("\0".join((codename, *sources)).encode()).hexdigest()[:16]
