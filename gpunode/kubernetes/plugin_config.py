"""The configuration file of NVIDIA's device plugin and of GPU Feature Discovery (``version: v1``).

Source: NVIDIA/k8s-device-plugin 0.20.0, api/config/v1. The plugin drops a key that it does not know without a word
(k8s-device-plugin issue 1433), ignores ``rename`` and ``devices`` with a warning, and lets MPS win where both kinds of
sharing are given; ``mistakes`` names all of that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpunode.kubernetes.model import ClusterNode
from gpunode.kubernetes.sharing import Config, shared_resources

_KEYS_OF_SHARING: Final = {"time-slicing": "timeSlicing", "mps": "mps"}


def plugin_config(config: Config, nodes: Sequence[ClusterNode]) -> Mapping[str, Any]:
    """The file for the nodes that have this configuration."""
    wanted: dict[str, Any] = {"version": "v1", "flags": {"migStrategy": config.strategy}}
    if config.mode != "none":
        resources = [{"name": name, "replicas": config.replicas} for name in shared_resources(nodes, config)]
        # A pod that asks for two shares would get two of the same GPU, and no more of it.
        sharing = {"renameByDefault": config.rename, "failRequestsGreaterThanOne": True, "resources": resources}
        wanted["sharing"] = {_KEYS_OF_SHARING[config.mode]: sharing}
    assert not list(mistakes(wanted)), wanted
    return wanted


@dataclass(frozen=True, slots=True)
class _Text:
    pattern: str = ".*"


@dataclass(frozen=True, slots=True)
class _List:
    item: Any
    least: int = 0
    most: int = 1000


_DEVICE_LISTS: Final = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")
_RESOURCE: Final = _Text(r"(nvidia\.com/)?[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_PATTERNS: Final = _List({"pattern": _Text(), "name": _RESOURCE})
_REPLICATED: Final = {
    "renameByDefault": bool,
    "failRequestsGreaterThanOne": bool,
    "resources": _List({"name": _RESOURCE, "replicas": int}, least=1),
}
# What each key may hold: a type, the words allowed, a text, a list, or a table of keys.
_SHAPE: Final[Mapping[str, Any]] = {
    "version": ("v1",),
    "flags": {
        "migStrategy": ("none", "single", "mixed"),
        "failOnInitError": bool,
        "mpsRoot": _Text(),
        "nvidiaDriverRoot": _Text(),
        "nvidiaDevRoot": _Text(),
        "gdrcopyEnabled": bool,
        "gdsEnabled": bool,
        "mofedEnabled": bool,
        "useNodeFeatureAPI": bool,
        "deviceDiscoveryStrategy": ("auto", "nvml", "tegra"),
        "plugin": {
            "passDeviceSpecs": bool,
            "deviceListStrategy": [_DEVICE_LISTS, _List(_DEVICE_LISTS, least=1)],
            "deviceIDStrategy": ("uuid", "index"),
            "cdiAnnotationPrefix": _Text(),
            "nvidiaCTKPath": _Text(),
            "containerDriverRoot": _Text(),
            "sharedDevicesAllocationPolicy": ("distributed", "packed"),
        },
        "gfd": {
            "oneshot": bool,
            "noTimestamp": bool,
            "sleepInterval": _Text(),
            "outputFile": _Text(),
            "machineTypeFile": _Text(),
        },
    },
    "resources": {"gpus": _PATTERNS, "mig": _PATTERNS},
    "sharing": {"timeSlicing": _REPLICATED, "mps": _REPLICATED},
    "imex": {"channelIDs": _List(int, most=1), "required": bool},
}
_NEEDED: Final = (("version",), ("sharing", "timeSlicing", "resources"), ("sharing", "mps", "resources"))


def mistakes(document: object) -> Iterator[str]:
    """What is wrong with a configuration, a sentence each, with the path of the key; nothing where all is right."""
    if not isinstance(document, Mapping):
        yield "it is not a table of keys"
        return
    yield from _unlike(document, _SHAPE, "")
    yield from (f"{'.'.join(path)} is missing" for path in _NEEDED if _lacks(document, path))
    yield from _contradictions(document)


def _unlike(value: object, shape: Any, path: str) -> Iterator[str]:
    match shape:
        case dict():
            yield from _unlike_table(value, shape, path)
        case _List():
            yield from _unlike_list(value, shape, path)
        case list():
            one, several = shape
            yield from _unlike(value, several if isinstance(value, list) else one, path)
        case _:
            if not _fits(value, shape):
                yield f"{path} is {value!r}; allowed: {_allowed(shape)}"


def _fits(value: object, shape: Any) -> bool:
    if isinstance(shape, _Text):
        return isinstance(value, str) and re.fullmatch(shape.pattern, value) is not None
    return value in shape if isinstance(shape, tuple) else type(value) is shape


def _allowed(shape: Any) -> str:
    if isinstance(shape, tuple):
        return ", ".join(shape)
    return {bool: "true, false", int: "a whole number"}.get(shape, "a text that fits")


def _unlike_list(value: object, shape: _List, path: str) -> Iterator[str]:
    if not isinstance(value, list) or not shape.least <= len(value) <= shape.most:
        yield f"{path} is {value!r}; allowed: a list of {shape.least} to {shape.most} items"
        return
    for number, one in enumerate(value):
        yield from _unlike(one, shape.item, f"{path}[{number}]")


def _unlike_table(value: object, shape: Mapping[str, Any], path: str) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"{path} is {value!r}, not a table of keys"
        return
    for key, held in value.items():
        inner = f"{path}.{key}".lstrip(".")
        if key not in shape:
            yield f"there is no key {inner}: the plugin would ignore it; allowed: {', '.join(shape)}"
        else:
            yield from _unlike(held, shape[key], inner)


def _lacks(document: Mapping[str, Any], path: Sequence[str]) -> bool:
    """Whether the table around the last key of ``path`` is there, and the key is not."""
    held: Any = document
    for key in path[:-1]:
        held = held.get(key) if isinstance(held, Mapping) else None
    return isinstance(held, Mapping) and path[-1] not in held


def _contradictions(document: Mapping[str, Any]) -> Iterator[str]:
    flags, sharing, imex = (_table(document, key) for key in ("flags", "sharing", "imex"))
    if "timeSlicing" in sharing and "mps" in sharing:
        yield "sharing has timeSlicing and mps: the plugin would ignore timeSlicing"
    if "mps" in sharing and flags.get("migStrategy") in {"single", "mixed"}:
        yield "sharing.mps with MIG: the plugin does not start"
    for kind, held in sharing.items():
        resources = held.get("resources", []) if isinstance(held, Mapping) else []
        for one in resources if isinstance(resources, list) else []:
            replicas = one.get("replicas") if isinstance(one, Mapping) else None
            if replicas is None:
                yield f"sharing.{kind}.resources: replicas is missing"
            elif type(replicas) is int and replicas < 2:
                yield f"sharing.{kind}.resources: replicas is {replicas}; the plugin takes 2 or more"
    if any(channel != 0 for channel in imex.get("channelIDs", []) if type(channel) is int):
        yield "imex.channelIDs may be [] or [0]"


def _table(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    held = document.get(key)
    return held if isinstance(held, Mapping) else {}
