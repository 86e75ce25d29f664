"""Edit containerd's files: the handler in place or in a drop-in, its imports, and notes on the result. Pure."""

from __future__ import annotations

import copy
import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from gpunode.fast_dataclass import dataclass
from gpunode.runtimes.containerd import (
    OLD_RUNC_RUNTIME_TYPE,
    RUNC_RUNTIME_TYPE,
    find_systemd_cgroup_settings,
    is_runc_shim,
)
from gpunode.runtimes.containerd_files import (
    CONFIG,
    CONFIG_DUMP_SOURCE,
    CONTAINERD_DROP_IN,
    ConfigFile,
    edit_file,
    effective_cri_table,
    files_in_effect,
    find_overriding_default,
    imports_matching,
    load_config_files,
    merge_tables,
    merges_cri_tables,
    parse_config,
    refuse_misshapen_cri_table,
    uses_drop_in,
)
from gpunode.runtimes.documents import MISSING_VALUE, Document, compare_documents, value_at, with_value
from gpunode.runtimes.model import (
    NAMELESS_DEFAULT_NAME,
    RUNC_FAMILY,
    DesiredConfig,
    Files,
    ObservedConfig,
    Removal,
    cgroup_handlers,
    is_under_systemd,
    needs_runc,
)

# What nvidia-ctk writes if there is no runtime to copy from.
_GENERIC_RUNC_ENTRY: Document = {
    "runtime_type": RUNC_RUNTIME_TYPE,
    "runtime_root": "",
    "runtime_engine": "",
    "privileged_without_host_devices": False,
}


class ContainerdEditor:
    """The desired content of containerd's files, derived from the present files."""

    def __init__(self, files: Files, loaded: Sequence[ConfigFile], desired: DesiredConfig) -> None:
        self.files, self.loaded, self.desired, self.root = files, loaded, desired, loaded[0]

    def contents(self) -> dict[str, bytes | None]:
        """Return each file that may change, in the order of writing."""
        changed = self._edit_by_drop_in() if uses_drop_in(self.root, self.desired) else self._edit_in_place()
        if self.desired.enable_cri:
            for file in self.loaded:
                if file.disabled:
                    now = parse_config(changed.get(file.path, self.files.get(file.path)), file.path, self.desired)
                    kept = [name for name in now.document["disabled_plugins"] if name not in now.disabled]
                    changed[file.path] = edit_file(now, {**now.document, "disabled_plugins": kept})
        return changed

    def _edit_in_place(self) -> dict[str, bytes | None]:
        file = self._choose_file()
        context = PluginContext(self._inherited_table(), file.read_as, self._is_cri_enabled)
        plugins = {**file.table(("plugins",)), file.cri[1]: with_handler(file.plugin, context, self.desired)}
        # A file of schema 1 stays so without a version: containerd 2 does not accept `version = 1`.
        version = {} if file.schema != file.read_as else {"version": file.schema}
        return {file.path: edit_file(file, {**file.document, **version, "plugins": plugins})}

    def _choose_file(self) -> ConfigFile:
        """Return the last file with a CRI table if only that counts, or with our entry; else the root."""
        stands_alone = not merges_cri_tables(self.root.schema, self.desired)
        files = reversed(files_in_effect(self.loaded))
        return next(
            (file for file in files if stands_alone or self.desired.handler in file.table(file.runtimes)), self.root
        )

    def _inherited_table(self) -> Document:
        """Return the CRI table with the runtimes that the handler's entry is copied from."""
        plugin = effective_cri_table(self.loaded, self.desired)
        return merge_tables(plugin, self._dumped_table() or {})

    def _dumped_table(self) -> Document | None:
        """Return the CRI table of the configuration that the daemon printed; None if it has another schema.

        A daemon prints its configuration in the newest schema that it knows, which has other keys.
        """
        dumped = None if self.desired.source is None else parse_config(self.desired.source, CONFIG_DUMP_SOURCE)
        return dumped.plugin if dumped and dumped.schema == self.root.schema else None

    def _edit_by_drop_in(self) -> dict[str, bytes | None]:
        path = self._drop_in_path()
        present = parse_config(self.files.get(path), path, self.desired)
        refuse_misshapen_cri_table(present)  # it may be a file that nothing imports yet
        if present.schema != self.root.schema:
            # Because of it, containerd 2 ignores the root's settings, or does not start (aicr issue 1688).
            present = parse_config(None, path, self.desired)
        others_own = self.desired.others
        foreign = present if others_own is None else parse_config(others_own or None, path, self.desired)
        foreign = foreign if foreign.schema == self.root.schema else parse_config(None, path, self.desired)
        others = [file for file in self.loaded if file.path != path]
        dumped = self._dumped_table()
        base = effective_cri_table(others, self.desired) if dumped is None else dumped
        own = merge_tables(foreign.table(self.root.cri), _own_drop_in_settings(present.plugin, base, self.desired))
        context = PluginContext(base, self.root.schema, self._is_cri_enabled)
        plugin = with_handler(merge_tables(base, own), context, self.desired)
        if self.desired.mode == "auto":
            plugin = _drop_in_table(plugin, base, own, self.desired)
        document = {**foreign.document, "version": self.root.schema}
        document["plugins"] = {**foreign.document.get("plugins", {}), self.root.cri[1]: plugin}
        return {path: edit_file(present, document), self.root.path: self._root_with_import(path)}

    def _drop_in_path(self) -> str:
        """Return the requested drop-in; else one in a folder that is already imported, preferably the usual one."""
        if self.desired.drop_in or self.desired.mode != "auto":
            return self.desired.drop_in or CONTAINERD_DROP_IN
        name = posixpath.basename(CONTAINERD_DROP_IN)
        folders = [posixpath.dirname(path) for path in self.root.imports if path.endswith("/*.toml")]
        absolute = [posixpath.join(posixpath.dirname(self.root.path), folder) for folder in folders]
        candidates = [CONTAINERD_DROP_IN, *(f"{folder}/{name}" for folder in absolute)]
        return next((path for path in candidates if any(imports_matching(self.root, path))), CONTAINERD_DROP_IN)

    def _root_with_import(self, path: str) -> bytes | None:
        """Return the root file with an import of ``path`` if it needs one."""
        root, pattern = self.root, posixpath.join(posixpath.dirname(path), "*.toml")
        pattern = pattern if path.endswith(".toml") else path
        is_read = pattern in root.imports if self.desired.mode != "auto" else any(imports_matching(root, path))
        if is_read:
            return self.files.get(root.path)
        known = {path, *(file.path for file in self.loaded)}
        has_others = any(
            posixpath.dirname(other_path) == posixpath.dirname(path) for other_path in self.files.keys() - known
        )
        if self.desired.mode == "auto" and has_others:
            pattern = path  # nothing reads the others so far, and that may be intended
        return self.with_imports([*root.imports, pattern])

    def with_imports(self, imports: Sequence[str]) -> bytes | None:
        """Return the root file with exactly these imports."""
        root = self.root
        return edit_file(root, {"version": root.schema, **root.document, "imports": list(imports)})

    @property
    def _is_cri_enabled(self) -> bool:
        return self.desired.enable_cri or not any(file.disabled for file in self.loaded)


