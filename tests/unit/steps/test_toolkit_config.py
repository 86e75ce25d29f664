"""Settings of a recipe for the toolkit's own configuration."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpunode import builtin
from gpunode.change import Change, FileChange, FileState
from gpunode.facts.model import Facts
from gpunode.facts.project import project_changes
from gpunode.steps.runtime import RUNTIME_CONFIG_STEP, RUNTIME_INSTALL_STEP
from gpunode.steps.toolkit import TOOLKIT_CONFIG_FILE, VOLUME_MOUNTS_KEY
from gpunode.steps.toolkit import TOOLKIT_STEP as TOOLKIT_STEP
from tests.unit.steps.machines import machine, planned, refusal, unit

TOOLKIT = dict.fromkeys(
    ("nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools", "libnvidia-container1"),
    "1.20.0-1",
)
KIND = builtin.read_recipe("kind")


def workstation(content: bytes, **more: object) -> Facts:
    return machine(
        packages={"docker.io": "20.10.24", **TOOLKIT},
        files={TOOLKIT_CONFIG_FILE: FileState(content, **more)},  # type: ignore[arg-type]
        units={"docker.service": unit()},
        toolkit_program=True,
    )


def toolkit_change(changes: tuple[Change, ...]) -> FileChange | None:
    found = [change for change in changes if isinstance(change, FileChange) and change.path == TOOLKIT_CONFIG_FILE]
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"disable-require = false\n",
        f"#{VOLUME_MOUNTS_KEY} = false\n".encode(),
        f"{VOLUME_MOUNTS_KEY} = false\n".encode(),
    ],
)
def test_volume_mounts_for_kind_are_enabled_once(content: bytes) -> None:
    facts = workstation(content)
    outcome = planned(RUNTIME_CONFIG_STEP.plan(KIND, facts))
    change = toolkit_change(outcome.changes)
    assert change is not None
    assert isinstance(change.after, FileState)
    assert f"{VOLUME_MOUNTS_KEY} = true" in change.after.content.decode().splitlines()
    assert "requests for GPUs by mounts" in outcome.reason
    assert planned(RUNTIME_CONFIG_STEP.plan(KIND, project_changes(facts, outcome.changes))).changes == ()


def test_toolkit_config_is_left_alone_if_the_recipe_is_silent() -> None:
    assert (
        toolkit_change(planned(RUNTIME_CONFIG_STEP.plan(builtin.read_recipe("docker"), workstation(b""))).changes)
        is None
    )


def test_writable_toolkit_config_is_restricted_in_the_same_change() -> None:
    change = toolkit_change(planned(RUNTIME_CONFIG_STEP.plan(KIND, workstation(b"", mode=0o666))).changes)
    assert change is not None
    assert isinstance(change.after, FileState)
    assert change.after.mode == 0o644


def test_requested_toolkit_setting_is_not_noted() -> None:
    facts = workstation(f"{VOLUME_MOUNTS_KEY} = true\n".encode())
    assert planned(TOOLKIT_STEP.plan(KIND, facts)).notes == ()
    (note,) = planned(TOOLKIT_STEP.plan(builtin.read_recipe("docker"), facts)).notes
    assert VOLUME_MOUNTS_KEY in note


def test_rootless_docker_is_refused_for_a_kind_cluster() -> None:
    facts = machine(rootless_docker=True)
    no = refusal(RUNTIME_INSTALL_STEP.plan(KIND, facts))
    assert "rootless" in no.what
    assert "docker context use default" in no.hint
    for recipe, node in (
        (builtin.read_recipe("docker"), facts),
        (KIND, replace(workstation(b""), rootless_docker=facts.rootless_docker)),
    ):
        planned(RUNTIME_INSTALL_STEP.plan(recipe, node))


def test_k3s_recipe_installs_no_containerd() -> None:
    assert "k3s or RKE2" in refusal(RUNTIME_INSTALL_STEP.plan(builtin.read_recipe("k3s"), machine())).hint
