"""Healthy GPUs, as shown by lspci, the kernel and nvidia-smi."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias
from uuid import UUID

_GENERATIONS: Final = {3: "8GT/s", 4: "16GT/s", 5: "32GT/s"}
_SPEEDS: Final = {1: "2.5 GT/s PCIe", 3: "8.0 GT/s PCIe", 4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe"}


@dataclass(frozen=True, slots=True)
class Board:
    """A GPU.

    Attributes:
        bus: its PCI address, in lower case.
        link: PCI Express generation of the GPU and its slot; ``link_now`` is the one at rest.
        mig: ``Disabled``, ``Enabled``, or ``N/A`` if the model has none.
    """

    bus: str
    device: str = "26b9"
    name: str = "NVIDIA L40S"
    chip: str = "AD102GL [L40S]"
    architecture: str = "Ada Lovelace"
    brand: str = "NVIDIA"
    memory_mib: int = 46068
    watts: int = 350
    link: int = 4
    link_now: int = 1
    width: int = 16
    mig: str = "N/A"
    has_ecc: bool = True
    virtualization: str = "None"
    licence: str = ""
    state: str = "P8"
    throttle: tuple[str, ...] = ("Idle",)
    fabric: str = "N/A"
    persistence: str = "Enabled"
    capability: str = "8.9"
    port: str = "0000:00:01.0"
    extra: str = ""

    @property
    def uuid(self) -> str:
        """The UUID in the driver's format."""
        return f"GPU-{UUID(int=int(self.bus.replace(':', '').replace('.', ''), 16) + (0xA7B3 << 100))}"

    @property
    def upper(self) -> str:
        """The address in nvidia-smi's format."""
        domain, _, rest = self.bus.partition(":")
        return f"{domain:0>8}:{rest}".upper()


def gtx_1080(bus: str) -> Board:
    """Return a board without ECC and MIG."""
    return Board(
        bus, "1b80", "NVIDIA GeForce GTX 1080", "GP104 [GeForce GTX 1080]", "Pascal", "GeForce", 8192, 180, 3,
        has_ecc=False, capability="6.1",
    )  # fmt: skip


def a100(bus: str, mig: str = "Disabled") -> Board:
    """Return a PCIe A100."""
    return Board(
        bus, "20b5", "NVIDIA A100 80GB PCIe", "GA100 [A100 PCIe 80GB]", "Ampere", memory_mib=81920, watts=300, link=4,
        link_now=4, mig=mig, state="P0", throttle=("Idle",), capability="8.0",
    )  # fmt: skip


def h100_sxm(bus: str) -> Board:
    """Return an H100 in a machine with NVSwitches."""
    return Board(
        bus, "2330", "NVIDIA H100 80GB HBM3", "GH100 [H100 SXM5 80GB]", "Hopper", memory_mib=81559, watts=700, link=5,
        link_now=5, mig="Disabled", state="P0", fabric="Completed", capability="9.0",
    )  # fmt: skip


def gh200(bus: str) -> Board:
    """Return the GPU of a GH200."""
    return Board(
        bus, "2342", "NVIDIA GH200 480GB", "GH100 [GH200 120GB / 480GB]", "Hopper", memory_mib=97871, watts=900, link=4,
        link_now=4, width=1, mig="Disabled", state="P0", capability="9.0", port="0009:00:00.0",
    )  # fmt: skip


def laptop(bus: str) -> Board:
    """Return a GPU that sleeps while unused."""
    return Board(
        bus, "2520", "NVIDIA GeForce RTX 3060 Laptop GPU", "GA106M [GeForce RTX 3060 Mobile / Max-Q]", "Ampere",
        "GeForce", 6144, 80, 4, width=8, has_ecc=False, persistence="Disabled", capability="8.6",
    )  # fmt: skip


def vgpu(bus: str) -> Board:
    """Return an A40-8Q: a guest's share of an A40."""
    return Board(
        bus, "2235", "NVIDIA A40-8Q", "GA102GL [A40]", "Ampere", "NVIDIA RTX Virtual Workstation", 8192, 0, 4,
        link_now=4, mig="Disabled", state="P8", virtualization="VGPU", licence="Licensed (Expiry: 2026-12-1 9:18:24 GMT)",
        capability="8.6", port="",
    )  # fmt: skip


