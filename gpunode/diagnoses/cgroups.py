"""Device cgroups and labels: what takes a GPU away from a container that the host still has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.chains import NO_CLUSTER_GPU
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.model import Citation, Doubt, Family, Fix, Proof, Rule, Verdict
from gpunode.diagnoses.remedies import by_hand, run
from gpunode.diagnoses.snapshot import Snapshot, cite, lines_with
from gpunode.diagnoses.views import driver, kernel, modules
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import Kind

# What runs in a container, whoever pasted it.
_INSIDE: Final[tuple[Kind, ...]] = ("container-run", "kubernetes-log", "kubernetes-pod", "application", "kubernetes")
_CONTAINER: Final = Pattern(r"\b(?:containers?|pods?|docker|podman|crictl|nerdctl|kubectl)\b", re.IGNORECASE)


def _in_containers(snapshot: Snapshot, pattern: Pattern) -> tuple[Citation, ...]:
    items = (item for item in snapshot.items if item.is_seen and _is_inside(item))
    return tuple(citation for item in items for citation in lines_with(item, pattern))


def _is_inside(item: Item) -> bool:
    return item.where == "container" or item.kind in _INSIDE or bool(_CONTAINER.search(item.written))


# Lost after a reload.

_LOST: Final = Pattern(r"(?:Failed to initialize NVML|failed to initialize NVML|NVML)[^\n]{0,20}: Unknown Error")
_RELOADED: Final = Pattern(
    r"systemd\[1\]: Reload(?:ing|ed)(?:\.|\s*$| requested| finished)|systemctl daemon-reload", re.MULTILINE
)
_SYSTEMD: Final = Pattern(
    r"Cgroup Driver:\s*systemd|cgroupManager:\s*systemd|native\.cgroupdriver=systemd|SystemdCgroup = true"
)
_TAKEN_AWAY: Final = Pattern(r"^[ \t]*c 195:\* m\s*$", re.MULTILINE)
_HARD_FAULT: Final = Pattern(
    r"fallen off the bus|GPU is lost|Unable to determine the device handle|\bXid \([^)]*\): (?:79|119|120)\b"
)
_VGPU: Final = Pattern(r"\bvGPU\b|\bGRID [A-Z]\d|nvidia-gridd", re.IGNORECASE)

_DRIVER_FAILS: Final = frozenset({"no-driver", "mismatch", "no-devices", "missing"})


def _lost(snapshot: Snapshot) -> Iterator[Verdict]:
    """A container lost its GPUs, and the host has them."""
    lost = _in_containers(snapshot, _LOST)
    if not lost or snapshot.says(_HARD_FAULT) or kernel.said(snapshot, _HARD_FAULT):
        return
    works = tuple(citation for state, citation in snapshot.view(driver.smi) if state == "works")
    if not works and any(state in _DRIVER_FAILS for state, _ in snapshot.view(driver.smi)):
        return
    traces = _reloads(snapshot)
    if works or traces:
        ruled = ("a lost GPU or driver: nvidia-smi works on the host",) if works else ()
        summary = "systemd wrote the container's device cgroup anew, without the GPU that was added behind its back"
        certain = bool(works and traces)
        yield Proof(summary, (*lost, *works[:1], *traces), "certain" if certain else "likely", ruled)
        return
    yield Doubt(
        "a container cannot reach NVML: has it lost its GPU, or has the host?",
        (
            Shell("nvidia-smi -L  # on the host"),
            Shell("journalctl -b | grep -i reloading"),
            Shell("docker info | grep -i cgroup"),
            Shell("ls -l /dev/char"),
        ),
        lost,
        ("cgroup-daemon-reload-loses-gpu", "gpu-fallen-off-bus", "vgpu-unlicensed")
        if snapshot.says(_VGPU)
        else ("gpu-fallen-off-bus",),
    )


def _reloads(snapshot: Snapshot) -> tuple[Citation, ...]:
    """What shows that systemd manages the container's cgroup, or wrote it anew."""
    commands = (cite(item) for item in snapshot.items if "daemon-reload" in item.written)
    return tuple(
        dict.fromkeys(
            (
                *snapshot.said(_RELOADED)[:2],
                *snapshot.said(_SYSTEMD)[:1],
                *snapshot.said(_TAKEN_AWAY)[:1],
                *(
                    c
                    for item in snapshot.items
                    for c in lines_with(item, _TAKEN_AWAY)
                    if "devices.list" in item.written
                ),
                *commands,
            )
        )
    )


