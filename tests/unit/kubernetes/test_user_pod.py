"""A user's own pod that requests a GPU, and a device plugin that serves it in this way."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpunode import builtin
from gpunode.kubernetes.model import RenderedCluster, RenderedObject
from gpunode.kubernetes.render import RenderFormat, render_cluster
from gpunode.kubernetes.render_formats import make_files
from gpunode.recipe.toml import parse
from tests.unit.kubernetes.clusters import CLUSTERS, RECIPES, node

PAGE = Path(__file__).parents[3] / "docs/how-to/your-own-pod.md"
NEW, OLD = node("new", "2330", 8, reads_cdi=True), node("old", "2330", 8)
MIG = 'strategy = "mixed"\nlayout = "all-1g.10gb"'
CLASS = {"runtimeClassName": "nvidia"}
TAINT = '[kubernetes.taint]\nkey = "nvidia.com/gpu"\nvalue = "present"'
TOLERATION = {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]}
CONTROL_PLANE = f"[kubernetes]\ncontrol_plane = true\n{TAINT}"
BOTH = {
    "tolerations": [
        {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"},
        *TOLERATION["tolerations"],
    ]
}


def render_recipe(text: str, *nodes: Any, form: RenderFormat = "manifests") -> RenderedCluster:
    return render_cluster(parse(f"schema = 1\n{text}", "mine.toml", builtin.load_recipe_text), nodes, form)


def blocks() -> list[dict[str, Any]]:
    """Return the manifests of the page."""
    text = PAGE.read_text()
    return [yaml.safe_load(one) for one in re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]


def contains(whole: Any, part: Any) -> bool:
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and contains(whole[key], part[key]) for key in part)
    if isinstance(part, list):
        return isinstance(whole, list) and len(whole) == len(part) and all(map(contains, whole, part))
    return bool(whole == part)


def only_object(found: RenderedCluster, kind: str) -> RenderedObject:
    (one,) = (one for one in found.objects if one.kind == kind)
    return one


def extends(name: str, more: str = "") -> str:
    return f'extends = "{name}"\n{more}'


@pytest.mark.parametrize(
    ("text", "nodes", "needs", "why"),
    [
        (extends("k8s-containerd"), (NEW,), {}, "by CDI (Kubernetes 1.29 or later)"),
        (extends("k8s-containerd"), (OLD,), CLASS, "the container runtime of old reads no CDI devices"),
        (extends("k8s-containerd"), (NEW, OLD), CLASS, "the container runtime of old reads no CDI devices"),
        (extends("k8s-containerd"), (replace(OLD, reads_cdi=None),), CLASS, "unless captures (--node) show"),
        (extends("k8s-containerd"), (replace(NEW, toolkit=False),), CLASS, "only with runtimeClassName"),
        (extends("k8s-containerd", "[runtime]\ncdi = false"), (NEW,), CLASS, "only with runtimeClassName"),
        (extends("k8s-containerd", "[runtime]\nset_as_default = true"), (OLD,), {}, "nvidia is the default runtime"),
        (extends("k8s-containerd", '[kubernetes.versions]\ndevice_plugin = "0.14.3"'), (NEW,), CLASS, "only with"),
        (extends("k8s-containerd", TAINT), (NEW,), TOLERATION, "by its limits alone"),
        (extends("k8s-containerd", CONTROL_PLANE), (NEW,), BOTH, "by its limits alone"),
        (extends("k8s-time-slicing"), (NEW,), {}, "by CDI"),
        (extends("k8s-mps"), (OLD,), CLASS, "of old"),
        (extends("gpu-operator"), (NEW,), {}, "by CDI"),
        (extends("gpu-operator"), (NEW, OLD), CLASS, "of old"),
        (extends("hami"), (OLD,), {}, "HAMi's webhook adds the RuntimeClass"),
        (extends("dra"), (OLD,), {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "NAME"}]}, "claim"),
        # docker's default runtime is not that of the containerd within kind's nodes.
        (extends("kind"), (NEW,), CLASS, "only with runtimeClassName: nvidia"),
    ],
)
def test_runtime_class_is_required_only_without_cdi_or_default(
    text: str, nodes: Any, needs: dict[str, Any], why: str
) -> None:
    (own,) = render_recipe(text, *nodes).user_pods
    assert {key: value for key, value in own.spec.items() if key != "containers"} == needs
    assert why in own.why


def classes(found: RenderedCluster) -> dict[str, str]:
    """Return the RuntimeClass that a pod must name, by the resource that it requests."""
    limits = [(own, own.spec["containers"][0]["resources"]["limits"]) for own in found.user_pods]
    return {resource: own.spec.get("runtimeClassName", "") for own, asked in limits for resource in asked}


@pytest.mark.parametrize(
    ("recipe", "table", "expected"),
    [
        # A pod may run on either node, so the node without CDI decides.
        ("k8s-time-slicing", "", {"nvidia.com/gpu": "nvidia"}),
        ("k8s-time-slicing", 'mode = "mps"\nreplicas = 2', {"nvidia.com/gpu": "nvidia"}),
        ("k8s-containerd", MIG, {"nvidia.com/mig-1g.10gb": "", "nvidia.com/gpu": "nvidia"}),
        # Its plugin passes GPUs in the same way on both nodes.
        ("gpu-operator", MIG, {"nvidia.com/mig-1g.10gb": "nvidia", "nvidia.com/gpu": "nvidia"}),
    ],
)
def test_all_nodes_with_a_resource_decide_what_its_pods_need(recipe: str, table: str, expected: dict[str, str]) -> None:
    nodes = replace(NEW, name="a-new"), node("b-old", "1eb8", 1)
    found = render_recipe(extends(recipe, f'[kubernetes.configs.new]\nmodel = "H100"\n{table}'), *nodes)
    assert classes(found) == expected
    for text in (make_files(found, "manifests")["apply.sh"], make_files(found, "manifests")["README.md"]):
        assert all(f"{resource}: 1" in text for resource in expected)
        assert len(expected) == 1 or all(f"Your own pod that asks for {one}" in text for one in expected)


def test_nodes_of_one_configuration_may_offer_different_mig_profiles() -> None:
    nodes = replace(NEW, name="a-new"), node("b-old", "2901", 8)
    found = render_recipe(extends("k8s-mig"), *nodes)
    assert classes(found) == {"nvidia.com/mig-1g.10gb": "", "nvidia.com/mig-1g.23gb": "nvidia"}
    new, old = (own.why for own in found.user_pods)
    assert new.startswith("that asks for nvidia.com/mig-1g.10gb or nvidia.com/mig-2g.20gb or nvidia.com/mig-3g.40gb ")
    assert all(resource in old for resource in found.expected["b-old"])


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("name", RECIPES)
def test_the_test_pod_has_the_same_spec_as_the_suggested_user_pod(name: str, cluster: str) -> None:
    if name in {"k8s-mig", "k8s-mps"} and cluster in {"one", "k3s", "microk8s"}:
        pytest.skip("no such GPUs, or no such chart")
    found = render_cluster(builtin.read_recipe(name), CLUSTERS[cluster])
    spec, own = found.test_pod[-1].body["spec"], found.user_pods[0].spec
    assert spec.keys() - {"restartPolicy", "tolerations"} == own.keys()
    assert spec.get("runtimeClassName") == own.get("runtimeClassName")
    assert spec["containers"][0].keys() == {"name", "image", "resources"}
    assert spec["containers"][0]["resources"] == own["containers"][0]["resources"]


def test_plugin_offers_cdi_and_envvar_where_one_node_reads_cdi() -> None:
    found = render_recipe(extends("k8s-containerd"), NEW, OLD)
    settings = yaml.safe_load(only_object(found, "ConfigMap").body["data"]["config.yaml"])
    assert settings["flags"]["plugin"] == {"deviceListStrategy": ["envvar", "cdi-cri"]}
    pod = only_object(found, "DaemonSet").body["spec"]["template"]["spec"]
    places = {one["name"]: one["hostPath"]["path"] for one in pod["volumes"] if "hostPath" in one}
    assert (places["cdi-root"], places["driver-root"]) == ("/var/run/cdi", "/")
    mounts = {one["name"]: one for one in pod["containers"][0]["volumeMounts"]}
    assert mounts["driver-root"] == {"name": "driver-root", "mountPath": "/driver-root", "readOnly": True}
    # It requests the driver itself by its class.
    assert pod["runtimeClassName"] == "nvidia"


def test_plugin_without_cdi_nodes_mounts_nothing_more() -> None:
    found = render_recipe(extends("k8s-containerd"), OLD)
    assert "plugin" not in yaml.safe_load(only_object(found, "ConfigMap").body["data"]["config.yaml"])["flags"]
    pod = only_object(found, "DaemonSet").body["spec"]["template"]["spec"]
    assert [one["name"] for one in pod["volumes"]] == ["device-plugins", "config"]


def test_chart_values_enable_cdi_like_the_manifests() -> None:
    (release,) = render_recipe(extends("k8s-mps"), NEW, OLD).releases
    assert release.values["nvidiaDriverRoot"] == "/"
    (text,) = release.values["config"]["map"].values()
    assert yaml.safe_load(text)["flags"]["plugin"] == {"deviceListStrategy": ["envvar", "cdi-cri"]}
    (release,) = render_recipe(extends("k8s-mps"), OLD).releases
    assert "nvidiaDriverRoot" not in release.values


def test_static_cpu_manager_keeps_device_specs_beside_cdi() -> None:
    found = render_recipe(extends("k8s-containerd"), replace(NEW, static_cpus=True))
    flags = yaml.safe_load(only_object(found, "ConfigMap").body["data"]["config.yaml"])["flags"]
    assert flags["plugin"] == {"passDeviceSpecs": True, "deviceListStrategy": ["envvar", "cdi-cri"]}


def test_pods_in_the_docs_match_what_gpunode_suggests() -> None:
    plain, with_class, of_hami = blocks()
    for text, nodes, page in (
        (extends("k8s-containerd"), (NEW,), plain),
        (extends("k8s-containerd", CONTROL_PLANE), (OLD,), with_class),
    ):
        (own,) = render_recipe(text, *nodes).user_pods
        assert contains(page["spec"], own.spec)
        assert page["spec"].keys() - {"restartPolicy"} == own.spec.keys()
    (own,) = render_recipe(extends("hami"), OLD).user_pods
    limits = own.spec["containers"][0]["resources"]["limits"]
    assert limits.keys() < of_hami["spec"]["containers"][0]["resources"]["limits"].keys()


def test_pods_in_the_docs_pass_the_api_schema() -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    for one in blocks():
        for version in ("1.33", "1.36"):
            validate(one, version, strict=True)
