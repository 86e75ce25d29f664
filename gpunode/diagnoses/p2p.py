"""Peer-to-peer transfers between GPUs over PCIe: what the IOMMU and access control (ACS) do to them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.chains import TRANSFERS_LOST, UNHEALTHY_IN_CLUSTER
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.judging import is_examined
from gpunode.diagnoses.model import Citation, Disruption, Family, Fix, Proof, Rule, Severity
from gpunode.diagnoses.remedies import boot_with, boots_with, by_hand, run
from gpunode.diagnoses.signs import all_of, any_of, asked, fact, line, unless
from gpunode.diagnoses.snapshot import Snapshot, cite, lines_with
from gpunode.diagnoses.views import faults, kernel, lending, links, pci, system
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern

# ---- access control

_P2P_TROUBLE: Final = line(
    r"NCCL_P2P_DISABLE|\bP2P\b.{0,60}\b(?:hang|fail|slow|timeout)|nccl.{0,80}(?:hang|timeout|deadlock)"
    r"|Watchdog caught collective operation timeout|setpci\b.{0,60}ECAP_ACS|peer access is not supported",
    flags=re.IGNORECASE,
)
_ASKED: Final = asked(r"acs(?:ctl)?\b")


def _acs(snapshot: Snapshot) -> Iterator[Proof]:
    redirecting, validating = snapshot.view(links.redirecting), snapshot.view(links.validating)
    trouble = (*snapshot.view(_P2P_TROUBLE), *snapshot.view(_slow_matrix))
    is_asked = bool(snapshot.view(_ASKED))
    if redirecting:
        is_plain = len(snapshot.view(pci.gpus)) < 2 or system.is_guest(snapshot)
        if is_plain and not (is_asked or trouble):
            return
        severity: Severity = "error" if trouble else ("warning" if is_asked else "info")
        summary = (
            "bridges redirect peer-to-peer requests to the root complex (ACS), so GPUs do not reach each other directly"
        )
        yield Proof(summary, (*redirecting, *trouble), "certain" if trouble else "likely", severity=severity)
    elif validating and (trouble or is_asked):
        summary = "access control (ACS) is on at bridges, and GPUs do not reach each other as they should"
        yield Proof(summary, (*validating, *trouble)[:12], "likely", severity="warning")


_NO_ACS: Final = Shell(
    "for bridge in $(lspci -d '*:*:0604' | cut -d' ' -f1); do "
    'sudo setpci -s "$bridge" ECAP_ACS+6.w=0000 2>/dev/null || true; done'
)


def _without_acs(snapshot: Snapshot) -> Iterable[Fix]:
    if _has_guests(snapshot):
        text = "set NCCL_P2P_DISABLE=1 for the job: this node needs ACS, which keeps its virtual machines apart"
        yield by_hand("application", text)
        return
    yield run(
        "configure", "switch ACS off on all bridges, until the next boot (not on a host of virtual machines)", _NO_ACS
    )
    yield by_hand("firmware", "switch ACS off in BIOS, and VT-d or AMD's IOMMU where nothing needs it: that lasts")
    yield by_hand(
        "application", "set NCCL_P2P_DISABLE=1 for the job", "the node must keep ACS, as hosts of virtual machines must"
    )


# ---- the IOMMU

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


def _iommu(snapshot: Snapshot) -> Iterator[Proof]:
    """The page faults of a GPU; where it is not known which devices are GPUs, any that somebody chose to paste."""
    gpus = snapshot.view(links.nvidia)
    stopped = tuple(
        message.citation
        for message in kernel.said(snapshot, _PAGE_FAULT)
        if (match := _FAULTY.search(message.text))
        and (match["bound"] or links.slot(pci.address((match["amd"] or match["intel"]).replace("0x", ""))) in gpus)
    )
    if stopped:
        summary = "the IOMMU stops what a GPU sends to its peers: their addresses are not mapped for it"
        disruption: Disruption | None = "none" if _leaves_it_on(snapshot) else None
        yield Proof(summary, (*stopped, *snapshot.view(_TRANSLATES)), disruption=disruption)


def _faults_of_any(snapshot: Snapshot) -> Iterator[Citation]:
    is_chosen = not (snapshot.view(links.nvidia) or is_examined(snapshot))
    return (message.citation for message in kernel.said(snapshot, _PAGE_FAULT) if is_chosen)


_OVER_P2P: Final = line(
    r"\bvia P2P/|NCCL_P2P_DISABLE|NCCL_P2P_LEVEL|\bP2P\b.{0,60}\b(?:hang|timeout)", flags=re.IGNORECASE
)
_HANGS: Final = line(
    r"\bhang(?:s|ing)?\b|\bhung\b|\bstuck\b|\bstalls?\b|Watchdog caught collective operation timeout"
    r"|NCCL_P2P_DISABLE",
    flags=re.IGNORECASE,
)


def _iommu_settings(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The lines that switch translation on; none where one lets devices pass."""
    places = (*snapshot.files("/proc/cmdline"), *snapshot.of("kernel-log"))
    if any(True for item in places for _ in lines_with(item, _PASSED_THROUGH)):
        return ()
    return tuple(citation for item in places for citation in lines_with(item, _TRANSLATED))[:2]


