"""containerd's configuration files: each parsed and checked for its shape, in the order in which containerd reads them.

The root file may be named by containerd's own unit, as Flatcar's does: containerd(8), ``--config`` and ``-c``; 1.6.20,
run with each way of writing them.

Source: containerd@v1.6.20, @v1.7.24 and @v2.1.9, cmd/containerd/server/config; their ``config dump`` of such files.
"""

from __future__ import annotations

import copy
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from gpunode.command import command
from gpunode.container_runtimes import CONTAINER_RUNTIMES
from gpunode.errors import Refused
from gpunode.facts import systemd
from gpunode.runtimes.documents import ConfigLayer, Document, Path, parse_toml_file
from gpunode.runtimes.model import DesiredConfig, Files

CONFIG = CONTAINER_RUNTIMES["containerd"].config
# Where nvidia-ctk 1.18.1 and later write, and what containerd 2.2 and later read unasked (containerd PR 12323).
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
# The first containerd that reads each schema, as far as it matters: all that are in use read the first two. 1.6 uses
# nothing of a newer one, 1.7 and later refuse it.
FIRST_VERSION_BY_SCHEMA: Mapping[int, tuple[int, ...]] = {1: (), 2: (), 3: (2, 0), 4: (2, 3)}
# From here on the CRI tables of several files are merged key by key; before, the last one stands alone (issue 5837).
FIRST_VERSION_MERGING_TABLES = (2, 1)
_FIRST_VERSION_WITH_RELATIVE_IMPORTS = (1, 7)
# The first containerd that reads this folder unasked (PR 12323).
_FIRST_READING_CONF_D = (2, 2)
_CONF_D_GLOB = "/etc/containerd/conf.d/*.toml"
FIRST_VERSION_WITH_NEW_PLUGINS = (2,)
_CONTAINERD_CANNOT_READ = "containerd cannot read it either"
CONFIG_DUMP_SOURCE = "the output of `containerd config dump`"


@dataclass(frozen=True, slots=True)
class ConfigFile(ConfigLayer):
    """A file of the configuration.

    Attributes:
        schema: 2 for a file without keys, 1 for one without ``version``, as containerd itself counts.
        read_as: the schema by whose names the daemon takes the CRI plugin's table.
    """

    schema: int = 2
    read_as: int = 2

    @property
    def cri(self) -> Path:
        """The path of the CRI plugin's table in this file."""
        return self.runtimes[:2]

    @property
    def plugin(self) -> Document:
        """The CRI plugin's table; empty where the file has none."""
        return self.table(self.cri)

    @property
    def has_cri_table(self) -> bool:
        """True if the file says anything of the CRI plugin."""
        return bool(self.plugin)

    @property
    def disabled(self) -> tuple[str, ...]:
        """The names among ``disabled_plugins`` that switch the CRI plugin off."""
        disabled = self.document.get("disabled_plugins", [])
        if not isinstance(disabled, list):
            raise self.wrong_type_error(("disabled_plugins",), disabled, "a list")
        return tuple(name for name in disabled if isinstance(name, str) and name in _CRI_PLUGIN_NAMES)

    @property
    def imports(self) -> list[str]:
        """The paths and patterns of further files, as they are written."""
        imports = self.document.get("imports", [])
        if not isinstance(imports, list) or not all(isinstance(one, str) for one in imports):
            raise self.wrong_type_error(("imports",), imports, "a list of strings")
        return imports

    def flag(self, table: Document, keys: Path) -> bool | None:
        """The last of ``keys`` in ``table``, which stands at the others; None when it is not there."""
        value = table.get(keys[-1])
        if value is None or isinstance(value, bool):
            return value
        raise self.wrong_type_error(keys, value, "true or false")


def parse_config(data: bytes | None, path: str, desired: DesiredConfig | None = None) -> ConfigFile:
    """The file; a missing one is as one without keys.

    Of a file of schema 1 containerd 2 moves the keys of images alone; of runtimes it takes those that stand under the
    plugin's newest name, and so it does in schema 2 where that name stands there (2.1.9, started and dumped).

    Raises:
        Refused: it is not TOML, or its version is no whole number.
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
    """Refuse a CRI plugin's table of which the parts that are read and written here lack containerd's shape."""
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
    """The paths and patterns that containerd reads, as far as ``files`` tell, and our own drop-in's folder."""
    root = desired.config or CONFIG
    drop_in = desired.drop_in or CONTAINERD_DROP_IN
    paths = [root, f"{posixpath.dirname(drop_in)}/*.toml", drop_in]
    for path in [root, *(path for path in files if path != root)]:
        with suppress(Refused):  # whoever uses the file says what is wrong with it
            paths += [_resolve_import(one, path) for one in parse_config(files.get(path), path).imports]
    # For Go a star stands for a name's first dot, too.
    parts = (place.rpartition("/") for place in paths)
    hidden = (f"{folder}/.{name}" for folder, _, name in parts if name.startswith(("*", "?", "[")))
    return tuple(dict.fromkeys(filter(None, (*paths, *hidden))))


def _resolve_import(import_path: str, parent: str) -> str:
    """Return an import as an absolute path or pattern of fnmatch's; an empty one stays empty."""
    path = import_path.replace("[^", "[!") if is_pattern(import_path) else import_path
    return posixpath.normpath(posixpath.join(posixpath.dirname(parent), path)) if path else ""


