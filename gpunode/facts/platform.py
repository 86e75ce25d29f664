"""The sort of machine, its Kubernetes provider if any, and whether it checks signatures at boot.

A provider is known by a file that only its product makes. The cloud that a machine runs in is no sign: people run
kubeadm and k3s there, too, with the same DMI vendor, the same provider ids and, on Azure, the same azure.json.

Sources: kind images/base/files/usr/local/bin/entrypoint; awslabs/amazon-eks-ami templates and nodeadm; Azure/AgentBaker
parts/linux/cloud-init/artifacts; kubernetes/kubernetes cluster/gce/gci/configure-helper.sh; Bottlerocket os-release;
openshift/machine-config-operator pkg/daemon/constants. Of Secure Boot: UEFI specification 2.10, 3.3; shim's README.tpm
and mok.c (MokSBStateRT: shim's own validation is off); Documentation/filesystems/efivarfs.rst in the kernel's source: a
variable's file begins with four bytes of attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gpunode.facts.evidence import Evidence
from gpunode.facts.model import Distro, Fact, Known, Platform, Provider, Unknown
from gpunode.facts.patterns import Pattern
from gpunode.facts.reader import explain_missing

# What `systemd-detect-virt --list` (257) names; whatever else it prints is a virtual machine.
_CONTAINERS = frozenset(
    ("systemd-nspawn", "lxc", "lxc-libvirt", "docker", "podman", "rkt", "openvz", "proot", "pouch", "container-other")
)


def detect_platform(
    virt: str, *, kernel: str = "", dxg: bool = False, tegra: str = "", compatible: str = "", manager: str = ""
) -> Platform | None:
    """Return the platform, what excludes a driver first; None without any evidence.

    Args:
        virt: what systemd-detect-virt printed; empty where it is missing.
        kernel: the running kernel's release.
        dxg: whether /dev/dxg is there.
        tegra: /etc/nv_tegra_release.
        compatible: the device tree's, its strings ended by NUL bytes.
        manager: the container's manager by its own files, such as /run/systemd/container.
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
    return Platform("container" if virt in _CONTAINERS else "vm", virt)


# By probe key; nobody reads what is in the files.
PROVIDER_MARKS: Final[Mapping[str, tuple[Provider, str]]] = {
    "provider-kind": ("kind", "/kind/version"),
    "provider-eks": ("eks", "/etc/eks"),
    "provider-aks": ("aks", "/opt/azure/containers"),
    "provider-gke": ("gke", "/home/kubernetes/bin/kubelet"),
    "provider-openshift": ("openshift", "/etc/machine-config-daemon/currentconfig"),
}

# By the ID in os-release.
_PROVIDER_SYSTEMS: Final[Mapping[str, Provider]] = {"bottlerocket": "bottlerocket", "rhcos": "openshift"}
PROVIDERS: Final[Mapping[Provider, str]] = {
    "kind": "a kind node",
    "eks": "an EKS node",
    "bottlerocket": "a Bottlerocket node",
    "aks": "an AKS node",
    "gke": "a GKE node",
    "openshift": "an OpenShift node",
}


def find_provider(is_there: Callable[[str], Fact[bool]], distro: Fact[Distro]) -> Fact[Provider | None]:
    """Return the provider that builds this node; None if its owner does.

    Args:
        is_there: whether the mark of a probe is there.
        distro: Bottlerocket and RHCOS say themselves what they are.
    """
    if isinstance(distro, Known) and distro.value.id in _PROVIDER_SYSTEMS:
        return Known(_PROVIDER_SYSTEMS[distro.value.id], distro.probe)
    looks = {key: is_there(key) for key in PROVIDER_MARKS}
    for key, look in looks.items():
        if isinstance(look, Known) and look.value:
            return Known(PROVIDER_MARKS[key][0], key)
    unknown = next((look for look in looks.values() if isinstance(look, Unknown)), None)
    return unknown or Known(None, next(iter(PROVIDER_MARKS)))


SECURE_BOOT_VARIABLE: Final = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
SHIM_VARIABLE: Final = "/sys/firmware/efi/efivars/MokSBStateRT-605dab50-e046-4300-abb6-3dd810dd8b23"
SECURE_BOOT_KEY: Final = "secure-boot-variable"
SHIM_KEY: Final = "shim-validation-variable"
# The key of doctor's look: `mokutil --sb-state`.
_MOKUTIL: Final = "secure-boot"
_STATE: Final = Pattern(r"SecureBoot (enabled|disabled)")


def read_secure_boot(evidence: Evidence) -> Fact[bool]:
    """Return whether Secure Boot is on; a machine without the firmware's variable was started without it."""
    asked = evidence.get(_MOKUTIL)
    if asked is not None and (match := _STATE.search(asked.text)):
        is_validated = "validation is disabled in shim" not in asked.text
        return Known(match[1] == "enabled" and is_validated, _MOKUTIL)
    capture = evidence.get(SECURE_BOOT_KEY)
    if capture is None:
        return Unknown("not captured", SECURE_BOOT_KEY)
    if capture.outcome == "absent":
        return Known(False, SECURE_BOOT_KEY)
    if capture.outcome != "ok" or not capture.data:
        return Unknown(explain_missing(capture), SECURE_BOOT_KEY)
    shim = evidence.get(SHIM_KEY)
    shim_is_off = shim is not None and shim.outcome == "ok" and shim.data[-1:] == b"\x01"
    return Known(capture.data[-1:] == b"\x01" and not shim_is_off, SECURE_BOOT_KEY)