def _own_drop_in_settings(present: Document, base: Document, desired: DesiredConfig) -> Document:
    """Return gpunode's own settings that a drop-in has, since nobody has asked to undo them.

    The rest of a drop-in that copies the root file follows the root file.
    """
    containerd = present.get("containerd", {})
    is_built_in = "runc" not in base.get("containerd", {}).get("runtimes", {})
    names = {desired.handler, "runc"} if is_built_in else {desired.handler}
    entries: Document = {}
    for name, entry in containerd.get("runtimes", {}).items():
        if name in names:
            entries[name] = entry
        elif name in RUNC_FAMILY and entry.get("options", {}).get("SystemdCgroup") is True:
            entries[name] = {"options": {"SystemdCgroup": True}}
    is_default = containerd.get("default_runtime_name") == desired.handler
    kept = {
        **({"runtimes": entries} if entries else {}),
        **({"default_runtime_name": desired.handler} if is_default else {}),
    }
    return {
        **({"containerd": kept} if kept else {}),
        **({"enable_cdi": True} if present.get("enable_cdi") is True else {}),
    }


def _drop_in_table(plugin: Document, base: Document, own_settings: Document, desired: DesiredConfig) -> Document:
    """Return a drop-in's content that makes ``base`` equal ``plugin``: the differences, and the complete entry.

    Even an entry that ``base`` has: readers who do not know that this containerd merges files only see the drop-in.
    """
    kept = merge_tables(own_settings)
    kept.get("containerd", {}).get("runtimes", {}).pop(desired.handler, None)
    entry = {"containerd": {"runtimes": {desired.handler: plugin["containerd"]["runtimes"][desired.handler]}}}
    changed: Document = {}
    for path, _, value in compare_documents(base, plugin):
        changed = changed if value is MISSING_VALUE else with_value(changed, path, value)
    return merge_tables(kept, changed, entry)


# The CRI plugin's table.


