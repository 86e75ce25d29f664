"""containerd's configuration, edited in place or by a drop-in, with the meaning that nvidia-ctk gives its entry.

Source: nvidia-container-toolkit@v1.17.8 and @v1.20.0, pkg/config/engine/containerd; their output in containerd 1.6.20,
1.7.24 and 2.1.9. Where it breaks a node it is not followed: docs/reference/differences-from-nvidia-ctk.md.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from gpunode.command import command
from gpunode.errors import Refused
from gpunode.facts.units import is_unit_file
from gpunode.runtimes import containerd_files, containerd_unit
from gpunode.runtimes.containerd_files import (
    CONFIG,
    CRI_PLUGINS,
    DROP_IN,
    ConfigFile,
    counting,
    edited,
    effective,
    imports_of,
    load,
    merged,
    merges,
    overruling,
    read,
)
from gpunode.runtimes.containerd_plugin import Surroundings, follows_blindly, is_of_runc, why_runc, wished
from gpunode.runtimes.model import Configured, Edit, Edited, Files, Former, Runtime, Wish, after_edits, satisfies
from gpunode.runtimes.tomlread import Document

__all__ = [
    "CONFIG",
    "DROP_IN",
    "absolute",
    "configure",
    "dump",
    "inspect",
    "located",
    "reads",
    "staged_imports",
    "staged_root",
    "unconfigure",
]

_BARE_BINARY = "nvidia-container-runtime"
_DUMP = "the output of `containerd config dump`"

# The name under which the CRI plugin has a default runtime that was given none.
_NAMELESS = "default"

_Contents: TypeAlias = dict[str, bytes | None]


def reads(files: Files, wish: Wish) -> tuple[str, ...]:
    """The paths and patterns that containerd reads, as far as ``files`` tell, and those that say how it is started."""
    # Its own alone: a unit is no configuration that could import another.
    started_by = containerd_unit.reads(files)
    own = {path: content for path, content in files.items() if path not in started_by and not is_unit_file(path)}
    return (*containerd_files.reads(own, _here(files, wish)), *started_by)


def located(row: Runtime, files: Files, wish: Wish) -> Runtime:
    """``row`` with the configuration that containerd's unit names, unless one is asked for, or a product brings it."""
    named = None if row.product else _named(files, wish)
    return replace(row, config=named.path) if named else row


def _here(files: Files, wish: Wish) -> Wish:
    """``wish`` for the configuration that containerd's unit names, unless one is asked for."""
    named = _named(files, wish)
    return replace(wish, config=named.path) if named else wish


def _named(files: Files, wish: Wish) -> containerd_unit.Named | None:
    """The configuration that containerd's unit names in the usual one's place; None where one is asked for."""
    named = None if wish.config else containerd_unit.named(files)
    return named if named and named.path != CONFIG else None


def inspect(files: Files, wish: Wish = Wish()) -> Configured:  # noqa: B008 - frozen
    """What the files say, merged as containerd merges them; missing or empty ones say nothing.

    Raises:
        Refused: one is not TOML, or not shaped as containerd's configuration.
    """
    wish = _here(files, wish)
    return _configured(load(files, wish), wish)


def dump(data: bytes) -> Configured:
    """What ``containerd config dump`` printed: the configuration as the daemon itself reads it.

    Raises:
        Refused: it is not what that command prints.
    """
    return _configured((read(data, _DUMP),), Wish())


def _configured(loaded: Sequence[ConfigFile], wish: Wish) -> Configured:
    for file in loaded:
        _check_plugin(file)
    plugin = effective(loaded, wish)
    containerd = plugin.get("containerd", {})
    handlers, cgroup = {}, {}
    for name, handler in containerd.get("runtimes", {}).items():
        options = handler.get("options", {})
        runs = handler.get("runtime_type") and is_of_runc(handler)
        handlers[name] = str(options.get("BinaryName", "")) if runs else ""
        if "SystemdCgroup" in options:
            cgroup[name] = options["SystemdCgroup"]
    return Configured(
        handlers,
        _NAMELESS if overruling(plugin, wish) else containerd.get("default_runtime_name") or None,
        any(file.disabled for file in loaded),
        plugin.get("enable_cdi"),
        cgroup,
        loaded[0].read_as,
    )


