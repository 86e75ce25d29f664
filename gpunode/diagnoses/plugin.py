"""The device plugin: it does not see the driver, says that a GPU is faulty, or the kubelet counts otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

from gpunode.diagnoses.addresses import DEVICE_PLUGIN
from gpunode.diagnoses.cluster import (
    plugin_logs,
    restart_failed_pods,
    restart_plugin,
    set_driver_root,
    set_runtime_class,
)
from gpunode.diagnoses.commands import command, is_unit
from gpunode.diagnoses.model import Citation, Doubt, Family, Fix, Proof, Rule, Verdict, only
from gpunode.diagnoses.remedies import by_hand, restart, run
from gpunode.diagnoses.snapshot import Snapshot, cite, lines_with, stated
from gpunode.diagnoses.views import containerd, driver, kube, modules, nested, pci
from gpunode.diagnoses.views.engine import engine
from gpunode.facts.items import Item
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern
from gpunode.runtimes.containerd_files import CONFIG

_KUBERNETES: Final = "https://github.com/kubernetes/kubernetes"

# The driver's library.

# k8s-device-plugin: go-nvml's words, and its own when neither NVML nor Tegra is found.
_NO_LIBRARY: Final = Pattern(
    r"could not load NVML library|NVML not detected|Detected non-NVML platform|ERROR_LIBRARY_NOT_FOUND"
    r"|libnvidia-ml\.so(?:\.1)?['\"’]?: cannot open shared object|libnvidia-ml\.so\.1: not found"
    r"|Failed to initialize NVML: could not"
)
# What it adds only where it found nothing to work with at all.
_ASKS_FOR_RUNTIME: Final = Pattern(
    r"Incompatible (?:strategy|platform) detected|did you (?:configure the NVIDIA Container|set the docker default)"
    r"|invalid device discovery strategy|unable to create resource managers? to get plugins"
)
_NVML_MARKS: Final = (
    "NVML",
    "nvidia-ml",
    "LIBRARY_NOT_FOUND",
    "ncompatible",
    "did you ",
    "discovery strategy",
    "get plugins",
)
_OF_PLUGIN: Final = Pattern(
    r"device[-_ ]?plugin|\bplugin\b|nvdp\b|gpu-feature-discovery|\bgfd\b|dcgm-exporter|hami", re.IGNORECASE
)
_DEFAULT: Final = Pattern(
    r"default_runtime_name\s*=\s*[\"'](?P<toml>[\w.-]+)|\"default-runtime\"\s*:\s*\"(?P<json>[\w.-]+)"
    r"|default_runtime\s*=\s*\"(?P<crio>[\w.-]+)|Default Runtime:\s*(?P<docker>[\w.-]+)"
    r"|\"defaultRuntimeName\"\s*:\s*\"(?P<crictl>[\w.-]+)"
)
_HANDLER: Final = Pattern(
    r"runtimes\.[\"']?nvidia[\"']?\s*\]|\"nvidia\"\s*:\s*\{|nvidia-container-runtime|^[ \t]*Runtimes:.*\bnvidia\b",
    re.MULTILINE,
)
_RUNTIME_FILES: Final = Pattern(
    r"containerd/[\w./-]{0,80}\.toml(?:\.tmpl)?$|/cri/conf\.d/[\w.-]{1,80}\.(?:part|toml)$|containerd\.toml|docker/daemon\.json$|crio/[\w./-]{0,80}\.conf$"
    r"|crio\.conf|\bcrio (?:status )?config"
)
# nvidia-ctk registers the handler; it makes it the default only when told to.
_REGISTERED_ONLY: Final = Pattern(r"nvidia-ctk runtime configure(?![^\n]{0,200}--set-as-default)[^\n]{0,80}")
# The root that the plugin was told; "/" is where a driver of packages is.
_TOLD_ROOT: Final = Pattern(
    r"nvidiaDriverRoot[\"']?\s*[:=]\s*[\"']?(?P<root>/[\w./-]+)"
    r"|NVIDIA_DRIVER_ROOT[\"']?\s*(?:[:=]|value:)\s*[\"']?(?P<env>/[\w./-]+)"
)
# Places where a driver stands that the plugin does not look into unasked.
_ELSEWHERE: Final = Pattern(
    r"/(?:opt/nvidia|home/kubernetes/bin/nvidia|run/nvidia/driver|usr/lib/wsl|run/current-system|run/opengl-driver"
    r"|nix/store|usr/local/glibc|usr/local/nvidia|x86_64-bottlerocket|usr/x86_64-bottlerocket|talos)[\w./-]*"
)
_ROOT: Final = Pattern(r"/opt/nvidia\b|/home/kubernetes/bin/nvidia\b|/run/nvidia/driver\b|/usr/local/nvidia\b")
_ODD_SYSTEM: Final = Pattern(
    r"Talos|NixOS|Bottlerocket|Container-Optimized OS|Flatcar|Alpine Linux|siderolabs/|microsoft-standard-WSL"
)


@dataclass(frozen=True, slots=True)
class _Runtime:
    """The container runtime's configuration, as far as it was shown.

    Attributes:
        default: the handler of containers that ask for none; empty where that was not shown.
        has_nvidia: whether a handler of NVIDIA's is among them; None where that was not shown.
    """

    default: str
    has_nvidia: bool | None
    citations: tuple[Citation, ...]


def _runtime(snapshot: Snapshot) -> _Runtime:
    told = containerd.running(snapshot) or containerd.of_files(snapshot)
    if told is not None and not told.fault and (told.default or told.handlers):
        usual = "runc" if told.names_handlers else ""
        default = told.default.value.strip("\"'") if told.default else usual
        named = [place for name, place in told.handlers.items() if name.startswith("nvidia")]
        places = (*((told.default.citation,) if told.default else ()), *named)
        return _Runtime(default, True if named else (False if told.names_handlers else None), places)
    return _scanned(snapshot)


def _scanned(snapshot: Snapshot) -> _Runtime:
    """The same of docker, CRI-O and fragments of any."""
    items = [item for item in snapshot.items if _is_runtime(item) and item.where == "host"]
    default, places = "", list[Citation]()
    handler: bool | None = None
    for item in items:
        if _is_bypassed(snapshot, item):
            continue
        if match := _DEFAULT.search(item.text):
            default = default or next(word for word in match.groups() if word)
            places.append(_at(item, match))
        if match := _HANDLER.search(item.text):
            handler = True
            places.append(_at(item, match))
        elif handler is None and item.text.strip() and not item.source.is_part and not item.source.only:
            handler = False
    return _Runtime(default, handler, tuple(dict.fromkeys(places)))


def _is_runtime(item: Item) -> bool:
    if not item.is_seen:
        return False
    return item.kind in {"containerd-config", "docker-info"} or bool(
        _RUNTIME_FILES.search(item.subject or item.written)
    )


def _is_bypassed(snapshot: Snapshot, item: Item) -> bool:
    """Whether the kubelet uses another runtime than the one that this configures."""
    if item.subject.startswith("/etc/containerd/"):
        return snapshot.view(containerd.product) != "containerd"
    is_docker = item.kind == "docker-info" or "docker" in item.subject
    return is_docker and any(
        one.kind.startswith("kubernetes") and ("containerd://" in one.text or "cri-o://" in one.text)
        for one in snapshot.items
    )


def _at(item: Item, match: re.Match[str]) -> Citation:
    return cite(item, item.number_at(match.start()))


def _in_plugin(snapshot: Snapshot, pattern: Pattern) -> tuple[Citation, ...]:
    """The lines with ``pattern`` that the plugin, or one of its kin in a pod, wrote."""
    kinds = {"kubernetes-log", "kubernetes-pod", "kubernetes", "text", "application"}
    return tuple(
        citation
        for item in snapshot.items
        if item.kind in kinds and item.is_seen and any(mark in item.text for mark in _NVML_MARKS) and _is_kin(item)
        for citation in lines_with(item, pattern)
    )


def _is_kin(item: Item) -> bool:
    return item.kind in {"kubernetes-log", "kubernetes-pod"} or bool(
        _OF_PLUGIN.search(item.written) or _OF_PLUGIN.search(item.text) or _ASKS_FOR_RUNTIME.search(item.text)
    )


def _no_library(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """Why the plugin finds no NVML: its pod is not under NVIDIA's runtime, or it is and the driver stands elsewhere."""
    lacking = _in_plugin(snapshot, _NO_LIBRARY)
    asking = _in_plugin(snapshot, _ASKS_FOR_RUNTIME)
    said = tuple(dict.fromkeys((*lacking, *asking)))
    is_elsewhere = _no_driver(snapshot) or snapshot.view(nested.is_nested) or _reads_another_file(snapshot)
    # The daemon set runs on every node; on one without a GPU its words are what they should be.
    if is_elsewhere or pci.has_gpu(snapshot) is False:
        return
    if _offers_gpus(snapshot):
        said = ()
    runtime = snapshot.view(_runtime)
    asked = _asked(snapshot)
    is_plain = bool(runtime.default) and not runtime.default.startswith("nvidia")
    if not said:
        bare = _bare_pods(snapshot)
        has_class = runtime.has_nvidia is None and any(
            name.startswith("nvidia") for name in kube.runtime_classes(snapshot)
        )
        # Under a default of NVIDIA's a pod that asks for no class has the driver all the same.
        asks_none = bool(asked) and not runtime.default.startswith("nvidia")
        is_open = (is_plain or asks_none) and not any(pod.runtime_class for pod in asked)
        if bare and is_open and (runtime.has_nvidia or has_class):
            proof = _not_asked(bare, runtime, asked, is_plain=is_plain, who="a pod with a GPU")
            yield "nvidia-runtime-not-default-no-runtimeclass", proof
        return
    if runtime.has_nvidia is False and runtime.default != "nvidia":
        return
    if runtime.default.startswith("nvidia") and not any(asked) and not _is_in_force(snapshot, runtime):
        question = "this file makes NVIDIA's runtime the default: is it the one that the node's kubelet uses, and read?"
        cited = (*said, *runtime.citations)
        yield "device-plugin-library-not-found", Doubt(question, _WHICH_RUNTIME, cited, _NO_LIBRARY_CAUSES)
        return
    under = runtime.default.startswith("nvidia") or any(pod.runtime_class for pod in asked)
    elsewhere = (*kube.said(snapshot, _TOLD_ROOT, "DriverRoot", "DRIVER_ROOT"), *_elsewhere(snapshot))
    if under or (elsewhere and not (is_plain and asked)):
        places = (*runtime.citations, *(pod.citation for pod in asked if pod.runtime_class and pod.citation))
        yield "device-plugin-library-not-found", _elsewhere_proof(said, under=under, places=(*places, *elsewhere))
    elif is_plain or runtime.has_nvidia or asking or any(asked) or _is_registered_only(snapshot):
        yield "nvidia-runtime-not-default-no-runtimeclass", _not_asked(said, runtime, asked, is_plain=is_plain)
    else:
        question = (
            "the device plugin's container has no libnvidia-ml.so.1: was it started without NVIDIA's runtime, or does "
            "that runtime look for the driver in another place?"
        )
        yield "nvidia-runtime-not-default-no-runtimeclass", Doubt(question, _WHICH_RUNTIME, said, _NO_LIBRARY_CAUSES)


