"""The PCI bus: whether the GPU is there, who owns it, whether it wakes up, and whether its BARs fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.commands import Shell, edit_matching_files
from gpunode.diagnoses.consequences import GPU_NOT_STARTED, NO_DRIVER, TRANSFERS_LOST
from gpunode.diagnoses.evaluation import is_examined_by_gpunode
from gpunode.diagnoses.model import Citation, Fix, Proof, Rule
from gpunode.diagnoses.remedies import (
    add_kernel_argument,
    make_fixed_remedy,
    manual_step,
    power_cycle_node,
    reboot_node,
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
from gpunode.diagnoses.views import driver, faults, kernel, pci, pcie_links, system, virtualization
from gpunode.facts.patterns import Pattern

# ---- is there a GPU at all

# The hardware of a report that names no GPU of NVIDIA's.
_OTHER_GRAPHICS_TOLD: Final = unless(
    any_line(r"(?i)^\W*(?:graphics|gpus?|video(?: card)?)\b[:= ][^\n]{0,40}\b(?:intel|mesa|amd|radeon|iris)\b"),
    any_line(r"(?i)\b(?:geforce|[rg]tx|quadro|tesla|nvidia [ahlbtpv]\d{1,3}\b|mx\d{3})"),
)
_NO_GPU_SYMPTOMS: Final = (symptoms.NO_DRIVER, symptoms.NO_DEVICES)
_MODPROBE_FOUND_NO_DEVICE: Final = message_line(
    r"could not insert ['‘\"]?nvidia(?:[_-](?:current|\d{3}))?['’\"]?: No such device"
)
_NO_GPU_REPORTED: Final = any_of(
    kernel_line(r"(?i)No NVIDIA (?:PCI devices|GPUs?|graphics (?:adapter|device)s?) found"),
    _MODPROBE_FOUND_NO_DEVICE,
    message_line(r"(?i)You do not appear to have an NVIDIA GPU|NVIDIA GPU product .{0,40}not found"),
)
# Driver messages about a GPU that it saw, whatever the outcome.
_GPU_REPORTED: Final = kernel_line(
    r"probe routine was not called for|already bound to|routine failed for|installed in this system|RmInitAdapter|"
    r"\bXid \(|fallen off the bus|driver will ignore"
)


def _smi_no_device_lines(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the node's own nvidia-smi errors; a pod may see no GPU by design."""
    return (place for state, place in snapshot.view(driver.smi_states) if state in {"no-driver", "no-devices"})


_DRIVER_HAS_NO_GPU: Final = any_of(custom_sign(_smi_no_device_lines), symptoms.DRIVER_NOT_LOADED)
_GPU_ON_BUS: Final = predicate(
    lambda snapshot: bool(pci.has_gpu(snapshot) or snapshot.view(pcie_links.nvidia_slots)), "a GPU is on the bus"
)


def _attach_gpu(snapshot: Snapshot) -> Iterable[Fix]:
    guest = "attach a GPU to this virtual machine, or start an instance type that has one"
    host = "power the machine off, seat the GPU and its power cables, and enable the slot in the BIOS"
    yield manual_step("hardware", guest if snapshot.view(system.is_guest) else host)
    yield run_step("inspect", "check whether the bus shows it now", Shell("lspci -nn -d 10de:"))


# ---- who owns it

_VFIO_KERNEL_ARGUMENT: Final = any_of(*(
    file_line(path, r"\b(?:vfio-pci|pci-stub)\.ids=\S*10de:")
    for path in ("/proc/cmdline", "/etc/default/grub*", "/etc/kernel/cmdline")
))  # fmt: skip
_GPU_RESERVED_FOR_VFIO: Final = any_of(
    _VFIO_KERNEL_ARGUMENT, file_line("*modprobe.d/*", r"^[ \t]*options[ \t]+vfio-pci[ \t][^\n]*\bids=[^\n]*10de:")
)
_BOUND_TO_PASSTHROUGH_DRIVER: Final = kernel_line(
    r"GPU \S+ is already bound to (?:vfio-pci|pci-stub|xen-pciback|nvgrace.gpu.vfio.pci)"
)
# Output of sysfs, driverctl or a shell loop over sysfs that names the owner.
_PASSTHROUGH_OWNER: Final = Pattern(
    r"(?im)/drivers/(?:vfio-pci|pci-stub)\b|^(?:[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d[ :]+(?:[^\n]*\s)?)?"
    r"(?:vfio-pci|pci-stub)(?=\s|$)"
)
_BOUND_DRIVER_QUERY: Final = Pattern(r"(?i)/driver|driverctl|10de")
_PCI_ADDRESS: Final = Pattern(r"(?i)\b[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d\b")


