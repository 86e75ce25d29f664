"""View the system: distribution, package manager, running kernel, kind of machine."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, cite_fact, find_all
from gpunode.facts import machine
from gpunode.facts.model import Distro, Known
from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import SourceKind

PackageManager: TypeAlias = Literal["apt", "dnf", "zypper", "pacman"]

_UNAME_RELEASE: Final = Pattern(r"(?m)^Linux\s+\S+\s+(\d\S+)|^(\d+\.\d+\S*)$")
_UNAME_HOST_NAME: Final = Pattern(r"^Linux\s+(?P<name>\S+)\s+\d+\.")
_APT_DISTROS: Final = frozenset({"debian", "ubuntu", "linuxmint", "pop", "raspbian"})
_DNF_DISTROS: Final = frozenset({"rhel", "fedora", "centos", "rocky", "almalinux", "ol", "amzn"})
# Names of kernels, packages and commands, for reports without os-release.
_PACKAGE_MANAGER_TRACES: Final[tuple[tuple[PackageManager, Pattern], ...]] = (
    ("apt", Pattern(r"\bapt(?:-get)?\b|\bdpkg\b|-(?:generic|amd64)\b|0ubuntu|linux-headers-|\bubuntu\d")),
    ("dnf", Pattern(r"\.(?:el\d|fc\d\d|amzn)[\d_.]*|\b(?:dnf|yum|rpm)\b|/etc/redhat-release|\bakmods?\b")),
    ("zypper", Pattern(r"\bzypper\b|-default\b.*SUSE|openSUSE|\b\d+\.\d+\.\d+-\d[\d.]*-default\b")),
    ("pacman", Pattern(r"\bpacman\b|-arch\d-|\bArch Linux\b")),
)


def unit_line(snapshot: Snapshot, unit: str, *names: str) -> Citation:
    """Return the first of systemd's properties ``names`` of ``unit`` as a citation; else a note."""
    for name in names:
        for item in snapshot.items_of("unit-show"):
            inside = False
            for number, line in enumerate(item.lines, 1):
                inside = bool(line) and (inside or line == f"Id={unit}")
                if inside and line.startswith(f"{name}="):
                    return cite(item, number)
    return cite_fact(f"systemctl show {unit}", f"its {names[0]}", "units")


def failed_unit_line(snapshot: Snapshot, unit: str) -> Citation:
    """Return the line in which systemd shows that ``unit`` failed: while it restarts, only its sub-state does."""
    return unit_line(snapshot, unit, "SubState", "ActiveState")


def find_distro(snapshot: Snapshot) -> Distro | None:
    """Return the distribution; None if unknown."""
    if isinstance(snapshot.facts.distro, Known):
        return snapshot.facts.distro.value
    for item in (*snapshot.files("*/os-release"), *snapshot.files("/etc/*-release")):
        # A truncated file may name nothing.
        with suppress(ValueError):
            return machine.parse_distro(item.text)
    return _distro_by_name(snapshot)


# /etc/redhat-release, /etc/issue, lsb_release -a, hostnamectl.
_DISTRO_NAME: Final = Pattern(
    r"\b(?P<name>Ubuntu|Debian GNU/Linux|Rocky Linux|Red Hat Enterprise Linux|AlmaLinux|CentOS(?: Stream| Linux)?"
    r"|Fedora(?: Linux)?|Amazon Linux|SUSE Linux Enterprise Server|openSUSE Leap|Oracle Linux Server)"
    r"(?: release)? (?P<version>\d+(?:\.\d+)?)"
)
# By the first word of the name, if that is not the id itself.
_DISTRO_IDS: Final = {"red": "rhel", "amazon": "amzn", "suse": "sles", "opensuse": "opensuse-leap", "oracle": "ol"}


def _distro_by_name(snapshot: Snapshot) -> Distro | None:
    said = (
        item for item in snapshot.items if item.where == "host" and (item.kind == "text" or "/etc/" in item.subject)
    )
    for item in said:
        if len(item.text) < _MAX_RELEASE_TEXT_LENGTH and (match := _DISTRO_NAME.search(item.text)):
            first = match["name"].split()[0].lower()
            return Distro(_DISTRO_IDS.get(first, first), match["version"], "", match[0])
    return None


_MAX_RELEASE_TEXT_LENGTH: Final = 4000


def package_manager(snapshot: Snapshot) -> PackageManager:
    """Return the package manager by distribution, else by names of kernels and commands; default apt."""
    if (known := find_distro(snapshot)) and (name := _manager_of(known)):
        return name
    for name, trace in _PACKAGE_MANAGER_TRACES:
        if any(trace.search(item.text[:20_000]) or trace.search(item.written) for item in snapshot.items):
            return name
    return "apt"


