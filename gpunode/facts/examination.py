"""What doctor looks at beyond the facts that setup needs: logs, tools and tables, none of which changes the node.

Every command only reads; each has its own limit of time, since a stuck driver can keep nvidia-smi for 45 s a call
(open-gpu-kernel-modules, kernel_gsp.c: the wait for an answer of the GSP).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gpunode.facts.evidence import Capture, Evidence, Probe

_MIB: Final = 1 << 20
_SMI_S: Final = 10.0
_QUICK_S: Final = 5.0
# Of each unit the newest lines that matter: a crash loop shows in a few.
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
_FILES: Final = (
    "/etc/apt/apt.conf.d/20auto-upgrades",
    "/etc/apt/apt.conf.d/50unattended-upgrades",
    "/etc/containers/containers.conf",
    "/etc/crio/crio.conf",
    "/etc/cufile.json",
    "/etc/default/grub",
    "/etc/dkms/framework.conf",
    "/etc/environment",
    "/etc/ld.so.preload",
    "/etc/modules",
    "/etc/nvidia/gridd.conf",
    "/etc/systemd/system/nvidia-persistenced.service",
    "/etc/selinux/config",
    "/proc/cmdline",
    "/proc/devices",
    "/proc/driver/nvidia/params",
    "/proc/version",
    "/sys/kernel/mm/memory_peers/nv_mem/version",
    "/sys/kernel/security/lockdown",
    "/sys/module/module/parameters/sig_enforce",
    "/sys/module/nvidia/version",
    "/sys/class/dmi/id/bios_version",
    "/sys/class/dmi/id/product_name",
    "/sys/class/dmi/id/sys_vendor",
    "/var/lib/kubelet/config.yaml",
    "/var/lib/kubelet/cpu_manager_state",
    "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint",
    "/root/.docker/config.json",
)
_READ: Final = {
    "ld-so-conf-d": "/etc/ld.so.conf.d/*.conf",
    "modules-load-d": "/etc/modules-load.d/*.conf",
    "pod-logs": "/var/log/pods/*nvidia*/*/*.log",
    "nvidia-fs": "/proc/driver/nvidia-fs/*",
    "docker-user": "/home/*/.config/docker/daemon.json",
    "containerd-drop-ins": "/etc/containerd/conf.d/*.toml",
    "rancher-containerd": "/var/lib/rancher/*/agent/etc/containerd/*.toml",
    "crio-conf-d": "/etc/crio/crio.conf.d/*",
    "crio-dead-d": "/etc/crio/conf.d/*",
    "containers-conf-d": "/etc/containers/containers.conf.d/*.conf",
    "nvidia-parameters": "/sys/module/nvidia*/parameters/*",
    "aer-counters": "/sys/bus/pci/devices/*/aer_dev_*",
    "power-states": "/sys/bus/pci/devices/*/power_state",
    "driver-overrides": "/sys/bus/pci/devices/*/driver_override",
    "numa-nodes": "/sys/bus/pci/devices/*/numa_node",
    "link-speeds": "/sys/bus/pci/devices/*/current_link_speed",
    "link-widths": "/sys/bus/pci/devices/*/current_link_width",
    "link-speeds-max": "/sys/bus/pci/devices/*/max_link_speed",
    "link-widths-max": "/sys/bus/pci/devices/*/max_link_width",
}
_LISTED: Final = {
    "driver-libraries": "/usr/lib/*-linux-gnu/lib[ncE]*nvidia*.so.*",
    "driver-libraries-64": "/usr/lib64/libnvidia-*.so.*",
    "cuda-libraries": "/usr/lib/*-linux-gnu/libcuda*.so*",
    "cuda-compat": "/usr/local/cuda*/compat/libcuda*",
    "firmware": "/lib/firmware/nvidia/*/*",
    "module-trees": "/lib/modules/*",
    "module-indexes": "/lib/modules/*/modules.*",
    "dkms-tree": "/var/lib/dkms/*/*",
    "dkms-sources": "/var/lib/dkms/*/*/source",
    "snap-docker": "/snap/bin/docker",
    "docker-binaries": "/usr/*bin/dockerd",
    "toolkit-binaries": "/usr/*bin/nvidia-c*",
    "docker-socket": "/run/docker.sock",
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
}


def _command(key: str, *argv: str, timeout_s: float = _QUICK_S, limit_bytes: int = 4 * _MIB) -> Probe:
    return Probe(key, argv=argv, timeout_s=timeout_s, limit_bytes=limit_bytes)


def _every() -> Iterator[Probe]:
    for path in _FILES:
        yield Probe(f"file:{path}", path=path)
    for key, pattern in _READ.items():
        yield Probe(key, glob=pattern, limit_bytes=2 * _MIB)
    for key, pattern in _LISTED.items():
        yield Probe(key, glob=pattern, contents=False)
    yield from _system()
    yield from _driver()
    yield from _containers()


def _system() -> Iterator[Probe]:
    yield _command("kernel-journal", *_JOURNAL, "-k", "-n", "20000", timeout_s=10.0)
    yield _command("dmesg", "dmesg", timeout_s=_QUICK_S)
    yield _command("reloads", *_JOURNAL, "-n", "4000", "_PID=1")
    for unit, lines in _UNIT_LOGS.items():
        yield _command(f"log:{unit}", *_JOURNAL, "-n", str(lines), "-u", unit)
    yield _command("lspci-verbose", "lspci", "-nnDvvv")
    yield _command("secure-boot", "mokutil", "--sb-state")
    yield _command("enrolled-keys", "mokutil", "--list-enrolled")
    yield _command("dkms-status", "dkms", "status")
    yield _command("libraries", "ldconfig", "-p")
    yield _command("devices", "ls", "-l", "/dev")
    yield _command("device-capabilities", "ls", "-l", "/dev/nvidia-caps")
    yield _command("character-devices", "ls", "-l", "/dev/char")
    yield _command("cgroup-version", "stat", "-fc", "%T", "/sys/fs/cgroup")
    yield Probe("file:/var/log/apt/history.log", path="/var/log/apt/history.log", limit_bytes=4 * _MIB)
    yield Probe("file:/var/log/dpkg.log", path="/var/log/dpkg.log", limit_bytes=8 * _MIB)
    # Without its caches apt reads all lists and writes nothing; without locks it waits for nobody.
    cacheless = ("-o", "Debug::NoLocking=1", "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=")
    yield _command("apt-check", "apt-get", *cacheless, "check", timeout_s=15.0)
    yield _command("locks", "lslocks", "-u", "-n", "-o", "COMMAND,PID,PATH")
    yield _command("selinux-denials", "ausearch", "-m", "avc", "-ts", "today")
    yield _command("infiniband", "ibstat")
    yield _command("ofed", "ofed_info", "-s")


def _driver() -> Iterator[Probe]:
    for name in ("nvidia", "nvidia_uvm", "nvidia_peermem", "nvidia_fs"):
        yield _command(f"modinfo:{name}", "modinfo", name)


def _of_loaded_driver() -> Iterator[Probe]:
    yield _command("smi", "nvidia-smi", timeout_s=_SMI_S)
    yield _command("smi-query", "nvidia-smi", "-q", timeout_s=_SMI_S)
    yield _command("smi-nvlink", "nvidia-smi", "nvlink", "-s", timeout_s=_SMI_S)
    yield _command("smi-topology", "nvidia-smi", "topo", "-m", timeout_s=_SMI_S)
    yield _command("smi-mig", "nvidia-smi", "mig", "-lgi", timeout_s=_SMI_S)
    yield _command("toolkit-list", "nvidia-container-cli", "list")


def _of_running_docker() -> Iterator[Probe]:
    yield _command("docker-info", "docker", "info")
    yield _command("docker-version", "docker", "version")
    yield _command("docker-containers", "docker", "ps", "-a", "--format", "{{.Image}} {{.Status}}")


_KUBELET_CONF: Final = "/etc/kubernetes/kubelet.conf"
_STARTS_PROGRAM: Final = r"""s/^(.*[^A-Za-z_-])?(exec|auth-provider)["']?[[:space:]]*:.*/\2/p"""


def _containers() -> Iterator[Probe]:
    yield _command("docker-client", "docker", "--version")
    yield _command("docker-contexts", "docker", "context", "ls")
    yield _command("docker-unit", "systemctl", "cat", "docker")
    yield _command("containerd-dump", "containerd", "config", "dump")
    yield _command("toolkit-version", "nvidia-container-cli", "-V")
    yield _command("cdi-list", "nvidia-ctk", "cdi", "list")
    yield _command("podman-version", "podman", "--version")
    yield _command("cri-info", "crictl", "info")
    yield Probe("kubelet-conf", glob=_KUBELET_CONF, contents=False)
    # Of the file, which holds keys, no more than the names of what would have kubectl start a program.
    yield _command("kubelet-conf-programs", "sed", "-nE", _STARTS_PROGRAM, _KUBELET_CONF)
    yield Probe("node-name", path="/proc/sys/kernel/hostname")


EXAMINATION: Final = tuple(_every())


def follow_ups(evidence: Evidence) -> tuple[Probe, ...]:
    """The looks that are slow, or would change some nodes: each where what was seen first allows and asks for it."""
    return tuple(_follow_ups(evidence))


def may_ask_driver(evidence: Evidence) -> bool:
    """Whether NVML can be asked without changing the node.

    Where the module is not loaded or its device files are missing, NVML, and so nvidia-smi, starts nvidia-modprobe,
    which is setuid root, loads the module and makes the files (NVIDIA's driver README, "nvidia-modprobe").
    """
    if "/dev/dxg" in _text(evidence.get("dev-dxg")):
        return True
    # The files outlive the module.
    is_loaded = bool(_text(evidence.get("nvidia-version")).strip())
    return is_loaded and "/dev/nvidiactl" in _text(evidence.get("dev-nvidia"))


# The context in use, of `docker context ls`: "builder *   docker container   ssh://root@builder".
_ELSEWHERE: Final = re.compile(r"^\S+ \*\s[^\n]*?\b(?:ssh|tcp|https?)://", re.MULTILINE)


def _docker_runs(evidence: Evidence) -> bool:
    """Whether dockerd is there to answer: a client that asks the socket of a stopped one has systemd start it.

    Root's client may have been told to ask another machine's: that one is left alone.
    """
    if _ELSEWHERE.search(_text(evidence.get("docker-contexts"))):
        return False
    units = evidence.get("units")
    if units is not None and units.outcome == "ok" and units.data.strip():
        blocks = units.text.split("\n\n")
        return any("Id=docker.service" in block and "ActiveState=active" in block for block in blocks)
    return bool(_text(evidence.get("docker-socket")))


def _follow_ups(evidence: Evidence) -> Iterator[Probe]:
    if may_ask_driver(evidence):
        yield from _of_loaded_driver()
    if _docker_runs(evidence):
        yield from _of_running_docker()
    # rpm makes its database where there is none.
    if _text(evidence.get("rpm-database")):
        yield _command("rpms", "rpm", "-qa", "*nvidia*", "cuda*", "kernel*", "*container*")
    kernel = _text(evidence.get("kernel-release")).strip()
    if kernel and _driver_is_off(evidence):
        yield _command("initramfs", "lsinitramfs", f"/boot/initrd.img-{kernel}", timeout_s=20.0)
        yield Probe("make-logs", glob="/var/lib/dkms/nvidia*/*/build/make.log", limit_bytes=8 * _MIB)
        yield Probe("make-logs-kept", glob="/var/lib/dkms/nvidia*/*/*/*/log/make.log", limit_bytes=8 * _MIB)
        yield Probe("file:/var/log/nvidia-installer.log", path="/var/log/nvidia-installer.log")
    # The kubelet may read its own node and the pods on it; under which name it knows the node stands in its key.
    node = _node_name(evidence)
    if node:
        # Asked for raw objects, kubectl does not write what the server can do into its cache first.
        get = ("kubectl", "--kubeconfig", "/etc/kubernetes/kubelet.conf", "--request-timeout", "5s", "get", "--raw")
        yield _command("kubernetes-node", *get, f"/api/v1/nodes/{node}", timeout_s=8.0)
        pods = f"/api/v1/pods?fieldSelector=spec.nodeName%3D{node}"
        yield _command("kubernetes-pods", *get, pods, timeout_s=8.0, limit_bytes=16 * _MIB)


def _node_name(evidence: Evidence) -> str:
    """The name under which the node stands in its cluster; empty where the cluster is not asked.

    With a credential plugin (``exec``, ``auth-provider``), kubectl would start a program that is none of ours.
    """
    programs = evidence.get("kubelet-conf-programs")
    has_key = _text(evidence.get("kubelet-conf")) and programs is not None and programs.outcome == "ok"
    if not has_key or _text(programs).strip():
        return ""
    return _text(evidence.get("node-name")).strip().lower()


def _driver_is_off(evidence: Evidence) -> bool:
    """Whether the driver is not loaded, another one than that on disk is, or nouveau stands in its way."""
    loaded = evidence.get("file:/sys/module/nvidia/version")
    version = _text(loaded).strip()
    on_disk = _text(evidence.get("modinfo:nvidia"))
    nouveau = "\nnouveau " in f"\n{_text(evidence.get('modules'))}"
    return not version or nouveau or (bool(on_disk) and version not in on_disk)


def _text(capture: Capture | None) -> str:
    return capture.text if capture is not None and capture.outcome == "ok" else ""
