#!/bin/bash
# Runs a script as in a machine that has podman, in namespaces of its own: podman-node.sh ROOT PROJECT SITE SCRIPT
set -e
root=$1 project=$2 site=$3 script=$4
mount --make-rprivate /
ip link set lo up
mount --bind "$root" "$root"
mkdir -p "$root/opt/project" "$root/opt/site"
mount -o bind,ro "$project" "$root/opt/project"
mount -o bind,ro "$site" "$root/opt/site"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 none "$root/sys/fs/cgroup"
for place in dev tmp run; do mount -t tmpfs -o mode=755 tmpfs "$root/$place"; done
for node in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0 nvidia0:195:0 nvidiactl:195:255; do
  IFS=: read -r name major minor <<<"$node"
  mknod -m 666 "$root/dev/$name" c "$major" "$minor"
done
ln -s /proc/self/fd "$root/dev/fd"
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
# The traces of a loaded driver.
mount -t tmpfs tmpfs "$root/proc/driver"
mkdir -p "$root/proc/driver/nvidia/gpus/0000:01:00.0"
echo 'NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build' >"$root/proc/driver/nvidia/version"
printf 'GPU UUID: \t GPU-????????-????-????-????-????????????\nDevice Minor: \t 0\n' \
  >"$root/proc/driver/nvidia/gpus/0000:01:00.0/information"
exec chroot "$root" /bin/sh -c "$script"
