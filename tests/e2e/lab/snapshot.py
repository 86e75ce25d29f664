"""The part of a node that an undo must restore: files byte for byte, packages with their marks."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from tests.e2e.lab.node import Node

FOLDERS: Final = ("/etc", "/usr/share/keyrings")
# Files that tools of packages rewrite at each call: a manual install and purge leave them changed, too.
MADE_BY_TOOLS: Final = re.compile(
    r"/etc/(ld\.so\.cache|\.pwd\.lock|passwd-?|group-?|shadow-?|gshadow-?|subuid-?|subgid-?|mailcap|rc\w\.d(/.*)?"
    r"|systemd/system(/.*\.wants(/.*)?)?)"
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a node at one moment, by the name of each item."""

    rows: Mapping[str, tuple[object, ...]]

    def differences(self, other: Snapshot) -> str:
        """Return a line for each item that differs in ``other``."""
        names = sorted(self.rows.keys() | other.rows.keys())
        pairs = ((name, self.rows.get(name), other.rows.get(name)) for name in names)
        return "\n".join(f"{name}: {mine} became {others}" for name, mine, others in pairs if mine != others)


def snapshot(node: Node) -> Snapshot:
    """Return files below FOLDERS with bytes, mode, owner, attributes; packages with version, state and marks."""
    files = {name: row for folder in FOLDERS for name, row in _rows(node.path(folder), folder)}
    return Snapshot({**files, **_packages(node)})


def _packages(node: Node) -> dict[str, tuple[object, ...]]:
    shown = node.run("dpkg-query", "-W", "-f", "${binary:Package} ${Version} ${db:Status-Abbrev}\n").stdout
    auto = set(node.run("apt-mark", "showauto").stdout.split())
    rows = (line.split() for line in shown.splitlines())
    return {f"package {row[0]}": (*row[1:], row[0] in auto) for row in rows}


def _rows(folder: Path, name: str) -> Iterator[tuple[str, tuple[object, ...]]]:
    for path in sorted(folder.rglob("*")):
        place = f"{name}/{path.relative_to(folder).as_posix()}"
        if not MADE_BY_TOOLS.fullmatch(place):
            yield place, _row(path)


def _row(path: Path) -> tuple[object, ...]:
    status = path.lstat()
    owner = (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
    if stat.S_ISLNK(status.st_mode):
        return ("link", os.readlink(path))
    if not stat.S_ISREG(status.st_mode):
        return (stat.S_IFMT(status.st_mode), *owner)
    attributes = tuple((key, os.getxattr(path, key)) for key in sorted(os.listxattr(path)))
    return ("file", *owner, sha256(path.read_bytes()).hexdigest(), attributes)
