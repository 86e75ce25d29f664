"""Helm releases of the charts: only the values that differ from the chart's own."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gpunode import yaml
from gpunode.catalog.charts import chart
from gpunode.kubernetes.cluster_nodes import GKE_DRIVER_FOLDER, is_gke
from gpunode.kubernetes.model import GPU_PRESENT_LABEL, ChartRelease, ClusterNode
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
from gpunode.kubernetes.sharing import SharingConfig, default_config, gpudirect_flags, plugin_config, plugin_configs
from gpunode.recipe import GpuDirect
from gpunode.recipe.kubernetes import Kubernetes
from gpunode.wording import join_with_and

_NFD_IMAGE: Final = "registry.k8s.io/nfd/node-feature-discovery"


def _make_release(
    name: str, version: str, namespace: str, values: Mapping[str, Any], why: str, wave: int
) -> ChartRelease:
    found = chart(name)
    return ChartRelease(name, name, version or found.version, found.repository, namespace, values, why, wave)


def plugin_config_files(
    desired: Kubernetes,
    by_node: Mapping[str, SharingConfig],
    nodes: Sequence[ClusterNode],
    direct: GpuDirect,
    strategies: Sequence[str] = (),
) -> Mapping[str, Any]:
    """Return the content of the device plugin's configuration files, by name."""
    configurations = plugin_configs(desired, by_node)
    nodes_by_name = {name: [node for node in nodes if by_node[node.name].name == name] for name in configurations}
    return {
        name: yaml.render_document(plugin_config(configurations[name], nodes_by_name[name], direct, strategies))
        for name in sorted(configurations)
    }


def make_device_plugin(
    desired: Kubernetes,
    namespace: str,
    configs: Mapping[str, SharingConfig],
    nodes: Sequence[ClusterNode],
    direct: GpuDirect,
    strategies: Sequence[str],
    *,
    gfd: bool,
) -> ChartRelease:
    """Return NVIDIA's device plugin, with GPU Feature Discovery and the MPS daemon if needed."""
    values: dict[str, Any] = {
        **_runtime_class_value(desired),
        **_image_value(desired, "nvcr.io/nvidia/k8s-device-plugin"),
        "tolerations": make_tolerations(desired),
        "gfd": {"enabled": gfd},
        **({"compatWithCPUManager": True} if explain_static_cpus(nodes) else {}),
        # By it the chart mounts the host's driver, of which the plugin writes its CDI specification (docs/cdi.md).
        **({"nvidiaDriverRoot": "/"} if strategies else {}),
    }
    if gfd:
        # The chart's own toleration is for the value "present" alone (k8s-device-plugin issue 1934).
        worker = {"worker": {"tolerations": make_tolerations(replace(desired, control_plane=True))}}
        values["nfd"] = {**_image_value(desired, _NFD_IMAGE), **worker}
    data = dict(plugin_config_files(desired, configs, nodes, direct, strategies))
    values["config"] = {"default": default_config(desired).name, "map": data}
    parts = ["the device plugin"] + (["GPU Feature Discovery"] if gfd else [])
    parts += ["the MPS daemon"] if any(config.mode == "mps" for config in configs.values()) else []
    why = f"Runs {join_with_and(parts)}. Nodes choose a configuration by the label nvidia.com/device-plugin.config."
    why = " ".join(filter(None, (why, explain_static_cpus(nodes))))
    return _make_release(DEVICE_PLUGIN_NAME, desired.versions.device_plugin, namespace, values, why, PLUGIN_WAVE)


def make_gpu_operator(
    desired: Kubernetes,
    namespace: str,
    configs: Mapping[str, SharingConfig],
    nodes: Sequence[ClusterNode],
    direct: GpuDirect,
    *,
    cdi: bool,
    driver: bool,
    toolkit: bool,
) -> ChartRelease:
    """Return the GPU Operator, which installs driver and toolkit only on nodes without them."""
    values = _operator_values(desired, configs, cdi=cdi, driver=driver, toolkit=toolkit)
    if plugin := _operator_plugin_values(desired, configs, nodes, direct):
        values["devicePlugin"] = plugin
    paths = {} if has_usual_kubelet_root(nodes) else {"kubeletRootDir": kubelet_root(nodes)}
    if is_gke(nodes):
        values["toolkit"] |= {"installDir": GKE_DRIVER_FOLDER}
        paths |= {} if driver else {"driverInstallDir": GKE_DRIVER_FOLDER}
    if paths:
        values["hostPaths"] = paths
    why = "Runs the operator, which deploys the device plugin and what belongs to it."
    return _make_release("gpu-operator", desired.versions.gpu_operator, namespace, values, why, PLUGIN_WAVE)


