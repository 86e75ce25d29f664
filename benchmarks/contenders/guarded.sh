#!/bin/sh
# The same by somebody careful: dpkg is asked before apt, files are compared before they are written.
set -eu
export DEBIAN_FRONTEND=noninteractive
fetch() { /usr/lib/apt/apt-helper download-file "$1" "$2" >/dev/null; }
missing() { for p; do dpkg-query -W -f='${db:Status-Abbrev}' "$p" 2>/dev/null | grep -q '^ii' || return 0; done; return 1; }
holds() { [ -f "$1" ] && [ "$(cat "$1")" = "$2" ]; }

updated=
headers="linux-headers-$(uname -r)"
missing "$headers" && apt-get install -y --no-install-recommends "$headers"
if missing cuda-keyring; then
  fetch "$CUDA/$RELEASE/x86_64/cuda-keyring_1.1-1_all.deb" /tmp/cuda-keyring.deb
  dpkg -i /tmp/cuda-keyring.deb
  updated=no
fi
line="deb [signed-by=/etc/apt/keyrings/toolkit.asc] $TOOLKIT/stable/deb/\$(ARCH) /"
if ! holds /etc/apt/sources.list.d/toolkit.list "$line"; then
  fetch "$TOOLKIT/gpgkey" /etc/apt/keyrings/toolkit.asc
  echo "$line" > /etc/apt/sources.list.d/toolkit.list
  updated=no
fi
[ -z "$updated" ] || apt-get update
missing nvidia-driver-pinning-580 && apt-get install -y --no-install-recommends nvidia-driver-pinning-580
missing nvidia-driver-cuda nvidia-kernel-dkms && apt-get install -y --no-install-recommends nvidia-driver-cuda nvidia-kernel-dkms
missing nvidia-container-toolkit && apt-get install -y --no-install-recommends nvidia-container-toolkit
blacklist='blacklist nouveau
options nouveau modeset=0'
holds /etc/modprobe.d/blacklist-nouveau.conf "$blacklist" || echo "$blacklist" > /etc/modprobe.d/blacklist-nouveau.conf
if ! grep -q 'runtimes.nvidia\]' /etc/containerd/config.toml; then
  cp -n /etc/containerd/config.toml /etc/containerd/config.toml.bak
  cat >> /etc/containerd/config.toml <<'TOML'
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
    BinaryName = "/usr/bin/nvidia-container-runtime"
TOML
fi
exit 0
