"""Which node offers its GPUs how: named configurations of the device plugin, from a recipe and the nodes.

The configuration file (``version: v1``) is the device plugin's and GPU Feature Discovery's: NVIDIA/k8s-device-plugin
0.20.0, api/config/v1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpunode.catalog import mig
from gpunode.errors import Refused
from gpunode.kubernetes.model import ClusterNode
from gpunode.recipe import GpuDirect
from gpunode.recipe.kubernetes import Kubernetes, MigStrategy, NamedConfig, SharingMode

GPU: Final = "nvidia.com/gpu"
# With strategy mixed, of what the device plugin calls instances.
MIG: Final = "nvidia.com/mig-"
# Clients of one MPS server, from compute capability 7.5 on and before (k8s-device-plugin cmd/mps-control-daemon).
_MPS_CLIENTS, _MPS_CLIENTS_OF_OLD, _NEW = 48, 16, (7, 5)


@dataclass(frozen=True, slots=True)
class Config:
    """One way to offer GPUs.

    Attributes:
        name: the value of the label ``nvidia.com/device-plugin.config``.
    """

    name: str
    mode: SharingMode = "none"
    replicas: int = 1
    rename: bool = False
    strategy: MigStrategy = "none"
    layout: str = ""


def default_config(wanted: Kubernetes) -> Config:
    """The configuration of the nodes that no named one is for."""
    sharing, layout = wanted.sharing, wanted.mig
    parts = [f"mig-{layout.strategy}"] if layout.strategy != "none" else []
    parts += [f"{sharing.mode}-{sharing.replicas}"] if sharing.mode != "none" else []
    name = "-".join(parts) or "whole"
    return Config(name, sharing.mode, sharing.replicas, sharing.rename, layout.strategy, layout.layout)


def configs(wanted: Kubernetes, nodes: Sequence[ClusterNode]) -> Mapping[str, Config]:
    """The configuration of each node, by the node's name.

    Raises:
        Refused: the recipe contradicts itself, or asks of a node what its GPUs cannot do.
    """
    check_configs(wanted)
    default, named = default_config(wanted), _named_configs(wanted)
    found = {node.name: _of(node, default, named) for node in nodes}
    for node in nodes:
        _check_layout(node, found[node.name])
        _check_clients(node, found[node.name])
    return found


def plugin_configs(wanted: Kubernetes, by_node: Mapping[str, Config]) -> Mapping[str, Config]:
    """Return the configurations that the device plugin has to know, by name: those of the nodes, and the default one.

    The default is there also where each of these nodes has another: a node that comes without the label gets it.
    """
    default = default_config(wanted)
    return {config.name: config for config in (default, *by_node.values())}


def check_configs(wanted: Kubernetes) -> None:
    """Nothing, where each configuration makes sense whatever the nodes are.

    Raises:
        Refused: one of them contradicts itself, or cannot be told from another.
    """
    default = default_config(wanted)
    _check(default, "[kubernetes.sharing]")
    for one, config in _named_configs(wanted):
        where = f"[kubernetes.configs.{config.name}]"
        _check(config, where)
        if not one.gpus:
            raise Refused(
                f"{where} says no gpus",
                why="gpunode cannot tell which nodes it is for",
                hint=f'say which GPUs it is for, such as gpus = "A100", in {where}',
            )
        if config.name == default.name:
            raise Refused(
                f"{where} has the name of the configuration that all other nodes get",
                why="nodes choose a configuration by its name",
                hint="give the table another name",
            )


def _named_configs(wanted: Kubernetes) -> list[tuple[NamedConfig, Config]]:
    return [(one, _named(name, one)) for name, one in wanted.configs.items()]


def unmatched(wanted: Kubernetes, nodes: Sequence[ClusterNode]) -> Iterator[str]:
    """A sentence for each named configuration that no node has, and for each node that fits one only in part."""
    for name, one in wanted.configs.items():
        fits = {node.name: [one.gpus.lower() in gpu.name.lower() for gpu in node.gpus] for node in nodes}
        if not any(all(found) for found in fits.values()):
            yield f"No node gets the configuration {name}: none has only GPUs whose names contain {one.gpus!r}."
        for node, found in fits.items():
            if any(found) and not all(found):
                yield f"{node} has other GPUs beside {one.gpus!r}, so it does not get the configuration {name}."


def _named(name: str, one: NamedConfig) -> Config:
    return Config(name, one.mode, one.replicas, one.rename, one.strategy, one.layout)


def _of(node: ClusterNode, default: Config, named: Sequence[tuple[NamedConfig, Config]]) -> Config:
    fitting = [config for one, config in named if one.fits([gpu.name for gpu in node.gpus])]
    if len(fitting) > 1:
        names = " and ".join(config.name for config in fitting)
        raise Refused(
            f"{node.name} fits several configurations: {names}",
            why=f"its GPUs are {counted(node)}",
            hint="make gpus in [kubernetes.configs] more exact, so that each node fits one",
        )
    return fitting[0] if fitting else default


def _check_clients(node: ClusterNode, config: Config) -> None:
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


def _check(config: Config, where: str) -> None:
    """Nothing, where the device plugin can do it. Source: NVIDIA/k8s-device-plugin 0.20.0, api/config/v1."""
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
    if config.layout and config.strategy == "none" and config.layout != mig.NO_LAYOUT:
        raise Refused(
            f"{where}: the MIG layout {config.layout} needs a strategy",
            why="with strategy none the device plugin does not offer MIG instances",
            hint='set strategy = "single" or "mixed" beside layout',
        )
    if config.strategy == "single" and config.layout == mig.BALANCED:
        raise Refused(
            f"{where}: the layout {mig.BALANCED} has instances of several sizes",
            why="strategy single offers instances of one size",
            hint='set strategy = "mixed"',
        )


def _check_layout(node: ClusterNode, config: Config) -> None:
    if config.strategy == "none":
        return
    for gpu in node.gpus:
        known = mig.profiles(gpu.device_id)
        if not known:
            raise Refused(
                f"{node.name}: gpunode knows no MIG profile of {gpu.name}",
                why="either the GPU has no MIG, or it is too new for this gpunode",
                hint='give these nodes a table of their own in [kubernetes.configs], with gpus and strategy = "none"',
            )
        profile = mig.profile_of(config.layout)
        if profile and profile not in known:
            raise Refused(
                f"{node.name}: {gpu.name} has no MIG profile {profile}, which the layout {config.layout} needs",
                why=f"it has {', '.join(known)}",
                hint=f"use one of these: {', '.join(mig.layout_of(one) for one in known)}, {mig.BALANCED}",
            )


def instances(node: ClusterNode, layout: str) -> Mapping[str, int] | None:
    """How many MIG instances of each profile the node has in that layout; None where the name does not tell."""
    found: Counter[str] = Counter()
    for gpu in node.gpus:
        one = mig.counts(gpu.device_id, layout)
        if one is None:
            return None
        found.update(one)
    return found


def offered(node: ClusterNode, config: Config) -> Mapping[str, int] | None:
    """How many of each resource the node offers; None where that depends on a MIG layout that nobody names."""
    base = _units(node, config)
    if base is None:
        return None
    suffix = ".shared" if config.rename else ""
    return {f"{name}{suffix}": count * config.replicas for name, count in base.items()}


def _units(node: ClusterNode, config: Config) -> Mapping[str, int] | None:
    if config.strategy == "none":
        return {GPU: len(node.gpus)}
    found = instances(node, config.layout)
    if found is None or config.strategy == "single":
        return None if found is None else {GPU: sum(found.values())}
    return {resource_of(profile): count for profile, count in sorted(found.items())}


def resource_of(profile: str) -> str:
    """The resource by which the device plugin offers instances of the profile with strategy mixed."""
    return f"{MIG}{profile.replace('+', '.')}"


def resources_of(node: ClusterNode, config: Config) -> tuple[str, ...]:
    """Return the resources that the node offers; empty where only a MIG layout tells, and nobody names it."""
    if offer := offered(node, config):
        return tuple(offer)
    return (f"{GPU}{'.shared' if config.rename else ''}",) if config.strategy == "single" else ()


def shared_resources(nodes: Sequence[ClusterNode], config: Config) -> tuple[str, ...]:
    """The resources whose replicas the device plugin multiplies, for these nodes."""
    if config.strategy != "mixed":
        return (GPU,)
    # The plugin takes no empty list, and leaves alone what a node does not have.
    return tuple(dict.fromkeys(sorted(_mixed(nodes, config) if nodes else map(resource_of, mig.every_profile()))))


def _mixed(nodes: Sequence[ClusterNode], config: Config) -> Iterator[str]:
    for node in nodes:
        found = instances(node, config.layout)
        profiles = found or {name for gpu in node.gpus for name in mig.profiles(gpu.device_id)}
        yield from map(resource_of, profiles)


def counted(node: ClusterNode) -> str:
    """The node's GPUs in words (``8 × H100 80GB HBM3``)."""
    names = Counter(gpu.name.removeprefix("NVIDIA ") for gpu in node.gpus)
    return ", ".join(f"{count} × {name}" for name, count in names.items())


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
