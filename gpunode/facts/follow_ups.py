"""Probes of doctor that depend on earlier evidence: only those that are safe and needed are run.

Safe, because a query can change a node: nvidia-smi loads the driver, a client starts docker, rpm creates a database.
Needed, because some answers are slow or long, and matter only if something else is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from gpunode.facts import systemd
from gpunode.facts.evidence import Evidence, Probe
from gpunode.facts.examination import command_probe
from gpunode.facts.layout import read_layout
from gpunode.facts.patterns import Pattern
from gpunode.facts.reader import find_matches, read_text
from gpunode.fast_dataclass import dataclass

_MIB: Final = 1 << 20
_SMI_TIMEOUT_S: Final = 10.0
_QUICK_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class FollowUp:
    """Probes that are run later, if at all.

    Attributes:
        where: the nodes concerned, as text that follows "where".
        probes: returns the probes that the first evidence calls for, if any.
    """

    where: str
    probes: Callable[[Evidence], Iterator[Probe]]


def follow_ups(evidence: Evidence) -> tuple[Probe, ...]:
    """Return the probes that the first round's ``evidence`` permits and calls for."""
    return tuple(probe for follow_up in FOLLOW_UPS for probe in follow_up.probes(evidence))


def final_follow_ups(evidence: Evidence) -> tuple[Probe, ...]:
    """Return the probes that need the answer of another follow-up."""
    return tuple(probe for follow_up in FINAL_FOLLOW_UPS for probe in follow_up.probes(evidence))


DRIVER_QUERY_CONDITION_KEYS: Final = frozenset(
    {"dev-dxg", "nvidia-version", "dev-nvidia", "nvidia-gpus", "file:/proc/driver/nvidia/params"}
)
"""The probes of which ``can_query_driver`` reads the results. None runs a command, so they cost no time."""


def can_query_driver(evidence: Evidence) -> bool:
    """Return True if NVML can be queried without changing the node.

    Where the module is not loaded or a device file is missing, NVML, and so nvidia-smi, starts nvidia-modprobe, which
    is setuid root, loads the module and makes the files (NVIDIA's driver README, "nvidia-modprobe").
    """
    if "/dev/dxg" in read_text(evidence, "dev-dxg"):
        return True
    # The files outlive the module.
    is_loaded = bool(read_text(evidence, "nvidia-version").strip())
    return is_loaded and "/dev/nvidiactl" in _read_paths(evidence, "dev-nvidia") and not _creates_device_files(evidence)


# In the kernel module's parameters; in containers the toolkit's runtime sets it to 0.
_MODIFY_DEVICE_FILES_OFF: Final = Pattern(r"^ModifyDeviceFiles:\s*0\s*$", re.MULTILINE)
_GPU_NODE: Final = Pattern(r"/dev/nvidia(?P<minor>\d{1,18})")


def _creates_device_files(evidence: Evidence) -> bool:
    """Return True if a GPU lacks its device file and the module lets a client create it."""
    if _MODIFY_DEVICE_FILES_OFF.search(read_text(evidence, "file:/proc/driver/nvidia/params")):
        return False
    existing = {
        int(match["minor"]) for path in _read_paths(evidence, "dev-nvidia") if (match := _GPU_NODE.fullmatch(path))
    }
    gpus = find_matches(evidence, "nvidia-gpus")
    try:
        return not read_layout(gpus, ()).minors <= existing
    except ValueError:
        return len(existing) < len(gpus)


def driver_probes(evidence: Evidence) -> Iterator[Probe]:
    """Yield the commands that query the driver, if that changes nothing."""
    if can_query_driver(evidence):
        yield command_probe("smi", "nvidia-smi", timeout_s=_SMI_TIMEOUT_S)
        yield command_probe("smi-query", "nvidia-smi", "-q", timeout_s=_SMI_TIMEOUT_S)
        yield command_probe("smi-nvlink", "nvidia-smi", "nvlink", "-s", timeout_s=_SMI_TIMEOUT_S)
        yield command_probe("smi-topology", "nvidia-smi", "topo", "-m", timeout_s=_SMI_TIMEOUT_S)
        yield command_probe("smi-mig", "nvidia-smi", "mig", "-lgi", timeout_s=_SMI_TIMEOUT_S)
        yield command_probe("toolkit-list", "nvidia-container-cli", "list")


# ---- docker


def _docker_probes(evidence: Evidence) -> Iterator[Probe]:
    if _is_docker_running(evidence):
        yield command_probe("docker-info", "docker", "info")
        yield command_probe("docker-version", "docker", "version")
        newest = ("--last", str(_MAX_CONTAINERS))
        yield command_probe(
            "docker-containers", "docker", "ps", "-a", *newest, "--format", "{{.ID}} {{.Image}} {{.Status}}"
        )


