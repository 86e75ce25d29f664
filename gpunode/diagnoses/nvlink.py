"""NVLink, NVSwitch and the fabric manager."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from gpunode.catalog import xids
from gpunode.diagnoses import symptoms
from gpunode.diagnoses.commands import Shell, join_commands
from gpunode.diagnoses.consequences import UNHEALTHY_IN_CLUSTER
from gpunode.diagnoses.model import Citation, Confidence, Fix, Proof, Rule, Severity, Sign
from gpunode.diagnoses.remedies import (
    INSTALL_FABRIC_MANAGER_COMMANDS,
    drain_node,
    install,
    make_fixed_remedy,
    manual_step,
    reboot_node,
    replace_gpu,
    reset_all_gpus,
    run_step,
    write_nvidia_report,
)
from gpunode.diagnoses.signs import all_of, any_of, command_run, custom_sign, message_line, predicate, unless
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import boards, fabric, faults, recovery, smi_query, system
from gpunode.diagnoses.xids import STOP_PEER_ACCESS
from gpunode.facts import xid
from gpunode.facts.patterns import Pattern

# ---- the fabric manager


def _manager_state_sign(*states: fabric.UnitState) -> Sign:
    """Return the sign of the fabric manager's service in one of these states."""

    def lines(snapshot: Snapshot) -> tuple[Citation, ...]:
        state, found = snapshot.view(fabric.manager_state)
        return found if state in states else ()

    return custom_sign(lines)


_MANAGER_MISSING: Final = _manager_state_sign("missing")
_MANAGER_MASKED: Final = _manager_state_sign("masked")
_MANAGER_DOWN: Final = _manager_state_sign("failed", "inactive", "masked")
_VERSIONS_DIFFER: Final = custom_sign(fabric.version_mismatch)
_NO_SWITCH_REPORTED: Final = message_line(
    r"NV_WARN_NOTHING_TO_DO|failed with error: ?WARNING Nothing to do|failed to detect any NVSwitch"
)
_NVSWITCHES_SEEN: Final = custom_sign(fabric.switch_lines)
_BASEBOARD: Final = predicate(lambda node: "baseboard" in node.view(boards.board_kinds), "the GPUs are on a baseboard")
_REGISTERING: Final = custom_sign(fabric.registering_gpus)
_MANAGER_NEEDED: Final = any_of(_NVSWITCHES_SEEN, _REGISTERING, symptoms.CUDA_SYSTEM_NOT_READY)
_MANAGER_NOT_NEEDED: Final = predicate(
    lambda snapshot: snapshot.view(fabric.is_manager_needed) is False,
    "the GPUs of this node are not connected by NVSwitches",
)
# On an NVLink 5 board this is also reported if the subnet manager or the InfiniBand modules are missing.
_NO_SWITCH_NEEDED: Final = unless(_NO_SWITCH_REPORTED, _MANAGER_NEEDED, _BASEBOARD)
_FABRIC_SYMPTOMS: Final = (symptoms.CUDA_SYSTEM_NOT_READY, symptoms.FABRIC_FAILS, _REGISTERING)
_START_MANAGER_COMMANDS: Final = (
    Shell("sudo systemctl enable nvidia-fabricmanager"), Shell("sudo systemctl restart nvidia-fabricmanager")
)  # fmt: skip
_READ_LOADED_VERSION_COMMAND: Final = Shell("v=$(cat /sys/module/nvidia/version);")


def _install_manager(snapshot: Snapshot) -> Iterable[Fix]:
    words = INSTALL_FABRIC_MANAGER_COMMANDS.get(snapshot.view(system.package_manager))
    text = "install the fabric manager of exactly the driver's version"
    yield run_step("install", text, *((join_commands(_READ_LOADED_VERSION_COMMAND, words),) if words else ()))
    yield run_step("load", "start it, now and at boot", Shell("sudo systemctl enable --now nvidia-fabricmanager"))
    yield run_step("inspect", "every GPU must say Completed", Shell("nvidia-smi -q | grep -A 2 -w Fabric"))


