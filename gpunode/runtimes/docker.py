"""docker's daemon.json, edited in place; nvidia-ctk's entry has the same meaning.

Source: nvidia-container-toolkit@v1.20.0, pkg/config/engine/docker; dockerd 20.10.24, 26.1.5 and 28.5.2. Exceptions,
where nvidia-ctk breaks a node: docs/reference/differences-from-nvidia-ctk.md.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, TypeAlias

from gpunode.command import command
from gpunode.errors import Refused
from gpunode.runtimes import jsontext
from gpunode.runtimes.docker_nodes import NodeDocker, conflicts, find_docker, installation_notes, refuse_unusable_docker
from gpunode.runtimes.docker_nodes import list_read_paths as list_read_paths
from gpunode.runtimes.documents import ConfigLayer, Document, Path, decode_config, with_value
from gpunode.runtimes.documents import has_byte_order_mark as has_byte_order_mark
from gpunode.runtimes.model import (
    ConfigEdit,
    DesiredConfig,
    Edit,
    Files,
    ObservedConfig,
    Removal,
    list_folders,
    runs_binary,
)
from gpunode.wording import join_names

# The only runtime name that dockerd reserves.
_RESERVED_RUNTIME_NAME = "runc"
# The first versions with CDI, and with CDI on by default (moby PR 49963).
_HAS_CDI, _CDI_UNASKED = (25,), (28, 2)
# Older versions fail with "invalid character 'ï' looking for beginning of value" (20.10.24; not 26.1.5 and 28.5.2).
_FIRST_TAKING_BOM = (23,)
# A member's path with its new value.
KeyChange: TypeAlias = tuple[Path, Any]
_REMOVE_BYTE_ORDER_MARK_SED_SCRIPT = r"1s/^\xEF\xBB\xBF//"


def layers(files: Files, desired: DesiredConfig) -> tuple[ConfigLayer, ...]:
    """Return dockerd's only file."""
    path = find_docker(files, desired).config
    document = parse_daemon_json(files.get(path), path)
    return (ConfigLayer(path, files.get(path), document, ("runtimes",), ("default-runtime",), as_json=True),)


def complete_removal(removal: Removal, desired: DesiredConfig) -> Removal:
    """Return the removal with notes on what is kept because it is not on record, or gpunode does not edit it."""
    node = find_docker(removal.files, desired)
    now, after = (each.get(node.config) for each in (removal.files, removal.files_after))
    if desired.handler in node.flags.runtimes:
        removal = removal.with_notes(
            f"dockerd's command line has {desired.handler} too ({node.said_in('add-runtime')})"
        )
    if kept := explain_kept_runtimes(removal.files, removal.files_after, desired):
        removal = removal.with_notes(kept)
    is_recorded = removal.former.get(node.config) != now
    if (
        after != now
        and not is_recorded
        and object_at(parse_daemon_json(after, node.config), "features").get("cdi") is True
    ):
        return removal.with_notes("features.cdi is kept: it is not on record who enabled it")
    return removal


def inspect(files: Files, desired: DesiredConfig) -> ObservedConfig:
    """Return the configuration in dockerd's file and command line; a missing or blank file is empty."""
    node = find_docker(files, desired)
    return _observe(node, parse_daemon_json(files.get(node.config), node.config))


def configure(files: Files, desired: DesiredConfig) -> ConfigEdit:
    """Return the edits that register the NVIDIA handler as requested; none if it is registered already."""
    node = find_docker(files, desired)
    refuse_unusable_docker(files, node, desired)
    _refuse_bad_names(desired, node.config)
    (layer,) = layers(files, desired)
    document = layer.document
    if has_byte_order_mark(layer.content) and desired.version is not None and desired.version < _FIRST_TAKING_BOM:
        raise bom_refusal(node.config)
    configured = _observe(node, document)
    changes = [
        *_handler_changes(document, configured, desired),
        *_default_changes(node, configured, desired),
        *_cdi_changes(node, configured, desired),
    ]
    wanted = reduce(lambda document, change: with_value(document, *change), changes, document)
    how = f"in place: {node.config} is the only file that dockerd reads"
    how = f"in place, in the file that --config names: {node.config}" if desired.config else how
    notes = (*_notes(node, document, desired), *installation_notes(files, node))
    if not changes:
        return ConfigEdit((), how, notes)
    after = layer.edit(wanted, advice="this is a bug in gpunode: please report it with the file")
    return ConfigEdit((Edit(layer.path, layer.content, after, node.like if layer.content is None else ""),), how, notes)


