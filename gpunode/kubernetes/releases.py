"""The values of the Helm charts, where a chart owns the objects: only what differs from the chart's own values."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gpunode import yaml
from gpunode.catalog.charts import chart
from gpunode.kubernetes.managed import GKE_DRIVER, is_gke
from gpunode.kubernetes.model import GPU_PRESENT, ChartRelease, ClusterNode
from gpunode.kubernetes.objects import (
    EXTRAS_WAVE,
    PLUGIN,
    PLUGIN_WAVE,
    has_usual_root,
    kubelet_root,
    mirrored,
    static_cpus,
    tolerations,
)
from gpunode.kubernetes.sharing import Config, default_config, gpudirect_flags, plugin_config, plugin_configs
from gpunode.recipe import GpuDirect
from gpunode.recipe.kubernetes import Kubernetes

_NFD_IMAGE: Final = "registry.k8s.io/nfd/node-feature-discovery"


def _release(name: str, version: str, where: str, values: Mapping[str, Any], why: str, wave: int) -> ChartRelease:
    found = chart(name)
    return ChartRelease(name, name, version or found.version, found.repository, where, values, why, wave)


def files_of(
    wanted: Kubernetes,
    by_node: Mapping[str, Config],
    nodes: Sequence[ClusterNode],
    direct: GpuDirect,
    strategies: Sequence[str] = (),
) -> Mapping[str, Any]:
    """Return the device plugin's named configurations, each as its file, by name."""
    every = plugin_configs(wanted, by_node)
    having = {name: [node for node in nodes if by_node[node.name].name == name] for name in every}
    return {name: yaml.document(plugin_config(every[name], having[name], direct, strategies)) for name in sorted(every)}


def device_plugin(
    wanted: Kubernetes,
    where: str,
    configs: Mapping[str, Config],
    nodes: Sequence[ClusterNode],
    direct: GpuDirect,
    strategies: Sequence[str],
    *,
    gfd: bool,
) -> ChartRelease:
    """NVIDIA's device plugin, and with it GPU Feature Discovery and the MPS daemon where they are wanted."""
    values: dict[str, Any] = {
        **_runtime_class(wanted),
        **_image(wanted, "nvcr.io/nvidia/k8s-device-plugin"),
        "tolerations": tolerations(wanted),
        "gfd": {"enabled": gfd},
        **({"compatWithCPUManager": True} if static_cpus(nodes) else {}),
        # By it the chart mounts the host's driver, of which the plugin writes its CDI specification (docs/cdi.md).
        **({"nvidiaDriverRoot": "/"} if strategies else {}),
    }
    if gfd:
        # The chart's own toleration is for the value "present" alone (k8s-device-plugin issue 1934).
        worker = {"worker": {"tolerations": tolerations(replace(wanted, control_plane=True))}}
        values["nfd"] = {**_image(wanted, _NFD_IMAGE), **worker}
    data = dict(files_of(wanted, configs, nodes, direct, strategies))
    values["config"] = {"default": default_config(wanted).name, "map": data}
    parts = ["the device plugin"] + (["GPU Feature Discovery"] if gfd else [])
    parts += ["the MPS daemon"] if any(config.mode == "mps" for config in configs.values()) else []
    why = f"Runs {_listed(parts)}. Nodes choose a configuration by the label nvidia.com/device-plugin.config."
    why = " ".join(filter(None, (why, static_cpus(nodes))))
    return _release(PLUGIN, wanted.versions.device_plugin, where, values, why, PLUGIN_WAVE)


