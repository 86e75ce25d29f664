"""Helm releases of the charts, with only the values that differ from the chart's."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gpunode import yaml
from gpunode.catalog.charts import chart
from gpunode.kubernetes.cluster_nodes import GKE_DRIVER_FOLDER, is_gke
from gpunode.kubernetes.model import GPU_PRESENT_LABEL, ChartRelease
from gpunode.kubernetes.objects import (
    DEVICE_PLUGIN_NAME,
    EXTRAS_WAVE,
    PLUGIN_WAVE,
    explain_static_cpus,
    has_usual_kubelet_root,
    kubelet_root,
    make_tolerations,
    mirror_image,
)
from gpunode.kubernetes.sharing import GpuStack, default_config, gpudirect_flags, plugin_config
from gpunode.kubernetes.user_pod import operator_uses_cdi
from gpunode.recipe.kubernetes import Kubernetes
from gpunode.wording import join_with_and

_NFD_IMAGE: Final = "registry.k8s.io/nfd/node-feature-discovery"


def _make_release(
    name: str, version: str, stack: GpuStack, values: Mapping[str, Any], why: str, wave: int
) -> ChartRelease:
    entry = chart(name)
    return ChartRelease(name, name, version or entry.version, entry.repository, stack.namespace, values, why, wave)


def _plugin_config_files(stack: GpuStack, strategies: Sequence[str] = ()) -> dict[str, Any]:
    """Return the content of the device plugin's configuration files, by name."""
    of_nodes = {
        name: [node for node in stack.nodes if stack.configs[node.name].name == name] for name in stack.plugin_configs
    }
    direct = stack.recipe.gpudirect
    return {
        name: yaml.render_document(plugin_config(config, of_nodes[name], direct, strategies))
        for name, config in sorted(stack.plugin_configs.items())
    }


def make_device_plugin(stack: GpuStack, strategies: Sequence[str]) -> ChartRelease:
    """Return NVIDIA's device plugin, with GPU Feature Discovery and the MPS daemon if needed."""
    desired, needed = stack.kubernetes, explain_static_cpus(stack.nodes)
    mps = any(config.mode == "mps" for config in stack.configs.values())
    gfd = desired.extras.gfd or mps
    values: dict[str, Any] = {
        **_runtime_class_value(desired),
        **_image_value(desired, "nvcr.io/nvidia/k8s-device-plugin"),
        "tolerations": make_tolerations(desired),
        "gfd": {"enabled": gfd},
        **({"compatWithCPUManager": True} if needed else {}),
        # Makes the chart mount the host's driver, for which the plugin writes its CDI specification (docs/cdi.md).
        **({"nvidiaDriverRoot": "/"} if strategies else {}),
    }
    if gfd:
        # The chart's own toleration only covers the value "present" (k8s-device-plugin issue 1934).
        worker = {"worker": {"tolerations": make_tolerations(replace(desired, control_plane=True))}}
        values["nfd"] = {**_image_value(desired, _NFD_IMAGE), **worker}
    values["config"] = {"default": default_config(desired).name, "map": _plugin_config_files(stack, strategies)}
    parts = ["the device plugin"] + (["GPU Feature Discovery"] if gfd else []) + (["the MPS daemon"] if mps else [])
    why = f"Runs {join_with_and(parts)}. Nodes choose a configuration by the label nvidia.com/device-plugin.config."
    return _make_release(
        DEVICE_PLUGIN_NAME, desired.versions.device_plugin, stack, values, f"{why} {needed}".strip(), PLUGIN_WAVE
    )


def operator_installs(stack: GpuStack) -> tuple[bool, bool]:
    """Return whether the GPU Operator installs driver and toolkit: it installs what the recipe and some node lack."""
    # On a GKE host gpunode installs neither, whatever the recipe says.
    recipe, is_left_to_operator = stack.recipe, is_gke(stack.nodes)
    driver = (is_left_to_operator or recipe.driver.version == "none") and not all(node.driver for node in stack.nodes)
    toolkit = (is_left_to_operator or recipe.toolkit.version == "none") and not all(
        node.toolkit for node in stack.nodes
    )
    return driver, toolkit


