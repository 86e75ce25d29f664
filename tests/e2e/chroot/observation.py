"""Everything on a node that a setup or an undo may change: packages, configuration, and unpackaged files."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.snapshot import Snapshot, snapshot

_FOREIGN: Final = ("/usr", "/opt", "/srv", "/boot")
# Caches, lists and images that programs rewrite at each call, and DKMS's builds for packages.
_MADE_BY_TOOLS: Final = re.compile(
    r".*/__pycache__(/.*)?|/opt/lab(/.*)?|/boot/initrd\.img-.*|/usr/lib/modules/[^/]+/(modules\..*|updates/dkms/.*)|/usr/share/(mime|info)/.*"
)
# Settings of dpkg-divert, dpkg-statoverride and update-alternatives.
_TOOLS: Final = ("diversions", "statoverride", "alternatives")
_MERGED: Final = re.compile(r"/(bin|sbin|lib\w*)/")


def find_owners(node: Chroot) -> dict[str, str]:
    """Return the package that owns each file, by the file's path on a merged /usr."""
    lists = node.path("/var/lib/dpkg/info").glob("*.list")
    return {
        f"/usr{line}" if _MERGED.match(line) else line: path.stem.partition(":")[0]
        for path in lists
        for line in path.read_text().splitlines()
    }


def observe(node: Chroot) -> Snapshot:
    """Return packages, configuration, and every file below _FOREIGN that no package owns."""
    rows = {**snapshot(node).rows, **dict(_list_unowned(node, find_owners(node)))}
    for tool in _TOOLS:
        path = node.path(f"/var/lib/dpkg/{tool}")
        files = path.iterdir() if path.is_dir() else (path,)
        rows |= {
            f"dpkg {tool}/{one.name}": tuple(sorted(one.read_text().splitlines())) for one in files if one.exists()
        }
    return Snapshot(rows)


def _list_unowned(node: Chroot, owners: Mapping[str, str]) -> Iterator[tuple[str, tuple[object, ...]]]:
    for top in _FOREIGN:
        root = node.path(top)
        for folder, folders, names in os.walk(root):
            for name in (*folders, *names):
                path = f"{top}{folder.removeprefix(str(root))}/{name}"
                if path not in owners and not _MADE_BY_TOOLS.fullmatch(path):
                    yield path, _describe(Path(folder, name))


def _describe(path: Path) -> tuple[object, ...]:
    if path.is_symlink():
        return ("link", os.readlink(path))
    if path.is_dir():
        return ("folder", path.stat().st_mode)
    return ("file", path.stat().st_mode, hashlib.sha256(path.read_bytes()).hexdigest())
