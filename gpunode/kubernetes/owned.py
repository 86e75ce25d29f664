"""The fields that a field manager owns in an object, from its ``managedFields``, and conflicts about them. Pure.

Source: the Kubernetes documentation, "Server-Side Apply"; sigs.k8s.io/structured-merge-diff, fieldpath/serialize.go.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from gpunode.command import command
from gpunode.kubernetes.model import MANAGED_BY_LABEL, Body

Path: TypeAlias = tuple[str, ...]
_SELF_KEY = "."


def owned_fields(live: Body, manager: str) -> Body | None:
    """Return the object with only the fields that ``manager`` applied; None if it applied none.

    Applying exactly these again, as that manager, changes nothing.
    """
    entry = _apply_entry(live, manager)
    return None if entry is None else _select_object(live, entry.get("fieldsV1", {}))


def all_set_fields(live: Body) -> Body:
    """Return the object with only the fields that somebody set, without defaults and status.

    If more than one manager set some, its ``managedFields`` are those entries, without their times.
    """
    fields: Mapping[str, Any] = {}
    entries = [one for one in live["metadata"].get("managedFields", []) if not one.get("subresource")]
    for one in entries:
        fields = _merge_fields(fields, one.get("fieldsV1", {}))
    selected = _select_object(live, fields)
    if len(entries) <= 1:
        return selected
    # The API server orders them by their times.
    entries.sort(key=lambda one: (one.get("manager", ""), one["operation"], one.get("apiVersion", "")))
    owners = [{key: value for key, value in one.items() if key != "time"} for one in entries]
    return {**selected, "metadata": {**selected["metadata"], "managedFields": owners}}


def split_owners(fields: Body) -> tuple[Body, Sequence[Body]]:
    """Return what ``all_set_fields`` returned as an object to apply, and its ``managedFields``."""
    metadata = {key: value for key, value in fields["metadata"].items() if key != "managedFields"}
    return {**fields, "metadata": metadata}, fields["metadata"].get("managedFields", ())


def _merge_fields(fields: Mapping[str, Any], others: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**fields, **{key: _merge_fields(fields.get(key, {}), inner) for key, inner in others.items()}}


def _select_object(live: Body, owned: Mapping[str, Any]) -> Body:
    fields = _select_owned(live, owned)
    place = {key: live["metadata"][key] for key in ("name", "namespace") if live["metadata"].get(key)}
    found = fields if isinstance(fields, dict) else {}
    return {
        "apiVersion": live["apiVersion"],
        "kind": live["kind"],
        "metadata": {**place, **found.get("metadata", {})},
        **{key: value for key, value in found.items() if key != "metadata"},
    }


def other_managers(live: Body, ours: Sequence[str]) -> tuple[str, ...]:
    """Return the field managers other than ``ours`` that set anything beyond the object's status."""
    return tuple(manager for manager in fields_by_manager(live) if manager not in ours)


def fields_by_manager(live: Body) -> Mapping[str, frozenset[Path]]:
    """Return the paths that each field manager set in the object, without its status."""
    fields: dict[str, frozenset[Path]] = {}
    for one in live["metadata"].get("managedFields", []):
        if not one.get("subresource"):
            manager = str(one.get("manager", ""))
            fields[manager] = fields.get(manager, frozenset()) | frozenset(_leaf_paths(one.get("fieldsV1", {})))
    return fields


