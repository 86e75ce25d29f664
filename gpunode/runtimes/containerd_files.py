"""containerd's configuration files, parsed and checked for their shape, in the order in which containerd reads them.

containerd's unit may name the root file, as Flatcar's does: containerd(8), ``--config`` and ``-c``; each spelling was
run with 1.6.20.

Source: containerd@v1.6.20, @v1.7.24 and @v2.1.9, cmd/containerd/server/config; their ``config dump`` of such files.
"""

from __future__ import annotations

import copy
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from gpunode.command import command
from gpunode.container_runtimes import CONTAINER_RUNTIMES
from gpunode.errors import Refused
from gpunode.facts import systemd
from gpunode.fast_dataclass import dataclass
from gpunode.runtimes.documents import ConfigLayer, Document, Path, parse_toml_file
from gpunode.runtimes.model import DesiredConfig, Files

CONFIG = CONTAINER_RUNTIMES["containerd"].config
# Where nvidia-ctk 1.18.1 and later write, and what containerd 2.2 and later read by default (containerd PR 12323).
CONTAINERD_DROP_IN = CONTAINER_RUNTIMES["containerd"].drop_in
CRI_PLUGIN_BY_SCHEMA = {
    1: "cri",
    2: "io.containerd.grpc.v1.cri",
    3: "io.containerd.cri.v1.runtime",
    4: "io.containerd.cri.v1.runtime",
}
_CRI_PLUGIN_NAMES = frozenset(
    {"cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime", "io.containerd.cri.v1.images"}
)
# The first containerd that reads each schema; every version in use reads the first two. 1.6 ignores files of a newer
# schema, 1.7 and later refuse them.
FIRST_VERSION_BY_SCHEMA: Mapping[int, tuple[int, ...]] = {1: (), 2: (), 3: (2, 0), 4: (2, 3)}
# From this version on, CRI tables of several files are merged key by key; before, only the last counts (issue 5837).
FIRST_VERSION_MERGING_TABLES = (2, 1)
_FIRST_VERSION_WITH_RELATIVE_IMPORTS = (1, 7)
# The first containerd that reads this folder by default (PR 12323).
_FIRST_READING_CONF_D = (2, 2)
_CONF_D_GLOB = "/etc/containerd/conf.d/*.toml"
FIRST_VERSION_WITH_NEW_PLUGINS = (2,)
_CONTAINERD_CANNOT_READ = "containerd cannot read it either"
# Compiled on use: few imports have a class or an escape.
_GO_PATTERN_PART = r"\\(?P<escaped>.)|\[(?P<negated>\^?)(?P<class>(?:\\.|[^\\\]])+)\]"
_GO_CLASS_ITEM = r"(?:\\.|[^\\])(?:-(?:\\.|[^\\]))?"
CONFIG_DUMP_SOURCE = "the output of `containerd config dump`"


@dataclass(frozen=True, slots=True)
class ConfigFile(ConfigLayer):
    """A file of the configuration.

    Attributes:
        schema: 2 for a file without keys, 1 for one without ``version``, like in containerd itself.
        read_as: the schema whose names the daemon expects for the CRI plugin's table.
    """

    schema: int = 2
    read_as: int = 2

    @property
    def cri(self) -> Path:
        """The path of the CRI plugin's table in this file."""
        return self.runtimes[:2]

    @property
    def plugin(self) -> Document:
        """The CRI plugin's table; empty if the file has none."""
        return self.table(self.cri)

    @property
    def has_cri_table(self) -> bool:
        """True if the file configures the CRI plugin."""
        return bool(self.plugin)

    @property
    def disabled(self) -> tuple[str, ...]:
        """The names in ``disabled_plugins`` that disable the CRI plugin."""
        disabled = self.document.get("disabled_plugins", [])
        if not isinstance(disabled, list):
            raise self.wrong_type_error(("disabled_plugins",), disabled, "a list")
        return tuple(name for name in disabled if isinstance(name, str) and name in _CRI_PLUGIN_NAMES)

    @property
    def imports(self) -> list[str]:
        """The paths and patterns of imported files, as written."""
        imports = self.document.get("imports", [])
        if not isinstance(imports, list) or not all(isinstance(one, str) for one in imports):
            raise self.wrong_type_error(("imports",), imports, "a list of strings")
        return imports

    def flag(self, table: Document, keys: Path) -> bool | None:
        """Return the last of ``keys`` in ``table``, the table at the other keys; None if it is missing."""
        value = table.get(keys[-1])
        if value is None or isinstance(value, bool):
            return value
        raise self.wrong_type_error(keys, value, "true or false")


