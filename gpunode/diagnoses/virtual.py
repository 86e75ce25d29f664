"""Virtual machines, vGPU and WSL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.addresses import XID_CATALOG
from gpunode.diagnoses.bar import regions
from gpunode.diagnoses.chains import NO_DRIVER, NOT_INITIALISED
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.model import Citation, Confidence, Doubt, Family, Fix, Proof, Rule, Verdict, only
from gpunode.diagnoses.remedies import always, by_hand, newer_driver, restart, run, uninstall
from gpunode.diagnoses.snapshot import Snapshot, lines_with
from gpunode.diagnoses.views import boards, driver, faults, kernel, packages, smi_query, system
from gpunode.facts.patterns import Pattern

# ---- a GPU passed through to a guest

_NO_HANDLE: Final = Pattern(r"Unable to determine the device handle for (?:GPU|gpu)")
_NOT_STARTED: Final = Pattern(r"RmInitAdapter failed! \((?:0x2[46]|0x12|0x53)")
# What Windows says of a device whose driver gave up.
_CODE_43: Final = Pattern(r"\bcode 43\b", re.IGNORECASE)
_HIDDEN: Final = Pattern(r"<hidden\s+state=['\"]on['\"]|\bkvm=off\b|\bhidden=1\b|-hypervisor\b")
# From 465 on GeForce cards work in guests of any kind.
_LAST_SHY: Final = 465


def _shy(snapshot: Snapshot) -> Iterator[Verdict]:
    stopped = snapshot.said(_CODE_43)
    seen = (
        *stopped,
        *snapshot.said(_NO_HANDLE),
        *(message.citation for message in kernel.said(snapshot, _NOT_STARTED)),
    )
    if not seen or not system.is_guest(snapshot) or snapshot.view(faults.incidents) or system.is_wsl(snapshot):
        return
    known = driver.loaded(snapshot) or driver.smi_version(snapshot)
    branch = int(known.version.split(".")[0]) if known else None
    names = snapshot.view(boards.names)
    is_geforce = any("GeForce" in name or "TITAN" in name for name in names)
    hidden = snapshot.said(_HIDDEN, "virtualization", "text", "file")
    if (branch is not None and branch >= _LAST_SHY) or (names and not is_geforce):
        return
    if branch is not None or hidden or stopped:
        told = (known.citation,) if known else ()
        age = f"driver {known.version}" if known else "a driver before 465"
        summary = f"{age} does not start a GeForce in a virtual machine whose hypervisor it sees"
        yield Proof(summary, (*seen, *told, *hidden), "certain" if branch is not None and is_geforce else "likely")
        return
    question = (
        "the GPU of this virtual machine has no device handle, and neither the driver's version nor the GPU is known"
    )
    look = (Shell("cat /proc/driver/nvidia/version"), Shell("lspci -nn -d 10de:"), Shell("sudo dmesg | grep NVRM"))
    yield Doubt(question, look, seen, ("gpu-fallen-off-bus", "vgpu-unlicensed", "vm-passthrough-mmio-config"))


def _newer(snapshot: Snapshot) -> Iterable[Fix]:
    text = "install a driver of branch 465 or newer: it starts GeForce cards in virtual machines"
    yield from newer_driver(snapshot, text, least=465)
    yield by_hand(
        "configure",
        "or hide the hypervisor on the host: <kvm><hidden state='on'/></kvm> in the domain's features",
        "the GPU is too old for a newer driver",
    )


def _larger_window(_: Snapshot) -> Iterable[Fix]:
    yield by_hand("firmware", "boot the virtual machine with UEFI (OVMF) and machine type q35, not with a legacy BIOS")
    yield by_hand(
        "firmware",
        "QEMU, libvirt, LXD: give its firmware a larger 64-bit window: -fw_cfg "
        "name=opt/ovmf/X-PciMmio64Mb,string=262144 (megabytes, more than all GPUs' memory together)",
    )
    yield by_hand(
        "firmware", "VMware: pciPassthru.use64bitMMIO=TRUE and pciPassthru.64bitMMIOSizeGB twice the GPUs' memory"
    )
    yield run(
        "inspect", "look at the regions in the guest", Shell("sudo lspci -vvv -d 10de: | grep -E '^[0-9a-f]|Region'")
    )


# ---- vGPU

_UNLICENSED: Final = Pattern(r"License Status\s*:\s*(?:Unlicensed|Expired|Restricted)", re.IGNORECASE)
# The journal's head, that of its own log ("…2025:<1>:"), or a container's without any.
_GRIDD: Final = r"(?:nvidia-gridd(?:\[\d+\])?: |:<\d>:)\s*"
# `journalctl -o cat` leaves the head away, which in gridd's own log says nothing.
_ALONE: Final = r"^[ \t]*"


def _by_gridd(words: str) -> tuple[Pattern, Pattern]:
    """What finds these words of nvidia-gridd's anywhere, and in its own log."""
    return Pattern(_GRIDD + words, re.IGNORECASE), Pattern(_ALONE + words, re.IGNORECASE | re.MULTILINE)