def _has_guests(snapshot: Snapshot) -> bool:
    """Whether virtual machines run here, which ACS and the IOMMU keep apart."""
    return bool(lending.lent(snapshot)) or lending.is_hypervisor(snapshot)


def _leaves_it_on(snapshot: Snapshot) -> bool:
    """Whether all was done that a host of virtual machines can do about its IOMMU."""
    return boots_with(snapshot, _PASSES) and _has_guests(snapshot)


_PASSES: Final = "iommu=pt"


def _pass_through(snapshot: Snapshot) -> Iterable[Fix]:
    if _leaves_it_on(snapshot):
        text = "set NCCL_P2P_DISABLE=1 for the job: the IOMMU has to stay on for the virtual machines"
        yield by_hand("application", text)
        return
    if boots_with(snapshot, _PASSES):
        yield by_hand("firmware", "switch the IOMMU (VT-d, AMD-Vi) off in BIOS: iommu=pt is set, and does not help")
        return
    yield from boot_with(snapshot, _PASSES, "devices of the host pass the IOMMU untranslated")
    yield by_hand(
        "firmware",
        "switch the IOMMU (VT-d, AMD-Vi) off in BIOS",
        "no virtual machines run here, and iommu=pt did not help",
    )


# ---- what both do: peers are slow

_MATRIX: Final = Pattern(r"\b(?P<way>\w{1,40}) P2P=(?P<state>Enabled|Disabled) Bandwidth")
_MATRIX_ROW: Final = Pattern(r"^[ \t]+\d+((?:\s+\d+\.\d+)+)\s*$")


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
    for number, text in enumerate(item.lines, 1):
        if match := _MATRIX.search(text):
            head, place = match, 0
        elif "Matrix" in text:
            head = None
        elif head is not None and (row := _MATRIX_ROW.match(text)):
            yield head["way"], head["state"], place, number, tuple(float(cell) for cell in row[1].split())
            place += 1


_SLOW: Final = fact(lambda snapshot: snapshot.view(_slow_matrix))
_TRANSLATES: Final = fact(_iommu_settings)
_NCCL_GUIDE: Final = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"

FAMILY: Final = Family(
    "p2p",
    "peer-to-peer transfers between GPUs",
    (
        Rule(
            cause="iommu-blocks-p2p",
            layer="pci",
            storey="pci",
            disruption="reboot",
            title="the IOMMU stops transfers between GPUs",
            symptoms=(symptoms.NCCL_FAILS, symptoms.SLOW, symptoms.CUDA_FAULT),
            look_at=(Shell("sudo dmesg | grep -iE 'DMAR|AMD-Vi|IO_PAGE_FAULT'"),),
            story=(
                "GPUs write straight into each other's memory over PCIe. With an IOMMU that translates (its default "
                "on many boards) those addresses are not mapped: the IOMMU logs page faults of the GPU, collectives "
                "hang or return wrong data, and the GPUs report Xids of their own. In pass-through mode the host's "
                "devices are let through."
            ),
            sources=("https://github.com/NVIDIA/cuda-samples/issues/48", "https://github.com/NVIDIA/nccl/issues/257"),
            check=_iommu,
            typical=unless(
                any_of(fact(_faults_of_any), _SLOW, unless(all_of(_TRANSLATES, _OVER_P2P, _HANGS), fact(faults.grave))),
                fact(links.redirecting),
            ),
            context=_TRANSLATES,
            summary="the IOMMU translates what GPUs send to each other, and peer-to-peer transfers crawl or hang",
            remedy=_pass_through,
            explains=TRANSFERS_LOST | UNHEALTHY_IN_CLUSTER | {"gpu-fallen-off-bus", "acs-blocks-p2p"},
        ),
        Rule(
            cause="acs-blocks-p2p",
            layer="pci",
            storey="pci",
            severity="warning",
            disruption="none",
            title="access control on bridges keeps GPUs apart",
            symptoms=(symptoms.NCCL_FAILS, symptoms.SLOW),
            look_at=(Shell("sudo lspci -vvv | grep -i ACSCtl"),),
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
    ),
)
