"""Changes of objects in a Kubernetes cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import ClassVar, Final

from gpunode.change.base import Action, BaseChange, Trigger
from gpunode.fast_dataclass import dataclass

_PARTICIPLES: Final[dict[Action, str]] = {"create": "created", "edit": "changed", "delete": "deleted"}


@dataclass(frozen=True, slots=True)
class ObjectChange(BaseChange):
    """A change of the fields that gpunode's field manager owns in an object of a cluster.

    Attributes:
        cluster: the uid of its namespace kube-system, which identifies the cluster.
        api_version: as in the object (``apps/v1``), like ``kind``.
        namespace: empty for a cluster-scoped object.
        before: the fields that gpunode owned, as JSON, of an object that is deleted also those that others set, with
            their owners; None if gpunode owned none.
        after: the fields that it will own; None if it gives them up.
        shared: whether others own fields of the object as well: it is neither created nor deleted with ours.
    """

    kind_name: ClassVar[str] = "object"
    rank: ClassVar[int] = 6

    cluster: str
    api_version: str
    kind: str
    namespace: str
    name: str
    before: str | None
    after: str | None
    shared: bool = False

    @property
    def triggers(self) -> frozenset[Trigger]:  # type: ignore[override]
        """None: no unit of this machine reads a cluster's objects."""
        return frozenset()

    @property
    def key(self) -> tuple[str, str, str]:
        """The object's kind, namespace and name."""
        return self.kind, self.namespace, self.name

    @property
    def subject(self) -> str:
        place = f"{self.namespace}/" if self.namespace else ""
        return f"{self.kind} {place}{self.name}"

    @property
    def action(self) -> Action:
        if self.shared or (self.before and self.after):
            return "edit"
        return "create" if self.after else "delete"

    @property
    def participle(self) -> str:
        return _PARTICIPLES[self.action]

    @property
    def record(self) -> dict[str, object]:
        before, after = (json.loads(fields or "null") for fields in (self.before, self.after))
        return {"cluster": self.cluster, "before": before, "after": after}

    def inverse(self) -> ObjectChange:
        return replace(self, before=self.after, after=self.before)