def _disable_manager(snapshot: Snapshot) -> Iterable[Fix]:
    when = ""
    if not snapshot.view(_MANAGER_NOT_NEEDED):
        see = (Shell("nvidia-smi -L"), Shell("lspci -d 10de::0680"))
        yield run_step("inspect", "look at the GPUs: SXM modules, HGX and DGX need the fabric manager", *see)
        when = "every GPU is a PCIe card"
    yield run_step("configure", "disable it", Shell("sudo systemctl disable --now nvidia-fabricmanager"), when=when)


_MANAGER_CONFIG_REFUSED: Final = message_line(r"fabric manager config file item:? \w+ has an invalid value")


def _start_manager(snapshot: Snapshot) -> Iterable[Fix]:
    if snapshot.view(_MANAGER_CONFIG_REFUSED):
        text = "correct the item that it names in fabricmanager.cfg, or install the package's own file again"
        yield manual_step("configure", text)
    if boards.has_nvlink5(snapshot):
        text = "NVLink 5 also needs the subnet manager, and the InfiniBand modules loaded first"
        packages = install(snapshot, "", "nvlsm", "infiniband-diags").commands
        yield run_step("install", text, *packages, Shell("sudo modprobe -a mlx5_ib ib_umad"))
    unmask = (Shell("sudo systemctl unmask nvidia-fabricmanager"),) if snapshot.view(_MANAGER_MASKED) else ()
    yield run_step("restart", "start it, now and at boot", *unmask, *_START_MANAGER_COMMANDS)
    log = Shell("journalctl -b -u nvidia-fabricmanager --no-pager")
    yield run_step("inspect", "read why it stopped", log, Shell("sudo tail -n 50 /var/log/fabricmanager.log"))
    yield reset_all_gpus("reset the GPUs: not all that waited recover by themselves", "the state stays In Progress")
    yield reboot_node(when="a reset is refused")


# ---- links without a fault message


