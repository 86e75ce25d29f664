"""Remove a handler from a runtime's files, by its name or after its recorded edits were reverted. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpunode.errors import Refused
from gpunode.runtimes.documents import (
    MISSING_VALUE,
    ConfigLayer,
    Document,
    compare_documents,
    parse_document,
    value_at,
    with_value,
)
from gpunode.runtimes.model import RUNC_FAMILY, ConfigEdit, DesiredConfig, Edit, Files, Removal, Runtime
from gpunode.runtimes.reversal import changed_handlers

# The files before the handler was added; None for a file that was missing or is not on record.
PreviousContents = Mapping[str, bytes | None]


def former_files(files: Files, recorded: Sequence[Edit]) -> Files:
    """Return ``files`` as they were before gpunode's ``recorded`` edits, which are sorted oldest first."""
    first = {edit.path: edit.before for edit in reversed(recorded) if edit.path in files}
    return {path: content for path, content in {**files, **first}.items() if content is not None}


def find_other_own_handlers(
    runtime: Runtime, desired: DesiredConfig, files: Files, recorded: Sequence[Edit]
) -> frozenset[str]:
    """Return the other handlers that gpunode added and that still exist.

    A handler that runs the same program as before gpunode does not count: a drop-in may repeat it.
    """
    was, now = (runtime.inspect(each, desired).handlers for each in (former_files(files, recorded), files))
    copied = {name for name in now if was.get(name) == now[name]}
    made_handlers = frozenset[str]().union(*map(changed_handlers, recorded))
    return made_handlers & now.keys() - {desired.handler, *RUNC_FAMILY} - copied


def remove_handler(
    runtime: Runtime, desired: DesiredConfig, reverted: Removal, contents_before: PreviousContents
) -> ConfigEdit:
    """Return the edits that remove ``desired.handler``.

    Args:
        runtime: the runtime.
        desired: names the handler, and the effective files.
        reverted: its files, with gpunode's recorded edits reverted if no other handler needs them.
        contents_before: the files from which the handler is removed by name, as they were before it was added.

    Raises:
        Refused: the files cannot be edited this way, or neither gpunode nor nvidia-ctk can have added the handler.
    """
    files, removal = reverted.files, _restore_entry(runtime, desired, reverted, contents_before)
    completed = _complete_removal(runtime, desired, removal)
    # What completing puts back, such as runc's entry beside one that stays, was not gpunode's change to undo.
    is_recorded = files not in (removal.files_after, completed.files_after)
    if not is_recorded:
        if _is_foreign(runtime, desired, files):
            binary = runtime.inspect(files, desired).handlers[desired.handler]
            raise Refused(
                f"the runtime {desired.handler} of {runtime.id} was not added by configure",
                why=f"it runs {binary or 'the default of its shim'}, and gpunode has no record of it",
                hint=f"remove it from {desired.config or runtime.config} by hand; if it is NVIDIA's nevertheless, name "
                f"its program: --nvidia-runtime-path={binary or 'FILE'}",
            )
        # The notes on what a revert keeps do not hold for a removal by name.
        by_name = _restore_entry(runtime, desired, replace(removal, notes=()), dict.fromkeys(files))
        completed = _complete_removal(runtime, desired, by_name)
    removal = completed
    paths = dict.fromkeys((*(layer.path for layer in runtime.layers(files, desired)), *sorted(files)))
    edits = tuple(
        Edit(path, files.get(path), removal.files_after.get(path))
        for path in paths
        if path not in runtime.generated_files and files.get(path) != removal.files_after.get(path)
    )
    how, notes = _describe_removal(runtime, desired, removal, edits, is_recorded=is_recorded)
    kept_notes = (note for note in (*removal.notes, *notes) if not note.startswith((*runtime.generated_files,)))
    return ConfigEdit(edits, how, tuple(dict.fromkeys(kept_notes)))


def _complete_removal(runtime: Runtime, desired: DesiredConfig, removal: Removal) -> Removal:
    return runtime.complete_removal(remove_dangling_default(runtime, desired, removal), desired)


