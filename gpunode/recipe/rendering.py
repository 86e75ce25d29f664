"""Recipe → TOML: only what differs from the defaults, each key with its meaning. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gpunode.recipe import SCHEMA, Recipe
from gpunode.recipe.keys import KUBERNETES, SECTIONS, children, keys_in


def render(recipe: Recipe) -> str:
    """``recipe`` as TOML: only what differs from the defaults, each key with its meaning."""
    lines = [f"schema = {SCHEMA}"]
    if recipe.description:
        lines.append(f"description = {literal(recipe.description)}")
    if recipe.skip:
        skip = next(key for key in keys_in("") if key.name == "skip")
        lines += [f"# {skip.says.doc}", f"skip = {literal(recipe.skip)}"]
    for section in SECTIONS:
        lines += _rendered(section, section, getattr(recipe, section))
    if recipe.kubernetes:
        lines += _rendered(KUBERNETES, KUBERNETES, recipe.kubernetes)
    return "\n".join(lines) + "\n"


def _rendered(section: str, at: str, held: Any) -> Iterator[str]:
    """The lines of a table and of the tables inside it."""
    changed = [(key, getattr(held, key.name)) for key in keys_in(section)]
    changed = [(key, value) for key, value in changed if value != key.default]
    if changed:
        yield from ("", f"[{at}]")
    for key, value in changed:
        yield from (f"# {key.says.doc}", f"{key.name} = {literal(value)}")
    for name, child, is_chosen in children(section):
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
