"""The ways in which nodes offer their GPUs: named configurations of the device plugin, from a recipe and the nodes.

The configuration file (``version: v1``) is the device plugin's and GPU Feature Discovery's: NVIDIA/k8s-device-plugin
0.20.0, api/config/v1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gpunode.catalog import mig
from gpunode.errors import Refused
from gpunode.fast_dataclass import dataclass
from gpunode.kubernetes.model import ClusterNode
from gpunode.recipe import GpuDirect, Recipe
from gpunode.recipe.kubernetes import Kubernetes, MigStrategy, NamedConfig, SharingMode

GPU_RESOURCE: Final = "nvidia.com/gpu"
# The device plugin's MIG resources with strategy mixed.
MIG_RESOURCE_PREFIX: Final = "nvidia.com/mig-"
# Maximum clients of an MPS server, from compute capability 7.5 and before (k8s-device-plugin cmd/mps-control-daemon).
_MPS_CLIENTS, _MPS_CLIENTS_OF_OLD, _NEW = 48, 16, (7, 5)


@dataclass(frozen=True, slots=True)
class SharingConfig:
    """A way to offer GPUs.

    Attributes:
        name: the value of the label ``nvidia.com/device-plugin.config``.
    """

    name: str
    mode: SharingMode = "none"
    replicas: int = 1
    rename: bool = False
    strategy: MigStrategy = "none"
    layout: str = ""


@dataclass(frozen=True, slots=True)
class GpuStack:
    """A recipe for the GPU nodes of a cluster.

    Attributes:
        configs: how each node offers its GPUs, by the node's name.
        namespace: the namespace of the stack's pods.
    """

    recipe: Recipe
    nodes: tuple[ClusterNode, ...]
    configs: Mapping[str, SharingConfig]
    namespace: str

    @property
    def kubernetes(self) -> Kubernetes:
        """The recipe's tables for Kubernetes."""
        assert self.recipe.kubernetes is not None  # checked before anything is rendered
        return self.recipe.kubernetes

    @property
    def plugin_configs(self) -> Mapping[str, SharingConfig]:
        """The device plugin's configurations by name: the nodes' own, and the default for nodes without the label."""
        default = default_config(self.kubernetes)
        return {config.name: config for config in (default, *self.configs.values())}


def default_config(desired: Kubernetes) -> SharingConfig:
    """Return the configuration for nodes that match no named one."""
    sharing, layout = desired.sharing, desired.mig
    parts = [f"mig-{layout.strategy}"] if layout.strategy != "none" else []
    parts += [f"{sharing.mode}-{sharing.replicas}"] if sharing.mode != "none" else []
    name = "-".join(parts) or "whole"
    return SharingConfig(name, sharing.mode, sharing.replicas, sharing.rename, layout.strategy, layout.layout)


def choose_configs(desired: Kubernetes, nodes: Sequence[ClusterNode]) -> Mapping[str, SharingConfig]:
    """Return the configuration of each node, by its name.

    Raises:
        Refused: the recipe contradicts itself, or needs what a node's GPUs cannot do.
    """
    refuse_bad_configs(desired)
    default, named = default_config(desired), _named_configs(desired)
    configs = {node.name: _choose_config(node, default, named) for node in nodes}
    for node in nodes:
        _refuse_unknown_layout(node, configs[node.name])
        _refuse_too_many_mps_clients(node, configs[node.name])
    return configs


def refuse_bad_configs(desired: Kubernetes) -> None:
    """Refuse configurations that make no sense for any node.

    Raises:
        Refused: a configuration contradicts itself, or has the name of the default.
    """
    default = default_config(desired)
    _refuse_impossible_config(default, "[kubernetes.sharing]")
    for one, config in _named_configs(desired):
        where = f"[kubernetes.configs.{config.name}]"
        _refuse_impossible_config(config, where)
        if not one.model:
            raise Refused(
                f"{where} has no key model",
                why="gpunode cannot tell which nodes it is for",
                hint=f'say which GPUs it is for, such as model = "A100", in {where}',
            )
        if config.name == default.name:
            raise Refused(
                f"{where} has the name of the configuration that all other nodes get",
                why="nodes choose a configuration by its name",
                hint="give the table another name",
            )


def _named_configs(desired: Kubernetes) -> list[tuple[NamedConfig, SharingConfig]]:
    return [
        (one, SharingConfig(name, one.mode, one.replicas, one.rename, one.strategy, one.layout))
        for name, one in desired.configs.items()
    ]


