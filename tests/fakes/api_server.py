"""An API server in memory that answers the requests that gpunode sends through kubectl.

``tests/e2e/kubernetes/test_fake_server.py`` compares it with the real one, word by word.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tests.fakes.managed_fields import (
    Path,
    as_text,
    fields_of,
    in_order,
    object_of,
    ownable,
    read,
    with_named_parents,
    written,
)

Body: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[str, str, str]
# A manager with its operation, Apply or Update.
Manager: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object, as URLs name it."""

    name: str
    group: str
    namespaced: bool = True

    @property
    def full_name(self) -> str:
        """Return the name with the group, as in messages."""
        return f"{self.name}.{self.group}" if self.group else self.name


RESOURCES: Final[Mapping[str, Resource]] = {
    "Namespace": Resource("namespaces", "", namespaced=False),
    "Node": Resource("nodes", "", namespaced=False),
    "ConfigMap": Resource("configmaps", ""),
    "Event": Resource("events", ""),
    "Pod": Resource("pods", ""),
    "Secret": Resource("secrets", ""),
    "ServiceAccount": Resource("serviceaccounts", ""),
    "ClusterPolicy": Resource("clusterpolicies", "nvidia.com", namespaced=False),
    "DaemonSet": Resource("daemonsets", "apps"),
    "Deployment": Resource("deployments", "apps"),
    "ReplicaSet": Resource("replicasets", "apps"),
    "StatefulSet": Resource("statefulsets", "apps"),
    "GPUCluster": Resource("gpuclusters", "nvidia.com", namespaced=False),
    "NVIDIADriver": Resource("nvidiadrivers", "nvidia.com", namespaced=False),
    "Job": Resource("jobs", "batch"),
    "CronJob": Resource("cronjobs", "batch"),
    "RuntimeClass": Resource("runtimeclasses", "node.k8s.io", namespaced=False),
    "ResourceClaimTemplate": Resource("resourceclaimtemplates", "resource.k8s.io"),
    "ResourceSlice": Resource("resourceslices", "resource.k8s.io", namespaced=False),
}


