"""Ubuntu.

Sources: NVIDIA's driver installation guide, Ubuntu page (compute-only installation; "starting with branch 590, branch
designation was removed"); for 580 the names and versions in NVIDIA's ubuntu2204 repository, from public lock files:
nvidia-utils-580 has nvidia-smi, nvidia-persistenced is a separate package.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpunode.catalog.driver import DriverChoice
from gpunode.change import PackageState
from gpunode.distros.family import Family
from gpunode.facts.patterns import Pattern
from gpunode.package_id import PackageId
from gpunode.packages.deb.version import version_order_key
from gpunode.recipe import DriverScope

# In older branches the daemon is in nvidia-compute-utils-<branch>, as it still is in Ubuntu's own archive.
_FIRST_BRANCH_WITH_PERSISTENCED = 580
_KERNEL_IMAGE_PREFIX = "linux-image-"
# The series of a meta package: none, a release's newer kernels, a cloud's long-term ones, or a pinned kernel version.
_META_PACKAGE_SERIES_SUFFIX = Pattern(r"|(-hwe|-lts|-oem)?(-\d+\.\d+[a-d]?)?(-edge)?")


def dkms_package(choice: DriverChoice) -> str:
    """Return the package that builds the kernel modules; for Ubuntu's own driver, one that needs prebuilt ones."""
    if choice.source == "distro":
        from gpunode.distros import distro_driver  # loaded on use: few recipes take it

        return distro_driver.ubuntu_headless_package(choice)
    return f"{_with_branch_suffix('nvidia-dkms', choice)}{'-open' if choice.flavour == 'open' else ''}"


def driver_packages(choice: DriverChoice, scope: DriverScope) -> tuple[str, ...]:
    """Return the packages to request from apt; ``full`` is a meta package, from 615 on never cuda-drivers."""
    if choice.source == "distro":
        from gpunode.distros import distro_driver

        return distro_driver.ubuntu_packages(choice, scope)
    modules = (dkms_package(choice), _persistence_package(choice))
    if scope == "full":
        return (_with_branch_suffix("nvidia-open" if choice.flavour == "open" else "cuda-drivers", choice), *modules)
    media = ("libnvidia-encode", "libnvidia-decode") if scope == "media" else ()
    libraries = tuple(_with_branch_suffix(name, choice) for name in ("libnvidia-compute", *media))
    smi = (_with_branch_suffix("nvidia-utils", choice),) if choice.suffixed_names else ()
    return (*libraries, *smi, *modules)


def _persistence_package(choice: DriverChoice) -> str:
    if choice.branch >= _FIRST_BRANCH_WITH_PERSISTENCED:
        return "nvidia-persistenced"
    return _with_branch_suffix("nvidia-compute-utils", choice)


def _with_branch_suffix(name: str, choice: DriverChoice) -> str:
    return f"{name}-{choice.branch}" if choice.suffixed_names else name


def headers_package(kernel: str) -> PackageId:
    """Return the headers of exactly this kernel."""
    return PackageId(f"linux-headers-{kernel}")


def headers_metapackages(kernel: str, installed: Mapping[PackageId, PackageState]) -> tuple[str, ...]:
    """Return the package that follows the kernel's own meta package (generic, generic-hwe-24.04, virtual, aws).

    Kernels of several meta packages share a name (``-generic``), so the one with the kernel's version is chosen; if
    none has it, as after an upgrade that waits for its reboot, the newest.
    """
    flavour, release = _kernel_flavour(kernel), kernel.partition("-")[0]
    metas = {
        name.removeprefix(_KERNEL_IMAGE_PREFIX): state.version
        for name, state in ((package.name, state) for package, state in installed.items())
        if name.startswith(_KERNEL_IMAGE_PREFIX)
        and not state.config_files_only
        and _meta_brings_flavour(name.removeprefix(_KERNEL_IMAGE_PREFIX), flavour)
    }
    ranked = [
        (version.startswith((f"{release}.", f"{release}-")), version_order_key(version), meta)
        for meta, version in metas.items()
    ]
    return (f"linux-headers-{max(ranked)[2]}",) if ranked else ()


def _kernel_flavour(kernel: str) -> str:
    """Return ``generic-64k`` for 6.8.0-51-generic-64k."""
    return "-".join(kernel.split("-")[2:])


def _meta_brings_flavour(meta: str, flavour: str) -> bool:
    """Return whether the meta package ``linux-image-<meta>`` installs kernels of this flavour."""
    for stem in (flavour, "virtual") if flavour == "generic" else (flavour,):
        rest = meta.removeprefix(stem)
        if stem and rest != meta and _META_PACKAGE_SERIES_SUFFIX.fullmatch(rest):
            return True
    return False


UBUNTU = Family(
    id="ubuntu",
    name="Ubuntu",
    origins=("Ubuntu", "LP-PPA-graphics-drivers"),
    # multiverse, from 26.10 on: cuda-toolkit-13-3 13.3.1-0ubuntu1 (packages.ubuntu.com).
    cuda_archive_origins=("Ubuntu",),
    driver_packages=driver_packages,
    dkms_package=dkms_package,
    headers_package=headers_package,
    headers_metapackages=headers_metapackages,
    signs_own_modules=True,
)