def _rejected_gpus(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the GPUs whose registration with the fabric failed."""
    fine = {"success", "n/a", "[n/a]", "not supported", "requested functionality has not been implemented"}
    rows = smi_query.find_rows(snapshot, "Fabric", "Status")
    return (row.citation for _, row in rows if row.value.lower() not in fine)


_MATRIX_ROW: Final = Pattern(r"(?m)^GPU1[ \t]+(?:X|[A-Z]{3,4}|NV\d+)[ \t]")
_MATRIX_NVLINK: Final = Pattern(r"(?m)^GPU\d+[ \t][^\n]*\bNV\d+\b")
_GPUS_ARE_PCIE_CARDS: Final = predicate(
    lambda snapshot: snapshot.view(boards.board_kinds) == {"card"}, "the GPUs are PCIe cards"
)
_SOME_NVLINKS_UP: Final = predicate(
    lambda snapshot: any(gpu_nvlink.up for gpu_nvlink in snapshot.view(fabric.gpu_nvlinks)), "NVLinks are up"
)
_ALL_NVLINKS_UP: Final = predicate(
    lambda node: bool(links := node.view(fabric.gpu_nvlinks)) and not any(one.down or not one.up for one in links),
    "all NVLinks are up",
)
_NVLINKS_DOWN: Final = custom_sign(lambda node: (one.citation for one in node.view(fabric.gpu_nvlinks) if not one.up))
_NO_NVLINK_IN_MATRIX: Final = predicate(
    # For SXM modules whose links are down the matrix shows a PCIe path.
    lambda snapshot: (
        snapshot.view(boards.board_kinds) <= {"card"}
        and any(
            _MATRIX_ROW.search(item.text) and not _MATRIX_NVLINK.search(item.text)
            for item in snapshot.items_of("nvidia-smi-topo", "text")
        )
    ),
    "no pair of GPUs is connected by NVLink",
)
# Every monitoring tool words this differently.
_NVLINK_DOWN_MESSAGE: Final = message_line(
    r"(?i)DCGM_FR_NVLINK_DOWN|\b0 ?(?:of|/) ?\d{1,3} NV-?Links?\b|(?:\bno|missing|lost)(?: active)? NV-?Links?\b"
    r"|NV-?Link[^\n]{0,60}(?:down\b|inactive|missing|absent|\b0 ?(?:/ ?\d|of|active|up)|[=:] ?0\b"
    r"|CRITICAL|\bFAIL|bandwidth 0\b|not (?:active|present|detected|found|up))"
)
_NVLINK_MENTIONED: Final = any_of(command_run(r"\bnvlink\b"), _NVLINK_DOWN_MESSAGE)


def _find_gpus_without_links(snapshot: Snapshot) -> Iterator[Proof]:
    """Yield GPUs without any link if others have links or the board is built for them."""
    dark = tuple(gpu_nvlink for gpu_nvlink in snapshot.view(fabric.gpu_nvlinks) if not gpu_nvlink.up)
    sure: Confidence = "certain" if snapshot.view(_SOME_NVLINKS_UP) else "likely"
    if sure == "certain" or (len(dark) == 1 and snapshot.view(_BASEBOARD)):
        for links in dark:
            summary = f"all NVLinks of {links.gpu} are down, although this node type has them: it is out of the fabric"
            yield Proof(summary, (links.citation,), sure)


# Ampere cards; each of their bridges joins four links of both cards.
_FOUR_LINK_BRIDGE_MODEL_NAME: Final = Pattern(r"(?i)\bRTX A[456][05]00\b|\bRTX 3090\b|\bA[34]0\b|\bA100[ -]PCIE?\b")


def _find_gpus_with_missing_links(snapshot: Snapshot) -> Iterator[Proof]:
    """Yield GPUs with some links down, unless all lack the same links by design."""
    alive = tuple(gpu_nvlink for gpu_nvlink in snapshot.view(fabric.gpu_nvlinks) if gpu_nvlink.up)
    some = tuple(links for links in alive if links.down)
    is_half = any(map(_FOUR_LINK_BRIDGE_MODEL_NAME.search, snapshot.view(boards.gpu_model_names))) and any(
        one.up % 4 for one in some
    )
    if len(some) > 1 and len(some) == len(alive) and len({one.down for one in some}) == 1 and not is_half:
        return
    for one in some:
        links = ", ".join(map(str, one.down))
        summary = f"{len(one.down)} of the {len(one.rates)} NVLinks of {one.gpu} are down: {links}"
        yield Proof(summary, (one.citation,), "likely")


# ---- faults by message

_CUDA_UNCORRECTABLE_NVLINK_ERROR: Final = message_line(
    r"uncorrectable NVLink error|cudaErrorNvlinkUncorrectable|CUDA_ERROR_NVLINK_UNCORRECTABLE"
)
_HAS_NVLINK5: Final = predicate(boards.has_nvlink5, "the GPUs have NVLink 5")


def _find_nvlink5_errors(snapshot: Snapshot) -> Iterator[Proof]:
    """Yield NVLink 5 errors; a non-fatal one is harmless unless the catalog or the driver asks for more."""
    for incident in faults.incidents_with(snapshot, *xids.NVLINK5_XIDS):
        of_driver = snapshot.view(recovery.pending_actions).get(incident.gpu, "")
        of_catalog = {
            _catalog_action(one) for one in (incident.root, *incident.later_faults) if one.code in xids.NVLINK5_XIDS
        }
        if "reset-gpu" in of_catalog or of_driver not in {"", "none", "drain-p2p"}:
            yield faults.incident_proof(incident)
        elif of_driver == "drain-p2p":
            first = (STOP_PEER_ACCESS, _CHECK_NVLINKS)
            yield faults.incident_proof(incident, severity="warning", disruption="restart-container", remedy=first)
        else:
            severity: Severity = "info" if of_driver or of_catalog == {"ignore"} else "warning"
            yield faults.incident_proof(
                incident, severity=severity, disruption="none", remedy=(_CHECK_NVLINKS, write_nvidia_report())
            )


def _catalog_action(fault: faults.Fault) -> str:
    """Return the action that NVIDIA's catalog recommends, a reset if fatal; empty if unknown."""
    body = xid.parse_link_error(fault.xid.text) if fault.xid else None
    if body is None or body.fatal:
        return "reset-gpu"
    known = xids.decode_nvlink5_fault(fault.code, body.unit, *body.words[:2]) if len(body.words) > 1 else None
    return known.action if known else ""


_CHECK_NVLINKS: Final = run_step(
    "inspect", "all links must be up", Shell("nvidia-smi nvlink --status"), Shell("nvidia-smi nvlink --errorcounters")
)
# GPU faults of these kinds also reach the switch, as an SXid for the link between the two.
_XID_KINDS_SEEN_BY_SWITCHES: Final = frozenset({"link", "bus", "memory", "firmware"})


def _find_switch_errors(snapshot: Snapshot) -> Iterator[Proof]:
    incidents = snapshot.view(faults.find_incidents)
    gpus = [one.root for one in incidents if one.root.source == "xid" and one.root.kind in _XID_KINDS_SEEN_BY_SWITCHES]
    for incident in incidents:
        error = incident.root.sxid
        if error is None or any(faults.is_earlier(gpu, incident.root) for gpu in gpus):
            continue
        grade = {True: "a fatal error", False: "a non-fatal error", None: "an error"}[error.fatal]
        link = f" on link {error.link}" if error.link is not None else ""
        summary = f"the NVSwitch {incident.gpu} reported SXid {error.code}: {grade}{link}"
        proof = partial(Proof, summary, incident.citations, at=incident.root.at)
        yield proof() if error.fatal else proof(remedy=_NONFATAL_ERROR_FIXES, disruption="none", severity="warning")


_SHOW_XIDS: Final = Shell("sudo dmesg | grep -E 'Xid|SXid'")
_RESET_ALL_TEXT: Final = "reset all GPUs of the node, and with them their links, once nothing uses any of them"
_NONFATAL_ERROR_FIXES: Final = (
    run_step(
        "inspect", "find the GPU at the other end of the link", Shell("nvidia-smi nvlink --remotelinkinfo"), _SHOW_XIDS
    ),
    reset_all_gpus(_RESET_ALL_TEXT, "it keeps coming back, and no GPU reports an error of its own"),
)
_RESET_FABRIC_FIXES: Final = make_fixed_remedy(
    drain_node("move the work away: every GPU of the fabric is affected"),
    reset_all_gpus(_RESET_ALL_TEXT),
    reboot_node(when="the reset is refused, or GPUs do not register again"),
    _CHECK_NVLINKS,
    write_nvidia_report(),
    replace_gpu("reseat the NVLink bridge or module; have the GPU or baseboard replaced", "the same link fails again"),
)
_INACTIVE_LINK_CAUSES: Final = frozenset({"nvlink-all-links-inactive-gpu", "nvlink-link-inactive"})
_EXPLAINED_BY_NO_FABRIC: Final = (
    UNHEALTHY_IN_CLUSTER | _INACTIVE_LINK_CAUSES | {"cuda-init-802-kaslr-or-hmm", "nvlink-not-present-false-positive"}
)
_NVLINK_XID_CAUSES: Final = frozenset({"xid-74-nvlink-error", "xid-145-149-nvlink5-fault", "xid-154-recovery-action"})
_rule = partial(Rule, layer="fabric")

RULES: Final = (
    _rule(
        cause="fabric-manager-version-mismatch",
        disruption="restart-service",
        symptoms=(*_FABRIC_SYMPTOMS, _manager_state_sign("failed")),
        look_at=(Shell("systemctl status nvidia-fabricmanager"), Shell("nv-fabricmanager --version")),
        decisive=_VERSIONS_DIFFER,
        against=(_MANAGER_NOT_NEEDED,),
        may_be_normal=True,
        remedy=_install_manager,
        explains=_EXPLAINED_BY_NO_FABRIC | {"fabric-manager-not-running"},
    ),
    _rule(
        cause="fabric-manager-not-installed",
        symptoms=_FABRIC_SYMPTOMS,
        look_at=(Shell("systemctl status nvidia-fabricmanager"),),
        decisive=all_of(_MANAGER_MISSING, _MANAGER_NEEDED),
        typical=any_of(
            *(_MANAGER_MISSING, command_run(r"\bgrep\b.*\bfabric", empty=True)),
            unless(
                all_of(symptoms.CUDA_SYSTEM_NOT_READY, any_of(_NVSWITCHES_SEEN, _BASEBOARD)),
                *(_MANAGER_DOWN, _manager_state_sign("active"), _VERSIONS_DIFFER, _NO_SWITCH_REPORTED, _REGISTERING),
            ),
        ),
        against=(_MANAGER_NOT_NEEDED,),
        may_be_normal=True,
        remedy=_install_manager,
        explains=_EXPLAINED_BY_NO_FABRIC,
    ),
    _rule(
        cause="fabric-manager-not-running",
        disruption="restart-service",
        symptoms=_FABRIC_SYMPTOMS,
        look_at=(Shell("systemctl status nvidia-fabricmanager"),),
        decisive=unless(
            all_of(any_of(_manager_state_sign("inactive", "masked"), _NO_SWITCH_REPORTED), _MANAGER_NEEDED),
            _MANAGER_MISSING,
        ),
        typical=unless(
            any_of(
                _MANAGER_DOWN,
                _REGISTERING,
                message_line(r"NVLink SHARP \(NVLS\)|error in the Fabric Manager or NVSwitch"),
                _MANAGER_CONFIG_REFUSED,
            ),
            *(_MANAGER_MISSING, _manager_state_sign("active"), _NO_SWITCH_NEEDED),
        ),
        against=(_MANAGER_NOT_NEEDED,),
        may_be_normal=True,
        context=command_run(r"fabric-?manager"),
        remedy=_start_manager,
        explains=_EXPLAINED_BY_NO_FABRIC,
    ),
    _rule(
        cause="fabric-manager-not-needed",
        severity="info",
        look_at=(Shell("lspci -nn -d 10de:"),),
        decisive=unless(
            all_of(any_of(_NO_SWITCH_REPORTED, _manager_state_sign("failed")), _MANAGER_NOT_NEEDED),
            _REGISTERING,
            symptoms.CUDA_SYSTEM_NOT_READY,
        ),
        typical=_NO_SWITCH_NEEDED,
        against=(_BASEBOARD,),
        summary=lambda node: (
            "the fabric manager finds no NVSwitch and exits: "
            + (
                "this node has none to manage"
                if node.view(_MANAGER_NOT_NEEDED)
                else "nothing shows that this node has one"
            )
        ),
        remedy=_disable_manager,
    ),
    _rule(
        cause="nvswitch-sxid",
        disruption="reboot",
        symptoms=(symptoms.ANY_XID, symptoms.FABRIC_FAILS, symptoms.NVLINKS_DOWN, symptoms.NCCL_FAILS),
        look_at=(Shell("sudo dmesg | grep -i sxid"),),
        check=_find_switch_errors,
        context=custom_sign(lambda node: (row.citation for _, row in smi_query.find_rows(node, "Fabric", "State"))),
        against=(_MANAGER_NOT_NEEDED,),
        remedy=_RESET_FABRIC_FIXES,
        explains=_NVLINK_XID_CAUSES | _INACTIVE_LINK_CAUSES | {"fabric-manager-not-running"},
    ),
    _rule(
        cause="xid-74-nvlink-error",
        disruption="reset-gpu",
        symptoms=(symptoms.ANY_XID, symptoms.NVLINKS_DOWN, symptoms.NCCL_FAILS, symptoms.CUDA_PROGRAM_FAULT),
        look_at=(Shell("sudo dmesg | grep -i xid"), Shell("nvidia-smi nvlink -e")),
        check=faults.incident_check(74),
        typical=unless(_CUDA_UNCORRECTABLE_NVLINK_ERROR, _HAS_NVLINK5, symptoms.ANY_XID),
        remedy=_RESET_FABRIC_FIXES,
        explains=_INACTIVE_LINK_CAUSES | UNHEALTHY_IN_CLUSTER | {"xid-154-recovery-action", "nvidia-uvm-wedged"},
    ),
    _rule(
        cause="xid-145-149-nvlink5-fault",
        disruption="reset-gpu",
        symptoms=(symptoms.ANY_XID, symptoms.NVLINKS_DOWN, symptoms.NCCL_FAILS),
        look_at=(Shell("sudo dmesg | grep -i xid"),),
        check=_find_nvlink5_errors,
        typical=unless(all_of(_CUDA_UNCORRECTABLE_NVLINK_ERROR, _HAS_NVLINK5), symptoms.ANY_XID),
        remedy=_RESET_FABRIC_FIXES,
        explains=_INACTIVE_LINK_CAUSES | UNHEALTHY_IN_CLUSTER | {"xid-154-recovery-action"},
    ),
    _rule(
        cause="nvlink-all-links-inactive-gpu",
        disruption="reset-gpu",
        symptoms=(symptoms.NVLINKS_DOWN, symptoms.NCCL_FAILS),
        look_at=(Shell("nvidia-smi nvlink -s"), Shell("nvidia-smi topo -m")),
        check=_find_gpus_without_links,
        typical=unless(custom_sign(_rejected_gpus), _MANAGER_DOWN),
        context=any_of(command_run(r"\bnvlink\b"), _manager_state_sign("active")),
        against=(_NO_NVLINK_IN_MATRIX, _ALL_NVLINKS_UP),
        remedy=make_fixed_remedy(
            run_step(
                "inspect", "read the state of the fabric", Shell("nvidia-smi -q | grep -A 12 -w Fabric"), _SHOW_XIDS
            ),
            drain_node(),
            reset_all_gpus(_RESET_ALL_TEXT),
            reboot_node(when="the links stay down"),
            replace_gpu(when="the links of the same GPU stay down after a power cycle"),
        ),
    ),
    _rule(
        cause="nvlink-link-inactive",
        severity="warning",
        disruption="reboot",
        symptoms=(symptoms.NVLINKS_DOWN, symptoms.NCCL_FAILS),
        look_at=(Shell("nvidia-smi nvlink -s"),),
        check=_find_gpus_with_missing_links,
        context=command_run(r"\bnvlink\b|topo -m"),
        against=(_NO_NVLINK_IN_MATRIX, _ALL_NVLINKS_UP),
        remedy=make_fixed_remedy(
            reboot_node("reboot the node: links are trained again"),
            manual_step("hardware", "reseat the module or the NVLink bridge", "the same links stay down"),
            replace_gpu(when="they stay down after that"),
        ),
    ),
    _rule(
        cause="nvlink-not-present-false-positive",
        severity="info",
        symptoms=(symptoms.NVLINKS_DOWN,),
        look_at=(Shell("nvidia-smi nvlink -s"), Shell("nvidia-smi -L")),
        decisive=unless(all_of(any_of(_NVLINKS_DOWN, _NVLINK_DOWN_MESSAGE), _GPUS_ARE_PCIE_CARDS), _SOME_NVLINKS_UP),
        typical=unless(
            all_of(_NVLINK_MENTIONED, any_of(_GPUS_ARE_PCIE_CARDS, message_line(r"No NvSwitches found"))),
            *(_SOME_NVLINKS_UP, _NVSWITCHES_SEEN, _BASEBOARD),
        ),
        context=_NVLINK_MENTIONED,
        against=(_BASEBOARD, _SOME_NVLINKS_UP),
        remedy=make_fixed_remedy(
            manual_step("configure", "remove the NVLink check for this model from the monitor: the node is fine")
        ),
    ),
)
