"""The PCI bus: whether the GPU is there, who owns it, and whether its link, its regions and its peers work."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses.addresses import DRIVER_GUIDE, OPEN_MODULES
from gpunode.diagnoses.chains import NO_DRIVER, UNHEALTHY_IN_CLUSTER
from gpunode.diagnoses.commands import command, edited, edited_where, is_gpu
from gpunode.diagnoses.model import Citation, Confidence, Doubt, Family, Fix, Proof, Rule, Severity, Verdict, only
from gpunode.diagnoses.remedies import (
    always,
    boot_loader,
    by_hand,
    drain,
    power_cycle,
    reboot,
    rebuild_initramfs,
    run,
    with_kernel_argument,
)
from gpunode.diagnoses.snapshot import Snapshot, cite, lines_with, stated
from gpunode.diagnoses.views import boards, driver, faults, kernel, links, pci, system
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern

# ---- is there a GPU at all

_NONE_FOUND: Final = Pattern(r"No NVIDIA (?:PCI devices|GPUs?|graphics (?:adapter|device)s?) found", re.IGNORECASE)
# Words of the driver about a GPU that it saw, whatever it then did with it.
_GPU_SPOKEN_OF: Final = Pattern(
    r"probe routine was not called for|already bound to|routine failed for|installed in this system|RmInitAdapter|"
    r"\bXid \(|fallen off the bus"
)
_NO_SUCH_DEVICE: Final = Pattern(r"could not insert ['‘\"]?nvidia(?:_current)?['’\"]?: No such device")
_NO_GPU_SAID: Final = Pattern(
    r"You do not appear to have an NVIDIA GPU|NVIDIA GPU product .{0,40}not found", re.IGNORECASE
)


def _no_gpu(snapshot: Snapshot) -> Iterator[Verdict]:
    if system.is_wsl(snapshot) or pci.has_gpu(snapshot) or snapshot.view(links.nvidia):
        return
    if kernel.said(snapshot, _GPU_SPOKEN_OF):
        return
    said = tuple(m.citation for m in kernel.said(snapshot, _NONE_FOUND))
    said += snapshot.said(_NO_SUCH_DEVICE) + snapshot.said(_NO_GPU_SAID)
    wanted = said or tuple(place for state, place in snapshot.view(driver.smi) if state in {"no-driver", "no-devices"})
    if not pci.is_listed(snapshot):
        # What is kept for virtual machines is on the bus, and the driver does not find it all the same.
        if said and not any(_links(snapshot)):
            summary = "NVIDIA's driver finds no GPU on this machine's PCI bus"
            yield Proof(summary, said, "likely", ("the bus itself was not listed",))
        return
    wanted = wanted or _installed(snapshot)
    if wanted:
        listing = tuple(
            stated(item.written, "no display or 3D controller of NVIDIA's", item.key)
            for item in snapshot.of("lspci")
            if not item.source.is_part
        )[:1]
        guest = " (a virtual machine: none is passed through to it)" if system.is_guest(snapshot) else ""
        yield Proof(
            f"no NVIDIA GPU is on this machine's PCI bus{guest}, and a driver for one is here", (*wanted, *listing)
        )


def _installed(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Where a driver for a GPU was installed on the node."""
    disk = driver.on_disk(snapshot)
    return tuple(one.citation for one in (*driver.kernel_side(snapshot)[:1], *((disk,) if disk else ())))


def _attach(snapshot: Snapshot) -> Iterable[Fix]:
    if system.is_guest(snapshot):
        yield by_hand("hardware", "attach a GPU to this virtual machine, or start an instance type that has one")
    else:
        yield by_hand(
            "hardware", "power the machine off, seat the GPU and its power cables, and enable the slot in BIOS"
        )
    yield run("inspect", "look whether the bus shows it now", "lspci -nn -d 10de:")


# ---- who owns it

_BOUND_ELSEWHERE: Final = Pattern(r"GPU \S+ is already bound to (?P<driver>[\w-]+)")
_PASSERS: Final = frozenset({"vfio-pci", "pci-stub", "xen-pciback", "nvgrace_gpu_vfio_pci", "nvgrace-gpu-vfio-pci"})
_RESERVED: Final = Pattern(
    r"\bvfio-pci\.ids=\S*10de:|\bpci-stub\.ids=\S*10de:|^[ \t]*options[ \t]+vfio-pci[ \t][^\n]*\bids=[^\n]*10de:",
    re.MULTILINE,
)


# Where sysfs or driverctl tells the owner; of other devices somebody who looks for a GPU does not ask.
_LINKED: Final = Pattern(
    r"/sys/bus/pci/devices/[0-9a-f:.]+/driver -> \S*/(?:vfio-pci|pci-stub)\b"
    r"|^\S*/bus/pci/drivers/(?:vfio-pci|pci-stub)$"
    r"|^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d vfio-pci(?: \(NVIDIA| \(\*\)|[ \t]*$)",
    re.MULTILINE | re.IGNORECASE,
)


# A row that somebody's loop over sysfs prints; whose device it is, the row or the loop's own words tell.
_ROW_OF_OWNER: Final = Pattern(
    r"^(?P<address>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d)[ :]+[^\n]{0,80}\b(?:vfio-pci|pci-stub)\b",
    re.MULTILINE | re.IGNORECASE,
)
# The last part of such a link, as basename leaves it.
_BARE_OWNER: Final = Pattern(r"^(?:vfio-pci|pci-stub)$", re.MULTILINE)
_ADDRESS: Final = Pattern(r"\b[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d\b", re.IGNORECASE)