def _is_docker_running(evidence: Evidence) -> bool:
    """Return True if dockerd runs on this machine: querying a stopped one's socket makes systemd start it.

    If root's client is configured for another machine's dockerd, leave that one alone.
    """
    if _REMOTE_DOCKER_CONTEXT.search(read_text(evidence, "docker-contexts")):
        return False
    units = evidence.get("units")
    if units is not None and units.outcome == "ok" and units.data.strip():
        docker = systemd.find_properties(units.text, "docker.service")
        return docker.get("ActiveState") == "active"
    return bool(read_text(evidence, "docker-socket"))


# The context in use, of `docker context ls`: "builder *   docker container   ssh://root@builder".
_REMOTE_DOCKER_CONTEXT: Final = Pattern(r"^\S+ \*\s[^\n]*?\b(?:ssh|tcp|https?)://", re.MULTILINE)
_MAX_CONTAINERS: Final = 64
_DOCKER_PS_CONTAINER_ID: Final = Pattern(r"^(?P<id>[0-9a-f]{12})\s", re.MULTILINE)
# Only how a container gets GPUs, and its runtime's error: no other variable is requested, so no secret is.
_SHOWN_CONTAINER_VARIABLES: Final = ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_DISABLE_REQUIRE",
                     "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "LD_PRELOAD")  # fmt: skip
_QUOTED_VARIABLE_NAMES: Final = " ".join(f'"{name}"' for name in _SHOWN_CONTAINER_VARIABLES)
_VARIABLE_NAME_TEMPLATE: Final = '{{$name := index (split . "=") 0}}'
_IF_GPU_CONTAINER_TEMPLATE: Final = '{{if or .HostConfig.DeviceRequests (eq .HostConfig.Runtime "nvidia")}}'
_INSPECT_FORMAT: Final = (
    _IF_GPU_CONTAINER_TEMPLATE
    + '{"Name":{{json .Name}},"Created":{{json .Created}},"State":{"Status":{{json .State.Status}},'
    '"ExitCode":{{.State.ExitCode}},"StartedAt":{{json .State.StartedAt}},"Error":{{if TRIED}}{{json .State.Error}}'
    '{{else}}""{{end}}},"HostConfig":{"Runtime":{{json .HostConfig.Runtime}},"Privileged":{{.HostConfig.Privileged}},'
    '"Devices":{{json .HostConfig.Devices}},"DeviceRequests":{{json .HostConfig.DeviceRequests}}},'
    '"Config":{"Image":{{json .Config.Image}},"Env":[{{range .Config.Env}}'
    + _VARIABLE_NAME_TEMPLATE
    + "{{if eq $name NAMES}}".replace("NAMES", _QUOTED_VARIABLE_NAMES)
    + "{{json .}},{{end}}{{end}}null]}}{{end}}"
)


def _container_probes(evidence: Evidence) -> Iterator[Probe]:
    ids = _DOCKER_PS_CONTAINER_ID.findall(read_text(evidence, "docker-containers"))[:_MAX_CONTAINERS]
    if ids:
        argv = (
            "docker",
            "inspect",
            "--format",
            _INSPECT_FORMAT.replace("TRIED", _current_error_template_condition(evidence)),
            *ids,
        )
        yield Probe(
            "docker-inspect",
            argv=argv,
            written="docker inspect",
            timeout_s=_QUICK_TIMEOUT_S,
            limit_bytes=_MIB,
            content_kind="config",
        )


def _current_error_template_condition(evidence: Evidence) -> str:
    """Return the template condition under which a container's error comes from the running dockerd.

    The container was created after dockerd started, or restarted by it; other errors may be outdated.
    """
    again = 'eq .HostConfig.RestartPolicy.Name "always" "unless-stopped"'
    started = systemd.find_start_time(read_text(evidence, "units"), "docker.service")
    return f'or ({again}) (gt .Created "{started}")' if started else again


def _cri_probes(evidence: Evidence) -> Iterator[Probe]:
    # Without an endpoint crictl tries all that it knows, and trying cri-dockerd's socket makes systemd start it.
    sockets = (*_read_paths(evidence, "cri-sockets"), *_read_paths(evidence, "cri-sockets-rancher"))
    known = [path for path in sockets if path.endswith(("/containerd.sock", "/crio.sock"))]
    for path in known[:1]:
        yield command_probe("cri-info", "crictl", "--runtime-endpoint", f"unix://{path}", "info", content_kind="config")


