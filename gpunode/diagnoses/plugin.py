"""The device plugin and the kubelet's admission: no driver found, unhealthy GPUs, pods refused though scheduled."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.cluster import (
    delete_refused_pods,
    register_runtime_command,
    restart_plugin,
    set_runtime_class,
    show_plugin_logs,
)
from gpunode.diagnoses.commands import Shell, command, is_unit_name, join_commands
from gpunode.diagnoses.model import Citation, Fix, Rule
from gpunode.diagnoses.remedies import make_fixed_remedy, manual_step, restart_unit, run_step
from gpunode.diagnoses.signs import all_of, any_line, any_of, command_run, custom_sign, message_line, predicate, unless
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.diagnoses.views import driver, kubernetes_nodes, runtimes
from gpunode.facts.model import Known
from gpunode.facts.sources import SourceKind

_NVML_MISSING: Final = message_line(
    r"could not load NVML|NVML not detected|Detected non-NVML platform|ERROR_LIBRARY_NOT_FOUND"
    r"|libnvidia-ml\.so(?:\.1)?['\"’]?: cannot open shared object|libnvidia-ml\.so\.1: not found"
    r"|Failed to initialize NVML: could not",
    *("kubernetes-log", "kubernetes-pod"),
)
_PLUGIN_MENTIONED: Final = any_line(r"(?i)device-plugin|nvdp|gpu-feature|\bgfd\b|dcgm-exporter|hami")
# Versions 1.8 to 1.11 print the first message; later ones ask "did you configure …".
_PLUGIN_STRATEGY_REJECTED: Final = message_line(
    r"Failed to start nvml with error:\s+could not load NVML"
    r"|Incompatible (?:strategy|platform) detected|did you (?:configure the NVIDIA Container|set the docker default)"
    r"|invalid device discovery strategy|unable to create resource managers? to get plugins"
)
_ALL_GPUS_OFFERED: Final = predicate(kubernetes_nodes.offers_all_gpus, "the node offers all of its GPUs")
# If one node's plugin registered, the failure of another's may only mean that its node has no GPUs.
_PLUGIN_REGISTERED: Final = message_line(r"Registered device plugin (?:for|with) ", "kubernetes-log", "text")
_STRATEGY_STILL_REJECTED: Final = unless(
    _PLUGIN_STRATEGY_REJECTED, _ALL_GPUS_OFFERED, _PLUGIN_REGISTERED, symptoms.NVML_ITSELF_FAILS
)
_PLUGIN_WITHOUT_NVML: Final = unless(
    any_of(
        *(_NVML_MISSING, _PLUGIN_STRATEGY_REJECTED, all_of(symptoms.NO_NVML_LIBRARY, _PLUGIN_MENTIONED)),
        # DCGM's exporter
        all_of(message_line(r"Failed to initialize NVML"), message_line(r"DCGM initialization error")),
    ),
    *(_ALL_GPUS_OFFERED, _PLUGIN_REGISTERED, symptoms.NVML_ITSELF_FAILS),
)

# The runtime of the plugin's pod; the plugin's own pod takes precedence over other pods.

_RUNTIME_CLASS_KEY: Final = r"(?:runtimeClassName|Runtime Class Name)[\"']?\s*:\s*[\"']?"


def _pods_without_class(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield pods whose output would show a runtime class but shows none."""
    for item in snapshot.items_of("kubernetes-pod"):
        is_whole = not item.source.is_part and re.search(
            r"^(?:Tolerations|Events):|\bcontainers\"?:", item.text, re.MULTILINE
        )
        shows = item.source.lets_through("  runtimeClassName: nvidia") if item.source.pattern else is_whole
        if shows and item.text.strip() and not re.search(r"runtimeClassName|Runtime Class Name", item.text):
            yield cite(item, 1)


