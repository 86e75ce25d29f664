"""CRI-O's configuration: crio.conf, and on top of it every file of crio.conf.d; with nvidia-ctk's meaning of its entry.

CRI-O reads every file below crio.conf.d, whatever its name, in lexical order. A later file wins key by key, but a
runtime's table as a whole. Three habits of nvidia-ctk are not followed: it looks for the options of the present runtime
in crio.conf alone, where packages no longer put them; it starts its drop-in empty each time; and it takes over the
options of a virtual machine's runtime, with which CRI-O refuses the handler.

Source: cri-o@1.34 pkg/config/config.go (UpdateFromPath, ValidateRuntimes), crio.conf.d(5);
nvidia-container-toolkit@v1.17.8 and @v1.20.0, pkg/config/engine/crio.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from gpunode.errors import Refused
from gpunode.runtimes.crio_files import UNREAD_FOLDER, folder_of, root_file_of
from gpunode.runtimes.crio_files import reads as reads
from gpunode.runtimes.documents import ConfigLayer, Document, Path, at, parse_toml_file, put
from gpunode.runtimes.model import (
    CRIO_DROP_IN,
    CRIO_FOLDER,
    RUNC_FAMILY,
    ConfigEdit,
    DesiredConfig,
    Edit,
    Files,
    ObservedConfig,
    Removal,
    with_absolute_binary,
)

_RUNTIME_TABLE_PATH: Path = ("crio", "runtime")
_RUNTIMES_TABLE_PATH: Path = (*_RUNTIME_TABLE_PATH, "runtimes")
_DEFAULT_RUNTIME_KEY_PATH: Path = (*_RUNTIME_TABLE_PATH, "default_runtime")
_CGROUP_MANAGER_KEY_PATH: Path = (*_RUNTIME_TABLE_PATH, "cgroup_manager")
# With these CRI-O runs another binary in the handler's place.
_KEYS_CHANGING_BINARY = frozenset({"inherit_default_runtime", "platform_runtime_paths"})
_BACKUP_FILE_NAME = re.compile(r"~\Z|\.(?:bak|old|orig|save|swp|rpmsave|rpmnew|dpkg-\w+|ucf-\w+)\Z")


def files_in_order(files: Files, desired: DesiredConfig) -> tuple[str, ...]:
    """The paths among ``files`` that CRI-O reads, in its order: what a later one says wins."""
    folders = {CRIO_FOLDER, *([folder_of(desired.drop_in)] if desired.drop_in else [])}
    paths = [path for path in files if path == root_file_of(desired) or any(path.startswith(f"{f}/") for f in folders)]
    return tuple(sorted(paths, key=_make_sort_key(desired)))


def inspect(files: Files, desired: DesiredConfig) -> ObservedConfig:
    """Return what CRI-O reads in all of its files together; its support for CDI is always on.

    Raises:
        Refused: a file is not TOML, or not shaped as CRI-O's configuration; CRI-O does not start with it either.
    """
    runtime = _merge_runtime_tables(layers(files, desired))
    handlers = {name: _binary(entry) for name, entry in runtime["runtimes"].items()}
    return ObservedConfig(handlers, runtime.get("default_runtime") or None, cdi=True)


def configure(files: Files, desired: DesiredConfig) -> ConfigEdit:
    """The requested handler, in a drop-in or in crio.conf; no edits if CRI-O has it already.

    Raises:
        Refused: a file cannot be read, or what was requested would have no effect; nothing is half made.
    """
    desired = with_absolute_binary(desired, "CRI-O resolves a relative path from its working folder")
    read = layers(files, desired)
    path, how = _choose_file(read, desired)
    target = next((file for file in read if file.path == path), _parse_file(path, None))
    entry, inherited = _make_handler_entry(read, desired)
    notes = (*_notes(files, read, desired), *inherited)
    wanted = _desired_document(target, entry, desired, _merge_runtime_tables(read))
    if not _unmet_keys(_merge_runtime_tables(read), entry, desired):
        return ConfigEdit((), f"CRI-O reads {desired.handler} as requested", notes)
    after = _merge_runtime_tables(_with_file(read, replace(target, document=wanted), desired))
    if unmet := _unmet_keys(after, entry, desired):
        raise _overruled_error(read, path, unmet, desired)
    advice = f"write [crio.runtime] of {path} with table headers ([a.b.c]), then run the command again"
    return ConfigEdit((Edit(path, target.content, target.edit(wanted, advice=advice)),), how, notes)


def complete_removal(removal: Removal, desired: DesiredConfig) -> Removal:
    """Return the removal with a note on each file that CRI-O does not read."""
    del desired
    return removal.with_notes(*_unread_file_notes(removal.files))


def _make_sort_key(desired: DesiredConfig) -> Callable[[str], tuple[int, list[str]]]:
    """The order in which CRI-O reads: the root file, then folder by folder, as filepath.Walk goes."""

    def rank(path: str) -> tuple[int, list[str]]:
        place = 0 if path == root_file_of(desired) else 1 if path.startswith(f"{CRIO_FOLDER}/") else 2
        return place, path.split("/")

    return rank


def layers(files: Files, desired: DesiredConfig) -> tuple[ConfigLayer, ...]:
    """Return the files that CRI-O reads, in its order; a drop-in elsewhere counts as read with its folder.

    Raises:
        Refused: one of them cannot be read.
    """
    return tuple(_parse_file(path, files[path]) for path in files_in_order(files, desired))


def _parse_file(path: str, data: bytes | None) -> ConfigLayer:
    hint = f"correct {path}, or move it out of {folder_of(path)}: CRI-O reads every file there, whatever its name"
    also = ". CRI-O reads this file and does not start with it either."
    document = parse_toml_file(data, path, hint=hint, also=also)
    consequence = "CRI-O does not start with it either"
    file = ConfigLayer(path, data, document, _RUNTIMES_TABLE_PATH, _DEFAULT_RUNTIME_KEY_PATH, consequence)
    texts = [_DEFAULT_RUNTIME_KEY_PATH, _CGROUP_MANAGER_KEY_PATH]
    for name in file.table(_RUNTIMES_TABLE_PATH):
        file.table((*_RUNTIMES_TABLE_PATH, name))
        texts += [(*_RUNTIMES_TABLE_PATH, name, "runtime_path"), (*_RUNTIMES_TABLE_PATH, name, "runtime_type")]
    for keys in texts:
        if not isinstance(value := at(file.document, keys), str | None):
            raise file.wrong_type_error(keys, value, "a string")
    return file


def _merge_runtime_tables(read: Iterable[ConfigLayer]) -> Document:
    """``[crio.runtime]`` as CRI-O reads it; ``runtimes`` is always there."""
    merged: Document = {"runtimes": {}}
    for file in read:
        own = at(file.document, _RUNTIME_TABLE_PATH) or {}
        merged = {**merged, **own, "runtimes": {**merged["runtimes"], **own.get("runtimes", {})}}
    return merged


def _binary(entry: Document) -> str:
    return str(entry.get("runtime_path", ""))


def _is_oci(entry: Document) -> bool:
    return entry.get("runtime_type", "") in {"", "oci"}


def _make_handler_entry(read: Sequence[ConfigLayer], desired: DesiredConfig) -> tuple[Document, tuple[str, ...]]:
    """Return the handler's table, and what to say of where its options come from.

    An existing one keeps every key. Where it ran another binary, the keys that it lacks are copied as for a new one.
    """
    existing = _merge_runtime_tables(read)["runtimes"].get(desired.handler) or {}
    kept = existing if _is_oci(existing) else {}
    if _binary(kept) == desired.binary and not any(kept.get(key) for key in _KEYS_CHANGING_BINARY):
        return existing, ()
    sources = read if desired.source is None else [_parse_file("the output of `crio status config`", desired.source)]
    runtimes = _merge_runtime_tables(sources)["runtimes"]
    candidates = [name for name in _template_names(sources, desired) if name in runtimes]
    model = next((name for name in candidates if _is_oci(runtimes[name])), None)
    skipped = candidates[: candidates.index(model)] if model else candidates
    notes = tuple(f"{name} cannot run plain containers, so its options are not copied" for name in skipped)
    if model is None:
        notes = (*notes, f"CRI-O's files define neither runc nor crun, so {desired.handler} gets CRI-O's own defaults")
    return _copy_handler_entry({**(runtimes[model] if model else {}), **kept}, desired), notes


def _copy_handler_entry(template: Document, desired: DesiredConfig) -> Document:
    """Return the handler's table, copied from that of the runtime which it replaces."""
    entry = {key: value for key, value in copy.deepcopy(template).items() if key not in _KEYS_CHANGING_BINARY}
    return {**entry, "runtime_path": desired.binary, "runtime_type": "oci"}


