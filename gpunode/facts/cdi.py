"""CDI specifications: what a container engine gives a container that asks for ``nvidia.com/gpu=…``. Pure.

Specifications are JSON or YAML. Of YAML only what nvidia-ctk writes is read: block mappings, block lists and plain or
quoted words; anything else makes a file unread, and is never guessed.

Source: cdi@v1.0 SPEC.md, pkg/cdi/spec-dirs.go and cache.go (what counts as a file, which one wins);
nvidia-container-toolkit@v1.20.0, cmd/nvidia-ctk/cdi/generate.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpunode.facts.cdi_places import FOLDERS, KIND
from gpunode.facts.patterns import Pattern

_ENDINGS = (".yaml", ".json")
_LIMIT_DEPTH = 32
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
        text = data.decode()
        # JSON is YAML, too, whatever the file is called.
        return _spec(path, json.loads(text) if text.lstrip().startswith("{") else yaml(text))
    except (ValueError, RecursionError) as error:
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


def offer(files: Mapping[str, bytes], folders: Sequence[str] = FOLDERS) -> Offer:
    """What the specifications among ``files`` offer to an engine that reads ``folders``."""
    order = {folder: place for place, folder in enumerate(folders)}
    paths = [path for path in files if path.rpartition("/")[0] in order and is_spec(path)]
    ordered = sorted(paths, key=lambda path: (order[path.rpartition("/")[0]], path))
    every = [read(path, files[path]) for path in ordered]
    specs = tuple(one for one in every if isinstance(one, Spec) and one.kind == KIND)
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


# YAML, as nvidia-ctk writes it.


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    indent: int
    text: str


def yaml(text: str) -> Any:
    """The document in the plain subset of YAML that nvidia-ctk writes.

    Raises:
        ValueError: it is not YAML, or makes use of more of it.
    """
    lines = list(_lines(text))
    if not lines:
        return None
    reader = _Reader(lines)
    value = reader.block(lines[0].indent, 0)
    if reader.at < len(lines):
        raise _beyond(lines[reader.at])
    return value


def _lines(text: str) -> Iterator[_Line]:
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.rstrip("\r ")
        if "\t" in line:
            raise ValueError(f"line {number}: a tab, which gpunode does not read in YAML")
        content = line.lstrip(" ")
        if not content or content.startswith("#") or (number == 1 and line == "---"):
            continue
        yield _Line(number, len(line) - len(content), content)


def _beyond(line: _Line) -> ValueError:
    return ValueError(f"line {line.number}: YAML of a kind that nvidia-ctk does not write: {line.text[:60]}")


class _Reader:
    """Goes through the lines once, from the top."""

    def __init__(self, lines: list[_Line]) -> None:
        self._lines = lines
        self.at = 0

    def block(self, indent: int, depth: int) -> Any:
        """The mapping or list whose lines stand at ``indent``."""
        if depth > _LIMIT_DEPTH:
            raise ValueError("nested too deeply")
        is_list = _is_item(self._lines[self.at].text)
        return self._items(indent, depth) if is_list else self._members(indent, depth)

    def _here(self, indent: int) -> _Line | None:
        """The next line, if it stands at ``indent``."""
        line = self._lines[self.at] if self.at < len(self._lines) else None
        if line is not None and line.indent > indent:
            raise _beyond(line)
        return line if line is not None and line.indent == indent else None

    def _items(self, indent: int, depth: int) -> list[Any]:
        items: list[Any] = []
        while (line := self._here(indent)) is not None and _is_item(line.text):
            inner = line.text[1:].lstrip(" ")
            if not inner:
                self.at += 1
                items.append(self._below(indent, depth))
            elif _is_item(inner) or _KEY.match(inner):
                # The block starts on the line of its dash: it is read as if the dash were a blank.
                deeper = indent + len(line.text) - len(inner)
                self._lines[self.at] = _Line(line.number, deeper, inner)
                items.append(self.block(deeper, depth + 1))
            else:
                self.at += 1
                items.append(_scalar(inner, line))
        return items

    def _members(self, indent: int, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        while (line := self._here(indent)) is not None and not _is_item(line.text):
            found = _KEY.match(line.text)
            if found is None:
                raise _beyond(line)
            key, rest = str(_scalar(found[1], line)), line.text[found.end() :].strip()
            if key in members:
                raise ValueError(f"line {line.number}: {key} stands there twice")
            self.at += 1
            members[key] = _scalar(rest, line) if rest else self._below(indent, depth, may_be_list=True)
        return members

    def _below(self, indent: int, depth: int, *, may_be_list: bool = False) -> Any:
        """The block below a key or a dash; a key's list may stand at the key's own indent."""
        line = self._lines[self.at] if self.at < len(self._lines) else None
        if line is None or line.indent < indent:
            return None
        if line.indent > indent or (may_be_list and _is_item(line.text)):
            return self.block(line.indent, depth + 1)
        return None


_KEY = Pattern(r"([A-Za-z_][\w./-]{0,128}|\"[^\"\\]*\"|'[^']*')[ ]*:(?=[ ]|\Z)")
_INDICATORS = frozenset("[]{}&*!|>'\"%@`#,?:")
_NUMBER = Pattern(r"[-+.]?\d[\d_.eE+-]*|0[xob].*|[-+]?\.(?:inf|nan)", re.IGNORECASE)
_ENDS_PLAIN = Pattern(r":(?: |\Z)| #")
_QUOTED = Pattern(r"\"(?:[^\"\\]|\\.)*\"\Z")
_WORDS: Mapping[str, Any] = {"true": True, "false": False, "null": None, "~": None, "{}": {}, "[]": []}


def _is_item(text: str) -> bool:
    return text == "-" or text.startswith("- ")


def _scalar(text: str, line: _Line) -> Any:
    """A word as YAML types it; numbers that nvidia-ctk writes are whole."""
    if text in _WORDS:
        return _WORDS[text]
    if re.fullmatch(r"'(?:[^']|'')*'", text):
        return text[1:-1].replace("''", "'")
    if _QUOTED.match(text):
        return json.loads(text)  # YAML's common escapes are JSON's; the rest is refused
    if re.fullmatch(r"-?(?:0|[1-9]\d{0,17})", text):
        return int(text)
    is_number = _NUMBER.fullmatch(text) and text.count(".") < 2  # 0.5.0 is a word
    if is_number or text[0] in _INDICATORS or text.startswith("- ") or _ENDS_PLAIN.search(text):
        raise _beyond(line)
    return text
