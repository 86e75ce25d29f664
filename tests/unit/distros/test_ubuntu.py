from __future__ import annotations

import pytest

from gpunode.catalog.driver import DriverChoice
from gpunode.change import PackageState
from gpunode.distros import UBUNTU
from gpunode.package_id import PackageId
from tests.ids import by_id

PASCAL = DriverChoice(580, "", "proprietary", "")
TURING_LTS = DriverChoice(580, "", "open", "")
TURING = DriverChoice(595, "", "open", "")
NEWEST = DriverChoice(615, "", "open", "")
OLD = DriverChoice(570, "", "open", "")


@pytest.mark.parametrize(
    ("choice", "packages"),
    [
        (PASCAL, "libnvidia-compute-580 nvidia-utils-580 nvidia-dkms-580 nvidia-persistenced"),
        (TURING_LTS, "libnvidia-compute-580 nvidia-utils-580 nvidia-dkms-580-open nvidia-persistenced"),
        (TURING, "libnvidia-compute nvidia-dkms-open nvidia-persistenced"),
        (NEWEST, "libnvidia-compute nvidia-dkms-open nvidia-persistenced"),
        (DriverChoice(595, "", "proprietary", ""), "libnvidia-compute nvidia-dkms nvidia-persistenced"),
        (OLD, "libnvidia-compute-570 nvidia-utils-570 nvidia-dkms-570-open nvidia-compute-utils-570"),
    ],
)
def test_compute_package_names_include_the_branch_up_to_580(choice: DriverChoice, packages: str) -> None:
    assert UBUNTU.driver_packages(choice, "compute") == tuple(packages.split())
    assert UBUNTU.dkms_package(choice) in packages.split()


def test_media_scope_adds_encoding_and_decoding() -> None:
    def added(choice: DriverChoice) -> set[str]:
        return set(UBUNTU.driver_packages(choice, "media")) - set(UBUNTU.driver_packages(choice, "compute"))

    assert added(PASCAL) == {"libnvidia-encode-580", "libnvidia-decode-580"}
    assert added(TURING) == {"libnvidia-encode", "libnvidia-decode"}


@pytest.mark.parametrize(
    ("choice", "meta"),
    [
        (PASCAL, "cuda-drivers-580"),
        (TURING_LTS, "nvidia-open-580"),
        (TURING, "nvidia-open"),
        (NEWEST, "nvidia-open"),
        (DriverChoice(595, "", "proprietary", ""), "cuda-drivers"),
    ],
)
def test_full_scope_uses_the_nvidia_meta_package(choice: DriverChoice, meta: str) -> None:
    packages = UBUNTU.driver_packages(choice, "full")

    assert packages[0] == meta
    assert UBUNTU.dkms_package(choice) in packages
    assert "nvidia-persistenced" in packages


def test_headers_package_of_one_kernel() -> None:
    assert UBUNTU.headers_package("6.8.0-51-generic") == PackageId("linux-headers-6.8.0-51-generic")


@pytest.mark.parametrize(
    ("kernel", "metas", "expected"),
    [
        ("6.8.0-51-generic", {"generic": "6.8.0-51.52"}, "generic"),
        ("6.11.0-29-generic", {"generic-hwe-24.04": "6.11.0-29.29~24.04.1"}, "generic-hwe-24.04"),
        ("5.15.0-119-generic", {"virtual": "5.15.0.119.119"}, "virtual"),
        ("6.8.0-51-generic", {"virtual-hwe-22.04": "6.8.0-51.52~22.04.1"}, "virtual-hwe-22.04"),
        ("6.8.0-1021-aws", {"aws": "6.8.0-1021.23"}, "aws"),
        ("6.8.0-1021-aws", {"aws-lts-24.04": "6.8.0-1021.23"}, "aws-lts-24.04"),
        ("6.8.0-1021-aws", {"aws-6.8": "6.8.0-1021.23"}, "aws-6.8"),
        ("6.8.0-1021-azure", {"azure": "6.8.0-1021.23"}, "azure"),
        ("6.8.0-1021-gcp", {"gcp": "6.8.0-1021.23"}, "gcp"),
        ("6.8.0-1021-oracle", {"oracle": "6.8.0-1021.23"}, "oracle"),
        ("6.8.0-1028-nvidia", {"nvidia": "6.8.0-1028.31"}, "nvidia"),
        ("6.11.0-1013-nvidia", {"nvidia-hwe-24.04": "6.11.0-1013.13"}, "nvidia-hwe-24.04"),
        ("6.8.0-51-lowlatency", {"lowlatency": "6.8.0-51.52"}, "lowlatency"),
        ("6.8.0-51-generic-64k", {"generic-64k": "6.8.0-51.52"}, "generic-64k"),
        ("6.11.0-1013-oem", {"oem-24.04b": "6.11.0-1013.13"}, "oem-24.04b"),
    ],
)
def test_headers_meta_package_follows_the_kernel_meta_package(
    kernel: str, metas: dict[str, str], expected: str
) -> None:
    assert meta(kernel, metas) == f"linux-headers-{expected}"


def meta(kernel: str, metas: dict[str, str], *, removed: bool = False) -> str:
    packages = {f"linux-image-{name}": PackageState(v, config_files_only=removed) for name, v in metas.items()}
    packages |= {f"linux-image-{kernel}": PackageState("1"), "linux-image-unsigned-6.8.0-51-generic": PackageState("9")}
    return "".join(UBUNTU.headers_metapackages(kernel, by_id(packages)))


BOTH = {"generic": "6.8.0-51.52", "generic-hwe-24.04": "6.11.0-29.29~24.04.1"}


def test_headers_follow_the_meta_package_of_the_running_kernel() -> None:
    assert meta("6.8.0-51-generic", BOTH) == "linux-headers-generic"
    assert meta("6.11.0-29-generic", BOTH) == "linux-headers-generic-hwe-24.04"


def test_headers_follow_the_newer_kernel_series_before_the_reboot() -> None:
    assert meta("6.5.0-14-generic", {"generic-hwe-22.04": "6.8.0-51.52~22.04.1"}) == "linux-headers-generic-hwe-22.04"
    assert meta("6.5.0-14-generic", BOTH) == "linux-headers-generic-hwe-24.04"


@pytest.mark.parametrize("kernel", ["6.8.0-51-generic", "6.8.0-1021-aws", "6.8.0", "", "6.11.0-custom"])
def test_meta_package_of_another_flavour_is_ignored(kernel: str) -> None:
    assert meta(kernel, {"generic-64k": "6.8.0-51.52", "aws-64k": "6.8.0-1021.23", "azure": "6.8.0-1021.2"}) == ""


def test_removed_kernel_meta_package_does_not_count() -> None:
    assert meta("6.8.0-51-generic", {"generic": "6.8.0-51.52"}, removed=True) == ""
