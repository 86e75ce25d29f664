"""The PCI bus: whether the GPU is there, who owns it, and whether it wakes up."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.commands import Shell, edit_matching_files
from gpunode.diagnoses.consequences import NO_DRIVER, NOT_STARTED, TRANSFERS_LOST
from gpunode.diagnoses.model import Citation, Fix, Proof, Rule
from gpunode.diagnoses.remedies import (
    always,
    manual_step,
    power_cycle,
    reboot,
    rebuild_initramfs,
    run_step,
    update_boot_loader,
)
from gpunode.diagnoses.signs import (
    all_of,
    any_line,
    any_of,
    command_run,
    custom_sign,
    file_line,
    kernel_line,
    message_line,
    predicate,
    unless,
)
from gpunode.diagnoses.snapshot import Snapshot, lines_with
from gpunode.diagnoses.views import driver, faults, kernel, passthrough, pci, pcie_links, system
from gpunode.facts.patterns import Pattern

# ---- is there a GPU at all

_SHOWN: Final = (symptoms.NO_DRIVER, symptoms.NO_DEVICES)
_NO_SUCH_DEVICE: Final = message_line(r"could not insert ['‘\"]?nvidia(?:_current)?['’\"]?: No such device")
_NONE_SAID: Final = any_of(
    kernel_line(r"No NVIDIA (?:PCI devices|GPUs?|graphics (?:adapter|device)s?) found", re.IGNORECASE),
    _NO_SUCH_DEVICE,
    message_line(r"You do not appear to have an NVIDIA GPU|NVIDIA GPU product .{0,40}not found", flags=re.IGNORECASE),
)
# Words of the driver about a GPU that it saw, whatever it then did with it.
_SPOKEN_OF: Final = kernel_line(
    r"probe routine was not called for|already bound to|routine failed for|installed in this system|RmInitAdapter|"
    r"\bXid \(|fallen off the bus"
)


def _installed_driver_lines(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the evidence of an installed driver."""
    disk = driver.on_disk_version(snapshot)
    return tuple(one.citation for one in (*driver.kernel_packages(snapshot)[:1], *((disk,) if disk else ())))


def _is_gpu_seen(snapshot: Snapshot) -> bool:
    return bool(pci.has_gpu(snapshot) or snapshot.view(pcie_links.nvidia_slots))


