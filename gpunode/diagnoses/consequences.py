"""Group the consequences of many causes, for ``Rule.explains``.

Each group lists findings that are consequences if such a cause is found as well. Groups build on one another and never
contain earlier causes, so the graph over all rules has no cycles.
"""

from __future__ import annotations

from typing import Final

UNHEALTHY_IN_CLUSTER: Final = frozenset({"device-plugin-marked-unhealthy", "gpu-labels-without-capacity"})
"""What Kubernetes shows of a GPU that fails while NVML goes on: the device plugin runs, and takes that GPU away."""

NO_CLUSTER_GPU: Final = UNHEALTHY_IN_CLUSTER | frozenset(
    {
        "device-plugin-library-not-found",
        "device-plugin-not-ready-after-reboot",
        "kubelet-restart-admission-bug",
        "kubelet-stale-device-allocation",
        "nvidia-runtime-not-default-no-runtimeclass",
    }
)
"""What Kubernetes shows where the device plugin cannot see any GPU, or no longer: NVML does not start for it."""

DRIVER_LIBRARY_MISMATCH_CAUSES: Final = frozenset(
    {
        "driver-library-mismatch-reboot-pending",
        "driver-library-mismatch-partial-upgrade",
        "driver-library-mismatch-unattended-upgrade",
        "driver-library-mismatch-mixed-installs",
    }
)
"""The ways in which the loaded module and the libraries of the node come to be of different versions."""

NO_CDI: Final = frozenset({"cdi-spec-missing", "cdi-management-spec-missing", "cdi-spec-stale"})
"""What follows where a CDI specification could not be made: nvidia-ctk asks NVML for what belongs into it."""

NO_NVML: Final = (
    NO_CLUSTER_GPU
    | NO_CDI
    | {
        "dev-char-symlinks-missing",
        "gpudirect-rdma-disabled",
        "nvidia-fs-not-loaded",
        "nvidia-uvm-not-loaded",
        "nvidia-uvm-wedged",
        "peermem-load-failed",
        "persistenced-start-race",
    }
)
"""What follows where NVML and CUDA cannot start on the node, for whatever reason."""

DRIVER_NOT_INITIALIZED: Final = NO_NVML | {
    *("device-node-permissions", "no-device-nodes-driver-not-initialised", "gpu-missing-from-inventory")
}
"""What follows where the module is loaded and no GPU was initialised: it was refused, is not known, or is in use."""

NO_DRIVER: Final = DRIVER_NOT_INITIALIZED | {"driver-module-not-loaded"}
"""What follows where NVIDIA's module is not in the running kernel, or went again since no GPU was left for it."""

GPU_NOT_STARTED: Final = NO_DRIVER | {"gsp-init-failed-platform", "gpu-fallen-off-bus"}
"""What follows where a GPU is on the bus and the driver cannot start it: it sleeps, or its memory has no address."""

NOTHING_INSTALLABLE: Final = NO_DRIVER | {"driver-not-installed", "driver-userspace-incomplete"}
"""What follows where the package manager installs nothing: the driver is not there, or not all of it."""

NOT_BUILT: Final = NO_DRIVER | {
    "dpkg-unconfigured-packages",
    "driver-library-mismatch-partial-upgrade",
    "module-built-for-other-kernel",
    "nouveau-bound",
}
"""What follows where the module could not be built for the running kernel.

The packages that should have built it stay unconfigured, what stands on disk is for another kernel or of another
version, and nouveau, or a fallback that loads it, takes the GPU.
"""

MODULE_NOT_ACCEPTED: Final = NO_DRIVER | {"nouveau-bound"}
"""What follows where a module was built and the kernel does not take it: its signature, its index, its version."""

NOT_INSTALLED: Final = NOT_BUILT | {"driver-userspace-incomplete", "fabric-manager-not-installed"}
"""What follows where no driver is installed at all: nouveau owning the GPU is then as it should be."""

LIBRARY_MISMATCH: Final = NO_NVML | {"gsp-firmware-missing"}
"""What follows where the loaded module and the libraries are of different versions, whoever brought them apart."""

PROGRAM_FAULTS: Final = frozenset(
    {"xid-109-ctx-switch-timeout", "xid-13-graphics-exception", "xid-31-driver-regression", "xid-31-mmu-fault"}
)
"""What programs are told of when the GPU below them, or a peer that they reach over a link, goes wrong."""

TRANSFERS_LOST: Final = frozenset(
    {
        *("xid-31-mmu-fault", "xid-13-graphics-exception", "xid-109-ctx-switch-timeout", "xid-154-recovery-action"),
        *("xid-62-pmu-halt", "gsp-rpc-timeout", "xid-61-pmu-breakpoint"),
    }
)
"""What a GPU reports of its programs, its firmware and its controllers where the bus stops or loses what is sent."""

GPU_LOST: Final = DRIVER_NOT_INITIALIZED | PROGRAM_FAULTS | {"xid-154-recovery-action"}
"""What follows where a GPU that worked stops answering: a fault of its own, of its slot, of its firmware."""

NO_RUNTIME: Final = NO_CLUSTER_GPU
"""What follows where containers are started without NVIDIA's runtime: the device plugin's own container is, too."""

NO_TOOLKIT: Final = (
    NO_RUNTIME
    | NO_CDI
    | {
        "containerd-nvidia-runtime-missing",
        "docker-cdi-feature-disabled",
        "docker-not-restarted",
        "nvidia-runtime-not-default-no-runtimeclass",
        "nvidia-runtime-not-registered",
    }
)
"""What follows where the container toolkit is not installed."""
