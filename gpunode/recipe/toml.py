"""Recipes as TOML: reading, with file, line and key in every error, and writing. Pure."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

from gpunode.errors import RecipeError, UsageError
from gpunode.fast_dataclass import dataclass
from gpunode.recipe import MAX_RECIPE_BYTES, RECIPE_SCHEMA_VERSION, Recipe
from gpunode.recipe.keys import (
    CHOSEN_NAME_PATTERN,
    KUBERNETES_SECTION,
    SECTIONS,
    TOP_LEVEL_KEYS,
    RecipeKey,
    child_tables,
    keys_in,
    known_keys,
    section_at,
    sections,
)

_MAX_EXTENDED_RECIPES = 32
# Compiled on use: only an error needs them.
_STRING_OR_COMMENT = r"""(?s)\"{3}(?:\\.|[^\\])*?\"{3}|'{3}.*?'{3}|#[^\n]*|"(?:\\.|[^"\\\n])*"|'[^'\n]*'"""
_KEY = r"""[\w-]+|"(?:\\.|[^"\\])*"|'[^']*'"""
_ASSIGNED_PATH = (
    rf"\s*(?P<header>\[\[?\s*)?(?P<path>(?:{_KEY})(?:\s*\.\s*(?:{_KEY}))*)\s*(?(header)\]\]?\s*(?:#.*)?$|=)"
)
# The user reads one line for each; and a file full of mistakes must not keep root's run busy.
_MAX_MISTAKES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class _Layer:
    """A file of a recipe: its text, to locate errors, and the values that it sets, by key path."""

    file: str
    text: str
    values: Mapping[str, Any]

    def error(self, what: str, path: tuple[str, ...], allowed: tuple[str, ...] = ()) -> RecipeError:
        line = line_of(self.text, path)
        return RecipeError(what, file=self.file, line=line, key=_shorten_text(".".join(path)), allowed=allowed)


def parse(text: str, file: str, load: Callable[[str], str]) -> Recipe:
    """Parse the recipe in ``text``, merged over the recipes that it extends.

    Args:
        text: the recipe as TOML; a byte order mark is skipped.
        file: the origin of ``text``: a shipped recipe's name, or a path.
        load: returns the text of another recipe, by the name of a shipped one or by path.

    Raises:
        RecipeError: it is invalid; names file, line, key and the allowed values.
    """
    values: dict[str, Any] = {}
    for layer in reversed(_load_layers(text, file, load)):
        values.pop("description", None)
        if layer.values.get("cuda.version") == "none":
            values.pop("cuda.parts", None)  # of the toolkit that a recipe beneath it wants
        values.update(layer.values)
    sections = {section: _build_table(section, section, values) for section in SECTIONS}
    if any(path.startswith(f"{KUBERNETES_SECTION}.") for path in values):
        sections[KUBERNETES_SECTION] = _build_table(KUBERNETES_SECTION, KUBERNETES_SECTION, values)
    top = {key.name: values[key.name] for key in keys_in("") if key not in TOP_LEVEL_KEYS and key.name in values}
    return Recipe(PurePosixPath(file).stem, **top, **sections)


def _build_table(section: str, at: str, values: Mapping[str, Any]) -> Any:
    """Build the table of ``section`` at the dotted path ``at``, with the tables inside it."""
    table_values = {key.name: values[path] for key in keys_in(section) if (path := f"{at}.{key.name}") in values}
    for name, child, is_chosen in child_tables(section):
        inside = f"{at}.{name}"
        if is_chosen:
            chosen = {path[len(inside) + 1 :].partition(".")[0] for path in values if path.startswith(f"{inside}.")}
            table_values[name] = MappingProxyType(
                {one: _build_table(child, f"{inside}.{one}", values) for one in sorted(chosen)}
            )
        else:
            table_values[name] = _build_table(child, inside, values)
    return sections(section.partition(".")[0])[section](**table_values)


def _load_layers(text: str, file: str, load: Callable[[str], str]) -> list[_Layer]:
    """Return the recipe and those that it extends, the most basic last."""
    layers = [_parse_layer(text, file)]
    while base := layers[-1].values.get("extends"):
        if "://" in base:
            raise layers[-1].error("extends is a URL, and recipes are only read from this machine", ("extends",))
        place = resolve_base(base, layers[-1].file)
        if place in (chain := [layer.file for layer in layers]):
            raise layers[-1].error(
                f"recipes extend each other in a circle: {' → '.join([*chain, place])}", ("extends",)
            )
        if len(layers) == _MAX_EXTENDED_RECIPES:
            raise layers[-1].error(f"more than {_MAX_EXTENDED_RECIPES} recipes extend one another", ("extends",))
        try:
            layers.append(_parse_layer(load(place), place))
        except RecipeError:
            raise
        except UsageError as error:
            raise layers[-1].error(f"{error.what} ({error.why})", ("extends",)) from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise layers[-1].error(f"cannot read {place}, which this recipe extends: {reason}", ("extends",)) from error
    return layers


def resolve_base(extends: str, file: str) -> str:
    """Return the argument of ``load`` if ``file`` extends ``extends``: the name of a shipped recipe, or a path."""
    if "/" not in extends and not extends.endswith(".toml"):
        return extends
    parts: list[str] = []
    for part in (PurePosixPath(file).parent / extends).parts:
        # Normalize the path, since a cycle is only detected if the same file has the same path.
        if part == ".." and parts and parts[-1] not in {"..", "/"}:
            parts.pop()
        else:
            parts.append(part)
    return str(PurePosixPath(*parts))


def _parse_layer(text: str, file: str) -> _Layer:
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if len(text) > MAX_RECIPE_BYTES:
        raise RecipeError(f"longer than the {MAX_RECIPE_BYTES >> 20} MiB that a recipe may have", file=file)
    layer = _Layer(file, text, read_toml(text, file))
    schema = layer.values.get("schema", RECIPE_SCHEMA_VERSION)
    if type(schema) is not int or schema != RECIPE_SCHEMA_VERSION:
        raise layer.error(
            f"schema is {shorten_value(schema)}: a format unknown to this gpunode",
            ("schema",),
            (str(RECIPE_SCHEMA_VERSION),),
        )
    return _Layer(file, text, dict(_checked_values(layer)))


def read_toml(text: str, file: str, error_kind: type[RecipeError] = RecipeError) -> Mapping[str, Any]:
    """Parse ``text``, the content of ``file``, as TOML.

    Raises:
        RecipeError: it is not TOML; its class is ``error_kind``, and it names the line.
    """
    from gpunode.toml import loads  # loaded on use: only if there is something to read

    try:
        values: Mapping[str, Any] = loads(text)
    except ValueError as error:
        place = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)", str(error))
        reason = str(error)[: place.start()] if place else str(error)
        line = int(place[1]) if place and place[1] else text.count("\n") + 1 if place else 0
        raise error_kind(f"not TOML: {_shorten_text(reason)}", file=file, line=line) from error
    return values