class ApiError(Exception):
    """The server refused a request.

    Attributes:
        reason: the reason in its answer (``NotFound``, ``Invalid``).
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def key(body: Mapping[str, Any]) -> Key:
    """Return the key by which the server finds an object."""
    metadata = body["metadata"]
    return body["kind"], metadata.get("namespace", "") if RESOURCES[body["kind"]].namespaced else "", metadata["name"]


class ApiServer:
    """Objects, and the owners of their fields.

    Attributes:
        user: the requesting user.
        denied: actions that the user may not perform: ``patch nodes``, or ``patch nodes gpu-1``.
        controllers: called after each write, to act like the cluster's own.
    """

    def __init__(self, uid: str = "cluster-1") -> None:
        self.user = "admin"
        self.denied: set[str] = set()
        self.controllers: list[Callable[[ApiServer], None]] = []
        self._objects: dict[Key, Body] = {}
        self._owners: dict[Key, dict[Manager, frozenset[Path]]] = {}
        self._writes = 0
        self.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system", "uid": uid}})
        self.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})

    def add(self, body: Mapping[str, Any], manager: str = "") -> None:
        """Add an object unchanged, owned by ``manager``, or by none if that is empty."""
        self._write(key(body), copy.deepcopy(dict(body)), {(manager, "Update"): ownable(fields_of(body))})

    def contents(self) -> Iterator[tuple[Key, Body]]:
        """Yield all stored objects, for controllers and tests."""
        yield from sorted(self._objects.items(), key=lambda one: one[0])

    def peek(self, kind: str) -> list[Body]:
        """Return the stored objects of a kind, for controllers and tests."""
        return [body for place, body in self.contents() if place[0] == kind]

    def list(self, kind: str, namespace: str = "") -> Iterator[Body]:
        """Yield the objects of a kind in a namespace, or in all if that is empty."""
        self.authorize("list", kind, namespace)
        for (one, where, name), _ in self.contents():
            if one == kind and namespace in {"", where}:
                yield _shown(self._objects[one, where, name], self._owners[one, where, name])

    def get(self, kind: str, namespace: str, name: str) -> Body:
        """Return an object."""
        self.authorize("get", kind, namespace, name)
        place = self._found(kind, namespace, name)
        return _shown(self._objects[place], self._owners[place])

    def apply(self, body: Body, manager: str, *, force: bool = False, dry_run: bool = False) -> Body:
        """Apply ``body`` to the object for ``manager``, by server-side apply."""
        place = key(body)
        self.authorize("patch", *place)
        former = self._objects.get(place)
        if former is None:
            self.authorize("create", place[0], place[1])
        self._check_namespace(place)
        live, wanted = fields_of(former) if former else {}, fields_of(body)
        owners = dict(self._owners.get(place, {}))
        me, mine = (manager, "Apply"), ownable(wanted)
        former_mine = owners.pop(me, frozenset())
        changed = {path for path in mine if path not in live or live[path] != wanted[path]}
        if conflicts := [
            (who, path) for who, theirs in owners.items() for path in sorted(theirs & changed, key=in_order)
        ]:
            if not force:
                raise ApiError("Conflict", _conflict(conflicts, body["apiVersion"]))
            owners = {who: theirs - changed for who, theirs in owners.items()}
        _check_uid(place, body, former)
        kept = with_named_parents(mine.union(*owners.values()))
        gone = {path for path in former_mine if path not in kept}
        left = {path: value for path, value in live.items() if not _is_within(path, gone)}
        return self._write(place, object_of({**left, **wanted}), {**owners, me: mine}, dry_run=dry_run)

    def create(self, body: Body, manager: str) -> Body:
        """Make a new object."""
        place = key(body)
        self.authorize("create", place[0], place[1])
        self._check_namespace(place)
        resource = RESOURCES[place[0]]
        if place in self._objects:
            raise ApiError("AlreadyExists", f'{resource.full_name} "{place[2]}" already exists')
        self._admit(body)
        return self._write(place, body, {(manager, "Update"): ownable(fields_of(body))})

    def update(self, former: Body, body: Body, manager: str) -> Body:
        """Replace the object by ``body``, made from ``former``; ``manager`` owns the changed fields."""
        place = key(former)
        self.authorize("patch", *place)
        owners = self._owners[place]
        if body["metadata"].get("managedFields") != former["metadata"].get("managedFields"):
            entries = body["metadata"].get("managedFields", [])
            owners = {(one["manager"], one["operation"]): frozenset(read(one["fieldsV1"])) for one in entries}
        old, new = fields_of(_stored(former)), fields_of(_stored(body))
        changed = ownable(path for path, value in new.items() if path not in old or old[path] != value)
        lost = changed | ownable(path for path in old if path not in new)
        me = (manager, "Update")
        owners = {who: theirs - lost for who, theirs in owners.items()}
        return self._write(place, _stored(body), {**owners, me: owners.get(me, frozenset()) | changed})

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object and those it owns or contains; one with finalizers stays, marked, with its namespace."""
        self.authorize("delete", kind, namespace, name)
        place = self._found(kind, namespace, name)
        uid = self._objects[place]["metadata"]["uid"]
        gone: dict[Key, Body] = {}
        for other, body in self._objects.items():
            owned = uid in {one.get("uid") for one in body["metadata"].get("ownerReferences", [])}
            if other == place or owned or (kind == "Namespace" and other[1] == name):
                gone[other] = body["metadata"]
        is_kept = any(metadata.get("finalizers") for metadata in gone.values())
        for other, metadata in gone.items():
            if metadata.get("finalizers") or (is_kept and other == place):
                metadata.setdefault("deletionTimestamp", "2026-11-28T06:00:00Z")
                continue
            self._objects.pop(other)
            self._owners.pop(other, None)
        self._act()

    def may(self, verb: str, resource: str, name: str = "") -> bool:
        """Return whether the user may perform the action."""
        return not {f"{verb} {resource}", f"{verb} {resource} {name}"} & self.denied

    def authorize(self, verb: str, kind: str, namespace: str = "", name: str = "") -> None:
        """Refuse an action that the user may not perform."""
        if not self.user:
            raise ApiError("Unauthorized", "Unauthorized")
        resource = RESOURCES[kind]
        if self.may(verb, resource.name, name):
            return
        what = f'{resource.full_name} "{name}"' if name else resource.full_name
        namespace = name if kind == "Namespace" else namespace
        where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
        asked = f'cannot {verb} resource "{resource.name}" in API group "{resource.group}" {where}'
        raise ApiError("Forbidden", f'{what} is forbidden: User "{self.user}" {asked}')

    def _found(self, kind: str, namespace: str, name: str) -> Key:
        if (kind, namespace, name) not in self._objects:
            raise ApiError("NotFound", f'{RESOURCES[kind].full_name} "{name}" not found')
        return kind, namespace, name

    def _write(
        self, place: Key, body: Body, owners: Mapping[Manager, frozenset[Path]], *, dry_run: bool = False
    ) -> Body:
        former = self._objects.get(place)
        _validate(body, former)
        metadata = body["metadata"]
        self._writes += 1
        generation = (former or {}).get("metadata", {}).get("generation", 0)
        has_new_spec = former is None or former.get("spec") != body.get("spec")
        metadata.setdefault("uid", f"uid-{self._writes}")
        metadata.setdefault("creationTimestamp", "2026-11-28T06:00:00Z")
        metadata |= {"resourceVersion": str(self._writes), "generation": generation + has_new_spec}
        kept = {who: fields for who, fields in owners.items() if fields and who[0]}
        if dry_run:
            return _shown(body, kept)
        self._objects[place], self._owners[place] = body, kept
        answer = _shown(body, kept)
        self._act()
        return answer

    def _act(self) -> None:
        for controller in self.controllers:
            controller(self)

    def _check_namespace(self, place: Key) -> None:
        kind, namespace, name = place
        if not RESOURCES[kind].namespaced:
            return
        where = self._objects.get(("Namespace", "", namespace))
        if where is None:
            raise ApiError("NotFound", f'namespaces "{namespace}" not found')
        if "deletionTimestamp" in where["metadata"] and place not in self._objects:
            raise ApiError(
                "Forbidden",
                f'{RESOURCES[kind].full_name} "{name}" is forbidden: unable to create new content in namespace '
                f"{namespace} because it is being terminated",
            )

    def _admit(self, body: Body) -> None:
        """Refuse a pod whose RuntimeClass does not exist."""
        name = body.get("spec", {}).get("runtimeClassName") if body["kind"] == "Pod" else None
        if name and ("RuntimeClass", "", name) not in self._objects:
            pod = body["metadata"]["name"]
            raise ApiError("Forbidden", f'pods "{pod}" is forbidden: pod rejected: RuntimeClass "{name}" not found')


