"""PCIe links and peer-to-peer transfers: lost and corrected packets, missing lanes, IOMMU and access control (ACS)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.consequences import TRANSFERS_LOST, UNHEALTHY_IN_CLUSTER
from gpunode.diagnoses.evaluation import is_examined_by_gpunode
from gpunode.diagnoses.model import Citation, Confidence, Fix, Proof, Rule, Severity
from gpunode.diagnoses.remedies import add_kernel_argument, has_kernel_argument, look_at_hardware, manual_step, run_step
from gpunode.diagnoses.signs import all_of, any_of, command_run, custom_sign, kernel_line, message_line, unless
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import boards, faults, kernel, pci, pcie_links, virtualization
from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass

# ---- lanes


def _find_degraded_links(snapshot: Snapshot) -> Iterator[Proof]:
    seen = snapshot.view(pcie_links.gpu_links)
    is_odd = "baseboard" in snapshot.view(boards.board_kinds) or any(0 < link.width == link.max_width for link in seen)
    for link in (link for link in seen if link.is_narrow):
        above = pcie_links.bridges_above(snapshot, link.address) if link.address else ()
        port = snapshot.view(pcie_links.link_table).get(above[-1]) if above else None
        port = port if port and port.max_width else None
        # The link has all the lanes that its slot is wired for.
        if port and port.max_width <= link.width:
            continue
        is_known = port is not None or link.covers_both_ends
        than = "both ends have" if is_known else "the GPU has (the slot's width is unknown)"
        is_minor = link.width * 2 >= link.max_width > 0 and not is_odd and link.width > 1
        severity: Severity = "info" if is_minor else "warning"
        of = f" of x{link.max_width}" if link.max_width else ""
        yield Proof(
            f"the PCIe link of {link.address or 'a GPU'} runs x{link.width}{of}: fewer lanes than {than}",
            (link.citation, *((port.citation,) if port and port.width else ())),
            "certain" if is_known else "likely",
            gpu=link.address,
            severity=severity,
        )


_LINK_BANDWIDTH_LIMITED: Final = kernel_line(
    r"available PCIe bandwidth, limited by \S+ GT/s PCIe x(\d+) .* PCIe x(?!\1\b)\d+ link"
)
_DEVICE_ADDRESS: Final = Pattern(pcie_links.ADDRESS)


def _links_narrow_at_boot(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the kernel's messages about GPUs whose link has fewer lanes than possible."""
    for line in snapshot.view(_LINK_BANDWIDTH_LIMITED):
        match = _DEVICE_ADDRESS.search(line.line)
        if match and pcie_links.pci_slot(pci.normalize_address(match[0])) in snapshot.view(pcie_links.nvidia_slots):
            yield line


# ---- errors

# Bits of uncorrected errors, except unsupported requests, which probing causes.
_UNCORRECTED_ERROR_BITS: Final = (
    r"(?:DLP|Data Link Protocol|SDES|Surprise Down|Poisoned TLP|FCP|Flow Control Protocol|CmpltTO|Completion Timeout"
    r"|CmpltAbrt|Completer Abort|UnxCmplt|Unexpected Completion|RxOF|Receiver Overflow|MalfTLP|Malformed TLP|ECRC)"
)
_UNCORRECTED_AER_ERROR: Final = Pattern(
    rf"\[\s*\d{{1,2}}\]\s*(?P<bit>{_UNCORRECTED_ERROR_BITS})|\bPCIe Bus Error: (?:severity=)?Uncorrect"
    r"|\bAER: (?:Multiple )?Uncorrect(?:ed|able)(?: \((?:Non-)?Fatal\))? error(?: message)? received"
    r"|\bnvidia \S+: (?:AER: can't recover|device has no AER-aware driver)"
)
_REFUSED_REQUEST: Final = Pattern(r"\[\s*\d{1,2}\]\s*(?:UnsupReq|Unsupported Request|ACSViol)")
_CORRECTED_AER_ERROR: Final = Pattern(
    r"\bPCIe Bus Error: (?:severity=)?Correct|\bAER: (?:Multiple )?Correct(?:ed|able) error(?: message)? received"
    r"|\[\s*\d{1,2}\]\s*(?:RxErr|Receiver Error|Bad ?[TD]LL?P|Rollover|RELAY_NUM|(?:Replay Timer )?Timeout"
    r"|(?:Adv)?NonFatalErr|Advisory)"
)
_AER_REPORTING_DEVICE: Final = Pattern(rf"(?<![\w-])(?P<driver>[\w-]{{1,40}}) (?P<address>{pcie_links.ADDRESS}): ")
_AER_ERROR_SOURCE: Final = Pattern(rf"received(?: from|:) (?P<address>{pcie_links.ADDRESS})")
_ERROR_REPORTING_DRIVERS: Final = frozenset({"pcieport", "pci", "nvidia", "vfio-pci", "nouveau", "nvidia-gpu"})


