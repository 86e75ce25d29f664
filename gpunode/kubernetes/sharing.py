"""Which node offers its GPUs how: named configurations of the device plugin, from a recipe and the nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpunode.catalog import mig
from gpunode.errors import Refused
from gpunode.kubernetes.model import ClusterNode
from gpunode.recipe_kubernetes import Kubernetes, MigStrategy, NamedConfig, SharingMode

GPU: Final = "nvidia.com/gpu"
_NO_LAYOUT: Final = "all-disabled"
_BALANCED: Final = "all-balanced"


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
    default = default_config(wanted)
    named = [(one, _named(name, one)) for name, one in wanted.configs.items()]
    for config in (default, *(config for _, config in named)):
        _check(config, where="[kubernetes.sharing]" if config is default else f"[kubernetes.configs.{config.name}]")
    for one, config in named:
        if not one.gpus:
            raise _contradiction(
                f"[kubernetes.configs.{config.name}] says no gpus",
                "gpunode cannot tell which nodes it is for",
                f'say which GPUs it is for, such as gpus = "A100", in [kubernetes.configs.{config.name}]',
            )
    found = {node.name: _of(node, default, named) for node in nodes}
    for node in nodes:
        _check_layout(node, found[node.name])
    return found


def _named(name: str, one: NamedConfig) -> Config:
    return Config(name, one.mode, one.replicas, one.rename, one.strategy, one.layout)


def _of(node: ClusterNode, default: Config, named: Sequence[tuple[NamedConfig, Config]]) -> Config:
    fitting = [config for one, config in named if all(one.gpus.lower() in gpu.name.lower() for gpu in node.gpus)]
    if len(fitting) > 1:
        names = " and ".join(config.name for config in fitting)
        raise Refused(
            f"{node.name} fits several configurations: {names}",
            why=f"its GPUs are {counted(node)}",
            hint="make gpus in [kubernetes.configs] more exact, so that each node fits one",
        )
    return fitting[0] if fitting else default


def _contradiction(what: str, why: str, hint: str) -> Refused:
    return Refused(what, why=why, hint=hint)


def _check(config: Config, where: str) -> None:
    """Nothing, where the device plugin can do it. Source: NVIDIA/k8s-device-plugin 0.20.0, api/config/v1."""
    if config.mode != "none" and config.replicas < 2:
        raise _contradiction(
            f"{where}: {config.mode} with {config.replicas} replica shares nothing",
            "the device plugin takes 2 or more",
            f"set replicas to the number of pods that share a GPU, in {where}",
        )
    if config.mode == "none" and config.replicas > 1:
        raise _contradiction(
            f"{where}: {config.replicas} replicas, but mode is none",
            "without sharing each GPU is offered once",
            f'set mode = "time-slicing" or "mps" in {where}, or leave replicas out',
        )
    if config.mode == "none" and config.rename:
        raise _contradiction(
            f"{where}: rename is for shared GPUs, but mode is none",
            "a GPU that is not shared is offered as nvidia.com/gpu",
            f"leave rename out of {where}, or set a mode",
        )
    if config.mode == "mps" and config.strategy != "none":
        raise _contradiction(
            f"{where}: MPS and MIG exclude each other",
            "the device plugin does not start MPS on GPUs in MIG mode",
            "use time-slicing with MIG, or MPS on whole GPUs",
        )
    if config.layout and config.strategy == "none" and config.layout != _NO_LAYOUT:
        raise _contradiction(
            f"{where}: the MIG layout {config.layout} needs a strategy",
            "with strategy none the device plugin does not offer MIG instances",
            'set strategy = "single" or "mixed" beside layout',
        )
    if config.strategy == "single" and config.layout == _BALANCED:
        raise _contradiction(
            f"{where}: the layout {_BALANCED} has instances of several sizes",
            "strategy single offers instances of one size",
            'set strategy = "mixed"',
        )


def _check_layout(node: ClusterNode, config: Config) -> None:
    if config.strategy == "none":
        return
    for gpu in node.gpus:
        known = mig.profiles(gpu.device_id)
        if not known:
            raise Refused(
                f"{node.name}: {gpu.name} has no MIG",
                why="no MIG profile is known for this GPU",
                hint='give these nodes a table of their own in [kubernetes.configs], with gpus and strategy = "none"',
            )
        profile = profile_of(config.layout)
        if profile and profile not in known:
            raise Refused(
                f"{node.name}: {gpu.name} has no MIG profile {profile}, which the layout {config.layout} needs",
                why=f"it has {', '.join(known)}",
                hint=f"use one of these: {', '.join(layout_of(one) for one in known)}, {_BALANCED}",
            )


def layout_of(profile: str) -> str:
    """The name by which mig-parted calls a layout of this profile alone."""
    return f"all-{profile.replace('+', '.')}"


def profile_of(layout: str) -> str:
    """The profile of a layout that has one alone (``all-1g.10gb``); empty for all others."""
    name = layout.removeprefix("all-")
    if name == layout or layout in {_NO_LAYOUT, _BALANCED, "all-enabled"}:
        return ""
    size, memory, *rest = name.split(".")
    return f"{size}.{memory}{'+' if rest else ''}{'.'.join(rest)}"


def instances(node: ClusterNode, layout: str) -> Mapping[str, int] | None:
    """How many MIG instances of each profile the node has in that layout; None where the name does not tell."""
    found: Counter[str] = Counter()
    profile = profile_of(layout)
    if not profile and layout != _BALANCED:
        return None
    for gpu in node.gpus:
        one = mig.balanced(gpu.device_id) if layout == _BALANCED else {profile: mig.profiles(gpu.device_id)[profile]}
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
    return f"nvidia.com/mig-{profile.replace('+', '.')}"


def shared_resources(nodes: Sequence[ClusterNode], config: Config) -> tuple[str, ...]:
    """The resources whose replicas the device plugin multiplies, for these nodes."""
    if config.strategy != "mixed":
        return (GPU,)
    return tuple(dict.fromkeys(sorted(_mixed(nodes, config))))


def _mixed(nodes: Sequence[ClusterNode], config: Config) -> Iterator[str]:
    for node in nodes:
        found = instances(node, config.layout)
        profiles = found or {name for gpu in node.gpus for name in mig.profiles(gpu.device_id)}
        yield from map(resource_of, profiles)


def counted(node: ClusterNode) -> str:
    """The node's GPUs in words (``8 × H100 80GB HBM3``)."""
    names = Counter(gpu.name.removeprefix("NVIDIA ") for gpu in node.gpus)
    return ", ".join(f"{count} × {name}" for name, count in names.items())
