"""The API servers of the oldest and the newest version accept every kind of rendered object."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gpunode import builtin
from gpunode.kubernetes.render import render_cluster
from gpunode.kubernetes.render_formats import make_files
from tests.unit.kubernetes.clusters import CLUSTERS, RECIPES

pytest.importorskip("kubernetes_validate")
OLDEST, NEWEST = "1.33", "1.36"


def objects() -> dict[str, dict[str, Any]]:
    """Return each different object once, except the kinds of Argo CD and kustomize, which have no schema here."""
    found: dict[str, dict[str, Any]] = {}
    for name in RECIPES:
        for cluster in ("eight", "microk8s") if name != "k8s-mps" else ("eight",):
            made = make_files(render_cluster(builtin.read_recipe(name), CLUSTERS[cluster]), "manifests")
            texts = [text for path, text in made.items() if path.endswith(".yaml") and not path.startswith("helm/")]
            for one in (one for text in texts for one in yaml.safe_load_all(text)):
                found[f"{one['kind']} of {name}"] = one
    return found


@pytest.mark.parametrize("body", objects().values(), ids=objects())
def test_rendered_object_passes_the_api_schema(body: dict[str, Any]) -> None:
    import kubernetes_validate

    # Dynamic Resource Allocation is stable from 1.34 on.
    versions = [NEWEST] if body["apiVersion"].startswith("resource.k8s.io/") else [OLDEST, NEWEST]
    for version in versions:
        kubernetes_validate.validate(body, version, strict=True)


def test_api_schemas_are_strict() -> None:
    import kubernetes_validate

    body = next(one for name, one in objects().items() if name.startswith("DaemonSet"))
    body["spec"]["template"]["spec"]["runtimeClas"] = "nvidia"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(body, NEWEST, strict=True)
