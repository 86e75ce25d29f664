"""The NVIDIA container toolkit's config.toml, with the keys and the ``--set`` of nvidia-ctk, edited as text.

Every container start reads this file, so changes need no restart.

Source: nvidia-container-toolkit@v1.20.0, api/config/v1 and cmd/nvidia-ctk/config; what that release printed and wrote.
gpunode differs in four points. Comments, order and layout are kept. A key that is commented out in the file is set
below that comment, and an existing file gets no new such comments. A comma in a value stays part of it. A value with
which the toolkit would start no container is refused.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Literal, TypeAlias

from gpunode.errors import Refused, UsageError
from gpunode.fast_dataclass import dataclass
from gpunode.recipe.toml import to_toml_literal
from gpunode.runtimes.documents import ConfigLayer, Path, encode_config, parse_toml_file, reads_as, value_at, with_value

TOOLKIT_CONFIG = "/etc/nvidia-container-runtime/config.toml"
Value: TypeAlias = "bool | str | list[str]"
DefaultValue: TypeAlias = "bool | str | tuple[str, ...]"
ToolkitKeyKind: TypeAlias = Literal["switch", "text", "list", "feature"]


@dataclass(frozen=True, slots=True)
class ToolkitKey:
    """A key of the file.

    Attributes:
        name: its tables and its own name, joined by dots.
        kind: ``feature`` is a switch that ``=nil`` removes.
        default: its value in a new file; None if a new file does not set it.
        shown: its value in a comment of a new file; None if there is no such comment.
        allowed: the values that the toolkit knows; empty means any.
    """

    name: str
    kind: ToolkitKeyKind
    default: DefaultValue | None = None
    shown: DefaultValue | None = None
    allowed: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """The path to it."""
        return tuple(self.name.split("."))


_CLI, _RUNTIME, _MODES = "nvidia-container-cli", "nvidia-container-runtime", "nvidia-container-runtime.modes"
# In the order of a new file.
TOOLKIT_KEYS: tuple[ToolkitKey, ...] = (
    ToolkitKey("accept-nvidia-visible-devices-as-volume-mounts", "switch", shown=False),
    ToolkitKey("accept-nvidia-visible-devices-envvar-when-unprivileged", "switch", shown=True),
    ToolkitKey("disable-require", "switch", default=False),
    ToolkitKey("supported-driver-capabilities", "text", default="compat32,compute,display,graphics,ngx,utility,video"),
    ToolkitKey("swarm-resource", "text", shown="DOCKER_RESOURCE_GPU"),
    ToolkitKey("features.allow-cuda-compat-libs-from-container", "feature"),
    ToolkitKey("features.allow-ldconfig-from-container", "feature"),
    ToolkitKey("features.allow-unknown-oci-spec-fields", "feature"),
    ToolkitKey("features.disable-cuda-compat-lib-hook", "feature"),
    ToolkitKey("features.disable-imex-channel-creation", "feature"),
    ToolkitKey("features.ignore-imex-channel-requests", "feature"),
    ToolkitKey("features.no-additional-gids-for-device-nodes", "feature"),
    ToolkitKey(f"{_CLI}.debug", "text", shown="/var/log/nvidia-container-toolkit.log"),
    ToolkitKey(f"{_CLI}.environment", "list", default=()),
    ToolkitKey(f"{_CLI}.ldcache", "text", shown="/etc/ld.so.cache"),
    ToolkitKey(f"{_CLI}.ldconfig", "text", default="@/sbin/ldconfig"),
    ToolkitKey(f"{_CLI}.load-kmods", "switch", default=True),
    ToolkitKey(f"{_CLI}.no-cgroups", "switch", shown=False),
    ToolkitKey(f"{_CLI}.no-pivot", "switch"),
    ToolkitKey(f"{_CLI}.path", "text", shown="/usr/bin/nvidia-container-cli"),
    ToolkitKey(f"{_CLI}.root", "text", shown="/run/nvidia/driver"),
    ToolkitKey(f"{_CLI}.user", "text", shown="root:video"),
    ToolkitKey(f"{_RUNTIME}.debug", "text", shown="/var/log/nvidia-container-runtime.log"),
    ToolkitKey(f"{_RUNTIME}.log-level", "text", default="info"),
    ToolkitKey(f"{_RUNTIME}.mode", "text", default="auto", allowed=("auto", "legacy", "cdi", "csv", "jit-cdi")),
    ToolkitKey(f"{_RUNTIME}.runtimes", "list", default=("runc", "crun")),
    ToolkitKey(f"{_MODES}.cdi.annotation-prefixes", "list", default=("cdi.k8s.io/",)),
    ToolkitKey(f"{_MODES}.cdi.default-kind", "text", default="nvidia.com/gpu"),
    ToolkitKey(f"{_MODES}.cdi.spec-dirs", "list", default=("/etc/cdi", "/var/run/cdi")),
    ToolkitKey(f"{_MODES}.csv.compat-container-root", "text"),
    ToolkitKey(
        f"{_MODES}.csv.mount-spec-path", "text", default="/etc/nvidia-container-runtime/host-files-for-container.d"
    ),
    ToolkitKey(f"{_MODES}.jit-cdi.nvcdi-disable-hooks", "list"),
    ToolkitKey(f"{_MODES}.jit-cdi.nvcdi-feature-flags", "list"),
    ToolkitKey(
        f"{_MODES}.legacy.cuda-compat-mode",
        "text",
        default="ldconfig",
        allowed=("ldconfig", "hook", "mount", "disabled"),
    ),
    ToolkitKey("nvidia-container-runtime-hook.path", "text", default="nvidia-container-runtime-hook"),
    ToolkitKey("nvidia-container-runtime-hook.skip-mode-detection", "switch", default=False),
    ToolkitKey("nvidia-ctk.path", "text", default="nvidia-ctk"),
)
_TOOLKIT_KEY_BY_NAME: Mapping[str, ToolkitKey] = {key.name: key for key in TOOLKIT_KEYS}
_LDCONFIG_KEY = _TOOLKIT_KEY_BY_NAME[f"{_CLI}.ldconfig"]
_FOREIGN_LDCONFIG_KEY = _TOOLKIT_KEY_BY_NAME["features.allow-ldconfig-from-container"]
# As in Go's strconv.ParseBool.
_SWITCH_VALUE_BY_WORD = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """A key and its new value; None removes the key."""

    key: ToolkitKey
    value: Value | None


# The log settings and the path of the linker's program differ without effect on containers.
_KEYS_WITHOUT_EFFECT = frozenset({f"{_CLI}.debug", f"{_CLI}.ldconfig", f"{_RUNTIME}.debug", f"{_RUNTIME}.log-level"})


def non_default_settings(data: bytes) -> tuple[str, ...]:
    """Return settings that differ from the toolkit's defaults as ``key = value``, without those that do not matter.

    Raises:
        Refused: the file is not TOML.
    """
    document = _read_config(data, TOOLKIT_CONFIG).document
    values = ((key, value_at(document, key.path)) for key in TOOLKIT_KEYS if key.name not in _KEYS_WITHOUT_EFFECT)
    return tuple(
        f"{key.name} = {json.dumps(value, default=str)}"
        for key, value in values
        if value is not None and value != _default_value(key)
    )


def _default_value(key: ToolkitKey) -> object:
    """Return the toolkit's default for the key; None if it has none."""
    usual = key.default if key.default is not None else key.shown if isinstance(key.shown, bool) else None
    return list(usual) if isinstance(usual, tuple) else usual


