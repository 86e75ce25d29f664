from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.facts import kernels
from gpunode.facts.evidence import GlobMatch
from gpunode.facts.model import LoadedDriver, ModuleFile

PROPRIETARY = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n"
    "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
)
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22-I3)  "
    "Tue Sep 23 09:55:41 UTC 2025\nGCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n"
)


@pytest.mark.parametrize(
    ("text", "driver"), [(PROPRIETARY, LoadedDriver("535.183.01", False)), (OPEN, LoadedDriver("580.95.05", True))]
)
def test_both_driver_flavours_are_parsed(text: str, driver: LoadedDriver) -> None:
    assert kernels.parse_nvrm_version(text) == driver


def test_driver_without_a_version_is_refused() -> None:
    with pytest.raises(ValueError, match="NVRM"):
        kernels.parse_nvrm_version("GCC version: 12\n")


def test_loaded_modules_are_parsed() -> None:
    text = "nvidia_uvm 4931584 0 - Live 0x0000000000000000 (O)\nnvidia 54079488 2 nvidia_uvm, Live 0x0 (O)\n"
    assert kernels.parse_proc_modules(text) == {"nvidia", "nvidia_uvm"}
    with pytest.raises(ValueError, match="proc/modules"):
        kernels.parse_proc_modules("Module Size Used by\n")


def found_files(*paths: str) -> list[GlobMatch]:
    return [GlobMatch(path) for path in paths]


def test_next_kernel_is_the_newest_by_version() -> None:
    images = found_files(
        *(f"/boot/vmlinuz-6.1.0-{n}-amd64" for n in (9, 25, 18)), "/boot/vmlinuz-6.1.0-30-amd64.dpkg-new"
    )
    assert kernels.installed_kernels(images) == ("6.1.0-9-amd64", "6.1.0-18-amd64", "6.1.0-25-amd64")


@pytest.mark.parametrize(
    "pair", [("6.8.0-9", "6.8.0-45"), ("6.12~rc1", "6.12"), ("6.1.0", "6.1.0+b"), ("6.1a", "6.1+")]
)
def test_kernel_versions_sort_like_dpkg(pair: tuple[str, str]) -> None:
    assert kernels.version_key(pair[0]) < kernels.version_key(pair[1])


def test_dangling_link_to_headers_does_not_count() -> None:
    builds = [
        GlobMatch("/lib/modules/6.1.0-18-amd64/build", link="/usr/src/linux-headers-6.1.0-18-amd64"),
        GlobMatch("/lib/modules/6.1.0-25-amd64/build", link="/usr/src/linux-headers-6.1.0-25-amd64"),
        GlobMatch("/lib/modules/6.9-own/build", link="/home/me/linux"),
        # Debian 13, where /lib is a link to /usr/lib.
        GlobMatch("/lib/modules/6.12.1-amd64/build", link="../../../src/linux-headers-6.12.1-amd64"),
        GlobMatch("/lib/modules/6.12.2-amd64/build", link="../../../src/linux-headers-6.12.2-amd64"),
    ]
    sources = found_files("/usr/src/linux-headers-6.1.0-25-amd64", "/usr/src/linux-headers-6.12.2-amd64")
    assert kernels.kernels_with_headers(builds, sources) == {"6.1.0-25-amd64", "6.9-own", "6.12.2-amd64"}


def test_module_files_have_builder_and_version() -> None:
    files = found_files(
        "/lib/modules/6.1.0-25-amd64/updates/dkms/nvidia-current.ko.xz",
        "/lib/modules/6.1.0-25-amd64/updates/dkms/nvidia-current-uvm.ko.xz",
        "/lib/modules/6.8.0-45-generic/kernel/nvidia-580srv-open/nvidia.ko",
        "/lib/modules/6.8.0-45-generic/kernel/nvidia-580srv-open/nvidia-drm.ko",
        "/lib/modules/5.15.0-1-generic/kernel/drivers/video/nvidia.ko",
        "/lib/modules/5.15.0-1-generic/updates/dkms/nvidia-fs.ko",
    )
    links = [
        GlobMatch("/var/lib/dkms/nvidia-current/kernel-6.1.0-25-amd64-x86_64", "550.163.01/6.1.0-25-amd64/x86_64"),
        GlobMatch("/var/lib/dkms/nvidia-fs/kernel-6.1.0-25-amd64-x86_64", "2.24/6.1.0-25-amd64/x86_64"),
        GlobMatch("/var/lib/dkms/nvidia/kernel-6.9-x86_64", "../elsewhere"),
    ]
    assert kernels.find_module_files(files, links) == (
        ModuleFile("5.15.0-1-generic", files[4].path),
        ModuleFile("6.1.0-25-amd64", files[0].path, "550.163.01", dkms=True),
        ModuleFile("6.8.0-45-generic", files[2].path, "580"),
    )


@given(st.text())
def test_hostile_text_raises_only_value_error(text: str) -> None:
    for read in (kernels.parse_proc_modules, kernels.parse_nvrm_version, kernels.version_key):
        try:
            read(text)
        except ValueError:
            continue
