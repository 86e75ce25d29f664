"""What doctor looks at once it has seen what is quick: where that gives leave and reason for it.

Leave, because a question can change a node: nvidia-smi loads the driver, a client starts docker, rpm makes a database.
Reason, because some answers are slow or long, and matter only where something else is as it should not be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from gpunode.facts import systemd
from gpunode.facts.evidence import Evidence, Found, Probe, decode_found
from gpunode.facts.examination import command
from gpunode.facts.layout import layout
from gpunode.facts.patterns import Pattern

_MIB: Final = 1 << 20
_SMI_S: Final = 10.0
_QUICK_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class FollowUp:
    """Looks that are taken later, if at all.

    Attributes:
        where: on which nodes, in words that go on from "where".
        probes: the looks that the first evidence asks for; none where it does not.
    """

    where: str
    probes: Callable[[Evidence], Iterator[Probe]]


def follow_ups(evidence: Evidence) -> tuple[Probe, ...]:
    """The looks that the ``evidence`` of the first round gives leave and reason for."""
    return tuple(probe for one in FOLLOW_UPS for probe in one.probes(evidence))


def last_looks(evidence: Evidence) -> tuple[Probe, ...]:
    """Those that need the answer of another follow-up."""
    return tuple(probe for one in LAST_LOOKS for probe in one.probes(evidence))


def may_ask_driver(evidence: Evidence) -> bool:
    """Whether NVML can be asked without changing the node.

    Where the module is not loaded or a device file is missing, NVML, and so nvidia-smi, starts nvidia-modprobe, which
    is setuid root, loads the module and makes the files (NVIDIA's driver README, "nvidia-modprobe").
    """
    if "/dev/dxg" in _text(evidence, "dev-dxg"):
        return True
    # The files outlive the module.
    is_loaded = bool(_text(evidence, "nvidia-version").strip())
    return is_loaded and "/dev/nvidiactl" in _found(evidence, "dev-nvidia") and not _makes_files(evidence)


# In the kernel module's parameters; in containers of the toolkit the runtime says no.
_MAKES_NONE: Final = Pattern(r"^ModifyDeviceFiles:\s*0\s*$", re.MULTILINE)
_OF_GPU: Final = Pattern(r"/dev/nvidia(?P<minor>\d{1,18})")


def _makes_files(evidence: Evidence) -> bool:
    """Whether a GPU that the module has lacks its device file, and the module lets a client make it."""
    if _MAKES_NONE.search(_text(evidence, "file:/proc/driver/nvidia/params")):
        return False
    there = {int(match["minor"]) for path in _found(evidence, "dev-nvidia") if (match := _OF_GPU.fullmatch(path))}
    gpus = _matches(evidence, "nvidia-gpus")
    try:
        return not layout(gpus, ()).minors <= there
    except ValueError:
        return len(there) < len(gpus)


def _of_loaded_driver(evidence: Evidence) -> Iterator[Probe]:
    if may_ask_driver(evidence):
        yield command("smi", "nvidia-smi", timeout_s=_SMI_S)
        yield command("smi-query", "nvidia-smi", "-q", timeout_s=_SMI_S)
        yield command("smi-nvlink", "nvidia-smi", "nvlink", "-s", timeout_s=_SMI_S)
        yield command("smi-topology", "nvidia-smi", "topo", "-m", timeout_s=_SMI_S)
        yield command("smi-mig", "nvidia-smi", "mig", "-lgi", timeout_s=_SMI_S)
        yield command("toolkit-list", "nvidia-container-cli", "list")


# ---- docker


def _of_running_docker(evidence: Evidence) -> Iterator[Probe]:
    if _docker_runs(evidence):
        yield command("docker-info", "docker", "info")
        yield command("docker-version", "docker", "version")
        newest = ("--last", str(_CONTAINERS))
        yield command("docker-containers", "docker", "ps", "-a", *newest, "--format", "{{.ID}} {{.Image}} {{.Status}}")


def _docker_runs(evidence: Evidence) -> bool:
    """Whether dockerd is there to answer: a client that asks the socket of a stopped one has systemd start it.

    Root's client may have been told to ask another machine's: that one is left alone.
    """
    if _ANOTHER_MACHINE.search(_text(evidence, "docker-contexts")):
        return False
    units = evidence.get("units")
    if units is not None and units.outcome == "ok" and units.data.strip():
        blocks = units.text.split("\n\n")
        return any("Id=docker.service" in block and "ActiveState=active" in block for block in blocks)
    return bool(_text(evidence, "docker-socket"))


# The context in use, of `docker context ls`: "builder *   docker container   ssh://root@builder".
_ANOTHER_MACHINE: Final = Pattern(r"^\S+ \*\s[^\n]*?\b(?:ssh|tcp|https?)://", re.MULTILINE)
_CONTAINERS: Final = 64
_CONTAINER: Final = Pattern(r"^(?P<id>[0-9a-f]{12})\s", re.MULTILINE)
# Of a container only what tells how it is given GPUs, and what its runtime said when it did not start: no other
# variable leaves the daemon, so no secret does.
_VARIABLES: Final = ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_DISABLE_REQUIRE",
                     "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "LD_PRELOAD")  # fmt: skip
_ONE_OF_THEM: Final = " ".join(f'"{name}"' for name in _VARIABLES)
_NAME: Final = '{{$name := index (split . "=") 0}}'
_WITH_GPU: Final = '{{if or .HostConfig.DeviceRequests (eq .HostConfig.Runtime "nvidia")}}'
_INSPECTED: Final = (
    _WITH_GPU + '{"Name":{{json .Name}},"Created":{{json .Created}},"State":{"Status":{{json .State.Status}},'
    '"ExitCode":{{.State.ExitCode}},"StartedAt":{{json .State.StartedAt}},"Error":{{if TRIED}}{{json .State.Error}}'
    '{{else}}""{{end}}},"HostConfig":{"Runtime":{{json .HostConfig.Runtime}},"Privileged":{{.HostConfig.Privileged}},'
    '"Devices":{{json .HostConfig.Devices}},"DeviceRequests":{{json .HostConfig.DeviceRequests}}},'
    '"Config":{"Image":{{json .Config.Image}},"Env":[{{range .Config.Env}}'
    + _NAME
    + "{{if eq $name NAMES}}".replace("NAMES", _ONE_OF_THEM)
    + "{{json .}},{{end}}{{end}}null]}}{{end}}"
)


def _of_containers(evidence: Evidence) -> Iterator[Probe]:
    ids = _CONTAINER.findall(_text(evidence, "docker-containers"))[:_CONTAINERS]
    if ids:
        argv = ("docker", "inspect", "--format", _INSPECTED.replace("TRIED", _tried(evidence)), *ids)
        yield Probe(
            "docker-inspect", argv=argv, written="docker inspect", timeout_s=_QUICK_S, limit_bytes=_MIB, holds="config"
        )


def _tried(evidence: Evidence) -> str:
    """The condition under which a container's error is of the running dockerd: made since, or tried again by it.

    What one said that was tried before, nobody has asked again since.
    """
    again = 'eq .HostConfig.RestartPolicy.Name "always" "unless-stopped"'
    started = systemd.started_at(_text(evidence, "units"), "docker.service")
    return f'or ({again}) (gt .Created "{started}")' if started else again


def _of_cri(evidence: Evidence) -> Iterator[Probe]:
    # Without an endpoint crictl tries those that it knows, of which cri-dockerd's socket has systemd start that one.
    sockets = (*_found(evidence, "cri-sockets"), *_found(evidence, "cri-sockets-rancher"))
    known = [path for path in sockets if path.endswith(("/containerd.sock", "/crio.sock"))]
    for path in known[:1]:
        yield command("cri-info", "crictl", "--runtime-endpoint", f"unix://{path}", "info", holds="config")


# ---- packages


def _of_rpm(evidence: Evidence) -> Iterator[Probe]:
    # rpm makes its database where there is none, and what SQLite shares of one where nothing is shared.
    names = {path.rpartition("/")[2] for path in _found(evidence, "rpm-database")}
    if names and not ("rpmdb.sqlite" in names and "rpmdb.sqlite-shm" not in names):
        yield command("rpms", "rpm", "-qa", "*nvidia*", "cuda*", "kernel*", "*container*", "*fabric*manager*")


_SIGNED_BY: Final = Pattern(r"signed-by[ \t]*[=:][ \t]*(?P<keyring>/[\w./+-]+)", re.IGNORECASE)
_KEYRINGS: Final = 8


def _keyrings(evidence: Evidence) -> Iterator[Probe]:
    """The keyrings that lists name, beside those that every node with these archives has."""
    lists = [one.data.decode("utf-8", "replace") for one in _matches(evidence, "apt-sources-d") if one.data]
    told = (
        match["keyring"] for text in (_text(evidence, "apt-sources"), *lists) for match in _SIGNED_BY.finditer(text)
    )
    others = (path for path in dict.fromkeys(told) if f"file:{path}" not in evidence)
    for path, _ in zip(others, range(_KEYRINGS), strict=False):
        yield Probe(f"file:{path}", path=path, holds="table")


_NEWEST_ROTATED: Final = 3
_NUMBER: Final = Pattern(r"\.(?P<number>\d{1,3})(?:\.gz)?$")


def _rotated(evidence: Evidence) -> Iterator[Probe]:
    """The newest of the logs of packages that were put away, the oldest first."""
    if "nvidia" in _text(evidence, "file:/var/log/apt/history.log"):
        return
    for key in ("apt-logs", "dpkg-logs"):
        matches = (match for path in _found(evidence, key) if (match := _NUMBER.search(path)))
        newest = sorted(matches, key=lambda match: int(match["number"]))[:_NEWEST_ROTATED]
        for path in (match.string for match in reversed(newest)):
            packed = path.endswith(".gz")
            yield command(f"file:{path}", "zcat", path) if packed else Probe(f"file:{path}", path=path, holds="log")


_TAIL: Final = 1 << 20


def _tails(evidence: Evidence) -> Iterator[Probe]:
    """The ends of logs that are there and may be long."""
    for key in ("rpm-logs", "zypper-log", "pacman-log", "fabric-logs", "imex-logs"):
        for path in _found(evidence, key):
            yield command(f"file:{path}", "tail", "-c", str(_TAIL), path, limit_bytes=2 * _TAIL)


def _programs(evidence: Evidence) -> Iterator[Probe]:
    """The versions of programs that must be of the driver's; with these options they say it and end."""
    if _found(evidence, "fabric-binary"):
        yield command("fabric-version", "nv-fabricmanager", "--version")
    if _found(evidence, "imex-binary"):
        yield command("imex-version", "nvidia-imex", "--version")


# ---- the kernel's side


def _of_missing_driver(evidence: Evidence) -> Iterator[Probe]:
    kernel = _text(evidence, "kernel-release").strip()
    if kernel and _driver_is_off(evidence):
        yield from _images(evidence, kernel)
        for key, pattern in _BUILD_LOGS.items():
            yield Probe(key, glob=pattern, limit_bytes=8 * _MIB, holds="log")
        yield Probe("file:/var/log/nvidia-installer.log", path="/var/log/nvidia-installer.log", holds="log")
        yield Probe("file:/etc/mkinitcpio.conf", path="/etc/mkinitcpio.conf", holds="log")


_BUILD_LOGS: Final = {
    "make-logs": "/var/lib/dkms/nvidia*/*/build/make.log",
    "make-logs-kept": "/var/lib/dkms/nvidia*/*/*/*/log/make.log",
    "akmods-logs": "/var/cache/akmods/*nvidia*/*.failed.log",
}


def _driver_is_off(evidence: Evidence) -> bool:
    """Whether the driver is not loaded, another one than that on disk is, or nouveau stands in its way."""
    version = _text(evidence, "file:/sys/module/nvidia/version").strip()
    on_disk = _text(evidence, "modinfo:nvidia")
    nouveau = "\nnouveau " in f"\n{_text(evidence, 'modules')}"
    return not version or nouveau or (bool(on_disk) and version not in on_disk)


# By the name that whoever makes them gives them, and with which program they are listed.
_LISTERS: Final = ("lsinitramfs", "lsinitrd", "lsinitcpio")  # each of the first two reads what the other's maker made
_IMAGE: Final = Pattern(r"/(?:initrd\.img-|initrd-|initramfs-)(?P<kernel>.+?)(?:\.img)?$")
_BESIDE: Final = Pattern(r"kdump|fallback|rescue|\.old|\.bak|\.dpkg-|-old-")
_OTHER_IMAGES: Final = 2


def _images(evidence: Evidence, kernel: str) -> Iterator[Probe]:
    """A listing of the running kernel's initramfs, and of the newest others: one of them may be started next."""
    there = {path.rpartition("/")[2] for path in _found(evidence, "initramfs-tools")}
    tool = next((name for name in _LISTERS if name in there), "")
    named = [(match["kernel"], path) for path in _found(evidence, "initramfs-images") if (match := _IMAGE.search(path))]
    images = [(release, path) for release, path in named if not _BESIDE.search(path)]
    if not tool:
        return
    own = [path for release, path in images if release == kernel]
    # Where images are not named by release (Arch), the one of the running kernel cannot be told from the others.
    others = [one for one in images if one[1] not in own]
    others.sort(key=lambda one: [int(part) for part in re.findall(r"\d{1,18}", one[0])], reverse=True)
    if own:
        yield command("initramfs", tool, own[0], timeout_s=20.0, holds="table")
    for release, path in others[:_OTHER_IMAGES]:
        yield command(f"initramfs:{release}", tool, path, timeout_s=20.0, holds="table")


# ---- the cluster


def _of_cluster(evidence: Evidence) -> Iterator[Probe]:
    """What the kubelet may read of its own node; under which name it knows the node stands in its key."""
    node = _node_name(evidence)
    if node:
        # Asked for raw objects, kubectl does not write what the server can do into its cache first.
        get = ("kubectl", "--kubeconfig", "/etc/kubernetes/kubelet.conf", "--request-timeout", "5s", "get", "--raw")
        yield command("kubernetes-node", *get, f"/api/v1/nodes/{node}", timeout_s=8.0, holds="config")
        pods = f"/api/v1/pods?fieldSelector=spec.nodeName%3D{node}"
        yield command("kubernetes-pods", *get, pods, timeout_s=8.0, limit_bytes=16 * _MIB, holds="config")


def _node_name(evidence: Evidence) -> str:
    """The name under which the node stands in its cluster; empty where the cluster is not asked.

    With a credential plugin (``exec``, ``auth-provider``), kubectl would start a program that is none of ours.
    """
    programs = evidence.get("kubelet-conf-programs")
    has_key = _text(evidence, "kubelet-conf") and programs is not None and programs.outcome == "ok"
    if not has_key or _text(evidence, "kubelet-conf-programs").strip():
        return ""
    return _text(evidence, "node-name").strip().lower()


FOLLOW_UPS: Final = (
    FollowUp("the driver is loaded and every GPU has its device file", _of_loaded_driver),
    FollowUp("dockerd runs on this machine", _of_running_docker),
    FollowUp("a socket of containerd's or CRI-O's is there", _of_cri),
    FollowUp("rpm has a database", _of_rpm),
    FollowUp("the driver is not loaded, another one is on disk, or nouveau is loaded", _of_missing_driver),
    FollowUp("apt's lists name it", _keyrings),
    FollowUp("apt's present log says nothing of NVIDIA", _rotated),
    FollowUp("the log is there", _tails),
    FollowUp("the program is there", _programs),
    FollowUp("a kubelet has its key in /etc/kubernetes, and starts no program for it", _of_cluster),
)
LAST_LOOKS: Final = (FollowUp("docker has containers", _of_containers),)


def _text(evidence: Evidence, key: str) -> str:
    capture = evidence.get(key)
    return capture.text if capture is not None and capture.outcome == "ok" else ""


def _found(evidence: Evidence, key: str) -> tuple[str, ...]:
    """The paths that a glob found."""
    return tuple(one.path for one in _matches(evidence, key))


def _matches(evidence: Evidence, key: str) -> tuple[Found, ...]:
    capture = evidence.get(key)
    try:
        return decode_found(capture.data) if capture is not None else ()
    except (ValueError, KeyError, TypeError):
        return ()