def _check_plugin(file: ConfigFile) -> None:
    """Nothing, if the parts of the CRI plugin's table that are read and written here have containerd's shape."""
    containerd = file.table((*file.cri, "containerd"))
    default = containerd.get("default_runtime_name", "")
    if not isinstance(default, str):
        raise file.misshapen((*file.cri, "containerd", "default_runtime_name"), default, "a string")
    for name in file.table((*file.cri, "containerd", "runtimes")):
        here = (*file.cri, "containerd", "runtimes", name)
        file.table(here)
        file.flag(file.table((*here, "options")), (*here, "options", "SystemdCgroup"))
    file.flag(file.plugin, (*file.cri, "enable_cdi"))


def configure(files: Files, wish: Wish) -> Edited:
    """The edits that register the NVIDIA handler as requested; none if it is registered already.

    Raises:
        Refused: a file cannot be read, cannot be edited without harm, or would be overruled by another.
    """
    named = _named(files, wish)
    if named is None:
        return _configure(files, wish)
    edited = _configure(files, replace(wish, config=named.path))
    if any(edit.path == named.path for edit in edited.edits):
        _check_own(named)
    return replace(edited, how=f"{edited.how}; {named.said_in} makes containerd read {named.path} instead of {CONFIG}")


def _check_own(named: containerd_unit.Named) -> None:
    """Nothing, unless the configuration is its vendor's: the next update would bring the former one back.

    Raises:
        Refused: it is.
    """
    if not named.path.startswith("/usr/") or named.path.startswith("/usr/local/"):
        return
    raise Refused(
        f"{named.said_in} makes containerd read {named.path}, which belongs to its vendor",
        why="updates replace files below /usr, and on images such as Flatcar's it is read-only",
        hint=f"{command('cp', named.path, CONFIG)}; `systemctl edit {containerd_unit.UNIT}` with an empty ExecStart= "
        f"and one that names {CONFIG}; then run the command again",
    )


def _configure(files: Files, wish: Wish) -> Edited:
    root = wish.config or CONFIG
    wish = absolute(wish, root)
    loaded = load(files, wish)
    present = _configured(loaded, wish)
    how = _how(loaded[0], wish)
    if not wish.exact and satisfies(present, wish) and not (wish.enable_cri and present.cri_disabled):
        return Edited((), how)
    _check_schema(loaded, wish)
    contents = _Editing(files, loaded, wish).contents()
    edits = tuple(
        Edit(path, files.get(path), content, root if path not in files and root in files else "")
        for path, content in contents.items()
        if content != files.get(path)
    )
    after = after_edits(files, Edited(edits))
    _check_effective(after, wish, present)
    if "runc" in _configured(load(after, wish), wish).handlers.keys() - present.handlers.keys():
        how = f"{how}; {why_runc(loaded[0].read_as, wish)}"
    return Edited(edits, how, tuple(_notes(loaded, after, wish)))


def unconfigure(files: Files, wish: Wish, former: Mapping[str, Former]) -> Edited:
    """The edits that remove the handler; see ``containerd_removal``, which few commands need.

    Raises:
        Refused: a file cannot be read, or cannot be edited without harm.
    """
    from gpunode.runtimes import containerd_removal

    return containerd_removal.unconfigure(files, _here(files, wish), former)


def absolute(wish: Wish, path: str) -> Wish:
    """``wish`` with the path at which nvidia-container-toolkit installs its runtime; containerd searches no PATH.

    Raises:
        Refused: a path in it is relative to nobody knows what, or its drop-in is the file at ``path``.
    """
    if wish.drop_in and not wish.drop_in.startswith("/"):
        raise Refused(
            f"the drop-in's path {wish.drop_in!r} is not absolute",
            why="containerd would resolve it relative to the file that imports it",
            hint=f"give its full path, such as {DROP_IN}",
        )
    if wish.drop_in == path:
        raise Refused(
            f"{path} is the configuration file itself, not a drop-in",
            why="it would import itself",
            hint="leave --drop-in-config out; --mode in-place edits the configuration itself",
        )
    if wish.binary == _BARE_BINARY:
        return replace(wish, binary=f"/usr/bin/{_BARE_BINARY}")
    if not wish.binary.startswith("/"):
        raise Refused(
            f"{path}: the runtime binary {wish.binary!r} is not an absolute path",
            why="containerd does not search for it as a shell does",
            hint="give its full path, such as /usr/bin/nvidia-container-runtime",
        )
    return wish