_WHICH_RUNTIME: Final = (
    "on the node `containerd config dump | grep -E 'default_runtime_name|nvidia'` (or `docker info`), and "
    "`kubectl get daemonset -A -o yaml | grep runtimeClassName`"
)
_NO_LIBRARY_CAUSES: Final = (
    *("device-plugin-library-not-found", "containerd-nvidia-runtime-missing", "k3s-runtime-config-overwritten"),
    *("nvidia-runtime-not-default-no-runtimeclass", "nested-node-config-not-applied", "driver-not-installed"),
)


_OF_HOST: Final = Pattern(r"\((?:on )?(?:the )?host\)\s*$")


def _is_in_force(snapshot: Snapshot, runtime: _Runtime) -> bool:
    """Whether what a file makes the default is what the node's pods run under, as far as that can be told of a file.

    One that does not describe the runtime that it names is a part of a file. Who says that a file is the host's has a
    node inside it. And docker's is not what a daemon has that was not restarted, or that the kubelet does not use.
    """
    found = [item for item in snapshot.items if _is_runtime(item) and item.where == "host"]
    is_dockers = bool(found) and all(item.kind == "file" and "docker" in item.subject for item in found)
    return bool(runtime.has_nvidia) and not is_dockers and not any(_OF_HOST.search(item.written) for item in found)


