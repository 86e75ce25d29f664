"""containerd's config.toml, edited in place, with the meaning that nvidia-ctk gives its entry.

Source: nvidia-container-toolkit@v1.17.8 and @v1.20.0, pkg/config/engine/containerd; their output in containerd 1.6.20,
1.7.24 and 2.1.9. Two of its habits are not followed, as both break nodes: a file without a runc table gets one where
the CRI plugin would lose its default, and an entry that already runs the wished binary keeps what else it says.
"""

from __future__ import annotations

import copy
import re
from typing import Any

from gpunode.errors import Refused
from gpunode.runtimes.model import RUNC_FAMILY, Configured, Wish, cgroup_handlers, needs_runc, satisfies
from gpunode.runtimes.text import decode, encode
from gpunode.runtimes.tomlread import Document, Path, parse

CONFIG = "/etc/containerd/config.toml"
_PLUGINS = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
_CRI_NAMES = frozenset({"cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"})
_BARE_BINARY = "nvidia-container-runtime"
# What nvidia-ctk writes where there is no runtime to copy from.
_GENERIC: Document = {
    "runtime_type": "io.containerd.runc.v2",
    "runtime_root": "",
    "runtime_engine": "",
    "privileged_without_host_devices": False,
}


def inspect(data: bytes | None, path: str = CONFIG) -> Configured:
    """What config.toml says; a missing or empty one says nothing.

    Raises:
        Refused: it is not TOML, or not shaped as containerd's configuration.
    """
    text = decode(data, path)
    return _configured(_document(text, path), text, path)


def dump(data: bytes) -> Configured:
    """What ``containerd config dump`` printed: the configuration as the daemon itself reads it.

    Raises:
        Refused: it is not what that command prints.
    """
    return inspect(data, "the output of `containerd config dump`")


def configure(data: bytes | None, wish: Wish, path: str = CONFIG) -> bytes:
    """config.toml with the NVIDIA handler as wished; the same bytes when it is so already.

    Raises:
        Refused: the file cannot be read or is of a schema that cannot be edited here; nothing is half made.
    """
    wish = _absolute(wish, path)
    text = decode(data, path)
    before = _document(text, path)
    if satisfies(_configured(before, text, path), wish):
        return data or b""
    from gpunode.runtimes import tomltext  # only where a file must be edited: it takes 2 ms to load

    _check_schema(before, text, path)
    after = _wished(before, wish)
    try:
        edited = tomltext.edit(text, before, after)
    except tomltext.Uneditable as error:
        raise Refused(
            f"{path}: gpunode found no way to write {error} that leaves the rest of the file as it is",
            why="every way of writing it would change what the file means elsewhere",
            hint=f"write the CRI plugin's section of {path} with table headers ([a.b.c]), then run the command again",
        ) from error
    return encode(edited, data)


def _absolute(wish: Wish, path: str) -> Wish:
    """``wish`` with the path at which nvidia-container-toolkit installs its runtime; containerd searches no PATH."""
    if wish.binary == _BARE_BINARY:
        return Wish(wish.handler, f"/usr/bin/{_BARE_BINARY}", wish.default, wish.systemd_cgroup, wish.cdi, wish.version)
    if not wish.binary.startswith("/"):
        raise Refused(
            f"{path}: the runtime binary {wish.binary!r} is not an absolute path",
            why="containerd does not search for it as a shell does",
            hint="give its full path, such as /usr/bin/nvidia-container-runtime",
        )
    return wish


def _document(text: str, path: str) -> Document:
    try:
        return parse(text)
    except (ValueError, RecursionError) as error:
        found = re.search(r"\(at line (\d+), column \d+\)", str(error))
        place = f"{path}:{found[1]}" if found else path
        raise Refused(
            f"{place}: not valid TOML",
            why=str(error),
            hint=f"correct {path} (`containerd --config {path} config dump` shows what containerd makes of it)",
        ) from error


def _schema(document: Document, text: str, path: str) -> int:
    """2 for a file without keys, 1 for one without ``version``, as containerd itself counts."""
    version = document.get("version", 1 if document else 2)
    if not isinstance(version, int) or isinstance(version, bool):
        raise _misshapen(text, path, ("version",), version, "a whole number")
    return version


def _check_schema(document: Document, text: str, path: str) -> None:
    """Refuses what is neither schema 2 nor 3."""
    version = document.get("version", 1 if document else 2)
    if version in {2, 3}:
        return
    if version != 1:
        raise Refused(
            f"{path}: version = {version} is a configuration schema that gpunode does not edit",
            why="it edits schema 2 and schema 3",
            hint=f"see `containerd config default` for a schema that your containerd knows, and move {path} to it",
        )
    why = "without `version = 2` containerd reads the file as schema 1, which has other names for everything"
    if _cri_disabled(document):
        why += '; its disabled_plugins names "cri", so kubelet could not use containerd either way'
    if below := re.search(r"^[ \t]*version[ \t]*=", text, re.MULTILINE):
        line = text.count("\n", 0, below.start()) + 1
        why += f"; the version on line {line} stands below a table header, so it belongs to that table"
    raise Refused(
        f"{path}: configuration schema 1 is not edited",
        why=f"{why}. The file that the containerd.io package ships is of this kind.",
        hint="write a full configuration, then run the command again:\n"
        f"  cp {path} {path}.schema1\n"
        f"  containerd config default > {path}",
    )


