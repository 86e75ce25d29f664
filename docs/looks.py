"""The page on what doctor inspects, generated from its probes: one table for each subject."""

# ruff: noqa: INP001 - beside the script that calls it, not a package

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from gpunode.container_runtimes import CONTAINER_RUNTIMES

if TYPE_CHECKING:
    from gpunode.facts.evidence import Capture, Probe

_INTRO = """\
# What doctor looks at

`gpunode doctor` and `gpunode capture` run the same probes, in parallel, each with its own time limit: a tool that
hangs delays nothing else. They write nothing and start nothing: a probe that could load a driver, start a daemon or
create a database only runs where that has already happened. A missing file counts as missing,
a file without read permission is named (`not visible without root`), and doctor concludes nothing from it. Links
are not followed out of the node's root.

The kind of its content says how much of it a capture may contain ([capture format](capture-format.md)): a `table`
completely, of a `config` what is known to be harmless, a `log` without anything that looks like a secret.
"""


@dataclass(frozen=True, slots=True)
class Subject:
    """A part of the node.

    Attributes:
        use: what its probes show.
        key_patterns: the keys of its probes, as shell patterns separated by spaces.
    """

    title: str
    use: str
    key_patterns: str


_SUBJECTS = (
    Subject(
        "The PCI bus",
        "the GPUs and NVSwitches, their generation and what it needs, who owns them, links, "
        "BARs, errors, power states, NUMA nodes",
        "lspci* pci-* aer-counters power-states numa-nodes link-* iommu dev-dxg",
    ),
    Subject(
        "Who may own a GPU",
        "nouveau, vfio-pci, driverctl and what blocks a module",
        "driver-overrides driverctl modprobe-d* depmod-d* modules-load-d modules-to-load file:/etc/modules "
        "file:/etc/default/grub grub-d file:/proc/cmdline",
    ),
    Subject(
        "Modules: loaded, on disk, in the initramfs",
        "which versions differ, and so the kind of mismatch",
        "modules modules-* nvidia-version modinfo:* file:/sys/module/nvidia/version initramfs* "
        "file:/etc/mkinitcpio.conf file:/etc/initramfs-tools/modules firmware nvidia-parameters "
        "file:/proc/driver/nvidia/params module-trees module-indexes",
    ),
    Subject(
        "Why a module is missing",
        "headers, DKMS, compilers, akmods, NVIDIA's installer",
        "kernel-* boot-* dkms-* make-logs* akmods-logs file:/etc/dkms/framework.conf run-installer "
        "file:/var/log/nvidia-installer.log file:/proc/version",
    ),
    Subject(
        "Secure Boot",
        "whether the module's signature is or will be rejected",
        "secure-boot* shim-validation-variable enrolled-keys file:/var/lib/gpunode/secure-boot-request "
        "file:/sys/kernel/security/lockdown "
        "file:/sys/module/module/parameters/sig_enforce",
    ),
    Subject(
        "Packages",
        "half done, held, mixed or replaced packages, by whom and when; archives and their keys; who holds the lock",
        "dpkg-* apt-* apt-extended-states file:/etc/apt/* file:/var/lib/dpkg/info/* "
        "file:/etc/dpkg/* file:/var/lib/dpkg/diversions "
        "file:/usr/share/keyrings/* file:/var/log/apt/* file:/var/log/dpkg* locks rpms rpm-* "
        "zypper-log pacman-log file:/var/log/dnf* file:/var/log/zypp/* file:/var/log/pacman.log file:*/versionlock.*"
        " file:/etc/zypp/locks file:/etc/pacman.conf file:/var/run/reboot-required.pkgs "
        "file:*gpunode-resume.service",
    ),
    Subject(
        "The kernel's log",
        "Xids and their order, for each GPU; the driver's messages when it was loaded",
        "kernel-journal dmesg journal",
    ),
    Subject(
        "The driver's data on its GPUs",
        "memory, power, temperature, MIG, NVLink, topology, persistence",
        "smi smi-query smi-nvlink smi-topology smi-mig nvidia-gpus nvidia-gpu-instances nvidia-compute-instances nvml "
        "file:*gpunode-m[ip][gs].*",
    ),
    Subject(
        "The fabric",
        "NVSwitches, the fabric manager and IMEX: installed, running, of the driver's version, and their logs",
        "nvswitches fabric-* imex-* file:/var/log/fabricmanager.log file:/var/log/nvidia-imex.log "
        "file:/etc/nvidia-imex/* log:nvidia-fabricmanager log:nvidia-imex",
    ),
    Subject(
        "Device files",
        "their numbers, modes and links",
        "dev-nvidia* devices device-capabilities character-devices file:/proc/devices",
    ),
    Subject(
        "Libraries",
        "which libcuda and libnvidia-ml programs load: the driver's, a stub, another driver's",
        "libraries* *-libraries* libcuda-files* nvml-files* cuda-compat cuda-compilers cuda-uninstallers "
        "ld-so-conf-d file:/etc/ld.so* "
        "file:/etc/profile.d/* file:/etc/environment file:/etc/profile file:/etc/bash* profile-d *-environments "
        "smi-binary ldconfigs",
    ),
    Subject(
        "Container runtimes",
        "which daemon answers, the files that it reads, its settings, messages of a container's runtime",
        "docker-* snap-docker file:*daemon.json file:/root/.docker/config.json containerd-* "
        "file:/etc/containerd/* rancher-containerd crio-* file:/etc/crio/* containers-conf* file:/etc/containers/* "
        "podman-version cri-* "
        "log:docker log:containerd log:crio file:*containerd*.toml* cgroup-version reloads "
        + " ".join(f"file:{row.config}" for row in CONTAINER_RUNTIMES.values() if row.config),
    ),
    Subject(
        "The toolkit and CDI",
        "the toolkit's configuration and version, CDI specifications and the files that they name",
        "toolkit-* file:/etc/nvidia-container-* cdi-* log:nvidia-cdi-refresh driver-containers",
    ),
    Subject(
        "Kubernetes",
        "the kubelet, the device plugin, the GPUs that the node offers and the pods that have them",
        "kubelet-* kubernetes-* file:/var/lib/kubelet/* device-plugin-sockets pod-logs log:kubelet "
        "provider-* file:/home/kubernetes/* "
        "log:k3s* log:rke2* node-name file:/etc/*kube* file:/etc/rancher/* file:/var/lib/rancher/* "
        "file:*/systemd/system/k* k3s* rke2* k0s* microk8s* snap-* file:/etc/k0s/* file:/var/snap/*",
    ),
    Subject(
        "RDMA and GPUDirect Storage",
        "peer memory, nvidia-fs, whose InfiniBand modules these are",
        "infiniband ofed nvidia-fs file:/etc/cufile.json file:/sys/kernel/mm/memory_peers/*",
    ),
    Subject(
        "The platform",
        "virtual machines, containers, WSL, vGPU licences, SELinux, firmware",
        "os-release* clock virt tegra-release device-tree container-manager dockerenv wsl-libraries "
        "file:/sys/class/dmi/* file:/etc/nvidia/gridd.conf log:nvidia-gridd selinux-denials "
        "file:/etc/selinux/config",
    ),
    Subject(
        "Services",
        "which are installed, running, failed, masked or older than their configuration",
        "units unit-wants unit-files-* log:nvidia-persistenced "
        "file:/etc/systemd/system/nvidia-persistenced.service file:/etc/nvidia/*",
    ),
)
_NOT_RUN = """\
## What doctor does not run, and why

| not run | because |
| --- | --- |
| `nvidia-smi`, NVML without driver or device files | nvidia-modprobe, setuid root, would load it and create files |
| `docker` where its daemon does not run | systemd would start it at the first connection to its socket |
| `crictl` without an endpoint | it would try cri-dockerd's socket, and systemd would start that |
| `rpm` without a database, or without the files that its readers share | it would create them |
| `dnf history` | it writes to its database, cache and logs; its log of packages has the same data |
| `gdscheck`, `dcgmi diag`, CUDA programs | they load `nvidia-uvm`, or disturb running programs |
| the variables of containers, except six that decide which GPUs and libraries they see | they hold secrets |
| the cluster beyond this node | the kubelet's key has no access to it |
| `docker` if root's client connects to another machine | its answer is not about this node |

Programs get a fixed environment with root's home and the proxies, so no `KUBECONFIG`, `DOCKER_HOST` or `LD_PRELOAD`
of the user reaches them.

## The cluster

Only `kubectl` reaches beyond the node. If `/etc/kubernetes/kubelet.conf` exists (kubeadm and similar), it
requests two things from the API server, with the kubelet's own key: this node, and the list of its pods. It requests
raw objects, so it writes nothing to `~/.kube/cache`. No other kubeconfig is used: not root's, not `admin.conf`, not
one of k3s or RKE2.

A kubeconfig can name a program that provides the key (`exec`, as with `aws eks get-token`; `auth-provider` before).
doctor starts no program that it does not know: where either word is a key in that file, or the file cannot be read,
the cluster is not queried. Add `kubectl describe node NODE` to a
[report](../how-to/find-out-why.md#diagnose-a-report).
"""


