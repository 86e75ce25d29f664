#!/bin/sh
# What articles on GPU nodes have people paste: everything is done again on every run. No step is left out to make it slow,
# and its purge is left out to make it fair: on a second run it would remove the driver that the first one installed.
set -eu
export DEBIAN_FRONTEND=noninteractive
fetch() { /usr/lib/apt/apt-helper download-file "$1" "$2" >/dev/null; }

apt-get install -y --no-install-recommends "linux-headers-$(uname -r)"
fetch "$CUDA/$RELEASE/x86_64/cuda-keyring_1.1-1_all.deb" /tmp/cuda-keyring.deb
dpkg -i /tmp/cuda-keyring.deb
apt-get update
apt-get install -y --no-install-recommends nvidia-driver-pinning-580
apt-get install -y --no-install-recommends nvidia-driver-cuda nvidia-kernel-dkms
printf 'blacklist nouveau\noptions nouveau modeset=0\n' > /etc/modprobe.d/blacklist-nouveau.conf
fetch "$TOOLKIT/gpgkey" /etc/apt/keyrings/toolkit.asc
echo "deb [signed-by=/etc/apt/keyrings/toolkit.asc] $TOOLKIT/stable/deb/\$(ARCH) /" > /etc/apt/sources.list.d/toolkit.list
apt-get update
apt-get install -y --no-install-recommends nvidia-container-toolkit
cp /etc/containerd/config.toml /etc/containerd/config.toml.bak
grep -q 'runtimes.nvidia\]' /etc/containerd/config.toml || cat >> /etc/containerd/config.toml <<'TOML'
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
    BinaryName = "/usr/bin/nvidia-container-runtime"
TOML
