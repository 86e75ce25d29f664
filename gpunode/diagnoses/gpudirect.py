"""GPUDirect RDMA and Storage: data that goes between GPU and network card or disk without the processor's memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.build import built_anew
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.model import Citation, Family, Fix, Proof, Rule
from gpunode.diagnoses.remedies import always, by_hand, guest_driver, install, run
from gpunode.diagnoses.signs import all_of, any_of, asked, fact, holds, line
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.diagnoses.views import driver, guests, modules, system
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern

# ---- peermem

_PEERMEM: Final = r"(?:nvidia[-_]peermem|nv_peer_mem(?:ory)?)"
_DISAGREES: Final = Pattern(rf"\b{_PEERMEM}: disagrees about version of symbol (?P<symbol>\w+)")
_UNKNOWN: Final = Pattern(rf"\b{_PEERMEM}: Unknown symbol (?P<symbol>\w+) \(err -?\d+\)")
_REFUSED: Final = line(
    rf"could not insert ['‘\"]?{_PEERMEM}['’\"]?: (?:Invalid argument|Unknown symbol)|failed to load {_PEERMEM} module"
    rf"|insmod: ERROR: could not insert module \S*{_PEERMEM}\S*: (?:Invalid|Unknown)"
)
_NOT_BUILT: Final = line(rf"Module {_PEERMEM} not found in directory")
_SIGNATURE: Final = line(
    rf"{_PEERMEM}['’\"]?: (?:Key was rejected|Required key not available)|{_PEERMEM}: .{{0,40}}(?:signature|signed)"
)


def _why_refused(snapshot: Snapshot) -> str:
    if match := snapshot.match(_DISAGREES):
        other = "another NVIDIA driver" if match["symbol"].startswith("nvidia_p2p") else "another RDMA stack"
        return (
            f"nvidia_peermem was built against {other} than the one that is loaded: the versions of {match['symbol']} "
            "differ"
        )
    if match := snapshot.match(_UNKNOWN):
        return f"the RDMA stack that runs has no {match['symbol']}: nvidia_peermem needs that of MLNX_OFED or DOCA"
    if snapshot.view(_NOT_BUILT):
        return "the NVIDIA driver is loaded, and nvidia_peermem, which comes with it, was not built for this kernel"
    return "nvidia_peermem does not load: the RDMA stack it was built for is not the one that runs"


def _fit_peermem(snapshot: Snapshot) -> Iterable[Fix]:
    is_other_stack = not snapshot.match(_DISAGREES) and snapshot.match(_UNKNOWN)
    return (_other_stack if is_other_stack else _rebuild)(snapshot)


def _rebuild(snapshot: Snapshot) -> Iterable[Fix]:
    yield Fix(
        "install",
        "install the driver's modules again, so that they are built against the RDMA stack that is there",
        (
            *built_anew(snapshot),
            Shell("sudo depmod -a"),
            Shell("sudo modprobe -r nvidia_peermem; sudo modprobe nvidia_peermem"),
        ),
    )
    yield _DMA_BUF


def _other_stack(snapshot: Snapshot) -> Iterable[Fix]:
    yield by_hand("install", "install MLNX_OFED or DOCA-OFED for the running kernel, from NVIDIA's page for it")
    text = "then build the driver's modules again, against it"
    yield run("rebuild", text, *built_anew(snapshot), Shell("sudo depmod -a"), Shell("sudo modprobe nvidia_peermem"))
    yield _DMA_BUF


# ---- GPUDirect Storage

_FS_MISSING: Final = line(
    r"nvidia-fs(?:\.ko)? driver (?:is )?not (?:loaded|installed|initialized)|NVFS driver initialization error"
    r"|nvidia_fs (?:driver|module) (?:is )?not (?:loaded|found)|nvidia_fs version: +\?\?"
)
_FS_REFUSED: Final = line(
    r"\bnvidia_fs: (?:module using GPL-only symbols|Unknown symbol|disagrees about)"
    r"|could not insert ['‘\"]?nvidia[-_]fs['’\"]?: |Module nvidia-fs not found"
)
_GPL_ONLY: Final = line(r"\bnvidia_fs: module using GPL-only symbols uses symbols from proprietary module")
_NVME_UNREGISTERED: Final = Pattern(r"NVMe Driver not registered with nvidia-fs", re.IGNORECASE)
_NVME_ROW: Final = Pattern(r"^ *NVMe\s*:\s*(?P<state>Supported|Unsupported|compat)", re.MULTILINE | re.IGNORECASE)
_P2PDMA_ROW: Final = Pattern(r"^[ \t]*NVMe P2PDMA\s*:\s*Supported", re.MULTILINE | re.IGNORECASE)
_FS_VERSION: Final = Pattern(r"nvidia_fs version:\s*(?P<version>\d+\.\d+)")


def _no_statistics(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The module's folder in /proc that is not there, on a node where somebody uses GPUDirect Storage."""
    if not snapshot.of("gpudirect"):
        return ()
    found = (item for item in snapshot.items if item.outcome == "absent" and item.where == "host")
    return tuple(cite(item) for item in found if item.subject.startswith("/proc/driver/nvidia-fs"))