# ---- packages


def _rpm_probes(evidence: Evidence) -> Iterator[Probe]:
    # rpm creates its database if there is none, and SQLite's shared-memory file if that is missing.
    names = {path.rpartition("/")[2] for path in _read_paths(evidence, "rpm-database")}
    if names and not ("rpmdb.sqlite" in names and "rpmdb.sqlite-shm" not in names):
        yield command_probe("rpms", "rpm", "-qa", "*nvidia*", "cuda*", "kernel*", "*container*", "*fabric*manager*")


_SIGNED_BY: Final = Pattern(r"signed-by[ \t]*[=:][ \t]*(?P<keyring>/[\w./+-]+)", re.IGNORECASE)
_MAX_KEYRINGS: Final = 8


def _keyring_probes(evidence: Evidence) -> Iterator[Probe]:
    """Yield probes of the keyrings named in apt's lists and not probed already."""
    lists = [match.data.decode("utf-8", "replace") for match in find_matches(evidence, "apt-sources-d") if match.data]
    keyrings = (
        match["keyring"] for text in (read_text(evidence, "apt-sources"), *lists) for match in _SIGNED_BY.finditer(text)
    )
    others = (path for path in dict.fromkeys(keyrings) if f"file:{path}" not in evidence)
    for path, _ in zip(others, range(_MAX_KEYRINGS), strict=False):
        yield Probe(f"file:{path}", path=path, content_kind="table")


_MAX_ROTATED_LOGS: Final = 3
_ROTATED_LOG_NUMBER: Final = Pattern(r"\.(?P<number>\d{1,3})(?:\.gz)?$")


def _rotated_log_probes(evidence: Evidence) -> Iterator[Probe]:
    """Yield probes of the newest rotated package logs, oldest first."""
    if "nvidia" in read_text(evidence, "file:/var/log/apt/history.log"):
        return
    for key in ("apt-logs", "dpkg-logs"):
        matches = (match for path in _read_paths(evidence, key) if (match := _ROTATED_LOG_NUMBER.search(path)))
        newest = sorted(matches, key=lambda match: int(match["number"]))[:_MAX_ROTATED_LOGS]
        for path in (match.string for match in reversed(newest)):
            packed = path.endswith(".gz")
            yield (
                command_probe(f"file:{path}", "zcat", path)
                if packed
                else Probe(f"file:{path}", path=path, content_kind="log")
            )


_LOG_TAIL_BYTES: Final = 1 << 20


def _log_tail_probes(evidence: Evidence) -> Iterator[Probe]:
    """Yield probes of the ends of logs that may be long."""
    for key in ("rpm-logs", "zypper-log", "pacman-log", "fabric-logs", "imex-logs"):
        for path in _read_paths(evidence, key):
            yield command_probe(
                f"file:{path}", "tail", "-c", str(_LOG_TAIL_BYTES), path, limit_bytes=2 * _LOG_TAIL_BYTES
            )


def _version_probes(evidence: Evidence) -> Iterator[Probe]:
    """Yield probes of programs whose version must match the driver's."""
    if _read_paths(evidence, "fabric-binary"):
        yield command_probe("fabric-version", "nv-fabricmanager", "--version")
    if _read_paths(evidence, "imex-binary"):
        yield command_probe("imex-version", "nvidia-imex", "--version")


# ---- the kernel's side


def _missing_driver_probes(evidence: Evidence) -> Iterator[Probe]:
    kernel = read_text(evidence, "kernel-release").strip()
    if kernel and _is_driver_unusable(evidence):
        yield from _initramfs_probes(evidence, kernel)
        for key, pattern in _BUILD_LOG_GLOBS.items():
            yield Probe(key, glob=pattern, limit_bytes=8 * _MIB, content_kind="log")
        yield Probe("file:/var/log/nvidia-installer.log", path="/var/log/nvidia-installer.log", content_kind="log")
        yield Probe("file:/etc/mkinitcpio.conf", path="/etc/mkinitcpio.conf", content_kind="log")


_BUILD_LOG_GLOBS: Final = {
    "make-logs": "/var/lib/dkms/nvidia*/*/build/make.log",
    "make-logs-kept": "/var/lib/dkms/nvidia*/*/*/*/log/make.log",
    "akmods-logs": "/var/cache/akmods/*nvidia*/*.failed.log",
}