@dataclass(frozen=True, slots=True)
class _BusError:
    """A kernel message about a bus error; ``address`` is the reporting device's, empty if unknown."""

    address: str
    message: kernel.Message


def _reported_bus_errors(snapshot: Snapshot) -> tuple[_BusError, ...]:
    """Return the errors that may concern a GPU, without those of other devices or of a GPU off the bus."""
    gone, gpus, ports = (
        snapshot.view(faults.first_bus_falls),
        snapshot.view(pcie_links.nvidia_slots),
        snapshot.view(pcie_links.gpu_bridges),
    )
    found, strangers = list[tuple[str, _BusError]](), set[str]()
    for message in kernel.matching_messages(snapshot, _UNCORRECTED_AER_ERROR, _CORRECTED_AER_ERROR, _REFUSED_REQUEST):
        text = message.text
        if faults.is_after_fall(message.citation, gone):
            continue
        speaker, origin = _AER_REPORTING_DEVICE.search(text), _AER_ERROR_SOURCE.search(text)
        address = pci.normalize_address(speaker["address"]) if speaker else ""
        found.append(
            (
                pcie_links.pci_slot(pci.normalize_address(origin["address"]) if origin else address),
                _BusError(address, message),
            )
        )
        if speaker and pcie_links.pci_slot(address) not in gpus:
            is_other = speaker["driver"] not in _ERROR_REPORTING_DRIVERS or (ports is not None and address not in ports)
            strangers |= {pcie_links.pci_slot(address)} if is_other else set()
    return tuple(one for origin, one in found if not {pcie_links.pci_slot(one.address), origin} & strangers)


def _errors_matching(snapshot: Snapshot, pattern: Pattern) -> tuple[_BusError, ...]:
    return tuple(error for error in snapshot.view(_reported_bus_errors) if pattern.search(error.message.text))


def _uncorrected_errors(snapshot: Snapshot) -> tuple[_BusError, ...]:
    """Return the uncorrected errors; none if all are unsupported requests."""
    found = _errors_matching(snapshot, _UNCORRECTED_AER_ERROR)
    is_minor = bool(_errors_matching(snapshot, _REFUSED_REQUEST)) and not any(_error_bits(one) for one in found)
    return () if is_minor else found


def _error_bits(report: _BusError) -> list[str]:
    return [match["bit"] for match in _UNCORRECTED_AER_ERROR.finditer(report.message.text) if match["bit"]]


# One error takes up to four lines; a log of weeks always contains a few.
_MIN_STORM_ERRORS: Final = 4
_MIN_STORM_ERRORS_LONG_LOG: Final = 20
_MIN_LINES_OF_LONG_LOG: Final = 400


