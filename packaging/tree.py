"""The files that the .deb and the .rpm install, below one folder."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import man

HERE = Path(__file__).parent
ROOT = HERE.parent


@dataclass(frozen=True, slots=True)
class Release:
    """A release to package.

    Attributes:
        version: of gpunode.
        moment: seconds since 1970 that every date in the packages is; the release's, not the build's.
        zipapp: the built gpunode.pyz.
    """

    version: str
    moment: int
    zipapp: Path


def lay_out(release: Release, folder: Path, *, kind: str, zsh: str) -> None:
    """Fill ``folder`` with the files of both kinds of package; ``zsh`` is where the system's zsh looks."""
    share = folder / "usr/share"
    completions = ROOT / "gpunode/completions"
    put(share / "gpunode/gpunode.pyz", release.zipapp.read_bytes(), 0o755)
    put(share / "gpunode/INSTALLER", f"{kind}\n".encode())
    put(share / "bash-completion/completions/gpunode", (completions / "gpunode.bash").read_bytes())
    put(share / zsh / "_gpunode", (completions / "_gpunode").read_bytes())
    put(share / "fish/vendor_completions.d/gpunode.fish", (completions / "gpunode.fish").read_bytes())
    put(folder / "etc/logrotate.d/gpunode", (HERE / "gpunode.logrotate").read_bytes())
    for name, text in man.pages(release.version, release.moment).items():
        put(share / f"man/man1/{name}.gz", gzip_text(text))
    (folder / "usr/bin").mkdir(parents=True)
    (folder / "usr/bin/gpunode").symlink_to("../share/gpunode/gpunode.pyz")
    for path in (folder, *folder.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)


def put(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file and create the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)


def gzip_text(text: str) -> bytes:
    """Return ``text`` compressed as by ``gzip -9n``: without a name and a date."""
    return gzip.compress(text.encode(), 9, mtime=0)


def make_environment(requirements: str, folder: Path) -> Path:
    """Make a Python environment in ``folder`` from a file of pinned requirements, and return its ``python``.

    Constraints would not do: from 25.3 on pip ignores PIP_CONSTRAINT where it builds a wheel in isolation.
    """
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin/python"
    pip = (python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    subprocess.run([*pip, "--require-hashes", "--requirement", HERE / requirements], check=True)
    return python


def environment(release: Release) -> dict[str, str]:
    """Return the environment of a build: the packages' dates, and the C locale."""
    return {**os.environ, "SOURCE_DATE_EPOCH": str(release.moment), "LC_ALL": "C.UTF-8"}