def gpu_operator(
    wanted: Kubernetes,
    where: str,
    configs: Mapping[str, Config],
    nodes: Sequence[ClusterNode],
    direct: GpuDirect,
    *,
    cdi: bool,
    driver: bool,
    toolkit: bool,
) -> ChartRelease:
    """The GPU Operator, which installs driver and toolkit only where the nodes have none."""
    values = _operands(wanted, configs, cdi=cdi, driver=driver, toolkit=toolkit)
    if plugin := _operators_plugin(wanted, configs, nodes, direct):
        values["devicePlugin"] = plugin
    paths = {} if has_usual_root(nodes) else {"kubeletRootDir": kubelet_root(nodes)}
    if is_gke(nodes):
        values["toolkit"] |= {"installDir": GKE_DRIVER}
        paths |= {} if driver else {"driverInstallDir": GKE_DRIVER}
    if paths:
        values["hostPaths"] = paths
    why = "Runs the operator, which deploys the device plugin and what belongs to it."
    return _release("gpu-operator", wanted.versions.gpu_operator, where, values, why, PLUGIN_WAVE)


def _operands(
    wanted: Kubernetes, configs: Mapping[str, Config], *, cdi: bool, driver: bool, toolkit: bool
) -> dict[str, Any]:
    """Which of its parts the operator deploys, and how."""
    strategies = {config.strategy for config in configs.values()} - {"none"}
    layouts = any(config.layout for config in configs.values())
    manager = {"manager": _repository(wanted, "nvidia/cloud-native")} if wanted.registry else {}
    values: dict[str, Any] = {
        "driver": {"enabled": driver, **({**_repository(wanted, "nvidia"), **manager} if driver else {})},
        "toolkit": {"enabled": toolkit, **(_repository(wanted, "nvidia/k8s") if toolkit else {})},
        # With CDI the operator's plugin hands out CDI devices alone, which a runtime without CDI ignores.
        "cdi": {"enabled": cdi},
        "operator": {**_repository(wanted, "nvidia"), "runtimeClass": wanted.runtime_class or "nvidia"},
        "psa": {"enabled": True},
        "mig": {"strategy": min(strategies, default="single")},
        # Without a default the manager leaves nodes alone that no layout is for; the chart's own takes their MIG away.
        "migManager": {
            **_repository(wanted, "nvidia/cloud-native"),
            "enabled": layouts,
            **({"config": {"default": ""}} if layouts else {}),
        },
        "dcgmExporter": {
            **_repository(wanted, "nvidia/k8s"),
            "enabled": wanted.extras.dcgm_exporter,
            # The chart would make a ServiceMonitor, which only clusters with the Prometheus Operator have.
            "serviceMonitor": {"enabled": False},
        },
        "daemonsets": {"tolerations": tolerations(wanted)},
        "node-feature-discovery": {
            **_image(wanted, _NFD_IMAGE),
            "worker": {"tolerations": tolerations(replace(wanted, control_plane=True))},
        },
    }
    if wanted.registry:
        values |= {part: _repository(wanted, "nvidia") for part in ("validator", "gfd")}
    return values


def _operators_plugin(
    wanted: Kubernetes, configs: Mapping[str, Config], nodes: Sequence[ClusterNode], direct: GpuDirect
) -> dict[str, Any]:
    """The device plugin with its configurations; empty where its defaults do."""
    plugin: dict[str, Any] = dict(_repository(wanted, "nvidia"))
    is_shared = any(config.mode != "none" for config in configs.values())
    if is_shared or len(plugin_configs(wanted, configs)) > 1 or gpudirect_flags(direct):
        data = dict(files_of(wanted, configs, nodes, direct))
        # Named by its content: the operator does not restart the plugin for another content under the same name.
        name = f"{PLUGIN}-{hashlib.sha256(repr(sorted(data.items())).encode()).hexdigest()[:8]}"
        plugin["config"] = {"create": True, "name": name, "default": default_config(wanted).name, "data": data}
    return plugin


