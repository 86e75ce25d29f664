"""ctk on a node whose containerd is part of a product: the pending triggers, and the programs that it runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.change import Trigger
from gpunode.facts.derive import derive_runtime_facts
from gpunode.facts.model import Known, Kubelet
from gpunode.facts.probes import TOOLKIT_FILE_LIST
from gpunode.journal.store import Store
from gpunode.runtimes import DesiredConfig, Runtime, find_runtime
from gpunode.runtimes.installations import resolve_runtime
from gpunode.workflow import ctk, ctk_plan
from gpunode.workflow.ctk_plan import CtkPlan, preview_contents
from gpunode.workflow.events import ignore_event
from tests.unit.steps.machines import machine, unit
from tests.unit.workflow.editing import Machine

VECTORS = Path(__file__).parents[2] / "conformance" / "runtimes" / "vectors"
FOLDER = "/var/lib/rancher/k3s/agent/etc/containerd"
CONFIG, DROP_IN = f"{FOLDER}/config.toml", f"{FOLDER}/config-v3.toml.d/99-nvidia.toml"
WITH_FOLDER = (VECTORS / "019-ctd-k3s-v3" / "input.toml").read_bytes()
OLDER = WITH_FOLDER.replace(b"imports = ", b"# imports = ")
K0S = b'# k0s_managed=true\nversion = 3\nimports = ["/etc/k0s/containerd.d/*.toml"]\n'
WISH = DesiredConfig(exact=True)


def row_of(kubelet: Kubelet, files: dict[str, bytes]) -> Runtime:
    return resolve_runtime(
        find_runtime("containerd"), replace(machine(files=files), kubelet=Known(kubelet, "units"))
    ).runtime


def k3s() -> Runtime:
    return row_of(Kubelet("k3s", "k3s.service", "/run/k3s/containerd/containerd.sock", data="/var/lib/rancher/k3s"), {})


def plan_of(host: Machine, row: Runtime) -> CtkPlan:
    return ctk_plan.plan_configure_edit(host, ctk_plan.inspect_target(host, row, WISH, derive_runtime_facts({})))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_unit_of_the_kubernetes_product_is_restarted_and_no_parser_asked(store: Store) -> None:
    host = Machine({CONFIG: WITH_FOLDER})
    plan = plan_of(host, k3s())
    assert plan.trigger == Trigger("restart", "k3s.service")
    done = ctk.apply_edit(plan, host, store, "configure", ignore_event)
    assert set(host.contents) >= {CONFIG, DROP_IN}
    assert done.validation == ""
    assert plan_of(host, k3s()).files == ()


def test_generated_product_config_does_not_count_for_daemon_age() -> None:
    plan = plan_of(Machine({CONFIG: WITH_FOLDER}), k3s())
    assert plan.target
    assert CONFIG not in plan.target.own
    assert DROP_IN in plan.target.own


@pytest.mark.parametrize(("came", "owes"), [(50.0, True), (30.0, False), (None, False)])
def test_product_that_finds_the_runtime_itself_is_only_restarted(came: float | None, owes: bool) -> None:
    host = Machine({CONFIG: OLDER})
    target = ctk_plan.inspect_target(host, k3s(), WISH, derive_runtime_facts({}))
    times = {} if came is None else {CONFIG: 10.0, TOOLKIT_FILE_LIST: came}
    facts = replace(target.facts, units={"k3s.service": Known(unit(started_at=40.0), "units")}, changed_at=times)
    plan = ctk_plan.plan_configure_edit(host, replace(target, facts=facts))
    assert plan.changed_files == ()
    owed = {change.path: change.triggers for change in plan.files}
    assert owed == ({CONFIG: frozenset({Trigger("restart", "k3s.service")})} if owes else {})
    assert any("on its PATH" in note for note in plan.planned.notes) is (came == 30.0)


def test_product_that_watches_its_files_needs_no_restart() -> None:
    files = {"/etc/k0s/containerd.toml": K0S}
    row = row_of(Kubelet("k0s", "k0sworker.service", "/run/k0s/containerd.sock"), files)
    plan = plan_of(Machine(files), row)
    assert plan.trigger is None
    assert [change.path for change in plan.files] == ["/etc/k0s/containerd.d/99-nvidia.toml"]


def test_check_does_not_ask_the_runtime_of_a_product() -> None:
    files = {CONFIG: WITH_FOLDER}
    host = Machine(files)
    first = plan_of(host, k3s())
    after = {**host.contents, DROP_IN: preview_contents(first)[0]}
    plan = plan_of(Machine(after), k3s())
    verdict = ctk.compare_with_plan(plan, lambda _: pytest.fail("asked"), is_live=True)
    assert "generated when it starts" in verdict.unverified