def _restart(_: Snapshot) -> Iterable[Fix]:
    yield by_hand("restart", "restart the containers that lost their GPU; they get it again when they start")
    yield run(
        "configure",
        "let systemd know the devices: links in /dev/char, now and whenever the driver is loaded",
        Shell("sudo nvidia-ctk system create-dev-char-symlinks --create-all"),
        Shell(
            'echo \'ACTION=="add", DEVPATH=="/bus/pci/drivers/nvidia", RUN+="/usr/bin/nvidia-ctk system '
            "create-dev-char-symlinks --create-all\"' | sudo tee /etc/udev/rules.d/71-nvidia-dev-char.rules"
        ),
    )
    yield by_hand("configure", "or give GPUs out as CDI devices, which are in the container's own specification")


# Links in /dev/char.

_NO_LINKS: Final = Pattern(
    r"error creating (?:symlink creator|symlinks)|Failed to create symlinks under /dev/char"
    r"|failed to create NVIDIA device nodes"
    r"|create-dev-char-symlinks[^\n]{0,80}(?:no NVIDIA devices found|failed)"
)
_NO_STAT: Final = Pattern(r"Couldn't stat device /dev/char/(?:195|23\d|50\d|51\d):\d+|/dev/char/195:\d+: No such file")


def _no_links(snapshot: Snapshot) -> Iterator[Verdict]:
    said, stat = snapshot.said(_NO_LINKS), snapshot.said(_NO_STAT)
    if _in_containers(snapshot, _LOST) and not said:
        return
    if said:
        loaded = modules.loaded(snapshot, "nvidia")
        fails = [
            c for state, c in snapshot.view(driver.smi) if state in {"no-driver", "missing", "no-devices", "mismatch"}
        ]
        if fails and not driver.works(snapshot):
            return
        summary = (
            "the links in /dev/char that systemd looks devices up by cannot be made: the driver's devices are not there"
        )
        yield Proof(summary, said, "likely" if loaded is None else "certain")
    elif stat:
        summary = "systemd looks the GPU's device nodes up in /dev/char, and there are no links to them"
        yield Proof(summary, stat, remedy=_MAKE_LINKS)


_MAKE_LINKS: Final = (
    run("load", "load the driver, so that its devices are there", Shell("sudo nvidia-smi -L")),
    run("configure", "make the links", Shell("sudo nvidia-ctk system create-dev-char-symlinks --create-all")),
)


def _load(_: Snapshot) -> Iterable[Fix]:
    yield run(
        "load",
        "load the driver, so that its devices are known",
        Shell("sudo modprobe nvidia"),
        Shell("sudo modprobe nvidia-uvm"),
        Shell("nvidia-smi -L"),
    )
    yield run(
        "configure",
        "make the links",
        Shell("sudo nvidia-ctk system create-dev-char-symlinks --create-all --load-kernel-modules"),
    )
    yield by_hand(
        "configure",
        "or have the GPU Operator leave them out: DISABLE_DEV_CHAR_SYMLINK_CREATION=true of its validator",
        when="a device of this machine is unknown to the toolkit, and CDI is in use",
    )


# SELinux.

_AVC: Final = Pattern(
    r"avc:\s+denied\s+\{[^}\n]{1,80}\}[^\n]{0,200}?(?:(?:name|path)=\"?(?:/dev/)?nvidia[\w-]*|\bcomm=\"nvidia-[\w-]+\")[^\n]*"
)
_OF_CONTAINER: Final = Pattern(
    r"scontext=\S{0,200}:(?:container|svirt_lxc_net|spc|container_\w+|svirt_sandbox)\w*_t\b|:container_t:"
)
_PERMISSIVE: Final = Pattern(
    r"permissive=1|^[ \t]*(?:Enforcing Mode\s+|Current mode:\s*)?Permissive\s*$", re.IGNORECASE | re.MULTILINE
)
_SEALERT: Final = Pattern(
    r"Target Objects\s+/dev/nvidia\S*|SELinux is preventing \S+ from [^\n]{1,80}\bnvidia(?:\d|ctl|-\w+)"
)
_TARGET: Final = Pattern(r"xserver_misc_device_t|nvidia_device_t|device_t")
_ENFORCING: Final = Pattern(
    r"^[ \t]*Enforcing\s*$|Current mode:\s*enforcing|Enforcing Mode\s+Enforcing|selinux: enforcing",
    re.IGNORECASE | re.MULTILINE,
)
_FORBIDDEN: Final = Pattern(
    r"(?:Failed to initialize NVML|nvml error)[^\n]{0,10}: insufficient permissions", re.IGNORECASE
)
_LABELS_OFF: Final = Pattern(r"label[=:]disable")


