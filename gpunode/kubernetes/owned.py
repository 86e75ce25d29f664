"""What a field manager owns of an object, by its ``managedFields``, and which fields others hold against gpunode. Pure.

Source: the Kubernetes documentation, "Server-Side Apply"; sigs.k8s.io/structured-merge-diff, fieldpath/serialize.go.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

Body: TypeAlias = Mapping[str, Any]
Path: TypeAlias = tuple[str, ...]
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


def fields_by_manager(live: Body) -> Mapping[str, frozenset[Path]]:
    """Return what each field manager set of the object, its status left out."""
    found: dict[str, frozenset[Path]] = {}
    for one in live["metadata"].get("managedFields", []):
        if not one.get("subresource"):
            manager = str(one.get("manager", ""))
            found[manager] = found.get(manager, frozenset()) | frozenset(_leaves(one.get("fieldsV1", {})))
    return found


def co_owners(live: Body, ours: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """Return the field managers that also set fields of ``ours``, each with these fields; not those of the metadata."""
    fields = fields_by_manager(live)
    mine = {path for manager in ours for path in fields.get(manager, ()) if path[0] != "f:metadata"}
    return {
        manager: tuple(map(field_name, sorted(theirs & mine)))
        for manager, theirs in fields.items()
        if manager not in ours and theirs & mine
    }


def disowning_patch(live: Body, manager: str) -> list[dict[str, Any]]:
    """Return the JSON patch after which ``manager`` owns nothing of the object, though all values but its labels stay.

    It fails where the object was changed since. To apply the object without a field, as one gives it up otherwise,
    takes the field out, which the API server refuses of fields that the object cannot do without.
    """
    metadata, entry = live["metadata"], _entry(live, manager)
    if entry is None:
        return []
    place = metadata.get("managedFields", []).index(entry)
    held = set().union(*(_leaves(one["fieldsV1"]) for one in metadata["managedFields"] if one != entry))
    alone = [path for path in _leaves(entry["fieldsV1"]) if path[0] == "f:metadata" and path not in held]
    return [
        {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
        {"op": "remove", "path": f"/metadata/managedFields/{place}"},
        *({"op": "remove", "path": "".join(f"/{_escaped(step[2:])}" for step in path)} for path in alone),
    ]


def is_applied_by_kubectl(live: Body) -> bool:
    """Whether somebody applied the object on the client's side, which sets none of the fields that are so already."""
    return "kubectl.kubernetes.io/last-applied-configuration" in live["metadata"].get("annotations", {})


def _leaves(fields: Mapping[str, Any], path: Path = ()) -> Iterator[Path]:
    for key, held in fields.items():
        if key != _ITSELF:
            yield from _leaves(held, (*path, key)) if held.keys() - {_ITSELF} else ((*path, key),)


def field_name(path: Path) -> str:
    """Return the field as kubectl writes it: ``spec.containers[name="plugin"].image``."""
    steps = (f".{step[2:]}" if step.startswith("f:") else _element_name(step) for step in path)
    return "".join(steps).removeprefix(".")


def _element_name(step: str) -> str:
    found = json.loads(step[2:])
    keys = found.items() if isinstance(found, dict) else [("", found)]
    return "[" + ",".join(f"{name}={json.dumps(value)}" for name, value in keys) + "]"


def _escaped(name: str) -> str:
    """Return the name as a step of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


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


_LONGEST: Final = 60
_MISSING: Final = object()


def conflict_lines(said: str, wanted: Sequence[Body], live: Sequence[Body]) -> tuple[str, ...]:
    """Return a line for each conflict: object, field, the other manager with its value, and gpunode's.

    Args:
        said: the API server's refusal, which names managers and fields, but neither objects nor values.
        wanted: the objects that were applied.
        live: these objects as they are, with their ``managedFields``.
    """
    there = {_title_of(one): one for one in live}
    return tuple(line for one in wanted for line in _conflicts(said, one, there.get(_title_of(one))))


def _conflicts(said: str, wanted: Body, live: Body | None) -> Iterator[str]:
    for manager, fields in fields_by_manager(live).items() if live else ():
        for path in sorted(fields):
            ours, theirs, name = _value_at(wanted, path), _value_at(live, path), field_name(path)
            if ours is not _MISSING and ours != theirs and f'"{manager}"' in said and f".{name}\n" in f"{said}\n":
                yield f"{_title_of(wanted)}, {name}: {manager} has {_short(theirs)}, gpunode would set {_short(ours)}"


def _title_of(body: Body) -> str:
    metadata = body["metadata"]
    return f"{body['kind']} " + "/".join(metadata[part] for part in ("namespace", "name") if part in metadata)


def _short(value: Any) -> str:
    written = json.dumps(value, ensure_ascii=False)
    return written if len(written) <= _LONGEST else f"{written[:_LONGEST]}…"


def _value_at(body: Any, path: Path) -> Any:
    """Return the value at a path of ``managedFields``; _MISSING where there is none."""
    for step in path:
        kind, _, name = step.partition(":")
        if kind == "f":
            body = body.get(name, _MISSING) if isinstance(body, dict) else _MISSING
        elif isinstance(body, list):
            keys = json.loads(name)
            body = next((one for one in body if one == keys or _has(one, keys)), _MISSING)
    return body


def _has(element: Any, keys: Any) -> bool:
    return isinstance(element, dict) and isinstance(keys, dict) and keys.items() <= element.items()
