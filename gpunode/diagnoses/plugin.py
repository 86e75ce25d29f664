"""The device plugin: it does not find the driver, or it calls a GPU unhealthy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.addresses import DEVICE_PLUGIN
from gpunode.diagnoses.cluster import plugin_logs, restart_plugin, set_driver_root, set_runtime_class
from gpunode.diagnoses.commands import Shell, command
from gpunode.diagnoses.model import Citation, Doubt, Family, Fix, Proof, Rule, Verdict, only
from gpunode.diagnoses.remedies import by_hand, run
from gpunode.diagnoses.snapshot import Snapshot, cite, lines_with
from gpunode.diagnoses.views import containerd, device_health, driver, handlers, kube, modules, nested, pci
from gpunode.diagnoses.views.device_health import Fewer
from gpunode.diagnoses.views.engine import engine
from gpunode.diagnoses.views.handlers import Handlers
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern
from gpunode.runtimes.containerd_files import CONFIG

# The driver's library.

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
    if device_health.all_are_offered(snapshot):
        said = ()
    runtime = snapshot.view(handlers.shown)
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
    if runtime.default.startswith("nvidia") and not any(asked) and not handlers.is_in_force(snapshot, runtime):
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
    Shell("containerd config dump | grep -E 'default_runtime_name|nvidia'  # on the node; or docker info"),
    Shell("kubectl get daemonset -A -o yaml | grep runtimeClassName"),
)
_NO_LIBRARY_CAUSES: Final = (
    *("device-plugin-library-not-found", "containerd-nvidia-runtime-missing", "k3s-runtime-config-overwritten"),
    *("nvidia-runtime-not-default-no-runtimeclass", "nested-node-config-not-applied", "driver-not-installed"),
)


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
    runtime: Handlers,
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

_XID: Final = Pattern(r"\bXid[= :]+(?P<xid>\d{1,18})", re.IGNORECASE)


def _health(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    said = snapshot.view(device_health.said)
    fewer = tuple(device_health.fewer(snapshot))
    if not fewer and (not said or device_health.all_are_offered(snapshot)):
        return
    places = tuple(place for one in fewer for place in (one.healthy.citation, one.capacity.citation))
    counts = _counts(fewer[0]) if fewer else "the device plugin calls a GPU unhealthy and gives it to no new pod"
    xids = sorted({int(match["xid"]) for one in said for match in _XID.finditer(one.line)})
    because = f", after Xid {', '.join(map(str, xids))}" if xids else ""
    ruled_out = ("the plugin is not registered: then the capacity would be 0, too",) if fewer else ()
    yield "device-plugin-marked-unhealthy", Proof(f"{counts}{because}", (*places, *said), "certain", ruled_out)


def _counts(fewer: Fewer) -> str:
    capacity, healthy = fewer.capacity.value, fewer.healthy.value
    bad = capacity - healthy
    return f"{bad} of {capacity} {fewer.name} are unhealthy to the device plugin, {healthy} can be given"


# Remedies.


def _find_library(snapshot: Snapshot) -> Iterable[Fix]:
    places = " ".join(place.line for place in _elsewhere(snapshot))
    if match := _ROOT.search(places):
        yield set_driver_root(f"tell the device plugin that the driver stands in {match[0]}", match[0])
    elif not snapshot.view(handlers.shown).default.startswith("nvidia"):
        yield set_runtime_class("let the device plugin run under NVIDIA's runtime")
    else:
        yield by_hand("configure", "name the driver's root to the toolkit (root in its config.toml) and to the plugin")
    yield run(
        "inspect",
        "look where the driver's library is, and whether the runtime finds it",
        Shell("sudo nvidia-container-cli list --libraries || ldconfig -p | grep libnvidia-ml"),
    )
    yield restart_plugin()


_REGISTERING: Final = Pattern(r"\b(?:nvidia-ctk|gpunode ctk) runtime configure\b")


def _was_registered(snapshot: Snapshot) -> bool:
    """Whether somebody typed the command that registers the runtime, so that it need not be typed again."""
    typed = (item for item in snapshot.of("text", "nvidia-ctk") if item.where == "host")
    return any(_REGISTERING.search(f"{item.written}\n{item.text}") for item in typed)


def _ask_for_runtime(snapshot: Snapshot) -> Iterable[Fix]:
    if snapshot.view(handlers.shown).has_nvidia or _was_registered(snapshot):
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
    yield run("inspect", "look for the GPU's own complaints", Shell("sudo dmesg | grep -E 'NVRM|Xid'"))
    yield restart_plugin("restart the device plugin: it never calls a GPU healthy again by itself", "the GPU works")


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
            share=2,
            symptoms=(
                symptoms.NO_NVML_LIBRARY,
                symptoms.NO_CAPACITY,
                symptoms.POD_PENDING,
                symptoms.PLUGIN_FAILS,
            ),
            look_at=(Shell("kubectl logs -n kube-system -l name=nvidia-device-plugin-ds --tail=30"),),
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
            share=5,
            symptoms=(
                symptoms.NO_NVML_LIBRARY,
                symptoms.NO_CAPACITY,
                symptoms.POD_PENDING,
                symptoms.PLUGIN_FAILS,
            ),
            look_at=(
                Shell("kubectl get runtimeclass"),
                Shell("kubectl logs -n kube-system -l name=nvidia-device-plugin-ds --tail=30"),
            ),
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
            symptoms=(
                symptoms.POD_PENDING,
                symptoms.POD_REFUSED,
                symptoms.NO_CAPACITY,
                symptoms.ANY_XID,
            ),
            look_at=(
                Shell("kubectl describe nodes | grep -E 'nvidia.com/gpu'"),
                Shell("kubectl logs -n kube-system -l name=nvidia-device-plugin-ds --tail=30"),
            ),
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
    ),
)