def edit_file(file: ConfigFile, document: Document) -> bytes | None:
    """Return the file's bytes so that they read as ``document``.

    Raises:
        Refused: no way of writing it leaves the rest as it is.
    """
    advice = (
        f"write the CRI plugin's section of {file.path} with table headers ([a.b.c]) and run the command again, "
        "or leave it and keep the handler in another file: --mode=drop-in --drop-in-config=FILE"
    )
    if {**file.document, "imports": None} == {**document, "imports": None}:
        advice = f"set imports = {document.get('imports', [])} in {file.path} by hand, then run the command again"
    return file.edit(document, advice=advice)


def is_pattern(place: str) -> bool:
    """Return whether an import names more than one file; containerd looks for a ``*`` alone."""
    return "*" in place


def load_config_files(files: Files, desired: DesiredConfig) -> tuple[ConfigFile, ...]:
    """The files that containerd reads, the root first, in its order: later ones win.

    Raises:
        Refused: one of them cannot be read or has another shape, so nobody can tell what containerd makes of them.
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
        # Written out, what it reads unasked means the same.
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
        return ()  # taken as relative to the daemon's own working directory
    place = _resolve_import(import_path, parent)
    return match_pattern(place, files) if is_pattern(place) else [place]


def match_pattern(pattern: str, files: Files) -> list[str]:
    """The files that ``pattern`` names, in the order of their names; a star stands for no slash."""
    parts = pattern.split("/")
    names_by_path = ((path, path.split("/")) for path in files)
    candidates = ((path, zip(parts, names, strict=True)) for path, names in names_by_path if len(names) == len(parts))
    return sorted(path for path, pairs in candidates if all(fnmatchcase(name, part) for part, name in pairs))


def imports_matching(file: ConfigFile, path: str) -> Iterator[str]:
    """The imports of ``file`` that name ``path``, as they are written."""
    return (one for one in file.imports if match_pattern(_resolve_import(one, file.path), {path: b""}))


def effective_cri_table(loaded: Sequence[ConfigFile], desired: DesiredConfig) -> Document:
    """The CRI plugin's table as containerd has it from the files, without its built-in defaults.

    A file that another schema than the root's gives other names does not count (2.1.9, ``config dump``).
    """
    plugins = [file.plugin for file in files_in_effect(loaded)]
    if not merges_cri_tables(loaded[0].schema, desired):
        return plugins[-1] if plugins else {}
    return merge_tables(*plugins)


def files_in_effect(loaded: Sequence[ConfigFile]) -> tuple[ConfigFile, ...]:
    """Return those of the files whose CRI table containerd takes, in its order."""
    return tuple(file for file in loaded if file.has_cri_table and file.cri == loaded[0].cri)


def find_overriding_default(plugin: Document, desired: DesiredConfig) -> Document:
    """The old nameless default runtime, which in containerd 1 overrides ``default_runtime_name``.

    Source: containerd 1.6.20 and 1.7.24, started: their CRI plugin then names its default runtime ``default``.
    """
    if desired.reaches(FIRST_VERSION_WITH_NEW_PLUGINS):
        return {}
    default_entry = plugin.get("containerd", {}).get("default_runtime", {})
    return default_entry if isinstance(default_entry, dict) and default_entry.get("runtime_type") else {}


def merges_cri_tables(schema: int, desired: DesiredConfig) -> bool:
    """Return whether containerd merges the CRI tables of several files; where nobody knows, it does not."""
    return schema > 3 or (schema > 1 and desired.reaches(FIRST_VERSION_MERGING_TABLES))


def first_merging_version(schema: int) -> tuple[int, ...]:
    """Return the first containerd that reads a file of ``schema`` and merges drop-ins into it key by key."""
    return max(FIRST_VERSION_MERGING_TABLES, FIRST_VERSION_BY_SCHEMA.get(schema, FIRST_VERSION_MERGING_TABLES))


def uses_drop_in(root: ConfigFile, desired: DesiredConfig) -> bool:
    """Return whether the handler goes into a drop-in."""
    return desired.mode == "drop-in" or (desired.mode == "auto" and merges_cri_tables(root.schema, desired))


def merge_tables(*tables: Mapping[str, Any]) -> Document:
    """The tables as one, key by key; later ones win."""
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
        path: of it.
        said_in: the file with the command line that does.
    """

    path: str
    said_in: str


def unit_patterns(files: Files) -> tuple[str, ...]:
    """The paths and patterns of all that says how containerd is started, as far as ``files`` tells."""
    return systemd.unit_source_patterns(files, UNIT)


def find_unit_config(files: Files, desired: DesiredConfig) -> UnitConfig | None:
    """The configuration that the unit names instead of the usual one; None where it names none, or one is desired."""
    command = None if desired.config else systemd.find_start_command(files, UNIT)
    path = find_config_argument(command.argv) if command else ""
    return UnitConfig(path, command.sources[0]) if command and path not in {"", CONFIG} else None


def with_unit_config(files: Files, desired: DesiredConfig) -> DesiredConfig:
    """Return ``desired`` for the configuration that the unit names."""
    named = find_unit_config(files, desired)
    return replace(desired, config=named.path) if named else desired


def find_config_argument(argv: Sequence[str]) -> str:
    """The configuration that a command line gives containerd, be it through a wrapper; empty where it gives none."""
    words = [*(systemd.find_program_arguments(argv, "containerd") or ())]
    config_path = ""
    while words and words[0].startswith("-"):
        name, mark, value = words.pop(0).lstrip("-").partition("=")
        if not mark and name not in _OPTIONS_WITHOUT_VALUE:
            value = words.pop(0) if words else ""
        if name in _CONFIG_OPTION_NAMES:
            config_path = value
    # A service's working folder is the root, unless told otherwise.
    return posixpath.normpath(posixpath.join("/", config_path)) if config_path else ""