def _find_corrected_error_storm(snapshot: Snapshot) -> Iterator[Proof]:
    errors = _errors_matching(snapshot, _CORRECTED_AER_ERROR)
    is_long = any(len(item.lines) > _MIN_LINES_OF_LONG_LOG for item in snapshot.items_of("kernel-log", "journal"))
    # A GPU off the bus is more serious: a few corrected errors before it do not explain it.
    often = sum(
        len(_CORRECTED_AER_ERROR.findall(one.message.text)) + ("AER: Multiple" in one.message.text) for one in errors
    )
    is_often = often >= (
        _MIN_STORM_ERRORS_LONG_LOG if is_long or snapshot.view(faults.first_bus_falls) else _MIN_STORM_ERRORS
    )
    if is_often and not snapshot.view(_uncorrected_errors):
        is_its_own = any(pcie_links.pci_slot(one.address) in snapshot.view(pcie_links.nvidia_slots) for one in errors)
        summary = "the GPU's PCIe link keeps correcting errors: its signal is bad"
        yield _make_proof(snapshot, summary, errors, confidence="certain" if is_its_own else "likely")


def _find_uncorrected_errors(snapshot: Snapshot) -> Iterator[Proof]:
    if found := snapshot.view(_uncorrected_errors):
        what = ", ".join(sorted({bit for one in found for bit in _error_bits(one)})) or "an uncorrected error"
        yield _make_proof(snapshot, f"a transfer on the GPU's PCIe link was lost ({what})", found)


def _make_proof(
    snapshot: Snapshot, summary: str, errors: tuple[_BusError, ...], *more: Citation, confidence: Confidence = "certain"
) -> Proof:
    """Return the proof; it names the GPU if all errors are on one link."""
    gpus = {pcie_links.gpu_at(snapshot, one.address) for one in errors if one.address}
    at = next((one.message.at for one in errors if one.message.at is not None), None)
    cited = tuple(dict.fromkeys((*(one.message.citation for one in errors), *more)))[:12]
    return Proof(summary, cited, confidence, gpu=gpus.pop() if len(gpus) == 1 else "", at=at)


_RESEAT_GPU_FIXES: Final = (
    manual_step("hardware", "power the node off, reseat the GPU, change riser or cable, and try another slot"),
    manual_step(
        "firmware", "limit the slot to a lower PCIe generation in the BIOS", "it comes back in another slot too"
    ),
    run_step("inspect", "check the link under load", Shell("sudo lspci -vvv -d 10de: | grep -E 'Lnk(Cap|Sta):|ESta:'")),
)

_rule = partial(Rule, layer="pci")


# ---- access control

_PEER_TRANSFER_PROBLEM: Final = any_of(
    message_line(
        r"(?i)NCCL_P2P_(?:DISABLE|LEVEL)|\bP2P\b.{0,60}\b(?:hang|fail|slow|timeout)|nccl.{0,80}(?:hang|timeout|deadlock|stuck)"
        r"|Watchdog caught collective operation timeout|setpci\b.{0,60}ECAP_ACS|peer access is not supported"
    ),
    message_line(r"(?i)\bvia P2P/[^\n]*\n[^\n]*\bhang"),
)
# A network card's transfer from or to a GPU: IBV_WC_LOC_PROT_ERR and IBV_WC_REM_OP_ERR.
_PEER_TRANSFER_REFUSED: Final = message_line(r"NET/IB : Got completion [^\n]{0,60}(?:error|status=)\s?(?:4|11)\b")
_ACS_INSPECTED: Final = command_run(r"acs(?:ctl)?\b|Access Control")
_ACS_REDIRECTS_REQUESTS: Final = message_line(r"\bACSCtl:[^\n]{0,200}?\bReqRedir\+", "lspci", "text", "file")
_ACS_VALIDATES_SOURCE: Final = message_line(r"\bACSCtl:[^\n]{0,200}?\bSrcValid\+", "lspci", "text", "file")
_DISABLE_ACS_COMMAND: Final = Shell(
    "for bridge in $(lspci -d '*:*:0604' | cut -d' ' -f1); do "
    'sudo setpci -s "$bridge" ECAP_ACS+6.w=0000 2>/dev/null || true; done'
)


