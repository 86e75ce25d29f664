from __future__ import annotations

import pytest

from gpunode.catalog.driver import DriverChoice
from gpunode.change import PackageState
from gpunode.distros import DEBIAN
from gpunode.package_id import PackageId
from tests.ids import by_id

PASCAL = DriverChoice(580, "", "proprietary", "")
TURING_LTS = DriverChoice(580, "", "open", "")
TURING = DriverChoice(595, "", "open", "")
NEWEST = DriverChoice(615, "", "open", "")
MODULES = {"open": "nvidia-kernel-open-dkms", "proprietary": "nvidia-kernel-dkms"}


def installed_packages(*names: str) -> dict[str, PackageState]:
    return {name: PackageState("1") for name in names}


@pytest.mark.parametrize("choice", [PASCAL, TURING_LTS, TURING, NEWEST])
def test_compute_scope_has_the_same_names_in_every_branch(choice: DriverChoice) -> None:
    packages = DEBIAN.driver_packages(choice, "compute")

    assert packages == ("nvidia-driver-cuda", MODULES[choice.flavour], "nvidia-persistenced")
    assert DEBIAN.dkms_package(choice) in packages


def test_media_scope_adds_encoding_and_decoding() -> None:
    added = set(DEBIAN.driver_packages(TURING, "media")) - set(DEBIAN.driver_packages(TURING, "compute"))

    assert added == {"libnvidia-encode1", "libnvcuvid1"}


@pytest.mark.parametrize(
    ("choice", "meta"),
    [
        (PASCAL, "cuda-drivers-580"),
        (TURING, "nvidia-open"),
        (NEWEST, "nvidia-open"),
        (DriverChoice(595, "", "proprietary", ""), "cuda-drivers"),
    ],
)
def test_full_scope_uses_the_nvidia_meta_package(choice: DriverChoice, meta: str) -> None:
    assert DEBIAN.driver_packages(choice, "full") == (meta, MODULES[choice.flavour], "nvidia-persistenced")


@pytest.mark.parametrize(
    ("kernel", "package"),
    [
        ("6.1.0-37-amd64", "linux-headers-6.1.0-37-amd64"),
        ("6.12.48+deb13-cloud-amd64", "linux-headers-6.12.48+deb13-cloud-amd64"),
        ("6.8.12-1-pve", "proxmox-headers-6.8.12-1-pve"),
        ("6.14.11-9-pve", "proxmox-headers-6.14.11-9-pve"),
        ("6.2.16-3-pve", "pve-headers-6.2.16-3-pve"),
        ("5.15.158-2-pve", "pve-headers-5.15.158-2-pve"),
    ],
)
def test_headers_package_of_one_kernel(kernel: str, package: str) -> None:
    assert DEBIAN.headers_package(kernel) == PackageId(package)


@pytest.mark.parametrize(
    ("kernel", "image", "meta"),
    [
        ("6.1.0-37-amd64", "linux-image-amd64", "linux-headers-amd64"),
        ("6.1.0-0.deb11.5-amd64", "linux-image-amd64", "linux-headers-amd64"),
        ("6.12.9+bpo-amd64", "linux-image-amd64", "linux-headers-amd64"),
        ("6.12.48+deb13-amd64", "linux-image-amd64", "linux-headers-amd64"),
        ("6.1.0-37-cloud-amd64", "linux-image-cloud-amd64", "linux-headers-cloud-amd64"),
        ("6.12.48+deb13-cloud-amd64", "linux-image-cloud-amd64", "linux-headers-cloud-amd64"),
        ("6.1.0-37-rt-amd64", "linux-image-rt-amd64", "linux-headers-rt-amd64"),
        ("6.12.48+deb13-arm64", "linux-image-arm64", "linux-headers-arm64"),
        ("6.12.48+deb13-arm64-16k", "linux-image-arm64-16k", "linux-headers-arm64-16k"),
        ("6.8.12-1-pve", "proxmox-default-kernel", "proxmox-default-headers"),
        ("6.14.11-9-pve", "proxmox-kernel-6.14", "proxmox-headers-6.14"),
        ("5.15.158-2-pve", "pve-kernel-5.15", "pve-headers-5.15"),
    ],
)
def test_headers_meta_package_follows_the_kernel_meta_package(kernel: str, image: str, meta: str) -> None:
    others = "linux-image-6.1.0-37-amd64", "linux-base"

    assert DEBIAN.headers_metapackages(kernel, by_id(installed_packages(image, *others))) == (meta,)
    assert DEBIAN.headers_metapackages(kernel, by_id(installed_packages(*others))) == ()


def test_opted_into_proxmox_kernel_gets_the_headers_of_its_series() -> None:
    """The default meta package, which every node has, follows another series."""
    both = installed_packages("proxmox-default-kernel", "proxmox-kernel-6.8", "proxmox-kernel-6.14")

    assert DEBIAN.headers_metapackages("6.14.11-9-pve", by_id(both)) == (
        "proxmox-default-headers",
        "proxmox-headers-6.14",
    )


def test_removed_kernel_meta_package_does_not_count() -> None:
    removed = {"linux-image-amd64": PackageState("6.1.140-1", config_files_only=True)}

    assert DEBIAN.headers_metapackages("6.1.0-37-amd64", by_id(removed)) == ()


@pytest.mark.parametrize("kernel", ["6.11.0-custom", "6.1.0", "", "6.8.0-51-generic", "-", "6.1.0-37-"])
def test_foreign_kernel_has_no_headers_meta_package(kernel: str) -> None:
    assert (
        DEBIAN.headers_metapackages(kernel, by_id(installed_packages("linux-image-amd64", "linux-image-generic"))) == ()
    )
