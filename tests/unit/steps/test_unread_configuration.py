"""A daemon that is older than its configuration file reads it again; if that is unknown, nothing is done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpunode.change import FileChange, FileState, Trigger
from gpunode.facts.derive import derive
from gpunode.facts.evidence import Capture, Ownership
from gpunode.facts.model import Facts
from gpunode.facts.project import project_changes
from gpunode.recipe import Recipe, RuntimeSettings
from gpunode.runtimes import DesiredConfig, apply_edits, find_runtime
from gpunode.steps.runtime import RUNTIME_CONFIG_STEP
from tests.unit.steps.machines import CONTAINERD, DAEMON_JSON, machine, planned, recipe, unit

FILES = {"containerd": CONTAINERD, "docker": DAEMON_JSON}


def node(name: str, changed: float | None = 50.0, **more: Any) -> Facts:
    """Return a node whose runtime is configured, with a file that changed at the given time."""
    content = apply_edits({}, find_runtime(name).configure({}, DesiredConfig(version=(1, 6))))[FILES[name]]
    facts = machine(files={FILES[name]: content}, packages={name: "1.6-1"}, units={f"{name}.service": unit(**more)})
    return facts if changed is None else replace(facts, changed_at={FILES[name]: changed})


@pytest.mark.parametrize(
    ("name", "times", "kind"),
    [
        ("containerd", {"started_at": 40.0}, "restart"),
        ("containerd", {"started_at": 40.0, "changed_at": 60.0}, "restart"),
        ("docker", {"started_at": 40.0}, "reload"),
        ("docker", {"started_at": 40.0, "changed_at": 45.0}, "reload"),
    ],
)
def test_daemon_older_than_its_file_rereads_it(name: str, times: dict[str, float], kind: Any) -> None:
    outcome = planned(RUNTIME_CONFIG_STEP.plan(recipe(name), node(name, **times)))
    (change,) = outcome.changes
    assert isinstance(change, FileChange)
    assert change.before == change.after
    assert change.triggers == {Trigger(kind, f"{name}.service")}
    assert outcome.expectation is not None, "its own parser looks at the file before the daemon does"
    assert outcome.stopped_workloads == ""
    facts = project_changes(node(name, **times), outcome.changes)
    assert planned(RUNTIME_CONFIG_STEP.plan(recipe(name), facts)).changes == ()


@pytest.mark.parametrize("version", ["20.10.24", "26.1.5", "28.5.2"])
def test_foreign_edit_of_a_docker_with_cdi_causes_only_a_reload(version: str) -> None:
    content = apply_edits({}, find_runtime("docker").configure({}, DesiredConfig(enable_cdi=True)))[DAEMON_JSON]
    facts = machine(
        files={DAEMON_JSON: content},
        packages={"docker.io": version},
        units={"docker.service": unit(started_at=40.0)},
    )
    wanted = Recipe("test", runtime=RuntimeSettings("docker", cdi=True))
    outcome = planned(RUNTIME_CONFIG_STEP.plan(wanted, replace(facts, changed_at={DAEMON_JSON: 50.0})))
    (change,) = outcome.changes
    assert isinstance(change, FileChange)
    assert change.triggers == {Trigger("reload", "docker.service")}
    assert outcome.stopped_workloads == ""


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("containerd", node("containerd", started_at=60.0)),
        ("containerd", node("containerd", started_at=50.0)),
        ("docker", node("docker", started_at=40.0, changed_at=60.0)),
        ("containerd", node("containerd", changed=None, started_at=1.0)),
        ("containerd", node("containerd")),
    ],
    ids=["younger", "at the same moment", "reloaded since", "a capture without times", "not running"],
)
def test_daemon_that_has_read_its_file_is_left_alone(name: str, facts: Facts) -> None:
    assert planned(RUNTIME_CONFIG_STEP.plan(recipe(name), facts)).changes == ()


def test_modification_time_of_a_file_is_read_with_it() -> None:
    evidence = {
        f"file:{CONTAINERD}": Capture(CONTAINERD, "ok", b"x", ownership=Ownership(0o644, 0, 0, 12.5)),
        f"file:{DAEMON_JSON}": Capture(DAEMON_JSON, "ok", b"{}", ownership=Ownership(0o644, 0, 0)),
    }
    facts = derive(evidence)
    assert facts.changed_at == {CONTAINERD: 12.5}
    file = facts.file(CONTAINERD)
    assert file == facts.files[CONTAINERD]
    assert getattr(file, "value", None) == FileState(b"x")