def numeric(boards: Sequence[Board], more: str = "", *, bound: str = "nvidia") -> str:
    """Return the output of ``lspci -Dvmmnnk``."""
    return "\n".join([_HOST, *(_record(board, bound) for board in boards), *([more] if more else [])])


_HOST: Final = """Slot:\t0000:00:00.0
Class:\tHost bridge [0600]
Vendor:\tIntel Corporation [8086]
Device:\tIce Lake Memory Map/VT-d [09a2]
SVendor:\tIntel Corporation [8086]
SDevice:\tDevice [0000]
Rev:\t04
"""


def _record(board: Board, bound: str) -> str:
    kind = "VGA compatible controller [0300]" if board.brand == "GeForce" else "3D controller [0302]"
    lines = [
        f"Slot:\t{board.bus}",
        f"Class:\t{kind}",
        "Vendor:\tNVIDIA Corporation [10de]",
        f"Device:\t{board.chip} [{board.device}]",
        "SVendor:\tNVIDIA Corporation [10de]",
        "SDevice:\tDevice [1851]",
        "Rev:\ta1",
        f"Driver:\t{bound}",
        "Module:\tnouveau",
        "Module:\tnvidia_drm",
        "Module:\tnvidia",
    ]
    return "\n".join(line for line in lines if line != "Driver:\t") + "\n"


def verbose(boards: Sequence[Board], more: str = "") -> str:
    """Return the output of ``lspci -nnDvvv``: each GPU after the port above it."""
    shown = []
    for board in boards:
        if board.port:
            shown.append(_port(board))
        shown.append(_device(board))
    return "\n".join([*shown, *([more] if more else [])])


def _port(board: Board) -> str:
    speed = _GENERATIONS[board.link]
    now = "2.5GT/s" if board.link_now == 1 else speed
    return f"""{board.port} PCI bridge [0604]: Intel Corporation Device [8086:347a] (rev 04) (prog-if 00 [Normal decode])
\tControl: I/O+ Mem+ BusMaster+ SpecCycle- MemWINV- VGASnoop- ParErr+ Stepping- SERR+ FastB2B- DisINTx+
\tStatus: Cap+ 66MHz- UDF- FastB2B- ParErr- DEVSEL=fast >TAbort- <TAbort- <MAbort- >SERR- <PERR- INTx-
\tBus: primary={board.port[5:7]}, secondary={board.bus[5:7]}, subordinate={board.bus[5:7]}, sec-latency=0
\tPrefetchable memory behind bridge: 20e000000000-20efffffffff [size=64G] [64-bit]
\tCapabilities: [40] Express (v2) Root Port (Slot+), IntMsgNum 0
\t\tDevSta:\tCorrErr- NonFatalErr- FatalErr- UnsupReq- AuxPwr- TransPend-
\t\tLnkCap:\tPort #9, Speed {speed}, Width x{board.width}, ASPM L1, Exit Latency L1 <16us
\t\tLnkCtl:\tASPM Disabled; RCB 64 bytes, LnkDisable- CommClk+
\t\tLnkSta:\tSpeed {now}, Width x{board.width}
\t\t\tTrErr- Train- SlotClk+ DLActive+ BWMgmt- ABWMgmt-
\t\tSltSta:\tStatus: AttnBtn- PowerFlt- MRL- CmdCplt- PresDet+ Interlock-
\tCapabilities: [100 v2] Advanced Error Reporting
\t\tUESta:\tDLP- SDES- TLP- FCP- CmpltTO- CmpltAbrt- UnxCmplt- RxOF- MalfTLP- ECRC- UnsupReq- ACSViol-
\t\tCESta:\tRxErr- BadTLP- BadDLLP- Rollover- Timeout- AdvNonFatalErr-
\tKernel driver in use: pcieport
"""