def _describe_removal(
    runtime: Runtime, desired: DesiredConfig, removal: Removal, edits: Sequence[Edit], *, is_recorded: bool
) -> tuple[str, tuple[str, ...]]:
    """Return a sentence about what is done, and notes on what stays."""
    handler, is_left = desired.handler, desired.handler in runtime.inspect(removal.files_after, desired).handlers
    if not edits:
        return f"no file of {runtime.product or runtime.id} that gpunode edits has {handler}", ()
    if not is_recorded:
        how = (
            f"{handler} is removed by its name: gpunode has no record of it in {', '.join(edit.path for edit in edits)}"
        )
        unknown = "the former default is not on record; it is now runc, unless a file names another"
        return how, (unknown,) if runtime.inspect(removal.files, desired).default == handler else ()
    if not is_left:
        return f"{handler} is removed", ()
    how = f"gpunode's changes to {handler} are undone"
    if runtime.product or _is_foreign(runtime, desired, removal.files_after):
        return how, ()
    leftover_note = (
        f"{runtime.id} still has a runtime {handler}: an entry that gpunode has no record of stays; run the same "
        "command again to remove it by its name"
    )
    return how, (leftover_note,)


def _is_foreign(runtime: Runtime, desired: DesiredConfig, files: Files) -> bool:
    """Return whether neither gpunode nor nvidia-ctk can have added the handler."""
    binary = runtime.inspect(files, desired).handlers.get(desired.handler)
    is_nvidias = posixpath.basename(binary or "").startswith("nvidia-container-runtime")
    return binary not in {None, desired.binary} and not is_nvidias


def _restore_entry(runtime: Runtime, desired: DesiredConfig, removal: Removal, before: PreviousContents) -> Removal:
    """Restore the handler's entry, and a default that names it, to what they were ``before``; else remove them."""
    layers, main = runtime.layers(removal.files_after, desired), desired.config or runtime.config
    root = next((layer.document for layer in layers if layer.path == main), {})
    for layer in (layer for layer in layers if layer.path in before):
        was, document = parse_document(before[layer.path], layer.path), layer.document
        entry = (*layer.runtimes, desired.handler)
        if value_at(document, entry) is not None:
            document = with_value(document, entry, value_at(was, entry), prune=True)
        if value_at(document, layer.default) == desired.handler:
            document = with_value(document, layer.default, value_at(was, layer.default), prune=True)
        if document is layer.document:
            continue
        # A drop-in without settings of its own is deleted, unless it has a comment.
        rest = with_value(document, ("version",), None)
        says_more = any(value is not MISSING_VALUE for _, _, value in compare_documents(root, rest))
        is_idle = layer.path != main and "#" not in layer.text and not says_more
        removal = removal.with_file(layer.path, None if is_idle else _edit(layer, document))
    return removal


def remove_dangling_default(runtime: Runtime, desired: DesiredConfig, removal: Removal) -> Removal:
    """Remove a default that no longer names a runtime: containers would not start with it.

    A default that named none even before gpunode is restored with the file's former content.
    """

    def read_defaults(files: Files) -> dict[str, str]:
        defaults = ((layer.path, value_at(layer.document, layer.default)) for layer in runtime.layers(files, desired))
        return {path: name for path, name in defaults if isinstance(name, str)}

    was, now, remaining = (read_defaults(files) for files in (removal.former, removal.files, removal.files_after))
    present, were_there = (runtime.inspect(files, desired).handlers for files in (removal.files_after, removal.former))
    for layer in runtime.layers(removal.files_after, desired):
        path, name = layer.path, remaining.get(layer.path, "")
        if name in {"", *present, *RUNC_FAMILY} or name.startswith(("io.containerd.", "$")):
            continue
        if name == now.get(path) and name != desired.handler:
            continue
        was_dangling = was.get(path) == name and name not in were_there
        is_recorded = removal.former.get(path) != removal.files[path]
        if was_dangling and is_recorded:
            continue
        document = with_value(layer.document, layer.default, was[path] if was.get(path) in present else None)
        is_idle = path not in removal.former and not document and "#" not in layer.text
        removal = removal.with_file(path, None if is_idle else _edit(layer, document)).with_notes(
            f"{path}: the default runtime {name} no longer exists; that default is removed, since containers would not "
            "start with it"
        )
    return removal


def _edit(layer: ConfigLayer, document: Document) -> bytes | None:
    advice = f"write the tables of {layer.path} with headers ([a.b.c]), then run the command again"
    return layer.edit(document, advice=advice)