_NO_RUNTIME_CLASS: Final = any_of(
    custom_sign(_pods_without_class),
    message_line(rf"{_RUNTIME_CLASS_KEY}(?:null|none|[\"'])?\s*$", "kubernetes-pod", "kubernetes", "file"),
)
_DEFAULT_RUNTIME_KEY: Final = (
    r"(?:default_runtime(?:_name)?\s*=|\"default-runtime\"\s*:|Default Runtime:|\"defaultRuntimeName\"\s*:)\s*[\"']?"
)
_NVIDIA_IS_DEFAULT: Final = any_line(rf"{_DEFAULT_RUNTIME_KEY}nvidia")
_POD_USES_NVIDIA_RUNTIME: Final = unless(
    any_of(
        message_line(rf"^[ \t]*(?:- )?[\"']?{_RUNTIME_CLASS_KEY}nvidia", "kubernetes-pod", "kubernetes", "file"),
        _NVIDIA_IS_DEFAULT,
    ),
    _NO_RUNTIME_CLASS,
)
_NVIDIA_HANDLER_SEEN: Final = any_of(
    # In a configuration, and as a runtime class.
    message_line(r"nvidia-container-runtime\b", "file", "listing", "containerd-config"),
    any_line(
        r"runtimes\.[\"']?nvidia[\"']?\s*\]|^[ \t]*Runtimes:.*\bnvidia\b|\"runtimes\"\s*:\s*\{[\s\n]*\"nvidia"
        r"|^nvidia[a-z-]*[ \t]+nvidia[a-z-]*(?:\s|$)|^[ \t]*[\"']?handler[\"']?:\s*[\"']?nvidia"
    ),
)
_OTHER_DEFAULT_RUNTIME: Final = unless(any_line(rf"{_DEFAULT_RUNTIME_KEY}(?!nvidia)\w"), _NVIDIA_IS_DEFAULT)
_RUNTIME_CONFIGURE_RUN: Final = any_of(
    message_line(r"\b(?:nvidia-ctk|gpunode ctk) runtime configure\b"), command_run(r"\bruntime configure\b")
)
_UNUSUAL_DISTRIBUTION: Final = any_line(
    r"Talos|NixOS|Bottlerocket|Container-Optimized OS|Flatcar|Alpine Linux|siderolabs/|microsoft-standard-WSL"
)
# On an image-based system the driver is not on the host's path.
_NO_DRIVER: Final = unless(predicate(driver.is_broken, "the node itself has no working driver"), _UNUSUAL_DISTRIBUTION)


def _request_nvidia_runtime(snapshot: Snapshot) -> Iterable[Fix]:
    if not (
        snapshot.view(_NVIDIA_HANDLER_SEEN)
        or snapshot.view(_RUNTIME_CONFIGURE_RUN)
        or runtimes.containerd_product(snapshot) in {"k3s", "rke2"}
    ):
        yield run_step(
            "configure", "register NVIDIA's runtime with the container runtime", register_runtime_command(snapshot)
        )
    yield set_runtime_class("let the device plugin request NVIDIA's runtime")
    yield manual_step(
        "configure", "give pods that use a GPU the same runtimeClassName, or make nvidia the default runtime"
    )


# The driver's location. This is the root configured for the plugin; "/" fits a packaged driver.

_DRIVER_ROOT_SET: Final = message_line(
    r"nvidiaDriverRoot[\"']?\s*[:=]\s*[\"']?/[\w./-]+|NVIDIA_DRIVER_ROOT[\"']?[\s\n]*(?:[:=]|value:)\s*[\"']?/[\w./-]+"
)
_UNUSUAL_DRIVER_PATHS: Final = (
    r"/(?:opt/nvidia|home/kubernetes/bin/nvidia|run/nvidia/driver|usr/lib/wsl|run/current-system|run/opengl-driver"
    r"|nix/store|usr/local/glibc|usr/local/nvidia/(?!toolkit)|x86_64-bottlerocket|talos)"
)
_DRIVER_IN_UNUSUAL_PATH: Final = any_of(
    any_line(rf"{_UNUSUAL_DRIVER_PATHS}.{{0,80}}(?:libnvidia-ml|nvidia-smi|[Dd]river)"),
    command_run(_UNUSUAL_DRIVER_PATHS),
    _UNUSUAL_DISTRIBUTION,
    _DRIVER_ROOT_SET,
)
_LET_PLUGIN_FIND_LIBRARY: Final = make_fixed_remedy(
    manual_step(
        "configure",
        "set the driver's root in the device plugin (nvidiaDriverRoot) and in the toolkit (root in its config.toml)",
        when="the driver is not installed in /",
    ),
    set_runtime_class("let the device plugin run under NVIDIA's runtime"),
    run_step(
        "inspect",
        "check where the driver's library is, and whether the runtime finds it",
        Shell("sudo nvidia-container-cli list --libraries || ldconfig -p | grep libnvidia-ml"),
    ),
    restart_plugin(),
)