def render_page(generated_notice: str) -> str:
    """Return the page, with ``generated_notice`` at the top.

    Raises:
        LookupError: a probe belongs to no subject, or a subject has none.
    """
    rows = dict(_list_rows())
    lines = [generated_notice, _INTRO]
    unused_rows = dict(rows)
    for subject in _SUBJECTS:
        own_keys = [
            key
            for key in rows
            if any(fnmatchcase(key, pattern) for pattern in subject.key_patterns.split()) and key in unused_rows
        ]
        if not own_keys:
            raise LookupError(f"nothing is looked at for {subject.title!r}")
        lines += [f"## {subject.title}", "", f"It shows {subject.use}.", ""]
        lines += ["| looked at | how | content | where |", "| --- | --- | --- | --- |"]
        lines += [unused_rows.pop(key) for key in own_keys]
        lines.append("")
    if unused_rows:
        raise LookupError(f"these belong to no subject of docs/looks.py: {', '.join(unused_rows)}")
    return "\n".join([*lines, _NOT_RUN])


def _list_rows() -> Iterator[tuple[str, str]]:
    """Yield the key and the table row of each probe."""
    from gpunode.facts.examination import DOCTOR_PROBES, UNITS
    from gpunode.facts.follow_ups import FINAL_FOLLOW_UPS, FOLLOW_UPS
    from gpunode.facts.probes import LSPCI_PROBE, list_probes

    for probe in (*list_probes(UNITS), LSPCI_PROBE, *DOCTOR_PROBES):
        yield probe.key, _render_row(probe, "always")
    for follow_up in (*FOLLOW_UPS, *FINAL_FOLLOW_UPS):
        for probe in follow_up.probes(_make_full_evidence()):
            yield probe.key, _render_row(probe, follow_up.where)
    yield "nvml", f"| NVML, in its own process | run, 10 s | table | {FOLLOW_UPS[0].where} |"


