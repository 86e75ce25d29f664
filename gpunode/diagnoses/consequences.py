"""Group the consequences of many causes, for ``Rule.explains``.

Each group lists findings that are consequences if such a cause is found as well. Groups build on one another and never
contain earlier causes, so the graph over all rules has no cycles.
"""

from __future__ import annotations

from typing import Final

UNHEALTHY_IN_CLUSTER: Final = frozenset({"device-plugin-marked-unhealthy", "gpu-labels-without-capacity"})
"""Kubernetes loses one GPU: NVML still works, so the device plugin runs and marks that GPU unhealthy."""

NO_CLUSTER_GPU: Final = UNHEALTHY_IN_CLUSTER | frozenset(
    {
        "device-plugin-library-not-found",
        "device-plugin-not-ready-after-reboot",
        "kubelet-restart-admission-bug",
        "kubelet-stale-device-allocation",
        "nvidia-runtime-not-default-no-runtimeclass",
    }
)
"""Kubernetes has no GPU: NVML does not start, so the device plugin sees none."""

DRIVER_LIBRARY_MISMATCH_CAUSES: Final = frozenset(
    {
        "driver-library-mismatch-reboot-pending",
        "driver-library-mismatch-partial-upgrade",
        "driver-library-mismatch-unattended-upgrade",
        "driver-library-mismatch-mixed-installs",
    }
)
"""The causes by which the loaded module and the libraries have different versions."""

NO_CDI: Final = frozenset({"cdi-spec-missing", "cdi-management-spec-missing", "cdi-spec-stale"})
"""No CDI specification can be generated: nvidia-ctk asks NVML for its contents."""

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
"""NVML and CUDA cannot start on the node, for any reason."""

DRIVER_NOT_INITIALIZED: Final = NO_NVML | {
    *("device-node-permissions", "no-device-nodes-driver-not-initialised", "gpu-missing-from-inventory")
}
"""The module is loaded, but no GPU was initialised: it was rejected, unknown or in use."""

NO_DRIVER: Final = DRIVER_NOT_INITIALIZED | {"driver-module-not-loaded"}
"""NVIDIA's module is not loaded, or was unloaded because no GPU was left for it."""

GPU_NOT_STARTED: Final = NO_DRIVER | {"gsp-init-failed-platform", "gpu-fallen-off-bus"}
"""The driver cannot start a GPU that is on the bus: it sleeps, or its memory has no address."""

_HAD_GPUS_BEFORE: Final = frozenset(
    {"device-plugin-not-ready-after-reboot", "kubelet-restart-admission-bug", "kubelet-stale-device-allocation"}
)
NOTHING_INSTALLABLE: Final = (NO_DRIVER - _HAD_GPUS_BEFORE) | {"driver-not-installed", "driver-userspace-incomplete"}
"""The package manager cannot install anything, so the driver is missing or incomplete.

The kubelet refuses a pod because of devices that it had before, so a driver worked there.
"""

NOT_BUILT: Final = NO_DRIVER | {
    "dpkg-unconfigured-packages",
    "driver-library-mismatch-partial-upgrade",
    "module-built-for-other-kernel",
    "nouveau-bound",
}
"""The module could not be built for the running kernel.

The packages that should have built it stay unconfigured, the module on disk is for another kernel or of another
version, and nouveau takes the GPU.
"""

MODULE_NOT_ACCEPTED: Final = NO_DRIVER | {"nouveau-bound"}
"""The module was built, but the kernel does not load it because of its signature, index or version."""

NOT_INSTALLED: Final = NOT_BUILT | {"driver-userspace-incomplete", "fabric-manager-not-installed"}
"""No driver is installed; nouveau drives the GPU, which is normal then."""

LIBRARY_MISMATCH: Final = NO_NVML | {"gsp-firmware-missing"}
"""The loaded module and the libraries have different versions, for any reason."""

PROGRAM_FAULTS: Final = frozenset(
    {"xid-109-ctx-switch-timeout", "xid-13-graphics-exception", "xid-31-driver-regression", "xid-31-mmu-fault"}
)
"""The errors of programs whose GPU, or a peer that they reach over a link, fails."""

TRANSFERS_LOST: Final = frozenset(
    {
        *("xid-31-mmu-fault", "xid-13-graphics-exception", "xid-109-ctx-switch-timeout", "xid-154-recovery-action"),
        *("xid-62-pmu-halt", "gsp-rpc-timeout", "xid-61-pmu-breakpoint"),
    }
)
"""The errors that a GPU reports if the bus stops or loses transfers."""

GPU_LOST: Final = DRIVER_NOT_INITIALIZED | PROGRAM_FAULTS | {"xid-154-recovery-action"}
"""A GPU that worked stops answering: the GPU, its slot or its firmware failed."""

NO_RUNTIME: Final = NO_CLUSTER_GPU
"""Containers start without NVIDIA's runtime, and so does the device plugin's container."""

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
"""The container toolkit is not installed."""
