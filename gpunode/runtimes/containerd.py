"""containerd's configuration, edited in place or by a drop-in; nvidia-ctk's entry has the same meaning.

Source: nvidia-container-toolkit@v1.17.8 and @v1.20.0, pkg/config/engine/containerd; their output in containerd 1.6.20,
1.7.24 and 2.1.9. Exceptions, where nvidia-ctk breaks a node: docs/reference/differences-from-nvidia-ctk.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gpunode.command import command
from gpunode.errors import Refused
from gpunode.facts.systemd import is_unit_file
from gpunode.runtimes import containerd_files
from gpunode.runtimes.containerd_files import CONFIG as CONFIG
from gpunode.runtimes.containerd_files import (
    CONFIG_DUMP_SOURCE,
    CRI_PLUGIN_BY_SCHEMA,
    FIRST_VERSION_BY_SCHEMA,
    FIRST_VERSION_WITH_NEW_PLUGINS,
    ConfigFile,
    effective_cri_table,
    find_overriding_default,
    find_unit_config,
    load_config_files,
    parse_config,
    refuse_misshapen_cri_table,
    uses_drop_in,
    with_unit_config,
)
from gpunode.runtimes.containerd_files import CONTAINERD_DROP_IN as CONTAINERD_DROP_IN
from gpunode.runtimes.documents import Document
from gpunode.runtimes.model import (
    NAMELESS_DEFAULT_NAME,
    ConfigEdit,
    DesiredConfig,
    Edit,
    Files,
    ObservedConfig,
    Removal,
    Runtime,
    apply_edits,
    keeps_builtin_handlers,
    list_folders,
    require_absolute_binary,
    satisfies,
)

RUNC_RUNTIME_TYPE: Final = "io.containerd.runc.v2"
OLD_RUNC_RUNTIME_TYPE: Final = "io.containerd.runtime.v1.linux"
_RUNC_RUNTIME_TYPE_PREFIXES = ("io.containerd.runc.", "io.containerd.runtime.v1.linux")


def list_read_paths(files: Files, desired: DesiredConfig) -> tuple[str, ...]:
    """Return the paths and patterns of what containerd reads, as far as ``files`` tell, and of its unit."""
    # Without unit files, which are not configuration and so import nothing.
    started_by = containerd_files.unit_patterns(files)
    own = {path: content for path, content in files.items() if path not in started_by and not is_unit_file(path)}
    return (*containerd_files.list_read_paths(own, with_unit_config(files, desired)), *started_by)


def adapt_to_node(runtime: Runtime, files: Files, desired: DesiredConfig) -> Runtime:
    """Return ``runtime`` with the configuration that containerd's unit names, unless it belongs to a distribution."""
    named = None if runtime.product else find_unit_config(files, desired)
    return replace(runtime, config=named.path) if named else runtime


def inspect(files: Files, desired: DesiredConfig = DesiredConfig()) -> ObservedConfig:  # noqa: B008 - frozen
    """Return what the files configure, merged as containerd merges them; missing or empty files configure nothing."""
    desired = with_unit_config(files, desired)
    return _observe(load_config_files(files, desired), desired)


def parse_config_dump(data: bytes) -> ObservedConfig:
    """Parse the output of ``containerd config dump``: the configuration as the daemon itself reads it.

    Raises:
        Refused: it is not the output of that command.
    """
    file = parse_config(data, CONFIG_DUMP_SOURCE)
    refuse_misshapen_cri_table(file)
    return _observe((file,), DesiredConfig())


def _observe(loaded: Sequence[ConfigFile], desired: DesiredConfig) -> ObservedConfig:
    plugin = effective_cri_table(loaded, desired)
    containerd = plugin.get("containerd", {})
    handlers = {}
    for name, handler in containerd.get("runtimes", {}).items():
        runs = handler.get("runtime_type") and is_runc_shim(handler)
        handlers[name] = str(handler.get("options", {}).get("BinaryName", "")) if runs else ""
    return ObservedConfig(
        handlers,
        NAMELESS_DEFAULT_NAME
        if find_overriding_default(plugin, desired)
        else containerd.get("default_runtime_name") or None,
        any(file.disabled for file in loaded),
        plugin.get("enable_cdi"),
        find_systemd_cgroup_settings(plugin, desired),
        loaded[0].read_as,
        # Schema 3 is containerd 2's, whose default is true.
        has_default_cdi=plugin.get("enable_cdi") is False and "cdi_spec_dirs" in plugin and loaded[0].read_as < 3,
        cdi_folders=list_folders(plugin.get("cdi_spec_dirs")),
    )


