"""Debian's own NVIDIA driver, fetched from the Debian archive and offered to nodes without a network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.e2e.lab.archive import debian_archive, demand_archive, transport_options
from tests.e2e.lab.bases import COMPONENTS, cache_folder
from tests.e2e.lab.commands import run
from tests.e2e.lab.debs import Release, publish
from tests.e2e.lab.keys import Key
from tests.e2e.lab.tree import ADDRESS, Base

DRIVER: Final = ("libcuda1", "nvidia-smi", "nvidia-kernel-dkms", "nvidia-persistenced", "mokutil", "openssl")
"""The compute set, and the tools that enrol a key."""
_FETCH: Final = """\
set -e
mount -t overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" overlay "$2/merged"
cd "$2/merged"
rm -f etc/apt/sources.list etc/apt/sources.list.d/*
cat > etc/apt/sources.list
cp /etc/resolv.conf etc/resolv.conf
mount --bind "$3" var/cache/apt/archives
mkdir -p var/cache/apt/archives/partial
mount -t proc proc proc
mount --bind /dev dev
shift 3
chroot . apt-get "$@" update
exec chroot . apt-get -y --no-install-recommends --download-only "$@" install $PACKAGES
"""


def provide(base: Base, packages: Sequence[str], scratch: Path) -> Path:
    """Return a folder with ``packages`` and their dependencies beyond ``base``, from the cache or the archive.

    Raises:
        NoArchive: there is nothing in the cache and no Debian archive that can be reached.
    """
    cached = cache_folder() / f"nonfree-{base.codename}"
    if not any(cached.glob("*.deb")):
        mirror = debian_archive().rstrip("/")
        demand_archive(mirror, base.codename)
        partial = scratch / "debs"
        for folder in (partial, *(scratch / name for name in ("upper", "work", "merged"))):
            folder.mkdir(parents=True)
        components = COMPONENTS.replace(",", " ")
        suites = ((mirror, base.codename), (f"{mirror}-security", f"{base.codename}-security"))
        lines = "".join(f"deb {uri} {suite} {components}\n" for uri, suite in suites)
        options = [part for option in transport_options() for part in ("-o", option)]
        layers = ":".join(map(os.fspath, base.layers))
        argv = ["sh", "-c", _FETCH, "sh", layers, os.fspath(scratch), os.fspath(partial), *options]
        wanted = {**os.environ, "PACKAGES": " ".join(packages)}
        run(["unshare", "--mount", "--propagation=private", *argv], stdin=lines, env=wanted, timeout=900)
        cached.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(cached, ignore_errors=True)
        shutil.copytree(partial, cached, ignore=shutil.ignore_patterns("partial", "lock"))
        run(["rm", "-rf", os.fspath(scratch)])
    return cached


def offer(folder: Path, root: Path, base: Base, key: Key) -> str:
    """Publish the packages in ``folder`` below ``root``, a server's folder; return the line for apt's sources."""
    target = root / f"nonfree-{base.codename}"
    if not target.exists():
        target.mkdir()
        for deb in folder.glob("*.deb"):
            os.link(deb, target / deb.name) if deb.stat().st_dev == target.stat().st_dev else shutil.copy(deb, target)
        publish(target, Release("Debian", "Debian", "oldstable", base.codename), key)
    return f"deb [signed-by=/usr/share/keyrings/lab.gpg] {ADDRESS}/{target.name}/ /\n"