# Health.

_GPU_MARKED_UNHEALTHY: Final = message_line(
    r"(?i)^(?![^\n]*(?:no healthy devices present|cannot allocate))(?=[^\n]*(?:GPU|MIG-|nvidia|[Xx]id|all devices))"
    r"[^\n]*(?:marked unhealthy|(?:will go|is|went|as) unhealthy|Marking (?:it|device|.{0,60}) (?:as )?unhealthy"
    r"|XidCriticalError)"
)
UNHEALTHY: Final = any_of(
    unless(_GPU_MARKED_UNHEALTHY, _ALL_GPUS_OFFERED),
    custom_sign(lambda node: (one.citation for _, *both in kubernetes_nodes.unhealthy_resources(node) for one in both)),
)


# The kubelet's messages. Those about another vendor's devices, or about a lost GPU, have other causes.

_NO_HEALTHY_DEVICE_MESSAGE: Final = message_line(
    r"^(?![^\n]*\b(?!nvidia)[\w-]+\.com/)[^\n]*(?:no healthy devices present|cannot allocate unregistered device"
    r"|previously allocated devices are no longer healthy)"
)
_FEWER_DEVICES: Final = message_line(rf"requested number of devices unavailable for {kubernetes_nodes.RESOURCE}")
_POD_REJECTED_MESSAGE: Final = message_line(
    r"^(?![^\n]*(?:GPU is lost|GetPreferredAllocation rpc failed|rpc error|\b(?!nvidia)[\w-]+\.com/))"
    r"[^\n]*(?:UnexpectedAdmissionError|Allocate failed due to)"
)


_KUBERNETES_SOURCE_KINDS: Final[tuple[SourceKind, ...]] = (
    "kubernetes",
    "kubernetes-pod",
    "kubernetes-node",
    "text",
    "application",
)
_POD_REFUSED: Final = any_of(_NO_HEALTHY_DEVICE_MESSAGE, _FEWER_DEVICES, _POD_REJECTED_MESSAGE)


# Only the logs still mention it, and no listed pod was refused.
_PODS_RUN_AGAIN: Final = unless(
    message_line(r"^\S[^\n]*\s\d+/\d+\s+(?:Running|Completed)\s", *_KUBERNETES_SOURCE_KINDS),
    message_line(r"AdmissionError|OutOf|Allocate failed", *_KUBERNETES_SOURCE_KINDS),
)
_NODE_REBOOTED: Final = message_line(
    r"(?i)\brebooted\b|\brebooting\b|(?:after|since) (?:a |the |node )?reboot|system boot|^-- (?:Boot|Reboot) "
    r"|\bup\s+\d{1,2} min\b"
)
_KUBERNETES_NAMED: Final = any_line(r"(?i)\bkube\w*|\bpods?\b|\bk3s\b|\brke2\b|\bnvidia\.com/gpu")


_DELETE_REFUSED_PODS: Final = delete_refused_pods("delete the rejected pods; their controllers create new ones")

# Restarts of the kubelet: fixed by Kubernetes 118559 and its backports; 124345 (init containers) and 117955 (completed
# pods) are still open.

