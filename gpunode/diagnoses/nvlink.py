"""NVLink, NVSwitch and the fabric manager."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace as replaced
from typing import Final, Literal, TypeAlias

from gpunode.catalog import xids
from gpunode.diagnoses import recovering, symptoms
from gpunode.diagnoses.addresses import OPEN_MODULES, XID_CATALOG
from gpunode.diagnoses.chains import UNHEALTHY_IN_CLUSTER
from gpunode.diagnoses.commands import Shell, joined
from gpunode.diagnoses.model import Citation, Confidence, Family, Fix, Proof, Rule, Sign
from gpunode.diagnoses.remedies import (
    MANAGER_OF_IT,
    always,
    by_hand,
    drain,
    install,
    nvidia_report,
    reboot,
    replace,
    reset_all_gpus,
    run,
)
from gpunode.diagnoses.signs import all_of, any_of, asked, fact, holds, line, unless
from gpunode.diagnoses.snapshot import Snapshot, stated
from gpunode.diagnoses.views import boards, fabric, faults, nvlinks, recovery, smi_query, system
from gpunode.diagnoses.views.topology import addresses, topology
from gpunode.facts import xid
from gpunode.facts.patterns import Pattern

# ---- the fabric manager


def _state(*states: fabric.UnitState) -> Sign:
    """The lines that show the fabric manager's service in one of these states."""

    def shown(snapshot: Snapshot) -> tuple[Citation, ...]:
        manager = snapshot.view(fabric.manager)
        return manager.citations if manager.state in states else ()

    return fact(shown)


def _versions(snapshot: Snapshot) -> tuple[Citation, ...]:
    found = snapshot.view(fabric.mismatch)
    return found.citations if found else ()


_MISSING: Final = _state("missing")
_DOWN: Final = _state("failed", "inactive", "masked")
_VERSIONS_DIFFER: Final = fact(_versions)
_NOTHING: Final = line(r"NV_WARN_NOTHING_TO_DO|failed with error: ?WARNING Nothing to do|failed to detect any NVSwitch")
_SWITCHES: Final = fact(fabric.switches)
_BASEBOARD: Final = holds(lambda node: "baseboard" in node.view(boards.carriers), "the GPUs are on a baseboard")
_IN_PROGRESS: Final = fact(fabric.in_progress)
_NOT_READY: Final = fact(fabric.not_ready)
_NEEDED: Final = any_of(_SWITCHES, _IN_PROGRESS, _NOT_READY)
_NOT_NEEDED: Final = holds(
    lambda snapshot: snapshot.view(fabric.is_needed) is False, "the GPUs of this node are not joined by NVSwitches"
)
_NO_SWITCH_ANYWHERE: Final = unless(_NOTHING, _NEEDED)
_WAITS: Final = (symptoms.CUDA_NOT_READY, symptoms.FABRIC_FAILS, _IN_PROGRESS)


def _which_versions(snapshot: Snapshot) -> str:
    found = snapshot.view(fabric.mismatch)
    return f"the fabric manager is of version {found.manager} and the driver of {found.driver}" if found else ""


def _how_down(snapshot: Snapshot) -> str:
    how = {"failed": "has failed", "inactive": "is not started", "masked": "is masked"}
    state = how.get(snapshot.view(fabric.manager).state, "does not serve them")
    return f"the GPUs of this node wait for the fabric manager, which {state}"


_OF_LOADED: Final = Shell("v=$(cat /sys/module/nvidia/version);")


def _install_manager(snapshot: Snapshot) -> Iterable[Fix]:
    words = MANAGER_OF_IT.get(snapshot.view(system.package_manager))
    text = "install the fabric manager of exactly the driver's version"
    yield run("install", text, *((joined(_OF_LOADED, words),) if words else ()))
    yield run("load", "start it, now and at boot", Shell("sudo systemctl enable --now nvidia-fabricmanager"))
    yield run("inspect", "every GPU must say Completed", Shell("nvidia-smi -q | grep -A 2 -w Fabric"))