def parse_config(data: bytes | None, path: str, desired: DesiredConfig | None = None) -> ConfigFile:
    """Parse the file; a missing one counts as a file without keys.

    In a file of schema 1, containerd 2 only migrates the image keys; it reads runtimes under the plugin's newest name.
    In schema 2 it does the same if the file uses that name (2.1.9, started and dumped).

    Raises:
        Refused: it is not TOML, or its version is not an integer.
    """
    dump = command("containerd", "--config", path, "config", "dump")
    document = parse_toml_file(data, path, hint=f"correct {path} (`{dump}` shows what containerd makes of it)")
    version = document.get("version", 1 if document else 2)
    if type(version) is not int:
        config_file = ConfigFile(path, data, document, consequence=_CONTAINERD_CANNOT_READ)
        raise config_file.wrong_type_error(("version",), version, "a whole number")
    is_new = desired is not None and desired.reaches(FIRST_VERSION_WITH_NEW_PLUGINS)
    has_new_name = isinstance(plugins := document.get("plugins"), dict) and CRI_PLUGIN_BY_SCHEMA[3] in plugins
    read_as = 3 if is_new and (version == 1 or (version == 2 and has_new_name)) else version
    containerd = ("plugins", CRI_PLUGIN_BY_SCHEMA.get(read_as, CRI_PLUGIN_BY_SCHEMA[3]), "containerd")
    tables = ((*containerd, "runtimes"), (*containerd, "default_runtime_name"))
    return ConfigFile(path, data, document, *tables, _CONTAINERD_CANNOT_READ, schema=version, read_as=read_as)


def refuse_misshapen_cri_table(file: ConfigFile) -> None:
    """Refuse a CRI plugin's table if the parts that gpunode reads and writes do not have containerd's shape."""
    default = file.table(file.default[:-1]).get("default_runtime_name", "")
    if not isinstance(default, str):
        raise file.wrong_type_error(file.default, default, "a string")
    entries = ((*file.runtimes, name) for name in file.table(file.runtimes))
    for entry in ((*file.default[:-1], "default_runtime"), *entries):
        file.table(entry)
        file.flag(file.table((*entry, "options")), (*entry, "options", "SystemdCgroup"))
    for key in ("enable_cdi", "systemd_cgroup"):
        file.flag(file.plugin, (*file.cri, key))


def list_read_paths(files: Files, desired: DesiredConfig) -> tuple[str, ...]:
    """Return the paths and patterns that containerd reads, as far as ``files`` tell, and our drop-in's folder."""
    root = desired.config or CONFIG
    drop_in = desired.drop_in or CONTAINERD_DROP_IN
    paths = [root, f"{posixpath.dirname(drop_in)}/*.toml", drop_in]
    for path in [root, *(path for path in files if path != root)]:
        with suppress(Refused):  # the code that uses the file reports the problem
            paths += [_resolve_import(import_path, path) for import_path in parse_config(files.get(path), path).imports]
    # For Go a star stands for a name's first dot, too.
    parts = (path.rpartition("/") for path in paths)
    hidden = (f"{folder}/.{name}" for folder, _, name in parts if name.startswith(("*", "?", "[")))
    return tuple(dict.fromkeys(filter(None, (*paths, *hidden))))


def _as_fnmatch(part: re.Match[str]) -> str:
    """Return an escaped character, or a class, of Go's ``filepath.Match`` in the form of fnmatch's."""
    if part["escaped"]:
        return f"[{part['escaped']}]" if part["escaped"] in "*?[" else part["escaped"]
    # In fnmatch's classes a backslash stands for itself, a "]" has to come first, and a "-" last.
    items = [re.sub(r"\\(.)", r"\1", item) for item in re.findall(_GO_CLASS_ITEM, part["class"])]
    items.sort(key=lambda item: (item != "]", item == "-"))
    members = "".join(items)
    if members.startswith("!") and not part["negated"]:  # which is no negation for Go
        members = members[-1] + members
        if members == "!!":
            return "!"
    return f"[{'!' if part['negated'] else ''}{members}]"