def unmatched_notes(desired: Kubernetes, nodes: Sequence[ClusterNode]) -> Iterator[str]:
    """Yield a note for each named configuration without a node, and for each node that matches one in part."""
    for name, one in desired.configs.items():
        matches = {node.name: [one.model.lower() in gpu.name.lower() for gpu in node.gpus] for node in nodes}
        if not any(all(names) for names in matches.values()):
            yield f"No node gets the configuration {name}: none has only GPUs whose names contain {one.model!r}."
        for node, names in matches.items():
            if any(names) and not all(names):
                yield f"{node} has other GPUs beside {one.model!r}, so it does not get the configuration {name}."


def _choose_config(
    node: ClusterNode, default: SharingConfig, named_configs: Sequence[tuple[NamedConfig, SharingConfig]]
) -> SharingConfig:
    matching = [config for one, config in named_configs if one.fits([gpu.name for gpu in node.gpus])]
    if len(matching) > 1:
        names = " and ".join(config.name for config in matching)
        raise Refused(
            f"{node.name} fits several configurations: {names}",
            why=f"its GPUs are {describe_gpus(node)}",
            hint="make model in [kubernetes.configs] more exact, so that each node fits one",
        )
    return matching[0] if matching else default


def _refuse_too_many_mps_clients(node: ClusterNode, config: SharingConfig) -> None:
    if config.mode != "mps":
        return
    for gpu in node.gpus:
        capability = tuple(int(part) for part in gpu.compute_capability.split(".") if part.isdigit())
        most = _MPS_CLIENTS if capability >= _NEW else _MPS_CLIENTS_OF_OLD
        if config.replicas > most:
            raise Refused(
                f"{node.name}: {gpu.name} takes at most {most} MPS clients, and the recipe asks for {config.replicas}",
                why="the MPS daemon of the device plugin does not start with more",
                hint=f"set replicas to {most} or less",
            )


def _refuse_impossible_config(config: SharingConfig, where: str) -> None:
    """Refuse what the device plugin cannot do. Source: NVIDIA/k8s-device-plugin 0.20.0, api/config/v1."""
    if config.mode != "none" and config.replicas < 2:
        raise Refused(
            f"{where}: {config.mode} with {config.replicas} replica shares nothing",
            why="the device plugin takes 2 or more",
            hint=f"set replicas to the number of pods that share a GPU, in {where}",
        )
    if config.mode == "none" and config.replicas > 1:
        raise Refused(
            f"{where}: {config.replicas} replicas, but mode is none",
            why="without sharing each GPU is offered once",
            hint=f'set mode = "time-slicing" or "mps" in {where}, or leave replicas out',
        )
    if config.mode == "none" and config.rename:
        raise Refused(
            f"{where}: rename is for shared GPUs, but mode is none",
            why="a GPU that is not shared is offered as nvidia.com/gpu",
            hint=f"leave rename out of {where}, or set a mode",
        )
    if config.mode == "mps" and config.strategy != "none":
        raise Refused(
            f"{where}: MPS and MIG exclude each other",
            why="the device plugin does not start MPS on GPUs in MIG mode",
            hint="use time-slicing with MIG, or MPS on whole GPUs",
        )
    if config.layout and config.strategy == "none" and config.layout != mig.ALL_DISABLED_LAYOUT:
        raise Refused(
            f"{where}: the MIG layout {config.layout} needs a strategy",
            why="with strategy none the device plugin does not offer MIG instances",
            hint='set strategy = "single" or "mixed" beside layout',
        )
    if config.strategy == "single" and config.layout == mig.ALL_BALANCED_LAYOUT:
        raise Refused(
            f"{where}: the layout {mig.ALL_BALANCED_LAYOUT} has instances of several sizes",
            why="strategy single offers instances of one size",
            hint='set strategy = "mixed"',
        )


def _refuse_unknown_layout(node: ClusterNode, config: SharingConfig) -> None:
    if config.strategy == "none":
        return
    for gpu in node.gpus:
        profiles = mig.max_instances_by_profile(gpu.device_id)
        if not profiles:
            raise Refused(
                f"{node.name}: gpunode knows no MIG profile of {gpu.name}",
                why="either the GPU has no MIG, or it is too new for this gpunode",
                hint='give these nodes a table of their own in [kubernetes.configs], with model and strategy = "none"\n'
                "or use another recipe, if no node has MIG: k8s-time-slicing",
            )
        profile = mig.profile_of_layout(config.layout)
        if profile and profile not in profiles:
            raise Refused(
                f"{node.name}: {gpu.name} has no MIG profile {profile}, which the layout {config.layout} needs",
                why=f"it has {', '.join(profiles)}",
                hint=f"use one of these: {', '.join(map(mig.layout_of, profiles))}, {mig.ALL_BALANCED_LAYOUT}",
            )


