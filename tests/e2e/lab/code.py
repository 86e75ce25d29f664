"""gpunode for test nodes: a copy of this checkout with only its declared dependencies."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parents[3]
# The dependencies in pyproject.toml, by distribution name; tomli is only for Python before 3.11.
DEPENDENCIES: Final = ("typer", "rich", "tomlkit", "distro", "nvidia-ml-py", "sh", "pyyaml", "tomli")


@dataclass(frozen=True, slots=True)
class Mounts:
    """The two folders that a node sees.

    Attributes:
        project: contains the package ``gpunode``.
        site: contains its dependencies.
        compiled: the nodes' compiled modules of both, one for each release of Python.
    """

    project: Path
    site: Path
    compiled: Path


def make_code(folder: Path) -> Mounts:
    """Copy to ``folder``, owned by root, this checkout's package and the dependencies as installed here."""
    project, site, compiled = folder / "project", folder / "site", folder / "compiled"
    compiled.mkdir(parents=True)
    for part in ("gpunode", "recipes"):
        shutil.copytree(PROJECT / part, project / part, ignore=shutil.ignore_patterns("__pycache__"))
    for found in _closure(DEPENDENCIES):
        for file in found.files or ():
            _copy(found, file.as_posix(), site)
    return Mounts(project, site, compiled)


def _copy(found: Distribution, name: str, folder: Path) -> None:
    # Scripts and compiled modules fit only the interpreter that they were installed for.
    if name.startswith("..") or name.endswith(".pyc"):
        return
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(str(found.locate_file(name)), target)


def _closure(names: tuple[str, ...]) -> list[Distribution]:
    """Return the distributions ``names`` and their dependencies that are installed."""
    found: dict[str, Distribution] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in found or (installed := _installed(name)) is None:
            continue
        found[name] = installed
        waiting += [_name(line) for line in installed.requires or () if "extra ==" not in line]
    return list(found.values())


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def _name(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match
    return match[0].lower()