def _resolve_import(import_path: str, parent: str) -> str:
    """Return an import as an absolute path or pattern of fnmatch's; an empty one stays empty."""
    has_more = is_pattern(import_path) and not {"[", "\\"}.isdisjoint(import_path)
    path = re.sub(_GO_PATTERN_PART, _as_fnmatch, import_path) if has_more else import_path
    return posixpath.normpath(posixpath.join(posixpath.dirname(parent), path)) if path else ""


def edit_file(file: ConfigFile, document: Document) -> bytes | None:
    """Return the file's bytes, edited to read as ``document``.

    Raises:
        Refused: no edit leaves the rest unchanged.
    """
    advice = (
        f"write the CRI plugin's section of {file.path} with table headers ([a.b.c]) and run the command again, "
        "or leave it and keep the handler in another file: --mode=drop-in --drop-in-config=FILE"
    )
    if {**file.document, "imports": None} == {**document, "imports": None}:
        advice = f"set imports = {document.get('imports', [])} in {file.path} by hand, then run the command again"
    return file.edit(document, advice=advice)


def is_pattern(path: str) -> bool:
    """Return whether an import names several files; containerd only looks for a ``*``."""
    return "*" in path


def load_config_files(files: Files, desired: DesiredConfig) -> tuple[ConfigFile, ...]:
    """Return the files that containerd reads, the root first, in its order: later files win.

    Raises:
        Refused: a file cannot be read or has another shape, so containerd's result is unknown.
    """
    root = desired.config or CONFIG
    loaded: dict[str, ConfigFile] = {}
    pending = [root]
    while pending:
        path, *pending = pending
        if path in loaded or (path not in files and path != root):
            continue
        loaded[path] = parse_config(files.get(path), path, desired)
        refuse_misshapen_cri_table(loaded[path])
        # Equivalent to an explicit import of the folder that it reads by default.
        is_unasked = path == root and "imports" not in loaded[path].document and desired.reaches(_FIRST_READING_CONF_D)
        for written in [_CONF_D_GLOB] if is_unasked else loaded[path].imports:
            pending += _match_files(written, path, files, desired)
    return tuple(loaded.values())


def _match_files(import_path: str, parent: str, files: Files, desired: DesiredConfig) -> Sequence[str]:
    if (
        is_pattern(import_path)
        and not import_path.startswith("/")
        and desired.version
        and desired.version < _FIRST_VERSION_WITH_RELATIVE_IMPORTS
    ):
        return ()  # containerd resolves it from its own working directory
    place = _resolve_import(import_path, parent)
    return match_pattern(place, files) if is_pattern(place) else [place]


def match_pattern(pattern: str, files: Files) -> list[str]:
    """Return the files that match ``pattern``, sorted by name; a star does not match a slash."""
    parts = pattern.split("/")
    names_by_path = ((path, path.split("/")) for path in files)
    candidates = ((path, zip(parts, names, strict=True)) for path, names in names_by_path if len(names) == len(parts))
    return sorted(
        path for path, pairs in candidates if all(name == part or fnmatchcase(name, part) for part, name in pairs)
    )


def imports_matching(file: ConfigFile, path: str) -> Iterator[str]:
    """Return the imports of ``file`` that match ``path``, as written."""
    return (
        import_path
        for import_path in file.imports
        if match_pattern(_resolve_import(import_path, file.path), {path: b""})
    )


def effective_cri_table(loaded: Sequence[ConfigFile], desired: DesiredConfig) -> Document:
    """Return the CRI plugin's table that containerd reads from the files, without its built-in defaults.

    A file whose schema names the tables differently than the root's does not count (2.1.9, ``config dump``).
    """
    plugins = [file.plugin for file in files_in_effect(loaded)]
    if not merges_cri_tables(loaded[0].schema, desired):
        return plugins[-1] if plugins else {}
    return merge_tables(*plugins)


