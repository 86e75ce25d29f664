"""The machine: its distribution, PCI devices, platform, Kubernetes provider, and whether it checks signatures at boot.

os-release is parsed by os-release(5), PCI devices from ``lspci -Dvmmnnk`` (lspci(8), "Verbose format"), or from sysfs
on nodes without lspci.

A provider is identified by a file that only its product creates. The cloud is no evidence: people run kubeadm and k3s
there, too, with the same DMI vendor, the same provider ids and, on Azure, the same azure.json.

Sources: kind images/base/files/usr/local/bin/entrypoint; awslabs/amazon-eks-ami templates and nodeadm; Azure/AgentBaker
parts/linux/cloud-init/artifacts; kubernetes/kubernetes cluster/gce/gci/configure-helper.sh; Bottlerocket os-release;
openshift/machine-config-operator pkg/daemon/constants. For Secure Boot: UEFI specification 2.10, 3.3; shim's README.tpm
and mok.c (MokSBStateRT: shim's own validation is off); Documentation/filesystems/efivarfs.rst in the kernel's source: a
variable's file begins with four bytes of attributes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from gpunode.facts.evidence import Evidence, GlobMatch
from gpunode.facts.model import Distro, Fact, Known, KubernetesProvider, PciDevice, Platform, Unknown
from gpunode.facts.patterns import Pattern
from gpunode.facts.reader import explain_missing

MELLANOX_VENDOR_ID = "15b3"
_PCI_ADDRESS = Pattern(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_BRACKETED_PCI_ID_AT_END = Pattern(r"\[([0-9a-f]{4})\]\Z")


def parse_lspci(text: str) -> tuple[PciDevice, ...]:
    """Return the devices, in the order of ``text``.

    Raises:
        ValueError: if a record lacks its address, class, vendor or device.
    """
    return tuple(_parse_device(record) for record in re.split(r"\n{2,}", text.strip("\n")) if record)


def _parse_device(record: str) -> PciDevice:
    # Module is the only tag that may repeat, and it is not used.
    fields = {tag: value.strip() for tag, _, value in (line.partition(":") for line in record.split("\n"))}
    address = fields.get("Slot", "")
    if not _PCI_ADDRESS.fullmatch(address):
        raise ValueError(f"not a PCI address: {address[:40]!r}")
    board = tuple(_extract_id(fields[tag]) for tag in ("SVendor", "SDevice") if tag in fields)
    name = fields.get("Device", "").rpartition("[")[0].strip()
    return PciDevice(
        address=address,
        vendor=_extract_id(fields.get("Vendor", "")),
        device=_extract_id(fields.get("Device", "")),
        class_code=_extract_id(fields.get("Class", "")),
        subsystem=(board[0], board[1]) if len(board) == 2 else None,
        driver=fields.get("Driver") or None,
        name="" if name == "Device" else name,
    )


def _extract_id(value: str) -> str:
    match = _BRACKETED_PCI_ID_AT_END.search(value[-6:])
    if match is None:
        raise ValueError(f"no number in brackets at the end of {value[:80]!r}")
    return match[1]


# Documentation/ABI/testing/sysfs-bus-pci and scripts/mod/file2alias.c, do_pci_entry, in the kernel's source.
_PCI_MODALIAS = Pattern(
    r"pci:v0000([0-9A-F]{4})d0000([0-9A-F]{4})sv0000([0-9A-F]{4})sd0000([0-9A-F]{4})"
    r"bc([0-9A-F]{2})sc([0-9A-F]{2})i[0-9A-F]{2}\s*"
)


def read_sysfs_devices(modaliases: Iterable[GlobMatch], drivers: Iterable[GlobMatch]) -> tuple[PciDevice, ...]:
    """Return the devices by address; names are not in sysfs.

    Raises:
        ValueError: if a modalias was not read, or is not of a PCI device.
    """
    bound = {_address_of(match.path): match.link.rpartition("/")[2] for match in drivers if match.link}
    return tuple(_make_sysfs_device(match, bound.get(_address_of(match.path))) for match in modaliases)


def _address_of(path: str) -> str:
    return path.rpartition("/")[0].rpartition("/")[2]


def _make_sysfs_device(modalias: GlobMatch, driver: str | None) -> PciDevice:
    address, alias = _address_of(modalias.path), (modalias.data or b"").decode("ascii", "replace")
    match = _PCI_MODALIAS.fullmatch(alias)
    if match is None or not _PCI_ADDRESS.fullmatch(address):
        raise ValueError(f"{modalias.path}: not the modalias of a PCI device: {alias[:80]!r}")
    vendor, device, board_vendor, board, base, sub = (number.lower() for number in match.groups())
    subsystem = None if board_vendor == "0000" else (board_vendor, board)
    return PciDevice(address, vendor, device, base + sub, subsystem, driver)


# The first that exists is used.
OS_RELEASE_FILES = ("/etc/os-release", "/usr/lib/os-release")
_VARIABLE_ASSIGNMENT = Pattern(r"^\s*([A-Za-z_][A-Za-z0-9_]*)=(.*)$")
_SHELL_WORD_PART = Pattern(r"\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|([^\s\"'\\]+)|\\(.)")
_DOUBLE_QUOTE_ESCAPE = Pattern(r"\\([\"$`\\])")


def parse_variables(text: str) -> Mapping[str, str]:
    """Parse the variables, unquoted as by a shell; other lines are skipped."""
    pairs = (match.groups() for line in text.split("\n") if (match := _VARIABLE_ASSIGNMENT.match(line)))
    return {key: _unquote(value.strip()) for key, value in pairs}


def _unquote(value: str) -> str:
    out: list[str] = []
    at = 0
    while match := _SHELL_WORD_PART.match(value, at):
        double, single, bare, escaped = match.groups()
        out.append(_DOUBLE_QUOTE_ESCAPE.sub(r"\1", double) if double is not None else single or bare or escaped or "")
        at = match.end()
    return "".join(out)


def parse_distro(text: str) -> Distro:
    """Return the distribution that ``text`` names.

    Raises:
        ValueError: if it names none.
    """
    return make_distro(parse_variables(text))


def make_distro(values: Mapping[str, str]) -> Distro:
    """Return the distribution that the variables ``values`` name.

    Raises:
        ValueError: if they name none.
    """
    if not values.get("ID") and not values.get("NAME"):
        raise ValueError("neither ID nor NAME is set")
    return Distro(
        id=(values.get("ID") or "linux").lower(),
        version_id=values.get("VERSION_ID", ""),
        codename=values.get("VERSION_CODENAME", ""),
        name=values.get("PRETTY_NAME") or values.get("NAME") or "Linux",
        like=tuple(values.get("ID_LIKE", "").split()),
    )


# The containers that `systemd-detect-virt --list` (257) names; anything else that it prints is a virtual machine.
_CONTAINER_VIRTUALIZATIONS = frozenset(
    ("systemd-nspawn", "lxc", "lxc-libvirt", "docker", "podman", "rkt", "openvz", "proot", "pouch", "container-other")
)


def detect_platform(
    virt: str, *, kernel: str = "", dxg: bool = False, tegra: str = "", compatible: str = "", manager: str = ""
) -> Platform | None:
    """Return the platform, with those that exclude a driver checked first; None without any evidence.

    Args:
        virt: what systemd-detect-virt printed; empty if it is missing.
        kernel: the running kernel's release.
        dxg: whether /dev/dxg is there.
        tegra: /etc/nv_tegra_release.
        compatible: that of the device tree, strings terminated by NUL bytes.
        manager: the container's manager, found by its files, such as /run/systemd/container.
    """
    if virt == "wsl" or dxg or "microsoft" in kernel.lower():
        return Platform("wsl2", "/dev/dxg" if dxg else virt or kernel)
    if tegra:
        return Platform("jetson", "/etc/nv_tegra_release")
    if chip := next((word for word in compatible.split("\0") if word.startswith("nvidia,tegra")), ""):
        return Platform("jetson", chip)
    if not virt and manager:
        return Platform("container", manager)
    if not virt:
        return None
    if virt == "none":
        return Platform("bare-metal")
    return Platform("container" if virt in _CONTAINER_VIRTUALIZATIONS else "vm", virt)


# By probe key; only the existence of the files counts.
PROVIDER_MARK_PATHS: Final[Mapping[str, tuple[KubernetesProvider, str]]] = {
    "provider-kind": ("kind", "/kind/version"),
    "provider-eks": ("eks", "/etc/eks"),
    "provider-aks": ("aks", "/opt/azure/containers"),
    "provider-gke": ("gke", "/home/kubernetes/bin/kubelet"),
    "provider-openshift": ("openshift", "/etc/machine-config-daemon/currentconfig"),
}

# By the ID in os-release.
_PROVIDER_BY_DISTRO_ID: Final[Mapping[str, KubernetesProvider]] = {"bottlerocket": "bottlerocket", "rhcos": "openshift"}
PROVIDER_NAMES: Final[Mapping[KubernetesProvider, str]] = {
    "kind": "a kind node",
    "eks": "an EKS node",
    "bottlerocket": "a Bottlerocket node",
    "aks": "an AKS node",
    "gke": "a GKE node",
    "openshift": "an OpenShift node",
}


def find_provider(is_there: Callable[[str], Fact[bool]], distro: Fact[Distro]) -> Fact[KubernetesProvider | None]:
    """Return the provider that builds this node; None if its owner does.

    ``is_there`` tells whether a probe's mark exists; Bottlerocket and RHCOS identify themselves in os-release.
    """
    if isinstance(distro, Known) and distro.value.id in _PROVIDER_BY_DISTRO_ID:
        return Known(_PROVIDER_BY_DISTRO_ID[distro.value.id], distro.probe)
    looks = {key: is_there(key) for key in PROVIDER_MARK_PATHS}
    for key, look in looks.items():
        if isinstance(look, Known) and look.value:
            return Known(PROVIDER_MARK_PATHS[key][0], key)
    unknown = next((look for look in looks.values() if isinstance(look, Unknown)), None)
    return unknown or Known(None, next(iter(PROVIDER_MARK_PATHS)))


SECURE_BOOT_VARIABLE: Final = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
SHIM_VALIDATION_VARIABLE: Final = "/sys/firmware/efi/efivars/MokSBStateRT-605dab50-e046-4300-abb6-3dd810dd8b23"
SECURE_BOOT_PROBE_KEY: Final = "secure-boot-variable"
SHIM_VALIDATION_PROBE_KEY: Final = "shim-validation-variable"
# The key of doctor's probe: `mokutil --sb-state`.
_MOKUTIL_PROBE_KEY: Final = "secure-boot"
_MOKUTIL_SECURE_BOOT_STATE: Final = Pattern(r"SecureBoot (enabled|disabled)")


def read_secure_boot(evidence: Evidence) -> Fact[bool]:
    """Return whether Secure Boot is on; a machine without the firmware's variable was started without it."""
    mokutil = evidence.get(_MOKUTIL_PROBE_KEY)
    if mokutil is not None and (match := _MOKUTIL_SECURE_BOOT_STATE.search(mokutil.text)):
        is_validated = "validation is disabled in shim" not in mokutil.text
        return Known(match[1] == "enabled" and is_validated, _MOKUTIL_PROBE_KEY)
    capture = evidence.get(SECURE_BOOT_PROBE_KEY)
    if capture is None:
        return Unknown("not captured", SECURE_BOOT_PROBE_KEY)
    if capture.outcome == "absent":
        return Known(False, SECURE_BOOT_PROBE_KEY)
    if capture.outcome != "ok" or not capture.data:
        return Unknown(explain_missing(capture), SECURE_BOOT_PROBE_KEY)
    shim = evidence.get(SHIM_VALIDATION_PROBE_KEY)
    shim_is_off = shim is not None and shim.outcome == "ok" and shim.data[-1:] == b"\x01"
    return Known(capture.data[-1:] == b"\x01" and not shim_is_off, SECURE_BOOT_PROBE_KEY)
