"""CDI specifications, by which container engines resolve ``nvidia.com/gpu=…``. Pure.

Specifications are JSON or YAML. One that gpunode cannot read is ``UnreadableSpec`` with a reason, and never guessed.

Source: cdi@v1.0 SPEC.md, pkg/cdi/spec-dirs.go and cache.go (what counts as a file, which one wins);
nvidia-container-toolkit@v1.20.0, cmd/nvidia-ctk/cdi/generate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from gpunode import yaml
from gpunode.facts.patterns import Pattern
from gpunode.facts.probes import CDI_FOLDERS, CDI_KIND
from gpunode.fast_dataclass import dataclass

_SPEC_FILE_ENDINGS = (".yaml", ".json")
_DRIVER_VERSION_IN_PATH = Pattern(r"\.so\.(\d{3,}(?:\.\d+){1,2})\Z|/firmware/nvidia/(\d{3,}(?:\.\d+){1,2})/")
_MIG_CAPABILITY_DEVICE = Pattern(r"/dev/nvidia-caps/nvidia-cap(\d+)\Z")
_GPU_DEVICE_NODE = Pattern(r"/dev/nvidia(\d+)\Z")


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """Device nodes, files and hooks added to a container, by their paths on the host."""

    nodes: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CdiSpec:
    """A specification.

    Attributes:
        version: the version of CDI that a reader must support (``0.5.0``).
        devices: by name, each with its own edits.
        edits: those applied with every device.
    """

    path: str
    version: str
    kind: str
    devices: Mapping[str, ContainerEdits]
    edits: ContainerEdits

    @property
    def paths(self) -> tuple[str, ...]:
        """Every host path in the specification."""
        every = (self.edits, *self.devices.values())
        return tuple(dict.fromkeys(path for one in every for path in (*one.nodes, *one.mounts, *one.hooks)))

    @property
    def drivers(self) -> frozenset[str]:
        """Driver versions in the names of the mounted files."""
        matches = (_DRIVER_VERSION_IN_PATH.search(path) for path in self.paths)
        return frozenset(match[1] or match[2] for match in matches if match)

    @property
    def gpus(self) -> frozenset[int]:
        """Minor numbers of the GPUs whose device nodes are added."""
        return _match_numbers(_GPU_DEVICE_NODE, self.paths)

    @property
    def mig_capabilities(self) -> frozenset[int]:
        """Minor numbers of the MIG capability nodes that are added."""
        return _match_numbers(_MIG_CAPABILITY_DEVICE, self.paths)


@dataclass(frozen=True, slots=True)
class UnreadableSpec:
    """A file that gpunode cannot read, though a container engine might."""

    path: str
    reason: str


def _match_numbers(pattern: Pattern, paths: Iterable[str]) -> frozenset[int]:
    return frozenset(int(match[1]) for path in paths if (match := pattern.match(path)))


def is_spec_path(path: str) -> bool:
    """Return True if an engine reads files of this name."""
    return path.endswith(_SPEC_FILE_ENDINGS)


def read_spec(path: str, data: bytes) -> CdiSpec | UnreadableSpec:
    """Parse ``data``, the content of the file at ``path``."""
    try:
        return _parse_spec(path, yaml.load(data.decode()))
    except ValueError as error:
        return UnreadableSpec(path, str(error)[:300])


def _parse_spec(path: str, document: Any) -> CdiSpec:
    if not isinstance(document, dict):
        raise ValueError("it is not a mapping")
    devices = _get_mappings(document, "devices")
    return CdiSpec(
        path,
        version=_get_text(document, "cdiVersion"),
        kind=_get_text(document, "kind"),
        devices={_get_text(device, "name"): _parse_edits(device) for device in devices},
        edits=_parse_edits(document),
    )


def _parse_edits(holder: Mapping[str, Any]) -> ContainerEdits:
    edits = holder.get("containerEdits") or {}
    if not isinstance(edits, dict):
        raise ValueError("containerEdits is not a mapping")
    return ContainerEdits(
        nodes=tuple(
            _get_text(node, "hostPath" if node.get("hostPath") else "path")
            for node in _get_mappings(edits, "deviceNodes")
        ),
        mounts=tuple(_get_text(mount, "hostPath") for mount in _get_mappings(edits, "mounts")),
        hooks=tuple(_get_text(hook, "path") for hook in _get_mappings(edits, "hooks")),
    )


def _get_mappings(holder: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    value = holder.get(key) or []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError(f"{key} is not a list of mappings")
    return value


def _get_text(holder: Mapping[str, Any], key: str) -> str:
    value = holder.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{key} is {'missing' if value is None else 'not text'}")
    return value


@dataclass(frozen=True, slots=True)
class CdiDevices:
    """The devices of kind nvidia.com/gpu that containers can request.

    Attributes:
        specs: the readable specifications of that kind, in ascending priority.
        unreadable: files that may define devices, too.
        devices: the specification that defines each device, by device name.
        conflicts: names defined by two files of one folder, with the files; no engine resolves these.
    """

    specs: tuple[CdiSpec, ...] = ()
    unreadable: tuple[UnreadableSpec, ...] = ()
    devices: Mapping[str, CdiSpec] = field(default_factory=dict)
    conflicts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def resolve_devices(files: Mapping[str, bytes], folders: Sequence[str] = CDI_FOLDERS) -> CdiDevices:
    """Return the devices that an engine finds if it reads ``folders``, the last of which wins."""
    order = {folder: place for place, folder in enumerate(folders)}
    paths = [path for path in files if path.rpartition("/")[0] in order and is_spec_path(path)]
    ordered = sorted(paths, key=lambda path: (order[path.rpartition("/")[0]], path))
    every = [read_spec(path, files[path]) for path in ordered]
    specs = tuple(spec for spec in every if isinstance(spec, CdiSpec) and spec.kind == CDI_KIND)
    devices: dict[str, CdiSpec] = {}
    conflicts: dict[str, tuple[str, ...]] = {}
    for spec in specs:
        for name in spec.devices:
            former = devices.get(name)
            if former is not None and _folder_of(former) == _folder_of(spec):
                conflicts[name] = (*conflicts.get(name, (former.path,)), spec.path)
            else:
                conflicts.pop(name, None)
            devices[name] = spec
    taken = {name: spec for name, spec in devices.items() if name not in conflicts}
    return CdiDevices(specs, tuple(spec for spec in every if isinstance(spec, UnreadableSpec)), taken, conflicts)


def _folder_of(spec: CdiSpec) -> str:
    return spec.path.rpartition("/")[0]