_FS_LOADED: Final = holds(lambda snapshot: modules.loaded(snapshot, "nvidia_fs"), "nvidia_fs is loaded")
_NO_FS: Final = any_of(_FS_MISSING, _FS_REFUSED, fact(_no_statistics))


def _why_no_fs(snapshot: Snapshot) -> str:
    if snapshot.view(_GPL_ONLY):
        return "nvidia_fs may not use the closed NVIDIA module: from 2.17 on it needs the open kernel modules"
    if snapshot.view(_FS_REFUSED):
        return "nvidia_fs does not load: it was not built for the NVIDIA driver and kernel that run"
    return "nvidia_fs is not loaded, so cuFile copies through the processor's memory"


def _bring_fs(snapshot: Snapshot) -> Iterable[Fix]:
    return (_open_modules if snapshot.view(_GPL_ONLY) else _install_fs)(snapshot)


def _install_fs(snapshot: Snapshot) -> Iterable[Fix]:
    names = ("nvidia-fs-dkms",) if system.package_manager(snapshot) == "apt" else ("nvidia-fs",)
    yield install(snapshot, "install nvidia-fs: DKMS builds it for the running kernel", *names)
    yield run(
        "load",
        "load it, now and at boot",
        Shell("sudo modprobe nvidia_fs"),
        Shell("echo nvidia_fs | sudo tee /etc/modules-load.d/nvidia-fs.conf"),
    )
    yield run("inspect", "look what GPUDirect Storage supports now", Shell("/usr/local/cuda/gds/tools/gdscheck -p"))


def _open_modules(snapshot: Snapshot) -> Iterable[Fix]:
    if guests.is_vgpu(snapshot):
        yield guest_driver("install the driver anew, with its open kernel modules")
        yield from _install_fs(snapshot)
        return
    seen = driver.loaded(snapshot)
    branch = seen.version.split(".")[0] if seen else ""
    if system.package_manager(snapshot) == "apt":
        names = (f"nvidia-dkms-{branch}-open",) if branch and int(branch) < 580 else ("nvidia-open",)
    else:
        names = ("nvidia-open",)
    yield install(snapshot, "install the open kernel modules of the driver, in place of the closed ones", *names)
    yield from _install_fs(snapshot)


def _nvme(snapshot: Snapshot) -> Iterator[Proof]:
    said = snapshot.said(_NVME_UNREGISTERED)
    told = snapshot.of("gpudirect", "text", "application")
    found = ((item, _NVME_ROW.search(item.text)) for item in told if not _P2PDMA_ROW.search(item.text))
    rows = [(item, match) for item, match in found if match and match["state"].lower() == "unsupported"]
    is_loaded = said or snapshot.view(_FS_LOADED) or any(_FS_VERSION.search(item.text) for item, _ in rows)
    proofs = (*said, *(_at(item, match) for item, match in rows))
    if proofs and is_loaded:
        summary = (
            "nvidia_fs is loaded and the NVMe driver is not registered with it: it is the kernel's own, without GDS"
        )
        yield Proof(summary, proofs)
    elif proofs and modules.loaded(snapshot, "nvidia_fs") is None and not snapshot.view(_NO_FS):
        yield Proof("GPUDirect Storage does not support the NVMe driver of this kernel", proofs, "likely")


def _at(item: Item, match: re.Match[str]) -> Citation:
    return cite(item, item.number_at(match.start()))


def _nvme_stack(_: Snapshot) -> Iterable[Fix]:
    yield by_hand(
        "install",
        "install MLNX_OFED or DOCA-OFED with --with-nvmf --enable-gds: it brings an NVMe driver that GDS knows",
    )
    yield by_hand(
        "install",
        "or use PCI P2PDMA instead: kernel 6.2 or newer, CUDA 12.8, driver 570 with the open modules, and "
        "use_pci_p2pdma in cufile.json",
    )
    yield run("inspect", "look what is supported after a reboot", Shell("/usr/local/cuda/gds/tools/gdscheck -p"))


