"""The JSON Schema of recipes, for editors."""

# ruff: noqa: INP001 - beside the script that calls it, not a package

from __future__ import annotations

from collections.abc import Mapping

from gpunode.recipe import RECIPE_SCHEMA_VERSION, Recipe
from gpunode.recipe.keys import (
    CHOSEN_NAME_PATTERN,
    KUBERNETES_SECTION,
    SECTIONS,
    RecipeKey,
    child_tables,
    keys_in,
    sections,
)

SCHEMA_URL = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, object]:
    """The JSON Schema of recipes, for editors."""
    properties: dict[str, object] = {key.name: _property(key) for key in keys_in("")}
    properties |= {section: _schema_of(section) for section in (*SECTIONS, KUBERNETES_SECTION)}
    return {"$schema": SCHEMA_URL, "title": "gpunode recipe", **_table(Recipe.__doc__ or "", properties)}


def _schema_of(section: str) -> dict[str, object]:
    """The schema of a section's table, with the tables inside it."""
    properties: dict[str, object] = {key.name: _property(key) for key in keys_in(section)}
    for name, child, is_chosen in child_tables(section):
        inner = _schema_of(child)
        chosen = {
            "type": "object",
            "patternProperties": {f"^(?:{CHOSEN_NAME_PATTERN})$": inner},
            "additionalProperties": False,
        }
        properties[name] = chosen if is_chosen else inner
    return _table(sections(section.partition(".")[0])[section].__doc__ or "", properties)


def _table(doc: str, properties: Mapping[str, object]) -> dict[str, object]:
    summary = doc.partition("\n")[0]
    return {"description": summary, "type": "object", "additionalProperties": False, "properties": dict(properties)}


def _property(key: RecipeKey) -> dict[str, object]:
    names = {str: "string", bool: "boolean", int: "integer", list: "array", dict: "object"}
    made: dict[str, object] = {"description": key.spec.doc, "type": names[key.types[0]]}
    if key.name == "schema":
        made["const"] = RECIPE_SCHEMA_VERSION
    elif key.types == (int,):
        made["minimum"] = key.spec.least
    if key.types == (list,):
        return {**made, "items": {"type": "string", "pattern": f"^(?:{key.spec.pattern})$"}, "default": []}
    if key.types == (dict,):
        names = {"propertyNames": {"pattern": f"^(?:{key.spec.name_pattern})$"}} if key.spec.name_pattern else {}
        return {
            **made,
            **names,
            "additionalProperties": {"type": "string", "pattern": f"^(?:{key.spec.pattern})$"},
            "default": {},
        }
    if key.choices:
        made["enum"] = list(key.choices)
    elif key.spec.pattern:
        made["pattern"] = f"^(?:{key.spec.pattern})$"
    return made if key.default is None else {**made, "default": key.default}