def _template_names(files: Sequence[ConfigLayer], desired: DesiredConfig) -> list[str]:
    """Return the runtimes that the handler may replace, the first choice first; some may be missing."""
    named = (at(file.document, _DEFAULT_RUNTIME_KEY_PATH) for file in reversed(files))
    defaults = [name for name in named if name and not name.startswith("nvidia") and name != desired.handler]
    return list(dict.fromkeys((*defaults[:1], *RUNC_FAMILY)))


def _choose_file(read: Sequence[ConfigLayer], desired: DesiredConfig) -> tuple[str, str]:
    """The file to write, and why that one."""
    if desired.mode == "in-place":
        return root_file_of(desired), f"in place, in {root_file_of(desired)}: as requested"
    if desired.drop_in:
        if desired.drop_in == root_file_of(desired):
            raise Refused(
                f"{desired.drop_in} is the configuration file itself, not a drop-in",
                why=f"CRI-O reads its drop-ins from {CRIO_FOLDER}",
                hint="edit the configuration itself:\n"
                "sudo gpunode ctk runtime configure --runtime crio --mode in-place",
            )
        if folder_of(desired.drop_in) == UNREAD_FOLDER:
            raise Refused(
                f"CRI-O does not read {desired.drop_in}",
                why=f"its folder is {CRIO_FOLDER}; nvidia-ctk 1.18.0 to 1.19.0 wrote to {UNREAD_FOLDER} by mistake",
                hint=f"name a file in {CRIO_FOLDER}, or omit the option to use {CRIO_DROP_IN}",
            )
        return desired.drop_in, f"drop-in {desired.drop_in}: as requested"
    later = [
        file.path
        for file in read
        if _make_sort_key(desired)(file.path) > _make_sort_key(desired)(CRIO_DROP_IN)
        and _mentions_handler(file, desired)
    ]
    if later:
        return later[-1], f"in {later[-1]}: CRI-O reads it after {CRIO_DROP_IN}, so it wins"
    return CRIO_DROP_IN, f"drop-in {CRIO_DROP_IN}: CRI-O reads {CRIO_FOLDER} after {root_file_of(desired)}"


