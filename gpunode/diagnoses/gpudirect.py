"""GPUDirect RDMA and Storage: transfers between GPU and network card or disk that bypass system memory."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.build import rebuild_commands
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.model import Citation, Fix, Rule
from gpunode.diagnoses.remedies import install, make_fixed_remedy, manual_step, run_step
from gpunode.diagnoses.signs import (
    all_of,
    any_of,
    command_run,
    custom_sign,
    kernel_line,
    message_line,
    predicate,
    unless,
)
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.diagnoses.views import modules, system

# ---- peermem

_PEERMEM_MODULE_NAME: Final = r"(?:nvidia[-_]peermem|nv_peer_mem(?:ory)?)"
_PEERMEM_SYMBOL_MISMATCH: Final = message_line(rf"\b{_PEERMEM_MODULE_NAME}: disagrees about version of symbol \w+")
_PEERMEM_UNKNOWN_SYMBOL: Final = message_line(rf"\b{_PEERMEM_MODULE_NAME}: Unknown symbol \w+")
_PEERMEM_LOAD_REFUSED: Final = message_line(
    rf"could not insert (?:module )?['‘\"]?\S*{_PEERMEM_MODULE_NAME}\S*: (?:Invalid|Unknown)"
    rf"|failed to load {_PEERMEM_MODULE_NAME} module"
)
_PEERMEM_SIGNATURE_REJECTED: Final = message_line(
    rf"{_PEERMEM_MODULE_NAME}['’\"]?: (?:Key was rejected|Required key not available)"
    rf"|{_PEERMEM_MODULE_NAME}: .{{0,40}}(?:signature|signed)"
)


def _rebuild_peermem(snapshot: Snapshot) -> Iterable[Fix]:
    if snapshot.view(_PEERMEM_UNKNOWN_SYMBOL) and not snapshot.view(_PEERMEM_SYMBOL_MISMATCH):
        yield manual_step("install", "install MLNX_OFED or DOCA-OFED for the running kernel, from NVIDIA's page for it")
    text = "install the driver's modules again, so that they are built against the installed RDMA stack"
    rebuild = (*rebuild_commands(snapshot), Shell("sudo depmod -a"), Shell("sudo modprobe nvidia_peermem"))
    yield run_step("install", text, *rebuild)
    yield _USE_DMA_BUF


# ---- GPUDirect Storage

_NVIDIA_FS_MISSING: Final = message_line(
    r"nvidia-fs(?:\.ko)? driver (?:is )?not (?:loaded|installed|initialized)|NVFS driver initialization error"
    r"|nvidia_fs (?:driver|module) (?:is )?not (?:loaded|found)|nvidia_fs version: +\?\?"
)
_NVIDIA_FS_LOAD_REFUSED: Final = message_line(
    r"\bnvidia_fs: (?:module using GPL-only symbols|Unknown symbol|disagrees about)"
    r"|could not insert ['‘\"]?nvidia[-_]fs['’\"]?: |Module nvidia[-_]fs not found"
)
_NVIDIA_FS_USES_GPL_SYMBOLS: Final = message_line(
    r"\bnvidia_fs: module using GPL-only symbols uses symbols from proprietary module"
)
_NVIDIA_FS_LOADED: Final = predicate(
    lambda snapshot: modules.is_module_loaded(snapshot, "nvidia_fs"), "nvidia_fs is loaded"
)
_NVIDIA_FS_PRESENT: Final = any_of(_NVIDIA_FS_LOADED, message_line(r"nvidia_fs version:\s*\d"))
_NVME_DRIVER_UNREGISTERED: Final = message_line(r"NVMe Driver not registered with nvidia-fs")
_GDS_NVME_UNSUPPORTED: Final = message_line(r"^ *NVMe\s*:\s*Unsupported", "gpudirect", "text", "application")
_P2PDMA_SUPPORTED: Final = message_line(r"^[ \t]*NVMe P2PDMA\s*:\s*Supported", "gpudirect", "text", "application")


def _missing_nvidia_fs_proc_folder(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the module's missing folder in /proc, on a node that uses GPUDirect Storage."""
    absent = (item for item in snapshot.items if item.outcome == "absent" and item.where == "host")
    found = (item for item in absent if item.subject.startswith("/proc/driver/nvidia-fs"))
    return tuple(map(cite, found)) if snapshot.items_of("gpudirect") else ()


