"""The PCIe link of each GPU: whether transfers are lost on it, how often it corrects errors, how many lanes it has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.addresses import OPEN_MODULES
from gpunode.diagnoses.chains import TRANSFERS_LOST
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.model import Confidence, Family, Proof, Rule, Severity, Verdict
from gpunode.diagnoses.remedies import always, by_hand, run
from gpunode.diagnoses.signs import fact
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import boards, faults, kernel, links
from gpunode.facts.patterns import Pattern

# ---- lanes


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


# ---- errors

_CORRECTED_FEW: Final = 2
_CORRECTED_MANY: Final = 10
_COUNTED_MANY: Final = 100
_LONG_LOG: Final = 400


def _storm(snapshot: Snapshot) -> Iterator[Verdict]:
    gone = snapshot.view(faults.first_fall)
    found = tuple(one for one in snapshot.view(links.reports) if not faults.is_behind(one.citation, gone))
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
    gone = snapshot.view(faults.first_fall)
    found = links.grave(tuple(one for one in snapshot.view(links.reports) if not faults.is_behind(one.citation, gone)))
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
    run(
        "inspect",
        "look at the link under load",
        Shell("sudo lspci -vvv -d 10de: | grep -E 'LnkCap:|LnkSta:|CESta:|UESta:'"),
    ),
)

_AER_GUIDE: Final = "https://docs.kernel.org/PCI/pcieaer-howto.html"

FAMILY: Final = Family(
    "pcie",
    "PCIe links",
    (
        Rule(
            cause="pcie-uncorrectable-completion-timeout",
            layer="pci",
            storey="pci",
            disruption="power-cycle",
            title="transfers on the GPU's PCIe link are lost",
            symptoms=(symptoms.BUS_ERRORS, symptoms.GPU_LOST, symptoms.ANY_XID, symptoms.CUDA_FAULT),
            look_at=(Shell("sudo dmesg | grep -iE 'AER|PCIe Bus Error'"),),
            story=(
                "The GPU did not answer a request in time, or a packet arrived broken beyond repair, and the root "
                "port reports an uncorrected error. NVIDIA's driver cannot recover from it, so what follows looks "
                "like a driver fault: page faults (Xid 31) of whatever ran, GSP timeouts, at last a fallen GPU. "
                "Cable, riser, slot and power come first."
            ),
            sources=(_AER_GUIDE, f"{OPEN_MODULES}/issues/1229"),
            check=_uncorrected,
            typical=fact(links.remembered),
            may_be_normal=True,
            remedy=always(*_RESEAT),
            explains=TRANSFERS_LOST | {"pcie-aer-correctable-storm", "pcie-link-degraded"},
        ),
        Rule(
            cause="pcie-aer-correctable-storm",
            layer="pci",
            storey="pci",
            severity="warning",
            disruption="power-cycle",
            title="the GPU's PCIe link corrects errors all the time",
            symptoms=(symptoms.BUS_ERRORS, symptoms.SLOW),
            look_at=(Shell("sudo dmesg | grep -iE 'AER|PCIe Bus Error'"),),
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
            symptoms=(symptoms.SLOW, symptoms.BUS_ERRORS),
            look_at=(Shell("sudo lspci -vv -d 10de: | grep -E 'LnkCap:|LnkSta:'"),),
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
    ),
)