def bom_refusal(path: str) -> Refused:
    """Return the refusal of a file with a byte order mark, for a dockerd that rejects one."""
    return Refused(
        f"{path} begins with a byte order mark, which this docker rejects",
        why="dockerd accepts one from version 23 on; this version would neither reload the file nor start with it",
        hint=f"{command('sed', '-i', _REMOVE_BYTE_ORDER_MARK_SED_SCRIPT, path)}\nthen run the command again",
    )


def applies_on_reload(before: Files, after: Files, desired: DesiredConfig) -> bool:
    """Return whether SIGHUP applies all of ``after`` in a dockerd that runs with ``before``.

    dockerd reads the CDI setting only at its start, and keeps a default that the file no longer names.

    Source: dockerd 20.10.24, 26.1.5 and 28.5.2.
    """
    old, new = inspect(before, desired), inspect(after, desired)
    unasked = desired.reaches(_CDI_UNASKED)
    if (unasked if old.cdi is None else old.cdi) != (unasked if new.cdi is None else new.cdi):
        return False
    return new.default is not None or old.default in {None, _RESERVED_RUNTIME_NAME}


def explain_kept_runtimes(before: Files, after: Files, desired: DesiredConfig) -> str:
    """Return that a dockerd that only reloads ``after`` keeps runtimes of ``before``; empty where it keeps none.

    SIGHUP replaces its table of runtimes where the file has one, be it empty, and leaves it alone else.

    Source: dockerd 20.10.24 and 26.1.5.
    """
    path = find_docker(after, desired).config
    kept, remaining = (parse_daemon_json(files.get(path), path).get("runtimes") for files in (before, after))
    if not kept or remaining is not None or not applies_on_reload(before, after, desired):
        return ""
    return (
        f"a running dockerd keeps {join_names(sorted(kept))} until its next restart: a reload removes runtimes only if "
        f"{path} still has some"
    )


def keeps_containers(files: Files, desired: DesiredConfig) -> bool:
    """Return whether containers outlive a restart of dockerd (``live-restore``)."""
    node = find_docker(files, desired)
    value = parse_daemon_json(files.get(node.config), node.config).get("live-restore")
    return value is True or (value is None and node.flags.live_restore is True)


def parse_daemon_json(data: bytes | None, path: str) -> Document:
    """Parse the file's object; empty for a missing or blank file.

    Raises:
        Refused: it is not a JSON object, or lacks the shape of dockerd's configuration.
    """
    text = decode_config(data, path)
    if not text.strip(jsontext.JSON_BLANKS):
        return {}
    try:
        document = jsontext.parse(text)
    except jsontext.DuplicateKey as error:
        raise Refused(
            f"{path}:{error.line}:{error.column}: {error.reason}",
            why="gpunode cannot tell which one is intended; dockerd uses the last",
            hint=f"delete one of them from {path}",
        ) from error
    except jsontext.MalformedJson as error:
        raise Refused(
            f"{path}:{error.line}:{error.column}: not valid JSON",
            why=f"{error.reason}. JSON has no comments and no trailing commas, and nothing may follow the object.",
            hint=f"correct {path}; `{command('dockerd', '--validate', '--config-file', path)}` checks it "
            "(docker 23 and later)",
        ) from error
    if not isinstance(document, dict):
        raise _misshapen_key_error(path, "the file", text, 0, len(text))
    for key in ("runtimes", "features"):
        if not isinstance(document.get(key), dict | None):
            member = jsontext.locate_member(text, (key,))
            raise _misshapen_key_error(path, key, text, member.value, member.end)
    return document


def _misshapen_key_error(path: str, key_name: str, text: str, start: int, end: int) -> Refused:
    line, column = jsontext.line_and_column(text, end - len(text[start:end].lstrip()))
    return Refused(
        f"{path}:{line}:{column}: {key_name} is not an object",
        why=f"it is {' '.join(text[start:end].split())}"[:200],
        hint=f"correct {path}; dockerd cannot read it either",
    )


def object_at(document: Document, key: str) -> Document:
    """Return the object at ``key``; empty if it is missing or null."""
    return document.get(key) or {}


