"""Debian.

Sources: NVIDIA's driver installation guide, Debian page (compute-only and full installation); the packages of a full
580.105.08 and 570.158.01 installation from NVIDIA's Debian repositories in public files. NVIDIA's Debian packages never
have a branch in their names. nvidia-smi is in nvidia-driver-cuda; the package nvidia-smi is Debian's. It is not
verified that branches before 560 have nvidia-driver-cuda; without it apt finds no candidate and installs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpunode.catalog.driver import DriverChoice
from gpunode.change import PackageState
from gpunode.distros.family import Family
from gpunode.package_id import PackageId
from gpunode.packages.deb.version import is_older
from gpunode.recipe import DriverScope

_KERNEL_FLAVOURS = frozenset({"amd64", "cloud-amd64", "rt-amd64", "arm64", "cloud-arm64", "rt-arm64", "arm64-16k"})
# Proxmox renamed pve-kernel and pve-headers with its kernel 6.5.
_FIRST_KERNEL_WITH_PROXMOX_NAMES = "6.5"


def dkms_package(choice: DriverChoice) -> str:
    """Return the package that builds the kernel modules."""
    if choice.source == "distro":
        from gpunode.distros import distro_driver  # loaded on use: few recipes take it

        return distro_driver.debian_dkms_package(choice)
    return "nvidia-kernel-open-dkms" if choice.flavour == "open" else "nvidia-kernel-dkms"


def driver_packages(choice: DriverChoice, scope: DriverScope) -> tuple[str, ...]:
    """Return the packages to request from apt; ``full`` is a meta package, from 615 on never cuda-drivers."""
    if choice.source == "distro":
        from gpunode.distros import distro_driver

        return distro_driver.debian_packages(choice, scope)
    modules = (dkms_package(choice), "nvidia-persistenced")
    if scope == "full":
        return (_driver_meta_package(choice), *modules)
    media = ("libnvidia-encode1", "libnvcuvid1") if scope == "media" else ()
    return ("nvidia-driver-cuda", *media, *modules)


def _driver_meta_package(choice: DriverChoice) -> str:
    if choice.flavour == "open":
        return "nvidia-open"
    return f"cuda-drivers-{choice.branch}" if choice.suffixed_names else "cuda-drivers"


def headers_package(kernel: str) -> PackageId:
    """Return the headers of exactly this kernel; Proxmox VE runs its own kernels on Debian."""
    if not kernel.endswith("-pve"):
        return PackageId(f"linux-headers-{kernel}")
    return PackageId(f"{'pve' if is_older(kernel, _FIRST_KERNEL_WITH_PROXMOX_NAMES) else 'proxmox'}-headers-{kernel}")


def headers_metapackages(kernel: str, installed: Mapping[PackageId, PackageState]) -> tuple[str, ...]:
    """Return the packages that follow the kernel's meta packages: on Proxmox VE its series' and the default one."""
    present = {package.name for package, state in installed.items() if not state.config_files_only}
    if kernel.endswith("-pve"):
        return _proxmox_headers_metapackages(kernel, present)
    flavour = _kernel_flavour(kernel)
    is_followed = flavour in _KERNEL_FLAVOURS and f"linux-image-{flavour}" in present
    return (f"linux-headers-{flavour}",) if is_followed else ()


def _kernel_flavour(kernel: str) -> str:
    """Return ``cloud-amd64`` for 6.1.0-37-cloud-amd64, 6.12.48+deb13-cloud-amd64, 6.1.0-0.deb11.5-cloud-amd64."""
    return re.sub(r"^[^-]*-(\d[^-]*-)*", "", kernel)


def _proxmox_headers_metapackages(kernel: str, present: set[str]) -> tuple[str, ...]:
    # Every node has the default one, which never follows a series that somebody opted into.
    series = ".".join(kernel.split(".")[:2])
    follows = {
        "proxmox-default-kernel": "proxmox-default-headers",
        f"proxmox-kernel-{series}": f"proxmox-headers-{series}",
        f"pve-kernel-{series}": f"pve-headers-{series}",
    }
    return tuple(meta for image, meta in follows.items() if image in present)


DEBIAN = Family(
    id="debian",
    name="Debian",
    origins=("Debian",),
    cuda_archive_origins=(),
    driver_packages=driver_packages,
    dkms_package=dkms_package,
    headers_package=headers_package,
    headers_metapackages=headers_metapackages,
    signs_own_modules=False,
)
