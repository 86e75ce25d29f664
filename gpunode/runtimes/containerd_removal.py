"""Remove NVIDIA's handler from containerd's configuration. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpunode.runtimes.containerd_files import (
    CONFIG,
    DROP_IN,
    ConfigFile,
    counting,
    edit_document,
    effective,
    imports_of,
    load,
    merges,
    read,
)
from gpunode.runtimes.containerd_plugin import GENERIC_TYPE
from gpunode.runtimes.keys import gone_too, taken_back
from gpunode.runtimes.model import ConfigEdit, DesiredConfig, Edit, Files, RecordedEdit, needs_runc
from gpunode.runtimes.tomlread import Document


def unconfigure(files: Files, desired: DesiredConfig, former: Mapping[str, RecordedEdit]) -> ConfigEdit:
    """The edits that remove the handler; a file that nobody edited since is restored byte for byte.

    Of one that was edited since, the keys that gpunode set go, and the former ones come back. Of one that nobody has on
    record, the handler's entry goes, and a default that names it.

    Raises:
        Refused: a file cannot be read, or cannot be edited without harm.
    """
    root = desired.config or CONFIG
    # What cannot be read is told, before anything is taken out of half the files.
    own = {file.path for file in load(files, desired)} | {desired.drop_in or DROP_IN}
    files = {path: content for path, content in files.items() if path in own}
    notes: list[str] = []
    after: dict[str, bytes | None] = {}
    for path in sorted(files, key=lambda path: (path != root, path)):
        # What gpunode is not on record for is somebody else's, where it is on record for another.
        is_ours = not former or path in former
        after[path] = _taken_out(files, path, desired, former.get(path), notes) if is_ours else files[path]
    before = {path: former[path].before if path in former else content for path, content in files.items()}
    if not _is_unsound(before, desired):
        _keep_sound(after, desired, notes)
    _keep_awake(files, after, desired, notes)
    edits = tuple(Edit(path, files[path], content) for path, content in after.items() if content != files[path])
    return ConfigEdit(edits, "", tuple(notes))


def _taken_out(
    files: Files, path: str, desired: DesiredConfig, was: RecordedEdit | None, notes: list[str]
) -> bytes | None:
    now = files[path]
    if was is not None:
        file = read(now, path, desired)
        whole = [(*file.cri, "containerd", "runtimes", name) for name in (desired.handler, "runc")]
        back = taken_back(was.before, was.after, now, path, whole)
        if back is not None:
            lost = gone_too(was.after or b"", now, back, path)
            notes += [f"{path}: later keys of the entry, removed with it: {', '.join(lost)}"] if lost else []
            return None if was.before is None and not back else back
        notes.append(f"{path}: edited since, so only gpunode's entry and a default that names it are removed")
    return _without_entry(files, read(now, path, desired), desired, notes, is_recorded=was is not None)


def _without_entry(
    files: Files, file: ConfigFile, desired: DesiredConfig, notes: list[str], *, is_recorded: bool
) -> bytes | None:
    """The file without the handler's entry; None for a drop-in that says nothing else than the root does."""
    plugin = file.plugin
    if not _names(plugin, desired):
        return files[file.path]
    document = _without_empty_tables(file, _plugin_without(plugin, desired))
    if plugin.get("containerd", {}).get("default_runtime_name") == desired.handler:
        notes.append(f"{file.path}: the former default is not on record; it is now runc, unless the file names another")
    root = desired.config or CONFIG
    if not is_recorded and file.path == (desired.drop_in or DROP_IN) and file.path != root:
        rest = {key: value for key, value in document.items() if key != "version"}
        if _says_all(read(files.get(root), root).document, rest):
            notes.append(f"{root} still imports the folder of {file.path}: it is not on record who added that import")
            return None
    return edit_document(file, document, files[file.path])


def _names(plugin: Document, desired: DesiredConfig) -> bool:
    containerd = plugin.get("containerd", {})
    return (
        desired.handler in containerd.get("runtimes", {}) or containerd.get("default_runtime_name") == desired.handler
    )


def _plugin_without(plugin: Document, desired: DesiredConfig) -> Document:
    containerd = dict(plugin.get("containerd", {}))
    if containerd.get("default_runtime_name") == desired.handler:
        del containerd["default_runtime_name"]
    runtimes = {name: entry for name, entry in containerd.get("runtimes", {}).items() if name != desired.handler}
    # An empty table would take the place of containerd's own runtimes.
    rest = {key: value for key, value in containerd.items() if key != "runtimes"}
    containerd = {**rest, **({"runtimes": runtimes} if runtimes else {})}
    others = {key: value for key, value in plugin.items() if key != "containerd"}
    return {**others, **({"containerd": containerd} if containerd else {})}