def _mentions_handler(file: ConfigLayer, desired: DesiredConfig) -> bool:
    keys = [
        (*_RUNTIMES_TABLE_PATH, desired.handler),
        *[_DEFAULT_RUNTIME_KEY_PATH] * desired.default,
        *[_CGROUP_MANAGER_KEY_PATH] * desired.systemd_cgroup,
    ]
    return any(at(file.document, key) is not None for key in keys)


def _desired_document(target: ConfigLayer, entry: Document, desired: DesiredConfig, merged: Document) -> Document:
    """The document that the target shall read as."""
    document = put(target.document, (*_RUNTIMES_TABLE_PATH, desired.handler), entry)
    if desired.default:
        document = put(document, _DEFAULT_RUNTIME_KEY_PATH, desired.handler)
    if desired.systemd_cgroup and merged.get("cgroup_manager") == "cgroupfs":
        document = put(document, _CGROUP_MANAGER_KEY_PATH, "systemd")
    return document


def _unmet_keys(merged: Document, entry: Document, desired: DesiredConfig) -> list[Path]:
    """The keys in which CRI-O reads something else than is desired."""
    unmet = [(*_RUNTIMES_TABLE_PATH, desired.handler)] if merged["runtimes"].get(desired.handler) != entry else []
    unmet += [_DEFAULT_RUNTIME_KEY_PATH] if desired.default and merged.get("default_runtime") != desired.handler else []
    unmet += [_CGROUP_MANAGER_KEY_PATH] if desired.systemd_cgroup and merged.get("cgroup_manager") == "cgroupfs" else []
    return unmet


def _with_file(read: Sequence[ConfigLayer], target: ConfigLayer, desired: DesiredConfig) -> list[ConfigLayer]:
    """``read`` with ``target`` in its place."""
    others = [file for file in read if file.path != target.path]
    return sorted([*others, target], key=lambda file: _make_sort_key(desired)(file.path))


def _overruled_error(read: Sequence[ConfigLayer], path: str, unmet: Sequence[Path], desired: DesiredConfig) -> Refused:
    rank = _make_sort_key(desired)
    order = f"CRI-O reads {root_file_of(desired)} first, then {CRIO_FOLDER} in lexical order; the last one wins"
    later = [file for file in read if rank(file.path) > rank(path)]
    settings = [f"{file.path} sets {'.'.join(key)}" for file in later for key in unmet if at(file.document, key)]
    return Refused(
        f"the change would have no effect in {path}",
        why=f"{order}, and {'; '.join(settings)}",
        hint="omit --mode and --drop-in-config: gpunode then writes where it takes effect",
    )


# What the user should know.


def _notes(files: Files, read: Sequence[ConfigLayer], desired: DesiredConfig) -> Iterator[str]:
    if desired.cdi:
        yield "CRI-O always supports CDI; there is nothing to enable"
    if desired.drop_in and not desired.drop_in.startswith(f"{CRIO_FOLDER}/"):
        yield f"CRI-O reads {desired.drop_in} only when it is started with --config-dir {folder_of(desired.drop_in)}"
    for file in read:
        if _BACKUP_FILE_NAME.search(file.path):
            yield f"{file.path} looks like a leftover, but CRI-O reads every file there, whatever its name"
    yield from _unread_file_notes(files)


def _unread_file_notes(files: Files) -> Iterator[str]:
    for path in sorted(files):
        if path.startswith(f"{UNREAD_FOLDER}/"):
            yield (
                f"CRI-O never reads {path}: nvidia-ctk 1.18.0 to 1.19.0 put it beside {CRIO_FOLDER}; it can be removed"
            )