def _table(document: Document, text: str, path: str, keys: Path) -> Document:
    """The table at ``keys``; empty when it is not there."""
    node: Any = document
    for depth, key in enumerate(keys, 1):
        node = node.get(key, {})
        if not isinstance(node, dict):
            raise _misshapen(text, path, keys[:depth], node, "a table")
    return node  # type: ignore[no-any-return]  # tables are dicts all the way down


def _misshapen(text: str, path: str, keys: Path, value: object, meant: str) -> Refused:
    from gpunode.runtimes.tomltext import line_of

    line = line_of(text, keys)
    place = f"{path}:{line}" if line else path
    return Refused(
        f"{place}: {'.'.join(keys)} is not {meant}",
        why=f"it is {value!r}"[:200],
        hint=f"correct {path}; containerd cannot use it either",
    )


def _cri_disabled(document: Document) -> bool:
    disabled = document.get("disabled_plugins", [])
    return isinstance(disabled, list) and any(name in _CRI_NAMES for name in disabled if isinstance(name, str))


def _configured(document: Document, text: str, path: str) -> Configured:
    schema = _schema(document, text, path)
    cri = ("plugins", _PLUGINS.get(schema, _PLUGINS[3]))
    containerd = _table(document, text, path, (*cri, "containerd"))
    default = containerd.get("default_runtime_name", "")
    if not isinstance(default, str):
        raise _misshapen(text, path, (*cri, "containerd", "default_runtime_name"), default, "a string")
    names = _table(document, text, path, (*cri, "containerd", "runtimes"))
    handlers, cgroup = {}, {}
    for name in names:
        here = (*cri, "containerd", "runtimes", name)
        handler = _table(document, text, path, here)
        options = _table(document, text, path, (*here, "options"))
        handlers[name] = str(options.get("BinaryName", "")) if handler.get("runtime_type") else ""
        if (systemd := _flag(options, "SystemdCgroup", text, path, (*here, "options"))) is not None:
            cgroup[name] = systemd
    cdi = _flag(_table(document, text, path, cri), "enable_cdi", text, path, cri)
    return Configured(handlers, default or None, _cri_disabled(document), cdi, cgroup, schema)


def _flag(table: Document, key: str, text: str, path: str, keys: Path) -> bool | None:
    value = table.get(key)
    if value is None or isinstance(value, bool):
        return value
    raise _misshapen(text, path, (*keys, key), value, "true or false")


def _wished(before: Document, wish: Wish) -> Document:
    """The document that the file shall read as; its shape has been checked."""
    document = {**before, "version": before.get("version", 2)}
    schema = document["version"]
    cri = document["plugins"] = dict(document.get("plugins", {}))
    name = _PLUGINS[schema]
    plugin = cri[name] = dict(cri.get(name, {}))
    containerd = plugin["containerd"] = dict(plugin.get("containerd", {}))
    runtimes = containerd["runtimes"] = copy.deepcopy(containerd.get("runtimes", {}))
    former = containerd.get("default_runtime_name", "")
    runtimes[wish.handler] = _entry(runtimes, former, wish)
    if wish.default:
        containerd["default_runtime_name"] = wish.handler
    default = containerd.get("default_runtime_name") or "runc"
    if needs_runc(default, runtimes, schema, wish):
        runtimes["runc"] = dict(_GENERIC)
    _set_cgroup(runtimes, default, wish)
    if wish.cdi:
        plugin["enable_cdi"] = True
    return document


def _entry(runtimes: Document, former_default: str, wish: Wish) -> Document:
    """The handler's table: kept when it runs the wished binary, else a copy of the runtime that it stands in for."""
    existing = runtimes.get(wish.handler)
    if existing and existing.get("runtime_type") and existing.get("options", {}).get("BinaryName") == wish.binary:
        return existing  # type: ignore[no-any-return]  # tables are dicts all the way down
    first = () if not former_default or former_default.startswith("nvidia") else (former_default,)
    source = next((runtimes[name] for name in (*first, *RUNC_FAMILY) if name in runtimes), existing or _GENERIC)
    entry = copy.deepcopy(source)
    entry["runtime_type"] = entry.get("runtime_type") or _GENERIC["runtime_type"]
    entry["options"] = {**entry.get("options", {}), "BinaryName": wish.binary}
    return entry


def _set_cgroup(runtimes: Document, default: str, wish: Wish) -> None:
    """Puts the handlers under systemd's driver where wished, else the wished one under that of the default runtime.

    Pods of one node have one cgroup driver: a handler under another one than kubelet's starts no pod.
    """
    if wish.systemd_cgroup:
        for name in cgroup_handlers(wish, runtimes):
            runtimes[name]["options"] = {**runtimes[name].get("options", {}), "SystemdCgroup": True}
    elif default in RUNC_FAMILY and default in runtimes:
        theirs = runtimes[default].get("options", {}).get("SystemdCgroup", False)
        ours = runtimes[wish.handler]["options"]
        if ours.get("SystemdCgroup", False) != theirs:
            ours["SystemdCgroup"] = theirs
