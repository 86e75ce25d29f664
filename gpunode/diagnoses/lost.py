"""Diagnose missing GPUs: not in the inventory, no longer answering, or without power."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.consequences import GPU_LOST, NOT_INITIALISED, UNHEALTHY_IN_CLUSTER
from gpunode.diagnoses.model import Citation, Proof, Rule
from gpunode.diagnoses.remedies import (
    always,
    drain,
    look_first,
    manual_step,
    power_cycle,
    replace_gpu,
    run_step,
    write_nvidia_report,
)
from gpunode.diagnoses.signs import all_of, any_line, any_of, custom_sign, kernel_line, message_line, predicate, unless
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.support import undriven_gpus
from gpunode.diagnoses.views import boards, faults, kernel, pci
from gpunode.facts.patterns import Pattern


def _find_missing(snapshot: Snapshot) -> Iterator[Proof]:
    """Yield the proof of more GPUs on the bus than nvidia-smi shows."""
    # Whom nouveau or vfio-pci owns, or the driver leaves alone, nvidia-smi cannot show.
    left = snapshot.view(undriven_gpus)
    owned = (gpu for gpu in snapshot.view(pci.pci_gpus) if gpu.driver in {None, "nvidia"} and gpu.address not in left)
    listed = {gpu.address: gpu for gpu in owned} if pci.is_bus_listed(snapshot) and "" not in left else {}
    shown = max(snapshot.view(boards.smi_inventories), key=lambda one: one.count or 0, default=None)
    if shown is None or shown.count is None or len(listed) <= shown.count:
        return
    buses = {board.bus for board in shown.boards if board.bus}
    absent = [gpu for address, gpu in listed.items() if address not in buses]
    is_named = len(absent) == len(listed) - shown.count
    names = ", ".join(gpu.address for gpu in absent) if is_named else "one"
    summary = f"{len(listed)} GPUs are on the PCI bus, but nvidia-smi shows {shown.count}: {names} is missing"
    lines = (*(gpu.citation for gpu in (absent if is_named else listed.values())), shown.citation)
    yield Proof(summary, lines, gpu=absent[0].address if is_named else "")


def _odd_inventories(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield inventories of three, five, six or seven GPUs, which few machines have."""
    return (one.citation for one in snapshot.view(boards.smi_inventories) if one.count in {3, 5, 6, 7})


_BASEBOARD: Final = predicate(
    lambda snapshot: "baseboard" in snapshot.view(boards.gpu_carriers), "baseboards carry 4 or 8 GPUs"
)
# NVML and what prints its words: the GPU "has fallen off the bus or has otherwise become inaccessible" (nvml.h). The
# names of processes are left away, which anybody chooses.
_LOST: Final = message_line(
    r"^(?:(?!\bname=)[^\n])*(?:\bGPU is lost\b|GPU_IS_LOST\b|(?:has )?(?:fallen|fell) off the (?:PCI(?:e)? )?bus)",
    flags=re.IGNORECASE,
)
# Every read of a device that does not answer gives ones; a notebook's GPU may be switched off on purpose.
_ALL_ONES: Final = unless(
    message_line(
        r"^(?![^\n]*(?:Mobile|Max-Q|\d{3}M\b))[^\n]*NVIDIA[^\n]*(?:\(rev ff\)|\bprog-if ff\b)", "lspci", "text"
    ),
    message_line(r"Kernel driver in use: vfio-pci", "lspci", "text"),
)
_ASLEEP: Final = message_line(r"\bD3cold\b|device inaccessible|\bbbswitch\b", flags=re.IGNORECASE)
_REMOVED: Final = kernel_line(
    r"Attempting to remove (?:minor )?device .{0,40}with non-zero usage count|GPU .{0,40}was (?:surprise )?removed"
)
# In a guest the hypervisor's settings do the same; a GSP that does not answer takes minutes to.
_NO_HANDLE: Final = unless(
    message_line(r"Unable to determine the device handle for GPU", flags=re.IGNORECASE),
    any_line(r"\b(?:kvm|vmware|qemu|hyper-?v|hypervisor|microsoft|xen)\b", re.IGNORECASE),
    symptoms.SMI_HANGS,
)


