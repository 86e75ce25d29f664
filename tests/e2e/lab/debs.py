"""Debian packages and flat archives of them, made by dpkg-deb and apt-ftparchive."""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.lab.architecture import NODES
from tests.e2e.lab.commands import run
from tests.e2e.lab.keys import Key

Content = str | bytes | Path


@dataclass(frozen=True, slots=True)
class Package:
    """A binary package to be built.

    Attributes:
        files: content by absolute path; a Path is copied. Files in a ``bin`` folder are executable, in /etc conffiles.
        links: symlink targets by absolute path.
        scripts: maintainer scripts, by name.
        fields: further control fields.
    """

    name: str
    version: str
    depends: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    recommends: tuple[str, ...] = ()
    architecture: str = NODES.deb
    files: Mapping[str, Content] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def file_name(self) -> str:
        """The file name of the built package."""
        return f"{self.name}_{self.version.split(':')[-1]}_{self.architecture}.deb"

    @property
    def control(self) -> str:
        """The control file."""
        relations = {
            "Depends": self.depends,
            "Recommends": self.recommends,
            "Conflicts": self.conflicts,
            "Replaces": self.conflicts,
            "Provides": self.provides,
        }
        fields = {
            "Package": self.name,
            "Version": self.version,
            "Architecture": self.architecture,
            "Maintainer": "gpunode's tests <tests@localhost>",
            "Section": "non-free/libs",
            "Priority": "optional",
            **{name: ", ".join(values) for name, values in relations.items() if values},
            **self.fields,
            "Description": f"stand-in for {self.name}",
        }
        return "".join(f"{name}: {value}\n" for name, value in fields.items())

    def build(self, folder: Path) -> Path:
        """Return the package as a file in ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="gpunode-lab-deb-") as scratch:
            tree = Path(scratch) / "tree"
            self._lay_out(tree)
            # No compression: small local files are not worth the time.
            options = ["--root-owner-group", "-Znone", "--uniform-compression"]
            run(["dpkg-deb", *options, "--build", os.fspath(tree), os.fspath(folder / self.file_name)])
        return folder / self.file_name

    def _lay_out(self, tree: Path) -> None:
        for path, content in self.files.items():
            _put(tree / path.lstrip("/"), content, executable="bin" in path.split("/"))
        for path, target in self.links.items():
            link = tree / path.lstrip("/")
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target)
        _put(tree / "DEBIAN/control", self.control)
        for name, text in self.scripts.items():
            _put(tree / "DEBIAN" / name, text, executable=name != "triggers")
        conffiles = "".join(f"{path}\n" for path in self.files if path.startswith("/etc/"))
        if conffiles:
            _put(tree / "DEBIAN/conffiles", conffiles)


@dataclass(frozen=True, slots=True)
class Release:
    """The fields by which apt knows an archive."""

    origin: str
    label: str
    suite: str = ""
    codename: str = ""

    def options(self) -> list[str]:
        """Return the fields as apt-ftparchive takes them."""
        fields = {"Origin": self.origin, "Label": self.label, "Suite": self.suite, "Codename": self.codename}
        named = {**{name: value for name, value in fields.items() if value}, "Architectures": NODES.deb}
        return [part for name, value in named.items() for part in ("-o", f"APT::FTPArchive::Release::{name}={value}")]


def build_all(packages: Iterable[Package], folder: Path) -> None:
    """Build all ``packages`` as files in ``folder``."""
    for package in packages:
        package.build(folder)


def publish(folder: Path, release: Release, key: Key) -> None:
    """Make ``folder`` a flat apt archive of the packages in it, signed by ``key``."""
    _remove_index(folder)
    packages = _ftparchive(folder, "packages", ".")
    (folder / "Packages").write_text(packages)
    (folder / "Packages.gz").write_bytes(gzip.compress(packages.encode(), mtime=0))
    text = _ftparchive(folder, *release.options(), "release", ".")
    (folder / "Release").write_text(text)
    (folder / "InRelease").write_text(key.clearsigned(text))
    (folder / "Release.gpg").write_text(key.signature(text))


def _remove_index(folder: Path) -> None:
    # An index must not list itself or the one before it.
    for name in ("Packages", "Packages.gz", "Release", "InRelease", "Release.gpg"):
        (folder / name).unlink(missing_ok=True)


def _ftparchive(folder: Path, *arguments: str) -> str:
    return run(["env", f"--chdir={folder}", "apt-ftparchive", *arguments]).stdout


def _put(path: Path, content: Content, *, executable: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Path):
        shutil.copyfile(content, path)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(0o755 if executable else 0o644)
