"""The wanted state of a node: a recipe, read from TOML. Pure.

The dataclasses are the one place that says which keys there are, what each may hold and what it means: the parser, the
JSON schema for editors, the reference page and the comments of a rendered recipe are made of them.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from importlib import import_module
from itertools import islice
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

from gpunode.container_runtimes import CONTAINER_RUNTIMES
from gpunode.errors import RecipeError, UsageError
from gpunode.package_id import PackageId

if TYPE_CHECKING:
    from gpunode.recipe_kubernetes import Kubernetes

SCHEMA = 1
SCHEMA_URL = "https://json-schema.org/draft/2020-12/schema"
LIMIT_BYTES = 1 << 20
_TRIES = 64
_MOST_LAYERS = 32


@dataclass(frozen=True, slots=True)
class Says:
    """What a key means and, where its type does not tell, what it may hold.

    Attributes:
        pattern: what the whole text must match; empty when any text will do.
        allowed: the same in words.
        least: the smallest number.
    """

    doc: str
    pattern: str = ""
    allowed: tuple[str, ...] = ()
    least: int = 1


if TYPE_CHECKING:
    RuntimeName: TypeAlias = str
else:
    _NAMES = (*CONTAINER_RUNTIMES, "none")
    RuntimeName = Literal[_NAMES]
Flavour: TypeAlias = Literal["auto", "open", "proprietary"]
Scope: TypeAlias = Literal["compute", "media", "full"]
Install: TypeAlias = Literal["if-missing", "never"]
Cgroup: TypeAlias = Literal["auto", "systemd"]
Rdma: TypeAlias = Literal["none", "dma-buf", "peermem"]

_NUMBER = r"[0-9]{3}(\.[0-9]{2,3}){0,3}"
_NUMBER_WORDS = ("a branch such as 580", "a version such as 580.178.04")
# An address stands in lists of repositories and in commands that are shown to people: letters, digits and what no
# shell reads.
# No user or password: it would stand in a file for all to read and in the list of processes.
_PART = r"[A-Za-z0-9._~:/%+,=@-]"
_ADDRESS = rf"|(https?://[A-Za-z0-9._~:%-]+(/{_PART}*)?|file:/{_PART}+)"
_ADDRESS_WORDS = (
    (
        "an http://, https:// or file:/ address of letters, digits and ._~:/%+,=@- (user and password belong in "
        "/etc/apt/auth.conf.d)"
    ),
    '"" for NVIDIA\'s own',
)
_KEY = r"|[0-9A-F]{40}"
_KEY_WORDS = ("40 upper-case hex digits without blanks", '"" for NVIDIA\'s own key')


@dataclass(frozen=True, slots=True)
class Driver:
    """The NVIDIA driver."""

    version: Annotated[
        str,
        Says(
            "which driver; none leaves it alone",
            rf"auto|production|lts|none|{_NUMBER}",
            ("auto", "production", "lts", "none", *_NUMBER_WORDS),
        ),
    ] = "auto"
    flavour: Annotated[Flavour, Says("the kernel module; auto takes what the GPUs need")] = "auto"
    scope: Annotated[
        Scope, Says("compute has no display libraries; media adds video encoding and decoding; full adds a display")
    ] = "compute"
    persistence: Annotated[bool, Says("whether nvidia-persistenced keeps the GPUs initialised")] = True


@dataclass(frozen=True, slots=True)
class Repositories:
    """Where the packages come from; empty means NVIDIA's own address."""

    cuda: Annotated[
        str,
        Says(
            "base of a mirror of the CUDA repositories, above the distribution's folder (https://…/compute/cuda/repos)",
            _ADDRESS,
            _ADDRESS_WORDS,
        ),
    ] = ""
    toolkit: Annotated[
        str,
        Says(
            "base of a mirror of the container toolkit's repository, above stable/deb and gpgkey",
            _ADDRESS,
            _ADDRESS_WORDS,
        ),
    ] = ""
    cuda_key: Annotated[
        str, Says("fingerprint of the key of a CUDA mirror that signs with its own", _KEY, _KEY_WORDS)
    ] = ""
    toolkit_key: Annotated[
        str, Says("fingerprint of the key of a toolkit mirror that signs with its own", _KEY, _KEY_WORDS)
    ] = ""


