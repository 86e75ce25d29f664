"""The real kustomize, in kubectl, builds every folder rendered for it, Argo CD and Flux."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpunode import builtin
from gpunode.kubernetes.render import RenderFormat, render_cluster
from gpunode.kubernetes.render_formats import make_files
from tests.needs import asset, lacking_assets
from tests.unit.kubernetes.clusters import CLUSTERS

KUBECTL = asset("kubectl") or "kubectl"
# A stand-in for helm: it records its arguments, provides an empty chart and renders an object that names the values.
HELM = """#!/bin/sh
echo "$@" >> "$HELM_LOG"
case $1 in
version) echo v3.18.0 ;;
pull)
    case $5 in oci:*) chart=$4/${5##*/} ;; *) chart=$4/$7 ;; esac
    mkdir -p "$chart" && echo '{}' > "$chart/values.yaml" ;;
template) printf 'apiVersion: v1\\nkind: Secret\\nmetadata:\\n  name: %s\\n  namespace: %s\\n' "$2" "$5" ;;
esac
"""


def has_helm_charts() -> bool:
    """True if this kubectl is new enough to build charts (1.21)."""
    command = [KUBECTL, "kustomize", "--help"]
    return "--enable-helm" in subprocess.run(command, capture_output=True, text=True, check=False).stdout


pytestmark = [
    pytest.mark.skipif(bool(lacking_assets("kubectl")), reason=lacking_assets("kubectl")),
    pytest.mark.skipif(
        not lacking_assets("kubectl") and not has_helm_charts(),
        reason="needs kubectl 1.21 or later: set KUBEBUILDER_ASSETS to a folder that holds it",
    ),
]


def build(folder: Path, made: Mapping[str, str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the objects that kustomize builds from these files, and the calls of helm."""
    for path, text in {**made, "bin/helm": HELM}.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    (folder / "bin" / "helm").chmod(0o755)
    log = folder / "helm.log"
    environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "HELM_LOG": str(log)}
    command = [KUBECTL, "kustomize", "--enable-helm", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    calls = log.read_text().splitlines() if log.exists() else []
    return list(yaml.safe_load_all(done.stdout)), calls


@pytest.mark.parametrize("form", ["kustomize", "argocd", "flux"])
@pytest.mark.parametrize("name", ["k8s-time-slicing", "k8s-mps", "gpu-operator", "hami", "dra"])
def test_kustomize_builds_the_rendered_folder(tmp_path: Path, name: str, form: RenderFormat) -> None:
    found = render_cluster(builtin.read_recipe(name), CLUSTERS["eight"], form)
    objects, calls = build(tmp_path, make_files(found, form))
    names = {(one["kind"], one["metadata"]["name"]) for one in objects}
    if form == "flux":
        assert {kind for kind, _ in names} == {"Kustomization"}
        return
    plain = {(one.kind, one.name) for one in found.objects if one.kind != "ConfigMap"}
    assert plain <= names
    assert ("Pod", "gpunode-test") not in names
    if form == "argocd":
        assert {name for kind, name in names if kind == "Application"} == {one.name for one in found.releases}
        return
    assert {name for kind, name in names if kind == "Secret"} == {one.name for one in found.releases}
    for release in found.releases:
        pulled = next(call for call in calls if call.startswith("pull"))
        assert release.version in pulled
        assert (
            f"{release.repository}/{release.chart}" if "oci:" in release.repository else release.repository
        ) in pulled


def test_plugin_mounts_the_hashed_configuration_name(tmp_path: Path) -> None:
    """New content gets a new name, so that the plugin's pods restart."""
    seen = set()
    for name in ("k8s-containerd", "k8s-time-slicing"):
        objects, _ = build(
            tmp_path / name,
            make_files(render_cluster(builtin.read_recipe(name), CLUSTERS["eight"], "kustomize"), "kustomize"),
        )
        (config,) = (one for one in objects if one["kind"] == "ConfigMap")
        (plugin,) = (one for one in objects if one["kind"] == "DaemonSet")
        volumes = plugin["spec"]["template"]["spec"]["volumes"]
        assert [one["configMap"]["name"] for one in volumes if "configMap" in one] == [config["metadata"]["name"]]
        assert yaml.safe_load(config["data"]["config.yaml"])["version"] == "v1"
        assert next(one["kind"] for one in objects) == "Namespace"
        seen.add(config["metadata"]["name"])
    assert len(seen) == 2