def find_systemd_cgroup_settings(plugin: Document, desired: DesiredConfig) -> dict[str, bool]:
    """Return SystemdCgroup of each runtime that sets it in the CRI plugin's table.

    containerd 1 has two older settings: the options of the nameless default runtime, and a key of the plugin that
    applies to a default runtime of the oldest type (pkg/cri/config: ValidatePluginConfig, 1.6.20 and 1.7.24).
    """
    containerd = plugin.get("containerd", {})
    nameless = find_overriding_default(plugin, desired)
    entries = {**containerd.get("runtimes", {}), **({NAMELESS_DEFAULT_NAME: nameless} if nameless else {})}
    options = {name: entry.get("options", {}) for name, entry in entries.items()}
    settings = {name: each["SystemdCgroup"] for name, each in options.items() if "SystemdCgroup" in each}
    if plugin.get("systemd_cgroup") is True and not desired.reaches(FIRST_VERSION_WITH_NEW_PLUGINS):
        settings[NAMELESS_DEFAULT_NAME if nameless else containerd.get("default_runtime_name") or "runc"] = True
    return settings


def is_runc_shim(entry: Document) -> bool:
    """Return whether runc's shim runs it; true as well for an entry without a type, and for a variable of microk8s."""
    return str(entry.get("runtime_type") or RUNC_RUNTIME_TYPE).startswith((*_RUNC_RUNTIME_TYPE_PREFIXES, "${"))


def configure(files: Files, desired: DesiredConfig) -> ConfigEdit:
    """Return the edits that register the NVIDIA handler as requested; none if it is registered already."""
    named = find_unit_config(files, desired)
    if named is None:
        return _configure(files, desired)
    edited = _configure(files, replace(desired, config=named.path))
    is_edited = any(edit.path == named.path for edit in edited.edits)
    if is_edited and named.path.startswith("/usr/") and not named.path.startswith("/usr/local/"):
        raise Refused(
            f"{named.said_in} makes containerd read {named.path}, which belongs to its vendor",
            why="updates replace files below /usr, and /usr is read-only on systems such as Flatcar",
            hint=f"{command('cp', named.path, CONFIG)}; `systemctl edit {containerd_files.UNIT}` with an empty "
            f"ExecStart= and one that names {CONFIG}; then run the command again",
        )
    return replace(edited, how=f"{edited.how}; {named.said_in} makes containerd read {named.path} instead of {CONFIG}")


def _configure(files: Files, desired: DesiredConfig) -> ConfigEdit:
    root = desired.config or CONFIG
    desired = with_absolute_paths(desired, root)
    loaded = load_config_files(files, desired)
    present = _observe(loaded, desired)
    how = _explain_edit_mode(loaded[0], desired)
    _refuse_newer_schema(loaded, desired)
    # nvidia-ctk writes its drop-in whatever the root file contains.
    is_asked = not desired.exact or desired.mode == "auto"
    if is_asked and satisfies(present, desired) and not (desired.enable_cri and present.cri_disabled):
        notes = _edit_notes(loaded, files, desired) if desired.exact else _state_notes(loaded, present, desired)
        return ConfigEdit((), how, notes)
    # Loaded only if a file must be edited.
    from gpunode.runtimes import containerd_editing

    _refuse_unsupported_schema(loaded, desired)
    contents = containerd_editing.ContainerdEditor(files, loaded, desired).contents()
    edits = tuple(
        Edit(path, files.get(path), content, root if path not in files and root in files else "")
        for path, content in contents.items()
        if content != files.get(path)
    )
    after = apply_edits(files, ConfigEdit(edits))
    _refuse_overruled_edit(after, desired, present)
    if "runc" in _observe(load_config_files(after, desired), desired).handlers.keys() - present.handlers.keys():
        is_kept = keeps_builtin_handlers(loaded[0].read_as, desired)
        dropped = "containerd drops its built-in entry once a file lists another runtime"
        how = f"{how}; also lists runc: {'the built-in one uses cgroupfs' if is_kept else dropped}"
    return ConfigEdit(edits, how, _edit_notes(loaded, after, desired))


def _edit_notes(loaded: Sequence[ConfigFile], after: Files, desired: DesiredConfig) -> tuple[str, ...]:
    from gpunode.runtimes import containerd_editing

    return tuple(containerd_editing.edit_notes(loaded, after, inspect(after, desired), desired))


def _state_notes(loaded: Sequence[ConfigFile], present: ObservedConfig, desired: DesiredConfig) -> tuple[str, ...]:
    """Return notes on settings that have no effect or stop the CRI plugin; none for one file with a usual default."""
    if len(loaded) == 1 and present.default in {None, "runc", *present.handlers} and not desired.enable_cdi:
        return ()
    from gpunode.runtimes import containerd_editing  # loaded on use: most nodes have such a file

    return tuple(containerd_editing.state_notes(loaded, present, desired))


def layers(files: Files, desired: DesiredConfig) -> tuple[ConfigFile, ...]:
    """Return the files that containerd reads, in its order, followed by gpunode's drop-in if nothing imports that."""
    desired = with_unit_config(files, desired)
    loaded, drop_in = load_config_files(files, desired), desired.drop_in or CONTAINERD_DROP_IN
    if drop_in in files and drop_in not in {file.path for file in loaded}:
        idle = parse_config(files[drop_in], drop_in, desired)
        refuse_misshapen_cri_table(idle)
        return (*loaded, idle)
    return loaded


def complete_removal(removal: Removal, desired: DesiredConfig) -> Removal:
    """Return the removal with what else containerd needs; see ``containerd_editing``."""
    from gpunode.runtimes import containerd_editing

    return containerd_editing.complete_removal(removal, with_unit_config(removal.files, desired))