def _offers_gpus(snapshot: Snapshot) -> bool:
    """Whether the only node that is shown offers GPUs, all of them well: then older words of the plugin are past."""
    nodes = [node for node in snapshot.view(kube.nodes) if node.capacity or node.allocatable]
    offered = {name: amount.value for node in nodes for name, amount in node.allocatable.items()}
    all_well = all(offered.get(name, 0) >= amount.value for node in nodes for name, amount in node.capacity.items())
    return len(nodes) == 1 and all_well and any(offered.values())


def _is_registered_only(snapshot: Snapshot) -> bool:
    """Whether a runtime class or the command that adds the handler shows it, and nothing made it the default."""
    typed = any(_REGISTERED_ONLY.search(item.written) for item in snapshot.items)
    return typed or bool(kube.runtime_classes(snapshot) or kube.said(snapshot, _REGISTERED_ONLY, "nvidia-ctk"))


def _asked(snapshot: Snapshot) -> list[kube.Pod]:
    """The pods that show which runtime they ask for: the plugin's, else any."""
    shown = [pod for pod in snapshot.view(kube.pods) if pod.runtime_class is not None]
    return [pod for pod in shown if pod.is_device_plugin] or shown


_BARE: Final = Pattern(
    r"nvidia-smi\\?[\"']?: (?:(?:command |executable file )?not found|no such file or directory)"
    r"|CUDA driver version is insufficient"
    r"|NVIDIA Driver was not detected|Found no NVIDIA driver|no CUDA-capable device"
)


_IN_POD: Final = Pattern(r"\bkubectl\b|\bpods?\b|\boc (?:exec|rsh)\b")


def _bare_pods(snapshot: Snapshot) -> tuple[Citation, ...]:
    """What a pod with a GPU complains of where nothing of the driver was mounted into it."""
    return tuple(
        citation
        for item in snapshot.items
        if item.kind.startswith("kubernetes") or (item.where == "container" and _IN_POD.search(item.written))
        for citation in lines_with(item, _BARE)
    )


def _no_driver(snapshot: Snapshot) -> bool:
    """Whether the node itself has no working driver: then the plugin's complaint follows from that."""
    states = {state for state, _ in snapshot.view(driver.smi)}
    is_loaded = modules.loaded(snapshot, "nvidia")
    if "works" in states:
        return False
    if states & {"no-driver", "mismatch"} or is_loaded is False:
        return True
    # A driver of a pod has no nvidia-smi on the host's path, nor have systems that are one image.
    return "missing" in states and not is_loaded and not _odd(snapshot)


def _odd(snapshot: Snapshot) -> bool:
    return any(_ODD_SYSTEM.search(item.text[:20_000]) or "talosctl" in item.written for item in snapshot.items)


def _reads_another_file(snapshot: Snapshot) -> bool:
    """Whether k3s or RKE2 runs containerd, and the file that was configured is the one that they do not read."""
    usual = containerd.file(snapshot, CONFIG)
    is_meant = usual is not None and (
        any(name.startswith("nvidia") for name in (*usual.handlers, *usual.binaries))
        or (usual.default is not None and usual.default.value.startswith("nvidia"))
    )
    return is_meant and snapshot.view(containerd.product) in {"k3s", "rke2"}


def _elsewhere(snapshot: Snapshot) -> Iterator[Citation]:
    for item in snapshot.items:
        if item.where != "host" or not item.is_seen:
            continue
        if _ELSEWHERE.search(item.subject) and item.outcome == "ok" and "nvidia" in item.text:
            yield cite(item, 1)
        for number, line in enumerate(item.lines[:2000], 1):
            match = _ELSEWHERE.search(line)
            if (match and re.search(r"libnvidia-ml|nvidia-smi|[Dd]river", line)) or _ODD_SYSTEM.search(line):
                yield cite(item, number)
                break


def _elsewhere_proof(said: tuple[Citation, ...], *, under: bool, places: Iterable[Citation]) -> Proof:
    cited = tuple(dict.fromkeys((*said, *places)))
    if under:
        summary = (
            "the device plugin runs under NVIDIA's runtime and still has no libnvidia-ml.so.1: the runtime, or the "
            "plugin's driver root, looks where the driver is not"
        )
        ruled_out = ("nvidia-runtime-not-default-no-runtimeclass: the runtime is the default one, or is asked for",)
        return Proof(summary, cited, "likely", ruled_out)
    summary = "the driver's libraries stand in a place of their own, where the device plugin does not look for them"
    return Proof(summary, cited, "likely")


def _not_asked(
    said: tuple[Citation, ...],
    runtime: _Runtime,
    asked: list[kube.Pod],
    *,
    is_plain: bool,
    who: str = "the device plugin",
) -> Proof:
    pods = tuple(pod.citation for pod in asked if pod.citation)
    cited = (*said, *runtime.citations, *pods)
    if not is_plain:
        return Proof(f"{who} sees no driver: its pod was not started under NVIDIA's runtime", cited, "likely")
    why = f"pods that ask for no runtime class run under {runtime.default}, and this one does not ask for NVIDIA's"
    is_sure = bool(asked) and runtime.has_nvidia
    return Proof(f"{who} sees no driver: {why}", cited, "certain" if is_sure else "likely")


# Health.

_UNHEALTHY: Final = Pattern(
    r"marked unhealthy|(?:will go|is|went|as) unhealthy|Marking (?:it|device|.{0,60}) (?:as )?unhealthy"
    r"|XidCriticalError|device went unhealthy",
    re.IGNORECASE,
)
_OF_GPU: Final = Pattern(r"GPU|MIG-|nvidia|Xid|all devices")
_XID: Final = Pattern(r"\bXid[= :]+(?P<xid>\d+)", re.IGNORECASE)
_HEALTH_LOST: Final = Pattern(r"previously allocated devices are no longer healthy")


