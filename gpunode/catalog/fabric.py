"""NVSwitch fabrics, which join the GPUs of a machine or a rack, and the packages that they need beside the driver.

Sources: NVIDIA's Fabric Manager and IMEX user guides, driver installation guide 620, and the installation scripts of
NVIDIA/gpu-driver-container 06a208c and awslabs/amazon-eks-ami 81fec2e8.
"""

from __future__ import annotations

from itertools import chain
from typing import Final, Literal, TypeAlias

from gpunode.fast_dataclass import dataclass
from gpunode.recipe import DriverSource

FabricKind: TypeAlias = Literal["nvswitch", "nvlink5", "rack"]
"""Switches on the PCI bus (A100, H100, H200); behind a ConnectX bridge (B200, B300); in other trays (GB200, GB300)."""

MANAGER_UNIT: Final = "nvidia-fabricmanager.service"
IMEX_UNIT: Final = "nvidia-imex.service"
IMEX_NODES_FILE: Final = "/etc/nvidia-imex/nodes_config.cfg"
# DGX-2's switches, which the drivers in NVIDIA's repositories do not bind.
UNSUPPORTED_SWITCH_IDS: Final = frozenset({"1ac2", "1ae8"})
UNSUPPORTED_NOTE: Final = (
    "the NVSwitches of DGX-2 and HGX-2 are of a generation that current drivers do not bind: no fabric manager is "
    "installed for them"
)
# The module through which the fabric manager reaches switches behind a ConnectX bridge.
BRIDGE_MODULE: Final = "ib_umad"
# NVIDIA dropped the branch from these names at 580, on all distributions.
_FIRST_BRANCH_WITHOUT_PACKAGE_SUFFIX: Final = 580
_VERSION_LOCKED: Final[dict[FabricKind, tuple[str, ...]]] = {
    "nvswitch": ("nvidia-fabricmanager", "libnvidia-nscq"),
    "nvlink5": ("nvidia-fabricmanager", "libnvsdm"),
    "rack": ("nvidia-imex",),
}
_UNLOCKED_PACKAGES: Final[dict[FabricKind, tuple[str, ...]]] = {
    "nvswitch": (),
    "nvlink5": ("nvlsm", "infiniband-diags"),
    "rack": (),
}
# NVIDIA builds no libnvsdm for arm64 (gpu-driver-container, ubuntu24.04/install.sh).
_AMD64_ONLY_PACKAGES: Final = frozenset({"libnvsdm"})


@dataclass(frozen=True, slots=True)
class FabricPackages:
    """The packages of a fabric.

    Attributes:
        version_locked: those that work only at the driver's exact version.
        unlocked: those with their own versions.
    """

    version_locked: tuple[str, ...]
    unlocked: tuple[str, ...]


def find_packages(kind: FabricKind, branch: int, architecture: str, source: DriverSource = "nvidia") -> FabricPackages:
    """Return the packages of a fabric for a driver branch; ``architecture`` in Debian's terms.

    Ubuntu's own archive keeps the branch in their names (nvidia-fabricmanager-615, packages.ubuntu.com).
    """
    suffix = "" if branch >= _FIRST_BRANCH_WITHOUT_PACKAGE_SUFFIX and source == "nvidia" else f"-{branch}"
    locked = (
        f"{name}{suffix}"
        for name in _VERSION_LOCKED[kind]
        if architecture == "amd64" or name not in _AMD64_ONLY_PACKAGES
    )
    return FabricPackages(tuple(locked), _UNLOCKED_PACKAGES[kind])


def package_stem(name: str) -> str:
    """Return a fabric's package without the branch at its end."""
    stem, _, branch = name.rpartition("-")
    return stem if stem and branch.isdigit() else name


def is_fabric_package(name: str) -> bool:
    """Return whether it is one of ``find_packages``, for any fabric and branch."""
    return package_stem(name) in {*chain(*_VERSION_LOCKED.values(), *_UNLOCKED_PACKAGES.values())}


def is_version_locked(name: str) -> bool:
    """Return whether a package works only at the driver's exact version."""
    return any(name == one or name.startswith(f"{one}-") for names in _VERSION_LOCKED.values() for one in names)