def _disable_acs(snapshot: Snapshot) -> Iterable[Fix]:
    if _has_guests(snapshot):
        text = "set NCCL_P2P_DISABLE=1 for the job: this node needs ACS, which isolates its virtual machines"
        yield manual_step("application", text)
        return
    yield run_step(
        "configure",
        "turn ACS off on all bridges, until the next boot (not on a host of virtual machines)",
        _DISABLE_ACS_COMMAND,
    )
    yield manual_step(
        "firmware", "turn ACS off in the BIOS, and VT-d or AMD's IOMMU if nothing needs them: this is permanent"
    )


# ---- the IOMMU

_IOMMU_PAGE_FAULT: Final = Pattern(
    r"(?:\bnvidia (?P<bound>\S+): )?\bAMD-Vi: Event logged \[IO_PAGE_FAULT(?: device=(?P<amd>[0-9a-f:.]{7,12}))?"
    r"|\bDMAR: \[(?:DMA|INTR)[^\]]{0,30}\] Request device \[(?:0x)?(?P<intel>[0-9a-f:.x]{7,12})\]"
    r"|\barm-smmu\S* .{0,40}\bevent 0x10\b"
)
_IOMMU_TRANSLATES: Final = unless(
    message_line(
        r"(?:intel_iommu|amd_iommu|iommu)=(?:on|force\w*)\b|Default domain type: Translated|iommu\.passthrough=0",
        "file", "kernel-log", "text",
    ),
    message_line(r"\biommu=(?:pt|off|soft)\b|(?:intel|amd)_iommu=off|iommu\.passthrough=1",
                 "file", "kernel-log", "text"),
)  # fmt: skip


