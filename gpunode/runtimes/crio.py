"""CRI-O's configuration: crio.conf, overridden by every file of crio.conf.d; the entry has nvidia-ctk's meaning.

CRI-O reads every file below crio.conf.d, whatever its name, in lexical order. A later file wins key by key, but
replaces a runtime's table entirely. gpunode differs from nvidia-ctk in three points. nvidia-ctk looks for the present
runtime's options only in crio.conf, where packages no longer put them; it empties its drop-in each time; and it copies
the options of a virtual machine's runtime, which make CRI-O refuse the handler.

Source: cri-o@1.34 pkg/config/config.go (UpdateFromPath, ValidateRuntimes), crio.conf.d(5);
nvidia-container-toolkit@v1.17.8 and @v1.20.0, pkg/config/engine/crio.
"""

from __future__ import annotations

import copy
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gpunode.container_runtimes import UNREAD_FOLDER
from gpunode.errors import Refused
from gpunode.runtimes.documents import ConfigLayer, Document, Path, parse_toml_file, value_at, with_value
from gpunode.runtimes.model import (
    CRIO_CONFIG,
    CRIO_DROP_IN,
    CRIO_FOLDER,
    RUNC_FAMILY,
    ConfigEdit,
    DesiredConfig,
    Edit,
    Files,
    ObservedConfig,
    Removal,
    list_folders,
    require_absolute_binary,
)

_RUNTIME_TABLE_PATH: Path = ("crio", "runtime")
_RUNTIMES_TABLE_PATH: Path = (*_RUNTIME_TABLE_PATH, "runtimes")
_DEFAULT_RUNTIME_KEY_PATH: Path = (*_RUNTIME_TABLE_PATH, "default_runtime")
_CGROUP_MANAGER_KEY_PATH: Path = (*_RUNTIME_TABLE_PATH, "cgroup_manager")
# With these keys CRI-O runs another binary than the handler's.
_KEYS_CHANGING_BINARY = frozenset({"inherit_default_runtime", "platform_runtime_paths"})
_BACKUP_FILE_NAME = re.compile(r"~\Z|\.(?:bak|old|orig|save|swp|rpmsave|rpmnew|dpkg-\w+|ucf-\w+)\Z")


def files_in_order(paths: Iterable[str], desired: DesiredConfig) -> tuple[str, ...]:
    """Return the ``paths`` that CRI-O reads, in its order: later files win.

    The root file is first, then the folders in turn, as with filepath.Walk. A drop-in elsewhere counts as if CRI-O read
    its folder.
    """
    folders = (CRIO_FOLDER, posixpath.dirname(desired.drop_in) or CRIO_FOLDER)

    def rank(path: str) -> int:
        places = [path == _root_file(desired), *(path.startswith(f"{folder.rstrip('/')}/") for folder in folders)]
        return places.index(True) if True in places else -1

    ranked_paths = ((rank(path), path.split("/"), path) for path in {*paths})
    return tuple(path for position, _, path in sorted(ranked_paths) if position >= 0)


def _root_file(desired: DesiredConfig) -> str:
    return desired.config or CRIO_CONFIG


def inspect(files: Files, desired: DesiredConfig) -> ObservedConfig:
    """Return CRI-O's configuration from all of its files; its support for CDI is always on."""
    runtime = _merge_runtime_tables(layers(files, desired))
    handlers = {name: _binary(entry) for name, entry in runtime["runtimes"].items()}
    folders = list_folders(runtime.get("cdi_spec_dirs"))
    return ObservedConfig(handlers, runtime.get("default_runtime") or None, cdi=True, cdi_folders=folders)