def _is_driver_unusable(evidence: Evidence) -> bool:
    """Return True if the driver is not loaded, differs from the one on disk, or nouveau is loaded."""
    version = read_text(evidence, "file:/sys/module/nvidia/version").strip()
    on_disk = read_text(evidence, "modinfo:nvidia")
    nouveau = "\nnouveau " in f"\n{read_text(evidence, 'modules')}"
    return not version or nouveau or (bool(on_disk) and version not in on_disk)


# Images by the name that their generator gives them, with the program that lists them.
_INITRAMFS_LISTERS: Final = (
    "lsinitramfs",
    "lsinitrd",
    "lsinitcpio",
)  # each of the first two also reads the other generator's images
_INITRAMFS_PATH: Final = Pattern(r"/(?:initrd\.img-|initrd-|initramfs-)(?P<kernel>.+?)(?:\.img)?$")
_SPARE_INITRAMFS_NAME: Final = Pattern(r"kdump|fallback|rescue|\.old|\.bak|\.dpkg-|-old-")
_MAX_OTHER_IMAGES: Final = 2


def _initramfs_probes(evidence: Evidence, kernel: str) -> Iterator[Probe]:
    """Yield listings of the running kernel's initramfs, and of the newest others: one of them may boot next."""
    existing = {path.rpartition("/")[2] for path in _read_paths(evidence, "initramfs-tools")}
    tool = next((name for name in _INITRAMFS_LISTERS if name in existing), "")
    named = [
        (match["kernel"], path)
        for path in _read_paths(evidence, "initramfs-images")
        if (match := _INITRAMFS_PATH.search(path))
    ]
    images = [(release, path) for release, path in named if not _SPARE_INITRAMFS_NAME.search(path)]
    if not tool:
        return
    own = [path for release, path in images if release == kernel]
    # Where images are not named by release (Arch), the one of the running kernel cannot be told from the others.
    others = [image for image in images if image[1] not in own]
    others.sort(key=lambda one: [int(part) for part in re.findall(r"\d{1,18}", one[0])], reverse=True)
    if own:
        yield command_probe("initramfs", tool, own[0], timeout_s=20.0, content_kind="table")
    for release, path in others[:_MAX_OTHER_IMAGES]:
        yield command_probe(f"initramfs:{release}", tool, path, timeout_s=20.0, content_kind="table")


# ---- the cluster


def _cluster_probes(evidence: Evidence) -> Iterator[Probe]:
    """Yield probes that read the node and its pods with the kubelet's credentials."""
    node = _queryable_node_name(evidence)
    if node:
        # With --raw, kubectl does not write its discovery cache.
        get = ("kubectl", "--kubeconfig", "/etc/kubernetes/kubelet.conf", "--request-timeout", "5s", "get", "--raw")
        yield command_probe("kubernetes-node", *get, f"/api/v1/nodes/{node}", timeout_s=8.0, content_kind="config")
        pods = f"/api/v1/pods?fieldSelector=spec.nodeName%3D{node}"
        yield command_probe("kubernetes-pods", *get, pods, timeout_s=8.0, limit_bytes=16 * _MIB, content_kind="config")


def _queryable_node_name(evidence: Evidence) -> str:
    """Return the node's name in its cluster; empty if the cluster must not be queried.

    With a credential plugin (``exec``, ``auth-provider``), kubectl would start a foreign program.
    """
    programs = evidence.get("kubelet-conf-programs")
    has_key = read_text(evidence, "kubelet-conf") and programs is not None and programs.outcome == "ok"
    if not has_key or read_text(evidence, "kubelet-conf-programs").strip():
        return ""
    return read_text(evidence, "node-name").strip().lower()


FOLLOW_UPS: Final = (
    FollowUp("the driver is loaded and every GPU has its device file", driver_probes),
    FollowUp("dockerd runs on this machine", _docker_probes),
    FollowUp("containerd or CRI-O has a socket", _cri_probes),
    FollowUp("rpm has a database", _rpm_probes),
    FollowUp("the driver is not loaded, another one is on disk, or nouveau is loaded", _missing_driver_probes),
    FollowUp("apt's lists name it", _keyring_probes),
    FollowUp("apt's current log does not mention NVIDIA", _rotated_log_probes),
    FollowUp("the log exists", _log_tail_probes),
    FollowUp("the program is installed", _version_probes),
    FollowUp("the kubelet has its key in /etc/kubernetes and needs no program for it", _cluster_probes),
)
FINAL_FOLLOW_UPS: Final = (FollowUp("docker has containers", _container_probes),)


def _read_paths(evidence: Evidence, key: str) -> tuple[str, ...]:
    """Return the paths that a glob matched."""
    return tuple(match.path for match in find_matches(evidence, key))
