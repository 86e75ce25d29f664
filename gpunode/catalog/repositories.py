"""NVIDIA's package repositories: where they are and whose key signs them.

Sources: cuda_repositories.csv for the CUDA repositories; for the container toolkit the gh-pages branch of
NVIDIA/libnvidia-container and NVIDIA's cloud-native documentation (nvidia-container-toolkit 1.20.0). File names are
those of the cuda-keyring package and NVIDIA's instructions: a host set up by hand is recognised, and not given a second
entry with another Signed-By, which apt refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gpunode.catalog import tables
from gpunode.catalog.releases import release
from gpunode.change import SigningKey
from gpunode.facts.model import Distro
from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass

CUDA_BASE_URL = "https://developer.download.nvidia.com/compute/cuda/repos"
TOOLKIT_BASE_URL = "https://nvidia.github.io/libnvidia-container"
CUDA_KEYRING = "/usr/share/keyrings/cuda-archive-keyring.gpg"
TOOLKIT_KEYRING = "/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg"

_OLD_TOOLKIT_BASES = ("nvidia.github.io/nvidia-docker/", "nvidia.github.io/nvidia-container-runtime/")
_CUDA_FOLDER_OF_APT_SYSTEM = Pattern(r"(?:debian|ubuntu|kylin)\d+|wsl-ubuntu")
_FOLDER_BY_DPKG_ARCHITECTURE = {"amd64": "x86_64", "arm64": "sbsa"}


@dataclass(frozen=True, slots=True)
class Repository:
    """An NVIDIA repository, or a mirror of it.

    Attributes:
        uri: as written in the file that lists it; ``$(ARCH)`` for the architecture. It is flat, with the suite ``/``.
        list_file: gpunode's own list, used if nobody else has listed the repository.
        keyring: where the key is kept.
        key: the primary keys that may sign it, all of which the key file holds.
        describe_alias: how an address without its scheme, such as ``nvidia.github.io/nvidia-docker/debian10/amd64``, is
            another one of this repository, to follow "names it"; empty if it is not.
        architecture: that of the node, in Debian's terms.
    """

    uri: str
    list_file: str
    keyring: str
    key: SigningKey
    describe_alias: Callable[[str], str]
    architecture: str


def cuda_repository(
    distro: Distro, dpkg_arch: str, base: str = "", fingerprints: str = "", key_file: str = ""
) -> Repository | None:
    """Return NVIDIA's CUDA repository for this release, or None if NVIDIA has none.

    Interim Ubuntu releases, testing and unstable and Debian on arm64 have none; a derivative has that of its base.

    ``base`` is a mirror's address, above the release's folder; ``fingerprints`` are its own keys', separated by blanks,
    and ``key_file`` is the name of the file beside the index that holds them.
    """
    supported_release, arch = release(distro), _FOLDER_BY_DPKG_ARCHITECTURE.get(dpkg_arch, "")
    folder = supported_release.repository if supported_release else ""
    row = next((r for r in tables.rows("cuda_repositories.csv") if (r["dir"], r["arch"]) == (folder, arch)), None)
    if row is None:
        return None
    url = f"{(base or CUDA_BASE_URL).rstrip('/')}/{folder}/{arch}/"
    return Repository(
        uri=url,
        list_file=f"/etc/apt/sources.list.d/cuda-{folder}-{arch}.list",
        keyring=CUDA_KEYRING,
        key=SigningKey(url + (key_file or row["key_file"]), frozenset((fingerprints or row["fingerprint"]).split())),
        describe_alias=partial(describe_other_cuda_folder, url),
        architecture=dpkg_arch,
    )


def describe_former_address(address: str) -> str:
    """Return how an address, without scheme, is one of the toolkit's former repositories; empty if it is not.

    Those were folders of the present repository for each distribution, and two repositories of other names.
    """
    inside = address.removeprefix(f"{_without_scheme(TOOLKIT_BASE_URL)}/")
    former_folder = inside != address and not f"{inside}/".startswith(("stable/deb/", "experimental/deb/"))
    is_former = former_folder or f"{address.rstrip('/')}/".startswith(_OLD_TOOLKIT_BASES)
    return "by an old address" if is_former else ""


def toolkit_repository(
    base: str = "", fingerprints: str = "", key_file: str = "", architecture: str = ""
) -> Repository:
    """Return the container toolkit's repository, which is the same for every distribution that uses apt.

    ``base`` is a mirror's address, above ``stable/deb`` and ``gpgkey``; ``fingerprints`` are its own keys',
    separated by blanks, and ``key_file`` is the name of the file in ``gpgkey``'s place that holds them.
    """
    root = (base or TOOLKIT_BASE_URL).rstrip("/")
    keys = frozenset((fingerprints or "C95B321B61E88C1809C4F759DDCAE044F796ECB0").split())
    return Repository(
        uri=f"{root}/stable/deb/$(ARCH)",
        list_file="/etc/apt/sources.list.d/nvidia-container-toolkit.list",
        keyring=TOOLKIT_KEYRING,
        key=SigningKey(f"{root}/{key_file or 'gpgkey'}", keys),
        describe_alias=describe_former_address,
        architecture=architecture,
    )


TOOLKIT_REPOSITORY = toolkit_repository()


def describe_other_cuda_folder(url: str, address: str) -> str:
    """Return how an address, without scheme, is for another system than the repository ``url``; empty if it is not.

    Their packages have the same versions and other dependencies: one upgrade from the wrong folder breaks what the
    right one has installed. Only names of systems with apt count: a mirror has other folders beside them.
    """
    own = _without_scheme(url).rstrip("/").split("/")
    parts = address.rstrip("/").split("/")
    for above in (own[:-2], _without_scheme(CUDA_BASE_URL).split("/")):
        if (
            parts[:-2] == above
            and parts[-1] == own[-1]
            and parts[-2] != own[-2]
            and _CUDA_FOLDER_OF_APT_SYSTEM.fullmatch(parts[-2])
        ):
            return f"for another system ({parts[-2]}, where this one needs {own[-2]})"
    return ""


def _without_scheme(url: str) -> str:
    return url.partition("://")[2]
