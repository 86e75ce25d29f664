"""Nodes whose host a provider builds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpunode.facts.model import Known, Kubelet, LoadedDriver
from gpunode.steps.detect import DETECT_STEP
from gpunode.workflow.cluster_node import derive_cluster_node
from tests.unit.steps.machines import machine, planned, recipe, refusal, unit, with_driver

LOADED = LoadedDriver("580.95.05", open_module=True)


@pytest.mark.parametrize(
    ("provider", "who", "instead"),
    [
        ("gke", "a GKE node", "gpu-driver-version=latest"),
        ("openshift", "an OpenShift node", "OperatorHub"),
        ("bottlerocket", "a Bottlerocket node", "NVIDIA variant"),
    ],
)
def test_provider_managed_host_is_refused(provider: str, who: str, instead: str) -> None:
    for asked in (recipe("containerd"), recipe("containerd", version="none")):
        no = refusal(DETECT_STEP.plan(asked, machine(provider=provider)))
        assert who in no.what
        assert instead in no.hint


@pytest.mark.parametrize(("provider", "bring"), [("eks", "Ubuntu's for EKS"), ("aks", "--gpu-driver none")])
def test_provider_image_driver_is_kept_and_a_missing_one_is_yours(provider: str, bring: str) -> None:
    no = refusal(DETECT_STEP.plan(recipe("containerd"), machine(provider=provider, loaded_driver=LOADED)))
    assert bring in no.hint
    assert "gpunode k8s render" in no.hint
    for node in (machine(provider=provider), with_driver(provider=provider)):
        (note,) = planned(DETECT_STEP.plan(recipe("containerd"), node)).notes
        assert "run setup on each new node" in note


@pytest.mark.parametrize("provider", [None, "kind"])
def test_self_managed_provider_node_is_set_up_as_usual(provider: str | None) -> None:
    assert planned(DETECT_STEP.plan(recipe("containerd"), machine(provider=provider))).notes == ()


@pytest.mark.parametrize(
    ("labels", "theirs"),
    [
        ("", True),
        ("cloud.google.com/gke-gpu=true,gke-no-default-nvidia-gpu-device-plugin=true", False),
        ("gke-no-default-nvidia-gpu-device-plugin=trueish", True),
    ],
)
def test_gke_runs_its_device_plugin_unless_the_node_opts_out(labels: str, theirs: bool) -> None:
    kubelet = Known(Kubelet("kubelet", "kubelet.service", "/run/containerd/containerd.sock", labels=labels), "units")
    node = derive_cluster_node(machine(provider="gke", kubelet=kubelet), "a")
    assert ("device-plugin" in node.provides) is theirs


def test_services_run_by_the_provider_are_known_to_the_cluster() -> None:
    assert derive_cluster_node(machine(provider="eks", loaded_driver=LOADED), "a").provides == {"driver"}
    running = replace(machine(), units={"nvidia-device-plugin.service": Known(unit(), "units")})
    assert derive_cluster_node(running, "a").provides == {"device-plugin"}
