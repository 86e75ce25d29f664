#!/bin/sh
# Takes out of a built image what must be different on every node that starts from it, and what the build left behind.
# gpunode's journal, backups and log stay: by them a node can say what was done to it, and take it back.
set -eu

: "${1:?usage: generalise.sh DIR, where DIR is the mounted image}"
root=$(readlink -f "$1") || root=$1
[ -d "$root/etc" ] || { echo "generalise.sh: $root holds no system: there is no $root/etc" >&2; exit 2; }
[ "$root" != / ] || { echo "generalise.sh: / is this machine, not an image" >&2; exit 2; }

# An absolute link in the image, such as /var/tmp -> /tmp, leads to this machine from here: nothing behind one is touched.
is_inside() {
    [ -d "$root/$1" ] || return 1
    case $(readlink -f "$root/$1") in
        "$root"/*) ;;
        *) echo "generalise.sh: left alone $1, whose link leads out of the image" >&2; return 1 ;;
    esac
}

# empty FOLDER [NAME]: removes all that it holds, or what has that name; it fails at what is mounted there.
empty() {
    if is_inside "$1"; then find "$root/$1/" -xdev -mindepth 1 ${2:+-maxdepth 1 -name "$2"} -delete; fi
}

is_empty_folder() { [ -d "$1" ] && [ -z "$(ls -A "$1")" ]; }

# Who this machine is: systemd makes a machine id at first boot where the file is empty, cloud-init makes host keys.
is_inside etc || exit 2
rm -f "$root/etc/machine-id"
: >"$root/etc/machine-id"
empty var/lib/dbus machine-id
empty etc/ssh 'ssh_host_*_key'
empty etc/ssh 'ssh_host_*_key.pub'
empty var/lib/systemd random-seed
empty var/lib/systemd credential.secret
# DKMS signs modules with this key. One private key on all nodes would open Secure Boot of all once it leaks; the
# modules that are built keep their signature, and DKMS makes a new key for the next kernel's.
empty var/lib/dkms mok.key
empty var/lib/gpunode/module-key
empty var/lib/shim-signed/mok MOK.priv

# What the build did: its log, its addresses, its downloads.
for folder in var/log/journal var/log/apt var/lib/cloud var/lib/dhcp var/lib/apt/lists var/cache/gpunode tmp var/tmp; do
    empty "$folder"
done
empty var/lib/NetworkManager '*.lease'
empty var/cache/apt/archives '*.deb'
empty var/log dpkg.log
empty root .bash_history

# What may be meant to go out with the image, and often is not: said, not deleted.
for secret in etc/apt/auth.conf.d etc/apt/auth.conf root/.netrc root/.docker/config.json root/.ssh etc/iscsi/initiatorname.iscsi \
    etc/nvme/hostid etc/NetworkManager/system-connections var/log/cloud-init.log; do
    # An absolute link would be looked up on this machine.
    [ ! -e "$root/$secret" ] || [ -L "$root/$secret" ] || is_empty_folder "$root/$secret" ||
        echo "generalise.sh: stays in the image: /$secret" >&2
done
