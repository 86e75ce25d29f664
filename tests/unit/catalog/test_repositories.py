from __future__ import annotations

import re

import pytest

from gpunode.catalog import tables
from gpunode.catalog.repositories import (
    CUDA_BASE_URL,
    TOOLKIT_REPOSITORY,
    cuda_repository,
    describe_former_address,
    describe_other_cuda_folder,
    toolkit_repository,
)
from gpunode.facts.model import Distro


def distro(id_: str, version: str) -> Distro:
    return Distro(id_, version, "", f"{id_} {version}")


def test_debian_12_repository_is_that_of_the_nvidia_keyring_package() -> None:
    repository = cuda_repository(distro("debian", "12"), "amd64")

    assert repository is not None
    base = "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/"
    assert repository.uri == base
    assert repository.list_file == "/etc/apt/sources.list.d/cuda-debian12-x86_64.list"
    assert repository.keyring == "/usr/share/keyrings/cuda-archive-keyring.gpg"
    assert repository.key.url == f"{base}3bf863cc.pub"
    assert repository.key.fingerprints == {"EB693B3035CD5710E231E123A4B469963BF863CC"}


@pytest.mark.parametrize(
    ("version", "arch", "key"),
    [("22.04", "amd64", "3bf863cc.pub"), ("24.04", "arm64", "3bf863cc.pub"), ("26.04", "amd64", "60DF8A40.pub")],
)
def test_ubuntu_repository_by_release_and_architecture(version: str, arch: str, key: str) -> None:
    repository = cuda_repository(distro("ubuntu", version), arch)

    assert repository is not None
    folder = f"ubuntu{version.replace('.', '')}/{({'amd64': 'x86_64', 'arm64': 'sbsa'})[arch]}"
    assert repository.uri == f"{CUDA_BASE_URL}/{folder}/"
    assert repository.key.url.endswith(f"/{key}")
    assert repository.key.url.startswith(repository.uri)


@pytest.mark.parametrize(
    ("id_", "version", "arch"),
    [
        ("ubuntu", "25.04", "amd64"),
        ("ubuntu", "25.10", "amd64"),
        ("ubuntu", "20.04", "amd64"),
        ("debian", "13", "arm64"),
        ("debian", "11", "amd64"),
        ("debian", "", "amd64"),
        ("devuan", "5", "amd64"),
        ("ubuntu", "24.04", "riscv64"),
        ("fedora", "44", "amd64"),
    ],
)
def test_distribution_without_an_nvidia_repository_has_none(id_: str, version: str, arch: str) -> None:
    assert cuda_repository(distro(id_, version), arch) is None


def test_mirror_changes_addresses_and_its_own_key() -> None:
    mirror = cuda_repository(distro("debian", "13"), "amd64", base="http://mirror.example/cuda/")
    keys = ("AAAABBBBCCCCDDDDEEEE" * 2, "0" * 40)
    signed = cuda_repository(distro("debian", "13"), "amd64", "http://mirror.example", " ".join(keys), "new.pub")

    assert mirror is not None
    assert mirror.uri == "http://mirror.example/cuda/debian13/x86_64/"
    assert mirror.key.url == "http://mirror.example/cuda/debian13/x86_64/8793F200.pub"
    assert mirror.key.fingerprints == {"02182E60104FCDC26EAE1B8597A5D4CB8793F200"}
    assert signed is not None
    assert signed.key.fingerprints == set(keys)
    assert signed.key.url == "http://mirror.example/debian13/x86_64/new.pub"
    assert mirror.list_file == signed.list_file == "/etc/apt/sources.list.d/cuda-debian13-x86_64.list"


def test_toolkit_repository_and_its_mirror() -> None:
    mirror = toolkit_repository("http://mirror.example/ctk/")

    assert TOOLKIT_REPOSITORY.uri == "https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH)"
    assert TOOLKIT_REPOSITORY.key.url == "https://nvidia.github.io/libnvidia-container/gpgkey"
    assert mirror.uri == "http://mirror.example/ctk/stable/deb/$(ARCH)"
    assert mirror.key.url == "http://mirror.example/ctk/gpgkey"
    assert (
        mirror.key.fingerprints == TOOLKIT_REPOSITORY.key.fingerprints == {"C95B321B61E88C1809C4F759DDCAE044F796ECB0"}
    )


def test_every_pinned_key_is_a_full_fingerprint_and_not_retired() -> None:
    retired = "AE09FE4BBD223A84B2CCFCE3F60F4B3D7FA2AF80"  # 7fa2af80, which NVIDIA withdrew on 2022-04-27
    pinned = {row["fingerprint"] for row in tables.rows("cuda_repositories.csv")} | TOOLKIT_REPOSITORY.key.fingerprints

    assert all(re.fullmatch(r"[0-9A-F]{40}", fingerprint) for fingerprint in pinned)
    assert retired not in pinned


def test_key_file_is_named_after_its_key() -> None:
    for row in tables.rows("cuda_repositories.csv"):
        assert row["fingerprint"].endswith(row["key_file"].removesuffix(".pub").upper())


def test_key_file_has_one_fingerprint() -> None:
    pinned: dict[str, set[str]] = {}
    for row in tables.rows("cuda_repositories.csv"):
        pinned.setdefault(row["key_file"], set()).add(row["fingerprint"])
    assert all(len(fingerprints) == 1 for fingerprints in pinned.values())


@pytest.mark.parametrize(
    "uri",
    [
        "https://nvidia.github.io/nvidia-docker/ubuntu18.04/amd64",
        "https://nvidia.github.io/nvidia-docker",
        "https://nvidia.github.io/nvidia-container-runtime/stable/debian10/amd64",
        "https://nvidia.github.io/libnvidia-container/stable/ubuntu18.04/amd64",
        "https://nvidia.github.io/libnvidia-container/debian10/amd64",
    ],
)
def test_obsolete_toolkit_repository_is_recognized(uri: str) -> None:
    assert describe_former_address(uri.partition("://")[2])


@pytest.mark.parametrize(
    "uri",
    [
        "https://nvidia.github.io/libnvidia-container/stable/deb/amd64",
        "https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH)",
        "https://nvidia.github.io/libnvidia-container/experimental/deb/amd64",
        "https://nvidia.github.io/nvidia-dockers/",
        "http://mirror.example.org/debian",
    ],
)
def test_other_source_is_no_obsolete_toolkit_repository(uri: str) -> None:
    assert not describe_former_address(uri.partition("://")[2])


@pytest.mark.parametrize("base", ["", "https://mirror.example/cuda"])
def test_cuda_folders_of_other_systems_are_recognized(base: str) -> None:
    debian = cuda_repository(Distro("debian", "12", "bookworm", "Debian 12"), "amd64", base)
    assert debian is not None
    above = (base or CUDA_BASE_URL).partition("://")[2]
    for folder in ("ubuntu2204", "debian11", "wsl-ubuntu"):
        assert folder in describe_other_cuda_folder(debian.uri, f"{above}/{folder}/x86_64")
    for other in ("debian12/x86_64", "debian12/sbsa", "ubuntu2204/cross-linux-sbsa", "rocm/x86_64", "x86_64", ""):
        assert not describe_other_cuda_folder(debian.uri, f"{above}/{other}")
    assert describe_other_cuda_folder(debian.uri, "developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64")