def _links(snapshot: Snapshot) -> Iterator[Citation]:
    """The lines of sysfs or driverctl by which a GPU belongs to what passes devices on."""
    known = {gpu.address for gpu in snapshot.view(pci.gpus)}
    for item in snapshot.of("listing", "text", "which"):
        lines = list(lines_with(item, _LINKED))
        lines += lines_with(item, _BARE_OWNER) if "/driver" in item.written else ()
        lines += (one for one in lines_with(item, _ROW_OF_OWNER) if "10de" in f"{item.written} {one.line}".lower())
        for line in dict.fromkeys(lines):
            where = _ADDRESS.findall(line.line)
            # driverctl lists whatever is overridden: a network card among it is no GPU.
            if not known or not where or any(pci.address(one) in known for one in where):
                yield line


def _passed_on(snapshot: Snapshot) -> Iterator[Verdict]:
    bound = tuple(gpu for gpu in snapshot.view(pci.gpus) if gpu.driver in _PASSERS)
    said = tuple(
        message.citation
        for message in kernel.said(snapshot, _BOUND_ELSEWHERE)
        if (match := _BOUND_ELSEWHERE.search(message.text)) and match["driver"].rstrip(".") in _PASSERS
    )
    said = (*said, *_links(snapshot))
    if not bound and not said:
        return
    missed = tuple(place for state, place in snapshot.view(driver.smi) if state not in {"works", "mismatch", "missing"})
    reserved = tuple(
        cite(item, item.number_at(match.start()))
        for item in (
            *snapshot.files("/proc/cmdline"),
            *snapshot.files("*modprobe.d/*"),
            *snapshot.files("/etc/default/grub*"),
        )
        if (match := _RESERVED.search(item.text))
    )
    proofs = (*said, *(gpu.citation for gpu in bound), *missed, *reserved)
    severity: Severity = "error" if said or missed else "info"
    which = bound[0].address if len(bound) == 1 else (f"{len(bound)} GPUs" if bound else "a GPU")
    summary = f"vfio-pci owns {which}, to hand to a virtual machine, so NVIDIA's driver is not given it"
    confidence: Confidence = "certain" if said or missed else "likely"
    yield Proof(summary, proofs, confidence, severity=severity, gpu=bound[0].address if len(bound) == 1 else "")


_WITHOUT_IDS: Final = "/vfio-pci|pci-stub/s/10de:[0-9a-fA-F]{4},?//g"
_IN_GRUB: Final = "it stood in /etc/default/grub"


def _give_back(snapshot: Snapshot) -> Iterable[Fix]:
    bound = tuple(gpu for gpu in snapshot.view(pci.gpus) if gpu.driver in _PASSERS)
    files = tuple(item.subject for item in snapshot.files("*modprobe.d/*") if _RESERVED.search(item.text))
    if files:
        text = "take NVIDIA's ids out of what is reserved for vfio-pci"
        yield run("configure", text, *edited(_WITHOUT_IDS, *files))
        yield rebuild_initramfs(snapshot)
    else:
        places = ("/etc/modprobe.d", "/etc/default/grub", "/etc/default/grub.d", "/etc/kernel/cmdline")
        text = "take NVIDIA's ids out of what is reserved for vfio-pci, wherever it stands"
        yield run("configure", text, edited_where("(vfio-pci|pci-stub).*10de:", _WITHOUT_IDS, *places))
        yield run("rebuild", "write the boot loader's configuration anew", boot_loader(snapshot), when=_IN_GRUB)
        yield rebuild_initramfs(snapshot, when="it stood in /etc/modprobe.d")
    if bound:
        unset = (command("sudo", "driverctl", "unset-override", gpu.address) for gpu in bound if is_gpu(gpu.address))
        yield run("configure", "take an override of driverctl back", *unset, when="driverctl set it")
    yield reboot()


# ---- awake, or stuck

_D3: Final = Pattern(
    rf"(?<![\w-])(?P<driver>[\w-]{{1,40}}) (?P<address>{links.ADDRESS}): "
    r"(?:(?:Unable to|can't) change power state from D3(?:cold|hot) to D0|"
    r"not ready \d+ms after [\w ]{1,30}; giving up|Refused to change power state, currently in D3)"
)
_GONE: Final = Pattern(r"fallen off the bus|\bXid \([^)]{1,40}\): 79\b")


def _stuck(snapshot: Snapshot) -> Iterator[Verdict]:
    gone = snapshot.view(_first_gone)
    gpus = snapshot.view(links.nvidia)
    found: dict[str, list[Citation]] = {}
    for message in kernel.said(snapshot, _D3):
        match = _D3.search(message.text)
        if match is None or _is_behind(message.citation, gone):
            continue
        address = pci.address(match["address"])
        is_gpu = (
            links.slot(address) in gpus or match["driver"] == "nvidia" or (not gpus and match["driver"] == "vfio-pci")
        )
        if is_gpu:
            found.setdefault(links.slot(address), []).append(message.citation)
    for one, citations in found.items():
        summary = (
            f"the GPU {one}.0 does not come back from its deepest sleep (D3cold): its configuration space is silent"
        )
        yield Proof(
            summary, tuple(citations), gpu=f"{one}.0", ruled_out=("a fault of the driver: the bus spoke first",)
        )


