"""Pods get their GPUs by CDI: setup enables it if containerd has it, and a capture shows that it is enabled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpunode import builtin
from gpunode.change import FileChange, FileState, PackageState
from gpunode.facts.model import Facts, Known, Kubelet
from gpunode.recipe import Recipe
from gpunode.recipe.toml import parse
from gpunode.runtimes import containerd
from gpunode.steps.runtime import RUNTIME_CONFIG_STEP
from gpunode.workflow.cluster_node import derive_cluster_node
from tests.unit.steps.machines import CONTAINERD, machine, planned

V2 = "version = 2\n[plugins.'io.containerd.grpc.v1.cri']\n"
V3 = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\n"
# As `containerd config default` of 1.7.24 prints it, among its other keys.
DUMPED = V2 + 'cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]\nenable_cdi = false\n'
OFF = "enable_cdi = false\n"
SOCKET = "/run/containerd/containerd.sock"


def node(version: str, text: str, socket: str = SOCKET) -> Facts:
    packages = {"containerd": version} if version else {}
    kubelet = Kubelet("kubelet", "kubelet.service", socket, cgroup_driver="systemd")
    return machine(
        packages={**packages, "nvidia-container-toolkit": PackageState("1.20.0-1")},
        files={CONTAINERD: text.encode()},
        kubelet=Known(kubelet, "units"),
        toolkit_program=Known(value=True, probe="toolkit-program"),
    )


def project_setup(recipe: Recipe, facts: Facts) -> tuple[Facts, str]:
    """Return the node with the files that setup writes, and the plan's text."""
    plan = planned(RUNTIME_CONFIG_STEP.plan(recipe, facts))
    written: dict[str, Known[FileState | None]] = {
        one.path: Known(one.after, "file")
        for one in plan.changes
        if isinstance(one, FileChange) and isinstance(one.after, FileState)
    }
    return replace(facts, files={**facts.files, **written}), " ".join((*plan.notes, *plan.change_notes))


@pytest.mark.parametrize(
    ("version", "text", "reads", "note"),
    [
        ("1.6.20~ds1-1+b1", V2, False, "containerd 1.6.20 has no CDI for pods"),
        ("1.7.24~ds1-6", V2, True, ""),
        ("1.7.24~ds1-6", "", True, ""),
        ("1.7.24~ds1-6", DUMPED, True, ""),
        ("1.7.24~ds1-6", V2 + OFF, False, "which somebody chose"),
        ("2.1.9-1", V3, True, ""),
        ("2.1.9-1", V3 + OFF, False, "which somebody chose"),
        # Kept over the upgrade from 1.7.
        ("2.1.9-1", DUMPED, True, ""),
        ("", V2, False, "no package shows the version"),
        ("", V3, True, ""),
    ],
)
def test_setup_enables_cdi_in_containerd_where_supported(version: str, text: str, reads: bool, note: str) -> None:
    facts, said = project_setup(builtin.read_recipe("k8s-containerd"), node(version, text))

    assert derive_cluster_node(facts, "a").reads_cdi is reads
    assert ("only with runtimeClassName: nvidia" in said) is not reads
    assert note in said
    state = facts.files[CONTAINERD]
    assert isinstance(state, Known)
    assert isinstance(state.value, FileState)
    written = {path: one.value.content for path, one in facts.files.items() if isinstance(one, Known) and one.value}
    # Nothing is written that containerd does by default.
    is_written = containerd.inspect(written).cdi is True
    assert is_written is (reads and (version.startswith("1.7") or text == DUMPED))
    again = planned(RUNTIME_CONFIG_STEP.plan(builtin.read_recipe("k8s-containerd"), facts))
    assert [one for one in again.changes if isinstance(one, FileChange)] == []


@pytest.mark.parametrize(
    ("name", "more", "text", "cdi"),
    [
        ("containerd", "", V2, None),
        ("hami", "", V2, None),
        ("k8s-containerd", "[runtime]\nset_as_default = true", V2, None),
        ("k8s-containerd", "[runtime]\ncdi = false", V2, None),
        ("k8s-containerd", "[runtime]\ncdi = true", V2 + OFF, True),
        # Without CDI its pods could not get a GPU.
        ("dra", "", V2 + OFF, True),
        ("gpu-operator", "", V2, True),
        ("k8s-mps", "", V2, True),
    ],
)
def test_recipe_decides_whether_pods_get_gpus_by_cdi(name: str, more: str, text: str, cdi: bool | None) -> None:
    recipe = parse(f'schema = 1\nextends = "{name}"\n{more}', "mine.toml", builtin.load_recipe_text)
    facts, said = project_setup(recipe, node("1.7.24~ds1-6", text))
    files = {path: one.value.content for path, one in facts.files.items() if isinstance(one, Known) and one.value}
    assert containerd.inspect(files).cdi is cdi
    assert "runtimeClassName" not in said


@pytest.mark.parametrize(
    ("socket", "reads"), [("/run/crio/crio.sock", True), ("/run/cri-dockerd.sock", False), ("/run/strange.sock", False)]
)
def test_cdi_support_is_that_of_the_kubelets_runtime(socket: str, reads: bool) -> None:
    assert derive_cluster_node(node("2.1.9-1", V3, socket), "a").reads_cdi is reads


def test_cdi_support_is_that_of_containerd_before_a_kubelet_exists() -> None:
    facts = replace(node("2.1.9-1", V3), kubelet=Known(None, "units"))
    assert derive_cluster_node(facts, "a").reads_cdi
