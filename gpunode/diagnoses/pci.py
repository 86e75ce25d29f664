"""The PCI bus: whether the GPU is there, who owns it, and whether it wakes up."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.addresses import OPEN_MODULES
from gpunode.diagnoses.chains import NO_DRIVER, NOT_STARTED, TRANSFERS_LOST
from gpunode.diagnoses.commands import Shell, command, edited, edited_where, is_gpu
from gpunode.diagnoses.model import Citation, Family, Fix, Proof, Rule
from gpunode.diagnoses.remedies import always, boot_loader, by_hand, power_cycle, reboot, rebuild_initramfs, run
from gpunode.diagnoses.signs import all_of, any_of, anywhere, asked, fact, holds, kernel_line, line, unless
from gpunode.diagnoses.snapshot import Snapshot, cite, lines_with, stated
from gpunode.diagnoses.views import driver, faults, kernel, lending, links, pci, system
from gpunode.facts.patterns import Pattern

# ---- is there a GPU at all

_NO_SUCH_DEVICE: Final = line(r"could not insert ['‘\"]?nvidia(?:_current)?['’\"]?: No such device")
_NONE_SAID: Final = any_of(
    kernel_line(r"No NVIDIA (?:PCI devices|GPUs?|graphics (?:adapter|device)s?) found", re.IGNORECASE),
    _NO_SUCH_DEVICE,
    line(r"You do not appear to have an NVIDIA GPU|NVIDIA GPU product .{0,40}not found", flags=re.IGNORECASE),
)
# Words of the driver about a GPU that it saw, whatever it then did with it.
_SPOKEN_OF: Final = kernel_line(
    r"probe routine was not called for|already bound to|routine failed for|installed in this system|RmInitAdapter|"
    r"\bXid \(|fallen off the bus"
)


def _bus_without_gpu(snapshot: Snapshot) -> tuple[Citation, ...]:
    if not pci.is_listed(snapshot):
        return ()
    whole = (item for item in snapshot.of("lspci") if not item.source.is_part)
    found = tuple(stated(item.written, "no display or 3D controller of NVIDIA's", item.key) for item in whole)
    return found[:1] or (stated("the PCI bus", "no display or 3D controller of NVIDIA's"),)


def _installed(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Where a driver for a GPU was installed on the node."""
    disk = driver.on_disk(snapshot)
    return tuple(one.citation for one in (*driver.kernel_side(snapshot)[:1], *((disk,) if disk else ())))


def _sees_gpu(snapshot: Snapshot) -> bool:
    return bool(pci.has_gpu(snapshot) or snapshot.view(links.nvidia))


def _refused(snapshot: Snapshot) -> Iterator[Citation]:
    return (place for state, place in snapshot.view(driver.smi) if state in {"no-driver", "no-devices"})


_NOT_LISTED: Final = fact(_bus_without_gpu)
_GPU_SEEN: Final = holds(_sees_gpu, "a GPU is on the bus")
_FROM_ELSEWHERE: Final = holds(system.has_driver_from_elsewhere, "the driver is not one of Linux's")


def _none(snapshot: Snapshot) -> str:
    if not snapshot.view(_NOT_LISTED):
        return "NVIDIA's driver finds no GPU on this machine's PCI bus"
    guest = " (a virtual machine: none is passed through to it)" if system.is_guest(snapshot) else ""
    return f"no NVIDIA GPU is on this machine's PCI bus{guest}, and a driver for one is here"


def _attach(snapshot: Snapshot) -> Iterable[Fix]:
    if system.is_guest(snapshot):
        yield by_hand("hardware", "attach a GPU to this virtual machine, or start an instance type that has one")
    else:
        yield by_hand(
            "hardware", "power the machine off, seat the GPU and its power cables, and enable the slot in BIOS"
        )
    yield run("inspect", "look whether the bus shows it now", Shell("lspci -nn -d 10de:"))


# ---- who owns it

_BOUND_ELSEWHERE: Final = Pattern(r"GPU \S+ is already bound to (?P<driver>[\w-]+)")
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
        for found in dict.fromkeys(lines):
            where = _ADDRESS.findall(found.line)
            # driverctl lists whatever is overridden: a network card among it is no GPU.
            if not known or not where or any(pci.address(one) in known for one in where):
                yield found


def _passed_on(snapshot: Snapshot) -> Iterator[Proof]:
    bound = lending.lent(snapshot)
    said = tuple(
        message.citation
        for message in kernel.said(snapshot, _BOUND_ELSEWHERE)
        if (match := _BOUND_ELSEWHERE.search(message.text)) and match["driver"].rstrip(".") in lending.PASSERS
    )
    said = (*said, *_links(snapshot))
    if not bound and not said:
        return
    missed = tuple(place for state, place in snapshot.view(driver.smi) if state not in {"works", "mismatch", "missing"})
    reserved = _reserved(snapshot)
    proofs = (*said, *(gpu.citation for gpu in bound), *missed, *reserved)
    which = bound[0].address if len(bound) == 1 else (f"{len(bound)} GPUs" if bound else "a GPU")
    where = bound[0].address if len(bound) == 1 else ""
    if _host_goes_without(snapshot, said) or not (said or missed):
        summary = f"vfio-pci owns {which}, to hand to a virtual machine: this is set up so, and the host goes without"
        seen = (*said, *(gpu.citation for gpu in bound), *reserved)
        yield Proof(summary, seen, "likely", gpu=where, severity="info", remedy=(_LEFT,), disruption="none")
    elif _is_asked_for(snapshot, said):
        yield Proof(_OWNED.format(which), proofs, gpu=where)
    elif not lending.is_hypervisor(snapshot) or any(lending.guest_lists(snapshot)):
        # Whoever reserved it may have meant it, and has looked on the host in vain all the same.
        yield Proof(_OWNED.format(which), proofs, "likely" if reserved else "certain", gpu=where)