_KUBELET_RESTART_WORDS: Final = (
    r"systemctl restart (?:kubelet|k3s|rke2|snap\.microk8s)|service kubelet restart|restart(?:ed|ing)? (?:the )?kubelet"
    r"|kubelet (?:was |is )?restart(?:ed|s)?\b|pkill kubelet|Starting kubelet\."
)
# A restart that is said to have helped did not break anything.
_KUBELET_WAS_RESTARTED: Final = any_of(
    unless(command_run(_KUBELET_RESTART_WORDS), message_line(r"^pod/\S+ created")),
    message_line(
        r"(?i)^(?!.*(?:other node|work(?:s|ed)? again|help(?:s|ed)|fixe[sd]|solve[sd]|goes away|went away))"
        rf".*(?:{_KUBELET_RESTART_WORDS}|Stopp(?:ed|ing) .{{0,40}}(?:kubelet|Node Agent)"
        r"|kubelet\.service: (?:Succeeded|Deactivated|Main process exited|Scheduled restart))"
    ),
)


# A restarted kubelet admits its pods again, also those whose init containers request a GPU.
_POD_HAS_INIT_CONTAINERS: Final = message_line(r"^Init Containers:(?!\s*<none>)", "kubernetes-pod")
_KUBERNETES_WITH_BUG: Final = message_line(
    r"\bv1\.(?:25\.(?:\d|1[0-3])|26\.[0-8]|27\.[0-5])(?:[+-]\S+)?\b", "kubernetes-node", "kubernetes", "kubernetes-pod"
)


# The kubelet's checkpoint of allocations, and forced deletions that bypass the kubelet.

_STALE_ALLOCATION: Final = any_of(
    command_run(r"kubelet_internal_checkpoint|--force\b.*--grace-period|--grace-period.*--force"),
    any_line(r"PodDeviceEntries|kubelet_internal_checkpoint|delete pods? .*--(?:force|grace-period)"),
)


