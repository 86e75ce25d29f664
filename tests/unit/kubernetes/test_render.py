"""Rendering for a cluster: golden files, and laws for every shipped recipe and every kind of cluster."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from gpunode import builtin
from gpunode import yaml as own_yaml
from gpunode.catalog import mig
from gpunode.catalog.gpus import find_model
from gpunode.errors import Refused
from gpunode.kubernetes.model import HEADER, PLUGIN_CONFIG_LABEL, ChartRelease, ClusterNode, RenderedCluster
from gpunode.kubernetes.render import RenderFormat, render_cluster
from gpunode.kubernetes.render_formats import make_files
from gpunode.recipe import Recipe
from gpunode.recipe.toml import parse
from tests.fakes.examples import sample
from tests.unit.kubernetes.clusters import CLUSTERS, RECIPES, golden, node
from tests.unit.kubernetes.vectors import NOT_OBEYED, OBEYED

FORMS: tuple[RenderFormat, ...] = get_args(RenderFormat)
KEYS = Path(__file__).parent / "chart_keys.csv"
PLUGIN_FILE = Draft202012Validator(json.loads((Path(__file__).parent / "plugin_config.schema.json").read_text()))
# The chart of the device plugin cannot be used on microk8s, and not every GPU has MIG.
IMPOSSIBLE = {("k8s-mps", "microk8s"), *((one, cluster) for one in ("k8s-mig",) for cluster in ("one", "k3s"))}
CASES = [
    pytest.param(one, cluster, form, id=f"{one}-{cluster}-{form}")
    for one in RECIPES
    for cluster in CLUSTERS
    for form in FORMS
    if (one, cluster) not in IMPOSSIBLE
    and not (cluster == "microk8s" and one.startswith("k") and form in {"argocd", "flux", "helm"})
]


def recipe_of(text: str) -> Recipe:
    return parse(f"schema = 1\n{text}", "mine.toml", builtin.load_recipe_text)


def unknown_keys(release: ChartRelease) -> list[str]:
    """Return the keys that the chart does not have: Helm drops them silently."""
    rows = csv.DictReader(line for line in KEYS.read_text().splitlines() if not line.startswith("#"))
    known = tuple(f"{row['key']}." for row in rows if row["chart"] == release.chart)
    return [path for path in paths(release.values) if not f"{path}.".startswith(known)]


def paths(values: Any, above: str = "") -> list[str]:
    if not isinstance(values, dict) or not values:
        return [above]
    return [one for key, held in values.items() for one in paths(held, f"{above}.{key}".lstrip("."))]


def plugin_files(found: RenderedCluster) -> list[str]:
    """Return the device plugin's files, wherever they are."""
    plain = [one.body["data"]["config.yaml"] for one in found.objects if one.kind == "ConfigMap"]
    chart = [one.values.get("config", {}).get("map", {}) for one in found.releases]
    operator = [one.values.get("devicePlugin", {}).get("config", {}).get("data", {}) for one in found.releases]
    return [*plain, *(text for files in (*chart, *operator) for text in files.values())]


def documents(made: dict[str, str] | Any) -> list[dict[str, Any]]:
    texts = (text for path, text in made.items() if path.endswith(".yaml"))
    return [one for text in texts for one in yaml.safe_load_all(text) if one]


def render_builtin(name: str, cluster: str, form: RenderFormat = "manifests") -> RenderedCluster:
    return render_cluster(builtin.read_recipe(name), CLUSTERS[cluster], form)


@pytest.mark.parametrize(("place", "text"), [pytest.param(p, t, id=p.stem) for p, t in golden().items()])
def test_render_matches_its_golden_file(place: Path, text: str) -> None:
    assert text == place.read_text(), "python -m tests.unit.kubernetes.clusters writes the golden files anew"