def co_owners(live: Body, ours: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """Return the field managers that also set fields of ``ours``, with these fields; metadata does not count."""
    fields = fields_by_manager(live)
    own_paths = {path for manager in ours for path in fields.get(manager, ()) if path[0] != "f:metadata"}
    return {
        manager: tuple(map(format_field, sorted(paths & own_paths)))
        for manager, paths in fields.items()
        if manager not in ours and paths & own_paths
    }


def disowning_patch(live: Body, manager: str) -> list[dict[str, Any]]:
    """Return the JSON patch that removes ``manager``'s ownership; only labels that nobody else owns are removed.

    It fails if the object was changed since. The usual way is to apply the object without a field, but that removes the
    field, which the API server rejects for required ones.
    """
    metadata, entry = live["metadata"], _apply_entry(live, manager)
    if entry is None:
        return []
    index = metadata.get("managedFields", []).index(entry)
    owned_by_others = set().union(*(_leaf_paths(one["fieldsV1"]) for one in metadata["managedFields"] if one != entry))
    own_labels = [
        path for path in _leaf_paths(entry["fieldsV1"]) if path[0] == "f:metadata" and path not in owned_by_others
    ]
    return [
        {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
        {"op": "remove", "path": f"/metadata/managedFields/{index}"},
        # As a JSON pointer (RFC 6901).
        *(
            {"op": "remove", "path": "".join(f"/{step[2:].replace('~', '~0').replace('/', '~1')}" for step in path)}
            for path in own_labels
        ),
    ]


def is_labelled(body: Body) -> bool:
    """Return whether the object has the label that gpunode renders on every object."""
    return bool(body["metadata"].get("labels", {}).items() >= MANAGED_BY_LABEL.items())


def explain_deletion(live: Body) -> tuple[str, str] | None:
    """Return why an object that is being deleted still exists, and how to find out more; None if it is not deleted."""
    metadata = live["metadata"]
    if "deletionTimestamp" not in metadata:
        return None
    # A namespace's conditions say what is left in it. Source: kubernetes pkg/controller/namespace/deletion.
    conditions = live.get("status", {}).get("conditions", ()) if live["kind"] == "Namespace" else ()
    messages = [one["message"] for one in conditions if one["status"] == "True"]
    messages += [_FINALIZERS.get(one, f"the finalizer {one} is on it") for one in metadata.get("finalizers", ())]
    where = ("--namespace", metadata["namespace"]) if "namespace" in metadata else ()
    look = command("kubectl", "get", live["kind"].lower(), *where, metadata["name"], "-o", "yaml")
    return "; ".join(messages) or "it is still ending", f"see what keeps it: {look}"


_FINALIZERS: Final = {"foregroundDeletion": "the objects that it owns, such as pods, must be deleted first"}


def is_applied_client_side(live: Body) -> bool:
    """Return whether it was applied client-side, which records no ownership of fields that already had their values."""
    return "kubectl.kubernetes.io/last-applied-configuration" in live["metadata"].get("annotations", {})


def _leaf_paths(fields: Mapping[str, Any], path: Path = ()) -> Iterator[Path]:
    for key, inner in fields.items():
        if key != _SELF_KEY:
            yield from _leaf_paths(inner, (*path, key)) if inner.keys() - {_SELF_KEY} else ((*path, key),)


def format_field(path: Path) -> str:
    """Return the field in kubectl's notation: ``spec.containers[name="plugin"].image``."""

    def format_element(step: str) -> str:
        found = json.loads(step[2:])
        keys = found.items() if isinstance(found, dict) else [("", found)]
        return "[" + ",".join(f"{name}={json.dumps(value)}" for name, value in keys) + "]"

    steps = (f".{step[2:]}" if step.startswith("f:") else format_element(step) for step in path)
    return "".join(steps).removeprefix(".")


def _apply_entry(live: Body, manager: str) -> Mapping[str, Any] | None:
    for one in live["metadata"].get("managedFields", []):
        if one.get("manager") == manager and one.get("operation") == "Apply" and not one.get("subresource"):
            return dict(one)
    return None


def _select_owned(value: Any, fields: Mapping[str, Any]) -> Any:
    """Return the part of ``value`` that ``fields`` name; a field without nested ones is owned entirely."""
    inner = {key: nested for key, nested in fields.items() if key != _SELF_KEY}
    if not inner:
        return value
    if isinstance(value, Mapping):
        fields_of_keys = ((key[2:], nested) for key, nested in inner.items() if key.startswith("f:"))
        return {name: _select_owned(value[name], nested) for name, nested in fields_of_keys if name in value}
    if isinstance(value, list):
        return [
            _select_owned(item, nested)
            for item in value
            for key, nested in inner.items()
            if _matches_field_key(item, key)
        ]
    return value


def _matches_field_key(item: Any, field_key: str) -> bool:
    """Return whether ``field_key`` names this list element, by its keys (``k:``) or its value (``v:``)."""
    kind, _, text = field_key.partition(":")
    if kind == "v":
        return bool(item == json.loads(text))
    return kind == "k" and isinstance(item, Mapping) and all(item.get(k) == v for k, v in json.loads(text).items())


_MAX_VALUE_LENGTH: Final = 60
_MISSING_FIELD: Final = object()


def conflict_lines(message: str, applied: Sequence[Body], live: Sequence[Body]) -> tuple[str, ...]:
    """Return a line for each conflict: object, field, the other manager with its value, and gpunode's value.

    The API server's ``message`` names managers and fields, but neither objects nor values.
    """
    live_by_title = {object_title(one): one for one in live}
    return tuple(
        f"{object_title(one)}, {name}: {manager} has {_shorten(present)}, gpunode would set {_shorten(desired)}"
        for one in applied
        if (now := live_by_title.get(object_title(one)))
        for manager, fields in fields_by_manager(now).items()
        for path in sorted(fields)
        for desired, present, name in ((_value_at(one, path), _value_at(now, path), format_field(path)),)
        if desired is not _MISSING_FIELD and desired != present
        if f'"{manager}"' in message and f".{name}\n" in f"{message}\n"
    )


def object_title(body: Body) -> str:
    """Return the object's kind, namespace and name: ``DaemonSet gpu-system/plugin``."""
    metadata = body["metadata"]
    return f"{body['kind']} " + "/".join(metadata[part] for part in ("namespace", "name") if metadata.get(part))


def _shorten(value: Any) -> str:
    written = json.dumps(value, ensure_ascii=False)
    return written if len(written) <= _MAX_VALUE_LENGTH else f"{written[:_MAX_VALUE_LENGTH]}…"


def _value_at(body: Any, path: Path) -> Any:
    """Return the value at a path of ``managedFields``; _MISSING_FIELD if there is none."""
    for step in path:
        kind, _, name = step.partition(":")
        if kind == "f":
            body = body.get(name, _MISSING_FIELD) if isinstance(body, dict) else _MISSING_FIELD
        elif isinstance(body, list):
            keys = json.loads(name)
            by_key = isinstance(keys, dict)
            elements = (
                one for one in body if one == keys or (by_key and isinstance(one, dict) and keys.items() <= one.items())
            )
            body = next(elements, _MISSING_FIELD)
    return body