# ---- RDMA

# FastSocket goes over TCP: there is no RDMA to be had.
_RDMA_OFF: Final = Pattern(
    r"(?<!FastSocket : )GPU Direct RDMA Disabled for (?:HCA|GPU)|NVIDIA peer memory driver not detected|"
    r"GPUDirect RDMA is (?:disabled|not supported)"
)
_RDMA_ON: Final = Pattern(r"GPU ?Direct RDMA (?:\([^)]{1,30}\) )?[Ee]nabled for (?:HCA|GPU)|/GDRDMA\b")
_NCCL: Final = Pattern(r"\bNCCL version (?P<major>\d{1,18})\.(?P<minor>\d{1,18})")
_LAST_BLIND_NCCL: Final = (2, 22)


def _rdma(snapshot: Snapshot) -> Iterator[Proof]:
    off = snapshot.said(_RDMA_OFF)
    # A channel goes over RDMA at the end whose node has it: the other end is told by what it says itself.
    if not off or (snapshot.says(_RDMA_ON) and not _lacks_peer(snapshot)):
        return
    loaded = modules.loaded(snapshot, "nvidia_peermem") or modules.loaded(snapshot, "nv_peer_mem")
    lines = (*off, *(modules.lsmod_line(snapshot, "nvidia_peermem") if loaded is not None else ()))
    version = snapshot.match(_NCCL)
    if not loaded:
        summary = "nothing lets the network card reach GPU memory (no nvidia_peermem, no DMA-BUF): NCCL copies instead"
        yield Proof(summary, lines, "certain" if loaded is False else "likely", remedy=_LOAD_PEERMEM)
    elif version and (int(version["major"]), int(version["minor"])) <= _LAST_BLIND_NCCL:
        summary = "NCCL up to 2.22 asks for nv_peer_mem by name and does not see nvidia_peermem, which is loaded"
        newer = by_hand("configure", "use NCCL 2.23 or newer, which knows nvidia_peermem")
        yield Proof(summary, lines, remedy=(newer,))
    else:
        summary = "nvidia_peermem is loaded, and not registered with the RDMA stack that the network card uses"
        yield Proof(summary, lines, "likely")


_PEERS: Final = Pattern(r"/sys/kernel/mm/memory_peers")


def _lacks_peer(snapshot: Snapshot) -> bool:
    """Whether it was seen that no peer of the GPU's is registered with the RDMA stack, or its module is not loaded."""
    if modules.loaded(snapshot, "nvidia_peermem") is False and modules.loaded(snapshot, "nv_peer_mem") is not True:
        return True
    return any(item.outcome == "absent" and _PEERS.search(item.subject) for item in snapshot.of("listing", "file"))


_DMA_BUF: Final = by_hand(
    "configure",
    "or do without nvidia_peermem: with the open kernel modules and a kernel from 5.12 on NCCL uses DMA-BUF by itself",
    "the GPUs are of Turing or newer",
)
_LOAD_PEERMEM: Final = (
    run(
        "load",
        "load it, now and at boot",
        Shell("sudo modprobe nvidia-peermem"),
        Shell("echo nvidia-peermem | sudo tee /etc/modules-load.d/nvidia-peermem.conf"),
    ),
    _DMA_BUF,
)
_REGISTER: Final = always(
    run(
        "configure",
        "load nvidia_peermem after the RDMA stack, and look whether it is registered",
        Shell("sudo modprobe -r nvidia_peermem; sudo modprobe ib_core; sudo modprobe nvidia_peermem"),
        Shell("ls /sys/kernel/mm/memory_peers/"),
    ),
    by_hand(
        "install",
        "install MLNX_OFED or DOCA-OFED before the driver, or use DMA-BUF with the open modules",
        "it is not there",
    ),
)
_RDMA_GUIDE: Final = "https://docs.nvidia.com/cuda/gpudirect-rdma/index.html"
_GDS_GUIDE: Final = "https://docs.nvidia.com/gpudirect-storage/troubleshooting-guide/index.html"