def _start_manager(snapshot: Snapshot) -> Iterable[Fix]:
    if boards.is_fifth_generation(snapshot):
        text = "NVLink 5 needs the subnet manager beside it, and the InfiniBand modules loaded first"
        keep = Shell(r"printf 'mlx5_ib\nib_umad\n' | sudo tee /etc/modules-load.d/nvlink5.conf")
        packages = install(snapshot, "", "nvlsm", "infiniband-diags").commands
        yield run("install", text, *packages, Shell("sudo modprobe -a mlx5_ib ib_umad"), keep)
    is_masked = snapshot.view(fabric.manager).state == "masked"
    yield run(
        "restart",
        "start it, now and at boot",
        *((Shell("sudo systemctl unmask nvidia-fabricmanager"),) if is_masked else ()),
        Shell("sudo systemctl enable nvidia-fabricmanager"),
        Shell("sudo systemctl restart nvidia-fabricmanager"),
    )
    log = Shell("journalctl -b -u nvidia-fabricmanager --no-pager")
    yield run("inspect", "read why it stopped", log, Shell("sudo tail -n 50 /var/log/fabricmanager.log"))
    yield reset_all_gpus("reset the GPUs: those that waited do not all come back", "the state stays In Progress")
    yield reboot(when="a reset is refused")


# ---- links without a fault message


def _refused(snapshot: Snapshot) -> Iterator[Citation]:
    """The GPUs that the fabric has answered, and not taken in: their registration is complete and no success."""
    fine = {"success", "n/a", "[n/a]", "not supported", "requested functionality has not been implemented"}
    rows = smi_query.rows(snapshot, "Fabric", "Status")
    return (row.citation for _, row in rows if row.value.lower() not in fine)


def _linked(snapshot: Snapshot) -> dict[str, int]:
    """How many others each GPU has an NVLink to, by nvidia-smi's table of connections."""
    found = dict[str, int]()
    for (one, other), cell in snapshot.view(topology).matrix.items():
        if one[:3] == other[:3] == "GPU":
            found[one] = found.get(one, 0) + cell.startswith("NV")
    return found


def _is_apart(snapshot: Snapshot) -> bool:
    linked = _linked(snapshot)
    return len(linked) > 1 and not any(linked.values())


_CARDS: Final = holds(lambda snapshot: snapshot.view(boards.carriers) == {"card"}, "the GPUs are PCIe cards")
_UP: Final = holds(lambda snapshot: any(one.up for one in snapshot.view(nvlinks.nvlinks)), "NVLinks are up")
_DARK: Final = fact(lambda node: (one.citation for one in node.view(nvlinks.nvlinks) if not one.up))
# Every monitor has its own words for it.
_COMPLAINTS: Final = line(
    r"DCGM_FR_NVLINK_DOWN|\b0 ?(?:of|/) ?\d{1,3} NV-?Links?\b|(?:\bno|missing|lost)(?: active)? NV-?Links?\b"
    r"|NV-?Link[^\n]{0,60}(?:down\b|inactive|missing|absent|\b0 ?(?:/ ?\d|of|active|up)|[=:] ?0\b"
    r"|CRITICAL|\bFAIL|bandwidth 0\b|not (?:active|present|detected|found|up))",
    flags=re.IGNORECASE,
)
_MEANT: Final = any_of(asked(r"\bnvlink\b"), _COMPLAINTS)


def _all_down(snapshot: Snapshot) -> Iterator[Proof]:
    """The GPUs without any link on a node whose others have theirs, or that is made to have them."""
    dark = tuple(one for one in snapshot.view(nvlinks.nvlinks) if not one.up)
    sure: Confidence = "certain" if snapshot.view(_UP) else "likely"
    if sure == "certain" or (len(dark) == 1 and snapshot.view(_BASEBOARD)):
        for one in dark:
            which = f"GPU {one.index}" if one.index is not None else "one GPU"
            summary = f"all NVLinks of {which} are down, and the node is made to have them: it is out of the fabric"
            yield Proof(summary, (one.citation,), sure, gpu=_address(snapshot, one.index))
    elif not dark and not snapshot.view(_CARDS):
        linked = _linked(snapshot)
        joined = [count for count in linked.values() if count]
        # A few that are all linked to each other are a fabric; where only some are, they may be bridged pairs.
        for name in linked if len(joined) > 2 and all(count == len(joined) - 1 for count in joined) else ():
            if not linked[name]:
                summary = f"{name} has no NVLink to any other GPU, and the others are all linked to each other"
                yield Proof(summary, (stated("nvidia-smi topo", summary),), gpu=_address(snapshot, int(name[3:])))


