"""The data of a distribution family, and what all families with apt share."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpunode.catalog.driver import DriverChoice
from gpunode.change import PackageState
from gpunode.facts.model import Kernels
from gpunode.fast_dataclass import dataclass
from gpunode.package_id import PackageId
from gpunode.recipe import DriverScope, DriverSource

TOOLKIT_PACKAGES = (
    PackageId("nvidia-container-toolkit"),
    PackageId("nvidia-container-toolkit-base"),
    PackageId("libnvidia-container-tools"),
    PackageId("libnvidia-container1"),
)
"""The packages of the container toolkit, always installed at the same version."""


@dataclass(frozen=True, slots=True)
class Family:
    """The names of one distribution family.

    Attributes:
        id: as in os-release.
        origins: prefixes of the Origin of archives whose own driver packages are never mixed with NVIDIA's.
        cuda_archive_origins: prefixes of the Origin of archives that have NVIDIA's CUDA toolkit under NVIDIA's names.
        driver_packages: the smallest set of package names that installs the driver of a scope.
        dkms_package: the one of them that builds the kernel modules, or has the version of prebuilt ones.
        headers_package: the headers of exactly this kernel.
        headers_metapackages: the packages that install the headers of later kernels, as the kernel's own meta packages
            install later kernels; empty if no such kernel package is installed.
        signs_own_modules: whether the kernel modules of its own driver are prebuilt and signed.
    """

    id: str
    name: str
    origins: tuple[str, ...]
    cuda_archive_origins: tuple[str, ...]
    driver_packages: Callable[[DriverChoice, DriverScope], tuple[str, ...]]
    dkms_package: Callable[[DriverChoice], str]
    headers_package: Callable[[str], PackageId]
    headers_metapackages: Callable[[str, Mapping[PackageId, PackageState]], tuple[str, ...]]
    signs_own_modules: bool

    def find_header_metapackages(
        self, kernels: Kernels, installed: Mapping[PackageId, PackageState]
    ) -> tuple[str, ...]:
        """Return the packages that install the headers of later kernels, of each flavour that runs or boots next."""
        found = (name for kernel in kernels.wanted for name in self.headers_metapackages(kernel, installed))
        return tuple(dict.fromkeys(found))

    def has_signed_modules(self, source: DriverSource) -> bool:
        """Return whether this source's kernel modules are prebuilt, and signed with a key that the firmware has."""
        return self.signs_own_modules and source == "distro"
