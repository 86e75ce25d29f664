"""CDI specifications: what a container engine gives a container that asks for ``nvidia.com/gpu=…``. Pure.

Specifications are JSON or YAML. One that gpunode cannot read says why (``Unread``), and is never guessed.

Source: cdi@v1.0 SPEC.md, pkg/cdi/spec-dirs.go and cache.go (what counts as a file, which one wins);
nvidia-container-toolkit@v1.20.0, cmd/nvidia-ctk/cdi/generate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpunode import yaml
from gpunode.facts.patterns import Pattern
from gpunode.facts.probes import CDI_FOLDERS, CDI_KIND

_ENDINGS = (".yaml", ".json")
_DRIVER_FILE = Pattern(r"\.so\.(\d{3,}(?:\.\d+){1,2})\Z|/firmware/nvidia/(\d{3,}(?:\.\d+){1,2})/")
_MIG_CAP = Pattern(r"/dev/nvidia-caps/nvidia-cap(\d+)\Z")
_GPU_NODE = Pattern(r"/dev/nvidia(\d+)\Z")


@dataclass(frozen=True, slots=True)
class Edits:
    """What is done to a container: device nodes, files and programs of the host, by their paths there."""

    nodes: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Spec:
    """A specification.

    Attributes:
        version: of CDI, that a reader must know (``0.5.0``).
        devices: by name; each with what it alone brings.
        edits: what every one of them brings.
    """

    path: str
    version: str
    kind: str
    devices: Mapping[str, Edits]
    edits: Edits

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path of the host that it names."""
        every = (self.edits, *self.devices.values())
        return tuple(dict.fromkeys(path for one in every for path in (*one.nodes, *one.mounts, *one.hooks)))

    @property
    def drivers(self) -> frozenset[str]:
        """The versions of the driver whose files it brings."""
        found = (_DRIVER_FILE.search(path) for path in self.paths)
        return frozenset(match[1] or match[2] for match in found if match)

    @property
    def gpus(self) -> frozenset[int]:
        """The minor numbers of the GPUs whose nodes it brings."""
        return _numbers(_GPU_NODE, self.paths)

    @property
    def mig_caps(self) -> frozenset[int]:
        """The minor numbers of the capabilities of MIG instances that it brings."""
        return _numbers(_MIG_CAP, self.paths)


@dataclass(frozen=True, slots=True)
class Unread:
    """A file that a container engine may be able to read, and gpunode is not."""

    path: str
    reason: str


def _numbers(pattern: Pattern, paths: Iterable[str]) -> frozenset[int]:
    return frozenset(int(found[1]) for path in paths if (found := pattern.match(path)))


def is_spec(path: str) -> bool:
    """Whether an engine reads the file: one of these two endings, right in the folder."""
    return path.endswith(_ENDINGS)


def read(path: str, data: bytes) -> Spec | Unread:
    """The specification in ``data``."""
    try:
        return _spec(path, yaml.load(data.decode()))
    except ValueError as error:
        return Unread(path, str(error)[:300])


def _spec(path: str, document: Any) -> Spec:
    if not isinstance(document, dict):
        raise ValueError("it is not a mapping")
    devices = _list(document, "devices")
    return Spec(
        path,
        version=_text(document, "cdiVersion"),
        kind=_text(document, "kind"),
        devices={_text(device, "name"): _edits(device) for device in devices},
        edits=_edits(document),
    )


def _edits(holder: Mapping[str, Any]) -> Edits:
    edits = holder.get("containerEdits") or {}
    if not isinstance(edits, dict):
        raise ValueError("containerEdits is not a mapping")
    return Edits(
        nodes=tuple(
            _text(node, "hostPath" if node.get("hostPath") else "path") for node in _list(edits, "deviceNodes")
        ),
        mounts=tuple(_text(mount, "hostPath") for mount in _list(edits, "mounts")),
        hooks=tuple(_text(hook, "path") for hook in _list(edits, "hooks")),
    )


def _list(holder: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    found = holder.get(key) or []
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise ValueError(f"{key} is not a list of mappings")
    return found


def _text(holder: Mapping[str, Any], key: str) -> str:
    value = holder.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{key} is {'missing' if value is None else 'not text'}")
    return value


# What the specifications of a node say together.


@dataclass(frozen=True, slots=True)
class Offer:
    """What a container gets that asks for a device of kind nvidia.com/gpu.

    Attributes:
        specs: the readable specifications of that kind, the one with the last word last.
        unread: files that may say something of it, too.
        devices: the name of each device to the specification that it is taken from.
        conflicts: names that two files of one folder have: no engine resolves them.
    """

    specs: tuple[Spec, ...] = ()
    unread: tuple[Unread, ...] = ()
    devices: Mapping[str, Spec] = field(default_factory=dict)
    conflicts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def offer(files: Mapping[str, bytes], folders: Sequence[str] = CDI_FOLDERS) -> Offer:
    """What the specifications among ``files`` offer to an engine that reads ``folders``."""
    order = {folder: place for place, folder in enumerate(folders)}
    paths = [path for path in files if path.rpartition("/")[0] in order and is_spec(path)]
    ordered = sorted(paths, key=lambda path: (order[path.rpartition("/")[0]], path))
    every = [read(path, files[path]) for path in ordered]
    specs = tuple(one for one in every if isinstance(one, Spec) and one.kind == CDI_KIND)
    devices: dict[str, Spec] = {}
    conflicts: dict[str, tuple[str, ...]] = {}
    for spec in specs:
        for name in spec.devices:
            former = devices.get(name)
            if former is not None and _folder(former) == _folder(spec):
                conflicts[name] = (*conflicts.get(name, (former.path,)), spec.path)
            else:
                conflicts.pop(name, None)
            devices[name] = spec
    taken = {name: spec for name, spec in devices.items() if name not in conflicts}
    return Offer(specs, tuple(one for one in every if isinstance(one, Unread)), taken, conflicts)


def _folder(spec: Spec) -> str:
    return spec.path.rpartition("/")[0]
