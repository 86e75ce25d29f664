"""The kustomization.yaml of a rendered folder. Pure.

Source: api/types/kustomization.go and helmchartargs.go of kubernetes-sigs/kustomize (2026-08-20).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from gpunode.catalog.charts import chart
from gpunode.kubernetes.argocd import annotated
from gpunode.kubernetes.model import Object, Release

PLUGIN_CONFIG_FILE: Final = "plugin-config.yaml"


def kustomization(
    resources: Iterable[str], configs: Sequence[Object] = (), releases: Sequence[Release] = ()
) -> Mapping[str, Any]:
    """Return the kustomization of these files and charts; ``configs`` are generated from ``plugin-config.yaml``."""
    body = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": list(resources)}
    generators = [_generator(one) for one in configs]
    charts = [_helm_chart(one) for one in releases]
    return body | {key: held for key, held in (("configMapGenerator", generators), ("helmCharts", charts)) if held}


def _generator(one: Object) -> Mapping[str, Any]:
    """Return what makes the ConfigMap, with the hash of its content in its name: kustomize rewrites what names it."""
    metadata = annotated(one)["metadata"]
    return {
        "name": one.name,
        "namespace": one.namespace,
        "files": [f"{key}={PLUGIN_CONFIG_FILE}" for key in one.body["data"]],
        "options": {"labels": metadata["labels"], "annotations": metadata["annotations"]},
    }


def _helm_chart(release: Release) -> Mapping[str, Any]:
    return {
        "name": release.chart,
        "repo": release.repository,
        "version": release.version,
        "releaseName": release.name,
        "namespace": release.namespace,
        "includeCRDs": True,
        # kustomize takes a hook for an object like any other: of most charts it would run what cleans up after them.
        "skipHooks": not chart(release.chart).needs_hooks,
        "valuesInline": release.values,
    }