def _device(board: Board) -> str:
    speed = _GENERATIONS[board.link]
    now = "2.5GT/s (downgraded)" if board.link_now == 1 else speed
    kind = "VGA compatible controller [0300]" if board.brand == "GeForce" else "3D controller [0302]"
    return f"""{board.bus} {kind}: NVIDIA Corporation {board.chip} [10de:{board.device}] (rev a1)
\tSubsystem: NVIDIA Corporation Device [10de:1851]
\tControl: I/O+ Mem+ BusMaster+ SpecCycle- MemWINV- VGASnoop- ParErr- Stepping- SERR- FastB2B- DisINTx+
\tStatus: Cap+ 66MHz- UDF- FastB2B- ParErr- DEVSEL=fast >TAbort- <TAbort- <MAbort- >SERR- <PERR- INTx-
\tLatency: 0
\tInterrupt: pin A routed to IRQ 167
\tNUMA node: 0
\tRegion 0: Memory at fb000000 (32-bit, non-prefetchable) [size=16M]
\tRegion 1: Memory at 20e000000000 (64-bit, prefetchable) [size=64G]
\tRegion 3: Memory at 20f000000000 (64-bit, prefetchable) [size=32M]
\tCapabilities: [60] Power Management version 3
\t\tStatus: D0 NoSoftRst+ PME-Enable- DSel=0 DScale=0 PME-
\tCapabilities: [68] MSI: Enable- Count=1/16 Maskable+ 64bit+
\tCapabilities: [78] Express (v2) {"Legacy Endpoint" if board.brand == "GeForce" else "Endpoint"}, IntMsgNum 0
\t\tDevCap:\tMaxPayload 256 bytes, PhantFunc 0, Latency L0s unlimited, L1 <64us
\t\tDevSta:\tCorrErr- NonFatalErr- FatalErr- UnsupReq- AuxPwr- TransPend-
\t\tLnkCap:\tPort #0, Speed {speed}, Width x{board.width}, ASPM L0s L1, Exit Latency L0s <512ns, L1 <16us
\t\tLnkCtl:\tASPM Disabled; RCB 64 bytes, LnkDisable- CommClk+
\t\tLnkSta:\tSpeed {now}, Width x{board.width}
\t\t\tTrErr- Train- SlotClk+ DLActive- BWMgmt- ABWMgmt-
\tCapabilities: [420 v2] Advanced Error Reporting
\t\tUESta:\tDLP- SDES- TLP- FCP- CmpltTO- CmpltAbrt- UnxCmplt- RxOF- MalfTLP- ECRC- UnsupReq- ACSViol-
\t\tCESta:\tRxErr- BadTLP- BadDLLP- Rollover- Timeout- AdvNonFatalErr-
\tKernel driver in use: nvidia
\tKernel modules: nouveau, nvidia_drm, nvidia
"""


def answered(boards: Sequence[Board], driver: str, cuda: str) -> str:
    """Return NVML's answer to gpunode's own query."""
    failed = {"error": "NotSupported", "code": 3}
    gpus = [
        {
            "index": index,
            "name": board.name,
            "uuid": board.uuid,
            "pci": board.bus,
            "memory_mib": board.memory_mib,
            "persistence": board.persistence == "Enabled",
            "ecc": True if board.has_ecc else failed,
            "ecc_pending": True if board.has_ecc else failed,
            "compute_capability": board.capability,
            "mig": failed if board.mig == "N/A" else board.mig == "Enabled",
            "mig_pending": failed if board.mig == "N/A" else board.mig == "Enabled",
        }
        for index, board in enumerate(boards)
    ]
    library = f"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{driver}"
    answer = {
        "schema": 1,
        "driver": driver,
        "cuda": cuda,
        "nvml": f"{cuda.partition('.')[0]}.{driver}",
        "library": library,
        "gpus": gpus,
    }
    return json.dumps(answer) + "\n"


def table(boards: Sequence[Board], driver: str, cuda: str) -> str:
    """Return the output of ``nvidia-smi``."""
    line = "+-----------------------------------------------------------------------------------------+"
    middle = "+-----------------------------------------+------------------------+----------------------+"
    rows = []
    for index, board in enumerate(boards):
        mode = "On " if board.persistence == "Enabled" else "Off"
        ecc = "0" if board.has_ecc else "N/A"
        watts = f"{board.watts // 10}W / {board.watts:4}W" if board.watts else "N/A /  N/A "
        rows += [
            f"|   {index}  {board.name:<22.22}         {mode} |   {board.upper} Off | {ecc:>20} |",
            f"| N/A   31C    {board.state}             {watts:>15} | {'1MiB / ':>12}{board.memory_mib:>6}MiB    |      0%      Default |",
            f"|                                         |                        | {board.mig:>20} |",
            middle,
        ]
    head = f"| NVIDIA-SMI {driver:<22} Driver Version: {driver:<14} CUDA Version: {cuda:<9}|"
    return "\n".join([
        "Mon Nov 16 09:41:07 2026       ", line, head, middle,
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
        "|                                         |                        |               MIG M. |",
        "|=========================================+========================+======================|",
        *rows, "", line,
        "| Processes:                                                                              |",
        "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |",
        "|        ID   ID                                                               Usage      |",
        "|=========================================================================================|",
        "|  No running processes found                                                             |",
        line, "",
    ])  # fmt: skip