def _address(snapshot: Snapshot, index: int | None) -> str:
    """The GPU of that number; empty where that is not told, or where another GPU may be at the links' other end.

    Links to an NVSwitch do not go down with another GPU. Those of a bridge do.
    """
    if index is None or not (snapshot.view(_SWITCHES) or snapshot.view(_BASEBOARD)):
        return ""
    return snapshot.view(addresses).get(index, "")


# Cards of Ampere; each of their bridges joins four links of both.
_BRIDGED_BY_FOUR: Final = Pattern(r"\bRTX A[456][05]00\b|\bRTX 3090\b|\bA[34]0\b|\bA100[ -]PCIE?\b", re.IGNORECASE)


def _some_down(snapshot: Snapshot) -> Iterator[Proof]:
    """The GPUs with fewer links than they have; where all lack the same ones, the board was built so."""
    alive = tuple(one for one in snapshot.view(nvlinks.nvlinks) if one.up)
    some = tuple(one for one in alive if one.down)
    is_half = any(_BRIDGED_BY_FOUR.search(one.name) and one.up % 4 for one in some)
    if len(some) > 1 and len(some) == len(alive) and len({one.down for one in some}) == 1 and not is_half:
        return
    for one in some:
        which = f"GPU {one.index}" if one.index is not None else "a GPU"
        links = ", ".join(map(str, one.down))
        summary = f"{len(one.down)} of the {len(one.rates)} NVLinks of {which} are down: {links}"
        yield Proof(summary, (one.citation,), "likely", gpu=_address(snapshot, one.index))


# ---- faults by message

_ON_LINK: Final = Pattern(r"\blink (?P<link>\d{1,2})\b", re.IGNORECASE)
_UNCORRECTABLE: Final = line(r"uncorrectable NVLink error|cudaErrorNvlinkUncorrectable|CUDA_ERROR_NVLINK_UNCORRECTABLE")
_FIFTH: Final = holds(boards.is_fifth_generation, "the GPUs have NVLink 5")


def _linked_fault(snapshot: Snapshot) -> Iterator[Proof]:
    for incident in faults.of(snapshot, 74):
        match = _ON_LINK.search(incident.root.xid.text) if incident.root.xid else None
        where = f"link {match['link']} to its peer or NVSwitch failed" if match else "an NVLink failed"
        yield faults.proof(incident, where)


def _fifth(snapshot: Snapshot) -> Iterator[Proof]:
    for incident in faults.of(snapshot, *xids.NVLINK5):
        said = incident.root.xid
        body = xid.link_error(said.text) if said else None
        happened = ""
        if body is not None:
            grade = "fatal" if body.fatal else "non-fatal"
            where = f" on link {body.link}" if body.link is not None and body.link >= 0 else ""
            happened = f"a {grade} error of NVLink 5 ({body.unit}){where}"
        yield _as_asked(snapshot, incident, faults.proof(incident, happened))


_Asked: TypeAlias = Literal["reset", "driver", "nothing"]


def _as_asked(snapshot: Snapshot, incident: faults.Incident, proof: Proof) -> Proof:
    """The proof with no more to be done than NVIDIA's catalog asks for, else the driver, to which it leaves some."""
    by_catalog = {_by_catalog(fault) for fault in (incident.root, *incident.followed) if fault.code in xids.NVLINK5}
    by_driver = snapshot.view(recovery.wanted).get(incident.gpu)
    if "reset" in by_catalog or by_driver in {"", "reset", "drain-and-reset", "reboot"}:
        return proof
    if by_driver == "drain-p2p":
        return replaced(
            proof, remedy=(recovering.LEAVE_PEERS, _LINKS_UP), disruption="restart-container", severity="warning"
        )
    if by_driver == "none" or by_catalog == {"nothing"}:
        summary = f"{proof.summary}; {'the driver' if by_driver else 'the catalog'} asks for nothing"
        return replaced(proof, summary=summary, remedy=(_LINKS_UP, nvidia_report()), disruption="none", severity="info")
    return replaced(proof, remedy=(*recovering.steps(""), _LINKS_UP), disruption="none", severity="warning")