def _manager_of(distro: Distro) -> PackageManager | None:
    """Return the package manager of the distribution or its parents; None if unknown."""
    words = {distro.id, *distro.like}
    if words & _APT_DISTROS:
        return "apt"
    if words & _DNF_DISTROS:
        return "dnf"
    if words & {"suse", "sles", "opensuse"} or distro.id.startswith("opensuse"):
        return "zypper"
    return "pacman" if "arch" in words else None


_MANAGER_COMMAND: Final = Pattern(r"(?:^|[\s;|&/])(?:apt|apt-get|dpkg|dnf|yum|zypper|pacman)\b")


def uses_known_package_manager(snapshot: Snapshot) -> bool:
    """Return whether the package manager is known for the distribution, or was used on it."""
    known = find_distro(snapshot)
    is_known = known is not None and _manager_of(known) is not None
    return is_known or any(item.where == "host" and _MANAGER_COMMAND.search(item.written) for item in snapshot.items)


_YUM_ONLY_KERNEL: Final = Pattern(r"\.(?:el[67]|amzn[12])[._]|\.(?:el[67]|amzn[12])$")


def has_yum_only(snapshot: Snapshot) -> bool:
    """Return whether the release predates dnf: RHEL 7 and its derivatives, Amazon Linux 2."""
    known = find_distro(snapshot)
    if known is None:
        return bool(_YUM_ONLY_KERNEL.search(running_kernel(snapshot)))
    major = known.version_id.partition(".")[0]
    if known.id == "amzn":
        return major in {"1", "2"}
    return _manager_of(known) == "dnf" and known.id != "fedora" and major in {"6", "7"}


def is_debian_itself(snapshot: Snapshot) -> bool:
    """Return whether the system is Debian and not a derivative, by its name or its kernel's."""
    known = find_distro(snapshot)
    return known.id == "debian" if known else bool(_DEBIAN_KERNEL_SUFFIX.search(running_kernel(snapshot)))


def is_proxmox(snapshot: Snapshot) -> bool:
    """Return whether the kernel shows Proxmox VE, which calls itself Debian."""
    return "-pve" in running_kernel(snapshot)


_DEBIAN_KERNEL_SUFFIX: Final = Pattern(r"-(?:amd64|arm64|pve)$")


def running_kernel(snapshot: Snapshot) -> str:
    """Return the output of ``uname -r``; empty if unknown."""
    kernels = snapshot.facts.kernels
    if isinstance(kernels, Known) and kernels.value.running:
        return kernels.value.running
    for item in snapshot.items_of("uname"):
        found = [match[1] or match[2] for match in _UNAME_RELEASE.finditer(item.text)] if item.where == "host" else []
        if found:
            # Mixed output may also contain a driver version, which has no dash.
            return next((one for one in found if "-" in one), found[0]) if item.source.is_mixed else found[0]
    return ""


_UP_MINUTES: Final = Pattern(r"\bup\s+(?:\d{1,2} min(?:ute)?s?\b|0:\d\d\b)")