def count_instances(node: ClusterNode, layout: str) -> Mapping[str, int] | None:
    """Return the number of MIG instances by profile in that layout; None if the layout's name does not tell."""
    counts: Counter[str] = Counter()
    for gpu in node.gpus:
        one = mig.instances_in_layout(gpu.device_id, layout)
        if one is None:
            return None
        counts.update(one)
    return counts


def count_resources(node: ClusterNode, config: SharingConfig) -> Mapping[str, int] | None:
    """Return the count of each resource that the node offers; None if it depends on an unnamed MIG layout."""
    base = {GPU_RESOURCE: len(node.gpus)}
    if config.strategy != "none":
        instances = count_instances(node, config.layout)
        if instances is None:
            return None
        base = {mig_resource(profile): count for profile, count in sorted(instances.items())}
        if config.strategy == "single":
            base = {GPU_RESOURCE: sum(base.values())}
    suffix = ".shared" if config.rename else ""
    return {f"{name}{suffix}": count * config.replicas for name, count in base.items()}


def mig_resource(profile: str) -> str:
    """Return the resource with which the device plugin offers instances of the profile in strategy mixed."""
    return f"{MIG_RESOURCE_PREFIX}{profile.replace('+', '.')}"


def resources_of(node: ClusterNode, config: SharingConfig) -> tuple[str, ...]:
    """Return the resources that the node offers; empty if they depend on an unnamed MIG layout."""
    if offer := count_resources(node, config):
        return tuple(offer)
    return (f"{GPU_RESOURCE}{'.shared' if config.rename else ''}",) if config.strategy == "single" else ()


def shared_resources(nodes: Sequence[ClusterNode], config: SharingConfig) -> tuple[str, ...]:
    """Return the resources whose replicas the device plugin multiplies on these nodes."""
    if config.strategy != "mixed":
        return (GPU_RESOURCE,)
    # The plugin rejects an empty list, and ignores resources that a node does not have.
    profiles = set() if nodes else set(mig.every_profile())
    for node in nodes:
        counts = count_instances(node, config.layout)
        profiles |= set(counts or (name for gpu in node.gpus for name in mig.max_instances_by_profile(gpu.device_id)))
    return tuple(sorted(map(mig_resource, profiles)))


def describe_gpus(node: ClusterNode) -> str:
    """Return a description of the node's GPUs (``8 × H100 80GB HBM3``)."""
    names = Counter(gpu.name.removeprefix("NVIDIA ") for gpu in node.gpus)
    return ", ".join(f"{count} × {name}" for name, count in names.items())


_SHARING_KEYS: Final = {"time-slicing": "timeSlicing", "mps": "mps"}


def gpudirect_flags(direct: GpuDirect) -> Mapping[str, bool]:
    """Return the flags that give pods with GPUs the devices of GPUDirect Storage and GDRCopy."""
    return ({"gdrcopyEnabled": True} if direct.gdrcopy else {}) | ({"gdsEnabled": True} if direct.gds else {})


def plugin_config(
    config: SharingConfig, nodes: Sequence[ClusterNode], direct: GpuDirect, strategies: Sequence[str] = ()
) -> Mapping[str, Any]:
    """Return the configuration file for the nodes that have this configuration.

    ``strategies`` lists how the plugin passes GPUs to the container runtime; empty for its default.
    """
    flags: dict[str, Any] = {"migStrategy": config.strategy, **gpudirect_flags(direct)}
    plugin: dict[str, Any] = {"passDeviceSpecs": True} if any(node.static_cpus for node in nodes) else {}
    plugin |= {"deviceListStrategy": [*strategies]} if strategies else {}
    if plugin:
        flags["plugin"] = plugin
    content: dict[str, Any] = {"version": "v1", "flags": flags}
    if config.mode != "none":
        resources = [{"name": name, "replicas": config.replicas} for name in shared_resources(nodes, config)]
        # A pod that requests two shares would get two shares of the same GPU, and no more of its capacity.
        sharing = {"renameByDefault": config.rename, "failRequestsGreaterThanOne": True, "resources": resources}
        content["sharing"] = {_SHARING_KEYS[config.mode]: sharing}
    return content
