"""mig-parted's configuration file, version v1, which a recipe may name. Pure.

Source: NVIDIA/mig-parted api/spec/v1/spec.go (commit bd7160f, 2026-08-21), with these rules: no unknown keys, devices
and mig-enabled are required, mig-devices is required if mig-enabled is true and not allowed otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from gpunode import yaml
from gpunode.errors import MigFileError
from gpunode.fast_dataclass import dataclass

if TYPE_CHECKING:
    from yaml import Node

_PROFILE_NAME: Final = re.compile(r"\d+g\.\d+gb(\+[a-z]+(\.[a-z]+)*|-me)?")
_PROFILE_NAME_IN_WORDS: Final = ("a profile such as 1g.10gb or 1g.10gb+me",)
_DEVICE_FILTER: Final = re.compile(r"0[xX]([0-9a-fA-F]{4})10[dD][eE](:0[xX]([0-9a-fA-F]{4})([0-9a-fA-F]{4}))?")
_DEVICE_FILTER_IN_WORDS: Final = ("PCI ids such as 0x233010DE, or with the board's as in 0x20B010DE:0x134F10DE",)


@dataclass(frozen=True, slots=True)
class MigConfigEntry:
    """An entry of a configuration for certain GPUs.

    Attributes:
        models: device ids, each with the board's subsystem ids (device, vendor) or None for any; empty for all GPUs.
        indices: the GPUs' indices in PCI bus order; None for all.
        instances: the number of instances of each profile; None if MIG is off.
    """

    models: tuple[tuple[str, tuple[str, str] | None], ...]
    indices: frozenset[int] | None
    instances: Mapping[str, int] | None

    def fits(self, index: int, device: str, subsystem: tuple[str, str] | None) -> bool:
        """Return whether it is for this GPU; ``subsystem`` is the board's vendor and device."""
        board = subsystem and (subsystem[1], subsystem[0])
        is_model = any(one == device and wanted in {None, board} for one, wanted in self.models)
        return (is_model or not self.models) and (self.indices is None or index in self.indices)


def read_mig_configurations(data: bytes, file: str) -> Mapping[str, tuple[MigConfigEntry, ...]]:
    """Read the configurations in ``data``, the content of ``file``, by name; the last entry that fits a GPU counts.

    Raises:
        MigFileError: it is not such a file; names line and key.
    """
    try:
        root = yaml.compose(data.decode())
    except UnicodeDecodeError:
        raise MigFileError("not UTF-8", file=file) from None
    except yaml.YamlError as error:
        raise MigFileError(error.reason, file=file, line=error.line) from None
    return _Reader(file).parse_mig_file(root)