@dataclass(frozen=True, slots=True)
class PluginContext:
    """The context in which a CRI table is read.

    Attributes:
        inherited: the table whose default runtime the entry is copied from, and whose runtimes count as well.
        schema: the schema of the file with the table.
        is_loaded: whether the CRI plugin is enabled, so that it needs a default runtime.
    """

    inherited: Document
    schema: int
    is_loaded: bool = True


def with_handler(plugin: Document, beside: PluginContext, desired: DesiredConfig) -> Document:
    """Return the table ``plugin`` with the requested handler; its shape has been checked."""
    result = dict(plugin)
    containerd = result["containerd"] = dict(plugin.get("containerd", {}))
    runtimes = containerd["runtimes"] = copy.deepcopy(containerd.get("runtimes", {}))
    former = beside.inherited.get("containerd", {})
    known = {**copy.deepcopy(former.get("runtimes", {})), **runtimes}
    merged = merge_tables(beside.inherited, plugin)
    nameless = {} if mimics_nvidia_ctk(desired) else find_overriding_default(merged, desired)
    model = _find_template(known, nameless, former.get("default_runtime_name", ""), desired)
    former_default = merged.get("containerd", {}).get("default_runtime_name") or "runc"
    is_default_under_systemd = is_under_systemd(
        NAMELESS_DEFAULT_NAME if nameless else former_default, find_systemd_cgroup_settings(merged, desired)
    )
    runtimes[desired.handler] = known[desired.handler] = _make_handler_entry(
        known.get(desired.handler), model, beside, desired
    )
    if desired.default:
        containerd["default_runtime_name"] = desired.handler
        if find_overriding_default(plugin, desired) and not mimics_nvidia_ctk(desired):
            del containerd["default_runtime"]  # nvidia-ctk leaves it, so its own default has no effect
            # With this key and a default runtime of a newer type, no CRI plugin loads (1.6.20 and 1.7.24, started).
            if result.get("systemd_cgroup") and runtimes[desired.handler]["runtime_type"] != OLD_RUNC_RUNTIME_TYPE:
                del result["systemd_cgroup"]
                desired = replace(desired, systemd_cgroup=True)
    elif desired.demote_default and desired.handler in {
        one.get("default_runtime_name") for one in (containerd, former)
    }:
        containerd["default_runtime_name"] = "runc"
    default = containerd.get("default_runtime_name") or former.get("default_runtime_name") or "runc"
    # Needed even if another runtime becomes the default: a RuntimeClass may name runc.
    if beside.is_loaded and any(needs_runc(one, known, beside.schema, desired) for one in (former_default, default)):
        runtimes["runc"] = known["runc"] = _make_runc_entry(model)
    _enable_systemd_cgroup(runtimes, known, desired, is_default_under_systemd=is_default_under_systemd)
    if desired.enable_cdi:
        # nvidia-ctk sets it, for schema 1, where containerd does not read it.
        (containerd if beside.schema == 1 and mimics_nvidia_ctk(desired) else result)["enable_cdi"] = True
    return result


def mimics_nvidia_ctk(desired: DesiredConfig) -> bool:
    """Return whether to follow nvidia-ctk where it has no effect on containerd: the daemon is unknown."""
    return desired.exact and desired.mode != "auto" and desired.version is None


def _find_template(runtimes: Document, nameless: Document, default: str, desired: DesiredConfig) -> Document:
    """Return what a new entry is copied from: the default runtime, else runc, else crun, else the present entry."""
    first = () if not default or default.startswith("nvidia") else (default,)
    named = [runtimes[name] for name in (*first, *RUNC_FAMILY, desired.handler) if name in runtimes]
    # The oldest type's keys mean nothing to runc's shim.
    candidates = [nameless, *named] if nameless and nameless["runtime_type"] != OLD_RUNC_RUNTIME_TYPE else named
    # A VM shim's options mean nothing to runc's shim, the only one that runs the NVIDIA runtime.
    template: Document = copy.deepcopy(
        next((entry for entry in candidates if is_runc_shim(entry)), _GENERIC_RUNC_ENTRY)
    )
    return template


def _make_handler_entry(
    existing: Document | None, template: Document, beside: PluginContext, desired: DesiredConfig
) -> Document:
    """Return the handler's table: the existing one, changed to run our binary, or a copy of ``template``.

    An existing table keeps every key. If it ran another binary, missing keys are taken from ``template``.
    """
    if existing and _runs_binary(existing, desired.binary):
        return existing
    kept = existing if existing and is_runc_shim(existing) else {}
    entry = {**copy.deepcopy(template), **copy.deepcopy(kept)}
    entry["runtime_type"] = entry.get("runtime_type") or RUNC_RUNTIME_TYPE
    entry["options"] = {**template.get("options", {}), **kept.get("options", {}), "BinaryName": desired.binary}
    if beside.schema == 1:
        entry["options"]["Runtime"] = desired.binary
    return entry