FAMILY: Final = Family(
    "gpudirect",
    "GPUDirect RDMA and Storage",
    (
        Rule(
            cause="peermem-load-failed",
            layer="driver",
            storey="driver",
            disruption="restart-container",
            title="nvidia_peermem does not load",
            look_at=(Shell("sudo modprobe nvidia_peermem"), Shell("sudo dmesg | tail")),
            story=(
                "nvidia_peermem lets a network card reach GPU memory, by functions of the RDMA stack that only "
                "MLNX_OFED and DOCA have. Built against another stack than the one that runs, the kernel refuses it "
                "as 'Invalid argument' (err -22: the symbol has another version); on the kernel's own stack the "
                "symbol does not exist at all (err 0 or -2). It happens when OFED is installed after the driver, or a "
                "new kernel came without OFED's modules."
            ),
            sources=(_RDMA_GUIDE, "https://github.com/NVIDIA/gpu-operator/issues/2868"),
            decisive=line(rf"{_DISAGREES.pattern}|{_UNKNOWN.pattern}".replace("?P<symbol>", "")),
            typical=any_of(_REFUSED, all_of(_NOT_BUILT, symptoms.MODULE_LOADED)),
            against=(_SIGNATURE,),
            summary=_why_refused,
            context=asked(r"modprobe.*peer_?mem"),
            remedy=_fit_peermem,
            explains=frozenset({"gpudirect-rdma-disabled"}),
        ),
        Rule(
            cause="gpudirect-rdma-disabled",
            layer="driver",
            storey="driver",
            severity="warning",
            disruption="restart-container",
            title="NCCL does without GPUDirect RDMA",
            symptoms=(symptoms.NCCL_FAILS, symptoms.SLOW),
            look_at=(Shell("lsmod | grep peermem"), Shell("NCCL_DEBUG=INFO")),
            story=(
                "The network card cannot reach GPU memory, so what goes to other nodes is copied through the "
                "processor's memory first: it works, at a fraction of the speed. Either nvidia_peermem is not loaded "
                "and DMA-BUF is not there in its place, or it is loaded and the RDMA stack or NCCL does not know of "
                "it."
            ),
            sources=(
                *(_RDMA_GUIDE, "https://github.com/NVIDIA/nccl/issues/1676"),
                "https://github.com/NVIDIA/nccl/issues/1343",
            ),
            check=_rdma,
            typical=line(r"memory_peers'?: No such file", "listing", "text", "file"),
            context=asked(r"peer_?mem"),
            remedy=_REGISTER,
        ),
        Rule(
            cause="nvidia-fs-not-loaded",
            layer="driver",
            storey="driver",
            severity="warning",
            disruption="none",
            title="nvidia_fs is not loaded",
            look_at=(Shell("/usr/local/cuda/gds/tools/gdscheck -p"),),
            story=(
                "GPUDirect Storage needs the kernel module nvidia_fs. It is a package of its own, built by DKMS for "
                "each kernel, and since 2.17 it loads only beside the open kernel modules. Without it cuFile works in "
                "its compatible mode: everything is read and written through the processor's memory."
            ),
            sources=(_GDS_GUIDE, "https://github.com/NVIDIA/gds-nvidia-fs/issues/41"),
            decisive=_NO_FS,
            symptoms=(),
            typical=asked(r"grep\b.*nvidia[-_]fs", empty=True),
            context=asked(r"nvidia[-_]fs|gdscheck"),
            against=(_FS_LOADED,),
            summary=_why_no_fs,
            remedy=_bring_fs,
            explains=frozenset({"gds-nvme-unsupported"}),
        ),
        Rule(
            cause="gds-nvme-unsupported",
            layer="driver",
            storey="driver",
            severity="warning",
            disruption="reboot",
            title="GPUDirect Storage does not know the NVMe driver",
            symptoms=(symptoms.SLOW,),
            look_at=(Shell("/usr/local/cuda/gds/tools/gdscheck -p"),),
            story=(
                "nvidia_fs is loaded, but disks are only reached directly through an NVMe driver that registers with "
                "it. That of MLNX_OFED built with GDS does; the kernel's own does not, and newer stacks go another "
                "way (PCI P2PDMA). gdscheck then shows NVMe as Unsupported, and cuFile falls back to copies."
            ),
            sources=(_GDS_GUIDE, "https://github.com/NVIDIA/gds-nvidia-fs/issues/31"),
            check=_nvme,
            typical=line(r"GPUDirect Storage not supported on current file"),
            context=asked(r"nvidia[-_]fs|gds"),
            remedy=_nvme_stack,
        ),
    ),
)
