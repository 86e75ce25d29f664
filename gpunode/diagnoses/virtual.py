"""Virtual machines, vGPU and WSL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.consequences import DRIVER_NOT_INITIALIZED, NO_DRIVER
from gpunode.diagnoses.model import Citation, Fix, Rule, Sign
from gpunode.diagnoses.pci import IS_VIRTUAL_MACHINE, REGION_WITHOUT_ADDRESS
from gpunode.diagnoses.remedies import (
    change_driver,
    install_guest_driver,
    make_fixed_remedy,
    manual_step,
    restart_unit,
    run_step,
    uninstall_driver,
)
from gpunode.diagnoses.signs import (
    all_of,
    any_line,
    any_of,
    command_run,
    custom_sign,
    kernel_line,
    message_line,
    predicate,
    unless,
)
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import boards, driver, faults, packages, smi_query, system
from gpunode.facts.patterns import Pattern

# ---- a GPU passed through to a guest

# Windows' error for a device whose driver gave up.
_CODE_43: Final = message_line(r"(?i)\bcode 43\b")
_NO_DEVICE_HANDLE: Final = any_of(_CODE_43, message_line(r"Unable to determine the device handle for (?:GPU|gpu)"))
_GPU_NOT_STARTED: Final = any_of(_NO_DEVICE_HANDLE, kernel_line(r"RmInitAdapter failed! \((?:0x2[46]|0x12|0x53)"))
_HYPERVISOR_HIDDEN: Final = message_line(
    r"<hidden\s+state=['\"]on['\"]|\bkvm=off\b|\bhidden=1\b|-hypervisor\b", "virtualization", "text", "file"
)
# Since 465 GeForce cards work in guests of any kind.
_FIRST_BRANCH_IN_GUESTS: Final = 465


def _driver_branch(snapshot: Snapshot) -> int | None:
    known = driver.loaded_version(snapshot) or driver.smi_version(snapshot)
    return int(known.version.split(".")[0]) if known else None


def _is_geforce(snapshot: Snapshot) -> bool | None:
    names = snapshot.view(boards.gpu_model_names)
    return any("GeForce" in name or "TITAN" in name for name in names) if names else None


_IS_GEFORCE: Final = predicate(_is_geforce, "the GPU is a GeForce")
_IS_NOT_GEFORCE: Final = predicate(lambda snapshot: _is_geforce(snapshot) is False, "the GPU is not a GeForce")
_BEFORE_GUEST_SUPPORT: Final = predicate(
    lambda snapshot: (_driver_branch(snapshot) or _FIRST_BRANCH_IN_GUESTS) < _FIRST_BRANCH_IN_GUESTS,
    "the driver is older than 465",
)
_DRIVER_SUPPORTS_GUESTS: Final = predicate(
    lambda snapshot: (_driver_branch(snapshot) or 0) >= _FIRST_BRANCH_IN_GUESTS, "the driver is 465 or newer"
)
_IS_WSL: Final = predicate(system.is_wsl, "this is WSL")
_WSL_MENTIONED: Final = any_of(_IS_WSL, command_run(r"\bwsl2?\b|\bnvidia-smi\.exe\b|\bwindows\b"))
_GPU_FAULTS: Final = custom_sign(lambda snapshot: (one.citations[0] for one in snapshot.view(faults.find_incidents)))


def _upgrade_driver(snapshot: Snapshot) -> Iterable[Fix]:
    text = "install a driver of branch 465 or newer, which supports GeForce cards in virtual machines"
    yield from change_driver(snapshot, text, oldest_branch=465)
    hide = "or hide the hypervisor on the host: <kvm><hidden state='on'/></kvm> in the domain's features"
    yield manual_step("configure", hide, "the GPU is too old for a newer driver")


_ENLARGE_MMIO_WINDOW: Final = make_fixed_remedy(
    manual_step(
        "firmware",
        "boot the virtual machine with UEFI (OVMF) and machine type q35, and give its firmware a larger 64-bit window: "
        "-fw_cfg name=opt/ovmf/X-PciMmio64Mb,string=262144 (megabytes, more than all GPUs' memory together) for QEMU, "
        "pciPassthru.use64bitMMIO=TRUE and pciPassthru.64bitMMIOSizeGB for VMware",
    ),
    run_step(
        "inspect", "check the regions in the guest", Shell("sudo lspci -vvv -d 10de: | grep -E '^[0-9a-f]|Region'")
    ),
)


# ---- vGPU


_OTHER_NODE_WORDS: Final = Pattern(
    r"\b(?:other|another|healthy|good|working)\b.{0,20}\b(?:workers?|nodes?|hosts?|VMs?)\b"
)


def _gridd_line(words: str) -> Sign:
    """Return the sign of this message by nvidia-gridd, with its prefix anywhere or without it in its own log."""
    anyone = message_line(rf"(?i)(?:nvidia-gridd(?:\[\d+\])?: |:<\d>:)\s*{words}")
    alone = message_line(rf"(?i)^[ \t]*{words}", "unit-log")
    own = any_of(anyone, custom_sign(lambda node: (line for line in node.view(alone) if "gridd" in line.source)))
    return custom_sign(lambda node: (line for line in node.view(own) if not _OTHER_NODE_WORDS.search(line.source)))


_VGPU_UNLICENSED: Final = message_line(
    # NVIDIA's licence daemon, and CUDA once the grace period is over.
    r"(?i)License Status\s*:\s*(?:Unlicensed|Expired|Restricted)|device doesn.t have (?:a )?valid Grid license",
    *("nvidia-smi-q", "nvidia-smi", "text", "kubernetes-log", "application"),
)
# The client is configured: the token that names its server is there, but it still has no licence.
_LICENSE_TOKEN_FILE: Final = message_line(r"client_configuration_token_\S*\.tok\b", "listing", "text", "nvidia-smi-q")
_LICENSING_UNCONFIGURED: Final = _gridd_line(
    r"(?:Configuration parameter ?\( ?ServerAddress|Invalid feature type|License (?:has )?expired|Unlicensed|"
    r"Valid [^:\n]{0,20}license not (?:found|acquired)|Client configuration token (?:file )?(?:not found|missing)|"
    r"No (?:valid )?client configuration token)"
)
_LICENSE_REFUSED: Final = _gridd_line(
    r"(?:Failed server communication|Failed to (?:acquire|borrow|renew|register|update local trusted|fetch|"
    r"validate|connect|initialize [a-z ]{4,20})|[^\n]{0,80}Error: (?:Unable to|Could ?n.t|Failed to)|"
    r"(?:License )?server [^\n]{0,60}(?:unreachable|not available|no response)|Error occurred while \w+ing)"
)
_LICENSE_ACQUIRED: Final = _gridd_line(r"License (?:acquired|renewed) successfully")
_GRIDD_NOT_FOUND: Final = message_line(
    r"Unit nvidia-gridd(?:\.service)? (?:could not be found|not found)|nvidia-gridd: unrecognized service"
)


_CHECK_LICENSE_STEP: Final = run_step(
    "inspect", "it must say Licensed", Shell("nvidia-smi -q | grep -A 2 'Licensed Product'")
)
_RESTART_GRIDD_STEP: Final = restart_unit("nvidia-gridd", "request the licence again")


def _configure_license(snapshot: Snapshot) -> Iterable[Fix]:
    if snapshot.view(_GRIDD_NOT_FOUND):
        yield install_guest_driver("install nvidia-gridd, which requests the licence")
    else:
        text = "copy the client configuration token of the licence server to /etc/nvidia/ClientConfigToken"
        yield manual_step("configure", f"{text}, and set FeatureType in /etc/nvidia/gridd.conf")
        yield _RESTART_GRIDD_STEP
    yield _CHECK_LICENSE_STEP


_SHOW_GRIDD_LOG: Final = Shell("journalctl -b -u nvidia-gridd --no-pager")
_FIX_LICENSE_REQUEST: Final = make_fixed_remedy(
    run_step("inspect", "read why it is rejected: DNS, port 443, clock, free licences, old token", _SHOW_GRIDD_LOG),
    manual_step("configure", "replace the client configuration token by a new one of the server (DLS or CLS)"),
    _RESTART_GRIDD_STEP,
)


_VGPU_START_FAILED: Final = message_line(
    r"error: vmiop_log: (?:\(0x[0-9a-f]+\): )?(?:Incompatible Guest/Host drivers|init_device_instance failed|"
    r"Initialization: |vGPU is supported only on|Assertion Failed|NVOS status 0x(?!0\b))|"
    r"error: vmiop_(?:env_)?log: .{0,80}(?:failed to (?:start|initialize)|VGPU initialization failed)"
)


# ---- WSL

_LINUX_DRIVER_PACKAGES: Final = (
    *("nvidia-driver-*", "nvidia-utils-*", "libnvidia-compute-*", "nvidia-dkms-*", "nvidia-kernel-*"),
    "xorg-x11-drv-nvidia*",
)


def _linux_driver_packages(snapshot: Snapshot) -> Iterator[packages.Package]:
    return (one for one in packages.matching_packages(snapshot, *_LINUX_DRIVER_PACKAGES) if one.is_installed)


def _tcc_rows(snapshot: Snapshot) -> Iterator[Citation]:
    rows = smi_query.find_rows(snapshot, "Driver Model", "Current")
    return (row.citation for _, row in rows if row.value.strip().upper() == "TCC")


_GPU_BLOCKED_BY_OS: Final = message_line(r"(?i)GPU access blocked by the operating system")
_GPU_IN_TCC_MODE: Final = any_of(
    custom_sign(_tcc_rows), message_line(r"^\|\s+\d+\s+[^|]{2,60}\sTCC\s+\|", "nvidia-smi", "text", "nvidia-smi-q")
)
_LINUX_DRIVER_IN_WSL: Final = all_of(
    custom_sign(lambda snapshot: (package.citation for package in _linux_driver_packages(snapshot))), _WSL_MENTIONED
)


def _remove_linux_driver(snapshot: Snapshot) -> Iterable[Fix]:
    if names := tuple(package.name for package in _linux_driver_packages(snapshot)):
        yield uninstall_driver(
            snapshot, "remove the Linux driver from WSL: the Windows driver is the only one there", *names
        )
    else:
        look = (Shell("ldconfig -p | grep -E 'libcuda|libnvidia-ml'"), Shell("ls -l /usr/lib/wsl/lib"))
        yield Fix("remove", "find NVIDIA libraries that do not come from Windows, and remove their packages", look)
    yield manual_step("install", "update the Windows driver and WSL (wsl --update), then wsl --shutdown")


_EXPLAINED_BY_WSL: Final = NO_DRIVER | {
    *("driver-not-installed", "no-gpu-present", "driver-userspace-incomplete", "kernel-headers-missing"),
    *("driver-library-mismatch-reboot-pending", "dkms-build-kernel-api"),
}
_rule = partial(Rule, layer="driver")

RULES: Final = (
    _rule(
        cause="vm-passthrough-mmio-config",
        layer="pci",
        disruption="power-cycle",
        decisive=all_of(REGION_WITHOUT_ADDRESS, IS_VIRTUAL_MACHINE),
        typical=any_line(r"pciPassthru\d*\.(?:use64bitMMIO|64bitMMIOSizeGB)|X-PciMmio64Mb"),
        context=IS_VIRTUAL_MACHINE,
        symptoms=(symptoms.ADAPTER_INIT_FAILED, symptoms.REGION_NOT_ASSIGNED, symptoms.NO_DEVICES, symptoms.NO_DRIVER),
        against=(unless(symptoms.DRIVER_WORKS, REGION_WITHOUT_ADDRESS),),
        look_at=(Shell("sudo dmesg | grep -E 'BAR|nvrm'"), Shell("systemd-detect-virt")),
        remedy=_ENLARGE_MMIO_WINDOW,
        explains=NO_DRIVER | {"gsp-init-failed-platform"},
    ),
    _rule(
        cause="vm-passthrough-hypervisor-detected",
        disruption="reboot",
        decisive=all_of(_GPU_NOT_STARTED, IS_VIRTUAL_MACHINE, _BEFORE_GUEST_SUPPORT, _IS_GEFORCE),
        typical=any_of(
            all_of(IS_VIRTUAL_MACHINE, any_of(_CODE_43, all_of(_NO_DEVICE_HANDLE, _IS_GEFORCE))),
            all_of(IS_VIRTUAL_MACHINE, _BEFORE_GUEST_SUPPORT, any_of(_IS_GEFORCE, _GPU_NOT_STARTED)),
            all_of(_GPU_NOT_STARTED, _HYPERVISOR_HIDDEN),
        ),
        symptoms=(symptoms.GPU_LOST, symptoms.ADAPTER_INIT_FAILED, symptoms.NO_DEVICES, symptoms.NO_DRIVER),
        context=any_of(_HYPERVISOR_HIDDEN, all_of(any_of(IS_VIRTUAL_MACHINE, _BEFORE_GUEST_SUPPORT), _IS_GEFORCE)),
        share=0.2,
        against=(symptoms.DRIVER_WORKS, _DRIVER_SUPPORTS_GUESTS, _IS_NOT_GEFORCE, _GPU_FAULTS, _IS_WSL),
        look_at=(Shell("systemd-detect-virt"), Shell("cat /proc/driver/nvidia/version")),
        remedy=_upgrade_driver,
        explains=DRIVER_NOT_INITIALIZED,
    ),
    _rule(
        cause="vgpu-license-server-failure",
        disruption="restart-service",
        decisive=_LICENSE_REFUSED,
        typical=all_of(_VGPU_UNLICENSED, _LICENSE_TOKEN_FILE),
        symptoms=(_LICENSE_REFUSED, _VGPU_UNLICENSED, symptoms.CUDA_BUSY, symptoms.NVML_UNKNOWN, symptoms.CUDA_UNKNOWN),
        against=(_LICENSE_ACQUIRED,),
        look_at=(Shell("sudo journalctl -u nvidia-gridd -b"),),
        remedy=_FIX_LICENSE_REQUEST,
        explains=frozenset({"vgpu-unlicensed", "compute-mode-exclusive"}),
    ),
    _rule(
        cause="vgpu-unlicensed",
        disruption="restart-service",
        decisive=any_of(all_of(_VGPU_UNLICENSED, _GRIDD_NOT_FOUND), _LICENSING_UNCONFIGURED),
        typical=any_of(_VGPU_UNLICENSED, all_of(_GRIDD_NOT_FOUND, symptoms.CUDA_BUSY)),
        symptoms=(_VGPU_UNLICENSED, _LICENSING_UNCONFIGURED, symptoms.CUDA_BUSY, symptoms.NVML_UNKNOWN),
        context=_GRIDD_NOT_FOUND,
        against=(unless(_LICENSE_ACQUIRED, _VGPU_UNLICENSED),),
        look_at=(Shell("nvidia-smi -q | grep -i -A2 licen"),),
        remedy=_configure_license,
        explains=frozenset({"compute-mode-exclusive"}),
    ),
    _rule(
        cause="xid-78-vgpu-start-error",
        check=faults.incident_check(78),
        decisive=message_line(r"Incompatible Guest/Host drivers"),
        typical=_VGPU_START_FAILED,
        symptoms=(symptoms.ANY_XID, _VGPU_START_FAILED, symptoms.ADAPTER_INIT_FAILED),
        look_at=(Shell("sudo dmesg | grep -i xid"), Shell("sudo journalctl -u nvidia-vgpu-mgr -b")),
        remedy=make_fixed_remedy(
            manual_step("install", "install host and guest drivers of the same vGPU release"),
            run_step("inspect", "read the vGPU manager's log", Shell("journalctl -b -u nvidia-vgpu-mgr --no-pager")),
        ),
    ),
    _rule(
        cause="wsl-gpu-tcc-mode",
        disruption="reboot",
        decisive=all_of(_GPU_IN_TCC_MODE, _WSL_MENTIONED),
        symptoms=(_GPU_BLOCKED_BY_OS, symptoms.NO_DEVICES, symptoms.CUDA_FINDS_NO_DEVICE, symptoms.CUDA_UNAVAILABLE),
        context=unless(_WSL_MENTIONED, symptoms.DRIVER_WORKS),
        look_at=(Shell("nvidia-smi.exe"),),
        remedy=make_fixed_remedy(
            manual_step("configure", "in Windows as administrator: nvidia-smi -fdm 0 (WDDM) or 2 (MCDM), then reboot"),
            manual_step("configure", "disable the TCC card in the device manager", "WSL should use another card"),
        ),
        explains=_EXPLAINED_BY_WSL | {"wsl-gpu-access-blocked"},
    ),
    _rule(
        cause="wsl-gpu-access-blocked",
        decisive=unless(_LINUX_DRIVER_IN_WSL, symptoms.DRIVER_WORKS),
        typical=any_of(
            _GPU_BLOCKED_BY_OS,
            unless(all_of(_IS_WSL, any_of(symptoms.NO_DRIVER, symptoms.NO_NVML_LIBRARY)), symptoms.DRIVER_WORKS),
        ),
        symptoms=(
            _GPU_BLOCKED_BY_OS,
            # Seen in public reports under WSL, and on Windows itself.
            message_line(r"Failed to properly shut down NVML: Driver Not Loaded"),
            symptoms.NO_DRIVER,
            symptoms.NO_NVML_LIBRARY,
            symptoms.NVML_UNKNOWN,
            symptoms.CUDA_FINDS_NO_DEVICE,
        ),
        context=unless(_WSL_MENTIONED, symptoms.DRIVER_WORKS),
        look_at=(Shell("ls -l /dev/dxg /usr/lib/wsl/lib"),),
        remedy=_remove_linux_driver,
        explains=_EXPLAINED_BY_WSL,
    ),
)