_OWNED: Final = "vfio-pci owns {}, to hand to a virtual machine, so NVIDIA's driver is not given it"
_LEFT: Final = by_hand(
    "wait",
    "leave it to its virtual machine; if the host is to have it after all, take its ids out of what is reserved for "
    "vfio-pci and reboot",
)


def _reserved(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The settings by which GPUs are given to vfio-pci at boot."""
    places = ("/proc/cmdline", "*modprobe.d/*", "/etc/default/grub*", "/etc/kernel/cmdline")
    files = (item for place in places for item in snapshot.files(place))
    found = ((item, _RESERVED.search(item.text)) for item in files)
    return tuple(cite(item, item.number_at(match.start())) for item, match in found if match)


def _host_goes_without(snapshot: Snapshot, said: tuple[Citation, ...]) -> bool:
    """Whether the GPU is lent: the host has others, or its virtual machines are running."""
    if driver.works(snapshot):
        return True
    gpus = snapshot.view(pci.gpus)
    # Where lspci shows no drivers, those that nothing else tells of are the host's.
    told = {pci.address(one) for line in said for one in _ADDRESS.findall(line.line)}
    of_host = (
        gpu
        for gpu in gpus
        if gpu.driver not in lending.PASSERS and (gpu.shows_driver or (told and gpu.address not in told))
    )
    return any(of_host) or lending.has_running_guests(snapshot)


def _is_asked_for(snapshot: Snapshot, said: tuple[Citation, ...]) -> bool:
    """Whether somebody had NVIDIA's module loaded, which then found the GPU taken."""
    return bool(snapshot.view(_NO_SUCH_DEVICE)) or any(_BOUND_ELSEWHERE.search(line.line) for line in said)


_WITHOUT_IDS: Final = "/vfio-pci|pci-stub/s/10de:[0-9a-fA-F]{4},?//g"
_IN_GRUB: Final = "it stood in /etc/default/grub"
_IN_ENTRIES: Final = "it stood in /etc/kernel/cmdline"
_FOR_THE_HOST: Final = by_hand(
    "configure", "make sure that no virtual machine is to have the GPU: qm list, or virsh list --all, shows them"
)


def _give_back(snapshot: Snapshot) -> Iterable[Fix]:
    bound = lending.lent(snapshot)
    files = tuple(item.subject for item in snapshot.files("*modprobe.d/*") if _RESERVED.search(item.text))
    yield _FOR_THE_HOST
    if files:
        text = "take NVIDIA's ids out of what is reserved for vfio-pci"
        yield run("configure", text, *edited(_WITHOUT_IDS, *files))
        yield rebuild_initramfs(snapshot)
    else:
        places = ("/etc/modprobe.d", "/etc/default/grub", "/etc/default/grub.d", "/etc/kernel/cmdline")
        text = "take NVIDIA's ids out of what is reserved for vfio-pci, wherever it stands"
        yield run("configure", text, edited_where("(vfio-pci|pci-stub).*10de:", _WITHOUT_IDS, *places))
        yield run("rebuild", "write the boot loader's configuration anew", boot_loader(snapshot), when=_IN_GRUB)
        yield _boot_entries(snapshot)
        yield rebuild_initramfs(snapshot, when="it stood in /etc/modprobe.d")
    if bound:
        unset = (command("sudo", "driverctl", "unset-override", gpu.address) for gpu in bound if is_gpu(gpu.address))
        yield run("configure", "take an override of driverctl back", *unset, when="driverctl set it")
    yield reboot()


def _boot_entries(snapshot: Snapshot) -> Fix:
    """Has systemd-boot take up /etc/kernel/cmdline, which it reads from its own partition."""
    text = "write the boot entries anew"
    if system.is_proxmox(snapshot):
        return run("rebuild", text, Shell("sudo proxmox-boot-tool refresh"), when=_IN_ENTRIES)
    return by_hand("rebuild", f"{text}, as this system makes them (kernel-install)", _IN_ENTRIES)


# ---- awake, or stuck

_D3: Final = Pattern(
    rf"(?<![\w-])(?P<driver>[\w-]{{1,40}}) (?P<address>{links.ADDRESS}): "
    r"(?:(?:Unable to|can't) change power state from D3(?:cold|hot) to D0|"
    r"not ready \d+ms after [\w ]{1,30}; giving up|Refused to change power state, currently in D3)"
)


def _silent(snapshot: Snapshot) -> Iterator[Citation]:
    """The lines by which a GPU does not come back, those behind its fall off the bus left out."""
    gone, gpus = snapshot.view(faults.first_fall), snapshot.view(links.nvidia)
    for message in kernel.said(snapshot, _D3):
        match = _D3.search(message.text)
        if match is None or faults.is_behind(message.citation, gone):
            continue
        is_gpu = links.slot(pci.address(match["address"])) in gpus
        if is_gpu or match["driver"] == "nvidia" or (not gpus and match["driver"] == "vfio-pci"):
            yield message.citation


_ALL_ONES: Final = anywhere(r"NVIDIA[^\n]*\(rev ff\)|Unknown header type 7f")
_IN_D3COLD: Final = anywhere(r"^(?:\S*power_state:)?D3cold$")


FAMILY: Final = Family(
    "pci",
    "the PCI bus",
    (
        Rule(
            cause="no-gpu-present",
            layer="hardware",
            storey="pci",
            disruption="power-cycle",
            title="no NVIDIA GPU is on the bus",
            symptoms=(
                symptoms.NO_DRIVER,
                symptoms.NO_DEVICES,
                symptoms.NO_MODULE,
                symptoms.CUDA_UNAVAILABLE,
            ),
            look_at=(Shell("lspci -nn -d 10de:"),),
            story=(
                "The driver is installed, but no device of NVIDIA's answers on the PCI bus: the card is not seated or "
                "has no power, the slot is switched off, the instance type has no GPU, or none is passed through to "
                "this virtual machine. The module then refuses to load (No such device), and nvidia-smi cannot talk "
                "to a driver. No package and no setting of this system can change it."
            ),
            sources=(f"{OPEN_MODULES}/blob/main/kernel-open/nvidia/nv.c",),
            decisive=all_of(_NOT_LISTED, any_of(_NONE_SAID, fact(_refused), fact(_installed))),
            typical=_NONE_SAID,
            context=all_of(_NOT_LISTED, asked(r"lspci\b.*(?:nvidia|10de)", empty=True)),
            against=(_GPU_SEEN, _SPOKEN_OF, _FROM_ELSEWHERE, unless(fact(_links), _NOT_LISTED)),
            may_be_normal=True,
            summary=_none,
            remedy=_attach,
            explains=NO_DRIVER | {"driver-not-installed"},
        ),
        Rule(
            cause="vfio-bound",
            layer="pci",
            storey="pci",
            disruption="reboot",
            title="vfio-pci owns the GPU",
            symptoms=(
                symptoms.NO_DRIVER,
                symptoms.NO_DEVICES,
                symptoms.NO_MODULE,
                symptoms.NOT_STARTED,
            ),
            look_at=(Shell("lspci -nnk -d 10de:"), Shell("qm list || virsh list --all"), Shell("cat /proc/cmdline")),
            story=(
                "A GPU that is to be handed to a virtual machine is bound to vfio-pci, by its id on the kernel's "
                "command line, in /etc/modprobe.d or by driverctl. NVIDIA's driver on the host is then never given "
                "it: the module loads and finds no devices, or does not load. On a host that runs virtual machines "
                "this is meant to be so, and no fault: least of all where the host has other GPUs for itself."
            ),
            sources=(
                "https://docs.kernel.org/driver-api/vfio.html",
                "https://github.com/jurkovic-nikola/OpenLinkHub/pull/174",
            ),
            context=any_of(fact(_reserved), fact(lambda node: (gpu.citation for gpu in lending.lent(node)))),
            check=_passed_on,
            remedy=_give_back,
            explains=NO_DRIVER | {"nouveau-bound"},
        ),
        Rule(
            cause="gpu-stuck-d3cold",
            layer="pci",
            storey="pci",
            disruption="power-cycle",
            title="the GPU does not wake up from D3cold",
            symptoms=(
                symptoms.CLOSED_OR_BAR,
                symptoms.NOT_STARTED,
                symptoms.NO_DEVICES,
                symptoms.NO_DRIVER,
                symptoms.GPU_LOST,
            ),
            look_at=(Shell("sudo dmesg | grep -iE 'D3cold|nvrm'"),),
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
            decisive=fact(_silent),
            typical=all_of(_ALL_ONES, _IN_D3COLD),
            context=any_of(_ALL_ONES, _IN_D3COLD),
            summary="the GPU does not come back from its deepest sleep (D3cold): its configuration space is silent",
            remedy=always(
                power_cycle("power the machine off and on again: a reboot often does not reset the slot"),
                run(
                    "configure",
                    "keep GPUs from sleeping: no runtime power management for them",
                    Shell(
                        'for gpu in /sys/bus/pci/drivers/nvidia/0*; do echo on | sudo tee "$gpu/power/control"; done'
                    ),
                ),
                by_hand("configure", "load vfio-pci with disable_idle_d3=1", "virtual machines use the GPU"),
            ),
            explains=NOT_STARTED | TRANSFERS_LOST,
        ),
    ),
)
