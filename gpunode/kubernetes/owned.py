"""What a field manager owns of an object, by its ``managedFields``. Pure.

Source: the Kubernetes documentation, "Server-Side Apply"; sigs.k8s.io/structured-merge-diff, fieldpath/serialize.go.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

Body: TypeAlias = Mapping[str, Any]
_ITSELF = "."


def owned(live: Body, manager: str) -> Body | None:
    """The object with only those fields that ``manager`` applied; None when it applied none.

    To apply just these once more, as that manager, changes nothing.
    """
    entry = _entry(live, manager)
    if entry is None:
        return None
    fields = _project(live, entry.get("fieldsV1", {}))
    place = {key: live["metadata"][key] for key in ("name", "namespace") if live["metadata"].get(key)}
    found = fields if isinstance(fields, dict) else {}
    return {
        "apiVersion": live["apiVersion"],
        "kind": live["kind"],
        "metadata": {**place, **found.get("metadata", {})},
        **{key: value for key, value in found.items() if key != "metadata"},
    }


def others(live: Body, ours: Sequence[str]) -> tuple[str, ...]:
    """The field managers but ``ours`` that set more of the object than its status."""
    entries = live["metadata"].get("managedFields", [])
    return tuple(
        dict.fromkeys(
            str(one.get("manager", ""))
            for one in entries
            if one.get("manager") not in ours and not one.get("subresource")
        )
    )


def is_co_owned(live: Body, ours: Sequence[str]) -> bool:
    """Whether somebody else set one of the fields of ``ours``, too, those of the metadata left out."""
    mine: set[tuple[str, ...]] = set()
    theirs: set[tuple[str, ...]] = set()
    for one in live["metadata"].get("managedFields", []):
        if not one.get("subresource"):
            (mine if one.get("manager") in ours else theirs).update(_leaves(one.get("fieldsV1", {})))
    return any(path[:1] != ("f:metadata",) for path in mine & theirs)


def is_applied_by_kubectl(live: Body) -> bool:
    """Whether somebody applied the object on the client's side, which sets none of the fields that are so already."""
    return "kubectl.kubernetes.io/last-applied-configuration" in live["metadata"].get("annotations", {})


def _leaves(fields: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, held in fields.items():
        if key != _ITSELF:
            yield from _leaves(held, (*path, key)) if held.keys() - {_ITSELF} else ((*path, key),)


def _entry(live: Body, manager: str) -> Mapping[str, Any] | None:
    for one in live["metadata"].get("managedFields", []):
        if one.get("manager") == manager and one.get("operation") == "Apply" and not one.get("subresource"):
            return dict(one)
    return None


def _project(value: Any, fields: Mapping[str, Any]) -> Any:
    """``value`` as far as ``fields`` name it; a field without further ones is owned whole."""
    inner = {key: held for key, held in fields.items() if key != _ITSELF}
    if not inner:
        return value
    if isinstance(value, Mapping):
        named = ((key[2:], held) for key, held in inner.items() if key.startswith("f:"))
        return {name: _project(value[name], held) for name, held in named if name in value}
    if isinstance(value, list):
        return [_project(item, held) for item in value for key, held in inner.items() if _is(item, key)]
    return value


def _is(item: Any, key: str) -> bool:
    """Whether ``item`` is the list's element that ``key`` names: by its keys (``k:``), or by its value (``v:``)."""
    kind, _, text = key.partition(":")
    if kind == "v":
        return bool(item == json.loads(text))
    return kind == "k" and isinstance(item, Mapping) and all(item.get(k) == v for k, v in json.loads(text).items())