def make_gpu_operator(stack: GpuStack) -> ChartRelease:
    """Return the GPU Operator, which installs driver and toolkit only on nodes without them."""
    values, nodes = _operator_values(stack), stack.nodes
    if plugin := _operator_plugin_values(stack):
        values["devicePlugin"] = plugin
    paths = {} if has_usual_kubelet_root(nodes) else {"kubeletRootDir": kubelet_root(nodes)}
    if is_gke(nodes):
        values["toolkit"] |= {"installDir": GKE_DRIVER_FOLDER}
        paths |= {} if values["driver"]["enabled"] else {"driverInstallDir": GKE_DRIVER_FOLDER}
    if paths:
        values["hostPaths"] = paths
    why = "Runs the operator, which deploys the device plugin and what belongs to it."
    return _make_release("gpu-operator", stack.kubernetes.versions.gpu_operator, stack, values, why, PLUGIN_WAVE)


def _operator_values(stack: GpuStack) -> dict[str, Any]:
    """Return which of its parts the operator deploys, and how."""
    desired, (driver, toolkit) = stack.kubernetes, operator_installs(stack)
    strategies = {config.strategy for config in stack.configs.values()} - {"none"}
    layouts = any(config.layout for config in stack.configs.values())
    manager = {"manager": _repository_value(desired, "nvidia/cloud-native")} if desired.registry else {}
    values: dict[str, Any] = {
        "driver": {"enabled": driver, **({**_repository_value(desired, "nvidia"), **manager} if driver else {})},
        "toolkit": {"enabled": toolkit, **(_repository_value(desired, "nvidia/k8s") if toolkit else {})},
        # With CDI, the operator's plugin only hands out CDI devices, which a runtime without CDI ignores.
        "cdi": {"enabled": operator_uses_cdi(stack.recipe, stack.nodes)},
        "operator": {**_repository_value(desired, "nvidia"), "runtimeClass": desired.runtime_class or "nvidia"},
        "mig": {"strategy": min(strategies, default="single")},
        # With an empty default, the manager skips nodes without a layout; the chart's would disable their MIG mode.
        "migManager": {
            **_repository_value(desired, "nvidia/cloud-native"),
            "enabled": layouts,
            **({"config": {"default": ""}} if layouts else {}),
        },
        "dcgmExporter": {
            **_repository_value(desired, "nvidia/k8s"),
            "enabled": desired.extras.dcgm_exporter,
            # The chart would create a ServiceMonitor, which only clusters with the Prometheus Operator support.
            "serviceMonitor": {"enabled": False},
        },
        "daemonsets": {"tolerations": make_tolerations(desired)},
        "node-feature-discovery": {
            **_image_value(desired, _NFD_IMAGE),
            "worker": {"tolerations": make_tolerations(replace(desired, control_plane=True))},
        },
    }
    if desired.registry:
        values |= {part: _repository_value(desired, "nvidia") for part in ("validator", "gfd")}
    return values


def _operator_plugin_values(stack: GpuStack) -> dict[str, Any]:
    """Return the device plugin's values with its configurations; empty if the defaults suffice."""
    plugin: dict[str, Any] = _repository_value(stack.kubernetes, "nvidia")
    is_shared = any(config.mode != "none" for config in stack.configs.values())
    if is_shared or len(stack.plugin_configs) > 1 or gpudirect_flags(stack.recipe.gpudirect):
        data = _plugin_config_files(stack)
        # The name depends on the content: the operator does not restart the plugin for new content under the same name.
        name = f"{DEVICE_PLUGIN_NAME}-{hashlib.sha256(repr(sorted(data.items())).encode()).hexdigest()[:8]}"
        default = default_config(stack.kubernetes).name
        plugin["config"] = {"create": True, "name": name, "default": default, "data": data}
    return plugin