def _make_runc_entry(source: Document) -> Document:
    """Return an entry for runc with the options of ``source``, so that it and the handler stay alike."""
    options = {key: value for key, value in source.get("options", {}).items() if key not in {"BinaryName", "Runtime"}}
    rest = {key: value for key, value in source.items() if key != "options"}
    return {
        **rest,
        "runtime_type": source.get("runtime_type") or RUNC_RUNTIME_TYPE,
        **({"options": options} if options else {}),
    }


def _runs_binary(entry: Document, binary: str) -> bool:
    is_typed = bool(entry.get("runtime_type")) and is_runc_shim(entry)
    return is_typed and entry.get("options", {}).get("BinaryName") == binary


def _enable_systemd_cgroup(
    runtimes: Document, known: Document, desired: DesiredConfig, *, is_default_under_systemd: bool
) -> None:
    """Put handlers under systemd's driver: those that should be, or the desired one if the default runtime's is.

    Pods of a node have one cgroup driver: a handler under another one than the kubelet's starts no pod. A handler under
    systemd's stays there: runc's table may be left over, or say nothing because another runtime is the default.
    """
    if desired.systemd_cgroup:
        for name in cgroup_handlers(desired, known):
            former = runtimes[name] if name in runtimes else known[name]
            runtimes[name] = {**former, "options": {**former.get("options", {}), "SystemdCgroup": True}}
    elif is_default_under_systemd:
        runtimes[desired.handler].setdefault("options", {})["SystemdCgroup"] = True


# The rest of the files.


def complete_removal(removal: Removal, desired: DesiredConfig) -> Removal:
    """Return the removal with a runc table if the CRI plugin needs one, and with the imports that other files need.

    A file that had no runc table before gpunode is left without one.
    """
    if _lacks_runc(removal.files_after, desired) and not _lacks_runc(removal.former, desired):
        loaded = load_config_files(removal.files_after, desired)
        counts = (loaded[0],) if merges_cri_tables(loaded[0].schema, desired) else files_in_effect(loaded)
        file = counts[-1] if counts else loaded[0]
        document = with_value(
            file.document, (*file.cri, "containerd", "runtimes", "runc"), {"runtime_type": RUNC_RUNTIME_TYPE}
        )
        removal = removal.with_file(file.path, edit_file(file, document)).with_notes(
            f"{file.path}: runc has an entry now, because the file's other runtimes replace the built-in ones"
        )
    return _keep_imports(removal, desired)


def _lacks_runc(files: Files, desired: DesiredConfig) -> bool:
    loaded = load_config_files(files, desired)
    containerd = effective_cri_table(loaded, desired).get("containerd", {})
    runtimes = containerd.get("runtimes", {})
    if not runtimes or any(file.disabled for file in loaded):
        return False
    default = containerd.get("default_runtime_name") or "runc"
    return needs_runc(default, runtimes, loaded[0].schema, replace(desired, systemd_cgroup=False))


def _keep_imports(removal: Removal, desired: DesiredConfig) -> Removal:
    """Keep the root's imports of files that others have put beside gpunode's drop-in since."""
    loaded = load_config_files(removal.files, desired)
    root, left = loaded[0], {file.path for file in load_config_files(removal.files_after, desired)}
    lost = [file.path for file in loaded if file.path not in left and file.path in removal.files_after]
    needed = [written for written in root.imports if any(written in imports_matching(root, path) for path in lost)]
    now = parse_config(removal.files_after.get(root.path), root.path, desired)
    if needed:
        document = {"version": root.schema, **now.document, "imports": [*now.imports, *needed]}
        return removal.with_file(root.path, edit_file(now, document)).with_notes(
            f"{root.path} still imports {', '.join(needed)}, since {', '.join(lost)} would not be read without it"
        )
    unrecorded = [path for path in removal.former if path in removal.files and path not in removal.files_after]
    return removal.with_notes(
        *(
            f"{root.path} still imports the folder of {path}: it is not on record who added that import"
            for path in unrecorded
            if any(imports_matching(now, path))
        )
    )


