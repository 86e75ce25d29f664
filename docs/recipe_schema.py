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


def render_schema() -> dict[str, object]:
    """Return the JSON Schema of recipes."""
    properties: dict[str, object] = {key.name: _key_schema(key) for key in keys_in("")}
    properties |= {section: _section_schema(section) for section in (*SECTIONS, KUBERNETES_SECTION)}
    return {"$schema": SCHEMA_URL, "title": "gpunode recipe", **_table_schema(Recipe.__doc__ or "", properties)}


def _section_schema(section: str) -> dict[str, object]:
    """Return the schema of a section's table, with the tables inside it."""
    properties: dict[str, object] = {key.name: _key_schema(key) for key in keys_in(section)}
    for name, child, is_chosen in child_tables(section):
        inner = _section_schema(child)
        named_tables = {
            "type": "object",
            "patternProperties": {f"^(?:{CHOSEN_NAME_PATTERN})$": inner},
            "additionalProperties": False,
        }
        properties[name] = named_tables if is_chosen else inner
    return _table_schema(sections(section.partition(".")[0])[section].__doc__ or "", properties)


def _table_schema(doc: str, properties: Mapping[str, object]) -> dict[str, object]:
    summary = doc.partition("\n")[0]
    return {"description": summary, "type": "object", "additionalProperties": False, "properties": dict(properties)}


def _key_schema(key: RecipeKey) -> dict[str, object]:
    type_names = {str: "string", bool: "boolean", int: "integer", list: "array", dict: "object"}
    schema: dict[str, object] = {"description": key.spec.doc, "type": type_names[key.types[0]]}
    if key.name == "schema":
        schema["const"] = RECIPE_SCHEMA_VERSION
    elif key.types == (int,):
        schema["minimum"] = key.spec.minimum
    if key.types == (list,):
        return {**schema, "items": {"type": "string", "pattern": f"^(?:{key.spec.pattern})$"}, "default": []}
    if key.types == (dict,):
        property_names = (
            {"propertyNames": {"pattern": f"^(?:{key.spec.name_pattern})$"}} if key.spec.name_pattern else {}
        )
        return {
            **schema,
            **property_names,
            "additionalProperties": {"type": "string", "pattern": f"^(?:{key.spec.pattern})$"},
            "default": {},
        }
    if key.choices:
        schema["enum"] = list(key.choices)
    elif key.spec.pattern:
        schema["pattern"] = f"^(?:{key.spec.pattern})$"
    return schema if key.default is None else {**schema, "default": key.default}