def _checked_values(layer: _Layer) -> Iterator[tuple[str, Any]]:
    """Yield every value of a file by its key path, checked."""
    wrong: list[RecipeError] = []
    for place, value in _values_by_path(layer.values):
        try:
            yield ".".join(place), _check_value(layer, place, value)
        except RecipeError as error:  # noqa: PERF203 - a file has a few dozen keys
            wrong.append(error)
            if len(wrong) == _MAX_MISTAKES_SHOWN:
                break
    if wrong:
        first = wrong[0].with_further_mistakes(wrong[1:])
        if len(wrong) == _MAX_MISTAKES_SHOWN:
            first.why += f"\nonly the first {_MAX_MISTAKES_SHOWN} mistakes are shown; there may be more"
        raise first


def _values_by_path(values: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every value of a file with its key path; include empty tables, and values in place of tables."""
    for name, value in values.items():
        place = (*above, name)
        section = section_at(place)
        if section and isinstance(value, dict) and (value or not section.endswith("*")):
            yield from _values_by_path(value, place)
        else:
            yield place, value


def _check_value(layer: _Layer, key_path: tuple[str, ...], value: Any) -> Any:
    path, section = ".".join(key_path), section_at(key_path[:-1]) or ""
    if section.endswith("*") and not re.fullmatch(CHOSEN_NAME_PATTERN, key_path[-2]):
        allowed = ("lower-case letters, digits and -",)
        raise layer.error(
            f"{shorten_value(key_path[-2])} cannot be the name of a table in {'.'.join(key_path[:-2])}",
            key_path,
            allowed,
        )
    if section_at(key_path):
        empty = "an empty table" if value == {} else f"{_type_name(value)}, where a table is expected"
        raise layer.error(f"{path} is {empty}", key_path, (f"[{path}]",))
    key = next((key for key in keys_in(section) if key.name == key_path[-1]), None)
    if key is None:
        raise _unknown_key_error(layer, section, key_path)
    if type(value) not in key.types:  # in Python true is a number, in a recipe it is not
        quote = f'; write it in quotes: "{value}"' if key.types == (str,) and type(value) is int else ""
        raise layer.error(
            f"{path} is {shorten_value(value)}, which is {_type_name(value)}{quote}", key_path, key.allowed_words
        )
    if isinstance(value, list):
        return _check_list(layer, key, key_path, value)
    if isinstance(value, dict):
        return _check_table(layer, key, key_path, value)
    if isinstance(value, str) and not _is_allowed(key, value):
        guess = difflib.get_close_matches(value.lower(), [word for word in key.allowed_words if " " not in word], 1)
        hint = f'; did you mean "{guess[0]}"?' if guess else ""
        raise layer.error(f"{path} is {shorten_value(value)}, which it cannot be{hint}", key_path, key.allowed_words)
    if key.types == (int,) and value < key.spec.minimum:
        raise layer.error(f"{path} is {value}, which is too small", key_path, key.allowed_words)
    return value


def _check_list(layer: _Layer, key: RecipeKey, key_path: tuple[str, ...], value: list[Any]) -> tuple[str, ...]:
    for item in value:
        if not isinstance(item, str) or not _is_allowed(key, item):
            raise layer.error(f"{key.path} holds {shorten_value(item)}, which it cannot", key_path, key.allowed_words)
    return tuple(value)


def _check_table(layer: _Layer, key: RecipeKey, key_path: tuple[str, ...], value: dict[str, Any]) -> Mapping[str, str]:
    kind, *allowed = key.spec.names or ("a key",)
    for name, held in value.items():
        if key.spec.name_pattern and not re.fullmatch(key.spec.name_pattern, name):
            raise layer.error(f"{shorten_value(name)} is not {kind}", key_path, tuple(allowed))
        if not isinstance(held, str) or not _is_allowed(key, held):
            raise layer.error(
                f"{shorten_value(name)} is {shorten_value(held)}, which it cannot be", key_path, key.allowed_words
            )
    return MappingProxyType(dict(sorted(value.items())))


def _is_allowed(key: RecipeKey, value: str) -> bool:
    if key.choices:
        return value in key.choices
    return not key.spec.pattern or re.fullmatch(key.spec.pattern, value) is not None


def _unknown_key_error(layer: _Layer, section: str, key_path: tuple[str, ...]) -> RecipeError:
    path = ".".join(key_path)
    above = ".".join(key_path[:-1])
    known = [f"{above}.{key.name}" if above else key.name for key in keys_in(section)]
    known += [f"{above}.{name}" for name, _, _ in child_tables(section)] if section else [*SECTIONS, KUBERNETES_SECTION]
    elsewhere = [key.path for key in known_keys() if key.name == path]
    by_name = {name.rpartition(".")[2]: name for name in known}  # a common prefix would make all similar
    guess = [by_name[name] for name in difflib.get_close_matches(key_path[-1], by_name, 1)] or elsewhere
    hint = f"; did you mean {guess[0]}?" if guess else ""
    return layer.error(f"there is no key {_shorten_text(path)}{hint}", key_path, tuple(known))


def shorten_value(value: object) -> str:
    """Return ``value`` in TOML's notation, shortened."""
    return _shorten_text(json.dumps(value, ensure_ascii=False, default=str))


def _shorten_text(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}…"


def _type_name(value: object) -> str:
    names = {bool: "a truth value", int: "a number", float: "a number", str: "text", list: "a list", dict: "a table"}
    return names.get(type(value), "a date or time")


def render(recipe: Recipe, *, defaults: bool = False) -> str:
    """Return ``recipe`` as TOML, each key with its meaning.

    Args:
        recipe: the recipe to write.
        defaults: whether to write all keys, those without a value as comments, instead of only changed ones.
    """
    lines = [f"schema = {RECIPE_SCHEMA_VERSION}"]
    if recipe.description:
        lines.append(f"description = {to_toml_literal(recipe.description)}")
    if recipe.skip or defaults:
        skip = next(key for key in keys_in("") if key.name == "skip")
        lines += [f"# {skip.spec.doc}", f"skip = {to_toml_literal(recipe.skip)}"]
    for section in SECTIONS:
        lines += _render_table(section, section, getattr(recipe, section), defaults=defaults)
    if recipe.kubernetes:
        lines += _render_table(KUBERNETES_SECTION, KUBERNETES_SECTION, recipe.kubernetes, defaults=defaults)
    return "\n".join(lines) + "\n"


def _render_table(section: str, at: str, held: Any, *, defaults: bool) -> Iterator[str]:
    """Yield the lines of a table and of the tables inside it."""
    every = [(key, getattr(held, key.name)) for key in keys_in(section)]
    shown = [(key, value) for key, value in every if defaults or value != key.default]
    if shown:
        yield from ("", f"[{at}]")
    for key, value in shown:
        yield f"# {key.spec.doc}"
        yield f"{key.name} = {to_toml_literal(value)}" if value is not None else f"# {key.name} is not set"
    for name, child, is_chosen in child_tables(section):
        inner = getattr(held, name)
        for one in inner if is_chosen else ():
            yield from _render_table(child, f"{at}.{name}.{one}", inner[one], defaults=defaults)
        if not is_chosen:
            yield from _render_table(child, f"{at}.{name}", inner, defaults=defaults)


def to_toml_literal(value: object) -> str:
    """Return ``value`` in TOML's notation: a string, a number, or a list or table of those."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{to_toml_literal(name)} = {to_toml_literal(held)}' for name, held in value.items())}}}"
    # JSON's escapes are valid in TOML; only DEL may be unescaped in JSON but not in TOML.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def line_of(text: str, path: tuple[str, ...]) -> int:
    """Return the line, from 1, in which TOML ``text`` sets the key ``path`` or its nearest enclosing table; else 0."""
    found = ((len(keys), -number) for number, keys in _find_assignments(text) if keys == path[: len(keys)])
    return -max(found, default=(0, 0))[1]


@lru_cache(maxsize=1)
def _find_assignments(text: str) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """Return the line and the complete key path of every table header and assignment of valid TOML."""
    table: tuple[str, ...] = ()
    found = []
    for number, line in enumerate(re.sub(_STRING_OR_COMMENT, _blank_long_string, text).split("\n"), 1):
        if match := re.match(_ASSIGNED_PATH, line):
            keys = tuple(_read_key(key) for key in re.findall(_KEY, match["path"]))
            table = keys if match["header"] else table
            found.append((number, table if match["header"] else (*table, *keys)))
    return tuple(found)


def _blank_long_string(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n") if match[0].startswith(('"""', "'''")) else match[0]


def _read_key(key: str) -> str:
    if key[0] != '"':
        return key.strip("'")
    with suppress(ValueError):  # an escape that JSON lacks
        return str(json.loads(key))
    return key
