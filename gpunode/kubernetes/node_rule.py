"""The nodes' labels and taint as a rule of Node Feature Discovery, for folders that a controller applies. Pure.

Source: docs/usage/customization-guide.md of kubernetes-sigs/node-feature-discovery (0.19): nfd-master sets labels of
any prefix but kubernetes.io, and with ``-enable-taints`` taints whose key has a prefix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gpunode.kubernetes.model import MANAGED_BY, ChartRelease, NodeEdit, RenderedObject
from gpunode.kubernetes.objects import EXTRAS_WAVE
from gpunode.recipe.kubernetes import Taint

# Where the charts have the values of Node Feature Discovery.
_NFD_SUBCHARTS: Final = ("nfd", "node-feature-discovery")
# VGA and 3D controllers: a GPU's sound and USB functions have NVIDIA's vendor id, too.
_GPU_CLASSES: Final = {"vendor": {"op": "In", "value": ["10de"]}, "class": {"op": "In", "value": ["0300", "0302"]}}


def installs_discovery(release: ChartRelease) -> bool:
    """Return whether the chart installs Node Feature Discovery."""
    return any(key in release.values for key in _NFD_SUBCHARTS)


def can_label(key: str) -> bool:
    """Return whether Node Feature Discovery keeps the label's name: it adds its own prefix to one without."""
    return "/" in key


def can_taint(taint: Taint) -> bool:
    """Return whether Node Feature Discovery may set the taint."""
    return "/" in taint.key and not f".{taint.key.partition('/')[0]}".endswith(".kubernetes.io")


def allow_tainting(release: ChartRelease) -> ChartRelease:
    """Return the release with the permission of nfd-master to set taints."""
    values = dict(release.values)
    for key in _NFD_SUBCHARTS:
        if key in values:
            values[key] = {**values[key], "master": {"enableTaints": True}}
    return replace(release, values=values)


def make_feature_rule(edits: Sequence[NodeEdit], taint: Taint) -> RenderedObject | None:
    """Return the rule that sets what ``edits`` set; None if they set nothing.

    What all of ``edits`` share is set on every node with an NVIDIA GPU, also on one that joins later; what differs is
    set by the nodes' names.
    """
    shared = {
        key: value
        for key, value in edits[0].labels.items()
        if can_label(key) and all(edit.labels.get(key) == value for edit in edits)
    }
    rules: list[Mapping[str, Any]] = []
    taints = [{"key": taint.key, "value": taint.value, "effect": taint.effect}] if can_taint(taint) else []
    if shared or taints:
        rule = {
            "name": "gpu-nodes",
            **({"labels": shared} if shared else {}),
            **({"taints": taints} if taints else {}),
            "matchFeatures": [{"feature": "pci.device", "matchExpressions": _GPU_CLASSES}],
        }
        rules.append(rule)
    rules += _rules_by_name(edits, shared)
    if not rules:
        return None
    body = {
        "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
        "kind": "NodeFeatureRule",
        "metadata": {"name": "gpunode", "labels": dict(MANAGED_BY)},
        "spec": {"rules": rules},
    }
    return RenderedObject(body, "With it Node Feature Discovery sets the labels that apply.sh sets.", EXTRAS_WAVE + 1)


def _rules_by_name(edits: Sequence[NodeEdit], shared: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    names: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for edit in edits:
        own = tuple((key, value) for key, value in edit.labels.items() if can_label(key) and key not in shared)
        names.setdefault(own, []).append(edit.node)
    for number, (own, nodes) in enumerate(names.items(), 1):
        if own:
            match = {"feature": "system.name", "matchExpressions": {"nodename": {"op": "In", "value": nodes}}}
            yield {"name": f"nodes-{number}", "labels": dict(own), "matchFeatures": [match]}