def with_absolute_paths(desired: DesiredConfig, path: str) -> DesiredConfig:
    """Return ``desired`` with NVIDIA's runtime by its installed path: containerd does not search PATH.

    Raises:
        Refused: one of its paths is relative to an unknown folder, or its drop-in is the file at ``path``.
    """
    if desired.drop_in and not desired.drop_in.startswith("/"):
        raise Refused(
            f"the drop-in's path {desired.drop_in!r} is not absolute",
            why="containerd would resolve it relative to the file that imports it",
            hint=f"give its full path, such as {CONTAINERD_DROP_IN}",
        )
    if desired.drop_in == path:
        raise Refused(
            f"{path} is the configuration file itself, not a drop-in",
            why="it would import itself",
            hint="edit the configuration itself:\n"
            "sudo gpunode ctk runtime configure --runtime containerd --mode in-place",
        )
    return require_absolute_binary(desired, "containerd does not search PATH for it", f"{path}: ")


def _explain_edit_mode(root: ConfigFile, desired: DesiredConfig) -> str:
    """Return which files are edited, and why."""
    if desired.mode != "auto":
        return "as a drop-in, as requested" if desired.mode == "drop-in" else "in place, as requested"
    version = ".".join(map(str, desired.version)) if desired.version else ""
    if uses_drop_in(root, desired):
        return f"as a drop-in: containerd {version or 'of schema 4'} merges it with the rest, key by key"
    if root.schema == 1:
        return f"in place: {root.path} has configuration schema 1, which supports no drop-ins"
    before = f"in containerd {version}" if version else "this containerd's version is unknown, and before 2.1"
    return f"in place: {before} a drop-in would replace the whole CRI table"


def _refuse_newer_schema(loaded: Sequence[ConfigFile], desired: DesiredConfig) -> None:
    """Refuse a schema newer than this containerd, which would ignore the file's runtimes or not start.

    Source: ``config dump`` of such files in containerd 1.6.20, 1.7.24 and 2.1.9.
    """
    for file in loaded:
        since = FIRST_VERSION_BY_SCHEMA.get(file.schema, ())
        if desired.version is not None and desired.version < since:
            present, first = (".".join(map(str, version)) for version in (desired.version, since))
            raise Refused(
                f"{file.path}: version = {file.schema} is a configuration schema that containerd {present} cannot read",
                why=f"containerd {first} is the first that reads schema {file.schema}; an older one ignores the "
                "file's runtimes or does not start",
                hint=f"install containerd {first} or later, or write the file in an older schema: `containerd config "
                "default` shows this containerd's",
            )


def _refuse_unsupported_schema(loaded: Sequence[ConfigFile], desired: DesiredConfig) -> None:
    """Refuse an unknown schema, and a drop-in for the schema that supports none."""
    for file in loaded:
        if file.schema not in CRI_PLUGIN_BY_SCHEMA:
            raise Refused(
                f"{file.path}: version = {file.schema} is a configuration schema that gpunode does not know",
                why=f"it knows {', '.join(map(str, CRI_PLUGIN_BY_SCHEMA))}",
                hint=f"`containerd config default` shows a schema that your containerd knows; move {file.path} to it",
            )
    root = loaded[0]
    if root.schema != 1 or desired.mode != "drop-in":
        return
    why = "without `version = 2` containerd reads the file as schema 1, which uses other names for everything"
    if match := re.search(r"^[ \t]*version[ \t]*=", root.text, re.MULTILINE):
        line = root.text.count("\n", 0, match.start()) + 1
        why += f"; the version on line {line} is below a table header, so it belongs to that table"
    raise Refused(
        f"{root.path}: configuration schema 1 supports no drop-ins",
        why=f"{why}, and a drop-in that nothing imports is never read",
        hint="edit the file itself:\nsudo gpunode ctk runtime configure --runtime containerd --mode in-place",
    )


def _refuse_overruled_edit(files: Files, desired: DesiredConfig, before: ObservedConfig) -> None:
    """Refuse an edit that another file overrides."""
    loaded = load_config_files(files, desired)
    observed = _observe(loaded, desired)
    meant_default = (
        desired.handler if desired.default and observed.default != NAMELESS_DEFAULT_NAME else observed.default
    )
    if desired.demote_default and observed.default == desired.handler:
        meant_default = "runc"
    if observed.handlers.get(desired.handler) == desired.binary and observed.default == meant_default:
        return
    overriding = [file.path for file in loaded[1:] if file.has_cri_table]
    read_by = overriding[-1] if overriding else loaded[0].path
    raise Refused(
        f"{read_by} overrides the runtime {desired.handler} of {loaded[0].path}",
        why="containerd reads it later, so its CRI table takes effect"
        + ("" if before.handlers.get(desired.handler) else "; it does not have the runtime yet"),
        hint="edit the file that takes effect:\nsudo gpunode ctk runtime configure --runtime containerd --mode "
        "in-place\n"
        f"or remove the table from {read_by}",
    )
