"""A node whose kubelet uses a product's own containerd: the distribution's is neither installed nor edited."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.change import FileChange, Trigger
from gpunode.facts.model import Facts, Known, Kubelet
from gpunode.facts.probes import TOOLKIT_FILE_LIST
from gpunode.facts.project import project_changes
from gpunode.recipe import Recipe
from gpunode.steps.runtime import RUNTIME_CONFIG_STEP, RUNTIME_INSTALL_STEP
from tests.unit.steps.machines import CONTAINERD, machine, planned, recipe, refusal, unit

RUNC = b'[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n'
VECTORS = Path(__file__).parents[2] / "conformance" / "runtimes" / "vectors"
K3S = Kubelet("k3s", "k3s.service", "/run/k3s/containerd/containerd.sock", data="/var/lib/rancher/k3s")
FOLDER = "/var/lib/rancher/k3s/agent/etc/containerd"
CONFIG = f"{FOLDER}/config.toml"
WITH_FOLDER = (VECTORS / "019-ctd-k3s-v3" / "input.toml").read_bytes()
REGISTERED = (VECTORS / "018-ctd-k3s-v2" / "input.toml").read_bytes()
OLDER = REGISTERED[: REGISTERED.index(b'\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes."nvidia"]')]
RESTART = Trigger("restart", "k3s.service")


def node(generated: bytes, toolkit_came: float | None = None) -> Facts:
    """Return a node on which k3s was started at 100, and wrote its file right after that."""
    facts = machine(files={CONFIG: generated}, kubelet=K3S)
    units = {**facts.units, "k3s.service": Known(unit(started_at=100.0), "units")}
    came = {} if toolkit_came is None else {TOOLKIT_FILE_LIST: toolkit_came}
    return replace(facts, units=units, changed_at={CONFIG: 101.0, **came})


def default(recipe: Recipe) -> Recipe:
    return replace(recipe, runtime=replace(recipe.runtime, set_as_default=True))


def test_distribution_containerd_is_not_installed_beside_k3s() -> None:
    outcome = planned(RUNTIME_INSTALL_STEP.plan(recipe("containerd"), node(WITH_FOLDER)))
    assert outcome.changes == ()
    assert "k3s" in outcome.reason


def test_k3s_gets_a_drop_in_and_one_restart() -> None:
    facts = node(WITH_FOLDER)
    outcome = planned(RUNTIME_CONFIG_STEP.plan(recipe("containerd"), facts))
    (change,) = outcome.changes
    assert isinstance(change, FileChange)
    assert change.path == f"{FOLDER}/config-v3.toml.d/99-nvidia.toml"
    assert change.triggers == {RESTART}
    assert (
        planned(RUNTIME_CONFIG_STEP.plan(recipe("containerd"), project_changes(facts, outcome.changes))).changes == ()
    )


def test_drop_in_newer_than_k3s_causes_a_restart() -> None:
    facts = project_changes(
        node(WITH_FOLDER), planned(RUNTIME_CONFIG_STEP.plan(recipe("containerd"), node(WITH_FOLDER))).changes
    )
    dropped_in = replace(facts, changed_at={f"{FOLDER}/config-v3.toml.d/99-nvidia.toml": 200.0})
    (change,) = planned(RUNTIME_CONFIG_STEP.plan(recipe("containerd"), dropped_in)).changes
    assert isinstance(change, FileChange)
    assert change.before == change.after
    assert change.triggers == {RESTART}


def test_file_generated_by_k3s_causes_no_restart() -> None:
    outcome = planned(RUNTIME_CONFIG_STEP.plan(recipe("containerd"), node(REGISTERED)))
    assert outcome.changes == ()
    assert "by itself" in outcome.reason


def test_toolkit_installed_after_k3s_started_causes_a_restart() -> None:
    facts = node(OLDER, toolkit_came=150.0)
    outcome = planned(RUNTIME_CONFIG_STEP.plan(recipe("containerd"), facts))
    (change,) = outcome.changes
    assert isinstance(change, FileChange)
    assert change.path == CONFIG
    assert change.before == change.after
    assert change.triggers == {RESTART}
    assert (
        planned(RUNTIME_CONFIG_STEP.plan(recipe("containerd"), project_changes(facts, outcome.changes))).changes == ()
    )


def test_k3s_that_missed_the_toolkit_is_not_restarted_repeatedly() -> None:
    outcome = planned(RUNTIME_CONFIG_STEP.plan(recipe("containerd"), node(OLDER, toolkit_came=50.0)))
    assert outcome.changes == ()
    assert any("PATH" in note for note in outcome.notes)


def test_default_runtime_of_k3s_is_set_in_its_own_config() -> None:
    outcome = planned(RUNTIME_CONFIG_STEP.plan(default(recipe("containerd")), node(REGISTERED)))
    (change,) = outcome.changes
    assert isinstance(change, FileChange)
    assert change.path == "/etc/rancher/k3s/config.yaml.d/99-gpunode.yaml"
    assert change.triggers == {RESTART}


def test_k0s_needs_no_restart_for_a_drop_in() -> None:
    kubelet = Kubelet("k0s", "k0sworker.service", "/run/k0s/containerd.sock")
    config = b'# k0s_managed=true\nversion = 3\nimports = ["/etc/k0s/containerd.d/*.toml"]\n'
    facts = machine(files={"/etc/k0s/containerd.toml": config}, kubelet=kubelet)
    (change,) = planned(RUNTIME_CONFIG_STEP.plan(recipe("containerd"), facts)).changes
    assert isinstance(change, FileChange)
    assert (change.path, change.triggers) == ("/etc/k0s/containerd.d/99-nvidia.toml", frozenset())


def test_kubeadm_cgroup_setting_does_not_change_a_product() -> None:
    wanted = recipe("containerd")
    wanted = replace(wanted, runtime=replace(wanted.runtime, cgroup_driver="systemd"))
    kubelet = Kubelet("k0s", "k0sworker.service", "/run/k0s/containerd.sock")
    config = b'# k0s_managed=true\nversion = 3\nimports = ["/etc/k0s/containerd.d/*.toml"]\n'
    facts = machine(files={"/etc/k0s/containerd.toml": config}, kubelet=kubelet)
    (change,) = planned(RUNTIME_CONFIG_STEP.plan(wanted, facts)).changes
    assert isinstance(change, FileChange)
    assert b"SystemdCgroup" not in change.after.content  # type: ignore[union-attr]


def test_cgroup_setting_that_contradicts_the_kubelet_is_noted() -> None:
    wanted = recipe("containerd")
    wanted = replace(wanted, runtime=replace(wanted.runtime, cgroup_driver="systemd"))
    kubelet = Kubelet("kubelet", "kubelet.service", "/run/containerd/containerd.sock", "cgroupfs")
    notes = planned(
        RUNTIME_CONFIG_STEP.plan(wanted, machine(packages={"containerd": "1.7.24-1"}, kubelet=kubelet))
    ).notes
    assert any("cgroupfs" in note for note in notes)


def test_unknown_cri_socket_is_refused_before_any_change() -> None:
    facts = machine(kubelet=Kubelet("kubelet", "kubelet.service", "/run/mine.sock"))
    assert "/run/mine.sock" in refusal(RUNTIME_INSTALL_STEP.plan(recipe("containerd"), facts)).what
    assert "/run/mine.sock" in refusal(RUNTIME_CONFIG_STEP.plan(recipe("containerd"), facts)).what


def test_other_runtime_of_the_kubelet_is_noted() -> None:
    facts = machine(kubelet=Kubelet("kubelet", "kubelet.service", "/run/crio/crio.sock"))
    assert any("CRI-O" in note for note in planned(RUNTIME_CONFIG_STEP.plan(recipe("containerd"), facts)).notes)


@pytest.mark.parametrize(
    ("content", "driver", "puts_it_there"),
    [
        (b"version = 2\n", "systemd", True),
        (b"version = 2\n", "cgroupfs", False),
        (b"version = 2\n" + RUNC, "systemd", False),
    ],
    ids=["nothing to inherit", "cgroupfs", "runc says it by saying nothing"],
)
def test_containerd_gets_the_cgroup_driver_of_the_kubelet(content: bytes, driver: str, puts_it_there: bool) -> None:
    kubelet = Kubelet("kubelet", "kubelet.service", "/run/containerd/containerd.sock", driver)  # type: ignore[arg-type]
    facts = machine(files={CONTAINERD: content}, packages={"containerd": "1.7.24-1"}, kubelet=kubelet)
    (change, *_) = planned(RUNTIME_CONFIG_STEP.plan(recipe("containerd"), facts)).changes
    assert isinstance(change, FileChange)
    assert (b"SystemdCgroup = true" in change.after.content) is puts_it_there  # type: ignore[union-attr]
    facts = project_changes(facts, (change,))
    assert planned(RUNTIME_CONFIG_STEP.plan(recipe("containerd"), facts)).changes == ()