_NVIDIA_FS_UNAVAILABLE: Final = any_of(
    _NVIDIA_FS_MISSING, _NVIDIA_FS_LOAD_REFUSED, custom_sign(_missing_nvidia_fs_proc_folder)
)


def _install_nvidia_fs(snapshot: Snapshot) -> Iterable[Fix]:
    if snapshot.view(_NVIDIA_FS_USES_GPL_SYMBOLS):
        yield install(snapshot, "replace the driver's proprietary kernel modules with the open ones", "nvidia-open")
    name = "nvidia-fs-dkms" if system.package_manager(snapshot) == "apt" else "nvidia-fs"
    yield install(snapshot, "install nvidia-fs: DKMS builds it for the running kernel", name)
    at_boot = Shell("echo nvidia_fs | sudo tee /etc/modules-load.d/nvidia-fs.conf")
    yield run_step("load", "load it, now and at boot", Shell("sudo modprobe nvidia_fs"), at_boot)
    yield _CHECK_GDS_SUPPORT


_CHECK_GDS_SUPPORT: Final = run_step(
    "inspect", "check what is supported now", Shell("/usr/local/cuda/gds/tools/gdscheck -p")
)
_INSTALL_NVME_STACK: Final = make_fixed_remedy(
    manual_step("install", "install MLNX_OFED or DOCA-OFED with --with-nvmf --enable-gds, for its NVMe driver"),
    manual_step(
        "install", "or use PCI P2PDMA: kernel 6.2, CUDA 12.8, driver 570 (open), use_pci_p2pdma in cufile.json"
    ),
    _CHECK_GDS_SUPPORT,
)


# ---- RDMA

# FastSocket uses TCP, so it never has RDMA.
_RDMA_DISABLED_MESSAGE: Final = message_line(
    r"(?<!FastSocket : )GPU Direct RDMA Disabled for (?:HCA|GPU)|NVIDIA peer memory driver not detected"
    r"|GPUDirect RDMA is (?:disabled|not supported)"
)
_RDMA_ENABLED: Final = message_line(r"GPU ?Direct RDMA (?:\([^)]{1,30}\) )?[Ee]nabled for (?:HCA|GPU)")
_RDMA_ON: Final = any_of(_RDMA_ENABLED, message_line(r"/GDRDMA\b"))
_PEERMEM_LOADED: Final = predicate(
    lambda node: modules.is_module_loaded(node, "nvidia_peermem") or modules.is_module_loaded(node, "nv_peer_mem"),
    "peermem is loaded",
)


def _load_peermem(snapshot: Snapshot) -> Iterable[Fix]:
    unload, list_peers = Shell("sudo modprobe -r nvidia_peermem"), Shell("ls /sys/kernel/mm/memory_peers/")
    if snapshot.view(_PEERMEM_LOADED):
        text = "load nvidia_peermem after the RDMA stack, and check that it is registered"
        yield run_step("configure", text, unload, Shell("sudo modprobe -a ib_core nvidia_peermem"), list_peers)
        yield manual_step("configure", "use NCCL 2.23 or newer, which supports nvidia_peermem", "NCCL is older")
    else:
        at_boot = Shell("echo nvidia-peermem | sudo tee /etc/modules-load.d/nvidia-peermem.conf")
        yield run_step("load", "load it, now and at boot", Shell("sudo modprobe nvidia-peermem"), at_boot)
    yield _USE_DMA_BUF


_USE_DMA_BUF: Final = manual_step("configure", "or use DMA-BUF: the open kernel modules and a kernel from 5.12")

# ---- locked memory