def _is_drop_in(root: ConfigFile, wish: Wish) -> bool:
    return wish.mode == "drop-in" or (wish.mode == "auto" and merges(root.schema, wish))


def _how(root: ConfigFile, wish: Wish) -> str:
    """Which files are edited, and why these."""
    if wish.mode != "auto":
        return "as a drop-in, as requested" if wish.mode == "drop-in" else "in place, as requested"
    version = ".".join(map(str, wish.version)) if wish.version else ""
    if _is_drop_in(root, wish):
        return f"as a drop-in: containerd {version or 'of schema 4'} merges it with the rest, key by key"
    before = (
        f"containerd {version} lets" if version else "which containerd reads it is not known, and before 2.1 it lets"
    )
    return f"in place: {before} a drop-in replace the whole CRI table"


def _check_schema(loaded: Sequence[ConfigFile], wish: Wish) -> None:
    """Refuses what is no schema of containerd's, and a drop-in for the one that has none."""
    for file in loaded:
        if file.schema not in CRI_PLUGINS:
            raise Refused(
                f"{file.path}: version = {file.schema} is a configuration schema that gpunode does not know",
                why=f"it knows {', '.join(map(str, CRI_PLUGINS))}",
                hint=f"`containerd config default` shows a schema that your containerd knows; move {file.path} to it",
            )
    root = loaded[0]
    if root.schema != 1 or wish.mode != "drop-in":
        return
    why = "without `version = 2` containerd reads the file as schema 1, which has other names for everything"
    if line := _stray_version(root):
        why += f"; the version on line {line} is below a table header, so it belongs to that table"
    raise Refused(
        f"{root.path}: configuration schema 1 supports no drop-ins",
        why=f"{why}, and a drop-in that nothing imports is never read",
        hint="edit the file itself: --mode in-place",
    )


def _stray_version(root: ConfigFile) -> int:
    """The line of a ``version`` that stands too low in the file to be its schema; 0 for none."""
    for number, line in enumerate(root.text.splitlines(), 1):
        if line.strip().startswith("version") and line.partition("=")[0].strip() == "version":
            return number
    return 0