def recent_boot_lines(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the lines that show an uptime of less than an hour."""
    asked = (item for item in snapshot.items if item.where == "host" and re.search(r"\b(?:uptime|w)\b", item.written))
    return tuple(
        cite(item, item.line_number_at(match.start())) for item in asked for match in find_all(item, _UP_MINUTES)
    )


_DF_ROW: Final = Pattern(r"(?m)^\S+(?:\s+[\d.]+[KMGTPi]*B?){3}\s+(?P<used>\d{1,3})%\s+(?P<place>/\S*)\s*$")
_NEARLY_FULL_PERCENT: Final = 97
# File systems on which modules are built and installed.
_BUILD_FOLDERS: Final = ("/var", "/usr", "/lib", "/boot")


def has_disk_space(snapshot: Snapshot) -> bool:
    """Return whether ``df`` shows these file systems, and none of them full."""
    used = _disk_usage(snapshot)
    return bool(used) and max(used) < _NEARLY_FULL_PERCENT


def is_disk_full(snapshot: Snapshot) -> bool:
    """Return whether ``df`` shows one of these file systems full."""
    return max(_disk_usage(snapshot), default=0) >= _NEARLY_FULL_PERCENT


def _disk_usage(snapshot: Snapshot) -> tuple[int, ...]:
    """Return the usage of these file systems in percent."""
    rows = [match for item in snapshot.items if re.search(r"\bdf\b", item.written) for match in find_all(item, _DF_ROW)]
    return tuple(int(row["used"]) for row in rows if row["place"] == "/" or row["place"].startswith(_BUILD_FOLDERS))


def hostname(snapshot: Snapshot) -> str:
    """Return the machine's own name; empty if unknown."""
    for item in snapshot.items:
        if item.where == "host" and item.was_answered:
            if item.subject == "/proc/sys/kernel/hostname" or item.source.words == ("hostname",):
                return item.text.strip()
            if item.kind == "uname" and (match := _UNAME_HOST_NAME.match(item.text)):
                return match["name"]
    return ""


def is_wsl(snapshot: Snapshot) -> bool:
    """Return whether this is WSL2, by platform or kernel."""
    platform = snapshot.facts.platform
    if isinstance(platform, Known):
        return platform.value.kind == "wsl2"
    return "microsoft" in running_kernel(snapshot).lower() or bool(snapshot.files("/usr/lib/wsl/*"))


_TEGRA_KERNEL_SUFFIX: Final = "-tegra"


def is_jetson(snapshot: Snapshot) -> bool:
    """Return whether this is a Jetson, by platform, kernel, GPU driver or packages."""
    platform = snapshot.facts.platform
    if isinstance(platform, Known):
        return platform.value.kind == "jetson"
    if running_kernel(snapshot).endswith(_TEGRA_KERNEL_SUFFIX):
        return True
    told = (item for item in snapshot.items_of("lsmod", "packages", "text") if item.where == "host")
    return bool(snapshot.files("/etc/nv_tegra_release")) or any(
        True for item in told for _ in find_all(item, _TEGRA_MODULE_OR_PACKAGE)
    )


# The module of an integrated GPU, and the package of Linux for Tegra that all others depend on.
_TEGRA_MODULE_OR_PACKAGE: Final = Pattern(r"(?m)^nvgpu\s+\d+\s|^ii\s+nvidia-l4t-core\s")


def has_external_driver(snapshot: Snapshot) -> bool:
    """Return whether another system provides the kernel driver: Windows for WSL2, the Jetson's image."""
    return is_wsl(snapshot) or is_jetson(snapshot)


# Traces that only a guest shows: the processor's flag, kernel messages, virtual devices, hypervisor settings.
_VIRTUAL_HARDWARE: Final = Pattern(
    r"\bHypervisor detected: |\bkvm-clock\b|\bpciPassthru\.|Red Hat, Inc\.? (?:Virtio|QEMU|QXL)|\bVirtio \d|"
    r"VMware (?:SVGA|Virtual)|"
    r"QEMU (?:Standard PC|Virtual)|Hyper-V virtual VGA|Amazon EC2|\bDMI: (?:QEMU|VMware|Xen|OpenStack|Google Compute)"
    # In a physical machine a card is behind a bridge.
    r"|^(?:0000:)?00:[0-9a-f]{2}\.0 (?:VGA|3D)[^\n]{0,40} NVIDIA(?![^\n]*\b(?:C[56]\d\w*|MCP\w+|nForce|ION)\b)",
    re.MULTILINE,
)
_HYPERVISOR_FLAG: Final = Pattern(r"(?m)^flags\s*:.*\bhypervisor\b")
_HYPERVISOR_SOURCE_KINDS: Final[tuple[SourceKind, ...]] = (
    *("lspci", "kernel-log", "journal", "file", "text", "virtualization"),
)
# Remarks by people on where a command ran: "dmesg (guest)", "lspci in the VM".
_RUN_IN_GUEST_REMARK: Final = Pattern(
    r"(?i)\bguest\b|\b(?:in|inside|from|of) (?:the |a )?(?:VM|virtual machine)\b|\(VM\)"
)
_HYPERVISOR_NAMES: Final = frozenset(
    {"kvm", "qemu", "vmware", "microsoft", "xen", "oracle", "amazon", "google", "bochs", "parallels", "bhyve", "acrn"}
)


def is_guest(snapshot: Snapshot) -> bool | None:
    """Return whether this is a virtual machine; None if unknown."""
    platform = snapshot.facts.platform
    if isinstance(platform, Known) and platform.value.kind in {"vm", "bare-metal"}:
        return platform.value.kind == "vm"
    if _RUN_IN_GUEST_REMARK.search("\n".join(item.written for item in snapshot.items)):
        return True
    for item in snapshot.items_of("virtualization"):
        if item.text.strip() in _HYPERVISOR_NAMES:
            return True
        if item.text.strip() == "none":
            return False
        # In mixed output its answer is a line with a single word.
        if any(line.strip() in _HYPERVISOR_NAMES for line in item.lines):
            return True
    return (
        any(snapshot.contains(one, *_HYPERVISOR_SOURCE_KINDS) for one in (_VIRTUAL_HARDWARE, _HYPERVISOR_FLAG)) or None
    )
