#!/bin/sh
# Runs as root in packer's virtual machine: sets up the system on its disk as an image, since this machine has no GPU.
set -eu

cd /tmp
sha256sum --check --ignore-missing SHA256SUMS
install -m 755 gpunode.pyz /usr/local/bin/gpunode
install -D -m 644 node.toml /etc/gpunode/node.toml
cloud-init status --wait || true

# The disk alone, without /proc, /run and what else runs here.
mkdir -p /mnt/image
mount --bind / /mnt/image
trap 'umount /mnt/image' EXIT
gpunode setup /etc/gpunode/node.toml --root /mnt/image --gpu "$GPUS" --yes
# It would write the seed again when this machine is switched off.
systemctl stop systemd-random-seed.service || true
sh generalise.sh /mnt/image
# packer's key must not open every node.
rm -f /root/.ssh/authorized_keys /home/*/.ssh/authorized_keys
