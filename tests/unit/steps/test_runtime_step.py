"""The program that the runtime is told to run must be there, or come before."""

from __future__ import annotations

from dataclasses import replace

from gpunode.facts.model import Facts, Known
from gpunode.recipe import Recipe
from gpunode.steps.runtime_config import RUNTIME_CONFIG
from tests.unit.steps.machines import machine, planned, recipe, refusal

MISSING = Known(value=False, probe="toolkit-program")


def default() -> Recipe:
    wanted = recipe("docker")
    return replace(wanted, runtime=replace(wanted.runtime, default=True))


def node(**packages: str) -> Facts:
    named = {name.replace("_", "-"): version for name, version in packages.items()}
    return replace(machine(packages={"docker.io": "26", **named}), toolkit_program=MISSING)


def test_a_default_runtime_without_its_program_is_refused_and_a_handler_warned_of() -> None:
    no = refusal(RUNTIME_CONFIG.plan(default(), node()))
    assert "nvidia-container-runtime is not installed" in no.what
    assert "sudo gpunode setup --runtime=docker --only=toolkit-repository --only=toolkit" in no.hint
    assert any("is not installed" in note for note in planned(RUNTIME_CONFIG.plan(recipe("docker"), node())).notes)


def test_what_the_toolkit_brings_in_the_same_run_is_not_missing() -> None:
    assert planned(RUNTIME_CONFIG.plan(default(), node(nvidia_container_toolkit="1.18.0-1"))).changes
