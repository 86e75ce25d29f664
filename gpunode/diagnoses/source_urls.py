"""List the URLs of the documentation that several rule families cite."""

from __future__ import annotations

from typing import Final

CUDA_COMPATIBILITY: Final = "https://docs.nvidia.com/deploy/cuda-compatibility/"
CUDA_DRIVER_API: Final = "https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html"
DEVICE_PLUGIN: Final = "https://github.com/NVIDIA/k8s-device-plugin"
DPKG: Final = "https://manpages.debian.org/stable/dpkg/dpkg.1.en.html"
DRIVER_GUIDE: Final = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/"
DRIVER_README: Final = "https://download.nvidia.com/XFree86/Linux-x86_64/580.95.05/README/"
NVML_RETURNS: Final = "https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html"
OPEN_MODULES: Final = "https://github.com/NVIDIA/open-gpu-kernel-modules"
TOOLKIT_GUIDE: Final = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html"
XID_CATALOG: Final = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
