"""Layers of nodes above a base: packages of the Debian archive, kept in the cache."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.e2e.lab.archive import debian_archive, demand_archive
from tests.e2e.lab.bases import _add_layer, cache_folder
from tests.e2e.lab.commands import run
from tests.e2e.lab.tree import Base

# overlayfs marks removed folders of a lower layer in them.
_ATTRIBUTES: Final = ("--xattrs", "--xattrs-include=*")
_KEYRING: Final = "/usr/share/keyrings/debian-archive-keyring.gpg"


def provide_layer(kind: str, recipe: str, base: Base, folder: Path, add: Callable[[Base, Path], None]) -> Base:
    """Return ``base`` with one more layer, made in ``folder`` from the cache or by ``add``.

    Args:
        kind: the layer's name in the cache.
        recipe: the text that determines the layer's content.
        base: the base to add it to.
        folder: a folder that does not exist yet.
        add: makes the layer in the given folder; it may write next to it.
    """
    folder.mkdir(parents=True)
    layer = folder / "layer"
    digest = hashlib.sha256("\0".join((base.codename, recipe, Path(__file__).read_text())).encode()).hexdigest()[:16]
    cached = cache_folder() / f"{kind}-{base.codename}-{digest}.tar.zst"
    if cached.exists():
        run(["tar", *_ATTRIBUTES, "-C", os.fspath(folder), "-I", "zstd", "-xf", os.fspath(cached)])
    else:
        add(base, layer)
        _store(layer, cached)
    return replace(base, layers=(layer, *base.layers))


def add_packages(base: Base, layer: Path, packages: tuple[str, ...]) -> Path:
    """Write to ``layer`` the files that installing ``packages`` adds to ``base``; return the package folder.

    Raises:
        NoArchive: no Debian archive can be reached.
        LabError: installing failed.
    """
    debs = layer.with_name("debs")
    download(base, debs, packages)
    _add_layer(replace(base, debs=debs), layer, packages)
    return debs


def download(base: Base, debs: Path, packages: tuple[str, ...]) -> None:
    """Download ``packages`` and their dependencies that ``base`` lacks to ``debs``, with this machine's apt."""
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
    run([*apt, "-y", "--download-only", "install", *packages], timeout=300)
    (scratch / "cache/archives").rename(debs)
    run(["rm", "-rf", os.fspath(scratch), os.fspath(debs / "partial"), os.fspath(debs / "lock")])


def _store(layer: Path, cached: Path) -> None:
    cached.parent.mkdir(parents=True, exist_ok=True)
    # Another process may be doing the same.
    partial = cached.with_suffix(f".{os.getpid()}.partial")
    options = [*_ATTRIBUTES, "-C", os.fspath(layer.parent), "-I", "zstd -1 -T0"]
    run(["tar", *options, "-cf", os.fspath(partial), layer.name], timeout=300)
    partial.rename(cached)
    for old in cached.parent.glob(f"{cached.name.rpartition('-')[0]}-*.tar.zst"):
        if old != cached:
            old.unlink()
