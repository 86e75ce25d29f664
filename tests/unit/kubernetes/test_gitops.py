"""Objects that Argo CD, Flux and kustomize read from git: as their controllers define them, without apply.sh."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from gpunode import builtin
from gpunode.errors import RecipeError, Refused
from gpunode.kubernetes.model import RenderedCluster
from gpunode.kubernetes.render import GITOPS_FORMS, RenderFormat, render_cluster
from gpunode.kubernetes.render_formats import make_files
from gpunode.recipe.toml import parse
from tests.unit.kubernetes.clusters import CLUSTERS
from tests.unit.kubernetes.test_render import CASES, documents, unknown_keys

SCHEMAS = {
    kind: Draft202012Validator(schema)
    for kind, schema in yaml.safe_load((Path(__file__).parent / "gitops_schemas.yaml").read_text()).items()
}
GITOPS = [case for case in CASES if case.values[2] in GITOPS_FORMS and case.values[1] in {"eight", "fleet", "k3s"}]
REMOTE = (
    '[kubernetes.argocd]\nproject = "gpus"\nnamespace = "argo"\ncluster = "prod"\n'
    'repository = "git@git.example.org:infra/clusters.git"\npath = "prod/gpu-stack"\nrevision = "main"\n'
)


def render(text: str, cluster: str, form: RenderFormat) -> tuple[RenderedCluster, dict[str, str]]:
    """Return the objects and files of a recipe."""
    found = render_cluster(parse(f"schema = 1\n{text}", "mine.toml", builtin.load_recipe_text), CLUSTERS[cluster], form)
    return found, dict(make_files(found, form))


def kind_of(document: dict[str, Any]) -> str:
    return f"{document.get('apiVersion')} {document.get('kind')}"


def referenced_files(made: dict[str, str], path: str = "kustomization.yaml") -> set[str]:
    """Return the files that kustomize reads, from this file on."""
    body = yaml.safe_load(made[path])
    generated = {one.partition("=")[2] for maker in body.get("configMapGenerator", ()) for one in maker["files"]}
    return {*body["resources"], *generated}


@pytest.mark.parametrize(("name", "cluster", "form"), GITOPS)
def test_gitops_objects_match_their_custom_resource_schemas(name: str, cluster: str, form: RenderFormat) -> None:
    _, made = render(f'extends = "{name}"\n{REMOTE if cluster == "fleet" else ""}', cluster, form)
    every = [one for one in documents(made) if kind_of(one) in SCHEMAS]
    assert [error.message for one in every for error in SCHEMAS[kind_of(one)].iter_errors(one)] == []
    applied = {"kustomize": "Kustomization", "argocd": "Application", "flux": "HelmRelease"}[form]
    assert any(one["kind"] == applied for one in every)


@pytest.mark.parametrize(("name", "cluster", "form"), GITOPS)
def test_controller_applies_every_file_but_the_test_pod(name: str, cluster: str, form: RenderFormat) -> None:
    found, made = render(f'extends = "{name}"\n', cluster, form)
    taken = referenced_files(made)
    assert taken <= made.keys()
    if form == "flux":
        assert taken == {"flux.yaml"}
        paths = [one["spec"]["path"] for one in yaml.safe_load_all(made["flux.yaml"])]
        taken |= {path for path in made if f"./gpu-stack/{path.partition('/')[0]}" in paths}
        assert [one["spec"].get("dependsOn") for one in yaml.safe_load_all(made["flux.yaml"])] == [
            None,
            *([{"name": f"gpu-stack-{path.rpartition('/')[2]}"}] for path in paths[:-1]),
        ]
    left = made.keys() - taken - {"kustomization.yaml", "test-pod.yaml", "apply.sh", "README.md"}
    assert left == set()
    charts = {one["name"] for one in yaml.safe_load(made["kustomization.yaml"]).get("helmCharts", ())}
    assert charts == ({one.chart for one in found.releases} if form == "kustomize" else set())


def test_kustomize_hashes_the_name_of_the_plugin_configuration() -> None:
    """It rewrites a reference only if name and namespace match the generator's."""
    found, made = render('extends = "k8s-containerd"', "eight", "kustomize")
    (generator,) = yaml.safe_load(made["kustomization.yaml"])["configMapGenerator"]
    (plugin,) = (one.body for one in found.objects if one.kind == "DaemonSet")
    volumes = {one["name"]: one for one in plugin["spec"]["template"]["spec"]["volumes"]}
    assert volumes["config"]["configMap"]["name"] == generator["name"]
    assert plugin["metadata"]["namespace"] == generator["namespace"]
    (entry,) = generator["files"]
    key, _, path = entry.partition("=")
    mounted = {one["name"]: one["value"] for one in plugin["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert mounted["CONFIG_FILE"].endswith(f"/{key}")
    assert yaml.safe_load(made[path])["version"] == "v1"


def test_sync_waves_are_on_objects_and_not_in_pod_templates() -> None:
    """A wave in a pod template would restart the pods when it changes."""
    for form in ("kustomize", "argocd"):
        for name in ("k8s-containerd", "k8s-mps", "gpu-operator"):
            _, made = render(f'extends = "{name}"', "eight", form)
            assert "commonAnnotations" not in made["kustomization.yaml"]
            for path in referenced_files(made) - {"plugin-config.yaml"}:
                (one,) = yaml.safe_load_all(made[path])
                wave = one["metadata"]["annotations"]["argocd.argoproj.io/sync-wave"]
                assert int(wave) < 0 or one["kind"] == "NodeFeatureRule"
                assert "sync-wave" not in str(one.get("spec", {}).get("template"))


def test_kustomize_skips_delete_hooks_of_charts() -> None:
    """helm template prints hooks like other objects: Node Feature Discovery's post-delete Job removes its labels."""
    for name, skipped in (("gpu-operator", True), ("k8s-mps", True), ("hami", False), ("dra", True)):
        _, made = render(f'extends = "{name}"', "eight", "kustomize")
        (chart,) = yaml.safe_load(made["kustomization.yaml"])["helmCharts"]
        assert (chart["skipHooks"], chart["includeCRDs"]) == (skipped, True), name


def test_node_feature_rule_sets_the_labels_and_taint_of_apply() -> None:
    taint = '[kubernetes.taint]\nkey = "nvidia.com/gpu"\nvalue = "present"\n'
    found, _ = render(f'extends = "k8s-mps"\n{taint}[kubernetes.labels]\n"example.org/team" = "a"', "eight", "argocd")
    (rule,) = (one.body for one in found.objects if one.kind == "NodeFeatureRule")
    (every,) = rule["spec"]["rules"]
    assert every["labels"] == found.nodes[0].labels
    assert every["taints"] == [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
    (release,) = found.releases
    assert release.values["nfd"]["master"] == {"enableTaints": True}
    assert unknown_keys(release) == []
    for form in ("manifests", "helm"):
        found, _ = render(f'extends = "k8s-mps"\n{taint}', "eight", form)
        assert "NodeFeatureRule" not in {one.kind for one in found.objects}
        assert "enableTaints" not in str(found.releases)


def test_label_without_a_prefix_is_set_by_kubectl() -> None:
    """Node Feature Discovery would add its own prefix."""
    found, made = render('extends = "k8s-mps"\n[kubernetes.labels]\npool = "a100"', "eight", "kustomize")
    assert "pool" not in str([one.body for one in found.objects if one.kind == "NodeFeatureRule"])
    assert "kubectl label node gpu-01 pool=a100" in made["README.md"]


def test_labels_that_differ_between_nodes_match_by_node_name() -> None:
    text = 'extends = "gpu-operator"\n[kubernetes.configs.big]\nmodel = "B200"\nmode = "time-slicing"\nreplicas = 2\n'
    found, _ = render(text + '[kubernetes.labels]\n"example.org/team" = "a"', "fleet", "flux")
    (rule,) = (one.body for one in found.objects if one.kind == "NodeFeatureRule")
    shared, *own = rule["spec"]["rules"]
    assert shared["labels"] == {"example.org/team": "a"}
    by_node = {
        node: one["labels"] for one in own for node in one["matchFeatures"][0]["matchExpressions"]["nodename"]["value"]
    }
    assert {edit.node: edit.labels for edit in found.nodes} == {
        node: {**shared["labels"], **labels} for node, labels in by_node.items()
    }


def test_taint_forbidden_to_node_feature_discovery_is_set_by_kubectl() -> None:
    for key in ("gpu", "node.kubernetes.io/gpu"):
        found, made = render(f'extends = "k8s-mps"\n[kubernetes.taint]\nkey = "{key}"', "eight", "kustomize")
        assert "taints" not in str([one.body for one in found.objects if one.kind == "NodeFeatureRule"])
        assert "enableTaints" not in str(found.releases)
        assert f"kubectl taint node gpu-01 {key}:NoSchedule" in made["README.md"]


def test_remote_argo_cd_applies_plain_objects_by_an_application() -> None:
    _, made = render(f'extends = "gpu-operator"\n{REMOTE}', "eight", "argocd")
    assert referenced_files(made) == {"applications/gpu-objects.yaml", "applications/gpu-operator.yaml"}
    applications = {one["metadata"]["name"]: one for one in documents(made) if one.get("kind") == "Application"}
    assert {one["metadata"]["namespace"] for one in applications.values()} == {"argo"}
    assert {one["spec"]["project"] for one in applications.values()} == {"gpus"}
    assert applications["gpu-operator"]["spec"]["destination"] == {"name": "prod", "namespace": "gpu-operator"}
    objects = applications["gpu-objects"]["spec"]
    assert objects["destination"]["name"] == "prod"
    assert objects["source"]["path"] == "prod/gpu-stack/manifests"
    assert applications["gpu-stack"]["spec"]["destination"]["server"] == "https://kubernetes.default.svc"
    assert 'kubectl --context "$ARGOCD_CONTEXT" apply' in made["apply.sh"]
    assert "-f manifests/" not in made["apply.sh"]


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ('server = "https://a"\ncluster = "b"\nrepository = "https://git.example.org/a"', "both"),
        ('cluster = "b"', "repository"),
        ('server = "https://10.0.0.1:6443"', "repository"),
    ],
)
def test_invalid_argo_cd_destination_is_refused(table: str, what: str) -> None:
    with pytest.raises(Refused, match=what):
        render(f'extends = "gpu-operator"\n[kubernetes.argocd]\n{table}', "eight", "argocd")


@pytest.mark.parametrize(
    "line",
    [
        'argocd.server = "http://a"',
        'argocd.server = "https://a b"',
        'argocd.project = "A\\nb: c"',
        'argocd.repository = "https://user:secret@git.example.org/a"',
        'argocd.repository = "file:///etc"',
        'argocd.path = "../elsewhere"',
        'argocd.path = "/etc"',
        'argocd.revision = "-x"',
        'flux.path = "a/../../b"',
        'flux.source = ""',
        'flux.namespace = "Flux"',
    ],
)
def test_invalid_gitops_names_are_refused(line: str) -> None:
    with pytest.raises(RecipeError):
        render(f'extends = "gpu-operator"\n[kubernetes]\n{line}', "eight", "argocd")


def test_flux_reads_charts_from_oci_registries() -> None:
    _, made = render('extends = "dra"', "eight", "flux")
    repository, release = yaml.safe_load_all(made["releases/dra-driver-nvidia-gpu.yaml"])
    assert (repository["spec"]["type"], repository["spec"]["url"][:6]) == ("oci", "oci://")
    assert release["spec"]["chart"]["spec"]["sourceRef"]["name"] == repository["metadata"]["name"]
    assert release["spec"]["chart"]["spec"]["version"] == "0.4.1"