def _contained_ports(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield containment events of the port above, before the GPU was lost."""
    gone = snapshot.view(faults.first_bus_falls)
    told = (message.citation for message in kernel.matching_messages(snapshot, _CONTAINED))
    return (one for one in told if not faults.is_after_fall(one, gone))


_CONTAINED: Final = Pattern(r"\bpcieport \S+: DPC: containment event")
_WENT_DOWN: Final = kernel_line(r"\] ?(?:SDES|Surprise Down)")


_GRAVE: Final = custom_sign(faults.serious_fault_lines)
_rule = partial(Rule, layer="hardware")

RULES: Final = (
    _rule(
        cause="gpu-missing-from-inventory",
        disruption="power-cycle",
        symptoms=(symptoms.GPU_LOST, symptoms.NO_DEVICES, symptoms.NOT_STARTED),
        look_at=(Shell("lspci -nn -d 10de:"), Shell("nvidia-smi -L")),
        check=_find_missing,
        typical=unless(
            all_of(custom_sign(_odd_inventories), _BASEBOARD), predicate(pci.is_bus_listed, "the bus was listed")
        ),
        context=custom_sign(_odd_inventories),
        remedy=always(
            run_step(
                "inspect", "read the kernel's messages about it", Shell("sudo dmesg | grep -E 'NVRM|AER|pcieport'")
            ),
            drain(),
            power_cycle(),
            manual_step("hardware", "reseat the GPU, and have it replaced if it stays missing"),
        ),
        explains=UNHEALTHY_IN_CLUSTER,
    ),
    _rule(
        cause="gpu-fallen-off-bus",
        disruption="power-cycle",
        share=3.5,
        symptoms=(
            symptoms.GPU_LOST,
            symptoms.ANY_XID,
            symptoms.NVML_UNKNOWN,
            symptoms.CUDA_FAULT,
            symptoms.NO_DEVICES,
            symptoms.CUDA_UNKNOWN,
            symptoms.CUDA_NO_DEVICE,
            symptoms.NOT_STARTED,
        ),
        look_at=(Shell("sudo dmesg | grep -iE 'xid|nvrm|fallen'"),),
        check=faults.incident_check(79, 167),
        against=(unless(custom_sign(_contained_ports), _WENT_DOWN),),
        decisive=unless(any_of(_LOST, _REMOVED), _GRAVE),
        typical=unless(any_of(_ALL_ONES, _NO_HANDLE), _ASLEEP, _GRAVE),
        remedy=always(
            drain(),
            power_cycle(),
            manual_step("hardware", "check power supply, power cables and risers; reseat the GPU", "it comes back"),
            write_nvidia_report(),
            replace_gpu(when="it falls off again in another slot or machine"),
        ),
        explains=GPU_LOST
        | {
            *("driver-module-not-loaded", "nvlink-all-links-inactive-gpu", "nvlink-link-inactive"),
            *("pcie-uncorrectable-completion-timeout", "pcie-aer-correctable-storm", "pcie-link-degraded"),
            "gpu-missing-from-inventory",
        },
    ),
    _rule(
        cause="xid-54-aux-power",
        layer="power-thermal",
        disruption="power-cycle",
        symptoms=(symptoms.ANY_XID, symptoms.NOT_STARTED, symptoms.GPU_LOST),
        look_at=(Shell("sudo dmesg | grep -iE 'xid|nvrm|power'"),),
        check=faults.incident_check(54),
        context=message_line(r"Power Brake Slowdown\s*: Active"),
        decisive=message_line(
            r"does not have the necessary power cables connected"
            r"|auxiliary power (?:cable|connector)s? .{0,40}not connected"
            r"|connect the PCIe? (?:auxiliary )?power cable",
            flags=re.IGNORECASE,
        ),
        remedy=look_first(
            manual_step("hardware", "power the node off and connect every power cable of the GPU"),
            manual_step("hardware", "check that the supply can power all GPUs together", "all are connected"),
        ),
        explains=NOT_INITIALISED | {"power-brake-slowdown", "gsp-init-failed-platform", "xid-143-gpu-init-error"},
    ),
)
