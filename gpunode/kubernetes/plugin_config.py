"""The configuration file of NVIDIA's device plugin and of GPU Feature Discovery (``version: v1``).

Source: NVIDIA/k8s-device-plugin 0.20.0, api/config/v1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gpunode.kubernetes.model import ClusterNode
from gpunode.kubernetes.sharing import Config, shared_resources
from gpunode.recipe import GpuDirect

_KEYS_OF_SHARING: Final = {"time-slicing": "timeSlicing", "mps": "mps"}


def gpudirect_flags(direct: GpuDirect) -> Mapping[str, bool]:
    """By which the plugin has the runtime give pods with GPUs the devices of GPUDirect Storage and GDRCopy."""
    return ({"gdrcopyEnabled": True} if direct.gdrcopy else {}) | ({"gdsEnabled": True} if direct.gds else {})


def plugin_config(
    config: Config, nodes: Sequence[ClusterNode], direct: GpuDirect, strategies: Sequence[str] = ()
) -> Mapping[str, Any]:
    """Return the file for the nodes that have this configuration.

    Args:
        config: how the GPUs are offered.
        nodes: those that have it.
        direct: which devices of GPUDirect pods get.
        strategies: how the plugin hands GPUs to the container runtime; empty for its default.
    """
    flags: dict[str, Any] = {"migStrategy": config.strategy, **gpudirect_flags(direct)}
    plugin: dict[str, Any] = {"passDeviceSpecs": True} if any(node.static_cpus for node in nodes) else {}
    plugin |= {"deviceListStrategy": [*strategies]} if strategies else {}
    if plugin:
        flags["plugin"] = plugin
    wanted: dict[str, Any] = {"version": "v1", "flags": flags}
    if config.mode != "none":
        resources = [{"name": name, "replicas": config.replicas} for name in shared_resources(nodes, config)]
        # A pod that asks for two shares would get two of the same GPU, and no more of it.
        sharing = {"renameByDefault": config.rename, "failRequestsGreaterThanOne": True, "resources": resources}
        wanted["sharing"] = {_KEYS_OF_SHARING[config.mode]: sharing}
    return wanted