def configure(files: Files, desired: DesiredConfig) -> ConfigEdit:
    """Return the edits that add the requested handler in a drop-in or in crio.conf; none if CRI-O has it already."""
    desired = require_absolute_binary(desired, "CRI-O resolves a relative path from its working folder")
    read = {file.path: file for file in layers(files, desired)}
    path, how = _choose_file(read, desired)
    target, merged = read.get(path) or _parse_file(path, None), _merge_runtime_tables(read.values())
    entry, inherited = _make_handler_entry(tuple(read.values()), desired)
    notes = (*_notes(files, read, desired), *inherited)
    # The default in the drop-in is gpunode's or nvidia-ctk's; the former default is in the files before it.
    is_own_default = path == CRIO_DROP_IN and value_at(target.document, _DEFAULT_RUNTIME_KEY_PATH) == desired.handler
    drops_default = desired.demote_default and is_own_default
    if not drops_default and not _unmet_keys(merged, entry, desired):
        return ConfigEdit((), f"CRI-O reads {desired.handler} as requested", notes)
    wanted = with_value(target.document, (*_RUNTIMES_TABLE_PATH, desired.handler), entry)
    if desired.default:
        wanted = with_value(wanted, _DEFAULT_RUNTIME_KEY_PATH, desired.handler)
    elif drops_default:
        wanted = with_value(wanted, _DEFAULT_RUNTIME_KEY_PATH, None)
    if desired.systemd_cgroup and merged.get("cgroup_manager") == "cgroupfs":
        wanted = with_value(wanted, _CGROUP_MANAGER_KEY_PATH, "systemd")
    order, after = files_in_order((*read, path), desired), {**read, path: replace(target, document=wanted)}
    if unmet := _unmet_keys(_merge_runtime_tables(after[one] for one in order), entry, desired):
        later = [read[one] for one in order[order.index(path) + 1 :]]
        settings = [
            f"{layer.path} sets {'.'.join(key)}" for layer in later for key in unmet if value_at(layer.document, key)
        ]
        raise Refused(
            f"the change would have no effect in {path}",
            why=f"CRI-O reads {_root_file(desired)} first, then {CRIO_FOLDER} in lexical order; the last one wins, and "
            f"{'; '.join(settings)}",
            hint="omit --mode and --drop-in-config: gpunode then writes where it takes effect",
        )
    advice = f"write [crio.runtime] of {path} with table headers ([a.b.c]), then run the command again"
    return ConfigEdit((Edit(path, target.content, target.edit(wanted, advice=advice)),), how, notes)


def complete_removal(removal: Removal, desired: DesiredConfig) -> Removal:
    """Return the removal with a note on each file that CRI-O does not read."""
    del desired
    return removal.with_notes(*_unread_file_notes(removal.files))


def layers(files: Files, desired: DesiredConfig) -> tuple[ConfigLayer, ...]:
    """Return the files that CRI-O reads, in its order; a drop-in elsewhere counts as if CRI-O read its folder."""
    return tuple(_parse_file(path, files[path]) for path in files_in_order(files, desired))


def _parse_file(path: str, data: bytes | None) -> ConfigLayer:
    folder = posixpath.dirname(path)
    hint = f"correct {path}, or move it out of {folder}: CRI-O reads every file there, whatever its name"
    also = ". CRI-O reads this file and does not start with it either."
    document = parse_toml_file(data, path, hint=hint, also=also)
    consequence = "CRI-O does not start with it either"
    file = ConfigLayer(path, data, document, _RUNTIMES_TABLE_PATH, _DEFAULT_RUNTIME_KEY_PATH, consequence)
    texts = [_DEFAULT_RUNTIME_KEY_PATH, _CGROUP_MANAGER_KEY_PATH]
    for name in file.table(_RUNTIMES_TABLE_PATH):
        file.table((*_RUNTIMES_TABLE_PATH, name))
        texts += [(*_RUNTIMES_TABLE_PATH, name, "runtime_path"), (*_RUNTIMES_TABLE_PATH, name, "runtime_type")]
    for keys in texts:
        if not isinstance(value := value_at(file.document, keys), str | None):
            raise file.wrong_type_error(keys, value, "a string")
    return file


def _merge_runtime_tables(layers_read: Iterable[ConfigLayer]) -> Document:
    """Return ``[crio.runtime]`` as CRI-O reads it; always with ``runtimes``."""
    merged: Document = {"runtimes": {}}
    for file in layers_read:
        table = value_at(file.document, _RUNTIME_TABLE_PATH) or {}
        merged = {**merged, **table, "runtimes": {**merged["runtimes"], **table.get("runtimes", {})}}
    return merged


def _binary(entry: Document) -> str:
    return str(entry.get("runtime_path", ""))


def _is_oci(entry: Document) -> bool:
    return entry.get("runtime_type", "") in {"", "oci"}


