"""The MPS control daemon: its unit, when it starts, and when it is refused."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.change import FileChange, ServiceChange, ServiceState, Trigger
from gpunode.facts.layout import GpuLayout
from gpunode.facts.model import Facts, Known, Kubelet
from gpunode.facts.probes import MPS_UNIT_FILE
from gpunode.facts.project import project_changes
from gpunode.recipe import MigSettings, Mps, Recipe
from gpunode.recipe.toml import parse
from gpunode.steps.daemons import MPS_PIPE_DIRECTORY, MPS_SERVICE, MPS_STEP, render_mps_unit
from gpunode.workflow.converge import state_notes
from tests.unit.steps.machines import machine, planned, recipe, refusal, unit, with_driver

WANTED = replace(recipe(version="none"), mps=Mps(enabled=True))


def node(facts: Facts, *, running: bool = False, exists: bool = False) -> Facts:
    state = unit(active=running, enabled=running, exists=exists or running)
    folders = {**facts.folders, "/etc/systemd/system": "units"}
    return replace(facts, units={**facts.units, MPS_SERVICE: Known(state, "units")}, folders=folders)


def test_mps_unit_is_written_and_started_and_its_limits_noted() -> None:
    outcome = planned(MPS_STEP.plan(WANTED, node(with_driver())))
    file, service = outcome.changes
    assert isinstance(file, FileChange)
    assert file.path == MPS_UNIT_FILE
    assert file.triggers == {Trigger("daemon-reload")}
    assert service == ServiceChange(MPS_SERVICE, ServiceState(False, False), ServiceState(enabled=True, active=True))
    assert any("a fatal fault of one program can end all" in note for note in outcome.change_notes)
    assert planned(MPS_STEP.plan(WANTED, project_changes(node(with_driver()), outcome.changes))).changes == ()


def test_mps_goes_with_a_layout_that_switches_mig_off() -> None:
    assert planned(MPS_STEP.plan(replace(WANTED, mig=MigSettings("all-disabled")), node(with_driver()))).changes
    assert (
        "MIG exclude" in refusal(MPS_STEP.plan(replace(WANTED, mig=MigSettings("all-balanced")), node(machine()))).what
    )


def test_mps_is_refused_on_gpus_that_others_have_divided() -> None:
    divided = replace(
        with_driver(), layout=Known(GpuLayout(frozenset({0}), frozenset(), frozenset({3})), "nvidia-gpus")
    )
    found = refusal(MPS_STEP.plan(WANTED, node(divided)))
    assert found.what == "[mps] needs whole GPUs, but this node has MIG instances that gpunode did not create"
    assert planned(MPS_STEP.plan(replace(WANTED, mig=MigSettings("all-disabled")), node(divided))).changes


def test_mps_is_refused_where_a_kubelet_starts_pods() -> None:
    at_rest = replace(with_driver(), kubelet=Known(Kubelet("k3s", "k3s.service", "x"), "kubelet"))
    of_cluster = replace(at_rest, units={**at_rest.units, "k3s.service": Known(unit(enabled=True), "units")})
    found = refusal(MPS_STEP.plan(WANTED, node(of_cluster)))
    assert found.what.endswith("off the GPUs, and this host runs a kubelet (k3s.service)")
    assert planned(MPS_STEP.plan(replace(WANTED, mps=Mps(enabled=True, exclusive=False)), node(of_cluster))).changes
    # Files of a former cluster, or a package for one that was never created.
    left = replace(at_rest, units={**at_rest.units, "k3s.service": Known(unit(enabled=False, active=False), "units")})
    assert planned(MPS_STEP.plan(WANTED, node(left))).changes


def test_mps_without_a_driver_starts_with_the_next_boot() -> None:
    outcome = planned(MPS_STEP.plan(WANTED, node(machine())))
    assert outcome.changes[-1] == ServiceChange(MPS_SERVICE, ServiceState(False, False), ServiceState(True, False))
    assert outcome.reason == "the MPS control daemon starts with the next boot"


def test_daemon_of_an_earlier_recipe_is_noted() -> None:
    """It keeps the GPUs in exclusive mode, in which other programs do not start."""
    shared = project_changes(node(with_driver()), planned(MPS_STEP.plan(WANTED, node(with_driver()))).changes)
    without = replace(WANTED, mps=Mps())
    assert [note for note in state_notes(without, shared) if f"`sudo systemctl disable --now {MPS_SERVICE}`" in note]
    assert not [note for note in state_notes(without, node(with_driver())) if MPS_SERVICE in note]
    assert not [note for note in state_notes(without, shared, is_users_recipe=False) if MPS_SERVICE in note]


def test_mps_mode_change_restarts_the_daemon() -> None:
    done = project_changes(node(with_driver()), planned(MPS_STEP.plan(WANTED, node(with_driver()))).changes)
    shared = replace(WANTED, mps=Mps(enabled=True, exclusive=False))
    (change,) = planned(MPS_STEP.plan(shared, done)).changes
    assert isinstance(change, FileChange)
    assert Trigger("restart", MPS_SERVICE) in change.triggers


@pytest.mark.parametrize("exclusive", [True, False])
def test_mps_unit_sets_and_resets_the_compute_mode(*, exclusive: bool) -> None:
    text = render_mps_unit(exclusive=exclusive).decode()
    assert ("ExecStartPre=/usr/bin/nvidia-smi -c EXCLUSIVE_PROCESS" in text) is exclusive
    assert ("ExecStopPost=" in text) is exclusive


@pytest.mark.usefixtures("allow_subprocess")
def test_mps_unit_restores_the_former_compute_mode_of_each_gpu(tmp_path: Path) -> None:
    smi, said = tmp_path / "nvidia-smi", tmp_path / "said"
    modes = r'printf "0, Default\n1, Exclusive_Process\n10, Prohibited\n"'
    smi.write_text(f'#!/bin/sh\necho "$*" >> {said}\ncase $1 in --query*) {modes};; esac\n')
    smi.chmod(0o755)
    text = (
        render_mps_unit(exclusive=True)
        .decode()
        .replace("/usr/bin/nvidia-smi", str(smi))
        .replace(MPS_PIPE_DIRECTORY, str(tmp_path))
    )
    for key in ("ExecStartPre=", "ExecStopPost="):
        for one in (line for line in text.splitlines() if line.startswith(key)):
            subprocess.run(shlex.split(one.removeprefix(key).replace("$$", "$")), check=True)
    assert said.read_text().splitlines() == [
        "--query-gpu=index,compute_mode --format=csv,noheader",
        "-c EXCLUSIVE_PROCESS",
        "-i 0 -c DEFAULT",
        "-i 1 -c EXCLUSIVE_PROCESS",
        "-i 10 -c PROHIBITED",
    ]


@pytest.mark.parametrize("stack", ["device-plugin", "gpu-operator", "hami", "dra"])
def test_mps_unit_is_refused_beside_a_kubernetes_stack(stack: str) -> None:
    text = f'[mps]\nenabled = true\n[kubernetes]\nstack = "{stack}"\n'
    found = refusal(MPS_STEP.plan(parse(text, "t.toml", load=lambda _: ""), node(with_driver())))
    assert "issues 712 and 762" in found.why
    assert 'mode = "mps"' in found.hint
    assert planned(MPS_STEP.plan(Recipe("x"), node(with_driver()))).reason == "not requested"