def files_in_effect(loaded: Sequence[ConfigFile]) -> tuple[ConfigFile, ...]:
    """Return the files whose CRI table containerd uses, in its order."""
    return tuple(file for file in loaded if file.has_cri_table and file.cri == loaded[0].cri)


def find_overriding_default(plugin: Document, desired: DesiredConfig) -> Document:
    """Return the old nameless default runtime, which overrides ``default_runtime_name`` in containerd 1.

    Source: containerd 1.6.20 and 1.7.24, started: their CRI plugin then names its default runtime ``default``.
    """
    if desired.reaches(FIRST_VERSION_WITH_NEW_PLUGINS):
        return {}
    default_entry = plugin.get("containerd", {}).get("default_runtime", {})
    return default_entry if isinstance(default_entry, dict) and default_entry.get("runtime_type") else {}


def merges_cri_tables(schema: int, desired: DesiredConfig) -> bool:
    """Return whether containerd merges the CRI tables of several files; false if its version is unknown."""
    return schema > 3 or (schema > 1 and desired.reaches(FIRST_VERSION_MERGING_TABLES))


def first_merging_version(schema: int) -> tuple[int, ...]:
    """Return the first containerd that reads a file of ``schema`` and merges drop-ins into it key by key."""
    return max(FIRST_VERSION_MERGING_TABLES, FIRST_VERSION_BY_SCHEMA.get(schema, FIRST_VERSION_MERGING_TABLES))


def uses_drop_in(root: ConfigFile, desired: DesiredConfig) -> bool:
    """Return whether the handler goes into a drop-in."""
    return desired.mode == "drop-in" or (desired.mode == "auto" and merges_cri_tables(root.schema, desired))


def merge_tables(*tables: Mapping[str, Any]) -> Document:
    """Merge the tables key by key; later ones win."""
    result: Document = {}
    for table in tables:
        for key, value in table.items():
            if isinstance(former := result.get(key), dict) and isinstance(value, dict):
                result[key] = merge_tables(former, value)
            else:
                result[key] = copy.deepcopy(value)
    return result


UNIT = "containerd.service"
_CONFIG_OPTION_NAMES = frozenset({"config", "c"})
# Every other flag takes a value.
_OPTIONS_WITHOUT_VALUE = frozenset({"help", "h", "version", "v"})


@dataclass(frozen=True, slots=True)
class UnitConfig:
    """A configuration that a unit names.

    Attributes:
        path: the configuration's path.
        said_in: the file with the command line that names it.
    """

    path: str
    said_in: str


def unit_patterns(files: Files) -> tuple[str, ...]:
    """Return the paths and patterns of all files that tell how containerd starts, as far as ``files`` tells."""
    return systemd.unit_source_patterns(files, UNIT)


def find_unit_config(files: Files, desired: DesiredConfig) -> UnitConfig | None:
    """Return the configuration that the unit names, if not the usual one; None if ``desired`` names one."""
    command = None if desired.config else systemd.find_start_command(files, UNIT)
    path = find_config_argument(command.argv) if command else ""
    return UnitConfig(path, command.sources[0]) if command and path not in {"", CONFIG} else None


def with_unit_config(files: Files, desired: DesiredConfig) -> DesiredConfig:
    """Return ``desired`` for the configuration that the unit names."""
    named = find_unit_config(files, desired)
    return replace(desired, config=named.path) if named else desired


def find_config_argument(argv: Sequence[str]) -> str:
    """Return the configuration that a command line, possibly of a wrapper, gives containerd; empty for none."""
    words = [*(systemd.find_program_arguments(argv, "containerd") or ())]
    config_path = ""
    while words and words[0].startswith("-"):
        name, mark, value = words.pop(0).lstrip("-").partition("=")
        if not mark and name not in _OPTIONS_WITHOUT_VALUE:
            value = words.pop(0) if words else ""
        if name in _CONFIG_OPTION_NAMES:
            config_path = value
    # A service's working folder is the root by default.
    return posixpath.normpath(posixpath.join("/", config_path)) if config_path else ""