def _health_said(snapshot: Snapshot) -> tuple[Citation, ...]:
    """What the plugin said of a GPU's health; the refusals of the kubelet are another matter."""
    said = kube.said(snapshot, _UNHEALTHY, "nhealthy", "XidCritical")
    return tuple(one for one in said if _OF_GPU.search(one.line) and not _NONE_HEALTHY.search(one.line))


def _health(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    said = snapshot.view(_health_said)
    fewer = tuple(_fewer(snapshot))
    if not fewer and (not said or _offers_gpus(snapshot)):
        return
    places = tuple(place for _, place in fewer)
    counts = fewer[0][0] if fewer else "the device plugin calls a GPU unhealthy and gives it to no new pod"
    xids = sorted({int(match["xid"]) for one in said for match in _XID.finditer(one.line)})
    because = f", after Xid {', '.join(map(str, xids))}" if xids else ""
    ruled_out = ("the plugin is not registered: then the capacity would be 0, too",) if fewer else ()
    yield "device-plugin-marked-unhealthy", Proof(f"{counts}{because}", (*places, *said), "certain", ruled_out)


def _is_unhealthy(snapshot: Snapshot) -> bool:
    return any(True for _ in snapshot.view(_health_said)) or any(_fewer(snapshot))


def _fewer(snapshot: Snapshot) -> Iterator[tuple[str, Citation]]:
    for node in snapshot.view(kube.nodes):
        for name, capacity in node.capacity.items():
            healthy = node.allocatable.get(name)
            if healthy is not None and healthy.value < capacity.value:
                bad = capacity.value - healthy.value
                summary = (
                    f"{bad} of {capacity.value} {name} are unhealthy to the device plugin, {healthy.value} can be given"
                )
                yield summary, healthy.citation
                yield "", capacity.citation


# Admission by the kubelet.

_NONE_HEALTHY: Final = Pattern(r"no healthy devices present|cannot allocate unregistered device")
_LESS: Final = Pattern(
    rf"requested number of devices unavailable for (?P<resource>{kube.RESOURCE})\.? "
    r"Requested: ?(?P<wanted>\d+), Available: ?(?P<left>\d+)"
)
_REGISTERED: Final = Pattern(r"Registration Request received for device plugin|Got registration request")
_ADMISSION: Final = Pattern(r"UnexpectedAdmissionError|Allocate failed due to|Pod was rejected: Allocate failed")
_DEVICE: Final = Pattern(r"\b(?:devices?|unavailable for) (?P<name>[\w.-]+\.[a-z]{2,}/[\w.-]+)")
_LOST_GPU: Final = Pattern(r"GPU is lost|GetPreferredAllocation rpc failed|rpc error")
_KUBELET_RESTARTED: Final = Pattern(
    r"systemctl restart (?:kubelet|k3s|rke2|snap\.microk8s)|service kubelet restart|restart(?:ed|ing)? (?:the )?kubelet"
    r"|kubelet (?:was |is )?restart(?:ed|s)?\b|Stopp(?:ed|ing) .{0,40}(?:kubelet|Node Agent)|pkill kubelet"
    r"|kubelet\.service: (?:Succeeded|Deactivated|Main process exited|Scheduled restart)",
    re.IGNORECASE,
)
_BOOTED: Final = Pattern(
    r"\brebooted\b|\brebooting\b|(?:after|since) (?:a |the |node )?reboot|system boot|^-- (?:Boot|Reboot) ",
    re.IGNORECASE | re.MULTILINE,
)
_FORCED: Final = Pattern(r"delete pods? .{0,80}--force|--grace-period[= ]0|force[- ]delet", re.IGNORECASE)
# Kubernetes 118559 and its backports; 124345 (init containers) and 117955 (completed pods) are open after them.
_FIXED: Final = {25: 14, 26: 9, 27: 6}
_KUBELET: Final = Pattern(r"\bv1\.(?P<minor>\d{2})\.(?P<patch>\d+)")


def _admission(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """Which of three it is that the kubelet refuses a pod that the scheduler had placed."""
    refused = tuple(
        one
        for one in kube.said(snapshot, _ADMISSION, "Admission", "Allocate failed", logs=True)
        if not _LOST_GPU.search(one.line)
    )
    unready = kube.said(snapshot, _NONE_HEALTHY, "healthy devices", "unregistered", logs=True)
    fewer = kube.said(snapshot, _LESS, "devices unavailable", logs=True)
    stale = tuple(_stale(snapshot))
    if not (refused or unready or fewer) or _is_past(snapshot, (*refused, *unready, *fewer)):
        return
    lost = kube.said(snapshot, _HEALTH_LOST, "no longer healthy", logs=True)
    cited = tuple(dict.fromkeys((*unready, *fewer, *lost, *refused)))
    if not _is_about_gpus(cited):
        return
    booted = _boots(snapshot)
    restarted = () if booted else _restarts(snapshot)
    if fewer and not booted:
        stale = (*stale, *(cite(item) for item in _cures(snapshot)))
    if fewer and not (stale or restarted or booted) and (given := _gives_gpus_first(snapshot)):
        question = "the kubelet has no GPU left for a pod whose init containers have one: was it restarted meanwhile?"
        look_at = "systemctl show kubelet -p ActiveEnterTimestamp; journalctl -u kubelet around that time"
        yield "kubelet-stale-device-allocation", Doubt(question, look_at, (*cited, *given), _OF_ADMISSION)
    elif stale or (fewer and not restarted and not booted):
        yield "kubelet-stale-device-allocation", _stale_proof(snapshot, cited, stale)
    elif restarted:
        yield "kubelet-restart-admission-bug", _restart_proof(snapshot, cited, restarted)
    elif (unready and not _is_unhealthy(snapshot)) or (booted and (refused or fewer or lost)):
        yield "device-plugin-not-ready-after-reboot", _reboot_proof(cited, booted, snapshot)
    elif (refused or lost) and not _is_unhealthy(snapshot):
        question = "the kubelet refused a pod that the scheduler had given a GPU; why is not shown"
        look_at = "kubectl describe pod, its Message; journalctl -u kubelet around that time"
        yield "device-plugin-not-ready-after-reboot", Doubt(question, look_at, cited, _OF_ADMISSION)


_OF_ADMISSION: Final = (
    "device-plugin-not-ready-after-reboot",
    "kubelet-restart-admission-bug",
    "kubelet-stale-device-allocation",
)


# Its containers begin where the line is not indented as deep.
_GIVEN_FIRST: Final = Pattern(r"^[ \t]*Init Containers:", re.MULTILINE)
_CONTAINERS: Final = Pattern(r"^[ \t]*Containers:", re.MULTILINE)


def _gives_gpus_first(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Where a pod is shown whose init containers ask for a GPU: a restarted kubelet counts theirs twice."""
    found = list[Citation]()
    for item in snapshot.of("kubernetes-pod", "kubernetes"):
        for match in _GIVEN_FIRST.finditer(item.text):
            end = _CONTAINERS.search(item.text, match.end())
            if "nvidia.com/" in item.text[match.end() : end.start() if end else None]:
                found.append(cite(item, item.number_at(match.start())))
    return tuple(found)


def _is_past(snapshot: Snapshot, refusals: tuple[Citation, ...]) -> bool:
    """Whether only the node's logs tell of refused pods, and none of the pods that are shown is one."""
    rows = snapshot.view(kube.rows)
    logs = {item.key for item in snapshot.of("unit-log", "journal")}
    is_shown = any("Admission" in row.status or "OutOf" in row.status for row in rows)
    return bool(rows) and not is_shown and all(place.key in logs for place in refusals)


def _is_about_gpus(cited: tuple[Citation, ...]) -> bool:
    """Whether no other sort of device is named: most messages name one."""
    named = [match["name"] for one in cited for match in _DEVICE.finditer(one.line)]
    return not named or any(name.startswith("nvidia.com/") for name in named)


_UP: Final = Pattern(r"\bup\s+(?:(?P<days>\d+) days?|(?P<minutes>\d+) min|(?P<hours>\d+):\d\d|\d+ weeks?|\d+ hours?)")
_SINCE: Final = Pattern(
    r"^[ \t]*Active: active \(running\) since .{0,60}; (?:\d+h )?(?:\d+min ?)?(?:\d+s)? ?ago", re.MULTILINE
)


def _boots(snapshot: Snapshot) -> tuple[Citation, ...]:
    """That the node itself came up a short while before."""
    up = (
        cite(item, 1)
        for item in snapshot.items
        if "uptime" in item.written and (match := _UP.search(item.text)) and match["minutes"]
    )
    return (*snapshot.said(_BOOTED), *up)


def _restarts(snapshot: Snapshot) -> tuple[Citation, ...]:
    """That the kubelet was restarted while the node stayed up, by the journal or by a command that was typed."""
    typed = tuple(
        stated(item.written, "that was run", item.key)
        for item in snapshot.items
        if _KUBELET_RESTARTED.search(item.written) and item not in _cures(snapshot)
    )
    is_up_long = any(
        "uptime" in item.written and (match := _UP.search(item.text)) and not match["minutes"]
        for item in snapshot.items
    )
    younger = (
        citation
        for item in snapshot.of("unit-status")
        if is_up_long and item.subject in _KUBELETS
        for citation in lines_with(item, _SINCE)
    )
    old = (citation for citation in _versions(snapshot) if _has_bug(citation.line))
    return (*typed, *snapshot.said(_KUBELET_RESTARTED), *younger, *old)


def _cures(snapshot: Snapshot) -> tuple[Item, ...]:
    """Where the kubelet was restarted and pods run after that: then it is no restart that broke them."""
    typed = (item for item in snapshot.items if _KUBELET_RESTARTED.search(item.written))
    return tuple(item for item in typed if _RUNS.search(item.text) and not _ADMISSION.search(item.text))


_RUNS: Final = Pattern(r"\b[1-9]/[1-9]\s+Running\b|\b(?:is|are) running\b|^pod/\S+ created$", re.MULTILINE)
_KUBELETS: Final = frozenset({"kubelet.service", "k3s.service", "k3s-agent.service", "rke2-agent.service"})


def _versions(snapshot: Snapshot) -> Iterator[Citation]:
    """Where the kubelet's version stands."""
    for item in snapshot.items:
        if item.kind.startswith("kubernetes") or "kubelet" in item.written:
            yield from tuple(lines_with(item, _KUBELET))[:1]


def _restart_proof(snapshot: Snapshot, cited: tuple[Citation, ...], restarted: tuple[Citation, ...]) -> Proof:
    old = next((match for place in _versions(snapshot) if (match := _KUBELET.search(place.line))), None)
    of = f" {old[0]}" if old else ""
    summary = (
        f"the kubelet{of} was restarted and admitted anew the pods that it had already admitted, before the device "
        "plugin was registered again"
    )
    ruled_out = ("device-plugin-not-ready-after-reboot: nothing shows that the node itself was rebooted",)
    is_sure = bool(old and _has_bug(old[0])) and any(_KUBELET_RESTARTED.search(place.words) for place in restarted)
    return Proof(summary, (*cited, *restarted), "certain" if is_sure else "likely", ruled_out)


def _has_bug(version: str) -> bool:
    match = _KUBELET.search(version)
    if match is None:
        return False
    minor, patch = int(match["minor"]), int(match["patch"])
    return minor in _FIXED and patch < _FIXED[minor]


def _reboot_proof(cited: tuple[Citation, ...], booted: tuple[Citation, ...], snapshot: Snapshot) -> Proof:
    registered = kube.said(snapshot, _REGISTERED, "egistration", logs=True)
    summary = (
        "after its start the kubelet took up the pods that have a GPU before the device plugin had told it of any: no "
        "device was healthy yet"
    )
    certain = bool(booted and cited)
    return Proof(summary, (*cited, *booted[:3], *registered[:2]), "certain" if certain else "likely")


def _stale(snapshot: Snapshot) -> Iterator[Citation]:
    """Entries of the kubelet's record whose pods are gone, where the pods of the node were shown with their UIDs."""
    alive = {pod.uid for pod in snapshot.view(kube.pods) if pod.uid}
    alive |= {uid for item in snapshot.items if _lists_pods(item) for uid in _uids(item)}
    held = [one for one in snapshot.view(kube.allocations) if one.resource.startswith("nvidia.com/")]
    if gone := [one for one in held if _was_sought_in_vain(snapshot, one.pod_uid)]:
        yield from (one.citation for one in gone)
        return
    if alive:
        yield from (one.citation for one in held if one.pod_uid not in alive)
        return
    used = [one.value for node in snapshot.view(kube.nodes) for one in node.allocated.values()]
    if held and used and not any(used):
        yield from (one.citation for one in held)


def _was_sought_in_vain(snapshot: Snapshot, uid: str) -> bool:
    """Whether somebody looked for the pod by its identifier, in the cluster or in the runtime, and found none."""
    begin = uid.partition("-")[0]
    asked = (item for item in snapshot.items if begin in item.written and item.kind in _ASKS_FOR_PODS)
    return any(item.text.strip() in {"", "0", "No resources found"} for item in asked if not item.source.is_mixed)


_ASKS_FOR_PODS: Final = frozenset({"kubernetes-pod", "kubernetes", "crictl", "container-inspect"})


def _lists_pods(item: Item) -> bool:
    """Whether it names the node's pods by their identifiers, as kubectl does when asked, and the kubelet's folder."""
    return "uid" in item.written.lower() or "/var/lib/kubelet/pods" in item.written


def _uids(item: Item) -> Iterator[str]:
    if "PodDeviceEntries" not in item.text:
        yield from re.findall(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", item.text)


def _stale_proof(snapshot: Snapshot, cited: tuple[Citation, ...], stale: tuple[Citation, ...]) -> Proof:
    free = [
        node
        for node in snapshot.view(kube.nodes)
        for name, amount in node.allocatable.items()
        if (used := node.allocated.get(name)) is not None and used.value < amount.value
    ]
    match = next((match for place in cited if (match := _LESS.search(place.line))), None)
    left = f": it has {match['left']} left where {match['wanted']} are asked for" if match else ""
    if stale:
        summary = f"the kubelet still counts GPUs as given to pods that no longer exist{left}"
    else:
        summary = f"the scheduler has GPUs free on this node that the kubelet counts as taken{left}"
    forced = kube.said(snapshot, _FORCED, "force", "--grace")
    return Proof(summary, (*cited, *stale, *forced), "certain" if stale or free else "likely")


# Time-slicing.

_REPLICAS: Final = Pattern(r"[\"']?\breplicas[\"']?\s*[:=]\s*(?P<count>\d+)")
_SHARING: Final = Pattern(r"timeSlicing|time[-_ ]?slic|\bmps\b|sharing\.", re.IGNORECASE)
_EMPTY: Final = Pattern(r"[\"']timeSlicing[\"']\s*:\s*(?:\{\s*\}|null)")
_PRINTED: Final = Pattern(r"Running with config|[\"']sharing[\"']\s*:\s*\{")
_STATIC: Final = Pattern(r"deployments/static/|(?:apply|create) -f \S*nvidia-device-plugin[\w.-]*\.ya?ml")
_LABEL_CONFIG: Final = "nvidia.com/device-plugin.config"
_BY_ENVIRONMENT: Final = Pattern(r"envFrom\s*:|configMapRef\s*:")
_WISH: Final = Pattern(
    r"devicePlugin\.config\.name|config\.default=|--set-file config\.map|config\.name=|time-slicing-config|time-sliced",
)


def _time_slicing(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    wished = tuple(_wished(snapshot))
    if not wished:
        return
    printed = tuple(_printed_empty(snapshot))
    undone = tuple(_undivided(snapshot))
    if not printed and not undone:
        return
    why = _why_undivided(snapshot)
    summary = f"sharing of GPUs is configured and the running device plugin does not do it: {why}"
    certain = bool(printed)
    yield (
        "time-slicing-config-not-applied",
        Proof(
            summary, (*wished, *printed, *undone), "certain" if certain else "likely", remedy=tuple(_slicing(snapshot))
        ),
    )


def _wished(snapshot: Snapshot) -> Iterator[Citation]:
    for node in snapshot.view(kube.nodes):
        if place := node.labels.get(_LABEL_CONFIG):
            yield place
    for item in snapshot.items:
        if _is_config(item):
            yield from lines_with(item, _REPLICAS)
        elif _WISH.search(item.written):
            yield stated(item.written, "that was run", item.key)
    yield from kube.said(snapshot, _WISH, "config.", "time-slic")[:2]
    for item in snapshot.of("text", "kubernetes", "application"):
        if _LABEL_CONFIG in item.text and "label" in item.text:
            yield from lines_with(item, Pattern(re.escape(_LABEL_CONFIG)))


def _is_config(item: Item) -> bool:
    """Whether it is a configuration with replicas, not what the plugin printed of its own."""
    text = item.text
    if "replicas" not in text or not item.is_seen:
        return False
    return bool(_SHARING.search(text) and _REPLICAS.search(text)) and not (_PRINTED.search(text) and '"' in text)


def _printed_empty(snapshot: Snapshot) -> Iterator[Citation]:
    for item in snapshot.items:
        if item.is_seen and "timeSlicing" in item.text:
            yield from lines_with(item, _EMPTY)


def _undivided(snapshot: Snapshot) -> Iterator[Citation]:
    """A node that still offers as many as it has GPUs, or fewer than the configuration asks for."""
    wanted = [int(m["count"]) for item in snapshot.items if _is_config(item) for m in _REPLICAS.finditer(item.text)]
    for node in snapshot.view(kube.nodes):
        count = node.values.get("nvidia.com/gpu.count", "")
        for name, amount in node.capacity.items():
            physical = int(count) if count.isdigit() else 0
            is_whole = amount.value == physical or (wanted and 0 < amount.value < min(wanted))
            if name == "nvidia.com/gpu" and (is_whole or (not wanted and not physical and amount.value == 1)):
                yield amount.citation
        if node.values.get("nvidia.com/gpu.replicas") in {"0", "1"} and "nvidia.com/gpu.replicas" in node.labels:
            yield node.labels["nvidia.com/gpu.replicas"]


def _is_static(snapshot: Snapshot) -> bool:
    typed = any(_STATIC.search(item.written) for item in snapshot.items)
    return typed or bool(kube.said(snapshot, _STATIC, "deployments/static", "apply", "create"))


def _why_undivided(snapshot: Snapshot) -> str:
    if _is_static(snapshot):
        return "it comes from the static manifest, which mounts no configuration"
    if any("device-plugin" in item.text and _BY_ENVIRONMENT.search(item.text) for item in snapshot.items):
        return "its pod takes the ConfigMap as environment variables, where it reads a file"
    return "it was started without that configuration, or has not been restarted since"


def _slicing(snapshot: Snapshot) -> Iterator[Fix]:
    if _is_static(snapshot):
        command = "kubectl -n kube-system delete daemonset nvidia-device-plugin-daemonset"
        yield run("remove", "remove the daemon set of the static manifest, so that the configured one serves", command)
        yield restart_plugin("restart the configured device plugin")
        return
    text = (
        "give the plugin the configuration as a file: by its chart's config.map, or by config.name and config.default"
    )
    yield by_hand("configure", text)
    yield restart_plugin("restart the device plugin: it does not watch the ConfigMap's content")


# Remedies.


def _find_library(snapshot: Snapshot) -> Iterable[Fix]:
    places = " ".join(place.line for place in _elsewhere(snapshot))
    if match := _ROOT.search(places):
        yield set_driver_root(f"tell the device plugin that the driver stands in {match[0]}", match[0])
    elif not snapshot.view(_runtime).default.startswith("nvidia"):
        yield set_runtime_class("let the device plugin run under NVIDIA's runtime")
    else:
        yield by_hand("configure", "name the driver's root to the toolkit (root in its config.toml) and to the plugin")
    yield run(
        "inspect",
        "look where the driver's library is, and whether the runtime finds it",
        "sudo nvidia-container-cli list --libraries || ldconfig -p | grep libnvidia-ml",
    )
    yield restart_plugin()


_REGISTERING: Final = Pattern(r"\b(?:nvidia-ctk|gpunode ctk) runtime configure\b")


def _was_registered(snapshot: Snapshot) -> bool:
    """Whether somebody typed the command that registers the runtime, so that it need not be typed again."""
    typed = (item for item in snapshot.of("text", "nvidia-ctk") if item.where == "host")
    return any(_REGISTERING.search(f"{item.written}\n{item.text}") for item in typed)


def _ask_for_runtime(snapshot: Snapshot) -> Iterable[Fix]:
    if snapshot.view(_runtime).has_nvidia or _was_registered(snapshot):
        yield set_runtime_class("let the device plugin ask for NVIDIA's runtime")
    else:
        register = command(
            "sudo", "gpunode", "ctk", "runtime", "configure", f"--runtime={engine(snapshot)}", "--restart"
        )
        yield run("configure", "register NVIDIA's runtime with the container runtime", register)
        yield set_runtime_class("let the device plugin ask for it")
    yield by_hand("configure", "give pods that use a GPU the same runtimeClassName, or make nvidia the default runtime")


def _heal(_: Snapshot) -> Iterable[Fix]:
    yield plugin_logs("find out which GPU, and which Xid, the device plugin speaks of, and treat that")
    yield run("inspect", "look for the GPU's own complaints", "sudo dmesg | grep -E 'NVRM|Xid'")
    yield restart_plugin("restart the device plugin: it never calls a GPU healthy again by itself", "the GPU works")


def _readmit(_: Snapshot) -> Iterable[Fix]:
    yield restart_failed_pods("delete the refused pods that have a controller, which makes them anew")
    yield by_hand(
        "configure", "give the device plugin the priority class system-node-critical, so that it starts first"
    )


def _update_kubelet(_: Snapshot) -> Iterable[Fix]:
    yield restart_failed_pods("delete the refused pods that have a controller, which makes them anew")
    yield by_hand("install", "bring the kubelet to 1.25.14, 1.26.9, 1.27.6, 1.28 or newer")


_CHECKPOINT: Final = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
_UNITS: Final = {"k3s": "k3s", "rke2": "rke2-agent", "k0s": "k0sworker", "microk8s": "snap.microk8s.daemon-kubelite"}


def _kubelet_unit(snapshot: Snapshot) -> str:
    """The unit that runs the kubelet: where the node was not looked at, the product's usual one."""
    kubelet = snapshot.facts.kubelet
    if isinstance(kubelet, Known) and kubelet.value is not None and kubelet.value.unit:
        unit = kubelet.value.unit.removesuffix(".service")
        return unit if is_unit(unit) else "kubelet"
    return _UNITS.get(snapshot.view(containerd.product), "kubelet")


def _forget(snapshot: Snapshot) -> Iterable[Fix]:
    unit = _kubelet_unit(snapshot)
    yield restart(unit, "restart the kubelet, which reads anew what its pods hold")
    yield restart_failed_pods("delete the refused pods")
    yield run(
        "remove",
        "move the kubelet's record away while it is stopped; it makes a new one of the pods that run",
        " && ".join(
            (
                command("sudo", "systemctl", "stop", unit),
                command("sudo", "mv", _CHECKPOINT, f"{_CHECKPOINT}.bak"),
                command("sudo", "systemctl", "start", unit),
            )
        ),
        when="the devices are still held after the restart, and no pod with a GPU runs on the node",
    )


FAMILY: Final = Family(
    "plugin",
    "the device plugin",
    (
        Rule(
            cause="device-plugin-library-not-found",
            layer="kubernetes",
            storey="kubernetes",
            severity="error",
            disruption="restart-container",
            title="the device plugin does not find the driver's library",
            story=(
                "The device plugin loads libnvidia-ml.so.1 to count the GPUs. Its image does not hold it: NVIDIA's "
                "container runtime mounts it from the host. Where the runtime does so and the plugin still misses it, "
                "one of the two looks in the wrong root: drivers of GKE stand in /home/kubernetes/bin/nvidia or "
                "/opt/nvidia, a driver container's in /run/nvidia/driver, those of WSL in /usr/lib/wsl, those of Talos "
                "and NixOS in trees of their own. The plugin then runs, or restarts again and again, and the node "
                "offers no nvidia.com/gpu."
            ),
            sources=(
                f"{DEVICE_PLUGIN}/issues/1371",
                f"{DEVICE_PLUGIN}/issues/478",
                "https://github.com/siderolabs/talos/issues/12103",
            ),
            check=only("device-plugin-library-not-found", _no_library),
            remedy=_find_library,
            explains=frozenset({"device-plugin-not-ready-after-reboot", "gpu-labels-without-capacity"}),
        ),
        Rule(
            cause="nvidia-runtime-not-default-no-runtimeclass",
            layer="kubernetes",
            storey="kubernetes",
            severity="error",
            disruption="restart-service",
            title="the device plugin's pod does not run under NVIDIA's runtime",
            story=(
                "The container runtime knows a handler nvidia, and uses it only for pods that ask for it by a "
                "RuntimeClass, unless it is the default. The device plugin's pod asks for none, so it is started by "
                "runc, without the driver's libraries and devices. It says that NVML was not found and that the "
                "strategy or platform is incompatible; the driver and `nvidia-smi` on the host are fine. The static "
                "manifest and older charts ask for no runtime class."
            ),
            sources=(
                f"{DEVICE_PLUGIN}/issues/1220",
                f"{DEVICE_PLUGIN}/issues/406",
                "https://kubernetes.io/docs/concepts/containers/runtime-class/",
            ),
            check=only("nvidia-runtime-not-default-no-runtimeclass", _no_library),
            remedy=_ask_for_runtime,
            explains=frozenset(
                {
                    "device-plugin-library-not-found",
                    "device-plugin-not-ready-after-reboot",
                    # What CUDA says where it finds no driver at all.
                    "driver-too-old-for-image",
                    "gpu-labels-without-capacity",
                }
            ),
        ),
        Rule(
            cause="device-plugin-marked-unhealthy",
            layer="kubernetes",
            storey="kubernetes",
            severity="error",
            disruption="restart-container",
            title="the device plugin calls a GPU unhealthy",
            story=(
                "The device plugin watches the driver's events. After a critical Xid that is not on its short list of "
                "application faults it reports the GPU as unhealthy, and the kubelet takes it out of allocatable: the "
                "capacity stays, fewer can be given out, pods wait with Insufficient nvidia.com/gpu. Pods that have "
                "the GPU keep it. The plugin does not take its word back before it is restarted, even where the "
                "fault was the application's and the GPU is well."
            ),
            sources=(f"{DEVICE_PLUGIN}/issues/58", f"{DEVICE_PLUGIN}/issues/189", f"{DEVICE_PLUGIN}/issues/234"),
            check=only("device-plugin-marked-unhealthy", _health),
            remedy=_heal,
        ),
        Rule(
            cause="device-plugin-not-ready-after-reboot",
            layer="kubernetes",
            storey="kubernetes",
            severity="error",
            disruption="restart-container",
            title="pods were admitted after a reboot before the device plugin was registered",
            story=(
                "When a node comes up the kubelet starts the pods that are bound to it in no certain order. A pod with "
                "a GPU that comes before the device plugin has registered finds no healthy device, and is refused for "
                "good with UnexpectedAdmissionError. A controller makes a new pod; a bare pod stays failed. A minute "
                "later the plugin is there and the node looks healthy."
            ),
            sources=(f"{_KUBERNETES}/issues/125579", f"{_KUBERNETES}/issues/128043"),
            check=only("device-plugin-not-ready-after-reboot", _admission),
            remedy=_readmit,
        ),
        Rule(
            cause="kubelet-restart-admission-bug",
            layer="kubernetes",
            storey="kubernetes",
            severity="error",
            disruption="restart-container",
            title="the restarted kubelet refuses pods that it had already admitted",
            story=(
                "A kubelet that restarts admits its pods anew. Some releases asked for the devices of running pods "
                "again at once, while the device plugin had not yet registered with the new process, and failed pods "
                "that had been running well (fixed in 1.25.14, 1.26.9, 1.27.6 and 1.28). Completed pods, and pods "
                "whose init containers ask for a GPU too, are refused the same way in later releases. The node was "
                "not rebooted, and its GPUs are fine."
            ),
            sources=(
                f"{_KUBERNETES}/issues/118559",
                f"{_KUBERNETES}/issues/117955",
                f"{_KUBERNETES}/issues/124345",
            ),
            check=only("kubelet-restart-admission-bug", _admission),
            remedy=_update_kubelet,
        ),
        Rule(
            cause="kubelet-stale-device-allocation",
            layer="kubernetes",
            storey="kubernetes",
            severity="error",
            disruption="restart-service",
            title="the kubelet counts GPUs as given to pods that are gone",
            story=(
                "The kubelet keeps its own record of which device went to which pod, in memory and in "
                "kubelet_internal_checkpoint; the scheduler counts from the pods that exist. After pods were deleted "
                "by force, or failed while they were admitted, devices can stay on the kubelet's record. The scheduler "
                "then places a pod on a GPU that the kubelet does not have: requested number of devices unavailable. "
                "Every further pod fails the same way until the kubelet is restarted."
            ),
            sources=(f"{_KUBERNETES}/issues/130145", f"{_KUBERNETES}/issues/137317"),
            check=only("kubelet-stale-device-allocation", _admission),
            remedy=_forget,
        ),
        Rule(
            cause="time-slicing-config-not-applied",
            layer="kubernetes",
            storey="kubernetes",
            severity="error",
            disruption="restart-container",
            title="the running device plugin has not got the sharing configuration",
            story=(
                "Sharing of GPUs is a configuration file of the device plugin. The plugin that serves the node prints "
                "an empty sharing section and offers each GPU once: it comes from the static manifest, which mounts no "
                "file, or the ConfigMap is passed in a way it does not read, no default is named, or the file was "
                "changed after the plugin had started. Keys in the wrong place are dropped without a word."
            ),
            sources=(f"{DEVICE_PLUGIN}/issues/990", f"{DEVICE_PLUGIN}/issues/615", f"{DEVICE_PLUGIN}/issues/1433"),
            check=only("time-slicing-config-not-applied", _time_slicing),
            remedy=lambda snapshot: chain(_slicing(snapshot)),
        ),
    ),
)