def _make_handler_entry(read: Sequence[ConfigLayer], desired: DesiredConfig) -> tuple[Document, tuple[str, ...]]:
    """Return the handler's table, and notes on the origin of its options.

    An existing table keeps every key. If it ran another binary, missing keys are copied as for a new one.
    """
    existing = _merge_runtime_tables(read)["runtimes"].get(desired.handler) or {}
    kept = existing if _is_oci(existing) else {}
    if _binary(kept) == desired.binary and not any(kept.get(key) for key in _KEYS_CHANGING_BINARY):
        return existing, ()
    sources = read if desired.source is None else [_parse_file("the output of `crio status config`", desired.source)]
    runtimes = _merge_runtime_tables(sources)["runtimes"]
    named = (value_at(file.document, _DEFAULT_RUNTIME_KEY_PATH) for file in reversed(sources))
    defaults = [name for name in named if name and not name.startswith("nvidia") and name != desired.handler]
    candidates = [name for name in dict.fromkeys((*defaults[:1], *RUNC_FAMILY)) if name in runtimes]
    model = next((name for name in candidates if _is_oci(runtimes[name])), None)
    skipped = candidates[: candidates.index(model)] if model else candidates
    notes = tuple(f"{name} cannot run plain containers, so its options are not copied" for name in skipped)
    if model is None:
        notes = (*notes, f"CRI-O's files define neither runc nor crun, so {desired.handler} gets CRI-O's own defaults")
    template = {**(copy.deepcopy(runtimes[model]) if model else {}), **kept}
    entry = {key: value for key, value in template.items() if key not in _KEYS_CHANGING_BINARY}
    return {**entry, "runtime_path": desired.binary, "runtime_type": "oci"}, notes


def _choose_file(read_layers: Mapping[str, ConfigLayer], desired: DesiredConfig) -> tuple[str, str]:
    """Return the file to write, and why."""
    if desired.mode == "in-place":
        return _root_file(desired), f"in place, in {_root_file(desired)}: as requested"
    if desired.drop_in:
        if desired.drop_in == _root_file(desired):
            raise Refused(
                f"{desired.drop_in} is the configuration file itself, not a drop-in",
                why=f"CRI-O reads its drop-ins from {CRIO_FOLDER}",
                hint="edit the configuration itself:\n"
                "sudo gpunode ctk runtime configure --runtime crio --mode in-place",
            )
        if posixpath.dirname(desired.drop_in) == UNREAD_FOLDER:
            raise Refused(
                f"CRI-O does not read {desired.drop_in}",
                why=f"its folder is {CRIO_FOLDER}; nvidia-ctk 1.18.0 to 1.19.0 wrote to {UNREAD_FOLDER} by mistake",
                hint=f"name a file in {CRIO_FOLDER}, or omit the option to use {CRIO_DROP_IN}",
            )
        return desired.drop_in, f"drop-in {desired.drop_in}: as requested"
    keys = [
        (*_RUNTIMES_TABLE_PATH, desired.handler),
        *[_DEFAULT_RUNTIME_KEY_PATH] * desired.default,
        *[_CGROUP_MANAGER_KEY_PATH] * desired.systemd_cgroup,
    ]
    order = files_in_order((*read_layers, CRIO_DROP_IN), desired)
    for path in reversed(order[order.index(CRIO_DROP_IN) + 1 :]):
        if any(value_at(read_layers[path].document, key) is not None for key in keys):
            return path, f"in {path}: CRI-O reads it after {CRIO_DROP_IN}, so it wins"
    return CRIO_DROP_IN, f"drop-in {CRIO_DROP_IN}: CRI-O reads {CRIO_FOLDER} after {_root_file(desired)}"


def _unmet_keys(merged: Document, entry: Document, desired: DesiredConfig) -> list[Path]:
    """Return the keys whose values in CRI-O differ from the desired ones."""
    unmet = [(*_RUNTIMES_TABLE_PATH, desired.handler)] if merged["runtimes"].get(desired.handler) != entry else []
    unmet += [_DEFAULT_RUNTIME_KEY_PATH] if desired.default and merged.get("default_runtime") != desired.handler else []
    unmet += [_CGROUP_MANAGER_KEY_PATH] if desired.systemd_cgroup and merged.get("cgroup_manager") == "cgroupfs" else []
    return unmet


def _notes(files: Files, read_paths: Iterable[str], desired: DesiredConfig) -> Iterator[str]:
    if desired.enable_cdi:
        yield "CRI-O always supports CDI; there is nothing to enable"
    if desired.drop_in and not desired.drop_in.startswith(f"{CRIO_FOLDER}/"):
        folder = posixpath.dirname(desired.drop_in)
        yield f"CRI-O reads {desired.drop_in} only when it is started with --config-dir {folder}"
    for path in read_paths:
        if _BACKUP_FILE_NAME.search(path):
            yield f"{path} looks like a leftover, but CRI-O reads every file there, whatever its name"
    yield from _unread_file_notes(files)


def _unread_file_notes(files: Files) -> Iterator[str]:
    for path in sorted(files):
        if path.startswith(f"{UNREAD_FOLDER}/"):
            yield (
                f"CRI-O never reads {path}: nvidia-ctk 1.18.0 to 1.19.0 put it beside {CRIO_FOLDER}; it can be removed"
            )