def hami(wanted: Kubernetes, where: str, nodes: Sequence[ClusterNode], direct: GpuDirect) -> ChartRelease:
    """HAMi: its device plugin, and its scheduler, by which a pod gets part of a GPU's memory and cores."""
    # The chart's own registry is a mirror in China; imageRegistry overrides the registry of every image.
    scheduler = {"repository": "kube-scheduler"} | ({} if wanted.registry else {"registry": "registry.k8s.io"})
    values: dict[str, Any] = {
        **({"global": {"imageRegistry": wanted.registry}} if wanted.registry else {}),
        "scheduler": {"kubeScheduler": {"image": scheduler}},
        "devicePlugin": {
            **_runtime_class(wanted),
            **({"createRuntimeClass": False} if wanted.runtime_class else {}),
            "deviceSplitCount": wanted.sharing.replicas,
            "nvidiaNodeSelector": {"gpu": "on"},
            "tolerations": tolerations(wanted),
            **({"passDeviceSpecsEnabled": True} if static_cpus(nodes) else {}),
            **gpudirect_flags(direct),
            **({} if has_usual_root(nodes) else {"pluginPath": f"{kubelet_root(nodes)}/device-plugins"}),
        },
    }
    why = "Runs HAMi's device plugin and scheduler: pods ask for nvidia.com/gpu, gpumem and gpucores."
    return _release("hami", wanted.versions.hami, where, values, why, PLUGIN_WAVE)


def dra_driver(wanted: Kubernetes, where: str, nodes: Sequence[ClusterNode]) -> ChartRelease:
    """The DRA driver for GPUs, without ComputeDomains, which only NVLink domains of several nodes need."""
    root = kubelet_root(nodes)
    places = {
        "kubeletRegistrarDirectoryPath": f"{root}/plugins_registry",
        "kubeletPluginsDirectoryPath": f"{root}/plugins",
    }
    values: dict[str, Any] = {
        **_image(wanted, "registry.k8s.io/dra-driver-nvidia/dra-driver-nvidia-gpu"),
        "nvidiaDriverRoot": "/",
        # The chart asks for this where no device plugin offers the same GPUs.
        "gpuResourcesEnabledOverride": True,
        "resources": {"computeDomains": {"enabled": False}},
        "kubeletPlugin": {"tolerations": tolerations(wanted), **({} if has_usual_root(nodes) else places)},
    }
    why = "Runs the DRA driver: pods claim GPUs of the DeviceClass gpu.nvidia.com."
    return _release("dra-driver-nvidia-gpu", wanted.versions.dra_driver, where, values, why, PLUGIN_WAVE)


def dcgm_exporter(wanted: Kubernetes, where: str, nodes: Sequence[ClusterNode]) -> ChartRelease:
    """The DCGM exporter on its own, for stacks other than the GPU Operator, which brings it."""
    values: dict[str, Any] = {
        **_runtime_class(wanted),
        **_image(wanted, "nvcr.io/nvidia/k8s/dcgm-exporter"),
        # A ServiceMonitor needs the Prometheus Operator; without it Helm fails.
        "serviceMonitor": {"enabled": False},
        "nodeSelector": {GPU_PRESENT: "true"},
        "tolerations": tolerations(wanted),
        **({} if has_usual_root(nodes) else {"kubeletPath": f"{kubelet_root(nodes)}/pod-resources"}),
    }
    why = "Offers the GPUs' metrics to Prometheus, on port 9400 of each GPU node."
    return _release("dcgm-exporter", wanted.versions.dcgm_exporter, where, values, why, EXTRAS_WAVE)


def _runtime_class(wanted: Kubernetes) -> dict[str, Any]:
    return {"runtimeClassName": wanted.runtime_class} if wanted.runtime_class else {}


def _image(wanted: Kubernetes, image: str) -> dict[str, Any]:
    return {"image": {"repository": mirrored(image, wanted.registry)}} if wanted.registry else {}


def _repository(wanted: Kubernetes, path: str) -> dict[str, Any]:
    return {"repository": f"{wanted.registry}/{path}"} if wanted.registry else {}


def _listed(parts: Sequence[str]) -> str:
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last