@dataclass(frozen=True, slots=True)
class _Reader:
    file: str

    def parse_mig_file(self, root: Node | None) -> Mapping[str, tuple[MigConfigEntry, ...]]:
        if root is None:
            raise MigFileError("empty", file=self.file, allowed=("version", "mig-configs"))
        top = self._read_mapping(root, "the file", ("version", "mig-configs"), needed=("version", "mig-configs"))
        if (version := self._read_text(top["version"], "version")) != "v1":
            self._fail(top["version"], f"version is {version!r}", ("v1",))
        named = self._read_mapping(top["mig-configs"], "mig-configs")
        if not named:
            self._fail(top["mig-configs"], "mig-configs has no entry")
        return MappingProxyType({name: self._read_entries(node, f"mig-configs.{name}") for name, node in named.items()})

    def _read_entries(self, node: Node, key: str) -> tuple[MigConfigEntry, ...]:
        if node.id != "sequence":
            self._fail(node, f"{key} is not a list")
        if not node.value:
            self._fail(node, f"{key} has no entry")
        return tuple(self._read_entry(row, key) for row in node.value)

    def _read_entry(self, node: Node, key: str) -> MigConfigEntry:
        allowed = ("device-filter", "devices", "mig-enabled", "mig-devices")
        row = self._read_mapping(node, key, allowed, needed=("devices", "mig-enabled"))
        enabled = self._read_boolean(row["mig-enabled"], f"{key}.mig-enabled")
        devices = row.get("mig-devices")
        if enabled and devices is None:
            self._fail(node, f"{key} lacks mig-devices, which mig-enabled: true needs")
        instances = self._read_instances(devices, f"{key}.mig-devices") if devices is not None else {}
        if not enabled and instances:
            self._fail(devices, f"{key}.mig-devices names instances, but mig-enabled is false")
        models = row.get("device-filter")
        return MigConfigEntry(
            self._read_device_filter(models, f"{key}.device-filter") if models is not None else (),
            self._read_indices(row["devices"], f"{key}.devices"),
            MappingProxyType(instances) if enabled else None,
        )

    def _read_instances(self, node: Node, key: str) -> dict[str, int]:
        counts: dict[str, int] = {}
        for profile, count in self._read_mapping(node, key).items():
            if "c." in profile:
                self._fail(count, f"{key}.{profile}: gpunode makes one compute instance in each GPU instance")
            if not _PROFILE_NAME.fullmatch(profile):
                self._fail(count, f"{key}.{profile} is not a MIG profile", _PROFILE_NAME_IN_WORDS)
            counts[profile] = self._read_number(count, f"{key}.{profile}")
        if counts and not any(counts.values()):
            self._fail(node, f"{key}: all counts are 0")
        return {profile: count for profile, count in counts.items() if count}

    def _read_device_filter(self, node: Node, key: str) -> tuple[tuple[str, tuple[str, str] | None], ...]:
        nodes = node.value if node.id == "sequence" else [node]
        found = []
        for one in nodes:
            match = _DEVICE_FILTER.fullmatch(text := self._read_text(one, key))
            if match is None:
                self._fail(one, f"{key} holds {text[:60]!r}", _DEVICE_FILTER_IN_WORDS)
            found.append((match[1].lower(), (match[3].lower(), match[4].lower()) if match[2] else None))
        return tuple(found)

    def _read_indices(self, node: Node, key: str) -> frozenset[int] | None:
        if node.id == "sequence":
            return frozenset(self._read_number(one, key) for one in node.value)
        if self._read_text(node, key) != "all":
            self._fail(node, f"{key} is {node.value[:60]!r}", ("all", "a list of GPUs such as [0, 1]"))
        return None

    def _read_mapping(
        self, node: Node, key: str, allowed: Sequence[str] = (), needed: Sequence[str] = ()
    ) -> dict[str, Node]:
        if node.id != "mapping":
            self._fail(node, f"{key} is not a mapping", allowed)
        values: dict[str, Node] = {}
        for name, value in node.value:
            word = self._read_text(name, f"a key of {key}")
            if word in values:
                self._fail(name, f"{key} has {word} twice")
            if allowed and word not in allowed:
                self._fail(name, f"{key} has no key {word[:60]}", allowed)
            values[word] = value
        for word in needed:
            if word not in values:
                self._fail(node, f"{key} lacks {word}", allowed)
        return values

    def _read_text(self, node: Node, key: str) -> str:
        # YAML reads an unquoted 0x233010DE as a number, but its text is the same; mig-parted requires quotes.
        if node.id != "scalar" or not node.tag.endswith((":str", ":int")):
            self._fail(node, f"{key} is not a text")
        return str(node.value)

    def _read_number(self, node: Node, key: str) -> int:
        if node.id != "scalar" or not node.tag.endswith(":int") or not re.fullmatch(r"[0-9]{1,2}", node.value):
            self._fail(node, f"{key} is not a number", ("a whole number from 0 to 99",))
        return int(node.value)

    def _read_boolean(self, node: Node, key: str) -> bool:
        if node.id != "scalar" or not node.tag.endswith(":bool") or node.value.lower() not in {"true", "false"}:
            self._fail(node, f"{key} is not a truth value", ("true", "false"))
        return bool(node.value.lower() == "true")

    def _fail(self, node: Any, what: str, allowed: Sequence[str] = ()) -> NoReturn:
        raise MigFileError(what, file=self.file, line=node.start_mark.line + 1, allowed=tuple(allowed))
