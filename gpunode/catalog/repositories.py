"""NVIDIA's package repositories: where they are and whose key signs them.

Sources: cuda_repositories.csv for the CUDA repositories; for the container toolkit the gh-pages branch of
NVIDIA/libnvidia-container and NVIDIA's cloud-native documentation (nvidia-container-toolkit 1.20.0). File names are
those of NVIDIA's own cuda-keyring package and instructions: a host set up by hand is recognised, and not given a second
entry with another Signed-By, which apt refuses.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpunode.catalog import tables
from gpunode.catalog.releases import release
from gpunode.facts.model import Distro

CUDA_BASE = "https://developer.download.nvidia.com/compute/cuda/repos"
TOOLKIT_BASE = "https://nvidia.github.io/libnvidia-container"

_OLD_TOOLKIT_BASES = ("https://nvidia.github.io/nvidia-docker/", "https://nvidia.github.io/nvidia-container-runtime/")
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "sbsa"}


@dataclass(frozen=True, slots=True)
class CudaRepository:
    """The CUDA repository of one distribution release and architecture; flat, its suite is ``/``.

    Attributes:
        dir: its folder, NVIDIA's name for the release (``debian12``).
        arch: NVIDIA's name for the architecture (``x86_64``, ``sbsa``).
        base_url: the repository itself, with a slash at the end, as in NVIDIA's own list file.
        fingerprint: the only primary key that may sign it; 40 upper-case hex digits.
    """

    dir: str
    arch: str
    base_url: str
    list_file: str
    keyring: str
    key_url: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class ToolkitRepository:
    """The container toolkit's repository; one for every distribution that uses apt.

    Attributes:
        url: as it stands in the list file; apt replaces ``$(ARCH)``.
        fingerprint: the only primary key that may sign it; 40 upper-case hex digits.
    """

    url: str
    list_file: str
    keyring: str
    key_url: str
    fingerprint: str


def cuda_repository(distro: Distro, dpkg_arch: str, base: str = "", fingerprint: str = "") -> CudaRepository | None:
    """NVIDIA's CUDA repository for this release, or None where NVIDIA has none.

    Interim Ubuntu releases, testing and unstable and Debian on arm64 have none; a derivative has that of its base.

    ``base`` is a mirror's address, above the release's folder; ``fingerprint`` its own key's.
    """
    known, arch = release(distro), _ARCHITECTURES.get(dpkg_arch, "")
    folder = known.repository if known else ""
    row = next((r for r in tables.rows("cuda_repositories.csv") if (r["dir"], r["arch"]) == (folder, arch)), None)
    if row is None:
        return None
    url = f"{(base or CUDA_BASE).rstrip('/')}/{folder}/{arch}/"
    return CudaRepository(
        dir=folder,
        arch=arch,
        base_url=url,
        list_file=f"/etc/apt/sources.list.d/cuda-{folder}-{arch}.list",
        keyring="/usr/share/keyrings/cuda-archive-keyring.gpg",
        key_url=url + row["key_file"],
        fingerprint=_normal(fingerprint) or row["fingerprint"],
    )


def toolkit_repository(base: str = "", fingerprint: str = "") -> ToolkitRepository:
    """The container toolkit's repository.

    ``base`` is a mirror's address, above ``stable/deb`` and ``gpgkey``; ``fingerprint`` its own key's.
    """
    root = (base or TOOLKIT_BASE).rstrip("/")
    return ToolkitRepository(
        url=f"{root}/stable/deb/$(ARCH)",
        list_file="/etc/apt/sources.list.d/nvidia-container-toolkit.list",
        keyring="/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg",
        key_url=f"{root}/gpgkey",
        fingerprint=_normal(fingerprint) or "C95B321B61E88C1809C4F759DDCAE044F796ECB0",
    )


def _normal(fingerprint: str) -> str:
    return fingerprint.replace(" ", "").replace(":", "").upper()


TOOLKIT = toolkit_repository()


def is_old_toolkit_source(uri: str) -> bool:
    """Whether an apt source is one of the toolkit's former repositories, or its former folder per distribution."""
    inside = uri.removeprefix(f"{TOOLKIT_BASE}/")
    former_folder = inside != uri and not f"{inside}/".startswith(("stable/deb/", "experimental/deb/"))
    return former_folder or f"{uri.rstrip('/')}/".startswith(_OLD_TOOLKIT_BASES)