def binary_of(entry: Any) -> str:
    """Return the program of a runtime; empty for a shim without a path, and for a value that nvidia-ctk replaces."""
    # Go accepts a field's name in any case; the last one wins.
    named = [value for key, value in entry.items() if key.lower() == "path"] if isinstance(entry, dict) else []
    return named[-1] if named and type(named[-1]) is str else ""


def default_of(document: Document) -> str | None:
    """Return the default runtime that the file names."""
    default = document.get("default-runtime")
    return default if type(default) is str and default else None


def _observe(node: NodeDocker, document: Document) -> ObservedConfig:
    cdi = object_at(document, "features").get("cdi")
    of_file = {name: binary_of(entry) for name, entry in object_at(document, "runtimes").items()}
    return ObservedConfig(
        handlers={**node.flags.runtimes, **of_file},
        default=default_of(document) or node.flags.last_value("default-runtime"),
        cdi=cdi if isinstance(cdi, bool) else node.flags.cdi,
        is_startable=not conflicts(node.flags, tuple(document)),
        cdi_folders=list_folders(document.get("cdi-spec-dirs")) or tuple(node.flags.given.get("cdi-spec-dir", ())),
    )


def _refuse_bad_names(desired: DesiredConfig, path: str) -> None:
    if desired.handler in {"", _RESERVED_RUNTIME_NAME}:
        raise Refused(
            f"{path}: a runtime cannot be named {desired.handler!r}",
            why="dockerd reserves that name and would not start with it"
            if desired.handler
            else "an empty name cannot be selected",
            hint="give another name, such as nvidia",
        )
    for word in (desired.handler, desired.binary):
        if any("\ud800" <= letter <= "\udfff" for letter in word):
            raise Refused(f"{path}: {word!r} is not text", why="JSON must be UTF-8", hint="give another name")


def _handler_changes(document: Document, observed: ObservedConfig, desired: DesiredConfig) -> list[KeyChange]:
    if runs_binary(observed.handlers.get(desired.handler), desired):
        return []
    where = ("runtimes", desired.handler)
    existing = object_at(document, "runtimes").get(desired.handler, {})
    if binary_of(existing) and len(keys := [key for key in existing if key.lower() == "path"]) == 1:
        return [((*where, keys[0]), desired.binary)]
    # "args" is nvidia-ctk's key, not dockerd's, which ignores it; kept so that the two tools agree on a new entry.
    return [(where, {"args": [], "path": desired.binary})]


def _default_changes(node: NodeDocker, observed: ObservedConfig, desired: DesiredConfig) -> list[KeyChange]:
    is_default = observed.default == desired.handler
    if not (desired.demote_default if is_default else desired.default):
        return []
    # dockerd keeps a default that its file no longer names until it restarts, so name runc.
    wanted = desired.handler if desired.default else _RESERVED_RUNTIME_NAME
    if node.flags.last_value("default-runtime") is not None:
        raise _set_by_flag_error(node, "default-runtime", "default-runtime", f'="{wanted}"')
    return [(("default-runtime",), wanted)]


def _cdi_changes(node: NodeDocker, observed: ObservedConfig, desired: DesiredConfig) -> list[KeyChange]:
    if not desired.enable_cdi or observed.cdi is True:
        return []
    if "feature" in node.flags.given:
        raise _set_by_flag_error(node, "features", "feature", " cdi=true")
    return [(("features", "cdi"), True)]


def _set_by_flag_error(node: NodeDocker, directive: str, flag: str, desired_value: str) -> Refused:
    unit = node.kind.unit
    values = " ".join(f"--{flag}={value}" for value in node.flags.given[flag])
    return Refused(
        f"{node.config}: {directive} cannot be set here: dockerd's command line already sets it",
        why=f"{unit} starts dockerd with {values} ({node.said_in(flag)}); with it in both places dockerd neither "
        "starts nor reloads",
        hint=f"either set dockerd --{flag}{desired_value} there, or remove --{flag} there; once its containers may "
        f"stop: systemctl daemon-reload && systemctl restart {unit}; then run the command again",
    )


def _notes(node: NodeDocker, document: Document, desired: DesiredConfig) -> tuple[str, ...]:
    notes = [
        f"dockerd will not start with {node.config} as it is: {conflict} is on its command line too"
        for conflict in conflicts(node.flags, tuple(document))
    ]
    if desired.enable_cdi and desired.version is not None and desired.version < _HAS_CDI:
        notes.append(
            f"docker {'.'.join(map(str, desired.version))} has no CDI and ignores features.cdi; docker 25 has it"
        )
    return tuple(notes)