def _passthrough_owner_lines(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the lines of sysfs or driverctl that show a GPU owned by a passthrough driver."""
    known = {gpu.address for gpu in snapshot.view(pci.pci_gpus)}
    asked_owner = (
        item
        for item in snapshot.items_of("listing", "text", "which")
        if _BOUND_DRIVER_QUERY.search(item.written + item.text)
    )
    for line in (found for item in asked_owner for found in lines_with(item, _PASSTHROUGH_OWNER)):
        where = {pci.normalize_address(address) for address in _PCI_ADDRESS.findall(line.line)}
        if not known or not where or where & known:
            yield line


_PASSED_THROUGH: Final = custom_sign(
    lambda snapshot: (gpu.citation for gpu in virtualization.passed_through_gpus(snapshot))
)
_PASSTHROUGH_BOUND: Final = any_of(_BOUND_TO_PASSTHROUGH_DRIVER, custom_sign(_passthrough_owner_lines), _PASSED_THROUGH)
_PASSTHROUGH_MAY_BE_INTENDED: Final = predicate(
    lambda node: virtualization.is_hypervisor(node) and not any(virtualization.guest_lists(node)),
    "the host runs virtual machines",
)
_PASSTHROUGH_SUMMARY: Final = "vfio-pci owns a GPU for a virtual machine: this is intended, and the host cannot use it"


def _find_intended_passthrough(snapshot: Snapshot) -> Iterator[Proof]:
    """Yield intended passthrough: the host has other GPUs, or its guests are running."""
    owned = snapshot.view(_PASSTHROUGH_BOUND)
    addresses = {pci.normalize_address(one) for line in owned for one in _PCI_ADDRESS.findall(line.line)}
    of_host = any(
        gpu.driver not in virtualization.PASSTHROUGH_DRIVERS
        and (gpu.shows_driver or (addresses and gpu.address not in addresses))
        for gpu in snapshot.view(pci.pci_gpus)
    )
    if owned and (driver.works(snapshot) or of_host or virtualization.has_running_guests(snapshot)):
        yield Proof(
            _PASSTHROUGH_SUMMARY, owned, "likely", severity="info", remedy=(_LEAVE_GPU_TO_GUEST,), disruption="none"
        )


_LEAVE_GPU_TO_GUEST: Final = manual_step(
    "wait", "leave it to its virtual machine, or remove its ids from vfio-pci's and reboot"
)
_REMOVE_NVIDIA_VFIO_IDS_EXPRESSION: Final = "/vfio-pci|pci-stub/s/10de:[0-9a-fA-F]{4},?//g"
_VFIO_CONFIG_PATHS: Final = ("/etc/modprobe.d", "/etc/default/grub", "/etc/default/grub.d", "/etc/kernel/cmdline")


def _release_gpu(snapshot: Snapshot) -> Iterable[Fix]:
    text = "make sure that no virtual machine needs the GPU: qm list, or virsh list --all, shows them"
    yield manual_step("configure", text)
    text = "remove NVIDIA's ids from those reserved for vfio-pci"
    yield run_step(
        "configure",
        text,
        edit_matching_files("(vfio-pci|pci-stub).*10de:", _REMOVE_NVIDIA_VFIO_IDS_EXPRESSION, *_VFIO_CONFIG_PATHS),
    )
    # Only a paste may leave out the kernel's arguments; and not every node has GRUB.
    if snapshot.view(_VFIO_KERNEL_ARGUMENT) or not is_examined_by_gpunode(snapshot):
        refresh = Shell("sudo proxmox-boot-tool refresh")
        entries = refresh if system.is_proxmox(snapshot) else update_boot_loader(snapshot)
        yield run_step("rebuild", "regenerate the boot loader's configuration", entries)
    yield rebuild_initramfs(snapshot)
    yield reboot_node()


# ---- awake, or stuck

_STUCK_IN_D3_MESSAGE: Final = Pattern(
    rf"(?<![\w-])(?P<driver>[\w-]{{1,40}}) (?P<address>{pcie_links.ADDRESS}): "
    r"(?:(?:Unable to|can't) change power state from D3(?:cold|hot) to D0|"
    r"not ready \d+ms after [\w ]{1,30}; giving up|Refused to change power state, currently in D3)"
)


def _sleeping_gpus(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield messages about a GPU that does not wake up, if they precede its fall off the bus."""
    gone, gpus = snapshot.view(faults.first_bus_falls), snapshot.view(pcie_links.nvidia_slots)
    for message in kernel.matching_messages(snapshot, _STUCK_IN_D3_MESSAGE):
        if (match := _STUCK_IN_D3_MESSAGE.search(message.text)) and not faults.is_after_fall(message.citation, gone):
            is_gpu = pcie_links.pci_slot(pci.normalize_address(match["address"])) in gpus or match["driver"] == "nvidia"
            if is_gpu or (not gpus and match["driver"] == "vfio-pci"):
                yield message.citation


_KEEP_AWAKE: Final = Shell(
    'for gpu in /sys/bus/pci/drivers/nvidia/0*; do echo on | sudo tee "$gpu/power/control"; done'
)
_CONFIG_SPACE_ALL_ONES: Final = message_line(r"NVIDIA[^\n]*\(rev ff\)|Unknown header type 7f", "lspci", "text", "file")
_GPU_IN_D3COLD: Final = any_line(r"^(?:\S*power_state:)?D3cold$|\bpower_state\b\W{1,4}(?:is|says)?\W{1,4}D3cold\b")
_rule = partial(Rule, layer="pci")


_INVALID_REGION_REPORTED: Final = message_line(
    r"I/O region assigned to your NVIDIA device is invalid|\bBAR\d is 0M @ 0x0"
)
# A hotplug event; every boot reports mere hotplug capability.
_HOTPLUG: Final = any_of(
    kernel_line(
        r"(?i)\bpciehp\b[^\n]{0,40}: Slot\([^)\n]{1,16}\): (?:Card|Link|Attention button|Button|Power)"
        r"|\bthunderbolt \d+-\d|\bthunderbolt\b.{0,40}\b(?:new device|authorized)"
    ),
    message_line(r"(?i)\beGPU\b|\beGFX\b|\bOCuLink\b|\bThunderbolt\b"),
)


def _unplaced_regions(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield regions of a GPU without an address, or windows of bridges that may lead to one."""
    gpus, ports = snapshot.view(pcie_links.nvidia_slots), snapshot.view(pcie_links.gpu_bridges)
    # The devices below a bridge are not shown, so its windows count if a GPU is in trouble or only the log is known.
    trouble = any(state not in {"works", "mismatch", "missing"} for state, _ in snapshot.view(driver.smi_states))
    trouble = trouble or bool(snapshot.view(_INVALID_REGION_REPORTED) or snapshot.view(symptoms.INIT_FAILED_22_56))
    is_all = ports is None and not gpus and not driver.works(snapshot)
    for address, is_window, citation in _failed_assignments(snapshot):
        is_above = is_window and (address in ports if ports is not None else trouble)
        if pcie_links.pci_slot(address) in gpus or is_above or is_all:
            yield citation


_REGION_ASSIGNMENT_MESSAGE: Final = Pattern(
    rf"(?<![\w-])[\w-]{{1,40}} (?P<address>{pcie_links.ADDRESS}): +(?:BAR (?P<bar>\d{{1,2}})|bridge window)"
    r"(?: \[(?P<before>[^\]]{1,80})\])?:? +(?:to \[[^\]]{1,40}\] )?"
    r"(?P<verdict>no space for|failed to assign|can't assign; (?:no space|bogus alignment)|can't assign|assigned)"
    r"(?: \[(?P<behind>[^\]]{1,80})\])?"
)
# From these numbers on BARs are ROMs and regions of virtual functions, then bridge windows.
_ROM, _WINDOWS = 6, 13


def _failed_assignments(snapshot: Snapshot) -> Iterator[tuple[str, bool, Citation]]:
    """Yield the regions that the kernel could not place, each with whether it is a bridge window.

    Expansion ROMs, I/O ports and BARs of virtual functions are left out: nothing needs them.
    """
    failures: dict[tuple[str, str, bool], tuple[str, bool, Citation]] = {}
    for message in kernel.matching_messages(snapshot, _REGION_ASSIGNMENT_MESSAGE):
        match = _REGION_ASSIGNMENT_MESSAGE.search(message.text)
        resource = (match["before"] or match["behind"] or "") if match else ""
        if match is None or not resource.startswith("mem"):
            continue
        bar = int(match["bar"]) if match["bar"] else _WINDOWS
        address = pci.normalize_address(match["address"])
        key = address, match["bar"] or "", "pref" in resource
        if match["verdict"] == "assigned":
            failures.pop(key, None)
        elif bar < _ROM or bar >= _WINDOWS:
            failures[key] = address, bar >= _WINDOWS, message.citation
    yield from failures.values()


_ROOT_WINDOW: Final = Pattern(r"root bus resource \[mem 0x[0-9a-f]+-0x(?P<end>[0-9a-f]+)")
_FOUR_GIB: Final = 1 << 32


def _has_window_above_4g(snapshot: Snapshot) -> bool | None:
    """Return whether firmware gave the bus addresses above 4 GiB; None if the log does not show its windows."""
    found = [_ROOT_WINDOW.search(message.text) for message in kernel.matching_messages(snapshot, _ROOT_WINDOW)]
    return any(int(match["end"], 16) >= _FOUR_GIB for match in found if match) if found else None


_UNPLACED: Final = custom_sign(_unplaced_regions)
_UNASSIGNED_REGION_LINE: Final = Pattern(r"\bMemory at <(?:unassigned|ignored)>")
_NO_REGION_ADDRESS: Final = any_of(
    _INVALID_REGION_REPORTED, custom_sign(lambda snapshot: pcie_links.gpu_lines(snapshot, _UNASSIGNED_REGION_LINE))
)
REGION_WITHOUT_ADDRESS: Final = any_of(_UNPLACED, _NO_REGION_ADDRESS)
"""A memory region of a GPU has no address."""
IS_VIRTUAL_MACHINE: Final = predicate(lambda node: node.view(system.is_guest), "this is a virtual machine")
_IS_BARE_METAL: Final = predicate(lambda node: node.view(system.is_guest) is False, "this is no virtual machine")
_HAS_WINDOW_ABOVE_4G: Final = predicate(_has_window_above_4g, "the bus has addresses above 4 GiB")
_LACKS_WINDOW_ABOVE_4G: Final = predicate(
    lambda snapshot: _has_window_above_4g(snapshot) is False, "the bus has none above 4 GiB"
)
_NOT_STARTED_SYMPTOMS: Final = (
    symptoms.ADAPTER_INIT_FAILED,
    symptoms.REGION_NOT_ASSIGNED,
    symptoms.NO_DEVICES,
    symptoms.NO_DRIVER,
)
_ABOVE_4G_DISABLED: Final = any_line(r"(?i)Above 4G (?:Decoding|MMIO)\W{0,40}(?:Disabled|off\b)")


def _reallocate_regions(snapshot: Snapshot) -> Iterable[Fix]:
    yield from add_kernel_argument(snapshot, "pci=realloc", "let the kernel reassign the regions")
    yield manual_step("firmware", "update the firmware, and enlarge its MMIO window (Above 4G Decoding, MMIOH size)")
    windows = "give hot-plugged bridges larger windows: pci=realloc,assign-busses,hpbussize=0x33,hpmmioprefsize=32G"
    yield manual_step("configure", windows, "the GPU is plugged in while the system runs")


RULES: Final = (
    _rule(
        cause="no-gpu-present",
        disruption="power-cycle",
        symptoms=(
            *_NO_GPU_SYMPTOMS,
            symptoms.NO_MODULE,
            symptoms.CUDA_UNAVAILABLE,
            symptoms.CUDA_FINDS_NO_DEVICE,
            all_of(symptoms.NO_DEVICE_DRIVER, _OTHER_GRAPHICS_TOLD),
        ),
        look_at=(Shell("lspci -nn -d 10de:"),),
        decisive=all_of(
            symptoms.NO_GPU_ON_BUS,
            any_of(_NO_GPU_REPORTED, custom_sign(_smi_no_device_lines), custom_sign(driver.installed_lines)),
        ),
        typical=_NO_GPU_REPORTED,
        context=all_of(symptoms.NO_GPU_ON_BUS, command_run(r"lspci\b.*(?:nvidia|10de)", empty=True)),
        against=(
            _GPU_ON_BUS,
            _GPU_REPORTED,
            any_line(r"^(?:nouveau|nova[_-]drm) dev="),
            symptoms.DRIVER_FROM_PLATFORM,
            unless(custom_sign(_passthrough_owner_lines), symptoms.NO_GPU_ON_BUS),
        ),
        may_be_normal=True,
        remedy=_attach_gpu,
        explains=NO_DRIVER | {"driver-not-installed"},
    ),
    _rule(
        cause="vfio-bound",
        disruption="reboot",
        symptoms=(*_NO_GPU_SYMPTOMS, symptoms.NO_MODULE, symptoms.ADAPTER_INIT_FAILED),
        look_at=(Shell("lspci -nnk -d 10de:"), Shell("qm list || virsh list --all"), Shell("cat /proc/cmdline")),
        check=_find_intended_passthrough,
        decisive=any_of(
            all_of(_PASSTHROUGH_BOUND, any_of(_MODPROBE_FOUND_NO_DEVICE, _BOUND_TO_PASSTHROUGH_DRIVER)),
            unless(all_of(_PASSTHROUGH_BOUND, _DRIVER_HAS_NO_GPU), _PASSTHROUGH_MAY_BE_INTENDED),
        ),
        typical=unless(
            any_of(_PASSTHROUGH_BOUND, _GPU_RESERVED_FOR_VFIO), _PASSTHROUGH_MAY_BE_INTENDED, symptoms.DRIVER_WORKS
        ),
        may_be_normal=True,
        context=any_of(_GPU_RESERVED_FOR_VFIO, _PASSED_THROUGH),
        remedy=_release_gpu,
        explains=NO_DRIVER | {"nouveau-bound"},
    ),
    _rule(
        cause="gpu-stuck-d3cold",
        disruption="power-cycle",
        symptoms=(*_NO_GPU_SYMPTOMS, symptoms.INIT_FAILED_22_56, symptoms.ADAPTER_INIT_FAILED, symptoms.GPU_LOST),
        look_at=(Shell("sudo dmesg | grep -iE 'D3cold|nvrm'"),),
        decisive=custom_sign(_sleeping_gpus),
        typical=any_of(
            all_of(_CONFIG_SPACE_ALL_ONES, _GPU_IN_D3COLD),
            # After a fall at work the kernel shows this state, too.
            unless(all_of(symptoms.GPU_LOST, _GPU_IN_D3COLD), symptoms.ANY_XID),
        ),
        remedy=make_fixed_remedy(
            power_cycle_node("power the machine off and on again: a reboot often does not reset the slot"),
            run_step("configure", "prevent GPUs from sleeping: disable their runtime power management", _KEEP_AWAKE),
            manual_step("configure", "load vfio-pci with disable_idle_d3=1", "virtual machines use the GPU"),
        ),
        explains=GPU_NOT_STARTED | TRANSFERS_LOST | {"vfio-bound"},
    ),
    _rule(
        cause="bar-above-4g-disabled",
        disruption="reboot",
        symptoms=(symptoms.INIT_FAILED_22_56, *_NOT_STARTED_SYMPTOMS),
        look_at=(Shell("sudo lspci -vv -d 10de: | grep -E '^[0-9a-f]|Region'"),),
        decisive=any_of(
            all_of(REGION_WITHOUT_ADDRESS, _LACKS_WINDOW_ABOVE_4G),
            all_of(unless(_NO_REGION_ADDRESS, _UNPLACED, _HOTPLUG), _IS_BARE_METAL),
        ),
        typical=any_of(unless(_NO_REGION_ADDRESS, _UNPLACED, _HOTPLUG, kernel_line(r"BAR0 is 0M")), _ABOVE_4G_DISABLED),
        against=(IS_VIRTUAL_MACHINE,),
        remedy=make_fixed_remedy(
            manual_step("firmware", "enable Above 4G Decoding (and Resizable BAR) in the BIOS, and turn CSM off"),
            manual_step("firmware", "update the board's firmware", "the settings are already on"),
        ),
        explains=GPU_NOT_STARTED,
    ),
    _rule(
        cause="bar-allocation-failed",
        disruption="reboot",
        symptoms=_NOT_STARTED_SYMPTOMS,
        look_at=(Shell("sudo dmesg | grep -E 'BAR|bridge window|no space'"),),
        # In a virtual machine the cause is the machine's settings, although the log looks the same.
        decisive=all_of(_UNPLACED, _HAS_WINDOW_ABOVE_4G, _IS_BARE_METAL),
        typical=any_of(_UNPLACED, all_of(_NO_REGION_ADDRESS, _HOTPLUG)),
        against=(IS_VIRTUAL_MACHINE, _LACKS_WINDOW_ABOVE_4G),
        remedy=_reallocate_regions,
        explains=GPU_NOT_STARTED,
    ),
)
