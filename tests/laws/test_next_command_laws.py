"""Following ``next:`` ends in success, a reboot, a drain or a person's decision, and never in a loop."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from gpunode.cli.screen.failures import commands_in
from gpunode.facts.derive import derive
from gpunode.facts.model import Facts, Known
from gpunode.recipe import Recipe
from gpunode.runtimes import ObservedConfig
from gpunode.workflow.verify import runtime_checks
from tests.drifts import DRIFTS, Drift
from tests.fakes.examples import examples, sample
from tests.laws.next_commands import SETUP, Verb, check, setup, walk
from tests.laws.nodes import facts as nodes
from tests.laws.nodes import recipes
from tests.scenarios.healthy.captures import evidence
from tests.scenarios.healthy.nodes import HEALTHY
from tests.unit.steps.machines import CONTAINERD, recipe, unit, with_driver
from tests.unit.test_drifts import PACKAGES, converged

NO_CRI = b'# as Docker ships it\ndisabled_plugins = ["cri"]\n'
HANDLER = b"""version = 2
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "/usr/bin/nvidia-container-runtime"
"""
ENABLE = "sudo gpunode ctk runtime configure --runtime=containerd --enable-cri --restart"


def with_containerd(config: bytes, **more: object) -> Facts:
    """Return a node with driver, toolkit and containerd."""
    units = {"containerd.service": unit(started_at=100.0), "nvidia-persistenced.service": unit()}
    facts = with_driver("580.95.05", packages={**PACKAGES, "containerd": "1.7.24"}, files={CONTAINERD: config},
                        units=units, device_nodes=frozenset({"/dev/nvidiactl", "/dev/nvidia0"}))  # fmt: skip
    return replace(facts, **more)  # type: ignore[arg-type]


def test_missing_cri_plugin_is_enabled_by_the_next_command() -> None:
    node, wanted = with_containerd(NO_CRI), recipe("containerd")
    assert walk(setup, wanted, node) == [ENABLE]
    assert walk(check, wanted, node) == [SETUP, ENABLE]


@pytest.mark.parametrize(
    ("changed_at", "restarts"), [({CONTAINERD: 200.0}, True), ({}, True), ({CONTAINERD: 50.0}, False)]
)
def test_daemon_restart_is_proposed_once_and_only_if_useful(changed_at: dict[str, float], restarts: bool) -> None:
    node = with_containerd(HANDLER, changed_at=changed_at)
    (found,) = runtime_checks(recipe("containerd"), node, lambda _: ObservedConfig({"runc": ""}))
    assert commands_in(found.hint) == (("sudo systemctl restart containerd.service",) if restarts else ())
    assert "its files have nvidia" in found.detail


@pytest.mark.parametrize("verb", [setup, check])
@pytest.mark.parametrize("drift", [drift for drift in DRIFTS if drift.facts], ids=lambda drift: drift.id)
def test_hints_terminate_for_every_drift(drift: Drift, verb: Verb) -> None:
    wanted, node = converged()
    assert drift.facts is not None
    walk(verb, wanted, drift.facts(node))


@settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
@given(recipes(), nodes())
def test_hints_terminate_for_every_node(wanted: Recipe, node: Facts) -> None:
    walk(setup, wanted, node)
    walk(check, wanted, node)


@pytest.mark.parametrize("name", sample(tuple(HEALTHY), "next", str, 14))
def test_hints_terminate_for_every_known_node(name: str) -> None:
    node = derive(evidence(HEALTHY[name]()))
    for runtime in ("none", "containerd", "docker"):
        for wanted in (recipe(runtime), recipe(runtime, version="none")):
            walk(setup, wanted, node)
            walk(check, wanted, node)


def test_hold_is_released_by_the_named_command() -> None:
    wanted, node = converged()
    assert isinstance(node.packages, Known)
    held = {
        package: replace(state, version="1.20.1-1", held=True) if package.name == "libnvidia-container1" else state
        for package, state in node.packages.value.items()
    }
    done = walk(setup, wanted, replace(node, packages=Known(held, "dpkg-status")))
    assert done == ["sudo apt-mark unhold libnvidia-container1"]