def parse_set_options(words: Iterable[str]) -> tuple[Setting, ...]:
    """Parse the values of ``--set``, in order.

    Raises:
        UsageError: a key is unknown, or a value is not allowed for its key.
    """
    settings = list[str]()
    for word in words:
        # nvidia-ctk splits at every comma; commas that belong to a value are kept here.
        parts = word.split(",")
        settings += parts if all(part.partition("=")[0] in _TOOLKIT_KEY_BY_NAME for part in parts) else [word]
    return tuple(map(_parse_setting, settings))


def _parse_setting(word: str) -> Setting:
    name, equals, value = word.partition("=")
    key = _TOOLKIT_KEY_BY_NAME.get(name)
    if key is None:
        raise _unknown_key_error(name)
    if key.kind in {"switch", "feature"}:
        return Setting(key, _parse_switch(key, value if equals else "true"))
    if not equals:
        raise UsageError(f"--set {name} has no value", hint=f"write --set {name}={_example_value(key)}")
    if key.kind == "list":
        return Setting(key, _split_at_colons(key, value))
    if key.allowed and value not in key.allowed:
        raise UsageError(
            f"--set {name} cannot be {value!r}",
            why=f"the toolkit knows: {', '.join(key.allowed)}",
            hint=f"write --set {name}={key.allowed[0]}",
        )
    return Setting(key, value)


