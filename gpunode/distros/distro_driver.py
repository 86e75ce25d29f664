"""The driver in a distribution's own archive: its packages, and what is never mixed with them.

Sources: the package lists of Debian 12.15 and 13.8 (main, contrib, non-free, security); packages.ubuntu.com
(nvidia-graphics-drivers-580-server, linux-restricted-modules): nvidia-headless-no-dkms-580-server needs the libraries
and the persistence daemon, nvidia-utils-580-server has nvidia-smi, linux-modules-nvidia-580-server-generic needs the
prebuilt module of the newest kernel. Not verified: that nvidia-driver-580-server accepts prebuilt modules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gpunode.catalog.driver import DriverChoice
from gpunode.change import PackageState
from gpunode.distros.family import Family
from gpunode.facts.model import Kernels
from gpunode.package_id import PackageId
from gpunode.recipe import DriverScope

_DEBIAN_FAMILY_ID: Final = "debian"
# NVIDIA's repository by the Label that its own pin file names; the graphics drivers PPA by its Origin.
_FOREIGN_ARCHIVES_BY_FAMILY: Final = {
    _DEBIAN_FAMILY_ID: ("l=NVIDIA CUDA",),
    "ubuntu": ("l=NVIDIA CUDA", "o=LP-PPA-graphics-drivers"),
}
# Names that NVIDIA's packages for Debian have and Debian's do not.
_NVIDIA_ONLY_PACKAGE: Final = re.compile(
    r"cuda-drivers.*|nvidia-driver-cuda|nvidia-kernel-open-dkms|nvidia-open(-\d+)?|libnvidia-gpucomp"
)
# NVIDIA's packages for Ubuntu, and Ubuntu's for desktops: nvidia-dkms-580-open, libnvidia-compute-595.
_ANY_DRIVER_PACKAGE: Final = re.compile(
    r"cuda-drivers.*|(lib)?nvidia-(?!modprobe|settings|xconfig|fabricmanager|nscq).*"
)
_PREBUILT_MODULES_PACKAGE: Final = re.compile(r"linux-(modules|objects)-nvidia-(\d+-server(-open)?)-(?!open-).*")


def foreign_archives(family: Family) -> tuple[str, ...]:
    """Return the archives that are never mixed with the distribution's own driver, as preferences name them."""
    return _FOREIGN_ARCHIVES_BY_FAMILY[family.id]


def is_foreign_driver_package(family: Family, choice: DriverChoice, name: str) -> bool:
    """Return whether a driver package is not of the distribution's own driver; Debian shares most names with NVIDIA."""
    if family.id == _DEBIAN_FAMILY_ID:
        return _NVIDIA_ONLY_PACKAGE.fullmatch(name) is not None
    if name.startswith(("linux-modules-", "linux-objects-")):
        match = _PREBUILT_MODULES_PACKAGE.fullmatch(name)
        return match is None or match[2] != _server_package_suffix(choice)
    # A module built by DKMS takes precedence over a signed one.
    is_own = f"-{choice.branch}-server" in name and not name.startswith("nvidia-dkms-")
    return not is_own and _ANY_DRIVER_PACKAGE.fullmatch(name) is not None


def prebuilt_module_packages(
    family: Family, choice: DriverChoice, kernels: Kernels, installed: Mapping[PackageId, PackageState]
) -> tuple[str, ...]:
    """Return the packages of the wanted kernels' prebuilt modules, and the one that follows the kernel's meta package.

    None if DKMS builds the modules. For linux-image-virtual it is that of linux-image-generic: the kernels are the
    same, and there are no modules under the other name.
    """
    if not family.signs_own_modules:
        return ()
    metas = family.find_header_metapackages(kernels, installed)
    follows = dict.fromkeys(meta.removeprefix("linux-headers-").replace("virtual", "generic") for meta in metas)
    wanted = kernels.wanted
    return tuple(f"linux-modules-nvidia-{_server_package_suffix(choice)}-{which}" for which in (*wanted, *follows))


def debian_dkms_package(choice: DriverChoice) -> str:
    """Return the package with which DKMS builds the kernel modules."""
    return "nvidia-open-kernel-dkms" if choice.flavour == "open" else "nvidia-kernel-dkms"


def debian_packages(choice: DriverChoice, scope: DriverScope) -> tuple[str, ...]:
    """Return the packages of Debian's own driver."""
    modules = (debian_dkms_package(choice), "nvidia-persistenced")
    if scope == "full":
        return ("nvidia-driver", "nvidia-smi", *modules)
    media = ("libnvidia-encode1", "libnvcuvid1") if scope == "media" else ()
    return ("libcuda1", "nvidia-smi", *media, *modules)


def ubuntu_headless_package(choice: DriverChoice) -> str:
    """Return the package that needs the prebuilt kernel modules, and has the driver's version."""
    return f"nvidia-headless-no-dkms-{_server_package_suffix(choice)}"


def ubuntu_packages(choice: DriverChoice, scope: DriverScope) -> tuple[str, ...]:
    """Return the packages of Ubuntu's own driver, without the kernel modules."""
    base = (ubuntu_headless_package(choice), f"nvidia-utils-{choice.branch}-server")
    if scope == "full":
        return (f"nvidia-driver-{_server_package_suffix(choice)}", *base)
    media = ("encode", "decode") if scope == "media" else ()
    return (*base, *(f"libnvidia-{name}-{choice.branch}-server" for name in media))


def _server_package_suffix(choice: DriverChoice) -> str:
    """Return the ending of the names of Ubuntu's data-center packages of the kernel modules: ``580-server-open``."""
    return f"{choice.branch}-server{'-open' if choice.flavour == 'open' else ''}"
