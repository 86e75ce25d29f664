"""Set a GPU node up with pyinfra, in eight operations."""

from __future__ import annotations

import os
from pathlib import Path

from pyinfra.operations import apt, files

apt.packages(name="kernel headers", packages=[os.environ["HEADERS"]], no_recommends=True)
apt.deb(name="driver repository", src="/tmp/cuda-keyring.deb")
files.put(name="toolkit repository", src="/tmp/toolkit.list", dest="/etc/apt/sources.list.d/toolkit.list", mode="644")
apt.packages(name="driver branch", packages=["nvidia-driver-pinning-580"])
apt.packages(name="driver", packages=["nvidia-driver-cuda", "nvidia-kernel-dkms"], no_recommends=True)
files.put(name="nouveau", src="/tmp/blacklist", dest="/etc/modprobe.d/blacklist-nouveau.conf", mode="644")
apt.packages(name="toolkit", packages=["nvidia-container-toolkit"], no_recommends=True)
block = Path("/tmp/nvidia.toml").read_text().splitlines()
files.block(name="containerd", path="/etc/containerd/config.toml", content=block)