def _by_catalog(fault: faults.Fault) -> _Asked:
    """What is asked for at once; of a non-fatal error that the catalog does not have, the driver decides."""
    body = xid.link_error(fault.xid.text) if fault.xid else None
    if body is None or body.fatal:
        return "reset"
    known = xids.decode(fault.code, body.unit, *body.words[:2]) if len(body.words) > 1 else None
    if known is None:
        return "driver"
    return "nothing" if known.action == "ignore" else "reset" if known.action == "reset-gpu" else "driver"


_LINKS_UP: Final = run(
    "inspect", "all links must be up", Shell("nvidia-smi nvlink --status"), Shell("nvidia-smi nvlink --errorcounters")
)


# Of these kinds a GPU's own fault comes down to the switch as an SXid of the link between both.
_FELT_BY_SWITCHES: Final = frozenset({"link", "bus", "memory", "firmware"})


def _switched(snapshot: Snapshot) -> Iterator[Proof]:
    incidents = snapshot.view(faults.incidents)
    gpus = [one.root for one in incidents if one.root.source == "xid" and one.root.kind in _FELT_BY_SWITCHES]
    for incident in incidents:
        said = incident.root.sxid
        if said is None or any(faults.is_earlier(gpu, incident.root) for gpu in gpus):
            continue
        grade = {True: "a fatal error", False: "a non-fatal error", None: "an error"}[said.fatal]
        link = f" on link {said.link}" if said.link is not None else ""
        summary = f"the NVSwitch {incident.gpu} reported SXid {said.code}: {grade}{link}"
        yield Proof(
            summary,
            incident.citations,
            at=incident.root.at,
            remedy=_AFTER_FATAL if said.fatal else _AFTER_MILD,
            disruption="reboot" if said.fatal else "none",
            severity="error" if said.fatal else "warning",
        )


_XIDS: Final = Shell("sudo dmesg | grep -E 'Xid|SXid'")
_RESET_ALL: Final = "reset all GPUs of the node, and with them their links, once nothing uses any of them"
_AFTER_FATAL: Final = (
    drain("move the work away: every GPU of the fabric is concerned"),
    reset_all_gpus("reset all GPUs, and with them the NVSwitches; the fabric manager must run"),
    reboot(when="the reset is refused, or GPUs do not register again"),
    replace("have the GPU or the baseboard replaced", "the same link fails again"),
)
_AFTER_MILD: Final = (
    run(
        "inspect",
        "find the GPU at the other end of the link, and follow its own errors first",
        Shell("nvidia-smi nvlink --remotelinkinfo"),
        _XIDS,
    ),
    reset_all_gpus(_RESET_ALL, "it keeps coming, and no GPU has an error of its own"),
)
_RESET_FABRIC: Final = always(
    drain("move the work away: every GPU that it talks to is concerned"),
    reset_all_gpus(_RESET_ALL),
    reboot(when="the reset is refused or hangs"),
    _LINKS_UP,
    nvidia_report(),
    replace("seat the NVLink bridge or module again; have the GPU replaced", "the same link fails again"),
)
_GUIDE: Final = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html"
_WITHOUT_FABRIC: Final = UNHEALTHY_IN_CLUSTER | {
    *("nvlink-all-links-inactive-gpu", "nvlink-link-inactive", "cuda-init-802-kaslr-or-hmm"),
    "nvlink-not-present-false-positive",
}
_LINKS: Final = frozenset({"nvlink-all-links-inactive-gpu", "nvlink-link-inactive"})
_NVLINK_XIDS: Final = frozenset({"xid-74-nvlink-error", "xid-145-149-nvlink5-fault", "xid-154-recovery-action"})