def _first_gone(snapshot: Snapshot) -> dict[str, int]:
    """The line of each log at which a GPU is first said to have fallen off the bus."""
    found: dict[str, int] = {}
    for message in kernel.said(snapshot, _GONE):
        found.setdefault(message.citation.key, message.citation.number or 0)
    return found


def _is_behind(citation: Citation, first: dict[str, int]) -> bool:
    """Whether a line stands behind the first that tells of a fallen GPU: then it is a consequence."""
    at = first.get(citation.key)
    return at is not None and (citation.number or 0) > at


# ---- regions

_INVALID_REGION: Final = Pattern(r"I/O region assigned to your NVIDIA device is invalid|\bBAR\d is 0M @ 0x0")
_CLOSED_OR_BAR: Final = Pattern(r"RmInitAdapter failed! \(0x22:0x56")
# Something that happened in a slot; that the slot can do it, every boot tells.
_HOTPLUG: Final = Pattern(
    r"\bpciehp\b[^\n]{0,40}: Slot\([^)\n]{1,16}\): (?:Card|Link|Attention button|Button|Power)"
    r"|\bthunderbolt \d+-\d|\bthunderbolt\b.{0,40}\b(?:new device|authorized)",
    re.IGNORECASE,
)
_BOX: Final = Pattern(r"\beGPU\b|\bOCuLink\b", re.IGNORECASE)