class _Editing:
    """The files as they shall be, worked out from those that are there."""

    def __init__(self, files: Files, loaded: Sequence[ConfigFile], wish: Wish) -> None:
        self.files, self.loaded, self.wish, self.root = files, loaded, wish, loaded[0]

    def contents(self) -> _Contents:
        """Each file that may change, in the order of writing."""
        changed = self._by_drop_in() if _is_drop_in(self.root, self.wish) else self._in_place()
        if self.wish.enable_cri:
            for file in self.loaded:
                if file.disabled:
                    now = read(changed.get(file.path, self.files.get(file.path)), file.path, self.wish)
                    changed[file.path] = self._edited(now, _with_cri(now))
        return changed

    def _in_place(self) -> _Contents:
        file = self._file_that_counts()
        plugin = wished(file.plugin, Surroundings(self._inherited(), file.read_as, self._is_loaded), self.wish)
        return {file.path: self._edited(file, _with_plugin(file, plugin))}

    def _file_that_counts(self) -> ConfigFile:
        """The last one with a CRI table where that stands alone, or with an entry of ours; else the root."""
        if merges(self.root.schema, self.wish):
            return next((file for file in reversed(counting(self.loaded)) if self._has_entry(file)), self.root)
        return next(reversed(counting(self.loaded)), self.root)

    def _has_entry(self, file: ConfigFile) -> bool:
        return self.wish.handler in file.table((*file.cri, "containerd", "runtimes"))

    def _inherited(self) -> Document:
        """The CRI table whose runtimes the handler's entry is copied from."""
        plugin = effective(self.loaded, self.wish)
        if self.wish.source is None:
            return plugin
        told = read(self.wish.source, _DUMP)
        # A daemon tells its configuration in the newest schema that it knows, which has other keys.
        return merged(plugin, told.plugin) if told.schema == self.root.schema else plugin

    def _by_drop_in(self) -> _Contents:
        path = self._drop_in_path()
        present = read(self.files.get(path), path, self.wish)
        if present.schema != self.root.schema:
            # containerd 2 stops reading the root's settings by it, or does not start (aicr issue 1688).
            present = read(None, path, self.wish)
        theirs = present if self.wish.others is None else read(self.wish.others or None, path, self.wish)
        theirs = theirs if theirs.schema == self.root.schema else read(None, path, self.wish)
        own = theirs.table(self.root.cri)
        others = [file for file in self.loaded if file.path != path]
        base = effective(others, self.wish)
        if self.wish.source is not None and (told := read(self.wish.source, _DUMP)).schema == self.root.schema:
            base = told.plugin
        beside = Surroundings(base, self.root.schema, self._is_loaded, own)
        plugin = wished(_without_default(merged(base, own), base, self.wish), beside, self.wish)
        if self.wish.mode == "auto":
            plugin = _ours(plugin, base, own, self.wish)
        document = {**theirs.document, "version": self.root.schema}
        document["plugins"] = {**theirs.document.get("plugins", {}), self.root.cri[1]: plugin}
        return {path: self._edited(present, document), self.root.path: self._importing(path)}

    def _drop_in_path(self) -> str:
        """Where asked; else in a folder that is imported already, the usual one before others."""
        if self.wish.drop_in or self.wish.mode != "auto":
            return self.wish.drop_in or DROP_IN
        name = posixpath.basename(DROP_IN)
        folders = [posixpath.dirname(place) for place in self.root.imports if place.endswith("/*.toml")]
        absolute = [posixpath.join(posixpath.dirname(self.root.path), folder) for folder in folders]
        candidates = [DROP_IN, *(f"{folder}/{name}" for folder in absolute)]
        return next((path for path in candidates if any(imports_of(self.root, path))), DROP_IN)

    def _importing(self, path: str) -> bytes | None:
        """The root file, with the import of ``path`` that it needs."""
        root, pattern = self.root, posixpath.join(posixpath.dirname(path), "*.toml")
        pattern = pattern if path.endswith(".toml") else path
        is_read = pattern in root.imports if self.wish.mode != "auto" else any(imports_of(root, path))
        if is_read:
            return self.files.get(root.path)
        if self.wish.mode == "auto" and self._asleep(path):
            pattern = path  # others in that folder are read by nobody so far, and need not be meant to
        return self.with_imports([*root.imports, pattern])

    def _asleep(self, path: str) -> list[str]:
        """The files beside ``path`` that nothing imports."""
        folder = posixpath.dirname(path)
        loaded = {file.path for file in self.loaded}
        return [one for one in self.files if posixpath.dirname(one) == folder and one not in {*loaded, path}]

    def with_imports(self, imports: Sequence[str]) -> bytes | None:
        """The root file, importing just these."""
        root = self.root
        return self._edited(root, {"version": root.schema, **root.document, "imports": list(imports)})

    @property
    def _is_loaded(self) -> bool:
        return self.wish.enable_cri or not any(file.disabled for file in self.loaded)

    def _edited(self, file: ConfigFile, document: Document) -> bytes | None:
        return edited(file, document, self.files.get(file.path))


def _with_plugin(file: ConfigFile, plugin: Document) -> Document:
    """The file's document with ``plugin`` as its CRI table."""
    # Without one, a file of schema 1 is what it was: containerd 2 does not take the number 1 for a version.
    version = {} if file.schema != file.read_as else {"version": file.schema}
    return {**file.document, **version, "plugins": {**file.table(("plugins",)), file.cri[1]: plugin}}


def _with_cri(file: ConfigFile) -> Document:
    """The file's document without the CRI plugin among the disabled ones."""
    kept = [name for name in file.document["disabled_plugins"] if name not in file.disabled]
    return {**file.document, "disabled_plugins": kept}