_UNCONFIGURED: Final = _by_gridd(
    r"(?:Configuration parameter ?\( ?ServerAddress|Invalid feature type|License (?:has )?expired|Unlicensed|"
    r"Valid [^:\n]{0,20}license not (?:found|acquired)|Client configuration token (?:file )?(?:not found|missing)|"
    r"No (?:valid )?client configuration token)"
)
_SERVER: Final = _by_gridd(
    r"(?:Failed server communication|Failed to (?:acquire|borrow|renew|register|update local trusted|fetch|"
    r"validate|connect|initialize [a-z ]{4,20})|[^\n]{0,80}Error: (?:Unable to|Could ?n.t|Failed to)|"
    r"(?:License )?server [^\n]{0,60}(?:unreachable|not available|no response)|Error occurred while \w+ing)"
)
_ACQUIRED: Final = _by_gridd(r"License (?:acquired|renewed) successfully")


def _gridd_said(snapshot: Snapshot, words: tuple[Pattern, Pattern]) -> tuple[Citation, ...]:
    anywhere, alone = words
    own = (item for item in snapshot.of("unit-log") if item.subject == "nvidia-gridd.service")
    return snapshot.said(anywhere) or tuple(line for item in own for line in lines_with(item, alone))


_OF_OTHERS: Final = Pattern(
    r"\b(?:[Oo]ther|[Aa]nother|[Hh]ealthy|[Gg]ood|[Ww]orking)\b[^\n,;]{0,20}\b(?:worker|node|host|guest|VM|vm|machine|server)s?\b"
)
_NO_GRIDD: Final = Pattern(
    r"Unit nvidia-gridd(?:\.service)? (?:could not be found|not found)|nvidia-gridd: unrecognized service"
)