def regions(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """Which it is: no window above 4 GiB, a bridge's window too small, a virtual machine's firmware, or untold."""
    gpus = snapshot.view(links.nvidia)
    invalid = tuple(message.citation for message in kernel.said(snapshot, _INVALID_REGION))
    unassigned = snapshot.view(links.unassigned)
    core = tuple(one for one in snapshot.view(links.unplaced) if _matters(snapshot, one))
    window = snapshot.view(links.has_high_window)
    seen = (*(one.citation for one in core), *invalid, *unassigned)
    where = next((one.address for one in core if links.slot(one.address) in gpus), "")
    if not seen:
        yield from _undecided(snapshot)
        return
    if system.is_guest(snapshot):
        summary = "the virtual machine's firmware has no room above 4 GiB for the memory region of the GPU passed to it"
        yield "vm-passthrough-mmio-config", Proof(summary, seen, gpu=where)
    elif window is False:
        summary = "firmware gives the bus no addresses above 4 GiB, so the GPU's memory region has no place"
        yield "bar-above-4g-disabled", Proof(summary, seen, gpu=where)
    elif core:
        summary = "the kernel finds no room for the GPU's memory region behind the bridges above it"
        out = () if window is None else ("Above 4G Decoding is on: the bus has addresses above 4 GiB",)
        yield "bar-allocation-failed", Proof(summary, seen, "certain" if window else "likely", out, gpu=where)
    elif kernel.said(snapshot, _HOTPLUG) or snapshot.says(_BOX):
        summary = (
            "the GPU was plugged in at run time, and the window of the bridge above it does not hold its memory region"
        )
        yield "bar-allocation-failed", Proof(summary, seen, "likely")
    else:
        summary = "firmware left a memory region of the GPU without an address: Above 4G Decoding is off, or too small"
        confidence: Confidence = "certain" if system.is_guest(snapshot) is False else "likely"
        yield "bar-above-4g-disabled", Proof(summary, seen, confidence)


def _matters(snapshot: Snapshot, one: links.Unplaced) -> bool:
    """Whether a region without a place is a GPU's, or of a bridge that may stand above one that does not work."""
    gpus = snapshot.view(links.nvidia)
    if links.slot(one.address) in gpus:
        return True
    ports = snapshot.view(links.above_gpus)
    if one.is_window and ports is not None:
        return one.address in ports
    # Nobody shows what is below the bridge: it counts where a GPU is in trouble, or the log is all that is known.
    trouble = any(state not in {"works", "mismatch", "missing"} for state, _ in snapshot.view(driver.smi))
    trouble = trouble or bool(kernel.said(snapshot, _INVALID_REGION)) or bool(kernel.said(snapshot, _CLOSED_OR_BAR))
    return (one.is_window and trouble) or (not gpus and not driver.works(snapshot))


def _undecided(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    said = tuple(message.citation for message in kernel.said(snapshot, _CLOSED_OR_BAR))
    if said:
        yield (
            "bar-above-4g-disabled",
            Doubt(
                "the driver cannot start the GPU (0x22:0x56): a memory region without an address, the closed module "
                "on a GPU that needs the open one, or a GPU that does not wake up",
                "`sudo lspci -vvv -d 10de:` (regions), `modinfo nvidia | grep license`, and `sudo dmesg` above that "
                "line",
                said,
                (
                    *("bar-allocation-failed", "vm-passthrough-mmio-config", "gpu-stuck-d3cold"),
                    "proprietary-module-on-blackwell",
                ),
            ),
        )


def _realloc(snapshot: Snapshot) -> Iterable[Fix]:
    yield from _kernel_argument(snapshot, "pci=realloc", "let the kernel place the regions anew")
    yield by_hand(
        "firmware", "update the firmware, and enlarge its MMIO window (Above 4G Decoding, MMIOH size) where it can"
    )
    yield by_hand(
        "configure",
        "give hot-plugged bridges larger windows: pci=realloc,assign-busses,hpbussize=0x33,hpmmioprefsize=32G",
        "the GPU is plugged in while the system runs",
    )


def _kernel_argument(snapshot: Snapshot, argument: str, why: str) -> Iterator[Fix]:
    yield run("configure", f"boot with {argument}: {why}", *with_kernel_argument(snapshot, argument))
    yield reboot()


# ---- peers

_P2P_TROUBLE: Final = Pattern(
    r"NCCL_P2P_DISABLE|\bP2P\b.{0,60}\b(?:hang|fail|slow|timeout)|nccl.{0,80}(?:hang|timeout|deadlock)|"
    r"Watchdog caught collective operation timeout|setpci\b.{0,60}ECAP_ACS|peer access is not supported",
    re.IGNORECASE,
)
_MATRIX: Final = Pattern(r"(?P<way>\w+) P2P=(?P<state>Enabled|Disabled) Bandwidth")
_MATRIX_ROW: Final = Pattern(r"^[ \t]+\d+((?:\s+\d+\.\d+)+)\s*$")


def _acs(snapshot: Snapshot) -> Iterator[Verdict]:
    redirecting = snapshot.view(links.redirecting)
    trouble = (*snapshot.said(_P2P_TROUBLE), *snapshot.view(_slow_matrix))
    if not redirecting:
        if trouble and (validating := snapshot.view(links.validating)):
            summary = "access control (ACS) is on at bridges, and GPUs do not reach each other as they should"
            yield Proof(summary, (*validating, *trouble)[:12], "likely", severity="warning")
        return
    asked = any("acs" in item.source.only.lower() for item in snapshot.of("lspci"))
    if not asked and not trouble and (len(snapshot.view(pci.gpus)) < 2 or system.is_guest(snapshot)):
        return
    severity: Severity = "error" if trouble else ("warning" if asked else "info")
    summary = (
        "bridges redirect peer-to-peer requests to the root complex (ACS), so GPUs do not reach each other directly"
    )
    yield Proof(summary, (*redirecting, *trouble), "certain" if trouble else "likely", severity=severity)


_NO_ACS: Final = (
    "for bridge in $(lspci -d '*:*:0604' | cut -d' ' -f1); do "
    'sudo setpci -s "$bridge" ECAP_ACS+6.w=0000 2>/dev/null || true; done'
)


def _without_acs(_: Snapshot) -> Iterable[Fix]:
    yield run(
        "configure", "switch ACS off on all bridges, until the next boot (not on a host of virtual machines)", _NO_ACS
    )
    yield by_hand("firmware", "switch ACS off in BIOS, and VT-d or AMD's IOMMU where nothing needs it: that lasts")
    yield by_hand(
        "application", "set NCCL_P2P_DISABLE=1 for the job", "the node must keep ACS, as hosts of virtual machines must"
    )


_PAGE_FAULT: Final = Pattern(
    r"\bAMD-Vi: Event logged \[IO_PAGE_FAULT\b|\bDMAR: \[(?:DMA|INTR)[^\]]{0,30}\] Request device \[|"
    r"\barm-smmu\S* .{0,40}\bevent 0x10\b"
)
_FAULTY: Final = Pattern(
    r"\bnvidia (?P<bound>\S+): AMD-Vi|\bdevice=(?P<amd>[0-9a-f:.]{7,12})\b|"
    r"Request device \[(?:0x)?(?P<intel>[0-9a-f:.x]{7,12})\]"
)
_TRANSLATED: Final = Pattern(
    r"(?:intel_iommu|amd_iommu|iommu)=(?:on|force\w*)\b|Default domain type: Translated|iommu\.passthrough=0"
)
_PASSED_THROUGH: Final = Pattern(r"\biommu=(?:pt|off|soft)\b|(?:intel|amd)_iommu=off|iommu\.passthrough=1")


def _iommu(snapshot: Snapshot) -> Iterator[Verdict]:
    gpus = snapshot.view(links.nvidia)
    stopped = tuple(
        message.citation
        for message in kernel.said(snapshot, _PAGE_FAULT)
        if (match := _FAULTY.search(message.text))
        and (match["bound"] or links.slot(pci.address((match["amd"] or match["intel"]).replace("0x", ""))) in gpus)
    )
    settings = _iommu_settings(snapshot)
    if stopped:
        yield Proof(
            "the IOMMU stops what a GPU sends to its peers: their addresses are not mapped for it",
            (*stopped, *settings),
        )
        return
    trouble = snapshot.view(_slow_matrix) or _peers_hang(snapshot)
    if not trouble or snapshot.view(links.redirecting):
        return
    addressed = tuple(message.citation for message in kernel.said(snapshot, _PAGE_FAULT)) if not gpus else ()
    if addressed or settings:
        summary = "the IOMMU translates what GPUs send to each other, and peer-to-peer transfers crawl or hang"
        yield Proof(summary, (*trouble, *addressed, *settings), "likely")


_OVER_P2P: Final = Pattern(
    r"\bvia P2P/|NCCL_P2P_DISABLE|NCCL_P2P_LEVEL|\bP2P\b.{0,60}\b(?:hang|timeout)", re.IGNORECASE
)
_HANGS: Final = Pattern(
    r"\bhang(?:s|ing)?\b|\bhung\b|\bstuck\b|\bstalls?\b|Watchdog caught collective operation timeout|"
    r"NCCL_P2P_DISABLE",
    re.IGNORECASE,
)


def _peers_hang(snapshot: Snapshot) -> tuple[Citation, ...]:
    """What tells that transfers between peers hang, where no GPU of the report has an Xid that would hang them."""
    over = snapshot.said(_OVER_P2P)
    hangs = snapshot.said(_HANGS) if over else ()
    if not hangs or snapshot.view(faults.incidents):
        return ()
    return tuple(dict.fromkeys((over[0], hangs[0])))


def _iommu_settings(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The lines that switch translation on; none where one lets devices pass."""
    places = (*snapshot.files("/proc/cmdline"), *snapshot.of("kernel-log"))
    if any(True for item in places for _ in lines_with(item, _PASSED_THROUGH)):
        return ()
    return tuple(citation for item in places for citation in lines_with(item, _TRANSLATED))[:2]


def _slow_matrix(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The rows of p2pBandwidthLatencyTest in which a peer is reached at less than 1 GB/s, or slower than by the CPU."""
    found = []
    for item in snapshot.of("application", "text"):
        rows = tuple(_matrix_rows(item))
        over_host = {(way, place): cells for way, state, place, _, cells in rows if state == "Disabled"}
        for way, state, place, number, cells in rows:
            others = over_host.get((way, place), ())
            slower = any(cell < other / 2 for cell, other in zip(cells, others, strict=False))
            if state == "Enabled" and (slower or min(cells) < 1.0):
                found.append(cite(item, number))
    return tuple(found)


def _matrix_rows(item: Item) -> Iterator[tuple[str, str, int, int, tuple[float, ...]]]:
    """The rows of each matrix: one way or both, whether peers were allowed, the row's place, its line, its cells."""
    head, place = None, 0
    for number, line in enumerate(item.lines, 1):
        if match := _MATRIX.search(line):
            head, place = match, 0
        elif "Matrix" in line:
            head = None
        elif head is not None and (row := _MATRIX_ROW.match(line)):
            yield head["way"], head["state"], place, number, tuple(float(cell) for cell in row[1].split())
            place += 1


def _pass_through(snapshot: Snapshot) -> Iterable[Fix]:
    yield from _kernel_argument(snapshot, "iommu=pt", "devices of the host pass the IOMMU untranslated")
    yield by_hand(
        "firmware",
        "switch the IOMMU (VT-d, AMD-Vi) off in BIOS",
        "no virtual machines run here, and iommu=pt did not help",
    )


# ---- the link


def _degraded(snapshot: Snapshot) -> Iterator[Verdict]:
    seen = snapshot.view(links.links)
    is_odd = "baseboard" in snapshot.view(boards.carriers)
    is_odd = is_odd or any(link.width is not None and link.width == link.widest for link in seen)
    above = snapshot.view(links.lanes_above) if any(map(_is_narrow, seen)) else {}
    for link in filter(_is_narrow, seen):
        port = above.get(link.address)
        # A slot that is wired for no more lanes has lost none.
        if port is None or link.width is None or port.width > link.width:
            yield _narrow(link, port, is_odd=is_odd)


def _narrow(link: links.Link, port: links.Lanes | None, *, is_odd: bool) -> Proof:
    """What fewer lanes than the GPU has come to.

    Args:
        link: the GPU's.
        port: what the port above it can use, which is more; None where that was not seen.
        is_odd: whether other GPUs of the node, or all nodes of its kind, have more lanes.
    """
    runs = f"the PCIe link of {link.address or 'a GPU'} runs x{link.width}"
    of = f" of x{link.widest}" if link.widest else ""
    is_known = port is not None or link.is_of_both
    is_minor = link.widest is not None and link.width is not None and link.width * 2 >= link.widest
    severity: Severity = "info" if is_minor and not is_odd and link.width != 1 else "warning"
    than = "both ends have" if is_known else "the GPU has; how many the slot has was not seen"
    return Proof(
        f"{runs}{of}: fewer lanes than {than}",
        (link.citation, *((port.citation,) if port else ())),
        "certain" if is_known else "likely",
        ("saving power at idle: that lowers the speed, never the width",),
        link.address,
        severity=severity,
    )


def _is_narrow(link: links.Link) -> bool:
    if link.width is None or link.width == 0:
        return False
    return link.narrow or (link.widest is not None and link.width < link.widest)


_CORRECTED_FEW: Final = 2
_CORRECTED_MANY: Final = 10
_COUNTED_MANY: Final = 100
_LONG_LOG: Final = 400


def _storm(snapshot: Snapshot) -> Iterator[Verdict]:
    gone = snapshot.view(_first_gone)
    found = tuple(one for one in snapshot.view(links.reports) if not _is_behind(one.citation, gone))
    counted = tuple(place for count, place in snapshot.view(links.counted) if count >= _COUNTED_MANY)
    corrected = tuple(one for one in found if one.severity == "corrected")
    bits = sum(1 for one in corrected if one.bit)
    announced = sum(2 if one.many else 1 for one in corrected if not one.bit)
    is_long = any(len(item.lines) > _LONG_LOG for item in snapshot.of("kernel-log", "journal"))
    # A fallen GPU is the graver thing: a few corrected errors before it do not explain it.
    needed = _CORRECTED_MANY if is_long or gone else _CORRECTED_FEW
    if (max(bits, (announced + 1) // 2) < needed and not counted) or links.grave(found):
        return
    ports = sorted({one.address for one in corrected if one.address})
    summary = f"the PCIe link at {', '.join(ports[:3]) or 'a GPU'} corrects errors again and again: its signal is bad"
    confidence: Confidence = (
        "certain" if any(links.slot(port) in snapshot.view(links.nvidia) for port in ports) else "likely"
    )
    citations = (*(one.citation for one in corrected), *counted)
    out = ("a single corrected error, which is none",)
    gpu, at = _whose(snapshot, corrected), _first(corrected)
    yield Proof(summary, citations[:12], confidence, out, gpu, at)


def _whose(snapshot: Snapshot, reports: tuple[links.Report, ...]) -> str:
    """The GPU whose link all reports are of; empty where they are of several, or nobody tells."""
    gpus = {links.gpu_at(snapshot, one.address) for one in reports if one.address}
    return gpus.pop() if len(gpus) == 1 else ""


def _first(reports: tuple[links.Report, ...]) -> float | None:
    """When the first of them was."""
    return next((one.at for one in reports if one.at is not None), None)


def _uncorrected(snapshot: Snapshot) -> Iterator[Verdict]:
    gone = snapshot.view(_first_gone)
    found = links.grave(tuple(one for one in snapshot.view(links.reports) if not _is_behind(one.citation, gone)))
    latched = snapshot.view(links.latched)
    bits = {one.bit for one in found if one.bit}
    if not found and not (latched and kernel.said(snapshot, _ANY_XID)):
        return
    what = ", ".join(sorted(bits)) or "an uncorrected error"
    citations = (*(one.citation for one in found), *latched)
    summary = f"a transfer on the GPU's PCIe link was lost beyond repair ({what})"
    yield Proof(summary, citations[:12], gpu=_whose(snapshot, found), at=_first(found))


_ANY_XID: Final = Pattern(r"\bXid \(")

_RESEAT: Final = (
    by_hand(
        "hardware",
        "move the work away, power the node off, then seat the GPU again, change riser or cable, and try another slot",
    ),
    by_hand("firmware", "limit the slot to a lower PCIe generation in BIOS", "it comes back in another slot too"),
    run("inspect", "look at the link under load", "sudo lspci -vvv -d 10de: | grep -E 'LnkCap:|LnkSta:|CESta:|UESta:'"),
)


# ---- how many there are

_TROUBLE_OF_ONE: Final = Pattern(
    r"RmInitAdapter failed|rm_init_adapter failed|fallen off the bus|probe .{0,40}failed|is invalid:"
)
_SIZES: Final = frozenset({1, 2, 4, 8, 10, 16})


def _missing(snapshot: Snapshot) -> Iterator[Verdict]:
    # Whom nouveau or vfio-pci owns, nvidia-smi cannot show; that is another cause, or nobody's fault.
    listed = {gpu.address: gpu for gpu in snapshot.view(pci.gpus) if gpu.driver in {None, "nvidia"}}
    whole = [one for one in snapshot.view(boards.inventories) if one.count is not None]
    if not whole:
        return
    shown = max(whole, key=lambda one: one.count or 0)
    absent = _absent(listed, shown) if pci.is_listed(snapshot) else ()
    # What the kernel says of the absent one is a better answer, and another rule's.
    if absent and not kernel.said(snapshot, _TROUBLE_OF_ONE):
        named = [listed[address] for address in absent if address in listed]
        names = ", ".join(gpu.address for gpu in named) or "one"
        summary = f"{len(listed)} GPUs are on the PCI bus and nvidia-smi shows {shown.count}: {names} is missing"
        lines = (*(gpu.citation for gpu in named or listed.values()), shown.citation)
        yield Proof(summary, lines, gpu=named[0].address if named else "")
        return
    is_odd = not listed and shown.count not in _SIZES and "baseboard" in snapshot.view(boards.carriers)
    if is_odd and not kernel.said(snapshot, _TROUBLE_OF_ONE):
        summary = (
            f"nvidia-smi shows {shown.count} GPUs, and baseboards of this model carry four or eight: one is missing"
        )
        yield Proof(summary, (shown.citation,), "likely")


def _absent(listed: dict[str, pci.Function], shown: boards.Inventory) -> tuple[str, ...]:
    """The GPUs on the bus that are not shown; one empty name where nothing tells which it is."""
    buses = {board.bus for board in shown.boards if board.bus}
    if len(listed) <= (shown.count or 0):
        return ()
    if buses and len(buses) == shown.count and buses <= set(listed):
        return tuple(sorted(set(listed) - buses))
    return () if buses else ("",)


_SEARCH: Final = (
    run(
        "inspect",
        "compare the bus with the driver, and read what the kernel says of the GPU that is missing",
        "lspci -nnk -d 10de:",
        "nvidia-smi --query-gpu=index,pci.bus_id,serial --format=csv",
        "sudo dmesg | grep -E 'NVRM|AER|pcieport' | tail -n 100",
    ),
    drain(),
    power_cycle("power the node off, wait a minute, and on again: a GPU that did not come up often does then"),
    by_hand("hardware", "seat the GPU again, and have it replaced where it stays away"),
)

_NO_START: Final = NO_DRIVER | {"gsp-init-failed-platform", "gpu-fallen-off-bus"}
_APPLICATION_XIDS: Final = frozenset(
    {
        *("xid-31-mmu-fault", "xid-13-graphics-exception", "xid-109-ctx-switch-timeout", "xid-154-recovery-action"),
        *("xid-62-pmu-halt", "gsp-rpc-timeout", "xid-61-pmu-breakpoint"),
    }
)
_AER_GUIDE: Final = "https://docs.kernel.org/PCI/pcieaer-howto.html"
_NCCL_GUIDE: Final = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"

FAMILY: Final = Family(
    "pci",
    "the PCI bus",
    (
        Rule(
            cause="no-gpu-present",
            layer="hardware",
            storey="pci",
            severity="error",
            disruption="power-cycle",
            title="no NVIDIA GPU is on the bus",
            story=(
                "The driver is installed, but no device of NVIDIA's answers on the PCI bus: the card is not seated or "
                "has no power, the slot is switched off, the instance type has no GPU, or none is passed through to "
                "this virtual machine. The module then refuses to load (No such device), and nvidia-smi cannot talk "
                "to a driver. No package and no setting of this system can change it."
            ),
            sources=(f"{OPEN_MODULES}/blob/main/kernel-open/nvidia/nv.c",),
            check=_no_gpu,
            remedy=_attach,
            explains=NO_DRIVER | {"driver-not-installed"},
        ),
        Rule(
            cause="vfio-bound",
            layer="pci",
            storey="pci",
            severity="error",
            disruption="reboot",
            title="vfio-pci owns the GPU",
            story=(
                "A GPU that is to be handed to a virtual machine is bound to vfio-pci, by its id on the kernel's "
                "command line, in /etc/modprobe.d or by driverctl. NVIDIA's driver on the host is then never given "
                "it: the module loads and finds no devices, or does not load. On a host that runs virtual machines "
                "this is meant to be so."
            ),
            sources=(
                "https://docs.kernel.org/driver-api/vfio.html",
                "https://github.com/jurkovic-nikola/OpenLinkHub/pull/174",
            ),
            check=_passed_on,
            remedy=_give_back,
            explains=NO_DRIVER | {"nouveau-bound"},
        ),
        Rule(
            cause="gpu-stuck-d3cold",
            layer="pci",
            storey="pci",
            severity="error",
            disruption="power-cycle",
            title="the GPU does not wake up from D3cold",
            story=(
                "In D3cold a device has no power and its configuration space reads as all ones. After a virtual "
                "machine, a suspend or a long idle time the platform fails to bring it back; the kernel says so "
                "before any driver does. NVIDIA's driver then fails to start it (0x22:0x56), or finds it fallen off "
                "the bus, though the driver is fine."
            ),
            sources=(
                "https://github.com/bryansteiner/gpu-passthrough-tutorial/issues/39",
                "https://docs.kernel.org/power/pci.html",
            ),
            check=_stuck,
            remedy=always(
                power_cycle("power the machine off and on again: a reboot often does not reset the slot"),
                run(
                    "configure",
                    "keep GPUs from sleeping: no runtime power management for them",
                    'for gpu in /sys/bus/pci/drivers/nvidia/0*; do echo on | sudo tee "$gpu/power/control"; done',
                ),
                by_hand("configure", "load vfio-pci with disable_idle_d3=1", "virtual machines use the GPU"),
            ),
            explains=_NO_START | _APPLICATION_XIDS,
        ),
        Rule(
            cause="bar-above-4g-disabled",
            layer="pci",
            storey="pci",
            severity="error",
            disruption="reboot",
            title="firmware gives the GPU's memory region no address",
            story=(
                "A GPU shows its memory through a region (BAR1) of gigabytes, which only fits above 4 GiB of the "
                "address space. With Above 4G Decoding off in BIOS (or CSM on) firmware leaves the region empty: "
                "lspci shows it unassigned, NVRM calls it 0M, and the driver cannot start the GPU (0x22:0x56) though "
                "it is there and supported."
            ),
            sources=(
                f"{OPEN_MODULES}/issues/862",
                f"{DRIVER_GUIDE}index.html",
            ),
            check=only("bar-above-4g-disabled", regions),
            remedy=always(
                by_hand("firmware", "enable Above 4G Decoding (and Resizable BAR) in BIOS, and switch CSM off"),
                by_hand("firmware", "update the board's firmware", "the settings are on already"),
                run(
                    "inspect",
                    "look at the regions after the reboot",
                    "sudo lspci -vvv -d 10de: | grep -E '^[0-9a-f]|Region'",
                ),
            ),
            explains=_NO_START,
        ),
        Rule(
            cause="bar-allocation-failed",
            layer="pci",
            storey="pci",
            severity="error",
            disruption="reboot",
            title="no room for the GPU's memory region behind its bridge",
            story=(
                "Every bridge passes on one window of addresses, and firmware sizes it at boot, mostly for what was "
                "plugged in then. A GPU behind Thunderbolt or OCuLink, or one whose region grew, does not fit: the "
                "kernel says 'no space' or 'failed to assign' for its BARs before any driver is asked, and the driver "
                "then finds a region of 0M."
            ),
            sources=("https://github.com/system76/firmware-open/issues/66", f"{OPEN_MODULES}/issues/510"),
            check=only("bar-allocation-failed", regions),
            remedy=_realloc,
            explains=_NO_START,
        ),
        Rule(
            cause="iommu-blocks-p2p",
            layer="pci",
            storey="pci",
            severity="error",
            disruption="reboot",
            title="the IOMMU stops transfers between GPUs",
            story=(
                "GPUs write straight into each other's memory over PCIe. With an IOMMU that translates (its default "
                "on many boards) those addresses are not mapped: the IOMMU logs page faults of the GPU, collectives "
                "hang or return wrong data, and the GPUs report Xids of their own. In pass-through mode the host's "
                "devices are let through."
            ),
            sources=("https://github.com/NVIDIA/cuda-samples/issues/48", "https://github.com/NVIDIA/nccl/issues/257"),
            check=_iommu,
            remedy=_pass_through,
            explains=_APPLICATION_XIDS | UNHEALTHY_IN_CLUSTER | {"gpu-fallen-off-bus", "acs-blocks-p2p"},
        ),
        Rule(
            cause="acs-blocks-p2p",
            layer="pci",
            storey="pci",
            severity="warning",
            disruption="none",
            title="access control on bridges keeps GPUs apart",
            story=(
                "With Access Control Services a bridge sends requests from one GPU to another up to the root complex, "
                "through the IOMMU, instead of directly. That is needed to pass devices to virtual machines and "
                "harmful everywhere else: peer-to-peer transfers become slow, or NCCL hangs without an error. "
                "NCCL_P2P_DISABLE=1 makes it go away."
            ),
            sources=(_NCCL_GUIDE, "https://github.com/NVIDIA/nccl/issues/2079"),
            check=_acs,
            remedy=_without_acs,
        ),
        Rule(
            cause="pcie-uncorrectable-completion-timeout",
            layer="pci",
            storey="pci",
            severity="error",
            disruption="power-cycle",
            title="transfers on the GPU's PCIe link are lost",
            story=(
                "The GPU did not answer a request in time, or a packet arrived broken beyond repair, and the root "
                "port reports an uncorrected error. NVIDIA's driver cannot recover from it, so what follows looks "
                "like a driver fault: page faults (Xid 31) of whatever ran, GSP timeouts, at last a fallen GPU. "
                "Cable, riser, slot and power come first."
            ),
            sources=(_AER_GUIDE, f"{OPEN_MODULES}/issues/1229"),
            check=_uncorrected,
            remedy=always(*_RESEAT),
            explains=_APPLICATION_XIDS | {"pcie-aer-correctable-storm", "pcie-link-degraded"},
        ),
        Rule(
            cause="pcie-aer-correctable-storm",
            layer="pci",
            storey="pci",
            severity="warning",
            disruption="power-cycle",
            title="the GPU's PCIe link corrects errors all the time",
            story=(
                "The link between root port and GPU loses or garbles packets (BadTLP, RxErr, Timeout) and sends them "
                "again. Each is corrected, so nothing fails, but a link that does it again and again has a bad "
                "signal: riser, cable, seating, slot or power. It costs speed, and it often ends in lost transfers or "
                "a GPU fallen off the bus."
            ),
            sources=(_AER_GUIDE, "https://github.com/pop-os/pop/issues/3363"),
            check=_storm,
            remedy=always(*_RESEAT),
            explains=frozenset({"pcie-link-degraded"}),
        ),
        Rule(
            cause="pcie-link-degraded",
            layer="pci",
            storey="pci",
            severity="warning",
            disruption="power-cycle",
            title="the GPU's PCIe link has fewer lanes than it could",
            story=(
                "Card and slot agree on a width when the link is trained. Dirt, a bad riser or a bifurcation setting "
                "leave it at x8, x4 or x1, and copies between host and GPU are slower by that much. It is a fault "
                "where both ends have more lanes: a slot that is wired for fewer gives no more, and a lower speed at "
                "idle is power saving."
            ),
            sources=(
                "https://github.com/geerlingguy/raspberry-pi-pcie-devices/issues/480",
                "https://github.com/NVIDIA/NVSentinel/issues/890",
            ),
            check=_degraded,
            remedy=always(*_RESEAT),
        ),
        Rule(
            cause="gpu-missing-from-inventory",
            layer="hardware",
            storey="gpu",
            severity="error",
            disruption="power-cycle",
            title="a GPU that should be there is not",
            story=(
                "The bus shows more GPUs than the driver does, or the driver fewer than the baseboard carries, and no "
                "message says why. The missing one did not initialise, was drained, or lost its link at boot. "
                "Schedulers see fewer GPUs, and every index behind the gap moves down by one, so that jobs meet "
                "another GPU than yesterday."
            ),
            sources=(
                "https://github.com/NVIDIA/NVSentinel/issues/684",
                "https://github.com/NVIDIA/gpu-operator/issues/2511",
            ),
            check=_missing,
            remedy=always(*_SEARCH),
            explains=UNHEALTHY_IN_CLUSTER,
        ),
    ),
)