@pytest.mark.parametrize(("name", "cluster", "form"), CASES)
def test_render_is_valid_yaml_for_only_these_nodes(name: str, cluster: str, form: RenderFormat) -> None:
    found = render_builtin(name, cluster, form)
    made = make_files(found, form)
    every = documents(made)
    nodes = {one.name for one in CLUSTERS[cluster]}
    assert {edit.node for edit in found.nodes} == nodes
    assert not [one for one in every if one.get("kind") == "Node"], (
        "server-side apply would make Nodes that are not there"
    )
    assert [wrong for one in found.releases for wrong in unknown_keys(one)] == []
    assert [wrong for text in plugin_files(found) for wrong in PLUGIN_FILE.iter_errors(yaml.safe_load(text))] == []
    assert all(HEADER in text for text in made.values())
    for one in found.objects:
        assert yaml.safe_load(own_yaml.render_document(one.body)) == one.body
    names = Counter((one.kind, one.namespace, one.name) for one in found.objects)
    assert set(names.values()) <= {1}


@pytest.mark.parametrize(("name", "cluster", "form"), sample(CASES, "order", str, 40))
def test_render_does_not_depend_on_the_order_of_nodes(name: str, cluster: str, form: RenderFormat) -> None:
    wanted = builtin.read_recipe(name)
    one, other = (
        make_files(render_cluster(wanted, nodes, form), form) for nodes in (CLUSTERS[cluster], CLUSTERS[cluster][::-1])
    )
    assert one == other


def test_every_plugin_configuration_is_selected_by_a_label() -> None:
    wanted = recipe_of(
        'extends = "k8s-containerd"\n'
        '[kubernetes.sharing]\nmode = "time-slicing"\nreplicas = 4\n'
        '[kubernetes.configs.big]\nmodel = "B200"\nmode = "mps"\nreplicas = 2\n'
    )
    found = render_cluster(wanted, CLUSTERS["fleet"])
    (release,) = found.releases
    assert {edit.labels[PLUGIN_CONFIG_LABEL] for edit in found.nodes} == set(release.values["config"]["map"])
    assert release.values["config"]["default"] in release.values["config"]["map"]
    assert found.expected == {"gpu-01": {"nvidia.com/gpu": 32}, "gpu-02": {"nvidia.com/gpu": 16}}


@pytest.mark.parametrize(
    ("document", "is_obeyed"),
    [*((one, True) for one in OBEYED.values()), *((one, False) for one in NOT_OBEYED.values())],
    ids=[*OBEYED, *NOT_OBEYED],
)
def test_plugin_config_schema_accepts_what_the_plugin_accepts(document: Any, is_obeyed: bool) -> None:
    assert PLUGIN_FILE.is_valid(document) == is_obeyed