def staged_imports(files: Files, desired: DesiredConfig, changed: Collection[str]) -> Mapping[str, bytes]:
    """Return the copies of imported files for a trial, by their paths: of changed files, and of files with imports.

    The copies import nothing; the root's copy imports all of them: an import in a copy would load a present file.

    Raises:
        Refused: a file cannot be read, or its imports cannot be removed.
    """
    loaded = load_config_files(files, desired)
    wanted = [file for file in loaded[1:] if file.path in changed or file.imports]
    return {file.path: edit_file(file, with_value(file.document, ("imports",), None)) or b"" for file in wanted}


def staged_root(files: Files, desired: DesiredConfig, staged: Mapping[str, str]) -> bytes:
    """Return the root file for a trial by containerd; it imports the files that ``staged`` names.

    Raises:
        Refused: a file cannot be read, or its imports cannot be changed.
    """
    root = desired.config or CONFIG
    loaded = load_config_files(files, desired)
    if not staged:
        return files.get(root, b"")
    imports = [staged.get(file.path, file.path) for file in loaded[1:]]
    return ContainerdEditor(files, loaded, desired).with_imports(imports) or b""


def edit_notes(
    loaded: Sequence[ConfigFile], after: Files, observed: ObservedConfig, desired: DesiredConfig
) -> Iterator[str]:
    """Yield a warning for each effect or leftover of the edits; ``observed`` is the configuration after them."""
    for file in loaded:
        if desired.enable_cri and file.disabled:
            yield f"{file.path}: the CRI plugin, which was in disabled_plugins, is enabled"
    written = load_config_files(after, desired)
    yield from state_notes(written, observed, desired)
    before = {file.path for file in loaded} | {desired.drop_in or CONTAINERD_DROP_IN}
    if others := [file.path for file in written if file.path not in before]:
        yield f"{loaded[0].path} imports the whole folder now, so these are read as well: {', '.join(others)}"
    was, now = (effective_cri_table(each, desired) for each in (loaded, written))
    if desired.default and (former := find_overriding_default(was, desired)):
        settings = ", ".join(f"{key} = {value!r}" for key, value in former.items())[:300]
        if find_overriding_default(now, desired):
            yield (
                f"{desired.handler} does not become the default: default_runtime overrides it ({settings}); remove "
                "default_runtime"
            )
        else:
            yield f"removed default_runtime, which overrode every other default: {settings}"
    # An entry with another shim is replaced.
    old, new = (value_at(each, ("containerd", "runtimes", desired.handler)) or {} for each in (was, now))
    if gone := _missing_keys(old, new):
        yield (
            f"the entry {desired.handler} used the shim {old.get('runtime_type')} and is replaced; these of its keys "
            f"are removed: {', '.join(gone)}"
        )


def state_notes(loaded: Sequence[ConfigFile], observed: ObservedConfig, desired: DesiredConfig) -> Iterator[str]:
    """Yield a warning for settings that have no effect or stop the CRI plugin; ``observed`` is their result."""
    root = loaded[0]
    for file in loaded:
        if file.has_cri_table and file not in files_in_effect(loaded):
            yield f"{file.path} has schema {file.schema}, {root.path} has {root.schema}: its CRI table is ignored"
    if (
        observed.default
        and not observed.default.startswith("$")
        and observed.default not in {"runc", *observed.handlers, NAMELESS_DEFAULT_NAME}
    ):
        yield f"the default runtime, {observed.default}, has no entry, so the CRI plugin does not load"
    # One file's CRI table replaces those of the others, so their different settings are lost.
    *others, last = files_in_effect(loaded) or (root,)
    for file in others if not merges_cri_tables(root.schema, desired) else ():
        if unread := _missing_keys(file.plugin, last.plugin):
            yield (
                f"this containerd uses only the CRI table of {last.path}, so these of {file.path} have no effect: "
                + ", ".join(unread)[:300]
            )
    if desired.enable_cdi and root.read_as == 1 and mimics_nvidia_ctk(desired):
        yield f"{root.path}: nvidia-ctk puts enable_cdi there in schema 1, but containerd does not read it there"
    present = {file.path: file for file in loaded}.get(desired.drop_in or CONTAINERD_DROP_IN)
    if uses_drop_in(root, desired) and present is not None:
        own_keys = (f"runtimes.{desired.handler}.", "default_runtime_name")
        for path, *values in compare_documents(root.plugin, present.plugin):
            where = ".".join(path)
            if MISSING_VALUE not in values and not where.removeprefix("containerd.").startswith(own_keys):
                yield f"{present.path} overrides {where} of {root.path}"


def _missing_keys(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """Return the keys of ``one`` that ``other`` lacks."""
    return sorted(".".join(path) for path, _, value in compare_documents(one, other) if value is MISSING_VALUE)
