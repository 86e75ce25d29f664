"""Probes that doctor adds to those of setup (logs, tools, tables), and their size limits. None changes the node.

Every command only reads; each has its own timeout, since a stuck driver can block nvidia-smi for 45 s per call
(open-gpu-kernel-modules, kernel_gsp.c: the wait for an answer of the GSP).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final

from gpunode.facts.evidence import ContentKind, Evidence, Probe

_MIB: Final = 1 << 20
_QUICK_TIMEOUT_S: Final = 5.0
# The newest lines of each unit: a crash loop shows in a few.
_JOURNAL_LINES_BY_UNIT: Final = {
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
_JOURNALCTL_COMMAND: Final = ("journalctl", "-b", "-q", "--no-pager", "-o", "short-iso-precise")
_FILES_BY_CONTENT_KIND: Final[Mapping[ContentKind, tuple[str, ...]]] = {
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
    # Line-based formats that can hold a secret only in a URL.
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
_READ_GLOBS_BY_CONTENT_KIND: Final[Mapping[ContentKind, Mapping[str, str]]] = {
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
        "driverctl": "/etc/driverctl.d/*",
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
    key: str,
    *argv: str,
    timeout_s: float = _QUICK_TIMEOUT_S,
    limit_bytes: int = 4 * _MIB,
    content_kind: ContentKind = "log",
) -> Probe:
    """Return a probe that runs a command."""
    return Probe(key, argv=argv, timeout_s=timeout_s, limit_bytes=limit_bytes, content_kind=content_kind)


def _all_probes() -> Iterator[Probe]:
    for content_kind, paths in _FILES_BY_CONTENT_KIND.items():
        yield from (Probe(f"file:{path}", path=path, content_kind=content_kind) for path in paths)
    for content_kind, patterns in _READ_GLOBS_BY_CONTENT_KIND.items():
        yield from (
            Probe(key, glob=one, limit_bytes=2 * _MIB, content_kind=content_kind) for key, one in patterns.items()
        )
    for key, pattern in _LISTED_GLOBS.items():
        yield Probe(key, glob=pattern, contents=False, content_kind="table")
    yield from _system_probes()
    for name in ("nvidia", "nvidia_uvm", "nvidia_peermem", "nvidia_fs", "ib_core"):
        yield command_probe(f"modinfo:{name}", "modinfo", name, content_kind="table")
    yield from _container_probes()


def _system_probes() -> Iterator[Probe]:
    yield command_probe("kernel-journal", *_JOURNALCTL_COMMAND, "-k", "-n", "20000", timeout_s=10.0)
    yield command_probe("dmesg", "dmesg", timeout_s=_QUICK_TIMEOUT_S)
    # Without -q, journalctl reports which messages it hides from us.
    yield command_probe("journal", "journalctl", "-n", "0", "--no-pager")
    yield command_probe("reloads", *_JOURNALCTL_COMMAND, "-n", "4000", "_PID=1")
    for unit, lines in _JOURNAL_LINES_BY_UNIT.items():
        yield command_probe(f"log:{unit}", *_JOURNALCTL_COMMAND, "-n", str(lines), "-u", unit, limit_bytes=_MIB)
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


_KUBELET_KUBECONFIG_FILE: Final = "/etc/kubernetes/kubelet.conf"
_PRINT_PLUGIN_KEYS_SED_SCRIPT: Final = r"""s/^(.*[^A-Za-z_-])?(exec|auth-provider)["']?[[:space:]]*:.*/\2/p"""


def _container_probes() -> Iterator[Probe]:
    yield command_probe("docker-client", "docker", "--version")
    yield command_probe("docker-contexts", "docker", "context", "ls")
    yield command_probe("docker-unit", "systemctl", "cat", "docker", content_kind="config")
    yield command_probe("containerd-dump", "containerd", "config", "dump", content_kind="config")
    yield command_probe("toolkit-version", "nvidia-container-cli", "-V")
    yield command_probe("cdi-list", "nvidia-ctk", "cdi", "list")
    yield command_probe("podman-version", "podman", "--version")
    yield Probe("kubelet-conf", glob=_KUBELET_KUBECONFIG_FILE, contents=False, content_kind="table")
    # The file holds keys, so print only the names of settings that make kubectl start a program.
    yield command_probe("kubelet-conf-programs", "sed", "-nE", _PRINT_PLUGIN_KEYS_SED_SCRIPT, _KUBELET_KUBECONFIG_FILE)
    yield Probe("node-name", path="/proc/sys/kernel/hostname", content_kind="table")


DOCTOR_PROBES: Final = tuple(_all_probes())

# gpunode's own captures stay far below: 20 000 lines of the kernel's log, a few MiB in all.
MAX_EVIDENCE_BYTES: Final = 32 << 20
MAX_EVIDENCE_LINES: Final = 200_000
MAX_LINES_PER_SOURCE: Final = 50_000
# The first messages of a fault may be long before the newest lines.
_MAX_EARLIEST_LINES: Final = 2000
_RELEVANT_LOG_WORD: Final = rb"NVRM|Xid|nvidia|pcieport|dockerd|containerd"
# A missing row of these tables would read as "package not installed".
_NEVER_TRIMMED_PROBE_KEYS: Final = frozenset({"dpkg-status", "apt-extended-states"})


def trim_evidence(evidence: Evidence) -> tuple[Evidence, tuple[str, ...]]:
    """Cut the evidence down to the limits, and return it with a note for the user on each cut source.

    The newest lines of each source stay, and before them the first that mention the driver or a runtime.
    """
    sizes = {key: len(capture.data) for key, capture in evidence.items()}
    if sum(sizes.values()) < MAX_LINES_PER_SOURCE:
        return evidence, ()
    lines = {
        key: capture.data.count(b"\n") for key, capture in evidence.items() if key not in _NEVER_TRIMMED_PROBE_KEYS
    }
    most_bytes, most_lines = (
        fair_share(sizes.values(), MAX_EVIDENCE_BYTES),
        min(MAX_LINES_PER_SOURCE, fair_share(lines.values(), MAX_EVIDENCE_LINES)),
    )
    found, left_out = dict(evidence), []
    for key, capture in evidence.items():
        if sizes[key] > most_bytes or lines.get(key, 0) > most_lines:
            found[key] = replace(
                capture,
                data=keep_relevant_and_newest(capture.data, most_lines if key in lines else sizes[key], most_bytes),
            )
            most = f"{most_lines} lines, {most_bytes >> 10} KiB"
            left_out.append(f"of {capture.source} only the newest part was read (at most {most})")
    return found, tuple(left_out)


def fair_share(sizes: Iterable[int], total: int) -> int:
    """Return the limit for each so that the sum is at most ``total``; small ones leave their share to the others."""
    rest, left = total, sorted(sizes)
    for number, size in enumerate(left):
        if size * (len(left) - number) > rest:
            return rest // (len(left) - number)
        rest -= size
    return total


def keep_relevant_and_newest(data: bytes, lines: int, size: int) -> bytes:
    """Return the last ``lines`` of ``data``, at most ``size`` bytes, after the earliest relevant ones."""
    kept = size - min(size // 4, _MAX_EARLIEST_LINES * 200)
    start = 0 if len(data) <= size else len(data) - kept
    at = len(data) - 1
    for _ in range(lines):
        at = data.rfind(b"\n", start, at)
        if at < 0:
            break
    if at >= 0:
        start = at + 1
    elif start:
        start = data.find(b"\n", start) + 1 or start
    early = b"".join(islice(_relevant_lines(data[:start]), min(_MAX_EARLIEST_LINES, lines)))[: size - kept]
    return early + data[start:]


def _relevant_lines(data: bytes) -> Iterable[bytes]:
    """Yield the complete lines that mention the driver or a runtime."""
    end = 0
    for match in re.finditer(_RELEVANT_LOG_WORD, data):
        if match.start() < end:
            continue
        begin, end = data.rfind(b"\n", 0, match.start()) + 1, data.find(b"\n", match.end()) + 1
        if not end:
            return
        yield data[begin:end]