def _licence(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """Whether the licence was not asked for, or asked for and not given."""
    status = tuple(
        row.citation
        for _, row in smi_query.rows(snapshot, "License Status")
        if row.value.lower().startswith(("unlicensed", "expired", "restricted"))
    ) or snapshot.said(_UNLICENSED, *("nvidia-smi-q", "nvidia-smi", "text", "kubernetes-log", "application"))
    failed = _gridd_said(snapshot, _SERVER)
    unconfigured = _gridd_said(snapshot, _UNCONFIGURED)
    absent = snapshot.said(_NO_GRIDD)
    # A licence of another machine, with the same token or without, says nothing of this one.
    acquired = tuple(line for line in _gridd_said(snapshot, _ACQUIRED) if not _OF_OTHERS.search(line.source))
    if failed and not acquired:
        summary = "nvidia-gridd asks the licence server and gets no licence, so this vGPU runs restricted"
        yield "vgpu-license-server-failure", Proof(summary, (*failed, *status))
    elif status or unconfigured:
        if acquired and not status:
            return
        if absent:
            summary = "this vGPU has no licence: nvidia-gridd, which asks for one, is not installed"
            remedy = tuple(_guest_driver(snapshot))
        else:
            why = (
                "nvidia-gridd is not told where to ask for one"
                if unconfigured
                else "nobody has asked for one, or it ran out"
            )
            summary, remedy = f"this vGPU has no licence: {why}", tuple(_token(snapshot))
        # Whether a server was asked in vain, only nvidia-gridd's log tells.
        told: Confidence = "certain" if absent or unconfigured else "likely"
        yield "vgpu-unlicensed", Proof(summary, (*status, *unconfigured, *absent), told, remedy=remedy)


def _guest_driver(_: Snapshot) -> Iterable[Fix]:
    yield by_hand(
        "install",
        "install NVIDIA's vGPU guest driver (GRID) that fits the host's branch: it brings nvidia-gridd, the data "
        "center driver does not",
    )
    yield run("inspect", "it must say Licensed", Shell("nvidia-smi -q | grep -A 2 'Licensed Product'"))


def _token(_: Snapshot) -> Iterable[Fix]:
    text = "put the client configuration token of the licence server into /etc/nvidia/ClientConfigToken"
    yield by_hand("configure", f"{text}, and set FeatureType in /etc/nvidia/gridd.conf")
    yield run("restart", "have the licence asked for anew", Shell("sudo systemctl restart nvidia-gridd"))
    yield run(
        "inspect",
        "it must say Licensed",
        Shell("nvidia-smi -q | grep -A 2 'Licensed Product'"),
        Shell("journalctl -b -u nvidia-gridd --no-pager"),
    )


def _server(_: Snapshot) -> Iterable[Fix]:
    yield run(
        "inspect",
        "read why the licence is not given: name resolution, port 443 to the server, the clock, free licences, the "
        "token's age",
        Shell("journalctl -b -u nvidia-gridd --no-pager"),
        Shell("timedatectl status"),
    )
    yield by_hand(
        "configure",
        "make a new client configuration token on the server (DLS or CLS), and put it in place of the old one",
    )
    yield restart("nvidia-gridd")


_START_FAILED: Final = Pattern(
    r"error: vmiop_log: (?:\(0x[0-9a-f]+\): )?(?:Incompatible Guest/Host drivers|init_device_instance failed|"
    r"Initialization: |vGPU is supported only on|Assertion Failed|NVOS status 0x(?!0\b))|"
    r"error: vmiop_(?:env_)?log: .{0,80}(?:failed to (?:start|initialize)|VGPU initialization failed)"
)
_TOO_OLD: Final = Pattern(r"Incompatible Guest/Host drivers")


def _not_started(snapshot: Snapshot) -> Iterator[Verdict]:
    for incident in faults.of(snapshot, 78):
        yield faults.proof(incident, "a virtual machine's vGPU could not be started")
    if said := snapshot.said(_START_FAILED):
        versions = snapshot.says(_TOO_OLD)
        why = (
            "the guest's driver does not fit the host's"
            if versions
            else "the vGPU manager cannot set it up on this GPU"
        )
        yield Proof(f"a virtual machine's vGPU was not started: {why}", said, "certain" if versions else "likely")


# ---- WSL

_BLOCKED: Final = Pattern(r"GPU access blocked by the operating system", re.IGNORECASE)
_ABOUT_WSL: Final = Pattern(r"\bwsl2?\b|\bnvidia-smi\.exe\b|\bwindows\b", re.IGNORECASE)
_TCC: Final = Pattern(r"^\|\s+\d+\s+[^|]{2,60}\sTCC\s+\|", re.MULTILINE)
_LINUX_DRIVER: Final = (
    "nvidia-driver-*",
    "nvidia-utils-*",
    "libnvidia-compute-*",
    "nvidia-dkms-*",
    "nvidia-kernel-*",
    "xorg-x11-drv-nvidia*",
)


def _windows(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """Which it is: a driver model that WSL cannot use, or a Linux driver or container that hides the Windows one."""
    blocked = snapshot.said(_BLOCKED)
    if (
        not blocked
        and not system.is_wsl(snapshot)
        and not any(_ABOUT_WSL.search(item.written) and item.outcome == "ok" and item.text for item in snapshot.items)
    ):
        return
    rows = (*smi_query.rows(snapshot, "Driver Model", "Current"), *smi_query.rows(snapshot, "driver_model.current"))
    models = tuple(row.citation for _, row in rows if row.value.strip().upper() == "TCC")
    models += snapshot.said(_TCC, "nvidia-smi", "text", "nvidia-smi-q")
    trouble = tuple(place for state, place in snapshot.view(driver.smi) if state not in {"works", "mismatch"})
    linux = tuple(one for one in packages.matching(snapshot, *_LINUX_DRIVER) if one.is_installed)
    if models:
        summary = "Windows drives the GPU in TCC mode, in which it has no display driver model that WSL could share"
        yield "wsl-gpu-tcc-mode", Proof(summary, (*models, *blocked, *trouble))
    elif blocked or (linux and trouble):
        found = tuple(one.citation for one in linux)
        if linux:
            summary = "a Linux driver is installed inside WSL and hides the one that Windows shares (/usr/lib/wsl/lib)"
        else:
            summary = (
                "Windows does not give WSL the GPU: its driver, WSL itself or a library inside it do not fit together"
            )
        yield (
            "wsl-gpu-access-blocked",
            Proof(summary, (*blocked, *found, *trouble), "certain" if linux else "likely"),
        )


def _clean(snapshot: Snapshot) -> Iterable[Fix]:
    names = tuple(one.name for one in packages.matching(snapshot, *_LINUX_DRIVER) if one.is_installed)
    if names:
        yield uninstall(snapshot, "remove the Linux driver from WSL: the Windows driver is the only one there", *names)
    else:
        yield Fix(
            "remove",
            "look for NVIDIA libraries that do not come from Windows, and remove what owns them",
            (Shell("ldconfig -p | grep -E 'libcuda|libnvidia-ml'"), Shell("ls -l /usr/lib/wsl/lib")),
        )
    yield by_hand("install", "update the Windows driver and WSL (wsl --update), then wsl --shutdown")
    yield by_hand(
        "configure",
        "run the container with --gpus all by a docker that runs in WSL, with the toolkit installed there",
        "only containers are concerned",
    )


_SHOWN_AS_FAILED: Final = NO_DRIVER | {
    *("driver-not-installed", "no-gpu-present", "driver-userspace-incomplete", "kernel-headers-missing"),
    *("driver-library-mismatch-reboot-pending", "dkms-build-kernel-api"),
}
_VGPU_GUIDE: Final = "https://docs.nvidia.com/vgpu/latest/grid-licensing-user-guide/index.html"
_WSL_GUIDE: Final = "https://docs.nvidia.com/cuda/wsl-user-guide/index.html"

FAMILY: Final = Family(
    "virtual",
    "virtual machines, vGPU and WSL",
    (
        Rule(
            cause="vm-passthrough-mmio-config",
            layer="driver",
            storey="pci",
            severity="error",
            disruption="power-cycle",
            title="the virtual machine has no room for the GPU's memory region",
            symptoms=(
                symptoms.NOT_STARTED,
                symptoms.NO_ADDRESS,
                symptoms.NO_DEVICES,
                symptoms.NO_DRIVER,
            ),
            look_at=(
                Shell("sudo dmesg | grep -E 'BAR|nvrm'"),
                Shell("systemd-detect-virt"),
            ),
            story=(
                "A GPU passed through to a virtual machine needs its memory region in the guest's address space too. "
                "Guest firmware sizes the window above 4 GiB by a rule that large GPUs, or several of them, outgrow; "
                "without UEFI there is none. The guest then sees the GPU with a region of 0M, and its driver refuses "
                "it, or only some of several GPUs start."
            ),
            sources=(
                "https://github.com/kubevirt/kubevirt/issues/11093",
                "https://github.com/canonical/lxd/issues/14381",
            ),
            check=only("vm-passthrough-mmio-config", regions),
            remedy=_larger_window,
            explains=NO_DRIVER | {"gsp-init-failed-platform"},
        ),
        Rule(
            cause="vm-passthrough-hypervisor-detected",
            layer="driver",
            storey="driver",
            severity="error",
            disruption="reboot",
            title="an old driver refuses a GeForce in a virtual machine",
            symptoms=(
                symptoms.NOT_STARTED,
                symptoms.NO_DEVICES,
                symptoms.NO_DRIVER,
            ),
            look_at=(
                Shell("systemd-detect-virt"),
                Shell("cat /proc/driver/nvidia/version"),
            ),
            story=(
                "Drivers before 465 look for a hypervisor and do not start GeForce cards below one (Windows calls it "
                "code 43). The module loads, nvidia-smi finds no device handle, and the same card works on the host. "
                "Newer drivers do not care; for older GPUs the hypervisor can be hidden from the guest."
            ),
            sources=(
                "https://github.com/NVIDIA/kubevirt-gpu-device-plugin/issues/2",
                "https://github.com/clayfreeman/gpu-passthrough/issues/4",
            ),
            check=_shy,
            remedy=_newer,
            explains=NOT_INITIALISED,
        ),
        Rule(
            cause="vgpu-license-server-failure",
            layer="driver",
            storey="driver",
            severity="error",
            disruption="restart-service",
            title="the licence server gives this vGPU no licence",
            symptoms=(
                symptoms.SLOW,
                symptoms.NVML_UNKNOWN,
                symptoms.CUDA_UNKNOWN,
            ),
            look_at=(Shell("sudo journalctl -u nvidia-gridd -b"),),
            story=(
                "nvidia-gridd in the guest has a server to ask and does not get a licence: the name does not resolve, "
                "port 443 is closed, the clock is wrong, the token is of another server or too old, or all licences "
                "are given away. After a grace time the vGPU is slowed down, and then refuses CUDA."
            ),
            sources=(_VGPU_GUIDE, "https://github.com/NVIDIA/nvidia-docker/issues/1787"),
            check=only("vgpu-license-server-failure", _licence),
            remedy=_server,
            explains=frozenset({"vgpu-unlicensed", "compute-mode-exclusive"}),
        ),
        Rule(
            cause="vgpu-unlicensed",
            layer="driver",
            storey="driver",
            severity="error",
            disruption="restart-service",
            title="the vGPU has no licence",
            symptoms=(
                symptoms.SLOW,
                symptoms.NVML_UNKNOWN,
                symptoms.CUDA_UNKNOWN,
                symptoms.CUDA_NOT_INITIALISED,
            ),
            look_at=(Shell("nvidia-smi -q | grep -i -A2 licen"),),
            story=(
                "A vGPU needs a licence, which nvidia-gridd asks for at boot. Without gridd, without a server's "
                "token, or with the wrong feature type nobody asks, and the status stays Unlicensed: full speed for "
                "some minutes, then slower and slower, at last 'CUDA-capable device is busy or unavailable' for every "
                "program."
            ),
            sources=(_VGPU_GUIDE, "https://github.com/Azure/AKS/issues/4870"),
            check=only("vgpu-unlicensed", _licence),
            remedy=_token,
            explains=frozenset({"compute-mode-exclusive"}),
        ),
        Rule(
            cause="xid-78-vgpu-start-error",
            layer="driver",
            storey="driver",
            severity="error",
            disruption="none",
            title="a vGPU could not be started (Xid 78)",
            symptoms=(
                symptoms.ANY_XID,
                symptoms.NOT_STARTED,
            ),
            look_at=(
                Shell("sudo dmesg | grep -i xid"),
                Shell("sudo journalctl -u nvidia-vgpu-mgr -b"),
            ),
            story=(
                "The host's vGPU manager could not start a virtual machine's vGPU: the guest's driver is older than "
                "the host's supports, the profile does not fit the GPU, or the board is not made for vGPU. The "
                "machine boots without a working GPU. Host and guest drivers of one vGPU release belong together."
            ),
            sources=(
                XID_CATALOG,
                "https://docs.nvidia.com/vgpu/latest/index.html",
            ),
            check=_not_started,
            remedy=always(
                by_hand(
                    "install",
                    "install host and guest drivers of one vGPU release, or of two that its release notes allow "
                    "together",
                ),
                run("inspect", "read what the vGPU manager says", Shell("journalctl -b -u nvidia-vgpu-mgr --no-pager")),
            ),
        ),
        Rule(
            cause="wsl-gpu-tcc-mode",
            layer="driver",
            storey="driver",
            severity="error",
            disruption="reboot",
            title="Windows drives the GPU in TCC mode",
            symptoms=(
                symptoms.NO_DEVICES,
                symptoms.CUDA_NO_DEVICE,
                symptoms.CUDA_UNAVAILABLE,
            ),
            look_at=(Shell("nvidia-smi.exe"),),
            story=(
                "WSL shares the GPU through the Windows display driver model (WDDM). Data center cards run in TCC "
                "mode by default, which has none, so WSL sees no GPU or is refused access; a TCC card beside a WDDM "
                "card can spoil both. Some cards can be switched to WDDM or MCDM, others (H100) cannot be used from "
                "WSL."
            ),
            sources=(
                _WSL_GUIDE,
                "https://github.com/microsoft/WSL/issues/9952",
                "https://github.com/microsoft/WSL/issues/13027",
            ),
            check=only("wsl-gpu-tcc-mode", _windows),
            remedy=always(
                by_hand(
                    "configure",
                    "in Windows, as administrator: nvidia-smi -fdm 0 (WDDM) or -fdm 2 (MCDM), then restart Windows",
                ),
                by_hand(
                    "configure", "disable the TCC card in the device manager", "another card is to be used from WSL"
                ),
            ),
            explains=_SHOWN_AS_FAILED | {"wsl-gpu-access-blocked"},
        ),
        Rule(
            cause="wsl-gpu-access-blocked",
            layer="driver",
            storey="libraries",
            severity="error",
            disruption="none",
            title="WSL is not given the GPU",
            symptoms=(
                symptoms.NO_DRIVER,
                symptoms.NO_NVML_LIBRARY,
                symptoms.NVML_UNKNOWN,
                symptoms.CUDA_NO_DEVICE,
            ),
            look_at=(Shell("ls -l /dev/dxg /usr/lib/wsl/lib"),),
            story=(
                "In WSL the driver is that of Windows, shared under /usr/lib/wsl/lib. A Linux driver package inside "
                "WSL puts its own libraries before it, and they are refused; so is everything when the Windows driver "
                "or WSL itself is too old, or a container is given other libraries. The message is 'GPU access "
                "blocked by the operating system'."
            ),
            sources=(
                _WSL_GUIDE,
                "https://github.com/microsoft/WSL/issues/9938",
                "https://github.com/microsoft/WSL/issues/9962",
            ),
            check=only("wsl-gpu-access-blocked", _windows),
            remedy=_clean,
            explains=_SHOWN_AS_FAILED,
        ),
    ),
)