def query(boards: Sequence[Board], driver: str, cuda: str) -> str:
    """Return the output of ``nvidia-smi -q``."""
    head = f"""
==============NVSMI LOG==============

Timestamp                                              : Mon Nov 16 09:41:08 2026
Driver Version                                         : {driver}
CUDA Version                                           : {cuda}

Attached GPUs                                          : {len(boards)}
"""
    return head + "\n".join(_queried(index, board, driver) for index, board in enumerate(boards)) + "\n"


_Row: TypeAlias = "tuple[int, str, str]"


def _queried(index: int, board: Board, driver: str) -> str:
    first, second = _identity(index, board, driver), (*_link(board), *_reasons(board), *_memory(board), *_rest(board))
    return (
        "\n".join([f"GPU {board.upper}", *map(_shown, first), *board.extra.splitlines(), *map(_shown, second)]) + "\n"
    )


def _shown(row: _Row) -> str:
    depth, name, value = row
    indent = "    " * depth
    return f"{indent}{name:<{55 - len(indent)}}: {value}" if value else f"{indent}{name}"


def _identity(index: int, board: Board, driver: str) -> Iterator[_Row]:
    yield 1, "Product Name", board.name
    yield 1, "Product Brand", board.brand
    yield 1, "Product Architecture", board.architecture
    yield 1, "Display Mode", "Disabled"
    yield 1, "Display Active", "Disabled"
    yield 1, "Persistence Mode", board.persistence
    yield 1, "Addressing Mode", "ATS" if board.device == "2342" else "HMM"
    yield 1, "Accounting Mode", "Disabled"
    yield 1, "Serial Number", f"13248220{index:05}"
    yield 1, "GPU UUID", board.uuid
    yield 1, "Minor Number", str(index)
    yield 1, "VBIOS Version", "95.02.66.00.02"
    yield 1, "MultiGPU Board", "No"
    yield 1, "Inforom Version", ""
    yield 2, "Image Version", "G133.0242.00.03"
    yield 2, "ECC Object", "6.16" if board.has_ecc else "N/A"
    yield 1, "GSP Firmware Version", driver if board.architecture != "Pascal" else "N/A"
    yield 1, "GPU Virtualization Mode", ""
    yield 2, "Virtualization Mode", board.virtualization
    yield 2, "Host VGPU Mode", "N/A"
    if board.licence:
        yield 1, "vGPU Software Licensed Product", ""
        yield 2, "Product Name", "NVIDIA RTX Virtual Workstation"
        yield 2, "License Status", board.licence
    yield 1, "GPU Reset Status", ""
    yield 2, "Reset Required", "Requested functionality has been deprecated"
    yield 2, "Drain and Reset Recommended", "Requested functionality has been deprecated"
    yield 1, "GPU Recovery Action", "None"
    yield 1, "MIG Mode", ""
    yield 2, "Current", board.mig
    yield 2, "Pending", board.mig


def _link(board: Board) -> Iterator[_Row]:
    yield 1, "PCI", ""
    yield 2, "Bus Id", board.upper
    yield 2, "GPU Link Info", ""
    yield 3, "PCIe Generation", ""
    yield 4, "Max", str(board.link)
    yield 4, "Current", str(board.link_now)
    yield 4, "Device Current", str(board.link_now)
    yield 4, "Device Max", str(board.link)
    yield 4, "Host Max", str(board.link)
    yield 3, "Link Width", ""
    yield 4, "Max", f"{board.width}x"
    yield 4, "Current", f"{board.width}x"
    yield 2, "Replays Since Reset", "0"
    yield 2, "Replay Number Rollovers", "0"


