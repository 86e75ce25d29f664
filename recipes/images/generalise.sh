#!/bin/sh
# Takes out of a built image what must be different on every node that starts from it, and what the build left behind.
# gpunode's journal, backups and log stay: by them a node can say what was done to it, and take it back.
set -eu

root=${1:?usage: generalise.sh DIR, where DIR is the mounted image}
[ -d "$root/etc" ] || { echo "generalise.sh: $root holds no system: there is no $root/etc" >&2; exit 2; }
[ "$(readlink -f "$root")" != / ] || { echo "generalise.sh: / is this machine, not an image" >&2; exit 2; }
cd "$root"

# Who this machine is: systemd makes a machine id at first boot where the file is empty, cloud-init makes host keys.
: >etc/machine-id
rm -f var/lib/dbus/machine-id etc/ssh/ssh_host_*_key etc/ssh/ssh_host_*_key.pub
rm -f var/lib/systemd/random-seed var/lib/systemd/credential.secret
# DKMS signs modules with this key. One private key on all nodes would open Secure Boot of all once it leaks; the
# modules that are built keep their signature, and DKMS makes a new key for the next kernel's.
rm -f var/lib/dkms/mok.key var/lib/shim-signed/mok/MOK.priv

# What the build did: its log, its addresses, its downloads.
rm -rf var/log/journal/* var/lib/cloud/* var/lib/dhcp/* var/lib/NetworkManager/*.lease
rm -rf var/cache/apt/archives/*.deb var/lib/apt/lists/* var/cache/gpunode/* tmp/* var/tmp/*
rm -f root/.bash_history var/log/apt/* var/log/dpkg.log