def _without_default(plugin: Document, base: Document, wish: Wish) -> Document:
    """``plugin`` with the default of ``base``, where our handler is the default and shall no longer be.

    Source: nvidia-container-toolkit@v1.20.0 leaves its handler out as the default of a drop-in when not asked for it.
    """
    containerd = plugin.get("containerd", {})
    if wish.default or not wish.exact or containerd.get("default_runtime_name") != wish.handler:
        return plugin
    others = {key: value for key, value in containerd.items() if key != "default_runtime_name"}
    former = base.get("containerd", {}).get("default_runtime_name", "")
    default = {"default_runtime_name": former} if former and former != wish.handler else {}
    return {**plugin, "containerd": {**others, **default}}


def _ours(plugin: Document, base: Document, own: Document, wish: Wish) -> Document:
    """What a drop-in must say so that it and ``base`` amount to ``plugin``: the whole entry, and differences."""
    kept = merged(own)
    kept.get("containerd", {}).get("runtimes", {}).pop(wish.handler, None)
    if "default_runtime_name" not in plugin.get("containerd", {}):
        kept.get("containerd", {}).pop("default_runtime_name", None)
    entry = {"containerd": {"runtimes": {wish.handler: plugin["containerd"]["runtimes"][wish.handler]}}}
    return merged(kept, _differing(plugin, base), entry)


def _differing(table: Document, base: Document) -> Document:
    """The keys of ``table`` that ``base`` lacks or has otherwise."""
    found: Document = {}
    for key, value in table.items():
        former = base.get(key)
        if isinstance(value, dict) and isinstance(former, dict):
            if inner := _differing(value, former):
                found[key] = inner
        elif value != former:
            found[key] = value
    return found


def _check_effective(files: Files, wish: Wish, before: Configured) -> None:
    """Refuses what another file overrules."""
    loaded = load(files, wish)
    found = _configured(loaded, wish)
    meant_default = wish.handler if wish.default and found.default != _NAMELESS else found.default
    if wish.not_default and found.default == wish.handler:
        meant_default = "runc"
    if found.handlers.get(wish.handler) == wish.binary and found.default == meant_default:
        return
    guilty = [file.path for file in loaded[1:] if file.has_plugin]
    read_by = guilty[-1] if guilty else loaded[0].path
    raise Refused(
        f"{read_by} overrides the runtime {wish.handler} of {loaded[0].path}",
        why="containerd reads it later, so its CRI table wins"
        + ("" if before.handlers.get(wish.handler) else "; it does not have the runtime yet"),
        hint=f"gpunode ctk runtime configure --runtime containerd --mode in-place edits the file that wins; "
        f"or remove the table from {read_by}",
    )


def _notes(loaded: Sequence[ConfigFile], after: Files, wish: Wish) -> Iterator[str]:
    """What the user should know of the files as they will be."""
    root = loaded[0]
    for file in loaded:
        if file.has_plugin and file not in counting(loaded):
            yield f"{file.path} has schema {file.schema}, {root.path} has {root.schema}: its CRI table is ignored"
        if wish.enable_cri and file.disabled:
            yield f"{file.path}: the CRI plugin, which was in disabled_plugins, is enabled"
    found = inspect(after, wish)
    if (
        found.default
        and not found.default.startswith("$")
        and found.default not in {"runc", *found.handlers, _NAMELESS}
    ):
        yield f"the default runtime, {found.default}, has no entry, so the CRI plugin does not load, as before"
    yield from _alone(load(after, wish), wish)
    yield from _awake(loaded, after, wish)
    yield from _nameless(loaded, after, wish)
    if wish.cdi and root.read_as == 1 and follows_blindly(wish):
        yield f"{root.path}: enable_cdi is where nvidia-ctk puts it in schema 1; containerd does not read it there"
    yield from _lost(loaded, after, wish)
    present = {file.path: file for file in loaded}.get(wish.drop_in or DROP_IN)
    if _is_drop_in(root, wish) and present is not None:
        ours = (f"runtimes.{wish.handler}.", "default_runtime_name")
        for where in _contradictions(root.plugin, present.plugin):
            if not where.removeprefix("containerd.").startswith(ours):
                yield f"{present.path} overrides {where} of {root.path}, as it did before"


