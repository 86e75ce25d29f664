"""Notes for the user about containerd's files as they will be. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpunode.runtimes.containerd_files import (
    DROP_IN,
    ConfigFile,
    counting,
    effective,
    find_nameless_default,
    is_drop_in,
    load,
    merges,
)
from gpunode.runtimes.containerd_plugin import follows_blindly
from gpunode.runtimes.model import NAMELESS, DesiredConfig, Files, ObservedConfig
from gpunode.runtimes.text import MISSING, compare_documents


def notes(loaded: Sequence[ConfigFile], after: Files, found: ObservedConfig, desired: DesiredConfig) -> Iterator[str]:
    """Yield a warning for each thing that the edits do or leave; ``found`` is what the files will say."""
    for file in loaded:
        if desired.enable_cri and file.disabled:
            yield f"{file.path}: the CRI plugin, which was in disabled_plugins, is enabled"
    yield from state_notes(load(after, desired), found, desired)
    yield from _awake(loaded, after, desired)
    yield from _nameless(loaded, after, desired)
    yield from _lost_keys(loaded, after, desired)


def state_notes(loaded: Sequence[ConfigFile], found: ObservedConfig, desired: DesiredConfig) -> Iterator[str]:
    """Yield a warning for what has no effect in the files, or stops the CRI plugin; ``found`` is what they say."""
    root = loaded[0]
    for file in loaded:
        if file.has_plugin and file not in counting(loaded):
            yield f"{file.path} has schema {file.schema}, {root.path} has {root.schema}: its CRI table is ignored"
    if found.default and not found.default.startswith("$") and found.default not in {"runc", *found.handlers, NAMELESS}:
        yield f"the default runtime, {found.default}, has no entry, so the CRI plugin does not load"
    yield from _alone(loaded, desired)
    if desired.cdi and root.read_as == 1 and follows_blindly(desired):
        yield f"{root.path}: nvidia-ctk puts enable_cdi there in schema 1, but containerd does not read it there"
    present = {file.path: file for file in loaded}.get(desired.drop_in or DROP_IN)
    if is_drop_in(root, desired) and present is not None:
        own_keys = (f"runtimes.{desired.handler}.", "default_runtime_name")
        for path, *values in compare_documents(root.plugin, present.plugin):
            where = ".".join(path)
            if MISSING not in values and not where.removeprefix("containerd.").startswith(own_keys):
                yield f"{present.path} overrides {where} of {root.path}"


def _alone(loaded: Sequence[ConfigFile], desired: DesiredConfig) -> Iterator[str]:
    """Note that one file's CRI table replaces those of the others, which say otherwise."""
    *others, last = counting(loaded) or (loaded[0],)
    if merges(loaded[0].schema, desired):
        return
    for file in others:
        if unread := _missing_keys(file.plugin, last.plugin):
            yield (
                f"this containerd uses only the CRI table of {last.path}, so these of {file.path} have no effect: "
                + ", ".join(unread)[:300]
            )


def _missing_keys(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """Return the keys of ``one`` that ``other`` lacks."""
    return sorted(".".join(path) for path, _, value in compare_documents(one, other) if value is MISSING)


def _awake(loaded: Sequence[ConfigFile], after: Files, desired: DesiredConfig) -> Iterator[str]:
    """The files that nothing imported so far, and that are read now."""
    before = {file.path for file in loaded} | {desired.drop_in or DROP_IN}
    if others := [file.path for file in load(after, desired) if file.path not in before]:
        yield f"{loaded[0].path} imports the whole folder now, so these are read as well: {', '.join(others)}"


def _nameless(loaded: Sequence[ConfigFile], after: Files, desired: DesiredConfig) -> Iterator[str]:
    """Note what becomes of the nameless default runtime if another default is requested."""
    former = find_nameless_default(effective(loaded, desired), desired)
    if not former or not desired.default:
        return
    settings = ", ".join(f"{key} = {value!r}" for key, value in former.items())[:300]
    if find_nameless_default(effective(load(after, desired), desired), desired):
        yield (
            f"{desired.handler} does not become the default: default_runtime overrides it ({settings}); remove "
            "default_runtime"
        )
    else:
        yield f"removed default_runtime, which overrode every other default: {settings}"


def _lost_keys(loaded: Sequence[ConfigFile], after: Files, desired: DesiredConfig) -> Iterator[str]:
    """Yield the keys of the handler's former entry that its new one lacks: that of another shim is replaced."""
    former, now = (
        effective(each, desired).get("containerd", {}).get("runtimes", {}).get(desired.handler, {})
        for each in (loaded, load(after, desired))
    )
    if gone := _missing_keys(former, now):
        yield (
            f"the entry {desired.handler} used the shim {former.get('runtime_type')} and is replaced; these of its "
            "keys "
            f"are removed: {', '.join(gone)}"
        )