def _unknown_key_error(name: str) -> UsageError:
    below = [known for known in _TOOLKIT_KEY_BY_NAME if known.startswith(f"{name}.")]
    if below:
        return UsageError(f"--set {name} names a table", hint=f"name one of its keys: {', '.join(below)}")
    table, _, last = name.rpartition(".")
    siblings = {known.rpartition(".")[2]: known for known in _TOOLKIT_KEY_BY_NAME if known.rpartition(".")[0] == table}
    similar = [siblings[close_match] for close_match in difflib.get_close_matches(last, siblings, 1, 0.75)]
    similar = similar or [known for known in _TOOLKIT_KEY_BY_NAME if known.rpartition(".")[2] == last]
    hint = "write one of these instead" if siblings else "`gpunode ctk config default` shows the usual ones"
    return UsageError(
        f"--set {name}: the toolkit's configuration has no such key",
        why=f"there are {', '.join(siblings.values())}" if siblings else "there is no such table either",
        hint=f"did you mean {' or '.join(similar)}?" if similar else hint,
    )


def _parse_switch(key: ToolkitKey, value: str) -> bool | None:
    if key.kind == "feature" and value == "nil":
        return None
    if value not in _SWITCH_VALUE_BY_WORD:
        raise UsageError(
            f"--set {key.name} cannot be {value!r}",
            why="it is either on or off",
            hint=f"write --set {key.name}=true or --set {key.name}=false"
            + (f", or --set {key.name}=nil to remove it" if key.kind == "feature" else ""),
        )
    return _SWITCH_VALUE_BY_WORD[value]


def _split_at_colons(key: ToolkitKey, value: str) -> list[str]:
    """Split the value at colons; an empty value has no items, whereas nvidia-ctk makes an empty one."""
    if "," in value:
        raise UsageError(
            f"--set {key.name}={value}: a list is separated by colons",
            why="nvidia-ctk splits a value at its commas and then fails, so a comma is ambiguous",
            hint=f"write --set {key.name}={value.replace(',', ':')}",
        )
    return value.split(":") if value else []


def _example_value(key: ToolkitKey) -> str:
    example = key.default if key.default is not None else key.shown
    return ":".join(example) if isinstance(example, tuple) else str(example or "VALUE")


@dataclass(frozen=True, slots=True)
class ToolkitHost:
    """The system that the default values depend on.

    Attributes:
        suse: whether the distribution belongs to SUSE's family, where the group video owns device nodes.
        real_ldconfig: whether /sbin/ldconfig.real exists, which /sbin/ldconfig then wraps (Ubuntu).
    """

    suse: bool = False
    real_ldconfig: bool = False


def render_default_config(host: ToolkitHost, desired: Sequence[Setting] = ()) -> str:
    """Return the text of a new file."""
    values: dict[str, DefaultValue | Value | None] = {key.name: key.default for key in TOOLKIT_KEYS}
    if host.suse:
        values[f"{_CLI}.user"] = "root:video"
    if host.real_ldconfig:
        values[_LDCONFIG_KEY.name] = "@/sbin/ldconfig.real"
    return _write_new_file({**values, **_values_by_key(desired)})


def _values_by_key(desired: Sequence[Setting]) -> dict[str, Value | None]:
    return {setting.key.name: setting.value for setting in desired}