def _alone(loaded: Sequence[ConfigFile], wish: Wish) -> Iterator[str]:
    """That one file's CRI table takes the place of the others', and they say otherwise."""
    *others, last = counting(loaded) or (loaded[0],)
    if merges(loaded[0].schema, wish):
        return
    for file in others:
        if unread := sorted(_unsaid(file.plugin, last.plugin)):
            yield (
                f"this containerd uses only the CRI table of {last.path}, so these of {file.path} have no effect: "
                + ", ".join(unread)[:300]
            )


def _unsaid(one: Mapping[str, object], other: Mapping[str, object], above: str = "") -> Iterator[str]:
    """The keys of ``one`` that ``other`` lacks."""
    for key, value in one.items():
        if key not in other:
            yield f"{above}{key}"
        elif isinstance(value, dict) and isinstance(inner := other[key], dict):
            yield from _unsaid(value, inner, f"{above}{key}.")


def _awake(loaded: Sequence[ConfigFile], after: Files, wish: Wish) -> Iterator[str]:
    """The files that nothing imported so far, and that are read now."""
    before = {file.path for file in loaded} | {wish.drop_in or DROP_IN}
    if others := [file.path for file in load(after, wish) if file.path not in before]:
        yield f"{loaded[0].path} imports the whole folder now, so these are read as well: {', '.join(others)}"


def _nameless(loaded: Sequence[ConfigFile], after: Files, wish: Wish) -> Iterator[str]:
    """What becomes of the nameless default runtime, where another one is asked for as the default."""
    former = overruling(effective(loaded, wish), wish)
    if not former or not wish.default:
        return
    said = ", ".join(f"{key} = {value!r}" for key, value in former.items())[:300]
    if overruling(effective(load(after, wish), wish), wish):
        yield f"{wish.handler} does not become the default: default_runtime overrides it ({said}); remove that"
    else:
        yield f"removed default_runtime, which overrode every other default: {said}"


def _lost(loaded: Sequence[ConfigFile], after: Files, wish: Wish) -> Iterator[str]:
    """The keys of the handler's former entry that its new one lacks."""
    former, now = (
        effective(each, wish).get("containerd", {}).get("runtimes", {}).get(wish.handler, {})
        for each in (loaded, load(after, wish))
    )
    if gone := sorted(set(former) - set(now)):
        yield (
            f"the entry {wish.handler} is copied again from the default runtime's, as nvidia-ctk does; it was: "
            + ", ".join(f"{key} = {former[key]!r}" for key in gone)[:300]
        )


def _contradictions(one: Mapping[str, object], other: Mapping[str, object], above: str = "") -> Iterator[str]:
    for key, value in one.items():
        if key not in other:
            continue
        if isinstance(value, dict) and isinstance(inner := other[key], dict):
            yield from _contradictions(value, inner, f"{above}{key}.")
        elif value != other[key]:
            yield f"{above}{key}"


def staged_imports(files: Files, wish: Wish, changed: Collection[str]) -> Mapping[str, bytes]:
    """What stands in for imported files in a trial, by their paths: those that changed, and none with imports.

    The root's stand-in imports all of them itself; else a file that names another would bring the present one.

    Raises:
        Refused: a file cannot be read, or its imports cannot be taken out.
    """
    loaded = load(files, wish)
    wanted = [file for file in loaded[1:] if file.path in changed or file.imports]
    return {file.path: _without_imports(file, files[file.path]) for file in wanted}


def _without_imports(file: ConfigFile, content: bytes) -> bytes:
    return edited(file, {key: value for key, value in file.document.items() if key != "imports"}, content) or b""


def staged_root(files: Files, wish: Wish, staged: Mapping[str, str]) -> bytes:
    """The root file as containerd shall read it for a trial: what it imports is in the files that ``staged`` names.

    Raises:
        Refused: a file cannot be read, or its imports cannot be changed.
    """
    root = wish.config or CONFIG
    loaded = load(files, wish)
    if not staged:
        return files.get(root, b"")
    imports = [staged.get(file.path, file.path) for file in loaded[1:]]
    return _Editing(files, loaded, wish).with_imports(imports) or b""