def make_hami(stack: GpuStack) -> ChartRelease:
    """Return HAMi: its device plugin, and its scheduler, which gives a pod part of a GPU's memory and cores."""
    desired, nodes = stack.kubernetes, stack.nodes
    # The chart's own registry is a mirror in China; imageRegistry overrides the registry of every image.
    scheduler = {"repository": "kube-scheduler"} | ({} if desired.registry else {"registry": "registry.k8s.io"})
    values: dict[str, Any] = {
        **({"global": {"imageRegistry": desired.registry}} if desired.registry else {}),
        "scheduler": {"kubeScheduler": {"image": scheduler}},
        "devicePlugin": {
            **_runtime_class_value(desired),
            **({"createRuntimeClass": False} if desired.runtime_class else {}),
            "deviceSplitCount": desired.sharing.replicas,
            "nvidiaNodeSelector": {"gpu": "on"},
            "tolerations": make_tolerations(desired),
            **({"passDeviceSpecsEnabled": True} if explain_static_cpus(nodes) else {}),
            **gpudirect_flags(stack.recipe.gpudirect),
            **({} if has_usual_kubelet_root(nodes) else {"pluginPath": f"{kubelet_root(nodes)}/device-plugins"}),
        },
    }
    why = "Runs HAMi's device plugin and scheduler: pods ask for nvidia.com/gpu, gpumem and gpucores."
    return _make_release("hami", desired.versions.hami, stack, values, why, PLUGIN_WAVE)


def make_dra_driver(stack: GpuStack) -> ChartRelease:
    """Return the DRA driver for GPUs, without ComputeDomains, which only NVLink domains of several nodes need."""
    desired, root = stack.kubernetes, kubelet_root(stack.nodes)
    places = {
        "kubeletRegistrarDirectoryPath": f"{root}/plugins_registry",
        "kubeletPluginsDirectoryPath": f"{root}/plugins",
    }
    values: dict[str, Any] = {
        **_image_value(desired, "registry.k8s.io/dra-driver-nvidia/dra-driver-nvidia-gpu"),
        "nvidiaDriverRoot": "/",
        # The chart requires this as confirmation that no device plugin offers the same GPUs.
        "gpuResourcesEnabledOverride": True,
        "resources": {"computeDomains": {"enabled": False}},
        "kubeletPlugin": {
            "tolerations": make_tolerations(desired),
            **({} if has_usual_kubelet_root(stack.nodes) else places),
        },
    }
    why = "Runs the DRA driver: pods claim GPUs of the DeviceClass gpu.nvidia.com."
    return _make_release("dra-driver-nvidia-gpu", desired.versions.dra_driver, stack, values, why, PLUGIN_WAVE)


def make_dcgm_exporter(stack: GpuStack) -> ChartRelease:
    """Return the DCGM exporter for stacks other than the GPU Operator, which includes it."""
    desired, nodes = stack.kubernetes, stack.nodes
    values: dict[str, Any] = {
        **_runtime_class_value(desired),
        **_image_value(desired, "nvcr.io/nvidia/k8s/dcgm-exporter"),
        # A ServiceMonitor needs the Prometheus Operator; without it Helm fails.
        "serviceMonitor": {"enabled": False},
        "nodeSelector": {GPU_PRESENT_LABEL: "true"},
        "tolerations": make_tolerations(desired),
        **({} if has_usual_kubelet_root(nodes) else {"kubeletPath": f"{kubelet_root(nodes)}/pod-resources"}),
    }
    why = "Offers the GPUs' metrics to Prometheus, on port 9400 of each GPU node."
    return _make_release("dcgm-exporter", desired.versions.dcgm_exporter, stack, values, why, EXTRAS_WAVE)


def _runtime_class_value(desired: Kubernetes) -> dict[str, Any]:
    return {"runtimeClassName": desired.runtime_class} if desired.runtime_class else {}


def _image_value(desired: Kubernetes, image: str) -> dict[str, Any]:
    return {"image": {"repository": mirror_image(image, desired.registry)}} if desired.registry else {}


def _repository_value(desired: Kubernetes, path: str) -> dict[str, Any]:
    return {"repository": f"{desired.registry}/{path}"} if desired.registry else {}