def _render_row(probe: Probe, where: str) -> str:
    source = probe.source if len(probe.source) < _MAX_SOURCE_LENGTH else f"{probe.source[: _MAX_SOURCE_LENGTH - 1]}…"
    how = f"run, {probe.timeout_s:g} s" if probe.argv else ("listed" if probe.glob and not probe.contents else "read")
    row = f"| `{source}` | {how} | {probe.content_kind} | {where} |"
    return row.replace(_EXAMPLE_KERNEL, "$(uname -r)").replace(_EXAMPLE_NODE, "NODE")


_MAX_SOURCE_LENGTH = 110
_EXAMPLE_KERNEL = "6.1.0-0-example"
_EXAMPLE_NODE = "example-node"


def _make_full_evidence() -> Mapping[str, Capture]:
    """Return evidence of a node on which every follow-up probe runs."""
    from gpunode.facts.evidence import Capture, GlobMatch, encode_matches

    listed_paths = {
        "dev-nvidia": "/dev/nvidiactl",
        "docker-socket": "/run/docker.sock",
        "cri-sockets": "/run/containerd/containerd.sock",
        "rpm-database": "/var/lib/rpm/Packages.db",
        "kubelet-conf": "/etc/kubernetes/kubelet.conf",
        "initramfs-tools": "/usr/bin/lsinitramfs",
        "initramfs-images": f"/boot/initrd.img-{_EXAMPLE_KERNEL}",
        "apt-logs": "/var/log/apt/history.log.1.gz",
        "dpkg-logs": "/var/log/dpkg.log.1",
        "rpm-logs": "/var/log/dnf.rpm.log",
        "zypper-log": "/var/log/zypp/history",
        "pacman-log": "/var/log/pacman.log",
        "fabric-logs": "/var/log/fabricmanager.log",
        "imex-logs": "/var/log/nvidia-imex.log",
        "fabric-binary": "/usr/bin/nv-fabricmanager",
        "imex-binary": "/usr/bin/nvidia-imex",
    }
    output_by_key = {
        "nvidia-version": "NVRM version: example\n",
        "kernel-release": f"{_EXAMPLE_KERNEL}\n",
        "node-name": f"{_EXAMPLE_NODE}\n",
        "kubelet-conf-programs": "",
        "apt-sources": "deb [signed-by=/etc/apt/keyrings/example.gpg] https://archive.example/ /\n",
        "docker-containers": "0123456789ab image Up 2 hours\n",
        "file:/etc/environment": "LD_LIBRARY_PATH=/a/folder/of/it\n",
    }
    captures = {key: Capture(path, "ok", encode_matches(iter([GlobMatch(path)]))) for key, path in listed_paths.items()}
    return captures | {key: Capture(key, "ok", text.encode()) for key, text in output_by_key.items()}
