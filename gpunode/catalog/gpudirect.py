"""Needs of GPUDirect RDMA, GPUDirect Storage (GDS) and GDRCopy: kernel, driver modules, packages, kernel module."""

from __future__ import annotations

import re
from typing import Final

from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass

_PACKAGE_NOT_FOUND: Final = Pattern(
    r"(?:Unable to locate package|Package) ['‘]?([a-z0-9][a-z0-9+.-]+)['’]?(?: has no installation candidate|\s*$)",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class GpuDirectFeature:
    """A way to reach GPU memory directly.

    Attributes:
        request: the line of the recipe that requests it.
        oldest_kernel: the oldest kernel with which it works.
        needs_open_modules: whether it needs the driver's open kernel modules, which exist for Turing and later GPUs.
        needs_ofed: whether it needs the RDMA stack of MLNX_OFED or DOCA-OFED, or an Ubuntu kernel with the same.
        packages: what apt installs; DKMS builds the module from the installed driver's source.
        module: what must be loaded.
        unit: the service that makes the module's device node.
        source: where the packages come from, if no repository has them.
        instead: what to do on a node that does not support it.
    """

    name: str
    request: str
    instead: str
    oldest_kernel: tuple[int, int] = (0, 0)
    needs_open_modules: bool = False
    needs_ofed: bool = False
    packages: tuple[str, ...] = ()
    module: str = ""
    unit: str = ""
    source: str = ""


# NVIDIA GPU Operator, "GPUDirect RDMA and GPUDirect Storage" (2026-09): the kernel's own network driver is enough.
DMA_BUF_FEATURE: Final = GpuDirectFeature(
    name="GPUDirect RDMA by DMA-BUF",
    request='gpudirect.rdma = "dma-buf"',
    instead='set gpudirect.rdma = "peermem", which needs MLNX_OFED or DOCA-OFED, or leave it out',
    oldest_kernel=(5, 12),
    needs_open_modules=True,
)
# The module is part of every driver since 470, and registers with functions of these RDMA stacks, or of a patch to the
# kernel: https://docs.nvidia.com/cuda/gpudirect-rdma/, "Using nvidia-peermem"; chapter 42 of the driver's README.
PEERMEM_FEATURE: Final = GpuDirectFeature(
    name="GPUDirect RDMA by nvidia-peermem",
    request='gpudirect.rdma = "peermem"',
    instead='set gpudirect.rdma = "dma-buf", which needs no RDMA stack of its own',
    needs_ofed=True,
    module="nvidia_peermem",
)
# nvidia-fs 2.17.5 and later work only with the open modules (its ChangeLog). The CUDA repositories have the package.
GDS_FEATURE: Final = GpuDirectFeature(
    name="GPUDirect Storage",
    request="gpudirect.gds = true",
    instead="leave out gpudirect.gds: cuFile then works in its compatible mode, through the host's memory",
    needs_open_modules=True,
    packages=("nvidia-fs-dkms",),
    module="nvidia_fs",
    source="it is in NVIDIA's CUDA repository; let the recipe install the driver from there, or add that repository",
)
# The package's init script makes /dev/gdrdrv, the module makes no device node (gdrdrv.c 2.6).
GDRCOPY_FEATURE: Final = GpuDirectFeature(
    name="GDRCopy",
    request="gpudirect.gdrcopy = true",
    instead="leave out gpudirect.gdrcopy",
    packages=("gdrdrv-dkms", "libgdrapi"),
    module="gdrdrv",
    unit="gdrdrv.service",
    source="NVIDIA publishes it as files, not in a repository. Take gdrdrv-dkms and libgdrapi for this release from\n"
    "https://developer.download.nvidia.com/compute/redist/gdrcopy/ and install them (apt-get install ./*.deb), or\n"
    "put them into a repository of your own; then run the same command again",
)
FEATURES: Final = (DMA_BUF_FEATURE, PEERMEM_FEATURE, GDS_FEATURE, GDRCOPY_FEATURE)


def packages_not_found(problem: str) -> frozenset[str]:
    """Return the packages that no source has, according to apt."""
    return frozenset(_PACKAGE_NOT_FOUND.findall(problem))


def missing_source_hint(problem: str) -> str:
    """Return what to do when apt says that no source has a package of a feature; empty for other problems."""
    missing = packages_not_found(problem)
    features = (feature for feature in FEATURES if missing.intersection(feature.packages))
    return "\n".join(f"no source has {feature.packages[0]}: {feature.source}" for feature in features)