def _reasons(board: Board) -> Iterator[_Row]:
    yield 1, "Performance State", board.state
    yield 1, "Clocks Event Reasons", ""
    for reason in ("Idle", "Applications Clocks Setting", "SW Power Cap"):
        yield 2, reason, "Active" if reason in board.throttle else "Not Active"
    yield 2, "HW Slowdown", "Not Active"
    yield 3, "HW Thermal Slowdown", "Not Active"
    yield 3, "HW Power Brake Slowdown", "Not Active"
    for reason in ("Sync Boost", "SW Thermal Slowdown", "Display Clock Setting"):
        yield 2, reason, "Not Active"


def _memory(board: Board) -> Iterator[_Row]:
    mode, count = ("Enabled", "0") if board.has_ecc else ("N/A", "N/A")
    yield 1, "FB Memory Usage", ""
    yield 2, "Total", f"{board.memory_mib} MiB"
    yield 2, "Used", "1 MiB"
    yield 1, "BAR1 Memory Usage", ""
    yield 2, "Total", "65536 MiB"
    yield 1, "Compute Mode", "Default"
    yield 1, "ECC Mode", ""
    yield 2, "Current", mode
    yield 2, "Pending", mode
    yield 1, "ECC Errors", ""
    for era in ("Volatile", "Aggregate"):
        yield 2, era, ""
        for name in ("SRAM Correctable", "SRAM Uncorrectable Parity", "SRAM Uncorrectable SEC-DED", "DRAM Correctable",
                     "DRAM Uncorrectable"):  # fmt: skip
            yield 3, name, count
    yield 3, "SRAM Threshold Exceeded", "No" if board.has_ecc else "N/A"
    yield 1, "Retired Pages", ""
    for name in ("Single Bit ECC", "Double Bit ECC", "Pending Page Blacklist"):
        yield 2, name, "N/A"
    yield 1, "Remapped Rows", "" if board.has_ecc else "N/A"
    if board.has_ecc:
        yield 2, "Correctable Error", "0"
        yield 2, "Uncorrectable Error", "0"
        yield 2, "Pending", "No"
        yield 2, "Remapping Failure Occurred", "No"
        yield 2, "Bank Remap Availability Histogram", ""
        yield 3, "Max", "640 bank(s)"
        for grade in ("High", "Partial", "Low", "None"):
            yield 3, grade, "0 bank(s)"


def _rest(board: Board) -> Iterator[_Row]:
    yield 1, "Temperature", ""
    yield 2, "GPU Current Temp", "31 C"
    yield 2, "GPU Shutdown Temp", "95 C"
    yield 2, "GPU Slowdown Temp", "92 C"
    yield 2, "GPU Max Operating Temp", "88 C"
    yield 1, "GPU Power Readings", ""
    for name, part in (("Average Power Draw", 10), ("Current Power Limit", 1), ("Requested Power Limit", 1),
                       ("Default Power Limit", 1), ("Min Power Limit", 3), ("Max Power Limit", 1)):  # fmt: skip
        yield 2, name, f"{board.watts / part:.2f} W" if board.watts else "N/A"
    yield 1, "Clocks", ""
    yield 2, "Graphics", "210 MHz" if board.state == "P8" else "345 MHz"
    yield 2, "SM", "210 MHz"
    yield 2, "Memory", "405 MHz"
    yield 1, "Max Clocks", ""
    yield 2, "Graphics", "2520 MHz"
    yield 1, "Fabric", ""
    yield 2, "State", board.fabric
    yield 2, "Status", "Success" if board.fabric == "Completed" else "N/A"
    yield 1, "Processes", "None"


def information(board: Board, minor: int, driver: str) -> str:
    """Return ``/proc/driver/nvidia/gpus/*/information``."""
    return (
        f"Model: \t\t {board.name}\nIRQ:   \t\t 167\nGPU UUID: \t {board.uuid}\nVideo BIOS: \t 95.02.66.00.02\n"
        f"Bus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\nBus Location: \t {board.bus}\n"
        f"Device Minor: \t {minor}\nGPU Firmware: \t {driver}\nGPU Excluded:\t No\n"
    )


def link_speed(generation: int) -> str:
    """Return the link speed in sysfs's format."""
    return _SPEEDS[generation] + "\n"