_RDMA_VERB_FAILED: Final = (
    r"\b(?:ibv|mlx5dv)_(?:reg_mr|create_(?:cq|qp))\w*(?:\([^)\n]{0,40}\))? failed(?![^\n]{0,20}Bad address)"
)
_MEMORY_NOT_PINNED: Final = message_line(rf"{_RDMA_VERB_FAILED}(?: with error|:) Cannot allocate memory")
_LOW_LOCKED_MEMORY_LIMIT: Final = message_line(
    r"max locked memory\s+\(kbytes, -l\)\s+\d{1,5}$"
    r"|set max locked memory \(ulimit -l\) to 'unlimited' \(current: \d+ kbytes"
)
_LOCKED_MEMORY_UNLIMITED: Final = message_line(r"(?:-l\)\s+|^)unlimited$")
_rule = partial(Rule, layer="driver")

RULES: Final = (
    _rule(
        cause="peermem-load-failed",
        disruption="restart-container",
        look_at=(Shell("sudo modprobe nvidia_peermem"), Shell("sudo dmesg | tail")),
        decisive=any_of(_PEERMEM_SYMBOL_MISMATCH, _PEERMEM_UNKNOWN_SYMBOL),
        typical=_PEERMEM_LOAD_REFUSED,
        against=(_PEERMEM_SIGNATURE_REJECTED,),
        remedy=_rebuild_peermem,
        explains=frozenset({"gpudirect-rdma-disabled"}),
    ),
    _rule(
        cause="gpudirect-rdma-disabled",
        severity="warning",
        disruption="restart-container",
        symptoms=(symptoms.NCCL_FAILS, symptoms.GPU_SLOW),
        look_at=(Shell("lsmod | grep peermem"), Shell("NCCL_DEBUG=INFO")),
        decisive=unless(_RDMA_DISABLED_MESSAGE, _RDMA_ON),
        typical=unless(message_line(r"memory_peers/?'?: No such file", "listing", "text", "file"), _RDMA_ENABLED),
        remedy=_load_peermem,
    ),
    _rule(
        cause="nvidia-fs-not-loaded",
        severity="warning",
        look_at=(Shell("/usr/local/cuda/gds/tools/gdscheck -p"),),
        decisive=_NVIDIA_FS_UNAVAILABLE,
        typical=command_run(r"grep\b.*nvidia[-_]fs", empty=True),
        against=(_NVIDIA_FS_LOADED,),
        remedy=_install_nvidia_fs,
        explains=frozenset({"gds-nvme-unsupported"}),
    ),
    _rule(
        cause="gds-nvme-unsupported",
        severity="warning",
        disruption="reboot",
        symptoms=(symptoms.GPU_SLOW,),
        look_at=(Shell("/usr/local/cuda/gds/tools/gdscheck -p"),),
        decisive=any_of(
            _NVME_DRIVER_UNREGISTERED, unless(all_of(_GDS_NVME_UNSUPPORTED, _NVIDIA_FS_PRESENT), _P2PDMA_SUPPORTED)
        ),
        typical=any_of(
            unless(_GDS_NVME_UNSUPPORTED, _P2PDMA_SUPPORTED, _NVIDIA_FS_UNAVAILABLE),
            message_line(r"GPUDirect Storage not supported on current file"),
        ),
        remedy=_INSTALL_NVME_STACK,
    ),
    Rule(
        cause="memlock-limit-too-low",
        layer="programs",
        disruption="restart-service",
        decisive=all_of(message_line(_RDMA_VERB_FAILED), _LOW_LOCKED_MEMORY_LIMIT),
        typical=_MEMORY_NOT_PINNED,
        symptoms=(symptoms.NCCL_FAILS, _MEMORY_NOT_PINNED),
        against=(unless(_LOCKED_MEMORY_UNLIMITED, _LOW_LOCKED_MEMORY_LIMIT), kernel_line(r"status limits exceeded")),
        context=command_run(r"ulimit -l|memlock"),
        look_at=(Shell("ulimit -l  # where the program runs: in its container, or in its job"),),
        remedy=make_fixed_remedy(
            manual_step("configure", "start it with docker run --ulimit memlock=-1", "docker runs it"),
            manual_step(
                "configure",
                "give the service that starts it (containerd, docker, slurmd) LimitMEMLOCK=infinity, and restart "
                "it once its programs may stop",
                "another service starts it",
            ),
            manual_step(
                "configure", "set memlock to unlimited in /etc/security/limits.conf", "a login shell starts it"
            ),
        ),
    ),
)
