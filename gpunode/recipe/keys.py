"""The keys of a recipe, as its dataclasses declare them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from gpunode.fast_dataclass import dataclass
from gpunode.recipe import (
    RECIPE_SCHEMA_VERSION,
    CudaToolkit,
    Driver,
    Expect,
    GpuDirect,
    KeySpec,
    MigSettings,
    Mps,
    Recipe,
    Repositories,
    RuntimeSettings,
    Toolkit,
)

SECTIONS: Mapping[str, type[Any]] = MappingProxyType(
    {
        "driver": Driver,
        "repositories": Repositories,
        "toolkit": Toolkit,
        "cuda": CudaToolkit,
        "runtime": RuntimeSettings,
        "gpudirect": GpuDirect,
        "mig": MigSettings,
        "mps": Mps,
        "expect": Expect,
    }
)
KUBERNETES_SECTION = "kubernetes"
# Allowed names for a table whose name the recipe chooses.
CHOSEN_NAME_PATTERN = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"


def sections(top: str) -> Mapping[str, type[Any]]:
    """Return the class of every section below the table ``top``, by dotted name; * is a name that the recipe chooses.

    The Kubernetes sections are loaded only if a recipe has them: most runs need none.
    """
    if top == KUBERNETES_SECTION:
        from gpunode.recipe.kubernetes import KUBERNETES_SECTIONS as OF_KUBERNETES

        return OF_KUBERNETES
    return SECTIONS


def section_at(key_path: tuple[str, ...]) -> str | None:
    """Return the section whose table is at ``key_path``; None if a value belongs there."""
    if not key_path:
        return ""
    known = sections(key_path[0])
    for path in (".".join(key_path), ".".join((*key_path[:-1], "*"))):
        if path in known or any(section.startswith(f"{path}.") for section in known):
            return path
    return None


def child_tables(section: str) -> Iterator[tuple[str, str, bool]]:
    """Yield the tables inside ``section``: name, section, and whether it contains tables with chosen names."""
    for child in sections(section.partition(".")[0]):
        name, dot, rest = child.removeprefix(f"{section}.").partition(".")
        if child.startswith(f"{section}.") and (not dot or rest == "*"):
            yield name, child, rest == "*"


@dataclass(frozen=True, slots=True)
class RecipeKey:
    """A key that a recipe may hold.

    Attributes:
        section: its table; empty at the top level.
        types: the allowed types of its value.
        choices: the allowed values, if its type lists them.
        default: None if leaving it out requests nothing.
    """

    section: str
    name: str
    types: tuple[type[Any], ...]
    choices: tuple[str, ...]
    default: object
    spec: KeySpec

    @property
    def path(self) -> str:
        """The key as TOML writes it at the top level."""
        return f"{self.section.replace('*', 'name')}.{self.name}" if self.section else self.name

    @property
    def allowed_words(self) -> tuple[str, ...]:
        """The allowed values, in words."""
        if self.choices or self.spec.allowed:
            return self.choices or self.spec.allowed
        if bool in self.types:
            return ("true", "false")
        if dict in self.types:
            return ("a table of texts",)
        return ("any text",) if str in self.types else (f"a whole number from {self.spec.minimum}",)


TOP_LEVEL_KEYS = (
    RecipeKey(
        "", "schema", (int,), (), RECIPE_SCHEMA_VERSION, KeySpec("the format of recipes that this one is written in")
    ),
    RecipeKey(
        "", "extends", (str,), (), "", KeySpec("the recipe that this one changes: a shipped one by name, or a path")
    ),
)


@cache
def known_keys() -> tuple[RecipeKey, ...]:
    """Return every key that a recipe may hold, in the order of the reference page."""
    return tuple(key for section in ("", *SECTIONS, *sections(KUBERNETES_SECTION)) for key in keys_in(section))


@cache
def keys_in(section: str) -> tuple[RecipeKey, ...]:
    """Return the keys of a section; none if it only contains further tables."""
    if not section:
        return (*TOP_LEVEL_KEYS, *_keys_of("", Recipe))
    kind = sections(section.partition(".")[0]).get(section)
    return tuple(_keys_of(section, kind)) if kind else ()


def _keys_of(section: str, kind: type[Any]) -> Iterator[RecipeKey]:
    hints = get_type_hints(kind, localns={"Kubernetes": Any}, include_extras=True)
    for one in fields(kind):
        if get_origin(hint := hints[one.name]) is Annotated:
            held, spec = get_args(hint)
            choices = get_args(held) if get_origin(held) is Literal else ()
            types = _toml_types(held)
            default = {} if types == (dict,) else None if one.default is MISSING else one.default
            yield RecipeKey(section, one.name, types, choices, default, spec)


def _toml_types(held: Any) -> tuple[type[Any], ...]:
    """Return the types that TOML uses for a value of the type ``held``."""
    if get_origin(held) is Literal:
        return (str,)
    if get_origin(held) is tuple:
        return (list,)
    if get_origin(held) is Mapping:
        return (dict,)
    return tuple(t for t in get_args(held) or (held,) if t is not type(None))
