"""Ubuntu.

Sources: NVIDIA's driver installation guide, Ubuntu page (compute-only installation; "starting with branch 590, branch
designation was removed"); for 580 the names and versions in NVIDIA's ubuntu2204 repository as public lock files hold
them: nvidia-utils-580 brings nvidia-smi, nvidia-persistenced is a package of its own. For Ubuntu's own driver
packages.ubuntu.com (nvidia-graphics-drivers-580-server, linux-restricted-modules): nvidia-headless-no-dkms-580-server
needs the libraries and the persistence daemon, nvidia-utils-580-server brings nvidia-smi; that nvidia-driver-580-server
is content with prebuilt modules was not seen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gpunode.catalog.driver import Choice
from gpunode.change import PackageState
from gpunode.distros.family import Family
from gpunode.package_id import PackageId
from gpunode.packages.deb.version import DpkgVersion
from gpunode.recipe import Scope

# Before, the daemon was in nvidia-compute-utils-<branch>, as it still is in Ubuntu's own archive.
_PERSISTENCED_OF_ITS_OWN_FROM = 580
_IMAGE = "linux-image-"
# The series of a meta package: none, a release's newer kernels, a cloud's long-term ones, or a pinned kernel version.
_SERIES = re.compile(r"|(-hwe|-lts|-oem)?(-\d+\.\d+[a-d]?)?(-edge)?")


def dkms_package(choice: Choice) -> str:
    """The package that builds the kernel modules; of Ubuntu's own driver the one that needs prebuilt ones."""
    if choice.source == "distro":
        return f"nvidia-headless-no-dkms-{_server(choice)}"
    return f"{_package_for('nvidia-dkms', choice)}{'-open' if choice.flavour == 'open' else ''}"


def _server(choice: Choice) -> str:
    """Return how the names of Ubuntu's data-center packages of the kernel modules end."""
    return f"{choice.branch}-server{'-open' if choice.flavour == 'open' else ''}"


def driver_packages(choice: Choice, scope: Scope) -> tuple[str, ...]:
    """Return the packages to ask apt for; ``full`` is a meta package, from 615 on never cuda-drivers."""
    if choice.source == "distro":
        return _own_packages(choice, scope)
    modules = (dkms_package(choice), _persistence_package(choice))
    if scope == "full":
        return (_package_for("nvidia-open" if choice.flavour == "open" else "cuda-drivers", choice), *modules)
    media = ("libnvidia-encode", "libnvidia-decode") if scope == "media" else ()
    libraries = tuple(_package_for(name, choice) for name in ("libnvidia-compute", *media))
    smi = (_package_for("nvidia-utils", choice),) if choice.suffixed_names else ()
    return (*libraries, *smi, *modules)


def _own_packages(choice: Choice, scope: Scope) -> tuple[str, ...]:
    """Return the packages of Ubuntu's own driver, but for the kernel modules."""
    base = (dkms_package(choice), f"nvidia-utils-{choice.branch}-server")
    if scope == "full":
        return (f"nvidia-driver-{_server(choice)}", *base)
    media = ("encode", "decode") if scope == "media" else ()
    return (*base, *(f"libnvidia-{name}-{choice.branch}-server" for name in media))


def module_packages(
    choice: Choice, kernels: Sequence[str], installed: Mapping[PackageId, PackageState]
) -> tuple[str, ...]:
    """Return the packages of the prebuilt modules for ``kernels``, and the one that follows the kernel's own."""
    if choice.source != "distro":
        return ()
    meta = headers_meta(kernels[-1], installed) if kernels else None
    follows = [meta.removeprefix("linux-headers-")] if meta else []
    return tuple(f"linux-modules-nvidia-{_server(choice)}-{which}" for which in (*kernels, *follows))


# NVIDIA's own packages, and Ubuntu's for desktops: nvidia-dkms-580-open, libnvidia-compute-595, nvidia-dkms-open.
_OF_A_DRIVER = re.compile(r"cuda-drivers.*|(lib)?nvidia-(?!modprobe|settings|xconfig|fabricmanager|nscq).*")
_PREBUILT = re.compile(r"linux-(modules|objects)-nvidia-(\d+-server(-open)?)-(?!open-).*")


def is_foreign(choice: Choice, name: str) -> bool:
    """Return whether a package is none of Ubuntu's data-center driver where that is the chosen one."""
    if choice.source != "distro":
        return False
    if name.startswith(("linux-modules-", "linux-objects-")):
        found = _PREBUILT.fullmatch(name)
        return found is None or found[2] != _server(choice)
    return f"-{choice.branch}-server" not in name and _OF_A_DRIVER.fullmatch(name) is not None


def _persistence_package(choice: Choice) -> str:
    if choice.branch >= _PERSISTENCED_OF_ITS_OWN_FROM:
        return "nvidia-persistenced"
    return _package_for("nvidia-compute-utils", choice)


def _package_for(name: str, choice: Choice) -> str:
    return f"{name}-{choice.branch}" if choice.suffixed_names else name


def headers(kernel: str) -> PackageId:
    """The headers of exactly this kernel."""
    return PackageId(f"linux-headers-{kernel}")


def headers_meta(kernel: str, installed: Mapping[PackageId, PackageState]) -> str | None:
    """The package that follows the kernel's own meta package (generic, generic-hwe-24.04, virtual, aws).

    Kernels of several meta packages share a name (``-generic``), so the one whose version is that of the kernel is
    taken; where none is, as after an upgrade that waits for its reboot, the newest.
    """
    flavour, release = _flavour(kernel), kernel.partition("-")[0]
    metas = {
        name.removeprefix(_IMAGE): state.version
        for name, state in ((package.name, state) for package, state in installed.items())
        if name.startswith(_IMAGE) and not state.config_files_only and _follows(name.removeprefix(_IMAGE), flavour)
    }
    ranked = [
        (version.startswith((f"{release}.", f"{release}-")), DpkgVersion(version), meta)
        for meta, version in metas.items()
    ]
    return f"linux-headers-{max(ranked)[2]}" if ranked else None


def _flavour(kernel: str) -> str:
    """``generic-64k`` of 6.8.0-51-generic-64k."""
    return "-".join(kernel.split("-")[2:])


def _follows(meta: str, flavour: str) -> bool:
    """Return whether the meta package ``linux-image-<meta>`` brings kernels of this flavour."""
    for stem in (flavour, "virtual") if flavour == "generic" else (flavour,):
        rest = meta.removeprefix(stem)
        if stem and rest != meta and _SERIES.fullmatch(rest):
            return True
    return False


UBUNTU = Family(
    id="ubuntu",
    name="Ubuntu",
    origins=("Ubuntu", "LP-PPA-graphics-drivers"),
    foreign_archives=("l=NVIDIA CUDA", "o=LP-PPA-graphics-drivers"),
    # multiverse, from 26.10 on: cuda-toolkit-13-3 13.3.1-0ubuntu1 (packages.ubuntu.com).
    cuda_origins=("Ubuntu",),
    driver_packages=driver_packages,
    dkms_package=dkms_package,
    headers=headers,
    headers_meta=headers_meta,
    module_packages=module_packages,
    is_foreign=is_foreign,
    signs_modules=True,
)
