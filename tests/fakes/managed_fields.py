"""The arithmetic of server-side apply: an object as fields by path, and their owners.

Sources: sigs.k8s.io/structured-merge-diff, typed/tofieldset.go and merge/update.go; the list types of the API,
``x-kubernetes-list-type`` and ``x-kubernetes-map-type``, of the kinds that gpunode applies.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

# As managedFields writes it: ("f:spec", "f:containers", 'k:{"name":"plugin"}', "f:image").
Path: TypeAlias = tuple[str, ...]
Fields: TypeAlias = dict[Path, Any]

# Lists whose elements are identified by these keys; every other list is one field.
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("containers", "env", "volumes", "resourceClaims", "claims", "requests"), ("name",)),
    "volumeMounts": ("mountPath",),
    "ownerReferences": ("uid",),
    "conditions": ("type",),
}
# Mappings that are one field.
_WHOLE: Final = frozenset({"selector", "nodeSelector"})
# Fields that identify an object or belong to the server: these have no owner.
_UNOWNED: Final = frozenset(
    {"name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"}
)


def fields_of(value: Any, path: Path = ()) -> Fields:
    """Return the fields of an object with their values; an element of a list with keys is a field, too."""
    name = path[-1].partition(":")[2] if path else ""
    if isinstance(value, Mapping) and value and name not in _WHOLE:
        return {at: held for key, one in value.items() for at, held in fields_of(one, (*path, f"f:{key}")).items()}
    if isinstance(value, list) and name in _KEYS:
        found: Fields = {}
        for one in value:
            element = json.dumps({key: one[key] for key in _KEYS[name]}, separators=(",", ":"))
            found |= {(*path, f"k:{element}"): {}, **fields_of(one, (*path, f"k:{element}"))}
        return found
    return {path: value}


def object_of(fields: Mapping[Path, Any]) -> dict[str, Any]:
    """Return the object that has these fields."""
    whole: dict[str, Any] = {}
    for path, value in fields.items():
        at: Any = whole
        for step, following in zip(path, (*path[1:], ""), strict=True):
            kind, _, name = step.partition(":")
            if kind == "k":
                keys = json.loads(name)
                element = next((one for one in at if keys.items() <= one.items()), None)
                if element is None:
                    at.append(element := keys)
                at = element
            elif following:
                at = at.setdefault(name, [] if following.startswith("k:") else {})
            else:
                at[name] = copy.deepcopy(value)
    return whole


def ownable(fields: Iterable[Path]) -> frozenset[Path]:
    """Return those of ``fields`` that can have an owner."""
    return frozenset(
        path
        for path in fields
        if path[0] not in {"f:apiVersion", "f:kind", "f:status"}
        and not (path[0] == "f:metadata" and (len(path) < 2 or path[1].removeprefix("f:") in _UNOWNED))
    )


def with_named_parents(fields: Collection[Path]) -> frozenset[Path]:
    """Return the fields with their parents, except elements of lists: only their owner keeps these."""
    return frozenset(path[:end] for path in fields for end in range(1, len(path) + 1) if path[end - 1][0] == "f") | {
        *fields
    }


def in_order(path: Path) -> list[tuple[bool, str]]:
    """Return the server's sort key of fields: an object's own fields come before those nested in others."""
    return [(at < len(path) - 1, step) for at, step in enumerate(path)]


def written(fields: Collection[Path]) -> dict[str, Any]:
    """Return the fields in the form of ``fieldsV1``."""
    tree: dict[str, Any] = {}
    for path in sorted(fields):
        at = tree
        for step in path:
            at = at.setdefault(step, {})
    for path in fields:
        at = tree
        for step in path:
            at = at[step]
        if at:
            at["."] = {}
    return tree


def read(tree: Mapping[str, Any], path: Path = ()) -> Iterator[Path]:
    """Yield the fields of a ``fieldsV1``."""
    for step, below in tree.items():
        if step == ".":
            yield path
        elif below:
            yield from read(below, (*path, step))
        else:
            yield (*path, step)


def as_text(path: Path) -> str:
    """Return the path as in the server's messages: ``.spec.containers[name="plugin"].image``."""
    return "".join(
        f".{step[2:]}"
        if step.startswith("f:")
        else "[" + ",".join(f"{key}={json.dumps(value)}" for key, value in json.loads(step[2:]).items()) + "]"
        for step in path
    )