def _smi_complaints(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the node's own nvidia-smi errors; a pod may see no GPU by design."""
    return (place for state, place in snapshot.view(driver.smi_states) if state in {"no-driver", "no-devices"})


_GPU_SEEN: Final = predicate(_is_gpu_seen, "a GPU is on the bus")
_FROM_ELSEWHERE: Final = predicate(system.has_external_driver, "the driver is not one of Linux's")


def _attach_gpu(snapshot: Snapshot) -> Iterable[Fix]:
    guest = "attach a GPU to this virtual machine, or start an instance type that has one"
    host = "power the machine off, seat the GPU and its power cables, and enable the slot in the BIOS"
    yield manual_step("hardware", guest if system.is_guest(snapshot) else host)
    yield run_step("inspect", "check whether the bus shows it now", Shell("lspci -nn -d 10de:"))


# ---- who owns it

_RESERVED: Final = any_of(*(
    file_line(path, r"\b(?:vfio-pci|pci-stub)\.ids=\S*10de:|^[ \t]*options[ \t]+vfio-pci[ \t][^\n]*\bids=[^\n]*10de:")
    for path in ("/proc/cmdline", "*modprobe.d/*", "/etc/default/grub*", "/etc/kernel/cmdline")
))  # fmt: skip
_TAKEN: Final = kernel_line(r"GPU \S+ is already bound to (?:vfio-pci|pci-stub|xen-pciback|nvgrace.gpu.vfio.pci)")
# Where sysfs, driverctl or somebody's loop over sysfs tells the owner.
_OWNER: Final = Pattern(
    r"/drivers/(?:vfio-pci|pci-stub)\b|^(?:[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d[ :]+(?:[^\n]*\s)?)?"
    r"(?:vfio-pci|pci-stub)(?=\s|$)",
    re.MULTILINE | re.IGNORECASE,
)
_ASKS_OWNER: Final = Pattern(r"/driver|driverctl|10de", re.IGNORECASE)
_ADDRESS: Final = Pattern(r"\b[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d\b", re.IGNORECASE)


def _owned_by_sysfs(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield lines of sysfs or driverctl by which a passthrough driver owns a GPU."""
    known = {gpu.address for gpu in snapshot.view(pci.pci_gpus)}
    asked_owner = (
        one for one in snapshot.items_of("listing", "text", "which") if _ASKS_OWNER.search(one.written + one.text)
    )
    for one in (found for item in asked_owner for found in lines_with(item, _OWNER)):
        where = {pci.normalize_address(address) for address in _ADDRESS.findall(one.line)}
        if not known or not where or where & known:
            yield one


_LENT: Final = custom_sign(lambda snapshot: (gpu.citation for gpu in passthrough.passed_through_gpus(snapshot)))
_OWNED: Final = any_of(_TAKEN, custom_sign(_owned_by_sysfs), _LENT)
_MAY_BE_INTENDED: Final = predicate(
    lambda node: passthrough.is_hypervisor(node) and not any(passthrough.guest_lists(node)),
    "the host runs virtual machines",
)
_SET_UP: Final = "vfio-pci owns a GPU for a virtual machine: this is intended, and the host cannot use it"


def _find_intended(snapshot: Snapshot) -> Iterator[Proof]:
    """Yield passthrough that is intended: the host has other GPUs, or its guests run."""
    owned = snapshot.view(_OWNED)
    told = {pci.normalize_address(one) for line in owned for one in _ADDRESS.findall(line.line)}
    of_host = any(
        gpu.driver not in passthrough.PASSTHROUGH_DRIVERS and (gpu.shows_driver or (told and gpu.address not in told))
        for gpu in snapshot.view(pci.pci_gpus)
    )
    if owned and (driver.works(snapshot) or of_host or passthrough.has_running_guests(snapshot)):
        yield Proof(_SET_UP, owned, "likely", severity="info", remedy=(_LEAVE,), disruption="none")


_LEAVE: Final = manual_step("wait", "leave it to its virtual machine, or remove its ids from vfio-pci's and reboot")
_WITHOUT_IDS: Final = "/vfio-pci|pci-stub/s/10de:[0-9a-fA-F]{4},?//g"
_PLACES: Final = ("/etc/modprobe.d", "/etc/default/grub", "/etc/default/grub.d", "/etc/kernel/cmdline")


def _release_gpu(snapshot: Snapshot) -> Iterable[Fix]:
    text = "make sure that no virtual machine needs the GPU: qm list, or virsh list --all, shows them"
    yield manual_step("configure", text)
    text = "remove NVIDIA's ids from those reserved for vfio-pci"
    yield run_step("configure", text, edit_matching_files("(vfio-pci|pci-stub).*10de:", _WITHOUT_IDS, *_PLACES))
    entries = Shell("sudo proxmox-boot-tool refresh") if system.is_proxmox(snapshot) else update_boot_loader(snapshot)
    yield run_step("rebuild", "regenerate the boot loader's configuration", entries)
    yield rebuild_initramfs(snapshot)
    yield reboot()


# ---- awake, or stuck

_D3: Final = Pattern(
    rf"(?<![\w-])(?P<driver>[\w-]{{1,40}}) (?P<address>{pcie_links.ADDRESS}): "
    r"(?:(?:Unable to|can't) change power state from D3(?:cold|hot) to D0|"
    r"not ready \d+ms after [\w ]{1,30}; giving up|Refused to change power state, currently in D3)"
)


def _sleeping_gpus(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield messages of a GPU that does not wake up, before it fell off the bus."""
    gone, gpus = snapshot.view(faults.first_bus_falls), snapshot.view(pcie_links.nvidia_slots)
    for message in kernel.matching_messages(snapshot, _D3):
        if (match := _D3.search(message.text)) and not faults.is_after_fall(message.citation, gone):
            is_gpu = pcie_links.pci_slot(pci.normalize_address(match["address"])) in gpus or match["driver"] == "nvidia"
            if is_gpu or (not gpus and match["driver"] == "vfio-pci"):
                yield message.citation


_AWAKE: Final = Shell('for gpu in /sys/bus/pci/drivers/nvidia/0*; do echo on | sudo tee "$gpu/power/control"; done')
_ALL_ONES: Final = message_line(r"NVIDIA[^\n]*\(rev ff\)|Unknown header type 7f", "lspci", "text", "file")
_IN_D3COLD: Final = any_line(r"^(?:\S*power_state:)?D3cold$")
_rule = partial(Rule, layer="pci")

RULES: Final = (
    _rule(
        cause="no-gpu-present",
        layer="hardware",
        shows_in="pci",
        disruption="power-cycle",
        symptoms=(*_SHOWN, symptoms.NO_MODULE, symptoms.CUDA_UNAVAILABLE),
        look_at=(Shell("lspci -nn -d 10de:"),),
        decisive=all_of(
            symptoms.NO_GPU, any_of(_NONE_SAID, custom_sign(_smi_complaints), custom_sign(_installed_driver_lines))
        ),
        typical=_NONE_SAID,
        context=all_of(symptoms.NO_GPU, command_run(r"lspci\b.*(?:nvidia|10de)", empty=True)),
        against=(
            _GPU_SEEN,
            _SPOKEN_OF,
            any_line(r"^(?:nouveau|nova[_-]drm) dev="),
            _FROM_ELSEWHERE,
            unless(custom_sign(_owned_by_sysfs), symptoms.NO_GPU),
        ),
        may_be_normal=True,
        summary="no NVIDIA GPU is on this machine's PCI bus, but a driver is installed",
        remedy=_attach_gpu,
        explains=NO_DRIVER | {"driver-not-installed"},
    ),
    _rule(
        cause="vfio-bound",
        disruption="reboot",
        symptoms=(*_SHOWN, symptoms.NO_MODULE, symptoms.NOT_STARTED),
        look_at=(Shell("lspci -nnk -d 10de:"), Shell("qm list || virsh list --all"), Shell("cat /proc/cmdline")),
        check=_find_intended,
        decisive=any_of(
            all_of(_OWNED, any_of(_NO_SUCH_DEVICE, _TAKEN)),
            unless(all_of(_OWNED, custom_sign(_smi_complaints)), _MAY_BE_INTENDED),
        ),
        typical=unless(any_of(_OWNED, _RESERVED), _MAY_BE_INTENDED, symptoms.DRIVER_WORKS),
        may_be_normal=True,
        context=any_of(_RESERVED, _LENT),
        summary="vfio-pci owns the GPU, for a virtual machine, so NVIDIA's driver does not get it",
        remedy=_release_gpu,
        explains=NO_DRIVER | {"nouveau-bound"},
    ),
    _rule(
        cause="gpu-stuck-d3cold",
        disruption="power-cycle",
        symptoms=(*_SHOWN, symptoms.CLOSED_OR_BAR, symptoms.NOT_STARTED, symptoms.GPU_LOST),
        look_at=(Shell("sudo dmesg | grep -iE 'D3cold|nvrm'"),),
        decisive=custom_sign(_sleeping_gpus),
        typical=all_of(_ALL_ONES, _IN_D3COLD),
        context=any_of(_ALL_ONES, _IN_D3COLD),
        summary="the GPU does not wake up from its deepest sleep (D3cold): its configuration space does not answer",
        remedy=always(
            power_cycle("power the machine off and on again: a reboot often does not reset the slot"),
            run_step("configure", "prevent GPUs from sleeping: disable their runtime power management", _AWAKE),
            manual_step("configure", "load vfio-pci with disable_idle_d3=1", "virtual machines use the GPU"),
        ),
        explains=NOT_STARTED | TRANSFERS_LOST | {"vfio-bound"},
    ),
)