def _selinux(snapshot: Snapshot) -> Iterator[Verdict]:
    denied = tuple(dict.fromkeys((*_denials(snapshot), *snapshot.said(_SEALERT))))
    if denied and all("permissive=1" in one.line for one in denied):
        return
    forbidden = _in_containers(snapshot, _FORBIDDEN)
    enforcing = _enforcing(snapshot)
    if denied:
        if not enforcing and snapshot.says(_PERMISSIVE, "text", "application"):
            return
        summary = "SELinux is enforcing, and denies the container the GPU's device nodes"
        yield Proof(summary, (*denied, *enforcing[:1], *forbidden))
    elif forbidden and enforcing and not any(_LABELS_OFF.search(one.source) for one in forbidden):
        summary = "SELinux is enforcing, and a container is refused the GPU that the host may use"
        yield Proof(summary, (*forbidden, *enforcing[:1]), "likely")


def _denials(snapshot: Snapshot) -> Iterator[Citation]:
    for citation in snapshot.said(_AVC):
        if _OF_CONTAINER.search(citation.line) or _TARGET.search(citation.line):
            yield citation


def _enforcing(snapshot: Snapshot) -> tuple[Citation, ...]:
    # The word alone is getenforce's whole answer.
    told = (item for item in snapshot.items if item.kind != "file" and not item.is_register)
    return tuple(citation for item in told for citation in lines_with(item, _ENFORCING))


def _allow(_: Snapshot) -> Iterable[Fix]:
    yield run("configure", "let containers use devices", Shell("sudo setsebool -P container_use_devices on"))
    yield by_hand(
        "configure",
        "or start that container without a label: --security-opt label=disable",
        when="the policy of this system knows no such switch, or denies `map` all the same",
    )


FAMILY: Final = Family(
    "cgroups",
    "device cgroups and labels",
    (
        Rule(
            cause="cgroup-daemon-reload-loses-gpu",
            layer="runtime",
            storey="runtime",
            severity="error",
            disruption="restart-container",
            title="a reload of systemd took the GPU from running containers",
            share=4,
            symptoms=(
                symptoms.NVML_UNKNOWN,
                symptoms.CUDA_UNAVAILABLE,
                symptoms.CUDA_NO_DEVICE,
            ),
            look_at=(
                Shell("nvidia-smi -L  # on the host"),
                Shell("journalctl -b | grep -i reloading"),
            ),
            story=(
                "NVIDIA's hook lets a container use the GPU by a change of its device cgroup, of which systemd knows "
                "nothing. When systemd manages that cgroup, any `systemctl daemon-reload`, as upgrades do it, writes "
                "it anew from what systemd knows: without links in /dev/char that is no GPU. nvidia-smi in the "
                "container then says `Failed to initialize NVML: Unknown Error`, on the host all is well, and a "
                "restart of the container helps until the next reload."
            ),
            sources=(
                "https://github.com/NVIDIA/nvidia-container-toolkit/issues/48",
                "https://github.com/NVIDIA/nvidia-container-toolkit/issues/1227",
            ),
            check=_lost,
            remedy=_restart,
            explains=NO_CLUSTER_GPU,
        ),
        Rule(
            cause="dev-char-symlinks-missing",
            layer="runtime",
            storey="runtime",
            severity="error",
            disruption="none",
            title="the links in /dev/char cannot be made",
            symptoms=(
                symptoms.HOOK_FAILED,
                symptoms.OPERATOR_WAITS,
            ),
            look_at=(Shell("ls -l /dev/char | grep nvidia"),),
            story=(
                "systemd looks a device up as /dev/char/MAJOR:MINOR when it writes a container's cgroup. NVIDIA's "
                "driver makes no such links, so the GPU Operator's validator and nvidia-ctk do. They fail where the "
                "driver is not loaded, since its device numbers are not known then, or at a device that they do not "
                "know."
            ),
            sources=(
                "https://github.com/NVIDIA/gpu-operator/issues/1015",
                "https://github.com/NVIDIA/gpu-operator/issues/430",
            ),
            check=_no_links,
            remedy=_load,
        ),
        Rule(
            cause="selinux-denies-gpu",
            layer="config",
            storey="runtime",
            severity="error",
            disruption="restart-container",
            title="SELinux denies containers the GPU's device nodes",
            symptoms=(
                symptoms.DENIED,
                symptoms.NVML_UNKNOWN,
                symptoms.CUDA_UNAVAILABLE,
            ),
            look_at=(
                Shell("sudo ausearch -m avc -ts recent | grep nvidia"),
                Shell("getenforce"),
            ),
            story=(
                "Containers run as container_t, and the GPU's nodes are xserver_misc_device_t or nvidia_device_t. An "
                "enforcing policy lets the one use the other only when told so. nvidia-smi says `Insufficient "
                "Permissions` in the container, works on the host, and works in a container without a label."
            ),
            sources=(
                "https://github.com/fedora-selinux/selinux-policy/issues/1695",
                "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/troubleshooting.html#nvml-insufficient-permissions-and-selinux",
            ),
            check=_selinux,
            remedy=_allow,
            explains=NO_CLUSTER_GPU,
        ),
    ),
)