def _without_empty_tables(file: ConfigFile, plugin: Document) -> Document:
    """The file's document with ``plugin`` as its CRI table, and without tables that are empty now."""
    rest = {key: value for key, value in file.document["plugins"].items() if key != file.cri[1]}
    plugins = {**rest, **({file.cri[1]: plugin} if plugin else {})}
    others = {key: value for key, value in file.document.items() if key != "plugins"}
    return {**others, **({"plugins": plugins} if plugins else {})}


def _says_all(root: Document, rest: Document) -> bool:
    return all(
        key in root and (_says_all(root[key], value) if _are_tables(root[key], value) else root[key] == value)
        for key, value in rest.items()
    )


def _are_tables(one: object, other: object) -> bool:
    return isinstance(one, dict) and isinstance(other, dict)


def _keep_sound(after: dict[str, bytes | None], desired: DesiredConfig, notes: list[str]) -> None:
    """No file names the handler as the default any more, and the CRI plugin keeps a runtime that is its default."""
    for path, content in after.items():
        if content is not None and _is_orphan(file := read(content, path, desired), desired):
            after[path] = edit_document(
                file, _without_empty_tables(file, _plugin_without(file.plugin, desired)), content
            )
            notes.append(f"{path}: {desired.handler} was made the default by somebody else; that default is removed")
    if _lacks_runc(after, desired):
        loaded = load(_there(after), desired)
        file = _file_that_counts(loaded, desired)
        containerd = file.plugin["containerd"]
        kept = {**containerd, "runtimes": {**containerd["runtimes"], "runc": {"runtime_type": GENERIC_TYPE}}}
        plugins = {**file.document["plugins"], file.cri[1]: {**file.plugin, "containerd": kept}}
        after[file.path] = edit_document(file, {**file.document, "plugins": plugins}, after[file.path])
        notes.append(f"{file.path}: runc has an entry now, because the file's other runtimes replace the built-in ones")


def _is_unsound(contents: Mapping[str, bytes | None], desired: DesiredConfig) -> bool:
    """Return whether it was so before gpunode that the CRI plugin had no default runtime: then that comes back, too."""
    files = [read(content, path, desired) for path, content in contents.items() if content is not None]
    return any(_is_orphan(file, desired) for file in files) or _lacks_runc(contents, desired)


def _there(contents: Mapping[str, bytes | None]) -> Files:
    return {path: content for path, content in contents.items() if content is not None}


def _lacks_runc(contents: Mapping[str, bytes | None], desired: DesiredConfig) -> bool:
    loaded = load(_there(contents), desired)
    containerd = effective(loaded, desired).get("containerd", {})
    runtimes = containerd.get("runtimes", {})
    if not runtimes or any(file.disabled for file in loaded):
        return False
    default = containerd.get("default_runtime_name") or "runc"
    return needs_runc(default, runtimes, loaded[0].schema, replace(desired, systemd_cgroup=False))


def _keep_awake(files: Files, after: dict[str, bytes | None], desired: DesiredConfig, notes: list[str]) -> None:
    """The root goes on importing what others have put beside our drop-in since."""
    loaded = load(files, desired)
    root, left = loaded[0], {file.path for file in load(_there(after), desired)}
    lost = [file.path for file in loaded if file.path not in left and after.get(file.path) is not None]
    needed = [written for written in root.imports if any(written in imports_of(root, path) for path in lost)]
    if not needed:
        return
    now = read(after.get(root.path), root.path, desired)
    document = {"version": root.schema, **now.document, "imports": [*now.imports, *needed]}
    after[root.path] = edit_document(now, document, after.get(root.path))
    notes.append(f"{root.path} still imports {', '.join(needed)}, since {', '.join(lost)} would not be read without it")


def _is_orphan(file: ConfigFile, desired: DesiredConfig) -> bool:
    containerd = file.plugin.get("containerd", {})
    is_default = containerd.get("default_runtime_name") == desired.handler
    return is_default and desired.handler not in containerd.get("runtimes", {})


def _file_that_counts(loaded: Sequence[ConfigFile], desired: DesiredConfig) -> ConfigFile:
    if merges(loaded[0].schema, desired):
        return loaded[0]
    return next(reversed(counting(loaded)), loaded[0])
