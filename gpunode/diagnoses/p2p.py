"""Peer-to-peer transfers between GPUs over PCIe: what the IOMMU and access control (ACS) do to them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.consequences import TRANSFERS_LOST, UNHEALTHY_IN_CLUSTER
from gpunode.diagnoses.evaluation import is_examined
from gpunode.diagnoses.model import Citation, Fix, Rule
from gpunode.diagnoses.remedies import add_kernel_argument, has_kernel_argument, manual_step, run_step
from gpunode.diagnoses.signs import all_of, any_of, command_run, custom_sign, message_line, unless
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import faults, kernel, passthrough, pci, pcie_links
from gpunode.facts.patterns import Pattern

# ---- access control

_HANGS: Final = message_line(
    r"NCCL_P2P_(?:DISABLE|LEVEL)|\bP2P\b.{0,60}\b(?:hang|fail|slow|timeout)|nccl.{0,80}(?:hang|timeout|deadlock|stuck)"
    r"|Watchdog caught collective operation timeout|setpci\b.{0,60}ECAP_ACS|peer access is not supported"
    r"|\bvia P2P/[^\n]*\n[^\n]*\bhang",
    flags=re.IGNORECASE,
)
_ASKED: Final = command_run(r"acs(?:ctl)?\b|Access Control")
_REDIRECTS: Final = message_line(r"\bACSCtl:[^\n]{0,200}?\bReqRedir\+", "lspci", "text", "file")
_VALIDATES: Final = message_line(r"\bACSCtl:[^\n]{0,200}?\bSrcValid\+", "lspci", "text", "file")
_NO_ACS: Final = Shell(
    "for bridge in $(lspci -d '*:*:0604' | cut -d' ' -f1); do "
    'sudo setpci -s "$bridge" ECAP_ACS+6.w=0000 2>/dev/null || true; done'
)


def _disable_acs(snapshot: Snapshot) -> Iterable[Fix]:
    if _has_guests(snapshot):
        text = "set NCCL_P2P_DISABLE=1 for the job: this node needs ACS, which isolates its virtual machines"
        yield manual_step("application", text)
        return
    yield run_step(
        "configure", "turn ACS off on all bridges, until the next boot (not on a host of virtual machines)", _NO_ACS
    )
    yield manual_step(
        "firmware", "turn ACS off in the BIOS, and VT-d or AMD's IOMMU if nothing needs them: this is permanent"
    )


# ---- the IOMMU

_PAGE_FAULT: Final = Pattern(
    r"(?:\bnvidia (?P<bound>\S+): )?\bAMD-Vi: Event logged \[IO_PAGE_FAULT(?: device=(?P<amd>[0-9a-f:.]{7,12}))?"
    r"|\bDMAR: \[(?:DMA|INTR)[^\]]{0,30}\] Request device \[(?:0x)?(?P<intel>[0-9a-f:.x]{7,12})\]"
    r"|\barm-smmu\S* .{0,40}\bevent 0x10\b"
)
_TRANSLATES: Final = unless(
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
    for message in kernel.matching_messages(snapshot, _PAGE_FAULT):
        match = _PAGE_FAULT.search(message.text)
        device = ((match["amd"] or match["intel"] or "") if match else "").replace("0x", "")
        if (match and match["bound"]) or (device and pcie_links.pci_slot(pci.normalize_address(device)) in gpus):
            yield message.citation


def _any_page_faults(snapshot: Snapshot) -> Iterator[Citation]:
    is_chosen = not (snapshot.view(pcie_links.nvidia_slots) or is_examined(snapshot))
    return (message.citation for message in kernel.matching_messages(snapshot, _PAGE_FAULT) if is_chosen)


def _has_guests(snapshot: Snapshot) -> bool:
    """Return whether virtual machines run here, which ACS and the IOMMU isolate."""
    return bool(passthrough.passed_through_gpus(snapshot)) or passthrough.is_hypervisor(snapshot)


_PASSES: Final = "iommu=pt"


def _bypass_iommu(snapshot: Snapshot) -> Iterable[Fix]:
    if not has_kernel_argument(snapshot, _PASSES):
        yield from add_kernel_argument(snapshot, _PASSES, "devices of the host bypass IOMMU translation")
    elif _has_guests(snapshot):
        text = "set NCCL_P2P_DISABLE=1 for the job: the IOMMU must stay on for the virtual machines"
        yield manual_step("application", text)
        return
    text = "turn the IOMMU (VT-d, AMD-Vi) off in the BIOS"
    yield manual_step("firmware", text, "no virtual machines run here, and iommu=pt did not help")


# ---- what both do: peers are slow

# p2pBandwidthLatencyTest: a peer is reached at less than 2 GB/s.
_SLOW: Final = message_line(
    r"P2P=Enabled Bandwidth[^\n]*\n[ \t]*D.D[^\n]*\n(?:[ \t]*\d+ [^\n]*\n){0,15}?[ \t]*\d+ [^\n]*\s[01]\.\d\d\b",
    "application", "text",
)  # fmt: skip
_rule = partial(Rule, layer="pci")

RULES: Final = (
    _rule(
        cause="iommu-blocks-p2p",
        disruption="reboot",
        symptoms=(symptoms.NCCL_FAILS, symptoms.SLOW, symptoms.CUDA_FAULT),
        look_at=(Shell("sudo dmesg | grep -iE 'DMAR|AMD-Vi|IO_PAGE_FAULT'"),),
        decisive=custom_sign(_gpu_page_faults),
        typical=unless(
            any_of(
                custom_sign(_any_page_faults),
                _SLOW,
                unless(all_of(_TRANSLATES, _HANGS), custom_sign(faults.serious_fault_lines)),
            ),
            _REDIRECTS,
        ),
        context=_TRANSLATES,
        summary="the IOMMU translates transfers between GPUs, so peer-to-peer transfers are slow or hang",
        remedy=_bypass_iommu,
        explains=TRANSFERS_LOST | UNHEALTHY_IN_CLUSTER | {"gpu-fallen-off-bus", "acs-blocks-p2p"},
    ),
    _rule(
        cause="acs-blocks-p2p",
        severity="warning",
        disruption="none",
        symptoms=(symptoms.NCCL_FAILS, symptoms.SLOW),
        look_at=(Shell("sudo lspci -vvv | grep -i ACSCtl"),),
        decisive=all_of(_REDIRECTS, any_of(_HANGS, _SLOW)),
        typical=any_of(all_of(_REDIRECTS, _ASKED), all_of(_VALIDATES, any_of(_HANGS, _SLOW, _ASKED))),
        context=any_of(_REDIRECTS, _HANGS),
        summary="bridges route requests between GPUs through the root complex (ACS)",
        remedy=_disable_acs,
    ),
)
