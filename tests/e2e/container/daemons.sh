#!/bin/bash
# Runs a command beside a real containerd and dockerd, in mount, pid and network namespaces of their own.
# daemons.sh BIN DATA COMMAND…: BIN holds the runtimes and the stand-ins, and lies over /usr/local/bin in there.
set -e
BIN=$1 DATA=$2; shift 2
mount --make-rprivate /
mount -t overlay -o "lowerdir=$BIN:/usr/local/bin" overlay /usr/local/bin
mount -t tmpfs tmpfs /run
ip link set lo up
containerd --root "$DATA/containerd" --state /run/containerd/state --address /run/containerd/containerd.sock >"$DATA/containerd.log" 2>&1 &
for _ in $(seq 300); do [ -S /run/containerd/containerd.sock ] && break; sleep .1; done
dockerd --containerd /run/containerd/containerd.sock --data-root "$DATA/docker" --exec-root /run/docker --pidfile /run/docker.pid \
    --iptables=false --bridge=none --add-runtime nvidia=/usr/local/bin/nvidia-container-runtime >"$DATA/docker.log" 2>&1 &
for _ in $(seq 300); do docker version >/dev/null 2>&1 && break; sleep .1; done
status=0
"$@" || status=$?
kill %2 && wait %2 || true
kill %1 && wait %1 || true
exit $status