@pytest.mark.parametrize(
    ("text", "cluster", "what", "hint"),
    [
        ("", "one", "does not configure Kubernetes", "[kubernetes]"),
        ('[kubernetes]\nstack = "device-plugin"\n[kubernetes.sharing]\nmode = "mps"', "one", "1 replica", "replicas"),
        ('[kubernetes]\nstack = "device-plugin"\n[kubernetes.sharing]\nreplicas = 2', "one", "mode is none", "mode"),
        (
            'extends = "k8s-mps"\n[kubernetes.mig]\nstrategy = "single"',
            "eight",
            "MPS and MIG exclude each other",
            "time-slicing",
        ),
        ('extends = "k8s-mig"', "one", "no MIG profile of NVIDIA GeForce GTX 1080", "use another recipe"),
        ('extends = "k8s-mig"\n[kubernetes.mig]\nlayout = "all-1g.5gb"', "eight", "no MIG profile 1g.5gb", "1g.10gb"),
        ('extends = "k8s-mig"\n[kubernetes.mig]\nstrategy = "none"', "eight", "needs a strategy", "strategy"),
        ('extends = "k8s-mig"\n[kubernetes.mig]\nstrategy = "single"', "eight", "several sizes", "mixed"),
        (
            'extends = "hami"\n[kubernetes.sharing]\nmode = "mps"',
            "one",
            "HAMi does not use [kubernetes.sharing]",
            "replicas",
        ),
        ('extends = "dra"\n[kubernetes.sharing]\nmode = "mps"\nreplicas = 2', "one", "alpha", "device-plugin"),
        (
            'extends = "dra"\n[kubernetes.configs.x]\nmodel = "T4"',
            "k3s",
            "renders no [kubernetes.configs]",
            "device-plugin",
        ),
        ('extends = "dra"\n[runtime]\ncdi = false', "one", "needs CDI", "cdi = true"),
        ('extends = "k8s-mps"\n[kubernetes.sharing]\nreplicas = 17', "one", "at most 16 MPS clients", "16 or less"),
        ('extends = "k8s-mps"\n[kubernetes.sharing]\nreplicas = 49', "eight", "at most 48 MPS clients", "48 or less"),
        ('extends = "k8s-containerd"\n[kubernetes]\nruntime_class = ""', "one", "would find no GPU", "default = true"),
        ('extends = "gpu-operator"\n[kubernetes]\nruntime_class = "gpu"', "one", "a handler gpu on", '= "nvidia"'),
        ('extends = "k8s-containerd"\n[kubernetes]\nnamespace = "default"', "one", "cannot be default", "leave"),
        ('extends = "k8s-containerd"\n[kubernetes.taint]\nvalue = "x"', "one", "no key", "set key"),
        (
            'extends = "k8s-containerd"\n[kubernetes.labels]\n"nvidia.com/gpu.present" = "false"',
            "one",
            "cannot set",
            "own",
        ),
        (
            'extends = "k8s-containerd"\n[kubernetes.configs.whole]\nmodel = "T4"',
            "k3s",
            "has the name of",
            "another name",
        ),
        ('extends = "podman"\n[kubernetes]\nstack = "device-plugin"', "one", "with podman", "containerd"),
        (
            (
                'extends = "gpu-operator"\nkubernetes.mig.strategy = "single"\n'
                'kubernetes.configs.x = { model = "B200", strategy = "mixed" }'
            ),
            "fleet",
            "differ in their MIG strategy",
            "single or mixed",
        ),
        (
            'extends = "k8s-mps"\n[kubernetes.configs]\na = { model = "GTX" }\nb = { model = "1080" }',
            "one",
            "fits several configurations: a and b",
            "make model in [kubernetes.configs] more exact",
        ),
        ('extends = "k8s-mps"', "microk8s", "cannot be used on microk8s", "gpu-operator"),
        ('extends = "k8s-containerd"\n[kubernetes.configs.x]\nmode = "none"', "one", "has no key model", "model"),
    ],
)  # fmt: skip
def test_impossible_recipe_is_refused_with_a_hint(text: str, cluster: str, what: str, hint: str) -> None:
    with pytest.raises(Refused) as refused:
        render_cluster(recipe_of(text), CLUSTERS[cluster])
    assert what in f"{refused.value.what} {refused.value.why}"
    assert hint in refused.value.hint


def test_incompatible_nodes_are_refused() -> None:
    wanted = builtin.read_recipe("k8s-containerd")
    for nodes, what in (
        ((), "no NVIDIA GPU found"),
        ((node("a", "1b80", 1), node("a", "1b80", 1)), "several captures are of the node a"),
        ((node("a", "1b80", 1, kubelet="k3s"), node("b", "1b80", 1, kubelet="k0s")), "different folders"),
    ):
        with pytest.raises(Refused, match=what):
            render_cluster(wanted, nodes)
    old = node("a", "1b80", 1, driver="550.163.01")
    with pytest.raises(Refused, match=r"550\.163\.01, too old") as refused:
        render_cluster(builtin.read_recipe("dra"), [old])
    # The capture says which driver there is, so another version in the recipe alone is refused again.
    assert f"run setup with it on {old.name}, and name a new capture" in refused.value.hint


def test_node_without_a_gpu_is_named_and_left_out() -> None:
    """Its GPU may have fallen off the bus before the capture was made."""
    nodes = [*CLUSTERS["one"], *(replace(CLUSTERS["one"][0], name=name, gpus=()) for name in ("b", "a"))]
    found = render_cluster(builtin.read_recipe("k8s-containerd"), nodes)
    assert [edit.node for edit in found.nodes] == ["desk"]
    assert found.notes == ("No NVIDIA GPU is in the capture of a, b: left out.",)


