"""What sort of machine this is. The order is that of what excludes a driver most surely."""

from __future__ import annotations

from gpunode.facts.model import Platform

# What `systemd-detect-virt --list` (257) names; whatever else it prints is a virtual machine.
_CONTAINERS = frozenset(
    ("systemd-nspawn", "lxc", "lxc-libvirt", "docker", "podman", "rkt", "openvz", "proot", "pouch", "container-other")
)


def platform(
    virt: str, *, kernel: str = "", dxg: bool = False, tegra: str = "", compatible: str = "", manager: str = ""
) -> Platform | None:
    """The platform; None where nothing tells.

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
