"""NVIDIA's own libraries as Debian packages them (non-free), from the archive that this machine uses."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

PACKAGES = ("libnvidia-ml1", "nvidia-smi", "libcuda1")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_FORMAT = "$(ORIGIN)\t$(REPO_URI)\t$(CODENAME)\t$(COMPONENT)"


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpunode-tests" / "nvidia"


@cache
def unpacked() -> Path:
    """Return a folder with the files of ``PACKAGES``; skip the test if they are not available."""
    folder = _cache()
    root = folder / "root"
    if not root.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        _download(folder)
        unfinished = folder / "root.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        for deb in sorted(folder.glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", str(deb), str(unfinished)], check=True)
        unfinished.rename(root)
    return root


def _archive() -> tuple[str, str]:
    """Return the address and release of the Debian archive in this machine's own sources."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        pytest.skip("no apt here to fetch NVIDIA's libraries with")
    argv = ["apt-get", "indextargets", "--format", _FORMAT, "Created-By: Packages"]
    rows = [
        line.split("\t")
        for line in subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()
    ]
    found = next((row for row in rows if row[0] == "Debian" and row[3] == "main"), None)
    if found is None:
        pytest.skip("no Debian archive in this machine's sources (or no index of it: apt-get update)")
    return found[1], found[2]


def _download(folder: Path) -> None:
    uri, release = _archive()
    (folder / "lists/partial").mkdir(parents=True, exist_ok=True)
    (folder / "archives/partial").mkdir(parents=True, exist_ok=True)
    signed = f"[signed-by={KEYRING}] " if Path(KEYRING).exists() else ""
    (folder / "sources.list").write_text(f"deb {signed}{uri} {release} non-free\n")
    options = {
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::Lists": folder / "lists",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": folder,
        "APT::Sandbox::User": "",
        "Acquire::Retries": "0",
        "Acquire::http::Timeout": "20",
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    for verb in (["update"], ["download", *PACKAGES]):
        done = subprocess.run(["apt-get", "-q", *words, *verb], check=False, capture_output=True, text=True, cwd=folder)
        if done.returncode:
            pytest.skip("Debian's non-free archive cannot be reached")


def only(pattern: str) -> Path:
    """Return the only file of the packages that ``pattern`` matches."""
    (found,) = unpacked().rglob(pattern)
    return found


def without_gpu() -> None:
    """Skip if there is an NVIDIA driver, since the libraries then do not fail."""
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("an NVIDIA driver is loaded here: tests/gpu runs instead")