def _shown(body: Body, owners: Mapping[Manager, frozenset[Path]]) -> Body:
    """Return the object with its ``managedFields``."""
    common = {"apiVersion": body["apiVersion"], "fieldsType": "FieldsV1"}
    entries = [
        {"manager": manager, "operation": operation, **common, "fieldsV1": written(fields)}
        for (manager, operation), fields in sorted(owners.items(), key=lambda one: one[0][1])
    ]
    return copy.deepcopy({**body, "metadata": {**body["metadata"], "managedFields": entries}})


def _stored(body: Body) -> Body:
    """Return the object without the fields that only the server sets."""
    metadata = {name: value for name, value in body["metadata"].items() if name != "managedFields" and value != {}}
    return {**body, "metadata": metadata}


def _is_within(path: Path, gone: set[Path]) -> bool:
    return any(path[: at + 1] in gone for at in range(len(path)))


def _check_uid(place: Key, body: Body, former: Body | None) -> None:
    asked, what = body["metadata"].get("uid"), f'{RESOURCES[place[0]].full_name} "{place[2]}"'
    if asked and former is None:
        why = f"uid mismatch: the provided object specified uid {asked}, and no existing object was found"
        raise ApiError("Conflict", f"Operation cannot be fulfilled on {what}: {why}")
    if asked and former and former["metadata"]["uid"] != asked:
        raise _invalid(body, [f"metadata.uid: Invalid value: {json.dumps(asked)}: field is immutable"])


def _conflict(conflicts: list[tuple[Manager, Path]], version: str) -> str:
    found: dict[str, list[str]] = {}
    for (manager, operation), path in conflicts:
        using = f" using {version}" if operation == "Update" else ""
        found.setdefault(f'"{manager}"{using}', []).append(as_text(path))
    many = sum(map(len, found.values()))
    head = f"Apply failed with {many} conflict{'s' if many > 1 else ''}: "
    if many == 1:
        return head + "".join(f"conflict with {who}: {paths[0]}" for who, paths in found.items())
    lines = ((f"conflicts with {who}:", *(f"- {one}" for one in paths)) for who, paths in sorted(found.items()))
    return head + "\n".join(line for few in lines for line in few)


def _validate(body: Body, former: Body | None) -> None:
    """Refuse an object that lacks required fields or changes immutable ones."""
    faults = []
    if body["kind"] == "DaemonSet":
        spec: Body = body.get("spec") or {}
        selector, template = spec.get("selector"), spec.get("template") or {}
        labels = template.get("metadata", {}).get("labels")
        if former and selector != former["spec"]["selector"]:
            faults.append(f"spec.selector: Invalid value: {json.dumps(selector)}: field is immutable")
        if not labels or not (selector or {}).get("matchLabels", {}).items() <= labels.items():
            said = "`selector` does not match template `labels`"
            faults.append(f"spec.template.metadata.labels: Invalid value: {json.dumps(labels)}: {said}")
        if not template.get("spec", {}).get("containers"):
            faults.append("spec.template.spec.containers: Required value")
    if body["kind"] == "RuntimeClass":
        handler = body.get("handler", "")
        if not handler:
            faults.append("handler: Required value")
        if former and handler != former["handler"]:
            faults.append(f"handler: Invalid value: {json.dumps(handler)}: field is immutable")
    if faults:
        raise _invalid(body, faults)


def _invalid(body: Body, faults: Sequence[str]) -> ApiError:
    listed = faults[0] if len(faults) == 1 else "".join(f"\n* {one}" for one in faults)
    return ApiError("Invalid", f'The {body["kind"]} "{body["metadata"]["name"]}" is invalid: {listed}')