@pytest.mark.parametrize(
    ("text", "more", "what", "hint"),
    [
        (
            'extends = "k8s-containerd"',
            {"provider": "gke", "provides": frozenset({"device-plugin"})},
            "a is a GKE node",
            "gpu-sharing-strategy",
        ),
        ('extends = "k8s-containerd"', {"provider": "gke"}, "only the GPU Operator", 'stack = "gpu-operator"'),
        ('extends = "gpu-operator"', {"provider": "openshift"}, "a is an OpenShift node", "OperatorHub"),
        ('extends = "hami"', {"provider": "bottlerocket"}, "a is a Bottlerocket node", "kubelet-device-plugins"),
        (
            'extends = "k8s-containerd"',
            {"provider": "aks", "provides": frozenset({"driver", "device-plugin"})},
            "AKS runs the device plugin on a itself",
            "--gpu-driver none",
        ),
        (
            'extends = "gpu-operator"',
            {"provider": "aks", "provides": frozenset({"driver"})},
            "excludes the GPU Operator",
            "device-plugin",
        ),
        (
            'extends = "k8s-containerd"',
            {"provider": "aks", "provides": frozenset({"driver"})},
            'no runtime "nvidia"',
            'runtime_class = ""',
        ),
    ],
)
def test_node_with_a_provider_plugin_is_refused(text: str, more: dict[str, Any], what: str, hint: str) -> None:
    with pytest.raises(Refused) as refused:
        render_cluster(recipe_of(text), [node("a", "2330", 8, **more)])
    assert what in refused.value.what
    assert hint in refused.value.hint


def test_self_managed_provider_nodes_are_rendered() -> None:
    driver = frozenset({"driver"})
    as_hinted = 'extends = "k8s-containerd"\n[runtime]\nname = "none"\n[kubernetes]\nruntime_class = ""'
    assert "runtimeClassName" not in str(
        render_cluster(recipe_of(as_hinted), [node("a", "2330", 8, provider="aks", provides=driver)])
    )
    for provider in ("eks", "aks", "kind"):
        assert render_cluster(builtin.read_recipe("k8s-containerd"), [node("a", "2330", 8, provider=provider)]).objects
    assert render_cluster(
        builtin.read_recipe("k8s-containerd"), [node("a", "2330", 8, provider="eks", provides=driver)]
    ).objects


def test_operator_uses_the_gke_driver_where_its_plugin_is_opted_out() -> None:
    nodes = [node("a", "2330", 8, provider="gke", toolkit=False)]
    (release,) = render_cluster(builtin.read_recipe("gpu-operator"), nodes).releases
    place = "/home/kubernetes/bin/nvidia"
    assert release.values["driver"] == {"enabled": False}
    assert release.values["toolkit"] == {"enabled": True, "installDir": place}
    assert release.values["hostPaths"] == {"driverInstallDir": place}
    assert release.values["cdi"] == {"enabled": True}
    assert not unknown_keys(release)
    (release,) = render_cluster(builtin.read_recipe("gpu-operator"), [replace(nodes[0], driver="")]).releases
    assert release.values["driver"] == {"enabled": True}


def test_mig_manager_does_not_reset_nodes_without_a_layout() -> None:
    """The chart's default layout is all-disabled; the operator gives it to every node without a label."""
    text = 'extends = "gpu-operator"\n[kubernetes.mig]\nstrategy = "single"\n'
    (release,) = render_cluster(recipe_of(text), CLUSTERS["eight"]).releases
    assert release.values["migManager"] == {"enabled": False}
    (release,) = render_cluster(recipe_of(f'{text}layout = "all-1g.10gb"'), CLUSTERS["eight"]).releases
    assert release.values["migManager"] == {"enabled": True, "config": {"default": ""}}
    own = render_cluster(recipe_of(f'{text}layout = "all-small"'), CLUSTERS["eight"])
    assert [edit.labels for edit in own.nodes] == [{"nvidia.com/mig.config": "all-small"}]
    assert own.expected == {}