def _gpu_page_faults(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the page faults of GPUs."""
    gpus = snapshot.view(pcie_links.nvidia_slots)
    for message in kernel.matching_messages(snapshot, _IOMMU_PAGE_FAULT):
        match = _IOMMU_PAGE_FAULT.search(message.text)
        device = ((match["amd"] or match["intel"] or "") if match else "").replace("0x", "")
        if (match and match["bound"]) or (device and pcie_links.pci_slot(pci.normalize_address(device)) in gpus):
            yield message.citation


def _pasted_iommu_page_faults(snapshot: Snapshot) -> Iterator[Citation]:
    is_chosen = not (snapshot.view(pcie_links.nvidia_slots) or is_examined_by_gpunode(snapshot))
    return (message.citation for message in kernel.matching_messages(snapshot, _IOMMU_PAGE_FAULT) if is_chosen)


def _has_guests(snapshot: Snapshot) -> bool:
    """Return whether virtual machines run here, which need ACS and the IOMMU for isolation."""
    return bool(virtualization.passed_through_gpus(snapshot)) or virtualization.is_hypervisor(snapshot)


_IOMMU_PASSTHROUGH_ARGUMENT: Final = "iommu=pt"


def _bypass_iommu(snapshot: Snapshot) -> Iterable[Fix]:
    if not has_kernel_argument(snapshot, _IOMMU_PASSTHROUGH_ARGUMENT):
        yield from add_kernel_argument(
            snapshot, _IOMMU_PASSTHROUGH_ARGUMENT, "devices of the host bypass IOMMU translation"
        )
    elif _has_guests(snapshot):
        text = "set NCCL_P2P_DISABLE=1 for the job: the IOMMU must stay on for the virtual machines"
        yield manual_step("application", text)
        return
    text = "turn the IOMMU (VT-d, AMD-Vi) off in the BIOS"
    yield manual_step("firmware", text, "no virtual machines run here, and iommu=pt did not help")


# ---- a symptom of both: slow peers

# p2pBandwidthLatencyTest reaches a peer at less than 2 GB/s.
_PEER_BANDWIDTH_LOW: Final = message_line(
    r"P2P=Enabled Bandwidth[^\n]*\n[ \t]*D.D[^\n]*\n(?:[ \t]*\d+ [^\n]*\n){0,15}?[ \t]*\d+ [^\n]*\s[01]\.\d\d\b",
    "application", "text",
)  # fmt: skip

RULES: Final = (
    _rule(
        cause="iommu-blocks-p2p",
        disruption="reboot",
        symptoms=(symptoms.NCCL_FAILS, symptoms.GPU_SLOW, symptoms.CUDA_PROGRAM_FAULT, _PEER_TRANSFER_REFUSED),
        look_at=(Shell("sudo dmesg | grep -iE 'DMAR|AMD-Vi|IO_PAGE_FAULT'"),),
        decisive=custom_sign(_gpu_page_faults),
        typical=unless(
            any_of(
                custom_sign(_pasted_iommu_page_faults),
                _PEER_BANDWIDTH_LOW,
                unless(all_of(_IOMMU_TRANSLATES, _PEER_TRANSFER_PROBLEM), custom_sign(faults.serious_fault_lines)),
            ),
            _ACS_REDIRECTS_REQUESTS,
        ),
        context=any_of(_IOMMU_TRANSLATES, _PEER_TRANSFER_PROBLEM),
        remedy=_bypass_iommu,
        explains=TRANSFERS_LOST | UNHEALTHY_IN_CLUSTER | {"gpu-fallen-off-bus", "acs-blocks-p2p"},
    ),
    _rule(
        cause="acs-blocks-p2p",
        severity="warning",
        symptoms=(symptoms.NCCL_FAILS, symptoms.GPU_SLOW, _PEER_TRANSFER_REFUSED),
        look_at=(Shell("sudo lspci -vvv | grep -i ACSCtl"),),
        decisive=all_of(_ACS_REDIRECTS_REQUESTS, any_of(_PEER_TRANSFER_PROBLEM, _PEER_BANDWIDTH_LOW)),
        typical=any_of(
            all_of(_ACS_REDIRECTS_REQUESTS, _ACS_INSPECTED),
            all_of(_ACS_VALIDATES_SOURCE, any_of(_PEER_TRANSFER_PROBLEM, _PEER_BANDWIDTH_LOW, _ACS_INSPECTED)),
        ),
        context=any_of(_ACS_REDIRECTS_REQUESTS, _PEER_TRANSFER_PROBLEM),
        remedy=_disable_acs,
    ),
    _rule(
        cause="pcie-uncorrectable-completion-timeout",
        disruption="power-cycle",
        symptoms=(symptoms.PCIE_BUS_ERRORS, symptoms.GPU_LOST, symptoms.ANY_XID, symptoms.CUDA_PROGRAM_FAULT),
        look_at=(Shell("sudo dmesg | grep -iE 'AER|PCIe Bus Error'"),),
        check=_find_uncorrected_errors,
        typical=message_line(r"\bUESta:[^\n]{0,200}?\b(?:CmpltTO|SDES|DLP|MalfTLP)\+", "lspci", "text", "file"),
        may_be_normal=True,
        remedy=look_at_hardware(*_RESEAT_GPU_FIXES),
        explains=TRANSFERS_LOST | {"pcie-aer-correctable-storm", "pcie-link-degraded"},
    ),
    _rule(
        cause="pcie-aer-correctable-storm",
        severity="warning",
        disruption="power-cycle",
        symptoms=(symptoms.PCIE_BUS_ERRORS, symptoms.GPU_SLOW),
        look_at=(Shell("sudo dmesg | grep -iE 'AER|PCIe Bus Error'"),),
        check=_find_corrected_error_storm,
        typical=message_line(r"^(?:TOTAL_ERR_COR|RxErr|BadTLP|BadDLLP)\s+[1-9]\d{2,17}\b", "file", "listing", "text"),
        may_be_normal=True,
        remedy=look_at_hardware(*_RESEAT_GPU_FIXES),
        explains=frozenset({"pcie-link-degraded"}),
    ),
    _rule(
        cause="pcie-link-degraded",
        severity="warning",
        disruption="power-cycle",
        symptoms=(symptoms.GPU_SLOW, symptoms.PCIE_BUS_ERRORS),
        look_at=(Shell("sudo lspci -vv -d 10de: | grep -E 'LnkCap:|LnkSta:'"),),
        check=_find_degraded_links,
        typical=custom_sign(_links_narrow_at_boot),
        may_be_normal=True,
        remedy=look_at_hardware(*_RESEAT_GPU_FIXES),
    ),
)