FAMILY: Final = Family(
    "nvlink",
    "NVLink, NVSwitch and the fabric manager",
    (
        Rule(
            cause="fabric-manager-version-mismatch",
            layer="nvlink",
            disruption="restart-service",
            title="fabric manager and driver are of different versions",
            share=0.7,
            symptoms=(*_WAITS, _state("failed")),
            look_at=(Shell("systemctl status nvidia-fabricmanager"), Shell("nv-fabricmanager --version")),
            story=(
                "The fabric manager talks to the driver through an interface that has no versions of its own, so it "
                "only starts with a driver of exactly its version. An upgrade of one of the two, or packages from two "
                "repositories, part them. NVSwitches stay unprogrammed: nvidia-smi works, and every CUDA program ends "
                "with error 802, system not yet initialized."
            ),
            sources=(_GUIDE, "https://github.com/NVIDIA/gpu-operator/issues/544"),
            decisive=_VERSIONS_DIFFER,
            against=(_NOT_NEEDED,),
            may_be_normal=True,
            summary=_which_versions,
            remedy=_install_manager,
            explains=_WITHOUT_FABRIC | {"fabric-manager-not-running"},
        ),
        Rule(
            cause="fabric-manager-not-installed",
            layer="nvlink",
            disruption="none",
            title="NVSwitches, and no fabric manager",
            share=0.7,
            symptoms=_WAITS,
            look_at=(Shell("systemctl status nvidia-fabricmanager"),),
            story=(
                "On boards with NVSwitches (HGX and DGX) the switches must be programmed before CUDA can use any GPU. "
                "That is the fabric manager's work, and it comes in a package of its own that the driver does not "
                "bring along. Without it nvidia-smi shows every GPU healthy, and every CUDA program ends with error "
                "802."
            ),
            sources=(_GUIDE, "https://github.com/pytorch/pytorch/issues/35710"),
            decisive=all_of(_MISSING, _NEEDED),
            typical=any_of(
                *(_MISSING, asked(r"\bgrep\b.*\bfabric", empty=True)),
                unless(
                    all_of(_NOT_READY, any_of(_SWITCHES, _BASEBOARD)),
                    *(_DOWN, _state("active"), _VERSIONS_DIFFER, _NOTHING, _IN_PROGRESS),
                ),
            ),
            against=(_NOT_NEEDED,),
            may_be_normal=True,
            summary="the GPUs of this node are joined by NVSwitches, and no fabric manager programs them",
            remedy=_install_manager,
            explains=_WITHOUT_FABRIC,
        ),
        Rule(
            cause="fabric-manager-not-running",
            layer="nvlink",
            disruption="restart-service",
            title="the fabric manager is installed and does not run",
            share=0.8,
            symptoms=_WAITS,
            look_at=(Shell("systemctl status nvidia-fabricmanager"),),
            story=(
                "The fabric manager is there and stopped: disabled, masked, killed, or failing at its start again and "
                "again. GPUs that registered before go on for a while, new programs end with error 802, and the GPUs' "
                "fabric state stays In Progress. On NVLink 5 boards (B200, B300) it fails with 'nothing to do' when "
                "the InfiniBand modules or the subnet manager are missing, since it then looks for switches of the "
                "older kind."
            ),
            sources=(
                *(_GUIDE, "https://github.com/NVIDIA/NVSentinel/issues/883"),
                "https://github.com/NVIDIA/gpu-operator/issues/2781",
            ),
            decisive=unless(all_of(any_of(_state("inactive", "masked"), _NOTHING), _NEEDED), _MISSING),
            typical=unless(
                any_of(_DOWN, _IN_PROGRESS, line(r"NVLink SHARP \(NVLS\)|error in the Fabric Manager or NVSwitch")),
                *(_MISSING, _state("active"), _NO_SWITCH_ANYWHERE),
            ),
            against=(_NOT_NEEDED,),
            may_be_normal=True,
            context=asked(r"fabric-?manager"),
            summary=_how_down,
            remedy=_start_manager,
            explains=_WITHOUT_FABRIC,
        ),
        Rule(
            cause="fabric-manager-not-needed",
            layer="nvlink",
            severity="info",
            disruption="none",
            title="a fabric manager on a node without NVSwitches",
            symptoms=(),
            look_at=(Shell("lspci -nn -d 10de:"),),
            story=(
                "The fabric manager programs NVSwitches, and this node has none: PCIe cards and bridged pairs do "
                "without. It says that there is nothing to do and exits, and systemd shows a failed unit. The GPUs "
                "work; only the unit has to be switched off."
            ),
            sources=(_GUIDE, "https://github.com/NVIDIA/gpu-operator/issues/356"),
            decisive=any_of(
                _NO_SWITCH_ANYWHERE, unless(all_of(_state("failed"), _NOT_NEEDED), _IN_PROGRESS, _NOT_READY)
            ),
            summary="the fabric manager finds no NVSwitch and exits: this node has none to manage",
            context=all_of(_NOTHING, symptoms.FABRIC_FAILS),
            remedy=always(
                run(
                    "configure",
                    "switch it off: this node does not need it",
                    Shell("sudo systemctl disable --now nvidia-fabricmanager"),
                )
            ),
        ),
        Rule(
            cause="nvswitch-sxid",
            layer="nvlink",
            disruption="reboot",
            title="an NVSwitch reported an error",
            symptoms=(symptoms.ANY_XID, symptoms.FABRIC_FAILS, symptoms.LINKS_DOWN, symptoms.NCCL_FAILS),
            look_at=(Shell("sudo dmesg | grep -i sxid"),),
            story=(
                "SXids are to NVSwitches what Xids are to GPUs. A non-fatal one is often the echo of a GPU's fault at "
                "the other end of the link; a fatal one stops the traffic through that link, and CUDA programs on the "
                "GPUs behind it end with Xid 45. Reset the GPUs together: a switch is reset with them."
            ),
            sources=(_GUIDE, "https://docs.nvidia.com/datacenter/tesla/pdf/fabric-manager-user-guide.pdf"),
            check=_switched,
            remedy=always(*_AFTER_MILD),
            explains=_NVLINK_XIDS | _LINKS | {"fabric-manager-not-running"},
        ),
        Rule(
            cause="xid-74-nvlink-error",
            layer="nvlink",
            disruption="reset-gpu",
            title="an NVLink failed (Xid 74)",
            symptoms=(symptoms.ANY_XID, symptoms.LINKS_DOWN, symptoms.NCCL_FAILS, symptoms.CUDA_FAULT),
            look_at=(Shell("sudo dmesg | grep -i xid"), Shell("nvidia-smi nvlink -e")),
            story=(
                "The GPU lost a link to a peer or an NVSwitch: bad signal, a bridge or module that is not seated, a "
                "failing lane, or a peer that died first. What runs on the GPU ends, and everything that talks over "
                "the link hangs or ends too. The GPUs of one fabric are reset together; the registers in the message "
                "tell signal from hardware."
            ),
            sources=(XID_CATALOG, "https://github.com/NVIDIA/NVSentinel/pull/516"),
            check=_linked_fault,
            typical=unless(_UNCORRECTABLE, _FIFTH, symptoms.ANY_XID),
            remedy=_RESET_FABRIC,
            explains=_LINKS | UNHEALTHY_IN_CLUSTER | {"xid-154-recovery-action", "nvidia-uvm-wedged"},
        ),
        Rule(
            cause="xid-145-149-nvlink5-fault",
            layer="nvlink",
            disruption="reset-gpu",
            title="NVLink 5 fault (Xid 144 to 150)",
            symptoms=(symptoms.ANY_XID, symptoms.LINKS_DOWN, symptoms.NCCL_FAILS),
            look_at=(Shell("sudo dmesg | grep -i xid"),),
            story=(
                "From Blackwell on the units of an NVLink report under codes of their own, and the words in brackets "
                "tell the unit, the link and how grave it is. One fatal event is followed by non-fatal ones on every "
                "peer that was talking to that GPU, by Xid 45 for their programs, and by collectives that hang until "
                "the node is reset: the GPU with the first fatal event is the one to look at."
            ),
            sources=(XID_CATALOG, f"{OPEN_MODULES}/issues/1355"),
            check=_fifth,
            typical=unless(all_of(_UNCORRECTABLE, _FIFTH), symptoms.ANY_XID),
            remedy=_RESET_FABRIC,
            explains=_LINKS | UNHEALTHY_IN_CLUSTER | {"xid-154-recovery-action"},
        ),
        Rule(
            cause="nvlink-all-links-inactive-gpu",
            layer="nvlink",
            disruption="reset-gpu",
            title="one GPU has no NVLink at all",
            symptoms=(symptoms.LINKS_DOWN, symptoms.NCCL_FAILS, symptoms.SLOW),
            look_at=(Shell("nvidia-smi nvlink -s"), Shell("nvidia-smi topo -m")),
            story=(
                "Its peers have their links and this GPU has none: it did not register with the fabric, or lost all "
                "links at once. Programs that use it alone still work; collectives fall back to PCIe or hang, and "
                "monitors that only count GPUs call the node healthy."
            ),
            sources=("https://github.com/leptonai/gpud/issues/1085", f"{OPEN_MODULES}/issues/1150"),
            check=_all_down,
            typical=unless(fact(_refused), _DOWN),
            context=asked(r"\bnvlink\b"),
            remedy=always(
                run(
                    "inspect",
                    "read what the fabric manager and the GPU say of the link",
                    Shell("nvidia-smi -q | grep -A 12 -w Fabric"),
                    Shell("journalctl -b -u nvidia-fabricmanager --no-pager"),
                    _XIDS,
                ),
                drain(),
                reset_all_gpus(_RESET_ALL),
                reboot(when="the links stay down"),
                replace(when="the links of the same GPU stay down after a power cycle"),
            ),
        ),
        Rule(
            cause="nvlink-link-inactive",
            layer="nvlink",
            severity="warning",
            disruption="reboot",
            title="some NVLinks of a GPU are down",
            symptoms=(symptoms.LINKS_DOWN, symptoms.NCCL_FAILS, symptoms.SLOW),
            look_at=(Shell("nvidia-smi nvlink -s"),),
            story=(
                "A few links of one GPU were not trained, while the others are up. Nothing fails, but what goes "
                "between these GPUs is slower by the share of the missing links. A reboot trains them again; links "
                "that stay down point to the seating of the module or the bridge, and then to the GPU."
            ),
            sources=("https://github.com/Azure/azhpc-diagnostics/issues/73",),
            check=_some_down,
            context=asked(r"\bnvlink\b|topo -m"),
            remedy=always(
                reboot("reboot the node: links are trained anew"),
                by_hand("hardware", "seat the module or the NVLink bridge again", "the same links stay down"),
                replace(when="they stay down after that"),
            ),
        ),
        Rule(
            cause="nvlink-not-present-false-positive",
            layer="nvlink",
            severity="info",
            disruption="none",
            title="no NVLink where none is to be",
            symptoms=(symptoms.LINKS_DOWN,),
            look_at=(Shell("nvidia-smi nvlink -s"), Shell("nvidia-smi -L")),
            story=(
                "Many PCIe cards have NVLink contacts, and no bridge is fitted. Their links then read as down or "
                "inactive, and some monitors report NVLINK_DOWN or ask for a field diagnostic. It is no fault: these "
                "cards talk over PCIe."
            ),
            sources=("https://github.com/NVIDIA/NVSentinel/pull/1481", "https://github.com/NVIDIA/DCGM/issues/49"),
            decisive=unless(all_of(any_of(_DARK, _COMPLAINTS), _CARDS), _UP),
            typical=unless(
                all_of(_MEANT, any_of(_CARDS, holds(_is_apart, "no GPUs are linked"), line(r"No NvSwitches found"))),
                *(_UP, _SWITCHES, _BASEBOARD),
            ),
            context=_MEANT,
            summary="no NVLink bridge joins these GPUs: that no link is up is as it must be",
            remedy=always(
                by_hand(
                    "configure",
                    "nothing is wrong with the node: take the NVLink check out of the monitor for this model",
                )
            ),
        ),
    ),
)
