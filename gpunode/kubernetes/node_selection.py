"""Which nodes a pod's node selector and required affinity let it run on. Pure.

Source: the Kubernetes documentation, "Assigning Pods to Nodes".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

Body: TypeAlias = Mapping[str, Any]
# Labels that Node Feature Discovery, NVIDIA's software or HAMi's users set any day.
_COMING: Final = ("feature.node.kubernetes.io/", "nvidia.com/")
_COMING_LABELS: Final = frozenset({"gpu"})


def may_run(pod_spec: Body, name: str, labels: Mapping[str, str]) -> bool:
    """Return whether such a pod may run on the node, now or once the node's GPUs are discovered.

    What cannot be judged counts as yes.

    Args:
        pod_spec: the pod's ``spec``.
        name: the node's.
        labels: the node's.
    """
    selector = pod_spec.get("nodeSelector") or {}
    affinity = (pod_spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = required.get("nodeSelectorTerms")
    return all(_holds(labels, key, "In", [value]) for key, value in selector.items()) and (
        terms is None or any(_term_holds(term, name, labels) for term in terms)
    )


def _term_holds(term: Body, name: str, labels: Mapping[str, str]) -> bool:
    by_label, by_field = term.get("matchExpressions") or (), term.get("matchFields") or ()
    return bool(by_label or by_field) and all(
        _holds(there, one["key"], one["operator"], one.get("values") or ())
        for there, expressions in ((labels, by_label), ({"metadata.name": name}, by_field))
        for one in expressions
    )


def _holds(labels: Mapping[str, str], key: str, operator: str, values: Sequence[str]) -> bool:
    if key.startswith(_COMING) or key in _COMING_LABELS:
        return True
    match operator:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case _:
            return True