def _operator_values(
    desired: Kubernetes, configs: Mapping[str, SharingConfig], *, cdi: bool, driver: bool, toolkit: bool
) -> dict[str, Any]:
    """Return which of its parts the operator deploys, and how."""
    strategies = {config.strategy for config in configs.values()} - {"none"}
    layouts = any(config.layout for config in configs.values())
    manager = {"manager": _repository_value(desired, "nvidia/cloud-native")} if desired.registry else {}
    values: dict[str, Any] = {
        "driver": {"enabled": driver, **({**_repository_value(desired, "nvidia"), **manager} if driver else {})},
        "toolkit": {"enabled": toolkit, **(_repository_value(desired, "nvidia/k8s") if toolkit else {})},
        # With CDI the operator's plugin hands out CDI devices alone, which a runtime without CDI ignores.
        "cdi": {"enabled": cdi},
        "operator": {**_repository_value(desired, "nvidia"), "runtimeClass": desired.runtime_class or "nvidia"},
        "psa": {"enabled": True},
        "mig": {"strategy": min(strategies, default="single")},
        # Without a default the manager leaves nodes alone that no layout is for; the chart's own takes their MIG away.
        "migManager": {
            **_repository_value(desired, "nvidia/cloud-native"),
            "enabled": layouts,
            **({"config": {"default": ""}} if layouts else {}),
        },
        "dcgmExporter": {
            **_repository_value(desired, "nvidia/k8s"),
            "enabled": desired.extras.dcgm_exporter,
            # The chart would make a ServiceMonitor, which only clusters with the Prometheus Operator have.
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


def _operator_plugin_values(
    desired: Kubernetes, configs: Mapping[str, SharingConfig], nodes: Sequence[ClusterNode], direct: GpuDirect
) -> dict[str, Any]:
    """Return the device plugin's values with its configurations; empty if the defaults do."""
    plugin: dict[str, Any] = dict(_repository_value(desired, "nvidia"))
    is_shared = any(config.mode != "none" for config in configs.values())
    if is_shared or len(plugin_configs(desired, configs)) > 1 or gpudirect_flags(direct):
        data = dict(plugin_config_files(desired, configs, nodes, direct))
        # Named by its content: the operator does not restart the plugin for another content under the same name.
        name = f"{DEVICE_PLUGIN_NAME}-{hashlib.sha256(repr(sorted(data.items())).encode()).hexdigest()[:8]}"
        plugin["config"] = {"create": True, "name": name, "default": default_config(desired).name, "data": data}
    return plugin


def make_hami(desired: Kubernetes, namespace: str, nodes: Sequence[ClusterNode], direct: GpuDirect) -> ChartRelease:
    """Return HAMi: its device plugin, and its scheduler, which gives a pod part of a GPU's memory and cores."""
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
            **gpudirect_flags(direct),
            **({} if has_usual_kubelet_root(nodes) else {"pluginPath": f"{kubelet_root(nodes)}/device-plugins"}),
        },
    }
    why = "Runs HAMi's device plugin and scheduler: pods ask for nvidia.com/gpu, gpumem and gpucores."
    return _make_release("hami", desired.versions.hami, namespace, values, why, PLUGIN_WAVE)


def make_dra_driver(desired: Kubernetes, namespace: str, nodes: Sequence[ClusterNode]) -> ChartRelease:
    """Return the DRA driver for GPUs, without ComputeDomains, which only NVLink domains of several nodes need."""
    root = kubelet_root(nodes)
    places = {
        "kubeletRegistrarDirectoryPath": f"{root}/plugins_registry",
        "kubeletPluginsDirectoryPath": f"{root}/plugins",
    }
    values: dict[str, Any] = {
        **_image_value(desired, "registry.k8s.io/dra-driver-nvidia/dra-driver-nvidia-gpu"),
        "nvidiaDriverRoot": "/",
        # The chart asks for this where no device plugin offers the same GPUs.
        "gpuResourcesEnabledOverride": True,
        "resources": {"computeDomains": {"enabled": False}},
        "kubeletPlugin": {
            "tolerations": make_tolerations(desired),
            **({} if has_usual_kubelet_root(nodes) else places),
        },
    }
    why = "Runs the DRA driver: pods claim GPUs of the DeviceClass gpu.nvidia.com."
    return _make_release("dra-driver-nvidia-gpu", desired.versions.dra_driver, namespace, values, why, PLUGIN_WAVE)


def make_dcgm_exporter(desired: Kubernetes, namespace: str, nodes: Sequence[ClusterNode]) -> ChartRelease:
    """Return the DCGM exporter for stacks other than the GPU Operator, which includes it."""
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
    return _make_release("dcgm-exporter", desired.versions.dcgm_exporter, namespace, values, why, EXTRAS_WAVE)


def _runtime_class_value(desired: Kubernetes) -> dict[str, Any]:
    return {"runtimeClassName": desired.runtime_class} if desired.runtime_class else {}


def _image_value(desired: Kubernetes, image: str) -> dict[str, Any]:
    return {"image": {"repository": mirror_image(image, desired.registry)}} if desired.registry else {}


def _repository_value(desired: Kubernetes, path: str) -> dict[str, Any]:
    return {"repository": f"{desired.registry}/{path}"} if desired.registry else {}