def _write_new_file(values: Mapping[str, DefaultValue | Value | None]) -> str:
    """Render a file that sets ``values`` and shows other keys in comments, in nvidia-ctk's layout."""
    lines: list[str] = []
    headers: set[Path] = {()}
    for table, keys in groupby(TOOLKIT_KEYS, lambda key: key.path[:-1]):
        if statements := list(_render_statements(keys, values)):
            new = [path for depth in range(len(table)) if (path := table[: depth + 1]) not in headers]
            headers.update(new)
            lines += [line for path in new for line in ("", f"[{'.'.join(path)}]")]
            lines += statements
    return "\n".join((*lines, ""))


def _render_statements(keys: Iterable[ToolkitKey], values: Mapping[str, DefaultValue | Value | None]) -> Iterator[str]:
    for key in keys:
        if (value := values.get(key.name)) is not None:
            yield _render_statement(key, value)
        elif key.shown is not None:
            yield f"#{_render_statement(key, key.shown)}"


def _render_statement(key: ToolkitKey, value: Value | DefaultValue) -> str:
    return f"{key.path[-1]} = {to_toml_literal(value)}"


def configure(data: bytes | None, desired: Sequence[Setting], host: ToolkitHost, path: str = TOOLKIT_CONFIG) -> bytes:
    """Return the file with the ``desired`` settings; the same bytes if it has them all already.

    Args:
        data: the present file; None creates a new one. An empty one gets no default values.
        desired: the settings; later ones win.
        host: the system that the file is for.
        path: the file's path, for messages.

    Raises:
        Refused: the file cannot be read, or the toolkit would start no container with the result.
    """
    file = _read_config(data, path)
    if data is None:
        file = _read_config(render_default_config(host, desired).encode(), path)
    elif not file.text.strip() and any(setting.value is not None for setting in desired):
        file = _read_config(encode_config(_write_new_file(_values_by_key(desired)), data), path)
    for setting in desired:
        file = _read_config(_edit_config(file, setting), path)
    if any(setting.key in (_LDCONFIG_KEY, _FOREIGN_LDCONFIG_KEY) for setting in desired):
        _refuse_bad_ldconfig(*(value_at(file.document, key.path) for key in (_LDCONFIG_KEY, _FOREIGN_LDCONFIG_KEY)))
    return file.content or b""


def _read_config(data: bytes | None, path: str) -> ConfigLayer:
    hint = f"correct {path}; `gpunode ctk config default` prints a valid one"
    also = "; the toolkit starts no container with this file"
    document = parse_toml_file(data, path, hint=hint, also=also)
    return ConfigLayer(path, data, document, consequence="the toolkit cannot read it either")


def _edit_config(file: ConfigLayer, setting: Setting) -> bytes | None:
    """Return the file with the key set, below a comment that names it with another value if there is one."""
    keys, value, text = setting.key.path, setting.value, file.text
    file.table(keys[:-1])
    after = with_value(file.document, keys, value, prune=True)
    if value is not None and value_at(file.document, keys) is None:
        line = rf"^(?P<indent>[ \t]*)#[ \t]*{re.escape(keys[-1])}[ \t]*=[^\r\n]*"
        for comment in re.finditer(line, text, re.MULTILINE):
            newline = "\r\n" if "\r\n" in text else "\n"
            added = f"{newline}{comment['indent']}{_render_statement(setting.key, value)}"
            new_content = encode_config(text[: comment.end()] + added + text[comment.end() :], file.content)
            if reads_as(new_content, file.path, after):
                return new_content
    table = f"[{'.'.join(keys[:-1])}] as a table with a header of its own" if keys[1:] else f"{keys[0]} by hand"
    return file.edit(after, advice=f"write {table} in {file.path}, then run the command again")


def _refuse_bad_ldconfig(value: object, allows_foreign: object) -> None:
    if not isinstance(value, str) or value.startswith("@") or allows_foreign is True:
        return
    raise Refused(
        f"{_LDCONFIG_KEY.name} = {value!r} would prevent every GPU container from starting",
        why="a path without @ is inside the container's image, and the toolkit refuses to run it unless "
        f"{_FOREIGN_LDCONFIG_KEY.name} is on",
        hint=f"the host's own: --set {_LDCONFIG_KEY.name}=@{value if value.startswith('/') else '/sbin/ldconfig'}",
    )