def test_operator_leaves_the_namespace_to_gpunode() -> None:
    """With psa.enabled it also labels the namespace itself, which then stays when gpunode removes the rest."""
    found = render_builtin("gpu-operator", "one")
    assert "psa" not in found.releases[0].values
    (namespace,) = (one.body for one in found.objects if one.kind == "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"


def test_operator_disables_components_that_a_node_has() -> None:
    text = 'extends = "gpu-operator"\n[driver]\nversion = "none"\n[toolkit]\nversion = "none"\n'
    text += '[kubernetes]\nregistry = "m"'
    bare, ready = node("a", "2330", 8, driver="", toolkit=False), node("b", "2330", 8)
    (release,) = (found := render_cluster(recipe_of(text), (bare, ready))).releases
    assert release.values["driver"] == {
        "enabled": True,
        "repository": "m/nvidia",
        "manager": {"repository": "m/nvidia/cloud-native"},
    }
    assert release.values["toolkit"] == {"enabled": True, "repository": "m/nvidia/k8s"}
    deploy = "nvidia.com/gpu.deploy."
    assert [edit.labels for edit in found.nodes] == [
        {},
        {f"{deploy}container-toolkit": "false", f"{deploy}driver": "false"},
    ]


def test_operator_uses_cdi_only_where_the_runtime_does() -> None:
    for asked_for in (False, True):
        wanted = recipe_of(f'extends = "gpu-operator"\n[runtime]\ncdi = {str(asked_for).lower()}')
        (release,) = (found := render_cluster(wanted, CLUSTERS["one"])).releases
        assert release.values["cdi"] == {"enabled": asked_for}
        (own,) = found.user_pods
        assert ("runtimeClassName" in own.spec) != asked_for


@pytest.mark.parametrize(
    ("layout", "profile"),
    [
        ("all-1g.10gb", "1g.10gb"),
        ("all-1g.10gb.me", "1g.10gb+me"),
        ("all-1g.24gb-me", "1g.24gb-me"),
        ("all-1g.24gb.me.all", "1g.24gb+me.all"),
        ("all-small", ""),
        ("all-5gb", ""),
        ("all-balanced", ""),
        ("all-disabled", ""),
    ],
)
def test_mig_layout_name_maps_to_its_profile(layout: str, profile: str) -> None:
    assert mig.profile_of_layout(layout) == profile
    if profile:
        assert mig.layout_of(profile) == layout


def test_note_says_that_setup_sets_the_mig_layout_and_where() -> None:
    notes = "\n".join(render_builtin("k8s-mig", "fleet").notes)
    assert "`gpunode setup` with this recipe sets the MIG layout all-balanced; run it on " in notes
    assert "gpu-01" in notes


def test_unknown_mig_resource_has_no_test_pod() -> None:
    for extra, resource in (
        ("", None),
        ('[kubernetes.sharing]\nmode = "time-slicing"\nreplicas = 2\nrename = true\n', ".shared"),
    ):
        text = f'extends = "k8s-containerd"\n{extra}[kubernetes.mig]\nstrategy = "{"single" if resource else "mixed"}"'
        found = render_cluster(recipe_of(text), CLUSTERS["eight"])
        assert bool(found.test_pod) == bool(resource)
        assert "test-pod.yaml" in make_files(found, "manifests") or not resource
        assert not resource or f"nvidia.com/gpu{resource}" in str(found.test_pod)


def test_configuration_without_a_node_is_noted() -> None:
    wanted = recipe_of('extends = "k8s-containerd"\n[kubernetes.configs.big]\nmodel = "B200"')
    assert any("No node gets the configuration big" in note for note in render_cluster(wanted, CLUSTERS["one"]).notes)
    mixed = ClusterNode("mix", (find_model("2901"), find_model("1eb8")))
    assert any("mix has other GPUs beside" in note for note in render_cluster(wanted, [mixed]).notes)


def test_config_map_name_depends_on_its_content() -> None:
    """The plugin does not watch its file; a new name rolls its pods."""
    names = set()
    for name in ("k8s-containerd", "k8s-time-slicing"):
        (made,) = (one for one in render_builtin(name, "eight").objects if one.kind == "ConfigMap")
        (plugin,) = (one for one in render_builtin(name, "eight").objects if one.kind == "DaemonSet")
        mounted = plugin.body["spec"]["template"]["spec"]["volumes"][1]["configMap"]["name"]
        assert mounted == made.name
        names.add(made.name)
    assert len(names) == 2


def test_taint_is_tolerated_by_everything_that_must_run_there() -> None:
    text = 'extends = "{}"\n[kubernetes.taint]\nkey = "team/gpu"\nvalue = "x"\neffect = "NoExecute"'
    for name in RECIPES:
        found = render_cluster(recipe_of(text.format(name)), CLUSTERS["eight"])
        assert {edit.taint for edit in found.nodes} == {"team/gpu=x:NoExecute"}
        everything = str([one.body for one in (*found.objects, *found.test_pod)]) + str(
            [r.values for r in found.releases]
        )
        wanted = str({"key": "team/gpu", "operator": "Exists", "effect": "NoExecute"})
        # The test pod, and the objects that offer the GPUs.
        assert everything.count(wanted) >= 2, name


@pytest.mark.parametrize("effect", ["NoExecute", "PreferNoSchedule"])
def test_clouds_taint_is_tolerated_beside_another_effect_of_its_key(effect: str) -> None:
    """A cloud taints its GPU nodes itself, so the recipe's taint comes on top."""
    text = f'extends = "k8s-containerd"\n[kubernetes.taint]\nkey = "nvidia.com/gpu"\neffect = "{effect}"'
    found = render_cluster(recipe_of(text), CLUSTERS["one"])
    (plugin,) = (one.body["spec"]["template"]["spec"] for one in found.objects if one.kind == "DaemonSet")
    for pod in (plugin, found.test_pod[-1].body["spec"]):
        assert {one["effect"] for one in pod["tolerations"]} == {"NoSchedule", effect}


@pytest.mark.parametrize("name", RECIPES)
def test_control_plane_taint_is_tolerated_only_on_request(name: str) -> None:
    """kubeadm taints the only node of a cluster, so the device plugin would have no node."""
    key = "node-role.kubernetes.io/control-plane"
    for is_asked in (True, False):
        found = render_cluster(
            recipe_of(f'extends = "{name}"\nkubernetes.control_plane = {str(is_asked).lower()}'), CLUSTERS["eight"]
        )
        (pod, *_) = (one.body for one in found.test_pod if one.kind == "Pod")
        assert (key in str(pod)) == is_asked
        offering = [str(one.body) for one in found.objects if one.kind == "DaemonSet"]
        offering += [
            str({k: v for k, v in one.values.items() if k not in {"nfd", "node-feature-discovery"}})
            for one in found.releases
        ]
        assert all((key in text) == is_asked for text in offering)


def test_registry_mirror_replaces_every_registry() -> None:
    for name in RECIPES:
        found = render_cluster(
            recipe_of(f'extends = "{name}"\n[kubernetes]\nregistry = "mirror.example:5000/gpu"'), CLUSTERS["eight"]
        )
        images = [
            line for text in make_files(found, "manifests").values() for line in text.splitlines() if "image" in line
        ]
        assert images
        assert not [line for line in images if "nvcr.io" in line or "registry.k8s.io" in line], name


def test_hami_scheduler_image_has_the_mirror_path_once() -> None:
    """Rendered by Helm, the mirror's path appeared twice."""
    (release,) = render_cluster(
        recipe_of('extends = "hami"\n[kubernetes]\nregistry = "mirror/gpu"'), CLUSTERS["one"]
    ).releases
    assert release.values["global"] == {"imageRegistry": "mirror/gpu"}
    assert release.values["scheduler"] == {"kubeScheduler": {"image": {"repository": "kube-scheduler"}}}


SHARED = (
    '[kubernetes.sharing]\nmode = "time-slicing"\nreplicas = 4\n'
    '[kubernetes.configs.mig]\nmodel = "H100"\nstrategy = "mixed"\nlayout = "all-1g.10gb"\n'
    '[kubernetes.configs.training]\nmodel = "A100"\n'
)
NODES = (node("a", "2330", 8), node("b", "2330", 8), node("c", "20b2", 8), node("d", "1eb8", 2))


@pytest.mark.parametrize("recipe", ["k8s-containerd", "gpu-operator"])
@pytest.mark.parametrize("nodes", [NODES, NODES[:3], NODES[:1], NODES[2:3], NODES[3:], NODES[1:]])
def test_unlabelled_nodes_get_the_recipe_sharing(recipe: str, nodes: Sequence[ClusterNode]) -> None:
    """It used to be that of most nodes: one more node gave all unlabelled ones another configuration."""
    found = render_cluster(recipe_of(f'extends = "{recipe}"\n{SHARED}'), nodes)
    if found.releases:
        values = found.releases[0].values
        config = values["config"] if recipe == "k8s-containerd" else values["devicePlugin"]["config"]
        data = config.get("map") or config["data"]
        assert {edit.labels.get(PLUGIN_CONFIG_LABEL, config["default"]) for edit in found.nodes} <= data.keys()
        text = data[config["default"]]
    else:  # only nodes without a table: one configuration, which the plugin mounts
        (text,) = [one.body["data"]["config.yaml"] for one in found.objects if one.kind == "ConfigMap"]
    assert yaml.safe_load(text)["sharing"]["timeSlicing"]["resources"] == [{"name": "nvidia.com/gpu", "replicas": 4}]


def test_sharing_config_without_nodes_lists_possible_resources() -> None:
    """The plugin refuses an empty list."""
    text = 'extends = "gpu-operator"\n[kubernetes.sharing]\nmode = "time-slicing"\nreplicas = 2\n'
    text += '[kubernetes.mig]\nstrategy = "mixed"\n[kubernetes.configs.whole]\nmodel = "T4"\n'
    (release,) = render_cluster(recipe_of(text), CLUSTERS["k3s"]).releases
    config = release.values["devicePlugin"]["config"]
    resources = yaml.safe_load(config["data"][config["default"]])["sharing"]["timeSlicing"]["resources"]
    assert {"name": "nvidia.com/mig-1g.10gb", "replicas": 2} in resources


def test_each_kind_of_node_has_its_own_test_pod() -> None:
    found = render_cluster(recipe_of(f'extends = "k8s-containerd"\n{SHARED}'), NODES)
    pods = {one.name: one for one in found.test_pod}
    limits = {name: one.body["spec"]["containers"][0]["resources"]["limits"] for name, one in pods.items()}
    assert limits == {
        "gpunode-test-mig": {"nvidia.com/mig-1g.10gb": 1},
        "gpunode-test-training": {"nvidia.com/gpu": 1},
        "gpunode-test-time-slicing-4": {"nvidia.com/gpu": 1},
    }
    assert pods["gpunode-test-mig"].body["spec"]["nodeSelector"] == {PLUGIN_CONFIG_LABEL: "mig"}
    assert "on a, b, with the configuration mig" in pods["gpunode-test-mig"].why
    (alone,) = render_cluster(recipe_of(f'extends = "k8s-containerd"\n{SHARED}'), NODES[:2]).test_pod
    assert alone.name == "gpunode-test"
    assert "nodeSelector" not in alone.body["spec"]


def test_turing_allows_as_many_mps_clients_as_later_gpus() -> None:
    wanted = recipe_of('extends = "k8s-mps"\n[kubernetes.sharing]\nreplicas = 48')
    assert render_cluster(wanted, CLUSTERS["k3s"]).expected == {"edge": {"nvidia.com/gpu": 96}}


def test_argo_cd_oci_registry_has_no_scheme() -> None:
    (application,) = documents(
        {
            "a.yaml": make_files(render_builtin("dra", "eight", "argocd"), "argocd")[
                "applications/dra-driver-nvidia-gpu.yaml"
            ]
        }
    )
    assert application["spec"]["source"]["repoURL"] == "registry.k8s.io/dra-driver-nvidia/charts"


@pytest.mark.parametrize("name", ["k8s-containerd", "gpu-operator", "hami", "dra"])
def test_kubelet_folder_of_the_node_is_used_everywhere(name: str) -> None:
    wanted = recipe_of(f'extends = "{name}"\n[kubernetes.extras]\ndcgm_exporter = true')
    found = render_cluster(wanted, CLUSTERS["microk8s"])
    root = "/var/snap/microk8s/common/var/lib/kubelet"
    # Every chart mounts the kubelet's folder; of the plain objects, the plugin does.
    mounting = [
        *(str(one.values) for one in found.releases),
        *(str(o.body) for o in found.objects if o.kind == "DaemonSet"),
    ]
    assert [text for text in mounting if root not in text] == []
    lines = [line for text in make_files(found, "manifests").values() for line in text.split("\n")]
    assert [line for line in lines if "/var/lib/kubelet" in line.replace(root, "") and "mountPath:" not in line] == []


@pytest.mark.parametrize("device", ["20b0", "2330", "2335", "2901", "20b7", "2bb5"])
def test_balanced_mig_layout_uses_profiles_of_the_gpu(device: str) -> None:
    found = mig.balanced_layout(device)
    assert found.keys() <= mig.max_instances_by_profile(device).keys()
    assert sum(int(profile[0]) * count for profile, count in found.items()) in {4, 7}


_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | _texts,
    lambda inner: (
        st.lists(inner.filter(lambda one: not isinstance(one, list)), max_size=4)
        | st.dictionaries(_texts, inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(_texts, _values, min_size=1, max_size=5))
@example({"\n\x85": None, "a": "b\n\u2028c"})
def test_yaml_document_round_trips_through_pyyaml(value: dict[str, Any]) -> None:
    assert yaml.safe_load(own_yaml.render_document(value, "why\nand what")) == value


@pytest.mark.parametrize(
    ("name", "form", "key"),
    [
        ("k8s-containerd", "manifests", "passDeviceSpecs: true"),
        ("k8s-containerd", "helm", "compatWithCPUManager: true"),
        ("hami", "manifests", "passDeviceSpecsEnabled: true"),
    ],
)
def test_static_cpu_manager_makes_the_plugin_pass_device_specs(name: str, form: RenderFormat, key: str) -> None:
    """Otherwise the kubelet takes the GPUs from a running pod when it sets the pod's CPUs."""
    nodes = (node("a", "2330", 8), node("b", "2330", 8, static_cpus=True))
    found = render_cluster(builtin.read_recipe(name), nodes, form)
    text = "".join(make_files(found, form).values())
    assert key in text
    assert not [key for release in found.releases for key in unknown_keys(release)]
    assert all(PLUGIN_FILE.is_valid(yaml.safe_load(one)) for one in plugin_files(found))
    if name != "hami":
        whys = [*(one.why for one in found.objects), *(one.why for one in found.releases)]
        assert any("b uses the static CPU manager" in why for why in whys)
    if form == "manifests" and name != "hami":
        assert "privileged: true" in text
    assert key not in "".join(make_files(render_cluster(builtin.read_recipe(name), nodes[:1], form), form).values())


@pytest.mark.parametrize("name", ["k8s-containerd", "k8s-mps", "gpu-operator", "hami"])
def test_pods_get_gpudirect_devices_that_the_recipe_installs(name: str) -> None:
    def text(direct: str) -> str:
        found = render_cluster(recipe_of(f'extends = "{name}"\n{direct}'), CLUSTERS["eight"])
        assert not [key for release in found.releases for key in unknown_keys(release)]
        assert all(PLUGIN_FILE.is_valid(yaml.safe_load(one)) for one in plugin_files(found))
        return "".join(make_files(found, "manifests").values())

    both = text("[gpudirect]\ngds = true\ngdrcopy = true")
    assert ("gdsEnabled: true" in both, "gdrcopyEnabled: true" in both) == (True, True)
    one = text("[gpudirect]\ngds = true")
    assert ("gdsEnabled: true" in one, "gdrcopyEnabled" in one) == (True, False)
    assert "gdsEnabled" not in text('[gpudirect]\nrdma = "dma-buf"')


def test_version_overrides_are_rendered() -> None:
    text = 'extends = "{}"\n[kubernetes.versions]\ndevice_plugin = "0.19.3"\ngpu_operator = "v26.3.3"'
    plain = render_cluster(recipe_of(text.format("k8s-containerd")), CLUSTERS["one"])
    assert "k8s-device-plugin:v0.19.3" in str(plain.objects)
    (release,) = render_cluster(recipe_of(text.format("gpu-operator")), CLUSTERS["one"]).releases
    assert release.version == "v26.3.3"