def _unassigned_gpus(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the GPUs that the scheduler has not assigned."""
    for node in snapshot.view(kubernetes_nodes.kube_nodes):
        for name, amount in node.allocatable.items():
            used = node.allocated.get(name)
            yield from (amount.citation, used.citation) if used is not None and used.value < amount.value else ()


_KUBELET_CHECKPOINT_FILE: Final = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
_KUBELET_UNIT_BY_PRODUCT: Final = {
    "k3s": "k3s",
    "rke2": "rke2-agent",
    "k0s": "k0sworker",
    "microk8s": "snap.microk8s.daemon-kubelite",
}


def _kubelet_unit(snapshot: Snapshot) -> str:
    """Return the unit that runs the kubelet; by default the product's usual unit."""
    kubelet = snapshot.facts.kubelet
    if isinstance(kubelet, Known) and kubelet.value is not None and kubelet.value.unit:
        unit = kubelet.value.unit.removesuffix(".service")
        return unit if is_unit_name(unit) else "kubelet"
    return _KUBELET_UNIT_BY_PRODUCT.get(snapshot.view(runtimes.containerd_product), "kubelet")


def _reset_checkpoint(snapshot: Snapshot) -> Iterable[Fix]:
    unit = _kubelet_unit(snapshot)
    yield restart_unit(unit, "restart the kubelet: it reads again which devices its pods hold")
    yield _DELETE_REFUSED_PODS
    stop, start = command("sudo", "systemctl", "stop", unit), command("sudo", "systemctl", "start", unit)
    move = command("sudo", "mv", _KUBELET_CHECKPOINT_FILE, f"{_KUBELET_CHECKPOINT_FILE}.bak")
    yield run_step(
        "remove",
        "move the kubelet's record away while it is stopped; it creates a new one from the running pods",
        join_commands(stop, Shell("&&"), move, Shell("&&"), start),
        when="the devices are still held after the restart, and no pod with a GPU runs on the node",
    )


_rule = partial(Rule, layer="kubernetes")

RULES: Final = (
    _rule(
        cause="device-plugin-library-not-found",
        disruption="restart-container",
        typical=any_of(
            unless(
                all_of(_PLUGIN_WITHOUT_NVML, any_of(_POD_USES_NVIDIA_RUNTIME, _DRIVER_IN_UNUSUAL_PATH)),
                all_of(_OTHER_DEFAULT_RUNTIME, _NO_RUNTIME_CLASS),
            ),
            message_line(r"NVIDIA_DRIVER_ROOT[\W\n]+(?:value: )?/(?!run/nvidia/driver)\w"),
        ),
        symptoms=(_PLUGIN_WITHOUT_NVML, symptoms.NO_GPUS_OFFERED, symptoms.POD_PENDING, symptoms.PLUGIN_FAILS),
        context=any_of(_POD_USES_NVIDIA_RUNTIME, _DRIVER_IN_UNUSUAL_PATH),
        against=(_NO_DRIVER, symptoms.NO_GPU_ON_BUS, symptoms.NVML_ITSELF_FAILS),
        look_at=(Shell("kubectl logs -n kube-system -l name=nvidia-device-plugin-ds --tail=30"),),
        share=2,
        remedy=_LET_PLUGIN_FIND_LIBRARY,
        explains=frozenset({"device-plugin-not-ready-after-reboot", "gpu-labels-without-capacity"}),
    ),
    _rule(
        cause="nvidia-runtime-not-default-no-runtimeclass",
        disruption="restart-service",
        decisive=unless(
            all_of(_PLUGIN_WITHOUT_NVML, _OTHER_DEFAULT_RUNTIME, _NO_RUNTIME_CLASS, _NVIDIA_HANDLER_SEEN),
            _POD_USES_NVIDIA_RUNTIME,
        ),
        typical=unless(
            any_of(
                _STRATEGY_STILL_REJECTED,
                all_of(
                    _PLUGIN_WITHOUT_NVML,
                    any_of(_OTHER_DEFAULT_RUNTIME, _NO_RUNTIME_CLASS, _NVIDIA_HANDLER_SEEN, _RUNTIME_CONFIGURE_RUN),
                ),
                all_of(symptoms.DRIVER_MISSING_IN_CONTAINER, any_of(_NVIDIA_HANDLER_SEEN, _NO_RUNTIME_CLASS)),
                all_of(
                    _NVIDIA_HANDLER_SEEN,
                    any_of(_NO_RUNTIME_CLASS, all_of(_OTHER_DEFAULT_RUNTIME, symptoms.PLUGIN_FAILS)),
                ),
            ),
            _POD_USES_NVIDIA_RUNTIME,
            unless(_DRIVER_IN_UNUSUAL_PATH, _NO_RUNTIME_CLASS, _NVIDIA_HANDLER_SEEN),
        ),
        may_be_normal=True,
        context=unless(
            any_of(_NVIDIA_HANDLER_SEEN, unless(_NO_RUNTIME_CLASS, symptoms.NOT_ENOUGH_GPUS), _RUNTIME_CONFIGURE_RUN),
            symptoms.NOTHING_FAILS,
        ),
        symptoms=(
            _PLUGIN_WITHOUT_NVML,
            symptoms.DRIVER_MISSING_IN_CONTAINER,
            symptoms.NO_GPUS_OFFERED,
            symptoms.POD_PENDING,
            symptoms.PLUGIN_FAILS,
        ),
        against=(
            _NO_DRIVER,
            *(symptoms.NO_GPU_ON_BUS, symptoms.NVML_ITSELF_FAILS),
            unless(symptoms.CONTAINER_WORKS, _PLUGIN_WITHOUT_NVML, symptoms.DRIVER_MISSING_IN_CONTAINER),
        ),
        look_at=(
            Shell("kubectl get runtimeclass"),
            Shell("kubectl logs -n kube-system -l name=nvidia-device-plugin-ds --tail=30"),
        ),
        share=5,
        remedy=_request_nvidia_runtime,
        explains=frozenset(
            {
                "device-plugin-library-not-found",
                "device-plugin-not-ready-after-reboot",
                # CUDA's error if it finds no driver at all.
                "driver-too-old-for-image",
                "gpu-labels-without-capacity",
            }
        ),
    ),
    _rule(
        cause="device-plugin-marked-unhealthy",
        disruption="restart-container",
        decisive=UNHEALTHY,
        symptoms=(UNHEALTHY, symptoms.POD_PENDING, symptoms.NOT_ENOUGH_GPUS, symptoms.POD_REFUSED, symptoms.ANY_XID),
        look_at=(
            Shell("kubectl describe nodes | grep -E 'nvidia.com/gpu'"),
            Shell("kubectl logs -n kube-system -l name=nvidia-device-plugin-ds --tail=30"),
        ),
        remedy=make_fixed_remedy(
            show_plugin_logs("find out which GPU and which Xid the device plugin reported, and fix that"),
            run_step("inspect", "look for the GPU's own errors", Shell("sudo dmesg | grep -E 'NVRM|Xid'")),
            restart_plugin("restart the device plugin: it never removes the mark by itself", "the GPU works"),
        ),
    ),
    _rule(
        cause="device-plugin-not-ready-after-reboot",
        disruption="restart-container",
        decisive=all_of(_POD_REFUSED, _NODE_REBOOTED),
        typical=unless(_NO_HEALTHY_DEVICE_MESSAGE, _KUBELET_WAS_RESTARTED, _KUBERNETES_WITH_BUG, _STALE_ALLOCATION),
        symptoms=(symptoms.POD_REFUSED,),
        context=any_of(all_of(_NODE_REBOOTED, _KUBERNETES_NAMED), message_line(r"Registration Request received")),
        against=(_PODS_RUN_AGAIN, unless(UNHEALTHY, _NODE_REBOOTED)),
        look_at=(Shell("kubectl get pods -A | grep Unexpected"), Shell("uptime")),
        share=2,
        remedy=make_fixed_remedy(
            _DELETE_REFUSED_PODS,
            manual_step("configure", "start the device plugin first: give it the priority class system-node-critical"),
        ),
    ),
    _rule(
        cause="kubelet-restart-admission-bug",
        disruption="restart-container",
        decisive=unless(all_of(_POD_REFUSED, _KUBELET_WAS_RESTARTED, _KUBERNETES_WITH_BUG), _STALE_ALLOCATION),
        typical=any_of(
            unless(
                all_of(_POD_REFUSED, any_of(_KUBELET_WAS_RESTARTED, _KUBERNETES_WITH_BUG, _POD_HAS_INIT_CONTAINERS)),
                _STALE_ALLOCATION,
            ),
            all_of(_KUBELET_WAS_RESTARTED, _KUBERNETES_WITH_BUG),
        ),
        symptoms=(symptoms.POD_REFUSED,),
        against=(_PODS_RUN_AGAIN, _NODE_REBOOTED),
        look_at=(Shell("kubectl get pods -A | grep Unexpected"), Shell("kubectl version")),
        share=2,
        remedy=make_fixed_remedy(
            _DELETE_REFUSED_PODS,
            manual_step("install", "upgrade the kubelet to 1.25.14, 1.26.9, 1.27.6, 1.28 or newer"),
        ),
    ),
    _rule(
        cause="kubelet-stale-device-allocation",
        disruption="restart-service",
        decisive=all_of(_POD_REFUSED, any_of(_STALE_ALLOCATION, all_of(_FEWER_DEVICES, custom_sign(_unassigned_gpus)))),
        typical=any_of(
            unless(_FEWER_DEVICES, _KUBELET_WAS_RESTARTED, _KUBERNETES_WITH_BUG, _POD_HAS_INIT_CONTAINERS),
            all_of(_STALE_ALLOCATION, custom_sign(_unassigned_gpus)),
        ),
        symptoms=(symptoms.POD_REFUSED, symptoms.POD_PENDING, symptoms.GPU_NOT_LISTED),
        context=_STALE_ALLOCATION,
        against=(_PODS_RUN_AGAIN, _NODE_REBOOTED),
        look_at=(Shell("sudo cat /var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"),),
        share=2,
        remedy=_reset_checkpoint,
    ),
)
