"""Probes of doctor beyond those of setup: logs, tools and tables. None changes the node.

Every command only reads; each has its own timeout, since a stuck driver can keep nvidia-smi for 45 s a call
(open-gpu-kernel-modules, kernel_gsp.c: the wait for an answer of the GSP).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from gpunode.facts.evidence import ContentKind, Probe

_MIB: Final = 1 << 20
_QUICK_S: Final = 5.0
# The newest lines of each unit: a crash loop shows in a few.
_UNIT_LOGS: Final = {
    "docker": 300,
    "containerd": 300,
    "crio": 200,
    "kubelet": 400,
    "k3s": 300,
    "k3s-agent": 300,
    "rke2-server": 300,
    "rke2-agent": 300,
    "nvidia-persistenced": 100,
    "nvidia-fabricmanager": 200,
    "nvidia-imex": 100,
    "nvidia-gridd": 100,
    "nvidia-cdi-refresh": 50,
}
UNITS: Final = (
    *("nvidia-gridd.service", "nvidia-imex.service", "nvidia-dcgm.service", "nvidia-mps.service"),
    *("nvidia-suspend.service", "nvidia-resume.service", "unattended-upgrades.service", "apt-daily-upgrade.service"),
    *("snap.docker.dockerd.service", "bumblebeed.service", "vgpud.service"),
)
_JOURNAL: Final = ("journalctl", "-b", "-q", "--no-pager", "-o", "short-iso-precise")
_FILES: Final[Mapping[ContentKind, tuple[str, ...]]] = {
    "config": (
        "/etc/containers/containers.conf",
        "/etc/cufile.json",
        "/etc/bash.bashrc",
        "/etc/bashrc",
        "/etc/environment",
        "/etc/nvidia/gridd.conf",
        "/etc/profile",
        "/var/lib/kubelet/config.yaml",
        "/root/.docker/config.json",
        "/etc/systemd/system/nvidia-persistenced.service",
        "/var/snap/docker/current/config/daemon.json",
    ),
    # Written line by line, in grammars that have no place for a secret but an address.
    "log": (
        "/etc/apt/apt.conf.d/20auto-upgrades",
        "/etc/apt/apt.conf.d/50unattended-upgrades",
        "/etc/dkms/framework.conf",
        "/etc/dnf/plugins/versionlock.list",
        "/etc/dnf/versionlock.toml",
        "/etc/ld.so.preload",
        "/etc/modules",
        "/etc/pacman.conf",
        "/etc/selinux/config",
        "/etc/yum/pluginconf.d/versionlock.list",
        "/etc/zypp/locks",
    ),
    "table": (
        "/proc/devices",
        "/proc/version",
        "/sys/kernel/mm/memory_peers/nv_mem/version",
        "/sys/kernel/security/lockdown",
        "/sys/module/module/parameters/sig_enforce",
        "/sys/module/nvidia/version",
        "/sys/class/dmi/id/bios_version",
        "/sys/class/dmi/id/product_name",
        "/sys/class/dmi/id/sys_vendor",
        "/var/lib/kubelet/cpu_manager_state",
        "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint",
        "/var/run/reboot-required.pkgs",
    ),
}
_READ_GLOBS: Final[Mapping[ContentKind, Mapping[str, str]]] = {
    "config": {
        "profile-d": "/etc/profile.d/*.sh",
        "docker-user": "/home/*/.config/docker/daemon.json",
        "containerd-drop-ins": "/etc/containerd/conf.d/*.toml",
        "rancher-containerd": "/var/lib/rancher/*/agent/etc/containerd/*.toml",
        "crio-conf-d": "/etc/crio/crio.conf.d/*",
        "crio-dead-d": "/etc/crio/conf.d/*",
        "containers-conf-d": "/etc/containers/containers.conf.d/*.conf",
    },
    "log": {
        # What a package says of modules stands below /usr; what a person says of them, in /etc.
        "modprobe-d-lib": "/lib/modprobe.d/*.conf",
        "modprobe-d-run": "/run/modprobe.d/*.conf",
        "driverctl": "/etc/driverctl.d/*",
        "grub-d": "/etc/default/grub.d/*.cfg",
        "modules-load-d": "/etc/modules-load.d/*.conf",
        "pod-logs": "/var/log/pods/*nvidia*/*/*.log",
    },
    "table": {
        "nvidia-fs": "/proc/driver/nvidia-fs/*",
        "nvswitches": "/proc/driver/nvidia-nvswitch/devices/*",
        "nvidia-parameters": "/sys/module/nvidia*/parameters/*",
        "aer-counters": "/sys/bus/pci/devices/*/aer_dev_*",
        "power-states": "/sys/bus/pci/devices/*/power_state",
        "driver-overrides": "/sys/bus/pci/devices/*/driver_override",
        "numa-nodes": "/sys/bus/pci/devices/*/numa_node",
        "link-speeds": "/sys/bus/pci/devices/*/current_link_speed",
        "link-widths": "/sys/bus/pci/devices/*/current_link_width",
        "link-speeds-max": "/sys/bus/pci/devices/*/max_link_speed",
        "link-widths-max": "/sys/bus/pci/devices/*/max_link_width",
    },
}
_LISTED_GLOBS: Final = {
    "driver-libraries": "/usr/lib/*-linux-gnu/lib[ncE]*nvidia*.so.*",
    "driver-libraries-64": "/usr/lib64/libnvidia-*.so.*",
    "cuda-compat": "/usr/local/cuda*/compat/libcuda*",
    "firmware": "/lib/firmware/nvidia/*/*",
    "module-trees": "/lib/modules/*",
    "module-indexes": "/lib/modules/*/modules.*",
    "dkms-sources": "/var/lib/dkms/*/*/source",
    "snap-docker": "/snap/bin/docker",
    "docker-binaries": "/usr/*bin/dockerd",
    "toolkit-binaries": "/usr/*bin/nvidia-c*",
    "docker-socket": "/run/docker.sock",
    "cri-sockets": "/run/c*/c*.sock",
    "cri-sockets-rancher": "/run/k3s/containerd/containerd.sock",
    "smi-binary": "/usr/bin/nvidia-smi",
    "rpm-database": "/var/lib/rpm/*",
    "driver-containers": "/run/nvidia/*",
    "device-plugin-sockets": "/var/lib/kubelet/device-plugins/*",
    "kubelet-pods": "/var/lib/kubelet/pods/*",
    "apt-keyrings": "/usr/share/keyrings/*",
    "apt-trusted": "/etc/apt/trusted.gpg*",
    "apt-trusted-d": "/etc/apt/trusted.gpg.d/*",
    "ldconfigs": "/sbin/ldconfig*",
    "wsl-libraries": "/usr/lib/wsl/lib/*",
    "iommu": "/sys/class/iommu/*",
    "initramfs-tools": "/usr/bin/lsinit*",
    "apt-logs": "/var/log/apt/history.log.*",
    "dpkg-logs": "/var/log/dpkg.log.*",
    "rpm-logs": "/var/log/dnf.rpm.log*",
    "zypper-log": "/var/log/zypp/history",
    "pacman-log": "/var/log/pacman.log",
    "fabric-logs": "/var/log/fabricmanager.log",
    "imex-logs": "/var/log/nvidia-imex.log",
    "fabric-binary": "/usr/bin/nv-fabricmanager",
    "imex-binary": "/usr/bin/nvidia-imex",
}


def command_probe(
    key: str, *argv: str, timeout_s: float = _QUICK_S, limit_bytes: int = 4 * _MIB, content_kind: ContentKind = "log"
) -> Probe:
    """Return a probe that runs a command."""
    return Probe(key, argv=argv, timeout_s=timeout_s, limit_bytes=limit_bytes, content_kind=content_kind)


def _all_probes() -> Iterator[Probe]:
    for content_kind, paths in _FILES.items():
        yield from (Probe(f"file:{path}", path=path, content_kind=content_kind) for path in paths)
    for content_kind, patterns in _READ_GLOBS.items():
        yield from (
            Probe(key, glob=one, limit_bytes=2 * _MIB, content_kind=content_kind) for key, one in patterns.items()
        )
    for key, pattern in _LISTED_GLOBS.items():
        yield Probe(key, glob=pattern, contents=False, content_kind="table")
    yield from _system_probes()
    yield from _driver_probes()
    yield from _container_probes()


def _system_probes() -> Iterator[Probe]:
    yield command_probe("kernel-journal", *_JOURNAL, "-k", "-n", "20000", timeout_s=10.0)
    yield command_probe("dmesg", "dmesg", timeout_s=_QUICK_S)
    # Without -q it says which messages it hides from us.
    yield command_probe("journal", "journalctl", "-n", "0", "--no-pager")
    yield command_probe("reloads", *_JOURNAL, "-n", "4000", "_PID=1")
    for unit, lines in _UNIT_LOGS.items():
        yield command_probe(f"log:{unit}", *_JOURNAL, "-n", str(lines), "-u", unit, limit_bytes=_MIB)
    yield command_probe("lspci-verbose", "lspci", "-nnDvvv", content_kind="table")
    yield command_probe("secure-boot", "mokutil", "--sb-state")
    yield command_probe("enrolled-keys", "mokutil", "--list-enrolled")
    yield command_probe("dkms-status", "dkms", "status")
    yield command_probe("libraries", "ldconfig", "-p", content_kind="table")
    # Only these lines: the rest of a unit's environment may hold secrets.
    variables = ("grep", "-r", "LD_[LP][A-Z_]*=")
    yield command_probe("unit-environments", *variables, "/etc/systemd", limit_bytes=_MIB)
    yield command_probe("service-environments", *variables, "/etc/default", limit_bytes=_MIB)
    yield command_probe("devices", "ls", "-l", "/dev", content_kind="table")
    yield command_probe("device-capabilities", "ls", "-l", "/dev/nvidia-caps", content_kind="table")
    yield command_probe("character-devices", "ls", "-l", "/dev/char", content_kind="table")
    yield command_probe("cgroup-version", "stat", "-fc", "%T", "/sys/fs/cgroup")
    yield Probe(
        "file:/var/log/apt/history.log", path="/var/log/apt/history.log", limit_bytes=4 * _MIB, content_kind="log"
    )
    yield Probe("file:/var/log/dpkg.log", path="/var/log/dpkg.log", limit_bytes=8 * _MIB, content_kind="table")
    # Without caches apt writes nothing; without locking it does not wait.
    cacheless = ("-o", "Debug::NoLocking=1", "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=")
    yield command_probe("apt-check", "apt-get", *cacheless, "check", timeout_s=15.0)
    yield command_probe("locks", "lslocks", "-u", "-n", "-o", "COMMAND,PID,PATH")
    yield command_probe("selinux-denials", "ausearch", "-m", "avc", "-ts", "today")
    yield command_probe("infiniband", "ibstat", content_kind="table")
    yield command_probe("ofed", "ofed_info", "-s")


def _driver_probes() -> Iterator[Probe]:
    for name in ("nvidia", "nvidia_uvm", "nvidia_peermem", "nvidia_fs", "ib_core"):
        yield command_probe(f"modinfo:{name}", "modinfo", name, content_kind="table")


_KUBELET_CONF: Final = "/etc/kubernetes/kubelet.conf"
_PRINT_PLUGIN_KEYS: Final = r"""s/^(.*[^A-Za-z_-])?(exec|auth-provider)["']?[[:space:]]*:.*/\2/p"""


def _container_probes() -> Iterator[Probe]:
    yield command_probe("docker-client", "docker", "--version")
    yield command_probe("docker-contexts", "docker", "context", "ls")
    yield command_probe("docker-unit", "systemctl", "cat", "docker", content_kind="config")
    yield command_probe("containerd-dump", "containerd", "config", "dump", content_kind="config")
    yield command_probe("toolkit-version", "nvidia-container-cli", "-V")
    yield command_probe("cdi-list", "nvidia-ctk", "cdi", "list")
    yield command_probe("podman-version", "podman", "--version")
    yield Probe("kubelet-conf", glob=_KUBELET_CONF, contents=False, content_kind="table")
    # Of the file, which holds keys, no more than the names of what would have kubectl start a program.
    yield command_probe("kubelet-conf-programs", "sed", "-nE", _PRINT_PLUGIN_KEYS, _KUBELET_CONF)
    yield Probe("node-name", path="/proc/sys/kernel/hostname", content_kind="table")


DOCTOR_PROBES: Final = tuple(_all_probes())