@dataclass(frozen=True, slots=True)
class Toolkit:
    """The NVIDIA container toolkit."""

    version: Annotated[
        str,
        Says(
            "auto takes the newest, a version pins all four packages, none leaves the toolkit alone",
            r"auto|none|[0-9]+\.[0-9]+\.[0-9]+([~-][0-9A-Za-z.~-]+)?",
            ("auto", "none", "a version such as 1.18.1-1"),
        ),
    ] = "auto"
    volume_mounts: Annotated[
        bool | None,
        Says(
            "whether a container gets GPUs by mounts below /var/run/nvidia-container-devices, as kind's nodes do; left "
            "out, it stays as it is"
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Runtime:
    """The container runtime and how NVIDIA's handler is registered in it."""

    name: Annotated[
        RuntimeName,
        Says("the container runtime to configure; podman uses CDI, the others the NVIDIA runtime"),
    ] = "none"
    install: Annotated[Install, Says("whether a missing runtime is installed from the distribution")] = "if-missing"
    default: Annotated[
        bool | None,
        Says("whether nvidia is the default runtime; left out, the default stays as it is"),
    ] = None
    cgroup: Annotated[
        Cgroup, Says("auto keeps what the runtime has; systemd makes runc and nvidia use systemd's cgroup driver")
    ] = "auto"
    cdi: Annotated[bool, Says("whether the runtime's own CDI support is switched on")] = False


@dataclass(frozen=True, slots=True)
class GpuDirect:
    """GPUDirect: network cards, disks and programs reach GPU memory without a copy in the host's memory."""

    rdma: Annotated[
        Rdma,
        Says(
            "how network cards reach GPU memory; dma-buf needs the open kernel modules and no package, peermem is the "
            "older way and needs MLNX_OFED or DOCA-OFED"
        ),
    ] = "none"
    gds: Annotated[bool, Says("whether GPUDirect Storage's kernel module, nvidia-fs, is installed and loaded")] = False
    gdrcopy: Annotated[bool, Says("whether GDRCopy's kernel module and library are installed, the module loaded")] = (
        False
    )


@dataclass(frozen=True, slots=True)
class Mig:
    """How MIG divides the GPUs of this node, whatever stack offers them."""

    layout: Annotated[
        str,
        Says(
            "the layout that setup gives the GPUs (all-1g.10gb, all-balanced, all-disabled), or one of file; "
            "empty leaves them as they are",
            r"|[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?",
            ("a name as in mig-parted's configuration", '"" for none'),
        ),
    ] = ""
    file: Annotated[
        str,
        Says(
            "a configuration file of mig-parted (version v1) on this node, which holds layout",
            r"|/[A-Za-z0-9._/-]+",
            ("an absolute path of letters, digits and ._/-", '"" for none'),
        ),
    ] = ""


@dataclass(frozen=True, slots=True)
class Mps:
    """CUDA's Multi-Process Service, for programs that share a GPU outside of Kubernetes."""

    enabled: Annotated[bool, Says("whether the MPS control daemon runs, also after a reboot")] = False
    exclusive: Annotated[
        bool, Says("whether the GPUs take no process but the MPS server (compute mode EXCLUSIVE_PROCESS)")
    ] = True


@dataclass(frozen=True, slots=True)
class Expect:
    """What the machine must have; what is left out is not checked."""

    gpus: Annotated[int | None, Says("how many GPUs")] = None
    model: Annotated[str, Says("what every GPU's name contains (H100)")] = ""
    driver: Annotated[str, Says("the branch or version of the loaded driver", f"|{_NUMBER}", _NUMBER_WORDS)] = ""
    memory_mib: Annotated[int | None, Says("the least memory of every GPU, in MiB")] = None
    ecc: Annotated[bool | None, Says("whether ECC is on")] = None


@dataclass(frozen=True, slots=True)
class VersionLock:
    """Exact package versions, as a lock file holds them.

    Attributes:
        file: where it was read from.
        recipe: the name of the recipe that it was written with; for people.
        distribution: os-release's ID; versions differ between distributions and their releases.
        release: os-release's VERSION_ID.
        packages: the version of each.
    """

    file: str
    recipe: str
    distribution: str
    release: str
    architecture: str
    packages: Mapping[PackageId, str]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The wanted state of a node.

    Attributes:
        name: of the file that it was read from, without its ending.
        kubernetes: None where the recipe has no such table.
        upgrade: whether a satisfied driver and toolkit are brought to the newest of their branch. Asked for on the
            command line alone, never by a file, so that re-runs do not drift.
        lock: the versions that packages must have; asked for on the command line alone, likewise.
    """

    name: str
    description: Annotated[str, Says("what the recipe is for, in one line")] = ""
    skip: Annotated[
        tuple[str, ...],
        Says("ids of steps to leave out, for what you set up yourself", "[a-z-]+", ("ids of steps",)),
    ] = ()
    driver: Driver = field(default_factory=Driver)
    repositories: Repositories = field(default_factory=Repositories)
    toolkit: Toolkit = field(default_factory=Toolkit)
    runtime: Runtime = field(default_factory=Runtime)
    gpudirect: GpuDirect = field(default_factory=GpuDirect)
    expect: Expect = field(default_factory=Expect)
    mig: Mig = field(default_factory=Mig)
    mps: Mps = field(default_factory=Mps)
    kubernetes: Kubernetes | None = None
    upgrade: bool = False
    lock: VersionLock | None = None


_SECTIONS: Mapping[str, type[Any]] = MappingProxyType(
    {
        "driver": Driver,
        "repositories": Repositories,
        "toolkit": Toolkit,
        "runtime": Runtime,
        "gpudirect": GpuDirect,
        "mig": Mig,
        "mps": Mps,
        "expect": Expect,
    }
)
_KUBERNETES = "kubernetes"
# What a recipe may call a table whose name it chooses.
_NAME = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"


def _sections(top: str) -> Mapping[str, type[Any]]:
    """The class of every section below the table ``top``, by dotted name; * is a name that the recipe chooses.

    Those of Kubernetes are loaded when a recipe has them: most runs need none.
    """
    if top == _KUBERNETES:
        found: Mapping[str, type[Any]] = import_module("gpunode.recipe_kubernetes").SECTIONS
        return found
    return _SECTIONS


def _section_at(place: tuple[str, ...]) -> str | None:
    """The section whose table stands at ``place``; None where a value belongs."""
    if not place:
        return ""
    sections = _sections(place[0])
    for path in (".".join(place), ".".join((*place[:-1], "*"))):
        if path in sections or any(section.startswith(f"{path}.") for section in sections):
            return path
    return None


def _children(section: str) -> Iterator[tuple[str, str, bool]]:
    """The tables inside the one of ``section``: name, section, and whether it holds tables of chosen names."""
    for child in _sections(section.partition(".")[0]):
        name, dot, rest = child.removeprefix(f"{section}.").partition(".")
        if child.startswith(f"{section}.") and (not dot or rest == "*"):
            yield name, child, rest == "*"


@dataclass(frozen=True, slots=True)
class Key:
    """One key that a recipe may hold.

    Attributes:
        section: its table; empty at the top.
        types: what its value may be.
        choices: the only values, where its type lists them.
        default: None when leaving it out means that nothing is asked.
    """

    section: str
    name: str
    types: tuple[type[Any], ...]
    choices: tuple[str, ...]
    default: object
    says: Says

    @property
    def path(self) -> str:
        """The key as TOML writes it at the top."""
        return f"{self.section.replace('*', 'name')}.{self.name}" if self.section else self.name

    @property
    def allowed(self) -> tuple[str, ...]:
        """What it may hold, in words."""
        if self.choices or self.says.allowed:
            return self.choices or self.says.allowed
        if bool in self.types:
            return ("true", "false")
        if dict in self.types:
            return ("a table of texts",)
        return ("any text",) if str in self.types else (f"a whole number from {self.says.least}",)


_TOP = (
    Key("", "schema", (int,), (), SCHEMA, Says("the format of recipes that this one is written in")),
    Key("", "extends", (str,), (), "", Says("the recipe that this one changes: a shipped one by name, or a path")),
)


@cache
def known_keys() -> tuple[Key, ...]:
    """Every key that a recipe may hold, in the order of the reference page."""
    return tuple(key for section in ("", *_SECTIONS, *_sections(_KUBERNETES)) for key in _keys_in(section))


@cache
def _keys_in(section: str) -> tuple[Key, ...]:
    """The keys of a section; none where it only holds further tables."""
    if not section:
        return (*_TOP, *_keys_of("", Recipe))
    kind = _sections(section.partition(".")[0]).get(section)
    return tuple(_keys_of(section, kind)) if kind else ()


def _keys_of(section: str, kind: type[Any]) -> Iterator[Key]:
    hints = get_type_hints(kind, localns={"Kubernetes": Any}, include_extras=True)
    for one in fields(kind):
        if get_origin(hint := hints[one.name]) is Annotated:
            held, says = get_args(hint)
            choices = get_args(held) if get_origin(held) is Literal else ()
            types = _types(held)
            default = {} if types == (dict,) else None if one.default is MISSING else one.default
            yield Key(section, one.name, types, choices, default, says)


def _types(held: Any) -> tuple[type[Any], ...]:
    """The types by which TOML gives a value of the type ``held``."""
    if get_origin(held) is Literal:
        return (str,)
    if get_origin(held) is tuple:
        return (list,)
    if get_origin(held) is Mapping:
        return (dict,)
    return tuple(t for t in get_args(held) or (held,) if t is not type(None))


@dataclass(frozen=True, slots=True)
class _Layer:
    """One file of a recipe: its text, for the place of an error, and the values that it sets, by key path."""

    file: str
    text: str
    values: Mapping[str, Any]

    def error(self, what: str, path: tuple[str, ...], allowed: tuple[str, ...] = ()) -> RecipeError:
        line = line_of(self.text, path)
        return RecipeError(what, file=self.file, line=line, key=_brief(".".join(path)), allowed=allowed)


def parse(text: str, file: str, load: Callable[[str], str]) -> Recipe:
    """The recipe that ``text`` says, with what it extends beneath it.

    Args:
        text: the recipe as TOML; a byte order mark is passed over.
        file: where ``text`` comes from; a shipped recipe's name, or a path.
        load: the text of another recipe, by the name of a shipped one or a path.

    Raises:
        RecipeError: it cannot be understood; file, line, key and what is allowed are named.
    """
    values: dict[str, Any] = {}
    for layer in reversed(_layers(text, file, load)):
        values.pop("description", None)
        values.update(layer.values)
    sections = {section: _built(section, section, values) for section in _SECTIONS}
    if any(path.startswith(f"{_KUBERNETES}.") for path in values):
        sections[_KUBERNETES] = _built(_KUBERNETES, _KUBERNETES, values)
    top = {key.name: values[key.name] for key in _keys_in("") if key not in _TOP and key.name in values}
    return Recipe(PurePosixPath(file).stem, **top, **sections)


def _built(section: str, at: str, values: Mapping[str, Any]) -> Any:
    """The table of ``section`` at the dotted path ``at``, with the tables inside it."""
    held = {key.name: values[path] for key in _keys_in(section) if (path := f"{at}.{key.name}") in values}
    for name, child, is_chosen in _children(section):
        inside = f"{at}.{name}"
        if is_chosen:
            chosen = {path[len(inside) + 1 :].partition(".")[0] for path in values if path.startswith(f"{inside}.")}
            held[name] = MappingProxyType({one: _built(child, f"{inside}.{one}", values) for one in sorted(chosen)})
        else:
            held[name] = _built(child, inside, values)
    return _sections(section.partition(".")[0])[section](**held)


def _layers(text: str, file: str, load: Callable[[str], str]) -> list[_Layer]:
    """The recipe and those that it extends, the farthest last."""
    layers = [_layer(text, file)]
    while base := layers[-1].values.get("extends"):
        if "://" in base:
            raise layers[-1].error("extends is a URL, and recipes are only read from this machine", ("extends",))
        place = base_of(base, layers[-1].file)
        if place in (chain := [layer.file for layer in layers]):
            raise layers[-1].error(
                f"recipes extend each other in a circle: {' → '.join([*chain, place])}", ("extends",)
            )
        if len(layers) == _MOST_LAYERS:
            raise layers[-1].error(f"more than {_MOST_LAYERS} recipes extend one another", ("extends",))
        try:
            layers.append(_layer(load(place), place))
        except RecipeError:
            raise
        except UsageError as error:
            raise layers[-1].error(f"{error.what} ({error.why})", ("extends",)) from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise layers[-1].error(f"cannot read {place}, which this recipe extends: {reason}", ("extends",)) from error
    return layers


def base_of(extends: str, file: str) -> str:
    """What ``load`` is asked for when ``file`` extends ``extends``: the name of a shipped recipe, or a path."""
    if "/" not in extends and not extends.endswith(".toml"):
        return extends
    parts: list[str] = []
    for part in (PurePosixPath(file).parent / extends).parts:
        # A circle is seen only when the same file has the same path.
        if part == ".." and parts and parts[-1] not in {"..", "/"}:
            parts.pop()
        else:
            parts.append(part)
    return str(PurePosixPath(*parts))


def _layer(text: str, file: str) -> _Layer:
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if len(text) > LIMIT_BYTES:
        raise RecipeError(f"longer than the {LIMIT_BYTES >> 20} MiB that a recipe may have", file=file)
    raw = _Layer(file, text, read_toml(text, file))
    if not _is(raw.values.get("schema", SCHEMA), (int,)) or raw.values.get("schema", SCHEMA) != SCHEMA:
        raise raw.error(
            f"schema is {_shown(raw.values['schema'])}: a format unknown to this gpunode", ("schema",), (str(SCHEMA),)
        )
    return _Layer(file, text, dict(_flat(raw)))


def read_toml(text: str, file: str, error_kind: type[RecipeError] = RecipeError) -> Mapping[str, Any]:
    """What ``text``, the content of ``file``, says as TOML.

    Raises:
        RecipeError: it is not TOML; it is of ``error_kind`` and names the line.
    """
    try:
        values: Mapping[str, Any] = _reader().loads(text)
    except ValueError as error:
        place = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)", str(error))
        reason = str(error)[: place.start()] if place else str(error)
        line = int(place[1]) if place and place[1] else text.count("\n") + 1 if place else 0
        raise error_kind(f"not TOML: {_brief(reason)}", file=file, line=line) from error
    return values


def _reader() -> Any:
    """The reader of TOML, loaded when there is something to read."""
    return import_module("gpunode.toml")


def _flat(raw: _Layer) -> Iterator[tuple[str, Any]]:
    """Every value of a file by its key path, checked."""
    wrong: list[RecipeError] = []
    for place, value in _placed(raw.values):
        try:
            yield ".".join(place), _checked(raw, place, value)
        except RecipeError as error:  # noqa: PERF203 - a file has a few dozen keys
            wrong.append(error)
    if wrong:
        raise wrong[0].with_others(wrong[1:])


def _placed(values: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value of a file with its key path; what should be a table and is none, or is empty, as it is."""
    for name, value in values.items():
        place = (*above, name)
        section = _section_at(place)
        if section and isinstance(value, dict) and (value or not section.endswith("*")):
            yield from _placed(value, place)
        else:
            yield place, value


def _checked(raw: _Layer, place: tuple[str, ...], value: Any) -> Any:
    path, section = ".".join(place), _section_at(place[:-1]) or ""
    if section.endswith("*") and not re.fullmatch(_NAME, place[-2]):
        allowed = ("lower-case letters, digits and -",)
        raise raw.error(f"{_shown(place[-2])} cannot be the name of a table in {'.'.join(place[:-2])}", place, allowed)
    if _section_at(place):
        empty = "an empty table" if value == {} else f"{_kind(value)}, where a table is expected"
        raise raw.error(f"{path} is {empty}", place, (f"[{path}]",))
    key = next((key for key in _keys_in(section) if key.name == place[-1]), None)
    if key is None:
        raise _unknown(raw, section, place)
    if not _is(value, key.types):
        quote = f'; write it in quotes: "{value}"' if key.types == (str,) and _is(value, (int,)) else ""
        raise raw.error(f"{path} is {_shown(value)}, which is {_kind(value)}{quote}", place, key.allowed)
    if isinstance(value, list):
        return _checked_list(raw, key, place, value)
    if isinstance(value, dict):
        return _checked_table(raw, key, place, value)
    if isinstance(value, str) and not _fits(key, value):
        guess = difflib.get_close_matches(value.lower(), [word for word in key.allowed if " " not in word], 1)
        hint = f'; did you mean "{guess[0]}"?' if guess else ""
        raise raw.error(f"{path} is {_shown(value)}, which it cannot be{hint}", place, key.allowed)
    if key.types == (int,) and value < key.says.least:
        raise raw.error(f"{path} is {value}, which is too small", place, key.allowed)
    return value


def _checked_list(raw: _Layer, key: Key, place: tuple[str, ...], value: list[Any]) -> tuple[str, ...]:
    for item in value:
        if not isinstance(item, str) or not _fits(key, item):
            raise raw.error(f"{key.path} holds {_shown(item)}, which it cannot", place, key.allowed)
    return tuple(value)


def _checked_table(raw: _Layer, key: Key, place: tuple[str, ...], value: dict[str, Any]) -> Mapping[str, str]:
    pattern = import_module("gpunode.recipe_kubernetes").LABEL_KEY
    for name, held in value.items():
        if not re.fullmatch(pattern, name):
            raise raw.error(f"{_shown(name)} is not a label key", place, ("name or prefix/name",))
        if not isinstance(held, str) or not _fits(key, held):
            raise raw.error(f"{_shown(name)} is {_shown(held)}, which it cannot be", place, key.allowed)
    return MappingProxyType(dict(sorted(value.items())))


def _is(value: object, types: tuple[type[Any], ...]) -> bool:
    """Whether ``value`` is of one of ``types`` exactly: to Python true is a number, to a recipe it is not."""
    return type(value) in types


def _fits(key: Key, value: str) -> bool:
    if key.choices:
        return value in key.choices
    return not key.says.pattern or re.fullmatch(key.says.pattern, value) is not None


def _unknown(raw: _Layer, section: str, place: tuple[str, ...]) -> RecipeError:
    path = ".".join(place)
    above = ".".join(place[:-1])
    known = [f"{above}.{key.name}" if above else key.name for key in _keys_in(section)]
    known += [f"{above}.{name}" for name, _, _ in _children(section)] if section else [*_SECTIONS, _KUBERNETES]
    elsewhere = [key.path for key in known_keys() if key.name == path]
    guess = difflib.get_close_matches(path, known, 1, 0.7) or elsewhere
    hint = f"; did you mean {guess[0]}?" if guess else ""
    return raw.error(f"there is no key {_brief(path)}{hint}", place, tuple(known))


def _shown(value: object) -> str:
    """``value`` as TOML writes it, shortened."""
    return _brief(json.dumps(value, ensure_ascii=False, default=str))


def _brief(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}…"


def _kind(value: object) -> str:
    names = {bool: "a truth value", int: "a number", float: "a number", str: "text", list: "a list", dict: "a table"}
    return names.get(type(value), "a date or time")


def line_of(text: str, path: tuple[str, ...]) -> int:
    """The line, from 1, in which TOML ``text`` sets the key ``path``, or the nearest table around it; else 0."""
    best, length = 0, 0
    candidates = ((number, len(found)) for number, found in _settings(text) if found == path[: len(found)])
    for number, depth in islice(candidates, _TRIES):
        if depth > length and _outside_strings(text, number):
            best, length = number, depth
    return best


def _settings(text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """What looks like a table's head or a key's setting: the line and the whole path of each."""
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("["):
            table = _path(line)
            yield number, table
        elif "=" in line and (own := _path(f"{line.partition('=')[0]} = 0")):
            yield number, (*table, *own)


def _path(toml: str) -> tuple[str, ...]:
    """The one path that a line of TOML sets; empty when it sets none."""
    try:
        value: Any = _reader().loads(toml)
    except ValueError:
        return ()
    path: list[str] = []
    while value and isinstance(value, list | dict):
        if isinstance(value, dict):
            path.append(next(iter(value)))
            value = value[path[-1]]
        else:
            value = value[0]
    return tuple(path)


def _outside_strings(text: str, line: int) -> bool:
    """Whether ``line`` starts outside of a text or list that spans lines: all before it is TOML by itself."""
    try:
        _reader().loads("\n".join(text.split("\n")[: line - 1]))
    except ValueError:
        return False
    return True


def schema() -> dict[str, object]:
    """The JSON Schema of recipes, for editors."""
    properties: dict[str, object] = {key.name: _property(key) for key in _keys_in("")}
    properties |= {section: _schema_of(section) for section in (*_SECTIONS, _KUBERNETES)}
    return {"$schema": SCHEMA_URL, "title": "gpunode recipe", **_table(Recipe.__doc__ or "", properties)}


def _schema_of(section: str) -> dict[str, object]:
    """The schema of a section's table, with the tables inside it."""
    properties: dict[str, object] = {key.name: _property(key) for key in _keys_in(section)}
    for name, child, is_chosen in _children(section):
        inner = _schema_of(child)
        chosen = {"type": "object", "patternProperties": {f"^(?:{_NAME})$": inner}, "additionalProperties": False}
        properties[name] = chosen if is_chosen else inner
    return _table(_sections(section.partition(".")[0])[section].__doc__ or "", properties)


def _table(doc: str, properties: Mapping[str, object]) -> dict[str, object]:
    summary = doc.partition("\n")[0]
    return {"description": summary, "type": "object", "additionalProperties": False, "properties": dict(properties)}


def _property(key: Key) -> dict[str, object]:
    names = {str: "string", bool: "boolean", int: "integer", list: "array", dict: "object"}
    made: dict[str, object] = {"description": key.says.doc, "type": names[key.types[0]]}
    if key.name == "schema":
        made["const"] = SCHEMA
    elif key.types == (int,):
        made["minimum"] = key.says.least
    if key.types == (list,):
        return {**made, "items": {"type": "string", "pattern": f"^(?:{key.says.pattern})$"}, "default": []}
    if key.types == (dict,):
        return {
            **made,
            "additionalProperties": {"type": "string", "pattern": f"^(?:{key.says.pattern})$"},
            "default": {},
        }
    if key.choices:
        made["enum"] = list(key.choices)
    elif key.says.pattern:
        made["pattern"] = f"^(?:{key.says.pattern})$"
    return made if key.default is None else {**made, "default": key.default}


def render(recipe: Recipe) -> str:
    """``recipe`` as TOML: only what differs from the defaults, each key with its meaning."""
    lines = [f"schema = {SCHEMA}"]
    if recipe.description:
        lines.append(f"description = {literal(recipe.description)}")
    if recipe.skip:
        skip = next(key for key in _keys_in("") if key.name == "skip")
        lines += [f"# {skip.says.doc}", f"skip = {literal(recipe.skip)}"]
    for section in _SECTIONS:
        lines += _rendered(section, section, getattr(recipe, section))
    if recipe.kubernetes:
        lines += _rendered(_KUBERNETES, _KUBERNETES, recipe.kubernetes)
    return "\n".join(lines) + "\n"


def _rendered(section: str, at: str, held: Any) -> Iterator[str]:
    """The lines of a table and of the tables inside it."""
    changed = [(key, getattr(held, key.name)) for key in _keys_in(section)]
    changed = [(key, value) for key, value in changed if value != key.default]
    if changed:
        yield from ("", f"[{at}]")
    for key, value in changed:
        yield from (f"# {key.says.doc}", f"{key.name} = {literal(value)}")
    for name, child, is_chosen in _children(section):
        inner = getattr(held, name)
        for one in inner if is_chosen else ():
            yield from _rendered(child, f"{at}.{name}.{one}", inner[one])
        if not is_chosen:
            yield from _rendered(child, f"{at}.{name}", inner)


def literal(value: object) -> str:
    """``value``, a text, a number, or a list or table of those, as TOML writes it."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{literal(name)} = {literal(held)}' for name, held in value.items())}}}"
    # JSON's escapes are TOML's; only DEL stands raw in JSON and may not in TOML.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
